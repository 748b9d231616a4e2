//! The position at which a page of a list ended, as the token that asks for the next page.

use crate::status::Status;

/// The position at which a page ended, and the version of the list.
pub(crate) struct Continue {
    pub(crate) version: u64,
    pub(crate) after: String,
}

impl Continue {
    pub(crate) fn parse(token: &str) -> Result<Option<Self>, Status> {
        if token.is_empty() {
            return Ok(None);
        }
        // Hexadecimal, so that it needs no escape in a query.
        let bytes: Option<Vec<u8>> = token
            .as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
            .collect();
        bytes
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .and_then(|text| {
                let (version, after) = text.split_once('/')?;
                Some(Some(Self {
                    version: version.parse().ok()?,
                    after: after.to_owned(),
                }))
            })
            .ok_or_else(|| Status::bad_request("continue key is not valid"))
    }

    pub(crate) fn print(&self) -> String {
        format!("{}/{}", self.version, self.after)
            .bytes()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}
