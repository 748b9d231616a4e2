//! Follows objects of the API server by one watch that goes on for days. Owns when the agent lists: at its start, and
//! when the API server no longer has the past that a watch would go on from.
//!
//! A thousand agents list again at one moment when an API server restarts. So every pause has a random part, a watch
//! goes on from the last bookmark, and the objects come through the watch itself (a streaming list) where the API
//! server can do that; else by a list from its cache (`resourceVersion=0`), never from etcd.

use std::fmt::Debug;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// The first pause after a failure, and the longest.
const FIRST: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(60);
/// Agents whose watch has expired read everything again within this time: the first if the API server streams lists,
/// the second if not.
const SPREAD: Duration = Duration::from_secs(10);
const LISTS_SPREAD: Duration = Duration::from_secs(60);
/// A watch ends after this time and begins again where it ended; not all of a cluster at one moment.
const WATCH_S: f64 = 240.0;
const WATCH_MORE_S: f64 = 50.0;
/// Longest wait for an answer, and for all objects.
const PATIENCE: Duration = Duration::from_secs(10);
const ALL: Duration = Duration::from_secs(60);
/// The first version of Kubernetes whose API server may stream a list; an older one ignores that it is asked to.
const STREAMS_FROM: (u32, u32) = (1, 32);
/// The annotation of the bookmark after which all objects have come.
const ALL_CAME: &str = "k8s.io/initial-events-end";

/// A message about the objects.
#[derive(Debug, Clone, PartialEq)]
pub enum Told<K> {
    /// All there are; others that were known are gone.
    All(Vec<K>),
    /// A new or changed one.
    Put(K),
    /// A deleted one.
    Gone(K),
    /// The watch goes on after [`Told::Down`].
    Up,
    /// The API server does not answer; earlier messages may be out of date.
    Down(String),
}

/// Follows the objects that this field selector names. Ends when the receiver is dropped.
pub fn follow<K>(client: Client, api: Api<K>, fields: &str) -> mpsc::Receiver<Told<K>>
where
    K: kube::Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let (to, told) = mpsc::channel(64);
    let mut follower = Follower {
        api,
        fields: fields.to_owned(),
        to,
        version: None,
        streams: false,
        is_down: false,
    };
    tokio::spawn(async move {
        follower.streams = streams(&client).await;
        // The receiver was dropped.
        let Gone = follower.run().await;
    });
    told
}

/// Whether the API server may stream a list. An API server that cannot returns an error.
async fn streams(client: &Client) -> bool {
    let Ok(Ok(version)) = timeout(PATIENCE, client.apiserver_version()).await else {
        return false;
    };
    let number = |text: &str| kube_api::version::number(text).unwrap_or(0);
    (number(&version.major), number(&version.minor)) >= STREAMS_FROM
}

/// The receiver was dropped.
struct Gone;

/// How one watch ended.
enum WatchEnd {
    /// In time: it begins again where it ended.
    Over,
    /// The API server no longer has what came after the last event.
    Expired,
    /// The API server has streaming lists switched off: it is listed instead, at once.
    NoStreams,
    Failed(String),
}

struct Follower<K> {
    api: Api<K>,
    fields: String,
    to: mpsc::Sender<Told<K>>,
    /// Where the next watch goes on.
    version: Option<String>,
    streams: bool,
    is_down: bool,
}

impl<K> Follower<K>
where
    K: kube::Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    async fn run(&mut self) -> Gone {
        let mut pause = FIRST;
        loop {
            let ended = match self.once().await {
                Ok(ended) => ended,
                Err(gone) => return gone,
            };
            let (wait, why) = match ended {
                WatchEnd::NoStreams => {
                    self.streams = false;
                    continue;
                }
                WatchEnd::Over => {
                    pause = FIRST;
                    (FIRST.mul_f64(jitter()), None)
                }
                WatchEnd::Expired => {
                    self.version = None;
                    let spread = if self.streams { SPREAD } else { LISTS_SPREAD };
                    (
                        spread.mul_f64(jitter()),
                        Some("the watch has expired".to_owned()),
                    )
                }
                WatchEnd::Failed(why) => {
                    let wait = pause.mul_f64(0.5 + jitter());
                    pause = (pause * 2).min(MOST);
                    (wait, Some(why))
                }
            };
            if let Some(why) = why {
                self.is_down = true;
                if self.tell(Told::Down(why)).await.is_err() {
                    return Gone;
                }
            }
            tokio::select! {
                () = sleep(wait) => {}
                () = self.to.closed() => return Gone,
            }
        }
    }

    async fn tell(&mut self, told: Told<K>) -> Result<(), Gone> {
        self.to.send(told).await.map_err(|_| Gone)
    }

    /// One watch, from its beginning to its end.
    async fn once(&mut self) -> Result<WatchEnd, Gone> {
        if self.version.is_none() && !self.streams {
            let from_cache = ListParams::default().fields(&self.fields).match_any();
            let listed = match timeout(ALL, self.api.list(&from_cache)).await {
                Ok(Ok(listed)) => listed,
                Ok(Err(error)) => return Ok(self.failed(&error)),
                Err(_) => return Ok(WatchEnd::Failed("no answer in time".to_owned())),
            };
            self.version = listed.metadata.resource_version;
            self.tell(Told::All(listed.items)).await?;
            self.is_down = false;
        }
        let lasts = WATCH_S + WATCH_MORE_S * jitter();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "some hundred seconds"
        )]
        let mut watch = WatchParams::default()
            .fields(&self.fields)
            .timeout(lasts as u32);
        let from = self.version.clone();
        if from.is_none() {
            watch = watch.initial_events();
        }
        // No version: all objects as they are now, not as some cache has them.
        let from_version = from.clone().unwrap_or_default();
        let asked = timeout(PATIENCE, self.api.watch(&watch, &from_version)).await;
        let mut events = match asked {
            Ok(Ok(events)) => Box::pin(events),
            Ok(Err(error)) => return Ok(self.failed(&error)),
            Err(_) => return Ok(WatchEnd::Failed("no answer in time".to_owned())),
        };
        if from.is_none() {
            match timeout(ALL, self.initial(&mut events)).await {
                Ok(Ok(None)) => {}
                Ok(Ok(Some(ended))) => return Ok(ended),
                Ok(Err(gone)) => return Err(gone),
                Err(_) => return Ok(WatchEnd::Failed("not all objects came in time".to_owned())),
            }
        } else if std::mem::take(&mut self.is_down) {
            self.tell(Told::Up).await?;
        }
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = self.to.closed() => return Err(Gone),
            };
            match event {
                None => return Ok(WatchEnd::Over),
                Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                    self.version = object.resource_version();
                    self.tell(Told::Put(object)).await?;
                }
                Some(Ok(WatchEvent::Deleted(object))) => {
                    self.version = object.resource_version();
                    self.tell(Told::Gone(object)).await?;
                }
                Some(Ok(WatchEvent::Bookmark(mark))) => {
                    self.version = Some(mark.metadata.resource_version);
                }
                Some(Ok(WatchEvent::Error(status))) => {
                    return Ok(self.failed(&kube::Error::Api(status)));
                }
                Some(Err(error)) => return Ok(self.failed(&error)),
            }
        }
    }

    /// Collects the objects that stand at the beginning of a streaming list.
    async fn initial(
        &mut self,
        events: &mut (impl Stream<Item = kube::Result<WatchEvent<K>>> + Unpin),
    ) -> Result<Option<WatchEnd>, Gone> {
        let mut all = Vec::new();
        loop {
            match events.next().await {
                None => return Ok(Some(WatchEnd::Failed("the watch ended early".to_owned()))),
                Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                    all.push(object);
                }
                Some(Ok(WatchEvent::Deleted(object))) => {
                    let uid = object.uid();
                    all.retain(|known| known.uid() != uid);
                }
                Some(Ok(WatchEvent::Bookmark(mark))) => {
                    if mark.metadata.annotations.contains_key(ALL_CAME) {
                        self.version = Some(mark.metadata.resource_version);
                        self.is_down = false;
                        self.tell(Told::All(all)).await?;
                        return Ok(None);
                    }
                }
                Some(Ok(WatchEvent::Error(status))) => {
                    return Ok(Some(self.failed(&kube::Error::Api(status))));
                }
                Some(Err(error)) => return Ok(Some(self.failed(&error))),
            }
        }
    }

    fn failed(&mut self, error: &kube::Error) -> WatchEnd {
        if let kube::Error::Api(status) = error {
            match status.code {
                410 => return WatchEnd::Expired,
                // It knows the question, and has the answer switched off.
                400 | 422 if self.streams && self.version.is_none() => return WatchEnd::NoStreams,
                _ => {}
            }
        }
        WatchEnd::Failed(error.to_string())
    }
}

/// From 0 to 1.
fn jitter() -> f64 {
    let bits = RandomState::new().build_hasher().finish() >> 32;
    u32::try_from(bits).map_or(0.5, |bits| f64::from(bits) / f64::from(u32::MAX))
}
