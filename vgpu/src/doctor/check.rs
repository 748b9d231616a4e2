//! A check, its verdict and its evidence.
//!
//! Never gathers: a check reads only facts.

use serde::Serialize;

use crate::args::doctor::Scope;

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum CheckVerdict {
    /// It is as it should be.
    Ok,
    /// It works, but the user should know about it or change it.
    Warn,
    /// It is broken.
    Fail,
    /// It could not be checked, or does not apply here.
    Skipped,
}

impl CheckVerdict {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
            Self::Skipped => "skipped",
        }
    }
}

/// A verdict with its evidence: what was read, and from where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) verdict: CheckVerdict,
    pub(super) evidence: String,
}

/// `Err` is also a verdict: it lets a check return early with `?`.
pub(super) type Judged = Result<Finding, Finding>;

pub(super) fn ok(evidence: impl Into<String>) -> Finding {
    finding(CheckVerdict::Ok, evidence)
}

pub(super) fn warn(evidence: impl Into<String>) -> Finding {
    finding(CheckVerdict::Warn, evidence)
}

pub(super) fn fail(evidence: impl Into<String>) -> Finding {
    finding(CheckVerdict::Fail, evidence)
}

pub(super) fn skip(why: impl Into<String>) -> Finding {
    finding(CheckVerdict::Skipped, why)
}

fn finding(verdict: CheckVerdict, evidence: impl Into<String>) -> Finding {
    Finding {
        verdict,
        evidence: evidence.into(),
    }
}

/// One check of facts `F`.
pub(super) struct Check<F: 'static> {
    /// The id. It never changes its meaning and is never reused.
    pub(super) id: &'static str,
    /// A statement that is true if the check is ok.
    pub(super) title: &'static str,
    /// The advice if it is not, in one line.
    pub(super) cure: &'static str,
    pub(super) judge: fn(&F) -> Judged,
}

/// A check as `--list` shows it.
#[derive(Debug, Serialize)]
pub(super) struct Listed {
    pub(super) id: &'static str,
    pub(super) place: Scope,
    pub(super) title: &'static str,
    pub(super) cure: &'static str,
}

impl<F> Check<F> {
    pub(super) fn listed(&self, place: Scope) -> Listed {
        Listed {
            id: self.id,
            place,
            title: self.title,
            cure: self.cure,
        }
    }
}

/// A check with its answer.
#[derive(Debug, Serialize)]
pub(super) struct CheckRow {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) verdict: CheckVerdict,
    /// The text that was read, and from where; for a skipped check the reason.
    pub(super) evidence: String,
    /// `None` if there is nothing to do.
    pub(super) cure: Option<&'static str>,
}

/// Runs every check, or those named in `only`.
pub(super) fn judge<F>(checks: &[Check<F>], facts: &F, only: &[String]) -> Vec<CheckRow> {
    checks
        .iter()
        .filter(|check| only.is_empty() || only.iter().any(|id| id == check.id))
        .map(|check| {
            let (Ok(found) | Err(found)) = (check.judge)(facts);
            CheckRow {
                id: check.id,
                title: check.title,
                verdict: found.verdict,
                evidence: found.evidence,
                cure: matches!(found.verdict, CheckVerdict::Fail | CheckVerdict::Warn)
                    .then_some(check.cure),
            }
        })
        .collect()
}

/// The most items that one line of evidence names.
const MOST_NAMED: usize = 5;

/// A list in one line: the first few items, and how many more there are.
pub(super) fn several<T: AsRef<str>>(things: &[T]) -> String {
    let mut text = things
        .iter()
        .take(MOST_NAMED)
        .map(AsRef::as_ref)
        .collect::<Vec<_>>()
        .join("; ");
    if things.len() > MOST_NAMED {
        text.push_str(&format!("; and {} more", things.len() - MOST_NAMED));
    }
    text
}
