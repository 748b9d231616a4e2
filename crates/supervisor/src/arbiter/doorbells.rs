//! The doorbells that the arbiter hears: files which containers' processes open when they begin to work. The kernel
//! reports by inotify that a file was opened, and the arbiter reads nothing that a tenant could have written.
//!
//! However often a file is opened, its events follow each other as one event until that is read. Two files can still
//! fill the kernel's queue. Events are lost then, so a full queue counts as a ring of every container.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

/// Reads of the kernel's queue at a time: what is left is read the next time.
const READS_MOST: usize = 4;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Doorbells {
    inotify: Option<Inotify>,
    by_watch: HashMap<WatchDescriptor, u64>,
    of_container: HashMap<u64, WatchDescriptor>,
}

impl Doorbells {
    /// Hears a container's doorbell from now on.
    pub(super) fn listen(&mut self, id: u64, doorbell: &File) -> Result<(), Errno> {
        let inotify = match &self.inotify {
            Some(inotify) => inotify,
            None => {
                let flags = InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC;
                self.inotify.insert(Inotify::init(flags)?)
            }
        };
        // The open file itself, whatever its name leads to by now.
        let path = format!("/proc/self/fd/{}", doorbell.as_raw_fd());
        let watch = inotify.add_watch(path.as_str(), AddWatchFlags::IN_OPEN)?;
        self.by_watch.insert(watch, id);
        if let Some(old) = self.of_container.insert(id, watch)
            && old != watch
        {
            self.by_watch.remove(&old);
            // The kernel has removed the watch of a file that is gone.
            inotify.rm_watch(old).ok();
        }
        Ok(())
    }

    /// Hears it no more.
    pub(super) fn leave(&mut self, id: u64) {
        if let (Some(watch), Some(inotify)) = (self.of_container.remove(&id), &self.inotify) {
            self.by_watch.remove(&watch);
            inotify.rm_watch(watch).ok();
        }
    }

    pub(super) fn hears(&self, id: u64) -> bool {
        self.of_container.contains_key(&id)
    }

    /// Keeps those of which this is so.
    pub(super) fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        let gone: Vec<u64> = self
            .of_container
            .keys()
            .copied()
            .filter(|id| !keep(*id))
            .collect();
        for id in gone {
            self.leave(id);
        }
    }

    /// The descriptor to wait on for the next ring.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        let is_heard = !self.of_container.is_empty();
        self.inotify.as_ref().filter(|_| is_heard).map(AsFd::as_fd)
    }

    /// The containers that rang since this was asked last.
    pub(super) fn rung(&mut self) -> Vec<u64> {
        let mut rung = Vec::new();
        let Some(inotify) = &self.inotify else {
            return rung;
        };
        for _ in 0..READS_MOST {
            let Ok(events) = inotify.read_events() else {
                break;
            };
            for event in events {
                if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                    rung.extend(self.of_container.keys());
                } else if event.mask.contains(AddWatchFlags::IN_IGNORED) {
                    // The file is gone. A watch that this process removed is not known any more.
                    if let Some(id) = self.by_watch.remove(&event.wd) {
                        self.of_container.remove(&id);
                    }
                } else {
                    rung.extend(self.by_watch.get(&event.wd));
                }
            }
        }
        rung.sort_unstable();
        rung.dedup();
        rung
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn doorbells(dir: &Path, ids: &[u64]) -> Doorbells {
        let mut doorbells = Doorbells::default();
        for id in ids {
            let file = File::create(dir.join(id.to_string())).unwrap();
            doorbells.listen(*id, &file).unwrap();
        }
        doorbells
    }

    fn ring(dir: &Path, id: u64) {
        File::open(dir.join(id.to_string())).unwrap();
    }

    #[test]
    fn opening_the_file_rings() {
        let dir = tempfile::tempdir().unwrap();
        let mut doorbells = doorbells(dir.path(), &[1, 2, 3]);
        assert!(doorbells.rung().is_empty());

        ring(dir.path(), 3);
        ring(dir.path(), 1);
        ring(dir.path(), 3);

        assert_eq!(doorbells.rung(), [1, 3]);
        assert!(doorbells.rung().is_empty());
    }

    #[test]
    fn a_doorbell_that_was_left_or_is_gone_is_not_heard() {
        let dir = tempfile::tempdir().unwrap();
        let mut doorbells = doorbells(dir.path(), &[1, 2, 3]);
        doorbells.leave(1);
        std::fs::remove_file(dir.path().join("2")).unwrap();
        ring(dir.path(), 1);
        ring(dir.path(), 3);

        assert_eq!(doorbells.rung(), [3]);
        assert!(!doorbells.hears(1) && !doorbells.hears(2) && doorbells.hears(3));
    }

    #[test]
    fn another_user_rings_through_a_mount_that_is_read_only() {
        let may = std::process::Command::new("unshare")
            .args(["-m", "true"])
            .status();
        if !may.is_ok_and(|status| status.success()) {
            println!("not allowed to make mounts");
            return;
        }
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(dir.path(), open).unwrap();
        std::fs::create_dir(dir.path().join("here")).unwrap();
        std::fs::create_dir(dir.path().join("inside")).unwrap();
        let mut doorbells = doorbells(&dir.path().join("here"), &[1]);

        // What a pod sees at /etc/vgpu, and a process in it without any right.
        let script = "mount --bind here inside && mount -o remount,bind,ro inside && \
                      ! touch inside/new 2>&1 && \
                      setpriv --reuid 65534 --regid 65534 --clear-groups cat inside/1";
        let output = std::process::Command::new("unshare")
            .args(["-m", "sh", "-c", script])
            .current_dir(dir.path())
            .output()
            .unwrap();

        assert!(output.status.success(), "{output:?}");
        assert_eq!(doorbells.rung(), [1]);
    }

    #[test]
    fn full_queue_counts_as_a_ring_of_every_container() {
        let dir = tempfile::tempdir().unwrap();
        let mut doorbells = doorbells(dir.path(), &[1, 2, 3]);
        let most = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
        let most: usize = most.trim().parse().unwrap();
        for _ in 0..most {
            ring(dir.path(), 1);
            ring(dir.path(), 2);
        }

        let mut rung = Vec::new();
        loop {
            let some = doorbells.rung();
            if some.is_empty() {
                break;
            }
            rung.extend(some);
        }

        assert!(
            rung.contains(&3),
            "it may have rung, and its event was lost"
        );
    }
}
