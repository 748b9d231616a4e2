//! `cuIpc*`: memory handles for other processes.

use cuda_api::driver::*;
use cuda_sim::board::SharedId;

use crate::base::border::{Done, check_out, invalid_if, write};
use crate::memory::blocks::{self, Block, BlockKind};
use crate::memory::context;
use crate::memory::shared::{open, share};
use crate::process::files::Name;

calls! {
    cuIpcGetMemHandle(handle, ptr) => {
        check_out(handle)?;
        let (base, block) = blocks::find(ptr.0)
            .filter(|(_, block)| matches!(block.kind, BlockKind::Device))
            .ok_or(CuResult::INVALID_VALUE)?;
        let name = share(base, &block, || Some(block.taken))?;
        let mut made = CuIpcMemHandle { reserved: [0; 64] };
        name.write(&mut made.reserved);
        write(handle, made)
    };
    cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2(out, handle, flags)
        => open_handle(out, handle, flags);
    cuIpcCloseMemHandle(ptr) => {
        let left = blocks::change(ptr.0, |block| match &mut block.kind {
            BlockKind::Opened { times } => {
                *times -= 1;
                Some(*times)
            }
            _ => None,
        });
        match left.flatten() {
            None => Err(CuResult::INVALID_VALUE),
            Some(left) => {
                blocks::end_at(ptr.0, |_| left == 0);
                Ok(())
            }
        }
    };
}

fn open_handle(out: *mut CuDevicePtr, handle: CuIpcMemHandle, flags: u32) -> Done {
    const LAZY_PEER_ACCESS: u32 = 1;
    check_out(out)?;
    let context = context::current()?.home();
    invalid_if(flags != LAZY_PEER_ACCESS)?;
    let name = Name::read(&handle.reserved).ok_or(CuResult::INVALID_VALUE)?;
    if name.pid == u64::from(std::process::id()) {
        // Its own memory; the real driver does not open it either.
        return Err(CuResult::INVALID_CONTEXT);
    }
    let same = |block: &Block| {
        matches!(block.kind, BlockKind::Opened { .. }) && block.shared == Some(SharedId(name.id))
    };
    let base = match blocks::select(0..u64::MAX, same).first() {
        Some((base, _)) => {
            blocks::change(*base, |block| {
                if let BlockKind::Opened { times } = &mut block.kind {
                    *times += 1;
                }
            });
            *base
        }
        None => open(&name, BlockKind::Opened { times: 1 }, Some(context))?,
    };
    write(out, CuDevicePtr(base))
}
