//! `/proc/self/maps`, line by line, for the one case in which the loader knows nothing of its objects.
//! Reads into the stack; never allocates, never keeps a pointer.

use core::ffi::c_void;

use super::{Object, PT_DYNAMIC};

/// One mapping of this process.
#[derive(Clone, Copy)]
pub(super) struct Map {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) is_readable: bool,
    /// Where in its file it begins.
    pub(super) offset: usize,
    pub(super) inode: u64,
}

/// Calls `stop` with each mapping, until it says true.
pub(super) fn each(stop: &mut dyn FnMut(Map) -> bool) {
    // SAFETY: a C string and flags.
    let file = unsafe {
        libc::open(
            c"/proc/self/maps".as_ptr(),
            libc::O_RDONLY | libc::O_CLOEXEC,
        )
    };
    if file < 0 {
        return;
    }
    // The beginning of a line says all that we want; of a longer path the rest is skipped.
    let mut line = [0_u8; 128];
    let mut length = 0;
    let mut chunk = [0_u8; 512];
    'reading: loop {
        // SAFETY: the kernel writes at most as many bytes as the array has.
        let read = unsafe { libc::read(file, chunk.as_mut_ptr().cast::<c_void>(), chunk.len()) };
        let Some(read) = usize::try_from(read).ok().filter(|&read| read > 0) else {
            break;
        };
        for &byte in chunk.get(..read).unwrap_or_default() {
            if byte == b'\n' {
                let map = line.get(..length).and_then(parse);
                length = 0;
                if map.is_some_and(&mut *stop) {
                    break 'reading;
                }
            } else if let Some(place) = line.get_mut(length) {
                *place = byte;
                length += 1;
            }
        }
    }
    // SAFETY: the descriptor that we opened.
    unsafe { libc::close(file) };
}

/// `7f00-7f10 r--p 00001000 08:02 173521 /usr/lib/libc.so.6`
fn parse(line: &[u8]) -> Option<Map> {
    let line = core::str::from_utf8(line.split(|&byte| byte == b'/').next()?).ok()?;
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let rights = words.next()?;
    let offset = words.next()?;
    let inode = words.nth(1)?;
    Some(Map {
        start: usize::from_str_radix(start, 16).ok()?,
        end: usize::from_str_radix(end, 16).ok()?,
        is_readable: rights.starts_with('r'),
        offset: usize::from_str_radix(offset, 16).ok()?,
        inode: inode.parse().ok()?,
    })
}

/// The object whose file begins at this mapping, if it is loaded as one: its dynamic section must
/// stand where its headers say, out of the same file. A file that is mapped to be read is none.
pub(super) fn object(map: Map) -> Option<Object> {
    let base: *const c_void = core::ptr::with_exposed_provenance(map.start);
    // SAFETY: the first page of a readable mapping of a file; whoever loaded us keeps its objects.
    let (bias, headers) = unsafe { super::headers_at(base, map.end - map.start) }?;
    let dynamic = headers.iter().find(|header| header.p_type == PT_DYNAMIC)?;
    let address = bias.wrapping_add(usize::try_from(dynamic.p_vaddr).ok()?);
    let in_file = usize::try_from(dynamic.p_offset).ok()?;
    let mut stands = false;
    each(&mut |other| {
        stands = other.inode == map.inode
            && other.is_readable
            && (other.start..other.end).contains(&address)
            && other.offset.wrapping_add(address - other.start) == in_file;
        stands
    });
    if !stands {
        return None;
    }
    // SAFETY: an object's own headers, and its dynamic section is where they say.
    unsafe { Object::from_headers(bias, headers, core::ptr::null()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_without_its_path() {
        let map = parse(b"7f12a000-7f12b000 r-xp 00001000 08:02 173521   /usr/lib/a b").unwrap();

        assert_eq!((map.start, map.end), (0x7f12_a000, 0x7f12_b000));
        assert_eq!(
            (map.is_readable, map.offset, map.inode),
            (true, 0x1000, 173_521)
        );
        assert!(parse(b"").is_none());
    }

    #[test]
    fn the_c_library_is_found_without_the_loader() {
        let found = super::super::first_in_maps(&mut |object: &Object| {
            object
                .is_called(b"libc.so")
                .then(|| object.find(c"getpid"))
                .flatten()
        });

        assert_eq!(found, Some(libc::getpid as *mut c_void));
    }
}
