//! Random sequences of every call that takes or frees memory, made by three processes under one limit: with kills,
//! forks, threads, resets, memory that passes between them, blocked streams, sizes at the edges of integers, null
//! pointers and invalid handles.
//!
//! After each step nothing changes any more, and the simulated board reports the held memory: it must never exceed
//! the limit, nor the charges. At the end everything must be free. A failing sequence is shortened as far as
//! possible, and printed with its seed.
//!
//! `VGPU_FUZZ_SECONDS` and `VGPU_FUZZ_SEED` set the duration and the seed (`scripts/fuzz` sets both);
//! `VGPU_FUZZ_REPLAY` names a file with one sequence, as it was printed; `VGPU_FUZZ_WITHOUT` lists calls to leave
//! out, separated by commas; `VGPU_FUZZ_VERBOSE` prints every answer, and the held and charged memory after it.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use cuda_sim::Config;

use crate::support::{MIB, Running, World, all_contrary};

/// The container's limit, of the gibibyte that the board's GPU has.
const LIMIT: u64 = 208 * MIB;
const PROCESSES: u64 = 3;

/// One step: a process, and its command (or "kill", or "quit").
#[derive(Debug, Clone, PartialEq, Eq)]
struct Step {
    process: usize,
    line: String,
}

impl fmt::Display for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.process, self.line)
    }
}

/// The kinds of failures after a step. A shorter sequence only counts if it fails in the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    AboveTheLimit,
    NotBooked,
    Died,
    Overcharged,
    NotGivenBack,
}

/// A failure, in words.
#[derive(Debug)]
struct Failure {
    wrong: Wrong,
    told: String,
}

// --- sequences --------------------------------------------------------------------------------------

/// Numbers from a seed (SplitMix64).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        let at = self.below(all.len() as u64);
        all[usize::try_from(at).unwrap()]
    }
}

/// A command.
struct Op {
    name: &'static str,
    /// How often, compared with the others.
    often: u64,
    /// The content that its slot needs ("next:": the slot after its own; "letter:": an export of a process).
    needs: &'static str,
    /// The slot holds that no more.
    ends: bool,
    /// The content of the slot afterwards.
    makes: &'static str,
}

const fn op(
    name: &'static str,
    often: u64,
    needs: &'static str,
    ends: bool,
    makes: &'static str,
) -> Op {
    Op {
        name,
        often,
        needs,
        ends,
        makes,
    }
}

#[rustfmt::skip]
const OPS: &[Op] = &[
    op("alloc", 8, "", false, "pointer"),
    op("free", 6, "pointer", true, ""),
    op("jump", 1, "", false, ""),
    op("pitch", 2, "", false, "pointer"),
    op("managed", 2, "", false, "pointer"),
    op("async", 6, "", false, "pointer"),
    op("async_free", 7, "pointer", true, ""),
    op("pool", 3, "", false, "pool"),
    op("pooled", 5, "next:pool", false, "pooled"),
    op("pooled_free", 4, "pooled", true, ""),
    op("keep", 1, "pool", false, ""),
    op("trim", 2, "pool", false, ""),
    op("pool_destroy", 2, "pool", true, ""),
    op("create", 6, "", false, "created"),
    op("release", 5, "created", true, ""),
    op("map", 6, "created", false, "mapped"),
    op("unmap", 4, "mapped", true, ""),
    op("retain", 3, "mapped", false, "retained"),
    op("release_retained", 3, "retained", true, ""),
    op("array", 2, "", false, "array"),
    op("array_destroy", 2, "array", true, ""),
    op("mipmap", 1, "", false, "mipmap"),
    op("mipmap_destroy", 1, "mipmap", true, ""),
    op("graph", 4, "", false, "graph"),
    op("graph_in_pairs", 2, "", false, "graph"),
    op("more", 2, "graph", false, ""),
    op("clone", 1, "next:graph", false, "graph"),
    op("instantiate", 5, "graph", false, "executable"),
    op("instantiate_upload", 2, "graph", false, "executable"),
    op("upload", 2, "executable", false, ""),
    op("launch", 7, "executable", false, ""),
    op("update", 1, "executable", false, ""),
    op("graph_destroy", 3, "graph", true, ""),
    op("exec_destroy", 3, "executable", true, ""),
    op("graph_trim", 1, "", false, ""),
    op("capture", 2, "", false, "graph"),
    op("export", 4, "pointer", false, "letter:open"),
    op("export_inside", 1, "pointer", false, "letter:open"),
    op("open", 5, "letter:open", false, "imported"),
    op("open_changed", 1, "letter:open", false, "imported"),
    op("close", 3, "imported", true, ""),
    op("offer", 4, "created", false, "letter:accept"),
    op("accept", 5, "letter:accept", false, "created"),
    op("pool_offer", 2, "pool", false, "letter:pool_accept"),
    op("pool_accept", 2, "letter:pool_accept", false, "foreign_pool"),
    op("pointer_offer", 2, "pooled", false, "letter:pointer_accept"),
    op("pointer_accept", 3, "letter:pointer_accept", false, "pooled"),
    op("external", 1, "", false, "external"),
    op("external_destroy", 1, "external", true, ""),
    op("block", 2, "", false, ""),
    op("unblock", 2, "", false, ""),
    op("sync", 4, "", false, ""),
    op("stream_sync", 2, "", false, ""),
    op("context", 2, "", false, "context"),
    op("context_destroy", 2, "context", true, ""),
    op("enter", 1, "context", false, ""),
    op("leave", 2, "", false, ""),
    op("limit", 1, "", false, ""),
    op("reset", 1, "", false, ""),
    op("again", 1, "", false, ""),
    op("module", 3, "", false, "module"),
    op("module_unload", 2, "module", true, ""),
    op("library", 2, "", false, "library"),
    op("library_unload", 2, "library", true, ""),
    op("green", 1, "", false, "green"),
    op("green_destroy", 1, "green", true, ""),
    op("fork", 1, "", false, ""),
    op("kill", 1, "", false, ""),
    op("quit", 1, "", false, ""),
];

#[rustfmt::skip]
/// Calls that the library does not limit yet, with the missing part; `VGPU_FUZZ_ALL=1` includes them.
const NOT_YET: &[(&str, &str)] = &[
];

const SIZES: &[u64] = &[
    0,
    1,
    511,
    512,
    4096,
    MIB - 1,
    MIB,
    2 * MIB,
    2 * MIB,
    3 * MIB + 5,
    8 * MIB,
    16 * MIB,
    16 * MIB,
    32 * MIB,
    33 * MIB + 1,
    64 * MIB,
    100 * MIB,
    LIMIT - 16 * MIB,
    LIMIT,
    LIMIT + 1,
    (1 << 31) - 1,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    (1 << 32) + 1,
    1 << 47,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 511,
    u64::MAX,
];

/// The memory that a sequence expects its processes to hold: a process (or none, for an export), a kind, a slot, and
/// bytes.
type Held = (Option<usize>, &'static str, u64, u64);

/// Makes a sequence, mostly of calls that find what they need if the earlier ones succeeded.
fn sequence(seed: u64) -> Vec<Step> {
    let chance = &mut Chance(seed);
    let all = std::env::var_os("VGPU_FUZZ_ALL").is_some();
    let without = std::env::var("VGPU_FUZZ_WITHOUT").unwrap_or_default();
    let is_known = |op: &Op| {
        let not_yet = !all && NOT_YET.iter().any(|(other, _)| *other == op.name);
        not_yet || without.split(',').any(|other| other == op.name)
    };
    let ops: Vec<_> = OPS.iter().filter(|op| !is_known(op)).collect();
    let mut held: Vec<Held> = Vec::new();
    let length = 20 + chance.below(100);
    (0..length)
        .map(|_| next_step(chance, &ops, &mut held))
        .collect()
}

fn next_step(chance: &mut Chance, ops: &[&Op], held: &mut Vec<Held>) -> Step {
    let process = usize::try_from(chance.below(PROCESSES)).unwrap();
    let is_wild = chance.below(10) == 0;
    // Which slots would do for it.
    let found = |op: &Op, held: &[Held]| -> Vec<(usize, u64, u64)> {
        let (next, kind) = match op.needs.strip_prefix("next:") {
            Some(kind) => (1, kind),
            None => (0, op.needs),
        };
        let mine = |holder: Option<usize>| holder.is_none() || holder == Some(process);
        let all = held.iter().enumerate();
        all.filter(|(_, (holder, what, ..))| *what == kind && mine(*holder))
            .map(|(at, (_, _, slot, bytes))| (at, (slot + 8 - next) % 8, *bytes))
            .collect()
    };
    let possible: Vec<_> = ops
        .iter()
        .filter(|op| is_wild || op.needs.is_empty() || !found(op, held).is_empty())
        .collect();
    let mut at = chance.below(possible.iter().map(|op| op.often).sum());
    let op = possible
        .into_iter()
        .find(|op| {
            let is_it = at < op.often;
            at = at.wrapping_sub(op.often);
            is_it
        })
        .unwrap();
    // Mostly sizes of which some fit; a low bit chooses the stream.
    let mut bytes = match chance.below(16) {
        0 => chance.of(SIZES),
        1 | 2 => chance.below(48 * MIB),
        _ => (1 + chance.below(8)) * 2 * MIB,
    };
    bytes ^= u64::from(chance.below(8) == 0);
    let mut slot = match chance.below(60) {
        0 => 8,
        1 => 9,
        _ => chance.below(8),
    };
    let places = found(op, held);
    if !is_wild && !places.is_empty() {
        let (place, its_slot, its_bytes) = chance.of(&places);
        if !op.needs.starts_with("letter:") {
            slot = its_slot;
        }
        if matches!(op.name, "map" | "offer") {
            bytes = its_bytes;
        }
        // Sometimes again, though it is gone.
        if op.ends && chance.below(8) != 0 {
            held.swap_remove(place);
        }
    }
    if !op.makes.is_empty() && slot < 8 {
        let holder = (!op.makes.starts_with("letter:")).then_some(process);
        if holder.is_some() {
            held.retain(|(other, what, its_slot, _)| {
                (*other, *what, *its_slot) != (holder, op.makes, slot)
            });
        }
        held.push((holder, op.makes, slot, bytes));
    }
    let line = match op.name {
        "kill" | "quit" => {
            held.retain(|(holder, ..)| *holder != Some(process));
            op.name.to_owned()
        }
        name => {
            let thread = if chance.below(16) == 0 { "@" } else { "" };
            format!("{thread}{name} {slot} {bytes} #{}", chance.below(64))
        }
    };
    Step { process, line }
}

// --- runs ---------------------------------------------------------------------------------------------

/// The exports of processes, by the command that opens them.
#[derive(Default)]
struct Letters(Vec<(&'static str, String)>);

impl Letters {
    /// The kind of export that this command opens.
    fn opens(op: &str) -> Option<&'static str> {
        Some(match op.trim_start_matches('@') {
            "export" | "export_inside" => "open",
            "offer" => "accept",
            "pool_offer" => "pool_accept",
            "pointer_offer" => "pointer_accept",
            _ => return None,
        })
    }

    fn keep(&mut self, op: &str, text: &str) {
        if let Some(opens) = Self::opens(op).filter(|_| !text.is_empty()) {
            self.0.push((opens, text.to_owned()));
        }
    }

    /// The line with the letter that it means in it.
    fn written_into(&self, line: &str) -> String {
        let Some((start, number)) = line.split_once('#') else {
            return line.to_owned();
        };
        let op = line.split(' ').next().unwrap_or_default();
        let op = op.trim_start_matches('@').trim_end_matches("_changed");
        let mine: Vec<_> = self.0.iter().filter(|(opens, _)| *opens == op).collect();
        let number: usize = number.parse().unwrap_or(0);
        // The newest first: the older ones are often gone.
        let letter = number
            .checked_rem(mine.len())
            .and_then(|at| mine.iter().rev().nth(at));
        format!("{start}{}", letter.map_or("", |(_, text)| text.as_str()))
    }
}

/// Runs a sequence in a world of its own.
fn run(program: &Path, config: &Config, steps: &[Step], native: bool) -> Result<(), Failure> {
    let world = World::with_limits_on(config, &[LIMIT]);
    let board = world.board();
    // On the contrary driver a second context is smaller than expected.
    let slack = if config.contrary { LIMIT / 2 } else { 0 };
    let start = || {
        let mut command = world.command(program);
        if native {
            command = command.native();
        }
        let mut running = command.start();
        running.step("begin");
        running
    };
    let mut processes: Vec<Option<Running>> = (0..PROCESSES).map(|_| None).collect();
    let mut letters = Letters::default();
    for (number, step) in steps.iter().enumerate() {
        let place = &mut processes[step.process];
        let mut running = place.take().unwrap_or_else(start);
        match step.line.as_str() {
            "kill" => running.kill(),
            "quit" => drop(running.ends()),
            line => {
                let answer = running.step(&letters.written_into(line));
                if std::env::var_os("VGPU_FUZZ_VERBOSE").is_some() {
                    println!("{step}: {answer}");
                }
                let mut words = answer.split(' ');
                let op = words.next().unwrap_or_default().to_owned();
                words.next();
                letters.keep(&op, words.next().unwrap_or_default());
                if answer.is_empty() {
                    let ended = running.ends();
                    return Err(Failure {
                        wrong: Wrong::Died,
                        told: format!("step {number} ({step}): {ended:?}\n{}", world.log()),
                    });
                }
                *place = Some(running);
            }
        }
        if native {
            continue;
        }
        let (held, booked) = (board.used_bytes(0), world.booked(0));
        let failure = |wrong| {
            let told = format!("step {number} ({step}): {held} bytes held, {booked} booked");
            Err(Failure { wrong, told })
        };
        if std::env::var_os("VGPU_FUZZ_VERBOSE").is_some() {
            println!("{held} held, {booked} booked");
        }
        if held > LIMIT {
            return failure(Wrong::AboveTheLimit);
        }
        if booked < held {
            return failure(Wrong::NotBooked);
        }
    }
    // All streams are waited for, and a refusal has the dead looked for: now the books are exact.
    let mut alive = false;
    for place in &mut processes {
        let Some(running) = place else { continue };
        if running.step("sync 0 0").is_empty() {
            let ended = place.take().map(Running::ends);
            let told = format!(
                "when all streams are waited for: {ended:?}\n{}",
                world.log()
            );
            return Err(Failure {
                wrong: Wrong::Died,
                told,
            });
        }
        alive = true;
    }
    // And each process measures the memory that a jump has left in it.
    for running in processes.iter_mut().flatten().filter(|_| !native) {
        running.step(&format!("alloc 0 {LIMIT}"));
    }
    // The host clears the charges of dead processes, because the driver has freed their memory.
    world.bury_the_dead();
    let (held, booked) = (board.used_bytes(0), world.booked(0));
    // An export opened with a changed size holds an unknown amount (docs/decisions/0009).
    let is_vague = steps.iter().any(|step| step.line.contains("open_changed"));
    if alive && !native && !is_vague && booked > held + slack {
        return Err(Failure {
            wrong: Wrong::Overcharged,
            told: format!("when nothing moves: {held} bytes held, {booked} booked"),
        });
    }
    for running in processes.into_iter().flatten() {
        let ended = running.ends();
        if ended.signal.is_some() {
            return Err(Failure {
                wrong: Wrong::Died,
                told: format!("at its end: {ended:?}"),
            });
        }
    }
    if native {
        return Ok(());
    }
    let left = board.used_bytes(0);
    let mut last = start();
    let room = (LIMIT - board.used_bytes(0)) / (2 * MIB) * (2 * MIB);
    let answer = last.step(&format!("alloc 0 {room}"));
    if left != 0 || answer.trim_end() != "alloc 0" {
        let (held, booked) = (board.used_bytes(0), world.booked(0));
        return Err(Failure {
            wrong: Wrong::NotGivenBack,
            told: format!(
                "at the end: {left} bytes left; then {answer:?} for {room}, {held} held, {booked} booked"
            ),
        });
    }
    Ok(())
}

/// The failure of a sequence, unless it is the program's own: one that dies without the library too.
fn failure(program: &Path, config: &Config, steps: &[Step]) -> Option<Failure> {
    let failure = run(program, config, steps, false).err()?;
    let is_native = failure.wrong == Wrong::Died && run(program, config, steps, true).is_err();
    (!is_native).then_some(failure)
}

/// Leaves out steps, ever smaller pieces of them, as long as it fails in the same way.
fn shortened(
    program: &Path,
    config: &Config,
    steps: Vec<Step>,
    wrong: Wrong,
    until: Instant,
) -> Vec<Step> {
    let mut steps = steps;
    let mut piece = steps.len().div_ceil(2);
    loop {
        let mut at = 0;
        let before = steps.len();
        while at < steps.len() && Instant::now() < until {
            let mut fewer = steps.clone();
            fewer.drain(at..(at + piece).min(steps.len()));
            if failure(program, config, &fewer).is_some_and(|found| found.wrong == wrong) {
                steps = fewer;
            } else {
                at += piece;
            }
        }
        if Instant::now() >= until || piece == 1 && steps.len() == before {
            return steps;
        }
        piece = piece.div_ceil(2);
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable)
        .ok()
        .map_or(default, |text| text.parse().expect("a whole number"))
}

/// A sequence, as it was printed.
fn steps_in(text: &str) -> Vec<Step> {
    let step = |line: &str| {
        let (process, line) = line.trim().split_once(' ')?;
        Some(Step {
            process: process.parse().ok()?,
            line: line.to_owned(),
        })
    };
    text.lines().filter_map(step).collect()
}

fn fuzz(config: &Config) {
    let tools = World::with_board(1, config);
    let program = tools.program("fuzz").linked();
    program.build();
    let file = tools.path("fuzz");
    if let Some(path) = std::env::var_os("VGPU_FUZZ_REPLAY") {
        let text = std::fs::read_to_string(path).unwrap();
        let found = failure(&file, config, &steps_in(&text));
        assert!(found.is_none(), "{found:#?}");
        return;
    }
    let seed = number("VGPU_FUZZ_SEED", 1);
    // Without a seed, the same sequences each time, as many as there is time for.
    let seconds = number("VGPU_FUZZ_SECONDS", 0);
    let (time, most) = match seconds {
        0 => (Duration::from_secs(30), 300),
        more => (Duration::from_secs(more), u64::MAX),
    };
    let begun = Instant::now();
    let (mut runs, mut made) = (0, 0);
    while begun.elapsed() < time && runs < most {
        let own = seed.wrapping_add(runs);
        if std::env::var_os("VGPU_FUZZ_VERBOSE").is_some() {
            println!("seed {own}");
        }
        let steps = sequence(own);
        made += steps.len();
        runs += 1;
        let Some(found) = failure(&file, config, &steps) else {
            continue;
        };
        let until = Instant::now() + Duration::from_secs(30);
        let least = shortened(&file, config, steps, found.wrong, until);
        let last = failure(&file, config, &least).unwrap_or(found);
        let lines: Vec<_> = least.iter().map(ToString::to_string).collect();
        panic!(
            "seed {own}: {:?}, {}\n{}",
            last.wrong,
            last.told,
            lines.join("\n")
        );
    }
    println!("{runs} sequences, {made} steps, seeds from {seed}");
}

#[test]
fn fuzz_on_the_default_driver() {
    if all_contrary() {
        // Every board of this run is contrary, and the other test fuzzes that.
        return println!("left out: VGPU_TEST_CONTRARY=1 makes the default driver contrary too");
    }
    fuzz(&Config::default());
}

#[test]
fn fuzz_on_the_contrary_driver() {
    if all_contrary() {
        // Without the variable this test makes the same sequences on the same board.
        return println!("left out: a run without VGPU_TEST_CONTRARY=1 makes the same sequences");
    }
    fuzz(&Config {
        contrary: true,
        ..Config::default()
    });
}

/// Sequences that failed once, and that chance may not make again.
const FAILED_ONCE: &[&str] = &[
    // A reset took the charge of a green context, and the driver kept its memory.
    "2 green 3 0
     2 reset 0 0",
    // Another context of the process outlived the primary one, and with it the green one's charge.
    "0 context 1 0
     0 green 3 0
     0 reset 0 0",
    // There is no room for the primary context at first; the green one, which makes it, took 2 MiB more.
    "1 alloc 0 182452224
     0 sync 0 0
     1 free 0 0
     0 green 3 0
     0 green_destroy 3 0
     0 green 3 0",
    // The end of a context took the charge of imported memory, and the driver kept it.
    "1 external 3 16777216
     1 reset 0 0
     1 external_destroy 3 0",
    "1 context 1 0
     1 enter 1 0
     1 external 3 16777216
     1 context_destroy 1 0
     1 external_destroy 3 0",
    // Exported memory goes with its context.
    "0 alloc 0 2097152
     0 export 0 0
     0 reset 0 0",
    // Regression: a measurement subtracted freed memory, which was still charged, from the charge of modules.
    "0 pitch 2 8388608
     0 block 2 0
     0 async_free 2 8388609
     0 library 6 2097150
     0 array 3 8388608",
    // A measurement charged exported memory once more, as that of modules.
    "0 alloc 3 6291456
     0 @library 3 14680065
     0 export 3 2097153",
    // Regression: a measurement subtracted the overcharge of arrays from the memory that a jump left.
    "0 array 3 8388608
     0 array 4 12388608
     0 jump 3 8388608
     0 alloc 3 2097152
     0 array_destroy 3 0
     0 array_destroy 4 0",
    // A measurement charged opened memory whose maker had freed it, as that of modules.
    "1 alloc 3 12582912
     1 export 3 4194304 #52
     2 open 6 6291456 #0
     2 library 7 10485760
     1 free 3 8388608
     2 alloc 1 29884932",
    // Regression: the memory that a jump left stayed charged after its context was gone.
    "2 jump 0 4194304
     2 context 2 6291456
     2 reset 3 3144936",
    // Regression: a context took over the charge of another one, or of what a jump left.
    "1 context 6 14680064
     1 @jump 3 14680064
     1 context_destroy 6 0",
    // A library stayed charged in a context that was gone.
    "0 library 6 10485760
     0 reset 6 0",
    "0 context 3 0
     0 enter 3 0
     0 library 6 10485761
     0 context_destroy 3 0
     0 library_unload 6 0",
    // A thread without a context could not let the blocked stream go on.
    "0 enter 4 0
     0 @block 4 0
     0 again 0 0",
    // The copies of a library go with their contexts.
    "2 library 1 16777217
     2 reset 0 0",
    "2 context 1 0
     2 enter 1 0
     2 library 1 16777217
     2 managed 4 8388608
     2 context_destroy 1 0",
    // The simulated board counted holds of a dead process for the one in its place.
    "2 quit
     0 kill
     2 alloc 6 10485760 #36
     2 alloc 5 49159183 #60
     0 alloc 1 6291456 #14
     2 export 6 8276968 #43
     1 open 7 16777216 #4
     2 alloc 5 2097152 #51
     2 kill
     2 open 2 14680064 #30
     1 alloc 2 12582912 #43
     1 close 7 12582912 #61
     0 quit
     2 close 2 8388608 #52
     0 open 8 2097152 #35
     1 alloc 5 14680064 #36
     2 alloc 1 6291456 #35",
    // Memory of a killed process that two others had open, of which one ends.
    "1 alloc 0 16777216
     1 export 0 0
     0 open 5 0
     1 kill
     1 async 3 2097152
     2 open 4 0 #42
     2 async 5 6291456
     0 quit
     0 block 0 0
     0 alloc 9 16777216
     0 async 5 14680064
     2 close 4 0",
    // A measurement replaces the charge of a library.
    "2 @library 2 16777216
     2 managed 4 8388608
     2 reset 4 10485760",
];

#[test]
fn sequences_that_failed_once_hold() {
    let tools = World::with_limits(&[LIMIT]);
    let program = tools.program("fuzz").linked();
    program.build();
    for contrary in [false, true] {
        if !contrary && all_contrary() {
            // Every board of this run is contrary.
            continue;
        }
        let config = Config {
            contrary,
            ..Config::default()
        };
        for text in FAILED_ONCE {
            let found = run(&tools.path("fuzz"), &config, &steps_in(text), false).err();
            assert!(found.is_none(), "contrary: {contrary}\n{text}\n{found:#?}");
        }
    }
}
