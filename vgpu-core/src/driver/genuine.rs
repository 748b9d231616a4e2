//! The real functions of the CUDA driver and of NVML, found once by walking the ELF symbols of the
//! genuine libraries (never by `dlsym`, never one of our own). A function that the installed driver
//! lacks answers "not found"; nothing here decides anything about a call.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::base::elf::{self, LoadedObject};
use crate::base::loader;

/// A library of the vendor: how to know it, and where its functions are kept.
pub(crate) struct VendorLibrary {
    /// The beginning of its file name or soname.
    stem: &'static [u8],
    /// The name to load it by, when a hook is called before the program has loaded it.
    soname: &'static CStr,
    /// A function that only the library itself has (an interposer may define others).
    proof: &'static CStr,
    /// Names of `real`, in the same order.
    names: &'static [&'static CStr],
    /// Addresses in the genuine library; null: not exported, or not looked up yet.
    real: &'static [AtomicPtr<c_void>],
    /// Addresses of functions that the library does not export, as it gave them itself
    /// (`cuGetProcAddress`); null: it gave none.
    given: &'static [AtomicPtr<c_void>],
    /// 0 unknown, 1 found and `real` filled.
    state: AtomicU32,
}

/// Only our own libraries define it, whatever their file is called. Its value is the version of the region
/// that this library reads, for tools that look at the file.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(
    test,
    allow(dead_code, reason = "found by its name, which tests do not export")
)]
pub(crate) static VGPU_LIBRARY_MARKER: u32 = vgpu_abi::layout::REGION_VERSION;

const MARKER: &CStr = c"VGPU_LIBRARY_MARKER";

/// Another copy of the library that was loaded before this one into the same namespace: a preload, while this copy is
/// the overlay under the driver's name. It charges, and we hand every call on to it.
pub(crate) fn elder() -> Option<LoadedObject> {
    let first = elf::first(|object| object.find(MARKER).is_some().then_some(*object))?;
    (!loader::is_ours(&first)).then_some(first)
}

impl VendorLibrary {
    /// Is the genuine library loaded? Looks for it when it was not there the last time.
    pub(crate) fn is_loaded(&self) -> bool {
        // Acquire: the addresses were stored before the state.
        self.state.load(Ordering::Acquire) == 1 || self.search()
    }

    /// The genuine library, loaded if need be. False when there is none on this machine.
    pub(crate) fn ensure(&self) -> bool {
        if self.is_loaded() {
            return true;
        }
        loader::load(self.soname, libc::RTLD_LAZY | libc::RTLD_LOCAL);
        self.search()
    }

    #[cold]
    fn search(&self) -> bool {
        let found = self.listed().or_else(|| self.beneath_us());
        if let Some(object) = found {
            self.take(&object);
        }
        found.is_some()
    }

    /// The genuine library among the loaded objects, once it is loaded.
    fn listed(&self) -> Option<LoadedObject> {
        let listed = || elf::first(|object| self.is_genuine(object).then_some(*object));
        loader::keep_loaded(&listed()?);
        // The load of another thread may have failed.
        listed()
    }

    /// The path of the genuine library's file, as the loader names it.
    pub(crate) fn file(&self) -> Option<Vec<u8>> {
        // Not copied within the search, which holds a lock of the loader.
        let object = elf::first(|object| self.is_genuine(object).then_some(*object))?;
        object.path().map(<[u8]>::to_vec)
    }

    /// As an overlay under the driver's own name, this library is linked to the driver by its path. A static
    /// program's loader shows no more than that.
    fn beneath_us(&self) -> Option<LoadedObject> {
        let ourselves = loader::ourselves()?;
        let path = ourselves.needed(|name| {
            let file = name.to_bytes().rsplit(|&byte| byte == b'/').next();
            file.is_some_and(|file| file.starts_with(self.stem))
        })?;
        let library = loader::load(path, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        let object = elf::holding(loader::look_up(library, self.proof))?;
        self.is_genuine(&object).then_some(object)
    }

    /// Whether this object is the vendor's library (and not a copy of this library under its name).
    fn is_genuine(&self, object: &LoadedObject) -> bool {
        object.is_called(self.stem)
            && object.find(self.proof).is_some()
            && object.find(MARKER).is_none()
    }

    /// Keeps the addresses of all functions that we may call: an elder copy's where it has a hook, and
    /// only of those that the library has. It is loaded, and stays so ([`loader::keep_loaded`], or because we depend on it).
    fn take(&self, object: &LoadedObject) {
        let elder = elder();
        for (name, slot) in self.names.iter().zip(self.real) {
            let genuine = object.find(name);
            let hook = || elder.as_ref()?.find(name);
            let address = genuine.map(|genuine| hook().unwrap_or(genuine));
            let address = address.unwrap_or(core::ptr::null_mut());
            // Relaxed: the state below publishes it.
            slot.store(address, Ordering::Relaxed);
        }
        // Release: a thread that sees the state sees the addresses.
        self.state.store(1, Ordering::Release);
    }

    /// Whether this address, which the loader gave for a name that this library exports, belongs to the genuine
    /// library. One that lives in another `dlmopen` namespace counts, and is taken if we have no other.
    pub(crate) fn owns(&self, row: usize, address: *mut c_void) -> bool {
        if self.is_loaded() && self.address(row) == address {
            return true;
        }
        let Some(object) = elf::holding(address) else {
            return false;
        };
        if !self.is_genuine(&object) {
            return false;
        }
        // Acquire: see `is_loaded`.
        if self.state.load(Ordering::Acquire) == 0 {
            loader::keep_loaded(&object);
            self.take(&object);
        }
        true
    }

    /// The genuine function of this row; null when the installed library lacks it.
    #[inline]
    pub(crate) fn address(&self, row: usize) -> *mut c_void {
        // Relaxed: an address is all there is to see.
        self.real
            .get(row)
            .map_or(core::ptr::null_mut(), |slot| slot.load(Ordering::Relaxed))
    }

    /// The library itself gave this address for the function of this row. It counts where the library
    /// does not export the function.
    pub(crate) fn keep_given(&self, row: usize, address: *mut c_void) {
        if let Some(slot) = self.given.get(row) {
            // Release: code that finds the address in another table then finds it here, too.
            slot.store(address, Ordering::Release);
        }
    }

    #[cold]
    #[inline(never)]
    fn look_up(&self, row: usize) -> *mut c_void {
        // Acquire: see `is_loaded`.
        if self.state.load(Ordering::Acquire) != 1 && !self.ensure() {
            return core::ptr::null_mut();
        }
        let exported = self.address(row);
        if !exported.is_null() {
            return exported;
        }
        // Acquire: see `keep_given`.
        self.given
            .get(row)
            .map_or(core::ptr::null_mut(), |slot| slot.load(Ordering::Acquire))
    }
}

/// From the rows of `cuda_api`: the type of each function, its row number, and a caller for it.
macro_rules! real_functions {
    (
        library: $library:expr, returns: $ret:ty, missing: $missing:expr;
        $($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?);)*
    ) => {
        /// Type of each function, for comparison with the hook of that name.
        #[allow(non_camel_case_types, dead_code, reason = "named as in C; not every row has a hook")]
        pub(crate) mod signature {
            use super::*;
            $(pub(crate) type $name = unsafe extern "C-unwind" fn($($ty),*) -> $ret;)*
        }

        #[allow(non_camel_case_types, dead_code, reason = "named as in C; not every row is called")]
        #[derive(Clone, Copy)]
        #[repr(usize)]
        pub(crate) enum Row { $($name,)* }

        const NAMES: &[&CStr] = &[$(crate::driver::genuine::c_name(concat!(stringify!($name), "\0")),)*];
        static REAL: [AtomicPtr<c_void>; NAMES.len()] =
            [const { AtomicPtr::new(core::ptr::null_mut()) }; NAMES.len()];
        static GIVEN: [AtomicPtr<c_void>; NAMES.len()] =
            [const { AtomicPtr::new(core::ptr::null_mut()) }; NAMES.len()];

        /// For each row the genuine function, or `None` while its address was not looked up or the library lacks it. A hook
        /// that passes a call on unchanged asks here, since it must not call the code that looks an address up.
        #[allow(non_snake_case, dead_code, reason = "named as in C; few hooks pass calls on unchanged")]
        #[allow(clippy::indexing_slicing, reason = "a row's own number: one beyond the array does not compile")]
        pub(crate) mod known {
            use super::*;
            $(
                #[inline(always)]
                pub(crate) fn $name() -> Option<signature::$name> {
                    // Relaxed: an address is all there is to see.
                    let real = REAL[Row::$name as usize].load(core::sync::atomic::Ordering::Relaxed);
                    // SAFETY: null, or the library exports this name with this signature (see the table).
                    unsafe { core::mem::transmute::<*mut c_void, Option<signature::$name>>(real) }
                }
            )*
        }

        $(
            /// The genuine function.
            ///
            /// # Safety
            /// As the C function. The caller of a hook vouches for its arguments.
            #[allow(non_snake_case, dead_code, reason = "named as in C; not every row is called")]
            #[allow(clippy::too_many_arguments, reason = "the C signature")]
            #[inline]
            pub(crate) unsafe fn $name($($arg: $ty),*) -> $ret {
                let mut real = $library.address(Row::$name as usize);
                if real.is_null() {
                    real = $library.look_up(Row::$name as usize);
                    if real.is_null() {
                        return $missing;
                    }
                }
                // SAFETY: the library exports this name with this signature (see the table).
                let real = unsafe {
                    core::mem::transmute::<*mut c_void, signature::$name>(real)
                };
                // SAFETY: the caller's arguments, as it passed them.
                unsafe { real($($arg),*) }
            }
        )*
    };
}

/// A name with its zero as a C string; a compile error without one.
pub(crate) const fn c_name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a symbol's name has no zero inside"),
    }
}

/// The CUDA driver, `libcuda.so.1`.
pub(crate) mod cuda {
    #[allow(
        clippy::wildcard_imports,
        reason = "the rows name most types of the crate"
    )]
    use cuda_api::*;

    use super::{AtomicPtr, AtomicU32, CStr, VendorLibrary, c_void};

    /// Where its functions are.
    pub(crate) static LIBRARY: VendorLibrary = VendorLibrary {
        stem: b"libcuda.so",
        soname: c"libcuda.so.1",
        proof: c"cuInit",
        names: NAMES,
        real: &REAL,
        given: &GIVEN,
        state: AtomicU32::new(0),
    };

    macro_rules! rows {
        ($($rows:tt)*) => {
            real_functions! {
                library: LIBRARY, returns: CuResult, missing: missing();
                $($rows)*
            }
        };
    }
    cuda_api::driver_functions!(rows);

    /// A driver that lacks the function says so; without a driver, the answer is that of the
    /// vendor's stub library.
    #[cold]
    fn missing() -> CuResult {
        if LIBRARY.is_loaded() {
            CuResult::NOT_FOUND
        } else {
            CuResult::STUB_LIBRARY
        }
    }
}

/// NVML, `libnvidia-ml.so.1`.
pub(crate) mod nvml {
    #[allow(
        clippy::wildcard_imports,
        reason = "the rows name most types of the module"
    )]
    use cuda_api::nvml::*;

    use super::{AtomicPtr, AtomicU32, CStr, VendorLibrary};

    /// Where its functions are.
    pub(crate) static LIBRARY: VendorLibrary = VendorLibrary {
        stem: b"libnvidia-ml.so",
        soname: c"libnvidia-ml.so.1",
        proof: c"nvmlInit_v2",
        names: NAMES,
        real: &REAL,
        given: &GIVEN,
        state: AtomicU32::new(0),
    };

    macro_rules! rows {
        ($($rows:tt)*) => {
            real_functions! {
                library: LIBRARY, returns: NvmlReturn, missing: missing();
                $($rows)*
            }
        };
    }
    cuda_api::nvml_functions!(rows);

    #[cold]
    fn missing() -> NvmlReturn {
        if LIBRARY.is_loaded() {
            NvmlReturn::FUNCTION_NOT_FOUND
        } else {
            NvmlReturn::LIBRARY_NOT_FOUND
        }
    }
}
