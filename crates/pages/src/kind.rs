//! The seven kinds of objects that the simulator keeps: their names, and templates for new objects.

/// A kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `v1` Node.
    Nodes,
    /// `v1` Pod.
    Pods,
    /// `v1` PersistentVolume.
    PersistentVolumes,
    /// `v1` PersistentVolumeClaim.
    PersistentVolumeClaims,
    /// `storage.k8s.io/v1` StorageClass.
    StorageClasses,
    /// `scheduling.k8s.io/v1` PriorityClass.
    PriorityClasses,
    /// `v1` Namespace.
    Namespaces,
}

impl Kind {
    /// All kinds, in the order in which the pages list them.
    pub const ALL: [Self; 7] = [
        Self::Nodes,
        Self::Pods,
        Self::PersistentVolumes,
        Self::PersistentVolumeClaims,
        Self::StorageClasses,
        Self::PriorityClasses,
        Self::Namespaces,
    ];

    /// Their plural names, in the same order.
    pub(crate) const PLURALS: [&'static str; 7] = [
        Self::Nodes.plural(),
        Self::Pods.plural(),
        Self::PersistentVolumes.plural(),
        Self::PersistentVolumeClaims.plural(),
        Self::StorageClasses.plural(),
        Self::PriorityClasses.plural(),
        Self::Namespaces.plural(),
    ];

    /// The kind with this plural name, as it appears in an address or in an event of the watch stream.
    pub fn of_plural(plural: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.plural() == plural)
    }

    /// The resource's name, such as `persistentvolumes`.
    pub const fn plural(self) -> &'static str {
        match self {
            Self::Nodes => "nodes",
            Self::Pods => "pods",
            Self::PersistentVolumes => "persistentvolumes",
            Self::PersistentVolumeClaims => "persistentvolumeclaims",
            Self::StorageClasses => "storageclasses",
            Self::PriorityClasses => "priorityclasses",
            Self::Namespaces => "namespaces",
        }
    }

    /// The API group; empty for the core one.
    pub fn group(self) -> &'static str {
        match self {
            Self::StorageClasses => "storage.k8s.io",
            Self::PriorityClasses => "scheduling.k8s.io",
            _ => "",
        }
    }

    /// The value of `kind` in an object, such as `PersistentVolume`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nodes => "Node",
            Self::Pods => "Pod",
            Self::PersistentVolumes => "PersistentVolume",
            Self::PersistentVolumeClaims => "PersistentVolumeClaim",
            Self::StorageClasses => "StorageClass",
            Self::PriorityClasses => "PriorityClass",
            Self::Namespaces => "Namespace",
        }
    }

    /// The value of `apiVersion` in an object.
    pub fn api_version(self) -> &'static str {
        match self {
            Self::StorageClasses => "storage.k8s.io/v1",
            Self::PriorityClasses => "scheduling.k8s.io/v1",
            _ => "v1",
        }
    }

    /// The name that the pages show, for one object.
    pub fn singular(self) -> &'static str {
        match self {
            Self::Nodes => "node",
            Self::Pods => "pod",
            Self::PersistentVolumes => "persistent volume",
            Self::PersistentVolumeClaims => "volume claim",
            Self::StorageClasses => "storage class",
            Self::PriorityClasses => "priority class",
            Self::Namespaces => "namespace",
        }
    }

    /// The name that the pages show, for several objects; with a capital letter.
    pub fn title(self) -> &'static str {
        match self {
            Self::Nodes => "Nodes",
            Self::Pods => "Pods",
            Self::PersistentVolumes => "Persistent volumes",
            Self::PersistentVolumeClaims => "Volume claims",
            Self::StorageClasses => "Storage classes",
            Self::PriorityClasses => "Priority classes",
            Self::Namespaces => "Namespaces",
        }
    }

    /// Whether its objects are in a namespace.
    pub fn is_namespaced(self) -> bool {
        matches!(self, Self::Pods | Self::PersistentVolumeClaims)
    }

    /// The templates of new objects. The first is used unless the page is asked for another one.
    pub fn templates(self) -> &'static [Template] {
        match self {
            Self::Nodes => NODES,
            Self::Pods => PODS,
            Self::PersistentVolumes => VOLUMES,
            Self::PersistentVolumeClaims => CLAIMS,
            Self::StorageClasses => STORAGE_CLASSES,
            Self::PriorityClasses => PRIORITY_CLASSES,
            Self::Namespaces => NAMESPACES,
        }
    }
}

/// The initial text of a new object.
#[derive(Debug, Clone, Copy)]
pub struct Template {
    /// Its name in an address.
    pub id: &'static str,
    /// The purpose of the template, in the words that the page shows.
    pub title: &'static str,
    /// YAML, with `generateName`.
    pub text: &'static str,
}

const NODES: &[Template] = &[
    Template {
        id: "plain",
        title: "Node without GPUs",
        text: "apiVersion: v1
kind: Node
metadata:
  generateName: node-
  labels:
    topology.kubernetes.io/zone: zone-a
spec: {}
status:
  capacity:
    cpu: \"4\"
    memory: 32Gi
    pods: \"110\"
  allocatable:
    cpu: \"4\"
    memory: 32Gi
    pods: \"110\"
  conditions:
    - type: Ready
      status: \"True\"
",
    },
    Template {
        id: "gpu",
        title: "Node with two GPUs that pods can share",
        text: "apiVersion: v1
kind: Node
metadata:
  generateName: gpu-node-
  annotations:
    # One entry for each GPU. devmem is its memory in MiB, devcore its compute in percent,
    # count how many containers may share it. An id must be unique on the node.
    hami.io/node-nvidia-register: |-
      [
        {\"id\":\"GPU-0\",\"index\":0,\"count\":10,\"devmem\":81920,\"devcore\":100,\"type\":\"NVIDIA A100-SXM4-80GB\",\"health\":true,\"mode\":\"hami-core\"},
        {\"id\":\"GPU-1\",\"index\":1,\"count\":10,\"devmem\":81920,\"devcore\":100,\"type\":\"NVIDIA A100-SXM4-80GB\",\"health\":true,\"mode\":\"hami-core\"}
      ]
spec: {}
status:
  # nvidia.com/gpu counts shares: count × number of GPUs.
  capacity:
    cpu: \"64\"
    memory: 512Gi
    pods: \"110\"
    nvidia.com/gpu: \"20\"
  allocatable:
    cpu: \"64\"
    memory: 512Gi
    pods: \"110\"
    nvidia.com/gpu: \"20\"
  conditions:
    - type: Ready
      status: \"True\"
",
    },
];

const PODS: &[Template] = &[
    Template {
        id: "plain",
        title: "Pod without GPUs",
        text: "apiVersion: v1
kind: Pod
metadata:
  generateName: pod-
  namespace: default
spec:
  containers:
    - name: main
      image: registry.k8s.io/pause:3.10
      resources:
        requests:
          cpu: 500m
          memory: 1Gi
",
    },
    Template {
        id: "gpu",
        title: "Pod with a share of a GPU",
        text: "apiVersion: v1
kind: Pod
metadata:
  generateName: gpu-pod-
  namespace: default
spec:
  containers:
    - name: main
      image: registry.k8s.io/pause:3.10
      resources:
        limits:
          cpu: \"2\"
          memory: 8Gi
          nvidia.com/gpu: \"1\"         # GPUs
          nvidia.com/gpumem: \"20000\"  # memory on each, in MiB
          nvidia.com/gpucores: \"30\"   # compute on each, in percent
",
    },
];

const VOLUMES: &[Template] = &[Template {
    id: "plain",
    title: "Persistent volume",
    text: "apiVersion: v1
kind: PersistentVolume
metadata:
  generateName: pv-
spec:
  capacity:
    storage: 10Gi
  accessModes:
    - ReadWriteOnce
  persistentVolumeReclaimPolicy: Delete
  hostPath:
    path: /tmp/data
",
}];

const CLAIMS: &[Template] = &[Template {
    id: "plain",
    title: "Volume claim",
    text: "apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  generateName: pvc-
  namespace: default
spec:
  accessModes:
    - ReadWriteOnce
  resources:
    requests:
      storage: 10Gi
",
}];

const STORAGE_CLASSES: &[Template] = &[Template {
    id: "plain",
    title: "Storage class",
    text: "apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  generateName: storageclass-
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
",
}];

const PRIORITY_CLASSES: &[Template] = &[Template {
    id: "plain",
    title: "Priority class",
    text: "apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata:
  generateName: priority-
value: 1000
globalDefault: false
preemptionPolicy: PreemptLowerPriority
",
}];

const NAMESPACES: &[Template] = &[Template {
    id: "plain",
    title: "Namespace",
    text: "apiVersion: v1
kind: Namespace
metadata:
  generateName: namespace-
",
}];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yaml;

    #[test]
    fn every_template_is_an_object_of_its_kind_with_generate_name() {
        for kind in Kind::ALL {
            assert!(!kind.templates().is_empty(), "{}", kind.name());
            for template in kind.templates() {
                let object = yaml::read(template.text).unwrap();

                assert_eq!(object["kind"], kind.name(), "{}", template.title);
                assert_eq!(object["apiVersion"], kind.api_version());
                assert!(object["metadata"]["generateName"].is_string());
                assert_eq!(
                    object["metadata"]["namespace"].is_string(),
                    kind.is_namespaced()
                );
            }
        }
    }

    #[test]
    fn a_plural_name_finds_its_kind() {
        for kind in Kind::ALL {
            assert_eq!(Kind::of_plural(kind.plural()), Some(kind));
        }
        assert_eq!(Kind::of_plural("secrets"), None);
    }
}
