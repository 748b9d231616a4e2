//! The genuine functions of the loader: where they are, and calling them. Exact names only. Allocates nothing and
//! takes no lock of the library, since an allocator may be the caller.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::base::elf::{self, LoadedObject};

pub(crate) type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
pub(crate) type Dlvsym =
    unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;
pub(crate) type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

/// A function of the loader: its name, the genuine one, and the library's.
pub(crate) struct Genuine {
    pub(crate) name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Genuine {
    const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            address: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// Its address; null where the C library lacks it.
    pub(crate) fn get(&self) -> *mut c_void {
        // Relaxed: the address publishes nothing else, and every thread finds the same one.
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        let found = elf::first(|object| {
            (is_libc(object) && !is_ours(object))
                .then(|| object.find(self.name))
                .flatten()
        });
        // In a static program's dlopen the loader lists nothing to us, but knows addresses.
        let found = found.or_else(|| elf::holding(libc::getpid as *const c_void)?.find(self.name));
        let found = found.unwrap_or(core::ptr::null_mut());
        // Relaxed: as above.
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

pub(crate) static DLSYM: Genuine = Genuine::new(c"dlsym");
pub(crate) static DLVSYM: Genuine = Genuine::new(c"dlvsym");
pub(crate) static DLOPEN: Genuine = Genuine::new(c"dlopen");
pub(crate) static DLMOPEN: Genuine = Genuine::new(c"dlmopen");

/// The C library or the part of it that holds the loader's functions: glibc (before and since
/// 2.34), musl.
pub(crate) fn is_libc(object: &LoadedObject) -> bool {
    const STEMS: [&[u8]; 6] = [
        b"libc.so",
        b"libdl.so",
        b"libc.musl-x86_64.so",
        b"ld-musl-x86_64.so",
        b"libc.musl-aarch64.so",
        b"ld-musl-aarch64.so",
    ];
    STEMS.iter().any(|stem| object.is_called(stem))
}

/// Is it the object that this code is in?
pub(crate) fn is_ours(object: &LoadedObject) -> bool {
    object.holds(is_ours as *const () as usize)
}

/// Loads a library with the real `dlopen`, or only looks whether it is there (`RTLD_NOLOAD`).
pub(crate) fn load(name: &CStr, flags: c_int) -> *mut c_void {
    let real = DLOPEN.get();
    if real.is_null() {
        return core::ptr::null_mut();
    }
    // SAFETY: the C library defines dlopen with this signature.
    let real = unsafe { core::mem::transmute::<*mut c_void, Dlopen>(real) };
    // SAFETY: a C string and flags.
    unsafe { real(name.as_ptr(), flags) }
}

/// Before a function of an object is called that a walk has found: waits until another thread has loaded the object, and
/// prevents that it is unloaded. The loader lists an object as soon as it is mapped. Until its addresses are filled in (it
/// is relocated) and its constructors have run, a call of it jumps anywhere. The thread that loads it holds a lock of the
/// loader meanwhile, for which this call waits. An object of another namespace is not found by its name: then this does
/// nothing.
pub(crate) fn keep_loaded(object: &LoadedObject) {
    if let Some(name) = object.soname() {
        load(
            name,
            libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE,
        );
    }
}

/// Looks a name up in a library that `load` gave.
pub(crate) fn look_up(library: *mut c_void, name: &CStr) -> *mut c_void {
    let real = DLSYM.get();
    if real.is_null() || library.is_null() {
        return core::ptr::null_mut();
    }
    // SAFETY: the C library defines dlsym with this signature.
    let real = unsafe { core::mem::transmute::<*mut c_void, Dlsym>(real) };
    // SAFETY: a handle of the loader and a C string.
    unsafe { real(library, name.as_ptr()) }
}

/// The object that this code is in.
pub(crate) fn ourselves() -> Option<LoadedObject> {
    elf::holding(ourselves as *const c_void)
}

/// A function of the C library that older or other ones may lack (so that we must not link to it).
pub(crate) fn libc_function(name: &CStr) -> Option<*mut c_void> {
    // Usually without a walk (see `walks`). Another library may define `getppid`, too; then a walk finds the C library.
    let holder = elf::holding(libc::getppid as *const c_void).filter(is_libc);
    if let Some(found) = holder.and_then(|libc| libc.find(name)) {
        return Some(found);
    }
    elf::first(|object| is_libc(object).then(|| object.find(name)).flatten())
}
