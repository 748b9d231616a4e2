//! `vgpu-webhook`.

fn main() {}
