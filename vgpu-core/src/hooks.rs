//! The exported C symbols. A row of the table is a function of the driver with the rule that stands before
//! its call and the one that stands after it (`driver/hook.rs`). Decides nothing: the rules do.

pub(crate) mod cuda;
mod linker;
mod names;
