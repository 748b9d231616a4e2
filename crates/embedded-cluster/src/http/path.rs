//! The meaning of a path under `/api` or `/apis`. Text in, value out.

/// A kind of request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Route {
    /// `/api`
    CoreVersions,
    /// `/apis`
    Groups,
    /// `/apis/apps`
    Group(String),
    /// `/api/v1`, `/apis/apps/v1`
    Resources { group: String, version: String },
    /// All paths below.
    Objects(ApiPath),
}

/// A collection, an object or a part of one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ApiPath {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) namespace: String,
    pub(crate) plural: String,
    pub(crate) name: String,
    pub(crate) subresource: String,
}

/// None for a path that Kubernetes does not have.
pub(crate) fn route(path: &str) -> Option<Route> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    if parts.iter().any(|part| part.is_empty()) {
        return None;
    }
    let own = |text: &str| text.to_owned();
    let (group, version, rest) = match parts.as_slice() {
        ["api"] => return Some(Route::CoreVersions),
        ["apis"] => return Some(Route::Groups),
        ["apis", group] => return Some(Route::Group(own(group))),
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        _ => return None,
    };
    let (namespace, rest) = match rest {
        // A subresource of a namespace is not a collection in it.
        ["namespaces", name, part @ ("status" | "finalize")] => {
            let place = ApiPath {
                name: own(name),
                subresource: own(part),
                ..ApiPath::default()
            };
            return Some(Route::Objects(ApiPath {
                version: own(version),
                plural: "namespaces".into(),
                ..place
            }));
        }
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
        rest => ("", rest),
    };
    let (plural, name, subresource) = match rest {
        [] => {
            return Some(Route::Resources {
                group: own(group),
                version: own(version),
            });
        }
        [plural] => (*plural, "", String::new()),
        [plural, name] => (*plural, *name, String::new()),
        [plural, name, subresource @ ..] => (*plural, *name, subresource.join("/")),
    };
    Some(Route::Objects(ApiPath {
        group: own(group),
        version: own(version),
        namespace: own(namespace),
        plural: own(plural),
        name: own(name),
        subresource,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &str) -> [String; 6] {
        match route(path) {
            Some(Route::Objects(place)) => [
                place.group,
                place.version,
                place.namespace,
                place.plural,
                place.name,
                place.subresource,
            ],
            other => panic!("{path}: {other:?}"),
        }
    }

    #[test]
    fn paths_name_what_kubernetes_means_by_them() {
        assert_eq!(place("/api/v1/nodes"), ["", "v1", "", "nodes", "", ""]);
        assert_eq!(
            place("/api/v1/namespaces"),
            ["", "v1", "", "namespaces", "", ""]
        );
        assert_eq!(
            place("/api/v1/namespaces/a"),
            ["", "v1", "", "namespaces", "a", ""]
        );
        assert_eq!(
            place("/api/v1/namespaces/a/status"),
            ["", "v1", "", "namespaces", "a", "status"]
        );
        assert_eq!(
            place("/api/v1/namespaces/a/pods"),
            ["", "v1", "a", "pods", "", ""]
        );
        assert_eq!(
            place("/api/v1/namespaces/a/pods/p/binding"),
            ["", "v1", "a", "pods", "p", "binding"]
        );
        assert_eq!(
            place("/apis/g.io/v1/namespaces/a/ks/k"),
            ["g.io", "v1", "a", "ks", "k", ""]
        );
        assert_eq!(
            place("/api/v1/nodes/n/proxy/x"),
            ["", "v1", "", "nodes", "n", "proxy/x"]
        );
        assert_eq!(route("/apis/apps"), Some(Route::Group("apps".into())));
        assert_eq!(route("/api"), Some(Route::CoreVersions));
        assert_eq!(route("/api//pods"), None);
        assert_eq!(route("/other"), None);
    }
}
