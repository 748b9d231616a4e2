//! Checks that go on where a recording ends: what would go wrong if ours had the defect too.

use serde_json::{Value, json};

use super::driven::Driven;
use super::facts::Facts;

/// Goes on with a program that took all recorded steps.
pub(crate) type Check = fn(&mut Driven<'_>, &Value) -> Result<(), String>;

/// Every check by its name on the register.
pub(crate) const CHECKS: &[(&str, Check)] = &[("a-second-pod-is-bound-too", second_pod)];

/// A second pod like the first is placed and bound on the same node at once, and both know their devices.
fn second_pod(driven: &mut Driven<'_>, case: &Value) -> Result<(), String> {
    let steps = super::facts::array(&case["steps"]);
    let find = |op: &str| steps.iter().find(|step| step["op"] == op).cloned();
    let (mut filter, mut bind) = (find("filter").unwrap(), find("bind").unwrap());
    let node = bind["request"]["Node"].as_str().unwrap().to_owned();
    let pod = &mut filter["request"]["Pod"]["metadata"];
    pod["name"] = json!("second");
    pod["uid"] = json!("uid-second");
    bind["request"]["PodName"] = json!("second");
    let placed = driven.step(&filter);
    let bound = driven.step(&bind);
    has(&placed, &format!("NodeNames {node}"))?;
    has(&bound, "no error")?;
    has(&bound, &format!("bound to {node}"))?;
    has(&bound, "annotation hami.io/vgpu-devices-allocated[0] = ")
}

fn has(facts: &Facts, start: &str) -> Result<(), String> {
    if facts.iter().any(|fact| fact.starts_with(start)) {
        return Ok(());
    }
    Err(format!("no fact \"{start}\" among {facts:?}"))
}
