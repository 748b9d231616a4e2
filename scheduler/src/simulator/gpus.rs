//! Adds the plugins for shared GPUs to a configuration.

#![allow(
    clippy::indexing_slicing,
    reason = "a JSON value is read by name, and what it lacks is null; slices and maps are not indexed here"
)]

use std::sync::Arc;

use kube_api::object::Node;
use kube_api::vendor::Vendors;
use scheduling::plugin::Plugin;
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::{Refusal, Setup, Simulator};

/// When the plugins GpuFit and GpuScore are added to the initial configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum GpuPlugins {
    /// If an initial node has GPUs to share.
    Auto,
    /// Always.
    On,
    /// Never.
    #[default]
    Off,
}

/// Whether this node reports devices that pods can share.
pub fn has_devices(node: &Value, vendors: &Vendors) -> bool {
    Node::deserialize(node).is_ok_and(|node| {
        !kube_api::node::report(&node, vendors)
            .node
            .devices
            .is_empty()
    })
}

impl Simulator {
    /// Whether a node of the cluster reports devices that pods can share.
    pub fn has_devices(&self, vendors: &Vendors) -> bool {
        let export = serde_json::to_value(self.export()).unwrap_or_default();
        let nodes = export["nodes"].as_array();
        nodes.is_some_and(|nodes| nodes.iter().any(|node| has_devices(node, vendors)))
    }

    /// Adds the plugins for shared GPUs to the configuration, and to the one that a reset restores, unless it names
    /// them. Returns whether it did.
    ///
    /// # Errors
    ///
    /// Why the configuration cannot run with them.
    pub async fn share_gpus(&self) -> Result<bool, Refusal> {
        let _alone = self.0.gate.write().await;
        let shown = self.setup().shown.to_value();
        if names(&shown, Plugin::GpuFit.name()) {
            return Ok(false);
        }
        let setup = Arc::new(Setup::read(&with_gpus(shown))?);
        self.0.start.write().setup = Arc::clone(&setup);
        self.adopt(Some(Setup::clone(&setup)));
        Ok(true)
    }
}

/// Whether a plugin of this name is enabled or disabled anywhere.
fn names(configuration: &Value, plugin: &str) -> bool {
    match configuration {
        Value::Object(fields) => {
            fields.get("name").is_some_and(|name| name == plugin)
                || fields.values().any(|value| names(value, plugin))
        }
        Value::Array(values) => values.iter().any(|value| names(value, plugin)),
        _ => false,
    }
}

/// The configuration with the plugins for shared GPUs in every profile.
pub(super) fn with_gpus(mut configuration: Value) -> Value {
    let has_profiles = configuration["profiles"]
        .as_array()
        .is_some_and(|profiles| !profiles.is_empty());
    if !has_profiles {
        configuration["profiles"] = json!([{ "schedulerName": "default-scheduler" }]);
    }
    let profiles = configuration["profiles"].as_array_mut();
    for profile in profiles.into_iter().flatten() {
        let mut enabled = profile["plugins"]["multiPoint"]["enabled"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        for (name, weight) in [(Plugin::GpuFit, None), (Plugin::GpuScore, Some(1))] {
            let name = name.name();
            if !enabled.iter().any(|plugin| plugin["name"] == name) {
                enabled.push(match weight {
                    Some(weight) => json!({ "name": name, "weight": weight }),
                    None => json!({ "name": name }),
                });
            }
        }
        // Extension points without an entry are left out, because an empty entry would hide the defaults.
        let mut plugins = profile["plugins"].as_object().cloned().unwrap_or_default();
        plugins.retain(|_, set| set.as_object().is_some_and(|set| !set.is_empty()));
        let mut every = plugins.remove("multiPoint").unwrap_or_else(|| json!({}));
        every["enabled"] = enabled.into();
        plugins.insert("multiPoint".to_owned(), every);
        profile["plugins"] = plugins.into();
    }
    configuration
}

#[cfg(test)]
mod tests {
    use embedded_cluster::Cluster;
    use scheduling::plugin::Point;

    use super::*;

    #[test]
    fn the_configuration_for_gpus_runs_and_keeps_what_was_there() {
        for before in [
            json!({}),
            json!({ "profiles": [{ "schedulerName": "a", "plugins": { "score": { "disabled": [{ "name": "*" }] } } }] }),
            json!({ "profiles": [{ "plugins": { "multiPoint": { "enabled": [{ "name": "GpuScore", "weight": 7 }] } } }] }),
        ] {
            let setup = Setup::read(&before).unwrap();

            let after = with_gpus(setup.shown.to_value());

            let running = Setup::read(&after).unwrap().running;
            for profile in &running.profiles {
                let filters = profile.plugins.expand(Point::Filter);
                assert!(filters.contains(&Plugin::GpuFit), "{after}");
            }
            let first = &after["profiles"][0]["plugins"];
            let kept = &before["profiles"][0]["plugins"]["score"]["disabled"];
            assert_eq!(&first["score"]["disabled"], kept);
            let scores = first["multiPoint"]["enabled"].as_array().unwrap().iter();
            assert_eq!(
                scores.filter(|plugin| plugin["name"] == "GpuScore").count(),
                1
            );
        }
    }

    #[test]
    fn a_configuration_that_names_the_plugins_is_left_as_it_is() {
        let simulator =
            |written: &Value| Simulator::new(Cluster::default(), Setup::read(written).unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let off = json!({ "profiles": [{ "plugins": { "multiPoint": { "disabled": [{ "name": "GpuFit" }] } } }] });
        for (written, changed) in [(off, false), (json!({}), true)] {
            let simulator = simulator(&written);
            let before = simulator.setup();

            assert_eq!(runtime.block_on(simulator.share_gpus()).unwrap(), changed);

            assert_eq!(*simulator.setup() != *before, changed);
            runtime.block_on(simulator.reset());
            assert_eq!(*simulator.setup() != *before, changed, "a reset keeps it");
        }
    }
}
