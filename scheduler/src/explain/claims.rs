//! Pods that get their GPUs by ResourceClaims: the state of each claim, and which devices it has. kube-scheduler
//! chooses those devices; nothing is computed here.

use kube_api::object::{Pod, PodClaim};
use kube_api::resource_claims::name_of;
use kube_api::shares::{CLASS, DRIVER, MIG_CLASS, template};
use serde_json::Value;

use super::{Verdict, View};

/// On a claim that was made from a template: its name in the pod.
const NAME_IN_POD: &str = "/metadata/annotations/resource.kubernetes.io~1pod-claim-name";
/// The most devices and requests that are named of one claim.
const MOST_NAMED: usize = 8;

/// A claim of the pod.
enum State<'v> {
    /// The template, from which none has been made.
    NotMade(&'v str),
    /// The name of a claim that does not exist.
    Gone(&'v str),
    /// It has no devices.
    Waits(&'v Value),
    /// Its devices.
    Has(&'v Value, &'v [Value]),
}

/// The verdict for a pod that uses claims of ours, with its summary; `None` for another pod. Notes what is said of each
/// claim.
pub(super) fn explain(
    view: &View,
    pod: &Pod,
    notes: &mut Vec<String>,
) -> Option<(Verdict, String)> {
    let Some(claims) = &view.claims else {
        let named = &pod.spec.resource_claims;
        let mut templates = named
            .iter()
            .filter_map(|it| it.resource_claim_template_name.as_deref());
        if !templates.any(template::is_ours) {
            return None;
        }
        notes.push(
            "claims are read from the API server alone: run vgpu explain without --server"
                .to_owned(),
        );
        let summary = "gets its GPUs by ResourceClaims, which kube-scheduler allocates";
        return Some((Verdict::NotOurs, summary.to_owned()));
    };
    let states: Vec<(&PodClaim, State<'_>)> = pod
        .spec
        .resource_claims
        .iter()
        .filter_map(|claim| Some((claim, state(pod, claim, claims)?)))
        .collect();
    if !states.iter().any(|(_, state)| is_ours(state)) {
        return None;
    }
    notes.extend(states.iter().map(|(claim, state)| said(claim, state)));
    if !pod.spec.node_name.is_empty() {
        let on = format!("is on {}, with GPUs by ResourceClaims", pod.spec.node_name);
        return Some((Verdict::Placed, on));
    }
    let waits = |(_, state): &(&PodClaim, State<'_>)| !matches!(state, State::Has(..));
    if !states.iter().any(waits) {
        let bound = "has its ResourceClaims allocated and waits to be bound".to_owned();
        return Some((Verdict::Reserved, bound));
    }
    let conditions = pod.status.conditions.iter();
    let mut refusals = conditions.filter(|it| it.kind == "PodScheduled" && it.status == "False");
    let why = refusals.next().map_or_else(
        || "kube-scheduler has not looked at it yet".to_owned(),
        |refusal| format!("kube-scheduler says: {}", refusal.message),
    );
    let summary = format!("waits for its ResourceClaims; {why}");
    Some((Verdict::DoesNotFit, summary))
}

fn state<'v>(pod: &'v Pod, claim: &'v PodClaim, claims: &'v [Value]) -> Option<State<'v>> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let found = match (
        &claim.resource_claim_name,
        &claim.resource_claim_template_name,
    ) {
        (Some(name), _) => {
            let found = claims
                .iter()
                .find(|it| name_of(it) == (namespace.to_owned(), name.clone()));
            match found {
                None => return Some(State::Gone(name)),
                Some(found) => found,
            }
        }
        (None, Some(template)) => {
            let uid = pod.metadata.uid.as_deref().unwrap_or_default();
            let found = claims.iter().find(|it| {
                let owners = list(it, "/metadata/ownerReferences");
                text(it, NAME_IN_POD) == claim.name
                    && owners.iter().any(|owner| text(owner, "/uid") == uid)
            });
            match found {
                None => return Some(State::NotMade(template)),
                Some(found) => found,
            }
        }
        (None, None) => return None,
    };
    let devices = list(found, "/status/allocation/devices/results");
    Some(if devices.is_empty() {
        State::Waits(found)
    } else {
        State::Has(found, devices)
    })
}

/// Whether the claim is about our driver, as far as that can be seen.
fn is_ours(state: &State<'_>) -> bool {
    match state {
        State::NotMade(name) => template::is_ours(name),
        State::Gone(_) => false,
        State::Waits(claim) => list(claim, "/spec/devices/requests").iter().any(|request| {
            let exactly = request.get("exactly").unwrap_or(request);
            let first = list(request, "/firstAvailable");
            let mut all = first.iter().chain([exactly]);
            all.any(|one| [CLASS, MIG_CLASS].contains(&text(one, "/deviceClassName")))
        }),
        State::Has(_, devices) => devices.iter().any(|it| text(it, "/driver") == DRIVER),
    }
}

fn said(claim: &PodClaim, state: &State<'_>) -> String {
    let name = &claim.name;
    match state {
        State::NotMade(template) if template::is_ours(template) => format!(
            "claim {name}: not made yet. vgpu-scheduler makes its ResourceClaimTemplate {template} (--claim-templates), and \
             then kube-controller-manager the claim; the pod's events say what keeps them"
        ),
        State::NotMade(template) => format!(
            "claim {name}: not made yet; kube-controller-manager makes it from the ResourceClaimTemplate {template}, which \
             has to exist"
        ),
        State::Gone(of) => format!(
            "claim {name}: ResourceClaim {of} does not exist; create it, or delete the pod if the claim was deleted"
        ),
        State::Waits(of) => {
            let requests = list(of, "/spec/devices/requests").iter().map(asked);
            format!(
                "claim {name}: ResourceClaim {} has no devices; it asks for {}",
                name_of(of).1,
                joined(requests)
            )
        }
        State::Has(of, devices) => format!(
            "claim {name}: ResourceClaim {} has {}",
            name_of(of).1,
            joined(devices.iter().map(given))
        ),
    }
}

fn asked(request: &Value) -> String {
    let exactly = request.get("exactly").unwrap_or(request);
    let count = exactly.get("count").and_then(Value::as_u64).unwrap_or(1);
    let class = text(exactly, "/deviceClassName");
    let amounts = amounts(exactly.pointer("/capacity/requests"));
    format!(
        "{count} of {class}{amounts} (request {})",
        text(request, "/name")
    )
}

fn given(device: &Value) -> String {
    let amounts = amounts(device.get("consumedCapacity"));
    format!(
        "device {} of {} in the pool {}{amounts} (request {})",
        text(device, "/device"),
        text(device, "/driver"),
        text(device, "/pool"),
        text(device, "/request")
    )
}

fn amounts(of: Option<&Value>) -> String {
    let of = of.and_then(Value::as_object).into_iter().flatten();
    let each = of.map(|(name, amount)| match amount {
        Value::String(text) => format!("{name} {text}"),
        other => format!("{name} {other}"),
    });
    let all: Vec<String> = each.collect();
    if all.is_empty() {
        String::new()
    } else {
        format!(" with {}", all.join(", "))
    }
}

fn joined(all: impl ExactSizeIterator<Item = String>) -> String {
    let more = all.len().saturating_sub(MOST_NAMED);
    let mut named: Vec<String> = all.take(MOST_NAMED).collect();
    if more > 0 {
        named.push(format!("{more} more"));
    }
    named.join("; ")
}

fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn list<'v>(value: &'v Value, pointer: &str) -> &'v [Value] {
    let list = value.pointer(pointer).and_then(Value::as_array);
    list.map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kube_api::config::DeviceConfig;
    use kube_api::request::Defaults;
    use kube_api::vendor::{Switches, Vendors};
    use serde_json::json;

    use super::*;
    use crate::explain::AnswerDetail;

    fn view(claims: Option<Vec<Value>>) -> View {
        let switches = Switches {
            ascend: false,
            iluvatar: false,
        };
        let vendors = Vendors::new(DeviceConfig::standard(), switches).unwrap();
        let mut view = View::of(
            Vec::new(),
            &[],
            Vec::new(),
            Arc::new(vendors),
            Defaults::default(),
        );
        view.claims = claims;
        view
    }

    fn pod(node: &str, source: &Value) -> Pod {
        let mut claim = source.clone();
        claim["name"] = json!("vgpu-0");
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "a", "uid": "u1"},
            "spec": {"nodeName": node, "resourceClaims": [claim],
                "containers": [{"name": "c", "resources": {"claims": [{"name": "vgpu-0"}]}}]},
            "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False",
                "message": "0/2 nodes are available: 2 cannot allocate all claims."}]},
        }))
        .unwrap()
    }

    fn claim(name: &str, results: &Value) -> Value {
        json!({
            "metadata": {"name": name, "namespace": "a", "ownerReferences": [{"uid": "u1"}],
                "annotations": {"resource.kubernetes.io/pod-claim-name": "vgpu-0"}},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": CLASS, "count": 1,
                "capacity": {"requests": {"memory": "4Gi"}}}}]}},
            "status": {"allocation": {"devices": {"results": results}}},
        })
    }

    fn has() -> Value {
        json!([{"driver": DRIVER, "pool": "n1", "device": "gpu-1", "request": "gpu",
            "consumedCapacity": {"cores": "30", "memory": "4Gi"}}])
    }

    fn ask(view: &View, pod: &Pod) -> (Verdict, String, String) {
        let answer = crate::explain::explain(view, pod, AnswerDetail::default());
        (answer.verdict, answer.summary, answer.notes.join("\n"))
    }

    fn of_template() -> Value {
        json!({"resourceClaimTemplateName": "vgpu-share-1x4096mi-30c-0000000000"})
    }

    #[test]
    fn claim_that_is_not_made_yet_names_what_makes_it() {
        let (verdict, _, notes) = ask(&view(Some(Vec::new())), &pod("", &of_template()));
        assert_eq!(verdict, Verdict::DoesNotFit);
        assert!(
            notes.contains("vgpu-scheduler makes its ResourceClaimTemplate vgpu-share-1x4096mi"),
            "{notes}"
        );
    }

    #[test]
    fn claim_without_devices_says_what_it_asks_for_and_why_it_waits() {
        let waiting = view(Some(vec![claim("p-x", &json!([]))]));
        let (verdict, summary, notes) = ask(&waiting, &pod("", &of_template()));
        assert_eq!(verdict, Verdict::DoesNotFit);
        assert!(
            summary.contains("2 cannot allocate all claims"),
            "{summary}"
        );
        assert!(
            notes.contains("ResourceClaim p-x has no devices; it asks for 1 of gpu.vgpu.io with memory 4Gi (request gpu)"),
            "{notes}"
        );
    }

    #[test]
    fn claim_with_devices_names_them() {
        let allocated = view(Some(vec![claim("p-x", &has())]));
        let (verdict, _, notes) = ask(&allocated, &pod("n1", &of_template()));
        assert_eq!(verdict, Verdict::Placed);
        let says = "p-x has device gpu-1 of gpu.vgpu.io in the pool n1 with cores 30, memory 4Gi (request gpu)";
        assert!(notes.contains(says), "{notes}");
        let by_name = json!({"resourceClaimName": "p-x"});
        assert_eq!(ask(&allocated, &pod("", &by_name)).0, Verdict::Reserved);
    }

    #[test]
    fn deleted_claim_is_named_beside_one_of_ours_and_others_are_not_ours() {
        let gone = json!({"resourceClaimName": "gone"});
        assert_eq!(
            ask(&view(Some(Vec::new())), &pod("", &gone)).0,
            Verdict::NotOurs
        );

        let mut two = pod("", &of_template());
        let mut other = two.spec.resource_claims[0].clone();
        other.name = "more".into();
        other.resource_claim_template_name = None;
        other.resource_claim_name = Some("gone".into());
        two.spec.resource_claims.push(other);
        let (_, _, notes) = ask(&view(Some(vec![claim("p-x", &has())])), &two);
        assert!(
            notes.contains("ResourceClaim gone does not exist"),
            "{notes}"
        );
    }

    #[test]
    fn scheduler_that_reads_no_claims_says_where_they_are_read() {
        let (verdict, summary, notes) = ask(&view(None), &pod("", &of_template()));
        assert_eq!(verdict, Verdict::NotOurs);
        assert!(summary.contains("by ResourceClaims"), "{summary}");
        assert!(notes.contains("without --server"), "{notes}");
    }
}
