//! Which names the library has: those of the driver that the board has, no newer ones. Decided when the library is
//! loaded.

use std::sync::OnceLock;

use cuda_sim::exports::{self, Wanted};

use crate::exports::SINCE;

/// The driver that this library is.
pub(crate) fn wanted() -> &'static Wanted {
    static WANTED: OnceLock<Wanted> = OnceLock::new();
    WANTED.get_or_init(exports::wanted)
}

/// The CUDA version that first had a function, if known.
fn since(symbol: &str) -> Option<u32> {
    let found = SINCE.binary_search_by(|(name, _)| (*name).cmp(symbol));
    found.ok().map(|index| SINCE[index].1)
}

/// Whether the driver has a function of this exact name.
pub(crate) fn has(symbol: &str) -> bool {
    let wanted = wanted();
    since(symbol).is_none_or(|since| since <= wanted.version) && !wanted.lacks(symbol)
}

/// Whether the library exports a name. `cuGetProcAddress` knows some that no library on Linux exports.
#[cfg(not(test))]
fn exports_name(name: &str) -> bool {
    /// `DRIVER_SYMBOLS` lists the exported names of a driver of this version (12.4).
    const RECORDED: u32 = 12_040;
    let is_recorded = cuda_api::DRIVER_SYMBOLS.binary_search(&name).is_ok();
    let is_newer = since(name).is_some_and(|since| since > RECORDED);
    name.starts_with("vgpu") || has(name) && (is_recorded || is_newer)
}

/// The loader runs this before the program can look up a name of the library.
#[cfg(not(test))]
extern "C" fn loaded() {
    // SAFETY: this library, which is never unloaded; its loader runs this before anything else of it.
    unsafe { exports::hide(loaded as *const (), &mut |name| !exports_name(name)) };
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;
