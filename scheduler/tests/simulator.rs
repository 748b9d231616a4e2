//! The simulator over HTTP: as recorded, whole or not at all, and with input that nobody should send.

mod abuse;
mod outside;
mod page;
mod recorded;
mod scenario;
mod scheduling;
mod stream;
mod whole;
mod wire;
