//! A file that the host owns and the container maps: header, two copies, one word that says which
//! copy counts. Owns how such a file is made and flipped.
//!
//! Never makes it longer or shorter, never replaces it, and never knows what is in the copies.

use std::fs::{File, OpenOptions, TryLockError};
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::file::{self, Access, FileError, FileKind, refused, refused_io};
use crate::layout::HostFileHeader;
use crate::map::Words;
use crate::sys;

/// The make of such a file.
pub(crate) struct Make {
    pub(crate) kind: FileKind,
    pub(crate) copy_bytes: usize,
}

impl Make {
    fn file_bytes(&self) -> usize {
        usize::try_from(self.kind.bytes()).unwrap_or(usize::MAX)
    }
}

const CURRENT: usize = offset_of!(HostFileHeader, current);
const HEARTBEAT: usize = offset_of!(HostFileHeader, heartbeat_ns);
const VERSION: usize = offset_of!(HostFileHeader, version);
pub(crate) const HEADER_BYTES: usize = size_of::<HostFileHeader>();

/// One half of a header or a copy, for `pwrite`.
fn write_at(file: &File, bytes: &[u8], offset: usize) -> Result<(), FileError> {
    file.write_all_at(bytes, offset as u64)
        .map_err(refused_io("write"))
}

/// An open file of a known make.
#[derive(Debug)]
pub(crate) struct HostFile {
    file: File,
    words: Words,
    copy_bytes: usize,
}

impl HostFile {
    /// Makes the file: readable by all, writable by its owner. `fill` writes the first copy.
    pub(crate) fn create(
        path: &Path,
        make: &Make,
        fill: impl FnOnce(&Self) -> Result<(), FileError>,
    ) -> Result<Self, FileError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o644);
        let file = options.open(path).map_err(refused_io("open"))?;
        let made = Self::fill_new(file, make, fill);
        if made.is_err() {
            // Half a file is of no use. If it cannot be removed, the first error is still the one to report.
            let _gone = std::fs::remove_file(path);
        }
        made
    }

    fn fill_new(
        file: File,
        make: &Make,
        fill: impl FnOnce(&Self) -> Result<(), FileError>,
    ) -> Result<Self, FileError> {
        sys::allocate_or_write(file.as_raw_fd(), make.kind.bytes())
            .map_err(refused("fallocate"))?;
        let words = Words::map(&file, make.file_bytes(), true).map_err(refused("mmap"))?;
        let made = Self {
            file,
            words,
            copy_bytes: make.copy_bytes,
        };
        write_at(
            &made.file,
            &make.kind.magic().to_ne_bytes(),
            offset_of!(HostFileHeader, magic),
        )?;
        let copy_bytes = u32::try_from(make.copy_bytes).unwrap_or(0);
        write_at(
            &made.file,
            &copy_bytes.to_ne_bytes(),
            offset_of!(HostFileHeader, copy_bytes),
        )?;
        let file_bytes = make.kind.bytes();
        write_at(
            &made.file,
            &file_bytes.to_ne_bytes(),
            offset_of!(HostFileHeader, file_bytes),
        )?;
        fill(&made)?;
        // Last: a file without a version was never finished.
        write_at(
            &made.file,
            &make.kind.versions().end().to_ne_bytes(),
            VERSION,
        )?;
        Ok(made)
    }

    /// Opens the file for reading and, where its mode lets us and `write` asks, writing.
    pub(crate) fn open(path: &Path, make: &Make, write: bool) -> Result<Self, FileError> {
        let wanted = if write {
            Access::ReadWrite
        } else {
            Access::Read
        };
        let (file, writable) = match file::open(path, make.kind, wanted) {
            Err(FileError::System {
                errno: libc::EACCES | libc::EROFS,
                ..
            }) if write => (file::open(path, make.kind, Access::Read)?, false),
            opened => (opened?, write),
        };
        let words = Words::map(&file, make.file_bytes(), writable).map_err(refused("mmap"))?;
        Ok(Self {
            file,
            words,
            copy_bytes: make.copy_bytes,
        })
    }

    /// The mapping alone, for a reader that keeps no descriptor.
    pub(crate) fn into_words(self) -> Words {
        self.words
    }

    /// Waits until no other process writes, but not for ever: a container that can read the file can
    /// lock it, too, and keep the lock. After `patience` the caller writes without the lock, since no writer of vgpu
    /// keeps it that long. Dropping the guard releases the lock.
    pub(crate) fn exclusive(&self, patience: Duration) -> Result<Turn<'_>, FileError> {
        let until = Instant::now() + patience;
        loop {
            match self.file.try_lock() {
                Ok(()) => return Ok(Turn(Some(self))),
                Err(TryLockError::WouldBlock) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(1).min(patience));
                }
                Err(TryLockError::WouldBlock) => return Ok(Turn(None)),
                Err(TryLockError::Error(error)) => return Err(refused_io("flock")(error)),
            }
        }
    }

    /// Writes a part of the copy that does not count at the moment.
    pub(crate) fn write_spare(&self, bytes: &[u8], offset: usize) -> Result<(), FileError> {
        let spare = usize::from(self.words.load(CURRENT) & 1 == 0);
        write_at(
            &self.file,
            bytes,
            HEADER_BYTES + spare * self.copy_bytes + offset,
        )
    }

    /// The copy that was spare counts from here on: one store.
    pub(crate) fn flip(&self, generation: u64) {
        let spare = u64::from(self.words.load(CURRENT) & 1 == 0);
        self.words.store(CURRENT, generation << 1 | spare);
    }

    pub(crate) fn set_heartbeat(&self, now_ns: u64) {
        self.words.store(HEARTBEAT, now_ns);
    }

    /// Changes a word of the header that depends on no other word.
    pub(crate) fn set_word(&self, offset: usize, word: u64) {
        if offset < HEADER_BYTES {
            self.words.store(offset, word);
        }
    }

    pub(crate) fn words(&self) -> &Words {
        &self.words
    }
}

/// Where the words of such a file are read from.
pub(crate) trait Source {
    /// The word at a byte offset; 0 outside.
    fn load(&self, offset: usize) -> u64;
}

impl<S: Source> Source for &S {
    fn load(&self, offset: usize) -> u64 {
        S::load(self, offset)
    }
}

impl Source for Words {
    #[inline]
    fn load(&self, offset: usize) -> u64 {
        Words::load(self, offset)
    }
}

/// A copy of the whole file, for a reader that does not trust its owner: an owner that makes the file
/// shorter ends every process that has it mapped.
pub(crate) struct Copied(Vec<u64>);

impl Copied {
    pub(crate) fn read(file: &File, make: &Make) -> Result<Self, FileError> {
        file::check(file, make.kind)?;
        let mut bytes = vec![0; make.file_bytes()];
        file.read_exact_at(&mut bytes, 0)?;
        let words = bytes.chunks_exact(8);
        let word = |bytes: &[u8]| bytes.first_chunk().copied().map_or(0, u64::from_ne_bytes);
        Ok(Self(words.map(word).collect()))
    }
}

impl Source for Copied {
    fn load(&self, offset: usize) -> u64 {
        Fields(&self.0).u64(offset)
    }
}

/// A file of a known make that is never mapped: its owner may be another user, and an owner that makes a file
/// shorter ends every process that has it mapped.
#[derive(Debug)]
pub(crate) struct Unmapped {
    pub(crate) file: File,
}

impl Unmapped {
    pub(crate) fn new(file: File, make: &Make) -> Result<Self, FileError> {
        file::check(&file, make.kind)?;
        Ok(Self { file })
    }

    /// Reads `N` words at this offset.
    pub(crate) fn words<const N: usize>(&self, offset: usize) -> Result<[u64; N], FileError> {
        read_words(&self.file, offset)
    }

    pub(crate) fn write(&self, words: &[u64], offset: usize) -> Result<(), FileError> {
        write_at(&self.file, &bytes_of(words), offset)
    }

    /// Which copy counts.
    pub(crate) fn current(&self) -> Result<Current, FileError> {
        let [word] = self.words(CURRENT)?;
        Ok(Current(word))
    }
}

/// Words of a file that is not mapped.
fn read_words<const N: usize>(file: &File, offset: usize) -> Result<[u64; N], FileError> {
    let mut bytes = [[0; 8]; N];
    let flat = bytes.as_flattened_mut();
    file.read_exact_at(flat, offset as u64)?;
    Ok(bytes.map(u64::from_ne_bytes))
}

/// The word that names the generation and the copy that counts, read from a file of whatever make.
pub(crate) fn current_word(file: &File) -> Result<u64, FileError> {
    let [word] = read_words(file, CURRENT)?;
    Ok(word)
}

/// The right to write; see [`HostFile::exclusive`].
pub(crate) struct Turn<'a>(Option<&'a HostFile>);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // The kernel gives it back with the descriptor, should this fail.
        let _done = self.0.map(|file| file.file.unlock());
    }
}

/// Which copy counts, and which generation it should have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Current(u64);

impl Current {
    #[inline]
    pub(crate) fn of(words: &impl Source) -> Self {
        Self(words.load(CURRENT))
    }

    #[inline]
    pub(crate) fn raw(self) -> u64 {
        self.0
    }

    pub(crate) fn generation(self) -> u64 {
        self.0 >> 1
    }

    /// The word after which the other copy counts.
    pub(crate) fn flipped(self, generation: u64) -> u64 {
        generation << 1 | u64::from(self.0 & 1 == 0)
    }

    /// Byte offset of the copy that counts.
    pub(crate) fn offset(self, copy_bytes: usize) -> usize {
        HEADER_BYTES + if self.0 & 1 == 0 { 0 } else { copy_bytes }
    }

    /// Byte offset of the other copy.
    pub(crate) fn other_offset(self, copy_bytes: usize) -> usize {
        HEADER_BYTES + if self.0 & 1 == 0 { copy_bytes } else { 0 }
    }
}

/// When the owner last looked after the file.
pub(crate) fn heartbeat(words: &Words) -> u64 {
    words.load(HEARTBEAT)
}

/// A checksum that distinguishes a whole copy from a torn one. It keeps no attacker out: the host alone can write.
pub(crate) fn checksum(words: &[u64]) -> u64 {
    let mut sum = 0x7667_7075_5f61_6269_u64;
    for word in words {
        sum = (sum.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
    sum
}

/// Words copied out of a mapping, read as the fields of a `repr(C)` type.
pub(crate) struct Fields<'a>(pub(crate) &'a [u64]);

impl Fields<'_> {
    pub(crate) fn u64(&self, offset: usize) -> u64 {
        self.0.get(offset / 8).copied().unwrap_or(0)
    }

    pub(crate) fn u32(&self, offset: usize) -> u32 {
        let word = self.u64(offset).to_ne_bytes();
        let half = word.get(offset % 8..).unwrap_or_default();
        u32::from_ne_bytes(half.first_chunk().copied().unwrap_or_default())
    }

    pub(crate) fn bytes<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut bytes = [0; N];
        for (chunk, at) in bytes.chunks_mut(8).zip((offset..).step_by(8)) {
            let word = self.u64(at).to_ne_bytes();
            for (to, from) in chunk.iter_mut().zip(word) {
                *to = from;
            }
        }
        bytes
    }
}

/// Words about to be written, filled as the fields of a `repr(C)` type.
pub(crate) struct FieldsMut<'a>(pub(crate) &'a mut [u64]);

impl FieldsMut<'_> {
    pub(crate) fn u64(&mut self, offset: usize, value: u64) {
        if let Some(word) = self.0.get_mut(offset / 8) {
            *word = value;
        }
    }

    pub(crate) fn u32(&mut self, offset: usize, value: u32) {
        self.bytes(offset, &value.to_ne_bytes());
    }

    pub(crate) fn bytes(&mut self, offset: usize, value: &[u8]) {
        for (byte, at) in value.iter().zip(offset..) {
            let mut word = Fields(self.0).u64(at).to_ne_bytes();
            if let Some(place) = word.get_mut(at % 8) {
                *place = *byte;
            }
            self.u64(at, u64::from_ne_bytes(word));
        }
    }
}

/// Words as the bytes of a file.
pub(crate) fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}
