//! Nodes: what they register, what their kubelets offer, and whether their agents live. Facts in, verdicts out.

use kube_api::config::NodeOverrides;
use kube_api::keys;
use kube_api::lock;
use kube_api::node::{Report, report};
use kube_api::resource_claims::gpus_of;
use kube_api::vendor::Role;
use serde_json::Value;

use super::ClusterFacts;
use super::control::{is_nvidias_plugin, unready};
use super::objects::{
    amount, annotation, flag, full_name, is_agent, is_part, is_ready, items, label, name, number,
    text, unix,
};
use crate::doctor::check::{Finding, Judged, fail, ok, several, skip, warn};

/// A node may be that far ahead of the server before it is said, seconds.
const LITTLE_SKEW: u64 = 10;
/// After this many of its durations without renewal, an agent's Lease counts as abandoned.
const PATIENCE: u64 = 2;

impl ClusterFacts {
    /// Labels of nodes that the agent goes to.
    fn selector(&self) -> Result<Vec<(String, String)>, Finding> {
        self.read(&["daemonsets"])?;
        let agent = self.daemonsets.iter().find(|set| is_part(set, "agent"));
        let agent = agent.ok_or_else(|| skip("there is no DaemonSet of the agent (VGPU-K02)"))?;
        let selected = agent
            .pointer("/spec/template/spec/nodeSelector")
            .and_then(Value::as_object);
        Ok(selected
            .into_iter()
            .flatten()
            .filter(|(key, _)| *key != "kubernetes.io/os")
            .map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
            .collect())
    }

    /// Nodes on which the agent runs and is ready.
    fn with_agent(&self) -> Result<Vec<&Value>, Finding> {
        self.read(&["nodes", "pods"])?;
        let ready: Vec<&str> = self
            .pods_of("agent")
            .into_iter()
            .filter(|pod| is_ready(pod))
            .map(|pod| text(pod, "/spec/nodeName"))
            .collect();
        let found: Vec<&Value> = self
            .nodes
            .iter()
            .filter(|node| ready.contains(&name(node)))
            .collect();
        if found.is_empty() {
            return Err(skip("no agent is ready (VGPU-K02, VGPU-K04)"));
        }
        Ok(found)
    }

    /// Nodes whose agent says that it sees no driver.
    fn without_driver(&self) -> Vec<&str> {
        let blind = self
            .metrics
            .iter()
            .filter(|answer| answer.driver_up == Some(false));
        blind
            .filter_map(|answer| self.pods.iter().find(|pod| full_name(pod) == answer.pod))
            .map(|pod| text(pod, "/spec/nodeName"))
            .collect()
    }

    /// Nodes with what they report; those that report no GPU are left out.
    fn reports(&self) -> Result<Vec<Report>, Finding> {
        self.read(&["nodes"])?;
        let vendors = self.vendors();
        let found: Vec<Report> = self
            .typed_nodes()
            .iter()
            .map(|node| report(node, &vendors))
            .filter(|report| !report.node.devices.is_empty())
            .collect();
        if found.is_empty() {
            return Err(skip("no node reports a GPU (VGPU-K03, VGPU-K05, VGPU-K06)"));
        }
        Ok(found)
    }
}

/// The sign by which a node has NVIDIA GPUs, in words.
fn sign(node: &Value, resource: &str) -> Option<String> {
    let capacity = node
        .pointer("/status/capacity")
        .and_then(|all| all.get(resource));
    if amount(capacity) > 0 {
        return Some(format!("its capacity has {resource}"));
    }
    for key in [
        "nvidia.com/gpu.present",
        "feature.node.kubernetes.io/pci-10de.present",
    ] {
        if label(node, key) == "true" {
            return Some(format!("its label {key}"));
        }
    }
    let register = "hami.io/node-nvidia-register";
    (!annotation(node, register).is_empty()).then(|| format!("its annotation {register}"))
}

pub(super) fn labelled(facts: &ClusterFacts) -> Judged {
    let selector = facts.selector()?;
    facts.read(&["nodes"])?;
    let shown: Vec<String> = selector
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let shown = shown.join(",");
    let has = |node: &&Value| {
        selector
            .iter()
            .all(|(key, value)| label(node, key) == value)
    };
    let resource = facts.resource();
    let without: Vec<String> = facts
        .nodes
        .iter()
        .filter(|node| !has(node))
        .filter_map(|node| Some(format!("{} ({})", name(node), sign(node, &resource)?)))
        .collect();
    if !without.is_empty() {
        return Err(fail(format!("without {shown}: {}", several(&without))));
    }
    match facts.nodes.iter().filter(has).count() {
        0 => Ok(fail(format!(
            "none of {} nodes has {shown}",
            facts.nodes.len()
        ))),
        count => Ok(ok(format!("{count} nodes have {shown}"))),
    }
}

pub(super) fn agents_ready(facts: &ClusterFacts) -> Judged {
    let pods = facts.agents()?;
    let mut wrong = unready(&pods);
    for set in facts.daemonsets.iter().filter(|set| is_agent(set)) {
        let wanted = number(set, "/status/desiredNumberScheduled");
        let made = number(set, "/status/currentNumberScheduled");
        if made < wanted {
            wrong.push(format!(
                "DaemonSet {}: {made} of {wanted} pods are there",
                full_name(set)
            ));
        }
    }
    if wrong.is_empty() {
        return Ok(ok(format!("{} pods are ready", pods.len())));
    }
    Ok(fail(several(&wrong)))
}

pub(super) fn allocatable(facts: &ClusterFacts) -> Judged {
    let nodes = facts.with_agent()?;
    let resource = facts.resource();
    let of = |node: &Value| {
        amount(
            node.pointer("/status/allocatable")
                .and_then(|all| all.get(&resource)),
        )
    };
    // Without a driver there is nothing to offer: that is another check's.
    let blind = facts.without_driver();
    if nodes.iter().all(|node| blind.contains(&name(node))) {
        return Err(skip("no agent sees a driver (VGPU-K46)"));
    }
    let wrong: Vec<&str> = nodes
        .iter()
        .filter(|node| of(node) == 0 && !blind.contains(&name(node)))
        .map(|node| name(node))
        .collect();
    if wrong.is_empty() {
        let all: u64 = nodes.iter().map(|node| of(node)).sum();
        return Ok(ok(format!("{all} of {resource} on {} nodes", nodes.len())));
    }
    Ok(fail(format!(
        "no {resource} is allocatable on {}",
        several(&wrong)
    )))
}

pub(super) fn registered(facts: &ClusterFacts) -> Judged {
    facts.read(&["nodes"])?;
    let vendors = facts.vendors();
    let mut wrong: Vec<String> = Vec::new();
    for node in facts.typed_nodes() {
        let read = report(&node, &vendors);
        wrong.extend(
            read.problems
                .iter()
                .map(|problem| format!("{}: {problem}", read.node.name)),
        );
    }
    let resource = facts.resource();
    let row = vendors.of_resource(&resource).map(|(row, _)| row);
    if let (Some(key), Ok(nodes)) = (
        row.and_then(|row| row.keys.register.as_deref()),
        facts.with_agent(),
    ) {
        let offers = |node: &Value| {
            amount(
                node.pointer("/status/allocatable")
                    .and_then(|all| all.get(&resource)),
            ) > 0
        };
        let silent = nodes
            .iter()
            .filter(|node| annotation(node, key).is_empty() && offers(node));
        wrong.extend(silent.map(|node| format!("{}: there is no annotation {key}", name(node))));
    }
    if wrong.is_empty() {
        return Ok(ok(format!("{} nodes", facts.nodes.len())));
    }
    Ok(fail(several(&wrong)))
}

pub(super) fn offered_once(facts: &ClusterFacts) -> Judged {
    let reports = facts.reports()?;
    facts.read(&["resourceslices"])?;
    let mut twice = Vec::new();
    for slice in &facts.slices {
        for ((driver, _, device), gpus) in gpus_of(slice) {
            for report in &reports {
                let ours = report.node.devices.iter();
                let ours = ours.filter(|ours| gpus.contains(&ours.id));
                twice.extend(ours.map(|ours| {
                    format!(
                        "{}: GPU {} is {device} of {driver}, too",
                        report.node.name, ours.id
                    )
                }));
            }
        }
    }
    if twice.is_empty() {
        return Ok(ok(format!("{} ResourceSlices", facts.slices.len())));
    }
    Ok(warn(several(&twice)))
}

pub(super) fn same_count(facts: &ClusterFacts) -> Judged {
    let reports = facts.reports()?;
    let resource = facts.resource();
    let mut wrong = Vec::new();
    for report in &reports {
        let node = facts
            .nodes
            .iter()
            .find(|node| name(node) == report.node.name);
        let offered =
            amount(node.and_then(|node| node.pointer("/status/allocatable")?.get(&resource)));
        let gpus = report
            .node
            .devices
            .iter()
            .filter(|device| device.vendor.as_str() == "NVIDIA");
        let (mut all, mut well, mut count) = (0, 0, 0_u64);
        for gpu in gpus {
            let slots = u64::from(gpu.slots);
            all += slots;
            count += 1;
            well += if gpu.healthy { slots } else { 0 };
        }
        if count == 0 || (well..=all).contains(&offered) {
            continue;
        }
        let hint = if offered == count {
            "; as many as GPUs, as NVIDIA's own plugin counts"
        } else {
            ""
        };
        wrong.push(format!(
            "{}: the kubelet offers {offered} of {resource}, the agent registers {all}{hint}",
            report.node.name
        ));
    }
    if wrong.is_empty() {
        return Ok(ok(format!("{} nodes", reports.len())));
    }
    Ok(fail(several(&wrong)))
}

pub(super) fn one_plugin(facts: &ClusterFacts) -> Judged {
    facts.read(&["pods"])?;
    let ours: Vec<&str> = facts
        .pods_of("agent")
        .into_iter()
        .map(|pod| text(pod, "/spec/nodeName"))
        .collect();
    let found = facts.pods.iter().filter(|pod| is_nvidias_plugin(pod));
    let wrong: Vec<String> = found
        .filter(|pod| ours.contains(&text(pod, "/spec/nodeName")))
        .map(|pod| format!("{} on {}", full_name(pod), text(pod, "/spec/nodeName")))
        .collect();
    if wrong.is_empty() {
        return Ok(ok(
            "no pod of NVIDIA's device plugin is on a node with our agent",
        ));
    }
    Ok(fail(several(&wrong)))
}

pub(super) fn leases(facts: &ClusterFacts) -> Judged {
    let nodes = facts.with_agent()?;
    facts.read(&["leases"])?;
    let now = facts.now();
    let mut wrong = Vec::new();
    for node in &nodes {
        let node = name(node);
        // A name that is too long is cut; its label or its holder says whose it is.
        let lease = facts.leases.iter().find(|lease| {
            is_part(lease, "agent")
                && (label(lease, "vgpu.io/node") == node
                    || text(lease, "/spec/holderIdentity") == node)
        });
        let Some(lease) = lease else {
            wrong.push(format!("{node}: there is no Lease of its agent"));
            continue;
        };
        let lasts = u64::try_from(number(lease, "/spec/leaseDurationSeconds")).unwrap_or(0);
        let ago = now.saturating_sub(unix(text(lease, "/spec/renewTime")).unwrap_or(0));
        if ago > lasts.max(60) * PATIENCE {
            wrong.push(format!(
                "{node}: Lease {} was renewed {ago} s ago",
                name(lease)
            ));
        }
    }
    if wrong.is_empty() {
        return Ok(ok(format!("{} Leases are fresh", nodes.len())));
    }
    Ok(fail(several(&wrong)))
}

pub(super) fn healthy(facts: &ClusterFacts) -> Judged {
    let reports = facts.reports()?;
    let mut wrong = Vec::new();
    let mut gpus = 0;
    for report in &reports {
        for device in &report.node.devices {
            gpus += 1;
            if !device.healthy {
                wrong.push(format!("{} of {}", device.id, report.node.name));
            }
        }
    }
    for answer in &facts.metrics {
        for uuid in &answer.sick {
            if !wrong.iter().any(|said| said.starts_with(uuid.as_str())) {
                wrong.push(format!("{uuid}, says {}", answer.pod));
            }
        }
    }
    if wrong.is_empty() {
        return Ok(ok(format!("{gpus} GPUs on {} nodes", reports.len())));
    }
    Ok(fail(several(&wrong)))
}

pub(super) fn no_memory_resource(facts: &ClusterFacts) -> Judged {
    facts.read(&["nodes"])?;
    let vendors = facts.vendors();
    let row = vendors.iter().find(|row| row.word == "NVIDIA");
    let row = row.ok_or_else(|| skip("the device configuration has no NVIDIA"))?;
    let mut wrong = Vec::new();
    for (role, resource) in &row.resources {
        if *role == Role::Count {
            continue;
        }
        let offering = facts.nodes.iter().filter(|node| {
            let offered = node.pointer("/status/allocatable");
            let reported = node.pointer("/metadata/annotations");
            let reported = reported.and_then(|all| all.get(keys::REPORTED_CAPACITY)?.as_str());
            let reported = reported.is_some_and(|all| all.split(',').any(|it| it == resource));
            !reported && amount(offered.and_then(|all| all.get(resource))) > 0
        });
        wrong.extend(offering.map(|node| format!("{} offers {resource}", name(node))));
    }
    if wrong.is_empty() {
        let key = row.keys.register.as_deref().unwrap_or_default();
        return Ok(ok(format!(
            "no other program offers them: they stand in the annotation {key}"
        )));
    }
    Ok(warn(several(&wrong)))
}

pub(super) fn metrics(facts: &ClusterFacts) -> Judged {
    facts.agents()?;
    if facts.metrics.is_empty() {
        return Err(skip("the agents' pods name no port"));
    }
    let forbidden = facts.metrics.iter().find(|answer| answer.status == 403);
    if let Some(answer) = forbidden {
        let why = answer.error.clone().unwrap_or_default();
        return Err(skip(format!(
            "the way through the API server is closed: {why}"
        )));
    }
    let wrong: Vec<String> = facts
        .metrics
        .iter()
        .filter_map(|answer| {
            let why = match &answer.error {
                Some(error) => error.clone(),
                None if !answer.ours => String::from("no series of vgpu"),
                None => return None,
            };
            Some(format!("{}:{}/metrics: {why}", answer.pod, answer.port))
        })
        .collect();
    if wrong.is_empty() {
        return Ok(ok(format!("{} ports of agents", facts.metrics.len())));
    }
    Ok(fail(several(&wrong)))
}

pub(super) fn driver_seen(facts: &ClusterFacts) -> Judged {
    facts.agents()?;
    let asked: Vec<_> = facts
        .metrics
        .iter()
        .filter(|answer| answer.driver_up.is_some())
        .collect();
    if asked.is_empty() {
        return Err(skip("no agent said so (VGPU-K35)"));
    }
    let mut wrong: Vec<&str> = asked
        .iter()
        .filter(|answer| answer.driver_up == Some(false))
        .map(|answer| answer.pod.as_str())
        .collect();
    wrong.dedup();
    if wrong.is_empty() {
        return Ok(ok(format!("{} answers of agents", asked.len())));
    }
    Ok(fail(format!(
        "{} says that no driver answers",
        several(&wrong)
    )))
}

pub(super) fn no_locks(facts: &ClusterFacts) -> Judged {
    facts.read(&["nodes"])?;
    let wrong: Vec<String> = facts
        .nodes
        .iter()
        .filter_map(|node| {
            let value = annotation(node, keys::NODE_LOCK);
            let holder = match lock::parse(value) {
                _ if value.is_empty() => return None,
                Ok(lock) => match lock.owner {
                    Some((space, pod)) => format!("{space}/{pod} since {}", lock.time),
                    None => format!("since {}", lock.time),
                },
                Err(error) => error.to_string(),
            };
            Some(format!("{}: {holder}", name(node)))
        })
        .collect();
    if wrong.is_empty() {
        return Ok(ok(format!(
            "none of {} nodes has {}",
            facts.nodes.len(),
            keys::NODE_LOCK
        )));
    }
    Ok(warn(several(&wrong)))
}

pub(super) fn runtimes(facts: &ClusterFacts) -> Judged {
    let nodes = facts.with_agent()?;
    let agents = facts.pods_of("agent");
    let told = agents
        .iter()
        .find_map(|pod| flag(pod, "--manner"))
        .unwrap_or("auto");
    // Without CDI a container's GPUs come by a variable that the webhook puts in.
    let annotates = facts
        .pods_of("webhook")
        .iter()
        .any(|pod| flag(pod, "--devices-by-annotation").is_some_and(|value| value != "false"));
    // On containerd 1.7 a switch decides. The agent knows it, and registers sick GPUs alone where it can serve no pod.
    let reports = facts.reports().unwrap_or_default();
    let serves = |node: &str| {
        let report = reports.iter().find(|report| report.node.name == node);
        report.is_none_or(|report| report.node.devices.iter().any(|gpu| gpu.healthy))
    };
    let mut wrong = Vec::new();
    let mut said: Vec<String> = Vec::new();
    for node in &nodes {
        let runtime = text(node, "/status/nodeInfo/containerRuntimeVersion");
        let (kind, version) = runtime.split_once("://").unwrap_or((runtime, ""));
        let mut numbers = version
            .trim_start_matches('v')
            .split('.')
            .map(|part| part.parse::<u32>().unwrap_or(0));
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        let manner = match kind {
            "containerd" if version >= (2, 0) => "cdi",
            "cri-o" if version >= (1, 28) => "cdi",
            "containerd" if version >= (1, 7) => "a switch",
            "containerd" if version >= (1, 6) => "mounts",
            "cri-o" => "mounts",
            _ => "none",
        };
        let by_mounts = manner == "mounts" || told == "mounts";
        match (told, manner) {
            (_, "none") => wrong.push(format!("{}: {runtime} is not known to work", name(node))),
            ("auto" | "cdi", "a switch") if serves(name(node)) => {
                said.push(format!("{runtime}: CDI, if it is switched on"));
            }
            ("auto" | "cdi", "a switch") if told == "cdi" || !annotates => wrong.push(format!(
                "{}: {runtime} has CDI only with enable_cdi = true, and the node has no healthy GPU: its event \
                 GpuInventory says why",
                name(node)
            )),
            ("cdi", "mounts") => wrong.push(format!(
                "{}: {runtime} has no CDI, and the agent has --manner=cdi",
                name(node)
            )),
            _ if by_mounts && !annotates => wrong.push(format!(
                "{}: {runtime} gets GPUs by a variable, and the webhook has no --devices-by-annotation=true",
                name(node)
            )),
            ("mounts", _) => said.push(format!("{runtime}: mounts")),
            _ => said.push(format!("{runtime}: {manner}")),
        }
    }
    if wrong.is_empty() {
        said.sort();
        said.dedup();
        return Ok(ok(several(&said)));
    }
    Ok(fail(several(&wrong)))
}

pub(super) fn clocks(facts: &ClusterFacts) -> Judged {
    let mut wrong = Vec::new();
    if let Some(server) = facts.server_unix {
        let apart = server.abs_diff(facts.asked_unix);
        if apart > LITTLE_SKEW {
            wrong.push(format!(
                "this machine and {} are {apart} s apart",
                facts.server
            ));
        }
    }
    let now = facts.now();
    for lease in &facts.leases {
        let renewed = unix(text(lease, "/spec/renewTime")).unwrap_or(0);
        let ahead = renewed.saturating_sub(now);
        // Renewed after the server was asked is what a Lease is for.
        if ahead > LITTLE_SKEW + 60 {
            wrong.push(format!(
                "Lease {} was renewed {ahead} s in the future, by {}",
                name(lease),
                text(lease, "/spec/holderIdentity")
            ));
        }
    }
    if !wrong.is_empty() {
        return Err(fail(several(&wrong)));
    }
    match facts.server_unix {
        None => Ok(skip("the API server does not say its time")),
        Some(_) => Ok(ok(format!(
            "this machine, the server and {} Leases",
            facts.leases.len()
        ))),
    }
}

pub(super) fn node_config(facts: &ClusterFacts) -> Judged {
    facts.home()?;
    facts.read(&["configmaps", "nodes"])?;
    let key = "/data/config.json";
    let maps = facts
        .configmaps
        .iter()
        .filter(|map| map.pointer(key).is_some());
    let mut wrong = Vec::new();
    let mut entries = 0;
    let mut is_broken = false;
    for map in maps {
        match NodeOverrides::parse(text(map, key)) {
            Err(error) => {
                is_broken = true;
                wrong.push(format!("ConfigMap {}: {error}", name(map)));
            }
            Ok(read) => {
                for entry in &read.nodes {
                    entries += 1;
                    if !facts.nodes.iter().any(|node| name(node) == entry.name) {
                        wrong.push(format!(
                            "ConfigMap {}: there is no node {:?}",
                            name(map),
                            entry.name
                        ));
                    }
                }
            }
        }
    }
    if wrong.is_empty() {
        return Ok(ok(format!("{entries} entries")));
    }
    Ok(if is_broken {
        fail(several(&wrong))
    } else {
        warn(several(&wrong))
    })
}

/// How many GPUs the node with the most has, and the most pieces that a node offers.
pub(super) fn most(facts: &ClusterFacts) -> Result<(usize, u64), Finding> {
    let reports = facts.reports()?;
    let nvidia = |report: &Report| {
        let gpus = report.node.devices.iter();
        gpus.filter(|device| device.vendor.as_str() == "NVIDIA")
            .count()
    };
    let gpus = reports.iter().map(nvidia).max().unwrap_or(0);
    let resource = facts.resource();
    let pieces = facts.nodes.iter().map(|node| {
        amount(
            node.pointer("/status/allocatable")
                .and_then(|all| all.get(&resource)),
        )
    });
    Ok((gpus, pieces.max().unwrap_or(0)))
}

/// Containers of a pod with how many of a resource each asks for.
pub(super) fn asks<'a>(
    pod: &'a Value,
    resource: &'a str,
) -> impl Iterator<Item = (&'a str, u64)> + 'a {
    let containers = items(pod, "/spec/initContainers").chain(items(pod, "/spec/containers"));
    containers.filter_map(move |container| {
        let of = |list: &str| container.pointer(list).and_then(|all| all.get(resource));
        let asked = of("/resources/limits").or_else(|| of("/resources/requests"))?;
        Some((text(container, "/name"), amount(Some(asked))))
    })
}
