//! A JSON Patch (RFC 6902) on an object as it came: escapes paths and chooses the smallest operations. Knows no field's
//! meaning.

use std::borrow::Cow;
use std::collections::HashMap;

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, PatchOperation, RemoveOperation, ReplaceOperation};
use serde_json::{Map, Value};

/// The changes to an object, and the object with these changes.
#[derive(Debug)]
pub struct Patch<'a> {
    object: Cow<'a, Value>,
    operations: Vec<PatchOperation>,
    /// The operation that created a list, by the list's path.
    lists: HashMap<PointerBuf, usize>,
}

impl<'a> Patch<'a> {
    /// A patch without changes.
    pub fn of(object: &'a Value) -> Self {
        Self {
            object: Cow::Borrowed(object),
            operations: Vec::new(),
            lists: HashMap::new(),
        }
    }

    /// The value at a path; `None` if it is missing or null.
    pub fn get(&self, path: &[&str]) -> Option<&Value> {
        path.iter()
            .try_fold(&*self.object, |value, token| child(value, token))
            .filter(|value| !value.is_null())
    }

    /// Sets the value at a path. Missing parents are created in the same operation. Does nothing if the value is
    /// already there.
    pub fn set(&mut self, path: &[&str], value: Value) {
        if self.get(path) == Some(&value) {
            return;
        }
        let mut known = 0;
        let mut at = &*self.object;
        while let Some(below) = path.get(known).and_then(|token| child(at, token)) {
            if below.is_null() {
                break;
            }
            at = below;
            known += 1;
        }
        // The operation names one more level; the rest is nested in its value.
        let (named, nested) = path.split_at(path.len().min(known + 1));
        let value = nested.iter().rev().fold(value, |value, token| {
            Value::Object(Map::from_iter([((*token).to_owned(), value)]))
        });
        let pointer = PointerBuf::from_tokens(named.iter().copied());
        self.operations.push(if known == path.len() {
            PatchOperation::Replace(ReplaceOperation {
                path: pointer,
                value: value.clone(),
            })
        } else {
            PatchOperation::Add(AddOperation {
                path: pointer,
                value: value.clone(),
            })
        });
        put(self.object.to_mut(), named, value);
    }

    /// Adds `value` at the end of the list at a path, which is created if it is missing.
    pub fn append(&mut self, path: &[&str], value: Value) {
        let Some(length) = self.get(path).and_then(Value::as_array).map(Vec::len) else {
            let pointer = PointerBuf::from_tokens(path.iter().copied());
            self.lists.insert(pointer, self.operations.len());
            return self.set(path, Value::Array(vec![value]));
        };
        // If this patch created the list, the list grows inside that operation.
        let pointer = PointerBuf::from_tokens(path.iter().copied());
        let mine = self
            .lists
            .get(&pointer)
            .and_then(|made| self.operations.get_mut(*made))
            .and_then(|operation| match operation {
                PatchOperation::Add(add) if add.path == pointer => add.value.as_array_mut(),
                _ => None,
            });
        match mine {
            Some(list) => list.push(value.clone()),
            None => self.operations.push(PatchOperation::Add(AddOperation {
                path: PointerBuf::from_tokens(path.iter().copied().chain(["-"])),
                value: value.clone(),
            })),
        }
        let index = length.to_string();
        let path: Vec<&str> = path.iter().copied().chain([index.as_str()]).collect();
        put(self.object.to_mut(), &path, value);
    }

    /// Takes the entry at `index` out of the list at a path. Does nothing if there is none.
    pub fn remove(&mut self, path: &[&str], index: usize) {
        let length = self.get(path).and_then(Value::as_array).map(Vec::len);
        if length.is_none_or(|length| index >= length) {
            return;
        }
        let number = index.to_string();
        let tokens = path.iter().copied().chain([number.as_str()]);
        self.operations
            .push(PatchOperation::Remove(RemoveOperation {
                path: PointerBuf::from_tokens(tokens),
            }));
        // A list of this patch's own is complete once an entry has left it by an operation of its own.
        self.lists
            .remove(&PointerBuf::from_tokens(path.iter().copied()));
        let list = path
            .iter()
            .try_fold(self.object.to_mut(), |value, token| child_mut(value, token));
        if let Some(list) = list.and_then(Value::as_array_mut) {
            list.remove(index);
        }
    }

    /// Takes the value at a path out of its object. Does nothing if it is not there.
    pub fn take(&mut self, path: &[&str]) {
        let Some((last, parents)) = path.split_last() else {
            return;
        };
        let is_there = |value: &Value| value.as_object().is_some_and(|it| it.contains_key(*last));
        if !self.get(parents).is_some_and(is_there) {
            return;
        }
        self.operations
            .push(PatchOperation::Remove(RemoveOperation {
                path: PointerBuf::from_tokens(path.iter().copied()),
            }));
        let parent = parents
            .iter()
            .try_fold(self.object.to_mut(), |value, token| child_mut(value, token));
        if let Some(parent) = parent.and_then(Value::as_object_mut) {
            parent.remove(*last);
        }
    }

    /// The operations, in order.
    pub fn into_operations(self) -> Vec<PatchOperation> {
        self.operations
    }
}

fn child<'v>(value: &'v Value, token: &str) -> Option<&'v Value> {
    match value {
        Value::Object(object) => object.get(token),
        Value::Array(list) => list.get(token.parse::<usize>().ok()?),
        _ => None,
    }
}

fn child_mut<'v>(value: &'v mut Value, token: &str) -> Option<&'v mut Value> {
    match value {
        Value::Object(object) => object.get_mut(token),
        Value::Array(list) => list.get_mut(token.parse::<usize>().ok()?),
        _ => None,
    }
}

/// Applies to the object what the operation will do to the API server's copy.
fn put(object: &mut Value, path: &[&str], value: Value) {
    let Some((last, parents)) = path.split_last() else {
        *object = value;
        return;
    };
    let parent = parents
        .iter()
        .try_fold(object, |value, token| child_mut(value, token));
    match parent {
        Some(Value::Object(object)) => {
            object.insert((*last).to_owned(), value);
        }
        Some(Value::Array(list)) => match last.parse::<usize>() {
            Ok(index) if index < list.len() => {
                if let Some(slot) = list.get_mut(index) {
                    *slot = value;
                }
            }
            _ => list.push(value),
        },
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the operations of a change, after checking that they turn the object into the patch's own copy.
    fn check(object: &Value, change: impl FnOnce(&mut Patch<'_>)) -> Value {
        let mut patch = Patch::of(object);
        change(&mut patch);
        let after = patch.object.clone().into_owned();
        let operations = patch.into_operations();
        let mut patched = object.clone();
        json_patch::patch(&mut patched, &operations).unwrap();
        assert_eq!(patched, after);
        serde_json::to_value(operations).unwrap()
    }

    #[test]
    fn missing_parents_are_made_in_one_operation() {
        let operations = check(
            &json!({"spec": {"containers": [{"resources": null}]}}),
            |patch| {
                patch.set(
                    &[
                        "spec",
                        "containers",
                        "0",
                        "resources",
                        "limits",
                        "nvidia.com/gpu",
                    ],
                    json!("1"),
                );
            },
        );

        assert_eq!(
            operations,
            json!([{"op": "add", "path": "/spec/containers/0/resources", "value": {"limits": {"nvidia.com/gpu": "1"}}}])
        );
    }

    #[test]
    fn names_with_slashes_and_tildes_are_escaped() {
        let operations = check(
            &json!({"metadata": {"annotations": {"a/b~c": "1"}}}),
            |patch| {
                patch.set(&["metadata", "annotations", "a/b~c"], json!("2"));
                patch.set(&["metadata", "annotations", "d/~e"], json!("3"));
            },
        );

        assert_eq!(
            operations,
            json!([
                {"op": "replace", "path": "/metadata/annotations/a~1b~0c", "value": "2"},
                {"op": "add", "path": "/metadata/annotations/d~1~0e", "value": "3"},
            ])
        );
    }

    #[test]
    fn present_value_is_no_operation() {
        let object = json!({"spec": {"schedulerName": "ours"}});

        let operations = check(&object, |patch| {
            patch.set(&["spec", "schedulerName"], json!("ours"));
        });

        assert_eq!(operations, json!([]));
    }

    #[test]
    fn an_entry_that_is_taken_out_moves_the_later_ones_up() {
        let operations = check(&json!({"env": [1, 2, 3]}), |patch| {
            patch.remove(&["env"], 1);
            patch.set(&["env", "1"], json!(4));
            patch.remove(&["env"], 2);
            patch.append(&["made"], json!("a"));
            patch.remove(&["made"], 0);
            patch.append(&["made"], json!("b"));
        });

        assert_eq!(
            operations,
            json!([
                {"op": "remove", "path": "/env/1"},
                {"op": "replace", "path": "/env/1", "value": 4},
                {"op": "add", "path": "/made", "value": ["a"]},
                {"op": "remove", "path": "/made/0"},
                {"op": "add", "path": "/made/-", "value": "b"},
            ])
        );
    }

    #[test]
    fn a_field_that_is_taken_out_is_one_operation() {
        let operations = check(&json!({"limits": {"a/b": 1, "c": 2}}), |patch| {
            patch.take(&["limits", "a/b"]);
            patch.take(&["limits", "a/b"]);
            patch.take(&["requests", "c"]);
        });

        assert_eq!(
            operations,
            json!([{"op": "remove", "path": "/limits/a~1b"}])
        );
    }

    #[test]
    fn a_list_that_the_patch_makes_is_made_whole() {
        let operations = check(&json!({"made": {}, "there": [1]}), |patch| {
            patch.append(&["made", "env"], json!("a"));
            patch.append(&["made", "env"], json!("b"));
            patch.append(&["there"], json!(2));
            patch.append(&["there"], json!(3));
        });

        assert_eq!(
            operations,
            json!([
                {"op": "add", "path": "/made/env", "value": ["a", "b"]},
                {"op": "add", "path": "/there/-", "value": 2},
                {"op": "add", "path": "/there/-", "value": 3},
            ])
        );
    }
}
