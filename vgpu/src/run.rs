//! `vgpu run`: a command under limits. Owns the life of a container: creates its instance directory before the
//! command starts, serves it while the command runs, and removes it when no process needs it any more.
//!
//! Never starts the command while part of its limits is missing.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::anyhow;
use nix::errno::Errno;
use nix::unistd::Uid;
use supervisor::arbiter::{Board, Waker};
use supervisor::clock::monotonic_ns;
use supervisor::fence::{self, ByLimits, Entered, Keeper};
use supervisor::gpu::{Gpus, NvmlGpus};
use supervisor::instance::{INSIDE_LIMITS, Instance, LIMITS, Labels, REGION, RunnerLock};
use supervisor::view;
use vgpu_abi::size::Size;

use crate::args::RunArgs;
use crate::board::{self, BoardLock, UserDir, UserLock};
use crate::failure::{Failure, Misuse};
use crate::floors::{AskedFloor, Floors};
use crate::limits::{self, Outer, Share, Shares, Wish};
use crate::values::name_of_command;
use crate::{child, library, mps};

pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, Failure> {
    // Checked before anything is searched for, so that a new user sees this error first.
    let wish = Wish::of(&args.gpumem, &args.compute)?;
    wish.check_new()?;
    let library = library::find(args.library.as_deref())?;
    let outer = outer()?;
    let gpus = NvmlGpus::open().map_err(no_gpu)?;
    let inventory = gpus.inventory().map_err(no_gpu)?;
    if inventory.gpus.is_empty() {
        let faults = inventory.faults.join("; ");
        return Err(Failure::Failed(anyhow!(
            "the driver shows no GPU{}{faults}. Try it on simulated ones: vgpu sim -- vgpu run …",
            if faults.is_empty() { "" } else { ": " }
        )));
    }
    let mut shares = limits::share(&inventory.gpus, &args.gpu, &wish, outer.as_ref())?;
    let of_mps = mps::variable(&shares)?;

    let user = UserDir::open(args.board.board.as_deref())?;
    let signals = child::Signals::hold()?;
    child::adopt_orphans();
    let container = HeldInstance::make(&user, args, &mut shares, outer.as_ref())?;
    warn_of_overbooking(args, &shares.gpus);
    let mut variables = vec![
        (
            "LD_PRELOAD",
            library::preload(&library, std::env::var_os("LD_PRELOAD").as_deref()),
        ),
        (
            "VGPU_LIMITS",
            container.instance.path().join(LIMITS).into_os_string(),
        ),
        (
            "VGPU_REGION",
            container.instance.path().join(REGION).into_os_string(),
        ),
    ];
    if shares.is_choice {
        variables.push(("CUDA_VISIBLE_DEVICES", visible_devices(&shares)));
    }
    if let Some(percent) = of_mps {
        variables.push((mps::VARIABLE, percent));
    }
    let entered = container.raise_fence(&gpus);
    let child = child::start(&args.command, &variables, &signals);
    drop(entered);
    let child = match child {
        Ok(child) => child,
        Err(failure) => {
            container.end(&user);
            return Err(failure);
        }
    };
    let watching = Watching::start(&container.instance, Box::new(gpus));
    let end = child::wait(child, &signals);
    if let Some(watching) = watching {
        watching.stop();
    }
    container.end(&user);
    Ok(child::end_alike(end?))
}

fn outer() -> Result<Option<Outer>, Failure> {
    let outer = limits::outer()?;
    let by_agent = |outer: &Outer| {
        outer
            .file
            .as_deref()
            .is_some_and(|file| file == std::path::Path::new(INSIDE_LIMITS))
    };
    if outer.as_ref().is_some_and(by_agent) {
        return Err(Failure::Failed(anyhow!(
            "the node agent limits this container ({INSIDE_LIMITS}); its limits hold for every \
             program in it, and the library accepts no others. Start the command without vgpu run"
        )));
    }
    Ok(outer)
}

fn no_gpu(error: supervisor::gpu::GpuError) -> Failure {
    Failure::Failed(anyhow!(
        "{error}. On a machine without an NVIDIA driver, try it on simulated GPUs: vgpu sim -- vgpu \
         run …"
    ))
}

/// The value of `CUDA_VISIBLE_DEVICES` if the user chose GPUs. CUDA counts them from 0 in this order.
fn visible_devices(shares: &Shares) -> OsString {
    let list: Vec<_> = shares.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
    OsString::from(list.join(","))
}

/// The command's instance directory, and the lock that shows that this process is alive.
struct HeldInstance {
    instance: Instance,
    lock: RunnerLock,
    name: String,
}

impl HeldInstance {
    fn make(
        user: &UserDir,
        args: &RunArgs,
        shares: &mut Shares,
        outer: Option<&Outer>,
    ) -> Result<Self, Failure> {
        // The lock is held from reading the floors until our own is published, so that no other
        // command can take the same share meanwhile.
        let has_floor = shares.gpus.iter().any(|share| share.floor_percent > 0);
        let board = match has_floor {
            true => Some(BoardLock::take(user.board())?),
            false => None,
        };
        let only_one = user.lock()?;
        only_one.clear_ended()?;
        let floors = board.as_ref().map(Floors::read).transpose()?;
        if let Some(floors) = &floors {
            guarantee(floors, shares, outer)?;
        }
        let (name, instance, lock) = claim(&only_one, args, outer)?;
        let made = fill(&instance, shares).and_then(|()| match floors {
            Some(floors) => floors.publish(Uid::effective().as_raw()),
            None => Ok(()),
        });
        match made {
            Ok(()) => Ok(Self {
                instance,
                lock,
                name,
            }),
            Err(error) => {
                only_one.remove(instance).ok();
                Err(Failure::Failed(error))
            }
        }
    }

    /// Sets the driver's own limit as a second fence, where the driver has one and this process may: on a control group
    /// of the command's own, which this process is in until it has started the command. Without it the command runs
    /// behind the library's fence alone.
    fn raise_fence(&self, gpus: &NvmlGpus) -> Option<Entered> {
        use std::io::Write;
        if !fence::is_possible(gpus) {
            return None;
        }
        let limits = view::read_limits(&self.instance).ok()?;
        if limits.devices.iter().all(|device| device.memory_bytes == 0) {
            return None;
        }
        let made = fence::make_group(&self.name);
        let entered = made.as_ref().ok().map(|group| fence::enter(group));
        let group = match (&made, &entered) {
            (Ok(group), Some(Ok(_))) => Ok(std::slice::from_ref(group)),
            (Ok(group), _) => {
                std::fs::remove_dir(group).ok();
                Err(fence::NO_GROUP)
            }
            (Err(_), _) => Err(fence::NO_GROUP),
        };
        let fence = fence::raise(gpus, &self.instance, &limits, None, group, true);
        let mut devices = fence.devices.iter();
        if let Some(device) = devices.find(|device| !device.reason.is_empty()) {
            writeln!(
                std::io::stderr(),
                "vgpu run: the driver's own limit on GPU {} is not set: {}; the library's limit holds",
                device.uuid,
                device.reason
            )
            .ok();
        }
        entered.and_then(Result::ok)
    }

    /// Removes the directory, or leaves it to processes that still run.
    fn end(self, user: &UserDir) {
        use std::io::Write;
        if child::has_descendants() && !self.instance.is_deserted() {
            // The user's next command sees from the missing lock that the container is not
            // supervised, and removes it when its last process has ended.
            drop(self.lock);
            writeln!(
                std::io::stderr(),
                "vgpu run: processes of {} are still running under its limit; vgpu top shows them",
                self.name
            )
            .ok();
            return;
        }
        if fence::read(&self.instance).is_some() {
            let gpus = NvmlGpus::open().ok();
            let gpus = gpus.as_ref().map(|gpus| -> &dyn Gpus { gpus });
            fence::lower(gpus, &self.instance);
        }
        let limits = view::read_limits(&self.instance);
        let removed = match user.lock() {
            Ok(only_one) => only_one.remove(self.instance).map_err(anyhow::Error::from),
            Err(error) => Err(error),
        };
        drop(self.lock);
        // The next run removes it.
        removed.ok();
        // Read at the end, because vgpu set may have set a floor meanwhile. A published floor whose
        // runner has ended no longer counts; withdrawing it only keeps the file tidy.
        let had_floor =
            limits.is_ok_and(|limits| limits.devices.iter().any(|device| device.floor_percent > 0));
        if had_floor && let Ok(board) = BoardLock::take_within(user.board(), TIDY_PATIENCE) {
            let owner = Uid::effective().as_raw();
            Floors::read(&board)
                .and_then(|floors| floors.publish(owner))
                .ok();
        }
    }
}

/// How long tidying the list of floors may delay the command's exit code.
const TIDY_PATIENCE: Duration = Duration::from_millis(200);

/// Checks that every floor can be guaranteed. An inherited floor is reduced to what is left of the outer
/// container's.
pub(crate) fn guarantee(
    floors: &Floors<'_>,
    shares: &mut Shares,
    outer: Option<&Outer>,
) -> Result<(), Misuse> {
    let inherited = shares.floors_are_inherited;
    for (index, share) in shares.gpus.iter_mut().enumerate() {
        if share.floor_percent == 0 {
            continue;
        }
        let around = outer.and_then(|outer| outer.around(&share.uuid, index));
        let asked = AskedFloor {
            path: None,
            outer: outer.and_then(|outer| outer.file.as_deref()),
            uuid: &share.uuid,
            number: u64::from(share.index),
            percent: share.floor_percent,
            outer_percent: around.map_or(0, |around| around.floor_percent),
        };
        if inherited {
            share.floor_percent = share.floor_percent.min(floors.left(&asked));
        } else {
            floors.check(&asked)?;
        }
    }
    Ok(())
}

fn claim(
    only_one: &UserLock<'_>,
    args: &RunArgs,
    outer: Option<&Outer>,
) -> Result<(String, Instance, RunnerLock), Failure> {
    let command: Vec<String> = args
        .command
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let labels = |name: &str| Labels {
        name: name.to_owned(),
        container: name.to_owned(),
        command: command.clone(),
        created_unix: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |t| t.as_secs()),
        runner_pid: std::process::id(),
        outer_limits: outer.and_then(|outer| outer.file.clone()),
        ..Labels::default()
    };
    if let Some(name) = &args.name {
        let name = name.as_str();
        return match only_one.create(name, &labels(name)) {
            Ok((instance, lock)) => Ok((name.to_owned(), instance, lock)),
            Err(error) if error.errno() == Some(Errno::EEXIST) => Err(Failure::Failed(anyhow!(
                "a container called {name:?} is running; choose another --name, or leave it \
                     out (vgpu top lists them)"
            ))),
            Err(error) => Err(error.into()),
        };
    }
    let base = name_of_command(command.first().map_or("", String::as_str));
    for number in 1..=9_999 {
        let name = format!("{base}-{number}");
        match only_one.create(&name, &labels(&name)) {
            Ok((instance, lock)) => return Ok((name, instance, lock)),
            Err(error) if error.errno() == Some(Errno::EEXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Failure::Failed(anyhow!(
        "9,999 containers called {base}-N are running; give a --name"
    )))
}

fn fill(instance: &Instance, shares: &Shares) -> anyhow::Result<()> {
    instance.fill(&limits::limits_of(shares)?, 0o600)?;
    Ok(())
}

/// Limits may add up to more than the GPU's memory. Each still holds, but the last program to allocate may
/// find the GPU full, so the user is warned.
fn warn_of_overbooking(args: &RunArgs, shares: &[Share]) {
    use std::io::Write;
    let Ok(views) = board::read(args.board.board.as_deref()) else {
        return;
    };
    for share in shares {
        // The sum includes this container, unless it is inside another one.
        let sum = views.limits_bytes(&share.uuid);
        if sum > share.physical_bytes {
            writeln!(
                std::io::stderr(),
                "vgpu run: the limits on GPU {} add up to {}, and it has {}: the last program to \
                 allocate may find it full",
                share.index,
                Size(sum),
                Size(share.physical_bytes)
            )
            .ok();
        }
    }
}

/// The thread that serves the container, and the whole board while this process is its arbiter.
struct Watching {
    stop: Arc<AtomicBool>,
    waker: Option<Waker>,
    thread: std::thread::JoinHandle<()>,
}

impl Watching {
    /// Returns `None` if the thread cannot start: the container's limits hold without it.
    fn start(instance: &Instance, gpus: Box<dyn Gpus>) -> Option<Self> {
        // The thread has its own descriptors, because ours are closed with the directory.
        let mut board = Board::join(instance.path()).ok()?;
        let is_root = Uid::effective().is_root();
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let waker = board.waker();
        let thread = std::thread::Builder::new()
            .name(String::from("watch"))
            .spawn(move || {
                let (mut keeper, mut finder) = (Keeper::default(), ByLimits::default());
                // Relaxed: the flag guards no other memory.
                while !seen.load(Ordering::Relaxed) {
                    let ticked = board.tick(monotonic_ns(), &*gpus);
                    if ticked.leads && is_root {
                        keeper.tick(monotonic_ns(), &*gpus, board.scope(), &mut finder);
                    }
                    board.pause(&ticked, monotonic_ns);
                }
            })
            .ok()?;
        Some(Self {
            stop,
            waker,
            thread,
        })
    }

    /// Waits at most a second for the present tick: a driver that hangs must not delay the command's
    /// exit code.
    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(waker) = &self.waker {
            waker.wake();
        }
        for _ in 0..1_000 {
            if self.thread.is_finished() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
