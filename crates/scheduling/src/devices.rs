//! Shared devices of the cluster, for the two plugins that ask the placement engine. Never computes a fit itself, and
//! knows no annotation: `kube-api` reads them.

use std::sync::Arc;

use kube_api::request::Defaults;
use kube_api::vendor::Vendors;
use kube_api::{allocation, node, object, request};
use placement::{Cluster, Placement, Request};
use serde::Deserialize as _;
use serde_json::Value;

use crate::model::{Node, Pod};

/// What nodes have of shared devices and what pods hold of them. Without a table of vendors nothing is read.
#[derive(Debug, Clone, Default)]
pub struct Devices {
    vendors: Option<Arc<Vendors>>,
    defaults: Defaults,
    cluster: Cluster,
}

impl Devices {
    /// No device yet; annotations are read by this table, and `defaults` hold where a pod says nothing.
    pub fn new(vendors: Arc<Vendors>, defaults: Defaults) -> Self {
        Self {
            vendors: Some(vendors),
            defaults,
            cluster: Cluster::new(),
        }
    }

    /// The engine's view of the cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Resources by which pods ask for shared devices.
    pub(crate) fn resources(&self) -> impl Iterator<Item = &str> {
        let vendors = self.vendors.as_deref().into_iter();
        vendors.flat_map(|vendors| {
            let ours = vendors.resources().map(|(name, _, _)| name);
            ours.chain(kube_api::hcs_request::names(vendors))
        })
    }

    /// The devices that a node reports; none where it reports none. What cannot be read counts as absent, as in the
    /// scheduler's ledger.
    pub(crate) fn read_node(&self, object: &Value) -> Option<Arc<placement::Node>> {
        let vendors = self.vendors.as_deref()?;
        let node = object::Node::deserialize(object).ok()?;
        let report = node::report(&node, vendors);
        (!report.node.devices.is_empty()).then(|| Arc::new(report.node))
    }

    /// What a pod asks for, or why that cannot be read; none where it asks for no device.
    pub(crate) fn read_pod(&self, object: &Value) -> Option<Arc<Result<Request, String>>> {
        let vendors = self.vendors.as_deref()?;
        let pod = match object::Pod::deserialize(object) {
            Ok(pod) => pod,
            Err(error) => return Some(Arc::new(Err(error.to_string()))),
        };
        match request::request(&pod, vendors, &self.defaults) {
            Ok(request) => request.asks_for_devices().then(|| Arc::new(Ok(request))),
            Err(error) => Some(Arc::new(Err(error.to_string()))),
        }
    }

    /// What a pod that has a node holds there by its annotations; none where it holds nothing.
    ///
    /// # Errors
    ///
    /// What of the annotations cannot be read.
    pub fn held(&self, object: &Value) -> Result<Option<Placement>, String> {
        let Some(vendors) = self.vendors.as_deref() else {
            return Ok(None);
        };
        let pod = object::Pod::deserialize(object).map_err(|error| error.to_string())?;
        allocation::read(&pod, vendors).map_err(|error| error.to_string())
    }

    pub(crate) fn set_node(&mut self, node: &Node) {
        match &node.devices {
            Some(devices) => {
                let mut devices = placement::Node::clone(devices);
                node.name.as_ref().clone_into(&mut devices.name);
                // A node that the engine refuses (a device twice) has no devices.
                if self.cluster.set_node(devices).is_err() {
                    self.cluster.remove_node(&node.name);
                }
            }
            None => {
                self.cluster.remove_node(&node.name);
            }
        }
    }

    pub(crate) fn remove_node(&mut self, name: &str) {
        self.cluster.remove_node(name);
    }

    /// Lets the pod hold this placement, in place of what it held before.
    pub fn reserve(&mut self, pod: &Pod, placement: Placement) {
        self.cluster.reserve(holder(pod), placement);
    }

    /// Takes from the pod all that it holds. Returns whether it held anything.
    pub fn release(&mut self, pod: &Pod) -> bool {
        self.cluster.release(&pod.uid).is_some()
    }
}

/// The pod as the engine knows one that holds something.
pub(crate) fn holder(pod: &Pod) -> placement::Pod {
    let (namespace, name) = pod.key.split_once('/').unwrap_or(("", &pod.key));
    placement::Pod {
        uid: pod.uid.to_string(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}
