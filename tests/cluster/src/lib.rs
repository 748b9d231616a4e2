//! A helper of the tests that `scripts/cluster` runs: the OCI runtime that shows simulated GPUs to containers. The
//! folder also holds the sources of a cluster (kubebox, kwok, containerd).
#![forbid(unsafe_code)]

pub mod cdi;
