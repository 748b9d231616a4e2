//! The kubelet's side, and what the agent keeps on disk. Facts in, verdicts out.

use vgpu_abi::layout::REGION_VERSION;
use vgpu_abi::size::Size;

use super::{DRA_CALLS, DRA_FINDING, NodeFacts, PLUGINS, POD_RESOURCES, REGISTRY, is_dra};
use crate::doctor::check::{Judged, fail, ok, several, skip, warn};
use crate::doctor::elf::is_of_glibc;
use crate::doctor::root::Mount;

/// Less free room than this does not do for long.
const LITTLE_BYTES: u64 = 64 << 20;
/// Less free room than both of these, in hundredths and in bytes, is said.
const SOME_PERCENT: u64 = 5;
const SOME_BYTES: u64 = 4 << 30;

pub(super) fn kubelet_sockets(facts: &NodeFacts) -> Judged {
    facts.of_a_cluster()?;
    let mut missing = Vec::new();
    match &facts.plugin_sockets {
        None => missing.push(format!("there is no {PLUGINS}")),
        Some(names) if !names.iter().any(|name| name == "kubelet.sock") => {
            missing.push(format!("there is no {PLUGINS}/kubelet.sock"));
        }
        Some(_) => {}
    }
    if !facts.pod_resources.present {
        missing.push(format!("there is no {POD_RESOURCES}"));
    }
    if missing.is_empty() {
        return Ok(ok(format!("{PLUGINS}/kubelet.sock, {POD_RESOURCES}")));
    }
    if facts.plugin_sockets.is_none() {
        facts.not_in_pod("the kubelet's directories are not mounted")?;
    }
    Ok(fail(several(&missing)))
}

pub(super) fn plugin_registered(facts: &NodeFacts) -> Judged {
    if facts.agents.iter().any(is_dra) {
        return driver_found(facts);
    }
    let sockets = facts.sockets()?;
    let ours: Vec<&str> = sockets
        .iter()
        .map(String::as_str)
        .filter(|name| name.starts_with("vgpu"))
        .collect();
    if ours.is_empty() {
        return Err(fail(format!(
            "{PLUGINS} has no socket that begins with vgpu"
        )));
    }
    let resource = facts.resource();
    if let Some(error) = &facts.registered_error {
        return Err(skip(error));
    }
    let registered = facts
        .registered
        .as_ref()
        .ok_or_else(|| skip("the kubelet's checkpoint cannot be read here"))?;
    match registered.get(resource).map_or(0, Vec::len) {
        0 => Ok(fail(format!(
            "{} is there, and the kubelet knows no device of {resource}",
            several(&ours)
        ))),
        count => Ok(ok(format!("{count} slots of {resource}"))),
    }
}

/// The same on a node that gives its GPUs by claims: the kubelet finds the driver by one socket and calls it on another.
fn driver_found(facts: &NodeFacts) -> Judged {
    facts.sockets()?;
    let mut missing = Vec::new();
    if facts.dra_findings.is_empty() {
        missing.push(format!(
            "{REGISTRY} has no socket that begins with {DRA_FINDING}"
        ));
    }
    if facts.dra_calls.is_empty() {
        missing.push(format!("{DRA_CALLS} has no socket"));
    }
    if missing.is_empty() {
        let sockets = [
            several(&facts.dra_findings),
            format!("{DRA_CALLS}/{}", several(&facts.dra_calls)),
        ];
        return Ok(ok(format!("by claims: {}", several(&sockets))));
    }
    facts.not_in_pod("the directories of the kubelet's drivers are not mounted")?;
    Ok(fail(format!(
        "vgpu-monitor dra runs, and {}",
        several(&missing)
    )))
}

pub(super) fn one_plugin(facts: &NodeFacts) -> Judged {
    let sockets = facts.sockets()?;
    let resource = facts.resource();
    let mut wrong: Vec<String> = sockets
        .iter()
        .filter(|name| name.starts_with("nvidia") || name.starts_with("hami"))
        .map(|name| format!("{PLUGINS}/{name}"))
        .collect();
    let ids = facts.registered.as_ref().and_then(|all| all.get(resource));
    let id = ids
        .into_iter()
        .flatten()
        .find(|id| id.starts_with("GPU-") || id.starts_with("MIG-"));
    if let Some(id) = id {
        wrong.push(format!(
            "the kubelet has {id} under {resource}: NVIDIA's plugin hands out whole GPUs"
        ));
    }
    if wrong.is_empty() {
        return Ok(ok(format!("{} sockets in {PLUGINS}", sockets.len())));
    }
    Ok(fail(several(&wrong)))
}

pub(super) fn state_owned(facts: &NodeFacts) -> Judged {
    facts.of_a_cluster()?;
    let path = &facts.state_path;
    let state = &facts.state;
    if !state.present {
        let why = state.error.clone();
        return Err(fail(why.unwrap_or_else(|| {
            format!("there is no {path}: no agent has run here")
        })));
    }
    if !state.directory || state.mode & 0o022 != 0 {
        return Err(fail(format!("{path} has mode {:04o}", state.mode)));
    }
    if state.owner != 0 {
        return Err(fail(format!("{path} belongs to uid {}", state.owner)));
    }
    Ok(ok(format!("{path}, mode {:04o}", state.mode)))
}

pub(super) fn state_persistent(facts: &NodeFacts) -> Judged {
    facts.has_state()?;
    let mount = facts.state_mount.as_ref();
    let mount = mount.ok_or_else(|| skip("the mount table cannot be read"))?;
    let said = format!(
        "{} lies on {} ({})",
        facts.state_path, mount.point, mount.kind
    );
    let passing = |mount: &Mount| matches!(mount.kind.as_str(), "tmpfs" | "ramfs" | "overlay");
    if !passing(mount) {
        return Err(ok(said));
    }
    // A node that forgets everything forgets its containers, too.
    if mount.kind != "overlay" && facts.kubelet_mount.as_ref().is_some_and(passing) {
        return Err(warn(format!(
            "{said}, as what the kubelet knows: with a restart both are gone; meanwhile regions (5 MB for each container) count as the agent's memory"
        )));
    }
    Ok(fail(said))
}

pub(super) fn state_room(facts: &NodeFacts) -> Judged {
    facts.has_state()?;
    if let Some(mount) = facts.state_mount.as_ref().filter(|mount| mount.read_only) {
        facts.not_in_pod("the state directory is mounted read-only")?;
        return Err(fail(format!("{} is mounted read-only", mount.point)));
    }
    let disk = facts
        .disk
        .as_ref()
        .ok_or_else(|| skip("the file system does not say how full it is"))?;
    let said = format!("{} of {} free", Size(disk.free_bytes), Size(disk.bytes));
    if disk.free_bytes < LITTLE_BYTES || (disk.files > 0 && disk.free_files < 100) {
        return Err(fail(format!("{said}, {} files", disk.free_files)));
    }
    let percent = disk.bytes.saturating_mul(SOME_PERCENT) / 100;
    if disk.free_bytes < percent.min(SOME_BYTES) {
        return Err(warn(said));
    }
    Ok(ok(said))
}

pub(super) fn library_installed(facts: &NodeFacts) -> Judged {
    facts.has_state()?;
    let path = format!("{}/lib", facts.state_path);
    if facts.libraries.is_empty() {
        return Err(fail(format!("{path} has no library")));
    }
    let wrong: Vec<String> = facts
        .libraries
        .iter()
        .filter_map(|(name, library)| {
            let why = match library {
                None => String::from("has no libvgpu.so"),
                Some(library) => match &library.error {
                    Some(error) => error.clone(),
                    None if library.region_version.is_none() => {
                        String::from("is not vgpu's library")
                    }
                    None => return None,
                },
            };
            Some(format!("{path}/{name}: {why}"))
        })
        .collect();
    if wrong.is_empty() {
        let names: Vec<&String> = facts.libraries.keys().collect();
        return Ok(ok(several(&names)));
    }
    Ok(fail(several(&wrong)))
}

pub(super) fn versions_agree(facts: &NodeFacts) -> Judged {
    facts.has_state()?;
    let libraries: Vec<u32> = facts
        .libraries
        .values()
        .flatten()
        .filter_map(|library| library.region_version)
        .collect();
    let known = |version: u32| version == REGION_VERSION || libraries.contains(&version);
    let wrong: Vec<String> = facts
        .containers
        .iter()
        .filter_map(|given| {
            let version = given.region_version.filter(|version| !known(*version))?;
            Some(format!(
                "{} has a region of version {version}",
                given.container
            ))
        })
        .collect();
    if wrong.is_empty() {
        return Ok(ok(format!(
            "{} regions, version {REGION_VERSION} is this command's",
            facts.containers.len()
        )));
    }
    Ok(fail(several(&wrong)))
}

pub(super) fn containers_intact(facts: &NodeFacts) -> Judged {
    facts.has_state()?;
    let mut wrong = facts.broken.clone();
    for given in &facts.containers {
        let owner = format!("{} ({})", given.container, given.path);
        if let Some(error) = &given.limits_error {
            wrong.push(format!("{owner}: limits: {error}"));
        }
        if let Some(error) = &given.region_error {
            wrong.push(format!("{owner}: region: {error}"));
        }
    }
    if wrong.is_empty() {
        return Ok(ok(format!("{} containers", facts.containers.len())));
    }
    Ok(fail(several(&wrong)))
}

pub(super) fn library_frugal(facts: &NodeFacts) -> Judged {
    facts.has_state()?;
    let wrong: Vec<String> = facts
        .libraries
        .iter()
        .filter_map(|(name, library)| {
            let needs = library.as_ref()?.needs.iter();
            let more: Vec<&String> = needs.filter(|needed| !is_of_glibc(needed)).collect();
            (!more.is_empty()).then(|| format!("{name} needs {}", several(&more)))
        })
        .collect();
    if wrong.is_empty() {
        return Ok(ok(format!("{} libraries", facts.libraries.len())));
    }
    Ok(warn(several(&wrong)))
}
