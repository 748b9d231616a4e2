//! This process's view of the simulated board: the driver that `cuInit` creates, the visible devices, the
//! choices of the driver, files shared with other processes, and the thread for host work.

pub(crate) mod choices;
pub(crate) mod driver;
pub(crate) mod exported;
pub(crate) mod files;
pub(crate) mod helper;
pub(crate) mod location;
pub mod ours;
pub(crate) mod visible;
pub(crate) mod work;
