//! Reports a process that holds a GPU past its limits: to which objects, in which words, and how often. Never
//! judges.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use events::{Events, Kind};

use super::cluster::{Cluster, Evict};
use super::verdict::{Ground, ManagedContainer, Reason};
use super::watch::GpuHolder;
use crate::reconcile::Gap;

/// A repeated report is made again after this.
const AGAIN: Duration = Duration::from_secs(1800);
/// At most this many reports are remembered; a forgotten one is made again.
const MOST: usize = 4096;

/// The reaction to a pod with a process past its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The pods are named in events and metrics.
    Report,
    /// The pods are evicted; with `dry_run` the API server is asked whether it would.
    Evict {
        /// Only ask the API server whether it would evict; evict no pod.
        dry_run: bool,
        /// A pod whose eviction is refused is deleted after this.
        grace: Duration,
        /// Time between two evictions.
        every: Duration,
    },
}

/// Writes the reports, each one once in a while.
#[derive(Debug)]
pub struct Teller {
    node: String,
    policy: Policy,
    events: Events,
    cluster: Cluster,
    said: HashMap<String, Instant>,
    evicted: Option<Instant>,
}

impl Teller {
    /// A teller without any report yet.
    #[must_use]
    pub fn new(node: &str, policy: Policy, events: Events, cluster: Cluster) -> Self {
        Self {
            node: node.to_owned(),
            policy,
            events,
            cluster,
            said: HashMap::new(),
            evicted: None,
        }
    }

    /// Tells of a process whose verdict is bad and confirmed.
    pub fn process(&mut self, holder: &GpuHolder, ground: &Ground, now: Instant) {
        let known = holder
            .judged
            .container
            .as_ref()
            .and_then(|path| ground.containers.get(path));
        let place = holder.facts.place.as_ref();
        let uid = place.map_or("", |place| place.pod_uid.as_str());
        let named = ground.pod(known, uid);
        let reason = holder.judged.reason;
        let key = format!(
            "{uid}/{}/{}/{}",
            known.map_or("", |known| known.container.as_str()),
            reason.as_str(),
            holder.facts.program
        );
        if self.is_news(key, now) {
            let text = sentence(holder, known, place.is_some());
            tracing::warn!(pid = holder.facts.pid, reason = reason.as_str(), "{text}");
            let event = event_reason(reason);
            if let Some((namespace, pod)) = named
                && !pod.is_empty()
            {
                self.events
                    .pod((namespace, pod, uid), Kind::Warning, event, text.clone());
                self.events.node(
                    &self.node,
                    Kind::Warning,
                    event,
                    format!("pod {namespace}/{pod}: {text}"),
                );
            } else {
                self.events.node(&self.node, Kind::Warning, event, text);
            }
        }
        if known.is_some_and(|known| is_evictable(known, reason, uid)) {
            // A pod of a shared claim is named by the API server, which may not have answered yet.
            if let Some((namespace, pod)) = named {
                self.evict((namespace, pod, uid), false, now);
            }
        } else if reason == Reason::NotAsked
            && let Some((namespace, pod)) = ground.pods.get(uid)
        {
            self.evict((namespace, pod, uid), true, now);
        }
    }

    fn evict(
        &mut self,
        (namespace, pod, uid): (&str, &str, &str),
        never_asked: bool,
        now: Instant,
    ) {
        let Policy::Evict {
            dry_run,
            grace,
            every,
        } = self.policy
        else {
            return;
        };
        let waits = self
            .evicted
            .is_some_and(|at| now.saturating_duration_since(at) < every);
        // A pod is asked for again only after its grace, when it is to be deleted. In a dry run nothing goes away, so
        // each pod is asked for once in a while.
        let again = if dry_run { AGAIN } else { grace };
        if waits || !self.is_news_after(again, format!("evict/{uid}"), now) {
            return;
        }
        let asked = self.cluster.evict(Evict {
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            uid: uid.to_owned(),
            dry_run,
            never_asked,
            grace,
            at: now,
        });
        if asked {
            self.evicted = Some(now);
        }
    }

    /// Reports memory that is not charged.
    pub fn gap(
        &mut self,
        gap: &Gap,
        known: &ManagedContainer,
        programs: &HashMap<u32, String>,
        now: Instant,
    ) {
        if !self.is_news(format!("gap/{}/{}", gap.path.display(), gap.device), now) {
            return;
        }
        let text = gap_sentence(gap, known, programs);
        tracing::warn!(path = %gap.path.display(), "{text}");
        if known.pod.is_empty() {
            return;
        }
        self.events.pod(
            (
                known.namespace.as_str(),
                known.pod.as_str(),
                known.pod_uid.as_str(),
            ),
            Kind::Warning,
            "GPUMemoryUnaccounted",
            text,
        );
    }

    fn is_news(&mut self, key: String, now: Instant) -> bool {
        self.is_news_after(AGAIN, key, now)
    }

    fn is_news_after(&mut self, again: Duration, key: String, now: Instant) -> bool {
        if self.said.len() >= MOST {
            self.said
                .retain(|_, at| now.saturating_duration_since(*at) < AGAIN);
        }
        if self.said.len() >= MOST {
            self.said.clear();
        }
        match self.said.get(&key) {
            Some(at) if now.saturating_duration_since(*at) < again => false,
            _ => {
                self.said.insert(key, now);
                true
            }
        }
    }
}

/// A pod that asked for our resources is evicted only if this host wrote whose it is, and the process really is in it.
fn is_evictable(known: &ManagedContainer, reason: Reason, uid: &str) -> bool {
    !known.pod.is_empty()
        && known.is_of(uid)
        && matches!(
            reason,
            Reason::NoLibrary | Reason::ForeignLibrary | Reason::Bypassed | Reason::ForeignLimits
        )
}

fn event_reason(reason: Reason) -> &'static str {
    match reason {
        Reason::ForeignLimits => "GPUForeignLimits",
        _ => "GPUProcessUnmanaged",
    }
}

fn sentence(holder: &GpuHolder, known: Option<&ManagedContainer>, in_pod: bool) -> String {
    let facts = &holder.facts;
    let devices: Vec<&str> = facts.devices.iter().map(String::as_str).collect();
    let program = match facts.program.as_str() {
        "" => String::new(),
        program => format!(" ({program})"),
    };
    let holds = match devices.as_slice() {
        [] => String::from("a GPU"),
        devices => devices.join(", "),
    };
    let owner = match known {
        Some(known) if !known.container.is_empty() => format!(" of container {}", known.container),
        _ if in_pod => String::new(),
        _ => String::from(" of the node"),
    };
    format!(
        "process {}{program}{owner} holds {holds}: {}",
        facts.pid,
        holder.judged.reason.text()
    )
}

fn gap_sentence(gap: &Gap, known: &ManagedContainer, programs: &HashMap<u32, String>) -> String {
    let mib = |bytes: u64| bytes >> 20;
    let holders: Vec<String> = gap
        .holders
        .iter()
        .take(5)
        .map(|holds| {
            let program = programs.get(&holds.pid).map_or("", String::as_str);
            let charged = match holds.charged_bytes {
                Some(bytes) => format!("{} MiB of it charged", mib(bytes)),
                None => String::from("it has no slot in the container's region"),
            };
            format!(
                "process {} ({program}) holds {} MiB, {charged}",
                holds.pid,
                mib(holds.held_bytes)
            )
        })
        .collect();
    format!(
        "container {} holds {} MiB of {} that are not charged to it: {}",
        known.container,
        mib(gap.bytes),
        gap.uuid,
        holders.join("; ")
    )
}
