//! Every setting of `vgpu-monitor fence`: a flag, its variable, its default.

use std::path::PathBuf;

use clap::Parser;
use server::flags::LogArgs;

use crate::agent_args::DriverArgs;

/// Settings of `vgpu-monitor fence`.
#[derive(Debug, Clone, Parser)]
#[command(
    mut_arg("log", |flag| flag.env("VGPU_MONITOR_LOG")),
    mut_arg("log_format", |flag| flag.env("VGPU_MONITOR_LOG_FORMAT"))
)]
pub struct FenceArgs {
    /// Directory that holds the containers' instances; it may appear later.
    #[arg(
        long,
        env = "VGPU_ROOT",
        value_name = "DIR",
        default_value = "/var/lib/vgpu/containers"
    )]
    pub root: PathBuf,

    /// The host's control groups of version 2; of several such flags the last one holds.
    #[arg(
        long,
        env = "VGPU_CONTROL_GROUPS",
        value_name = "DIR",
        default_value = "/sys/fs/cgroup",
        overrides_with = "control_groups"
    )]
    pub control_groups: PathBuf,

    /// The driver.
    #[command(flatten)]
    pub driver: DriverArgs,

    /// The log.
    #[command(flatten)]
    pub log: LogArgs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_control_groups_replace_those_of_the_chart() {
        let words = [
            "fence",
            "--control-groups=/sys/fs/cgroup",
            "--control-groups=/sys/fs/cgroup/unified",
        ];

        let args = FenceArgs::try_parse_from(words).unwrap();

        assert_eq!(args.control_groups, PathBuf::from("/sys/fs/cgroup/unified"));
    }
}
