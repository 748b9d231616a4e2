//! The tests of this crate from outside, in one program: linking one costs a fraction of linking one for each file.

mod bodies;
mod clients;
mod tls;
