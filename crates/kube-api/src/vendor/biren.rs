//! Biren: devices are only counted.

use placement::{Ask, Device};

use super::{Family, Keys, Role, Row, RowDefaults, general, vastai};
use crate::config::{ConfigError, DeviceConfig};
use crate::fields::{PodRules, RequestError};
use crate::object::{Container, Node, Pod};
use crate::register::Problem;

pub(super) fn rows(config: &DeviceConfig) -> Result<Vec<Row>, ConfigError> {
    let Some(biren) = &config.biren else {
        return Ok(Vec::new());
    };
    Ok(vec![Row {
        word: "Biren".to_owned(),
        resources: vec![(Role::Count, biren.resource_count_name.clone())],
        memory_unit_mib: 1,
        defaults: RowDefaults::default(),
        keys: Keys {
            register: Some("hami.io/node-biren-register".to_owned()),
            handshake: Some("hami.io/node-handshake-biren".to_owned()),
            to_allocate: Some("hami.io/Biren-devices-to-allocate".to_owned()),
            allocated: Some("hami.io/Biren-devices-allocated".to_owned()),
            use_ids: vec!["birentech.com/use-gpuuuid".to_owned()],
            nouse_ids: vec!["birentech.com/nouse-gpuuuid".to_owned()],
            ..Keys::default()
        },
        family: Box::new(BirenFamily),
    }])
}

#[derive(Debug)]
struct BirenFamily;

impl Family for BirenFamily {
    fn ask(
        &self,
        row: &Row,
        container: &Container,
        pod: &Pod,
        rules: &PodRules,
    ) -> Result<Option<Ask>, RequestError> {
        vastai::counted(row, container, pod, rules)
    }

    fn devices(&self, row: &Row, node: &Node) -> Result<Vec<Device>, Problem> {
        let mut devices = general::devices(row, node)?;
        for device in &mut devices {
            device.cores = vastai::CORES;
        }
        Ok(devices)
    }
}
