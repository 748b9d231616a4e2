//! The node agent as a process: settings, a port, a signal to stop.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Parser;
use server::{Listener, Manners, Readiness};
use vgpu_monitor::arbiter::Arbiter;
use vgpu_monitor::args::Args;
use vgpu_monitor::exporter::Names;
use vgpu_monitor::gpu::Asker;
use vgpu_monitor::node::Node;

fn main() -> ExitCode {
    let args = Args::parse();
    let (format, filter) = (args.log_format, args.log.clone());
    // One thread serves; a scrape reads files on a second.
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.max_blocking_threads(2);
    server::program("vgpu-monitor", format, &filter, &mut runtime, run(args))
}

async fn run(args: Args) -> anyhow::Result<()> {
    match std::fs::metadata(&args.root) {
        Ok(root) if !root.is_dir() => bail!("--root {}: not a directory", args.root.display()),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            tracing::info!(root = %args.root.display(), "not there yet: no container is shown until it is");
        }
        Err(error) => {
            return Err(error).with_context(|| format!("--root {}", args.root.display()));
        }
    }
    let names = if args.legacy_metrics {
        Names::WithLegacy
    } else {
        Names::Present
    };
    let asker = if args.no_nvml {
        None
    } else {
        Some(Asker::start().context("cannot start the thread that asks the driver")?)
    };
    let arbiter = if args.no_arbiter {
        None
    } else {
        let thread = Arbiter::start(&args.root, !args.no_nvml);
        Some(thread.context("cannot start the thread that arbitrates compute time")?)
    };
    let node = Node::new(args.root.clone(), args.node(), names, asker);
    let node = Arc::new(node.with_arbiter(arbiter));
    let readiness = Readiness::waiting_for("the first look at the containers");

    let stop = server::asked_to_stop().context("cannot handle signals")?;
    let listener = Listener::bind(args.metrics_addr).await.map_err(|error| {
        anyhow::anyhow!("{error}; perhaps another vgpu-monitor: --metrics-addr takes another port")
    })?;
    tracing::info!(
        address = %listener.address(),
        root = %args.root.display(),
        node = %args.node(),
        "serving /metrics"
    );
    let router = vgpu_monitor::router(Arc::clone(&node), readiness.clone());
    let first_look = tokio::task::spawn_blocking(move || drop(node.look(&readiness)));
    let stop = async {
        let signal = stop.await;
        tracing::info!(signal, "stopping");
    };
    listener.serve(router, Manners::default(), stop).await;
    first_look.abort();
    Ok(())
}
