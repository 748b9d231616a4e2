//! One agent works in a state directory at a time: the one whose front holds the lock on the file `front.lock`, and whose
//! plugin holds that on `lock`. Owns taking them and waiting for them. Never breaks a lock: the kernel releases it when
//! its process has ended, however it ended.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use server::{Listener, Manners, Readiness};
use tokio::time::sleep;

/// The front's file.
pub(crate) const FRONT: &str = "front.lock";
/// The plugin's file.
pub(crate) const PLUGIN: &str = "lock";
/// Between two tries.
const AGAIN: Duration = Duration::from_secs(1);
/// At most this much of the holder's text is read.
const MOST_BYTES: u64 = 200;

/// The outcome of a try.
#[derive(Debug)]
pub(crate) enum Tried {
    /// The lock is ours for as long as this value lives.
    Ours(Flock<File>),
    /// Another agent works there; this is the text that it wrote about itself.
    Taken(String),
}

/// Tries once.
///
/// # Errors
/// The file cannot be made, opened or locked at all.
pub(crate) fn try_take(state: &Path, name: &str) -> io::Result<Tried> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let file = options.open(state.join(name))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(mut lock) => {
            // For a person alone: on a full disk it stays unsaid.
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            let own = format!("process {} on {}\n", std::process::id(), host.trim());
            let said = lock
                .set_len(0)
                .and_then(|()| lock.write_all(own.as_bytes()));
            if let Err(error) = said {
                tracing::debug!(%error, "cannot write this process's name into the lock file");
            }
            Ok(Tried::Ours(lock))
        }
        Err((file, Errno::EWOULDBLOCK)) => {
            let mut locker = String::new();
            if file.take(MOST_BYTES).read_to_string(&mut locker).is_err()
                || locker.trim().is_empty()
            {
                locker = String::from("a process that has not given its name");
            }
            Ok(Tried::Taken(locker.trim().to_owned()))
        }
        Err((_, errno)) => Err(errno.into()),
    }
}

/// Waits until no other process holds it, and logs at first which process it waits for.
///
/// # Errors
/// As [`try_take`].
pub(crate) async fn take(state: &Path, name: &str) -> io::Result<Flock<File>> {
    let mut told = String::new();
    loop {
        match try_take(state, name)? {
            Tried::Ours(lock) => return Ok(lock),
            Tried::Taken(locker) if locker != told => {
                tracing::warn!(
                    state = %state.display(),
                    holder = locker,
                    "another vgpu-monitor plugin works in this state directory (an older pod of the agent that is \
                     still ending, perhaps); this one waits until it has ended"
                );
                told = locker;
            }
            Tried::Taken(_) => {}
        }
        sleep(AGAIN).await;
    }
}

/// The lock, if no other process holds it now.
///
/// # Errors
/// As [`try_take`].
pub(crate) fn at_once(state: &Path, name: &str) -> anyhow::Result<Option<Flock<File>>> {
    match try_take(state, name).with_context(|| failed(state, name))? {
        Tried::Ours(lock) => Ok(Some(lock)),
        Tried::Taken(_) => Ok(None),
    }
}

/// The lock, once no other process holds it. Until then `listener` says that this process is alive, and not ready.
/// Returns `None` if it was asked to stop first.
///
/// # Errors
/// As [`try_take`].
pub(crate) async fn serving_meanwhile(
    state: &Path,
    name: &str,
    listener: Listener,
    stop: impl Future<Output = &'static str>,
) -> anyhow::Result<Option<Flock<File>>> {
    let mut taken = None;
    let waiting = Readiness::waiting_for("another vgpu-monitor plugin of this node to end");
    let until = async {
        tokio::select! {
            lock = take(state, name) => taken = Some(lock),
            signal = stop => tracing::info!(signal, "stopping"),
        }
    };
    listener
        .serve(server::health(waiting), Manners::default(), until)
        .await;
    taken.transpose().with_context(|| failed(state, name))
}

fn failed(state: &Path, name: &str) -> String {
    format!("cannot lock {}", state.join(name).display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn second_agent_waits_until_the_first_has_ended() {
        let state = tempfile::tempdir().unwrap();
        let first = take(state.path(), PLUGIN).await.unwrap();
        let Tried::Taken(locker) = try_take(state.path(), PLUGIN).unwrap() else {
            panic!("two at once")
        };
        let own = format!("process {} on ", std::process::id());
        assert!(locker.starts_with(&own), "{locker}");
        // The clock is tokio's, and goes on by itself.
        let patience = Duration::from_secs(60);
        let waited = tokio::time::timeout(patience, take(state.path(), PLUGIN)).await;
        assert!(waited.is_err());

        drop(first);

        let second = tokio::time::timeout(patience, take(state.path(), PLUGIN)).await;
        assert!(second.is_ok_and(|taken| taken.is_ok()));
    }
}
