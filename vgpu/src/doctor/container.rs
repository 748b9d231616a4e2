//! Facts of a container, gathered from inside, or from the node through `/proc/PID/root`.

mod checks;

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use supervisor::clock::monotonic_ns;
use vgpu_abi::file::FileError;
use vgpu_abi::host::snapshot_at;
use vgpu_abi::limits;
use vgpu_abi::targets;

use super::elf::{self, Library};
use super::proc::{self, ProcessFacts};
use super::root::{FileFacts, Mount, RootDir, mount_of, mounts};
use crate::args::doctor::DoctorArgs;

pub(super) use checks::CHECKS;

/// The node agent's limits file.
const LIMITS: &str = "/etc/vgpu/limits";
const REGION: &str = "/run/vgpu/region";
const PRELOAD: &str = "/etc/ld.so.preload";
/// The most that is read of a library.
const MOST_LIBRARY: u64 = 256 << 20;

/// The facts of a container.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ContainerFacts {
    /// A process of the container; `None` for this command's own container.
    pid: Option<u32>,
    /// Variables of the first process that could be read.
    env: BTreeMap<String, String>,
    limits_path: String,
    limits: FileFacts,
    limits_mount: Option<Mount>,
    limits_error: Option<String>,
    devices: Vec<GivenDevice>,
    /// How long ago the arbiter wrote the targets; `None` if there are none.
    heartbeat_ago_ms: Option<u64>,
    targets_error: Option<String>,
    region_path: String,
    region: FileFacts,
    region_mount: Option<Mount>,
    region_error: Option<String>,
    /// Version of the region's layout, if the file is a region.
    region_version: Option<u32>,
    /// Lines of `/etc/ld.so.preload`.
    preload_file: Option<Vec<String>>,
    /// Libraries that the file or `LD_PRELOAD` name, by path.
    libraries: BTreeMap<String, Option<Library>>,
    /// Libraries that the preloaded one needs and that the image lacks.
    missing: Vec<String>,
    /// Version of the image's glibc.
    glibc: Option<String>,
    /// The image's musl.
    musl: Option<String>,
    processes: Vec<ProcessFacts>,
    /// Numbers of `/dev/nvidiaN`.
    #[serde(rename = "cards")]
    gpus: Vec<u32>,
    /// Release of the kernel's driver.
    kernel_driver: Option<String>,
    /// The path of the driver's library, and its release.
    libcuda: Option<(String, Option<String>)>,
    /// `pid:[…]` of the container's first process.
    pid_namespace: Option<String>,
    /// Effective capabilities.
    capabilities: Option<u64>,
}

/// A device in the limits file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct GivenDevice {
    uuid: String,
    memory_bytes: u64,
    physical_bytes: u64,
    resident_bytes: u64,
    core_percent: u32,
}

pub(super) fn gather(args: &DoctorArgs) -> anyhow::Result<ContainerFacts> {
    let (root, proc, pid_dir) = match (args.pid, &args.root) {
        (Some(pid), _) => (
            PathBuf::from(format!("/proc/{pid}/root")),
            PathBuf::from("/proc"),
            pid.to_string(),
        ),
        (None, Some(root)) => (root.clone(), root.join("proc"), String::from("self")),
        (None, None) => (
            PathBuf::from("/"),
            PathBuf::from("/proc"),
            String::from("self"),
        ),
    };
    let root = RootDir::open(&root)?;
    let proc = RootDir::open(&proc)?;
    let mut facts = ContainerFacts {
        pid: args.pid,
        env: proc::environment(&proc, &pid_dir).unwrap_or_default(),
        ..ContainerFacts::default()
    };
    let table = mounts(
        &proc
            .text(&format!("/{pid_dir}/mountinfo"))
            .unwrap_or_default(),
    );
    facts.read_limits(&root, &table);
    facts.read_region(&root, &table);
    facts.read_libraries(&root);
    facts.read_driver(&root, &proc);
    facts.pid_namespace = proc::namespace(&proc, &pid_dir, "pid");
    facts.capabilities =
        capabilities(&proc.text(&format!("/{pid_dir}/status")).unwrap_or_default());
    let mine = proc::namespace(&proc, &pid_dir, "mnt");
    let under = facts.env.get("VGPU_LIMITS").cloned();
    let all = proc::pids(&proc)
        .into_iter()
        .filter_map(|pid| proc::process(&proc, pid));
    facts.processes = all
        .filter(|process| match &under {
            // Under `vgpu run` the rest of the machine is visible, too.
            Some(limits) if facts.limits_path != LIMITS => {
                process.variable("VGPU_LIMITS") == Some(limits)
            }
            _ => process.mount_namespace.is_none() || process.mount_namespace == mine,
        })
        .collect();
    Ok(facts)
}

impl ContainerFacts {
    fn read_limits(&mut self, root: &RootDir, table: &[Mount]) {
        self.limits_path = LIMITS.to_owned();
        if !root.look(LIMITS).present
            && let Some(path) = self.env.get("VGPU_LIMITS")
        {
            self.limits_path.clone_from(path);
        }
        self.limits = root.look(&self.limits_path);
        self.limits_mount = mount_of(table, &self.limits_path).cloned();
        match root.file(&self.limits_path) {
            Ok(Some(file)) => match limits::read_file(&file) {
                Ok(limits) => {
                    self.devices = limits
                        .devices
                        .iter()
                        .map(|device| GivenDevice {
                            uuid: device.uuid.as_str().to_owned(),
                            memory_bytes: device.memory_bytes,
                            physical_bytes: device.physical_bytes,
                            resident_bytes: device.resident_bytes,
                            core_percent: device.core_percent,
                        })
                        .collect();
                }
                Err(error) => self.limits_error = Some(error.to_string()),
            },
            Ok(None) => {}
            Err(error) => self.limits_error = Some(error.to_string()),
        }
        let targets = Path::new(&self.limits_path).with_file_name("targets");
        match root.file(&targets.to_string_lossy()) {
            Ok(Some(file)) => match targets::read_head(file) {
                Ok(head) => {
                    let ago = monotonic_ns().saturating_sub(head.heartbeat_ns);
                    self.heartbeat_ago_ms = Some(ago / 1_000_000);
                }
                Err(error) => self.targets_error = Some(error.to_string()),
            },
            Ok(None) => {}
            Err(error) => self.targets_error = Some(error.to_string()),
        }
    }

    fn read_region(&mut self, root: &RootDir, table: &[Mount]) {
        self.region_path = REGION.to_owned();
        if !root.look(REGION).present
            && let Some(path) = self.env.get("VGPU_REGION")
        {
            self.region_path.clone_from(path);
        }
        self.region = root.look(&self.region_path);
        self.region_mount = mount_of(table, &self.region_path).cloned();
        if !self.region.present {
            return;
        }
        let path = Path::new(&self.region_path);
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return;
        };
        match root.directory(&parent.to_string_lossy()) {
            Ok(parent) => match snapshot_at(parent.as_fd(), &name.to_string_lossy()) {
                Ok(_) => self.region_version = Some(vgpu_abi::layout::REGION_VERSION),
                Err(FileError::WrongVersion { found, .. }) => self.region_version = Some(found),
                Err(error) => self.region_error = Some(error.to_string()),
            },
            Err(errno) => self.region_error = Some(errno.desc().to_owned()),
        }
    }

    fn read_libraries(&mut self, root: &RootDir) {
        self.preload_file = root.text(PRELOAD).map(|text| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        });
        let mut named: Vec<String> = self.preload_file.clone().unwrap_or_default();
        let variable = self.env.get("LD_PRELOAD").cloned().unwrap_or_default();
        named.extend(preloads(&variable).map(str::to_owned));
        named.retain(|path| path.starts_with('/'));
        for path in named {
            let library = match root.bytes(&path, MOST_LIBRARY) {
                Ok(Some(bytes)) => Some(elf::library(&bytes)),
                Ok(None) => None,
                Err(error) => Some(Library {
                    error: Some(error.to_string()),
                    ..Library::default()
                }),
            };
            self.libraries.insert(path, library);
        }
        let needed = self
            .libraries
            .values()
            .flatten()
            .flat_map(|library| &library.needs);
        let here = |name: &str| {
            LIBRARY_DIRECTORIES
                .iter()
                .any(|dir| root.look(&format!("{dir}/{name}")).present)
        };
        self.missing = needed
            .filter(|name| !elf::is_of_glibc(name) && !here(name))
            .cloned()
            .collect();
        for dir in ["/lib", "/usr/lib"] {
            let found = root.names(dir).into_iter().find(|name| {
                (name.starts_with("ld-musl-") || name.starts_with("libc.musl-"))
                    && name.contains(".so")
            });
            if let Some(name) = found {
                self.musl.get_or_insert(format!("{dir}/{name}"));
            }
        }
        for dir in LIBRARY_DIRECTORIES {
            if self.glibc.is_none()
                && let Ok(Some(bytes)) = root.bytes(&format!("{dir}/libc.so.6"), 16 << 20)
            {
                self.glibc = elf::libc_version(&bytes);
            }
        }
    }

    fn read_driver(&mut self, root: &RootDir, proc: &RootDir) {
        let mut gpus: Vec<u32> = root
            .names("/dev")
            .iter()
            .filter_map(|name| name.strip_prefix("nvidia")?.parse().ok())
            .collect();
        gpus.sort_unstable();
        self.gpus = gpus;
        let version = proc.text("/driver/nvidia/version");
        self.kernel_driver = version.and_then(|text| proc::driver_release(&text));
        let path = self.env.get("LD_LIBRARY_PATH").cloned().unwrap_or_default();
        let first = path.split(':').filter(|dir| dir.starts_with('/'));
        for dir in first.chain(LIBRARY_DIRECTORIES) {
            let path = format!("{dir}/libcuda.so.1");
            if !root.look(&path).present {
                continue;
            }
            // The link's target names the release; for a plain file, a file beside it may.
            let names = root.names(dir);
            let release = root
                .link(&path)
                .into_iter()
                .chain(names)
                .filter_map(|name| {
                    let name = name.rsplit('/').next()?.to_owned();
                    proc::release(name.strip_prefix("libcuda.so.")?)
                })
                .next();
            self.libcuda = Some((path, release));
            break;
        }
    }
}

/// The directories in which images keep libraries.
const LIBRARY_DIRECTORIES: [&str; 8] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
];

/// The paths of an `LD_PRELOAD`.
fn preloads(value: &str) -> impl Iterator<Item = &str> {
    value
        .split([' ', ':'])
        .map(str::trim)
        .filter(|path| !path.is_empty())
}

/// `CapEff` of `/proc/PID/status`.
fn capabilities(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}
