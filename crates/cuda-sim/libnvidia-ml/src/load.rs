//! NVML's answers about a device at work: clocks, temperature, power, errors. The figures are made up, but
//! they move with the load, so that a graph of them has something to show.

use cuda_api::nvml::*;

use crate::border::{Answer, get, put, put_list};
use crate::device::{MEMORY_MHZ, ON, POWER_LIMIT_MW};
use crate::gpu::{self, BoardGpu};
use crate::state::whole;

const CLOCK_IDLE: u64 = 1;

fn clock(gpu: BoardGpu, kind: u32) -> Result<u32, NvmlReturn> {
    match kind {
        0 | 1 => Ok(gpu.sm_mhz()),
        2 => Ok(MEMORY_MHZ),
        3 => Ok(1_290),
        _ => Err(NvmlReturn::INVALID_ARGUMENT),
    }
}

fn most(kind: u32) -> Result<u32, NvmlReturn> {
    match kind {
        0 | 1 => Ok(gpu::SM_MHZ_MOST),
        2 => Ok(MEMORY_MHZ),
        3 => Ok(1_290),
        _ => Err(NvmlReturn::INVALID_ARGUMENT),
    }
}

pub(crate) fn nvmlDeviceGetClockInfo(device: NvmlDevice, kind: u32, mhz: *mut u32) -> Answer {
    put(mhz, clock(whole(device)?, kind)?)
}

pub(crate) fn nvmlDeviceGetClock(device: NvmlDevice, kind: u32, id: u32, mhz: *mut u32) -> Answer {
    let gpu = whole(device)?;
    put(
        mhz,
        if id == 0 {
            clock(gpu, kind)?
        } else {
            most(kind)?
        },
    )
}

macro_rules! most_clocks {
    ($($name:ident)*) => {$(
        pub(crate) fn $name(device: NvmlDevice, kind: u32, mhz: *mut u32) -> Answer {
            whole(device)?;
            put(mhz, most(kind)?)
        }
    )*};
}

most_clocks! {
    nvmlDeviceGetMaxClockInfo nvmlDeviceGetApplicationsClock nvmlDeviceGetDefaultApplicationsClock
    nvmlDeviceGetMaxCustomerBoostClock
}

pub(crate) fn nvmlDeviceGetMinMaxClockOfPState(
    device: NvmlDevice,
    kind: u32,
    state: u32,
    least_mhz: *mut u32,
    most_mhz: *mut u32,
) -> Answer {
    whole(device)?;
    if state != 0 {
        return Err(NvmlReturn::NOT_SUPPORTED);
    }
    put(
        least_mhz,
        if kind == 2 {
            MEMORY_MHZ
        } else {
            gpu::SM_MHZ_LEAST
        },
    )?;
    put(most_mhz, most(kind)?)
}

pub(crate) fn nvmlDeviceGetSupportedMemoryClocks(
    device: NvmlDevice,
    count: *mut u32,
    clocks: *mut u32,
) -> Answer {
    whole(device)?;
    put_list(count, clocks, &[MEMORY_MHZ])
}

pub(crate) fn nvmlDeviceGetSupportedGraphicsClocks(
    device: NvmlDevice,
    memory_mhz: u32,
    count: *mut u32,
    clocks: *mut u32,
) -> Answer {
    whole(device)?;
    if memory_mhz != MEMORY_MHZ {
        return Err(NvmlReturn::NOT_FOUND);
    }
    let list: Vec<u32> = (gpu::SM_MHZ_LEAST..=gpu::SM_MHZ_MOST)
        .rev()
        .step_by(15)
        .collect();
    put_list(count, clocks, &list)
}

fn reasons(device: NvmlDevice, reasons: *mut u64) -> Answer {
    let (busy, _) = whole(device)?.utilization();
    put(reasons, if busy == 0 { CLOCK_IDLE } else { 0 })
}

pub(crate) fn nvmlDeviceGetCurrentClocksEventReasons(device: NvmlDevice, out: *mut u64) -> Answer {
    reasons(device, out)
}

pub(crate) fn nvmlDeviceGetCurrentClocksThrottleReasons(
    device: NvmlDevice,
    out: *mut u64,
) -> Answer {
    reasons(device, out)
}

pub(crate) fn nvmlDeviceGetPerformanceState(device: NvmlDevice, state: *mut u32) -> Answer {
    whole(device)?;
    put(state, 0)
}

pub(crate) fn nvmlDeviceGetPowerState(device: NvmlDevice, state: *mut u32) -> Answer {
    nvmlDeviceGetPerformanceState(device, state)
}

pub(crate) fn nvmlDeviceGetSupportedPerformanceStates(
    device: NvmlDevice,
    states: *mut u32,
    bytes: u32,
) -> Answer {
    const UNKNOWN: u32 = 32;
    whole(device)?;
    let room = bytes as usize / size_of::<u32>();
    if room == 0 {
        return Err(NvmlReturn::INSUFFICIENT_SIZE);
    }
    for slot in 0..room {
        // `slot` is below the size that the caller gives its array.
        put(
            states.wrapping_add(slot),
            if slot == 0 { 0 } else { UNKNOWN },
        )?;
    }
    Ok(())
}

pub(crate) fn nvmlDeviceGetTemperature(device: NvmlDevice, sensor: u32, out: *mut u32) -> Answer {
    let gpu = whole(device)?;
    if sensor != 0 {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    put(out, gpu.celsius())
}

pub(crate) fn nvmlDeviceGetTemperatureThreshold(
    device: NvmlDevice,
    threshold: u32,
    out: *mut u32,
) -> Answer {
    whole(device)?;
    match threshold {
        0 => put(out, 92),
        1 => put(out, 89),
        2 => put(out, 95),
        3 => put(out, 85),
        4..=6 => Err(NvmlReturn::NOT_SUPPORTED),
        _ => Err(NvmlReturn::INVALID_ARGUMENT),
    }
}

pub(crate) fn nvmlDeviceGetPowerUsage(device: NvmlDevice, milliwatts: *mut u32) -> Answer {
    put(milliwatts, whole(device)?.power_mw())
}

pub(crate) fn nvmlDeviceGetTotalEnergyConsumption(
    device: NvmlDevice,
    millijoules: *mut u64,
) -> Answer {
    put(millijoules, whole(device)?.energy_mj())
}

pub(crate) fn nvmlDeviceGetViolationStatus(
    device: NvmlDevice,
    _policy: u32,
    time: *mut NvmlViolationTime,
) -> Answer {
    let reference_time = whole(device)?.now_us();
    put(
        time,
        NvmlViolationTime {
            reference_time,
            violation_time: 0,
        },
    )
}

// Health: what the board says of memory rows; nothing else is broken.

pub(crate) fn nvmlDeviceGetRemappedRows(
    device: NvmlDevice,
    correctable: *mut u32,
    uncorrectable: *mut u32,
    pending: *mut u32,
    failed: *mut u32,
) -> Answer {
    let (waits, fails) = whole(device)?.remaps();
    put(correctable, 0)?;
    put(uncorrectable, u32::from(waits))?;
    put(pending, u32::from(waits))?;
    put(failed, u32::from(fails))
}

pub(crate) fn nvmlDeviceGetRetiredPages(
    device: NvmlDevice,
    _cause: u32,
    count: *mut u32,
    addresses: *mut u64,
) -> Answer {
    whole(device)?;
    put_list(count, addresses, &[])
}

pub(crate) fn nvmlDeviceGetRetiredPages_v2(
    device: NvmlDevice,
    cause: u32,
    count: *mut u32,
    addresses: *mut u64,
    _timestamps: *mut u64,
) -> Answer {
    nvmlDeviceGetRetiredPages(device, cause, count, addresses)
}

pub(crate) fn nvmlDeviceGetRowRemapperHistogram(
    device: NvmlDevice,
    out: *mut NvmlRowRemapperHistogram,
) -> Answer {
    whole(device)?;
    put(
        out,
        NvmlRowRemapperHistogram {
            max: 640,
            high: 0,
            partial: 0,
            low: 0,
            none: 0,
        },
    )
}

/// Each field is answered by itself, with its own return code.
pub(crate) fn nvmlDeviceGetFieldValues(
    device: NvmlDevice,
    count: i32,
    values: *mut NvmlFieldValue,
) -> Answer {
    const MEMORY_TEMPERATURE: u32 = 82;
    const ENERGY: u32 = 83;
    const POWER_AVERAGE: u32 = 185;
    const POWER_INSTANT: u32 = 186;
    const POWER_LEAST: u32 = 187;
    const POWER_MOST: u32 = 188;
    const POWER_DEFAULT: u32 = 189;
    const POWER_CURRENT: u32 = 190;
    const POWER_REQUESTED: u32 = 192;
    // KiB over NVLink, by link; this scope means all links.
    const LINKS_SENT: u32 = 138;
    const LINKS_RECEIVED: u32 = 139;
    const ALL_LINKS: u32 = u32::MAX;
    const PCIE_SENT: u32 = 197;
    const PCIE_RECEIVED: u32 = 198;
    let gpu = whole(device)?;
    if values.is_null() || count < 1 {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    let now = gpu.now_us();
    for index in 0..count as usize {
        // `index` is below the size that the caller gives its array.
        let place = values.wrapping_add(index);
        let mut answer = get(place)?;
        let value = match answer.field_id {
            1 | 2 => Some(u64::from(ON)),
            144 => Some(u64::from(gpu.remaps().0)),
            145 => Some(u64::from(gpu.remaps().1)),
            3..=31 | 92..=95 | 142 | 143 | 169 | 173..=183 => Some(0),
            MEMORY_TEMPERATURE => Some(u64::from(gpu.celsius()) + 4),
            ENERGY => Some(gpu.energy_mj()),
            LINKS_SENT | LINKS_RECEIVED => {
                let links = gpu.link_ends().len() as u64;
                let counted = match answer.scope_id {
                    ALL_LINKS => links,
                    link => u64::from(u64::from(link) < links),
                };
                (counted > 0).then(|| counted * gpu.link_kib())
            }
            PCIE_SENT => Some(gpu.pcie_bytes()),
            PCIE_RECEIVED => Some(2 * gpu.pcie_bytes()),
            POWER_AVERAGE | POWER_INSTANT => Some(u64::from(gpu.power_mw())),
            POWER_LEAST => Some(100_000),
            POWER_MOST | POWER_DEFAULT | POWER_CURRENT | POWER_REQUESTED => {
                Some(u64::from(POWER_LIMIT_MW))
            }
            _ => None,
        };
        answer.timestamp = now as i64;
        answer.latency_us = 1;
        answer.value_type = if matches!(answer.field_id, 1 | 2 | 82 | 185..=192) {
            NvmlValue::UNSIGNED_INT
        } else {
            NvmlValue::UNSIGNED_LONG_LONG
        };
        answer.value = NvmlValue(value.unwrap_or(0));
        answer.result = if value.is_some() {
            NvmlReturn::SUCCESS
        } else {
            NvmlReturn::NOT_SUPPORTED
        };
        put(place, answer)?;
    }
    Ok(())
}
