//! Being a guest in a thread of another program: what we keep for each thread, the manners around each rule,
//! the pointers that a caller passes, the settings that the environment gives.

pub(crate) mod border;
pub(crate) mod manners;
pub(crate) mod peer_region;
pub(crate) mod settings;
pub(crate) mod thread;
