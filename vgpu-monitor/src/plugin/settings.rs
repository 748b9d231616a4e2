//! The settings that the processes of the plugin and of the DRA driver read. Values in, values out, but for files of
//! configuration.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use kube_api::config::DeviceConfig;
use kube_api::vendor::{Role, Switches, Vendors};

use super::Served;
use super::args::PluginArgs;
use crate::agent_args::AgentArgs;

/// The state directory, made if it is not there.
///
/// # Errors
///
/// When it cannot be made.
pub(crate) fn state_dir(args: &AgentArgs) -> anyhow::Result<PathBuf> {
    let state = args.seen(&args.state_dir);
    std::fs::create_dir_all(&state)
        .with_context(|| format!("--state-dir {}", args.state_dir.display()))?;
    Ok(state)
}

/// The table of vendors.
///
/// # Errors
///
/// When the device configuration cannot be used.
pub(crate) fn vendors(args: &PluginArgs) -> anyhow::Result<Vendors> {
    let config = match &args.agent.device_config_file {
        Some(path) => {
            let said = || format!("--device-config-file {}", path.display());
            let text = std::fs::read_to_string(path).with_context(said)?;
            DeviceConfig::parse(&text).with_context(said)?
        }
        None => DeviceConfig::standard(),
    };
    let all = Switches {
        ascend: true,
        iluvatar: true,
    };
    Vendors::new(config, all).context("the device configuration cannot be used")
}

/// The resources that are served.
///
/// # Errors
///
/// When the device configuration has no such vendor.
pub(crate) fn served(args: &PluginArgs, vendors: &Vendors) -> anyhow::Result<Vec<Served>> {
    let mut served = Vec::new();
    for word in &args.vendors {
        let row = vendors.get(word).and_then(|row| row.resource(Role::Count));
        let Some(resource) = row else {
            let known: Vec<&str> = vendors.iter().map(|row| row.word.as_str()).collect();
            bail!(
                "--vendors {word}: the device configuration has no such vendor; it has {}",
                known.join(", ")
            );
        };
        let one = Served {
            resource: resource.to_owned(),
            vendor: word.clone(),
        };
        if !served.contains(&one) {
            served.push(one);
        }
    }
    Ok(served)
}
