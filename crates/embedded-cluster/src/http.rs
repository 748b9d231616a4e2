//! The cluster over HTTP: paths, query parameters, content types and status codes. It decodes, asks the cluster and
//! encodes.

mod discovery;
mod format;
mod guard;
mod path;
mod stream;
mod table;

use std::collections::HashMap;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Query, Request, State};
use axum::http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use bytes::Bytes;
use futures_util::stream::iter;
use serde_json::{Value, json};

use self::format::{Form, Printer};
pub use self::guard::{TokenNeeded, guard};
use self::path::{ApiPath, Route};
use crate::cluster::Cluster;
use crate::object::{Stored, meta, to_json};
use crate::patch::Patch;
use crate::pod::delete_options;
use crate::scale;
use crate::selector::Selector;
use crate::status::Status;
use crate::target::{Deleted, ListOptions, Part, Target, Write};
use crate::watch::Start;

impl Cluster {
    /// All routes: the API's and the three health routes.
    pub fn router(&self) -> Router {
        self.api_routes()
            .route("/healthz", get("ok"))
            .route("/livez", get("ok"))
            .route("/readyz", get("ok"))
    }

    /// The API's routes alone, for a listener that has other routes too. Routes with a fixed path below `/api` take
    /// precedence.
    pub fn api_routes(&self) -> Router {
        Router::new()
            .route(
                "/version",
                get(async || json_answer(StatusCode::OK, &discovery::version())),
            )
            .route("/openapi/v3", get(openapi_index))
            .route("/openapi/v3/{*path}", get(openapi))
            .route("/openapi/v2", get(async || Refused(Status::no_such_path())))
            .route("/api", any(serve))
            .route("/api/{*path}", any(serve))
            .route("/apis", any(serve))
            .route("/apis/{*path}", any(serve))
            .with_state(self.clone())
    }
}

/// A refusal as an HTTP response.
pub(crate) struct Refused(pub(crate) Status);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let code = StatusCode::from_u16(self.0.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = json_answer(code, &self.0.to_value());
        if let Some(seconds) = self
            .0
            .details
            .get("retryAfterSeconds")
            .and_then(Value::as_u64)
        {
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        response
    }
}

fn json_answer(code: StatusCode, value: &Value) -> Response {
    bytes_answer(code, to_json(value).into())
}

fn bytes_answer(code: StatusCode, body: Bytes) -> Response {
    (code, [(CONTENT_TYPE, "application/json")], body).into_response()
}

async fn openapi_index(State(cluster): State<Cluster>) -> Response {
    json_answer(
        StatusCode::OK,
        &discovery::openapi_index(&cluster.resources()),
    )
}

async fn openapi(State(cluster): State<Cluster>, request: Request) -> Response {
    let path = request.uri().path().trim_start_matches("/openapi/v3");
    let document = match path::route(path) {
        Some(Route::Resources { group, version }) => {
            discovery::openapi(&cluster.resources(), &group, &version)
        }
        _ => None,
    };
    match document {
        Some(document) => json_answer(StatusCode::OK, &document),
        None => Refused(Status::no_such_path()).into_response(),
    }
}

async fn serve(State(cluster): State<Cluster>, request: Request) -> Response {
    match answer(&cluster, request).await {
        Ok(response) => response,
        Err(status) => Refused(status).into_response(),
    }
}

async fn answer(cluster: &Cluster, request: Request) -> Result<Response, Status> {
    let path =
        decode(request.uri().path()).ok_or_else(|| Status::bad_request("the path is not text"))?;
    let found = |value: Option<Value>| {
        value
            .map(|value| json_answer(StatusCode::OK, &value))
            .ok_or_else(Status::no_such_path)
    };
    let resources = || cluster.resources();
    match path::route(&path).ok_or_else(Status::no_such_path)? {
        Route::Objects(place) => objects(cluster, place, request).await,
        _ if request.method() != Method::GET => Err(Status::method_not_allowed()),
        Route::CoreVersions => found(Some(discovery::core_versions())),
        Route::Groups => found(Some(discovery::groups(&resources()))),
        Route::Group(name) => found(discovery::group(&resources(), &name)),
        Route::Resources { group, version } => {
            found(discovery::resources(&resources(), &group, &version))
        }
    }
}

/// The parts of a request besides its path.
struct Asked {
    query: HashMap<String, String>,
    headers: HeaderMap,
    content_type: String,
    body: Bytes,
}

impl Asked {
    async fn read(cluster: &Cluster, request: Request) -> Result<Self, Status> {
        let Query(query) = Query::try_from_uri(request.uri())
            .map_err(|error| Status::bad_request(format!("the query cannot be read: {error}")))?;
        let limit = cluster.0.options.body_limit;
        let (parts, body) = request.into_parts();
        let length = header(&parts.headers, CONTENT_LENGTH.as_str())
            .parse::<usize>()
            .unwrap_or(0);
        if length > limit {
            return Err(Status::too_large(limit));
        }
        let body = to_bytes(body, limit).await.map_err(|error| {
            let too_long = std::error::Error::source(&error)
                .is_some_and(|source| source.to_string().contains("length limit"));
            if too_long {
                Status::too_large(limit)
            } else {
                Status::bad_request(format!("the body cannot be read: {error}"))
            }
        })?;
        let content_type = header(&parts.headers, CONTENT_TYPE.as_str());
        let content_type = content_type
            .split(';')
            .next()
            .unwrap_or_default()
            .trim()
            .to_lowercase();
        Ok(Self {
            query,
            headers: parts.headers,
            content_type,
            body,
        })
    }

    fn param(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    fn flag(&self, name: &str) -> bool {
        matches!(self.param(name), "true" | "1" | "True" | "TRUE" | "t" | "T")
    }

    fn number(&self, name: &str) -> Result<Option<u64>, Status> {
        match self.param(name) {
            "" => Ok(None),
            text => text
                .parse()
                .map(Some)
                .map_err(|_| Status::bad_request(format!("{name}: \"{text}\" is not a number"))),
        }
    }

    fn form(&self) -> Result<Form, Status> {
        Form::accepted(
            header(&self.headers, ACCEPT.as_str()),
            self.param("includeObject"),
        )
    }

    fn selector(&self) -> Result<Selector, Status> {
        Selector::parse(self.param("labelSelector"), self.param("fieldSelector"))
    }

    fn write(&self, options: &Value) -> Result<Write, Status> {
        let dry_run = match self.param("dryRun") {
            "" => options["dryRun"]
                .as_array()
                .is_some_and(|stages| stages.iter().any(|stage| stage == "All")),
            "All" => true,
            other => {
                return Err(Status::bad_request(format!(
                    "dryRun: Unsupported value: \"{other}\": supported values: \"All\""
                )));
            }
        };
        let manager = match self.param("fieldManager") {
            "" => header(&self.headers, USER_AGENT.as_str())
                .split('/')
                .next()
                .unwrap_or_default(),
            manager => manager,
        };
        let mut write = Write {
            dry_run,
            force: self.flag("force"),
            ..Write::default()
        };
        if !manager.is_empty() {
            write.field_manager = manager.chars().take(128).collect();
        }
        // Users are not authenticated here, so every request may impersonate any user.
        let user = header(&self.headers, "impersonate-user");
        if !user.is_empty() {
            write.user = user.to_owned();
            let groups = self.headers.get_all("impersonate-group").iter();
            write.groups = groups
                .filter_map(|group| group.to_str().ok().map(str::to_owned))
                .collect();
            write.groups.push("system:authenticated".into());
        }
        Ok(write)
    }

    /// The body as an object, from JSON or YAML.
    fn object(&self) -> Result<Value, Status> {
        match self.content_type.as_str() {
            ""
            | "application/json"
            | "*/*"
            | "application/x-www-form-urlencoded"
            | "application/apply-patch+json" => self.json(),
            "application/yaml" | "application/apply-patch+yaml" => {
                self.json().or_else(|_| self.yaml())
            }
            other => Err(Status::unsupported_media_type(
                other,
                &["application/json", "application/yaml"],
            )),
        }
    }

    fn json(&self) -> Result<Value, Status> {
        serde_json::from_slice(&self.body).map_err(|error| {
            Status::bad_request(format!(
                "the object provided is unrecognized: couldn't parse JSON: {error}"
            ))
        })
    }

    fn yaml(&self) -> Result<Value, Status> {
        let wrong = |why: String| {
            Status::bad_request(format!(
                "the object provided is unrecognized: couldn't parse YAML: {why}"
            ))
        };
        let text = std::str::from_utf8(&self.body).map_err(|error| wrong(error.to_string()))?;
        serde_saphyr::from_str(text).map_err(|error| {
            wrong(
                error
                    .to_string()
                    .lines()
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
            )
        })
    }

    fn patch(&self) -> Result<Patch, Status> {
        let body = match self.content_type.as_str() {
            "application/apply-patch+yaml" => self.object()?,
            known
                if crate::patch::CONTENT_TYPES.contains(&known)
                    || known == "application/apply-patch+json" =>
            {
                self.json()?
            }
            other => {
                return Err(Status::unsupported_media_type(
                    other,
                    &crate::patch::CONTENT_TYPES,
                ));
            }
        };
        Patch::parse(&self.content_type, body)
    }

    /// The options of a deletion, from its body, its query, or both.
    fn deletion(&self) -> Result<Value, Status> {
        let mut options = if self.body.is_empty() {
            json!({})
        } else {
            self.object()?
        };
        if !options.is_object() {
            return Err(Status::bad_request("the delete options are not an object"));
        }
        if let Some(seconds) = self.number("gracePeriodSeconds")? {
            crate::object::set(&mut options, &["gracePeriodSeconds"], seconds.into());
        }
        Ok(options)
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

async fn objects(cluster: &Cluster, place: ApiPath, request: Request) -> Result<Response, Status> {
    let method = request.method().clone();
    if let Some(kind) = review_kind(&place) {
        let asked = Asked::read(cluster, request).await?;
        return if method == Method::POST {
            review(kind, &asked)
        } else {
            Err(Status::method_not_allowed())
        };
    }
    if place.group.is_empty() && place.plural == "bindings" && method == Method::POST {
        return bind(
            cluster,
            ApiPath {
                plural: "pods".into(),
                ..place
            },
            request,
        )
        .await;
    }
    let resource = cluster.resource(&place.group, &place.plural)?;
    let mut target = Target::object(&resource, &place.namespace, &place.name);
    target.version = place.version.clone();
    target.served()?;
    if !resource.namespaced && !place.namespace.is_empty() {
        return Err(Status::no_such_path());
    }
    // An object in a namespace needs the namespace in its path; only collections can span all namespaces.
    if resource.namespaced
        && place.namespace.is_empty()
        && !(place.name.is_empty() && method == Method::GET)
    {
        let creates = place.name.is_empty() && method == Method::POST;
        if !creates {
            return Err(if place.name.is_empty() {
                Status::method_not_allowed()
            } else {
                Status::no_such_path()
            });
        }
    }
    target.part = match place.subresource.as_str() {
        "" => Part::Whole,
        "status" if target.served()?.status => Part::Status,
        "ephemeralcontainers" if resource.is_core("pods") => Part::EphemeralContainers,
        "resize" if resource.is_core("pods") => Part::Resize,
        "finalize" if resource.is_core("namespaces") => Part::Finalize,
        "binding" if resource.is_core("pods") && method == Method::POST => {
            return bind(cluster, place, request).await;
        }
        "eviction" if resource.is_core("pods") && method == Method::POST => {
            return evict(cluster, &target, request).await;
        }
        "scale" if target.served()?.scale.is_some() => {
            return scaled(cluster, &target, request).await;
        }
        _ => return Err(Status::no_such_path()),
    };
    let asked = Asked::read(cluster, request).await?;
    let printer = Printer {
        resource: resource.clone(),
        version: place.version,
        form: asked.form()?,
    };
    let object = |code: StatusCode, object: &Stored| bytes_answer(code, printer.object(object));
    match (method.as_str(), target.name.is_empty()) {
        ("GET", _) if asked.flag("watch") => watch(cluster, &mut target, printer, &asked),
        ("GET", true) => list(cluster, &target, printer, &asked),
        ("GET", false) => Ok(object(StatusCode::OK, &*cluster.get(&target)?)),
        ("POST", true) => {
            let made = cluster
                .create(&target, asked.object()?, &asked.write(&Value::Null)?)
                .await?;
            Ok(object(StatusCode::CREATED, &made))
        }
        ("PUT", false) => {
            let changed = cluster
                .update(&target, asked.object()?, &asked.write(&Value::Null)?)
                .await?;
            Ok(object(StatusCode::OK, &changed))
        }
        ("PATCH", false) => {
            let patch = asked.patch()?;
            if matches!(patch, Patch::Apply(_)) && asked.param("fieldManager").is_empty() {
                return Err(Status::bad_request(
                    "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
                ));
            }
            let there = cluster.find(&target).is_some();
            let changed = cluster
                .patch(&target, &patch, &asked.write(&Value::Null)?)
                .await?;
            Ok(object(
                if there {
                    StatusCode::OK
                } else {
                    StatusCode::CREATED
                },
                &changed,
            ))
        }
        ("DELETE", false) if target.part == Part::Whole => {
            let options = asked.deletion()?;
            let deleted = cluster
                .delete(&target, &delete_options(&options), &asked.write(&options)?)
                .await?;
            Ok(deletion(&target, &deleted, &printer))
        }
        ("DELETE", true) => {
            let options = asked.deletion()?;
            let write = asked.write(&options)?;
            let which = list_options(&asked)?;
            let listed = cluster
                .delete_collection(&target, &which, &delete_options(&options), &write)
                .await?;
            Ok(pieces(printer.list(listed)))
        }
        _ => Err(Status::method_not_allowed()),
    }
}

fn list_options(asked: &Asked) -> Result<ListOptions, Status> {
    let limit = asked.number("limit")?.unwrap_or(0);
    let exact = match asked.param("resourceVersionMatch") {
        "" | "NotOlderThan" => false,
        "Exact" => true,
        other => {
            return Err(Status::bad_request(format!(
                "resourceVersionMatch: Unsupported value: \"{other}\""
            )));
        }
    };
    Ok(ListOptions {
        selector: asked.selector()?,
        limit: usize::try_from(limit).unwrap_or(usize::MAX),
        continue_token: asked.param("continue").to_owned(),
        version: asked
            .number("resourceVersion")?
            .map(|version| (version, exact)),
    })
}

fn list(
    cluster: &Cluster,
    target: &Target,
    printer: Printer,
    asked: &Asked,
) -> Result<Response, Status> {
    let listed = cluster.list(target, &list_options(asked)?)?;
    Ok(pieces(printer.list(listed)))
}

fn pieces(pieces: Box<dyn Iterator<Item = Bytes> + Send>) -> Response {
    let body = Body::from_stream(iter(pieces.map(Ok::<_, std::convert::Infallible>)));
    (StatusCode::OK, [(CONTENT_TYPE, "application/json")], body).into_response()
}

fn watch(
    cluster: &Cluster,
    target: &mut Target,
    printer: Printer,
    asked: &Asked,
) -> Result<Response, Status> {
    let mut selector = asked.selector()?;
    if !target.name.is_empty() {
        selector = selector.and_name(&std::mem::take(&mut target.name));
    }
    let version = asked.number("resourceVersion")?;
    let initial = asked.param("sendInitialEvents");
    if !initial.is_empty() && asked.param("resourceVersionMatch") != "NotOlderThan" {
        return Err(Status::invalid(
            "meta.k8s.io",
            "ListOptions",
            "",
            "resourceVersionMatch",
            "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ));
    }
    let current = cluster.resource_version();
    let start = match (initial, version) {
        ("", Some(version)) if version > 0 => Start::After(version),
        ("" | "true", Some(version)) if version > current => {
            return Err(Status::version_too_large(version, current));
        }
        ("" | "true", _) => Start::Now,
        ("false", Some(version)) if version > 0 => Start::After(version),
        ("false", _) => Start::After(current),
        (other, _) => {
            return Err(Status::bad_request(format!(
                "sendInitialEvents: \"{other}\" is not true or false"
            )));
        }
    };
    let watch = cluster.watch(target, selector, start)?;
    let settings = stream::Settings {
        seconds: asked.number("timeoutSeconds")?,
        bookmarks: asked.flag("allowWatchBookmarks"),
        bookmark_every: cluster.0.options.bookmark_every,
        tell_start: initial == "true",
    };
    Ok((
        StatusCode::OK,
        [(CONTENT_TYPE, "application/json")],
        stream::body(watch, printer, settings),
    )
        .into_response())
}

fn deletion(target: &Target, deleted: &Deleted, printer: &Printer) -> Response {
    match deleted {
        Deleted::Marked(object) => bytes_answer(StatusCode::OK, printer.object(object)),
        Deleted::Gone(object) => {
            let mut details = json!({ "name": target.name, "kind": target.resource.plural, "uid": meta(&object.value(), "uid") });
            if !target.resource.group.is_empty() {
                crate::object::set(
                    &mut details,
                    &["group"],
                    target.resource.group.as_str().into(),
                );
            }
            json_answer(StatusCode::OK, &success(&details))
        }
    }
}

fn success(details: &Value) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details })
}

async fn bind(cluster: &Cluster, place: ApiPath, request: Request) -> Result<Response, Status> {
    let asked = Asked::read(cluster, request).await?;
    let binding = asked.object()?;
    if !binding.is_object() {
        return Err(Status::bad_request("the binding is not an object"));
    }
    let pods = cluster.resource("", "pods")?;
    let name = if place.name.is_empty() {
        meta(&binding, "name").to_owned()
    } else {
        place.name
    };
    let target = Target::object(&pods, &place.namespace, &name);
    cluster
        .bind(&target, binding, &asked.write(&Value::Null)?)
        .await?;
    Ok(json_answer(
        StatusCode::CREATED,
        &json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201 }),
    ))
}

async fn evict(cluster: &Cluster, target: &Target, request: Request) -> Result<Response, Status> {
    let asked = Asked::read(cluster, request).await?;
    let eviction = asked.object()?;
    cluster
        .evict(target, &eviction, &asked.write(&eviction["deleteOptions"])?)
        .await?;
    Ok(json_answer(
        StatusCode::CREATED,
        &json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201 }),
    ))
}

async fn scaled(cluster: &Cluster, target: &Target, request: Request) -> Result<Response, Status> {
    let method = request.method().clone();
    let asked = Asked::read(cluster, request).await?;
    let write = asked.write(&Value::Null)?;
    let scale = match method.as_str() {
        "GET" => scale::read(cluster, target)?,
        "PUT" => scale::update(cluster, target, &asked.object()?, &write).await?,
        "PATCH" => scale::patch(cluster, target, &asked.patch()?, &write).await?,
        _ => return Err(Status::method_not_allowed()),
    };
    Ok(json_answer(StatusCode::OK, &scale))
}

/// Access reviews. Every user may do everything here, but clients ask anyway.
fn review_kind(place: &ApiPath) -> Option<&'static str> {
    match (place.group.as_str(), place.plural.as_str()) {
        ("authorization.k8s.io", "selfsubjectaccessreviews") => Some("SelfSubjectAccessReview"),
        ("authorization.k8s.io", "subjectaccessreviews") => Some("SubjectAccessReview"),
        ("authentication.k8s.io", "selfsubjectreviews") => Some("SelfSubjectReview"),
        _ => None,
    }
}

fn review(kind: &str, asked: &Asked) -> Result<Response, Status> {
    let write = asked.write(&Value::Null)?;
    let status = match kind {
        "SelfSubjectReview" => {
            json!({ "userInfo": { "username": write.user, "groups": write.groups } })
        }
        _ => json!({ "allowed": true, "reason": "the embedded cluster allows everything" }),
    };
    let mut object = asked.object()?;
    crate::object::set(&mut object, &["kind"], kind.into());
    crate::object::set(&mut object, &["status"], status);
    Ok(json_answer(StatusCode::CREATED, &object))
}

/// The percent-decoded path; `None` if it is not UTF-8.
fn decode(path: &str) -> Option<String> {
    if !path.contains('%') {
        return Some(path.to_owned());
    }
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
            let (high, low) = (digit(rest.next())?, digit(rest.next())?);
            bytes.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}
