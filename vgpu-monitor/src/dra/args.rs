//! Every setting of `vgpu-monitor dra`: a flag, its variable, its default.

use clap::Parser;

use crate::agent_args::AgentArgs;
use crate::inventory::MigStrategy;

/// Settings of `vgpu-monitor dra`.
#[derive(Debug, Clone, Parser)]
#[command(mut_arg("node_name", |flag| flag.help(
    "Name of this node's Node object; the pool of its devices has the same name"
)))]
pub struct DraArgs {
    /// The flags that the device plugin takes, too.
    #[command(flatten)]
    pub agent: AgentArgs,
    /// How GPUs in MIG mode are offered: none, or mixed (each instance that they can be cut into is a device, which is
    /// made when a claim has it).
    #[arg(
        long,
        env = "VGPU_MIG_STRATEGY",
        value_name = "STRATEGY",
        default_value = "none"
    )]
    pub mig_strategy: MigStrategy,
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

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
            args.agent.seen(Path::new("/var/lib/vgpu")),
            PathBuf::from("/host/var/lib/vgpu")
        );
    }
}
