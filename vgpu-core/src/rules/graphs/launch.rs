//! Launches of graphs with memory nodes: what a launch reserves, and which graphs may have lost their memory to
//! it.

use super::taking::*;
use super::*;

/// A launch of a graph with memory nodes.
#[derive(Clone, Copy)]
pub(crate) struct Launching {
    run: Run,
    taken: TakenForCall,
    /// The first of the devices on which it gets memory again.
    anew: Option<Anew>,
}

/// A device on which a graph gets memory.
#[derive(Clone, Copy)]
struct Anew {
    device: usize,
    bytes: u64,
    /// The memory that graphs used before.
    used: u64,
    /// Launches on the device that had begun and ended.
    launches: u32,
}

impl Anew {
    fn begin(accounts: &Accounts, memory: &GraphMemory, device: usize, bytes: u64) -> Self {
        Self {
            device,
            bytes,
            used: figures(accounts, memory, device).map_or(u64::MAX, |figures| figures.used),
            // Relaxed: threads that launch at the same time see that they are not alone.
            launches: memory.launches.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// The launch has come back: has the graph got memory that no other graph had? The driver then reports that
    /// graphs use that much more than before. Where other launches ran meanwhile, that is not known.
    fn is_own(&self, accounts: &Accounts) -> bool {
        let Some(memory) = accounts.holdings().graphs.get(self.device) else {
            return false;
        };
        // Relaxed: as above.
        let launches = memory.launches.fetch_add(1, Ordering::Relaxed);
        was_alone(self.launches, launches)
            && self.bytes > 0
            && figures(accounts, memory, self.device)
                .is_some_and(|now| now.used.saturating_sub(self.used) >= self.bytes)
    }
}

/// Whether no other launch ran on the device from a launch's begin to its end. Each launch counts once at its begin and
/// once at its end: `begun` and `ended` are the counts before these. So an odd count at its begin is another launch's.
fn was_alone(begun: u32, ended: u32) -> bool {
    begun & 1 == 0 && ended == begun.wrapping_add(1)
}

/// The stream of a graph's launch, short enough to be kept beside the graph.
pub(super) fn fold(stream: u64) -> u16 {
    let folded = stream ^ stream >> 16 ^ stream >> 32 ^ stream >> 48;
    u16::try_from(folded & 0xffff).unwrap_or(0)
}

/// Differs when a graph that was launched before may have lost its memory to others.
pub(super) fn mark(memory: &GraphMemory, keeps: bool, is_own: bool) -> u32 {
    // Relaxed here and below: a trim or a launch at the same time is the host's own race, and is settled.
    let losses = Losses {
        all: (memory.trims.load(Ordering::Relaxed))
            .wrapping_add(memory.moves.load(Ordering::Relaxed)),
        frees: memory.frees.load(Ordering::Relaxed),
        shared: memory.shared_moves.load(Ordering::Relaxed),
    };
    losses.mark(keeps, is_own)
}

/// How often graphs of a device may have lost memory.
#[derive(Clone, Copy)]
struct Losses {
    /// All graphs.
    all: u32,
    /// Graphs that keep what they allocate: the program has freed such memory.
    frees: u32,
    /// Graphs whose memory other graphs may have had before.
    shared: u32,
}

impl Losses {
    /// A number that differs after each loss that counts for such a graph. Never 0, which is the mark of a graph that was
    /// not launched yet.
    fn mark(self, keeps: bool, is_own: bool) -> u32 {
        self.all
            .wrapping_add(if keeps { self.frees } else { 0 })
            .wrapping_add(if is_own { 0 } else { self.shared })
            .wrapping_add(1)
            .max(1)
    }
}

/// Before a launch or an upload. A stream that captures only records it.
pub(crate) fn before_launch(call: &str, exec: CuGraphExec, stream: u64) -> Verdict<Launching> {
    if !any() {
        return Verdict::Pass;
    }
    let accounts = accounts!(Launch);
    let exec = exec as u64;
    let map = &accounts.holdings().map;
    let Some(head) = map.get::<GraphExec>(exec) else {
        return Verdict::Pass;
    };
    if query::relaxed(|| query::is_capturing(query::stream(stream))) {
        return Verdict::Pass;
    }
    let run = Run {
        exec,
        set: head.devices,
        keeps: head.keeps,
        stream: fold(stream),
    };
    let mut launching = Launching {
        run,
        taken: TakenForCall::default(),
        anew: None,
    };
    for device in devices(head.devices) {
        let Some(part) = map.get::<GraphPart>(key(exec, device)) else {
            continue;
        };
        let Some(memory) = accounts.holdings().graphs.get(device) else {
            continue;
        };
        let is_mapped = is_mapped(memory, part.mapped, run);
        let wanted = (part.bytes, part.growth);
        if let Err(result) = launching
            .taken
            .take(&accounts, call, device, wanted, is_mapped)
        {
            launching.give_back(&accounts);
            return Verdict::Refuse(result);
        }
        if !is_mapped && launching.anew.is_none() {
            launching.anew = Some(Anew::begin(&accounts, memory, device, part.bytes));
        }
    }
    Verdict::Call(launching)
}

impl Launching {
    /// The devices whose graph memory has grown by more than was reserved, and those on which the graph
    /// has got memory that no other graph had.
    fn give_back(&self, accounts: &Accounts) -> (u32, u32) {
        let map = &accounts.holdings().map;
        let own = self.anew.filter(|anew| anew.is_own(accounts));
        let grown = self.taken.give_back(accounts, self.run.set, |device| {
            map.get(key(self.run.exec, device))
                .map_or((0, 0), |part: GraphPart| (part.bytes, part.growth))
        });
        (grown, own.map_or(0, |anew| 1 << anew.device))
    }
}

pub(crate) fn after_launch(launching: Launching, result: CuResult) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    let (grown, own) = launching.give_back(&accounts);
    if result != CuResult::SUCCESS {
        return;
    }
    mark_mapped(&accounts, launching.run, own);
    for device in devices(grown) {
        if let Some(over) = requests::above_limit(&accounts, device) {
            // The launch cannot be undone: memory that no graph uses is returned to the driver, and no request is
            // granted until the charges are within the limit.
            relieve(&accounts, device);
            let _recorded = accounts.refuse("a graph's launch", device, &over);
        }
    }
}

/// A graph that was launched or uploaded, or is about to be.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub(super) exec: u64,
    /// The devices that it uses.
    pub(super) set: u32,
    pub(super) keeps: bool,
    pub(super) stream: u16,
}

/// `GraphMemory::stream`: launches came in several streams.
const IN_STREAMS: u32 = u32::MAX;

/// In which stream graphs were launched, after a launch in `stream`. `known`: before it; 0 is none.
fn streams_after(known: u32, stream: u32) -> u32 {
    match known {
        0 => stream,
        known if known == stream => stream,
        _ => IN_STREAMS,
    }
}

/// The graph has its memory from here on. `own`: the devices on which it got memory that no other graph
/// had. Graphs that lose memory to it have to find new memory at their next launches.
pub(super) fn mark_mapped(accounts: &Accounts, run: Run, own: u32) {
    let map = &accounts.holdings().map;
    for device in devices(run.set) {
        let Some(memory) = accounts.holdings().graphs.get(device) else {
            continue;
        };
        let number = key(run.exec, device);
        let Some(part) = map.get::<GraphPart>(number) else {
            continue;
        };
        let was_mapped = is_mapped(memory, part.mapped, run);
        let is_own = if was_mapped {
            part.mapped.is_own
        } else {
            own >> device & 1 != 0
        };
        let stream = u32::from(run.stream) + 1;
        // Relaxed: threads that launch at the same time find several streams, or are the host's own race.
        let streams = streams_after(memory.stream.load(Ordering::Relaxed), stream);
        let launched = LaunchedGraph {
            was_mapped,
            is_own,
            keeps: run.keeps,
            in_streams: streams == IN_STREAMS,
        };
        // Relaxed: both only have to differ.
        match launched.moves() {
            Moves::Nothing => memory.stream.store(streams, Ordering::Relaxed),
            Moves::Shared => {
                memory.shared_moves.fetch_add(1, Ordering::Relaxed);
                memory.stream.store(streams, Ordering::Relaxed);
            }
            Moves::All => {
                memory.moves.fetch_add(1, Ordering::Relaxed);
                memory.stream.store(stream, Ordering::Relaxed);
            }
        }
        let there = |part: &mut GraphPart| {
            part.mapped = MappedBy {
                mark: mark(memory, run.keeps, is_own),
                stream: run.stream,
                is_own,
            };
            (Then::Keep, ())
        };
        map.change(number, there);
    }
}

/// Has it its memory since its last launch? In the same stream the driver leaves it where it was.
pub(super) fn is_mapped(memory: &GraphMemory, mapped: MappedBy, run: Run) -> bool {
    mapped.mark == mark(memory, run.keeps, mapped.is_own) && mapped.stream == run.stream
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launch_is_alone_between_its_own_begin_and_end() {
        assert!(was_alone(0, 1) && was_alone(4, 5));
        // Another one ran when it began, or began meanwhile, or began and ended.
        assert!(!was_alone(1, 2));
        assert!(!was_alone(4, 6) && !was_alone(4, 7));
        // The counts start again.
        assert!(was_alone(u32::MAX - 1, u32::MAX));
        assert!(!was_alone(u32::MAX, 0));
    }

    #[test]
    fn mark_changes_with_the_losses_of_such_a_graph_only() {
        const BEFORE: Losses = Losses {
            all: 5,
            frees: 7,
            shared: 9,
        };
        let more = |all, frees, shared| Losses {
            all: BEFORE.all + all,
            frees: BEFORE.frees + frees,
            shared: BEFORE.shared + shared,
        };
        for (keeps, is_own) in [(false, false), (false, true), (true, false), (true, true)] {
            let mark = BEFORE.mark(keeps, is_own);
            let changes = |losses: Losses| losses.mark(keeps, is_own) != mark;
            assert!(changes(more(1, 0, 0)));
            assert_eq!(changes(more(0, 1, 0)), keeps);
            assert_eq!(changes(more(0, 0, 1)), !is_own);
        }
    }

    #[test]
    fn mark_is_never_that_of_a_graph_without_a_launch() {
        for all in [0, 1, u32::MAX - 1, u32::MAX] {
            for shared in [0, 1, u32::MAX] {
                let losses = Losses {
                    all,
                    frees: 0,
                    shared,
                };
                assert_ne!(losses.mark(false, false), 0, "{all} {shared}");
            }
        }
    }

    #[test]
    fn second_stream_makes_several() {
        assert_eq!(streams_after(0, 3), 3);
        assert_eq!(streams_after(3, 3), 3);
        assert_eq!(streams_after(3, 4), IN_STREAMS);
        assert_eq!(streams_after(IN_STREAMS, 4), IN_STREAMS);
    }

    #[test]
    fn streams_that_differ_in_any_part_of_their_handle_differ() {
        let stream = 0x0123_4567_89ab_cdef;
        for bit in 0..64 {
            assert_ne!(fold(stream), fold(stream ^ 1 << bit), "{bit}");
        }
    }
}
