//! The scheduler as a process: flags, listeners, a signal to stop.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use clap::Parser;
use kube_api::config::DeviceConfig;
use kube_api::vendor::{Switches, Vendors};
use scheduler::args::Args;
use scheduler::events::Events;
use scheduler::{Scheduler, Settings, api};
use server::{Bodies, Listener, Manners};

fn main() -> ExitCode {
    let args = Args::parse();
    if let Err(error) = server::log_to_stderr(server::LogFormat::Text, "info") {
        return complain(&error.into());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime");
    match runtime.and_then(|runtime| runtime.block_on(run(args))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&error),
    }
}

#[expect(
    clippy::print_stderr,
    reason = "the log may not be there; an error is for whoever started us"
)]
fn complain(error: &anyhow::Error) -> ExitCode {
    eprintln!("vgpu-scheduler: {error:#}");
    ExitCode::FAILURE
}

async fn run(args: Args) -> anyhow::Result<()> {
    let address = args.address().map_err(|error| anyhow!(error))?;
    let switches = Switches {
        ascend: true,
        iluvatar: true,
    };
    let vendors = Arc::new(Vendors::new(DeviceConfig::standard(), switches)?);
    let state = args.embedded.as_ref().context("--embedded is needed")?;
    let text = std::fs::read(state).with_context(|| format!("--embedded {}", state.display()))?;
    let state =
        serde_json::from_slice(&text).with_context(|| format!("--embedded {}", state.display()))?;
    let cluster = embedded_cluster::Cluster::default();
    cluster
        .import(&state)
        .map_err(|status| anyhow!("--embedded: {status}"))?;
    let scheduler = Scheduler::embedded(&cluster, vendors, Settings::default(), |client| {
        Events::start(client, "hami-scheduler")
    });
    let stop = server::asked_to_stop().context("cannot handle signals")?;
    let listener = Listener::bind(address).await?;
    let router = embedded_cluster::guard(
        api::routes(scheduler.clone()).merge(cluster.api_routes()),
        address,
        None,
    )?;
    tracing::info!(address = %listener.address(), "serving");
    let follow = tokio::spawn(async move { scheduler.follow().await });
    listener
        .serve(Bodies::default().limit(router), Manners::default(), stop)
        .await;
    follow.abort();
    Ok(())
}
