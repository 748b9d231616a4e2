//! Sizes as pure functions: how the driver rounds a request, how pools and graphs grow, and what a code image
//! declares.

pub(crate) mod image;
pub(crate) mod room;
pub(crate) mod shapes;
pub(crate) mod sizes;
