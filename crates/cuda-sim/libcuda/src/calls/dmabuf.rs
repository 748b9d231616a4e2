//! Handles of address ranges: descriptors (dma-bufs) for other devices. The memory of a descriptor stays taken until
//! its last copy is closed, even after the allocation is freed and the process has ended.

use std::os::fd::IntoRawFd;

use cuda_api::driver::*;
use cuda_sim::board::SharedId;

use crate::base::border::{Done, check_out, invalid_if, write};
use crate::base::space::PAGE;
use crate::memory::blocks::{self, BlockKind};
use crate::memory::shared;
use crate::process::driver;
use crate::process::files;

calls! {
    cuMemGetHandleForAddressRange(handle, ptr, size, handle_type, flags) => {
        check_out(handle)?;
        let (address, bytes) = (ptr.0, size as u64);
        let whole = address.is_multiple_of(PAGE) && bytes.is_multiple_of(PAGE) && bytes > 0;
        invalid_if(!whole || handle_type != DMA_BUF || flags & !OVER_PCIE != 0)?;
        let id = shared(address, bytes)?;
        let file = driver::the()?.board.export(id);
        let file = file.map_err(|_| CuResult::OPERATING_SYSTEM)?;
        write(handle.cast::<i32>(), file.into_raw_fd())
    };
}

const DMA_BUF: u32 = 1;

/// The range as the PCIe bus shows it.
const OVER_PCIE: u64 = 1;

/// The memory of a range, as the board knows it, with its own file.
fn shared(address: u64, bytes: u64) -> Done<SharedId> {
    let (base, block) = blocks::find(address).ok_or(CuResult::INVALID_VALUE)?;
    let end = address.checked_add(bytes);
    invalid_if(end.is_none_or(|end| end > base + block.bytes.next_multiple_of(PAGE)))?;
    match &block.kind {
        BlockKind::Device => {
            let name = shared::share(base, &block, || Some(block.taken))?;
            Ok(SharedId(name.id))
        }
        BlockKind::Mapped(mapping) => {
            let id = mapping.physical.share()?.ok_or(CuResult::NOT_SUPPORTED)?;
            // Its contents are elsewhere; the file only represents it.
            let driver = driver::the()?;
            files::made(files::path_of(driver, id.0)?)?;
            Ok(id)
        }
        _ => Err(CuResult::INVALID_VALUE),
    }
}
