//! Measures the memory that the driver takes although no call asks for it: contexts, modules, code loaded at
//! its first use. The sources, in this order: NVML, which knows each process; how much less memory is free
//! after a call than before it; sizes that the container has learned; a guess for the GPU. The answer is
//! never "nothing".
//!
//! Decides no call. The figures that stand for a missing answer are functions of values ([`guess`],
//! [`beyond`], [`context_figure`], [`settled`]).
//!
//! NVML gives one sum for everything that a process holds. Its contexts and modules are that sum less its
//! buffers. The charges of the buffers are upper bounds, and [`buffer_of`] says by how much each may be too
//! high. A charge for contexts or modules is lowered no further than this allows.

use vgpu_abi::region::{Kind, Refusal, Why};

use crate::base::lock;
use crate::base::log::line;
use crate::driver::query;
use crate::figures::sizes;
use crate::guest::manners;
use crate::holdings::{deferred_free_charges, graph_charges, pool_charges};
use crate::state::accounts::Accounts;
use crate::state::entries::{self, Entry, ObjectKind, Pointer};
use crate::state::holdings::{CHORE_DEFERRED_FREES, Learn, OverheadKind};

const MIB: u64 = 1 << 20;

/// A context takes at least this much, even if a measurement beside busy neighbours shows less.
pub(crate) const LEAST_CONTEXT: u64 = 8 * MIB;

/// A safe figure for a context of a GPU of which only the multiprocessors and the memory are known: 64 MiB, and 4 MiB
/// for each multiprocessor (2 MiB of it are the default stacks of its threads), but no more than an eighth of the
/// memory.
///
/// | GPU | multiprocessors | guess |
/// |---|---|---|
/// | T4 | 40 | 224 MiB |
/// | V100 | 80 | 384 MiB |
/// | A100 | 108 | 496 MiB |
/// | H100, H200 | 132 | 592 MiB |
/// | B200 | 148 | 656 MiB |
pub(crate) fn guess(multiprocessors: u64, total_bytes: u64) -> u64 {
    let by_size = (64 * MIB).saturating_add(multiprocessors.saturating_mul(4 * MIB));
    let most = match total_bytes {
        0 => u64::MAX,
        total => total / 8,
    };
    sizes::mapped(by_size.min(most).clamp(LEAST_CONTEXT, 4096 * MIB))
}

/// The guess for a device of the driver.
pub(crate) fn guess_for(ordinal: i32) -> u64 {
    /// For a GPU whose multiprocessors the driver does not count.
    const MANY: u64 = 160;
    let count = query::device_attribute(ordinal, query::MULTIPROCESSORS);
    let count = count
        .and_then(|it| u64::try_from(it).ok())
        .filter(|&it| it > 0);
    guess(
        count.unwrap_or(MANY),
        query::total_bytes(ordinal).unwrap_or(0),
    )
}

/// How a device stood at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// Memory in use by all processes of the machine, bytes.
    in_use: u64,
    /// The container's charges, bytes: before the call including the request, after it excluding it.
    booked: u64,
    /// Buffers of this process in it, bytes.
    buffers: u64,
    from: From,
}

/// The source of a measurement. Two measurements are comparable only if they have the same source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    /// The driver, in this context.
    Context(u64),
    /// NVML, by the driver's ordinal.
    Nvml(i32),
}

/// When a look is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Before,
    After,
}

fn booked(accounts: &Accounts, device: usize, when: When) -> u64 {
    let region = &accounts.container.region;
    // Memory that another process of the container requests meanwhile counts as this process's. Otherwise it
    // would not count at all.
    match when {
        When::Before => region.used(device).saturating_add(region.pending(device)),
        When::After => region.used(device),
    }
}

fn look(accounts: &Accounts, device: usize, from: From, when: When) -> Option<Look> {
    let in_use = match from {
        From::Context(context) => {
            let (free, total) = query::relaxed(|| query::memory_info(context))?;
            total.saturating_sub(free)
        }
        From::Nvml(ordinal) => manners::uncancelled(|| query::used_bytes(ordinal))?,
    };
    // Memory that a stream has freed by then is in neither figure.
    if accounts.holdings().has_chore(CHORE_DEFERRED_FREES) {
        deferred_free_charges::settle(accounts);
    }
    Some(Look {
        in_use,
        booked: booked(accounts, device, when),
        buffers: own_buffers(accounts, device),
        from,
    })
}

/// A look before a call that takes memory of the current context's device.
pub(crate) fn before(accounts: &Accounts, device: usize) -> Option<Look> {
    let context = query::current_context()?;
    look(accounts, device, From::Context(context), When::Before)
}

/// The same for a call that makes a context: the current one may be of another device, or none.
pub(crate) fn before_context(accounts: &Accounts, device: usize, ordinal: i32) -> Option<Look> {
    if query::current_ordinal() == Some(ordinal) {
        return before(accounts, device);
    }
    look(accounts, device, From::Nvml(ordinal), When::Before)
}

/// The growth of the memory in use over a call, beyond the growth of the charges, bytes. `charged` is the charge of
/// the call itself, which neither look counts as charged. Memory that this process has freed meanwhile is not in
/// use any more. (Memory that other processes of the container free cannot be told from the charges of dead
/// processes that they clear.)
///
/// A neighbour that allocates meanwhile makes it too large, so NVML is asked before this figure is used. A neighbour
/// that frees makes it too small, so it never lowers a charge.
fn beyond(before: &Look, after: &Look, charged: u64) -> u64 {
    let freed = before.buffers.saturating_sub(after.buffers);
    let more = after
        .in_use
        .saturating_add(freed)
        .saturating_sub(before.in_use);
    let known = after.booked.saturating_sub(before.booked);
    more.saturating_sub(known).saturating_sub(charged)
}

/// The number of looks after a call.
const LOOKS: usize = 3;

/// The difference between what a call took and what it was charged; of the two, at least one is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct TakenDifference {
    /// Taken beyond the charge, bytes.
    pub(crate) beyond: u64,
    /// Charged and not taken (yet), bytes.
    pub(crate) short: u64,
}

/// Measures what a call took: the smallest of several looks, and NVML's figure where it knows this process.
/// Of the call, only `charged` is counted, as pending.
pub(crate) fn taken(
    accounts: &Accounts,
    device: usize,
    before: Option<Look>,
    charged: u64,
) -> TakenDifference {
    let Some(before) = before else {
        return TakenDifference::default();
    };
    let mut least = u64::MAX;
    for _look in 0..LOOKS {
        let Some(after) = look(accounts, device, before.from, When::After) else {
            break;
        };
        least = least.min(beyond(&before, &after, 0));
        if least <= charged {
            return TakenDifference {
                beyond: 0,
                short: charged - least,
            };
        }
    }
    if least == u64::MAX {
        return TakenDifference::default();
    }
    let least = least.saturating_sub(charged);
    let by_nvml = own_overhead(accounts, device).map(|own| {
        let holdings = accounts.holdings();
        // The driver may have taken now what was charged in advance.
        let known = holdings
            .overhead_bytes(device)
            .saturating_sub(holdings.in_advance(device))
            .saturating_add(charged);
        own.most().saturating_sub(known)
    });
    let beyond = match by_nvml {
        Some(own) if own < least => {
            // The memory is a neighbour's, or NVML is late: a later measurement asks NVML again.
            soon(accounts, device);
            own
        }
        _ => least,
    };
    TakenDifference { beyond, short: 0 }
}

/// NVML's figure of this process's contexts and modules: all but its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Own {
    /// With all buffers as large as they are charged, bytes.
    least: u64,
    /// The figure may be higher by this, bytes: charges of buffers are upper bounds.
    doubtful: u64,
    /// The process has buffers.
    has_buffers: bool,
}

impl Own {
    fn most(&self) -> u64 {
        self.least.saturating_add(self.doubtful)
    }
}

/// `None` if NVML does not know the process, or if its figure cannot be used.
fn own_overhead(accounts: &Accounts, device: usize) -> Option<Own> {
    let region = &accounts.container.region;
    if region.oversubscribed_by_me(device) > 0 {
        // NVML does not say how much of the managed memory it counts as this process's.
        return None;
    }
    let ordinal = accounts.ordinal_of(device)?;
    let before = buffers(accounts, device);
    let held = manners::uncancelled(|| query::own_bytes(ordinal))?;
    let after = buffers(accounts, device);
    let bytes = before.bytes.max(after.bytes);
    // Memory that came or went meanwhile may be in the figure or not.
    let moved = bytes - before.bytes.min(after.bytes);
    Some(Own {
        least: held.saturating_sub(bytes),
        doubtful: before.doubtful.max(after.doubtful).saturating_add(moved),
        has_buffers: bytes != 0,
    })
}

/// The charges of this process's buffers on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
struct Buffers {
    /// In the process's slot and in the container's table.
    bytes: u64,
    /// The part of it that NVML may not count for the process.
    doubtful: u64,
}

/// The charge for buffers in this process's slot, bytes.
fn own_buffers(accounts: &Accounts, device: usize) -> u64 {
    let overhead = accounts.holdings().overhead_bytes(device);
    let used = accounts.container.region.used_by_me(device);
    used.saturating_sub(overhead)
}

/// Linear in the number of buffers.
fn buffers(accounts: &Accounts, device: usize) -> Buffers {
    let mut sum = Buffers {
        bytes: own_buffers(accounts, device),
        doubtful: deferred_free_charges::bytes(accounts, device),
    };
    entries::sweep(&accounts.holdings().map, |_, entry| {
        if let Some((at, one)) = buffer_of(&entry, sizes::granularity())
            && usize::from(at) == device
        {
            sum.bytes = sum.bytes.saturating_add(one.bytes);
            sum.doubtful = sum.doubtful.saturating_add(one.doubtful);
        }
        false
    });
    sum
}

/// The device of an entry, and the bytes that it adds to the charges in this process's slot, on a driver of this
/// granularity. `None`: it is no buffer.
fn buffer_of(entry: &Entry<'_>, granularity: u64) -> Option<(u8, Buffers)> {
    // The driver may give less than the charge, by up to one step.
    let by_steps = |bytes| {
        if bytes >= sizes::STEP {
            sizes::STEP.saturating_sub(granularity)
        } else {
            0
        }
    };
    let in_slot = |doubtful| Buffers { bytes: 0, doubtful };
    // Exported memory is in the container's table, and so is memory that other processes have exported. The driver
    // counts that for this process once its maker has let go.
    let in_table = |bytes, doubtful| Buffers { bytes, doubtful };
    Some(match entry {
        Entry::Pointer(pointer) => {
            let buffers = match **pointer {
                Pointer::Own { bytes, .. }
                | Pointer::Loose { bytes, .. }
                | Pointer::Offered { bytes, .. } => in_slot(by_steps(bytes)),
                Pointer::Taken { .. } => in_slot(0),
                Pointer::Exported { bytes, .. } => in_table(bytes, by_steps(bytes)),
                Pointer::Opened { size, .. } => in_table(size.bytes(), size.bytes()),
                // Memory past the limit (oversubscription).
                Pointer::Paged { .. } | Pointer::Managed { .. } => in_slot(0),
                // Its pages may be on the host.
                Pointer::ManagedHere { bytes, .. } => in_slot(bytes),
            };
            (pointer.device(), buffers)
        }
        Entry::MemoryObject(object) => {
            let bytes = object.bytes;
            let buffers = match object.kind {
                ObjectKind::Own => in_slot(by_steps(bytes)),
                ObjectKind::Exported => in_table(bytes, by_steps(bytes)),
                ObjectKind::Imported => in_table(bytes, bytes),
                // Memory that another process was given.
                ObjectKind::Adopted => in_slot(bytes),
                ObjectKind::Foreign | ObjectKind::Multicast | ObjectKind::MulticastShared => {
                    in_slot(0)
                }
            };
            (object.device, buffers)
        }
        Entry::Array(array) => {
            let doubtful = array.doubtful_bytes().max(by_steps(array.bytes));
            (array.device, in_slot(doubtful))
        }
        // Memory that another API was given.
        Entry::External(memory) => (memory.device, in_slot(memory.bytes)),
        Entry::Graphics(memory) => (memory.device, in_slot(memory.bytes)),
        _ => return None,
    })
}

/// The charge of contexts and modules once they were measured: the charge is lowered no further than
/// buffers are known.
fn settled(charged: u64, own: Own) -> u64 {
    if own.least >= charged {
        own.least
    } else {
        own.most().min(charged)
    }
}

/// NVML says what this process's contexts and modules take: the charges follow. (A host process that
/// measures comes later, and again.) False where NVML does not know this process, or does not know of
/// its context yet.
pub(crate) fn settle(accounts: &Accounts, device: usize, learn: Learn) -> bool {
    let Some(own) = own_overhead(accounts, device).filter(|own| own.most() >= LEAST_CONTEXT) else {
        return false;
    };
    // Beside buffers the figure may be off by one that is on its way.
    let learn = if own.has_buffers {
        Learn::Nothing
    } else {
        learn
    };
    let bytes = settled(accounts.holdings().overhead_bytes(device), own);
    accounts
        .holdings()
        .measured_here(&accounts.container.region, device, bytes, learn);
    true
}

/// The size of a context that NVML has no figure of: the memory in use beyond the charges since before it
/// was made, or in all; but no more than the guess, since neighbours count too, and no less than any
/// context takes.
fn context_figure(beyond_the_books: Option<u64>, guess: u64) -> u64 {
    beyond_the_books
        .unwrap_or(guess)
        .min(guess)
        .max(LEAST_CONTEXT.min(guess))
}

/// A context that was made just now, or that the library found.
#[derive(Clone, Copy)]
pub(crate) struct NewContext {
    pub(crate) device: usize,
    pub(crate) ordinal: i32,
    pub(crate) context: u64,
    /// Its charge so far, which the charges include, bytes.
    pub(crate) charged: u64,
    /// How the device stood before it.
    pub(crate) before: Option<Look>,
}

/// The size of a context that was made just now and whose size was unknown, bytes. Its charge is pending, and
/// what is found out is learned.
pub(crate) fn new_context(accounts: &Accounts, new: NewContext) -> u64 {
    let device = new.device;
    let region = &accounts.container.region;
    let was = accounts.holdings().overhead_bytes(device);
    let own = own_overhead(accounts, device)
        .filter(|own| own.most().saturating_sub(was) >= LEAST_CONTEXT);
    let by_nvml = own.map(|own| {
        let (least, most) = (
            own.least.saturating_sub(was),
            own.most().saturating_sub(was),
        );
        if least == most {
            return least;
        }
        // The context may hold more, up to the use beyond the charges.
        let beyond = beyond_the_books(accounts, &new).unwrap_or(most);
        beyond.clamp(least, most)
    });
    let is = by_nvml.unwrap_or_else(|| {
        // NVML may be late.
        soon(accounts, device);
        context_figure(beyond_the_books(accounts, &new), guess_for(new.ordinal))
    });
    accounts.holdings().measured_now(device);
    // Beside buffers the figure may be off by one that is on its way; an estimate is learned only by a
    // container that knows nothing yet.
    let is_exact = own.is_some_and(|own| !own.has_buffers);
    if is_exact || region.learned_context_bytes(device) == 0 {
        region.learn_context_bytes(device, is);
    }
    is
}

/// The size of a context that was found and whose size was unknown, bytes: settles its charge to that.
pub(crate) fn settle_found_context(accounts: &Accounts, new: NewContext, learn: Learn) -> u64 {
    let NewContext {
        device, charged, ..
    } = new;
    let holdings = accounts.holdings();
    let was = holdings.overhead_bytes(device);
    if settle(accounts, device, learn) {
        let is = holdings.overhead_bytes(device);
        return charged.saturating_add(is).saturating_sub(was);
    }
    let is = context_figure(beyond_the_books(accounts, &new), guess_for(new.ordinal));
    let sum = was.saturating_sub(charged).saturating_add(is);
    holdings.measured_here(&accounts.container.region, device, sum, Learn::Nothing);
    soon(accounts, device);
    is
}

/// The memory in use beyond the charges: since before the context was made, else in all. The smallest of
/// several looks.
fn beyond_the_books(accounts: &Accounts, new: &NewContext) -> Option<u64> {
    let from = new
        .before
        .map_or(From::Context(new.context), |before| before.from);
    let mut least: Option<u64> = None;
    for _look in 0..LOOKS {
        let after = look(accounts, new.device, from, When::After)?;
        let known = after.booked.saturating_sub(new.charged);
        let found = match &new.before {
            Some(before) => {
                let after = Look {
                    booked: known,
                    ..after
                };
                beyond(before, &after, 0)
            }
            None => after.in_use.saturating_sub(known),
        };
        least = Some(least.map_or(found, |least| least.min(found)));
    }
    least
}

/// A measurement is wanted before this process gets memory of the device again: something may have been
/// taken of which the charges do not know. Cheap; any rule may ask.
pub(crate) fn soon(accounts: &Accounts, device: usize) {
    accounts.holdings().want_measurement(device);
    accounts.process.want_measurement(device);
}

/// How long after it was asked for a measurement is repeated, milliseconds: NVML may be late.
const REPEATED_FOR_MS: u64 = 1_000;
/// The shortest time between two repeated measurements, milliseconds.
const REPEATED_EACH_MS: u64 = 50;

/// Measures what was asked for by [`soon`], before memory is given.
#[cold]
pub(crate) fn wanted(accounts: &Accounts, device: usize) {
    let now = lock::milliseconds().unsigned_abs();
    let (asked, last) = accounts.holdings().measurement_wanted(device);
    let is_over = now.saturating_sub(asked) > REPEATED_FOR_MS;
    if !is_over && now.saturating_sub(last) < REPEATED_EACH_MS {
        return;
    }
    accounts.holdings().measured_at(device, now);
    if is_over {
        accounts.process.forget_wanted(device);
    }
    if !settle(accounts, device, Learn::Nothing) {
        accounts.holdings().await_host(device);
    }
}

/// If NVML does not know the process: the growth of uncharged memory in use since a runtime's context was made is
/// what the runtime loaded past the hooks. It counts in full up to four times what a context is taken for: neighbours
/// may be the cause of more.
pub(crate) fn settle_loaded(accounts: &Accounts, device: usize, ordinal: i32) -> bool {
    if query::current_ordinal() != Some(ordinal) {
        return false;
    }
    let Some(now) = before(accounts, device) else {
        return false;
    };
    let Some(baseline) = accounts.holdings().take_baseline(device) else {
        return false;
    };
    let loaded = now
        .in_use
        .saturating_sub(now.booked)
        .saturating_sub(baseline);
    let loaded = loaded.min(guess_for(ordinal).saturating_mul(4));
    let sum = accounts
        .holdings()
        .overhead_bytes(device)
        .saturating_add(loaded);
    accounts
        .holdings()
        .measured_here(&accounts.container.region, device, sum, Learn::Runtime);
    true
}

/// Remembers the device's uncharged memory in use, for [`settle_loaded`].
pub(crate) fn keep_baseline(accounts: &Accounts, device: usize, context: u64) {
    if let Some(now) = look(accounts, device, From::Context(context), When::After) {
        let baseline = now.in_use.saturating_sub(now.booked);
        accounts.holdings().set_baseline(device, baseline);
    }
}

/// Something was loaded at its first use: it is charged, since the driver has given it. If the container is then over
/// its limit, a record says so, and no request is granted until the charges fit again.
pub(crate) fn charge_loaded(accounts: &Accounts, call: &str, device: usize, bytes: u64) {
    if bytes == 0 {
        return;
    }
    accounts
        .container
        .region
        .charge(device, bytes, Kind::Module);
    accounts
        .holdings()
        .add_overhead(device, OverheadKind::Module, bytes);
    record_excess(accounts, call, device, bytes);
}

/// Records that the container is over its limit. Returns whether it is.
pub(crate) fn record_excess(accounts: &Accounts, call: &str, device: usize, asked: u64) -> bool {
    let limit = accounts.process.memory_limit(accounts.container, device);
    let used = accounts.container.region.used(device);
    if limit == 0 || used <= limit {
        return false;
    }
    let refusal = Refusal {
        limit,
        used: used.saturating_sub(asked),
        asked,
        why: Why::Full,
        unaccounted: 0,
    };
    // The call itself has succeeded.
    let _answer = accounts.refuse(call, device, &refusal);
    bring_down(accounts, device);
    true
}

/// The container is above its limit on this device: returns to the driver what the process's pools and graphs keep
/// without using it.
#[cold]
pub(crate) fn bring_down(accounts: &Accounts, device: usize) {
    let Some(ordinal) = accounts.ordinal_of(device) else {
        return;
    };
    manners::uncancelled(|| {
        query::relaxed(|| {
            pool_charges::trim_device(accounts, device);
            query::trim_graphs(ordinal);
        });
    });
    graph_charges::trimmed(accounts, device);
    line!(
        Info,
        "device {device}: above its limit, caches are given back"
    );
}

/// Checks from time to time whether the container is above its limit on a device of this process.
pub(crate) fn look_for_excess(accounts: &Accounts) {
    for device in 0..accounts.container.region.device_count() {
        if !accounts.holdings().has_context(device) {
            continue;
        }
        let limit = accounts.process.memory_limit(accounts.container, device);
        if limit != 0 && accounts.container.region.used(device) > limit {
            bring_down(accounts, device);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::entries::{Array, External, Library, MemoryObject, Steps};

    fn at(in_use: u64, booked: u64) -> Look {
        Look {
            in_use,
            booked,
            buffers: booked,
            from: From::Context(1),
        }
    }

    #[test]
    fn the_guess_grows_with_the_gpu() {
        for (multiprocessors, total, mib) in [
            (40, 16 << 30, 224),
            (132, 141 << 30, 592),
            (14, 5 << 30, 120),
            (132, 1 << 30, 128),
            (0, 0, 64),
            (1, 16 << 20, 8),
            (u64::MAX, u64::MAX, 4096),
            (u64::MAX, 0, 4096),
        ] {
            assert_eq!(
                guess(multiprocessors, total),
                mib * MIB,
                "{multiprocessors}"
            );
        }
    }

    #[test]
    fn call_took_the_growth_beyond_the_charges() {
        let before = at(1000, 100);
        assert_eq!(beyond(&before, &at(1500, 100), 200), 300);
        // A process of the container has taken 200 of it.
        assert_eq!(beyond(&before, &at(1500, 300), 200), 100);
        assert_eq!(beyond(&before, &at(1100, 100), 200), 0);
        // A neighbour has freed.
        assert_eq!(beyond(&before, &at(10, 100), 200), 0);
        // This process has freed 60.
        assert_eq!(beyond(&before, &at(1440, 40), 200), 300);
        assert_eq!(beyond(&at(0, u64::MAX), &at(u64::MAX, 0), 1), u64::MAX - 1);
    }

    #[test]
    fn a_charge_is_lowered_no_further_than_buffers_are_known() {
        for (charged, least, doubtful, is) in [
            (100, 120, 50, 120),
            (100, 100, 50, 100),
            (100, 90, 0, 90),
            (100, 90, 4, 94),
            (100, 90, 50, 100),
            (u64::MAX, 1, u64::MAX, u64::MAX),
            (0, 0, 0, 0),
        ] {
            let own = Own {
                least,
                doubtful,
                has_buffers: true,
            };
            assert_eq!(settled(charged, own), is, "{least}");
        }
    }

    #[test]
    fn buffers_are_known_as_well_as_the_driver_tells() {
        let (bytes, context, device) = (4 * MIB, 1, 3);
        let own = |bytes| Pointer::Own {
            bytes,
            context,
            device,
            descriptors: 0,
        };
        let here = Pointer::ManagedHere {
            bytes,
            context,
            device,
        };
        let past = Pointer::Managed {
            bytes,
            context,
            device,
        };
        let exported = Pointer::Exported {
            bytes,
            context,
            device,
            descriptors: 0,
        };
        let opened = Pointer::Opened {
            times: 1,
            context,
            device,
            size: Steps::of(8 * 512),
        };
        let mut imported = MemoryObject {
            bytes,
            holds: 1,
            releasing: 0,
            device,
            kind: ObjectKind::Imported,
        };
        let mut array = Array {
            bytes,
            context,
            doubtful: Steps::of(3 * 512),
            device,
        };
        let mut external = External {
            bytes: 7,
            context,
            device,
        };
        let (small, large) = (64 << 10, 2 * MIB);
        let step = large - small;
        let found = |entry: Entry<'_>, granularity| {
            let (at, buffers) = buffer_of(&entry, granularity).unwrap();
            assert_eq!(at, device, "{entry:?}");
            (buffers.bytes, buffers.doubtful)
        };
        for (mut pointer, granularity, is) in [
            (own(bytes), large, (0, 0)),
            (own(bytes), small, (0, step)),
            (own(MIB), small, (0, 0)),
            (here, large, (0, bytes)),
            (past, small, (0, 0)),
            (exported, small, (bytes, step)),
            (opened, small, (8 * 512, 8 * 512)),
        ] {
            let text = format!("{pointer:?}");
            assert_eq!(
                found(Entry::Pointer(&mut pointer), granularity),
                is,
                "{text}"
            );
        }
        let imported = Entry::MemoryObject(&mut imported);
        assert_eq!(found(imported, large), (bytes, bytes));
        assert_eq!(found(Entry::Array(&mut array), large), (0, 3 * 512));
        assert_eq!(found(Entry::Array(&mut array), small), (0, step));
        assert_eq!(found(Entry::External(&mut external), large), (0, 7));
        let mut library = Library {
            number: 1,
            declared: bytes,
            is_whole: true,
        };
        assert_eq!(buffer_of(&Entry::Library(&mut library), small), None);
    }

    #[test]
    fn a_context_without_a_figure_counts_for_something() {
        for (beyond, guess, figure) in [
            (None, 500 * MIB, 500 * MIB),
            (Some(300 * MIB), 500 * MIB, 300 * MIB),
            (Some(10_000 * MIB), 500 * MIB, 500 * MIB),
            (Some(0), 500 * MIB, LEAST_CONTEXT),
        ] {
            assert_eq!(context_figure(beyond, guess), figure);
        }
    }
}
