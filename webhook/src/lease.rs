//! Decides which replica writes: the holder of a Lease.
//!
//! Trusts no other machine's clock: a holder counts as gone when its Lease has not changed for the
//! Lease's duration, measured by this machine's clock.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, PostParams};
use tokio::time::Instant;

/// This replica's part in the contest for a Lease.
pub struct Contest {
    api: Api<Lease>,
    name: String,
    identity: String,
    /// How long a holder may be silent before another replica takes the Lease.
    patience: Duration,
    held_until: Option<Instant>,
    renewed: Option<Instant>,
    /// Another replica's Lease as last read, and when it was first read in that state.
    seen: Option<(String, Instant)>,
}

impl Contest {
    /// `identity` must be unique to this process. A holder that is silent for `patience` loses the
    /// Lease.
    #[must_use]
    pub fn new(api: Api<Lease>, name: String, identity: String, patience: Duration) -> Self {
        Self {
            api,
            name,
            identity,
            patience,
            held_until: None,
            renewed: None,
            seen: None,
        }
    }

    /// Whether this replica holds the Lease, as far as it knows.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.held_until.is_some_and(|until| Instant::now() < until)
    }

    /// How often to call [`Contest::turn`].
    #[must_use]
    pub fn rhythm(&self) -> Duration {
        self.patience / 3
    }

    /// Takes the Lease, renews it, or sees that another replica holds it. Returns whether this
    /// replica holds it. `wall` is the time to write into the Lease for people to read.
    ///
    /// # Errors
    ///
    /// The API server does not answer, or refuses. A Lease that this replica holds stays held until
    /// it expires.
    pub async fn turn(&mut self, wall: Timestamp) -> Result<bool, kube::Error> {
        let now = Instant::now();
        if self.is_ours()
            && self
                .renewed
                .is_some_and(|renewed| now.duration_since(renewed) < self.rhythm())
        {
            return Ok(true);
        }
        let Some(mut lease) = self.api.get_opt(&self.name).await? else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(self.name.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.spec(None, wall)),
            };
            let created = self.api.create(&PostParams::default(), &lease).await;
            return self.took(created, now);
        };
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let spec = lease.spec.take().unwrap_or_default();
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        if !holder.is_empty() && holder != self.identity {
            self.held_until = None;
            let since = match &self.seen {
                Some((seen, since)) if *seen == version => *since,
                _ => {
                    self.seen = Some((version, now));
                    now
                }
            };
            let silent_for = spec
                .lease_duration_seconds
                .and_then(|s| u64::try_from(s).ok());
            // A Lease with a duration of a year would block all replicas for a year.
            let silent_for = silent_for.map_or(self.patience, Duration::from_secs);
            if now.duration_since(since) < silent_for.min(self.patience * 10) {
                return Ok(false);
            }
            tracing::info!(
                lease = self.name,
                holder,
                "its holder is silent: it is taken over"
            );
        }
        // The write names the version that was read, so that of two replicas only one succeeds.
        lease.spec = Some(self.spec(Some(&spec), wall));
        let replaced = self
            .api
            .replace(&self.name, &PostParams::default(), &lease)
            .await;
        self.took(replaced, now)
    }

    fn took(
        &mut self,
        written: Result<Lease, kube::Error>,
        now: Instant,
    ) -> Result<bool, kube::Error> {
        match written {
            Ok(_) => {
                if !self.is_ours() {
                    tracing::info!(
                        lease = self.name,
                        identity = self.identity,
                        "the Lease is ours"
                    );
                }
                // Counted from before the call, because the other replicas count from its arrival.
                self.held_until = Some(now + self.patience);
                self.renewed = Some(now);
                Ok(true)
            }
            Err(kube::Error::Api(status))
                if status.is_conflict() || status.is_already_exists() || status.is_not_found() =>
            {
                self.held_until = None;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Releases the Lease, so that another replica can take it at once.
    ///
    /// # Errors
    ///
    /// The API server does not answer. The Lease then expires by itself.
    pub async fn let_go(&mut self) -> Result<(), kube::Error> {
        if !self.is_ours() {
            return Ok(());
        }
        self.held_until = None;
        let mut lease = self.api.get(&self.name).await?;
        let ours = lease
            .spec
            .as_mut()
            .filter(|spec| spec.holder_identity.as_ref() == Some(&self.identity));
        if let Some(spec) = ours {
            spec.holder_identity = None;
            self.api
                .replace(&self.name, &PostParams::default(), &lease)
                .await?;
        }
        Ok(())
    }

    fn spec(&self, before: Option<&LeaseSpec>, wall: Timestamp) -> LeaseSpec {
        let stays =
            before.is_some_and(|before| before.holder_identity.as_ref() == Some(&self.identity));
        let acquired = before
            .filter(|_| stays)
            .and_then(|before| before.acquire_time.clone());
        let changes = before
            .and_then(|before| before.lease_transitions)
            .unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(
                i32::try_from(self.patience.as_secs().max(1)).unwrap_or(i32::MAX),
            ),
            acquire_time: acquired.or(Some(MicroTime(wall))),
            renew_time: Some(MicroTime(wall)),
            lease_transitions: Some(if stays {
                changes
            } else {
                changes.saturating_add(1)
            }),
            ..LeaseSpec::default()
        }
    }
}
