//! Why a pod does not fit, with the numbers. `explain` says what to do about it.

use std::fmt;
use std::sync::Arc;

use crate::inventory::Vendor;

/// Why one device cannot serve a container. Memory is in bytes, compute in the device's unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Reason {
    /// The device is reported as unhealthy.
    #[error("not healthy")]
    Unhealthy,
    /// A pod on the device contradicts its mode: it holds a share without an instance on a device in MIG mode, or an
    /// instance on another device.
    #[error("what runs on it does not match its mode")]
    ModeConflict,
    /// The operator has cordoned the device.
    #[error("cordoned")]
    Cordoned,
    /// Another driver gives the device out.
    #[error("given out by a ResourceClaim")]
    GivenOut,
    /// The type rules of the request exclude its model.
    #[error("model excluded by the type rules")]
    Type,
    /// The request asks for another mode.
    #[error("other sharing mode than asked for")]
    Mode,
    /// The device lacks a tag that the request requires.
    #[error("lacks a required label")]
    Tag,
    /// The identifier rules of the request exclude it.
    #[error("excluded by the UUID rules")]
    Id,
    /// All its slots are taken.
    #[error("all {slots} slots are taken")]
    Slots {
        /// The number of its slots.
        slots: u32,
    },
    /// The request asks for an unused device.
    #[error("in use by {containers}, asked for unused")]
    InUse {
        /// The number of slots that are taken.
        containers: u32,
    },
    /// The namespace's quota leaves too little memory.
    #[error("quota leaves {left} bytes of memory, asked {asked}")]
    QuotaMemory {
        /// The amount asked of this device.
        asked: u64,
        /// The amount left of the quota.
        left: u64,
    },
    /// The namespace's quota leaves too little compute.
    #[error("quota leaves {left} cores, asked {asked}")]
    QuotaCores {
        /// The amount asked of this device.
        asked: u32,
        /// The amount left of the quota.
        left: u32,
    },
    /// The namespace's quota leaves no share of a device.
    #[error("quota leaves {left} devices, asked {asked}")]
    QuotaDevices {
        /// The number asked for on this device.
        asked: u32,
        /// The number left of the quota.
        left: u32,
    },
    /// Too little memory is left.
    #[error("{free} of {total} bytes of memory free, asked {asked}")]
    Memory {
        /// The amount asked of this device.
        asked: u64,
        /// The amount left on it.
        free: u64,
        /// The amount that it has in all.
        total: u64,
    },
    /// Too little compute is left.
    #[error("{free} of {total} cores free, asked {asked}")]
    Cores {
        /// The amount asked of this device.
        asked: u32,
        /// The amount left on it.
        free: u32,
        /// The amount that it has in all.
        total: u32,
    },
    /// The request is in GFLOPS, and the device's speed is unknown.
    #[error("speed unknown, asked in FLOPS")]
    UnknownSpeed,
    /// The request asks for a whole device, and the device is in use.
    #[error("whole device asked for, in use by {containers}")]
    Exclusive {
        /// The number of slots that are taken.
        containers: u32,
    },
    /// All its compute is promised, so a share without a promise would get none.
    #[error("all compute is promised")]
    CoresExhausted,
    /// No sufficient profile has a free placement.
    #[error("no MIG profile with {asked} bytes has a free placement")]
    NoInstance {
        /// The memory asked for.
        asked: u64,
    },
    /// The request asks for a profile that the device does not have.
    #[error("none of its profiles matches the request")]
    NoProfile,
    /// The container may not share the device with the containers on it: they have another class, or shares of another
    /// size.
    #[error("in use by containers that may not share it with this one")]
    Company,
    /// An earlier container of the pod got another device, and the pod may only have that one.
    #[error("not the device of the pod's earlier container")]
    Apart,
    /// The device fits by itself, but not in the required arrangement with others.
    #[error("suitable, but not with others in the required arrangement")]
    Arrangement,
    /// The device fits by itself, but the other devices that are needed with it are on another NUMA node.
    #[error("too few suitable devices on its NUMA node")]
    Numa,
    /// The device fits by itself, but the node has too few like it.
    #[error("suitable, but too few of them")]
    TooFew,
}

impl Reason {
    /// The reason's code, which users of the reference know.
    pub fn code(self) -> &'static str {
        match self {
            Self::Unhealthy | Self::ModeConflict => "CardNotHealth",
            Self::Cordoned => "CardCordoned",
            Self::GivenOut => "CardGivenOut",
            Self::Type | Self::Mode => "CardTypeMismatch",
            Self::Tag | Self::Apart => "CardNotFoundCustomFilterRule",
            Self::NoProfile => "ModeNotFit",
            Self::Company => "CardQosPolicyMismatch",
            Self::Id => "CardUuidMismatch",
            Self::Slots { .. } => "CardTimeSlicingExhausted",
            Self::InUse { .. } | Self::Exclusive { .. } => "ExclusiveDeviceAllocateConflict",
            Self::QuotaMemory { .. } | Self::QuotaCores { .. } | Self::QuotaDevices { .. } => {
                "ResourceQuotaNotFit"
            }
            Self::Memory { .. } => "CardInsufficientMemory",
            Self::Cores { .. } | Self::UnknownSpeed => "CardInsufficientCore",
            Self::CoresExhausted => "CardComputeUnitsExhausted",
            Self::NoInstance { .. } => "CardMigTopologyInfeasible",
            Self::Numa | Self::Arrangement => "NumaNotFit",
            Self::TooFew => "AllocatedCardsInsufficientRequest",
        }
    }

    /// Whether the device could serve the container if all pods left it.
    pub fn is_cured_by_leaving(self) -> bool {
        match self {
            Self::Unhealthy
            | Self::Cordoned
            | Self::GivenOut
            | Self::Type
            | Self::Mode
            | Self::Tag
            | Self::Id
            | Self::NoProfile
            | Self::Apart
            | Self::UnknownSpeed => false,
            Self::Memory { asked, total, .. } => asked <= total,
            Self::Cores { asked, total, .. } => asked <= total,
            Self::Slots { slots } => slots > 0,
            _ => true,
        }
    }
}

/// The devices of one node, each with the reason why it does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reasons {
    /// Identifiers of all the node's devices, shared with the inventory.
    ids: Arc<[Arc<str>]>,
    /// Position in `ids`, and the reason.
    reasons: Vec<(u16, Reason)>,
}

impl Reasons {
    pub(crate) fn new(ids: &Arc<[Arc<str>]>) -> Self {
        Self {
            ids: Arc::clone(ids),
            reasons: Vec::with_capacity(ids.len()),
        }
    }

    pub(crate) fn push(&mut self, position: usize, reason: Reason) {
        // A node has at most 1,024 devices.
        self.reasons
            .push((u16::try_from(position).unwrap_or(u16::MAX), reason));
    }

    pub(crate) fn count(&self, reason: Reason) -> usize {
        (self.reasons.iter())
            .filter(|(_, other)| *other == reason)
            .count()
    }

    pub(crate) fn replace(&mut self, reason: Reason, by: Reason) {
        for (_, other) in &mut self.reasons {
            if *other == reason {
                *other = by;
            }
        }
    }

    /// Why the device at this position does not fit.
    pub(crate) fn of(&self, position: usize) -> Option<Reason> {
        (self.reasons.iter())
            .find(|(at, _)| usize::from(*at) == position)
            .map(|(_, reason)| *reason)
    }

    /// The number of devices.
    pub fn len(&self) -> usize {
        self.reasons.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.reasons.is_empty()
    }

    /// Each device's identifier, and why it does not fit.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Reason)> {
        self.reasons.iter().map(|(position, reason)| {
            let id = self.ids.get(usize::from(*position));
            (id.map_or("", |id| &**id), *reason)
        })
    }
}

/// Why a pod does not fit on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Misfit {
    /// No such node reports devices.
    UnknownNode,
    /// The request accepts devices of several vendors, and the cluster has none of them.
    NoVendor,
    /// The node has fewer devices of the vendor than one container asks for.
    TooFewDevices {
        /// Position of the container in the request.
        container: usize,
        /// The vendor.
        vendor: Vendor,
        /// Devices that the node has.
        present: usize,
        /// Devices that the container asks for.
        asked: u32,
    },
    /// No set of the node's devices fits.
    Devices {
        /// Position of the container in the request.
        container: usize,
        /// The vendor.
        vendor: Vendor,
        /// Devices that the container asks for.
        asked: u32,
        /// Shares that the node could give to this container if all pods left it.
        if_all_left: u32,
        /// Each device's identifier, with the reason why it does not fit.
        reasons: Reasons,
    },
}

impl Misfit {
    /// Whether the pod could fit if other pods left the node. If not, evicting pods from it is useless.
    pub fn is_cured_by_leaving(&self) -> bool {
        match self {
            Self::UnknownNode | Self::NoVendor | Self::TooFewDevices { .. } => false,
            Self::Devices {
                asked, if_all_left, ..
            } => asked <= if_all_left,
        }
    }

    /// In the reference's words: `1/2 CardInsufficientMemory, 1/2 CardNotHealth`, in byte order.
    pub fn summary(&self) -> String {
        match self {
            Self::UnknownNode => "node unregistered".to_owned(),
            Self::NoVendor => "NodeInsufficientDevice".to_owned(),
            Self::TooFewDevices { .. } => "NodeInsufficientDevice".to_owned(),
            // The reference checks an arrangement as a whole, and gives no other reason.
            Self::Devices { reasons, .. } if reasons.count(Reason::Arrangement) > 0 => {
                "1/1 NumaNotFit".to_owned()
            }
            Self::Devices { reasons, .. } => {
                let mut counts: Vec<(&str, usize)> = Vec::new();
                for (_, reason) in reasons.iter() {
                    match counts.iter_mut().find(|(code, _)| *code == reason.code()) {
                        Some((_, count)) => *count += 1,
                        None => counts.push((reason.code(), 1)),
                    }
                }
                let mut texts: Vec<String> = counts
                    .into_iter()
                    .map(|(code, count)| format!("{count}/{} {code}", reasons.len()))
                    .collect();
                texts.sort_unstable();
                texts.join(", ")
            }
        }
    }
}

impl Misfit {
    /// The reference's codes, each with an explanation: `1/2 CardInsufficientMemory (too little memory is free), 1/2
    /// CardNotHealth (sick, or used in another mode)`.
    pub fn told(&self) -> String {
        let summary = self.summary();
        let parts = summary.split(", ").map(|part| {
            let code = part.rsplit(' ').next().unwrap_or_default();
            match meaning(code) {
                "" => part.to_owned(),
                meaning => format!("{part} ({meaning})"),
            }
        });
        parts.collect::<Vec<_>>().join(", ")
    }
}

/// The meaning of a code of [`Reason::code`], or of a code for a whole node; empty for another word.
pub fn meaning(code: &str) -> &'static str {
    match code {
        "CardNotHealth" => "sick, or used in another mode",
        "CardCordoned" => "an operator has closed them for new pods",
        "CardGivenOut" => "given out by a ResourceClaim of another driver",
        "CardTypeMismatch" => "another model or mode than the pod asks for",
        "CardNotFoundCustomFilterRule" => "left out by the pod's rules",
        "ModeNotFit" => "no profile matches the pod's request",
        "CardQosPolicyMismatch" => "used by pods of another class of service",
        "CardUuidMismatch" => "other devices than the pod names",
        "CardTimeSlicingExhausted" => "already shared by the most pods that they allow",
        "ExclusiveDeviceAllocateConflict" => "in use, and the pod asks for whole ones",
        "ResourceQuotaNotFit" => "the namespace's quota is used up",
        "CardInsufficientMemory" => "too little memory is free",
        "CardInsufficientCore" => "too little compute is free",
        "CardComputeUnitsExhausted" => "all compute is promised",
        "CardMigTopologyInfeasible" => "no large enough MIG profile has a free place",
        "NumaNotFit" => "too few of them are arranged as the pod asks",
        "AllocatedCardsInsufficientRequest" => "too few of them fit",
        "NodeInsufficientDevice" => "the node has fewer devices than the pod asks for",
        "unregistered" => "it reports no devices to share",
        _ => "",
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownNode => f.write_str("node has not registered any device"),
            Self::NoVendor => f.write_str("node has no device of a vendor that the pod takes"),
            Self::TooFewDevices {
                container,
                vendor,
                present,
                asked,
            } => write!(
                f,
                "node has {present} {vendor} devices, container {container} asks for {asked}"
            ),
            Self::Devices {
                container,
                vendor,
                asked,
                reasons,
                ..
            } => {
                write!(f, "container {container} asks for {asked} {vendor}: ")?;
                for (position, (device, reason)) in reasons.iter().enumerate() {
                    let separator = if position == 0 { "" } else { "; " };
                    write!(f, "{separator}{device}: {reason}")?;
                }
                Ok(())
            }
        }
    }
}

/// A node that does not fit, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeMisfit {
    /// Name of the node.
    pub node: Arc<str>,
    /// The reason.
    pub misfit: Misfit,
}
