//! Annotations that are kept beside an object in a form of their writer's, and become text when the object is read.
//! Never knows what they say.
//!
//! For clients they are annotations like others. A write that leaves all of them as they were keeps the compact form; a
//! write that changes one of them makes text of all.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::cluster::Cluster;
use crate::managed::{self, How};
use crate::object::{Stored, metadata_mut, set, unset};
use crate::status::Status;
use crate::store::{Clash, Expect};
use crate::target::{Target, Write};
use crate::{check, kinds};

/// Annotations in a compact form.
pub trait Compact: Any + Debug + Send + Sync {
    /// Keys and values, as a reader of the object sees them.
    fn render(&self) -> Vec<(String, String)>;

    /// The keys alone.
    fn keys(&self) -> Vec<String>;

    /// Whether [`Compact::render`] gives this key.
    fn has(&self, key: &str) -> bool;

    /// How many bytes the rendered keys and values have.
    fn size(&self) -> usize;

    /// Whether both render to the same.
    fn same(&self, other: &dyn Compact) -> bool {
        self.size() == other.size() && self.render() == other.render()
    }
}

/// What stands beside an object, if anything.
pub(crate) type Beside = Option<Arc<dyn Compact>>;

pub(crate) fn same(one: &Beside, other: &Beside) -> bool {
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => Arc::ptr_eq(one, other) || one.same(&**other),
        _ => false,
    }
}

fn annotations(object: &Value) -> Option<&Map<String, Value>> {
    object.get("metadata")?.get("annotations")?.as_object()
}

/// The annotations of an object, made where they are not there.
fn annotations_mut(object: &mut Value) -> Option<&mut Map<String, Value>> {
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

/// Takes the compact annotations out of `new` where it has all of them as `old` has them, and says whether it does.
/// Both are objects with their annotations as text.
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
        unset(new, &["metadata", "annotations"]);
    }
    true
}

impl Cluster {
    /// Changes an object as a program of the cluster's own does, without admission hooks, until no other writer was
    /// faster. `change` sees the object without its compact annotations, and beside it these.
    ///
    /// # Errors
    ///
    /// 404 without such an object; what `change` refuses; 422 where the result is not a valid object.
    pub fn change(
        &self,
        target: &Target,
        write: &Write,
        change: impl Fn(&mut Value, &mut Option<Arc<dyn Compact>>) -> Result<(), Status>,
    ) -> Result<Arc<Stored>, Status> {
        loop {
            let current = self.get(target)?;
            let old = current.bare();
            let mut new = old.clone();
            let mut beside = current.compact().cloned();
            change(&mut new, &mut beside)?;
            if let Some(compact) = &beside
                && annotations(&new).is_some_and(|new| new.keys().any(|key| compact.has(key)))
            {
                // The text that was written counts.
                let text = annotations(&new).cloned().unwrap_or_default();
                render_into(&mut new, &**compact);
                if let Some(annotations) = annotations_mut(&mut new) {
                    annotations.extend(text);
                }
                beside = None;
            }
            check::check_same_object(target, &current, &old, &mut new)?;
            check::check_size(target, &new, &beside)?;
            kinds::prepare_update(target, &old, &mut new)?;
            kinds::validate(target, &new)?;
            kinds::validate_update(target, &old, &new)?;
            follow_owners(target, &current, &old, &mut new, &beside, write);
            if new == old && same(&beside, &current.compact().cloned()) {
                return Ok(current);
            }
            let expect = Expect::Version(current.resource_version());
            match self.commit(target, expect, new, beside, write) {
                Ok(stored) => return Ok(stored),
                Err(Ok(Clash)) => {}
                Err(Err(status)) => return Err(status),
            }
        }
    }
}

/// Writes down who owns what a write changed, compact annotations included. They are rendered only where some stood
/// there before: of new ones it is enough that they are there.
fn follow_owners(
    target: &Target,
    current: &Stored,
    old: &Value,
    new: &mut Value,
    beside: &Beside,
    write: &Write,
) {
    if !managed::is_followed(old) && !managed::is_followed(new) {
        return managed::track(target, Some(old), new, write, How::Update);
    }
    let before = current.compact();
    let unchanged = match (before, beside) {
        (Some(before), Some(after)) => Arc::ptr_eq(before, after),
        (None, None) => true,
        _ => false,
    };
    if unchanged {
        return managed::track(target, Some(old), new, write, How::Update);
    }
    let (mut seen_old, mut seen_new) = (old.clone(), new.clone());
    let keys = beside.as_ref().map_or_else(Vec::new, |after| after.keys());
    let stands = |key: &String| {
        before.is_some_and(|before| before.has(key))
            || annotations(old).is_some_and(|old| old.contains_key(key))
    };
    if before.is_none() && !keys.iter().any(stands) {
        if let Some(annotations) = annotations_mut(&mut seen_new) {
            annotations.extend(keys.into_iter().map(|key| (key, "".into())));
        }
    } else {
        if let Some(before) = before {
            render_into(&mut seen_old, &**before);
        }
        if let Some(after) = beside {
            render_into(&mut seen_new, &**after);
        }
    }
    managed::track(target, Some(&seen_old), &mut seen_new, write, How::Update);
    let owners = seen_new["metadata"]["managedFields"].take();
    if owners.is_null() {
        unset(new, &["metadata", "managedFields"]);
    } else {
        set(new, &["metadata", "managedFields"], owners);
    }
}

impl Stored {
    /// The compact annotations beside the object.
    pub fn compact(&self) -> Option<&Arc<dyn Compact>> {
        self.beside.as_ref()
    }
}
