//! Which devices of which node a pod gets. Values in, values out: no clock, no cluster, no I/O, so
//! the scheduler, the webhook, the simulator and the tests all ask the same question and get the
//! same answer.
//!
//! A [`Cluster`] holds what there is ([`Node`], [`Device`]), what is taken ([`Reservation`]) and what
//! a namespace may take ([`Quota`]). A [`Request`] says what a pod asks for. [`Cluster::place`]
//! answers with one [`Placement`] or with a [`Misfit`] for each node; [`Cluster::reserve`] and
//! [`Cluster::release`] are each other's inverse; [`Cluster::explain`] names the smallest change that
//! would make a pod fit.
//!
//! # Units
//!
//! Memory is in bytes. Cores are in the device's own unit: percent of a card for NVIDIA, what the
//! vendor counts for others. A slot is the right of one container to share a card.
//!
//! # Ties
//!
//! Nothing is left to chance or to the order in which things were told. Of nodes with equal scores the
//! one whose name is first in byte order is taken. Of devices with equal scores the one on the higher
//! NUMA node, then with the higher index, then with the greater identifier.

#![forbid(unsafe_code)]

mod anywhere;
mod arrange;
mod card;
mod cluster;
pub mod exchange;
mod explain;
mod fit;
mod inventory;
mod misfit;
mod node;
mod quota;
mod remember;
mod request;
mod reservation;
mod score;
mod topology;

pub use cluster::{Among, Cluster, DeviceView, NodeView, Outcome};
pub use explain::{Advice, Change, Explanation, Rule};
pub use inventory::{Appraisal, Device, InvalidNode, MigProfile, Node, PairScore, Span, Vendor};
pub use misfit::{Misfit, NodeMisfit, Reason, Reasons, meaning};
pub use quota::Quota;
pub use remember::Remembered;
pub use request::{
    AnyVendor, Arrange, Ask, Company, Compute, Container, Demand, DevicePolicy, Family, Key, Kind,
    Memory, NodePolicy, Pod, Request, Selection, Weights, Wish,
};
pub use reservation::{Grant, Granted, Instance, Load, Placement, Reservation};

#[cfg(test)]
mod tests;
