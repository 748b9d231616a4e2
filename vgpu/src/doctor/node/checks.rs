//! The checks of a node, as a list, and the functions that several of them share. The others are grouped by subject:
//! driver and runtime in `driver`, kubelet and state directory in `kubelet`, agent and processes in `agent`, ResourceSlices in `slices`.

use super::{Driver, NodeFacts, PLUGINS, agent, driver, flag, is_dra, is_plugin, kubelet, slices};
use crate::doctor::check::{Check, Finding, skip};
use crate::doctor::proc::ProcessFacts;

/// In the order of their ids.
pub(in crate::doctor) const CHECKS: &[Check<NodeFacts>] = &[
    Check {
        id: "VGPU-N01",
        title: "the NVIDIA driver answers",
        cure: "install or load the driver (nvidia-smi has to work on the node); a node without a GPU needs no agent: remove its gpu=on label",
        judge: driver::driver_answers,
    },
    Check {
        id: "VGPU-N02",
        title: "every GPU answers and is healthy",
        cure: "look in dmesg for the XID of that GPU; reset it (nvidia-smi -r -i N) or restart the node; its slots are out of use until then",
        judge: driver::gpus_answer,
    },
    Check {
        id: "VGPU-N03",
        title: "the driver's library matches the kernel module",
        cure: "restart the node, or unload and load the kernel modules: the driver was upgraded under running programs",
        judge: driver::driver_parts_agree,
    },
    Check {
        id: "VGPU-N04",
        title: "the library was tested with the driver's CUDA version",
        cure: "use a driver for CUDA 11 to 13; with another version, first try a program under vgpu run and report the result",
        judge: driver::driver_known,
    },
    Check {
        id: "VGPU-N05",
        title: "the device files that CUDA needs are there",
        cure: "run nvidia-modprobe -u -c=0 at boot (nvidia-persistenced does so); it creates /dev/nvidia-uvm and the others",
        judge: driver::device_files,
    },
    Check {
        id: "VGPU-N06",
        title: "the container runtime can hand out GPUs",
        cure: "install nvidia-container-toolkit, then run nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml; before containerd 2, run nvidia-ctk runtime configure --set-as-default and restart containerd",
        judge: driver::runtime_knows_gpus,
    },
    Check {
        id: "VGPU-N07",
        title: "NVIDIA's CDI spec matches this driver and these GPUs",
        cure: "generate it again: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml (after a driver upgrade the old spec names files that are gone)",
        judge: driver::cdi_fits,
    },
    Check {
        id: "VGPU-N08",
        title: "the agent can serve the node's container runtime",
        cure: "set enable_cdi = true in containerd's configuration and restart it; or let pods get their GPUs by a variable (webhook.devicesByAnnotation=true) and NVIDIA's runtime (as the default, or devicePlugin.podRuntimeClassName)",
        judge: driver::cdi_enabled,
    },
    Check {
        id: "VGPU-N09",
        title: "the kubelet's sockets are there",
        cure: "start the kubelet; if it has another --root-dir, give the agent --kubelet-dir and the doctor the right --root",
        judge: kubelet::kubelet_sockets,
    },
    Check {
        id: "VGPU-N10",
        title: "the kubelet knows vgpu's device plugin, or its driver for claims",
        cure: "look at the agent's log (kubectl logs, container plugin): the agent registers again whenever the kubelet recreates kubelet.sock; restart its pod if it does not",
        judge: kubelet::plugin_registered,
    },
    Check {
        id: "VGPU-N11",
        title: "no other plugin serves the same resource",
        cure: "remove NVIDIA's device plugin from nodes with gpu=on (kubectl delete ds nvidia-device-plugin-daemonset; for the GPU Operator: devicePlugin.enabled=false), then restart the agent's pod",
        judge: kubelet::one_plugin,
    },
    Check {
        id: "VGPU-N12",
        title: "the state directory belongs to root alone",
        cure: "chown root and chmod 0755 the state directory, and find out how it was changed: any user who can write there can change limits",
        judge: kubelet::state_owned,
    },
    Check {
        id: "VGPU-N13",
        title: "the state directory survives a restart",
        cure: "put the state directory on a disk: on a memory or overlay file system the containers' limits are lost with the agent or the node",
        judge: kubelet::state_persistent,
    },
    Check {
        id: "VGPU-N14",
        title: "the state directory can be written and has room",
        cure: "free some space (or inodes) on that file system; each container needs about 4 MiB",
        judge: kubelet::state_room,
    },
    Check {
        id: "VGPU-N15",
        title: "the library is installed for containers",
        cure: "restart the agent's pod: the plugin installs the library when it starts (to install it by hand: vgpu-monitor install --to DIR)",
        judge: kubelet::library_installed,
    },
    Check {
        id: "VGPU-N16",
        title: "libraries and regions have matching versions",
        cure: "delete the named pods at a convenient time, so that they get a library and a region of this release",
        judge: kubelet::versions_agree,
    },
    Check {
        id: "VGPU-N17",
        title: "the containers' limits and regions are intact",
        cure: "delete the named pod, so that the agent writes new files; the agent removes directories that belong to no pod",
        judge: kubelet::containers_intact,
    },
    Check {
        id: "VGPU-N18",
        title: "both processes of the agent run",
        cure: "look at the agent's pod: kubectl describe pod, kubectl logs -c plugin and -c exporter",
        judge: agent::agents_run,
    },
    Check {
        id: "VGPU-N19",
        title: "the agent's metrics answer",
        cure: "look at the agent's log; curl http://localhost:31993/metrics shows the answer",
        judge: agent::metrics_answer,
    },
    Check {
        id: "VGPU-N20",
        title: "no other program has the agent's ports",
        cure: "stop the other program, or give the agent another port (--metrics-addr)",
        judge: agent::ports_ours,
    },
    Check {
        id: "VGPU-N21",
        title: "no HAMi agent runs here",
        cure: "helm uninstall hami (its device plugin and monitor fight for the same resource and port)",
        judge: agent::no_hami,
    },
    Check {
        id: "VGPU-N22",
        title: "HAMi has left nothing behind",
        cure: "once no container that HAMi started is still running here: rm -r /usr/local/vgpu/containers /usr/local/vgpu/ld.so.preload /tmp/vgpulock",
        judge: agent::no_leftovers,
    },
    Check {
        id: "VGPU-N23",
        title: "every process that uses a GPU has the library",
        cure: "run the program in a pod that asks for nvidia.com/gpu, or under vgpu run; the agent can report or evict such processes (--attest)",
        judge: agent::all_managed,
    },
    Check {
        id: "VGPU-N24",
        title: "the device configuration of the agent can be read",
        cure: "correct device-config.yaml in the ConfigMap (docs/configuration.md lists every key) and restart the agent's pod",
        judge: agent::device_config_reads,
    },
    Check {
        id: "VGPU-N25",
        title: "the per-node configuration file can be read",
        cure: "correct config.json in the ConfigMap (docs/configuration.md, single nodes) and restart the agent's pod",
        judge: agent::node_config_reads,
    },
    Check {
        id: "VGPU-N26",
        title: "the MIG strategy suits the GPUs",
        cure: "give the agent --mig-strategy=mixed (or migstrategy for this node), or switch MIG off: nvidia-smi -mig 0",
        judge: driver::mig_strategy,
    },
    Check {
        id: "VGPU-N27",
        title: "the agent can write CDI specs for the runtime",
        cure: "mount the node's /var/run/cdi into the agent's pod, writable; or give it --manner=mounts",
        judge: agent::manner,
    },
    Check {
        id: "VGPU-N28",
        title: "the installed library needs only glibc",
        cure: "install the released library (cargo xtask dist): with this one no program starts in an image that lacks a library it needs",
        judge: kubelet::library_frugal,
    },
    Check {
        id: "VGPU-N29",
        title: "the node's ResourceSlices show the GPUs that the driver has",
        cure: "look at kubectl logs -c dra of the agent here: it writes the slices again within 30 s, and says why it cannot",
        judge: slices::slices_fit,
    },
    Check {
        id: "VGPU-N30",
        title: "one process sets the driver's own limits",
        cure: "look at kubectl logs -c fence of the agent here; with helm upgrade, the exporter's --no-fence and the container fence come and go together",
        judge: agent::fence_runs,
    },
];

impl NodeFacts {
    pub(super) fn driver(&self) -> Result<&Driver, Finding> {
        self.driver
            .as_ref()
            .ok_or_else(|| skip("the driver does not answer (VGPU-N01)"))
    }

    /// The process that gives GPUs to containers: the plugin's or, on a node that gives by claims, the driver's.
    pub(super) fn giver(&self) -> Result<&ProcessFacts, Finding> {
        let gives = |agent: &&ProcessFacts| is_plugin(agent) || is_dra(agent);
        self.agents.iter().find(gives).ok_or_else(|| {
            skip("no process vgpu-monitor plugin or vgpu-monitor dra is seen here (VGPU-N18)")
        })
    }

    /// The bytes that the configuration promises of a GPU with this much memory.
    pub(super) fn promised_memory(&self, bytes: u64) -> u64 {
        let configs = || {
            [&self.node_config, &self.device_config]
                .into_iter()
                .flatten()
        };
        let mib = configs()
            .find_map(|it| it.memory_mib)
            .unwrap_or(bytes >> 20);
        let scaling = configs().find_map(|it| it.memory_scaling).unwrap_or(1.0);
        #[expect(clippy::cast_precision_loss, reason = "numbers of MiB, far below 2^53")]
        let scaled = mib as f64 * scaling;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 0 to the memory of a machine"
        )]
        let scaled = scaled.clamp(0.0, 1e12) as u64;
        scaled << 20
    }

    pub(super) fn has_state(&self) -> Result<(), Finding> {
        if self.state.present {
            Ok(())
        } else {
            Err(skip(format!(
                "there is no {}: no agent has run here (VGPU-N12)",
                self.state_path
            )))
        }
    }

    pub(super) fn sockets(&self) -> Result<&[String], Finding> {
        self.plugin_sockets
            .as_deref()
            .ok_or_else(|| skip(format!("there is no {PLUGINS} (VGPU-N09)")))
    }

    /// Whether anything of a cluster is here at all.
    pub(super) fn of_a_cluster(&self) -> Result<(), Finding> {
        if self.plugin_sockets.is_some() || self.state.present || !self.agents.is_empty() {
            return Ok(());
        }
        Err(skip(
            "no kubelet, no state directory and no agent is here: this is no node of a cluster",
        ))
    }

    /// The resource that the agent serves.
    pub(super) fn resource(&self) -> &str {
        self.device_config
            .as_ref()
            .and_then(|config| config.resource.as_deref())
            .filter(|name| !name.is_empty())
            .unwrap_or("nvidia.com/gpu")
    }

    /// In a pod, what is not there may only not be mounted.
    pub(super) fn not_in_pod(&self, what: &str) -> Result<(), Finding> {
        if self.in_pod {
            return Err(skip(format!(
                "{what} in this pod: look on the node, or in the agent's container plugin (or dra)"
            )));
        }
        Ok(())
    }

    /// The manner in which the agent passes devices to the runtime, if it is set.
    pub(super) fn told_manner(&self) -> Option<String> {
        let plugin = self.agents.iter().find(|agent| is_plugin(agent))?;
        flag(plugin, "--manner")
    }
}
