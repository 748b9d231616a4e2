//! What knows neither the board nor the process: the border to C, tables of handles, addresses, what
//! stands in a module's image, the figures of the simulated GPU.

pub(crate) mod border;
pub(crate) mod declared;
pub(crate) mod elf;
pub(crate) mod image;
pub(crate) mod model;
pub(crate) mod ptx;
pub(crate) mod space;
pub(crate) mod table;
pub(crate) mod values;
