//! The task that writes events: its rate, its limit for one object, and its retries while the API server is away.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use super::words::cut;
use super::{About, Kind, Outbox, Said, Topic, count};

/// A token bucket: `burst` at once, then one for each interval.
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

    /// Takes a token, or returns how long until there is one.
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

/// How many objects are remembered, so that a repeated event becomes a patch.
const MOST_OBJECTS: usize = 4096;

/// The time limit of one call.
const CALL: Duration = Duration::from_secs(5);

pub(super) struct Sender {
    client: kube::Client,
    component: String,
    outbox: Arc<Outbox>,
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

/// Why a call failed.
enum Failed {
    /// The API server refuses, and would refuse again.
    Refused(String),
    /// The API server cannot be reached, or is overloaded.
    Away(String),
    /// The event to patch is no longer there.
    Gone,
}

impl Sender {
    pub(super) fn new(
        client: kube::Client,
        component: &str,
        outbox: Arc<Outbox>,
        now: fn() -> Timestamp,
    ) -> Self {
        let tokens = Bucket::new(outbox.limits.burst, outbox.limits.every);
        Self {
            client,
            component: component.to_owned(),
            outbox,
            now,
            tokens,
            objects: HashMap::new(),
            number: 0,
        }
    }

    pub(super) async fn run(mut self) {
        let outbox = Arc::clone(&self.outbox);
        loop {
            let next = outbox.queue.lock().next();
            let Some((topic, said)) = next else {
                outbox.news.notified().await;
                continue;
            };
            // While the API server is away, events that are too old are not sent at all.
            if said.since.elapsed() >= outbox.limits.patience {
                count(&outbox.dropped);
                continue;
            }
            if !self.object_may_speak(&topic.about) {
                count(&outbox.limited);
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
            // Half of the remembered objects are forgotten, those first that have been silent the longest. A later
            // event about one of them becomes a new `Event` object.
            let mut used: Vec<Instant> = self.objects.values().map(|object| object.used).collect();
            used.sort_unstable();
            if let Some(middle) = used.get(used.len() / 2).copied() {
                self.objects.retain(|_, object| object.used > middle);
            }
        }
        let limits = &self.outbox.limits;
        let object = self.objects.entry(about.clone()).or_insert_with(|| Object {
            tokens: Bucket::new(limits.burst_of_object, limits.every_of_object),
            used: now,
            written: Vec::new(),
        });
        object.used = now;
        object.tokens.take(now).is_ok()
    }

    /// Retries until the event is written, refused or too old.
    async fn send(&mut self, topic: &Topic, said: &Said) {
        let mut pause = Duration::from_millis(500);
        loop {
            match self.try_send(topic, said).await {
                Ok(()) => return count(&self.outbox.sent),
                Err(Failed::Refused(reason)) => {
                    tracing::debug!(object = %topic.about.name, reason = %topic.reason, %reason, "event refused");
                    return count(&self.outbox.refused);
                }
                Err(Failed::Gone) => continue,
                Err(Failed::Away(reason)) => {
                    tracing::debug!(object = %topic.about.name, reason = %topic.reason, %reason, "event not sent yet");
                }
            }
            if said.since.elapsed() >= self.outbox.limits.patience {
                return count(&self.outbox.dropped);
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
            // A creation that is answered with 404: the namespace is gone.
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
        // Named as client-go does; the number tells two events of the same nanosecond apart. A name has 253 bytes at
        // most.
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
        // Too many requests, or an error of a server that cannot work at the moment.
        Ok(Err(kube::Error::Api(status)))
            if (400..500).contains(&status.code) && status.code != 429 =>
        {
            Err(Failed::Refused(status.message.clone()))
        }
        Ok(Err(error)) => Err(Failed::Away(error.to_string())),
        Err(_elapsed) => Err(Failed::Away(format!("no answer within {CALL:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_gives_its_burst_and_then_one_per_interval() {
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
