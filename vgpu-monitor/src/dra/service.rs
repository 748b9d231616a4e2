//! The kubelet's calls, in both versions of the protocol, and the stream of the devices' health. Never decides: `prepare`
//! does.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use futures_util::stream::unfold;
use futures_util::{Stream, StreamExt as _};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::checkpoint::Checkpoint;
use super::claim::Asked;
use super::metrics::Metrics;
use super::prepare::{PrepareError, Preparer, ReadyDevice};
use super::{DRIVER, partitions};
use crate::node_gpus::{Health, Healths, Inventories, Inventory, KnownGpu};
use crate::proto::plugin_registration::registration_server::Registration;
use crate::proto::plugin_registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use crate::proto::{dra_health, dra_health_v1, dra_v1, dra_v1beta1};

/// The services that the driver announces to the kubelet, which uses the first one of each kind that it supports.
const SERVICES: [&str; 4] = [
    "v1.DRAPlugin",
    "v1beta1.DRAPlugin",
    "v1.DRAResourceHealth",
    "v1alpha1.DRAResourceHealth",
];

/// Answers the kubelet. Clones are the same.
#[derive(Debug, Clone)]
pub struct Service {
    /// Makes claims ready.
    pub preparer: Preparer,
    /// The claims that are ready.
    pub checkpoint: Arc<Checkpoint>,
    /// Name of the node, which is the pool's.
    pub node: String,
    /// The node's GPUs.
    pub inventories: Inventories,
    /// Which of them are sick.
    pub healths: Healths,
    /// Counts.
    pub metrics: Metrics,
}

impl Service {
    /// Makes each claim ready, and answers for each.
    async fn prepare(
        &self,
        claims: Vec<Asked>,
    ) -> Vec<(String, Result<Vec<ReadyDevice>, PrepareError>)> {
        let one = async |asked: &Asked| {
            let begun = Instant::now();
            let answer = self.preparer.prepare(asked, &claims).await;
            self.metrics
                .called("prepare", begun.elapsed(), answer.is_ok());
            if let Err(why) = &answer {
                tracing::warn!(claim = %asked, uid = asked.uid, %why, "the claim is not made ready");
            }
            (asked.uid.clone(), answer)
        };
        let answers = join_all(claims.iter().map(one)).await;
        self.metrics.claims(self.checkpoint.count());
        answers
    }

    /// Takes each claim away, and answers for each: a text where it could not be.
    async fn unprepare(&self, claims: Vec<Asked>) -> Vec<(String, String)> {
        let one = async |asked: &Asked| {
            let begun = Instant::now();
            let answer = self.preparer.unprepare(asked).await;
            self.metrics
                .called("unprepare", begun.elapsed(), answer.is_ok());
            let error = match answer {
                Ok(()) => String::new(),
                Err(why) => {
                    tracing::warn!(claim = %asked, uid = asked.uid, %why, "the claim is not taken away");
                    why.to_string()
                }
            };
            (asked.uid.clone(), error)
        };
        let answers = join_all(claims.iter().map(one)).await;
        self.metrics.claims(self.checkpoint.count());
        answers
    }
}

/// The service of one version of the protocol.
macro_rules! serve {
    ($proto:ident, $server:path, $($share_id:ident)?) => {
        #[tonic::async_trait]
        impl $server for Service {
            async fn node_prepare_resources(
                &self,
                request: Request<$proto::NodePrepareResourcesRequest>,
            ) -> Result<Response<$proto::NodePrepareResourcesResponse>, Status> {
                let claims = request.into_inner().claims.into_iter();
                let claims = claims.map(|claim| Asked {
                    namespace: claim.namespace,
                    name: claim.name,
                    uid: claim.uid,
                });
                let device = |device: ReadyDevice| $proto::Device {
                    request_names: vec![device.request],
                    pool_name: self.node.clone(),
                    device_name: device.device,
                    cdi_device_ids: vec![device.cdi_device],
                    $($share_id: device.share_id,)?
                };
                let answers = self.prepare(claims.collect()).await.into_iter();
                let answers = answers.map(|(uid, answer)| {
                    let answer = match answer {
                        Ok(devices) => $proto::NodePrepareResourceResponse {
                            devices: devices.into_iter().map(device).collect(),
                            error: String::new(),
                        },
                        Err(why) => $proto::NodePrepareResourceResponse {
                            devices: Vec::new(),
                            error: why.to_string(),
                        },
                    };
                    (uid, answer)
                });
                let claims: HashMap<_, _> = answers.collect();
                Ok(Response::new($proto::NodePrepareResourcesResponse { claims }))
            }

            async fn node_unprepare_resources(
                &self,
                request: Request<$proto::NodeUnprepareResourcesRequest>,
            ) -> Result<Response<$proto::NodeUnprepareResourcesResponse>, Status> {
                let claims = request.into_inner().claims.into_iter();
                let claims = claims.map(|claim| Asked {
                    namespace: claim.namespace,
                    name: claim.name,
                    uid: claim.uid,
                });
                let answers = self.unprepare(claims.collect()).await.into_iter();
                let answers = answers
                    .map(|(uid, error)| (uid, $proto::NodeUnprepareResourceResponse { error }));
                let claims: HashMap<_, _> = answers.collect();
                Ok(Response::new($proto::NodeUnprepareResourcesResponse { claims }))
            }
        }
    };
}

serve!(dra_v1, dra_v1::dra_plugin_server::DraPlugin, share_id);
serve!(dra_v1beta1, dra_v1beta1::dra_plugin_server::DraPlugin,);

/// The health of a device, for every version of the protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
struct DeviceState {
    /// Its name in the node's pool.
    device: String,
    /// Why it is not to be used; `None` for a healthy one.
    sick: Option<String>,
}

/// The stream of the health of one version of the protocol.
macro_rules! serve_health {
    ($proto:ident) => {
        #[tonic::async_trait]
        impl $proto::dra_resource_health_server::DraResourceHealth for Service {
            type NodeWatchResourcesStream = Pin<
                Box<dyn Stream<Item = Result<$proto::NodeWatchResourcesResponse, Status>> + Send>,
            >;

            async fn node_watch_resources(
                &self,
                _: Request<$proto::NodeWatchResourcesRequest>,
            ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
                let node = self.node.clone();
                let stream = self.states().map(move |(states, seconds)| {
                    let device = |state: DeviceState| $proto::DeviceHealth {
                        device: Some($proto::DeviceIdentifier {
                            pool_name: node.clone(),
                            device_name: state.device,
                        }),
                        health: match &state.sick {
                            Some(_) => $proto::HealthStatus::Unhealthy,
                            None => $proto::HealthStatus::Healthy,
                        }
                        .into(),
                        last_updated_time: seconds,
                        // As long as the stream lives, what was said last holds: nothing is repeated.
                        health_check_timeout_seconds: NEVER,
                        message: state.sick.unwrap_or_default(),
                    };
                    let devices = states.into_iter().map(device).collect();
                    Ok($proto::NodeWatchResourcesResponse { devices })
                });
                Ok(Response::new(Box::pin(stream)))
            }
        }
    };
}

serve_health!(dra_health);
serve_health!(dra_health_v1);

impl Service {
    /// The health of all devices with the time, in seconds since 1970: now, and at each change.
    fn states(&self) -> impl Stream<Item = (Vec<DeviceState>, i64)> + Send + use<> {
        let (mut inventories, mut healths) = (self.inventories.clone(), self.healths.clone());
        inventories.mark_changed();
        healths.mark_changed();
        unfold(
            (inventories, healths),
            async |(mut inventories, mut healths)| loop {
                tokio::select! {
                    changed = inventories.changed() => changed.ok()?,
                    changed = healths.changed() => changed.ok()?,
                }
                let inventory = inventories.borrow_and_update().clone();
                let health = healths.borrow_and_update().clone();
                if let Some(inventory) = inventory {
                    let now = SystemTime::now().duration_since(UNIX_EPOCH);
                    let seconds = i64::try_from(now.unwrap_or_default().as_secs());
                    let states = all_states(&inventory, &health);
                    return Some((
                        (states, seconds.unwrap_or(i64::MAX)),
                        (inventories, healths),
                    ));
                }
            },
        )
    }
}

/// The health of every device.
fn all_states(inventory: &Inventory, health: &Health) -> Vec<DeviceState> {
    let states = |gpu: &KnownGpu| {
        let uuid = gpu.device.id.as_str();
        let unnamed = || (!gpu.device.healthy).then(|| String::from("the GPU is not healthy"));
        let sick = health.get(uuid).map(|sick| sick.reason.clone());
        let sick = sick.or_else(unnamed);
        let devices = partitions::device_names(gpu).into_iter();
        devices.map(move |device| DeviceState {
            device,
            sick: sick.clone(),
        })
    };
    inventory.gpus.iter().flat_map(states).collect()
}

/// Seconds after which the kubelet would call the health unknown: a year.
const NEVER: i64 = 31_536_000;

/// What the kubelet has said of the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Registered {
    /// The kubelet has not found the driver yet.
    NotYet,
    /// The kubelet calls the driver.
    Accepted,
    /// The kubelet does not take the driver, and says why.
    Refused(String),
}

/// How the kubelet gets to know the driver.
#[derive(Debug, Clone)]
pub(super) struct Introduction {
    /// The socket on which the services are.
    pub(super) endpoint: String,
    /// Whether the kubelet has taken the driver, or why not.
    pub(super) registration: watch::Sender<Registered>,
}

#[tonic::async_trait]
impl Registration for Introduction {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: String::from("DRAPlugin"),
            name: DRIVER.to_owned(),
            endpoint: self.endpoint.clone(),
            supported_versions: SERVICES.map(str::to_owned).to_vec(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus {
            plugin_registered,
            error,
        } = request.into_inner();
        if plugin_registered {
            tracing::info!("registered with the kubelet");
            self.registration.send_replace(Registered::Accepted);
        } else {
            tracing::error!(error, "the kubelet did not accept the driver");
            self.registration.send_replace(Registered::Refused(error));
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::tests::{GPUS, inventory};
    use crate::dra::device_name;
    use crate::node_gpus::Sick;

    #[test]
    fn health_names_every_device_and_what_is_wrong() {
        let mut inventory = inventory(1);
        let (first, second) = (GPUS[0].to_owned(), GPUS[1]);
        let sick = Sick {
            reason: String::from("XID 79"),
            since: UNIX_EPOCH,
            recovers: false,
        };
        let health = Health::from([(first.clone(), sick)]);
        let state = |uuid: &str, sick: Option<&str>| DeviceState {
            device: device_name(uuid),
            sick: sick.map(str::to_owned),
        };

        let all = all_states(&inventory, &health);

        assert_eq!(all, [state(&first, Some("XID 79")), state(second, None)]);
        inventory.gpus[1].device.healthy = false;
        let all = all_states(&inventory, &Health::default());
        assert_eq!(
            all,
            [
                state(&first, None),
                state(second, Some("the GPU is not healthy"))
            ]
        );
    }
}
