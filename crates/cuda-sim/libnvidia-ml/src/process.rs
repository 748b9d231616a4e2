//! The users of a device: process lists, utilisation by process, accounting. As coarse and as late as
//! NVML is; the board decides both.

use cuda_api::nvml::*;

use crate::border::{Answer, get, put, put_list};
use crate::gpu::{BoardGpu, ProcessSample, SM_MHZ_LEAST, SM_MHZ_MOST, power_mw};
use crate::late::Process;
use crate::state::{Target, target, whole};

/// The processes that compute on a device, with the MIG instance that they compute on.
fn computing(device: NvmlDevice) -> Result<Vec<(Process, u32)>, NvmlReturn> {
    Ok(match target(device)? {
        Target::Gpu(gpu) => gpu
            .processes()
            .into_iter()
            .map(|process| (process, process.instance))
            .collect(),
        Target::Mig(gpu, part) => gpu
            .processes()
            .into_iter()
            .filter(|process| process.instance == part.gpu_instance)
            .map(|process| (process, part.gpu_instance))
            .collect(),
    })
}

fn list_v1(device: NvmlDevice, count: *mut u32, infos: *mut NvmlProcessInfoV1) -> Answer {
    let list: Vec<_> = computing(device)?
        .into_iter()
        .map(|(process, _)| NvmlProcessInfoV1::new(process.pid, process.bytes))
        .collect();
    put_list(count, infos, &list)
}

fn list(device: NvmlDevice, count: *mut u32, infos: *mut NvmlProcessInfo) -> Answer {
    let list: Vec<_> = computing(device)?
        .into_iter()
        .map(|(process, instance)| NvmlProcessInfo {
            pid: process.pid,
            used_gpu_memory: process.bytes,
            gpu_instance_id: instance,
            compute_instance_id: if instance == NO_INSTANCE {
                NO_INSTANCE
            } else {
                0
            },
        })
        .collect();
    put_list(count, infos, &list)
}

/// Under MPS all that compute do so by its server, and stand in both lists.
fn under_mps(device: NvmlDevice) -> Result<bool, NvmlReturn> {
    Ok(target(device)?.gpu().is_mps())
}

fn mps_list_v1(device: NvmlDevice, count: *mut u32, infos: *mut NvmlProcessInfoV1) -> Answer {
    if under_mps(device)? {
        list_v1(device, count, infos)
    } else {
        no_process(device, count, infos)
    }
}

fn mps_list(device: NvmlDevice, count: *mut u32, infos: *mut NvmlProcessInfo) -> Answer {
    if under_mps(device)? {
        list(device, count, infos)
    } else {
        no_process(device, count, infos)
    }
}

/// No process draws on a simulated device.
fn no_process<T: Copy>(device: NvmlDevice, count: *mut u32, infos: *mut T) -> Answer {
    target(device)?;
    put_list(count, infos, &[])
}

macro_rules! process_lists {
    ($($name:ident, $info:ty => $answer:ident;)*) => {$(
        pub(crate) fn $name(device: NvmlDevice, count: *mut u32, infos: *mut $info) -> Answer {
            $answer(device, count, infos)
        }
    )*};
}

process_lists! {
    nvmlDeviceGetComputeRunningProcesses, NvmlProcessInfoV1 => list_v1;
    nvmlDeviceGetComputeRunningProcesses_v2, NvmlProcessInfo => list;
    nvmlDeviceGetComputeRunningProcesses_v3, NvmlProcessInfo => list;
    nvmlDeviceGetGraphicsRunningProcesses, NvmlProcessInfoV1 => no_process;
    nvmlDeviceGetGraphicsRunningProcesses_v2, NvmlProcessInfo => no_process;
    nvmlDeviceGetGraphicsRunningProcesses_v3, NvmlProcessInfo => no_process;
    nvmlDeviceGetMPSComputeRunningProcesses, NvmlProcessInfoV1 => mps_list_v1;
    nvmlDeviceGetMPSComputeRunningProcesses_v2, NvmlProcessInfo => mps_list;
    nvmlDeviceGetMPSComputeRunningProcesses_v3, NvmlProcessInfo => mps_list;
}

pub(crate) fn nvmlDeviceGetRunningProcessDetailList(
    device: NvmlDevice,
    list: *mut NvmlProcessDetailList,
) -> Answer {
    const COMPUTE: u32 = 0;
    const MPS: u32 = 2;
    let mut request = get(list)?;
    if request.version != NvmlProcessDetailList::VERSION {
        return Err(NvmlReturn::ARGUMENT_VERSION_MISMATCH);
    }
    if request.mode > MPS {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    let mut details = Vec::new();
    if request.mode == COMPUTE || request.mode == MPS && under_mps(device)? {
        details.extend(computing(device)?.into_iter().map(|(process, instance)| {
            NvmlProcessDetail {
                gpu_instance_id: instance,
                compute_instance_id: if instance == NO_INSTANCE {
                    NO_INSTANCE
                } else {
                    0
                },
                ..NvmlProcessDetail::new(process.pid, process.bytes)
            }
        }));
    } else {
        target(device)?;
    }
    let answer = put_list(&raw mut request.count, request.array, &details);
    put(list, request)?;
    answer
}

/// Each process's utilisation in the sampling periods after `last_seen`.
fn samples_of_processes(
    device: NvmlDevice,
    last_seen: u64,
) -> Result<Vec<ProcessSample>, NvmlReturn> {
    let gpu = unpartitioned(device)?;
    let lacks = crate::gpu::lacks();
    if lacks.figures {
        return Err(NvmlReturn::NOT_SUPPORTED);
    }
    let samples = gpu.process_samples(last_seen);
    if lacks.samples || samples.is_empty() {
        return Err(NvmlReturn::NOT_FOUND);
    }
    Ok(samples)
}

pub(crate) fn nvmlDeviceGetProcessUtilization(
    device: NvmlDevice,
    samples: *mut NvmlProcessUtilizationSample,
    count: *mut u32,
    last_seen: u64,
) -> Answer {
    get(count)?;
    let list: Vec<_> = samples_of_processes(device, last_seen)?
        .into_iter()
        .map(|sample| NvmlProcessUtilizationSample {
            pid: sample.pid,
            time_stamp: sample.time_us,
            sm_util: sample.sm,
            mem_util: sample.memory,
            enc_util: 0,
            dec_util: 0,
        })
        .collect();
    put_list(count, samples, &list)
}

pub(crate) fn nvmlDeviceGetProcessesUtilizationInfo(
    device: NvmlDevice,
    info: *mut NvmlProcessesUtilizationInfo,
) -> Answer {
    let mut request = get(info)?;
    if request.version != NvmlProcessesUtilizationInfo::VERSION {
        return Err(NvmlReturn::ARGUMENT_VERSION_MISMATCH);
    }
    let list: Vec<_> = samples_of_processes(device, request.last_seen)?
        .into_iter()
        .map(|sample| NvmlProcessUtilizationInfo {
            time_stamp: sample.time_us,
            pid: sample.pid,
            sm_util: sample.sm,
            mem_util: sample.memory,
            enc_util: 0,
            dec_util: 0,
            jpg_util: 0,
            ofa_util: 0,
        })
        .collect();
    let answer = put_list(&raw mut request.count, request.array, &list);
    put(info, request)?;
    answer
}

pub(crate) fn nvmlDeviceGetUtilizationRates(
    device: NvmlDevice,
    utilization: *mut NvmlUtilization,
) -> Answer {
    let (gpu, memory) = unpartitioned(device)?.utilization();
    put(utilization, NvmlUtilization { gpu, memory })
}

/// A GPU in MIG mode does not say how busy it is.
fn unpartitioned(device: NvmlDevice) -> Result<BoardGpu, NvmlReturn> {
    let gpu = whole(device)?;
    if crate::mig::enabled(gpu) {
        Err(NvmlReturn::NOT_SUPPORTED)
    } else {
        Ok(gpu)
    }
}

pub(crate) fn nvmlDeviceGetSamples(
    device: NvmlDevice,
    kind: u32,
    last_seen: u64,
    value_type: *mut u32,
    count: *mut u32,
    samples: *mut NvmlSample,
) -> Answer {
    const POWER: u32 = 0;
    const GPU: u32 = 1;
    const MEMORY: u32 = 2;
    const ENCODER: u32 = 3;
    const DECODER: u32 = 4;
    const SM_CLOCK: u32 = 5;
    const MEMORY_CLOCK: u32 = 6;
    let gpu = unpartitioned(device)?;
    let value = |percent: u32, memory: u32| {
        Ok(match kind {
            POWER => power_mw(percent),
            GPU => percent,
            MEMORY => memory,
            ENCODER | DECODER => 0,
            SM_CLOCK if percent == 0 => SM_MHZ_LEAST,
            SM_CLOCK => SM_MHZ_MOST,
            MEMORY_CLOCK => crate::device::MEMORY_MHZ,
            _ => return Err(NvmlReturn::NOT_SUPPORTED),
        })
    };
    value(0, 0)?;
    put(value_type, NvmlValue::UNSIGNED_INT)?;
    let mut list = Vec::new();
    for sample in gpu.samples(last_seen) {
        let value = NvmlValue(u64::from(value(sample.sm, sample.memory)?));
        list.push(NvmlSample {
            time_stamp: sample.time_us,
            value,
        });
    }
    if list.is_empty() {
        return Err(NvmlReturn::NOT_FOUND);
    }
    // Asked without an array, NVML answers with the number alone.
    if samples.is_null() {
        return put(count, list.len() as u32);
    }
    let room = (get(count)? as usize).min(list.len());
    put_list(count, samples, &list[list.len() - room..])
}

// Accounting is on, and remembers the processes that are alive.

pub(crate) fn nvmlDeviceGetAccountingMode(device: NvmlDevice, mode: *mut u32) -> Answer {
    whole(device)?;
    put(mode, 1)
}

pub(crate) fn nvmlDeviceGetAccountingBufferSize(device: NvmlDevice, size: *mut u32) -> Answer {
    whole(device)?;
    put(size, 4000)
}

pub(crate) fn nvmlDeviceGetAccountingPids(
    device: NvmlDevice,
    count: *mut u32,
    pids: *mut u32,
) -> Answer {
    let list: Vec<u32> = whole(device)?
        .processes()
        .iter()
        .map(|process| process.pid)
        .collect();
    put_list(count, pids, &list)
}

pub(crate) fn nvmlDeviceGetAccountingStats(
    device: NvmlDevice,
    pid: u32,
    stats: *mut NvmlAccountingStats,
) -> Answer {
    let processes = whole(device)?.processes();
    let process = processes
        .iter()
        .find(|process| process.pid == pid)
        .ok_or(NvmlReturn::NOT_FOUND)?;
    put(
        stats,
        NvmlAccountingStats {
            gpu_utilization: 0,
            memory_utilization: 0,
            max_memory_usage: process.bytes,
            time: 0,
            start_time: 0,
            is_running: 1,
            reserved: [0; 5],
        },
    )
}

pub(crate) fn nvmlDeviceGetAccountingStats_v2(
    device: NvmlDevice,
    stats: *mut NvmlAccountingStatsV2,
) -> Answer {
    let asked = get(stats)?;
    let processes = whole(device)?.processes();
    let process = processes
        .iter()
        .find(|process| process.pid == asked.pid)
        .ok_or(NvmlReturn::NOT_FOUND)?;
    put(
        stats,
        NvmlAccountingStatsV2 {
            pid: asked.pid,
            is_running: 1,
            gpu_utilization: 0,
            memory_utilization: 0,
            max_memory_usage: process.bytes,
            sample_count: 0,
            sum_gpu_util: 0,
            sum_fb_util: 0,
            time: 0,
            start_time: 0,
        },
    )
}
