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

impl LookPace {
    /// How long a process that was first seen `age` ago is left alone after a look, if looks cost nothing. `is_bad`: its
    /// verdict, if it holds a GPU.
    fn pause(&self, is_bad: Option<bool>, age: Duration) -> Duration {
        match is_bad {
            Some(true) => self.bad,
            Some(false) => self.holder,
            None if age < YOUNG => self.bad,
            None => self.idle,
        }
    }
}

/// For how long and how often a process's verdict has been bad without a break.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct BadLooks {
    since: Option<Instant>,
    count: u32,
}

impl BadLooks {
    /// After another look with this verdict.
    fn after(self, is_bad: bool, now: Instant) -> Self {
        match is_bad {
            false => Self::default(),
            true => Self {
                since: self.since.or(Some(now)),
                count: self.count.saturating_add(1),
            },
        }
    }

    /// Whether the verdict has been bad for this long.
    fn have_stood(self, time: Duration, now: Instant) -> bool {
        self.since
            .is_some_and(|since| now.saturating_duration_since(since) >= time)
    }

    /// Whether they count: two looks at least, and for long enough.
    fn are_confirmed(self, confirm: Duration, now: Instant) -> bool {
        self.count >= 2 && self.have_stood(confirm, now)
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
    bad: BadLooks,
}

impl GpuHolder {
    /// Whether its verdict has been bad for this long.
    #[must_use]
    pub fn has_stood(&self, time: Duration, now: Instant) -> bool {
        self.bad.have_stood(time, now)
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
        let is_bad = holder.as_ref().map(|holder| holder.judged.verdict.is_bad());
        let wait = self
            .pace
            .pause(is_bad, now.saturating_duration_since(first));
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
        let before = old.map_or(BadLooks::default(), |old| old.bad);
        let bad = before.after(judged.verdict.is_bad(), now);
        Box::new(GpuHolder {
            facts,
            executable,
            judged,
            confirmed: bad.are_confirmed(self.pace.confirm, now),
            bad,
        })
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
                bad: BadLooks {
                    since: Some(*since),
                    count: 2,
                },
            })
    }

    /// How many processes there are, and how many this process may not look at.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.seen.len(), self.refused.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NANOSECOND: Duration = Duration::from_nanos(1);

    #[test]
    fn bad_and_young_processes_are_looked_at_sooner() {
        let pace = LookPace {
            idle: Duration::from_secs(70),
            ..LookPace::default()
        };
        let old = YOUNG;
        let young = YOUNG - NANOSECOND;
        for (is_bad, age, pause) in [
            (Some(true), old, pace.bad),
            (Some(false), old, pace.holder),
            (Some(false), young, pace.holder),
            (None, young, pace.bad),
            (None, old, pace.idle),
        ] {
            assert_eq!(pace.pause(is_bad, age), pause, "{is_bad:?} {age:?}");
        }
    }

    #[test]
    fn bad_verdict_counts_after_two_looks_and_its_time() {
        let (start, confirm) = (Instant::now(), Duration::from_secs(10));
        let once = BadLooks::default().after(true, start);
        assert!(once.have_stood(confirm, start + confirm));
        assert!(!once.are_confirmed(confirm, start + confirm));
        let twice = once.after(true, start + NANOSECOND);
        assert_eq!(twice.since, Some(start));
        assert!(!twice.are_confirmed(confirm, start + confirm - NANOSECOND));
        assert!(twice.are_confirmed(confirm, start + confirm));
    }

    #[test]
    fn good_verdict_between_two_bad_ones_begins_anew() {
        let (start, confirm) = (Instant::now(), Duration::from_secs(10));
        let later = start + confirm;
        let looks = BadLooks::default().after(true, start).after(true, start);
        let good = looks.after(false, start);
        assert_eq!(good, BadLooks::default());
        assert!(!good.have_stood(Duration::ZERO, later));
        let again = good.after(true, later);
        assert_eq!((again.since, again.count), (Some(later), 1));
    }
}
