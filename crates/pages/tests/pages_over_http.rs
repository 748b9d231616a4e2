//! Every page and every write, through the router.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, Response, StatusCode, header};
use pages::{Way, Why, web};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::support::{Memory, shared_gpus};

const SAMPLE: &str = include_str!("../../../tests/vectors/simulator/export-sample.json");

fn sample() -> Value {
    serde_json::from_str(SAMPLE).unwrap()
}

fn site(state: Value) -> Router {
    web::router(Arc::new(Memory::with(state)))
}

async fn send(router: &Router, request: Request<Body>) -> Response<Body> {
    router.clone().oneshot(request).await.unwrap()
}

async fn body(response: Response<Body>) -> String {
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The body of an existing page.
async fn page(router: &Router, path: &str) -> String {
    let response = send(router, Request::get(path).body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), StatusCode::OK, "{path}");
    body(response).await
}

/// Sends a form, and returns the status, the address that it redirects to, and the body.
async fn form(router: &Router, path: &str, pairs: &[(&str, &str)]) -> (StatusCode, String, String) {
    let encode =
        |text: &str| -> String { text.bytes().map(|byte| format!("%{byte:02X}")).collect() };
    let pairs: Vec<String> = pairs
        .iter()
        .map(|(key, value)| format!("{key}={}", encode(value)))
        .collect();
    let request = Request::post(path)
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(pairs.join("&").into())
        .unwrap();
    let response = send(router, request).await;
    let to = response.headers().get(header::LOCATION);
    let to = to.map_or(String::new(), |to| to.to_str().unwrap().to_owned());
    (response.status(), to, body(response).await)
}

#[tokio::test]
async fn the_sample_opens_placed_and_explained() {
    let site = site(sample());

    let page = page(&site, "/").await;

    assert!(page.contains("3 nodes") && page.contains("2 pods placed"));
    assert!(page.contains("node-2 was chosen: 2 of 3 nodes passed every filter"));
    assert!(page.contains("taint x=y:NoSchedule"));
    assert!(page.contains("nvidia.com/gpu: 1 of 2"));
}

#[tokio::test]
async fn a_pod_has_a_table_for_filters_and_for_scores() {
    let site = site(sample());

    let page = page(&site, "/page/pods/default/pod-1").await;

    assert!(page.contains("refused: node(s) had untolerated taint {x: y}"));
    assert!(page.contains("Final score") && page.contains("NodeResourcesBalancedAllocation"));
    assert!(page.contains(r#"<td class="total">495</td>"#));
}

#[tokio::test]
async fn a_pending_pod_has_a_reason_and_a_way_out() {
    let way = Way {
        text: "ask for at most 81920 MiB".into(),
        edits: vec!["nvidia.com/gpumem: 81920".into()],
        ..Way::default()
    };
    let why = Why {
        ways: vec![way],
        ..Why::default()
    };
    let memory = Memory::with(shared_gpus(2, 3)).why("default", "train-00002", why);
    let site = web::router(Arc::new(memory));

    let overview = page(&site, "/").await;
    let why = page(&site, "/page/part/why/default/train-00002").await;

    assert!(overview.contains("1 pending") && overview.contains("GPU of too little memory"));
    assert!(overview.contains("/page/part/why/default/train-00002"));
    assert!(
        why.contains("It would fit after this change") && why.contains("nvidia.com/gpumem: 81920")
    );
}

#[tokio::test]
async fn html_in_objects_is_text_on_every_page() {
    let evil = "<script>alert(1)</script><b hx-get=/x onclick='y'>\"";
    let key = |name: &str| format!("kube-scheduler-simulator.sigs.k8s.io/{name}");
    let pod = json!({
        "metadata": { "name": "evil", "namespace": "default", "labels": {}, "annotations": {
            key("filter-result"): json!({ evil: { evil: evil } }).to_string(),
            key("finalscore-result"): json!({ evil: { evil: evil } }).to_string(),
            key("selected-node"): evil,
            "note": evil,
        } },
        "spec": { "schedulerName": evil, "containers": [{ "name": "c", "image": evil }] },
        "status": { "conditions": [{ "type": "PodScheduled", "status": "False", "message": evil }] },
    });
    let register = format!(
        "[{}]",
        json!({ "id": "GPU-0", "count": 1, "devmem": 1000, "devcore": 100, "type": evil, "health": true })
    );
    let node = json!({
        "metadata": { "name": "n1", "annotations": { "hami.io/node-nvidia-register": register } },
        "spec": { "taints": [{ "key": evil, "value": evil, "effect": "NoSchedule" }] },
    });
    let why = Why {
        summary: evil.into(),
        ways: vec![Way {
            text: evil.into(),
            node: evil.into(),
            edits: vec![evil.into()],
        }],
        notes: vec![evil.into()],
        ..Why::default()
    };
    let memory =
        Memory::with(json!({ "pods": [pod], "nodes": [node] })).why("default", "evil", why);
    let site = web::router(Arc::new(memory));
    let asked = "%3Cscript%3Ealert(1)%3C/script%3E%3Cb%20hx-get=/x%20onclick='y'%3E%22";
    let paths = [
        "/".to_owned(),
        "/page/nodes/n1".into(),
        "/page/pods/default/evil".into(),
        "/page/edit/pods/default/evil".into(),
        "/page/part/why/default/evil".into(),
        format!("/?nodes={asked}&sort={asked}&done=created&name={asked}"),
        format!("/page/objects/pods?pods={asked}"),
        format!("/page/objects/namespaces?q={asked}"),
    ];

    for path in paths {
        let page = page(&site, &path).await;
        assert!(!page.contains("<script>alert"), "{path}");
        assert!(!page.contains("<b hx-get"), "{path}");
    }
    let missing = send(
        &site,
        Request::get(format!("/page/nodes/{asked}"))
            .body(Body::empty())
            .unwrap(),
    )
    .await;
    assert_eq!(missing.status(), StatusCode::NOT_FOUND);
    assert!(!body(missing).await.contains("<script>alert"));
}

#[tokio::test]
async fn every_answer_forbids_scripts_of_others() {
    let site = site(sample());

    for path in [
        "/",
        "/page/assets/page.js",
        "/page/nodes/nowhere",
        "/page/export",
    ] {
        let response = send(&site, Request::get(path).body(Body::empty()).unwrap()).await;
        let policy = response.headers()["content-security-policy"]
            .to_str()
            .unwrap();
        assert!(
            policy.contains("script-src 'self'") && !policy.contains("unsafe"),
            "{path}"
        );
        assert_eq!(response.headers()["x-content-type-options"], "nosniff");
    }
}

#[tokio::test]
async fn no_page_has_a_script_or_a_style_inline() {
    let site = site(shared_gpus(2, 5));
    let paths = [
        "/",
        "/page/nodes/gpu-0000",
        "/page/pods/default/train-00000",
        "/page/objects/pods",
        "/page/objects/namespaces",
        "/page/new/nodes",
        "/page/configuration",
        "/page/data",
        "/page/reset",
        "/page/compare",
    ];

    for path in paths {
        let page = page(&site, path).await;
        assert!(
            !page.contains(" style=") && !page.contains("<style"),
            "{path}"
        );
        assert!(
            !page.contains(" onclick") && !page.contains("hx-on"),
            "{path}"
        );
        let scripts: Vec<&str> = page.split("<script").skip(1).collect();
        assert!(!scripts.is_empty(), "{path} loads no script");
        for script in scripts {
            assert!(script.starts_with(" src=\"/page/assets/"), "{path}");
        }
    }
}

#[tokio::test]
async fn a_new_object_leads_to_its_page() {
    let site = site(sample());
    let text = "metadata:\r\n  generateName: web-\r\nspec:\r\n  containers:\r\n    - name: c\r\n      image: i\r\n";

    let (status, to, _) = form(&site, "/page/new/pods", &[("text", text)]).await;

    assert_eq!(status, StatusCode::SEE_OTHER);
    assert!(to.starts_with("/page/pods/default/web-"), "{to}");
    let page = page(&site, &to).await;
    assert!(page.contains("Created web-"));
}

#[tokio::test]
async fn every_template_can_be_created() {
    let site = site(json!({}));
    for kind in pages::Kind::ALL {
        assert!(!kind.templates().is_empty(), "{}", kind.plural());
        for template in kind.templates() {
            let path = format!("/page/new/{}?template={}", kind.plural(), template.id);
            assert!(page(&site, &path).await.contains("generateName"));

            let (status, _, body) = form(
                &site,
                &format!("/page/new/{}", kind.plural()),
                &[("text", template.text)],
            )
            .await;

            assert_eq!(status, StatusCode::SEE_OTHER, "{}: {body}", template.title);
        }
    }
}

#[tokio::test]
async fn a_refused_text_is_shown_again_with_the_reason() {
    let site = site(sample());
    let cases = [
        ("a: [", StatusCode::BAD_REQUEST, "this is not YAML"),
        ("", StatusCode::BAD_REQUEST, "the text is empty"),
        (
            "kind: Node\nmetadata: {name: n}",
            StatusCode::BAD_REQUEST,
            "is of kind Node",
        ),
        (
            "metadata: {name: UPPER}\nspec: {containers: [{name: c, image: i}]}",
            StatusCode::UNPROCESSABLE_ENTITY,
            "UPPER",
        ),
        (
            "metadata: {name: pod-1}\nspec: {containers: [{name: c, image: i}]}",
            StatusCode::CONFLICT,
            "already exists",
        ),
    ];

    for (text, status, reason) in cases {
        let (refused, _, page) = form(&site, "/page/new/pods", &[("text", text)]).await;
        assert_eq!(refused, status, "{text}");
        assert!(page.contains(reason), "{text}: {page}");
        let first = text.split(['\n', '"']).next().unwrap();
        assert!(page.contains(first), "the text is lost: {text}");
    }
}

#[tokio::test]
async fn an_edit_changes_the_status_of_a_node_too() {
    let site = site(sample());
    let text = "metadata:\n  name: node-1\n  labels: {zone: a}\nspec: {}\nstatus:\n  allocatable: {cpu: '16', memory: 32Gi, pods: '110'}\n";

    let (status, to, body) = form(&site, "/page/edit/nodes/-/node-1", &[("text", text)]).await;

    assert_eq!(
        (status, &*to),
        (
            StatusCode::SEE_OTHER,
            "/page/nodes/node-1?done=saved&name=node-1"
        ),
        "{body}"
    );
    let page = page(&site, &to).await;
    assert!(page.contains("of 16") && page.contains("zone=a"));
}

#[tokio::test]
async fn an_edit_of_another_object_is_refused() {
    let site = site(sample());

    let (status, _, page) = form(
        &site,
        "/page/edit/nodes/-/node-1",
        &[("text", "metadata: {name: node-2}")],
    )
    .await;

    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(page.contains("a name cannot be changed"));
}

#[tokio::test]
async fn an_edit_of_what_was_changed_meanwhile_is_refused() {
    let site = site(sample());
    let text = "metadata: {name: node-1, resourceVersion: '1'}\nspec: {}\n";

    let (status, _, page) = form(&site, "/page/edit/nodes/-/node-1", &[("text", text)]).await;

    assert_eq!(status, StatusCode::CONFLICT);
    assert!(page.contains("Another client changed it since this page was opened"));
    assert!(
        page.contains("resourceVersion: &#39;1&#39;"),
        "the text is lost"
    );
}

#[tokio::test]
async fn an_edited_pod_keeps_its_results() {
    let site = site(sample());
    let editor = page(&site, "/page/edit/pods/default/pod-1").await;
    assert!(!editor.contains("filter-result"));
    let text = editor
        .split("wrap=\"off\"")
        .nth(1)
        .unwrap()
        .split_once(">\n")
        .unwrap()
        .1;
    let text = text.split("</textarea>").next().unwrap();
    let text = text
        .replace("&#34;", "\"")
        .replace("&#39;", "'")
        .replace("&#60;", "<")
        .replace("&#62;", ">")
        .replace("&#38;", "&");
    let text = text.replacen("metadata:\n", "metadata:\n  labels: {team: a}\n", 1);

    let (status, to, body) = form(&site, "/page/edit/pods/default/pod-1", &[("text", &text)]).await;

    assert_eq!(status, StatusCode::SEE_OTHER, "{body}");
    assert!(page(&site, &to).await.contains("node-2 was chosen"));
}

#[tokio::test]
async fn a_deletion_is_asked_for_and_then_done() {
    let site = site(sample());

    let question = page(&site, "/page/delete/pods/default/pod-1").await;
    let (status, to, _) = form(&site, "/page/delete/pods/default/pod-1", &[]).await;

    assert!(question.contains("Delete pod pod-1?"));
    assert_eq!(status, StatusCode::SEE_OTHER);
    let list = page(&site, &to).await;
    assert!(list.contains("Deleted pod-1.") && !list.contains("/page/pods/default/pod-1"));
    let (status, _, page) = form(&site, "/page/delete/pods/default/pod-1", &[]).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(page.contains("not found"));
}

#[tokio::test]
async fn a_configuration_that_cannot_run_changes_nothing() {
    let site = site(sample());
    let before = page(&site, "/page/configuration").await;

    let (status, _, refused) = form(&site, "/page/configuration", &[("text", "kind: Other")]).await;

    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(
        refused.contains("kind is not KubeSchedulerConfiguration")
            && refused.contains("kind: Other")
    );
    assert_eq!(page(&site, "/page/configuration").await, before);
}

/// A multipart form with these fields.
async fn import(router: &Router, fields: &[(&str, &str)]) -> (StatusCode, String) {
    let mut text = String::new();
    for (name, value) in fields {
        text.push_str(&format!(
            "--edge\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"
        ));
    }
    text.push_str("--edge--\r\n");
    let request = Request::post("/page/data")
        .header(header::CONTENT_TYPE, "multipart/form-data; boundary=edge")
        .body(text.into())
        .unwrap();
    let response = send(router, request).await;
    (response.status(), body(response).await)
}

#[tokio::test]
async fn export_can_be_imported_after_a_reset() {
    let site = site(sample());
    let node = "metadata: {name: node-9}\nstatus: {allocatable: {cpu: '1'}}";
    form(&site, "/page/new/nodes", &[("text", node)]).await;
    let exported = page(&site, "/page/export").await;
    let as_yaml = page(&site, "/page/export?format=yaml").await;

    let (status, to, _) = form(&site, "/page/reset", &[]).await;
    assert_eq!((status, &*to), (StatusCode::SEE_OTHER, "/?done=reset"));
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert!(!page(&site, "/").await.contains("node-9"));

    for text in [&exported, &as_yaml] {
        let (status, body) = import(&site, &[("file", text), ("replace", "true")]).await;
        assert_eq!(status, StatusCode::SEE_OTHER, "{body}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        let page = page(&site, "/").await;
        assert!(
            page.contains("node-9") && page.contains("4 nodes") && page.contains("2 pods placed")
        );
    }
}

#[tokio::test]
async fn an_import_that_is_refused_changes_nothing_and_shows_the_text() {
    let site = site(sample());

    for (text, reason) in [
        ("", "there is nothing to import"),
        ("nodes: [", "this is not YAML"),
        ("nodes: 3", "nodes is not a list"),
    ] {
        let (status, body) = import(&site, &[("file", ""), ("text", text)]).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{text}");
        assert!(body.contains(reason) && body.contains(text), "{body}");
    }
    assert!(page(&site, "/").await.contains("3 nodes"));
}

#[tokio::test]
async fn a_write_for_another_site_is_refused() {
    let site = site(sample());
    for (name, value) in [
        ("sec-fetch-site", "cross-site"),
        ("origin", "http://evil.example"),
    ] {
        let request = Request::post("/page/reset")
            .header(header::HOST, "127.0.0.1:1212")
            .header(name, value)
            .body(Body::empty())
            .unwrap();

        assert_eq!(send(&site, request).await.status(), StatusCode::FORBIDDEN);
    }
}

#[tokio::test]
async fn a_text_that_is_too_long_is_refused_with_the_limit() {
    let site = site(sample());
    let text = "x".repeat(5 << 20);

    let request = Request::post("/page/new/pods")
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(format!("text={text}").into())
        .unwrap();
    let response = send(&site, request).await;

    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert!(body(response).await.contains("at most 4 MiB"));
}

#[tokio::test]
async fn a_comparison_shows_every_run() {
    let site = site(shared_gpus(2, 4));

    let (status, _, body) = form(
        &site,
        "/page/compare",
        &[("add_nodes", "2"), ("drain", ""), ("configuration", "")],
    )
    .await;
    let (refused, _, why) = form(
        &site,
        "/page/compare",
        &[("add_nodes", "x"), ("drain", "n7"), ("anew", "on")],
    )
    .await;

    assert_eq!(status, StatusCode::OK);
    assert!(body.contains("2 nodes more") && body.contains("Pending: Insufficient cpu"));
    assert!(body.contains("what else there is to know") && !body.contains(" checked"));
    assert_eq!(refused, StatusCode::BAD_REQUEST);
    assert!(why.contains("is no number of nodes") && why.contains("value=\"n7\""));
    assert!(why.contains("name=\"anew\" value=\"on\" checked"));
}

#[tokio::test]
async fn a_page_that_is_not_there_says_so() {
    let site = site(sample());
    for path in [
        "/page/pods/default/nowhere",
        "/page/nodes/nowhere",
        "/page/objects/secrets",
        "/page/edit/pods/default/nowhere",
        "/page/assets/nothing.js",
    ] {
        let response = send(&site, Request::get(path).body(Body::empty()).unwrap()).await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{path}");
    }
    let gone = page(&site, "/page/part/pod/default/nowhere").await;
    assert!(gone.contains("Pod nowhere was deleted."));
}

#[tokio::test]
async fn stream_reports_which_kinds_changed() {
    use futures_util::StreamExt as _;
    let site = site(sample());
    page(&site, "/").await;
    let response = send(
        &site,
        Request::get("/page/events").body(Body::empty()).unwrap(),
    )
    .await;
    assert_eq!(
        response.headers()[header::CONTENT_TYPE],
        "text/event-stream"
    );
    let mut events = response.into_body().into_data_stream();
    let first = events.next().await.unwrap().unwrap();
    let first = String::from_utf8_lossy(&first).into_owned();
    let seen = first.split("data: ").nth(1).unwrap().trim();
    assert!(first.starts_with("event: hello") && seen.parse::<u64>().unwrap() > 0);
    assert!(
        page(&site, "/")
            .await
            .contains(&format!("data-seen=\"{seen}\""))
    );

    form(
        &site,
        "/page/new/namespaces",
        &[("text", "metadata: {name: team-c}")],
    )
    .await;

    let next = tokio::time::timeout(std::time::Duration::from_secs(5), events.next());
    let next = next.await.unwrap().unwrap().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&next),
        "event: changed\ndata: namespaces\n\n"
    );
}
