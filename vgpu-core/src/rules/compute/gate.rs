//! The state that a thread keeps of its launches, so that most of them look at nothing that is shared: one
//! lease, one stream, and the words that say whether both still count. Owns that memory, the look at it
//! ([`look`], [`pays`]), and how it is added to the region and returned ([`tell`]). Never waits, decides no rate.

use core::sync::atomic::Ordering;

use cuda_api::CuLaunchConfig;

use super::decisions::{self, Opened};
use super::rate::rate;
use crate::driver::hook::GateAnswer;
use crate::guest::border::{DefaultStream, InPtr};
use crate::guest::thread::{self, Gate, thread};
use crate::state::accounts::Accounts;
use crate::state::launches::costs::Work;
use crate::state::launches::spans::Target;
use crate::state::leases::FREE;
use crate::state::standing;

const ANY: u64 = u64::MAX;

/// May a launch to this stream go at once, without a look at anything that is shared? If it passes it is counted.
///
/// Stands outside of every rule, since it must cost next to nothing: it neither calls nor can panic, and
/// reads words that only this thread writes, and four that hardly ever change. What only some launches need (the key of
/// their work) is left to [`pays`].
#[inline(always)]
pub(crate) fn look(stream: u64) -> GateAnswer {
    let gate = thread::gate();
    let Some((container, process)) = standing::known_now() else {
        return if standing::is_transparent_now() {
            GateAnswer::Passes
        } else {
            GateAnswer::Closed
        };
    };
    let opened = Opened {
        epoch: gate.epoch.get(),
        limits: gate.limits.get(),
        targets: gate.targets.get(),
    };
    // Relaxed: the word publishes nothing else.
    let is_open = decisions::is_open(
        opened,
        || process.compute.epoch.load(Ordering::Relaxed),
        || container.limits_generation(),
        || container.targets_generation(),
    );
    if !is_open || gate.launches.get() >= gate.untold.get() {
        return GateAnswer::Closed;
    }
    if process.compute.first_uses.is_any_waiting() || !is_free(gate, stream) {
        return GateAnswer::PassesIfPaid;
    }
    count(gate);
    GateAnswer::Passes
}

/// Whether a launch for which [`look`] answered [`GateAnswer::PassesIfPaid`] goes at once: the thread has credit for
/// it, or it needs none and is not the first of its function. Then it is counted and charged.
#[inline(always)]
pub(crate) fn pays(work: Work, stream: u64) -> bool {
    let gate = thread::gate();
    let Some((_, process)) = standing::known_now() else {
        return false;
    };
    if process.compute.first_uses.is_any_waiting() {
        if process.compute.first_uses.waits(work.function) {
            return false;
        }
        if is_free(gate, stream) {
            count(gate);
            return true;
        }
    }
    if gate.stream.get() != stream {
        return false;
    }
    let cost = if gate.key.get() == work.key {
        gate.cost.get()
    } else {
        let Some(cost) = process.compute.costs.known(work.key) else {
            return false;
        };
        gate.key.set(work.key);
        gate.cost.set(cost);
        cost
    };
    spend(gate, cost)
}

#[inline(always)]
fn is_free(gate: &Gate, stream: u64) -> bool {
    gate.left_ns.get() == FREE && (gate.stream.get() == ANY || gate.stream.get() == stream)
}

#[inline(always)]
fn count(gate: &Gate) {
    gate.launches.set(gate.launches.get() + 1);
}

/// Takes a launch's cost off what the thread may launch. False: it has less, or its work is due to be measured; then
/// nothing is taken.
#[inline(always)]
fn spend(gate: &Gate, cost: u64) -> bool {
    let spent = decisions::spent(gate.left_ns.get(), gate.work_ns.get(), cost);
    let Some((left_ns, work_ns)) = spent else {
        return false;
    };
    gate.left_ns.set(left_ns);
    gate.work_ns.set(work_ns);
    count(gate);
    true
}

/// [`look`] for the structure of `cuLaunchKernelEx`.
#[inline(always)]
pub(crate) fn look_config(
    config: InPtr<CuLaunchConfig>,
    default: impl DefaultStream,
) -> GateAnswer {
    match config.read() {
        Some(config) => look(default.number(config.stream)),
        None => GateAnswer::Closed,
    }
}

/// [`pays`] for the structure of `cuLaunchKernelEx`.
#[inline(always)]
pub(crate) fn pays_config(
    config: InPtr<CuLaunchConfig>,
    function: usize,
    default: impl DefaultStream,
) -> bool {
    of_config(config, function, default).is_some_and(|(work, stream)| pays(work, stream))
}

#[inline(always)]
pub(super) fn of_config(
    config: InPtr<CuLaunchConfig>,
    function: usize,
    default: impl DefaultStream,
) -> Option<(Work, u64)> {
    let config = config.read()?;
    let stream = default.number(config.stream);
    Some((
        Work::kernel(
            function,
            [config.grid_x, config.grid_y, config.grid_z],
            [config.block_x, config.block_y, config.block_z],
        ),
        stream,
    ))
}

/// Launches to this stream, or to any, do not have to wait.
pub(super) fn remember_free(accounts: &Accounts, target: &Target, stream: u64, now_ns: u64) {
    let devices = accounts.container.region.device_count();
    let all = (0..devices).all(|device| {
        device == target.device || {
            let (_, percent) = accounts.process.compute_limit(accounts.container, device);
            decisions::may_be_free(percent) && rate(accounts, device, now_ns).is_free()
        }
    });
    open_gate(accounts, |gate| {
        gate.stream.set(if all { ANY } else { stream });
        gate.left_ns.set(FREE);
        gate.device.set(u32::try_from(target.device).unwrap_or(0));
        gate.place.set(0);
    });
}

/// Remembers that nothing has changed up to here. Not while any thread captures.
pub(super) fn open_gate(accounts: &Accounts, set: impl FnOnce(&Gate)) {
    let state = &accounts.process.compute;
    thread(|thread| {
        let gate = &thread.gate;
        set(gate);
        gate.limits.set(accounts.container.limits_generation());
        gate.targets.set(accounts.container.targets_generation());
        // Relaxed: see `look`.
        let captures = state.captures.load(Ordering::Relaxed);
        let epoch = state.epoch.load(Ordering::Relaxed);
        gate.epoch.set(decisions::opened_epoch(captures, epoch));
        gate.owner.set(accounts.process.number());
        gate.untold.set(decisions::next_untold(gate.untold.get()));
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::launches::DUE_NS;

    fn gate(left_ns: u64, work_ns: u64) -> Gate {
        // SAFETY: numbers in cells, for which all zeros is a value.
        let gate: Gate = unsafe { core::mem::zeroed() };
        gate.left_ns.set(left_ns);
        gate.work_ns.set(work_ns);
        gate
    }

    fn state(gate: &Gate) -> (u64, u64, u32) {
        (gate.left_ns.get(), gate.work_ns.get(), gate.launches.get())
    }

    #[test]
    fn launch_takes_its_cost_off_the_credit() {
        let gate = gate(100, 0);

        assert!(spend(&gate, 60));
        assert_eq!(state(&gate), (40, 60, 1));
        assert!(spend(&gate, 40));
        assert_eq!(state(&gate), (0, 100, 2));
    }

    #[test]
    fn launch_without_credit_takes_nothing() {
        let gate = gate(100, 0);

        assert!(!spend(&gate, 101));
        assert_eq!(state(&gate), (100, 0, 0));
    }

    #[test]
    fn work_that_is_due_to_be_measured_does_not_pass() {
        let gate = gate(u64::MAX, DUE_NS - 10);

        assert!(!spend(&gate, 10));
        assert!(spend(&gate, 9));
        assert_eq!(state(&gate), (u64::MAX - 9, DUE_NS - 1, 1));
    }
}
