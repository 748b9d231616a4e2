//! The device assigner behind a real API server, with a stock kube-scheduler and the extender: a GPU asked for by
//! label, the documented calls, and that no other path gives the GPU away while it is held. On the same cluster a pod
//! asks by `ai.compute/vram`.

use std::process::Command;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use crate::hcs::{device_config, sixteen_gib};
use crate::http;
use crate::objects::{Gpus, annotation, devices, from, gpu_with, node, pod};
use crate::programs::{ASIDE, Pair, Program, Tuning};
use crate::webhook::{one_with, publish};
use crate::world::{CLAIMS, World, within};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// Where the GPU page is served.
const GPU_PAGE: u16 = 8083;
/// The assigner's port for people, by default.
const UI: u16 = 8080;
/// The GPU that has the label of the team.
const GPU: &str = "GPU-a-1";

/// Its account's rights, and the namespaces.
fn make_roles(world: &World) {
    let roles = format!("{ROOT}/tests/cluster/assigner.yaml");
    let (well, text) = world.kubectl("admin", &["apply", "--filename", &roles]);
    assert!(well, "{text}");
}

/// `vgpu-scheduler assigner` with the documented flags and ports, ready.
async fn start_assigner(world: &World, renew: &str) -> Program {
    let kubeconfig = std::fs::read_to_string(world.run.join("vgpu-assigner.kubeconfig")).unwrap();
    let (_, token) = kubeconfig.split_once("token: ").unwrap();
    let token_file = world.run.join("assigner.token");
    std::fs::write(&token_file, token.split('}').next().unwrap()).unwrap();
    let file = |name: &str| world.run.join(name).display().to_string();
    let arguments = [
        "assigner".to_owned(),
        format!("--access-token={}", token_file.display()),
        format!("--ca-certificate={}", file("ca.crt")),
        "--kubernetes-url=https://127.0.0.1:6443".to_owned(),
        format!("--cert_file={}", file("assigner.crt")),
        format!("--key_file={}", file("assigner.key")),
        format!("--renew-interval={renew}"),
        "--log-level=info".to_owned(),
    ];
    let mut assigner = Program::start(
        world,
        "assigner",
        world.ours.join("vgpu-scheduler"),
        arguments,
    );
    world
        .eventually("the assigner is ready", async || {
            assigner.assert_runs();
            (http::status(UI, "/readyz").await == Some(200)).then_some(())
        })
        .await;
    assigner
}

/// Registers it, as examples/assigner/webhook.yaml does.
async fn register(world: &World) {
    publish(world, "gpu-system", "gpu-device-assigner", 443, &[1]).await;
    let authority = Command::new("base64")
        .arg("--wrap=0")
        .arg(world.run.join("ca.crt"))
        .output()
        .unwrap();
    let authority = String::from_utf8(authority.stdout).unwrap();
    let example = std::fs::read_to_string(format!("{ROOT}/examples/assigner/webhook.yaml"));
    let example = example
        .unwrap()
        .replace(r#"caBundle: """#, &format!("caBundle: {authority}"));
    assert!(example.contains(&authority));
    let file = world.log("webhook").with_extension("yaml");
    std::fs::write(&file, example).unwrap();
    let (well, text) = world.kubectl("admin", &["apply", "--filename", file.to_str().unwrap()]);
    assert!(well, "{text}");
    world
        .eventually("the API server asks the assigner", async || {
            let strange = labelled("probe", &["nowhere"]);
            let error = create(world, &strange).unwrap_err();
            let said = "no device has the label fudo.org/gpu.nowhere";
            error.contains(said).then_some(())
        })
        .await;
}

/// A pod that asks by labels and by nothing else.
fn labelled(name: &str, labels: &[&str]) -> Value {
    let mut pod = pod(name, json!({}));
    pod["spec"].as_object_mut().unwrap().remove("schedulerName");
    pod["metadata"]["labels"] = labels
        .iter()
        .map(|label| (format!("fudo.org/gpu.{label}"), json!("true")))
        .collect::<serde_json::Map<_, _>>()
        .into();
    pod
}

/// Creates the pod as a user that may run pods and nothing else, with kubectl: other clients ask again by themselves
/// after a 429.
fn create(world: &World, pod: &Value) -> Result<(), String> {
    let mut whole = pod.clone();
    whole["apiVersion"] = json!("v1");
    whole["kind"] = json!("Pod");
    let file = world.log("pod").with_extension("json");
    std::fs::write(&file, whole.to_string()).unwrap();
    let arguments = ["create", "--filename", file.to_str().unwrap()];
    let (well, text) = world.kubectl("tenant", &arguments);
    if well { Ok(()) } else { Err(text) }
}

/// The documented call; its status and its body.
fn curl(url: &str, body: &Value) -> (String, String) {
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--insecure"])
        .args(["-X", "POST", "-H", "Content-Type: application/json"])
        .args(["--write-out", "\n%{http_code}", "-d", &body.to_string()])
        .arg(url)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, status) = text.rsplit_once('\n').unwrap();
    (status.to_owned(), body.to_owned())
}

fn finalize_body(pod: &Pod) -> Value {
    json!({
        "namespace": "default",
        "name": pod.metadata.name,
        "uid": pod.metadata.uid,
        "reservation-id": annotation(pod, "fudo.org/gpu.reservation-id").unwrap(),
        "gpu-uuid": annotation(pod, "fudo.org/gpu.uuid").unwrap(),
    })
}

/// State and holder of each reservation.
async fn leases(world: &World) -> Vec<(String, String)> {
    let api: Api<Lease> = Api::namespaced(world.client.clone(), CLAIMS);
    let leases = api.list(&Default::default()).await.unwrap().items;
    leases
        .into_iter()
        .map(|lease| {
            let labels = lease.metadata.labels.unwrap();
            let state = labels["fudo.org/gpu.reservation-state"].clone();
            (state, lease.spec.unwrap().holder_identity.unwrap())
        })
        .collect()
}

/// A node with two A100, one with the label of a team, and a node with two Hygon DCUs.
async fn make_nodes(world: &World) {
    let a100 = Gpus {
        count: 2,
        memory_mib: 81920,
        model: "NVIDIA A100-SXM4-80GB",
        ..Gpus::default()
    };
    let mut first = json!(a100.node("a"));
    // {"GPU-a-1":["fudo.org/gpu.team-a"]}
    first["metadata"]["annotations"]["fudo.org/gpu.device.labels"] =
        json!("eyJHUFUtYS0xIjpbImZ1ZG8ub3JnL2dwdS50ZWFtLWEiXX0=");
    let dcus: Vec<Value> = (0..2)
        .map(|at| json!({"id": format!("DCU-{at}"), "index": at, "count": 4, "devmem": 65536, "devcore": 100,
            "type": "K100-64GB", "numa": 0, "health": true}))
        .collect();
    let mut second = json!(Gpus::default().node("b"));
    second["metadata"]["annotations"] =
        json!({"hami.io/node-dcu-register": json!(dcus).to_string()});
    for resources in ["capacity", "allocatable"] {
        let amounts = second["status"][resources].as_object_mut().unwrap();
        amounts.remove("nvidia.com/gpu");
        amounts.insert("hygon.com/dcunum".to_owned(), json!("2"));
    }
    for node in [first, second] {
        let made = world
            .nodes()
            .create(&PostParams::default(), &from(node))
            .await;
        made.unwrap();
    }
}

/// The names of pods that hold something, as the GPU page lists them.
async fn shown(port: u16, path: &str, words: &[&str]) -> Option<()> {
    let (status, page) = http::ask(port, "GET", path, None).await?;
    (status == 200 && words.iter().all(|word| page.contains(word))).then_some(())
}

#[test]
fn pods_ask_by_label_and_by_vram_on_one_cluster() {
    within(async |world| {
        make_nodes(world).await;
        make_roles(world);
        let config = device_config(world);
        let _webhook = one_with(world, &[&config]).await;
        let claims = format!("--claims-namespace={CLAIMS}");
        let page = format!("--gpu-page=127.0.0.1:{GPU_PAGE}");
        let tuning = Tuning {
            hcs: true,
            ..Tuning::default()
        };
        let mut pair = Pair::start_at(world, ASIDE, &[&config, &claims, &page], tuning);
        pair.answers(world).await;
        // Only the documented call makes a reservation active, because the assigner does not look by itself soon.
        let mut assigner = start_assigner(world, "100s").await;
        register(world).await;

        // By memory, and each on a device of the vendor that it names.
        create(world, &sixteen_gib("hygon", "hygon")).unwrap();
        let placed = world.until_placed("hygon").await;
        assert_eq!(node(&placed), Some("b"));
        assert_eq!(annotation(&placed, "hcs.io/assigned-vendor"), Some("hygon"));
        // By label.
        create(world, &labelled("team", &["a100", "team-a"])).unwrap();
        let team = world.until_placed("team").await;
        assert_eq!(node(&team), Some("a"));
        assert_eq!(annotation(&team, "fudo.org/gpu.uuid"), Some(GPU));
        assert_eq!(annotation(&team, "fudo.org/gpu.node"), Some("a"));
        assert_eq!(devices(&team), [(GPU.to_owned(), 81920)]);
        let reservation = annotation(&team, "fudo.org/gpu.reservation-id").unwrap();
        let proposed = [("proposal".to_owned(), reservation.to_owned())];
        assert_eq!(leases(world).await, proposed);
        create(world, &sixteen_gib("nvidia", "nvidia")).unwrap();
        let placed = world.until_placed("nvidia").await;
        assert_eq!(devices(&placed), [("GPU-a-0".to_owned(), 16384)]);

        // A body that does not finalize that pod changes nothing.
        let body = finalize_body(&team);
        let with = |field: &str, value: &str| {
            let mut body = body.clone();
            body[field] = json!(value);
            body
        };
        let urls = [
            "http://localhost:8080/finalize",
            "https://localhost:443/finalize",
        ];
        for url in urls {
            let few = json!({"namespace": "default"});
            let missing =
                r#"{"error":"missing required fields: name, uid, reservation-id, gpu-uuid"}"#;
            assert_eq!(curl(url, &few), ("400".to_owned(), missing.to_owned()));
            for (body, status) in [
                (with("gpu-uuid", "GPU-a-0"), "404"),
                (with("name", "unknown"), "404"),
                (with("reservation-id", "forged"), "409"),
                (with("uid", "forged"), "409"),
                (with("namespace", "kube-system"), "409"),
            ] {
                let (code, text) = curl(url, &body);
                assert_eq!(code, status, "{body}: {text}");
            }
        }
        assert_eq!(leases(world).await, proposed);
        // The documented call, which may be repeated.
        for url in urls {
            let ok = ("200".to_owned(), r#"{"status":"ok"}"#.to_owned());
            assert_eq!(curl(url, &body), ok);
        }
        let uid = team.metadata.uid.clone().unwrap();
        assert_eq!(leases(world).await, [("active".to_owned(), uid)]);

        // Neither the extender nor the assigner gives the GPU to another pod.
        let error = create(world, &labelled("other", &["team-a"])).unwrap_err();
        assert!(
            error.contains("no GPUs with requested labels free for pod default/other"),
            "{error}"
        );
        let mut thief = pod("thief", gpu_with(1));
        thief["metadata"]["annotations"] = json!({"nvidia.com/use-gpuuuid": GPU});
        create(world, &thief).unwrap();
        world.until_refused("thief").await;
        let mut forged = pod("forged", gpu_with(1));
        forged["metadata"]["annotations"] = json!({"fudo.org/gpu.reservation-id": reservation});
        let error = create(world, &forged).unwrap_err();
        assert!(
            error.contains("only the device assigner writes it"),
            "{error}"
        );

        // All pods show on the pages.
        world
            .eventually("the GPU page shows the pods", async || {
                shown(GPU_PAGE, "/page/part/pods", &["hygon", "team", "nvidia"]).await
            })
            .await;
        shown(UI, "/", &[GPU, "default/team", "team-a"])
            .await
            .expect("the assigner's page shows it");
        let (_, listed) = http::ask(UI, "GET", "/devices", None).await.unwrap();
        let listed: Value = serde_json::from_str(&listed).unwrap();
        assert_eq!(listed[GPU]["assignment"]["name"], "team");
        assert_eq!(listed[GPU]["assignment"]["state"], "active");
        assert_eq!(listed["GPU-a-0"].get("assignment"), None);

        // Another assigner finds the reservation, and lets go of the GPU when the pod ends.
        let before = leases(world).await;
        assigner.terminate();
        let _assigner = start_assigner(world, "200ms").await;
        assert_eq!(leases(world).await, before);
        world.remove_pod("team").await;
        world
            .eventually("the reservation is let go of", async || {
                leases(world).await.is_empty().then_some(())
            })
            .await;
        let thief = world.until_placed("thief").await;
        assert_eq!(devices(&thief), [(GPU.to_owned(), 1)]);
    });
}
