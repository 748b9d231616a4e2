//! Event sets: what a program waits for. The board's faults are the only events that happen, and they happen as event
//! bits: a program may register structured events, and none is ever delivered.

use std::time::{Duration, Instant};

use cuda_api::nvml::*;

use crate::border::{Answer, get, put};
use crate::gpu::BoardGpu;
use crate::state::{handle, ready, whole};

const XID: u64 = 8;
/// XID errors, and what a real GPU would also offer but never happens here.
pub(crate) const SUPPORTED: u64 = 0x1 | 0x2 | XID | 0x10;

/// For each registered GPU, how many faults had been seen when it was registered.
type Watched = Vec<(usize, u64)>;

pub(crate) fn nvmlEventSetCreate(set: *mut NvmlEventSet) -> Answer {
    ready()?;
    if set.is_null() {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    let watched: Box<Watched> = Box::default();
    put(set, NvmlEventSet(Box::into_raw(watched).cast()))
}

pub(crate) fn nvmlEventSetFree(set: NvmlEventSet) -> Answer {
    ready()?;
    if set.is_null() {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    // SAFETY: a set comes from `nvmlEventSetCreate` and is freed once, by the caller's word.
    drop(unsafe { Box::from_raw(set.0.cast::<Watched>()) });
    Ok(())
}

fn watched<'a>(set: NvmlEventSet) -> Result<&'a mut Watched, NvmlReturn> {
    // SAFETY: a set comes from `nvmlEventSetCreate`, is not freed yet, and is used by one thread at
    // a time, by the caller's word.
    unsafe { set.0.cast::<Watched>().as_mut() }.ok_or(NvmlReturn::INVALID_ARGUMENT)
}

pub(crate) fn nvmlDeviceRegisterEvents(
    device: NvmlDevice,
    event_types: u64,
    set: NvmlEventSet,
) -> Answer {
    let gpu = whole(device)?;
    if event_types & !SUPPORTED != 0 {
        return Err(NvmlReturn::NOT_SUPPORTED);
    }
    watched(set)?.push((gpu.index(), gpu.faults().0));
    Ok(())
}

/// Structured events of a GPU, which is named by its UUID. What was registered before is registered once.
pub(crate) fn nvmlEventSetRegisterGpuOperationalEvents_v1(
    set: NvmlEventSet,
    config: *const NvmlOperationalEventConfig,
) -> Answer {
    ready()?;
    watched(set)?;
    let config = get(config)?;
    let length = config.uuid.iter().position(|&byte| byte == 0);
    let name = config
        .uuid
        .get(..length.ok_or(NvmlReturn::INVALID_ARGUMENT)?);
    let name: Vec<u8> = name.into_iter().flatten().map(|byte| *byte as u8).collect();
    let named = |gpu: &BoardGpu| gpu.uuid().as_bytes() == name;
    let gpu = BoardGpu::all().find(named).ok_or(NvmlReturn::NOT_FOUND)?;
    if gpu.lost() {
        return Err(NvmlReturn::GPU_IS_LOST);
    }
    Ok(())
}

pub(crate) fn nvmlEventSetWait(
    set: NvmlEventSet,
    data: *mut NvmlEventData,
    timeout_ms: u32,
) -> Answer {
    ready()?;
    get(data)?;
    let end = Instant::now() + Duration::from_millis(u64::from(timeout_ms));
    loop {
        // A program that waits for an event is not told that the driver hangs: the wait takes longer.
        crate::gpu::driver_answers(false)?;
        for (index, seen) in watched(set)?.iter_mut() {
            let Some(gpu) = BoardGpu::at(*index) else {
                continue;
            };
            let (count, xid) = gpu.faults();
            if count > *seen {
                *seen = count;
                return put(
                    data,
                    NvmlEventData {
                        device: handle(gpu, None),
                        event_type: XID,
                        event_data: xid,
                        gpu_instance_id: NO_INSTANCE,
                        compute_instance_id: NO_INSTANCE,
                    },
                );
            }
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(NvmlReturn::TIMEOUT);
        }
        std::thread::sleep(left.min(Duration::from_millis(20)));
    }
}

pub(crate) fn nvmlEventSetWait_v2(
    set: NvmlEventSet,
    data: *mut NvmlEventData,
    timeout_ms: u32,
) -> Answer {
    nvmlEventSetWait(set, data, timeout_ms)
}
