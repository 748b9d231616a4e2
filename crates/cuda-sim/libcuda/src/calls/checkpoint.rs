//! Checkpoints: processes that give their GPUs up and take them again, themselves or for another process. While one is
//! locked its calls wait; what it holds of a GPU goes and comes with the checkpoint. Contents stay where they are.

use cuda_api::driver::*;
use cuda_sim::Board;
use cuda_sim::board::{Stage, Stays};

use crate::base::border::{Done, read, write};
use crate::process::driver;

/// Asks the board of this process, which needs no `cuInit` for that.
fn on_board<T>(body: impl FnOnce(&Board) -> Result<T, Stays>) -> Done<T> {
    let answer = match driver::get() {
        Some(driver) => body(&driver.board),
        None => {
            let board = Board::open(&cuda_sim::config::board_path());
            body(&board.map_err(|_| CuResult::NOT_INITIALIZED)?)
        }
    };
    answer.map_err(|stays| match stays {
        Stays::Unknown => CuResult::INVALID_VALUE,
        Stays::WrongStage => CuResult::ILLEGAL_STATE,
        Stays::NoMemory => CuResult::OUT_OF_MEMORY,
    })
}

fn moved(pid: i32, from: Stage, to: Stage) -> Done {
    let pid = u32::try_from(pid).map_err(|_| CuResult::INVALID_VALUE)?;
    on_board(|board| board.move_stage(pid, from, to))
}

pub(crate) fn cuCheckpointProcessGetState(pid: i32, state: *mut CuProcessState) -> Done {
    let pid = u32::try_from(pid).map_err(|_| CuResult::INVALID_VALUE)?;
    let stage = on_board(|board| board.stage(pid))?;
    write(state, stage as u32)
}

/// The thread that restores; a process's first one.
pub(crate) fn cuCheckpointProcessGetRestoreThreadId(pid: i32, tid: *mut i32) -> Done {
    let process = u32::try_from(pid).map_err(|_| CuResult::INVALID_VALUE)?;
    on_board(|board| board.stage(process))?;
    write(tid, pid)
}

pub(crate) fn cuCheckpointProcessLock(pid: i32, _args: *mut c_void) -> Done {
    moved(pid, Stage::Running, Stage::Locked)
}

pub(crate) fn cuCheckpointProcessCheckpoint(pid: i32, _args: *mut c_void) -> Done {
    moved(pid, Stage::Locked, Stage::Checkpointed)
}

/// `CUcheckpointRestoreArgs` begins with pairs of GPUs and their count: where each is to come back. They come back
/// where they were.
pub(crate) fn cuCheckpointProcessRestore(pid: i32, args: *mut c_void) -> Done {
    if !args.is_null() {
        let [pairs, count] = read(args.cast_const().cast::<[u64; 2]>())?;
        if pairs == 0 && count as u32 != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
    }
    moved(pid, Stage::Checkpointed, Stage::Locked)
}

pub(crate) fn cuCheckpointProcessUnlock(pid: i32, _args: *mut c_void) -> Done {
    moved(pid, Stage::Locked, Stage::Running)
}

/// Ends an operation with storage of the caller's own; none is ever begun here.
pub(crate) fn cuCheckpointOperationComplete(_handle: CuCheckpointOperationHandle) -> Done {
    Err(CuResult::INVALID_HANDLE)
}
