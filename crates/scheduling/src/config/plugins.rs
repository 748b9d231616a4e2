//! Sets of plugins by extension point, and how a user's sets change the default sets. The rules are those of
//! kube-scheduler's `mergePluginSet`.

use std::collections::{BTreeMap, BTreeSet};

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

use crate::plugin::{Plugin, Point};

/// A plugin as a configuration names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PluginEntry {
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// Its scores are multiplied by this; 1 if absent or 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<i32>,
}

impl PluginEntry {
    fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            weight: None,
        }
    }
}

/// The plugins enabled and disabled at one extension point.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PluginList {
    /// In the order in which they run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub enabled: Vec<PluginEntry>,
    /// Plugins that do not run here; `*` for all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disabled: Vec<PluginEntry>,
}

impl PluginList {
    pub(crate) fn disables(&self, name: &str) -> bool {
        self.disabled.iter().any(|entry| entry.name == name)
    }

    /// These defaults with a user's changes: disabled plugins go, a plugin that is enabled again replaces the default
    /// one at its position, and the other enabled plugins follow.
    fn merged(self, custom: &Self) -> Self {
        let mut disabled: Vec<PluginEntry> = Vec::new();
        for entry in custom.disabled.iter().chain(&self.disabled) {
            disabled.push(PluginEntry::named(&entry.name));
        }
        let disables = |name: &str| disabled.iter().any(|entry| entry.name == name);
        let mut replaced = BTreeSet::new();
        let mut enabled = Vec::new();
        if !disables("*") {
            for entry in self.enabled {
                if disables(&entry.name) {
                    continue;
                }
                // If several entries have the same name, the last one counts.
                let custom = custom.enabled.iter().enumerate();
                match custom.rev().find(|(_, custom)| custom.name == entry.name) {
                    Some((at, custom)) => {
                        replaced.insert(at);
                        enabled.push(custom.clone());
                    }
                    None => enabled.push(entry),
                }
            }
        }
        for (at, entry) in custom.enabled.iter().enumerate() {
            if !replaced.contains(&at) {
                enabled.push(entry.clone());
            }
        }
        Self { enabled, disabled }
    }
}

/// The plugins of each extension point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plugins {
    /// By extension point; a point that is absent has no entries.
    pub at: BTreeMap<Point, PluginList>,
    /// Plugins that run at every extension point that they implement.
    pub multi_point: PluginList,
}

const DEFAULTS: [(Plugin, Option<i32>); 18] = [
    (Plugin::SchedulingGates, None),
    (Plugin::PrioritySort, None),
    (Plugin::NodeUnschedulable, None),
    (Plugin::NodeName, None),
    (Plugin::TaintToleration, Some(3)),
    (Plugin::NodeAffinity, Some(2)),
    (Plugin::NodePorts, None),
    (Plugin::NodeResourcesFit, Some(1)),
    (Plugin::VolumeRestrictions, None),
    (Plugin::NodeVolumeLimits, None),
    (Plugin::VolumeBinding, None),
    (Plugin::VolumeZone, None),
    (Plugin::PodTopologySpread, Some(2)),
    (Plugin::InterPodAffinity, Some(2)),
    (Plugin::DefaultPreemption, None),
    (Plugin::NodeResourcesBalancedAllocation, Some(1)),
    (Plugin::ImageLocality, Some(1)),
    (Plugin::DefaultBinder, None),
];

impl Default for Plugins {
    fn default() -> Self {
        Self {
            at: BTreeMap::new(),
            multi_point: PluginList {
                enabled: DEFAULTS
                    .iter()
                    .map(|(plugin, weight)| PluginEntry {
                        name: plugin.name().to_owned(),
                        weight: *weight,
                    })
                    .collect(),
                disabled: Vec::new(),
            },
        }
    }
}

impl Plugins {
    /// The plugins enabled and disabled at the point.
    pub fn list(&self, point: Point) -> Option<&PluginList> {
        self.at.get(&point)
    }

    /// The default sets with a user's changes.
    pub(crate) fn merged(custom: &Self) -> Self {
        let defaults = Self::default();
        let mut at = BTreeMap::new();
        for (point, list) in &custom.at {
            let list = PluginList::default().merged(list);
            if list != PluginList::default() {
                at.insert(*point, list);
            }
        }
        Self {
            at,
            multi_point: defaults.multi_point.merged(&custom.multi_point),
        }
    }

    /// The plugins that run at the point, in their order. The rules are those of kube-scheduler's
    /// `expandMultiPointPlugins`: plugins listed both here and at `multiPoint` come first, in the order that they
    /// have here; then the others of `multiPoint`; then the others listed here. Unknown names are left out.
    pub fn expand(&self, point: Point) -> Vec<Plugin> {
        let nothing = PluginList::default();
        let here = self.list(point).unwrap_or(&nothing);
        let named = |list: &PluginList| -> Vec<Plugin> {
            list.enabled
                .iter()
                .filter_map(|entry| Plugin::named(&entry.name))
                .filter(|plugin| plugin.points().contains(&point))
                .collect()
        };
        let specific = named(here);
        if here.disables("*") {
            return specific;
        }
        let everywhere: Vec<Plugin> = named(&self.multi_point)
            .into_iter()
            .filter(|plugin| !here.disables(plugin.name()))
            .collect();
        let mut plugins: Vec<Plugin> = specific
            .iter()
            .copied()
            .filter(|plugin| everywhere.contains(plugin))
            .collect();
        plugins.extend(
            everywhere
                .iter()
                .filter(|plugin| !specific.contains(plugin)),
        );
        plugins.extend(
            specific
                .iter()
                .filter(|plugin| !everywhere.contains(plugin)),
        );
        plugins
    }

    /// The weight of the plugin's scores: the one at `score`, else the one at `multiPoint`, else 1.
    pub fn weight(&self, plugin: Plugin) -> i64 {
        let scores = self.list(Point::Score).into_iter();
        let entry = scores
            .chain([&self.multi_point])
            .flat_map(|list| &list.enabled)
            .find(|entry| entry.name == plugin.name());
        match entry.and_then(|entry| entry.weight) {
            None | Some(0) => 1,
            Some(weight) => i64::from(weight),
        }
    }

    /// Names of all plugins that are enabled at any point, in byte order.
    pub(crate) fn enabled_names(&self) -> BTreeSet<String> {
        self.at
            .values()
            .chain([&self.multi_point])
            .flat_map(|list| &list.enabled)
            .map(|entry| entry.name.clone())
            .collect()
    }
}

impl Serialize for Plugins {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let nothing = PluginList::default();
        let mut map = serializer.serialize_map(Some(Point::ALL.len() + 1))?;
        for point in Point::ALL {
            map.serialize_entry(point.key(), self.at.get(&point).unwrap_or(&nothing))?;
        }
        map.serialize_entry("multiPoint", &self.multi_point)?;
        map.end()
    }
}
