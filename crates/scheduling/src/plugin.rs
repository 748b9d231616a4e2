//! The plugins, and the extension points at which each of them works.

use std::fmt;

/// An extension point: a step of a pod's scheduling at which plugins run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Point {
    /// Whether the pod may enter the queue.
    PreEnqueue,
    /// Which of two pods comes first.
    QueueSort,
    /// Checks and preparations before any node is examined.
    PreFilter,
    /// Whether a node can take the pod.
    Filter,
    /// Actions when no node can.
    PostFilter,
    /// Preparations for all scores.
    PreScore,
    /// The score of a node.
    Score,
    /// Reservations on the chosen node before the pod is bound.
    Reserve,
    /// Whether the binding has to wait.
    Permit,
    /// Actions before the binding.
    PreBind,
    /// The binding.
    Bind,
    /// Actions after the binding.
    PostBind,
}

impl Point {
    /// All extension points, in the order of `KubeSchedulerConfiguration`.
    pub const ALL: [Self; 12] = [
        Self::PreEnqueue,
        Self::QueueSort,
        Self::PreFilter,
        Self::Filter,
        Self::PostFilter,
        Self::PreScore,
        Self::Score,
        Self::Reserve,
        Self::Permit,
        Self::PreBind,
        Self::Bind,
        Self::PostBind,
    ];

    /// The name in `KubeSchedulerConfiguration`.
    pub fn key(self) -> &'static str {
        match self {
            Self::PreEnqueue => "preEnqueue",
            Self::QueueSort => "queueSort",
            Self::PreFilter => "preFilter",
            Self::Filter => "filter",
            Self::PostFilter => "postFilter",
            Self::PreScore => "preScore",
            Self::Score => "score",
            Self::Reserve => "reserve",
            Self::Permit => "permit",
            Self::PreBind => "preBind",
            Self::Bind => "bind",
            Self::PostBind => "postBind",
        }
    }
}

macro_rules! plugins {
    ($($(#[$doc:meta])* $name:ident => [$($point:ident),*],)*) => {
        /// A plugin.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Plugin {
            $($(#[$doc])* $name,)*
        }

        impl Plugin {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its name in configurations and result annotations.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// The extension points at which it works.
            pub fn points(self) -> &'static [Point] {
                match self { $(Self::$name => &[$(Point::$point),*],)* }
            }
        }
    };
}

plugins! {
    /// Keeps pods with scheduling gates out of the queue.
    SchedulingGates => [PreEnqueue],
    /// Pods of a higher priority first, then those that wait longer.
    PrioritySort => [QueueSort],
    /// Refuses cordoned nodes.
    NodeUnschedulable => [Filter],
    /// Refuses all nodes except the one that the pod names.
    NodeName => [Filter],
    /// Refuses nodes with taints that the pod does not tolerate, and prefers those without.
    TaintToleration => [Filter, PreScore, Score],
    /// The pod's node selector and node affinity.
    NodeAffinity => [PreFilter, Filter, PreScore, Score],
    /// Host ports that the pod needs.
    NodePorts => [PreFilter, Filter],
    /// Whether CPU, memory and other resources suffice, and how full the node gets.
    NodeResourcesFit => [PreFilter, Filter, PreScore, Score],
    /// Volumes that only one pod or one node may mount.
    VolumeRestrictions => [PreFilter, Filter],
    /// The number of volumes of a driver that a node supports.
    NodeVolumeLimits => [PreFilter, Filter],
    /// Whether the pod's claims have, or can get, volumes that the node reaches.
    VolumeBinding => [PreFilter, Filter, PreScore, Score, Reserve, PreBind],
    /// Whether the pod's volumes are in the node's zone.
    VolumeZone => [PreFilter, Filter],
    /// How evenly pods are spread over zones or nodes.
    PodTopologySpread => [PreFilter, Filter, PreScore, Score],
    /// The pods that the pod wants near it or far from it.
    InterPodAffinity => [PreFilter, Filter, PreScore, Score],
    /// Makes room by evicting pods of a lower priority.
    DefaultPreemption => [PostFilter],
    /// Prefers nodes on which the resources are used evenly.
    NodeResourcesBalancedAllocation => [PreScore, Score],
    /// Prefers nodes that have the pod's images.
    ImageLocality => [Score],
    /// Binds the pod.
    DefaultBinder => [Bind],
    /// Whether the node's shared devices can take the pod, by the placement engine.
    GpuFit => [PreFilter, Filter, Reserve],
    /// The placement engine's score of the node's shared devices.
    GpuScore => [PreScore, Score],
}

impl Plugin {
    /// The plugin of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|plugin| plugin.name() == name)
    }

    fn bit(self) -> u32 {
        1 << (self as u32)
    }
}

impl fmt::Display for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of plugins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct PluginSet(u32);

impl PluginSet {
    /// Adds a plugin.
    pub fn insert(&mut self, plugin: Plugin) {
        self.0 |= plugin.bit();
    }

    /// Whether the plugin is in the set.
    pub fn contains(self, plugin: Plugin) -> bool {
        self.0 & plugin.bit() != 0
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The plugins in the set, in the order of [`Plugin::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Plugin> {
        Plugin::ALL
            .iter()
            .copied()
            .filter(move |plugin| self.contains(*plugin))
    }
}

impl FromIterator<Plugin> for PluginSet {
    fn from_iter<T: IntoIterator<Item = Plugin>>(plugins: T) -> Self {
        let mut set = Self::default();
        for plugin in plugins {
            set.insert(plugin);
        }
        set
    }
}
