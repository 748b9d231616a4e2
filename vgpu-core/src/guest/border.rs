//! The border between pointers from C and our code. A pointer that the program passes to a hook comes to the
//! rules as an [`InPtr`] or an [`OutPtr`], which only the macro of the hooks makes ([`given!`]): that it may be
//! read, or written, is a fact of that one place. Both are used the way the driver would: null is left alone.

use core::cell::{Cell, RefCell};
use core::ffi::{CStr, c_char, c_int, c_void};

use cuda_api::{CuDevicePtr, CuStream};

use crate::figures::image::{self, Declared, ImageSource, WRAPPER};

/// A pointer that the program passed to a hook, to something that the function reads: null, or valid for reads
/// as long as the call lasts.
pub(crate) struct InPtr<T>(*const T);

/// A pointer that the program passed to a hook, to something that the function writes: null, or valid for
/// reads and writes as long as the call lasts. The memory may be uninitialised until the driver has
/// written it, so it is read after the call only, or where the function takes a value there.
pub(crate) struct OutPtr<T>(*mut T);

/// How an argument of a hook comes to a rule: a pointer as [`InPtr`] or [`OutPtr`], everything else (numbers,
/// and handles, which are never dereferenced) as it is. The rule's signature says which.
pub(crate) trait Given<As> {
    /// # Safety
    /// `self` is an argument of a hook, or was made of nothing but its arguments, and the call lasts until
    /// the value is used no more.
    unsafe fn given(self) -> As;
}

impl<T> Given<T> for T {
    #[inline(always)]
    unsafe fn given(self) -> T {
        self
    }
}

impl<T> Given<InPtr<T>> for *const T {
    #[inline(always)]
    unsafe fn given(self) -> InPtr<T> {
        InPtr(self)
    }
}

impl<T> Given<InPtr<T>> for *mut T {
    #[inline(always)]
    unsafe fn given(self) -> InPtr<T> {
        InPtr(self)
    }
}

impl<T> Given<OutPtr<T>> for *mut T {
    #[inline(always)]
    unsafe fn given(self) -> OutPtr<T> {
        OutPtr(self)
    }
}

/// Hands an argument of a hook to a rule. For the macros of `driver/hook.rs` alone.
macro_rules! given {
    ($argument:expr) => {{
        let argument = $argument;
        // SAFETY: an argument of this hook. The program promises of it what it promises to the driver's
        // function of this name, and the rules run within the call.
        unsafe { $crate::guest::border::Given::given(argument) }
    }};
}
pub(crate) use given;

impl<T> Clone for InPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for InPtr<T> {}

impl<T> Clone for OutPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for OutPtr<T> {}

impl<T> InPtr<T> {
    /// Is it null?
    #[inline]
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The value there; `None` for null.
    #[inline]
    pub(crate) fn read(self) -> Option<T>
    where
        T: Copy,
    {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: not null, so valid for reads (see the type). The program may have aligned it badly.
        Some(unsafe { self.0.read_unaligned() })
    }

    /// The element at this index of the array that begins here. The program says elsewhere in its call how
    /// long the array is; null stays null.
    #[inline]
    pub(crate) fn at(self, index: usize) -> Self {
        if self.0.is_null() {
            return self;
        }
        Self(self.0.wrapping_add(index))
    }

    /// The same place as another type, where the signature has `void *`.
    #[inline]
    pub(crate) fn cast<U>(self) -> InPtr<U> {
        InPtr(self.0.cast())
    }

    /// The pointer as a number, where the signature has a pointer and the program passes a number.
    #[inline]
    pub(crate) fn number(self) -> usize {
        self.0.addr()
    }
}

impl<T> OutPtr<T> {
    /// Is it null?
    #[inline]
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The value there; `None` for null.
    #[inline]
    pub(crate) fn read(self) -> Option<T>
    where
        T: Copy,
    {
        self.as_in().read()
    }

    /// Writes there, unless it is null.
    #[inline]
    pub(crate) fn write(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null, so valid for writes (see the type).
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// As [`InPtr::at`].
    #[inline]
    pub(crate) fn at(self, index: usize) -> Self {
        if self.0.is_null() {
            return self;
        }
        Self(self.0.wrapping_add(index))
    }

    /// As [`InPtr::cast`].
    #[inline]
    pub(crate) fn cast<U>(self) -> OutPtr<U> {
        OutPtr(self.0.cast())
    }

    /// Follows a pointer within the structure that the program passed.
    #[inline]
    pub(crate) fn follow<U>(self, pointer: impl FnOnce(&T) -> *mut U) -> Option<OutPtr<U>>
    where
        T: Copy,
    {
        self.read().map(|value| OutPtr(pointer(&value)))
    }

    /// The same pointer, to be read only.
    #[inline]
    pub(crate) fn as_in(self) -> InPtr<T> {
        InPtr(self.0)
    }

    /// For a function of the driver that is called in place of the program's own call.
    #[inline]
    pub(crate) fn raw(self) -> *mut T {
        self.0
    }
}

impl<T: Copy + TryInto<u64>> OutPtr<T> {
    /// A figure of either width there.
    #[inline]
    pub(crate) fn figure(self) -> Option<u64> {
        self.read()?.try_into().ok()
    }
}

impl InPtr<c_char> {
    /// The C string there; `None` for null.
    pub(crate) fn text<'a>(self) -> Option<&'a CStr> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: not null, and the functions that take such a pointer read a string that ends in a zero.
        Some(unsafe { CStr::from_ptr(self.0) })
    }
}

/// For tests of rules: pointers to values of their own.
#[cfg(test)]
pub(crate) mod test {
    use super::{InPtr, OutPtr};

    pub(crate) fn input<T>(value: &[T]) -> InPtr<T> {
        InPtr(value.as_ptr())
    }

    pub(crate) fn output<T>(value: &mut [T]) -> OutPtr<T> {
        OutPtr(value.as_mut_ptr())
    }

    pub(crate) fn null<T>() -> OutPtr<T> {
        OutPtr(core::ptr::null_mut())
    }
}

/// An image of code that the program loads.
#[derive(Clone, Copy)]
pub(crate) enum Image {
    /// In memory: a fat binary (wrapped or not), a cubin, or text that ends in a zero.
    Memory(InPtr<c_void>),
    /// In a file of this name.
    File(InPtr<c_char>),
}

impl Given<Image> for *const c_void {
    #[inline(always)]
    unsafe fn given(self) -> Image {
        Image::Memory(InPtr(self))
    }
}

impl Given<Image> for *const c_char {
    #[inline(always)]
    unsafe fn given(self) -> Image {
        Image::File(InPtr(self))
    }
}

impl Image {
    /// The image's declared memory; `None` where the program named no image.
    pub(crate) fn declared(self) -> Option<Declared> {
        match self {
            Self::Memory(at) => (!at.is_null()).then(|| image(at.0)),
            Self::File(path) => path.text().map(image_file),
        }
    }
}

/// The declared memory of a module's image: a fat binary (wrapped or not), a cubin, or text that ends in a zero.
/// An address that is not mapped is not read.
fn image(image: *const c_void) -> Declared {
    let start = image as u64;
    let memory = OwnMemory::at(start);
    let mut head = [0; 16];
    let read = memory.read(0, &mut head);
    if read == 0 && !memory.answers.get() {
        return plain_image(image.cast());
    }
    let word = |at: usize, bytes: usize| {
        let field = head.get(at..at + bytes).unwrap_or(&[]);
        field
            .iter()
            .rev()
            .fold(0u64, |value, &byte| value << 8 | u64::from(byte))
    };
    if read == head.len() && word(0, 4) == u64::from(WRAPPER) {
        return match word(8, 8) {
            0 => Declared::UNKNOWN,
            inner => image::declared(&OwnMemory::at(inner)),
        };
    }
    image::declared(&memory)
}

/// If the system does not let a process read its own memory by a call: reads the image plainly, as the driver does,
/// up to the length that it states.
fn plain_image(mut start: *const u8) -> Declared {
    if magic(start) == WRAPPER {
        // SAFETY: a wrapper has two words and a pointer.
        let inner = unsafe { start.wrapping_add(8).cast::<*const u8>().read_unaligned() };
        if inner.is_null() {
            return Declared::UNKNOWN;
        }
        start = inner;
    }
    let bytes = if image::is_binary(magic(start)) {
        // A fat binary's header has 16 bytes, and what follows is longer than the rest of 64.
        // SAFETY: an ELF header has 64 bytes; see above for the other.
        let header = unsafe { start.cast::<[u8; 64]>().read_unaligned() };
        image::size_in(&header).unwrap_or(0)
    } else {
        // SAFETY: an image that is no binary is text that ends in a zero, as the driver reads it.
        let length = unsafe { libc::strnlen(start.cast(), 1 << 30) };
        u64::try_from(length).unwrap_or(u64::MAX)
    };
    Declared {
        bytes,
        is_whole: false,
    }
}

/// The first four bytes, as far as there is no zero among them.
fn magic(image: *const u8) -> u32 {
    let mut word = [0u8; 4];
    for (at, byte) in word.iter_mut().enumerate() {
        // SAFETY: an image has four bytes, or is text that ends before.
        *byte = unsafe { image.wrapping_add(at).read() };
        if *byte == 0 {
            break;
        }
    }
    u32::from_le_bytes(word)
}

/// The declared memory of a file that is loaded as a module.
fn image_file(path: &CStr) -> Declared {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: a C string.
    let file = unsafe { libc::open(path.as_ptr(), flags) };
    if file < 0 {
        return Declared::UNKNOWN;
    }
    let declared = image::declared(&Cached::of(File(file)));
    // SAFETY: opened above.
    unsafe { libc::close(file) };
    declared
}

/// An open file.
struct File(c_int);

impl ImageSource for File {
    fn read(&self, at: u64, into: &mut [u8]) -> usize {
        let Ok(at) = i64::try_from(at) else { return 0 };
        // SAFETY: room for as many bytes as are asked for.
        let read = unsafe { libc::pread(self.0, into.as_mut_ptr().cast(), into.len(), at) };
        usize::try_from(read).unwrap_or(0)
    }
}

/// Memory of this process, from an address on, read by a system call, which fails where no memory is mapped.
struct UncachedMemory<'a> {
    start: u64,
    answers: &'a Cell<bool>,
}

impl ImageSource for UncachedMemory<'_> {
    fn read(&self, at: u64, into: &mut [u8]) -> usize {
        const PAGE: u64 = 4096;
        let Some(from) = self.start.checked_add(at) else {
            return 0;
        };
        // A page is mapped as a whole, so each read goes to the end of its page.
        let most = usize::try_from(PAGE - from % PAGE).unwrap_or(0);
        let most = most.min(into.len());
        let Ok(from) = usize::try_from(from) else {
            return 0;
        };
        let to = libc::iovec {
            iov_base: into.as_mut_ptr().cast(),
            iov_len: most,
        };
        let from = libc::iovec {
            iov_base: core::ptr::with_exposed_provenance_mut(from),
            iov_len: most,
        };
        let process = libc::c_long::from(std::process::id());
        // SAFETY: writes to `into` alone, and refuses to read memory that is not mapped.
        let read = unsafe {
            libc::syscall(
                libc::SYS_process_vm_readv,
                process,
                &raw const to,
                1 as libc::c_ulong,
                &raw const from,
                1 as libc::c_ulong,
                0 as libc::c_ulong,
            )
        };
        if read < 0 {
            let errno = std::io::Error::last_os_error().raw_os_error();
            if errno != Some(libc::EFAULT) {
                self.answers.set(false);
            }
            return 0;
        }
        usize::try_from(read).unwrap_or(0)
    }
}

struct OwnMemory {
    start: u64,
    answers: Cell<bool>,
    cache: RefCell<Cache>,
}

impl OwnMemory {
    fn at(start: u64) -> Self {
        Self {
            start,
            answers: Cell::new(true),
            cache: RefCell::new(Cache::EMPTY),
        }
    }
}

impl ImageSource for OwnMemory {
    fn read(&self, at: u64, into: &mut [u8]) -> usize {
        let raw = UncachedMemory {
            start: self.start,
            answers: &self.answers,
        };
        read_through(&self.cache, &raw, at, into)
    }
}

/// A source that keeps the parts that were read last, because an image is read in small steps.
struct Cached<S> {
    of: S,
    cache: RefCell<Cache>,
}

impl<S> Cached<S> {
    fn of(of: S) -> Self {
        Self {
            of,
            cache: RefCell::new(Cache::EMPTY),
        }
    }
}

impl<S: ImageSource> ImageSource for Cached<S> {
    fn read(&self, at: u64, into: &mut [u8]) -> usize {
        read_through(&self.cache, &self.of, at, into)
    }
}

/// Two parts of an image: its tables are read beside its names.
struct Cache {
    parts: [CachedPart; 2],
    /// The part that was used last.
    last: usize,
}

struct CachedPart {
    at: u64,
    filled: usize,
    bytes: [u8; 1024],
}

impl Cache {
    const EMPTY: Self = Self {
        parts: [const {
            CachedPart {
                at: 0,
                filled: 0,
                bytes: [0; 1024],
            }
        }; 2],
        last: 0,
    };
}

fn read_through(cache: &RefCell<Cache>, of: &impl ImageSource, at: u64, into: &mut [u8]) -> usize {
    let Ok(mut cache) = cache.try_borrow_mut() else {
        return 0;
    };
    let mut done = 0;
    while done < into.len() {
        let Some(next) = at.checked_add(done as u64) else {
            break;
        };
        let rest = into.get_mut(done..).unwrap_or(&mut []);
        let copied = match cache.copy(next, rest) {
            0 => {
                // A long read bypasses the cache.
                if rest.len() >= 1024 {
                    of.read(next, rest)
                } else {
                    cache.fill(of, next);
                    cache.copy(next, rest)
                }
            }
            copied => copied,
        };
        if copied == 0 {
            break;
        }
        done += copied;
    }
    done
}

impl Cache {
    fn copy(&mut self, at: u64, into: &mut [u8]) -> usize {
        for (number, part) in self.parts.iter().enumerate() {
            let Some(skipped) = at
                .checked_sub(part.at)
                .and_then(|it| usize::try_from(it).ok())
            else {
                continue;
            };
            let found = part.bytes.get(skipped..part.filled).unwrap_or(&[]);
            if found.is_empty() {
                continue;
            }
            for (to, from) in into.iter_mut().zip(found) {
                *to = *from;
            }
            self.last = number;
            return found.len().min(into.len());
        }
        0
    }

    fn fill(&mut self, of: &impl ImageSource, at: u64) {
        let other = 1 - self.last.min(1);
        if let Some(part) = self.parts.get_mut(other) {
            part.at = at;
            part.filled = of.read(at, &mut part.bytes).min(part.bytes.len());
        }
    }
}

/// A device pointer of either width of the C interface.
pub(crate) trait Address: Copy {
    fn number(self) -> u64;
}

impl Address for CuDevicePtr {
    fn number(self) -> u64 {
        self.0
    }
}

/// The interface before driver 3.2.
impl Address for u32 {
    fn number(self) -> u64 {
        u64::from(self)
    }
}

impl<T> Address for *mut T {
    fn number(self) -> u64 {
        self as u64
    }
}

/// The default stream of a function, which the program names by 0.
pub(crate) trait DefaultStream: Copy {
    /// The number of the default stream.
    const NUMBER: u64;

    /// The number by which the rules know a stream.
    #[inline(always)]
    fn number(self, stream: CuStream) -> u64 {
        match stream as u64 {
            0 => Self::NUMBER,
            handle => handle,
        }
    }

    /// The stream under a name that says which one it is in every function.
    fn handle(self, stream: CuStream) -> CuStream;

    /// Is it the thread's own default stream?
    #[inline(always)]
    fn is_per_thread(self) -> bool {
        Self::NUMBER == PerThread::NUMBER
    }
}

/// The one of all threads: functions without `_ptsz`.
#[derive(Clone, Copy)]
pub(crate) struct Legacy;

/// The thread's own: functions with `_ptsz`.
#[derive(Clone, Copy)]
pub(crate) struct PerThread;

impl DefaultStream for Legacy {
    const NUMBER: u64 = 1;

    #[inline(always)]
    fn handle(self, stream: CuStream) -> CuStream {
        stream
    }
}

impl DefaultStream for PerThread {
    const NUMBER: u64 = 2;

    #[inline(always)]
    fn handle(self, stream: CuStream) -> CuStream {
        if stream.is_null() {
            return core::ptr::without_provenance_mut(2);
        }
        stream
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_at_the_end_of_what_is_mapped_is_read_to_there() {
        let page = 4096;
        // SAFETY: a new mapping of two pages.
        let start = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                2 * page,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        let second = start.wrapping_byte_add(page);
        // SAFETY: the second page of the mapping above.
        assert_eq!(unsafe { libc::mprotect(second, page, libc::PROT_NONE) }, 0);
        let text = b".version 7.0 .target sm_70 .global .b8 x[100];";
        let at = second.wrapping_byte_sub(text.len());
        // SAFETY: within the first page.
        unsafe { at.cast::<u8>().copy_from(text.as_ptr(), text.len()) };

        // The text does not end in a zero before the memory does.
        let found = image(at);
        assert_eq!(
            (found.bytes, found.is_whole),
            (100 + text.len() as u64, false)
        );
        // An image that states more bytes than are mapped.
        // SAFETY: five bytes; `at` is as many bytes before the first page's end as `text` has, which are more.
        unsafe { at.cast::<[u8; 5]>().write_unaligned(*b"\x7fELF\x02") };
        assert_eq!(image(at), Declared::UNKNOWN);
        // SAFETY: four bytes; `at` is as many bytes before the first page's end as `text` has, which are more.
        unsafe { at.cast::<u32>().write_unaligned(WRAPPER) };
        assert!(!image(at).is_whole);
        assert_eq!(image(second), Declared::UNKNOWN);
        assert_eq!(image(core::ptr::without_provenance(8)), Declared::UNKNOWN);
        // SAFETY: the mapping above.
        unsafe { libc::munmap(start, 2 * page) };
    }

    #[test]
    fn a_file_is_read_as_it_is_long() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let text = format!(
            ".version 7.0 {} .global .b8 x[100];\0",
            "// \n".repeat(5000)
        );
        std::fs::write(&path, &text).unwrap();
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();

        let found = image_file(&name);

        assert_eq!(
            found,
            Declared {
                bytes: text.len() as u64 - 1 + 100,
                is_whole: true
            }
        );
        assert_eq!(image_file(c"/nothing/here"), Declared::UNKNOWN);
    }
}
