//! Decides what a finalize request, and the passing of time, mean for one claim. Values in, values out.

use std::collections::BTreeSet;
use std::time::Duration;

use kube_api::allocation;
use kube_api::assigner::{
    ACTIVE_LASTS, Claim, Finalize, PROPOSAL_LASTS, PodGpuClaim, State, pod_claim,
};
use kube_api::object::Pod;
use kube_api::vendor::Vendors;

use crate::ledger::Held;

/// An active claim is renewed after this time, so that two renewals may fail before it expires.
pub const RENEW_AFTER: Duration = Duration::from_secs(ACTIVE_LASTS.as_secs() / 3);

/// The effect of a finalize request on the Lease of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinalizeEffect {
    /// The Lease becomes active, held by the pod.
    Promote,
    /// The Lease is already active for the pod.
    Done,
    /// There is no such reservation.
    Unknown,
    /// Another reservation, namespace or pod holds the GPU.
    Another,
}

/// Judges a finalize request by the GPU's Lease in the API server.
pub fn finalize(asked: &Finalize, lease: Option<&Claim>) -> FinalizeEffect {
    let Some(lease) = lease else {
        return FinalizeEffect::Unknown;
    };
    if lease.reservation != asked.reservation || lease.namespace != asked.namespace {
        return FinalizeEffect::Another;
    }
    match lease.state {
        State::Proposed => FinalizeEffect::Promote,
        State::Active if lease.holder == asked.uid => FinalizeEffect::Done,
        State::Active | State::Binding => FinalizeEffect::Another,
    }
}

/// The next action for a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tend {
    /// Nothing yet.
    Keep,
    /// The Lease is renewed.
    Renew,
    /// Its pod was seen, but no call finalized it: it becomes active.
    Promote,
    /// Its pod was never created, or is gone: the Lease is deleted, once the API server has confirmed that.
    Release,
}

/// Judges a claim by the pod that was seen for it.
pub fn tend(held: &Held, pod: Option<&PodGpuClaim>, now: Duration) -> Tend {
    if held.is_unwritten() {
        return Tend::Keep;
    }
    let age = held.age(now);
    match (held.claim.state, pod) {
        (State::Proposed, Some(_)) => Tend::Promote,
        (State::Active, Some(_)) if age >= RENEW_AFTER => Tend::Renew,
        (State::Active | State::Binding, Some(_)) => Tend::Keep,
        // A pod that was seen and does not exist any more is gone. A pod that was not seen yet may be late.
        (_, None) if held.carried || age >= PROPOSAL_LASTS => Tend::Release,
        (_, None) => Tend::Keep,
    }
}

/// Which of these reserved GPUs pods hold that do not carry the reservation. A pod whose annotations cannot be read
/// holds nothing, as everywhere.
pub fn used(claims: &[&Claim], bound: &[Pod], vendors: &Vendors) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for pod in bound {
        let Ok(Some(placement)) = allocation::read(pod, vendors) else {
            continue;
        };
        let carried = pod_claim(pod);
        let is_own = |claim: &Claim| {
            carried.as_ref().is_some_and(|carried| {
                carried.reservation == claim.reservation && carried.namespace == claim.namespace
            })
        };
        let grants = placement.containers.iter().flat_map(|one| &one.grants);
        for grant in grants {
            let mut claims = claims.iter();
            if let Some(claim) = claims.find(|claim| *claim.gpu == *grant.device)
                && !is_own(claim)
            {
                used.insert(claim.gpu.clone());
            }
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use kube_api::hcs_quota::Counted;

    use super::*;

    fn claim(state: State) -> Claim {
        let proposed = Claim::proposed("GPU-1", "r", "ns", Timestamp::UNIX_EPOCH);
        let written = Claim {
            version: "1".into(),
            ..proposed
        };
        match state {
            State::Proposed => written,
            State::Active => written.activated("pod", "u", Timestamp::UNIX_EPOCH),
            State::Binding => Claim { state, ..written },
        }
    }

    fn asked(reservation: &str, namespace: &str, uid: &str) -> Finalize {
        Finalize {
            namespace: namespace.into(),
            name: "pod".into(),
            uid: uid.into(),
            reservation: reservation.into(),
            gpus: vec!["GPU-1".into()],
        }
    }

    #[test]
    fn only_the_reservation_of_the_same_namespace_is_finalized() {
        let proposed = claim(State::Proposed);
        let check =
            |reservation, namespace| finalize(&asked(reservation, namespace, "u"), Some(&proposed));

        assert_eq!(check("r", "ns"), FinalizeEffect::Promote);
        assert_eq!(check("other", "ns"), FinalizeEffect::Another);
        assert_eq!(check("r", "other"), FinalizeEffect::Another);
        assert_eq!(
            finalize(&asked("r", "ns", "u"), None),
            FinalizeEffect::Unknown
        );
    }

    #[test]
    fn an_active_reservation_is_finalized_again_by_its_own_pod_only() {
        let active = claim(State::Active);

        assert_eq!(
            finalize(&asked("r", "ns", "u"), Some(&active)),
            FinalizeEffect::Done
        );
        assert_eq!(
            finalize(&asked("r", "ns", "v"), Some(&active)),
            FinalizeEffect::Another
        );
    }

    #[test]
    fn time_and_pod_say_what_becomes_of_a_reservation() {
        let pod = PodGpuClaim {
            uid: "u".into(),
            namespace: "ns".into(),
            name: "pod".into(),
            reservation: "r".into(),
            gpus: vec!["GPU-1".into()],
        };
        let check = |state, pod: Option<&PodGpuClaim>, carried, age| {
            let held = Held {
                claim: claim(state),
                since: Duration::ZERO,
                lapsed: false,
                carried,
                counted: Counted::default(),
                over: None,
            };
            tend(&held, pod, Duration::from_secs(age))
        };

        assert_eq!(check(State::Proposed, None, false, 59), Tend::Keep);
        assert_eq!(check(State::Proposed, None, false, 60), Tend::Release);
        assert_eq!(check(State::Proposed, Some(&pod), true, 1), Tend::Promote);
        assert_eq!(check(State::Proposed, Some(&pod), true, 400), Tend::Promote);
        assert_eq!(check(State::Active, Some(&pod), true, 99), Tend::Keep);
        assert_eq!(check(State::Active, Some(&pod), true, 100), Tend::Renew);
        assert_eq!(check(State::Active, Some(&pod), true, 9999), Tend::Renew);
        assert_eq!(check(State::Active, None, false, 59), Tend::Keep);
        assert_eq!(check(State::Active, None, false, 60), Tend::Release);
        assert_eq!(check(State::Active, None, true, 0), Tend::Release);
    }

    #[test]
    fn the_lease_of_a_binding_cannot_be_finalized() {
        let binding = claim(State::Binding);

        assert_eq!(
            finalize(&asked("r", "ns", "u"), Some(&binding)),
            FinalizeEffect::Another
        );
    }

    #[test]
    fn a_gpu_that_a_bound_pod_of_another_reservation_holds_is_used() {
        use kube_api::config::DeviceConfig;
        use kube_api::vendor::Switches;

        let switches = Switches {
            ascend: false,
            iluvatar: false,
        };
        let vendors = Vendors::new(DeviceConfig::standard(), switches).unwrap();
        let pod = |gpu: &str, reservation: &str| -> Pod {
            serde_json::from_value(serde_json::json!({
                "metadata": { "name": "p", "namespace": "ns", "uid": "u", "annotations": {
                    "hami.io/vgpu-devices-allocated": format!("{gpu},NVIDIA,100,0:;"),
                    "hami.io/vgpu-node": "a",
                    "fudo.org/gpu.reservation-id": reservation,
                } },
                "spec": { "nodeName": "a", "containers": [{ "name": "c" }] },
            }))
            .unwrap()
        };
        let mine = claim(State::Proposed);
        let check = |pods: &[Pod]| {
            used(&[&mine], pods, &vendors)
                .into_iter()
                .collect::<Vec<_>>()
        };

        assert_eq!(check(&[pod("GPU-1", "")]), ["GPU-1"]);
        assert_eq!(check(&[pod("GPU-1", "other")]), ["GPU-1"]);
        assert!(check(&[pod("GPU-1", "r"), pod("GPU-2", "")]).is_empty());
    }
}
