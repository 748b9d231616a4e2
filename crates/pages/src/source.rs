//! The pages' view of a cluster: the trait [`Source`], which lists, reads and writes objects, and the values of its
//! methods. Implements none of it.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::Stream;
use serde_json::Value;

use crate::kind::Kind;

/// The return type of a method of [`Source`].
pub type Future<'a, T> = Pin<Box<dyn std::future::Future<Output = T> + Send + 'a>>;

/// The return type of [`Source::changes`].
pub type Changes = Pin<Box<dyn Stream<Item = Change> + Send>>;

/// Provides the objects of a cluster, and writes them.
pub trait Source: Send + Sync + 'static {
    /// Every existing object, then every change, for as long as the caller reads. If the stream fails it ends, and
    /// the caller opens another one.
    fn changes(&self) -> Changes;

    /// One object in its present state, with `apiVersion` and `kind`. `namespace` is empty for kinds without one.
    fn get<'a>(
        &'a self,
        kind: Kind,
        namespace: &'a str,
        name: &'a str,
    ) -> Future<'a, Result<Value, Refused>>;

    /// Creates an object and returns it as it was stored.
    fn create(&self, kind: Kind, object: Value) -> Future<'_, Result<Value, Refused>>;

    /// Replaces an object including its status, and returns it as it was stored. Refuses with 409 if the given object
    /// has a `resourceVersion` and the stored one was changed since.
    fn replace(&self, kind: Kind, object: Value) -> Future<'_, Result<Value, Refused>>;

    /// Deletes an object.
    fn delete<'a>(
        &'a self,
        kind: Kind,
        namespace: &'a str,
        name: &'a str,
    ) -> Future<'a, Result<(), Refused>>;

    /// Why a pending pod is not placed, and what would help. `None` if there is nothing to add to what the pod itself
    /// says.
    fn why<'a>(&'a self, namespace: &'a str, name: &'a str) -> Future<'a, Option<Why>>;

    /// The scheduler's configuration.
    fn configuration(&self) -> Future<'_, Result<Value, Refused>>;

    /// Replaces the scheduler's configuration. A configuration that cannot run is refused and changes nothing.
    fn configure(&self, configuration: Value) -> Future<'_, Result<(), Refused>>;

    /// The present configuration plus the plugins that it lacks to place shares of GPUs; `None` if it lacks none.
    fn configuration_for_gpus(&self) -> Option<Value> {
        None
    }

    /// All objects, as `GET /api/v1/export` returns them.
    fn export(&self) -> Future<'_, Result<Value, Refused>>;

    /// Imports an export. If it is refused, nothing changes. With `replace`, all existing objects are deleted first.
    fn import(&self, state: Value, replace: bool) -> Future<'_, Result<(), Refused>>;

    /// Restores the state at the start.
    fn reset(&self) -> Future<'_, Result<(), Refused>>;

    /// Whether [`Source::compare`] is supported; if not, no page offers it.
    fn can_compare(&self) -> bool {
        false
    }

    /// Runs several configurations over the same objects and returns the results of each.
    fn compare(&self, question: Compare) -> Future<'_, Result<Comparison, Refused>> {
        drop(question);
        Box::pin(async {
            Err(Refused::new(
                501,
                "this server cannot compare configurations",
            ))
        })
    }
}

/// A change of a cluster.
#[derive(Debug, Clone)]
pub enum Change {
    /// A full list follows: discard everything received before.
    Began,
    /// An object is new or has changed.
    Put(Kind, Arc<Value>),
    /// An object was deleted. This was its last state.
    Gone(Kind, Arc<Value>),
    /// All objects that existed at the beginning have been sent.
    Listed,
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    /// The HTTP status.
    pub code: u16,
    /// The message for the user, in the API server's words.
    pub message: String,
}

impl Refused {
    /// A refusal with this HTTP status and message.
    pub fn new(code: u16, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

/// Why a pod is not placed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Why {
    /// One sentence with the pod as its subject.
    pub summary: String,
    /// Changes that are each enough by themselves, the smallest first.
    pub ways: Vec<Way>,
    /// The nodes that come closest, each with its reason.
    pub nodes: Vec<Reason>,
    /// Other notes.
    pub notes: Vec<String>,
}

/// A change after which the pod would fit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Way {
    /// One sentence.
    pub text: String,
    /// The node on which the pod would then fit; empty if unknown.
    pub node: String,
    /// The edits to make.
    pub edits: Vec<String>,
}

/// Why one node refuses the pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reason {
    /// The node.
    pub node: String,
    /// In a few words.
    pub text: String,
    /// Each candidate device, in a sentence.
    pub devices: Vec<String>,
}

/// The configurations to compare, and the objects to compare them over.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Compare {
    /// A name and a scheduler configuration for each run besides the one with the present configuration.
    pub configurations: Vec<(String, Value)>,
    /// The number of nodes added in a run of its own; 0 for no such run.
    pub add_nodes: u32,
    /// The nodes that are drained in a run of its own.
    pub drain: Vec<String>,
    /// Whether every run places all pods again, even those that have a node.
    pub anew: bool,
}

/// The results of several runs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Comparison {
    /// One result for each run, in the order of the question.
    pub runs: Vec<Run>,
    /// Notes for the reader, each a sentence.
    pub notes: Vec<String>,
}

/// The result of one run. A number that cannot be measured is `NaN`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Run {
    /// The name of the run.
    pub name: String,
    /// The number of pods with a node.
    pub placed: u64,
    /// The number of pods without a node, by reason.
    pub pending: Vec<(String, u64)>,
    /// The part of the GPUs' memory that is promised, in percent.
    pub memory_percent: f64,
    /// The part of the GPUs' compute that is promised, in percent.
    pub compute_percent: f64,
    /// The part of the nodes' CPU that is requested, in percent.
    pub cpu_percent: f64,
    /// The part of the nodes' memory that is requested, in percent.
    pub node_memory_percent: f64,
    /// The part of the free GPU memory on GPUs that are too full for the typical request, in percent.
    pub fragmentation_percent: f64,
    /// How evenly namespaces got what they asked for (Jain's index): 1 means evenly, 0 means that one namespace has
    /// everything.
    pub fairness: f64,
    /// Half of the pods waited at most this long for their node, in seconds of the run.
    pub waited_p50_seconds: f64,
    /// 95 of 100 pods waited at most this long, in seconds of the run.
    pub waited_p95_seconds: f64,
    /// The longest wait, in seconds of the run.
    pub waited_max_seconds: f64,
    /// The number of pods that lost their node because it was drained.
    pub drained: u64,
    /// The number of pods that lost their node to a pod of a higher priority.
    pub preempted: u64,
}
