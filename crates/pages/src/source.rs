//! What the pages need of a cluster: the trait [`Source`], which lists, reads and writes objects, and the values that its
//! methods take and give. Implements none of it.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::Stream;
use serde_json::Value;

use crate::kind::Kind;

/// What a method of [`Source`] returns.
pub type Future<'a, T> = Pin<Box<dyn std::future::Future<Output = T> + Send + 'a>>;

/// What [`Source::changes`] returns.
pub type Changes = Pin<Box<dyn Stream<Item = Change> + Send>>;

/// Gives the objects of a cluster and writes them.
pub trait Source: Send + Sync + 'static {
    /// Every object that there is, then every change, for as long as the caller reads. The stream ends when it cannot
    /// go on; the caller then opens another one.
    fn changes(&self) -> Changes;

    /// One object as it is, with `apiVersion` and `kind`. `namespace` is empty for kinds without one.
    fn get<'a>(
        &'a self,
        kind: Kind,
        namespace: &'a str,
        name: &'a str,
    ) -> Future<'a, Result<Value, Refused>>;

    /// Makes an object and returns it as it was made.
    fn create(&self, kind: Kind, object: Value) -> Future<'_, Result<Value, Refused>>;

    /// Replaces an object, its status included, and returns it as it is then. Refuses with 409 when the object carries
    /// a `resourceVersion` and was changed since.
    fn replace(&self, kind: Kind, object: Value) -> Future<'_, Result<Value, Refused>>;

    /// Takes an object away.
    fn delete<'a>(
        &'a self,
        kind: Kind,
        namespace: &'a str,
        name: &'a str,
    ) -> Future<'a, Result<(), Refused>>;

    /// Why a pending pod is not placed, and what would help. None where there is nothing to say beyond what stands on
    /// the pod.
    fn why<'a>(&'a self, namespace: &'a str, name: &'a str) -> Future<'a, Option<Why>>;

    /// The scheduler's configuration.
    fn configuration(&self) -> Future<'_, Result<Value, Refused>>;

    /// Replaces the scheduler's configuration. A configuration that cannot run is refused and changes nothing.
    fn configure(&self, configuration: Value) -> Future<'_, Result<(), Refused>>;

    /// The present configuration with what it lacks to place shares of GPUs; none where it lacks nothing.
    fn configuration_for_gpus(&self) -> Option<Value> {
        None
    }

    /// Everything, as `GET /api/v1/export` gives it.
    fn export(&self) -> Future<'_, Result<Value, Refused>>;

    /// Takes an export in. Refused, it changes nothing. With `replace`, what was there before is deleted first.
    fn import(&self, state: Value, replace: bool) -> Future<'_, Result<(), Refused>>;

    /// Goes back to the state at the start.
    fn reset(&self) -> Future<'_, Result<(), Refused>>;

    /// Whether [`Source::compare`] can answer; without it, no page offers it.
    fn can_compare(&self) -> bool {
        false
    }

    /// Runs several configurations over the same objects and says how each did.
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

/// One thing that happened.
#[derive(Debug, Clone)]
pub enum Change {
    /// What follows is everything that there is: forget what was told before.
    Began,
    /// An object is there, new or changed.
    Put(Kind, Arc<Value>),
    /// An object is gone. This is how it was last.
    Gone(Kind, Arc<Value>),
    /// Everything that there was at the beginning has been told.
    Listed,
}

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    /// The HTTP status.
    pub code: u16,
    /// What a person reads, as the API server says it.
    pub message: String,
}

impl Refused {
    /// A refusal with this HTTP status and sentence.
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
    /// In one sentence, of which the pod is the subject.
    pub summary: String,
    /// Changes each of which is enough by itself, the smallest first.
    pub ways: Vec<Way>,
    /// The nodes that come nearest, each with its reason.
    pub nodes: Vec<Reason>,
    /// What else matters.
    pub notes: Vec<String>,
}

/// A change after which the pod would fit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Way {
    /// In one sentence.
    pub text: String,
    /// Where the pod would fit then; empty where that is not known.
    pub node: String,
    /// What to write where.
    pub edits: Vec<String>,
}

/// Why one node does not take the pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reason {
    /// The node.
    pub node: String,
    /// In a few words.
    pub text: String,
    /// Each device that came into question, in a sentence.
    pub devices: Vec<String>,
}

/// Which configurations to compare over which objects.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Compare {
    /// A name and a scheduler configuration for each run beside the one that is in force.
    pub configurations: Vec<(String, Value)>,
    /// How many nodes are added in a run of its own; 0 for no such run.
    pub add_nodes: u32,
    /// Nodes that are drained in a run of its own.
    pub drain: Vec<String>,
    /// Whether every pod is placed again in every run, those included that have a node.
    pub anew: bool,
}

/// How several runs did.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Comparison {
    /// One for each run, in the order of the question.
    pub runs: Vec<Run>,
    /// What a reader has to know besides, each in a sentence.
    pub notes: Vec<String>,
}

/// How one run did. A figure that is not known, since there is nothing to measure, is `NaN`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Run {
    /// What was run.
    pub name: String,
    /// How many pods have a node.
    pub placed: u64,
    /// How many have none, by reason.
    pub pending: Vec<(String, u64)>,
    /// How much of the GPUs' memory is promised, in percent.
    pub memory_percent: f64,
    /// How much of the GPUs' compute is promised, in percent.
    pub compute_percent: f64,
    /// How much of the nodes' CPU is requested, in percent.
    pub cpu_percent: f64,
    /// How much of the nodes' memory is requested, in percent.
    pub node_memory_percent: f64,
    /// How much of the free GPU memory stands on cards that do not take the typical request, in percent.
    pub fragmentation_percent: f64,
    /// How evenly namespaces got what they asked for: 1 is even, 0 is one namespace has all (Jain's index).
    pub fairness: f64,
    /// How long half of the pods waited for their node at most, in seconds of the run.
    pub waited_p50_seconds: f64,
    /// How long 95 of 100 pods waited at most.
    pub waited_p95_seconds: f64,
    /// The longest wait.
    pub waited_max_seconds: f64,
    /// How many pods lost their node since it was drained.
    pub drained: u64,
    /// How many pods lost their node to one of a higher priority.
    pub preempted: u64,
}
