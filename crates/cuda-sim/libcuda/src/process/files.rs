//! Files that hold memory shared by processes, and the ways in which it is passed on: descriptors for the program,
//! records in them, tokens. The board counts the device memory.

use std::ffi::CStr;
use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_api::driver::*;
use cuda_sim::board::SharedId;

use crate::base::border::{Done, invalid_if, refuse_if};
use crate::process::choices;
use crate::process::driver::{self, Driver};

/// Our descriptors are high numbers, out of the way of programs that rely on low ones.
const LEAST_DESCRIPTOR: i32 = 512;

/// The record that passes from process to process: which memory, and how much of it.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) magic: u64,
    pub(crate) id: u64,
    pub(crate) gpu: u64,
    pub(crate) bytes: u64,
    pub(crate) pid: u64,
}

static EXPORTS: AtomicU64 = AtomicU64::new(1);
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"vgpu-ipc");

impl Name {
    /// Writes itself into a handle of 64 bytes.
    pub(crate) fn write(&self, into: &mut [u8; 64]) {
        if choices::contrary() {
            // The unused part of a handle may hold anything, and differs each time.
            // Relaxed: only has to differ from every other.
            let count = EXPORTS.fetch_add(1, Ordering::Relaxed);
            for slot in into.chunks_exact_mut(8) {
                slot.copy_from_slice(&(count ^ 0x5aa5_0ff0_c33c_9669).to_le_bytes());
            }
        }
        for (slot, word) in into.chunks_exact_mut(8).zip(self.words()) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
    }

    fn words(&self) -> [u64; 5] {
        [self.magic, self.id, self.gpu, self.bytes, self.pid]
    }

    /// Reads a handle that [`Self::write`] wrote.
    pub(crate) fn read(from: &[u8; 64]) -> Option<Self> {
        let (words, _) = from.as_chunks::<8>();
        let [magic, id, gpu, bytes, pid, ..] = *words else {
            return None;
        };
        let [magic, id, gpu, bytes, pid] = [magic, id, gpu, bytes, pid].map(u64::from_le_bytes);
        (magic == MAGIC).then_some(Self {
            magic,
            id,
            gpu,
            bytes,
            pid,
        })
    }
}

// --- files ----------------------------------------------------------------------------------------

/// An empty file in memory, without a name that others could open.
///
/// # Errors
/// When the process has no descriptor left, or the machine no memory.
pub(crate) fn memory_file(name: &CStr, bytes: u64) -> Done<File> {
    // SAFETY: makes a descriptor of ours.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    refuse_if(fd < 0, CuResult::OPERATING_SYSTEM)?;
    // SAFETY: the descriptor was made above, and nothing else owns it.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(bytes).map_err(|_| CuResult::OUT_OF_MEMORY)?;
    moved_up(&file)
}

/// The same file under a high descriptor, closed on exec; under any, if the process allows itself fewer descriptors
/// than that.
fn moved_up(file: &File) -> Done<File> {
    let copied = |least: i32| {
        // SAFETY: a copy of an open descriptor.
        let fd = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least) };
        (fd >= 0).then_some(fd)
    };
    let fd = copied(LEAST_DESCRIPTOR)
        .or_else(|| copied(0))
        .ok_or(CuResult::OPERATING_SYSTEM)?;
    // SAFETY: made above, and nothing else owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// A descriptor for the program to keep and close.
///
/// # Errors
/// When the process has none left.
pub(crate) fn for_program(file: &File) -> Done<i32> {
    let copied = file.try_clone();
    Ok(copied
        .map_err(|_| CuResult::OPERATING_SYSTEM)?
        .into_raw_fd())
}

/// Our own descriptor for the file that the program passes; the program's stays open.
///
/// # Errors
/// When it is none.
pub(crate) fn from_program(fd: i32) -> Done<File> {
    // SAFETY: the program's descriptor, copied and left open; a number that is none fails.
    let file = std::mem::ManuallyDrop::new(unsafe { File::from_raw_fd(fd.max(0)) });
    invalid_if(fd < 0)?;
    moved_up(&file).map_err(|_| CuResult::INVALID_VALUE)
}

/// Writes a plain record into a file.
///
/// # Errors
/// When the file cannot be written.
pub(crate) fn write_record<T: Copy>(file: &File, offset: u64, record: &T) -> Done {
    // SAFETY: the record's own bytes; it is plain numbers without padding, as its callers' types are.
    let bytes = unsafe {
        std::slice::from_raw_parts(std::ptr::from_ref(record).cast::<u8>(), size_of::<T>())
    };
    file.write_all_at(bytes, offset)
        .map_err(|_| CuResult::OPERATING_SYSTEM)
}

/// Reads a plain record from a file.
///
/// # Errors
/// When the file is too short.
pub(crate) fn read_record<T: Copy>(file: &File, offset: u64) -> Done<T> {
    let mut record = std::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: the record's own bytes, zeroed above; any bytes are a value of its callers' types.
    let bytes =
        unsafe { std::slice::from_raw_parts_mut(record.as_mut_ptr().cast::<u8>(), size_of::<T>()) };
    file.read_exact_at(bytes, offset)
        .map_err(|_| CuResult::INVALID_VALUE)?;
    // SAFETY: every byte was written above.
    Ok(unsafe { record.assume_init() })
}

pub(crate) fn path_of(driver: &Driver, id: u64) -> Done<PathBuf> {
    let directory = driver.board.shared_dir();
    directory.map_err(|_| CuResult::OPERATING_SYSTEM)?;
    Ok(driver.board.shared_file(SharedId(id)))
}

/// A file that other processes open, made if there is none.
///
/// # Errors
/// When the file system refuses it.
pub(crate) fn made(path: PathBuf) -> Done<File> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o666);
    options.open(path).map_err(|_| CuResult::OPERATING_SYSTEM)
}

/// A file that another process has made.
///
/// # Errors
/// When it is gone.
pub(crate) fn opened(path: PathBuf) -> Done<File> {
    let file = OpenOptions::new().read(true).write(true).open(path);
    file.map_err(|_| CuResult::INVALID_VALUE)
}

// --- descriptors that programs pass on ------------------------------------------------------------

fn token_path(driver: &Driver, token: u64) -> Done<PathBuf> {
    let directory = driver.board.shared_dir();
    let directory = directory.map_err(|_| CuResult::OPERATING_SYSTEM)?;
    Ok(directory.join(format!("shareable-{token}")))
}

/// A file whose descriptors can be passed on: without a name or, if descriptors cannot be told apart, found by the
/// number in them.
///
/// # Errors
/// When the process has no descriptor left, or the machine no memory.
pub(crate) fn shareable_file(name: &CStr, bytes: u64) -> Done<(File, Option<u64>)> {
    if !choices::descriptors_alike() {
        return Ok((memory_file(name, bytes)?, None));
    }
    let driver = driver::the()?;
    let token = driver.board.number();
    let file = made(token_path(driver, token)?)?;
    file.set_len(bytes).map_err(|_| CuResult::OUT_OF_MEMORY)?;
    Ok((moved_up(&file)?, Some(token)))
}

/// A descriptor of such a file for the program to keep and close.
///
/// # Errors
/// When the process has none left.
pub(crate) fn exported(file: &File, token: Option<u64>) -> Done<i32> {
    match token {
        None => for_program(file),
        Some(token) => {
            let made = driver::the()?.board.token(token);
            Ok(made.map_err(|_| CuResult::OPERATING_SYSTEM)?.into_raw_fd())
        }
    }
}

/// The file behind a descriptor that the program passes; the program's stays open.
///
/// # Errors
/// When it is none.
pub(crate) fn imported(fd: i32) -> Done<(File, Option<u64>)> {
    if !choices::descriptors_alike() {
        return Ok((from_program(fd)?, None));
    }
    let driver = driver::the()?;
    let said = driver.board.token_number(fd);
    let token = said.map_err(|_| CuResult::INVALID_VALUE)?;
    let file = opened(token_path(driver, token)?)?;
    Ok((moved_up(&file)?, Some(token)))
}

/// Deletes the object's file after its last holder has let go.
pub(crate) fn forget_token(driver: &Driver, token: Option<u64>) {
    if let Some(path) = token.and_then(|token| token_path(driver, token).ok()) {
        drop(fs::remove_file(path));
    }
}

/// Deletes the object's file as well after its last holder has let go.
pub(crate) fn forget(driver: &Driver, id: SharedId) {
    if let Ok(path) = path_of(driver, id.0) {
        // The object may never have had a file.
        drop(fs::remove_file(path));
    }
}

/// Files of memory whose last holder was killed.
pub(crate) fn sweep(driver: &Driver) {
    let Ok(directory) = driver.board.shared_dir().and_then(fs::read_dir) else {
        return;
    };
    for entry in directory.flatten() {
        let name = entry.file_name();
        let id = name
            .to_str()
            .and_then(|name| name.strip_prefix("memory-")?.parse().ok());
        if id.is_some_and(|id| driver.board.shared(SharedId(id)).is_none()) {
            drop(fs::remove_file(entry.path()));
        }
    }
}
