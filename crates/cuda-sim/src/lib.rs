//! A simulated board of GPUs, shared by all processes through one file.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::indexing_slicing,
    reason = "a simulator: indices are its own and bounded by its tables; sizes are 64-bit"
)]

pub mod board;
pub mod clock;
pub mod config;
pub mod exec;
pub mod exports;
pub mod faults;
pub mod figures;
pub mod groups;
pub mod lacks;
pub mod mig;
pub mod nodes;
pub mod pci;
mod process;
pub mod script;
mod setting;
pub mod slices;
pub mod topology;

pub use board::Board;
pub use config::Config;
pub use setting::BadSetting;
