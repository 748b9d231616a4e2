//! The functions of a device's graph memory: trim, and its attributes.

use cuda_api::driver::*;

use crate::base::border::{invalid_if, lock, read, write};
use crate::memory::graph_memory::{STEP, all_of, trim, with_kept};
use crate::process::choices;
use crate::process::driver;

calls! {
    cuDeviceGetGraphMemAttribute(device, attribute, value) => {
        let gpu = driver::the()?.gpu(device)?;
        let mapped = mapped_bytes(gpu);
        let kept = with_kept(gpu, |kept| *kept);
        let used = if choices::graph_figure_is_mapped() {
            kept.used.max(mapped).min(kept.reserved)
        } else {
            kept.used
        };
        let found = match attribute {
            USED => used,
            USED_HIGH => kept.used_high.max(used),
            RESERVED => kept.reserved,
            RESERVED_HIGH => kept.reserved_high,
            _ => return Err(CuResult::INVALID_VALUE),
        };
        write(value.cast::<u64>(), found)
    };
    // High-water marks can be set back, to zero only.
    cuDeviceSetGraphMemAttribute(device, attribute, value) => {
        let gpu = driver::the()?.gpu(device)?;
        invalid_if(read(value.cast::<u64>().cast_const())? != 0)?;
        with_kept(gpu, |kept| {
            match attribute {
                USED_HIGH => kept.used_high = kept.used,
                RESERVED_HIGH => kept.reserved_high = kept.reserved,
                _ => return Err(CuResult::INVALID_VALUE),
            }
            Ok(())
        })
    };
    cuDeviceGraphMemTrim(device) => trim(driver::the()?.gpu(device)?);
}

const USED: u32 = 0;
const USED_HIGH: u32 = 1;
const RESERVED: u32 = 2;
const RESERVED_HIGH: u32 = 3;

/// Bytes of a GPU that are mapped by at least one graph, if none were used by two.
fn mapped_bytes(gpu: usize) -> u64 {
    let all = all_of(gpu);
    let mapped = all.iter().filter(|inner| *lock(&inner.is_mapped));
    mapped.fold(0, |sum: u64, inner| {
        sum.saturating_add(inner.bytes.next_multiple_of(STEP))
    })
}
