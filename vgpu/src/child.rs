//! The command that we run: started with the terminal, the signals and the descriptors that we were
//! given, and waited for. Owns which signals are passed on, and how its end becomes ours.
//!
//! Never takes the terminal from it: it stays in our process group, so that job control goes on as
//! if we were not there. Signals of the terminal reach it by themselves and are not passed on again.

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

/// `si_code` of a signal that the kernel raised: a key at the terminal, not a process.
const SI_KERNEL: i32 = 0x80;

/// From here on signals wait for [`wait`] instead of ending this process.
pub(crate) struct Signals {
    fd: SignalFd,
    /// What was blocked before: the command gets this back.
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

/// Starts the command with these variables set, beside those that we have.
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
    // Rust ignores it in every program; the command must not inherit that.
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

/// Waits until the command ends, and passes signals on meanwhile.
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
    /// Somebody wants us stopped. The command stops first: one that is still about to would take
    /// what is typed at the shell's prompt, and one that ignores it keeps us, too.
    stop_was_asked: bool,
    /// Somebody has continued us; see [`CONTINUE_AFTER`].
    continue_was_asked: bool,
}

/// A shell continues the whole group, and the command needs nothing from us; passed on late, it
/// would undo the stop key that was pressed since. So it is passed on only to a command that is
/// still stopped after this long, when nothing else was asked meanwhile.
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
        // What the terminal raises goes to the whole group, and what the command sends to us it
        // did not mean for itself.
        if code != SI_KERNEL && sender != self.child {
            // Gone in this moment: the next look says so.
            kill(self.child, signal).ok();
        }
    }

    fn pass_continue_on(&mut self) {
        self.continue_was_asked = false;
        if is_stopped(self.child) {
            kill(self.child, Signal::SIGCONT).ok();
        }
    }

    /// Takes in everything that has ended or stopped; tells of the command itself.
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
                // Ended by a signal that nix has no name for; whose end it was is seen here.
                Err(Errno::EINVAL) => {
                    if kill(child, None).is_err() {
                        return Ok(Some(End::KilledByOther));
                    }
                }
                Err(errno) => return Err(errno).context("cannot wait for the command"),
            }
        }
    }

    /// The command has stopped, by the terminal's stop key or by itself as an editor does: the
    /// shell looks at us, so we stop too. It continues all of the group.
    fn follow_stop(&mut self, signal: Signal) {
        let of_terminal = matches!(signal, Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU);
        if of_terminal && (self.stop_was_asked || in_foreground()) {
            stop_too();
        }
        self.stop_was_asked = false;
    }
}

/// Stops this process as the terminal's stop key would, and comes back when it is continued.
fn stop_too() {
    let mut stop = SigSet::empty();
    stop.add(Signal::SIGTSTP);
    // Raised while it is still held back: one that the terminal has sent in the same moment and
    // this one stop us together, and being continued drops both. Where the group has no shell to
    // continue it, the kernel makes nothing of this signal.
    raise(Signal::SIGTSTP).ok();
    if stop.thread_unblock().is_ok() {
        stop.thread_block().ok();
    }
}

fn is_stopped(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state follows the name, which may have anything in it.
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| rest.trim_start().starts_with('T'))
}

fn in_foreground() -> bool {
    let terminal = std::fs::File::open("/dev/tty");
    terminal.is_ok_and(|terminal| tcgetpgrp(terminal).is_ok_and(|group| group == getpgrp()))
}

/// Whether processes that the command started stay after it: those that are about to end, as a
/// killed shell's last child is, are given a moment. Needs [`adopt_orphans`].
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

/// Processes whose parent ends become our children, so that we know of them.
pub(crate) fn adopt_orphans() {
    // Without it (an old kernel) the directory is cleared one run later.
    nix::sys::prctl::set_child_subreaper(true).ok();
}

/// Ends this process as the command ended: the same code, or the same signal.
pub(crate) fn end_alike(end: End) -> ExitCode {
    let code = |number: i32| ExitCode::from(u8::try_from(number & 0xff).unwrap_or(1));
    match end {
        End::Exited(number) => code(number),
        End::KilledByOther => code(255),
        End::Killed(signal) => {
            // The command's core file is the one that people want.
            if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_CORE) {
                setrlimit(Resource::RLIMIT_CORE, 0, hard).ok();
            }
            let mut set = SigSet::empty();
            set.add(signal);
            if set.thread_unblock().is_ok() {
                // Rust looks at the first SIGSEGV or SIGBUS, and lets the second one kill.
                raise(signal).ok();
                raise(signal).ok();
            }
            // A signal that we ignore, as we found it.
            code(128 + signal as i32)
        }
    }
}
