//! The calls of the kubelet, one service for each resource. Decodes, asks, encodes; never decides.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::stream::{once, pending, unfold};
use futures_util::{Stream, StreamExt as _};
use server::TraceContext;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};
use tonic::metadata::MetadataMap;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::metrics::CallOutcome;
use super::prepare::Call;
use super::{Plugin, slots};
use crate::delivery::Allotted;
use crate::proto::device_plugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use crate::proto::device_plugin::{
    AllocateRequest, AllocateResponse, CdiDevice, ContainerAllocateResponse,
    ContainerPreferredAllocationResponse, DevicePluginOptions, Empty, ListAndWatchResponse, Mount,
    PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse,
};
use crate::proto::front::behind_server::{Behind, BehindServer};
use crate::proto::front::{Heard, Told};

/// The kubelet's patience with `PreStartContainer`, where it does not say.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often and how long a failing allotment is tried: its failure costs the pod.
const TRIES: u32 = 5;
const BETWEEN: Duration = Duration::from_millis(200);

/// How long calls may take to end when the plugin stops.
const END: Duration = Duration::from_secs(2);

/// The metadata with the resource that a call is about.
pub(crate) const RESOURCE: &str = "vgpu-resource";

/// The calls that the kubelet is to make.
pub(crate) const OPTIONS: DevicePluginOptions = DevicePluginOptions {
    pre_start_required: true,
    get_preferred_allocation_available: true,
};

/// Serves one front, until `stop`.
pub(super) async fn serve(
    plugin: &Plugin,
    front: UnixStream,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    let service = PluginService {
        plugin: plugin.clone(),
        over: watch::Sender::new(false),
    };
    let (over, mut stopped) = (service.over.clone(), service.over.subscribe());
    // The one connection there will be; a server whose connections come to an end stops.
    let incoming = once(async { Ok::<_, io::Error>(front) }).chain(pending());
    let server = Server::builder()
        .add_service(DevicePluginServer::new(service.clone()))
        .add_service(BehindServer::new(service));
    let until = {
        let mut stopped = stopped.clone();
        async move { drop(stopped.wait_for(|stopped| *stopped).await) }
    };
    let mut serving = tokio::spawn(async move {
        let ended = server
            .serve_with_incoming_shutdown(Box::pin(incoming), until)
            .await;
        if let Err(error) = ended {
            tracing::error!(%error, "the front is no longer served");
        }
    });
    let stopping = async move {
        stop.await;
        over.send_replace(true);
    };
    let stopping = tokio::spawn(stopping);
    drop(stopped.wait_for(|stopped| *stopped).await);
    if timeout(END, &mut serving).await.is_err() {
        serving.abort();
    }
    stopping.abort();
}

/// All resources.
#[derive(Clone)]
struct PluginService {
    plugin: Plugin,
    /// True once the plugin stops: lists that are watched have no end of their own.
    over: watch::Sender<bool>,
}

impl PluginService {
    /// The resource of a call.
    fn resource(&self, metadata: &MetadataMap) -> Result<String, Status> {
        let named = metadata.get(RESOURCE).and_then(|name| name.to_str().ok());
        let named = named.unwrap_or_default();
        if self.plugin.0.lists.contains_key(named) {
            return Ok(named.to_owned());
        }
        Err(Status::not_found(format!("{named:?} is not served here")))
    }

    fn counted<T>(
        &self,
        call: &'static str,
        begun: Instant,
        answer: &Result<T, Status>,
        trace: Option<TraceContext>,
    ) {
        let outcome = match answer {
            Ok(_) => CallOutcome::Ok,
            Err(status) if status.code() == tonic::Code::FailedPrecondition => CallOutcome::Refused,
            Err(_) => CallOutcome::Failed,
        };
        let metrics = &self.plugin.0.parts.metrics;
        metrics.call(call, outcome, begun.elapsed(), trace);
    }

    async fn allot(
        &self,
        resource: &str,
        ids: Vec<String>,
    ) -> Result<ContainerAllocateResponse, Status> {
        let mut problem = String::new();
        for attempt in 0..TRIES {
            if attempt > 0 {
                tokio::time::sleep(BETWEEN).await;
            }
            let (plugin, resource, ids) = (self.plugin.clone(), resource.to_owned(), ids.clone());
            let allotted = spawn_blocking(move || {
                let began = SystemTime::now();
                let (name, allotted) = plugin.0.parts.giver.allot()?;
                // An allotment that is not in the file is in memory, and in the kubelet's record of our answer.
                drop(plugin.0.store.add(&name, &resource, &ids));
                plugin.0.changed.notify_one();
                let traces = &plugin.0.parts.traces;
                plugin.0.handed.out(traces, &name.0, began);
                tracing::info!(
                    name = name.0,
                    resource,
                    slots = ids.join(","),
                    "allotted slots"
                );
                anyhow::Ok(allotted)
            });
            match allotted.await {
                Ok(Ok(allotted)) => return Ok(encode(allotted)),
                Ok(Err(why)) => problem = why.to_string(),
                Err(_) => "the agent's log says why".clone_into(&mut problem),
            }
            tracing::error!(problem, "cannot allot slots");
        }
        Err(Status::internal(format!(
            "cannot allot slots of {resource}: {problem}"
        )))
    }
}

fn encode(allotted: Allotted) -> ContainerAllocateResponse {
    let mounts = allotted.mounts.into_iter().map(|mount| Mount {
        container_path: mount.container.to_string_lossy().into_owned(),
        host_path: mount.host.to_string_lossy().into_owned(),
        read_only: mount.read_only,
    });
    let devices = allotted.cdi_devices.into_iter();
    ContainerAllocateResponse {
        envs: allotted.env.into_iter().collect(),
        mounts: mounts.collect(),
        cdi_devices: devices.map(|name| CdiDevice { name }).collect(),
        ..ContainerAllocateResponse::default()
    }
}

/// How long the caller waits, as it says: digits and a unit.
pub(crate) fn patience(metadata: &MetadataMap) -> Duration {
    let said = metadata
        .get("grpc-timeout")
        .and_then(|value| value.to_str().ok())
        .and_then(|text| {
            let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
            let number: u64 = digits.parse().ok()?;
            Some(match unit {
                "H" => Duration::from_secs(number.saturating_mul(3600)),
                "M" => Duration::from_secs(number.saturating_mul(60)),
                "S" => Duration::from_secs(number),
                "m" => Duration::from_millis(number),
                "u" => Duration::from_micros(number),
                "n" => Duration::from_nanos(number),
                _ => return None,
            })
        });
    said.unwrap_or(PATIENCE).min(PATIENCE)
}

type Lists = watch::Receiver<Option<Arc<ListAndWatchResponse>>>;

#[tonic::async_trait]
impl DevicePlugin for PluginService {
    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(OPTIONS))
    }

    type ListAndWatchStream =
        Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn list_and_watch(
        &self,
        request: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let resource = self.resource(request.metadata())?;
        let Some(list) = self.plugin.0.lists.get(&resource) else {
            return Err(Status::not_found(resource));
        };
        let mut lists = list.subscribe();
        lists.mark_changed();
        let begun = (lists, self.over.subscribe());
        let stream = unfold(begun, async |(mut lists, mut over)| {
            let next: Option<Arc<ListAndWatchResponse>> = tokio::select! {
                next = next(&mut lists) => next,
                _ = over.wait_for(|over| *over) => None,
            };
            let response = next.map(|list| Ok((*list).clone()))?;
            Some((response, (lists, over)))
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let begun = Instant::now();
        let resource = self.resource(request.metadata())?;
        let all = self.plugin.0.store.all();
        let requests = request.into_inner().container_requests;
        let responses = requests.into_iter().map(|request| {
            let size = usize::try_from(request.allocation_size).unwrap_or(0);
            ContainerPreferredAllocationResponse {
                device_i_ds: slots::preferred(
                    &request.available_device_i_ds,
                    &request.must_include_device_i_ds,
                    size,
                    &all,
                    &resource,
                ),
            }
        });
        let answer = Ok(PreferredAllocationResponse {
            container_responses: responses.collect(),
        });
        self.counted("get_preferred_allocation", begun, &answer, None);
        answer.map(Response::new)
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let begun = Instant::now();
        let resource = self.resource(request.metadata())?;
        let mut responses = Vec::new();
        let mut failed = None;
        for request in request.into_inner().container_requests {
            match self.allot(&resource, request.devices_ids).await {
                Ok(response) => responses.push(response),
                Err(status) => {
                    failed = Some(status);
                    break;
                }
            }
        }
        let answer = match failed {
            None => Ok(AllocateResponse {
                container_responses: responses,
            }),
            Some(status) => Err(status),
        };
        self.counted("allocate", begun, &answer, None);
        answer.map(Response::new)
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        let begun = Instant::now();
        let resource = self.resource(request.metadata())?;
        let deadline = begun + patience(request.metadata());
        let called = request.into_inner().devices_ids;
        let call = Call::new(&self.plugin, &resource, called, deadline);
        let prepared = call.prepare().await;
        let answer = match prepared.answer {
            Ok(()) => Ok(PreStartContainerResponse {}),
            Err(refusal) => {
                tracing::warn!(%refusal, resource, "container not started");
                Err(Status::failed_precondition(format!("vgpu: {refusal}")))
            }
        };
        self.counted("pre_start_container", begun, &answer, prepared.trace);
        answer.map(Response::new)
    }
}

#[tonic::async_trait]
impl Behind for PluginService {
    async fn tell(&self, request: Request<Told>) -> Result<Response<Heard>, Status> {
        let told = request.into_inner();
        let plugin = &self.plugin.0;
        plugin.parts.metrics.told(&told);
        let watched = told.resources.into_iter().filter(|resource| resource.now);
        let watched = watched.map(|resource| resource.resource).collect();
        plugin.registered.send_if_modified(|registered| {
            let changed = *registered != watched;
            *registered = watched;
            changed
        });
        Ok(Response::new(Heard {}))
    }
}

/// The next list; `None` if there will be no other.
async fn next(lists: &mut Lists) -> Option<Arc<ListAndWatchResponse>> {
    loop {
        lists.changed().await.ok()?;
        let list = lists.borrow_and_update().clone();
        if list.is_some() {
            return list;
        }
    }
}
