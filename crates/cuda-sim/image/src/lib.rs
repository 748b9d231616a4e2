//! The contents of a module's image: the names of its kernels, their parameters, its variables. Reads PTX text,
//! cubins (ELF), fat binaries (LZ4 inside too) and archives of them; bytes in, values out. Runs and compiles nothing:
//! a simulated kernel only takes time.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::indexing_slicing,
    clippy::multiple_unsafe_ops_per_block,
    reason = "the figures of a GPU are small, and a driver reads the image that a program vouches for"
)]

mod declared;
mod elf;
mod ptx;

use std::collections::BTreeMap;

pub use crate::declared::{Kernel, Variable};
use crate::elf::{Elf, u16_at, u32_at, u64_at};
use crate::ptx::{entry_of, reference_of, sized_in, statements, variable_of, without_comments};

/// The contents of a module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    /// Kernels by name.
    pub kernels: BTreeMap<String, Kernel>,
    /// Variables by name, with their size in bytes.
    pub variables: BTreeMap<String, Variable>,
    /// Textures and surfaces that the module declares.
    pub references: Vec<String>,
    /// Bytes that the image itself has.
    pub bytes: usize,
    /// Bytes of the sections of a cubin that hold variables; of several cubins, those of the largest.
    pub section_bytes: usize,
    /// How much larger its code is than the image, as its texts say (`code_bytes`).
    pub code_bytes: u64,
    /// Whether nothing could be read in it (unknown compression): then every name is found.
    pub opaque: bool,
}

/// Why an image cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreadable {
    /// It looks like text, but not like PTX.
    Ptx,
    /// It is nothing that is known.
    Image,
}

const FATBIN_MAGIC: u32 = 0xba55_ed50;

const WRAPPER_MAGIC: u32 = 0x4662_43b1;

/// How large a text's code is beyond the text itself, in bytes: a comment `//code N` says it. A real
/// driver compiles the text, and its code may be of any size.
fn code_bytes(text: &str) -> usize {
    let comments = text.lines().filter_map(|line| line.strip_prefix("//code "));
    comments
        .filter_map(|bytes| bytes.trim().parse::<usize>().ok())
        .fold(0, usize::saturating_add)
}

/// The length of the image at `start`, by its own header; 0 if it has none.
///
/// # Safety
/// `start` points to an image: text that ends in a zero, or a binary with its whole header.
pub unsafe fn extent(start: *const u8) -> usize {
    // SAFETY: every kind of image has at least four bytes, text with its end among them.
    let magic = unsafe { read_u32(start) };
    match magic {
        FATBIN_MAGIC => {
            // SAFETY: the header of a fat binary is 16 bytes.
            let header = unsafe { std::slice::from_raw_parts(start, 16) };
            u16_at(header, 6).unwrap_or(16) as usize + u64_at(header, 8).unwrap_or(0) as usize
        }
        0x464c_457f => {
            // SAFETY: the header of an ELF file is 64 bytes.
            let header = unsafe { std::slice::from_raw_parts(start, 64) };
            // SAFETY: the caller vouches for the whole file, whose tables the header places.
            unsafe { elf_extent(start, header) }
        }
        // SAFETY: text ends in a zero, as the caller vouches.
        _ => unsafe { std::ffi::CStr::from_ptr(start.cast()) }.count_bytes(),
    }
}

/// The image inside a wrapper that cudart's compiler makes, or the image itself.
///
/// # Safety
/// As for [`extent`].
pub unsafe fn unwrapped(start: *const u8) -> *const u8 {
    // SAFETY: every kind of image has at least four bytes.
    if unsafe { read_u32(start) } != WRAPPER_MAGIC {
        return start;
    }
    // SAFETY: a wrapper is magic, version, and the address of the fat binary.
    let inner = unsafe { start.add(8).cast::<*const u8>().read_unaligned() };
    if inner.is_null() { start } else { inner }
}

/// Copies the readable part of a range of this process's memory.
fn peek(start: usize, bytes: usize) -> Vec<u8> {
    const STEP: usize = 64 << 10;
    let mut found = Vec::new();
    while found.len() < bytes {
        let from = start.wrapping_add(found.len());
        // Only whole pages are readable, so it reads up to the end of one page at a time.
        let most = (STEP - from % STEP).min(bytes - found.len());
        let before = found.len();
        for part in [most, (4096 - from % 4096).min(most)] {
            found.resize(before + part, 0);
            let to = libc::iovec {
                iov_base: found.as_mut_ptr().wrapping_add(before).cast(),
                iov_len: part,
            };
            let of = libc::iovec {
                iov_base: std::ptr::with_exposed_provenance_mut(from),
                iov_len: part,
            };
            // SAFETY: writes to the room just made; what it reads it finds or refuses by itself.
            let read = unsafe {
                let own = std::process::id().cast_signed();
                libc::process_vm_readv(own, &raw const to, 1, &raw const of, 1, 0)
            };
            let read = usize::try_from(read).unwrap_or(0);
            found.truncate(before + read);
            if read == part {
                break;
            }
        }
        if found.len() == before {
            break;
        }
    }
    found
}

/// A copy of the image that a program points to, as far as it can be read. An image that claims to be larger is cut.
pub fn copied(start: *const u8) -> Vec<u8> {
    const LARGEST: usize = 256 << 20;
    let mut start = start.expose_provenance();
    let mut header = peek(start, 64);
    if u32_at(&header, 0) == Some(WRAPPER_MAGIC) {
        match u64_at(&header, 8) {
            Some(inner) if inner != 0 => start = inner as usize,
            _ => {}
        }
        header = peek(start, 64);
    }
    let size = |number: Option<u64>| usize::try_from(number.unwrap_or(0)).unwrap_or(usize::MAX);
    let short = |at: usize| usize::from(u16_at(&header, at).unwrap_or(0));
    let bytes = match u32_at(&header, 0) {
        Some(FATBIN_MAGIC) => short(6).saturating_add(size(u64_at(&header, 8))),
        Some(0x464c_457f) => {
            let (table, each, count) = (size(u64_at(&header, 40)), short(58), short(60));
            let end = table.saturating_add(each * count);
            let whole = peek(start, end.min(LARGEST));
            let ends = (0..count).map(|index| {
                let at = table.saturating_add(index * each);
                let word = |offset: usize| at.checked_add(offset).and_then(|it| u64_at(&whole, it));
                let kind = at.checked_add(4).and_then(|it| u32_at(&whole, it));
                match kind {
                    None | Some(8) => 0,
                    Some(_) => size(word(24)).saturating_add(size(word(32))),
                }
            });
            let programs = size(u64_at(&header, 32)).saturating_add(56 * short(56));
            ends.fold(end.max(programs).max(64), usize::max)
        }
        _ => {
            let mut bytes = 0;
            loop {
                let part = peek(start.wrapping_add(bytes), 4096);
                let end = part.iter().position(|byte| *byte == 0);
                bytes += end.unwrap_or(part.len());
                if end.is_some() || part.len() < 4096 || bytes >= LARGEST {
                    break bytes;
                }
            }
        }
    };
    peek(start, bytes.min(LARGEST))
}

/// # Safety
/// Four bytes can be read, or a zero stands among the first.
unsafe fn read_u32(start: *const u8) -> u32 {
    let mut value = [0; 4];
    for (offset, byte) in value.iter_mut().enumerate() {
        // SAFETY: the caller vouches for it up to the first zero.
        *byte = unsafe { start.add(offset).read() };
        if *byte == 0 {
            break;
        }
    }
    u32::from_le_bytes(value)
}

/// # Safety
/// The whole file lies at `start`.
unsafe fn elf_extent(start: *const u8, header: &[u8]) -> usize {
    let section_table = u64_at(header, 0x28).unwrap_or(0) as usize;
    let entry = u16_at(header, 0x3a).unwrap_or(0) as usize;
    let count = u16_at(header, 0x3c).unwrap_or(0) as usize;
    let program_table = u64_at(header, 0x20).unwrap_or(0) as usize;
    let program_count = u16_at(header, 0x38).unwrap_or(0) as usize;
    let mut end = (section_table + entry * count).max(64);
    if program_table != 0 {
        end = end.max(program_table + program_count * 56);
    }
    for index in 0..count {
        // SAFETY: the section table is part of the file.
        let section =
            unsafe { std::slice::from_raw_parts(start.add(section_table + index * entry), entry) };
        const NOBITS: u32 = 8;
        if u32_at(section, 4) != Some(NOBITS) {
            let offset = u64_at(section, 0x18).unwrap_or(0) as usize;
            end = end.max(offset + u64_at(section, 0x20).unwrap_or(0) as usize);
        }
    }
    end
}

/// How many bytes of code a fat binary puts on a GPU: those of its biggest entry, since it has one for
/// each kind of GPU. Looks at headers only.
pub fn biggest_entry(bytes: &[u8]) -> usize {
    let mut at = u16_at(bytes, 6).unwrap_or(16) as usize;
    let mut biggest = 0;
    while let (Some(header), Some(padded)) = (u32_at(bytes, at + 4), u64_at(bytes, at + 8)) {
        if header == 0 {
            break;
        }
        let unpacked = u64_at(bytes, at + 56).unwrap_or(0).max(padded) as usize;
        biggest = biggest.max(unpacked);
        at = at
            .saturating_add(header as usize)
            .saturating_add(padded as usize);
    }
    biggest
}

impl Image {
    /// Reads an image.
    ///
    /// # Errors
    /// When it is none.
    pub fn parse(bytes: &[u8]) -> Result<Self, Unreadable> {
        let mut image = Self::default();
        image.add(bytes)?;
        image.bytes = bytes.len();
        Ok(image)
    }

    /// Bytes of device memory that it takes: its code and its declared variables.
    pub fn taken_bytes(&self) -> u64 {
        let code = (self.bytes as u64).saturating_add(self.code_bytes);
        code.saturating_add(self.declared_bytes())
    }

    /// Bytes of device memory of its declared variables.
    pub fn declared_bytes(&self) -> u64 {
        let named = self.variables.values().fold(0_u64, |sum, variable| {
            sum.saturating_add(variable.bytes as u64)
        });
        named.max(self.section_bytes as u64)
    }

    /// Adds the contents of another image, as a linker does.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn add(&mut self, bytes: &[u8]) -> Result<(), Unreadable> {
        self.bytes += bytes.len();
        match u32_at(bytes, 0) {
            Some(FATBIN_MAGIC) => self.add_fatbin(bytes),
            Some(0x464c_457f) => self.add_elf(bytes),
            _ if bytes.starts_with(b"!<arch>\n") => self.add_archive(bytes),
            _ => self.add_ptx(bytes),
        }
    }

    fn add_archive(&mut self, bytes: &[u8]) -> Result<(), Unreadable> {
        let mut at = 8;
        while let Some(header) = bytes.get(at..at + 60) {
            let size = std::str::from_utf8(&header[48..58]).ok();
            let size: usize = size
                .and_then(|text| text.trim().parse().ok())
                .ok_or(Unreadable::Image)?;
            let member = bytes
                .get(at + 60..at + 60 + size)
                .ok_or(Unreadable::Image)?;
            if matches!(u32_at(member, 0), Some(FATBIN_MAGIC | 0x464c_457f)) {
                self.add(member)?;
            }
            at += 60 + size + size % 2;
        }
        Ok(())
    }

    fn add_fatbin(&mut self, bytes: &[u8]) -> Result<(), Unreadable> {
        const PTX: u16 = 1;
        const ELF: u16 = 2;
        let mut at = u16_at(bytes, 6).ok_or(Unreadable::Image)? as usize;
        let mut any = false;
        while let Some(kind) = u16_at(bytes, at) {
            let header = u32_at(bytes, at + 4).ok_or(Unreadable::Image)? as usize;
            let padded = u64_at(bytes, at + 8).ok_or(Unreadable::Image)? as usize;
            let packed = u32_at(bytes, at + 16).ok_or(Unreadable::Image)? as usize;
            let flags = u64_at(bytes, at + 40).unwrap_or(0);
            let unpacked = u64_at(bytes, at + 56).unwrap_or(0) as usize;
            if header == 0 {
                break;
            }
            let end = at.saturating_add(header).saturating_add(padded);
            let Some(payload) = bytes.get(at + header..end) else {
                break;
            };
            any = true;
            let text = if flags & 0x2000 != 0 {
                payload
                    .get(..packed)
                    .and_then(|packed| lz4(packed, unpacked))
            } else if flags & 0x8000 != 0 {
                None // zstd
            } else {
                Some(payload.to_vec())
            };
            match (kind, text) {
                // One code for several GPUs names the same kernels: a second reading adds nothing.
                (PTX, Some(text)) => self.opaque |= self.add_ptx(&text).is_err(),
                // A linked piece may be a fat binary or an archive itself.
                (ELF, Some(file)) => self.opaque |= self.add(&file).is_err(),
                _ => self.opaque = true,
            }
            at = end;
        }
        // A file without kernels of its own has an empty one.
        let is_empty = u64_at(bytes, 8) == Some(0);
        if any || is_empty {
            Ok(())
        } else {
            Err(Unreadable::Image)
        }
    }

    fn add_ptx(&mut self, bytes: &[u8]) -> Result<(), Unreadable> {
        let text = bytes.split(|&byte| byte == 0).next().unwrap_or(bytes);
        let text = std::str::from_utf8(text).map_err(|_| Unreadable::Image)?;
        if text.trim().is_empty() {
            return Err(Unreadable::Image);
        }
        let code = code_bytes(text);
        let text = without_comments(text);
        if !text.contains(".version") || !text.contains(".target") {
            return Err(Unreadable::Ptx);
        }
        self.code_bytes = self.code_bytes.saturating_add(code as u64);
        let mut depth = 0_i32;
        let mut kernel: Option<String> = None;
        for statement in statements(&text) {
            if depth == 0 {
                if let Some((name, entry)) = entry_of(statement.text) {
                    self.kernels.insert(name.clone(), entry);
                    kernel = Some(name);
                } else if let Some((name, variable)) = variable_of(statement.text) {
                    self.variables.insert(name, variable);
                } else if let Some(name) = reference_of(statement.text) {
                    self.references.push(name);
                }
            } else if let Some(kernel) = kernel.as_ref().and_then(|k| self.kernels.get_mut(k)) {
                if let Some(bytes) = sized_in(statement.text, ".shared") {
                    kernel.shared_bytes += bytes as i32;
                } else if let Some(bytes) = sized_in(statement.text, ".local") {
                    kernel.local_bytes += bytes as i32;
                }
            }
            depth += match statement.end {
                '{' => 1,
                '}' => -1,
                _ => 0,
            };
            if depth == 0 && statement.end == '}' {
                kernel = None;
            }
        }
        Ok(())
    }

    fn add_elf(&mut self, file: &[u8]) -> Result<(), Unreadable> {
        let elf = Elf::read(file).ok_or(Unreadable::Image)?;
        let sections = elf
            .sections
            .iter()
            .filter(|section| holds_variables(section.name));
        let bytes = sections.fold(0_usize, |sum, section| sum.saturating_add(section.size));
        self.section_bytes = self.section_bytes.max(bytes);
        for (index, section) in elf.sections.iter().enumerate() {
            if let Some(name) = section.name.strip_prefix(".text.") {
                // A device function that was not inlined has code of its own, but is no entry.
                if elf.symbols.iter().any(|s| s.name == name && s.entry) {
                    let kernel = self.kernels.entry(name.to_owned()).or_default();
                    kernel.registers = (section.info >> 24) as i32;
                }
            }
            if let Some(name) = section.name.strip_prefix(".nv.info.")
                && let Some(kernel) = self.kernels.get_mut(name)
            {
                kernel.read_info(elf.bytes(section));
            }
            if let Some(name) = section.name.strip_prefix(".nv.shared.")
                && let Some(kernel) = self.kernels.get_mut(name)
            {
                kernel.shared_bytes = section.size as i32;
            }
            let data = section.name == ".nv.global" || section.name == ".nv.global.init";
            let constant = section.name.starts_with(".nv.constant3");
            if data || constant {
                for symbol in elf
                    .symbols
                    .iter()
                    .filter(|s| s.section == index && s.object)
                {
                    let bytes = symbol.size;
                    let variable = Variable {
                        bytes,
                        constant,
                        managed: false,
                    };
                    self.variables.insert(symbol.name.to_owned(), variable);
                }
            }
        }
        Ok(())
    }
}

/// Whether a section of a cubin is memory of the module, rather than code or what the driver reads.
fn holds_variables(name: &str) -> bool {
    name == ".bss" || name.starts_with(".nv.global") || name.starts_with(".nv.constant3")
}

/// Appends an entry to a fat binary's list, as it is.
pub fn append_entry(entries: &mut Vec<u8>, is_ptx: bool, bytes: &[u8]) {
    const HEADER: usize = 64;
    let padded = bytes.len().next_multiple_of(8);
    let mut header = [0; HEADER];
    header[0] = if is_ptx { 1 } else { 2 };
    header[4] = HEADER as u8;
    header[8..16].copy_from_slice(&(padded as u64).to_le_bytes());
    entries.extend_from_slice(&header);
    entries.extend_from_slice(bytes);
    entries.resize(entries.len() + padded - bytes.len(), 0);
}

/// A fat binary of these entries.
pub fn fatbin_of(entries: Vec<u8>) -> Vec<u8> {
    let mut fatbin = FATBIN_MAGIC.to_le_bytes().to_vec();
    fatbin.extend_from_slice(&[1, 0, 16, 0]);
    fatbin.extend_from_slice(&(entries.len() as u64).to_le_bytes());
    fatbin.extend_from_slice(&entries);
    fatbin
}

/// Unpacks an LZ4 block of at most 256 MiB.
fn lz4(packed: &[u8], unpacked: usize) -> Option<Vec<u8>> {
    if unpacked > 256 << 20 {
        return None;
    }
    let text = lz4_flex::block::decompress(packed, unpacked).ok()?;
    (text.len() == unpacked).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = r#"
        .version 8.0  // as nvcc writes it
        .target sm_80
        .address_size 64
        .visible .global .align 4 .b8 table[1024];
        .global .align 8 .u64 counter = 0;
        .const .align 4 .b8 weights[16] = {1, 2, 3, 4};
        .extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
        .visible .entry axpy(
            .param .u64 axpy_param_0,
            .param .f32 axpy_param_1,
            .param .align 8 .b8 axpy_param_2[24]
        )
        .maxntid 128, 1, 1
        {
            .shared .align 4 .b8 tile[4096];
            .reg .b32 %r<3>;
            { ret; }
        }
        /* .entry not_this() {} */
        .visible .entry empty() { ret; }
    "#;

    #[test]
    fn ptx_names_its_kernels_and_variables() {
        let image = Image::parse(PTX.as_bytes()).unwrap();

        assert_eq!(image.kernels.keys().collect::<Vec<_>>(), ["axpy", "empty"]);
        let axpy = &image.kernels["axpy"];
        assert_eq!(axpy.parameters, [(0, 8), (8, 4), (16, 24)]);
        assert_eq!((axpy.shared_bytes, axpy.max_threads), (4096, 128));
        let sizes: Vec<_> = image
            .variables
            .iter()
            .map(|(n, v)| (n.as_str(), v.bytes))
            .collect();
        assert_eq!(sizes, [("counter", 8), ("table", 1024), ("weights", 16)]);
        assert!(image.variables["weights"].constant);
    }

    #[test]
    fn text_that_is_no_ptx_is_refused() {
        assert_eq!(Image::parse(b"hello"), Err(Unreadable::Ptx));
        assert_eq!(Image::parse(b""), Err(Unreadable::Image));
        assert_eq!(Image::parse(&[0xff, 0xfe, 1, 2]), Err(Unreadable::Image));
    }

    #[test]
    fn a_fat_binary_is_read_through_its_compression() {
        let text = PTX.as_bytes();
        // All literals: the simplest LZ4 block.
        let mut packed = vec![0xf0];
        let mut left = text.len() - 15;
        while left >= 255 {
            packed.push(255);
            left -= 255;
        }
        packed.push(left as u8);
        packed.extend_from_slice(text);
        let mut entry = vec![0; 64];
        entry[0] = 1;
        entry[4] = 64;
        entry[8..16].copy_from_slice(&(packed.len() as u64).to_le_bytes());
        entry[16..20].copy_from_slice(&(packed.len() as u32).to_le_bytes());
        entry[40..48].copy_from_slice(&0x2000_u64.to_le_bytes());
        entry[56..64].copy_from_slice(&(text.len() as u64).to_le_bytes());
        entry.extend_from_slice(&packed);
        let mut fatbin = FATBIN_MAGIC.to_le_bytes().to_vec();
        fatbin.extend_from_slice(&[1, 0, 16, 0]);
        fatbin.extend_from_slice(&(entry.len() as u64).to_le_bytes());
        fatbin.extend_from_slice(&entry);

        let image = Image::parse(&fatbin).unwrap();

        assert!(image.kernels.contains_key("axpy"));
        assert!(!image.opaque);
        // SAFETY: a whole fat binary.
        assert_eq!(unsafe { extent(fatbin.as_ptr()) }, fatbin.len());
    }

    #[test]
    fn lz4_copies_what_overlaps() {
        // "ab", then six bytes from two back, then the closing literals.
        assert_eq!(
            lz4(&[0x22, b'a', b'b', 2, 0, 0x10, b'!'], 9).unwrap(),
            b"abababab!"
        );
    }
}
