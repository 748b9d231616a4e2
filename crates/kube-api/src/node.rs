//! A node's annotations as the inventory, and back.

use crate::object::Node;
use crate::vendor::Vendors;

/// What a node reports, and what of it cannot be read.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Its devices, of all vendors that could be read; none when it reports none.
    pub node: placement::Node,
    /// What is broken: that vendor has no devices on the node until it is written anew.
    pub problems: Vec<Problem>,
}

/// Something on a node that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("annotation {key}: {problem}")]
pub struct Problem {
    /// The annotation.
    pub key: String,
    /// What was read, what is accepted.
    pub problem: String,
}

/// What the node reports.
pub fn report(node: &Node, vendors: &Vendors) -> Report {
    let _ = (node, vendors);
    unimplemented!()
}

/// Whether what [`report`] reads of both is the same, so that a node's heartbeat costs nothing.
pub fn same_report(one: &Node, other: &Node, vendors: &Vendors) -> bool {
    let _ = (one, other, vendors);
    unimplemented!()
}
