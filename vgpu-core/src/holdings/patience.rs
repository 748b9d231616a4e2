//! How a request that did not fit waits, and for how long: for memory of a dead process that the
//! driver has not released yet, and for the host's next figures. Reserves nothing itself: the caller
//! asks again.
//!
//! Never holds a lock while it asks the driver or sleeps.

use vgpu_abi::region::{Charge, Dead, Refusal, Why};

use crate::base::clock;
use crate::driver::query;
use crate::guest::manners;
use crate::state::accounts::Accounts;
use crate::state::container::DEAD_NS;

/// The host looks at charges that have moved within this time.
const HOST_NS: u64 = 250_000_000;
/// Between two looks: short at first, since most drivers let go within milliseconds.
const NAP_NS: u64 = 2_000_000;
const LONGEST_NAP_NS: u64 = 20_000_000;

/// Inode of the pid namespace of the machine, in which NVML counts.
const HOST_PID_NAMESPACE: u64 = 0xefff_fffc;

/// The charges of dead processes, after a wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Remains {
    /// A slot was cleared.
    freed: bool,
    /// The driver may still hold memory of a dead process.
    waits: bool,
}

/// Whether the request would fit if `bytes` of the charges were gone. Decides whether to wait.
fn fits_without(refusal: &Refusal, bytes: u64) -> bool {
    let used = refusal.used.saturating_sub(bytes);
    bytes != 0 && used.saturating_add(refusal.asked) <= refusal.limit
}

/// A request did not fit: waits, up to the stated bounds, for charges that will end by themselves, and asks again.
/// The refusal in the end names what the driver holds beyond the charges.
#[cold]
#[inline(never)]
pub(crate) fn ask_again(
    accounts: &Accounts,
    device: usize,
    refusal: Refusal,
    ask: impl Fn() -> Result<Charge, Refusal>,
) -> Result<Charge, Refusal> {
    manners::uncancelled(|| wait_and_ask(accounts, device, refusal, ask))
        .map_err(|refusal| with_unaccounted(accounts, device, refusal))
}

fn wait_and_ask(
    accounts: &Accounts,
    device: usize,
    mut refusal: Refusal,
    ask: impl Fn() -> Result<Charge, Refusal>,
) -> Result<Charge, Refusal> {
    let begun_ns = clock::now_ns();
    let mut nap_ns = NAP_NS;
    let mut dead_before = 0;
    while refusal.why != Why::Closed {
        let dead_bytes = accounts.container.region.dead_bytes(device);
        // This process or another one has cleared a slot.
        let has_less_dead = dead_bytes < dead_before;
        dead_before = dead_bytes;
        let is_dead_in_the_way = fits_without(&refusal, dead_bytes);
        let remains = if is_dead_in_the_way {
            bury(accounts)
        } else {
            Remains::default()
        };
        let has_other_room = accounts.process.take_over_room(accounts.container);
        if remains.freed || has_less_dead || has_other_room {
            accounts.container.region.ask_once_more();
            match ask() {
                Ok(charge) => return Ok(charge),
                Err(next) => refusal = next,
            }
            continue;
        }
        let waited_ns = clock::now_ns().saturating_sub(begun_ns);
        // A little more than the dead are kept, so that the last look finds them gone.
        let for_the_dead = remains.waits && waited_ns < DEAD_NS + DEAD_NS / 8;
        let for_the_host = waited_ns < HOST_NS && is_outdated(accounts, device, &refusal);
        if !for_the_dead && !for_the_host {
            break;
        }
        clock::sleep_ns(nap_ns);
        nap_ns = (nap_ns * 2).min(LONGEST_NAP_NS);
        accounts.container.region.reap();
    }
    Err(refusal)
}

/// Whether the request fails only because of an outdated comparison by the host. The host measured unaccounted bytes
/// against a sum of charges that has changed since, so those bytes may be charged by now. The host measures again
/// soon.
fn is_outdated(accounts: &Accounts, device: usize, refusal: &Refusal) -> bool {
    let said = accounts.container.unaccounted(device);
    let limit = Refusal {
        limit: refusal.limit.saturating_add(said.bytes),
        ..*refusal
    };
    said.bytes != 0
        && said.beside != accounts.container.region.used(device)
        && limit.used.saturating_add(limit.asked) <= limit.limit
}

/// Clears the slots of the dead that the driver has let go of.
fn bury(accounts: &Accounts) -> Remains {
    let region = &accounts.container.region;
    let mut remains = Remains::default();
    let mut left = 0;
    for dead in region.dead().filter(|dead| !dead.has_family) {
        left += 1;
        let is_released =
            accounts.container.is_released(&dead) || is_listed(accounts, &dead) == Some(false);
        if is_released && region.let_go(&dead) {
            remains.freed = true;
            left -= 1;
        }
    }
    remains.waits = left > 0;
    remains
}

/// Whether the driver still knows the process on any device that it used. `None` if that is unknown: NVML knows
/// processes by the machine's numbers, and not by those of a pid namespace.
fn is_listed(accounts: &Accounts, dead: &Dead) -> Option<bool> {
    if dead.pid_namespace != HOST_PID_NAMESPACE {
        return None;
    }
    for device in (0..u32::BITS as usize).filter(|device| dead.devices >> device & 1 != 0) {
        if query::lists_process(accounts.ordinal_of(device)?, dead.pid)? {
            return Some(true);
        }
    }
    Some(false)
}

/// The refusal as it is recorded: with the whole limit, and the part of the limit that the host's finding
/// (`unaccounted`) takes away.
pub(crate) fn with_unaccounted(accounts: &Accounts, device: usize, refusal: Refusal) -> Refusal {
    let bytes = accounts.process.unaccounted(device);
    let limit = match refusal.why {
        Why::NotPageable => accounts.process.resident_limit(device),
        _ => accounts.process.memory_limit(accounts.container, device),
    };
    match bytes {
        0 => refusal,
        bytes => Refusal {
            limit,
            unaccounted: bytes,
            ..refusal
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(used: u64, asked: u64) -> Refusal {
        Refusal {
            limit: 100,
            used,
            asked,
            unaccounted: 0,
            why: Why::Full,
        }
    }

    #[test]
    fn request_waits_for_dead_processes_only_if_it_would_then_fit() {
        assert!(fits_without(&refusal(100, 60), 60));
        assert!(!fits_without(&refusal(100, 61), 60));
        assert!(!fits_without(&refusal(50, 60), 0));
        assert!(fits_without(&refusal(100, 100), u64::MAX));
        assert!(!fits_without(&refusal(100, u64::MAX), 100));
    }

    #[test]
    fn the_namespace_of_the_machine_has_its_number() {
        assert_eq!(HOST_PID_NAMESPACE, 4_026_531_836);
    }
}
