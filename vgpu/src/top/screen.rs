//! The live screen: redrawn until the user leaves. Owns the terminal while it runs, and restores it however it ends.

use std::io::Write;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};

use crate::text::clip;

/// Another screen, without a cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
/// The cursor, and the screen as it was.
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// To the upper left corner.
const HOME: &str = "\x1b[H";
/// Clears the rest of the line.
const CLEAR_LINE: &str = "\x1b[K";
/// Clears what is below.
const CLEAR_BELOW: &str = "\x1b[J";

/// Draws until `q`, an interrupt, or the end of the input.
pub(super) fn run(
    interval: Duration,
    draw: &mut dyn FnMut() -> anyhow::Result<String>,
) -> anyhow::Result<ExitCode> {
    let mut set = SigSet::empty();
    for signal in [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGTSTP,
        Signal::SIGWINCH,
    ] {
        set.add(signal);
    }
    set.thread_block().context("cannot hold signals back")?;
    let signals = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .context("cannot receive signals")?;
    let mut terminal = Terminal::enter()?;
    let stdin = std::io::stdin();
    let timeout = PollTimeout::try_from(interval).unwrap_or(PollTimeout::from(1000_u16));
    loop {
        terminal.show(&draw()?)?;
        let mut fds = [
            PollFd::new(stdin.as_fd(), PollFlags::POLLIN),
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno).context("cannot wait for a key"),
        }
        let has_input = fds
            .first()
            .and_then(PollFd::revents)
            .is_some_and(|events| !events.is_empty());
        if has_input {
            let mut keys = [0_u8; 64];
            let read = nix::unistd::read(stdin.as_fd(), &mut keys).unwrap_or(0);
            let keys = keys.get(..read).unwrap_or_default();
            // 3 is Ctrl-C where the terminal does not make a signal of it; no key at all is the
            // end of the input.
            if keys.is_empty() || keys.iter().any(|key| matches!(key, b'q' | b'Q' | 3)) {
                return Ok(ExitCode::SUCCESS);
            }
        }
        while let Some(info) = signals.read_signal().context("cannot read a signal")? {
            let number = i32::try_from(info.ssi_signo).unwrap_or(0);
            match Signal::try_from(number) {
                Ok(Signal::SIGWINCH) => {}
                Ok(Signal::SIGTSTP) => {
                    terminal.leave();
                    let mut stop = SigSet::empty();
                    stop.add(Signal::SIGTSTP);
                    raise(Signal::SIGTSTP).ok();
                    stop.thread_unblock().ok();
                    stop.thread_block().ok();
                    terminal = Terminal::enter()?;
                }
                _ => return Ok(ExitCode::SUCCESS),
            }
        }
    }
}

/// The terminal while it is ours.
struct Terminal {
    before: Termios,
    is_ours: bool,
}

impl Terminal {
    fn enter() -> anyhow::Result<Self> {
        let stdin = std::io::stdin();
        let before = tcgetattr(&stdin).context("cannot read the terminal's settings")?;
        let mut quiet = before.clone();
        quiet
            .local_flags
            .remove(LocalFlags::ICANON | LocalFlags::ECHO);
        tcsetattr(&stdin, SetArg::TCSANOW, &quiet).context("cannot set the terminal")?;
        let mut out = std::io::stdout();
        let terminal = Self {
            before,
            is_ours: true,
        };
        out.write_all(ENTER.as_bytes())
            .and_then(|()| out.flush())
            .context("cannot draw")?;
        Ok(terminal)
    }

    fn show(&mut self, text: &str) -> anyhow::Result<()> {
        let (columns, rows) = terminal_size::terminal_size().map_or((80, 24), |(width, height)| {
            (usize::from(width.0), usize::from(height.0))
        });
        let mut frame = String::from(HOME);
        let clipped = clip(text, columns);
        let lines: Vec<&str> = clipped.lines().collect();
        let shown = if lines.len() > rows {
            rows.saturating_sub(1)
        } else {
            lines.len()
        };
        for (number, line) in lines.iter().take(shown).enumerate() {
            if number > 0 {
                frame.push_str("\r\n");
            }
            frame.push_str(line);
            frame.push_str(CLEAR_LINE);
        }
        if lines.len() > shown {
            let hidden = format!("\r\n… {} more lines{CLEAR_LINE}", lines.len() - shown);
            frame.push_str(&hidden);
        }
        frame.push_str(CLEAR_BELOW);
        let mut out = std::io::stdout();
        out.write_all(frame.as_bytes())
            .and_then(|()| out.flush())
            .context("cannot draw")
    }

    fn leave(&mut self) {
        if std::mem::take(&mut self.is_ours) {
            let mut out = std::io::stdout();
            out.write_all(LEAVE.as_bytes())
                .and_then(|()| out.flush())
                .ok();
            tcsetattr(std::io::stdin(), SetArg::TCSANOW, &self.before).ok();
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.leave();
    }
}
