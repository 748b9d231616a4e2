//! Pods that ask for GPUs: where they wait, what they hold, and whether that is written as it should be. Facts in,
//! verdicts out.

use std::sync::Arc;

use kube_api::allocation;
use kube_api::keys;
use kube_api::object::{Pod, ResourceQuota};
use kube_api::quota;
use kube_api::request::{Defaults, request};
use kube_api::vendor::Vendors;
use scheduler::explain::View;
use serde_json::Value;

use super::ClusterFacts;
use super::nodes::{asks, most};
use super::objects::{
    annotation, condition, full_name, is_over, label, name, namespace, text, typed_pod, unix,
};
use crate::doctor::check::{Finding, Judged, fail, ok, several, skip, warn};

/// A pod may wait that long before it is said, seconds.
const PATIENCE: u64 = 60;
/// The kubelet, the agent and an image that has to be pulled may take that long, seconds.
const START: u64 = 300;

/// A pod that asks for devices that vgpu gives.
struct Asking<'a> {
    pod: &'a Value,
    typed: Pod,
}

impl ClusterFacts {
    /// Pods that are not over and ask for devices.
    fn asking(&self, vendors: &Vendors) -> Result<Vec<Asking<'_>>, Finding> {
        self.read(&["pods"])?;
        let pods = self.pods.iter().filter(|pod| !is_over(pod));
        Ok(pods
            .filter_map(|pod| {
                let typed = typed_pod(pod)?;
                let asks = match request(&typed, vendors, &Defaults::default()) {
                    Ok(request) => request.asks_for_devices(),
                    // The pod asks for devices in a way that cannot be understood.
                    Err(_) => true,
                };
                asks.then_some(Asking { pod, typed })
            })
            .collect())
    }
}

fn waits(pod: &Value) -> bool {
    text(pod, "/spec/nodeName").is_empty()
}

fn made_before(facts: &ClusterFacts, pod: &Value) -> u64 {
    let made = unix(text(pod, "/metadata/creationTimestamp")).unwrap_or(facts.now());
    facts.now().saturating_sub(made)
}

pub(super) fn other_scheduler(facts: &ClusterFacts) -> Judged {
    let asking = facts.asking(&facts.vendors())?;
    if facts.scheduler_name == "default-scheduler" {
        return Err(skip(
            "the default scheduler is the one that asks our extender",
        ));
    }
    let wrong: Vec<String> = asking
        .iter()
        .filter(|asking| {
            waits(asking.pod) && text(asking.pod, "/spec/schedulerName") == "default-scheduler"
        })
        .map(|asking| {
            let why =
                condition(asking.pod, "PodScheduled").map_or("", |found| text(found, "/message"));
            format!("{} ({why})", full_name(asking.pod))
        })
        .collect();
    if wrong.is_empty() {
        return Ok(ok(format!("{} pods ask for GPUs", asking.len())));
    }
    Ok(fail(several(&wrong)))
}

pub(super) fn gpus_not_pieces(facts: &ClusterFacts) -> Judged {
    let (gpus, pieces) = most(facts)?;
    let resource = facts.resource();
    let waiting = facts.pods.iter().filter(|pod| !is_over(pod) && waits(pod));
    let wrong: Vec<String> = waiting
        .flat_map(|pod| asks(pod, &resource).map(move |ask| (pod, ask)))
        .filter(|(_, (_, asked))| usize::try_from(*asked).unwrap_or(usize::MAX) > gpus)
        .map(|(pod, (container, asked))| {
            format!(
                "container {container} of {} asks for {asked}",
                full_name(pod)
            )
        })
        .collect();
    let most = format!("a node has at most {gpus} GPUs, offered as {pieces} of {resource}");
    if wrong.is_empty() {
        return Ok(ok(most));
    }
    Ok(fail(format!("{}; {most}", several(&wrong))))
}

pub(super) fn allocations(facts: &ClusterFacts) -> Judged {
    let vendors = facts.vendors();
    let asking = facts.asking(&vendors)?;
    let mut held = 0;
    let wrong: Vec<String> = asking
        .iter()
        .filter(|asking| !waits(asking.pod))
        .filter_map(|asking| match allocation::read(&asking.typed, &vendors) {
            Ok(found) => {
                held += usize::from(found.is_some());
                None
            }
            Err(error) => Some(format!("{}: {error}", full_name(asking.pod))),
        })
        .collect();
    if wrong.is_empty() {
        return Ok(ok(format!("{held} pods hold GPUs")));
    }
    Ok(fail(several(&wrong)))
}

pub(super) fn pending(facts: &ClusterFacts) -> Judged {
    let vendors = facts.vendors();
    let asking = facts.asking(&vendors)?;
    let is_ours =
        |name: &str| name == facts.scheduler_name || vendors.any_vendor_scheduler() == Some(name);
    let waiting: Vec<String> = asking
        .iter()
        .filter(|asking| {
            waits(asking.pod)
                && is_ours(text(asking.pod, "/spec/schedulerName"))
                && made_before(facts, asking.pod) > PATIENCE
        })
        .map(|asking| {
            let why =
                condition(asking.pod, "PodScheduled").map_or("", |found| text(found, "/message"));
            format!(
                "{} for {} s ({why})",
                full_name(asking.pod),
                made_before(facts, asking.pod)
            )
        })
        .collect();
    if waiting.is_empty() {
        return Ok(ok(format!("none of {} pods waits", asking.len())));
    }
    Ok(warn(several(&waiting)))
}

pub(super) fn double_booked(facts: &ClusterFacts) -> Judged {
    facts.read(&["nodes", "pods"])?;
    let vendors: Arc<Vendors> = facts.vendors();
    let pods: Vec<Pod> = facts.pods.iter().filter_map(typed_pod).collect();
    let view = View::of(
        facts.typed_nodes(),
        &pods,
        Vec::new(),
        Arc::clone(&vendors),
        Defaults::default(),
    );
    let mut wrong = Vec::new();
    let mut gpus = 0;
    for node in view.cluster.nodes() {
        for gpu in node.devices() {
            gpus += 1;
            let (device, used) = (gpu.device(), gpu.used());
            let mut of = Vec::new();
            if used.memory_bytes > device.memory_bytes {
                of.push(format!(
                    "{} of {} MiB",
                    used.memory_bytes >> 20,
                    device.memory_bytes >> 20
                ));
            }
            if used.cores > device.cores {
                of.push(format!("{} of {} cores", used.cores, device.cores));
            }
            if used.slots > device.slots {
                of.push(format!("{} of {} slots", used.slots, device.slots));
            }
            if gpu.is_in_conflict() {
                of.push(String::from("shares and instances at once"));
            }
            if of.is_empty() {
                continue;
            }
            let holders: Vec<String> = view
                .cluster
                .reservations_on(node.name())
                .filter(|held| {
                    let grants = held
                        .placement
                        .containers
                        .iter()
                        .flat_map(|granted| &granted.grants);
                    grants
                        .into_iter()
                        .any(|grant| grant.device.as_ref() == gpu.id())
                })
                .map(|held| format!("{}/{}", held.pod.namespace, held.pod.name))
                .collect();
            wrong.push(format!(
                "{} on {}: {} ({})",
                gpu.id(),
                node.name(),
                of.join(", "),
                several(&holders)
            ));
        }
    }
    if wrong.is_empty() {
        return Ok(ok(format!("{gpus} GPUs")));
    }
    Ok(fail(several(&wrong)))
}

pub(super) fn quotas(facts: &ClusterFacts) -> Judged {
    facts.read(&["quotas"])?;
    let vendors = facts.vendors();
    let mut wrong = Vec::new();
    for object in &facts.quotas {
        let Ok(read) = serde_json::from_value::<ResourceQuota>(object.clone()) else {
            continue;
        };
        let (_, errors) = quota::limits(&read, &vendors);
        wrong.extend(
            errors
                .iter()
                .map(|error| format!("{}: {error}", full_name(object))),
        );
    }
    if wrong.is_empty() {
        return Ok(ok(format!("{} quotas", facts.quotas.len())));
    }
    Ok(warn(several(&wrong)))
}

pub(super) fn unlimited(facts: &ClusterFacts) -> Judged {
    let vendors = facts.vendors();
    let asking = facts.asking(&vendors)?;
    let resource = facts.resource();
    let bound: Vec<_> = asking
        .iter()
        .filter(|asking| {
            !waits(asking.pod) && asks(asking.pod, &resource).any(|(_, asked)| asked > 0)
        })
        .collect();
    let wrong: Vec<String> = bound
        .iter()
        .filter(|asking| matches!(allocation::read(&asking.typed, &vendors), Ok(None)))
        .map(|asking| {
            format!(
                "{} on {}, by {}",
                full_name(asking.pod),
                text(asking.pod, "/spec/nodeName"),
                text(asking.pod, "/spec/schedulerName")
            )
        })
        .collect();
    if wrong.is_empty() {
        return Ok(ok(format!("{} pods on nodes", bound.len())));
    }
    Ok(fail(format!("without an allocation: {}", several(&wrong))))
}

pub(super) fn stuck(facts: &ClusterFacts) -> Judged {
    facts.read(&["pods"])?;
    let now = facts.now();
    let wrong: Vec<String> = facts
        .pods
        .iter()
        .filter(|pod| !is_over(pod) && !waits(pod) && text(pod, "/status/phase") == "Pending")
        .filter(|pod| annotation(pod, keys::BIND_PHASE) == "allocating")
        .filter_map(|pod| {
            let bound: u64 = annotation(pod, keys::BIND_TIME).parse().ok()?;
            let ago = now.saturating_sub(bound);
            (ago > START).then(|| {
                format!(
                    "{} on {}, for {ago} s",
                    full_name(pod),
                    text(pod, "/spec/nodeName")
                )
            })
        })
        .collect();
    if wrong.is_empty() {
        return Ok(ok("none for longer than five minutes"));
    }
    Ok(fail(several(&wrong)))
}

pub(super) fn exempt(facts: &ClusterFacts) -> Judged {
    let asking = facts.asking(&facts.vendors())?;
    facts.read(&["namespaces"])?;
    let ignored: Vec<&str> = facts
        .namespaces
        .iter()
        .filter(|space| label(space, keys::WEBHOOK) == "ignore")
        .map(name)
        .collect();
    let wrong: Vec<String> = asking
        .iter()
        .filter(|asking| {
            ignored.contains(&namespace(asking.pod)) || label(asking.pod, keys::WEBHOOK) == "ignore"
        })
        .map(|asking| full_name(asking.pod))
        .collect();
    if wrong.is_empty() {
        return Ok(ok(format!("{} pods ask for GPUs", asking.len())));
    }
    Ok(warn(several(&wrong)))
}
