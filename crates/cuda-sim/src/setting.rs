//! A setting of the board that is not understood: its variable, the text, and the accepted values. Only people read it,
//! so it keeps words and no cases.

use std::borrow::Cow;
use std::fmt;

/// A `VGPU_SIM_*` variable with a value that is not understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadSetting {
    name: &'static str,
    text: String,
    is_part: bool,
    accepted: Cow<'static, str>,
}

impl BadSetting {
    /// The whole value is refused.
    pub(crate) fn value(
        name: &'static str,
        text: &str,
        accepted: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            name,
            text: text.to_owned(),
            is_part: false,
            accepted: accepted.into(),
        }
    }

    /// One entry of the value is refused.
    pub(crate) fn entry(name: &'static str, text: &str, accepted: &'static str) -> Self {
        Self {
            is_part: true,
            ..Self::value(name, text, accepted)
        }
    }
}

impl fmt::Display for BadSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            text,
            is_part,
            accepted,
        } = self;
        let verb = if *is_part { "has" } else { "is" };
        write!(f, "{name} {verb} {text:?}: {accepted}")
    }
}

impl std::error::Error for BadSetting {}
