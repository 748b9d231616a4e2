//! Deletions that follow from others: the objects of a namespace, and those of a custom resource.

use serde_json::Value;

use crate::cluster::Cluster;
use crate::kinds;
use crate::object::Stored;
use crate::object::{default_to, meta, now, set};
use crate::resource::Resource;
use crate::selector::Selector;
use crate::store::{Clash, Expect};
use crate::target::{Target, Write};

impl Cluster {
    pub(crate) fn drop_custom_resource(&self, definition: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (group, plural) = (
            text(&definition["spec"]["group"]),
            text(&definition["spec"]["names"]["plural"]),
        );
        let Ok(resource) = self.resource(&group, &plural) else {
            return;
        };
        self.0.registry.write().remove(&group, &plural);
        self.clear(&resource, "");
    }

    /// Deletes all objects of a resource whose keys begin with `prefix`, except those that a finalizer holds.
    pub(crate) fn clear(&self, resource: &Resource, prefix: &str) {
        let mut store = self.0.store.write();
        let objects: Vec<_> = store.scan(&resource.table, prefix, "").cloned().collect();
        for stored in objects {
            let mut object = stored.bare();
            let expect = Expect::Version(stored.resource_version());
            let done = if kinds::is_held(&object) && !prefix.is_empty() {
                default_to(&mut object, &["metadata", "deletionTimestamp"], || {
                    now().into()
                });
                default_to(
                    &mut object,
                    &["metadata", "deletionGracePeriodSeconds"],
                    || 0.into(),
                );
                store.put(
                    resource,
                    &stored.key,
                    expect,
                    &mut object,
                    stored.beside.clone(),
                )
            } else {
                store.delete(resource, &stored.key, expect, &mut object)
            };
            drop(done.expect("the lock was held since the object was read"));
        }
    }

    pub(crate) fn empty_namespace(&self, namespace: &str, write: &Write) {
        let Ok(namespaces) = self.resource("", "namespaces") else {
            return;
        };
        let target = Target::object(&namespaces, "", namespace);
        // From here on, no object can be created in it.
        let open = self
            .find(&target)
            .filter(|namespace| !namespace.fields_say_terminating());
        if let Some(current) = open {
            let mut object = current.value();
            default_to(&mut object, &["metadata", "deletionTimestamp"], || {
                now().into()
            });
            set(&mut object, &["status", "phase"], "Terminating".into());
            let marked = self.commit(
                &target,
                Expect::Version(current.resource_version()),
                object,
                None,
                write,
            );
            tracing::debug!(namespace, marked = marked.is_ok(), "namespace is emptied");
        }
        for resource in self
            .resources()
            .iter()
            .filter(|resource| resource.namespaced)
        {
            self.clear(resource, &format!("{namespace}/"));
        }
    }

    pub(crate) fn is_namespace_empty(&self, namespace: &str) -> bool {
        let prefix = format!("{namespace}/");
        let resources = self.resources();
        let store = self.0.store.read();
        !resources
            .iter()
            .filter(|resource| resource.namespaced)
            .any(|resource| store.scan(&resource.table, &prefix, "").next().is_some())
    }

    /// Deletes a namespace that only waited for its last object.
    pub(crate) fn finish_namespace(&self, namespace: &str) {
        let Ok(namespaces) = self.resource("", "namespaces") else {
            return;
        };
        let target = Target::object(&namespaces, "", namespace);
        let Some(current) = self.find(&target) else {
            return;
        };
        // Most objects are deleted from a namespace that stays.
        let mut object = current.value();
        if meta(&object, "deletionTimestamp").is_empty()
            || kinds::is_held(&object)
            || !self.is_namespace_empty(namespace)
        {
            return;
        }
        if let Err(Clash) = self.remove(&target, current.resource_version(), &mut object) {
            self.finish_namespace(namespace);
        }
    }
}

impl Stored {
    pub(crate) fn fields_say_terminating(&self) -> bool {
        Selector::parse("", "status.phase=Terminating")
            .is_ok_and(|selector| self.matches(&selector))
    }
}
