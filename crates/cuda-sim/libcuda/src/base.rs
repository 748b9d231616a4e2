//! Foundations that depend on neither the board nor the process: the border to C, handle tables, addresses,
//! the contents of a module's image, and the figures of the simulated GPU.

pub(crate) mod border;
pub(crate) mod declared;
pub(crate) mod elf;
pub(crate) mod image;
pub(crate) mod model;
pub(crate) mod ptx;
pub(crate) mod space;
pub(crate) mod table;
pub(crate) mod values;
