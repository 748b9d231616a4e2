//! Checks of the two optional APIs, hcs.io and the device assigner. An API that is off is skipped.

use serde_json::Value;

use super::objects::{containers, full_name, is_part, is_ready, items, name, text, unix};
use super::{Answer, ClusterFacts};
use crate::doctor::check::{Finding, Judged, fail, ok, several, skip};

/// The kinds of hcs.io/v1alpha1, as the API server lists them.
const KINDS: [&str; 4] = [
    "computenodes",
    "computequotas",
    "computetasks",
    "computetopologies",
];

/// The scheduler treats an agent as not connected if it has not reported for this long.
const SILENCE_S: u64 = 120;

/// Whether the pod was started with this switch.
fn has_switch(pod: &Value, switch: &str) -> bool {
    let words = containers(pod)
        .flat_map(|container| items(container, "/command").chain(items(container, "/args")));
    words.filter_map(Value::as_str).any(|word| {
        word == switch
            || word
                .strip_prefix(switch)
                .is_some_and(|rest| rest == "=true")
    })
}

impl ClusterFacts {
    /// vgpu's pods that serve hcs.io, or why there is nothing to look at.
    fn serving_hcs(&self) -> Result<Vec<&Value>, Finding> {
        self.read(&["pods"])?;
        let parts = ["agent", "scheduler"];
        let pods = parts.iter().flat_map(|part| self.pods_of(part));
        let serving: Vec<&Value> = pods.filter(|pod| has_switch(pod, "--hcs")).collect();
        if serving.is_empty() {
            return Err(skip("no part of vgpu serves hcs.io (hcs.enabled)"));
        }
        self.read(&["hcs.io"])?;
        Ok(serving)
    }

    /// Pods of the assigner, or why there is nothing to look at.
    fn assigners(&self) -> Result<Vec<&Value>, Finding> {
        self.read(&["pods"])?;
        let pods = self.pods_of("assigner");
        if pods.is_empty() {
            return Err(skip("no pod of the assigner was found (assigner.enabled)"));
        }
        Ok(pods)
    }

    fn lacks(&self) -> Vec<&'static str> {
        let lacks = KINDS
            .iter()
            .filter(|kind| !self.hcs_kinds.iter().any(|it| it == *kind));
        lacks.copied().collect()
    }
}

pub(super) fn definitions(facts: &ClusterFacts) -> Judged {
    let serving = facts.serving_hcs()?;
    let lacks = facts.lacks();
    if lacks.is_empty() {
        return Ok(ok(format!(
            "{} pods serve hcs.io, and its four kinds are there",
            serving.len()
        )));
    }
    Ok(fail(format!(
        "the API server has no {} of hcs.io/v1alpha1",
        lacks.join(", ")
    )))
}

pub(super) fn compute_nodes(facts: &ClusterFacts) -> Judged {
    let serving = facts.serving_hcs()?;
    if facts.lacks().contains(&"computenodes") {
        return Err(skip("the API server has no ComputeNodes (VGPU-K47)"));
    }
    facts.read(&["computenodes"])?;
    let now = facts.now();
    let age = |of: &Value, path: &str| now.saturating_sub(unix(text(of, path)).unwrap_or(0));
    // An agent that has just come is given time to report.
    let agents = serving.into_iter().filter(|pod| {
        is_part(pod, "agent")
            && is_ready(pod)
            && age(pod, "/metadata/creationTimestamp") > SILENCE_S
    });
    let (mut wrong, mut fresh) = (Vec::new(), 0);
    for agent in agents {
        let node = text(agent, "/spec/nodeName");
        let found = facts
            .computenodes
            .iter()
            .find(|object| name(object) == node);
        match found.map(|object| age(object, "/status/lastHeartbeat")) {
            None => wrong.push(format!("{node}: there is no ComputeNode")),
            Some(ago) if ago > SILENCE_S => {
                wrong.push(format!(
                    "{node}: its ComputeNode was last reported {ago} s ago"
                ));
            }
            Some(_) => fresh += 1,
        }
    }
    if wrong.is_empty() {
        return Ok(ok(format!("{fresh} ComputeNodes of agents are fresh")));
    }
    Ok(fail(several(&wrong)))
}

pub(super) fn registered(facts: &ClusterFacts) -> Judged {
    facts.assigners()?;
    facts.read(&["webhooks"])?;
    let ours: Vec<&Value> = facts
        .mutating
        .iter()
        .filter(|object| is_part(object, "assigner"))
        .collect();
    if ours.is_empty() {
        return Err(fail(
            "there is no MutatingWebhookConfiguration of the assigner",
        ));
    }
    let entries = ours.iter().flat_map(|object| items(object, "/webhooks"));
    let wrong: Vec<&str> = entries
        .filter(|entry| text(entry, "/clientConfig/caBundle").is_empty())
        .map(|entry| text(entry, "/name"))
        .collect();
    if wrong.is_empty() {
        return Ok(ok(format!(
            "MutatingWebhookConfiguration {}",
            name(ours.first().copied().unwrap_or(&Value::Null))
        )));
    }
    Ok(fail(format!("no caBundle in {}", several(&wrong))))
}

pub(super) fn answers(facts: &ClusterFacts) -> Judged {
    let pods = facts.assigners()?;
    let mut wrong = Vec::new();
    for pod in &pods {
        let named = full_name(pod);
        let answer = facts.assigners.iter().find(|answer| answer.pod == named);
        match answer {
            None => wrong.push(format!("{named} was not asked")),
            Some(Answer {
                error: Some(why), ..
            }) => wrong.push(format!("{named}: {why}")),
            Some(_) => {}
        }
    }
    if wrong.is_empty() {
        return Ok(ok(format!("{} pods are ready", pods.len())));
    }
    Ok(fail(several(&wrong)))
}
