//! `kill -9` at every labelled step and at moments taken by chance, while others go on: afterwards
//! the region charges what the survivors hold, and no wait ran out.
//!
//! A program of its own, because it loads every processor for seconds: beside it the bounded waits of other tests of
//! this crate would run out.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::print_stderr,
    clippy::let_underscore_must_use,
    clippy::exit,
    reason = "what goes wrong here is a test that fails, and it may say so"
)]

#[path = "../common/mod.rs"]
mod common;

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use common::{Dice, Peer, RegionDir, next_line, patient_command, reply, role};
use vgpu_abi::CRASH_POINTS;
use vgpu_abi::region::{Bounds, Kind, Region, ShareError, SharedKey};

const SURVIVORS: u64 = 3;
const LIMIT: u64 = 200;
/// The part of the second device's limit that may be memory of the device itself.
const RESIDENT: u64 = 90;
const KEYS: u64 = 6;
const DEVICES: usize = 2;

/// Not a test of its own: what the test starts.
#[test]
fn child_process() {
    let Some((role, path)) = role() else { return };
    match role.as_str() {
        "victim" => victim(&path),
        "survivor" => survivor(&path),
        other => panic!("no role {other}"),
    }
}

/// The memory a process holds, by its own account.
#[derive(Default)]
struct Books {
    own: [u64; DEVICES],
    buffers: Vec<(usize, u64, Kind)>,
    /// Past the share of the second device.
    beyond: Vec<u64>,
    /// How often each shared object is held, its device and its bytes.
    shared: BTreeMap<u64, (u32, usize, u64)>,
}

fn work(region: &Region, dice: &mut Dice, books: &mut Books) {
    let device = usize::try_from(dice.below(DEVICES as u64)).unwrap();
    let kind = [Kind::Buffer, Kind::Buffer, Kind::Context, Kind::Module][dice.below(4) as usize];
    let key = dice.below(KEYS);
    match dice.below(17) {
        16 => {
            // A context, and what its runtime then loads.
            region.learn_runtime_bytes(0, 40);
            let whole = Bounds {
                limit: LIMIT,
                resident: u64::MAX,
            };
            if let Ok(charge) = region.reserve_loading(0, 1 + dice.below(60), whole) {
                let (context, rest) = charge.split(1 + dice.below(10));
                region.confirm(context, Kind::Context);
                region.refund(rest);
                books.own[0] += context.bytes();
                books.buffers.push((0, context.bytes(), Kind::Context));
                region.loaded(0);
            }
        }
        0..=5 => {
            let bytes = 1 + dice.below(60);
            let bounds = Bounds {
                limit: LIMIT,
                resident: RESIDENT,
            };
            let reserved = match device {
                0 => region.reserve(device, bytes, LIMIT),
                _ if dice.below(2) == 0 => region.reserve_pageable(device, bytes, bounds),
                _ => region.reserve(device, bytes, bounds),
            };
            match reserved {
                Ok(charge) if dice.below(4) == 0 => region.refund(charge),
                Ok(charge) if charge.is_beyond() => {
                    region.confirm(charge, Kind::Buffer);
                    books.own[device] += bytes;
                    books.beyond.push(bytes);
                }
                Ok(charge) => {
                    region.confirm(charge, kind);
                    books.own[device] += bytes;
                    books.buffers.push((device, bytes, kind));
                }
                Err(refusal) => region.record_oom("cuMemAlloc_v2", device, &refusal, 1),
            }
        }
        6 | 7 if !books.beyond.is_empty() => {
            let which = dice.below(books.beyond.len() as u64) as usize;
            let bytes = books.beyond.swap_remove(which);
            region.release_beyond(1, bytes, Kind::Buffer);
            books.own[1] -= bytes;
        }
        6..=9 => {
            if !books.buffers.is_empty() {
                let which = dice.below(books.buffers.len() as u64) as usize;
                let (device, bytes, kind) = books.buffers.swap_remove(which);
                region.release(device, bytes, kind);
                books.own[device] -= bytes;
            }
        }
        10 => {
            if let Some((device, bytes, kind)) = books.buffers.pop() {
                match region.share(SharedKey([key, 7]), device, bytes, kind) {
                    Ok(()) => {
                        books.own[device] -= bytes;
                        books.shared.insert(key, (1, device, bytes));
                    }
                    Err(ShareError::Exists) => books.buffers.push((device, bytes, kind)),
                    Err(error) => panic!("{error}"),
                }
            }
        }
        11 | 12 => match region.hold(SharedKey([key, 7])) {
            Ok(shared) => {
                let entry = books
                    .shared
                    .entry(key)
                    .or_insert((0, shared.device, shared.bytes));
                entry.0 += 1;
            }
            Err(error) => assert_eq!(error, ShareError::Unknown),
        },
        13 => {
            if let Some(entry) = books.shared.get_mut(&key) {
                region.unhold(SharedKey([key, 7])).unwrap();
                entry.0 -= 1;
                if entry.0 == 0 {
                    books.shared.remove(&key);
                }
            }
        }
        14 => {
            region.reap();
        }
        _ => {
            if dice.below(8) == 0 {
                region.leave();
                *books = Books::default();
            }
        }
    }
}

fn dice() -> Dice {
    let time = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    Dice::new(u64::from(std::process::id()) << 32 ^ u64::from(time.subsec_nanos()))
}

fn victim(path: &Path) {
    let region = Region::open(path).unwrap();
    // As the library does; the survivors clear the slots of the dead at once.
    region.keep_dead_for(10_000_000);
    let (mut dice, mut books) = (dice(), Books::default());
    loop {
        work(&region, &mut dice, &mut books);
    }
}

/// Works until it is asked, tells what it holds, and goes on when it is asked again.
fn survivor(path: &Path) {
    let region = Region::open(path).unwrap();
    let (mut dice, mut books) = (dice(), Books::default());
    let (ask, asked) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        while let Some(line) = next_line() {
            ask.send(line).unwrap();
        }
        std::process::exit(0);
    });
    loop {
        work(&region, &mut dice, &mut books);
        std::thread::sleep(Duration::from_micros(dice.below(200)));
        if asked.try_recv().is_ok() {
            let shared: Vec<_> = books
                .shared
                .iter()
                .map(|(key, (_, device, bytes))| format!("{key}:{device}:{bytes}"))
                .collect();
            reply(&format!(
                "{} {} {} {}",
                books.own[0],
                books.own[1],
                books.beyond.iter().sum::<u64>(),
                shared.join(",")
            ));
            asked.recv().unwrap();
        }
    }
}

fn start_victim(place: &RegionDir, crash_at: Option<&str>) -> Child {
    let mut command = patient_command("child_process", "victim", &place.path());
    if let Some(at) = crash_at {
        command.env("VGPU_CRASH_AT", at);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Whether it killed itself in time.
fn dies_by_itself(child: &mut Child, within: Duration) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < within {
        if let Some(status) = child.try_wait().unwrap() {
            assert_eq!(status.signal(), Some(libc::SIGKILL), "{status:?}");
            return true;
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    false
}

fn kill(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Until all of them have a slot, for a while.
fn wait_for_slots(place: &RegionDir, victims: &[Child]) {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(2) {
        let slots = place.snapshot().slots;
        if victims
            .iter()
            .all(|victim| slots.iter().any(|slot| slot.pid == victim.id()))
        {
            return;
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

fn stop(survivors: &mut [Peer]) -> Vec<String> {
    for survivor in survivors.iter_mut() {
        survivor.send("stop");
    }
    survivors.iter_mut().map(Peer::answer).collect()
}

fn go_on(survivors: &mut [Peer]) {
    for survivor in survivors {
        survivor.send("go on");
    }
}

/// All stop; the dead are reaped; the ledger must say what the survivors say.
fn compare(place: &RegionDir, survivors: &mut [Peer], after: &str) {
    let mut own = [0; DEVICES];
    let mut beyond = 0;
    let mut shared = BTreeMap::new();
    for answer in stop(survivors) {
        let mut words = answer.split(' ');
        for sum in own.iter_mut().chain([&mut beyond]) {
            *sum += words.next().unwrap().parse::<u64>().unwrap();
        }
        for object in words
            .next()
            .unwrap_or("")
            .split(',')
            .filter(|text| !text.is_empty())
        {
            let numbers: Vec<u64> = object.split(':').map(|n| n.parse().unwrap()).collect();
            shared.insert(
                numbers[0],
                (usize::try_from(numbers[1]).unwrap(), numbers[2]),
            );
        }
    }
    let region = Region::open(&place.path()).unwrap();
    region.reap();
    for (device, own) in own.into_iter().enumerate() {
        let of_device = shared.values().filter(|(on, _)| *on == device);
        let expected = own + of_device.map(|(_, bytes)| bytes).sum::<u64>();
        assert_eq!(
            region.used(device),
            expected,
            "device {device} after {after}"
        );
        assert_eq!(region.pending(device), 0, "device {device} after {after}");
        assert!(expected <= LIMIT, "device {device} after {after}");
    }
    assert_eq!(region.oversubscribed(1), beyond, "after {after}");
    assert!(region.used(1) - beyond <= RESIDENT, "after {after}");
    drop(region);
    let snapshot = place.snapshot();
    assert_eq!(snapshot.counters.waits_ran_out, 0, "after {after}");
    let mut left: Vec<_> = snapshot
        .shared
        .iter()
        .map(|object| object.key.0[0])
        .collect();
    left.sort_unstable();
    assert_eq!(
        left,
        shared.into_keys().collect::<Vec<_>>(),
        "after {after}"
    );
    assert!(
        snapshot.slots.iter().all(|slot| slot.alive),
        "after {after}"
    );
    go_on(survivors);
}

#[test]
fn after_kills_anywhere_charges_equal_what_the_living_hold() {
    let begin = Instant::now();
    let place = RegionDir::new();
    let start = || Peer::start(patient_command("child_process", "survivor", &place.path()));
    let mut survivors: Vec<_> = (0..SURVIVORS).map(|_| start()).collect();
    let mut dice = Dice::new(7);
    let (mut by_label, mut by_chance) = (0, 0);

    for round in [1, 2] {
        for point in CRASH_POINTS {
            // To come to where it reaps, a process needs a dead slot that it does not take for
            // itself, and that no other process clears first.
            let alone = point.starts_with("reap:") || point.starts_with("keep:");
            let at = format!(
                "{point}:{}",
                if round == 1 || alone {
                    1
                } else {
                    1 + dice.below(5)
                }
            );
            let mut died = false;
            for _attempt in 0..20 {
                if alone {
                    stop(&mut survivors);
                }
                // Two killed at a moment taken by chance.
                let mut any = [start_victim(&place, None), start_victim(&place, None)];
                std::thread::sleep(Duration::from_micros(3_000 + dice.below(6_000)));
                if alone {
                    wait_for_slots(&place, &any);
                }
                any.iter_mut().for_each(kill);
                by_chance += any.len();
                let mut labelled = start_victim(&place, Some(&at));
                died = dies_by_itself(&mut labelled, Duration::from_millis(500));
                if alone {
                    go_on(&mut survivors);
                }
                if died {
                    by_label += 1;
                    break;
                }
                kill(&mut labelled);
                by_chance += 1;
            }
            assert!(died, "no process came to {at}");
            compare(&place, &mut survivors, &at);
        }
    }

    eprintln!(
        "{} kills, {by_label} of them at labelled steps, in {:.1?}",
        by_label + by_chance,
        begin.elapsed()
    );
    assert!(by_label + by_chance >= 200);
}
