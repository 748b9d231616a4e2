//! The files that the host and a container share: limits, targets, usage region.
