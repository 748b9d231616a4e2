//! `vgpu doctor`: checks a container, a node or a cluster, and prints faults, evidence and cures. Owns the checks and
//! how their answers are printed.
//!
//! It works in two separate steps: gathering facts (files, the driver, an API server) and judging them. Judging reads
//! only the facts, so facts that were written to a file give the same verdicts on another machine. The command changes
//! nothing: the one object that it sends to an API server is sent as a dry run.

mod check;
mod elf;
mod print;
mod proc;
mod root;
mod scope;

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
use crate::args::doctor::{DoctorArgs, Scope};
use check::{CheckRow, CheckVerdict, Listed};

/// The version of the facts file that this release reads and writes.
const FACTS_VERSION: u32 = 1;

/// No cluster's facts are larger.
const MOST_FACTS_BYTES: u64 = 4 << 30;

/// The gathered facts, with their source and time.
#[derive(Debug, Serialize, Deserialize)]
struct Facts {
    /// [`FACTS_VERSION`].
    version: u32,
    /// Release of the command that gathered them.
    vgpu: String,
    /// Why this scope was chosen.
    why: String,
    /// Seconds since 1970.
    at_unix: u64,
    /// The facts themselves.
    seen: Gathered,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Gathered {
    Container(Box<container::ContainerFacts>),
    Node(Box<node::NodeFacts>),
    Cluster(Box<cluster::ClusterFacts>),
}

impl Facts {
    fn scope(&self) -> Scope {
        match self.seen {
            Gathered::Container(_) => Scope::Container,
            Gathered::Node(_) => Scope::Node,
            Gathered::Cluster(_) => Scope::Cluster,
        }
    }

    fn judge(&self, only: &[String]) -> Vec<CheckRow> {
        match &self.seen {
            Gathered::Container(facts) => check::judge(container::CHECKS, facts, only),
            Gathered::Node(facts) => check::judge(node::CHECKS, facts, only),
            Gathered::Cluster(facts) => check::judge(cluster::CHECKS, facts, only),
        }
    }
}

/// Every check there is, in the order of their ids.
fn listed() -> Vec<Listed> {
    let container = container::CHECKS
        .iter()
        .map(|check| check.listed(Scope::Container));
    let node = node::CHECKS.iter().map(|check| check.listed(Scope::Node));
    let cluster = cluster::CHECKS
        .iter()
        .map(|check| check.listed(Scope::Cluster));
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
    if let Some(id) = misplaced(&args.only, &all, facts.scope()) {
        return Err(Failure::usage(format!(
            "--only {id} is not a check of a {}; name its scope: vgpu doctor container, node or cluster",
            facts.scope().word()
        )));
    }
    if let Some(file) = &args.facts {
        write_facts(file, &facts)?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows = facts.judge(&args.only);
    print::rows(args, &facts, &rows)?;
    let has = |verdict| rows.iter().any(|row| row.verdict == verdict);
    Ok(match (has(CheckVerdict::Fail), has(CheckVerdict::Warn)) {
        (true, _) => ExitCode::from(1),
        (false, true) if args.strict => ExitCode::from(2),
        _ => ExitCode::SUCCESS,
    })
}

/// A check that `--only` names and that belongs to another scope.
fn misplaced<'a>(only: &'a [String], all: &[Listed], scope: Scope) -> Option<&'a String> {
    only.iter().find(|id| {
        !all.iter()
            .any(|check| check.id == id.as_str() && check.place == scope)
    })
}

fn facts(args: &DoctorArgs) -> Result<Facts, Failure> {
    if let Some(file) = &args.from {
        let facts = read_facts(file)?;
        if let Some(scope) = args.place
            && scope != facts.scope()
        {
            return Err(Failure::usage(format!(
                "{} contains facts of a {}, not of a {}",
                file.display(),
                facts.scope().word(),
                scope.word()
            )));
        }
        return Ok(facts);
    }
    let (scope, why) = match args.place {
        Some(scope) => (scope, String::from("as asked")),
        None if args.pid.is_some() => (Scope::Container, String::from("--pid was given")),
        None => scope::choose(args),
    };
    let seen = match scope {
        Scope::Container => Gathered::Container(Box::new(container::gather(args)?)),
        Scope::Node => Gathered::Node(Box::new(node::gather(args)?)),
        Scope::Cluster => Gathered::Cluster(Box::new(cluster::gather(args)?)),
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
    /// The part of a facts file that is read first, to learn its version.
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let expected = || format!("{shown} is not a file that vgpu doctor --facts wrote");
    let version: Version = serde_json::from_str(&text).with_context(expected)?;
    if version.version != FACTS_VERSION {
        bail!(
            "{shown} has facts of version {}, and this release reads version {FACTS_VERSION}; judge them with the release that gathered them",
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
