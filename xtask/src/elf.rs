//! Reads a shared object's dynamic part: what it needs, what it exports, which glibc it asks for.
//! Values only: the rules are check.rs's.

use std::path::Path;

use anyhow::Context;
use object::elf;
use object::read::elf::{Dyn, FileHeader, Sym};

/// The bit of DT_FLAGS that says the same as DT_SYMBOLIC.
const DF_SYMBOLIC: u64 = 2;

type Header = elf::FileHeader64<object::Endianness>;

/// The parts of a file that the dynamic linker reads.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Dynamic {
    /// DT_NEEDED, in order.
    pub(crate) needed: Vec<String>,
    /// DT_SONAME.
    pub(crate) soname: Option<String>,
    /// -Bsymbolic: the file's own references stay in the file.
    pub(crate) symbolic: bool,
    /// Functions and data that others can bind to, sorted.
    pub(crate) exports: Vec<String>,
    /// Versions of glibc that must be there to load it, such as (2, 17).
    pub(crate) glibc: Vec<(u32, u32)>,
}

/// Reads `path`.
///
/// # Errors
/// When the file cannot be read or is no 64-bit ELF file.
pub(crate) fn read(path: &Path) -> anyhow::Result<Dynamic> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&bytes)
        .with_context(|| format!("{} is not an ELF file that we understand", path.display()))
}

fn parse(data: &[u8]) -> anyhow::Result<Dynamic> {
    let header = Header::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let mut found = Dynamic::default();

    if let Some((entries, link)) = sections.dynamic(endian, data)? {
        let strings = sections.strings(endian, data, link)?;
        let text = |entry: &elf::Dyn64<_>| -> anyhow::Result<String> {
            Ok(String::from_utf8_lossy(entry.string(endian, strings)?).into_owned())
        };
        for entry in entries {
            let value = entry.d_val(endian);
            match entry.tag(endian) {
                elf::DT_NEEDED => found.needed.push(text(entry)?),
                elf::DT_SONAME => found.soname = Some(text(entry)?),
                elf::DT_SYMBOLIC => found.symbolic = true,
                elf::DT_FLAGS if value & DF_SYMBOLIC != 0 => found.symbolic = true,
                _ => {}
            }
        }
    }

    let symbols = sections.symbols(endian, data, elf::SHT_DYNSYM)?;
    for symbol in symbols.iter() {
        if !symbol.is_undefined(endian) && symbol.st_bind() != elf::STB_LOCAL {
            found.exports.push(
                String::from_utf8_lossy(symbol.name(endian, symbols.strings())?).into_owned(),
            );
        }
    }
    found.exports.sort();

    if let Some((mut libraries, link)) = sections.gnu_verneed(endian, data)? {
        let strings = sections.strings(endian, data, link)?;
        while let Some((_, mut versions)) = libraries.next()? {
            while let Some(version) = versions.next()? {
                let name = String::from_utf8_lossy(version.name(endian, strings)?).into_owned();
                found.glibc.extend(glibc_version(&name));
            }
        }
    }
    found.glibc.sort_unstable();
    found.glibc.dedup();
    Ok(found)
}

/// `GLIBC_2.2.5` is (2, 2): the third number never decided anything.
fn glibc_version(name: &str) -> Option<(u32, u32)> {
    let mut numbers = name
        .strip_prefix("GLIBC_")?
        .split('.')
        .map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor)),
        // GLIBC_PRIVATE and GLIBC_ABI_*: bound to one build of glibc, so never acceptable.
        _ => Some((u32::MAX, 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_by_its_first_two_numbers() {
        assert_eq!(glibc_version("GLIBC_2.2.5"), Some((2, 2)));
        assert_eq!(glibc_version("GLIBC_2.34"), Some((2, 34)));
        assert_eq!(glibc_version("GCC_3.0"), None);
    }

    #[test]
    fn a_private_version_is_newer_than_any_floor() {
        assert!(glibc_version("GLIBC_PRIVATE") > Some((2, 99)));
    }

    #[test]
    fn this_program_needs_libc() {
        let own = read(&std::env::current_exe().unwrap()).unwrap();
        assert!(own.needed.iter().any(|name| name == "libc.so.6"), "{own:?}");
    }
}
