//! What the parts of the agent tell each other about the node's cards. Values: nothing here asks a driver or the
//! API server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::watch;

/// One card as the agent knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// As it is registered: what is promised of it, after `deviceSplitCount` and the scalings. Its `healthy` says what
    /// the driver says of it; [`Sick`] comes on top.
    pub device: placement::Device,
    /// Its memory as the driver has it, in bytes.
    pub physical_bytes: u64,
    /// PCI address, as `00000000:65:00.0`.
    pub pci_bus_id: String,
    /// The number in `/dev/nvidiaN`.
    pub minor: u32,
}

/// The cards of the node at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    /// By index.
    pub cards: Vec<Card>,
    /// How well pairs of them reach each other, both ways.
    pub pairs: Vec<placement::PairScore>,
    /// What could not be read, for events and the log.
    pub problems: Vec<String>,
}

/// Why a card is not to be used now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sick {
    /// What is wrong, for a person: the XID with its meaning, "lost", "does not answer since …".
    pub reason: String,
    /// Since when.
    pub since: SystemTime,
    /// Whether a probe may find it well again by itself.
    pub recovers: bool,
}

/// Sick cards by UUID.
pub type Health = BTreeMap<String, Sick>;

/// The inventory, as it changes. `None` until it was read for the first time.
pub type Inventories = watch::Receiver<Option<Arc<Inventory>>>;

/// Which cards are sick, as it changes.
pub type Healths = watch::Receiver<Arc<Health>>;
