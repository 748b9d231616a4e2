//! A container's own files, mounted where its programs look for them: the instance read-only at `/etc/vgpu`, its region
//! at `/run/vgpu/region`. Before that, a container engine has mounted a directory with an empty limits file and an empty
//! region there, with which the library lets no program use a GPU; these mounts cover them. On a node of Slurm, the prolog
//! has made both places.
//!
//! Works in the container's mount namespace, from which this process does not return. Follows links of the image only
//! within the image, and never mounts into the host's namespace.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns};
use nix::sys::stat::{Mode, fstat};
use supervisor::instance::{INSIDE, INSIDE_REGION, Instance, LIMITS, REGION};

/// Which file it is: device and inode.
type Identity = (u64, u64);

/// Mounts the instance's files into the container of this first process, whose root directory is at `root`.
pub(crate) fn mount_into(pid: u32, root: &Path, instance: &Instance) -> anyhow::Result<()> {
    enter(pid)?;
    ContainerRoot::open(root)?.take(instance)
}

/// Mounts the instance's files, and the list of libraries to preload, in this process's own mount namespace. No mount
/// reaches the host's namespace; mounts that the host makes later are still seen.
pub(crate) fn mount_here(instance: &Instance, preload: &Path) -> anyhow::Result<()> {
    let own = |path: &str| {
        std::fs::metadata(path)
            .map(|found| found.ino())
            .with_context(|| format!("cannot look at {path}"))
    };
    if own("/proc/self/ns/mnt")? == own("/proc/1/ns/mnt")? {
        bail!(
            "this process is in the machine's own mount namespace, so its mounts would be the machine's; Slurm's \
             plugin vgpu_spank.so runs this command in a namespace of the task's own"
        );
    }
    let none = None::<&str>;
    let flags = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    mount(none, "/", none, flags, none)
        .context("cannot keep the task's mounts out of the machine's namespace")?;
    let root = ContainerRoot::open(Path::new("/"))?;
    root.cover(PRELOAD, preload, true)?;
    root.take(instance)
}

/// The loader's list of libraries to preload into every program.
pub(crate) const PRELOAD: &str = "/etc/ld.so.preload";

/// Moves this process into the mount namespace of another one.
fn enter(pid: u32) -> anyhow::Result<()> {
    let path = format!("/proc/{pid}/ns/mnt");
    let namespace = File::open(&path).with_context(|| {
        format!("cannot open {path}: the state's pid {pid} is no process of this machine")
    })?;
    let is = namespace
        .metadata()
        .with_context(|| format!("cannot look at {path}"))?;
    let own = std::fs::metadata("/proc/self/ns/mnt").context("cannot look at /proc/self/ns/mnt")?;
    if is.ino() == own.ino() {
        bail!(
            "process {pid} has no mount namespace of its own, so its mounts would be the host's; run the container \
             with one"
        );
    }
    setns(namespace, CloneFlags::CLONE_NEWNS)
        .with_context(|| format!("cannot enter the mount namespace of process {pid}"))
}

/// A container's root directory.
struct ContainerRoot {
    path: PathBuf,
    dir: OwnedFd,
}

impl ContainerRoot {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let dir = nix::fcntl::open(path, flags, Mode::empty()).with_context(|| {
            format!(
                "cannot open the container's root directory {}",
                path.display()
            )
        })?;
        Ok(Self {
            path: path.to_owned(),
            dir,
        })
    }

    /// Covers the places of limits and region by the instance's own.
    fn take(&self, instance: &Instance) -> anyhow::Result<()> {
        let identity = |name: &str| -> anyhow::Result<Identity> {
            let found = std::fs::metadata(instance.steady_path(name)).with_context(|| {
                format!("cannot look at {}", instance.path().join(name).display())
            })?;
            Ok((found.dev(), found.ino()))
        };
        let (limits, region) = (identity(LIMITS)?, identity(REGION)?);
        let dir = instance.path();
        // The container's programs may run as any user, so what the mounts allow is what holds.
        self.cover(INSIDE, dir, true)?;
        self.cover(INSIDE_REGION, &dir.join(REGION), false)?;
        self.check(&format!("{INSIDE}/{LIMITS}"), limits)?;
        self.check(INSIDE_REGION, region)
    }

    /// Finds a path as the container's programs will: links lead within the root.
    fn find(&self, inside: &str) -> anyhow::Result<OwnedFd> {
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        openat2(&self.dir, inside, how).with_context(|| {
            format!(
                "cannot find {inside} in the container's root directory {}: the engine has not made the mounts of \
                 vgpu cdi's file, or Slurm's prolog has not made the place",
                self.path.display()
            )
        })
    }

    fn cover(&self, inside: &str, source: &Path, read_only: bool) -> anyhow::Result<()> {
        let target = self.find(inside)?;
        let none = None::<&str>;
        let at = |fd: &OwnedFd| format!("/proc/self/fd/{}", fd.as_raw_fd());
        mount(
            Some(source),
            at(&target).as_str(),
            none,
            MsFlags::MS_BIND,
            none,
        )
        .with_context(|| format!("cannot mount {} at {inside}", source.display()))?;
        // Looked up again, because the mount that covers the place is the one to change.
        let mounted = self.find(inside)?;
        let mut flags = MsFlags::MS_BIND
            | MsFlags::MS_REMOUNT
            | MsFlags::MS_NOSUID
            | MsFlags::MS_NODEV
            | MsFlags::MS_NOEXEC;
        flags.set(MsFlags::MS_RDONLY, read_only);
        mount(none, at(&mounted).as_str(), none, flags, none)
            .with_context(|| format!("cannot restrict the mount at {inside}"))
    }

    /// Checks that the container will find this file.
    fn check(&self, inside: &str, wanted: Identity) -> anyhow::Result<()> {
        let found = self.find(inside)?;
        let found = fstat(&found).with_context(|| format!("cannot look at {inside}"))?;
        if (found.st_dev, found.st_ino) != wanted {
            bail!("{inside} in the container is not the file that was mounted there");
        }
        Ok(())
    }
}
