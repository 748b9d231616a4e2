//! NVIDIA: NUMA binding, sharing modes, MIG instances, cordoned devices, priority and the compute policy's
//! environment.

use std::collections::BTreeMap;

use placement::{Ask, Device, Granted};

use super::{Edits, Family, Keys, Rejection, Role, Row, RowDefaults, Writing, general};
use crate::config::{ConfigError, CorePolicy, DeviceConfig, Nvidia};
use crate::fields::{self, PodRules, RequestError};
use crate::keys;
use crate::object::{Container, EnvVar, Node, Pod};
use crate::register::{self, Problem};
use crate::slots::{self, AllocationError};

/// A percentage above this is cut to it.
const MOST_CORES: u32 = 100;

pub(super) fn rows(config: &DeviceConfig) -> Result<Vec<Row>, ConfigError> {
    let Some(nvidia) = &config.nvidia else {
        return Ok(Vec::new());
    };
    if nvidia.resource_count_name.is_empty() && *nvidia != Nvidia::default() {
        return Err(ConfigError::Wrong {
            key: "nvidia.resourceCountName".to_owned(),
            problem: "is not set, so nothing of this section would count; write nvidia.com/gpu"
                .to_owned(),
        });
    }
    let named = |key: &str| Some(key.to_owned());
    Ok(vec![Row {
        word: "NVIDIA".to_owned(),
        resources: vec![
            (Role::Count, nvidia.resource_count_name.clone()),
            (Role::Memory, nvidia.resource_memory_name.clone()),
            (
                Role::MemoryPercent,
                nvidia.resource_memory_percentage_name.clone(),
            ),
            (Role::Cores, nvidia.resource_core_name.clone()),
            (Role::Priority, nvidia.resource_priority_name.clone()),
        ],
        memory_unit_mib: u64::from(nvidia.memory_factor.max(1)),
        defaults: RowDefaults {
            memory_mib: u64::from(nvidia.default_memory),
            cores: nvidia.default_cores,
            most_cores: MOST_CORES,
        },
        keys: Keys {
            register: named(keys::NVIDIA_REGISTER),
            score: named(keys::NVIDIA_SCORE),
            handshake: named("hami.io/node-handshake"),
            also_read: vec![keys::CORDON.to_owned()],
            to_allocate: named("hami.io/vgpu-devices-to-allocate"),
            allocated: named("hami.io/vgpu-devices-allocated"),
            copies: vec![keys::SEED_TO_ALLOCATE.to_owned()],
            also_written: vec![keys::MIG_ALLOCATIONS.to_owned()],
            use_ids: vec!["nvidia.com/use-gpuuuid".to_owned()],
            nouse_ids: vec!["nvidia.com/nouse-gpuuuid".to_owned()],
            use_types: vec!["nvidia.com/use-gputype".to_owned()],
            nouse_types: vec!["nvidia.com/nouse-gputype".to_owned()],
        },
        family: Box::new(NvidiaFamily {
            config: nvidia.clone(),
        }),
    }])
}

#[derive(Debug)]
struct NvidiaFamily {
    config: Nvidia,
}

impl Family for NvidiaFamily {
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
        // A word that is not a boolean counts as false, as in the reference.
        ask.numa_bind =
            fields::annotation(pod, keys::NUMA_BIND).and_then(fields::truth) == Some(true);
        ask.select.mode = fields::annotation(pod, keys::VGPU_MODE).map(str::to_owned);
        Ok(Some(ask))
    }

    fn devices(&self, row: &Row, node: &Node) -> Result<Vec<Device>, Problem> {
        let mut devices = general::devices(row, node)?;
        if let Some(cordoned) = register::annotation(node, keys::CORDON) {
            for id in fields::list(cordoned) {
                for device in devices.iter_mut().filter(|device| device.id == id) {
                    device.cordoned = true;
                }
            }
        }
        Ok(devices)
    }

    fn annotate(&self, row: &Row, writing: &Writing<'_>, into: &mut BTreeMap<String, String>) {
        general::annotate(row, writing, into);
        let instances = slots::encode_instances(&row.word, writing.placement);
        // A list from an earlier placement must not survive.
        let stale = fields::annotation(writing.pod, keys::MIG_ALLOCATIONS).is_some();
        if instances.is_some() || stale {
            into.insert(
                keys::MIG_ALLOCATIONS.to_owned(),
                instances.unwrap_or_else(|| "[]".to_owned()),
            );
        }
        show(row, writing, into);
    }

    fn granted(&self, row: &Row, pod: &Pod) -> Result<Option<Vec<Granted>>, AllocationError> {
        let Some(mut granted) = general::granted(row, pod)? else {
            return Ok(None);
        };
        if let Some(text) = fields::annotation(pod, keys::MIG_ALLOCATIONS) {
            slots::decode_instances(text)
                .and_then(|instances| slots::cut(&mut granted, &instances))
                .map_err(|error| AllocationError {
                    key: keys::MIG_ALLOCATIONS.to_owned(),
                    problem: error.to_string(),
                })?;
        }
        Ok(Some(granted))
    }

    fn admit(&self, row: &Row, container: &Container, pod: &Pod) -> Result<Edits, Rejection> {
        let mut edits = general::admit(row, container)?;
        let amount = |role| fields::whole(container, row.resource(role));
        let percent = amount(Role::MemoryPercent)?;
        if let Some(percent) = percent
            && !(0..=100).contains(&percent)
        {
            return Err(Rejection {
                container: container.name.clone(),
                field: format!(
                    "resources.limits[{}]",
                    row.resource(Role::MemoryPercent).unwrap_or_default()
                ),
                problem: format!(
                    "{percent} is no percentage; write 1 to 100, or 0 for the default"
                ),
            });
        }
        if let Some(priority) = amount(Role::Priority)? {
            edits
                .env
                .push(("CUDA_TASK_PRIORITY".to_owned(), priority.to_string()));
        }
        if self.config.gpu_core_policy != CorePolicy::Default {
            edits.env.push((
                "GPU_CORE_UTILIZATION_POLICY".to_owned(),
                self.config.gpu_core_policy.as_str().to_owned(),
            ));
        }
        let memory = row.resource(Role::Memory);
        if let Some(name) = memory
            && let Some(units) = self.units(row, container, name)?
        {
            edits.limits.insert(name.to_owned(), units);
        }
        // An amount without effect on the GPU has none on the kubelet's sums either, if nodes report their totals.
        if let Some(name) = row.resource(Role::MemoryPercent)
            && percent.is_some_and(|percent| percent > 0)
            && fields::mebibytes(container, memory, row.memory_unit_mib)?.is_some_and(|mib| mib > 0)
        {
            edits.limits.insert(name.to_owned(), "0".to_owned());
        }
        if let Some(name) = row.resource(Role::Cores)
            && amount(Role::Cores)?.is_some_and(|cores| cores > 100)
        {
            edits.limits.insert(name.to_owned(), "100".to_owned());
        }
        let has = |role| {
            row.resource(role)
                .is_some_and(|name| container.amount(name).is_some())
        };
        let mut count = amount(Role::Count)?;
        let shares = has(Role::Memory) || has(Role::MemoryPercent) || has(Role::Cores);
        if count.is_none() && shares && self.config.default_gpu_num > 0 {
            count = Some(i64::from(self.config.default_gpu_num));
            if let Some(name) = row.resource(Role::Count) {
                edits
                    .limits
                    .insert(name.to_owned(), self.config.default_gpu_num.to_string());
            }
        }
        if count.is_none_or(|count| count <= 0) {
            if self.config.overwrite_env {
                edits
                    .env
                    .push(("NVIDIA_VISIBLE_DEVICES".to_owned(), "none".to_owned()));
            }
            return Ok(edits);
        }
        let whole_device = match percent {
            Some(percent) => percent == 100,
            None => !has(Role::Memory),
        };
        if whole_device
            && !has(Role::Cores)
            && let Some(name) = row.resource(Role::Cores)
        {
            edits.limits.insert(name.to_owned(), "100".to_owned());
        }
        if !self.config.runtime_class_name.is_empty() && pod.spec.runtime_class_name.is_none() {
            edits.runtime_class = Some(self.config.runtime_class_name.clone());
        }
        Ok(edits)
    }
}

/// Tells each container that refers to the annotation which devices it sees. Admission adds the reference to pods for
/// nodes whose runtime has no CDI. An instance that is not created yet has no name to show.
fn show(row: &Row, writing: &Writing<'_>, into: &mut BTreeMap<String, String>) {
    let containers = fields::in_order(writing.pod).zip(&writing.placement.containers);
    for ((container, _), granted) in containers {
        let key = keys::visible_devices(&container.name);
        if !container
            .env
            .iter()
            .any(|variable| looks_at(variable, &key))
        {
            continue;
        }
        let grants = granted.grants.iter();
        let devices: Vec<&str> = grants
            .filter(|grant| grant.vendor.as_str() == row.word && grant.instance.is_none())
            .map(|grant| grant.device.as_ref())
            .collect();
        if !devices.is_empty() {
            into.insert(key, devices.join(","));
        }
    }
}

/// Whether the variable's value refers to this annotation of its pod.
fn looks_at(variable: &EnvVar, key: &str) -> bool {
    variable
        .value_from
        .as_ref()
        .and_then(|from| from.get("fieldRef")?.get("fieldPath")?.as_str())
        .and_then(|path| path.strip_prefix("metadata.annotations['"))
        .and_then(|path| path.strip_suffix("']"))
        == Some(key)
}

impl NvidiaFamily {
    /// The memory resource as a plain number, if it is written with a binary suffix: the reference's agents read only
    /// plain numbers. It is left unchanged if it is not a whole number of units.
    fn units(
        &self,
        row: &Row,
        container: &Container,
        name: &str,
    ) -> Result<Option<String>, RequestError> {
        let Some(amount) = fields::amount(container, Some(name))? else {
            return Ok(None);
        };
        if amount.form == crate::quantity::Form::Decimal {
            return Ok(None);
        }
        let mib = fields::mebibytes(container, Some(name), row.memory_unit_mib)?;
        Ok(mib
            .filter(|mib| mib.is_multiple_of(row.memory_unit_mib))
            .map(|mib| (mib / row.memory_unit_mib).to_string()))
    }
}
