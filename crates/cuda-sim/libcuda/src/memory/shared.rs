//! Memory that several processes hold: a block becomes a file that others map. The files and their
//! names are in `process::files`.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use cuda_api::driver::*;
use cuda_sim::board::SharedId;

use crate::base::border::{Done, refuse_if};
use crate::base::space::{PAGE, address, protection};
use crate::memory::blocks::{self, Block, BlockKind};
use crate::memory::context::Context;
use crate::process::driver;
use crate::process::files::{MAGIC, Name, made, opened, path_of, sweep};

/// Makes a block one that other processes can open; `carried` takes it out of whatever else carries
/// its memory, and says how much that is.
///
/// # Errors
/// When the board or the file system has no room.
pub(crate) fn share(base: u64, block: &Block, carried: impl FnOnce() -> Option<u64>) -> Done<Name> {
    let driver = driver::the()?;
    let name = |id: SharedId| Name {
        magic: MAGIC,
        id: id.0,
        gpu: block.gpu as u64,
        bytes: block.bytes,
        pid: u64::from(std::process::id()),
    };
    if let Some(id) = block.shared {
        return Ok(name(id));
    }
    sweep(driver);
    let taken = carried().ok_or(CuResult::INVALID_VALUE)?;
    let id = driver.board.share(driver.member, block.gpu, taken);
    let id = id.map_err(driver::refusal)?;
    let length = block.bytes.next_multiple_of(PAGE);
    let file = made(path_of(driver, id.0)?)?;
    // What an earlier object of this number has left there is not ours.
    let emptied = file.set_len(0).and_then(|()| file.set_len(length));
    emptied.map_err(|_| CuResult::OUT_OF_MEMORY)?;
    copy_touched(base, length, &file)?;
    map_over(base, length, &file, 0, true)?;
    blocks::change(base, |block| block.shared = Some(id));
    Ok(name(id))
}

/// Copies the pages of a block that were ever touched; the others are empty in the file too.
fn copy_touched(base: u64, length: u64, file: &File) -> Done {
    let pages = (length / PAGE) as usize;
    let mut touched = vec![0_u8; pages];
    // SAFETY: a block of ours, and one byte for each of its pages.
    let known = unsafe { libc::mincore(address(base), length as usize, touched.as_mut_ptr()) } == 0;
    for page in (0..pages).filter(|page| !known || touched[*page] & 1 == 1) {
        let offset = page as u64 * PAGE;
        // SAFETY: a page of a block of ours.
        let bytes =
            unsafe { std::slice::from_raw_parts(address::<u8>(base + offset), PAGE as usize) };
        file.write_all_at(bytes, offset)
            .map_err(|_| CuResult::OUT_OF_MEMORY)?;
    }
    Ok(())
}

/// Lays a file over addresses of ours.
///
/// # Errors
/// When the machine does not do it.
pub(crate) fn map_over(base: u64, length: u64, file: &File, offset: u64, readable: bool) -> Done {
    let protection = protection(readable);
    // SAFETY: replaces pages of a mapping of ours, which the caller has chosen, by the file's.
    let mapped = unsafe {
        libc::mmap(
            address(base),
            length as usize,
            protection,
            libc::MAP_SHARED | libc::MAP_FIXED,
            file.as_raw_fd(),
            offset as libc::off_t,
        )
    };
    refuse_if(mapped == libc::MAP_FAILED, CuResult::MAP_FAILED)
}

/// Opens memory that another process has shared.
///
/// # Errors
/// When it is gone, its GPU is not visible here, or there are no addresses.
pub(crate) fn open(name: &Name, kind: BlockKind, context: Option<&'static Context>) -> Done<u64> {
    let driver = driver::the()?;
    let gpu = name.gpu as usize;
    refuse_if(driver.ordinal(gpu).is_none(), CuResult::INVALID_DEVICE)?;
    let id = SharedId(name.id);
    let held = driver.board.hold(driver.member, id);
    held.map_err(|_| CuResult::INVALID_VALUE)?;
    let map = || {
        let file = opened(path_of(driver, name.id)?)?;
        let mut block = blocks::block(name.bytes, gpu, kind);
        (block.context, block.shared) = (context, Some(id));
        let base = blocks::place(block, false)?;
        map_over(base, name.bytes.next_multiple_of(PAGE), &file, 0, true)?;
        Ok(base)
    };
    map().inspect_err(|_| {
        driver.board.let_go(driver.member, id);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_comes_back_from_its_handle() {
        let name = Name {
            magic: MAGIC,
            id: 7,
            gpu: 1,
            bytes: 4096,
            pid: 42,
        };
        let mut handle = [0xff; 64];
        name.write(&mut handle);

        assert_eq!(Name::read(&handle), Some(name));
        assert_eq!(Name::read(&[0; 64]), None);
    }
}
