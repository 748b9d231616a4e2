//! The product under a real API server, real etcd and a stock kube-scheduler; kwok plays the nodes. `scripts/cluster
//! test` runs this program inside the namespaces of a cluster; elsewhere each test prints that it is skipped, and
//! passes. No test asserts a wall-clock time (except the promise of [`replicas`] for the loss of a node): waits end at a
//! limit that is far above the usual time.
#![forbid(unsafe_code)]

#[cfg(test)]
#[path = "../client.rs"]
mod client;

#[cfg(test)]
mod http;
#[cfg(test)]
mod objects;
#[cfg(test)]
mod programs;
#[cfg(test)]
mod world;

#[cfg(test)]
mod assigner;
#[cfg(test)]
mod claims;
#[cfg(test)]
mod configuration;
#[cfg(test)]
mod doctor;
#[cfg(test)]
mod given_out;
#[cfg(test)]
mod hcs;
#[cfg(test)]
mod ipv6;
#[cfg(test)]
mod placing;
#[cfg(test)]
mod preempting;
#[cfg(test)]
mod replicas;
#[cfg(test)]
mod rights;
#[cfg(test)]
mod simulator;
#[cfg(test)]
mod speed;
#[cfg(test)]
mod volumes;
#[cfg(test)]
mod waking;
#[cfg(test)]
mod webhook;
