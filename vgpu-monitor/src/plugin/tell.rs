//! Writes to a pod that its devices were given: the phase, the devices that are no longer to be allocated,
//! the names of its MIG instances. Runs after the answer to the kubelet and never before it: no container
//! waits for the API server.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::Duration;

use kube_api::allocation::{self, MigAllocation};
use kube_api::keys;
use kube_api::object::Pod;
use serde_json::json;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

use super::allotments::Recipient;
use super::api;
use super::{Plugin, PluginState, identity};
use crate::api_answer::Without;

/// A pod whose annotations are to be written.
#[derive(Debug)]
pub(super) struct Untold {
    namespace: String,
    name: String,
    uid: String,
    /// As it was read; `None` if it has to be read first.
    pod: Option<Box<Pod>>,
}

/// How many are written at a time.
const AT_ONCE: usize = 8;
/// Between two tries, at first and at most.
const SOON: Duration = Duration::from_millis(500);
const LATE: Duration = Duration::from_secs(60);
/// After this many failed attempts the pod is left as it is.
const TRIES: u32 = 40;

/// Has the pod's annotations written, if they are not. `asking` is how many of its containers have devices.
pub(super) fn later(plugin: &Plugin, pod: Pod, asking: usize) {
    let uid = identity::uid(&pod).to_owned();
    let all = plugin.0.store.all();
    let recipients: Vec<&Recipient> = of(&all, &uid).collect();
    if recipients.len() < asking || recipients.iter().all(|recipient| recipient.told) {
        return;
    }
    let untold = Untold {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid,
        pod: Some(Box::new(pod)),
    };
    // The receiver lives as long as the plugin.
    drop(plugin.0.untold.send(untold));
}

fn of<'a>(all: &'a [super::Allotment], uid: &'a str) -> impl Iterator<Item = &'a Recipient> {
    all.iter()
        .filter_map(|lot| lot.recipient.as_ref())
        .filter(move |recipient| recipient.uid == uid)
}

/// Runs as long as the plugin lives. Pods that an earlier process did not get to come first.
pub(super) async fn run(shared: Weak<PluginState>, mut untold: UnboundedReceiver<Untold>) {
    if let Some(plugin) = shared.upgrade().map(Plugin) {
        let mut pods = BTreeMap::new();
        for recipient in plugin
            .0
            .store
            .all()
            .into_iter()
            .filter_map(|lot| lot.recipient)
        {
            if !recipient.told {
                pods.insert(recipient.uid.clone(), recipient);
            }
        }
        for (uid, recipient) in pods {
            let untold = Untold {
                namespace: recipient.namespace,
                name: recipient.pod,
                uid,
                pod: None,
            };
            drop(plugin.0.untold.send(untold));
        }
    }
    let mut telling = JoinSet::new();
    while let Some(next) = untold.recv().await {
        while telling.len() >= AT_ONCE {
            telling.join_next().await;
        }
        let shared = shared.clone();
        telling.spawn(async move { tell(&shared, next).await });
    }
}

async fn tell(shared: &Weak<PluginState>, mut untold: Untold) {
    let mut wait = SOON;
    for _ in 0..TRIES {
        let Some(plugin) = shared.upgrade().map(Plugin) else {
            return;
        };
        match once(&plugin, &mut untold).await {
            Ok(()) | Err(Without::Gone) => {
                let uid = untold.uid.clone();
                plugin.0.parts.metrics.annotations("ok");
                let store = std::sync::Arc::clone(&plugin.0.store);
                drop(spawn_blocking(move || store.told(&uid)).await);
                return;
            }
            Err(Without::Refused(why)) => {
                tracing::warn!(
                    pod = untold.name,
                    namespace = untold.namespace,
                    why,
                    "not permitted to write the pod's annotations"
                );
                plugin.0.parts.metrics.annotations("refused");
                return;
            }
            Err(Without::Away(why)) => {
                tracing::debug!(pod = untold.name, why, "retrying later");
            }
        }
        drop(plugin);
        sleep(wait).await;
        wait = (wait * 2).min(LATE);
    }
    if let Some(plugin) = shared.upgrade().map(Plugin) {
        plugin.0.parts.metrics.annotations("failed");
    }
}

async fn once(plugin: &Plugin, untold: &mut Untold) -> Result<(), Without> {
    let client = &plugin.0.parts.client;
    let pod = match &untold.pod {
        Some(pod) => pod,
        None => {
            let pod = api::pod(client, &untold.namespace, &untold.name).await?;
            untold.pod.insert(Box::new(pod))
        }
    };
    if identity::uid(pod) != untold.uid {
        return Err(Without::Gone);
    }
    let all = plugin.0.store.all();
    let recipients: Vec<&Recipient> = of(&all, &untold.uid).collect();
    let annotations = annotations(pod, &recipients, &plugin.0.parts.vendors);
    if annotations.is_empty() {
        return Ok(());
    }
    // The uid makes it that pod's, and not that of one of the same name.
    let patch = json!({"metadata": {"uid": untold.uid, "annotations": annotations}});
    api::patch(client, &untold.namespace, &untold.name, &patch).await
}

/// The annotations that the pod lacks.
fn annotations(
    pod: &Pod,
    recipients: &[&Recipient],
    vendors: &kube_api::vendor::Vendors,
) -> BTreeMap<String, String> {
    let none = BTreeMap::new();
    let has = pod.metadata.annotations.as_ref().unwrap_or(&none);
    let mut written = BTreeMap::new();
    let mut others_wait = false;
    for row in vendors.iter() {
        let Some(key) = &row.keys.to_allocate else {
            continue;
        };
        let Some(text) = has.get(key) else {
            continue;
        };
        if recipients
            .iter()
            .any(|recipient| recipient.vendor == row.word)
        {
            let containers = text.matches(';').count();
            written.insert(key.clone(), ";".repeat(containers));
        } else {
            others_wait |= text.contains(',');
        }
    }
    if !others_wait {
        written.insert(keys::BIND_PHASE.to_owned(), "success".to_owned());
    }
    if let Some(text) = has.get(keys::MIG_ALLOCATIONS)
        && let Some(instances) = instances(pod, text, recipients)
    {
        written.insert(keys::MIG_ALLOCATIONS.to_owned(), instances);
    }
    written.retain(|key, text| has.get(key) != Some(text));
    written
}

/// The list of MIG instances with what the driver calls those that are made; `None` if it cannot be read.
fn instances(pod: &Pod, text: &str, recipients: &[&Recipient]) -> Option<String> {
    let mut instances: Vec<MigAllocation> = allocation::decode_instances(text).ok()?;
    let containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    let names: Vec<&str> = containers
        .map(|container| container.name.as_str())
        .collect();
    for instance in &mut instances {
        let name = names.get(instance.container_index)?;
        let made = recipients
            .iter()
            .find(|recipient| recipient.container == **name)
            .and_then(|recipient| recipient.shares.get(instance.device_index))
            .filter(|share| share.gpu == instance.gpu_uuid)
            .and_then(|share| share.instance.as_ref()?.made.as_ref());
        if let Some(made) = made {
            instance.mig_uuid = Some(made.uuid.clone());
            instance.gpu_instance_id = Some(made.gpu_instance);
            instance.compute_instance_id = Some(made.compute_instance);
        }
    }
    serde_json::to_string(&instances).ok()
}
