//! The board's work, and this process's place in it.

use std::sync::OnceLock;

use cuda_api::driver::*;
use cuda_sim::exec::{Exec, ProcessId, WorkRefused};

use crate::base::border::Done;
use crate::process::driver;

/// The board's work, and this process's place in it.
///
/// # Errors
/// When the board's file cannot be mapped, or has no room for this process.
pub(crate) fn work() -> Done<(&'static Exec, ProcessId)> {
    static WORK: OnceLock<Option<(&Exec, ProcessId)>> = OnceLock::new();
    driver::the()?;
    let work = WORK.get_or_init(|| {
        let exec = crate::process::ours::board_work()?;
        let process = exec.join().ok()?;
        Some((exec, process))
    });
    work.ok_or(CuResult::OPERATING_SYSTEM)
}

pub(crate) fn exec() -> Done<&'static Exec> {
    Ok(work()?.0)
}

pub(crate) fn process() -> Done<ProcessId> {
    Ok(work()?.1)
}

/// The board's refusal as a driver code.
pub(crate) fn refused(refused: WorkRefused) -> CuResult {
    match refused {
        WorkRefused::Closed => CuResult::INVALID_HANDLE,
        WorkRefused::NoRoom => CuResult::OUT_OF_MEMORY,
    }
}
