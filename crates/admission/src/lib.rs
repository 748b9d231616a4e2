//! What the webhook does to a pod: defaults, units, the scheduler's name, injection; and what it refuses. Pure: a
//! review in, an answer out. Never talks to anybody; its routes only carry bodies.
//!
//! The way in is [`Admission::review`] for the bytes of an `AdmissionReview`, [`Admission::admit`] for an object and
//! who changes it. [`routes`] serves the first, [`webhook_configurations`] says to an API server which pods to send.

#![forbid(unsafe_code)]

mod admit;
mod checks;
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

pub use admit::{Admission, Admitted};
pub use configuration::{ClientConfig, webhook_configurations};
pub use context::{Context, Operation};
pub use denied::Denied;
pub use patch::Patch;
pub use quotas::Quotas;
pub use review::{Answer, Door, Reviewed};
pub use routes::routes;
pub use settings::{Agent, Settings};
