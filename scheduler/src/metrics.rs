//! What the scheduler shows at `/metrics`: every device, share and quota under the reference's names, and how the
//! scheduler itself does. `docs/metrics.md` explains each series. Owns the names, the labels and the units; never
//! decides, and never keeps an answer: each scrape shows a snapshot taken when it came.
//!
//! 5,000 nodes of 8 cards are 40 MB of text. So it is written in pieces while it is sent, and nowhere stands as a whole.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use kube_api::vendor::{Role, Vendors};
use placement::{Cluster, DeviceView, Reservation, Span};
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use server::{Format, prometheus_text};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use crate::events;

/// Prometheus gives up after 10 s by default; what is sent later reaches nobody.
const PATIENCE: Duration = Duration::from_secs(9);

/// How much text is collected before it is sent.
const PIECE: usize = 64 << 10;

/// Where the scheduler stands at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// All nodes and what is taken of them.
    pub cluster: Cluster,
    /// The names of resources.
    pub vendors: Arc<Vendors>,
    /// MIG instances that an agent has made: their names on the node.
    pub instances: HashMap<InstanceAt, InstanceNames>,
    /// Pods that asked and got nothing, by the most frequent reason (`CardInsufficientMemory`).
    pub pending: BTreeMap<String, u64>,
    /// Reservations made at filter that no binding has confirmed yet.
    pub unconfirmed: u64,
    /// Nodes with something that cannot be read.
    pub broken_nodes: u64,
    /// Pods with something that cannot be read.
    pub broken_pods: u64,
    /// Whether this replica answers.
    pub answers: bool,
    /// Whether its view of the cluster is complete.
    pub synced: bool,
    /// What became of events.
    pub events: events::Counts,
    /// Nodes annotated to wake pending pods, since the start.
    pub woken: u64,
}

/// Where a MIG instance lies.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct InstanceAt {
    /// Name of the node.
    pub node: String,
    /// Identifier of the card.
    pub device: String,
    /// Where on the card.
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

/// Where a snapshot comes from.
pub trait Source: Send + Sync + 'static {
    /// How things stand now. Runs off the threads that serve; whatever lock it takes it holds for a clone.
    fn snapshot(&self) -> Snapshot;
}

/// Which of the scheduler's verbs.
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

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// A node was found, the pod was bound, the question was answered.
    Ok,
    /// The pod asks for no device.
    NotOurs,
    /// It fits nowhere.
    NoNode,
    /// The body could not be read, or what the pod asks for cannot be understood.
    BadRequest,
    /// Another replica answers, or the view of the cluster is not complete yet.
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
        encoder.write_str(match self {
            Self::Ok => "ok",
            Self::NotOurs => "not_ours",
            Self::NoNode => "no_node",
            Self::BadRequest => "bad_request",
            Self::NotReady => "not_ready",
            Self::Failed => "failed",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    verb: Verb,
    outcome: Outcome,
}

/// What handlers and the ledger count. A clone counts into the same series.
#[derive(Debug, Clone)]
pub struct Meters {
    requests: Family<RequestLabels, Histogram>,
    expired: Counter,
    given_back: Counter,
}

impl Default for Meters {
    fn default() -> Self {
        Self::new()
    }
}

impl Meters {
    /// All at 0.
    pub fn new() -> Self {
        // From 0.1 ms, where a small cluster's filter is, to the 30 s after which kube-scheduler hangs up.
        let seconds = || {
            Histogram::new([
                0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0,
                2.5, 5.0, 10.0, 30.0,
            ])
        };
        Self {
            requests: Family::new_with_constructor(seconds),
            expired: Counter::default(),
            given_back: Counter::default(),
        }
    }

    /// A request has been answered.
    pub fn answered(&self, verb: Verb, outcome: Outcome, took: Duration) {
        self.requests
            .get_or_create(&RequestLabels { verb, outcome })
            .observe(took.as_secs_f64());
    }

    /// A reservation was dropped because no binding came.
    pub fn expired(&self) {
        self.expired.inc();
    }

    /// A reservation was dropped because its pod was not scheduled, or is gone, before it was bound.
    pub fn given_back(&self) {
        self.given_back.inc();
    }

    fn text(&self) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register(
            "vgpu_scheduler_request_duration_seconds",
            "Time from a decoded request to its answer",
            self.requests.clone(),
        );
        registry.register(
            "vgpu_scheduler_reservations_expired",
            "Reservations dropped because no binding came",
            self.expired.clone(),
        );
        registry.register(
            "vgpu_scheduler_reservations_given_back",
            "Reservations dropped because their pod was not scheduled or is gone",
            self.given_back.clone(),
        );
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

struct Exposition {
    source: Arc<dyn Source>,
    meters: Meters,
    legacy: bool,
    turn: Arc<Semaphore>,
}

/// `GET /metrics`. With `legacy` the reference's older names stand beside the present ones.
pub fn routes(source: Arc<dyn Source>, meters: Meters, legacy: bool) -> Router {
    let exposition = Exposition {
        source,
        meters,
        legacy,
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
            // The other end is gone, or takes nothing: nobody reads on.
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
            // Without this a scrape that broke off would look whole.
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
        write_snapshot(&snapshot, self.legacy, format, page)?;
        if format == Format::OpenMetrics {
            page.text("# EOF\n".to_owned())?;
        }
        Ok(())
    }
}

/// What goes to the client.
#[derive(Debug)]
enum Piece {
    More(Bytes),
    End,
}

/// Text that leaves in pieces.
struct Page<S> {
    text: String,
    send: S,
}

impl<S: FnMut(Piece) -> fmt::Result> Page<S> {
    fn new(send: S) -> Self {
        Self {
            text: String::with_capacity(PIECE + PIECE / 4),
            send,
        }
    }

    fn text(&mut self, text: String) -> fmt::Result {
        self.text.push_str(&text);
        self.flush(PIECE)
    }

    fn family(&mut self, name: &str, help: &str) -> fmt::Result {
        writeln!(self.text, "# HELP {name} {help}.\n# TYPE {name} gauge")
    }

    /// One sample; `labels` writes what stands between the braces.
    fn sample(
        &mut self,
        name: &str,
        value: impl fmt::Display,
        labels: impl FnOnce(&mut Labels<'_>),
    ) -> fmt::Result {
        self.text.push_str(name);
        let before = self.text.len();
        labels(&mut Labels {
            text: &mut self.text,
            before,
        });
        if self.text.len() > before {
            self.text.push('}');
        }
        writeln!(self.text, " {value}")?;
        self.flush(PIECE)
    }

    fn flush(&mut self, above: usize) -> fmt::Result {
        if self.text.len() < above || self.text.is_empty() {
            return Ok(());
        }
        let next = String::with_capacity(PIECE + PIECE / 4);
        let full = std::mem::replace(&mut self.text, next);
        (self.send)(Piece::More(Bytes::from(full)))
    }

    fn end(mut self) -> fmt::Result {
        self.flush(0)?;
        (self.send)(Piece::End)
    }
}

/// The labels of one sample.
struct Labels<'a> {
    text: &'a mut String,
    before: usize,
}

impl Labels<'_> {
    fn name(&mut self, name: &str) {
        let separator = if self.text.len() == self.before {
            '{'
        } else {
            ','
        };
        self.text.push(separator);
        self.text.push_str(name);
        self.text.push_str("=\"");
    }

    fn text(&mut self, name: &str, value: &str) -> &mut Self {
        self.name(name);
        if value.contains(['\\', '"', '\n']) {
            for character in value.chars() {
                match character {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    other => self.text.push(other),
                }
            }
        } else {
            self.text.push_str(value);
        }
        self.text.push('"');
        self
    }

    fn number(&mut self, name: &str, value: impl Into<u64>) -> &mut Self {
        self.name(name);
        // Writing to a String does not fail.
        write!(self.text, "{}\"", value.into()).ok();
        self
    }
}

/// The labels of a device's series beside its node, UUID and index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum More {
    Nothing,
    Type,
    TypeCores,
    TypeCoresMemory,
}

/// A series of each device.
struct OfDevice {
    name: &'static str,
    legacy: &'static str,
    help: &'static str,
    more: More,
    value: fn(&DeviceView<'_>) -> Value,
}

enum Value {
    Whole(u64),
    Part(f64),
    /// No series.
    None,
}

const OF_DEVICE: [OfDevice; 7] = [
    OfDevice {
        name: "hami_gpu_memory_limit_bytes",
        legacy: "GPUDeviceMemoryLimit",
        help: "Memory of a device that may be promised",
        more: More::Type,
        value: |device| Value::Whole(device.device().memory_bytes),
    },
    OfDevice {
        name: "hami_gpu_core_limit_ratio",
        legacy: "GPUDeviceCoreLimit",
        help: "Compute of a device that may be promised, in its own unit (0-100 for NVIDIA)",
        more: More::Type,
        value: |device| Value::Whole(device.device().cores.into()),
    },
    OfDevice {
        name: "hami_gpu_core_allocated_ratio",
        legacy: "GPUDeviceCoreAllocated",
        help: "Compute of a device that is promised, in its own unit (0-100 for NVIDIA)",
        more: More::Type,
        value: |device| Value::Whole(device.used().cores.into()),
    },
    OfDevice {
        name: "hami_gpu_shared_count",
        legacy: "GPUDeviceSharedNum",
        help: "Slots of a device that are taken",
        more: More::Type,
        value: |device| Value::Whole(device.used().slots.into()),
    },
    OfDevice {
        name: "hami_gpu_memory_allocated_bytes",
        legacy: "GPUDeviceMemoryAllocated",
        help: "Memory of a device that is promised",
        more: More::TypeCores,
        value: |device| Value::Whole(device.used().memory_bytes),
    },
    OfDevice {
        name: "hami_node_gpu_overview",
        legacy: "nodeGPUOverview",
        help: "Memory of a device that is promised, with what it has as labels (device_memory_limit in MiB)",
        more: More::TypeCoresMemory,
        value: |device| Value::Whole(device.used().memory_bytes),
    },
    OfDevice {
        name: "hami_node_gpu_memory_allocated_ratio",
        legacy: "nodeGPUMemoryPercentage",
        help: "Part of a device's memory that is promised (0-1)",
        more: More::Nothing,
        value: |device| match device.device().memory_bytes {
            0 => Value::None,
            total => Value::Part(part(device.used().memory_bytes, total)),
        },
    },
];

#[allow(
    clippy::cast_precision_loss,
    reason = "a part of bytes; f64 is exact to 8 PiB"
)]
fn part(used: u64, total: u64) -> f64 {
    used as f64 / total as f64
}

/// The names of labels: the present ones, then the older ones.
struct Words {
    node: &'static str,
    device: &'static str,
    index: &'static str,
    kind: &'static str,
    cores: &'static str,
    memory: &'static str,
}

const PRESENT: Words = Words {
    node: "node",
    device: "device_uuid",
    index: "device_index",
    kind: "device_type",
    cores: "device_cores",
    memory: "device_memory_limit",
};

const OLDER: Words = Words {
    node: "nodeid",
    device: "deviceuuid",
    index: "deviceidx",
    kind: "devicetype",
    cores: "devicecores",
    memory: "devicememorylimit",
};

fn write_snapshot<S: FnMut(Piece) -> fmt::Result>(
    snapshot: &Snapshot,
    legacy: bool,
    format: Format,
    page: &mut Page<S>,
) -> fmt::Result {
    own_gauges(snapshot, format, page)?;
    quotas(snapshot, legacy, page)?;
    for family in &OF_DEVICE {
        devices(snapshot, family, family.name, &PRESENT, page)?;
        if legacy {
            devices(snapshot, family, family.legacy, &OLDER, page)?;
        }
    }
    instances(snapshot, legacy, page)?;
    shares(snapshot, legacy, page)
}

fn devices<S: FnMut(Piece) -> fmt::Result>(
    snapshot: &Snapshot,
    family: &OfDevice,
    name: &str,
    words: &Words,
    page: &mut Page<S>,
) -> fmt::Result {
    page.family(name, family.help)?;
    for node in snapshot.cluster.nodes() {
        for view in node.devices() {
            let device = view.device();
            let labels = |labels: &mut Labels<'_>| {
                labels
                    .text(words.node, node.name())
                    .text(words.device, view.id())
                    .number(words.index, device.index);
                if family.more != More::Nothing {
                    labels.text(words.kind, &device.model);
                }
                if matches!(family.more, More::TypeCores | More::TypeCoresMemory) {
                    labels.number(words.cores, device.cores);
                }
                if family.more == More::TypeCoresMemory {
                    labels.number(words.memory, device.memory_bytes >> 20);
                }
            };
            match (family.value)(&view) {
                Value::Whole(value) => page.sample(name, value, labels)?,
                Value::Part(value) => page.sample(name, value, labels)?,
                Value::None => {}
            }
        }
    }
    Ok(())
}

fn instances<S: FnMut(Piece) -> fmt::Result>(
    snapshot: &Snapshot,
    legacy: bool,
    page: &mut Page<S>,
) -> fmt::Result {
    for older in [false, true] {
        if older && !legacy {
            continue;
        }
        let (name, words) = if older {
            ("nodeGPUMigInstance", &OLDER)
        } else {
            ("hami_node_gpu_mig_instance_info", &PRESENT)
        };
        page.family(name, "A MIG instance that is promised, and where it lies")?;
        for node in snapshot.cluster.nodes() {
            for view in node.devices() {
                for instance in view.instances() {
                    let at = InstanceAt {
                        node: node.name().to_owned(),
                        device: view.id().to_owned(),
                        span: instance.span,
                    };
                    let names = snapshot.instances.get(&at).cloned().unwrap_or_default();
                    page.sample(name, 1, |labels| {
                        labels
                            .text(words.node, node.name())
                            .text(words.device, view.id())
                            .number(words.index, view.device().index);
                        if older {
                            // Without the agent's number the place keeps two of one profile apart.
                            let migname = if names.gpu_instance.is_empty() {
                                format!("{}@{}", instance.profile, instance.span.start)
                            } else {
                                format!("{}-{}", instance.profile, names.gpu_instance)
                            };
                            labels.text("migname", &migname);
                        } else {
                            labels
                                .text("mig_uuid", &names.uuid)
                                .text("profile", &instance.profile)
                                .text("gpu_instance_id", &names.gpu_instance)
                                .text("compute_instance_id", &names.compute_instance)
                                .number("placement_start", instance.span.start)
                                .number("placement_size", instance.span.size);
                        }
                    })?;
                }
            }
        }
    }
    Ok(())
}

/// What each container holds of each device. A container's number is its place in the pod's spec, init containers
/// first, as in the pod's annotations.
fn shares<S: FnMut(Piece) -> fmt::Result>(
    snapshot: &Snapshot,
    legacy: bool,
    page: &mut Page<S>,
) -> fmt::Result {
    let mut held: Vec<&Reservation> = snapshot.cluster.reservations().collect();
    held.sort_unstable_by_key(|held| key(held));
    let families = [
        ("hami_vgpu_memory_allocated_bytes", true, false),
        ("hami_vgpu_core_allocated_ratio", false, false),
        ("vGPUMemoryAllocated", true, true),
        ("vGPUCoreAllocated", false, true),
    ];
    for (name, memory, older) in families {
        if older && !legacy {
            continue;
        }
        page.family(
            name,
            if memory {
                "Memory of a device that is promised to a container"
            } else {
                "Compute of a device that is promised to a container, in the device's unit (0-100 for NVIDIA)"
            },
        )?;
        let words = if older {
            [
                "podnamespace",
                "nodename",
                "podname",
                "containeridx",
                "deviceuuid",
            ]
        } else {
            ["namespace", "node", "pod", "container_index", "device_uuid"]
        };
        // A pod that ends and its successor of the same name may stand on one node: one series for both.
        for of_pod in held.chunk_by(|a, b| key(a) == key(b)) {
            let Some(first) = of_pod.first() else {
                continue;
            };
            let mut sums: BTreeMap<(usize, &str), u64> = BTreeMap::new();
            for held in of_pod {
                for (position, container) in held.placement.containers.iter().enumerate() {
                    for grant in &container.grants {
                        let value = if memory {
                            grant.memory_bytes
                        } else {
                            grant.cores.into()
                        };
                        let sum = sums.entry((position, &*grant.device)).or_default();
                        *sum = sum.saturating_add(value);
                    }
                }
            }
            for ((position, device), value) in sums {
                page.sample(name, value, |labels| {
                    labels
                        .text(words[0], &first.pod.namespace)
                        .text(words[1], &first.placement.node)
                        .text(words[2], &first.pod.name)
                        .number(words[3], u64::try_from(position).unwrap_or(u64::MAX))
                        .text(words[4], device);
                })?;
            }
        }
    }
    Ok(())
}

fn key(held: &Reservation) -> (&str, &str, &str) {
    (&held.pod.namespace, &held.pod.name, &held.placement.node)
}

fn quotas<S: FnMut(Piece) -> fmt::Result>(
    snapshot: &Snapshot,
    legacy: bool,
    page: &mut Page<S>,
) -> fmt::Result {
    let mut lines: Vec<(&str, &str, u64, u64)> = Vec::new();
    for (namespace, vendor, quota, used) in snapshot.cluster.quotas() {
        for (resource, row, role) in snapshot.vendors.resources() {
            if row.word != vendor.as_str() {
                continue;
            }
            let (limit, used) = match role {
                Role::Memory => (
                    quota.memory_bytes.map(|bytes| bytes >> 20),
                    used.memory_bytes >> 20,
                ),
                Role::Cores => (quota.cores.map(u64::from), used.cores.into()),
                Role::Count => (quota.devices.map(u64::from), used.slots.into()),
                _ => continue,
            };
            if let Some(limit) = limit {
                lines.push((namespace, resource, limit, used));
            }
        }
    }
    lines.sort_unstable();
    page.family(
        "hami_resource_quota_limit",
        "What a namespace's pods may hold of a resource, memory in MiB",
    )?;
    for (namespace, resource, limit, _) in &lines {
        page.sample("hami_resource_quota_limit", *limit, |labels| {
            labels
                .text("namespace", namespace)
                .text("quota_name", resource);
        })?;
    }
    let names = [
        ("hami_resource_quota_used", "namespace", "quota_name"),
        ("QuotaUsed", "quotanamespace", "quotaName"),
    ];
    for (name, of_namespace, of_resource) in names {
        if name == "QuotaUsed" && !legacy {
            continue;
        }
        page.family(
            name,
            "What a namespace's pods hold of a resource, memory in MiB",
        )?;
        for (namespace, resource, limit, used) in &lines {
            page.sample(name, *used, |labels| {
                labels
                    .text(of_namespace, namespace)
                    .text(of_resource, resource)
                    .number("limit", *limit);
            })?;
        }
    }
    Ok(())
}

fn own_gauges<S: FnMut(Piece) -> fmt::Result>(
    snapshot: &Snapshot,
    format: Format,
    page: &mut Page<S>,
) -> fmt::Result {
    page.family("hami_build_info", "The program")?;
    page.sample("hami_build_info", 1, |labels| {
        labels
            .text("version", env!("CARGO_PKG_VERSION"))
            .text(
                "revision",
                option_env!("VGPU_REVISION").unwrap_or("unknown"),
            )
            .text(
                "build_date",
                option_env!("VGPU_BUILD_DATE").unwrap_or("unknown"),
            )
            .text("go_version", "none")
            .text("compiler", "rustc")
            .text(
                "platform",
                &format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
            );
    })?;
    let nodes = snapshot.cluster.nodes().count();
    let reservations = snapshot.cluster.reservations().count();
    let count = |value: usize| u64::try_from(value).unwrap_or(u64::MAX);
    let gauges: [(&str, &str, u64); 8] = [
        (
            "vgpu_scheduler_answers",
            "Whether this replica answers (0 or 1)",
            snapshot.answers.into(),
        ),
        (
            "vgpu_scheduler_synced",
            "Whether the view of the cluster is complete (0 or 1)",
            snapshot.synced.into(),
        ),
        (
            "vgpu_scheduler_nodes",
            "Nodes that report devices",
            count(nodes),
        ),
        (
            "vgpu_scheduler_broken_nodes",
            "Nodes with something that cannot be read",
            snapshot.broken_nodes,
        ),
        (
            "vgpu_scheduler_broken_pods",
            "Pods with something that cannot be read",
            snapshot.broken_pods,
        ),
        (
            "vgpu_scheduler_reservations",
            "Pods that hold devices, or for which some are reserved",
            count(reservations),
        ),
        (
            "vgpu_scheduler_reservations_unconfirmed",
            "Reservations that no binding has confirmed yet",
            snapshot.unconfirmed,
        ),
        (
            "vgpu_scheduler_events_waiting",
            "Events that wait to be written",
            snapshot.events.waiting,
        ),
    ];
    for (name, help, value) in gauges {
        page.family(name, help)?;
        page.sample(name, value, |_| {})?;
    }
    page.family(
        "vgpu_scheduler_pending_pods",
        "Pods that asked for devices and got none, by the most frequent reason",
    )?;
    for (reason, pods) in &snapshot.pending {
        page.sample("vgpu_scheduler_pending_pods", pods, |labels| {
            labels.text("reason", reason);
        })?;
    }
    let events = &snapshot.events;
    let results = [
        ("sent", events.sent),
        ("merged", events.merged),
        ("dropped", events.dropped),
        ("limited", events.limited),
        ("refused", events.refused),
    ];
    page.counter(
        "vgpu_scheduler_events",
        "What became of events: written, said again before they were, lost, left out for their object has said enough, refused",
        format,
    )?;
    for (result, value) in results {
        page.sample("vgpu_scheduler_events_total", value, |labels| {
            labels.text("result", result);
        })?;
    }
    page.counter(
        "vgpu_scheduler_wakeups",
        "Nodes annotated so that kube-scheduler looks at pending pods again",
        format,
    )?;
    page.sample("vgpu_scheduler_wakeups_total", snapshot.woken, |_| {})
}

impl<S: FnMut(Piece) -> fmt::Result> Page<S> {
    /// OpenMetrics declares a counter without its ending.
    fn counter(&mut self, name: &str, help: &str, format: Format) -> fmt::Result {
        let total = match format {
            Format::OpenMetrics => "",
            Format::PrometheusText => "_total",
        };
        writeln!(
            self.text,
            "# HELP {name}{total} {help}.\n# TYPE {name}{total} counter"
        )
    }
}
