//! The product on a real node: kubelet, containerd, and simulated GPUs in containers, installed by its chart.
//! `scripts/cluster test --node` runs this program inside the namespaces of a cluster; elsewhere each test prints that
//! it is skipped, and passes. No test asserts a wall-clock time: waits end at a limit that is far above the usual
//! time.
#![forbid(unsafe_code)]

#[cfg(test)]
#[path = "../client.rs"]
mod client;

#[cfg(test)]
mod agent;
#[cfg(test)]
mod world;

#[cfg(test)]
mod containers;
#[cfg(test)]
mod crowd;
#[cfg(test)]
mod doctor;
#[cfg(test)]
mod dra;
#[cfg(test)]
mod dra_mig;
#[cfg(test)]
mod failover;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod fence;
#[cfg(test)]
mod reboot;
#[cfg(test)]
mod release;
#[cfg(test)]
mod rights;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod runtime;
#[cfg(test)]
mod scaling;
#[cfg(test)]
mod sharing;
#[cfg(test)]
mod unasked;
#[cfg(test)]
mod upgrade;
#[cfg(test)]
mod waste;
