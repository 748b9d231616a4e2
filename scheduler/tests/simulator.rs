//! The simulator over HTTP: as recorded, whole or not at all, and with input that is wrong or far too large.

mod abuse;
mod extenders;
mod outside;
mod page;
mod recorded;
mod scenario;
mod scheduling;
mod stream;
mod whole;
mod wire;
