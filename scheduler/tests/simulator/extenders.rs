//! Real calls of extenders over HTTP and TLS: each verb, the effect of a broken one on a pod, and the refused settings.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use base64::Engine as _;
use parking_lot::Mutex;
use serde_json::{Value, json};
use server::{Listener, Manners, Tls};

use super::wire::{Served, node, pod};

/// The answer of one verb of an extender.
type Verb = Arc<dyn Fn(&Value) -> Reply + Send + Sync>;

/// How an extender answers a question.
type Answer = fn(&Value) -> Reply;

enum Reply {
    Json(Value),
    Text(StatusCode, &'static str),
    Never,
}

/// A test's extender, and the requests that it received.
#[derive(Clone, Default)]
struct Extender {
    verbs: BTreeMap<&'static str, Verb>,
    asked: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Extender {
    fn on(
        mut self,
        verb: &'static str,
        answer: impl Fn(&Value) -> Reply + Send + Sync + 'static,
    ) -> Self {
        self.verbs.insert(verb, Arc::new(answer));
        self
    }

    fn router(&self) -> Router {
        async fn answer(
            State(extender): State<Extender>,
            Path(verb): Path<String>,
            body: Bytes,
        ) -> Response {
            let args: Value = serde_json::from_slice(&body).unwrap();
            extender.asked.lock().push((verb.clone(), args.clone()));
            let Some(say) = extender.verbs.get(&*verb).cloned() else {
                return StatusCode::NOT_FOUND.into_response();
            };
            match say(&args) {
                Reply::Json(value) => axum::Json(value).into_response(),
                Reply::Text(code, text) => (code, text).into_response(),
                Reply::Never => std::future::pending().await,
            }
        }
        Router::new()
            .route("/ext/{verb}", post(answer))
            .with_state(self.clone())
    }

    async fn serve(&self, tls: Option<Tls>) -> String {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        let port = listener.address().port();
        let router = self.router();
        let scheme = if tls.is_some() { "https" } else { "http" };
        tokio::spawn(async move {
            let never = std::future::pending::<()>();
            match tls {
                Some(tls) => {
                    listener
                        .serve_tls(router, Manners::default(), tls, never)
                        .await
                }
                None => listener.serve(router, Manners::default(), never).await,
            }
        });
        format!("{scheme}://localhost:{port}/ext")
    }

    fn asked(&self, verb: &str) -> Vec<Value> {
        let asked = self.asked.lock();
        let of_verb = asked.iter().filter(|(of, _)| of == verb);
        of_verb.map(|(_, args)| args.clone()).collect()
    }
}

fn configuration(extenders: Value) -> Value {
    json!({ "podInitialBackoffSeconds": 1, "podMaxBackoffSeconds": 1, "extenders": extenders })
}

fn condition(pod: &Value) -> (String, String) {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let of = conditions
        .into_iter()
        .find(|of| of["type"] == "PodScheduled");
    let text = |name: &str| {
        of.and_then(|of| of[name].as_str())
            .unwrap_or_default()
            .to_owned()
    };
    (text("reason"), text("message"))
}

fn bound(pod: &Value) -> bool {
    pod["spec"]["nodeName"].is_string()
}

fn result(pod: &Value, name: &str) -> Value {
    let key = format!("kube-scheduler-simulator.sigs.k8s.io/{name}");
    serde_json::from_str(pod["metadata"]["annotations"][key].as_str().unwrap()).unwrap()
}

async fn place(served: &Served, pods: Value) {
    let import = json!({ "nodes": [node("a"), node("b")], "pods": pods });
    let answer = served.import(&import).await;
    assert_eq!(
        answer.code(),
        200,
        "{}",
        String::from_utf8_lossy(&answer.body)
    );
}

fn all_nodes(args: &Value) -> Reply {
    Reply::Json(json!({ "Nodes": args["Nodes"], "NodeNames": args["NodeNames"] }))
}

#[tokio::test]
async fn whole_nodes_go_to_an_extender_without_a_cache() {
    let extender = Extender::default().on("filter", |args| {
        let items = args["Nodes"]["items"].as_array().unwrap();
        let fit: Vec<&Value> = items
            .iter()
            .filter(|node| node["metadata"]["name"] == "b")
            .collect();
        Reply::Json(
            json!({ "Nodes": { "items": fit }, "FailedAndUnresolvableNodes": { "a": "never" } }),
        )
    });
    let url = extender.serve(None).await;
    let written = configuration(json!([{ "urlPrefix": url, "filterVerb": "filter" }]));
    let served = Served::scheduling(Some(&written)).await;
    place(&served, json!([pod("p")])).await;

    let placed = served.pod_once("p", bound).await;

    assert_eq!(placed["spec"]["nodeName"], "b");
    let asked = &extender.asked("filter")[0];
    assert!(asked["NodeNames"].is_null());
    assert_eq!(
        asked["Nodes"]["items"][0]["status"]["allocatable"]["cpu"],
        "4"
    );
    assert_eq!(asked["Pod"]["metadata"]["name"], "p");
    let shown = result(&placed, "extender-filter-result");
    assert_eq!(
        shown[&url]["FailedAndUnresolvableNodes"],
        json!({ "a": "never" })
    );
}

#[tokio::test]
async fn an_answer_that_cannot_be_used_ends_the_try_with_its_reason() {
    let broken: [(Answer, &str); 7] = [
        (
            |_| Reply::Text(StatusCode::INTERNAL_SERVER_ERROR, "oh"),
            "/ext/filter, code 500",
        ),
        (
            |_| Reply::Text(StatusCode::CREATED, "{}"),
            "/ext/filter, code 201",
        ),
        (|_| Reply::Text(StatusCode::OK, "<html>"), "is not JSON"),
        (|_| Reply::Text(StatusCode::OK, ""), "is empty"),
        (|_| Reply::Json(json!([1])), "expected an object"),
        (
            |_| Reply::Json(json!({ "NodeNames": ["a", "elsewhere"] })),
            "claims a filtered node \"elsewhere\"",
        ),
        (
            |_| Reply::Json(json!({ "Error": "no licence" })),
            "no licence",
        ),
    ];
    for (answer, said) in broken {
        let url = Extender::default().on("filter", answer).serve(None).await;
        let extender =
            json!({ "urlPrefix": url, "filterVerb": "filter", "nodeCacheCapable": true });
        let served = Served::scheduling(Some(&configuration(json!([extender])))).await;
        place(&served, json!([pod("p")])).await;

        let pending = served
            .pod_once("p", |pod| !condition(pod).0.is_empty())
            .await;

        let (reason, message) = condition(&pending);
        assert_eq!(reason, "SchedulerError");
        assert!(message.contains(said), "{message}");
        let mut ignorable = extender;
        ignorable["ignorable"] = true.into();
        let posted = configuration(json!([ignorable]));
        assert_eq!(
            served
                .post("/api/v1/schedulerconfiguration", &posted)
                .await
                .code(),
            202
        );
        served.pod_once("p", bound).await;
    }
}

#[tokio::test]
async fn scores_that_cannot_be_read_are_left_out() {
    for answer in [
        json!({}),
        json!([{ "Host": 1 }]),
        json!("x"),
        json!([{ "Host": "b", "Score": "9" }]),
    ] {
        let url = Extender::default()
            .on("score", move |_| Reply::Json(answer.clone()))
            .serve(None)
            .await;
        let extender = json!([{ "urlPrefix": url, "prioritizeVerb": "score", "weight": 1 }]);
        let served = Served::scheduling(Some(&configuration(extender))).await;
        place(&served, json!([pod("p")])).await;

        let placed = served.pod_once("p", bound).await;

        assert_eq!(result(&placed, "extender-prioritize-result"), json!({}));
    }
}

#[tokio::test]
async fn the_bind_verb_binds_and_an_ignorable_failure_falls_back() {
    let failing = Extender::default().on("bind", |_| Reply::Json(json!({ "Error": "not today" })));
    let url = failing.serve(None).await;
    let extender = json!({ "urlPrefix": url, "bindVerb": "bind" });
    let served = Served::scheduling(Some(&configuration(json!([extender])))).await;
    place(&served, json!([pod("p")])).await;

    let pending = served
        .pod_once("p", |pod| !condition(pod).0.is_empty())
        .await;

    assert!(
        condition(&pending).1.contains("not today"),
        "{:?}",
        condition(&pending)
    );
    let asked = &failing.asked("bind")[0];
    assert_eq!(
        (&asked["PodName"], &asked["PodNamespace"]),
        (&json!("p"), &json!("default"))
    );
    assert_eq!(asked["PodUID"], pending["metadata"]["uid"]);
    let mut ignorable = extender;
    ignorable["ignorable"] = true.into();
    let posted = configuration(json!([ignorable]));
    assert_eq!(
        served
            .post("/api/v1/schedulerconfiguration", &posted)
            .await
            .code(),
        202
    );
    let placed = served.pod_once("p", bound).await;
    assert_eq!(placed["spec"]["nodeName"], asked["Node"]);
    assert_eq!(result(&placed, "extender-bind-result"), json!({}));
}

#[tokio::test]
async fn an_extender_that_binds_is_the_only_one_that_does() {
    // It binds over the cluster's own API, as a real one does.
    let api = Served::scheduling(None).await;
    let cluster = api.simulator.cluster().clone();
    let extender = Extender::default().on("bind", move |args| {
        let cluster = cluster.clone();
        let pods = cluster.resource("", "pods").unwrap();
        let name = args["PodName"].as_str().unwrap();
        let target = embedded_cluster::Target::object(&pods, "default", name);
        let binding = json!({ "metadata": { "name": name }, "target": { "kind": "Node", "name": args["Node"] } });
        tokio::spawn(async move { cluster.bind(&target, binding, &Default::default()).await.unwrap() });
        Reply::Json(json!({}))
    });
    let url = extender.serve(None).await;
    let posted = configuration(json!([{ "urlPrefix": url, "bindVerb": "bind" }]));
    assert_eq!(
        api.post("/api/v1/schedulerconfiguration", &posted)
            .await
            .code(),
        202
    );
    place(&api, json!([pod("p")])).await;

    let placed = api
        .pod_once("p", |pod| {
            bound(pod) && pod["metadata"]["annotations"].is_object()
        })
        .await;

    assert_eq!(extender.asked("bind").len(), 1);
    assert_eq!(result(&placed, "extender-bind-result"), json!({ &url: {} }));
}

/// A pod of this priority that takes most of a node.
fn large(name: &str, priority: i64, node: Option<&str>) -> Value {
    let mut pod = pod(name);
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "3".into();
    pod["spec"]["priority"] = priority.into();
    let class = if priority > 0 { "high" } else { "" };
    if !class.is_empty() {
        pod["spec"]["priorityClassName"] = class.into();
    }
    if let Some(node) = node {
        pod["spec"]["nodeName"] = node.into();
    }
    pod
}

fn contested() -> Value {
    json!({
        "priorityClasses": [{ "metadata": { "name": "high" }, "value": 100 }],
        "nodes": [node("a"), node("b")],
        "pods": [large("on-a", 0, Some("a")), large("on-b", 0, Some("b")), large("urgent", 100, None)],
    })
}

#[tokio::test]
async fn the_preempt_verb_sees_all_candidates_and_chooses_among_them() {
    for cached in [false, true] {
        let extender = Extender::default().on("preempt", |args| {
            let whole = &args["NodeNameToVictims"]["b"]["Pods"][0]["metadata"]["uid"];
            let uid = whole
                .as_str()
                .or(args["NodeNameToMetaVictims"]["b"]["Pods"][0]["UID"].as_str());
            Reply::Json(json!({ "NodeNameToMetaVictims": { "b": { "Pods": [{ "UID": uid }] } } }))
        });
        let url = extender.serve(None).await;
        let written =
            json!([{ "urlPrefix": url, "preemptVerb": "preempt", "nodeCacheCapable": cached }]);
        let served = Served::scheduling(Some(&configuration(written))).await;
        assert_eq!(served.import(&contested()).await.code(), 200);

        let placed = served.pod_once("urgent", bound).await;

        assert_eq!(placed["spec"]["nodeName"], "b");
        let key = if cached {
            "NodeNameToMetaVictims"
        } else {
            "NodeNameToVictims"
        };
        let asked = extender.asked("preempt")[0][key].clone();
        assert_eq!(asked.as_object().unwrap().len(), 2, "{asked}");
        let left = served.export().await;
        let names: Vec<&str> = left["pods"]
            .as_array()
            .unwrap()
            .iter()
            .map(|pod| pod["metadata"]["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["on-a", "urgent"]);
    }
}

#[tokio::test]
async fn no_pod_is_evicted_where_the_preempt_verb_does_not_agree() {
    for answer in [
        json!({ "NodeNameToMetaVictims": {} }),
        json!({ "NodeNameToMetaVictims": { "a": { "Pods": [{ "UID": "unknown" }] } } }),
        json!({ "NodeNameToMetaVictims": { "a": { "Pods": [] } } }),
        json!({ "NodeNameToMetaVictims": { "elsewhere": { "Pods": [] } } }),
        json!([]),
    ] {
        let extender = Extender::default().on("preempt", move |_| Reply::Json(answer.clone()));
        let url = extender.serve(None).await;
        let written = json!([{ "urlPrefix": url, "preemptVerb": "preempt" }]);
        let served = Served::scheduling(Some(&configuration(written))).await;
        assert_eq!(served.import(&contested()).await.code(), 200);

        let pending = served
            .pod_once("urgent", |pod| !condition(pod).0.is_empty())
            .await;

        assert!(pending["status"]["nominatedNodeName"].is_null());
        assert!(!extender.asked("preempt").is_empty());
        assert_eq!(served.export().await["pods"].as_array().unwrap().len(), 3);
    }
}

#[tokio::test]
async fn ignorable_extenders_are_asked_last() {
    let refuses = Extender::default().on("filter", |_| Reply::Json(json!({ "Error": "down" })));
    let first = refuses.serve(None).await;
    let narrows = Extender::default().on("filter", |_| Reply::Json(json!({ "NodeNames": ["b"] })));
    let second = narrows.serve(None).await;
    let written = json!([
        { "urlPrefix": first, "filterVerb": "filter", "nodeCacheCapable": true, "ignorable": true },
        { "urlPrefix": second, "filterVerb": "filter", "nodeCacheCapable": true },
    ]);
    let served = Served::scheduling(Some(&configuration(written))).await;
    place(&served, json!([pod("p")])).await;

    let placed = served.pod_once("p", bound).await;

    assert_eq!(placed["spec"]["nodeName"], "b");
    assert_eq!(refuses.asked("filter")[0]["NodeNames"], json!(["b"]));
}

/// A certificate for `localhost` from its own CA: the server's certificate, and the CA.
fn authority() -> (Tls, String) {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, &issuer).unwrap();
    let tls = Tls::from_pem(leaf.pem().as_bytes(), key.serialize_pem().as_bytes()).unwrap();
    (tls, issuer.pem())
}

#[tokio::test]
async fn an_extender_over_tls_is_verified_by_the_ca_that_is_named() {
    let (tls, ca) = authority();
    let (_, other) = authority();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, &ca).unwrap();
    let data = |pem: &str| base64::engine::general_purpose::STANDARD.encode(pem);
    let extender = Extender::default().on("filter", all_nodes);
    let url = extender.serve(Some(tls)).await;
    for (tls, reached) in [
        (json!({ "caFile": file }), true),
        (json!({ "caData": data(&ca) }), true),
        (json!({ "insecure": true }), true),
        (json!({}), true),
        (json!({ "caData": data(&other) }), false),
        (
            json!({ "caData": data(&ca), "serverName": "elsewhere" }),
            false,
        ),
    ] {
        let written = json!([{ "urlPrefix": url, "filterVerb": "filter", "enableHTTPS": true, "tlsConfig": tls }]);
        let served = Served::scheduling(Some(&configuration(written))).await;
        place(&served, json!([pod("p")])).await;

        let seen = served
            .pod_once("p", |pod| bound(pod) || !condition(pod).0.is_empty())
            .await;

        assert_eq!(bound(&seen), reached, "{tls}: {:?}", condition(&seen));
    }
}

#[tokio::test]
async fn a_configuration_with_an_unusable_extender_is_refused() {
    let served = Served::start(None).await;
    for (extender, said) in [
        (json!({ "urlPrefix": "nowhere" }), "extenders[0].urlPrefix"),
        (
            json!({ "urlPrefix": "http://e/", "httpTimeout": "soon" }),
            "extenders[0].httpTimeout",
        ),
        (
            json!({ "urlPrefix": "https://e/", "enableHTTPS": true, "tlsConfig": { "caFile": "/no/such" } }),
            "caFile",
        ),
        (
            json!({ "urlPrefix": "https://e/", "enableHTTPS": true,
                "tlsConfig": { "insecure": true, "caData": "YQ==" } }),
            "no certificate",
        ),
    ] {
        let posted = served
            .post(
                "/api/v1/schedulerconfiguration",
                &json!({ "extenders": [extender] }),
            )
            .await;
        assert_eq!(posted.code(), 500);
        assert!(posted.message().contains(said), "{}", posted.message());
    }
    // What was refused left nothing behind: the configuration is the default one.
    let shown = served.get("/api/v1/schedulerconfiguration").await.json();
    assert_eq!(shown["kind"], "KubeSchedulerConfiguration", "{shown}");
    assert!(shown["profiles"].is_array(), "{shown}");
    assert!(shown["extenders"].is_null(), "{shown}");
}

#[tokio::test]
async fn an_extender_that_hangs_does_not_hold_up_a_reset() {
    let extender = Extender::default().on("filter", |_| Reply::Never);
    let url = extender.serve(None).await;
    let written = json!([{ "urlPrefix": url, "filterVerb": "filter", "httpTimeout": "30s" }]);
    let served = Served::scheduling(Some(&configuration(written))).await;
    place(&served, json!([pod("p")])).await;
    while extender.asked("filter").is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    let reset = served.send("PUT", "/api/v1/reset", &[], None);
    let reset = tokio::time::timeout(Duration::from_secs(5), reset)
        .await
        .unwrap();

    assert_eq!(reset.code(), 202);
    assert_eq!(served.export().await["pods"], json!([]));
}
