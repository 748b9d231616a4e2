//! Strategic merge patches: a merge patch in which the lists of the built-in kinds merge by key.

use serde_json::{Map, Value};

use crate::status::Status;

/// How a list of the built-in kinds merges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListKind {
    /// One value; a new list replaces the old one.
    Atomic,
    /// Objects identified by the values of these keys, of which a strategic merge uses the first.
    Keyed(&'static [&'static str]),
    /// Plain values, each at most once.
    Set,
}

/// The kind of the list `field`, in an object that is under `parent` (for an element of a list, the list's name).
pub(crate) fn list_kind(parent: &str, field: &str) -> ListKind {
    const NAME: ListKind = ListKind::Keyed(&["name"]);
    let in_container = matches!(
        parent,
        "containers" | "initContainers" | "ephemeralContainers"
    );
    match (parent, field) {
        (_, "ports") if in_container => ListKind::Keyed(&["containerPort", "protocol"]),
        ("spec", "ports") => ListKind::Keyed(&["port", "protocol"]),
        (_, "env") if in_container => NAME,
        (_, "volumeMounts") if in_container => ListKind::Keyed(&["mountPath"]),
        (_, "volumeDevices") if in_container => ListKind::Keyed(&["devicePath"]),
        (_, "resizePolicy") if in_container => ListKind::Atomic,
        ("resources", "claims") => NAME,
        ("spec", "containers" | "initContainers" | "ephemeralContainers" | "volumes") => NAME,
        ("spec", "imagePullSecrets" | "schedulingGates" | "resourceClaims") => NAME,
        ("spec", "hostAliases") => ListKind::Keyed(&["ip"]),
        ("spec", "topologySpreadConstraints") => {
            ListKind::Keyed(&["topologyKey", "whenUnsatisfiable"])
        }
        ("spec", "podCIDRs") => ListKind::Set,
        ("status", "conditions") => ListKind::Keyed(&["type"]),
        ("status", "addresses") => ListKind::Keyed(&["type"]),
        ("status", "podIPs") => ListKind::Keyed(&["ip"]),
        ("metadata", "ownerReferences") => ListKind::Keyed(&["uid"]),
        ("metadata", "finalizers") => ListKind::Set,
        ("", "webhooks" | "secrets" | "imagePullSecrets") => NAME,
        _ => ListKind::Atomic,
    }
}

/// Merges `patch` into an object of a built-in kind.
pub(crate) fn merge(object: &mut Value, patch: &Value) -> Result<(), Status> {
    merge_object(object, patch, "")
}

fn merge_object(object: &mut Value, patch: &Value, parent: &str) -> Result<(), Status> {
    let Value::Object(patch) = patch else {
        return Err(Status::bad_request("the patch is not an object"));
    };
    match patch.get("$patch").and_then(Value::as_str) {
        Some("replace") => {
            *object = Value::Object(plain(patch));
            return Ok(());
        }
        Some("delete") => {
            *object = Value::Object(Map::new());
            return Ok(());
        }
        Some("merge") | None => {}
        Some(other) => return Err(Status::bad_request(format!("unknown patch type: {other}"))),
    }
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let Some(target) = object.as_object_mut() else {
        return Ok(());
    };
    if let Some(retained) = patch.get("$retainKeys") {
        let retained = retained
            .as_array()
            .ok_or_else(|| Status::bad_request("$retainKeys is not a list"))?;
        target.retain(|key, _| retained.iter().any(|kept| kept == key));
    }
    for (key, change) in patch {
        if let Some(list) = key.strip_prefix("$deleteFromPrimitiveList/") {
            let gone = change
                .as_array()
                .ok_or_else(|| Status::bad_request(format!("{key} is not a list")))?;
            if let Some(values) = target.get_mut(list).and_then(Value::as_array_mut) {
                values.retain(|value| !gone.contains(value));
            }
            continue;
        }
        if key.starts_with('$') {
            continue;
        }
        match change {
            Value::Null => drop(target.remove(key)),
            Value::Object(_) => merge_object(
                target.entry(key.as_str()).or_insert(Value::Null),
                change,
                key,
            )?,
            Value::Array(changes) => {
                let values = target.entry(key.as_str()).or_insert(Value::Null);
                merge_list(values, changes, key, list_kind(parent, key))?;
            }
            plain => drop(target.insert(key.clone(), plain.clone())),
        }
    }
    // The order of the lists is set after they have merged.
    for (key, order) in patch {
        let Some(list) = key.strip_prefix("$setElementOrder/") else {
            continue;
        };
        let order = order
            .as_array()
            .ok_or_else(|| Status::bad_request(format!("{key} is not a list")))?;
        if let Some(values) = target.get_mut(list).and_then(Value::as_array_mut) {
            reorder(values, order, list_kind(parent, list));
        }
    }
    Ok(())
}

fn merge_list(
    values: &mut Value,
    changes: &[Value],
    name: &str,
    kind: ListKind,
) -> Result<(), Status> {
    if !values.is_array() {
        *values = Value::Array(Vec::new());
    }
    let Some(values) = values.as_array_mut() else {
        return Ok(());
    };
    let replaces = |change: &Value| change["$patch"] == "replace";
    match kind {
        ListKind::Keyed(_) if changes.iter().any(replaces) => {
            *values = changes
                .iter()
                .filter(|change| !replaces(change))
                .map(without_directives)
                .collect();
        }
        ListKind::Keyed(keys) => {
            let key = keys.first().copied().unwrap_or("name");
            for change in changes {
                let id = &change[key];
                if id.is_null() {
                    return Err(Status::bad_request(format!(
                        "map in the list {name} does not contain declared merge key: {key}"
                    )));
                }
                if change["$patch"] == "delete" {
                    values.retain(|value| value[key] != *id);
                    continue;
                }
                match values.iter_mut().find(|value| value[key] == *id) {
                    Some(value) => merge_object(value, change, name)?,
                    None => {
                        let mut value = Value::Null;
                        merge_object(&mut value, change, name)?;
                        values.push(value);
                    }
                }
            }
        }
        ListKind::Set => {
            for change in changes {
                if !values.contains(change) {
                    values.push(change.clone());
                }
            }
        }
        ListKind::Atomic => {
            *values = changes
                .iter()
                .filter(|change| !replaces(change))
                .map(without_directives)
                .collect()
        }
    }
    Ok(())
}

/// Sorts the listed values in the order of the list; each other value stays after the value that it followed.
fn reorder(values: &mut Vec<Value>, order: &[Value], kind: ListKind) {
    let place = |value: &Value| {
        order.iter().position(|wanted| match kind {
            ListKind::Keyed([key, ..]) => wanted[*key] == value[*key],
            _ => wanted == value,
        })
    };
    let mut groups: Vec<(Option<usize>, Vec<Value>)> = vec![(None, Vec::new())];
    for value in std::mem::take(values) {
        match place(&value) {
            Some(at) => groups.push((Some(at), vec![value])),
            None => groups
                .last_mut()
                .into_iter()
                .for_each(|(_, group)| group.push(value.clone())),
        }
    }
    groups.sort_by_key(|(at, _)| *at);
    values.extend(groups.into_iter().flat_map(|(_, group)| group));
}

fn plain(map: &Map<String, Value>) -> Map<String, Value> {
    map.iter()
        .filter(|(key, _)| !key.starts_with('$'))
        .map(|(key, value)| (key.clone(), without_directives(value)))
        .collect()
}

fn without_directives(value: &Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(plain(map)),
        Value::Array(values) => Value::Array(values.iter().map(without_directives).collect()),
        plain => plain.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(object: Value, patch: Value, expected: Value) {
        let mut object = object;
        merge(&mut object, &patch).unwrap();
        assert_eq!(object, expected);
    }

    #[test]
    fn containers_merge_by_name_and_their_variables_too() {
        check(
            json!({"spec": {"containers": [{"name": "a", "image": "x", "env": [{"name": "P", "value": "1"}]}, {"name": "b"}]}}),
            json!({"spec": {"containers": [{"name": "a", "env": [{"name": "Q", "value": "2"}, {"name": "P", "value": "3"}]}, {"name": "c"}]}}),
            json!({"spec": {"containers": [
                {"name": "a", "image": "x", "env": [{"name": "P", "value": "3"}, {"name": "Q", "value": "2"}]},
                {"name": "b"}, {"name": "c"}]}}),
        );
    }

    #[test]
    fn tolerations_and_taints_are_replaced_as_one_value() {
        check(
            json!({"spec": {"tolerations": [{"key": "a"}], "taints": [{"key": "a"}]}}),
            json!({"spec": {"tolerations": [{"key": "b"}], "taints": [{"key": "b"}]}}),
            json!({"spec": {"tolerations": [{"key": "b"}], "taints": [{"key": "b"}]}}),
        );
    }

    #[test]
    fn a_condition_is_found_by_its_type() {
        check(
            json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "r"}]}}),
            json!({"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "True"}]}}),
            json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "r"}, {"type": "Other", "status": "True"}]}}),
        );
    }

    #[test]
    fn directives_delete_replace_retain_and_order() {
        check(
            json!({"spec": {"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b"}]}, "metadata": {"finalizers": ["x", "y"]}}),
            json!({"spec": {"volumes": [{"name": "b", "$patch": "delete"}, {"name": "a", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}]},
                   "metadata": {"$deleteFromPrimitiveList/finalizers": ["x"], "finalizers": ["z"]}}),
            json!({"spec": {"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}, "metadata": {"finalizers": ["y", "z"]}}),
        );
        check(
            json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}),
            json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}}),
            json!({"spec": {"containers": [{"name": "b"}, {"name": "a"}]}}),
        );
        check(
            json!({"spec": {"nodeSelector": {"a": "1", "b": "2"}}}),
            json!({"spec": {"nodeSelector": {"$patch": "replace", "c": "3"}}}),
            json!({"spec": {"nodeSelector": {"c": "3"}}}),
        );
    }

    #[test]
    fn an_element_without_its_key_is_a_bad_request() {
        let mut object = json!({});
        assert_eq!(
            merge(
                &mut object,
                &json!({"spec": {"containers": [{"image": "x"}]}})
            )
            .unwrap_err()
            .code,
            400
        );
    }
}
