//! Reads a shared library's ELF file: whether it is vgpu's, the version of the region it uses, and the C library it
//! needs.

use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection, ObjectSymbol};
use serde::{Deserialize, Serialize};

/// The symbol that identifies vgpu's libraries; its value is the version of the region that they use.
const MARKER: &str = "VGPU_LIBRARY_MARKER";

/// A shared library.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Library {
    /// Why it is not a shared library.
    pub(super) error: Option<String>,
    /// The architecture, such as `x86_64`.
    pub(super) machine: String,
    /// Version of the region that it uses, if it is vgpu's.
    pub(super) region_version: Option<u32>,
    /// The newest version of glibc whose functions it calls, as `2.17`.
    pub(super) needs_glibc: Option<String>,
    /// The libraries that it needs.
    pub(super) needs: Vec<String>,
}

/// Reads a library.
pub(super) fn library(bytes: &[u8]) -> Library {
    let file = match ElfFile64::<Endianness>::parse(bytes) {
        Ok(file) if file.kind() == object::ObjectKind::Dynamic => file,
        Ok(_) => return broken("it is a program, and no shared library"),
        Err(_) => return broken("it is no 64-bit ELF file"),
    };
    Library {
        error: None,
        machine: format!("{:?}", file.architecture()).to_lowercase(),
        region_version: marker(&file),
        needs_glibc: texts(&file).and_then(|texts| newest_glibc(texts, "GLIBC_")),
        needs: needs(&file).unwrap_or_default(),
    }
}

fn broken(why: &str) -> Library {
    Library {
        error: Some(why.to_owned()),
        ..Library::default()
    }
}

/// The names of symbols, versions and libraries.
fn texts<'a>(file: &ElfFile64<'a>) -> Option<&'a [u8]> {
    file.section_by_name(".dynstr")?.data().ok()
}

/// `DT_NEEDED`.
fn needs(file: &ElfFile64<'_>) -> Option<Vec<String>> {
    const ENTRY_BYTES: usize = 16;
    const NEEDED: u64 = 1;
    let texts = texts(file)?;
    let entries = file.section_by_name(".dynamic")?.data().ok()?;
    let word = |bytes: &[u8]| Some(u64::from_le_bytes(bytes.try_into().ok()?));
    let mut names = Vec::new();
    for entry in entries.chunks_exact(ENTRY_BYTES) {
        let (tag, value) = entry.split_at(ENTRY_BYTES / 2);
        if word(tag)? != NEEDED {
            continue;
        }
        let name = texts.get(usize::try_from(word(value)?).ok()?..)?;
        let name = name.split(|byte| *byte == 0).next()?;
        names.push(String::from_utf8_lossy(name).into_owned());
    }
    Some(names)
}

/// Whether a library comes with every glibc.
pub(super) fn is_of_glibc(name: &str) -> bool {
    [
        "libc.so.",
        "libdl.so.",
        "libm.so.",
        "libpthread.so.",
        "librt.so.",
        "ld-linux",
    ]
    .iter()
    .any(|begins| name.starts_with(begins))
}

fn marker(file: &ElfFile64<'_>) -> Option<u32> {
    let symbol = file
        .dynamic_symbols()
        .find(|symbol| symbol.is_definition() && symbol.name() == Ok(MARKER))?;
    let section = file.section_by_index(symbol.section_index()?).ok()?;
    let data = section.data_range(symbol.address(), 4).ok()??;
    Some(u32::from_le_bytes(data.try_into().ok()?))
}

/// The greatest `2.N` after `prefix` in the file's texts.
fn newest_glibc(bytes: &[u8], prefix: &str) -> Option<String> {
    let mut newest: Option<(u32, u32)> = None;
    let mut rest = bytes;
    while let Some(at) = find(rest, prefix.as_bytes()) {
        rest = rest.get(at + prefix.len()..)?;
        let end = rest
            .iter()
            .position(|byte| !byte.is_ascii_digit() && *byte != b'.')?;
        let version = rest
            .get(..end)
            .and_then(|text| std::str::from_utf8(text).ok());
        newest = newest.max(version.and_then(glibc_version));
    }
    newest.map(|(major, minor)| format!("{major}.{minor}"))
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
}

/// `2.17` or `2.2.5` as major and minor.
pub(super) fn glibc_version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The version that a `libc.so.6` says it is.
pub(super) fn libc_version(bytes: &[u8]) -> Option<String> {
    let at = find(bytes, b"release version 2.")?;
    let from = bytes.get(at + "release version ".len()..)?;
    let end = from
        .iter()
        .position(|byte| !byte.is_ascii_digit() && *byte != b'.')?;
    let text = std::str::from_utf8(from.get(..end)?).ok()?;
    let (major, minor) = glibc_version(text.trim_end_matches('.'))?;
    Some(format!("{major}.{minor}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_as_numbers_and_other_files_are_named() {
        let text = b"GLIBC_2.2.5\0GLIBC_2.17\0GLIBC_PRIVATE\0GLIBC_2.9\0";
        assert_eq!(newest_glibc(text, "GLIBC_").as_deref(), Some("2.17"));
        let banner =
            b"xx GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.\nCopyright";
        assert_eq!(libc_version(banner).as_deref(), Some("2.36"));
        assert_eq!(
            library(b"#!/bin/sh\n").error.as_deref(),
            Some("it is no 64-bit ELF file")
        );
    }
}
