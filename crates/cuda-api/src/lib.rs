//! CUDA driver and NVML types, and the one table of C signatures.
