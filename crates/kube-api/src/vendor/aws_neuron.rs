//! AWS Neuron: whole devices or their cores, derived from the node's capacity. Cores are lanes: a pod's share of a
//! device is a set of bits.

use std::collections::BTreeMap;

use placement::{Arrange, Ask, Compute, Device, Memory};

use super::{Edits, Family, Keys, Rejection, Role, Row, RowDefaults, Writing, capacity, general};
use crate::config::{ConfigError, DeviceConfig};
use crate::fields::{self, PodRules, RequestError};
use crate::keys::INSTANCE_TYPE;
use crate::object::{Container, Node, Pod};
use crate::register::Problem;

/// The cores of one device that a container which asks for cores gets.
const CORES_OF_ONE: u32 = 2;
/// The most cores of a device that fit into the set of bits.
const MOST_CORES: u64 = 31;

/// On the pod, for the plugin: numbers of devices, or of cores.
const IDS: &str = "AWS_NEURON_IDS";
/// On the pod, for the plugin: when they were chosen, in nanoseconds.
const TIME: &str = "NEURON_ALLOC_TIME";
/// On the pod: whether the plugin has given them to the container.
const ALLOCATED: &str = "NEURON_ALLOCATED";
/// On the pod, for the plugin: that the numbers are of cores.
const KIND: &str = "NEURON_RESOURCE_TYPE";
/// On the pod, for the plugin: the node.
const NODE: &str = "aws.amazon.com/predicate-node";

pub(super) fn rows(config: &DeviceConfig) -> Result<Vec<Row>, ConfigError> {
    let Some(neuron) = &config.awsneuron else {
        return Ok(Vec::new());
    };
    Ok(vec![Row {
        word: "AWSNeuron".to_owned(),
        resources: vec![
            (Role::Count, neuron.resource_count_name.clone()),
            (Role::Cores, neuron.resource_core_name.clone()),
        ],
        memory_unit_mib: 1,
        defaults: RowDefaults::default(),
        keys: Keys {
            allocated: Some("hami.io/aws-neuron-devices-allocated".to_owned()),
            also_written: [IDS, TIME, ALLOCATED, KIND, NODE]
                .map(str::to_owned)
                .to_vec(),
            use_ids: vec!["aws.amazon.com/use-neuron-uuid".to_owned()],
            nouse_ids: vec!["aws.amazon.com/nouse-neuron-uuid".to_owned()],
            ..Keys::default()
        },
        family: Box::new(Devices),
    }])
}

#[derive(Debug)]
struct Devices;

impl Devices {
    /// The number of devices, and the number of lanes of each.
    fn wanted(row: &Row, container: &Container) -> Result<Option<(u32, u32)>, RequestError> {
        if row
            .resource(Role::Count)
            .is_some_and(|name| container.amount(name).is_some())
        {
            let count = general::count(row, container)?;
            return Ok(count.map(|count| (count, u32::MAX)));
        }
        let resource = row.resource(Role::Cores);
        match fields::whole(container, resource)? {
            None | Some(..=0) => Ok(None),
            Some(1) => Ok(Some((1, 1))),
            Some(cores) if cores % i64::from(CORES_OF_ONE) == 0 => {
                let devices = u32::try_from(cores / i64::from(CORES_OF_ONE));
                Ok(Some((devices.unwrap_or(u32::MAX), CORES_OF_ONE)))
            }
            Some(cores) => {
                let name = resource.unwrap_or_default();
                let problem =
                    format!("{name} must be 1 or a multiple of {CORES_OF_ONE}, got {cores}");
                Err(fields::wrong_amount(container, name, problem))
            }
        }
    }

    /// Numbers of the devices, or of their cores if the container asks for cores.
    fn numbers(row: &Row, writing: &Writing<'_>) -> (Vec<u32>, bool) {
        let mut numbers = Vec::new();
        let mut of_cores = false;
        let containers = fields::in_order(writing.pod);
        for (grants, (container, _)) in capacity::grants(row, writing).zip(containers) {
            let whole = row
                .resource(Role::Count)
                .is_some_and(|name| container.amount(name).is_some());
            for grant in grants {
                let index = capacity::index(grant, writing.node);
                if whole {
                    numbers.push(index);
                    continue;
                }
                of_cores = true;
                let device = writing.node.and_then(|node| node.device(&grant.device));
                let cores = device.map_or(CORES_OF_ONE, |device| device.device().slots);
                let first = index.saturating_mul(cores);
                let lanes = (0..u32::BITS).filter(|lane| grant.cores & (1 << lane) != 0);
                numbers.extend(lanes.map(|lane| first.saturating_add(lane)));
            }
        }
        (numbers, of_cores)
    }
}

impl Family for Devices {
    fn ask(
        &self,
        row: &Row,
        container: &Container,
        pod: &Pod,
        rules: &PodRules,
    ) -> Result<Option<Ask>, RequestError> {
        let Some((count, lanes)) = Self::wanted(row, container)? else {
            return Ok(None);
        };
        let mut ask = Ask::new(&row.word, count, Memory::Bytes(0));
        ask.compute = Compute::Lanes(lanes);
        ask.arrange = Arrange::Row;
        ask.policy = rules.policy.clone();
        ask.weights = rules.weights;
        ask.select = general::select(row, pod);
        Ok(Some(ask))
    }

    fn devices(&self, row: &Row, node: &Node) -> Result<Vec<Device>, Problem> {
        let count = capacity::of(node, row.resource(Role::Count));
        let cores = capacity::of(node, row.resource(Role::Cores));
        let each = cores.checked_div(count).unwrap_or(0).clamp(1, MOST_CORES);
        let each = u32::try_from(each).unwrap_or(1);
        let labels = node.metadata.labels.as_ref();
        // Inferentia's devices form a ring, Trainium's a torus of rows.
        let ring = labels
            .and_then(|labels| labels.get(INSTANCE_TYPE))
            .is_some_and(|kind| kind.to_lowercase().contains("inf"));
        let mut devices = capacity::devices(row, node, "AWSNeuron", count, 0);
        for device in &mut devices {
            device.slots = each;
            device.cores = (1 << each) - 1;
            if ring {
                device.tags.push(Device::RING.to_owned());
            }
        }
        Ok(devices)
    }

    fn annotate(&self, row: &Row, writing: &Writing<'_>, into: &mut BTreeMap<String, String>) {
        general::annotate(row, writing, into);
        let (numbers, of_cores) = Self::numbers(row, writing);
        into.insert(IDS.to_owned(), capacity::joined(numbers.into_iter()));
        capacity::stamp(writing, TIME, into);
        into.insert(ALLOCATED.to_owned(), "false".to_owned());
        into.insert(NODE.to_owned(), writing.placement.node.as_ref().to_owned());
        if of_cores && let Some(cores) = row.resource(Role::Cores) {
            into.insert(KIND.to_owned(), cores.to_owned());
        }
    }

    fn admit(&self, row: &Row, container: &Container, _pod: &Pod) -> Result<Edits, Rejection> {
        let edits = general::admit(row, container)?;
        Self::wanted(row, container)?;
        Ok(edits)
    }
}
