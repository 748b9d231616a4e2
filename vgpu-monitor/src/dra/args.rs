//! Every setting of `vgpu-monitor dra`: a flag, its variable, its default.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Parser;

use crate::address::address;
use crate::logging::LogArgs;

/// Settings of `vgpu-monitor dra`.
#[derive(Debug, Clone, Parser)]
pub struct DraArgs {
    /// Name of this node's Node object; the pool of its devices has the same name.
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub node_name: String,

    /// Directory of the host that outlives the agent: containers, libraries, the record of claims.
    #[arg(
        long,
        env = "VGPU_STATE_DIR",
        value_name = "DIR",
        default_value = "/var/lib/vgpu"
    )]
    pub state_dir: PathBuf,

    /// The kubelet's directory; its plugins, plugins_registry and pod-resources are used.
    #[arg(
        long,
        env = "VGPU_KUBELET_DIR",
        value_name = "DIR",
        default_value = "/var/lib/kubelet"
    )]
    pub kubelet_dir: PathBuf,

    /// Directory for CDI descriptions, which the container runtime reads.
    #[arg(
        long,
        env = "VGPU_CDI_DIR",
        value_name = "DIR",
        default_value = "/var/run/cdi"
    )]
    pub cdi_dir: PathBuf,

    /// containerd's configuration, which says whether CDI is switched on (it may be absent).
    #[arg(
        long,
        env = "VGPU_RUNTIME_CONFIG",
        value_name = "FILE",
        default_value = "/etc/containerd/config.toml"
    )]
    pub runtime_config: PathBuf,

    /// The device configuration that scheduler and webhook also read; by default the standard one.
    #[arg(long, env = "VGPU_DEVICE_CONFIG_FILE", value_name = "FILE")]
    pub device_config_file: Option<PathBuf>,

    /// Per-node overrides of the device configuration ({"nodeconfig": […]}); the file may be absent.
    #[arg(
        long,
        env = "VGPU_NODE_CONFIG_FILE",
        value_name = "FILE",
        default_value = "/config/config.json"
    )]
    pub node_config_file: PathBuf,

    /// The library for containers, in this image.
    #[arg(
        long,
        env = "VGPU_LIBRARY",
        value_name = "FILE",
        default_value = "/usr/lib/vgpu/libvgpu.so"
    )]
    pub library: PathBuf,

    /// Address to serve `/metrics`, `/healthz` and `/readyz` on: ADDRESS:PORT, or :PORT for every address of
    /// the node.
    #[arg(
        long,
        env = "VGPU_PLUGIN_METRICS_ADDR",
        value_name = "ADDRESS",
        default_value = "0.0.0.0:31992",
        value_parser = address
    )]
    pub metrics_addr: SocketAddr,

    /// How many seconds the NVIDIA driver's files in this container may be unusable while the kernel has the driver.
    /// Then the process exits, so that the kubelet restarts the container with the present files. 0: never exit for
    /// this reason.
    #[arg(long, env = "VGPU_DRIVER_PATIENCE", value_name = "SECONDS", default_value_t = 30,
          value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub driver_patience: u32,

    /// Prefix under which this process sees the host's paths; none by default.
    #[arg(long, env = "VGPU_HOST_PREFIX", value_name = "DIR")]
    pub host_prefix: Option<PathBuf>,

    /// A kubeconfig file; by default the pod's own service account.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Make the exporter's calls of the API server: events, its node's pods, evictions. It connects to this socket, and
    /// needs no token of its own.
    #[arg(long, env = "VGPU_EXPORTER_SOCKET", value_name = "FILE")]
    pub exporter_socket: Option<PathBuf>,

    /// The key of the pod label that names the pod's team: metrics sum up by team what pods use.
    #[arg(
        long,
        env = "VGPU_TEAM_LABEL",
        value_name = "LABEL",
        default_value = "team"
    )]
    pub team_label: String,

    /// The kernel's sysfs.
    #[arg(
        long,
        env = "VGPU_SYSFS",
        value_name = "DIR",
        default_value = "/sys",
        hide = true
    )]
    pub sysfs: PathBuf,

    /// The log.
    #[command(flatten)]
    pub log: LogArgs,
}

impl DraArgs {
    /// A path of the host as this process sees it.
    #[must_use]
    pub fn seen(&self, host: &Path) -> PathBuf {
        match &self.host_prefix {
            Some(prefix) => prefix.join(host.strip_prefix("/").unwrap_or(host)),
            None => host.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::args::{Args, Command};

    #[test]
    fn every_flag_is_on_the_page_with_its_default() {
        let page = include_str!("../../../docs/dra.md");
        let rows: Vec<&str> = page
            .lines()
            .filter(|line| line.starts_with("| `--"))
            .collect();

        for flag in DraArgs::command().get_arguments() {
            let Some(name) = flag.get_long().filter(|_| !flag.is_hide_set()) else {
                continue;
            };
            let row = rows.iter().find(|row| row.contains(&format!("`--{name}`")));
            let row = row.unwrap_or_else(|| panic!("docs/dra.md has no row for --{name}"));
            let defaults = flag.get_default_values().iter();
            for default in defaults.filter_map(|default| default.to_str()) {
                let is_named = row.contains(&format!("`{default}`"));
                let is_common = row.contains("as for the other daemons");
                assert!(is_named || is_common, "--{name} is {default}: {row}");
            }
        }
    }

    #[test]
    fn chart_flags_are_accepted() {
        let given = [
            "vgpu-monitor",
            "dra",
            "--node-name=n1",
            "--host-prefix=/host",
            "--metrics-addr=:1",
        ];
        let Some(Command::Dra(args)) = Args::try_parse_from(given).unwrap().command else {
            panic!("no dra command");
        };

        assert_eq!(
            args.seen(Path::new("/var/lib/vgpu")),
            PathBuf::from("/host/var/lib/vgpu")
        );
    }
}
