//! `vgpu explain` as people call it: on a file, through a kubeconfig, and of a running scheduler.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests are tests"
)]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use axum::Router;
use futures_util::future::BoxFuture;
use kube_api::config::DeviceConfig;
use kube_api::object::Pod;
use kube_api::request::Defaults;
use kube_api::vendor::{Switches, Vendors};
use scheduler::explain::{PodUnread, View, ViewSource, routes};
use serde_json::{Value, json};
use tempfile::TempDir;

const REGISTER: &str = r#"[{"id":"GPU-1","count":10,"devmem":16384,"devcore":100,"type":"NVIDIA A100","mode":"hami-core","health":true}]"#;

fn pod(name: &str, mib: &str) -> Value {
    json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": { "name": name, "namespace": "ml", "uid": name },
        "spec": {
            "schedulerName": "hami-scheduler",
            "containers": [{ "name": "main", "image": "i", "resources": { "limits": { "nvidia.com/gpu": "1", "nvidia.com/gpumem": mib } } }],
        },
    })
}

fn node() -> Value {
    json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": { "name": "n1", "annotations": { "hami.io/node-nvidia-register": REGISTER } },
    })
}

fn state() -> Value {
    let mut running = pod("old", "10000");
    running["metadata"]["annotations"] = json!({
        "hami.io/vgpu-node": "n1",
        "hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,10000,0:;",
    });
    running["spec"]["nodeName"] = json!("n1");
    json!({
        "nodes": [node()],
        "pods": [running, pod("large", "9000"), pod("small", "1000"), pod("broken", "-1")],
        "resourceQuotas": null,
    })
}

fn vgpu(args: &[&str], dir: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vgpu"))
        .arg("explain")
        .args(args)
        .env_clear()
        .env("HOME", dir)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn code_and_text(output: &Output) -> (Option<i32>, String) {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// Serves until the program ends; returns the address.
fn serve(router: Router) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, router).await.unwrap();
        });
    });
    format!("http://{address}")
}

#[test]
fn file_is_judged_like_the_scheduler_and_sets_the_exit_code() {
    let dir = TempDir::with_prefix("vgpu-test-").unwrap();
    let file = dir.path().join("state.json");
    std::fs::write(&file, state().to_string()).unwrap();
    let file = file.to_str().unwrap();
    for (pod, code, text) in [
        ("ml/large", 1, "ml/large does not fit on the only node\n"),
        ("ml/large", 1, "kubectl delete pod -n ml old"),
        ("ml/small", 0, "ml/small fits: n1 would take it\n"),
        ("ml/old", 0, "ml/old is on n1\n"),
        ("ml/broken", 1, "nvidia.com/gpumem: -1"),
        ("ml/nobody", 2, "has no pod nobody in namespace ml"),
        ("large", 2, "has no pod large in namespace default"),
        ("ML/large", 2, "\"ML\" is no name"),
        ("", 2, "\"\" is no name"),
    ] {
        let (ended, said) = code_and_text(&vgpu(&[pod, "--state", file], dir.path()));
        assert_eq!(ended, Some(code), "{pod}: {said}");
        assert!(said.contains(text), "{pod}: {said}");
    }
    let output = vgpu(
        &["-n", "ml", "large", "--json", "--state", file],
        dir.path(),
    );
    let explained: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(explained["verdict"], "does-not-fit");
    assert_eq!(
        explained["advice"][0]["changes"][0]["edits"][0]["to"],
        "6384"
    );
}

#[test]
fn kubectl_list_is_a_valid_state_and_other_files_are_refused() {
    let dir = TempDir::with_prefix("vgpu-test-").unwrap();
    let file = dir.path().join("list.json");
    let list =
        json!({ "kind": "List", "items": [node(), pod("small", "1000"), { "kind": "Secret" }] });
    std::fs::write(&file, list.to_string()).unwrap();
    let file = file.to_str().unwrap();
    let (code, said) = code_and_text(&vgpu(&["ml/small", "--state", file], dir.path()));
    assert_eq!(code, Some(0), "{said}");

    for (text, expected) in [
        ("nodes: []", "expected {\"nodes\""),
        (r#"{"nodes":{}}"#, "invalid type: map"),
        (r#"{"items":[{"kind":"Pod","spec":7}]}"#, "items[0]"),
    ] {
        std::fs::write(file, text).unwrap();
        let (code, said) = code_and_text(&vgpu(&["ml/small", "--state", file], dir.path()));
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(expected), "{said}");
    }
    for (args, expected) in [
        (
            &["p", "--state", "/nowhere/state.json"][..],
            "cannot read /nowhere/state.json",
        ),
        (
            &["p", "--kubeconfig", "/nowhere/config"],
            "--kubeconfig /nowhere/config: ",
        ),
        (&["p"], "no cluster is known"),
        (
            &["p", "--server", "localhost:8080"],
            "is no address such as http://127.0.0.1:8080",
        ),
        (
            &["p", "--server", "http://127.0.0.1:1"],
            "cannot ask http://127.0.0.1:1",
        ),
        (
            &["ml/p", "-n", "other", "--state", file],
            "--namespace says other",
        ),
        (
            &["p", "--state", file, "--server", "http://x"],
            "cannot be used with",
        ),
    ] {
        let (code, said) = code_and_text(&vgpu(args, dir.path()));
        assert_eq!(code, Some(2), "{args:?}: {said}");
        assert!(said.contains(expected), "{args:?}: {said}");
    }
}

#[test]
fn a_cluster_is_read_through_a_kubeconfig() {
    let dir = TempDir::with_prefix("vgpu-test-").unwrap();
    // The state has a pod that asks for less than nothing, which an API server refuses.
    let cluster = embedded_cluster::Cluster::new(embedded_cluster::Options {
        any_amount: true,
        ..embedded_cluster::Options::default()
    });
    let mut state = state();
    state["resourceQuotas"] = json!([{
        "metadata": { "name": "gpu", "namespace": "ml" },
        "spec": { "hard": { "limits.nvidia.com/gpumem": "10500" } },
    }]);
    cluster.import(&state).unwrap();
    let server = serve(cluster.router());
    let config = dir.path().join("config");
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "k", "cluster": { "server": server } }],
        "users": [{ "name": "u", "user": {} }],
        "contexts": [{ "name": "c", "context": { "cluster": "k", "user": "u", "namespace": "ml" } }],
    });
    std::fs::write(&config, text.to_string()).unwrap();
    let config = config.to_str().unwrap();

    let (code, said) = code_and_text(&vgpu(&["small", "--kubeconfig", config], dir.path()));

    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("limits.nvidia.com/gpumem: 11000 (is 10500)"),
        "{said}"
    );
    let (code, said) = code_and_text(&vgpu(&["nobody", "--kubeconfig", config], dir.path()));
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("there is no pod nobody in namespace ml"),
        "{said}"
    );
}

struct Fixed;

impl ViewSource for Fixed {
    fn pod<'a>(
        &'a self,
        _namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Pod>, PodUnread>> {
        let pod = (name == "large").then(|| serde_json::from_value(pod(name, "90000")).unwrap());
        Box::pin(async move { Ok(pod) })
    }

    fn view(&self, _pod: &Pod) -> View {
        let switches = Switches {
            ascend: false,
            iluvatar: false,
        };
        let vendors = Vendors::new(DeviceConfig::standard(), switches).unwrap();
        let nodes = vec![serde_json::from_value(node()).unwrap()];
        View::of(
            nodes,
            &[],
            Vec::new(),
            Arc::new(vendors),
            Defaults::default(),
        )
    }
}

#[test]
fn a_running_scheduler_is_asked() {
    let dir = TempDir::with_prefix("vgpu-test-").unwrap();
    let server = serve(routes(Arc::new(Fixed)));

    let (code, said) = code_and_text(&vgpu(&["ml/large", "--server", &server], dir.path()));

    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("nvidia.com/gpumem: 16384 (is 90000)"),
        "{said}"
    );
    let (code, said) = code_and_text(&vgpu(&["ml/other", "--server", &server], dir.path()));
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("there is no pod other in namespace ml"),
        "{said}"
    );
    // Something else listens there.
    let other = serve(Router::new());
    let (code, said) = code_and_text(&vgpu(&["ml/large", "--server", &other], dir.path()));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("is it a scheduler?"), "{said}");
}

/// A scheduler that answers the token `good`, refuses `poor`, and knows no other. It notes what it was sent.
fn asks_for_a_token() -> (String, Arc<std::sync::Mutex<Vec<Option<String>>>>) {
    let sent = Arc::new(std::sync::Mutex::new(Vec::new()));
    let noted = Arc::clone(&sent);
    let check = move |request: axum::extract::Request, next: axum::middleware::Next| {
        let given = request.headers().get("authorization");
        let given = given.map(|given| given.to_str().unwrap().to_owned());
        noted.lock().unwrap().push(given.clone());
        async move {
            let refused = |status: u16, error: &str| {
                let body = axum::Json(json!({ "Error": error }));
                let status = http::StatusCode::from_u16(status).unwrap();
                axum::response::IntoResponse::into_response((status, body))
            };
            match given.as_deref() {
                Some("Bearer good") => next.run(request).await,
                Some("Bearer poor") => refused(403, "poor may not read /explain"),
                _ => refused(401, "/explain asks for a token of the cluster"),
            }
        }
    };
    let routes = routes(Arc::new(Fixed)).layer(axum::middleware::from_fn(check));
    (serve(routes), sent)
}

#[test]
fn a_scheduler_that_asks_for_a_token_gets_the_users() {
    let dir = TempDir::with_prefix("vgpu-test-").unwrap();
    let (server, sent) = asks_for_a_token();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let kubeconfig = |name: &str, user: Value| {
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "k", "cluster": { "server": "https://127.0.0.1:1" } }],
            "users": [{ "name": "u", "user": user }],
            "contexts": [{ "name": "c", "context": { "cluster": "k", "user": "u" } }],
        });
        file(name, &text.to_string())
    };
    let good = kubeconfig("good", json!({ "token": "good" }));
    let poor = kubeconfig("poor", json!({ "token": "poor" }));
    let none = kubeconfig("none", json!({ "username": "u", "password": "p" }));
    let with_file = file("token", "good\n");
    let empty = file("empty", "\n");
    for (more, code, expected) in [
        (["--kubeconfig", &good], 1, "nvidia.com/gpumem: 16384"),
        (["--token-file", &with_file], 1, "nvidia.com/gpumem: 16384"),
        (["--kubeconfig", &poor], 2, "poor may not read /explain"),
        (["--kubeconfig", &none], 2, "give --token-file FILE"),
        (["--token-file", &empty], 2, "is empty"),
        (
            ["--token-file", "/nowhere/token"],
            2,
            "--token-file /nowhere/token",
        ),
    ] {
        let args = [&["ml/large", "--server", &server][..], &more[..]].concat();
        let (status, said) = code_and_text(&vgpu(&args, dir.path()));
        assert_eq!(status, Some(code), "{more:?}: {said}");
        assert!(said.contains(expected), "{more:?}: {said}");
    }
    let (status, said) = code_and_text(&vgpu(&["ml/large", "--server", &server], dir.path()));
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains("asks for a token"), "{said}");
    // No token is sent before it is asked for, and no password at all.
    let sent = sent.lock().unwrap();
    assert_eq!(
        sent.iter().filter(|given| given.is_none()).count(),
        7,
        "{sent:?}"
    );
    assert!(
        sent.iter()
            .flatten()
            .all(|given| given.starts_with("Bearer ")),
        "{sent:?}"
    );

    // Nor is one sent to a scheduler that does not ask.
    let open = serve(routes(Arc::new(Fixed)).layer(axum::middleware::from_fn(
        async |request: axum::extract::Request, next: axum::middleware::Next| {
            assert!(!request.headers().contains_key("authorization"));
            next.run(request).await
        },
    )));
    let (status, said) = code_and_text(&vgpu(
        &["ml/large", "--server", &open, "--kubeconfig", &good],
        dir.path(),
    ));
    assert_eq!(status, Some(1), "{said}");
}
