//! Which node is best for a pod that gets its GPUs by ResourceClaims of our driver. kube-scheduler has found the nodes
//! with room and chooses the devices; the choice between the nodes is `placement`'s, by the policy that pods of the
//! device plugin have. Values in, values out: [`crate::given_out`] reads the slices and claims by a watch.
//!
//! A claim shows what it was charged only after kube-scheduler has written it, and by then the next pods have been asked
//! about. So a pod is expected on its best node until its claims are allocated, or [`EXPECTED_FOR`] has passed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kube_api::object::Pod as PodObject;
use kube_api::resource_claims::name_of;
use kube_api::shares::offered::{AskedRequest, OfferedClaim, OfferedSlice};
use placement::{Among, Ask, Cluster, Container, Kind, Node, NodePolicy, Pod, Request};
use serde_json::Value;

/// How long a pod is expected on the node that was best for it.
const EXPECTED_FOR: Duration = Duration::from_secs(10);
/// kube-scheduler's scale: the score of the best node. No other node has it.
const BEST: i64 = 10;
/// Further choices of alternatives are not looked at: a tenant's claim has them, and each is tried on all nodes while
/// kube-scheduler waits. One request has at most as many alternatives.
const CHOICES_MOST: usize = 8;

/// Namespace and name.
type ClaimName = (String, String);

/// What nodes offer to claims, and what claims and expected pods take of it.
#[derive(Debug, Default)]
pub(crate) struct ClaimScores {
    cluster: Cluster,
    /// By name.
    slices: BTreeMap<String, OfferedSlice>,
    claims: HashMap<ClaimName, OfferedClaim>,
    /// Whether all claims have been read once. They never are where the API server shows none.
    listed: bool,
    /// The claims of each pod, by its uid.
    of_pod: HashMap<String, BTreeSet<ClaimName>>,
    /// Until when each pod is expected on a node, by its uid.
    expected: HashMap<String, Duration>,
}

impl ClaimScores {
    /// Takes in a ResourceSlice.
    pub(crate) fn set_slice(&mut self, written: &Value) {
        let name = name_of(written).1;
        let slice = OfferedSlice::read(written);
        let node = slice.as_ref().map(|slice| slice.node.clone());
        let before = match slice {
            Some(slice) => self.slices.insert(name, slice),
            None => self.slices.remove(&name),
        };
        let before = before.map(|slice| slice.node);
        for node in [&before, &node].into_iter().flatten() {
            self.renew_node(node);
        }
    }

    /// The slice is gone.
    pub(crate) fn remove_slice(&mut self, name: &str) {
        if let Some(slice) = self.slices.remove(name) {
            self.renew_node(&slice.node);
        }
    }

    /// A list of all slices is complete: others are gone.
    pub(crate) fn keep_slices(&mut self, listed: &BTreeSet<String>) {
        let known: Vec<String> = self.slices.keys().cloned().collect();
        for name in known.iter().filter(|name| !listed.contains(*name)) {
            self.remove_slice(name);
        }
    }

    /// Counts the devices of the node's slices of the newest generation.
    fn renew_node(&mut self, name: &str) {
        let of_node = || self.slices.values().filter(|slice| slice.node == name);
        let newest = of_node().map(|slice| slice.generation).max();
        let current = of_node().filter(|slice| Some(slice.generation) == newest);
        let mut devices = BTreeMap::new();
        for device in current.flat_map(|slice| &slice.devices) {
            devices.insert(device.id.clone(), device.clone());
        }
        if devices.is_empty() {
            self.cluster.remove_node(name);
            return;
        }
        let node = Node {
            name: name.to_owned(),
            devices: devices.into_values().collect(),
            pairs: Vec::new(),
        };
        if let Err(error) = self.cluster.set_node(node) {
            tracing::warn!(node = name, %error, "claims on this node have no score");
        }
    }

    /// Takes in a ResourceClaim.
    pub(crate) fn set_claim(&mut self, written: &Value) {
        let name = name_of(written);
        self.forget(&name);
        let claim = OfferedClaim::read(written);
        for pod in &claim.pods {
            let of_pod = self.of_pod.entry(pod.clone()).or_default();
            of_pod.insert(name.clone());
        }
        if let Some(held) = &claim.held {
            self.expect_no_more(&claim.pods);
            let holder = Pod::named(&name.0, &name.1);
            self.cluster.reserve(holder, held.clone());
        }
        self.claims.insert(name, claim);
    }

    /// The claim is gone.
    pub(crate) fn remove_claim(&mut self, name: &ClaimName) {
        if let Some(claim) = self.forget(name) {
            self.expect_no_more(&claim.pods);
        }
    }

    fn expect_no_more(&mut self, pods: &[String]) {
        for pod in pods {
            if self.expected.remove(pod).is_some() {
                self.cluster.release(pod);
            }
        }
    }

    fn forget(&mut self, name: &ClaimName) -> Option<OfferedClaim> {
        let claim = self.claims.remove(name)?;
        self.cluster.release(&Pod::named(&name.0, &name.1).uid);
        for pod in &claim.pods {
            if let Some(of_pod) = self.of_pod.get_mut(pod) {
                of_pod.remove(name);
                if of_pod.is_empty() {
                    self.of_pod.remove(pod);
                }
            }
        }
        Some(claim)
    }

    /// A list of all claims is complete: others are gone.
    pub(crate) fn keep_claims(&mut self, listed: &BTreeSet<ClaimName>) {
        self.listed = true;
        let known: Vec<ClaimName> = self.claims.keys().cloned().collect();
        for name in known.iter().filter(|name| !listed.contains(*name)) {
            self.remove_claim(name);
        }
    }

    /// The score of each of these nodes, 0 to 10, and more is better. Empty for a pod that waits for no claim of ours,
    /// or that fits on none of them. One node alone has the best score, and the pod is expected there. Of alternatives the
    /// first one counts that fits on a node.
    pub(crate) fn score(
        &mut self,
        pod: &PodObject,
        identity: &Pod,
        policy: NodePolicy,
        names: &[&str],
        now: Duration,
    ) -> HashMap<Arc<str>, i64> {
        self.expire(now);
        let requests = self.requests(pod, identity, policy);
        let mut ranked = requests
            .iter()
            .map(|it| (it, self.cluster.rank(it, Among::Names(names))));
        let first = ranked.find(|(_, ranked)| ranked.iter().any(|(_, score)| score.is_ok()));
        let Some((request, ranked)) = first else {
            return HashMap::new();
        };
        let fits = || {
            let fits = ranked.iter();
            fits.filter_map(|(node, score)| Some((node, *score.as_ref().ok()?)))
        };
        // They are sorted by name: of equal nodes the first one stays.
        let best = fits().reduce(|best, other| {
            let better = match policy {
                NodePolicy::Binpack => other.1 > best.1,
                NodePolicy::Spread => other.1 < best.1,
            };
            if better { other } else { best }
        });
        let Some((best, _)) = best else {
            return HashMap::new();
        };
        if let Ok(placement) = self.cluster.place_on(request, best) {
            self.expected
                .insert(identity.uid.clone(), now + EXPECTED_FOR);
            self.cluster.reserve(identity.clone(), placement);
        }
        let score = |node: &Arc<str>, fullness| {
            if node == best {
                BEST
            } else {
                crate::filter::score(fullness, policy).min(BEST - 1)
            }
        };
        fits()
            .map(|(node, fullness)| (Arc::clone(node), score(node, fullness)))
            .collect()
    }

    /// Whether all claims of the pod have been read, or cannot be.
    pub(crate) fn knows_claims_of(&self, pod: &PodObject, namespace: &str) -> bool {
        let named = pod.spec.resource_claims.iter();
        let named = named.filter_map(|claim| claim.resource_claim_name.as_ref());
        let made = pod.status.resource_claim_statuses.iter();
        let made = made.filter_map(|claim| claim.resource_claim_name.as_ref());
        let mut all = named.chain(made);
        !self.listed
            || all.all(|name| {
                let name = (namespace.to_owned(), name.clone());
                self.claims.contains_key(&name)
            })
    }

    /// What the pod's claims ask for that have no devices yet: a request for each choice of alternatives, in
    /// kube-scheduler's order. Empty if there is no such claim.
    fn requests(&self, pod: &PodObject, identity: &Pod, policy: NodePolicy) -> Vec<Request> {
        let mut names: BTreeSet<ClaimName> =
            self.of_pod.get(&identity.uid).cloned().unwrap_or_default();
        let by_name = pod.spec.resource_claims.iter();
        names.extend(
            by_name
                .filter_map(|claim| claim.resource_claim_name.clone())
                .map(|name| (identity.namespace.clone(), name)),
        );
        let claims = names.iter().filter_map(|name| self.claims.get(name));
        let waiting = claims.filter(|claim| claim.held.is_none());
        let asked: Vec<&AskedRequest> = waiting.flat_map(|claim| &claim.requests).collect();
        if asked.is_empty() {
            return Vec::new();
        }
        let choices = choices(&asked).into_iter().map(|asks| Request {
            pod: identity.clone(),
            containers: asks.into_iter().map(container).collect(),
            node_policy: policy,
            any: None,
        });
        // One that asks for none of our devices fits everywhere.
        choices.filter(|it| !it.containers.is_empty()).collect()
    }

    fn expire(&mut self, now: Duration) {
        let cluster = &mut self.cluster;
        self.expected.retain(|uid, until| {
            let stays = now < *until;
            if !stays {
                cluster.release(uid);
            }
            stays
        });
    }
}

fn container(ask: &Ask) -> Container {
    Container {
        name: String::new(),
        // A claim is charged as long as its pod lives.
        kind: Kind::App,
        asks: vec![ask.clone()],
    }
}

/// The asks of each choice of alternatives. kube-scheduler tries all alternatives of the last request before it goes on to
/// the next one of the request before. The choices end in front of the first one with an alternative of other devices than
/// ours: whether a node has room for those is not known here, and so neither is which choice after it a node takes.
fn choices<'a>(asked: &[&'a AskedRequest]) -> Vec<Vec<&'a Ask>> {
    let mut all: Vec<Option<Vec<&'a Ask>>> = vec![Some(Vec::new())];
    for request in asked {
        let is_choice = request.alternatives.len() > 1;
        let longer = all.iter().flat_map(|chosen| {
            let each = request.alternatives.iter();
            each.map(move |asks| {
                let is_known = !is_choice || !asks.is_empty();
                let chosen = chosen.as_ref().filter(|_| is_known)?;
                Some(chosen.iter().copied().chain(asks).collect())
            })
        });
        all = longer.take(CHOICES_MOST).collect();
    }
    all.into_iter().map_while(|choice| choice).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const GPU: &str = "gpu.vgpu.io";
    const GIB: u64 = 1 << 30;

    fn slice(node: &str, generation: u64, gpus: &[u64]) -> Value {
        let devices: Vec<Value> = gpus
            .iter()
            .zip(0..)
            .map(|(gib, place): (&u64, u32)| {
                json!({"name": format!("gpu-{place}"), "capacity": {"memory": {"value": format!("{gib}Gi")},
                    "cores": {"value": "100"}, "shares": {"value": "10"}}})
            })
            .collect();
        json!({"metadata": {"name": format!("{node}-{generation}")}, "spec": {"driver": GPU, "nodeName": node,
            "pool": {"name": node, "generation": generation}, "devices": devices}})
    }

    /// A claim of the pod of the same name.
    fn claim(pod: &str, gib: u64, count: u32) -> Value {
        json!({"metadata": {"namespace": "default", "name": format!("{pod}-gpu"),
            "ownerReferences": [{"kind": "Pod", "uid": pod}]},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": GPU, "count": count,
                "capacity": {"requests": {"memory": format!("{gib}Gi"), "cores": "10"}}}}],
                "constraints": [{"distinctAttribute": "gpu.vgpu.io/uuid"}]}}})
    }

    fn held(pod: &str, gib: u64, node: &str, device: &str) -> Value {
        let mut held = claim(pod, gib, 1);
        held["status"] = json!({"allocation": {"devices": {"results": [{"request": "gpu", "driver": GPU, "pool": node,
            "device": device, "consumedCapacity": {"memory": format!("{gib}Gi"), "cores": "10", "shares": "1"}}]}}});
        held
    }

    struct Kept(ClaimScores);

    impl Kept {
        fn new(slices: &[Value], claims: &[Value]) -> Self {
            let mut kept = ClaimScores::default();
            for slice in slices {
                kept.set_slice(slice);
            }
            for claim in claims {
                kept.set_claim(claim);
            }
            Self(kept)
        }

        fn score_at(&mut self, pod: &str, policy: NodePolicy, seconds: u64) -> Vec<i64> {
            let object = PodObject::default();
            let mut identity = Pod::named("default", pod);
            identity.uid = pod.to_owned();
            let names = ["a", "b", "c"];
            let now = Duration::from_secs(seconds);
            let scores = self.0.score(&object, &identity, policy, &names, now);
            let of = |name: &&str| scores.get(*name).copied().unwrap_or_default();
            names.iter().map(of).collect()
        }

        fn best(&mut self, pod: &str, policy: NodePolicy) -> Option<usize> {
            let scores = self.score_at(pod, policy, 0);
            scores.iter().position(|score| *score == BEST)
        }
    }

    fn three(claims: &[Value]) -> Kept {
        let slices = ["a", "b", "c"].map(|node| slice(node, 1, &[8]));
        Kept::new(&slices, claims)
    }

    #[test]
    fn policy_decides_between_a_used_node_and_an_empty_one() {
        let claims = [held("old", 3, "b", "gpu-0"), claim("p", 3, 1)];
        assert_eq!(three(&claims).best("p", NodePolicy::Binpack), Some(1));
        assert_eq!(three(&claims).best("p", NodePolicy::Spread), Some(0));

        // It does not fit there.
        let claims = [held("old", 6, "b", "gpu-0"), claim("p", 3, 1)];
        let scores = three(&claims).score_at("p", NodePolicy::Binpack, 0);
        assert_eq!(scores, [10, 0, 2]);
    }

    #[test]
    fn one_node_alone_has_the_best_score() {
        let mut kept = three(&[claim("p", 3, 1)]);
        let scores = kept.score_at("p", NodePolicy::Spread, 0);
        assert_eq!(scores, [10, 8, 8]);
    }

    #[test]
    fn pods_are_expected_where_they_were_sent_until_their_claims_say_more() {
        for (policy, second) in [(NodePolicy::Binpack, 0), (NodePolicy::Spread, 1)] {
            let mut kept = three(&[claim("p", 3, 1), claim("q", 3, 1)]);
            assert_eq!(kept.best("p", policy), Some(0));
            assert_eq!(kept.best("q", policy), Some(second));
            // Asked again, a pod does not compete with itself.
            assert_eq!(kept.best("p", policy), Some(0), "{policy:?}");
        }
        let mut kept = three(&[claim("p", 3, 1), claim("q", 3, 1)]);
        kept.best("p", NodePolicy::Spread);
        kept.0.set_claim(&held("p", 3, "c", "gpu-0"));
        assert_eq!(kept.best("q", NodePolicy::Binpack), Some(2));

        let mut kept = three(&[claim("p", 3, 1), claim("q", 3, 1)]);
        kept.best("p", NodePolicy::Spread);
        assert_eq!(kept.score_at("q", NodePolicy::Spread, 10), [10, 8, 8]);
    }

    #[test]
    fn several_gpus_need_a_node_that_has_as_many() {
        let slices = [
            slice("a", 1, &[8]),
            slice("b", 1, &[8, 8]),
            slice("c", 1, &[8, 2]),
        ];
        let mut kept = Kept::new(&slices, &[claim("p", 4, 2)]);
        let scores = kept.score_at("p", NodePolicy::Binpack, 0);
        assert_eq!(scores, [0, 10, 0]);
    }

    /// A claim of alternatives, by the GiB of each; 0 is a MIG instance.
    fn alternatives(pod: &str, each: &[u64]) -> Value {
        let mut written = claim(pod, 1, 1);
        let each = each.iter().map(|gib| {
            let class = if *gib == 0 { "mig.vgpu.io" } else { GPU };
            json!({"name": format!("of-{gib}"), "deviceClassName": class,
                "capacity": {"requests": {"memory": format!("{gib}Gi")}}})
        });
        let each: Vec<Value> = each.collect();
        written["spec"]["devices"]["requests"] = json!([{"name": "gpu", "firstAvailable": each}]);
        written
    }

    #[test]
    fn first_alternative_that_fits_on_a_node_is_scored() {
        let slices = [
            slice("a", 1, &[8]),
            slice("b", 1, &[16]),
            slice("c", 1, &[4]),
        ];
        let score = |each: &[u64]| {
            let mut kept = Kept::new(&slices, &[alternatives("p", each)]);
            kept.score_at("p", NodePolicy::Binpack, 0)
        };
        // The first one fits on b alone, and a user prefers it to the second one elsewhere.
        assert_eq!(score(&[12, 3]), [0, 10, 0]);
        assert_eq!(score(&[20, 3]), [2, 1, 10]);
        assert_eq!(score(&[40, 20]), [0, 0, 0]);
        // Which nodes have room for a MIG instance is not known.
        assert_eq!(score(&[0, 3]), [0, 0, 0]);
        assert_eq!(score(&[12, 0]), [0, 10, 0]);
    }

    #[test]
    fn choices_of_alternatives_are_in_the_order_of_kube_scheduler() {
        let claims = [alternatives("p", &[1, 2]), alternatives("q", &[3, 4])];
        let claims = claims.map(|claim| OfferedClaim::read(&claim));
        let asked: Vec<&AskedRequest> = claims.iter().flat_map(|claim| &claim.requests).collect();

        let seen = choices(&asked).into_iter().map(|asks| {
            let sizes = asks.iter().map(|ask| match ask.memory {
                placement::Memory::Bytes(bytes) => bytes / GIB,
                placement::Memory::Percent(_) => 0,
            });
            sizes.collect::<Vec<_>>()
        });
        assert_eq!(seen.collect::<Vec<_>>(), [[1, 3], [1, 4], [2, 3], [2, 4]]);
        let many = vec![asked[0]; 10];
        assert_eq!(choices(&many).len(), CHOICES_MOST);
        // A MIG instance, or 3 GiB; and 1 GiB in any case.
        let claims = [alternatives("p", &[5, 0, 3]), alternatives("q", &[1])];
        let claims = claims.map(|claim| OfferedClaim::read(&claim));
        let asked: Vec<&AskedRequest> = claims.iter().flat_map(|claim| &claim.requests).collect();
        assert_eq!(choices(&asked).len(), 1, "5 and 1 GiB");
    }

    #[test]
    fn node_without_a_gpu_that_a_selector_allows_is_not_chosen() {
        let model = |mut slice: Value, name: &str| {
            slice["spec"]["devices"][0]["attributes"] = json!({"productName": {"string": name}});
            slice
        };
        let slices = [
            model(slice("a", 1, &[8]), "NVIDIA A10"),
            model(slice("b", 1, &[8]), "NVIDIA H100"),
        ];
        let mut chosen = claim("p", 3, 1);
        chosen["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = json!([{"cel": {"expression":
            "device.attributes[\"gpu.vgpu.io\"].productName.startsWith(\"NVIDIA H100\")"}}]);

        let mut kept = Kept::new(&slices, &[chosen]);

        assert_eq!(kept.score_at("p", NodePolicy::Binpack, 0), [0, 10, 0]);
    }

    #[test]
    fn claim_that_is_gone_or_taken_back_leaves_room() {
        let waiting = claim("p", 3, 1);
        let mut kept = three(&[held("old", 6, "a", "gpu-0"), waiting.clone()]);
        assert_eq!(kept.best("p", NodePolicy::Binpack), Some(1));
        kept.0.set_claim(&held("p", 3, "b", "gpu-0"));
        kept.0.set_claim(&waiting);
        kept.0.remove_claim(&("default".into(), "old-gpu".into()));
        assert_eq!(kept.best("p", NodePolicy::Binpack), Some(0));

        kept.0.keep_claims(&BTreeSet::new());
        assert_eq!(kept.best("p", NodePolicy::Binpack), None);
        assert!(kept.0.of_pod.is_empty() && kept.0.claims.is_empty());
    }

    #[test]
    fn newest_generation_of_a_nodes_slices_counts() {
        let slices = [slice("a", 1, &[8, 8]), slice("a", 2, &[4])];
        let mut kept = Kept::new(&slices, &[claim("p", 4, 2), claim("q", 4, 1)]);
        assert_eq!(kept.best("p", NodePolicy::Binpack), None);
        assert_eq!(kept.best("q", NodePolicy::Binpack), Some(0));

        kept.0.remove_slice("a-2");
        assert_eq!(kept.best("p", NodePolicy::Binpack), Some(0));
        kept.0.keep_slices(&BTreeSet::new());
        assert_eq!(kept.best("p", NodePolicy::Binpack), None);
        assert_eq!(kept.0.cluster.nodes().count(), 0);
    }

    #[test]
    fn claims_that_are_not_read_yet_are_seen_in_the_pod() {
        let pod: PodObject = serde_json::from_value(json!({
            "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "share"}]},
            "status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "p-gpu"}]}}))
        .unwrap();
        let mut kept = three(&[]);
        assert!(kept.0.knows_claims_of(&pod, "default"));
        kept.0.keep_claims(&BTreeSet::new());
        assert!(!kept.0.knows_claims_of(&pod, "default"));
        kept.0.set_claim(&claim("p", 3, 1));
        assert!(kept.0.knows_claims_of(&pod, "default"));
        assert!(kept.0.knows_claims_of(&PodObject::default(), "default"));
    }

    #[test]
    fn named_claims_are_asked_for_and_allocated_ones_are_not() {
        let mut shared = claim("other", 3, 1);
        shared["metadata"] = json!({"namespace": "default", "name": "shared"});
        let mut kept = three(&[shared.clone()]);
        let object: PodObject = serde_json::from_value(
            json!({"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}]}}),
        )
        .unwrap();
        let identity = Pod::named("default", "p");
        let ask = |kept: &mut Kept| {
            let now = Duration::ZERO;
            let policy = NodePolicy::Binpack;
            kept.0.score(&object, &identity, policy, &["a"], now).len()
        };
        assert_eq!(ask(&mut kept), 1);
        let status = held("x", 3, "a", "gpu-0")["status"].clone();
        shared["status"] = status;
        kept.0.set_claim(&shared);
        assert_eq!(ask(&mut kept), 0);
        assert_eq!(
            kept.0
                .cluster
                .reservation("default/shared")
                .unwrap()
                .load()
                .memory_bytes,
            3 * GIB
        );
    }
}
