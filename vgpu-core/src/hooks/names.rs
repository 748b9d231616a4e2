//! Which of our hooks has a name. Exact names only.

use core::ffi::CStr;

use super::{cuda, nvml};
use crate::driver::genuine::{self, VendorLibrary};
use crate::driver::hook::{Hook, hash};

/// The driver's function of this name that we export, and its library. Exact names only.
pub(crate) fn find(name: &CStr) -> Option<(&'static VendorLibrary, &'static Hook)> {
    let (library, hooks, index): (_, _, &[u16]) = match name.to_bytes() {
        [b'c', b'u', ..] => (&genuine::cuda::LIBRARY, cuda::HOOKS, &cuda::INDEX),
        [b'n', b'v', ..] => (&genuine::nvml::LIBRARY, nvml::HOOKS, &nvml::INDEX),
        _ => return None,
    };
    let mut at = hash(name.to_bytes());
    loop {
        let entry = *index.get(at % index.len())?;
        let hook = hooks.get(usize::from(entry).checked_sub(1)?)?;
        if hook.name == name {
            return Some((library, hook));
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests;
