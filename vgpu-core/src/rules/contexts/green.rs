//! Rules: green contexts. A green context is a share of a device's multiprocessors over the primary context. Memory
//! that is allocated while it is current belongs to the primary context, and stays when the green context is
//! destroyed. A reset of the primary context ends the green contexts over it, too.

use core::num::NonZeroU64;

use cuda_api::{CuContext, CuDevice, CuGreenCtx, CuResult};
use vgpu_abi::region::Kind;

use super::ContextCreation;
use super::before_retain;
use super::failed;
use super::primary_is;
use super::refund;
use crate::base::map::Then;
use crate::driver::query;
use crate::guest::border::OutPtr;
use crate::guest::manners::Verdict;
use crate::holdings::objects::context_mark;
use crate::holdings::{measure, requests};
use crate::state::accounts::Accounts;
use crate::state::entries::{Context, Green};
use crate::state::standing::{self, accounts};

/// The primary context is made for it if it is not there yet. The measurement before the call shows what the green
/// context takes beside it.
pub(crate) fn before_green_create(
    call: &'static str,
    device: CuDevice,
) -> Verdict<ContextCreation> {
    match before_retain(call, device) {
        Verdict::Call(making) if making.before.is_none() => {
            let Some(accounts) = standing::opened() else {
                return Verdict::Call(making);
            };
            let before = measure::before_context(&accounts, making.device, making.ordinal);
            Verdict::Call(ContextCreation { before, ..making })
        }
        verdict => verdict,
    }
}

/// The primary context is there now, made for it if need be. The green context's own memory
/// is charged to it.
pub(crate) fn after_green_create(
    making: ContextCreation,
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
        // A primary context that turns out too large cannot be undone: it is charged, and no further request is
        // granted until the charges fit.
        Some(primary) => {
            let _counts = primary_is(&accounts, making, primary);
            let known: Option<Context> = accounts.holdings().map.get(primary);
            over = known.map_or(0, |primary| context_mark(primary.number()));
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
    let entry = Green {
        bytes: more,
        context: None,
        primary: over,
        ordinal: u16::try_from(making.ordinal).unwrap_or(u16::MAX),
        device: u8::try_from(device).unwrap_or(u8::MAX),
    };
    accounts.holdings().map.put(green as u64, entry);
    None
}

/// Is it over the context of this number?
pub(super) fn is_over(green: &Green, primary: u64) -> bool {
    green.primary == context_mark(primary)
}

/// A green context about to go.
#[derive(Clone, Copy)]
pub(crate) struct GoingGreen {
    green: u64,
    entry: Green,
}

/// The context of a green one: memory that is allocated in it belongs to the primary context.
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
    let named = |entry: &mut Green| {
        // The context ends with the green context.
        entry.context = NonZeroU64::new(context as u64);
        (Then::Keep, *entry)
    };
    let Some(entry) = map.change(green as u64, named) else {
        return;
    };
    if entry.primary != 0 && map.get::<Context>(context as u64).is_none() {
        let of_green = Context::OfGreen {
            primary: u64::from(entry.primary),
            device: entry.device,
        };
        map.put(context as u64, of_green);
    }
}

pub(crate) fn before_green_destroy(green: CuGreenCtx) -> Verdict<GoingGreen> {
    let accounts = accounts!(Context);
    let green = green as u64;
    match accounts.holdings().map.take(green) {
        Some(entry) => Verdict::Call(GoingGreen { green, entry }),
        None => Verdict::Pass,
    }
}

/// Its own memory is free; the primary context and all memory stay, unless nothing else holds
/// them.
pub(crate) fn after_green_destroy(going: GoingGreen, result: CuResult) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    let GoingGreen { green, entry } = going;
    let map = &accounts.holdings().map;
    if result != CuResult::SUCCESS {
        map.put(green, entry);
        return;
    }
    if let Some(context) = entry.context.map(NonZeroU64::get)
        && map
            .get(context)
            .is_some_and(|known: Context| known.is_of_green())
    {
        map.take::<Context>(context);
    }
    let device = usize::from(entry.device);
    accounts
        .holdings()
        .resize_context(&accounts.container.region, device, 0, entry.bytes);
    super::forget_addresses(&accounts);
    released(&accounts, i32::from(entry.ordinal));
}

/// A destroyed green context has released its primary one, which may have been destroyed by that.
fn released(accounts: &Accounts, ordinal: i32) {
    if query::primary_is_active(ordinal) == Some(false) {
        super::primary_gone(accounts, ordinal);
    }
}
