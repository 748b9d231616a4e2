//! Late lists of processes: NVML answers with the list of a fixed time ago, and with an empty list before that.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use cuda_sim::clock::monotonic_ns;

/// The age at which a look is reported.
const LATE_NS: u64 = 200_000_000;

/// A process that computes on a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Allocations, contexts and modules, in bytes.
    pub(crate) bytes: u64,
    /// MIG GPU instance that it runs on, or `NO_INSTANCE`.
    pub(crate) instance: u32,
}

/// A look at a GPU: the GPU, when, and the processes that were there.
type Look = (usize, u64, Vec<Process>);

static LOOKS: Mutex<VecDeque<Look>> = Mutex::new(VecDeque::new());

/// The reported list of a GPU, whose present list is `now`.
pub(crate) fn told(gpu: usize, now: Vec<Process>) -> Vec<Process> {
    let mut looks = LOOKS.lock().unwrap_or_else(PoisonError::into_inner);
    next(&mut looks, gpu, monotonic_ns(), now)
}

fn next(looks: &mut VecDeque<Look>, gpu: usize, at: u64, now: Vec<Process>) -> Vec<Process> {
    let is_old = |look: &Look| look.0 == gpu && at.saturating_sub(look.1) >= LATE_NS;
    let newest = looks.iter().rposition(is_old);
    let told = newest.map(|index| looks[index].2.clone());
    // Looks older than the reported one are never reported again.
    if let Some(index) = newest {
        let mut place = 0;
        looks.retain(|look| {
            let keeps = look.0 != gpu || place >= index;
            place += 1;
            keeps
        });
    }
    let is_new = |look: &Look| look.0 == gpu && at.saturating_sub(look.1) < LATE_NS / 10;
    if !looks.iter().any(is_new) {
        looks.push_back((gpu, at, now));
    }
    told.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holding(bytes: u64) -> Vec<Process> {
        vec![Process {
            pid: 1,
            bytes,
            instance: 0,
        }]
    }

    #[test]
    fn a_look_is_told_once_it_is_old() {
        let mut looks = VecDeque::new();
        let mut at = |ms: u64, bytes| {
            let told = next(&mut looks, 0, ms * 1_000_000, holding(bytes));
            told.first().map(|process| process.bytes)
        };

        assert_eq!(at(1000, 10), None);
        assert_eq!(at(1150, 20), None);
        assert_eq!(at(1200, 30), Some(10));
        assert_eq!(at(1360, 40), Some(20));
        assert_eq!(at(5000, 50), Some(40));
    }
}
