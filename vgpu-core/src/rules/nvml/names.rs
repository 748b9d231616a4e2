//! The name of a process by the pid that the container knows. The driver may look for that pid among
//! the host's, so the answer is read where the pid is from.

use core::ffi::c_char;

use cuda_api::nvml::NvmlReturn;

use super::here;
use crate::guest::border::OutPtr;
use crate::state::accounts::Accounts;

/// A member of the container is named by what its own `/proc` says, and so is a process that the
/// driver does not find.
pub(crate) fn after_process_name(
    result: NvmlReturn,
    pid: u32,
    name: OutPtr<c_char>,
    length: u32,
) -> Option<NvmlReturn> {
    if name.is_null() || length == 0 || result == NvmlReturn::UNINITIALIZED {
        return None;
    }
    let Accounts { container, .. } = here()?;
    let is_member = container
        .region
        .processes()
        .any(|process| process.pid == pid);
    if result.is_success() && !is_member {
        return None;
    }
    let mut program = [0; 512];
    let program = command(pid, &mut program)?;
    let kept = program.len().min(length as usize - 1);
    for (at, &byte) in program.iter().take(kept).enumerate() {
        name.at(at).write(c_char::from_ne_bytes([byte]));
    }
    name.at(kept).write(0);
    Some(NvmlReturn::SUCCESS)
}

/// The program that a process was started as: the first word of its command line.
fn command(pid: u32, into: &mut [u8; 512]) -> Option<&[u8]> {
    let path = path_of(pid);
    // SAFETY: the path ends in a zero.
    let file = unsafe { libc::open(path.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return None;
    }
    // SAFETY: as many bytes as there is room for.
    let length = unsafe { libc::read(file, into.as_mut_ptr().cast(), into.len()) };
    // SAFETY: opened above.
    unsafe { libc::close(file) };
    let line = into.get(..usize::try_from(length).ok()?)?;
    let word = line.split(|&byte| byte == 0).next()?;
    (!word.is_empty()).then_some(word)
}

/// `/proc/PID/cmdline` with its zero.
fn path_of(pid: u32) -> [u8; 32] {
    let mut path = [0; 32];
    let mut digits = [0; 10];
    let mut rest = pid;
    let mut first = digits.len();
    loop {
        first -= 1;
        if let Some(digit) = digits.get_mut(first) {
            *digit = b'0' + (rest % 10) as u8;
        }
        rest /= 10;
        if rest == 0 || first == 0 {
            break;
        }
    }
    let parts = [
        &b"/proc/"[..],
        digits.get(first..).unwrap_or_default(),
        &b"/cmdline"[..],
    ];
    for (to, from) in path.iter_mut().zip(parts.into_iter().flatten()) {
        *to = *from;
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_is_written_out() {
        for (pid, path) in [
            (0, "/proc/0/cmdline"),
            (4_294_967_295, "/proc/4294967295/cmdline"),
        ] {
            assert_eq!(
                std::ffi::CStr::from_bytes_until_nul(&path_of(pid))
                    .unwrap()
                    .to_str(),
                Ok(path)
            );
        }
    }

    #[test]
    fn this_program_has_a_name() {
        let mut room = [0; 512];
        let name = command(std::process::id(), &mut room).unwrap();

        assert!(!name.is_empty() && !name.contains(&0));
    }
}
