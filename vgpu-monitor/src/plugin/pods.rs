//! The kubelet's list of the pods of this node and their slots. One question is in flight at a time, and
//! its answer is for every caller that waited when it was sent: the kubelet answers 100 questions a second
//! for all programs of the node together. Never trusts which container an answer names: see `matching`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;
use tonic::transport::Channel;

use super::matching::PodSlots;
use super::metrics::PluginMetrics;
use super::socket::connect;
use crate::collect::SourceError;
use crate::proto::pod_resources::pod_resources_lister_client::PodResourcesListerClient;
use crate::proto::pod_resources::{ListPodResourcesRequest, ListPodResourcesResponse};

/// The kubelet's own bound on an answer.
const MOST_BYTES: usize = 16 << 20;
/// Longest wait for one answer.
const ONE: Duration = Duration::from_secs(5);
/// Between two tries when the kubelet refuses for its rate; it gives one each 10 ms.
const AGAIN: Duration = Duration::from_millis(25);
/// A question is repeated for this long before its waiters get an error.
const PATIENCE: Duration = Duration::from_secs(20);

/// Pods and their slots.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pods(Vec<(String, String, Vec<ContainerSlots>)>);

/// Container, resource and slots.
type ContainerSlots = (String, String, Vec<String>);

impl Pods {
    /// From the kubelet's answer.
    pub fn of(response: ListPodResourcesResponse) -> Self {
        let pods = response.pod_resources.into_iter().map(|pod| {
            let mut held: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
            for container in pod.containers {
                for devices in container.devices {
                    held.entry((container.name.clone(), devices.resource_name))
                        .or_default()
                        .extend(devices.device_ids);
                }
            }
            let held = held.into_iter().map(|((container, resource), mut ids)| {
                ids.sort();
                ids.dedup();
                (container, resource, ids)
            });
            (pod.namespace, pod.name, held.collect())
        });
        Self(pods.collect())
    }

    /// The pods that hold slots of this resource.
    pub fn holders(&self, resource: &str) -> Vec<PodSlots> {
        let holders = self.0.iter().map(|(namespace, name, held)| PodSlots {
            namespace: namespace.clone(),
            name: name.clone(),
            slots: held
                .iter()
                .filter(|(_, of, ids)| of == resource && !ids.is_empty())
                .map(|(container, _, ids)| (container.clone(), ids.clone()))
                .collect(),
        });
        holders.filter(|holder| !holder.slots.is_empty()).collect()
    }

    /// Whether a pod of this name is on the node.
    pub fn has(&self, namespace: &str, name: &str) -> bool {
        self.0
            .iter()
            .any(|(of, named, _)| of == namespace && named == name)
    }
}

/// Asks the kubelet. A clone asks through the same queue.
#[derive(Debug, Clone)]
pub struct Lister(mpsc::Sender<Waiter>);

type Waiter = oneshot::Sender<Result<Arc<Pods>, ListError>>;

/// Why the kubelet did not list its pods.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// It refused because too many clients ask it; the question is repeated.
    #[error("refuses for its rate: too many ask it on this node")]
    RateLimited,
    /// It did not answer.
    #[error("no answer in {} s", .0.as_secs())]
    NoAnswer(Duration),
    /// It answered with an error, or cannot be reached.
    #[error("{0}")]
    Failed(String),
    /// The agent stops.
    #[error("the task that asks the kubelet has ended")]
    Stopping,
}

impl From<ListError> for SourceError {
    fn from(error: ListError) -> Self {
        Self::Kubelet(error.to_string())
    }
}

/// Where the questions go: tests have a place of their own.
pub trait AskKubelet: Send + 'static {
    /// One question and its answer.
    fn ask(&mut self) -> impl Future<Output = Result<Pods, ListError>> + Send;
}

impl Lister {
    /// Starts the task that asks on this socket. Needs a running tokio.
    pub fn start(socket: PathBuf, metrics: PluginMetrics) -> Self {
        let ask = Socket {
            path: socket,
            channel: None,
        };
        Self::start_with(ask, metrics)
    }

    /// The same with another source.
    pub fn start_with(ask: impl AskKubelet, metrics: PluginMetrics) -> Self {
        let (send, receive) = mpsc::channel(1024);
        tokio::spawn(serve(receive, ask, metrics));
        Self(send)
    }

    /// All pods and their slots, as of this moment or later.
    ///
    /// # Errors
    ///
    /// When the kubelet did not answer.
    pub async fn pods(&self) -> Result<Arc<Pods>, ListError> {
        let (send, receive) = oneshot::channel();
        self.0.send(send).await.map_err(|_| ListError::Stopping)?;
        receive.await.map_err(|_| ListError::Stopping)?
    }
}

async fn serve(
    mut waiting: mpsc::Receiver<Waiter>,
    mut ask: impl AskKubelet,
    metrics: PluginMetrics,
) {
    while let Some(first) = waiting.recv().await {
        let begun = Instant::now();
        let mut waiters = vec![first];
        let answer = loop {
            // The question that is sent now serves every caller that has come by now; a later caller may be
            // newer than its answer, and waits for the next.
            while let Ok(waiter) = waiting.try_recv() {
                waiters.push(waiter);
            }
            match timeout(ONE, ask.ask()).await {
                Ok(Ok(pods)) => break Ok(Arc::new(pods)),
                Ok(Err(ListError::RateLimited)) => metrics.pod_resources_refused(),
                Ok(Err(problem)) if begun.elapsed() >= PATIENCE / 10 => break Err(problem),
                Ok(Err(problem)) => {
                    tracing::debug!(%problem, "the kubelet did not list its pods");
                }
                Err(_) if begun.elapsed() >= PATIENCE / 2 => break Err(ListError::NoAnswer(ONE)),
                Err(_) => {}
            }
            if begun.elapsed() >= PATIENCE {
                break Err(ListError::RateLimited);
            }
            sleep(AGAIN).await;
        };
        metrics.pod_resources_asked(begun.elapsed(), answer.is_ok());
        for waiter in waiters {
            // A caller that gave up has dropped its receiver.
            drop(waiter.send(answer.clone()));
        }
    }
}

struct Socket {
    path: PathBuf,
    channel: Option<PodResourcesListerClient<Channel>>,
}

impl AskKubelet for Socket {
    async fn ask(&mut self) -> Result<Pods, ListError> {
        let mut client = match self.channel.take() {
            Some(client) => client,
            None => {
                let channel = connect(&self.path).await.map_err(|error| {
                    let why = std::error::Error::source(&error)
                        .map_or_else(|| error.to_string(), ToString::to_string);
                    ListError::Failed(format!("{}: {why}", self.path.display()))
                })?;
                PodResourcesListerClient::new(channel).max_decoding_message_size(MOST_BYTES)
            }
        };
        match client.list(ListPodResourcesRequest {}).await {
            Ok(response) => {
                self.channel = Some(client);
                Ok(Pods::of(response.into_inner()))
            }
            Err(status) if status.code() == Code::ResourceExhausted => {
                self.channel = Some(client);
                Err(ListError::RateLimited)
            }
            Err(status) => Err(ListError::Failed(status.message().to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::pod_resources::{ContainerDevices, ContainerResources, PodResources};

    fn devices(resource: &str, ids: &[&str]) -> ContainerDevices {
        ContainerDevices {
            resource_name: resource.to_owned(),
            device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        }
    }

    fn pod(
        namespace: &str,
        name: &str,
        container: &str,
        held: &[ContainerDevices],
    ) -> PodResources {
        PodResources {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            containers: vec![ContainerResources {
                name: container.to_owned(),
                devices: held.to_vec(),
            }],
        }
    }

    fn pods() -> Pods {
        Pods::of(ListPodResourcesResponse {
            pod_resources: vec![
                // The kubelet lists the slots of a container by NUMA node, in any order.
                pod(
                    "a",
                    "p",
                    "c",
                    &[devices("gpu", &["s2", "s0"]), devices("gpu", &["s2", "s1"])],
                ),
                pod(
                    "b",
                    "p",
                    "c",
                    &[devices("other", &["s0"]), devices("gpu", &[])],
                ),
                pod("c", "q", "d", &[]),
            ],
        })
    }

    #[test]
    fn holders_are_pods_with_slots_of_that_resource() {
        let held = |resource| -> Vec<_> {
            let holders = pods().holders(resource).into_iter();
            let named = holders.map(|pod| (format!("{}/{}", pod.namespace, pod.name), pod.slots));
            named
                .map(|(name, slots)| format!("{name} {slots:?}"))
                .collect()
        };
        assert_eq!(held("gpu"), [r#"a/p {"c": ["s0", "s1", "s2"]}"#]);
        assert_eq!(held("other"), [r#"b/p {"c": ["s0"]}"#]);
        assert_eq!(held("none"), Vec::<String>::new());
    }

    #[test]
    fn pod_is_known_by_namespace_and_name() {
        let pods = pods();
        assert!(pods.has("a", "p") && pods.has("b", "p") && pods.has("c", "q"));
        assert!(!pods.has("c", "p") && !pods.has("a", "q") && !pods.has("", "p"));
    }
}
