//! Which instances this agent has made and which are under way, on disk. Never the driver: whether one is there is asked
//! elsewhere.

use std::io;
use std::path::{Path, PathBuf};

use placement::Span;
use serde::{Deserialize, Serialize};
use supervisor::gpu::partition::GpuInstance;

use super::MigError;
use crate::inventory::write_whole;

/// How far an instance is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum InstanceStep {
    /// Being made: it may be there, half or whole.
    Making,
    /// There.
    Made,
    /// Being removed.
    Removing,
}

/// An instance of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JournalInstance {
    #[serde(rename = "card")]
    pub(super) gpu: String,
    pub(super) profile: String,
    pub(super) profile_id: u32,
    pub(super) start: u32,
    pub(super) size: u32,
    pub(super) step: InstanceStep,
    /// Once it is made.
    pub(super) uuid: Option<String>,
    /// False where it was there before: then it stays when its container goes.
    pub(super) ours: bool,
}

impl JournalInstance {
    pub(super) fn place(&self) -> (String, Span) {
        let span = Span {
            start: self.start,
            size: self.size,
        };
        (self.gpu.clone(), span)
    }

    pub(super) fn lies_as(&self, instance: &GpuInstance) -> bool {
        (self.profile_id, self.start, self.size)
            == (instance.profile, instance.start, instance.size)
    }
}

/// The instances that are being made, made or removed, on disk.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    pub(super) entries: Vec<JournalInstance>,
    /// Why it could not be read.
    pub(super) broken: Option<String>,
}

/// The file's form.
const FORM: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct JournalDocument {
    form: u32,
    instances: Vec<JournalInstance>,
}

/// Why the file cannot be read.
#[derive(Debug, thiserror::Error)]
enum Unreadable {
    #[error(transparent)]
    File(#[from] io::Error),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("is of form {0}, and {FORM} is read")]
    Form(u32),
}

impl Journal {
    pub(super) fn open(state_dir: &Path) -> Self {
        let path = state_dir.join("mig.json");
        let (entries, broken) = match Self::read(&path) {
            Ok(entries) => (entries, None),
            Err(problem) => {
                let reason = format!(
                    "{problem}; it says which instances this agent made: mend it, or remove it when none of them is \
                     left (nvidia-smi mig -lgi), and start the agent anew"
                );
                tracing::error!(file = %path.display(), %reason, "no MIG instance is created or removed");
                (Vec::new(), Some(reason))
            }
        };
        Self {
            path,
            entries,
            broken,
        }
    }

    fn read(path: &Path) -> Result<Vec<JournalInstance>, Unreadable> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let kept: JournalDocument = serde_json::from_str(&text)?;
        if kept.form == FORM {
            Ok(kept.instances)
        } else {
            Err(Unreadable::Form(kept.form))
        }
    }

    pub(super) fn error(&self, reason: String) -> MigError {
        MigError::Journal {
            file: self.path.display().to_string(),
            reason,
        }
    }

    pub(super) fn write(&self) -> Result<(), MigError> {
        let kept = JournalDocument {
            form: FORM,
            instances: self.entries.clone(),
        };
        write_whole(&self.path, &kept).map_err(|error| self.error(error.to_string()))
    }

    pub(super) fn at(&mut self, gpu: &str, instance: &GpuInstance) -> Option<&mut JournalInstance> {
        let mut entries = self.entries.iter_mut();
        entries.find(|entry| entry.gpu == gpu && entry.lies_as(instance))
    }
}
