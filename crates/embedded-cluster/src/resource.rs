//! The resources and their properties: a table of the built-in ones, plus those of custom resource definitions. Holds
//! no objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

/// One resource: `pods`, or one of a custom resource definition.
#[derive(Debug, Clone, PartialEq)]
pub struct Resource {
    /// The API group; empty for the core one.
    pub group: String,
    /// Served versions, the stored one first.
    pub versions: Vec<Version>,
    /// `Pod`.
    pub kind: String,
    /// `PodList`.
    pub list_kind: String,
    /// `pods`.
    pub plural: String,
    /// `pod`.
    pub singular: String,
    /// `po`.
    pub short_names: Vec<String>,
    /// `all`.
    pub categories: Vec<String>,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
    /// Whether it comes from a custom resource definition.
    pub custom: bool,
    /// Whether `metadata.generation` counts changes outside the status.
    pub generation: bool,
    /// The paths that a field selector may use, besides name and namespace.
    pub(crate) fields: Vec<Arc<str>>,
    /// The table that holds its objects. Two groups that show the same objects share one.
    pub(crate) table: Arc<str>,
}

/// One version of a resource.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Version {
    /// `v1`.
    pub name: String,
    /// Whether it has a `status` subresource.
    pub status: bool,
    /// The paths of the values of `scale`, from the custom resource definition.
    pub scale: Option<Value>,
    /// The structural schema of a custom resource.
    pub schema: Option<Value>,
    /// `additionalPrinterColumns` of a custom resource.
    pub columns: Vec<Value>,
}

impl Resource {
    /// `v1`, or `apps/v1`, for the stored version.
    pub fn api_version(&self) -> String {
        self.api_version_of(
            self.versions
                .first()
                .map_or("v1", |version| version.name.as_str()),
        )
    }

    /// `v1`, or `apps/v1`.
    pub fn api_version_of(&self, version: &str) -> String {
        if self.group.is_empty() {
            version.to_owned()
        } else {
            format!("{}/{version}", self.group)
        }
    }

    /// The served version with this name.
    pub fn version(&self, name: &str) -> Option<&Version> {
        self.versions.iter().find(|version| version.name == name)
    }

    /// Whether it is the core resource with this name.
    pub(crate) fn is_core(&self, plural: &str) -> bool {
        self.group.is_empty() && self.plural == plural
    }

    /// The key in its table of the object with this name.
    pub(crate) fn key(&self, namespace: &str, name: &str) -> String {
        if self.namespaced {
            format!("{namespace}/{name}")
        } else {
            name.to_owned()
        }
    }
}

/// All resources, by group and plural.
#[derive(Debug, Clone)]
pub(crate) struct Registry {
    resources: BTreeMap<(String, String), Arc<Resource>>,
}

impl Registry {
    pub(crate) fn built_in() -> Self {
        let mut resources = BTreeMap::new();
        for row in BUILT_IN {
            let resource = row.to_resource();
            resources.insert(
                (resource.group.clone(), resource.plural.clone()),
                Arc::new(resource),
            );
        }
        Self { resources }
    }

    pub(crate) fn get(&self, group: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.resources.get(&(group.to_owned(), plural.to_owned()))
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.values()
    }

    pub(crate) fn insert(&mut self, resource: Resource) {
        self.resources.insert(
            (resource.group.clone(), resource.plural.clone()),
            Arc::new(resource),
        );
    }

    pub(crate) fn remove(&mut self, group: &str, plural: &str) {
        self.resources
            .remove(&(group.to_owned(), plural.to_owned()));
    }
}

struct Row {
    api: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    marks: &'static [Mark],
    fields: &'static [&'static str],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// Its objects have no namespace.
    Cluster,
    /// It has a `status` subresource.
    Status,
    /// It counts generations.
    Generation,
    /// It has a `scale` subresource.
    Scale,
    /// `kubectl get all` shows it.
    All,
}
use Mark::{All, Cluster, Generation, Scale, Status};

impl Row {
    fn to_resource(&self) -> Resource {
        let (group, version) = self.api.split_once('/').unwrap_or(("", self.api));
        let has = |mark| self.marks.contains(&mark);
        let own = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let scale = has(Scale).then(|| {
            serde_json::json!({
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".spec.selector"
            })
        });
        // Both groups show the same events.
        let table = if self.plural == "events" {
            "/events".to_owned()
        } else {
            format!("{group}/{}", self.plural)
        };
        Resource {
            group: group.to_owned(),
            versions: vec![Version {
                name: version.to_owned(),
                status: has(Status),
                scale,
                ..Version::default()
            }],
            kind: self.kind.to_owned(),
            list_kind: format!("{}List", self.kind),
            plural: self.plural.to_owned(),
            singular: self.kind.to_lowercase(),
            short_names: own(self.short),
            categories: if has(All) { own(&["all"]) } else { Vec::new() },
            namespaced: !has(Cluster),
            custom: false,
            generation: has(Generation),
            fields: self.fields.iter().map(|field| Arc::from(*field)).collect(),
            table: table.into(),
        }
    }
}

const POD_FIELDS: &[&str] = &[
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
];
const EVENT_FIELDS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
];

macro_rules! rows {
    ($($api:literal $kind:literal $plural:literal $short:tt $marks:tt $fields:expr;)*) => {
        &[$(Row { api: $api, kind: $kind, plural: $plural, short: &$short, marks: &$marks, fields: &$fields }),*]
    };
}

const BUILT_IN: &[Row] = rows! {
    "v1" "ConfigMap" "configmaps" ["cm"] [] [];
    "v1" "Endpoints" "endpoints" ["ep"] [] [];
    "v1" "Event" "events" ["ev"] [] *EVENT_FIELDS;
    "v1" "LimitRange" "limitranges" ["limits"] [] [];
    "v1" "Namespace" "namespaces" ["ns"] [Cluster, Status] ["status.phase"];
    "v1" "Node" "nodes" ["no"] [Cluster, Status] ["spec.unschedulable"];
    "v1" "PersistentVolume" "persistentvolumes" ["pv"] [Cluster, Status] [];
    "v1" "PersistentVolumeClaim" "persistentvolumeclaims" ["pvc"] [Status] [];
    "v1" "Pod" "pods" ["po"] [Status, Generation, All] *POD_FIELDS;
    "v1" "PodTemplate" "podtemplates" [] [Generation] [];
    "v1" "ReplicationController" "replicationcontrollers" ["rc"] [Status, Generation, Scale, All] ["status.replicas"];
    "v1" "ResourceQuota" "resourcequotas" ["quota"] [Status] [];
    "v1" "Secret" "secrets" [] [] ["type"];
    "v1" "Service" "services" ["svc"] [Status, All] ["spec.clusterIP", "spec.type"];
    "v1" "ServiceAccount" "serviceaccounts" ["sa"] [] [];
    "admissionregistration.k8s.io/v1" "MutatingWebhookConfiguration" "mutatingwebhookconfigurations" [] [Cluster, Generation] [];
    "admissionregistration.k8s.io/v1" "ValidatingWebhookConfiguration" "validatingwebhookconfigurations" [] [Cluster, Generation] [];
    "apiextensions.k8s.io/v1" "CustomResourceDefinition" "customresourcedefinitions" ["crd", "crds"] [Cluster, Status, Generation] [];
    "apps/v1" "ControllerRevision" "controllerrevisions" [] [] [];
    "apps/v1" "DaemonSet" "daemonsets" ["ds"] [Status, Generation, All] [];
    "apps/v1" "Deployment" "deployments" ["deploy"] [Status, Generation, Scale, All] [];
    "apps/v1" "ReplicaSet" "replicasets" ["rs"] [Status, Generation, Scale, All] ["status.replicas"];
    "apps/v1" "StatefulSet" "statefulsets" ["sts"] [Status, Generation, Scale, All] [];
    "batch/v1" "CronJob" "cronjobs" ["cj"] [Status, Generation, All] [];
    "batch/v1" "Job" "jobs" [] [Status, Generation, All] ["status.successful"];
    "coordination.k8s.io/v1" "Lease" "leases" [] [] [];
    "discovery.k8s.io/v1" "EndpointSlice" "endpointslices" [] [Generation] [];
    "events.k8s.io/v1" "Event" "events" ["ev"] [] *EVENT_FIELDS;
    "networking.k8s.io/v1" "Ingress" "ingresses" ["ing"] [Status, Generation] [];
    "networking.k8s.io/v1" "NetworkPolicy" "networkpolicies" ["netpol"] [Generation] [];
    "node.k8s.io/v1" "RuntimeClass" "runtimeclasses" [] [Cluster] [];
    "policy/v1" "PodDisruptionBudget" "poddisruptionbudgets" ["pdb"] [Status, Generation] [];
    "rbac.authorization.k8s.io/v1" "ClusterRole" "clusterroles" [] [Cluster] [];
    "rbac.authorization.k8s.io/v1" "ClusterRoleBinding" "clusterrolebindings" [] [Cluster] [];
    "rbac.authorization.k8s.io/v1" "Role" "roles" [] [] [];
    "rbac.authorization.k8s.io/v1" "RoleBinding" "rolebindings" [] [] [];
    "scheduling.k8s.io/v1" "PriorityClass" "priorityclasses" ["pc"] [Cluster, Generation] [];
    "storage.k8s.io/v1" "CSIDriver" "csidrivers" [] [Cluster] [];
    "storage.k8s.io/v1" "CSINode" "csinodes" [] [Cluster] [];
    "storage.k8s.io/v1" "CSIStorageCapacity" "csistoragecapacities" [] [] [];
    "storage.k8s.io/v1" "StorageClass" "storageclasses" ["sc"] [Cluster] [];
    "storage.k8s.io/v1" "VolumeAttachment" "volumeattachments" [] [Cluster, Status] [];
};
