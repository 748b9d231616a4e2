//! Which callers may read `/metrics` and `/explain` from other machines: those whose token the API server knows, and
//! whose account may `get` that path. Asked as kube-rbac-proxy asks: a TokenReview, then a SubjectAccessReview.
//!
//! An answer is kept for [`KEPT`], so that a scrape every 15 s costs four calls a minute, and a right that was taken
//! away ends within that time. A caller is never let in because the API server did not answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::{Api, PostParams};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::calls::{CallError, within};

/// How long an answer of the API server is kept.
const KEPT: Duration = Duration::from_secs(30);
/// How many answers of each kind, yes and no, are kept.
const MOST: usize = 256;
/// How many callers may be reviewed at a time. More would only shift the wait to the API server.
const AT_ONCE: usize = 8;
/// How long a caller waits for a review, its turn included.
const PATIENCE: Duration = Duration::from_secs(5);

/// The API server's answer about a caller.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AccessVerdict {
    /// It may read the path.
    Allowed,
    /// The token was not issued by this cluster.
    Unknown,
    /// Its account may not.
    Forbidden(String),
}

/// Why the API server has said nothing of a caller.
#[derive(Debug, thiserror::Error)]
enum Unreviewed {
    /// It did not answer, or refused this scheduler's question.
    #[error("{0}")]
    Call(#[from] CallError),
    /// Too many other callers are being reviewed.
    #[error("no turn within {} s, because other callers are being reviewed", PATIENCE.as_secs())]
    Busy,
}

/// Asks the API server about callers, and remembers what it said. Clones share both.
#[derive(Clone)]
pub struct Access(Arc<Reviews>);

struct Reviews {
    client: kube::Client,
    turns: Semaphore,
    kept: Mutex<Kept>,
}

impl Access {
    /// Asks with this client, whose account needs the right to create tokenreviews and subjectaccessreviews.
    pub fn new(client: kube::Client) -> Self {
        Self(Arc::new(Reviews {
            client,
            turns: Semaphore::new(AT_ONCE),
            kept: Mutex::default(),
        }))
    }

    /// The same routes, for callers with the right to their path.
    pub fn guard(&self, routes: Router) -> Router {
        routes.route_layer(from_fn_with_state(self.clone(), check))
    }

    async fn verdict(&self, token: &str, path: &str) -> Result<AccessVerdict, Unreviewed> {
        let key = key(token, path);
        if let Some(verdict) = self.0.kept.lock().get(&key, Instant::now()) {
            return Ok(verdict);
        }
        let turn = timeout(PATIENCE, self.0.turns.acquire()).await;
        let Ok(Ok(_turn)) = turn else {
            return Err(Unreviewed::Busy);
        };
        // Another request with the same token may have been answered meanwhile.
        if let Some(verdict) = self.0.kept.lock().get(&key, Instant::now()) {
            return Ok(verdict);
        }
        let verdict = self.review(token, path).await?;
        let mut kept = self.0.kept.lock();
        kept.insert(key, verdict.clone(), Instant::now());
        Ok(verdict)
    }

    async fn review(&self, token: &str, path: &str) -> Result<AccessVerdict, CallError> {
        let params = PostParams::default();
        let tokens: Api<TokenReview> = Api::all(self.0.client.clone());
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: Some(token.to_owned()),
                ..TokenReviewSpec::default()
            },
            ..TokenReview::default()
        };
        let call = tokens.create(&params, &review);
        let status = within(PATIENCE, call).await?.status.unwrap_or_default();
        if status.authenticated != Some(true) {
            return Ok(AccessVerdict::Unknown);
        }
        let UserInfo {
            username,
            groups,
            uid,
            extra,
        } = status.user.unwrap_or_default();
        let reviews: Api<SubjectAccessReview> = Api::all(self.0.client.clone());
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: username.clone(),
                groups,
                uid,
                extra,
                non_resource_attributes: Some(NonResourceAttributes {
                    path: Some(path.to_owned()),
                    verb: Some("get".to_owned()),
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let call = reviews.create(&params, &review);
        let status = within(PATIENCE, call).await?.status;
        Ok(if status.is_some_and(|status| status.allowed) {
            AccessVerdict::Allowed
        } else {
            AccessVerdict::Forbidden(username.unwrap_or_default())
        })
    }
}

async fn check(State(access): State<Access>, request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let Some(token) = bearer(request.headers()) else {
        return unauthorized(&format!(
            "{path} asks for a token of the cluster: send Authorization: Bearer TOKEN. Prometheus takes it from a \
             Secret, vgpu explain from the kubeconfig or --token-file"
        ));
    };
    match access.verdict(token, &path).await {
        Ok(AccessVerdict::Allowed) => next.run(request).await,
        Ok(AccessVerdict::Unknown) => unauthorized(
            "the API server does not know this token, or it has expired; kubectl create token makes one",
        ),
        Ok(AccessVerdict::Forbidden(account)) => server::error(
            StatusCode::FORBIDDEN,
            &format!(
                "{account} may not read {path}: bind it to a ClusterRole with nonResourceURLs [{path}], verbs [get]"
            ),
        ),
        Err(error) => {
            tracing::warn!(%path, %error, "cannot review a caller's token; answered with 503");
            server::error(
                StatusCode::SERVICE_UNAVAILABLE,
                &format!(
                    "the caller's token cannot be checked with the API server: {error}; this scheduler's account \
                     needs the right to create tokenreviews and subjectaccessreviews"
                ),
            )
        }
    }
}

fn unauthorized(text: &str) -> Response {
    let mut response = server::error(StatusCode::UNAUTHORIZED, text);
    let bearer = HeaderValue::from_static("Bearer realm=\"vgpu-scheduler\"");
    response.headers_mut().insert(WWW_AUTHENTICATE, bearer);
    response
}

/// The token of `Authorization: Bearer TOKEN`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let given = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = given.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// A hash, so that no token stays in memory.
type TokenHash = [u8; 32];

fn key(token: &str, path: &str) -> TokenHash {
    let mut hash = Sha256::new();
    hash.update(path);
    hash.update([0]);
    hash.update(token);
    hash.finalize().into()
}

/// Answers of the API server. Refusals have a place of their own, so that forged tokens displace no known caller.
#[derive(Default)]
struct Kept {
    allowed: HashMap<TokenHash, (AccessVerdict, Instant)>,
    refused: HashMap<TokenHash, (AccessVerdict, Instant)>,
}

impl Kept {
    fn get(&self, key: &TokenHash, now: Instant) -> Option<AccessVerdict> {
        let found = self.allowed.get(key).or_else(|| self.refused.get(key));
        let (verdict, until) = found?;
        (now < *until).then(|| verdict.clone())
    }

    fn insert(&mut self, key: TokenHash, verdict: AccessVerdict, now: Instant) {
        self.allowed.remove(&key);
        self.refused.remove(&key);
        let place = match verdict {
            AccessVerdict::Allowed => &mut self.allowed,
            AccessVerdict::Unknown | AccessVerdict::Forbidden(_) => &mut self.refused,
        };
        if place.len() >= MOST {
            place.retain(|_, (_, until)| now < *until);
        }
        if place.len() >= MOST {
            let oldest = place.iter().min_by_key(|(_, (_, until))| *until);
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                place.remove(&oldest);
            }
        }
        place.insert(key, (verdict, now + KEPT));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use axum::body::{Body, to_bytes};
    use axum::routing::get;
    use serde_json::{Value, json};
    use tower::ServiceExt as _;

    use super::*;

    /// An API server that knows the accounts `reader` (which may read `/metrics`) and `other`, each with its name as its
    /// token.
    struct Server {
        asked: Arc<AtomicUsize>,
        silent: Arc<AtomicBool>,
        refuses: Arc<AtomicBool>,
        routes: Router,
    }

    impl Server {
        fn start() -> Self {
            let asked = Arc::new(AtomicUsize::new(0));
            let silent = Arc::new(AtomicBool::new(false));
            let refuses = Arc::new(AtomicBool::new(false));
            let state = (
                Arc::clone(&asked),
                Arc::clone(&silent),
                Arc::clone(&refuses),
            );
            let answer = tower::service_fn(move |request: Request<kube::client::Body>| {
                let (asked, silent, refuses) = state.clone();
                async move {
                    asked.fetch_add(1, Ordering::Relaxed);
                    if silent.load(Ordering::Relaxed) {
                        std::future::pending::<()>().await;
                    }
                    let body = request.into_body().collect_bytes().await.unwrap();
                    let asked: Value = serde_json::from_slice(&body).unwrap();
                    let spec = &asked["spec"];
                    let mut said = asked.clone();
                    said["status"] = match asked["kind"].as_str().unwrap() {
                        "TokenReview" => match spec["token"].as_str().unwrap() {
                            name @ ("reader" | "other") => json!({"authenticated": true,
                                "user": {"username": name, "groups": ["g"], "uid": "1"}}),
                            _ => json!({"error": "no such token"}),
                        },
                        _ => json!({"allowed": spec["user"] == "reader"
                            && spec["groups"] == json!(["g"])
                            && spec["nonResourceAttributes"] == json!({"path": "/metrics", "verb": "get"})}),
                    };
                    let mut code = 201;
                    if refuses.load(Ordering::Relaxed) {
                        code = 403;
                        said = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403,
                            "reason": "Forbidden", "message": "cannot create resource \"tokenreviews\""});
                    }
                    let response = Response::builder().status(code);
                    Ok::<_, std::convert::Infallible>(
                        response.body(Body::from(said.to_string())).unwrap(),
                    )
                }
            });
            let access = Access::new(kube::Client::new(answer, "default"));
            let routes = Router::new()
                .route("/metrics", get(async || "figures"))
                .route("/explain", get(async || "reasons"));
            Self {
                asked,
                silent,
                refuses,
                routes: access.guard(routes),
            }
        }

        async fn get(&self, path: &str, authorization: Option<&str>) -> (u16, String) {
            let mut request = Request::get(path);
            if let Some(authorization) = authorization {
                request = request.header(AUTHORIZATION, authorization);
            }
            let request = request.body(Body::empty()).unwrap();
            let response = self.routes.clone().oneshot(request).await.unwrap();
            let status = response.status().as_u16();
            let asks = response.headers().contains_key(WWW_AUTHENTICATE);
            assert_eq!(asks, status == 401, "{authorization:?}");
            let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
            (status, String::from_utf8_lossy(&body).into_owned())
        }

        fn asked(&self) -> usize {
            self.asked.swap(0, Ordering::Relaxed)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn callers_are_answered_by_their_token_and_their_right() {
        let server = Server::start();
        for (path, authorization, status, says) in [
            ("/metrics", Some("Bearer reader"), 200, "figures"),
            ("/metrics?a=b", Some("bearer  reader "), 200, "figures"),
            (
                "/explain",
                Some("Bearer reader"),
                403,
                "reader may not read /explain",
            ),
            (
                "/metrics",
                Some("Bearer other"),
                403,
                "nonResourceURLs [/metrics]",
            ),
            (
                "/metrics",
                Some("Bearer forged"),
                401,
                "does not know this token",
            ),
            ("/metrics", None, 401, "asks for a token"),
            ("/metrics", Some("Bearer "), 401, "asks for a token"),
            ("/metrics", Some("Basic cmVhZGVy"), 401, "asks for a token"),
            ("/metrics", Some("reader"), 401, "asks for a token"),
            ("/nothing", None, 404, ""),
        ] {
            let (code, said) = server.get(path, authorization).await;
            assert_eq!(code, status, "{path} {authorization:?}: {said}");
            assert!(said.contains(says), "{path} {authorization:?}: {said}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_kept_for_a_while_and_no_longer() {
        let server = Server::start();
        for (token, calls) in [("Bearer reader", 2), ("Bearer forged", 1)] {
            for _ in 0..3 {
                server.get("/metrics", Some(token)).await;
            }
            assert_eq!(server.asked(), calls, "{token}");
        }
        tokio::time::advance(KEPT).await;

        server.get("/metrics", Some("Bearer reader")).await;

        assert_eq!(server.asked(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_says_nothing_opens_nothing() {
        let server = Server::start();
        server.silent.store(true, Ordering::Relaxed);
        let (code, said) = server.get("/metrics", Some("Bearer reader")).await;
        assert_eq!(code, 503, "{said}");
        assert!(
            said.contains("no answer from the API server within 5 s"),
            "{said}"
        );

        // The failure is not kept.
        server.silent.store(false, Ordering::Relaxed);
        server.refuses.store(true, Ordering::Relaxed);
        let (code, said) = server.get("/metrics", Some("Bearer reader")).await;
        assert_eq!(code, 503, "{said}");
        assert!(said.contains("tokenreviews"), "{said}");

        server.refuses.store(false, Ordering::Relaxed);
        assert_eq!(server.get("/metrics", Some("Bearer reader")).await.0, 200);
    }

    #[test]
    fn token_cache_is_bounded_and_forged_tokens_displace_no_caller() {
        let mut kept = Kept::default();
        let now = Instant::now();
        let reader = key("reader", "/metrics");
        kept.insert(reader, AccessVerdict::Allowed, now);
        for number in 0..2 * MOST {
            kept.insert(
                key(&number.to_string(), "/metrics"),
                AccessVerdict::Unknown,
                now,
            );
        }
        assert_eq!(kept.refused.len(), MOST);
        assert_eq!(kept.get(&reader, now), Some(AccessVerdict::Allowed));
        assert_eq!(kept.get(&reader, now + KEPT), None);
        // A caller that loses its right is refused, and not allowed as well.
        kept.insert(reader, AccessVerdict::Forbidden("reader".to_owned()), now);
        assert!(kept.allowed.is_empty());
    }
}
