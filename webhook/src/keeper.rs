//! Keeps the webhook reachable: a certificate on the port, its CA in the Secret, and that CA and the webhook's rules in
//! the webhook configurations. It repeats this for as long as the process runs, and works from memory while the API
//! server is away.
//!
//! Every replica has its own serving certificate, signed in memory: the key never leaves the process, and a renewal
//! needs no API server. The replicas share the CA in the Secret. Only the holder of the Lease replaces objects, so
//! replicas do not undo each other's work, even while two releases run side by side. Every replica may create the
//! Secret, because the API server lets exactly one creation win.
//!
//! The keeper reviews no pods. It does not read the machine's clock: the time is passed in.

mod agree;
mod configure;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use jiff::Timestamp;
use serde_json::Value;
use server::{Readiness, Tls};

use crate::authority::{Agreed, Authority, Lifetimes, Serving};
use crate::lease::Contest;
use crate::metrics::Meters;
use configure::Trust;

/// Returns the current time.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Returns the wanted configurations, without a `caBundle`. The argument says whether this API server has match
/// conditions.
pub type Wanted = Arc<dyn Fn(bool) -> Vec<Value> + Send + Sync>;

/// Where the certificate on the port comes from.
#[derive(Clone)]
pub enum Source {
    /// Signed by the webhook's own CA.
    Own {
        /// Name of the CA's Secret.
        secret: String,
        /// The names in the certificate: DNS names and IP addresses.
        names: Vec<String>,
        /// How long the CA and the certificates last.
        lifetimes: Lifetimes,
    },
    /// Given as files. The port follows the files.
    Given {
        /// The CA to write into the `caBundle`, PEM; without it another program keeps the `caBundle`, too.
        bundle: Option<std::path::PathBuf>,
    },
}

/// The webhook configurations.
#[derive(Clone)]
pub struct Configurations {
    /// The name of both.
    pub name: String,
    /// Their contents.
    pub wanted: Wanted,
    /// A ClusterRole that owns them, so that the cluster's garbage collector deletes them with it. Helm deletes only
    /// what it installed; without an owner the configurations would stay behind and, with no webhook to answer, refuse
    /// pods.
    pub owner: Option<String>,
}

/// The settings of a [`Keeper`].
#[derive(Clone)]
pub struct Settings {
    /// The namespace of the Secret and the Lease.
    pub namespace: String,
    /// Where the certificate comes from.
    pub source: Source,
    /// `None` if another program keeps the configurations.
    pub configurations: Option<Configurations>,
    /// Returns the current time.
    pub clock: Clock,
}

/// The work of one replica.
pub struct Keeper {
    client: kube::Client,
    settings: Settings,
    contest: Contest,
    tls: Tls,
    readiness: Readiness,
    meters: Meters,
    /// The contents of the Secret when it was last read.
    agreed: Option<Agreed>,
    /// The CA (PEM) that signed the certificate on the port, and that certificate.
    shown: Option<(String, Serving)>,
    /// The CA (PEM) that all configurations trust, and since when this replica has known that.
    trusted: Option<(String, Timestamp)>,
    match_conditions: Option<(bool, Timestamp)>,
}

/// The time limit for one look at the cluster.
const PATIENCE: Duration = Duration::from_secs(30);

impl Keeper {
    /// A replica that has done nothing yet: `tls` shows no certificate, unless one was given.
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

    /// Looks at the cluster once and does what is needed. Returns whether anything was written; the caller should then
    /// look again soon.
    ///
    /// # Errors
    ///
    /// Something could not be done. The rest has been done, and the port goes on serving.
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
            // The same rules apply to what is remembered, so that a certificate is renewed in time.
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

    /// How often to look when nothing changes.
    #[must_use]
    pub fn rhythm(&self) -> Duration {
        let rhythm = self.contest.rhythm();
        let Source::Own { lifetimes, .. } = &self.settings.source else {
            return rhythm;
        };
        // Short lifetimes, as tests set them, shorten the interval.
        let fast = lifetimes.settle.min(lifetimes.serving / 10).unsigned_abs();
        rhythm.min(fast.max(Duration::from_secs(1)))
    }

    /// Gives the Lease up, so that another replica can take it.
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
        // A replica that cannot get the Lease still serves; the failure is reported at the end.
        let turn = self.contest.turn(self.now()).await;
        let ours = *turn.as_ref().unwrap_or(&false);
        let mut wrote = self.agree(ours).await?;
        if self.shown.is_none() {
            self.show(&Trust::default())?;
        }
        let mut trust = Trust {
            current: Some(true),
            stranger: None,
            absent: None,
        };
        wrote |= self.configure(ours, &mut trust).await?;
        self.show(&trust)?;
        match trust.stranger {
            Some(name) => self.readiness.not_ready(format!(
                "the caBundle of {name} does not hold the CA of the certificate that is shown; the \
                 holder of the Lease writes it"
            )),
            None if self.has_certificate() => match trust.absent {
                // An installer waits until this replica is ready, and then creates pods. A replica that was ready stays
                // ready: no pod is sent to it until the configuration exists again.
                Some(name) if self.readiness.reason().is_some() => {
                    self.readiness.not_ready(format!(
                        "{name} is not there yet, so no pod is sent; the holder of the Lease writes it"
                    ));
                }
                _ => self.readiness.ready(),
            },
            None => self.readiness.not_ready("no certificate yet"),
        }
        turn.map_err(told)
            .context("cannot take part in the contest for the Lease")?;
        Ok(wrote)
    }

    fn has_certificate(&self) -> bool {
        self.tls.certificate().is_some()
    }

    /// Changes the certificate on the port where that is needed.
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
            // Signed by a CA that was replaced. That CA stays trusted until all API servers have seen the new one,
            // unless it is no longer trusted or the certificate has expired.
            Some((_, serving)) => {
                let better = trust.stranger.is_some() && trust.current == Some(true);
                settled || better || now >= serving.not_after
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

/// The API server's error message, without the rest of its answer.
fn told(error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => anyhow!("{}", status.message),
        error => error.into(),
    }
}
