//! All annotations, labels, resource names and wire formats of Kubernetes that vgpu reads or writes; no other crate
//! contains one. The crate decides nothing: `placement` decides which devices a pod gets, `admission` what a pod may
//! not do.
//!
//! Reading: [`config::DeviceConfig`] names the resources, and [`vendor::Vendors`] is the table made from it. With it a
//! node is read as an inventory ([`node::report`]), a pod as a request ([`request::request`]) or as an allocation
//! ([`allocation::read`]), a quota as limits ([`quota::limits`]). Writing: [`allocation::write`].

#![forbid(unsafe_code)]

pub mod allocation;
pub mod assigner;
pub mod config;
pub mod extender;
mod fields;
pub mod hcs;
pub mod hcs_quota;
pub mod hcs_request;
pub mod keys;
pub mod lock;
pub mod node;
pub mod object;
pub mod quantity;
pub mod quota;
pub mod quota_scopes;
mod register;
pub mod request;
pub mod resource_claims;
pub mod results;
pub mod shares;
mod slots;
pub mod vendor;
pub mod version;
pub mod workload;
