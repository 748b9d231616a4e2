//! Rules: modules and libraries. What one takes of the device is estimated from its image, reserved
//! before it is loaded, and settled with the contexts to what NVML or the host measures.

use core::ffi::{CStr, c_char, c_void};

use cuda_api::CuResult;
use vgpu_abi::region::{Charge, Kind};

use crate::books::{self, Books, Place, books, mapped, size};
use crate::border;
use crate::guest::Verdict;
use crate::ledger::Part;
use crate::map::{Entry, Space};
use crate::memory::Address;

/// A module about to be loaded.
#[derive(Clone, Copy)]
pub(crate) struct Loading {
    charge: Charge,
    owner: u64,
}

/// A module about to go.
#[derive(Clone, Copy)]
pub(crate) struct Unloading {
    number: u64,
    entry: Entry,
}

pub(crate) fn before_load_data(call: &str, image: *const c_void) -> Verdict<Loading> {
    let books = books!(Context);
    if image.is_null() {
        return Verdict::Pass;
    }
    reserve(&books, call, border::image_bytes(image))
}

pub(crate) fn before_load_file(call: &str, path: *const c_char) -> Verdict<Loading> {
    let books = books!(Context);
    let Some(path) = border::text(path) else {
        return Verdict::Pass;
    };
    reserve(&books, call, file_bytes(path))
}

fn file_bytes(path: &CStr) -> u64 {
    // SAFETY: a C struct of numbers, for which all zeros is a value.
    let mut file: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: a C string, and room for one stat.
    let asked = unsafe { libc::stat(path.as_ptr(), &raw mut file) };
    if asked == 0 {
        file.st_size.unsigned_abs()
    } else {
        0
    }
}

fn reserve(books: &Books, call: &str, image: u64) -> Verdict<Loading> {
    let (device, owner) = match books.here() {
        Place::Device { device, owner } => (device, owner),
        Place::Elsewhere => return Verdict::Pass,
        Place::Denied => return Verdict::Refuse(CuResult::NOT_PERMITTED),
    };
    match books.reserve_overhead(call, device, mapped(image.max(1))) {
        Ok(charge) => Verdict::Call(Loading { charge, owner }),
        Err(result) => Verdict::Refuse(result),
    }
}

pub(crate) fn after_load<A: Address>(loading: Loading, result: CuResult, out: *mut A) {
    loaded(loading, result, out, loading.owner);
}

/// A library belongs to no context.
pub(crate) fn after_load_library<A: Address>(loading: Loading, result: CuResult, out: *mut A) {
    loaded(loading, result, out, 0);
}

fn loaded<A: Address>(loading: Loading, result: CuResult, out: *mut A, owner: u64) {
    let Some(books) = books::opened() else { return };
    let charge = loading.charge;
    let Some(module) = border::read(out).filter(|_| result == CuResult::SUCCESS) else {
        return books.refund(charge);
    };
    books.confirm(charge, Kind::Module);
    books
        .ledger()
        .add_overhead(charge.device(), Part::Module, charge.bytes());
    let entry = Entry {
        bytes: charge.bytes(),
        owner,
        device: u8::try_from(charge.device()).unwrap_or(u8::MAX),
        ..Entry::default()
    };
    books
        .ledger()
        .map
        .put(Space::Module, module.number(), entry);
}

pub(crate) fn before_unload(module: impl Address) -> Verdict<Unloading> {
    let books = books!(Context);
    let number = module.number();
    match books.ledger().map.take(Space::Module, number) {
        Some(entry) => Verdict::Call(Unloading { number, entry }),
        None => Verdict::Pass,
    }
}

pub(crate) fn after_unload(unloading: Unloading, result: CuResult) {
    let Some(books) = books::opened() else { return };
    let Unloading { number, entry } = unloading;
    if result == CuResult::SUCCESS {
        let device = usize::from(entry.device);
        books
            .ledger()
            .drop_overhead(books.container, device, Part::Module, entry.bytes);
    } else {
        books.ledger().map.put(Space::Module, number, entry);
    }
}

/// How long an image of this header says that it is; `None` for text.
pub(crate) fn image_size(header: &[u8; 64]) -> Option<u64> {
    let word = |at: usize, bytes: usize| {
        let field = header.get(at..at + bytes)?;
        Some(
            field
                .iter()
                .rev()
                .fold(0u64, |value, &byte| value << 8 | u64::from(byte)),
        )
    };
    match word(0, 4)? {
        // A fat binary: the header's length and what follows it.
        0xba55_ed50 => Some(word(6, 2)?.saturating_add(word(8, 8)?)),
        // ELF: its section table comes last.
        0x464c_457f => Some(word(40, 8)?.saturating_add(word(58, 2)? * word(60, 2)?)),
        _ => None,
    }
}

/// The most that a text is read for its end.
pub(crate) const LONGEST_TEXT: usize = 1 << 30;

/// As [`size`], for the border.
pub(crate) fn text_size(bytes: usize) -> u64 {
    size(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_tells_its_own_size() {
        let mut elf = [0u8; 64];
        elf[..4].copy_from_slice(b"\x7fELF");
        elf[40..42].copy_from_slice(&0x1000u16.to_le_bytes());
        elf[58] = 64;
        elf[60] = 10;
        let mut fat = [0u8; 64];
        fat[..4].copy_from_slice(&0xba55_ed50u32.to_le_bytes());
        fat[6] = 16;
        fat[8..10].copy_from_slice(&5000u16.to_le_bytes());

        assert_eq!(image_size(&elf), Some(0x1000 + 640));
        assert_eq!(image_size(&fat), Some(5016));
        assert_eq!(image_size(&[b'.'; 64]), None);
    }
}
