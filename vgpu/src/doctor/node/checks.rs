//! The checks of a node, as a list, and what several of them ask. What each looks at stands beside it: driver and
//! runtime in `driver`, the kubelet and the state directory in `kubelet`, the agent and processes in `agent`.

use super::{Driver, NodeFacts, PLUGINS, agent, driver, flag, is_plugin, kubelet};
use crate::doctor::check::{Check, Finding, skip};
use crate::doctor::proc::Process;

/// In the order of their ids.
pub(in crate::doctor) const CHECKS: &[Check<NodeFacts>] = &[
    Check {
        id: "VGPU-N01",
        title: "the NVIDIA driver answers",
        cure: "install the driver, or load it (nvidia-smi has to work on the node); a node without a card needs no agent: take its gpu=on label away",
        judge: driver::driver_answers,
    },
    Check {
        id: "VGPU-N02",
        title: "every card answers and is healthy",
        cure: "look at dmesg for the XID of that card; reset it (nvidia-smi -r -i N) or restart the node; its slots are out of use meanwhile",
        judge: driver::cards_answer,
    },
    Check {
        id: "VGPU-N03",
        title: "the driver's library is the kernel's",
        cure: "restart the node, or unload and load the kernel modules: the driver was upgraded under running programs",
        judge: driver::driver_parts_agree,
    },
    Check {
        id: "VGPU-N04",
        title: "the driver's CUDA version is one that the library was tested with",
        cure: "use a driver of CUDA 11 to 13; with another one try a program under vgpu run first, and report what it says",
        judge: driver::driver_known,
    },
    Check {
        id: "VGPU-N05",
        title: "the device files that CUDA needs are there",
        cure: "run nvidia-modprobe -u -c=0 at boot (nvidia-persistenced does), which makes /dev/nvidia-uvm and the others",
        judge: driver::device_files,
    },
    Check {
        id: "VGPU-N06",
        title: "the container runtime can hand out cards",
        cure: "install nvidia-container-toolkit, then run: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml; before containerd 2: nvidia-ctk runtime configure --set-as-default, and restart containerd",
        judge: driver::runtime_knows_cards,
    },
    Check {
        id: "VGPU-N07",
        title: "NVIDIA's CDI spec fits this driver and these cards",
        cure: "write it anew: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml (a driver upgrade makes the old one name files that are gone)",
        judge: driver::cdi_fits,
    },
    Check {
        id: "VGPU-N08",
        title: "CDI is switched on where the agent uses it",
        cure: "set enable_cdi = true in containerd's configuration and restart it, or give the agent --manner=mounts",
        judge: driver::cdi_enabled,
    },
    Check {
        id: "VGPU-N09",
        title: "the kubelet's sockets are there",
        cure: "start the kubelet; where it has another --root-dir, give the agent --kubelet-dir and the doctor the right --root",
        judge: kubelet::kubelet_sockets,
    },
    Check {
        id: "VGPU-N10",
        title: "our plugin is registered with the kubelet",
        cure: "look at the agent (kubectl logs, container plugin): it registers again whenever kubelet.sock is made anew; restart its pod if it does not",
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
        cure: "chown root and chmod 0755 the state directory, and find out who changed it: whoever writes there writes limits",
        judge: kubelet::state_owned,
    },
    Check {
        id: "VGPU-N13",
        title: "the state directory survives a restart",
        cure: "put the state directory on a disk: on a memory or overlay file system what containers were given is lost with the agent or the node",
        judge: kubelet::state_persistent,
    },
    Check {
        id: "VGPU-N14",
        title: "the state directory can be written and has room",
        cure: "free some room (or files) on that file system; a container needs about 4 MiB",
        judge: kubelet::state_room,
    },
    Check {
        id: "VGPU-N15",
        title: "the library is installed for containers",
        cure: "restart the agent's pod: the plugin installs the library when it starts (by hand: vgpu-monitor install --to DIR)",
        judge: kubelet::library_installed,
    },
    Check {
        id: "VGPU-N16",
        title: "libraries and regions are of versions that fit",
        cure: "delete the named pods when it suits, so that they get a library and a region of this release",
        judge: kubelet::versions_agree,
    },
    Check {
        id: "VGPU-N17",
        title: "what containers were given is intact",
        cure: "delete the named pod, so that the agent writes it anew; a directory that no pod has is collected by the agent",
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
        cure: "look at the agent's log; curl http://localhost:31993/metrics shows what it says",
        judge: agent::metrics_answer,
    },
    Check {
        id: "VGPU-N20",
        title: "the agent's ports are its own",
        cure: "stop the other program, or give the agent another port (--metrics-addr)",
        judge: agent::ports_ours,
    },
    Check {
        id: "VGPU-N21",
        title: "no agent of HAMi runs here",
        cure: "helm uninstall hami (its device plugin and monitor fight for the same resource and port)",
        judge: agent::no_hami,
    },
    Check {
        id: "VGPU-N22",
        title: "HAMi has left nothing behind",
        cure: "once no container that HAMi started runs here any more: rm -r /usr/local/vgpu/containers /usr/local/vgpu/ld.so.preload /tmp/vgpulock",
        judge: agent::no_leftovers,
    },
    Check {
        id: "VGPU-N23",
        title: "every process on a GPU has the library",
        cure: "run it in a pod that asks for nvidia.com/gpu, or under vgpu run; the agent can report or evict such processes (--attest)",
        judge: agent::all_managed,
    },
    Check {
        id: "VGPU-N24",
        title: "the device configuration of the agent can be read",
        cure: "put the ConfigMap's device-config.yaml right (docs/configuration.md has every key) and restart the agent's pod",
        judge: agent::device_config_reads,
    },
    Check {
        id: "VGPU-N25",
        title: "the file of single nodes can be read",
        cure: "put the ConfigMap's config.json right (docs/configuration.md, single nodes) and restart the agent's pod",
        judge: agent::node_config_reads,
    },
    Check {
        id: "VGPU-N26",
        title: "the MIG strategy suits the cards",
        cure: "give the agent --mig-strategy=mixed (or migstrategy for this node), or switch MIG off: nvidia-smi -mig 0",
        judge: driver::mig_strategy,
    },
    Check {
        id: "VGPU-N27",
        title: "the agent can describe containers to the runtime",
        cure: "mount the node's /var/run/cdi into the agent's pod, writable; or give it --manner=mounts",
        judge: agent::manner,
    },
    Check {
        id: "VGPU-N28",
        title: "the library that is installed needs glibc alone",
        cure: "install the released library (cargo xtask dist): this one keeps every program from starting in images that lack what it needs",
        judge: kubelet::library_frugal,
    },
];

impl NodeFacts {
    pub(super) fn driver(&self) -> Result<&Driver, Finding> {
        self.driver
            .as_ref()
            .ok_or_else(|| skip("the driver does not answer (VGPU-N01)"))
    }

    /// The plugin's process.
    pub(super) fn plugin(&self) -> Result<&Process, Finding> {
        self.agents
            .iter()
            .find(|agent| is_plugin(agent))
            .ok_or_else(|| skip("no process vgpu-monitor plugin is seen here (VGPU-N18)"))
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
                "{what} in this pod: look on the node, or in the agent's container plugin"
            )));
        }
        Ok(())
    }

    /// How the agent tells the runtime, where it was told.
    pub(super) fn told_manner(&self) -> Option<String> {
        let plugin = self.agents.iter().find(|agent| is_plugin(agent))?;
        flag(plugin, "--manner")
    }
}
