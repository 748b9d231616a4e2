//! Whether the library is initialised, and what a handle stands for. It owns the count of
//! `nvmlInit` calls; it holds nothing of a board but which one it is.

use std::sync::atomic::{AtomicU32, Ordering};

use cuda_api::nvml::{NvmlDevice, NvmlReturn};
use cuda_sim::mig::Instance;

use crate::border::Answer;
use crate::card::{self, Card};

static USERS: AtomicU32 = AtomicU32::new(0);

/// Counts one more user; the first one opens the board.
pub(crate) fn init(gpus_needed: bool) -> Answer {
    card::open()?;
    if gpus_needed && card::count() == 0 {
        return Err(NvmlReturn::DRIVER_NOT_LOADED);
    }
    // Relaxed: the count guards no other memory.
    USERS.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Counts one user less.
pub(crate) fn shutdown() -> Answer {
    // Relaxed: the count guards no other memory.
    USERS
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |users| {
            users.checked_sub(1)
        })
        .map(|_| ())
        .map_err(|_| NvmlReturn::UNINITIALIZED)
}

/// Fails before the first `nvmlInit` and after the last `nvmlShutdown`.
pub(crate) fn ready() -> Answer {
    // Relaxed: the count guards no other memory.
    if USERS.load(Ordering::Relaxed) == 0 {
        return Err(NvmlReturn::UNINITIALIZED);
    }
    Ok(())
}

/// What a call has to pass before it is answered: how the driver is at this moment, and the faults that the board was
/// made with.
pub(crate) fn toll(name: &str) -> Answer {
    let begins = name.starts_with("nvmlInit");
    if begins {
        card::open()?;
    }
    card::driver_answers(begins)?;
    // Before the board is open there is no fault to meet.
    if ready().is_err() {
        return Ok(());
    }
    card::faults().map_or(Ok(()), |faults| {
        faults.meet(name, card::spend).map_err(NvmlReturn)
    })
}

/// What a device handle stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// A whole card.
    Card(Card),
    /// A MIG device of it.
    Mig(Card, Instance),
}

impl Target {
    /// The card, whichever part of it is meant.
    pub(crate) fn card(self) -> Card {
        match self {
            Target::Card(card) | Target::Mig(card, _) => card,
        }
    }
}

// A handle is a number that no pointer has: this page is never mapped.
const TAG: usize = 0x5_6000;

/// The handle of a card, or of the MIG device `index` of it.
pub(crate) fn handle(card: Card, mig: Option<u32>) -> NvmlDevice {
    let mig = mig.map_or(0, |index| index as usize + 1);
    NvmlDevice(std::ptr::without_provenance_mut(
        TAG | (card.index() << 5) | mig,
    ))
}

/// What a handle stands for; a made-up one is an invalid argument, a lost card says so.
pub(crate) fn target(device: NvmlDevice) -> Result<Target, NvmlReturn> {
    ready()?;
    let bits = device.0.addr();
    if bits & !0xfff != TAG {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    let card = Card::at((bits >> 5) & 0x7f).ok_or(NvmlReturn::INVALID_ARGUMENT)?;
    if card.lost() {
        return Err(NvmlReturn::GPU_IS_LOST);
    }
    match bits & 0x1f {
        0 => Ok(Target::Card(card)),
        mig => card
            .instance(mig as u32 - 1)
            .map(|part| Target::Mig(card, part))
            .ok_or(NvmlReturn::INVALID_ARGUMENT),
    }
}

/// A whole card; what is asked of it does not exist for a MIG device.
pub(crate) fn whole(device: NvmlDevice) -> Result<Card, NvmlReturn> {
    match target(device)? {
        Target::Card(card) => Ok(card),
        Target::Mig(..) => Err(NvmlReturn::NOT_SUPPORTED),
    }
}
