//! At a terminal: job control goes on as without `vgpu`, and `vgpu top` gives the screen back.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test that is wrong about its own machine has failed"
)]

use crate::common;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Machine, VGPU};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{Winsize, openpty};

/// A terminal with a program on it that leads its session.
struct Terminal {
    master: File,
    seen: String,
    child: Child,
}

impl Terminal {
    fn start(command: &Command) -> Self {
        let size = Winsize {
            ws_row: 30,
            ws_col: 100,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pty = openpty(&size, None).unwrap();
        let end = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
        let mut session = Command::new("setsid");
        session
            .args(["--ctty", "--wait"])
            .arg(command.get_program())
            .args(command.get_args());
        session.env_clear();
        session.envs(
            command
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        session.env("TERM", "xterm").env("PS1", "$ ");
        let child = session
            .stdin(end(&pty.slave))
            .stdout(end(&pty.slave))
            .stderr(end(&pty.slave))
            .spawn()
            .unwrap();
        Self {
            master: File::from(pty.master),
            seen: String::new(),
            child,
        }
    }

    fn shell(machine: &Machine) -> Self {
        let mut shell = machine.command("bash");
        shell.args(["--norc", "--noprofile", "--noediting", "-i"]);
        let mut terminal = Self::start(&shell);
        terminal.expect("$ ");
        terminal
    }

    fn send(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// Reads until the text appears; returns everything up to its end, and forgets it.
    fn expect(&mut self, text: &str) -> String {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(at) = self.seen.find(text) {
                let rest = self.seen.split_off(at + text.len());
                return std::mem::replace(&mut self.seen, rest);
            }
            assert!(Instant::now() < until, "no {text:?} in {:?}", self.seen);
            let mut fds = [PollFd::new(self.master.as_fd(), PollFlags::POLLIN)];
            if poll(&mut fds, PollTimeout::from(100_u16)).unwrap() == 0 {
                continue;
            }
            let mut bytes = [0; 4096];
            let read = self.master.read(&mut bytes).unwrap_or(0);
            assert!(
                read > 0,
                "the terminal closed before {text:?}: {:?}",
                self.seen
            );
            self.seen.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A shell that is still there: the test has failed.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn the_stop_key_stops_the_command_and_fg_continues_it() {
    let machine = Machine::new();
    let mut terminal = Terminal::shell(&machine);

    terminal.send(&format!("{VGPU} run --gpumem 1Gi -- cat\n"));
    terminal.expect("cat\r\n");
    terminal.send("hello\n");
    terminal.expect("hello\r\nhello\r\n");
    terminal.send("\x1a");
    terminal.expect("Stopped");
    terminal.expect("$ ");
    terminal.send("fg\n");
    terminal.expect("-- cat\r\n");
    terminal.send("again\n");
    terminal.expect("again\r\nagain\r\n");
    // Twice, because the second time is what a wrapper gets wrong.
    terminal.send("\x1a");
    terminal.expect("Stopped");
    terminal.send("bg; sleep 0.1; fg\n");
    terminal.expect("cat &\r\n");
    terminal.send("more\n");
    // Its echo, and the output of `cat`.
    terminal.expect("more\r\n");
    terminal.expect("more\r\n");
    terminal.send("\x04");
    terminal.expect("$ ");
    terminal.send("echo code $?\n");
    terminal.expect("code 0\r\n");
}

#[test]
fn a_command_that_stops_itself_stops_vgpu_too() {
    let machine = Machine::new();
    let mut terminal = Terminal::shell(&machine);

    terminal.send(&format!(
        "{VGPU} run --gpumem 1Gi -- sh -c 'kill -TSTP $$; echo went on; exit 4'\n"
    ));
    terminal.expect("Stopped");
    terminal.send("fg\n");
    terminal.expect("\r\nwent on\r\n");
    terminal.send("echo code $?\n");

    terminal.expect("code 4\r\n");
}

#[test]
fn the_interrupt_key_reaches_the_command_once() {
    let machine = Machine::new();
    let mut terminal = Terminal::shell(&machine);
    let script = "n=0; trap \"n=\\$((n+1))\" INT; echo rea\"\"dy; sleep 1; sleep 0.3; echo counted $n; exit 6";

    terminal.send(&format!("{VGPU} run --gpumem 1Gi -- sh -c '{script}'\n"));
    terminal.expect("ready\r\n");
    terminal.send("\x03");
    terminal.expect("counted 1\r\n");
    terminal.send("echo code $?\n");
    terminal.expect("code 6\r\n");

    // A program that does not trap it dies from it, and the shell's list of commands ends there.
    terminal.send(&format!(
        "{VGPU} run --gpumem 1Gi -- sh -c 'echo rea\"\"dy; exec sleep 30'; echo next\n"
    ));
    terminal.expect("ready\r\n");
    terminal.send("\x03");
    let shown = terminal.expect("$ ");
    assert!(!shown.contains("next\r\n"), "{shown:?}");
    terminal.send("echo code $?\n");
    terminal.expect("code 130\r\n");
}

#[test]
fn top_draws_until_q_and_gives_the_screen_back() {
    let machine = Machine::new();
    let mut terminal = Terminal::shell(&machine);
    terminal.send("stty -a | grep -o '.icanon'; stty -a | grep -o '.echo '\n");
    let before = terminal.expect("$ ");

    terminal.send(&format!("{VGPU} top --interval 100ms\n"));
    terminal.expect("\x1b[?1049h\x1b[?25l\x1b[H");
    for _ in 0..3 {
        terminal.expect("No containers.");
    }
    terminal.send("q");
    terminal.expect("\x1b[?25h\x1b[?1049l");
    terminal.expect("$ ");
    terminal.send("stty -a | grep -o '.icanon'; stty -a | grep -o '.echo '\n");
    assert_eq!(terminal.expect("$ "), before);

    // Even if it is interrupted, or stopped and continued.
    terminal.send(&format!("{VGPU} top\n"));
    terminal.expect("No containers.");
    terminal.send("\x1a");
    terminal.expect("\x1b[?25h\x1b[?1049l");
    terminal.expect("Stopped");
    terminal.send("fg\n");
    terminal.expect("\x1b[?1049h");
    terminal.expect("No containers.");
    terminal.send("\x03");
    terminal.expect("\x1b[?25h\x1b[?1049l");
    terminal.expect("$ ");
    terminal.send("stty -a | grep -o '.icanon'; stty -a | grep -o '.echo '\n");
    assert_eq!(terminal.expect("$ "), before);
}

#[test]
fn colour_is_for_terminals_and_no_color_switches_it_off() {
    let machine = Machine::new();
    let mut coloured = machine.vgpu(["top", "--once"]);
    coloured.env("LANG", "C.UTF-8");
    let mut terminal = Terminal::start(&coloured);
    assert!(
        terminal
            .expect("No containers.")
            .contains("\x1b[1mvgpu top\x1b[0m")
    );

    let mut plain = machine.vgpu(["top", "--once"]);
    plain.env("NO_COLOR", "1");
    let mut terminal = Terminal::start(&plain);
    assert!(!terminal.expect("No containers.").contains('\x1b'));

    assert!(!machine.run(&["top", "--once"]).out.contains('\x1b'));
}

#[test]
fn a_narrow_terminal_shows_what_matters_most() {
    let machine = Machine::new();
    let words = ["--gpumem", "4Gi", "--gpucores", "30", "--name", "train"];
    let running = machine.start(&words, "echo ready; exec sleep 600");

    // 100 columns.
    let mut narrow = Terminal::start(machine.vgpu(["top", "--once"]).env("NO_COLOR", "1"));
    let shown = narrow.expect("running\r\n");
    let heads = shown.lines().find(|line| line.starts_with("CONTAINER"));
    let heads: Vec<_> = heads.unwrap().split_whitespace().collect();
    for line in shown.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
    for head in ["CONTAINER", "GPU", "MEMORY", "USED", "ASKED", "STATE"] {
        assert!(heads.contains(&head), "{head} of {heads:?}");
    }
    assert!(!heads.contains(&"LAUNCHES"), "{heads:?}");

    // Output for a program has no width.
    let wide = machine.run(&["top", "--once"]);
    assert!(wide.out.contains("LAUNCHES"), "{}", wide.out);
    running.stop();
}
