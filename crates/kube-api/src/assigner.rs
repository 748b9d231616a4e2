//! The wire formats of the device assigner: labels and annotations of `fudo.org`, the Lease of a GPU, the body of
//! `POST /finalize`. Does not decide which pod gets a GPU.

mod lease;
mod tags;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::fields::list;
use crate::object::Pod;

pub use lease::{
    ACTIVE_LASTS, BINDING_LASTS, Claim, ClaimError, PROPOSAL_LASTS, State, lease_name,
};
pub use tags::{DeviceLabels, LabelProblem, device_labels, tag};

/// On a node: base64 of a JSON object from GPU UUID to the list of the GPU's labels.
pub const DEVICE_LABELS: &str = "fudo.org/gpu.device.labels";
/// Label of a pod that asks for any GPU.
pub const ASSIGN: &str = "fudo.org/gpu.assign";
/// On a pod: its GPUs, separated by commas. On a Lease, as a label: its GPU.
pub const GPU_UUID: &str = "fudo.org/gpu.uuid";
/// On a pod: the node of its GPUs.
pub const GPU_NODE: &str = "fudo.org/gpu.node";
/// On a pod and on a Lease: the reservation.
pub const RESERVATION_ID: &str = "fudo.org/gpu.reservation-id";
/// On a pod: its GPUs as names of CDI devices, separated by commas.
pub const CDI_ASSIGNMENT: &str = "cdi.k8s.io/gpu-assignment";
/// Label of a Lease: `proposal`, `active` or `binding`.
pub const RESERVATION_STATE: &str = "fudo.org/gpu.reservation-state";
/// Label of a Lease: namespace of the pod.
pub const POD_NAMESPACE: &str = "fudo.org/pod.namespace";
/// On a Lease: name of the pod, once it is known.
pub const POD_NAME: &str = "fudo.org/pod.name";

/// Vendor of devices that only [`DEVICE_LABELS`] names: no request for shares of devices matches it.
pub const LABELLED: &str = "fudo.org";

/// The prefix of every name of a CDI device of an NVIDIA GPU.
const CDI_PREFIX: &str = "nvidia.com/gpu=UUID=";

/// Whether a label's key asks for a GPU: its namespace is `fudo.org`, and the first part of its name is `gpu`.
pub fn is_request(key: &str) -> bool {
    key.strip_prefix("fudo.org/")
        .is_some_and(|name| name == "gpu" || name.starts_with("gpu."))
}

/// The labels that a GPU must have for this pod; `None` if the pod asks for no GPU by label. Only keys count: a label
/// with the value `false` counts too. [`ASSIGN`] alone asks for any GPU, and is never part of the answer.
pub fn wanted(pod: &Pod) -> Option<BTreeSet<String>> {
    let labels = pod.metadata.labels.as_ref()?;
    let mut keys = labels.keys().filter(|key| is_request(key)).peekable();
    keys.peek()?;
    Some(keys.filter(|key| *key != ASSIGN).cloned().collect())
}

/// The value of [`CDI_ASSIGNMENT`] for these GPUs.
pub fn cdi_assignment<'a>(gpus: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<String> = gpus
        .into_iter()
        .map(|gpu| format!("{CDI_PREFIX}{gpu}"))
        .collect();
    names.join(",")
}

/// Whether a value of [`CDI_ASSIGNMENT`] names GPUs in this form and nothing else. No container runtime gives a device by
/// it: because of the second equals sign, "UUID=…" is not the name of a CDI device.
pub fn is_cdi_assignment(value: &str) -> bool {
    let is_uuid = |uuid: &str| {
        let of_uuid = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        !uuid.is_empty() && uuid.bytes().all(of_uuid)
    };
    value
        .split(',')
        .all(|name| name.strip_prefix(CDI_PREFIX).is_some_and(is_uuid))
}

/// The GPUs of a comma-separated list, each once, in order.
pub fn gpus(text: &str) -> Vec<String> {
    let mut gpus: Vec<String> = Vec::new();
    for gpu in list(text) {
        if !gpus.iter().any(|known| known == gpu) {
            gpus.push(gpu.to_owned());
        }
    }
    gpus
}

/// A pod's reservation, by its labels and annotations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodGpuClaim {
    /// Its UID.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The reservation that it carries.
    pub reservation: String,
    /// The GPUs that it carries.
    pub gpus: Vec<String>,
}

/// The pod's reservation, by its labels and annotations; `None` if it has none.
pub fn pod_claim(pod: &Pod) -> Option<PodGpuClaim> {
    let text = |key: &str| {
        let text = pod.metadata.annotations.as_ref()?.get(key)?.trim();
        (!text.is_empty()).then_some(text)
    };
    let reservation = text(RESERVATION_ID)?.to_owned();
    let identity = crate::fields::identity(pod);
    Some(PodGpuClaim {
        reservation,
        gpus: gpus(text(GPU_UUID).unwrap_or_default()),
        uid: identity.uid,
        namespace: identity.namespace,
        name: identity.name,
    })
}

/// The body of `POST /finalize`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finalize {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
    /// The reservation in the pod's annotation.
    pub reservation: String,
    /// The GPUs in the pod's annotation; at least one.
    pub gpus: Vec<String>,
}

/// Fields of the body of `POST /finalize` that are missing, empty or not text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("missing required fields: {}", .0.join(", "))]
pub struct MissingFields(pub Vec<&'static str>);

impl Finalize {
    /// Reads the documented body.
    ///
    /// # Errors
    ///
    /// The fields that are missing, in the order in which they are documented.
    pub fn read(body: &Value) -> Result<Self, MissingFields> {
        let mut missing = Vec::new();
        let mut text = |field: &'static str| {
            let text = body.get(field).and_then(Value::as_str);
            let text = text.map(str::trim).unwrap_or_default();
            if text.is_empty() {
                missing.push(field);
            }
            text.to_owned()
        };
        let (namespace, name, uid) = (text("namespace"), text("name"), text("uid"));
        let (reservation, gpu) = (text("reservation-id"), text("gpu-uuid"));
        let gpus = gpus(&gpu);
        if gpus.is_empty() && !missing.contains(&"gpu-uuid") {
            missing.push("gpu-uuid");
        }
        if missing.is_empty() {
            Ok(Self {
                namespace,
                name,
                uid,
                reservation,
                gpus,
            })
        } else {
            Err(MissingFields(missing))
        }
    }

    /// Reads the pod of an `AdmissionReview`.
    ///
    /// # Errors
    ///
    /// A part of the reservation is missing, or the pod uses a GPU other than its assigned one.
    pub fn of_pod(pod: &Pod) -> Result<Self, NotUsing> {
        let annotations = pod.metadata.annotations.as_ref();
        let annotation = |key: &str| {
            let text = annotations.and_then(|annotations| annotations.get(key));
            text.map(|text| text.trim()).unwrap_or_default()
        };
        let metadata = &pod.metadata;
        let text = |text: &Option<String>| text.as_deref().unwrap_or_default().to_owned();
        let found = Self {
            namespace: text(&metadata.namespace),
            name: text(&metadata.name),
            uid: text(&metadata.uid),
            reservation: annotation(RESERVATION_ID).to_owned(),
            gpus: gpus(annotation(GPU_UUID)),
        };
        let lacks = [
            ("namespace", found.namespace.is_empty()),
            ("name", found.name.is_empty()),
            ("uid", found.uid.is_empty()),
            ("reservation-id", found.reservation.is_empty()),
            ("gpu-uuid", found.gpus.is_empty()),
        ];
        let missing: Vec<&'static str> = lacks
            .into_iter()
            .filter_map(|(field, is_missing)| is_missing.then_some(field))
            .collect();
        if !missing.is_empty() {
            return Err(NotUsing::Missing(MissingFields(missing)));
        }
        let used = annotation(CDI_ASSIGNMENT);
        if used != cdi_assignment(found.gpus.iter().map(String::as_str)) {
            return Err(NotUsing::Another {
                gpu: found.gpus.join(","),
                used: crate::quantity::shortened(used),
            });
        }
        Ok(found)
    }
}

/// Why the pod of an `AdmissionReview` cannot finalize its reservation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotUsing {
    /// The pod's reservation is incomplete.
    #[error(transparent)]
    Missing(#[from] MissingFields),
    /// [`CDI_ASSIGNMENT`] names another device than [`GPU_UUID`].
    #[error("pod is not using assigned GPU {gpu} (annotation value: {used})")]
    Another {
        /// The GPU assigned to the pod.
        gpu: String,
        /// The device that it uses.
        used: String,
    },
}

/// The number of GPUs of `resource` that the pod requests in total: containers and init containers, requests before
/// limits. At least 1. Amounts that are not whole numbers count as 0 here, and are refused when the pod is admitted.
pub fn count(pod: &Pod, resource: &str) -> u32 {
    let containers = pod.spec.containers.iter().chain(&pod.spec.init_containers);
    let sum = containers.fold(0_u32, |sum, container| {
        let needs = &container.resources;
        let quantity = needs
            .requests
            .get(resource)
            .or_else(|| needs.limits.get(resource));
        let amount = quantity
            .and_then(|quantity| quantity.parse().ok())
            .and_then(|amount| amount.whole())
            .and_then(|whole| u32::try_from(whole).ok());
        sum.saturating_add(amount.unwrap_or_default())
    });
    sum.max(1)
}

/// The labels of devices by UUID, as `GET /devices` prints them.
pub type Labels = BTreeMap<String, BTreeSet<String>>;
