//! Memory that was freed in the order of a stream: the driver takes it back when the stream gets there,
//! so its charge stays until an event that the library recorded after the free has completed. For pools, the driver's
//! figure is used instead (`pools.rs`). Puts nothing into a stream that captures.

use core::sync::atomic::Ordering;

use cuda_api::CuStream;
use vgpu_abi::region::{Kind, SharedKey};

use crate::base::growing::Growing;
use crate::base::lock::{self, Guard};
use crate::base::log::line;
use crate::driver::query::{self, StreamMark};
use crate::guest::manners;
use crate::holdings::objects::{self, Objects};
use crate::state::accounts::Accounts;
use crate::state::deferred_free_table::{
    DeferredFree, HOLD, PAST, PLAIN, SHARED, UNUSED, get, set,
};
use crate::state::holdings::CHORE_DEFERRED_FREES;

/// The numbers of a deferred free, read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FreeRow {
    state: u32,
    device: u32,
    stream: u64,
    stream_owner: u64,
    context: u64,
    owner: u64,
    bytes: [u64; 2],
    events: [u64; 2],
    key: [u64; 2],
}

/// The mark that the library puts behind a further free of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextMark {
    /// None: the stream may capture.
    Nothing,
    /// A new event.
    New,
    /// The event of the second part, recorded again.
    Again(u64),
}

impl FreeRow {
    /// The first part of the first free of a stream, with its event, or with 0.
    fn first(state: u32, key: [u64; 2], freed: &Freed, of: &OfStream, event: u64) -> Self {
        Self {
            state,
            device: u32::from(freed.device),
            stream: name_of(of.stream as u64),
            stream_owner: of.owner,
            context: of.context,
            owner: freed.context,
            bytes: [freed.bytes.max(1), 0],
            events: [event, 0],
            key,
        }
    }

    /// Whether the charge of `other` may be added to this one's second part: both are memory of the device that the
    /// same stream frees, and a mark says when the stream has passed it.
    fn takes(&self, other: &Self) -> bool {
        matches!(other.state, PLAIN | PAST)
            && self.state == other.state
            && other.stream != 0
            && self.stream == other.stream
            && self.context == other.context
            && self.owner == other.owner
            && self.device == other.device
            && self.events[0] != 0
    }

    fn next_mark(&self, may_mark: bool) -> NextMark {
        match (may_mark, self.events[1]) {
            (false, _) => NextMark::Nothing,
            (true, 0) => NextMark::New,
            (true, event) => NextMark::Again(event),
        }
    }

    /// With more memory in the second part, and the event behind it.
    fn with_more(self, bytes: u64, event: u64) -> Self {
        Self {
            bytes: [self.bytes[0], self.bytes[1].saturating_add(bytes.max(1))],
            events: [self.events[0], event],
            ..self
        }
    }

    /// Once the first part is done: the second takes its place.
    fn without_first(self) -> Self {
        Self {
            state: if self.bytes[1] == 0 {
                UNUSED
            } else {
                self.state
            },
            bytes: [self.bytes[1], 0],
            events: [self.events[1], 0],
            ..self
        }
    }

    /// Once its events and its stream's handle are void: one part that no mark ends.
    fn without_marks(self) -> Self {
        Self {
            stream: 0,
            bytes: [self.bytes[0].saturating_add(self.bytes[1]), 0],
            events: [0; 2],
            ..self
        }
    }

    /// Whether a mark ends the first part.
    fn has_mark(&self) -> bool {
        self.state != UNUSED && self.events[0] != 0
    }

    /// Whether it is over because the program has waited for this context: no mark would show that.
    fn ends_with_wait_for(&self, context: u64) -> bool {
        self.state != UNUSED && self.events[0] == 0 && self.context == context
    }

    /// Whether its memory, or its stream, was in the context with this number of ours.
    fn goes_with(&self, owner: u64) -> bool {
        self.state != UNUSED && (self.owner == owner || self.stream_owner == owner)
    }

    /// Charged to the container's share of a device, bytes.
    fn bytes_within(&self, device: usize) -> u64 {
        if self.state == PLAIN && self.device as usize == device {
            self.bytes[0].saturating_add(self.bytes[1])
        } else {
            0
        }
    }
}

/// The name under which frees of a stream are added up; 0: they are not. A thread's own stream has the number that
/// other threads' own streams have, too.
fn name_of(stream: u64) -> u64 {
    if stream == query::PER_THREAD {
        0
    } else {
        stream
    }
}

/// Whether the driver has taken the memory back, by its answer about the mark behind the free.
fn is_over(mark: StreamMark) -> bool {
    match mark {
        StreamMark::Passed | StreamMark::Gone => true,
        StreamMark::Ahead | StreamMark::Unknown => false,
    }
}

impl DeferredFree {
    fn row(&self) -> FreeRow {
        FreeRow {
            state: self.state(),
            // Relaxed: under the lock of the table.
            device: self.device.load(Ordering::Relaxed),
            stream: get(&self.stream),
            stream_owner: get(&self.stream_owner),
            context: get(&self.context),
            owner: get(&self.owner),
            bytes: self.bytes.each_ref().map(get),
            events: self.events.each_ref().map(get),
            key: self.key.each_ref().map(get),
        }
    }

    fn put(&self, row: &FreeRow) {
        // Relaxed: under the lock of the table.
        self.device.store(row.device, Ordering::Relaxed);
        set(&self.stream, row.stream);
        set(&self.stream_owner, row.stream_owner);
        set(&self.context, row.context);
        set(&self.owner, row.owner);
        for (words, values) in [
            (&self.bytes, row.bytes),
            (&self.events, row.events),
            (&self.key, row.key),
        ] {
            for (word, value) in words.iter().zip(values) {
                set(word, value);
            }
        }
        self.set_state(row.state);
    }

    /// The first part has been done: its memory is refunded, and the second part takes its place.
    fn release_first(&self, accounts: &Accounts) {
        let row = self.row();
        release(accounts, &row);
        if row.events[0] != 0 {
            query::destroy_event(row.events[0]);
        }
        self.put(&row.without_first());
    }

    fn release_all(&self, accounts: &Accounts) {
        while self.state() != UNUSED {
            self.release_first(accounts);
        }
    }
}

/// Gives back the charge of the first part.
fn release(accounts: &Accounts, row: &FreeRow) {
    let (device, bytes) = (row.device as usize, row.bytes[0]);
    let region = &accounts.container.region;
    match row.state {
        PLAIN => region.release(device, bytes, Kind::Buffer),
        PAST => region.release_beyond(device, bytes, Kind::Buffer),
        SHARED => objects::unhold(accounts, SharedKey(row.key)),
        HOLD => Objects::lock(accounts).drop_hold(row.key[0]),
        _ => {}
    }
}

/// The stream in whose order something is freed.
#[derive(Clone, Copy)]
pub(crate) struct OfStream {
    /// The stream; 2 for the thread's own.
    pub(crate) stream: CuStream,
    /// Its context.
    pub(crate) context: u64,
    /// Our number of the context.
    pub(crate) owner: u64,
}

/// Memory that the driver will free, and the charge that ends then.
#[derive(Clone, Copy)]
pub(crate) struct Freed {
    pub(crate) bytes: u64,
    /// Index in the region.
    pub(crate) device: u8,
    /// Our number of the context that the memory dies with; 0 for none.
    pub(crate) context: u64,
    pub(crate) charged: ChargedTo,
}

/// Where memory is charged that was freed in the order of a stream.
#[derive(Clone, Copy)]
pub(crate) enum ChargedTo {
    /// In this process's slot, within the container's share of the device.
    Slot,
    /// In this process's slot, past the share.
    SlotPastTheShare,
    /// In the region's shared table, under this name.
    Table(SharedKey),
    /// To an object of this process.
    Object(u64),
}

impl ChargedTo {
    /// The state and the key of its row.
    fn stated(self) -> (u32, [u64; 2]) {
        match self {
            Self::Slot => (PLAIN, [0; 2]),
            Self::SlotPastTheShare => (PAST, [0; 2]),
            Self::Table(SharedKey(key)) => (SHARED, key),
            Self::Object(number) => (HOLD, [number, 0]),
        }
    }
}

/// The program has asked the driver to free an allocation when the stream gets there.
pub(crate) fn enter(accounts: &Accounts, freed: Freed, of: OfStream) {
    let Some(table) = accounts.holdings().deferred_frees.hold() else {
        // Charged until the process ends, because the library does not know the allocation.
        return;
    };
    let may_mark = query::is_out_of_captures(of.stream as u64);
    let mark = |event| query::mark(of.context, of.stream, event);
    let (state, key) = freed.charged.stated();
    let row = FreeRow::first(state, key, &freed, &of, 0);
    if let Some(one) = table.iter().find(|one| one.row().takes(&row)) {
        let found = one.row();
        let event = match found.next_mark(may_mark) {
            NextMark::Nothing => None,
            NextMark::New => mark(0),
            NextMark::Again(event) => mark(event),
        };
        if let Some(event) = event {
            one.put(&found.with_more(freed.bytes, event));
            return;
        }
    }
    let mut free = table.iter().find(|one| one.state() == UNUSED);
    if free.is_none() && table.grow() {
        free = table.iter().find(|one| one.state() == UNUSED);
    }
    let Some(one) = free else {
        line!(
            Error,
            "{} bytes stay charged until the end: no memory to remember them in",
            freed.bytes
        );
        return;
    };
    let event = may_mark.then(|| mark(0)).flatten().unwrap_or(0);
    one.put(&FreeRow::first(state, key, &freed, &of, event));
    settle_one(accounts, one);
    accounts.holdings().set_chore(CHORE_DEFERRED_FREES);
}

fn settle_one(accounts: &Accounts, one: &DeferredFree) {
    while one.row().has_mark() && is_over(query::passed(get(&one.events[0]))) {
        one.release_first(accounts);
    }
}

/// Releases what the streams have passed.
pub(crate) fn settle(accounts: &Accounts) {
    let Some(table) = accounts.holdings().deferred_frees.hold_briefly() else {
        return;
    };
    manners::uncancelled(|| {
        query::relaxed(|| {
            for one in table.iter() {
                settle_one(accounts, one);
            }
        });
    });
    tidy(accounts, &table);
}

/// The charges of this process on a device for memory that may be gone, bytes.
pub(crate) fn bytes(accounts: &Accounts, device: usize) -> u64 {
    if !accounts.holdings().has_chore(CHORE_DEFERRED_FREES) {
        return 0;
    }
    let Some(table) = accounts.holdings().deferred_frees.hold() else {
        return 0;
    };
    let parts = table.iter().map(|one| one.row().bytes_within(device));
    parts.fold(0, u64::saturating_add)
}

/// Clears the chore when no free is deferred any more.
fn tidy(accounts: &Accounts, table: &Growing<DeferredFree>) {
    if table.iter().all(|one| one.state() == UNUSED) {
        accounts.holdings().clear_chore(CHORE_DEFERRED_FREES);
    }
}

/// Waits a little for streams to pass what was freed in them. A request that the container has no room
/// for may have it then, as it would have had on a GPU of its own.
#[cold]
pub(crate) fn wait(accounts: &Accounts) {
    const LONGEST_MS: i64 = 50;
    let deadline = lock::milliseconds() + LONGEST_MS;
    while accounts.holdings().has_chore(CHORE_DEFERRED_FREES) && lock::milliseconds() < deadline {
        lock::nap();
        settle(accounts);
    }
}

/// The program has waited for the current context, so frees in it that could not be marked have happened.
pub(crate) fn context_is_idle(accounts: &Accounts, context: u64) {
    let Some(table) = accounts.holdings().deferred_frees.hold_briefly() else {
        return;
    };
    for one in table.iter() {
        if one.row().ends_with_wait_for(context) {
            one.release_all(accounts);
        }
    }
    tidy(accounts, &table);
}

/// The table, where any free is deferred.
fn table(accounts: &Accounts) -> Option<Guard<'static, Growing<DeferredFree>>> {
    let holdings = accounts.holdings();
    holdings
        .has_chore(CHORE_DEFERRED_FREES)
        .then(|| holdings.deferred_frees.hold())
        .flatten()
}

/// A stream is about to go: another one may get its number.
pub(crate) fn stream_goes(accounts: &Accounts, stream: u64) {
    let Some(table) = table(accounts) else {
        return;
    };
    for one in table.iter() {
        if get(&one.stream) == stream {
            set(&one.stream, 0);
        }
    }
}

/// A context is about to go, with our events in it.
pub(crate) fn context_goes(accounts: &Accounts, context: u64) {
    let Some(table) = table(accounts) else {
        return;
    };
    for one in table.iter() {
        if one.state() == UNUSED || get(&one.context) != context {
            continue;
        }
        let row = one.row();
        for event in row.events.into_iter().filter(|event| *event != 0) {
            query::destroy_event(event);
        }
        one.put(&row.without_marks());
    }
}

/// A context was destroyed, and its memory and its streams with it.
pub(crate) fn context_gone(accounts: &Accounts, owner: u64) {
    let Some(table) = table(accounts) else {
        return;
    };
    for one in table.iter() {
        if one.row().goes_with(owner) {
            one.release_all(accounts);
        }
    }
    tidy(accounts, &table);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A free of stream 7 in context 3, of memory of context 5 on device 1, with a mark behind it.
    const ROW: FreeRow = FreeRow {
        state: PLAIN,
        device: 1,
        stream: 7,
        stream_owner: 4,
        context: 3,
        owner: 5,
        bytes: [100, 0],
        events: [11, 0],
        key: [0; 2],
    };

    #[test]
    fn first_free_of_a_stream_has_one_part() {
        let first = |stream: usize, bytes, charged: ChargedTo| {
            let freed = Freed {
                bytes,
                device: 1,
                context: 5,
                charged,
            };
            let of = OfStream {
                stream: core::ptr::without_provenance_mut(stream),
                context: 3,
                owner: 4,
            };
            let (state, key) = charged.stated();
            FreeRow::first(state, key, &freed, &of, 11)
        };
        assert_eq!(first(7, 100, ChargedTo::Slot), ROW);
        // A row with no bytes would count as unused.
        assert_eq!(first(7, 0, ChargedTo::Slot).bytes, [1, 0]);
        // Other threads have a stream of this number, too.
        assert_eq!(first(2, 100, ChargedTo::Slot).stream, 0);
        assert_eq!(first(1, 100, ChargedTo::Slot).stream, 1);
        let charged = |to| {
            let row = first(7, 100, to);
            (row.state, row.key)
        };
        assert_eq!(charged(ChargedTo::SlotPastTheShare), (PAST, [0; 2]));
        assert_eq!(
            charged(ChargedTo::Table(SharedKey([8, 9]))),
            (SHARED, [8, 9])
        );
        assert_eq!(charged(ChargedTo::Object(8)), (HOLD, [8, 0]));
    }

    #[test]
    fn frees_of_one_stream_are_added_up() {
        assert!(ROW.takes(&ROW));
        let past = FreeRow { state: PAST, ..ROW };
        assert!(past.takes(&past));
        // The second free has no event of its own yet.
        let unmarked = FreeRow {
            events: [0; 2],
            ..ROW
        };
        assert!(ROW.takes(&unmarked));
        assert!(!unmarked.takes(&ROW), "no mark would end the first part");
    }

    #[test]
    fn frees_that_differ_are_kept_apart() {
        for other in [
            FreeRow { state: PAST, ..ROW },
            FreeRow { device: 2, ..ROW },
            FreeRow { stream: 8, ..ROW },
            FreeRow { context: 8, ..ROW },
            FreeRow { owner: 8, ..ROW },
        ] {
            assert!(!ROW.takes(&other) && !other.takes(&ROW), "{other:?}");
        }
        for state in [UNUSED, SHARED, HOLD] {
            let same = FreeRow { state, ..ROW };
            assert!(!same.takes(&same), "state {state}");
        }
        let unnamed = FreeRow { stream: 0, ..ROW };
        assert!(!unnamed.takes(&unnamed));
    }

    #[test]
    fn second_part_has_one_event_that_is_recorded_again() {
        assert_eq!(ROW.next_mark(true), NextMark::New);
        let more = ROW.with_more(50, 12);
        assert_eq!((more.bytes, more.events), ([100, 50], [11, 12]));
        assert_eq!(more.next_mark(true), NextMark::Again(12));
        assert_eq!(more.next_mark(false), NextMark::Nothing);
        assert_eq!(ROW.next_mark(false), NextMark::Nothing);
        let more = more.with_more(25, 12);
        assert_eq!((more.bytes, more.events), ([100, 75], [11, 12]));
        assert_eq!(more.with_more(u64::MAX, 12).bytes, [100, u64::MAX]);
        // Its event is destroyed with the part, so a part with an event is never of no bytes.
        assert_eq!(ROW.with_more(0, 12).bytes, [100, 1]);
    }

    #[test]
    fn second_part_follows_the_first() {
        let after = ROW.with_more(50, 12).without_first();
        assert_eq!(
            after,
            FreeRow {
                bytes: [50, 0],
                events: [12, 0],
                ..ROW
            }
        );
        let last = after.without_first();
        assert_eq!(
            (last.state, last.bytes, last.events),
            (UNUSED, [0; 2], [0; 2])
        );
    }

    #[test]
    fn context_that_goes_leaves_one_part_without_mark_or_stream() {
        assert_eq!(
            ROW.with_more(50, 12).without_marks(),
            FreeRow {
                stream: 0,
                bytes: [150, 0],
                events: [0; 2],
                ..ROW
            }
        );
    }

    #[test]
    fn marked_frees_end_by_their_mark_and_others_by_a_wait_for_the_context() {
        let unmarked = FreeRow {
            events: [0; 2],
            ..ROW
        };
        assert!(ROW.has_mark() && !ROW.ends_with_wait_for(3));
        assert!(!unmarked.has_mark() && unmarked.ends_with_wait_for(3));
        assert!(!unmarked.ends_with_wait_for(4));
        let unused = FreeRow {
            state: UNUSED,
            ..ROW
        };
        assert!(!unused.has_mark());
        assert!(
            !FreeRow {
                state: UNUSED,
                ..unmarked
            }
            .ends_with_wait_for(3)
        );
        assert!(is_over(StreamMark::Passed) && is_over(StreamMark::Gone));
        assert!(!is_over(StreamMark::Ahead) && !is_over(StreamMark::Unknown));
    }

    #[test]
    fn free_goes_with_the_context_of_its_memory_or_of_its_stream() {
        assert!(ROW.goes_with(5) && ROW.goes_with(4));
        // 3 is the driver's name of the context, and no number of ours.
        assert!(!ROW.goes_with(3));
        assert!(
            !FreeRow {
                state: UNUSED,
                ..ROW
            }
            .goes_with(5)
        );
    }

    #[test]
    fn memory_within_the_share_of_the_device_is_in_doubt() {
        assert_eq!(ROW.with_more(50, 12).bytes_within(1), 150);
        assert_eq!(ROW.bytes_within(0), 0);
        for state in [UNUSED, PAST, SHARED, HOLD] {
            assert_eq!(FreeRow { state, ..ROW }.bytes_within(1), 0, "state {state}");
        }
        assert_eq!(ROW.with_more(u64::MAX, 12).bytes_within(1), u64::MAX);
    }

    proptest! {
        /// The driver passes the marks in their order: what is released is what was freed, each event is destroyed
        /// once, and an unused row has none.
        #[test]
        fn parts_add_up_to_what_was_freed(
            freed in proptest::collection::vec(1..1000_u64, 1..40),
            passes in proptest::collection::vec(any::<bool>(), 40),
        ) {
            let unused = FreeRow { state: UNUSED, bytes: [0; 2], events: [0; 2], ..ROW };
            let (mut row, mut made, mut destroyed, mut released) = (unused, 0, 0, 0);
            let mut release_first = |row: &mut FreeRow| {
                released += row.bytes[0];
                destroyed += u64::from(row.events[0] != 0);
                *row = row.without_first();
            };
            for (bytes, passes) in freed.iter().zip(passes) {
                if row.state == UNUSED {
                    made += 1;
                    row = FreeRow { bytes: [*bytes, 0], events: [made, 0], ..ROW };
                } else {
                    let event = match row.next_mark(true) {
                        NextMark::Again(event) => event,
                        NextMark::New | NextMark::Nothing => { made += 1; made }
                    };
                    row = row.with_more(*bytes, event);
                }
                if passes {
                    release_first(&mut row);
                }
            }
            while row.has_mark() {
                release_first(&mut row);
            }
            prop_assert_eq!(row.state, UNUSED);
            prop_assert_eq!(row.events, [0; 2]);
            prop_assert_eq!(released, freed.iter().sum::<u64>());
            prop_assert_eq!(destroyed, made);
        }
    }
}
