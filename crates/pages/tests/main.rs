//! The pages as a browser receives them, over an embedded cluster.

#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test that reads what is not there should fail"
)]

mod gpu_pages;
mod pages_over_http;
mod support;
