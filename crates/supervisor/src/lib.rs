//! Beside containers on a node: reads their regions safely, reaps, publishes targets.
