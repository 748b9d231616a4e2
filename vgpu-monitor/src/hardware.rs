//! The hardware's figures, asked by a thread of its own: power, temperatures, clocks, errors, throughput. A scrape starts
//! a round of questions if the last one is older than [`EVERY`], and shows what is there after at most [`WAIT`].
//!
//! Never asks without a scrape, and never holds a scrape up for a driver that is slow or hangs: the figures of the round
//! before are shown then, and none at all once they are older than [`OLDEST`].

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use supervisor::gpu::hardware::Hardware;
use supervisor::gpu::{GpuError, NvmlGpus};

/// The least time between two rounds of questions.
pub const EVERY: Duration = Duration::from_secs(5);
/// A scrape waits this long for a round.
pub const WAIT: Duration = Duration::from_millis(250);
/// Older figures are not shown.
pub const OLDEST: Duration = Duration::from_secs(90);
/// A driver that is not there is looked for again after this.
const RETRY: Duration = Duration::from_secs(10);

/// The thread, and its last figures.
#[derive(Debug)]
pub struct HardwareWatch {
    wake: SyncSender<()>,
    shared: Arc<WatchState>,
    every: Duration,
    wait: Duration,
}

#[derive(Debug, Default)]
struct WatchState {
    last: Mutex<Last>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Last {
    /// When the last round ended, and its figures.
    figures: Option<(Instant, Vec<Hardware>)>,
    /// When a round was last asked for.
    asked: Option<Instant>,
    /// Rounds so far.
    rounds: u64,
}

/// Asks the driver once.
trait AskDriver {
    fn ask(&mut self) -> Option<Vec<Hardware>>;
}

impl HardwareWatch {
    /// Starts the thread. The driver is opened at the first scrape.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start() -> std::io::Result<Self> {
        Self::start_with(WatchedDriver::default(), EVERY, WAIT)
    }

    fn start_with(
        ask: impl AskDriver + Send + 'static,
        every: Duration,
        wait: Duration,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(WatchState::default());
        let (wake, woken) = sync_channel(1);
        let of_thread = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("hardware".to_owned())
            .spawn(move || serve(ask, &woken, &of_thread))?;
        Ok(Self {
            wake,
            shared,
            every,
            wait,
        })
    }

    /// The figures of every GPU, no older than [`OLDEST`].
    #[must_use]
    pub fn figures(&self) -> Vec<Hardware> {
        let now = Instant::now();
        let mut last = self.shared.last.lock();
        let is_due = last
            .asked
            .is_none_or(|at| now.saturating_duration_since(at) >= self.every);
        if is_due {
            last.asked = Some(now);
            let round = last.rounds;
            // A round that is still under way is the one that is waited for.
            self.wake.try_send(()).ok();
            let until = now + self.wait;
            while last.rounds == round {
                if self.shared.changed.wait_until(&mut last, until).timed_out() {
                    break;
                }
            }
        }
        match &last.figures {
            Some((at, figures)) if at.elapsed() < OLDEST => figures.clone(),
            _ => Vec::new(),
        }
    }
}

fn serve(mut ask: impl AskDriver, woken: &Receiver<()>, shared: &WatchState) {
    while woken.recv().is_ok() {
        let figures = ask.ask();
        let mut last = shared.last.lock();
        // After a failed round there are no figures, because old ones would look as if the driver still answered.
        last.figures = figures.map(|figures| (Instant::now(), figures));
        last.rounds = last.rounds.wrapping_add(1);
        shared.changed.notify_all();
    }
}

/// The driver, once it is there.
#[derive(Default)]
struct WatchedDriver {
    gpus: Option<NvmlGpus>,
    failed_at: Option<Instant>,
    last_failure: String,
}

impl WatchedDriver {
    fn fail(&mut self, error: &GpuError) {
        self.gpus = None;
        self.failed_at = Some(Instant::now());
        // Each reason is logged once: a node without a GPU stays one.
        let reason = error.to_string();
        if reason != self.last_failure {
            tracing::info!(%reason, "no figures of the GPUs' hardware");
            self.last_failure = reason;
        }
    }
}

impl AskDriver for WatchedDriver {
    fn ask(&mut self) -> Option<Vec<Hardware>> {
        if self.gpus.is_none() {
            if self.failed_at.is_some_and(|at| at.elapsed() < RETRY) {
                return None;
            }
            match NvmlGpus::open() {
                Ok(gpus) => self.gpus = Some(gpus),
                Err(error) => self.fail(&error),
            }
        }
        match self.gpus.as_ref()?.hardware() {
            Ok(figures) => Some(figures),
            Err(error) => {
                // A driver that was replaced under us wants to be opened again.
                self.fail(&error);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Answers with the number of the round, each time that a word comes.
    struct Slow {
        go: Receiver<()>,
        rounds: Arc<AtomicU32>,
    }

    impl AskDriver for Slow {
        fn ask(&mut self) -> Option<Vec<Hardware>> {
            self.go.recv().ok()?;
            let index = self.rounds.fetch_add(1, Ordering::SeqCst);
            Some(vec![Hardware {
                index,
                ..Hardware::default()
            }])
        }
    }

    fn slow(wait: Duration) -> (HardwareWatch, Sender<()>, Arc<AtomicU32>) {
        let (go, word) = channel();
        let rounds = Arc::new(AtomicU32::new(0));
        let ask = Slow {
            go: word,
            rounds: Arc::clone(&rounds),
        };
        let every = Duration::from_secs(3600);
        let watch = HardwareWatch::start_with(ask, every, wait).unwrap();
        (watch, go, rounds)
    }

    #[test]
    fn a_hanging_driver_holds_no_scrape_up() {
        let (watch, go, rounds) = slow(Duration::from_millis(10));

        assert!(watch.figures().is_empty());
        // Not asked again so soon, and not waited for.
        assert!(watch.figures().is_empty());

        go.send(()).unwrap();
        let begun = Instant::now();
        while watch.figures().is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it answers");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(rounds.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn scrapes_share_a_round() {
        let (watch, go, rounds) = slow(Duration::from_secs(60));
        for _ in 0..3 {
            go.send(()).unwrap();
        }

        let figures: Vec<_> = (0..3).map(|_| watch.figures()[0].index).collect();

        // Scrapes that come at once, as two Prometheus servers' do, ask the driver once.
        assert_eq!(figures, [0, 0, 0]);
        assert_eq!(rounds.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_driver_that_is_gone_has_no_figures() {
        let (watch, go, _rounds) = slow(Duration::from_secs(60));
        drop(go);
        assert!(watch.figures().is_empty());
    }
}
