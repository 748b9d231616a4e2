//! The GPUs of the board that a process was given, by a folder of device nodes, as `/dev` decides it for a container.
//! Decides nothing about memory or time.
//!
//! With `VGPU_SIM_DEVICES_DIR` set, GPU *n* exists for processes that can open `nvidia<n>` in that folder, and a driver
//! library without `nvidiactl` finds no driver. Opened nodes stay open, so that `/proc/<pid>/fd` shows which GPUs a
//! process has, as with the real driver.
//!
//! A MIG instance has two nodes more, in the folder `nvidia-caps` there. Where that folder is missing, a process has all
//! instances of its GPUs.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use crate::mig::MAX_INSTANCES;

/// The folder of the nodes of MIG instances, as the real driver names it.
const CAPABILITIES: &str = "nvidia-caps";

/// Numbers of the two nodes that open a MIG instance: `nvidia-cap<n>` of the GPU instance, and of its compute instance.
/// The real driver has 1 and 2 for other purposes, and chooses the others as it likes.
#[must_use]
pub fn capabilities(gpu: usize, index: u32) -> [usize; 2] {
    let first = 3 + 2 * (gpu * MAX_INSTANCES as usize + index as usize);
    [first, first + 1]
}

/// The device nodes that one library of a process holds open.
#[derive(Debug)]
pub struct Nodes {
    /// GPUs of the board, in their order.
    pub gpus: Vec<usize>,
    /// The GPU and the index of each MIG instance whose nodes the process can open. `None` if the folder of device nodes has
    /// no `nvidia-caps`: then the process sees all instances.
    instances: Option<Vec<(usize, u32)>>,
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
                instances: None,
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
        let apart = folder.join(CAPABILITIES).is_dir();
        let opens = |&(gpu, index): &(usize, u32)| {
            let names =
                capabilities(gpu, index).map(|node| format!("{CAPABILITIES}/nvidia-cap{node}"));
            names.iter().all(|name| open(name).is_some())
        };
        let all = gpus
            .iter()
            .flat_map(|&gpu| (0..MAX_INSTANCES).map(move |index| (gpu, index)));
        Some(Self {
            instances: apart.then(|| all.filter(opens).collect()),
            gpus,
            _held: held,
        })
    }

    /// Whether this process can open a MIG instance of a GPU that it has.
    #[must_use]
    pub fn opens(&self, gpu: usize, index: u32) -> bool {
        let instances = self.instances.as_ref();
        self.index(gpu).is_some() && instances.is_none_or(|all| all.contains(&(gpu, index)))
    }

    /// Whether device nodes keep MIG instances apart here.
    #[must_use]
    pub fn keep_instances_apart(&self) -> bool {
        self.instances.is_some()
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
    fn a_mig_instance_is_opened_by_both_of_its_nodes() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["nvidiactl", "nvidia0", "nvidia2"] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        let nodes = Nodes::of(directory.path(), 4, false).unwrap();
        assert!(!nodes.keep_instances_apart());
        assert!(nodes.opens(0, 3) && nodes.opens(2, 6) && !nodes.opens(1, 0));

        let folder = directory.path().join(CAPABILITIES);
        std::fs::create_dir(&folder).unwrap();
        let [gpu, compute] = capabilities(2, 6);
        std::fs::write(folder.join(format!("nvidia-cap{gpu}")), "").unwrap();
        let half = Nodes::of(directory.path(), 4, false).unwrap();
        assert!(half.keep_instances_apart() && !half.opens(2, 6));

        std::fs::write(folder.join(format!("nvidia-cap{compute}")), "").unwrap();
        let whole = Nodes::of(directory.path(), 4, false).unwrap();
        assert!(whole.opens(2, 6) && !whole.opens(2, 5) && !whole.opens(0, 0));
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
