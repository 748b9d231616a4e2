//! Memory of pools that processes of a container name to each other is charged once, as long as any of them
//! holds it.

use crate::support::{CONTEXT, MIB, Running, World};

/// Room beside two contexts.
const ROOM: u64 = 256;

struct Pair {
    world: World,
    maker: Option<Running>,
    taker: Running,
}

impl Pair {
    fn begin() -> Self {
        let world = World::with_room(ROOM * MIB + CONTEXT);
        let start = || world.program("offers").linked().start();
        let (maker, taker) = (Some(start()), start());
        let mut pair = Self {
            world,
            maker,
            taker,
        };
        pair.makes("ready");
        pair.makes("pool");
        pair.takes("ready");
        let pool = pair.makes("offer_pool");
        pair.takes(&format!("take_pool 0 0 {pool}"));
        pair
    }

    #[track_caller]
    fn step(&mut self, is_maker: bool, step: &str) -> String {
        let program = match &mut self.maker {
            Some(maker) if is_maker => maker,
            _ => &mut self.taker,
        };
        let answer = program.step(step);
        let (held, booked) = (self.world.board().used_bytes(0), self.world.booked(0));
        assert!(
            held <= self.world.limit(0) && booked >= held,
            "after {step}: {} MiB held, {} booked\n{}",
            held / MIB,
            booked / MIB,
            self.world.log()
        );
        let (_, answer) = answer.split_once(' ').unwrap();
        answer.to_owned()
    }

    /// The maker runs a step, which succeeds; returns its output.
    #[track_caller]
    fn makes(&mut self, step: &str) -> String {
        let answer = self.step(true, step);
        let told = answer.strip_prefix('0');
        told.unwrap_or_else(|| panic!("{step}: {answer}\n{}", self.world.log()))
            .trim()
            .to_owned()
    }

    #[track_caller]
    fn takes(&mut self, step: &str) {
        assert_eq!(self.step(false, step), "0", "{step}\n{}", self.world.log());
    }

    /// Names a piece of the maker's to the taker.
    #[track_caller]
    fn passes(&mut self, slot: usize) {
        let name = self.makes(&format!("offer {slot}"));
        self.takes(&format!("take {slot} 0 {name}"));
    }

    fn kill_the_maker(&mut self) {
        self.maker.take().unwrap().kill();
        self.world.bury_the_dead();
    }

    /// The charges other than contexts, in MiB.
    fn booked(&self, contexts: u64) -> u64 {
        (self.world.booked(0) - contexts * CONTEXT) / MIB
    }
}

#[test]
fn memory_of_a_pool_that_two_processes_use_is_charged_once() {
    let mut pair = Pair::begin();
    pair.makes("draw 0 200");
    pair.passes(0);

    assert_eq!(pair.booked(2), 200);
    assert_eq!(pair.step(false, "alloc 0 60"), "2");

    pair.takes("free 0");
    assert_eq!(pair.booked(2), 200);
    pair.makes("free 0");
    pair.makes("sync");
    pair.makes("pool_end");
    assert_eq!(pair.booked(2), 0);
}

#[test]
fn memory_of_a_pool_outlives_its_maker_in_the_books() {
    let mut pair = Pair::begin();
    pair.makes("draw 0 200");
    pair.passes(0);
    pair.kill_the_maker();

    assert_eq!(pair.booked(1), 200);
    assert_eq!(pair.step(false, "alloc 0 100"), "2");

    pair.takes("free_async 0");
    pair.takes("sync");
    pair.takes("alloc 0 250");
}

#[test]
fn an_import_that_a_blocked_stream_frees_stays_charged() {
    let mut pair = Pair::begin();
    pair.makes("draw 0 200");
    pair.passes(0);
    pair.kill_the_maker();
    pair.takes("block");

    pair.takes("free_blocked 0");
    assert_eq!(pair.step(false, "alloc 0 100"), "2");

    pair.takes("open");
    pair.takes("sync");
    pair.takes("alloc 0 250");
}

#[test]
fn memory_that_its_maker_frees_first_stays_charged_to_its_taker() {
    let mut pair = Pair::begin();
    pair.makes("draw 0 200");
    pair.passes(0);

    pair.makes("free 0");
    pair.makes("pool_end");
    assert_eq!(pair.step(true, "alloc 0 100"), "2");

    pair.takes("free 0");
    pair.makes("alloc 0 200");
}

#[test]
fn a_pool_is_destroyed_while_its_memory_is_named_to_others() {
    let mut pair = Pair::begin();
    pair.makes("draw 0 200");
    pair.passes(0);

    pair.makes("pool_end");
    assert_eq!(pair.booked(2), 200);
    pair.makes("free 0");
    pair.makes("sync");
    assert_eq!(pair.step(true, "alloc 0 100"), "2");
    pair.takes("free 0");
    pair.makes("alloc 0 256");
}

#[test]
fn memory_imported_twice_is_held_until_its_last_free() {
    let mut pair = Pair::begin();
    pair.makes("draw 0 200");
    let name = pair.makes("offer 0");
    assert_eq!(pair.makes("offer 0"), name);
    pair.takes(&format!("take 0 0 {name}"));
    pair.takes(&format!("take 1 0 {name}"));
    pair.kill_the_maker();

    pair.takes("free 0");
    assert_eq!(pair.booked(1), 200);
    assert_ne!(pair.step(false, "free 0"), "0");
    assert_eq!(pair.booked(1), 200);
    pair.takes("free 1");
    assert_eq!(pair.booked(1), 0);
}

#[test]
fn many_small_pieces_that_are_named_are_charged_as_their_pool() {
    let mut pair = Pair::begin();
    for slot in 0..100 {
        pair.makes(&format!("draw {slot} 0.01"));
        pair.passes(slot);
    }
    let held = pair.world.board().used_bytes(0);
    assert_eq!(pair.world.booked(0), held);

    for slot in 0..100 {
        pair.takes(&format!("free {slot}"));
        pair.makes(&format!("free {slot}"));
    }
    pair.makes("pool_end");
    assert_eq!(pair.booked(2), 0);
}

#[test]
fn a_reset_ends_what_was_named_and_imported() {
    for resets_maker in [true, false] {
        let mut pair = Pair::begin();
        pair.makes("draw 0 100");
        pair.passes(0);
        pair.step(resets_maker, "reset");
        pair.step(!resets_maker, "reset");
        assert_eq!((pair.booked(0), pair.world.board().used_bytes(0)), (0, 0));
    }
}

#[test]
fn a_piece_without_a_place_in_the_shared_table_gets_no_name() {
    let mut pair = Pair::begin();
    pair.makes("draw 0 100");
    pair.world.fill_the_shared_table();

    let answer = pair.step(true, "offer 0");

    assert!(!answer.starts_with("0 "), "{answer}");
    assert!(answer.ends_with(&"0".repeat(128)), "{answer}");
    pair.makes("free 0");
}

#[test]
fn threads_that_export_and_free_at_once_leave_no_charge() {
    let mut pair = Pair::begin();
    pair.makes("race 100");
    pair.makes("draw 0 8");
    pair.passes(0);
    pair.takes("free 0");
    pair.makes("free 0");
    pair.makes("sync");
    pair.makes("pool_end");
    let held = pair.world.board().used_bytes(0) / MIB;
    let counters = pair.world.snapshot().counters;
    assert_eq!(
        pair.booked(2),
        0,
        "{held} MiB held, {counters:?}\n{}",
        pair.world.log()
    );
}

#[test]
fn null_pointers_and_foreign_names_are_the_drivers_to_refuse() {
    let mut pair = Pair::begin();
    pair.makes("draw 0 100");
    for step in ["offer_null 0", "offer 7"] {
        assert!(!pair.step(true, step).starts_with("0"), "{step}");
    }
    let nothing = format!("take 0 0 {}", "ab".repeat(64));
    for step in ["take_null 0", &nothing] {
        assert_ne!(pair.step(false, step), "0", "{step}");
    }
    pair.makes("free 0");
    pair.makes("pool_end");
    assert_eq!(pair.booked(2), 0);
}
