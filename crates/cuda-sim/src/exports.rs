//! Removes names from the exports of a loaded library: those newer than the board's driver, and those that a test does
//! not want. It changes the list of symbols in this process's memory, so `dlsym` and everything that a linker binds
//! from then on finds exactly the names of that driver.

use std::ffi::{CStr, c_char, c_void};

use crate::lacks::{self, Lacks};
use crate::{Board, Config, config};

/// Which driver the libraries are to be: the board's, where there is one, else as one would be made here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The CUDA version that it reports.
    pub version: u32,
    /// Names that it lacks besides, separated by commas.
    pub missing: String,
    /// Whether it does the opposite of its usual choices.
    pub is_contrary: bool,
    /// The missing parts of its NVML.
    pub nvml: Lacks,
}

/// The driver of this process's board. A process that names missing functions itself is believed.
#[must_use]
pub fn wanted() -> Wanted {
    let of_board = |board: Board| Config {
        driver_version: board.driver_version(),
        missing: board.missing(),
        nvml: board.nvml(),
        contrary: board.is_contrary(),
        ..Config::default()
    };
    let config = match Board::open(&config::board_path()) {
        Ok(board) => of_board(board),
        Err(_) => Config::from_env().unwrap_or_default(),
    };
    let own = |name: &str| std::env::var(name).ok().filter(|own| !own.is_empty());
    let nvml = own("VGPU_SIM_NVML");
    Wanted {
        version: config.driver_version,
        missing: own("VGPU_SIM_MISSING").unwrap_or(config.missing),
        is_contrary: config.contrary,
        nvml: lacks::of(nvml.as_deref(), &config.nvml, config.contrary),
    }
}

impl Wanted {
    /// Whether a name is missing by wish.
    #[must_use]
    pub fn lacks(&self, name: &str) -> bool {
        !self.missing.is_empty() && self.missing.split(',').any(|gone| gone.trim() == name)
    }
}

#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

/// Hides the exports for which `gone` is true, of the library that contains `anchor`; returns their number.
///
/// # Safety
/// The library is loaded and stays so, and nothing else changes its symbols meanwhile.
pub unsafe fn hide(anchor: *const (), gone: &mut dyn FnMut(&str) -> bool) -> usize {
    let mut search = Search {
        anchor: anchor.addr(),
        gone,
        hidden: 0,
    };
    // SAFETY: the function below gets the search that is passed here, while this call lasts.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.hidden
}

struct Search<'a> {
    anchor: usize,
    gone: &'a mut dyn FnMut(&str) -> bool,
    hidden: usize,
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> i32 {
    // SAFETY: the search that `hide` passed.
    let search = unsafe { &mut *data.cast::<Search<'_>>() };
    // SAFETY: the loader's description of a library.
    let info = unsafe { &*info };
    let base = info.dlpi_addr as usize;
    // SAFETY: the loader's list of that library's parts.
    let parts = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let holds = |part: &libc::Elf64_Phdr| {
        let start = base.wrapping_add(part.p_vaddr as usize);
        part.p_type == libc::PT_LOAD
            && (start..start.wrapping_add(part.p_memsz as usize)).contains(&search.anchor)
    };
    if !parts.iter().any(holds) {
        return 0;
    }
    if let Some(dynamic) = parts.iter().find(|part| part.p_type == libc::PT_DYNAMIC) {
        let place = base.wrapping_add(dynamic.p_vaddr as usize);
        // SAFETY: the library's own dynamic section.
        search.hidden = unsafe { change(base, place, search.gone) };
    }
    1
}

/// # Safety
/// `dynamic` is the dynamic section of the library at `base`.
unsafe fn change(base: usize, dynamic: usize, gone: &mut dyn FnMut(&str) -> bool) -> usize {
    const STRINGS: i64 = 5;
    const SYMBOLS: i64 = 6;
    const GNU_HASH: i64 = 0x6fff_fef5;
    let (mut strings, mut symbols, mut hash) = (0, 0, 0);
    let mut entry = std::ptr::with_exposed_provenance::<[i64; 2]>(dynamic);
    loop {
        // SAFETY: the section ends with an entry of kind 0.
        let [kind, value] = unsafe { entry.read() };
        // A loader may have made these addresses, or may have left them as the file has them.
        let value = value as usize;
        let place = if value < base { base + value } else { value };
        match kind {
            0 => break,
            STRINGS => strings = place,
            SYMBOLS => symbols = place,
            GNU_HASH => hash = place,
            _ => {}
        }
        // SAFETY: not the last one.
        entry = unsafe { entry.add(1) };
    }
    if strings == 0 || symbols == 0 || hash == 0 {
        return 0;
    }
    // SAFETY: the library's own table.
    let count = unsafe { symbol_count(hash) };
    if count == 0 {
        return 0;
    }
    let first = std::ptr::with_exposed_provenance_mut::<Symbol>(symbols);
    // SAFETY: a call without memory.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(4096) as usize;
    let start = symbols / page * page;
    let length = (symbols + count * size_of::<Symbol>()).next_multiple_of(page) - start;
    let protect = |protection| {
        let at = std::ptr::with_exposed_provenance_mut::<c_void>(start);
        // SAFETY: pages of the library's own list of symbols, private to this process.
        unsafe { libc::mprotect(at, length, protection) == 0 }
    };
    if !protect(libc::PROT_READ | libc::PROT_WRITE) {
        return 0;
    }
    let mut hidden = 0;
    for index in 0..count {
        // SAFETY: one of the table's entries.
        let place = unsafe { first.add(index) };
        // SAFETY: it is writable now; the loader reads entries one by one.
        let symbol = unsafe { &mut *place };
        if symbol.section == 0 {
            continue;
        }
        let name = std::ptr::with_exposed_provenance::<c_char>(strings + symbol.name as usize);
        // SAFETY: a name in the library's own table.
        let name = unsafe { CStr::from_ptr(name) };
        if name.to_str().is_ok_and(&mut *gone) {
            symbol.section = 0;
            symbol.value = 0;
            hidden += 1;
        }
    }
    // Those pages held nothing but read-only tables.
    protect(libc::PROT_READ);
    hidden
}

/// # Safety
/// `hash` is the GNU hash table of a library.
unsafe fn symbol_count(hash: usize) -> usize {
    let word = |at: usize| {
        // SAFETY: the caller's table, which is as long as its own numbers say.
        unsafe { std::ptr::with_exposed_provenance::<u32>(at).read() }
    };
    let (buckets, first, bloom) = (word(hash), word(hash + 4), word(hash + 8));
    let buckets_at = hash + 16 + bloom as usize * 8;
    let last = (0..buckets as usize)
        .map(|index| word(buckets_at + index * 4))
        .max()
        .unwrap_or(0);
    if last < first {
        return first as usize;
    }
    let chain = buckets_at + buckets as usize * 4;
    let mut index = last;
    while word(chain + (index - first) as usize * 4) & 1 == 0 {
        index += 1;
    }
    index as usize + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_missing_when_they_are_listed() {
        let wanted = Wanted {
            version: 12_040,
            missing: "cuOne, cuTwo".to_owned(),
            is_contrary: false,
            nvml: Lacks::default(),
        };

        assert!(wanted.lacks("cuOne") && wanted.lacks("cuTwo"));
        assert!(!wanted.lacks("cuOn") && !wanted.lacks(""));
    }
}
