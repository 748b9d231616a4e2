//! Which processes are looked at when. Each is looked at soon after it began and again and again, those that hold a GPU
//! or are named by the driver first; never more in one turn than [`LookPace::turn`] allows, so that what this costs has a
//! bound whatever the processes do. Judges nothing.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

use super::look::{Eyes, Ours, ProcessFacts};
use super::verdict::{self, Ground, Judged, Reason, Verdict};

/// How often processes are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LookPace {
    /// Processes are listed this often.
    pub every: Duration,
    /// Looks of one turn take about this much processor time at most.
    pub turn: Duration,
    /// A process without a GPU is looked at again after this.
    pub idle: Duration,
    /// A process with a good verdict, and one that began a moment ago, is looked at again after this.
    pub holder: Duration,
    /// A process with a bad verdict is looked at again after this.
    pub bad: Duration,
    /// A bad verdict counts when it has lasted this long, over two looks.
    pub confirm: Duration,
}

impl Default for LookPace {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(2),
            turn: Duration::from_millis(10),
            idle: Duration::from_secs(60),
            holder: Duration::from_secs(60),
            bad: Duration::from_secs(8),
            confirm: Duration::from_secs(10),
        }
    }
}

/// A look may cost this part of the time until the next one.
const COST_PART: u32 = 200;
/// A process younger than this is looked at again soon: a program opens its GPU some seconds after its start.
const YOUNG: Duration = Duration::from_secs(60);

/// Processor time that this thread has had: on a busy node, waiting for it is no cost.
fn spent() -> Duration {
    let spent = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    spent.map(Duration::from).unwrap_or_default()
}

/// A process that holds a GPU.
#[derive(Debug, Clone)]
pub struct GpuHolder {
    /// The facts of the last look.
    pub facts: ProcessFacts,
    /// Name of its program's file.
    pub executable: String,
    /// The judgement.
    pub judged: Judged,
    /// A bad verdict has lasted long enough to be reported.
    pub confirmed: bool,
    bad_since: Option<Instant>,
    bad_looks: u32,
}

impl GpuHolder {
    /// Whether its verdict has been bad for this long.
    #[must_use]
    pub fn has_stood(&self, time: Duration, now: Instant) -> bool {
        self.bad_since
            .is_some_and(|since| now.saturating_duration_since(since) >= time)
    }
}

#[derive(Debug)]
struct WatchedProcess {
    started: u64,
    kernel: bool,
    first: Instant,
    next: Instant,
    holder: Option<Box<GpuHolder>>,
}

/// The processes of the node.
#[derive(Debug)]
pub struct Watch {
    eyes: Eyes,
    pace: LookPace,
    seen: HashMap<u32, WatchedProcess>,
    /// Processes that could not be looked at, at the last try.
    refused: HashSet<u32>,
    /// Pids that only the driver knows, since when.
    hidden: HashMap<u32, Instant>,
}

impl Watch {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(eyes: Eyes, pace: LookPace) -> Self {
        Self {
            eyes,
            pace,
            seen: HashMap::new(),
            refused: HashSet::new(),
            hidden: HashMap::new(),
        }
    }

    /// Looks at the processes that are due; `named` are the pids that the driver names.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn turn(
        &mut self,
        now: Instant,
        ours: &Ours,
        ground: &Ground,
        named: &BTreeSet<u32>,
    ) -> std::io::Result<()> {
        self.list(now)?;
        self.hidden
            .retain(|pid, _| named.contains(pid) && !self.seen.contains_key(pid));
        for pid in named.iter().filter(|pid| !self.seen.contains_key(*pid)) {
            self.hidden.entry(*pid).or_insert(now);
        }
        let mut due: Vec<(bool, Instant, u32)> = Vec::new();
        for (pid, seen) in &self.seen {
            // The driver names it and it was not seen to hold anything: that is looked at first.
            let urgent = named.contains(pid) && seen.holder.is_none();
            if !seen.kernel && (urgent || seen.next <= now) {
                due.push((!urgent, seen.next, *pid));
            }
        }
        due.sort_unstable();
        let begun = spent();
        for (_, _, pid) in due {
            self.look(pid, now, ours, ground, named.contains(&pid));
            if spent().saturating_sub(begun) >= self.pace.turn {
                break;
            }
        }
        Ok(())
    }

    fn list(&mut self, now: Instant) -> std::io::Result<()> {
        let pids: HashSet<u32> = self.eyes.pids()?.into_iter().collect();
        self.seen.retain(|pid, _| pids.contains(pid));
        self.refused.retain(|pid| pids.contains(pid));
        for pid in pids {
            if self.seen.contains_key(&pid) {
                continue;
            }
            if let Some((started, kernel)) = self.eyes.begun(pid) {
                let seen = WatchedProcess {
                    started,
                    kernel,
                    first: now,
                    next: now,
                    holder: None,
                };
                self.seen.insert(pid, seen);
            }
        }
        Ok(())
    }

    fn look(&mut self, pid: u32, now: Instant, ours: &Ours, ground: &Ground, named: bool) {
        let begun = spent();
        let Some((started, kernel)) = self.eyes.begun(pid) else {
            self.seen.remove(&pid);
            return;
        };
        let was = self
            .seen
            .remove(&pid)
            .filter(|seen| seen.started == started);
        let first = was.as_ref().map_or(now, |seen| seen.first);
        let old = was.and_then(|seen| seen.holder);
        let holder = match self.facts(pid, started, ours, named || old.is_some()) {
            Ok(facts) => {
                self.refused.remove(&pid);
                facts.map(|facts| self.judged(facts, old, now, ground))
            }
            Err(error) => {
                // It is gone meanwhile, or may not be inspected: then the earlier facts stay.
                if error.kind() == ErrorKind::PermissionDenied {
                    self.refused.insert(pid);
                }
                old
            }
        };
        let young = now.saturating_duration_since(first) < YOUNG;
        let wait = match &holder {
            Some(holder) if holder.judged.verdict.is_bad() => self.pace.bad,
            Some(_) => self.pace.holder,
            None if young => self.pace.bad,
            None => self.pace.idle,
        };
        let cost = spent().saturating_sub(begun).saturating_mul(COST_PART);
        let seen = WatchedProcess {
            started,
            kernel,
            first,
            next: now + wait.max(cost),
            holder,
        };
        self.seen.insert(pid, seen);
    }

    /// The GPUs that a process holds; `None` if it holds none. `thorough` reads its mappings also if it has
    /// no device open.
    fn facts(
        &self,
        pid: u32,
        started: u64,
        ours: &Ours,
        thorough: bool,
    ) -> std::io::Result<Option<ProcessFacts>> {
        let (devices, _) = self.eyes.open_devices(pid)?;
        if !thorough && !verdict::can_compute(&devices) {
            return Ok(None);
        }
        let mut facts = ProcessFacts {
            pid,
            started,
            devices,
            ..ProcessFacts::default()
        };
        self.eyes.mapped(&mut facts, ours)?;
        if !verdict::can_compute(&facts.devices) {
            return Ok(None);
        }
        self.eyes.introduce(&mut facts, ours);
        Ok(Some(facts))
    }

    fn judged(
        &self,
        facts: ProcessFacts,
        old: Option<Box<GpuHolder>>,
        now: Instant,
        ground: &Ground,
    ) -> Box<GpuHolder> {
        let executable = self.eyes.executable(facts.pid);
        let executable = executable
            .as_deref()
            .and_then(|path| path.file_name())
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let judged = verdict::judge(&facts, &executable, ground);
        let bad = judged.verdict.is_bad();
        let same = old.filter(|old| old.judged.verdict.is_bad() && bad);
        let bad_since = bad.then(|| same.as_ref().and_then(|old| old.bad_since).unwrap_or(now));
        let bad_looks = same
            .map_or(0, |old| old.bad_looks)
            .saturating_add(u32::from(bad));
        let mut holder = GpuHolder {
            facts,
            executable,
            judged,
            confirmed: false,
            bad_since,
            bad_looks,
        };
        holder.confirmed = bad_looks >= 2 && holder.has_stood(self.pace.confirm, now);
        Box::new(holder)
    }

    /// The processes that hold a GPU.
    pub fn holders(&self) -> impl Iterator<Item = &GpuHolder> {
        self.seen.values().filter_map(|seen| seen.holder.as_deref())
    }

    /// Pids that only the driver knows, and has known for long enough.
    pub fn hidden(&self, now: Instant) -> impl Iterator<Item = GpuHolder> {
        let confirm = self.pace.confirm;
        self.hidden
            .iter()
            .filter(move |(_, since)| now.saturating_duration_since(**since) >= confirm)
            .map(|(pid, since)| GpuHolder {
                facts: ProcessFacts {
                    pid: *pid,
                    ..ProcessFacts::default()
                },
                executable: String::new(),
                judged: Judged {
                    verdict: Verdict::Unmanaged,
                    reason: Reason::Hidden,
                    container: None,
                },
                confirmed: true,
                bad_since: Some(*since),
                bad_looks: 2,
            })
    }

    /// How many processes there are, and how many this process may not look at.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.seen.len(), self.refused.len())
    }
}
