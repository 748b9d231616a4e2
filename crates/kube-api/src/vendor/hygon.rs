//! Hygon: entirely described by its row.

use super::{Keys, Plain, Role, Row, RowDefaults};
use crate::config::{ConfigError, DeviceConfig};

pub(super) fn rows(config: &DeviceConfig) -> Result<Vec<Row>, ConfigError> {
    let Some(hygon) = &config.hygon else {
        return Ok(Vec::new());
    };
    Ok(vec![Row {
        word: "DCU".to_owned(),
        resources: vec![
            (Role::Count, hygon.resource_count_name.clone()),
            (Role::Memory, hygon.resource_memory_name.clone()),
            (Role::Cores, hygon.resource_core_name.clone()),
        ],
        memory_unit_mib: u64::from(hygon.memory_factor.max(1)),
        defaults: RowDefaults {
            memory_mib: 0,
            cores: 100,
            most_cores: 100,
        },
        keys: Keys {
            register: Some("hami.io/node-dcu-register".to_owned()),
            handshake: Some("hami.io/node-handshake-dcu".to_owned()),
            to_allocate: Some("hami.io/dcu-devices-to-allocate".to_owned()),
            allocated: Some("hami.io/dcu-devices-allocated".to_owned()),
            use_ids: vec!["hygon.com/use-gpuuuid".to_owned()],
            nouse_ids: vec!["hygon.com/nouse-gpuuuid".to_owned()],
            use_types: vec!["hygon.com/use-dcutype".to_owned()],
            nouse_types: vec!["hygon.com/nouse-dcutype".to_owned()],
            ..Keys::default()
        },
        family: Box::new(Plain),
    }])
}
