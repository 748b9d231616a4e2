//! The answer as it is sent and printed. Its JSON is an interface for programs (`docs/command.md`), its text is for
//! people.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The state of a pod, or the state that it could reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It runs, or is bound, and has its devices.
    Placed,
    /// It has its devices and waits to be bound.
    Reserved,
    /// It is pending, and at least one node would take it.
    Fits,
    /// No node would take it.
    DoesNotFit,
    /// Its request cannot be understood.
    Unreadable,
    /// It asks for no device.
    NotOurs,
    /// It asks for devices, but another scheduler is named in it, or has placed it.
    Missed,
    /// It has ended.
    Finished,
}

impl Verdict {
    /// Whether the pod cannot be placed at present.
    pub fn is_no(self) -> bool {
        matches!(self, Self::DoesNotFit | Self::Unreadable | Self::Missed)
    }
}

/// The whole answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explained {
    /// Namespace and name, with a slash between.
    pub pod: String,
    /// The verdict, one word.
    pub verdict: Verdict,
    /// A sentence whose subject is the pod.
    pub summary: String,
    /// The requests of its containers.
    pub asks: Vec<ContainerRequest>,
    /// Its node and devices, or those that it would get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placed: Option<Placed>,
    /// Alternative changes; each is enough by itself.
    pub advice: Vec<Advised>,
    /// Reasons by how many nodes have them.
    pub reasons: Vec<ReasonCount>,
    /// The number of nodes.
    pub nodes_in_question: usize,
    /// How many of them are not listed under `nodes`.
    pub nodes_left_out: usize,
    /// The nodes that come nearest to a fit, with each device.
    pub nodes: Vec<OfNode>,
    /// Further remarks.
    pub notes: Vec<String>,
}

/// A container's request for one vendor's devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerRequest {
    /// Its name.
    pub container: String,
    /// The vendor's word.
    pub vendor: String,
    /// How many devices.
    pub devices: u32,
    /// Memory on each.
    pub memory: String,
    /// Compute on each, in the vendor's unit.
    pub compute: String,
    /// The rules that restrict the choice of devices.
    pub rules: Vec<String>,
}

/// The devices of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Placed {
    /// The node.
    pub node: String,
    /// The devices of each container that has any.
    pub containers: Vec<PlacedContainer>,
}

/// The devices of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacedContainer {
    /// Its name.
    pub container: String,
    /// Its devices, in order.
    pub devices: Vec<PlacedDevice>,
}

/// A share of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacedDevice {
    /// Identifier of the device.
    pub device: String,
    /// The memory in MiB.
    pub memory_mib: u64,
    /// The compute in the vendor's unit.
    pub cores: u32,
    /// The MIG instance, with its position.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
}

/// A reason and the nodes that have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReasonCount {
    /// The reason's name, as HAMi's users know it.
    pub reason: String,
    /// The number of nodes.
    pub nodes: usize,
    /// The first of them by name.
    pub first: Vec<String>,
}

/// Why one node does not take the pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OfNode {
    /// Its name.
    pub node: String,
    /// The text that `/filter` gives.
    pub reason: String,
    /// Each device that was considered.
    pub devices: Vec<OfDevice>,
    /// Why the node has no devices, or takes no pods.
    pub notes: Vec<String>,
    /// Alternative changes; each would be enough on this node.
    pub advice: Vec<Advised>,
}

/// Why one device does not take the pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OfDevice {
    /// Its identifier.
    pub device: String,
    /// Its model.
    pub model: String,
    /// The reason's name, as HAMi's users know it.
    pub reason: String,
    /// The reason with its numbers.
    pub text: String,
}

/// Changes that are enough when made together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Advised {
    /// The node on which the pod would then fit.
    pub node: String,
    /// In one sentence.
    pub text: String,
    /// One change, or several if no single one is enough.
    pub changes: Vec<Changed>,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Changed {
    /// In a few words.
    pub text: String,
    /// The edits that make the change; empty if no edit can (an unhealthy device).
    pub edits: Vec<Edit>,
}

/// An edit of an object. Edits of a pod apply to its manifest: a pod that exists must be deleted and created again, or
/// its owner's template changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "edit",
    rename_all = "kebab-case",
    rename_all_fields = "camelCase"
)]
pub enum Edit {
    /// A resource of one of the pod's containers, under `limits`, and under `requests` where it is set there.
    SetResource {
        /// Name of the container.
        container: String,
        /// Name of the resource.
        resource: String,
        /// The current value; `None` if it is not set.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<String>,
        /// The new value.
        to: String,
    },
    /// An annotation of the pod.
    SetAnnotation {
        /// Its key.
        key: String,
        /// The new value.
        to: String,
    },
    /// An annotation of the pod to remove.
    RemoveAnnotation {
        /// Its key.
        key: String,
    },
    /// Pods to delete.
    DeletePods {
        /// Namespaces and names.
        pods: Vec<String>,
    },
    /// An annotation of a node; an empty value removes it.
    SetNodeAnnotation {
        /// The node.
        node: String,
        /// Its key.
        key: String,
        /// The new value.
        to: String,
    },
    /// A node to open for new pods (`spec.unschedulable`).
    OpenNode {
        /// The node.
        node: String,
    },
    /// A line of a quota's `spec.hard`.
    SetQuota {
        /// Namespace of the quota.
        namespace: String,
        /// Its name.
        quota: String,
        /// The line.
        key: String,
        /// The current value.
        from: String,
        /// The new value.
        to: String,
    },
}

impl Explained {
    pub(super) fn of(pod: &placement::Pod) -> Self {
        Self {
            pod: format!("{}/{}", pod.namespace, pod.name),
            verdict: Verdict::NotOurs,
            summary: String::new(),
            asks: Vec::new(),
            placed: None,
            advice: Vec::new(),
            reasons: Vec::new(),
            nodes_in_question: 0,
            nodes_left_out: 0,
            nodes: Vec::new(),
            notes: Vec::new(),
        }
    }

    pub(super) fn with(mut self, verdict: Verdict, summary: String) -> Self {
        self.verdict = verdict;
        self.summary = summary;
        self
    }
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SetResource {
                container,
                resource,
                from: Some(from),
                to,
            } => write!(f, "container {container}: {resource}: {to} (is {from})"),
            Self::SetResource {
                container,
                resource,
                from: None,
                to,
            } => write!(f, "container {container}: {resource}: {to} (is not set)"),
            Self::SetAnnotation { key, to } => write!(f, "annotation {key}: {to}"),
            Self::RemoveAnnotation { key } => write!(f, "no annotation {key}"),
            Self::DeletePods { pods } => {
                for (position, pod) in pods.iter().enumerate() {
                    let (namespace, name) = pod.split_once('/').unwrap_or(("default", pod));
                    let separator = if position == 0 { "" } else { "; " };
                    write!(f, "{separator}kubectl delete pod -n {namespace} {name}")?;
                }
                Ok(())
            }
            Self::OpenNode { node } => write!(f, "kubectl uncordon {node}"),
            Self::SetNodeAnnotation { node, key, to } if to.is_empty() => {
                write!(f, "kubectl annotate node {node} {key}-")
            }
            Self::SetNodeAnnotation { node, key, to } => {
                write!(f, "kubectl annotate --overwrite node {node} {key}={to}")
            }
            Self::SetQuota {
                namespace,
                quota,
                key,
                from,
                to,
            } => write!(f, "quota {quota} in {namespace}: {key}: {to} (is {from})"),
        }
    }
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {}", self.pod, self.summary)?;
        for asked in &self.asks {
            let ContainerRequest {
                container,
                vendor,
                devices,
                memory,
                compute,
                rules,
            } = asked;
            write!(
                f,
                "  asks for {devices} {vendor} in container {container}: memory {memory}, cores {compute}"
            )?;
            for rule in rules {
                write!(f, "; {rule}")?;
            }
            writeln!(f)?;
        }
        if let Some(placed) = &self.placed {
            for container in &placed.containers {
                for device in &container.devices {
                    write!(
                        f,
                        "  {}: {} on {}: {} MiB, cores {}",
                        container.container,
                        device.device,
                        placed.node,
                        device.memory_mib,
                        device.cores
                    )?;
                    match &device.instance {
                        Some(instance) => writeln!(f, ", MIG {instance}")?,
                        None => writeln!(f)?,
                    }
                }
            }
        }
        for note in &self.notes {
            writeln!(f, "  note: {note}")?;
        }
        if !self.advice.is_empty() {
            writeln!(f, "\nIt would fit with any one of these:")?;
            for advice in &self.advice {
                writeln!(f, "  {}: on {}", advice.text, advice.node)?;
                edits(f, advice)?;
            }
        }
        if !self.reasons.is_empty() {
            writeln!(f, "\nWhy not:")?;
            let reason = self.reasons.iter().map(|counted| counted.reason.len());
            let width = reason.max().unwrap_or(0);
            for counted in &self.reasons {
                let more = counted.nodes - counted.first.len().min(counted.nodes);
                write!(
                    f,
                    "  {:>6} {} {:width$}  {}",
                    counted.nodes,
                    if counted.nodes == 1 { "node " } else { "nodes" },
                    counted.reason,
                    counted.first.join(", ")
                )?;
                if more > 0 {
                    write!(f, " and {more} more")?;
                }
                writeln!(f)?;
            }
        }
        for node in &self.nodes {
            of_node(f, node)?;
        }
        if self.nodes_left_out > 0 {
            writeln!(
                f,
                "\n{} more nodes are not shown (--all shows them)",
                self.nodes_left_out
            )?;
        }
        Ok(())
    }
}

fn of_node(f: &mut fmt::Formatter<'_>, node: &OfNode) -> fmt::Result {
    writeln!(f, "\n{}: {}", node.node, node.reason)?;
    let width = |text: fn(&OfDevice) -> &str| {
        let lengths = node.devices.iter().map(|device| text(device).len());
        lengths.max().unwrap_or(0)
    };
    let (id, model) = (
        width(|device| &device.device),
        width(|device| &device.model),
    );
    for device in &node.devices {
        writeln!(
            f,
            "  {:id$}  {:model$}  {}",
            device.device, device.model, device.text
        )?;
    }
    for note in &node.notes {
        writeln!(f, "  {note}")?;
    }
    for advice in &node.advice {
        writeln!(f, "  would do if {}", advice.text)?;
        edits(f, advice)?;
    }
    Ok(())
}

fn edits(f: &mut fmt::Formatter<'_>, advice: &Advised) -> fmt::Result {
    for change in &advice.changes {
        for edit in &change.edits {
            writeln!(f, "      {edit}")?;
        }
    }
    Ok(())
}
