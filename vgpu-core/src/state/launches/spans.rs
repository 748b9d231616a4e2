//! The times that launches really take, measured from time to time by pairs of events on the program's own streams.
//! Owns these streams, the work that each was given and has done, and the events. `compute.rs` decides about launches.
//!
//! A *mark* is a launch with an event before and one after it. Two marks follow each other without a gap when the first
//! had not ended before the launches up to the second were made: then everything between them is measured. Otherwise
//! only the marked launch is measured, and the time that the stream idled between its event and its launch is taken
//! off. If a third of the time between the two events or more may be the calls that recorded them, it is only an upper
//! bound of what the launch took. Most launches only try a lock of the library, and none waits for it longer than
//! 100 ms; a launch that does not get it is not measured.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::costs::Work;
use super::costs::estimate::{Beside, OwnTime};
use crate::base::lock::{Guarded, Lock};
use crate::driver::query;
use crate::guest::thread::thread;
use events::Events;
pub(crate) use stretch::uncovered_ns;
use stretch::{ContextTime, Ends, More, Sample, Stretch, has_ended_unmarked, reading};

mod events;
mod marking;
mod stretch;

/// Streams that are looked after at a time; launches to further ones are charged and not measured.
const STREAMS: usize = 256;
/// Places that a stream may have.
const PROBES: usize = 8;
/// Marks of a stream that are not known to have ended.
pub(crate) const MARKS: usize = 8;
/// Contexts that have events of the library.
const CONTEXTS: usize = 32;

/// A launch with an event before and one after it.
#[derive(Clone, Copy)]
struct Mark {
    start: u64,
    end: u64,
    /// The time that the stream may have idled between `start` and the launch, nanoseconds.
    gap_ns: u64,
    /// How much of the time between the two events may be the calls that recorded them, nanoseconds.
    slack_ns: u64,
    /// The work that the stream had been given at the launch, the launch included, nanoseconds.
    submitted_ns: u64,
    /// The charge of the launch, nanoseconds.
    charged_ns: u64,
    /// When `start` was recorded.
    begun_ns: u64,
    work: Work,
    /// Nothing else was launched to the stream between the two events.
    is_alone: bool,
    /// No gap since the mark before.
    is_chained: bool,
    is_unknown: bool,
}

struct Marks {
    ring: [Mark; MARKS],
    first: usize,
    count: usize,
    /// The end of the mark that was collected last; 0: none.
    last: u64,
    last_submitted_ns: u64,
    /// When it was seen to have ended.
    last_seen_ns: u64,
    /// Launched to the stream, in charged nanoseconds, and how much of it is known to be done.
    submitted_ns: u64,
    done_ns: u64,
    /// When something was last launched.
    at_ns: u64,
    context: u64,
    device: usize,
    handle: u64,
}

/// A stream that was launched to.
#[repr(C)]
pub(crate) struct Stream {
    key: AtomicU64,
    /// Something else than launches was put into the stream since the last mark.
    is_broken: AtomicU32,
    /// Held while the library records, queries and compares its own events, and asks whether the stream has ended, which
    /// are calls of the driver.
    marks: Guarded<Marks>,
}

#[repr(C)]
struct Pool {
    context: AtomicU64,
    /// Held while the library compares and destroys its own events, which are calls of the driver.
    events: Guarded<Events>,
}

/// See the module's text. All zeros is an empty one.
#[repr(C)]
pub(crate) struct Spans {
    streams: [Stream; STREAMS],
    /// One bit for each stream that has marks, or work that is not known to be done.
    busy: [AtomicU64; STREAMS / 64],
    pools: [Pool; CONTEXTS],
    /// Held while a stream or a context is entered. The events of a stream whose place is taken over may be destroyed
    /// meanwhile, which is one of the library's own calls of the driver.
    entering: Lock,
}

/// The stream of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// The driver's handle; 1 and 2 are the legacy and the thread's own stream.
    pub(crate) handle: u64,
    /// The context that it belongs to.
    pub(crate) context: u64,
    /// Index of the device in the region.
    pub(crate) device: usize,
}

/// The key of a stream that was destroyed: no stream's own, which has its second bit set.
const DESTROYED: u64 = 1;

impl Target {
    /// The stream of a handle, to look up. Each context has its own default streams, so their names need the current
    /// context; another handle names one stream of the process.
    pub(crate) fn of_handle(handle: u64, current_context: impl FnOnce() -> Option<u64>) -> Self {
        let is_default = handle <= query::PER_THREAD;
        let context = is_default.then(current_context).flatten();
        Self {
            handle,
            context: context.unwrap_or(0),
            device: 0,
        }
    }

    fn key(&self) -> u64 {
        let mut key = self.handle.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if self.handle <= 2 {
            key ^= self.context.wrapping_mul(0xff51_afd7_ed55_8ccd);
        }
        if self.handle == 2 {
            key ^= thread(|thread| core::ptr::from_ref(thread) as u64);
        }
        (key ^ key >> 31) | 2
    }
}

/// A mark whose launch has not come back yet.
#[derive(Clone, Copy)]
pub(crate) struct Begun {
    stream: usize,
    key: u64,
    start: u64,
    at_ns: u64,
    /// How long the call took that recorded `start`, nanoseconds.
    early_ns: u64,
    submitted_ns: u64,
    is_chained: bool,
}

/// A measurement of one launch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Measured {
    /// The launch was too short, compared with the calls around it, for the measurement to say more than a bound.
    InDoubt {
        /// It took no longer than this, nanoseconds.
        most_ns: u64,
    },
    /// The measured time.
    Took {
        /// With the turns of other processes, nanoseconds.
        ns: u64,
        /// It followed other work of its stream without a gap.
        follows: bool,
    },
}

/// The findings about finished work on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// More (less) GPU time was used than was charged, nanoseconds.
    pub(crate) more_ns: i64,
    /// GPU time used beyond `more_ns` that is paid for later, nanoseconds.
    pub(crate) owed_ns: u64,
    /// The device was occupied for more (less) time than was charged, other processes' turns included, nanoseconds.
    pub(crate) more_occupied_ns: i64,
    /// Charged work that is done, nanoseconds.
    pub(crate) done_ns: u64,
    /// The launch of unknown cost is done.
    pub(crate) ended_unknown: bool,
    /// How long the stream is still busy if a mark in it has not ended, charged nanoseconds.
    pub(crate) left_ns: u64,
}

impl Spans {
    /// The stream's number, where it is looked after. Makes room for a new one.
    pub(crate) fn stream(&self, target: &Target) -> Option<usize> {
        let key = target.key();
        // Relaxed: the thread that launches to a stream enters it, and it is taken out before its handle can be that
        // of another.
        let is_it = |at: &usize| self.key_at(*at) == key;
        places(key).find(is_it).or_else(|| self.enter(key, target))
    }

    fn key_at(&self, at: usize) -> u64 {
        // Relaxed: see `stream`.
        self.streams
            .get(at)
            .map_or(0, |stream| stream.key.load(Ordering::Relaxed))
    }

    #[cold]
    fn enter(&self, key: u64, target: &Target) -> Option<usize> {
        let _held = self.entering.try_hold()?;
        if let Some(at) = places(key).find(|at| self.key_at(*at) == key) {
            return Some(at);
        }
        let is_free = |at: &usize| self.key_at(*at) == 0 || self.is_idle(*at);
        let at = places(key).find(is_free)?;
        let stream = self.streams.get(at)?;
        let mut marks = stream.marks.try_hold()?;
        let marks = &mut *marks;
        self.give_back(marks.context, core::mem::take(&mut marks.last));
        marks.first = 0;
        marks.count = 0;
        marks.last_submitted_ns = 0;
        marks.submitted_ns = 0;
        marks.done_ns = 0;
        marks.context = target.context;
        marks.device = target.device;
        marks.handle = target.handle;
        // Relaxed: see `stream`.
        stream.is_broken.store(0, Ordering::Relaxed);
        stream.key.store(key, Ordering::Relaxed);
        Some(at)
    }

    fn is_idle(&self, at: usize) -> bool {
        // Relaxed: a look; a stream that is wrongly found idle loses a measurement.
        let word = self
            .busy
            .get(at / 64)
            .map_or(0, |word| word.load(Ordering::Relaxed));
        word & 1 << (at % 64) == 0
    }

    fn set_busy(&self, at: usize, is_busy: bool) {
        let Some(word) = self.busy.get(at / 64) else {
            return;
        };
        let bit = 1 << (at % 64);
        // Relaxed: a hint where to look.
        if is_busy {
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::Relaxed);
            }
        } else {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Is there work that is not known to have ended?
    pub(crate) fn is_anything_busy(&self) -> bool {
        // Relaxed: a hint.
        self.busy
            .iter()
            .any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Is all work that is not known to have ended in this stream, and does a launch of it run that has not ended? Then
    /// no launch to the stream begins before that one ends.
    pub(crate) fn is_all_behind(&self, at: usize) -> bool {
        // Relaxed: a hint.
        let busy = self
            .busy
            .each_ref()
            .map(|word| word.load(Ordering::Relaxed));
        if !is_only(&busy, at) {
            return false;
        }
        let Some(stream) = self.streams.get(at) else {
            return false;
        };
        let oldest = stream.marks.try_hold().and_then(|marks| marks.oldest());
        oldest.is_some_and(|mark| {
            query::event_is_done(mark.start) == Some(true)
                && query::event_is_done(mark.end) == Some(false)
        })
    }

    /// Work was launched to the stream, charged nanoseconds. False: another thread has the stream just
    /// now, and the work was not noted.
    pub(crate) fn launched(&self, at: usize, ns: u64, now_ns: u64) -> bool {
        let Some(stream) = self.streams.get(at) else {
            return false;
        };
        let Some(mut marks) = stream.marks.hold_briefly() else {
            return false;
        };
        let marks = &mut *marks;
        marks.submitted_ns += ns;
        marks.at_ns = now_ns;
        self.set_busy(at, true);
        true
    }

    /// Has the stream marks that are not known to have ended?
    pub(crate) fn has_marks(&self, at: usize) -> bool {
        let marks = self
            .streams
            .get(at)
            .and_then(|stream| stream.marks.try_hold());
        marks.is_some_and(|marks| marks.count > 0)
    }

    /// Is there room for another mark of the stream?
    pub(crate) fn has_room(&self, at: usize) -> bool {
        let marks = self
            .streams
            .get(at)
            .and_then(|stream| stream.marks.try_hold());
        marks.is_none_or(|marks| marks.count < MARKS)
    }

    /// How much has been launched to the stream since its last mark, charged nanoseconds.
    pub(crate) fn unmarked_ns(&self, at: usize) -> u64 {
        let Some(stream) = self.streams.get(at) else {
            return 0;
        };
        let Some(marks) = stream.marks.try_hold() else {
            return 0;
        };
        let marked = marks
            .newest()
            .map_or(marks.last_submitted_ns, |mark| mark.submitted_ns);
        marks.submitted_ns.saturating_sub(marked)
    }

    /// Something that takes time of its own was put into the stream, so the time between two marks around it is not
    /// that of launches alone.
    pub(crate) fn interrupted(&self, target: &Target) {
        let key = target.key();
        if let Some(at) = places(key).find(|at| self.key_at(*at) == key)
            && let Some(stream) = self.streams.get(at)
        {
            // Relaxed: the stream's order is the caller's own.
            stream.is_broken.store(1, Ordering::Relaxed);
        }
    }

    /// If all that was launched to a stream has ended, so have the launches after its last mark. `has_ended` gets the
    /// stream's handle, which stays valid meanwhile, and is asked only where such launches are left.
    pub(crate) fn ended(
        &self,
        target: &Target,
        has_ended: impl Fn(u64) -> bool,
    ) -> Option<(usize, Found)> {
        let key = target.key();
        let at = places(key).find(|at| self.key_at(*at) == key)?;
        let is_same = || self.key_at(at) == key;
        self.ended_at(at, |marks| is_same() && has_ended(marks.handle))
    }

    /// The program has waited for all that it launched to the streams of a context.
    pub(crate) fn ended_in(&self, context: u64, mut found: impl FnMut(usize, Found)) {
        for (index, word) in self.busy.iter().enumerate() {
            // Relaxed: a hint where to look.
            let mut bits = word.load(Ordering::Relaxed);
            while bits != 0 {
                let at = index * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let ended = self.ended_at(at, |marks| marks.context == context);
                if let Some((device, sum)) = ended {
                    found(device, sum);
                }
            }
        }
    }

    fn ended_at(&self, at: usize, is_it: impl Fn(&Marks) -> bool) -> Option<(usize, Found)> {
        let mut marks = self.streams.get(at)?.marks.try_hold()?;
        let marks = &mut *marks;
        if marks.count > 0 || marks.done_ns >= marks.submitted_ns || !is_it(marks) {
            return None;
        }
        let found = Found {
            done_ns: marks.done_up_to(marks.submitted_ns),
            ..Found::default()
        };
        self.set_busy(at, false);
        Some((marks.device, found))
    }

    /// Looks at all streams, and measures how long each device's finished work really took. `beside` returns the
    /// other work on a device. `learn` gets the measured time of a launch, which includes the turns that other
    /// processes had meanwhile, and returns how much of it is the launch's own time.
    pub(crate) fn collect(
        &self,
        now_ns: u64,
        beside: impl Fn(usize) -> Beside,
        mut learn: impl FnMut(&Work, Measured, Beside) -> OwnTime,
        mut found: impl FnMut(usize, Found),
    ) {
        for (index, word) in self.busy.iter().enumerate() {
            // Relaxed: a hint where to look.
            let mut bits = word.load(Ordering::Relaxed);
            while bits != 0 {
                let at = index * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let Some(stream) = self.streams.get(at) else {
                    continue;
                };
                let Some(mut marks) = stream.marks.try_hold() else {
                    continue;
                };
                let marks = &mut *marks;
                let device = marks.device;
                let beside = beside(device);
                let mut learn = |work: &Work, measured: Measured| learn(work, measured, beside);
                let sum = self.collect_one(marks, now_ns, beside, &mut learn);
                if marks.count == 0 && marks.done_ns >= marks.submitted_ns {
                    self.set_busy(at, false);
                }
                if sum != Found::default() {
                    found(device, sum);
                }
            }
        }
    }

    fn collect_one(
        &self,
        marks: &mut Marks,
        now_ns: u64,
        beside: Beside,
        learn: &mut impl FnMut(&Work, Measured) -> OwnTime,
    ) -> Found {
        let mut sum = Found::default();
        while let Some(mark) = marks.oldest() {
            match query::event_is_done(mark.end) {
                Some(false) => {
                    sum.left_ns = marks.left_ns(&mark, now_ns);
                    break;
                }
                Some(true) => {
                    let more = self.measure(marks, &mark, beside, learn);
                    sum.more_ns = sum.more_ns.saturating_add(more.own_ns);
                    sum.owed_ns = sum.owed_ns.saturating_add(more.owed_ns);
                    sum.more_occupied_ns = sum.more_occupied_ns.saturating_add(more.occupied_ns);
                }
                // The driver no longer knows the event, so the charge stays as it is.
                None => {}
            }
            sum.ended_unknown |= mark.is_unknown;
            sum.done_ns += marks.done_up_to(mark.submitted_ns);
            self.give_back(marks.context, mark.start);
            let last = core::mem::replace(&mut marks.last, mark.end);
            self.give_back(marks.context, last);
            marks.last_submitted_ns = mark.submitted_ns;
            marks.last_seen_ns = now_ns;
            marks.drop_oldest();
        }
        // Launches after the last mark end at some time, although no event shows it.
        let rest = marks.submitted_ns.saturating_sub(marks.done_ns);
        if marks.count == 0 && has_ended_unmarked(rest, now_ns.saturating_sub(marks.at_ns)) {
            sum.done_ns += marks.done_up_to(marks.submitted_ns);
        }
        sum
    }

    /// How much more than was charged the mark says was used.
    fn measure(
        &self,
        marks: &Marks,
        mark: &Mark,
        beside: Beside,
        learn: &mut impl FnMut(&Work, Measured) -> OwnTime,
    ) -> More {
        let Some(whole_ns) = query::elapsed_ns(mark.start, mark.end) else {
            return More::default();
        };
        let read = reading(
            whole_ns,
            mark.gap_ns,
            mark.slack_ns,
            mark.is_alone,
            mark.is_unknown,
        );
        let (alone_ns, is_sample) = (read.alone_ns, read.is_sample);
        if mark.is_alone && !is_sample {
            learn(&mark.work, Measured::InDoubt { most_ns: whole_ns });
        }
        let took = match alone_ns {
            0 => Measured::InDoubt { most_ns: whole_ns },
            ns => Measured::Took {
                ns,
                follows: mark.is_chained,
            },
        };
        let sample = is_sample.then(|| Sample {
            measured_ns: alone_ns,
            own: learn(&mark.work, took),
            charged_ns: mark.charged_ns,
        });
        let chain_ns = read
            .is_chain(mark.is_chained, marks.last != 0)
            .then(|| query::elapsed_ns(marks.last, mark.end))
            .flatten();
        let ends = Ends {
            gap_ns: mark.gap_ns,
            charged_ns: mark.charged_ns,
            submitted_ns: mark.submitted_ns,
            last_submitted_ns: marks.last_submitted_ns,
        };
        let Some((charged_ns, measured_ns)) = ends.shown(chain_ns, read) else {
            return More::default();
        };
        let counted_ns = self.uncounted(marks.context, mark, measured_ns);
        let stretch = Stretch {
            measured_ns,
            counted_ns,
            charged_ns,
            sample,
        };
        stretch.more(beside)
    }

    /// The part of an interval that ends with this mark in which no other stream of the context was
    /// counted: kernels of several streams run at the same time.
    fn uncounted(&self, context: u64, mark: &Mark, ns: u64) -> u64 {
        let Some(pool) = self.pool(context) else {
            return ns;
        };
        let Some(mut events) = pool.events.try_hold() else {
            return ns;
        };
        let since_base_ns = match events.base {
            0 => None,
            base => match query::elapsed_ns(base, mark.end) {
                // The mark ended before the base did.
                None => return ns,
                since => since,
            },
        };
        let end_ns = events.time.end_ns(since_base_ns, ns);
        let counted_ns = events.time.count(end_ns, ns);
        if events.time.needs_base(events.base != 0, end_ns)
            && let Some(whole) = query::elapsed_ns(mark.start, mark.end)
        {
            // The caller, which collects the mark, hands this event back and finds that it is the base now.
            let old = core::mem::replace(&mut events.base, mark.start);
            events.time.base_ns = end_ns.saturating_sub(whole);
            if old != 0 && !events.put_spare(old) {
                query::destroy_event(old);
            }
        }
        counted_ns
    }

    fn pool(&self, context: u64) -> Option<&Pool> {
        // Relaxed: entered and taken out under the lock of `Spans`.
        self.pools
            .iter()
            .find(|pool| pool.context.load(Ordering::Relaxed) == context)
    }

    fn event(&self, context: u64) -> Option<u64> {
        let pool = self.pool(context).or_else(|| self.enter_pool(context))?;
        let spare = pool
            .events
            .try_hold()
            .and_then(|mut events| events.take_spare());
        spare.or_else(query::create_event)
    }

    #[cold]
    fn enter_pool(&self, context: u64) -> Option<&Pool> {
        let _held = self.entering.try_hold()?;
        if let Some(pool) = self.pool(context) {
            return Some(pool);
        }
        let pool = self.pool(0)?;
        // Relaxed: see `pool`.
        pool.context.store(context, Ordering::Relaxed);
        Some(pool)
    }

    fn give_back(&self, context: u64, event: u64) {
        if event == 0 {
            return;
        }
        let kept = self.pool(context).and_then(|pool| {
            let mut events = pool.events.try_hold()?;
            // The base event stays: it is not given to another mark.
            (events.base == event || events.put_spare(event)).then_some(())
        });
        if kept.is_none() {
            query::destroy_event(event);
        }
    }

    /// A stream is about to be destroyed: its handle may be that of another stream afterwards. Its launches go on,
    /// and the driver keeps the events in it, so its marks are collected as before.
    pub(crate) fn forget_stream(&self, target: &Target) {
        let key = target.key();
        for stream in places(key).filter_map(|at| self.streams.get(at)) {
            // Relaxed: see `stream`.
            if stream.key.load(Ordering::Relaxed) != key {
                continue;
            }
            // Not while an event is recorded in it.
            let _marks = stream.marks.hold_briefly();
            // Relaxed: as above.
            stream.key.store(DESTROYED, Ordering::Relaxed);
        }
    }

    /// A context is about to go, with all its streams and events.
    pub(crate) fn forget_context(&self, context: u64, found: impl FnMut(usize, Found)) {
        self.forget(|_, marks| marks.context == context, found);
        let Some(pool) = self.pool(context).filter(|_| context != 0) else {
            return;
        };
        let Some(mut events) = pool.events.hold_briefly() else {
            return;
        };
        while let Some(event) = events.take_spare() {
            query::destroy_event(event);
        }
        let base = core::mem::take(&mut events.base);
        if base != 0 {
            query::destroy_event(base);
        }
        events.time = ContextTime::default();
        // Relaxed: see `pool`.
        pool.context.store(0, Ordering::Relaxed);
    }

    fn forget(&self, goes: impl Fn(&Stream, &Marks) -> bool, mut found: impl FnMut(usize, Found)) {
        for (at, stream) in self.streams.iter().enumerate() {
            // Relaxed: see `stream`.
            if stream.key.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let Some(mut marks) = stream.marks.hold_briefly() else {
                continue;
            };
            let marks = &mut *marks;
            if !goes(stream, marks) {
                continue;
            }
            let mut sum = Found {
                done_ns: marks.submitted_ns.saturating_sub(marks.done_ns),
                ..Found::default()
            };
            while let Some(mark) = marks.oldest() {
                self.give_back(marks.context, mark.start);
                self.give_back(marks.context, mark.end);
                sum.ended_unknown |= mark.is_unknown;
                marks.drop_oldest();
            }
            self.give_back(marks.context, core::mem::take(&mut marks.last));
            marks.done_ns = marks.submitted_ns;
            self.set_busy(at, false);
            // Relaxed: see `stream`.
            stream.key.store(0, Ordering::Relaxed);
            if sum != Found::default() {
                found(marks.device, sum);
            }
        }
    }
}

/// Whether this bit is set and no other one.
fn is_only(words: &[u64], bit: usize) -> bool {
    let wanted = |index| u64::from(index == bit / 64) << (bit % 64);
    let is_as_wanted = |(index, word): (usize, &u64)| *word == wanted(index);
    bit / 64 < words.len() && words.iter().enumerate().all(is_as_wanted)
}

fn places(key: u64) -> impl Iterator<Item = usize> {
    let home = usize::try_from(key >> 48).unwrap_or(0);
    (0..PROBES).map(move |step| (home + step) % STREAMS)
}

impl Marks {
    fn oldest(&self) -> Option<Mark> {
        (self.count > 0).then(|| self.ring.get(self.first).copied())?
    }

    fn newest(&self) -> Option<&Mark> {
        let last = self.count.checked_sub(1)?;
        self.ring.get((self.first + last) % MARKS)
    }

    /// How long a stream whose oldest mark has not ended is still busy, charged nanoseconds: the rest of the work up
    /// to the end of that mark, which has run since the mark before was seen to have ended, and all work behind it.
    fn left_ns(&self, oldest: &Mark, now_ns: u64) -> u64 {
        let up_to_it = oldest.submitted_ns.saturating_sub(self.last_submitted_ns);
        let runs_ns = now_ns.saturating_sub(self.last_seen_ns.max(oldest.begun_ns));
        let behind_ns = self.submitted_ns.saturating_sub(oldest.submitted_ns);
        up_to_it.saturating_sub(runs_ns).saturating_add(behind_ns)
    }

    /// False: there is no room for it.
    fn push(&mut self, mark: Mark) -> bool {
        if self.count >= MARKS {
            return false;
        }
        if let Some(to) = self.ring.get_mut((self.first + self.count) % MARKS) {
            *to = mark;
            self.count += 1;
        }
        true
    }

    fn drop_oldest(&mut self) {
        self.first = (self.first + 1) % MARKS;
        self.count = self.count.saturating_sub(1);
    }

    fn done_up_to(&mut self, submitted_ns: u64) -> u64 {
        let more = submitted_ns.saturating_sub(self.done_ns);
        self.done_ns += more;
        more
    }
}

#[cfg(test)]
mod tests {
    use super::events::SPARE;
    use super::*;

    fn marks() -> Box<Marks> {
        // SAFETY: numbers and truth values, for which all zeros is a value.
        unsafe { Box::<Marks>::new_zeroed().assume_init() }
    }

    fn mark(end: u64) -> Mark {
        Mark {
            start: end - 1,
            end,
            gap_ns: 0,
            slack_ns: 0,
            submitted_ns: end,
            charged_ns: 1,
            begun_ns: 0,
            work: Work::kernel(1, [1; 3], [1; 3]),
            is_alone: true,
            is_chained: false,
            is_unknown: false,
        }
    }

    #[test]
    fn default_streams_are_looked_up_by_context_and_others_by_handle() {
        let look_up = |handle, current| {
            let target = Target::of_handle(handle, || current);
            (target.handle, target.context, target.device)
        };
        for default in 0..=2 {
            assert_eq!(look_up(default, Some(9)), (default, 9, 0));
            assert_eq!(look_up(default, None), (default, 0, 0));
        }
        assert_eq!(look_up(3, Some(9)), (3, 0, 0));
        // No question to the driver that the answer does not need.
        Target::of_handle(u64::MAX, || {
            unreachable!("the current context is not needed")
        });
    }

    #[test]
    fn marks_come_out_in_the_order_of_the_stream() {
        let mut marks = marks();
        assert!(marks.oldest().is_none() && marks.newest().is_none());
        // Twice as many as there is room for: the ring goes round.
        for end in 1..=2 * MARKS as u64 {
            marks.push(mark(end));
            if end > 2 {
                assert_eq!(marks.oldest().map(|it| it.end), Some(end - 2));
                marks.drop_oldest();
            }
            assert_eq!(marks.newest().map(|it| it.end), Some(end));
        }
        assert_eq!(marks.count, 2);
    }

    #[test]
    fn full_ring_takes_no_mark() {
        let mut marks = marks();
        for end in 1..=MARKS as u64 {
            assert!(marks.push(mark(end)));
        }

        assert!(!marks.push(mark(100)));
        assert_eq!(marks.newest().map(|it| it.end), Some(MARKS as u64));
    }

    #[test]
    fn stream_is_busy_with_the_rest_of_its_oldest_mark_and_all_behind_it() {
        let mut marks = marks();
        // 10 were charged up to the first mark, which was seen to end at 100; 8 up to the second, and 5 behind it.
        (marks.last_submitted_ns, marks.last_seen_ns) = (10, 100);
        marks.submitted_ns = 23;
        let oldest = Mark {
            submitted_ns: 18,
            begun_ns: 90,
            ..mark(2)
        };

        assert_eq!(marks.left_ns(&oldest, 100), 13);
        assert_eq!(marks.left_ns(&oldest, 103), 10);
        // It takes longer than it was charged.
        assert_eq!(marks.left_ns(&oldest, 200), 5);
        // The stream had nothing to run before it.
        let later = Mark {
            begun_ns: 150,
            ..oldest
        };
        assert_eq!(marks.left_ns(&later, 152), 11);
    }

    #[test]
    fn work_is_done_once() {
        let mut marks = marks();
        marks.submitted_ns = 100;

        assert_eq!(marks.done_up_to(60), 60);
        assert_eq!(marks.done_up_to(40), 0);
        assert_eq!(marks.done_up_to(100), 40);
        assert_eq!(marks.done_ns, 100);
    }

    #[test]
    fn work_behind_the_last_mark_of_a_context_has_ended_once() {
        // SAFETY: numbers, for which all zeros is a value.
        let spans = unsafe { Box::<Spans>::new_zeroed().assume_init() };
        let of = |context| Target {
            handle: 16 * context,
            context,
            device: 1,
        };
        for context in [7, 8] {
            let at = spans.stream(&of(context)).unwrap();
            assert!(spans.launched(at, 100 * context, 0));
        }
        let ended = |context| {
            let mut all = Vec::new();
            spans.ended_in(context, |device, found| all.push((device, found.done_ns)));
            all
        };

        assert_eq!(ended(9), []);
        assert_eq!(ended(7), [(1, 700)]);
        assert_eq!(ended(7), []);
        assert!(spans.is_anything_busy());
        assert_eq!(ended(8), [(1, 800)]);
        assert!(!spans.is_anything_busy());
    }

    #[test]
    fn spare_events_are_kept_up_to_their_room() {
        // SAFETY: numbers, for which all zeros is a value.
        let mut events = unsafe { Box::<Events>::new_zeroed().assume_init() };
        assert_eq!(events.take_spare(), None);
        for event in 1..=SPARE as u64 {
            assert!(events.put_spare(event));
        }

        assert!(!events.put_spare(1000));
        assert_eq!(events.take_spare(), Some(SPARE as u64));
        assert!(events.put_spare(1000));
        assert_eq!(events.take_spare(), Some(1000));
    }

    #[test]
    fn only_one_bit_of_all_words_is_looked_for() {
        assert!(is_only(&[0, 1 << 3], 67));
        for words in [[0, 0], [1, 1 << 3], [0, 0b11 << 3], [1 << 3, 0]] {
            assert!(!is_only(&words, 67), "{words:?}");
        }
        assert!(!is_only(&[0, 0], 128));
    }

    #[test]
    fn stream_has_eight_places_that_wrap_around() {
        let last = (STREAMS as u64 - 1) << 48;

        let found: Vec<_> = places(last).collect();

        assert_eq!(found.len(), PROBES);
        assert_eq!(found.first(), Some(&(STREAMS - 1)));
        assert_eq!(found.get(1..3), Some(&[0, 1][..]));
    }
}
