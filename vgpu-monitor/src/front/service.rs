//! The kubelet's calls, one service for each resource: lists from the front's own memory, everything else from the
//! process behind. Never decides.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::Stream;
use futures_util::stream::unfold;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use super::calls::{Client, ask};
use super::known::{Known, List};
use crate::plugin::{OPTIONS, patience, slots};
use crate::proto::device_plugin::device_plugin_server::DevicePlugin;
use crate::proto::device_plugin::{
    AllocateRequest, AllocateResponse, ContainerPreferredAllocationResponse, DevicePluginOptions,
    Empty, ListAndWatchResponse, PreStartContainerRequest, PreStartContainerResponse,
    PreferredAllocationRequest, PreferredAllocationResponse,
};

/// One resource, for as long as one socket of it lives.
#[derive(Clone)]
pub(super) struct FrontService {
    known: Known,
    resource: String,
    /// The number of streams that watch the list.
    watchers: watch::Sender<usize>,
    /// True once the socket is about to be removed.
    over: watch::Sender<bool>,
}

impl FrontService {
    pub(super) fn new(known: &Known, resource: &str) -> Self {
        Self {
            known: known.clone(),
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

#[tonic::async_trait]
impl DevicePlugin for FrontService {
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
        let Some(mut lists) = self.known.list(&self.resource) else {
            return Err(Status::not_found(format!(
                "{} is not served here",
                self.resource
            )));
        };
        lists.mark_changed();
        let begun = (lists, self.over.subscribe(), Watching::new(&self.watchers));
        let stream = unfold(begun, async |(mut lists, mut over, watching)| {
            let next: List = tokio::select! {
                next = next(&mut lists) => next,
                _ = over.wait_for(|over| *over) => None,
            };
            let response = next.map(|list| Ok(Arc::unwrap_or_clone(list)))?;
            Some((response, (lists, over, watching)))
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let question = request.into_inner();
        let call = |mut client: Client, request| async move {
            client.get_preferred_allocation(request).await
        };
        match ask(&self.known, &self.resource, &question, None, call).await {
            // An error would cost the pod: any free slots do.
            Err(_) => Ok(Response::new(any(&question, &self.resource))),
            answered => answered,
        }
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let question = request.into_inner();
        let call = |mut client: Client, request| async move { client.allocate(request).await };
        ask(&self.known, &self.resource, &question, None, call).await
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        let deadline = Instant::now() + patience(request.metadata());
        let question = request.into_inner();
        let call =
            |mut client: Client, request| async move { client.pre_start_container(request).await };
        ask(&self.known, &self.resource, &question, Some(deadline), call).await
    }
}

/// Free slots as good as any.
fn any(question: &PreferredAllocationRequest, resource: &str) -> PreferredAllocationResponse {
    let responses = question.container_requests.iter().map(|request| {
        let size = usize::try_from(request.allocation_size).unwrap_or(0);
        let (free, must) = (
            &request.available_device_i_ds,
            &request.must_include_device_i_ds,
        );
        ContainerPreferredAllocationResponse {
            device_i_ds: slots::preferred(free, must, size, &[], resource),
        }
    });
    PreferredAllocationResponse {
        container_responses: responses.collect(),
    }
}

/// The next list; none when there will be no other.
async fn next(lists: &mut watch::Receiver<List>) -> List {
    loop {
        lists.changed().await.ok()?;
        let list = lists.borrow_and_update().clone();
        if list.is_some() {
            return list;
        }
    }
}
