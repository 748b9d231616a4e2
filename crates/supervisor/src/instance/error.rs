//! Why a directory cannot be used as an instance.

use std::path::{Path, PathBuf};

use nix::errno::Errno;

/// Why a directory cannot be used as an instance.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InstanceError {
    /// The system said no.
    #[error("cannot {action} {path}: {errno}", path = path.display(), errno = errno.desc())]
    System {
        /// The action that was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The answer.
        errno: Errno,
    },
    /// Not the kind of file that it must be.
    #[error("{path} is not a {expected}", path = path.display())]
    Kind {
        /// The path that was looked at.
        path: PathBuf,
        /// The kind that it must be.
        expected: &'static str,
    },
    /// Another user could have written it.
    #[error("{path} belongs to uid {owner} with mode {mode:03o}; it must belong to uid {expected} or root, and no other user may write it", path = path.display())]
    Ownership {
        /// The path that was looked at.
        path: PathBuf,
        /// Its owner's user id.
        owner: u32,
        /// The user id that must own it.
        expected: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// The labels cannot be read.
    #[error("{path} is not a label file: {reason}", path = path.display())]
    Labels {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
    /// One of the files cannot be made.
    #[error("cannot make {path}: {reason}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The obstacle.
        reason: String,
    },
    /// Another runner has the directory.
    #[error("{path} is in use by another runner", path = path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
}

impl InstanceError {
    pub(super) fn system(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(Errno) -> Self {
        let path = path.into();
        move |errno| Self::System {
            action,
            path,
            errno,
        }
    }

    /// The system's answer, where that is the reason.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::System { errno, .. } => Some(*errno),
            _ => None,
        }
    }

    /// A directory that cannot be opened.
    pub(super) fn directory(path: &Path, errno: Errno) -> Self {
        match errno {
            Errno::ELOOP | Errno::ENOTDIR => Self::Kind {
                path: path.to_owned(),
                expected: "directory (a link counts as none)",
            },
            errno => Self::System {
                action: "open",
                path: path.to_owned(),
                errno,
            },
        }
    }
}
