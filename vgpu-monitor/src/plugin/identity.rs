//! The share of each container of a pod, according to the pod's spec and its annotations, and whether that is
//! permitted. Values in, values out; never decides which allotment it becomes.
//!
//! The scheduler writes the annotations, but any client with the right to patch pods may have changed them: GPUs
//! and amounts are checked against the spec, which cannot be changed, and against what the node has.

use kube_api::allocation;
use kube_api::config::CorePolicy;
use kube_api::object::{Container, Pod};
use kube_api::request::{self, Defaults};
use kube_api::vendor::{Role, Vendors};
use placement::{Compute, Grant, Memory};
use supervisor::instance::Workload;
use vgpu_abi::limits::Policy;

use super::allotments::{Cut, GpuShare, Recipient, kind_word, policy_word};
use super::matching::Asking;
use crate::node_gpus::{Health, Inventory, KnownGpu};

/// Bytes of a MiB.
const MIB: u64 = 1 << 20;

/// Why a container is not started now. The text reaches the pod's events and its status, and the kubelet tries again
/// whatever it says: no caller decides by it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

/// Why the annotations' GPU cannot be given to a container.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The node has no such GPU.
    #[error("GPU {gpu} of the annotations is not on this node; it has {known}")]
    NotHere {
        /// The GPU.
        gpu: String,
        /// The node's GPUs.
        known: String,
    },
    /// The GPU is sick.
    #[error("GPU {gpu} cannot be used now: {reason}")]
    Sick {
        /// The GPU.
        gpu: String,
        /// Why.
        reason: String,
    },
    /// The GPU has no such MIG profile.
    #[error("GPU {gpu} cannot be cut into {profile}; its profiles are {known}")]
    NoProfile {
        /// The GPU.
        gpu: String,
        /// The profile of the annotations.
        profile: String,
        /// The GPU's profiles.
        known: String,
    },
    /// The annotations give no memory.
    #[error("the annotations give no memory on GPU {gpu}")]
    NoMemory {
        /// The GPU.
        gpu: String,
    },
    /// The annotations give more memory than the spec asks for.
    #[error(
        "the annotations give {given_mib} MiB on GPU {gpu}, the spec asks for {asked_mib} MiB; another client \
             than the scheduler changed them"
    )]
    TooMuchMemory {
        /// The GPU.
        gpu: String,
        /// The memory in the annotations.
        given_mib: u64,
        /// The memory in the spec.
        asked_mib: u64,
    },
    /// The annotations give no cores, and the spec asks for TFLOPS.
    #[error(
        "the annotations give no cores on GPU {gpu}, the spec asks for TFLOPS; another client than the \
             scheduler changed them"
    )]
    NoCores {
        /// The GPU.
        gpu: String,
    },
    /// The annotations give other cores than the spec asks for.
    #[error(
        "the annotations give {given} cores on GPU {gpu}, the spec asks for {asked}; another client than the \
             scheduler changed them"
    )]
    OtherCores {
        /// The GPU.
        gpu: String,
        /// The cores in the annotations.
        given: u32,
        /// The cores in the spec.
        asked: u32,
    },
}

/// A resource that this agent serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    /// Name of the resource in pods.
    pub resource: String,
    /// The vendor whose GPUs it counts.
    pub vendor: String,
}

/// A container that asks for one of our resources, in spec order, init containers first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedContainer {
    /// Position among all containers of the pod, init containers first.
    pub index: usize,
    /// Which resource.
    pub resource: String,
    /// For the matching.
    pub asking: Asking,
    /// The container's share.
    pub recipient: Recipient,
}

/// The uid, which distinguishes a pod from other pods that had its namespace and name.
pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// Whether the pod has ended.
pub fn is_over(pod: &Pod) -> bool {
    matches!(pod.status.phase.as_str(), "Succeeded" | "Failed")
}

/// The share of every container of the pod that asks for a served resource.
///
/// # Errors
///
/// When the pod is not this node's, the annotations cannot be read, do not fit the spec, or name what the node does not
/// have.
pub fn wanted(
    pod: &Pod,
    node: &str,
    served: &[Served],
    vendors: &Vendors,
    inventory: &Inventory,
    health: &Health,
) -> Result<Vec<WantedContainer>, Refusal> {
    if pod.spec.node_name != node {
        return Err(Refusal(format!(
            "the pod is bound to node {:?}, and this is node {node:?}",
            pod.spec.node_name
        )));
    }
    let asked = request::request(pod, vendors, &Defaults::default())
        .map_err(|error| Refusal(error.to_string()))?;
    let placed = allocation::read(pod, vendors).map_err(|error| Refusal(error.to_string()))?;
    let Some(placed) = placed else {
        return Err(Refusal(
            "the pod has no allocation in its annotations; it was not placed by the vgpu scheduler. Set schedulerName, or let the webhook do so"
                .to_owned(),
        ));
    };
    let any_vendor = asked.any.clone();
    let asked = asked.given(&placed.containers);
    let containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    let mut wanted = Vec::new();
    for ((index, asked), container) in asked.containers.iter().enumerate().zip(containers) {
        let mut own = 0;
        for ask in &asked.asks {
            let Some(served) = served
                .iter()
                .find(|served| served.vendor == ask.vendor.as_str())
            else {
                continue;
            };
            let refuse = |why: String| Err(Refusal(format!("container {}: {why}", asked.name)));
            own += 1;
            if own > 1 {
                return refuse(
                    "asks for GPUs of two vendors that this agent serves; ask for one".to_owned(),
                );
            }
            let grants: Vec<&Grant> = placed
                .containers
                .get(index)
                .map(|granted| {
                    let grants = granted.grants.iter();
                    grants.filter(|grant| grant.vendor == ask.vendor).collect()
                })
                .unwrap_or_default();
            let count = usize::try_from(ask.count).unwrap_or(usize::MAX);
            if grants.len() != count {
                return refuse(format!(
                    "the annotations give {} GPUs, the spec asks for {count}",
                    grants.len()
                ));
            }
            let is_wish = any_vendor
                .iter()
                .flat_map(|any| &any.wishes)
                .any(|wish| wish.container == index);
            // A container that takes any vendor's GPUs got as many as the chosen model needs; the kubelet goes by the
            // number that the webhook wrote beforehand.
            let slots = if is_wish {
                container
                    .amount(&served.resource)
                    .and_then(|amount| amount.parse().ok()?.whole())
                    .and_then(|whole| usize::try_from(whole).ok())
                    .unwrap_or(count)
            } else {
                count
            };
            let mut shares = Vec::with_capacity(grants.len());
            for grant in grants {
                match share(grant, &ask.memory, &ask.compute, inventory, health) {
                    Ok(share) => shares.push(share),
                    Err(why) => return refuse(why.to_string()),
                }
            }
            wanted.push(WantedContainer {
                index,
                resource: served.resource.clone(),
                asking: Asking {
                    container: asked.name.clone(),
                    kind: asked.kind,
                    count: slots,
                },
                recipient: Recipient {
                    uid: uid(pod).to_owned(),
                    namespace: pod.metadata.namespace.clone().unwrap_or_default(),
                    pod: pod.metadata.name.clone().unwrap_or_default(),
                    container: asked.name.clone(),
                    kind: kind_word(asked.kind).to_owned(),
                    vendor: served.vendor.clone(),
                    shares,
                    priority: priority(container, vendors),
                    policy: policy_word(policy(container, vendors)).to_owned(),
                    workload: Workload::default(),
                    traceparent: traceparent(pod),
                    told: false,
                },
            });
        }
    }
    Ok(wanted)
}

fn share(
    grant: &Grant,
    memory: &Memory,
    compute: &Compute,
    inventory: &Inventory,
    health: &Health,
) -> Result<GpuShare, Mismatch> {
    let id = &*grant.device;
    let Some(gpu) = inventory.gpus.iter().find(|gpu| gpu.device.id == id) else {
        return Err(Mismatch::NotHere {
            gpu: id.to_owned(),
            known: names(inventory),
        });
    };
    if let Some(sick) = health.get(id) {
        return Err(Mismatch::Sick {
            gpu: id.to_owned(),
            reason: sick.reason.clone(),
        });
    }
    if !gpu.device.healthy {
        return Err(Mismatch::Sick {
            gpu: id.to_owned(),
            reason: "the driver reports it as not healthy".to_owned(),
        });
    }
    let instance = match &grant.instance {
        Some(instance) => Some(cut(gpu, instance)?),
        None => None,
    };
    if instance.is_none() {
        not_more_than_asked(grant, memory, compute, gpu)?;
    }
    Ok(GpuShare {
        gpu: id.to_owned(),
        memory_bytes: grant.memory_bytes,
        physical_bytes: instance
            .as_ref()
            .map_or(gpu.physical_bytes, |cut| cut.memory_bytes),
        cores: grant.cores,
        slots: grant.slots,
        instance,
    })
}

fn cut(gpu: &KnownGpu, instance: &placement::Instance) -> Result<Cut, Mismatch> {
    let profiles = &gpu.device.mig_profiles;
    let profile = profiles
        .iter()
        .find(|profile| *profile.name == *instance.profile);
    let Some(profile) = profile else {
        let known: Vec<&str> = profiles.iter().map(|p| p.name.as_str()).collect();
        return Err(Mismatch::NoProfile {
            gpu: gpu.device.id.to_string(),
            profile: instance.profile.to_string(),
            known: if known.is_empty() {
                "none, it is not in MIG mode".to_owned()
            } else {
                known.join(", ")
            },
        });
    };
    Ok(Cut {
        profile: profile.name.clone(),
        memory_bytes: profile.memory_bytes,
        cores: profile.cores,
        slices: profile.slices,
        start: instance.span.start,
        size: instance.span.size,
        made: None,
    })
}

/// The spec cannot be changed, the annotations can: they may give at most what the spec asks for.
fn not_more_than_asked(
    grant: &Grant,
    memory: &Memory,
    compute: &Compute,
    gpu: &KnownGpu,
) -> Result<(), Mismatch> {
    let id = || grant.device.to_string();
    let given = grant.memory_bytes;
    if given == 0 {
        return Err(Mismatch::NoMemory { gpu: id() });
    }
    let asked = match memory {
        Memory::Bytes(bytes) => *bytes,
        Memory::Percent(percent) => {
            let whole = u128::from(gpu.device.memory_bytes);
            let part = whole * u128::from(*percent.min(&100)) / 100;
            u64::try_from(part).unwrap_or(u64::MAX)
        }
    };
    // The annotations have whole MiB, rounded up.
    if given > asked.saturating_add(MIB) {
        return Err(Mismatch::TooMuchMemory {
            gpu: id(),
            given_mib: given / MIB,
            asked_mib: asked / MIB,
        });
    }
    if let Compute::Gflops { fp16, fp32 } = compute
        && (*fp16 > 0 || *fp32 > 0)
        && grant.cores == 0
    {
        return Err(Mismatch::NoCores { gpu: id() });
    }
    if let Compute::Units(units) = compute
        && *units > 0
        // A grant of 0 cores would be no cap.
        && (grant.cores == 0 || grant.cores > *units)
    {
        return Err(Mismatch::OtherCores {
            gpu: id(),
            given: grant.cores,
            asked: *units,
        });
    }
    Ok(())
}

fn names(inventory: &Inventory) -> String {
    const MOST_NAMED: usize = 8;
    let gpus = inventory.gpus.iter();
    let names: Vec<&str> = gpus.map(|gpu| gpu.device.id.as_str()).collect();
    listed(&names, MOST_NAMED)
}

/// Names as a message lists them: the first `most`, and how many more there are.
pub(super) fn listed<S: AsRef<str>>(names: &[S], most: usize) -> String {
    let first: Vec<&str> = names.iter().take(most).map(AsRef::as_ref).collect();
    match (first.is_empty(), names.len() - first.len()) {
        (true, _) => "none".to_owned(),
        (false, 0) => first.join(", "),
        (false, more) => format!("{} and {more} more", first.join(", ")),
    }
}

/// By the resource, which is a number that admission has judged.
fn priority(container: &Container, vendors: &Vendors) -> u32 {
    let row = vendors.get("NVIDIA");
    let name = row.and_then(|row| row.resource(Role::Priority));
    name.and_then(|name| container.amount(name))
        .and_then(|quantity| quantity.parse().ok())
        .and_then(|amount| amount.whole())
        .map_or(0, |whole| {
            u32::try_from(whole.clamp(0, i128::from(u32::MAX))).unwrap_or(0)
        })
}

/// By the configuration. A container may hold itself to more than that, and never to less.
fn policy(container: &Container, vendors: &Vendors) -> Policy {
    let Some(nvidia) = &vendors.config().nvidia else {
        return Policy::Default;
    };
    if nvidia.disable_core_limit {
        return Policy::Disable;
    }
    let own = container
        .env
        .iter()
        .find(|variable| variable.name == "GPU_CORE_UTILIZATION_POLICY")
        .and_then(|variable| variable.value.as_deref());
    match (nvidia.gpu_core_policy, own) {
        (CorePolicy::Disable, _) => Policy::Disable,
        (CorePolicy::Force, _) | (CorePolicy::Default, Some("force")) => Policy::Force,
        (CorePolicy::Default, _) => Policy::Default,
    }
}

/// The pod's trace, where its annotation has the form of one.
pub fn traceparent(pod: &Pod) -> Option<String> {
    let text = pod
        .metadata
        .annotations
        .as_ref()?
        .get(kube_api::keys::TRACEPARENT)?;
    // The W3C form; any other text is not a trace.
    let plain = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    (text.len() == 55 && text.bytes().all(plain)).then(|| text.clone())
}

/// The workload under which metrics sum up the pod's use.
pub fn workload(pod: &Pod, team_label: &str) -> Workload {
    let (kind, name) = kube_api::workload::of(pod);
    Workload {
        team: kube_api::workload::team(pod, team_label),
        kind,
        name,
    }
}

/// The containers that ask for this vendor's GPUs, by fields that cannot be changed; `None` if those cannot be
/// read.
pub fn names_asking(pod: &Pod, vendor: &str, vendors: &Vendors) -> Option<Vec<String>> {
    let asked = request::request(pod, vendors, &Defaults::default()).ok()?;
    let containers = asked.containers.iter().enumerate();
    Some(
        containers
            .filter(|(index, _)| asked.may_take(*index, vendor))
            .map(|(_, container)| container.name.clone())
            .collect(),
    )
}

/// Without CDI, an annotation says which GPUs a container sees, and the runtime reads it at each start. It
/// has to name the GPUs that the container was given.
///
/// # Errors
///
/// When it names others.
pub fn shown_as_given(pod: &Pod, recipient: &Recipient) -> Result<(), Refusal> {
    let key = kube_api::keys::visible_devices(&recipient.container);
    let annotations = pod.metadata.annotations.as_ref();
    let Some(shown) = annotations.and_then(|annotations| annotations.get(&key)) else {
        return Ok(());
    };
    let shares = recipient.shares.iter();
    let given: Vec<&str> = shares
        .filter(|share| share.instance.is_none())
        .map(|share| share.gpu.as_str())
        .collect();
    if *shown == given.join(",") {
        return Ok(());
    }
    Err(Refusal(format!(
        "container {}: annotation {key} shows it {shown:?}, and it was given {:?}; another client than the scheduler changed it",
        recipient.container,
        given.join(",")
    )))
}

/// How many containers of the pod ask for served resources; 0 if that cannot be read.
pub fn asking(pod: &Pod, served: &[Served], vendors: &Vendors) -> usize {
    let Ok(asked) = request::request(pod, vendors, &Defaults::default()) else {
        return 0;
    };
    let asks = (0..asked.containers.len()).filter(|&index| {
        served
            .iter()
            .any(|served| asked.may_take(index, &served.vendor))
    });
    asks.count()
}
