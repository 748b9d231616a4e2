//! The parts of a pod that plugins read. Does not decide where the pod goes.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use serde::Deserialize as _;
use serde_json::Value;

use super::node::{Effect, Taint};
use super::resources::{self, Exact, Resources};
use super::selector::{
    self, Labels, NodeSelector, Preferred, Requirement, Rule, Selector, UnknownWord, node_selector,
    preferred,
};
use super::{DevicesError, ReadError, wire};
use crate::names::{Names, Symbol};

/// A transport protocol of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// `TCP`.
    Tcp,
    /// `UDP`.
    Udp,
    /// `SCTP`.
    Sctp,
}

/// A port of the node that a pod asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostPort {
    /// The address; `0.0.0.0` for all.
    pub ip: Symbol,
    /// The protocol.
    pub protocol: Protocol,
    /// The port number, 1 to 65535.
    pub port: i32,
}

impl HostPort {
    /// Whether the two ports cannot be on the same node.
    pub fn conflicts(&self, other: &Self) -> bool {
        self.protocol == other.protocol
            && self.port == other.port
            && (self.ip == other.ip || self.ip == Symbol::ANY_IP || other.ip == Symbol::ANY_IP)
    }
}

/// A toleration of taints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Toleration {
    /// The taint's key; the empty text stands for every key.
    pub key: Symbol,
    /// The taint's value; `None` if any value is tolerated.
    pub value: Option<Symbol>,
    /// The taint's effect; none for every effect.
    pub effect: Option<Effect>,
    /// Whether the toleration uses an operator that kube-scheduler 1.35 ignores by default: it tolerates nothing.
    pub inert: bool,
}

impl Toleration {
    /// Whether it tolerates the taint.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        !self.inert
            && self.effect.is_none_or(|effect| effect == taint.effect)
            && (self.key == Symbol::EMPTY || self.key == taint.key)
            && self.value.is_none_or(|value| value == taint.value)
    }
}

/// A topology spread constraint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spread {
    /// The largest allowed difference between the fullest and the emptiest domain.
    pub max_skew: i64,
    /// The label whose values are the domains.
    pub topology_key: Symbol,
    /// Whether a node that breaks it is refused (`DoNotSchedule`) or only scores lower (`ScheduleAnyway`).
    pub hard: bool,
    /// Selects the pods that count.
    pub selector: Selector,
    /// If there are fewer domains than this, the emptiest one counts as having no pods.
    pub min_domains: i64,
    /// Whether nodes that the pod's node affinity excludes are left out of the domains.
    pub honor_affinity: bool,
    /// Whether nodes with taints that the pod does not tolerate are left out of the domains.
    pub honor_taints: bool,
}

/// A term of pod affinity or anti-affinity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AffinityTerm {
    /// Namespaces whose pods count.
    pub namespaces: Box<[Symbol]>,
    /// Labels of further namespaces whose pods count.
    pub namespace_selector: Selector,
    /// Selects the pods that count.
    pub selector: Selector,
    /// The label whose values are the domains.
    pub topology_key: Symbol,
}

/// A preferred term of pod affinity or anti-affinity, with its weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weighted {
    /// 1 to 100.
    pub weight: i64,
    /// The term.
    pub term: AffinityTerm,
}

/// Pod affinity and anti-affinity of one pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodAffinity {
    /// Terms that must hold.
    pub required: Box<[AffinityTerm]>,
    /// Terms that must not hold.
    pub required_anti: Box<[AffinityTerm]>,
    /// Terms that raise a node's score.
    pub preferred: Box<[Weighted]>,
    /// Terms that lower a node's score.
    pub preferred_anti: Box<[Weighted]>,
}

/// A claim that a pod mounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Name of the claim, in the pod's namespace.
    pub name: Symbol,
    /// Whether the claim is made for the pod, from a template in it.
    pub ephemeral: bool,
}

/// A volume, other than a claim, that a plugin examines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Volume {
    /// A disk of Google Compute Engine.
    GceDisk {
        /// Its name.
        name: Symbol,
        /// Whether it is mounted read-only.
        read_only: bool,
    },
    /// A disk of Amazon's block store. Only one pod of a node may mount it, even read-only.
    AwsDisk {
        /// Its identifier.
        id: Symbol,
    },
    /// An iSCSI target.
    Iscsi {
        /// Its name.
        iqn: Symbol,
        /// Whether it is mounted read-only.
        read_only: bool,
    },
    /// A Ceph block device.
    Rbd {
        /// The addresses of Ceph's monitors.
        monitors: Box<[Symbol]>,
        /// Its pool.
        pool: Symbol,
        /// Its image.
        image: Symbol,
        /// Whether it is mounted read-only.
        read_only: bool,
    },
    /// An inline volume of a CSI driver.
    Csi {
        /// The driver.
        driver: Symbol,
    },
}

/// A pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Pod {
    /// `namespace/name`.
    pub key: Arc<str>,
    /// Its uid; its key if it has none.
    pub uid: Arc<str>,
    /// Its namespace.
    pub namespace: Symbol,
    /// Its name.
    pub name: Symbol,
    /// Its labels.
    pub labels: Labels,
    /// Pods of a higher priority come first, and may evict others.
    pub priority: i32,
    /// The priority class that it names; empty for none.
    pub priority_class: Symbol,
    /// Whether it must not evict other pods.
    pub never_preempts: bool,
    /// The name of the profile that places it (`spec.schedulerName`).
    pub scheduler: Arc<str>,
    /// The node that it runs on or requires; empty for none.
    pub node: Symbol,
    /// The node that was made free for it; empty for none.
    pub nominated: Symbol,
    /// When it was created, in milliseconds since 1970; 0 if unknown.
    pub created_ms: i64,
    /// When it started, in milliseconds since 1970; `None` if it has not started.
    pub started_ms: Option<i64>,
    /// Whether it is being deleted.
    pub terminating: bool,
    /// Whether it is being deleted to make room for a pod of a higher priority.
    pub preempted: bool,
    /// Whether it has ended (`Succeeded`, `Failed`) and so holds nothing.
    pub ended: bool,
    /// The scheduling gates that keep it out of the queue.
    pub gates: Box<[Arc<str>]>,
    /// The resources that it asks for.
    pub requests: Resources,
    /// As `requests`, with kube-scheduler's default amounts for containers that ask for none: CPU in thousandths of a
    /// core, memory in bytes.
    pub non_zero: (i64, i64),
    /// The taints that it tolerates.
    pub tolerations: Box<[Toleration]>,
    /// Labels that its node must have; `None` if it requires none.
    pub node_selector: Option<Labels>,
    /// The rules that its node must match.
    pub required_nodes: Option<NodeSelector>,
    /// The rules that its node should match; `None` if it has no preference.
    pub preferred_nodes: Option<Box<[Preferred]>>,
    /// The ports of the node that it asks for.
    pub ports: Box<[HostPort]>,
    /// Images of its init containers and containers, with their tags.
    pub images: Box<[Symbol]>,
    /// Its topology spread constraints.
    pub spread: Box<[Spread]>,
    /// The pods that it wants near it or far from it.
    pub affinity: Option<Box<PodAffinity>>,
    /// The claims that it mounts.
    pub claims: Box<[Claim]>,
    /// Other volumes that a plugin examines.
    pub volumes: Box<[Volume]>,
    /// API version, kind and name of its controller.
    pub controller: Option<(Symbol, Symbol, Symbol)>,
    /// Its request for shared devices, or why that cannot be read; `None` if it asks for none.
    pub devices: Option<Arc<Result<placement::Request, DevicesError>>>,
}

impl Pod {
    /// Reads a pod.
    ///
    /// # Errors
    ///
    /// When it has no name, when a field has another type than Kubernetes gives it, or when an amount or a selector
    /// cannot be read.
    pub fn read(names: &mut Names, object: &Value) -> Result<Self, ReadError> {
        let written =
            wire::PodObject::deserialize(object).map_err(|error| ReadError::Malformed {
                object: wire::named("pod", object),
                problem: error.to_string(),
            })?;
        let wire::PodObject {
            metadata,
            spec,
            status,
        } = written;
        if metadata.name.is_empty() {
            return Err(ReadError::Nameless { kind: "pod" });
        }
        let namespace = match metadata.namespace.as_str() {
            "" => "default",
            namespace => namespace,
        };
        let key = format!("{namespace}/{}", metadata.name);
        let subject = format!("pod {key}");
        let malformed = |problem: UnknownWord| ReadError::Malformed {
            object: subject.clone(),
            problem: problem.to_string(),
        };
        let labels = Labels::new(
            names,
            metadata
                .labels
                .iter()
                .map(|(key, value)| (&**key, &**value)),
        );
        let needs = Needs::of(&subject, &spec)?;
        let (requests, _) = resources::whole(names, &needs.asked);
        let (non_zero, _) = resources::whole(names, &needs.non_zero);
        let namespace = names.intern(namespace);
        let affinity = spec.affinity.as_ref();
        let nodes = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
        let mut claims = Vec::new();
        let mut volumes = Vec::new();
        for volume in &spec.volumes {
            if let Some(claim) = &volume.persistent_volume_claim {
                claims.push(Claim {
                    name: names.intern(&claim.claim_name),
                    ephemeral: false,
                });
            } else if volume.ephemeral.is_some() {
                let name = format!("{}-{}", metadata.name, volume.name);
                claims.push(Claim {
                    name: names.intern(&name),
                    ephemeral: true,
                });
            }
            volumes.extend(other_volume(names, volume));
        }
        let mut spreads = Vec::new();
        for written in &spec.topology_spread_constraints {
            spreads.push(spread(names, written, &labels).map_err(malformed)?);
        }
        let running = spec
            .containers
            .iter()
            .chain(spec.init_containers.iter().filter(|c| is_sidecar(c)));
        let mut ports = Vec::new();
        for port in running.flat_map(|container| &container.ports) {
            if port.host_port > 0 {
                ports.push(host_port(names, port));
            }
        }
        let uid = match metadata.uid.as_str() {
            "" => key.as_str(),
            uid => uid,
        };
        let controller = metadata
            .owner_references
            .iter()
            .find(|owner| owner.controller);
        Ok(Self {
            uid: uid.into(),
            name: names.intern(&metadata.name),
            priority: spec.priority.unwrap_or_default(),
            priority_class: names.intern(&spec.priority_class_name),
            never_preempts: spec.preemption_policy.as_deref() == Some("Never"),
            scheduler: match spec.scheduler_name.as_str() {
                "" => "default-scheduler".into(),
                name => name.into(),
            },
            node: names.intern(&spec.node_name),
            nominated: names.intern(&status.nominated_node_name),
            created_ms: metadata
                .creation_timestamp
                .as_deref()
                .and_then(milliseconds)
                .unwrap_or_default(),
            started_ms: status.start_time.as_deref().and_then(milliseconds),
            terminating: metadata.deletion_timestamp.is_some(),
            preempted: metadata.deletion_timestamp.is_some()
                && status
                    .conditions
                    .iter()
                    .find(|condition| condition.kind == "DisruptionTarget")
                    .is_some_and(|condition| {
                        condition.status == "True" && condition.reason == "PreemptionByScheduler"
                    }),
            ended: matches!(status.phase.as_str(), "Succeeded" | "Failed"),
            gates: spec
                .scheduling_gates
                .iter()
                .map(|gate| gate.name.as_str().into())
                .collect(),
            requests,
            non_zero: (non_zero.cpu_milli, non_zero.memory_bytes),
            tolerations: spec
                .tolerations
                .iter()
                .map(|written| toleration(names, written))
                .collect(),
            node_selector: spec.node_selector.as_ref().map(|labels| {
                Labels::new(names, labels.iter().map(|(key, value)| (&**key, &**value)))
            }),
            required_nodes: nodes
                .and_then(|nodes| {
                    nodes
                        .required_during_scheduling_ignored_during_execution
                        .as_ref()
                })
                .map(|written| node_selector(names, written)),
            preferred_nodes: nodes
                .and_then(|nodes| {
                    nodes
                        .preferred_during_scheduling_ignored_during_execution
                        .as_deref()
                })
                .map(|written| preferred(names, written)),
            ports: ports.into(),
            images: spec
                .init_containers
                .iter()
                .chain(&spec.containers)
                .map(|container| names.intern(&with_tag(&container.image)))
                .collect(),
            spread: spreads.into(),
            affinity: match affinity {
                Some(affinity) => pod_affinity(names, affinity, namespace, &labels)
                    .map_err(malformed)?
                    .map(Box::new),
                None => None,
            },
            claims: claims.into(),
            volumes: volumes.into(),
            controller: controller.map(|owner| {
                (
                    names.intern(&owner.api_version),
                    names.intern(&owner.kind),
                    names.intern(&owner.name),
                )
            }),
            devices: None,
            namespace,
            labels,
            key: key.into(),
        })
    }

    /// Whether a toleration of the pod covers the taint.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        self.tolerations
            .iter()
            .any(|toleration| toleration.tolerates(taint))
    }

    /// The first taint of the list that the pod does not tolerate.
    pub fn untolerated<'a>(&self, taints: &'a [Taint]) -> Option<&'a Taint> {
        taints.iter().find(|taint| {
            matches!(taint.effect, Effect::NoSchedule | Effect::NoExecute) && !self.tolerates(taint)
        })
    }

    /// Whether the pod's node selector and required node affinity allow a node with this name and these labels.
    pub fn allows_node(&self, names: &Names, name: Symbol, labels: &Labels) -> bool {
        let selected = self.node_selector.as_ref().is_none_or(|wanted| {
            wanted
                .iter()
                .all(|(key, value)| labels.get(key) == Some(value))
        });
        selected
            && self
                .required_nodes
                .as_ref()
                .is_none_or(|selector| selector.matches(names, name, labels))
    }
}

/// Milliseconds since 1970 of a time as Kubernetes writes it.
pub(super) fn milliseconds(text: &str) -> Option<i64> {
    text.parse::<jiff::Timestamp>()
        .ok()
        .map(jiff::Timestamp::as_millisecond)
}

fn is_sidecar(container: &wire::Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// The image's name, with `:latest` if it has no tag.
fn with_tag(image: &str) -> String {
    if image.rfind(':') <= image.rfind('/') {
        format!("{image}:latest")
    } else {
        image.to_owned()
    }
}

fn host_port(names: &mut Names, port: &wire::Port) -> HostPort {
    HostPort {
        ip: match port.host_ip.as_str() {
            "" => Symbol::ANY_IP,
            ip => names.intern(ip),
        },
        protocol: match port.protocol.as_str() {
            "UDP" => Protocol::Udp,
            "SCTP" => Protocol::Sctp,
            _ => Protocol::Tcp,
        },
        port: port.host_port,
    }
}

fn toleration(names: &mut Names, written: &core::Toleration) -> Toleration {
    let operator = written.operator.as_deref().unwrap_or_default();
    let value = written.value.as_deref().unwrap_or_default();
    Toleration {
        key: names.intern(written.key.as_deref().unwrap_or_default()),
        value: (operator != "Exists").then(|| names.intern(value)),
        effect: match written.effect.as_deref() {
            None | Some("") => None,
            Some(effect) => Some(Effect::read(effect)),
        },
        inert: !matches!(operator, "" | "Equal" | "Exists"),
    }
}

fn other_volume(names: &mut Names, volume: &wire::VolumeSource) -> Option<Volume> {
    if let Some(disk) = &volume.gce_persistent_disk {
        return Some(Volume::GceDisk {
            name: names.intern(&disk.pd_name),
            read_only: disk.read_only,
        });
    }
    if let Some(disk) = &volume.aws_elastic_block_store {
        return Some(Volume::AwsDisk {
            id: names.intern(&disk.volume_id),
        });
    }
    if let Some(disk) = &volume.iscsi {
        return Some(Volume::Iscsi {
            iqn: names.intern(&disk.iqn),
            read_only: disk.read_only,
        });
    }
    if let Some(disk) = &volume.rbd {
        return Some(Volume::Rbd {
            monitors: disk
                .monitors
                .iter()
                .map(|monitor| names.intern(monitor))
                .collect(),
            // The API server's default pool.
            pool: names.intern(disk.pool.as_deref().unwrap_or("rbd")),
            image: names.intern(&disk.image),
            read_only: disk.read_only,
        });
    }
    volume.csi.as_ref().map(|csi| Volume::Csi {
        driver: names.intern(&csi.driver),
    })
}

/// Rules that select the pod's own values of these label keys.
fn own_labels(
    names: &mut Names,
    keys: Option<&Vec<String>>,
    labels: &Labels,
    rule: fn(Box<[Symbol]>) -> Rule,
) -> Vec<Requirement> {
    let mut rules = Vec::new();
    for key in keys.into_iter().flatten() {
        let key = names.intern(key);
        if let Some(value) = labels.get(key) {
            rules.push(Requirement {
                key,
                rule: rule([value].into()),
            });
        }
    }
    rules
}

/// Reads a topology spread constraint; `labels` are those of the constraint's own pod.
pub(crate) fn spread(
    names: &mut Names,
    written: &core::TopologySpreadConstraint,
    labels: &Labels,
) -> Result<Spread, UnknownWord> {
    let keys = own_labels(names, written.match_label_keys.as_ref(), labels, Rule::In);
    Ok(Spread {
        max_skew: i64::from(written.max_skew),
        topology_key: names.intern(&written.topology_key),
        hard: match written.when_unsatisfiable.as_str() {
            "DoNotSchedule" => true,
            "ScheduleAnyway" => false,
            other => return Err(UnknownWord::WhenUnsatisfiable(other.to_owned())),
        },
        selector: selector::selector(names, written.label_selector.as_ref())?.with(keys),
        min_domains: written.min_domains.map_or(1, i64::from),
        honor_affinity: written.node_affinity_policy.as_deref() != Some("Ignore"),
        honor_taints: written.node_taints_policy.as_deref() == Some("Honor"),
    })
}

fn affinity_term(
    names: &mut Names,
    written: &core::PodAffinityTerm,
    namespace: Symbol,
    labels: &Labels,
) -> Result<AffinityTerm, UnknownWord> {
    let mut rules = own_labels(names, written.match_label_keys.as_ref(), labels, Rule::In);
    rules.extend(own_labels(
        names,
        written.mismatch_label_keys.as_ref(),
        labels,
        Rule::NotIn,
    ));
    let mut namespaces: Vec<Symbol> = written
        .namespaces
        .iter()
        .flatten()
        .map(|name| names.intern(name))
        .collect();
    if namespaces.is_empty() && written.namespace_selector.is_none() {
        namespaces.push(namespace);
    }
    Ok(AffinityTerm {
        namespaces: namespaces.into(),
        namespace_selector: selector::selector(names, written.namespace_selector.as_ref())?,
        selector: selector::selector(names, written.label_selector.as_ref())?.with(rules),
        topology_key: names.intern(&written.topology_key),
    })
}

fn pod_affinity(
    names: &mut Names,
    written: &core::Affinity,
    namespace: Symbol,
    labels: &Labels,
) -> Result<Option<PodAffinity>, UnknownWord> {
    let mut terms = |list: Option<&Vec<core::PodAffinityTerm>>| {
        list.into_iter()
            .flatten()
            .map(|term| affinity_term(names, term, namespace, labels))
            .collect::<Result<Box<[AffinityTerm]>, UnknownWord>>()
    };
    let near = written.pod_affinity.as_ref();
    let far = written.pod_anti_affinity.as_ref();
    let required = terms(near.and_then(|near| {
        near.required_during_scheduling_ignored_during_execution
            .as_ref()
    }))?;
    let required_anti = terms(far.and_then(|far| {
        far.required_during_scheduling_ignored_during_execution
            .as_ref()
    }))?;
    let mut weighted = |list: Option<&Vec<core::WeightedPodAffinityTerm>>| {
        list.into_iter()
            .flatten()
            .map(|written| {
                Ok(Weighted {
                    weight: i64::from(written.weight),
                    term: affinity_term(names, &written.pod_affinity_term, namespace, labels)?,
                })
            })
            .collect::<Result<Box<[Weighted]>, UnknownWord>>()
    };
    let preferred = weighted(near.and_then(|near| {
        near.preferred_during_scheduling_ignored_during_execution
            .as_ref()
    }))?;
    let preferred_anti = weighted(far.and_then(|far| {
        far.preferred_during_scheduling_ignored_during_execution
            .as_ref()
    }))?;
    let some = !(required.is_empty()
        && required_anti.is_empty()
        && preferred.is_empty()
        && preferred_anti.is_empty());
    Ok(some.then_some(PodAffinity {
        required,
        required_anti,
        preferred,
        preferred_anti,
    }))
}

/// The resources that a pod asks for, exactly.
struct Needs {
    asked: Exact,
    /// With kube-scheduler's default amounts for containers that ask for no CPU or no memory.
    non_zero: Exact,
}

impl Needs {
    fn of(subject: &str, spec: &wire::PodSpec) -> Result<Self, ReadError> {
        let mut of_pod = Exact::new();
        if let Some(needs) = &spec.resources {
            of_pod = resources::exact(subject, "spec.resources.requests", &needs.requests)?;
            of_pod.retain(|name, _| {
                matches!(name.as_str(), resources::CPU | resources::MEMORY)
                    || name.starts_with("hugepages-")
            });
        }
        let mut overhead = Exact::new();
        if let Some(amounts) = &spec.overhead {
            overhead = resources::exact(subject, "spec.overhead", amounts)?;
        }
        let mut asked = Self::containers(subject, spec, &[])?;
        finish(&mut asked, &of_pod, &overhead);
        let mut figures = vec![
            (resources::CPU, resources::DEFAULT_CPU),
            (resources::MEMORY, resources::DEFAULT_MEMORY),
        ];
        if !of_pod.is_empty() {
            // A pod that states the sum of its containers for a resource needs no default amount for it.
            figures.retain(|(name, _)| !asked.contains_key(*name));
        }
        let mut non_zero = Self::containers(subject, spec, &figures)?;
        finish(&mut non_zero, &of_pod, &overhead);
        Ok(Self { asked, non_zero })
    }

    /// The largest amount needed at any time: all containers and sidecars together, or an init container together
    /// with the sidecars that were started before it.
    fn containers(
        subject: &str,
        spec: &wire::PodSpec,
        figures: &[(&str, i128)],
    ) -> Result<Exact, ReadError> {
        let needs = |container: &wire::Container| {
            let field = format!("container {}: requests", container.name);
            let requests = &container.resources.requests;
            let mut exact = resources::exact(subject, &field, requests)?;
            // As in the API server, a limit without a request is the request.
            let field = format!("container {}: limits", container.name);
            for (name, amount) in resources::exact(subject, &field, &container.resources.limits)? {
                exact.entry(name).or_insert(amount);
            }
            for (name, figure) in figures {
                exact.entry((*name).to_owned()).or_insert(*figure);
            }
            Ok(exact)
        };
        let mut together = Exact::new();
        for container in &spec.containers {
            plus(&mut together, &needs(container)?);
        }
        let mut sidecars = Exact::new();
        let mut at_start = Exact::new();
        for container in &spec.init_containers {
            let mut now = needs(container)?;
            if is_sidecar(container) {
                plus(&mut together, &now);
                plus(&mut sidecars, &now);
                now = sidecars.clone();
            } else {
                plus(&mut now, &sidecars);
            }
            at_least(&mut at_start, &now);
        }
        at_least(&mut together, &at_start);
        Ok(together)
    }
}

fn finish(amounts: &mut Exact, of_pod: &Exact, overhead: &Exact) {
    for (name, amount) in of_pod {
        amounts.insert(name.clone(), *amount);
    }
    plus(amounts, overhead);
}

fn plus(amounts: &mut Exact, more: &BTreeMap<String, i128>) {
    for (name, amount) in more {
        let sum = amounts.entry(name.clone()).or_default();
        *sum = sum.saturating_add(*amount);
    }
}

fn at_least(amounts: &mut Exact, other: &Exact) {
    for (name, amount) in other {
        let most = amounts.entry(name.clone()).or_insert(*amount);
        *most = (*most).max(*amount);
    }
}
