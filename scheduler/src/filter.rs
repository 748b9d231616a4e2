//! `/filter` and `/prioritize` without HTTP: from a pod and the candidate nodes to an answer. `placement` computes the
//! fit, and only `bind` writes.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kube_api::extender::{ExtenderArgs, HostPriority};
use kube_api::node::report;
use kube_api::object::{Node, Pod};
use placement::{Among, Cluster, Misfit, NodeMisfit, NodePolicy, Placement, Request};
use serde::ser::{SerializeMap, SerializeStruct};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::QuestionError;
use crate::Scheduler;
use crate::events::{Kind, no_node};
use crate::hcs;
use crate::ledger::{Filtered, Ledger};
use crate::metrics::Outcome;
use admission::Denied;

/// How long an answer waits for claims that have not been read.
const CLAIMS_PATIENCE: Duration = Duration::from_millis(200);
/// The pause between two looks.
const CLAIMS_PAUSE: Duration = Duration::from_millis(5);

/// The answer to `POST /filter`, as kube-scheduler reads it. All keys are always present.
#[derive(Debug, Default)]
pub struct Answer {
    /// The whole nodes that fit, as they were sent; only if the question has whole nodes.
    nodes: Option<Vec<Box<RawValue>>>,
    /// The names of nodes that fit.
    names: Option<Vec<String>>,
    refused: Option<Refused>,
    /// Why there is no answer; empty if there is one.
    error: String,
    /// Whether the pod asks for our devices.
    ours: bool,
}

/// The nodes that do not fit. Thousands of nodes share a few texts.
#[derive(Debug, Default)]
struct Refused {
    texts: Vec<String>,
    /// The node, the index of its text, and whether evicting pods may help.
    nodes: Vec<(Arc<str>, u32, bool)>,
}

impl Answer {
    /// An answer that is only an error.
    pub fn error(why: impl Into<String>) -> Self {
        Self {
            error: why.into(),
            ..Self::default()
        }
    }

    /// Why there is no answer; empty if there is one.
    pub fn why(&self) -> &str {
        &self.error
    }

    /// The names of the nodes that fit, if the question has names.
    pub fn names(&self) -> &[String] {
        self.names.as_deref().unwrap_or_default()
    }
}

impl Answer {
    /// Its approximate length in bytes, so that a long answer is written into one allocation.
    pub(crate) fn length(&self) -> usize {
        let names = self.names.iter().flatten().map(|name| name.len() + 3);
        let nodes = self.nodes.iter().flatten().map(|node| node.get().len() + 1);
        let refused = self.refused.iter().flat_map(|refused| {
            let of = |(node, text, _): &(Arc<str>, u32, bool)| {
                let at = usize::try_from(*text).unwrap_or(usize::MAX);
                node.len() + refused.texts.get(at).map_or(0, String::len) + 6
            };
            refused.nodes.iter().map(of)
        });
        256 + self.error.len() + names.chain(nodes).chain(refused).sum::<usize>()
    }

    /// The chosen node, if the question has names.
    pub(crate) fn chosen(&self) -> Option<&str> {
        self.names
            .as_deref()
            .filter(|_| self.ours)?
            .first()
            .map(String::as_str)
    }

    /// Why nodes do not fit: each text with its number of nodes.
    pub(crate) fn reasons(&self) -> String {
        let mut counts: HashMap<u32, usize> = HashMap::new();
        let refused = self.refused.as_ref();
        for (_, text, _) in refused.iter().flat_map(|refused| &refused.nodes) {
            *counts.entry(*text).or_default() += 1;
        }
        let texts = refused
            .map(|refused| refused.texts.iter())
            .into_iter()
            .flatten();
        let said = (0..)
            .zip(texts)
            .map(|(at, text)| format!("{} nodes: {text}", counts.get(&at).unwrap_or(&0)));
        said.collect::<Vec<_>>().join("; ")
    }

    pub(crate) fn outcome(&self) -> Outcome {
        if !self.error.is_empty() {
            Outcome::Failed
        } else if self.refused.is_some() {
            Outcome::NoNode
        } else if self.ours {
            Outcome::Ok
        } else {
            Outcome::NotOurs
        }
    }
}

impl Serialize for Answer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut answer = serializer.serialize_struct("ExtenderFilterResult", 5)?;
        answer.serialize_field("Nodes", &self.nodes.as_deref().map(List))?;
        answer.serialize_field("NodeNames", &self.names)?;
        let of = |helps| {
            self.refused
                .as_ref()
                .map(|refused| Texts { refused, helps })
        };
        answer.serialize_field("FailedNodes", &of(true))?;
        let hopeless = of(false).filter(|texts| texts.nodes().next().is_some());
        answer.serialize_field("FailedAndUnresolvableNodes", &hopeless)?;
        answer.serialize_field("Error", &self.error)?;
        answer.end()
    }
}

/// A Kubernetes list.
struct List<'a>(&'a [Box<RawValue>]);

impl Serialize for List<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_map(Some(2))?;
        list.serialize_entry("metadata", &HashMap::<(), ()>::new())?;
        list.serialize_entry("items", self.0)?;
        list.end()
    }
}

/// The nodes that an eviction may help, or those that it cannot help.
struct Texts<'a> {
    refused: &'a Refused,
    helps: bool,
}

impl Texts<'_> {
    fn nodes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.refused
            .nodes
            .iter()
            .filter(|(_, _, helps)| *helps == self.helps)
            .map(|(node, text, _)| {
                let at = usize::try_from(*text).unwrap_or(usize::MAX);
                let text = self.refused.texts.get(at).map_or("", String::as_str);
                (&**node, text)
            })
    }
}

impl Serialize for Texts<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.nodes())
    }
}

impl Refused {
    /// Every node with the same text; evictions cannot help.
    fn all(nodes: impl Iterator<Item = Arc<str>>, text: String) -> Self {
        Self {
            texts: vec![text],
            nodes: nodes
                .collect::<BTreeSet<_>>()
                .into_iter()
                .map(|node| (node, 0, false))
                .collect(),
        }
    }

    fn from_misfits(misfits: &[NodeMisfit], request: &Request) -> Self {
        let mut known: HashMap<Vec<(*const u8, u32)>, u32> = HashMap::new();
        let mut refused = Self {
            texts: Vec::new(),
            nodes: Vec::with_capacity(misfits.len()),
        };
        let mut key = Vec::new();
        for NodeMisfit { node, misfit } in misfits {
            // They are sorted by name, so a node that was named twice is next to its copy.
            if refused
                .nodes
                .last()
                .is_some_and(|(last, _, _)| last == node)
            {
                continue;
            }
            count_codes(misfit, &mut key);
            let text = match known.get(&key) {
                Some(text) => *text,
                None => {
                    let text = u32::try_from(refused.texts.len()).unwrap_or(u32::MAX);
                    refused.texts.push(hcs::text(misfit, request));
                    known.insert(key.clone(), text);
                    text
                }
            };
            refused
                .nodes
                .push((Arc::clone(node), text, misfit.is_cured_by_leaving()));
        }
        refused
    }
}

/// A key for the text of a misfit: how often each word occurs, ordered by the words' addresses. Misfits with the same
/// key have the same text. If the same word exists at two addresses, a text is only built twice.
fn count_codes(misfit: &Misfit, key: &mut Vec<(*const u8, u32)>) {
    key.clear();
    match misfit {
        Misfit::UnknownNode => key.push((std::ptr::null(), 0)),
        // hcs.io has different words for a vendor that is absent and for too few devices of one that is present.
        Misfit::NoVendor | Misfit::TooFewDevices { present: 0, .. } => {
            key.push((std::ptr::null(), 1));
        }
        Misfit::TooFewDevices { .. } => key.push((std::ptr::null(), 2)),
        Misfit::Devices { reasons, .. } => {
            for (_, reason) in reasons.iter() {
                let word = reason.code().as_ptr();
                match key.iter_mut().find(|(known, _)| *known == word) {
                    Some((_, count)) => *count += 1,
                    None => key.push((word, 1)),
                }
            }
            key.sort_unstable();
        }
    }
}

/// The candidate nodes.
enum CandidateNodes {
    Names(Vec<String>),
    /// Whole nodes, each with its name.
    Nodes(Vec<(String, Box<RawValue>)>),
}

impl CandidateNodes {
    fn of(args: &mut ExtenderArgs) -> Option<Self> {
        if let Some(names) = args.node_names.take() {
            return Some(Self::Names(names));
        }
        let nodes = args.nodes.take()?;
        Some(Self::Nodes(
            nodes
                .into_iter()
                .map(|node| (name_of(&node), node))
                .collect(),
        ))
    }

    fn names(&self) -> Vec<&str> {
        match self {
            Self::Names(names) => names.iter().map(String::as_str).collect(),
            Self::Nodes(nodes) => nodes.iter().map(|(name, _)| name.as_str()).collect(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Names(names) => names.len(),
            Self::Nodes(nodes) => nodes.len(),
        }
    }

    /// The answer that all of them fit.
    fn all(self) -> Answer {
        match self {
            Self::Names(names) => Answer {
                names: Some(names),
                ..Answer::default()
            },
            Self::Nodes(nodes) => Answer {
                nodes: Some(nodes.into_iter().map(|(_, node)| node).collect()),
                ..Answer::default()
            },
        }
    }

    /// The answer that only this node fits.
    fn only(self, chosen: &str) -> Answer {
        match self {
            Self::Names(_) => Answer {
                names: Some(vec![chosen.to_owned()]),
                ours: true,
                ..Answer::default()
            },
            Self::Nodes(nodes) => Answer {
                nodes: Some(
                    nodes
                        .into_iter()
                        .filter(|(name, _)| name == chosen)
                        .map(|(_, node)| node)
                        .take(1)
                        .collect(),
                ),
                ours: true,
                ..Answer::default()
            },
        }
    }
}

fn name_of(node: &RawValue) -> String {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Metadata {
        name: Option<String>,
    }
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Named {
        metadata: Option<Metadata>,
    }
    serde_json::from_str::<Named>(node.get())
        .unwrap_or_default()
        .metadata
        .unwrap_or_default()
        .name
        .unwrap_or_default()
}

impl Scheduler {
    /// Chooses a node for the pod, and reserves the devices there. `body` is the question as it came.
    ///
    /// If the question contains whole nodes, nodes that the ledger knows are judged by the ledger, with everything that
    /// is held of them, and are preferred; the others are judged as they came. In that case nothing is reserved and
    /// nothing written.
    pub async fn filter(&self, mut args: ExtenderArgs, body: &[u8]) -> Answer {
        let Some(pod) = args.pod.take() else {
            return Answer::error(QuestionError::NoPod.to_string());
        };
        let asked = CandidateNodes::of(&mut args);
        let request = self.request(&pod).map_err(QuestionError::Request);
        let request = request.and_then(|request| {
            self.check_admitted(&request, body)
                .map_err(QuestionError::NotAdmitted)?;
            Ok(request)
        });
        let request = match request {
            Ok(request) => request,
            Err(problem) => {
                let problem = problem.to_string();
                self.0
                    .events
                    .pod(&pod, Kind::Warning, "FilteringFailed", problem.clone());
                let names = asked
                    .as_ref()
                    .map(CandidateNodes::names)
                    .unwrap_or_default();
                return Answer {
                    refused: Some(Refused::all(names.into_iter().map(Arc::from), problem)),
                    ..Answer::default()
                };
            }
        };
        let Some(asked) = asked else {
            return if request.asks_for_devices() {
                Answer::error("extender args have neither NodeNames nor Nodes")
            } else {
                Answer::default()
            };
        };
        if !request.asks_for_devices() {
            return asked.all();
        }
        if !self.with_ledger(Ledger::knows_compute_quotas) {
            return Answer::error("the ComputeQuotas have not been read yet; try again");
        }
        let pod = Arc::new(pod);
        match self.choose(&request, &pod, &asked) {
            Filtered::OverQuota(why) => {
                self.0
                    .events
                    .pod(&*pod, Kind::Warning, "FilteringFailed", why.clone());
                let names = asked.names().into_iter().map(Arc::from);
                Answer {
                    refused: Some(Refused::all(names, why)),
                    ..Answer::default()
                }
            }
            Filtered::Placed(placement) => self.placed(&request, &pod, placement, asked).await,
            Filtered::Nowhere(misfits) => {
                if matches!(asked, CandidateNodes::Names(_)) {
                    let about = &request.pod;
                    tracing::info!(namespace = %about.namespace, pod = %about.name, nodes = misfits.len(), "fits nowhere");
                    self.0.events.pod(
                        &*pod,
                        Kind::Warning,
                        "FilteringFailed",
                        hcs::event(&misfits, &request, no_node(&misfits)),
                    );
                }
                Answer {
                    refused: Some(Refused::from_misfits(&misfits, &request)),
                    ..Answer::default()
                }
            }
            Filtered::Elsewhere { node, certain } => Answer::error(if certain {
                format!("the pod is bound to node {node} already")
            } else {
                format!(
                    "it is not known yet whether the pod's binding to node {node} has happened; try again"
                )
            }),
        }
    }

    /// Checks that the pod has passed the webhook, on API servers that may skip it.
    fn check_admitted(&self, request: &Request, body: &[u8]) -> Result<(), Denied> {
        let Some(admission) = self.0.admission.get() else {
            return Ok(());
        };
        if !request.asks_for_devices() {
            return Ok(());
        }
        let pod = whole_pod(body).unwrap_or_default();
        admission.passed(&pod)
    }

    /// The node for the pod. If the question has names, the devices are reserved. A question with whole nodes comes
    /// from a caller without a node cache, or one that only wants to know: nothing is reserved, and a binding that
    /// follows fits the pod again.
    fn choose(&self, request: &Request, pod: &Arc<Pod>, asked: &CandidateNodes) -> Filtered {
        let names = asked.names();
        let among = Among::Names(&names);
        let CandidateNodes::Nodes(nodes) = asked else {
            return self.change(|ledger, now| ledger.filter(request, pod, among, now));
        };
        let strange: Vec<&RawValue> = self.with_ledger(|ledger| {
            // Nodes outside the selector are unknown to the ledger, and stay so.
            let all = self.0.settings.node_selector.is_empty();
            nodes
                .iter()
                .filter(|(name, _)| all && !ledger.knows_node(name))
                .map(|(_, node)| &**node)
                .collect()
        });
        let reports: Vec<placement::Node> = strange
            .into_iter()
            .filter_map(|node| serde_json::from_str::<Node>(node.get()).ok())
            .map(|node| report(&node, &self.0.vendors).node)
            .collect();
        self.with_ledger(|ledger| {
            let outcome = ledger.consider(request, among);
            let Filtered::Nowhere(mut misfits) = outcome else {
                return outcome;
            };
            match place_beside(ledger.cluster(), request, reports) {
                Ok(placement) => Filtered::Placed(placement),
                Err(others) => {
                    let mut others: HashMap<Arc<str>, Misfit> = others
                        .into_iter()
                        .map(|other| (other.node, other.misfit))
                        .collect();
                    for NodeMisfit { node, misfit } in &mut misfits {
                        if let Some(other) = others.remove(node) {
                            *misfit = other;
                        }
                    }
                    Filtered::Nowhere(misfits)
                }
            }
        })
    }

    async fn placed(
        &self,
        request: &Request,
        pod: &Arc<Pod>,
        placement: Placement,
        asked: CandidateNodes,
    ) -> Answer {
        let about = &request.pod;
        let node = Arc::clone(&placement.node);
        let holds = matches!(asked, CandidateNodes::Names(_));
        if holds
            && self.0.settings.write_at_filter
            && let Err(problem) = self.write_at_filter(pod, &placement).await
        {
            self.change(|ledger, _| ledger.undo(&about.uid));
            return Answer::error(problem.to_string());
        }
        if !holds {
            return asked.only(&node);
        }
        tracing::info!(namespace = %about.namespace, pod = %about.name, %node, "reserved");
        self.0.events.pod(
            &**pod,
            Kind::Normal,
            "FilteringSucceed",
            format!("find fit node({node}) among {}", asked.len()),
        );
        asked.only(&node)
    }

    /// Waits until the claims of the question's pod have been read, for up to [`CLAIMS_PATIENCE`]: kube-scheduler's watch
    /// may be ahead of ours.
    pub(crate) async fn read_claims_of(&self, args: &ExtenderArgs) {
        let Some(pod) = &args.pod else { return };
        if !self.0.settings.reads_resource_claims || pod.spec.resource_claims.is_empty() {
            return;
        }
        let namespace = pod.metadata.namespace.as_deref();
        let namespace = namespace.unwrap_or(crate::DEFAULT_NAMESPACE);
        let until = self.now() + CLAIMS_PATIENCE;
        while !self.0.claim_scores.lock().knows_claims_of(pod, namespace) && self.now() < until {
            tokio::time::sleep(CLAIMS_PAUSE).await;
        }
    }

    /// The score of each node for the pod, 0 to 10, in the order of the question. For a pod without devices and without
    /// ResourceClaims of our driver all nodes score the same.
    ///
    /// # Errors
    ///
    /// Why the question cannot be answered.
    pub fn prioritize(&self, mut args: ExtenderArgs) -> Result<Vec<HostPriority>, QuestionError> {
        let Some(pod) = args.pod.take() else {
            return Err(QuestionError::NoPod);
        };
        let Some(asked) = CandidateNodes::of(&mut args) else {
            return Ok(Vec::new());
        };
        let request = self.request(&pod)?;
        let names = asked.names();
        let mut scores: HashMap<Arc<str>, i64> = HashMap::new();
        if !request.asks_for_devices() && self.0.settings.reads_resource_claims {
            let (identity, policy) = (&request.pod, request.node_policy);
            let mut by_claims = self.0.claim_scores.lock();
            scores = by_claims.score(&pod, identity, policy, &names, self.now());
            drop(by_claims);
            return Ok(with_scores(&names, &scores));
        }
        if request.asks_for_devices() {
            let ranked =
                self.with_ledger(|ledger| ledger.cluster().rank(&request, Among::Names(&names)));
            if request.any.is_some() {
                scores = hcs::priorities(&ranked);
                return Ok(with_scores(&names, &scores));
            }
            for (node, result) in ranked {
                if let Ok(fullness) = result {
                    scores.insert(node, score(fullness, request.node_policy));
                }
            }
        }
        Ok(with_scores(&names, &scores))
    }
}

fn with_scores(names: &[&str], scores: &HashMap<Arc<str>, i64>) -> Vec<HostPriority> {
    names
        .iter()
        .map(|name| HostPriority {
            host: (*name).to_owned(),
            score: scores.get(*name).copied().unwrap_or_default(),
        })
        .collect()
}

/// Converts 0 (empty) to 30 (full) to kube-scheduler's scale: 0 to 10, more is better.
#[expect(
    clippy::cast_possible_truncation,
    reason = "it is between 0 and 10, and the float to integer cast saturates"
)]
pub(crate) fn score(fullness: f64, policy: NodePolicy) -> i64 {
    let tenths = (fullness / 3.0).clamp(0.0, 10.0);
    match policy {
        NodePolicy::Binpack => tenths.round() as i64,
        NodePolicy::Spread => (10.0 - tenths).round() as i64,
    }
}

/// Places the request on nodes from the question, together with the pods' devices there.
fn place_beside(
    cluster: &Cluster,
    request: &Request,
    nodes: Vec<placement::Node>,
) -> Result<Placement, Vec<NodeMisfit>> {
    if nodes.is_empty() {
        return Err(Vec::new());
    }
    let mut beside = Cluster::new();
    for node in nodes {
        let held: Vec<_> = cluster
            .reservations_on(&node.name)
            .filter(|held| held.pod.uid != request.pod.uid)
            .map(|held| (held.pod.clone(), held.placement.clone()))
            .collect();
        // A node that names a device twice stays out, and is reported as "not registered".
        if beside.set_node(node).is_ok() {
            for (pod, placement) in held {
                beside.reserve(pod, placement);
            }
        }
    }
    beside.place(request, Among::All)
}

/// The pod of a question as JSON, with every field that it came with.
pub(crate) fn whole_pod(body: &[u8]) -> Option<Value> {
    let Ok(Value::Object(args)) = serde_json::from_slice(body) else {
        return None;
    };
    let (_, pod) = args
        .into_iter()
        .find(|(key, _)| key.eq_ignore_ascii_case("pod"))?;
    pod.is_object().then_some(pod)
}
