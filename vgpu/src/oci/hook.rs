//! The OCI hooks of a container with a vgpu GPU: its directory on the board is made before it starts and removed when
//! it has ended.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow};
use nix::errno::Errno;
use nix::unistd::Uid;
use supervisor::fence;
use supervisor::gpu::group_limit::driver_has_group_limits;
use supervisor::gpu::{Gpu, NvmlGpus};
use supervisor::instance::{
    self, DOORBELL, EngineContainer, Instance, LIMITS, Labels, RunnerLock, TARGETS,
};
use supervisor::view;

use super::asked::{ContainerRequest, asked, in_variables};
use super::bundle::{self, BundleConfig, ContainerState};
use super::engine;
use crate::args::containers::{HookCreateArgs, HookMoment, HookRemoveArgs, OciHookArgs};
use crate::board::{BoardLock, UserDir, UserLock};
use crate::failure::{Failure, Misuse};
use crate::floors::Floors;
use crate::limits::{self, Shares};
use crate::mounts;
use crate::run::guarantee;
use crate::values::{ContainerName, EngineGpu};

/// The container's processes read these files, whatever their uid.
const SHOWN_MODE: u32 = 0o644;
const DIR_MODE: u32 = 0o755;
/// The container's processes write the region, whatever their uid. No other container has it.
const REGION_MODE: u32 = 0o666;
/// Arguments of the command that are kept for people.
const WORDS_MOST: usize = 32;

pub(crate) fn run(args: &OciHookArgs) -> Result<ExitCode, Failure> {
    let state = bundle::state(std::io::stdin().lock())?;
    match &args.moment {
        HookMoment::Create(args) => create(args, &state),
        HookMoment::Remove(args) => remove(args, &state),
    }
}

fn create(args: &HookCreateArgs, state: &ContainerState) -> Result<ExitCode, Failure> {
    refuse_rootless()?;
    let started_ticks = instance::started_ticks(state.pid).ok_or_else(|| {
        Misuse::new(format!(
            "the state's pid {} is no process of this machine; accepted: the state that an OCI runtime gives its \
             createRuntime hooks",
            state.pid
        ))
    })?;
    let config = bundle::config(&state.bundle)?;
    let asked = asked(&config.env, &args.gpu, &args.default_share)?;
    let gpus: Vec<Gpu> = asked.gpus.iter().map(gpu).collect();
    let mut shares = limits::share(&gpus, &[], &asked.wish, None).map_err(in_variables)?;
    let labels = Labels {
        command: config.args.iter().take(WORDS_MOST).cloned().collect(),
        created_unix: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |time| time.as_secs()),
        runner_pid: state.pid,
        engine: Some(EngineContainer {
            id: state.id.clone(),
            started_ticks,
            pid_namespace: instance::pid_namespace(),
        }),
        ..Labels::default()
    };
    let user = UserDir::open(args.board.board.as_deref())?;
    let made = make(&user, &asked, state, &config, &mut shares, labels)?;
    let path = made.path().to_owned();
    if let Err(error) = mounts::mount_into(state.pid, &config.root, &made) {
        // The directory is on the host, and this process may be in the container's namespace by now: both see it.
        if let Ok(only_one) = user.lock() {
            only_one.remove(made).ok();
        }
        return Err(Failure::Failed(error.context(format!(
            "cannot give the container {} its share",
            path.file_name().unwrap_or_default().display()
        ))));
    }
    raise_fence(&made, state.pid);
    Ok(ExitCode::SUCCESS)
}

/// Sets the driver's own limit as a second fence, where the driver has one: on the control group that the runtime has
/// made for the container. How that went stands in the container's directory; a container without it starts all the
/// same.
fn raise_fence(made: &Instance, pid: u32) {
    if !driver_has_group_limits() {
        return;
    }
    let Ok(gpus) = NvmlGpus::open() else { return };
    let limits = view::read_limits(made);
    let (true, Ok(limits)) = (fence::is_possible(&gpus), limits) else {
        return;
    };
    let group = fence::group_of_processes(&[pid]);
    let groups = group.as_slice();
    let groups = (!groups.is_empty())
        .then_some(groups)
        .ok_or(fence::NO_GROUP);
    fence::raise(&gpus, made, &limits, None, groups, false);
}

/// A rootless engine's hook has no right to the board of the machine, and is root only by name.
fn refuse_rootless() -> Result<(), Failure> {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    if is_whole_map(&map) {
        return Ok(());
    }
    Err(Failure::Failed(anyhow!(
        "this container engine runs in a user namespace (rootless), where vgpu cannot own a container's limits. Start \
         the container as root, or limit the command in it by vgpu run"
    )))
}

/// Whether a namespace has every user id of the machine.
fn is_whole_map(map: &str) -> bool {
    let fields: Vec<&str> = map.split_whitespace().collect();
    fields.is_empty() || fields == ["0", "0", "4294967295"]
}

fn gpu(known: &EngineGpu) -> Gpu {
    Gpu {
        index: known.index,
        uuid: known.uuid.clone(),
        name: format!("GPU {}", known.index),
        memory_bytes: known.memory_bytes,
        used_bytes: 0,
        utilization_percent: None,
        memory_utilization_percent: None,
        instances: Vec::new(),
    }
}

fn make(
    user: &UserDir,
    asked: &ContainerRequest,
    state: &ContainerState,
    config: &BundleConfig,
    shares: &mut Shares,
    labels: Labels,
) -> Result<Instance, Failure> {
    // The order of the locks, and what they are held for, is that of `vgpu run`.
    let has_floor = shares.gpus.iter().any(|share| share.floor_percent > 0);
    let board = match has_floor {
        true => Some(BoardLock::take(user.board())?),
        false => None,
    };
    let only_one = user.lock()?;
    only_one.clear_ended()?;
    let floors = board.as_ref().map(Floors::read).transpose()?;
    if let Some(floors) = &floors {
        guarantee(floors, shares, None).map_err(in_variables)?;
    }
    let wanted = match &asked.name {
        Some(name) => name.clone(),
        None => engine::name(state, config),
    };
    let (instance, lock) = claim(&only_one, &wanted, &state.id, labels)?;
    let made = fill(&instance, shares).and_then(|()| match floors {
        Some(floors) => floors.publish(Uid::effective().as_raw()),
        None => Ok(()),
    });
    drop(lock);
    match made {
        Ok(()) => Ok(instance),
        Err(error) => {
            only_one.remove(instance).ok();
            Err(Failure::Failed(error))
        }
    }
}

/// Makes the directory under the container's name; if another container has it, under the name and the id.
fn claim(
    only_one: &UserLock<'_>,
    wanted: &ContainerName,
    id: &str,
    labels: Labels,
) -> Result<(Instance, RunnerLock), Failure> {
    for name in [wanted.clone(), engine::other_name(wanted, id)] {
        let labels = Labels {
            name: name.as_str().to_owned(),
            container: name.as_str().to_owned(),
            ..labels.clone()
        };
        match only_one.create(name.as_str(), &labels) {
            Err(error) if error.errno() == Some(Errno::EEXIST) => {}
            made => return Ok(made?),
        }
    }
    Err(Failure::Failed(anyhow!(
        "two containers called {:?} are running, and this would be the third; give it another name with VGPU_NAME",
        wanted.as_str()
    )))
}

/// Makes the instance's files, so that programs of any user may use them where they are mounted.
pub(crate) fn fill(instance: &Instance, shares: &Shares) -> anyhow::Result<()> {
    instance.fill(&limits::limits_of(shares)?, REGION_MODE)?;
    let set = |path: &Path, mode: u32| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .with_context(|| format!("cannot set the mode of {}", path.display()))
    };
    for name in [LIMITS, TARGETS, DOORBELL] {
        set(&instance.steady_path(name), SHOWN_MODE)?;
    }
    set(&instance.steady_path("."), DIR_MODE)
}

fn remove(args: &HookRemoveArgs, state: &ContainerState) -> Result<ExitCode, Failure> {
    refuse_rootless()?;
    let user = UserDir::open(args.board.board.as_deref())?;
    let only_one = user.lock()?;
    only_one.remove_of_engine(&state.id)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_with_some_users_only_is_rootless() {
        assert!(is_whole_map("         0          0 4294967295\n"));
        assert!(!is_whole_map("0 1000 1\n1 100000 65536\n"));
        assert!(!is_whole_map("0 1000 1\n"));
    }
}
