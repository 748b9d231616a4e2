//! The admission webhook as a process: TLS with its own CA, and its own configurations in the API server. All decisions
//! about pods are in `admission`.

#![forbid(unsafe_code)]

pub mod args;
pub mod authority;
pub mod configuration;
pub mod keeper;
pub mod lease;
pub mod metrics;
pub mod program;
pub mod quotas;
pub mod router;
pub mod run;
pub mod secret;
