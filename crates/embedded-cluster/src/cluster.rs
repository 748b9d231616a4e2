//! The cluster: its state, and the verbs that read: get and list. The verbs that write are in `writes`, watches in
//! `watch`; `store` keeps objects and versions.

use std::sync::Arc;

use parking_lot::RwLock;
use serde_json::Value;

use crate::admission::{Admission, WebhookClient};
use crate::check::check_fields;
use crate::object::{Stored, new_uid, now, set, unset};
use crate::page::Continue;
use crate::resource::{Registry, Resource};
use crate::status::Status;
use crate::store::{Store, TooOld};
use crate::target::{ListOptions, Listed, Options, Target};

/// A Kubernetes API server's state and verbs, in memory. Clones share it.
#[derive(Clone)]
pub struct Cluster(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) options: Options,
    pub(crate) store: RwLock<Store>,
    pub(crate) registry: RwLock<Registry>,
    pub(crate) admission: RwLock<Vec<Arc<dyn Admission>>>,
    pub(crate) webhooks: RwLock<Option<Arc<dyn WebhookClient>>>,
}

impl Default for Cluster {
    fn default() -> Self {
        Self::new(Options::default())
    }
}

impl Cluster {
    /// A cluster with the namespaces and priority classes that every cluster has.
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

    /// Adds a hook that is asked about every write from now on, after the hooks that were added before.
    pub fn admit_with(&self, hook: Arc<dyn Admission>) {
        self.0.admission.write().push(hook);
    }

    /// Calls the webhooks of stored `MutatingWebhookConfiguration`s and `ValidatingWebhookConfiguration`s through this
    /// client. Without a client they are stored and not called.
    pub fn call_webhooks_with(&self, client: Arc<dyn WebhookClient>) {
        *self.0.webhooks.write() = Some(client);
    }

    /// The resource with this group (empty for the core one) and plural name.
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

    /// Fills in the fields that only the server may set.
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
