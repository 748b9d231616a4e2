//! Rules: green contexts. One is a share of a device's multiprocessors over the primary context: what is
//! allocated while it is current is the primary context's, and stays when it goes. A reset of the primary
//! context ends the green ones over it, too.

use cuda_api::{CuContext, CuDevice, CuGreenCtx, CuResult};
use vgpu_abi::region::Kind;

use super::GREEN;
use super::Going;
use super::Making;
use super::before_retain;
use super::failed;
use super::primary_is;
use super::refund;
use crate::base::map::{Entry, Space, Then};
use crate::driver::query;
use crate::guest::border::OutPtr;
use crate::guest::manners::Verdict;
use crate::holdings::objects::context_mark;
use crate::holdings::{measure, requests};
use crate::state::accounts::Accounts;
use crate::state::standing::{self, accounts};

/// The primary context is made for it if it is not there yet. How the device stood before says what the
/// green one takes beside it.
pub(crate) fn before_green_create(call: &'static str, device: CuDevice) -> Verdict<Making> {
    match before_retain(call, device) {
        Verdict::Call(making) if making.before.is_none() => {
            let Some(accounts) = standing::opened() else {
                return Verdict::Call(making);
            };
            let before = measure::before_context(&accounts, making.device, making.ordinal);
            Verdict::Call(Making { before, ..making })
        }
        verdict => verdict,
    }
}

/// The primary context is there now, made for it if need be. What the green one takes beside it is
/// charged to it.
pub(crate) fn after_green_create(
    making: Making,
    result: CuResult,
    out: OutPtr<CuGreenCtx>,
) -> Option<CuResult> {
    let accounts = standing::opened()?;
    let Some(green) = out.read().filter(|_| result == CuResult::SUCCESS) else {
        failed(&accounts, making);
        return None;
    };
    let device = making.device;
    let mut more = 0;
    let mut making = making;
    // A context of unknown size is measured together with the green one over it.
    if making.charge.is_none() || !making.is_guess {
        let charged = making.charge.map_or(0, |charge| charge.bytes());
        more = measure::taken(&accounts, device, making.before.take(), charged).beyond;
    }
    let mut over = 0;
    match query::primary_context(making.ordinal) {
        // Where it turns out to be too large there is no way back: it counts, and nothing is given.
        Some(primary) => {
            let _counts = primary_is(&accounts, making, primary);
            let known = accounts.holdings().map.get(Space::Context, primary);
            over = known.map_or(0, |primary| context_mark(primary.owner));
        }
        None => refund(&accounts, making),
    }
    if more > 0 {
        match requests::reserve_overhead(&accounts, making.call, device, more) {
            Ok(charge) => accounts.confirm(charge, Kind::Context),
            Err(refused) if query::destroy_green(green as u64) => {
                out.write(core::ptr::null_mut());
                released(&accounts, making.ordinal);
                return Some(refused);
            }
            // The driver keeps it, so it counts, and nothing more is given.
            Err(_) => accounts
                .container
                .region
                .charge(device, more, Kind::Context),
        }
        accounts
            .holdings()
            .resize_context(&accounts.container.region, device, more, 0);
    }
    let entry = Entry {
        bytes: more,
        device: u8::try_from(device).unwrap_or(u8::MAX),
        maps: over,
        handles: u16::try_from(making.ordinal).unwrap_or(u16::MAX),
        ..Entry::default()
    };
    accounts
        .holdings()
        .map
        .put(Space::Green, green as u64, entry);
    None
}

/// `Space::Green`: `owner` is its context, where the program has asked for that; `maps` is the mark of the
/// primary context that it is over, `handles` the driver's ordinal of the device.
pub(super) fn is_over(green: &Entry, primary: &Entry) -> bool {
    primary.what != GREEN && green.maps == context_mark(primary.owner)
}

/// The context of a green one: what is allocated in it is the primary context's.
pub(crate) fn after_from_green(result: CuResult, out: OutPtr<CuContext>, green: CuGreenCtx) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    if result != CuResult::SUCCESS {
        return;
    }
    let Some(context) = out.read() else {
        return;
    };
    let map = &accounts.holdings().map;
    let named = |entry: &mut Entry| {
        // It goes with the green one.
        entry.owner = context as u64;
        (Then::Keep, *entry)
    };
    let Some(entry) = map.change(Space::Green, green as u64, named) else {
        return;
    };
    if entry.maps != 0 && map.get(Space::Context, context as u64).is_none() {
        let of_green = Entry {
            owner: u64::from(entry.maps),
            device: entry.device,
            what: GREEN,
            handles: 1,
            ..Entry::default()
        };
        map.put(Space::Context, context as u64, of_green);
    }
}

pub(crate) fn before_green_destroy(green: CuGreenCtx) -> Verdict<Going> {
    let accounts = accounts!(Context);
    match accounts.holdings().map.take(Space::Green, green as u64) {
        Some(entry) => Verdict::Call(Going {
            context: green as u64,
            entry,
        }),
        None => Verdict::Pass,
    }
}

/// Its own memory is free; the primary context and all memory stay, unless nothing else holds
/// them.
pub(crate) fn after_green_destroy(going: Going, result: CuResult) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    let Going { context, entry } = going;
    if result != CuResult::SUCCESS {
        accounts.holdings().map.put(Space::Green, context, entry);
        return;
    }
    let map = &accounts.holdings().map;
    if map
        .get(Space::Context, entry.owner)
        .is_some_and(|it| it.what == GREEN)
    {
        map.take(Space::Context, entry.owner);
    }
    let device = usize::from(entry.device);
    accounts
        .holdings()
        .resize_context(&accounts.container.region, device, 0, entry.bytes);
    super::forget_addresses(&accounts);
    released(&accounts, i32::from(entry.handles));
}

/// A green context that is gone has released its primary one, which may be gone, too.
fn released(accounts: &Accounts, ordinal: i32) {
    if query::primary_is_active(ordinal) == Some(false) {
        super::primary_gone(accounts, ordinal);
    }
}
