//! What the tests that `scripts/cluster` runs need beside them: the OCI runtime that shows simulated GPUs to containers.
//! The folder also holds what a cluster is built from (kubebox, kwok, containerd).
#![forbid(unsafe_code)]

pub mod cdi;
