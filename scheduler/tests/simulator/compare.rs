//! What-if comparisons, run by the program as a user would: its output, its refusals, and that the same question gets
//! the same bytes.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use proptest::prelude::*;
use scheduler::simulator::compare::{Added, Base, Comparison, Question, Variant};
use scheduler::simulator::recording;
use scheduler::simulator::{Import, Refusal};
use serde_json::{Value, json};

use super::wire::{node, pod};

/// A folder with files to compare.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `simulator compare base.json FLAGS`, within the folder.
    fn compare(&self, base: &Value, flags: &[&str]) -> Output {
        self.write("base.json", &base.to_string());
        self.run(&[&["base.json"], flags].concat())
    }

    fn run(&self, flags: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_vgpu-scheduler"))
            .args(["simulator", "compare"])
            .args(flags)
            .current_dir(self.0.path())
            .env_remove("KUBECONFIG")
            .env("HOME", self.0.path())
            .output()
            .unwrap()
    }
}

fn json_of(output: &Output) -> Value {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn refusal(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    assert!(output.stdout.is_empty(), "nothing is printed: {output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn gpu_node(name: &str, count: usize) -> Value {
    let devices: Vec<Value> = (0..count)
        .map(|index| {
            json!({ "id": format!("{name}-{index}"), "index": index, "count": 10, "devmem": 40_960, "devcore": 100,
                    "type": "A100", "health": true, "mode": "hami-core" })
        })
        .collect();
    let amounts = json!({ "cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "20" });
    json!({
        "metadata": { "name": name, "annotations": { "hami.io/node-nvidia-register": json!(devices).to_string() } },
        "status": { "allocatable": amounts, "capacity": amounts },
    })
}

fn gpu_pod(name: &str, namespace: &str, mib: u32) -> Value {
    let limits = json!({ "cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1", "nvidia.com/gpumem": mib.to_string() });
    json!({
        "metadata": { "name": name, "namespace": namespace },
        "spec": { "containers": [{ "name": "c", "image": "i", "resources": { "limits": limits } }] },
    })
}

/// Devices are shared; a node is chosen by this strategy of `NodeResourcesFit`.
fn policy(strategy: &str) -> Value {
    json!({
        "profiles": [{
            "plugins": { "multiPoint": { "enabled": [{ "name": "GpuFit" }] } },
            "pluginConfig": [{ "name": "NodeResourcesFit", "args": { "scoringStrategy": {
                "type": strategy, "resources": [{ "name": "cpu", "weight": 1 }] } } }],
        }],
    })
}

/// Three nodes with one GPU each; small pods of one team come before large ones of another, which need a whole GPU.
fn shared() -> Value {
    let mut pods: Vec<Value> = (0..3)
        .map(|at| gpu_pod(&format!("a{at}"), "one", 10_000))
        .collect();
    pods.extend((0..2).map(|at| gpu_pod(&format!("b{at}"), "two", 40_960)));
    json!({
        "namespaces": [{ "metadata": { "name": "one" } }, { "metadata": { "name": "two" } }],
        "nodes": [gpu_node("n1", 1), gpu_node("n2", 1), gpu_node("n3", 1)],
        "pods": pods,
        "schedulerConfig": policy("LeastAllocated"),
    })
}

fn run_named<'a>(comparison: &'a Value, name: &str) -> &'a Value {
    let runs = comparison["runs"].as_array().unwrap();
    runs.iter().find(|run| run["name"] == name).unwrap()
}

#[test]
fn another_policy_changes_what_fits() {
    let files = Files::new();
    files.write("pack.yaml", &policy("MostAllocated").to_string());

    let output = files.compare(&shared(), &["--with", "pack.yaml", "--output", "json"]);

    let comparison = json_of(&output);
    let (spread, pack) = (
        run_named(&comparison, "base"),
        run_named(&comparison, "pack"),
    );
    assert_eq!(
        (&spread["placed"], &spread["pending"]),
        (&json!(3), &json!(2))
    );
    assert_eq!(
        spread["reasons"],
        json!({ "CardInsufficientMemory (too little memory is free)": 2 })
    );
    assert_eq!((&pack["placed"], &pack["pending"]), (&json!(5), &json!(0)));
    // Team two got nothing, then all.
    assert_eq!(
        (&spread["fairness"], &pack["fairness"]),
        (&json!(0.5), &json!(1.0))
    );
    // No GPU takes a whole-GPU request; and with all placed, the rest of one GPU is left.
    assert_eq!(comparison["typicalRequest"]["memoryMib"], 40_960);
    assert_eq!(spread["fragmentation"], 100.0);
    assert_eq!(pack["fragmentation"], 100.0);
    assert_eq!(spread["utilisation"]["gpuMemory"], 24.41);
    assert_eq!(pack["utilisation"]["gpuMemory"], 91.08);
    assert_eq!(pack["waiting"]["maxSeconds"], 0.05, "five tries of 10 ms");
}

#[test]
fn more_nodes_take_what_waits() {
    let files = Files::new();

    let flags = [
        "--add-nodes",
        "1",
        "--add-nodes",
        "2:n2",
        "--output",
        "json",
    ];
    let comparison = json_of(&files.compare(&shared(), &flags));

    let (one, two) = (
        run_named(&comparison, "+1 node"),
        run_named(&comparison, "+2 nodes like n2"),
    );
    assert_eq!((&one["placed"], &one["pending"]), (&json!(4), &json!(1)));
    assert_eq!((&two["placed"], &two["pending"]), (&json!(5), &json!(0)));
    assert_eq!(two["fragmentation"], 100.0);
}

#[test]
fn a_drained_node_loses_its_pods_and_does_not_count() {
    let files = Files::new();
    let mut base = json!({ "nodes": [node("n1"), node("n2")], "pods": [] });
    for name in ["p1", "p2", "stays"] {
        let mut placed = pod(name);
        placed["spec"]["nodeName"] = if name == "stays" { "n2" } else { "n1" }.into();
        placed["spec"]["containers"][0]["resources"] = json!({ "requests": { "cpu": "1" } });
        base["pods"].as_array_mut().unwrap().push(placed);
    }
    // n2 has room for one more.
    base["nodes"][1]["status"]["allocatable"]["cpu"] = "2".into();

    let comparison = json_of(&files.compare(&base, &["--drain", "n1", "--output", "json"]));

    let drained = run_named(&comparison, "drain n1");
    assert_eq!(drained["evicted"], json!({ "drained": 2, "preempted": 0 }));
    assert_eq!(
        (&drained["placed"], &drained["pending"]),
        (&json!(2), &json!(1))
    );
    assert_eq!(drained["utilisation"]["cpu"], 100.0);
    assert_eq!(run_named(&comparison, "base")["placed"], 3);
}

#[test]
fn all_changes_at_once_are_one_run() {
    let files = Files::new();
    files.write("pack.yaml", &policy("MostAllocated").to_string());
    let flags = [
        "--with",
        "pack.yaml",
        "--drain",
        "n1",
        "--add-nodes",
        "1:n3",
        "--together",
    ];

    let comparison =
        json_of(&files.compare(&shared(), &[&flags[..], &["--output", "json"]].concat()));

    let names: Vec<_> = comparison["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| &run["name"])
        .collect();
    assert_eq!(
        names,
        ["base", "pack", "+1 node like n3", "drain n1", "together"]
    );
    assert_eq!(run_named(&comparison, "drain n1")["placed"], 3);
    assert_eq!(run_named(&comparison, "together")["placed"], 5);
}

#[test]
fn placed_pods_move_only_when_all_are_placed_anew() {
    let files = Files::new();
    files.write("pack.yaml", &policy("MostAllocated").to_string());
    let mut base = shared();
    for (at, node) in ["n1", "n2", "n3"].iter().enumerate() {
        let pod = &mut base["pods"][at];
        pod["spec"]["nodeName"] = (*node).into();
        pod["metadata"]["annotations"] = json!({
            "hami.io/vgpu-node": node, "hami.io/vgpu-devices-allocated": format!("{node}-0,NVIDIA,10000,0:;"),
        });
    }

    let flags = ["--with", "pack.yaml", "--output", "json"];
    let kept = json_of(&files.compare(&base, &flags));
    let anew = json_of(&files.compare(&base, &[&flags[..], &["--anew"]].concat()));

    assert_eq!(run_named(&kept, "pack")["placed"], 3);
    assert_eq!(run_named(&kept, "base")["utilisation"]["gpuMemory"], 24.41);
    assert_eq!(run_named(&anew, "pack")["placed"], 5);
    assert_eq!(run_named(&anew, "base")["placed"], 3);
}

#[test]
fn preempted_pods_wait_again() {
    let files = Files::new();
    let mut small = node("n1");
    small["status"]["allocatable"]["cpu"] = "2".into();
    let mut low = pod("low");
    low["spec"]["nodeName"] = "n1".into();
    let mut high = pod("high");
    high["spec"]["priority"] = 1000.into();
    high["spec"]["priorityClassName"] = "high".into();
    for pod in [&mut low, &mut high] {
        pod["spec"]["containers"][0]["resources"] = json!({ "requests": { "cpu": "2" } });
    }
    let base = json!({
        "nodes": [small], "pods": [low, high],
        "priorityClasses": [{ "metadata": { "name": "high" }, "value": 1000 }],
    });

    let comparison = json_of(&files.compare(&base, &["--add-nodes", "1", "--output", "json"]));

    let of_base = run_named(&comparison, "base");
    assert_eq!(of_base["evicted"]["preempted"], 1);
    assert_eq!(
        (&of_base["placed"], &of_base["pending"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(of_base["reasons"], json!({ "Insufficient cpu": 1 }));
    let more = run_named(&comparison, "+1 node");
    assert_eq!(
        (&more["placed"], &more["evicted"]["preempted"]),
        (&json!(2), &json!(0))
    );
}

fn line(second: u32, event: &str, kind: &str, mut object: Value) -> String {
    object["apiVersion"] = "v1".into();
    object["kind"] = kind.into();
    let time = format!("2026-01-01T00:{:02}:{:02}Z", second / 60, second % 60);
    json!({ "time": time, "event": event, "resource": object }).to_string() + "\n"
}

/// One node for one pod: `first` runs from 0 to 100 s there, `second` comes at 10 s and got the node at 100 s there.
fn queueing() -> String {
    let mut small = node("n1");
    small["status"]["allocatable"]["cpu"] = "2".into();
    let asks = |name: &str| {
        let mut pod = pod(name);
        pod["spec"]["containers"][0]["resources"] = json!({ "requests": { "cpu": "2" } });
        pod
    };
    let with = |mut pod: Value, phase: &str| {
        pod["spec"]["nodeName"] = "n1".into();
        pod["status"] = json!({ "phase": phase });
        pod
    };
    line(0, "Add", "Node", small)
        + &line(0, "Add", "Pod", asks("first"))
        + &line(0, "Update", "Pod", with(asks("first"), "Running"))
        + &line(10, "Add", "Pod", asks("second"))
        + &line(100, "Update", "Pod", with(asks("first"), "Succeeded"))
        + &line(100, "Update", "Pod", with(asks("second"), "Running"))
        + &line(200, "Update", "Pod", with(asks("second"), "Succeeded"))
        + &line(200, "Delete", "Pod", asks("second"))
        + &line(300, "Add", "Pod", asks("third"))
}

#[test]
fn waiting_follows_the_times_of_a_recording() {
    let files = Files::new();
    files.write("today.jsonl", &queueing());

    let output = files.run(&["today.jsonl", "--add-nodes", "1", "--output", "json"]);

    let comparison = json_of(&output);
    let (one, two) = (
        run_named(&comparison, "base"),
        run_named(&comparison, "+1 node"),
    );
    assert_eq!((&one["placed"], &two["placed"]), (&json!(3), &json!(3)));
    // With one node the second pod waits from 10 s until the first ends, 100 s after it got its node.
    let longest = one["waiting"]["maxSeconds"].as_f64().unwrap();
    assert!((90.0..92.0).contains(&longest), "{longest}");
    assert_eq!(two["waiting"]["maxSeconds"], 0.01);
    // Busy for 200 of 300 s; of two nodes each for 100 s.
    let cpu = |run: &Value| run["utilisation"]["cpu"].as_f64().unwrap();
    assert!((65.0..69.0).contains(&cpu(one)), "{one}");
    assert!((31.0..35.0).contains(&cpu(two)), "{two}");
}

#[test]
fn a_recording_of_the_reference_is_compared() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/vectors/simulator/recorder-sample.jsonl"
    );
    let files = Files::new();

    let comparison = json_of(&files.run(&[path, "--drain", "node-2", "--output", "json"]));

    let (base, drained) = (
        run_named(&comparison, "base"),
        run_named(&comparison, "drain node-2"),
    );
    assert_eq!((&base["placed"], &base["pending"]), (&json!(2), &json!(1)));
    assert_eq!(base["reasons"], json!({ "gone before it found a node": 1 }));
    assert_eq!(drained["evicted"]["drained"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_cluster_is_compared_as_it_is_and_not_changed() {
    let cluster = embedded_cluster::Cluster::default();
    let mut runs = pod("runs");
    runs["spec"]["nodeName"] = "n1".into();
    runs["spec"]["serviceAccountName"] = "builder".into();
    let state = json!({ "nodes": [node("n1"), node("n2")], "pods": [runs, pod("waits")] });
    cluster.import(&state).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let routes = cluster.router();
    tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
    let files = Files::new();
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "c", "cluster": { "server": server } }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
        "users": [{ "name": "u", "user": {} }],
    });
    files.write("kubeconfig", &kubeconfig.to_string());
    let version = cluster.resource_version();

    let flags = [
        "--from-cluster",
        "--kubeconfig",
        "kubeconfig",
        "--drain",
        "n1",
    ];
    let output = tokio::task::spawn_blocking(move || {
        files.run(&[&flags[..], &["--output", "json"]].concat())
    });

    let comparison = json_of(&output.await.unwrap());
    let (base, drained) = (
        run_named(&comparison, "base"),
        run_named(&comparison, "drain n1"),
    );
    assert_eq!(comparison["base"], "the cluster");
    assert_eq!(
        (&base["placed"], &drained["placed"]),
        (&json!(2), &json!(2))
    );
    assert_eq!(drained["evicted"]["drained"], 1);
    assert_eq!(comparison["notes"], json!([]), "all were taken over");
    assert_eq!(
        cluster.resource_version(),
        version,
        "nothing is written there"
    );
}

#[test]
fn what_cannot_be_compared_is_refused_with_its_reason() {
    let files = Files::new();
    files.write(
        "bad.yaml",
        "profiles: [{ plugins: { score: { enabled: [{ name: Nothing }] } } }]",
    );
    files.write("text.yaml", "just a text");
    files.write("list.json", "[]");
    files.write("broken.jsonl", &(line(0, "Add", "Node", node("n")) + "{\n"));
    let base = shared();
    let with = |flags: &[&str]| refusal(&files.compare(&base, flags));

    for (said, wanted) in [
        (with(&[]), "there is nothing to compare with; --with FILE"),
        (
            with(&["--with", "gone.yaml"]),
            "--with gone.yaml: No such file",
        ),
        (
            with(&["--with", "bad.yaml"]),
            "bad: the scheduler configuration cannot run",
        ),
        (
            with(&["--with", "text.yaml"]),
            "--with text.yaml: it is neither JSON",
        ),
        (
            with(&["--drain", "n7"]),
            "base.json has no node \"n7\" that could be drained; its nodes are n1, n2, n3",
        ),
        (with(&["--drain", " ,"]), "names no node; expected names"),
        (
            with(&["--add-nodes", "0"]),
            "expected a number from 1 to 10000",
        ),
        (
            with(&["--add-nodes", "2:n7"]),
            "no node \"n7\" that could be copied",
        ),
        (with(&["--add-nodes", "-1"]), "unexpected argument '-1'"),
        (with(&["--drain", "n1", "--threads", "0"]), "--threads"),
        (
            with(&["--drain", "n1", "--together"]),
            "--together needs two changes",
        ),
        (
            refusal(&files.run(&["gone.json", "--drain", "n"])),
            "gone.json: expected an export or a recording: No such file",
        ),
        (
            refusal(&files.run(&["text.yaml", "--drain", "n"])),
            "text.yaml: expected what GET /api/v1/export prints",
        ),
        (
            refusal(&files.run(&["list.json", "--drain", "n"])),
            "list.json: the import cannot be read: it is a list",
        ),
        (
            refusal(&files.run(&["broken.jsonl", "--drain", "n"])),
            "broken.jsonl: line 2: EOF",
        ),
        (refusal(&files.run(&["--drain", "n"])), "BASE"),
        (
            refusal(&files.run(&["--from-cluster", "base.json", "--drain", "n"])),
            "cannot be used with",
        ),
        (
            refusal(&files.run(&["--from-cluster", "--kubeconfig", "no.yaml", "--drain", "n"])),
            "--from-cluster: --kubeconfig no.yaml",
        ),
        (
            refusal(&files.compare(&json!({}), &["--drain", "n"])),
            "base.json has no node, so there is nothing to compare",
        ),
        (
            refusal(&files.compare(&json!({ "nodes": [node("n")] }), &["--drain", "n"])),
            "base.json has no pod, so there is nothing",
        ),
        (
            refusal(&files.compare(&json!({ "pods": [pod("p")] }), &["--add-nodes", "1"])),
            "base.json has no node",
        ),
    ] {
        assert!(said.contains(wanted), "{said}\nlacks: {wanted}");
    }
    // An object that the cluster refuses is named, with the run.
    let mut wrong = base.clone();
    wrong["pods"][0]["spec"]["containers"] = json!([]);
    let said = refusal(&files.compare(&wrong, &["--drain", "n1"]));
    assert!(
        said.contains("base: nothing was imported: pods one/a0"),
        "{said}"
    );
    // An unwritable file is reported before anything is printed.
    let said = refusal(&files.compare(&base, &["--drain", "n1", "--svg", "no/where.svg"]));
    assert!(
        said.contains("--svg no/where.svg cannot be written"),
        "{said}"
    );
}

#[test]
fn a_configuration_that_takes_no_pod_is_noted() {
    let files = Files::new();
    files.write("other.yaml", "profiles: [{ schedulerName: other }]");

    let comparison =
        json_of(&files.compare(&shared(), &["--with", "other.yaml", "--output", "json"]));

    let other = run_named(&comparison, "other");
    assert_eq!(other["pending"], 5);
    assert_eq!(
        other["reasons"],
        json!({ "no profile of the configuration is named default-scheduler": 5 })
    );
    let notes = comparison["notes"].to_string();
    assert!(
        notes.contains("other: no pod asks for a scheduler")
            && notes.contains("lacks the plugins GpuFit"),
        "{notes}"
    );
}

/// Many nodes and pods with everything that could tell two runs apart: ties, priorities, affinity, preemption.
fn crowd() -> Value {
    let nodes: Vec<Value> = (0..20)
        .map(|at| {
            if at % 3 == 0 {
                gpu_node(&format!("g{at:02}"), 2)
            } else {
                let mut node = node(&format!("c{at:02}"));
                node["metadata"]["labels"] = json!({ "zone": format!("z{}", at % 4) });
                node["status"]["allocatable"]["cpu"] = "4".into();
                node
            }
        })
        .collect();
    let pods: Vec<Value> = (0..120)
        .map(|at| {
            let name = format!("p{:03}", at * 37 % 120);
            let namespace = if at % 2 == 0 { "one" } else { "two" };
            let mut pod = if at % 4 == 0 {
                gpu_pod(&name, namespace, 5_000 + 3_000 * (at % 11))
            } else {
                let mut pod = pod(&name);
                pod["metadata"]["namespace"] = namespace.into();
                pod["spec"]["containers"][0]["resources"] = json!({ "requests": { "cpu": format!("{}m", 1100 + at % 7 * 300) } });
                pod
            };
            pod["metadata"]["labels"] = json!({ "app": format!("a{}", at % 5) });
            pod["spec"]["priority"] = (at % 3 * 100).into();
            if at % 3 > 0 {
                pod["spec"]["priorityClassName"] = format!("class-{}", at % 3).into();
            }
            if at % 6 == 1 {
                pod["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] = json!([{
                    "weight": 10, "podAffinityTerm": { "topologyKey": "zone", "labelSelector": { "matchLabels": { "app": format!("a{}", at % 5) } } },
                }]);
            }
            if at % 3 == 0 {
                // More pods without priority exist than fit.
                let nodes = ["c01", "g03", "c02", "c04", "c05"];
                pod["spec"]["nodeName"] = nodes[at as usize / 3 % 5].into();
            }
            pod
        })
        .collect();
    json!({
        "namespaces": [{ "metadata": { "name": "one" } }, { "metadata": { "name": "two" } }],
        "priorityClasses": [{ "metadata": { "name": "class-1" }, "value": 100 }, { "metadata": { "name": "class-2" }, "value": 200 }],
        "nodes": nodes, "pods": pods, "schedulerConfig": policy("LeastAllocated"),
    })
}

#[test]
fn the_same_question_gets_the_same_bytes() {
    let files = Files::new();
    files.write("pack.yaml", &policy("MostAllocated").to_string());
    let flags = [
        "--with",
        "pack.yaml",
        "--add-nodes",
        "3",
        "--drain",
        "g03,c01",
        "--svg",
        "chart.svg",
    ];
    let mut seen: Option<(Vec<u8>, Vec<u8>)> = None;

    for threads in ["1", "1", "3", "16"] {
        let output = files.compare(&crowd(), &[&flags[..], &["--threads", threads]].concat());
        assert!(output.status.success(), "{output:?}");
        let chart = std::fs::read(files.path("chart.svg")).unwrap();
        let (table, before) = seen.get_or_insert_with(|| (output.stdout.clone(), chart.clone()));
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(table)
        );
        assert_eq!(&chart, before);
    }

    let (table, _) = seen.unwrap();
    let table = String::from_utf8(table).unwrap();
    let preempted = table
        .lines()
        .find(|line| line.starts_with("evicted, preempted"))
        .unwrap();
    assert!(
        preempted.chars().any(|c| ('1'..='9').contains(&c)),
        "the crowd preempts: {table}"
    );
}

#[test]
fn a_chart_is_well_formed_and_has_no_script() {
    let files = Files::new();

    let output = files.compare(&shared(), &["--drain", "n1", "--svg", "chart.svg"]);

    assert!(output.status.success(), "{output:?}");
    let chart = std::fs::read_to_string(files.path("chart.svg")).unwrap();
    assert!(chart.starts_with("<svg ") && chart.ends_with("</svg>\n"));
    assert!(!chart.contains("<script") && !chart.contains("href"));
    assert_eq!(chart.matches("<g>").count(), chart.matches("</g>").count());
    assert!(chart.contains("drain n1: 3"));
}

#[test]
fn the_examples_are_what_the_documentation_shows() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_vgpu-scheduler"))
        .args(["simulator", "compare", "examples/simulator/base.yaml"])
        .args([
            "--with",
            "examples/simulator/binpack.yaml",
            "--add-nodes",
            "2",
            "--drain",
            "gpu-1",
        ])
        .current_dir(root)
        .output()
        .unwrap();

    assert!(output.status.success(), "{output:?}");
    let docs = std::fs::read_to_string(root.join("docs/simulator.md")).unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(
        docs.contains(&table),
        "docs/simulator.md shows another table than\n{table}"
    );
}

fn answer(base: Base, variants: Vec<Variant>, anew: bool) -> Result<Comparison, Refusal> {
    let question = Question {
        base,
        configuration: None,
        variants,
        anew,
    };
    let vendors = Arc::clone(&crate::support::vendors());
    question.answer(&vendors, 2)
}

/// A value of one of these, or a value that does not belong there.
fn odd(usual: &'static [&'static str]) -> impl Strategy<Value = Value> {
    prop_oneof![
        6 => proptest::sample::select(usual).prop_map(Value::from),
        1 => proptest::sample::select(vec![
            Value::Null, json!(-1), json!(1e300), json!(""), json!([]), json!({}), json!(true), json!("💥"), json!("-5"),
            json!("99999999999999999999Gi"), json!("n1"),
        ]),
    ]
}

fn odd_object() -> impl Strategy<Value = Value> {
    let name = odd(&["n1", "n2", "p1", "p2", "p3"]);
    let amounts = (
        odd(&["1", "500m", "4"]),
        odd(&["1Gi", "4096"]),
        odd(&["1", "2"]),
    );
    let rest = (
        odd(&["n1", "n2"]),
        odd(&["Pending", "Running", "Succeeded"]),
        odd(&["default-scheduler"]),
        any::<u8>(),
    );
    (name, amounts, rest).prop_map(|(name, (cpu, memory, gpu), (node, phase, scheduler, bits))| {
        let requests = json!({ "cpu": cpu, "memory": memory, "nvidia.com/gpu": gpu, "nvidia.com/gpumem": memory });
        let mut object = json!({
            "metadata": { "name": name },
            "spec": { "containers": [{ "name": "c", "image": "i", "resources": { "limits": requests, "requests": requests } }] },
            "status": { "phase": phase, "allocatable": requests },
        });
        if bits & 1 > 0 {
            object["spec"]["nodeName"] = node;
        }
        if bits & 2 > 0 {
            object["spec"]["schedulerName"] = scheduler;
        }
        if bits & 4 > 0 {
            object["spec"]["priority"] = bits.into();
        }
        if bits & 8 > 0 {
            object["metadata"]["annotations"] = json!({ "hami.io/node-nvidia-register": "GPU-0,10,40960,100,A100,0,true:" });
        }
        object
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn odd_exports_are_compared_or_refused(
        nodes in proptest::collection::vec(odd_object(), 0..4),
        pods in proptest::collection::vec(odd_object(), 0..6),
        configuration in odd(&["x"]),
        anew: bool,
    ) {
        let mut export = json!({ "nodes": nodes, "pods": pods });
        export["schedulerConfig"] = if configuration == "x" { Value::Null } else { configuration };
        let Ok(import) = Import::read(export) else { return Ok(()) };
        let variants = vec![
            Variant { name: "more".into(), add: vec!["2".parse::<Added>().unwrap()], ..Variant::default() },
            Variant { name: "less".into(), drain: vec!["n1".into()], ..Variant::default() },
        ];
        let base = Base::of_export("base", import);

        let first = answer(base.clone(), variants.clone(), anew);
        let again = answer(base, variants, anew);

        match (&first, &again) {
            (Ok(first), Ok(again)) => {
                prop_assert_eq!(first.table(), again.table());
                prop_assert_eq!(first.chart(), again.chart());
                prop_assert_eq!(first.runs.len(), 3, "the base and two variants");
                for run in &first.runs {
                    let pending: u64 = run.figures.reasons.values().sum();
                    prop_assert_eq!(pending, run.figures.pending);
                }
            }
            (Err(first), Err(again)) => {
                prop_assert!(!first.to_string().is_empty());
                prop_assert_eq!(first, again);
            }
            _ => prop_assert!(false, "{first:?} and {again:?}"),
        }
    }

    #[test]
    fn odd_recordings_are_compared_or_refused(
        events in proptest::collection::vec((0_u32..400, proptest::sample::select(vec!["Add", "Update", "Delete"]),
            proptest::sample::select(vec!["Node", "Pod"]), odd_object()), 1..25),
    ) {
        let mut text = String::new();
        for (second, event, kind, object) in events {
            write!(text, "{}", line(second, event, kind, object)).unwrap();
        }
        let Ok(lines) = recording::read(&text) else { return Ok(()) };
        let base = Base::of_recording("r", lines);
        let variant = Variant { name: "more".into(), add: vec!["1".parse::<Added>().unwrap()], ..Variant::default() };

        let first = answer(base.clone(), vec![variant.clone()], false);
        let again = answer(base, vec![variant], false);

        prop_assert_eq!(format!("{first:?}"), format!("{again:?}"));
        if let Ok(first) = &first {
            prop_assert_eq!(first.runs.len(), 2, "the base and one variant");
        }
        for run in first.iter().flat_map(|first| &first.runs) {
            let fairness = run.figures.fairness.unwrap_or(1.0);
            prop_assert!((0.0..=1.0).contains(&fairness), "{fairness}");
        }
    }
}
