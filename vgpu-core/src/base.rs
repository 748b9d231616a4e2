//! What a guest needs that neither the driver nor the container has a part in: the machine, memory that
//! begins as zeros, locks, the log, the objects that the loader has loaded.

pub(crate) mod arch;
pub(crate) mod clock;
pub(crate) mod elf;
pub(crate) mod environment;
pub(crate) mod growing;
pub(crate) mod loader;
pub(crate) mod lock;
pub(crate) mod log;
pub(crate) mod map;
