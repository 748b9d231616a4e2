//! Checkpoints: processes that give their GPUs up and take them again, themselves or for another process. While one is
//! locked its calls wait; what it holds of a GPU goes and comes with the checkpoint. Contents stay where they are.

use cuda_api::driver::*;
use cuda_sim::Board;
use cuda_sim::board::{Stage, Stays};

use crate::base::border::{Done, invalid_if, read, write};
use crate::process::driver;

calls! {
    cuCheckpointProcessGetState(pid, state) => {
        let pid = u32::try_from(pid).map_err(|_| CuResult::INVALID_VALUE)?;
        let stage = on_board(|board| board.stage(pid))?;
        write(state, stage as u32)
    };
    // The thread that restores; a process's first one.
    cuCheckpointProcessGetRestoreThreadId(pid, tid) => {
        let process = u32::try_from(pid).map_err(|_| CuResult::INVALID_VALUE)?;
        on_board(|board| board.stage(process))?;
        write(tid, pid)
    };
    cuCheckpointProcessLock(pid, _args) => moved(pid, Stage::Running, Stage::Locked);
    cuCheckpointProcessCheckpoint(pid, _args) => moved(pid, Stage::Locked, Stage::Checkpointed);
    // `CUcheckpointRestoreArgs` begins with pairs of GPUs and their count: the target of each. Here everything
    // returns to where it was.
    cuCheckpointProcessRestore(pid, args) => {
        if !args.is_null() {
            let [pairs, count] = read(args.cast_const().cast::<[u64; 2]>())?;
            invalid_if(pairs == 0 && count as u32 != 0)?;
        }
        moved(pid, Stage::Checkpointed, Stage::Locked)
    };
    cuCheckpointProcessUnlock(pid, _args) => moved(pid, Stage::Locked, Stage::Running);
    // Ends an operation with storage of the caller's own; none is ever begun here.
    cuCheckpointOperationComplete(_handle) => Err(CuResult::INVALID_HANDLE);
}

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
