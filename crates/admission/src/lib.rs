//! What the webhook does to a pod: defaults, units, the scheduler's name, injection; and what it refuses. Pure: a
//! review in, an answer out. Never talks to anybody; its routes only carry bodies.

#![forbid(unsafe_code)]
