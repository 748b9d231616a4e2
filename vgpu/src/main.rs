//! The command people type: run, top, set, oom, sim.

fn main() {}
