//! A healthy cluster: two nodes with two GPUs each, one without, everything installed, one pod with a share.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use serde_json::{Value, json};

const KUBE_SCHEDULER: &str = "\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
percentageOfNodesToScore: 100
profiles:
- schedulerName: hami-scheduler
extenders:
- urlPrefix: http://127.0.0.1:8080
  filterVerb: filter
  preemptVerb: preempt
  bindVerb: bind
  managedResources:
  - {name: nvidia.com/gpu, ignoredByScheduler: false}
  - {name: nvidia.com/gpumem, ignoredByScheduler: true}
  - {name: nvidia.com/gpumem-percentage, ignoredByScheduler: true}
  - {name: nvidia.com/gpucores, ignoredByScheduler: true}
  - {name: nvidia.com/priority, ignoredByScheduler: true}
";

const DEVICES: &str = "\
nvidia:
  resourceCountName: nvidia.com/gpu
  resourceMemoryName: nvidia.com/gpumem
  resourceMemoryPercentageName: nvidia.com/gpumem-percentage
  resourceCoreName: nvidia.com/gpucores
  resourcePriorityName: nvidia.com/priority
  deviceSplitCount: 10
";

pub(crate) fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

/// The time this many seconds ago, in the API server's format.
pub(crate) fn time(ago: u64) -> String {
    stamp(unix_now() - ago)
}

pub(crate) fn stamp(unix: u64) -> String {
    let unix = i64::try_from(unix).unwrap();
    jiff::Timestamp::from_second(unix).unwrap().to_string()
}

/// A CA of these years, as a caBundle has it.
pub(crate) fn ca(from: i32, until: i32) -> String {
    signed(
        rcgen::date_time_ymd(from, 1, 1),
        rcgen::date_time_ymd(until, 1, 1),
    )
}

/// A CA that ends then.
pub(crate) fn certificate(until: SystemTime) -> String {
    signed(rcgen::date_time_ymd(2020, 1, 1), until.into())
}

fn signed(from: time::OffsetDateTime, until: time::OffsetDateTime) -> String {
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.not_before = from;
    params.not_after = until;
    let key = rcgen::KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    base64::engine::general_purpose::STANDARD.encode(pem)
}

/// A running pod of one container.
pub(crate) fn pod(namespace: &str, name: &str, limits: &Value) -> Value {
    json!({
        "metadata": { "name": name, "namespace": namespace, "uid": name, "labels": {}, "annotations": {}, "creationTimestamp": time(3_600) },
        "spec": {
            "schedulerName": "hami-scheduler", "serviceAccountName": "default",
            "containers": [{ "name": "main", "image": "i", "resources": { "limits": limits } }],
        },
        "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
    })
}

fn labels(component: &str) -> Value {
    json!({
        "app.kubernetes.io/name": "vgpu", "app.kubernetes.io/instance": "vgpu",
        "app.kubernetes.io/component": component, "app.kubernetes.io/version": "0.1.0",
    })
}

/// A pod of a part.
fn part(component: &str, name: &str, node: &str, args: &[&str], ports: &[u16]) -> Value {
    let mut pod = pod("vgpu-system", name, &json!({}));
    pod["metadata"]["labels"] = labels(component);
    pod["metadata"]["annotations"]["checksum/device-config"] = "abcdefabcdef".into();
    pod["spec"]["schedulerName"] = "default-scheduler".into();
    pod["spec"]["nodeName"] = node.into();
    pod["spec"]["serviceAccountName"] = format!("vgpu-{component}").into();
    let container = &mut pod["spec"]["containers"][0];
    container["args"] = json!(args);
    let ports: Vec<Value> = ports
        .iter()
        .map(|port| json!({ "containerPort": port }))
        .collect();
    container["ports"] = json!(ports);
    pod
}

fn node(name: &str, gpus: &[&str]) -> Value {
    let mut node = json!({
        "metadata": { "name": name, "labels": { "kubernetes.io/os": "linux" }, "annotations": {} },
        "status": {
            "capacity": { "cpu": "8" }, "allocatable": { "cpu": "8" },
            "conditions": [{ "type": "Ready", "status": "True" }],
            "nodeInfo": { "containerRuntimeVersion": "containerd://2.1.4" },
        },
    });
    if !gpus.is_empty() {
        let register: String = gpus
            .iter()
            .map(|gpu| format!("{gpu},10,16384,100,NVIDIA A100,0,true:"))
            .collect();
        node["metadata"]["labels"]["gpu"] = "on".into();
        node["metadata"]["annotations"]["hami.io/node-nvidia-register"] = register.into();
        for list in ["capacity", "allocatable"] {
            node["status"][list]["nvidia.com/gpu"] = (gpus.len() * 10).to_string().into();
        }
    }
    node
}

fn lease(name: &str, holder: &str, seconds: u32) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "vgpu-system", "labels": {} },
        "spec": { "holderIdentity": holder, "leaseDurationSeconds": seconds, "renewTime": time(3) },
    })
}

fn agents_lease(node: &str) -> Value {
    let mut lease = lease(&format!("vgpu-agent-{node}"), node, 120);
    lease["metadata"]["labels"] = labels("agent");
    lease["metadata"]["labels"]["vgpu.io/node"] = node.into();
    lease
}

fn configuration(kind: &str, entries: &[&str], bundle: &str) -> Value {
    let entry = |name: &&str| {
        json!({
            "name": name, "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": { "caBundle": bundle, "service": { "namespace": "vgpu-system", "name": "vgpu-webhook", "port": 443 } },
            "matchConditions": [{ "name": "concerns-devices", "expression": "true" }],
        })
    };
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
        "metadata": { "name": "vgpu-webhook", "labels": labels("webhook") },
        "webhooks": entries.iter().map(entry).collect::<Vec<_>>(),
    })
}

fn assigners(bundle: &str) -> Value {
    let mut object = configuration(
        "MutatingWebhookConfiguration",
        &["assigner.vgpu.io"],
        bundle,
    );
    object["metadata"] = json!({ "name": "vgpu-assigner", "labels": labels("assigner") });
    object["webhooks"][0]["clientConfig"]["service"]["name"] = "vgpu-assigner".into();
    object
}

/// The API server's objects of hcs.io, which the embedded one does not have: names of kinds, and ComputeNodes.
pub(crate) fn hcs() -> (Value, Value) {
    let node = |name: &str| {
        json!({
            "metadata": { "name": name }, "spec": { "vendor": "nvidia" },
            "status": { "phase": "Ready", "lastHeartbeat": time(20) },
        })
    };
    (
        json!([
            "computenodes",
            "computenodes/status",
            "computequotas",
            "computetasks",
            "computetopologies"
        ]),
        json!([node("gpu-0"), node("gpu-1")]),
    )
}

fn map(name: &str, key: &str, text: &str) -> Value {
    let mut object =
        json!({ "metadata": { "name": name, "namespace": "vgpu-system" }, "data": {} });
    object["data"][key] = text.into();
    object
}

pub(crate) fn state() -> Value {
    let until = SystemTime::now() + Duration::from_secs(300 * 86_400);
    let bundle = certificate(until);
    let mut train = pod(
        "ml",
        "train-0",
        &json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000", "nvidia.com/gpucores": "30" }),
    );
    train["spec"]["nodeName"] = "gpu-0".into();
    train["metadata"]["annotations"] = json!({
        "hami.io/vgpu-node": "gpu-0", "hami.io/vgpu-devices-allocated": "GPU-00,NVIDIA,4000,30:;",
        "hami.io/bind-phase": "success",
    });
    let agent = [
        "--manner=auto",
        "--node-config-file=/config/config.json",
        "--hcs",
    ];
    let template = json!({ "metadata": { "labels": labels("agent") },
        "spec": { "nodeSelector": { "kubernetes.io/os": "linux", "gpu": "on" }, "containers": [{ "name": "plugin", "image": "vgpu-monitor:0.1.0" }] } });
    json!({
        "namespaces": [
            { "metadata": { "name": "vgpu-system", "labels": {} } },
            { "metadata": { "name": "ml", "labels": {} } },
        ],
        "nodes": [node("gpu-0", &["GPU-00", "GPU-01"]), node("gpu-1", &["GPU-10", "GPU-11"]), node("cpu-0", &[])],
        "pods": [
            train,
            part("scheduler", "vgpu-scheduler-1", "cpu-0", &["--scheduler-name=hami-scheduler", "--hcs"], &[]),
            part("assigner", "vgpu-assigner-1", "cpu-0", &["--port=9443", "--ui-port=8080"], &[9443, 8080]),
            part("webhook", "vgpu-webhook-1", "cpu-0", &["--secret-name=vgpu-webhook-ca", "--webhook-config-name=vgpu-webhook"], &[]),
            part("agent", "vgpu-monitor-a", "gpu-0", &agent, &[31993, 31992]),
            part("agent", "vgpu-monitor-b", "gpu-1", &agent, &[31993, 31992]),
        ],
        "resourceQuotas": [{ "metadata": { "name": "gpus", "namespace": "ml" }, "spec": { "hard": { "limits.nvidia.com/gpumem": "16000" } } }],
        "services": [{ "metadata": { "name": "vgpu-monitor", "namespace": "vgpu-system", "labels": labels("agent") },
            "spec": { "clusterIP": "None", "ports": [{ "port": 31993 }] } }],
        "daemonSets": [{ "metadata": { "name": "vgpu-monitor", "namespace": "vgpu-system", "labels": labels("agent") },
            "spec": { "selector": { "matchLabels": labels("agent") }, "template": template },
            "status": { "desiredNumberScheduled": 2, "currentNumberScheduled": 2, "numberReady": 2 } }],
        "leases": [lease("hami-scheduler", "vgpu-scheduler-1_0a1b", 15), agents_lease("gpu-0"), agents_lease("gpu-1")],
        "configMaps": [
            map("vgpu-scheduler-device", "device-config.yaml", DEVICES),
            map("vgpu-kube-scheduler", "config.yaml", KUBE_SCHEDULER),
            map("vgpu-device-plugin", "config.json", r#"{"nodeconfig":[{"name":"gpu-0","devicesplitcount":10}]}"#),
        ],
        "secrets": [{ "metadata": { "name": "vgpu-webhook-ca", "namespace": "vgpu-system" }, "data": { "ca.crt": bundle, "ca.key": "aHVzaA==" } }],
        "mutatingwebhookconfigurations": [
            configuration("MutatingWebhookConfiguration", &["mutate.pods.vgpu.io"], &bundle),
            assigners(&bundle),
        ],
        "validatingwebhookconfigurations": [configuration("ValidatingWebhookConfiguration", &["validate.pods.vgpu.io", "reserved.pods.vgpu.io"], &bundle)],
    })
}
