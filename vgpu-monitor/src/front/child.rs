//! The process behind the front: its start, its connection, its end. Decides nothing.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child as Process, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, getppid};
use tokio::net::UnixStream;
use tokio::sync::watch;

use super::rules::ProcessEnd;

/// A process of this program, with the arguments that this one has. Dies with this value, and with this process.
#[derive(Debug)]
pub(super) struct Child {
    process: Process,
    pid: Pid,
    began: Instant,
    over: watch::Receiver<bool>,
}

impl Child {
    /// Starts it, and returns the connection to it. The thread that calls this must live as long as the process is
    /// wanted: the kernel ends the process with its parent's thread.
    ///
    /// # Errors
    ///
    /// When the kernel has no process or no socket left.
    pub(super) fn start(number: u64) -> anyhow::Result<(Self, UnixStream)> {
        let (own, its) = StdStream::pair().context("cannot make a pair of sockets")?;
        own.set_nonblocking(true)
            .context("cannot use a pair of sockets")?;
        let process = Command::new("/proc/self/exe")
            .arg0("vgpu-monitor")
            .args(std::env::args_os().skip(1))
            .arg(format!("--front={}", std::process::id()))
            .arg(format!("--restarts={number}"))
            .stdin(Stdio::from(OwnedFd::from(its)))
            .spawn()
            .context("cannot start the plugin's process")?;
        let pid = Pid::from_raw(process.id().cast_signed());
        let (says, over) = watch::channel(false);
        let child = Self {
            process,
            pid,
            began: Instant::now(),
            over,
        };
        std::thread::Builder::new()
            .name("child".to_owned())
            .spawn(move || {
                // It stays a zombie, so that its number is no other process's while this value may signal it.
                let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
                while waitid(Id::Pid(pid), flags) == Err(nix::errno::Errno::EINTR) {}
                says.send_replace(true);
            })
            .context("cannot start a thread")?;
        Ok((child, UnixStream::from_std(own)?))
    }

    /// Ends when the process has.
    pub(super) async fn over(&self) {
        // The sender sets the value before it is dropped.
        drop(self.over.clone().wait_for(|over| *over).await);
    }

    /// How it ended, and how long it ran. Called once it is over.
    pub(super) fn end(mut self) -> (ProcessEnd, Duration) {
        let ran = self.began.elapsed();
        let ended = match self.process.wait() {
            Ok(status) => match (status.code(), status.signal()) {
                (Some(code), _) => ProcessEnd::Code(code),
                (None, signal) => ProcessEnd::Signal(signal.unwrap_or_default()),
            },
            // Cannot fail: the child is this process's own, and no other code waits for it.
            Err(_) => ProcessEnd::Signal(0),
        };
        (ended, ran)
    }

    /// Ends it, and waits for its end.
    pub(super) async fn kill(&self) {
        self.signal(Signal::SIGKILL);
        self.over().await;
    }

    /// Sends it a signal.
    pub(super) fn signal(&self, signal: Signal) {
        if let Err(error) = kill(self.pid, signal) {
            tracing::debug!(%error, %signal, "cannot signal the plugin's process");
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Has no effect on a process that has been waited for.
        drop(self.process.kill());
    }
}

/// In the process behind: the connection to its front, of this process number. From now on this process dies with it.
///
/// # Errors
///
/// When the front has ended meanwhile, or standard input is no connection.
pub(super) fn connection(front: u32) -> anyhow::Result<UnixStream> {
    set_pdeathsig(Signal::SIGKILL).context("cannot be ended with the front")?;
    if getppid() != Pid::from_raw(front.cast_signed()) {
        bail!("the front has ended");
    }
    let stream = io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map(StdStream::from)
        .and_then(|stream| {
            stream.set_nonblocking(true)?;
            UnixStream::from_std(stream)
        });
    stream.context("standard input is not the front's connection")
}
