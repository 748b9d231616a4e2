//! PTX: the variables that a text declares without a value, and the bytes that they take.

use super::{Declared, ImageSource, LONGEST_TEXT, WIDEST_TYPE, Window, placed};

/// PTX text ends in a zero, or with the entry that contains it.
pub(super) fn text(image: &Window<'_, impl ImageSource>) -> Declared {
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
    /// How much of the buffer is filled, and how much of that was read.
    filled: usize,
    next: usize,
    /// Bytes read so far.
    read: u64,
    /// The text ended as a text does.
    has_ended: bool,
}

impl<'a, 'w, S: ImageSource> Reader<'a, 'w, S> {
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
            // The end of the entry that contains it, rather than of the readable memory.
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

/// The variables that were declared so far.
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
    /// All declarations of the text. A line may have several of them, behind directives that end without a semicolon.
    /// A state space within an instruction (`ld.global`) has no space in front of it, and one in brackets is that of
    /// a parameter.
    fn add_all<S: ImageSource>(&mut self, reader: &mut Reader<'_, '_, S>) {
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
    fn variables<S: ImageSource>(&mut self, reader: &mut Reader<'_, '_, S>) {
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
                    // The words in brackets say where else the variable can be reached from.
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
    fn variable<S: ImageSource>(
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

fn dimension<S: ImageSource>(reader: &mut Reader<'_, '_, S>, end: u8) -> Dimension {
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

/// The size of a PTX type, bytes.
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
