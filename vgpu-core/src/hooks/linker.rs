//! The ways round the linker: `dlsym` and `dlvsym` give our hook where they would give the genuine
//! driver's function, `dlopen` and `dlmopen` lose the flag that hides us. Exact names only, and only
//! names that the driver has, so "is CUDA here?" gets a true answer. Allocates nothing and takes no lock of the
//! library, since an allocator may be the caller. Everything else goes to the real function.

use core::ffi::{CStr, c_char, c_int, c_long, c_void};

use super::names;
use crate::base::arch::{Arguments, stand_ins};
use crate::base::elf;
use crate::base::environment;
use crate::base::loader::{
    DLMOPEN, DLOPEN, DLSYM, DLVSYM, Dlopen, Dlsym, Dlvsym, Genuine, is_libc, is_ours, load, look_up,
};
use crate::driver::genuine::VendorLibrary;
use crate::driver::hook::Hook;
use crate::guest::manners;

stand_ins! {
    /// Gives the hook of a driver function, and what the real `dlsym` gives of everything else.
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void => decide_dlsym;
    /// As `dlsym`, with a version (the driver's symbols have none, which fits any).
    fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void
        => decide_dlvsym;
    /// The real `dlopen`, without RTLD_DEEPBIND: with it, the new library would bind to the driver
    /// past us.
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void => decide_dlopen;
    /// The real `dlmopen`, without RTLD_DEEPBIND.
    fn dlmopen(space: c_long, file: *const c_char, flags: c_int) -> *mut c_void => decide_dlmopen;
}

const RTLD_DEFAULT: usize = 0;
const RTLD_NEXT: usize = usize::MAX;

/// Jump to the genuine function with the arguments as they now are.
fn jump(genuine: &Genuine) -> usize {
    genuine.get() as usize
}

/// Return this instead.
fn answer(call: &mut Arguments, value: *const c_void) -> usize {
    let [first, ..] = &mut call.args;
    *first = value as usize;
    0
}

unsafe extern "C" fn decide_dlsym(call: *mut Arguments) -> usize {
    // SAFETY: the stand-in passes the arguments that it saved on its own stack.
    let call = unsafe { &mut *call };
    decide_symbol(call, &DLSYM, |real, [handle, name, _]| {
        // SAFETY: the C library defines dlsym with this signature.
        let real = unsafe { core::mem::transmute::<*mut c_void, Dlsym>(real) };
        // SAFETY: the caller's own arguments.
        unsafe { real(pointer(handle), pointer(name)) }
    })
}

unsafe extern "C" fn decide_dlvsym(call: *mut Arguments) -> usize {
    // SAFETY: the stand-in passes the arguments that it saved on its own stack.
    let call = unsafe { &mut *call };
    decide_symbol(call, &DLVSYM, |real, [handle, name, version]| {
        // SAFETY: the C library defines dlvsym with this signature.
        let real = unsafe { core::mem::transmute::<*mut c_void, Dlvsym>(real) };
        // SAFETY: the caller's own arguments.
        unsafe { real(pointer(handle), pointer(name), pointer(version)) }
    })
}

fn pointer<T>(address: usize) -> *mut T {
    core::ptr::with_exposed_provenance_mut(address)
}

fn decide_symbol(
    call: &mut Arguments,
    genuine: &Genuine,
    look_up: impl Fn(*mut c_void, [usize; 3]) -> *mut c_void,
) -> usize {
    let real = genuine.get();
    if real.is_null() {
        return answer(call, core::ptr::null());
    }
    let [handle, name, version] = call.args;
    let Some(wanted) = wanted(name) else {
        return jump(genuine);
    };
    if manners::is_inside() {
        return jump(genuine);
    }
    if handle != RTLD_DEFAULT && handle != RTLD_NEXT {
        // An explicit handle: the real function's answer does not depend on the object that asks.
        let found = look_up(real, call.args);
        let is_ours = elf::holding(found).is_some_and(|object| is_ours(&object));
        if found.is_null() || (!is_ours && !wanted.is_genuine(found)) {
            // Asked again by the jump, so that dlerror() is as the real one leaves it.
            return jump(genuine);
        }
    }
    if wanted.is_there() {
        return answer(call, wanted.hook());
    }
    let is_first = handle == RTLD_DEFAULT && is_first_of_all(wanted.name());
    if is_first {
        // The real one would find our hook. Without this library, the look-up finds the next library's function.
        let behind = look_up(real, [RTLD_NEXT, name, version]);
        if !behind.is_null() {
            return answer(call, behind);
        }
    }
    if is_first || !defined_by_others(wanted.name()) {
        // Only we define this name for all: the program must not find it. Looked for in the C library,
        // which lacks it, so that dlerror() speaks of the name that was asked for.
        let libc = load(c"libc.so.6", libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if !libc.is_null() {
            let [first, ..] = &mut call.args;
            *first = libc as usize;
        }
    }
    jump(genuine)
}

/// A name that the library exports in place of the real one.
enum ExportedName {
    /// One of the vendor's functions.
    Driver {
        library: &'static VendorLibrary,
        hook: &'static Hook,
    },
    /// One of the loader's.
    Loader {
        genuine: &'static Genuine,
        ours: *const c_void,
    },
}

fn wanted(name: usize) -> Option<ExportedName> {
    let name: *const c_char = pointer(name);
    if name.is_null() {
        return None;
    }
    // SAFETY: the caller of dlsym passes a string that ends in a zero.
    let name = unsafe { CStr::from_ptr(name) };
    match name.to_bytes() {
        [b'c', b'u', ..] | [b'n', b'v', b'm', b'l', ..] => {
            let (library, hook) = names::find(name)?;
            Some(ExportedName::Driver { library, hook })
        }
        [b'd', b'l', ..] => {
            let (genuine, ours) = match name.to_bytes() {
                b"dlsym" => (&DLSYM, dlsym as *const c_void),
                b"dlvsym" => (&DLVSYM, dlvsym as *const c_void),
                b"dlopen" => (&DLOPEN, dlopen as *const c_void),
                b"dlmopen" => (&DLMOPEN, dlmopen as *const c_void),
                _ => return None,
            };
            Some(ExportedName::Loader { genuine, ours })
        }
        _ => None,
    }
}

impl ExportedName {
    fn name(&self) -> &'static CStr {
        match self {
            Self::Driver { hook, .. } => hook.name,
            Self::Loader { genuine, .. } => genuine.name,
        }
    }

    /// Whether this address is the function that the library replaces.
    fn is_genuine(&self, found: *mut c_void) -> bool {
        match self {
            Self::Driver { library, hook } => library.owns(hook.row, found),
            Self::Loader { .. } => elf::holding(found).is_some_and(|object| is_libc(&object)),
        }
    }

    /// Whether the process has the function that the library replaces.
    fn is_there(&self) -> bool {
        match self {
            Self::Driver { library, hook } => {
                library.is_loaded() && !library.address(hook.row).is_null()
            }
            Self::Loader { genuine, .. } => !genuine.get().is_null(),
        }
    }

    fn hook(&self) -> *const c_void {
        match self {
            Self::Driver { hook, .. } => hook.address,
            Self::Loader { ours, .. } => *ours,
        }
    }
}

/// Whether the library's definition is the first that the whole process sees.
fn is_first_of_all(name: &CStr) -> bool {
    let real = DLOPEN.get();
    if real.is_null() {
        return false;
    }
    // SAFETY: the C library defines dlopen with this signature.
    let real = unsafe { core::mem::transmute::<*mut c_void, Dlopen>(real) };
    // SAFETY: null stands for the program itself and all that its process sees.
    let program = unsafe { real(core::ptr::null(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    elf::holding(look_up(program, name)).is_some_and(|object| is_ours(&object))
}

/// Does an object other than our own define it?
fn defined_by_others(name: &CStr) -> bool {
    elf::first(|object| (!is_ours(object)).then(|| object.find(name)).flatten()).is_some()
}

/// glibc's flag: bind the new library's own symbols first. (musl has no such flag.)
const RTLD_DEEPBIND: usize = 0x8;

unsafe extern "C" fn decide_dlopen(call: *mut Arguments) -> usize {
    // SAFETY: the stand-in passes the arguments that it saved on its own stack.
    let call = unsafe { &mut *call };
    let [file, flags, _] = &mut call.args;
    *flags = without_deepbind(*file, *flags);
    jump(&DLOPEN)
}

unsafe extern "C" fn decide_dlmopen(call: *mut Arguments) -> usize {
    // SAFETY: the stand-in passes the arguments that it saved on its own stack.
    let call = unsafe { &mut *call };
    let [_, file, flags] = &mut call.args;
    *flags = without_deepbind(*file, *flags);
    if DLMOPEN.get().is_null() {
        return answer(call, core::ptr::null());
    }
    jump(&DLMOPEN)
}

fn without_deepbind(file: usize, flags: usize) -> usize {
    if flags & RTLD_DEEPBIND == 0 || file == 0 {
        return flags;
    }
    // SAFETY: the caller of dlopen passes a string that ends in a zero, or null (seen above).
    let file = unsafe { CStr::from_ptr(pointer(file)) }.to_bytes();
    let is_kept = environment::read(c"VGPU_DEEPBIND_KEEP", |keep| is_listed(file, keep));
    if is_kept == Some(true) {
        return flags;
    }
    flags & !RTLD_DEEPBIND
}

/// `VGPU_DEEPBIND_KEEP`: file names (up to the first `.so`, or whole) or paths, separated by `:`.
fn is_listed(file: &[u8], keep: &[u8]) -> bool {
    let name = file.rsplit(|&byte| byte == b'/').next().unwrap_or(file);
    let stem = name
        .windows(3)
        .position(|part| part == b".so")
        .and_then(|at| name.get(..at));
    keep.split(|&byte| byte == b':' || byte == b',')
        .filter(|entry| !entry.is_empty())
        .any(|entry| entry == file || entry == name || Some(entry) == stem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_real_functions_are_those_of_the_c_library() {
        assert_eq!(DLSYM.get(), libc::dlsym as *mut c_void);
        assert_eq!(DLOPEN.get(), libc::dlopen as *mut c_void);
    }

    #[test]
    fn our_dlsym_gives_what_the_real_one_gives() {
        for (handle, name) in [
            (libc::RTLD_DEFAULT, c"malloc"),
            (libc::RTLD_NEXT, c"getpid"),
            (libc::RTLD_DEFAULT, c"none"),
        ] {
            // SAFETY: a handle and a name as dlsym takes them.
            let ours = unsafe { dlsym(handle, name.as_ptr()) };
            // SAFETY: dlsym takes any of these handles, and a name that ends in a zero: a C string literal does.
            let real = unsafe { libc::dlsym(handle, name.as_ptr()) };
            assert_eq!(ours, real, "{name:?}");
        }
    }

    #[test]
    fn without_a_driver_its_functions_are_not_found() {
        // SAFETY: a handle and a name as dlsym takes them.
        let found = unsafe { dlsym(libc::RTLD_DEFAULT, c"cuInit".as_ptr()) };

        assert!(found.is_null());
        // SAFETY: takes nothing.
        let said = unsafe { libc::dlerror() };
        // SAFETY: a string until the next call of the loader, since the last one failed.
        let said = unsafe { CStr::from_ptr(said) };
        assert!(said.to_str().unwrap().contains("cuInit"), "{said:?}");
    }

    #[test]
    fn the_opt_out_list_takes_paths_names_and_stems() {
        for (keep, listed) in [
            ("libfoo.so.1", true),
            ("libfoo", true),
            ("x:/opt/libfoo.so.1", true),
            ("libfo", false),
            ("", false),
        ] {
            assert_eq!(
                is_listed(b"/opt/libfoo.so.1", keep.as_bytes()),
                listed,
                "{keep}"
            );
        }
    }
}
