//! The Lease that reserves one GPU, as a value and back. Does not judge whether it has expired.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{GPU_UUID, POD_NAME, POD_NAMESPACE, RESERVATION_ID, RESERVATION_STATE};

/// How long a reservation lasts that no pod confirms.
pub const PROPOSAL_LASTS: Duration = Duration::from_secs(60);
/// How long an active reservation lasts without a renewal.
pub const ACTIVE_LASTS: Duration = Duration::from_secs(300);
/// How long a GPU is kept from assigners after a pod's binding to it began, if the end of the binding is unknown.
pub const BINDING_LASTS: Duration = Duration::from_secs(60);

/// The state of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// The GPU was proposed to a pod that may never be created.
    Proposed,
    /// The pod exists.
    Active,
    /// Not a reservation by label: the scheduler extender is binding a pod to the GPU, and no assigner gives it away
    /// meanwhile.
    Binding,
}

impl State {
    /// The value of the label [`RESERVATION_STATE`].
    pub fn word(self) -> &'static str {
        match self {
            Self::Proposed => "proposal",
            Self::Active => "active",
            Self::Binding => "binding",
        }
    }

    /// How long a reservation in this state lasts after its last change.
    pub fn lasts(self) -> Duration {
        match self {
            Self::Proposed => PROPOSAL_LASTS,
            Self::Active => ACTIVE_LASTS,
            Self::Binding => BINDING_LASTS,
        }
    }
}

/// One GPU of one reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The GPU.
    pub gpu: String,
    /// The reservation, of which this may be one GPU of several.
    pub reservation: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod; empty before it is known.
    pub pod: String,
    /// Its state.
    pub state: State,
    /// The reservation's id while it is proposed, the pod's UID once it is active.
    pub holder: String,
    /// When the GPU was reserved, by the clock of the process that reserved it.
    pub acquired: Timestamp,
    /// When the Lease was renewed, by the clock of the process that renewed it.
    pub renewed: Option<Timestamp>,
    /// `metadata.resourceVersion`; empty before it is written.
    pub version: String,
    /// `metadata.uid` of the Lease; empty before it is written.
    pub lease_uid: String,
}

/// Why a Lease does not count as a reservation. The assigner leaves such a Lease alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// A label or annotation is missing.
    #[error("Lease {name}: {key} is missing")]
    Missing {
        /// Name of the Lease.
        name: String,
        /// The label or annotation.
        key: &'static str,
    },
    /// The Lease has the name of another GPU's Lease.
    #[error("Lease {name} names GPU {gpu}, whose Lease has another name")]
    AnotherName {
        /// Name of the Lease.
        name: String,
        /// The GPU.
        gpu: String,
    },
}

/// The name of a GPU's Lease: the UUID in lower case, with `-` in place of characters that a name cannot have, and
/// without `-` and `.` at its start and end.
pub fn lease_name(gpu: &str) -> String {
    let name: String = gpu
        .to_lowercase()
        .chars()
        .map(|c| match c {
            'a'..='z' | '0'..='9' | '.' | '-' => c,
            _ => '-',
        })
        .collect();
    name.trim_matches(['-', '.']).to_owned()
}

impl Claim {
    /// A new proposal, not written yet.
    pub fn proposed(gpu: &str, reservation: &str, namespace: &str, now: Timestamp) -> Self {
        Self {
            gpu: gpu.to_owned(),
            reservation: reservation.to_owned(),
            namespace: namespace.to_owned(),
            pod: String::new(),
            state: State::Proposed,
            holder: reservation.to_owned(),
            acquired: now,
            renewed: Some(now),
            version: String::new(),
            lease_uid: String::new(),
        }
    }

    /// The extender is binding a pod of this namespace to the GPU; not written yet. `id` distinguishes bindings.
    pub fn binding(gpu: &str, id: &str, namespace: &str, now: Timestamp) -> Self {
        Self {
            state: State::Binding,
            ..Self::proposed(gpu, id, namespace, now)
        }
    }

    /// The same reservation, now held by this pod.
    #[must_use]
    pub fn activated(&self, pod: &str, uid: &str, now: Timestamp) -> Self {
        Self {
            pod: pod.to_owned(),
            state: State::Active,
            holder: uid.to_owned(),
            renewed: Some(now),
            ..self.clone()
        }
    }

    /// The same reservation, renewed.
    #[must_use]
    pub fn renewed(&self, now: Timestamp) -> Self {
        Self {
            renewed: Some(now),
            ..self.clone()
        }
    }

    /// The minimum age of the reservation, judged by its time alone. `skew` is the possible difference between the
    /// clocks of this machine and of the writer. At most the reservation's duration.
    pub fn least_age(&self, now: Timestamp, skew: SignedDuration) -> Duration {
        let lasts = self.state.lasts();
        // A Lease that was never renewed counts as expired.
        let Some(renewed) = self.renewed else {
            return lasts;
        };
        let age = now.duration_since(renewed).saturating_sub(skew);
        Duration::try_from(age).unwrap_or_default().min(lasts)
    }

    /// Reads a Lease.
    ///
    /// # Errors
    ///
    /// Why the Lease is not one of our reservations.
    pub fn read(lease: &Lease) -> Result<Self, ClaimError> {
        let name = lease.metadata.name.clone().unwrap_or_default();
        let label = |key: &'static str| {
            let labels = lease.metadata.labels.as_ref();
            let text = labels.and_then(|labels| labels.get(key));
            text.filter(|text| !text.is_empty()).cloned()
        };
        let missing = |key: &'static str| ClaimError::Missing {
            name: name.clone(),
            key,
        };
        let annotation = |key: &str| {
            let annotations = lease.metadata.annotations.as_ref();
            let text = annotations.and_then(|annotations| annotations.get(key));
            text.filter(|text| !text.is_empty()).cloned()
        };
        let gpu = label(GPU_UUID).ok_or_else(|| missing(GPU_UUID))?;
        if lease_name(&gpu) != name {
            return Err(ClaimError::AnotherName { name, gpu });
        }
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.unwrap_or_default();
        if holder.is_empty() {
            return Err(missing("spec.holderIdentity"));
        }
        let state = match label(RESERVATION_STATE).as_deref() {
            Some("active") => State::Active,
            Some("binding") => State::Binding,
            _ => State::Proposed,
        };
        let renewed = spec.renew_time.map(|time| time.0);
        Ok(Self {
            namespace: label(POD_NAMESPACE).ok_or_else(|| missing(POD_NAMESPACE))?,
            // Older releases of the reference write a proposal's id only as its holder.
            reservation: annotation(RESERVATION_ID).unwrap_or_else(|| holder.clone()),
            pod: annotation(POD_NAME).unwrap_or_default(),
            state,
            holder,
            acquired: spec
                .acquire_time
                .map(|time| time.0)
                .or(renewed)
                .unwrap_or(Timestamp::UNIX_EPOCH),
            renewed,
            version: lease.metadata.resource_version.clone().unwrap_or_default(),
            lease_uid: lease.metadata.uid.clone().unwrap_or_default(),
            gpu,
        })
    }

    /// The Lease, with the version and the UID that the claim was read with, so that the write is refused if another
    /// write came first.
    pub fn lease(&self) -> Lease {
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let labels = [
            (GPU_UUID, self.gpu.as_str()),
            (POD_NAMESPACE, self.namespace.as_str()),
            (RESERVATION_STATE, self.state.word()),
        ];
        let annotations = [
            (RESERVATION_ID, self.reservation.as_str()),
            (POD_NAME, self.pod.as_str()),
        ];
        let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        let seconds = self.state.lasts().as_secs();
        Lease {
            metadata: ObjectMeta {
                name: Some(lease_name(&self.gpu)),
                labels: Some(labels.into_iter().map(owned).collect()),
                annotations: Some(
                    annotations
                        .into_iter()
                        .filter(|(_, value)| !value.is_empty())
                        .map(owned)
                        .collect(),
                ),
                resource_version: text(&self.version),
                uid: text(&self.lease_uid),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.holder.clone()),
                lease_duration_seconds: i32::try_from(seconds).ok(),
                acquire_time: Some(MicroTime(self.acquired)),
                renew_time: self.renewed.map(MicroTime),
                ..LeaseSpec::default()
            }),
        }
    }
}
