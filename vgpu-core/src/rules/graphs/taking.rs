//! Room for the memory that graphs take: promised out of the memory that the driver already holds, or reserved, on
//! each device of a call.

use super::*;

/// The devices in a set of them.
pub(super) fn devices(set: u32) -> impl Iterator<Item = usize> {
    (0..MAX_DEVICES).filter(move |device| set >> device & 1 != 0)
}

/// Room for what a call may take of one device.
#[derive(Clone, Copy)]
pub(super) enum RoomForCall {
    /// Reserved in the container.
    Reserved(Charge),
    /// Room within the memory that the driver already holds for graphs.
    Promised,
}

/// Reserves what a graph can make its device's graph memory grow by. If the container has no room for that, a graph
/// that still has its memory of its last launch (`is_mapped`) may pass if the driver's figures confirm it. For any
/// other, what graphs hold and do not use is given back first.
pub(super) fn reserve(
    accounts: &Accounts,
    call: &str,
    device: usize,
    (bytes, growth): (u64, u64),
    is_mapped: bool,
) -> Result<RoomForCall, CuResult> {
    let refusal = match requests::try_reserve(accounts, device, growth) {
        Ok(charge) => return Ok(RoomForCall::Reserved(charge)),
        Err(refusal) => refusal,
    };
    let may_pass = is_mapped && room::may_pass_without_growth(&refusal);
    match is_there(accounts, device, bytes, may_pass) {
        There::Yes => return Ok(RoomForCall::Promised),
        There::Unused => {
            relieve(accounts, device);
            if let Ok(charge) = requests::try_reserve(accounts, device, growth) {
                return Ok(RoomForCall::Reserved(charge));
            }
        }
        There::No => {}
    }
    Err(accounts.refuse(call, device, &refusal))
}

/// Whether the memory that a graph wants is there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum There {
    /// The memory is there, and is promised to this call.
    Yes,
    /// Graphs hold memory that they may not use.
    Unused,
    /// The memory is not there.
    No,
}

fn is_there(accounts: &Accounts, device: usize, bytes: u64, may_pass: bool) -> There {
    let Some(memory) = accounts.holdings().graphs.get(device) else {
        return There::No;
    };
    let Some(_held) = memory.lock.hold_briefly() else {
        return There::No;
    };
    let Some(figures) = figures(accounts, memory, device) else {
        return There::No;
    };
    let now = lock::milliseconds().unsigned_abs();
    let promised = memory.promised.bytes(now);
    // Relaxed: learned once, and stays so.
    let counts_live = memory.counts_live.load(Ordering::Relaxed) != 0;
    if may_pass && figures.have_own(bytes, promised, counts_live) {
        memory.promised.add(now, bytes);
        return There::Yes;
    }
    if promised == 0 && figures.reserved > 0 {
        There::Unused
    } else {
        There::No
    }
}

/// The memory reserved for a call on its devices. Only one charge may lie on the stack; the memory that further
/// devices need is confirmed at once, and is corrected when they are settled.
#[derive(Clone, Copy, Default)]
pub(super) struct TakenForCall {
    pub(super) charge: Option<Charge>,
    pub(super) advanced: u32,
    pub(super) promised: u32,
}

impl TakenForCall {
    pub(super) fn take(
        &mut self,
        accounts: &Accounts,
        call: &str,
        device: usize,
        wanted: (u64, u64),
        is_mapped: bool,
    ) -> Result<(), CuResult> {
        match reserve(accounts, call, device, wanted, is_mapped)? {
            RoomForCall::Promised => self.promised |= 1 << device,
            RoomForCall::Reserved(charge) => {
                if let Some(before) = self.charge.replace(charge) {
                    self.advance(accounts, before);
                }
            }
        }
        Ok(())
    }

    fn advance(&mut self, accounts: &Accounts, charge: Charge) {
        let device = charge.device();
        let Some(memory) = accounts.holdings().graphs.get(device) else {
            return accounts.container.region.refund(charge);
        };
        let Some(_held) = memory.lock.hold() else {
            return accounts.container.region.refund(charge);
        };
        accounts.container.region.confirm(charge, Kind::Buffer);
        // Relaxed: under the lock.
        memory.charged.fetch_add(charge.bytes(), Ordering::Relaxed);
        let now = lock::milliseconds().unsigned_abs();
        memory.advanced.add(now, charge.bytes());
        self.advanced |= 1 << device;
    }

    /// The call has come back, or is not made. Answers the devices whose graph memory has grown by more
    /// than was reserved.
    pub(super) fn give_back(
        self,
        accounts: &Accounts,
        set: u32,
        wanted: impl Fn(usize) -> (u64, u64),
    ) -> u32 {
        let mut grown = 0;
        for device in devices(set) {
            let (bytes, growth) = wanted(device);
            let Some(memory) = accounts.holdings().graphs.get(device) else {
                continue;
            };
            if let Some(_held) = memory.lock.hold() {
                if self.promised >> device & 1 != 0 {
                    memory.promised.take_back(bytes);
                }
                if self.advanced >> device & 1 != 0 {
                    memory.advanced.take_back(growth);
                }
            }
            let before = settle(accounts, device);
            let reserved = match self.charge.filter(|charge| charge.device() == device) {
                Some(charge) if before.is_none() => {
                    // The driver does not say what it holds: it holds what was reserved.
                    accounts.confirm(charge, Kind::Buffer);
                    // Relaxed: a sum that guards no other memory.
                    memory.charged.fetch_add(charge.bytes(), Ordering::Relaxed);
                    continue;
                }
                Some(charge) => {
                    accounts.refund(charge);
                    charge.bytes()
                }
                None => 0,
            };
            // Relaxed: a figure of the moment.
            let is = memory.charged.load(Ordering::Relaxed);
            let more = before.map_or(0, |was| is.saturating_sub(was));
            learn_figures(accounts, device, more);
            if more > reserved {
                grown |= 1 << device;
            }
        }
        grown
    }
}
