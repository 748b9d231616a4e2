//! The command that `vgpu run` and `vgpu sim` start: it inherits our terminal, signal dispositions and descriptors.
//! Owns which signals are passed on to it, and how its end becomes ours.
//!
//! Never takes the terminal from it: it stays in our process group, so job control works as if we were not there.
//! Signals from the terminal reach it directly and are not passed on again.

use std::ffi::{CString, OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawnp};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal, kill, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpgrp, tcgetpgrp};

use crate::Failure;

/// Signals that are passed on to the command.
const PASSED_ON: [Signal; 14] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGVTALRM,
    Signal::SIGPROF,
    Signal::SIGIO,
    Signal::SIGPWR,
    Signal::SIGWINCH,
    Signal::SIGCONT,
    Signal::SIGTSTP,
];

/// `si_code` of a signal that the kernel raised because of a key, not one that a process sent.
const SI_KERNEL: i32 = 0x80;

/// Signals held back for [`wait`], so that they do not end this process.
pub(crate) struct Signals {
    fd: SignalFd,
    /// The original signal mask, which the command gets.
    original: SigSet,
}

impl Signals {
    /// Call it before any thread is started.
    pub(crate) fn hold() -> anyhow::Result<Self> {
        let mut set = SigSet::empty();
        for signal in PASSED_ON {
            set.add(signal);
        }
        set.add(Signal::SIGCHLD);
        let original = SigSet::thread_get_mask().context("cannot read the signal mask")?;
        set.thread_block().context("cannot hold signals back")?;
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .context("cannot receive signals")?;
        Ok(Self { fd, original })
    }
}

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// By itself, with this code.
    Exited(i32),
    /// By a signal.
    Killed(Signal),
    /// By a signal that has no name (a real-time one).
    KilledByOther,
}

/// Starts the command with our environment and these variables.
pub(crate) fn start(
    command: &[OsString],
    variables: &[(&str, OsString)],
    signals: &Signals,
) -> Result<Pid, Failure> {
    let Some(program) = command.first() else {
        return Err(Failure::usage("no command given; put it after --"));
    };
    let not_started = |errno: Errno| {
        // As shells do: 127 is "not found", 126 is "found and not run".
        let (code, hint) = match errno {
            Errno::ENOENT => (
                127,
                "check its name and PATH, or the interpreter in its first line",
            ),
            Errno::EACCES => (126, "it must be a file that you may execute"),
            Errno::ENOEXEC => (
                126,
                "it is neither a program for this machine nor a script with #!",
            ),
            _ => (126, "the system refused"),
        };
        let text = format!(
            "cannot run {}: {}; {hint}",
            program.to_string_lossy(),
            errno.desc().to_lowercase()
        );
        Failure::NotStarted { code, text }
    };
    if program.is_empty() {
        return Err(not_started(Errno::ENOENT));
    }
    let words: Vec<CString> = command
        .iter()
        .map(|word| CString::new(word.as_bytes()))
        .collect::<Result<_, _>>()
        .context("the command has a zero byte in it")?;
    let environment = environment(variables)?;
    let mut attributes = PosixSpawnAttr::init().context("posix_spawnattr_init")?;
    attributes
        .set_flags(PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK | PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF)
        .context("posix_spawnattr_setflags")?;
    attributes
        .set_sigmask(&signals.original)
        .context("posix_spawnattr_setsigmask")?;
    // Rust ignores SIGPIPE in every program; the command must not inherit that.
    let mut defaults = SigSet::empty();
    defaults.add(Signal::SIGPIPE);
    attributes
        .set_sigdefault(&defaults)
        .context("posix_spawnattr_setsigdefault")?;
    let actions = PosixSpawnFileActions::init().context("posix_spawn_file_actions_init")?;
    let Some(path) = words.first() else {
        return Err(not_started(Errno::ENOENT));
    };
    posix_spawnp(path, &actions, &attributes, &words, &environment).map_err(not_started)
}

fn environment(variables: &[(&str, OsString)]) -> anyhow::Result<Vec<CString>> {
    let kept = std::env::vars_os()
        .filter(|(name, _)| !variables.iter().any(|(set, _)| OsStr::new(set) == name));
    let set = variables
        .iter()
        .map(|(name, value)| (OsString::from(name), value.clone()));
    kept.chain(set)
        .map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            CString::new(name.into_vec()).context("a variable has a zero byte in it")
        })
        .collect()
}

/// Waits until the command ends, and passes signals on to it.
pub(crate) fn wait(child: Pid, signals: &Signals) -> anyhow::Result<End> {
    let mut waiting = Waiting {
        child,
        stop_was_asked: false,
        continue_was_asked: false,
    };
    loop {
        if let Some(end) = waiting.reap()? {
            return Ok(end);
        }
        let timeout = if waiting.continue_was_asked {
            PollTimeout::from(CONTINUE_AFTER)
        } else {
            PollTimeout::NONE
        };
        let mut fds = [PollFd::new(signals.fd.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, timeout) {
            Ok(0) => waiting.pass_continue_on(),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno).context("cannot wait for signals"),
        }
        while let Some(info) = signals.fd.read_signal().context("cannot read a signal")? {
            let number = i32::try_from(info.ssi_signo).unwrap_or(0);
            let Ok(signal) = Signal::try_from(number) else {
                continue;
            };
            let sender = i32::try_from(info.ssi_pid).unwrap_or(0);
            waiting.pass_on(signal, info.ssi_code, Pid::from_raw(sender));
        }
    }
}

struct Waiting {
    child: Pid,
    /// A stop signal arrived. The command has to stop first: while it still runs it would read what is
    /// typed at the shell's prompt. If it ignores the signal, we keep running, too.
    stop_was_asked: bool,
    /// We were continued; see [`CONTINUE_AFTER`].
    continue_was_asked: bool,
}

/// How long, in milliseconds, the command may stay stopped after we were continued before SIGCONT is passed on.
/// A shell continues the whole group, so usually the command needs nothing from us, and a late SIGCONT would undo
/// a stop key that was pressed since. It is not passed on if another stop arrived meanwhile.
const CONTINUE_AFTER: u16 = 50;

impl Waiting {
    fn pass_on(&mut self, signal: Signal, code: i32, sender: Pid) {
        match signal {
            Signal::SIGCHLD => return,
            Signal::SIGTSTP => {
                self.stop_was_asked = true;
                self.continue_was_asked = false;
            }
            Signal::SIGCONT => {
                self.stop_was_asked = false;
                self.continue_was_asked = true;
                return;
            }
            _ => {}
        }
        // Signals from the terminal go to the whole group, and a signal that the command sent to us
        // was not meant for itself.
        if code != SI_KERNEL && sender != self.child {
            // If the command has just ended, the next `reap` reports it.
            kill(self.child, signal).ok();
        }
    }

    fn pass_continue_on(&mut self) {
        self.continue_was_asked = false;
        if is_stopped(self.child) {
            kill(self.child, Signal::SIGCONT).ok();
        }
    }

    /// Reaps all processes that have ended or stopped; returns the end of the command itself.
    fn reap(&mut self) -> anyhow::Result<Option<End>> {
        let child = self.child;
        loop {
            let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED;
            match waitpid(None::<Pid>, Some(flags)) {
                Ok(WaitStatus::Exited(pid, code)) if pid == child => {
                    return Ok(Some(End::Exited(code)));
                }
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == child => {
                    return Ok(Some(End::Killed(signal)));
                }
                Ok(WaitStatus::Stopped(pid, signal)) if pid == child => self.follow_stop(signal),
                Ok(WaitStatus::StillAlive) => return Ok(None),
                Ok(_) | Err(Errno::EINTR) => {}
                // A process ended by a signal that nix has no name for. Was it the command?
                Err(Errno::EINVAL) => {
                    if kill(child, None).is_err() {
                        return Ok(Some(End::KilledByOther));
                    }
                }
                Err(errno) => return Err(errno).context("cannot wait for the command"),
            }
        }
    }

    /// The command has stopped, by the terminal's stop key or by itself as an editor does. The shell waits
    /// for us, so we stop, too. The shell continues the whole group.
    fn follow_stop(&mut self, signal: Signal) {
        let of_terminal = matches!(signal, Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU);
        if of_terminal && (self.stop_was_asked || in_foreground()) {
            stop_too();
        }
        self.stop_was_asked = false;
    }
}

/// Stops this process as the terminal's stop key would, and returns when it is continued.
fn stop_too() {
    let mut stop = SigSet::empty();
    stop.add(Signal::SIGTSTP);
    // Raised while it is still blocked, so that it merges with one that the terminal sends at the same
    // moment; continuing drops both. The kernel ignores this signal in a group that no shell could
    // continue.
    raise(Signal::SIGTSTP).ok();
    if stop.thread_unblock().is_ok() {
        stop.thread_block().ok();
    }
}

fn is_stopped(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state follows the name, which may contain any character.
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| rest.trim_start().starts_with('T'))
}

fn in_foreground() -> bool {
    let terminal = std::fs::File::open("/dev/tty");
    terminal.is_ok_and(|terminal| tcgetpgrp(terminal).is_ok_and(|group| group == getpgrp()))
}

/// Whether processes that the command started outlive it. Processes that are about to end, such as a killed
/// shell's last child, get a moment to do so. Needs [`adopt_orphans`].
pub(crate) fn has_descendants() -> bool {
    let until = Instant::now() + LAST_BREATH;
    loop {
        match waitpid(None::<Pid>, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(WaitStatus::StillAlive) => return true,
            Ok(_) | Err(Errno::EINTR | Errno::EINVAL) => {}
            Err(_) => return false,
        }
    }
}

/// How long processes that the command left behind may take to end.
const LAST_BREATH: Duration = Duration::from_millis(200);

/// Makes processes whose parent ends our children, so that we know of them.
pub(crate) fn adopt_orphans() {
    // Without it (on an old kernel) the next run removes the directory.
    nix::sys::prctl::set_child_subreaper(true).ok();
}

/// Ends this process as the command ended: with the same code, or by the same signal.
pub(crate) fn end_alike(end: End) -> ExitCode {
    let code = |number: i32| ExitCode::from(u8::try_from(number & 0xff).unwrap_or(1));
    match end {
        End::Exited(number) => code(number),
        End::KilledByOther => code(255),
        End::Killed(signal) => {
            // The command's core file is the useful one, so we write none.
            if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_CORE) {
                setrlimit(Resource::RLIMIT_CORE, 0, hard).ok();
            }
            let mut set = SigSet::empty();
            set.add(signal);
            if set.thread_unblock().is_ok() {
                // Rust handles the first SIGSEGV or SIGBUS, and the second one kills.
                raise(signal).ok();
                raise(signal).ok();
            }
            // The signal is ignored, as it was when we started.
            code(128 + signal as i32)
        }
    }
}
