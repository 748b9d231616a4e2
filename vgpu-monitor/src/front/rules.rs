//! How the front reacts to the end of the process behind it. Values in, values out.

use std::time::Duration;

/// The exit code of a process that wants its container restarted: its files are too old for it.
pub const CONTAINER: u8 = 3;
/// A process that served for this long has not failed at its start: failures before it are forgotten.
const CALM: Duration = Duration::from_secs(60);
/// More failures in a row end the front, so that the kubelet sees and reports them.
const MOST: u32 = 8;
/// The pause after the second failure in a row, doubled by each further one, and the longest.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessEnd {
    /// By itself, with this exit code.
    Code(i32),
    /// By a signal: a crash, the kernel for want of memory, or the front because the process did not answer.
    Signal(i32),
}

/// One process behind the front.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// How it ended.
    pub ended: ProcessEnd,
    /// How long it ran.
    pub ran: Duration,
    /// Whether it has ever named its slots.
    pub served: bool,
}

/// The front's next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextStep {
    /// Another process, after this pause.
    Start(Duration),
    /// The front ends, too: the kubelet restarts the container.
    End,
}

/// Failures in a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Past {
    failures: u32,
    /// Some process of this front has served.
    served: bool,
}

/// The front's next step after a process has ended without having been asked to.
pub fn next(past: Past, life: Life) -> (NextStep, Past) {
    let served = past.served || life.served;
    let calm = life.served && life.ran >= CALM;
    let failures = if calm { 1 } else { past.failures + 1 };
    let past = Past { failures, served };
    let next = match life.ended {
        ProcessEnd::Code(code) if code == i32::from(CONTAINER) => NextStep::End,
        // It refuses its settings: another one would do the same.
        ProcessEnd::Code(_) if !served => NextStep::End,
        _ if failures > MOST => NextStep::End,
        _ if failures == 1 => NextStep::Start(Duration::ZERO),
        _ => {
            let doubled = PAUSE * 2_u32.saturating_pow((failures - 2).min(16));
            NextStep::Start(doubled.min(LONGEST))
        }
    };
    (next, past)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CRASH: ProcessEnd = ProcessEnd::Signal(11);

    fn life(ended: ProcessEnd, seconds: u64, served: bool) -> Life {
        Life {
            ended,
            ran: Duration::from_secs(seconds),
            served,
        }
    }

    #[test]
    fn crash_is_followed_by_another_process_at_once() {
        let (next, past) = next(Past::default(), life(CRASH, 3600, true));
        assert_eq!(next, NextStep::Start(Duration::ZERO));
        // A day later the first crash is forgotten.
        let (next, _) = super::next(past, life(CRASH, 86_400, true));
        assert_eq!(next, NextStep::Start(Duration::ZERO));
    }

    #[test]
    fn crash_loop_gets_pauses_and_then_the_kubelets_attention() {
        let mut past = Past::default();
        let mut pauses = Vec::new();
        loop {
            let (next, now) = next(past, life(CRASH, 1, true));
            past = now;
            match next {
                NextStep::Start(pause) => pauses.push(pause.as_millis()),
                NextStep::End => break,
            }
        }
        assert_eq!(pauses, [0, 100, 200, 400, 800, 1600, 3200, 5000]);
        // A process that runs long without serving anything is a failure, too.
        let (next, _) = next(past, life(CRASH, 600, false));
        assert_eq!(next, NextStep::End);
    }

    #[test]
    fn process_that_wants_another_container_or_refuses_its_settings_is_not_replaced() {
        let container = ProcessEnd::Code(i32::from(CONTAINER));
        for (ended, served, expected) in [
            (container, true, NextStep::End),
            (container, false, NextStep::End),
            (ProcessEnd::Code(1), false, NextStep::End),
            (ProcessEnd::Code(2), false, NextStep::End),
            (ProcessEnd::Code(1), true, NextStep::Start(Duration::ZERO)),
            (ProcessEnd::Code(0), true, NextStep::Start(Duration::ZERO)),
            (CRASH, false, NextStep::Start(Duration::ZERO)),
        ] {
            let (next, _) = next(Past::default(), life(ended, 100, served));
            assert_eq!(next, expected, "{ended:?} {served}");
        }
        // Another process has served with these settings: what this one lacks may come.
        let (_, past) = next(Past::default(), life(CRASH, 100, true));
        let (next, _) = next(past, life(ProcessEnd::Code(1), 0, false));
        assert_eq!(next, NextStep::Start(PAUSE));
    }
}
