//! Every setting of the agent: a flag, its variable, its default.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use server::TraceArgs;
use server::flags::{LogArgs, address};

use crate::agent_args::DriverArgs;
use crate::dra::args::DraArgs;
use crate::exporter::Detail;
use crate::fence::args::FenceArgs;
use crate::plugin::args::{InstallArgs, PluginArgs};

/// Exports what every container on this node uses of its GPUs to Prometheus, and divides the GPUs' compute
/// time between the containers.
///
/// /metrics is read from the containers' files at each scrape. /healthz answers while the process serves,
/// /readyz when it can read the root directory. docs/metrics.md explains every series.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "vgpu-monitor",
    version,
    args_conflicts_with_subcommands = true,
    mut_arg("log", |flag| flag.env("VGPU_MONITOR_LOG")),
    mut_arg("log_format", |flag| flag.env("VGPU_MONITOR_LOG_FORMAT"))
)]
pub struct Args {
    /// A program to run instead of the exporter.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Directory that holds the containers' instances; it may appear later.
    #[arg(
        long,
        env = "VGPU_ROOT",
        value_name = "DIR",
        default_value = "/run/vgpu"
    )]
    pub root: PathBuf,

    /// Address to serve `/metrics` on: ADDRESS:PORT, or :PORT for every address of the node.
    #[arg(
        long,
        env = "VGPU_METRICS_ADDR",
        value_name = "ADDRESS",
        default_value = "0.0.0.0:31993",
        value_parser = address
    )]
    pub metrics_addr: SocketAddr,

    /// Serve HAMi's older metric names as well.
    #[arg(long, env = "VGPU_LEGACY_METRICS", value_parser = clap::builder::BoolishValueParser::new(),
          num_args = 0..=1, default_value = "false", default_missing_value = "true", require_equals = true)]
    pub legacy_metrics: bool,

    /// How many series are served: full (all of them), or standard (what the alerts and the accounts need).
    #[arg(long, env = "VGPU_METRICS_DETAIL", value_enum, value_name = "DETAIL", default_value_t = Detail::Full)]
    pub metrics_detail: Detail,

    /// Keep a file for each GPU here that names the containers on it, for dcgm-exporter's --hpc-job-mapping-dir. The
    /// directory must exist.
    #[arg(long, env = "VGPU_DCGM_JOB_MAPPING_DIR", value_name = "DIR")]
    pub dcgm_job_mapping_dir: Option<PathBuf>,

    /// Name of this node in the `node` label; by default the host's name.
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub node_name: Option<String>,

    /// Do not query the NVIDIA driver: no series of whole GPUs, no utilization by process.
    #[arg(long, env = "VGPU_NO_NVML", value_parser = clap::builder::BoolishValueParser::new(),
          num_args = 0..=1, default_value = "false", default_missing_value = "true", require_equals = true)]
    pub no_nvml: bool,

    /// The driver.
    #[command(flatten)]
    pub driver: DriverArgs,

    /// Do not arbitrate compute time; a `vgpu run` process then does, if there is one.
    #[arg(long, env = "VGPU_NO_ARBITER", value_parser = clap::builder::BoolishValueParser::new(),
          num_args = 0..=1, default_value = "false", default_missing_value = "true", require_equals = true)]
    pub no_arbiter: bool,

    /// Do not set the driver's own memory limits: `vgpu-monitor fence` does on this node.
    #[arg(long, env = "VGPU_NO_FENCE", value_parser = clap::builder::BoolishValueParser::new(),
          num_args = 0..=1, default_value = "false", default_missing_value = "true", require_equals = true)]
    pub no_fence: bool,

    #[command(flatten)]
    #[allow(
        missing_docs,
        reason = "a flattened group takes its words from its flags"
    )]
    pub attestation: crate::attest::args::Flags,

    /// Where traces go.
    #[command(flatten)]
    pub traces: TraceArgs,

    /// The log.
    #[command(flatten)]
    pub log: LogArgs,
}

/// The agent's other process, and one-time commands.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Command {
    /// Run the device plugin: allot this node's GPUs to the kubelet, register them with the scheduler, and
    /// watch their health.
    Plugin(Box<PluginArgs>),
    /// Run the DRA driver in the place of the device plugin: publish this node's GPUs as ResourceSlices, and give
    /// containers what their ResourceClaims were allocated.
    Dra(Box<DraArgs>),
    /// Keep the driver's own memory limits on the control groups of this node's containers, as a second fence beside the
    /// library. It needs the host's control groups and process ids, and a driver from 615 on.
    Fence(FenceArgs),
    /// Copy the library to the directory from which containers get it, and exit.
    Install(InstallArgs),
}

impl Args {
    /// The node's name: as given, else the host's, else `unknown`.
    #[must_use]
    pub fn node(&self) -> String {
        let given = self
            .node_name
            .as_deref()
            .map(str::trim)
            .filter(|name| !name.is_empty());
        given.map_or_else(host_name, str::to_owned)
    }
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() {
        "unknown".to_owned()
    } else {
        name.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Args, clap::Error> {
        Args::try_parse_from([&["vgpu-monitor"], args].concat())
    }

    #[test]
    fn address_may_be_only_a_port() {
        let args = parse(&["--metrics-addr", ":9394"]).unwrap();
        assert_eq!(args.metrics_addr, "0.0.0.0:9394".parse().unwrap());
        let args = parse(&["--metrics-addr", "[::1]:1"]).unwrap();
        assert_eq!(args.metrics_addr, "[::1]:1".parse().unwrap());
    }

    #[test]
    fn invalid_address_error_names_the_accepted_forms() {
        for text in ["", "31993", "localhost"] {
            let error = parse(&["--metrics-addr", text]).unwrap_err().to_string();
            assert!(error.contains(&format!("'{text}'")), "{error}");
            assert!(error.contains("such as 127.0.0.1:8080"), "{error}");
        }
    }

    #[test]
    fn node_name_defaults_to_the_hosts_name() {
        let named = parse(&["--node-name", " gpu-7 "]).unwrap();
        let empty = parse(&["--node-name", ""]).unwrap();

        assert_eq!(named.node(), "gpu-7");
        assert_eq!(empty.node(), host_name());
        assert!(!empty.node().is_empty());
    }

    #[test]
    fn switches_accept_a_boolean_value() {
        assert!(parse(&["--legacy-metrics"]).unwrap().legacy_metrics);
        assert!(
            !parse(&["--legacy-metrics=false", "--no-nvml"])
                .unwrap()
                .legacy_metrics
        );
        assert!(parse(&["--no-nvml=perhaps"]).is_err());
    }
}
