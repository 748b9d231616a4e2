//! Nothing to link: the package holds the tests that `scripts/cluster test` runs on a real control plane, and what
//! such a control plane is built from (kubebox, kwok).
#![forbid(unsafe_code)]
