//! Cambricon: devices derived from the node's capacity, and the profile by which the plugin divides them.

use std::collections::BTreeMap;

use placement::Device;

use super::{Family, Keys, Role, Row, RowDefaults, Writing, capacity, general};
use crate::config::{ConfigError, DeviceConfig};
use crate::object::Node;
use crate::quantity::MIB;
use crate::register::Problem;

/// MiB in one unit of the memory resource.
const UNIT_MIB: u64 = 256;
/// Compute of a device, in percent.
const DEVICE_CORES: u64 = 100;
/// The number of containers that share a device.
const SLOTS: u32 = 100;
/// On the pod, for the plugin: `<device>_<cores>_<units of memory>` of the first share.
const PROFILE: &str = "CAMBRICON_DSMLU_PROFILE";
/// On the pod: whether the plugin has given it to the container.
const ASSIGNED: &str = "CAMBRICON_DSMLU_ASSIGNED";

pub(super) fn rows(config: &DeviceConfig) -> Result<Vec<Row>, ConfigError> {
    let Some(cambricon) = &config.cambricon else {
        return Ok(Vec::new());
    };
    Ok(vec![Row {
        word: "MLU".to_owned(),
        resources: vec![
            (Role::Count, cambricon.resource_count_name.clone()),
            (Role::Memory, cambricon.resource_memory_name.clone()),
            (Role::Cores, cambricon.resource_core_name.clone()),
        ],
        memory_unit_mib: UNIT_MIB,
        defaults: RowDefaults {
            memory_mib: 0,
            cores: 100,
            most_cores: 100,
        },
        keys: Keys {
            to_allocate: Some("hami.io/cambricon-mlu-devices-to-allocate".to_owned()),
            allocated: Some("hami.io/cambricon-mlu-devices-allocated".to_owned()),
            also_written: vec![PROFILE.to_owned(), ASSIGNED.to_owned()],
            use_ids: vec!["cambricon.com/use-gpuuuid".to_owned()],
            nouse_ids: vec!["cambricon.com/nouse-gpuuuid".to_owned()],
            ..Keys::default()
        },
        family: Box::new(CambriconFamily),
    }])
}

#[derive(Debug)]
struct CambriconFamily;

impl Family for CambriconFamily {
    /// The node counts percents of devices, and memory over all of them.
    fn devices(&self, row: &Row, node: &Node) -> Result<Vec<Device>, Problem> {
        let cores = capacity::of(node, row.resource(Role::Cores));
        let memory = capacity::of(node, row.resource(Role::Memory));
        let each_mib = u128::from(memory) * u128::from(UNIT_MIB * DEVICE_CORES);
        let each_mib = each_mib.checked_div(u128::from(cores)).unwrap_or(0);
        let each_mib = u64::try_from(each_mib).unwrap_or(u64::MAX);
        let count = cores.div_ceil(DEVICE_CORES);
        let mut devices = capacity::devices(row, node, "cambricon-mlu", count, each_mib);
        for device in &mut devices {
            device.slots = SLOTS;
        }
        Ok(devices)
    }

    fn annotate(&self, row: &Row, writing: &Writing<'_>, into: &mut BTreeMap<String, String>) {
        general::annotate(row, writing, into);
        if let Some(first) = capacity::grants(row, writing).flatten().next() {
            let index = capacity::index(first, writing.node);
            let units = first.memory_bytes / MIB / UNIT_MIB;
            into.insert(
                PROFILE.to_owned(),
                format!("{index}_{}_{units}", first.cores),
            );
            into.insert(ASSIGNED.to_owned(), "false".to_owned());
        }
    }
}
