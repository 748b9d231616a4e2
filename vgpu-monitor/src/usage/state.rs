//! The file in which the sums outlive the agent: `.usage` beside the containers' directories.

use std::fs::{File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use super::Sums;

const NAME: &str = ".usage";
const NEXT: &str = ".usage.next";
/// A larger file was not written by this program.
const MOST_BYTES: u64 = 16 << 20;

/// The sums as they were last written.
pub(super) fn read(root: &Path) -> io::Result<Sums> {
    let mut options = File::options();
    let file = options
        .read(true)
        .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
        .open(root.join(NAME))?;
    let mut text = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut text)?;
    serde_json::from_slice(&text).map_err(io::Error::other)
}

/// The sums as they are written.
pub(super) fn text(sums: &Sums) -> Vec<u8> {
    // Strings and numbers; nothing of it can fail.
    serde_json::to_vec(sums).unwrap_or_default()
}

/// Replaces the file as a whole, so that a crash leaves the one before.
pub(super) fn write(root: &Path, text: &[u8]) -> io::Result<()> {
    let next = root.join(NEXT);
    let mut options = File::options();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(nix::libc::O_NOFOLLOW)
        .open(&next)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.write_all(text)?;
    file.sync_data()?;
    std::fs::rename(&next, root.join(NAME))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Account, Seen};
    use super::*;

    #[test]
    fn sums_survive_the_agent() {
        let folder = tempfile::tempdir().unwrap();
        let mut sums = Sums::default();
        let seen = Seen {
            path: folder.path().join("a"),
            created_unix: 1000,
            key: Account {
                workload: "a".to_owned(),
                ..Account::default()
            },
            busy_ns: vec![4_000_000_000],
            used_bytes: 1 << 30,
        };
        sums.look(&[], Duration::from_secs(1000));
        sums.look(std::slice::from_ref(&seen), Duration::from_secs(1010));
        assert!(read(folder.path()).is_err());

        write(folder.path(), &text(&sums)).unwrap();
        let mut again = read(folder.path()).unwrap();
        assert_eq!(again, sums);

        // The container's use meanwhile is counted, and no use is counted twice.
        let busier = Seen {
            busy_ns: vec![6_000_000_000],
            ..seen
        };
        again.look(&[busier], Duration::from_secs(1100));
        let used = again.used(Duration::from_secs(1200));
        assert!((used[0].gpu_seconds - 6.0).abs() < 1e-9, "{used:?}");
    }

    #[test]
    fn a_damaged_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(NAME), "{\"accounts\": 7").unwrap();
        assert!(read(folder.path()).is_err());
    }
}
