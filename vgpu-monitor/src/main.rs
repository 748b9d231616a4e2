//! The node agent: usage of every container for Prometheus on port 31993.

fn main() {}
