//! Server-side apply: who owns which field.
//!
//! An object is followed from its first apply on: what is there then belongs to `before-first-apply`, as on a server
//! that began to follow fields late. Objects that nobody applies (thousands of pods and nodes) carry no owners.
//!
//! What is a list of keyed elements is known for the built-in kinds (`strategic::list_kind`) and read from the schema
//! of custom ones; any other list is one value.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::object::{now, set, unset};
use crate::status::Status;
use crate::strategic::{self, ListKind};
use crate::target::{Part, Target, Write};

/// What kind of write it is, as far as owners are concerned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum How<'a> {
    /// What it changes becomes the writer's.
    Update,
    /// All that it names is the writer's.
    Apply(&'a Value),
}

/// A step to a field.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Field(String),
    /// The element with these key values, as the JSON text of an object.
    Key(String),
    /// The plain value of a set, as JSON text.
    Value(String),
}

/// Owned fields, and what is owned below each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Fields {
    owned: bool,
    below: BTreeMap<Step, Fields>,
}

/// One entry of `managedFields`.
#[derive(Debug, Clone, PartialEq)]
struct Manager {
    name: String,
    operation: String,
    subresource: String,
    api_version: String,
    time: String,
    fields: Fields,
}

const APPLY: &str = "Apply";
const UPDATE: &str = "Update";

/// Whether the object was ever applied, or the write names field owners.
pub(crate) fn is_followed(object: &Value) -> bool {
    object["metadata"].get("managedFields").is_some()
}

/// Writes down who owns what a write changed. Does nothing for an object that nobody ever applied.
pub(crate) fn track(
    target: &Target,
    old: Option<&Value>,
    new: &mut Value,
    write: &Write,
    how: How<'_>,
) {
    let given = new["metadata"].get("managedFields").cloned();
    let Some(old) = old else {
        unset(new, &["metadata", "managedFields"]);
        if let How::Apply(applied) = how {
            let fields = fields_of(Types::of(target), &without_identity(target, applied));
            store(new, &[Manager::new(target, write, APPLY, fields)]);
        }
        return;
    };
    if how != How::Update {
        return; // `apply` has done it.
    }
    let forgets = given
        .as_ref()
        .and_then(Value::as_array)
        .is_some_and(|list| {
            list.iter()
                .all(|entry| entry.as_object().is_some_and(Map::is_empty))
        });
    if forgets {
        unset(new, &["metadata", "managedFields"]);
        return;
    }
    // An update may hand owners in, as `kubectl` does to give fields over.
    let mut managers = if given.is_some() {
        read(new)
    } else {
        read(old)
    };
    if managers.is_empty() {
        return;
    }
    let (mut changed, mut present) = (Fields::default(), Fields::default());
    let (before, after) = (without_identity(target, old), without_identity(target, new));
    difference(
        Types::of(target),
        &before,
        &after,
        &mut changed,
        &mut present,
    );
    if changed.is_empty() {
        if given.is_none() {
            set(
                new,
                &["metadata", "managedFields"],
                old["metadata"]["managedFields"].clone(),
            );
        }
        return;
    }
    for manager in &mut managers {
        manager.fields.subtract(&changed);
    }
    match managers
        .iter_mut()
        .find(|manager| manager.is(target, write, UPDATE))
    {
        Some(own) => {
            own.fields.add(present);
            own.time = now();
        }
        None => managers.push(Manager::new(target, write, UPDATE, present)),
    }
    managers.retain(|manager| !manager.fields.is_empty());
    store(new, &managers);
}

/// The object after an apply: what it names is set; what its manager no longer names and nobody else owns goes. 409
/// where another manager owns a field that would change, unless forced.
pub(crate) fn apply(
    target: &Target,
    old: &Value,
    applied: &Value,
    write: &Write,
) -> Result<Value, Status> {
    let types = Types::of(target);
    let mut managers = read(old);
    if managers.is_empty() {
        managers = first_managers(target, old, write);
    }
    let config = without_identity(target, applied);
    let wanted = fields_of(types, &config);
    let mut conflicts = Vec::new();
    for manager in managers
        .iter_mut()
        .filter(|manager| !manager.is(target, write, APPLY))
    {
        let mut shared = Vec::new();
        wanted.shared(&manager.fields, &mut Vec::new(), &mut shared);
        shared.retain(|path| match (at(&config, path), at(old, path)) {
            // An empty map changes nothing in one that is there.
            (Some(Value::Object(none)), Some(Value::Object(_))) if none.is_empty() => false,
            (wanted, there) => wanted != there,
        });
        if write.force {
            shared.iter().for_each(|path| manager.fields.remove(path));
        } else {
            conflicts.extend(
                shared
                    .iter()
                    .map(|path| (manager.describe(), print_path(path))),
            );
        }
    }
    if !conflicts.is_empty() {
        return Err(conflict(&conflicts));
    }
    let mut new = old.clone();
    merge(types, &mut new, &config);
    let (own, mut others): (Vec<Manager>, Vec<Manager>) = managers
        .into_iter()
        .partition(|manager| manager.is(target, write, APPLY));
    let own = own.into_iter().next();
    if let Some(own) = &own {
        let mut gone = Vec::new();
        own.fields.owned_paths(&mut Vec::new(), &mut gone);
        gone.retain(|path| {
            !wanted.touches(path) && !others.iter().any(|other| other.fields.touches(path))
        });
        // Whole elements before the fields in them.
        gone.sort_by_key(Vec::len);
        gone.iter().for_each(|path| remove_at(&mut new, path));
    }
    others.retain(|manager| !manager.fields.is_empty());
    others.push(Manager::new(target, write, APPLY, wanted));
    // An apply that changes nothing is no new version, whatever the time.
    if let (Some(before), Some(after)) = (&own, others.last_mut()) {
        after.time.clone_from(&before.time);
        let mut same = new.clone();
        store(&mut same, &others);
        if same != *old
            && let Some(after) = others.last_mut()
        {
            after.time = now();
        }
    }
    store(&mut new, &others);
    // What the client says of the object's version and uid is checked with every other write.
    for name in ["resourceVersion", "uid"] {
        if let Some(text) = applied["metadata"][name]
            .as_str()
            .filter(|text| !text.is_empty())
        {
            set(&mut new, &["metadata", name], text.into());
        }
    }
    Ok(new)
}

/// Who owns what, at an object's first apply. What an earlier `kubectl apply` without server-side apply wrote is its
/// own, so that it can hand it over; the rest is nobody's by name.
fn first_managers(target: &Target, old: &Value, write: &Write) -> Vec<Manager> {
    const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
    let types = Types::of(target);
    let mut rest = fields_of(types, &without_identity(target, old));
    let mut managers = Vec::new();
    let last = old["metadata"]["annotations"][LAST_APPLIED].as_str();
    if let Some(mut last) = last.and_then(|last| serde_json::from_str::<Value>(last).ok()) {
        set(
            &mut last,
            &["metadata", "annotations", LAST_APPLIED],
            "".into(),
        );
        let fields = fields_of(types, &without_identity(target, &last));
        rest.subtract(&fields);
        let mut manager = Manager::new(target, write, UPDATE, fields);
        manager.name = "kubectl-client-side-apply".into();
        managers.push(manager);
    }
    let mut first = Manager::new(target, write, UPDATE, rest);
    first.name = "before-first-apply".into();
    managers.push(first);
    managers
}

fn conflict(conflicts: &[(String, String)]) -> Status {
    let count = conflicts.len();
    let noun = if count == 1 { "conflict" } else { "conflicts" };
    let texts: Vec<String> = conflicts
        .iter()
        .map(|(who, path)| format!("conflict with {who}: {path}"))
        .collect();
    let status = Status::apply_conflict(format!(
        "Apply failed with {count} {noun}: {}",
        texts.join("\n- ")
    ));
    conflicts.iter().fold(status, |status, (who, path)| {
        status.with_cause(
            "FieldManagerConflict",
            &format!("conflict with {who}"),
            path,
        )
    })
}

/// An object without what nobody owns: what names it, what the server writes, and the parts that a write to this
/// subresource does not reach.
fn without_identity(target: &Target, object: &Value) -> Value {
    let mut object = object.clone();
    let has_status = target.served().is_ok_and(|served| served.status);
    if let Some(map) = object.as_object_mut() {
        map.remove("apiVersion");
        map.remove("kind");
        map.retain(|name, value| match target.part {
            Part::Status => name == "status" && !value.is_null(),
            Part::Internal => true,
            _ => !(name == "status" && has_status),
        });
    }
    for name in [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "generation",
        "managedFields",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
        "generateName",
    ] {
        unset(&mut object, &["metadata", name]);
    }
    strip_nulls(&mut object);
    if object["metadata"].as_object().is_some_and(Map::is_empty) {
        unset(&mut object, &["metadata"]);
    }
    object
}

fn strip_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(strip_nulls);
        }
        Value::Array(values) => values.iter_mut().for_each(strip_nulls),
        _ => {}
    }
}

/// What is known of the lists of a kind, at one place of its objects.
#[derive(Debug, Clone, Copy)]
enum Types<'a> {
    BuiltIn { parent: &'a str },
    Schema(&'a Value),
    Unknown,
}

/// How a value is owned: as one, or in parts.
enum Whole {
    One,
    Members,
    Elements(Vec<String>),
    Values,
}

impl<'a> Types<'a> {
    fn of(target: &'a Target) -> Self {
        if !target.resource.custom {
            return Self::BuiltIn { parent: "" };
        }
        let schema = target
            .resource
            .version(&target.version)
            .and_then(|version| version.schema.as_ref());
        schema.map_or(Self::Unknown, Self::Schema)
    }

    /// The same for what stands under `field`.
    fn below(self, field: &'a str) -> Self {
        match self {
            Self::BuiltIn { .. } => Self::BuiltIn { parent: field },
            Self::Schema(_) if field == "metadata" => Self::BuiltIn { parent: field },
            Self::Schema(schema) => match schema["properties"]
                .get(field)
                .or(schema.get("additionalProperties"))
            {
                Some(schema) if schema.is_object() => Self::Schema(schema),
                _ => Self::Unknown,
            },
            Self::Unknown => Self::Unknown,
        }
    }

    /// The same for the elements of the list that stands here.
    fn element(self) -> Self {
        match self {
            Self::Schema(schema) => schema.get("items").map_or(Self::Unknown, Self::Schema),
            same => same,
        }
    }

    /// How the value under `field` is owned.
    fn whole(self, field: &'a str, value: &Value) -> Whole {
        const ATOMIC_MAPS: [&str; 7] = [
            "nodeSelector",
            "selector",
            "fieldRef",
            "resourceFieldRef",
            "secretKeyRef",
            "configMapKeyRef",
            "labelSelector",
        ];
        match value {
            Value::Object(map) => {
                let one = match (self, self.below(field)) {
                    (Self::BuiltIn { .. }, _) => ATOMIC_MAPS.contains(&field),
                    (_, Self::Schema(schema)) => schema["x-kubernetes-map-type"] == "atomic",
                    _ => false,
                };
                if one || map.is_empty() {
                    Whole::One
                } else {
                    Whole::Members
                }
            }
            Value::Array(values) => {
                let list = match (self, self.below(field)) {
                    (Self::BuiltIn { parent }, _) => match strategic::list_kind(parent, field) {
                        ListKind::Atomic => Whole::One,
                        ListKind::Set => Whole::Values,
                        ListKind::Keyed(keys) => {
                            Whole::Elements(keys.iter().map(|key| (*key).to_owned()).collect())
                        }
                    },
                    (_, Self::BuiltIn { .. } | Self::Unknown) => Whole::One,
                    (_, Self::Schema(schema)) => match schema["x-kubernetes-list-type"].as_str() {
                        Some("set") => Whole::Values,
                        Some("map") => {
                            let keys = schema["x-kubernetes-list-map-keys"]
                                .as_array()
                                .into_iter()
                                .flatten();
                            Whole::Elements(
                                keys.filter_map(|key| key.as_str().map(str::to_owned))
                                    .collect(),
                            )
                        }
                        _ => Whole::One,
                    },
                };
                let keyed =
                    !matches!(list, Whole::Elements(_)) || values.iter().all(Value::is_object);
                if keyed { list } else { Whole::One }
            }
            _ => Whole::One,
        }
    }
}

/// The key values of an element, as `fieldsV1` prints them.
fn key_of(keys: &[String], element: &Value) -> String {
    let mut map = Map::new();
    for key in keys {
        match element.get(key) {
            Some(value) => drop(map.insert(key.clone(), value.clone())),
            None if key == "protocol" => drop(map.insert(key.clone(), "TCP".into())),
            None => {}
        }
    }
    Value::Object(map).to_string()
}

/// Every field of an object.
fn fields_of(types: Types<'_>, object: &Value) -> Fields {
    let mut fields = Fields::default();
    for (name, value) in object.as_object().into_iter().flatten() {
        fields
            .below
            .insert(Step::Field(name.clone()), fields_below(types, name, value));
    }
    fields
}

fn fields_below(types: Types<'_>, name: &str, value: &Value) -> Fields {
    let below = types.below(name);
    let mut fields = Fields::default();
    match types.whole(name, value) {
        Whole::One => fields.owned = true,
        Whole::Members => fields = fields_of(below, value),
        Whole::Elements(keys) => {
            for element in value.as_array().into_iter().flatten() {
                let mut inner = fields_of(below.element(), element);
                inner.owned = true;
                fields
                    .below
                    .insert(Step::Key(key_of(&keys, element)), inner);
            }
        }
        Whole::Values => {
            for value in value.as_array().into_iter().flatten() {
                fields.below.insert(
                    Step::Value(value.to_string()),
                    Fields {
                        owned: true,
                        ..Fields::default()
                    },
                );
            }
        }
    }
    if fields.is_empty() {
        fields.owned = true;
    }
    fields
}

/// What differs between two objects, and what of that the new one has.
fn difference(
    types: Types<'_>,
    old: &Value,
    new: &Value,
    changed: &mut Fields,
    present: &mut Fields,
) {
    let empty = Map::new();
    let (old, new) = (
        old.as_object().unwrap_or(&empty),
        new.as_object().unwrap_or(&empty),
    );
    for (name, value) in old {
        if !new.contains_key(name) {
            changed
                .below
                .entry(Step::Field(name.clone()))
                .or_default()
                .add(fields_below(types, name, value));
        }
    }
    for (name, after) in new {
        let step = Step::Field(name.clone());
        let before = match old.get(name) {
            Some(before) if before == after => continue,
            Some(before) => before,
            None => &Value::Null,
        };
        let (mut gone, mut here) = (Fields::default(), Fields::default());
        match (types.whole(name, before), types.whole(name, after)) {
            (Whole::Members, Whole::Members) => {
                difference(types.below(name), before, after, &mut gone, &mut here)
            }
            (Whole::Elements(keys), Whole::Elements(_)) => {
                let find = |list: &'_ Value, key: &str| {
                    list.as_array()
                        .into_iter()
                        .flatten()
                        .find(|element| key_of(&keys, element) == key)
                        .cloned()
                };
                let element = types.below(name).element();
                for old in before.as_array().into_iter().flatten() {
                    let key = key_of(&keys, old);
                    if find(after, &key).is_none() {
                        let mut fields = fields_of(element, old);
                        fields.owned = true;
                        gone.below.insert(Step::Key(key), fields);
                    }
                }
                for new in after.as_array().into_iter().flatten() {
                    let key = key_of(&keys, new);
                    match find(before, &key) {
                        Some(old) if old == *new => {}
                        Some(old) => {
                            let (mut less, mut more) = (Fields::default(), Fields::default());
                            difference(element, &old, new, &mut less, &mut more);
                            gone.below.insert(Step::Key(key.clone()), less);
                            here.below.insert(Step::Key(key), more);
                        }
                        None => {
                            let mut fields = fields_of(element, new);
                            fields.owned = true;
                            gone.below.insert(Step::Key(key.clone()), fields.clone());
                            here.below.insert(Step::Key(key), fields);
                        }
                    }
                }
            }
            _ => {
                here = fields_below(types, name, after);
                gone = here.clone();
                if !before.is_null() {
                    gone.add(fields_below(types, name, before));
                }
            }
        }
        changed.below.entry(step.clone()).or_default().add(gone);
        present.below.entry(step).or_default().add(here);
    }
    changed.trim();
    present.trim();
}

/// Sets what a configuration names.
fn merge(types: Types<'_>, object: &mut Value, config: &Value) {
    if !object.is_object() {
        *object = json!({});
    }
    for (name, wanted) in config.as_object().into_iter().flatten() {
        let Some(map) = object.as_object_mut() else {
            return;
        };
        let value = map.entry(name.as_str()).or_insert(Value::Null);
        let below = types.below(name);
        match types.whole(name, wanted) {
            Whole::Members if value.is_object() => merge(below, value, wanted),
            Whole::Elements(keys) if value.is_array() => {
                for element in wanted.as_array().into_iter().flatten() {
                    let key = key_of(&keys, element);
                    let Some(values) = value.as_array_mut() else {
                        continue;
                    };
                    match values.iter_mut().find(|there| key_of(&keys, there) == key) {
                        Some(there) => merge(below.element(), there, element),
                        None => values.push(element.clone()),
                    }
                }
            }
            Whole::Values if value.is_array() => {
                for one in wanted.as_array().into_iter().flatten() {
                    if let Some(values) =
                        value.as_array_mut().filter(|values| !values.contains(one))
                    {
                        values.push(one.clone());
                    }
                }
            }
            // An empty map leaves what is there.
            Whole::One if value.is_object() && wanted.as_object().is_some_and(Map::is_empty) => {}
            _ => *value = wanted.clone(),
        }
    }
}

/// The value at a path.
fn at<'a>(value: &'a Value, path: &[Step]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, step| match step {
        Step::Field(name) => value.get(name),
        Step::Key(key) => value
            .as_array()?
            .iter()
            .find(|element| has_key(element, key)),
        Step::Value(text) => value
            .as_array()?
            .iter()
            .find(|element| prints_as(element, text)),
    })
}

fn prints_as(element: &Value, text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_ok_and(|value| value == *element)
}

fn has_key(element: &Value, key: &str) -> bool {
    let Ok(Value::Object(wanted)) = serde_json::from_str(key) else {
        return false;
    };
    wanted.iter().all(|(name, value)| match element.get(name) {
        Some(there) => there == value,
        None => name == "protocol" && value == "TCP",
    })
}

/// Takes away what stands at a path, and the maps and lists that are empty without it.
fn remove_at(value: &mut Value, path: &[Step]) {
    let Some((step, rest)) = path.split_first() else {
        return;
    };
    let inner = match step {
        Step::Field(name) => value.get_mut(name),
        Step::Key(key) => value
            .as_array_mut()
            .and_then(|list| list.iter_mut().find(|element| has_key(element, key))),
        Step::Value(_) => None,
    };
    if let (Some(inner), false) = (inner, rest.is_empty()) {
        remove_at(inner, rest);
        let empty = match inner {
            Value::Object(map) => map.is_empty(),
            Value::Array(list) => list.is_empty(),
            _ => false,
        };
        if !empty {
            return;
        }
    } else if !rest.is_empty() {
        return;
    }
    match (step, value) {
        (Step::Field(name), Value::Object(map)) => drop(map.remove(name)),
        (Step::Key(key), Value::Array(list)) => {
            list.retain(|element| {
                !has_key(element, key) && element.as_object().is_none_or(|map| !map.is_empty())
            });
        }
        (Step::Value(text), Value::Array(list)) => list.retain(|element| !prints_as(element, text)),
        _ => {}
    }
}

fn print_path(path: &[Step]) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            Step::Field(name) => text.extend([".", name]),
            Step::Key(key) => {
                let keys = serde_json::from_str::<Map<String, Value>>(key).unwrap_or_default();
                let keys: Vec<String> = keys
                    .iter()
                    .map(|(name, value)| format!("{name}={value}"))
                    .collect();
                text.extend(["[", &keys.join(","), "]"]);
            }
            Step::Value(value) => text.extend(["[=", value, "]"]),
        }
    }
    text
}

impl Fields {
    fn is_empty(&self) -> bool {
        !self.owned && self.below.is_empty()
    }

    fn trim(&mut self) {
        self.below.values_mut().for_each(Self::trim);
        self.below.retain(|_, fields| !fields.is_empty());
    }

    fn add(&mut self, other: Self) {
        self.owned |= other.owned;
        for (step, fields) in other.below {
            self.below.entry(step).or_default().add(fields);
        }
    }

    fn subtract(&mut self, other: &Self) {
        if other.owned {
            self.owned = false;
        }
        for (step, fields) in &other.below {
            if let Some(own) = self.below.get_mut(step) {
                own.subtract(fields);
                if own.is_empty() {
                    self.below.remove(step);
                }
            }
        }
    }

    fn remove(&mut self, path: &[Step]) {
        let Some((step, rest)) = path.split_first() else {
            *self = Self::default();
            return;
        };
        if let Some(inner) = self.below.get_mut(step) {
            inner.remove(rest);
            if inner.is_empty() {
                self.below.remove(step);
            }
        }
    }

    /// The single values that both own. That both name an element or a member of a set is no quarrel.
    fn shared(&self, other: &Self, path: &mut Vec<Step>, found: &mut Vec<Vec<Step>>) {
        if self.owned && other.owned && matches!(path.last(), Some(Step::Field(_))) {
            found.push(path.clone());
        }
        for (step, fields) in &self.below {
            if let Some(theirs) = other.below.get(step) {
                path.push(step.clone());
                fields.shared(theirs, path, found);
                path.pop();
            }
        }
    }

    fn owned_paths(&self, path: &mut Vec<Step>, found: &mut Vec<Vec<Step>>) {
        if self.owned {
            found.push(path.clone());
        }
        for (step, fields) in &self.below {
            path.push(step.clone());
            fields.owned_paths(path, found);
            path.pop();
        }
    }

    /// Whether anything at the path, or below it, is owned.
    fn touches(&self, path: &[Step]) -> bool {
        path.iter()
            .try_fold(self, |fields, step| fields.below.get(step))
            .is_some()
    }

    fn parse(value: &Value) -> Self {
        let Value::Object(map) = value else {
            return Self::default();
        };
        let mut fields = Self {
            owned: map.is_empty(),
            ..Self::default()
        };
        for (name, below) in map {
            let step = match name.split_once(':') {
                _ if name == "." => {
                    fields.owned = true;
                    continue;
                }
                Some(("f", name)) => Step::Field(name.to_owned()),
                Some(("k", key)) => {
                    // In one order of keys, whoever printed it.
                    let key = serde_json::from_str::<Value>(key)
                        .map_or_else(|_| key.to_owned(), |key| key.to_string());
                    Step::Key(key)
                }
                Some(("v", value)) => Step::Value(value.to_owned()),
                _ => continue,
            };
            fields.below.insert(step, Self::parse(below));
        }
        fields
    }

    fn print(&self) -> Value {
        let mut map = Map::new();
        if self.owned && !self.below.is_empty() {
            map.insert(".".into(), json!({}));
        }
        for (step, fields) in &self.below {
            let name = match step {
                Step::Field(name) => format!("f:{name}"),
                Step::Key(key) => format!("k:{key}"),
                Step::Value(value) => format!("v:{value}"),
            };
            map.insert(name, fields.print());
        }
        Value::Object(map)
    }
}

impl Manager {
    fn new(target: &Target, write: &Write, operation: &str, fields: Fields) -> Self {
        Self {
            name: write.field_manager.clone(),
            operation: operation.into(),
            subresource: target.part.subresource().into(),
            api_version: target.resource.api_version_of(&target.version),
            time: now(),
            fields,
        }
    }

    fn is(&self, target: &Target, write: &Write, operation: &str) -> bool {
        self.name == write.field_manager
            && self.operation == operation
            && self.subresource == target.part.subresource()
    }

    fn describe(&self) -> String {
        let subresource = match self.subresource.as_str() {
            "" => String::new(),
            name => format!(" with subresource \"{name}\""),
        };
        format!("\"{}\"{subresource} using {}", self.name, self.api_version)
    }
}

fn read(object: &Value) -> Vec<Manager> {
    let entries = object["metadata"]["managedFields"]
        .as_array()
        .into_iter()
        .flatten();
    let entries = entries.filter(|entry| entry["manager"].is_string());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    entries
        .map(|entry| Manager {
            name: text(&entry["manager"]),
            operation: text(&entry["operation"]),
            subresource: text(&entry["subresource"]),
            api_version: text(&entry["apiVersion"]),
            time: text(&entry["time"]),
            fields: Fields::parse(&entry["fieldsV1"]),
        })
        .collect()
}

fn store(object: &mut Value, managers: &[Manager]) {
    let entries = managers.iter().map(|manager| {
        let mut entry = json!({
            "manager": manager.name,
            "operation": manager.operation,
            "apiVersion": manager.api_version,
            "time": manager.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": manager.fields.print(),
        });
        if !manager.subresource.is_empty() {
            set(
                &mut entry,
                &["subresource"],
                manager.subresource.as_str().into(),
            );
        }
        entry
    });
    set(object, &["metadata", "managedFields"], entries.collect());
}
