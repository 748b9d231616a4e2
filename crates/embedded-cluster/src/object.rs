//! A stored object: its JSON text, and the few values that lists and watches need.
//!
//! Text needs a tenth of the memory of a tree of values for fifty thousand pods, and a list is the concatenated texts.
//! A write parses only the object that it changes.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::compact::{self, Beside, Compact, render_into};
use crate::resource::Resource;
use crate::selector::Selector;
use crate::status::Status;

/// One version of one object.
#[derive(Debug, Clone)]
pub struct Stored {
    /// `namespace/name`, or the name of an object without a namespace.
    pub(crate) key: Arc<str>,
    version: u64,
    /// Without the compact annotations.
    json: Bytes,
    pub(crate) beside: Beside,
    labels: Box<[(Box<str>, Box<str>)]>,
    fields: Box<[(Arc<str>, Box<str>)]>,
}

impl Stored {
    /// Writes `version` into the object and keeps its text; 0 writes no version.
    pub(crate) fn new(
        resource: &Resource,
        key: Arc<str>,
        version: u64,
        object: &mut Value,
        beside: Beside,
    ) -> Self {
        if let (Some(metadata), true) = (metadata_mut(object), version > 0) {
            metadata.insert("resourceVersion".into(), version.to_string().into());
        }
        let labels = object["metadata"]["labels"]
            .as_object()
            .into_iter()
            .flatten();
        let labels = labels
            .filter_map(|(key, value)| Some((key.as_str().into(), value.as_str()?.into())))
            .collect();
        let fields = resource.fields.iter().filter_map(|path| {
            let value = field(object, path);
            (!value.is_empty()).then(|| (path.clone(), value.into()))
        });
        Self {
            key,
            version,
            labels,
            fields: fields.collect(),
            json: to_json(object).into(),
            beside,
        }
    }

    /// The same object with another version.
    pub(crate) fn at_version(&self, version: u64) -> Self {
        let mut object = self.bare();
        if let Some(metadata) = metadata_mut(&mut object) {
            metadata.insert("resourceVersion".into(), version.to_string().into());
        }
        Self {
            version,
            json: to_json(&object).into(),
            ..self.clone()
        }
    }

    /// The object's `metadata.resourceVersion`.
    pub fn resource_version(&self) -> u64 {
        self.version
    }

    /// The object as JSON text.
    pub fn json(&self) -> Bytes {
        match &self.beside {
            None => self.json.clone(),
            Some(_) => to_json(&self.value()).into(),
        }
    }

    /// The object as a value.
    pub fn value(&self) -> Value {
        let mut object = self.bare();
        if let Some(compact) = &self.beside {
            render_into(&mut object, &**compact);
        }
        object
    }

    /// The compact annotations beside the object.
    pub fn compact(&self) -> Option<&Arc<dyn Compact>> {
        self.beside.as_ref()
    }

    /// The object as a value, without its compact annotations.
    pub fn bare(&self) -> Value {
        serde_json::from_slice(&self.json).expect("what was printed from a value is JSON")
    }

    /// The object as a type of the caller's choice, without its compact annotations.
    pub fn parse<T: serde::de::DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_slice(&self.json)
    }

    /// Whether both are the same except for their versions.
    pub(crate) fn same(&self, other: &Self) -> bool {
        let other = other.at_version(self.version);
        if self.beside.is_some() == other.beside.is_some() {
            return self.json == other.json && compact::same(&self.beside, &other.beside);
        }
        self.json() == other.json()
    }

    /// `metadata.namespace`; empty for an object without one.
    pub fn namespace(&self) -> &str {
        self.key
            .split_once('/')
            .map_or("", |(namespace, _)| namespace)
    }

    /// `metadata.name`.
    pub fn name(&self) -> &str {
        self.key
            .split_once('/')
            .map_or(&*self.key, |(_, name)| name)
    }

    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels
            .iter()
            .find(|(name, _)| **name == *key)
            .map(|(_, value)| &**value)
    }

    pub(crate) fn matches(&self, selector: &Selector) -> bool {
        selector.is_empty()
            || selector.matches(
                |key| self.label(key),
                |path| match path {
                    "metadata.name" => Some(self.name()),
                    "metadata.namespace" => Some(self.namespace()),
                    _ => self
                        .fields
                        .iter()
                        .find(|(name, _)| **name == *path)
                        .map(|(_, value)| &**value),
                },
            )
    }
}

/// The value of a field selector's path.
fn field(object: &Value, path: &str) -> String {
    match path {
        // The field that names an event's reporter depends on its writer.
        "source" => field(object, "source.component"),
        _ => match path.split('.').fold(object, |value, name| &value[name]) {
            Value::String(text) => text.clone(),
            Value::Bool(true) => "true".into(),
            Value::Bool(false) if path == "spec.unschedulable" || path == "spec.hostNetwork" => {
                String::new()
            }
            Value::Number(number) => number.to_string(),
            _ => String::new(),
        },
    }
}

pub(crate) fn to_json(value: &Value) -> Vec<u8> {
    serde_json::to_vec(value).expect("a value without maps of odd keys can be printed")
}

/// `metadata`, created if it is missing; `None` if the value is not an object.
pub(crate) fn metadata_mut(object: &mut Value) -> Option<&mut Map<String, Value>> {
    object
        .as_object_mut()?
        .entry("metadata")
        .or_insert_with(|| Value::Object(Map::new()))
        .as_object_mut()
}

/// A text of `metadata`; empty if it is missing.
pub(crate) fn meta<'a>(object: &'a Value, name: &str) -> &'a str {
    object["metadata"][name].as_str().unwrap_or_default()
}

/// Sets the value at a path of objects. Missing objects are created.
pub(crate) fn set(object: &mut Value, path: &[&str], value: Value) {
    let Some((last, parents)) = path.split_last() else {
        return;
    };
    let mut at = object;
    for name in parents {
        let Some(map) = at.as_object_mut() else {
            return;
        };
        let next = map.entry(*name).or_insert(Value::Null);
        if !next.is_object() {
            *next = Value::Object(Map::new());
        }
        at = next;
    }
    if let Some(map) = at.as_object_mut() {
        map.insert((*last).to_owned(), value);
    }
}

/// Removes the value at a path.
pub(crate) fn unset(object: &mut Value, path: &[&str]) {
    let Some((last, parents)) = path.split_last() else {
        return;
    };
    let parent = parents
        .iter()
        .try_fold(object, |at, name| at.get_mut(*name));
    if let Some(map) = parent.and_then(Value::as_object_mut) {
        map.remove(*last);
    }
}

/// Sets a value if there is none.
pub(crate) fn default_to(object: &mut Value, path: &[&str], value: impl FnOnce() -> Value) {
    let present = path.iter().fold(&*object, |at, name| &at[*name]);
    if present.is_null() {
        set(object, path, value());
    }
}

/// The time as `metav1.Time` prints it.
pub(crate) fn now() -> String {
    let second = jiff::Timestamp::now().as_second();
    jiff::Timestamp::from_second(second)
        .unwrap_or(jiff::Timestamp::UNIX_EPOCH)
        .to_string()
}

pub(crate) fn new_uid() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// The five characters that Kubernetes appends to a `generateName`.
pub(crate) fn name_suffix() -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let random = uuid::Uuid::new_v4();
    let letter = |byte: &u8| {
        LETTERS
            .get(usize::from(*byte) % LETTERS.len())
            .copied()
            .map_or('x', char::from)
    };
    random.as_bytes().iter().take(5).map(letter).collect()
}

/// Checks that `name` can be part of a path: an RFC 1123 subdomain, or what the few looser kinds allow.
pub(crate) fn check_name(resource: &Resource, name: &str) -> Result<(), Status> {
    let strict = |character: char| character.is_ascii_lowercase() || character.is_ascii_digit();
    // Names of roles and events are path segments.
    let loose = resource.group == "rbac.authorization.k8s.io" || resource.plural == "events";
    let fits = if loose {
        !matches!(name, "" | "." | "..") && !name.contains(['/', '%'])
    } else {
        let inner = |character: char| strict(character) || character == '-' || character == '.';
        let longest = if resource.is_core("namespaces") {
            63
        } else {
            253
        };
        !name.is_empty()
            && name.len() <= longest
            && name.chars().all(inner)
            && name
                .split('.')
                .all(|part| part.starts_with(strict) && part.ends_with(strict))
    };
    if fits {
        return Ok(());
    }
    let why = format!(
        "Invalid value: \"{name}\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, \
         '-' or '.', and must start and end with an alphanumeric character"
    );
    Err(Status::invalid(
        &resource.group,
        &resource.kind,
        name,
        "metadata.name",
        why,
    ))
}

/// Sets a condition, with the time when its status last changed.
pub(crate) fn set_condition(
    object: &mut Value,
    kind: &str,
    status: &str,
    reason: &str,
    message: &str,
) {
    default_to(object, &["status", "conditions"], || json!([]));
    let Some(conditions) = object
        .pointer_mut("/status/conditions")
        .and_then(Value::as_array_mut)
    else {
        return;
    };
    let mut condition = Map::new();
    condition.insert("type".into(), kind.into());
    condition.insert("status".into(), status.into());
    if !reason.is_empty() {
        condition.insert("reason".into(), reason.into());
        condition.insert("message".into(), message.into());
    }
    let before = conditions
        .iter_mut()
        .find(|condition| condition["type"] == kind);
    let since = match &before {
        Some(before) if before["status"] == status => before["lastTransitionTime"].clone(),
        _ => now().into(),
    };
    condition.insert("lastTransitionTime".into(), since);
    match before {
        Some(before) => *before = Value::Object(condition),
        None => conditions.push(Value::Object(condition)),
    }
}
