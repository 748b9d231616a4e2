//! Rules: processes that are checkpointed. The driver takes their memory off the devices, and their charges are
//! refunded meanwhile. They are reserved again before the driver restores the memory; without room the call is
//! refused. Any process of the container may ask for another one.

use core::ffi::c_void;

use cuda_api::{CuResult, CuUuid};
use vgpu_abi::layout::MAX_DEVICES;
use vgpu_abi::region::{Charge, ProcessUse};

use crate::driver::query;
use crate::guest::border::OutPtr;
use crate::guest::manners::Verdict;
use crate::holdings::requests;
use crate::state::accounts::{self, Accounts, Destination};
use crate::state::standing::{self, accounts};

/// `CU_PROCESS_STATE_CHECKPOINTED`.
const CHECKPOINTED: u32 = 2;

/// The process of the container that the caller names by its number.
fn process(accounts: &Accounts, pid: i32) -> Option<ProcessUse> {
    accounts.container.region.process(u32::try_from(pid).ok()?)
}

/// Are the eight words of the arguments all 0? A word that is not is a later driver's, whose checkpoint ends
/// with `cuCheckpointOperationComplete`.
fn is_plain(arguments: OutPtr<c_void>) -> bool {
    arguments
        .cast::<[u64; 8]>()
        .read()
        .is_none_or(|words| words == [0; 8])
}

pub(crate) fn after_checkpoint(result: CuResult, pid: i32, arguments: OutPtr<c_void>) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    accounts.count(accounts::Group::Memory);
    if result == CuResult::SUCCESS
        && is_plain(arguments)
        && let Some(process) = process(&accounts, pid)
    {
        accounts.container.region.put_away(&process);
    }
}

/// A checkpoint of some process is complete: asks the driver for the state of each process.
pub(crate) fn after_complete(result: CuResult) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    if result != CuResult::SUCCESS {
        return;
    }
    let region = &accounts.container.region;
    for each in region.processes() {
        if let Ok(pid) = i32::try_from(each.pid)
            && let Some(process) = process(&accounts, pid)
            && query::process_state(pid) == Some(CHECKPOINTED)
        {
            region.put_away(&process);
        }
    }
}

/// Room for a process that is to be brought back.
#[derive(Clone, Copy)]
pub(crate) struct Restoring {
    process: ProcessUse,
    /// By the device that its memory was on: where it will be.
    to: [usize; MAX_DEVICES],
    charges: [Option<Charge>; MAX_DEVICES],
}

/// A pair of `CUcheckpointGpuPair`: the old device of the memory and the new one.
type Pair = [CuUuid; 2];

/// How the arguments of a restore begin.
#[derive(Clone, Copy)]
#[repr(C)]
struct Pairs {
    pairs: *mut Pair,
    count: u32,
    _reserved: u32,
}

/// The device that a restore moves a device's memory to.
fn moved(accounts: &Accounts, device: usize, arguments: OutPtr<c_void>) -> usize {
    let read = || {
        let arguments = arguments.cast::<Pairs>();
        let count = arguments.read()?.count;
        let pairs = arguments.follow(|it| it.pairs)?;
        let from = query::device_uuids(accounts.ordinal_of(device)?)?;
        let pair = (0..usize::try_from(count).ok()?.min(MAX_DEVICES))
            .filter_map(|at| pairs.at(at).read())
            .find(|[old, _]| from.contains(&old.bytes))?;
        let [_, new] = pair;
        let to = (0..query::device_count()?)
            .find(|&it| query::device_uuids(it).is_some_and(|it| it.contains(&new.bytes)))?;
        match accounts.of_ordinal(to) {
            Destination::Device { device, .. } => Some(device),
            Destination::Elsewhere | Destination::Denied => None,
        }
    };
    read().unwrap_or(device)
}

pub(crate) fn before_restore(
    call: &str,
    pid: i32,
    arguments: OutPtr<c_void>,
) -> Verdict<Restoring> {
    let accounts = accounts!(Memory);
    let Some(process) = process(&accounts, pid) else {
        return Verdict::Pass;
    };
    let region = &accounts.container.region;
    let mut restoring = Restoring {
        process,
        to: [0; MAX_DEVICES],
        charges: [None; MAX_DEVICES],
    };
    for (device, (to, charge)) in restoring
        .to
        .iter_mut()
        .zip(&mut restoring.charges)
        .enumerate()
    {
        let bytes = region.away(&process, device);
        if bytes == 0 {
            continue;
        }
        *to = moved(&accounts, device, arguments);
        match requests::reserve(&accounts, call, *to, bytes) {
            Ok(reserved) => *charge = Some(reserved),
            Err(refused) => {
                give_back(&accounts, &restoring.charges);
                return Verdict::Refuse(refused);
            }
        }
    }
    Verdict::Call(restoring)
}

fn give_back(accounts: &Accounts, charges: &[Option<Charge>; MAX_DEVICES]) {
    for charge in charges.iter().flatten() {
        accounts.refund(*charge);
    }
}

pub(crate) fn after_restore(restoring: Restoring, result: CuResult) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    if result == CuResult::SUCCESS {
        let region = &accounts.container.region;
        for (from, to) in restoring.to.iter().enumerate() {
            region.bring_back(&restoring.process, from, *to);
        }
    }
    give_back(&accounts, &restoring.charges);
}
