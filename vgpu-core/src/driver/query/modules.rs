//! Modules, libraries and their functions.

use cuda_api::{CuFunction, CuKernel, CuLibrary, CuModule};

use super::handle;
use super::ok;
use crate::driver::genuine::cuda;

/// The module that a function is of.
pub(crate) fn module_of(function: CuFunction) -> Option<u64> {
    let mut module: CuModule = core::ptr::null_mut();
    // SAFETY: the program passed this function to the driver, which writes to the local `module` alone.
    ok(unsafe { cuda::cuFuncGetModule(&raw mut module, function) })?;
    (!module.is_null()).then_some(module as u64)
}

/// When the driver loads the code of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadingMode {
    /// With the module.
    Eager = 0,
    /// At its first use.
    Lazy = 1,
}

/// How this process's modules are loaded. A driver that does not know the question (before 11.7) has one
/// way.
pub(crate) fn loading_mode() -> LoadingMode {
    const LAZY: u32 = 2;
    let mut mode = 0;
    // SAFETY: the driver writes to `mode` alone, a local of the type in the table of signatures.
    let asked = unsafe { cuda::cuModuleGetLoadingMode(&raw mut mode) };
    if ok(asked).is_some() && mode == LAZY {
        LoadingMode::Lazy
    } else {
        LoadingMode::Eager
    }
}

/// Is the code of a function loaded? `None`: the driver does not say (before 12.4).
pub(crate) fn is_loaded(function: CuFunction) -> Option<bool> {
    const LOADED: u32 = 1;
    let mut state = 0;
    // SAFETY: the driver gave this function just now, and writes to the local `state` alone.
    ok(unsafe { cuda::cuFuncIsLoaded(&raw mut state, function) })?;
    Some(state == LOADED)
}

/// How many functions a module has.
pub(crate) fn function_count(module: u64) -> Option<u32> {
    let mut count = 0;
    // SAFETY: the driver gave the program this module, and writes to the local `count` alone.
    ok(unsafe { cuda::cuModuleGetFunctionCount(&raw mut count, handle(module)) })?;
    Some(count)
}

/// How many kernels a library has.
pub(crate) fn kernel_count(library: u64) -> Option<u32> {
    let mut count = 0;
    // SAFETY: the driver gave the program this library, and writes to the local `count` alone.
    ok(unsafe { cuda::cuLibraryGetKernelCount(&raw mut count, handle(library)) })?;
    Some(count)
}

/// The library that a kernel is of.
pub(crate) fn library_of(kernel: CuKernel) -> Option<u64> {
    let mut library: CuLibrary = core::ptr::null_mut();
    // SAFETY: the program passed this kernel to the driver, which writes to the local `library` alone.
    ok(unsafe { cuda::cuKernelGetLibrary(&raw mut library, kernel) })?;
    (!library.is_null()).then_some(library as u64)
}

/// Takes back a module that was loaded a moment ago.
pub(crate) fn unload_module(module: u64) -> bool {
    // SAFETY: a module that the driver gave just now and that its caller has not seen.
    ok(unsafe { cuda::cuModuleUnload(handle(module)) }).is_some()
}

/// Takes back a library that was loaded a moment ago.
pub(crate) fn unload_library(library: u64) -> bool {
    // SAFETY: a library that the driver gave just now and that its caller has not seen.
    ok(unsafe { cuda::cuLibraryUnload(handle(library)) }).is_some()
}
