//! The file in which the sums outlive the agent: `.usage` beside the containers' directories.

use std::io;
use std::path::Path;

use supervisor::regular;

use super::Sums;
use crate::durable;

const NAME: &str = ".usage";
/// A larger file was not written by this program.
const MOST_BYTES: u64 = 16 << 20;

/// The sums as they were last written.
pub(super) fn read(root: &Path) -> io::Result<Sums> {
    let text = regular::read(&root.join(NAME), MOST_BYTES)?;
    serde_json::from_slice(&text).map_err(io::Error::other)
}

/// The sums as they are written.
pub(super) fn text(sums: &Sums) -> Vec<u8> {
    // Strings and numbers; nothing of it can fail.
    serde_json::to_vec(sums).unwrap_or_default()
}

/// Replaces the file as a whole, so that a crash leaves the one before.
pub(super) fn write(root: &Path, text: &[u8]) -> io::Result<()> {
    durable::replace(&root.join(NAME), text, 0o600)
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
