//! How this process gets a slot, keeps it, and clears those of the dead; and the region as the
//! reserve algorithm sees it.
//!
//! Never trusts a lock without checking its descriptor, and never touches its own slot's lock except to take it.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::files::open_high;
use super::private::Wait;
use super::{
    JoinError, LOCK_DEVICES, LOCK_SLOTS, PACKED_SLOT_BITS, Region, TICK_NS, bump, pack,
    slot_tag_of, store_text,
};
use crate::budget::{self, Charges, Identity, Outside, Slots, bytes_in, tag_of};
use crate::crash::crash_point;
use crate::credit;
use crate::layout::{ComputeUse, DeviceUse, MAX_DEVICES, MAX_SLOTS, SlotHead};
use crate::sys::{self, CPath, LockOwner};

/// How long a reaper waits for the shared-object table before it leaves a slot for the next one.
const REAP_WAIT_NS: u64 = 5_000_000;

/// Room is kept for a runtime that loads for this long: PyTorch's takes ten seconds on a slow machine.
pub(super) const LOADING_NS: u64 = 60_000_000_000;

/// A process that asked for a lock within this time is still asking.
const ASKED_NS: u64 = 2_000_000;
/// How long the process that had it last lets others go first, and how often.
const NAP_NS: u64 = 100_000;
const NAPS: u32 = 5;

impl Region {
    /// The descriptor, if it is still the region's: a program may have closed it, and another file may have its
    /// number.
    pub(super) fn descriptor_as_is(&self) -> Option<c_int> {
        // Relaxed: a number; the kernel is asked which file it is.
        let fd = self.fd.load(Ordering::Relaxed);
        let stat = sys::fstat(fd).ok()?;
        (stat.device == self.device && stat.inode == self.inode).then_some(fd)
    }

    /// The descriptor, opened again where it was lost. With a lost descriptor all our locks are
    /// lost; the one on the slot is taken again here.
    pub(super) fn descriptor(&self) -> Option<c_int> {
        if let Some(fd) = self.descriptor_as_is() {
            return Some(fd);
        }
        let mut wait = Wait::new();
        if !self.private().descriptor_lock.lock(&mut wait) {
            return None;
        }
        let fd = self.descriptor_as_is().or_else(|| self.open_again());
        self.private().descriptor_lock.unlock();
        fd
    }

    #[cold]
    fn open_again(&self) -> Option<c_int> {
        let (opened, stat) = open_high(&self.path).ok()?;
        if stat.device != self.device || stat.inode != self.inode {
            return None;
        }
        let fd = opened.keep();
        // Relaxed: a number; the kernel is asked which file it is.
        self.fd.store(fd, Ordering::Relaxed);
        // Relaxed: our own slot; its generation is looked at by the next tick.
        let packed = self.private().packed.load(Ordering::Relaxed);
        if packed != 0 && sys::try_lock(fd, slot_byte(slot_tag_of(packed).slot)) == Ok(true) {
            bump(&self.layout().header.locks_retaken);
        }
        self.lock_family(fd);
        Some(fd)
    }

    /// The identity of this process. `/proc` is read once in its life.
    pub(super) fn identity(&self) -> Identity {
        let private = self.private();
        // Acquire: the words were stored before.
        if private.known.load(Ordering::Acquire) == 0 {
            let stat = ProcessStat::read(b"/proc/self/stat").unwrap_or_default();
            let namespace = CPath::new(b"/proc/self/ns/pid");
            let namespace = namespace
                .and_then(|path| sys::inode_of(&path).ok())
                .unwrap_or(0);
            // Relaxed: `known` is stored after.
            private.start_time.store(stat.start_time, Ordering::Relaxed);
            private
                .start_stack
                .store(stat.start_stack, Ordering::Relaxed);
            private.pid_namespace.store(namespace, Ordering::Relaxed);
            // Release: for the load above.
            private.known.store(1, Ordering::Release);
        }
        Identity {
            pid: sys::process_id(),
            // Relaxed: stored before `known`.
            start_time: private.start_time.load(Ordering::Relaxed),
            pid_namespace: private.pid_namespace.load(Ordering::Relaxed),
            start_stack: private.start_stack.load(Ordering::Relaxed),
            image: sys::image_token(),
        }
    }

    /// Takes a slot, unless another thread has done so since `stale` was seen. This process's
    /// charges so far go into the new slot.
    #[cold]
    pub(super) fn take_slot(&self, stale: u64) -> Result<u64, JoinError> {
        let mut wait = Wait::new();
        if !self.private().slot_lock.lock(&mut wait) {
            bump(&self.layout().header.waits_ran_out);
            return Err(JoinError::TimedOut);
        }
        let packed = self.take_slot_alone(stale);
        self.private().slot_lock.unlock();
        packed
    }

    fn take_slot_alone(&self, stale: u64) -> Result<u64, JoinError> {
        let private = self.private();
        // Relaxed: only changed under its lock, which we hold.
        let packed = private.packed.load(Ordering::Relaxed);
        if packed != 0 && (packed != stale || self.is_mine(packed)) {
            return Ok(packed);
        }
        let Some(fd) = self.descriptor() else {
            return Err(JoinError::System { errno: libc::EBADF });
        };
        if packed != 0 {
            // We may have taken its lock again before we saw that it was another process's.
            sys::unlock(fd, slot_byte(slot_tag_of(packed).slot));
            bump(&self.layout().header.rejoined);
        }
        let me = self.identity();
        let Some((slot, generation)) = budget::claim(self, &me) else {
            bump(&self.layout().header.slots_full);
            return Err(JoinError::NoFreeSlot);
        };
        if let Some(entry) = self.layout().slots.get(slot) {
            let mut name = [0; 16];
            let comm = CPath::new(b"/proc/self/comm");
            let comm = comm.and_then(|path| sys::read_small(&path, &mut name).ok());
            store_text(&entry.head.name, comm.unwrap_or_default().trim_ascii_end());
            // Relaxed: a time for a report.
            entry
                .head
                .joined_unix_ns
                .store(sys::unix_ns(), Ordering::Relaxed);
        }
        crash_point!("join:described");
        self.bring_charges(slot, generation);
        crash_point!("join:charged");
        self.bring_holds(slot);
        // Release: a thread that sees the word sees the slot filled.
        private
            .packed
            .store(pack(slot, generation), Ordering::Release);
        self.name_in_family(pack(slot, generation));
        crash_point!("join:seated");
        Ok(pack(slot, generation))
    }

    /// Copies this process's charges, all at once per device: a thread whose change of the own sum
    /// comes later finds another tag there, and does its change to the new slot.
    fn bring_charges(&self, slot: usize, generation: u64) {
        let tag = tag_of(generation);
        for (device, own) in self.private().own.iter().enumerate() {
            let Some(cells) = self.cells(slot, device) else {
                continue;
            };
            let retag = |old: u64| Some(bytes_in(old) | tag);
            // SeqCst: as every change of a charge word.
            let old = own
                .confirmed
                .fetch_update(Ordering::SeqCst, Ordering::Relaxed, retag);
            let bytes = bytes_in(old.unwrap_or_else(|old| old));
            if bytes > 0 {
                // The slot is locked and new: it can be neither stale nor full.
                let _added = budget::add(&cells.confirmed, tag, bytes);
                // Relaxed: breakdowns for a report.
                cells
                    .contexts
                    .store(own.contexts.load(Ordering::Relaxed), Ordering::Relaxed);
                cells
                    .modules
                    .store(own.modules.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
    }

    /// Whether the slot is in the generation in which we took it.
    fn is_mine(&self, packed: u64) -> bool {
        let head = self.head(slot_tag_of(packed).slot);
        // SeqCst: a reaper raises it before it clears anything.
        let generation = head.map(|head| head.generation.load(Ordering::SeqCst));
        generation.is_some_and(|generation| {
            pack(0, generation) >> PACKED_SLOT_BITS == packed >> PACKED_SLOT_BITS
        })
    }

    /// Gives the slot back with all its charges: at an orderly end of the process.
    pub fn leave(&self) {
        let mut wait = Wait::new();
        let private = self.private();
        // Relaxed: a look; the one that counts comes under the lock.
        if private.packed.load(Ordering::Relaxed) == 0 || !private.slot_lock.lock(&mut wait) {
            return;
        }
        // AcqRel: changed under its lock; other threads join again.
        let packed = private.packed.swap(0, Ordering::AcqRel);
        let fd = self.descriptor();
        crash_point!("leave:begin");
        if let (true, true, Some(fd)) = (packed != 0, self.is_mine(packed), fd) {
            let slot = slot_tag_of(packed).slot;
            // Taken again in case it was lost. When another process has it, it is a reaper's.
            if sys::try_lock(fd, slot_byte(slot)) == Ok(true) {
                // At leisure, so that clearing the slot need not wait for it.
                let mut wait = Wait::new();
                let _then_vacated = self.let_go_of_all(slot, &mut wait);
                if !budget::vacate(self, slot) {
                    self.ran_out(&mut wait);
                    budget::disown(self, slot);
                }
                crash_point!("leave:vacated");
                sys::unlock(fd, slot_byte(slot));
            }
        }
        private.slot_lock.unlock();
        for own in &private.own {
            // Relaxed: what was charged went with the slot.
            own.confirmed.store(0, Ordering::Relaxed);
            own.contexts.store(0, Ordering::Relaxed);
            own.modules.store(0, Ordering::Relaxed);
        }
        for hold in &private.holds {
            // Relaxed: as above.
            hold.count.store(0, Ordering::Relaxed);
        }
    }

    /// Clears the slots of dead processes; how many.
    pub fn reap(&self) -> usize {
        self.reap_within(&mut Wait::new())
    }

    fn reap_within(&self, wait: &mut Wait) -> usize {
        let private = self.private();
        if self.descriptor().is_none() || !private.slot_lock.lock(wait) {
            return 0;
        }
        let me = self.identity();
        // Relaxed: only changed under its lock, which we hold.
        let mine = slot_tag_of(private.packed.load(Ordering::Relaxed)).slot;
        let mut cleared = 0;
        for slot in 0..self.high_water_slots() {
            if slot != mine && budget::reap_slot(self, slot, &me) {
                bump(&self.layout().header.reaped);
                cleared += 1;
            }
        }
        private.slot_lock.unlock();
        cleared
    }

    /// Looks after the slot: takes a lost lock again, joins again where the slot was taken away.
    /// `now_ns` is any monotonic clock; does something at most every 50 ms. Call it on hooked
    /// calls. Returns whether it looked.
    #[inline]
    pub fn tick(&self, now_ns: u64) -> bool {
        let ticked = &self.private().ticked_ns;
        // Relaxed: the clock guards nothing; two threads that look at once do no harm.
        let last = ticked.load(Ordering::Relaxed);
        if last != 0 && now_ns.wrapping_sub(last) < TICK_NS {
            return false;
        }
        // Relaxed: as above.
        ticked.store(now_ns.max(1), Ordering::Relaxed);
        self.look_after();
        true
    }

    #[cold]
    fn look_after(&self) {
        // Acquire: as in `join`.
        let packed = self.private().packed.load(Ordering::Acquire);
        if packed == 0 {
            return;
        }
        let mine = self.is_mine(packed) && {
            let mut wait = Wait::new();
            if !self.private().slot_lock.lock(&mut wait) {
                return;
            }
            self.retake(packed);
            self.private().slot_lock.unlock();
            // Looked at again: a reaper may have been there until the lock was ours.
            self.is_mine(packed)
        };
        if !mine {
            // If that fails, the next charge returns the error.
            let _packed = self.take_slot(packed);
        }
        self.sweep();
    }

    /// Takes the slot's lock again where it was lost.
    fn retake(&self, packed: u64) {
        let Some(fd) = self.descriptor() else { return };
        let byte = slot_byte(slot_tag_of(packed).slot);
        if sys::lock_owner_or_me(fd, byte) == Ok(LockOwner::None)
            && sys::try_lock(fd, byte) == Ok(true)
        {
            bump(&self.layout().header.locks_retaken);
            if let Some(head) = self.head(slot_tag_of(packed).slot) {
                // Relaxed: only changed under the slot's lock, which is ours again.
                head.gone_since_ns.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Waits for a record lock that another process holds for a short time.
    pub(super) fn lock_record(&self, byte: u64, wait: &mut Wait) -> bool {
        let (wanted, last) = self.queue_of(byte);
        // Relaxed in all of these: hints for politeness; the kernel's lock is what counts.
        let me = self.private().packed.load(Ordering::Relaxed);
        if wanted.load(Ordering::Relaxed) != 0 && last.load(Ordering::Relaxed) == me {
            self.let_others_go_first(wanted);
        }
        loop {
            let Some(fd) = self.descriptor() else {
                return false;
            };
            match sys::try_lock(fd, byte) {
                Ok(true) => {
                    wanted.store(0, Ordering::Relaxed);
                    last.store(me, Ordering::Relaxed);
                    return true;
                }
                Ok(false) => wanted.store(sys::now_ns(), Ordering::Relaxed),
                Err(_) => return false,
            }
            if !wait.pause() {
                return false;
            }
        }
    }

    /// A record lock has no queue: a process that releases it and takes it again at once would be faster than
    /// all that ask from time to time. So that process naps, as long as another one has just asked.
    fn let_others_go_first(&self, wanted: &AtomicU64) {
        for _nap in 0..NAPS {
            // Relaxed: as in `lock_record`.
            let asked = wanted.load(Ordering::Relaxed);
            if asked == 0 || sys::now_ns().saturating_sub(asked) > ASKED_NS {
                return;
            }
            sys::sleep_ns(NAP_NS);
        }
    }

    fn queue_of(&self, byte: u64) -> (&AtomicU64, &AtomicU64) {
        let header = &self.layout().header;
        let device = byte
            .checked_sub(LOCK_DEVICES)
            .and_then(|at| usize::try_from(at).ok());
        match device.and_then(|at| self.layout().devices.get(at)) {
            Some(device) => (&device.wanted_ns, &device.last),
            None => (&header.shared_wanted_ns, &header.shared_last),
        }
    }

    pub(super) fn unlock_record(&self, byte: u64) {
        if let Some(fd) = self.descriptor_as_is() {
            sys::unlock(fd, byte);
        }
    }

    pub(super) fn ran_out(&self, wait: &mut Wait) {
        if !wait.counted {
            wait.counted = true;
            bump(&self.layout().header.waits_ran_out);
        }
    }
}

fn slot_byte(slot: usize) -> u64 {
    LOCK_SLOTS + slot as u64
}

impl Charges for Region {
    #[inline]
    fn in_use(&self, word: usize) -> Option<u64> {
        let header = &self.layout().header;
        // SeqCst: raised before anything is written to a slot; sums depend on it.
        let above = header.slots_high_water.load(Ordering::SeqCst) as usize;
        if word * 64 >= above {
            return None;
        }
        // SeqCst: set before the first charge; sums depend on it.
        header
            .slots_in_use
            .get(word)
            .map(|word| word.load(Ordering::SeqCst))
    }

    #[inline]
    fn cells(&self, slot: usize, device: usize) -> Option<&DeviceUse> {
        self.layout().slots.get(slot)?.devices.get(device)
    }

    #[inline]
    fn shared(&self, device: usize) -> Option<&AtomicU64> {
        self.shared_word(device)
    }

    fn expected(&self, device: usize, since_ns: u64, guess: u64) -> u64 {
        if sys::now_ns().saturating_sub(since_ns) > LOADING_NS {
            return 0;
        }
        match self.learned_runtime_bytes(device) {
            0 => bytes_in(guess),
            learned => learned,
        }
    }
}

impl Outside for Region {
    type Wait = Wait;

    fn begin_wait(&self) -> Wait {
        Wait::new()
    }

    fn enter(&self, device: usize, wait: &mut Wait) -> bool {
        let Some(threads) = self.private().device_locks.get(device) else {
            return false;
        };
        if threads.lock(wait) {
            if self.lock_record(LOCK_DEVICES + device as u64, wait) {
                return true;
            }
            threads.unlock();
        }
        self.ran_out(wait);
        false
    }

    fn leave(&self, device: usize) {
        self.unlock_record(LOCK_DEVICES + device as u64);
        if let Some(threads) = self.private().device_locks.get(device) {
            threads.unlock();
        }
    }

    fn enter_shared(&self, wait: &mut Wait) -> bool {
        if self.high_water_shared() == 0 {
            return true;
        }
        self.lock_shared(wait)
    }

    fn leave_shared(&self) {
        if self.high_water_shared() != 0 {
            self.unlock_shared();
        }
    }

    fn reap(&self, wait: &mut Wait) -> usize {
        self.reap_within(wait)
    }

    fn pause(&self, wait: &mut Wait) -> bool {
        let left = wait.pause();
        if !left {
            self.ran_out(wait);
        }
        left
    }
}

impl Slots for Region {
    fn slot_count(&self) -> usize {
        MAX_SLOTS
    }

    fn device_count(&self) -> usize {
        MAX_DEVICES
    }

    fn head(&self, slot: usize) -> Option<&SlotHead> {
        self.layout().slots.get(slot).map(|slot| &slot.head)
    }

    fn in_use_word(&self, slot: usize) -> Option<&AtomicU64> {
        self.layout().header.slots_in_use.get(slot / 64)
    }

    fn high_water(&self) -> &AtomicU32 {
        &self.layout().header.slots_high_water
    }

    fn try_lock(&self, slot: usize) -> bool {
        // Relaxed: the number that `descriptor` has checked before the slots were looked at.
        sys::try_lock(self.fd.load(Ordering::Relaxed), slot_byte(slot)) == Ok(true)
    }

    fn unlock(&self, slot: usize) {
        // Relaxed: as in `try_lock`.
        sys::unlock(self.fd.load(Ordering::Relaxed), slot_byte(slot));
    }

    fn is_gone(&self, owner: &Identity) -> bool {
        is_gone(owner, &self.identity())
    }

    fn keeps(&self, slot: usize, head: &SlotHead) -> bool {
        self.keeps_charges(slot, head)
    }

    fn has_family(&self, slot: usize) -> bool {
        self.family_lives(slot)
    }

    fn let_go_of_shared(&self, slot: usize) -> bool {
        self.let_go_of_all(slot, &mut Wait::at_most(REAP_WAIT_NS))
    }

    fn keep_compute(&self, device: usize, of: &ComputeUse) {
        if let Some(cells) = self.layout().devices.get(device) {
            credit::keep(cells, of);
        }
    }

    fn keep_counts(&self, slot: usize) {
        let Some(head) = self.head(slot) else { return };
        for (past, counter) in self
            .layout()
            .header
            .past_hook_calls
            .iter()
            .zip(&head.hook_calls)
        {
            // Relaxed: counters; they guard no other memory.
            past.fetch_add(counter.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

/// Whether an owner whose lock is free has ended. In another pid namespace a free lock is enough. In this process's
/// own namespace the process must also not exist, or be another one, or run another program.
fn is_gone(owner: &Identity, me: &Identity) -> bool {
    if owner.pid_namespace == 0 || owner.pid_namespace != me.pid_namespace {
        return true;
    }
    if owner.pid == me.pid {
        return owner.start_time != me.start_time || owner.image != me.image;
    }
    if !sys::process_exists(owner.pid) {
        return true;
    }
    let Some(stat) = ProcessStat::read(&proc_stat_path(owner.pid)) else {
        // Hidden from us, or gone in this moment.
        return !sys::process_exists(owner.pid);
    };
    let dead = matches!(stat.state, b'Z' | b'X') && stat.threads <= 1;
    let another = stat.start_time != owner.start_time;
    let other_stack = stat.start_stack != owner.start_stack;
    let execed = stat.start_stack != 0 && owner.start_stack != 0 && other_stack;
    dead || another || execed
}

/// `/proc/PID/stat`, on the stack; zeros after it.
fn proc_stat_path(pid: u32) -> [u8; 24] {
    let mut path = [0; 24];
    let mut digits = [0_u8; 10];
    let mut rest = pid;
    let mut first = digits.len();
    loop {
        first -= 1;
        if let Some(digit) = digits.get_mut(first) {
            *digit = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        }
        rest /= 10;
        if rest == 0 || first == 0 {
            break;
        }
    }
    let digits = digits.get(first..).unwrap_or_default();
    let text = b"/proc/".iter().chain(digits).chain(b"/stat");
    for (to, from) in path.iter_mut().zip(text) {
        *to = *from;
    }
    path
}

/// The fields of `/proc/PID/stat` that we need.
#[derive(Debug, Default, PartialEq, Eq)]
struct ProcessStat {
    state: u8,
    threads: u64,
    start_time: u64,
    start_stack: u64,
}

impl ProcessStat {
    /// `None` if there is no such file.
    fn read(path: &[u8]) -> Option<Self> {
        let end = path
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(path.len());
        let path = CPath::new(path.get(..end)?)?;
        let mut buffer = [0; 1024];
        Self::parse(sys::read_small(&path, &mut buffer).ok()?)
    }

    /// The name in the second field may hold anything, so the fields are counted from the last
    /// closing parenthesis on.
    fn parse(text: &[u8]) -> Option<Self> {
        let name_end = text.iter().rposition(|byte| *byte == b')')?;
        let rest = text.get(name_end + 1..)?.trim_ascii();
        let mut stat = Self::default();
        for (number, field) in (3..).zip(rest.split(|byte| *byte == b' ')) {
            match number {
                3 => stat.state = field.first().copied()?,
                20 => stat.threads = decimal(field)?,
                22 => stat.start_time = decimal(field)?,
                28 => {
                    stat.start_stack = decimal(field)?;
                    return Some(stat);
                }
                _ => {}
            }
        }
        None
    }
}

fn decimal(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{SLOT_FREE, SLOT_WORDS};

    #[test]
    fn a_program_may_have_any_name() {
        let line =
            b"7 (a) S 1 (b) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 1 0 2022 0 0 0 0 0 2828 0";

        let stat = ProcessStat::parse(line).unwrap();

        assert_eq!(
            (stat.state, stat.threads, stat.start_time, stat.start_stack),
            (b'R', 1, 2022, 2828)
        );
        assert_eq!(ProcessStat::parse(b"7 (a) R 1"), None);
        assert_eq!(ProcessStat::parse(b""), None);
    }

    #[test]
    fn only_a_pid_without_a_process_is_gone() {
        let path = proc_stat_path(std::process::id());
        let stat = ProcessStat::read(&path).unwrap();
        let parent = std::os::unix::process::parent_id();
        let parent_stat = ProcessStat::read(&proc_stat_path(parent)).unwrap();
        let me = Identity {
            pid: std::process::id(),
            start_time: stat.start_time,
            pid_namespace: 1,
            start_stack: stat.start_stack,
            image: 5,
        };
        let other = Identity {
            pid: parent,
            start_time: parent_stat.start_time,
            start_stack: parent_stat.start_stack,
            ..me
        };

        assert!(!is_gone(&me, &me));
        assert!(!is_gone(&other, &me));
        assert!(
            is_gone(&Identity { image: 6, ..me }, &me),
            "the same process before exec"
        );
        assert!(is_gone(
            &Identity {
                pid: 0x7fff_fff0,
                ..me
            },
            &me
        ));
        assert!(
            is_gone(
                &Identity {
                    start_time: 1,
                    ..other
                },
                &me
            ),
            "the pid was used again"
        );
        assert!(
            is_gone(
                &Identity {
                    start_stack: 1,
                    ..other
                },
                &me
            ),
            "it called exec"
        );
        assert!(
            is_gone(
                &Identity {
                    pid_namespace: 2,
                    ..other
                },
                &me
            ),
            "not visible from here"
        );
    }

    #[test]
    fn a_free_slot_has_no_state() {
        assert_eq!(SLOT_FREE, 0, "a new file is all zeros");
        assert_eq!(SLOT_WORDS * 64, MAX_SLOTS);
    }
}
