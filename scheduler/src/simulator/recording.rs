//! Recordings of a cluster's changes, as JSON lines in the format of the reference's recorder and replayer. A line is
//! `{"time":"2026-11-21T12:07:49.263572864Z","event":"Add","resource":{…}}`; the event is `Add`, `Update` or `Delete`,
//! and the resource has `apiVersion` and `kind`. Values in, values out, except for [`Recorder`], which writes to a
//! file.

use std::collections::HashSet;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::kinds::{KINDS, Kind};

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// It is new.
    Add,
    /// It has changed.
    Update,
    /// It is gone.
    Delete,
}

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The time.
    pub time: Timestamp,
    /// The change.
    pub happening: ChangeKind,
    /// The object's kind.
    pub kind: Kind,
    /// The object.
    pub object: Value,
}

/// The pace of a replay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ReplayPace {
    /// As fast as possible.
    None,
    /// This many times as fast as the original; 1 is the original pace.
    Times(f64),
}

/// The text is no pace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected none, original, or how many times as fast: 10, 0.5")]
pub struct PaceError;

impl FromStr for ReplayPace {
    type Err = PaceError;

    fn from_str(text: &str) -> Result<Self, PaceError> {
        match text {
            "none" => Ok(Self::None),
            "original" => Ok(Self::Times(1.0)),
            number => match number.parse::<f64>() {
                Ok(times) if times.is_finite() && times > 0.0 => Ok(Self::Times(times)),
                _ => Err(PaceError),
            },
        }
    }
}

impl ReplayPace {
    /// When a line is due, after the start of the replay.
    pub fn due(self, first: Timestamp, line: Timestamp) -> Duration {
        match self {
            Self::None => Duration::ZERO,
            Self::Times(times) => {
                let after = line.duration_since(first).as_secs_f64().max(0.0) / times;
                Duration::try_from_secs_f64(after).unwrap_or(Duration::MAX)
            }
        }
    }
}

/// A line of a recording that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("line {number}: {problem}")]
pub struct LineError {
    /// Its number, from 1.
    pub number: usize,
    /// The problem with it.
    pub problem: LineProblem,
}

/// Why a line of a recording cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LineProblem {
    /// It is not JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// Its time.
    #[error("time: \"{0}\" is not a time such as 2026-11-21T12:07:49Z")]
    Time(String),
    /// Its event.
    #[error("event: \"{0}\" is not Add, Update or Delete")]
    Event(String),
    /// The object has no name.
    #[error("resource.metadata.name is missing")]
    NoName,
}

/// Reads a recording. Kinds that the simulator does not know and empty lines are skipped.
///
/// # Errors
///
/// The number of the first line that cannot be read, and why.
pub fn read(text: &str) -> Result<Vec<Line>, LineError> {
    let lines = text.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.trim().is_empty());
    let read = lines.map(|(at, line)| {
        parse(line).map_err(|problem| LineError {
            number: at + 1,
            problem,
        })
    });
    read.filter_map(Result::transpose).collect()
}

fn parse(line: &str) -> Result<Option<Line>, LineProblem> {
    let value: Value = serde_json::from_str(line)?;
    let text = |path: &str| {
        value
            .pointer(path)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let time = text("/time");
    let time = time
        .parse()
        .map_err(|_| LineProblem::Time(time.to_owned()))?;
    let happening = match text("/event") {
        "Add" => ChangeKind::Add,
        "Update" => ChangeKind::Update,
        "Delete" => ChangeKind::Delete,
        other => return Err(LineProblem::Event(other.to_owned())),
    };
    if text("/resource/metadata/name").is_empty() {
        return Err(LineProblem::NoName);
    }
    let (version, named) = (text("/resource/apiVersion"), text("/resource/kind"));
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let kind = KINDS.iter().find(|kind| {
        let plural = named.to_lowercase();
        kind.group == group
            && (kind.plural == plural + "s" || kind.plural == named.to_lowercase() + "es")
    });
    Ok(kind.map(|kind| Line {
        time,
        happening,
        kind: *kind,
        object: value.get("resource").cloned().unwrap_or_default(),
    }))
}

/// Formats a line. For an object that is gone, only its identifying fields are kept.
pub fn print(time: Timestamp, happening: ChangeKind, object: &Value) -> String {
    let event = match happening {
        ChangeKind::Add => "Add",
        ChangeKind::Update => "Update",
        ChangeKind::Delete => "Delete",
    };
    let resource = if happening == ChangeKind::Delete {
        let metadata = |name: &str| object.pointer(&format!("/metadata/{name}")).cloned();
        let mut short = json!({
            "apiVersion": object.get("apiVersion"), "kind": object.get("kind"), "metadata": { "name": metadata("name") },
        });
        let inner = short.get_mut("metadata").and_then(Value::as_object_mut);
        if let (Some(namespace), Some(inner)) = (metadata("namespace"), inner) {
            inner.insert("namespace".to_owned(), namespace);
        }
        short
    } else {
        object.clone()
    };
    json!({ "time": time.to_string(), "event": event, "resource": resource }).to_string()
}

/// Writes lines to a file.
#[derive(Debug)]
pub struct Recorder {
    file: BufWriter<std::fs::File>,
    known: HashSet<String>,
}

impl Recorder {
    /// Starts a new file, replacing an existing one.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn create(path: &Path) -> io::Result<Self> {
        Ok(Self {
            file: BufWriter::new(std::fs::File::create(path)?),
            known: HashSet::new(),
        })
    }

    /// Records the state of an object, or that it is gone.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write(&mut self, object: &Value, gone: bool) -> io::Result<()> {
        let text = |path: &str| {
            object
                .pointer(path)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let key = format!(
            "{}/{}/{}",
            text("/kind"),
            text("/metadata/namespace"),
            text("/metadata/name")
        );
        let happening = match (gone, self.known.contains(&key)) {
            (true, _) => ChangeKind::Delete,
            (false, true) => ChangeKind::Update,
            (false, false) => ChangeKind::Add,
        };
        if gone {
            self.known.remove(&key);
        } else {
            self.known.insert(key);
        }
        writeln!(self.file, "{}", print(Timestamp::now(), happening, object))?;
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> Value {
        json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "uid": "u" }, "spec": {} })
    }

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let time: Timestamp = "2026-11-21T12:07:49.263572864Z".parse().unwrap();

        let text = print(time, ChangeKind::Update, &node("n"));
        let lines = read(&format!("{text}\n\n{text}")).unwrap();

        assert_eq!(lines.len(), 2);
        assert_eq!(
            (lines[1].time, lines[1].happening),
            (time, ChangeKind::Update)
        );
        assert_eq!(
            (lines[1].kind.plural, &lines[1].object),
            ("nodes", &node("n"))
        );
        let gone = read(&print(time, ChangeKind::Delete, &node("n"))).unwrap();
        assert!(gone[0].object.get("spec").is_none());
    }

    #[test]
    fn a_line_that_cannot_be_read_is_named() {
        let good = print(Timestamp::UNIX_EPOCH, ChangeKind::Add, &node("n"));

        for (bad, why) in [
            ("{", "line 2: EOF"),
            ("{}", "line 2: time: \"\""),
            (&good.replace("Add", "Put"), "line 2: event: \"Put\""),
            (
                &good.replace("name", "nom"),
                "line 2: resource.metadata.name",
            ),
        ] {
            let said = read(&format!("{good}\n{bad}")).unwrap_err().to_string();
            assert!(said.starts_with(why), "{said}");
        }
        let unknown = good.replace("Node", "Widget");
        assert_eq!(read(&unknown).unwrap(), []);
    }

    #[test]
    fn a_pace_says_when_a_line_is_due() {
        let (first, later): (Timestamp, Timestamp) = (
            "2026-01-01T00:00:00Z".parse().unwrap(),
            "2026-01-01T00:00:20Z".parse().unwrap(),
        );
        let due = |pace: &str| {
            pace.parse::<ReplayPace>()
                .map(|pace| pace.due(first, later).as_secs())
        };

        assert_eq!(
            (due("none"), due("original"), due("10")),
            (Ok(0), Ok(20), Ok(2))
        );
        assert!(
            due("0").is_err() && due("-1").is_err() && due("fast").is_err() && due("NaN").is_err()
        );
        assert_eq!(ReplayPace::Times(1.0).due(later, first), Duration::ZERO);
    }
}
