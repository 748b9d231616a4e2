//! The functions of virtual memory: reserve addresses, make physical memory, map, set access, export,
//! import.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use cuda_api::driver::*;
use cuda_sim::board::{self, SharedId};

use crate::base::border::{Done, check_out, invalid_if, is_within, lock, read, refuse_if, write};
use crate::base::space::{address, blank, protection};
use crate::memory::blocks::{self, Block, BlockKind};
use crate::memory::physical::{
    Contents, HANDLES, Held, Label, Mapping, Prop, contents, held, keep,
};
use crate::memory::shared;
use crate::process::choices::{self, granularity};
use crate::process::driver;
use crate::process::files;
use crate::process::location::{self, Location};

calls! {
    cuMemGetAllocationGranularity(out, prop, option) => {
        checked(&read(prop)?)?;
        invalid_if(option > 1)?;
        write(out, granularity() as usize)
    };
    cuMemUnmap(ptr, size) => {
        for (base, block) in mappings(ptr.0, size as u64)? {
            blank(base, block.bytes, false);
            // Gives the memory back, if its handle was released before.
            drop(blocks::remove(base, is_mapping));
        }
        Ok(())
    };
    cuMemAddressReserve(ptr, size, alignment, addr, flags) => {
        check_out(ptr)?;
        let bytes = size as u64;
        let aligned = alignment == 0 || alignment.is_power_of_two();
        invalid_if(bytes == 0 || !bytes.is_multiple_of(granularity()) || !aligned || flags != 0)?;
        let base = reserve(bytes, (alignment as u64).max(granularity()), addr.0)?;
        lock(&RESERVED).insert(base, bytes);
        write(ptr, CuDevicePtr(base))
    };
    cuMemAddressFree(ptr, size) => {
        let (base, bytes) = (ptr.0, size as u64);
        let mut reserved = lock(&RESERVED);
        invalid_if(reserved.get(&base) != Some(&bytes))?;
        invalid_if(!blocks::select(base..base + bytes, is_mapping).is_empty())?;
        reserved.remove(&base);
        // SAFETY: our own reservation, in which nothing is mapped.
        unsafe { libc::munmap(address(base), size) };
        Ok(())
    };
    cuMemCreate(handle, size, prop, flags) => {
        check_out(handle)?;
        let prop = read(prop)?;
        let (gpu, on_host) = checked(&prop)?;
        let bytes = size as u64;
        invalid_if(bytes == 0 || !bytes.is_multiple_of(granularity()) || flags != 0)?;
        let driver = driver::the()?;
        if !on_host {
            driver.take(gpu, bytes, board::Kind::Alloc)?;
        }
        let contents = contents(bytes, prop.requested_handle_types != 0).inspect_err(|_| {
            if !on_host {
                driver.give(gpu, bytes, board::Kind::Alloc);
            }
        })?;
        let prop = Prop {
            handle_types: prop.requested_handle_types,
            location: (prop.location.kind, prop.location.id),
            usage: prop.usage,
            compression: prop.compression_type,
            rdma: prop.gpu_direct_rdma_capable,
        };
        write(handle, keep(gpu, bytes, prop, contents, |it| it.on_host = on_host))
    };
    cuMemRelease(handle) => {
        let mut handles = lock(&HANDLES);
        let held = handles.get_mut(&handle.0).ok_or(CuResult::INVALID_VALUE)?;
        held.times -= 1;
        if held.times > 0 {
            return Ok(());
        }
        let gone = handles.remove(&handle.0);
        drop(handles);
        // Gives the memory back, unless it is still mapped.
        drop(gone);
        Ok(())
    };
    cuMemRetainAllocationHandle(handle, addr) => {
        check_out(handle)?;
        let (_, block) = blocks::find(addr.addr() as u64).ok_or(CuResult::INVALID_VALUE)?;
        let BlockKind::Mapped(mapping) = block.kind else {
            return Err(CuResult::INVALID_VALUE);
        };
        let physical = mapping.physical;
        let number = physical.handle;
        let mut handles = lock(&HANDLES);
        handles.entry(number).or_insert(Held { physical, times: 0 }).times += 1;
        write(handle, CuMemAllocationHandle(number))
    };
    cuMemGetAllocationPropertiesFromHandle(prop, handle) => {
        let physical = held(handle)?;
        let own = &physical.prop;
        let mut told = CuMemAllocationProp::zeroed();
        told.kind = PINNED;
        told.requested_handle_types = own.handle_types;
        told.location = CuMemLocation {
            kind: own.location.0,
            id: own.location.1,
        };
        told.usage = own.usage;
        told.compression_type = own.compression;
        told.gpu_direct_rdma_capable = own.rdma;
        write(prop, told)
    };
    cuMemMap(ptr, size, offset, handle, flags) => {
        let (base, bytes, offset) = (ptr.0, size as u64, offset as u64);
        let physical = held(handle)?;
        let whole = [base, bytes, offset].iter().all(|it| it.is_multiple_of(granularity()));
        let inside = is_within(offset, bytes, physical.bytes);
        invalid_if(bytes == 0 || !whole || !inside || flags != 0 || !is_reserved(base, bytes))?;
        let (gpu, file) = (physical.gpu, Arc::clone(&physical.file));
        let start = physical.offset + offset;
        let mapping = Mapping {
            physical,
            access: Arc::default(),
        };
        blocks::place_at(base, blocks::block(bytes, gpu, BlockKind::Mapped(mapping)))
            .map_err(|_| CuResult::INVALID_VALUE)?;
        shared::map_over(base, bytes, &file.file, start, false).inspect_err(|_| {
            drop(blocks::remove(base, is_mapping));
        })
    };
    cuMemSetAccess(ptr, size, desc, count) => {
        invalid_if(count == 0)?;
        let found = mappings(ptr.0, size as u64)?;
        for index in 0..count {
            let desc = read(desc.wrapping_add(index))?;
            let bit = match location::of(desc.location)? {
                Location::Gpu(gpu) => 1 << gpu,
                Location::Host => 1 << 31,
            };
            let (read, write) = match desc.flags {
                0 => (false, false),
                1 => (true, false),
                3 => (true, true),
                _ => return Err(CuResult::INVALID_VALUE),
            };
            for (_, block) in &found {
                if let BlockKind::Mapped(mapping) = &block.kind {
                    set(&mapping.access.read, bit, read);
                    set(&mapping.access.write, bit, write);
                }
            }
        }
        for (base, block) in &found {
            let BlockKind::Mapped(mapping) = &block.kind else {
                continue;
            };
            let any = mapping.access.read.load(Ordering::Relaxed) != 0;
            mapping.access.any.store(any, Ordering::Relaxed);
            // SAFETY: a mapping of ours.
            unsafe { libc::mprotect(address(*base), block.bytes as usize, protection(any)) };
        }
        Ok(())
    };
    cuMemGetAccess(flags, location, ptr) => {
        let location = read(location)?;
        let (_, block) = blocks::find(ptr.0).ok_or(CuResult::INVALID_VALUE)?;
        let BlockKind::Mapped(mapping) = block.kind else {
            return Err(CuResult::INVALID_VALUE);
        };
        let gpu = match location::of(location)? {
            Location::Gpu(gpu) => gpu,
            Location::Host => 31,
        };
        write(flags, mapping.access_of(gpu).into())
    };
    cuMemExportToShareableHandle(shareable_handle, handle, handle_type, flags) => {
        check_out(shareable_handle)?;
        let physical = held(handle)?;
        let types = physical.prop.handle_types & FILE_DESCRIPTOR;
        invalid_if(handle_type != FILE_DESCRIPTOR || types == 0 || flags != 0)?;
        let is_new = lock(&physical.shared).is_none();
        let id = physical.share()?.map_or(0, |id| id.0);
        if is_new {
            let label = Label {
                magic: LABEL_MAGIC,
                id,
                gpu: physical.gpu as u64,
                bytes: physical.bytes,
                location: [physical.prop.location.0, physical.prop.location.1 as u32],
            };
            files::write_record(&physical.file.file, physical.bytes, &label)?;
        }
        let fd = files::exported(&physical.file.file, physical.token)?;
        write(shareable_handle.cast::<i32>(), fd)
    };
    cuMemImportFromShareableHandle(handle, os_handle, sh_handle_type) => {
        check_out(handle)?;
        invalid_if(sh_handle_type != FILE_DESCRIPTOR)?;
        let (file, token) = files::imported(os_handle.addr() as i32)?;
        let length = file.metadata().map_err(|_| CuResult::INVALID_VALUE)?.len();
        let at = length.checked_sub(size_of::<Label>() as u64);
        let at = at.ok_or(CuResult::INVALID_VALUE)?;
        let label: Label = files::read_record(&file, at)?;
        let driver = driver::the()?;
        let gpu = label.gpu as usize;
        let on_host = HOST.contains(&label.location[0]);
        invalid_if(label.magic != LABEL_MAGIC || label.bytes != at)?;
        let ordinal = driver.ordinal(gpu).ok_or(CuResult::INVALID_DEVICE)?;
        let shared = (label.id != 0).then_some(SharedId(label.id));
        if let Some(number) = shared.and_then(own_handle) {
            return write(handle, number);
        }
        if let Some(id) = shared {
            let held = driver.board.hold(driver.member, id);
            held.map_err(|_| CuResult::INVALID_VALUE)?;
        }
        let id = if on_host { label.location[1] as i32 } else { ordinal.0 };
        let prop = Prop {
            handle_types: FILE_DESCRIPTOR,
            location: (label.location[0], id),
            ..Prop::default()
        };
        let contents = (Arc::new(Contents { file, free: None }), 0, token);
        write(handle, keep(gpu, label.bytes, prop, contents, |it| {
            (it.on_host, it.shared) = (on_host, Mutex::new(shared));
        }))
    };
}

const PINNED: u32 = 1;
const HOST: std::ops::RangeInclusive<u32> = 2..=4;
const FILE_DESCRIPTOR: u32 = 1;
static RESERVED: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

// --- addresses --------------------------------------------------------------------------------------

fn reserve(bytes: u64, alignment: u64, wanted: u64) -> Done<u64> {
    const NO_PAGES: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let map = |hint: u64, length: u64, flags: i32| {
        // SAFETY: a new mapping that replaces none.
        let mapped = unsafe {
            libc::mmap(
                address(hint),
                length as usize,
                libc::PROT_NONE,
                NO_PAGES | flags,
                -1,
                0,
            )
        };
        (mapped != libc::MAP_FAILED).then(|| mapped.expose_provenance() as u64)
    };
    if wanted != 0 && wanted.is_multiple_of(alignment) {
        // The address is only a wish: if it is taken, another one is chosen.
        if let Some(base) = map(wanted, bytes, libc::MAP_FIXED_NOREPLACE) {
            return Ok(base);
        }
    }
    let length = bytes
        .checked_add(alignment)
        .ok_or(CuResult::OUT_OF_MEMORY)?;
    let start = map(0, length, 0).ok_or(CuResult::OUT_OF_MEMORY)?;
    let base = start.next_multiple_of(alignment);
    let unmap = |from: u64, to: u64| {
        if to > from {
            // SAFETY: the ends of the mapping made above, which no caller has seen.
            unsafe { libc::munmap(address(from), (to - from) as usize) };
        }
    };
    unmap(start, base);
    unmap(base + bytes, start + length);
    Ok(base)
}

fn is_mapping(block: &Block) -> bool {
    matches!(block.kind, BlockKind::Mapped(_))
}

fn is_reserved(base: u64, bytes: u64) -> bool {
    let reserved = lock(&RESERVED);
    let last = reserved.range(..=base).next_back();
    last.is_some_and(|(start, length)| base - start + bytes <= *length)
}

// --- physical memory --------------------------------------------------------------------------------

fn checked(prop: &CuMemAllocationProp) -> Done<(usize, bool)> {
    invalid_if(prop.kind != PINNED)?;
    refuse_if(
        prop.requested_handle_types & !FILE_DESCRIPTOR != 0,
        CuResult::NOT_SUPPORTED,
    )?;
    Ok(match location::of(prop.location)? {
        Location::Gpu(gpu) => (gpu, false),
        Location::Host => (0, true),
    })
}

// --- mapping ----------------------------------------------------------------------------------------

/// The mappings of a range, which must be whole and leave no gap.
fn mappings(base: u64, bytes: u64) -> Done<Vec<(u64, Block)>> {
    let end = base.checked_add(bytes).filter(|_| bytes > 0);
    let end = end.ok_or(CuResult::INVALID_VALUE)?;
    let found = blocks::select(base..end, is_mapping);
    let mut at = base;
    for (start, block) in &found {
        invalid_if(*start != at)?;
        at += block.bytes;
    }
    invalid_if(at != end)?;
    Ok(found)
}

fn set(mask: &AtomicU32, bit: u32, on: bool) {
    if on {
        mask.fetch_or(bit, Ordering::Relaxed);
    } else {
        mask.fetch_and(!bit, Ordering::Relaxed);
    }
}

// --- between processes ------------------------------------------------------------------------------

const LABEL_MAGIC: u64 = u64::from_le_bytes(*b"vgpu-vmm");

/// The handle of memory that this process has already, with one more reference, if the driver returns the same
/// handle.
fn own_handle(id: SharedId) -> Option<CuMemAllocationHandle> {
    if !choices::imports_own_handle() {
        return None;
    }
    let mut handles = lock(&HANDLES);
    let is_it = |held: &&mut Held| *lock(&held.physical.shared) == Some(id);
    let held = handles.values_mut().find(is_it)?;
    held.times += 1;
    Some(CuMemAllocationHandle(held.physical.handle))
}
