//! What this process has of the simulated board: the driver that `cuInit` makes, the devices it sees,
//! the choices of its driver, files that it shares with others, the thread that does host work.

pub(crate) mod choices;
pub(crate) mod driver;
pub(crate) mod exported;
pub(crate) mod files;
pub(crate) mod helper;
pub(crate) mod location;
pub mod ours;
pub(crate) mod visible;
pub(crate) mod work;
