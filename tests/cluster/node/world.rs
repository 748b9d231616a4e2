//! The node that a test runs on: a real kubelet and containerd with simulated GPUs, and the product as its chart
//! installs it. One test at a time; each has names of its own and leaves nothing behind.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use cuda_sim::Board;
use k8s_openapi::api::core::v1::{ContainerStatus, Event, Namespace, Node as KubeNode, Pod};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, LogParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::client::{self, client_of};

/// The namespace of the product.
pub(crate) const SYSTEM: &str = "vgpu-system";
/// The node's name in `scripts/cluster`.
pub(crate) const NAME: &str = "one";
/// The node's label that has its GPUs given by claims.
pub(crate) const BY_CLAIMS: &str = "vgpu.io/dra";
/// The directory of the agent's containers.
pub(crate) const CONTAINERS: &str = "/var/lib/vgpu/containers";
/// How long a test waits for something that usually takes a second or two, on a machine with other work. The kubelet ends
/// a kube-scheduler with a hung extender after more than a minute.
const PATIENCE: Duration = Duration::from_secs(200);

static ALONE: Mutex<()> = Mutex::new(());

/// The cluster and its one node.
pub(crate) struct World {
    /// The folder of the cluster.
    pub(crate) run: PathBuf,
    pub(crate) client: Client,
    /// The N of Kubernetes 1.N.
    pub(crate) minor: u32,
    /// NVIDIA's runtime starts every container, so no pod names a runtime class.
    pub(crate) nvidia_by_default: bool,
    /// Containers get their GPUs by CDI; otherwise by the agent's mounts and NVIDIA's runtime.
    pub(crate) by_cdi: bool,
    /// The truth about the GPUs.
    pub(crate) board: Board,
}

/// How the node gives its GPUs when a test begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GivenBy {
    /// By the device plugin.
    Plugin,
    /// As the test before has left it, by the device plugin or by claims: a change takes ten seconds.
    Either,
}

/// Runs a test on the node that the environment names, if it names one. The node's GPUs are given by the device plugin.
pub(crate) fn within<T: AsyncFnOnce(&World)>(test: T) {
    run_test(GivenBy::Plugin, test);
}

/// The same for a test that has GPUs given by claims as its first act (`dra::by_claims`).
pub(crate) fn within_claims<T: AsyncFnOnce(&World)>(test: T) {
    run_test(GivenBy::Either, test);
}

fn run_test<T: AsyncFnOnce(&World)>(given_by: GivenBy, test: T) {
    let name = std::any::type_name::<T>();
    let name = name.trim_end_matches("::{{closure}}");
    let name = name.rsplit("::").next().unwrap();
    let Some(run) = std::env::var_os("VGPU_CLUSTER") else {
        println!("left to `scripts/cluster test --node`, which brings up the node that this needs");
        return;
    };
    let _alone = ALONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let world = World::enter(run.into()).await;
        // Remains of a failed test. The kubelet ends a pod with a claim only while the DRA driver answers.
        world.empty().await;
        world.without_claims().await;
        if given_by == GivenBy::Plugin {
            world.label(BY_CLAIMS, None).await;
        }
        world.is_whole().await;
        let began = Instant::now();
        tokio::time::timeout(4 * PATIENCE, test(&world))
            .await
            .expect("the test ends in six minutes");
        let took = began.elapsed();
        world.empty().await;
        world.without_claims().await;
        println!(
            "{name} took {:.1} s and {:.1} s to clear up",
            took.as_secs_f64(),
            (began.elapsed() - took).as_secs_f64()
        );
    });
}

impl World {
    async fn enter(run: PathBuf) -> Self {
        let client = client_of(&run, "admin").await;
        let nodes: Api<KubeNode> = Api::all(client.clone());
        let info = nodes.get(NAME).await.unwrap().status.unwrap().node_info;
        let runtime = info.unwrap().container_runtime_version;
        let minor = client.apiserver_version().await.unwrap().minor;
        let minor = minor.parse().expect(&minor);
        let is_old = runtime.starts_with("containerd://1.6");
        let board = std::env::var_os("VGPU_SIM_BOARD").expect("VGPU_SIM_BOARD");
        Self {
            run,
            client,
            minor,
            nvidia_by_default: is_old,
            // An older kubelet drops the CDI names of a device plugin's answer.
            by_cdi: !is_old && minor >= 29,
            board: Board::open(Path::new(&board)).unwrap(),
        }
    }

    /// Waits until all parts of the product run, and the kubelet has the agent's devices.
    pub(crate) async fn is_whole(&self) {
        self.eventually("all parts of the product are ready", async || {
            let pods = self.system().list(&ListParams::default()).await.ok()?.items;
            let wanted = ["vgpu-monitor", "vgpu-scheduler", "vgpu-webhook"];
            let is_there = wanted.iter().all(|part| {
                pods.iter()
                    .any(|pod| name(pod).starts_with(part) && is_ready(pod))
            });
            // A pod that is being deleted is called ready for a while after its last process has ended.
            let stays = |pod: &Pod| is_ready(pod) && pod.metadata.deletion_timestamp.is_none();
            (is_there && pods.iter().all(stays)).then_some(())
        })
        .await;
        self.eventually("the node has GPUs to give", async || {
            let node = self.node().await?;
            let is_by_claims = node.metadata.labels.as_ref()?.contains_key(BY_CLAIMS);
            (is_by_claims || slots_of(&node)? > 0).then_some(())
        })
        .await;
    }

    /// Whether GPUs can be given by claims here; prints the reason if not.
    pub(crate) fn has_claims(&self) -> bool {
        if !self.by_cdi {
            println!("left out: claims need CDI, which this node does not have");
        } else if self.minor < 34 {
            println!(
                "left out: claims that share a device need Kubernetes 1.34, and this is 1.{}",
                self.minor
            );
        }
        self.by_cdi && self.minor >= 34
    }

    /// No claim of a test is left, nor a template of claims.
    async fn without_claims(&self) {
        if self.minor < 34 {
            return;
        }
        let claims: Api<ResourceClaim> = Api::default_namespaced(self.client.clone());
        let templates: Api<ResourceClaimTemplate> = Api::default_namespaced(self.client.clone());
        let (how, all) = (DeleteParams::default(), ListParams::default());
        claims.delete_collection(&how, &all).await.unwrap();
        templates.delete_collection(&how, &all).await.unwrap();
        self.eventually("no claim of the test is left", async || {
            let left = claims.list(&all).await.ok()?;
            left.items.is_empty().then_some(())
        })
        .await;
    }

    async fn node(&self) -> Option<KubeNode> {
        let nodes: Api<KubeNode> = Api::all(self.client.clone());
        nodes.get(NAME).await.ok()
    }

    /// Gives the node a label, or takes it away.
    pub(crate) async fn label(&self, key: &str, value: Option<&str>) {
        let nodes: Api<KubeNode> = Api::all(self.client.clone());
        let change = Patch::Merge(json!({"metadata": {"labels": {key: value}}}));
        let how = PatchParams::default();
        nodes.patch(NAME, &how, &change).await.unwrap();
    }

    /// How many slots the kubelet has, sick ones left out.
    pub(crate) async fn slots(&self) -> Option<u32> {
        slots_of(&self.node().await?)
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }

    pub(crate) fn system(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), SYSTEM)
    }

    pub(crate) async fn client_of(&self, account: &str) -> Client {
        client_of(&self.run, account).await
    }

    /// Runs kubectl as an administrator; returns its output, or its error.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        run(Command::new("kubectl").args(arguments))
    }

    /// A program run in a container, as `kubectl exec` does it.
    pub(crate) fn exec(
        &self,
        pod: &str,
        container: &str,
        words: &[&str],
    ) -> Result<String, String> {
        let mut all = vec!["exec", pod, "-c", container, "--"];
        all.extend(words);
        self.kubectl(&all)
    }

    /// Creates a pod; returns the API server's refusal, if it refuses.
    pub(crate) async fn try_pod(&self, pod: Value) -> Result<Pod, String> {
        let pod = serde_json::from_value(pod).unwrap();
        self.pods()
            .create(&PostParams::default(), &pod)
            .await
            .map_err(|error| error.to_string())
    }

    pub(crate) async fn make_pod(&self, pod: Value) -> Pod {
        self.try_pod(pod).await.unwrap()
    }

    /// The pod as it is, once that holds.
    pub(crate) async fn until(&self, pod: &str, what: &str, holds: impl Fn(&Pod) -> bool) -> Pod {
        let last = Mutex::new(None);
        let asked = self
            .asks(async || {
                let found = self.pods().get_opt(pod).await.ok()??;
                let good = holds(&found);
                *last.lock().unwrap() = Some(found.clone());
                good.then_some(found)
            })
            .await;
        match asked {
            Some(found) => found,
            None => {
                let last = last.into_inner().unwrap();
                let last = serde_json::to_string(&last.map(|pod| pod.status)).unwrap();
                let events = self.events_of(pod).await;
                panic!("waited in vain: {pod} {what}; it has {last}; events: {events:#?}")
            }
        }
    }

    /// The pod once all its containers have started and, if they have a probe, are ready.
    pub(crate) async fn until_ready(&self, pod: &str) -> Pod {
        self.until(pod, "is ready", is_ready).await
    }

    /// The output of a container's program, once it has `count` lines.
    pub(crate) async fn lines(&self, pod: &str, container: &str, count: usize) -> Vec<String> {
        let last = Mutex::new(String::new());
        let asked = self
            .asks(async || {
                let of = LogParams {
                    container: Some(container.to_owned()),
                    ..LogParams::default()
                };
                let text = self.pods().logs(pod, &of).await;
                let text = text.unwrap_or_else(|error| error.to_string());
                let lines: Vec<String> = text.lines().map(str::to_owned).collect();
                *last.lock().unwrap() = text;
                (lines.len() >= count).then_some(lines)
            })
            .await;
        match asked {
            Some(lines) => lines,
            None => {
                let last = last.into_inner().unwrap();
                let events = self.events_of(pod).await;
                panic!(
                    "waited in vain: {pod}/{container} writes {count} lines; it has written:\n{last}\nevents: {events:#?}"
                )
            }
        }
    }

    /// The answers of the program of [`gpu_pod`], by word, once there are `count`.
    pub(crate) async fn said(&self, pod: &str, count: usize) -> BTreeMap<String, String> {
        self.said_by(pod, "work", count).await
    }

    pub(crate) async fn said_by(
        &self,
        pod: &str,
        container: &str,
        count: usize,
    ) -> BTreeMap<String, String> {
        self.lines(pod, container, count)
            .await
            .iter()
            .map(|line| {
                let (word, said) = line.split_once(' ').unwrap_or((line, ""));
                (word.to_owned(), said.to_owned())
            })
            .collect()
    }

    /// The same program once more, in a container that runs.
    pub(crate) fn ask(&self, pod: &str, container: &str, words: &[&str]) -> Vec<String> {
        // The simulated driver finds its board by variables, and those that NVIDIA's runtime has added are given to a
        // container's first process alone.
        let mut all = vec!["env"];
        let driver = [
            "VGPU_SIM_BOARD=/run/vgpu-sim/board",
            "VGPU_SIM_PROC=/run/vgpu-sim/proc",
            "VGPU_SIM_DEVICES_DIR=/dev",
        ];
        if !self.by_cdi {
            all.extend(driver);
        }
        all.push("gpu");
        all.extend(words);
        let said = self
            .exec(pod, container, &all)
            .unwrap_or_else(|error| panic!("{pod}/{container} {words:?}: {error}"));
        said.lines()
            .map(|line| line.split_once(' ').map_or("", |(_, said)| said).to_owned())
            .collect()
    }

    /// The agent's /metrics on this port: 31993 is the exporter's, 31992 the plugin's.
    pub(crate) async fn metrics(&self, port: u16) -> Option<String> {
        let label = ListParams::default().labels("app.kubernetes.io/component=agent");
        let pods = self.system().list(&label).await.ok()?.items;
        let address = pods.first()?.status.as_ref()?.pod_ip.clone()?;
        run(Command::new("curl").args(["-sSf", &format!("http://{address}:{port}/metrics")])).ok()
    }

    pub(crate) async fn remove(&self, pod: &str) {
        drop(self.pods().delete(pod, &DeleteParams::default()).await.ok());
        self.eventually(&format!("{pod} is gone"), async || {
            self.pods().get_opt(pod).await.ok()?.is_none().then_some(())
        })
        .await;
    }

    /// The notes of all events about an object with this name, in any namespace.
    pub(crate) async fn events_of(&self, name: &str) -> Vec<String> {
        let api: Api<Event> = Api::all(self.client.clone());
        client::events_of(&api, name).await.unwrap_or_default()
    }

    /// No pod of a test is left, nor anything that one had on a GPU.
    pub(crate) async fn empty(&self) {
        let (how, all) = (DeleteParams::default(), ListParams::default());
        self.pods().delete_collection(&how, &all).await.unwrap();
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        for namespace in ["strict", "lax"] {
            // Usually there is none. Any other error shows below: the namespace stays.
            drop(namespaces.delete(namespace, &how).await);
            self.eventually(&format!("the namespace {namespace} is gone"), async || {
                let left = namespaces.get_opt(namespace).await.ok()?;
                left.is_none().then_some(())
            })
            .await;
        }
        self.eventually("no pod of the test is left", async || {
            let left = self.pods().list(&all).await.ok()?;
            left.items.is_empty().then_some(())
        })
        .await;
        self.eventually("what the pods had on GPUs is given back", async || {
            let used = |gpu| self.board.used_bytes(gpu);
            ((0..self.board.gpus()).map(used).sum::<u64>() == 0).then_some(())
        })
        .await;
    }

    /// Asks until there is an answer; a test whose answer never comes fails with `what`.
    pub(crate) async fn eventually<T>(&self, what: &str, ask: impl AsyncFnMut() -> Option<T>) -> T {
        match self.asks(ask).await {
            Some(answer) => answer,
            None => panic!("waited in vain: {what}"),
        }
    }

    async fn asks<T>(&self, ask: impl AsyncFnMut() -> Option<T>) -> Option<T> {
        client::asked(PATIENCE, ask).await
    }
}

fn slots_of(node: &KubeNode) -> Option<u32> {
    let allocatable = node.status.as_ref()?.allocatable.as_ref()?;
    allocatable.get("nvidia.com/gpu")?.0.parse().ok()
}

/// A command's output, or its error.
pub(crate) fn run(command: &mut Command) -> Result<String, String> {
    let output = command
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    if output.status.success() {
        Ok(text(output.stdout))
    } else {
        Err(text(output.stderr) + &text(output.stdout))
    }
}

/// A container whose program executes these words on its GPUs (`tests/cluster/gpu.py`).
pub(crate) fn gpu_container(name: &str, limits: &Value, words: &[&str]) -> Value {
    json!({
        "name": name, "image": "localhost/cuda-python:1", "imagePullPolicy": "Never", "args": words,
        "resources": {"limits": limits},
    })
}

/// A container that only waits: its share counts, and it costs nothing.
pub(crate) fn idle_container(name: &str, limits: &Value) -> Value {
    json!({
        "name": name, "image": "localhost/base:1", "imagePullPolicy": "Never",
        "command": ["sleep", "100000"], "resources": {"limits": limits},
    })
}

/// A pod of these containers.
pub(crate) fn pod_of(name: &str, containers: &[Value]) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": containers},
    })
}

/// A pod whose one container, `work`, has that share.
pub(crate) fn gpu_pod(name: &str, limits: &Value, words: &[&str]) -> Value {
    pod_of(name, &[gpu_container("work", limits, words)])
}

/// One GPU with this many MiB of it.
pub(crate) fn share(memory_mib: u64) -> Value {
    json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem": memory_mib})
}

pub(crate) fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap()
}

pub(crate) fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap()
}

pub(crate) fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    Some(pod.metadata.annotations.as_ref()?.get(key)?.as_str())
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The kubelet's status of a container, also of init containers and sidecars.
pub(crate) fn status<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let main = status.container_statuses.iter().flatten();
    let init = status.init_container_statuses.iter().flatten();
    main.chain(init).find(|status| status.name == container)
}

/// Its present run: another one has another name.
pub(crate) fn run_of(pod: &Pod, container: &str) -> Option<String> {
    status(pod, container)?.container_id.clone()
}

/// UUID and MiB of each device that the pod was given, container after container.
pub(crate) fn devices(pod: &Pod) -> Vec<(String, u64)> {
    let text = annotation(pod, "hami.io/vgpu-devices-allocated").unwrap_or_default();
    text.split([';', ':'])
        .filter_map(|device| {
            let mut fields = device.split(',');
            Some((fields.next()?.to_owned(), fields.nth(1)?.parse().ok()?))
        })
        .collect()
}
