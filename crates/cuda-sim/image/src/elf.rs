//! Cubins: the sections and symbols of an ELF file. Bytes in, values out.

pub(crate) struct Elf<'a> {
    file: &'a [u8],
    pub(crate) sections: Vec<Section<'a>>,
    pub(crate) symbols: Vec<Symbol<'a>>,
}

pub(crate) struct Section<'a> {
    pub(crate) name: &'a str,
    kind: u32,
    offset: usize,
    pub(crate) size: usize,
    link: usize,
    pub(crate) info: u32,
}

pub(crate) struct Symbol<'a> {
    pub(crate) name: &'a str,
    pub(crate) section: usize,
    pub(crate) size: usize,
    pub(crate) entry: bool,
    pub(crate) object: bool,
}

impl<'a> Elf<'a> {
    pub(crate) fn read(file: &'a [u8]) -> Option<Self> {
        if !file.starts_with(b"\x7fELF") {
            return None;
        }
        let table = u64_at(file, 0x28)? as usize;
        let entry = u16_at(file, 0x3a)? as usize;
        let count = u16_at(file, 0x3c)? as usize;
        let names = u16_at(file, 0x3e)? as usize;
        let raw = |index: usize| file.get(table.checked_add(index.checked_mul(entry)?)?..);
        let names_at = u64_at(raw(names)?, 0x18)? as usize;
        let mut sections = Vec::new();
        for index in 0..count {
            let header = raw(index)?;
            sections.push(Section {
                name: text_at(file, names_at.checked_add(u32_at(header, 0)? as usize)?)?,
                kind: u32_at(header, 4)?,
                offset: u64_at(header, 0x18)? as usize,
                size: u64_at(header, 0x20)? as usize,
                link: u32_at(header, 0x28)? as usize,
                info: u32_at(header, 0x2c)?,
            });
        }
        let mut elf = Self {
            file,
            sections,
            symbols: Vec::new(),
        };
        elf.symbols = elf.read_symbols();
        Some(elf)
    }

    fn read_symbols(&self) -> Vec<Symbol<'a>> {
        const SYMBOLS: u32 = 2;
        let mut symbols = Vec::new();
        for section in self
            .sections
            .iter()
            .filter(|section| section.kind == SYMBOLS)
        {
            let Some(strings) = self.sections.get(section.link) else {
                continue;
            };
            for raw in self.bytes(section).chunks_exact(24) {
                let name = u32_at(raw, 0).map_or(0, |offset| offset as usize);
                let Some(name) = text_at(self.file, strings.offset.saturating_add(name)) else {
                    continue;
                };
                symbols.push(Symbol {
                    name,
                    section: u16_at(raw, 6).unwrap_or(0) as usize,
                    size: u64_at(raw, 16).unwrap_or(0) as usize,
                    object: raw[4] & 0xf == 1,
                    entry: raw[4] & 0xf == 2 && raw[5] & 0x10 != 0,
                });
            }
        }
        symbols
    }

    pub(crate) fn bytes(&self, section: &Section<'_>) -> &'a [u8] {
        let end = section.offset.saturating_add(section.size);
        self.file.get(section.offset..end).unwrap_or(&[])
    }
}

fn text_at(bytes: &[u8], at: usize) -> Option<&str> {
    let rest = bytes.get(at..)?;
    let end = rest.iter().position(|&byte| byte == 0)?;
    std::str::from_utf8(rest.get(..end)?).ok()
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(
        bytes.get(at..at.checked_add(2)?)?.try_into().ok()?,
    ))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(
        bytes.get(at..at.checked_add(4)?)?.try_into().ok()?,
    ))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(
        bytes.get(at..at.checked_add(8)?)?.try_into().ok()?,
    ))
}
