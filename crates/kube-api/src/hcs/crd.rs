//! The custom resource definitions of the group, made from the Rust types. `cargo xtask crds` writes them as YAML.

use k8s_openapi::Resource;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

use super::{ComputeNode, ComputeQuota, ComputeTask, ComputeTopology, GROUP, VERSION};

/// All definitions, in the order of the document.
pub fn definitions() -> Vec<Value> {
    vec![
        definition::<ComputeNode>(
            "Cluster",
            &["cn"],
            &json!([
                column("Vendor", "string", ".spec.vendor", "Hardware vendor"),
                column(
                    "Phase",
                    "string",
                    ".status.phase",
                    "Ready, NotReady or Draining"
                ),
                column(
                    "VRAM",
                    "string",
                    ".spec.capacity.vram",
                    "Memory over all devices"
                ),
                column(
                    "Used",
                    "string",
                    ".status.vramAllocated",
                    "Memory that pods have taken"
                ),
                column(
                    "Heartbeat",
                    "date",
                    ".status.lastHeartbeat",
                    "Last report of the agent"
                ),
                age(),
            ]),
        ),
        definition::<ComputeQuota>(
            "Namespaced",
            &["cq"],
            &json!([
                column("VRAM", "string", ".spec.hard.vram", "Most memory"),
                column("Used-VRAM", "string", ".status.used.vram", "Memory in use"),
                column(
                    "FP16",
                    "string",
                    ".spec.hard.tflops-fp16",
                    "Most TFLOPS of 16 bits"
                ),
                column(
                    "Used-FP16",
                    "string",
                    ".status.used.tflops-fp16",
                    "TFLOPS of 16 bits in use"
                ),
                age(),
            ]),
        ),
        definition::<ComputeTask>(
            "Namespaced",
            &["ct"],
            &json!([
                column("Phase", "string", ".status.phase", "How far it is"),
                column("Node", "string", ".status.node", "Node of its pod"),
                column(
                    "Vendor",
                    "string",
                    ".status.vendor",
                    "Vendor of its devices"
                ),
                column("Pod", "string", ".status.pod", "Its last pod"),
                column("Reason", "string", ".status.reason", "Why"),
                age(),
            ]),
        ),
        definition::<ComputeTopology>(
            "Cluster",
            &["ctopo"],
            &json!([
                column("Node", "string", ".spec.nodeName", "Kubernetes node"),
                column(
                    "Heartbeat",
                    "date",
                    ".status.lastHeartbeat",
                    "Last report of the agent"
                ),
                age(),
            ]),
        ),
    ]
}

fn column(name: &str, kind: &str, path: &str, description: &str) -> Value {
    json!({ "name": name, "type": kind, "jsonPath": path, "description": description })
}

fn age() -> Value {
    json!({ "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp" })
}

fn definition<K: Resource + JsonSchema>(scope: &str, short: &[&str], columns: &Value) -> Value {
    let plural = K::URL_PATH_SEGMENT;
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{plural}.{GROUP}"),
            "annotations": { "helm.sh/resource-policy": "keep" },
        },
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": {
                "kind": K::KIND,
                "listKind": format!("{}List", K::KIND),
                "plural": plural,
                "singular": K::KIND.to_lowercase(),
                "shortNames": short,
                "categories": ["hcs"],
            },
            "versions": [{
                "name": VERSION,
                "served": true,
                "storage": true,
                "subresources": { "status": {} },
                "additionalPrinterColumns": columns,
                "schema": { "openAPIV3Schema": structural(schema_of::<K>()) },
            }],
        },
    })
}

fn schema_of<K: JsonSchema>() -> Schema {
    let settings = SchemaSettings::openapi3().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<K>()
}

/// The schema, reduced to the keywords that a structural schema may have.
fn structural(schema: Schema) -> Value {
    let mut schema = schema.to_value();
    if let Some(root) = schema.as_object_mut() {
        root.remove("$schema");
        root.remove("components");
    }
    walk(&mut schema);
    schema
}

fn walk(schema: &mut Value) {
    let Some(map) = schema.as_object_mut() else {
        return;
    };
    map.remove("title");
    map.remove("nullable");
    map.remove("default");
    one_type(map);
    words(map);
    if let Some(Value::String(description)) = map.get_mut("description") {
        // The lines of a comment become one paragraph of the description.
        *description = description.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    if let Some(Value::String(format)) = map.get("format")
        && matches!(format.as_str(), "uint8" | "uint16" | "uint32" | "uint64")
    {
        map.remove("format");
    }
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        properties.values_mut().for_each(walk);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = map.get_mut(key) {
            walk(inner);
        }
    }
}

/// An optional field becomes `anyOf: [T, null]`; this reduces it to `T`.
fn one_type(map: &mut Map<String, Value>) {
    if map.contains_key("x-kubernetes-int-or-string") {
        return;
    }
    for key in ["anyOf", "allOf"] {
        let Some(Value::Array(choices)) = map.get(key) else {
            continue;
        };
        let real: Vec<&Value> = choices
            .iter()
            .filter(|choice| {
                choice.get("type") != Some(&Value::String("null".to_owned()))
                    && choice.get("enum") != Some(&json!([null]))
            })
            .collect();
        if let [Value::Object(only)] = real.as_slice() {
            let only = only.clone();
            map.remove(key);
            for (name, value) in only {
                map.entry(name).or_insert(value);
            }
        }
    }
}

/// An enumeration with a comment on each word becomes a plain list of words.
fn words(map: &mut Map<String, Value>) {
    let Some(Value::Array(choices)) = map.get("oneOf") else {
        return;
    };
    let words: Option<Vec<Value>> = choices
        .iter()
        .map(|choice| {
            (choice.get("const").cloned())
                .or_else(|| choice.get("enum")?.as_array()?.first().cloned())
        })
        .collect();
    if let Some(words) = words {
        map.remove("oneOf");
        map.insert("type".to_owned(), "string".into());
        map.insert("enum".to_owned(), Value::Array(words));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keywords that a structural schema may have.
    const ALLOWED: [&str; 21] = [
        "additionalProperties",
        "anyOf",
        "description",
        "enum",
        "format",
        "items",
        "maximum",
        "maxItems",
        "maxLength",
        "maxProperties",
        "minimum",
        "minItems",
        "minLength",
        "minProperties",
        "pattern",
        "properties",
        "required",
        "type",
        "x-kubernetes-int-or-string",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-list-type",
    ];

    fn check(at: &str, schema: &Value) {
        let map = schema.as_object().unwrap();
        for key in map.keys() {
            assert!(
                ALLOWED.contains(&key.as_str()) || key == "x-kubernetes-preserve-unknown-fields",
                "{at}: {key}"
            );
        }
        assert!(
            map.contains_key("type")
                || map.contains_key("x-kubernetes-int-or-string")
                || map.contains_key("x-kubernetes-preserve-unknown-fields"),
            "{at} has no type: {schema}"
        );
        for (name, inner) in map
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            check(&format!("{at}.{name}"), inner);
        }
        for key in ["items", "additionalProperties"] {
            if let Some(inner) = map.get(key) {
                check(&format!("{at}.{key}"), inner);
            }
        }
    }

    #[test]
    fn the_schemas_are_structural() {
        let definitions = definitions();
        assert!(definitions.len() > 2, "{} definitions", definitions.len());
        for definition in definitions {
            let name = definition["spec"]["names"]["kind"].as_str().unwrap();
            let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            check(name, schema);
            assert_eq!(schema["type"], "object");
        }
    }
}
