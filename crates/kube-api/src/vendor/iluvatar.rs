//! Iluvatar: one row for each chip of the configuration.

use super::{Edits, Family, Keys, Rejection, Role, Row, RowDefaults, general};
use crate::config::{ConfigError, DeviceConfig};
use crate::fields;
use crate::object::{Container, Pod};

/// MiB in one unit of the memory resource.
const UNIT_MIB: u64 = 256;
/// Compute of a device, in percent.
const DEVICE_CORES: u32 = 100;
/// Name of the container, for the vendor's library, which reads it under this (misspelled) name.
const CONTAINER_NAME: &str = "SOL_CONTINER_NAME";

pub(super) fn rows(config: &DeviceConfig) -> Result<Vec<Row>, ConfigError> {
    Ok(config
        .iluvatars
        .iter()
        .map(|chip| {
            let word = &chip.common_word;
            Row {
                word: word.clone(),
                resources: vec![
                    (Role::Count, chip.resource_count_name.clone()),
                    (Role::Memory, chip.resource_memory_name.clone()),
                    (Role::Cores, chip.resource_core_name.clone()),
                ],
                memory_unit_mib: UNIT_MIB,
                defaults: RowDefaults {
                    memory_mib: 0,
                    cores: 0,
                    most_cores: DEVICE_CORES,
                },
                keys: Keys {
                    register: Some(format!("hami.io/node-{word}-register")),
                    handshake: Some(format!("hami.io/node-handshake-{word}")),
                    to_allocate: Some(format!("hami.io/{word}-devices-to-allocate")),
                    allocated: Some(format!("hami.io/{word}-devices-allocated")),
                    use_ids: vec![format!("hami.io/use-{word}-uuid")],
                    nouse_ids: vec![format!("hami.io/no-use-{word}-uuid")],
                    ..Keys::default()
                },
                family: Box::new(IluvatarFamily),
            }
        })
        .collect())
}

#[derive(Debug)]
struct IluvatarFamily;

impl Family for IluvatarFamily {
    fn admit(&self, row: &Row, container: &Container, _pod: &Pod) -> Result<Edits, Rejection> {
        let mut edits = general::admit(row, container)?;
        let Some(count) = fields::whole(container, row.resource(Role::Count))? else {
            return Ok(edits);
        };
        // The plugin treats several devices as whole ones.
        if count > 1
            && let Some(cores) = row.resource(Role::Cores)
        {
            let all = count.saturating_mul(i64::from(DEVICE_CORES));
            edits.limits.insert(cores.to_owned(), all.to_string());
        }
        if !container.name.is_empty() {
            edits
                .env
                .push((CONTAINER_NAME.to_owned(), container.name.clone()));
        }
        Ok(edits)
    }
}
