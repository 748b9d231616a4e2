//! Whether this replica answers. The kube-schedulers elect a leader by a Lease. The replica on the leader's host
//! answers; the others say that they do not. This module only reads the Lease and takes no part in the election.
//!
//! When the replica answers:
//!
//! | the Lease | answer |
//! |---|---|
//! | not read yet | no |
//! | does not exist, or has no holder | no |
//! | names another host | no |
//! | names this host, and was seen to change within its duration | yes |
//! | names this host, and was just read for the first time | yes where its `renewTime` is within its duration of this machine's clock, else after the next renewal |
//! | names this host, and has not changed for its duration | no |
//! | cannot be read (API server away) | as at the last read, until its duration has passed: no |
//!
//! After the first read only the machine's monotonic clock counts, from the moment at which the Lease was seen to
//! change, as in client-go. So it does not matter if a clock is set, or differs from the holder's.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

/// How often the Lease is read; kube-scheduler renews it at the same interval.
const EVERY: Duration = Duration::from_secs(2);

/// The least time between two reads, however often callers ask.
const LEAST: Duration = Duration::from_millis(100);

/// The time limit of a read.
const CALL: Duration = Duration::from_secs(5);

/// The duration of a Lease that names none; kube-scheduler's own default.
const DURATION: Duration = Duration::from_secs(15);

/// The Lease to follow, and this replica's host.
#[derive(Debug, Clone)]
pub struct LeaderSettings {
    /// The namespace of the Lease: `kube-system` for kube-scheduler's default.
    pub namespace: String,
    /// Its name: `kube-scheduler`, or the scheduler's own name as the chart sets it.
    pub name: String,
    /// The host name that this replica shares with its kube-scheduler, whose identity is this, `_` and a uuid.
    pub host: String,
    /// The machine's clock.
    pub now: fn() -> Timestamp,
}

impl LeaderSettings {
    /// The settings for this Lease and host, with the machine's clock.
    pub fn new(namespace: &str, name: &str, host: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            host: host.to_owned(),
            now: Timestamp::now,
        }
    }
}

/// Why this replica does not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotLeader {
    /// The Lease could not be read yet.
    #[error("the lease {lease} has not been read yet{}", because(.problem))]
    Unknown {
        /// Namespace and name.
        lease: String,
        /// Why not; empty where no read has failed.
        problem: String,
    },
    /// The Lease does not exist.
    #[error(
        "there is no lease {lease}: no kube-scheduler with leader election runs, or it has another name (--leader-elect-resource-name)"
    )]
    NoLease {
        /// Namespace and name.
        lease: String,
    },
    /// The Lease has no holder.
    #[error("the lease {lease} has no holder")]
    NoHolder {
        /// Namespace and name.
        lease: String,
    },
    /// Another host's kube-scheduler holds it.
    #[error("the lease {lease} is held by {holder}, not on this host ({host})")]
    Other {
        /// Namespace and name.
        lease: String,
        /// The holder's identity.
        holder: String,
        /// This replica's host.
        host: String,
    },
    /// This host's kube-scheduler holds it and does not renew it, or the Lease cannot be read.
    #[error("{holder} holds the lease {lease} and was not seen to renew it for {seconds} s{}", because(.problem))]
    Expired {
        /// Namespace and name.
        lease: String,
        /// The holder's identity.
        holder: String,
        /// How long it may go without a renewal.
        seconds: u64,
        /// Why it cannot be read; empty where it can.
        problem: String,
    },
}

fn because(problem: &str) -> String {
    if problem.is_empty() {
        String::new()
    } else {
        format!(" ({problem})")
    }
}

/// Says whether this replica answers. Clones share one state.
#[derive(Clone)]
pub struct Leadership(Option<Arc<LeadershipTask>>);

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Leadership").field(&self.answers()).finish()
    }
}

struct LeadershipTask {
    shared: Arc<LeadershipState>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for LeadershipTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct LeadershipState {
    settings: LeaderSettings,
    view: Mutex<LeaseView>,
    /// Whether the last read said yes. Callers that wait for a change wait on this.
    answers: watch::Sender<bool>,
    asked: Notify,
    looked: Notify,
    terms: AtomicU64,
}

impl Leadership {
    /// For a single replica, which always answers.
    pub fn always() -> Self {
        Self(None)
    }

    /// Starts to follow the Lease. Needs a running tokio. Until the Lease has been read the answer is no.
    pub fn follow(client: kube::Client, settings: LeaderSettings) -> Self {
        let shared = Arc::new(LeadershipState {
            settings,
            view: Mutex::default(),
            answers: watch::Sender::new(false),
            asked: Notify::new(),
            looked: Notify::new(),
            terms: AtomicU64::new(0),
        });
        let task = tokio::spawn(follow(client, Arc::clone(&shared)));
        Self(Some(Arc::new(LeadershipTask { shared, task })))
    }

    /// Whether this replica answers now.
    ///
    /// # Errors
    ///
    /// The reason why it does not.
    pub fn answers(&self) -> Result<(), NotLeader> {
        match &self.0 {
            None => Ok(()),
            Some(handle) => handle.shared.judge(),
        }
    }

    /// As [`Leadership::answers`], but reads the Lease again while the answer is no, up to `patience`. So the first
    /// question after a takeover does not fail because the last read was a second ago.
    ///
    /// # Errors
    ///
    /// The reason why this replica does not answer even then.
    pub async fn wait(&self, patience: Duration) -> Result<(), NotLeader> {
        let Some(handle) = &self.0 else { return Ok(()) };
        let shared = &handle.shared;
        let until = Instant::now() + patience;
        loop {
            let looked = shared.looked.notified();
            let Err(no) = shared.judge() else {
                return Ok(());
            };
            shared.asked.notify_one();
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || timeout(left, looked).await.is_err() {
                return Err(no);
            }
        }
    }

    /// Returns when the answer differs from the one at the call. Never returns for a single replica.
    pub async fn changed(&self) {
        let Some(handle) = &self.0 else {
            return std::future::pending().await;
        };
        let mut answers = handle.shared.answers.subscribe();
        let before = *answers.borrow_and_update();
        // Cannot fail: the sender lives as long as the handle, which is held here.
        if answers.wait_for(|now| *now != before).await.is_err() {
            std::future::pending().await
        }
    }

    /// How many times this replica has begun to answer. When this has grown, a view of the cluster must be read again.
    pub fn terms(&self) -> u64 {
        match &self.0 {
            None => 1,
            Some(handle) => handle.shared.terms.load(Ordering::Relaxed),
        }
    }
}

impl LeadershipState {
    fn lease(&self) -> String {
        format!("{}/{}", self.settings.namespace, self.settings.name)
    }

    fn judge(&self) -> Result<(), NotLeader> {
        self.view
            .lock()
            .judge(&self.settings.host, &self.lease(), Instant::now())
    }
}

async fn follow(client: kube::Client, shared: Arc<LeadershipState>) {
    let api: Api<Lease> = Api::namespaced(client, &shared.settings.namespace);
    loop {
        let read = timeout(CALL, api.get_opt(&shared.settings.name)).await;
        let now = Instant::now();
        {
            let mut view = shared.view.lock();
            match read {
                Ok(Ok(lease)) => {
                    view.read(
                        lease.map(|lease| Record::of(&lease)),
                        now,
                        (shared.settings.now)(),
                    );
                }
                Ok(Err(error)) => view.problem = error.to_string(),
                Err(_elapsed) => view.problem = format!("no answer within {CALL:?}"),
            }
        }
        let answer = shared.judge();
        let yes = answer.is_ok();
        shared.answers.send_if_modified(|before| {
            if *before == yes {
                return false;
            }
            *before = yes;
            match &answer {
                Ok(()) => {
                    // Relaxed: the counter orders no other memory.
                    shared.terms.fetch_add(1, Ordering::Relaxed);
                    tracing::info!(lease = %shared.lease(), "this replica answers");
                }
                Err(reason) => tracing::warn!(%reason, "this replica does not answer"),
            }
            true
        });
        shared.looked.notify_waiters();
        sleep(LEAST).await;
        tokio::select! {
            () = sleep(EVERY.saturating_sub(LEAST)) => {}
            () = shared.asked.notified() => {}
        }
    }
}

/// The fields of a Lease that count.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Record {
    holder: String,
    renewed: Option<Timestamp>,
    duration: Duration,
}

impl Record {
    fn of(lease: &Lease) -> Self {
        let spec = lease.spec.clone().unwrap_or_default();
        let seconds = spec
            .lease_duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .filter(|seconds| *seconds > 0);
        Self {
            holder: spec.holder_identity.unwrap_or_default(),
            renewed: spec.renew_time.map(|time| time.0),
            duration: seconds.map_or(DURATION, Duration::from_secs),
        }
    }
}

/// The last read of the Lease.
#[derive(Debug, Default)]
struct LeaseView {
    seen: Option<LeaseReading>,
    /// Why the last read failed; empty where it did not.
    problem: String,
}

#[derive(Debug)]
struct LeaseReading {
    /// None: the Lease does not exist.
    record: Option<Record>,
    /// When it was seen to change to this; `None` if it was so at the first read, and expired by its own time.
    since: Option<Instant>,
}

impl LeaseView {
    fn read(&mut self, record: Option<Record>, now: Instant, clock: Timestamp) {
        self.problem.clear();
        let since = match &self.seen {
            Some(seen) if seen.record == record => seen.since,
            Some(_) => Some(now),
            None => record
                .as_ref()
                .is_some_and(|record| record.is_fresh(clock))
                .then_some(now),
        };
        self.seen = Some(LeaseReading { record, since });
    }

    fn judge(&self, host: &str, lease: &str, now: Instant) -> Result<(), NotLeader> {
        let lease = lease.to_owned();
        let problem = self.problem.clone();
        let Some(seen) = &self.seen else {
            return Err(NotLeader::Unknown { lease, problem });
        };
        let Some(record) = &seen.record else {
            return Err(NotLeader::NoLease { lease });
        };
        let holder = record.holder.clone();
        if holder.is_empty() {
            return Err(NotLeader::NoHolder { lease });
        }
        let ours = holder
            .strip_prefix(host)
            .is_some_and(|rest| rest.starts_with('_'));
        if !ours {
            let host = host.to_owned();
            return Err(NotLeader::Other {
                lease,
                holder,
                host,
            });
        }
        let is_alive = seen
            .since
            .is_some_and(|since| now.saturating_duration_since(since) < record.duration);
        if is_alive {
            return Ok(());
        }
        Err(NotLeader::Expired {
            lease,
            holder,
            seconds: record.duration.as_secs(),
            problem,
        })
    }
}

impl Record {
    /// Whether its renewal is recent by the machine's clock.
    fn is_fresh(&self, clock: Timestamp) -> bool {
        self.renewed.is_some_and(|renewed| {
            let age = clock.duration_since(renewed).unsigned_abs();
            age < self.duration
        })
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::LeaseSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

    use super::*;

    const LASTS: Duration = Duration::from_secs(15);
    const NANOSECOND: Duration = Duration::from_nanos(1);

    fn wall(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    fn record(holder: &str, renewed: i64) -> Record {
        Record {
            holder: holder.to_owned(),
            renewed: Some(wall(renewed)),
            duration: LASTS,
        }
    }

    fn judged(view: &LeaseView, now: Instant) -> &'static str {
        match view.judge("host-1", "kube-system/kube-scheduler", now) {
            Ok(()) => "answers",
            Err(NotLeader::Unknown { .. }) => "unknown",
            Err(NotLeader::NoLease { .. }) => "no lease",
            Err(NotLeader::NoHolder { .. }) => "no holder",
            Err(NotLeader::Other { .. }) => "other",
            Err(NotLeader::Expired { .. }) => "expired",
        }
    }

    #[test]
    fn only_a_holder_on_this_host_lets_the_replica_answer() {
        let now = Instant::now();
        for (record, said) in [
            (None, "no lease"),
            (Some(record("", 0)), "no holder"),
            (Some(record("host-1_uuid", 0)), "answers"),
            (Some(record("host-2_uuid", 0)), "other"),
            // Another host's name may begin with this one's.
            (Some(record("host-10_uuid", 0)), "other"),
            (Some(record("host-1", 0)), "other"),
        ] {
            let mut view = LeaseView::default();
            assert_eq!(judged(&view, now), "unknown");
            view.read(record.clone(), now, wall(0));
            assert_eq!(judged(&view, now), said, "{record:?}");
        }
    }

    #[test]
    fn first_read_counts_if_the_renewal_is_recent_by_the_clock() {
        let now = Instant::now();
        for (renewed, said) in [
            (-14, "answers"),
            (-15, "expired"),
            // The holder's clock is ahead.
            (14, "answers"),
            (15, "expired"),
        ] {
            let mut view = LeaseView::default();
            view.read(Some(record("host-1_a", renewed)), now, wall(0));
            assert_eq!(judged(&view, now), said, "{renewed}");
        }
        let never = Record {
            renewed: None,
            ..record("host-1_a", 0)
        };
        assert!(!never.is_fresh(wall(0)));
    }

    #[test]
    fn lease_lasts_for_its_duration_after_it_was_seen_to_change() {
        let start = Instant::now();
        let mut view = LeaseView::default();
        view.read(Some(record("host-1_a", 0)), start, wall(0));
        let later = start + Duration::from_secs(10);
        // The same again is no renewal, whatever the clock says.
        view.read(Some(record("host-1_a", 0)), later, wall(0));
        assert_eq!(judged(&view, start + LASTS - NANOSECOND), "answers");
        assert_eq!(judged(&view, start + LASTS), "expired");
        // A change is one, also if the holder's clock is far behind.
        view.read(Some(record("host-1_a", -900)), later, wall(0));
        assert_eq!(judged(&view, later + LASTS - NANOSECOND), "answers");
        assert_eq!(judged(&view, later + LASTS), "expired");
    }

    #[test]
    fn old_lease_that_is_renewed_after_the_first_read_counts() {
        let now = Instant::now();
        let mut view = LeaseView::default();
        view.read(Some(record("host-1_a", -900)), now, wall(0));
        assert_eq!(judged(&view, now), "expired");
        view.read(Some(record("host-1_a", -898)), now, wall(0));
        assert_eq!(judged(&view, now), "answers");
    }

    #[test]
    fn reason_names_the_failed_read_until_one_succeeds() {
        let now = Instant::now();
        let mut view = LeaseView {
            problem: "connection refused".to_owned(),
            ..LeaseView::default()
        };
        let unread = view.judge("host-1", "ns/l", now).unwrap_err().to_string();
        assert_eq!(
            unread,
            "the lease ns/l has not been read yet (connection refused)"
        );
        view.read(Some(record("host-1_a", -900)), now, wall(0));
        let old = view.judge("host-1", "ns/l", now).unwrap_err().to_string();
        assert_eq!(
            old,
            "host-1_a holds the lease ns/l and was not seen to renew it for 15 s"
        );
    }

    #[test]
    fn lease_without_a_usable_duration_lasts_15_seconds() {
        let lasts = |seconds| {
            let spec = LeaseSpec {
                holder_identity: Some("host-1_a".to_owned()),
                lease_duration_seconds: seconds,
                renew_time: Some(MicroTime(wall(3))),
                ..LeaseSpec::default()
            };
            let read = Record::of(&Lease {
                spec: Some(spec),
                ..Lease::default()
            });
            assert_eq!(
                (read.holder.as_str(), read.renewed),
                ("host-1_a", Some(wall(3)))
            );
            read.duration.as_secs()
        };
        let all = [Some(30), Some(1), Some(0), Some(-5), None].map(lasts);
        assert_eq!(all, [30, 1, 15, 15, 15]);
        assert_eq!(Record::of(&Lease::default()).holder, "");
    }
}
