//! A healthy cluster, and its possible faults. The API server is the embedded one, over HTTP; a hook in it stands for
//! the webhook.

mod healthy;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::routing::get;
use embedded_cluster::{Admission, BoxFuture, Cluster, Review, Status};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::doctor::{Fault, broken, diagnosed, drive, seen, vgpu};
use healthy::{ca, certificate, pod, state, time};

/// The API server's objects, and whether the webhook answers.
pub(crate) struct Source {
    state: Value,
    webhook: bool,
    /// Kinds of hcs.io that there are; null for none.
    kinds: Value,
    computenodes: Value,
    /// The devices of another driver.
    devices: Value,
    /// The assigner's answer about its readiness.
    assigner: (u16, &'static str),
}

impl Source {
    /// A healthy cluster, except for its state.
    fn of(state: Value, webhook: bool) -> Self {
        let (kinds, computenodes) = healthy::hcs();
        Self {
            state,
            webhook,
            kinds,
            computenodes,
            devices: json!([{"name": "gpu-7", "attributes": {"uuid": {"string": "GPU-of-no-node-of-ours"}}}]),
            assigner: (200, "ready\n"),
        }
    }
}

/// The webhook.
struct Hook;

impl Admission for Hook {
    fn mutate<'a>(&'a self, review: &'a Review) -> BoxFuture<'a, Result<Option<Value>, Status>> {
        let changed = review.object.clone().map(|mut object| {
            object["spec"]["schedulerName"] = "hami-scheduler".into();
            object
        });
        let ours = review.resource == "pods" && review.subresource.is_empty();
        Box::pin(async move { Ok(changed.filter(|_| ours)) })
    }
}

/// Serves until the program ends; the kubeconfig for it.
fn serve(source: &Source, dir: &Path) -> String {
    let cluster = Cluster::default();
    cluster.import(&source.state).unwrap();
    if source.webhook {
        cluster.admit_with(Arc::new(Hook));
    }
    let metrics = get(async || "vgpu_plugin_slots 20\nvgpu_gpu_driver_up{node=\"n\"} 1\n");
    let kinds: Vec<Value> = (source.kinds.as_array().into_iter().flatten())
        .map(|name| json!({ "name": name }))
        .collect();
    let installed = !source.kinds.is_null();
    let status = |code: u16| http::StatusCode::from_u16(code).unwrap();
    let listed = json!({ "kind": "ComputeNodeList", "metadata": {}, "items": source.computenodes });
    let slices = json!({ "kind": "ResourceSliceList", "metadata": {}, "items": [{
        "metadata": { "name": "s" },
        "spec": { "driver": "gpu.nvidia.com", "pool": { "name": "n" }, "devices": source.devices },
    }] });
    let (code, said) = (status(source.assigner.0), source.assigner.1);
    let router = Router::new()
        .route(
            "/api/v1/namespaces/{namespace}/pods/{pod}/proxy/metrics",
            metrics,
        )
        .route(
            "/api/v1/namespaces/{namespace}/pods/{pod}/proxy/readyz",
            get(async move || (code, said)),
        )
        .route(
            "/apis/hcs.io/v1alpha1",
            get(async move || {
                let code = status(if installed { 200 } else { 404 });
                (
                    code,
                    axum::Json(json!({ "kind": "APIResourceList", "resources": kinds })),
                )
            }),
        )
        .route(
            "/apis/hcs.io/v1alpha1/computenodes",
            get(async move || axum::Json(listed.clone())),
        )
        .route(
            "/apis/resource.k8s.io/v1beta2",
            get(async || axum::Json(json!({ "kind": "APIResourceList", "resources": [{ "name": "resourceslices" }] }))),
        )
        .route(
            "/apis/resource.k8s.io/v1beta2/resourceslices",
            get(async move || axum::Json(slices.clone())),
        )
        .fallback_service(cluster.router());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
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
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "k", "cluster": { "server": server } }],
        "users": [{ "name": "u", "user": {} }],
        "contexts": [{ "name": "c", "context": { "cluster": "k", "user": "u" } }],
    });
    let file = dir.join("config");
    std::fs::write(&file, config.to_string()).unwrap();
    file.to_str().unwrap().to_owned()
}

/// The object of a kind by its name.
fn object<'a>(source: &'a mut Source, kind: &str, name: &str) -> &'a mut Value {
    let objects = source.state[kind].as_array_mut().unwrap();
    objects
        .iter_mut()
        .find(|object| object["metadata"]["name"] == name)
        .unwrap_or_else(|| panic!("there is no {name} in {kind}"))
}

fn add(source: &mut Source, kind: &str, object: Value) {
    let objects = source.state[kind].as_array_mut().unwrap();
    objects.push(object);
}

/// Changes text in the configuration of a ConfigMap.
fn edit(source: &mut Source, map: &str, key: &str, from: &str, to: &str) {
    let text = &mut object(source, "configMaps", map)["data"][key];
    let old = text.as_str().unwrap();
    assert!(old.contains(from), "{old}");
    *text = old.replace(from, to).into();
}

/// All entries of both webhook configurations.
fn entries(source: &mut Source, change: impl Fn(&mut Value)) {
    for kind in [
        "mutatingwebhookconfigurations",
        "validatingwebhookconfigurations",
    ] {
        for entry in object(source, kind, "vgpu-webhook")["webhooks"]
            .as_array_mut()
            .unwrap()
        {
            change(entry);
        }
    }
}

/// A waiting pod that asks for this many GPUs.
fn waiting(name: &str, gpus: &str, seconds: u64) -> Value {
    let mut pod = pod(
        "ml",
        name,
        &json!({ "nvidia.com/gpu": gpus, "nvidia.com/gpumem": "1000" }),
    );
    pod["metadata"]["creationTimestamp"] = time(seconds).into();
    pod["status"] = json!({ "phase": "Pending", "conditions": [{ "type": "PodScheduled", "status": "False",
        "reason": "Unschedulable", "message": "0/2 nodes are available: 2 Insufficient nvidia.com/gpumem." }] });
    pod
}

const REGISTER: &str = "hami.io/node-nvidia-register";
const ALLOCATED: &str = "hami.io/vgpu-devices-allocated";

const FAULTS: &[Fault<Source>] = &[
    seen(
        "VGPU-K01",
        "warn",
        "Kubernetes is newer than any that was tried",
        |facts| {
            facts["version"]["minor"] = "38+".into();
        },
    ),
    seen("VGPU-K01", "fail", "Kubernetes is too old", |facts| {
        facts["version"] = json!({ "major": "1", "minor": "16", "gitVersion": "v1.16.0" });
        // An older API server does not have these fields.
        facts["mutating"] = json!([]);
        facts["validating"] = json!([]);
        facts["unread"]["webhooks"] = "the server could not find the requested resource".into();
    }),
    broken(
        "VGPU-K02",
        "fail",
        "the webhook was never installed",
        |source| {
            let pods = source.state["pods"].as_array_mut().unwrap();
            pods.retain(|pod| pod["metadata"]["name"] != "vgpu-webhook-1");
        },
    ),
    broken(
        "VGPU-K03",
        "fail",
        "a node with GPUs has no label",
        |source| {
            let node = object(source, "nodes", "cpu-0");
            node["metadata"]["labels"]["nvidia.com/gpu.present"] = "true".into();
        },
    ),
    broken("VGPU-K03", "fail", "no node has the label", |source| {
        let set = object(source, "daemonSets", "vgpu-monitor");
        set["spec"]["template"]["spec"]["nodeSelector"]["gpu"] = "yes".into();
        for node in ["gpu-0", "gpu-1"] {
            object(source, "nodes", node)["metadata"]["labels"]["gpu"] = "on".into();
        }
    }),
    broken("VGPU-K04", "fail", "an agent crashes", |source| {
        let pod = object(source, "pods", "vgpu-monitor-b");
        pod["status"]["conditions"][0]["status"] = "False".into();
        pod["status"]["containerStatuses"] = json!([{ "name": "plugin", "ready": false, "state": { "waiting": { "reason": "CrashLoopBackOff" } } }]);
    }),
    broken(
        "VGPU-K05",
        "fail",
        "the plugin is not registered",
        |source| {
            let node = object(source, "nodes", "gpu-1");
            node["status"]["allocatable"]["nvidia.com/gpu"] = "0".into();
        },
    ),
    broken(
        "VGPU-K06",
        "fail",
        "the register annotation is cut",
        |source| {
            let node = object(source, "nodes", "gpu-1");
            node["metadata"]["annotations"][REGISTER] = "GPU-10,10,16384".into();
        },
    ),
    broken(
        "VGPU-K07",
        "fail",
        "the count flipped to whole GPUs",
        |source| {
            let node = object(source, "nodes", "gpu-1");
            node["status"]["allocatable"]["nvidia.com/gpu"] = "2".into();
        },
    ),
    broken("VGPU-K08", "fail", "NVIDIA's plugin runs too", |source| {
        let mut plugin = pod("kube-system", "nvidia-device-plugin-x", &json!({}));
        plugin["spec"]["nodeName"] = "gpu-0".into();
        plugin["spec"]["containers"][0]["image"] =
            "nvcr.io/nvidia/k8s-device-plugin:v0.17.0".into();
        add(source, "pods", plugin);
    }),
    broken("VGPU-K09", "fail", "an agent has gone silent", |source| {
        object(source, "leases", "vgpu-agent-gpu-1")["spec"]["renewTime"] = time(3_600).into();
    }),
    broken("VGPU-K10", "fail", "a GPU is sick", |source| {
        let node = object(source, "nodes", "gpu-1");
        let text = node["metadata"]["annotations"][REGISTER].as_str().unwrap();
        node["metadata"]["annotations"][REGISTER] = text.replacen("true", "false", 1).into();
    }),
    broken(
        "VGPU-K11",
        "fail",
        "kube-scheduler's image is out of reach",
        |source| {
            let pod = object(source, "pods", "vgpu-scheduler-1");
            pod["status"]["conditions"][0]["status"] = "False".into();
            pod["status"]["containerStatuses"] = json!([{ "name": "kube-scheduler", "ready": false,
            "image": "registry.cn-hangzhou.aliyuncs.com/google_containers/kube-scheduler:v1.35.0",
            "state": { "waiting": { "reason": "ImagePullBackOff", "message": "i/o timeout" } } }]);
        },
    ),
    broken("VGPU-K12", "fail", "the scheduler is not ready", |source| {
        let pod = object(source, "pods", "vgpu-scheduler-1");
        pod["status"]["conditions"][0]["status"] = "False".into();
    }),
    broken("VGPU-K13", "fail", "the Lease is not renewed", |source| {
        object(source, "leases", "hami-scheduler")["spec"]["renewTime"] = time(600).into();
    }),
    broken(
        "VGPU-K13",
        "fail",
        "another installation holds the Lease",
        |source| {
            object(source, "leases", "hami-scheduler")["spec"]["holderIdentity"] =
                "other-1_u".into();
        },
    ),
    broken(
        "VGPU-K14",
        "fail",
        "the extender does not manage gpumem",
        |source| {
            edit(
                source,
                "vgpu-kube-scheduler",
                "config.yaml",
                "nvidia.com/gpumem,",
                "nvidia.com/gpumen,",
            );
        },
    ),
    broken("VGPU-K14", "fail", "no extender is configured", |source| {
        edit(
            source,
            "vgpu-kube-scheduler",
            "config.yaml",
            "bindVerb: bind",
            "weight: 1",
        );
    }),
    broken(
        "VGPU-K15",
        "fail",
        "kube-scheduler samples nodes",
        |source| {
            edit(
                source,
                "vgpu-kube-scheduler",
                "config.yaml",
                "percentageOfNodesToScore: 100",
                "parallelism: 16",
            );
        },
    ),
    broken(
        "VGPU-K16",
        "fail",
        "kube-scheduler evicts unasked",
        |source| {
            edit(
                source,
                "vgpu-kube-scheduler",
                "config.yaml",
                "  preemptVerb: preempt\n",
                "",
            );
        },
    ),
    broken("VGPU-K17", "fail", "the webhook is not ready", |source| {
        object(source, "pods", "vgpu-webhook-1")["status"]["conditions"][0]["status"] =
            "False".into();
    }),
    broken("VGPU-K17", "fail", "one configuration is gone", |source| {
        source.state["validatingwebhookconfigurations"] = json!([]);
    }),
    broken("VGPU-K18", "fail", "the webhook fails open", |source| {
        entries(source, |entry| entry["failurePolicy"] = "Ignore".into());
    }),
    broken(
        "VGPU-K18",
        "fail",
        "the webhook stops every pod",
        |source| {
            entries(source, |entry| {
                entry.as_object_mut().unwrap().remove("matchConditions");
            });
        },
    ),
    broken(
        "VGPU-K19",
        "fail",
        "the caBundle is another CA's",
        |source| {
            let other = ca(2020, 2090);
            entries(source, |entry| {
                entry["clientConfig"]["caBundle"] = other.clone().into()
            });
        },
    ),
    broken("VGPU-K20", "fail", "the CA has ended", |source| {
        let old = ca(2020, 2024);
        entries(source, |entry| {
            entry["clientConfig"]["caBundle"] = old.clone().into()
        });
        object(source, "secrets", "vgpu-webhook-ca")["data"]["ca.crt"] = old.into();
    }),
    broken("VGPU-K20", "warn", "the CA ends in days", |source| {
        let soon = certificate(SystemTime::now() + Duration::from_secs(3 * 86_400));
        entries(source, |entry| {
            entry["clientConfig"]["caBundle"] = soon.clone().into()
        });
        object(source, "secrets", "vgpu-webhook-ca")["data"]["ca.crt"] = soon.into();
    }),
    broken(
        "VGPU-K21",
        "fail",
        "the webhook does not see pods",
        |source| source.webhook = false,
    ),
    seen(
        "VGPU-K21",
        "fail",
        "the API server cannot reach the webhook",
        |facts| {
            facts["dry_run"] = json!({ "namespace": "default", "status": 500,
            "error": "failed calling webhook \"mutate.pods.vgpu.io\": connect: connection refused" });
        },
    ),
    broken(
        "VGPU-K22",
        "fail",
        "a pod was made while the webhook was down",
        |source| {
            let mut pod = waiting("lost", "1", 600);
            pod["spec"]["schedulerName"] = "default-scheduler".into();
            add(source, "pods", pod);
        },
    ),
    broken(
        "VGPU-K23",
        "warn",
        "another plugin offers gpumem",
        |source| {
            object(source, "nodes", "gpu-1")["status"]["allocatable"]["nvidia.com/gpumem"] =
                "16384".into();
        },
    ),
    broken("VGPU-K24", "fail", "a pod asks for ten pieces", |source| {
        add(source, "pods", waiting("pieces", "10", 5));
    }),
    broken(
        "VGPU-K25",
        "fail",
        "an allocation was written over",
        |source| {
            object(source, "pods", "train-0")["metadata"]["annotations"][ALLOCATED] =
                "GPU-00,NVIDIA;".into();
        },
    ),
    broken("VGPU-K26", "warn", "a pod waits", |source| {
        add(source, "pods", waiting("patient", "1", 600));
    }),
    broken("VGPU-K27", "fail", "a GPU is promised twice", |source| {
        let mut second = source.state["pods"][0].clone();
        second["metadata"]["name"] = "train-1".into();
        second["metadata"]["uid"] = "train-1".into();
        second["metadata"]["annotations"][ALLOCATED] = "GPU-00,NVIDIA,14000,30:;".into();
        add(source, "pods", second);
    }),
    // No API server takes it today; one of an older release may have.
    seen("VGPU-K28", "warn", "a quota says nothing", |facts| {
        let quota = &mut facts["quotas"][0];
        quota["spec"]["hard"]["limits.nvidia.com/gpumem"] = "1500m".into();
    }),
    broken("VGPU-K29", "fail", "a pod was bound past us", |source| {
        let annotations = &mut object(source, "pods", "train-0")["metadata"]["annotations"];
        *annotations = json!({});
    }),
    broken(
        "VGPU-K30",
        "fail",
        "the agent never gave a pod its GPUs",
        |source| {
            let pod = object(source, "pods", "train-0");
            pod["status"]["phase"] = "Pending".into();
            pod["metadata"]["annotations"]["hami.io/bind-phase"] = "allocating".into();
            pod["metadata"]["annotations"]["hami.io/bind-time"] = "1700000000".into();
        },
    ),
    broken(
        "VGPU-K31",
        "fail",
        "Pod Security refuses the agent",
        |source| {
            let labels = &mut object(source, "namespaces", "vgpu-system")["metadata"]["labels"];
            *labels = json!({ "pod-security.kubernetes.io/enforce": "baseline" });
        },
    ),
    seen(
        "VGPU-K32",
        "fail",
        "the agent may not patch the statuses of nodes",
        |facts| deny(facts, "agent", "patch nodes/status"),
    ),
    seen("VGPU-K33", "fail", "the scheduler may not bind", |facts| {
        deny(facts, "scheduler", "create pods/binding");
    }),
    seen(
        "VGPU-K34",
        "fail",
        "the webhook may not make its Secret",
        |facts| {
            deny(facts, "webhook", "create secrets in vgpu-system");
        },
    ),
    seen(
        "VGPU-K35",
        "fail",
        "an agent's port does not answer",
        |facts| {
            facts["metrics"][0] = json!({ "pod": "vgpu-system/vgpu-monitor-a", "port": 31993, "status": 503, "error": "dial tcp: connection refused" });
        },
    ),
    broken(
        "VGPU-K36",
        "warn",
        "HAMi's scheduler has the node port",
        |source| {
            add(
                source,
                "services",
                json!({ "metadata": { "name": "monitor", "namespace": "other" },
            "spec": { "type": "NodePort", "ports": [{ "port": 31993, "nodePort": 31993 }] } }),
            );
        },
    ),
    broken(
        "VGPU-K37",
        "fail",
        "HAMi's plugin is still there",
        |source| {
            let mut set = source.state["daemonSets"][0].clone();
            set["metadata"] =
                json!({ "name": "hami-device-plugin", "namespace": "kube-system", "labels": {} });
            add(source, "daemonSets", set);
        },
    ),
    broken("VGPU-K38", "warn", "HAMi locked a node", |source| {
        object(source, "nodes", "gpu-0")["metadata"]["annotations"]["hami.io/mutex.lock"] =
            "2026-06-14T15:05:03Z,ml,old".into();
    }),
    broken("VGPU-K39", "fail", "an unknown key", |source| {
        edit(
            source,
            "vgpu-scheduler-device",
            "device-config.yaml",
            "deviceSplitCount",
            "deviceSplitCoun",
        );
    }),
    broken(
        "VGPU-K40",
        "fail",
        "the webhook has an older configuration",
        |source| {
            let pod = object(source, "pods", "vgpu-webhook-1");
            pod["metadata"]["annotations"]["checksum/device-config"] = "0f0f0f0f0f".into();
        },
    ),
    broken("VGPU-K41", "fail", "a node runs docker", |source| {
        object(source, "nodes", "gpu-1")["status"]["nodeInfo"]["containerRuntimeVersion"] =
            "docker://24.0.7".into();
    }),
    seen(
        "VGPU-K42",
        "fail",
        "this machine's clock is wrong",
        |facts| {
            let asked = facts["asked_unix"].as_u64().unwrap();
            facts["asked_unix"] = (asked - 500).into();
        },
    ),
    broken("VGPU-K42", "fail", "a node's clock is ahead", |source| {
        let ahead = ahead_by(3_600);
        object(source, "leases", "vgpu-agent-gpu-1")["spec"]["renewTime"] = ahead.into();
    }),
    broken(
        "VGPU-K43",
        "warn",
        "a namespace of tenants is exempt",
        |source| {
            let labels = &mut object(source, "namespaces", "ml")["metadata"]["labels"];
            *labels = json!({ "hami.io/webhook": "ignore" });
        },
    ),
    broken("VGPU-K44", "warn", "an upgrade stands half-way", |source| {
        let pod = object(source, "pods", "vgpu-monitor-b");
        pod["metadata"]["labels"]["app.kubernetes.io/version"] = "0.2.0".into();
    }),
    broken("VGPU-K45", "fail", "an unknown key of a node", |source| {
        edit(
            source,
            "vgpu-device-plugin",
            "config.json",
            "devicesplitcount",
            "split",
        );
    }),
    broken("VGPU-K45", "warn", "a node that is not there", |source| {
        edit(
            source,
            "vgpu-device-plugin",
            "config.json",
            "gpu-0",
            "gpu-9",
        );
    }),
    broken(
        "VGPU-K41",
        "fail",
        "a node without CDI, and no annotation names the GPUs",
        |source| {
            object(source, "nodes", "gpu-1")["status"]["nodeInfo"]["containerRuntimeVersion"] =
                "containerd://1.6.20".into();
        },
    ),
    seen(
        "VGPU-K46",
        "fail",
        "NVIDIA's runtime does not start the agent",
        |facts| {
            facts["metrics"][0]["driver_up"] = false.into();
        },
    ),
    broken("VGPU-K47", "fail", "hcs.io was never installed", |source| {
        source.kinds = Value::Null;
    }),
    broken("VGPU-K47", "fail", "one kind of hcs.io is gone", |source| {
        source.kinds = json!(["computenodes", "computetasks", "computetopologies"]);
    }),
    broken("VGPU-K48", "fail", "an agent stopped reporting", |source| {
        source.computenodes[1]["status"]["lastHeartbeat"] = time(3_000).into();
    }),
    broken("VGPU-K48", "fail", "a ComputeNode is missing", |source| {
        source.computenodes.as_array_mut().unwrap().pop();
    }),
    broken(
        "VGPU-K49",
        "fail",
        "the assigner is not registered",
        |source| {
            let all = source.state["mutatingwebhookconfigurations"]
                .as_array_mut()
                .unwrap();
            all.retain(|object| object["metadata"]["name"] != "vgpu-assigner");
        },
    ),
    broken(
        "VGPU-K49",
        "fail",
        "the assigner's CA was never put in",
        |source| {
            let object = object(source, "mutatingwebhookconfigurations", "vgpu-assigner");
            let config = object["webhooks"][0]["clientConfig"]
                .as_object_mut()
                .unwrap();
            config.remove("caBundle");
        },
    ),
    broken("VGPU-K50", "fail", "the assigner is not ready", |source| {
        source.assigner = (
            503,
            "not ready: gpu-claims: make the namespace of the Leases\n",
        );
    }),
    broken(
        "VGPU-K51",
        "warn",
        "a DRA driver offers a GPU that vgpu gives",
        |source| {
            let nodes = source.state["nodes"].as_array().unwrap();
            let registers = nodes
                .iter()
                .map(|node| &node["metadata"]["annotations"][REGISTER]);
            let register = registers.filter_map(Value::as_str).next().unwrap();
            let uuid = register.split(',').next().unwrap();
            source.devices[0]["attributes"]["uuid"]["string"] = uuid.into();
        },
    ),
];

fn ahead_by(seconds: u64) -> String {
    healthy::stamp(healthy::unix_now() + seconds)
}

fn deny(facts: &mut Value, part: &str, right: &str) {
    let rights = facts["access"].as_array_mut().unwrap();
    let found = rights
        .iter_mut()
        .find(|access| access["part"] == part && access["right"] == right)
        .unwrap_or_else(|| panic!("{part} was not asked for {right}"));
    found["allowed"] = false.into();
}

#[test]
fn healthy_cluster_passes_and_each_fault_fails_its_own_check() {
    drive("cluster", FAULTS, |fault| {
        let dir = TempDir::with_prefix("vgpu-test-").unwrap();
        let mut source = Source::of(state(), true);
        (fault.at_source)(&mut source);
        let config = serve(&source, dir.path());
        diagnosed(&["cluster", "--kubeconfig", &config], |facts| {
            // The embedded server does not report its time.
            if facts["server_unix"].is_null() {
                facts["server_unix"] = facts["asked_unix"].clone();
            }
            (fault.as_seen)(facts);
        })
    });
}

#[test]
fn a_cluster_without_it_says_what_is_missing_and_skips_the_rest() {
    let dir = TempDir::with_prefix("vgpu-test-").unwrap();
    let source = Source::of(json!({ "nodes": [{ "metadata": { "name": "n" } }] }), false);
    let config = serve(&source, dir.path());

    let output = vgpu(&["--kubeconfig", &config]);

    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.starts_with("looking at: cluster (a kubeconfig was given)\n"),
        "{text}"
    );
    assert!(
        text.contains("component=scheduler, webhook, agent"),
        "{text}"
    );
    assert!(text.contains("\n1 fail, 0 warn"), "{text}");
}

#[test]
fn forbidden_list_is_skipped_with_the_servers_message() {
    let dir = TempDir::with_prefix("vgpu-test-").unwrap();
    let source = Source::of(state(), true);
    let config = serve(&source, dir.path());

    let (_, document) = diagnosed(&["cluster", "--kubeconfig", &config], |facts| {
        facts["unread"]["nodes"] =
            "nodes is forbidden: User \"u\" cannot list resource \"nodes\"".into();
        facts["nodes"] = json!([]);
        facts["access_error"] = "subjectaccessreviews is forbidden".into();
    });

    let rows = document["checks"].as_array().unwrap();
    for id in ["VGPU-K03", "VGPU-K05", "VGPU-K27", "VGPU-K33"] {
        let row = rows.iter().find(|row| row["id"] == id).unwrap();
        assert_eq!(row["verdict"], "skipped", "{row}");
        assert!(
            row["evidence"].as_str().unwrap().contains("is forbidden"),
            "{row}"
        );
    }
}

#[test]
fn memory_that_our_agent_reports_is_no_fault() {
    for (noted, verdict) in [
        ("nvidia.com/gpucores,nvidia.com/gpumem", "ok"),
        ("nvidia.com/gpucores", "warn"),
    ] {
        let dir = TempDir::with_prefix("vgpu-test-").unwrap();
        let mut source = Source::of(state(), true);
        let node = object(&mut source, "nodes", "gpu-1");
        node["status"]["allocatable"]["nvidia.com/gpumem"] = "16384".into();
        node["metadata"]["annotations"]["vgpu.io/reported-capacity"] = noted.into();
        let config = serve(&source, dir.path());
        let (_, document) = diagnosed(&["cluster", "--kubeconfig", &config], |_| ());
        let rows = document["checks"].as_array().unwrap();
        let row = rows.iter().find(|row| row["id"] == "VGPU-K23").unwrap();
        assert_eq!(row["verdict"], verdict, "{noted}: {row}");
    }
}

#[test]
fn containerd_1_7_is_fine_while_its_node_has_a_healthy_gpu() {
    let judged = |healthy: bool| {
        let dir = TempDir::with_prefix("vgpu-test-").unwrap();
        let mut source = Source::of(state(), true);
        let node = object(&mut source, "nodes", "gpu-1");
        node["status"]["nodeInfo"]["containerRuntimeVersion"] = "containerd://1.7.27".into();
        if !healthy {
            let register = &mut node["metadata"]["annotations"]["hami.io/node-nvidia-register"];
            *register = register.as_str().unwrap().replace("true", "false").into();
        }
        let config = serve(&source, dir.path());
        let (_, document) = diagnosed(&["cluster", "--kubeconfig", &config], |_| ());
        let rows = document["checks"].as_array().unwrap();
        let row = rows.iter().find(|row| row["id"] == "VGPU-K41").unwrap();
        (row["verdict"].clone(), row["evidence"].to_string())
    };

    let (verdict, _) = judged(true);
    assert_eq!(verdict, "ok");
    let (verdict, evidence) = judged(false);
    assert_eq!(verdict, "fail");
    assert!(
        evidence.contains("its event GpuInventory says why"),
        "{evidence}"
    );
}

#[test]
fn agents_that_give_by_claims_are_agents() {
    let dir = TempDir::with_prefix("vgpu-test-").unwrap();
    let mut source = Source::of(state(), true);
    for (kind, names) in [
        ("pods", &["vgpu-monitor-a", "vgpu-monitor-b"][..]),
        ("daemonSets", &["vgpu-monitor"]),
    ] {
        for name in names {
            let labels = &mut object(&mut source, kind, name)["metadata"]["labels"];
            labels["app.kubernetes.io/component"] = "dra".into();
        }
    }
    let config = serve(&source, dir.path());
    let judged = |ready: bool| {
        let (_, document) = diagnosed(&["cluster", "--kubeconfig", &config], |facts| {
            let pods = facts["pods"].as_array_mut().unwrap().iter_mut();
            let mut first = pods.filter(|pod| pod["metadata"]["name"] == "vgpu-monitor-a");
            if !ready {
                first.next().unwrap()["status"]["conditions"] = json!([]);
            }
        });
        let verdict = |id: &str| {
            let rows = document["checks"].as_array().unwrap();
            let row = rows.iter().find(|row| row["id"] == id).unwrap();
            (row["verdict"].clone(), row["evidence"].to_string())
        };
        [verdict("VGPU-K02"), verdict("VGPU-K04")]
    };

    let [installed, alive] = judged(true);
    assert_eq!(installed.0, "ok", "{installed:?}");
    assert_eq!(alive.0, "ok", "{alive:?}");
    let [_, alive] = judged(false);
    assert_eq!(alive.0, "fail", "{alive:?}");
    assert!(alive.1.contains("vgpu-monitor-a"), "{alive:?}");
}
