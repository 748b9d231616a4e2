//! `cuGetExportTable`: the four tables through which a CUDA runtime older than 11.2 makes contexts,
//! loads modules and keeps values with a context. PyTorch 1.8.1 brings such a runtime (10.2).
//!
//! The table by which later runtimes have a driver prove that it is genuine is not answered, on purpose: this driver
//! is not genuine.

use std::collections::HashMap;
use std::sync::Mutex;

use cuda_api::driver::*;

use crate::base::border::{answer, handle, lock, read, write};
use crate::memory::context::{self, Ctx};
use crate::streams::module;

calls! {
    cuGetExportTable(out, export_table_id) => {
        let wanted = read(export_table_id)?.bytes;
        let found = TABLES.iter().find(|(id, _)| *id == wanted);
        let (_, table) = found.ok_or(CuResult::NOT_FOUND)?;
        write(out, table.as_ptr().cast())
    };
}

/// An entry: a function, a size in bytes, or nothing.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct Entry(*const ());

// SAFETY: addresses of functions and numbers; nothing is read through them here.
unsafe impl Sync for Entry {}

/// The function of an entry that no known runtime calls.
extern "C-unwind" fn not_there() -> CuResult {
    CuResult::NOT_SUPPORTED
}

const fn size_of_table(entries: usize) -> Entry {
    Entry(std::ptr::without_provenance(entries * size_of::<Entry>()))
}

const NOT_THERE: Entry = Entry(not_there as *const ());

/// Contexts and modules of the runtime.
static RUNTIME: [Entry; 10] = [
    size_of_table(10),
    Entry(load_module as *const ()),
    Entry(primary_context as *const ()),
    NOT_THERE,
    NOT_THERE,
    NOT_THERE,
    Entry(load_module_with as *const ()),
    Entry(nothing as *const ()),
    Entry(load_module_from as *const ()),
    NOT_THERE,
];

/// The entries at which tools hook the runtime's calls: a runtime reads this memory, and no tool sets it.
static HOOKS: [Entry; 7] = [
    size_of_table(7),
    NOT_THERE,
    Entry(hook_words as *const ()),
    NOT_THERE,
    NOT_THERE,
    NOT_THERE,
    Entry(hook_bytes as *const ()),
];

static TOOLS: [Entry; 4] = [size_of_table(4), NOT_THERE, NOT_THERE, NOT_THERE];

/// Values that the runtime keeps with a context. This table does not begin with its size.
static STORAGE: [Entry; 4] = [
    Entry(storage_put as *const ()),
    Entry(storage_delete as *const ()),
    Entry(storage_get as *const ()),
    NOT_THERE,
];

const TABLES: [([u8; 16], &[Entry]); 4] = [
    (
        [
            0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd,
            0x9d, 0xf9,
        ],
        &RUNTIME,
    ),
    (
        [
            0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c,
            0x0a, 0x66,
        ],
        &HOOKS,
    ),
    (
        [
            0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a,
            0xec, 0xdc,
        ],
        &TOOLS,
    ),
    (
        [
            0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8,
            0x95, 0x93,
        ],
        &STORAGE,
    ),
];

// --- the runtime's interface ----------------------------------------------------------------

extern "C-unwind" fn load_module(out: *mut CuModule, wrapper: *const c_void) -> CuResult {
    answer(|| module::load_for_runtime(out, wrapper))
}

extern "C-unwind" fn load_module_with(
    out: *mut CuModule,
    wrapper: *const c_void,
    _options: *mut c_void,
    _values: *mut c_void,
    _count: usize,
) -> CuResult {
    load_module(out, wrapper)
}

extern "C-unwind" fn load_module_from(
    fatbin: *const c_void,
    out: *mut CuModule,
    _options: *mut c_void,
    _values: *mut c_void,
    _count: usize,
) -> CuResult {
    load_module(out, fatbin)
}

extern "C-unwind" fn primary_context(out: *mut CuContext, device: CuDevice) -> CuResult {
    answer(|| write(out, context::retain_primary(device)?.as_handle()))
}

extern "C-unwind" fn nothing(_what: usize) -> CuResult {
    CuResult::SUCCESS
}

// --- tools --------------------------------------------------------------------------------------

static HOOK_WORDS: [std::sync::atomic::AtomicUsize; 1024] =
    [const { std::sync::atomic::AtomicUsize::new(0) }; 1024];

static HOOK_BYTES: [std::sync::atomic::AtomicU8; 14] =
    [const { std::sync::atomic::AtomicU8::new(0) }; 14];

extern "C-unwind" fn hook_words(out: *mut *mut c_void, count: *mut usize) {
    // A null pointer asks for nothing.
    write(out, HOOK_WORDS.as_ptr().cast_mut().cast()).ok();
    write(count, HOOK_WORDS.len()).ok();
}

extern "C-unwind" fn hook_bytes(out: *mut *mut c_void, count: *mut usize) {
    // As above.
    write(out, HOOK_BYTES.as_ptr().cast_mut().cast()).ok();
    write(count, HOOK_BYTES.len()).ok();
}

// --- storage --------------------------------------------------------------------------------------

type Destructor = Option<unsafe extern "C-unwind" fn(CuContext, *mut c_void, *mut c_void)>;

struct StoredValue {
    value: usize,
    destructor: Destructor,
}

/// By context and key.
static VALUES: Mutex<Option<HashMap<(usize, usize), StoredValue>>> = Mutex::new(None);

extern "C-unwind" fn storage_put(
    context: CuContext,
    key: *mut c_void,
    value: *mut c_void,
    destructor: Destructor,
) -> CuResult {
    answer(|| {
        let context = context::find_or_current(context)?.handle;
        let value = StoredValue {
            value: value.expose_provenance(),
            destructor,
        };
        lock(&VALUES)
            .get_or_insert_with(HashMap::new)
            .insert((context, key.addr()), value);
        Ok(())
    })
}

extern "C-unwind" fn storage_delete(context: CuContext, key: *mut c_void) -> CuResult {
    answer(|| {
        let context = context::find_or_current(context)?.handle;
        let mut values = lock(&VALUES);
        let gone = values
            .as_mut()
            .and_then(|all| all.remove(&(context, key.addr())));
        gone.map(drop).ok_or(CuResult::INVALID_HANDLE)
    })
}

extern "C-unwind" fn storage_get(
    out: *mut *mut c_void,
    context: CuContext,
    key: *mut c_void,
) -> CuResult {
    answer(|| {
        let context = context::find_or_current(context)?.handle;
        let values = lock(&VALUES);
        let found = values
            .as_ref()
            .and_then(|all| all.get(&(context, key.addr())));
        write(out, handle(found.ok_or(CuResult::INVALID_HANDLE)?.value))
    })
}

/// A context is gone: the runtime hears of each value that it kept there.
pub(crate) fn context_gone(context: Ctx) {
    let mut gone = Vec::new();
    if let Some(values) = lock(&VALUES).as_mut() {
        gone.extend(values.extract_if(|(owner, _), _| *owner == context.handle));
    }
    for ((_, key), StoredValue { value, destructor }) in gone {
        if let Some(destructor) = destructor {
            // SAFETY: the runtime's own function, called as its contract with the driver says.
            unsafe { destructor(context.as_handle(), handle(key), handle(value)) };
        }
    }
}
