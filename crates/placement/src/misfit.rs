//! Why a pod does not fit, with the numbers. Never what to do about it: that is `explain`'s.

use std::fmt;
use std::sync::Arc;

use crate::inventory::Vendor;

/// Why one card cannot serve a container. Memory is in bytes, compute in the card's unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Reason {
    /// The card is reported sick.
    #[error("not healthy")]
    Unhealthy,
    /// What runs on the card contradicts its mode: whole shares on a card in MIG mode, or an instance
    /// on a card that is not.
    #[error("what runs on it does not match its mode")]
    ModeConflict,
    /// The operator has closed the card for new pods.
    #[error("cordoned")]
    Cordoned,
    /// The type rules of the request exclude its model.
    #[error("model excluded by the type rules")]
    Type,
    /// The request wants another mode.
    #[error("other sharing mode than asked for")]
    Mode,
    /// The card lacks a tag that the request requires.
    #[error("lacks a required label")]
    Tag,
    /// The identifier rules of the request exclude it.
    #[error("excluded by the UUID rules")]
    Id,
    /// All its slots are taken.
    #[error("all {slots} slots are taken")]
    Slots {
        /// How many it has.
        slots: u32,
    },
    /// The request wants an unused card.
    #[error("in use by {containers}, asked for unused")]
    InUse {
        /// How many slots are taken.
        containers: u32,
    },
    /// The namespace's quota leaves too little memory.
    #[error("quota leaves {left} bytes of memory, asked {asked}")]
    QuotaMemory {
        /// Asked of this card.
        asked: u64,
        /// Left of the quota.
        left: u64,
    },
    /// The namespace's quota leaves too little compute.
    #[error("quota leaves {left} cores, asked {asked}")]
    QuotaCores {
        /// Asked of this card.
        asked: u32,
        /// Left of the quota.
        left: u32,
    },
    /// The namespace's quota leaves no share of a card.
    #[error("quota leaves {left} devices, asked {asked}")]
    QuotaDevices {
        /// Asked of this card.
        asked: u32,
        /// Left of the quota.
        left: u32,
    },
    /// Too little memory is left.
    #[error("{free} of {total} bytes of memory free, asked {asked}")]
    Memory {
        /// Asked of this card.
        asked: u64,
        /// Left on it.
        free: u64,
        /// What it has.
        total: u64,
    },
    /// Too little compute is left.
    #[error("{free} of {total} cores free, asked {asked}")]
    Cores {
        /// Asked of this card.
        asked: u32,
        /// Left on it.
        free: u32,
        /// What it has.
        total: u32,
    },
    /// A request in GFLOPS, and the card's speed is not known.
    #[error("speed unknown, asked in FLOPS")]
    UnknownSpeed,
    /// The request wants a whole card, and the card is in use.
    #[error("whole card asked for, in use by {containers}")]
    Exclusive {
        /// How many slots are taken.
        containers: u32,
    },
    /// Its compute is promised to the last unit, so a share without a promise gets nothing.
    #[error("all compute is promised")]
    CoresExhausted,
    /// No profile that is large enough has a free placement.
    #[error("no MIG profile with {asked} bytes has a free placement")]
    NoInstance {
        /// Memory asked for.
        asked: u64,
    },
    /// None of the profiles that it can be cut into is what is asked for.
    #[error("none of its profiles is what is asked for")]
    NoProfile,
    /// Containers run there that this one may not share a card with: of another class, or with shares of another size.
    #[error("in use by containers that it cannot be shared with")]
    Company,
    /// An earlier container of the pod got another card, and the pod may have only that one.
    #[error("not the card of the pod's earlier container")]
    Apart,
    /// It would do, but not together with others that lie to it as they must.
    #[error("suitable, but not together with others in the arrangement that is asked for")]
    Arrangement,
    /// It would do, but the others that are needed beside it are on another NUMA node.
    #[error("too few suitable cards on its NUMA node")]
    Numa,
    /// It would do, but there are too few like it on the node.
    #[error("suitable, but too few of them")]
    TooFew,
}

impl Reason {
    /// The word for it that users of the reference know.
    pub fn code(self) -> &'static str {
        match self {
            Self::Unhealthy | Self::ModeConflict => "CardNotHealth",
            Self::Cordoned => "CardCordoned",
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

    /// Whether the card could serve the container if all pods left it.
    pub fn is_cured_by_leaving(self) -> bool {
        match self {
            Self::Unhealthy
            | Self::Cordoned
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

/// The devices of one node and why each does not serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reasons {
    /// Identifiers of all the node's devices, shared with the inventory.
    ids: Arc<[Arc<str>]>,
    /// Position in `ids`, and why.
    reasons: Vec<(u16, Reason)>,
}

impl Reasons {
    pub(crate) fn new(ids: &Arc<[Arc<str>]>) -> Self {
        Self {
            ids: Arc::clone(ids),
            reasons: Vec::with_capacity(ids.len()),
        }
    }

    pub(crate) fn push(&mut self, card: usize, reason: Reason) {
        // A node has at most 1,024 devices.
        self.reasons
            .push((u16::try_from(card).unwrap_or(u16::MAX), reason));
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

    /// Why the card at this position does not serve.
    pub(crate) fn of(&self, card: usize) -> Option<Reason> {
        (self.reasons.iter())
            .find(|(at, _)| usize::from(*at) == card)
            .map(|(_, reason)| *reason)
    }

    /// How many devices there are.
    pub fn len(&self) -> usize {
        self.reasons.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.reasons.is_empty()
    }

    /// Each device's identifier, and why it does not serve.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Reason)> {
        self.reasons.iter().map(|(card, reason)| {
            let id = self.ids.get(usize::from(*card));
            (id.map_or("", |id| &**id), *reason)
        })
    }
}

/// Why a pod does not fit on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Misfit {
    /// No such node reports devices.
    UnknownNode,
    /// The request takes devices of several vendors, and none of them is in the cluster.
    NoVendor,
    /// The node has fewer devices of the vendor than one container asks for.
    TooFewDevices {
        /// Position of the container in the request.
        container: usize,
        /// Of which vendor.
        vendor: Vendor,
        /// Devices that the node has.
        present: usize,
        /// Devices that the container asks for.
        asked: u32,
    },
    /// Each device of the vendor and why not.
    Devices {
        /// Position of the container in the request.
        container: usize,
        /// Of which vendor.
        vendor: Vendor,
        /// Devices that the container asks for.
        asked: u32,
        /// Shares that the node could give to this container if all pods left it.
        if_all_left: u32,
        /// Each device's identifier and reason.
        reasons: Reasons,
    },
}

impl Misfit {
    /// Whether the pod could fit if other pods left the node. Where it could not, evicting pods from
    /// there is in vain.
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
            // The reference asks for an arrangement as a whole, and names nothing else.
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
    /// The reference's words with a plain one beside each code:
    /// `1/2 CardInsufficientMemory (too little memory is free), 1/2 CardNotHealth (sick, or used in another mode)`.
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

/// What a code of [`Reason::code`], or of a whole node, says; empty for another word.
pub fn meaning(code: &str) -> &'static str {
    match code {
        "CardNotHealth" => "sick, or used in another mode",
        "CardCordoned" => "an operator has closed them for new pods",
        "CardTypeMismatch" => "another model or mode than the pod asks for",
        "CardNotFoundCustomFilterRule" => "left out by the pod's rules",
        "ModeNotFit" => "no profile is what the pod asks for",
        "CardQosPolicyMismatch" => "used by pods of another class of service",
        "CardUuidMismatch" => "other cards than the pod names",
        "CardTimeSlicingExhausted" => "as many pods share them as may",
        "ExclusiveDeviceAllocateConflict" => "in use, and the pod asks for whole ones",
        "ResourceQuotaNotFit" => "the namespace's quota is used up",
        "CardInsufficientMemory" => "too little memory is free",
        "CardInsufficientCore" => "too little compute is free",
        "CardComputeUnitsExhausted" => "all compute is promised",
        "CardMigTopologyInfeasible" => "no large enough MIG profile has a free place",
        "NumaNotFit" => "too few that lie together as the pod asks",
        "AllocatedCardsInsufficientRequest" => "too few of them do",
        "NodeInsufficientDevice" => "the node has fewer cards than the pod asks for",
        "unregistered" => "it reports no cards to share",
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
    /// Why.
    pub misfit: Misfit,
}
