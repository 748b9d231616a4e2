//! Differences that hold for a whole class of recordings, each as narrow as possible: a rule removes from a
//! difference only lines that are entirely about the rule's subject.

use super::facts::Facts;
use super::register::Difference;

/// The input of a rule.
pub(crate) struct Step<'a> {
    /// The step as it was recorded.
    pub(crate) step: &'a serde_json::Value,
    /// All facts of the reference.
    pub(crate) theirs: &'a Facts,
    /// All facts of ours.
    pub(crate) ours: &'a Facts,
    /// The number of containers of the step's pod, including init containers; 0 if the step has no pod.
    pub(crate) containers: usize,
}

/// Removes the lines that the rule is about from a difference.
pub(crate) type Rule = fn(&Step<'_>, &mut Difference);

/// Every rule by its name on the register.
pub(crate) const RULES: &[(&str, Rule)] = &[
    ("key-of-the-seed", key_of_the_seed),
    ("no-node-lock", no_node_lock),
    ("fewer-handshakes", fewer_handshakes),
    ("unresolvable", unresolvable),
    ("no-status-patch", no_status_patch),
    ("quantities-as-written", quantities_as_written),
    ("quota-without-a-limit", quota_without_a_limit),
    ("no-container-after-the-last", no_container_after_the_last),
    ("empty-slots", empty_slots),
    (LEFT_TO_CHANCE, |_, _| {}),
];

/// Is applied to whole recordings, by `compare`: ours gives one of the answers that the reference gave, and the same
/// one again when it is asked again.
pub(crate) const LEFT_TO_CHANCE: &str = "left-to-chance";

/// NVIDIA's allocation under the seed's own key too, with the same devices.
fn key_of_the_seed(step: &Step<'_>, difference: &mut Difference) {
    difference.ours.retain(|fact| {
        let Some(rest) = fact.strip_prefix("annotation hami.io/devices-to-allocate[") else {
            return true;
        };
        let same = format!("annotation hami.io/vgpu-devices-to-allocate[{rest}");
        !step.ours.contains(&same)
    });
}

/// The reference takes (or, wrongly, removes) a lock on the node; ours touches none.
fn no_node_lock(_: &Step<'_>, difference: &mut Difference) {
    difference.reference.retain(|fact| {
        !(fact.starts_with("node ")
            && (fact.ends_with(" hami.io/mutex.lock = held")
                || fact.ends_with(" hami.io/mutex.lock removed")))
    });
}

/// The reference writes a time to every node for every vendor.
fn fewer_handshakes(_: &Step<'_>, difference: &mut Difference) {
    difference.reference.retain(|fact| {
        !(fact.starts_with("node ")
            && fact.contains(" hami.io/node-handshake")
            && fact.ends_with(" = Requesting_<datetime>"))
    });
}

/// The same node for the same reason, but ours also says that no eviction would help.
fn unresolvable(_: &Step<'_>, difference: &mut Difference) {
    let moved: Vec<(String, String)> = difference
        .ours
        .iter()
        .filter_map(|fact| {
            let rest = fact.strip_prefix("FailedAndUnresolvableNodes ")?;
            Some((fact.clone(), format!("FailedNodes {rest}")))
        })
        .filter(|(_, theirs)| difference.reference.contains(theirs))
        .collect();
    for (ours, theirs) in moved {
        difference.ours.remove(&ours);
        difference.reference.remove(&theirs);
    }
}

/// The reference adds an empty status to every pod.
fn no_status_patch(_: &Step<'_>, difference: &mut Difference) {
    difference.reference.remove("pod /status = {}");
}

/// The reference rewrites amounts (`3000` becomes `3k`); ours leaves them as the user wrote them.
fn quantities_as_written(step: &Step<'_>, difference: &mut Difference) {
    let mut before = Facts::new();
    super::facts::leaves(
        &step.step["request"]["request"]["object"],
        "pod ",
        &mut before,
    );
    let kept: Vec<(String, String)> = difference
        .ours
        .iter()
        .filter(|fact| before.contains(*fact) && fact.contains("/resources/"))
        .filter_map(|ours| {
            let (path, amount) = ours.split_once(" = ")?;
            let theirs = difference.reference.iter().find(|theirs| {
                theirs.split_once(" = ").is_some_and(|(same, other)| {
                    same == path && milli(amount).is_some() && milli(amount) == milli(other)
                })
            })?;
            Some((ours.clone(), theirs.clone()))
        })
        .collect();
    for (ours, theirs) in kept {
        difference.ours.remove(&ours);
        difference.reference.remove(&theirs);
    }
}

/// Thousandths of an amount such as `3000`, `3k` or `500m`, as JSON text. The recordings have no others.
fn milli(json: &str) -> Option<i64> {
    let text = json.trim_matches('"');
    let (digits, factor) = match text.char_indices().last()? {
        (end, 'k') => (&text[..end], 1_000_000),
        (end, 'm') => (&text[..end], 1),
        _ => (text, 1000),
    };
    digits.parse::<i64>().ok()?.checked_mul(factor)
}

/// The reference counts a namespace's use of a quota that does not exist.
fn quota_without_a_limit(_: &Step<'_>, difference: &mut Difference) {
    difference
        .reference
        .retain(|fact| !(fact.starts_with("quota ") && fact.ends_with(" of none")));
}

/// The reference's decoder reads one more container, without devices, behind the last `;`.
fn no_container_after_the_last(step: &Step<'_>, difference: &mut Difference) {
    if step.step["op"] == "decodePodDevices" && !step.ours.contains("error") {
        let behind = format!("NVIDIA[{}] = ", step.ours.len());
        difference.reference.remove(&behind);
    }
}

/// The reference loses the slot of a container without devices; ours has one slot for each container, and the same
/// devices in the same order.
fn empty_slots(step: &Step<'_>, difference: &mut Difference) {
    let keys: std::collections::BTreeSet<&str> = step
        .ours
        .iter()
        .filter_map(|fact| Some(fact.split_once('[')?.0))
        .filter(|key| key.starts_with("annotation hami.io/"))
        .collect();
    for key in keys {
        let (theirs, ours) = (slots(step.theirs, key), slots(step.ours, key));
        let with = |slots: &[String]| -> Vec<String> {
            let some = slots.iter().filter(|slot| *slot != "none");
            some.cloned().collect()
        };
        let lost = theirs.len() < ours.len() && with(&theirs) == with(&ours);
        if lost && ours.len() == step.containers {
            let start = format!("{key}[");
            difference
                .reference
                .retain(|fact| !fact.starts_with(&start));
            difference.ours.retain(|fact| !fact.starts_with(&start));
        }
    }
}

/// The allocation under a key, by container.
fn slots(facts: &Facts, key: &str) -> Vec<String> {
    (0..)
        .map_while(|index| {
            let start = format!("{key}[{index}] = ");
            facts
                .iter()
                .find_map(|fact| fact.strip_prefix(&start).map(str::to_owned))
        })
        .collect()
}

#[test]
fn a_rule_takes_out_what_it_is_about_and_nothing_else() {
    let webhook = serde_json::json!({ "request": { "request": { "object": {
        "spec": { "containers": [{ "resources": { "limits": { "a.com/mem": "3000" } } }] }
    } } } });
    let facts = |lines: &[&str]| {
        lines
            .iter()
            .map(|line| (*line).to_owned())
            .collect::<Facts>()
    };
    // The rule, lines of the reference, lines of ours, and the rest of both.
    type Row<'a> = (
        &'a str,
        &'a [&'a str],
        &'a [&'a str],
        &'a [&'a str],
        &'a [&'a str],
    );
    const TO: &str = "annotation hami.io/vgpu-devices-to-allocate[0] = A";
    const SEED: &str = "annotation hami.io/devices-to-allocate[0] = A";
    const OTHER: &str = "annotation hami.io/devices-to-allocate[0] = B";
    const MEM: &str = "pod /spec/containers/0/resources/limits/a.com~1mem = ";
    const FIRST: &str = "annotation hami.io/vgpu-devices-allocated[0] = A";
    const FIRST_NONE: &str = "annotation hami.io/vgpu-devices-allocated[0] = none";
    const SECOND: &str = "annotation hami.io/vgpu-devices-allocated[1] = A";
    const SECOND_OTHER: &str = "annotation hami.io/vgpu-devices-allocated[1] = B";
    let (written, spelt, wrong, changed) = (
        format!("{MEM}\"3000\""),
        format!("{MEM}\"3k\""),
        format!("{MEM}\"4k\""),
        format!("{MEM}\"3001\""),
    );
    let rows: &[Row<'_>] = &[
        ("key-of-the-seed", &[], &[TO, SEED], &[], &[TO]),
        ("key-of-the-seed", &[], &[TO, OTHER], &[], &[TO, OTHER]),
        (
            "no-node-lock",
            &["node n hami.io/mutex.lock = held"],
            &[],
            &[],
            &[],
        ),
        (
            "no-node-lock",
            &[],
            &["node n hami.io/mutex.lock = held"],
            &[],
            &["node n hami.io/mutex.lock = held"],
        ),
        (
            "fewer-handshakes",
            &[
                "node n hami.io/node-handshake-dcu = Requesting_<datetime>",
                "node n x = y",
            ],
            &[],
            &["node n x = y"],
            &[],
        ),
        (
            "unresolvable",
            &["FailedNodes n: why", "FailedNodes m: why"],
            &[
                "FailedAndUnresolvableNodes n: why",
                "FailedAndUnresolvableNodes m: because",
            ],
            &["FailedNodes m: why"],
            &["FailedAndUnresolvableNodes m: because"],
        ),
        (
            "no-status-patch",
            &["pod /status = {}", "pod /x = 1"],
            &[],
            &["pod /x = 1"],
            &[],
        ),
        ("quantities-as-written", &[&spelt], &[&written], &[], &[]),
        (
            "quantities-as-written",
            &[&wrong],
            &[&written],
            &[&wrong],
            &[&written],
        ),
        (
            "quantities-as-written",
            &[&spelt],
            &[&changed],
            &[&spelt],
            &[&changed],
        ),
        ("empty-slots", &[FIRST], &[FIRST_NONE, SECOND], &[], &[]),
        (
            "empty-slots",
            &[FIRST],
            &[FIRST_NONE, SECOND_OTHER],
            &[FIRST],
            &[FIRST_NONE, SECOND_OTHER],
        ),
        (
            "empty-slots",
            &[FIRST],
            &[FIRST_NONE],
            &[FIRST],
            &[FIRST_NONE],
        ),
        (
            "quota-without-a-limit",
            &["quota ns gpumem = 1 of none", "quota ns gpumem = 1 of 5"],
            &[],
            &["quota ns gpumem = 1 of 5"],
            &[],
        ),
    ];
    for (name, theirs, ours, theirs_stay, ours_stay) in rows {
        let (_, rule) = RULES.iter().find(|(rule, _)| rule == name).unwrap();
        let all = facts(ours);
        let mut difference = Difference {
            reference: facts(theirs),
            ours: all.clone(),
        };
        let step = Step {
            step: &webhook,
            theirs: &facts(theirs),
            ours: &all,
            containers: 2,
        };
        rule(&step, &mut difference);
        assert_eq!(difference.reference, facts(theirs_stay), "{name}");
        assert_eq!(difference.ours, facts(ours_stay), "{name}");
    }
}
