//! When this process ends because its container lacks the driver's files. NVIDIA's runtime puts the driver's library
//! and device nodes into a container once, when it starts. A driver that is installed or replaced later is out of this
//! process's reach: only a new container has its files, and the kubelet starts one when this process ends.
//!
//! Never queries the driver: the threads that do so report here.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long a node without a driver is waited for. The kubelet forgets its growing pauses between two starts of a
/// container that has run for ten minutes, so a driver is found soon after it appears even where the kernel's module
/// cannot be seen.
const NO_DRIVER: Duration = Duration::from_secs(11 * 60);
/// How often is looked.
const LOOK: Duration = Duration::from_secs(1);

/// The driver's files as the threads find them that open the driver. Clones are the same.
#[derive(Debug, Clone)]
pub struct DriverFiles(Arc<DriverFilesState>);

#[derive(Debug)]
struct DriverFilesState {
    /// The kernel says here which version of NVIDIA's module it has.
    module: PathBuf,
    /// How long the files may be unusable while the kernel has a driver; `None` means without limit.
    patience: Option<Duration>,
    failing: Mutex<Option<Failing>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Failing {
    since: Instant,
    reason: String,
}

impl DriverFiles {
    /// `sysfs` is the kernel's; a patience of 0 is for ever.
    #[must_use]
    pub fn new(sysfs: &Path, patience: Duration) -> Self {
        Self(Arc::new(DriverFilesState {
            module: sysfs.join("module/nvidia/version"),
            patience: (!patience.is_zero()).then_some(patience),
            failing: Mutex::new(None),
        }))
    }

    /// The driver's library could be loaded and started.
    pub fn work(&self) {
        self.0.failing.lock().take();
    }

    /// The library is missing, is not of the kernel module's version, or finds no device node.
    pub fn fail(&self, reason: &dyn Display) {
        let mut failing = self.0.failing.lock();
        let since = failing
            .as_ref()
            .map_or_else(Instant::now, |known| known.since);
        *failing = Some(Failing {
            since,
            reason: reason.to_string(),
        });
    }

    /// Waits until this container's files are out of date. The process ends with the returned text.
    pub async fn outdated(&self) -> String {
        let Some(patience) = self.0.patience else {
            return std::future::pending().await;
        };
        let mut beside_driver = None;
        loop {
            let failing = self.0.failing.lock().clone();
            let version = std::fs::read_to_string(&self.0.module).ok();
            let version = version.as_deref().map(str::trim);
            let now = Instant::now();
            let why = judge(failing.as_ref(), version, &mut beside_driver, patience, now);
            if let Some(why) = why {
                return why;
            }
            tokio::time::sleep(LOOK.min(patience)).await;
        }
    }
}

/// Why the process ends now, if it does. `beside_driver` is since when the files fail while the kernel has a driver.
fn judge(
    failing: Option<&Failing>,
    version: Option<&str>,
    beside_driver: &mut Option<Instant>,
    patience: Duration,
    now: Instant,
) -> Option<String> {
    let (Some(failing), Some(version)) = (failing, version) else {
        *beside_driver = None;
        let failing = failing.filter(|failing| now - failing.since >= NO_DRIVER)?;
        return Some(format!(
            "no NVIDIA driver could be used for {} minutes ({}), and the node's kernel has no NVIDIA module: this \
             process ends, so that the kubelet starts its container anew and a driver that was installed meanwhile is \
             found; running containers are not affected",
            NO_DRIVER.as_secs() / 60,
            failing.reason
        ));
    };
    let since = *beside_driver.get_or_insert(now);
    (now - since >= patience).then(|| {
        format!(
            "this container has had no usable files of the NVIDIA driver for {} s ({}), while the node's kernel has \
             NVIDIA's module {version}: this process ends, so that the kubelet starts its container anew with the \
             driver's present files; running containers are not affected",
            patience.as_secs(),
            failing.reason
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn failing(since: Instant) -> Failing {
        Failing {
            since,
            reason: String::from("no library"),
        }
    }

    /// What is judged of files that have failed since second 0: by the version of the kernel's module, and the second.
    fn judging() -> impl FnMut(Option<&str>, u64) -> Option<String> {
        let start = Instant::now();
        let fails = failing(start);
        let mut beside = None;
        move |version, seconds| {
            let now = start + Duration::from_secs(seconds);
            judge(Some(&fails), version, &mut beside, PATIENCE, now)
        }
    }

    #[test]
    fn working_files_never_end_the_process() {
        let now = Instant::now();
        let mut beside = Some(now);

        assert_eq!(judge(None, Some("550"), &mut beside, PATIENCE, now), None);

        assert_eq!(beside, None);
    }

    #[test]
    fn patience_begins_when_the_driver_appears() {
        let mut judged = judging();

        assert_eq!(judged(None, 0), None);
        assert_eq!(judged(None, 100), None);
        assert_eq!(judged(Some("550.54.15"), 101), None);
        assert_eq!(judged(Some("550.54.15"), 130), None);
        let said = judged(Some("550.54.15"), 131).unwrap();
        assert!(
            said.contains("for 30 s (no library)") && said.contains("module 550.54.15"),
            "{said}"
        );
    }

    #[test]
    fn unloaded_module_restarts_the_patience() {
        let mut judged = judging();

        assert_eq!(judged(Some("550"), 0), None);
        assert_eq!(judged(None, 20), None);
        assert_eq!(judged(Some("560"), 40), None);
        assert_eq!(judged(Some("560"), 69), None);
        assert!(judged(Some("560"), 70).is_some());
    }

    #[test]
    fn node_without_a_driver_is_looked_at_from_a_new_container_after_eleven_minutes() {
        let mut judged = judging();

        assert_eq!(judged(None, 659), None);
        let said = judged(None, 660).unwrap();
        assert!(said.contains("for 11 minutes (no library)"), "{said}");
    }

    #[tokio::test(start_paused = true)]
    async fn patience_of_zero_is_for_ever() {
        let files = DriverFiles::new(Path::new("/nowhere"), Duration::ZERO);
        files.fail(&"no library");

        let waited = tokio::time::timeout(Duration::from_secs(10_000), files.outdated()).await;

        assert!(waited.is_err());
    }
}
