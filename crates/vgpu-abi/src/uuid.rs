//! The UUID of a device as text of a fixed size, as in the shared files.

use std::fmt;

use crate::layout::UUID_BYTES;

/// A device's UUID as text (`GPU-…`, `MIG-…`), at most 95 bytes. The empty one means "the device at
/// this index".
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceUuid([u8; UUID_BYTES]);

impl DeviceUuid {
    /// No text: the device at this index, whichever it is.
    pub const EMPTY: Self = Self([0; UUID_BYTES]);

    /// Takes a text.
    ///
    /// # Errors
    /// When it is longer than 95 bytes, or has a byte that is not printable ASCII.
    pub fn new(text: &str) -> Result<Self, UuidError> {
        let mut bytes = [0; UUID_BYTES];
        if text.len() >= UUID_BYTES {
            return Err(UuidError { length: text.len() });
        }
        for (to, from) in bytes.iter_mut().zip(text.bytes()) {
            if !from.is_ascii_graphic() {
                return Err(UuidError { length: text.len() });
            }
            *to = from;
        }
        Ok(Self(bytes))
    }

    /// Takes bytes out of a file: text up to the first zero, cut where it stops being printable.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; UUID_BYTES]) -> Self {
        let mut text = [0; UUID_BYTES];
        for (to, from) in text.iter_mut().zip(bytes.iter()).take(UUID_BYTES - 1) {
            if !from.is_ascii_graphic() {
                break;
            }
            *to = *from;
        }
        Self(text)
    }

    /// The zero-padded bytes, as in a file.
    #[must_use]
    pub fn bytes(&self) -> &[u8; UUID_BYTES] {
        &self.0
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|b| *b == 0).unwrap_or(UUID_BYTES);
        let text = self.0.get(..end).unwrap_or_default();
        std::str::from_utf8(text).unwrap_or_default()
    }

    /// Whether it means an index only.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.first() == Some(&0)
    }
}

impl Default for DeviceUuid {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl fmt::Display for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl std::str::FromStr for DeviceUuid {
    type Err = UuidError;

    fn from_str(text: &str) -> Result<Self, UuidError> {
        Self::new(text)
    }
}

/// A text that is no UUID of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UuidError {
    length: usize,
}

impl fmt::Display for UuidError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "device uuid of {} bytes; accepted: at most {} printable characters without spaces",
            self.length,
            UUID_BYTES - 1
        )
    }
}

impl std::error::Error for UuidError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_uuid_is_short_printable_text() {
        assert_eq!(DeviceUuid::new("GPU-1").unwrap().as_str(), "GPU-1");
        assert!(DeviceUuid::new("").unwrap().is_empty());
        assert!(DeviceUuid::new("GPU 1").is_err());
        assert!(DeviceUuid::new(&"x".repeat(96)).is_err());
        assert!(DeviceUuid::new(&"x".repeat(95)).is_ok());
        assert_eq!(DeviceUuid::from_bytes(&[0xff; 96]).as_str(), "");
    }
}
