//! libcuda.so.1 of the simulated board.
