//! Rules: a graph is launched or uploaded. It takes its turn as a kernel does (`compute.rs`), and the memory
//! that its nodes want (`graphs.rs`).

use cuda_api::{CuGraphExec, CuResult};

use crate::guest::manners::Verdict;
use crate::rules::compute::{Launched, after, launch};
use crate::rules::{first_use, graphs};
use crate::state::launches::costs::Work;
use crate::state::standing::accounts;

/// A graph's launch: its turn, then the memory that its nodes want.
#[derive(Clone, Copy)]
pub(crate) struct GraphLaunched {
    time: Option<Launched>,
    memory: Option<graphs::Launching>,
}

/// Before `cuGraphLaunch`.
pub(crate) fn before_graph(call: &str, exec: CuGraphExec, stream: u64) -> Verdict<GraphLaunched> {
    let accounts = accounts!(Launch);
    let time = match launch(&accounts, Work::graph(exec as usize), stream) {
        Verdict::Call(launched) => Some(launched),
        Verdict::Pass => None,
        Verdict::Refuse(result) => return Verdict::Refuse(result),
    };
    match (time, graphs::before_launch(call, exec, stream)) {
        (time, Verdict::Call(memory)) => Verdict::Call(GraphLaunched {
            time,
            memory: Some(memory),
        }),
        (Some(time), Verdict::Refuse(result)) => {
            after(time, result);
            Verdict::Refuse(result)
        }
        (None, Verdict::Refuse(result)) => Verdict::Refuse(result),
        (None, Verdict::Pass) => Verdict::Pass,
        (time, Verdict::Pass) => Verdict::Call(GraphLaunched { time, memory: None }),
    }
}

/// Before `cuGraphUpload`, which takes no time of the multiprocessors.
pub(crate) fn before_upload(call: &str, exec: CuGraphExec, stream: u64) -> Verdict<GraphLaunched> {
    let accounts = accounts!(Launch);
    let memory = match graphs::before_launch(call, exec, stream) {
        Verdict::Call(memory) => Some(memory),
        Verdict::Pass => None,
        Verdict::Refuse(result) => return Verdict::Refuse(result),
    };
    let work = Work::graph(exec as usize);
    let first = first_use::before_launch(&accounts, work, stream);
    let time = first.map(|first| Launched::uncharged(Some(first), work));
    Verdict::Call(GraphLaunched { time, memory })
}

/// After `cuGraphLaunch` and `cuGraphUpload`.
pub(crate) fn after_graph(launched: GraphLaunched, result: CuResult) {
    if let Some(time) = launched.time {
        after(time, result);
    }
    if let Some(memory) = launched.memory {
        graphs::after_launch(memory, result);
    }
}
