//! CUDA driver and NVML types, and the one table of C signatures.

pub mod nvml;
mod nvml_structs;
