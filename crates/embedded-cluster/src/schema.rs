//! Structural schemas of custom resources: pruning, defaults and validation. Expressions (CEL) and the rarer keywords
//! of JSON Schema are ignored.

use serde_json::Value;

/// Removes the fields that `schema` does not name and fills in its defaults; `apiVersion`, `kind` and `metadata` stay.
pub(crate) fn prune_and_default(schema: &Value, object: &mut Value) {
    walk(schema, object, true);
}

fn walk(schema: &Value, value: &mut Value, root: bool) {
    let embedded = schema["x-kubernetes-embedded-resource"] == Value::Bool(true);
    match value {
        Value::Object(map) => {
            let properties = schema["properties"].as_object();
            let additional = schema.get("additionalProperties");
            let keeps = schema["x-kubernetes-preserve-unknown-fields"] == Value::Bool(true)
                || additional == Some(&Value::Bool(true));
            let known =
                |key: &str| properties.is_some_and(|properties| properties.contains_key(key));
            let identity =
                |key: &str| (root || embedded) && matches!(key, "apiVersion" | "kind" | "metadata");
            if !keeps && !additional.is_some_and(Value::is_object) {
                map.retain(|key, _| known(key) || identity(key));
            }
            for (key, property) in properties.into_iter().flatten() {
                if let (false, Some(default)) = (identity(key), property.get("default"))
                    && map.get(key).is_none_or(|there| {
                        there.is_null() && property["nullable"] != Value::Bool(true)
                    })
                {
                    map.insert(key.clone(), default.clone());
                }
            }
            for (key, inner) in map.iter_mut() {
                if identity(key) {
                    continue;
                }
                match properties
                    .and_then(|properties| properties.get(key))
                    .or(additional)
                {
                    Some(schema) if schema.is_object() => walk(schema, inner, false),
                    _ => {}
                }
            }
        }
        Value::Array(values) => {
            if let Some(items) = schema.get("items") {
                values
                    .iter_mut()
                    .for_each(|inner| walk(items, inner, false));
            }
        }
        _ => {}
    }
}

/// The first field that violates the schema, and how.
pub(crate) fn first_fault(schema: &Value, object: &Value) -> Option<(String, String)> {
    fault(schema, object, &mut Vec::new())
}

fn fault(schema: &Value, value: &Value, path: &mut Vec<String>) -> Option<(String, String)> {
    let at = |path: &[String], why: String| Some((path.join("."), why));
    if value.is_null() {
        let allowed = path.is_empty()
            || schema["nullable"] == Value::Bool(true)
            || schema.get("type").is_none();
        return if allowed {
            None
        } else {
            at(
                path,
                format!(
                    "Invalid value: \"null\": must be of type {}",
                    schema["type"].as_str().unwrap_or("any")
                ),
            )
        };
    }
    let int_or_string = schema["x-kubernetes-int-or-string"] == Value::Bool(true);
    let right = match schema["type"].as_str() {
        _ if int_or_string => value.is_string() || value.is_i64() || value.is_u64(),
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => {
            value.is_i64()
                || value.is_u64()
                || value.as_f64().is_some_and(|number| number.fract() == 0.0)
        }
        Some("number") => value.is_number(),
        _ => true,
    };
    if !right {
        let wanted = schema["type"].as_str().unwrap_or("integer or string");
        return at(
            path,
            format!("Invalid value: {value}: must be of type {wanted}"),
        );
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        let allowed: Vec<String> = allowed.iter().map(Value::to_string).collect();
        return at(
            path,
            format!(
                "Unsupported value: {value}: supported values: {}",
                allowed.join(", ")
            ),
        );
    }
    if let Some(number) = value.as_f64() {
        if let Some(least) = schema["minimum"].as_f64().filter(|least| number < *least) {
            return at(
                path,
                format!("Invalid value: {value}: should be greater than or equal to {least}"),
            );
        }
        if let Some(most) = schema["maximum"].as_f64().filter(|most| number > *most) {
            return at(
                path,
                format!("Invalid value: {value}: should be less than or equal to {most}"),
            );
        }
    }
    let length = match value {
        Value::String(text) => Some((text.chars().count(), "minLength", "maxLength", "chars long")),
        Value::Array(values) => Some((values.len(), "minItems", "maxItems", "items")),
        _ => None,
    };
    if let Some((length, least, most, unit)) = length {
        let bound = |name: &str| {
            schema[name]
                .as_u64()
                .and_then(|bound| usize::try_from(bound).ok())
        };
        if let Some(least) = bound(least).filter(|least| length < *least) {
            return at(
                path,
                format!("Invalid value: {value}: should be at least {least} {unit}"),
            );
        }
        if let Some(most) = bound(most).filter(|most| length > *most) {
            return at(
                path,
                format!("Too long: may not be more than {most} {unit}"),
            );
        }
    }
    match value {
        Value::Object(map) => {
            for name in schema["required"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
            {
                if !map.contains_key(name) {
                    path.push(name.to_owned());
                    return at(path, "Required value".into());
                }
            }
            for (key, inner) in map {
                if path.is_empty() && matches!(key.as_str(), "apiVersion" | "kind" | "metadata") {
                    continue;
                }
                let property = schema["properties"]
                    .get(key)
                    .or_else(|| schema.get("additionalProperties"));
                if let Some(property) = property.filter(|property| property.is_object()) {
                    path.push(key.clone());
                    let found = fault(property, inner, path);
                    if found.is_some() {
                        return found;
                    }
                    path.pop();
                }
            }
            None
        }
        Value::Array(values) => {
            let items = schema.get("items")?;
            for (index, inner) in values.iter().enumerate() {
                path.push(format!("[{index}]"));
                let found = fault(items, inner, path);
                if found.is_some() {
                    return found;
                }
                path.pop();
            }
            None
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({"type": "object", "required": ["spec"], "properties": {"spec": {
            "type": "object", "required": ["size"], "properties": {
                "size": {"type": "integer", "minimum": 1},
                "mode": {"type": "string", "enum": ["a", "b"], "default": "a"},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}}}}}})
    }

    #[test]
    fn unknown_fields_go_and_defaults_come() {
        let mut object = json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "x"},
            "spec": {"size": 2, "odd": 1, "free": {"any": 1}, "labels": {"a": "b"}}, "more": 1});

        prune_and_default(&schema(), &mut object);

        assert_eq!(
            object["spec"],
            json!({"size": 2, "mode": "a", "free": {"any": 1}, "labels": {"a": "b"}})
        );
        assert_eq!(object["metadata"]["name"], "x");
        assert!(object.get("more").is_none());
    }

    #[test]
    fn the_first_fault_names_its_field() {
        let field =
            |spec: Value| first_fault(&schema(), &json!({ "spec": spec })).map(|(field, _)| field);
        assert_eq!(field(json!({"size": 1})), None);
        assert_eq!(field(json!({})).as_deref(), Some("spec.size"));
        assert_eq!(field(json!({"size": 0})).as_deref(), Some("spec.size"));
        assert_eq!(field(json!({"size": "1"})).as_deref(), Some("spec.size"));
        assert_eq!(
            field(json!({"size": 1, "mode": "c"})).as_deref(),
            Some("spec.mode")
        );
        assert_eq!(
            field(json!({"size": 1, "labels": {"x": 1}})).as_deref(),
            Some("spec.labels.x")
        );
    }
}
