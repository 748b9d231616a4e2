//! `cuGetExportTable`: the four tables through which a CUDA runtime older than 11.2 makes contexts,
//! loads modules and keeps values with a context. PyTorch 1.8.1 brings such a runtime (10.2).
//!
//! The table by which later runtimes have a driver prove that it is genuine is not answered, on purpose: this driver
//! is not genuine.

use std::collections::BTreeMap;
use std::sync::Mutex;

use cuda_api::driver::*;

use crate::base::border::{answer, handle, lock, read, write};
use crate::memory::context::{self, Ctx};
use crate::streams::module;

calls! {
    cuGetExportTable(out, export_table_id) => {
        let wanted = u128::from_be_bytes(read(export_table_id)?.bytes);
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

/// Each table by its UUID.
const TABLES: [(u128, &[Entry]); 4] = [
    (0x6bd5fb6c_5bf4_e74a_8987_d93912fd9df9, &RUNTIME),
    (0xa094798c_2e74_2e74_93f2_0800200c0a66, &HOOKS),
    (0x42d85a81_23f6_cb47_8298_f6e78a3aecdc, &TOOLS),
    (0xc693336e_1121_df11_a8c3_68f355d89593, &STORAGE),
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
static VALUES: Mutex<BTreeMap<(usize, usize), StoredValue>> = Mutex::new(BTreeMap::new());

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
        lock(&VALUES).insert((context, key.addr()), value);
        Ok(())
    })
}

extern "C-unwind" fn storage_delete(context: CuContext, key: *mut c_void) -> CuResult {
    answer(|| {
        let place = (context::find_or_current(context)?.handle, key.addr());
        let gone = lock(&VALUES).remove(&place);
        gone.map(drop).ok_or(CuResult::INVALID_HANDLE)
    })
}

extern "C-unwind" fn storage_get(
    out: *mut *mut c_void,
    context: CuContext,
    key: *mut c_void,
) -> CuResult {
    answer(|| {
        let place = (context::find_or_current(context)?.handle, key.addr());
        let values = lock(&VALUES);
        let found = values.get(&place);
        write(out, handle(found.ok_or(CuResult::INVALID_HANDLE)?.value))
    })
}

/// A context is gone: the runtime hears of each value that it kept there.
pub(crate) fn context_gone(context: Ctx) {
    let own = (context.handle, 0)..=(context.handle, usize::MAX);
    let gone: Vec<_> = lock(&VALUES).extract_if(own, |_, _| true).collect();
    for ((_, key), StoredValue { value, destructor }) in gone {
        if let Some(destructor) = destructor {
            // SAFETY: the runtime's own function, called as its contract with the driver says.
            unsafe { destructor(context.as_handle(), handle(key), handle(value)) };
        }
    }
}
