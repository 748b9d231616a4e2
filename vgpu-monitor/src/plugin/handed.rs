//! When slots were allotted, until the container is known: `Allocate` does not say, and a pod's trace records
//! it. Never decides, and keeps nothing if traces are off.

use std::collections::VecDeque;
use std::time::SystemTime;

use parking_lot::Mutex;
use server::{TraceContext, Traces};

/// Allotments that are remembered at most: more than a kubelet starts at once. The oldest go first.
const MOST: usize = 1024;

/// Allotments whose pod is not known yet, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Handed(Mutex<VecDeque<(String, SystemTime, SystemTime)>>);

impl Handed {
    /// The allotment of this name was made from `began` to now.
    pub(super) fn out(&self, traces: &Traces, name: &str, began: SystemTime) {
        if !traces.is_on() {
            return;
        }
        let mut known = self.0.lock();
        if known.len() >= MOST {
            known.pop_front();
        }
        known.push_back((name.to_owned(), began, SystemTime::now()));
    }

    /// Sends the span of the `Allocate` call that created `name`, as part of the trace of the pod that got it.
    pub(super) fn to(
        &self,
        traces: &Traces,
        name: &str,
        container: &str,
        parent: Option<TraceContext>,
    ) {
        let mut known = self.0.lock();
        let Some(at) = known.iter().position(|(other, _, _)| other == name) else {
            return;
        };
        let Some((_, began, ended)) = known.remove(at) else {
            return;
        };
        drop(known);
        let mut span = traces.span("allocate", parent);
        span.set("k8s.container.name", container);
        span.lasted(began, ended);
    }
}
