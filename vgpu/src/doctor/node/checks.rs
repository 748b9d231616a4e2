//! The checks of a node: facts in, verdicts out.

use vgpu_abi::layout::REGION_VERSION;
use vgpu_abi::size::Size;

use super::{Driver, NodeFacts, PLUGINS, POD_RESOURCES, PORTS, flag, is_exporter, is_plugin};
use crate::doctor::check::{Check, Finding, Judged, fail, ok, several, skip, warn};
use crate::doctor::elf::is_of_glibc;
use crate::doctor::proc::Process;
use crate::doctor::root::Mount;

/// In the order of their ids.
pub(in crate::doctor) const CHECKS: &[Check<NodeFacts>] = &[
    Check {
        id: "VGPU-N01",
        title: "the NVIDIA driver answers",
        cure: "install the driver, or load it (nvidia-smi has to work on the node); a node without a card needs no agent: take its gpu=on label away",
        judge: driver_answers,
    },
    Check {
        id: "VGPU-N02",
        title: "every card answers and is healthy",
        cure: "look at dmesg for the XID of that card; reset it (nvidia-smi -r -i N) or restart the node; its slots are out of use meanwhile",
        judge: cards_answer,
    },
    Check {
        id: "VGPU-N03",
        title: "the driver's library is the kernel's",
        cure: "restart the node, or unload and load the kernel modules: the driver was upgraded under running programs",
        judge: driver_parts_agree,
    },
    Check {
        id: "VGPU-N04",
        title: "the driver's CUDA version is one that the library was tested with",
        cure: "use a driver of CUDA 11 to 13; with another one try a program under vgpu run first, and report what it says",
        judge: driver_known,
    },
    Check {
        id: "VGPU-N05",
        title: "the device files that CUDA needs are there",
        cure: "run nvidia-modprobe -u -c=0 at boot (nvidia-persistenced does), which makes /dev/nvidia-uvm and the others",
        judge: device_files,
    },
    Check {
        id: "VGPU-N06",
        title: "the container runtime can hand out cards",
        cure: "install nvidia-container-toolkit, then run: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml; before containerd 2: nvidia-ctk runtime configure --set-as-default, and restart containerd",
        judge: runtime_knows_cards,
    },
    Check {
        id: "VGPU-N07",
        title: "NVIDIA's CDI spec fits this driver and these cards",
        cure: "write it anew: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml (a driver upgrade makes the old one name files that are gone)",
        judge: cdi_fits,
    },
    Check {
        id: "VGPU-N08",
        title: "CDI is switched on where the agent uses it",
        cure: "set enable_cdi = true in containerd's configuration and restart it, or give the agent --manner=mounts",
        judge: cdi_enabled,
    },
    Check {
        id: "VGPU-N09",
        title: "the kubelet's sockets are there",
        cure: "start the kubelet; where it has another --root-dir, give the agent --kubelet-dir and the doctor the right --root",
        judge: kubelet_sockets,
    },
    Check {
        id: "VGPU-N10",
        title: "our plugin is registered with the kubelet",
        cure: "look at the agent (kubectl logs, container plugin): it registers again whenever kubelet.sock is made anew; restart its pod if it does not",
        judge: plugin_registered,
    },
    Check {
        id: "VGPU-N11",
        title: "no other plugin serves the same resource",
        cure: "remove NVIDIA's device plugin from nodes with gpu=on (kubectl delete ds nvidia-device-plugin-daemonset; for the GPU Operator: devicePlugin.enabled=false), then restart the agent's pod",
        judge: one_plugin,
    },
    Check {
        id: "VGPU-N12",
        title: "the state directory belongs to root alone",
        cure: "chown root and chmod 0755 the state directory, and find out who changed it: whoever writes there writes limits",
        judge: state_owned,
    },
    Check {
        id: "VGPU-N13",
        title: "the state directory survives a restart",
        cure: "put the state directory on a disk: on a memory or overlay file system what containers were given is lost with the agent or the node",
        judge: state_persistent,
    },
    Check {
        id: "VGPU-N14",
        title: "the state directory can be written and has room",
        cure: "free some room (or files) on that file system; a container needs about 4 MiB",
        judge: state_room,
    },
    Check {
        id: "VGPU-N15",
        title: "the library is installed for containers",
        cure: "restart the agent's pod: the plugin installs the library when it starts (by hand: vgpu-monitor install --to DIR)",
        judge: library_installed,
    },
    Check {
        id: "VGPU-N16",
        title: "libraries and regions are of versions that fit",
        cure: "delete the named pods when it suits, so that they get a library and a region of this release",
        judge: versions_agree,
    },
    Check {
        id: "VGPU-N17",
        title: "what containers were given is intact",
        cure: "delete the named pod, so that the agent writes it anew; a directory that no pod has is collected by the agent",
        judge: containers_intact,
    },
    Check {
        id: "VGPU-N18",
        title: "both processes of the agent run",
        cure: "look at the agent's pod: kubectl describe pod, kubectl logs -c plugin and -c exporter",
        judge: agents_run,
    },
    Check {
        id: "VGPU-N19",
        title: "the agent's metrics answer",
        cure: "look at the agent's log; curl http://localhost:31993/metrics shows what it says",
        judge: metrics_answer,
    },
    Check {
        id: "VGPU-N20",
        title: "the agent's ports are its own",
        cure: "stop the other program, or give the agent another port (--metrics-addr)",
        judge: ports_ours,
    },
    Check {
        id: "VGPU-N21",
        title: "no agent of HAMi runs here",
        cure: "helm uninstall hami (its device plugin and monitor fight for the same resource and port)",
        judge: no_hami,
    },
    Check {
        id: "VGPU-N22",
        title: "HAMi has left nothing behind",
        cure: "once no container that HAMi started runs here any more: rm -r /usr/local/vgpu/containers /usr/local/vgpu/ld.so.preload /tmp/vgpulock",
        judge: no_leftovers,
    },
    Check {
        id: "VGPU-N23",
        title: "every process on a GPU has the library",
        cure: "run it in a pod that asks for nvidia.com/gpu, or under vgpu run; the agent can report or evict such processes (--attest)",
        judge: all_managed,
    },
    Check {
        id: "VGPU-N24",
        title: "the device configuration of the agent can be read",
        cure: "put the ConfigMap's device-config.yaml right (docs/configuration.md has every key) and restart the agent's pod",
        judge: device_config_reads,
    },
    Check {
        id: "VGPU-N25",
        title: "the file of single nodes can be read",
        cure: "put the ConfigMap's config.json right (docs/configuration.md, single nodes) and restart the agent's pod",
        judge: node_config_reads,
    },
    Check {
        id: "VGPU-N26",
        title: "the MIG strategy suits the cards",
        cure: "give the agent --mig-strategy=mixed (or migstrategy for this node), or switch MIG off: nvidia-smi -mig 0",
        judge: mig_strategy,
    },
    Check {
        id: "VGPU-N27",
        title: "the agent can describe containers to the runtime",
        cure: "mount the node's /var/run/cdi into the agent's pod, writable; or give it --manner=mounts",
        judge: manner,
    },
    Check {
        id: "VGPU-N28",
        title: "the library that is installed needs glibc alone",
        cure: "install the released library (cargo xtask dist): this one keeps every program from starting in images that lack what it needs",
        judge: library_frugal,
    },
];

/// Less free room than this does not do for long.
const LITTLE_BYTES: u64 = 64 << 20;
/// Less free room than both of these, in hundredths and in bytes, is said.
const SOME_PERCENT: u64 = 5;
const SOME_BYTES: u64 = 4 << 30;
/// CUDA versions whose drivers the library was tested with, as the driver counts them.
const CUDA_KNOWN: std::ops::Range<i32> = 11_000..14_000;

impl NodeFacts {
    fn driver(&self) -> Result<&Driver, Finding> {
        self.driver
            .as_ref()
            .ok_or_else(|| skip("the driver does not answer (VGPU-N01)"))
    }

    /// The plugin's process.
    fn plugin(&self) -> Result<&Process, Finding> {
        self.agents
            .iter()
            .find(|agent| is_plugin(agent))
            .ok_or_else(|| skip("no process vgpu-monitor plugin is seen here (VGPU-N18)"))
    }

    fn has_state(&self) -> Result<(), Finding> {
        if self.state.present {
            Ok(())
        } else {
            Err(skip(format!(
                "there is no {}: no agent has run here (VGPU-N12)",
                self.state_path
            )))
        }
    }

    fn sockets(&self) -> Result<&[String], Finding> {
        self.plugin_sockets
            .as_deref()
            .ok_or_else(|| skip(format!("there is no {PLUGINS} (VGPU-N09)")))
    }

    /// Whether anything of a cluster is here at all.
    fn of_a_cluster(&self) -> Result<(), Finding> {
        if self.plugin_sockets.is_some() || self.state.present || !self.agents.is_empty() {
            return Ok(());
        }
        Err(skip(
            "no kubelet, no state directory and no agent is here: this is no node of a cluster",
        ))
    }

    /// The resource that the agent serves.
    fn resource(&self) -> &str {
        self.device_config
            .as_ref()
            .and_then(|config| config.resource.as_deref())
            .filter(|name| !name.is_empty())
            .unwrap_or("nvidia.com/gpu")
    }

    /// In a pod, what is not there may only not be mounted.
    fn not_in_pod(&self, what: &str) -> Result<(), Finding> {
        if self.in_pod {
            return Err(skip(format!(
                "{what} in this pod: look on the node, or in the agent's container plugin"
            )));
        }
        Ok(())
    }

    /// How the agent tells the runtime, where it was told.
    fn told_manner(&self) -> Option<String> {
        let plugin = self.agents.iter().find(|agent| is_plugin(agent))?;
        flag(plugin, "--manner")
    }
}

fn driver_answers(facts: &NodeFacts) -> Judged {
    if let Some(driver) = &facts.driver {
        let release = driver.release.as_deref().unwrap_or("of unknown release");
        let count = driver.cards.len();
        if count + driver.faults.len() == 0 {
            return Err(fail(format!("driver {release} answers, and knows no card")));
        }
        return Ok(ok(format!("driver {release}, {count} cards")));
    }
    match &facts.driver_error {
        Some(error) if facts.device_files.is_empty() => Ok(fail(format!(
            "{error}; /dev has no nvidia file: this node has no NVIDIA driver, or no card"
        ))),
        Some(error) => Ok(fail(error)),
        None => Ok(skip("not asked: --root names another system's files")),
    }
}

fn cards_answer(facts: &NodeFacts) -> Judged {
    let driver = facts.driver()?;
    let mut wrong = driver.faults.clone();
    let sick = facts.metrics.values().flat_map(|answer| &answer.sick);
    wrong.extend(sick.map(|uuid| format!("{uuid}: the agent says it is sick")));
    wrong.sort();
    wrong.dedup();
    if wrong.is_empty() {
        return Ok(ok(format!("{} cards answer", driver.cards.len())));
    }
    Ok(fail(several(&wrong)))
}

fn driver_parts_agree(facts: &NodeFacts) -> Judged {
    let release = facts
        .driver
        .as_ref()
        .and_then(|driver| driver.release.as_ref());
    match (release, &facts.kernel_driver) {
        (Some(library), Some(kernel)) if library == kernel => {
            Ok(ok(format!("both are of {kernel}")))
        }
        (Some(library), Some(kernel)) => Ok(fail(format!(
            "libnvidia-ml is of {library}, /proc/driver/nvidia/version says {kernel}"
        ))),
        (None, _) => Ok(skip(
            "the driver's library does not say its release (VGPU-N01)",
        )),
        (_, None) => Ok(skip(
            "there is no /proc/driver/nvidia/version: a simulated driver",
        )),
    }
}

fn driver_known(facts: &NodeFacts) -> Judged {
    let cuda = facts
        .driver()?
        .cuda
        .ok_or_else(|| skip("the driver does not say its CUDA version"))?;
    let said = format!("CUDA {}.{}", cuda / 1000, cuda % 1000 / 10);
    if CUDA_KNOWN.contains(&cuda) {
        return Ok(ok(said));
    }
    Ok(warn(format!("{said}; tested are 11 to 13")))
}

fn device_files(facts: &NodeFacts) -> Judged {
    let driver = facts.driver()?;
    if facts.device_files.is_empty() && facts.kernel_driver.is_none() {
        return Err(skip("/dev has no nvidia file: a simulated driver"));
    }
    let has = |name: &str| facts.device_files.iter().any(|file| file == name);
    let mut missing: Vec<String> = ["nvidiactl", "nvidia-uvm"]
        .into_iter()
        .filter(|name| !has(name))
        .map(|name| format!("/dev/{name}"))
        .collect();
    let numbered = facts
        .device_files
        .iter()
        .filter(|name| {
            name.strip_prefix("nvidia")
                .is_some_and(|rest| rest.parse::<u32>().is_ok())
        })
        .count();
    if numbered < driver.cards.len() {
        missing.push(format!(
            "{} of {} /dev/nvidiaN",
            driver.cards.len() - numbered,
            driver.cards.len()
        ));
    }
    if missing.is_empty() {
        return Ok(ok(format!("nvidiactl, nvidia-uvm, {numbered} cards")));
    }
    Ok(fail(format!("missing: {}", several(&missing))))
}

fn runtime_knows_cards(facts: &NodeFacts) -> Judged {
    facts.driver()?;
    let spec = facts
        .cdi
        .iter()
        .find(|spec| spec.kind == "nvidia.com/gpu" && spec.error.is_none());
    if let Some(spec) = spec {
        return Ok(ok(format!("{} describes them", spec.path)));
    }
    let configured = facts
        .runtime
        .path
        .as_deref()
        .unwrap_or("no configuration of containerd or docker");
    match facts.runtime.default_runtime.as_deref() {
        Some("nvidia") => Ok(ok(format!("{configured}: nvidia is the default runtime"))),
        other => Ok(fail(format!(
            "no CDI spec of nvidia.com/gpu in /etc/cdi or /var/run/cdi, and {configured} makes {} the default runtime",
            other.unwrap_or("nothing")
        ))),
    }
}

fn cdi_fits(facts: &NodeFacts) -> Judged {
    let driver = facts.driver()?;
    if facts.cdi.is_empty() {
        return Err(skip("there is no CDI spec of NVIDIA's (VGPU-N06)"));
    }
    let mut wrong = Vec::new();
    for spec in &facts.cdi {
        if let Some(error) = &spec.error {
            wrong.push(format!("{}: {error}", spec.path));
        }
        if !spec.missing.is_empty() {
            wrong.push(format!(
                "{} names {}, which is not there",
                spec.path,
                several(&spec.missing)
            ));
        }
        // Devices go by UUID or by index, as the toolkit was told.
        let names = |card: &super::Card| {
            spec.devices.iter().any(|name| {
                *name == card.uuid
                    || *name == card.index.to_string()
                    || name.starts_with(&format!("{}:", card.index))
                    || name.starts_with("MIG-")
            })
        };
        let absent: Vec<&str> = driver
            .cards
            .iter()
            .filter(|card| spec.kind == "nvidia.com/gpu" && spec.error.is_none() && !names(card))
            .map(|card| card.uuid.as_str())
            .collect();
        if !absent.is_empty() {
            wrong.push(format!("{} does not name {}", spec.path, several(&absent)));
        }
    }
    if wrong.is_empty() {
        let paths: Vec<&str> = facts.cdi.iter().map(|spec| spec.path.as_str()).collect();
        return Ok(ok(several(&paths)));
    }
    Ok(fail(several(&wrong)))
}

fn cdi_enabled(facts: &NodeFacts) -> Judged {
    let path = facts
        .runtime
        .path
        .as_deref()
        .ok_or_else(|| skip("no configuration of containerd or docker was found"))?;
    if facts.told_manner().as_deref() == Some("mounts") {
        return Err(skip("the agent has --manner=mounts"));
    }
    match facts.runtime.enable_cdi {
        Some(false) if facts.runtime.default_runtime.as_deref() != Some("nvidia") => {
            Ok(fail(format!("{path} has enable_cdi = false")))
        }
        Some(on) => Ok(ok(format!("{path} has enable_cdi = {on}"))),
        None => Ok(ok(format!(
            "{path} leaves it as it is: on from containerd 2"
        ))),
    }
}

fn kubelet_sockets(facts: &NodeFacts) -> Judged {
    facts.of_a_cluster()?;
    let mut missing = Vec::new();
    match &facts.plugin_sockets {
        None => missing.push(format!("there is no {PLUGINS}")),
        Some(names) if !names.iter().any(|name| name == "kubelet.sock") => {
            missing.push(format!("there is no {PLUGINS}/kubelet.sock"));
        }
        Some(_) => {}
    }
    if !facts.pod_resources.present {
        missing.push(format!("there is no {POD_RESOURCES}"));
    }
    if missing.is_empty() {
        return Ok(ok(format!("{PLUGINS}/kubelet.sock, {POD_RESOURCES}")));
    }
    if facts.plugin_sockets.is_none() {
        facts.not_in_pod("the kubelet's directories are not mounted")?;
    }
    Ok(fail(several(&missing)))
}

fn plugin_registered(facts: &NodeFacts) -> Judged {
    let sockets = facts.sockets()?;
    let ours: Vec<&str> = sockets
        .iter()
        .map(String::as_str)
        .filter(|name| name.starts_with("vgpu"))
        .collect();
    if ours.is_empty() {
        return Err(fail(format!(
            "{PLUGINS} has no socket that begins with vgpu"
        )));
    }
    let resource = facts.resource();
    if let Some(error) = &facts.registered_error {
        return Err(skip(error));
    }
    let registered = facts
        .registered
        .as_ref()
        .ok_or_else(|| skip("the kubelet's checkpoint cannot be read here"))?;
    match registered.get(resource).map_or(0, Vec::len) {
        0 => Ok(fail(format!(
            "{} is there, and the kubelet knows no device of {resource}",
            several(&ours)
        ))),
        count => Ok(ok(format!("{count} slots of {resource}"))),
    }
}

fn one_plugin(facts: &NodeFacts) -> Judged {
    let sockets = facts.sockets()?;
    let resource = facts.resource();
    let mut wrong: Vec<String> = sockets
        .iter()
        .filter(|name| name.starts_with("nvidia") || name.starts_with("hami"))
        .map(|name| format!("{PLUGINS}/{name}"))
        .collect();
    let ids = facts.registered.as_ref().and_then(|all| all.get(resource));
    let card = ids
        .into_iter()
        .flatten()
        .find(|id| id.starts_with("GPU-") || id.starts_with("MIG-"));
    if let Some(card) = card {
        wrong.push(format!(
            "the kubelet has {card} under {resource}: NVIDIA's plugin hands out whole cards"
        ));
    }
    if wrong.is_empty() {
        return Ok(ok(format!("{} sockets in {PLUGINS}", sockets.len())));
    }
    Ok(fail(several(&wrong)))
}

fn state_owned(facts: &NodeFacts) -> Judged {
    facts.of_a_cluster()?;
    let path = &facts.state_path;
    let state = &facts.state;
    if !state.present {
        let why = state.error.clone();
        return Err(fail(why.unwrap_or_else(|| {
            format!("there is no {path}: no agent has run here")
        })));
    }
    if !state.directory || state.mode & 0o022 != 0 {
        return Err(fail(format!("{path} has mode {:04o}", state.mode)));
    }
    if state.owner != 0 {
        return Err(fail(format!("{path} belongs to uid {}", state.owner)));
    }
    Ok(ok(format!("{path}, mode {:04o}", state.mode)))
}

fn state_persistent(facts: &NodeFacts) -> Judged {
    facts.has_state()?;
    let mount = facts.state_mount.as_ref();
    let mount = mount.ok_or_else(|| skip("the mount table cannot be read"))?;
    let said = format!(
        "{} lies on {} ({})",
        facts.state_path, mount.point, mount.kind
    );
    let passing = |mount: &Mount| matches!(mount.kind.as_str(), "tmpfs" | "ramfs" | "overlay");
    if !passing(mount) {
        return Err(ok(said));
    }
    // A node that forgets everything forgets its containers, too.
    if mount.kind != "overlay" && facts.kubelet_mount.as_ref().is_some_and(passing) {
        return Err(ok(format!("{said}, and so does what the kubelet knows")));
    }
    Ok(fail(said))
}

fn state_room(facts: &NodeFacts) -> Judged {
    facts.has_state()?;
    if let Some(mount) = facts.state_mount.as_ref().filter(|mount| mount.read_only) {
        facts.not_in_pod("the state directory is mounted read-only")?;
        return Err(fail(format!("{} is mounted read-only", mount.point)));
    }
    let disk = facts
        .disk
        .as_ref()
        .ok_or_else(|| skip("the file system does not say how full it is"))?;
    let said = format!("{} of {} free", Size(disk.free_bytes), Size(disk.bytes));
    if disk.free_bytes < LITTLE_BYTES || (disk.files > 0 && disk.free_files < 100) {
        return Err(fail(format!("{said}, {} files", disk.free_files)));
    }
    let percent = disk.bytes.saturating_mul(SOME_PERCENT) / 100;
    if disk.free_bytes < percent.min(SOME_BYTES) {
        return Err(warn(said));
    }
    Ok(ok(said))
}

fn library_installed(facts: &NodeFacts) -> Judged {
    facts.has_state()?;
    let path = format!("{}/lib", facts.state_path);
    if facts.libraries.is_empty() {
        return Err(fail(format!("{path} has no library")));
    }
    let wrong: Vec<String> = facts
        .libraries
        .iter()
        .filter_map(|(name, library)| {
            let why = match library {
                None => String::from("has no libvgpu.so"),
                Some(library) => match &library.error {
                    Some(error) => error.clone(),
                    None if library.region_version.is_none() => {
                        String::from("is a library of somebody else's")
                    }
                    None => return None,
                },
            };
            Some(format!("{path}/{name}: {why}"))
        })
        .collect();
    if wrong.is_empty() {
        let names: Vec<&String> = facts.libraries.keys().collect();
        return Ok(ok(several(&names)));
    }
    Ok(fail(several(&wrong)))
}

fn versions_agree(facts: &NodeFacts) -> Judged {
    facts.has_state()?;
    let libraries: Vec<u32> = facts
        .libraries
        .values()
        .flatten()
        .filter_map(|library| library.region_version)
        .collect();
    let known = |version: u32| version == REGION_VERSION || libraries.contains(&version);
    let wrong: Vec<String> = facts
        .containers
        .iter()
        .filter_map(|given| {
            let version = given.region_version.filter(|version| !known(*version))?;
            Some(format!("{} has a region of version {version}", given.whose))
        })
        .collect();
    if wrong.is_empty() {
        return Ok(ok(format!(
            "{} regions, version {REGION_VERSION} is this command's",
            facts.containers.len()
        )));
    }
    Ok(fail(several(&wrong)))
}

fn containers_intact(facts: &NodeFacts) -> Judged {
    facts.has_state()?;
    let mut wrong = facts.broken.clone();
    for given in &facts.containers {
        let who = format!("{} ({})", given.whose, given.path);
        if let Some(error) = &given.limits_error {
            wrong.push(format!("{who}: limits: {error}"));
        }
        if let Some(error) = &given.region_error {
            wrong.push(format!("{who}: region: {error}"));
        }
    }
    if wrong.is_empty() {
        return Ok(ok(format!("{} containers", facts.containers.len())));
    }
    Ok(fail(several(&wrong)))
}

fn agents_run(facts: &NodeFacts) -> Judged {
    facts.of_a_cluster()?;
    let plugin = facts.agents.iter().any(is_plugin);
    let exporter = facts.agents.iter().any(is_exporter);
    match (plugin, exporter) {
        (true, true) => Ok(ok("vgpu-monitor, vgpu-monitor plugin")),
        (true, false) => Ok(fail("vgpu-monitor plugin runs, the exporter does not")),
        (false, true) => Ok(fail("vgpu-monitor runs, vgpu-monitor plugin does not")),
        (false, false) => Ok(fail(
            "neither vgpu-monitor nor vgpu-monitor plugin is among the processes that are seen from here",
        )),
    }
}

fn metrics_answer(facts: &NodeFacts) -> Judged {
    if facts.metrics.is_empty() {
        return Err(skip(
            "nothing listens on 31993 and 31992 in this network (a pod has its own); vgpu doctor cluster asks through the API server",
        ));
    }
    let wrong: Vec<String> = facts
        .metrics
        .iter()
        .filter_map(|(port, answer)| {
            let why = match &answer.error {
                Some(error) => error.clone(),
                None if answer.status != 200 => format!("status {}", answer.status),
                None if !answer.ours => String::from("no series of ours"),
                None => return None,
            };
            Some(format!("localhost:{port}/metrics: {why}"))
        })
        .collect();
    if wrong.is_empty() {
        let ports: Vec<String> = facts.metrics.keys().map(u16::to_string).collect();
        return Ok(ok(several(&ports)));
    }
    Ok(fail(several(&wrong)))
}

fn ports_ours(facts: &NodeFacts) -> Judged {
    let wrong: Vec<String> = facts
        .listeners
        .iter()
        .filter_map(|listener| {
            let name = listener.process.as_deref()?;
            (name != "vgpu-monitor").then(|| format!("{name} listens on {}", listener.port))
        })
        .collect();
    if wrong.is_empty() {
        return Ok(ok(format!(
            "{} and {} are the agent's, or free",
            PORTS[0], PORTS[1]
        )));
    }
    Ok(fail(several(&wrong)))
}

fn no_hami(facts: &NodeFacts) -> Judged {
    let wrong: Vec<String> = facts
        .agents
        .iter()
        .filter(|agent| !is_plugin(agent) && !is_exporter(agent))
        .map(Process::shown)
        .collect();
    if wrong.is_empty() {
        return Ok(ok("no process vGPUmonitor or nvidia-device-plugin"));
    }
    Ok(fail(several(&wrong)))
}

fn no_leftovers(facts: &NodeFacts) -> Judged {
    if facts.leftovers.is_empty() {
        return Ok(ok("none of its files is here"));
    }
    Ok(warn(several(&facts.leftovers)))
}

fn all_managed(facts: &NodeFacts) -> Judged {
    if facts.cuda_processes == 0 && facts.closed_processes > 0 {
        return Err(skip(format!(
            "{} processes may not be looked into from here: that takes root with CAP_SYS_PTRACE (the agent's container exporter has it)",
            facts.closed_processes
        )));
    }
    if facts.unmanaged.is_empty() {
        return Ok(ok(format!(
            "{} processes with a CUDA driver are seen from here",
            facts.cuda_processes
        )));
    }
    let names: Vec<String> = facts.unmanaged.iter().map(Process::shown).collect();
    Ok(warn(format!("without the library: {}", several(&names))))
}

fn device_config_reads(facts: &NodeFacts) -> Judged {
    facts.plugin()?;
    match &facts.device_config {
        None => Ok(ok("the agent was given none: the standard one holds")),
        Some(config) => match &config.error {
            None => Ok(ok(&config.path)),
            Some(error) => Ok(fail(format!("{}: {error}", config.path))),
        },
    }
}

fn node_config_reads(facts: &NodeFacts) -> Judged {
    facts.plugin()?;
    match &facts.node_config {
        None => Ok(ok("the agent was given none")),
        Some(config) => match &config.error {
            None => Ok(ok(&config.path)),
            Some(error) => Ok(fail(format!("{}: {error}", config.path))),
        },
    }
}

fn mig_strategy(facts: &NodeFacts) -> Judged {
    let driver = facts.driver()?;
    let plugin = facts.plugin()?;
    let of_node = facts
        .node_config
        .as_ref()
        .and_then(|config| config.mig_strategy.clone());
    let strategy = of_node
        .or_else(|| flag(plugin, "--mig-strategy"))
        .unwrap_or_else(|| String::from("none"));
    let split: Vec<&str> = driver
        .cards
        .iter()
        .filter(|card| card.instances > 0)
        .map(|card| card.uuid.as_str())
        .collect();
    if strategy == "none" && !split.is_empty() {
        return Ok(fail(format!(
            "the strategy is none, and {} has instances",
            several(&split)
        )));
    }
    Ok(ok(format!(
        "{strategy}; {} cards with instances",
        split.len()
    )))
}

fn library_frugal(facts: &NodeFacts) -> Judged {
    facts.has_state()?;
    let wrong: Vec<String> = facts
        .libraries
        .iter()
        .filter_map(|(name, library)| {
            let needs = library.as_ref()?.needs.iter();
            let more: Vec<&String> = needs.filter(|needed| !is_of_glibc(needed)).collect();
            (!more.is_empty()).then(|| format!("{name} needs {}", several(&more)))
        })
        .collect();
    if wrong.is_empty() {
        return Ok(ok(format!("{} libraries", facts.libraries.len())));
    }
    Ok(warn(several(&wrong)))
}

fn manner(facts: &NodeFacts) -> Judged {
    facts.plugin()?;
    let groups = if facts.cgroup2 { 2 } else { 1 };
    let told = facts.told_manner().unwrap_or_else(|| String::from("auto"));
    if told != "mounts" && !facts.cdi_directory.directory {
        facts.not_in_pod("the directory for CDI specs is not mounted")?;
        return Ok(fail(format!(
            "--manner={told}, and the directory for CDI specs is not there (cgroup version {groups})"
        )));
    }
    Ok(ok(format!("--manner={told}, cgroup version {groups}")))
}
