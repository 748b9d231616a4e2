//! A board of containers as `vgpu run` and the node agent lay it out, for tests and the bench.

#![allow(clippy::unwrap_used, reason = "a test: a panic is its answer")]
#![allow(dead_code, reason = "each test takes what it needs")]

pub(crate) mod agent;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use vgpu_abi::limits::{DeviceLimit, DeviceUuid, Limits, LimitsFile};
use vgpu_abi::region::{NewDevice, Region};
use vgpu_abi::targets::TargetsFile;

/// A board that goes away with its value.
pub(crate) struct Board {
    root: TempDir,
}

impl Board {
    pub(crate) fn new() -> Self {
        Self {
            root: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    /// A container with one device and nothing in it.
    pub(crate) fn container(&self, name: &str, limit: u64) -> PathBuf {
        let labels = serde_json::json!({ "name": name, "container": name, "created_unix": 1 });
        self.container_with(name, limit, &labels)
    }

    pub(crate) fn container_with(
        &self,
        dir: &str,
        limit: u64,
        labels: &serde_json::Value,
    ) -> PathBuf {
        let dir = self.directory(dir);
        let uuid = DeviceUuid::new("GPU-00000000-1111-2222-3333-444444444444").unwrap();
        let physical_bytes = 16 << 30;
        let device = DeviceLimit {
            uuid,
            memory_bytes: limit,
            physical_bytes,
            ..DeviceLimit::default()
        };
        let limits = Limits {
            devices: vec![device],
            ..Limits::default()
        };
        LimitsFile::create(&dir.join("limits"), &limits).unwrap();
        TargetsFile::create(&dir.join("targets")).unwrap();
        Region::create(
            &dir.join("region"),
            &[NewDevice {
                uuid,
                physical_bytes,
            }],
            0o600,
        )
        .unwrap();
        fs::write(dir.join("container.json"), labels.to_string()).unwrap();
        private(&dir.join("limits"), 0o600);
        private(&dir.join("container.json"), 0o600);
        dir
    }

    /// A directory on the board, below a user's own.
    pub(crate) fn directory(&self, name: &str) -> PathBuf {
        let dir = self.root().join("1000").join(name);
        fs::create_dir_all(&dir).unwrap();
        private(&self.root().join("1000"), 0o700);
        private(&dir, 0o700);
        dir
    }
}

/// The mode, whatever the umask says.
pub(crate) fn private(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}
