//! Several real processes on one region: death, fork, exec, lost descriptors, races.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Dice, Peer, RegionDir, command, next_line, patient_command, reply, role};
use vgpu_abi::layout::{self, LOCK_DEVICES, LOCK_SLOTS};
use vgpu_abi::region::{Kind, Region, SharedKey};

/// Not a test of its own: what the tests start.
#[test]
fn child_process() {
    let Some((role, path)) = role() else { return };
    match role.as_str() {
        "peer" => peer(&path),
        "racer" => racer(&path),
        "threads" => racing_threads(&path),
        other => panic!("no role {other}"),
    }
}

fn start(place: &RegionDir) -> Peer {
    Peer::start(command("processes::child_process", "peer", &place.path()))
}

fn now_ns() -> u64 {
    static BEGIN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    // Later than any tick before, whatever the tests do.
    static TICKS: AtomicU64 = AtomicU64::new(0);
    let ticks = TICKS.fetch_add(1, Ordering::Relaxed);
    let begin = BEGIN.get_or_init(Instant::now);
    u64::try_from(begin.elapsed().as_nanos()).unwrap() + (ticks + 1) * 1_000_000_000
}

fn close_everything() {
    // SAFETY: the descriptors of the standard streams stay; what the region does when its own is
    // closed under it is what is tested.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
}

/// Does what it is told, line by line, and answers each line.
fn peer(path: &Path) {
    let region = Region::open(path).unwrap();
    if std::env::var_os("VGPU_TEST_EXEC").is_some() {
        reply("exec");
    }
    while let Some(line) = next_line() {
        let mut words = line.split(' ');
        let word = words.next().unwrap();
        let numbers: Vec<u64> = words.map(|n| n.parse().unwrap()).collect();
        let n = |index: usize| numbers[index];
        let d = |index: usize| usize::try_from(n(index)).unwrap();
        let answer = match word {
            "join" => format!("{:?}", region.join().map(|seat| seat.slot)),
            "charge" => {
                region.charge(d(0), n(1), Kind::Buffer);
                String::new()
            }
            "pend" => format!("{:?}", region.reserve(d(0), n(1), 0).is_ok()),
            "reserve" => {
                let begin = Instant::now();
                let got = region.reserve(d(0), n(1), n(2));
                if let Ok(charge) = got {
                    region.confirm(charge, Kind::Buffer);
                }
                let took = begin.elapsed().as_millis();
                format!(
                    "{:?} {took}",
                    got.map(|_| ()).map_err(|refusal| refusal.why)
                )
            }
            "release" => {
                region.release(d(0), n(1), Kind::Buffer);
                String::new()
            }
            "share" => format!(
                "{:?}",
                region.share(SharedKey([n(0), 0]), d(1), n(2), Kind::Buffer)
            ),
            "hold" => format!("{:?}", region.hold(SharedKey([n(0), 0])).map(|s| s.bytes)),
            "unhold" => format!("{:?}", region.unhold(SharedKey([n(0), 0]))),
            "used" => region.used(d(0)).to_string(),
            "mine" => region.used_by_me(d(0)).to_string(),
            "reap" => region.reap().to_string(),
            "keep" => {
                region.keep_dead_for(n(0) * 1_000_000);
                String::new()
            }
            "dead" => format!(
                "{} {}",
                region.dead().map(|dead| dead.pid).max().unwrap_or(0),
                region.dead_bytes(0)
            ),
            "let-go" => {
                let dead: Vec<_> = region.dead().collect();
                format!("{:?}", dead.iter().map(|dead| region.let_go(dead)).max())
            }
            "fork-away" => fork_away(&region).to_string(),
            "leave" => {
                region.leave();
                String::new()
            }
            "tick" => region.tick(now_ns()).to_string(),
            "close-everything" => {
                close_everything();
                String::new()
            }
            "open-and-close" => {
                drop(std::fs::File::open(path).unwrap());
                String::new()
            }
            "fork" => in_a_fork(|| {
                region.charge(d(0), n(1), Kind::Buffer);
                let seat = region.join().unwrap();
                reply(&format!("{} {}", seat.slot, region.used_by_me(d(0))));
                // The parent says when.
                next_line();
            }),
            "fork-under-load" => fork_under_load(&region),
            "exec" => {
                let error = command("processes::child_process", "peer", path)
                    .env("VGPU_TEST_EXEC", "1")
                    .exec();
                panic!("exec: {error}")
            }
            other => panic!("no word {other}"),
        };
        reply(&answer);
    }
}

/// Runs `child` in a forked child, which then ends without a destructor, and waits for it.
fn in_a_fork(child: impl FnOnce()) -> String {
    // SAFETY: the child runs `child`, writes with plain writes and leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        child();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just made, and writes its status to an integer.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    format!("status {status}")
}

/// A forked child that does nothing until it is killed.
fn fork_away(region: &Region) -> i32 {
    let (mut ready, mut tell) = std::io::pipe().unwrap();
    // SAFETY: the child makes system calls only.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        region.after_fork_in_child();
        tell.write_all(b"1").unwrap();
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
    }
    drop(tell);
    // Until the child has recorded that it holds what its parent holds.
    ready.read_exact(&mut [0]).unwrap();
    pid
}

/// Threads that hold our in-process locks most of the time, and a fork in the midst of it: the
/// child must find no lock held by a thread that it does not have.
fn fork_under_load(region: &Region) -> String {
    /// Ends the threads also when the test fails.
    struct Ends<'a>(&'a std::sync::atomic::AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    let done = std::sync::atomic::AtomicBool::new(false);
    region.charge(0, 100, Kind::Buffer);
    std::thread::scope(|scope| {
        let _ends = Ends(&done);
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    region.reserve(0, 1, 100).unwrap_err();
                }
            });
        }
        let mut slowest = 0;
        for _ in 0..40 {
            let begin = Instant::now();
            let status = in_a_fork(|| {
                let room = region.reserve(1, 1, 1000);
                let full = region.reserve(0, 1, 100);
                let right =
                    room.is_ok() && full.is_err_and(|r| r.why == vgpu_abi::region::Why::Full);
                if !right {
                    eprintln!("{room:?} {full:?}");
                    std::process::abort();
                }
            });
            assert_eq!(status, "status 0");
            slowest = slowest.max(begin.elapsed().as_millis());
        }
        slowest.to_string()
    })
}

fn slot_of(place: &RegionDir, pid: u32) -> Option<vgpu_abi::host::SlotSnapshot> {
    place
        .snapshot()
        .slots
        .into_iter()
        .find(|slot| slot.pid == pid)
}

#[test]
fn host_sees_living_processes_and_frees_a_killed_ones_memory() {
    let place = RegionDir::new();
    let (mut one, mut two) = (start(&place), start(&place));
    one.ask("charge 0 100");
    two.ask("charge 0 7");
    let pid = one.pid();
    let seen = slot_of(&place, pid).unwrap();
    assert_eq!((seen.alive, seen.host_pid), (true, Some(pid)));
    assert_eq!(place.snapshot().used_bytes(0), 107);

    one.kill();

    assert!(!slot_of(&place, pid).unwrap().alive);
    assert_eq!(
        place.snapshot().used_bytes(0),
        7,
        "the dead are not counted"
    );
    assert!(
        two.ask("reserve 0 100 110").starts_with("Ok"),
        "the process that needs the room gets it"
    );
    assert_eq!(two.ask("used 0"), "107");
    assert_eq!(slot_of(&place, pid), None);
    assert_eq!(place.snapshot().counters.waits_ran_out, 0);
}

#[test]
fn process_killed_before_confirm_leaves_nothing_pending() {
    let place = RegionDir::new();
    let (mut one, mut two) = (start(&place), start(&place));
    one.ask("pend 0 100");
    one.kill();

    assert!(two.ask("reserve 0 100 100").starts_with("Ok"));
    assert_eq!(place.snapshot().counters.waits_ran_out, 0);
}

#[test]
fn a_dead_process_keeps_its_charges_until_the_driver_lets_go() {
    let place = RegionDir::new();
    let (mut one, mut two) = (start(&place), start(&place));
    two.ask("keep 60000");
    one.ask("charge 0 100");
    let pid = one.pid();
    one.kill();

    assert!(two.ask("reserve 0 50 110").starts_with("Err(Full)"));
    assert_eq!(two.ask("dead"), format!("{pid} 100"));
    assert_eq!(two.ask("reap"), "0");
    // A new process takes another slot.
    let mut three = start(&place);
    three.ask("keep 60000");
    assert_eq!(three.ask("join"), "Ok(2)");
    assert_eq!(three.ask("used 0"), "100");

    assert_eq!(two.ask("let-go"), "Some(true)");
    assert_eq!(two.ask("dead"), "0 0");
    assert!(two.ask("reserve 0 50 110").starts_with("Ok"));
    assert_eq!(place.snapshot().counters.waits_ran_out, 0);
}

#[test]
fn a_dead_process_keeps_its_charges_for_a_bounded_time() {
    let place = RegionDir::new();
    let (mut one, mut two) = (start(&place), start(&place));
    two.ask("keep 1");
    one.ask("charge 0 100");
    one.kill();

    assert_eq!(two.ask("reap"), "0", "it is seen to be dead");
    std::thread::sleep(Duration::from_millis(5));

    assert_eq!(two.ask("reap"), "1");
    assert_eq!(two.ask("used 0"), "0");
}

#[test]
fn a_dead_process_without_memory_is_cleared_at_once() {
    let place = RegionDir::new();
    let (mut one, mut two) = (start(&place), start(&place));
    two.ask("keep 60000");
    one.ask("charge 0 100");
    one.ask("release 0 100");
    one.kill();

    assert_eq!(two.ask("reap"), "1");
}

#[test]
fn pending_charge_of_a_dead_process_counts_as_given() {
    let place = RegionDir::new();
    let (mut one, mut two) = (start(&place), start(&place));
    two.ask("keep 60000");
    one.ask("pend 0 100");
    one.kill();

    assert!(two.ask("reserve 0 50 110").starts_with("Err(Full)"));
    assert_eq!(two.ask("used 0"), "100");
    assert_eq!(two.ask("let-go"), "Some(true)");
    assert_eq!(two.ask("used 0"), "0");
    assert_eq!(place.snapshot().counters.waits_ran_out, 0);
}

#[test]
fn the_shared_object_of_a_dead_process_keeps_its_slot() {
    let place = RegionDir::new();
    let (mut one, mut two) = (start(&place), start(&place));
    two.ask("keep 60000");
    one.ask("charge 0 100");
    assert_eq!(one.ask("share 5 0 100"), "Ok(())");
    one.kill();

    assert_eq!(two.ask("reap"), "0");
    assert_eq!(two.ask("used 0"), "100");
    assert_eq!(two.ask("let-go"), "Some(true)");
    assert_eq!(two.ask("used 0"), "0");
}

#[test]
fn a_forked_child_keeps_its_parents_charges() {
    let place = RegionDir::new();
    let (mut one, mut two) = (start(&place), start(&place));
    two.ask("keep 1");
    one.ask("charge 0 100");
    let child: i32 = one.ask("fork-away").parse().unwrap();
    one.kill();

    assert_eq!(two.ask("reap"), "0");
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(two.ask("reap"), "0");
    assert_eq!(two.ask("let-go"), "Some(false)");
    assert_eq!(two.ask("used 0"), "100");
    // SAFETY: ends the child that this test made.
    unsafe { libc::kill(child, libc::SIGKILL) };
    let begin = Instant::now();
    while two.ask("let-go") == "Some(false)" && begin.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(1));
    }

    assert_eq!(two.ask("used 0"), "0");
}

#[test]
fn the_last_holder_of_a_shared_object_carries_the_charge() {
    let place = RegionDir::new();
    let (mut one, mut two) = (start(&place), start(&place));
    one.ask("charge 0 100");
    assert_eq!(one.ask("share 5 0 60"), "Ok(())");
    assert_eq!(two.ask("hold 5"), "Ok(60)");

    one.kill();
    assert_eq!(two.ask("reap"), "1");
    assert_eq!(
        two.ask("used 0"),
        "60",
        "its own went, the shared one stands"
    );
    assert_eq!(two.ask("mine 0"), "0");
    assert_eq!(two.ask("unhold 5"), "Ok(true)");

    assert_eq!(two.ask("used 0"), "0");
}

#[test]
fn a_shared_object_goes_with_its_last_dead_holder() {
    let place = RegionDir::new();
    let (mut one, mut two, mut three) = (start(&place), start(&place), start(&place));
    one.ask("charge 0 60");
    one.ask("share 5 0 60");
    two.ask("hold 5");

    one.kill();
    two.kill();
    assert_eq!(three.ask("used 0"), "60");
    assert_eq!(three.ask("reap"), "2");

    assert_eq!(three.ask("used 0"), "0");
    assert_eq!(place.snapshot().shared, []);
}

#[test]
fn forked_child_takes_its_own_slot_and_leaves_its_parents() {
    let place = RegionDir::new();
    let (mut parent, mut other) = (start(&place), start(&place));
    parent.ask("charge 0 100");
    let slot = slot_of(&place, parent.pid()).unwrap().slot;

    let child = parent.ask("fork 0 7");
    let (child_slot, child_mine) = child.split_once(' ').unwrap();
    assert_ne!(child_slot, slot.to_string());
    assert_eq!(child_mine, "7", "the parent's charges are the parent's");
    assert_eq!(other.ask("used 0"), "107");
    assert_eq!(other.ask("reap"), "0", "both live");
    parent.send("");
    assert_eq!(parent.answer(), "status 0");

    assert_eq!(other.ask("reap"), "1");
    assert_eq!(other.ask("used 0"), "100");
    assert!(
        slot_of(&place, parent.pid()).unwrap().alive,
        "the child's end took no lock of it"
    );
    assert_eq!(parent.ask("mine 0"), "100");
}

#[test]
fn fork_beside_busy_threads_leaves_the_child_no_lock() {
    let place = RegionDir::new();
    let mut parent = Peer::start(patient_command(
        "processes::child_process",
        "peer",
        &place.path(),
    ));

    let slowest: u64 = parent.ask("fork-under-load").parse().unwrap();

    eprintln!("slowest child {slowest} ms");
    assert_eq!(place.snapshot().counters.waits_ran_out, 0);
}

#[test]
fn a_program_that_closes_every_descriptor_keeps_its_slot() {
    let place = RegionDir::new();
    let (mut one, mut two) = (start(&place), start(&place));
    one.ask("charge 0 100");

    one.ask("close-everything");
    assert!(
        !slot_of(&place, one.pid()).unwrap().alive,
        "the lock is lost"
    );
    assert_eq!(two.ask("reap"), "0", "its process still runs");
    let mut three = start(&place);
    three.ask("join");
    assert_ne!(
        slot_of(&place, three.pid()).unwrap().slot,
        slot_of(&place, one.pid()).unwrap().slot
    );
    one.ask("tick");

    assert!(slot_of(&place, one.pid()).unwrap().alive);
    assert_eq!(place.snapshot().counters.locks_retaken, 1);
    assert!(one.ask("reserve 0 1 100").starts_with("Err(Full)"));
    assert_eq!(two.ask("used 0"), "100");
}

#[test]
fn program_that_closes_every_descriptor_is_still_limited() {
    let place = RegionDir::new();
    let mut one = start(&place);
    one.ask("charge 0 100");

    one.ask("close-everything");

    assert!(one.ask("reserve 0 1 100").starts_with("Err(Full)"));
    assert!(one.ask("reserve 0 1 101").starts_with("Ok"));
    one.ask("close-everything");
    assert_eq!(one.ask("share 1 0 50"), "Ok(())");
    assert_eq!(one.ask("used 0"), "101");
}

#[test]
fn program_that_opens_and_closes_the_file_keeps_its_slot() {
    let place = RegionDir::new();
    let (mut one, mut two) = (start(&place), start(&place));
    one.ask("charge 0 100");

    one.ask("open-and-close");
    assert!(
        !slot_of(&place, one.pid()).unwrap().alive,
        "the lock is lost"
    );
    assert_eq!(two.ask("reap"), "0");
    one.ask("tick");

    assert!(slot_of(&place, one.pid()).unwrap().alive);
    assert_eq!(place.snapshot().counters.locks_retaken, 1);
}

#[test]
fn another_program_that_opens_and_closes_the_file_does_no_harm() {
    let place = RegionDir::new();
    let mut one = start(&place);
    one.ask("charge 0 100");

    drop(std::fs::File::open(place.path()).unwrap());

    assert!(slot_of(&place, one.pid()).unwrap().alive);
}

#[test]
fn exec_ends_what_the_program_before_it_held() {
    let place = RegionDir::new();
    let (mut one, mut two) = (start(&place), start(&place));
    one.ask("charge 0 100");
    let pid = one.pid();

    assert_eq!(one.ask("exec"), "exec");
    assert_eq!(one.ask("used 0"), "100", "not reaped yet");
    assert_eq!(
        two.ask("reap"),
        "1",
        "the same pid and start time, another program"
    );
    one.ask("charge 0 7");

    assert_eq!(
        (pid, one.pid()),
        (one.pid(), slot_of(&place, pid).unwrap().pid)
    );
    assert_eq!(two.ask("used 0"), "7");
}

#[test]
fn a_program_after_exec_clears_its_former_slot_itself() {
    let place = RegionDir::new();
    let mut one = start(&place);
    one.ask("charge 0 100");

    assert_eq!(one.ask("exec"), "exec");
    assert!(one.ask("reserve 0 50 100").starts_with("Ok"));

    assert_eq!(one.ask("used 0"), "50");
}

/// A reaper in another pid namespace meets a process that lost its lock.
#[test]
fn process_whose_slot_was_taken_returns_with_its_real_charges() {
    let place = RegionDir::new();
    let (mut one, mut two) = (start(&place), start(&place));
    one.ask("charge 0 100");
    one.ask("charge 1 30");
    one.ask("share 5 0 60");
    one.ask("share 6 0 10");
    two.ask("hold 6");
    let slot = slot_of(&place, one.pid()).unwrap().slot;
    one.ask("close-everything");
    let namespace = std::mem::offset_of!(layout::RegionLayout, slots)
        + slot * size_of::<layout::Slot>()
        + std::mem::offset_of!(layout::SlotHead, pid_namespace);
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(place.path())
        .unwrap();
    file.write_all_at(&1_u64.to_ne_bytes(), namespace as u64)
        .unwrap();

    assert_eq!(two.ask("reap"), "1");
    assert_eq!(two.ask("used 0"), "10");
    one.ask("tick");

    assert_eq!(
        two.ask("used 0"),
        "100",
        "30 of its own, 60 that it shares, 10 that both hold"
    );
    assert_eq!(
        (one.ask("mine 0"), one.ask("mine 1")),
        ("30".to_owned(), "30".to_owned())
    );
    assert_eq!(place.snapshot().counters.rejoined, 1);
    assert_eq!(one.ask("unhold 5"), "Ok(true)");
    assert_eq!(one.ask("unhold 6"), "Ok(false)");
    one.ask("release 0 30");
    assert_eq!(two.ask("used 0"), "10");
}

#[test]
fn process_finds_out_about_its_taken_slot_at_its_next_charge() {
    let place = RegionDir::new();
    let (mut one, mut two) = (start(&place), start(&place));
    one.ask("charge 0 100");
    one.ask("close-everything");
    let slot = slot_of(&place, one.pid()).unwrap().slot;
    let namespace = std::mem::offset_of!(layout::RegionLayout, slots)
        + slot * size_of::<layout::Slot>()
        + std::mem::offset_of!(layout::SlotHead, pid_namespace);
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(place.path())
        .unwrap();
    file.write_all_at(&1_u64.to_ne_bytes(), namespace as u64)
        .unwrap();
    two.ask("reap");
    two.ask("leave");
    two.ask("charge 0 5");

    one.ask("release 0 40");
    assert_eq!(two.ask("used 0"), "65");
    assert!(one.ask("reserve 0 36 100").starts_with("Err(Full)"));

    assert_eq!(two.ask("mine 0"), "5");
}

fn hold_lock(file: &std::fs::File, at: u64) {
    let lock = libc::flock {
        l_type: i16::try_from(libc::F_WRLCK).unwrap(),
        l_whence: 0,
        l_start: i64::try_from(at).unwrap(),
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the kernel reads one `struct flock` from the place given, which is one.
    let taken = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    assert_eq!(taken, 0);
}

#[test]
fn wait_for_a_lock_never_released_refuses_and_is_counted() {
    let place = RegionDir::new();
    let mut one = start(&place);
    one.ask("charge 0 100");
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(place.path())
        .unwrap();
    hold_lock(&file, LOCK_DEVICES);

    let answer = one.ask("reserve 0 1 100");

    let (why, took) = answer.rsplit_once(' ').unwrap();
    assert_eq!(why, "Err(TimedOut)");
    let took: u64 = took.parse().unwrap();
    assert!(took >= 95, "{took} ms");
    assert_eq!(place.snapshot().counters.waits_ran_out, 1);
    assert!(
        one.ask("reserve 0 1 101").starts_with("Ok"),
        "what fits needs no lock"
    );
    assert!(
        one.ask("reserve 1 1 101").starts_with("Ok"),
        "another device has its own"
    );
    drop(file);
    assert!(one.ask("reserve 0 1 101").starts_with("Err(Full)"));
}

#[test]
fn a_pending_charge_is_waited_for_and_then_refused() {
    let place = RegionDir::new();
    let (mut one, mut two) = (start(&place), start(&place));
    one.ask("pend 0 60");

    assert!(two.ask("reserve 0 60 100").starts_with("Err(TimedOut)"));
    assert!(
        two.ask("reserve 0 101 100").starts_with("Err(Full)"),
        "that never fits"
    );

    assert_eq!(place.snapshot().counters.waits_ran_out, 1);
}

#[test]
fn with_all_slots_in_use_a_process_is_refused() {
    let place = RegionDir::new();
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(place.path())
        .unwrap();
    for slot in 0..layout::MAX_SLOTS as u64 {
        hold_lock(&file, LOCK_SLOTS + slot);
    }
    let mut one = start(&place);

    assert_eq!(one.ask("join"), "Err(NoFreeSlot)");
    assert!(one.ask("reserve 0 1 100").starts_with("Err(Closed)"));
    drop(file);

    assert!(one.ask("reserve 0 1 100").starts_with("Ok"));
    assert!(place.snapshot().counters.slots_full >= 2);
}

const RACERS: usize = 8;
const RACE_LIMIT: u64 = 100;

/// Truth beside the ledger: what all racers hold together, and the most that it ever was.
fn race_truth(path: &Path) -> memmap2::MmapRaw {
    let truth = path.with_file_name("truth");
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(truth)
        .unwrap();
    memmap2::MmapOptions::new()
        .len(4096)
        .map_raw(&file)
        .unwrap()
}

fn truth_words(map: &memmap2::MmapRaw) -> &[AtomicU64; 4] {
    // SAFETY: the mapping is a page of zeros or counts, alive as long as the reference.
    unsafe { &*map.as_ptr().cast() }
}

fn racer(path: &Path) {
    let region = Region::open(path).unwrap();
    let map = race_truth(path);
    let [held, most, let_in, begun] = truth_words(&map);
    region.join().unwrap();
    begun.fetch_add(1, Ordering::SeqCst);
    while begun.load(Ordering::SeqCst) < RACERS as u64 {
        std::thread::yield_now();
    }
    let mut dice = Dice::new(u64::from(std::process::id()) << 20);
    for _ in 0..3_000 {
        let bytes = 1 + dice.below(60);
        if let Ok(charge) = region.reserve(0, bytes, RACE_LIMIT) {
            most.fetch_max(
                held.fetch_add(bytes, Ordering::SeqCst) + bytes,
                Ordering::SeqCst,
            );
            let_in.fetch_add(1, Ordering::Relaxed);
            if dice.below(4) == 0 {
                held.fetch_sub(bytes, Ordering::SeqCst);
                region.refund(charge);
                continue;
            }
            region.confirm(charge, Kind::Buffer);
            if dice.below(8) == 0 {
                std::thread::yield_now();
            }
            held.fetch_sub(bytes, Ordering::SeqCst);
            region.release(0, bytes, Kind::Buffer);
        }
    }
}

#[test]
fn racing_processes_never_exceed_the_limit() {
    let place = RegionDir::new();
    std::fs::write(place.path().with_file_name("truth"), [0; 4096]).unwrap();
    let map = race_truth(&place.path());
    let start = || {
        command("processes::child_process", "racer", &place.path())
            .stdout(std::process::Stdio::null())
            .spawn()
    };
    let racers: Vec<_> = (0..RACERS).map(|_| start().unwrap()).collect();
    for mut racer in racers {
        assert!(racer.wait().unwrap().success());
    }

    let [held, most, let_in, _begun] = truth_words(&map);
    let (most, let_in) = (most.load(Ordering::SeqCst), let_in.load(Ordering::SeqCst));
    eprintln!("{let_in} let in, at most {most} of {RACE_LIMIT} held");
    assert!(most <= RACE_LIMIT);
    assert_eq!(held.load(Ordering::SeqCst), 0);
    let region = Region::open(&place.path()).unwrap();
    region.join().unwrap();
    region.reap();
    assert_eq!((region.used(0), region.pending(0)), (0, 0));
}

fn racing_threads(path: &Path) {
    let region = Region::open(path).unwrap();
    let most = AtomicU64::new(0);

    std::thread::scope(|scope| {
        for _thread in 0..4 {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    if let Ok(charge) = region.reserve(0, 30, 100) {
                        region.confirm(charge, Kind::Buffer);
                        most.fetch_max(region.used_by_me(0), Ordering::Relaxed);
                        region.release(0, 30, Kind::Buffer);
                    }
                }
            });
        }
    });

    reply(&format!(
        "{} {} {} {}",
        most.into_inner(),
        region.used(0),
        region.pending(0),
        region.used_by_me(0)
    ));
}

#[test]
fn threads_of_one_process_never_exceed_the_limit() {
    let place = RegionDir::new();
    let mut threads = Peer::start(patient_command(
        "processes::child_process",
        "threads",
        &place.path(),
    ));

    let answer = threads.answer();

    let (most, left) = answer.split_once(' ').unwrap();
    assert!((30..=90).contains(&most.parse().unwrap()), "{answer}");
    assert_eq!(left, "0 0 0");
    assert_eq!(place.snapshot().counters.waits_ran_out, 0);
}
