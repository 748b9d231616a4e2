//! Decides whether there is room for a context: one of a known size, one of an unknown size, or one that a CUDA
//! runtime will make past the hooks.

use cuda_api::{CuResult, CuUuid};
use vgpu_abi::region::{Charge, Refusal, Why};

use crate::base::lock;
use crate::driver::query;
use crate::guest::border::InPtr;
use crate::guest::manners::Verdict;
use crate::holdings::known_contexts::known_bytes;
use crate::holdings::{measure, patience, requests};
use crate::state::accounts::{Accounts, Destination};
use crate::state::process;
use crate::state::standing::accounts;

/// The table through which a CUDA runtime makes contexts and loads modules.
const RUNTIME_TABLE: [u8; 16] = [
    0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9,
];

/// A context of unknown size waits for this long while another one of the container is made or
/// loaded, after which its size is known. See
/// docs/decisions/0011.
const LONGEST_WAIT_MS: u64 = 3_000;

const PAUSE_MS: u64 = 2;

/// Requests for room before giving up: other processes may take the room that a look found.
const TRIES: u32 = 4;

/// Room is kept for a runtime that has fetched its table for this long, unless it makes a context.
const TABLE_NS: u64 = 10_000_000_000;

/// Room for a context.
#[derive(Clone, Copy)]
pub(super) struct AdmittedContext {
    pub(super) charge: Charge,
    /// The memory that the context itself is expected to take.
    pub(super) bytes: u64,
    /// Whether `bytes` is a guess.
    pub(super) is_guess: bool,
}

/// The situation when room is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ContextRoom {
    /// The rest of the limit after all that is charged, requested and kept, bytes.
    left: u64,
    /// Another context is being made, or a runtime loads: its size will be known soon.
    is_awaited: bool,
    /// The guess for a context, bytes.
    guess: u64,
    waited_ms: u64,
}

/// The next step for a context of unknown size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The context is let in, and reserves this many bytes.
    Ask(u64),
    /// The context waits for another one that will show how large it is.
    Wait,
    /// There is no room.
    Refuse,
}

/// A context of unknown size reserves the guess. Where that does not fit, one at a time is let in and
/// reserves all that is left; the others wait until its size is known.
fn step(room: ContextRoom) -> Step {
    if room.left >= room.guess {
        Step::Ask(room.guess)
    } else if !room.is_awaited {
        match room.left >= measure::LEAST_CONTEXT {
            true => Step::Ask(room.left),
            false => Step::Refuse,
        }
    } else if room.waited_ms < LONGEST_WAIT_MS {
        Step::Wait
    } else {
        Step::Refuse
    }
}

/// Reserves room for a context; with `loads`, for what its runtime will load into it, too.
pub(super) fn reserve(
    accounts: &Accounts,
    call: &str,
    device: usize,
    ordinal: i32,
    loads: bool,
) -> Result<AdmittedContext, CuResult> {
    let ask = |bytes, is_guess| {
        let charge = if loads {
            requests::try_reserve_loading(accounts, device, bytes)?
        } else {
            requests::try_reserve_now(accounts, device, bytes)?
        };
        Ok(AdmittedContext {
            charge,
            bytes,
            is_guess,
        })
    };
    reserve_by(accounts, device, ordinal, ask)
        .map_err(|refusal| accounts.refuse(call, device, &refusal))
}

/// Asks for what a context takes, as soon as that is known or there is room for the guess.
fn reserve_by<T>(
    accounts: &Accounts,
    device: usize,
    ordinal: i32,
    ask: impl Fn(u64, bool) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let began = lock::milliseconds().unsigned_abs();
    let mut guess = 0;
    let mut tries = 0;
    loop {
        let known = known_bytes(accounts, device);
        if known != 0 {
            return ask(known, false);
        }
        if guess == 0 {
            guess = measure::guess_for(ordinal);
        }
        requests::tick(accounts);
        let bounds = accounts.bounds(device);
        let limit = match bounds.limit {
            0 => bounds.resident,
            limit => limit.min(bounds.resident),
        };
        let region = &accounts.container.region;
        let pending = region.pending(device);
        let used = region.used(device);
        let room = ContextRoom {
            left: limit.saturating_sub(used).saturating_sub(pending),
            is_awaited: pending > 0 || region.kept(device) > 0,
            guess,
            waited_ms: lock::milliseconds().unsigned_abs().saturating_sub(began),
        };
        match step(room) {
            Step::Ask(bytes) => match ask(bytes, true) {
                // Another one was first.
                Err(_) if tries < TRIES => tries += 1,
                answer => return answer,
            },
            Step::Wait => {}
            Step::Refuse => {
                return Err(Refusal {
                    limit,
                    used,
                    asked: guess,
                    unaccounted: 0,
                    why: if room.is_awaited {
                        Why::TimedOut
                    } else {
                        Why::Full
                    },
                });
            }
        }
        lock::sleep_ms(PAUSE_MS);
    }
}

fn is_runtime_table(table: InPtr<CuUuid>) -> bool {
    table
        .read()
        .is_some_and(|table| table.bytes == RUNTIME_TABLE)
}

/// A runtime that has this table makes its context and loads modules through it, which no hook sees:
/// room for that is kept from here on. Where there is none on any device, the runtime does not begin.
pub(crate) fn before_export_table(table: InPtr<CuUuid>) -> Verdict<bool> {
    let accounts = accounts!(Context);
    if !is_runtime_table(table) {
        return Verdict::Pass;
    }
    let mut refused = None;
    let mut has_room = false;
    for ordinal in 0..query::device_count().unwrap_or(0) {
        let device = match accounts.of_ordinal(ordinal) {
            Destination::Device { device, .. } => device,
            Destination::Elsewhere => {
                has_room = true;
                continue;
            }
            Destination::Denied => continue,
        };
        match keep_for_runtime(&accounts, device, ordinal) {
            Ok(()) => has_room = true,
            Err(refusal) => refused = refused.or(Some((device, refusal))),
        }
    }
    match refused {
        Some((device, refusal)) if !has_room => {
            Verdict::Refuse(accounts.refuse("cuGetExportTable", device, &refusal))
        }
        _ => Verdict::Call(true),
    }
}

fn keep_for_runtime(accounts: &Accounts, device: usize, ordinal: i32) -> Result<(), Refusal> {
    let region = &accounts.container.region;
    if accounts.holdings().has_context(device) || query::primary_is_active(ordinal) == Some(true) {
        return Ok(());
    }
    // The memory that this process kept for an earlier context is requested again.
    region.loaded(device);
    // A dead process's charge may end meanwhile.
    let keep = |bytes| {
        let ask = || region.keep_for_loading(device, bytes, accounts.bounds(device), TABLE_NS);
        let charge =
            ask().or_else(|refusal| patience::ask_again(accounts, device, refusal, ask))?;
        // The mark keeps the room from here on.
        region.refund(charge);
        Ok(())
    };
    match region.learned_runtime_bytes(device) {
        0 => reserve_by(accounts, device, ordinal, |bytes, _is_guess| keep(bytes)),
        learned => keep(learned),
    }
}

pub(crate) fn after_export_table(_is_runtime: bool, result: CuResult) {
    if result == CuResult::SUCCESS {
        process::load_past_us();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn room(left: u64, is_awaited: bool, waited_ms: u64) -> Step {
        step(ContextRoom {
            left: left * MIB,
            is_awaited,
            guess: 500 * MIB,
            waited_ms,
        })
    }

    #[test]
    fn a_context_of_unknown_size_reserves_the_guess() {
        assert_eq!(room(500, true, 0), Step::Ask(500 * MIB));
        assert_eq!(room(4000, false, 9_000), Step::Ask(500 * MIB));
    }

    #[test]
    fn where_the_guess_does_not_fit_one_context_at_a_time_is_let_in() {
        assert_eq!(room(300, false, 0), Step::Ask(300 * MIB));
        assert_eq!(room(300, true, 0), Step::Wait);
        assert_eq!(room(300, true, LONGEST_WAIT_MS), Step::Refuse);
        assert_eq!(room(7, false, 0), Step::Refuse);
    }
}
