//! Keeps the node's ComputeNode and ComputeTopology (`hcs.io/v1alpha1`) up to date: the GPUs as the driver
//! and the health check report them, the amounts that the node's pods hold, and whether the node is cordoned.
//! Never decides which GPU a pod gets, and never writes an object of another node.
//!
//! [`compose`] makes the values, `kube_api::hcs::observed` words them, [`mod@keep`] writes them.

pub mod compose;

pub mod keep;

mod object;

mod series;

pub use keep::{HcsSettings, ReportSources, keep};
pub use series::WriteSeries;
