//! The tests of this crate from outside, in one program: linking one costs a fraction of linking one for each file.

mod attest;
mod common;
mod exposition;
mod first_kernel;
mod health;
mod hostile;
mod inventory;
mod kubelet;
mod plugin;
mod process;
mod registration;
