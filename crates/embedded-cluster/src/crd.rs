//! Custom resources: what their definitions say about themselves and about their objects.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::object::{default_to, set, set_condition, unset};
use crate::resource::{Resource, Version};
use crate::schema;
use crate::status::Status;
use crate::target::{Part, Target};

/// Fills in the names that a definition may leave out.
pub(crate) fn default_definition(definition: &mut Value) {
    let kind = definition["spec"]["names"]["kind"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    default_to(definition, &["spec", "names", "singular"], || {
        kind.to_lowercase().into()
    });
    default_to(definition, &["spec", "names", "listKind"], || {
        format!("{kind}List").into()
    });
    default_to(
        definition,
        &["spec", "conversion"],
        || json!({ "strategy": "None" }),
    );
}

pub(crate) fn validate_definition(target: &Target, definition: &Value) -> Result<(), Status> {
    let resource = resource(definition)?;
    let named = format!("{}.{}", resource.plural, resource.group);
    if target.name != named {
        return Err(target.invalid(
            "metadata.name",
            format!(
                "Invalid value: \"{}\": must be spec.names.plural+\".\"+spec.group",
                target.name
            ),
        ));
    }
    let versions = definition["spec"]["versions"]
        .as_array()
        .into_iter()
        .flatten();
    if versions
        .filter(|version| version["storage"] == Value::Bool(true))
        .count()
        != 1
    {
        return Err(target.invalid(
            "spec.versions",
            "Invalid value: must have exactly one version marked as storage version",
        ));
    }
    Ok(())
}

/// Sets the status that a controller would give a definition: established, under the names that it asks for.
pub(crate) fn establish(definition: &mut Value) -> Result<(), Status> {
    let names = definition["spec"]["names"].clone();
    set(definition, &["status", "acceptedNames"], names);
    let stored = resource(definition)?
        .versions
        .first()
        .map_or_else(String::new, |version| version.name.clone());
    default_to(definition, &["status", "storedVersions"], || json!([]));
    if let Some(versions) = definition
        .pointer_mut("/status/storedVersions")
        .and_then(Value::as_array_mut)
        && !versions.iter().any(|version| version == &stored)
    {
        versions.push(stored.into());
    }
    set_condition(
        definition,
        "NamesAccepted",
        "True",
        "NoConflicts",
        "no conflicts found",
    );
    set_condition(
        definition,
        "Established",
        "True",
        "InitialNamesAccepted",
        "the initial names have been accepted",
    );
    Ok(())
}

/// The resource that a definition defines.
pub(crate) fn resource(definition: &Value) -> Result<Resource, Status> {
    let spec = &definition["spec"];
    let names = &spec["names"];
    let text = |value: &Value, field: &str| match value.as_str() {
        Some(text) if !text.is_empty() && !text.contains('/') => Ok(text.to_owned()),
        _ => Err(Status::invalid(
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            crate::object::meta(definition, "name"),
            field,
            "Required value",
        )),
    };
    let texts = |value: &Value| {
        value
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|text| text.as_str().map(str::to_owned))
            .collect()
    };
    let (group, plural) = (
        text(&spec["group"], "spec.group")?,
        text(&names["plural"], "spec.names.plural")?,
    );
    let kind = text(&names["kind"], "spec.names.kind")?;
    let mut versions = Vec::new();
    let mut fields = Vec::new();
    for version in spec["versions"].as_array().into_iter().flatten() {
        let storage = version["storage"] == Value::Bool(true);
        if version["served"] != Value::Bool(true) && !storage {
            continue;
        }
        let one = Version {
            name: text(&version["name"], "spec.versions[*].name")?,
            status: version["subresources"]["status"].is_object(),
            scale: Some(version["subresources"]["scale"].clone()).filter(Value::is_object),
            schema: Some(version["schema"]["openAPIV3Schema"].clone()).filter(Value::is_object),
            columns: version["additionalPrinterColumns"]
                .as_array()
                .cloned()
                .unwrap_or_default(),
        };
        for field in version["selectableFields"].as_array().into_iter().flatten() {
            let path: Arc<str> = field["jsonPath"]
                .as_str()
                .unwrap_or_default()
                .trim_start_matches('.')
                .into();
            if !fields.contains(&path) {
                fields.push(path);
            }
        }
        versions.insert(if storage { 0 } else { versions.len() }, one);
    }
    if versions.is_empty() {
        let name = crate::object::meta(definition, "name");
        return Err(Status::invalid(
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            name,
            "spec.versions",
            "Required value",
        ));
    }
    Ok(Resource {
        table: format!("{group}/{plural}").into(),
        list_kind: names["listKind"]
            .as_str()
            .map_or_else(|| format!("{kind}List"), str::to_owned),
        singular: names["singular"]
            .as_str()
            .map_or_else(|| kind.to_lowercase(), str::to_owned),
        short_names: texts(&names["shortNames"]),
        categories: texts(&names["categories"]),
        namespaced: spec["scope"] == "Namespaced",
        custom: true,
        generation: true,
        versions,
        fields,
        group,
        plural,
        kind,
    })
}

/// Removes fields that the schema does not have, and fills in its defaults.
pub(crate) fn prepare(target: &Target, object: &mut Value) -> Result<(), Status> {
    let served = target.served()?;
    if let Some(schema) = &served.schema {
        schema::prune_and_default(schema, object);
    }
    if !served.status && target.part == Part::Status {
        unset(object, &["status"]);
    }
    Ok(())
}

pub(crate) fn validate(target: &Target, object: &Value) -> Result<(), Status> {
    let Some(schema) = &target.served()?.schema else {
        return Ok(());
    };
    match schema::first_fault(schema, object) {
        None => Ok(()),
        Some((field, why)) => Err(target.invalid(&field, why)),
    }
}
