//! The driver's own memory of the claims that are ready, on the node's disk: at the end of a claim the API server may no
//! longer have it, and at the start of the agent it may be away. Never decides.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::claim::Part;
use crate::durable::replace;

/// The file's version. One that is newer is not read.
const VERSION: u32 = 1;

/// A claim that is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// The claim's namespace.
    pub namespace: String,
    /// The claim's name.
    pub name: String,
    /// Its parts; the place of a part is the number in the name of its directory.
    pub parts: Vec<Part>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Content {
    version: u32,
    /// By the claim's uid.
    claims: BTreeMap<String, Ready>,
}

/// The claims that are ready, and the file.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    claims: Mutex<BTreeMap<String, Ready>>,
}

impl Checkpoint {
    /// Reads the file. One that cannot be read is put aside: every claim is then read from the API server again.
    ///
    /// # Errors
    /// The disk does not answer, or the file is of a later release.
    pub fn open(path: &Path) -> io::Result<Self> {
        let claims = match std::fs::read(path) {
            Ok(bytes) => match serde_json::from_slice::<Content>(&bytes) {
                Ok(content) if content.version > VERSION => {
                    return Err(io::Error::other(format!(
                        "{} has version {}, and this release reads {VERSION}: a later release has written it",
                        path.display(),
                        content.version
                    )));
                }
                Ok(content) => content.claims,
                Err(error) => {
                    let aside = path.with_extension("broken");
                    std::fs::rename(path, &aside)?;
                    tracing::error!(
                        path = %path.display(), aside = %aside.display(), %error,
                        "the record of claims cannot be read and is put aside: each claim is read from the API server \
                         when the kubelet asks for it"
                    );
                    BTreeMap::new()
                }
            },
            Err(error) if error.kind() == ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error),
        };
        Ok(Self {
            path: path.to_owned(),
            claims: Mutex::new(claims),
        })
    }

    /// The record of a claim.
    pub fn get(&self, uid: &str) -> Option<Ready> {
        self.claims.lock().get(uid).cloned()
    }

    /// All claims, by uid.
    pub fn all(&self) -> BTreeMap<String, Ready> {
        self.claims.lock().clone()
    }

    /// Remembers a claim. Afterwards it is on the disk, or nothing has changed.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn put(&self, uid: &str, ready: Ready) -> io::Result<()> {
        self.change(|claims| {
            if claims.get(uid) == Some(&ready) {
                return false;
            }
            claims.insert(uid.to_owned(), ready.clone());
            true
        })
    }

    /// Forgets a claim.
    ///
    /// # Errors
    /// As [`Checkpoint::put`].
    pub fn remove(&self, uid: &str) -> io::Result<()> {
        self.change(|claims| claims.remove(uid).is_some())
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Ready>) -> bool) -> io::Result<()> {
        let mut claims = self.claims.lock();
        let mut next = claims.clone();
        if !change(&mut next) {
            return Ok(());
        }
        let content = Content {
            version: VERSION,
            claims: next,
        };
        replace(&self.path, &serde_json::to_vec_pretty(&content)?, 0o644)?;
        *claims = content.claims;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(name: &str) -> Ready {
        Ready {
            namespace: String::from("default"),
            name: name.to_owned(),
            parts: Vec::new(),
        }
    }

    #[test]
    fn claims_outlive_the_process_until_they_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("claims.json");
        let first = Checkpoint::open(&path).unwrap();
        first.put("u1", ready("one")).unwrap();
        first.put("u2", ready("two")).unwrap();
        first.remove("u1").unwrap();
        first.remove("unknown").unwrap();

        let second = Checkpoint::open(&path).unwrap();

        assert_eq!(second.get("u1"), None);
        assert_eq!(second.get("u2"), Some(ready("two")));
    }

    #[test]
    fn claim_that_cannot_be_written_is_not_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/claims.json");
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        checkpoint.put("u1", ready("one")).unwrap();
        // No file can be made there any more, by root either.
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();

        checkpoint.put("u2", ready("two")).unwrap_err();
        checkpoint.remove("u1").unwrap_err();

        assert_eq!(checkpoint.all().len(), 1);
        assert_eq!(checkpoint.get("u1"), Some(ready("one")));
    }

    #[test]
    fn broken_file_is_put_aside_and_a_later_one_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("claims.json");
        std::fs::write(&path, "{\"version\": 1, \"claims\": {\"u").unwrap();

        assert!(Checkpoint::open(&path).unwrap().all().is_empty());
        assert!(path.with_extension("broken").exists());

        std::fs::write(&path, "{\"version\": 2, \"claims\": {}}").unwrap();
        let error = Checkpoint::open(&path).unwrap_err().to_string();
        assert!(error.contains("version 2"), "{error}");
        assert!(path.exists());
    }
}
