//! Foundations that depend on neither the driver nor the container: processor and clock, zeroed memory, locks,
//! the log, and the libraries that the loader has loaded.

pub(crate) mod arch;
pub(crate) mod clock;
pub(crate) mod elf;
pub(crate) mod environment;
pub(crate) mod growing;
pub(crate) mod loader;
pub(crate) mod lock;
pub(crate) mod log;
pub(crate) mod map;
pub(crate) mod walks;
