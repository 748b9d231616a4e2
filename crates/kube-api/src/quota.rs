//! A `ResourceQuota` as limits on a namespace's use of devices.

use placement::{Quota, Vendor};

use crate::object::ResourceQuota;
use crate::vendor::Vendors;

/// Why a quota's line cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("hard.{key}: {problem}")]
pub struct QuotaError {
    /// The line.
    pub key: String,
    /// What was read, what is accepted.
    pub problem: String,
}

/// What the quota allows of each vendor, and the lines that cannot be read (they limit nothing).
pub fn limits(quota: &ResourceQuota, vendors: &Vendors) -> (Vec<(Vendor, Quota)>, Vec<QuotaError>) {
    let _ = (quota, vendors);
    unimplemented!()
}
