//! A kubelet as a plugin sees it: its two sockets, its way of handing out slots, its record. In this process.

pub(crate) mod world;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use futures_util::stream::unfold;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use prost::Message as _;
use serde_json::{Value, json};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use tower::service_fn;
use vgpu_monitor::proto::device_plugin::device_plugin_client::DevicePluginClient;
use vgpu_monitor::proto::device_plugin::registration_server::{Registration, RegistrationServer};
use vgpu_monitor::proto::device_plugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, Empty, PreStartContainerRequest,
    PreferredAllocationRequest, RegisterRequest,
};
use vgpu_monitor::proto::pod_resources::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use vgpu_monitor::proto::pod_resources::{
    ContainerDevices, ContainerResources, ListPodResourcesRequest, ListPodResourcesResponse,
    PodResources,
};

#[derive(Clone)]
pub(crate) struct Kubelet(Arc<Inner>);

struct Inner {
    folder: PathBuf,
    state: Mutex<State>,
    serving: Mutex<JoinSet<()>>,
    lists: AtomicUsize,
    /// Lists of slots that ended while this kubelet lived: it takes the slots for gone then.
    ended: AtomicUsize,
    refused: AtomicUsize,
    /// Whether `List` is limited as the real one is.
    limited: AtomicBool,
    /// Whether the list and the record name no pod.
    silent: AtomicBool,
}

#[derive(Default)]
struct State {
    plugins: BTreeMap<String, DevicePluginClient<Channel>>,
    registrations: usize,
    /// By resource: slots, and whether they are well.
    slots: BTreeMap<String, Vec<(String, bool)>>,
    /// By resource: the NUMA nodes of each slot.
    numa: BTreeMap<String, Vec<Vec<i64>>>,
    pods: Vec<Pod>,
    tokens: f64,
    looked: Option<Instant>,
}

#[derive(Clone)]
struct Pod {
    namespace: String,
    name: String,
    uid: String,
    containers: Vec<Container>,
}

#[derive(Clone)]
struct Container {
    name: String,
    plain_init: bool,
    resource: String,
    ids: Vec<String>,
    answer: ContainerAllocateResponse,
}

async fn connect(path: PathBuf) -> Channel {
    Endpoint::from_static("http://localhost")
        .connect_with_connector(service_fn(move |_| {
            let path = path.clone();
            async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
        }))
        .await
        .unwrap()
}

impl Kubelet {
    /// One whose sockets will be below this folder.
    pub(crate) fn new(folder: &Path) -> Self {
        std::fs::create_dir_all(folder.join("device-plugins")).unwrap();
        std::fs::create_dir_all(folder.join("pod-resources")).unwrap();
        Self(Arc::new(Inner {
            folder: folder.to_owned(),
            state: Mutex::default(),
            serving: Mutex::default(),
            lists: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
            limited: AtomicBool::new(false),
            silent: AtomicBool::new(false),
        }))
    }

    pub(crate) fn device_plugins(&self) -> PathBuf {
        self.0.folder.join("device-plugins")
    }

    pub(crate) fn pod_resources(&self) -> PathBuf {
        self.0.folder.join("pod-resources/kubelet.sock")
    }

    /// Starts, or starts again after [`Kubelet::kill`]: takes all sockets away and makes its own.
    pub(crate) fn start(&self) {
        for entry in std::fs::read_dir(self.device_plugins()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "sock") {
                std::fs::remove_file(path).unwrap();
            }
        }
        drop(std::fs::remove_file(self.pod_resources()));
        let mut serving = self.0.serving.lock();
        let registration = UnixListener::bind(self.device_plugins().join("kubelet.sock")).unwrap();
        let server = Server::builder().add_service(RegistrationServer::new(self.clone()));
        serving.spawn(async move {
            let incoming = unfold(registration, async |listener| {
                let accepted = listener.accept().await.map(|(stream, _)| stream);
                Some((accepted, listener))
            });
            drop(server.serve_with_incoming(Box::pin(incoming)).await);
        });
        let resources = UnixListener::bind(self.pod_resources()).unwrap();
        let server = Server::builder().add_service(PodResourcesListerServer::new(self.clone()));
        serving.spawn(async move {
            let incoming = unfold(resources, async |listener| {
                let accepted = listener.accept().await.map(|(stream, _)| stream);
                Some((accepted, listener))
            });
            drop(server.serve_with_incoming(Box::pin(incoming)).await);
        });
    }

    /// Dies. Its sockets stay, and what it knew of plugins is gone; pods go on.
    pub(crate) async fn kill(&self) {
        let mut serving = std::mem::take(&mut *self.0.serving.lock());
        serving.shutdown().await;
        let mut state = self.0.state.lock();
        state.plugins.clear();
        state.slots.clear();
    }

    pub(crate) fn registrations(&self) -> usize {
        self.0.state.lock().registrations
    }

    pub(crate) fn lists(&self) -> (usize, usize) {
        let read = |counter: &AtomicUsize| counter.load(Ordering::SeqCst);
        (read(&self.0.lists), read(&self.0.refused))
    }

    /// How often the slots of a resource were gone.
    pub(crate) fn ended(&self) -> usize {
        self.0.ended.load(Ordering::SeqCst)
    }

    pub(crate) fn limit(&self) {
        self.0.limited.store(true, Ordering::SeqCst);
    }

    /// Slots of a resource: all, and those that are well.
    pub(crate) fn slots(&self, resource: &str) -> (usize, usize) {
        let state = self.0.state.lock();
        let slots = state.slots.get(resource).map_or(&[][..], Vec::as_slice);
        (slots.len(), slots.iter().filter(|(_, well)| *well).count())
    }

    /// The NUMA nodes that each slot of a resource names, each combination once.
    pub(crate) fn numa(&self, resource: &str) -> Vec<Vec<i64>> {
        let state = self.0.state.lock();
        let mut found = state.numa.get(resource).cloned().unwrap_or_default();
        found.dedup();
        found
    }

    /// Slots that are not well.
    pub(crate) fn sick(&self, resource: &str) -> Vec<String> {
        let state = self.0.state.lock();
        let slots = state.slots.get(resource).into_iter().flatten();
        slots
            .filter(|(_, well)| !well)
            .map(|(id, _)| id.clone())
            .collect()
    }

    /// The slots of a container.
    pub(crate) fn held(&self, uid: &str, container: &str) -> Vec<String> {
        let state = self.0.state.lock();
        let pod = state.pods.iter().find(|pod| pod.uid == uid).unwrap();
        let found = pod.containers.iter().find(|found| found.name == container);
        found.unwrap().ids.clone()
    }

    /// Admits a pod: one `Allocate` for each of its containers that asks, in the order of the spec.
    pub(crate) async fn admit(&self, pod: &Value) -> Result<(), Status> {
        let text = |path: &str| pod.pointer(path).unwrap().as_str().unwrap().to_owned();
        let mut admitted = Pod {
            namespace: text("/metadata/namespace"),
            name: text("/metadata/name"),
            uid: text("/metadata/uid"),
            containers: Vec::new(),
        };
        let mut reusable: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let none = Vec::new();
        let of = |key: &str| {
            let list = pod.pointer(key).and_then(Value::as_array).unwrap_or(&none);
            list.clone()
        };
        let init = of("/spec/initContainers").into_iter().map(|c| (c, true));
        let all = init.chain(of("/spec/containers").into_iter().map(|c| (c, false)));
        for (container, init) in all {
            let plain_init = init && container["restartPolicy"] != "Always";
            let limits = container["resources"]["limits"].as_object().cloned();
            for (resource, count) in limits.unwrap_or_default() {
                let Some(mut plugin) = self.0.state.lock().plugins.get(&resource).cloned() else {
                    continue;
                };
                let count: usize = count.as_str().unwrap().parse().unwrap();
                let reusable = reusable.entry(resource.clone()).or_default();
                let must: Vec<String> = reusable.iter().take(count).cloned().collect();
                let mut available = self.free(&resource, &admitted);
                available.extend(reusable.iter().cloned());
                let request = ContainerPreferredAllocationRequest {
                    available_device_i_ds: available,
                    must_include_device_i_ds: must,
                    allocation_size: i32::try_from(count).unwrap(),
                };
                let preferred = plugin
                    .get_preferred_allocation(PreferredAllocationRequest {
                        container_requests: vec![request],
                    })
                    .await?
                    .into_inner();
                let ids = preferred.container_responses[0].device_i_ds.clone();
                assert_eq!(ids.len(), count, "no slots for {resource}");
                let answer = plugin
                    .allocate(AllocateRequest {
                        container_requests: vec![ContainerAllocateRequest {
                            devices_ids: ids.clone(),
                        }],
                    })
                    .await?
                    .into_inner();
                for id in &ids {
                    reusable.retain(|other| other != id);
                    if plain_init {
                        reusable.push(id.clone());
                    }
                }
                admitted.containers.push(Container {
                    name: container["name"].as_str().unwrap().to_owned(),
                    plain_init,
                    resource,
                    ids,
                    answer: answer.container_responses[0].clone(),
                });
            }
        }
        self.0.state.lock().pods.push(admitted);
        self.record();
        Ok(())
    }

    fn free(&self, resource: &str, admitted: &Pod) -> Vec<String> {
        let state = self.0.state.lock();
        let held: Vec<&String> = state
            .pods
            .iter()
            .chain([admitted])
            .flat_map(|pod| &pod.containers)
            .filter(|container| container.resource == resource)
            .flat_map(|container| &container.ids)
            .collect();
        let slots = state.slots.get(resource).unwrap();
        let free = slots
            .iter()
            .filter(|(id, well)| *well && !held.contains(&id));
        free.map(|(id, _)| id.clone()).collect()
    }

    /// Writes its record of which pod holds which slots.
    pub(crate) fn record(&self) {
        let state = self.0.state.lock();
        let entries: Vec<Value> = state
            .pods
            .iter()
            .flat_map(|pod| {
                pod.containers.iter().map(|container| {
                    let answer = container.answer.encode_to_vec();
                    json!({
                        "PodUID": pod.uid,
                        "ContainerName": container.name,
                        "ResourceName": container.resource,
                        "DeviceIDs": {"-1": container.ids},
                        "AllocResp": base64::engine::general_purpose::STANDARD.encode(answer),
                    })
                })
            })
            .collect();
        let record =
            json!({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1});
        let path = self.device_plugins().join("kubelet_internal_checkpoint");
        std::fs::write(path, record.to_string()).unwrap();
    }

    /// A container starts, for the first time or again.
    pub(crate) async fn starts(&self, uid: &str, container: &str) -> Result<(), Status> {
        self.starts_within(uid, container, Duration::from_secs(30))
            .await
    }

    pub(crate) async fn starts_within(
        &self,
        uid: &str,
        container: &str,
        patience: Duration,
    ) -> Result<(), Status> {
        let held: Vec<Container> = {
            let state = self.0.state.lock();
            let pod = state.pods.iter().find(|pod| pod.uid == uid).unwrap();
            let own = pod.containers.iter().filter(|held| held.name == container);
            own.cloned().collect()
        };
        for held in held {
            let mut plugin = self.0.state.lock().plugins[&held.resource].clone();
            // In another order at each call.
            let mut ids = held.ids;
            ids.reverse();
            let mut request = Request::new(PreStartContainerRequest { devices_ids: ids });
            request.set_timeout(patience);
            plugin.pre_start_container(request).await?;
        }
        Ok(())
    }

    /// Names no pod any more.
    pub(crate) fn forget_holders(&self) {
        self.0.silent.store(true, Ordering::SeqCst);
        let path = self.device_plugins().join("kubelet_internal_checkpoint");
        std::fs::write(path, "{").unwrap();
    }

    /// A pod ends, and its slots are free.
    pub(crate) fn end(&self, uid: &str) {
        self.0.state.lock().pods.retain(|pod| pod.uid != uid);
        self.record();
    }
}

#[tonic::async_trait]
impl Registration for Kubelet {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        assert_eq!(request.version, "v1beta1");
        assert!(request.options.unwrap().pre_start_required);
        let path = self.device_plugins().join(&request.endpoint);
        let plugin = DevicePluginClient::new(connect(path).await);
        let resource = request.resource_name;
        {
            let mut state = self.0.state.lock();
            state.plugins.insert(resource.clone(), plugin.clone());
            state.registrations += 1;
        }
        let kubelet = self.clone();
        tokio::spawn(async move {
            let mut plugin = plugin;
            let Ok(list) = plugin.list_and_watch(Empty {}).await else {
                return;
            };
            let mut list = list.into_inner();
            while let Ok(Some(devices)) = list.message().await {
                let numa = devices.devices.iter().map(|device| {
                    let nodes = device.topology.iter().flat_map(|it| &it.nodes);
                    nodes.map(|node| node.id).collect()
                });
                let numa: Vec<Vec<i64>> = numa.collect();
                kubelet.0.state.lock().numa.insert(resource.clone(), numa);
                let devices = devices.devices.into_iter();
                let slots = devices.map(|device| (device.id, device.health == "Healthy"));
                let slots: Vec<(String, bool)> = slots.collect();
                kubelet.0.state.lock().slots.insert(resource.clone(), slots);
            }
            kubelet.0.ended.fetch_add(1, Ordering::SeqCst);
        });
        Ok(Response::new(Empty {}))
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Kubelet {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        let mut state = self.0.state.lock();
        if self.0.limited.load(Ordering::SeqCst) {
            let now = Instant::now();
            let passed = state
                .looked
                .replace(now)
                .map_or(1.0, |then| (now - then).as_secs_f64());
            state.tokens = (state.tokens + passed * 100.0).min(10.0);
            if state.tokens < 1.0 {
                self.0.refused.fetch_add(1, Ordering::SeqCst);
                return Err(Status::resource_exhausted("rejected by rate limit"));
            }
            state.tokens -= 1.0;
        }
        self.0.lists.fetch_add(1, Ordering::SeqCst);
        if self.0.silent.load(Ordering::SeqCst) {
            return Ok(Response::new(ListPodResourcesResponse::default()));
        }
        let pods = state.pods.iter().map(|pod| PodResources {
            name: pod.name.clone(),
            namespace: pod.namespace.clone(),
            containers: pod
                .containers
                .iter()
                .filter(|container| !container.plain_init)
                .map(|container| ContainerResources {
                    name: container.name.clone(),
                    // One entry for each slot, as for slots of different NUMA nodes.
                    devices: container
                        .ids
                        .iter()
                        .rev()
                        .map(|id| ContainerDevices {
                            resource_name: container.resource.clone(),
                            device_ids: vec![id.clone()],
                        })
                        .collect(),
                })
                .collect(),
        });
        Ok(Response::new(ListPodResourcesResponse {
            pod_resources: pods.collect(),
        }))
    }
}
