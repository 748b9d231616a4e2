//! The simulator's routes. A handler decodes, calls and encodes; the HTTP rules for all of them (CORS, one form of
//! errors, `405` for `HEAD`) stand beside the routes.

mod answers;
mod browsers;
mod cors;
mod origins;

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, Request, State};
use axum::http::header::{ACCEPT, ALLOW, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post, put};
use embedded_cluster::Status;
use futures_util::StreamExt;
use serde_json::Value;
use server::Bodies;

use self::answers::{Failed, empty, error, json, pieces};
use self::cors::allow as cors;
pub use self::origins::Origins;
use crate::simulator::{Import, Merge, Pages, Refusal, Simulator, Starts};

/// How often a stream of Server-Sent Events sends a sign of life.
const HEARTBEAT: std::time::Duration = std::time::Duration::from_secs(15);

/// The longest body of one object that an API server reads, in bytes.
const MOST_OBJECT: usize = 3 << 20;

/// All routes of the simulator's listener: its own, its cluster's API, and the web page. Must be called in a Tokio
/// runtime, because the page follows the cluster.
pub fn routes(simulator: &Simulator, origins: Origins, bodies: Bodies) -> Router {
    let own = Router::new()
        .route(
            "/api/v1/schedulerconfiguration",
            only("GET, POST", get(configuration).post(configure)),
        )
        .route("/api/v1/reset", only("PUT", put(reset)))
        .route("/api/v1/export", only("GET", get(export)))
        .route("/api/v1/import", only("POST", post(import)))
        .route("/api/v1/listwatchresources", only("GET", get(list_watch)))
        .route("/api/v1/extender/{verb}/{id}", only("POST", post(extender)))
        .with_state(simulator.clone());
    let cluster = simulator
        .cluster()
        .api_routes()
        .layer(from_fn_with_state(simulator.clone(), known));
    let cluster = of_kubernetes(cluster, bodies);
    let pages = pages::web::router(Arc::new(Pages::of(simulator))).layer(from_fn(for_browsers));
    let own = own.merge(pages).fallback(not_found);
    cors(origins, bodies.limit_answering(own, error).merge(cluster))
}

/// All routes of the listener that serves only the cluster.
pub fn kubernetes(simulator: &Simulator, origins: Origins, bodies: Bodies) -> Router {
    cors(origins, of_kubernetes(simulator.cluster().router(), bodies))
}

/// Applies an API server's body limit, with an API server's words for a body that is too long.
fn of_kubernetes(router: Router, bodies: Bodies) -> Router {
    let bodies = Bodies {
        bytes: MOST_OBJECT.min(bodies.bytes),
        ..bodies
    };
    bodies.limit_answering(router, |code, message| {
        let status = match code {
            StatusCode::PAYLOAD_TOO_LARGE => Status::too_large(MOST_OBJECT),
            StatusCode::SERVICE_UNAVAILABLE => Status::too_many_requests(message),
            StatusCode::REQUEST_TIMEOUT => Status::denied(code.as_u16(), message),
            _ => Status::bad_request(message),
        };
        (code, axum::Json(status.to_value())).into_response()
    })
}

/// Refuses other methods, `HEAD` among them, in this API's form.
fn only(methods: &'static str, routes: MethodRouter<Simulator>) -> MethodRouter<Simulator> {
    let refuse = move || async move {
        let answer = error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
        ([(ALLOW, methods)], answer)
    };
    routes.head(refuse).fallback(refuse)
}

/// Serves the page at `/` to clients that accept HTML. Other clients get what the reference answers there: nothing.
async fn for_browsers(request: Request, next: Next) -> Response {
    if request.uri().path() == "/" && !accepts(request.headers(), "text/html") {
        return not_found().await;
    }
    next.run(request).await
}

/// Whether the client's `Accept` names this type.
fn accepts(headers: &HeaderMap, kind: &str) -> bool {
    headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.to_ascii_lowercase().contains(kind))
}

async fn not_found() -> Response {
    error(StatusCode::NOT_FOUND, "Not Found")
}

/// Answers an unknown path below `/api/v1` in the simulator's form, not in a Kubernetes API's.
async fn known(State(simulator): State<Simulator>, request: Request, next: Next) -> Response {
    let below = request.uri().path().strip_prefix("/api/v1/");
    let first = below.and_then(|path| path.split('/').next());
    match first {
        Some(name) if !name.is_empty() && simulator.cluster().resource("", name).is_err() => {
            not_found().await
        }
        _ => next.run(request).await,
    }
}

async fn configuration(State(simulator): State<Simulator>) -> Response {
    json(&simulator.setup().shown)
}

/// Answers 500 where the reference does, with a reason.
async fn configure(
    State(simulator): State<Simulator>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Failed> {
    let posted =
        decode(&headers, &body).map_err(|refusal| Refusal::Impossible(refusal.to_string()))?;
    simulator.configure(&posted).await?;
    Ok(empty(StatusCode::ACCEPTED))
}

async fn reset(State(simulator): State<Simulator>) -> Response {
    simulator.reset().await;
    empty(StatusCode::ACCEPTED)
}

async fn export(State(simulator): State<Simulator>) -> Response {
    pieces(simulator.export().into_pieces())
}

async fn import(
    State(simulator): State<Simulator>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Failed> {
    let parameters = parameters(&uri)?;
    let replace = parameters.iter().rfind(|(name, _)| name == "replace");
    let merge = match replace.map_or("", |(_, value)| value.as_str()) {
        "" | "false" => Merge::Keep,
        "true" => Merge::Replace,
        other => {
            let why = format!("replace: \"{other}\" is not true or false");
            return Err(Refusal::Unreadable(why).into());
        }
    };
    let import = Import::read(decode(&headers, &body)?)?;
    simulator.import(&import, merge).await?;
    Ok(empty(StatusCode::OK))
}

/// JSON lines, or Server-Sent Events for clients that accept them.
async fn list_watch(
    State(simulator): State<Simulator>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Failed> {
    let parameters = parameters(&uri)?;
    let pairs = parameters
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    let frames = simulator.frames(&Starts::read(pairs)?)?.into_stream();
    if accepts(&headers, "text/event-stream") {
        return Ok(answers::events(frames, HEARTBEAT));
    }
    let lines = frames.map(|frame| Ok::<_, std::convert::Infallible>(frame.json + "\n"));
    let kind = [(CONTENT_TYPE, "application/json")];
    Ok((kind, Body::from_stream(lines)).into_response())
}

fn parameters(uri: &Uri) -> Result<Vec<(String, String)>, Refusal> {
    Query::try_from_uri(uri)
        .map(|Query(parameters)| parameters)
        .map_err(|why| Refusal::Unreadable(format!("the query cannot be read: {why}")))
}

/// Passes a request on to an extender of the configuration. The scheduling loop calls extenders itself.
async fn extender(
    State(simulator): State<Simulator>,
    Path((verb, id)): Path<(String, String)>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Failed> {
    let number: usize = id.parse().map_err(|_| {
        let why = format!("{id} is not the number of an extender; expected 0 for the first");
        Refusal::Unreadable(why)
    })?;
    let body = decode(&headers, &body)?;
    match simulator.ask_extender(number, &verb, &body).await {
        Some(answer) => Ok(json(&answer?)),
        None => {
            let why = format!("the configuration has no extender {number} that is asked to {verb}");
            Ok(error(StatusCode::NOT_FOUND, &why))
        }
    }
}

/// A JSON body; an empty body is an empty object.
fn decode(headers: &HeaderMap, body: &[u8]) -> Result<Value, Refusal> {
    if body.is_empty() {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    let kind = headers
        .get(CONTENT_TYPE)
        .map_or(Ok(""), |kind| kind.to_str());
    let kind = kind.unwrap_or_default();
    let plain = kind.split(';').next().unwrap_or_default().trim();
    if !plain.eq_ignore_ascii_case("application/json") {
        return Err(Refusal::Unreadable(format!(
            "Content-Type: \"{kind}\" is not read here; expected application/json"
        )));
    }
    serde_json::from_slice(body)
        .map_err(|error| Refusal::Unreadable(format!("the body is not JSON: {error}")))
}
