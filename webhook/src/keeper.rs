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
                // Whoever installs waits for us, and then makes pods. One that was ready stays so: nobody can be sent
                // to it until the configuration is there again.
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
            // Signed by a CA that was replaced: that is trusted until the new one is everywhere;
            // unless it is not, or the certificate has ended.
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

/// What the API server says, without the rest of its answer.
fn told(error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => anyhow!("{}", status.message),
        error => error.into(),
    }
}
