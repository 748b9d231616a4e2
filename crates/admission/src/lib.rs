//! The webhook's decisions about a pod: defaults, units, the scheduler's name, injection, and refusals. Pure: a review
//! in, an answer out. Nothing here makes a network call; the routes only pass bodies.
//!
//! The entry points are [`Admission::review`] for the bytes of an `AdmissionReview`, and [`Admission::admit`] for an
//! object and the user that changes it. [`routes`] serves the first; [`webhook_configurations`] tells an API server
//! which pods to send.

#![forbid(unsafe_code)]

mod admit;
mod by_claims;
mod checks;
mod claims;
mod configuration;
mod context;
mod denied;
mod forgery;
mod hcs;
mod inject;
mod patch;
mod place;
mod quotas;
mod review;
mod routes;
mod settings;
mod visible;

pub use admit::{Admission, Admitted};
pub use configuration::{ClientConfig, webhook_configurations};
pub use context::{Context, Operation};
pub use denied::Denied;
pub use patch::Patch;
pub use quotas::Quotas;
pub use review::{Answer, Reviewed, WebhookKind};
pub use routes::routes;
pub use settings::{Agent, Settings};
