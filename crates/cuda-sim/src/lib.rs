//! A simulated board of GPUs, shared by all processes through one file.
