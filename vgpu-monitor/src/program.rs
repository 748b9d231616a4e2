//! The node agent as a process: settings, a port, a signal to stop.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use crate::arbiter::Arbiter;
use crate::args::{Args, Command};
use crate::dcgm;
use crate::driver_files::DriverFiles;
use crate::exporter::Names;
use crate::first_kernel::FirstKernels;
use crate::front::{self, command::FrontOutcome};
use crate::gpu::Asker;
use crate::hardware::HardwareWatch;
use crate::node::Node;
use crate::plugin::args::PluginArgs;
use crate::plugin::command::ContainerOutdated;
use crate::usage::Usage;
use anyhow::{Context, bail};
use clap::Parser;
use server::{Listener, Manners, Readiness};

/// Runs what the command line asks for, and returns the exit status.
#[must_use]
pub fn main() -> ExitCode {
    let mut args = Args::parse();
    match args.command.take() {
        Some(Command::Plugin(args)) => return plugin(*args),
        Some(Command::Dra(args)) => {
            let (format, filter) = (args.agent.log.log_format, args.agent.log.log.clone());
            // Calls of the kubelet, of which some wait for the disk or the driver.
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            runtime.worker_threads(2).max_blocking_threads(16);
            let run = crate::dra::command::run(*args);
            return server::program("vgpu-monitor dra", format, &filter, &mut runtime, run);
        }
        Some(Command::Fence(args)) => {
            let (format, filter) = (args.log.log_format, args.log.log.clone());
            let runtime = &mut tokio::runtime::Builder::new_current_thread();
            let run = crate::fence::command::run(args);
            return server::program("vgpu-monitor fence", format, &filter, runtime, run);
        }
        Some(Command::Install(install)) => {
            let copied = async move {
                let installed = crate::delivery::library::install(&install.library, &install.to)?;
                tracing::info!(path = %installed.dir.display(), "installed the library");
                anyhow::Ok(())
            };
            let runtime = &mut tokio::runtime::Builder::new_current_thread();
            return server::program(
                "vgpu-monitor",
                args.log.log_format,
                &args.log.log,
                runtime,
                copied,
            );
        }
        None => {}
    }
    let (format, filter) = (args.log.log_format, args.log.log.clone());
    // One thread serves; a scrape reads files on a second.
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.max_blocking_threads(2);
    server::program("vgpu-monitor", format, &filter, &mut runtime, run(args))
}

/// The front, or the plugin behind it.
fn plugin(args: PluginArgs) -> ExitCode {
    let (format, filter) = (args.agent.log.log_format, args.agent.log.log.clone());
    let Some(parent) = args.front else {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.max_blocking_threads(1);
        let mut given_up = false;
        let front = async {
            given_up = front::command::run(args).await? == FrontOutcome::GivenUp;
            anyhow::Ok(())
        };
        let code = server::program("vgpu-monitor plugin", format, &filter, &mut runtime, front);
        // The process behind it has said why.
        return if given_up { ExitCode::FAILURE } else { code };
    };
    // Calls of the kubelet, of which some wait for the disk or the driver.
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).max_blocking_threads(16);
    let mut outdated = false;
    let behind = async {
        let front = front::command::connection(parent)?;
        let ended = crate::plugin::command::run(args, front).await;
        outdated = matches!(&ended, Err(error) if error.is::<ContainerOutdated>());
        ended
    };
    let code = server::program("vgpu-monitor plugin", format, &filter, &mut runtime, behind);
    if outdated {
        ExitCode::from(front::rules::CONTAINER)
    } else {
        code
    }
}

/// Time between two writes of the files with the containers on each GPU, for dcgm-exporter.
const MAP_EVERY: Duration = Duration::from_secs(15);

async fn map_jobs(directory: PathBuf, node: Arc<Node>) {
    let mut ticks = tokio::time::interval(MAP_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut is_writable = true;
    loop {
        ticks.tick().await;
        let (directory, node) = (directory.clone(), Arc::clone(&node));
        let written = tokio::task::spawn_blocking(move || {
            let (gpus, containers) = node.placed();
            // A driver that does not answer now says nothing of which GPUs there are.
            if gpus.is_empty() {
                return Ok(());
            }
            dcgm::write(&directory, &dcgm::jobs(&gpus, &containers))
        });
        let written = written.await.unwrap_or(Ok(()));
        if let Err(error) = &written
            && is_writable
        {
            tracing::warn!(%error, "--dcgm-job-mapping-dir cannot be written");
        }
        is_writable = written.is_ok();
    }
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
    let patience = Duration::from_secs(args.driver.driver_patience.into());
    let files = DriverFiles::new(&args.driver.sysfs, patience);
    let asker = if args.no_nvml {
        None
    } else {
        let asker = Asker::start(files.clone());
        Some(asker.context("cannot start the thread that asks the driver")?)
    };
    let hardware = if args.no_nvml {
        None
    } else {
        let watch = HardwareWatch::start();
        Some(watch.context("cannot start the thread that asks the driver for the hardware")?)
    };
    let usage = Usage::start(&args.root)
        .context("cannot start the thread that sums up what workloads use")?;
    let arbiter = if args.no_arbiter {
        None
    } else {
        let thread = Arbiter::start(&args.root, !args.no_nvml, !args.no_fence);
        Some(thread.context("cannot start the thread that arbitrates compute time")?)
    };
    let attestation = args
        .attestation
        .start(&args.root, &args.node(), (!args.no_nvml).then_some(&files))
        .await?;
    let traces = args
        .traces
        .start("vgpu-monitor", env!("CARGO_PKG_VERSION"))?;
    if traces.is_on() {
        let first = FirstKernels::new(&args.root, &args.node(), traces.clone());
        first
            .start()
            .context("cannot start the thread that looks for first kernels")?;
    }
    let node = Node::new(args.root.clone(), args.node(), names, asker);
    let node = node
        .with_detail(args.metrics_detail)
        .with_hardware(hardware)
        .with_usage(Some(usage))
        .with_arbiter(arbiter)
        .with_attestation(attestation);
    let node = Arc::new(node);
    if let Some(directory) = args.dcgm_job_mapping_dir.clone() {
        if !directory.is_dir() {
            bail!(
                "--dcgm-job-mapping-dir {}: not a directory",
                directory.display()
            );
        }
        tokio::spawn(map_jobs(directory, Arc::clone(&node)));
    }
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
    let router = crate::router(Arc::clone(&node), readiness.clone(), &traces);
    let first_look = tokio::task::spawn_blocking(move || drop(node.look(&readiness)));
    let mut ended = Ok(());
    let stop = async {
        tokio::select! {
            signal = stop => tracing::info!(signal, "stopping"),
            why = files.outdated() => ended = Err(anyhow::Error::msg(why)),
        }
    };
    listener.serve(router, Manners::default(), stop).await;
    first_look.abort();
    traces.stop().await;
    ended
}
