//! Everything in a cluster that an import accepts, in the format of `GET /api/v1/export`.

use std::sync::Arc;

use embedded_cluster::{Cluster, Snapshot, Stored};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::kinds::{KINDS, without_type};
use super::shown::Shown;

/// The keys, in the order of the text.
const KEYS: [&str; 8] = [
    "pods",
    "nodes",
    "pvs",
    "pvcs",
    "storageClasses",
    "priorityClasses",
    CONFIGURATION,
    "namespaces",
];
const CONFIGURATION: &str = "schedulerConfig";

/// The objects of the seven kinds and the configuration. An empty list is `[]`.
///
/// The results of ten thousand pods are gigabytes of text, so each object is encoded only when it is sent.
#[derive(Debug)]
pub struct Export {
    lists: Vec<(&'static str, Objects)>,
    shown: Shown,
}

#[derive(Debug)]
struct Objects(Vec<Arc<Stored>>);

impl Export {
    pub(super) fn of(cluster: &Cluster, shown: Shown) -> Self {
        let objects = cluster.snapshot();
        let keys = KEYS.into_iter().filter(|key| *key != CONFIGURATION);
        let lists = keys.map(|key| (key, list(cluster, &objects, key)));
        Self {
            lists: lists.collect(),
            shown,
        }
    }

    /// The JSON text, piece by piece.
    pub fn into_pieces(self) -> impl Iterator<Item = String> + Send {
        let mut lists = self.lists.into_iter();
        let mut shown = Some(self.shown);
        let mut first = true;
        let fields = KEYS.into_iter().flat_map(move |key| {
            let comma = if std::mem::take(&mut first) { "{" } else { "," };
            let begin = format!("{comma}\"{key}\":");
            if key == CONFIGURATION {
                let shown = serde_json::to_string(&shown.take()).unwrap_or_default();
                return Pieces::from([begin, shown]);
            }
            let objects = lists.next().map(|(_, Objects(objects))| objects);
            let objects = objects
                .into_iter()
                .flatten()
                .enumerate()
                .map(|(at, object)| {
                    let comma = if at > 0 { "," } else { "" };
                    format!("{comma}{}", without_type(object.value()))
                });
            let list = std::iter::once(begin + "[").chain(objects);
            Pieces(Box::new(list.chain(["]".to_owned()])))
        });
        fields.chain(["}".to_owned()])
    }
}

/// Pieces of a text.
struct Pieces(Box<dyn Iterator<Item = String> + Send>);

impl From<[String; 2]> for Pieces {
    fn from(pieces: [String; 2]) -> Self {
        Self(Box::new(pieces.into_iter()))
    }
}

impl Iterator for Pieces {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        self.0.next()
    }
}

impl Serialize for Export {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(KEYS.len()))?;
        for (key, objects) in &self.lists {
            map.serialize_entry(key, objects)?;
        }
        map.serialize_entry(CONFIGURATION, &self.shown)?;
        map.end()
    }
}

impl Serialize for Objects {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|object| without_type(object.value())))
    }
}

fn list(cluster: &Cluster, objects: &Snapshot, key: &str) -> Objects {
    let kind = KINDS.iter().find(|kind| kind.key == key);
    let resource = kind.and_then(|kind| Some((kind, kind.resource(cluster).ok()?)));
    let Some((kind, resource)) = resource else {
        return Objects(Vec::new());
    };
    let objects = objects
        .list(&resource)
        .filter(|object| !kind.is_given(object.name()));
    Objects(objects.cloned().collect())
}
