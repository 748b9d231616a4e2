//! Discovery: the lists of resources that a client reads before it asks for an object.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::resource::Resource;

/// The Kubernetes release that we claim to be.
pub(crate) fn version() -> Value {
    json!({
        "major": "1",
        "minor": "35",
        "gitVersion": "v1.35.0+embedded",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "rustc",
        "platform": "linux/amd64",
    })
}

pub(crate) fn core_versions() -> Value {
    json!({ "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [] })
}

/// Groups and their versions, the preferred one first.
fn versions(resources: &[Arc<Resource>]) -> BTreeMap<&str, Vec<&str>> {
    // Groups whose objects are answered and not stored.
    let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::from([
        ("authentication.k8s.io", vec!["v1"]),
        ("authorization.k8s.io", vec!["v1"]),
    ]);
    for resource in resources
        .iter()
        .filter(|resource| !resource.group.is_empty())
    {
        let versions = groups.entry(&resource.group).or_default();
        for version in &resource.versions {
            if !versions.contains(&version.name.as_str()) {
                versions.push(&version.name);
            }
        }
    }
    groups
}

pub(crate) fn groups(resources: &[Arc<Resource>]) -> Value {
    let groups: Vec<Value> = versions(resources)
        .into_iter()
        .map(|(group, versions)| describe(group, &versions))
        .collect();
    json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups })
}

pub(crate) fn group(resources: &[Arc<Resource>], name: &str) -> Option<Value> {
    let all = versions(resources);
    let mut group = describe(name, all.get(name)?);
    crate::object::set(&mut group, &["kind"], "APIGroup".into());
    crate::object::set(&mut group, &["apiVersion"], "v1".into());
    Some(group)
}

fn describe(group: &str, versions: &[&str]) -> Value {
    let version = |version: &&str| json!({ "groupVersion": format!("{group}/{version}"), "version": version });
    json!({
        "name": group,
        "versions": versions.iter().map(version).collect::<Vec<_>>(),
        "preferredVersion": versions.first().map(version),
    })
}

/// `APIResourceList` of one version of one group.
pub(crate) fn resources(all: &[Arc<Resource>], group: &str, version: &str) -> Option<Value> {
    let mut list = Vec::new();
    for resource in all.iter().filter(|resource| resource.group == group) {
        let Some(served) = resource.version(version) else {
            continue;
        };
        list.push(json!({
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
            "shortNames": resource.short_names,
            "categories": resource.categories,
        }));
        let part = |name: &str, kind: &str, group: &str, version: &str, verbs: &[&str]| {
            json!({
                "name": format!("{}/{name}", resource.plural),
                "singularName": "",
                "namespaced": resource.namespaced,
                "kind": kind,
                "group": group,
                "version": version,
                "verbs": verbs,
            })
        };
        let changeable = ["get", "patch", "update"];
        if served.status {
            list.push(part("status", &resource.kind, group, version, &changeable));
        }
        if served.scale.is_some() {
            list.push(part("scale", "Scale", "autoscaling", "v1", &changeable));
        }
        if resource.is_core("pods") {
            list.push(part("binding", "Binding", "", "v1", &["create"]));
            list.push(part("eviction", "Eviction", "policy", "v1", &["create"]));
            list.push(part("ephemeralcontainers", "Pod", "", "v1", &changeable));
            list.push(part("resize", "Pod", "", "v1", &changeable));
        }
        if resource.is_core("namespaces") {
            list.push(part("finalize", "Namespace", "", "v1", &["update"]));
        }
    }
    let ask = |name: &str, kind: &str, namespaced: bool| json!({ "name": name, "singularName": kind.to_lowercase(), "namespaced": namespaced, "kind": kind, "verbs": ["create"] });
    match (group, version) {
        ("", "v1") => list.push(ask("bindings", "Binding", true)),
        ("authorization.k8s.io", "v1") => {
            list.push(ask(
                "selfsubjectaccessreviews",
                "SelfSubjectAccessReview",
                false,
            ));
            list.push(ask("subjectaccessreviews", "SubjectAccessReview", false));
        }
        ("authentication.k8s.io", "v1") => {
            list.push(ask("selfsubjectreviews", "SelfSubjectReview", false))
        }
        _ => {}
    }
    if list.is_empty() {
        return None;
    }
    let group_version = if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    };
    Some(
        json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list }),
    )
}

/// The addresses of the OpenAPI documents.
pub(crate) fn openapi_index(all: &[Arc<Resource>]) -> Value {
    let mut paths = serde_json::Map::new();
    let mut add = |path: String| {
        let url = format!("/openapi/v3/{path}?hash=0");
        paths.insert(path, json!({ "serverRelativeURL": url }));
    };
    add("api/v1".into());
    for (group, versions) in versions(all) {
        versions
            .iter()
            .for_each(|version| add(format!("apis/{group}/{version}")));
    }
    json!({ "paths": paths })
}

/// A minimal OpenAPI document, from which clients learn that the server validates fields: each kind by name, with the
/// schema of a custom kind and none for a built-in one.
pub(crate) fn openapi(all: &[Arc<Resource>], group: &str, version: &str) -> Option<Value> {
    let (mut paths, mut schemas) = (serde_json::Map::new(), serde_json::Map::new());
    let prefix = if group.is_empty() {
        "/api/v1".to_owned()
    } else {
        format!("/apis/{group}/{version}")
    };
    for resource in all.iter().filter(|resource| resource.group == group) {
        let Some(served) = resource.version(version) else {
            continue;
        };
        let kind = json!({ "group": group, "version": version, "kind": resource.kind });
        let between = if resource.namespaced {
            "/namespaces/{namespace}"
        } else {
            ""
        };
        let parameters: Vec<Value> = ["dryRun", "fieldManager", "fieldValidation", "force"]
            .iter()
            .map(|name| json!({ "name": name, "in": "query", "schema": { "type": "string", "uniqueItems": true } }))
            .collect();
        let answer = json!({ "200": { "description": "OK" } });
        let verb = |action: &str, parameters: &[Value]| {
            json!({
                "x-kubernetes-action": action,
                "x-kubernetes-group-version-kind": kind,
                "parameters": parameters,
                "responses": answer,
            })
        };
        let plural = &resource.plural;
        paths.insert(
            format!("{prefix}{between}/{plural}"),
            json!({ "get": verb("list", &[]), "post": verb("post", &parameters) }),
        );
        paths.insert(
            format!("{prefix}{between}/{plural}/{{name}}"),
            json!({
                "get": verb("get", &[]),
                "put": verb("put", &parameters),
                "patch": verb("patch", &parameters),
                "delete": verb("delete", &[]),
            }),
        );
        let mut schema = served.schema.clone().unwrap_or_else(
            || json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true }),
        );
        crate::object::set(
            &mut schema,
            &["x-kubernetes-group-version-kind"],
            json!([kind]),
        );
        let mut name: Vec<&str> = if group.is_empty() {
            vec!["core", "k8s", "io"]
        } else {
            group.split('.').collect()
        };
        name.reverse();
        schemas.insert(
            format!("{}.{version}.{}", name.join("."), resource.kind),
            schema,
        );
    }
    if paths.is_empty() {
        return None;
    }
    Some(json!({
        "openapi": "3.0.0",
        "info": { "title": "Kubernetes, in memory", "version": "v1.35.0" },
        "paths": paths,
        "components": { "schemas": schemas },
    }))
}
