//! The cluster's shared devices, for the two plugins that use `placement`. It computes fits, and `kube-api` reads the
//! annotations.

use std::sync::Arc;

use kube_api::request::Defaults;
use kube_api::vendor::Vendors;
use kube_api::{allocation, node, object, request};
use placement::{Cluster, Placement, Request};
use serde::Deserialize as _;
use serde_json::Value;

use crate::model::{DevicesError, Node, Pod};

/// The nodes' shared devices and the pods' shares of them. Without a table of vendors nothing is read.
#[derive(Debug, Clone, Default)]
pub struct Devices {
    vendors: Option<Arc<Vendors>>,
    defaults: Defaults,
    cluster: Cluster,
}

impl Devices {
    /// No devices yet. `vendors` reads the annotations; `defaults` apply to pods that name no policy.
    pub fn new(vendors: Arc<Vendors>, defaults: Defaults) -> Self {
        Self {
            vendors: Some(vendors),
            defaults,
            cluster: Cluster::new(),
        }
    }

    /// `placement`'s view of the cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The resources with which pods ask for shared devices.
    pub(crate) fn resources(&self) -> impl Iterator<Item = &str> {
        let vendors = self.vendors.as_deref().into_iter();
        vendors.flat_map(|vendors| {
            let ours = vendors.resources().map(|(name, _, _)| name);
            ours.chain(kube_api::hcs_request::names(vendors))
        })
    }

    /// The devices that a node reports; `None` if it reports none. A report that cannot be read counts as absent, as
    /// in the scheduler's ledger.
    pub(crate) fn read_node(&self, object: &Value) -> Option<Arc<placement::Node>> {
        let vendors = self.vendors.as_deref()?;
        let node = object::Node::deserialize(object).ok()?;
        let report = node::report(&node, vendors);
        (!report.node.devices.is_empty()).then(|| Arc::new(report.node))
    }

    /// A pod's request, or why it cannot be read; `None` if the pod asks for no device.
    pub(crate) fn read_pod(&self, object: &Value) -> Option<Arc<Result<Request, DevicesError>>> {
        let vendors = self.vendors.as_deref()?;
        let read =
            pod_of(object).and_then(|pod| Ok(request::request(&pod, vendors, &self.defaults)?));
        match read {
            Ok(request) if !request.asks_for_devices() => None,
            read => Some(Arc::new(read)),
        }
    }

    /// The devices in the annotations of a pod with a node; `None` if it holds none.
    ///
    /// # Errors
    ///
    /// The part of the annotations that cannot be read.
    pub fn held(&self, object: &Value) -> Result<Option<Placement>, DevicesError> {
        let Some(vendors) = self.vendors.as_deref() else {
            return Ok(None);
        };
        Ok(allocation::read(&pod_of(object)?, vendors)?)
    }

    pub(crate) fn set_node(&mut self, node: &Node) {
        match &node.devices {
            Some(devices) => {
                let mut devices = placement::Node::clone(devices);
                node.name.as_ref().clone_into(&mut devices.name);
                // A node that `placement` refuses (it names a device twice) has no devices.
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

    /// Gives the pod this placement, in place of its earlier one.
    pub fn reserve(&mut self, pod: &Pod, placement: Placement) {
        self.cluster.reserve(holder(pod), placement);
    }

    /// Takes everything from the pod. Returns whether it held anything.
    pub fn release(&mut self, pod: &Pod) -> bool {
        self.cluster.release(&pod.uid).is_some()
    }
}

fn pod_of(object: &Value) -> Result<object::Pod, DevicesError> {
    object::Pod::deserialize(object).map_err(|error| DevicesError::Malformed(error.to_string()))
}

/// The pod in the form of the placement engine.
pub(crate) fn holder(pod: &Pod) -> placement::Pod {
    let (namespace, name) = pod.key.split_once('/').unwrap_or(("", &pod.key));
    placement::Pod {
        uid: pod.uid.to_string(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        ..placement::Pod::default()
    }
}
