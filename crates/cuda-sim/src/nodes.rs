//! The GPUs of the board that a process was given, by a folder of device nodes, as `/dev` decides it for a container.
//! Decides nothing about memory or time.
//!
//! With `VGPU_SIM_DEVICES_DIR` set, GPU *n* exists for processes that can open `nvidia<n>` in that folder, and a driver
//! library without `nvidiactl` finds no driver. Opened nodes stay open, so that `/proc/<pid>/fd` shows which GPUs a
//! process has, as with the real driver.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

/// The device nodes that one library of a process holds open.
#[derive(Debug)]
pub struct Nodes {
    /// GPUs of the board, in their order.
    pub gpus: Vec<usize>,
    _held: Vec<File>,
}

impl Nodes {
    /// Those of the environment; all of `count` GPUs where it names no folder. `None` without a driver. `computes` is
    /// whether this is CUDA, which opens `nvidia-uvm` too.
    #[must_use]
    pub fn from_env(count: usize, computes: bool) -> Option<Self> {
        let folder = std::env::var_os("VGPU_SIM_DEVICES_DIR").filter(|text| !text.is_empty());
        match folder {
            Some(folder) => Self::of(&PathBuf::from(folder), count, computes),
            None => Some(Self {
                gpus: (0..count).collect(),
                _held: Vec::new(),
            }),
        }
    }

    fn of(folder: &Path, count: usize, computes: bool) -> Option<Self> {
        // The standard library opens everything to be closed by exec.
        let open = |name: &str| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(folder.join(name))
                .ok()
        };
        let mut held = vec![open("nvidiactl")?];
        if computes {
            held.push(open("nvidia-uvm")?);
        }
        let mut gpus = Vec::new();
        for gpu in 0..count {
            if let Some(node) = open(&format!("nvidia{gpu}")) {
                held.push(node);
                gpus.push(gpu);
            }
        }
        Some(Self { gpus, _held: held })
    }

    /// The board's GPU that this process sees at a place.
    #[must_use]
    pub fn gpu(&self, index: usize) -> Option<usize> {
        self.gpus.get(index).copied()
    }

    /// The index of the board's GPU in this process.
    #[must_use]
    pub fn index(&self, gpu: usize) -> Option<usize> {
        self.gpus.iter().position(|&own| own == gpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_the_gpus_whose_device_nodes_it_can_open() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["nvidiactl", "nvidia-uvm", "nvidia1", "nvidia3"] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }

        let nodes = Nodes::of(directory.path(), 4, true).unwrap();

        assert_eq!(nodes.gpus, [1, 3]);
        assert_eq!((nodes.gpu(1), nodes.gpu(2)), (Some(3), None));
        assert_eq!((nodes.index(3), nodes.index(0)), (Some(1), None));
        let held: Vec<PathBuf> = std::fs::read_dir("/proc/self/fd")
            .unwrap()
            .flatten()
            .filter_map(|entry| std::fs::read_link(entry.path()).ok())
            .filter(|path| path.starts_with(directory.path()))
            .collect();
        assert_eq!(held.len(), 4, "{held:?}");
    }

    #[test]
    fn without_the_driver_s_own_node_there_is_no_driver() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("nvidia0"), "").unwrap();

        assert!(Nodes::of(directory.path(), 1, false).is_none());

        std::fs::write(directory.path().join("nvidiactl"), "").unwrap();
        assert_eq!(Nodes::of(directory.path(), 1, false).unwrap().gpus, [0]);
        assert!(Nodes::of(directory.path(), 1, true).is_none());
    }
}
