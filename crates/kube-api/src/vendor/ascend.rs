//! Huawei Ascend: one row for each chip of the configuration. Memory is rounded up to a template of the chip, unless
//! the pod's device is shared in software. Devices of one network go together, and the two dies of a module always do.

use std::collections::BTreeMap;

use placement::{Arrange, Ask, Device, Memory};
use serde::Serialize;
use serde_json::Value;

use super::{Edits, Family, Keys, Rejection, Role, Row, RowDefaults, Writing, capacity, general};
use crate::config::{Ascend, ConfigError, DeviceConfig};
use crate::fields::{self, PodRules, RequestError};
use crate::object::{Container, Node, Pod};
use crate::quantity::MIB;
use crate::register::{self, Problem, Registered};

/// On the pod, by the user: how the device is shared.
const MODE: &str = "huawei.com/vnpu-mode";
/// Shared in software.
const SOFT: &str = "hami-core";
/// Divided by the driver.
const HARD: &str = "template";
/// On the node: whether its devices are shared in software.
const NODE_SOFT: &str = "hami-vnpu-core";
/// On the pod: when the devices were chosen, in seconds.
const TIME: &str = "predicate-time";
/// The command that starts the limiter of a software share; the node's plugin mounts it.
const LIMITER: [&str; 3] = [
    "bash",
    "-c",
    "export RUST_LOG=info\n/hami-vnpu-core/limiter > /tmp/limiter_manager.log 2>&1 &",
];
/// The prefix of chips whose devices are on networks.
const NETWORKED: &str = "Ascend910";
/// A node's bonus if all devices are on one network, where 10 is one resource of the node full.
const WORTH: u32 = 10;
/// The dies of a module.
const MODULE: u32 = 2;
/// Compute of a device that is shared in software, in percent.
const SOFT_CORES: u32 = 100;

pub(super) fn rows(config: &DeviceConfig) -> Result<Vec<Row>, ConfigError> {
    let Some(vnpus) = &config.vnpus else {
        return Ok(Vec::new());
    };
    vnpus
        .configs
        .iter()
        .map(|chip| {
            let mut chip = chip.clone();
            chip.templates.sort_by_key(|template| template.memory);
            if let Some(empty) = chip.templates.iter().find(|template| template.memory == 0) {
                return Err(ConfigError::Wrong {
                    key: format!("vnpus.configs[{}].templates", chip.common_word),
                    problem: format!("{} has no memory; write its MiB", empty.name),
                });
            }
            Ok(row(chip, vnpus.hami_vnpu_core))
        })
        .collect()
}

fn row(chip: Ascend, soft_by_default: bool) -> Row {
    let word = chip.common_word.clone();
    Row {
        resources: vec![
            (Role::Count, chip.resource_name.clone()),
            (Role::Memory, chip.resource_memory_name.clone()),
            (Role::Cores, chip.resource_core_name.clone()),
        ],
        memory_unit_mib: u64::from(chip.memory_factor.max(1)),
        defaults: RowDefaults {
            memory_mib: 0,
            cores: 0,
            most_cores: SOFT_CORES,
        },
        keys: Keys {
            register: Some(format!("hami.io/node-register-{word}")),
            handshake: Some(format!("hami.io/node-handshake-{word}")),
            also_read: vec![NODE_SOFT.to_owned()],
            to_allocate: Some(format!("hami.io/{word}-devices-to-allocate")),
            allocated: Some(format!("hami.io/{word}-devices-allocated")),
            also_written: vec![format!("huawei.com/{word}"), TIME.to_owned()],
            use_ids: vec![format!("hami.io/use-{word}-uuid")],
            nouse_ids: vec![format!("hami.io/no-use-{word}-uuid")],
            ..Keys::default()
        },
        word,
        family: Box::new(Chip {
            config: chip,
            soft_by_default,
        }),
    }
}

#[derive(Debug)]
struct Chip {
    config: Ascend,
    /// Whether nodes without the label share devices in software.
    soft_by_default: bool,
}

/// The annotation that the chip's plugin reads.
#[derive(Debug, Serialize)]
struct AscendShare<'a> {
    #[serde(rename = "UUID")]
    uuid: &'a str,
    #[serde(rename = "temp", skip_serializing_if = "str::is_empty")]
    template: &'a str,
    #[serde(skip_serializing_if = "is_zero")]
    memory: u64,
    #[serde(skip_serializing_if = "is_zero")]
    core: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Chip {
    /// The smallest template with this much memory, and its memory; the whole device if no template is large enough.
    /// `None` if even the device is too small.
    fn template(&self, mib: u64) -> Option<(u64, &str)> {
        (self.config.templates.iter())
            .find(|template| mib <= template.memory)
            .map(|template| (template.memory, template.name.as_str()))
            .or_else(|| {
                (mib <= self.config.memory_capacity).then_some((self.config.memory_allocatable, ""))
            })
    }

    /// Whether the pod shares the device in software.
    fn is_soft(pod: &Pod) -> bool {
        fields::annotation(pod, MODE) == Some(SOFT)
    }

    /// Whether devices of the container are whole modules of two dies.
    fn in_modules(&self, pod: &Pod) -> bool {
        self.config.super_pod && !Self::is_soft(pod)
    }

    /// Memory on each device in MiB, rounded by how the device is shared; `None` if the container names none.
    fn memory(
        &self,
        row: &Row,
        container: &Container,
        soft: bool,
    ) -> Result<Option<u64>, RequestError> {
        let resource = row.resource(Role::Memory);
        let mib = fields::mebibytes(container, resource, row.memory_unit_mib)?;
        let Some(mib) = mib.filter(|mib| *mib > 0) else {
            return Ok(None);
        };
        if soft {
            return Ok(Some(mib));
        }
        match self.template(mib) {
            Some((rounded, _)) => Ok(Some(rounded)),
            None => {
                let name = resource.unwrap_or_default();
                let most = self.config.memory_capacity;
                let problem = format!("{name} {mib} is invalid: a device has {most} MiB");
                Err(fields::wrong_amount(container, name, problem))
            }
        }
    }

    /// Refuses a number of devices that does not form whole modules.
    fn judge_count(
        &self,
        row: &Row,
        container: &Container,
        count: u32,
    ) -> Result<(), RequestError> {
        if count == 1 || count.is_multiple_of(MODULE) {
            return Ok(());
        }
        let resource = row.resource(Role::Count).unwrap_or_default();
        let problem = format!(
            "{} device request must be 1 or {MODULE}*n, got {count}",
            row.word
        );
        Err(fields::wrong_amount(container, resource, problem))
    }
}

impl Family for Chip {
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
        let cores = general::cores(row, container)?;
        // Compute is only promised in software, so a pod that asks for it is shared in software.
        let soft = Self::is_soft(pod) || cores > 0;
        ask.memory = match self.memory(row, container, soft)? {
            Some(mib) => Memory::Bytes(mib * MIB),
            None => Memory::Percent(100),
        };
        if !soft {
            let templates = self.config.templates.iter();
            ask.sizes = templates.map(|template| template.memory * MIB).collect();
        }
        ask.select.mode = match fields::annotation(pod, MODE) {
            Some(HARD) => Some(HARD.to_owned()),
            _ => soft.then(|| SOFT.to_owned()),
        };
        if self.in_modules(pod) {
            self.judge_count(row, container, ask.count)?;
        }
        if row.word.starts_with(NETWORKED) {
            ask.arrange = if self.in_modules(pod) && ask.count > 1 {
                Arrange::Modules { worth: WORTH }
            } else {
                Arrange::LargestGroups { worth: WORTH }
            };
        }
        Ok(Some(ask))
    }

    fn devices(&self, row: &Row, node: &Node) -> Result<Vec<Device>, Problem> {
        let registered = general::registered(row, node)?;
        let soft = register::annotation(node, NODE_SOFT)
            .map_or(self.soft_by_default, |text| text == "true");
        Ok(registered
            .iter()
            .map(|registered| {
                let mut device = registered.device(&row.word);
                device.group = network(registered);
                device.mode = if soft { SOFT } else { HARD }.to_owned();
                if soft {
                    device.cores = SOFT_CORES;
                }
                if self.config.super_pod {
                    device.module = Some(device.index / MODULE);
                }
                device
            })
            .collect())
    }

    fn annotate(&self, row: &Row, writing: &Writing<'_>, into: &mut BTreeMap<String, String>) {
        general::annotate(row, writing, into);
        let seconds = writing.unix_nanoseconds / 1_000_000_000;
        into.insert(TIME.to_owned(), seconds.to_string());
        let soft = Self::is_soft(writing.pod);
        let assigned: Vec<AscendShare<'_>> = capacity::grants(row, writing)
            .flatten()
            .map(|grant| {
                let mib = grant.memory_bytes.div_ceil(MIB);
                let template = self.template(mib).filter(|_| !soft && grant.cores == 0);
                AscendShare {
                    uuid: &grant.device,
                    template: template.map_or("", |(_, name)| name),
                    memory: mib,
                    core: u64::from(grant.cores),
                }
            })
            .collect();
        // Serialisation cannot fail: the value has only texts and numbers.
        let text = serde_json::to_string(&assigned).unwrap_or_default();
        into.insert(format!("huawei.com/{}", row.word), text);
    }

    fn admit(&self, row: &Row, container: &Container, pod: &Pod) -> Result<Edits, Rejection> {
        let mut edits = general::admit(row, container)?;
        let Some(count) = general::count(row, container)? else {
            if self.config.overwrite_env {
                edits
                    .env
                    .push(("ASCEND_VISIBLE_DEVICES".to_owned(), String::new()));
            }
            return Ok(edits);
        };
        let soft = Self::is_soft(pod);
        let refused = |role, problem: String| Rejection {
            container: container.name.clone(),
            field: format!(
                "resources.limits[{}]",
                row.resource(role).unwrap_or_default()
            ),
            problem,
        };
        if self.in_modules(pod) {
            self.judge_count(row, container, count)?;
            if count == 1
                && let Some(name) = row.resource(Role::Count)
            {
                edits.limits.insert(name.to_owned(), MODULE.to_string());
            }
        }
        if !soft && general::cores(row, container)? > 0 {
            let name = row.resource(Role::Cores).unwrap_or_default();
            return Err(refused(
                Role::Cores,
                format!(
                    "{name} is only supported in hami-core (soft split) mode; add the annotation {MODE}: {SOFT}, or take it out"
                ),
            ));
        }
        let whole = self.config.memory_allocatable;
        let mib = self.memory(row, container, soft)?.unwrap_or(whole);
        // A module of two dies is requested and divided as one.
        let one = if self.in_modules(pod) { MODULE } else { 1 };
        if !soft && count > one && mib != whole {
            return Err(refused(
                Role::Memory,
                format!(
                    "vNPU not supported for multiple devices: {count} devices with {mib} MiB each; ask for one device, or for whole ones"
                ),
            ));
        }
        if let Some(name) = row.resource(Role::Memory)
            && mib.is_multiple_of(row.memory_unit_mib)
        {
            let units = (mib / row.memory_unit_mib).to_string();
            edits.limits.insert(name.to_owned(), units.clone());
            edits.requests.insert(name.to_owned(), units);
        }
        if soft {
            edits.post_start = LIMITER.map(str::to_owned).to_vec();
        }
        if !self.config.runtime_class_name.is_empty() && pod.spec.runtime_class_name.is_none() {
            edits.runtime_class = Some(self.config.runtime_class_name.clone());
        }
        Ok(edits)
    }
}

/// The network of the device.
fn network(registered: &Registered) -> Option<u32> {
    let info = registered.custom_info.as_ref()?;
    match info.get("NetworkID")? {
        Value::Number(number) => number.as_u64().and_then(|id| u32::try_from(id).ok()),
        _ => None,
    }
}
