//! `vgpu-monitor fence` as a process: a thread that looks once a second, and the reasons to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use supervisor::clock::monotonic_ns;
use supervisor::fence::Keeper;
use supervisor::gpu::{GpuError, Gpus, NvmlGpus};

use super::args::FenceArgs;
use super::pods::PodGroups;
use crate::driver_files::DriverFiles;
use crate::fence_log;

/// Time between two looks at the containers.
const LOOK: Duration = Duration::from_secs(1);
/// A driver that is not there is looked for again after this, and one that is there is asked whether it still answers.
const ASK: Duration = Duration::from_secs(10);

/// Keeps the limits until the process is asked to stop, or its container's files of the driver are out of date.
///
/// # Errors
/// This process is not root, the thread cannot start, or another container is needed (the error says why).
pub async fn run(args: FenceArgs) -> anyhow::Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!(
            "this process runs as user {}; the driver lets only root limit a control group: start vgpu-monitor fence as root",
            nix::unistd::geteuid()
        );
    }
    let patience = Duration::from_secs(args.driver.driver_patience.into());
    let files = DriverFiles::new(&args.driver.sysfs, patience);
    let stop = server::asked_to_stop().context("cannot handle signals")?;
    tracing::info!(
        root = %args.root.display(),
        control_groups = %args.control_groups.display(),
        "keeping the driver's own memory limits"
    );
    let ended = Arc::new(AtomicBool::new(false));
    let (seen, heard) = (Arc::clone(&ended), files.clone());
    std::thread::Builder::new()
        .name(String::from("fence"))
        .spawn(move || keep(&args, &heard, &seen))
        .context("cannot start the thread that keeps the limits")?;
    let why = tokio::select! {
        signal = stop => {
            tracing::info!(signal, "stopping; the limits stay");
            None
        }
        why = files.outdated() => Some(why),
    };
    // Relaxed: the flag guards no other memory.
    ended.store(true, Ordering::Relaxed);
    why.map_or(Ok(()), |why| Err(anyhow::Error::msg(why)))
}

fn keep(args: &FenceArgs, files: &DriverFiles, ended: &AtomicBool) {
    let mut driver = FenceDriver::default();
    let (mut keeper, mut groups) = (Keeper::default(), PodGroups::new(&args.control_groups));
    // Relaxed: see above.
    while !ended.load(Ordering::Relaxed) {
        if let Some(gpus) = driver.opened(files) {
            let kept = keeper.tick(monotonic_ns(), gpus, &args.root, &mut groups);
            kept.iter().for_each(fence_log::outcome);
        }
        std::thread::sleep(LOOK);
    }
}

/// The driver, once it is there. It is asked again and again whether it still answers, and the state of its files is
/// reported, because this process has no other part that watches the driver.
#[derive(Default)]
struct FenceDriver {
    gpus: Option<NvmlGpus>,
    asked: Option<Instant>,
    /// What was said last.
    said: String,
}

impl FenceDriver {
    fn opened(&mut self, files: &DriverFiles) -> Option<&dyn Gpus> {
        if self.asked.is_none_or(|at| at.elapsed() >= ASK) {
            self.asked = Some(Instant::now());
            // A driver that was replaced under us wants to be opened again.
            if self
                .gpus
                .as_ref()
                .is_some_and(|gpus| gpus.inventory().is_err())
            {
                self.gpus = None;
            }
            if self.gpus.is_none() {
                self.open(files);
            }
        }
        self.gpus.as_ref().map(|gpus| -> &dyn Gpus { gpus })
    }

    fn open(&mut self, files: &DriverFiles) {
        let opened = NvmlGpus::open();
        match &opened {
            Err(error @ (GpuError::NoLibrary(_) | GpuError::Unusable(_))) => files.fail(error),
            // Another failure is not one of the files.
            Ok(_) | Err(GpuError::Call { .. }) => files.work(),
        }
        let state = match &opened {
            Ok(gpus) if gpus.limits_groups() => String::from("the driver can limit control groups"),
            Ok(_) => String::from(
                "this driver cannot limit control groups: drivers from 615 on can; until then the library's limits hold alone",
            ),
            Err(error) => format!("no answer from the NVIDIA driver: {error}"),
        };
        // Each state is logged once: a node without a GPU stays one.
        if self.said != state {
            tracing::info!("{state}");
            self.said = state;
        }
        self.gpus = opened.ok();
    }
}
