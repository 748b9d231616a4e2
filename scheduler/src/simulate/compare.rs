//! `simulate compare`: turns flags and files into a question, and its answer into a table, JSON and a chart. Everything
//! is read and checked before the first run, and nothing is printed or written unless all runs succeed.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use server::LogFormat;

use super::{of_cluster, parse, read, vendors};
use crate::simulator::compare::{Added, Base, Question, Variant};
use crate::simulator::{Import, recording};

/// Flags of `simulate compare`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Each --with, --add-nodes and --drain is a run of its own, beside the run of the base as it is.

Examples:
  vgpu simulate compare base.yaml --with policy-b.yaml --add-nodes 2 --drain n7
  vgpu simulate compare base.yaml --anew --with binpack.yaml --with spread.yaml
  vgpu simulate compare today.jsonl --with policy-b.yaml --svg compare.svg
  vgpu simulate compare --from-cluster --drain n7 --output json")]
pub struct CompareArgs {
    /// The initial state of every run: the output of GET /api/v1/export (YAML or JSON), or a recording (JSON lines); -
    /// for the standard input.
    #[arg(value_name = "BASE", required_unless_present = "from_cluster")]
    pub base: Option<PathBuf>,

    /// Start with the current objects of a real cluster. Nothing is written there.
    #[arg(long, conflicts_with = "base")]
    pub from_cluster: bool,

    /// A kubeconfig for the real cluster; by default $KUBECONFIG, ~/.kube/config, or the pod's own service account.
    #[arg(long, value_name = "FILE", requires = "from_cluster")]
    pub kubeconfig: Option<PathBuf>,

    /// Copy only objects with these labels from the real cluster: app=web, several separated by commas.
    #[arg(
        long,
        value_name = "LABELS",
        default_value = "",
        requires = "from_cluster"
    )]
    pub cluster_labels: String,

    /// The scheduler configuration of the base run, instead of the one in the export or kube-scheduler's defaults.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Add a run with this scheduler configuration, YAML or JSON. May be given several times.
    #[arg(long, value_name = "FILE")]
    pub with: Vec<PathBuf>,

    /// Add a run with this many more nodes: copies of the most common node, or of a named one: 2, 2:gpu-1. May be given
    /// several times.
    #[arg(long, value_name = "COUNT[:NODE]")]
    pub add_nodes: Vec<Added>,

    /// Add a run without these nodes, separated by commas: they are cordoned, and their pods are placed elsewhere. May
    /// be given several times.
    #[arg(long, value_name = "NODES")]
    pub drain: Vec<String>,

    /// Add a run with all changes at once.
    #[arg(long)]
    pub together: bool,

    /// Place every pod again, in every run; by default pods that have a node keep it.
    #[arg(long)]
    pub anew: bool,

    /// The format of the output.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    pub output: Output,

    /// Write a chart of the figures to this file.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

    /// How many runs may execute at the same time; by default the number of processors. It does not change the figures.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,

    /// Log level: error, warn, info or debug, or directives such as warn,kube=debug.
    #[arg(
        long,
        env = "VGPU_SCHEDULER_LOG",
        value_name = "FILTER",
        default_value = "error"
    )]
    pub log: String,
}

/// The format of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Table,
    /// For programs.
    Json,
}

pub(super) fn program(name: &str, args: CompareArgs) -> ExitCode {
    let filter = args.log.clone();
    let runtime = &mut tokio::runtime::Builder::new_multi_thread();
    server::program(name, LogFormat::Text, &filter, runtime, run(args))
}

async fn run(args: CompareArgs) -> anyhow::Result<()> {
    let question = question(&args).await?;
    let vendors = Arc::new(vendors()?);
    let threads = match args.threads {
        Some(threads) => usize::from(threads),
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let answer = tokio::task::spawn_blocking(move || question.answer(&vendors, threads));
    let comparison = answer.await.context("the comparison ended early")??;
    let text = match args.output {
        Output::Table => comparison.table(),
        Output::Json => serde_json::to_string_pretty(&comparison)? + "\n",
    };
    if let Some(path) = &args.svg {
        std::fs::write(path, comparison.chart())
            .with_context(|| format!("--svg {} cannot be written", path.display()))?;
    }
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader has closed the pipe.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("the standard output cannot be written"),
    }
}

/// Reads all files and checks the flags.
async fn question(args: &CompareArgs) -> anyhow::Result<Question> {
    let mut variants: Vec<Variant> = Vec::new();
    for path in &args.with {
        let said = || format!("--with {}", path.display());
        variants.push(Variant {
            name: title(path),
            configuration: Some(read(path).with_context(said)?),
            ..Variant::default()
        });
    }
    for added in &args.add_nodes {
        let nodes = if added.count == 1 { "node" } else { "nodes" };
        let name = match &added.like {
            Some(like) => format!("+{} {nodes} like {like}", added.count),
            None => format!("+{} {nodes}", added.count),
        };
        variants.push(Variant {
            name,
            add: vec![added.clone()],
            ..Variant::default()
        });
    }
    for list in &args.drain {
        let names: Vec<String> = list
            .split(',')
            .map(|name| name.trim().to_owned())
            .filter(|name| !name.is_empty())
            .collect();
        if names.is_empty() {
            bail!("--drain {list:?} names no node; expected names separated by commas: n7,n8");
        }
        variants.push(Variant {
            name: format!("drain {}", names.join(",")),
            drain: names,
            ..Variant::default()
        });
    }
    if args.together {
        variants.push(together(&variants)?);
    }
    if variants.is_empty() {
        bail!(
            "there is nothing to compare with; --with FILE takes another configuration, --add-nodes COUNT more nodes, \
             --drain NODES takes nodes away"
        );
    }
    let configuration = match &args.config {
        Some(path) => {
            let said = || format!("--config {}", path.display());
            Some(read(path).with_context(said)?)
        }
        None => None,
    };
    let base = match &args.base {
        Some(path) => base(path)?,
        None => {
            let import = of_cluster(args.kubeconfig.as_deref(), &args.cluster_labels);
            Base::of_export("the cluster", import.await.context("--from-cluster")?)
        }
    };
    Ok(Question {
        base,
        configuration,
        variants,
        anew: args.anew,
    })
}

fn together(variants: &[Variant]) -> anyhow::Result<Variant> {
    let mut all = Variant {
        name: "together".to_owned(),
        ..Variant::default()
    };
    if variants.len() < 2 {
        bail!("--together needs two changes or more of --with, --add-nodes and --drain");
    }
    for variant in variants {
        if variant.configuration.is_some() && all.configuration.is_some() {
            bail!("--together takes one --with: a run has one configuration");
        }
        all.configuration = variant.configuration.clone().or(all.configuration);
        all.add.extend(variant.add.iter().cloned());
        all.drain.extend(variant.drain.iter().cloned());
    }
    Ok(all)
}

/// A file's display name: its name without folder and extension.
fn title(path: &Path) -> String {
    let name = path.file_stem().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}

fn base(path: &Path) -> anyhow::Result<Base> {
    let (name, text) = if path == Path::new("-") {
        let mut text = String::new();
        let read = std::io::stdin().read_to_string(&mut text);
        read.context("the standard input cannot be read")?;
        ("the standard input".to_owned(), text)
    } else {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("{name}: expected an export or a recording"))?;
        (name, text)
    };
    if is_recording(&text) {
        let lines = recording::read(&text).with_context(|| name.clone())?;
        return Ok(Base::of_recording(&name, lines));
    }
    let value = parse(&text).with_context(|| {
        format!("{name}: expected what GET /api/v1/export prints, or the lines of a recording")
    })?;
    let import = Import::read(value).with_context(|| name.clone())?;
    Ok(Base::of_export(&name, import))
}

/// Whether the first line is an event of a recording.
fn is_recording(text: &str) -> bool {
    let first = text.lines().find(|line| !line.trim().is_empty());
    let line = first.and_then(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    line.is_some_and(|line| line.get("event").is_some() && line.get("resource").is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_known_by_its_first_line() {
        let line = r#"{"time":"2026-01-01T00:00:00Z","event":"Add","resource":{}}"#;

        assert!(is_recording(line) && is_recording(&format!("\n{line}\nnot json")));
        assert!(!is_recording("{\n\"pods\": []}") && !is_recording(r#"{"pods":[]}"#));
        assert!(!is_recording("pods: []") && !is_recording(""));
    }

    #[test]
    fn all_changes_at_once_take_one_configuration() {
        let with = Variant {
            configuration: Some(serde_json::json!({})),
            ..Variant::default()
        };
        let drain = Variant {
            drain: vec!["n".to_owned()],
            ..Variant::default()
        };

        let both = together(&[with.clone(), drain.clone()]).unwrap();

        assert!(both.configuration.is_some() && both.drain == ["n"]);
        assert!(together(&[with.clone(), with]).is_err());
        assert!(together(&[drain]).is_err());
    }
}
