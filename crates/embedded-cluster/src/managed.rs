//! Server-side apply: the managers that own each field.
//!
//! Ownership is tracked from an object's first apply on. Existing fields then belong to `before-first-apply`, as on a
//! server that enabled tracking late. Objects that are never applied (thousands of pods and nodes) carry no owners.
//!
//! Lists of keyed elements are known for the built-in kinds (`strategic::list_kind`) and read from the schema of custom
//! ones; any other list is one value.

use serde_json::{Map, Value, json};

use crate::object::{now, set, unset};
use crate::status::Status;
use crate::target::{Part, Target, Write};

mod fields;

use fields::{Fields, Types, at, difference, fields_of, merge, print_path, remove_at};

/// The kind of a write, for tracking owners.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum How<'a> {
    /// The writer owns the fields that it changes.
    Update,
    /// The writer owns all fields that it names.
    Apply(&'a Value),
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

/// Records the manager of the fields that a write changed. Does nothing for an object that was never applied.
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
    // An update may contain the owners, as `kubectl` does to pass fields on.
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

/// The object after an apply: fields that it names are set; fields that its manager no longer names and no other manager
/// owns are removed. Answers 409 if another manager owns a field that would change, unless forced.
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
            // An empty map does not change an existing one.
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
        // Whole elements are removed before the fields in them.
        gone.sort_by_key(Vec::len);
        gone.iter().for_each(|path| remove_at(&mut new, path));
    }
    others.retain(|manager| !manager.fields.is_empty());
    others.push(Manager::new(target, write, APPLY, wanted));
    // An apply that changes nothing makes no new version, even at a later time.
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
    // The resource version and uid that the client sends are checked as for every other write.
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

/// The owners at an object's first apply. Fields that an earlier client-side `kubectl apply` wrote belong to it, so that it
/// can hand them over; the rest belongs to `before-first-apply`.
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
        .map(|(manager, path)| format!("conflict with {manager}: {path}"))
        .collect();
    let status = Status::apply_conflict(format!(
        "Apply failed with {count} {noun}: {}",
        texts.join("\n- ")
    ));
    conflicts.iter().fold(status, |status, (manager, path)| {
        status.with_cause(
            "FieldManagerConflict",
            &format!("conflict with {manager}"),
            path,
        )
    })
}

/// An object without the fields that have no owner: its identity, the server's fields, and the parts that a write to this
/// subresource cannot change.
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
