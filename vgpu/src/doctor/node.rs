//! The facts about a node: driver, GPUs, runtime, kubelet, agent, directories. Owns what is looked at.

mod agent;
mod checks;
mod driver;
mod kubelet;
mod runtime;
mod slices;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kube_api::config::{DeviceConfig, NodeOverrides};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use supervisor::gpu::{Gpus, NvmlGpus};
use supervisor::instance::{self, LIMITS, REGION};
use vgpu_abi::file::FileError;
use vgpu_abi::host::snapshot_at;
use vgpu_abi::layout::REGION_VERSION;
use vgpu_abi::limits;

use super::elf::{self, Library};
use super::proc::{self, ProcessFacts};
use super::root::{FileFacts, Mount, RootDir, mount_of, mounts};
use crate::args::doctor::DoctorArgs;
use runtime::{CdiSpec, Runtime, ServedRuntime};
use slices::Slice;

pub(super) use checks::CHECKS;

const PLUGINS: &str = "/var/lib/kubelet/device-plugins";
/// Where the kubelet finds drivers that give by claims, and the socket of ours there.
const REGISTRY: &str = "/var/lib/kubelet/plugins_registry";
const DRA_FINDING: &str = "gpu.vgpu.io";
/// Where the kubelet calls ours.
const DRA_CALLS: &str = "/var/lib/kubelet/plugins/gpu.vgpu.io";
const POD_RESOURCES: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";
/// The exporter's port, and the plugin's.
const PORTS: [u16; 2] = [31993, 31992];
/// Answers of a listener are read up to here.
const MOST_METRICS: u64 = 32 << 20;

/// The facts about a node.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct NodeFacts {
    /// The driver's answers; `None` if it was not asked, as below another root.
    driver: Option<Driver>,
    /// Why the driver does not answer.
    driver_error: Option<String>,
    /// Release of the kernel's driver.
    kernel_driver: Option<String>,
    /// Names in `/dev` that begin with `nvidia`.
    device_files: Vec<String>,
    cdi: Vec<CdiSpec>,
    runtime: Runtime,
    /// The agent's decision on the runtime.
    served: Option<ServedRuntime>,
    /// Names in the kubelet's directory of device plugins; `None` if there is no such directory.
    plugin_sockets: Option<Vec<String>>,
    /// Sockets of our driver in the kubelet's registry of drivers; empty where it is not mounted.
    dra_findings: Vec<String>,
    /// Sockets on which the kubelet calls our driver.
    dra_calls: Vec<String>,
    pod_resources: FileFacts,
    /// Ids that the kubelet knows, by resource.
    registered: Option<BTreeMap<String, Vec<String>>>,
    registered_error: Option<String>,
    state_path: String,
    state: FileFacts,
    state_mount: Option<Mount>,
    /// The mount on which the kubelet keeps what it knows of devices.
    kubelet_mount: Option<Mount>,
    /// Whether this was seen from a pod's file system, where only what is mounted is there.
    in_pod: bool,
    disk: Option<Disk>,
    /// Directories below `lib` of the state directory, and the library in each.
    libraries: BTreeMap<String, Option<Library>>,
    containers: Vec<GivenContainer>,
    /// Directories that look like containers and cannot be read.
    broken: Vec<String>,
    /// The agent's processes, and those of HAMi.
    agents: Vec<ProcessFacts>,
    /// The processes with a CUDA driver and without our library.
    unmanaged: Vec<ProcessFacts>,
    /// How many processes have a CUDA driver.
    cuda_processes: usize,
    /// How many processes could not be looked into.
    closed_processes: usize,
    /// The processes that listen on the agent's ports.
    listeners: Vec<Listener>,
    /// The answers of the agent's ports.
    metrics: BTreeMap<u16, Metrics>,
    /// Files that the agent was given: path, and why it cannot be used.
    device_config: Option<AgentConfig>,
    node_config: Option<AgentConfig>,
    /// Leftovers of HAMi's agent.
    leftovers: Vec<String>,
    /// Whether cgroups are of version 2.
    cgroup2: bool,
    /// The kubelet's CDI directory that the agent writes.
    cdi_directory: FileFacts,
    /// The ResourceSlices of a node that gives by claims; `None` if they were not read.
    slices: Option<Vec<Slice>>,
    /// Why they were not.
    slices_error: Option<String>,
}

/// The driver and its GPUs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Driver {
    release: Option<String>,
    /// CUDA version, as 12040.
    cuda: Option<i32>,
    #[serde(rename = "cards")]
    gpus: Vec<DriverGpu>,
    /// A sentence for each GPU that does not answer.
    faults: Vec<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct DriverGpu {
    index: u32,
    uuid: String,
    name: String,
    memory_bytes: u64,
    /// How many MIG instances it is split into.
    instances: usize,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Disk {
    free_bytes: u64,
    bytes: u64,
    free_files: u64,
    files: u64,
}

/// A directory that the agent gave to a container.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct GivenContainer {
    path: String,
    /// Namespace, pod and container.
    #[serde(rename = "whose")]
    container: String,
    limits_error: Option<String>,
    region_error: Option<String>,
    region_version: Option<u32>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Listener {
    port: u16,
    /// The process that has it, where it may be seen.
    process: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Metrics {
    error: Option<String>,
    status: u16,
    /// Whether vgpu's series were among the answer.
    ours: bool,
    /// GPUs that the agent says are sick.
    sick: Vec<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct AgentConfig {
    path: String,
    error: Option<String>,
    /// The MIG strategy that it sets for this node.
    mig_strategy: Option<String>,
    /// Name of the resource that counts GPUs.
    resource: Option<String>,
    /// The factor by which memory is promised, where it is set.
    memory_scaling: Option<f64>,
    /// The memory of a GPU in MiB, where it is set.
    memory_mib: Option<u64>,
}

pub(super) fn gather(args: &DoctorArgs) -> anyhow::Result<NodeFacts> {
    let path = args.root.clone().unwrap_or_else(|| PathBuf::from("/"));
    let root = RootDir::open(&path)?;
    let proc = RootDir::open(&path.join("proc"))?;
    let table = mounts(&proc.text("/self/mountinfo").unwrap_or_default());
    let mut facts = NodeFacts {
        kernel_driver: proc
            .text("/driver/nvidia/version")
            .and_then(|text| proc::driver_release(&text)),
        device_files: root
            .names("/dev")
            .into_iter()
            .filter(|name| name.starts_with("nvidia"))
            .collect(),
        cdi: runtime::cdi(&root),
        runtime: runtime::read(&root),
        pod_resources: root.look(POD_RESOURCES),
        kubelet_mount: mount_of(&table, PLUGINS).cloned(),
        in_pod: root.is_here() && std::env::var_os("KUBERNETES_SERVICE_HOST").is_some(),
        cgroup2: root.look("/sys/fs/cgroup/cgroup.controllers").present,
        ..NodeFacts::default()
    };
    if root.is_here() {
        facts.ask_driver();
    }
    facts.read_kubelet(&root);
    facts.read_state(&root, &path, &args.state_dir, &table);
    facts.read_processes(&root, &proc);
    if root.is_here() {
        facts.read_slices(args);
    }
    for port in PORTS {
        if root.is_here() && facts.listeners.iter().any(|listener| listener.port == port) {
            facts.metrics.insert(port, metrics(port, args.timeout));
        }
    }
    Ok(facts)
}

impl NodeFacts {
    fn ask_driver(&mut self) {
        let gpus = match NvmlGpus::open() {
            Ok(gpus) => gpus,
            Err(error) => {
                self.driver_error = Some(error.to_string());
                return;
            }
        };
        let (release, cuda) = gpus.releases();
        match gpus.inventory() {
            Ok(found) => {
                self.driver = Some(Driver {
                    release,
                    cuda,
                    faults: found.faults,
                    gpus: found
                        .gpus
                        .into_iter()
                        .map(|gpu| DriverGpu {
                            index: gpu.index,
                            uuid: gpu.uuid,
                            name: gpu.name,
                            memory_bytes: gpu.memory_bytes,
                            instances: gpu.instances.len(),
                        })
                        .collect(),
                });
            }
            Err(error) => self.driver_error = Some(error.to_string()),
        }
    }

    fn read_kubelet(&mut self, root: &RootDir) {
        let of_ours = |name: &String| name.starts_with(DRA_FINDING);
        self.dra_findings = root.names(REGISTRY).into_iter().filter(of_ours).collect();
        self.dra_calls = root.names(DRA_CALLS);
        if !root.look(PLUGINS).directory {
            return;
        }
        self.plugin_sockets = Some(root.names(PLUGINS));
        let path = format!("{PLUGINS}/kubelet_internal_checkpoint");
        match root.bytes(&path, 64 << 20) {
            Ok(None) => {}
            Ok(Some(bytes)) => match registered(&bytes) {
                Some(found) => self.registered = Some(found),
                None => self.registered_error = Some(format!("{path} is no checkpoint")),
            },
            Err(error) => self.registered_error = Some(error.to_string()),
        }
    }

    fn read_state(&mut self, root: &RootDir, host: &Path, state: &str, table: &[Mount]) {
        state.clone_into(&mut self.state_path);
        self.state = root.look(state);
        self.state_mount = mount_of(table, state).cloned();
        let Ok(directory) = root.directory(state) else {
            return;
        };
        if let Ok(disk) = nix::sys::statvfs::fstatvfs(&directory) {
            let block = disk.fragment_size();
            self.disk = Some(Disk {
                free_bytes: disk.blocks_available().saturating_mul(block),
                bytes: disk.blocks().saturating_mul(block),
                free_files: disk.files_available(),
                files: disk.files(),
            });
        }
        let served = root.text(&format!("{state}/runtime.json"));
        self.served = served.and_then(|text| serde_json::from_str(&text).ok());
        for name in root.names(&format!("{state}/lib")) {
            let path = format!("{state}/lib/{name}/libvgpu.so");
            let library = match root.bytes(&path, 256 << 20) {
                Ok(Some(bytes)) => Some(elf::library(&bytes)),
                _ => None,
            };
            self.libraries.insert(name, library);
        }
        let containers = host.join(format!("{state}/containers").trim_start_matches('/'));
        let found = instance::scan(&containers, &mut |instance| {
            let labels = instance.labels().unwrap_or_default();
            let mut given = GivenContainer {
                path: instance.path().display().to_string(),
                container: format!("{}/{}/{}", labels.namespace, labels.pod, labels.container),
                ..GivenContainer::default()
            };
            let read = instance
                .host_file(LIMITS, false)
                .map_err(|error| error.to_string())
                .and_then(|file| limits::read_file(&file).map_err(|error| error.to_string()));
            given.limits_error = read.err();
            match snapshot_at(instance.dir().as_fd(), REGION) {
                Ok(_) => given.region_version = Some(REGION_VERSION),
                Err(FileError::WrongVersion { found, .. }) => {
                    given.region_version = Some(found);
                }
                Err(error) => given.region_error = Some(error.to_string()),
            }
            self.containers.push(given);
        });
        if let Ok(found) = found {
            self.broken = found
                .broken
                .iter()
                .map(|broken| format!("{}: {}", broken.path.display(), broken.reason))
                .collect();
        }
    }

    fn read_processes(&mut self, root: &RootDir, proc: &RootDir) {
        for pid in proc::pids(proc) {
            let Some(process) = proc::process(proc, pid) else {
                continue;
            };
            self.closed_processes += usize::from(process.cuda.is_none());
            if process.cuda == Some(true) {
                self.cuda_processes += 1;
                if process.ours == Some(false) {
                    self.unmanaged.push(process.clone());
                }
            }
            if !process.command.is_empty() {
                self.agents.push(process);
            }
        }
        self.listeners = listeners(proc);
        for path in [
            "/usr/local/vgpu/containers",
            "/usr/local/vgpu/ld.so.preload",
            "/tmp/vgpulock",
        ] {
            if root.look(path).present {
                self.leftovers.push(path.to_owned());
            }
        }
        // The files that the agent was given, as it sees them.
        let gives = |agent: &&ProcessFacts| is_plugin(agent) || is_dra(agent);
        let Some(plugin) = self.agents.iter().find(gives) else {
            return;
        };
        let files = [
            flag(plugin, "--device-config-file"),
            flag(plugin, "--node-config-file"),
        ];
        let cdi = flag(plugin, "--cdi-dir").unwrap_or_else(|| String::from("/var/run/cdi"));
        self.cdi_directory = root.look(&cdi);
        let node = flag(plugin, "--node-name")
            .or_else(|| plugin.variable("NODE_NAME").map(str::to_owned))
            .unwrap_or_default();
        let read = |path: &str| {
            let inside = format!("/{}/root{path}", plugin.pid);
            // The agent's own files where its root can be reached, else the node's.
            proc_text(proc, &inside).or_else(|| root.text(path))
        };
        let [device, single] = files;
        self.device_config = device.map(|path| device_config(&path, read(&path)));
        self.node_config = single.map(|path| node_config(&path, read(&path), &node));
    }
}

/// A file in another process's root. The link to that is one that the kernel follows by itself, so it is opened there.
fn proc_text(proc: &RootDir, path: &str) -> Option<String> {
    if let Some(text) = proc.text(path) {
        return Some(text);
    }
    let (before, inside) = path.split_once("/root/")?;
    let pid: u32 = before.trim_start_matches('/').parse().ok()?;
    let root = RootDir::open(Path::new(&format!("/proc/{pid}/root"))).ok()?;
    root.text(&format!("/{inside}"))
}

fn device_config(path: &str, text: Option<String>) -> AgentConfig {
    let mut config = AgentConfig {
        path: path.to_owned(),
        ..AgentConfig::default()
    };
    match text.map(|text| DeviceConfig::parse(&text)) {
        None => config.error = Some(String::from("it cannot be read")),
        Some(Err(error)) => config.error = Some(error.to_string()),
        Some(Ok(read)) => {
            if let Some(nvidia) = read.nvidia {
                config.resource = Some(nvidia.resource_count_name);
                config.memory_scaling = Some(nvidia.device_memory_scaling);
                let mib = nvidia.pre_configured_device_memory;
                config.memory_mib = (mib > 0).then_some(mib);
            }
        }
    }
    config
}

fn node_config(path: &str, text: Option<String>, node: &str) -> AgentConfig {
    let mut config = AgentConfig {
        path: path.to_owned(),
        ..AgentConfig::default()
    };
    match text.map(|text| NodeOverrides::parse(&text)) {
        None => config.error = Some(String::from("it cannot be read")),
        Some(Err(error)) => config.error = Some(error.to_string()),
        Some(Ok(read)) => {
            if let Some(here) = read.of(node) {
                let strategy = here.mig_strategy.clone();
                config.mig_strategy = Some(strategy).filter(|strategy| !strategy.is_empty());
                let scaling = here.device_memory_scaling;
                config.memory_scaling = Some(scaling).filter(|scaling| *scaling > 0.0);
                let mib = here.pre_configured_device_memory;
                config.memory_mib = (mib > 0).then_some(mib);
            }
        }
    }
    config
}

/// Whether it is `vgpu-monitor plugin`.
fn is_plugin(process: &ProcessFacts) -> bool {
    process
        .command
        .first()
        .is_some_and(|program| program.ends_with("vgpu-monitor"))
        && process.command.iter().any(|word| word == "plugin")
}

/// Whether it is `vgpu-monitor dra`, which gives the node's GPUs by claims.
fn is_dra(process: &ProcessFacts) -> bool {
    let program = process.command.first();
    program.is_some_and(|program| program.ends_with("vgpu-monitor"))
        && process.command.get(1).is_some_and(|word| word == "dra")
}

/// Whether it is `vgpu-monitor fence`, which sets the driver's limits: the second fence.
fn is_fence(process: &ProcessFacts) -> bool {
    let program = process.command.first();
    program.is_some_and(|program| program.ends_with("vgpu-monitor"))
        && process.command.get(1).is_some_and(|word| word == "fence")
}

/// Whether it is `vgpu-monitor`, the exporter and arbiter.
fn is_exporter(process: &ProcessFacts) -> bool {
    process
        .command
        .first()
        .is_some_and(|program| program.ends_with("vgpu-monitor"))
        && !is_plugin(process)
        && !is_dra(process)
        && !is_fence(process)
}

/// `--flag value` or `--flag=value`.
fn flag(process: &ProcessFacts, name: &str) -> Option<String> {
    let mut words = process.command.iter();
    while let Some(word) = words.next() {
        if word == name {
            return words.next().cloned();
        }
        if let Some(value) = word
            .strip_prefix(name)
            .and_then(|rest| rest.strip_prefix('='))
        {
            return Some(value.to_owned());
        }
    }
    None
}

/// `RegisteredDevices` of the kubelet's checkpoint.
fn registered(bytes: &[u8]) -> Option<BTreeMap<String, Vec<String>>> {
    let read: Value = serde_json::from_slice(bytes).ok()?;
    let devices = read.get("Data")?.get("RegisteredDevices")?;
    if devices.is_null() {
        return Some(BTreeMap::new());
    }
    serde_json::from_value(devices.clone()).ok()
}

/// The processes that listen on the agent's ports in this process's network namespace.
fn listeners(proc: &RootDir) -> Vec<Listener> {
    const LISTENS: &str = "0A";
    let mut found: Vec<Listener> = Vec::new();
    for table in ["/net/tcp", "/net/tcp6"] {
        let text = proc.text(table).unwrap_or_default();
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (Some(local), Some(state), Some(inode)) =
                (fields.get(1), fields.get(3), fields.get(9))
            else {
                continue;
            };
            let port = local
                .rsplit(':')
                .next()
                .and_then(|port| u16::from_str_radix(port, 16).ok());
            let Some(port) = port.filter(|port| *state == LISTENS && PORTS.contains(port)) else {
                continue;
            };
            if !found.iter().any(|listener| listener.port == port) {
                found.push(Listener {
                    port,
                    process: owner(proc, inode),
                });
            }
        }
    }
    found
}

/// The name of the process that has the socket open.
fn owner(proc: &RootDir, inode: &str) -> Option<String> {
    let wanted = format!("socket:[{inode}]");
    for pid in proc::pids(proc) {
        let descriptors = format!("/{pid}/fd");
        let has = proc
            .names(&descriptors)
            .iter()
            .any(|fd| proc.link(&format!("{descriptors}/{fd}")).as_ref() == Some(&wanted));
        if has {
            let name = proc.text(&format!("/{pid}/comm"))?;
            return Some(name.trim_end().to_owned());
        }
    }
    None
}

/// The answer of a listener of this machine to `GET /metrics`.
fn metrics(port: u16, timeout: Duration) -> Metrics {
    match ask(port, timeout) {
        Err(error) => Metrics {
            error: Some(error.to_string()),
            ..Metrics::default()
        },
        Ok(text) => {
            let status = text
                .split_whitespace()
                .nth(1)
                .and_then(|status| status.parse().ok());
            Metrics {
                error: None,
                status: status.unwrap_or(0),
                ours: is_ours(&text),
                sick: sick(&text),
            }
        }
    }
}

fn ask(port: u16, timeout: Duration) -> std::io::Result<String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut bytes = Vec::new();
    stream.take(MOST_METRICS).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether an exposition has series of this product.
pub(super) fn is_ours(text: &str) -> bool {
    text.lines()
        .any(|line| line.starts_with("vgpu_") || line.starts_with("hami_"))
}

/// Whether the agent's driver answers, by its own word.
pub(super) fn driver_up(text: &str) -> Option<bool> {
    let line = text.lines().find(|line| {
        line.starts_with("vgpu_gpu_driver_up") || line.starts_with("vgpu_monitor_nvml_up")
    })?;
    Some(line.split_whitespace().last()? != "0")
}

/// The GPUs that `vgpu_gpu_healthy` says are not.
pub(super) fn sick(text: &str) -> Vec<String> {
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix("vgpu_gpu_healthy{"));
    lines
        .filter_map(|line| {
            let (labels, value) = line.split_once("} ")?;
            let value: f64 = value.split_whitespace().next()?.parse().ok()?;
            let (_, rest) = labels.split_once("uuid=\"")?;
            let (uuid, _) = rest.split_once('"')?;
            (value == 0.0).then(|| uuid.to_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_read_in_both_forms_and_sick_gpus_are_named() {
        let process = ProcessFacts {
            command: ["/usr/bin/vgpu-monitor", "plugin", "--a=1", "--b", "2"]
                .map(String::from)
                .to_vec(),
            ..ProcessFacts::default()
        };
        assert_eq!(flag(&process, "--a").as_deref(), Some("1"));
        assert_eq!(flag(&process, "--b").as_deref(), Some("2"));
        assert_eq!(flag(&process, "--c"), None);
        assert!(is_plugin(&process) && !is_exporter(&process));
        let text = "vgpu_gpu_healthy{node=\"n\",device_uuid=\"GPU-1\"} 0\nvgpu_gpu_healthy{uuid=\"GPU-2\"} 1\n";
        assert_eq!(sick(text), ["GPU-1"]);
        assert!(is_ours(text) && !is_ours("# HELP vgpu_x\ngo_info 1\n"));
    }
}
