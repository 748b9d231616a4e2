//! The scheduler's `/metrics`: every device, share and quota under HAMi's names, and the state of the scheduler itself.
//! `docs/metrics.md` explains each series. Owns the names, labels and units. Each scrape shows a snapshot taken at its
//! arrival.
//!
//! 5,000 nodes of 8 GPUs make 40 MB of text, so it is written in pieces while it is sent, and never held in memory as a
//! whole.

mod page;
mod series;

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use kube_api::vendor::Vendors;
use placement::{Cluster, Span};
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use server::{Format, Seconds, TraceContext, Traces, prometheus_text};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use crate::events;
use crate::ledger::{AccountView, QuotaUse};
use page::{Page, Piece};

/// Prometheus gives up after 10 s by default, so later output would be lost.
const PATIENCE: Duration = Duration::from_secs(9);

/// The state of the scheduler at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// All nodes, with the reservations on them.
    pub cluster: Cluster,
    /// The names of resources.
    pub vendors: Arc<Vendors>,
    /// MIG instances that an agent has made: their names on the node.
    pub instances: HashMap<InstanceAt, InstanceNames>,
    /// Pending pods that were refused, by their most frequent reason (`CardInsufficientMemory`).
    pub pending: BTreeMap<String, u64>,
    /// Reservations made at the filter without a confirmed binding.
    pub unconfirmed: u64,
    /// Nodes with a report that cannot be read.
    pub broken_nodes: u64,
    /// Pods with an allocation that cannot be read.
    pub broken_pods: u64,
    /// Whether this replica answers.
    pub answers: bool,
    /// Whether its view of the cluster is complete.
    pub synced: bool,
    /// The numbers of events by outcome.
    pub events: events::Counts,
    /// Nodes annotated to wake pending pods, since the start.
    pub woken: u64,
    /// The limits of ComputeQuotas and their use; `None` if hcs.io is not served.
    pub compute_quotas: Option<Vec<QuotaUse>>,
    /// ComputeTasks by phase; `None` if this process does not know them.
    pub compute_tasks: Option<BTreeMap<&'static str, u64>>,
    /// Name of the scheduler, which all its replicas have.
    pub scheduler: String,
    /// The amounts that the workloads have asked for and were given.
    pub accounts: Vec<AccountView>,
}

/// How many series are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Detail {
    /// The series that the alerts and the accounts need: three of each device.
    Standard,
    /// Every series.
    Full,
}

/// Which series are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// HAMi's older names beside the present ones.
    pub legacy: bool,
    /// How many of the present ones.
    pub detail: Detail,
}

impl Choice {
    /// All series under their present names.
    pub const FULL: Self = Self {
        legacy: false,
        detail: Detail::Full,
    };
}

/// The position of a MIG instance.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct InstanceAt {
    /// Name of the node.
    pub node: String,
    /// The identifier of the GPU.
    pub device: String,
    /// The position on the GPU.
    pub span: Span,
}

/// The names that a node's agent gave to a MIG instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstanceNames {
    /// Its UUID.
    pub uuid: String,
    /// Number of the GPU instance.
    pub gpu_instance: String,
    /// Number of the compute instance.
    pub compute_instance: String,
}

/// The source of snapshots.
pub trait SnapshotSource: Send + Sync + 'static {
    /// The current state. Called on a blocking thread; must hold a lock only for the time of a clone.
    fn snapshot(&self) -> Snapshot;
}

/// A route that kube-scheduler calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// `POST /filter`.
    Filter,
    /// `POST /prioritize`.
    Prioritize,
    /// `POST /preempt`.
    Preempt,
    /// `POST /bind`.
    Bind,
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// A node was found, the pod was bound, or the question was answered.
    Ok,
    /// The pod asks for no device.
    NotOurs,
    /// The pod fits nowhere.
    NoNode,
    /// The body, or the pod's request, could not be understood.
    BadRequest,
    /// Another replica answers, or the cluster has not been read yet.
    NotReady,
    /// Something failed here, or the API server did not do what was asked.
    Failed,
}

impl EncodeLabelValue for Verb {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        encoder.write_str(match self {
            Self::Filter => "filter",
            Self::Prioritize => "prioritize",
            Self::Preempt => "preempt",
            Self::Bind => "bind",
        })
    }
}

impl EncodeLabelValue for Outcome {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        encoder.write_str(self.word())
    }
}

impl Outcome {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::NotOurs => "not_ours",
            Self::NoNode => "no_node",
            Self::BadRequest => "bad_request",
            Self::NotReady => "not_ready",
            Self::Failed => "failed",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    verb: Verb,
    outcome: Outcome,
}

/// The counters of handlers and of the ledger. Clones share them.
#[derive(Debug, Clone)]
pub struct Meters {
    requests: Family<RequestLabels, Seconds>,
    expired: Counter,
    given_back: Counter,
    traces: Traces,
}

impl Default for Meters {
    fn default() -> Self {
        Self::new()
    }
}

impl Meters {
    /// All at 0.
    pub fn new() -> Self {
        // From 0.1 ms, the time of a small cluster's filter, to 30 s, after which kube-scheduler hangs up.
        let seconds = || {
            Seconds::new([
                0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0,
                2.5, 5.0, 10.0, 30.0,
            ])
        };
        Self {
            requests: Family::new_with_constructor(seconds),
            expired: Counter::default(),
            given_back: Counter::default(),
            traces: Traces::off(),
        }
    }

    /// Adds the counters of these spans.
    #[must_use]
    pub fn with_traces(mut self, traces: Traces) -> Self {
        self.traces = traces;
        self
    }

    /// Counts an answered request.
    pub fn answered(&self, verb: Verb, outcome: Outcome, took: Duration) {
        self.answered_in(verb, outcome, took, None);
    }

    /// Counts an answered request of this trace.
    pub fn answered_in(
        &self,
        verb: Verb,
        outcome: Outcome,
        took: Duration,
        trace: Option<TraceContext>,
    ) {
        self.requests
            .get_or_create(&RequestLabels { verb, outcome })
            .observe(took, trace);
    }

    /// Counts a reservation that was dropped because no binding came.
    pub fn expired(&self) {
        self.expired.inc();
    }

    /// Counts a reservation that was dropped because its pod was not scheduled, or disappeared, before the binding.
    pub fn given_back(&self) {
        self.given_back.inc();
    }

    fn text(&self) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        self.traces.register(&mut registry);
        registry.register(
            "vgpu_scheduler_request_duration_seconds",
            "Duration from a decoded request to its answer, in seconds",
            self.requests.clone(),
        );
        registry.register(
            "vgpu_scheduler_reservations_expired",
            "Reservations dropped because no binding came in time",
            self.expired.clone(),
        );
        registry.register(
            "vgpu_scheduler_reservations_given_back",
            "Reservations dropped before binding because the pod was not scheduled or was deleted",
            self.given_back.clone(),
        );
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

struct Exposition {
    source: Arc<dyn SnapshotSource>,
    meters: Meters,
    choice: Choice,
    turn: Arc<Semaphore>,
}

/// `GET /metrics`.
pub fn routes(source: Arc<dyn SnapshotSource>, meters: Meters, choice: Choice) -> Router {
    let exposition = Exposition {
        source,
        meters,
        choice,
        turn: Arc::new(Semaphore::new(1)),
    };
    Router::new()
        .route("/metrics", get(scrape))
        .with_state(Arc::new(exposition))
}

async fn scrape(State(exposition): State<Arc<Exposition>>, headers: HeaderMap) -> Response {
    let accept = headers
        .get_all(ACCEPT)
        .into_iter()
        .filter_map(|value| value.to_str().ok());
    let format = Format::wanted(accept);
    let turn = Arc::clone(&exposition.turn);
    let Ok(Ok(permit)) = timeout(PATIENCE, turn.acquire_owned()).await else {
        let text = "another scrape is still being sent; try again\n";
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    };
    let (pieces, sent) = mpsc::channel(4);
    let runtime = tokio::runtime::Handle::current();
    tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let mut page = Page::new(|piece| {
            // The client has closed the connection or stopped reading.
            runtime
                .block_on(pieces.send_timeout(piece, PATIENCE))
                .map_err(|_| fmt::Error)
        });
        let written = exposition.write(&mut page, format);
        if let Err(fmt::Error) = written.and_then(|()| page.end()) {
            tracing::debug!("a scrape was not read to its end");
        }
    });
    let body = futures_util::stream::unfold(Some(sent), async |sent| {
        let mut sent = sent?;
        match sent.recv().await {
            Some(Piece::More(bytes)) => Some((Ok(bytes), Some(sent))),
            Some(Piece::End) => None,
            // The error makes the client notice that the scrape is incomplete.
            None => Some((Err(io::Error::other("the scrape broke off")), None)),
        }
    });
    let headers = [
        (CONTENT_TYPE, format.content_type()),
        (CACHE_CONTROL, "no-store"),
        (VARY, "accept"),
    ];
    (headers, Body::from_stream(body)).into_response()
}

impl Exposition {
    fn write<S: FnMut(Piece) -> fmt::Result>(
        &self,
        page: &mut Page<S>,
        format: Format,
    ) -> fmt::Result {
        let own = self.meters.text()?;
        page.text(match format {
            Format::OpenMetrics => own.trim_end_matches("# EOF\n").to_owned(),
            Format::PrometheusText => prometheus_text(&own),
        })?;
        let snapshot = self.source.snapshot();
        series::write(&snapshot, self.choice, format, page)?;
        if format == Format::OpenMetrics {
            page.text("# EOF\n".to_owned())?;
        }
        Ok(())
    }
}
