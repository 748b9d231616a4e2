//! Rows of this family.

use super::Row;
use crate::config::{ConfigError, DeviceConfig};

pub(super) fn rows(config: &DeviceConfig) -> Result<Vec<Row>, ConfigError> {
    let _ = config;
    Ok(Vec::new())
}
