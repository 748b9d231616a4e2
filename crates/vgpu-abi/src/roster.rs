//! The roster of a host: how containers that share a GPU without an arbiter see each other. All of them have one file
//! open, the same on the whole host (the driver's library), and none may write it. A process that launches work holds a
//! record lock for reading on bytes far behind the file's end. Where the lock begins says which GPU and which container
//! it is for; how long it is says what the container wants. The kernel takes the lock away when the process dies.
//!
//! Owns the locks and the meaning of their bytes, and the timetable that follows from them ([`interval`]). Reads no
//! clock and never waits. A lock is no proof of anything: any process that may read the file can hold one.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use crate::interval::Interval;
use crate::period::PERIODS_MS;
use crate::sys::{self, CPath, Descriptor};

/// Locks begin behind this byte: no library is so long.
const FIRST: u64 = 1 << 62;
const GPU_BITS: u32 = 17;
const CONTAINER_BITS: u32 = 18;
const PROCESS_BITS: u32 = 8;
/// The lock of one process is somewhere in this many bytes (as a power of two).
const ENTRY_BITS: u32 = 19;
const PERCENT_BITS: u32 = 7;
const PERIOD_BITS: u32 = 2;
const STAMP_BITS: u32 = 8;

const CONTAINER_SHIFT: u32 = ENTRY_BITS + PROCESS_BITS;
const GPU_SHIFT: u32 = CONTAINER_SHIFT + CONTAINER_BITS;
const ENTRY_BYTES: u64 = 1 << ENTRY_BITS;
const PAGE_BYTES: u64 = 1 << GPU_SHIFT;

/// How long a stamp lasts, nanoseconds. A process renews its lock at least as often while it launches work; with an
/// older one it does not count.
const STAMP_NS: u64 = 1 << 30;
/// An entry counts for this many stamps after its own.
const FRESH_STAMPS: u64 = 1;

/// Our descriptor is not below this where the limit on descriptors lets us.
const LOWEST_FD: c_int = 1000;

/// The most entries of a GPU that are read: with more there is no timetable.
pub const MOST: usize = 64;

/// A process of a container on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    gpu: u64,
    container: u64,
    process: u64,
}

impl Place {
    /// By the numbers of the GPU, of the container on its host, and of the process in its container. A few bits of
    /// each count.
    #[must_use]
    pub fn new(gpu: u64, container: u64, process: u64) -> Self {
        let of = |number: u64, bits: u32| mix(number) >> (64 - bits);
        Self {
            gpu: of(gpu, GPU_BITS),
            container: of(container, CONTAINER_BITS),
            process: process & ((1 << PROCESS_BITS) - 1),
        }
    }

    fn page(&self) -> u64 {
        FIRST + (self.gpu << GPU_SHIFT)
    }

    fn at(&self) -> u64 {
        self.page() + (self.container << CONTAINER_SHIFT) + (self.process << ENTRY_BITS)
    }
}

fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (number ^ number >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// A process's entry for its container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Entry {
    /// Its cap, percent; 0 is none.
    pub percent: u32,
    /// It wants more than its cap.
    pub wants_more: bool,
    /// The number in [`PERIODS_MS`] of the shortest period that suits its launches; one more than there are where none
    /// does.
    pub period: usize,
}

impl Entry {
    /// How many bytes say this at a moment.
    fn length(self, now_ns: u64) -> u64 {
        let percent = u64::from(self.percent.min(100));
        let period = self.period.min(PERIODS_MS.len()) as u64;
        let bits = u64::from(self.wants_more) << STAMP_BITS | stamp(now_ns);
        1 + ((bits << PERIOD_BITS | period) << PERCENT_BITS | percent)
    }

    /// The entry of a lock of this length; `None` if it is of no process that works now.
    fn of(length: u64, now_ns: u64) -> Option<Self> {
        let bits = length.checked_sub(1)?;
        if bits >= 1 << (PERCENT_BITS + PERIOD_BITS + STAMP_BITS + 1) {
            return None;
        }
        let part = |shift: u32, bits_of: u32| bits >> shift & ((1 << bits_of) - 1);
        let age = stamp(now_ns).wrapping_sub(part(PERCENT_BITS + PERIOD_BITS, STAMP_BITS))
            & ((1 << STAMP_BITS) - 1);
        (age <= FRESH_STAMPS).then(|| Self {
            percent: u32::try_from(part(0, PERCENT_BITS)).unwrap_or(0).min(100),
            wants_more: part(PERCENT_BITS + PERIOD_BITS + STAMP_BITS, 1) != 0,
            period: usize::try_from(part(PERCENT_BITS, PERIOD_BITS)).unwrap_or(PERIODS_MS.len()),
        })
    }

    fn has_cap(&self) -> bool {
        (1..100).contains(&self.percent)
    }
}

fn stamp(now_ns: u64) -> u64 {
    (now_ns / STAMP_NS) & ((1 << STAMP_BITS) - 1)
}

/// A container that works on a GPU now, as its processes say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Member {
    container: u64,
    entry: Entry,
}

/// The containers that work on a GPU now.
#[derive(Debug, Clone, Copy)]
pub struct Members {
    each: [Member; MOST],
    count: usize,
    /// There were more than have room.
    is_crowded: bool,
}

impl Members {
    const NONE: Self = Self {
        each: [Member {
            container: 0,
            entry: Entry {
                percent: 0,
                wants_more: false,
                period: 0,
            },
        }; MOST],
        count: 0,
        is_crowded: false,
    };

    fn members(&self) -> &[Member] {
        self.each.get(..self.count).unwrap_or_default()
    }

    /// Adds what one process says.
    fn add(&mut self, container: u64, entry: Entry) {
        let mut known = self.each.iter_mut().take(self.count);
        if let Some(known) = known.find(|member| member.container == container) {
            let before = known.entry;
            known.entry = Entry {
                percent: before.percent.max(entry.percent),
                wants_more: before.wants_more || entry.wants_more,
                period: before.period.max(entry.period),
            };
            return;
        }
        let Some(place) = self.each.get_mut(self.count) else {
            self.is_crowded = true;
            return;
        };
        *place = Member { container, entry };
        self.count += 1;
    }

    /// How many other containers work on the GPU, if there can be no timetable for them and the own one; 0 if there can.
    #[must_use]
    pub fn others_without_timetable(&self, own: &Place) -> usize {
        if self.period_ms().is_some() {
            return 0;
        }
        let each = self.members().iter();
        each.filter(|member| member.container != own.container)
            .count()
    }

    /// The period that suits all that work on the GPU, milliseconds. `None` if there can be no timetable: a container
    /// without a cap works there, too, and would keep to no interval; caps add up to more than the GPU; or launches
    /// are too long for any period.
    fn period_ms(&self) -> Option<u16> {
        let members = self.members();
        let sum: u32 = members.iter().map(|member| member.entry.percent).sum();
        if self.is_crowded || sum > 100 || !members.iter().all(|member| member.entry.has_cap()) {
            return None;
        }
        let period = members.iter().map(|member| member.entry.period).max()?;
        PERIODS_MS.get(period).copied()
    }
}

/// The own container's interval in the timetable of those that want more than their caps. All that read the same roster
/// find intervals that follow each other, each as long as its container's cap. `None` if there is no timetable: the
/// container does not want more, or no other one does, or there can be none.
#[must_use]
pub fn interval(own: &Place, members: &Members) -> Option<Interval> {
    let period_ms = members.period_ms()?;
    let wanting = || {
        let each = members.members().iter();
        each.filter(|member| member.entry.wants_more)
    };
    let mine = wanting().find(|member| member.container == own.container)?;
    if wanting().count() < 2 {
        return None;
    }
    let before: u32 = wanting()
        .filter(|member| member.container < mine.container)
        .map(|member| member.entry.percent)
        .sum();
    // A hundredth of a millisecond is ten microseconds.
    let us = |percent: u32| u32::from(period_ms) * percent * 10;
    Some(Interval {
        period_ms,
        from_us: us(before),
        length_us: us(mine.entry.percent),
    })
}

const UNTRIED: u32 = 0;
const OPENING: u32 = 1;
const OPEN: u32 = 2;
const NONE: u32 = 3;

/// The file of the roster, as a process has it open. Survives a fork; the locks do not.
#[derive(Debug)]
pub struct Roster {
    state: AtomicU32,
    fd: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
}

impl Default for Roster {
    fn default() -> Self {
        Self::new()
    }
}

impl Roster {
    /// One that is not open.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            state: AtomicU32::new(UNTRIED),
            fd: AtomicI32::new(-1),
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
        }
    }

    /// Says what the process wants at its place, and reads what all others say. `paths` are the files that may be the
    /// roster, the best first; they are asked for once. `None` if there is no such file, and while another thread
    /// opens it.
    pub fn exchange<P: Iterator<Item: AsRef<[u8]>>>(
        &self,
        own: &Place,
        entry: Entry,
        now_ns: u64,
        paths: impl FnOnce() -> P,
    ) -> Option<Members> {
        let fd = self.descriptor(paths)?;
        let (at, length) = (own.at(), entry.length(now_ns));
        // First the new one, then what is too long: at no moment has the process no lock.
        sys::read_lock_range(fd, at, length).ok()?;
        sys::unlock_range(fd, at + length, ENTRY_BYTES - length);
        let mut members = read(fd, own, now_ns);
        members.add(own.container, entry);
        Some(members)
    }

    /// The descriptor, opened where it is not open. A program may have closed it, and another file may have its number.
    fn descriptor<P: Iterator<Item: AsRef<[u8]>>>(
        &self,
        paths: impl FnOnce() -> P,
    ) -> Option<c_int> {
        // Acquire: the other words were stored before.
        let state = self.state.load(Ordering::Acquire);
        if state == OPEN {
            // Relaxed: published by the state.
            let fd = self.fd.load(Ordering::Relaxed);
            let is_ours = sys::fstat(fd).is_ok_and(|stat| {
                // Relaxed: as above.
                stat.device == self.device.load(Ordering::Relaxed)
                    && stat.inode == self.inode.load(Ordering::Relaxed)
            });
            if is_ours {
                return Some(fd);
            }
        } else if state != UNTRIED {
            return None;
        }
        // Acquire: as above.
        let mine =
            self.state
                .compare_exchange(state, OPENING, Ordering::Acquire, Ordering::Relaxed);
        mine.ok()?;
        let opened = open(paths());
        if let Some((fd, stat)) = &opened {
            // Relaxed: the state publishes them.
            self.fd.store(fd.number(), Ordering::Relaxed);
            self.device.store(stat.device, Ordering::Relaxed);
            self.inode.store(stat.inode, Ordering::Relaxed);
        }
        let state = if opened.is_some() { OPEN } else { NONE };
        // Release: a thread that sees the state sees the words.
        self.state.store(state, Ordering::Release);
        opened.map(|(fd, _)| fd.keep())
    }
}

/// Opens the first of the files that all containers of the host see as the same one. Each container has an overlay file
/// system of its own, and the same file is another one there.
fn open(paths: impl Iterator<Item: AsRef<[u8]>>) -> Option<(Descriptor, sys::Stat)> {
    let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    let mut second = None;
    for path in paths {
        let Some(path) = CPath::new(path.as_ref()) else {
            continue;
        };
        let Ok(low) = sys::open(&path, flags).map(Descriptor::own) else {
            continue;
        };
        let high = sys::duplicate(low.number(), LOWEST_FD).map(Descriptor::own);
        let file = high.unwrap_or(low);
        let Some(stat) = sys::fstat(file.number()).ok().filter(|stat| stat.regular) else {
            continue;
        };
        if !sys::on_overlay(file.number()) {
            return Some((file, stat));
        }
        second = second.or(Some((file, stat)));
    }
    second
}

/// Reads what other processes say of the own GPU. The kernel names one lock of a range at a time, so the ranges
/// before it and behind it are asked for next.
fn read(fd: c_int, own: &Place, now_ns: u64) -> Members {
    let mut members = Members::NONE;
    let mut ranges = [(0, 0); 2 * MOST];
    let mut count = 0;
    let push = |ranges: &mut [(u64, u64)], count: &mut usize, from: u64, to: u64| {
        if from < to
            && let Some(place) = ranges.get_mut(*count)
        {
            *place = (from, to);
            *count += 1;
        }
    };
    push(&mut ranges, &mut count, own.page(), own.page() + PAGE_BYTES);
    let mut asked = 0;
    while let Some(next) = count.checked_sub(1) {
        count = next;
        let (from, to) = ranges.get(next).copied().unwrap_or_default();
        if asked >= 2 * MOST {
            members.is_crowded = true;
            break;
        }
        asked += 1;
        let Ok(Some((start, length))) = sys::locked_range(fd, from, to - from) else {
            continue;
        };
        // The rest of the bytes in which the lock begins is its process's own.
        let entry_at = start - start % ENTRY_BYTES;
        let end = start.saturating_add(length).max(entry_at + ENTRY_BYTES);
        push(&mut ranges, &mut count, from, entry_at.min(to));
        push(&mut ranges, &mut count, end.max(from), to);
        if start == entry_at
            && start >= own.page()
            && let Some(entry) = Entry::of(length, now_ns)
        {
            let container = (start - own.page()) >> CONTAINER_SHIFT;
            members.add(container, entry);
        }
    }
    members
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn place(container: u64) -> Place {
        Place::new(7, container, 1)
    }

    fn wants(percent: u32) -> Entry {
        Entry {
            percent,
            wants_more: true,
            period: 0,
        }
    }

    fn members(entries: &[(u64, Entry)]) -> Members {
        let mut members = Members::NONE;
        for (container, entry) in entries {
            members.add(place(*container).container, *entry);
        }
        members
    }

    #[test]
    fn a_lock_says_what_its_process_wants_for_about_two_seconds() {
        let entry = Entry {
            percent: 99,
            wants_more: true,
            period: 3,
        };
        let now_ns = 300 * SECOND;
        let length = entry.length(now_ns);

        assert!(length < ENTRY_BYTES);
        assert_eq!(Entry::of(length, now_ns), Some(entry));
        assert_eq!(Entry::of(length, now_ns + SECOND), Some(entry));
        for later in [3, 60, 200] {
            assert_eq!(Entry::of(length, now_ns + later * SECOND), None, "{later}");
        }
        assert_eq!(Entry::of(0, now_ns), None);
        assert_eq!(Entry::of(u64::MAX, now_ns), None);
    }

    #[test]
    fn those_that_want_more_have_intervals_as_long_as_their_caps() {
        let all = members(&[
            (1, wants(10)),
            (2, wants(85)),
            (
                3,
                Entry {
                    percent: 5,
                    ..Entry::default()
                },
            ),
        ]);

        let mut found = [1, 2].map(|own| interval(&place(own), &all).unwrap());
        found.sort_by_key(|interval| interval.from_us);
        let lengths = found.map(|interval| interval.length_us);
        assert!(
            lengths == [5_000, 42_500] || lengths == [42_500, 5_000],
            "{lengths:?}"
        );
        assert_eq!(found[1].from_us, lengths[0]);
        // It wants less than its cap.
        assert_eq!(interval(&place(3), &all), None);
    }

    #[test]
    fn there_is_no_timetable_where_it_would_not_be_kept() {
        let none = |entries: &[(u64, Entry)], others| {
            let all = members(entries);
            assert_eq!(interval(&place(1), &all), None);
            assert_eq!(all.others_without_timetable(&place(1)), others);
        };
        let rests = |percent| Entry {
            percent,
            ..Entry::default()
        };
        // By itself, and beside one that wants less than its cap.
        none(&[(1, wants(10))], 0);
        none(&[(1, wants(10)), (2, rests(90))], 0);
        // More than there is.
        none(&[(1, wants(60)), (2, wants(41))], 1);
        // Beside a container without a cap.
        none(&[(1, wants(10)), (2, wants(20)), (3, rests(0))], 2);
        // Launches of one of them are too long.
        let long = Entry {
            period: 3,
            ..wants(20)
        };
        none(&[(1, wants(10)), (2, long)], 1);
    }

    #[test]
    fn processes_of_a_container_speak_for_it_together() {
        let rests = Entry {
            percent: 30,
            ..Entry::default()
        };
        let long = Entry {
            period: 1,
            ..wants(30)
        };
        for order in [[rests, long], [long, rests]] {
            let all = members(&[(1, order[0]), (1, order[1]), (2, wants(70))]);
            assert_eq!(interval(&place(1), &all).map(|it| it.period_ms), Some(100));
        }
    }

    #[test]
    fn processes_see_each_other_by_one_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap().as_bytes();
        let roster = Roster::new();
        let now_ns = 50 * SECOND;
        // A lock of another owner than this process: of an open file.
        let other = std::fs::File::open(file.path()).unwrap();
        let at = place(2).at();
        sys::open_file_read_lock(other.as_raw_fd(), at, wants(70).length(now_ns)).unwrap();

        let found = roster.exchange(&place(1), wants(30), now_ns, || [path].into_iter());

        let found = found.unwrap();
        assert_eq!(found.others_without_timetable(&place(1)), 0);
        assert_eq!(
            interval(&place(1), &found).map(|it| it.length_us),
            Some(15_000)
        );
        let elsewhere = Place::new(8, 1, 1);
        let found = roster.exchange(&elsewhere, wants(30), now_ns, || [path].into_iter());
        assert_eq!(interval(&elsewhere, &found.unwrap()), None);
    }

    #[test]
    fn a_descriptor_that_the_program_closed_is_opened_again() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap().as_bytes();
        let roster = Roster::new();
        assert!(
            roster
                .exchange(&place(1), wants(30), 1, || [path].into_iter())
                .is_some()
        );
        sys::close(roster.fd.load(Ordering::Relaxed));

        assert!(
            roster
                .exchange(&place(1), wants(30), 1, || [path].into_iter())
                .is_some()
        );
    }

    #[test]
    fn without_a_file_there_is_no_roster() {
        let roster = Roster::new();
        let paths = || [&b"/nowhere/libcuda.so.1"[..], b"/dev/null", b""].into_iter();
        assert!(roster.exchange(&place(1), wants(30), 1, paths).is_none());
        assert!(roster.exchange(&place(1), wants(30), 1, paths).is_none());
    }

    proptest! {
        /// Whatever locks there are: the intervals of all that read them follow each other, each as long as its cap.
        #[test]
        fn intervals_never_overlap(
            entries in prop::collection::vec((0_u64..20, 1_u32..40, any::<bool>(), 0_usize..5), 0..8),
        ) {
            let each: Vec<_> = entries.into_iter().map(|(container, percent, wants_more, period)| {
                (container, Entry { percent, wants_more, period })
            }).collect();
            let all = members(&each);
            let mut found: Vec<_> = (0..20).filter_map(|own| {
                let interval = interval(&place(own), &all)?;
                Some((interval.from_us, interval.length_us, interval.period_ms))
            }).collect();
            found.sort_unstable();
            let mut at_us = 0;
            for (from_us, length_us, period_ms) in &found {
                prop_assert_eq!(*from_us, at_us);
                at_us += length_us;
                prop_assert!(at_us <= u32::from(*period_ms) * 1_000);
            }
        }

        #[test]
        fn any_lock_is_read_without_a_panic(length: u64, now_ns: u64) {
            if let Some(entry) = Entry::of(length, now_ns) {
                prop_assert_eq!(entry.length(now_ns).min(ENTRY_BYTES), entry.length(now_ns));
            }
        }

        #[test]
        fn places_lie_within_the_range_of_offsets(gpu: u64, container: u64, process: u64) {
            let place = Place::new(gpu, container, process);
            prop_assert!(i64::try_from(place.page() + PAGE_BYTES - 1).is_ok());
            prop_assert!(place.at() + ENTRY_BYTES <= place.page() + PAGE_BYTES);
        }
    }
}
