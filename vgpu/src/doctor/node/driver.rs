//! Driver, GPUs, and the runtime that hands them out. Facts in, verdicts out.

use super::{DriverGpu, NodeFacts, flag};
use crate::doctor::check::{Judged, fail, ok, several, skip, warn};

/// CUDA versions whose drivers the library was tested with, as the driver counts them.
const CUDA_KNOWN: std::ops::Range<i32> = 11_000..14_000;

pub(super) fn driver_answers(facts: &NodeFacts) -> Judged {
    if let Some(driver) = &facts.driver {
        let release = driver.release.as_deref().unwrap_or("of unknown release");
        let count = driver.gpus.len();
        if count + driver.faults.len() == 0 {
            return Err(fail(format!("driver {release} answers, and knows no GPU")));
        }
        return Ok(ok(format!("driver {release}, {count} GPUs")));
    }
    match &facts.driver_error {
        Some(error) if facts.device_files.is_empty() => Ok(fail(format!(
            "{error}; /dev has no nvidia file: this node has no NVIDIA driver, or no GPU"
        ))),
        Some(error) => Ok(fail(error)),
        None => Ok(skip("not asked: --root names another system's files")),
    }
}

pub(super) fn gpus_answer(facts: &NodeFacts) -> Judged {
    let driver = facts.driver()?;
    let mut wrong = driver.faults.clone();
    let sick = facts.metrics.values().flat_map(|answer| &answer.sick);
    wrong.extend(sick.map(|uuid| format!("{uuid}: the agent says it is sick")));
    wrong.sort();
    wrong.dedup();
    if wrong.is_empty() {
        return Ok(ok(format!("{} GPUs answer", driver.gpus.len())));
    }
    Ok(fail(several(&wrong)))
}

pub(super) fn driver_parts_agree(facts: &NodeFacts) -> Judged {
    let release = facts
        .driver
        .as_ref()
        .and_then(|driver| driver.release.as_ref());
    match (release, &facts.kernel_driver) {
        (Some(library), Some(kernel)) if library == kernel => {
            Ok(ok(format!("both are of {kernel}")))
        }
        (Some(library), Some(kernel)) => Ok(fail(format!(
            "libnvidia-ml is of {library}, /proc/driver/nvidia/version says {kernel}"
        ))),
        (None, _) => Ok(skip(
            "the driver's library does not say its release (VGPU-N01)",
        )),
        (_, None) => Ok(skip(
            "there is no /proc/driver/nvidia/version: a simulated driver",
        )),
    }
}

pub(super) fn driver_known(facts: &NodeFacts) -> Judged {
    let cuda = facts
        .driver()?
        .cuda
        .ok_or_else(|| skip("the driver does not say its CUDA version"))?;
    let said = format!("CUDA {}.{}", cuda / 1000, cuda % 1000 / 10);
    if CUDA_KNOWN.contains(&cuda) {
        return Ok(ok(said));
    }
    Ok(warn(format!("{said}; tested are 11 to 13")))
}

pub(super) fn device_files(facts: &NodeFacts) -> Judged {
    let driver = facts.driver()?;
    if facts.device_files.is_empty() && facts.kernel_driver.is_none() {
        return Err(skip("/dev has no nvidia file: a simulated driver"));
    }
    let has = |name: &str| facts.device_files.iter().any(|file| file == name);
    let mut missing: Vec<String> = ["nvidiactl", "nvidia-uvm"]
        .into_iter()
        .filter(|name| !has(name))
        .map(|name| format!("/dev/{name}"))
        .collect();
    let numbered = facts
        .device_files
        .iter()
        .filter(|name| {
            name.strip_prefix("nvidia")
                .is_some_and(|rest| rest.parse::<u32>().is_ok())
        })
        .count();
    if numbered < driver.gpus.len() {
        missing.push(format!(
            "{} of {} /dev/nvidiaN",
            driver.gpus.len() - numbered,
            driver.gpus.len()
        ));
    }
    if missing.is_empty() {
        return Ok(ok(format!("nvidiactl, nvidia-uvm, {numbered} GPUs")));
    }
    Ok(fail(format!("missing: {}", several(&missing))))
}

pub(super) fn runtime_knows_gpus(facts: &NodeFacts) -> Judged {
    facts.driver()?;
    let spec = facts
        .cdi
        .iter()
        .find(|spec| spec.kind == "nvidia.com/gpu" && spec.error.is_none());
    if let Some(spec) = spec {
        return Ok(ok(format!("{} describes them", spec.path)));
    }
    let configured = facts
        .runtime
        .path
        .as_deref()
        .unwrap_or("no configuration of containerd or docker");
    match facts.runtime.default_runtime.as_deref() {
        Some("nvidia") => Ok(ok(format!("{configured}: nvidia is the default runtime"))),
        other => Ok(fail(format!(
            "no CDI spec of nvidia.com/gpu in /etc/cdi or /var/run/cdi, and {configured} makes {} the default runtime",
            other.unwrap_or("nothing")
        ))),
    }
}

pub(super) fn cdi_fits(facts: &NodeFacts) -> Judged {
    let driver = facts.driver()?;
    if facts.cdi.is_empty() {
        return Err(skip("there is no CDI spec of NVIDIA's (VGPU-N06)"));
    }
    let mut wrong = Vec::new();
    for spec in &facts.cdi {
        if let Some(error) = &spec.error {
            wrong.push(format!("{}: {error}", spec.path));
        }
        if !spec.missing.is_empty() {
            wrong.push(format!(
                "{} names {}, which is not there",
                spec.path,
                several(&spec.missing)
            ));
        }
        // Devices are named by UUID or by index, depending on the toolkit's setting.
        let names = |gpu: &DriverGpu| {
            spec.devices.iter().any(|name| {
                *name == gpu.uuid
                    || *name == gpu.index.to_string()
                    || name.starts_with(&format!("{}:", gpu.index))
                    || name.starts_with("MIG-")
            })
        };
        let absent: Vec<&str> = driver
            .gpus
            .iter()
            .filter(|gpu| spec.kind == "nvidia.com/gpu" && spec.error.is_none() && !names(gpu))
            .map(|gpu| gpu.uuid.as_str())
            .collect();
        if !absent.is_empty() {
            wrong.push(format!("{} does not name {}", spec.path, several(&absent)));
        }
    }
    if wrong.is_empty() {
        let paths: Vec<&str> = facts.cdi.iter().map(|spec| spec.path.as_str()).collect();
        return Ok(ok(several(&paths)));
    }
    Ok(fail(several(&wrong)))
}

pub(super) fn cdi_enabled(facts: &NodeFacts) -> Judged {
    // The agent has decided already, and acts accordingly.
    if let Some(served) = &facts.served {
        return Ok(match &served.hindrance {
            Some(why) => fail(format!("the agent serves no pod: {why}")),
            None => ok(format!("{}: {}", served.runtime, served.manner)),
        });
    }
    let path = facts
        .runtime
        .path
        .as_deref()
        .ok_or_else(|| skip("no configuration of containerd or docker was found"))?;
    if facts.told_manner().as_deref() == Some("mounts") {
        return Err(skip("the agent has --manner=mounts"));
    }
    match facts.runtime.enable_cdi {
        Some(false) if facts.runtime.default_runtime.as_deref() != Some("nvidia") => {
            Ok(fail(format!("{path} has enable_cdi = false")))
        }
        Some(on) => Ok(ok(format!("{path} has enable_cdi = {on}"))),
        None => Ok(ok(format!(
            "{path} leaves it as it is: on from containerd 2"
        ))),
    }
}

pub(super) fn mig_strategy(facts: &NodeFacts) -> Judged {
    let driver = facts.driver()?;
    let agent = facts.giver()?;
    let of_node = facts
        .node_config
        .as_ref()
        .and_then(|config| config.mig_strategy.clone());
    let strategy = of_node
        .or_else(|| flag(agent, "--mig-strategy"))
        .unwrap_or_else(|| String::from("none"));
    let split: Vec<&str> = driver
        .gpus
        .iter()
        .filter(|gpu| gpu.instances > 0)
        .map(|gpu| gpu.uuid.as_str())
        .collect();
    if strategy == "none" && !split.is_empty() {
        return Ok(fail(format!(
            "the strategy is none, and {} has instances",
            several(&split)
        )));
    }
    Ok(ok(format!(
        "{strategy}; {} GPUs with instances",
        split.len()
    )))
}
