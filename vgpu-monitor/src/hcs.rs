//! The node's ComputeNode and ComputeTopology (`hcs.io/v1alpha1`), kept as the node is: what the driver and the health
//! check say of the cards, what pods of the node hold of them, whether the node is cordoned. Never decides which card a
//! pod gets, and never writes an object of another node.
//!
//! [`compose`] makes the values, `kube_api::hcs::observed` words them, [`mod@keep`] writes them.

pub mod compose;

pub mod keep;

mod object;

mod series;

pub use keep::{Settings, Sources, keep};
pub use series::Series;
