//! Annotations that are stored beside an object in a compact form of their writer, and are rendered when the object is
//! read. This file does not know what they mean.
//!
//! For clients they are ordinary annotations. A write that leaves all of them unchanged keeps the compact form; a write
//! that changes one of them turns all of them into text.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use serde_json::{Map, Value};

/// Annotations in a compact form.
pub trait Compact: Any + Debug + Send + Sync {
    /// Keys and values, as a reader of the object sees them.
    fn render(&self) -> Vec<(String, String)>;

    /// The keys alone.
    fn keys(&self) -> Vec<String>;

    /// Whether [`Compact::render`] returns this key.
    fn has(&self, key: &str) -> bool;

    /// The number of bytes of the rendered keys and values.
    fn size(&self) -> usize;

    /// Whether both render to the same.
    fn same(&self, other: &dyn Compact) -> bool {
        self.size() == other.size() && self.render() == other.render()
    }
}

/// The compact annotations of an object, if it has any.
pub(crate) type Beside = Option<Arc<dyn Compact>>;

pub(crate) fn same(one: &Beside, other: &Beside) -> bool {
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => Arc::ptr_eq(one, other) || one.same(&**other),
        _ => false,
    }
}

pub(crate) fn annotations(object: &Value) -> Option<&Map<String, Value>> {
    object.get("metadata")?.get("annotations")?.as_object()
}

fn metadata_mut(object: &mut Value) -> Option<&mut Map<String, Value>> {
    object.get_mut("metadata")?.as_object_mut()
}

/// The annotations of an object, created if they are missing.
pub(crate) fn annotations_mut(object: &mut Value) -> Option<&mut Map<String, Value>> {
    let annotations = metadata_mut(object)?
        .entry("annotations")
        .or_insert_with(|| Value::Object(Map::new()));
    if annotations.is_null() {
        *annotations = Value::Object(Map::new());
    }
    annotations.as_object_mut()
}

/// Writes the annotations into the object as text.
pub(crate) fn render_into(object: &mut Value, compact: &dyn Compact) {
    let rendered = compact.render();
    if let (Some(annotations), false) = (annotations_mut(object), rendered.is_empty()) {
        for (key, value) in rendered {
            annotations.insert(key, value.into());
        }
    }
}

/// Removes the compact annotations from `new` if all of them are as in `old`, and returns whether they are. Both
/// objects have their annotations as text.
pub(crate) fn strip(compact: &dyn Compact, old: &Value, new: &mut Value) -> bool {
    let kept = annotations(old)
        .into_iter()
        .flatten()
        .filter(|(key, _)| compact.has(key))
        .all(|(key, value)| annotations(new).and_then(|new| new.get(key)) == Some(value));
    if !kept {
        return false;
    }
    let Some(annotations) = annotations_mut(new) else {
        return false;
    };
    annotations.retain(|key, _| !compact.has(key));
    if annotations.is_empty() {
        metadata_mut(new).and_then(|metadata| metadata.remove("annotations"));
    }
    true
}
