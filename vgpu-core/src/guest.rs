//! The library's place inside another program: per-thread state, the checks around each rule, the pointers that
//! a caller passes, and the settings from the environment.

pub(crate) mod border;
pub(crate) mod manners;
pub(crate) mod peer_region;
pub(crate) mod settings;
pub(crate) mod thread;
