//! Processes that are taken off the GPUs and put back, as by `cuCheckpointProcess…`. Only the memory that each process
//! holds changes; contents stay in place.

use std::sync::atomic::Ordering;

use super::{Board, BoardState, MAX_GPUS, Member, Use};

/// How far a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The process runs.
    Running,
    /// The process's calls into the driver wait.
    Locked,
    /// The process's calls wait, and it holds nothing of any GPU.
    Checkpointed,
}

/// Why a process was not taken to another stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stays {
    /// No such process uses the board.
    Unknown,
    /// The process is at another stage than the request needs.
    WrongStage,
    /// A GPU has no room for what it held.
    NoMemory,
}

const STAGES: [Stage; 3] = [Stage::Running, Stage::Locked, Stage::Checkpointed];

impl BoardState {
    fn of_pid(&self, pid: u32) -> Result<usize, Stays> {
        let end = (self.process_end as usize).min(self.processes.len());
        let is_it = |index: &usize| {
            let process = &self.processes[*index];
            process.generation != 0 && process.identity.pid == pid && process.died_ns == 0
        };
        (0..end).find(is_it).ok_or(Stays::Unknown)
    }

    fn give_up(&mut self, index: usize) {
        for gpu in 0..MAX_GPUS {
            let uses = self.processes[index].uses[gpu];
            self.processes[index].away[gpu] = uses;
            self.processes[index].uses[gpu] = Use::NONE;
            let used = &mut self.devices[gpu].used;
            *used = used.saturating_sub(uses.alloc + uses.overhead);
        }
    }

    fn take_again(&mut self, index: usize) -> Result<(), Stays> {
        let away = self.processes[index].away;
        let fits = |(gpu, uses): (usize, &Use)| self.has_room(gpu, uses.alloc + uses.overhead);
        if !away.iter().enumerate().all(fits) {
            return Err(Stays::NoMemory);
        }
        for (gpu, uses) in away.into_iter().enumerate() {
            self.devices[gpu].used += uses.alloc + uses.overhead;
            self.processes[index].uses[gpu] = uses;
        }
        Ok(())
    }
}

impl Board {
    /// How far a process is.
    ///
    /// # Errors
    /// When no such process uses the board.
    pub fn stage(&self, pid: u32) -> Result<Stage, Stays> {
        let mut state = self.lock();
        self.look(&mut state);
        let stage = state.processes[state.of_pid(pid)?].stage;
        Ok(STAGES
            .get(stage as usize)
            .copied()
            .unwrap_or(Stage::Running))
    }

    /// Takes a process from one stage to the next or the one before.
    ///
    /// # Errors
    /// When it is at another stage, or a GPU has no room for what it held.
    pub fn move_stage(&self, pid: u32, from: Stage, to: Stage) -> Result<(), Stays> {
        let mut state = self.lock();
        self.look(&mut state);
        let index = state.of_pid(pid)?;
        if state.processes[index].stage != from as u64 {
            return Err(Stays::WrongStage);
        }
        match (from, to) {
            (Stage::Locked, Stage::Checkpointed) => state.give_up(index),
            (Stage::Checkpointed, Stage::Locked) => state.take_again(index)?,
            (Stage::Running, Stage::Locked) | (Stage::Locked, Stage::Running) => {}
            _ => return Err(Stays::WrongStage),
        }
        state.processes[index].stage = to as u64;
        // Relaxed: only says that a look is worth while; the look takes the lock.
        self.area().any_halted.store(1, Ordering::Relaxed);
        Ok(())
    }

    /// Whether a process's calls wait at this moment.
    #[must_use]
    pub fn is_halted(&self, member: Member) -> bool {
        // Relaxed: as above.
        if self.area().any_halted.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let state = self.lock();
        if state.processes.iter().all(|process| process.stage == 0) {
            self.area().any_halted.store(0, Ordering::Relaxed);
        }
        state.own(member).is_some_and(|process| process.stage != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;
    use crate::Config;

    #[test]
    fn a_checkpointed_process_holds_nothing_and_takes_it_again() {
        let directory = tempfile::tempdir().unwrap();
        let config = Config {
            memory_bytes: vec![1 << 30],
            ..Config::default()
        };
        let board = Board::create(&directory.path().join("board"), &config).unwrap();
        let me = board.join().unwrap();
        let pid = std::process::id();
        board.take(me, 0, 600 << 20, Kind::Alloc).unwrap();

        assert_eq!(
            board.move_stage(pid, Stage::Locked, Stage::Checkpointed),
            Err(Stays::WrongStage)
        );
        board
            .move_stage(pid, Stage::Running, Stage::Locked)
            .unwrap();
        assert!(board.is_halted(me));
        board
            .move_stage(pid, Stage::Locked, Stage::Checkpointed)
            .unwrap();
        assert_eq!(board.used_bytes(0), 0);

        let other = board.take(me, 0, 600 << 20, Kind::Alloc);
        assert_eq!(other, Ok(()));
        let back = board.move_stage(pid, Stage::Checkpointed, Stage::Locked);
        assert_eq!(back, Err(Stays::NoMemory));
        board.give(me, 0, 600 << 20, Kind::Alloc);
        board
            .move_stage(pid, Stage::Checkpointed, Stage::Locked)
            .unwrap();
        board
            .move_stage(pid, Stage::Locked, Stage::Running)
            .unwrap();
        assert_eq!(board.used_bytes(0), 600 << 20);
        assert!(!board.is_halted(me));
        assert_eq!(board.stage(1 << 30), Err(Stays::Unknown));
    }
}
