//! What is known of a container's second fence, the driver's own limit: the file `fence.json` of its directory. Never
//! asks the driver.

use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;

use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};
use serde::{Deserialize, Serialize};

use crate::instance::{FENCE, FENCE_HALF, Instance};

/// A larger file is not ours.
const MOST_BYTES: u64 = 64 << 10;

/// What is known of a container's second fence: the file `fence.json` of its directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fence {
    /// The directories of the control groups that are limited: several where containers share what a ResourceClaim gave.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub control_groups: Vec<PathBuf>,
    /// Whether `vgpu run` has made the control group, so that it goes with the container.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_made: bool,
    /// The driver's limits, by device.
    pub devices: Vec<FencedDevice>,
}

/// The driver's limit on a device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FencedDevice {
    /// The device's UUID.
    pub uuid: String,
    /// The limit, bytes; 0 if there is none.
    pub limit_bytes: u64,
    /// Why there is none; empty if there is one, or if the container has no limit on the device.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

impl Fence {
    /// The driver's limit on a device, bytes; 0 if there is none.
    #[must_use]
    pub fn limit_bytes(&self, uuid: &str) -> u64 {
        let mut devices = self.devices.iter();
        devices
            .find(|device| device.uuid == uuid)
            .map_or(0, |device| device.limit_bytes)
    }
}

/// Reads what is known of a container's second fence; `None` if no process has set one.
#[must_use]
pub fn read(instance: &Instance) -> Option<Fence> {
    let file = instance.host_file(FENCE, false).ok()?;
    let mut text = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Replaces what is known.
///
/// # Errors
/// The disk is full, or this process may not write the directory.
pub(crate) fn write(instance: &Instance, fence: &Fence) -> std::io::Result<()> {
    let mut text = serde_json::to_vec(fence)?;
    text.push(b'\n');
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_TRUNC | OFlag::O_CLOEXEC;
    let flags = flags | OFlag::O_NOFOLLOW;
    let file = openat(
        instance.dir(),
        FENCE_HALF,
        flags,
        Mode::from_bits_truncate(0o644),
    )?;
    fs::File::from(file).write_all(&text)?;
    renameat(instance.dir(), FENCE_HALF, instance.dir(), FENCE)?;
    Ok(())
}

/// Forgets what is known: the container has no control group.
pub(crate) fn remove(instance: &Instance) {
    unlinkat(instance.dir(), FENCE, UnlinkatFlags::NoRemoveDir).ok();
}
