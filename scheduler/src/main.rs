//! `vgpu-scheduler`.

fn main() {}
