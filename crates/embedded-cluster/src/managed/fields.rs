//! Sets of owned fields: the fields of an object, the differences between two objects, and the `fieldsV1` form.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::strategic::{self, ListKind};
use crate::target::Target;

/// A step to a field.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    Field(String),
    /// The element with these key values, as the JSON text of an object.
    Key(String),
    /// The plain value of a set, as JSON text.
    Value(String),
}

/// Owned fields, and what is owned below each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Fields {
    pub(super) owned: bool,
    pub(super) below: BTreeMap<Step, Fields>,
}

/// The known list types of a kind, at one path in its objects.
#[derive(Debug, Clone, Copy)]
pub(super) enum Types<'a> {
    BuiltIn { parent: &'a str },
    Schema(&'a Value),
    Unknown,
}

/// How a value is owned: as one, or in parts.
pub(super) enum Whole {
    One,
    Members,
    Elements(Vec<String>),
    Values,
}

impl<'a> Types<'a> {
    pub(super) fn of(target: &'a Target) -> Self {
        if !target.resource.custom {
            return Self::BuiltIn { parent: "" };
        }
        let schema = target
            .resource
            .version(&target.version)
            .and_then(|version| version.schema.as_ref());
        schema.map_or(Self::Unknown, Self::Schema)
    }

    /// The types for the value under `field`.
    pub(super) fn below(self, field: &'a str) -> Self {
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

    /// The types for the elements of the list at this path.
    pub(super) fn element(self) -> Self {
        match self {
            Self::Schema(schema) => schema.get("items").map_or(Self::Unknown, Self::Schema),
            same => same,
        }
    }

    /// How the value under `field` is owned.
    pub(super) fn whole(self, field: &'a str, value: &Value) -> Whole {
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
pub(super) fn key_of(keys: &[String], element: &Value) -> String {
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
pub(super) fn fields_of(types: Types<'_>, object: &Value) -> Fields {
    let mut fields = Fields::default();
    for (name, value) in object.as_object().into_iter().flatten() {
        fields
            .below
            .insert(Step::Field(name.clone()), fields_below(types, name, value));
    }
    fields
}

pub(super) fn fields_below(types: Types<'_>, name: &str, value: &Value) -> Fields {
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

/// The fields that differ between two objects, and those of them that the new object has.
pub(super) fn difference(
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

/// Sets the fields that a configuration names.
pub(super) fn merge(types: Types<'_>, object: &mut Value, config: &Value) {
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
            // An empty map leaves the existing value.
            Whole::One if value.is_object() && wanted.as_object().is_some_and(Map::is_empty) => {}
            _ => *value = wanted.clone(),
        }
    }
}

/// The value at a path.
pub(super) fn at<'a>(value: &'a Value, path: &[Step]) -> Option<&'a Value> {
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

pub(super) fn prints_as(element: &Value, text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_ok_and(|value| value == *element)
}

pub(super) fn has_key(element: &Value, key: &str) -> bool {
    let Ok(Value::Object(wanted)) = serde_json::from_str(key) else {
        return false;
    };
    wanted.iter().all(|(name, value)| match element.get(name) {
        Some(there) => there == value,
        None => name == "protocol" && value == "TCP",
    })
}

/// Removes the value at a path, and the maps and lists that become empty.
pub(super) fn remove_at(value: &mut Value, path: &[Step]) {
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

pub(super) fn print_path(path: &[Step]) -> String {
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
    pub(super) fn is_empty(&self) -> bool {
        !self.owned && self.below.is_empty()
    }

    pub(super) fn trim(&mut self) {
        self.below.values_mut().for_each(Self::trim);
        self.below.retain(|_, fields| !fields.is_empty());
    }

    pub(super) fn add(&mut self, other: Self) {
        self.owned |= other.owned;
        for (step, fields) in other.below {
            self.below.entry(step).or_default().add(fields);
        }
    }

    pub(super) fn subtract(&mut self, other: &Self) {
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

    pub(super) fn remove(&mut self, path: &[Step]) {
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

    /// The values that both own. Two managers may name the same element or the same member of a set without a
    /// conflict.
    pub(super) fn shared(&self, other: &Self, path: &mut Vec<Step>, found: &mut Vec<Vec<Step>>) {
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

    pub(super) fn owned_paths(&self, path: &mut Vec<Step>, found: &mut Vec<Vec<Step>>) {
        if self.owned {
            found.push(path.clone());
        }
        for (step, fields) in &self.below {
            path.push(step.clone());
            fields.owned_paths(path, found);
            path.pop();
        }
    }

    /// Whether the path, or anything below it, is owned.
    pub(super) fn touches(&self, path: &[Step]) -> bool {
        path.iter()
            .try_fold(self, |fields, step| fields.below.get(step))
            .is_some()
    }

    pub(super) fn parse(value: &Value) -> Self {
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
                    // Normalises the order of keys.
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

    pub(super) fn print(&self) -> Value {
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
