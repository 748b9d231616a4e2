//! The simulator over HTTP: as recorded, whole or not at all, and with input that is wrong or far too large.

mod abuse;
mod compare;
mod extenders;
mod foreign;
mod fuzz;
mod outside;
mod page;
mod process;
mod recorded;
mod scenario;
mod scheduling;
mod stream;
mod whole;
mod wire;
