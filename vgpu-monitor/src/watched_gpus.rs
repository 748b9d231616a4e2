//! The node's GPUs as the device plugin and the DRA driver watch them: which there are, and which are sick.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use events::Events;
use tokio::sync::watch;

use crate::agent_args::AgentArgs;
use crate::driver_files::DriverFiles;
use crate::health::{self, HealthSettings};
use crate::inventory::{self, InventorySettings, MigStrategy};

pub(crate) struct WatchedGpus {
    pub(crate) gpus: inventory::Watcher,
    pub(crate) files: DriverFiles,
    pub(crate) sick: health::Started,
}

impl WatchedGpus {
    /// Starts the threads that watch. `hindrance`: why no container can be served at the moment, if there is a reason;
    /// then all GPUs count as sick.
    pub(crate) fn start(
        agent: &AgentArgs,
        mig_strategy: MigStrategy,
        state: &Path,
        hindrance: watch::Receiver<Option<String>>,
        events: &Events,
    ) -> anyhow::Result<Self> {
        let gpus = inventory::start(InventorySettings {
            hindrance,
            device_config: agent.device_config_file.clone(),
            node_config: Some(agent.node_config_file.clone()),
            mig_strategy,
            sysfs: agent.driver.sysfs.clone(),
            ..InventorySettings::new(agent.node_name.clone(), state.to_owned())
        })
        .context("cannot start the thread that reads the GPUs")?;
        let patience = Duration::from_secs(agent.driver.driver_patience.into());
        let files = DriverFiles::new(&agent.driver.sysfs, patience);
        let containers = state.join("containers");
        let sick = health::start(
            HealthSettings::of(&agent.node_name, containers, files.clone()),
            gpus.inventories.clone(),
            events.clone(),
        )
        .context("cannot start the threads that watch the GPUs")?;
        Ok(Self { gpus, files, sick })
    }
}
