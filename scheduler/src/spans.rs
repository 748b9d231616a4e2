//! A pod's trace through the scheduler: a span for each filter and one for the binding. Answers do not depend on it;
//! where traces are off, spans are empty.

use kube_api::extender::{ExtenderArgs, ExtenderBindingArgs};
use kube_api::keys;
use kube_api::object::Pod;
use server::{Span, TraceContext};

use crate::Scheduler;
use crate::filter::Answer;
use crate::metrics::Outcome;

impl Scheduler {
    /// The span of a filter.
    pub(crate) fn filter_span(&self, args: &ExtenderArgs) -> Span {
        let traces = &self.0.settings.traces;
        let Some(pod) = args.pod.as_ref().filter(|_| traces.is_on()) else {
            return traces.span("filter", None);
        };
        let mut span = traces.span("filter", trace_of(pod));
        about(
            &mut span,
            pod.metadata.namespace.as_deref().unwrap_or_default(),
            pod.metadata.name.as_deref().unwrap_or_default(),
            pod.metadata.uid.as_deref().unwrap_or_default(),
        );
        let asked = args.node_names.as_ref().map(Vec::len);
        let asked = asked.or(args.nodes.as_ref().map(Vec::len));
        span.count(
            "vgpu.nodes",
            asked
                .and_then(|nodes| u64::try_from(nodes).ok())
                .unwrap_or(0),
        );
        span
    }

    /// The span of a binding. The question names only the pod; the pod's annotations are known only if it holds
    /// devices.
    pub(crate) fn bind_span(&self, args: &ExtenderBindingArgs) -> Span {
        let traces = &self.0.settings.traces;
        if !traces.is_on() {
            return traces.span("bind", None);
        }
        let pod = self.with_ledger(|ledger| ledger.reserved_pod(&args.pod_uid));
        let parent = pod
            .and_then(|pod| trace_of(&pod))
            .or_else(|| TraceContext::of_uid(&args.pod_uid));
        let mut span = traces.span("bind", parent);
        about(
            &mut span,
            &args.pod_namespace,
            &args.pod_name,
            &args.pod_uid,
        );
        span.set("k8s.node.name", args.node.as_str());
        span
    }
}

/// Ends a filter's span. Returns its trace if the pod is one that vgpu places.
pub(crate) fn filtered(mut span: Span, answer: &Answer) -> Option<TraceContext> {
    let outcome = answer.outcome();
    if outcome == Outcome::NotOurs {
        span.forget();
        return None;
    }
    let trace = span.context()?;
    span.set("vgpu.outcome", outcome.word());
    if let Some(node) = answer.chosen() {
        span.set("k8s.node.name", node);
    }
    match outcome {
        Outcome::NoNode => span.fail(answer.reasons()),
        Outcome::Failed => span.fail(answer.why()),
        _ => {}
    }
    Some(trace)
}

/// Ends a binding's span; `why` is the error, or empty.
pub(crate) fn bound(mut span: Span, why: &str) -> Option<TraceContext> {
    if !why.is_empty() {
        span.fail(why);
    }
    span.context()
}

fn trace_of(pod: &Pod) -> Option<TraceContext> {
    let annotations = pod.metadata.annotations.as_ref();
    let given = annotations.and_then(|all| all.get(keys::TRACEPARENT));
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    TraceContext::of_pod(given.map(String::as_str), uid)
}

fn about(span: &mut Span, namespace: &str, name: &str, uid: &str) {
    span.set("k8s.namespace.name", namespace);
    span.set("k8s.pod.name", name);
    span.set("k8s.pod.uid", uid);
}
