//! Which replica writes: the holder of a Lease.
//!
//! Never does what the holder may do, and takes nobody's clock for true: a holder is gone when its
//! Lease has not changed for as long as it says, by our own clock.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, PostParams};
use tokio::time::Instant;

/// Our part in the contest for a Lease.
pub struct Contest {
    api: Api<Lease>,
    name: String,
    identity: String,
    /// How long a holder may be silent.
    patience: Duration,
    held_until: Option<Instant>,
    renewed: Option<Instant>,
    /// Another's Lease as we saw it last, and when we first saw it so.
    seen: Option<(String, Instant)>,
}

impl Contest {
    /// `identity` is one of this process alone. A holder that is silent for `patience` loses.
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

    /// Whether it is ours, by what we know.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.held_until.is_some_and(|until| Instant::now() < until)
    }

    /// How often [`Contest::turn`] wants to be called.
    #[must_use]
    pub fn rhythm(&self) -> Duration {
        self.patience / 3
    }

    /// Takes the Lease, keeps it or looks at who has it. Whether it is ours. `wall` is what the
    /// Lease shows to people.
    ///
    /// # Errors
    /// The API server does not answer, or does not let us. What we hold, we hold until it ends.
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
            // A Lease that says a year would be nobody's for a year.
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
        // With the version that was read: of two who take it, one does.
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
                // From before the call: the others count from its arrival.
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

    /// Lets the next one have it at once.
    ///
    /// # Errors
    /// The API server does not answer: it will be silent long enough.
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
