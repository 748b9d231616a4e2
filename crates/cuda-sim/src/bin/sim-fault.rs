//! `sim-fault LINE…`: makes something fail, or work again, on the running board that `VGPU_SIM_BOARD` names. For tests
//! and demonstrations; `Board::trouble` documents the lines.
#![allow(
    clippy::print_stderr,
    reason = "a command says what is wrong with what it was told"
)]

use std::process::ExitCode;

fn main() -> ExitCode {
    let path = cuda_sim::config::board_path();
    let board = match cuda_sim::Board::open(&path) {
        Ok(board) => board,
        Err(error) => {
            eprintln!("sim-fault: {}: {error}", path.display());
            return ExitCode::FAILURE;
        }
    };
    for line in std::env::args().skip(1) {
        if let Err(error) = board.trouble(&line) {
            eprintln!("sim-fault: {error}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
