//! Lists of processes, made the container's own: those that compute on a device, those that keep it busy,
//! those that NVML accounts for. The driver lists the host's pids; the container gets its own pids.

use core::mem::MaybeUninit;

use cuda_api::nvml::*;
use vgpu_abi::region::ProcessUse;

use super::Limited;
use super::driver;
use super::limited;
use crate::base::clock;
use crate::driver::query;
use crate::guest::border::OutPtr;
use crate::guest::manners::Verdict;
use crate::state::container::Container;
use crate::state::standing;

/// Entries of which we can make an own list when the caller's room was too small for the driver's.
const OWN_ROOM: u32 = 256;

/// A process of the container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Member {
    /// As the container knows it.
    pid: u32,
    /// As the driver knows it.
    driver_pid: u32,
    /// The memory that it holds of the device, bytes.
    used: u64,
}

/// The container's processes, whether they use the device or not.
fn members(container: &Container, index: usize) -> impl Iterator<Item = Member> {
    container.region.processes().map(move |process| Member {
        pid: process.pid,
        driver_pid: driver_pid(container, &process),
        used: process.used_bytes.get(index).copied().unwrap_or(0),
    })
}

/// The host's pid if the host has written it, otherwise the process's own: the two are the same if the container has
/// no pid namespace of its own.
fn driver_pid(container: &Container, process: &ProcessUse) -> u32 {
    container
        .target_of(process.slot, process.generation)
        .map(|target| target.host_pid)
        .filter(|&pid| pid != 0)
        .unwrap_or(process.pid)
}

/// The container's process behind a pid of the driver's.
fn member(limited: &Limited, driver_pid: u32) -> Option<Member> {
    members(limited.accounts.container, limited.index)
        .find(|member| member.driver_pid == driver_pid)
}

/// The processes that compute are known from the region, so the driver's list is not looked at: other
/// containers alone may make it too long for the caller.
pub(crate) fn after_compute<T: ProcessEntry>(
    room: u32,
    result: NvmlReturn,
    device: NvmlDevice,
    count: OutPtr<u32>,
    infos: OutPtr<T>,
) -> Option<NvmlReturn> {
    if !matches!(result, NvmlReturn::SUCCESS | NvmlReturn::INSUFFICIENT_SIZE) {
        return None;
    }
    let limited = limited(device)?;
    let mut number = 0;
    let answer = write_members(&limited, device, room, &mut number, infos);
    count.write(number);
    Some(answer)
}

fn write_members<T: ProcessEntry>(
    limited: &Limited,
    device: NvmlDevice,
    room: u32,
    number: &mut u32,
    infos: OutPtr<T>,
) -> NvmlReturn {
    let (gpu_instance, compute_instance) = instance_of(device);
    let room = if infos.is_null() { 0 } else { room as usize };
    let mut found = 0;
    for member in
        members(limited.accounts.container, limited.index).filter(|member| member.used > 0)
    {
        if found < room {
            let entry = T::new(member.pid, member.used);
            // `found` is below the room that the caller has.
            infos
                .at(found)
                .write(entry.on_instance(gpu_instance, compute_instance));
        }
        found += 1;
    }
    *number = u32::try_from(found).unwrap_or(u32::MAX);
    if found > room {
        NvmlReturn::INSUFFICIENT_SIZE
    } else {
        NvmlReturn::SUCCESS
    }
}

/// The MIG instances behind a handle.
fn instance_of(device: NvmlDevice) -> (u32, u32) {
    let (mut gpu, mut compute) = (NO_INSTANCE, NO_INSTANCE);
    if query::gpu_of(device).is_some() {
        // SAFETY: NVML checks the handle, and writes to the local `gpu` alone.
        let result = unsafe { driver::nvmlDeviceGetGpuInstanceId(device, &raw mut gpu) };
        if !result.is_success() {
            gpu = NO_INSTANCE;
        }
        // SAFETY: NVML checks the handle, and writes to the local `compute` alone.
        let result = unsafe { driver::nvmlDeviceGetComputeInstanceId(device, &raw mut compute) };
        if !result.is_success() {
            compute = NO_INSTANCE;
        }
    }
    (gpu, compute)
}

/// A function of the driver that fills a process list.
type ProcessList<T> = unsafe fn(NvmlDevice, *mut u32, *mut T) -> NvmlReturn;

/// Only the driver knows the processes that draw, or compute under MPS: its list without those of other
/// containers.
pub(crate) fn after_others<T: ProcessEntry>(
    room: u32,
    result: NvmlReturn,
    device: NvmlDevice,
    count: OutPtr<u32>,
    infos: OutPtr<T>,
    ask: ProcessList<T>,
) -> Option<NvmlReturn> {
    let limited = limited(device)?;
    let list = NvmlList {
        room,
        array: infos,
        when_empty: NvmlReturn::SUCCESS,
    };
    list.settle_at(
        count,
        result,
        |entry| own_entry(&limited, entry),
        // SAFETY: `infos` has room for `count` entries (see `NvmlList::settle`).
        |count, infos| unsafe { ask(device, count, infos) },
    )
}

fn own_entry<T: ProcessEntry>(limited: &Limited, entry: T) -> Option<T> {
    let member = member(limited, entry.pid())?;
    let used = if member.used > 0 {
        member.used
    } else {
        entry.memory()
    };
    Some(entry.with(member.pid, used))
}

/// How much room the caller has, before the driver overwrites it.
pub(crate) fn room_of_details(list: OutPtr<NvmlProcessDetailList>) -> Verdict<u32, NvmlReturn> {
    match list.read() {
        Some(list) if standing::opened().is_some() => Verdict::Call(list.count),
        _ => Verdict::Pass,
    }
}

pub(crate) fn after_details(
    room: u32,
    result: NvmlReturn,
    device: NvmlDevice,
    list: OutPtr<NvmlProcessDetailList>,
) -> Option<NvmlReturn> {
    const COMPUTE: u32 = 0;
    if !matches!(result, NvmlReturn::SUCCESS | NvmlReturn::INSUFFICIENT_SIZE) {
        return None;
    }
    let limited = limited(device)?;
    let mut request = list.read()?;
    let array = list.follow(|it| it.array)?;
    let answer = if request.mode == COMPUTE {
        Some(write_members(
            &limited,
            device,
            room,
            &mut request.count,
            array,
        ))
    } else {
        let (version, mode) = (request.version, request.mode);
        let own = NvmlList {
            room,
            array,
            when_empty: NvmlReturn::SUCCESS,
        };
        own.settle(
            &mut request.count,
            result,
            |entry| own_entry(&limited, entry),
            |count, array| {
                let mut own = NvmlProcessDetailList {
                    version,
                    mode,
                    count: *count,
                    array,
                };
                // SAFETY: `array` has room for `count` entries (see `NvmlList::settle`).
                let result =
                    unsafe { driver::nvmlDeviceGetRunningProcessDetailList(device, &raw mut own) };
                *count = own.count;
                result
            },
        )
    };
    list.write(request);
    answer
}

pub(crate) fn after_samples(
    room: u32,
    result: NvmlReturn,
    device: NvmlDevice,
    samples: OutPtr<NvmlProcessUtilizationSample>,
    count: OutPtr<u32>,
    last_seen: u64,
) -> Option<NvmlReturn> {
    let limited = limited(device)?;
    let list = NvmlList {
        room,
        array: samples,
        when_empty: NvmlReturn::NOT_FOUND,
    };
    list.settle_at(
        count,
        result,
        |sample| {
            let pid = member(&limited, sample.pid)?.pid;
            Some(NvmlProcessUtilizationSample { pid, ..sample })
        },
        // SAFETY: `samples` has room for `count` entries (see `NvmlList::settle`).
        |count, samples| unsafe {
            driver::nvmlDeviceGetProcessUtilization(device, samples, count, last_seen)
        },
    )
}

/// How much room the caller has, before the driver overwrites it.
pub(crate) fn room_of_samples(
    info: OutPtr<NvmlProcessesUtilizationInfo>,
) -> Verdict<u32, NvmlReturn> {
    match info.read() {
        Some(info) if standing::opened().is_some() => Verdict::Call(info.count),
        _ => Verdict::Pass,
    }
}

pub(crate) fn after_samples_info(
    room: u32,
    result: NvmlReturn,
    device: NvmlDevice,
    info: OutPtr<NvmlProcessesUtilizationInfo>,
) -> Option<NvmlReturn> {
    let limited = limited(device)?;
    let mut request = info.read()?;
    let array = info.follow(|it| it.array)?;
    let (version, last_seen) = (request.version, request.last_seen);
    let list = NvmlList {
        room,
        array,
        when_empty: NvmlReturn::NOT_FOUND,
    };
    let answer = list.settle(
        &mut request.count,
        result,
        |sample| {
            let pid = member(&limited, sample.pid)?.pid;
            Some(NvmlProcessUtilizationInfo { pid, ..sample })
        },
        |count, array| {
            let mut own = NvmlProcessesUtilizationInfo {
                version,
                count: *count,
                last_seen,
                array,
            };
            // SAFETY: `array` has room for `count` entries (see `NvmlList::settle`).
            let result =
                unsafe { driver::nvmlDeviceGetProcessesUtilizationInfo(device, &raw mut own) };
            *count = own.count;
            result
        },
    );
    info.write(request);
    answer
}

/// How busy the container keeps the device: the newest sample of each of its processes, of the last second. The
/// driver's answer is not changed if it has no figures for each process.
pub(crate) fn after_rates(
    result: NvmlReturn,
    device: NvmlDevice,
    utilization: OutPtr<NvmlUtilization>,
) {
    const WINDOW_US: u64 = 1_000_000;
    if !result.is_success() {
        return;
    }
    let Some(limited) = limited(device) else {
        return;
    };
    let mut samples =
        [const { MaybeUninit::<NvmlProcessUtilizationSample>::uninit() }; OWN_ROOM as usize];
    let mut count = OWN_ROOM;
    let since = now_us().saturating_sub(WINDOW_US);
    // SAFETY: as much room as stated.
    let result = unsafe {
        driver::nvmlDeviceGetProcessUtilization(
            device,
            samples.as_mut_ptr().cast(),
            &raw mut count,
            since,
        )
    };
    let samples = match result {
        NvmlReturn::SUCCESS => filled(&samples, count),
        // No process has computed lately.
        NvmlReturn::NOT_FOUND => &[],
        _ => return,
    };
    utilization.write(busy(samples, |pid| member(&limited, pid).is_some()));
}

/// Sums the newest sample of each process of the container.
fn busy(
    samples: &[NvmlProcessUtilizationSample],
    is_ours: impl Fn(u32) -> bool,
) -> NvmlUtilization {
    let mut sum = NvmlUtilization { gpu: 0, memory: 0 };
    for (at, sample) in samples.iter().enumerate() {
        let is_newest = samples.iter().enumerate().all(|(other_at, other)| {
            other.pid != sample.pid || (other.time_stamp, other_at) <= (sample.time_stamp, at)
        });
        if is_newest && is_ours(sample.pid) {
            sum.gpu = sum.gpu.saturating_add(sample.sm_util);
            sum.memory = sum.memory.saturating_add(sample.mem_util);
        }
    }
    NvmlUtilization {
        gpu: sum.gpu.min(100),
        memory: sum.memory.min(100),
    }
}

/// The wall clock, which is what NVML stamps samples with; microseconds since 1970.
fn now_us() -> u64 {
    clock::unix_ns() / 1_000
}

pub(crate) fn after_accounting_pids(
    room: u32,
    result: NvmlReturn,
    device: NvmlDevice,
    count: OutPtr<u32>,
    pids: OutPtr<u32>,
) -> Option<NvmlReturn> {
    let limited = limited(device)?;
    let list = NvmlList {
        room,
        array: pids,
        when_empty: NvmlReturn::SUCCESS,
    };
    list.settle_at(
        count,
        result,
        |pid| Some(member(&limited, pid)?.pid),
        // SAFETY: `pids` has room for `count` entries (see `NvmlList::settle`).
        |count, pids| unsafe { driver::nvmlDeviceGetAccountingPids(device, count, pids) },
    )
}

/// The driver was asked about a pid of the container, which on the host may belong to no process or to another
/// one.
pub(crate) fn after_accounting_stats(
    result: NvmlReturn,
    device: NvmlDevice,
    pid: u32,
    stats: OutPtr<NvmlAccountingStats>,
) -> Option<NvmlReturn> {
    match accounted(result, device, pid)? {
        Some(driver_pid) if driver_pid == pid => None,
        Some(driver_pid) => {
            // SAFETY: `stats` is the program's, for a call that writes such a structure there.
            Some(unsafe { driver::nvmlDeviceGetAccountingStats(device, driver_pid, stats.raw()) })
        }
        None => {
            if result.is_success() && !stats.is_null() {
                // SAFETY: a structure of numbers, of which all zeros is a value.
                stats.write(unsafe { core::mem::zeroed() });
            }
            Some(NvmlReturn::NOT_FOUND)
        }
    }
}

/// The pid that the program asks about, before the driver writes the structure.
pub(crate) fn asked_process(stats: OutPtr<NvmlAccountingStatsV2>) -> Verdict<u32, NvmlReturn> {
    match stats.read() {
        Some(asked) if standing::opened().is_some() => Verdict::Call(asked.pid),
        _ => Verdict::Pass,
    }
}

/// As [`after_accounting_stats`], with the pid in the structure.
pub(crate) fn after_accounting_stats_v2(
    pid: u32,
    result: NvmlReturn,
    device: NvmlDevice,
    stats: OutPtr<NvmlAccountingStatsV2>,
) -> Option<NvmlReturn> {
    let of = |pid| NvmlAccountingStatsV2 {
        pid,
        is_running: 0,
        gpu_utilization: 0,
        memory_utilization: 0,
        max_memory_usage: 0,
        sample_count: 0,
        sum_gpu_util: 0,
        sum_fb_util: 0,
        time: 0,
        start_time: 0,
    };
    match accounted(result, device, pid)? {
        Some(driver_pid) if driver_pid == pid => None,
        Some(driver_pid) => {
            let mut own = of(driver_pid);
            // SAFETY: a structure of our own, which the driver fills.
            let result = unsafe { driver::nvmlDeviceGetAccountingStats_v2(device, &raw mut own) };
            stats.write(NvmlAccountingStatsV2 { pid, ..own });
            Some(result)
        }
        None => {
            stats.write(of(pid));
            Some(NvmlReturn::NOT_FOUND)
        }
    }
}

/// The driver's pid of the container's process with this pid, `Some(None)` if the container has no such process.
/// `None`: the driver's answer is not changed.
fn accounted(result: NvmlReturn, device: NvmlDevice, pid: u32) -> Option<Option<u32>> {
    if !matches!(result, NvmlReturn::SUCCESS | NvmlReturn::NOT_FOUND) {
        return None;
    }
    let limited = limited(device)?;
    let mut own = members(limited.accounts.container, limited.index);
    let member = own.find(|member| member.pid == pid);
    Some(member.map(|member| member.driver_pid))
}

/// A list of the program's, by NVML's protocol: its number is the room before the call and the number of
/// entries after it; with too little room only the number is written.
struct NvmlList<T> {
    /// The room that the caller had.
    room: u32,
    array: OutPtr<T>,
    /// NVML's answer when the list is empty.
    when_empty: NvmlReturn,
}

impl<T: Copy> NvmlList<T> {
    /// As [`NvmlList::settle`], of a number that the program has a pointer to.
    fn settle_at(
        &self,
        count: OutPtr<u32>,
        result: NvmlReturn,
        keep: impl Fn(T) -> Option<T>,
        ask: impl FnOnce(&mut u32, *mut T) -> NvmlReturn,
    ) -> Option<NvmlReturn> {
        let mut number = count.read()?;
        let answer = self.settle(&mut number, result, keep, ask);
        count.write(number);
        answer
    }

    /// Leaves what `keep` keeps. When the driver found too little room, or gave only the number, it is
    /// asked again with room of our own, since the program's may be enough for what is kept: `ask` gets the
    /// number of entries that there is room for and the room. `None`: the driver's answer is not changed.
    fn settle(
        &self,
        number: &mut u32,
        result: NvmlReturn,
        keep: impl Fn(T) -> Option<T>,
        ask: impl FnOnce(&mut u32, *mut T) -> NvmlReturn,
    ) -> Option<NvmlReturn> {
        match result {
            NvmlReturn::SUCCESS if !self.array.is_null() => {
                let found = (*number).min(self.room);
                let mut kept = 0;
                for at in 0..found {
                    // `at` is below the number of entries that the driver wrote.
                    let entry = self.array.at(at as usize).read()?;
                    if let Some(entry) = keep(entry) {
                        self.array.at(kept as usize).write(entry);
                        kept += 1;
                    }
                }
                *number = kept;
                (kept == 0).then_some(self.when_empty)
            }
            NvmlReturn::SUCCESS | NvmlReturn::INSUFFICIENT_SIZE => {
                let mut own = [const { MaybeUninit::<T>::uninit() }; OWN_ROOM as usize];
                let mut count = OWN_ROOM;
                if !ask(&mut count, own.as_mut_ptr().cast()).is_success() {
                    return None;
                }
                let entries = filled(&own, count);
                let kept = entries
                    .iter()
                    .filter(|&&entry| keep(entry).is_some())
                    .count();
                *number = u32::try_from(kept).unwrap_or(u32::MAX);
                if kept == 0 {
                    return Some(self.when_empty);
                }
                if self.array.is_null() || kept > self.room as usize {
                    return Some(result);
                }
                for (at, entry) in entries.iter().filter_map(|&entry| keep(entry)).enumerate() {
                    if at < kept {
                        // `at` is below the room that the caller has.
                        self.array.at(at).write(entry);
                    }
                }
                Some(NvmlReturn::SUCCESS)
            }
            _ => None,
        }
    }
}

/// The entries that the driver wrote.
fn filled<T>(room: &[MaybeUninit<T>], count: u32) -> &[T] {
    let filled = room.get(..count as usize).unwrap_or_default();
    // SAFETY: the driver reports that it has written that many entries.
    unsafe { core::slice::from_raw_parts(filled.as_ptr().cast(), filled.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::border::test;

    fn even(number: u32) -> Option<u32> {
        number.is_multiple_of(2).then_some(number * 10)
    }

    /// Settles a list of a driver that holds `entries`, for a caller with room for `room`.
    fn settle(entries: &[u32], room: u32, array: Option<&mut [u32]>) -> (NvmlReturn, u32) {
        let driver = |count: &mut u32, array: *mut u32| {
            let room = *count as usize;
            *count = u32::try_from(entries.len()).unwrap();
            if !entries.is_empty() && (room < entries.len() || array.is_null()) {
                return NvmlReturn::INSUFFICIENT_SIZE;
            }
            for (at, &entry) in entries.iter().enumerate() {
                // SAFETY: there is room for as many as were counted.
                unsafe { array.wrapping_add(at).write(entry) };
            }
            NvmlReturn::SUCCESS
        };
        let mut count = room;
        let array = array.map_or(test::null(), test::output);
        let result = driver(&mut count, array.raw());
        let list = NvmlList {
            room,
            array,
            when_empty: NvmlReturn::NOT_FOUND,
        };
        let answer = list
            .settle(&mut count, result, even, driver)
            .unwrap_or(result);
        (answer, count)
    }

    #[test]
    fn neighbours_are_left_out_of_a_list() {
        let mut array = [0; 8];

        assert_eq!(
            settle(&[1, 2, 3, 4], 8, Some(&mut array)),
            (NvmlReturn::SUCCESS, 2)
        );
        assert_eq!(array.get(..2), Some(&[20, 40][..]));
    }

    #[test]
    fn room_for_our_own_is_enough_though_the_driver_has_more() {
        let mut array = [0; 2];

        assert_eq!(
            settle(&[1, 2, 3, 4], 2, Some(&mut array)),
            (NvmlReturn::SUCCESS, 2)
        );
        assert_eq!(array, [20, 40]);
    }

    #[test]
    fn too_little_room_returns_the_number_of_own_processes() {
        let mut array = [0; 1];

        assert_eq!(
            settle(&[1, 2, 3, 4], 1, Some(&mut array)),
            (NvmlReturn::INSUFFICIENT_SIZE, 2)
        );
        assert_eq!(array, [0]);
        assert_eq!(
            settle(&[1, 2, 3, 4], 0, None),
            (NvmlReturn::INSUFFICIENT_SIZE, 2)
        );
    }

    #[test]
    fn neighbours_alone_are_no_processes() {
        assert_eq!(settle(&[1, 3], 0, None), (NvmlReturn::NOT_FOUND, 0));
        assert_eq!(
            settle(&[1, 3], 8, Some(&mut [0; 8])),
            (NvmlReturn::NOT_FOUND, 0)
        );
    }

    #[test]
    fn a_gpu_is_as_busy_as_the_newest_samples_of_our_own() {
        let sample = |pid, time_stamp, sm_util| NvmlProcessUtilizationSample {
            pid,
            time_stamp,
            sm_util,
            mem_util: 1,
            enc_util: 0,
            dec_util: 0,
        };
        let samples = [
            sample(2, 10, 90),
            sample(2, 20, 30),
            sample(3, 20, 50),
            sample(4, 20, 80),
        ];

        let ours = busy(&samples, |pid| pid % 2 == 0);

        assert_eq!(
            ours,
            NvmlUtilization {
                gpu: 100,
                memory: 2
            }
        );
        assert_eq!(busy(&samples, |pid| pid == 2).gpu, 30);
    }
}
