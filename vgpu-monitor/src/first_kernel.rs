//! The end of a pod's trace: a span from the moment a container got its directory to the first kernel that it
//! launched. Only if traces are on. Reads only directories owned by root or by the user that runs this, and
//! of those only the ones whose container has not launched yet.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use server::{TraceContext, Traces};
use supervisor::clock::monotonic_ns;
use supervisor::instance::{self, Instance, Labels};
use supervisor::view;

/// How often it looks: as exact as the span's end is where the region does not say when it was.
const EVERY: Duration = Duration::from_secs(1);
/// Containers that are looked at in one go; the others come with the next one.
const AT_ONCE: usize = 256;

/// Which containers' first kernels are awaited.
#[derive(Debug)]
pub struct FirstKernels {
    root: PathBuf,
    node: String,
    traces: Traces,
    our_uid: u32,
    /// By directory: since when it is there, and whether there is nothing more to await.
    known: HashMap<PathBuf, (u64, bool)>,
    /// No look has read all containers yet: one that has launched by now may have done so before this process watched.
    fresh: bool,
}

impl FirstKernels {
    /// Watches the containers below `root`.
    #[must_use]
    pub fn new(root: &Path, node: &str, traces: Traces) -> Self {
        Self {
            root: root.to_owned(),
            node: node.to_owned(),
            traces,
            our_uid: nix::unistd::geteuid().as_raw(),
            known: HashMap::new(),
            fresh: true,
        }
    }

    /// Looks from now on, on a thread of its own, until the process ends.
    ///
    /// # Errors
    ///
    /// The system gives no thread.
    pub fn start(mut self) -> std::io::Result<()> {
        let thread = std::thread::Builder::new().name("first-kernel".into());
        thread.spawn(move || {
            loop {
                self.look();
                std::thread::sleep(EVERY);
            }
        })?;
        Ok(())
    }

    /// One look; a span for each container that has launched since the one before.
    pub fn look(&mut self) {
        let mut there: HashMap<PathBuf, (u64, bool)> = HashMap::with_capacity(self.known.len());
        let mut read = 0;
        let scanned = instance::scan(&self.root, &mut |instance| {
            if instance.owner() != 0 && instance.owner() != self.our_uid {
                return;
            }
            let path = instance.path().to_owned();
            let known = self.known.get(&path).copied();
            if let Some((_, true)) = known {
                there.extend(known.map(|known| (path, known)));
                return;
            }
            read += 1;
            if read > AT_ONCE {
                there.extend(known.map(|known| (path, known)));
                return;
            }
            let state = self.look_at(&instance);
            there.extend(state.map(|state| (path, state)));
        });
        if let Err(error) = scanned {
            tracing::debug!(%error, "no first kernels: the containers cannot be read");
            return;
        }
        // A directory that is gone is forgotten, and a new one of its name is a new container.
        self.known = there;
        self.fresh = self.fresh && read > AT_ONCE;
    }

    /// When the container was created, and whether it needs no more looks; `None` if it cannot be read yet.
    fn look_at(&self, instance: &Instance) -> Option<(u64, bool)> {
        let labels = instance.labels().ok()?;
        let Some(parent) = TraceContext::of_pod(labels.traceparent.as_deref(), &labels.pod_uid)
        else {
            return Some((labels.created_unix, true));
        };
        let view = view::read(instance).ok()?;
        let launches = view.devices.iter().map(|device| {
            let compute = &device.compute;
            (
                compute.launches,
                compute.graph_launches,
                compute.last_launch_ns,
            )
        });
        let found = Launched::of(launches, monotonic_ns());
        let wall = SystemTime::now();
        if let Some(end) = found.end(self.fresh, wall) {
            self.tell(&labels, parent, &end);
        }
        Some((labels.created_unix, found != Launched::Never))
    }

    fn tell(&self, labels: &Labels, parent: TraceContext, end: &SpanEnd) {
        let mut span = self.traces.span("first_kernel", Some(parent));
        span.set("k8s.node.name", self.node.as_str());
        span.set("k8s.namespace.name", labels.namespace.as_str());
        span.set("k8s.pod.name", labels.pod.as_str());
        span.set("k8s.pod.uid", labels.pod_uid.as_str());
        span.set("k8s.container.name", labels.container.as_str());
        span.set("vgpu.time_from", end.from);
        let began = UNIX_EPOCH + Duration::from_secs(labels.created_unix.min(u64::from(u32::MAX)));
        span.lasted(began, end.at);
    }
}

/// What a container has launched so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Launched {
    /// Nothing.
    Never,
    /// One launch, this long ago.
    Once(Duration),
    /// The region does not say when the first launch was.
    Before,
}

impl Launched {
    /// By the kernels, the graphs and the time of the last launch of each device, as monotonic nanoseconds.
    fn of(devices: impl Iterator<Item = (u64, u64, u64)>, now_ns: u64) -> Self {
        let (mut launches, mut last_ns) = (0_u64, 0);
        for (kernels, graphs, at_ns) in devices {
            launches = launches.saturating_add(kernels).saturating_add(graphs);
            last_ns = last_ns.max(at_ns);
        }
        match (launches, now_ns.checked_sub(last_ns)) {
            (0, _) => Self::Never,
            // The last launch is the first where there was one only.
            (1, Some(ago_ns)) if last_ns != 0 => Self::Once(Duration::from_nanos(ago_ns)),
            _ => Self::Before,
        }
    }

    /// The end of the span; `None` if there is none to send. `is_first_look`: launches without a time may have been made
    /// before this process watched.
    fn end(self, is_first_look: bool, now: SystemTime) -> Option<SpanEnd> {
        let exact = match self {
            Self::Never => return None,
            Self::Once(ago) => now.checked_sub(ago),
            Self::Before => None,
        };
        match exact {
            Some(at) => Some(SpanEnd { at, from: "region" }),
            None if is_first_look => None,
            None => Some(SpanEnd {
                at: now,
                from: "look",
            }),
        }
    }
}

/// When the first kernel was launched, as exactly as is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SpanEnd {
    at: SystemTime,
    /// What the time is from: the container's region, or the look that found the launch.
    from: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_NS: u64 = 5_000;

    fn launched(devices: &[(u64, u64, u64)]) -> Launched {
        Launched::of(devices.iter().copied(), NOW_NS)
    }

    #[test]
    fn container_has_launched_when_any_device_has() {
        assert_eq!(launched(&[]), Launched::Never);
        assert_eq!(launched(&[(0, 0, 0), (0, 0, 0)]), Launched::Never);
        let ago = |ns| Launched::Once(Duration::from_nanos(ns));
        assert_eq!(launched(&[(1, 0, 4_000)]), ago(1_000));
        assert_eq!(launched(&[(0, 1, 4_000)]), ago(1_000), "a graph");
        assert_eq!(launched(&[(0, 0, 0), (1, 0, 4_000)]), ago(1_000));
        assert_eq!(launched(&[(1, 0, 4_000), (0, 0, 0)]), ago(1_000));
    }

    #[test]
    fn time_of_the_first_launch_is_known_while_there_is_one_only() {
        assert_eq!(launched(&[(2, 0, 4_000)]), Launched::Before);
        assert_eq!(launched(&[(1, 1, 4_000)]), Launched::Before);
        assert_eq!(launched(&[(1, 0, 3_000), (1, 0, 4_000)]), Launched::Before);
        // Sums of a damaged region.
        assert_eq!(launched(&[(u64::MAX, 2, 4_000)]), Launched::Before);
        assert_eq!(
            launched(&[(2, 0, 4_000), (u64::MAX, 0, 4_000)]),
            Launched::Before
        );
    }

    #[test]
    fn time_that_cannot_be_is_no_time() {
        assert_eq!(launched(&[(1, 0, 0)]), Launched::Before);
        assert_eq!(launched(&[(1, 0, NOW_NS + 1)]), Launched::Before);
        assert_eq!(launched(&[(1, 0, NOW_NS)]), Launched::Once(Duration::ZERO));
    }

    #[test]
    fn span_ends_at_the_launch_or_at_the_look_that_found_it() {
        let now = UNIX_EPOCH + Duration::from_secs(100);
        let ago = Duration::from_secs(3);
        let end = |at, from| Some(SpanEnd { at, from });
        assert_eq!(Launched::Never.end(false, now), None);
        assert_eq!(Launched::Before.end(false, now), end(now, "look"));
        for is_first_look in [false, true] {
            let found = Launched::Once(ago).end(is_first_look, now);
            assert_eq!(found, end(now - ago, "region"));
        }
    }

    #[test]
    fn launch_before_this_process_watched_ends_no_span() {
        let now = UNIX_EPOCH + Duration::from_secs(100);
        assert_eq!(Launched::Before.end(true, now), None);
        assert_eq!(Launched::Never.end(true, now), None);
        // A clock that was set far back does not know the moment.
        let long = Launched::Once(Duration::MAX);
        assert_eq!(long.end(true, now), None);
        assert_eq!(
            long.end(false, now).map(|end| (end.at, end.from)),
            Some((now, "look"))
        );
    }
}
