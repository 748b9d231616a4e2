//! Every annotation, label, resource name and wire form of Kubernetes that the product reads or writes has its home
//! here, and nowhere else. Never decides: which devices a pod gets is `placement`'s, what a pod may not do is
//! `admission`'s.
//!
//! The way in: [`config::DeviceConfig`] says which resources there are, [`vendor::Vendors`] is the table made of it.
//! With it a node becomes an inventory ([`node::report`]), a pod a question ([`request::request`]) or what it holds
//! ([`allocation::read`]), a quota its limits ([`quota::limits`]). The way out: [`allocation::write`].

#![forbid(unsafe_code)]

pub mod allocation;
pub mod assigner;
pub mod config;
pub mod extender;
pub mod hcs;
pub mod keys;
pub mod lock;
pub mod node;
pub mod object;
pub mod quantity;
pub mod quota;
pub mod request;
pub mod results;
pub mod vendor;
