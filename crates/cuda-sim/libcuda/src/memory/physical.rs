//! Physical memory (`cuMemCreate`), its handles, and its mappings. It lives until its last handle is released and its
//! last mapping removed, in any process. A multicast object is one too.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cuda_api::driver::*;
use cuda_sim::board::{self, SharedId};

use crate::base::border::{Done, lock};
use crate::process::choices;
use crate::process::driver;
use crate::process::files;

/// The state of a multicast object besides its size.
#[derive(Debug)]
pub(crate) struct Multicast {
    /// How many devices may join it, and which have.
    pub(crate) count: u32,
    pub(crate) devices: AtomicU32,
    pub(crate) bound: Mutex<Vec<Binding>>,
}

/// Memory of a device that is bound to a part of an object.
#[derive(Debug)]
pub(crate) struct Binding {
    pub(crate) gpu: usize,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// None for memory that lives by its address.
    pub(crate) memory: Option<Arc<Physical>>,
}

const DEVICE: u32 = 1;

/// Physical memory.
#[derive(Debug)]
pub(crate) struct Physical {
    pub(crate) handle: u64,
    pub(crate) gpu: usize,
    pub(crate) bytes: u64,
    pub(crate) on_host: bool,
    pub(crate) prop: Prop,
    pub(crate) file: Arc<Contents>,
    /// The offset of its contents in the file.
    pub(crate) offset: u64,
    /// The number in its exported descriptors, if they have one.
    pub(crate) token: Option<u64>,
    pub(crate) shared: Mutex<Option<SharedId>>,
    /// Set when it is a multicast object.
    pub(crate) multicast: Option<Multicast>,
}

/// The part of the properties that is returned.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Prop {
    pub(crate) handle_types: u32,
    pub(crate) location: (u32, i32),
    pub(crate) usage: u16,
    pub(crate) compression: u8,
    pub(crate) rdma: u8,
}

/// A file with physical memory in it.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) file: File,
    /// The free pieces; only in the file that holds all unshareable memory of a process.
    pub(crate) free: Option<Mutex<Pieces>>,
}

#[derive(Debug, Default)]
pub(crate) struct Pieces {
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
            let mut pieces = lock(pieces);
            pieces.free.entry(self.bytes).or_default().push(self.offset);
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
                    files::forget(driver, shared);
                    files::forget_token(driver, self.token);
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

    /// Its id on the board, from which on processes can hold it together; none if it takes no device memory.
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
    pub(crate) physical: Arc<Physical>,
    pub(crate) access: Arc<Access>,
}

/// Which GPUs may touch a mapping: a bit for each.
#[derive(Debug, Default)]
pub(crate) struct Access {
    pub(crate) read: AtomicU32,
    pub(crate) write: AtomicU32,
    pub(crate) any: AtomicBool,
}

impl Mapping {
    /// Whether any GPU may touch it.
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

    /// The handle types as which it may be exported.
    pub(crate) fn handle_types(&self) -> u64 {
        self.physical.prop.handle_types.into()
    }
}

/// A handle, with the number of times that the program holds it.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) physical: Arc<Physical>,
    pub(crate) times: u32,
}

pub(crate) static HANDLES: Mutex<BTreeMap<u64, Held>> = Mutex::new(BTreeMap::new());
static NEXT_HANDLE: AtomicU64 = AtomicU64::new(1);

/// Numbers of handles that are gone, the last one last.
static FREE_HANDLES: Mutex<Vec<u64>> = Mutex::new(Vec::new());
static COMMON: Mutex<Option<Arc<Contents>>> = Mutex::new(None);

pub(crate) fn held(handle: CuMemAllocationHandle) -> Done<Arc<Physical>> {
    let handles = lock(&HANDLES);
    let held = handles.get(&handle.0).ok_or(CuResult::INVALID_VALUE)?;
    Ok(Arc::clone(&held.physical))
}

// --- physical memory --------------------------------------------------------------------------------

/// The file that holds all unshareable physical memory of this process, so that each piece does not take a
/// descriptor.
fn common() -> Done<Arc<Contents>> {
    let mut common = lock(&COMMON);
    if let Some(contents) = &*common {
        return Ok(Arc::clone(contents));
    }
    let file = files::memory_file(c"vgpu-sim-memory", 0)?;
    let contents = Arc::new(Contents {
        file,
        free: Some(Mutex::default()),
    });
    *common = Some(Arc::clone(&contents));
    Ok(contents)
}

/// A place for contents: a piece of the common file, or a file of its own that can be passed on, and the number by
/// which that is done, if by one.
pub(crate) fn contents(bytes: u64, shareable: bool) -> Done<(Arc<Contents>, u64, Option<u64>)> {
    if shareable {
        let length = bytes.checked_add(size_of::<Label>() as u64);
        let length = length.ok_or(CuResult::OUT_OF_MEMORY)?;
        let (file, token) = files::shareable_file(c"vgpu-sim-shareable", length)?;
        return Ok((Arc::new(Contents { file, free: None }), 0, token));
    }
    let common = common()?;
    let offset = {
        let pieces = common.free.as_ref().ok_or(CuResult::UNKNOWN)?;
        let mut pieces = lock(pieces);
        if let Some(offset) = pieces.free.get_mut(&bytes).and_then(Vec::pop) {
            offset
        } else {
            let end = pieces.end.checked_add(bytes);
            let end = end.ok_or(CuResult::OUT_OF_MEMORY)?;
            let grown = common.file.set_len(end);
            grown.map_err(|_| CuResult::OUT_OF_MEMORY)?;
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

/// Gives physical memory a handle; `change` sets what is not usual: it is on a device, and no other process's.
pub(crate) fn keep(
    gpu: usize,
    bytes: u64,
    prop: Prop,
    (file, offset, token): (Arc<Contents>, u64, Option<u64>),
    change: impl FnOnce(&mut Physical),
) -> CuMemAllocationHandle {
    let handle = fresh_handle();
    let mut physical = Physical {
        handle,
        gpu,
        bytes,
        on_host: false,
        prop,
        file,
        offset,
        token,
        shared: Mutex::new(None),
        multicast: None,
    };
    change(&mut physical);
    let physical = Arc::new(physical);
    lock(&HANDLES).insert(handle, Held { physical, times: 1 });
    CuMemAllocationHandle(handle)
}

// --- between processes ------------------------------------------------------------------------------

/// The label of a shareable file, after its contents.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Label {
    pub(crate) magic: u64,
    pub(crate) id: u64,
    pub(crate) gpu: u64,
    pub(crate) bytes: u64,
    /// Kind and id of its location.
    pub(crate) location: [u32; 2],
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
    let prop = Prop {
        handle_types: u32::from(shareable),
        location: (DEVICE, 0),
        ..Prop::default()
    };
    let contents = contents(bytes, shareable)?;
    let mark = |physical: &mut Physical| physical.multicast = Some(multicast);
    Ok(keep(0, bytes, prop, contents, mark))
}
