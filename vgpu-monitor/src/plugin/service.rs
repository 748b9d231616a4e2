//! The calls of the kubelet, one service for each resource. Decodes, asks, encodes; never decides.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::Stream;
use futures_util::stream::unfold;
use server::TraceContext;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use super::metrics::Outcome;
use super::prepare::Call;
use super::{Plugin, slots};
use crate::delivery::Allotted;
use crate::proto::device_plugin::device_plugin_server::DevicePlugin;
use crate::proto::device_plugin::{
    AllocateRequest, AllocateResponse, CdiDevice, ContainerAllocateResponse,
    ContainerPreferredAllocationResponse, DevicePluginOptions, Empty, ListAndWatchResponse, Mount,
    PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse,
};

/// The kubelet's patience with `PreStartContainer`, where it does not say.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often and how long a failing allotment is tried: its failure costs the pod.
const TRIES: u32 = 5;
const BETWEEN: Duration = Duration::from_millis(200);

/// The calls that the kubelet is to make.
pub(super) const OPTIONS: DevicePluginOptions = DevicePluginOptions {
    pre_start_required: true,
    get_preferred_allocation_available: true,
};

/// One resource, for as long as one socket of it lives.
#[derive(Clone)]
pub(super) struct Service {
    plugin: Plugin,
    resource: String,
    /// The number of streams that watch the list.
    watchers: watch::Sender<usize>,
    /// True once the socket is about to be removed.
    over: watch::Sender<bool>,
}

impl Service {
    pub(super) fn new(plugin: &Plugin, resource: &str) -> Self {
        Self {
            plugin: plugin.clone(),
            resource: resource.to_owned(),
            watchers: watch::Sender::new(0),
            over: watch::Sender::new(false),
        }
    }

    /// The number of streams that watch the list: a kubelet without one treats the slots as gone.
    pub(super) fn watchers(&self) -> watch::Receiver<usize> {
        self.watchers.subscribe()
    }

    /// Ends the watched lists, which have no end of their own. If the kubelet still has a list of an older
    /// socket when it knows the new one, it treats the new one as gone when the older one goes.
    pub(super) fn end(&self) {
        self.over.send_replace(true);
    }

    fn counted<T>(
        &self,
        call: &'static str,
        begun: Instant,
        answer: &Result<T, Status>,
        trace: Option<TraceContext>,
    ) {
        let outcome = match answer {
            Ok(_) => Outcome::Ok,
            Err(status) if status.code() == tonic::Code::FailedPrecondition => Outcome::Refused,
            Err(_) => Outcome::Failed,
        };
        let metrics = &self.plugin.0.parts.metrics;
        metrics.call(call, outcome, begun.elapsed(), trace);
    }

    async fn allot(&self, ids: Vec<String>) -> Result<ContainerAllocateResponse, Status> {
        let mut problem = String::new();
        for attempt in 0..TRIES {
            if attempt > 0 {
                tokio::time::sleep(BETWEEN).await;
            }
            let (plugin, resource, ids) = (self.plugin.clone(), self.resource.clone(), ids.clone());
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
            "cannot allot slots of {}: {problem}",
            self.resource
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
fn patience(metadata: &MetadataMap) -> Duration {
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

/// Counts one watcher, for as long as it lives.
struct Watching(watch::Sender<usize>);

impl Watching {
    fn new(watchers: &watch::Sender<usize>) -> Self {
        watchers.send_modify(|watchers| *watchers += 1);
        Self(watchers.clone())
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.0
            .send_modify(|watchers| *watchers = watchers.saturating_sub(1));
    }
}

type Lists = watch::Receiver<Option<Arc<ListAndWatchResponse>>>;

#[tonic::async_trait]
impl DevicePlugin for Service {
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
        _: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let Some(list) = self.plugin.0.lists.get(&self.resource) else {
            return Err(Status::not_found(format!(
                "{} is not served here",
                self.resource
            )));
        };
        let mut lists = list.subscribe();
        lists.mark_changed();
        let begun = (lists, self.over.subscribe(), Watching::new(&self.watchers));
        let stream = unfold(begun, async |(mut lists, mut over, watching)| {
            let next: Option<Arc<ListAndWatchResponse>> = tokio::select! {
                next = next(&mut lists) => next,
                _ = over.wait_for(|over| *over) => None,
            };
            let response = next.map(|list| Ok((*list).clone()))?;
            Some((response, (lists, over, watching)))
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let begun = Instant::now();
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
                    &self.resource,
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
        let mut responses = Vec::new();
        let mut failed = None;
        for request in request.into_inner().container_requests {
            match self.allot(request.devices_ids).await {
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
        let deadline = begun + patience(request.metadata());
        let called = request.into_inner().devices_ids;
        let call = Call::new(&self.plugin, &self.resource, called, deadline);
        let prepared = call.prepare().await;
        let answer = match prepared.answer {
            Ok(()) => Ok(PreStartContainerResponse {}),
            Err(refusal) => {
                tracing::warn!(%refusal, resource = self.resource, "container not started");
                Err(Status::failed_precondition(format!("vgpu: {refusal}")))
            }
        };
        self.counted("pre_start_container", begun, &answer, prepared.trace);
        answer.map(Response::new)
    }
}

/// The next list; none when there will be no other.
async fn next(lists: &mut Lists) -> Option<Arc<ListAndWatchResponse>> {
    loop {
        lists.changed().await.ok()?;
        let list = lists.borrow_and_update().clone();
        if list.is_some() {
            return list;
        }
    }
}
