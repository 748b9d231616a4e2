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
    said: Said,
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
            said: Said::default(),
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
        if self.said.is_news(AGAIN, key, now) {
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
        let again = asked_again_after(dry_run, grace);
        if is_too_soon(self.evicted, every, now)
            || !self.said.is_news(again, format!("evict/{uid}"), now)
        {
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
        let key = format!("gap/{}/{}", gap.path.display(), gap.device);
        if !self.said.is_news(AGAIN, key, now) {
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
}

/// The reports that were made, with the time of the last one of each kind.
#[derive(Debug, Default)]
struct Said(HashMap<String, Instant>);

impl Said {
    /// Whether a report was not made within `again`. Then it counts as made now.
    fn is_news(&mut self, again: Duration, key: String, now: Instant) -> bool {
        if self.0.len() >= MOST {
            self.0
                .retain(|_, at| now.saturating_duration_since(*at) < AGAIN);
        }
        if self.0.len() >= MOST {
            self.0.clear();
        }
        match self.0.get(&key) {
            Some(at) if now.saturating_duration_since(*at) < again => false,
            _ => {
                self.0.insert(key, now);
                true
            }
        }
    }
}

/// Whether less than `every` has passed since the last eviction.
fn is_too_soon(last: Option<Instant>, every: Duration, now: Instant) -> bool {
    last.is_some_and(|at| now.saturating_duration_since(at) < every)
}

/// The time after which the eviction of a pod is asked for again: its grace, when it is to be deleted. In a dry run no
/// pod goes away, so each is asked for once in a while.
fn asked_again_after(dry_run: bool, grace: Duration) -> Duration {
    if dry_run { AGAIN } else { grace }
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

#[cfg(test)]
mod tests {
    use super::*;

    const NANOSECOND: Duration = Duration::from_nanos(1);

    #[test]
    fn only_a_process_of_the_pod_itself_evicts_it() {
        let known = ManagedContainer {
            pod: "p".to_owned(),
            pod_uid: "u".to_owned(),
            sharers: ["s".to_owned()].into(),
            ..ManagedContainer::default()
        };
        assert!(is_evictable(&known, Reason::NoLibrary, "u"));
        // A claim that several pods share; a process that has got into another pod's directory.
        assert!(is_evictable(&known, Reason::NoLibrary, "s"));
        assert!(!is_evictable(&known, Reason::NoLibrary, "another"));
        // A container of `vgpu run` has no pod.
        let of_run = ManagedContainer::default();
        assert!(!is_evictable(&of_run, Reason::NoLibrary, ""));
    }

    #[test]
    fn reasons_that_evict_are_those_of_a_process_without_limits() {
        let known = ManagedContainer {
            pod: "p".to_owned(),
            pod_uid: "u".to_owned(),
            ..ManagedContainer::default()
        };
        for (reason, evicts) in [
            (Reason::None, false),
            (Reason::NoLibrary, true),
            (Reason::ForeignLibrary, true),
            (Reason::Bypassed, true),
            (Reason::ForeignLimits, true),
            (Reason::NotAsked, false),
            (Reason::Host, false),
            (Reason::Hidden, false),
        ] {
            assert_eq!(is_evictable(&known, reason, "u"), evicts, "{reason:?}");
        }
    }

    #[test]
    fn report_is_made_again_after_its_time() {
        let mut said = Said::default();
        let start = Instant::now();
        let minute = Duration::from_secs(60);
        let mut is_news = |key: &str, now| said.is_news(minute, key.to_owned(), now);
        assert!(is_news("a", start));
        assert!(is_news("b", start + NANOSECOND));
        assert!(!is_news("a", start + minute - NANOSECOND));
        // A report that was not made again did not postpone the next one.
        assert!(is_news("a", start + minute));
        assert!(!is_news("a", start + minute + NANOSECOND));
    }

    #[test]
    fn remembered_reports_have_a_bound() {
        let mut said = Said::default();
        let start = Instant::now();
        for number in 0..MOST {
            assert!(said.is_news(AGAIN, number.to_string(), start));
        }
        // All are recent, so all are forgotten, and are made again.
        assert!(said.is_news(AGAIN, "more".to_owned(), start));
        assert_eq!(said.0.len(), 1);
        assert!(said.is_news(AGAIN, "0".to_owned(), start));
        // Old ones are forgotten first.
        let later = start + AGAIN;
        for number in 0..MOST - 2 {
            said.is_news(AGAIN, format!("later {number}"), later);
        }
        assert!(said.is_news(AGAIN, "last".to_owned(), later));
        assert_eq!(said.0.len(), MOST - 1);
        assert!(!said.is_news(AGAIN, "later 0".to_owned(), later));
    }

    #[test]
    fn evictions_keep_their_distance() {
        let (start, every) = (Instant::now(), Duration::from_secs(30));
        assert!(!is_too_soon(None, every, start));
        assert!(is_too_soon(Some(start), every, start + every - NANOSECOND));
        assert!(!is_too_soon(Some(start), every, start + every));
        assert_eq!(asked_again_after(false, every), every);
        assert_eq!(asked_again_after(true, every), AGAIN);
    }
}
