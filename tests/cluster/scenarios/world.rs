//! The cluster that a test runs in: emptied before each test, one test at a time. Asks the API server as an
//! administrator; the programs under test have accounts of their own.

use std::fmt::Debug;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    Event, Node, PersistentVolume, PersistentVolumeClaim, Pod, ResourceQuota, Secret,
};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaimTemplate, ResourceSlice};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, Resource};
use serde_json::{Value, json};

use crate::client::{self, client_of};
use crate::objects::{Gpus, from, node};

/// The namespace of the product.
pub(crate) const SYSTEM: &str = "vgpu-system";
/// The namespace of the Leases of GPUs that are reserved by label.
pub(crate) const CLAIMS: &str = "gpu-claims";
/// How long a test waits for something that usually takes milliseconds, on a machine with other work.
const PATIENCE: Duration = Duration::from_secs(60);

static ALONE: Mutex<()> = Mutex::new(());

/// A real cluster without nodes or pods.
pub(crate) struct World {
    /// The folder of the cluster, with a kubeconfig for each account.
    pub(crate) run: PathBuf,
    /// The directory of kube-scheduler and kubectl.
    pub(crate) bin: PathBuf,
    /// The directory of vgpu-scheduler and vgpu-webhook.
    pub(crate) ours: PathBuf,
    pub(crate) client: Client,
    /// The version of the API server, as in 1.35.4.
    pub(crate) version: String,
    test: String,
}

/// Runs a test in the cluster that the environment names, if it names one.
pub(crate) fn within<T: AsyncFnOnce(&World)>(test: T) {
    let name = std::any::type_name::<T>();
    let name = name
        .trim_end_matches("::{{closure}}")
        .rsplit("::")
        .next()
        .unwrap()
        .to_owned();
    let Some(run) = std::env::var_os("VGPU_CLUSTER") else {
        println!(
            "left to `scripts/cluster test`, which brings up the API server and kube-scheduler that this needs"
        );
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
        let world = World::enter(run.into(), name).await;
        world.empty().await;
        let began = Instant::now();
        tokio::time::timeout(3 * world.patience(), test(&world))
            .await
            .expect("the test ends in three minutes");
        println!("{} took {:.1} s", world.test, began.elapsed().as_secs_f64());
    });
}

impl World {
    async fn enter(run: PathBuf, test: String) -> Self {
        let folder = |name: &str| PathBuf::from(std::env::var_os(name).expect(name));
        let logs = run.join("logs").join(&test);
        std::fs::remove_dir_all(&logs).ok();
        std::fs::create_dir_all(&logs).unwrap();
        let client = client_of(&run, "admin").await;
        let version = client.apiserver_version().await.unwrap().git_version;
        let version = version.trim_start_matches('v').to_owned();
        Self {
            run,
            version,
            bin: folder("VGPU_CLUSTER_BIN"),
            ours: folder("VGPU_BIN"),
            client,
            test,
        }
    }

    /// The log of a program of this test.
    pub(crate) fn log(&self, program: &str) -> PathBuf {
        self.run
            .join("logs")
            .join(&self.test)
            .join(format!("{program}.log"))
    }

    /// How long a test waits. A kube-scheduler before 1.30 tries some pods again after a minute and a half only.
    fn patience(&self) -> Duration {
        if self.minor() < 30 {
            3 * PATIENCE
        } else {
            PATIENCE
        }
    }

    /// The N of Kubernetes 1.N.
    pub(crate) fn minor(&self) -> u32 {
        let minor = self.version.split('.').nth(1).unwrap();
        minor.parse().unwrap()
    }

    /// Whether Kubernetes is 1.`first` or newer; prints that `what` is missing if not.
    pub(crate) fn has(&self, first: u32, what: &str) -> bool {
        let has = self.minor() >= first;
        if !has {
            println!(
                "left out: {what} came with Kubernetes 1.{first}, and this is {}",
                self.version
            );
        }
        has
    }

    /// A client with the rights of another account.
    pub(crate) async fn client_of(&self, account: &str) -> Client {
        client_of(&self.run, account).await
    }

    /// A client with this token.
    pub(crate) async fn client_with(&self, token: &str) -> Client {
        let file = Kubeconfig::read_from(self.run.join("admin.kubeconfig")).unwrap();
        let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
            .await
            .unwrap();
        config.auth_info.token = Some(token.to_owned().into());
        Client::try_from(config).unwrap()
    }

    /// Runs kubectl as this account; returns its success, and its standard output and standard error.
    pub(crate) fn kubectl(&self, account: &str, arguments: &[&str]) -> (bool, String) {
        let kubeconfig = self.run.join(format!("{account}.kubeconfig"));
        let output = Command::new(self.bin.join("kubectl"))
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(arguments)
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    }

    async fn empty(&self) {
        // First the objects that could refuse the rest.
        self.remove_all::<MutatingWebhookConfiguration>(Api::all(self.client.clone()))
            .await;
        self.remove_all::<ValidatingWebhookConfiguration>(Api::all(self.client.clone()))
            .await;
        for namespace in ["default", SYSTEM] {
            self.remove_all::<Pod>(Api::namespaced(self.client.clone(), namespace))
                .await;
        }
        self.remove_all::<Node>(Api::all(self.client.clone())).await;
        self.remove_all::<PersistentVolumeClaim>(Api::default_namespaced(self.client.clone()))
            .await;
        self.remove_all::<PersistentVolume>(Api::all(self.client.clone()))
            .await;
        self.remove_all::<StorageClass>(Api::all(self.client.clone()))
            .await;
        self.remove_all::<ResourceQuota>(Api::default_namespaced(self.client.clone()))
            .await;
        self.remove_all::<Event>(Api::default_namespaced(self.client.clone()))
            .await;
        self.remove_all::<Lease>(Api::namespaced(self.client.clone(), SYSTEM))
            .await;
        self.remove_all::<Lease>(Api::namespaced(self.client.clone(), CLAIMS))
            .await;
        self.remove_all::<Secret>(Api::namespaced(self.client.clone(), SYSTEM))
            .await;
        if self.minor() >= 34 {
            self.remove_all::<ResourceSlice>(Api::all(self.client.clone()))
                .await;
            self.remove_all::<DeviceClass>(Api::all(self.client.clone()))
                .await;
            let templates = Api::default_namespaced(self.client.clone());
            self.remove_all::<ResourceClaimTemplate>(templates).await;
        }
        let classes: Api<PriorityClass> = Api::all(self.client.clone());
        for class in ["low", "high"] {
            classes.delete(class, &DeleteParams::default()).await.ok();
        }
        // Controllers let pods and volumes go: an object that is still being deleted keeps its name.
        self.eventually("the cluster is empty", async || {
            let is_empty = [
                self.has_none::<Pod>().await,
                self.has_none::<Node>().await,
                self.has_none::<PersistentVolumeClaim>().await,
                self.has_none::<PersistentVolume>().await,
            ];
            is_empty.iter().all(|it| *it).then_some(())
        })
        .await;
    }

    /// Whether no object of this kind is there, in any namespace.
    async fn has_none<K>(&self) -> bool
    where
        K: Resource<DynamicType = ()> + Clone + Debug + serde::de::DeserializeOwned,
    {
        let api: Api<K> = Api::all(self.client.clone());
        api.list(&ListParams::default())
            .await
            .unwrap()
            .items
            .is_empty()
    }

    async fn remove_all<K>(&self, api: Api<K>)
    where
        K: Clone + Debug + serde::de::DeserializeOwned,
    {
        let at_once = DeleteParams::default().grace_period(0);
        drop(
            api.delete_collection(&at_once, &ListParams::default())
                .await
                .unwrap(),
        );
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }

    pub(crate) fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    pub(crate) async fn all_pods(&self) -> Vec<Pod> {
        self.pods()
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
    }

    /// The pods that have a node.
    pub(crate) async fn placed(&self) -> Vec<Pod> {
        let mut pods = self.all_pods().await;
        pods.retain(|pod| node(pod).is_some());
        pods
    }

    /// Nodes of these names with these GPUs.
    pub(crate) async fn make_nodes<N: AsRef<str>>(
        &self,
        names: impl IntoIterator<Item = N>,
        gpus: &Gpus,
    ) {
        let nodes: Vec<Node> = names
            .into_iter()
            .map(|name| gpus.node(name.as_ref()))
            .collect();
        let api = self.nodes();
        stream::iter(&nodes)
            .for_each_concurrent(16, async |node| {
                drop(api.create(&PostParams::default(), node).await.unwrap())
            })
            .await;
    }

    pub(crate) async fn make_pod(&self, pod: Value) -> Pod {
        self.pods()
            .create(&PostParams::default(), &from(pod))
            .await
            .unwrap()
    }

    /// Many, several at a time.
    pub(crate) async fn make_pods(&self, pods: Vec<Value>) {
        stream::iter(pods)
            .for_each_concurrent(16, async |pod| drop(self.make_pod(pod).await))
            .await;
    }

    /// Gone at once, as when its kubelet has finished with it.
    pub(crate) async fn remove_pod(&self, name: &str) {
        drop(
            self.pods()
                .delete(name, &DeleteParams::default().grace_period(0))
                .await
                .unwrap(),
        );
    }

    /// Two priorities that pods may name.
    pub(crate) async fn make_priorities(&self) {
        let classes: Api<PriorityClass> = Api::all(self.client.clone());
        for (name, value) in [("low", 10), ("high", 1000)] {
            let class = from(json!({"metadata": {"name": name}, "value": value}));
            drop(
                classes
                    .create(&PostParams::default(), &class)
                    .await
                    .unwrap(),
            );
        }
    }

    /// The pod as soon as it has a node.
    pub(crate) async fn until_placed(&self, name: &str) -> Pod {
        self.eventually(&format!("{name} has a node"), async || {
            let pod = self.pods().get(name).await.unwrap();
            node(&pod).is_some().then_some(pod)
        })
        .await
    }

    /// Waits until kube-scheduler refuses the pod; returns its message.
    pub(crate) async fn until_refused(&self, name: &str) -> String {
        self.eventually(&format!("{name} is refused"), async || {
            self.refusal(name).await
        })
        .await
    }

    /// Waits until kube-scheduler could not place a pod for this reason.
    pub(crate) async fn until_refused_for(&self, name: &str, reason: &str) {
        self.eventually(&format!("{name} is refused for {reason}"), async || {
            let why = self.refusal(name).await;
            why.filter(|why| why.contains(reason))
        })
        .await;
    }

    /// kube-scheduler's message about a pod that it could not place.
    pub(crate) async fn refusal(&self, name: &str) -> Option<String> {
        let pod = self.pods().get(name).await.unwrap();
        let conditions = pod.status?.conditions?;
        let scheduled = conditions
            .into_iter()
            .find(|condition| condition.type_ == "PodScheduled")?;
        if scheduled.status == "False" {
            scheduled.message
        } else {
            None
        }
    }

    /// The notes of all events about a pod.
    pub(crate) async fn events_of(&self, name: &str) -> Vec<String> {
        let api: Api<Event> = Api::default_namespaced(self.client.clone());
        client::events_of(&api, name).await.unwrap()
    }

    /// Asks until there is an answer; a test whose answer never comes fails with `what`.
    pub(crate) async fn eventually<T>(&self, what: &str, ask: impl AsyncFnMut() -> Option<T>) -> T {
        match client::asked(self.patience(), ask).await {
            Some(answer) => answer,
            None => panic!("waited in vain: {what}"),
        }
    }
}
