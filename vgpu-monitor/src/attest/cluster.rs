//! Attestation's calls to the API server: finding the pod of a uid, and evicting a pod. A task of its own; no other
//! part of the agent waits for it or breaks without it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, EvictParams, ListParams, PostParams, Preconditions};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::{sleep, timeout};

/// Pods by uid: namespace and name.
pub type Pods = HashMap<String, (String, String)>;

/// A pod that is to be evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evict {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub pod: String,
    /// Its uid: another pod of that name stays.
    pub uid: String,
    /// Whether the API server only checks whether it would evict.
    pub dry_run: bool,
}

/// The other end of the task.
#[derive(Debug, Clone, Default)]
pub struct Cluster(Option<Arc<Link>>);

#[derive(Debug)]
struct Link {
    pods: Mutex<Arc<Pods>>,
    wanted: Notify,
    evictions: mpsc::Sender<Evict>,
}

/// At most this many evictions wait.
const WAITING: usize = 16;
/// Pods are asked for at most this often.
const EVERY: Duration = Duration::from_secs(20);
/// How long one call may take.
const CALL: Duration = Duration::from_secs(10);

impl Cluster {
    /// No API server to ask.
    #[must_use]
    pub fn none() -> Self {
        Self(None)
    }

    /// Starts the tasks; needs a running tokio. They end when the last end is gone.
    #[must_use]
    pub fn start(client: kube::Client, node: &str) -> Self {
        let (evictions, asked) = mpsc::channel(WAITING);
        let link = Arc::new(Link {
            pods: Mutex::default(),
            wanted: Notify::new(),
            evictions,
        });
        tokio::spawn(name(client.clone(), node.to_owned(), Arc::downgrade(&link)));
        tokio::spawn(evict(client, asked));
        Self(Some(link))
    }

    /// The pods of the node as of the last time that a caller wanted a pod that was not in the list.
    #[must_use]
    pub fn pods(&self) -> Arc<Pods> {
        self.0
            .as_ref()
            .map(|link| Arc::clone(&link.pods.lock()))
            .unwrap_or_default()
    }

    /// A uid is not among them.
    pub fn want(&self) {
        if let Some(link) = &self.0 {
            link.wanted.notify_one();
        }
    }

    /// Whether an API server can name pods.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.0.is_some()
    }

    /// Asks for an eviction; false if it cannot be requested now.
    #[must_use]
    pub fn evict(&self, evict: Evict) -> bool {
        let link = self.0.as_ref();
        link.is_some_and(|link| link.evictions.try_send(evict).is_ok())
    }
}

async fn name(client: kube::Client, node: String, link: std::sync::Weak<Link>) {
    let pods: Api<Pod> = Api::all(client);
    let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    while let Some(strong) = link.upgrade() {
        // The wait holds the link no longer than a moment, so that it ends with its last owner.
        let wanted = timeout(Duration::from_secs(5), strong.wanted.notified()).await;
        if wanted.is_err() {
            continue;
        }
        match timeout(CALL, pods.list_metadata(&of_node)).await {
            Ok(Ok(list)) => {
                let named = list.items.into_iter().filter_map(|pod| {
                    let meta = pod.metadata;
                    Some((meta.uid?, (meta.namespace?, meta.name?)))
                });
                *strong.pods.lock() = Arc::new(named.collect());
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "pods that hold GPUs have no names: cannot list this node's pods")
            }
            Err(_) => {
                tracing::warn!("pods that hold GPUs have no names: the API server does not answer")
            }
        }
        drop(strong);
        sleep(EVERY).await;
    }
}

async fn evict(client: kube::Client, mut asked: mpsc::Receiver<Evict>) {
    while let Some(evict) = asked.recv().await {
        let pods: Api<Pod> = Api::namespaced(client.clone(), &evict.namespace);
        let parameters = EvictParams {
            delete_options: Some(DeleteParams {
                preconditions: Some(Preconditions {
                    uid: Some(evict.uid.clone()),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            }),
            post_options: PostParams {
                dry_run: evict.dry_run,
                ..PostParams::default()
            },
        };
        let Evict {
            namespace,
            pod,
            dry_run,
            ..
        } = &evict;
        match timeout(CALL, pods.evict(pod, &parameters)).await {
            Ok(Ok(_)) => {
                tracing::warn!(%namespace, %pod, dry_run, "evicted: it holds a GPU past its limits")
            }
            Ok(Err(error)) => tracing::warn!(%namespace, %pod, dry_run, %error, "not evicted"),
            Err(_) => {
                tracing::warn!(%namespace, %pod, dry_run, "not evicted: the API server does not answer")
            }
        }
    }
}
