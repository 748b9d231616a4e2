//! The whole program, compared with every recording of the reference: started as it was, driven only by HTTP,
//! compared as `tests/vectors/hami/README.md` says. `tests/deviations.toml` lists the only allowed differences.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test: a panic is its answer"
)]

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

mod beyond;
mod classes;
mod codec;
mod damage;
mod driven;
mod exposition;
mod facts;
pub(crate) mod http;
pub(crate) mod program;
mod recorded;
mod register;
mod steps;

use facts::Facts;
use register::{Difference, Register, is};

/// How many programs run at one time.
const AT_ONCE: usize = 4;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors/hami")
}

fn register() -> Register {
    Register::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/deviations.toml"))
}

/// The recordings of this run: all, or with `VGPU_CASE=131` those whose name begins with it.
fn cases() -> Vec<Value> {
    let only = std::env::var("VGPU_CASE").unwrap_or_default();
    let mut cases = all_cases();
    cases.retain(|case| id(case).starts_with(&only));
    cases
}

/// Every recording, by its file's name.
fn all_cases() -> Vec<Value> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .collect();
    files.sort();
    files
        .iter()
        .map(|file| serde_json::from_slice::<Value>(&std::fs::read(file).unwrap()).unwrap())
        .collect()
}

fn id(case: &Value) -> &str {
    case["id"].as_str().unwrap()
}

/// The result for one recording.
#[derive(Default)]
struct Found {
    wrong: Vec<String>,
    /// Rules that took something out of a difference.
    rules: BTreeSet<&'static str>,
    /// Steps whose entry was met.
    steps: BTreeSet<usize>,
}

#[test]
fn every_recording_is_answered_as_the_register_says() {
    let register = register();
    let cases = cases();
    let found = of_each(&cases, |case| compare(case, &register));
    let mut wrong: Vec<String> = found
        .iter()
        .flat_map(|(_, one)| one.wrong.iter().cloned())
        .collect();
    if std::env::var_os("VGPU_CASE").is_none() {
        wrong.extend(idle_entries(&register, &found));
    }
    assert!(
        wrong.is_empty(),
        "{} of {} recordings differ otherwise than tests/deviations.toml says:\n\n{}",
        found
            .iter()
            .filter(|(_, one)| !one.wrong.is_empty())
            .count(),
        found.len(),
        wrong.join("\n")
    );
}

/// Something about every recording, a few at a time, in their order.
fn of_each(cases: &[Value], find: impl Fn(&Value) -> Found + Sync) -> Vec<(String, Found)> {
    let next = AtomicUsize::new(0);
    let found: Mutex<Vec<(String, Found)>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let one = std::panic::catch_unwind(AssertUnwindSafe(|| find(case)));
                    let one = one.unwrap_or_else(|panic| Found {
                        wrong: vec![format!("{}: {}", id(case), text_of(&*panic))],
                        ..Found::default()
                    });
                    found.lock().unwrap().push((id(case).to_owned(), one));
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap();
    found.sort_by(|one, other| one.0.cmp(&other.0));
    found
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "panicked".to_owned())
}

fn compare(case: &Value, register: &Register) -> Found {
    let id = id(case);
    let mut found = Found::default();
    let mut answers = recorded::answers(case);
    answers.dedup();
    let mut driven = driven::Driven::start(case, &folder());
    let ours = driven.run();
    let listed = register.cases.iter().any(|entry| is(id, &entry.case));
    if answers.len() > 1 && !listed {
        one_of(case, register, &answers, &ours, &mut found);
    } else {
        for number in 0..ours.len() {
            let theirs: Vec<&Facts> = answers.iter().map(|steps| &steps[number]).collect();
            let difference = judged(case, register, number, &theirs, &ours[number], &mut found);
            report(case, register, number, &difference, &mut found);
        }
    }
    for entry in register.beyond.iter().filter(|entry| is(id, &entry.case)) {
        match beyond::CHECKS.iter().find(|(name, _)| *name == entry.check) {
            Some((name, check)) => found.wrong.extend(
                check(&mut driven, case)
                    .err()
                    .map(|why| format!("{id}: {name}: {why} ({})", entry.ours)),
            ),
            None => found.wrong.push(format!("{id}: no check {}", entry.check)),
        }
    }
    found
}

/// The rest of a step's difference after every rule has been applied.
fn judged(
    case: &Value,
    register: &Register,
    number: usize,
    theirs: &[&Facts],
    ours: &Facts,
    found: &mut Found,
) -> Difference {
    let step = &case["steps"][number];
    let context = classes::Step {
        step,
        theirs: theirs[0],
        ours,
        containers: steps::containers(case, step),
    };
    let mut difference = Difference::between(theirs, ours);
    for (name, rule) in classes::RULES {
        if register.classes.iter().any(|class| class.rule == *name) {
            let before = difference.clone();
            rule(&context, &mut difference);
            if difference != before {
                found.rules.insert(name);
            }
        }
    }
    difference
}

fn report(
    case: &Value,
    register: &Register,
    number: usize,
    difference: &Difference,
    found: &mut Found,
) {
    let id = id(case);
    match register.case(id, number) {
        None if difference.is_none() => {}
        None => found.wrong.push(format!(
            "{id}: {}\n{}",
            case["title"].as_str().unwrap_or_default(),
            difference.entry(id, number)
        )),
        Some(entry) => {
            found.steps.insert(number);
            if entry.reference != difference.reference || entry.ours != difference.ours {
                found.wrong.push(format!(
                    "{id}, step {number} is on the register ({}) and differs like this:\n{}",
                    entry.reason,
                    difference.entry(id, number)
                ));
            }
        }
    }
}

/// If the reference has several answers, ours must be one of them from the first step to the last, and the same one
/// when the run is repeated.
fn one_of(
    case: &Value,
    register: &Register,
    answers: &[Vec<Facts>],
    ours: &[Facts],
    found: &mut Found,
) {
    let id = id(case);
    let like = answers.iter().position(|answer| {
        (0..ours.len()).all(|number| {
            let theirs = [&answer[number]];
            judged(case, register, number, &theirs, &ours[number], found).is_none()
        })
    });
    if like.is_none() {
        found.wrong.push(format!(
            "{id} gives none of the answers that the reference leaves to chance; against the first:"
        ));
        for number in 0..ours.len() {
            let theirs = [&answers[0][number]];
            let difference = judged(case, register, number, &theirs, &ours[number], found);
            report(case, register, number, &difference, found);
        }
    }
    found.rules.insert(classes::LEFT_TO_CHANCE);
    let again = driven::Driven::start(case, &folder()).run();
    if again != ours {
        found
            .wrong
            .push(format!("{id} is answered otherwise the second time"));
    }
}

/// Entries that nothing needed.
fn idle_entries(register: &Register, found: &[(String, Found)]) -> Vec<String> {
    let mut idle = Vec::new();
    for class in &register.classes {
        if !found
            .iter()
            .any(|(_, one)| one.rules.contains(&*class.rule))
        {
            idle.push(format!("class {} applies to no recording", class.rule));
        }
        for number in &class.defects {
            let applies = found
                .iter()
                .any(|(id, one)| is(id, number) && one.rules.contains(&*class.rule));
            if !applies {
                idle.push(format!("class {} does not apply to {number}", class.rule));
            }
        }
    }
    for entry in &register.cases {
        let met = found
            .iter()
            .any(|(id, one)| is(id, &entry.case) && one.steps.contains(&entry.step));
        if !met {
            idle.push(format!("there is no step {} of {}", entry.step, entry.case));
        }
    }
    idle
}

#[test]
fn damaged_recordings_promise_no_gpu_twice() {
    let cases = cases();
    let (asked, figures) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let found = of_each(&cases, |case| {
        let mut driven = driven::Driven::start(case, &folder());
        driven.run();
        let damage = driven.program().map(|program| damage::check(case, program));
        let damage = damage.unwrap_or_default();
        asked.fetch_add(damage.asked, Ordering::Relaxed);
        figures.fetch_add(damage.figures, Ordering::Relaxed);
        let wrong = damage.wrong.into_iter();
        Found {
            wrong: wrong.map(|line| format!("{}: {line}", id(case))).collect(),
            ..Found::default()
        }
    });
    let wrong: Vec<String> = found.into_iter().flat_map(|(_, one)| one.wrong).collect();
    let (asked, figures) = (asked.into_inner(), figures.into_inner());
    eprintln!("{asked} damaged requests, {figures} figures of devices");
    let all = std::env::var_os("VGPU_CASE").is_none();
    assert!(!all || asked > 5_000 && figures > 400, "{asked} {figures}");
    assert!(
        wrong.is_empty(),
        "{} times:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(40)].join("\n")
    );
}

#[test]
fn the_register_has_every_suspected_defect_with_a_reason() {
    let register = register();
    let mut wrong = Vec::new();
    let listed: BTreeSet<&String> = register
        .cases
        .iter()
        .map(|entry| &entry.case)
        .chain(register.classes.iter().flat_map(|class| &class.defects))
        .chain(register.beyond.iter().map(|entry| &entry.case))
        .collect();
    let cases = all_cases();
    for case in &cases {
        if case["suspectedBug"].is_string() && !listed.iter().any(|number| is(id(case), number)) {
            wrong.push(format!(
                "{} is not on the register: {}",
                id(case),
                case["suspectedBug"]
            ));
        }
    }
    for class in &register.classes {
        if !classes::RULES.iter().any(|(name, _)| *name == class.rule) {
            wrong.push(format!("class {}: no such rule", class.rule));
        }
        let said = [&class.reference, &class.ours, &class.reason];
        if said.iter().any(|text| text.trim().is_empty()) {
            wrong.push(format!("class {} does not say all", class.rule));
        }
    }
    for entry in &register.beyond {
        if [&entry.reference, &entry.ours]
            .iter()
            .any(|text| text.trim().is_empty())
        {
            wrong.push(format!("check {} does not say all", entry.check));
        }
    }
    for (name, _) in classes::RULES {
        if !register.classes.iter().any(|class| class.rule == *name) {
            wrong.push(format!("rule {name} is not on the register"));
        }
    }
    for entry in &register.cases {
        let what = format!("case {}, step {}", entry.case, entry.step);
        if entry.reason.trim().is_empty() {
            wrong.push(format!("{what} has no reason"));
        }
        if entry.reference.is_empty() && entry.ours.is_empty() {
            wrong.push(format!("{what} names no difference"));
        }
        if !cases.iter().any(|case| is(id(case), &entry.case)) {
            wrong.push(format!("{what}: there is no such recording"));
        }
        let same =
            |other: &&register::CaseEntry| other.case == entry.case && other.step == entry.step;
        if register.cases.iter().filter(same).count() > 1 {
            wrong.push(format!("{what} is there twice"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn differences_are_found_and_chance_is_allowed() {
    let facts = |text: &str| text.split(' ').map(str::to_owned).collect::<Facts>();
    let check = |theirs: &[&str], ours: &str, reference: &str, only: &str| {
        let theirs: Vec<Facts> = theirs.iter().map(|text| facts(text)).collect();
        let theirs: Vec<&Facts> = theirs.iter().collect();
        let difference = Difference::between(&theirs, &facts(ours));
        let line = |facts: &Facts| facts.iter().cloned().collect::<Vec<_>>().join(" ");
        assert_eq!(line(&difference.reference), reference, "{theirs:?}");
        assert_eq!(line(&difference.ours), only, "{theirs:?}");
    };
    check(&["a b"], "a b", "", "");
    check(&["a b"], "a c", "b", "c");
    check(&["a x", "a x"], "a x", "", "");
    check(&["a x", "a y"], "a x", "y", "x");
    check(&["a x", "a y"], "a z", "x y", "z");
}
