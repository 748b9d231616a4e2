//! The verbs: create, get, list, update, patch, delete, watch. What is particular to a kind stands in `kinds` and
//! `pod`; how objects and versions are kept stands in `store`.
//!
//! A write reads one version, works out the next without a lock, and puts it only if nobody was faster; else it
//! works it out again. So an admission hook may take its time, and no write is lost.

use std::sync::Arc;

use parking_lot::RwLock;
use serde_json::{Value, json};

use crate::admission::{Admission, Operation, Review, WebhookClient};
use crate::managed::How;
use crate::object::{
    Stored, check_name, default_to, meta, metadata_mut, name_suffix, new_uid, now, set, unset,
};
use crate::patch::Patch;
use crate::resource::{Registry, Resource, Version};
use crate::selector::Selector;
use crate::status::Status;
use crate::store::{Clash, Expect, Store, TooOld};
use crate::watch::{Start, Watch};
use crate::{crd, kinds, managed, pod};

/// A Kubernetes API server's state and verbs, in memory. Clones share it.
#[derive(Clone)]
pub struct Cluster(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) options: Options,
    pub(crate) store: RwLock<Store>,
    pub(crate) registry: RwLock<Registry>,
    admission: RwLock<Vec<Arc<dyn Admission>>>,
    webhooks: RwLock<Option<Arc<dyn WebhookClient>>>,
}

/// What a cluster is like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// How many changes of each resource a watch can be behind before it is told 410.
    pub remembered_changes: usize,
    /// The largest body that is read, in bytes.
    pub body_limit: usize,
    /// Whether a deleted pod that has a node waits for its node to let it go, as where a kubelet runs. Without, it is
    /// gone at once.
    pub graceful_deletion: bool,
    /// How often a watch that asked for bookmarks gets one.
    pub bookmark_every: std::time::Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            remembered_changes: 10_000,
            body_limit: 64 << 20,
            graceful_deletion: false,
            bookmark_every: std::time::Duration::from_secs(60),
        }
    }
}

/// Which object, or which objects, a verb is about.
#[derive(Debug, Clone)]
pub struct Target {
    /// The resource.
    pub resource: Arc<Resource>,
    /// The version in whose words the caller speaks.
    pub version: String,
    /// Empty for all namespaces, or for a resource without them.
    pub namespace: String,
    /// Empty for a collection.
    pub name: String,
    /// Which part of the object.
    pub part: Part,
}

/// The part of an object that a write may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Part {
    /// All but the status, where the status is a subresource.
    #[default]
    Whole,
    /// The `status` subresource.
    Status,
    /// A pod's `ephemeralcontainers` subresource.
    EphemeralContainers,
    /// A pod's `resize` subresource.
    Resize,
    /// A namespace's `finalize` subresource.
    Finalize,
    /// The product of our own verbs, such as a binding: every field may change.
    Internal,
}

impl Part {
    pub(crate) fn subresource(self) -> &'static str {
        match self {
            Self::Whole | Self::Internal => "",
            Self::Status => "status",
            Self::EphemeralContainers => "ephemeralcontainers",
            Self::Resize => "resize",
            Self::Finalize => "finalize",
        }
    }
}

impl Target {
    /// One object, by its stored version.
    pub fn object(resource: &Arc<Resource>, namespace: &str, name: &str) -> Self {
        let version = resource
            .versions
            .first()
            .map_or_else(String::new, |version| version.name.clone());
        Self {
            resource: resource.clone(),
            version,
            namespace: if resource.namespaced {
                namespace.to_owned()
            } else {
                String::new()
            },
            name: name.to_owned(),
            part: Part::Whole,
        }
    }

    /// All objects of a namespace, or of all when it is empty.
    pub fn collection(resource: &Arc<Resource>, namespace: &str) -> Self {
        Self::object(resource, namespace, "")
    }

    /// The same object, and that part of it.
    #[must_use]
    pub fn part(mut self, part: Part) -> Self {
        self.part = part;
        self
    }

    pub(crate) fn key(&self) -> String {
        self.resource.key(&self.namespace, &self.name)
    }

    fn prefix(&self) -> String {
        if self.namespace.is_empty() {
            String::new()
        } else {
            format!("{}/", self.namespace)
        }
    }

    pub(crate) fn served(&self) -> Result<&Version, Status> {
        self.resource
            .version(&self.version)
            .ok_or_else(Status::no_such_path)
    }

    pub(crate) fn not_found(&self) -> Status {
        Status::not_found(&self.resource.group, &self.resource.plural, &self.name)
    }

    pub(crate) fn conflict(&self, why: impl std::fmt::Display) -> Status {
        Status::conflict(&self.resource.group, &self.resource.plural, &self.name, why)
    }

    pub(crate) fn invalid(&self, field: &str, why: impl std::fmt::Display) -> Status {
        Status::invalid(
            &self.resource.group,
            &self.resource.kind,
            &self.name,
            field,
            why,
        )
    }

    pub(crate) fn forbidden(&self, why: impl std::fmt::Display) -> Status {
        Status::forbidden(&self.resource.group, &self.resource.plural, &self.name, why)
    }
}

/// Who writes, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Everything happens but the write.
    pub dry_run: bool,
    /// The name under which changed fields are owned.
    pub field_manager: String,
    /// Whether an apply takes fields from their owners.
    pub force: bool,
    /// `userInfo.username` that admission hooks see.
    pub user: String,
    /// `userInfo.groups` that admission hooks see.
    pub groups: Vec<String>,
}

impl Default for Write {
    fn default() -> Self {
        Self {
            dry_run: false,
            field_manager: "unknown".into(),
            force: false,
            user: "system:admin".into(),
            groups: vec!["system:masters".into(), "system:authenticated".into()],
        }
    }
}

/// Which objects a list gives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// What they must be.
    pub selector: Selector,
    /// How many at most; 0 is all.
    pub limit: usize,
    /// Where the last page ended.
    pub continue_token: String,
    /// The version, and whether exactly that one is meant.
    pub version: Option<(u64, bool)>,
}

/// A list, and where the next page begins.
#[derive(Debug, Clone, Default)]
pub struct Listed {
    /// The objects, by namespace and name.
    pub items: Vec<Arc<Stored>>,
    /// The version of which this is the state.
    pub resource_version: u64,
    /// Empty on the last page.
    pub continue_token: String,
    /// How many come after this page; known only where nothing is selected.
    pub remaining: Option<usize>,
}

/// What became of an object that was deleted.
#[derive(Debug, Clone)]
pub enum Deleted {
    /// It is gone; this is how it was last.
    Gone(Arc<Stored>),
    /// It goes when its finalizers, or its node, let it go.
    Marked(Arc<Stored>),
}

/// What must hold for a deletion, and how it goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// `preconditions.uid`.
    pub uid: Option<String>,
    /// `preconditions.resourceVersion`.
    pub resource_version: Option<String>,
    /// `gracePeriodSeconds`.
    pub grace_seconds: Option<i64>,
}

impl Default for Cluster {
    fn default() -> Self {
        Self::new(Options::default())
    }
}

impl Cluster {
    /// With the namespaces and priority classes that every cluster has.
    pub fn new(options: Options) -> Self {
        let store = RwLock::new(Store::new(options.remembered_changes));
        let cluster = Self(Arc::new(Inner {
            options,
            store,
            registry: RwLock::new(Registry::built_in()),
            admission: RwLock::default(),
            webhooks: RwLock::default(),
        }));
        cluster.add_what_every_cluster_has();
        cluster
    }

    /// Asks this hook about every write from now on, after those that were there before.
    pub fn admit_with(&self, hook: Arc<dyn Admission>) {
        self.0.admission.write().push(hook);
    }

    /// Calls the webhooks of stored `MutatingWebhookConfiguration`s and `ValidatingWebhookConfiguration`s through this
    /// client. Without one they are stored and not called.
    pub fn call_webhooks_with(&self, client: Arc<dyn WebhookClient>) {
        *self.0.webhooks.write() = Some(client);
    }

    /// The resource of that group (empty for the core one) and plural name.
    pub fn resource(&self, group: &str, plural: &str) -> Result<Arc<Resource>, Status> {
        self.0
            .registry
            .read()
            .get(group, plural)
            .cloned()
            .ok_or_else(Status::no_such_path)
    }

    /// All resources that are served.
    pub fn resources(&self) -> Vec<Arc<Resource>> {
        self.0.registry.read().all().cloned().collect()
    }

    /// The version of the last change.
    pub fn resource_version(&self) -> u64 {
        self.0.store.read().version()
    }

    /// One object.
    pub fn get(&self, target: &Target) -> Result<Arc<Stored>, Status> {
        self.find(target).ok_or_else(|| target.not_found())
    }

    pub(crate) fn find(&self, target: &Target) -> Option<Arc<Stored>> {
        self.0
            .store
            .read()
            .get(&target.resource.table, &target.key())
    }

    /// The objects of a collection.
    pub fn list(&self, target: &Target, options: &ListOptions) -> Result<Listed, Status> {
        check_fields(&target.resource, &options.selector)?;
        let table = &*target.resource.table;
        let prefix = target.prefix();
        let store = self.0.store.read();
        let current = store.version();
        let (version, after) = match Continue::parse(&options.continue_token)? {
            Some(Continue { version, after }) => (version, after),
            None => match options.version {
                Some((asked, _)) if asked > current => {
                    return Err(Status::version_too_large(asked, current));
                }
                Some((asked, true)) if asked > 0 => (asked, String::new()),
                _ => (current, String::new()),
            },
        };
        let all: Vec<Arc<Stored>> = if version < current {
            store.scan_at(table, &prefix, &after, version).map_err(|TooOld { .. }| {
                Status::expired("The provided continue parameter or resource version is too old: list again without it")
            })?
        } else {
            store.scan(table, &prefix, &after).cloned().collect()
        };
        drop(store);
        let left = all.len();
        let limit = if options.limit == 0 {
            usize::MAX
        } else {
            options.limit
        };
        let mut matching = all
            .into_iter()
            .enumerate()
            .filter(|(_, object)| object.matches(&options.selector))
            .peekable();
        let mut items = Vec::new();
        let mut taken = 0;
        while items.len() < limit {
            let Some((at, object)) = matching.next() else {
                break;
            };
            taken = at + 1;
            items.push(object);
        }
        let more = matching.peek().is_some();
        let continue_token = match items.last() {
            Some(last) if more => Continue {
                version,
                after: last.key.to_string(),
            }
            .print(),
            _ => String::new(),
        };
        let remaining = (more && options.selector.is_empty()).then(|| left - taken);
        Ok(Listed {
            items,
            resource_version: version,
            continue_token,
            remaining,
        })
    }

    /// What happens to the objects of a collection, from `start` on.
    pub fn watch(
        &self,
        target: &Target,
        selector: Selector,
        start: Start,
    ) -> Result<Watch, Status> {
        check_fields(&target.resource, &selector)?;
        Ok(Watch::new(
            self.clone(),
            target.resource.clone(),
            target.prefix(),
            selector,
            start,
        ))
    }

    /// A new object. Its name is the target's, its own, or made from its `generateName`.
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
                Err(status) if generated && status.reason == "AlreadyExists" && attempt < 8 => {}
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
        managed::track(target, None, &mut object, write, how);
        self.commit(target, Expect::Absent, object, write)
            .map_err(|clash| match clash {
                Ok(Clash) => Status::already_exists(
                    &target.resource.group,
                    &target.resource.plural,
                    &target.name,
                ),
                Err(status) => status,
            })
    }

    /// The object as it shall be. With a `resourceVersion` only if nobody changed it since.
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

    /// Changes an object by a patch. An apply makes the object when it is not there.
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
                    Err(status) if status.reason == "AlreadyExists" => {}
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

    /// Works out an object's next version from the one that is there, until nobody was faster.
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
            kinds::validate_update(target, &old, &new)?;
            managed::track(target, Some(&old), &mut new, write, how);
            if new == old {
                return Ok(current);
            }
            let expect = Expect::Version(current.resource_version());
            match self.commit(target, expect, new, write) {
                Ok(stored) => return Ok(stored),
                Err(Ok(Clash)) => {}
                Err(Err(status)) => return Err(status),
            }
        }
    }

    /// Takes an object away, or marks it where something holds it.
    pub async fn delete(
        &self,
        target: &Target,
        options: &DeleteOptions,
        write: &Write,
    ) -> Result<Deleted, Status> {
        loop {
            let current = self.get(target)?;
            let mut object = current.value();
            check_preconditions(target, options, &object)?;
            kinds::check_deletable(target)?;
            self.admit_deletion(target, &object, write).await?;
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
                write,
            ) {
                Ok(stored) => return Ok(Deleted::Marked(stored)),
                Err(Ok(Clash)) => {}
                Err(Err(status)) => return Err(status),
            }
        }
    }

    /// Deletes every object that a list gives, and says which those were.
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
                // Somebody else deleted it meanwhile.
                Err(status) if status.code == 404 => {}
                Err(status) => return Err(status),
            }
        }
        Ok(listed)
    }

    /// Puts an object into the store, or takes it away when it was only waiting for its last finalizer.
    fn commit(
        &self,
        target: &Target,
        expect: Expect,
        mut object: Value,
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
            .put(&target.resource, &key, expect, &mut object)
            .map_err(Ok)?;
        if definition {
            self.0
                .registry
                .write()
                .insert(crd::resource(&object).map_err(Err)?);
        }
        Ok(stored)
    }

    /// Takes an object out of the store, and what goes with it.
    fn remove(
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

    fn drop_custom_resource(&self, definition: &Value) {
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

    /// Takes away all objects of a resource whose keys begin with `prefix`, but those that a finalizer holds.
    fn clear(&self, resource: &Resource, prefix: &str) {
        let mut store = self.0.store.write();
        let objects: Vec<_> = store.scan(&resource.table, prefix, "").cloned().collect();
        for stored in objects {
            let mut object = stored.value();
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
                store.put(resource, &stored.key, expect, &mut object)
            } else {
                store.delete(resource, &stored.key, expect, &mut object)
            };
            drop(done.expect("the lock was held since the object was read"));
        }
    }

    fn empty_namespace(&self, namespace: &str, write: &Write) {
        let Ok(namespaces) = self.resource("", "namespaces") else {
            return;
        };
        let target = Target::object(&namespaces, "", namespace);
        // Nothing may be made in it from here on.
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

    /// A namespace that only waited for its last object goes with it.
    fn finish_namespace(&self, namespace: &str) {
        let Ok(namespaces) = self.resource("", "namespaces") else {
            return;
        };
        let target = Target::object(&namespaces, "", namespace);
        let Some(current) = self.find(&target) else {
            return;
        };
        // Most objects go from a namespace that stays.
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

    /// Checks what an object says of itself against where it was sent, and fills in what it leaves out.
    fn identify(&self, target: &mut Target, mut object: Value) -> Result<Value, Status> {
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
        // What is stored speaks one version.
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

    /// Asks the hooks: those that change, in order, then those that only look.
    async fn admit(
        &self,
        operation: Operation,
        target: &Target,
        old: Option<&Value>,
        new: Value,
        write: &Write,
    ) -> Result<Value, Status> {
        let hooks = self.hooks(target);
        if hooks.is_empty() {
            return Ok(new);
        }
        let mut review = Review::new(operation, target, write, Some(new), old.cloned());
        for hook in &hooks {
            if let Some(changed) = hook.mutate(&review).await? {
                review.object = Some(changed);
            }
        }
        for hook in &hooks {
            hook.validate(&review).await?;
        }
        let mut new = review.object.take().unwrap_or(Value::Null);
        if metadata_mut(&mut new).is_none() || meta(&new, "name") != target.name {
            return Err(Status::internal(
                "an admission hook changed what the object is",
            ));
        }
        Ok(new)
    }

    async fn admit_deletion(
        &self,
        target: &Target,
        old: &Value,
        write: &Write,
    ) -> Result<(), Status> {
        let hooks = self.hooks(target);
        if hooks.is_empty() {
            return Ok(());
        }
        let review = Review::new(Operation::Delete, target, write, None, Some(old.clone()));
        for hook in &hooks {
            hook.mutate(&review).await?;
        }
        for hook in &hooks {
            hook.validate(&review).await?;
        }
        Ok(())
    }

    /// Also for what is not an object of its own, such as a binding.
    pub(crate) async fn admit_connect(
        &self,
        target: &Target,
        subresource: &str,
        object: Value,
        write: &Write,
    ) -> Result<Value, Status> {
        let hooks = self.hooks(target);
        let mut review = Review::new(Operation::Create, target, write, Some(object), None);
        review.subresource = subresource.to_owned();
        for hook in &hooks {
            if let Some(changed) = hook.mutate(&review).await? {
                review.object = Some(changed);
            }
        }
        for hook in &hooks {
            hook.validate(&review).await?;
        }
        Ok(review.object.take().unwrap_or(Value::Null))
    }

    fn hooks(&self, target: &Target) -> Vec<Arc<dyn Admission>> {
        let mut hooks = self.0.admission.read().clone();
        // Their own configurations are never sent to webhooks: a broken one could not be mended.
        if let (Some(client), false) = (
            &*self.0.webhooks.read(),
            target.resource.group == "admissionregistration.k8s.io",
        ) {
            hooks.push(Arc::new(crate::webhooks::Registered::new(
                self.clone(),
                client.clone(),
            )));
        }
        hooks
    }

    fn add_what_every_cluster_has(&self) {
        for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
            self.plant("", "namespaces", json!({ "metadata": { "name": name } }));
        }
        for (name, value) in [
            ("system-cluster-critical", 2_000_000_000),
            ("system-node-critical", 2_000_001_000),
        ] {
            let class = json!({ "metadata": { "name": name }, "value": value, "preemptionPolicy": "PreemptLowerPriority" });
            self.plant("scheduling.k8s.io", "priorityclasses", class);
        }
    }

    fn plant(&self, group: &str, plural: &str, object: Value) {
        let planted = self
            .resource(group, plural)
            .and_then(|resource| self.plant_all(&[(resource, &object)]));
        if let Err(status) = planted {
            tracing::error!(%status, plural, "not planted");
        }
    }

    /// Puts objects in as they are, past the hooks: what was there before the cluster started. All of them or none.
    pub(crate) fn plant_all(&self, objects: &[(Arc<Resource>, &Value)]) -> Result<usize, Status> {
        let mut planned = Vec::with_capacity(objects.len());
        let mut namespaces = Vec::new();
        for (resource, object) in objects {
            let mut target = Target::collection(resource, "");
            let mut object = self.identify(&mut target, (*object).clone())?;
            check_name(resource, &target.name)?;
            kinds::prepare_planted(self, &target, &mut object)?;
            kinds::validate(&target, &object)?;
            if target.resource.namespaced && !namespaces.contains(&target.namespace) {
                namespaces.push(target.namespace.clone());
            }
            planned.push((target, object));
        }
        let home = self.resource("", "namespaces")?;
        for namespace in namespaces {
            let target = Target::object(&home, "", &namespace);
            let named = planned
                .iter()
                .any(|(other, _)| other.resource == home && other.name == namespace);
            if !named && self.find(&target).is_none() {
                let mut object = self.identify(
                    &mut target.clone(),
                    json!({ "metadata": { "name": namespace } }),
                )?;
                kinds::prepare_planted(self, &target, &mut object)?;
                planned.push((target, object));
            }
        }
        let mut store = self.0.store.write();
        let mut keys = std::collections::HashSet::new();
        planned.retain(|(target, _)| {
            // What every cluster has may be named again.
            !(matches!(
                target.resource.plural.as_str(),
                "namespaces" | "priorityclasses"
            ) && store.get(&target.resource.table, &target.key()).is_some())
        });
        for (target, _) in &planned {
            let key = (target.resource.table.clone(), target.key());
            if store.get(&key.0, &key.1).is_some() || !keys.insert(key) {
                return Err(Status::already_exists(
                    &target.resource.group,
                    &target.resource.plural,
                    &target.name,
                ));
            }
        }
        for (target, object) in &mut planned {
            let put = store.put(&target.resource, &target.key(), Expect::Absent, object);
            drop(put.expect("its key was free, and the lock is held"));
        }
        drop(store);
        for (target, object) in &planned {
            if target.resource.plural == "customresourcedefinitions" && !target.resource.custom {
                self.0.registry.write().insert(crd::resource(object)?);
            }
        }
        Ok(planned.len())
    }

    /// Fills what only the server may say.
    pub(crate) fn stamp(target: &Target, object: &mut Value) {
        set(object, &["metadata", "uid"], new_uid().into());
        set(object, &["metadata", "creationTimestamp"], now().into());
        for name in [
            "resourceVersion",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generation",
            "selfLink",
        ] {
            unset(object, &["metadata", name]);
        }
        if target.resource.generation || target.resource.custom {
            set(object, &["metadata", "generation"], 1.into());
        }
    }
}

/// `metadata` has the types that Kubernetes gives it.
fn check_metadata(target: &Target, object: &Value) -> Result<(), Status> {
    let metadata = &object["metadata"];
    for name in [
        "name",
        "namespace",
        "generateName",
        "uid",
        "resourceVersion",
    ] {
        if !(metadata[name].is_null() || metadata[name].is_string()) {
            return Err(Status::bad_request(format!(
                "metadata.{name} is not a text"
            )));
        }
    }
    for name in ["labels", "annotations"] {
        let texts = match &metadata[name] {
            Value::Null => true,
            Value::Object(map) => map
                .values()
                .all(|value| value.is_string() || value.is_null()),
            _ => false,
        };
        if !texts {
            return Err(Status::bad_request(format!(
                "metadata.{name} is not a map of texts"
            )));
        }
    }
    let size: usize = metadata["annotations"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| key.len() + value.as_str().map_or(0, str::len))
        .sum();
    if size > 256 << 10 {
        return Err(target.invalid(
            "metadata.annotations",
            "Too long: may not be more than 262144 bytes",
        ));
    }
    Ok(())
}

fn check_fields(resource: &Resource, selector: &Selector) -> Result<(), Status> {
    let known = |path: &str| {
        matches!(path, "metadata.name" | "metadata.namespace")
            || resource.fields.iter().any(|field| **field == *path)
    };
    match selector.field_paths().find(|path| !known(path)) {
        None => Ok(()),
        Some(path) => Err(Status::bad_request(format!(
            "field label not supported: {path}"
        ))),
    }
}

fn check_preconditions(
    target: &Target,
    options: &DeleteOptions,
    object: &Value,
) -> Result<(), Status> {
    for (what, asked, field) in [
        ("UID", &options.uid, "uid"),
        (
            "ResourceVersion",
            &options.resource_version,
            "resourceVersion",
        ),
    ] {
        let there = meta(object, field);
        if let Some(asked) = asked.as_deref().filter(|asked| *asked != there) {
            return Err(target.conflict(format!(
                "Precondition failed: {what} in precondition: {asked}, {what} in object meta: {there}"
            )));
        }
    }
    Ok(())
}

/// An update is of the object that is there, and of the version that the client read.
fn check_same_object(
    target: &Target,
    current: &Stored,
    old: &Value,
    new: &mut Value,
) -> Result<(), Status> {
    let Some(metadata) = metadata_mut(new) else {
        return Err(Status::bad_request(
            "the result is not an object with metadata",
        ));
    };
    let text = |name: &str| {
        metadata
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let version = text("resourceVersion");
    if !version.is_empty() && version != "0" && version != current.resource_version().to_string() {
        return Err(target.conflict(
            "the object has been modified; please apply your changes to the latest version and try again",
        ));
    }
    let (uid, there) = (text("uid"), meta(old, "uid"));
    if !uid.is_empty() && uid != there {
        return Err(target.conflict(format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {there}"
        )));
    }
    if text("name") != meta(old, "name") || text("namespace") != meta(old, "namespace") {
        return Err(target.invalid("metadata.name", "Invalid value: field is immutable"));
    }
    if new["kind"] != old["kind"] || new["apiVersion"] != old["apiVersion"] {
        return Err(Status::bad_request("kind and apiVersion cannot be changed"));
    }
    check_metadata(target, new)?;
    for name in [
        "uid",
        "creationTimestamp",
        "resourceVersion",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "selfLink",
    ] {
        match old["metadata"].get(name) {
            Some(value) => set(new, &["metadata", name], value.clone()),
            None => unset(new, &["metadata", name]),
        }
    }
    Ok(())
}

impl Stored {
    fn fields_say_terminating(&self) -> bool {
        Selector::parse("", "status.phase=Terminating")
            .is_ok_and(|selector| self.matches(&selector))
    }
}

/// Where a page ended, and of which version it was.
struct Continue {
    version: u64,
    after: String,
}

impl Continue {
    fn parse(token: &str) -> Result<Option<Self>, Status> {
        if token.is_empty() {
            return Ok(None);
        }
        // Hexadecimal, so that it needs no escape in a query.
        let bytes: Option<Vec<u8>> = token
            .as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
            .collect();
        bytes
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .and_then(|text| {
                let (version, after) = text.split_once('/')?;
                Some(Some(Self {
                    version: version.parse().ok()?,
                    after: after.to_owned(),
                }))
            })
            .ok_or_else(|| Status::bad_request("continue key is not valid"))
    }

    fn print(&self) -> String {
        format!("{}/{}", self.version, self.after)
            .bytes()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}
