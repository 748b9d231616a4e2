//! MetaX: whole devices derived from the node's capacity, for which the node itself rates each choice; and shares of
//! devices, kept apart by quality of service and by class of application.

use std::collections::BTreeMap;
use std::sync::Arc;

use placement::{Appraisal, Arrange, Ask, Company, Compute, Device, Granted, Memory};
use serde::{Deserialize, Serialize};

use super::{Edits, Family, Keys, Rejection, Role, Row, RowDefaults, Writing, capacity, general};
use crate::config::{ConfigError, DeviceConfig};
use crate::fields::{self, PodRules, RequestError};
use crate::object::{Container, Node, Pod};
use crate::quantity::Form;
use crate::quantity::MIB;
use crate::register::{self, Problem};
use crate::slots::AllocationError;

/// Memory of a whole device as the reference counts it, in MiB.
const WHOLE_MIB: u64 = 65_536;
/// All compute of a device.
const DEVICE_CORES: u32 = 100;

/// On the node: by the number of devices, how much worse the others are then connected.
const LOSSES: &str = "metax-tech.com/gpu.topology.losses";
/// On the node: by the number of devices, how well the best set of that many is connected.
const SCORES: &str = "metax-tech.com/gpu.topology.scores";
/// On the node: its devices, for shares.
const REGISTER: &str = "metax-tech.com/node-gpu-devices";
/// On the pod, for the plugin: the shares of each container.
const DEVICES: &str = "metax-tech.com/gpu-devices-allocated";
/// On the pod, for the plugin: when they were chosen, in nanoseconds.
const TIME: &str = "metax-tech.com/predicate-time";
/// On the pod, by the user: how its share of compute is enforced.
const QOS: &str = "metax-tech.com/sgpu-qos-policy";
/// On the pod, by the user: whether it takes precedence over others, or yields to them.
const APP_CLASS: &str = "metax-tech.com/sgpu-app-class";
/// On the pod, by the user: whether nodes are compared by how well their whole devices are connected.
const TOPOLOGY: &str = "metax-tech.com/sgpu-topology-aware";

/// Any compute that is free.
const BEST_EFFORT: &str = "best-effort";
/// The values of [`QOS`].
const POLICIES: [&str; 3] = [BEST_EFFORT, "fixed-share", "burst-share"];
/// Takes precedence over others.
const ONLINE: &str = "online";
/// Yields while an online pod runs.
const OFFLINE: &str = "offline";
/// Class of a pod that has a device to itself.
const EXCLUSIVE: &str = "exclusive";

pub(super) fn rows(config: &DeviceConfig) -> Result<Vec<Row>, ConfigError> {
    let Some(metax) = &config.metax else {
        return Ok(Vec::new());
    };
    let defaults = RowDefaults {
        memory_mib: 0,
        cores: DEVICE_CORES,
        most_cores: DEVICE_CORES,
    };
    Ok(vec![
        Row {
            word: "Metax-GPU".to_owned(),
            resources: vec![(Role::Count, metax.resource_count_name.clone())],
            memory_unit_mib: 1,
            defaults,
            keys: Keys {
                also_read: vec![LOSSES.to_owned(), SCORES.to_owned()],
                to_allocate: Some("hami.io/metax-gpu-devices-to-allocate".to_owned()),
                allocated: Some("hami.io/metax-gpu-devices-allocated".to_owned()),
                ..Keys::default()
            },
            family: Box::new(MetaxWhole),
        },
        Row {
            word: "Metax-SGPU".to_owned(),
            resources: vec![
                (Role::Count, metax.resource_v_count_name.clone()),
                (Role::Memory, metax.resource_v_memory_name.clone()),
                (Role::Cores, metax.resource_v_core_name.clone()),
            ],
            memory_unit_mib: 1024,
            defaults,
            keys: Keys {
                register: Some(REGISTER.to_owned()),
                to_allocate: Some("hami.io/metax-sgpu-devices-to-allocate".to_owned()),
                allocated: Some("hami.io/metax-sgpu-devices-allocated".to_owned()),
                also_written: vec![DEVICES.to_owned(), TIME.to_owned()],
                use_ids: vec!["metax-tech.com/use-gpuuuid".to_owned()],
                nouse_ids: vec!["metax-tech.com/nouse-gpuuuid".to_owned()],
                ..Keys::default()
            },
            family: Box::new(MetaxShares {
                weigh: metax.sgpu_topology_aware,
            }),
        },
    ])
}

#[derive(Debug)]
struct MetaxWhole;

impl Family for MetaxWhole {
    fn ask(
        &self,
        row: &Row,
        container: &Container,
        pod: &Pod,
        rules: &PodRules,
    ) -> Result<Option<Ask>, RequestError> {
        let mut ask = general::ask(row, container, pod, rules)?;
        if let Some(ask) = &mut ask {
            ask.arrange = Arrange::Appraised;
        }
        Ok(ask)
    }

    fn devices(&self, row: &Row, node: &Node) -> Result<Vec<Device>, Problem> {
        let count = capacity::of(node, row.resource(Role::Count));
        let mut devices = capacity::devices(row, node, "metax", count, WHOLE_MIB);
        let appraisal = appraisal(node).map(Arc::new);
        for device in &mut devices {
            device.slots = 1;
            device.appraisal.clone_from(&appraisal);
        }
        Ok(devices)
    }
}

/// The node's appraisal of taking several of its devices. An unreadable appraisal counts as none, because it only
/// affects the choice between nodes.
fn appraisal(node: &Node) -> Option<Appraisal> {
    let figures = |key: &str| -> BTreeMap<u32, i32> {
        register::annotation(node, key)
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default()
    };
    let appraisal = Appraisal {
        scores: figures(SCORES),
        losses: figures(LOSSES),
    };
    (appraisal != Appraisal::default()).then_some(appraisal)
}

#[derive(Debug)]
struct MetaxShares {
    /// Whether nodes are compared by how well whole devices are connected, if the pod does not say.
    weigh: bool,
}

/// A device as its node reports it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Reported {
    uuid: String,
    total_dev_count: u32,
    total_compute: u32,
    /// In MiB.
    #[serde(rename = "totalVRam")]
    total_vram: u32,
    numa: u32,
    healthy: bool,
    /// Devices of one zone are connected directly; 0 means no zone.
    link_zone: u32,
}

/// A container's share of a device, as the plugin reads it.
#[derive(Debug, Serialize)]
struct MetaxShare<'a> {
    uuid: &'a str,
    #[serde(skip_serializing_if = "is_zero")]
    compute: u64,
    /// In MiB.
    #[serde(rename = "vRam", skip_serializing_if = "is_zero")]
    vram: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl MetaxShares {
    /// The class of a container with this much compute. Online pods share a device with online and offline ones,
    /// offline pods with those of their policy, all others with those of their policy.
    fn company(pod: &Pod, cores: u32) -> Company {
        let policy = fields::annotation(pod, QOS).unwrap_or(BEST_EFFORT);
        let offline = |policy: &str| -> Arc<str> { format!("{OFFLINE} {policy}").into() };
        let (class, accepts): (Arc<str>, Vec<Arc<str>>) = match fields::annotation(pod, APP_CLASS) {
            Some(ONLINE) => {
                let mut accepts: Vec<Arc<str>> = POLICIES.iter().map(|it| offline(it)).collect();
                accepts.push(ONLINE.into());
                (ONLINE.into(), accepts)
            }
            Some(OFFLINE) => (offline(policy), vec![offline(policy)]),
            _ if cores >= DEVICE_CORES => (EXCLUSIVE.into(), Vec::new()),
            _ => (policy.into(), vec![policy.into()]),
        };
        Company { class, accepts }
    }

    fn is_online(pod: &Pod) -> bool {
        fields::annotation(pod, APP_CLASS) == Some(ONLINE)
    }

    /// Memory on each device: a plain number counts GiB, one with a suffix bytes.
    fn memory(row: &Row, container: &Container) -> Result<Memory, RequestError> {
        let resource = row.resource(Role::Memory);
        let amount = fields::amount(container, resource)?;
        let letters = resource
            .and_then(|resource| container.amount(resource))
            .is_some_and(|written| written.0.contains(['M', 'G', 'T', 'P', 'E']));
        match amount {
            Some(amount) if letters && amount.form == Form::Decimal => {
                let mib = amount.whole().and_then(|whole| u64::try_from(whole).ok());
                Ok(match mib.map(|bytes| bytes / MIB) {
                    None | Some(0) => Memory::Percent(100),
                    Some(mib) => Memory::Bytes(mib * MIB),
                })
            }
            _ => general::memory(row, container),
        }
    }
}

impl Family for MetaxShares {
    fn ask(
        &self,
        row: &Row,
        container: &Container,
        pod: &Pod,
        rules: &PodRules,
    ) -> Result<Option<Ask>, RequestError> {
        let Some(count) = general::count(row, container)? else {
            return Ok(None);
        };
        let mut ask = Ask::new(&row.word, count, Self::memory(row, container)?);
        let cores = general::cores(row, container)?;
        let by_user = fields::annotation(pod, TOPOLOGY).and_then(fields::truth);
        ask.compute = Compute::Units(cores);
        if Self::is_online(pod) {
            // The pods there yield, so nothing has to be free.
            ask.compute = Compute::Unchecked;
            ask.arrange = Arrange::Apart;
        } else if cores >= DEVICE_CORES && fields::annotation(pod, APP_CLASS).is_none() {
            ask.arrange = Arrange::TightestGroup {
                weigh: by_user.unwrap_or(self.weigh),
            };
        }
        ask.company = Some(Self::company(pod, cores));
        ask.policy = rules.policy.clone();
        ask.weights = rules.weights;
        ask.select = general::select(row, pod);
        Ok(Some(ask))
    }

    fn devices(&self, row: &Row, node: &Node) -> Result<Vec<Device>, Problem> {
        let Some(text) = register::annotation(node, REGISTER) else {
            return Ok(Vec::new());
        };
        if general::is_gone(row, node) {
            return Ok(Vec::new());
        }
        let reported: Option<Vec<Reported>> =
            serde_json::from_str(text).map_err(|error| Problem {
                key: REGISTER.to_owned(),
                problem: format!("no list of devices: {error}"),
            })?;
        Ok((0..)
            .zip(reported.unwrap_or_default())
            .map(|(index, report)| {
                let bytes = u64::from(report.total_vram) * MIB;
                let mut device = Device::new(&row.word, &report.uuid, &row.word, bytes);
                device.index = index;
                device.slots = report.total_dev_count;
                device.cores = report.total_compute;
                device.numa = report.numa;
                device.healthy = report.healthy;
                device.group = (report.link_zone > 0).then_some(report.link_zone);
                device
            })
            .collect())
    }

    fn annotate(&self, row: &Row, writing: &Writing<'_>, into: &mut BTreeMap<String, String>) {
        general::annotate(row, writing, into);
        let containers: Vec<Vec<MetaxShare<'_>>> = capacity::grants(row, writing)
            .map(|grants| {
                grants
                    .into_iter()
                    .map(|grant| MetaxShare {
                        uuid: &grant.device,
                        compute: u64::from(grant.cores),
                        vram: grant.memory_bytes.div_ceil(MIB),
                    })
                    .collect()
            })
            .collect();
        // Serialisation cannot fail: the value has only texts and numbers.
        let text = serde_json::to_string(&containers).unwrap_or_default();
        into.insert(DEVICES.to_owned(), text);
        capacity::stamp(writing, TIME, into);
    }

    fn granted(&self, row: &Row, pod: &Pod) -> Result<Option<Vec<Granted>>, AllocationError> {
        let mut granted = general::granted(row, pod)?;
        let grants = granted.iter_mut().flatten();
        for grant in grants.flat_map(|granted| &mut granted.grants) {
            grant.class = Some(Self::company(pod, grant.cores).class);
        }
        Ok(granted)
    }

    fn admit(&self, row: &Row, container: &Container, pod: &Pod) -> Result<Edits, Rejection> {
        let mut edits = general::admit(row, container)?;
        let Some(count) = general::count(row, container)? else {
            return Ok(edits);
        };
        let refused = |key: &str, problem: String| Rejection {
            container: container.name.clone(),
            field: format!("metadata.annotations[{key}]"),
            problem,
        };
        let class = fields::annotation(pod, APP_CLASS);
        if let Some(class) = class {
            if ![ONLINE, OFFLINE].contains(&class) {
                return Err(refused(
                    APP_CLASS,
                    format!("{APP_CLASS} must be set one of [{ONLINE}, {OFFLINE}], got {class:?}"),
                ));
            }
            if count != 1 {
                return Err(refused(
                    APP_CLASS,
                    format!("app-class pod must request single device, got {count}"),
                ));
            }
        }
        if class != Some(ONLINE) {
            match fields::annotation(pod, QOS) {
                None => {
                    edits
                        .annotations
                        .insert(QOS.to_owned(), BEST_EFFORT.to_owned());
                }
                Some(policy) if POLICIES.contains(&policy) => {}
                Some(policy) => {
                    return Err(refused(
                        QOS,
                        format!(
                            "{QOS} must be set one of [{}], got {policy:?}",
                            POLICIES.join(", ")
                        ),
                    ));
                }
            }
        }
        Ok(edits)
    }
}
