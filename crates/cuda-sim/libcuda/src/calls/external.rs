//! External memory and semaphores: objects of other APIs, passed as a file. On a real GPU the exporter's memory backs
//! them; here the file represents it, and its bytes count for the process that imports it, until the program destroys
//! it or its context ends.

use std::fs::File;
use std::sync::Arc;

use cuda_api::driver::*;
use cuda_sim::board;

use crate::base::border::{
    Done, check_out, handle, invalid_if, is_within, read, read_all, refuse_if, write,
};
use crate::base::space::PAGE;
use crate::base::table::Table;
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
    cuDestroyExternalMemory(ext_mem) => MEMORIES.end(ext_mem.addr());
    cuDestroyExternalSemaphore(ext_sem) => SEMAPHORES.end(ext_sem.addr());
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
        let memory = Memory { context, file, bytes: desc.size, gpu: context.gpu, taken };
        write(ext_mem_out, handle(MEMORIES.insert(Arc::new(memory))))
    };
    cuImportExternalSemaphore(ext_sem_out, sem_handle_desc) => {
        let context = context::current()?.home();
        check_out(ext_sem_out)?;
        let desc = read(sem_handle_desc)?;
        let is_file = matches!(desc.kind, OPAQUE_FD | TIMELINE_FD);
        refuse_if(!is_file, CuResult::NOT_SUPPORTED)?;
        // SAFETY: the kind says that it is a descriptor.
        let file = take_over(unsafe { desc.handle.fd })?;
        write(ext_sem_out, handle(SEMAPHORES.insert(Arc::new((context, file)))))
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

static MEMORIES: Table<Memory> = Table::new(CuResult::INVALID_HANDLE);
/// The context into which each was imported, and its file.
static SEMAPHORES: Table<(Ctx, File)> = Table::new(CuResult::INVALID_HANDLE);
const OPAQUE_FD: u32 = 1;
const TIMELINE_FD: u32 = 9;

/// A context ends, and what was imported into it: `cuCtxDestroy` names both kinds among a context's resources.
pub(crate) fn context_gone(context: Ctx) {
    SEMAPHORES.take(|(of, _)| of.handle == context.handle);
    MEMORIES.take(|memory| memory.context.handle == context.handle);
}

/// The driver owns an imported descriptor from then on, and closes it.
fn take_over(fd: i32) -> Done<File> {
    let file = files::from_program(fd)?;
    // SAFETY: the program has handed this descriptor over.
    unsafe { libc::close(fd) };
    Ok(file)
}

fn find(handle: CuExternalMemory) -> Done<Arc<Memory>> {
    MEMORIES.find(handle.addr())
}

fn map(memory: &Memory, offset: u64, bytes: u64) -> Done<u64> {
    let context = context::current()?.home();
    let inside = is_within(offset, bytes, memory.bytes);
    invalid_if(bytes == 0 || !inside || !offset.is_multiple_of(PAGE))?;
    let mut block = blocks::block(bytes, context.gpu, BlockKind::External);
    block.context = Some(context);
    let base = blocks::place(block, false)?;
    let pages = bytes.next_multiple_of(PAGE);
    shared::map_over(base, pages, &memory.file, offset, true)?;
    Ok(base)
}

// --- semaphores: signalled and waited for at once, since nothing else runs on their other side ------

fn all_known(semaphores: *const CuExternalSemaphore, count: u32, stream: CuStream) -> Done {
    stream::find(stream)?;
    for semaphore in read_all(semaphores, count as usize)? {
        SEMAPHORES.find(semaphore.addr())?;
    }
    Ok(())
}
