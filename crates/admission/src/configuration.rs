//! The webhook configurations: which objects an API server sends for review, derived from the device configuration.
//! Nothing here contacts an API server. The conditions select only pods that need a review, so that a webhook that is
//! down does not stop other pods.
//!
//! Conditions are in CEL. An error in one of them refuses the object under `failurePolicy: Fail`, so every field is
//! checked with `has()` before it is read, and the tests evaluate the conditions on pods of all shapes.

use kube_api::keys;
use kube_api::shares::{self, template};
use kube_api::vendor::Vendors;
use serde_json::{Value, json};

use crate::checks::{NO_DEVICES, RUNTIME_DEVICE_MOUNTS, VISIBLE_DEVICES};
use crate::forgery;
use crate::settings::Settings;
use crate::visible;

/// The address at which an API server finds the webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientConfig {
    /// Behind a Service of the cluster.
    Service {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its port.
        port: u16,
        /// The certificates to trust, as PEM text in base64; none leaves the field to the program that keeps it.
        ca_bundle: Option<String>,
    },
    /// At an address.
    Url {
        /// `https://host:port`, without a path.
        base: String,
        /// The certificates to trust, as PEM text in base64; none leaves the field to the program that keeps it.
        ca_bundle: Option<String>,
    },
}

impl ClientConfig {
    fn at(&self, path: &str) -> Value {
        let (mut config, ca_bundle) = match self {
            Self::Service {
                namespace,
                name,
                port,
                ca_bundle,
            } => (
                json!({ "service": { "namespace": namespace, "name": name, "port": port, "path": path } }),
                ca_bundle,
            ),
            Self::Url { base, ca_bundle } => (
                json!({ "url": format!("{}{path}", base.trim_end_matches('/')) }),
                ca_bundle,
            ),
        };
        if let (Some(config), Some(ca_bundle)) = (config.as_object_mut(), ca_bundle) {
            config.insert("caBundle".into(), json!(ca_bundle));
        }
        config
    }
}

/// What an entry is called for.
struct Rule {
    group: &'static str,
    versions: &'static str,
    operations: &'static [&'static str],
    resources: &'static [&'static str],
    scope: &'static str,
}

const fn core(operations: &'static [&'static str], resources: &'static [&'static str]) -> Rule {
    Rule {
        group: "",
        versions: "v1",
        operations,
        resources,
        scope: "Namespaced",
    }
}

const MADE: [Rule; 2] = [
    core(&["CREATE"], &["pods"]),
    core(&["UPDATE"], &["pods/ephemeralcontainers"]),
];
const CHANGED: [Rule; 2] = [
    core(&["UPDATE"], &["pods", "pods/status"]),
    // `bindings` is the older name of the same resource.
    core(&["CREATE"], &["pods/binding", "bindings"]),
];
/// In every version, because clusters serve different ones. What is read is the same in all of them.
const CLAIMS: [Rule; 1] = [Rule {
    group: "resource.k8s.io",
    versions: "*",
    operations: &["CREATE", "UPDATE"],
    resources: &["resourceclaims", "resourceclaimtemplates", "deviceclasses"],
    scope: "*",
}];

/// The `MutatingWebhookConfiguration` and the `ValidatingWebhookConfiguration`, both of `settings.configuration_name`.
pub fn webhook_configurations(
    vendors: &Vendors,
    settings: &Settings,
    client: &ClientConfig,
) -> (Value, Value) {
    let entry = Entry { settings, client };
    let concerns = concerns_devices(vendors, settings);
    let mut mutating = vec![entry.value(
        "mutate.pods.vgpu.io",
        "/webhook",
        &MADE,
        &[("concerns-devices", concerns.clone())],
    )];
    if visible::hides_everywhere(vendors, settings) && settings.match_conditions {
        mutating.push(entry.of_the_rest(&concerns));
    }
    for entry in mutating.iter_mut().filter_map(Value::as_object_mut) {
        // Called again when another webhook changes the pod after ours; applying our changes twice gives the same
        // result.
        entry.insert("reinvocationPolicy".into(), json!("IfNeeded"));
    }
    let validating = vec![
        entry.value(
            "validate.pods.vgpu.io",
            "/validate-v1-pod",
            &MADE,
            &[("concerns-devices", concerns)],
        ),
        entry.value(
            "reserved.pods.vgpu.io",
            "/validate-v1-pod",
            &CHANGED,
            &[
                ("not-by-ourselves", not_by(&settings.own_accounts)),
                ("changes-what-is-reserved", changes_reserved(vendors)),
            ],
        ),
        entry.value(
            "validate.claims.vgpu.io",
            "/validate-claims",
            &CLAIMS,
            &[("names-our-driver", names_our_driver())],
        ),
    ];
    let object = |kind: &str, webhooks: Vec<Value>| {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": {
                "name": settings.configuration_name,
                "labels": { "app.kubernetes.io/name": "vgpu", "app.kubernetes.io/component": "webhook" },
            },
            "webhooks": webhooks,
        })
    };
    (
        object("MutatingWebhookConfiguration", mutating),
        object("ValidatingWebhookConfiguration", validating),
    )
}

struct Entry<'a> {
    settings: &'a Settings,
    client: &'a ClientConfig,
}

impl Entry<'_> {
    /// All other pods, whose containers must not see a GPU where the settings or the device configuration say so. That is
    /// no reason to stop a pod while the webhook is down.
    fn of_the_rest(&self, concerns: &str) -> Value {
        let silent = format!(
            "{}.exists(c, !(has(c.env) && c.env.exists(e, has(e.name) && e.name == {})))",
            containers(),
            text(VISIBLE_DEVICES)
        );
        let mut entry = self.value(
            "hide-devices.pods.vgpu.io",
            "/webhook",
            &MADE,
            &[
                ("does-not-concern-devices", format!("!({concerns})")),
                ("says-nothing-of-devices", silent),
            ],
        );
        if let Some(entry) = entry.as_object_mut() {
            entry.insert("failurePolicy".into(), json!("Ignore"));
        }
        entry
    }

    fn value(
        &self,
        name: &str,
        path: &str,
        rules: &[Rule],
        conditions: &[(&str, String)],
    ) -> Value {
        let settings = self.settings;
        let mut selected = Vec::new();
        if settings.ignore_namespace_label {
            selected
                .push(json!({ "key": keys::WEBHOOK, "operator": "NotIn", "values": ["ignore"] }));
        }
        if !settings.exempt_namespaces.is_empty() {
            selected.push(json!({
                "key": "kubernetes.io/metadata.name",
                "operator": "NotIn",
                "values": settings.exempt_namespaces,
            }));
        }
        let namespaces = if selected.is_empty() {
            json!({})
        } else {
            json!({ "matchExpressions": selected })
        };
        let objects = if settings.ignore_label_for_all {
            json!({ "matchExpressions": [{ "key": keys::WEBHOOK, "operator": "NotIn", "values": ["ignore"] }] })
        } else {
            json!({})
        };
        let rules: Vec<Value> = rules
            .iter()
            .map(|rule| {
                json!({
                    "apiGroups": [rule.group],
                    "apiVersions": [rule.versions],
                    "operations": rule.operations,
                    "resources": rule.resources,
                    "scope": rule.scope,
                })
            })
            .collect();
        let mut entry = json!({
            "name": name,
            "admissionReviewVersions": ["v1", "v1beta1"],
            "clientConfig": self.client.at(path),
            "failurePolicy": if settings.match_conditions { "Fail" } else { "Ignore" },
            "matchPolicy": "Equivalent",
            "namespaceSelector": namespaces,
            "objectSelector": objects,
            "rules": rules,
            "sideEffects": "None",
            "timeoutSeconds": settings.timeout_seconds.clamp(1, 30),
        });
        if let Some(entry) = entry.as_object_mut()
            && settings.match_conditions
        {
            let conditions: Vec<Value> = conditions
                .iter()
                .map(|(name, expression)| json!({ "name": name, "expression": expression }))
                .collect();
            entry.insert("matchConditions".into(), Value::Array(conditions));
        }
        entry
    }
}

/// A pod that asks for one of the configured resources, that NVIDIA's runtime starts, that makes devices visible to
/// itself, or that sets a field that only the scheduler may set.
fn concerns_devices(vendors: &Vendors, settings: &Settings) -> String {
    let ours = vendors.resources().map(|(name, _, _)| name);
    let resources = list(ours.chain(kube_api::hcs_request::names(vendors)));
    let asks = |kind: &str| {
        format!("has(c.resources.{kind}) && c.resources.{kind}.exists(k, k in {resources})")
    };
    let asks = format!(
        "has(c.resources) && ({} || {})",
        asks("limits"),
        asks("requests")
    );
    let shows = format!(
        "has(c.env) && c.env.exists(e, has(e.name) && e.name == {} && (has(e.valueFrom) || (has(e.value) && \
         !(e.value in {}))))",
        text(VISIBLE_DEVICES),
        list(NO_DEVICES)
    );
    // The last part of both paths, because the part before it may be written in many ways.
    let mounted = RUNTIME_DEVICE_MOUNTS
        .iter()
        .filter_map(|path| path.rsplit('/').next())
        .next()
        .unwrap_or_default();
    let mounts = format!(
        "has(c.volumeMounts) && c.volumeMounts.exists(m, has(m.mountPath) && m.mountPath.contains({}))",
        text(mounted)
    );
    let classes = visible::runtime_classes(vendors, settings);
    format!(
        "{}.exists(c, ({asks}) || ({shows}) || ({mounts})) || (has(object.spec) && has(object.spec.resourceClaims) && \
         object.spec.resourceClaims.exists(r, has(r.resourceClaimTemplateName) && \
         r.resourceClaimTemplateName.startsWith({}))) || (has(object.spec) && \
         has(object.spec.runtimeClassName) && object.spec.runtimeClassName in {}) || \
         (has(object.metadata.annotations) && object.metadata.annotations.exists(k, {})) || \
         (has(object.metadata.labels) && {} in object.metadata.labels)",
        containers(),
        text(template::PREFIX),
        list(classes.iter().map(String::as_str)),
        is_reserved(vendors),
        text(keys::VGPU_NODE),
    )
}

/// A claim, a template or a DeviceClass with parameters for our driver, a request for a device of one of our classes, or
/// the name of a template that the scheduler makes.
fn names_our_driver() -> String {
    let (driver, classes) = (
        text(shares::DRIVER),
        list([shares::CLASS, shares::MIG_CLASS]),
    );
    let is_ours = |request: &str| {
        format!("has({request}.deviceClassName) && {request}.deviceClassName in {classes}")
    };
    format!(
        "(has(object.metadata.name) && object.metadata.name.startsWith({prefix})) || (has(object.spec) && [has(object.spec.spec) \
         ? (has(object.spec.spec.devices) ? object.spec.spec.devices : {{}}) : (has(object.spec.devices) ? \
         object.spec.devices : object.spec)].exists(d, (has(d.config) && d.config.exists(c, has(c.opaque) && \
         has(c.opaque.driver) && c.opaque.driver == {driver})) || (has(d.requests) && d.requests.exists(r, ({direct}) || \
         (has(r.exactly) && {exactly}) || (has(r.firstAvailable) && r.firstAvailable.exists(f, {first}))))))",
        prefix = text(template::PREFIX),
        direct = is_ours("r"),
        exactly = is_ours("r.exactly"),
        first = is_ours("f"),
    )
}

/// All containers of a pod, in one list.
fn containers() -> String {
    let lists = ["containers", "initContainers", "ephemeralContainers"].map(|list| {
        format!("(has(object.spec.{list}) && object.spec.{list} != null ? object.spec.{list} : [])")
    });
    format!("(has(object.spec) ? {} : [])", lists.join(" + "))
}

/// A user writes, changes or removes a field that only the scheduler and the node agents may.
fn changes_reserved(vendors: &Vendors) -> String {
    let changes = |field: &str, reserved: &str| {
        format!(
            "[has(object.metadata.{field}) ? object.metadata.{field} : {{}}].exists(after, [oldObject != null && \
             has(oldObject.metadata.{field}) ? oldObject.metadata.{field} : {{}}].exists(before, after.exists(k, \
             ({reserved}) && !(k in before && before[k] == after[k])) || before.exists(k, ({reserved}) && !(k in \
             after))))"
        )
    };
    format!(
        "{} || {}",
        changes("annotations", &is_reserved(vendors)),
        changes("labels", &format!("k == {}", text(keys::VGPU_NODE)))
    )
}

/// Whether the annotation `k` is reserved.
fn is_reserved(vendors: &Vendors) -> String {
    format!(
        "k in {} || k.startsWith({}) || k.contains({})",
        list(forgery::annotations(vendors).iter().map(String::as_str)),
        text(keys::VISIBLE_DEVICES_PREFIX),
        text(forgery::CDI)
    )
}

fn not_by(accounts: &[String]) -> String {
    format!(
        "!(has(request.userInfo) && has(request.userInfo.username) && request.userInfo.username in {})",
        list(accounts.iter().map(String::as_str))
    )
}

/// A string literal in CEL. The text comes from a configuration file, so it may contain any character.
fn text(value: &str) -> String {
    let mut quoted = String::with_capacity(value.len() + 2);
    quoted.push('\'');
    for letter in value.chars() {
        match letter {
            '\'' | '\\' => quoted.extend(['\\', letter]),
            letter if letter.is_control() => {
                quoted.push_str(&format!("\\U{:08x}", u32::from(letter)));
            }
            letter => quoted.push(letter),
        }
    }
    quoted.push('\'');
    quoted
}

fn list<'a>(values: impl IntoIterator<Item = &'a str>) -> String {
    let values: Vec<String> = values.into_iter().map(text).collect();
    format!("[{}]", values.join(", "))
}
