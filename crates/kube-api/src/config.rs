//! `device-config.yaml`, as the reference reads it: which resources there are and what is taken where a pod says
//! nothing. Unknown keys are refused with their line.

/// The configuration of devices.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeviceConfig {
    // nvidia, cambricon, hygon, ... one field for each section, public
}

/// Why a configuration cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No YAML, an unknown key, a value of another kind.
    #[error("{0}")]
    Unreadable(String),
    /// It says something that cannot be.
    #[error("{key}: {problem}")]
    Wrong {
        /// Which key.
        key: String,
        /// What was read, what is accepted.
        problem: String,
    },
}

impl DeviceConfig {
    /// Reads YAML text.
    ///
    /// # Errors
    ///
    /// With line and column when it is no YAML, has an unknown key or a value of another kind, or is empty.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let _ = text;
        unimplemented!()
    }

    /// What holds where no file is given: the reference's own defaults.
    pub fn standard() -> Self {
        unimplemented!()
    }
}
