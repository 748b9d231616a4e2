//! An address to listen on, as the flags of both processes spell it.

use std::net::{Ipv4Addr, SocketAddr};

/// The text is no address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("accepted: an address with a port, such as 0.0.0.0:31993, [::]:31993 or :31993")]
pub(crate) struct AddressError;

/// `ADDRESS:PORT`, or `:PORT` for every address.
pub(crate) fn address(text: &str) -> Result<SocketAddr, AddressError> {
    // HAMi's agent accepts ":9394", and its users expect that.
    let port = text
        .strip_prefix(':')
        .and_then(|port| port.parse::<u16>().ok());
    if let Some(port) = port {
        return Ok(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)));
    }
    text.parse().map_err(|_| AddressError)
}
