//! Moore Threads: sixteenths of devices derived from the node's capacity; the amounts are those of all devices
//! together.

use std::collections::BTreeMap;

use placement::{Ask, Compute, Device, Memory};

use super::{Edits, Family, Keys, Rejection, Role, Row, RowDefaults, Writing, capacity, general};
use crate::config::{ConfigError, DeviceConfig};
use crate::fields::{self, PodRules, RequestError};
use crate::object::{Container, Node, Pod};
use crate::quantity::Form;
use crate::quantity::MIB;
use crate::register::Problem;

/// MiB in one unit of the memory resource.
const UNIT_MIB: u64 = 512;
/// Units of memory of one device.
const DEVICE_MEMORY: i64 = 96;
/// Compute of a device, in sixteenths.
const DEVICE_CORES: u32 = 16;
/// The number of containers that share a device.
const SLOTS: u32 = 100;
/// The possible units of memory of a share of one device.
const SHARES: [u64; 7] = [2, 4, 8, 16, 32, 64, 96];

/// On the pod, for the plugin: positions of the devices.
const INDEX: &str = "mthreads.com/gpu-index";
/// On the pod, for the plugin: the node.
const NODE: &str = "mthreads.com/predicate-node";
/// On the pod, for the plugin: when they were chosen, in nanoseconds.
const TIME: &str = "mthreads.com/predicate-time";
/// On the pod: the number of devices that a container with several asks for.
const REQUESTED: &str = "mthreads.com/request-gpu-num";

pub(super) fn rows(config: &DeviceConfig) -> Result<Vec<Row>, ConfigError> {
    let Some(mthreads) = &config.mthreads else {
        return Ok(Vec::new());
    };
    Ok(vec![Row {
        word: "Mthreads".to_owned(),
        resources: vec![
            (Role::Count, mthreads.resource_count_name.clone()),
            (Role::Memory, mthreads.resource_memory_name.clone()),
            (Role::Cores, mthreads.resource_core_name.clone()),
        ],
        memory_unit_mib: UNIT_MIB,
        defaults: RowDefaults::default(),
        keys: Keys {
            allocated: Some("hami.io/mthreads-vgpu-devices-allocated".to_owned()),
            also_written: [INDEX, NODE, TIME].map(str::to_owned).to_vec(),
            use_ids: vec!["mthreads.ai/use-gpuuuid".to_owned()],
            nouse_ids: vec!["mthreads.ai/nouse-gpuuuid".to_owned()],
            ..Keys::default()
        },
        family: Box::new(MthreadsFamily),
    }])
}

#[derive(Debug)]
struct MthreadsFamily;

impl Family for MthreadsFamily {
    fn ask(
        &self,
        row: &Row,
        container: &Container,
        pod: &Pod,
        rules: &PodRules,
    ) -> Result<Option<Ask>, RequestError> {
        let Some(mut ask) = general::ask(row, container, pod, rules)? else {
            return Ok(None);
        };
        let count = ask.count.max(1);
        if let Memory::Bytes(bytes) = ask.memory {
            ask.memory = Memory::Bytes(bytes / MIB / u64::from(count) * MIB);
        }
        if let Compute::Units(units) = ask.compute {
            ask.compute = Compute::Units(units / count);
        }
        if count == 1 {
            ask.sizes = SHARES.map(|units| units * UNIT_MIB * MIB).to_vec();
        }
        // The plugin learns the devices of the pod, not those of each container.
        ask.together = true;
        Ok(Some(ask))
    }

    /// The node counts sixteenths of devices, and memory over all of them.
    fn devices(&self, row: &Row, node: &Node) -> Result<Vec<Device>, Problem> {
        let cores = capacity::of(node, row.resource(Role::Cores));
        let memory = capacity::of(node, row.resource(Role::Memory));
        let each_mib = u128::from(memory) * u128::from(UNIT_MIB * u64::from(DEVICE_CORES));
        let each_mib = each_mib.checked_div(u128::from(cores)).unwrap_or(0);
        let each_mib = u64::try_from(each_mib).unwrap_or(u64::MAX);
        let count = cores.div_ceil(u64::from(DEVICE_CORES));
        let mut devices = capacity::devices(row, node, "mthreads", count, each_mib);
        for device in &mut devices {
            device.slots = SLOTS;
            device.cores = DEVICE_CORES;
        }
        Ok(devices)
    }

    fn annotate(&self, row: &Row, writing: &Writing<'_>, into: &mut BTreeMap<String, String>) {
        general::annotate(row, writing, into);
        let mut indices: Vec<u32> = Vec::new();
        for grant in capacity::grants(row, writing).flatten() {
            let index = capacity::index(grant, writing.node);
            if !indices.contains(&index) {
                indices.push(index);
            }
        }
        into.insert(INDEX.to_owned(), capacity::joined(indices.into_iter()));
        into.insert(NODE.to_owned(), writing.placement.node.as_ref().to_owned());
        capacity::stamp(writing, TIME, into);
    }

    fn admit(&self, row: &Row, container: &Container, _pod: &Pod) -> Result<Edits, Rejection> {
        let mut edits = general::admit(row, container)?;
        let Some(count) = general::count(row, container)? else {
            return Ok(edits);
        };
        let count = i64::from(count);
        let memory = row.resource(Role::Memory);
        let mib = fields::mebibytes(container, memory, UNIT_MIB)?;
        if count > 1 {
            edits
                .annotations
                .insert(REQUESTED.to_owned(), count.to_string());
        }
        let (Some(mib), 1) = (mib, count) else {
            let whole = [
                (row.resource(Role::Cores), i64::from(DEVICE_CORES)),
                (memory, DEVICE_MEMORY),
            ];
            for (resource, of_one) in whole {
                if let Some(resource) = resource {
                    let all = count.saturating_mul(of_one).to_string();
                    edits.limits.insert(resource.to_owned(), all);
                }
            }
            return Ok(edits);
        };
        let name = memory.unwrap_or_default();
        let units = mib / UNIT_MIB;
        if !mib.is_multiple_of(UNIT_MIB) || !SHARES.contains(&units) {
            let written = container.amount(name).map(ToString::to_string);
            return Err(Rejection {
                container: container.name.clone(),
                field: format!("resources.limits[{name}]"),
                problem: format!(
                    "sGPU memory request value is invalid, valid values are [2, 4, 8, 16, 32, 64, 96] (units of {UNIT_MIB} MiB), got {}",
                    written.unwrap_or_default()
                ),
            });
        }
        if fields::amount(container, memory)?.is_some_and(|it| it.form == Form::Binary) {
            edits.limits.insert(name.to_owned(), units.to_string());
        }
        Ok(edits)
    }
}
