//! Reports changes of health: to the log, to the pods on a GPU and to the node, in words. Never judges, and
//! never waits: events queue.

use std::collections::BTreeSet;
use std::path::Path;

use events::{Events, Kind};
use supervisor::{instance, view};

use super::judge::{GpuIdentity, News};
use super::xid::{Class, Xid};

/// A pod that has a part of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodOn {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// The pods that have a part of one of these GPUs or instances, as the containers' directories below `root` say. One
/// that cannot be read is left out: the exporter complains of it.
#[must_use]
pub fn pods_on(root: &Path, uuids: &BTreeSet<String>) -> BTreeSet<PodOn> {
    let mut pods = BTreeSet::new();
    let scan = instance::scan(root, &mut |instance| {
        let Ok(limits) = view::read_limits(&instance) else {
            return;
        };
        if !limits
            .devices
            .iter()
            .any(|device| uuids.contains(device.uuid.as_str()))
        {
            return;
        }
        // The name of the pod is used only if root or this process's user wrote it.
        let ours = nix::unistd::geteuid().as_raw();
        let Ok(labels) = instance.labels() else {
            return;
        };
        if labels.pod.is_empty() || (instance.owner() != 0 && instance.owner() != ours) {
            return;
        }
        pods.insert(PodOn {
            namespace: labels.namespace,
            name: labels.pod,
            uid: labels.pod_uid,
        });
    });
    if let Err(error) = scan {
        tracing::debug!(%error, "no pod gets an event: the containers' directories cannot be read");
    }
    pods
}

/// The event for a piece of news: its reason, its kind and its text. News that is only logged has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sentence {
    /// The event's reason.
    pub reason: &'static str,
    /// Whether all is well.
    pub kind: Kind,
    /// The words.
    pub text: String,
    /// Said to the pods on this GPU.
    pub pods_of: Option<String>,
    /// Said to the node.
    pub node: bool,
}

/// Words a piece of news.
#[must_use]
pub fn sentence(news: &News) -> Sentence {
    match news {
        News::Xid { gpu, xid, sick } => Sentence {
            reason: "GPUXidError",
            kind: Kind::Warning,
            text: format!("{}: {}", name(gpu), of_xid(xid, *sick)),
            pods_of: Some(gpu.uuid.clone()),
            node: xid.class != Class::Application,
        },
        News::Sick {
            gpu,
            reason,
            recovers,
        } => Sentence {
            reason: "GPUUnhealthy",
            kind: Kind::Warning,
            text: format!(
                "{} takes no new pods: {reason}. {}",
                name(gpu),
                if *recovers {
                    "It is taken back by itself once a probe finds it well and it has been quiet for a time"
                } else {
                    "It is taken back after a reset or a reboot"
                }
            ),
            pods_of: Some(gpu.uuid.clone()),
            node: true,
        },
        News::Well { gpu, was } => Sentence {
            reason: "GPUHealthy",
            kind: Kind::Normal,
            text: format!("{} is well again (was: {was})", name(gpu)),
            pods_of: Some(gpu.uuid.clone()),
            node: true,
        },
        News::DriverDown(reason) => Sentence {
            reason: "GPUDriverDown",
            kind: Kind::Warning,
            text: format!("no GPU of this node takes new pods: {reason}"),
            pods_of: None,
            node: true,
        },
        News::DriverUp => Sentence {
            reason: "GPUDriverUp",
            kind: Kind::Normal,
            text: String::from("the NVIDIA driver answers again"),
            pods_of: None,
            node: true,
        },
        News::Warning { gpu, text } => Sentence {
            reason: "GPUWarning",
            kind: Kind::Warning,
            text: format!("{}: {text}", name(gpu)),
            pods_of: None,
            node: true,
        },
    }
}

fn name(gpu: &GpuIdentity) -> String {
    match gpu.index {
        u32::MAX => format!("GPU {}", gpu.uuid),
        index => format!("GPU {index} ({})", gpu.uuid),
    }
}

fn of_xid(xid: &Xid, sick: bool) -> String {
    let cause = match (xid.class, sick) {
        (Class::Application, false) => "a program's error, the GPU is well",
        (Class::Application, true) => {
            "a program's error, which this node's settings count against the GPU"
        }
        (Class::Hardware, _) => "an error of hardware",
        (Class::Transient, _) => "an error of the driver that often passes",
    };
    format!(
        "XID {}: {} ({cause}). What to do: {}",
        xid.number, xid.meaning, xid.cure
    )
}

/// Reports to every object concerned.
pub(super) fn tell(
    news: &News,
    root: &Path,
    node: &str,
    uuids: &dyn Fn(&str) -> BTreeSet<String>,
    events: &Events,
) {
    let said = sentence(news);
    match said.kind {
        Kind::Warning => tracing::warn!(reason = said.reason, "{}", said.text),
        Kind::Normal => tracing::info!(reason = said.reason, "{}", said.text),
    }
    if said.node {
        events.node(node, said.kind, said.reason, said.text.clone());
    }
    let Some(uuid) = &said.pods_of else { return };
    for pod in pods_on(root, &uuids(uuid)) {
        events.pod(
            (pod.namespace.as_str(), pod.name.as_str(), pod.uid.as_str()),
            said.kind,
            said.reason,
            said.text.clone(),
        );
    }
}
