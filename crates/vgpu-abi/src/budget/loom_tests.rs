//! The reserve algorithm and the change of hands of a slot, in every order that loom can think of
//! up to a bound on pre-emptions. Processes are threads, record locks are flags, death is a flag.

use std::cell::Cell;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use loom::thread;

use super::*;
use crate::layout::{ComputeUse, SlotHead};

/// A region with one device.
struct Model {
    heads: Vec<SlotHead>,
    cells: Vec<DeviceUse>,
    /// The record locks of the slots.
    held: Vec<AtomicBool>,
    /// Which pids are dead.
    dead: Vec<AtomicBool>,
    in_use: AtomicU64,
    high_water: AtomicU32,
    shared: AtomicU64,
    device_lock: AtomicBool,
    shared_lock: AtomicBool,
    waits_end: bool,
    /// The memory that a process whose runtime loads was seen to take.
    learned: AtomicU64,
    /// The driver still holds the memory of the dead.
    kept: AtomicBool,
}

fn word() -> AtomicU64 {
    AtomicU64::new(0)
}

fn head() -> SlotHead {
    SlotHead {
        state: AtomicU32::new(0),
        pid: AtomicU32::new(0),
        generation: word(),
        start_time: word(),
        pid_namespace: word(),
        start_stack: word(),
        joined_unix_ns: word(),
        name: std::array::from_fn(|_| loom::sync::atomic::AtomicU8::new(0)),
        hook_calls: std::array::from_fn(|_| word()),
        image: word(),
        gone_since_ns: word(),
        abilities: word(),
        reserved: std::array::from_fn(|_| word()),
    }
}

fn cells() -> DeviceUse {
    DeviceUse {
        confirmed: word(),
        contexts: word(),
        modules: word(),
        oversubscribed: word(),
        loading_since_ns: word(),
        away: word(),
        loading_bytes: word(),
        reserved_0: std::array::from_fn(|_| word()),
        pending: word(),
        reserved_1: std::array::from_fn(|_| word()),
        compute: crate::credit::model::compute_use(),
    }
}

impl Model {
    fn new(slots: usize) -> Self {
        Self {
            heads: (0..slots).map(|_| head()).collect(),
            cells: (0..slots).map(|_| cells()).collect(),
            held: (0..slots).map(|_| AtomicBool::new(false)).collect(),
            dead: (0..slots + 1).map(|_| AtomicBool::new(false)).collect(),
            in_use: word(),
            high_water: AtomicU32::new(0),
            shared: word(),
            device_lock: AtomicBool::new(false),
            shared_lock: AtomicBool::new(false),
            waits_end: false,
            learned: word(),
            kept: AtomicBool::new(false),
        }
    }

    /// Every slot used already, as after a join without a race.
    fn with_slots(slots: usize) -> Self {
        let model = Self::new(slots);
        model.in_use.store((1 << slots) - 1, Ordering::SeqCst);
        model.high_water.store(slots as u32, Ordering::SeqCst);
        model
    }

    fn charged_now(&self) -> u64 {
        charged(self, 0)
    }

    fn confirm(&self, slot: usize, bytes: u64) {
        confirm(&self.cells[slot], 0, bytes, Kind::Buffer).unwrap();
    }

    fn release(&self, slot: usize, bytes: u64) {
        release(&self.cells[slot], 0, bytes, Kind::Buffer).unwrap();
    }

    fn reserve(&self, slot: usize, bytes: u64, limit: u64) -> Result<(), Refused> {
        reserve(
            self,
            SlotTag { slot, tag: 0 },
            0,
            bytes,
            limit.into(),
            false,
        )
        .map(|_| ())
    }

    /// As the library does it: the common case first.
    fn reserve_at_once_or_not(&self, slot: usize, bytes: u64, limit: u64) -> Result<(), Refused> {
        let place = SlotTag { slot, tag: 0 };
        if reserve_at_once(self, place, 0, bytes, limit.into()) {
            return Ok(());
        }
        self.reserve(slot, bytes, limit)
    }
}

fn take_lock(lock: &AtomicBool) {
    while lock
        .compare_exchange(false, true, Ordering::SeqCst, Ordering::SeqCst)
        .is_err()
    {
        thread::yield_now();
    }
}

impl Charges for Model {
    fn in_use(&self, word: usize) -> Option<u64> {
        (word == 0).then(|| self.in_use.load(Ordering::SeqCst))
    }

    fn cells(&self, slot: usize, device: usize) -> Option<&DeviceUse> {
        (device == 0).then(|| self.cells.get(slot)).flatten()
    }

    fn shared(&self, _device: usize) -> Option<&AtomicU64> {
        Some(&self.shared)
    }

    fn expected(&self, _device: usize, _since_ns: u64, _guess: u64) -> u64 {
        self.learned.load(Ordering::SeqCst)
    }
}

impl Outside for Model {
    type Wait = u32;

    fn begin_wait(&self) -> u32 {
        0
    }

    fn enter(&self, _device: usize, _wait: &mut u32) -> bool {
        take_lock(&self.device_lock);
        true
    }

    fn leave(&self, _device: usize) {
        self.device_lock.store(false, Ordering::SeqCst);
    }

    fn enter_shared(&self, _wait: &mut u32) -> bool {
        take_lock(&self.shared_lock);
        true
    }

    fn leave_shared(&self) {
        self.shared_lock.store(false, Ordering::SeqCst);
    }

    fn reap(&self, _wait: &mut u32) -> usize {
        0
    }

    fn pause(&self, wait: &mut u32) -> bool {
        *wait += 1;
        thread::yield_now();
        // Time passes, and what was written becomes visible; loom would let us read the old values
        // for ever. A read-modify-write reads the last one.
        for cells in &self.cells {
            cells.pending.fetch_add(0, Ordering::SeqCst);
            cells.confirmed.fetch_add(0, Ordering::SeqCst);
            cells.oversubscribed.fetch_add(0, Ordering::SeqCst);
        }
        !self.waits_end || *wait < 2
    }
}

impl Slots for Model {
    fn slot_count(&self) -> usize {
        self.heads.len()
    }

    fn device_count(&self) -> usize {
        1
    }

    fn head(&self, slot: usize) -> Option<&SlotHead> {
        self.heads.get(slot)
    }

    fn in_use_word(&self, _slot: usize) -> Option<&AtomicU64> {
        Some(&self.in_use)
    }

    fn high_water(&self) -> &AtomicU32 {
        &self.high_water
    }

    fn try_lock(&self, slot: usize) -> bool {
        self.held[slot]
            .compare_exchange(false, true, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    fn unlock(&self, slot: usize) {
        self.held[slot].store(false, Ordering::SeqCst);
    }

    fn is_gone(&self, owner: &Identity) -> bool {
        self.dead[owner.pid as usize].load(Ordering::SeqCst)
    }

    fn keeps(&self, _slot: usize, _head: &SlotHead) -> bool {
        self.kept.load(Ordering::SeqCst)
    }

    fn has_family(&self, _slot: usize) -> bool {
        false
    }

    fn let_go_of_shared(&self, _slot: usize) -> bool {
        true
    }

    fn keep_compute(&self, _device: usize, _of: &ComputeUse) {}

    fn keep_counts(&self, _slot: usize) {}
}

fn check(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 5_000;
    // A bound for the few that would go on for hours; loom looks at the clock at checkpoints only.
    builder.max_duration = Some(std::time::Duration::from_secs(10));
    builder.checkpoint_interval = 100;
    let rounds = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = rounds.clone();
    let begin = std::time::Instant::now();
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        test();
    });
    let rounds = rounds.load(std::sync::atomic::Ordering::Relaxed);
    eprintln!("{rounds} orders in {:.1?}", begin.elapsed());
}

/// Truth beside the charges: what the driver holds. A plain count under loom's own lock would order
/// the threads; this one is read only after all have ended, or added to in one step.
#[derive(Clone)]
struct Driver(std::sync::Arc<std::sync::Mutex<(u64, u64)>>);

impl Driver {
    fn new() -> Self {
        Self(std::sync::Arc::new(std::sync::Mutex::new((0, 0))))
    }

    fn give(&self, bytes: u64) {
        let mut held = self.0.lock().unwrap();
        held.0 += bytes;
        held.1 = held.1.max(held.0);
    }

    fn held(&self) -> u64 {
        self.0.lock().unwrap().0
    }

    fn most(&self) -> u64 {
        self.0.lock().unwrap().1
    }
}

/// Two processes reserve 6 and 5 bytes of 10 at once: one of them gets its bytes, and the other is told of those.
fn race_for_the_last_room(
    preemptions: usize,
    reserve: fn(&Model, usize, u64, u64) -> Result<(), Refused>,
) {
    check(preemptions, move || {
        let model = Arc::new(Model::with_slots(2));
        let driver = Driver::new();
        let ask = |slot: usize, bytes: u64| {
            let (model, driver) = (model.clone(), driver.clone());
            thread::spawn(move || {
                let got = reserve(&model, slot, bytes, 10);
                if got.is_ok() {
                    driver.give(bytes);
                    model.confirm(slot, bytes);
                }
                got
            })
        };
        let (one, two) = (ask(0, 6), ask(1, 5));
        let (one, two) = (one.join().unwrap(), two.join().unwrap());

        assert!(driver.most() <= 10);
        assert_eq!(model.charged_now(), driver.held());
        match (one, two) {
            (Ok(()), Err(Refused::Full { used: 6 })) => {}
            (Err(Refused::Full { used: 5 }), Ok(())) => {}
            other => panic!("no order of the two explains {other:?}"),
        }
    });
}

#[test]
fn of_two_racing_reserves_one_gets_the_last_room() {
    race_for_the_last_room(3, Model::reserve);
}

#[test]
fn of_two_that_first_try_the_common_case_one_gets_the_last_room() {
    race_for_the_last_room(2, Model::reserve_at_once_or_not);
}

#[test]
fn two_that_both_fit_are_both_let_in() {
    check(3, || {
        let model = Arc::new(Model::with_slots(2));
        let ask = |slot: usize, bytes: u64| {
            let model = model.clone();
            thread::spawn(move || {
                let got = model.reserve(slot, bytes, 10);
                model.confirm(slot, bytes);
                got
            })
        };
        let (one, two) = (ask(0, 5), ask(1, 5));

        assert_eq!((one.join().unwrap(), two.join().unwrap()), (Ok(()), Ok(())));
        assert_eq!(model.charged_now(), 10);
    });
}

#[test]
fn request_refused_by_the_driver_refuses_no_other() {
    check(3, || {
        let model = Arc::new(Model::with_slots(2));
        let refunder = {
            let model = model.clone();
            thread::spawn(move || {
                // Either the other process is in already, and this one is refused, or this one is let in, refused by
                // the driver, and must not have kept the other process out.
                if model.reserve(0, 6, 10).is_ok() {
                    refund(&model.cells[0], 0, 6).unwrap();
                }
            })
        };
        let other = model.reserve(1, 6, 10);
        if other.is_ok() {
            model.confirm(1, 6);
        }
        refunder.join().unwrap();

        assert_eq!(other, Ok(()));
        assert_eq!(model.charged_now(), 6);
    });
}

#[test]
fn three_that_race_never_exceed_the_limit() {
    check(1, || {
        let model = Arc::new(Model::with_slots(3));
        let driver = Driver::new();
        let ask = |slot: usize| {
            let (model, driver) = (model.clone(), driver.clone());
            thread::spawn(move || {
                let got = model.reserve(slot, 4, 10).is_ok();
                if got {
                    driver.give(4);
                    model.confirm(slot, 4);
                }
                got
            })
        };
        let (one, two) = (ask(0), ask(1));
        let three = model.reserve(2, 4, 10).is_ok();
        if three {
            driver.give(4);
            model.confirm(2, 4);
        }
        let got = [one.join().unwrap(), two.join().unwrap(), three];

        assert!(driver.most() <= 10);
        assert_eq!(
            got.iter().filter(|got| **got).count(),
            2,
            "two of three fit"
        );
        assert_eq!(model.charged_now(), 8);
    });
}

/// One frees while another takes what was freed; the third asks for what fits at every moment. A
/// sum that held the charge on both sides would refuse it.
#[test]
fn charge_that_moves_between_processes_is_counted_once() {
    check(3, || {
        let model = Arc::new(Model::with_slots(3));
        model.reserve(0, 5, 10).unwrap();
        model.confirm(0, 5);
        let frees = {
            let model = model.clone();
            thread::spawn(move || {
                model.release(0, 5);
                // Only after the free, so that at every moment at most five are used.
                model.reserve(1, 5, 10).unwrap();
                model.confirm(1, 5);
            })
        };
        let third = model.reserve(2, 5, 10);
        frees.join().unwrap();

        assert_eq!(
            third,
            Ok(()),
            "at no moment were more than five of ten used by others"
        );
    });
}

#[test]
fn a_sum_that_a_refusal_stands_on_is_of_one_moment() {
    check(4, || {
        let model = Arc::new(Model::with_slots(2));
        model.reserve(0, 5, 10).unwrap();
        model.confirm(0, 5);
        let moves = {
            let model = model.clone();
            thread::spawn(move || {
                model.release(0, 5);
                charge(&model.cells[1], 0, 5, Kind::Buffer).unwrap();
            })
        };
        let sum = confirmed_at_one_moment(&*model, 0);
        moves.join().unwrap();

        assert!(
            matches!(sum, Some(0 | 5)),
            "five bytes move, and {sum:?} were seen"
        );
    });
}

#[test]
fn wait_that_times_out_is_refused_and_refunds_its_request() {
    check(3, || {
        let mut model = Model::with_slots(2);
        model.waits_end = true;
        let model = Arc::new(model);
        model.reserve(0, 6, 10).unwrap();

        // The driver of slot 0 does not answer.
        let refused = model.reserve(1, 6, 10);

        assert_eq!(refused, Err(Refused::TimedOut { used: 0 }));
        assert_eq!(model.charged_now(), 6);
    });
}

fn me(pid: u32) -> Identity {
    Identity {
        pid,
        ..Identity::default()
    }
}

/// Joins as `pid`, charges, and tells its place.
fn join_and_charge(model: &Model, pid: u32, bytes: u64) -> Option<SlotTag> {
    let (slot, generation) = claim(model, &me(pid))?;
    let place = SlotTag {
        slot,
        tag: tag_of(generation),
    };
    reserve(model, place, 0, bytes, 10.into(), false).ok()?;
    confirm(&model.cells[slot], place.tag, bytes, Kind::Buffer).ok()?;
    Some(place)
}

fn die(model: &Model, pid: u32, slot: usize) {
    model.dead[pid as usize].store(true, Ordering::SeqCst);
    model.unlock(slot);
}

#[test]
fn reaper_takes_no_live_charge_of_a_reused_slot() {
    check(3, || {
        let model = Arc::new(Model::new(2));
        let first = join_and_charge(&model, 1, 6).unwrap();
        let dies_and_is_followed = {
            let model = model.clone();
            thread::spawn(move || {
                die(&model, 1, first.slot);
                // Takes the slot of the dead or another one; the reaper may be in the midst of it.
                claim(&*model, &me(2)).map(|(slot, generation)| {
                    let place = SlotTag {
                        slot,
                        tag: tag_of(generation),
                    };
                    charge(&model.cells[slot], place.tag, 4, Kind::Buffer).unwrap();
                    slot
                })
            })
        };
        for slot in 0..2 {
            reap_slot(&*model, slot, &me(0));
        }
        let slot = dies_and_is_followed
            .join()
            .unwrap()
            .expect("one of two slots is to be had");
        let second = bytes_in(model.cells[slot].confirmed.load(Ordering::SeqCst));

        assert_eq!(second, 4, "the live charge stands");
        reap_slot(&*model, 0, &me(0));
        reap_slot(&*model, 1, &me(0));
        assert_eq!(model.charged_now(), 4, "and the dead one is gone");
    });
}

#[test]
fn two_that_join_at_once_take_two_slots() {
    check(3, || {
        let model = Arc::new(Model::new(2));
        let other = {
            let model = model.clone();
            thread::spawn(move || join_and_charge(&model, 1, 4).unwrap())
        };
        let one = join_and_charge(&model, 0, 5).unwrap();
        let other = other.join().unwrap();

        assert_ne!(one.slot, other.slot);
        assert_eq!(model.charged_now(), 9);
    });
}

#[test]
fn joining_process_and_reserving_process_see_each_other() {
    check(3, || {
        let model = Arc::new(Model::new(2));
        let other = {
            let model = model.clone();
            thread::spawn(move || join_and_charge(&model, 1, 6).is_some())
        };
        let one = join_and_charge(&model, 0, 6).is_some();
        let other = other.join().unwrap();

        assert_eq!(
            usize::from(one) + usize::from(other),
            1,
            "one of the two fits"
        );
        assert_eq!(model.charged_now(), 6);
    });
}

#[test]
fn two_reapers_clear_a_dead_slot_once() {
    check(3, || {
        let model = Arc::new(Model::new(1));
        let dead = join_and_charge(&model, 0, 6).unwrap();
        let before = model.heads[0].generation.load(Ordering::SeqCst);
        die(&model, 0, dead.slot);
        let other = {
            let model = model.clone();
            thread::spawn(move || reap_slot(&*model, 0, &me(1)))
        };
        let one = reap_slot(&*model, 0, &me(1));
        let other = other.join().unwrap();

        assert!(one ^ other || (one | other));
        assert_eq!(model.heads[0].generation.load(Ordering::SeqCst), before + 1);
        assert_eq!(model.charged_now(), 0);
    });
}

#[test]
fn dead_process_stays_charged_until_the_driver_frees() {
    check(3, || {
        let model = Arc::new(Model::new(2));
        let driver = Driver::new();
        let dead = join_and_charge(&model, 1, 6).unwrap();
        driver.give(6);
        model.kept.store(true, Ordering::SeqCst);
        die(&model, 1, dead.slot);
        let lets_go = {
            let (model, driver) = (model.clone(), driver.clone());
            thread::spawn(move || {
                reap_slot(&*model, 0, &me(0));
                driver.0.lock().unwrap().0 -= 6;
                model.kept.store(false, Ordering::SeqCst);
                reap_slot(&*model, 0, &me(0))
            })
        };
        let next = join_and_charge(&model, 2, 6);
        if next.is_some() {
            driver.give(6);
        }
        lets_go.join().unwrap();

        assert!(driver.most() <= 10, "the driver held {}", driver.most());
        reap_slot(&*model, 0, &me(0));
        assert_eq!(model.charged_now(), if next.is_some() { 6 } else { 0 });
    });
}

#[test]
fn pending_charge_of_a_dead_process_is_always_seen() {
    check(3, || {
        let model = Arc::new(Model::with_slots(2));
        model.reserve(0, 6, 10).unwrap();
        let marks = {
            let model = model.clone();
            thread::spawn(move || confirm_for_the_dead(&model.cells[0]))
        };
        let other = model.reserve(1, 6, 10);
        marks.join().unwrap();

        assert!(other.is_err(), "six of ten are charged: {other:?}");
        assert_eq!(model.charged_now(), 6);
    });
}

#[test]
fn an_owner_whose_slot_was_taken_away_changes_nothing_in_it() {
    check(3, || {
        // It lost its lock and is not visible to the reaper, which takes it for dead.
        let model = Arc::new(Model::new(1));
        let victim = join_and_charge(&model, 0, 6).unwrap();
        die(&model, 0, victim.slot);
        let reaper = {
            let model = model.clone();
            thread::spawn(move || {
                reap_slot(&*model, 0, &me(1));
                let place = join_and_charge(&model, 1, 3).unwrap();
                assert_eq!(place.slot, 0);
            })
        };
        let released = release(&model.cells[0], victim.tag, 6, Kind::Buffer);
        let charged = charge(&model.cells[0], victim.tag, 5, Kind::Buffer);
        reaper.join().unwrap();

        let _either = (released, charged);
        assert_eq!(
            model.charged_now(),
            3,
            "the new owner's charge and nothing else"
        );
    });
}

#[test]
fn room_learned_for_a_loading_runtime_is_kept_or_refused() {
    check(3, || {
        let model = Arc::new(Model::with_slots(2));
        let one = Arc::clone(&model);
        let loads = thread::spawn(move || {
            let place = SlotTag { slot: 0, tag: 0 };
            let whole = Bounds {
                limit: 10,
                resident: u64::MAX,
            };
            let Ok(reserved) = reserve_loading(&*one, place, 0, Need::of(1), whole, 5) else {
                return 0;
            };
            // The context itself; the rest of what was reserved is kept by the mark from here on.
            confirm(&one.cells[0], 0, 1, Kind::Context).unwrap();
            refund(&one.cells[0], 0, reserved - 1).unwrap();
            // The charge for the runtime's loading, and its settlement.
            charge(&one.cells[0], 0, 5, Kind::Context).unwrap();
            one.cells[0].loading_since_ns.store(0, Ordering::SeqCst);
            6
        });
        // The other one has just been measured, and takes what it can get.
        model.learned.store(6, Ordering::SeqCst);
        let took = if model.reserve(1, 5, 10).is_ok() {
            model.confirm(1, 5);
            5
        } else {
            0
        };
        let loaded = loads.join().unwrap();

        assert!(took + loaded <= 10, "{took} and {loaded} of 10");
    });
}

#[test]
fn a_charge_on_its_way_into_the_shared_table_is_never_unseen() {
    check(3, || {
        let model = Arc::new(Model::with_slots(2));
        model.reserve(0, 6, 10).unwrap();
        model.confirm(0, 6);
        let shares = {
            let model = model.clone();
            thread::spawn(move || {
                take_lock(&model.shared_lock);
                // As `sum_up` does: a new count with the new sum.
                model.shared.store(ONE_COUNT | 6, Ordering::SeqCst);
                model.release(0, 6);
                model.shared_lock.store(false, Ordering::SeqCst);
            })
        };
        let fits = Cell::new(None);
        match model.reserve(1, 5, 10) {
            Err(Refused::Full { used }) => fits.set(Some(used)),
            other => panic!("six of ten are used: {other:?}"),
        }
        shares.join().unwrap();

        assert_eq!(fits.get(), Some(6), "once, not twice");
    });
}

/// The share of the device is 10, the limit 20: what the driver gives of the device itself never
/// exceeds the one, nor what it gives at all the other.
impl Model {
    fn within(&self, slot: usize, bytes: u64, pageable: bool) -> Result<Room, Refused> {
        let bounds = Bounds {
            limit: 20,
            resident: 10,
        };
        reserve(self, SlotTag { slot, tag: 0 }, 0, bytes, bounds, pageable)
    }

    fn release_beyond(&self, slot: usize, bytes: u64) {
        not_beyond(&self.cells[slot], 0, bytes).unwrap();
        self.release(slot, bytes);
    }
}

#[test]
fn of_two_racing_reserves_one_gets_the_share_and_one_is_paged() {
    check(3, || {
        let model = Arc::new(Model::with_slots(2));
        let ask = |slot: usize, bytes: u64| {
            let model = model.clone();
            thread::spawn(move || {
                let got = model.within(slot, bytes, true);
                model.confirm(slot, bytes);
                got
            })
        };
        let (one, two) = (ask(0, 6), ask(1, 5));
        let got = (one.join().unwrap(), two.join().unwrap());

        assert!(
            matches!(
                got,
                (Ok(Room::Device), Ok(Room::Beyond)) | (Ok(Room::Beyond), Ok(Room::Device))
            ),
            "{got:?}"
        );
        let past = beyond(&*model, 0);
        assert_eq!(model.charged_now(), 11);
        assert!(past == 5 || past == 6);
    });
}

/// One frees what is paged and takes memory of the device in its place, while another one asks for
/// memory of the device: a sum from which the freed bytes were taken twice would let both in.
#[test]
fn end_of_paging_makes_no_room_on_the_device() {
    check(3, || {
        let model = Arc::new(Model::with_slots(3));
        let device = Driver::new();
        assert_eq!(model.within(2, 8, true), Ok(Room::Device));
        model.confirm(2, 8);
        device.give(8);
        assert_eq!(model.within(0, 6, true), Ok(Room::Beyond));
        model.confirm(0, 6);
        let frees = {
            let (model, device) = (model.clone(), device.clone());
            thread::spawn(move || {
                model.release_beyond(0, 6);
                if model.within(0, 2, false).is_ok() {
                    device.give(2);
                    model.confirm(0, 2);
                }
            })
        };
        if model.within(1, 2, false).is_ok() {
            device.give(2);
            model.confirm(1, 2);
        }
        frees.join().unwrap();

        assert_eq!(device.most(), 10, "one of the two, and never both");
        assert_eq!(beyond(&*model, 0), 0);
        assert_eq!(model.charged_now(), 10);
    });
}

#[test]
fn paged_and_unpaged_memory_together_keep_the_limit() {
    check(2, || {
        let model = Arc::new(Model::with_slots(3));
        assert_eq!(model.within(2, 10, false), Ok(Room::Device));
        model.confirm(2, 10);
        let ask = |slot: usize| {
            let model = model.clone();
            thread::spawn(move || {
                let got = model.within(slot, 6, true);
                if got.is_ok() {
                    model.confirm(slot, 6);
                }
                got
            })
        };
        let (one, two) = (ask(0), ask(1));
        let got = [one.join().unwrap(), two.join().unwrap()];

        assert!(got.contains(&Ok(Room::Beyond)), "{got:?}");
        assert!(got.contains(&Err(Refused::Full { used: 16 })), "{got:?}");
        assert_eq!((model.charged_now(), beyond(&*model, 0)), (16, 6));
    });
}
