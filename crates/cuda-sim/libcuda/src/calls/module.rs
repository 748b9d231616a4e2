//! The functions of modules and libraries, of their kernels and variables, and of the linker that makes one image
//! from several.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use cuda_api::driver::*;
use cuda_sim_image::{self as image, Image, Kernel, Unreadable, Variable};

use crate::base::border::{
    Done, check_out, handle, invalid_if, lock, read_all, refuse_if, text, write, write_if,
};
use crate::base::table::Table;
use crate::memory::blocks;
use crate::memory::context::{self, Ctx};
use crate::process::choices;
use crate::process::driver;
use crate::process::work::exec;
use crate::streams::launch::{MAX_THREADS, SHARED_BYTES_OPT_IN};
use crate::streams::module::{
    FUNCTIONS, Function, LIBRARIES, Library, MODULES, Module, OldStyle, Owner, Unread, function,
    load, load_for, module_of, place, runtime_code,
};

calls! {
    cuModuleLoad(module, fname) => load_current(module, || image_in(fname));
    cuModuleLoadData, cuModuleLoadFatBinary(module, image)
        => load_current(module, || image_at(image));
    cuModuleUnload(module) => {
        let found = find_module(module)?;
        refuse_if(found.library != 0, CuResult::NOT_PERMITTED)?;
        if let Some(module) = MODULES.remove(module.addr()) {
            module.unload();
        }
        Ok(())
    };
    cuModuleGetLoadingMode(mode) => {
        const EAGER: u32 = 1;
        const LAZY: u32 = 2;
        let eager = !choices::says_lazy();
        write(mode, if eager { EAGER } else { LAZY })
    };
    cuModuleGetFunction(function, module, name) => {
        let name = text(name)?;
        find_module(module)?;
        write(function, handle(module_function(module.addr(), &name)?))
    };
    cuModuleGetFunctionCount(count, module)
        => write(count, find_module(module)?.image.kernels.len() as u32);
    cuModuleGetGlobal_v2(ptr, bytes, module, name) => {
        let place = variable_of(module, name)?;
        tell_place(ptr, bytes, place)
    };
    cuModuleGetTexRef, cuModuleGetSurfRef(tex_ref, module, name)
        => write(tex_ref, handle(reference(module, name)?));
    cuFuncGetAttribute(out, attribute, func)
        => write(out, attribute_of(&*function(func)?, attribute)?);
    cuFuncSetAttribute(func, attribute, value)
        => set_attribute(&*function(func)?, attribute, value);
    cuFuncSetCacheConfig(func, config) => {
        invalid_if(config > 3)?;
        function(func).map(drop)
    };
    cuFuncSetSharedMemConfig(func, config) => {
        invalid_if(config > 2)?;
        function(func).map(drop)
    };
    cuFuncGetModule(module, func) => {
        let number = match function(func)?.owner {
            Owner::Module(module) => module,
            Owner::Library(library) => module_of(library, context::current()?)?,
        };
        write(module, handle(number))
    };
    cuFuncGetName(name, func) => write(name, function(func)?.name.as_ptr());
    cuFuncGetParamCount(func, param_count)
        => write(param_count, function(func)?.kernel.parameters.len());
    cuFuncGetParamInfo(func, param_index, param_offset, param_size)
        => parameter(&*function(func)?, param_index, param_offset, param_size);
    cuFuncIsLoaded(state, func) => {
        let module = match function(func)?.owner {
            Owner::Module(module) => Some(module),
            // A question loads nothing.
            Owner::Library(library) => loaded_in(library, context::current()?)?,
        };
        let module = module.and_then(|module| MODULES.get(module));
        let loaded = module.is_some_and(|module| module.room.is_full());
        write(state, u32::from(loaded))
    };
    cuFuncLoad(func) => load_for(&*function(func)?, context::current()?);
    cuLibraryUnload(library) => { find_library(library)?; unload_library(library.addr()); Ok(()) };
    cuLibraryGetKernel(kernel, library, name)
        => write(kernel, handle(kernel_of(library, &text(name)?)?));
    cuLibraryGetKernelCount(count, lib)
        => write(count, find_library(lib)?.image.kernels.len() as u32);
    cuLibraryGetModule(module, library)
        => write(module, handle(module_of(library.addr(), context::current()?)?));
    cuLibraryGetGlobal(ptr, bytes, library, name) => {
        let module = module_of(library.addr(), context::current()?)?;
        tell_place(ptr, bytes, variable_of(handle(module), name)?)
    };
    cuLibraryGetManaged(ptr, bytes, library, name) => {
        let place = managed_variable(&*find_library(library)?, &text(name)?)?;
        tell_place(ptr, bytes, place)
    };
    cuLibraryGetUnifiedFunction(fptr, library, symbol) => {
        let _no_device_symbols = (fptr, text(symbol)?);
        find_library(library)?;
        Err(CuResult::NOT_FOUND)
    };
    cuKernelGetFunction(func, kernel) => {
        let found = function(kernel.cast())?;
        let Owner::Library(library) = found.owner else {
            return Err(CuResult::INVALID_HANDLE);
        };
        let module = module_of(library, context::current()?)?;
        let name = found.name.to_string_lossy();
        write(func, handle(module_function(module, &name)?))
    };
    cuKernelGetLibrary(lib, kernel) => {
        match function(kernel.cast())?.owner {
            Owner::Library(library) => write(lib, handle(library)),
            Owner::Module(_) => Err(CuResult::INVALID_HANDLE),
        }
    };
    cuKernelGetName(name, kernel) => write(name, function(kernel.cast())?.name.as_ptr());
    cuKernelSetCacheConfig(kernel, config, device) => {
        driver::the()?.gpu(device)?;
        invalid_if(config > 3)?;
        function(kernel.cast()).map(drop)
    };
    cuKernelGetParamCount(kernel, param_count)
        => write(param_count, function(kernel.cast())?.kernel.parameters.len());
    cuKernelGetParamInfo(kernel, param_index, param_offset, param_size)
        => parameter(&*function(kernel.cast())?, param_index, param_offset, param_size);
    cuLinkCreate, cuLinkCreate_v2(count_options, options, option_values, state_out)
        => link_create(count_options, options, option_values, state_out);
    cuLinkAddData,
    cuLinkAddData_v2(state, kind, data, size, _name, _count_options, _options, _option_values)
        => link_data(state, kind, data, size);
    cuLinkAddFile, cuLinkAddFile_v2(state, kind, path, _count_options, _options, _option_values)
        => link_file(state, kind, path);
    cuLinkComplete(state, cubin_out, size_out) => {
        let link = LINKS.find(state.addr())?;
        let image = link.image.get_or_init(|| linked(&lock(&link.pieces)));
        write(cubin_out, image.as_ptr().cast_mut().cast())?;
        write_if(size_out, image.len());
        Ok(())
    };
    cuLinkDestroy(state) => LINKS.end(state.addr());
    cuModuleLoadDataEx(module, image, count_options, options, option_values) => {
        answer_options(count_options, options, option_values)?;
        load_current(module, || image_at(image))
    };
    cuModuleEnumerateFunctions(functions, count_functions, module) => {
        let image = Arc::clone(&find_module(module)?.image);
        let find = |name: &str| module_function(module.addr(), name);
        list_kernels(&image, functions, count_functions, find)
    };
    cuLibraryLoadData(library, code, jit_options, jit_options_values, count_jit_options,
        _library_options, _library_option_values, _count_library_options) => {
        answer_options(count_jit_options, jit_options, jit_options_values)?;
        load_library(library, || image_at(code))
    };
    cuLibraryLoadFromFile(library, file_name, jit_options, jit_options_values,
        count_jit_options, _library_options, _library_option_values, _count_library_options) => {
        answer_options(count_jit_options, jit_options, jit_options_values)?;
        load_library(library, || image_in(file_name))
    };
    cuLibraryEnumerateKernels(kernels, count_kernels, lib) => {
        let image = Arc::clone(&find_library(lib)?.image);
        list_kernels(&image, kernels, count_kernels, |name| kernel_of(lib, name))
    };
    cuKernelGetAttribute(out, attribute, kernel, device) => {
        driver::the()?.gpu(device)?;
        write(out, attribute_of(&*function(kernel.cast())?, attribute)?)
    };
    cuKernelSetAttribute(attribute, val, kernel, device) => {
        driver::the()?.gpu(device)?;
        set_attribute(&*function(kernel.cast())?, attribute, val)
    };
}

static LINKS: Table<Link> = Table::new(CuResult::INVALID_HANDLE);

// --- loading ------------------------------------------------------------------------------------

fn unreadable(error: Unreadable) -> CuResult {
    match error {
        Unreadable::Ptx => CuResult::INVALID_PTX,
        Unreadable::Image => CuResult::INVALID_IMAGE,
    }
}

/// Reads the image that a program points to.
fn image_at(start: *const c_void) -> Done<Image> {
    check_out(start)?;
    Image::parse(&image::copied(start.cast())).map_err(unreadable)
}

fn image_in(path: *const c_char) -> Done<Image> {
    let path = text(path)?;
    let bytes = std::fs::read(path).map_err(|_| CuResult::FILE_NOT_FOUND)?;
    Image::parse(&bytes).map_err(unreadable)
}

fn load_current(out: *mut CuModule, image: impl FnOnce() -> Done<Image>) -> Done {
    let context = context::current()?;
    check_out(out)?;
    write(out, handle(load(context, Arc::new(image()?), 0)?))
}

fn make_function(name: &str, kernel: Kernel, owner: Owner) -> Done<Arc<Function>> {
    let function = Arc::new(Function {
        name: CString::new(name).map_err(|_| CuResult::INVALID_VALUE)?,
        kernel,
        duration: exec()?.script().kernel(name),
        attributes: Mutex::new(HashMap::new()),
        old_style: Mutex::new(OldStyle {
            block: [1; 3],
            shared: 0,
            parameters: Vec::new(),
        }),
        owner,
        own: AtomicUsize::new(0),
    });
    let own = FUNCTIONS.insert(Arc::clone(&function));
    function.own.store(own, Ordering::Relaxed);
    Ok(function)
}

/// A kernel of an image by name; an image that cannot be read is believed to have it.
fn kernel_in(image: &Image, name: &str) -> Done<Kernel> {
    match image.kernels.get(name) {
        Some(kernel) => Ok(kernel.clone()),
        None if image.opaque => Ok(Kernel {
            registers: 32,
            ..Kernel::default()
        }),
        None => Err(CuResult::NOT_FOUND),
    }
}

fn function_in(
    known: &Mutex<BTreeMap<String, Arc<Function>>>,
    image: &Image,
    name: &str,
    owner: Owner,
) -> Done<usize> {
    let mut known = lock(known);
    if let Some(function) = known.get(name) {
        return Ok(function.handle());
    }
    let function = make_function(name, kernel_in(image, name)?, owner)?;
    let handle = function.handle();
    known.insert(name.to_owned(), function);
    Ok(handle)
}

/// Writes the kernels of an image, as many as the program has room for.
fn list_kernels<T>(
    image: &Image,
    out: *mut *mut T,
    room: u32,
    find: impl Fn(&str) -> Done<usize>,
) -> Done {
    for (index, name) in image.kernels.keys().take(room as usize).enumerate() {
        // SAFETY: the program's array has as much room as it says.
        write(unsafe { out.add(index) }, handle(find(name)?))?;
    }
    Ok(())
}

/// Answers with the address and the size of a variable, each if it is wanted.
fn tell_place(ptr: *mut CuDevicePtr, bytes: *mut usize, (address, size): (u64, usize)) -> Done {
    write_if(ptr, CuDevicePtr(address));
    write_if(bytes, size);
    Ok(())
}

fn find_module(module: CuModule) -> Done<Arc<Module>> {
    MODULES.find(module.addr())
}

fn find_library(library: CuLibrary) -> Done<Arc<Library>> {
    LIBRARIES.find(library.addr())
}

/// The module that a library is in a context, if it is loaded there.
fn loaded_in(library: usize, context: Ctx) -> Done<Option<usize>> {
    let found = LIBRARIES.find(library)?;
    let modules = lock(&found.modules);
    Ok(modules.get(&context.home().handle).copied())
}

fn module_function(module: usize, name: &str) -> Done<usize> {
    let found = MODULES.find(module)?;
    function_in(&found.functions, &found.image, name, Owner::Module(module))
}

fn module_variable(module: &Module, name: &str) -> Done<(u64, usize)> {
    module.room.fill()?;
    if let Some(place) = lock(&module.variables).get(name) {
        return Ok(*place);
    }
    if module.image.opaque {
        // If its size is unknown, eight bytes are enough for most programs.
        let unknown = Variable {
            bytes: 8,
            ..Variable::default()
        };
        let declared = match &module.unread {
            Some(unread) => {
                take_declared(module, unread)?;
                unread.image().variables.get(name).copied()
            }
            None => None,
        };
        let place = place(module.context, declared.unwrap_or(unknown))?;
        lock(&module.variables).insert(name.to_owned(), place);
        return Ok(place);
    }
    Err(CuResult::NOT_FOUND)
}

/// Takes the memory that a runtime's image declares, once the program has asked for one of its variables.
fn take_declared(module: &Module, unread: &Unread) -> Done {
    let is_known = unread.image.get().is_some();
    let declared = unread.image().declared_bytes();
    if is_known || declared == 0 {
        return Ok(());
    }
    let add = |bytes: &mut u64| *bytes = bytes.saturating_add(declared);
    runtime_code(module.context, add)?;
    module.taken.fetch_add(declared, Ordering::SeqCst);
    Ok(())
}

fn variable_of(module: CuModule, name: *const c_char) -> Done<(u64, usize)> {
    let name = text(name)?;
    let module = find_module(module)?;
    match module_variable(&module, &name) {
        Err(CuResult::NOT_FOUND) if module.library != 0 => {
            managed_variable(&*find_library(handle(module.library))?, &name)
        }
        found => found,
    }
}

fn managed_variable(library: &Library, name: &str) -> Done<(u64, usize)> {
    let declared = library.image.variables.get(name);
    let declared = declared.filter(|variable| variable.managed);
    let variable = *declared.ok_or(CuResult::NOT_FOUND)?;
    let mut managed = lock(&library.managed);
    if let Some(place) = managed.get(name) {
        return Ok(*place);
    }
    let place = place(context::current()?, variable)?;
    managed.insert(name.to_owned(), place);
    Ok(place)
}

fn load_library(out: *mut CuLibrary, image: impl FnOnce() -> Done<Image>) -> Done {
    check_out(out)?;
    let library = Arc::new(Library {
        image: Arc::new(image()?),
        kernels: Mutex::new(BTreeMap::new()),
        modules: Mutex::new(HashMap::new()),
        managed: Mutex::new(BTreeMap::new()),
    });
    let library = LIBRARIES.insert(library);
    if !choices::says_lazy() {
        for context in context::all() {
            module_of(library, context).inspect_err(|_| unload_library(library))?;
        }
    }
    write(out, handle(library))
}

fn unload_library(library: usize) {
    let Some(found) = LIBRARIES.remove(library) else {
        return;
    };
    for (_, module) in std::mem::take(&mut *lock(&found.modules)) {
        if let Some(module) = MODULES.remove(module) {
            module.unload();
        }
    }
    for kernel in lock(&found.kernels).values() {
        FUNCTIONS.remove(kernel.handle());
    }
    for (_, place) in std::mem::take(&mut *lock(&found.managed)) {
        blocks::drop_variables(place.0);
    }
}

/// Answers the options that ask something: the logs of a compiler that did not run are empty.
fn answer_options(count: u32, options: *mut CuJitOption, values: *mut *mut c_void) -> Done {
    const WALL_TIME: u32 = 2;
    const LOG_SIZES: [u32; 2] = [4, 6];
    let options = read_all(options.cast_const(), count as usize)?;
    for (index, option) in options.into_iter().enumerate() {
        if LOG_SIZES.contains(&option) || option == WALL_TIME {
            // SAFETY: as many values as options, and these are the driver's to write.
            write_if(unsafe { values.add(index) }, std::ptr::null_mut());
        }
    }
    Ok(())
}

/// Kernels do not read through a texture reference here, so the module's address represents it.
fn reference(module: CuModule, name: *const c_char) -> Done<usize> {
    let name = text(name)?;
    let found = find_module(module)?;
    let is_known = found.image.opaque || found.image.references.contains(&name);
    refuse_if(!is_known, CuResult::NOT_FOUND)?;
    Ok(module.addr())
}

// --- functions ----------------------------------------------------------------------------------

fn attribute_of(function: &Function, attribute: u32) -> Done<i32> {
    const PTX_VERSION: i32 = 80;
    if let Some(&set) = lock(&function.attributes).get(&attribute) {
        return Ok(set);
    }
    let kernel = &function.kernel;
    Ok(match attribute {
        0 if kernel.max_threads > 0 => kernel.max_threads,
        0 => MAX_THREADS as i32,
        1 => kernel.shared_bytes,
        3 => kernel.local_bytes,
        4 => kernel.registers.max(8),
        5 | 6 => PTX_VERSION,
        8 => (48 << 10) - kernel.shared_bytes,
        9 => -1,
        2 | 7 | 10..=15 => 0,
        _ => return Err(CuResult::INVALID_VALUE),
    })
}

fn set_attribute(function: &Function, attribute: u32, value: i32) -> Done {
    const DYNAMIC_SHARED: u32 = 8;
    if attribute == DYNAMIC_SHARED {
        let most = SHARED_BYTES_OPT_IN as i32 - function.kernel.shared_bytes;
        invalid_if(value < 0 || value > most)?;
    } else if !(9..=15).contains(&attribute) {
        return Err(CuResult::INVALID_VALUE);
    }
    lock(&function.attributes).insert(attribute, value);
    Ok(())
}

fn parameter(function: &Function, index: usize, offset: *mut usize, size: *mut usize) -> Done {
    let found = function.kernel.parameters.get(index).copied();
    let (at, bytes) = found.ok_or(CuResult::INVALID_VALUE)?;
    write(offset, at)?;
    write_if(size, bytes);
    Ok(())
}

// --- libraries ----------------------------------------------------------------------------------

fn kernel_of(library: CuLibrary, name: &str) -> Done<usize> {
    let found = find_library(library)?;
    let owner = Owner::Library(library.addr());
    function_in(&found.kernels, &found.image, name, owner)
}

// --- linking ------------------------------------------------------------------------------------

/// A link of a program: the pieces, and once it is complete, the image.
#[derive(Debug, Default)]
struct Link {
    pieces: Mutex<Vec<(u32, Vec<u8>)>>,
    image: OnceLock<Vec<u8>>,
}

const INPUT_CUBIN: u32 = 0;
const INPUT_PTX: u32 = 1;
const INPUT_FATBIN: u32 = 2;

fn link_add(state: CuLinkState, kind: u32, bytes: Vec<u8>) -> Done {
    let link = LINKS.find(state.addr())?;
    invalid_if(kind > 5)?;
    if kind == INPUT_PTX || kind == INPUT_CUBIN || kind == INPUT_FATBIN {
        Image::parse(&bytes).map_err(unreadable)?;
    }
    lock(&link.pieces).push((kind, bytes));
    Ok(())
}

/// The pieces as one image: the only cubin as it is, everything else as a fat binary.
fn linked(pieces: &[(u32, Vec<u8>)]) -> Vec<u8> {
    if let [(INPUT_CUBIN, cubin)] = pieces {
        return cubin.clone();
    }
    let mut entries = Vec::new();
    for (kind, bytes) in pieces {
        image::append_entry(&mut entries, *kind == INPUT_PTX, bytes);
    }
    image::fatbin_of(entries)
}

fn link_data(state: CuLinkState, kind: u32, data: *mut c_void, size: usize) -> Done {
    link_add(state, kind, read_all(data.cast::<u8>().cast_const(), size)?)
}

fn link_file(state: CuLinkState, kind: u32, path: *const c_char) -> Done {
    let bytes = std::fs::read(text(path)?).map_err(|_| CuResult::FILE_NOT_FOUND)?;
    link_add(state, kind, bytes)
}

fn link_create(
    count: u32,
    options: *mut CuJitOption,
    values: *mut *mut c_void,
    state_out: *mut CuLinkState,
) -> Done {
    context::current()?;
    check_out(state_out)?;
    answer_options(count, options, values)?;
    write(state_out, handle(LINKS.insert(Arc::new(Link::default()))))
}
