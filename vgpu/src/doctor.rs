//! `vgpu doctor`: looks at a container, a node or a cluster and says what is wrong, what was seen, and what to do. Owns
//! the checks, and how their answers are printed.
//!
//! Two steps that never mix: facts are gathered (files, the driver, an API server), then judged. What judges asks
//! nobody, so facts that were written to a file are judged elsewhere as they would have been there. Never changes
//! anything: the one object that it sends to an API server is sent as a dry run.

pub(crate) mod args;
mod check;
mod elf;
mod place;
mod print;
mod proc;
mod root;

mod container;

mod node;

mod cluster;

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::Failure;
use args::{DoctorArgs, Place};
use check::{Listed, Row, Verdict};

/// Facts of this form are read.
const FACTS_VERSION: u32 = 1;

/// More than any cluster's facts are.
const MOST_FACTS_BYTES: u64 = 4 << 30;

/// What was gathered, with where and when.
#[derive(Debug, Serialize, Deserialize)]
struct Facts {
    /// [`FACTS_VERSION`].
    version: u32,
    /// Release of the command that gathered them.
    vgpu: String,
    /// Why this place was chosen.
    why: String,
    /// Seconds since 1970.
    at_unix: u64,
    /// What was seen.
    seen: Seen,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Seen {
    Container(Box<container::ContainerFacts>),
    Node(Box<node::NodeFacts>),
    Cluster(Box<cluster::ClusterFacts>),
}

impl Facts {
    fn place(&self) -> Place {
        match self.seen {
            Seen::Container(_) => Place::Container,
            Seen::Node(_) => Place::Node,
            Seen::Cluster(_) => Place::Cluster,
        }
    }

    fn judge(&self, only: &[String]) -> Vec<Row> {
        match &self.seen {
            Seen::Container(facts) => check::judge(container::CHECKS, facts, only),
            Seen::Node(facts) => check::judge(node::CHECKS, facts, only),
            Seen::Cluster(facts) => check::judge(cluster::CHECKS, facts, only),
        }
    }
}

/// Every check there is, in the order of their ids.
fn listed() -> Vec<Listed> {
    let container = container::CHECKS
        .iter()
        .map(|check| check.listed(Place::Container));
    let node = node::CHECKS.iter().map(|check| check.listed(Place::Node));
    let cluster = cluster::CHECKS
        .iter()
        .map(|check| check.listed(Place::Cluster));
    container.chain(node).chain(cluster).collect()
}

pub(crate) fn run(args: &DoctorArgs) -> Result<ExitCode, Failure> {
    let all = listed();
    for id in &args.only {
        if !all.iter().any(|check| check.id == id) {
            return Err(Failure::usage(format!(
                "--only {id}: there is no such check; vgpu doctor --list shows them all"
            )));
        }
    }
    if args.list {
        let shown: Vec<&Listed> = all
            .iter()
            .filter(|check| args.place.is_none_or(|place| place == check.place))
            .filter(|check| args.only.is_empty() || args.only.iter().any(|id| id == check.id))
            .collect();
        print::list(&shown, args.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let facts = facts(args)?;
    if let Some(id) = misplaced(&args.only, &all, facts.place()) {
        return Err(Failure::usage(format!(
            "--only {id}: this is no check of a {}; say where to look: vgpu doctor container, node or cluster",
            facts.place().word()
        )));
    }
    if let Some(file) = &args.facts {
        write_facts(file, &facts)?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows = facts.judge(&args.only);
    print::rows(args, &facts, &rows)?;
    let has = |verdict| rows.iter().any(|row| row.verdict == verdict);
    Ok(match (has(Verdict::Fail), has(Verdict::Warn)) {
        (true, _) => ExitCode::from(1),
        (false, true) if args.strict => ExitCode::from(2),
        _ => ExitCode::SUCCESS,
    })
}

/// A check that was asked for by name and belongs to another place.
fn misplaced<'a>(only: &'a [String], all: &[Listed], place: Place) -> Option<&'a String> {
    only.iter().find(|id| {
        !all.iter()
            .any(|check| check.id == id.as_str() && check.place == place)
    })
}

fn facts(args: &DoctorArgs) -> Result<Facts, Failure> {
    if let Some(file) = &args.from {
        let facts = read_facts(file)?;
        if let Some(place) = args.place
            && place != facts.place()
        {
            return Err(Failure::usage(format!(
                "{} has the facts of a {}, not of a {}",
                file.display(),
                facts.place().word(),
                place.word()
            )));
        }
        return Ok(facts);
    }
    let (place, why) = match args.place {
        Some(place) => (place, String::from("as asked")),
        None if args.pid.is_some() => (Place::Container, String::from("--pid was given")),
        None => place::choose(args),
    };
    let seen = match place {
        Place::Container => Seen::Container(Box::new(container::gather(args)?)),
        Place::Node => Seen::Node(Box::new(node::gather(args)?)),
        Place::Cluster => Seen::Cluster(Box::new(cluster::gather(args)?)),
    };
    Ok(Facts {
        version: FACTS_VERSION,
        vgpu: env!("CARGO_PKG_VERSION").to_owned(),
        why,
        at_unix: root::unix_now(),
        seen,
    })
}

fn read_facts(file: &Path) -> anyhow::Result<Facts> {
    let shown = file.display();
    let mut text = String::new();
    let read = if file == Path::new("-") {
        std::io::stdin()
            .take(MOST_FACTS_BYTES)
            .read_to_string(&mut text)
    } else {
        File::open(file).and_then(|file| file.take(MOST_FACTS_BYTES).read_to_string(&mut text))
    };
    read.with_context(|| format!("cannot read {shown}"))?;
    /// What is read of facts before their form is known.
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let expected = || format!("{shown} has no facts of vgpu doctor --facts in it");
    let version: Version = serde_json::from_str(&text).with_context(expected)?;
    if version.version != FACTS_VERSION {
        bail!(
            "{shown} has facts of form {}, and this command reads form {FACTS_VERSION}: judge them with the release that gathered them",
            version.version
        );
    }
    serde_json::from_str(&text).with_context(expected)
}

fn write_facts(file: &Path, facts: &Facts) -> anyhow::Result<()> {
    let mut text = serde_json::to_vec_pretty(facts)?;
    text.push(b'\n');
    if file == Path::new("-") {
        std::io::stdout().write_all(&text)?;
        return Ok(());
    }
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}
