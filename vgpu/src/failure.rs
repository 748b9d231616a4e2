//! Why a command ends without success, and its exit code.

use std::fmt;

/// Why the command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Invalid arguments: exit code 2.
    Usage(Misuse),
    /// Valid arguments, but the command failed: exit code 1.
    Failed(anyhow::Error),
    /// The program could not be started: the exit code that a shell would give.
    NotStarted {
        /// 126 or 127.
        code: u8,
        /// The attempt and the system's error.
        text: String,
    },
}

impl Failure {
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::Usage(Misuse::new(text))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(misuse) => misuse.fmt(f),
            Self::Failed(error) => write!(f, "{error:#}"),
            Self::NotStarted { text, .. } => f.write_str(text),
        }
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl From<Misuse> for Failure {
    fn from(misuse: Misuse) -> Self {
        Self::Usage(misuse)
    }
}

/// The request itself is wrong: what is wrong with it, and what to do instead. Every message differs and only the user
/// reads it, so it has no cases.
///
/// It is no `std::error::Error`, so that `?` cannot turn it into a [`Failure::Failed`], which has another exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Misuse(String);

impl Misuse {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
