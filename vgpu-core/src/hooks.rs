//! The exported C symbols. Each row of the table names a function of the driver, the rule that runs before it and
//! the rule that runs after it (`driver/hook.rs`). Makes no decisions: the rules do.

pub(crate) mod cuda;
mod linker;
mod names;
mod nvml;
