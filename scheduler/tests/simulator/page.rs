//! The web page over a simulator that schedules.

use serde_json::{Value, json};

use super::wire::Served;

const BROWSER: [(&str, &str); 1] = [("Accept", "text/html,application/xhtml+xml,*/*;q=0.8")];

async fn page(served: &Served, path: &str) -> (u16, String) {
    let answer = served.send("GET", path, &BROWSER, None).await;
    (
        answer.code(),
        String::from_utf8_lossy(&answer.body).into_owned(),
    )
}

/// Sends the text of an editor; returns the status, and the redirect's address or the page's message.
async fn write(served: &Served, path: &str, text: &str) -> (u16, String) {
    let text: String = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let headers = [("Content-Type", "application/x-www-form-urlencoded")];
    let body = format!("text={text}");
    let answer = served
        .send("POST", path, &headers, Some(body.as_bytes()))
        .await;
    match answer.all("location").first() {
        Some(to) => (answer.code(), (*to).to_owned()),
        None => (
            answer.code(),
            String::from_utf8_lossy(&answer.body).into_owned(),
        ),
    }
}

fn gpu_node() -> Value {
    let register = json!([{ "id": "GPU-0", "index": 0, "count": 10, "devmem": 40_960, "devcore": 100, "type": "A100", "health": true, "mode": "hami-core" }]);
    let amounts = json!({ "cpu": "8", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "10" });
    json!({
        "metadata": { "name": "gpu-1", "annotations": { "hami.io/node-nvidia-register": register.to_string() } },
        "status": { "allocatable": amounts, "capacity": amounts },
    })
}

fn gpu_pod(name: &str, mib: u32) -> String {
    let limits = json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": mib.to_string() });
    json!({
        "metadata": { "name": name },
        "spec": { "containers": [{ "name": "c", "image": "i", "resources": { "limits": limits } }] },
    })
    .to_string()
}

#[tokio::test]
async fn the_page_is_for_browsers_and_other_clients_get_404() {
    let served = Served::start(None).await;

    let browser = page(&served, "/").await;
    let other = served.send("GET", "/", &[("Accept", "*/*")], None).await;

    assert_eq!(browser.0, 200);
    assert!(browser.1.contains("Nothing is here yet"));
    assert_eq!((other.code(), other.message()), (404, "Not Found".into()));
}

#[tokio::test]
async fn the_sample_opens_placed_and_explained() {
    let served = Served::start(None).await;
    let sample = include_str!("../../../tests/vectors/simulator/export-sample.json");
    let import: Value = serde_json::from_str(sample).unwrap();
    assert_eq!(served.import(&import).await.code(), 200);

    let (_, page) = page(&served, "/").await;

    assert!(page.contains("3 nodes") && page.contains("2 pods placed"));
    assert!(page.contains("node-2 was chosen: 2 of 3 nodes passed every filter"));
}

#[tokio::test]
async fn gpus_are_shared_once_the_page_has_enabled_it() {
    let served = Served::scheduling(None).await;
    write(&served, "/page/new/nodes", &gpu_node().to_string()).await;
    assert!(
        page(&served, "/")
            .await
            .1
            .contains("Enable GpuFit and GpuScore")
    );
    let (_, editor) = page(&served, "/page/configuration?template=gpu").await;
    let text = editor.split_once("spellcheck").unwrap().1;
    let text = text.split_once(">\n").unwrap().1;
    let text = text.split_once("</textarea>").unwrap().0;
    let text = text.replace("&#34;", "\"").replace("&#39;", "'");

    let (code, to) = write(&served, "/page/configuration", &text).await;
    assert_eq!(
        (code, &*to),
        (303, "/page/configuration?done=configured"),
        "{text}"
    );
    write(&served, "/page/new/pods", &gpu_pod("fits", 10_000)).await;
    write(&served, "/page/new/pods", &gpu_pod("too-large", 50_000)).await;

    served
        .pod_once("fits", |pod| pod["spec"]["nodeName"] == "gpu-1")
        .await;
    served
        .pod_once("too-large", |pod| {
            pod["status"]["conditions"][0]["reason"] == "Unschedulable"
        })
        .await;
    let mut overview = String::new();
    for _ in 0..100 {
        overview = page(&served, "/").await.1;
        if overview.contains("A fits: 9.8 GiB") && overview.contains("1 pending") {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(overview.contains("A fits: 9.8 GiB") && !overview.contains("Enable GpuFit"));
    let (_, why) = page(&served, "/page/part/why/default/too-large").await;
    assert!(
        why.contains("It would fit after") && why.contains("nvidia.com/gpumem: 30960"),
        "{why}"
    );
}

#[tokio::test]
async fn an_edit_takes_the_status_too_and_an_old_one_changes_nothing() {
    let served = Served::start(None).await;
    write(&served, "/page/new/nodes", &gpu_node().to_string()).await;
    let mut object = gpu_node();
    object["metadata"]["labels"] = json!({ "team": "a" });
    object["status"]["allocatable"]["cpu"] = json!("16");
    object["metadata"]["resourceVersion"] = json!("1");

    let (code, said) = write(&served, "/page/edit/nodes/-/gpu-1", &object.to_string()).await;

    assert_eq!(code, 409, "{said}");
    assert!(said.contains("Another client changed it since"));
    let node = served.get("/api/v1/nodes/gpu-1").await.json();
    assert_eq!(node["metadata"]["name"], "gpu-1", "{node}");
    assert!(node["metadata"]["labels"]["team"].is_null(), "{node}");
    object["metadata"]["resourceVersion"] = Value::Null;
    let (code, said) = write(&served, "/page/edit/nodes/-/gpu-1", &object.to_string()).await;
    assert_eq!(code, 303, "{said}");
    let node = served.get("/api/v1/nodes/gpu-1").await.json();
    assert_eq!(node["status"]["allocatable"]["cpu"], "16");
    assert_eq!(node["metadata"]["labels"]["team"], "a");
}

#[tokio::test]
async fn a_comparison_shows_every_run_and_changes_nothing() {
    let served = Served::scheduling(None).await;
    let mut node = gpu_node();
    node["status"]["allocatable"]["cpu"] = json!("1");
    write(&served, "/page/new/nodes", &node.to_string()).await;
    for name in ["one", "two"] {
        let spec = json!({ "containers": [{ "name": "c", "image": "i", "resources": { "requests": { "cpu": "1" } } }] });
        let pod = json!({ "metadata": { "name": name }, "spec": spec });
        write(&served, "/page/new/pods", &pod.to_string()).await;
    }
    served.simulator.at_rest().await;
    let before = served.export().await;
    let ask = async |form: &str| {
        let headers = [("Content-Type", "application/x-www-form-urlencoded")];
        let answer = served
            .send("POST", "/page/compare", &headers, Some(form.as_bytes()))
            .await;
        let body = String::from_utf8_lossy(&answer.body).into_owned();
        (answer.code(), body)
    };

    let (_, overview) = page(&served, "/").await;
    let (code, more) = ask("add_nodes=1&drain=gpu-1&configuration=profiles%3A+%5B%5D").await;
    let (no_node, said) = ask("drain=n9&configuration=profiles%3A+%5B%5D").await;
    let (cannot_run, why) = ask("configuration=profiles%3A+3").await;
    let (too_many, most) = ask("add_nodes=4000000000").await;

    assert!(
        overview.contains("/page/compare"),
        "the navigation offers it"
    );
    assert_eq!(code, 200, "{more}");
    for wanted in [
        "as it is",
        "with this configuration",
        "with 1 more node",
        "without gpu-1",
        "Insufficient cpu",
    ] {
        assert!(more.contains(wanted), "{wanted}: {more}");
    }
    assert!(
        more.contains("<td>2 <span"),
        "both pods fit on two nodes: {more}"
    );
    assert_eq!(no_node, 422, "{said}");
    assert!(
        said.contains("no node &#34;n9&#34; that could be drained; its nodes are gpu-1"),
        "{said}"
    );
    assert!(
        said.contains("value=\"n9\"") && said.contains("profiles: []"),
        "what was typed stays"
    );
    assert_eq!(cannot_run, 422);
    assert!(
        why.contains("with this configuration: the scheduler configuration cannot"),
        "{why}"
    );
    assert_eq!(too_many, 422);
    assert!(most.contains("a number from 1 to 10000"), "{most}");
    assert_eq!(served.export().await, before);
}
