//! Rules: contexts. Each takes memory that no call names: a learned size is reserved when one is made,
//! settled to the figure that NVML or the host measures; memory that the driver frees with a context is refunded.

use cuda_api::{CuContext, CuDevice, CuResult};
use vgpu_abi::region::{Charge, Kind, Refusal, Why};

use crate::base::log::line;
use crate::base::map::Then;
use crate::driver::query;
use crate::guest::border::OutPtr;
use crate::guest::manners::{self, Verdict};
use crate::holdings::known_contexts::{
    self, forget_addresses, mark_loading, numbered, recharge, settle_found,
};
use crate::holdings::measure::{self, Look, NewContext};
use crate::holdings::mps;
use crate::rules::{compute, modules};
use crate::state::accounts::{Accounts, Destination};
use crate::state::entries::{self, Context, DeviceCharge, Entry, LibraryCopy, Module};
use crate::state::holdings::{Learn, OverheadKind};
use crate::state::process;
use crate::state::standing::{self, accounts};
pub(crate) use admission::{after_export_table, before_export_table};
pub(crate) use green::{
    after_from_green, after_green_create, after_green_destroy, before_green_create,
    before_green_destroy,
};
pub(crate) use limits::{after_set_limit, before_set_limit};

mod admission;

mod green;

mod limits;

/// A context about to be made.
#[derive(Clone, Copy)]
pub(crate) struct ContextCreation {
    call: &'static str,
    /// `None` where nothing has to be made.
    charge: Option<Charge>,
    /// The part of the charge that the context itself is expected to take, bytes.
    bytes: u64,
    /// `bytes` is a guess: the context's real size is measured.
    is_guess: bool,
    /// The rest is kept for what the runtime will load.
    loads: bool,
    /// How the device stood before.
    before: Option<Look>,
    device: usize,
    ordinal: i32,
}

impl ContextCreation {
    fn nothing(call: &'static str, device: usize, ordinal: i32) -> Self {
        Self {
            call,
            charge: None,
            bytes: 0,
            is_guess: false,
            loads: false,
            before: None,
            device,
            ordinal,
        }
    }
}

/// A context about to go.
#[derive(Clone, Copy)]
pub(crate) struct EndingContext {
    context: u64,
    entry: Context,
}

pub(crate) fn before_create(call: &'static str, device: CuDevice) -> Verdict<ContextCreation> {
    let accounts = accounts!(Context);
    make(&accounts, call, device.0)
}

fn make(accounts: &Accounts, call: &'static str, ordinal: i32) -> Verdict<ContextCreation> {
    let device = match accounts.of_ordinal(ordinal) {
        Destination::Device { device, .. } => device,
        Destination::Elsewhere => return Verdict::Pass,
        Destination::Denied => return refuse_device(ordinal),
    };
    if let Some(refused) = mps::refuses(accounts, call, device) {
        return Verdict::Refuse(refused);
    }
    let loads = process::loads_past_us() && !accounts.holdings().has_context(device);
    if loads {
        // The memory kept since the process fetched its table is reserved from here on.
        accounts.container.region.loaded(device);
    }
    // The memory in use is measured before and after if the context's size is unknown. It is also measured if the
    // thread has a context on the device already, because that costs only a query.
    let is_known = known_contexts::known_bytes(accounts, device) != 0;
    let is_beside = query::current_ordinal() == Some(ordinal);
    let before = (is_beside || !is_known)
        .then(|| measure::before_context(accounts, device, ordinal))
        .flatten();
    match admission::reserve(accounts, call, device, ordinal, loads) {
        Ok(admitted) => Verdict::Call(ContextCreation {
            call,
            charge: Some(admitted.charge),
            bytes: admitted.bytes,
            is_guess: admitted.is_guess,
            loads,
            before,
            device,
            ordinal,
        }),
        Err(result) => Verdict::Refuse(result),
    }
}

/// A device that the container may not use: an ordinal that is not there, unless the driver has no
/// such device itself (then its own answer comes back).
fn refuse_device<T>(ordinal: i32) -> Verdict<T> {
    if query::device_uuids(ordinal).is_none() {
        return Verdict::Pass;
    }
    line!(Warn, "device {ordinal} is not the container's");
    Verdict::Refuse(CuResult::INVALID_DEVICE)
}

pub(crate) fn after_create(
    making: ContextCreation,
    result: CuResult,
    out: OutPtr<CuContext>,
) -> Option<CuResult> {
    // It is the thread's current one now.
    compute::context_changed(result);
    let accounts = standing::opened()?;
    let Some(context) = out.read().filter(|_| result == CuResult::SUCCESS) else {
        failed(&accounts, making);
        return None;
    };
    let refused = made(&accounts, making, context as u64)?;
    undo(&accounts, making, context as u64, refused, || {
        query::destroy_context(context as u64)
    })
    .inspect(|_| {
        out.write(core::ptr::null_mut());
        compute::context_changed(result);
    })
}

/// There is no context, so no code can be loaded into it.
fn failed(accounts: &Accounts, making: ContextCreation) {
    refund(accounts, making);
    if making.loads {
        accounts.container.region.loaded(making.device);
    }
}

fn refund(accounts: &Accounts, making: ContextCreation) {
    if let Some(charge) = making.charge {
        accounts.refund(charge);
    }
}

/// Confirms the memory that the context itself takes. From here on the mark that was set with the reservation keeps
/// room for the rest, minus what is charged already.
fn confirm(accounts: &Accounts, making: ContextCreation) {
    let Some(charge) = making.charge else { return };
    let (own, rest) = charge.split(making.bytes);
    // First, because the part that the context does not take was never in use.
    accounts.refund(rest);
    accounts.confirm(own, Kind::Context);
    if making.loads {
        accounts.process.begin_loading(making.device);
    }
}

/// The driver has made a context. Returns the refusal if the container has no room for the memory that the context
/// turned out to take.
fn made(accounts: &Accounts, making: ContextCreation, context: u64) -> Option<CuResult> {
    let ContextCreation { device, bytes, .. } = making;
    let entry = numbered(accounts, device, bytes);
    let (before, kept) = accounts.holdings().map.put(context, entry);
    if let Some(before) = before {
        // Another thread was first (or adopted it): its entry counts.
        accounts.holdings().map.put(context, before);
        refund(accounts, making);
        return None;
    }
    if !kept {
        line!(Error, "a context is not remembered: no memory");
    }
    let is_new = making.charge.is_some();
    if !is_new && process::loads_past_us() {
        mark_loading(accounts, device);
    }
    let is = if is_new {
        settle_new(accounts, making, context)
    } else {
        // The context was there already, and is seen for the first time. If a runtime made it past the hooks, it may
        // hold modules already.
        let learn = if process::loads_past_us() {
            Learn::Runtime
        } else {
            Learn::Context
        };
        accounts
            .holdings()
            .add_overhead(device, OverheadKind::Context, 0);
        settle_found(accounts, device, making.ordinal, context, learn)
    };
    recharge(accounts, context, |_| is);
    if making.loads {
        measure::keep_baseline(accounts, device, context);
    }
    // Where it is larger than what there was room for.
    let limit = accounts.process.memory_limit(accounts.container, device);
    let used = accounts.container.region.used(device);
    let is_over = is_new && outgrew(bytes, is, used, limit);
    is_over.then(|| {
        let refusal = Refusal {
            limit,
            used: used.saturating_sub(is),
            asked: is,
            why: Why::Full,
            unaccounted: 0,
        };
        accounts.refuse(making.call, device, &refusal)
    })
}

/// Does a context that was reserved `reserved` and takes `is` put the container past its limit? 0 is no limit.
fn outgrew(reserved: u64, is: u64, used: u64, limit: u64) -> bool {
    is > reserved && limit != 0 && used > limit
}

/// Takes one reference off a context. True if that was the last one; the context then ends. A green context's one
/// ends with the green context, and one with more references than can be counted stays until it is destroyed.
fn drop_reference(context: &mut Context) -> bool {
    match context {
        Context::OfGreen { .. }
        | Context::Own {
            references: u16::MAX,
            ..
        } => false,
        Context::Own { references, .. } => {
            let is_last = *references <= 1;
            *references = references.saturating_sub(1);
            is_last
        }
    }
}

/// Charges a new context as what it turned out to take, which is given back. That is known before its
/// reservation ends, since others may wait for it.
fn settle_new(accounts: &Accounts, making: ContextCreation, context: u64) -> u64 {
    let ContextCreation {
        device,
        ordinal,
        bytes,
        ..
    } = making;
    let is = if making.is_guess {
        let new = NewContext {
            device,
            ordinal,
            context,
            charged: 0,
            before: making.before,
        };
        measure::new_context(accounts, new)
    } else {
        // The context may be larger than earlier ones.
        let more = measure::taken(accounts, device, making.before, bytes).beyond;
        bytes.saturating_add(more)
    };
    let reserved = making.charge.map_or(0, |charge| charge.bytes());
    let own = is.min(reserved);
    confirm(
        accounts,
        ContextCreation {
            bytes: own,
            ..making
        },
    );
    accounts
        .holdings()
        .add_overhead(device, OverheadKind::Context, own);
    if is > own {
        accounts
            .container
            .region
            .charge(device, is - own, Kind::Context);
        accounts
            .holdings()
            .resize_context(&accounts.container.region, device, is - own, 0);
    }
    is
}

/// Takes a context back that there is no room for. Where the driver keeps it, it stays charged.
fn undo(
    accounts: &Accounts,
    making: ContextCreation,
    context: u64,
    refused: CuResult,
    destroy: impl FnOnce() -> bool,
) -> Option<CuResult> {
    compute::context_goes(accounts, context);
    if !manners::uncancelled(destroy) {
        line!(Error, "{}: a context past the limit stays", making.call);
        return None;
    }
    if let Some(entry) = accounts.holdings().map.take(context) {
        gone(accounts, &entry);
    }
    Some(refused)
}

pub(crate) fn before_destroy(context: CuContext) -> Verdict<EndingContext> {
    let accounts = accounts!(Context);
    let context = context as u64;
    let known: Option<Context> = accounts.holdings().map.get(context);
    if known.is_some_and(|known| known.is_of_green()) {
        // The context ends with its green context, and has no memory of its own.
        return Verdict::Pass;
    }
    match accounts.holdings().map.take(context) {
        Some(entry) => {
            compute::context_goes(&accounts, context);
            Verdict::Call(EndingContext { context, entry })
        }
        None => Verdict::Pass,
    }
}

pub(crate) fn after_destroy(going: EndingContext, result: CuResult) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    if result == CuResult::SUCCESS {
        gone(&accounts, &going.entry);
    } else {
        accounts.holdings().map.put(going.context, going.entry);
    }
}

/// The driver has freed the context and everything in it. (A green context's one has ended with the green context.)
fn gone(accounts: &Accounts, context: &Context) {
    let &Context::Own {
        number,
        bytes,
        device: index,
        ..
    } = context
    else {
        return;
    };
    let holdings = accounts.holdings();
    forget_addresses(accounts);
    let device = usize::from(index);
    let mut buffers = 0;
    let mut past_the_share = 0;
    let mut modules = 0;
    let mut in_advance = 0;
    let mut green = 0;
    let mut had_green = false;
    let mut others: u64 = 0;
    crate::rules::ipc::context_gone(accounts, number);
    entries::sweep(&holdings.map, |_, entry| {
        let charge = match &entry {
            Entry::Pointer(pointer) => pointer.dies_with(number),
            Entry::Array(array) if array.context == number => {
                Some(DeviceCharge::Within(array.bytes))
            }
            Entry::External(memory) if memory.context == number => {
                Some(DeviceCharge::Within(memory.bytes))
            }
            Entry::Graphics(memory) if memory.context == number => {
                Some(DeviceCharge::Within(memory.bytes))
            }
            _ => None,
        };
        match charge {
            Some(DeviceCharge::Within(bytes)) => buffers += bytes,
            Some(DeviceCharge::PastTheShare(bytes)) => past_the_share += bytes,
            None => {}
        }
        match entry {
            Entry::Module(Module(loaded)) | Entry::LibraryCopy(LibraryCopy(loaded))
                if loaded.context == number =>
            {
                modules += loaded.bytes;
                in_advance += modules::in_advance(loaded);
                true
            }
            // The contexts of green ones, which are over this one's memory.
            Entry::Context(Context::OfGreen { primary, .. }) => *primary == number,
            Entry::Green(over) if green::is_over(over, number) => {
                green += over.bytes;
                had_green = true;
                true
            }
            Entry::Context(Context::Own {
                bytes, device: at, ..
            }) if *at == index => {
                others = others.saturating_add(*bytes);
                false
            }
            Entry::Green(other) if other.device == index => {
                others = others.saturating_add(other.bytes);
                false
            }
            _ => charge.is_some(),
        }
    });
    accounts
        .container
        .region
        .release(device, buffers, Kind::Buffer);
    if past_the_share > 0 {
        let region = &accounts.container.region;
        region.release_beyond(device, past_the_share, Kind::Buffer);
    }
    if modules > 0 {
        holdings.take_in_advance(device, in_advance);
        holdings.drop_module(&accounts.container.region, device, modules);
    }
    if had_green {
        holdings.resize_context(&accounts.container.region, device, 0, green);
        // A driver that keeps them until they are destroyed holds more than is charged.
        measure::soon(accounts, device);
    }
    holdings.drop_context(&accounts.container.region, device, bytes, others);
    if !holdings.has_context(device) {
        accounts.process.forget_loading(device);
        accounts.container.region.loaded(device);
        crate::rules::offers::device_gone(accounts, device);
    }
    crate::holdings::pool_charges::settle_device(accounts, device);
    crate::holdings::graph_charges::settle(accounts, device);
    crate::holdings::deferred_free_charges::context_gone(accounts, number);
}

/// `cuCtxAttach`: one more reference to the current context.
pub(crate) fn after_attach(result: CuResult, out: OutPtr<CuContext>) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    if result != CuResult::SUCCESS {
        return;
    }
    if let Some(context) = out.read() {
        let more = |entry: &mut Context| {
            if let Context::Own { references, .. } = entry {
                *references = references.saturating_add(1);
            }
            (Then::Keep, ())
        };
        accounts.holdings().map.change(context as u64, more);
    }
}

/// `cuCtxDetach`: one reference less; the last one ends the context.
pub(crate) fn before_detach(context: CuContext) -> Verdict<EndingContext> {
    let accounts = accounts!(Context);
    let number = context as u64;
    let less = accounts.holdings().map.change(number, |entry| {
        let before = *entry;
        if drop_reference(entry) {
            (Then::Remove, Some(before))
        } else {
            (Then::Keep, None)
        }
    });
    if less.flatten().is_some() {
        compute::context_goes(&accounts, number);
    }
    match less.flatten() {
        // As it stood before: so it stays if the driver refuses.
        Some(entry) => Verdict::Call(EndingContext {
            context: number,
            entry,
        }),
        None => Verdict::Pass,
    }
}

pub(crate) fn before_retain(call: &'static str, device: CuDevice) -> Verdict<ContextCreation> {
    let accounts = accounts!(Context);
    if query::primary_is_active(device.0) == Some(true) {
        return match accounts.of_ordinal(device.0) {
            Destination::Device { device: index, .. } => {
                Verdict::Call(ContextCreation::nothing(call, index, device.0))
            }
            Destination::Elsewhere => Verdict::Pass,
            Destination::Denied => refuse_device(device.0),
        };
    }
    make(&accounts, call, device.0)
}

pub(crate) fn after_retain(
    making: ContextCreation,
    result: CuResult,
    out: OutPtr<CuContext>,
) -> Option<CuResult> {
    let accounts = standing::opened()?;
    let Some(context) = out.read().filter(|_| result == CuResult::SUCCESS) else {
        failed(&accounts, making);
        return None;
    };
    let context = context as u64;
    let refused = primary_is(&accounts, making, context)?;
    undo(&accounts, making, context, refused, || {
        query::release_primary(making.ordinal)
    })
    .inspect(|_| {
        accounts.holdings().swap_primary(making.ordinal, 0);
        out.write(core::ptr::null_mut());
    })
}

/// This is the device's primary context, from now on or since long.
fn primary_is(accounts: &Accounts, making: ContextCreation, context: u64) -> Option<CuResult> {
    let before = accounts.holdings().swap_primary(making.ordinal, context);
    if before != 0
        && before != context
        && let Some(entry) = accounts.holdings().map.take(before)
    {
        // The primary context was destroyed and made again past the hooks.
        gone(accounts, &entry);
    }
    if accounts.holdings().map.get::<Context>(context).is_some() {
        refund(accounts, making);
        return None;
    }
    made(accounts, making, context)
}

/// The primary context of a device of the driver, also where a runtime has made it past the hooks; 0:
/// none that is charged.
fn known_primary(accounts: &Accounts, ordinal: i32) -> u64 {
    let known = accounts.holdings().primary(ordinal);
    if known != 0 {
        return known;
    }
    match query::primary_context(ordinal) {
        Some(found) if accounts.holdings().map.get::<Context>(found).is_some() => {
            accounts.holdings().swap_primary(ordinal, found);
            found
        }
        _ => 0,
    }
}

/// The primary context may be about to go, with our events in it.
pub(crate) fn before_release(device: CuDevice) -> Verdict<()> {
    if let Some(accounts) = standing::opened() {
        let context = known_primary(&accounts, device.0);
        if context != 0 {
            compute::context_goes(&accounts, context);
        }
    }
    Verdict::Call(())
}

/// `cuDevicePrimaryCtxRelease`: the last release frees it. `cuDevicePrimaryCtxReset`: frees it at
/// once.
pub(crate) fn after_release(_known: (), result: CuResult, device: CuDevice) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    if result != CuResult::SUCCESS || query::primary_is_active(device.0) != Some(false) {
        return;
    }
    primary_gone(&accounts, device.0);
}

fn primary_gone(accounts: &Accounts, ordinal: i32) {
    let context = accounts.holdings().swap_primary(ordinal, 0);
    if context == 0 {
        return;
    }
    if let Some(entry) = accounts.holdings().map.take(context) {
        gone(accounts, &entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_within_its_reservation_is_never_too_large() {
        for (reserved, is, used, limit, too_large) in [
            (10, 10, 200, 100, false),
            (10, 9, 200, 100, false),
            (10, 11, 100, 100, false),
            (10, 11, 101, 100, true),
            (10, 11, u64::MAX, 0, false),
        ] {
            assert_eq!(
                outgrew(reserved, is, used, limit),
                too_large,
                "{reserved} {is} {used}"
            );
        }
    }

    #[test]
    fn last_reference_takes_the_context_along() {
        let of = |references| Context::Own {
            number: 1,
            bytes: 2,
            device: 3,
            references,
        };
        let of_green = Context::OfGreen {
            primary: 1,
            device: 3,
        };
        for (before, is_last, after) in [
            (of(3), false, of(2)),
            (of(1), true, of(0)),
            (of(0), true, of(0)),
            (of(u16::MAX), false, of(u16::MAX)),
            (of_green, false, of_green),
        ] {
            let mut context = before;

            assert_eq!(drop_reference(&mut context), is_last, "{before:?}");
            assert_eq!(context, after);
        }
    }
}
