//! `vgpu-monitor plugin`: the front with its process behind it. Never decides what `rules` decides.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use nix::fcntl::Flock;
use nix::sys::signal::Signal;
use server::Listener;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::child::{self, Child};
use super::rules::{Life, NextStep, Past, ProcessEnd, next};
use super::{Front, Useless};
use crate::plugin::args::PluginArgs;
use crate::plugin::lock;
use crate::plugin::settings;

/// How long a process that was asked to end may take; then it is killed.
const END: Duration = Duration::from_secs(20);
/// How long the sockets may take to go.
const SOCKETS: Duration = Duration::from_secs(5);

/// How the front ended, where that is no error of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrontOutcome {
    /// It was asked to.
    Stopped,
    /// The process behind it gave up, and has said why.
    GivenUp,
}

/// Runs until the process is asked to stop, or until another process behind it is of no use.
///
/// # Errors
///
/// When a setting cannot be, the state directory cannot be used, or the system has no process left.
pub async fn run(args: PluginArgs) -> anyhow::Result<FrontOutcome> {
    let stop = server::asked_to_stop().context("cannot handle signals")?;
    let vendors = settings::vendors(&args)?;
    let served = settings::served(&args, &vendors)?;
    let state = settings::state_dir(&args.agent)?;
    let mut stop = std::pin::pin!(stop);
    let Some(_lock) = alone(&args, &state, stop.as_mut()).await? else {
        return Ok(FrontOutcome::Stopped);
    };
    let folder = args.agent.kubelet_dir.join("device-plugins");
    let resources = served.into_iter().map(|served| served.resource);
    let front = Front::new(folder, resources.collect());
    let (stopping, mut stopped) = watch::channel(false);
    let serving = tokio::spawn({
        let front = front.clone();
        async move {
            let until = async { drop(stopped.wait_for(|stopped| *stopped).await) };
            front.serve(until).await;
        }
    });
    let mut past = Past::default();
    let mut number = 0;
    let running = loop {
        let (child, stream) = Child::start(number)?;
        let mut served = false;
        match front.put(stream, number).await {
            Ok(behind) => {
                tokio::select! {
                    signal = stop.as_mut() => {
                        tracing::info!(signal, "stopping");
                        break Some(child);
                    }
                    () = child.over() => {}
                    why = behind.useless() => {
                        tracing::error!("the plugin's process {}: it is ended", why.words());
                        child.kill().await;
                        if why == Useless::Other {
                            break None;
                        }
                    }
                }
                served = behind.has_served();
            }
            // It was gone before it could be spoken to.
            Err(error) => {
                tracing::debug!(%error, "no connection to the plugin's process");
                child.kill().await;
            }
        }
        let (ended, ran) = child.end();
        let (coming, now) = next(past, Life { ended, ran, served });
        past = now;
        number += 1;
        let NextStep::Start(pause) = coming else {
            break None;
        };
        let how = words(ended);
        tracing::warn!(
            how,
            pause_ms = pause.as_millis(),
            "the plugin's process has ended; the kubelet keeps its slots, and another process is started"
        );
        tokio::select! {
            () = sleep(pause) => {}
            signal = stop.as_mut() => {
                tracing::info!(signal, "stopping");
                stopping.send_replace(true);
                drop(timeout(SOCKETS, serving).await);
                return Ok(FrontOutcome::Stopped);
            }
        }
    };
    // The kubelet's running calls end first.
    stopping.send_replace(true);
    drop(timeout(SOCKETS, serving).await);
    match running {
        Some(child) => {
            end(child).await;
            Ok(FrontOutcome::Stopped)
        }
        None => Ok(FrontOutcome::GivenUp),
    }
}

fn words(ended: ProcessEnd) -> String {
    match ended {
        ProcessEnd::Code(code) => format!("exit code {code}"),
        ProcessEnd::Signal(signal) => match Signal::try_from(signal) {
            Ok(name) => name.as_str().to_owned(),
            Err(_) => format!("signal {signal}"),
        },
    }
}

/// Asks a process to end, and waits for it.
async fn end(child: Child) {
    let begun = Instant::now();
    child.signal(Signal::SIGTERM);
    if timeout(END, child.over()).await.is_err() {
        let waited = begun.elapsed().as_secs();
        tracing::warn!(waited, "the plugin's process does not stop: it is ended");
        drop(timeout(END, child.kill()).await);
    }
}

/// Waits until no other agent works in the state directory. Until then this one is alive, and not ready.
/// Returns `None` if it was asked to stop first.
async fn alone(
    args: &PluginArgs,
    state: &Path,
    stop: impl Future<Output = &'static str>,
) -> anyhow::Result<Option<Flock<std::fs::File>>> {
    if let Some(lock) = lock::at_once(state, lock::FRONT)? {
        return Ok(Some(lock));
    }
    let listener = Listener::bind(args.agent.metrics_addr)
        .await
        .map_err(|error| {
            anyhow!(
                "{error}; perhaps another vgpu-monitor plugin: --metrics-addr takes another port"
            )
        })?;
    lock::serving_meanwhile(state, lock::FRONT, listener, stop).await
}

/// In the process behind: the connection to its front.
///
/// # Errors
///
/// When there is none.
pub fn connection(front: u32) -> anyhow::Result<UnixStream> {
    child::connection(front)
}
