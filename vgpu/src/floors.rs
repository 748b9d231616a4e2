//! Floors: the floors of all containers of a board add up to at most 100 % of each GPU. Owns the check, and the files
//! in which each user publishes the floors of their containers, because other users cannot read those containers'
//! directories.
//!
//! Never reads or publishes floors without the board's lock, and uses a file only for its owner's containers.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::signal::kill;
use nix::sys::stat::{Mode, fchmod, fstat};
use nix::unistd::{Gid, Pid, Uid, UnlinkatFlags, fchown, unlinkat};
use serde::{Deserialize, Serialize};
use supervisor::instance::{Instance, pid_namespace};
use supervisor::regular;
use supervisor::view::{ContainerView, Views};

use crate::board::{self, BoardLock};
use crate::failure::Misuse;

/// A larger file was not written by vgpu.
const MOST_BYTES: u64 = 1 << 20;

/// The floor of one container on one GPU, as its owner's file states it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
struct PublishedFloor {
    /// The container.
    name: String,
    gpu_uuid: String,
    floor_percent: u32,
    /// The process that supervises the container. The floor ends with it.
    runner_pid: u32,
    runner_start: u64,
    /// The namespace of `runner_pid`; 0 is not known.
    pid_namespace: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct FloorsFile {
    version: u32,
    promises: Vec<PublishedFloor>,
}

/// All floors of a board at one moment.
pub(crate) struct Floors<'a> {
    board: &'a BoardLock,
    views: Views,
    /// Floors of users whose containers cannot be read.
    others: Vec<(u32, PublishedFloor)>,
}

/// A floor that a container asks for.
pub(crate) struct AskedFloor<'a> {
    /// The container's directory, if it already exists.
    pub(crate) path: Option<&'a Path>,
    /// The limits file of the outer container.
    pub(crate) outer: Option<&'a Path>,
    pub(crate) uuid: &'a str,
    /// The GPU's number, for a person.
    pub(crate) number: u64,
    pub(crate) percent: u32,
    /// The outer container's floor, percent.
    pub(crate) outer_percent: u32,
}

impl<'a> Floors<'a> {
    /// Reads all floors. They cannot change while the caller holds the board's lock.
    pub(crate) fn read(board: &'a BoardLock) -> anyhow::Result<Self> {
        let views = board::read(Some(board.path()))?;
        let mut others = Vec::new();
        for hidden in &views.unreadable {
            let uid = hidden.file_name().and_then(|name| name.to_str());
            let Some(uid) = uid.and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            let promises = read_file(board.dir(), uid);
            let kept = promises.into_iter().filter(is_kept);
            others.extend(kept.map(|promise| (uid, promise)));
        }
        Ok(Self {
            board,
            views,
            others,
        })
    }

    /// The containers that have a floor on this GPU, the largest first. Runs inside a container share
    /// its floor, so they count only against each other.
    fn holders(&self, asked: &AskedFloor<'_>) -> Vec<(String, u32)> {
        let me = Uid::effective().as_raw();
        let title = |owner: u32, name: &str| {
            if owner == me {
                name.to_owned()
            } else {
                format!("{owner}/{name}")
            }
        };
        let mut holders = Vec::new();
        for container in &self.views.containers {
            let around = container.outer_limits.as_deref().filter(|it| it.exists());
            if asked.path == Some(&container.path) || around != asked.outer {
                continue;
            }
            let percent = floor_of(container, asked.uuid);
            if percent > 0 && !has_ended(container) {
                holders.push((title(container.owner, &container.name), percent));
            }
        }
        if asked.outer.is_none() {
            for (uid, promise) in &self.others {
                if promise.gpu_uuid == asked.uuid {
                    holders.push((title(*uid, &promise.name), promise.floor_percent));
                }
            }
        }
        holders.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
        holders
    }

    /// The share of a GPU that is not guaranteed yet, percent.
    pub(crate) fn left(&self, asked: &AskedFloor<'_>) -> u32 {
        let holders = self.holders(asked);
        let promised = holders
            .iter()
            .fold(0_u32, |sum, (_, percent)| sum.saturating_add(*percent));
        whole(asked).saturating_sub(promised)
    }

    /// Refuses a floor that could not be guaranteed.
    pub(crate) fn check(&self, asked: &AskedFloor<'_>) -> Result<(), Misuse> {
        let left = self.left(asked);
        if asked.percent <= left {
            return Ok(());
        }
        let holders = self.holders(asked);
        let of = match asked.outer {
            Some(_) => format!("the outer container's {} %", whole(asked)),
            None => String::from("its 100 %"),
        };
        let list: Vec<_> = holders
            .iter()
            .map(|(name, percent)| format!("{name} has {percent} %"))
            .collect();
        let example = holders.first().map_or("NAME", |(name, _)| name.as_str());
        let what_fits = match left {
            0 => String::from("Nothing is left to guarantee"),
            left => format!("At most --floor {left} fits"),
        };
        Err(Misuse::new(format!(
            "--floor {} of GPU {} cannot be kept: of {of}, {}. {what_fits}; to release some: vgpu \
             set {example} --floor N",
            asked.percent,
            asked.number,
            list.join(", "),
        )))
    }

    /// Publishes the floors of this user's containers, as their limits files state them.
    pub(crate) fn publish(self, owner: u32) -> anyhow::Result<()> {
        let views = board::read(Some(self.board.path()))?;
        let pid_namespace = pid_namespace();
        let mut promises = Vec::new();
        for container in &views.containers {
            let is_part = container.outer_limits.as_deref().is_some_and(Path::exists);
            if container.owner != owner || is_part {
                continue;
            }
            for device in container.devices.iter().filter(|d| d.floor_percent > 0) {
                promises.push(PublishedFloor {
                    name: container.name.clone(),
                    gpu_uuid: device.uuid.clone(),
                    floor_percent: device.floor_percent,
                    runner_pid: container.runner_pid,
                    runner_start: start_time(container.runner_pid),
                    pid_namespace,
                });
            }
        }
        write_file(self.board, owner, promises)
    }
}

fn whole(asked: &AskedFloor<'_>) -> u32 {
    match asked.outer {
        Some(_) => asked.outer_percent,
        None => 100,
    }
}

fn floor_of(container: &ContainerView, uuid: &str) -> u32 {
    let devices = container.devices.iter().filter(|d| d.uuid == uuid);
    devices
        .map(|device| device.floor_percent)
        .max()
        .unwrap_or(0)
}

fn has_ended(container: &ContainerView) -> bool {
    container.runner_alive == Some(false)
        && Instance::open(&container.path).is_ok_and(|instance| board::has_ended(&instance))
}

/// Whether the process that supervises the container is alive.
fn is_kept(promise: &PublishedFloor) -> bool {
    let here = pid_namespace();
    if promise.pid_namespace == 0 || here == 0 || promise.pid_namespace != here {
        // The pid is from another namespace, so it cannot be checked here.
        return true;
    }
    let Ok(pid) = i32::try_from(promise.runner_pid) else {
        return false;
    };
    if kill(Pid::from_raw(pid), None) == Err(Errno::ESRCH) {
        return false;
    }
    let started = start_time(promise.runner_pid);
    started == 0 || promise.runner_start == 0 || started == promise.runner_start
}

/// When a process started, in clock ticks since boot; 0 if unknown.
fn start_time(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The process's name comes first and may contain any character.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let field = fields.split_whitespace().nth(19);
    field.and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn file_name(uid: u32) -> String {
    format!(".floors-{uid}")
}

/// The floors that a user published; empty if the file is missing or another user's.
fn read_file(dir: &OwnedFd, uid: u32) -> Vec<PublishedFloor> {
    let name = file_name(uid);
    let Ok(file) = regular::open_at(dir, Path::new(&name), OFlag::O_RDONLY) else {
        return Vec::new();
    };
    if !fstat(&file).is_ok_and(|stat| stat.st_uid == uid) {
        return Vec::new();
    }
    let Ok(text) = regular::first(file, MOST_BYTES) else {
        return Vec::new();
    };
    // Only the first document counts: the rest may be left over from a longer one.
    let mut documents = serde_json::Deserializer::from_slice(&text).into_iter::<FloorsFile>();
    let found = documents.next().and_then(Result::ok).unwrap_or_default();
    let mut promises = found.promises;
    for promise in &mut promises {
        promise.floor_percent = promise.floor_percent.min(100);
        promise.name = promise
            .name
            .chars()
            .filter(|c| c.is_ascii_graphic())
            .take(crate::values::NAME_MOST)
            .collect();
    }
    promises
}

fn write_file(board: &BoardLock, owner: u32, promises: Vec<PublishedFloor>) -> anyhow::Result<()> {
    let name = file_name(owner);
    let path = board.path().join(&name);
    if promises.is_empty() {
        return match unlinkat(board.dir(), name.as_str(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno).with_context(|| format!("cannot remove {}", path.display())),
        };
    }
    let flags = OFlag::O_RDWR | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let make = flags | OFlag::O_CREAT | OFlag::O_EXCL;
    let mode = Mode::from_bits_truncate(0o644);
    let opened = match openat(board.dir(), name.as_str(), flags, mode) {
        Err(Errno::ENOENT) => openat(board.dir(), name.as_str(), make, mode),
        opened => opened,
    };
    let file = opened.with_context(|| format!("cannot open {}", path.display()))?;
    let stat = fstat(&file).with_context(|| format!("cannot look at {}", path.display()))?;
    let me = Uid::effective();
    if stat.st_uid != owner {
        if !me.is_root() || stat.st_uid != 0 || stat.st_size != 0 {
            bail!(
                "{} belongs to uid {}, but is the place of uid {owner} on this board; remove it",
                path.display(),
                stat.st_uid
            );
        }
        fchown(&file, Some(Uid::from_raw(owner)), None::<Gid>)
            .with_context(|| format!("cannot give {} away", path.display()))?;
    }
    fchmod(&file, mode).with_context(|| format!("cannot open up {}", path.display()))?;
    let document = FloorsFile {
        version: 1,
        promises,
    };
    let mut text = serde_json::to_vec(&document).map_err(|error| anyhow!(error))?;
    text.push(b'\n');
    let file = File::from(file);
    file.write_all_at(&text, 0)
        .and_then(|()| file.set_len(text.len() as u64))
        .with_context(|| format!("cannot write {}", path.display()))
}
