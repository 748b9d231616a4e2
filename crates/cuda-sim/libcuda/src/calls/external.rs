//! External memory and semaphores: objects of other APIs, passed as a file. On a real GPU the exporter's memory backs
//! them; here the file represents it, and its bytes count for the process that imports it, until the program destroys
//! it or its context ends.

use std::collections::HashMap;
use std::fs::File;
use std::sync::{Arc, Mutex};

use cuda_api::driver::*;
use cuda_sim::board;

use crate::base::border::{Done, check_out, invalid_if, lock, read, refuse_if, write};
use crate::base::space::PAGE;
use crate::memory::array;
use crate::memory::blocks::{self, BlockKind};
use crate::memory::context::{self, Ctx};
use crate::memory::shared;
use crate::process::driver;
use crate::process::files;
use crate::streams::stream;

calls! {
    cuExternalMemoryGetMappedBuffer(dev_ptr, ext_mem, buffer_desc) => {
        check_out(dev_ptr)?;
        let desc = read(buffer_desc)?;
        invalid_if(desc.flags != 0)?;
        let base = map(&*find(ext_mem)?, desc.offset, desc.size)?;
        write(dev_ptr, CuDevicePtr(base))
    };
    cuExternalMemoryGetMappedMipmappedArray(mipmap, ext_mem, mipmap_desc) => {
        check_out(mipmap)?;
        let desc = read(mipmap_desc)?;
        let memory = find(ext_mem)?;
        let bytes = memory.bytes.saturating_sub(desc.offset);
        let base = map(&memory, desc.offset, bytes)?;
        let made = array::mipmap_over(base, &desc.array, desc.num_levels)?;
        write(mipmap, made)
    };
    cuDestroyExternalMemory(ext_mem) => {
        let gone = with(|imports| imports.memories.remove(&ext_mem.addr()));
        refuse_if(gone.is_none(), CuResult::INVALID_HANDLE)
    };
    cuDestroyExternalSemaphore(ext_sem) => {
        let gone = with(|imports| imports.semaphores.remove(&ext_sem.addr()));
        refuse_if(gone.is_none(), CuResult::INVALID_HANDLE)
    };
    cuSignalExternalSemaphoresAsync,
    cuWaitExternalSemaphoresAsync(ext_sem_array, _params_array, count_ext_sems, stream)
        => all_known(ext_sem_array, count_ext_sems, stream);
    cuImportExternalMemory(ext_mem_out, mem_handle_desc) => {
        let context = context::current()?.home();
        check_out(ext_mem_out)?;
        let desc = read(mem_handle_desc)?;
        refuse_if(desc.kind != OPAQUE_FD, CuResult::NOT_SUPPORTED)?;
        invalid_if(desc.size == 0)?;
        // SAFETY: the kind says that it is a descriptor.
        let file = take_over(unsafe { desc.handle.fd })?;
        let length = file.metadata().map_err(|_| CuResult::INVALID_VALUE)?.len();
        invalid_if(length < desc.size)?;
        let taken = blocks::rounded(desc.size);
        driver::the()?.take(context.gpu, taken, board::Kind::Alloc)?;
        let memory = Memory {
            context,
            file,
            bytes: desc.size,
            gpu: context.gpu,
            taken,
        };
        let handle = with(|imports| {
            let handle = number(imports);
            imports.memories.insert(handle, Arc::new(memory));
            handle
        });
        write(ext_mem_out, std::ptr::without_provenance_mut(handle))
    };
    cuImportExternalSemaphore(ext_sem_out, sem_handle_desc) => {
        let context = context::current()?.home();
        check_out(ext_sem_out)?;
        let desc = read(sem_handle_desc)?;
        if desc.kind != OPAQUE_FD && desc.kind != TIMELINE_FD {
            return Err(CuResult::NOT_SUPPORTED);
        }
        // SAFETY: the kind says that it is a descriptor.
        let file = take_over(unsafe { desc.handle.fd })?;
        let handle = with(|imports| {
            let handle = number(imports);
            imports.semaphores.insert(handle, (context, file));
            handle
        });
        write(ext_sem_out, std::ptr::without_provenance_mut(handle))
    };
}

#[derive(Debug)]
struct Memory {
    context: Ctx,
    file: File,
    bytes: u64,
    gpu: usize,
    taken: u64,
}

impl Drop for Memory {
    fn drop(&mut self) {
        // In a forked child the parent's memory is not the child's to give back.
        if let Some(driver) = driver::get() {
            driver.give(self.gpu, self.taken, board::Kind::Alloc);
        }
    }
}

#[derive(Default)]
struct Imports {
    next: usize,
    memories: HashMap<usize, Arc<Memory>>,
    semaphores: HashMap<usize, (Ctx, File)>,
}

static IMPORTS: Mutex<Option<Imports>> = Mutex::new(None);

const OPAQUE_FD: u32 = 1;

const TIMELINE_FD: u32 = 9;

fn with<T>(body: impl FnOnce(&mut Imports) -> T) -> T {
    let mut imports = lock(&IMPORTS);
    body(imports.get_or_insert_with(Imports::default))
}

/// A context ends, and what was imported into it: `cuCtxDestroy` names both kinds among a context's resources.
pub(crate) fn context_gone(context: Ctx) {
    let gone: Vec<_> = with(|imports| {
        imports
            .semaphores
            .retain(|_, (of, _)| of.handle != context.handle);
        let of_it = |memory: &Arc<Memory>| memory.context.handle == context.handle;
        let memories = imports.memories.extract_if(|_, memory| of_it(memory));
        memories.collect()
    });
    drop(gone);
}

/// A handle that no other import has had.
fn number(imports: &mut Imports) -> usize {
    imports.next += 0x100;
    imports.next
}

/// The driver owns an imported descriptor from then on, and closes it.
fn take_over(fd: i32) -> Done<File> {
    let file = files::from_program(fd)?;
    // SAFETY: the program has handed this descriptor over.
    unsafe { libc::close(fd) };
    Ok(file)
}

fn find(handle: CuExternalMemory) -> Done<Arc<Memory>> {
    with(|imports| imports.memories.get(&handle.addr()).cloned()).ok_or(CuResult::INVALID_HANDLE)
}

fn map(memory: &Memory, offset: u64, bytes: u64) -> Done<u64> {
    let context = context::current()?.home();
    let inside = offset
        .checked_add(bytes)
        .is_some_and(|end| end <= memory.bytes);
    invalid_if(bytes == 0 || !inside || !offset.is_multiple_of(PAGE))?;
    let mut block = blocks::block(bytes, context.gpu, BlockKind::External);
    block.context = Some(context);
    let base = blocks::place(block, false)?;
    shared::map_over(
        base,
        bytes.next_multiple_of(PAGE),
        &memory.file,
        offset,
        true,
    )?;
    Ok(base)
}

// --- semaphores: signalled and waited for at once, since nothing else runs on their other side ------

fn all_known(semaphores: *const CuExternalSemaphore, count: u32, stream: CuStream) -> Done {
    stream::find(stream)?;
    for index in 0..count as usize {
        let semaphore = read(semaphores.wrapping_add(index))?;
        if !with(|imports| imports.semaphores.contains_key(&semaphore.addr())) {
            return Err(CuResult::INVALID_HANDLE);
        }
    }
    Ok(())
}
