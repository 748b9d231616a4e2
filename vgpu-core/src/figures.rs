//! Numbers and bytes: what the driver takes for what was asked, how memory that grows in chunks grows, what
//! an image of code declares. Values in, values out.

pub(crate) mod image;
pub(crate) mod room;
pub(crate) mod shapes;
pub(crate) mod sizes;
