//! Reads the `/metrics` of the node agents, once in a round: at most [`AT_ONCE`] at the same time, each for at most
//! [`PATIENCE`] and [`MOST`] bytes.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::header::ACCEPT;
use axum::http::{self, Request, StatusCode};
use futures_util::{StreamExt as _, stream};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use pages::gpus::Monitors;
use tokio::time::timeout;

use super::told::{self, AgentReport};

/// How many agents are asked at the same time.
const AT_ONCE: usize = 16;

/// How long an agent, or a name server, may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The part of an answer that is read, in bytes: 500 containers take about 2 MB.
const MOST: usize = 8 << 20;

/// The most agents that are asked.
const MOST_MONITORS: usize = 10_000;

/// Why an agent is not read, as a sentence that begins with its address.
#[derive(Debug, thiserror::Error)]
enum AgentError {
    #[error("is no address: {0}")]
    Address(http::Error),
    #[error("cannot be reached: {0}")]
    Unreachable(String),
    #[error("answered {0}")]
    Refused(StatusCode),
    #[error("broke off: {0}")]
    BrokeOff(Box<dyn std::error::Error + Send + Sync>),
    #[error("did not answer within {} s", PATIENCE.as_secs())]
    NoAnswer,
}

/// Why a name has no addresses.
#[derive(Debug, thiserror::Error)]
enum LookupError {
    #[error(transparent)]
    Failed(#[from] std::io::Error),
    #[error("no answer")]
    NoAnswer,
}

/// The addresses of the agents, and the client to reach them.
#[derive(Debug)]
pub(super) struct Scraper {
    places: Vec<String>,
    client: Client<HttpConnector, Empty<Bytes>>,
}

impl Scraper {
    /// Agents at these addresses, each `HOST:PORT`. For a name with several addresses, such as a headless Service,
    /// there is an agent at each of them.
    pub(super) fn new(places: Vec<String>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(PATIENCE));
        // No connection is kept between rounds, because a stale one would fail after an agent's restart.
        let client = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(0)
            .build(connector);
        Self { places, client }
    }

    /// Asks every agent once.
    pub(super) async fn round(&self) -> (Vec<AgentReport>, Monitors) {
        let mut monitors = Monitors {
            configured: !self.places.is_empty(),
            asked: true,
            ..Monitors::default()
        };
        let mut addresses = BTreeSet::new();
        for place in &self.places {
            match resolve(place).await {
                Ok(found) => addresses.extend(found),
                Err(why) => complain(&mut monitors, format!("{place} cannot be looked up: {why}")),
            }
        }
        monitors.known = addresses.len().min(MOST_MONITORS);
        let answers = stream::iter(addresses.into_iter().take(MOST_MONITORS))
            .map(|address| async move { (address, self.ask(address).await) })
            .buffer_unordered(AT_ONCE);
        let answers: Vec<_> = answers.collect().await;
        let mut all = Vec::new();
        for (address, answer) in answers {
            match answer {
                Ok(told) => all.push(told),
                Err(why) => complain(&mut monitors, format!("{address} {why}")),
            }
        }
        monitors.answered = all.len();
        (all, monitors)
    }

    async fn ask(&self, address: SocketAddr) -> Result<AgentReport, AgentError> {
        match timeout(PATIENCE, self.fetch(address)).await {
            Ok(Ok(text)) => Ok(told::read(&text)),
            Ok(Err(why)) => Err(why),
            Err(_elapsed) => Err(AgentError::NoAnswer),
        }
    }

    async fn fetch(&self, address: SocketAddr) -> Result<String, AgentError> {
        let request = Request::get(format!("http://{address}/metrics"))
            .header(ACCEPT, "text/plain")
            .body(Empty::new())
            .map_err(AgentError::Address)?;
        let response = self.client.request(request).await;
        let response = response.map_err(|error| match std::error::Error::source(&error) {
            Some(source) => AgentError::Unreachable(source.to_string()),
            None => AgentError::Unreachable(error.to_string()),
        })?;
        if response.status() != StatusCode::OK {
            return Err(AgentError::Refused(response.status()));
        }
        let body = Limited::new(response.into_body(), MOST).collect().await;
        let body = body.map_err(AgentError::BrokeOff)?;
        Ok(String::from_utf8_lossy(&body.to_bytes()).into_owned())
    }
}

/// The first problem is shown; all are logged.
fn complain(monitors: &mut Monitors, why: String) {
    tracing::debug!(why, "a node monitor is not read");
    if monitors.problem.is_empty() {
        monitors.problem = why;
    }
}

/// The addresses of a name: only those of IPv4 where there are any, because the IPv6 addresses would belong to the same
/// agents.
async fn resolve(place: &str) -> Result<Vec<SocketAddr>, LookupError> {
    let found = timeout(PATIENCE, tokio::net::lookup_host(place)).await;
    let found: Vec<SocketAddr> = match found {
        Ok(Ok(found)) => found.collect(),
        Ok(Err(error)) => return Err(error.into()),
        Err(_elapsed) => return Err(LookupError::NoAnswer),
    };
    let old: Vec<SocketAddr> = found.iter().copied().filter(SocketAddr::is_ipv4).collect();
    Ok(if old.is_empty() { found } else { old })
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;

    use super::*;

    async fn monitor(answer: &'static str, status: StatusCode) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/metrics", get(move || async move { (status, answer) }));
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }

    #[tokio::test]
    async fn failed_agent_is_reported_and_the_others_are_read() {
        let text = "hami_host_gpu_memory_used_bytes{device_uuid=\"g\"} 7\n";
        let well = monitor(text, StatusCode::OK).await;
        let ill = monitor("", StatusCode::SERVICE_UNAVAILABLE).await;
        let places = vec![well.to_string(), ill.to_string()];

        let (told, monitors) = Scraper::new(places).round().await;

        assert_eq!(told[0].gpus, [("g".to_owned(), Some(7), None)]);
        assert_eq!((monitors.known, monitors.answered), (2, 1));
        assert!(
            monitors
                .problem
                .ends_with("answered 503 Service Unavailable")
        );
    }

    #[tokio::test]
    async fn place_without_addresses_is_reported() {
        let places = vec!["no-such-host.invalid:1".to_owned()];

        let (_, monitors) = Scraper::new(places).round().await;

        assert_eq!(monitors.known, 0);
        assert!(
            monitors
                .problem
                .contains("no-such-host.invalid:1 cannot be looked up")
        );
    }
}
