//! What a module's image says that it takes of a device: PTX text, cubins (ELF) and fat binaries.
//! Bytes in, a figure out. An image may lie, end early or be nothing at all: whatever it says, the
//! answer is a figure, no byte beyond what `Source` has is read, and the work is bounded.

/// Where the bytes of an image are. A read beyond the end gives fewer bytes than asked for, or none.
pub(crate) trait Source {
    /// Copies bytes from this offset on; how many there were.
    fn read(&self, at: u64, into: &mut [u8]) -> usize;
}

/// What an image takes, as far as it says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Declared {
    /// The image itself, and the variables that stand in it without a content, bytes.
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
    let raw = Raw(header);
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

/// What the image takes.
pub(crate) fn declared(image: &impl Source) -> Declared {
    declared_in(&Window {
        of: image,
        from: 0,
        bytes: u64::MAX,
    })
}

fn declared_in(image: &Window<'_, impl Source>) -> Declared {
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

impl<S: Source> Window<'_, S> {
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
fn fat_binary(image: &Window<'_, impl Source>) -> Declared {
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
fn declared_of_entry(is_text: bool, entry: &Window<'_, impl Source>) -> Declared {
    match (is_text, entry.u32(0)) {
        (true, _) => text(entry),
        (false, Some(ELF)) => cubin(entry),
        (false, _) => Declared::UNKNOWN,
    }
}

/// How long an ELF file is: its section table comes last, unless a section ends later.
fn cubin(image: &Window<'_, impl Source>) -> Declared {
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
        // What is to be linked yet has variables that no section has.
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
        // It ends before it says: what it declares counts, what it is long does not.
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
    fn read(image: &Window<'_, impl Source>, at: u64) -> Option<Self> {
        let mut raw = [0; 64];
        if image.read(at, &mut raw) < raw.len() {
            return None;
        }
        let raw = Raw(&raw);
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

struct Raw<'a>(&'a [u8; 64]);

impl Raw<'_> {
    fn number(&self, at: usize, bytes: usize) -> u64 {
        let field = self.0.get(at..at + bytes).unwrap_or(&[]);
        field
            .iter()
            .rev()
            .fold(0, |value, &byte| value << 8 | u64::from(byte))
    }
}

/// Shared memory lies in the multiprocessors.
fn is_on_chip(image: &Window<'_, impl Source>, names: u64, name: u64) -> bool {
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

// --- PTX ----------------------------------------------------------------------------------------

/// PTX text ends in a zero, or with the entry that it stands in.
fn text(image: &Window<'_, impl Source>) -> Declared {
    let mut reader = Reader::new(image);
    let mut sum = Sum::default();
    sum.add_all(&mut reader);
    Declared {
        bytes: reader.read.saturating_add(sum.bytes),
        is_whole: sum.is_understood && reader.has_ended,
    }
}

struct Reader<'a, 'w, S> {
    image: &'a Window<'w, S>,
    buffer: [u8; 4096],
    /// What of the buffer is filled, and what of that is read.
    filled: usize,
    next: usize,
    /// Bytes read so far.
    read: u64,
    /// The text ended as a text does.
    has_ended: bool,
}

impl<'a, 'w, S: Source> Reader<'a, 'w, S> {
    fn new(image: &'a Window<'w, S>) -> Self {
        Self {
            image,
            buffer: [0; 4096],
            filled: 0,
            next: 0,
            read: 0,
            has_ended: false,
        }
    }

    /// The next byte; `None` at the end.
    #[inline]
    fn peek(&mut self) -> Option<u8> {
        if self.next == self.filled {
            self.fill()?;
        }
        match self.buffer.get(self.next).copied() {
            Some(0) => {
                self.has_ended = true;
                None
            }
            byte => byte,
        }
    }

    #[cold]
    fn fill(&mut self) -> Option<()> {
        if self.read >= LONGEST_TEXT {
            return None;
        }
        self.filled = self.image.read(self.read, &mut self.buffer);
        self.next = 0;
        if self.filled == 0 {
            // The end of the entry that it stands in, rather than of what can be read.
            self.has_ended = self.read == self.image.bytes;
            return None;
        }
        Some(())
    }

    #[inline]
    fn step(&mut self) {
        self.next += 1;
        self.read += 1;
    }

    #[inline]
    fn take(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.step();
        Some(byte)
    }

    /// Steps over space and comments. False at the end.
    fn skip_space(&mut self) -> bool {
        loop {
            match self.peek() {
                Some(byte) if byte.is_ascii_whitespace() => self.step(),
                Some(b'/') => {
                    self.step();
                    self.comment();
                }
                found => return found.is_some(),
            }
        }
    }

    /// After a slash: the rest of a comment. A slash alone is stepped over.
    fn comment(&mut self) {
        match self.peek() {
            Some(b'/') => while self.take().is_some_and(|byte| byte != b'\n') {},
            Some(b'*') => {
                self.step();
                let mut last = 0;
                while let Some(byte) = self.take() {
                    if (last, byte) == (b'*', b'/') {
                        break;
                    }
                    last = byte;
                }
            }
            _ => {}
        }
    }

    /// After a quotation mark: the rest of what is quoted.
    fn quoted(&mut self) {
        while self.take().is_some_and(|byte| byte != b'"') {}
    }

    /// The next word, a dot in front of it too. Empty: something else follows.
    fn word(&mut self) -> Word {
        let mut word = Word::default();
        while let Some(byte) = self.peek() {
            let is_first_dot = byte == b'.' && word.length == 0;
            if !(byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%') || is_first_dot)
            {
                break;
            }
            word.push(byte);
            self.step();
        }
        word
    }
}

/// A word as far as it can be one that means something.
#[derive(Default)]
struct Word {
    text: [u8; 24],
    length: usize,
}

impl Word {
    fn push(&mut self, byte: u8) {
        if let Some(place) = self.text.get_mut(self.length) {
            *place = byte;
        }
        self.length = self.length.saturating_add(1);
    }

    fn text(&self) -> &[u8] {
        self.text.get(..self.length).unwrap_or(&[])
    }
}

/// What was declared so far.
struct Sum {
    bytes: u64,
    is_understood: bool,
}

impl Default for Sum {
    fn default() -> Self {
        Self {
            bytes: 0,
            is_understood: true,
        }
    }
}

impl Sum {
    /// All declarations of the text. Several may stand in a line, behind directives that end without
    /// a semicolon. A state space within an instruction (`ld.global`) has no space in front of it, and
    /// one in brackets is that of a parameter.
    fn add_all<S: Source>(&mut self, reader: &mut Reader<'_, '_, S>) {
        let mut is_elsewhere = false;
        let mut brackets = 0_u32;
        let mut is_apart = true;
        while let Some(byte) = reader.peek() {
            if byte == b'.' && is_apart && brackets == 0 {
                match reader.word().text() {
                    b".extern" => is_elsewhere = true,
                    b".global" | b".const" => {
                        let before = self.bytes;
                        self.variables(reader);
                        if is_elsewhere {
                            self.bytes = before;
                        }
                        is_elsewhere = false;
                        is_apart = true;
                        continue;
                    }
                    _ => {}
                }
                is_apart = false;
                continue;
            }
            reader.step();
            is_apart = byte.is_ascii_whitespace();
            match byte {
                b';' | b'{' | b'}' => {
                    (is_elsewhere, brackets, is_apart) = (false, 0, true);
                }
                b'(' => brackets = brackets.saturating_add(1),
                b')' => brackets = brackets.saturating_sub(1),
                b'"' => reader.quoted(),
                b'/' => {
                    reader.comment();
                    is_apart = true;
                }
                _ => {}
            }
        }
    }

    /// After `.global` or `.const`: the declaration's other words, and its names.
    fn variables<S: Source>(&mut self, reader: &mut Reader<'_, '_, S>) {
        let mut align = 1;
        let mut lanes = 1;
        let mut each = 0;
        loop {
            if !reader.skip_space() {
                self.is_understood = false;
                return;
            }
            match reader.peek() {
                Some(b'.') => {}
                _ => break,
            }
            let word = reader.word();
            match word.text() {
                b".align" => {
                    reader.skip_space();
                    align = number(reader.word().text()).unwrap_or(1);
                }
                b".attribute" => {
                    // What stands in brackets says where else it can be reached from.
                    while reader.take().is_some_and(|byte| byte != b')') {}
                }
                b".v2" => lanes = 2,
                b".v4" => lanes = 4,
                b".v8" => lanes = 8,
                text => match width(text) {
                    Some(bytes) => each = bytes,
                    None => {
                        each = WIDEST_TYPE;
                        self.is_understood = false;
                    }
                },
            }
        }
        let each = each.max(1).saturating_mul(lanes);
        while self.variable(reader, each, align.max(each.min(WIDEST_TYPE))) {}
    }

    /// One name with its dimensions and its content. True where another one follows.
    fn variable<S: Source>(
        &mut self,
        reader: &mut Reader<'_, '_, S>,
        each: u64,
        align: u64,
    ) -> bool {
        let mut count = 1_u64;
        let mut is_open = false;
        let mut values = 0_u64;
        let mut depth = 0_u32;
        let mut has_content = false;
        let another = loop {
            let Some(byte) = reader.take() else {
                self.is_understood = false;
                break false;
            };
            match byte {
                b'"' => reader.quoted(),
                b'/' => reader.comment(),
                b'=' => has_content = true,
                b'[' if !has_content => match dimension(reader, b']') {
                    Dimension::Of(some) => count = count.saturating_mul(some),
                    Dimension::Open => is_open = true,
                    Dimension::Unknown => self.is_understood = false,
                },
                b'<' if !has_content => match dimension(reader, b'>') {
                    Dimension::Of(some) => count = count.saturating_mul(some),
                    Dimension::Open | Dimension::Unknown => self.is_understood = false,
                },
                b'{' => depth = depth.saturating_add(1),
                b'}' => depth = depth.saturating_sub(1),
                b',' if depth == 0 => break true,
                b',' => values = values.saturating_add(1),
                b';' if depth == 0 => break false,
                _ => {}
            }
        };
        if is_open {
            // As many as its content has, at most.
            count = count.saturating_mul(values.saturating_add(1));
            self.is_understood &= has_content;
        }
        self.bytes = placed(self.bytes, align).saturating_add(each.saturating_mul(count));
        another
    }
}

enum Dimension {
    Of(u64),
    Open,
    Unknown,
}

fn dimension<S: Source>(reader: &mut Reader<'_, '_, S>, end: u8) -> Dimension {
    reader.skip_space();
    let word = reader.word();
    reader.skip_space();
    if reader.peek() == Some(end) {
        reader.step();
        return match word.text() {
            [] if word.length == 0 => Dimension::Open,
            text => number(text).map_or(Dimension::Unknown, Dimension::Of),
        };
    }
    // An expression.
    while let Some(byte) = reader.peek() {
        if byte == end || byte == b';' {
            break;
        }
        reader.step();
    }
    if reader.peek() == Some(end) {
        reader.step();
    }
    Dimension::Unknown
}

/// What a type of PTX takes, bytes.
fn width(name: &[u8]) -> Option<u64> {
    let bytes = match name {
        b".b8" | b".u8" | b".s8" => 1,
        b".b16" | b".u16" | b".s16" | b".f16" | b".bf16" => 2,
        b".b32" | b".u32" | b".s32" | b".f32" | b".f16x2" | b".bf16x2" | b".tf32" => 4,
        b".b64" | b".u64" | b".s64" | b".f64" | b".texref" | b".surfref" | b".samplerref" => 8,
        b".b128" => 16,
        _ => return None,
    };
    Some(bytes)
}

/// A number as PTX writes it: decimal, `0x`, `0b`, or octal after a zero, with or without a `U`. One
/// that is too large is the largest.
fn number(text: &[u8]) -> Option<u64> {
    let text = text.strip_suffix(b"U").unwrap_or(text);
    let (radix, digits) = match text {
        [b'0', b'x' | b'X', digits @ ..] => (16, digits),
        [b'0', b'b' | b'B', digits @ ..] => (2, digits),
        [b'0', digits @ ..] if !digits.is_empty() => (8, digits),
        digits => (10, digits),
    };
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |sum, &digit| {
        let digit = char::from(digit).to_digit(radix)?;
        Some(
            sum.saturating_mul(u64::from(radix))
                .saturating_add(u64::from(digit)),
        )
    })
}

/// An image in memory that may not be there.
impl Source for &[u8] {
    fn read(&self, at: u64, into: &mut [u8]) -> usize {
        let rest = usize::try_from(at).ok().and_then(|at| self.get(at..));
        let rest = rest.unwrap_or(&[]);
        for (to, from) in into.iter_mut().zip(rest) {
            *to = *from;
        }
        rest.len().min(into.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEAD: &str = ".version 7.0\n.target sm_70\n.address_size 64\n";

    /// What a text declares beyond its own length.
    #[track_caller]
    fn text_declares(body: &str, bytes: u64) {
        let text = format!("{HEAD}{body}\n\0");
        let found = declared(&text.as_bytes());
        assert_eq!(
            found,
            Declared {
                bytes: bytes + text.len() as u64 - 1,
                is_whole: true
            },
            "{body}"
        );
    }

    #[test]
    fn a_header_tells_the_size_of_its_image() {
        let mut elf = [0u8; 64];
        elf[..4].copy_from_slice(b"\x7fELF");
        elf[40..42].copy_from_slice(&0x1000u16.to_le_bytes());
        elf[58] = 64;
        elf[60] = 10;
        let mut fat = [0u8; 64];
        fat[..4].copy_from_slice(&FATBIN.to_le_bytes());
        fat[6] = 16;
        fat[8..10].copy_from_slice(&5000u16.to_le_bytes());

        assert_eq!(size_in(&elf), Some(0x1000 + 640));
        assert_eq!(size_in(&fat), Some(5016));
        assert_eq!(size_in(&[b'.'; 64]), None);
    }

    #[test]
    fn variables_of_a_text_count() {
        text_declares("", 0);
        text_declares(".global .u32 x;", 4);
        text_declares(".visible .global .align 256 .b8 big[4294967296];", 1 << 32);
        text_declares(".global .v4 .f32 v[3];", 48);
        text_declares(".const .f64 c[2][3];", 48);
        text_declares(".weak .global .b8 a[0x10], b[020], c[0b11];", 16 + 16 + 3);
        text_declares(".global .attribute(.managed) .b8 m[100U];", 100);
        text_declares(".global .f32 bias[] = {-1.0, 1.0, 0x3};", 12);
        text_declares(".global .u8 s[] = {1,2,\n3 /* , */, 4};", 4);
        text_declares(".common .global .b64 n<7>;", 56);
        text_declares(".global .b8 a;.global .align 8 .b8 b;", 9);
        text_declares(".version 7.0 .target sm_70 .global .b8 on_one_line[9];", 9);
    }

    #[test]
    fn other_state_spaces_of_a_text_do_not_count() {
        text_declares(".extern .global .b8 elsewhere[4096];", 0);
        text_declares(".shared .b8 s[4096]; .local .b8 l[9];", 0);
        text_declares("// .global .b8 x[99];\n/* .global .b8 y[9]; */", 0);
        text_declares(
            ".visible .entry k(.param .u64 .ptr .global .align 8 p) { ld.global.u32 %r1, [p]; ret; }",
            0,
        );
        text_declares(".file 1 \".global .b8 x[9];\"", 0);
        text_declares(".extern .func f(); .global .b8 y[5];", 5);
    }

    #[test]
    fn what_is_not_understood_is_not_whole() {
        for body in [
            ".global .b8 x[4 * 1024];",
            ".global .unheard x[4];",
            ".global .b8 x[",
            ".extern .global .b8 x[];.global",
        ] {
            let text = format!("{HEAD}{body}\0");
            assert!(!declared(&text.as_bytes()).is_whole, "{body}");
        }
        // It does not end.
        assert!(!declared(&HEAD.as_bytes()).is_whole);
        assert_eq!(declared(&b"".as_slice()), Declared::UNKNOWN);
    }

    #[test]
    fn sizes_at_the_edge_of_a_number_are_the_largest() {
        let text = format!("{HEAD}.global .b64 x[18446744073709551615];\0");
        assert_eq!(declared(&text.as_bytes()).bytes, u64::MAX);
        let text = format!("{HEAD}.global .b8 x[0xffffffffffffffff], y[1], z[2];\0");
        assert_eq!(declared(&text.as_bytes()).bytes, u64::MAX);
        let text = format!("{HEAD}.global .align 18446744073709551615 .b8 x[2], y[2];\0");
        assert_eq!(declared(&text.as_bytes()).bytes, u64::MAX);
    }

    /// A cubin with sections of these names, kinds, flags and sizes.
    fn cubin_of(sections: &[(&str, u32, u64, u64)]) -> Vec<u8> {
        let mut names = vec![0];
        let mut table = vec![0; 64];
        for &(name, kind, flags, bytes) in sections {
            let mut section = [0; 64];
            section[..4].copy_from_slice(&u32::try_from(names.len()).unwrap().to_le_bytes());
            section[4..8].copy_from_slice(&kind.to_le_bytes());
            section[8..16].copy_from_slice(&flags.to_le_bytes());
            section[24..32].copy_from_slice(&64_u64.to_le_bytes());
            section[32..40].copy_from_slice(&bytes.to_le_bytes());
            section[48] = 8;
            table.extend_from_slice(&section);
            names.extend_from_slice(name.as_bytes());
            names.push(0);
        }
        let mut section = [0; 64];
        section[4] = 3;
        section[24..32].copy_from_slice(&64_u64.to_le_bytes());
        section[32..40].copy_from_slice(&(names.len() as u64).to_le_bytes());
        table.extend_from_slice(&section);
        let count = u16::try_from(table.len() / 64).unwrap();
        let mut file = vec![0; 64];
        file[..5].copy_from_slice(b"\x7fELF\x02");
        file.extend_from_slice(&names);
        let at = file.len() as u64;
        file[40..48].copy_from_slice(&at.to_le_bytes());
        file[58] = 64;
        file[60..62].copy_from_slice(&count.to_le_bytes());
        file[62..64].copy_from_slice(&(count - 1).to_le_bytes());
        file.extend_from_slice(&table);
        file
    }

    const GLOBAL: (&str, u32, u64, u64) = (".nv.global", 8, 3, 5 << 30);

    #[test]
    fn variables_of_a_cubin_count_and_shared_memory_does_not() {
        let file = cubin_of(&[
            GLOBAL,
            (".nv.shared.kernel", 8, 3, 7 << 30),
            (".nv.constant3", 1, 2, 16),
            (".bss", 8, 0, 1 << 40),
        ]);
        let found = declared(&file.as_slice());

        assert_eq!(found.bytes, (5 << 30) + file.len() as u64);
        assert!(found.is_whole);
    }

    fn entry(kind: u16, flags: u64, unpacked: u64, content: &[u8]) -> Vec<u8> {
        let padded = content.len().next_multiple_of(8);
        let mut entry = vec![0; 64];
        entry[..2].copy_from_slice(&kind.to_le_bytes());
        entry[4] = 64;
        entry[8..16].copy_from_slice(&(padded as u64).to_le_bytes());
        entry[40..48].copy_from_slice(&flags.to_le_bytes());
        entry[56..64].copy_from_slice(&unpacked.to_le_bytes());
        entry.extend_from_slice(content);
        entry.resize(64 + padded, 0);
        entry
    }

    fn fat_binary_of(entries: &[Vec<u8>]) -> Vec<u8> {
        let entries = entries.concat();
        let mut file = FATBIN.to_le_bytes().to_vec();
        file.extend_from_slice(&[1, 0, 16, 0]);
        file.extend_from_slice(&(entries.len() as u64).to_le_bytes());
        file.extend_from_slice(&entries);
        file
    }

    #[test]
    fn the_largest_entry_of_a_fat_binary_counts() {
        let text = format!("{HEAD}.global .b8 x[1000000];");
        let small = cubin_of(&[(".nv.global", 8, 3, 1000)]);
        let file = fat_binary_of(&[
            entry(2, 0, 0, &small),
            entry(1, 0, 0, text.as_bytes()),
            entry(2, 0, 0, &small),
        ]);
        let found = declared(&file.as_slice());

        assert!(found.is_whole);
        let beyond = found.bytes - file.len() as u64;
        assert!((999_992..=1_000_000).contains(&beyond), "{beyond}");
    }

    #[test]
    fn a_compressed_entry_is_as_long_as_it_says_and_not_whole() {
        let file = fat_binary_of(&[entry(2, 0x2000, 1 << 30, &[0; 64])]);
        let found = declared(&file.as_slice());

        assert_eq!(found.bytes, (1 << 30) - 64 + file.len() as u64);
        assert!(!found.is_whole);
    }

    #[test]
    fn images_that_lie_about_their_size_are_not_whole() {
        let file = cubin_of(&[GLOBAL]);
        for end in 0..file.len() {
            let found = declared(&&file[..end]);
            assert!(!found.is_whole, "{end}");
        }
        let mut long = fat_binary_of(&[entry(2, 0, 0, &file)]);
        long[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(declared(&long.as_slice()), Declared::UNKNOWN);
        let mut far = file;
        far[40..48].copy_from_slice(&(u64::MAX - 5).to_le_bytes());
        assert_eq!(declared(&far.as_slice()), Declared::UNKNOWN);
    }

    /// Counts what is read, and fails on a read that begins beyond the end twice in a row.
    struct Bounded<'a>(&'a [u8], core::cell::Cell<usize>);

    impl Source for Bounded<'_> {
        fn read(&self, at: u64, into: &mut [u8]) -> usize {
            self.1.set(self.1.get() + 1);
            self.0.read(at, into)
        }
    }

    proptest! {
        #[test]
        fn any_bytes_have_an_answer(
            start in prop::sample::select(vec![
                b"\x7fELF\x02".to_vec(),
                vec![0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0],
                HEAD.as_bytes().to_vec(),
                Vec::new(),
            ]),
            rest in prop::collection::vec(any::<u8>(), 0..400),
        ) {
            let image = [start, rest].concat();
            let source = Bounded(&image, core::cell::Cell::default());
            declared(&source);
            // The work is bounded by the image's length and the number of parts that it may claim.
            prop_assert!(source.1.get() < 1_000_000);
        }

        #[test]
        fn a_changed_image_has_an_answer(
            at in 0usize..600,
            word in any::<u64>(),
        ) {
            let inner = cubin_of(&[GLOBAL, (".symtab", 2, 0, 240)]);
            let mut image = fat_binary_of(&[entry(2, 0, 0, &inner), entry(1, 0, 0, HEAD.as_bytes())]);
            let at = at % (image.len() - 8);
            image[at..at + 8].copy_from_slice(&word.to_le_bytes());
            declared(&image.as_slice());
            let mut alone = inner;
            let at = at % (alone.len() - 8);
            alone[at..at + 8].copy_from_slice(&word.to_le_bytes());
            declared(&alone.as_slice());
        }

        #[test]
        fn a_declared_array_counts_in_full(
            count in 1u64..1 << 40,
            space in prop::sample::select(vec![".global", ".const", ".visible .global"]),
            (name, bytes) in prop::sample::select(vec![(".b8", 1), (".u16", 2), (".f32", 4), (".s64", 8)]),
            lanes in prop::sample::select(vec![("", 1), (".v2 ", 2), (".v4 ", 4)]),
            before in "[ \\n\\t]{0,5}",
        ) {
            let (vector, lanes) = lanes;
            let text = format!("{HEAD}{before}{space} .align 16 {vector}{name}{before} x[{count}];\0");
            let found = declared(&text.as_bytes());
            prop_assert!(found.is_whole);
            prop_assert!(found.bytes >= count * bytes * lanes);
            prop_assert!(found.bytes <= count * bytes * lanes + text.len() as u64);
        }

        #[test]
        fn a_text_that_was_cut_has_an_answer(end in 0usize..200, noise in "[ -~]{0,40}") {
            let text = format!("{HEAD}.global .b8 x[1000] = {{1, 2}}; {noise} .const .v2 .f32 y[2][3];\0");
            let cut = text.get(..end.min(text.len())).unwrap_or(&text);
            declared(&cut.as_bytes());
        }
    }
}
