//! Kunlunxin: whole devices derived from the node's capacity, and halves and quarters of devices, both in two wings
//! of four.

use std::collections::BTreeMap;

use placement::{Arrange, Ask, Compute, Device, Memory};

use super::{Edits, Family, Keys, Rejection, Role, Row, RowDefaults, Writing, capacity, general};
use crate::config::{ConfigError, DeviceConfig};
use crate::fields::{self, PodRules, RequestError};
use crate::object::{Container, Node, Pod};
use crate::quantity::MIB;
use crate::register::Problem;

/// Memory of a device, in MiB.
const DEVICE_MIB: u64 = 98_304;
/// The possible amounts of memory of a share, in MiB.
const SHARES_MIB: [u64; 3] = [DEVICE_MIB / 4, DEVICE_MIB / 2, DEVICE_MIB];
/// On the pod, for the plugin: positions of the devices.
const INDEX: &str = "BAIDU_COM_DEVICE_IDX";

pub(super) fn rows(config: &DeviceConfig) -> Result<Vec<Row>, ConfigError> {
    let Some(kunlun) = &config.kunlun else {
        return Ok(Vec::new());
    };
    let lists = |keys: [&str; 2]| keys.map(str::to_owned).to_vec();
    Ok(vec![
        Row {
            word: "kunlun".to_owned(),
            resources: vec![(Role::Count, kunlun.resource_count_name.clone())],
            memory_unit_mib: 1,
            defaults: RowDefaults {
                memory_mib: 0,
                cores: 100,
                most_cores: 100,
            },
            keys: Keys {
                allocated: Some("hami.io/kunlun-allocated".to_owned()),
                also_written: vec![INDEX.to_owned()],
                use_ids: lists(["baidu.com/use-gpuuuid", "hami.io/use-xpu-uuid"]),
                nouse_ids: lists(["baidu.com/nouse-gpuuuid", "hami.io/no-use-xpu-uuid"]),
                ..Keys::default()
            },
            family: Box::new(KunlunWhole),
        },
        Row {
            word: "XPU".to_owned(),
            resources: vec![
                (Role::Count, kunlun.resource_v_count_name.clone()),
                (Role::Memory, kunlun.resource_v_memory_name.clone()),
            ],
            memory_unit_mib: 1,
            defaults: RowDefaults::default(),
            keys: Keys {
                register: Some("hami.io/node-register-xpu".to_owned()),
                handshake: Some("hami.io/node-handshake-xpu".to_owned()),
                to_allocate: Some("hami.io/xpu-devices-to-allocate".to_owned()),
                allocated: Some("hami.io/xpu-devices-allocated".to_owned()),
                use_ids: vec!["hami.io/use-xpu-uuid".to_owned()],
                nouse_ids: vec!["hami.io/no-use-xpu-uuid".to_owned()],
                ..Keys::default()
            },
            family: Box::new(KunlunShares),
        },
    ])
}

#[derive(Debug)]
struct KunlunWhole;

impl Family for KunlunWhole {
    fn ask(
        &self,
        row: &Row,
        container: &Container,
        pod: &Pod,
        rules: &PodRules,
    ) -> Result<Option<Ask>, RequestError> {
        let mut ask = general::ask(row, container, pod, rules)?;
        if let Some(ask) = &mut ask {
            ask.arrange = Arrange::Wings;
        }
        Ok(ask)
    }

    fn devices(&self, row: &Row, node: &Node) -> Result<Vec<Device>, Problem> {
        let count = capacity::of(node, row.resource(Role::Count));
        let mut devices = capacity::devices(row, node, "kunlun", count, DEVICE_MIB);
        for device in &mut devices {
            device.slots = 1;
            device.numa = u32::from(u64::from(device.index) >= count / 2);
        }
        Ok(devices)
    }

    fn annotate(&self, row: &Row, writing: &Writing<'_>, into: &mut BTreeMap<String, String>) {
        general::annotate(row, writing, into);
        let indices = capacity::grants(row, writing)
            .flatten()
            .map(|grant| capacity::index(grant, writing.node));
        into.insert(INDEX.to_owned(), capacity::joined(indices));
    }
}

#[derive(Debug)]
struct KunlunShares;

impl KunlunShares {
    /// The smallest share with this much memory; a whole device if no share is large enough.
    fn rounded(mib: u64) -> u64 {
        (SHARES_MIB.into_iter())
            .find(|share| mib <= *share)
            .unwrap_or(DEVICE_MIB)
    }
}

impl Family for KunlunShares {
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
        let mib = match ask.memory {
            Memory::Bytes(bytes) => Self::rounded(bytes.div_ceil(MIB)),
            Memory::Percent(_) => DEVICE_MIB,
        };
        ask.memory = Memory::Bytes(mib * MIB);
        let cores = u32::try_from(mib * 100 / DEVICE_MIB).unwrap_or(100);
        ask.compute = Compute::Units(cores);
        ask.arrange = Arrange::Wings;
        // A device is divided into shares of one size.
        ask.even = true;
        ask.sizes = SHARES_MIB.map(|mib| mib * MIB).to_vec();
        Ok(Some(ask))
    }

    fn admit(&self, row: &Row, container: &Container, _pod: &Pod) -> Result<Edits, Rejection> {
        let mut edits = general::admit(row, container)?;
        let memory = row.resource(Role::Memory);
        if general::count(row, container)?.is_some()
            && let Some(name) = memory
            && let Some(mib) = fields::mebibytes(container, memory, row.memory_unit_mib)?
        {
            let share = Self::rounded(mib).to_string();
            edits.limits.insert(name.to_owned(), share.clone());
            edits.requests.insert(name.to_owned(), share);
        }
        Ok(edits)
    }
}
