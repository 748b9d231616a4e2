//! Files of the state directory that have the old or the new content, whenever the agent or the machine dies.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

/// Puts new content under a name, so that every reader sees the old or the new one, also after a power cut.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file = File::create(&fresh)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&fresh, path)?;
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}
