//! Virtual memory management: addresses reserved apart from memory, physical memory made apart from
//! addresses, and the two brought together. Physical memory lives until its last handle is released and
//! its last mapping gone, in whichever process that is.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_api::driver::*;
use cuda_sim::board::{self, SharedId};

use crate::border::{Done, check_out, read, write};
use crate::choices::{self, granularity};
use crate::location::{self, Place};
use crate::memory::{self, Block, Kind};
use crate::multicast::Multicast;
use crate::space::address;
use crate::{driver, ipc};

const PINNED: u32 = 1;
const DEVICE: u32 = 1;
const HOST: std::ops::RangeInclusive<u32> = 2..=4;
const FILE_DESCRIPTOR: u32 = 1;

/// Physical memory.
#[derive(Debug)]
pub(crate) struct Physical {
    handle: u64,
    pub(crate) gpu: usize,
    pub(crate) bytes: u64,
    on_host: bool,
    prop: Prop,
    file: Arc<Contents>,
    /// Where its contents begin in the file.
    offset: u64,
    /// The number that its exported descriptors say, where they say one.
    token: Option<u64>,
    shared: Mutex<Option<SharedId>>,
    /// Set when it is a multicast object.
    pub(crate) multicast: Option<Multicast>,
}

/// The part of the properties that is told again.
#[derive(Debug, Clone, Copy)]
struct Prop {
    handle_types: u32,
    location: (u32, i32),
    usage: u16,
    compression: u8,
    rdma: u8,
}

/// A file with physical memory in it.
#[derive(Debug)]
struct Contents {
    file: File,
    /// Of pieces; only in the file that all unshareable memory of a process stands in.
    free: Option<Mutex<Pieces>>,
}

#[derive(Debug, Default)]
struct Pieces {
    end: u64,
    free: HashMap<u64, Vec<u64>>,
}

impl Drop for Physical {
    fn drop(&mut self) {
        if let Some(pieces) = &self.file.free {
            // The pages go back to the machine. Best effort: a file system may not know how.
            // SAFETY: a descriptor of ours.
            unsafe {
                libc::fallocate(
                    self.file.file.as_raw_fd(),
                    libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                    self.offset as libc::off_t,
                    self.bytes as libc::off_t,
                )
            };
            lock(pieces)
                .free
                .entry(self.bytes)
                .or_default()
                .push(self.offset);
        }
        // In a forked child the parent's memory is not the child's to give back.
        let Some(driver) = driver::get() else { return };
        if choices::reuses_handles() {
            lock(&FREE_HANDLES).push(self.handle);
        }
        match *lock(&self.shared) {
            Some(shared) => {
                let is_gone = driver.board.let_go(driver.member, shared);
                if is_gone {
                    ipc::forget(driver, shared);
                    ipc::forget_token(driver, self.token);
                }
            }
            None if self.takes_memory() => driver.give(self.gpu, self.bytes, board::Kind::Alloc),
            None => {}
        }
    }
}

impl Physical {
    fn takes_memory(&self) -> bool {
        !self.on_host && self.multicast.is_none()
    }

    /// The board's number of it, from which on processes can hold it together; none where it takes nothing of a GPU.
    pub(crate) fn share(&self) -> Done<Option<SharedId>> {
        let driver = driver::the()?;
        let mut shared = lock(&self.shared);
        if shared.is_none() && self.takes_memory() {
            let made = driver.board.share(driver.member, self.gpu, self.bytes);
            *shared = Some(made.map_err(driver::refusal)?);
        }
        Ok(*shared)
    }
}

/// Physical memory at an address.
#[derive(Debug, Clone)]
pub(crate) struct Mapping {
    physical: Arc<Physical>,
    access: Arc<Access>,
}

/// Who may touch a mapping: a bit for each GPU.
#[derive(Debug, Default)]
struct Access {
    read: AtomicU32,
    write: AtomicU32,
    any: AtomicBool,
}

impl Mapping {
    /// The memory that is mapped.
    pub(crate) fn physical(&self) -> &Arc<Physical> {
        &self.physical
    }

    /// Whether anybody may touch it.
    pub(crate) fn is_accessible(&self) -> bool {
        // Relaxed, as all in `Access`: the program orders its own calls.
        self.access.any.load(Ordering::Relaxed)
    }

    /// Flags of access for a GPU: 0 none, 1 read, 3 read and write.
    pub(crate) fn access_of(&self, gpu: usize) -> u32 {
        let bit = 1 << gpu;
        let read = self.access.read.load(Ordering::Relaxed) & bit != 0;
        let write = self.access.write.load(Ordering::Relaxed) & bit != 0;
        if write { 3 } else { u32::from(read) }
    }

    /// As what it may be exported.
    pub(crate) fn handle_types(&self) -> u64 {
        self.physical.prop.handle_types.into()
    }
}

/// A handle that the program holds so many times.
#[derive(Debug)]
struct Held {
    physical: Arc<Physical>,
    times: u32,
}

static HANDLES: Mutex<BTreeMap<u64, Held>> = Mutex::new(BTreeMap::new());
static RESERVED: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());
static NEXT_HANDLE: AtomicU64 = AtomicU64::new(1);
/// Numbers of handles that are gone, the last one last.
static FREE_HANDLES: Mutex<Vec<u64>> = Mutex::new(Vec::new());
static COMMON: Mutex<Option<Arc<Contents>>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn held(handle: CuMemAllocationHandle) -> Done<Arc<Physical>> {
    let handles = lock(&HANDLES);
    handles
        .get(&handle.0)
        .map(|held| Arc::clone(&held.physical))
        .ok_or(CuResult::INVALID_VALUE)
}

// --- addresses --------------------------------------------------------------------------------------

/// Makes pages nobody's again: nothing can be read there, or, with `usable`, zeroes can.
pub(crate) fn blank(base: u64, bytes: u64, usable: bool) {
    let protection = if usable {
        libc::PROT_READ | libc::PROT_WRITE
    } else {
        libc::PROT_NONE
    };
    // SAFETY: replaces pages of a mapping of ours that nobody uses any more. Where the machine
    // refuses, the old pages stay, and nobody is told of their address again.
    unsafe {
        libc::mmap(
            address(base),
            bytes as usize,
            protection,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
            -1,
            0,
        )
    };
}

pub(crate) fn cuMemAddressReserve(
    ptr: *mut CuDevicePtr,
    size: usize,
    alignment: usize,
    addr: CuDevicePtr,
    flags: u64,
) -> Done {
    check_out(ptr)?;
    let bytes = size as u64;
    let aligned = alignment == 0 || alignment.is_power_of_two();
    if bytes == 0 || !bytes.is_multiple_of(granularity()) || !aligned || flags != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let base = reserve(bytes, (alignment as u64).max(granularity()), addr.0)?;
    lock(&RESERVED).insert(base, bytes);
    write(ptr, CuDevicePtr(base))
}

fn reserve(bytes: u64, alignment: u64, wanted: u64) -> Done<u64> {
    const NOBODY: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let map = |hint: u64, length: u64, flags: i32| {
        // SAFETY: a new mapping that replaces none.
        let mapped = unsafe {
            libc::mmap(
                address(hint),
                length as usize,
                libc::PROT_NONE,
                NOBODY | flags,
                -1,
                0,
            )
        };
        (mapped != libc::MAP_FAILED).then(|| mapped.expose_provenance() as u64)
    };
    if wanted != 0 && wanted.is_multiple_of(alignment) {
        // The wish is only one: elsewhere, when something is there.
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
            // SAFETY: the ends of the mapping made above, which nobody knows of.
            unsafe { libc::munmap(address(from), (to - from) as usize) };
        }
    };
    unmap(start, base);
    unmap(base + bytes, start + length);
    Ok(base)
}

fn is_mapping(block: &Block) -> bool {
    matches!(block.kind, Kind::Mapped(_))
}

pub(crate) fn cuMemAddressFree(ptr: CuDevicePtr, size: usize) -> Done {
    let (base, bytes) = (ptr.0, size as u64);
    let mut reserved = lock(&RESERVED);
    if reserved.get(&base) != Some(&bytes) {
        return Err(CuResult::INVALID_VALUE);
    }
    if !memory::select(base..base + bytes, is_mapping).is_empty() {
        return Err(CuResult::INVALID_VALUE);
    }
    reserved.remove(&base);
    // SAFETY: our own reservation, in which nothing is mapped.
    unsafe { libc::munmap(address(base), size) };
    Ok(())
}

fn is_reserved(base: u64, bytes: u64) -> bool {
    let reserved = lock(&RESERVED);
    let last = reserved.range(..=base).next_back();
    last.is_some_and(|(start, length)| base - start + bytes <= *length)
}

// --- physical memory --------------------------------------------------------------------------------

fn checked(prop: &CuMemAllocationProp) -> Done<(usize, bool)> {
    if prop.kind != PINNED {
        return Err(CuResult::INVALID_VALUE);
    }
    if prop.requested_handle_types & !FILE_DESCRIPTOR != 0 {
        return Err(CuResult::NOT_SUPPORTED);
    }
    Ok(match location::of(prop.location)? {
        Place::Gpu(gpu) => (gpu, false),
        Place::Host => (0, true),
    })
}

pub(crate) fn cuMemGetAllocationGranularity(
    out: *mut usize,
    prop: *const CuMemAllocationProp,
    option: CuMemAllocationGranularityFlags,
) -> Done {
    checked(&read(prop)?)?;
    if option > 1 {
        return Err(CuResult::INVALID_VALUE);
    }
    write(out, granularity() as usize)
}

/// The file that all unshareable physical memory of this process stands in, so that each piece does
/// not take a descriptor.
fn common() -> Done<Arc<Contents>> {
    let mut common = lock(&COMMON);
    if let Some(contents) = &*common {
        return Ok(Arc::clone(contents));
    }
    let file = ipc::memory_file(c"vgpu-sim-memory", 0)?;
    let contents = Arc::new(Contents {
        file,
        free: Some(Mutex::default()),
    });
    *common = Some(Arc::clone(&contents));
    Ok(contents)
}

/// A place for contents: a piece of the common file, or a file of its own that can be passed on, and the number by
/// which that is done, if by one.
fn contents(bytes: u64, shareable: bool) -> Done<(Arc<Contents>, u64, Option<u64>)> {
    if shareable {
        let length = bytes
            .checked_add(size_of::<Label>() as u64)
            .ok_or(CuResult::OUT_OF_MEMORY)?;
        let (file, token) = ipc::shareable_file(c"vgpu-sim-shareable", length)?;
        return Ok((Arc::new(Contents { file, free: None }), 0, token));
    }
    let common = common()?;
    let offset = {
        let Some(pieces) = &common.free else {
            return Err(CuResult::UNKNOWN);
        };
        let mut pieces = lock(pieces);
        if let Some(offset) = pieces.free.get_mut(&bytes).and_then(Vec::pop) {
            offset
        } else {
            let end = pieces
                .end
                .checked_add(bytes)
                .ok_or(CuResult::OUT_OF_MEMORY)?;
            common
                .file
                .set_len(end)
                .map_err(|_| CuResult::OUT_OF_MEMORY)?;
            std::mem::replace(&mut pieces.end, end)
        }
    };
    Ok((common, offset, None))
}

/// A number for a handle.
fn fresh_handle() -> u64 {
    // Relaxed: only has to differ from every other.
    let next = || NEXT_HANDLE.fetch_add(1, Ordering::Relaxed);
    if choices::reuses_handles() {
        lock(&FREE_HANDLES).pop().unwrap_or_else(next)
    } else {
        0x5600_0000_0000 + next()
    }
}

fn keep(make: impl FnOnce(u64) -> Physical) -> CuMemAllocationHandle {
    let handle = fresh_handle();
    let physical = Arc::new(make(handle));
    lock(&HANDLES).insert(handle, Held { physical, times: 1 });
    CuMemAllocationHandle(handle)
}

pub(crate) fn cuMemCreate(
    handle: *mut CuMemAllocationHandle,
    size: usize,
    prop: *const CuMemAllocationProp,
    flags: u64,
) -> Done {
    check_out(handle)?;
    let prop = read(prop)?;
    let (gpu, on_host) = checked(&prop)?;
    let bytes = size as u64;
    if bytes == 0 || !bytes.is_multiple_of(granularity()) || flags != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let driver = driver::the()?;
    if !on_host {
        driver.take(gpu, bytes, board::Kind::Alloc)?;
    }
    let (file, offset, token) =
        contents(bytes, prop.requested_handle_types != 0).inspect_err(|_| {
            if !on_host {
                driver.give(gpu, bytes, board::Kind::Alloc);
            }
        })?;
    let made = keep(|handle| Physical {
        handle,
        gpu,
        bytes,
        on_host,
        prop: Prop {
            handle_types: prop.requested_handle_types,
            location: (prop.location.kind, prop.location.id),
            usage: prop.usage,
            compression: prop.compression_type,
            rdma: prop.gpu_direct_rdma_capable,
        },
        file,
        offset,
        token,
        shared: Mutex::new(None),
        multicast: None,
    });
    write(handle, made)
}

pub(crate) fn cuMemRelease(handle: CuMemAllocationHandle) -> Done {
    let mut handles = lock(&HANDLES);
    let Some(held) = handles.get_mut(&handle.0) else {
        return Err(CuResult::INVALID_VALUE);
    };
    held.times -= 1;
    if held.times > 0 {
        return Err(CuResult::SUCCESS);
    }
    let gone = handles.remove(&handle.0);
    drop(handles);
    // Gives the memory back, unless it is still mapped.
    drop(gone);
    Ok(())
}

pub(crate) fn cuMemRetainAllocationHandle(
    handle: *mut CuMemAllocationHandle,
    addr: *mut c_void,
) -> Done {
    check_out(handle)?;
    let (_, block) = memory::find(addr.addr() as u64).ok_or(CuResult::INVALID_VALUE)?;
    let Kind::Mapped(mapping) = block.kind else {
        return Err(CuResult::INVALID_VALUE);
    };
    let physical = mapping.physical;
    let number = physical.handle;
    lock(&HANDLES)
        .entry(number)
        .or_insert(Held { physical, times: 0 })
        .times += 1;
    write(handle, CuMemAllocationHandle(number))
}

pub(crate) fn cuMemGetAllocationPropertiesFromHandle(
    prop: *mut CuMemAllocationProp,
    handle: CuMemAllocationHandle,
) -> Done {
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
}

// --- mapping ----------------------------------------------------------------------------------------

pub(crate) fn cuMemMap(
    ptr: CuDevicePtr,
    size: usize,
    offset: usize,
    handle: CuMemAllocationHandle,
    flags: u64,
) -> Done {
    let (base, bytes, offset) = (ptr.0, size as u64, offset as u64);
    let physical = held(handle)?;
    let whole = base.is_multiple_of(granularity())
        && bytes.is_multiple_of(granularity())
        && offset.is_multiple_of(granularity());
    let inside = offset
        .checked_add(bytes)
        .is_some_and(|end| end <= physical.bytes);
    if bytes == 0 || !whole || !inside || flags != 0 || !is_reserved(base, bytes) {
        return Err(CuResult::INVALID_VALUE);
    }
    let (gpu, file) = (physical.gpu, Arc::clone(&physical.file));
    let start = physical.offset + offset;
    let mapping = Mapping {
        physical,
        access: Arc::default(),
    };
    memory::place_at(base, memory::block(bytes, gpu, Kind::Mapped(mapping)))
        .map_err(|_| CuResult::INVALID_VALUE)?;
    ipc::map_over(base, bytes, &file.file, start, false).inspect_err(|_| {
        drop(memory::remove(base, is_mapping));
    })
}

/// The mappings of a range, which must be whole and leave no gap.
fn mappings(base: u64, bytes: u64) -> Done<Vec<(u64, Block)>> {
    let end = base
        .checked_add(bytes)
        .filter(|_| bytes > 0)
        .ok_or(CuResult::INVALID_VALUE)?;
    let found = memory::select(base..end, is_mapping);
    let mut at = base;
    for (start, block) in &found {
        if *start != at {
            return Err(CuResult::INVALID_VALUE);
        }
        at += block.bytes;
    }
    if at == end {
        Ok(found)
    } else {
        Err(CuResult::INVALID_VALUE)
    }
}

pub(crate) fn cuMemUnmap(ptr: CuDevicePtr, size: usize) -> Done {
    for (base, block) in mappings(ptr.0, size as u64)? {
        blank(base, block.bytes, false);
        // Gives the memory back, if its handle was released before.
        drop(memory::remove(base, is_mapping));
    }
    Ok(())
}

pub(crate) fn cuMemSetAccess(
    ptr: CuDevicePtr,
    size: usize,
    desc: *const CuMemAccessDesc,
    count: usize,
) -> Done {
    if count == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let found = mappings(ptr.0, size as u64)?;
    for index in 0..count {
        let desc = read(desc.wrapping_add(index))?;
        let bit = match location::of(desc.location)? {
            Place::Gpu(gpu) => 1 << gpu,
            Place::Host => 1 << 31,
        };
        let (read, write) = match desc.flags {
            0 => (false, false),
            1 => (true, false),
            3 => (true, true),
            _ => return Err(CuResult::INVALID_VALUE),
        };
        for (_, block) in &found {
            if let Kind::Mapped(mapping) = &block.kind {
                set(&mapping.access.read, bit, read);
                set(&mapping.access.write, bit, write);
            }
        }
    }
    for (base, block) in &found {
        let Kind::Mapped(mapping) = &block.kind else {
            continue;
        };
        let any = mapping.access.read.load(Ordering::Relaxed) != 0;
        mapping.access.any.store(any, Ordering::Relaxed);
        let protection = if any {
            libc::PROT_READ | libc::PROT_WRITE
        } else {
            libc::PROT_NONE
        };
        // SAFETY: a mapping of ours.
        unsafe { libc::mprotect(address(*base), block.bytes as usize, protection) };
    }
    Ok(())
}

fn set(mask: &AtomicU32, bit: u32, on: bool) {
    if on {
        mask.fetch_or(bit, Ordering::Relaxed);
    } else {
        mask.fetch_and(!bit, Ordering::Relaxed);
    }
}

pub(crate) fn cuMemGetAccess(
    flags: *mut u64,
    location: *const CuMemLocation,
    ptr: CuDevicePtr,
) -> Done {
    let location = read(location)?;
    let (_, block) = memory::find(ptr.0).ok_or(CuResult::INVALID_VALUE)?;
    let Kind::Mapped(mapping) = block.kind else {
        return Err(CuResult::INVALID_VALUE);
    };
    let gpu = match location::of(location)? {
        Place::Gpu(gpu) => gpu,
        Place::Host => 31,
    };
    write(flags, mapping.access_of(gpu).into())
}

// --- between processes ------------------------------------------------------------------------------

/// What a shareable file says of itself, after its contents.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Label {
    magic: u64,
    id: u64,
    gpu: u64,
    bytes: u64,
    /// Kind and id of its location.
    location: [u32; 2],
}

const LABEL_MAGIC: u64 = u64::from_le_bytes(*b"vgpu-vmm");

pub(crate) fn cuMemExportToShareableHandle(
    shareable_handle: *mut c_void,
    handle: CuMemAllocationHandle,
    handle_type: CuMemAllocationHandleType,
    flags: u64,
) -> Done {
    check_out(shareable_handle)?;
    let physical = held(handle)?;
    let allowed = handle_type == FILE_DESCRIPTOR && physical.prop.handle_types & handle_type != 0;
    if !allowed || flags != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
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
        ipc::write_record(&physical.file.file, physical.bytes, &label)?;
    }
    let fd = ipc::exported(&physical.file.file, physical.token)?;
    write(shareable_handle.cast::<i32>(), fd)
}

/// The handle of memory that this process has already, held once more, where the driver gives that one.
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

pub(crate) fn cuMemImportFromShareableHandle(
    handle: *mut CuMemAllocationHandle,
    os_handle: *mut c_void,
    sh_handle_type: CuMemAllocationHandleType,
) -> Done {
    check_out(handle)?;
    if sh_handle_type != FILE_DESCRIPTOR {
        return Err(CuResult::INVALID_VALUE);
    }
    let (file, token) = ipc::imported(os_handle.addr() as i32)?;
    let length = file.metadata().map_err(|_| CuResult::INVALID_VALUE)?.len();
    let at = length
        .checked_sub(size_of::<Label>() as u64)
        .ok_or(CuResult::INVALID_VALUE)?;
    let label: Label = ipc::read_record(&file, at)?;
    let driver = driver::the()?;
    let gpu = label.gpu as usize;
    let on_host = HOST.contains(&label.location[0]);
    if label.magic != LABEL_MAGIC || label.bytes != at {
        return Err(CuResult::INVALID_VALUE);
    }
    let ordinal = driver.ordinal(gpu).ok_or(CuResult::INVALID_DEVICE)?;
    let shared = (label.id != 0).then_some(SharedId(label.id));
    if let Some(number) = shared.and_then(own_handle) {
        return write(handle, number);
    }
    if let Some(id) = shared {
        driver
            .board
            .hold(driver.member, id)
            .map_err(|_| CuResult::INVALID_VALUE)?;
    }
    let id = if on_host {
        label.location[1] as i32
    } else {
        ordinal.0
    };
    let made = keep(|handle| Physical {
        handle,
        gpu,
        bytes: label.bytes,
        on_host,
        prop: Prop {
            handle_types: FILE_DESCRIPTOR,
            location: (label.location[0], id),
            usage: 0,
            compression: 0,
            rdma: 0,
        },
        file: Arc::new(Contents { file, free: None }),
        offset: 0,
        token,
        shared: Mutex::new(shared),
        multicast: None,
    });
    write(handle, made)
}

/// Addresses without memory of their own, for a multicast object.
///
/// # Errors
/// When the process has no descriptor left.
pub(crate) fn make_multicast(
    bytes: u64,
    shareable: bool,
    multicast: Multicast,
) -> Done<CuMemAllocationHandle> {
    let (file, offset, token) = contents(bytes, shareable)?;
    Ok(keep(|handle| Physical {
        handle,
        gpu: 0,
        bytes,
        on_host: false,
        prop: Prop {
            handle_types: u32::from(shareable),
            location: (DEVICE, 0),
            usage: 0,
            compression: 0,
            rdma: 0,
        },
        file,
        offset,
        token,
        shared: Mutex::new(None),
        multicast: Some(multicast),
    }))
}
