//! Foundations that depend on neither the board nor the process: the border to C, handle tables, addresses, and the
//! figures of the simulated GPU.

pub(crate) mod border;
pub(crate) mod model;
pub(crate) mod space;
pub(crate) mod table;
pub(crate) mod values;
