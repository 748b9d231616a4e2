//! What happened to a pod or a node, for whoever looks at it with `kubectl describe`. Owns the queue, the limits and
//! the wording. Never waits in a caller, and never costs more than a bounded piece of memory: an API server that is
//! gone makes events late, then lost, and the loss is counted.
//!
//! One `Event` object stands for all that is said of one object under one reason: it is patched with the latest
//! sentence and a count, so a pod that stays pending does not fill etcd.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use placement::{Misfit, NodeMisfit};
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

/// A sentence is at most this long, in bytes; what is longer ends in `…`. (It is what the newer events API takes.)
pub const MOST_MESSAGE_BYTES: usize = 1024;

/// Whether all is well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// It is.
    Normal,
    /// Somebody should look.
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

    /// A node. `kubectl describe node` looks for its name in the place of a uid.
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

/// How much is said, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How many events wait at most; beyond that the oldest is lost, good news first.
    pub waiting: usize,
    /// How many are sent in a row after a quiet time.
    pub burst: u32,
    /// How long one more takes after that.
    pub every: Duration,
    /// How many of one object are sent in a row after a quiet time.
    pub burst_of_object: u32,
    /// How long one more of it takes after that.
    pub every_of_object: Duration,
    /// An event that could not be sent for so long is lost.
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

/// What became of events since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Waiting at this moment.
    pub waiting: u64,
    /// Written to the API server, counting each repetition that was written.
    pub sent: u64,
    /// Said again before the first was sent, so that one was written for both.
    pub merged: u64,
    /// Lost because too many waited, or because the API server was away for too long.
    pub dropped: u64,
    /// Left out because the same object had said enough.
    pub limited: u64,
    /// Refused by the API server.
    pub refused: u64,
}

/// Says what happened. A clone speaks through the same queue; the last one that goes takes the queue with it.
#[derive(Clone)]
pub struct Events(Option<Arc<Handle>>);

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Events").field(&self.counts()).finish()
    }
}

struct Handle {
    shared: Arc<Shared>,
    sender: tokio::task::JoinHandle<()>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.sender.abort();
    }
}

struct Shared {
    limits: Limits,
    queue: Mutex<Queue>,
    news: Notify,
    sent: AtomicU64,
    merged: AtomicU64,
    dropped: AtomicU64,
    limited: AtomicU64,
    refused: AtomicU64,
}

/// What is said of one object under one reason.
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

/// Warnings go before good news; each in the order in which it was first said.
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

    /// Whether one more may wait, perhaps in another's place. No good news takes the place of a warning.
    fn has_room(&self, most: usize, kind: Kind) -> bool {
        most > 0 && (self.said.len() < most || kind == Kind::Warning || !self.good_news.is_empty())
    }

    /// Makes room; returns whether something was lost.
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
    /// Starts the task that sends. `component` is who speaks: the scheduler's name. Needs a running tokio.
    pub fn start(client: kube::Client, component: &str) -> Self {
        Self::start_with(client, component, Limits::default(), Timestamp::now)
    }

    /// The same with limits and a clock of the caller's.
    pub fn start_with(
        client: kube::Client,
        component: &str,
        limits: Limits,
        now: fn() -> Timestamp,
    ) -> Self {
        let shared = Arc::new(Shared {
            limits,
            queue: Mutex::default(),
            news: Notify::new(),
            sent: AtomicU64::new(0),
            merged: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            limited: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        });
        let sender = Sender {
            client,
            component: component.to_owned(),
            shared: Arc::clone(&shared),
            now,
            tokens: Bucket::new(limits.burst, limits.every),
            objects: HashMap::new(),
            number: 0,
        };
        Self(Some(Arc::new(Handle {
            shared,
            sender: tokio::spawn(sender.run()),
        })))
    }

    /// Says nothing to nobody.
    pub fn silent() -> Self {
        Self(None)
    }

    /// Says this of a pod.
    pub fn pod(&self, pod: impl Into<About>, kind: Kind, reason: &str, message: impl Into<String>) {
        self.say(pod.into(), kind, reason, message.into());
    }

    /// Says this of a node.
    pub fn node(&self, name: &str, kind: Kind, reason: &str, message: impl Into<String>) {
        self.say(About::node(name), kind, reason, message.into());
    }

    /// What became of all that was said.
    pub fn counts(&self) -> Counts {
        let Some(handle) = &self.0 else {
            return Counts::default();
        };
        let shared = &handle.shared;
        // Relaxed: each counter is read for itself.
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            waiting: u64::try_from(shared.queue.lock().said.len()).unwrap_or(u64::MAX),
            sent: read(&shared.sent),
            merged: read(&shared.merged),
            dropped: read(&shared.dropped),
            limited: read(&shared.limited),
            refused: read(&shared.refused),
        }
    }

    fn say(&self, about: About, kind: Kind, reason: &str, message: String) {
        let Some(handle) = &self.0 else { return };
        let shared = &handle.shared;
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
        let mut queue = shared.queue.lock();
        if let Some(before) = queue.said.get_mut(&topic) {
            said.count = before.count.saturating_add(1);
            said.first = before.first;
            said.since = before.since;
            *before = said;
            count(&shared.merged);
            return;
        }
        if !queue.has_room(shared.limits.waiting, kind) {
            count(&shared.dropped);
            return;
        }
        if queue.shrink_to(shared.limits.waiting.saturating_sub(1)) {
            count(&shared.dropped);
        }
        queue.line(kind).push_back(topic.clone());
        queue.said.insert(topic, said);
        drop(queue);
        shared.news.notify_one();
    }
}

fn count(counter: &AtomicU64) {
    // Relaxed: the counter guards no other memory.
    counter.fetch_add(1, Ordering::Relaxed);
}

/// So many at once, then one each so often.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    most: u32,
    every: Duration,
    left: u32,
    since: Instant,
}

impl Bucket {
    fn new(most: u32, every: Duration) -> Self {
        Self {
            most,
            every,
            left: most,
            since: Instant::now(),
        }
    }

    /// Takes one, or says how long until there is one.
    fn take(&mut self, now: Instant) -> Result<(), Duration> {
        let passed = now.saturating_duration_since(self.since);
        let every = self.every.max(Duration::from_nanos(1));
        let grown = u32::try_from(passed.as_nanos() / every.as_nanos()).unwrap_or(u32::MAX);
        if self.left.saturating_add(grown) >= self.most {
            self.left = self.most;
            self.since = now;
        } else {
            self.left += grown;
            self.since += every.saturating_mul(grown);
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err((self.since + every).saturating_duration_since(now)),
        }
    }
}

/// Objects that are remembered, so that what is said again becomes a patch.
const MOST_OBJECTS: usize = 4096;

/// How long one call may take.
const CALL: Duration = Duration::from_secs(5);

struct Sender {
    client: kube::Client,
    component: String,
    shared: Arc<Shared>,
    now: fn() -> Timestamp,
    tokens: Bucket,
    objects: HashMap<About, Object>,
    number: u64,
}

struct Object {
    tokens: Bucket,
    used: Instant,
    written: Vec<Written>,
}

struct Written {
    kind: Kind,
    reason: String,
    event: String,
    count: i32,
}

/// How a call ended that did not succeed.
enum Failed {
    /// The API server says no, and will say so again.
    Refused(String),
    /// It cannot be reached, or has no time.
    Away(String),
    /// The event to patch is no longer there.
    Gone,
}

impl Sender {
    async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        loop {
            let next = shared.queue.lock().next();
            let Some((topic, said)) = next else {
                shared.news.notified().await;
                continue;
            };
            // While the API server is away, old news is not even tried.
            if said.since.elapsed() >= shared.limits.patience {
                count(&shared.dropped);
                continue;
            }
            if !self.object_may_speak(&topic.about) {
                count(&shared.limited);
                continue;
            }
            while let Err(wait) = self.tokens.take(Instant::now()) {
                sleep(wait).await;
            }
            self.send(&topic, &said).await;
        }
    }

    fn object_may_speak(&mut self, about: &About) -> bool {
        let now = Instant::now();
        if self.objects.len() >= MOST_OBJECTS && !self.objects.contains_key(about) {
            // Half of them go, the longest silent first: what is said of them later is a new event.
            let mut used: Vec<Instant> = self.objects.values().map(|object| object.used).collect();
            used.sort_unstable();
            if let Some(middle) = used.get(used.len() / 2).copied() {
                self.objects.retain(|_, object| object.used > middle);
            }
        }
        let limits = &self.shared.limits;
        let object = self.objects.entry(about.clone()).or_insert_with(|| Object {
            tokens: Bucket::new(limits.burst_of_object, limits.every_of_object),
            used: now,
            written: Vec::new(),
        });
        object.used = now;
        object.tokens.take(now).is_ok()
    }

    /// Tries until it is written, refused or too old.
    async fn send(&mut self, topic: &Topic, said: &Said) {
        let mut pause = Duration::from_millis(500);
        loop {
            match self.try_send(topic, said).await {
                Ok(()) => return count(&self.shared.sent),
                Err(Failed::Refused(reason)) => {
                    tracing::debug!(object = %topic.about.name, reason = %topic.reason, %reason, "event refused");
                    return count(&self.shared.refused);
                }
                Err(Failed::Gone) => continue,
                Err(Failed::Away(reason)) => {
                    tracing::debug!(object = %topic.about.name, reason = %topic.reason, %reason, "event not sent yet");
                }
            }
            if said.since.elapsed() >= self.shared.limits.patience {
                return count(&self.shared.dropped);
            }
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(30));
        }
    }

    async fn try_send(&mut self, topic: &Topic, said: &Said) -> Result<(), Failed> {
        let namespace = match topic.about.namespace.as_str() {
            "" => "default",
            namespace => namespace,
        };
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let same =
            |written: &&mut Written| written.kind == topic.kind && written.reason == topic.reason;
        let object = self.objects.get_mut(&topic.about);
        let written = object.and_then(|object| object.written.iter_mut().find(same));
        if let Some(written) = written {
            let total = written.count.saturating_add(said.count);
            let patch = Patch::Merge(json!({
                "count": total,
                "lastTimestamp": Time(said.last),
                "message": said.message,
            }));
            let answer = call(api.patch(&written.event, &PatchParams::default(), &patch)).await;
            if matches!(answer, Err(Failed::Gone)) {
                let (kind, reason) = (topic.kind, &topic.reason);
                if let Some(object) = self.objects.get_mut(&topic.about) {
                    object
                        .written
                        .retain(|written| written.kind != kind || written.reason != *reason);
                }
            } else if answer.is_ok() {
                written.count = total;
            }
            return answer;
        }
        let event = self.event(topic, said, namespace);
        let name = event.metadata.name.clone().unwrap_or_default();
        match call(api.create(&PostParams::default(), &event)).await {
            // Nothing to patch here: the namespace is gone.
            Err(Failed::Gone) => return Err(Failed::Refused("not found".to_owned())),
            Err(failed) => return Err(failed),
            Ok(()) => {}
        }
        if let Some(object) = self.objects.get_mut(&topic.about) {
            object.written.push(Written {
                kind: topic.kind,
                reason: topic.reason.clone(),
                event: name,
                count: said.count,
            });
        }
        Ok(())
    }

    fn event(&mut self, topic: &Topic, said: &Said, namespace: &str) -> Event {
        self.number = self.number.wrapping_add(1);
        let about = &topic.about;
        // As client-go names them; the number keeps two of one nanosecond apart. A name has 253 bytes at most.
        let name = format!(
            "{}.{:x}{:04x}",
            cut(&about.name, 220),
            (self.now)().as_nanosecond(),
            self.number & 0xffff
        );
        Event {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some(about.kind.to_owned()),
                name: Some(about.name.clone()),
                namespace: some(&about.namespace),
                uid: some(&about.uid),
                ..ObjectReference::default()
            },
            type_: Some(topic.kind.as_str().to_owned()),
            reason: Some(topic.reason.clone()),
            message: Some(said.message.clone()),
            count: Some(said.count),
            first_timestamp: Some(Time(said.first)),
            last_timestamp: Some(Time(said.last)),
            source: Some(EventSource {
                component: some(&self.component),
                host: None,
            }),
            reporting_component: some(&self.component),
            ..Event::default()
        }
    }
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

async fn call<T>(answer: impl Future<Output = kube::Result<T>>) -> Result<(), Failed> {
    match timeout(CALL, answer).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Err(Failed::Gone),
        // Too many requests, and what a server says that cannot do its work now.
        Ok(Err(kube::Error::Api(status)))
            if (400..500).contains(&status.code) && status.code != 429 =>
        {
            Err(Failed::Refused(status.message.clone()))
        }
        Ok(Err(error)) => Err(Failed::Away(error.to_string())),
        Err(_elapsed) => Err(Failed::Away(format!("no answer within {CALL:?}"))),
    }
}

/// At most so many bytes, on one line; what was cut off is shown by `…`.
fn bounded(message: &str, most: usize) -> String {
    let line: String = message
        .chars()
        .map(|character| {
            if character.is_control() {
                ' '
            } else {
                character
            }
        })
        .collect();
    if line.len() <= most {
        return line;
    }
    let mut text = cut(&line, most.saturating_sub('…'.len_utf8())).to_owned();
    text.push('…');
    text
}

/// At most so many bytes of it.
fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

/// What `FilteringFailed` says: how many nodes do not meet the request, and the reasons in the words that users of the
/// reference know, those of most nodes first. The reference writes one event for each reason; here they share one, so
/// that a pod that waits has one event.
pub fn no_node(misfits: &[NodeMisfit]) -> String {
    let mut by_reason: Vec<(&'static str, Vec<&str>)> = Vec::new();
    for node in misfits {
        for code in codes(&node.misfit) {
            match by_reason.iter_mut().find(|(known, _)| *known == code) {
                Some((_, nodes)) => nodes.push(&node.node),
                None => by_reason.push((code, vec![&node.node])),
            }
        }
    }
    by_reason.sort_by(|a, b| b.1.len().cmp(&a.1.len()).then_with(|| a.0.cmp(b.0)));
    let mut text = format!("no available node, {} nodes do not meet", misfits.len());
    // Each reason gets its part of the room that is left, so the last ones are seen too.
    for (position, (code, nodes)) in by_reason.iter().enumerate() {
        let separator = if position == 0 { ": " } else { ", " };
        text.push_str(&format!("{separator}{} nodes {code}(", nodes.len()));
        let reasons_left = by_reason.len() - position;
        let room = MOST_MESSAGE_BYTES.saturating_sub(text.len()) / reasons_left;
        text.push_str(&names(nodes, room.saturating_sub(40)));
        text.push(')');
    }
    text
}

/// The reasons on one node, each once.
pub(crate) fn codes(misfit: &Misfit) -> Vec<&'static str> {
    match misfit {
        Misfit::UnknownNode => vec!["node unregistered"],
        Misfit::TooFewDevices { .. } => vec!["NodeInsufficientDevice"],
        Misfit::Devices { reasons, .. } => {
            let mut codes: Vec<&'static str> =
                reasons.iter().map(|(_, reason)| reason.code()).collect();
            codes.sort_unstable();
            codes.dedup();
            codes
        }
    }
}

/// As many names as there is room for, and how many more there are.
fn names(nodes: &[&str], room: usize) -> String {
    let mut text = String::new();
    for (position, node) in nodes.iter().enumerate() {
        if position > 0 && text.len() + node.len() > room {
            return format!("{text} and {} more", nodes.len() - position);
        }
        if position > 0 {
            text.push(',');
        }
        text.push_str(node);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_of_at_most_a_kibibyte() {
        assert_eq!(bounded("a\nb\u{7}c", 1024), "a b c");
        let long = "é".repeat(1000);
        let cut = bounded(&long, MOST_MESSAGE_BYTES);
        assert!(
            cut.len() <= MOST_MESSAGE_BYTES && cut.ends_with('…'),
            "{}",
            cut.len()
        );
        assert_eq!(bounded("", 10), "");
    }

    #[test]
    fn the_most_frequent_reason_comes_first_and_the_rarest_is_still_seen() {
        let unknown = |name: String| NodeMisfit {
            node: name.as_str().into(),
            misfit: Misfit::UnknownNode,
        };
        let few = |name: String| NodeMisfit {
            node: name.as_str().into(),
            misfit: Misfit::TooFewDevices {
                container: 0,
                vendor: placement::Vendor::new("NVIDIA"),
                present: 1,
                asked: 2,
            },
        };
        let one = no_node(&[unknown("n1".into())]);
        assert_eq!(
            one,
            "no available node, 1 nodes do not meet: 1 nodes node unregistered(n1)"
        );

        let mut misfits: Vec<NodeMisfit> = (0..4999)
            .map(|number| few(format!("a-node-with-quite-a-long-name-{number:04}")))
            .collect();
        misfits.push(unknown("rare".into()));
        let text = no_node(&misfits);
        assert!(text.len() <= MOST_MESSAGE_BYTES, "{}", text.len());
        assert!(
            text.starts_with(
                "no available node, 5000 nodes do not meet: 4999 nodes NodeInsufficientDevice(a-node"
            ),
            "{text}"
        );
        assert!(
            text.contains(" more), 1 nodes node unregistered(rare)"),
            "{text}"
        );
    }

    #[test]
    fn a_bucket_gives_its_burst_and_then_one_each_so_often() {
        let start = Instant::now();
        let mut bucket = Bucket::new(2, Duration::from_secs(30));
        bucket.since = start;
        assert_eq!(bucket.take(start), Ok(()));
        assert_eq!(bucket.take(start), Ok(()));
        assert_eq!(bucket.take(start), Err(Duration::from_secs(30)));
        let later = start + Duration::from_secs(45);
        assert_eq!(bucket.take(later), Ok(()));
        assert_eq!(bucket.take(later), Err(Duration::from_secs(15)));
        let much_later = start + Duration::from_secs(3600);
        assert_eq!(bucket.take(much_later), Ok(()));
        assert_eq!(bucket.take(much_later), Ok(()));
        assert!(bucket.take(much_later).is_err());
    }
}
