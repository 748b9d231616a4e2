//! The device memory that a module's image declares: PTX text, cubins (ELF) and fat binaries.
//! Bytes in, a figure out. An image may lie, end early or be nothing at all: whatever it says, the
//! answer is a figure, no byte beyond what `ImageSource` has is read, and the work is bounded.

mod ptx;
#[cfg(test)]
mod tests;

use self::ptx::text;

/// Where the bytes of an image are. A read beyond the end gives fewer bytes than asked for, or none.
pub(crate) trait ImageSource {
    /// Copies bytes from this offset on; how many there were.
    fn read(&self, at: u64, into: &mut [u8]) -> usize;
}

/// The memory that an image takes, as far as the image says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Declared {
    /// The image itself, and the variables that it declares without content, bytes.
    pub(crate) bytes: u64,
    /// All of the image was read and understood. Otherwise it may take more than `bytes`.
    pub(crate) is_whole: bool,
}

impl Declared {
    /// Nothing is known.
    pub(crate) const UNKNOWN: Self = Self {
        bytes: 0,
        is_whole: false,
    };
}

/// The compiler's wrapper around a fat binary: magic, version, and the address of the image.
pub(crate) const WRAPPER: u32 = 0x4662_43b1;
const FATBIN: u32 = 0xba55_ed50;
const ELF: u32 = 0x464c_457f;

/// Entries of a fat binary, and sections of a cubin, that are looked at.
const MOST_PARTS: u64 = 1 << 16;
/// The most that a text is read for its end.
const LONGEST_TEXT: u64 = 1 << 30;
/// The size taken for a type that is not in the table.
const WIDEST_TYPE: u64 = 16;

/// Is this the beginning of an image that is no text?
pub(crate) fn is_binary(magic: u32) -> bool {
    matches!(magic, FATBIN | ELF)
}

/// How long an image of this header says that it is; `None` for text.
pub(crate) fn size_in(header: &[u8; 64]) -> Option<u64> {
    let raw = ElfHeader(header);
    match u32::try_from(raw.number(0, 4)).ok()? {
        // The header's length and what follows it.
        FATBIN => Some(raw.number(6, 2).saturating_add(raw.number(8, 8))),
        // Its section table comes last.
        ELF => {
            let table = raw.number(58, 2).saturating_mul(raw.number(60, 2));
            Some(raw.number(40, 8).saturating_add(table))
        }
        _ => None,
    }
}

/// The memory that the image takes.
pub(crate) fn declared(image: &impl ImageSource) -> Declared {
    declared_in(&Window {
        of: image,
        from: 0,
        bytes: u64::MAX,
    })
}

fn declared_in(image: &Window<'_, impl ImageSource>) -> Declared {
    match image.u32(0) {
        Some(FATBIN) => fat_binary(image),
        Some(ELF) => cubin(image),
        _ => text(image),
    }
}

/// A part of an image.
struct Window<'a, S> {
    of: &'a S,
    from: u64,
    bytes: u64,
}

impl<S: ImageSource> Window<'_, S> {
    fn read(&self, at: u64, into: &mut [u8]) -> usize {
        let Some(left) = self.bytes.checked_sub(at) else {
            return 0;
        };
        let Some(from) = self.from.checked_add(at) else {
            return 0;
        };
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(into.len());
        into.get_mut(..most)
            .map_or(0, |into| self.of.read(from, into).min(most))
    }

    fn number<const BYTES: usize>(&self, at: u64) -> Option<u64> {
        let mut bytes = [0; BYTES];
        if self.read(at, &mut bytes) < BYTES {
            return None;
        }
        let up = |value: u64, &byte: &u8| value << 8 | u64::from(byte);
        Some(bytes.iter().rev().fold(0, up))
    }

    fn u16(&self, at: u64) -> Option<u64> {
        self.number::<2>(at)
    }

    fn u32(&self, at: u64) -> Option<u32> {
        // A text may be shorter than a number.
        self.number::<4>(at).and_then(|it| u32::try_from(it).ok())
    }

    fn u64(&self, at: u64) -> Option<u64> {
        self.number::<8>(at)
    }

    fn has(&self, end: u64) -> bool {
        end == 0 || self.number::<1>(end - 1).is_some()
    }

    fn part(&self, from: u64, bytes: u64) -> Option<Window<'_, S>> {
        Some(Window {
            of: self.of,
            from: self.from.checked_add(from)?,
            bytes: bytes.min(self.bytes.checked_sub(from)?),
        })
    }
}

/// A fat binary has an entry for each kind of device, of which one is loaded: the container as it is,
/// and the most that an entry takes beyond its own place in it.
fn fat_binary(image: &Window<'_, impl ImageSource>) -> Declared {
    const PTX: u64 = 1;
    const CUBIN: u64 = 2;
    /// An entry's bits that say that its content is compressed, in one way or another.
    const COMPRESSED: u64 = 0x2000 | 0x8000;
    let (Some(header), Some(bytes)) = (image.u16(6), image.u64(8)) else {
        return Declared::UNKNOWN;
    };
    let end = header.saturating_add(bytes);
    if !image.has(end) {
        return Declared::UNKNOWN;
    }
    let mut at = header;
    let mut most_beyond = 0;
    let mut is_whole = true;
    for _part in 0..MOST_PARTS {
        if at >= end {
            return Declared {
                bytes: end.saturating_add(most_beyond),
                is_whole,
            };
        }
        let (Some(kind), Some(own_header), Some(padded)) =
            (image.u16(at), image.u32(at + 4), image.u64(at + 8))
        else {
            break;
        };
        let own_header = u64::from(own_header);
        if own_header == 0 {
            // Room behind the last entry.
            at = end;
            continue;
        }
        let flags = image.u64(at.saturating_add(40)).unwrap_or(0);
        let unpacked = image.u64(at.saturating_add(56)).unwrap_or(0);
        let next = at.saturating_add(own_header).saturating_add(padded);
        let is_packed = flags & COMPRESSED != 0 && own_header >= 64;
        let beyond = if is_packed {
            is_whole = false;
            unpacked.saturating_sub(padded)
        } else {
            let inner = image.part(at.saturating_add(own_header), padded);
            let inner = match (kind, inner) {
                (PTX | CUBIN, Some(inner)) if next <= end => declared_of_entry(kind == PTX, &inner),
                _ => Declared::UNKNOWN,
            };
            is_whole &= inner.is_whole;
            inner.bytes.saturating_sub(padded)
        };
        most_beyond = most_beyond.max(beyond);
        at = next;
    }
    Declared {
        bytes: end.saturating_add(most_beyond),
        is_whole: false,
    }
}

/// An entry is text or a cubin; a fat binary within a fat binary is not followed.
fn declared_of_entry(is_text: bool, entry: &Window<'_, impl ImageSource>) -> Declared {
    match (is_text, entry.u32(0)) {
        (true, _) => text(entry),
        (false, Some(ELF)) => cubin(entry),
        (false, _) => Declared::UNKNOWN,
    }
}

/// How long an ELF file is: its section table comes last, unless a section ends later.
fn cubin(image: &Window<'_, impl ImageSource>) -> Declared {
    const WIDE: u64 = 2;
    const SYMBOLS: u32 = 2;
    const NO_BITS: u32 = 8;
    const TAKES_MEMORY: u64 = 2;
    const COMMON: u64 = 0xfff2;
    const TO_BE_LINKED: u64 = 1;
    if image.number::<1>(4) != Some(WIDE) {
        return Declared::UNKNOWN;
    }
    let (Some(table), Some(entry), Some(count), Some(names)) =
        (image.u64(40), image.u16(58), image.u16(60), image.u16(62))
    else {
        return Declared::UNKNOWN;
    };
    let mut end = table.saturating_add(entry.saturating_mul(count)).max(64);
    if entry < 64 || !image.has(end) {
        return Declared::UNKNOWN;
    }
    let section = |index: u64| Section::read(image, table.saturating_add(index * entry));
    let names = section(names).map_or(0, |names| names.offset);
    let is_linked = image.u16(16) != Some(TO_BE_LINKED);
    let mut beyond = 0_u64;
    let mut is_whole = true;
    let mut symbols_left = MOST_PARTS;
    for index in 0..count {
        let Some(it) = section(index) else {
            is_whole = false;
            break;
        };
        if it.kind != NO_BITS {
            end = end.max(it.offset.saturating_add(it.bytes));
        } else if it.flags & TAKES_MEMORY != 0 && !is_on_chip(image, names, it.name) {
            beyond = placed(beyond, it.align).saturating_add(it.bytes);
        }
        // A file that is not linked yet has variables that are in no section.
        if it.kind == SYMBOLS && it.entry >= 24 && !is_linked {
            let symbols = it.bytes / it.entry;
            is_whole &= symbols <= symbols_left;
            let symbols = symbols.min(symbols_left);
            symbols_left -= symbols;
            for symbol in 0..symbols {
                let at = it.offset.saturating_add(symbol.saturating_mul(it.entry));
                match (
                    image.u16(at.saturating_add(6)),
                    image.u64(at.saturating_add(16)),
                ) {
                    (Some(COMMON), Some(bytes)) => {
                        beyond = placed(beyond, 16).saturating_add(bytes)
                    }
                    (Some(_), _) => {}
                    (None, _) => {
                        is_whole = false;
                        break;
                    }
                }
            }
        }
    }
    if !image.has(end) {
        // The image ends too early: its declared bytes count, its stated length does not.
        return Declared {
            bytes: beyond,
            is_whole: false,
        };
    }
    Declared {
        bytes: end.saturating_add(beyond),
        is_whole,
    }
}

struct Section {
    name: u64,
    kind: u32,
    flags: u64,
    offset: u64,
    bytes: u64,
    align: u64,
    entry: u64,
}

impl Section {
    fn read(image: &Window<'_, impl ImageSource>, at: u64) -> Option<Self> {
        let mut raw = [0; 64];
        if image.read(at, &mut raw) < raw.len() {
            return None;
        }
        let raw = ElfHeader(&raw);
        Some(Self {
            name: raw.number(0, 4),
            kind: u32::try_from(raw.number(4, 4)).unwrap_or(0),
            flags: raw.number(8, 8),
            offset: raw.number(24, 8),
            bytes: raw.number(32, 8),
            align: raw.number(48, 8),
            entry: raw.number(56, 8),
        })
    }
}

struct ElfHeader<'a>(&'a [u8; 64]);

impl ElfHeader<'_> {
    fn number(&self, at: usize, bytes: usize) -> u64 {
        let field = self.0.get(at..at + bytes).unwrap_or(&[]);
        field
            .iter()
            .rev()
            .fold(0, |value, &byte| value << 8 | u64::from(byte))
    }
}

/// Shared memory lies in the multiprocessors.
fn is_on_chip(image: &Window<'_, impl ImageSource>, names: u64, name: u64) -> bool {
    const SHARED: &[u8] = b".nv.shared";
    const RESERVED: &[u8] = b".nv.reservedSmem";
    let mut text = [0; RESERVED.len()];
    image.read(names.saturating_add(name), &mut text);
    text.starts_with(SHARED) || text.starts_with(RESERVED)
}

fn placed(bytes: u64, align: u64) -> u64 {
    match align {
        0 | 1 => bytes,
        align => bytes.checked_next_multiple_of(align).unwrap_or(u64::MAX),
    }
}

/// An image in memory that may not be there.
impl ImageSource for &[u8] {
    fn read(&self, at: u64, into: &mut [u8]) -> usize {
        let rest = usize::try_from(at).ok().and_then(|at| self.get(at..));
        let rest = rest.unwrap_or(&[]);
        for (to, from) in into.iter_mut().zip(rest) {
            *to = *from;
        }
        rest.len().min(into.len())
    }
}
