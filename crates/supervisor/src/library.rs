//! Checks that a file can be preloaded into a program: a complete shared library for this machine. Never loads the
//! file, and never chooses it.
//!
//! The dynamic loader only prints a warning about a library that it cannot preload, and runs the program
//! without a limit. So the library is checked first.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Why a file is not delivered to any program.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// The file cannot be read.
    #[error("cannot read the library {path}: {source}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The file is no library.
    #[error("{path} is not a 64-bit shared library", path = path.display())]
    NoLibrary {
        /// The file.
        path: PathBuf,
    },
    /// The library is for another kind of processor.
    #[error("{path} is a library for {found}, and this machine is {here}", path = path.display(),
            here = std::env::consts::ARCH)]
    Machine {
        /// The file.
        path: PathBuf,
        /// The processor that it is for.
        found: String,
    },
    /// The file is cut off.
    #[error("{path} is not all there: it has {found} bytes, and its header speaks of {expected}; copy it again",
            path = path.display())]
    Cut {
        /// The file.
        path: PathBuf,
        /// Its size, bytes.
        found: u64,
        /// The size that it should have at least, bytes.
        expected: u64,
    },
}

const HEADER_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;
/// 64 bits, least significant byte first: what Linux runs on every machine that we know.
const IDENTITY: &[u8] = b"\x7fELF\x02\x01";
const SHARED_OBJECT: u16 = 3;
const LOADED: u32 = 1;
/// Machines by their number in the header.
const MACHINES: [(u16, &str); 2] = [(62, "x86_64"), (183, "aarch64")];

/// Checks a file as far as the loader looks before it maps it.
///
/// # Errors
/// See [`LibraryError`].
pub fn check(path: &Path) -> Result<(), LibraryError> {
    let unreadable = |source| LibraryError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let no_library = || LibraryError::NoLibrary {
        path: path.to_owned(),
    };
    let file = File::open(path).map_err(unreadable)?;
    let found = file.metadata().map_err(unreadable)?.len();
    let header: [u8; HEADER_BYTES] = read(&file, 0).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => no_library(),
        _ => unreadable(error),
    })?;
    let kind = u16::from_le_bytes(at(&header, 16));
    if !header.starts_with(IDENTITY) || kind != SHARED_OBJECT {
        return Err(no_library());
    }
    let machine = u16::from_le_bytes(at(&header, 18));
    let name = MACHINES.iter().find(|(number, _)| *number == machine);
    let name = name.map_or_else(
        || format!("machine {machine}"),
        |(_, name)| (*name).to_owned(),
    );
    if name != std::env::consts::ARCH {
        return Err(LibraryError::Machine {
            path: path.to_owned(),
            found: name,
        });
    }
    let segments = u64::from_le_bytes(at(&header, 32));
    let size = u16::from_le_bytes(at(&header, 54));
    let count = u16::from_le_bytes(at(&header, 56));
    let cut = |expected: u64| LibraryError::Cut {
        path: path.to_owned(),
        found,
        expected,
    };
    let end = segments.saturating_add(u64::from(size) * u64::from(count));
    if end > found {
        return Err(cut(end));
    }
    if usize::from(size) < SEGMENT_BYTES {
        return Err(no_library());
    }
    let mut is_loaded = false;
    for number in 0..u64::from(count) {
        let offset = segments + number * u64::from(size);
        let segment: [u8; SEGMENT_BYTES] = read(&file, offset).map_err(unreadable)?;
        if u32::from_le_bytes(at(&segment, 0)) != LOADED {
            continue;
        }
        is_loaded = true;
        let begins = u64::from_le_bytes(at(&segment, 8));
        let end = begins.saturating_add(u64::from_le_bytes(at(&segment, 32)));
        if end > found {
            return Err(cut(end));
        }
    }
    if is_loaded { Ok(()) } else { Err(no_library()) }
}

fn read<const N: usize>(file: &File, offset: u64) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

fn at<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let part = bytes.get(offset..).and_then(|rest| rest.first_chunk());
    part.copied().unwrap_or([0; N])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The smallest file that has all that is looked at: a header, and one segment of `bytes`.
    fn library(machine: u16, bytes: u64) -> Vec<u8> {
        let mut file = vec![0; HEADER_BYTES + SEGMENT_BYTES];
        let mut put = |offset: usize, bytes: &[u8]| {
            file[offset..offset + bytes.len()].copy_from_slice(bytes);
        };
        put(0, IDENTITY);
        put(16, &SHARED_OBJECT.to_le_bytes());
        put(18, &machine.to_le_bytes());
        put(32, &64_u64.to_le_bytes());
        put(54, &56_u16.to_le_bytes());
        put(56, &1_u16.to_le_bytes());
        put(64, &LOADED.to_le_bytes());
        put(64 + 32, &bytes.to_le_bytes());
        file
    }

    #[test]
    fn unloadable_file_is_refused_with_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("libvgpu.so");
        let check = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            check(&path).map_err(|error| error.to_string())
        };
        let here = MACHINES
            .iter()
            .find(|(_, name)| *name == std::env::consts::ARCH);
        let here = here.unwrap().0;
        let there = MACHINES
            .iter()
            .find(|(number, _)| *number != here)
            .unwrap()
            .0;
        let good = library(here, 120);
        assert_eq!(check(&good), Ok(()));

        let mut program = good.clone();
        program[16] = 2;
        let mut narrow = good.clone();
        narrow[4] = 1;
        let mut empty = good.clone();
        empty[64] = 6;
        for (bytes, part) in [
            (&b""[..], "not a 64-bit shared library"),
            (b"#!/bin/sh", "not a 64-bit shared library"),
            (&program, "not a 64-bit shared library"),
            (&narrow, "not a 64-bit shared library"),
            (&empty, "not a 64-bit shared library"),
            (&good[..100], "100 bytes, and its header speaks of 120"),
            (
                &library(here, 5000),
                "120 bytes, and its header speaks of 5000",
            ),
            (&library(there, 120), "and this machine is"),
            (&library(9, 120), "a library for machine 9"),
        ] {
            let error = check(bytes).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        let missing = super::check(&dir.path().join("none")).unwrap_err();
        assert!(missing.to_string().starts_with("cannot read the library"));
    }
}
