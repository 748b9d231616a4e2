//! A scheduling framework that decides as kube-scheduler does: a snapshot of a cluster and a pod in, the answer of
//! every plugin out. Values in, values out: no clock, no cluster, no I/O.
//!
//! * [`snapshot::Snapshot`] holds the cluster. Every change touches one object, so ten thousand pods on five thousand
//!   nodes can be tried in seconds.
//! * [`config::Configuration`] is `KubeSchedulerConfiguration`, and [`profile::Framework`] one of its profiles, ready
//!   to run.
//! * [`profile::Framework::schedule`] runs one pod through it. On request it keeps every plugin's answer
//!   ([`record::Record`]), which [`annotations::render`] renders.
//!
//! The rules, formulas and texts are those of kube-scheduler 1.35. A module that differs says so.

#![forbid(unsafe_code)]

pub mod annotations;
pub mod compact;
pub mod config;
pub mod cycle;
pub mod devices;
pub mod model;
pub mod names;
pub mod plugin;
mod plugins;
pub mod profile;
pub mod queue;
pub mod record;
pub mod snapshot;
pub mod status;
