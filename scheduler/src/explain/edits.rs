//! Turns the placement engine's advice into edits that a person can make: resources, annotations, quotas. Advice that
//! cannot be expressed in the objects' own terms, or after which the pod would not fit, is left out.

use kube_api::keys;
use kube_api::object::{Container, Pod};
use kube_api::quantity::Quantity;
use kube_api::vendor::{Role, Row};
use placement::{Advice, Among, Change, Memory, Request, Rule, Vendor};

use super::View;
use super::answer::{Advised, Changed, Edit};
use crate::ledger::CLAIM_UID;

const MIB: u64 = 1 << 20;

/// The pod's object, and the request that the placement engine was given.
pub(super) struct Subject<'a> {
    pub(super) view: &'a View,
    pub(super) pod: &'a Pod,
    pub(super) request: &'a Request,
}

/// The change without the placeholders that stand for claims (reservations by label), since a claim ends with its
/// pod. `None` if no pod remains.
fn without_claims(change: &Change) -> Option<Change> {
    let Change::PodsLeave { pods } = change else {
        return Some(change.clone());
    };
    let pods: Vec<_> = pods
        .iter()
        .filter(|pod| !pod.uid.starts_with(CLAIM_UID))
        .cloned()
        .collect();
    (!pods.is_empty()).then_some(Change::PodsLeave { pods })
}

impl Subject<'_> {
    /// The advice with its edits; `None` if there are no such edits, or they would not be enough.
    pub(super) fn advised(&self, advice: &Advice) -> Option<Advised> {
        let mut pod = self.pod.clone();
        let mut changes: Vec<Changed> = Vec::new();
        for change in &advice.changes {
            let change = &without_claims(change)?;
            let edits = self.edits(&pod, change, &advice.node)?;
            for edit in &edits {
                apply(edit, &mut pod);
            }
            // An annotation applies to all containers, so it is written once although the engine gives advice for each.
            let written = edits.is_empty() && !matches!(change, Change::Recover { .. });
            if !written {
                changes.push(Changed {
                    text: self.text(change),
                    edits,
                });
            }
        }
        if changes.is_empty() {
            return None;
        }
        if pod != *self.pod && !self.is_enough(advice, &pod) {
            return self.less_memory_by_trial(advice);
        }
        Some(Self::sentence(advice, changes))
    }

    fn sentence(advice: &Advice, changes: Vec<Changed>) -> Advised {
        let texts: Vec<&str> = changes.iter().map(|change| change.text.as_str()).collect();
        Advised {
            node: advice.node.to_string(),
            text: texts.join(", and "),
            changes,
        }
    }

    /// Whether the edited pod reads back as the advised request, or fits as it reads.
    fn is_enough(&self, advice: &Advice, pod: &Pod) -> bool {
        let Some(read) = self.read(pod) else {
            return false;
        };
        if read == advice.applied_to(self.request) {
            return true;
        }
        let of_pod_only = !advice.changes.iter().any(|change| {
            matches!(
                change,
                Change::PodsLeave { .. }
                    | Change::Uncordon { .. }
                    | Change::Recover { .. }
                    | Change::MoreQuota { .. }
            )
        });
        of_pod_only && self.view.cluster.place_on(&read, &advice.node).is_ok()
    }

    fn read(&self, pod: &Pod) -> Option<Request> {
        let read = kube_api::request::request(pod, &self.view.vendors, &self.view.defaults);
        let mut read = read.ok()?;
        read.pod = self.request.pod.clone();
        Some(read)
    }

    /// For vendors that round requests (templates, units): the largest amount that can be written and fits.
    fn less_memory_by_trial(&self, advice: &Advice) -> Option<Advised> {
        let [
            change @ Change::LessMemory {
                container, vendor, ..
            },
        ] = advice.changes.as_slice()
        else {
            return None;
        };
        let (mut low, mut high) = (0_u64, self.units(*container, vendor)?);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.fits_with(*container, vendor, middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        if low == 0 || !self.fits_with(*container, vendor, low) {
            return None;
        }
        let (spec, row) = (self.spec(self.pod, *container)?, self.row(vendor)?);
        let edit = set(spec, row.resource(Role::Memory)?, low.to_string());
        let changes = vec![Changed {
            text: self.text(change),
            edits: vec![edit],
        }];
        Some(Self::sentence(advice, changes))
    }

    /// The value of the container's memory resource, in its own units.
    fn units(&self, container: usize, vendor: &Vendor) -> Option<u64> {
        let ask = self
            .request
            .containers
            .get(container)?
            .asks
            .iter()
            .find(|ask| ask.vendor == *vendor)?;
        match ask.memory {
            Memory::Bytes(bytes) => {
                Some(bytes / (self.row(vendor)?.memory_unit_mib.max(1) * MIB) + 1)
            }
            Memory::Percent(_) => None,
        }
    }

    fn fits_with(&self, container: usize, vendor: &Vendor, units: u64) -> bool {
        let edited = || {
            let resource = self.row(vendor)?.resource(Role::Memory)?;
            let edit = set(self.spec(self.pod, container)?, resource, units.to_string());
            let mut pod = self.pod.clone();
            apply(&edit, &mut pod);
            self.read(&pod)
        };
        edited().is_some_and(|request| self.view.cluster.place(&request, Among::All).is_ok())
    }

    fn row(&self, vendor: &Vendor) -> Option<&Row> {
        self.view.vendors.get(vendor.as_str())
    }

    /// The container at this position of the request.
    fn spec<'p>(&self, pod: &'p Pod, container: usize) -> Option<&'p Container> {
        let name = &self.request.containers.get(container)?.name;
        let mut all = pod.spec.init_containers.iter().chain(&pod.spec.containers);
        all.find(|spec| spec.name == *name)
    }

    fn name(&self, container: usize) -> &str {
        self.request
            .containers
            .get(container)
            .map_or("", |container| &container.name)
    }

    /// The edits for a change. None: the change cannot be written. Empty: there is nothing to write.
    fn edits(&self, pod: &Pod, change: &Change, node: &str) -> Option<Vec<Edit>> {
        let edits = match change {
            Change::LessMemory {
                container,
                vendor,
                to,
                ..
            } => {
                let (spec, row) = (self.spec(pod, *container)?, self.row(vendor)?);
                let (role, to) = match to {
                    Memory::Bytes(bytes) => {
                        (Role::Memory, bytes / (row.memory_unit_mib.max(1) * MIB))
                    }
                    Memory::Percent(percent) => (Role::MemoryPercent, u64::from(*percent)),
                };
                // 0 would mean the whole device.
                if to == 0 {
                    return None;
                }
                vec![set(spec, row.resource(role)?, to.to_string())]
            }
            Change::LessCores {
                container,
                vendor,
                to,
                ..
            } => {
                let resource = self.row(vendor)?.resource(Role::Cores)?;
                vec![set(self.spec(pod, *container)?, resource, to.to_string())]
            }
            Change::FewerDevices {
                container,
                vendor,
                to,
                ..
            } => {
                let resource = self.row(vendor)?.resource(Role::Count)?;
                vec![set(self.spec(pod, *container)?, resource, to.to_string())]
            }
            Change::AllowModel { vendor, model, .. } => allow_model(pod, self.row(vendor)?, model),
            Change::DropRule { vendor, rule, .. } => drop_rule(pod, self.row(vendor)?, rule),
            Change::PodsLeave { pods } => vec![Edit::DeletePods {
                pods: pods
                    .iter()
                    .map(|pod| format!("{}/{}", pod.namespace, pod.name))
                    .collect(),
            }],
            Change::Uncordon { devices } => {
                let object = self.view.nodes.get(node)?;
                let cordoned = object.metadata.annotations.as_ref()?.get(keys::CORDON)?;
                let left: Vec<&str> = list(cordoned)
                    .filter(|id| !devices.iter().any(|device| **device == **id))
                    .collect();
                vec![Edit::SetNodeAnnotation {
                    node: node.to_owned(),
                    key: keys::CORDON.to_owned(),
                    to: left.join(","),
                }]
            }
            Change::Recover { .. } => Vec::new(),
            Change::MoreQuota {
                vendor,
                memory_bytes,
                cores,
                devices,
            } => self.quotas(
                vendor,
                [*memory_bytes, u64::from(*cores), u64::from(*devices)],
            )?,
        };
        Some(edits)
    }

    /// The edit of each quota of the namespace that allows too little. `more` is memory in bytes, compute, shares.
    fn quotas(&self, vendor: &Vendor, more: [u64; 3]) -> Option<Vec<Edit>> {
        let row = self.row(vendor)?;
        let pod = &self.request.pod;
        let namespace = &pod.namespace;
        let (limit, used) = self.view.cluster.quota(pod, vendor)?;
        let unit = row.memory_unit_mib.max(1) * MIB;
        let lines = [
            (Role::Memory, limit.memory_bytes, used.memory_bytes, unit),
            (
                Role::Cores,
                limit.cores.map(u64::from),
                used.cores.into(),
                1,
            ),
            (
                Role::Count,
                limit.devices.map(u64::from),
                used.slots.into(),
                1,
            ),
        ];
        let mut edits = Vec::new();
        for ((role, narrowest, used, unit), more) in lines.into_iter().zip(more) {
            let (Some(narrowest), Some(resource)) = (narrowest, row.resource(role)) else {
                continue;
            };
            if more == 0 {
                continue;
            }
            let key = format!("limits.{resource}");
            for quota in &self.view.quotas {
                let meta = &quota.metadata;
                if meta.namespace.as_deref().unwrap_or_default() != namespace {
                    continue;
                }
                let Some(from) = quota.spec.hard.get(&key) else {
                    continue;
                };
                let name = meta.name.as_deref().unwrap_or_default();
                let Some((of_this, its_use)) = self.view.cluster.quota_named(pod, name, vendor)
                else {
                    continue;
                };
                let (allows, its_use) = match role {
                    Role::Memory => (of_this.memory_bytes, its_use.memory_bytes),
                    Role::Cores => (of_this.cores.map(u64::from), its_use.cores.into()),
                    _ => (of_this.devices.map(u64::from), its_use.slots.into()),
                };
                // Of quotas that count different pods, each has a use of its own.
                let needed = narrowest
                    .saturating_add(more)
                    .saturating_sub(used.saturating_sub(its_use));
                if allows.is_some_and(|allows| allows < needed) {
                    edits.push(Edit::SetQuota {
                        namespace: namespace.clone(),
                        quota: meta.name.clone().unwrap_or_default(),
                        key: key.clone(),
                        from: from.to_string(),
                        to: needed.div_ceil(unit).to_string(),
                    });
                }
            }
        }
        Some(edits)
    }

    fn text(&self, change: &Change) -> String {
        match change {
            Change::LessMemory {
                container,
                from: Memory::Bytes(from),
                to: Memory::Bytes(to),
                ..
            } => format!(
                "container {} asks for {} MiB instead of {} ({} less)",
                self.name(*container),
                to / MIB,
                from.div_ceil(MIB),
                from.saturating_sub(*to).div_ceil(MIB)
            ),
            Change::LessMemory { container, to, .. } => {
                let percent = match to {
                    Memory::Percent(percent) => u64::from(*percent),
                    Memory::Bytes(bytes) => bytes / MIB,
                };
                format!(
                    "container {} asks for {percent} % of each device's memory",
                    self.name(*container)
                )
            }
            Change::LessCores {
                container,
                from,
                to,
                ..
            } => format!(
                "container {} asks for {to} instead of {from} cores",
                self.name(*container)
            ),
            Change::FewerDevices {
                container,
                vendor,
                from,
                to,
            } => format!(
                "container {} asks for {to} instead of {from} {vendor}",
                self.name(*container)
            ),
            Change::AllowModel { model, .. } => format!("the type rules allow {model}"),
            Change::DropRule { rule, .. } => format!("the pod does without {rule}"),
            Change::MoreQuota {
                vendor,
                memory_bytes,
                cores,
                devices,
            } => {
                let mut parts = Vec::new();
                if *memory_bytes > 0 {
                    parts.push(format!("{} MiB", memory_bytes.div_ceil(MIB)));
                }
                if *cores > 0 {
                    parts.push(format!("{cores} cores"));
                }
                if *devices > 0 {
                    parts.push(format!("{devices} devices"));
                }
                format!(
                    "namespace {} may take {} of {vendor} more",
                    self.request.pod.namespace,
                    parts.join(" and ")
                )
            }
            cluster => cluster.to_string(),
        }
    }
}

/// The advice to open a node on which the pod would fit.
pub(super) fn opened(node: &str) -> Advised {
    Advised {
        node: node.to_owned(),
        text: format!("node {node} is opened for new pods again"),
        changes: vec![Changed {
            text: format!("node {node} is opened for new pods again"),
            edits: vec![Edit::OpenNode {
                node: node.to_owned(),
            }],
        }],
    }
}

fn set(container: &Container, resource: &str, to: String) -> Edit {
    Edit::SetResource {
        container: container.name.clone(),
        resource: resource.to_owned(),
        from: container.amount(resource).map(ToString::to_string),
        to,
    }
}

/// The non-empty parts of a list.
fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
}

fn annotation<'p>(pod: &'p Pod, key: &str) -> Option<&'p str> {
    let annotations = pod.metadata.annotations.as_ref()?;
    annotations.get(key).map(String::as_str)
}

fn allow_model(pod: &Pod, row: &Row, model: &str) -> Vec<Edit> {
    let mut edits = Vec::new();
    for key in &row.keys.use_types {
        if let Some(text) = annotation(pod, key)
            && list(text).next().is_some()
        {
            let lower = model.to_lowercase();
            if list(text).any(|wanted| lower.contains(&wanted.to_lowercase())) {
                continue;
            }
            edits.push(Edit::SetAnnotation {
                key: key.clone(),
                to: format!("{text},{model}"),
            });
        }
    }
    for key in &row.keys.nouse_types {
        if let Some(text) = annotation(pod, key) {
            let lower = model.to_lowercase();
            let left: Vec<&str> = list(text)
                .filter(|unwanted| !lower.contains(&unwanted.to_lowercase()))
                .collect();
            if left.len() < list(text).count() {
                edits.push(set_or_remove(key, &left.join(",")));
            }
        }
    }
    edits
}

fn set_or_remove(key: &str, to: &str) -> Edit {
    if to.is_empty() {
        Edit::RemoveAnnotation {
            key: key.to_owned(),
        }
    } else {
        Edit::SetAnnotation {
            key: key.to_owned(),
            to: to.to_owned(),
        }
    }
}

fn drop_rule(pod: &Pod, row: &Row, rule: &Rule) -> Vec<Edit> {
    let remove = |key: &str| {
        annotation(pod, key).map(|_| Edit::RemoveAnnotation {
            key: key.to_owned(),
        })
    };
    match rule {
        Rule::Ids => row
            .keys
            .use_ids
            .iter()
            .chain(&row.keys.nouse_ids)
            .filter_map(|key| remove(key))
            .collect(),
        Rule::Mode => remove(keys::VGPU_MODE).into_iter().collect(),
        Rule::NumaBind => remove(keys::NUMA_BIND).into_iter().collect(),
        // Set by the pod's annotation, or by the scheduler's flag.
        Rule::Unused => vec![Edit::SetAnnotation {
            key: keys::DEVICE_POLICY.to_owned(),
            to: "spread".to_owned(),
        }],
        _ => Vec::new(),
    }
}

/// Applies an edit of the pod; other edits change nothing here.
fn apply(edit: &Edit, pod: &mut Pod) {
    match edit {
        Edit::SetResource {
            container,
            resource,
            to,
            ..
        } => {
            let spec = &mut pod.spec;
            let mut all = spec.init_containers.iter_mut().chain(&mut spec.containers);
            if let Some(spec) = all.find(|spec| spec.name == *container) {
                let to = Quantity(to.clone());
                if let Some(request) = spec.resources.requests.get_mut(resource) {
                    request.clone_from(&to);
                }
                spec.resources.limits.insert(resource.clone(), to);
            }
        }
        Edit::SetAnnotation { key, to } => {
            let annotations = pod.metadata.annotations.get_or_insert_default();
            annotations.insert(key.clone(), to.clone());
        }
        Edit::RemoveAnnotation { key } => {
            if let Some(annotations) = &mut pod.metadata.annotations {
                annotations.remove(key);
            }
        }
        Edit::DeletePods { .. }
        | Edit::SetNodeAnnotation { .. }
        | Edit::OpenNode { .. }
        | Edit::SetQuota { .. } => {}
    }
}
