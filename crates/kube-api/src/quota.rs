//! A `ResourceQuota` as limits on a namespace's use of devices. Does not know the present use, nor which pods count.
//!
//! As in the reference, `limits.<memory resource>` and `limits.<core resource>` count, and `requests.<resource>` does
//! not, because Kubernetes itself enforces that one.

use placement::{Quota, Vendor};

use crate::object::ResourceQuota;
use crate::quantity::MIB;
use crate::quantity::{Amount, Form, Quantity, QuantityError};
use crate::vendor::{Role, Row, Vendors};

/// Why a quota's line cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("hard.{key}: {problem}")]
pub struct QuotaError {
    /// The line.
    pub key: String,
    /// The value that was read and the values that are accepted.
    pub problem: LimitError,
}

/// Why an amount is no limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// It cannot be read.
    #[error(transparent)]
    Quantity(#[from] QuantityError),
    /// It is negative, or has a part behind the point.
    #[error("{0} is no whole number of 0 or more")]
    NotWhole(Quantity),
}

/// The quota's limits for each vendor, and the lines that cannot be read (they limit nothing).
pub fn limits(quota: &ResourceQuota, vendors: &Vendors) -> (Vec<(Vendor, Quota)>, Vec<QuotaError>) {
    let mut limits: Vec<(Vendor, Quota)> = Vec::new();
    let mut errors = Vec::new();
    for (key, quantity) in &quota.spec.hard {
        let Some(resource) = key.strip_prefix("limits.") else {
            continue;
        };
        let Some((row, role)) = vendors.of_resource(resource) else {
            continue;
        };
        let limit = match limit(row, role, quantity) {
            Ok(Some(limit)) => limit,
            Ok(None) => continue,
            Err(problem) => {
                errors.push(QuotaError {
                    key: key.clone(),
                    problem,
                });
                continue;
            }
        };
        let vendor = Vendor::new(&row.word);
        match limits.iter_mut().find(|(of, _)| *of == vendor) {
            Some((_, quota)) => {
                quota.memory_bytes = limit.memory_bytes.or(quota.memory_bytes);
                quota.cores = limit.cores.or(quota.cores);
                quota.devices = limit.devices.or(quota.devices);
            }
            None => limits.push((vendor, limit)),
        }
    }
    (limits, errors)
}

fn limit(row: &Row, role: Role, quantity: &Quantity) -> Result<Option<Quota>, LimitError> {
    let amount = quantity.parse()?;
    let whole = |amount: Amount| {
        amount
            .whole()
            .filter(|whole| *whole >= 0)
            .ok_or_else(|| LimitError::NotWhole(quantity.clone()))
    };
    Ok(Some(match role {
        Role::Memory => {
            let unit = i128::from(row.memory_unit_mib) * i128::from(MIB);
            let bytes = match amount.form {
                Form::Binary => whole(amount)?,
                Form::Decimal => whole(amount)?.saturating_mul(unit),
            };
            Quota {
                memory_bytes: Some(u64::try_from(bytes).unwrap_or(u64::MAX)),
                ..Quota::default()
            }
        }
        Role::Cores => Quota {
            cores: Some(u32::try_from(whole(amount)?).unwrap_or(u32::MAX)),
            ..Quota::default()
        },
        Role::Count => Quota {
            devices: Some(u32::try_from(whole(amount)?).unwrap_or(u32::MAX)),
            ..Quota::default()
        },
        Role::MemoryPercent | Role::Priority => return Ok(None),
    }))
}
