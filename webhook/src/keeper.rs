//! Keeps the webhook reachable: a certificate on the port, its CA in the Secret, that CA and our
//! rules in the webhook configurations; all of it again and again, and from memory while there is
//! no API server.
//!
//! Every replica has a serving certificate of its own, signed in memory: its key never leaves the
//! process, renewing it asks nobody, and it goes on while the API server is away. What all of them
//! share is the CA in the Secret. Only the holder of the Lease replaces things, so replicas do not
//! undo each other's work, also while two releases of us run side by side; only creating the
//! Secret is everybody's, because there one wins by itself.
//!
//! Never reviews a pod, and never reads the machine's clock: that is handed in.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use serde_json::{Value, json};
use server::{Readiness, Tls};

use crate::authority::{Agreed, Authority, Lifetimes, Serving};
use crate::configuration::{self, KINDS, Written};
use crate::lease::Contest;
use crate::metrics::Meters;
use crate::secret::{self, WRITER};

/// What time it is.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The configurations that are wanted, without a `caBundle`. It is told whether this API server
/// has match conditions.
pub type Wanted = Arc<dyn Fn(bool) -> Vec<Value> + Send + Sync>;

/// Where the certificate on the port comes from.
#[derive(Clone)]
pub enum Source {
    /// From our own CA.
    Own {
        /// Name of the CA's Secret.
        secret: String,
        /// What the certificate is for: DNS names and IP addresses.
        names: Vec<String>,
        /// How long things last.
        lifetimes: Lifetimes,
    },
    /// Somebody gives it, and the port follows its files.
    Given {
        /// What goes into the `caBundle`, PEM; without it that is somebody else's, too.
        bundle: Option<std::path::PathBuf>,
    },
}

/// The webhook configurations.
#[derive(Clone)]
pub struct Configurations {
    /// Name of both.
    pub name: String,
    /// What they say.
    pub wanted: Wanted,
    /// A ClusterRole that owns them: with it the cluster's garbage collector deletes them. What
    /// is installed with us is deleted with us; what we wrote would stay behind and, with nobody
    /// to answer, refuse pods.
    pub owner: Option<String>,
}

/// What a [`Keeper`] keeps.
#[derive(Clone)]
pub struct Settings {
    /// Where Secret and Lease are.
    pub namespace: String,
    /// Where the certificate comes from.
    pub source: Source,
    /// Nothing where they are not ours to keep.
    pub configurations: Option<Configurations>,
    /// What time it is.
    pub clock: Clock,
}

/// One replica's part.
pub struct Keeper {
    client: kube::Client,
    settings: Settings,
    contest: Contest,
    tls: Tls,
    readiness: Readiness,
    meters: Meters,
    /// As the Secret had it last.
    agreed: Option<Agreed>,
    /// What the port shows, and the CA (PEM) that has signed it.
    shown: Option<(String, Serving)>,
    /// The CA (PEM) that all configurations trust, and since when we know.
    trusted: Option<(String, Timestamp)>,
    match_conditions: Option<(bool, Timestamp)>,
}

/// For one look at the cluster.
const PATIENCE: Duration = Duration::from_secs(30);

/// A cluster is upgraded now and then.
const VERSION_HOLDS: jiff::SignedDuration = jiff::SignedDuration::from_mins(10);

/// What a look at the configurations has shown.
#[derive(Default)]
struct Trust {
    /// Whether all that exist trust the CA that signs; nothing when that is not known.
    current: Option<bool>,
    /// The first that does not trust the certificate that is shown.
    stranger: Option<String>,
}

impl Keeper {
    /// A replica that has done nothing yet: `tls` shows no certificate, unless it is given.
    #[must_use]
    pub fn new(
        client: kube::Client,
        settings: Settings,
        contest: Contest,
        tls: Tls,
        readiness: Readiness,
        meters: Meters,
    ) -> Self {
        Self {
            client,
            settings,
            contest,
            tls,
            readiness,
            meters,
            agreed: None,
            shown: None,
            trusted: None,
            match_conditions: None,
        }
    }

    /// Looks once and does what there is to do. Whether anything was written: then another look
    /// has more to see.
    ///
    /// # Errors
    /// What could not be done. All that could be done is done, and what is served stays.
    pub async fn look(&mut self) -> anyhow::Result<bool> {
        if matches!(self.settings.source, Source::Given { .. }) {
            self.meters.given(self.tls.certificate().as_deref());
        }
        let looked = tokio::time::timeout(PATIENCE, self.look_at_cluster()).await;
        let looked = looked.unwrap_or_else(|_| {
            Err(anyhow!(
                "the API server did not answer within {} seconds",
                PATIENCE.as_secs()
            ))
        });
        self.meters.holds(self.contest.is_ours());
        if let Err(error) = &looked {
            self.meters.failed();
            // The same rules, with what is remembered: a certificate is renewed in time.
            if let Err(error) = self.show(&Trust::default()) {
                tracing::error!(error = format!("{error:#}"), "no certificate from memory");
            }
            if !self.has_certificate() {
                self.readiness
                    .not_ready(format!("no certificate yet: {error:#}"));
            }
        }
        looked
    }

    /// How often to look when nothing happens.
    #[must_use]
    pub fn rhythm(&self) -> Duration {
        let rhythm = self.contest.rhythm();
        let Source::Own { lifetimes, .. } = &self.settings.source else {
            return rhythm;
        };
        // Whoever wants it to go fast, for a test, looks as fast.
        let fast = lifetimes.settle.min(lifetimes.serving / 10).unsigned_abs();
        rhythm.min(fast.max(Duration::from_secs(1)))
    }

    /// Leaves the Lease to the next one.
    pub async fn let_go(&mut self) {
        let let_go = tokio::time::timeout(Duration::from_secs(2), self.contest.let_go()).await;
        if !matches!(let_go, Ok(Ok(()))) {
            tracing::debug!("the Lease was not given up; it ends by itself");
        }
    }

    fn now(&self) -> Timestamp {
        (self.settings.clock)()
    }

    async fn look_at_cluster(&mut self) -> anyhow::Result<bool> {
        // A Lease that cannot be had is no reason not to serve: what fails is told at the end.
        let turn = self.contest.turn(self.now()).await;
        let ours = *turn.as_ref().unwrap_or(&false);
        let mut wrote = self.agree(ours).await?;
        if self.shown.is_none() {
            self.show(&Trust::default())?;
        }
        let mut trust = Trust {
            current: Some(true),
            stranger: None,
        };
        wrote |= self.configure(ours, &mut trust).await?;
        self.show(&trust)?;
        match trust.stranger {
            Some(name) => self.readiness.not_ready(format!(
                "the caBundle of {name} does not hold the CA of the certificate that is shown; the \
                 holder of the Lease writes it"
            )),
            None if self.has_certificate() => self.readiness.ready(),
            None => self.readiness.not_ready("no certificate yet"),
        }
        turn.map_err(told)
            .context("cannot take part in the contest for the Lease")?;
        Ok(wrote)
    }

    fn has_certificate(&self) -> bool {
        self.tls.certificate().is_some()
    }

    /// What the Secret says, made or replaced where it must be. Whether it was written.
    async fn agree(&mut self, ours: bool) -> anyhow::Result<bool> {
        let Source::Own {
            secret: name,
            lifetimes,
            ..
        } = &self.settings.source
        else {
            return Ok(false);
        };
        let (name, lifetimes) = (name.clone(), *lifetimes);
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.settings.namespace);
        // Others write, too: each time somebody was faster there is something new to look at.
        for _ in 0..4 {
            let now = self.now();
            let remembered = self.agreed.iter().flat_map(Agreed::trusted).cloned();
            let mut remembered: Vec<_> = remembered.collect();
            let kept = secret::read(&api, &name, now).await;
            let kept = kept
                .map_err(told)
                .with_context(|| format!("cannot read the Secret {name}"))?;
            let Some(kept) = kept else {
                let reason = if self.agreed.is_some() {
                    "deleted"
                } else {
                    "created"
                };
                let agreed =
                    Agreed::anew(remembered, now, &lifetimes).context("cannot make a CA")?;
                let created = secret::create(&api, &name, &agreed).await;
                let created = created
                    .map_err(told)
                    .with_context(|| format!("cannot create the Secret {name}"))?;
                if created {
                    let text = match reason {
                        "deleted" => {
                            "the Secret of the webhook's CA was deleted; it holds a new CA"
                        }
                        _ => "the webhook's CA was made",
                    };
                    self.renewed(agreed, reason, text).await;
                    return Ok(true);
                }
                continue;
            };
            let agreed = match kept.agreed {
                Ok(agreed) => agreed,
                Err(broken) if !ours => {
                    let text = format!(
                        "the Secret {name} is broken ({broken}); the holder of the Lease replaces \
                         what is in it"
                    );
                    tracing::warn!("{text}");
                    return if self.agreed.is_some() {
                        Ok(false)
                    } else {
                        Err(anyhow!(text))
                    };
                }
                Err(broken) => {
                    remembered.extend(kept.certificates);
                    let agreed =
                        Agreed::anew(remembered, now, &lifetimes).context("cannot make a CA")?;
                    if replace(&api, &name, &kept.version, &agreed).await? {
                        let text = format!(
                            "the Secret of the webhook's CA was broken ({broken}); it holds a new CA"
                        );
                        self.renewed(agreed, "broken", &text).await;
                        return Ok(true);
                    }
                    continue;
                }
            };
            let (agreed, reason) = if ours && agreed.current.certificate().is_due(now) {
                let old = agreed.trusted().cloned().collect();
                let agreed = Agreed::anew(old, now, &lifetimes).context("cannot make a CA")?;
                (agreed, "due")
            } else if ours && agreed.old_are_over(now, &lifetimes) {
                let agreed = Agreed {
                    old: Vec::new(),
                    ..agreed
                };
                (agreed, "over")
            } else {
                self.take(agreed);
                return Ok(false);
            };
            if replace(&api, &name, &kept.version, &agreed).await? {
                if reason == "due" {
                    let text = "the webhook's CA was replaced before its end; the old one is \
                                trusted for a while";
                    self.renewed(agreed, reason, text).await;
                } else {
                    tracing::info!(secret = name, "replaced CAs are trusted no longer");
                    self.take(agreed);
                }
                return Ok(true);
            }
        }
        Err(anyhow!(
            "the Secret {name} changes all the time; somebody else writes it, too"
        ))
    }

    fn take(&mut self, agreed: Agreed) {
        let known = self
            .agreed
            .as_ref()
            .is_some_and(|known| known.current.certificate() == agreed.current.certificate());
        if !known {
            let until = agreed.current.certificate().not_after();
            tracing::info!(%until, "the CA in the Secret signs");
            self.meters.signs(until);
        }
        self.agreed = Some(agreed);
    }

    async fn renewed(&mut self, agreed: Agreed, reason: &'static str, text: &str) {
        tracing::warn!(reason, "{text}");
        self.meters.rotated(reason);
        self.take(agreed);
        self.event(reason, text).await;
    }

    /// For whoever looks at the Secret. The log has it in any case.
    async fn event(&self, reason: &'static str, note: &str) {
        let Source::Own { secret, .. } = &self.settings.source else {
            return;
        };
        let broken = reason == "broken" || reason == "deleted";
        let reporter = Reporter {
            controller: WRITER.to_owned(),
            instance: None,
        };
        let event = Event {
            type_: if broken {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: "CertificateAuthorityReplaced".to_owned(),
            note: Some(note.to_owned()),
            action: "Replace".to_owned(),
            secondary: None,
        };
        let about = k8s_openapi::api::core::v1::ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Secret".to_owned()),
            name: Some(secret.clone()),
            namespace: Some(self.settings.namespace.clone()),
            ..Default::default()
        };
        let recorder = Recorder::new(self.client.clone(), reporter);
        if let Err(error) = recorder.publish(&event, &about).await {
            tracing::debug!(%error, "no event");
        }
    }

    /// The configurations: looked at by all, written by the holder. Whether one was written.
    async fn configure(&mut self, ours: bool, trust: &mut Trust) -> anyhow::Result<bool> {
        let Some(Configurations {
            name,
            wanted,
            owner,
        }) = self.settings.configurations.clone()
        else {
            return Ok(false);
        };
        let match_conditions = self.match_conditions().await?;
        let bundle = self.bundle()?;
        let owner = match owner.filter(|_| ours) {
            Some(owner) => self.owner(&owner).await?,
            None => Value::Null,
        };
        let shown = self.shown.as_ref().map(|(ca, _)| ca.clone());
        let current = self
            .agreed
            .as_ref()
            .map(|agreed| agreed.current.certificate().pem().to_owned());
        let mut wanted = wanted(match_conditions);
        let mut wrote = false;
        let mut failed = None;
        for kind in KINDS {
            let wanted = wanted
                .iter_mut()
                .find(|wanted| wanted["kind"] == kind)
                .map(Value::take);
            let Some(wanted) = wanted else { continue };
            let done = self
                .configure_one(ours, kind, &name, |live| {
                    configuration::whole(wanted, &name, &owner, bundle.as_deref(), live)
                })
                .await
                .with_context(|| format!("the {kind} {name}"));
            match done {
                Ok((written, live)) => {
                    wrote |= written;
                    let trusted = |ca: &Option<String>| match (&live, ca) {
                        (Some(live), Some(ca)) => configuration::trusts(live, ca),
                        _ => true,
                    };
                    trust.current = trust.current.map(|so_far| so_far && trusted(&current));
                    if !trusted(&shown) {
                        trust
                            .stranger
                            .get_or_insert_with(|| format!("the {kind} {name}"));
                    }
                }
                // One that cannot be written does not keep the other from being so.
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            None => Ok(wrote),
            Some(error) => {
                trust.current = None;
                Err(error)
            }
        }
    }

    /// `ownerReferences` for the configurations; null, of which nobody wants anything, when the
    /// owner is not there: an owner that is not there would have them deleted.
    async fn owner(&self, name: &str) -> anyhow::Result<Value> {
        let roles = GroupVersionKind::gvk("rbac.authorization.k8s.io", "v1", "ClusterRole");
        let api: Api<DynamicObject> =
            Api::all_with(self.client.clone(), &ApiResource::from_gvk(&roles));
        let role = api.get_metadata_opt(name).await.map_err(told);
        let role = role.with_context(|| format!("cannot read the ClusterRole {name}"))?;
        let Some(uid) = role.and_then(|role| role.metadata.uid) else {
            tracing::debug!(
                name,
                "there is no such ClusterRole: nobody owns the configurations"
            );
            return Ok(Value::Null);
        };
        Ok(json!([{
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "name": name, "uid": uid,
        }]))
    }

    /// Whether it was written, and how it stands.
    async fn configure_one(
        &self,
        ours: bool,
        kind: &'static str,
        name: &str,
        wanted: impl FnOnce(Option<&Value>) -> Value,
    ) -> anyhow::Result<(bool, Option<Value>)> {
        let live = configuration::read(&self.client, kind, name).await;
        let live = live.map_err(told).context("cannot be read")?;
        if !ours {
            return Ok((false, live));
        }
        let wanted = wanted(live.as_ref());
        let written = configuration::write(&self.client, live.as_ref(), &wanted).await;
        match written.map_err(told).context("cannot be written")? {
            Written::Nothing => Ok((false, live)),
            Written::Created => {
                tracing::info!(kind, name, "created");
                self.meters.wrote("created");
                Ok((true, Some(wanted)))
            }
            Written::Changed => {
                tracing::info!(kind, name, "changed to what it has to be");
                self.meters.wrote("changed");
                Ok((true, Some(wanted)))
            }
            // Somebody wrote between: what stands there is known after the next look.
            Written::Again => Err(anyhow!("somebody else wrote it at the same time")),
        }
    }

    async fn match_conditions(&mut self) -> anyhow::Result<bool> {
        let now = self.now();
        match self.match_conditions {
            Some((has, since)) if since.duration_until(now) < VERSION_HOLDS => Ok(has),
            _ => {
                let version = self.client.apiserver_version().await;
                let version = version
                    .map_err(told)
                    .context("cannot ask the API server for its version")?;
                let has = configuration::has_match_conditions(&version.major, &version.minor);
                if self.match_conditions.is_none() {
                    tracing::info!(
                        version = version.git_version,
                        match_conditions = has,
                        "API server"
                    );
                }
                self.match_conditions = Some((has, now));
                Ok(has)
            }
        }
    }

    /// What goes into every `caBundle`; nothing where that is not ours to say.
    fn bundle(&self) -> anyhow::Result<Option<String>> {
        match &self.settings.source {
            Source::Own { .. } => Ok(self.agreed.as_ref().map(Agreed::bundle)),
            Source::Given { bundle: None } => Ok(None),
            Source::Given { bundle: Some(path) } => {
                let read = std::fs::read_to_string(path);
                let pem = read.with_context(|| format!("cannot read {}", path.display()))?;
                Ok(Some(pem))
            }
        }
    }

    /// Shows another certificate where it must be another.
    fn show(&mut self, trust: &Trust) -> anyhow::Result<()> {
        let Source::Own {
            names, lifetimes, ..
        } = &self.settings.source
        else {
            return Ok(());
        };
        let Some(agreed) = &self.agreed else {
            return Ok(());
        };
        let now = self.now();
        let current = agreed.current.certificate().pem();
        if trust.current == Some(false) {
            self.trusted = None;
        }
        if trust.current == Some(true) {
            let known = self.trusted.as_ref().is_some_and(|(ca, _)| ca == current);
            if !known {
                self.trusted = Some((current.to_owned(), now));
            }
        }
        let settled = self.trusted.as_ref().is_some_and(|(ca, since)| {
            ca == current && since.duration_until(now) >= lifetimes.settle
        });
        let another = match &self.shown {
            None => true,
            Some((ca, serving)) if ca == current => serving.is_due(now),
            // Signed by a CA that was replaced: until the new one is trusted everywhere, the old
            // one is; unless it is not, or the certificate has ended.
            Some((ca, serving)) => {
                let trusted = agreed.trusted().any(|known| known.pem() == ca);
                settled || !trusted || now >= serving.not_after
            }
        };
        if !another {
            return Ok(());
        }
        let serving = sign(&agreed.current, names, now, lifetimes)?;
        self.tls
            .replace(serving.certificate.as_bytes(), serving.key.as_bytes())
            .context("our own certificate cannot be used")?;
        tracing::info!(until = %serving.not_after, "another certificate is shown");
        self.meters.shown(serving.not_after);
        self.shown = Some((current.to_owned(), serving));
        Ok(())
    }
}

fn sign(
    authority: &Authority,
    names: &[String],
    now: Timestamp,
    lifetimes: &Lifetimes,
) -> anyhow::Result<Serving> {
    authority
        .sign(names, now, lifetimes)
        .with_context(|| format!("cannot sign a certificate for {}", names.join(", ")))
}

/// What the API server says, without the rest of its answer.
fn told(error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => anyhow!("{}", status.message),
        error => error.into(),
    }
}

async fn replace(
    api: &Api<Secret>,
    name: &str,
    version: &str,
    agreed: &Agreed,
) -> anyhow::Result<bool> {
    let replaced = secret::replace(api, name, version, agreed).await;
    replaced
        .map_err(told)
        .with_context(|| format!("cannot replace what is in the Secret {name}"))
}
