//! Modules, libraries and functions. A loaded module takes device memory: its image, rounded to 2 MiB. `cuda_sim_image`
//! reads an image; nothing is compiled.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use cuda_api::driver::*;
use cuda_sim::board::Kind as Taken;
use cuda_sim::script::Duration;
use cuda_sim_image::{self as image, Image, Kernel, Variable};

use crate::base::border::{Done, handle, invalid_if, lock, write};
use crate::base::table::Table;
use crate::memory::blocks;
use crate::memory::context::{self, Ctx};
use crate::memory::room::Room;
use crate::process::choices;
use crate::process::driver;

/// Something that can be launched: a function of a module, or a kernel of a library.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: CString,
    pub(crate) kernel: Kernel,
    /// Its duration, and the script's line that gives it.
    pub(crate) duration: (Duration, usize),
    pub(crate) attributes: Mutex<HashMap<u32, i32>>,
    pub(crate) old_style: Mutex<OldStyle>,
    pub(crate) owner: Owner,
    pub(crate) own: AtomicUsize,
}

/// The settings of `cuFuncSetBlockShape` and similar calls.
#[derive(Debug, Clone)]
pub(crate) struct OldStyle {
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) parameters: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Module(usize),
    Library(usize),
}

impl Function {
    pub(crate) fn handle(&self) -> usize {
        // Relaxed: written once, before another thread could see it.
        self.own.load(Ordering::Relaxed)
    }
}

/// An image in a context.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) context: Ctx,
    pub(crate) image: Arc<Image>,
    /// Bytes that a runtime's image takes of what all of them take together.
    pub(crate) taken: AtomicU64,
    pub(crate) room: Room,
    pub(crate) functions: Mutex<BTreeMap<String, Arc<Function>>>,
    pub(crate) variables: Mutex<BTreeMap<String, (u64, usize)>>,
    /// The library that it belongs to, if any.
    pub(crate) library: usize,
    loaded: AtomicBool,
    /// The address of a runtime's image; it is read when the program asks for a variable.
    pub(crate) unread: Option<Unread>,
}

/// An image that a runtime has brought with the program, and that stays in place until it is unloaded. A big program
/// has a thousand of them, and most are never used.
#[derive(Debug)]
pub(crate) struct Unread {
    start: usize,
    pub(crate) image: OnceLock<Image>,
}

/// An image that every context can use; it becomes a module where it is first used.
#[derive(Debug)]
pub(crate) struct Library {
    pub(crate) image: Arc<Image>,
    pub(crate) kernels: Mutex<BTreeMap<String, Arc<Function>>>,
    pub(crate) modules: Mutex<HashMap<usize, usize>>,
    /// Managed variables belong to the library, not to a context.
    pub(crate) managed: Mutex<BTreeMap<String, (u64, usize)>>,
}

pub(crate) static FUNCTIONS: Table<Function> = Table::new(CuResult::INVALID_HANDLE);
pub(crate) static MODULES: Table<Module> = Table::new(CuResult::INVALID_HANDLE);
pub(crate) static LIBRARIES: Table<Library> = Table::new(CuResult::INVALID_HANDLE);

/// The function that a program means, a library's kernel too.
pub(crate) fn function(function: CuFunction) -> Done<Arc<Function>> {
    FUNCTIONS.find(function.addr())
}

/// Makes sure that a function's module is loaded in the context in which it runs.
pub(crate) fn load_for(function: &Function, context: Ctx) -> Done {
    let module = match function.owner {
        Owner::Module(module) => module,
        Owner::Library(library) => module_of(library, context)?,
    };
    // A function that outlives its module is refused elsewhere.
    MODULES
        .get(module)
        .map_or(Ok(()), |module| module.room.fill())
}

/// Called at the end of a context: ends its modules, and invalidates their functions.
pub(crate) fn context_gone(context: Ctx) {
    for module in MODULES.take(|module| module.context.handle == context.handle) {
        module.unload();
    }
    for library in LIBRARIES.select(|_| true) {
        lock(&library.modules).remove(&context.handle);
    }
}

impl Unread {
    pub(crate) fn image(&self) -> &Image {
        self.image.get_or_init(|| {
            let start = std::ptr::with_exposed_provenance::<u8>(self.start);
            // SAFETY: the runtime keeps its image until it unloads the module.
            let bytes = unsafe { std::slice::from_raw_parts(start, image::extent(start)) };
            Image::parse(bytes).unwrap_or_default()
        })
    }
}

impl Module {
    pub(crate) fn unload(&self) {
        if !self.loaded.swap(false, Ordering::SeqCst) {
            return;
        }
        for function in lock(&self.functions).values() {
            FUNCTIONS.remove(function.handle());
        }
        for (_, place) in std::mem::take(&mut *lock(&self.variables)) {
            blocks::drop_variables(place.0);
        }
        if self.unread.is_some() {
            let taken = self.taken.swap(0, Ordering::SeqCst);
            runtime_code(self.context, |bytes| *bytes = bytes.saturating_sub(taken)).ok();
        } else {
            self.room.empty();
        }
    }
}

/// Bytes of code that runtimes have loaded into each context: they share pages, unlike modules that
/// the program loads itself.
static RUNTIME_CODE: Mutex<BTreeMap<usize, u64>> = Mutex::new(BTreeMap::new());

/// Changes the runtimes' memory in a context, and takes or frees the difference in pages.
pub(crate) fn runtime_code(context: Ctx, change: impl FnOnce(&mut u64)) -> Done {
    let driver = driver::the()?;
    let mut all = lock(&RUNTIME_CODE);
    let bytes = all.entry(context.handle).or_insert(0);
    let before = *bytes;
    change(bytes);
    let page = choices::granularity();
    let pages = |bytes: u64| bytes.checked_next_multiple_of(page);
    let (Some(old), Some(new)) = (pages(before), pages(*bytes)) else {
        *bytes = before;
        return Err(CuResult::OUT_OF_MEMORY);
    };
    if new < old {
        driver.give(context.gpu, old - new, Taken::Overhead);
        return Ok(());
    }
    driver
        .take(context.gpu, new - old, Taken::Overhead)
        .inspect_err(|_| *bytes = before)
}

/// Loads a runtime's image, by its functions' names as the runtime knows them.
pub(crate) fn load_for_runtime(out: *mut CuModule, start: *const c_void) -> Done {
    let context = context::current()?.home();
    invalid_if(out.is_null() || start.is_null())?;
    // SAFETY: the runtime vouches for an image at this address, until it unloads it.
    let start = unsafe { image::unwrapped(start.cast()) };
    // SAFETY: `extent` reads the image's length from its head; the runtime keeps it until it unloads it.
    let bytes = unsafe { std::slice::from_raw_parts(start, image::extent(start)) };
    let taken = image::biggest_entry(bytes) as u64;
    runtime_code(context, |bytes| *bytes += taken)?;
    let module = Arc::new(Module {
        context,
        image: Arc::new(Image {
            opaque: true,
            ..Image::default()
        }),
        taken: AtomicU64::new(taken),
        room: Room::none(context),
        functions: Mutex::new(BTreeMap::new()),
        variables: Mutex::new(BTreeMap::new()),
        library: 0,
        loaded: AtomicBool::new(true),
        unread: Some(Unread {
            start: start.expose_provenance(),
            image: OnceLock::new(),
        }),
    });
    write(out, handle(MODULES.insert(module)))
}

// --- loading ------------------------------------------------------------------------------------

pub(crate) fn load(context: Ctx, image: Arc<Image>, library: usize) -> Done<usize> {
    let context = context.home();
    let room = Room::of_module(context, image.taken_bytes())?;
    let module = Arc::new(Module {
        context,
        image,
        taken: AtomicU64::new(0),
        room,
        functions: Mutex::new(BTreeMap::new()),
        variables: Mutex::new(BTreeMap::new()),
        library,
        loaded: AtomicBool::new(true),
        unread: None,
    });
    // Variables are there from the beginning, as in the real driver.
    if let Err(code) = place_variables(&module) {
        module.unload();
        return Err(code);
    }
    Ok(MODULES.insert(module))
}

fn place_variables(module: &Module) -> Done {
    let mut placed = lock(&module.variables);
    for (name, variable) in &module.image.variables {
        if !(variable.managed && module.library != 0) {
            placed.insert(name.clone(), place(module.context, *variable)?);
        }
    }
    Ok(())
}

/// Gives a variable its address; its memory is part of the module's size.
pub(crate) fn place(context: Ctx, variable: Variable) -> Done<(u64, usize)> {
    Ok((
        blocks::make_variables(context, variable.bytes.max(1) as u64)?,
        variable.bytes,
    ))
}

/// The module that a library is in a context, loaded when it is not yet.
pub(crate) fn module_of(library: usize, context: Ctx) -> Done<usize> {
    let found = LIBRARIES.find(library)?;
    let context = context.home();
    let mut modules = lock(&found.modules);
    if let Some(&module) = modules.get(&context.handle) {
        return Ok(module);
    }
    let module = load(context, Arc::clone(&found.image), library)?;
    modules.insert(context.handle, module);
    Ok(module)
}
