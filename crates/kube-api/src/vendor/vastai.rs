//! Vastai: devices are only counted; if dies are given, those of one accelerator go together.

use placement::{Arrange, Ask, Device, Memory};

use super::{Family, Keys, Role, Row, RowDefaults, general};
use crate::config::{ConfigError, DeviceConfig};
use crate::fields::{PodRules, RequestError};
use crate::object::{Container, Node, Pod};
use crate::register::{Problem, Registered};

/// A node's bonus if all dies are of one accelerator, where 10 is one resource of the node full.
const WORTH: u32 = 1;

pub(super) fn rows(config: &DeviceConfig) -> Result<Vec<Row>, ConfigError> {
    let Some(vastai) = &config.vastai else {
        return Ok(Vec::new());
    };
    Ok(vec![Row {
        word: "Vastai".to_owned(),
        resources: vec![(Role::Count, vastai.resource_count_name.clone())],
        memory_unit_mib: 1,
        defaults: RowDefaults::default(),
        keys: Keys {
            register: Some("hami.io/node-va-register".to_owned()),
            handshake: Some("hami.io/node-handshake-va".to_owned()),
            to_allocate: Some("hami.io/Vastai-devices-to-allocate".to_owned()),
            allocated: Some("hami.io/Vastai-devices-allocated".to_owned()),
            use_ids: vec!["vastaitech.com/use-gpuuuid".to_owned()],
            nouse_ids: vec!["vastaitech.com/nouse-gpuuuid".to_owned()],
            ..Keys::default()
        },
        family: Box::new(Dies),
    }])
}

#[derive(Debug)]
struct Dies;

impl Family for Dies {
    fn ask(
        &self,
        row: &Row,
        container: &Container,
        pod: &Pod,
        rules: &PodRules,
    ) -> Result<Option<Ask>, RequestError> {
        let mut ask = counted(row, container, pod, rules)?;
        if let Some(ask) = &mut ask {
            ask.arrange = Arrange::LargestGroups { worth: WORTH };
        }
        Ok(ask)
    }

    fn devices(&self, row: &Row, node: &Node) -> Result<Vec<Device>, Problem> {
        let registered = general::registered(row, node)?;
        let mut accelerators: Vec<&str> = Vec::new();
        let mut devices = Vec::with_capacity(registered.len());
        for registered in &registered {
            let mut device = registered.device(&row.word);
            device.cores = CORES;
            if let Some(accelerator) = accelerator(registered) {
                let known = accelerators.iter().position(|known| *known == accelerator);
                let at = known.unwrap_or_else(|| {
                    accelerators.push(accelerator);
                    accelerators.len() - 1
                });
                device.group = u32::try_from(at).ok();
            }
            devices.push(device);
        }
        Ok(devices)
    }
}

/// Compute of a device that counts none, so that its score has a whole to relate to.
pub(super) const CORES: u32 = 100;

/// `count` devices, of which nothing else is counted.
pub(super) fn counted(
    row: &Row,
    container: &Container,
    pod: &Pod,
    rules: &PodRules,
) -> Result<Option<Ask>, RequestError> {
    let mut ask = general::ask(row, container, pod, rules)?;
    if let Some(ask) = &mut ask {
        ask.memory = Memory::Bytes(0);
    }
    Ok(ask)
}

/// The accelerator of a die; `None` if whole devices are given.
fn accelerator(registered: &Registered) -> Option<&str> {
    let info = registered.custom_info.as_ref()?;
    if info.get("DeviceStrategy")?.as_str()? != "die" {
        return None;
    }
    info.get("AIC")?.as_str()
}
