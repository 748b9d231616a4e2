//! The end of a pod's trace: a span from the moment a container got its directory to the first kernel that it
//! launched. Only if traces are on. Reads only directories owned by root or by the user that runs this, and
//! of those only the ones whose container has not launched yet.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use server::{TraceContext, Traces};
use supervisor::clock::monotonic_ns;
use supervisor::instance::{self, Instance, Labels};
use supervisor::view::{self, ContainerView};

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
    /// No look has been taken yet: a container that has launched by now did so before this process watched.
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
        self.fresh = false;
    }

    /// When the container was created, and whether it needs no more looks; `None` if it cannot be read yet.
    fn look_at(&self, instance: &Instance) -> Option<(u64, bool)> {
        let labels = instance.labels().ok()?;
        let Some(parent) = TraceContext::of_pod(labels.traceparent.as_deref(), &labels.pod_uid)
        else {
            return Some((labels.created_unix, true));
        };
        let view = view::read(instance).ok()?;
        let launches: u64 = view.devices.iter().fold(0, |sum: u64, device| {
            sum.saturating_add(device.compute.launches)
                .saturating_add(device.compute.graph_launches)
        });
        if launches == 0 {
            return Some((labels.created_unix, false));
        }
        // The region says when the last launch was: where there was one only, that is the first.
        let exact = (launches == 1).then(|| last_launch(&view)).flatten();
        if !self.fresh || exact.is_some() {
            self.tell(&labels, parent, exact);
        }
        Some((labels.created_unix, true))
    }

    fn tell(&self, labels: &Labels, parent: TraceContext, exact: Option<SystemTime>) {
        let mut span = self.traces.span("first_kernel", Some(parent));
        span.set("k8s.node.name", self.node.as_str());
        span.set("k8s.namespace.name", labels.namespace.as_str());
        span.set("k8s.pod.name", labels.pod.as_str());
        span.set("k8s.pod.uid", labels.pod_uid.as_str());
        span.set("k8s.container.name", labels.container.as_str());
        span.set(
            "vgpu.time_from",
            if exact.is_some() { "region" } else { "look" },
        );
        let began = UNIX_EPOCH + Duration::from_secs(labels.created_unix.min(u64::from(u32::MAX)));
        span.lasted(began, exact.unwrap_or_else(SystemTime::now));
    }
}

/// Wall-clock time of the last launch; `None` if the region does not have it.
fn last_launch(view: &ContainerView) -> Option<SystemTime> {
    let at_ns = view
        .devices
        .iter()
        .map(|device| device.compute.last_launch_ns)
        .max()?;
    let ago = monotonic_ns().checked_sub(at_ns).filter(|_| at_ns != 0)?;
    SystemTime::now().checked_sub(Duration::from_nanos(ago))
}
