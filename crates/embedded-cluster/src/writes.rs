//! The verbs that write: create, update, patch, delete. Rules of single kinds are in `kinds` and `pod`.
//!
//! A write reads one version, computes the next without a lock, and stores it only if no other write came first;
//! otherwise it starts again. So an admission hook may take its time, and no write is lost.

use std::sync::Arc;

use serde_json::Value;

use crate::admission::Operation;
use crate::check::{check_metadata, check_preconditions, check_same_object};
use crate::cluster::Cluster;
use crate::compact::{self, Beside};
use crate::managed::How;
use crate::object::{
    Stored, check_name, default_to, meta, metadata_mut, name_suffix, now, set, unset,
};
use crate::patch::Patch;
use crate::status::{Reason, Status};
use crate::store::{Clash, Expect};
use crate::target::{DeleteOptions, Deleted, ListOptions, Listed, Part, Target, Write};
use crate::{crd, kinds, managed, pod};

impl Cluster {
    /// Creates an object. Its name is the target's, its own, or made from its `generateName`.
    pub async fn create(
        &self,
        target: &Target,
        object: Value,
        write: &Write,
    ) -> Result<Arc<Stored>, Status> {
        let mut target = target.clone();
        let mut object = self.identify(&mut target, object)?;
        let generated = meta(&object, "name").is_empty();
        for attempt in 0.. {
            if generated {
                let name = format!("{}{}", meta(&object, "generateName"), name_suffix());
                set(&mut object, &["metadata", "name"], name.as_str().into());
                target.name = name;
            }
            let made = self
                .create_named(&target, object.clone(), write, How::Update)
                .await;
            match made {
                Err(status)
                    if generated && status.reason == Reason::AlreadyExists && attempt < 8 => {}
                made => return made,
            }
        }
        Err(Status::internal("no free name was found"))
    }

    async fn create_named(
        &self,
        target: &Target,
        mut object: Value,
        write: &Write,
        how: How<'_>,
    ) -> Result<Arc<Stored>, Status> {
        check_name(&target.resource, &target.name)?;
        self.check_namespace(target)?;
        if self.find(target).is_some() {
            return Err(Status::already_exists(
                &target.resource.group,
                &target.resource.plural,
                &target.name,
            ));
        }
        self.check_custom_name(target, &object)?;
        kinds::prepare_create(self, target, &mut object)?;
        let mut object = self
            .admit(Operation::Create, target, None, object, write)
            .await?;
        kinds::prepare_admitted(self, target, &mut object)?;
        kinds::validate(target, &object)?;
        self.check_amounts(target, &object)?;
        managed::track(target, None, &mut object, write, how);
        self.commit(target, Expect::Absent, object, None, write)
            .map_err(|clash| match clash {
                Ok(Clash) => Status::already_exists(
                    &target.resource.group,
                    &target.resource.plural,
                    &target.name,
                ),
                Err(status) => status,
            })
    }

    /// Replaces the object. With a `resourceVersion`, only if it has not changed since.
    pub async fn update(
        &self,
        target: &Target,
        object: Value,
        write: &Write,
    ) -> Result<Arc<Stored>, Status> {
        let mut target = target.clone();
        let object = self.identify(&mut target, object)?;
        if target.resource.custom && meta(&object, "resourceVersion").is_empty() {
            return Err(target.invalid(
                "metadata.resourceVersion",
                "Invalid value: 0: must be specified for an update",
            ));
        }
        self.modify(&target, write, How::Update, |_| Ok(object.clone()))
            .await
    }

    /// Changes an object by a patch. An apply creates the object if it does not exist.
    pub async fn patch(
        &self,
        target: &Target,
        patch: &Patch,
        write: &Write,
    ) -> Result<Arc<Stored>, Status> {
        if let Patch::Apply(applied) = patch {
            let applied = self.identify(&mut target.clone(), applied.clone())?;
            let how = How::Apply(&applied);
            if self.find(target).is_none() && target.part == Part::Whole {
                match self.create_named(target, applied.clone(), write, how).await {
                    Err(status) if status.reason == Reason::AlreadyExists => {}
                    made => return made,
                }
            }
            return self
                .modify(target, write, how, |old| {
                    managed::apply(target, old, &applied, write)
                })
                .await;
        }
        self.modify(target, write, How::Update, |old| {
            patch.to(&target.resource, old)
        })
        .await
    }

    /// Computes an object's next version from the present one, again after each conflicting write.
    pub(crate) async fn modify(
        &self,
        target: &Target,
        write: &Write,
        how: How<'_>,
        change: impl Fn(&Value) -> Result<Value, Status>,
    ) -> Result<Arc<Stored>, Status> {
        loop {
            let current = self.get(target)?;
            let old = current.value();
            let mut new = change(&old)?;
            check_same_object(target, &current, &old, &mut new)?;
            kinds::prepare_update(target, &old, &mut new)?;
            if target.part != Part::Internal && new != old {
                new = self
                    .admit(Operation::Update, target, Some(&old), new, write)
                    .await?;
                kinds::prepare_update(target, &old, &mut new)?;
            }
            kinds::validate(target, &new)?;
            self.check_amounts(target, &new)?;
            kinds::validate_update(target, &old, &new)?;
            managed::track(target, Some(&old), &mut new, write, how);
            if new == old {
                return Ok(current);
            }
            let beside = current
                .compact()
                .filter(|compact| compact::strip(&***compact, &old, &mut new))
                .cloned();
            let expect = Expect::Version(current.resource_version());
            match self.commit(target, expect, new, beside, write) {
                Ok(stored) => return Ok(stored),
                Err(Ok(Clash)) => {}
                Err(Err(status)) => return Err(status),
            }
        }
    }

    /// Removes an object, or marks it as being deleted if it has finalizers or a grace period.
    pub async fn delete(
        &self,
        target: &Target,
        options: &DeleteOptions,
        write: &Write,
    ) -> Result<Deleted, Status> {
        loop {
            let current = self.get(target)?;
            let mut object = current.bare();
            check_preconditions(target, options, &object)?;
            kinds::check_deletable(target)?;
            self.admit_deletion(target, &current, write).await?;
            let wait = pod::grace_seconds(self, target, &object, options);
            let held = kinds::is_held(&object);
            let marked = !meta(&object, "deletionTimestamp").is_empty();
            if target.resource.is_core("namespaces") && !write.dry_run {
                self.empty_namespace(&target.name, write);
            }
            let held = held
                || (target.resource.is_core("namespaces")
                    && !self.is_namespace_empty(&target.name));
            if !held && wait == 0 {
                if write.dry_run {
                    return Ok(Deleted::Gone(current));
                }
                match self.remove(target, current.resource_version(), &mut object) {
                    Ok(gone) => return Ok(Deleted::Gone(gone)),
                    Err(Clash) => continue,
                }
            }
            let sooner = object["metadata"]["deletionGracePeriodSeconds"]
                .as_i64()
                .is_none_or(|before| wait < before);
            if marked && !sooner {
                return Ok(Deleted::Marked(current));
            }
            default_to(&mut object, &["metadata", "deletionTimestamp"], || {
                now().into()
            });
            set(
                &mut object,
                &["metadata", "deletionGracePeriodSeconds"],
                wait.into(),
            );
            if target.resource.is_core("namespaces") {
                set(&mut object, &["status", "phase"], "Terminating".into());
            }
            match self.commit(
                target,
                Expect::Version(current.resource_version()),
                object,
                current.beside.clone(),
                write,
            ) {
                Ok(stored) => return Ok(Deleted::Marked(stored)),
                Err(Ok(Clash)) => {}
                Err(Err(status)) => return Err(status),
            }
        }
    }

    /// Deletes every object of a list, and returns them.
    pub async fn delete_collection(
        &self,
        target: &Target,
        list: &ListOptions,
        options: &DeleteOptions,
        write: &Write,
    ) -> Result<Listed, Status> {
        let listed = self.list(target, list)?;
        for object in &listed.items {
            let one = Target {
                name: object.name().to_owned(),
                namespace: object.namespace().to_owned(),
                ..target.clone()
            };
            match self.delete(&one, options, write).await {
                Ok(_) => {}
                // Another request has deleted it meanwhile.
                Err(status) if status.code == 404 => {}
                Err(status) => return Err(status),
            }
        }
        Ok(listed)
    }

    /// Stores an object, or removes it if it was only waiting for its last finalizer.
    pub(crate) fn commit(
        &self,
        target: &Target,
        expect: Expect,
        mut object: Value,
        beside: Beside,
        write: &Write,
    ) -> Result<Arc<Stored>, Result<Clash, Status>> {
        let key = target.key();
        let finished = expect != Expect::Absent && kinds::is_released(self, target, &object);
        if write.dry_run {
            let version = match expect {
                Expect::Absent => 0,
                Expect::Version(version) => version,
            };
            return Ok(Arc::new(Stored::new(
                &target.resource,
                key.into(),
                version,
                &mut object,
                beside,
            )));
        }
        if let (true, Expect::Version(version)) = (finished, expect) {
            return self.remove(target, version, &mut object).map_err(Ok);
        }
        let definition =
            target.resource.plural == "customresourcedefinitions" && !target.resource.custom;
        if definition {
            crd::establish(&mut object).map_err(Err)?;
        }
        let stored = self
            .0
            .store
            .write()
            .put(&target.resource, &key, expect, &mut object, beside)
            .map_err(Ok)?;
        if definition {
            self.0
                .registry
                .write()
                .insert(crd::resource(&object).map_err(Err)?);
        }
        Ok(stored)
    }

    /// Removes an object from the store, with what depends on it.
    pub(crate) fn remove(
        &self,
        target: &Target,
        version: u64,
        last: &mut Value,
    ) -> Result<Arc<Stored>, Clash> {
        let key = target.key();
        let gone =
            self.0
                .store
                .write()
                .delete(&target.resource, &key, Expect::Version(version), last)?;
        if target.resource.plural == "customresourcedefinitions" && !target.resource.custom {
            self.drop_custom_resource(last);
        }
        if target.resource.namespaced {
            self.finish_namespace(&target.namespace);
        }
        Ok(gone)
    }

    /// Checks an object's identity against the request path, and fills in what is missing.
    pub(crate) fn identify(&self, target: &mut Target, mut object: Value) -> Result<Value, Status> {
        let resource = target.resource.clone();
        if metadata_mut(&mut object).is_none() {
            return Err(Status::bad_request(
                "the body is not an object with metadata",
            ));
        }
        let api_version = resource.api_version_of(&target.version);
        for (name, right) in [
            ("apiVersion", api_version.as_str()),
            ("kind", resource.kind.as_str()),
        ] {
            match object[name].as_str().unwrap_or_default() {
                "" => set(&mut object, &[name], right.into()),
                given if given == right => {}
                given => {
                    return Err(Status::bad_request(format!(
                        "the object has {name} {given}, and the path it was sent to is of {right}"
                    )));
                }
            }
        }
        check_metadata(target, &object)?;
        let given = meta(&object, "namespace").to_owned();
        if resource.namespaced {
            if target.namespace.is_empty() {
                target.namespace = if given.is_empty() {
                    "default".into()
                } else {
                    given.clone()
                };
            }
            if !given.is_empty() && given != target.namespace {
                return Err(Status::bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request",
                ));
            }
            set(
                &mut object,
                &["metadata", "namespace"],
                target.namespace.as_str().into(),
            );
        } else {
            unset(&mut object, &["metadata", "namespace"]);
        }
        let given = meta(&object, "name").to_owned();
        if target.name.is_empty() {
            target.name = given.clone();
        }
        if !given.is_empty() && given != target.name {
            return Err(Status::bad_request(format!(
                "the name of the object ({given}) does not match the name on the URL ({})",
                target.name
            )));
        }
        if target.name.is_empty() {
            if meta(&object, "generateName").is_empty() {
                return Err(target.invalid(
                    "metadata.name",
                    "Required value: name or generateName is required",
                ));
            }
        } else {
            set(
                &mut object,
                &["metadata", "name"],
                target.name.as_str().into(),
            );
        }
        // Objects are stored in one version.
        if resource.table.as_ref() == "/events" {
            crate::events::to_core(&mut object);
        } else {
            set(&mut object, &["apiVersion"], resource.api_version().into());
        }
        Ok(object)
    }

    fn check_namespace(&self, target: &Target) -> Result<(), Status> {
        if !target.resource.namespaced {
            return Ok(());
        }
        let namespaces = self.resource("", "namespaces")?;
        let namespace = self.get(&Target::object(&namespaces, "", &target.namespace))?;
        if namespace.fields_say_terminating() {
            let why = format!(
                "unable to create new content in namespace {} because it is being terminated",
                target.namespace
            );
            return Err(target.forbidden(why).with_cause(
                "NamespaceTerminating",
                "namespace is being terminated",
                "metadata.namespace",
            ));
        }
        Ok(())
    }

    fn check_custom_name(&self, target: &Target, object: &Value) -> Result<(), Status> {
        if target.resource.plural == "customresourcedefinitions" && !target.resource.custom {
            let made = crd::resource(object)?;
            let taken = self
                .0
                .registry
                .read()
                .get(&made.group, &made.plural)
                .is_some_and(|there| !there.custom);
            if taken {
                return Err(target.invalid(
                    "spec.names.plural",
                    "Invalid value: it is a built-in resource",
                ));
            }
        }
        Ok(())
    }
}
