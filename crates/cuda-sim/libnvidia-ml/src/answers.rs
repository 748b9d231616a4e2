//! Every simulated function by its name, gathered for the exports. Holds no answer itself.

pub(crate) use crate::device::*;
pub(crate) use crate::event::*;
pub(crate) use crate::load::*;
pub(crate) use crate::mig::*;
pub(crate) use crate::process::*;
pub(crate) use crate::system::*;
