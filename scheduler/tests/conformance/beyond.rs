//! Checks that continue after the end of a recording: they would fail if ours had the recorded defect too.

use serde_json::{Value, json};

use super::driven::Driven;
use super::facts::Facts;

/// Goes on with a program that took all recorded steps.
pub(crate) type Check = fn(&mut Driven<'_>, &Value) -> Result<(), String>;

/// Every check by its name on the register.
pub(crate) const CHECKS: &[(&str, Check)] = &[
    ("a-second-pod-is-bound-too", second_pod),
    ("a-bind-that-fails-gives-back", failed_bind),
];

/// The recording's first filter and first bind, for a pod of another name.
fn another(case: &Value, name: &str) -> (Value, Value) {
    let steps = super::facts::array(&case["steps"]);
    let find = |op: &str| steps.iter().find(|step| step["op"] == op).cloned();
    let (mut filter, mut bind) = (find("filter").unwrap(), find("bind").unwrap());
    let pod = &mut filter["request"]["Pod"]["metadata"];
    pod["name"] = json!(name);
    pod["uid"] = json!(format!("uid-{name}"));
    bind["request"]["PodName"] = json!(name);
    (filter, bind)
}

/// A second pod like the first is placed and bound on the same node at once, and both know their devices.
fn second_pod(driven: &mut Driven<'_>, case: &Value) -> Result<(), String> {
    let (filter, bind) = another(case, "second");
    let node = bind["request"]["Node"].as_str().unwrap();
    let placed = driven.step(&filter);
    let bound = driven.step(&bind);
    has(&placed, &format!("NodeNames {node}"))?;
    has(&bound, "no error")?;
    has(&bound, &format!("bound to {node}"))?;
    has(&bound, "annotation hami.io/vgpu-devices-allocated[0] = ")
}

/// A pod whose binding fails holds nothing any more, and its devices can be given to the next pod.
fn failed_bind(driven: &mut Driven<'_>, case: &Value) -> Result<(), String> {
    let usage = json!({ "op": "usage" });
    let before = driven.step(&usage);
    let (filter, mut bind) = another(case, "unlucky");
    bind["request"]["Node"] = json!("no-such-node");
    has(&driven.step(&filter), "NodeNames ")?;
    if driven.step(&usage) == before {
        return Err("nothing was reserved".to_owned());
    }
    let failed = driven.step(&bind);
    has(&failed, "error")?;
    if failed.iter().any(|fact| fact.starts_with("bound to")) {
        return Err(format!("it is bound: {failed:?}"));
    }
    let after = driven.step(&usage);
    if after != before {
        return Err(format!("{before:?} was in use, and {after:?} is"));
    }
    Ok(())
}

fn has(facts: &Facts, start: &str) -> Result<(), String> {
    if facts.iter().any(|fact| fact.starts_with(start)) {
        return Ok(());
    }
    Err(format!("no fact \"{start}\" among {facts:?}"))
}
