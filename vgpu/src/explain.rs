//! `vgpu explain`: why a pod is not placed, and the smallest change that would place it. Owns the choice of source and
//! how the answer is printed.
//!
//! Never judges: the answer comes from a scheduler over HTTP, or from the scheduler's own code run here.

mod sources;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use scheduler::explain::Explained;

use crate::Failure;
use crate::args::explain::ExplainArgs;

pub(crate) fn run(args: &ExplainArgs) -> Result<ExitCode, Failure> {
    // Exit code 1 means that the pod does not fit, so any failure to answer is 2.
    answer(args).map_err(|error| {
        if crate::is_broken_pipe(&error) {
            Failure::Failed(error)
        } else {
            Failure::usage(format!("{error:#}"))
        }
    })
}

fn answer(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let (namespace, name) = named(args)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    let explained = runtime.block_on(async {
        tokio::time::timeout(args.timeout, sources::ask(args, namespace, name))
            .await
            .with_context(|| format!("no answer within {:?}", args.timeout))?
    })?;
    print(args, &explained)?;
    Ok(if explained.verdict.is_no() {
        ExitCode::from(1)
    } else {
        ExitCode::SUCCESS
    })
}

/// The namespace, where one was said, and the name.
fn named(args: &ExplainArgs) -> anyhow::Result<(Option<&str>, &str)> {
    let (namespace, name) = match (args.pod.split_once('/'), &args.namespace) {
        (None, namespace) => (namespace.as_deref(), args.pod.as_str()),
        (Some((namespace, name)), None) => (Some(namespace), name),
        (Some((namespace, name)), Some(said)) => {
            ensure!(
                namespace == said,
                "{} is in namespace {namespace}, and --namespace says {said}",
                args.pod
            );
            (Some(namespace), name)
        }
    };
    for word in namespace.into_iter().chain([name]) {
        let is_name = !word.is_empty()
            && word.bytes().all(|byte| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte)
            });
        ensure!(
            is_name,
            "{word:?} is no name: NAME or NAMESPACE/NAME, of lower case letters, digits, - and ."
        );
    }
    Ok((namespace, name))
}

fn print(args: &ExplainArgs, explained: &Explained) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, explained).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        write!(out, "{explained}")?;
    }
    Ok(())
}
