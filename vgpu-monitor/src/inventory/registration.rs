//! Keeps the Node object's annotations of this node's GPUs up to date: the register, the scores of pairs, the
//! handshake. Never touches another program's keys or the operator's cordon, and removes nothing when the
//! agent stops.
//!
//! It writes only if the annotations differ from what they should be: it watches the API server instead of
//! writing every half minute. The handshake goes with such a write, and answers a scheduler that asks for
//! one.

use std::collections::BTreeMap;
use std::time::Duration;

use events::{Events, Kind};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube_api::keys;
use kube_api::node::{RegisterFormat, Registered, encode, encode_scores};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::pace::WritePace;
use super::{capacity, lease};
use crate::follow::{Told, follow};
use crate::node_gpus::{Health, Healths, Inventories, Inventory};

/// How this node's GPUs are registered.
#[derive(Debug, Clone)]
pub struct RegisterSettings {
    /// Name of the Node object.
    pub node: String,
    /// Namespace of the agent and of its Lease.
    pub namespace: String,
    /// The form of the register annotation.
    pub format: RegisterFormat,
    /// Writes events on the node about what is wrong with its GPUs.
    pub events: Events,
    /// The first pause after a write that failed; it doubles up to a minute.
    pub pause: Duration,
    /// How the agent's Lease is kept.
    pub lease: lease::Terms,
}

impl RegisterSettings {
    /// With the defaults.
    pub fn new(node: impl Into<String>, namespace: impl Into<String>, events: Events) -> Self {
        Self {
            node: node.into(),
            namespace: namespace.into(),
            format: RegisterFormat::Auto,
            events,
            pause: Duration::from_secs(1),
            lease: lease::Terms::default(),
        }
    }
}

/// The agent's keys.
const OURS: [&str; 3] = [
    keys::NVIDIA_REGISTER,
    keys::NVIDIA_SCORE,
    keys::SEED_HANDSHAKE,
];
/// How a handshake begins that an agent has written.
const REPORTED: &str = "Reported ";

/// Keeps the Node's annotations and the agent's Lease as they should be, for ever.
pub async fn register(
    client: kube::Client,
    settings: RegisterSettings,
    inventories: Inventories,
    healths: Healths,
) {
    let lease = lease::keep(
        client.clone(),
        settings.namespace.clone(),
        settings.node.clone(),
        settings.lease,
        inventories.clone(),
    );
    let annotations = keep(client, &settings, inventories, healths);
    tokio::join!(lease, annotations);
}

/// Removes the agent's annotations from the Node, what it reported in the capacity, and its Lease, to take the product off a node. No restart
/// does this.
///
/// # Errors
/// As the API server has them; a node or a Lease that does not exist is none.
pub async fn unregister(client: kube::Client, node: &str, namespace: &str) -> kube::Result<()> {
    let nodes: Api<PartialObjectMeta<Node>> = Api::all(client.clone());
    let nothing: BTreeMap<&str, Value> = OURS.iter().map(|key| (*key, Value::Null)).collect();
    let patch = Patch::Merge(json!({ "metadata": { "annotations": nothing } }));
    match nodes.patch(node, &PatchParams::default(), &patch).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => return Err(error),
    }
    capacity::taken_back(&Api::all(client.clone()), node).await?;
    lease::remove(client, namespace, node).await
}

/// Removes the agent's annotations from the Node, and what it reported in the capacity, with the rights that an agent has: the scheduler then gives its GPUs to
/// no pod. The Lease ends by itself.
///
/// # Errors
/// As the API server has them.
pub(crate) async fn withdraw(client: &kube::Client, node: &str) -> kube::Result<()> {
    let nodes: Api<PartialObjectMeta<Node>> = Api::all(client.clone());
    let nothing: BTreeMap<&str, Value> = OURS.iter().map(|key| (*key, Value::Null)).collect();
    let patch = Patch::Merge(json!({ "metadata": { "annotations": nothing } }));
    nodes
        .patch_status(node, &PatchParams::default(), &patch)
        .await?;
    capacity::taken_back(&Api::all(client.clone()), node).await
}

/// The values for our keys: no value removes a key. No answer at all where too little is known.
fn wanted(
    inventory: &Inventory,
    health: &Health,
    format: RegisterFormat,
) -> Option<(Option<String>, Option<String>)> {
    if inventory.gpus.is_empty() {
        // A node without GPUs has nothing to say; one whose GPUs are not known keeps what was said.
        return inventory.problems.is_empty().then_some((None, None));
    }
    let registered: Vec<Registered> = inventory
        .gpus
        .iter()
        .map(|gpu| {
            let mut registered = Registered::from(&gpu.device);
            registered.health &= !health.contains_key(&gpu.device.id);
            registered
        })
        .collect();
    let scores = (!inventory.pairs.is_empty()).then(|| encode_scores(&inventory.pairs));
    Some((Some(encode(&registered, format)), scores))
}

/// The changes that make the annotations right; `None` if they are right already.
fn changes(
    stands: &BTreeMap<String, String>,
    register: Option<&str>,
    scores: Option<&str>,
    now: Timestamp,
) -> Option<BTreeMap<&'static str, Value>> {
    let stands = |key: &str| stands.get(key).map(String::as_str);
    let mut changes = BTreeMap::new();
    for (key, value) in [
        (keys::NVIDIA_REGISTER, register),
        (keys::NVIDIA_SCORE, scores),
    ] {
        if stands(key) != value {
            changes.insert(key, value.map_or(Value::Null, Value::from));
        }
    }
    let shaken = stands(keys::SEED_HANDSHAKE);
    match register {
        // With each write, and in answer to each question.
        Some(_) if !changes.is_empty() || !shaken.is_some_and(|it| it.starts_with(REPORTED)) => {
            let time = now.strftime("%Y-%m-%d %H:%M:%S");
            changes.insert(keys::SEED_HANDSHAKE, json!(format!("{REPORTED}{time}")));
        }
        None if shaken.is_some() => {
            changes.insert(keys::SEED_HANDSHAKE, Value::Null);
        }
        _ => {}
    }
    (!changes.is_empty()).then_some(changes)
}

/// The Node's annotations, as they were last seen.
#[derive(Debug, Default)]
struct LastWritten {
    annotations: BTreeMap<String, String>,
    version: Option<u64>,
}

impl LastWritten {
    /// A watch may deliver the state before this agent's own write.
    fn see(&mut self, node: PartialObjectMeta<Node>) {
        let version = node.metadata.resource_version.as_deref();
        let version = version.and_then(|version| version.parse().ok());
        if let (Some(known), Some(told)) = (self.version, version)
            && told < known
        {
            return;
        }
        self.version = version;
        self.annotations = node.metadata.annotations.unwrap_or_default();
        self.annotations
            .retain(|key, _| OURS.contains(&key.as_str()));
    }
}

async fn keep(
    client: kube::Client,
    settings: &RegisterSettings,
    mut inventories: Inventories,
    mut healths: Healths,
) {
    let nodes: Api<PartialObjectMeta<Node>> = Api::all(client.clone());
    let own = format!("metadata.name={}", settings.node);
    let mut watch = follow(client, nodes.clone(), &own);
    let mut seen: Option<LastWritten> = None;
    let mut pace = WritePace::new(settings.pause);
    let mut told: Vec<String> = Vec::new();
    loop {
        let inventory = inventories.borrow_and_update().clone();
        let health = healths.borrow_and_update().clone();
        if let Some(inventory) = &inventory {
            tell(settings, &inventory.problems, &mut told);
        }
        let wanted = inventory.and_then(|it| wanted(&it, &health, settings.format));
        let due = match (&seen, &wanted) {
            (Some(seen), Some((register, scores))) => changes(
                &seen.annotations,
                register.as_deref(),
                scores.as_deref(),
                Timestamp::now(),
            ),
            _ => None,
        };
        let at = pace.next();
        if let Some(changes) = due.as_ref().filter(|_| at <= Instant::now()) {
            let what = json!({ "metadata": { "annotations": changes } });
            let writing = PatchParams {
                field_manager: Some("vgpu-monitor".to_owned()),
                ..PatchParams::default()
            };
            let what = Patch::Merge(what);
            // Through the status, which the API server lets change annotations and never the spec.
            let writing = nodes.patch_status(&settings.node, &writing, &what);
            let written = lease::in_time(writing).await;
            pace.wrote(written.is_ok(), Instant::now(), lease::jitter());
            match written {
                Ok(node) => {
                    let keys: Vec<_> = changes.keys().collect();
                    tracing::info!(node = %settings.node, ?keys, "registered the node's GPUs");
                    seen.get_or_insert_default().see(node);
                }
                Err(error) => {
                    tracing::warn!(node = %settings.node, %error, "cannot register the node's GPUs; tried again");
                }
            }
            continue;
        }
        tokio::select! {
            told = watch.recv() => match told {
                Some(Told::All(nodes)) => match nodes.into_iter().next() {
                    Some(node) => seen.get_or_insert_default().see(node),
                    None => seen = None,
                },
                Some(Told::Put(node)) => seen.get_or_insert_default().see(node),
                // The Node is being created again, or does not exist yet.
                Some(Told::Gone(_)) => seen = None,
                Some(Told::Up) => {}
                Some(Told::Down(why)) => tracing::warn!(why, "cannot watch the own node"),
                None => return,
            },
            changed = inventories.changed() => if changed.is_err() { return },
            changed = healths.changed() => if changed.is_err() { std::future::pending::<()>().await },
            () = sleep_until(at), if due.is_some() => {}
        }
    }
}

/// Tells the node of what is new among the problems.
fn tell(settings: &RegisterSettings, problems: &[String], told: &mut Vec<String>) {
    for problem in problems.iter().filter(|problem| !told.contains(problem)) {
        settings
            .events
            .node(&settings.node, Kind::Warning, "GpuInventory", problem);
    }
    problems.clone_into(told);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_gpus::Sick;

    fn stands(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let own = |text: &&str| (*text).to_owned();
        pairs
            .iter()
            .map(|(key, value)| (own(key), own(value)))
            .collect()
    }

    const TIME: Timestamp = Timestamp::constant(1_705_984_204, 0);

    #[test]
    fn first_registration_matches_the_reference_document() {
        let (register, scores) =
            wanted(&Inventory::of_gpus(1), &Health::new(), RegisterFormat::Auto).unwrap();

        let changes = changes(&stands(&[]), register.as_deref(), scores.as_deref(), TIME).unwrap();

        assert_eq!(
            json!(changes),
            json!({
                "hami.io/node-nvidia-register": "GPU-0,10,16384,100,NVIDIA A,0,true:",
                "hami.io/node-handshake-nvidia": "Reported 2024-01-23 04:30:04",
            })
        );
    }

    #[test]
    fn correct_annotations_cause_no_write() {
        let there = stands(&[
            (keys::NVIDIA_REGISTER, "a:"),
            (keys::SEED_HANDSHAKE, "Reported 2020-01-01 00:00:00"),
        ]);
        assert_eq!(changes(&there, Some("a:"), None, TIME), None);
        assert_eq!(changes(&stands(&[]), None, None, TIME), None);
    }

    #[test]
    fn wrong_annotations_are_corrected() {
        let good = [
            (keys::NVIDIA_REGISTER, "a:"),
            (keys::NVIDIA_SCORE, "[]"),
            (keys::SEED_HANDSHAKE, "Reported 2020-01-01 00:00:00"),
        ];
        let reported = json!("Reported 2024-01-23 04:30:04");
        for (key, value, expected) in [
            // A scheduler that asks is answered.
            (
                keys::SEED_HANDSHAKE,
                Some("Requesting_2024.01.23 04:30:04"),
                json!({ keys::SEED_HANDSHAKE: reported }),
            ),
            (
                keys::SEED_HANDSHAKE,
                None,
                json!({ keys::SEED_HANDSHAKE: reported }),
            ),
            (
                keys::NVIDIA_REGISTER,
                Some("b:"),
                json!({ keys::NVIDIA_REGISTER: "a:", keys::SEED_HANDSHAKE: reported }),
            ),
            (
                keys::NVIDIA_SCORE,
                None,
                json!({ keys::NVIDIA_SCORE: "[]", keys::SEED_HANDSHAKE: reported }),
            ),
        ] {
            let mut there = stands(&good);
            match value {
                Some(value) => there.insert(key.to_owned(), value.to_owned()),
                None => there.remove(key),
            };
            let changes = changes(&there, Some("a:"), Some("[]"), TIME);
            assert_eq!(json!(changes), expected, "{key} {value:?}");
        }
        let gone = changes(&stands(&good), None, None, TIME);
        assert_eq!(
            json!(gone),
            json!({ keys::NVIDIA_REGISTER: null, keys::NVIDIA_SCORE: null, keys::SEED_HANDSHAKE: null })
        );
    }

    #[test]
    fn sick_gpu_is_registered_as_unhealthy() {
        let sick = Sick {
            reason: "lost".to_owned(),
            since: std::time::SystemTime::UNIX_EPOCH,
            recovers: false,
        };
        let health = Health::from([("GPU-1".to_owned(), sick)]);

        let (register, _) = wanted(&Inventory::of_gpus(2), &health, RegisterFormat::Colon).unwrap();

        assert_eq!(
            register.unwrap(),
            "GPU-0,10,16384,100,NVIDIA A,0,true:GPU-1,10,16384,100,NVIDIA A,0,false:"
        );
    }

    #[test]
    fn node_without_gpus_is_unregistered_and_unknown_gpus_stay() {
        let mut none = Inventory::of_gpus(0);
        assert_eq!(
            wanted(&none, &Health::new(), RegisterFormat::Auto),
            Some((None, None))
        );
        none.problems
            .push("the configuration cannot be used".to_owned());
        assert_eq!(wanted(&none, &Health::new(), RegisterFormat::Auto), None);
    }
}
