//! The webhook's configurations in the API server: the wanted state, the difference to the live
//! state, and the smallest patch for it.
//!
//! `admission` defines what is wanted. Fields that this program does not know are left to the API
//! server, because its next version will have new ones.

#![allow(
    clippy::indexing_slicing,
    reason = "a JSON value is read by name, and what it lacks is null; only our own are written to"
)]

use kube::api::{Api, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::core::ApiResource;
use serde_json::{Map, Value, json};

use crate::secret::{WRITER, labels, writing};

/// The kinds of configurations, in the order in which they are written.
pub const KINDS: [&str; 2] = [
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
];

/// A kind, as the API calls it.
#[must_use]
pub fn resource(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(
        "admissionregistration.k8s.io",
        "v1",
        kind,
    ))
}

/// The API server's defaults for fields that are left out.
fn defaults() -> [(&'static str, Value); 6] {
    [
        ("failurePolicy", json!("Fail")),
        ("matchPolicy", json!("Equivalent")),
        ("timeoutSeconds", json!(10)),
        ("namespaceSelector", json!({})),
        ("objectSelector", json!({})),
        ("matchConditions", json!([])),
    ]
}

/// The complete wanted configuration: its name, our label, the `caBundle` in each entry and every
/// default that the API server would fill in, so that the two can be compared.
///
/// `owner` is its `ownerReferences`; null leaves them as they are. `bundle` is PEM; without it each
/// entry keeps the `caBundle` that it has in `live`.
#[must_use]
pub fn whole(
    mut wanted: Value,
    name: &str,
    owner: &Value,
    bundle: Option<&str>,
    live: Option<&Value>,
) -> Value {
    let mutating = wanted["kind"] == "MutatingWebhookConfiguration";
    if !wanted["metadata"].is_object() {
        wanted["metadata"] = json!({});
    }
    wanted["metadata"]["name"] = name.into();
    wanted["metadata"]["ownerReferences"] = owner.clone();
    for (key, value) in labels() {
        wanted["metadata"]["labels"][key] = value.into();
    }
    for entry in wanted["webhooks"].as_array_mut().into_iter().flatten() {
        for (field, value) in defaults() {
            if entry[field].is_null() {
                entry[field] = value;
            }
        }
        if mutating && entry["reinvocationPolicy"].is_null() {
            entry["reinvocationPolicy"] = "Never".into();
        }
        for rule in entry["rules"].as_array_mut().into_iter().flatten() {
            if rule["scope"].is_null() {
                rule["scope"] = "*".into();
            }
        }
        let bundle = match bundle {
            Some(pem) => base64(pem),
            None => live
                .and_then(|live| entry_named(live, &entry["name"]))
                .map_or(Value::Null, |entry| {
                    entry["clientConfig"]["caBundle"].clone()
                }),
        };
        if let Some(client) = entry["clientConfig"].as_object_mut() {
            if bundle.is_null() {
                client.remove("caBundle");
            } else {
                client.insert("caBundle".to_owned(), bundle);
            }
            if let Some(service) = client.get_mut("service").and_then(Value::as_object_mut) {
                service.entry("port").or_insert_with(|| 443.into());
            }
        }
    }
    wanted
}

fn entry_named<'a>(configuration: &'a Value, name: &Value) -> Option<&'a Value> {
    let entries = configuration["webhooks"].as_array()?;
    entries.iter().find(|entry| entry["name"] == *name)
}

fn base64(text: &str) -> Value {
    // The API's own encoding of bytes (base64).
    serde_json::to_value(k8s_openapi::ByteString(text.as_bytes().to_vec())).unwrap_or(Value::Null)
}

/// A merge patch that makes `live` equal to what is wanted and leaves all other fields alone; `None` if they already
/// agree.
#[must_use]
pub fn change(live: &Value, wanted: &Value) -> Option<Value> {
    let mut patch = Map::new();
    let mut metadata = Map::new();
    for field in ["labels", "annotations", "ownerReferences"] {
        if !holds(&live["metadata"][field], &wanted["metadata"][field]) {
            metadata.insert(field.to_owned(), wanted["metadata"][field].clone());
        }
    }
    // Entries are matched by name, but the list's order decides which webhook is called first, so a
    // list that differs is written whole.
    if !holds(&live["webhooks"], &wanted["webhooks"]) {
        patch.insert("webhooks".to_owned(), wanted["webhooks"].clone());
    }
    if patch.is_empty() && metadata.is_empty() {
        return None;
    }
    // Tied to the version that was read, so that a later write is not overwritten.
    metadata.insert(
        "resourceVersion".to_owned(),
        live["metadata"]["resourceVersion"].clone(),
    );
    patch.insert("metadata".to_owned(), metadata.into());
    Some(patch.into())
}

/// Whether `live` contains everything that is wanted. A wanted empty value may be absent.
fn holds(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        // Null means that any value will do.
        (_, Value::Null) => true,
        (Value::Object(live), Value::Object(wanted)) => {
            // A selector with more entries selects fewer objects, so selectors are compared whole.
            let selector = wanted.is_empty()
                || wanted.contains_key("matchLabels")
                || wanted.contains_key("matchExpressions");
            (!selector || live.len() <= wanted.len())
                && wanted
                    .iter()
                    .all(|(key, wanted)| holds(live.get(key).unwrap_or(&Value::Null), wanted))
        }
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len()
                && live
                    .iter()
                    .zip(wanted)
                    .all(|(live, wanted)| holds(live, wanted))
        }
        (Value::Null, Value::Object(wanted)) => wanted.is_empty(),
        (Value::Null, Value::Array(wanted)) => wanted.is_empty(),
        (live, wanted) => live == wanted,
    }
}

/// Whether each entry trusts this CA (PEM, in the form that this program writes).
#[must_use]
pub fn trusts(live: &Value, ca: &str) -> bool {
    let entries = live["webhooks"].as_array().map(Vec::as_slice);
    entries.unwrap_or_default().iter().all(|entry| {
        serde_json::from_value(entry["clientConfig"]["caBundle"].clone())
            .ok()
            .and_then(|k8s_openapi::ByteString(bytes)| String::from_utf8(bytes).ok())
            .is_some_and(|bundle| bundle.contains(ca))
    })
}

/// The result of writing a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// The configuration was already as wanted.
    Nothing,
    /// The configuration did not exist.
    Created,
    /// The configuration differed.
    Changed,
    /// Another writer changed it at the same time; the next look decides.
    Again,
}

/// Reads the configuration; `None` if it does not exist.
///
/// # Errors
///
/// The API server does not answer, or refuses.
pub async fn read(
    client: &kube::Client,
    kind: &str,
    name: &str,
) -> Result<Option<Value>, kube::Error> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource(kind));
    let Some(live) = api.get_opt(name).await? else {
        return Ok(None);
    };
    serde_json::to_value(live)
        .map(Some)
        .map_err(kube::Error::SerdeError)
}

/// Creates or changes the configuration so that it equals the wanted one ([`whole`]).
///
/// # Errors
///
/// The API server does not answer, or refuses.
pub async fn write(
    client: &kube::Client,
    live: Option<&Value>,
    wanted: &Value,
) -> Result<Written, kube::Error> {
    let kind = wanted["kind"].as_str().unwrap_or_default();
    let name = wanted["metadata"]["name"].as_str().unwrap_or_default();
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource(kind));
    let Some(live) = live else {
        // By server-side apply: a creation by POST has no name for the API server's authorizer, and could not be
        // permitted for this one configuration only.
        let params = PatchParams::apply(WRITER);
        return match api.patch(name, &params, &Patch::Apply(wanted)).await {
            Ok(_) => Ok(Written::Created),
            // Another replica was faster.
            Err(kube::Error::Api(status)) if status.is_conflict() => Ok(Written::Again),
            Err(error) => Err(error),
        };
    };
    let Some(patch) = change(live, wanted) else {
        return Ok(Written::Nothing);
    };
    match api.patch(name, &writing(), &Patch::Merge(patch)).await {
        Ok(_) => Ok(Written::Changed),
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {
            Ok(Written::Again)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live() -> Value {
        json!({
            "metadata": {
                "name": "w", "resourceVersion": "7",
                "labels": { "app.kubernetes.io/managed-by": "vgpu-webhook", "team": "a" },
            },
            "webhooks": [{
                "name": "a", "timeoutSeconds": 10, "fromTheFuture": { "some": "default" },
                "objectSelector": {}, "rules": [{ "scope": "*", "operations": ["CREATE"] }],
            }],
        })
    }

    #[test]
    fn fields_of_a_newer_api_server_are_left_alone() {
        let wanted = json!({
            "metadata": { "labels": { "app.kubernetes.io/managed-by": "vgpu-webhook" } },
            "webhooks": [{
                "name": "a", "timeoutSeconds": 10, "matchConditions": [],
                "objectSelector": {}, "rules": [{ "scope": "*", "operations": ["CREATE"] }],
            }],
        });

        assert_eq!(change(&live(), &wanted), None);
    }

    #[test]
    fn a_patch_names_what_differs_and_the_version_that_was_read() {
        let wanted = json!({
            "metadata": { "labels": { "app.kubernetes.io/managed-by": "another-tool" } },
            "webhooks": live()["webhooks"],
        });
        assert_eq!(
            change(&live(), &wanted),
            Some(json!({ "metadata": {
                "labels": { "app.kubernetes.io/managed-by": "another-tool" }, "resourceVersion": "7",
            } }))
        );

        let mut wanted = live();
        wanted["webhooks"][0]["timeoutSeconds"] = 5.into();
        assert_eq!(
            change(&live(), &wanted),
            Some(json!({
                "metadata": { "resourceVersion": "7" }, "webhooks": wanted["webhooks"],
            }))
        );
    }

    #[test]
    fn trust_is_of_every_entry() {
        let with = |bundles: &[&str]| {
            let entries = bundles.iter();
            let entry = |pem: &&str| json!({ "clientConfig": { "caBundle": base64(pem) } });
            json!({ "webhooks": entries.map(entry).collect::<Vec<_>>() })
        };

        assert!(trusts(&with(&["ours\n", "old\nours\n"]), "ours\n"));
        assert!(!trusts(&with(&["ours\n", "old\n"]), "ours\n"));
        assert!(!trusts(
            &json!({ "webhooks": [{ "clientConfig": {} }] }),
            "ours\n"
        ));
        assert!(!trusts(
            &json!({ "webhooks": [{ "clientConfig": { "caBundle": "no base64!" } }] }),
            "ours\n"
        ));
    }
}
