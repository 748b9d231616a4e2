//! Which processes were started with a variable. Reading a process's environment reads that process's memory. A process
//! can map a file of its own file system (FUSE) there, and a read of that file ends only when the process lets it. So a
//! thread reads, and a process that keeps the thread waiting is skipped.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// How long one process may keep a reader waiting.
const PATIENCE: Duration = Duration::from_millis(200);
/// If so many processes keep the reader waiting, the search ends without a result.
const MOST_SILENT: usize = 16;

/// Ids of the processes below `proc` (`/proc`) that were started with this variable (`NAME=value`). A process whose
/// environment this process may not read, or cannot read in time, is left out. `None` if `proc` cannot be read, or if too
/// many processes keep the reader waiting.
pub(super) fn started_with(proc: &Path, variable: &[u8]) -> Option<Vec<u32>> {
    let pids = std::fs::read_dir(proc)
        .ok()?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut reader = Reader::start()?;
    let mut silent = 0;
    let mut found = Vec::new();
    for pid in pids {
        let path = proc.join(u32::to_string(&pid)).join("environ");
        match reader.read(path) {
            Answer::Text(text) => {
                if text.split(|byte| *byte == 0).any(|one| one == variable) {
                    found.push(pid);
                }
            }
            Answer::Refused => {}
            Answer::Silent => {
                silent += 1;
                if silent >= MOST_SILENT {
                    return None;
                }
                // The thread that reads ends with the process that keeps it waiting, or with this one.
                reader = Reader::start()?;
            }
        }
    }
    Some(found)
}

enum Answer {
    Text(Vec<u8>),
    /// The process is gone, or another user's.
    Refused,
    Silent,
}

/// A thread that reads one file after another.
struct Reader {
    paths: SyncSender<PathBuf>,
    texts: Receiver<Option<Vec<u8>>>,
}

impl Reader {
    fn start() -> Option<Self> {
        let (paths, asked) = sync_channel::<PathBuf>(1);
        let (answer, texts) = sync_channel(1);
        let read = move || {
            for path in asked {
                if answer.send(std::fs::read(path).ok()).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("environments".into());
        thread.spawn(read).ok()?;
        Some(Self { paths, texts })
    }

    fn read(&self, path: PathBuf) -> Answer {
        if self.paths.send(path).is_err() {
            return Answer::Refused;
        }
        match self.texts.recv_timeout(PATIENCE) {
            Ok(Some(text)) => Answer::Text(text),
            Ok(None) | Err(RecvTimeoutError::Disconnected) => Answer::Refused,
            Err(RecvTimeoutError::Timeout) => Answer::Silent,
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;

    use super::*;

    const WANTED: &[u8] = b"VGPU_LIMITS=/a/limits";

    /// A folder like `/proc`: of each process its environment, or `None` for one that never lets it be read.
    fn proc(processes: &[(u32, Option<&[u8]>)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sys")).unwrap();
        for (pid, environ) in processes {
            let of = dir.path().join(pid.to_string());
            std::fs::create_dir(&of).unwrap();
            let file = of.join("environ");
            match environ {
                Some(text) => std::fs::write(file, text).unwrap(),
                None => nix::unistd::mkfifo(&file, Mode::S_IRWXU).unwrap(),
            }
        }
        dir
    }

    #[test]
    fn process_that_keeps_its_reader_waiting_hides_no_other() {
        let proc = proc(&[
            (1, Some(b"A=1\0VGPU_LIMITS=/a/limits\0")),
            (2, None),
            (3, Some(b"VGPU_LIMITS=/a/limits2\0B=\0")),
            (4, Some(WANTED)),
            (5, None),
        ]);
        std::fs::create_dir(proc.path().join("6")).unwrap();

        let mut found = started_with(proc.path(), WANTED).unwrap();

        found.sort_unstable();
        assert_eq!(found, [1, 4]);
    }

    #[test]
    fn too_many_that_keep_a_reader_waiting_leave_it_open() {
        let silent: Vec<_> = (1..=20).map(|pid| (pid, None)).collect();
        assert_eq!(started_with(proc(&silent).path(), WANTED), None);
        assert_eq!(started_with(Path::new("/nowhere"), WANTED), None);
    }
}
