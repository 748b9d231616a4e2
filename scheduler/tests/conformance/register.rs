//! `tests/deviations.toml`: the only allowed differences from a recording. Every entry is asserted line by line, so
//! that an outdated entry fails. Engineers decide what is right, and give their reason in it.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;

use super::facts::Facts;

/// The whole register.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Register {
    /// Differences wherever a rule of `classes.rs` applies.
    #[serde(rename = "class", default)]
    pub(crate) classes: Vec<ClassEntry>,
    /// Differences of one step of one recording.
    #[serde(rename = "case", default)]
    pub(crate) cases: Vec<CaseEntry>,
    /// The assertions for a defect that the recorded steps alone do not show.
    #[serde(rename = "beyond", default)]
    pub(crate) beyond: Vec<BeyondEntry>,
}

/// A difference that a rule finds.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClassEntry {
    /// Name of the rule in `classes.rs`.
    pub(crate) rule: String,
    /// The reference's behaviour.
    pub(crate) reference: String,
    /// Our behaviour.
    pub(crate) ours: String,
    /// Why.
    pub(crate) reason: String,
    /// Recordings whose suspected defect is just this difference.
    #[serde(default)]
    pub(crate) defects: Vec<String>,
}

/// A difference of one step.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CaseEntry {
    /// The recording: the number that its name begins with.
    pub(crate) case: String,
    /// Which step, from 0.
    pub(crate) step: usize,
    /// Facts that only the reference has. If it leaves the answer to chance: facts of any of its answers.
    pub(crate) reference: BTreeSet<String>,
    /// Facts of ours that the reference lacks. Where it leaves the answer to chance: in any of its answers.
    pub(crate) ours: BTreeSet<String>,
    /// Why.
    pub(crate) reason: String,
}

/// A check that continues after the end of the recording.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BeyondEntry {
    /// The recording: the number that its name begins with.
    pub(crate) case: String,
    /// Name of the check in `beyond.rs`.
    pub(crate) check: String,
    /// The reference's behaviour.
    pub(crate) reference: String,
    /// The check's assertion about ours.
    pub(crate) ours: String,
}

impl Register {
    /// Reads the register.
    pub(crate) fn read(file: &Path) -> Self {
        let text = std::fs::read_to_string(file).unwrap();
        toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
    }

    /// The entry of this step.
    pub(crate) fn case(&self, id: &str, step: usize) -> Option<&CaseEntry> {
        self.cases
            .iter()
            .find(|entry| entry.step == step && is(id, &entry.case))
    }
}

/// Whether a number names this recording.
pub(crate) fn is(id: &str, number: &str) -> bool {
    id.split('-').next() == Some(number)
}

/// How one step's answers differ.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Facts that only the reference has.
    pub(crate) reference: Facts,
    /// Facts that only ours has.
    pub(crate) ours: Facts,
}

impl Difference {
    /// The difference between ours and all possible answers of the reference. If it has one answer, the difference is
    /// what each lacks of the other. If it has several, the facts that they do not share are chance, and count as a
    /// difference.
    pub(crate) fn between(theirs: &[&Facts], ours: &Facts) -> Self {
        let some: Facts = theirs
            .iter()
            .flat_map(|facts| facts.iter().cloned())
            .collect();
        let always = |fact: &String| theirs.iter().all(|facts| facts.contains(fact));
        Self {
            reference: some.difference(ours).cloned().collect(),
            ours: ours.iter().filter(|fact| !always(fact)).cloned().collect(),
        }
    }

    /// Whether there is no difference.
    pub(crate) fn is_none(&self) -> bool {
        self.reference.is_empty() && self.ours.is_empty()
    }

    /// As an entry of the register, for the person that decides to add it.
    pub(crate) fn entry(&self, id: &str, step: usize) -> String {
        let number = id.split('-').next().unwrap_or(id);
        format!(
            "[[case]]\ncase = {number:?}\nstep = {step}\nreference = [{}]\nours = [{}]\nreason = \"\"\n",
            lines(&self.reference),
            lines(&self.ours)
        )
    }
}

fn lines(facts: &Facts) -> String {
    if facts.is_empty() {
        return String::new();
    }
    let lines: Vec<String> = facts
        .iter()
        .map(|fact| {
            if fact.contains('\'') {
                format!("  {},\n", serde_json::Value::from(fact.as_str()))
            } else {
                format!("  '{fact}',\n")
            }
        })
        .collect();
    format!("\n{}", lines.concat())
}
