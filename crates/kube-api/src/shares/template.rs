//! Templates of claims that stand for the GPU resources of a container. The webhook names a template in a pod, the
//! scheduler makes it, and both compute its name from the same [`Shape`]: a name always says what the template contains.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use placement::{Ask, Compute, Memory};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::Digest as _;

use super::parameters::{API_VERSION, KIND, PRIORITY_MOST, PolicyWord};
use super::{CLASS, DRIVER, UUID};
use crate::config::{CorePolicy, Nvidia};
use crate::fields;
use crate::object::{Container, Pod};
use crate::quantity::{MIB, Quantity, shortened};
use crate::vendor::{Rejection, Role, Row};

/// The beginning of the names of templates that the scheduler makes.
pub const PREFIX: &str = "vgpu-share-";
/// On a pod: the shape of each template of ours that the pod names, as a JSON object.
pub const SHAPES: &str = "vgpu.io/shares";
/// On a template: which program made it; label.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "vgpu-scheduler");

/// The only request of a template.
const REQUEST: &str = "gpu";
/// An allocation has at most this many devices.
const MOST_DEVICES: u32 = 32;
/// The longest selector that an API server accepts.
const MOST_SELECTOR_BYTES: usize = 10 * 1024;

/// Whether templates of this name are made by the scheduler.
#[must_use]
pub fn is_ours(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// What one container asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Shape {
    /// Number of GPUs.
    pub count: u32,
    /// Memory on each; all of it if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// Percent of each GPU's compute time; 0 is no cap.
    pub cores: u32,
    /// The priority; 0 is the highest.
    #[serde(skip_serializing_if = "is_default")]
    pub priority: u32,
    /// When the cap on compute time holds.
    #[serde(skip_serializing_if = "is_default")]
    pub policy: PolicyWord,
    /// All GPUs on one NUMA node.
    #[serde(skip_serializing_if = "is_default")]
    pub one_numa_node: bool,
    /// A GPU fits only if its model contains one of these texts; upper and lower case are the same.
    #[serde(skip_serializing_if = "is_default")]
    pub use_types: Vec<String>,
    /// A GPU does not fit if its model contains one of these texts.
    #[serde(skip_serializing_if = "is_default")]
    pub nouse_types: Vec<String>,
    /// Only these GPUs.
    #[serde(skip_serializing_if = "is_default")]
    pub use_ids: Vec<String>,
    /// None of these GPUs.
    #[serde(skip_serializing_if = "is_default")]
    pub nouse_ids: Vec<String>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Why a pod's own description of its templates is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShapesError {
    /// The annotation is no description.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    /// A template is named and not described.
    #[error("has no shape of the template {0:?} that spec.resourceClaims names")]
    Missing(String),
    /// A template's name belongs to another shape.
    #[error(
        "has a shape for the template {named:?} that is the shape of {computed:?}: a name says what a template contains"
    )]
    OtherName {
        /// The name in the pod.
        named: String,
        /// The name of the shape.
        computed: String,
    },
}

/// The templates of ours that a pod names, with what each contains.
///
/// # Errors
/// The pod's annotation does not describe a template that the pod names.
pub fn named_by(pod: &Pod) -> Result<BTreeMap<String, Shape>, ShapesError> {
    let claims = pod.spec.resource_claims.iter();
    let named = claims.filter_map(|claim| claim.resource_claim_template_name.as_deref());
    let mut named = named.filter(|name| is_ours(name)).peekable();
    let mut shapes = BTreeMap::new();
    if named.peek().is_none() {
        return Ok(shapes);
    }
    let text = fields::annotation(pod, SHAPES).unwrap_or("{}");
    let mut described: BTreeMap<String, Shape> = serde_json::from_str(text)
        .map_err(|error| ShapesError::Unreadable(shortened(&error.to_string())))?;
    for name in named {
        if shapes.contains_key(name) {
            continue;
        }
        let Some(shape) = described.remove(name) else {
            return Err(ShapesError::Missing(shortened(name)));
        };
        let computed = shape.name();
        if computed != name {
            return Err(ShapesError::OtherName {
                named: shortened(name),
                computed,
            });
        }
        shapes.insert(computed, shape);
    }
    Ok(shapes)
}

/// Whether a container of the pod gets a share by a template of ours.
#[must_use]
pub fn is_used(pod: &Pod, container: &Container) -> bool {
    container.resources.claims.iter().any(|used| {
        let mut claims = pod.spec.resource_claims.iter();
        claims.any(|claim| {
            claim.name == used.name
                && claim
                    .resource_claim_template_name
                    .as_deref()
                    .is_some_and(is_ours)
        })
    })
}

impl Shape {
    /// The shape of a container's ask for GPUs.
    ///
    /// # Errors
    /// A claim cannot ask for this; the text says what can be asked for.
    pub fn of(
        container: &Container,
        ask: &Ask,
        row: &Row,
        config: &Nvidia,
    ) -> Result<Self, Rejection> {
        let refused = |field: String, problem: String| Rejection {
            container: container.name.clone(),
            field,
            problem,
        };
        let limit = |role| {
            let name = row.resource(role).unwrap_or_default();
            format!("resources.limits[{name}]")
        };
        if ask.count > MOST_DEVICES {
            return Err(refused(
                limit(Role::Count),
                format!(
                    "{} GPUs are more than one claim can have; write 1 to {MOST_DEVICES}",
                    ask.count
                ),
            ));
        }
        let memory_mib = match ask.memory {
            Memory::Bytes(bytes) => Some(bytes.div_ceil(MIB)),
            Memory::Percent(100) => None,
            Memory::Percent(percent) => {
                let amount = row.resource(Role::Memory).unwrap_or_default();
                return Err(refused(
                    limit(Role::MemoryPercent),
                    format!(
                        "{percent} is a percentage, and this cluster gives GPUs by ResourceClaims, which ask for amounts; \
                         write {amount}, in MiB, or 100 for a whole GPU"
                    ),
                ));
            }
        };
        if let Some(mode) = &ask.select.mode
            && !mode.contains("hami-core")
        {
            return Err(refused(
                "metadata.annotations[nvidia.com/vgpu-mode]".to_owned(),
                format!(
                    "{:?}: this cluster gives GPUs by ResourceClaims, and those are shared by vgpu's library; write \
                     hami-core, or leave the annotation out",
                    shortened(mode)
                ),
            ));
        }
        let priority = fields::whole(container, row.resource(Role::Priority))?.unwrap_or_default();
        let known = u32::try_from(priority).ok();
        let Some(priority) = known.filter(|priority| *priority <= PRIORITY_MOST) else {
            return Err(refused(
                limit(Role::Priority),
                format!("{priority} is no priority; write 0 (the highest) to {PRIORITY_MOST}"),
            ));
        };
        let Compute::Units(cores) = ask.compute else {
            return Err(refused(
                limit(Role::Cores),
                "this cluster gives GPUs by ResourceClaims, which ask for percent of a GPU's compute time; write 0 to 100"
                    .to_owned(),
            ));
        };
        let shape = Self {
            count: ask.count,
            memory_mib,
            cores: cores.min(100),
            priority,
            policy: policy(container, config),
            one_numa_node: ask.numa_bind && ask.count > 1,
            use_types: ask.select.use_types.clone(),
            nouse_types: ask.select.nouse_types.clone(),
            use_ids: ask.select.use_ids.clone(),
            nouse_ids: ask.select.nouse_ids.clone(),
        };
        let selector = shape.selector();
        if selector.is_some_and(|text| text.len() > MOST_SELECTOR_BYTES) {
            return Err(refused(
                "metadata.annotations".to_owned(),
                format!(
                    "the lists of GPUs and models make a selector of more than {MOST_SELECTOR_BYTES} bytes, the most of \
                     a ResourceClaim; name fewer"
                ),
            ));
        }
        Ok(shape)
    }

    /// The name of its template.
    #[must_use]
    pub fn name(&self) -> String {
        let text = serde_json::to_string(self).unwrap_or_default();
        let memory = self
            .memory_mib
            .map_or_else(|| "all".to_owned(), |mib| format!("{mib}mi"));
        let mut name = format!("{PREFIX}{}x{memory}-{}c-", self.count, self.cores);
        for byte in sha2::Sha256::digest(text.as_bytes()).iter().take(5) {
            // Writing to a String cannot fail.
            write!(name, "{byte:02x}").unwrap_or_default();
        }
        name
    }

    /// The template, with all fields that an API server would fill in.
    #[must_use]
    #[allow(
        clippy::indexing_slicing,
        reason = "fields are added to objects that this function has made"
    )]
    pub fn template(&self, namespace: &str) -> Value {
        let mut amounts = json!({"cores": self.cores.to_string()});
        if let Some(mib) = self.memory_mib {
            amounts["memory"] = json!(format!("{mib}Mi"));
        }
        let mut exactly = json!({
            "deviceClassName": CLASS,
            "allocationMode": "ExactCount",
            "count": self.count,
            "capacity": {"requests": amounts},
        });
        if let Some(selector) = self.selector() {
            exactly["selectors"] = json!([{"cel": {"expression": selector}}]);
        }
        let mut devices = json!({"requests": [{"name": REQUEST, "exactly": exactly}]});
        let mut constraints = Vec::new();
        if self.count > 1 {
            constraints.push(json!({"requests": [REQUEST], "distinctAttribute": UUID}));
        }
        if self.one_numa_node {
            let numa = format!("{DRIVER}/numa");
            constraints.push(json!({"requests": [REQUEST], "matchAttribute": numa}));
        }
        if !constraints.is_empty() {
            devices["constraints"] = Value::Array(constraints);
        }
        if self.priority != 0 || self.policy != PolicyWord::Default {
            let mut parameters = json!({"apiVersion": API_VERSION, "kind": KIND});
            // What the pod does not ask for is left to the DeviceClass.
            if self.priority != 0 {
                parameters["priority"] = json!(self.priority);
            }
            if self.policy != PolicyWord::Default {
                parameters["policy"] = json!(self.policy);
            }
            devices["config"] = json!([{"requests": [REQUEST],
                "opaque": {"driver": DRIVER, "parameters": parameters}}]);
        }
        let (label, program) = MANAGED_BY;
        json!({
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": self.name(), "namespace": namespace, "labels": {label: program}},
            "spec": {"spec": {"devices": devices}},
        })
    }

    /// Which GPUs are candidates, in CEL.
    fn selector(&self) -> Option<String> {
        let attribute = |name: &str| format!("device.attributes[\"{DRIVER}\"].{name}");
        let model = format!("{}.lowerAscii()", attribute("productName"));
        let of_model = |texts: &[String]| {
            let each = texts.iter().map(|text| {
                let lower = text.to_ascii_lowercase();
                format!("{model}.contains({})", literal(&lower))
            });
            each.collect::<Vec<_>>().join(" || ")
        };
        let among = |ids: &[String]| {
            let ids: Vec<String> = ids.iter().map(|id| literal(id)).collect();
            format!("{} in [{}]", attribute("uuid"), ids.join(", "))
        };
        let mut all = Vec::new();
        if !self.use_types.is_empty() {
            all.push(format!("({})", of_model(&self.use_types)));
        }
        if !self.nouse_types.is_empty() {
            all.push(format!("!({})", of_model(&self.nouse_types)));
        }
        if !self.use_ids.is_empty() {
            all.push(among(&self.use_ids));
        }
        if !self.nouse_ids.is_empty() {
            all.push(format!("!({})", among(&self.nouse_ids)));
        }
        (!all.is_empty()).then(|| all.join(" && "))
    }
}

/// Whether a template in the cluster has the content of this shape: everything in `wanted`, as an API server writes it.
#[must_use]
pub fn has(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => wanted
            .iter()
            .all(|(key, wanted)| live.get(key).is_some_and(|live| has(live, wanted))),
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len() && live.iter().zip(wanted).all(|(live, it)| has(live, it))
        }
        // The API server writes 4096Mi as 4Gi.
        (Value::String(live), Value::String(wanted)) => {
            let amount = |text: &str| Quantity::from(text).parse().ok();
            live == wanted || amount(live).is_some_and(|live| Some(live) == amount(wanted))
        }
        (live, wanted) => live == wanted,
    }
}

/// Whether a template in the cluster carries exactly the parameters of this shape. An API server adds nothing to them,
/// and one more would hide what the DeviceClass says.
#[must_use]
pub fn has_parameters(live: &Value, wanted: &Value) -> bool {
    let config = |spec: &Value| {
        let entries = spec
            .pointer("/spec/devices/config")
            .and_then(Value::as_array);
        let parameters = entries.into_iter().flatten();
        let parameters = parameters.map(|entry| entry.pointer("/opaque/parameters").cloned());
        parameters.collect::<Vec<_>>()
    };
    config(live) == config(wanted)
}

/// A text in CEL. It comes from an annotation, so it may contain any character.
fn literal(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if letter.is_control() => {
                write!(quoted, "\\U{:08x}", u32::from(letter)).unwrap_or_default();
            }
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

/// When a container's cap holds: by the configuration. A container may hold itself to more than that, and never to less.
#[must_use]
pub fn policy(container: &Container, config: &Nvidia) -> PolicyWord {
    if config.disable_core_limit {
        return PolicyWord::Disable;
    }
    let own = container
        .env
        .iter()
        .find(|variable| variable.name == "GPU_CORE_UTILIZATION_POLICY")
        .and_then(|variable| variable.value.as_deref());
    match (config.gpu_core_policy, own) {
        (CorePolicy::Disable, _) => PolicyWord::Disable,
        (CorePolicy::Force, _) | (CorePolicy::Default, Some("force")) => PolicyWord::Force,
        (CorePolicy::Default, _) => PolicyWord::Default,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shares::parameters::{Parameters, Source};
    use crate::shares::written::{Written, check};

    fn shape() -> Shape {
        Shape {
            count: 1,
            memory_mib: Some(4096),
            cores: 30,
            ..Shape::default()
        }
    }

    fn pod(template: &str, shapes: &Value) -> Pod {
        let annotations = json!({SHAPES: shapes.to_string()});
        serde_json::from_value(json!({
            "metadata": {"annotations": annotations},
            "spec": {
                "resourceClaims": [{"name": "vgpu-0", "resourceClaimTemplateName": template},
                    {"name": "other", "resourceClaimTemplateName": "my-own"}],
                "containers": [{"name": "c", "resources": {"claims": [{"name": "vgpu-0"}]}}, {"name": "d",
                    "resources": {"claims": [{"name": "other"}]}}],
            },
        }))
        .unwrap()
    }

    #[test]
    fn a_name_says_what_a_template_contains() {
        let name = shape().name();
        assert!(name.starts_with("vgpu-share-1x4096mi-30c-"), "{name}");

        let mut others = vec![shape(); 4];
        others[0].count = 2;
        others[1].memory_mib = None;
        others[2].priority = 1;
        others[3].use_types = vec!["A100".to_owned()];
        for other in others {
            assert_ne!(other.name(), name, "{other:?}");
        }
    }

    #[test]
    fn templates_ask_for_what_the_driver_gives() {
        let large = Shape {
            count: 2,
            memory_mib: None,
            cores: 100,
            priority: 3,
            policy: PolicyWord::Force,
            one_numa_node: true,
            use_types: vec!["H100".to_owned(), "a\"\\\n".to_owned()],
            nouse_ids: vec!["GPU-1".to_owned()],
            ..Shape::default()
        };
        for shape in [shape(), large.clone()] {
            let template = shape.template("research");
            assert_eq!(check(Written::Template, &template), Ok(Vec::new()));
            assert_eq!(template["metadata"]["name"], shape.name());
        }
        let devices = &large.template("research")["spec"]["spec"]["devices"];
        assert_eq!(
            devices["constraints"],
            json!([
                {"requests": ["gpu"], "distinctAttribute": "gpu.vgpu.io/uuid"},
                {"requests": ["gpu"], "matchAttribute": "gpu.vgpu.io/numa"},
            ])
        );
        assert_eq!(
            devices["requests"][0]["exactly"]["selectors"][0]["cel"]["expression"],
            "(device.attributes[\"gpu.vgpu.io\"].productName.lowerAscii().contains(\"h100\") || \
             device.attributes[\"gpu.vgpu.io\"].productName.lowerAscii().contains(\"a\\\"\\\\\\U0000000a\")) && \
             !(device.attributes[\"gpu.vgpu.io\"].uuid in [\"GPU-1\"])"
        );
        assert_eq!(
            devices["config"][0]["opaque"]["parameters"],
            json!({"apiVersion": "gpu.vgpu.io/v1", "kind": "ShareParameters", "priority": 3, "policy": "force"})
        );
    }

    #[test]
    fn template_leaves_to_the_class_what_the_pod_does_not_ask_for() {
        let class = Parameters {
            priority: 5,
            policy: PolicyWord::Floor,
            floor: 20,
            ..Parameters::default()
        };
        let with_class = |priority, policy| {
            let shape = Shape {
                priority,
                policy,
                ..shape()
            };
            let template = shape.template("research");
            match template.pointer("/spec/spec/devices/config/0/opaque/parameters") {
                Some(written) => class.changed_by(written, Source::Claim).unwrap(),
                None => class,
            }
        };
        let of_class = |priority| Parameters { priority, ..class };
        let forced = |priority| Parameters {
            priority,
            policy: PolicyWord::Force,
            ..Parameters::default()
        };

        assert_eq!(with_class(0, PolicyWord::Default), of_class(5));
        assert_eq!(with_class(3, PolicyWord::Default), of_class(3));
        assert_eq!(with_class(0, PolicyWord::Force), forced(5));
        assert_eq!(with_class(3, PolicyWord::Force), forced(3));
    }

    #[test]
    fn pod_is_believed_only_if_each_name_is_that_of_its_shape() {
        let name = shape().name();
        let good = pod(&name, &json!({&name: shape()}));
        assert_eq!(
            named_by(&good),
            Ok(BTreeMap::from([(name.clone(), shape())]))
        );
        assert!(is_used(&good, &good.spec.containers[0]));
        assert!(!is_used(&good, &good.spec.containers[1]));

        let mut more = shape();
        more.memory_mib = Some(8192);
        for (shapes, says) in [
            (json!({}), "has no shape of the template"),
            (
                json!({&name: more}),
                "is the shape of \"vgpu-share-1x8192mi",
            ),
            (json!({&name: {"count": 1, "speed": 2}}), "cannot be read"),
            (json!("x"), "cannot be read"),
        ] {
            let why = named_by(&pod(&name, &shapes)).unwrap_err().to_string();
            assert!(why.contains(says), "{why}");
        }
        assert_eq!(named_by(&pod("my-share", &json!("x"))), Ok(BTreeMap::new()));
    }

    #[test]
    fn template_as_an_api_server_writes_it_has_its_content() {
        let wanted = shape().template("research")["spec"].clone();
        let mut live = wanted.clone();
        let exactly = "/spec/devices/requests/0/exactly";
        live.pointer_mut(exactly).unwrap()["capacity"]["requests"]["memory"] = json!("4Gi");
        live.pointer_mut(exactly).unwrap()["newField"] = json!(true);
        assert!(has(&live, &wanted));

        live.pointer_mut(exactly).unwrap()["capacity"]["requests"]["memory"] = json!("8Gi");
        assert!(!has(&live, &wanted));
        let mut two = wanted.clone();
        let requests = two.pointer_mut("/spec/devices/requests").unwrap();
        let first = requests[0].clone();
        requests.as_array_mut().unwrap().push(first);
        assert!(!has(&two, &wanted));
    }
}
