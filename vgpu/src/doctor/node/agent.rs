//! The agent, its configuration, and processes on GPUs. Facts in, verdicts out.

use super::{NodeFacts, PORTS, is_dra, is_exporter, is_fence, is_plugin};
use crate::doctor::check::{Judged, fail, ok, several, skip, warn};
use crate::doctor::proc::ProcessFacts;

pub(super) fn agents_run(facts: &NodeFacts) -> Judged {
    facts.of_a_cluster()?;
    let plugin = facts.agents.iter().any(is_plugin);
    let exporter = facts.agents.iter().any(is_exporter);
    if facts.agents.iter().any(is_dra) {
        return Ok(match (plugin, exporter) {
            (true, _) => fail(
                "vgpu-monitor dra and vgpu-monitor plugin both run: a node gives its GPUs by claims or by the device plugin",
            ),
            (false, true) => ok("vgpu-monitor, vgpu-monitor dra"),
            (false, false) => fail("vgpu-monitor dra runs, the exporter does not"),
        });
    }
    match (plugin, exporter) {
        (true, true) => Ok(ok("vgpu-monitor, vgpu-monitor plugin")),
        (true, false) => Ok(fail("vgpu-monitor plugin runs, the exporter does not")),
        (false, true) => Ok(fail("vgpu-monitor runs, vgpu-monitor plugin does not")),
        (false, false) => Ok(fail(
            "neither vgpu-monitor nor vgpu-monitor plugin is among the processes that are seen from here",
        )),
    }
}

/// The exporter leaves the driver's limits to the second fence's container where the chart has one.
pub(super) fn fence_runs(facts: &NodeFacts) -> Judged {
    let fence = facts.agents.iter().any(is_fence);
    let exporter = facts.agents.iter().find(|agent| is_exporter(agent));
    let leaves = exporter.is_some_and(|it| it.command.iter().any(|word| word == "--no-fence"));
    match (leaves, fence) {
        (true, true) => Ok(ok("vgpu-monitor fence")),
        (true, false) => Ok(fail(
            "vgpu-monitor has --no-fence, and no process vgpu-monitor fence is seen here: no container has the driver's own limit",
        )),
        (false, true) if exporter.is_some() => Ok(warn(
            "vgpu-monitor fence runs, and vgpu-monitor has no --no-fence: both set the driver's limits",
        )),
        (false, _) => Ok(ok("the second fence has no process of its own here")),
    }
}

pub(super) fn metrics_answer(facts: &NodeFacts) -> Judged {
    if facts.metrics.is_empty() {
        return Err(skip(
            "nothing listens on 31993 and 31992 in this network (a pod has its own); vgpu doctor cluster asks through the API server",
        ));
    }
    let wrong: Vec<String> = facts
        .metrics
        .iter()
        .filter_map(|(port, answer)| {
            let why = match &answer.error {
                Some(error) => error.clone(),
                None if answer.status != 200 => format!("status {}", answer.status),
                None if !answer.ours => String::from("no series of vgpu"),
                None => return None,
            };
            Some(format!("localhost:{port}/metrics: {why}"))
        })
        .collect();
    if wrong.is_empty() {
        let ports: Vec<String> = facts.metrics.keys().map(u16::to_string).collect();
        return Ok(ok(several(&ports)));
    }
    Ok(fail(several(&wrong)))
}

pub(super) fn ports_ours(facts: &NodeFacts) -> Judged {
    let wrong: Vec<String> = facts
        .listeners
        .iter()
        .filter_map(|listener| {
            let name = listener.process.as_deref()?;
            (name != "vgpu-monitor").then(|| format!("{name} listens on {}", listener.port))
        })
        .collect();
    if wrong.is_empty() {
        return Ok(ok(format!(
            "{} and {} are the agent's, or free",
            PORTS[0], PORTS[1]
        )));
    }
    Ok(fail(several(&wrong)))
}

pub(super) fn no_hami(facts: &NodeFacts) -> Judged {
    let wrong: Vec<String> = facts
        .agents
        .iter()
        .filter(|agent| {
            !is_plugin(agent) && !is_exporter(agent) && !is_dra(agent) && !is_fence(agent)
        })
        .map(ProcessFacts::shown)
        .collect();
    if wrong.is_empty() {
        return Ok(ok("no process vGPUmonitor or nvidia-device-plugin"));
    }
    Ok(fail(several(&wrong)))
}

pub(super) fn no_leftovers(facts: &NodeFacts) -> Judged {
    if facts.leftovers.is_empty() {
        return Ok(ok("none of its files is here"));
    }
    Ok(warn(several(&facts.leftovers)))
}

pub(super) fn all_managed(facts: &NodeFacts) -> Judged {
    if facts.cuda_processes == 0 && facts.closed_processes > 0 {
        return Err(skip(format!(
            "{} processes may not be looked into from here: that takes root with CAP_SYS_PTRACE (the agent's container exporter has it)",
            facts.closed_processes
        )));
    }
    if facts.unmanaged.is_empty() {
        return Ok(ok(format!(
            "{} processes with a CUDA driver are seen from here",
            facts.cuda_processes
        )));
    }
    let names: Vec<String> = facts.unmanaged.iter().map(ProcessFacts::shown).collect();
    Ok(warn(format!("without the library: {}", several(&names))))
}

pub(super) fn device_config_reads(facts: &NodeFacts) -> Judged {
    facts.giver()?;
    match &facts.device_config {
        None => Ok(ok("the agent was given none: the standard one holds")),
        Some(config) => match &config.error {
            None => Ok(ok(&config.path)),
            Some(error) => Ok(fail(format!("{}: {error}", config.path))),
        },
    }
}

pub(super) fn node_config_reads(facts: &NodeFacts) -> Judged {
    facts.giver()?;
    match &facts.node_config {
        None => Ok(ok("the agent was given none")),
        Some(config) => match &config.error {
            None => Ok(ok(&config.path)),
            Some(error) => Ok(fail(format!("{}: {error}", config.path))),
        },
    }
}

pub(super) fn manner(facts: &NodeFacts) -> Judged {
    let by_claims = is_dra(facts.giver()?);
    let groups = if facts.cgroup2 { 2 } else { 1 };
    let told = facts.told_manner().unwrap_or_else(|| String::from("auto"));
    let how = match by_claims {
        true => String::from("by claims"),
        false => format!("--manner={told}"),
    };
    if (by_claims || told != "mounts") && !facts.cdi_directory.directory {
        facts.not_in_pod("the directory for CDI specs is not mounted")?;
        return Ok(fail(format!(
            "{how}, and the directory for CDI specs is not there (cgroup version {groups})"
        )));
    }
    Ok(ok(format!("{how}, cgroup version {groups}")))
}
