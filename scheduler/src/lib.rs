//! The scheduler: the view of the cluster, the ledger of reservations, and the HTTP API that kube-scheduler calls. Fits
//! are computed by `placement`; nodes are never changed.
//!
//! kube-scheduler calls `/filter` for a pod; the [`ledger`] chooses a node and reserves devices on it for the pod;
//! `/bind` writes the devices together with the binding. [`view`] keeps the ledger up to date with the API server. No
//! node is ever locked.

#![forbid(unsafe_code)]

mod access;
pub mod api;
pub mod args;
pub mod assigner;
pub mod assigner_program;
pub mod beside;
pub mod bind;
pub mod calls;
mod claim_scores;
pub mod claim_templates;
pub mod compute_nodes;
mod compute_quotas;
pub mod compute_tasks;
pub mod embedded;
pub mod events;
pub mod explain;
pub mod filter;
mod given_out;
pub mod gpus;
mod hcs;
pub mod leader;
pub mod leases;
pub mod ledger;
pub mod limit;
pub mod metrics;
mod parse;
pub mod preempt;
pub mod program;
mod shown;
pub mod simulate;
pub mod simulator;
mod sources;
mod spans;
pub mod view;
pub mod wake;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use admission::{Admission, Denied};
use claim_scores::ClaimScores;
use embedded::NotCreated;
use events::{Events, Kind};
use kube_api::extender::ExtenderArgs;
use kube_api::object::Pod;
use kube_api::request::{Defaults, RequestError};
use kube_api::vendor::Vendors;
use leader::{Leadership, NotLeader};
use leases::guards::Guards;
use ledger::{Ledger, Notice};
use metrics::Meters;
use parking_lot::{Mutex, MutexGuard};
use placement::Request;
use server::Traces;
use tokio::sync::{Notify, watch};
use view::Progress;
use wake::Waker;

/// How long a probe waits for the ledger. The longest work under its lock, a list of thousands of nodes, is done object
/// by object and takes a fraction of this.
const LEDGER_PATIENCE: Duration = Duration::from_secs(2);

/// The ledger could not be used for this long.
#[derive(Debug, thiserror::Error)]
#[error("the ledger did not answer for {} s", .0.as_secs())]
pub struct LedgerHangs(Duration);

/// The namespace of a pod that names none.
const DEFAULT_NAMESPACE: &str = "default";

/// The settings of a scheduler.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The scheduler name of pods to place; empty for any.
    pub scheduler_name: String,
    /// The policies of pods that name none.
    pub defaults: Defaults,
    /// Only nodes with these labels have devices (`gpu=on`); empty for all.
    pub node_selector: String,
    /// Whether a pod's devices are written at the filter, too, and not only with the binding.
    pub write_at_filter: bool,
    /// How long a call of the API server may take.
    pub kube_timeout: Duration,
    /// Where spans are sent.
    pub traces: Traces,
    /// How long a reservation lasts without a binding.
    pub reservation_timeout: Duration,
    /// How long a question waits until the cluster has been read.
    pub patience: Duration,
    /// Where claims are kept; `None` if they do not count.
    pub claims: Option<ClaimSettings>,
    /// Whether ResourceClaims count: those of other drivers take GPUs, and pods with those of our own have scores.
    pub reads_resource_claims: bool,
    /// The key of the pod label that names the pod's team: metrics sum up by team what pods hold.
    pub team_label: String,
    /// Whether this process writes the statuses of ComputeQuotas and runs ComputeTasks, if it reads hcs.io at all.
    pub keeps_hcs: bool,
}

/// Where claims are kept, and how their times are judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimSettings {
    /// The namespace of the Leases.
    pub namespace: String,
    /// How far the clocks of programs that write Leases may differ from this machine's. Counts only for Leases that are
    /// older than this process; of all others the process has seen the changes itself.
    pub clock_skew: Duration,
}

impl Default for ClaimSettings {
    fn default() -> Self {
        Self {
            namespace: "gpu-claims".into(),
            clock_skew: Duration::from_secs(10),
        }
    }
}

impl ClaimSettings {
    /// The Leases as this client reaches them. A call is given up after `patience`.
    fn store(&self, client: &kube::Client, patience: Duration) -> leases::ApiServer {
        leases::ApiServer::new(client.clone(), &self.namespace, patience)
    }
}

impl Settings {
    /// An empty ledger.
    fn ledger(&self, vendors: &Arc<Vendors>) -> Ledger {
        let ledger = Ledger::new(Arc::clone(vendors), self.reservation_timeout)
            .with_team_label(&self.team_label);
        match self.claims {
            Some(_) => ledger.with_claims(),
            None => ledger,
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            scheduler_name: "hami-scheduler".into(),
            defaults: Defaults::default(),
            node_selector: String::new(),
            write_at_filter: false,
            kube_timeout: Duration::from_secs(30),
            traces: Traces::off(),
            reservation_timeout: Duration::from_secs(900),
            patience: Duration::from_secs(5),
            claims: None,
            reads_resource_claims: false,
            team_label: "team".into(),
            keeps_hcs: true,
        }
    }
}

/// The scheduler's connections to other parts.
#[derive(Debug, Clone)]
pub struct Company {
    /// Emits events.
    pub events: Events,
    /// Makes kube-scheduler try pending pods again.
    pub waker: Waker,
    /// Says whether this replica answers.
    pub leadership: Leadership,
}

impl Company {
    /// No events and no waking, and this is the only replica.
    pub fn none() -> Self {
        Self {
            events: Events::silent(),
            waker: Waker::silent(),
            leadership: Leadership::always(),
        }
    }
}

/// One replica of the scheduler. Clones share it.
#[derive(Clone)]
pub struct Scheduler(Arc<SchedulerInner>);

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Scheduler").field(&self.0.settings).finish()
    }
}

struct SchedulerInner {
    settings: Settings,
    vendors: Arc<Vendors>,
    ledger: Mutex<Ledger>,
    /// How much of the cluster has been read.
    progress: watch::Sender<Progress>,
    client: kube::Client,
    events: Events,
    waker: Waker,
    leadership: Leadership,
    meters: Meters,
    /// Keeps GPUs from assigners while pods are bound to them; `None` if reservations by label do not count.
    guards: Option<Guards>,
    /// What ResourceClaims of our driver ask for and hold.
    claim_scores: Mutex<ClaimScores>,
    /// Carries [`Ledger::claims_version`].
    claims: watch::Sender<u64>,
    /// The number of ComputeTasks in each phase, where this process knows them.
    compute_tasks: Mutex<Option<BTreeMap<&'static str, u64>>>,
    /// Signals that the ledger must be rebuilt.
    broke: Notify,
    began: Instant,
    embedded: Option<embedded::Embedded>,
    /// Checks whether a pod has passed the webhook, for API servers that may skip it.
    admission: OnceLock<Arc<Admission>>,
}

/// Why a question is not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// Another replica answers.
    #[error("another replica answers: {0}")]
    NotLeader(#[from] NotLeader),
    /// The cluster has not been read yet.
    #[error("the nodes and pods have not been read from the API server yet: {0}; try again")]
    NotSynced(String),
}

/// Why kube-scheduler's question about a pod cannot be answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuestionError {
    /// It names no pod.
    #[error("extender args missing pod")]
    NoPod,
    /// The pod's request cannot be read.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The pod has not passed the webhook, where the API server may skip it.
    #[error("{0}")]
    NotAdmitted(Denied),
}

impl Scheduler {
    /// A scheduler that calls the API server through `client`. It knows nothing of the cluster until
    /// [`Scheduler::follow`] runs.
    pub fn new(
        client: kube::Client,
        vendors: Arc<Vendors>,
        settings: Settings,
        company: Company,
    ) -> Self {
        Self::build(client, vendors, settings, company, None)
    }

    fn build(
        client: kube::Client,
        vendors: Arc<Vendors>,
        settings: Settings,
        company: Company,
        embedded: Option<embedded::Embedded>,
    ) -> Self {
        let ledger = settings.ledger(&vendors);
        let meters = Meters::new().with_traces(settings.traces.clone());
        let guards = settings.claims.as_ref().map(|claims| {
            let patience = settings.kube_timeout.min(leases::guards::GIVE_UP_AFTER);
            Guards::new(Arc::new(claims.store(&client, patience)))
        });
        Self(Arc::new(SchedulerInner {
            guards,
            claim_scores: Mutex::default(),
            settings,
            vendors,
            ledger: Mutex::new(ledger),
            progress: watch::Sender::new(Progress::default()),
            client,
            events: company.events,
            waker: company.waker,
            leadership: company.leadership,
            meters,
            claims: watch::Sender::new(0),
            compute_tasks: Mutex::new(None),
            broke: Notify::new(),
            began: Instant::now(),
            embedded,
            admission: OnceLock::new(),
        }))
    }

    /// The vendors whose devices it places.
    pub fn vendors(&self) -> &Arc<Vendors> {
        &self.0.vendors
    }

    /// After this call a pod that asks for devices and has not passed this admission fits nowhere. For API servers
    /// before Kubernetes 1.28: they skip a webhook that does not answer.
    pub fn refuse_unadmitted(&self, admission: Arc<Admission>) {
        drop(self.0.admission.set(admission));
    }

    /// Runs `look` on the ledger. Other calls wait meanwhile.
    pub fn with_ledger<T>(&self, look: impl FnOnce(&Ledger) -> T) -> T {
        look(&self.0.ledger.lock())
    }

    /// Whether the ledger can be used. A thread that hangs or waits for ever while it uses the ledger stops every
    /// answer of this process, and no other part of the process shows it.
    ///
    /// # Errors
    ///
    /// For how long it could not be used.
    pub async fn ledger_answers(&self) -> Result<(), LedgerHangs> {
        let scheduler = self.clone();
        // The wait is on a thread that serves no requests.
        let asked = tokio::task::spawn_blocking(move || {
            scheduler.0.ledger.try_lock_for(LEDGER_PATIENCE).is_some()
        });
        match asked.await {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(LedgerHangs(LEDGER_PATIENCE)),
        }
    }

    /// Whether all nodes and pods have been read.
    pub fn is_synced(&self) -> bool {
        self.0.progress.borrow().is_synced()
    }

    /// The kinds of objects that have not been read from the API server yet.
    fn missing(&self) -> String {
        self.0.progress.borrow().missing()
    }

    /// The counters of requests and reservations.
    pub fn meters(&self) -> &Meters {
        &self.0.meters
    }

    /// Whether this replica answers. It stands by while another replica does.
    ///
    /// # Errors
    ///
    /// The reason why this replica does not answer.
    pub fn answers(&self) -> Result<(), NoAnswer> {
        self.0.leadership.answers()?;
        if self.is_fresh() {
            Ok(())
        } else {
            Err(NoAnswer::NotSynced(self.missing()))
        }
    }

    fn is_fresh(&self) -> bool {
        self.0.progress.borrow().is_of(self.0.leadership.terms())
    }

    /// Waits until this replica may answer, up to the time in the settings.
    async fn may_answer(&self) -> Result<(), NoAnswer> {
        self.0.leadership.wait(self.0.settings.patience).await?;
        if self.is_fresh() {
            return Ok(());
        }
        let mut progress = self.0.progress.subscribe();
        // A replica that has just begun to answer reads everything again first.
        let seen = progress.wait_for(|progress| progress.is_of(self.0.leadership.terms()));
        if tokio::time::timeout(self.0.settings.patience, seen)
            .await
            .is_err()
        {
            return Err(NoAnswer::NotSynced(self.missing()));
        }
        Ok(())
    }

    /// Brings the view up to date for the question: in the embedded cluster it waits for earlier changes, and creates
    /// the pod of the question if it does not exist.
    async fn meet(&self, mut args: ExtenderArgs, body: &[u8]) -> Result<ExtenderArgs, NotCreated> {
        self.catch_up().await;
        if let Some(pod) = &mut args.pod
            && pod
                .metadata
                .namespace
                .as_deref()
                .unwrap_or_default()
                .is_empty()
        {
            pod.metadata.namespace = Some(DEFAULT_NAMESPACE.into());
        }
        if let Some(pod) = &mut args.pod
            && let Some(uid) = self.make_pod(pod, body)?
            && pod.metadata.uid.as_deref().unwrap_or_default().is_empty()
        {
            pod.metadata.uid = Some(uid);
        }
        Ok(args)
    }

    /// The time as the ledger counts it.
    fn now(&self) -> Duration {
        self.0.began.elapsed()
    }

    /// Changes the ledger, and passes on the notices that follow.
    fn change<T>(&self, change: impl FnOnce(&mut Ledger, Duration) -> T) -> T {
        let mut ledger = self.0.ledger.lock();
        let now = self.now();
        ledger.pass(now);
        let result = change(&mut ledger, now);
        self.tell(ledger);
        result
    }

    fn tell(&self, mut ledger: MutexGuard<'_, Ledger>) {
        let notices = ledger.take_notices();
        let version = ledger.claims_version();
        self.0.claims.send_if_modified(|known| {
            let changed = *known != version;
            *known = version;
            changed
        });
        let leads = self.0.leadership.answers().is_ok();
        self.0.waker.waiting(ledger.waiting().len(), || {
            let name = &self.0.settings.scheduler_name;
            let most = if leads { wake::MOST_PODS } else { 0 };
            ledger.first_refused(name, most)
        });
        for notice in &notices {
            match notice {
                Notice::Freed { node } => self.0.waker.freed(node),
                Notice::MoreSlots { node } if leads => {
                    if let Some(pod) = ledger.first_unplaced(&self.0.settings.scheduler_name) {
                        self.0.waker.more_slots(node, pod);
                    }
                }
                _ => {}
            }
        }
        drop(ledger);
        for notice in notices {
            match notice {
                Notice::PodBroken { pod, problem } => {
                    tracing::warn!(namespace = %pod.namespace, pod = %pod.name, problem, "a pod's allocation cannot be read");
                    self.0
                        .events
                        .pod(&pod, Kind::Warning, "AllocationUnreadable", problem);
                }
                Notice::NodeBroken { node, problem } => {
                    tracing::warn!(node, problem, "a node's report cannot be read");
                    self.0
                        .events
                        .node(&node, Kind::Warning, "DevicesUnreadable", problem);
                }
                Notice::GivenOut { node, problem } => {
                    tracing::warn!(node, problem, "another driver gives out a GPU");
                    self.0
                        .events
                        .node(&node, Kind::Warning, "GpuGivenOut", problem);
                }
                Notice::QuotaBroken {
                    namespace,
                    name,
                    problem,
                } => {
                    tracing::warn!(namespace, quota = name, problem, "a quota cannot be read");
                }
                Notice::Expired { pod, node } => {
                    tracing::warn!(namespace = %pod.namespace, pod = %pod.name, %node, "a reservation expired without a binding");
                    self.0.meters.expired();
                }
                Notice::GivenBack => self.0.meters.given_back(),
                Notice::Freed { .. } | Notice::MoreSlots { .. } => {}
            }
        }
    }

    /// Called after a defect in our code: the ledger may be half changed, so it is rebuilt from the API server before
    /// the next answer.
    fn break_off(&self) {
        self.0
            .progress
            .send_modify(|progress| *progress = Progress::default());
        self.0.broke.notify_one();
    }

    /// The pod's request. Its uid is the one under which the ledger knows it.
    fn request(&self, pod: &Pod) -> Result<Request, RequestError> {
        kube_api::request::request(pod, &self.0.vendors, &self.0.settings.defaults)
    }

    /// Periodically drops expired reservations.
    async fn expire(self) {
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        loop {
            tick.tick().await;
            self.change(Ledger::expire);
        }
    }
}
