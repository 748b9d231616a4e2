//! The records of jobs: what a job's prolog decided, for its tasks. A record exists from the end of the prolog to the
//! epilog, and is root's. While it exists, the job's directory is in use.
//!
//! Never shows a half-written record: a record appears as a whole, or not at all.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use supervisor::instance::{self, SLURM_RECORDS};

use super::job::JobOptions;

/// A larger record is not ours, bytes.
const MOST: u64 = 64 << 10;
/// The list of libraries that tasks preload.
pub(super) const PRELOAD: &str = "ld.so.preload";

/// A file that is not complete has a name with this end.
const NEW: &str = ".new";

/// What a prolog decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum JobVerdict {
    /// The job is not limited: it has no GPU, or whole ones.
    Free,
    /// The job's limits are in the directory of this name.
    Share(String),
    /// No task of the job may start, for this reason.
    Refused(String),
}

/// A job's record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JobRecord {
    pub(super) verdict: JobVerdict,
    pub(super) asked: JobOptions,
    /// The boot of the machine in which the prolog ran.
    pub(super) boot: String,
}

/// The directory of the records below a user's directory of a board.
pub(super) struct Records(PathBuf);

impl Records {
    pub(super) fn of(user: &Path) -> Self {
        Self(user.join(SLURM_RECORDS))
    }

    pub(super) fn make(&self) -> anyhow::Result<()> {
        match fs::DirBuilder::new().mode(0o700).create(&self.0) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                Err(error).with_context(|| format!("cannot make {}", self.0.display()))
            }
            _ => Ok(()),
        }
    }

    /// Removes what a prolog that was killed between writing a file and renaming it has left. Under the board's lock no
    /// other prolog writes.
    pub(super) fn clear_half(&self) {
        for entry in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with('.') && name.ends_with(NEW) {
                // A file that cannot be removed does no harm: it is no record.
                fs::remove_file(entry.path()).ok();
            }
        }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(super) fn write(&self, job: u32, record: &JobRecord) -> anyhow::Result<()> {
        let text = serde_json::to_vec(record).context("cannot write the job's record as JSON")?;
        self.replace(&job.to_string(), &text, 0o600)
    }

    /// Replaces a file as a whole.
    pub(super) fn replace(&self, name: &str, text: &[u8], mode: u32) -> anyhow::Result<()> {
        let new = self.path(&format!(".{name}{NEW}"));
        let path = self.path(name);
        fs::remove_file(&new).ok();
        let mut options = fs::OpenOptions::new();
        options.write(true).create_new(true).mode(mode);
        let written = options
            .open(&new)
            .and_then(|mut file| file.write_all(text))
            .and_then(|()| fs::rename(&new, &path));
        written.with_context(|| format!("cannot write {}", path.display()))
    }

    /// The job's record of this boot; `None` if its prolog has not run.
    pub(super) fn read(&self, job: u32) -> anyhow::Result<Option<JobRecord>> {
        let path = self.path(&job.to_string());
        let text = match fs::metadata(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Ok(found) if found.len() > MOST => {
                bail!(
                    "{} is larger than {MOST} bytes, so it is no record of a job",
                    path.display()
                )
            }
            _ => fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?,
        };
        let record: JobRecord = serde_json::from_slice(&text)
            .with_context(|| format!("cannot read {}", path.display()))?;
        Ok((record.boot == instance::boot()).then_some(record))
    }

    /// Forgets a job; one without a record is forgotten already.
    pub(super) fn remove(&self, job: u32) -> anyhow::Result<()> {
        let path = self.path(&job.to_string());
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", path.display()))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_back_until_it_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::of(dir.path());
        records.make().unwrap();
        records.make().unwrap();
        let mut record = JobRecord {
            verdict: JobVerdict::Refused(String::from("too much")),
            asked: JobOptions::default(),
            boot: instance::boot(),
        };
        records.write(7, &record).unwrap();
        assert_eq!(records.read(7).unwrap(), Some(record.clone()));
        assert_eq!(records.read(8).unwrap(), None);

        // The record of a job that ended with the machine.
        record.boot = String::from("another");
        records.write(7, &record).unwrap();
        assert_eq!(records.read(7).unwrap(), None);

        // A prolog was killed before the rename.
        fs::write(records.path(".8.new"), "{").unwrap();
        records.clear_half();
        assert!(!records.path(".8.new").exists());
        assert!(records.path("7").exists());

        records.remove(7).unwrap();
        records.remove(7).unwrap();
        fs::write(records.path("9"), "{").unwrap();
        assert!(records.read(9).is_err());
    }
}
