//! The front's knowledge, for as long as it lives: the last list of each resource, and the kubelet's use of it. Never
//! asks a process.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;
use tonic::transport::Channel;

use crate::proto::device_plugin::ListAndWatchResponse;

/// A list for the kubelet; `None` until a process has made one.
pub(super) type List = Option<Arc<ListAndWatchResponse>>;

/// The kubelet's use of a resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Kubelets {
    /// It watches the list.
    pub(super) watches: bool,
    /// Registrations that it accepted.
    pub(super) registrations: u64,
}

/// The process that answers now.
#[derive(Debug, Clone)]
pub(super) struct Answering {
    /// Which one: each has another number.
    pub(super) number: u64,
    /// The way to it.
    pub(super) channel: Channel,
}

/// Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Known(Arc<KnownInner>);

#[derive(Debug)]
struct KnownInner {
    folder: PathBuf,
    lists: BTreeMap<String, watch::Sender<List>>,
    kubelets: watch::Sender<BTreeMap<String, Kubelets>>,
    answering: watch::Sender<Option<Answering>>,
}

impl Known {
    pub(super) fn new(folder: PathBuf, resources: Vec<String>) -> Self {
        let kubelets = resources.iter().cloned();
        let kubelets = kubelets.map(|resource| (resource, Kubelets::default()));
        Self(Arc::new(KnownInner {
            folder,
            kubelets: watch::Sender::new(kubelets.collect()),
            lists: resources
                .into_iter()
                .map(|resource| (resource, watch::Sender::new(None)))
                .collect(),
            answering: watch::Sender::new(None),
        }))
    }

    /// The kubelet's folder of device plugins.
    pub(super) fn folder(&self) -> &PathBuf {
        &self.0.folder
    }

    pub(super) fn resources(&self) -> impl Iterator<Item = &String> {
        self.0.lists.keys()
    }

    /// The list of a resource, as it changes; none of a resource that is not served.
    pub(super) fn list(&self, resource: &str) -> Option<watch::Receiver<List>> {
        self.0.lists.get(resource).map(watch::Sender::subscribe)
    }

    /// Takes in a process's list.
    pub(super) fn listed(&self, resource: &str, list: ListAndWatchResponse) {
        if let Some(known) = self.0.lists.get(resource) {
            known.send_if_modified(|known| {
                if known.as_ref().is_some_and(|known| **known == list) {
                    return false;
                }
                *known = Some(Arc::new(list));
                true
            });
        }
    }

    /// The kubelet's use of each resource, as it changes.
    pub(super) fn kubelets(&self) -> watch::Receiver<BTreeMap<String, Kubelets>> {
        self.0.kubelets.subscribe()
    }

    /// Notes what the kubelet does with a resource.
    pub(super) fn note(&self, resource: &str, change: impl FnOnce(&mut Kubelets)) {
        self.0.kubelets.send_if_modified(|kubelets| {
            let Some(kubelets) = kubelets.get_mut(resource) else {
                return false;
            };
            let before = *kubelets;
            change(kubelets);
            *kubelets != before
        });
    }

    /// The process that answers, as it changes.
    pub(super) fn answering(&self) -> watch::Receiver<Option<Answering>> {
        self.0.answering.subscribe()
    }

    /// From now on this process answers.
    pub(super) fn answers(&self, process: Answering) {
        self.0.answering.send_replace(Some(process));
    }

    /// The process of this number does not answer any more.
    pub(super) fn is_gone(&self, number: u64) {
        self.0.answering.send_if_modified(|answering| {
            let is_it = answering.as_ref().is_some_and(|it| it.number == number);
            if is_it {
                *answering = None;
            }
            is_it
        });
    }
}
