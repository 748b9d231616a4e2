//! Decides which devices of which node a pod gets. The crate takes values and returns values, without a clock, a
//! cluster or I/O, so the scheduler, the webhook, the simulator and the tests get the same answer to the same question.
//!
//! A [`Cluster`] holds nodes and devices ([`Node`], [`Device`]), the parts of them that pods hold ([`Reservation`]) and
//! the limits of namespaces ([`Quota`]). A [`Request`] is what a pod asks for. [`Cluster::place`] returns one
//! [`Placement`], or a [`Misfit`] for each node. [`Cluster::release`] undoes [`Cluster::reserve`]. [`Cluster::explain`]
//! names the smallest change that would make a pod fit.
//!
//! # Units
//!
//! Memory is in bytes. Compute is in the device's own unit: percent of a device for NVIDIA, the vendor's unit for
//! others. A slot is the right of one container to share a device.
//!
//! # Ties
//!
//! The choice is deterministic and does not depend on the order of events. Of nodes with equal scores, the first name in
//! byte order is chosen. Of devices with equal scores, the one on the higher NUMA node, then with the higher index, then
//! with the greater identifier.

#![forbid(unsafe_code)]

mod advice;
mod anywhere;
mod arrange;
mod cluster;
mod device;
pub mod exchange;
mod explain;
mod fit;
mod inventory;
mod misfit;
mod node;
mod plan;
mod quota;
mod remember;
mod request;
mod reservation;
mod score;
mod topology;

pub use advice::{Advice, Change, Rule};
pub use cluster::{Among, Cluster, DeviceView, NodeView, Outcome};
pub use explain::Explanation;
pub use inventory::{Appraisal, Device, InvalidNode, MigProfile, Node, PairScore, Span, Vendor};
pub use misfit::{Misfit, NodeMisfit, Reason, Reasons, meaning};
pub use quota::{Quota, QuotaScope, counts};
pub use remember::Remembered;
pub use request::{
    AnyVendor, Arrange, Ask, Company, Compute, Container, Demand, DevicePolicy, Family, Key, Kind,
    Memory, NodePolicy, Pod, PodTraits, Request, Selection, Weights, Wish,
};
pub use reservation::{Grant, Granted, Instance, Load, Placement, Reservation};

#[cfg(test)]
mod tests;
