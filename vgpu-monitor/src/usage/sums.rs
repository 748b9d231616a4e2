//! The sums. Values in, values out: the time is an argument.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::exporter::{Account, Used};

/// The most workloads that have a sum of their own; more share one in each namespace, without a name.
pub(super) const MOST: usize = 256;
/// A workload without a container is forgotten after this. By then its last value has been read many times.
const KEPT: Duration = Duration::from_secs(2 * 3600);
/// A new sum is shown as 0 for this long, so that every scraper sees it grow: `increase()` of a series that appears
/// with a value does not count that value.
const FIRST_AT_ZERO: Duration = Duration::from_secs(60);
/// The longest time for which the memory of one look is counted: longer pauses are the agent's or the machine's sleep.
const LONGEST: Duration = Duration::from_secs(60);
/// How much more GPU time than time a look may find, because the two are read one after the other.
const SLACK: Duration = Duration::from_millis(100);

const GIB: f64 = 1_073_741_824.0;

/// A container at one look.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// Its directory.
    pub path: PathBuf,
    /// When it was made, seconds since 1970.
    pub created_unix: u64,
    /// Its account.
    pub key: Account,
    /// GPU time since it was made, by device, nanoseconds.
    pub busy_ns: Vec<u64>,
    /// Memory that it holds on all its devices, bytes.
    pub used_bytes: u64,
}

/// All sums of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sums {
    /// When the containers were last looked at, since 1970.
    pub(super) looked: Duration,
    pub(super) accounts: Vec<Sum>,
    pub(super) containers: Vec<Counted>,
}

/// The sum of one account.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Sum {
    #[serde(flatten)]
    pub(super) key: Account,
    pub(super) gpu_ns: u64,
    pub(super) gib_seconds: f64,
    /// When it began, and when a container was last there, since 1970.
    pub(super) began: Duration,
    pub(super) seen: Duration,
}

/// How much of a container has been counted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Counted {
    path: PathBuf,
    created_unix: u64,
    busy_ns: Vec<u64>,
}

impl Sums {
    /// Takes in the containers as they are at `now`, since 1970.
    pub fn look(&mut self, seen: &[Seen], now: Duration) {
        self.follow_the_clock(now);
        // Before the first look nothing is known of the time, and what containers used then is not counted. A clock
        // that was set back a little counts nothing until it has caught up.
        let since = match self.looked {
            Duration::ZERO => Duration::ZERO,
            looked => now.saturating_sub(looked),
        };
        let mut before: BTreeMap<(PathBuf, u64), Vec<u64>> = self
            .containers
            .drain(..)
            .map(|counted| ((counted.path, counted.created_unix), counted.busy_ns))
            .collect();
        for one in seen {
            let known = before.remove(&(one.path.clone(), one.created_unix));
            let age = now.saturating_sub(Duration::from_secs(one.created_unix));
            let lasted = match &known {
                Some(_) => since,
                None => age.min(since),
            };
            let counted = known.unwrap_or_default();
            let most = nanoseconds(lasted.saturating_add(SLACK));
            let busy = one.busy_ns.iter().enumerate().map(|(at, busy_ns)| {
                // Less than before: its processes wrote another number.
                let before = counted.get(at).copied().unwrap_or(0);
                busy_ns.saturating_sub(before).min(most)
            });
            let busy_ns = busy.fold(0, u64::saturating_add);
            let held = lasted.min(LONGEST);
            let account = self.account(&one.key, now);
            account.gpu_ns = account.gpu_ns.saturating_add(busy_ns);
            account.gib_seconds += gib(one.used_bytes) * held.as_secs_f64();
            self.containers.push(Counted {
                path: one.path.clone(),
                created_unix: one.created_unix,
                busy_ns: one.busy_ns.clone(),
            });
        }
        self.looked = self.looked.max(now);
        self.accounts
            .retain(|account| now.saturating_sub(account.seen) < KEPT);
    }

    /// Moves all times with a clock that was set back by much. Without that nothing would be counted until it has caught
    /// up, which may take years.
    fn follow_the_clock(&mut self, now: Duration) {
        let back = self.looked.saturating_sub(now);
        if back <= LONGEST {
            return;
        }
        self.looked = now;
        for account in &mut self.accounts {
            account.began = account.began.saturating_sub(back);
            account.seen = account.seen.saturating_sub(back);
        }
    }

    /// The sums as they are shown at `now`, since 1970.
    #[must_use]
    pub fn used(&self, now: Duration) -> Vec<Used> {
        let mut used: Vec<Used> = self
            .accounts
            .iter()
            .map(|account| {
                let is_new = now.saturating_sub(account.began) < FIRST_AT_ZERO;
                let shown = |value: f64| if is_new { 0.0 } else { value };
                Used {
                    key: account.key.clone(),
                    gpu_seconds: shown(Duration::from_nanos(account.gpu_ns).as_secs_f64()),
                    gib_seconds: shown(account.gib_seconds),
                }
            })
            .collect();
        used.sort_by(|a, b| a.key.cmp(&b.key));
        used
    }

    fn account(&mut self, key: &Account, now: Duration) -> &mut Sum {
        let find = |accounts: &[Sum], key: &Account| {
            accounts.iter().position(|account| account.key == *key)
        };
        let mut at = find(&self.accounts, key);
        let mut key = key.clone();
        if at.is_none() && self.accounts.len() >= MOST {
            key = Account {
                namespace: key.namespace,
                ..Account::default()
            };
            at = find(&self.accounts, &key);
        }
        if at.is_none() && self.accounts.len() >= 2 * MOST {
            key = Account::default();
            at = find(&self.accounts, &key);
        }
        let at = at.unwrap_or_else(|| {
            self.accounts.push(Sum {
                key,
                began: now,
                ..Sum::default()
            });
            self.accounts.len() - 1
        });
        #[expect(clippy::indexing_slicing, reason = "found or pushed just now")]
        let account = &mut self.accounts[at];
        account.seen = now;
        account
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[allow(clippy::cast_precision_loss, reason = "exact to 8 PiB")]
fn gib(bytes: u64) -> f64 {
    bytes as f64 / GIB
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn seen(name: &str, created_unix: u64, busy_s: u64, gib: u64) -> Seen {
        Seen {
            path: PathBuf::from(format!("/r/{name}-{created_unix}")),
            created_unix,
            key: Account {
                namespace: "research".to_owned(),
                team: "vision".to_owned(),
                kind: "job".to_owned(),
                workload: name.to_owned(),
            },
            busy_ns: vec![busy_s * SECOND],
            used_bytes: gib << 30,
        }
    }

    fn at(second: u64) -> Duration {
        Duration::from_secs(second)
    }

    /// GPU-seconds and GiB-seconds of the accounts, rounded.
    fn sums(sums: &Sums, second: u64) -> Vec<(String, i64, i64)> {
        #[allow(clippy::cast_possible_truncation, reason = "small numbers")]
        let round = |value: f64| value.round() as i64;
        sums.used(at(second))
            .into_iter()
            .map(|used| {
                let (gpu, memory) = (round(used.gpu_seconds), round(used.gib_seconds));
                (used.key.workload, gpu, memory)
            })
            .collect()
    }

    #[test]
    fn a_container_that_ended_stays_in_its_workloads_sum() {
        let mut all = Sums::default();
        all.look(&[], at(1000));
        all.look(&[seen("train", 1000, 2, 4)], at(1005));
        all.look(&[seen("train", 1000, 5, 4)], at(1010));
        all.look(&[], at(1015));
        // The next run of the same workload.
        all.look(&[seen("train", 1100, 3, 1)], at(1110));
        all.look(&[], at(1200));

        assert_eq!(sums(&all, 1200), [("train".to_owned(), 8, 50)]);
    }

    #[test]
    fn a_short_job_is_seen_to_grow_from_zero() {
        let mut all = Sums::default();
        all.look(&[], at(1000));
        // It worked for three seconds between two looks and is gone; its directory is still there.
        all.look(&[seen("short", 1001, 3, 0)], at(1005));

        assert_eq!(sums(&all, 1005), [("short".to_owned(), 0, 0)]);
        assert_eq!(sums(&all, 1064), [("short".to_owned(), 0, 0)]);
        assert_eq!(sums(&all, 1065), [("short".to_owned(), 3, 0)]);
    }

    #[test]
    fn a_container_cannot_claim_more_time_than_there_was() {
        let mut all = Sums::default();
        all.look(&[], at(1000));
        all.look(&[seen("liar", 990, 1_000_000, 0)], at(1000));
        // A number that goes back counts nothing, and what follows counts from there.
        all.look(&[seen("liar", 990, 0, 0)], at(1005));
        all.look(&[seen("liar", 990, 4, 0)], at(1010));
        all.look(&[seen("liar", 990, u64::MAX / SECOND, 0)], at(1015));

        assert_eq!(sums(&all, 1100), [("liar".to_owned(), 9, 0)]);
    }

    #[test]
    fn an_agent_without_a_past_counts_from_its_first_look() {
        let mut all = Sums::default();
        all.look(&[seen("old", 1000, 5000, 1)], at(9000));
        all.look(&[seen("old", 1000, 5004, 1)], at(9005));

        assert_eq!(sums(&all, 9100), [("old".to_owned(), 4, 5)]);
    }

    #[test]
    fn a_pause_of_the_agent_keeps_gpu_time_and_bounds_memory() {
        let mut all = Sums::default();
        all.look(&[seen("serve", 1000, 0, 1)], at(1000));
        all.look(&[seen("serve", 1000, 500, 1)], at(2000));

        assert_eq!(sums(&all, 2000), [("serve".to_owned(), 500, 60)]);
    }

    #[test]
    fn idle_accounts_are_forgotten_and_their_number_is_bounded() {
        let mut all = Sums::default();
        all.look(&[], at(1000));
        let many: Vec<Seen> = (0..1000)
            .map(|n| seen(&format!("w{n:04}"), 1000, 1, 0))
            .collect();
        all.look(&many, at(1010));

        let shown = all.used(at(1100));
        assert_eq!(shown.len(), MOST + 1);
        let whole: f64 = shown.iter().map(|used| used.gpu_seconds).sum();
        assert!((whole - 1000.0).abs() < 1e-6, "{whole}");

        all.look(&[], at(1010 + 2 * 3600));
        assert!(all.used(at(10_000)).is_empty());
    }

    #[test]
    fn a_clock_that_was_years_ahead_does_not_end_the_sums() {
        const AHEAD: u64 = 10 * 365 * 86_400;
        let mut all = Sums::default();
        all.look(&[], at(AHEAD));
        all.look(
            &[seen("a", AHEAD, 1, 0), seen("gone", AHEAD, 1, 0)],
            at(AHEAD + 5),
        );

        all.look(&[seen("a", AHEAD, 2, 1)], at(1000));
        all.look(&[seen("a", AHEAD, 7, 1)], at(1005));
        all.look(
            &[seen("a", AHEAD, 12, 1), seen("new", 1006, 2, 0)],
            at(1010),
        );

        let shown = sums(&all, 1070);
        let shown: Vec<_> = shown
            .iter()
            .map(|(name, gpu, gib)| (name.as_str(), *gpu, *gib))
            .collect();
        assert_eq!(shown, [("a", 11, 10), ("gone", 1, 0), ("new", 2, 0)]);
        all.look(&[], at(1000 + 3 * 3600));
        assert_eq!(sums(&all, 20_000), []);
    }

    #[test]
    fn a_clock_that_is_set_back_counts_nothing_twice() {
        let mut all = Sums::default();
        all.look(&[seen("a", 900, 10, 1)], at(1000));
        all.look(&[seen("a", 900, 11, 1)], at(950));
        all.look(&[seen("a", 900, 12, 1)], at(1001));

        let [(_, gpu, memory)] = sums(&all, 2000).try_into().unwrap();
        assert_eq!((gpu, memory), (1, 1));
    }
}
