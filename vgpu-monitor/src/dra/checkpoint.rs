//! The driver's own memory of the claims that are ready, on the node's disk: at the end of a claim the API server may no
//! longer have it, and at the start of the agent it may be away. Each claim has a file of its own, so that claims are
//! written at the same time. Never decides.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::claim::Part;
use crate::durable::{replace, sync_parent};
use crate::steps::step;

/// The folder of the claims' files, in the state directory.
pub const FOLDER: &str = "claims";
/// The one file in which earlier releases remembered all claims.
const EARLIER: &str = "claims.json";
/// The version of both kinds of file. A file that is newer is not read.
const VERSION: u32 = 1;
/// The ending of a claim's file.
const ENDING: &str = ".json";

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

/// A claim's file.
#[derive(Debug, Serialize, Deserialize)]
struct Content {
    version: u32,
    uid: String,
    #[serde(flatten)]
    ready: Ready,
}

/// The file of an earlier release.
#[derive(Debug, Deserialize)]
struct EarlierContent {
    /// By the claim's uid.
    claims: BTreeMap<String, Ready>,
}

/// The claims that are ready, and their files.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    /// By the claim's uid. Never locked while the disk is read or written.
    claims: Mutex<BTreeMap<String, Ready>>,
}

impl Checkpoint {
    /// Reads the files in the state directory. One that cannot be read is put aside: its claim is then read from the API
    /// server again. Claims that an earlier release remembered get files of their own.
    ///
    /// # Errors
    /// The disk does not answer, or a file is of a later release.
    pub fn open(state: &Path) -> io::Result<Self> {
        let folder = state.join(FOLDER);
        match DirBuilder::new().mode(0o755).create(&folder) {
            Ok(()) => sync_parent(&folder)?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        let checkpoint = Self {
            claims: Mutex::new(read_folder(&folder)?),
            folder,
        };
        checkpoint.take_over(&state.join(EARLIER))?;
        Ok(checkpoint)
    }

    /// Gives each claim of an earlier release's file a file of its own. That file is removed when all claims have theirs.
    fn take_over(&self, earlier: &Path) -> io::Result<()> {
        let Some(bytes) = read(earlier)? else {
            return Ok(());
        };
        let claims = match parse::<EarlierContent>(earlier, &bytes)? {
            Some(content) => content.claims,
            None => return Ok(()),
        };
        let count = claims.len();
        for (uid, ready) in claims {
            self.put(&uid, ready)?;
        }
        step();
        remove(earlier)?;
        step();
        tracing::info!(
            claims = count,
            file = %earlier.display(),
            "took over the record of claims of an earlier release"
        );
        Ok(())
    }

    /// The record of a claim.
    pub fn get(&self, uid: &str) -> Option<Ready> {
        self.claims.lock().get(uid).cloned()
    }

    /// All claims, by uid.
    pub fn all(&self) -> BTreeMap<String, Ready> {
        self.claims.lock().clone()
    }

    /// How many claims there are.
    pub fn count(&self) -> usize {
        self.claims.lock().len()
    }

    /// The names of the claims in a namespace.
    pub fn names_in(&self, namespace: &str) -> BTreeSet<String> {
        let claims = self.claims.lock();
        let here = claims.values().filter(|ready| ready.namespace == namespace);
        here.map(|ready| ready.name.clone()).collect()
    }

    /// Remembers a claim. Afterwards it is on the disk, or nothing has changed. The caller puts and removes one claim in
    /// one thread at a time.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn put(&self, uid: &str, ready: Ready) -> io::Result<()> {
        if self.claims.lock().get(uid) == Some(&ready) {
            return Ok(());
        }
        let path = self.path(uid)?;
        let content = Content {
            version: VERSION,
            uid: uid.to_owned(),
            ready,
        };
        replace(&path, &serde_json::to_vec_pretty(&content)?, 0o644)?;
        self.claims.lock().insert(uid.to_owned(), content.ready);
        Ok(())
    }

    /// Forgets a claim.
    ///
    /// # Errors
    /// As [`Checkpoint::put`].
    pub fn remove(&self, uid: &str) -> io::Result<()> {
        if !self.claims.lock().contains_key(uid) {
            return Ok(());
        }
        step();
        remove(&self.path(uid)?)?;
        self.claims.lock().remove(uid);
        Ok(())
    }

    /// The file of a claim. The API server's uids are letters, digits and hyphens.
    fn path(&self, uid: &str) -> io::Result<PathBuf> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if uid.is_empty() || uid.len() > 128 || !uid.bytes().all(plain) {
            return Err(io::Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "{uid:?} is no uid of a claim; accepted: at most 128 letters, digits and hyphens"
                ),
            ));
        }
        Ok(self.folder.join(format!("{uid}{ENDING}")))
    }
}

/// The claims that have a readable file. Parts of files that a killed driver has left are removed.
fn read_folder(folder: &Path) -> io::Result<BTreeMap<String, Ready>> {
    let mut claims = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if name.starts_with('.') {
            // No part of a file is of any use, and a failure to remove it does no harm.
            drop(fs::remove_file(&path));
            continue;
        }
        let Some(uid) = name.strip_suffix(ENDING) else {
            continue;
        };
        let Some(bytes) = read(&path)? else {
            continue;
        };
        match parse::<Content>(&path, &bytes)? {
            Some(content) if content.uid == uid => {
                claims.insert(content.uid, content.ready);
            }
            Some(content) => {
                let why = format!("it is the record of claim {}", content.uid);
                put_aside(&path, &why)?;
            }
            None => {}
        }
    }
    Ok(claims)
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes a file, and waits until that is on the disk.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    step();
    sync_parent(path)
}

/// A file's content; `None` if it cannot be read and was put aside.
fn parse<T: DeserializeOwned>(path: &Path, bytes: &[u8]) -> io::Result<Option<T>> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    if let Ok(Versioned { version }) = serde_json::from_slice(bytes)
        && version > VERSION
    {
        return Err(io::Error::other(format!(
            "{} has version {version}, and this release reads {VERSION}: a later release has written it",
            path.display()
        )));
    }
    match serde_json::from_slice(bytes) {
        Ok(content) => Ok(Some(content)),
        Err(error) => put_aside(path, &error.to_string()).map(|()| None),
    }
}

fn put_aside(path: &Path, why: &str) -> io::Result<()> {
    let aside = path.with_extension("broken");
    fs::rename(path, &aside)?;
    tracing::error!(
        path = %path.display(), aside = %aside.display(), why,
        "a record of claims cannot be read and is put aside: a claim in it is read from the API server when the kubelet \
         asks for it"
    );
    sync_parent(path)
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

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn claims_outlive_the_process_until_they_are_removed() {
        let state = tempfile::tempdir().unwrap();
        let first = Checkpoint::open(state.path()).unwrap();
        first.put("u1", ready("one")).unwrap();
        first.put("u2", ready("two")).unwrap();
        first.remove("u1").unwrap();
        first.remove("unknown").unwrap();

        let second = Checkpoint::open(state.path()).unwrap();

        assert_eq!(second.get("u1"), None);
        assert_eq!(second.get("u2"), Some(ready("two")));
        assert_eq!(names(&state.path().join(FOLDER)), ["u2.json"]);
    }

    #[test]
    fn claim_that_cannot_be_written_is_not_remembered() {
        let state = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::open(state.path()).unwrap();
        checkpoint.put("u1", ready("one")).unwrap();
        // No file can be made there any more, by root either.
        fs::remove_dir_all(state.path().join(FOLDER)).unwrap();

        checkpoint.put("u2", ready("two")).unwrap_err();
        checkpoint.remove("u1").unwrap_err();

        assert_eq!(checkpoint.count(), 1);
        assert_eq!(checkpoint.get("u1"), Some(ready("one")));
    }

    #[test]
    fn uid_that_leads_elsewhere_is_refused() {
        let state = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::open(state.path()).unwrap();
        for uid in ["", "../claims", "a/b", ".u1"] {
            let error = checkpoint.put(uid, ready("one")).unwrap_err();
            assert!(error.to_string().contains("is no uid"), "{error}");
        }
    }

    #[test]
    fn broken_file_is_put_aside_and_costs_one_claim() {
        let state = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::open(state.path()).unwrap();
        for uid in ["u1", "u2", "u3"] {
            checkpoint.put(uid, ready(uid)).unwrap();
        }
        let folder = state.path().join(FOLDER);
        fs::write(folder.join("u1.json"), "{\"version\": 1, \"ui").unwrap();
        fs::copy(folder.join("u3.json"), folder.join("u2.json")).unwrap();
        fs::write(folder.join(".u4.json.new"), "half").unwrap();

        let checkpoint = Checkpoint::open(state.path()).unwrap();

        let known: Vec<String> = checkpoint.all().into_keys().collect();
        assert_eq!(known, ["u3"]);
        assert_eq!(names(&folder), ["u1.broken", "u2.broken", "u3.json"]);
    }

    #[test]
    fn file_of_a_later_release_is_left_alone() {
        let state = tempfile::tempdir().unwrap();
        let claim = state.path().join(FOLDER).join("u1.json");
        fs::create_dir(state.path().join(FOLDER)).unwrap();
        for path in [claim, state.path().join(EARLIER)] {
            fs::write(&path, "{\"version\": 2, \"else\": {}}").unwrap();
            let error = Checkpoint::open(state.path()).unwrap_err().to_string();
            assert!(error.contains("version 2"), "{error}");
            assert!(path.exists());
            fs::remove_file(path).unwrap();
        }
    }

    /// As the releases before the folder wrote it.
    const EARLIER_TEXT: &str = r#"{"version": 1, "claims": {
        "u1": {"namespace": "default", "name": "one", "parts": []},
        "u2": {"namespace": "default", "name": "two", "parts": []}
    }}"#;

    #[test]
    fn claims_of_an_earlier_release_are_taken_over() {
        let state = tempfile::tempdir().unwrap();
        let earlier = state.path().join(EARLIER);
        // A release that was gone back to has written it, and knows less of another claim.
        let later = Checkpoint::open(state.path()).unwrap();
        later.put("u2", ready("before")).unwrap();
        later.put("u3", ready("three")).unwrap();
        fs::write(&earlier, EARLIER_TEXT).unwrap();

        let checkpoint = Checkpoint::open(state.path()).unwrap();

        assert!(!earlier.exists());
        let all = [("u1", "one"), ("u2", "two"), ("u3", "three")];
        let all = all.map(|(uid, name)| (uid.to_owned(), ready(name)));
        assert_eq!(checkpoint.all(), BTreeMap::from(all));
        let again = Checkpoint::open(state.path()).unwrap();
        assert_eq!(again.all(), checkpoint.all());
    }

    #[test]
    fn broken_file_of_an_earlier_release_is_put_aside() {
        let state = tempfile::tempdir().unwrap();
        fs::write(state.path().join(EARLIER), "{\"version\": 1, \"cl").unwrap();

        assert_eq!(Checkpoint::open(state.path()).unwrap().count(), 0);

        assert_eq!(names(state.path()), [FOLDER, "claims.broken"]);
    }

    /// Every step of taking over, killed there by its number: no claim is lost.
    #[test]
    fn taking_over_goes_on_after_a_kill_at_any_step() {
        let mut steps = 0;
        loop {
            let state = tempfile::tempdir().unwrap();
            fs::write(state.path().join(EARLIER), EARLIER_TEXT).unwrap();
            let mut command = std::process::Command::new(std::env::current_exe().unwrap());
            command.args([
                "dra::checkpoint::tests::child_that_is_killed",
                "--exact",
                "--ignored",
            ]);
            command
                .env("VGPU_TEST_NODE", state.path())
                .env("VGPU_TEST_STEP", steps.to_string());
            let ended = command.output().unwrap();

            let checkpoint = Checkpoint::open(state.path()).unwrap();
            let names: Vec<String> = checkpoint.all().into_values().map(|it| it.name).collect();
            assert_eq!(names, ["one", "two"], "killed at step {steps}");

            if ended.status.success() {
                break;
            }
            steps += 1;
            assert!(steps < 50, "{}", String::from_utf8_lossy(&ended.stderr));
        }
        assert!(steps >= 8, "only {steps} steps were tried");
    }

    #[test]
    #[ignore = "taking_over_goes_on_after_a_kill_at_any_step starts it as a process of its own, and it is killed"]
    fn child_that_is_killed() {
        let state = PathBuf::from(std::env::var_os("VGPU_TEST_NODE").unwrap());
        crate::steps::arm(std::env::var("VGPU_TEST_STEP").unwrap().parse().unwrap());
        assert_eq!(Checkpoint::open(&state).unwrap().count(), 2);
    }
}
