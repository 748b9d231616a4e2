//! `cuMemMapArrayAsync`: puts memory under parts of an array, and takes it off.

use cuda_api::driver::*;

use crate::base::border::read_all;
use crate::memory::physical;
use crate::memory::sparse::{MapInfo, Under, map};
use crate::streams::queue;
use crate::streams::stream;

calls! {
    cuMemMapArrayAsync(map_info_list, count, stream) => {
        const MAP: u32 = 1;
        const UNMAP: u32 = 2;
        let found = stream::find(stream)?;
        crate::streams::capturing::forbidden(&found)?;
        let list = read_all(map_info_list.cast_const().cast::<MapInfo>(), count as usize)?;
        let mut planned = Vec::new();
        for info in list {
            info.checked()?;
            let memory = match info.operation {
                MAP => Some(physical::held(CuMemAllocationHandle(info.handle))?),
                UNMAP => None,
                _ => return Err(CuResult::INVALID_VALUE),
            };
            planned.extend(info.parts().into_iter().map(|part| (part, memory.clone())));
        }
        let context = found.context.home();
        queue::free_in_order(&found, move || {
            for (part, memory) in planned {
                let before = map(part, memory.map(|_memory| Under { _memory, context }));
                // May be the last that held it; nothing is locked here.
                drop(before);
            }
        })
    };
}
