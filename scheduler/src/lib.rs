//! The scheduler: the cluster's view, the ledger of reservations, and the HTTP API that kube-scheduler calls. Never
//! computes a fit itself (`placement` does), never touches a node.

#![forbid(unsafe_code)]
