//! The initial state of every run of a comparison: the objects of an export, or a recording's changes with their times.
//! Values in, values out.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kube_api::keys;
use kube_api::request::Defaults;
use kube_api::vendor::Vendors;
use placement::{Ask, Compute, Kind as ContainerKind, Memory, Request, Vendor};
use scheduling::devices::Devices;
use scheduling::snapshot::Snapshot;
use serde_json::{Map, Value};

use super::super::import::Import;
use super::super::kinds::Kind;
use super::super::outside::adapted;
use super::super::recording::{ChangeKind as Recorded, Line};
use super::tally::PodRequest;

/// Objects, and the times at which they appear.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Base {
    /// The name for people: a file's name.
    pub name: String,
    /// The scheduler configuration that came with it.
    pub configuration: Option<Value>,
    /// Whether objects that the cluster refuses are skipped.
    pub(super) lenient: bool,
    /// Whether changes have times. The objects of an export all exist from the start.
    pub(super) recorded: bool,
    pub(super) happenings: Vec<Happening>,
}

/// An object appears, changes or disappears.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Happening {
    /// The time, in milliseconds since the start.
    pub(super) at_ms: u64,
    pub(super) kind: Kind,
    pub(super) object: Value,
    pub(super) gone: bool,
    /// How long a pod runs after it got a node; none for a pod that does not end.
    pub(super) lasts_ms: Option<u64>,
}

impl Happening {
    pub(super) fn is(&self, key: &str) -> bool {
        self.kind.key == key
    }

    pub(super) fn name(&self) -> &str {
        text(&self.object, "/metadata/name")
    }

    /// `namespace/name`.
    pub(super) fn key(&self) -> String {
        let namespace = match text(&self.object, "/metadata/namespace") {
            "" => "default",
            namespace => namespace,
        };
        format!("{namespace}/{}", self.name())
    }

    /// The node of a pod; empty for none.
    pub(super) fn node(&self) -> &str {
        text(&self.object, "/spec/nodeName")
    }
}

pub(super) fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object
        .pointer(path)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn has_ended(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}

impl Base {
    /// The objects and the configuration of an export, without pods that have ended.
    pub fn of_export(name: &str, mut import: Import) -> Self {
        let (configuration, lenient) = (import.configuration.take(), import.lenient);
        let objects = import.into_objects().into_iter();
        let happenings = objects
            .filter(|(kind, object)| kind.key != "pods" || !has_ended(object))
            .map(|(kind, mut object)| {
                if kind.key == "pods" {
                    clean(&mut object);
                }
                Happening {
                    at_ms: 0,
                    kind,
                    object,
                    gone: false,
                    lasts_ms: None,
                }
            })
            .collect();
        Self {
            name: name.to_owned(),
            configuration,
            lenient,
            recorded: false,
            happenings,
        }
    }

    /// The changes of a recording. A pod that got a node and ended in the recording runs for the same time here,
    /// counted from when it gets a node here; its other changes after it got a node are dropped.
    pub fn of_recording(name: &str, lines: Vec<Line>) -> Self {
        let first = lines.iter().map(|line| line.time).min();
        let mut happenings: Vec<Happening> = Vec::new();
        // For each existing pod: its position in the list, and when it got its node in the recording.
        let mut there: HashMap<String, (usize, Option<u64>)> = HashMap::new();
        for line in lines {
            let since = first.map_or(0, |first| line.time.duration_since(first).as_millis());
            let mut happening = Happening {
                at_ms: u64::try_from(since).unwrap_or_default(),
                kind: line.kind,
                gone: line.happening == Recorded::Delete,
                lasts_ms: None,
                object: adapted(&line.kind, line.object),
            };
            if !happening.is("pods") {
                happenings.push(happening);
                continue;
            }
            let key = happening.key();
            let at_ms = happening.at_ms;
            let over = happening.gone || has_ended(&happening.object);
            let runs = !happening.node().is_empty();
            let known = there.get(&key).copied();
            match known {
                Some((came, Some(bound_ms))) => {
                    if over {
                        there.remove(&key);
                        if let Some(came) = happenings.get_mut(came) {
                            came.lasts_ms = Some(at_ms.saturating_sub(bound_ms));
                        }
                    }
                }
                Some((came, None)) if runs && !happening.gone => {
                    if over {
                        there.remove(&key);
                        if let Some(came) = happenings.get_mut(came) {
                            came.lasts_ms = Some(0);
                        }
                    } else {
                        there.insert(key, (came, Some(at_ms)));
                    }
                }
                Some(_) if over => {
                    there.remove(&key);
                    happening.gone = true;
                    happenings.push(happening);
                }
                Some(_) => {
                    clean(&mut happening.object);
                    happenings.push(happening);
                }
                None if over => {}
                None => {
                    clean(&mut happening.object);
                    there.insert(key, (happenings.len(), runs.then_some(at_ms)));
                    happenings.push(happening);
                }
            }
        }
        // The clocks of several writers may differ slightly.
        happenings.sort_by_key(|happening| happening.at_ms);
        Self {
            name: name.to_owned(),
            configuration: None,
            lenient: true,
            recorded: true,
            happenings,
        }
    }

    /// All nodes that exist at any time, by name, as they first appeared.
    pub(super) fn nodes(&self) -> BTreeMap<&str, &Value> {
        let mut nodes = BTreeMap::new();
        for happening in &self.happenings {
            if happening.is("nodes") && !happening.gone {
                nodes.entry(happening.name()).or_insert(&happening.object);
            }
        }
        nodes
    }

    /// The number of pods.
    pub(super) fn pods(&self) -> usize {
        let comes = |happening: &&Happening| happening.is("pods") && !happening.gone;
        self.happenings.iter().filter(comes).count()
    }

    /// The time of the last change.
    pub(super) fn end_ms(&self) -> u64 {
        self.happenings.last().map_or(0, |last| last.at_ms)
    }
}

/// Removes the fields that a scheduler and a simulator wrote to a pending pod.
fn clean(pod: &mut Value) {
    let waits = text(pod, "/spec/nodeName").is_empty();
    if let (Some(fields), true) = (pod.as_object_mut(), waits) {
        fields.remove("status");
    }
    if let Some(annotations) = fields_mut(pod, "/metadata/annotations") {
        annotations.retain(|key, _| {
            !key.starts_with(keys::SIMULATOR_RESULTS)
                && !key.starts_with(keys::OLD_SIMULATOR_RESULTS)
        });
    }
}

pub(super) fn fields_mut<'a>(
    object: &'a mut Value,
    path: &str,
) -> Option<&'a mut Map<String, Value>> {
    object.pointer_mut(path)?.as_object_mut()
}

/// The requests of all pods, computed once for all runs.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    /// By `namespace/name`.
    pub(super) asked: BTreeMap<String, PodRequest>,
    /// The share of a GPU that pods typically ask for.
    pub(super) typical: Option<Typical>,
    /// The names of the schedulers of all pods.
    pub(super) schedulers: std::collections::BTreeSet<Arc<str>>,
    /// Whether nodes have GPUs that can be shared.
    pub(super) has_devices: bool,
}

/// The typical share of a GPU, a median: half of all requested memory is requested in shares of at most this size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Typical {
    /// The GPUs' vendor: the one that is requested most.
    pub vendor: Vendor,
    /// Memory of a GPU.
    pub memory_bytes: u64,
    /// Compute of a GPU, in its own unit.
    pub cores: u32,
}

impl Facts {
    pub(super) fn of(base: &Base, vendors: &Arc<Vendors>) -> Self {
        let devices = Devices::new(Arc::clone(vendors), Defaults::default());
        let mut reader = Snapshot::with_devices(devices);
        let mut facts = Self::default();
        let mut sizes: BTreeMap<Vendor, Vec<(u64, u32)>> = BTreeMap::new();
        for node in base.nodes().into_values() {
            let node = reader.read_node(node).ok();
            let devices = node.and_then(|node| node.devices);
            for device in devices.iter().flat_map(|node| &node.devices) {
                facts.has_devices = true;
                let of = sizes.entry(device.vendor.clone()).or_default();
                of.push((device.memory_bytes, device.cores));
            }
        }
        let sizes: BTreeMap<Vendor, (u64, u32)> = sizes
            .into_iter()
            .filter_map(|(vendor, of)| Some((vendor, most_common(of)?)))
            .collect();
        let mut shares: BTreeMap<Vendor, Vec<(u64, u32)>> = BTreeMap::new();
        for happening in &base.happenings {
            if !happening.is("pods") || happening.gone {
                continue;
            }
            let Ok(pod) = reader.read_pod(&happening.object) else {
                continue;
            };
            facts.schedulers.insert(Arc::clone(&pod.scheduler));
            let mut asked = PodRequest {
                cpu_milli: amount(pod.requests.cpu_milli),
                memory_bytes: amount(pod.requests.memory_bytes),
                ..PodRequest::default()
            };
            if let Some(Ok(request)) = pod.devices.as_deref() {
                for (vendor, memory_bytes, cores) in shares_of(request, &sizes) {
                    asked.gpu_memory_bytes = asked.gpu_memory_bytes.saturating_add(memory_bytes);
                    asked.gpu_cores = asked.gpu_cores.saturating_add(u64::from(cores));
                    shares
                        .entry(vendor)
                        .or_default()
                        .push((memory_bytes, cores));
                }
            }
            facts.asked.entry(happening.key()).or_insert(asked);
        }
        // Among vendors that are requested equally often, the first by name.
        let most = shares
            .into_iter()
            .rev()
            .max_by_key(|(_, shares)| shares.len());
        facts.typical = most.and_then(|(vendor, shares)| {
            let (memory_bytes, cores) = middle(shares)?;
            Some(Typical {
                vendor,
                memory_bytes,
                cores,
            })
        });
        facts
    }
}

fn amount(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

/// The most frequent value; of several the smallest.
fn most_common<T: Ord + Copy>(mut values: Vec<T>) -> Option<T> {
    values.sort_unstable();
    let runs = values.chunk_by(|a, b| a == b).rev();
    runs.max_by_key(|run| run.len())?.first().copied()
}

/// The share at which half of the memory is reached when shares are sorted by size; `None` if no share has memory.
fn middle(mut shares: Vec<(u64, u32)>) -> Option<(u64, u32)> {
    shares.sort_unstable();
    let all: u128 = shares.iter().map(|(memory, _)| u128::from(*memory)).sum();
    let mut reached = 0;
    shares.into_iter().find(|(memory, _)| {
        reached += u128::from(*memory);
        *memory > 0 && reached * 2 >= all
    })
}

/// The GPUs that a pod asks for, one entry each, as its containers hold them at the same time. Init containers count
/// only if no other container asks for any.
fn shares_of(request: &Request, sizes: &BTreeMap<Vendor, (u64, u32)>) -> Vec<(Vendor, u64, u32)> {
    let of = |init: bool| {
        let containers = request.containers.iter();
        containers
            .filter(move |container| (container.kind == ContainerKind::Init) == init)
            .flat_map(|container| &container.asks)
            .flat_map(|ask| share(ask, sizes))
            .collect::<Vec<_>>()
    };
    let together = of(false);
    if together.is_empty() {
        of(true)
    } else {
        together
    }
}

fn share(ask: &Ask, sizes: &BTreeMap<Vendor, (u64, u32)>) -> Vec<(Vendor, u64, u32)> {
    let (device_bytes, device_cores) = sizes.get(&ask.vendor).copied().unwrap_or_default();
    let memory = match ask.memory {
        Memory::Bytes(bytes) => bytes,
        Memory::Percent(percent) => device_bytes / 100 * u64::from(percent.min(100)),
    };
    let cores = match ask.compute {
        Compute::Units(units) => units,
        Compute::Percent(percent) => device_cores.saturating_mul(percent.min(100)) / 100,
        Compute::Lanes(_) | Compute::Unchecked | Compute::Gflops { .. } => 0,
    };
    // A node has at most 1024 GPUs; a pod that asks for more fits nowhere.
    vec![(ask.vendor.clone(), memory, cores); ask.count.min(1024) as usize]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::recording;
    use super::*;

    fn recorded(lines: &[(u32, &str, Value)]) -> Base {
        let text: Vec<String> = lines
            .iter()
            .map(|(second, event, resource)| {
                let time = format!("2026-01-01T00:00:{second:02}Z");
                json!({ "time": time, "event": event, "resource": resource }).to_string()
            })
            .collect();
        Base::of_recording("r", recording::read(&text.join("\n")).unwrap())
    }

    fn pod(node: &str, phase: &str) -> Value {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "p", "namespace": "a" },
            "spec": { "containers": [] }, "status": { "phase": phase },
        });
        if !node.is_empty() {
            pod["spec"]["nodeName"] = node.into();
        }
        pod
    }

    #[test]
    fn a_pod_runs_as_long_as_it_ran_in_the_recording() {
        let base = recorded(&[
            (0, "Add", pod("", "Pending")),
            (5, "Update", pod("n1", "Pending")),
            (6, "Update", pod("n1", "Running")),
            (35, "Update", pod("n1", "Succeeded")),
            (40, "Delete", pod("n1", "Succeeded")),
        ]);

        assert_eq!(base.happenings.len(), 1);
        assert_eq!(base.happenings[0].lasts_ms, Some(30_000));
        assert!(base.happenings[0].node().is_empty());
    }

    #[test]
    fn a_pod_that_never_got_a_node_goes_when_it_went() {
        let base = recorded(&[
            (0, "Add", pod("", "Pending")),
            (9, "Delete", pod("", "")),
            (20, "Add", pod("n1", "Running")),
        ]);

        let seen: Vec<_> = base
            .happenings
            .iter()
            .map(|of| (of.at_ms, of.gone, of.node().to_owned()))
            .collect();
        assert_eq!(
            seen,
            [
                (0, false, String::new()),
                (9_000, true, String::new()),
                (20_000, false, "n1".to_owned())
            ]
        );
    }

    #[test]
    fn the_typical_share_is_in_the_middle_of_the_memory() {
        // Eight small shares ask for less than two large ones.
        let mut shares = vec![(10, 1); 8];
        shares.extend([(40, 7), (80, 9)]);

        assert_eq!(middle(shares), Some((40, 7)));
        assert_eq!(middle(vec![(10, 1), (10, 2)]), Some((10, 1)));
        assert_eq!(middle(vec![(0, 5)]), None);
        assert_eq!(middle(vec![]), None);
        assert_eq!(most_common(vec![5, 1, 5, 1, 9]), Some(1));
        assert_eq!(most_common(vec![5, 1, 5]), Some(5));
    }

    #[test]
    fn ended_pods_and_old_results_are_left_out() {
        let mut waits = pod("", "Pending");
        waits["metadata"]["annotations"] = json!({
            "a": "b", "kube-scheduler-simulator.sigs.k8s.io/filter-result": "{}",
        });
        let import =
            Import::read(json!({ "pods": [waits, pod("n", "Failed"), pod("n", "Running")] }));

        let base = Base::of_export("e", import.unwrap());

        assert_eq!(base.pods(), 2);
        let first = &base.happenings[0].object;
        assert_eq!(first["metadata"]["annotations"], json!({ "a": "b" }));
        assert!(first.get("status").is_none());
        assert_eq!(base.happenings[1].object["status"]["phase"], "Running");
    }
}
