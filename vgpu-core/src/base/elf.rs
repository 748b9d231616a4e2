//! Symbols of loaded objects, read from their ELF tables. Never asks `dlsym` (which we replace), never
//! allocates, never keeps a pointer into an object that may be unloaded for longer than its caller.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ops::Range;

use crate::base::walks::WALKS;

const DT_NULL: i64 = 0;
const DT_NEEDED: i64 = 1;
const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_SONAME: i64 = 14;
const DT_VERSYM: i64 = 0x6fff_fff0;
const DT_GNU_HASH: i64 = 0x6fff_fef5;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;

/// Set in a symbol's version when only the symbols that ask for that very version bind to it.
const VERSION_HIDDEN: u16 = 0x8000;
const STT_GNU_IFUNC: u8 = 10;

#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
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

/// One loaded object. Plain addresses: right for as long as the object stays loaded.
#[derive(Clone, Copy)]
pub(crate) struct LoadedObject {
    base: usize,
    start: usize,
    end: usize,
    symbols: *const Symbol,
    strings: *const c_char,
    gnu_hash: *const u32,
    sysv_hash: *const u32,
    versions: *const u16,
    soname: *const c_char,
    path: *const c_char,
    dynamic: *const Dynamic,
}

impl LoadedObject {
    /// The fields that the loader lists for us: base, name, program headers.
    ///
    /// # Safety
    /// `info` comes from `dl_iterate_phdr`, and its object stays loaded meanwhile.
    unsafe fn from_phdr(info: &libc::dl_phdr_info) -> Option<Self> {
        let base = usize::try_from(info.dlpi_addr).ok()?;
        // SAFETY: the loader gives as many headers as it counts.
        let headers =
            unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        // SAFETY: the caller vouches for the object, and these are its headers.
        unsafe { Self::from_headers(base, headers, info.dlpi_name) }
    }

    /// The object whose ELF header is mapped at `base`, in whichever namespace.
    ///
    /// # Safety
    /// `base` is `dli_fbase` of a loaded object, which stays loaded meanwhile.
    pub(crate) unsafe fn at(base: *const c_void, path: *const c_char) -> Option<Self> {
        let header = base.cast::<libc::Elf64_Ehdr>();
        // SAFETY: an object's first mapped page begins with its ELF header.
        let header = unsafe { header.read_unaligned() };
        if header.e_ident.get(..4)? != b"\x7fELF" {
            return None;
        }
        let first = base
            .cast::<u8>()
            .wrapping_add(usize::try_from(header.e_phoff).ok()?)
            .cast::<libc::Elf64_Phdr>();
        // SAFETY: the program headers lie in the same first page (the loader read them there).
        let headers = unsafe { core::slice::from_raw_parts(first, usize::from(header.e_phnum)) };
        let lowest = headers
            .iter()
            .find(|header| header.p_type == PT_LOAD)?
            .p_vaddr;
        let bias = (base as usize).wrapping_sub(usize::try_from(lowest).ok()?);
        // SAFETY: as this function's caller vouches.
        unsafe { Self::from_headers(bias, headers, path) }
    }

    /// # Safety
    /// `base` and `headers` are those of an object that stays loaded meanwhile.
    unsafe fn from_headers(
        base: usize,
        headers: &[libc::Elf64_Phdr],
        path: *const c_char,
    ) -> Option<Self> {
        let mut object = Self {
            base,
            start: usize::MAX,
            end: 0,
            symbols: core::ptr::null(),
            strings: core::ptr::null(),
            gnu_hash: core::ptr::null(),
            sysv_hash: core::ptr::null(),
            versions: core::ptr::null(),
            soname: core::ptr::null(),
            path,
            dynamic: core::ptr::null(),
        };
        let mut dynamic: *const Dynamic = core::ptr::null();
        for header in headers {
            let address = base.wrapping_add(usize::try_from(header.p_vaddr).ok()?);
            if header.p_type == PT_LOAD {
                let size = usize::try_from(header.p_memsz).ok()?;
                object.start = object.start.min(address);
                object.end = object.end.max(address.wrapping_add(size));
            } else if header.p_type == PT_DYNAMIC {
                dynamic = core::ptr::with_exposed_provenance(address);
            }
        }
        if dynamic.is_null() {
            return None;
        }
        object.dynamic = dynamic;
        let within = object.start..object.end;
        let mut soname_offset = None;
        loop {
            // SAFETY: the dynamic section ends with DT_NULL, and we stop there.
            let entry = unsafe { dynamic.read() };
            let value = usize::try_from(entry.value).ok()?;
            let address = located(value, base, &within).unwrap_or_default();
            match entry.tag {
                DT_NULL => break,
                DT_SYMTAB => object.symbols = core::ptr::with_exposed_provenance(address),
                DT_STRTAB => object.strings = core::ptr::with_exposed_provenance(address),
                DT_GNU_HASH => object.gnu_hash = core::ptr::with_exposed_provenance(address),
                DT_HASH => object.sysv_hash = core::ptr::with_exposed_provenance(address),
                DT_VERSYM => object.versions = core::ptr::with_exposed_provenance(address),
                DT_SONAME => soname_offset = Some(value),
                _ => {}
            }
            dynamic = dynamic.wrapping_add(1);
        }
        // Also if it lies in none of the object's segments.
        if object.symbols.is_null() || object.strings.is_null() {
            return None;
        }
        if let Some(offset) = soname_offset {
            object.soname = object.strings.wrapping_add(offset);
        }
        Some(object)
    }

    /// Does this address lie in the object?
    pub(crate) fn holds(&self, address: usize) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// The name that others link to it by, if it has one.
    pub(crate) fn soname(&self) -> Option<&CStr> {
        // SAFETY: a string of the object's own string table, which ends in a zero.
        (!self.soname.is_null()).then(|| unsafe { CStr::from_ptr(self.soname) })
    }

    /// The path that it was loaded from.
    pub(crate) fn path(&self) -> Option<&[u8]> {
        // SAFETY: the loader's name of the object, which ends in a zero.
        (!self.path.is_null()).then(|| unsafe { CStr::from_ptr(self.path) }.to_bytes())
    }

    /// The last part of the path that it was loaded from.
    pub(crate) fn file_name(&self) -> Option<&[u8]> {
        self.path()?.rsplit(|&byte| byte == b'/').next()
    }

    /// Is it called `stem` or `stem.<anything>` (`libcuda.so`, `libcuda.so.550.163.01`)?
    pub(crate) fn is_called(&self, stem: &[u8]) -> bool {
        let matches = |name: &[u8]| {
            name.strip_prefix(stem)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"."))
        };
        self.soname().is_some_and(|name| matches(name.to_bytes()))
            || self.file_name().is_some_and(matches)
    }

    /// The first of the libraries that it was linked to, as it names them, for which `is_it` holds.
    pub(crate) fn needed(&self, is_it: impl Fn(&CStr) -> bool) -> Option<&CStr> {
        let mut dynamic = self.dynamic;
        loop {
            // SAFETY: the dynamic section ends with DT_NULL, and we stop there.
            let entry = unsafe { dynamic.read() };
            match entry.tag {
                DT_NULL => return None,
                DT_NEEDED => {
                    let name = self.text(u32::try_from(entry.value).ok()?)?;
                    if is_it(name) {
                        return Some(name);
                    }
                }
                _ => {}
            }
            dynamic = dynamic.wrapping_add(1);
        }
    }

    /// Address of a function or variable that this object defines, by its whole name. Of several
    /// versions the one that new programs bind to.
    pub(crate) fn find(&self, name: &CStr) -> Option<*mut c_void> {
        let mut hidden = None;
        let mut found = None;
        self.each_index(name, |index| {
            let symbol = self.symbols.wrapping_add(index);
            // SAFETY: the hash table only names indices of the symbol table.
            let symbol = unsafe { symbol.read() };
            if symbol.section == 0
                || symbol.value == 0
                || symbol.info & 0xf == STT_GNU_IFUNC
                || self.text(symbol.name) != Some(name)
            {
                return false;
            }
            let address = self
                .base
                .wrapping_add(usize::try_from(symbol.value).unwrap_or(0));
            if self.is_hidden(index) {
                hidden = Some(address);
                return false;
            }
            found = Some(address);
            true
        });
        found.or(hidden).map(core::ptr::with_exposed_provenance_mut)
    }

    fn text(&self, offset: u32) -> Option<&CStr> {
        let start = self.strings.wrapping_add(usize::try_from(offset).ok()?);
        // SAFETY: symbol names are offsets into the string table, each ending in a zero.
        Some(unsafe { CStr::from_ptr(start) })
    }

    fn is_hidden(&self, index: usize) -> bool {
        if self.versions.is_null() {
            return false;
        }
        // SAFETY: the version table has one entry for each symbol.
        let version = unsafe { self.versions.wrapping_add(index).read() };
        version & VERSION_HIDDEN != 0
    }

    /// Calls `stop` with the index of each symbol whose hash fits, until it says true.
    fn each_index(&self, name: &CStr, stop: impl FnMut(usize) -> bool) {
        if !self.gnu_hash.is_null() {
            self.walk_gnu(name, stop);
        } else if !self.sysv_hash.is_null() {
            self.walk_sysv(name, stop);
        }
    }

    fn walk_gnu(&self, name: &CStr, mut stop: impl FnMut(usize) -> bool) {
        let word = |index: usize| {
            // SAFETY: the table's header says how far it reaches, and we follow only what it says.
            let word = unsafe { self.gnu_hash.wrapping_add(index).read() };
            word as usize
        };
        let (buckets, first, bloom_words, shift) = (word(0), word(1), word(2), word(3));
        if buckets == 0 || bloom_words == 0 {
            return;
        }
        let hash = gnu_hash(name.to_bytes());
        let bloom = self.gnu_hash.wrapping_add(4).cast::<u64>();
        // SAFETY: the filter has as many words as its header says.
        let filter = unsafe {
            bloom
                .wrapping_add((hash as usize / 64) % bloom_words)
                .read()
        };
        let second = (hash as usize)
            .checked_shr(u32::try_from(shift).unwrap_or(0))
            .unwrap_or(0);
        if filter >> (hash % 64) & filter >> (second % 64) & 1 == 0 {
            return;
        }
        let table = 4 + bloom_words * 2;
        let mut index = word(table + hash as usize % buckets);
        if index < first {
            return;
        }
        loop {
            let entry = word(table + buckets + index - first);
            if entry | 1 == hash as usize | 1 && stop(index) {
                return;
            }
            if entry & 1 == 1 {
                return;
            }
            index += 1;
        }
    }

    fn walk_sysv(&self, name: &CStr, mut stop: impl FnMut(usize) -> bool) {
        let word = |index: usize| {
            // SAFETY: the table's header says how far it reaches, and we follow only what it says.
            let word = unsafe { self.sysv_hash.wrapping_add(index).read() };
            word as usize
        };
        let buckets = word(0);
        if buckets == 0 {
            return;
        }
        let mut index = word(2 + sysv_hash(name.to_bytes()) as usize % buckets);
        while index != 0 {
            if stop(index) {
                return;
            }
            index = word(2 + buckets + index);
        }
    }
}

/// The address of one of an object's tables. `value` is the table's entry in the dynamic section, and `within` the range
/// of the object's segments. glibc adds the object's base to the entry; musl does not. No loader adds it for the vdso,
/// and a kernel may link the vdso to any address. `None` if neither the entry nor the entry plus the base lies in `within`.
fn located(value: usize, base: usize, within: &Range<usize>) -> Option<usize> {
    let moved = value.wrapping_add(base);
    [value, moved]
        .into_iter()
        .find(|address| within.contains(address))
}

fn gnu_hash(name: &[u8]) -> u32 {
    name.iter().fold(5381, |hash, &byte| {
        hash.wrapping_mul(33).wrapping_add(u32::from(byte))
    })
}

fn sysv_hash(name: &[u8]) -> u32 {
    name.iter().fold(0u32, |hash, &byte| {
        let hash = (hash << 4).wrapping_add(u32::from(byte));
        let high = hash & 0xf000_0000;
        (hash ^ high >> 24) & !high
    })
}

/// The first loaded object for which `choose` gives something, with what it gave. Objects come in
/// the order of loading; those of other `dlmopen` namespaces do not come.
pub(crate) fn first<T, F: FnMut(&LoadedObject) -> Option<T>>(choose: F) -> Option<T> {
    struct Search<T, F> {
        choose: F,
        found: Option<T>,
    }
    extern "C" fn visit<T, F: FnMut(&LoadedObject) -> Option<T>>(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        data: *mut c_void,
    ) -> c_int {
        // SAFETY: the pointer that we hand to dl_iterate_phdr below, used by nothing else meanwhile.
        let search = unsafe { &mut *data.cast::<Search<T, F>>() };
        // SAFETY: the loader's own description of an object, valid during the visit.
        let info = unsafe { &*info };
        // SAFETY: the loader holds its lock, so the object stays loaded during the visit.
        if let Some(object) = unsafe { LoadedObject::from_phdr(info) } {
            search.found = (search.choose)(&object);
        }
        c_int::from(search.found.is_some())
    }
    let mut search = Search {
        choose,
        found: None,
    };
    let _walk = WALKS.begin();
    // SAFETY: `visit` has the signature that it is called with, and `search` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit::<T, F>), (&raw mut search).cast()) };
    search.found
}

/// The object that an address belongs to, whichever namespace it was loaded into.
pub(crate) fn holding(address: *const c_void) -> Option<LoadedObject> {
    // SAFETY: a C struct of pointers, for which all zeros is a value.
    let mut info: libc::Dl_info = unsafe { core::mem::zeroed() };
    // SAFETY: dladdr takes any address and fills the struct when it knows it.
    if unsafe { libc::dladdr(address, &raw mut info) } == 0 || info.dli_fbase.is_null() {
        return None;
    }
    // SAFETY: the loader gave this base for an object that holds the address.
    unsafe { LoadedObject::at(info.dli_fbase, info.dli_fname) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vdso of Linux in user mode: linked to an address near the top, which no loader relocates.
    #[test]
    fn a_table_is_found_whether_or_not_the_loader_has_added_the_base() {
        let relocated = located(0x7000_0250, 0x7000_0000, &(0x7000_0000..0x7000_2000));
        let as_in_the_file = located(0x250, 0x7000_0000, &(0x7000_0000..0x7000_2000));
        let fixed = located(0x40_0250, 0, &(0x40_0000..0x40_2000));
        let linked_high = located(
            0xffff_ffff_ff70_0250,
            0x7f_bfff_f000_usize.wrapping_sub(0xffff_ffff_ff70_0000),
            &(0x7f_bfff_f000..0x7f_c000_0000),
        );
        let elsewhere = located(0x9000_0000, 0x7000_0000, &(0x7000_0000..0x7000_2000));

        assert_eq!(relocated, Some(0x7000_0250));
        assert_eq!(as_in_the_file, Some(0x7000_0250));
        assert_eq!(fixed, Some(0x40_0250));
        assert_eq!(linked_high, Some(0x7f_bfff_f250));
        assert_eq!(elsewhere, None);
    }

    #[test]
    fn finds_what_dlsym_finds() {
        for name in [c"malloc", c"getpid", c"pthread_create"] {
            let found = first(|object| {
                object
                    .is_called(b"libc.so")
                    .then(|| object.find(name))
                    .flatten()
            });

            // SAFETY: a lookup by name in the global scope.
            let expected = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            assert_eq!(found, Some(expected), "{name:?}");
        }
    }

    #[test]
    fn finds_nothing_that_is_not_defined() {
        let found = first(|object| object.find(c"no_library_has_this_name"));

        assert_eq!(found, None);
    }

    #[test]
    fn an_address_leads_to_the_object_that_holds_it() {
        let object = holding(libc::getpid as *const c_void).unwrap();

        assert!(object.is_called(b"libc.so"));
        assert_eq!(object.find(c"getpid"), Some(libc::getpid as *mut c_void));
    }
}
