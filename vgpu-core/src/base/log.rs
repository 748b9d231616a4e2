//! One line to the file that the settings name, by default nowhere. Formatted on the stack, written
//! with one `write(2)`, the file opened again each time (the host may close every descriptor). Never allocates, never
//! prints to stdout or stderr, never fails visibly.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int};
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU32, Ordering};

use crate::base::clock;

/// The level of a line; the settings say from which level on lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// A limit that is not enforced as asked, or a call that we refuse for our own reasons.
    Error = 1,
    /// Something that an operator should look at.
    Warn = 2,
    /// One line for each decision.
    Info = 3,
    /// The inputs of decisions.
    Debug = 4,
}

impl Level {
    /// The word of the settings.
    pub(crate) fn from_word(word: &[u8]) -> Option<Self> {
        [Self::Error, Self::Warn, Self::Info, Self::Debug]
            .into_iter()
            .find(|level| level.word().as_bytes().eq_ignore_ascii_case(word))
    }

    fn word(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }
}

const LONGEST_PATH: usize = 4096;

/// The path, written once before `LEVEL` is set.
struct Path(UnsafeCell<[u8; LONGEST_PATH]>);

// SAFETY: written only while `LEVEL` is 0 and under the lock of the set-up, read only afterwards.
unsafe impl Sync for Path {}

static PATH: Path = Path(UnsafeCell::new([0; LONGEST_PATH]));
/// Lines up to this level are written; 0: none.
static LEVEL: AtomicU32 = AtomicU32::new(0);

/// Where lines go from now on. Only the first call counts. False when the path is too long.
pub(crate) fn write_to(path: &CStr, level: Level) -> bool {
    let bytes = path.to_bytes_with_nul();
    // Relaxed: the set-up holds its lock.
    if bytes.len() > LONGEST_PATH || LEVEL.load(Ordering::Relaxed) != 0 {
        return false;
    }
    // SAFETY: no thread reads it while LEVEL is 0, and the lock of the set-up keeps other writers out.
    let target = unsafe { &mut *PATH.0.get() };
    for (to, from) in target.iter_mut().zip(bytes) {
        *to = *from;
    }
    // Release: a thread that sees the level sees the path.
    LEVEL.store(level as u32, Ordering::Release);
    true
}

/// Is a line of this level written at all?
pub(crate) fn is_on(level: Level) -> bool {
    // Acquire: the path was written before.
    LEVEL.load(Ordering::Acquire) >= level as u32
}

/// Writes one line. Use the macro [`crate::base::log::line`].
#[cold]
pub(crate) fn write(level: Level, text: fmt::Arguments<'_>) {
    if !is_on(level) {
        return;
    }
    let mut line = Line {
        bytes: [0; 512],
        length: 0,
    };
    let now = clock::read(libc::CLOCK_REALTIME);
    let millis = now.tv_nsec / 1_000_000;
    // A line that does not fit is cut: the buffer takes what it can and never fails.
    let head = write!(
        line,
        "{}.{millis:03} vgpu {} {}: ",
        now.tv_sec,
        level.word(),
        std::process::id()
    );
    let body = line.write_fmt(text);
    if head.is_err() || body.is_err() {
        return;
    }
    line.end();
    append(line.text());
}

/// Writes one line of a level, formatted as `format!` does.
macro_rules! line {
    ($level:ident, $($text:tt)*) => {
        if $crate::base::log::is_on($crate::base::log::Level::$level) {
            $crate::base::log::write($crate::base::log::Level::$level, format_args!($($text)*));
        }
    };
}
pub(crate) use line;

struct Line {
    bytes: [u8; 512],
    length: usize,
}

impl Line {
    fn end(&mut self) {
        let last = self.length.min(self.bytes.len() - 1);
        if let Some(byte) = self.bytes.get_mut(last) {
            *byte = b'\n';
        }
        self.length = last + 1;
    }

    fn text(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for (to, from) in self.bytes.iter_mut().skip(self.length).zip(text.bytes()) {
            // One line stays one line, whatever a path or a name has in it.
            *to = if from.is_ascii_control() { b'?' } else { from };
        }
        self.length = self.bytes.len().min(self.length + text.len());
        Ok(())
    }
}

fn append(text: &[u8]) {
    const FLAGS: c_int = libc::O_WRONLY
        | libc::O_APPEND
        | libc::O_CREAT
        | libc::O_CLOEXEC
        | libc::O_NOCTTY
        | libc::O_NONBLOCK;
    let path: *const c_char = PATH.0.get().cast();
    // Bare system calls: the C library's functions are points of cancellation.
    // SAFETY: the path ends in a zero (write_to copied it with its own).
    let file = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, FLAGS, 0o644) };
    if file < 0 {
        return;
    }
    // SAFETY: our own descriptor, and a buffer of that length. A failed write is ignored.
    unsafe { libc::syscall(libc::SYS_write, file, text.as_ptr(), text.len()) };
    // SAFETY: our own descriptor.
    unsafe { libc::syscall(libc::SYS_close, file) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_cut_and_stays_one_line() {
        let mut line = Line {
            bytes: [0; 512],
            length: 0,
        };

        write!(line, "a\nb{}", "x".repeat(1000)).unwrap();
        line.end();

        assert_eq!(line.text().len(), 512);
        assert!(line.text().starts_with(b"a?bx"));
        assert_eq!(line.text().iter().filter(|&&byte| byte == b'\n').count(), 1);
    }

    #[test]
    fn a_line_goes_to_the_named_file_and_nowhere_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();

        assert!(write_to(&name, Level::Warn));
        line!(Warn, "limit of {} bytes", 5);
        line!(Info, "not asked for");

        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.ends_with(": limit of 5 bytes\n"), "{text}");
        assert_eq!(text.lines().count(), 1);
    }
}
