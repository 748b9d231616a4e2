//! The simulator's state: a cluster in memory, a scheduler configuration, and the initial state of both. Owns import,
//! export, reset and the change of the configuration. HTTP is in `api::simulator`.

pub mod compare;
mod export;
mod frames;
pub mod gpus;
mod import;
mod kinds;
pub mod outside;
mod page;
pub mod recording;
pub mod scenario;
mod shown;
mod turns;
mod view;
mod writes;

mod extender;
mod results;
mod volumes;

use std::sync::Arc;

use embedded_cluster::{Cluster, Snapshot, Status};
use parking_lot::RwLock;
use scheduling::config::Configuration;
use serde_json::Value;
use tokio::sync::watch;

use self::extender::Extender;

pub use self::export::Export;
pub use self::frames::{Frame, Frames, Since, Starts};
pub use self::import::{Import, Merge};
pub use self::kinds::{KINDS, Kind};
pub use self::page::Pages;
pub use self::results::Prefix;
pub use self::shown::Shown;
pub use self::writes::Scheduling;

/// A cluster in memory with a scheduler's configuration. Clones share it.
#[derive(Debug, Clone)]
pub struct Simulator(Arc<SimulatorInner>);

#[derive(Debug)]
struct SimulatorInner {
    cluster: Cluster,
    setup: RwLock<Arc<Setup>>,
    start: RwLock<Start>,
    /// Held shared by the scheduling loop while it writes, and exclusively by changes of the whole state.
    gate: tokio::sync::RwLock<()>,
    /// The loop's progress.
    rest: watch::Sender<Rest>,
    /// Wakes an idle loop.
    look: tokio::sync::Notify,
    /// Counts changes of the whole state: results that the loop computed before such a change are discarded.
    epoch: watch::Sender<u64>,
}

/// The version up to which the loop has seen the cluster, and whether pods are still being scheduled.
#[derive(Debug, Clone, Copy, Default)]
struct Rest {
    version: u64,
    busy: bool,
}

/// The state that a reset restores.
#[derive(Debug)]
struct Start {
    objects: Snapshot,
    setup: Arc<Setup>,
}

/// A configuration that can run.
#[derive(Debug, Clone, PartialEq)]
pub struct Setup {
    /// The configuration as it was written.
    pub shown: Shown,
    /// The configuration with every default filled in.
    pub running: Configuration,
}

/// Why a request was refused. Nothing of it is done then.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// The request cannot be parsed.
    #[error("{0}")]
    Unreadable(String),
    /// The request is understood, but cannot be done.
    #[error("{0}")]
    Impossible(String),
    /// The version at which a watch is to start is no longer kept.
    #[error("{0}")]
    Expired(String),
}

impl Setup {
    /// The configuration that kube-scheduler uses by default.
    pub fn defaults() -> Self {
        let running = Configuration::default();
        let value = serde_json::to_value(&running).unwrap_or_default();
        Self {
            shown: Shown::read(&value).unwrap_or_default(),
            running,
        }
    }

    /// Reads and checks a whole configuration.
    ///
    /// # Errors
    ///
    /// The part that cannot be read or cannot run.
    pub fn read(written: &Value) -> Result<Self, Refusal> {
        let shown = Shown::read(written).map_err(|error| {
            Refusal::Impossible(format!(
                "the scheduler configuration cannot be read: {error}"
            ))
        })?;
        let running = Configuration::read(written).map_err(|error| {
            Refusal::Impossible(format!("the scheduler configuration cannot run: {error}"))
        })?;
        for (at, extender) in running.extenders.iter().enumerate() {
            extender::check(extender).map_err(|why| {
                let why = format!("the scheduler configuration cannot run: extenders[{at}].{why}");
                Refusal::Impossible(why)
            })?;
        }
        Ok(Self { shown, running })
    }

    /// This configuration with the profiles and extenders of another one, the only parts that a `POST` changes.
    ///
    /// # Errors
    ///
    /// The part that cannot be read or cannot run.
    pub fn with_profiles_of(&self, posted: &Value) -> Result<Self, Refusal> {
        let Value::Object(posted) = posted else {
            let why = "the scheduler configuration is not an object such as {\"profiles\":[]}";
            return Err(Refusal::Impossible(why.to_owned()));
        };
        let mut whole = self.shown.to_value();
        for name in ["profiles", "extenders"] {
            let list = posted.get(name).cloned().unwrap_or_default();
            if let Some(fields) = whole.as_object_mut() {
                fields.insert(name.to_owned(), list);
            }
        }
        Self::read(&whole)
    }
}

impl Simulator {
    /// A simulator of this cluster. A reset restores the current state of the cluster and the configuration.
    pub fn new(cluster: Cluster, setup: Setup) -> Self {
        let setup = Arc::new(setup);
        let start = Start {
            objects: cluster.snapshot(),
            setup: setup.clone(),
        };
        Self(Arc::new(SimulatorInner {
            cluster,
            setup: RwLock::new(setup),
            start: RwLock::new(start),
            gate: tokio::sync::RwLock::default(),
            rest: watch::Sender::new(Rest::default()),
            look: tokio::sync::Notify::new(),
            epoch: watch::Sender::new(0),
        }))
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.0.cluster
    }

    /// The current configuration.
    pub fn setup(&self) -> Arc<Setup> {
        self.0.setup.read().clone()
    }

    /// Replaces the profiles and extenders; the rest of the configuration stays.
    ///
    /// # Errors
    ///
    /// The part that cannot be read or cannot run; the current configuration then stays in force.
    pub async fn configure(&self, posted: &Value) -> Result<(), Refusal> {
        let _alone = self.0.gate.write().await;
        let setup = self.setup().with_profiles_of(posted)?;
        self.adopt(Some(setup));
        Ok(())
    }

    /// Restores the initial objects and configuration, in one step.
    pub async fn reset(&self) {
        let _alone = self.0.gate.write().await;
        let start = self.0.start.read();
        let changed = self.0.cluster.restore(&start.objects);
        tracing::info!(changed, "reset");
        let setup = start.setup.clone();
        drop(start);
        self.adopt(Some(Setup::clone(&setup)));
    }

    /// Takes the objects and the configuration of an import over: all of it or nothing.
    ///
    /// # Errors
    ///
    /// The object or the part of the configuration that cannot be taken over, and why.
    pub async fn import(&self, import: &Import, merge: Merge) -> Result<usize, Refusal> {
        let setup = match &import.configuration {
            Some(configuration) => Some(Setup::read(configuration)?),
            None => None,
        };
        let _alone = self.0.gate.write().await;
        let changes = import::apply(&self.0.cluster, import, merge).await?;
        tracing::info!(changes, "imported");
        self.adopt(setup);
        Ok(changes)
    }

    /// Makes the current state the one that a reset restores.
    pub async fn start_from_here(&self) {
        let _alone = self.0.gate.write().await;
        *self.0.start.write() = Start {
            objects: self.0.cluster.snapshot(),
            setup: self.setup(),
        };
    }

    /// Passes a question on to an extender of the configuration; `None` if there is no extender with that number and
    /// verb.
    pub async fn ask_extender(
        &self,
        number: usize,
        verb: &str,
        body: &Value,
    ) -> Option<Result<Value, Refusal>> {
        let settings = self.setup().running.extenders.get(number)?.clone();
        let answer = Extender::new(settings).pass_on(verb, body).await?;
        Some(answer.map_err(|why| Refusal::Impossible(why.to_string())))
    }

    /// Everything that an import accepts, at one version.
    pub fn export(&self) -> Export {
        Export::of(&self.0.cluster, self.setup().shown.clone())
    }

    /// The changes of objects of the seven kinds.
    ///
    /// # Errors
    ///
    /// The version at which a watch cannot start.
    pub fn frames(&self, starts: &Starts) -> Result<Frames, Refusal> {
        Frames::open(&self.0.cluster, starts)
    }

    /// Waits until the loop has processed everything that has been written, and no pod waits for its turn. Pods that
    /// wait for an event may remain.
    pub async fn at_rest(&self) {
        let version = self.0.cluster.resource_version();
        let mut rest = self.0.rest.subscribe();
        self.0.look.notify_one();
        let rested = rest.wait_for(|rest| rest.version >= version && !rest.busy);
        drop(rested.await);
    }

    fn adopt(&self, setup: Option<Setup>) {
        if let Some(setup) = setup {
            *self.0.setup.write() = Arc::new(setup);
        }
        self.0.epoch.send_modify(|epoch| *epoch += 1);
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        match status.code {
            400 => Self::Unreadable(status.message),
            410 => Self::Expired(status.message),
            _ => Self::Impossible(status.message),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_post_takes_profiles_and_extenders_alone() {
        let before =
            Setup::read(&json!({ "parallelism": 7, "profiles": [{ "schedulerName": "a" }] }));
        let posted = json!({
            "parallelism": 3,
            "extenders": [{ "urlPrefix": "http://e/", "filterVerb": "f", "weight": 1 }]
        });

        let after = before.unwrap().with_profiles_of(&posted).unwrap();

        assert_eq!(after.running.parallelism, 7);
        assert_eq!(
            after.running.profiles[0].scheduler_name,
            "default-scheduler"
        );
        let shown = after.shown.to_value();
        assert!(shown.get("profiles").is_none());
        assert_eq!(shown["extenders"][0]["httpTimeout"], "0s");
    }
}
