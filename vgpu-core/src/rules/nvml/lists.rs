//! Lists of processes, made the container's own: who computes on a device, who keeps it busy, who is
//! accounted for. The driver counts by the host's pids; what the container gets are its own.

use core::mem::MaybeUninit;

use cuda_api::nvml::*;
use vgpu_abi::region::ProcessUse;

use super::Limited;
use super::driver;
use super::limited;
use crate::driver::query;
use crate::guest::border::{read, write};
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
    /// What it holds of the device, bytes.
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

/// The host's pid where the host has told it, else the one that the process knows itself by: they are
/// the same where nobody made a pid namespace.
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

/// Who computes is known from our own books, so the driver's list is not looked at: it may be too
/// long for the caller only because of neighbours.
pub(super) fn after_compute<T: ProcessEntry>(
    room: u32,
    result: NvmlReturn,
    device: NvmlDevice,
    count: *mut u32,
    infos: *mut T,
) -> Option<NvmlReturn> {
    if !matches!(result, NvmlReturn::SUCCESS | NvmlReturn::INSUFFICIENT_SIZE) {
        return None;
    }
    let limited = limited(device)?;
    Some(write_members(&limited, device, room, count, infos))
}

fn write_members<T: ProcessEntry>(
    limited: &Limited,
    device: NvmlDevice,
    room: u32,
    count: *mut u32,
    infos: *mut T,
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
            write(
                infos.wrapping_add(found),
                entry.on_instance(gpu_instance, compute_instance),
            );
        }
        found += 1;
    }
    write(count, u32::try_from(found).unwrap_or(u32::MAX));
    if found > room {
        NvmlReturn::INSUFFICIENT_SIZE
    } else {
        NvmlReturn::SUCCESS
    }
}

/// The MIG instances behind a handle.
fn instance_of(device: NvmlDevice) -> (u32, u32) {
    let (mut gpu, mut compute) = (NO_INSTANCE, NO_INSTANCE);
    if query::card_of(device).is_some() {
        // SAFETY: one word to write to.
        let result = unsafe { driver::nvmlDeviceGetGpuInstanceId(device, &raw mut gpu) };
        if !result.is_success() {
            gpu = NO_INSTANCE;
        }
        // SAFETY: one word to write to.
        let result = unsafe { driver::nvmlDeviceGetComputeInstanceId(device, &raw mut compute) };
        if !result.is_success() {
            compute = NO_INSTANCE;
        }
    }
    (gpu, compute)
}

/// A function of the driver that fills a process list.
type ProcessList<T> = unsafe fn(NvmlDevice, *mut u32, *mut T) -> NvmlReturn;

/// Who draws, or computes under MPS, only the driver knows: its list less the neighbours.
pub(super) fn after_others<T: ProcessEntry>(
    room: u32,
    result: NvmlReturn,
    device: NvmlDevice,
    count: *mut u32,
    infos: *mut T,
    ask: ProcessList<T>,
) -> Option<NvmlReturn> {
    let limited = limited(device)?;
    let list = List {
        room,
        count,
        array: infos,
        when_empty: NvmlReturn::SUCCESS,
    };
    list.settle(
        result,
        |entry| own_entry(&limited, entry),
        // SAFETY: the handle is one that the driver has accepted; there is as much room as stated.
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
pub(super) fn room_of_details(list: *mut NvmlProcessDetailList) -> Verdict<u32, NvmlReturn> {
    match read(list) {
        Some(list) if standing::opened().is_some() => Verdict::Call(list.count),
        _ => Verdict::Pass,
    }
}

pub(super) fn after_details(
    room: u32,
    result: NvmlReturn,
    device: NvmlDevice,
    list: *mut NvmlProcessDetailList,
) -> Option<NvmlReturn> {
    const COMPUTE: u32 = 0;
    if !matches!(result, NvmlReturn::SUCCESS | NvmlReturn::INSUFFICIENT_SIZE) {
        return None;
    }
    let limited = limited(device)?;
    let mut request = read(list)?;
    let answer = if request.mode == COMPUTE {
        let count = &raw mut request.count;
        Some(write_members(&limited, device, room, count, request.array))
    } else {
        let (version, mode) = (request.version, request.mode);
        let own = List {
            room,
            count: &raw mut request.count,
            array: request.array,
            when_empty: NvmlReturn::SUCCESS,
        };
        own.settle(
            result,
            |entry| own_entry(&limited, entry),
            |count, array| {
                let mut own = NvmlProcessDetailList {
                    version,
                    mode,
                    count: read(count).unwrap_or(0),
                    array,
                };
                // SAFETY: as the caller's own call, with as much room as stated.
                let result =
                    unsafe { driver::nvmlDeviceGetRunningProcessDetailList(device, &raw mut own) };
                write(count, own.count);
                result
            },
        )
    };
    write(list, request);
    answer
}

pub(super) fn after_samples(
    room: u32,
    result: NvmlReturn,
    device: NvmlDevice,
    samples: *mut NvmlProcessUtilizationSample,
    count: *mut u32,
    last_seen: u64,
) -> Option<NvmlReturn> {
    let limited = limited(device)?;
    let list = List {
        room,
        count,
        array: samples,
        when_empty: NvmlReturn::NOT_FOUND,
    };
    list.settle(
        result,
        |sample| {
            let pid = member(&limited, sample.pid)?.pid;
            Some(NvmlProcessUtilizationSample { pid, ..sample })
        },
        // SAFETY: as the caller's own call, with as much room as stated.
        |count, samples| unsafe {
            driver::nvmlDeviceGetProcessUtilization(device, samples, count, last_seen)
        },
    )
}

/// How much room the caller has, before the driver overwrites it.
pub(super) fn room_of_samples(info: *mut NvmlProcessesUtilizationInfo) -> Verdict<u32, NvmlReturn> {
    match read(info) {
        Some(info) if standing::opened().is_some() => Verdict::Call(info.count),
        _ => Verdict::Pass,
    }
}

pub(super) fn after_samples_info(
    room: u32,
    result: NvmlReturn,
    device: NvmlDevice,
    info: *mut NvmlProcessesUtilizationInfo,
) -> Option<NvmlReturn> {
    let limited = limited(device)?;
    let mut request = read(info)?;
    let (version, last_seen) = (request.version, request.last_seen);
    let list = List {
        room,
        count: &raw mut request.count,
        array: request.array,
        when_empty: NvmlReturn::NOT_FOUND,
    };
    let answer = list.settle(
        result,
        |sample| {
            let pid = member(&limited, sample.pid)?.pid;
            Some(NvmlProcessUtilizationInfo { pid, ..sample })
        },
        |count, array| {
            let mut own = NvmlProcessesUtilizationInfo {
                version,
                count: read(count).unwrap_or(0),
                last_seen,
                array,
            };
            // SAFETY: as the caller's own call, with as much room as stated.
            let result =
                unsafe { driver::nvmlDeviceGetProcessesUtilizationInfo(device, &raw mut own) };
            write(count, own.count);
            result
        },
    );
    write(info, request);
    answer
}

/// What the container keeps busy: the newest sample of each of its processes, of the last second. The
/// driver's answer stands where it does not tell processes apart.
pub(super) fn after_rates(
    result: NvmlReturn,
    device: NvmlDevice,
    utilization: *mut NvmlUtilization,
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
        // Nobody has computed lately.
        NvmlReturn::NOT_FOUND => &[],
        _ => return,
    };
    write(
        utilization,
        busy(samples, |pid| member(&limited, pid).is_some()),
    );
}

/// Sums the newest sample of each process that is ours.
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
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now) };
    now.tv_sec.unsigned_abs().saturating_mul(1_000_000) + now.tv_nsec.unsigned_abs() / 1_000
}

pub(super) fn after_accounting_pids(
    room: u32,
    result: NvmlReturn,
    device: NvmlDevice,
    count: *mut u32,
    pids: *mut u32,
) -> Option<NvmlReturn> {
    let limited = limited(device)?;
    let list = List {
        room,
        count,
        array: pids,
        when_empty: NvmlReturn::SUCCESS,
    };
    list.settle(
        result,
        |pid| Some(member(&limited, pid)?.pid),
        // SAFETY: as the caller's own call, with as much room as stated.
        |count, pids| unsafe { driver::nvmlDeviceGetAccountingPids(device, count, pids) },
    )
}

/// The driver was asked about the container's pid, which on the host may be nobody or a stranger.
pub(super) fn after_accounting_stats(
    result: NvmlReturn,
    device: NvmlDevice,
    pid: u32,
    stats: *mut NvmlAccountingStats,
) -> Option<NvmlReturn> {
    if !matches!(result, NvmlReturn::SUCCESS | NvmlReturn::NOT_FOUND) {
        return None;
    }
    let limited = limited(device)?;
    let member =
        members(limited.accounts.container, limited.index).find(|member| member.pid == pid);
    let Some(Member { driver_pid, .. }) = member else {
        if result.is_success() && !stats.is_null() {
            // SAFETY: the caller's structure, of which all zeros is a value.
            unsafe { stats.write_bytes(0, 1) };
        }
        return Some(NvmlReturn::NOT_FOUND);
    };
    if driver_pid == pid {
        return None;
    }
    // SAFETY: as the caller's own call, for another pid.
    Some(unsafe { driver::nvmlDeviceGetAccountingStats(device, driver_pid, stats) })
}

/// A list of the caller's, by NVML's protocol: `count` is the room before and the number after; with
/// too little room nothing but the number is told.
struct List<T> {
    /// The room that the caller had.
    room: u32,
    count: *mut u32,
    array: *mut T,
    /// What NVML answers when there is nothing to tell.
    when_empty: NvmlReturn,
}

impl<T: Copy> List<T> {
    /// Leaves what `keep` keeps. When the driver found too little room, or gave only the number, it is
    /// asked again (`ask`) with room of our own, since the caller's may be enough for what is kept.
    /// `None`: the driver's answer stands.
    fn settle(
        &self,
        result: NvmlReturn,
        keep: impl Fn(T) -> Option<T>,
        ask: impl FnOnce(*mut u32, *mut T) -> NvmlReturn,
    ) -> Option<NvmlReturn> {
        match result {
            NvmlReturn::SUCCESS if !self.array.is_null() => {
                let found = read(self.count)?.min(self.room);
                let mut kept = 0;
                for at in 0..found {
                    // `at` is below the number of entries that the driver wrote.
                    let entry = read(self.array.wrapping_add(at as usize))?;
                    if let Some(entry) = keep(entry) {
                        write(self.array.wrapping_add(kept as usize), entry);
                        kept += 1;
                    }
                }
                write(self.count, kept);
                (kept == 0).then_some(self.when_empty)
            }
            NvmlReturn::SUCCESS | NvmlReturn::INSUFFICIENT_SIZE => {
                let mut own = [const { MaybeUninit::<T>::uninit() }; OWN_ROOM as usize];
                let mut count = OWN_ROOM;
                if !ask(&raw mut count, own.as_mut_ptr().cast()).is_success() {
                    return None;
                }
                let entries = filled(&own, count);
                let kept = entries
                    .iter()
                    .filter(|&&entry| keep(entry).is_some())
                    .count();
                write(self.count, u32::try_from(kept).unwrap_or(u32::MAX));
                if kept == 0 {
                    return Some(self.when_empty);
                }
                if self.array.is_null() || kept > self.room as usize {
                    return Some(result);
                }
                for (at, entry) in entries.iter().filter_map(|&entry| keep(entry)).enumerate() {
                    if at < kept {
                        // `at` is below the room that the caller has.
                        write(self.array.wrapping_add(at), entry);
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
    // SAFETY: the driver has written that many entries, by its own word.
    unsafe { core::slice::from_raw_parts(filled.as_ptr().cast(), filled.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn even(number: u32) -> Option<u32> {
        number.is_multiple_of(2).then_some(number * 10)
    }

    /// Settles a list of a driver that holds `entries`, for a caller with room for `room`.
    fn settle(entries: &[u32], room: u32, array: Option<&mut [u32]>) -> (NvmlReturn, u32) {
        let driver = |count: *mut u32, array: *mut u32| {
            let room = read(count).unwrap() as usize;
            write(count, u32::try_from(entries.len()).unwrap());
            if !entries.is_empty() && (room < entries.len() || array.is_null()) {
                return NvmlReturn::INSUFFICIENT_SIZE;
            }
            for (at, &entry) in entries.iter().enumerate() {
                write(array.wrapping_add(at), entry);
            }
            NvmlReturn::SUCCESS
        };
        let mut count = room;
        let array = array.map_or(core::ptr::null_mut(), <[u32]>::as_mut_ptr);
        let result = driver(&raw mut count, array);
        let list = List {
            room,
            count: &raw mut count,
            array,
            when_empty: NvmlReturn::NOT_FOUND,
        };
        let answer = list.settle(result, even, driver).unwrap_or(result);
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
    fn too_little_room_tells_the_number_of_our_own() {
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
    fn neighbours_alone_are_nobody() {
        assert_eq!(settle(&[1, 3], 0, None), (NvmlReturn::NOT_FOUND, 0));
        assert_eq!(
            settle(&[1, 3], 8, Some(&mut [0; 8])),
            (NvmlReturn::NOT_FOUND, 0)
        );
    }

    #[test]
    fn a_card_is_as_busy_as_the_newest_samples_of_our_own() {
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
