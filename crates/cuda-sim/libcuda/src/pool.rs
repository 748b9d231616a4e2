//! Memory pools and stream-ordered allocation.

/// A stream of this GPU has been waited for.
pub(crate) fn synchronized(_gpu: usize) {}
