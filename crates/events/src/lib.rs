//! Kubernetes events about pods and nodes, for readers of `kubectl describe`. Owns the queue, the rate limits and the
//! length of a message; the words come from the scheduler and the node agent. Callers never wait, and the memory is
//! bounded: while the API server is away events become late, then lost, and losses are counted.
//!
//! One `Event` object stands for all messages about one object with one reason: it is patched with the latest message
//! and a count, so a pod that stays pending does not fill etcd.

#![forbid(unsafe_code)]

mod sender;
mod words;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use sender::Sender;
use words::bounded;

pub use words::MOST_MESSAGE_BYTES;

/// Whether the event is good news.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// All is well.
    Normal,
    /// A person should look.
    Warning,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// The object that an event is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct About {
    kind: &'static str,
    namespace: String,
    name: String,
    uid: String,
}

impl About {
    /// A pod; `uid` may be empty.
    pub fn pod(namespace: &str, name: &str, uid: &str) -> Self {
        Self {
            kind: "Pod",
            namespace: if namespace.is_empty() {
                "default".to_owned()
            } else {
                namespace.to_owned()
            },
            name: name.to_owned(),
            uid: uid.to_owned(),
        }
    }

    /// A node. `kubectl describe node` looks for its name where other objects have a uid.
    pub fn node(name: &str) -> Self {
        Self {
            kind: "Node",
            namespace: String::new(),
            name: name.to_owned(),
            uid: name.to_owned(),
        }
    }
}

impl From<&kube_api::object::Pod> for About {
    fn from(pod: &kube_api::object::Pod) -> Self {
        let meta = &pod.metadata;
        Self::pod(
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default(),
            meta.uid.as_deref().unwrap_or_default(),
        )
    }
}

impl From<&placement::Pod> for About {
    fn from(pod: &placement::Pod) -> Self {
        Self::pod(&pod.namespace, &pod.name, &pod.uid)
    }
}

impl From<(&str, &str, &str)> for About {
    /// Namespace, name, uid of a pod.
    fn from((namespace, name, uid): (&str, &str, &str)) -> Self {
        Self::pod(namespace, name, uid)
    }
}

/// How many events are sent, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How many events wait at most. Beyond that the oldest is lost, `Normal` ones first.
    pub waiting: usize,
    /// How many are sent in a row after a quiet time.
    pub burst: u32,
    /// After that, one event may be sent in each of these intervals.
    pub every: Duration,
    /// How many of one object are sent in a row after a quiet time.
    pub burst_of_object: u32,
    /// After that, one event of the object may be sent in each of these intervals.
    pub every_of_object: Duration,
    /// An event that could not be sent for this long is lost.
    pub patience: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            waiting: 1024,
            burst: 200,
            every: Duration::from_millis(20),
            burst_of_object: 10,
            every_of_object: Duration::from_secs(30),
            patience: Duration::from_secs(600),
        }
    }
}

/// Numbers of events since the start, by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Waiting now.
    pub waiting: u64,
    /// Written to the API server; each repetition that was written counts.
    pub sent: u64,
    /// Repeated before the first was sent, so that one write covered both.
    pub merged: u64,
    /// Lost because too many waited, or because the API server was away for too long.
    pub dropped: u64,
    /// Not sent because of the limit for one object.
    pub limited: u64,
    /// Refused by the API server.
    pub refused: u64,
}

/// Emits events. Clones share one queue; dropping the last clone drops the queue and what waits in it.
#[derive(Clone)]
pub struct Events(Option<Arc<Handle>>);

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Events").field(&self.counts()).finish()
    }
}

struct Handle {
    outbox: Arc<Outbox>,
    sender: tokio::task::JoinHandle<()>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.sender.abort();
    }
}

/// The state that the callers and the sending task share: the queue, its limits and the counters.
struct Outbox {
    limits: Limits,
    queue: Mutex<Queue>,
    news: Notify,
    sent: AtomicU64,
    merged: AtomicU64,
    dropped: AtomicU64,
    limited: AtomicU64,
    refused: AtomicU64,
}

/// One object and one reason: all events of a topic go into one `Event` object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Topic {
    about: About,
    kind: Kind,
    reason: String,
}

#[derive(Debug, Clone)]
struct Said {
    message: String,
    count: i32,
    first: Timestamp,
    last: Timestamp,
    since: Instant,
}

/// The events that wait. Warnings are sent before `Normal` events; within each kind the oldest topic is first.
#[derive(Default)]
struct Queue {
    warnings: VecDeque<Topic>,
    good_news: VecDeque<Topic>,
    said: HashMap<Topic, Said>,
}

impl Queue {
    fn line(&mut self, kind: Kind) -> &mut VecDeque<Topic> {
        match kind {
            Kind::Warning => &mut self.warnings,
            Kind::Normal => &mut self.good_news,
        }
    }

    fn next(&mut self) -> Option<(Topic, Said)> {
        let topic = self
            .warnings
            .pop_front()
            .or_else(|| self.good_news.pop_front())?;
        let said = self.said.remove(&topic)?;
        Some((topic, said))
    }

    /// Whether one more event may wait, perhaps in place of another. A `Normal` event never displaces a warning.
    fn has_room(&self, most: usize, kind: Kind) -> bool {
        most > 0 && (self.said.len() < most || kind == Kind::Warning || !self.good_news.is_empty())
    }

    /// Drops events until at most `most` wait; returns whether any was lost.
    fn shrink_to(&mut self, most: usize) -> bool {
        let mut lost = false;
        while self.said.len() > most {
            let oldest = self
                .good_news
                .pop_front()
                .or_else(|| self.warnings.pop_front());
            let Some(oldest) = oldest else { break };
            self.said.remove(&oldest);
            lost = true;
        }
        lost
    }
}

impl Events {
    /// Starts the task that sends. `component` names the program that emits the events. Needs a running tokio.
    pub fn start(client: kube::Client, component: &str) -> Self {
        Self::start_with(client, component, Limits::default(), Timestamp::now)
    }

    /// As [`Events::start`], with the caller's limits and clock.
    pub fn start_with(
        client: kube::Client,
        component: &str,
        limits: Limits,
        now: fn() -> Timestamp,
    ) -> Self {
        let outbox = Arc::new(Outbox {
            limits,
            queue: Mutex::default(),
            news: Notify::new(),
            sent: AtomicU64::new(0),
            merged: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            limited: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        });
        let sender = Sender::new(client, component, Arc::clone(&outbox), now);
        Self(Some(Arc::new(Handle {
            outbox,
            sender: tokio::spawn(sender.run()),
        })))
    }

    /// Emits nothing.
    pub fn silent() -> Self {
        Self(None)
    }

    /// Emits an event about a pod.
    pub fn pod(&self, pod: impl Into<About>, kind: Kind, reason: &str, message: impl Into<String>) {
        self.say(pod.into(), kind, reason, message.into());
    }

    /// Emits an event about a node.
    pub fn node(&self, name: &str, kind: Kind, reason: &str, message: impl Into<String>) {
        self.say(About::node(name), kind, reason, message.into());
    }

    /// The numbers of events by outcome.
    pub fn counts(&self) -> Counts {
        let Some(handle) = &self.0 else {
            return Counts::default();
        };
        let outbox = &handle.outbox;
        // Relaxed: the counters are independent of each other.
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            waiting: u64::try_from(outbox.queue.lock().said.len()).unwrap_or(u64::MAX),
            sent: read(&outbox.sent),
            merged: read(&outbox.merged),
            dropped: read(&outbox.dropped),
            limited: read(&outbox.limited),
            refused: read(&outbox.refused),
        }
    }

    fn say(&self, about: About, kind: Kind, reason: &str, message: String) {
        let Some(handle) = &self.0 else { return };
        let outbox = &handle.outbox;
        let now = Timestamp::now();
        let topic = Topic {
            about,
            kind,
            reason: reason.to_owned(),
        };
        let mut said = Said {
            message: bounded(&message, MOST_MESSAGE_BYTES),
            count: 1,
            first: now,
            last: now,
            since: Instant::now(),
        };
        let mut queue = outbox.queue.lock();
        if let Some(before) = queue.said.get_mut(&topic) {
            said.count = before.count.saturating_add(1);
            said.first = before.first;
            said.since = before.since;
            *before = said;
            count(&outbox.merged);
            return;
        }
        if !queue.has_room(outbox.limits.waiting, kind) {
            count(&outbox.dropped);
            return;
        }
        if queue.shrink_to(outbox.limits.waiting.saturating_sub(1)) {
            count(&outbox.dropped);
        }
        queue.line(kind).push_back(topic.clone());
        queue.said.insert(topic, said);
        drop(queue);
        outbox.news.notify_one();
    }
}

fn count(counter: &AtomicU64) {
    // Relaxed: the counter orders no other memory.
    counter.fetch_add(1, Ordering::Relaxed);
}
