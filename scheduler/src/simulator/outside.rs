//! Objects of a real cluster: copied once, or followed for as long as the simulator runs. The real cluster is only
//! read.
//!
//! As in the reference, pods are copied without their service account and owners, which do not exist here. A pod's node
//! is copied with the pod; if the pod changes there later, it keeps its node here.

use std::collections::BTreeSet;
use std::path::Path;

use futures_util::StreamExt;
use futures_util::stream::{BoxStream, SelectAll, iter, select_all};
use kube::api::{DynamicObject, ListParams, TypeMeta};
use kube::core::Request;
use kube::discovery::ApiResource;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use serde_json::{Map, Value, json};

use embedded_cluster::{Cluster, DeleteOptions, Target, Write};

use super::import::{Import, put};
use super::kinds::{KINDS, Kind};
use super::recording::{ChangeKind, Line, Recorder, ReplayPace};
use super::{Refusal, Simulator};

/// How many objects one request lists.
const PAGE: u32 = 500;

/// Reads all objects of the seven kinds with these labels, as an import.
///
/// # Errors
///
/// The cluster's answer to a list that failed.
pub async fn read(client: &Client, labels: &str) -> Result<Import, Refusal> {
    let mut state = Map::new();
    for kind in KINDS {
        let mut all = Vec::new();
        let mut next = Some(ListParams::default().labels(labels).limit(PAGE));
        while let Some(asked) = next.take() {
            let failed = |error: &dyn std::fmt::Display| {
                Refusal::Impossible(format!("{} cannot be listed: {error}", kind.plural))
            };
            let request = Request::new(path(&kind))
                .list(&asked)
                .map_err(|error| failed(&error))?;
            let list: Value = client
                .request(request)
                .await
                .map_err(|error| failed(&error))?;
            let items = list.get("items").and_then(Value::as_array);
            all.extend(
                items
                    .into_iter()
                    .flatten()
                    .map(|object| adapted(&kind, object.clone())),
            );
            let token = list.pointer("/metadata/continue").and_then(Value::as_str);
            if let Some(token) = token.filter(|token| !token.is_empty()) {
                next = Some(asked.continue_token(token));
            }
        }
        state.insert(kind.key.to_owned(), all.into());
    }
    Import::read(Value::Object(state))
}

/// The API path of a kind.
fn path(kind: &Kind) -> String {
    if kind.group.is_empty() {
        format!("/api/v1/{}", kind.plural)
    } else {
        format!("/apis/{}/v1/{}", kind.group, kind.plural)
    }
}

/// An object of another cluster, adapted to this one.
pub(super) fn adapted(kind: &Kind, mut object: Value) -> Value {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for name in ["uid", "resourceVersion", "generation", "managedFields"] {
            metadata.remove(name);
        }
        if kind.key == "pods" {
            metadata.remove("ownerReferences");
        }
    }
    if kind.key == "pods"
        && let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut)
    {
        spec.remove("serviceAccountName");
        spec.remove("serviceAccount");
    }
    object
}

impl Simulator {
    /// Repeats in this cluster the changes there of objects with these labels, until the future is dropped. An object
    /// that this cluster refuses is skipped, with a line in the log; a broken connection is restored. An object of
    /// `imported` that is gone there when this begins is deleted here.
    pub async fn follow(&self, client: &Client, labels: &str, imported: Option<&Import>) {
        let mut seen = watch(client, labels, imported);
        while let Some((kind, object, gone)) = seen.next().await {
            self.mirror(&kind, object, gone).await;
        }
    }

    /// Replays a recording at this pace, and returns the number of lines that failed. Changes of a pod after it had a
    /// node are left out: here this scheduler decides.
    pub async fn replay(&self, lines: Vec<Line>, pace: ReplayPace) -> usize {
        let begun = tokio::time::Instant::now();
        let Some(first) = lines.first().map(|line| line.time) else {
            return 0;
        };
        let mut refused = 0;
        for line in lines {
            let due = pace.due(first, line.time);
            if !due.is_zero() {
                tokio::time::sleep_until(begun + due).await;
            }
            let gone = line.happening == ChangeKind::Delete;
            refused += usize::from(!self.mirror(&line.kind, line.object, gone).await);
            tokio::task::yield_now().await;
        }
        refused
    }

    /// Brings the object here to its state there, as far as it is mirrored. Returns whether that succeeded.
    async fn mirror(&self, kind: &Kind, object: Value, gone: bool) -> bool {
        let text = |path: &str| {
            object
                .pointer(path)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let (namespace, name) = (
            text("/metadata/namespace").to_owned(),
            text("/metadata/name").to_owned(),
        );
        let (Ok(resource), false) = (kind.resource(self.cluster()), kind.is_given(&name)) else {
            return true;
        };
        let target = Target::object(&resource, &namespace, &name);
        let _writing = self.0.gate.read().await;
        let done = if gone {
            let (options, write) = (DeleteOptions::default(), Write::default());
            let deleted = self.cluster().delete(&target, &options, &write).await;
            deleted.map(drop)
        } else {
            let runs = !text("/spec/nodeName").is_empty();
            if kind.key == "pods" && runs && self.cluster().get(&target).is_ok() {
                return true;
            }
            put(self.cluster(), kind, &adapted(kind, object)).await
        };
        match done {
            Ok(()) => true,
            Err(status) if gone && status.code == 404 => true,
            Err(status) => {
                tracing::warn!(kind = kind.plural, namespace, name, %status, "not taken over");
                false
            }
        }
    }
}

/// Writes the changes there of objects with these labels to a file, until the file cannot be written.
///
/// # Errors
///
/// The file cannot be written.
pub async fn record(client: &Client, labels: &str, path: &Path) -> std::io::Result<()> {
    let mut recorder = Recorder::create(path)?;
    let mut seen = watch(client, labels, None);
    while let Some((_, object, gone)) = seen.next().await {
        recorder.write(&object, gone)?;
    }
    Ok(())
}

/// Yields every object with these labels, then every change, each with whether the object is gone. Deletions during a
/// broken connection are reported after the next list, and those of imported objects after the first one.
fn watch(
    client: &Client,
    labels: &str,
    imported: Option<&Import>,
) -> SelectAll<BoxStream<'static, (Kind, Value, bool)>> {
    let config = watcher::Config::default().labels(labels);
    // The names of the seven kinds are the same in every cluster.
    let names = Cluster::default();
    let each = KINDS.iter().filter_map(|kind| {
        let resource = kind.resource(&names).ok()?;
        let described = ApiResource {
            group: kind.group.to_owned(),
            version: "v1".to_owned(),
            api_version: resource.api_version(),
            kind: resource.kind.clone(),
            plural: kind.plural.to_owned(),
        };
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &described);
        let mut known = KnownObjects {
            kind: *kind,
            described,
            present: imported
                .map(|import| import.names(kind))
                .unwrap_or_default(),
            listed: BTreeSet::new(),
        };
        let events = watcher(api, config.clone()).default_backoff();
        Some(
            events
                .flat_map(move |event| iter(known.take(event)))
                .boxed(),
        )
    });
    select_all(each)
}

/// The existing objects of one kind, by namespace and name.
struct KnownObjects {
    kind: Kind,
    described: ApiResource,
    present: BTreeSet<(String, String)>,
    /// The objects of the current list so far.
    listed: BTreeSet<(String, String)>,
}

impl KnownObjects {
    /// The objects of an event, and whether each is gone.
    fn take(
        &mut self,
        event: Result<Event<DynamicObject>, watcher::Error>,
    ) -> Vec<(Kind, Value, bool)> {
        let key = |object: &DynamicObject| {
            let metadata = &object.metadata;
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            (text(&metadata.namespace), text(&metadata.name))
        };
        let (object, gone) = match event {
            Ok(Event::Init) => {
                self.listed.clear();
                return Vec::new();
            }
            Ok(Event::InitApply(object)) => {
                self.listed.insert(key(&object));
                (object, false)
            }
            Ok(Event::InitDone) => {
                let listed = std::mem::take(&mut self.listed);
                let before = std::mem::replace(&mut self.present, listed);
                let gone = before.into_iter().filter(|key| !self.present.contains(key));
                return gone.map(|key| self.tombstone(&key)).collect();
            }
            Ok(Event::Apply(object)) => {
                self.present.insert(key(&object));
                (object, false)
            }
            Ok(Event::Delete(object)) => {
                self.present.remove(&key(&object));
                (object, true)
            }
            Err(error) => {
                let kind = self.kind.plural;
                tracing::warn!(kind, %error, "the watch of the real cluster broke; it is restored");
                return Vec::new();
            }
        };
        let mut object = object;
        object.types.get_or_insert(TypeMeta {
            api_version: self.described.api_version.clone(),
            kind: self.described.kind.clone(),
        });
        let value = serde_json::to_value(object).ok();
        value
            .map(|value| (self.kind, value, gone))
            .into_iter()
            .collect()
    }

    /// The known fields of an object whose deletion went unseen.
    fn tombstone(&self, (namespace, name): &(String, String)) -> (Kind, Value, bool) {
        let mut metadata = Map::new();
        metadata.insert("name".to_owned(), name.as_str().into());
        if !namespace.is_empty() {
            metadata.insert("namespace".to_owned(), namespace.as_str().into());
        }
        let object = json!({
            "apiVersion": self.described.api_version,
            "kind": self.described.kind,
            "metadata": metadata,
        });
        (self.kind, object, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_removed_before_a_list_is_reported_after_it() {
        let kind = *KINDS.iter().find(|kind| kind.key == "nodes").unwrap();
        let described = ApiResource {
            group: String::new(),
            version: "v1".to_owned(),
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            plural: "nodes".to_owned(),
        };
        let imported = DynamicObject::new("imported", &described);
        let imported = serde_json::to_value(imported).unwrap();
        let mut known = KnownObjects {
            kind,
            described: described.clone(),
            present: Import::of(vec![(kind, imported)], true).names(&kind),
            listed: BTreeSet::new(),
        };
        let object = |name| DynamicObject::new(name, &described);
        let mut told = Vec::new();
        for event in [
            Event::Init,
            Event::InitApply(object("a")),
            Event::InitApply(object("b")),
            Event::InitDone,
            Event::Apply(object("c")),
            Event::Delete(object("b")),
            Event::Init,
            Event::InitApply(object("c")),
            Event::InitDone,
        ] {
            for (_, object, gone) in known.take(Ok(event)) {
                let name = object["metadata"]["name"].as_str().unwrap().to_owned();
                assert_eq!(object["kind"], "Node");
                told.push((name, gone));
            }
        }

        let told: Vec<(&str, bool)> = told.iter().map(|(name, gone)| (&**name, *gone)).collect();
        assert_eq!(
            told,
            [
                ("a", false),
                ("b", false),
                ("imported", true),
                ("c", false),
                ("b", true),
                ("c", false),
                ("a", true)
            ]
        );
    }
}
