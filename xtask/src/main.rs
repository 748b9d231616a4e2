//! What cargo cannot say: header, generated code, dist, checks.

fn main() {}
