//! Changes of an object by the cluster's own programs, which see its compact annotations in their compact form.

use std::sync::Arc;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::compact::{self, Beside, Compact, annotations, annotations_mut, render_into};
use crate::managed::{self, How};
use crate::object::{Stored, set, unset};
use crate::status::Status;
use crate::store::{Clash, Expect};
use crate::target::{Target, Write};
use crate::{check, kinds};

impl Cluster {
    /// Changes an object on behalf of one of the cluster's own programs, without admission hooks, and retries until
    /// no other writer interferes. `change` receives the object without its compact annotations, and the compact
    /// annotations separately.
    ///
    /// # Errors
    ///
    /// 404 if the object does not exist; the refusal of `change`; 422 if the result is not a valid object.
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
            if let Some(there) = &beside
                && annotations(&new).is_some_and(|new| new.keys().any(|key| there.has(key)))
            {
                // An annotation that is written as text wins.
                let text = annotations(&new).cloned().unwrap_or_default();
                render_into(&mut new, &**there);
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
            if new == old && compact::same(&beside, &current.compact().cloned()) {
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

/// Records the owners of the fields that a write changed, including compact annotations. These are rendered only if
/// some existed before; otherwise only their presence matters.
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
