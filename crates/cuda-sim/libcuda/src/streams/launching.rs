//! Giving a kernel to a stream: how long it takes in its context, and what a driver call costs.

use std::sync::OnceLock;

use cuda_sim::clock::ClockKind;
use cuda_sim::exec::Work;

use crate::base::border::Done;
use crate::base::values;
use crate::memory::context::Ctx;
use crate::process::work::exec;
use crate::streams::launch::{MULTIPROCESSORS, Plan};
use crate::streams::stream::{self, Stream};

impl Plan {
    /// How long it takes in a context, when that is known.
    ///
    /// # Errors
    /// When there is no board.
    pub(crate) fn time_in(self, context: Ctx) -> Done<Option<u64>> {
        match self {
            Self::Time { ns } => on_a_part(ns, context).map(Some),
            Self::Meet { .. } | Self::Flag { .. } => Ok(None),
        }
    }

    /// Gives the kernel to a stream.
    pub(crate) fn submit(self, stream: &Stream) -> Done {
        match self {
            Self::Time { ns } => {
                let ns = on_a_part(ns, stream.context)?;
                stream::submit(stream, Work::Kernel { ns }).map(drop)
            }
            Self::Meet { key, parties, ns } => {
                let ns = on_a_part(ns, stream.context)?;
                stream::submit(stream, Work::Rendezvous { key, parties, ns }).map(drop)
            }
            Self::Flag { address, ns } => {
                let ns = on_a_part(ns, stream.context)?;
                let holds = move || values::load(address, 32) != 0;
                stream::submit_poll(stream, holds, |token| Work::Spin { token, ns })
            }
        }
    }
}

/// A kernel's time where its context, or its process under MPS, has a part of the multiprocessors: as
/// much longer as the part is smaller.
fn on_a_part(ns: u64, context: Ctx) -> Done<u64> {
    let share = u64::from(crate::memory::context::share_of(context));
    let percent = if exec()?.is_mps() {
        thread_percentage()
    } else {
        100
    };
    let scaled = u128::from(ns) * u128::from(MULTIPROCESSORS) * 100
        / (u128::from(share.max(1)) * u128::from(percent));
    Ok(u64::try_from(scaled).unwrap_or(u64::MAX))
}

/// The percentage of a GPU's threads that MPS gives this process; read once, as MPS does.
fn thread_percentage() -> u64 {
    static PERCENT: OnceLock<u64> = OnceLock::new();
    *PERCENT.get_or_init(|| {
        std::env::var("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
            .ok()
            .and_then(|text| text.trim().parse::<f64>().ok())
            .filter(|percent| *percent > 0.0 && *percent <= 100.0)
            .map_or(100, |percent| percent.ceil() as u64)
    })
}

/// Takes the processor time that the board's script says a driver call costs, on the board's clock.
pub(crate) fn call_costs(name: &str) {
    let Ok(exec) = exec() else { return };
    crate::process::ours::take_part(exec);
    if !exec.script().has_calls() {
        return;
    }
    let ns = exec.script().call_ns(name);
    let clock = exec.clock();
    match clock.kind() {
        _ if ns == 0 => {}
        ClockKind::Real => {
            let until = clock.now() + ns;
            while clock.now() < until {
                std::hint::spin_loop();
            }
        }
        ClockKind::Virtual | ClockKind::Jump | ClockKind::Lockstep => clock.spend(ns),
    }
}
