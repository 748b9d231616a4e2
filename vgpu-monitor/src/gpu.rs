//! Asking the NVIDIA driver, on a thread of its own: a driver that hangs costs the series that it
//! would have given, and no scrape waits longer than [`PATIENCE`] for it.
//!
//! Never asks twice at a time, and never keeps an answer for a later scrape.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use supervisor::gpu::{GpuError, GpuProcess, Gpus, Inventory, NvmlGpus};

use crate::driver_files::DriverFiles;

/// A scrape waits this long for the driver.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// A driver that is not there is looked for again after this.
const RETRY: Duration = Duration::from_secs(10);

/// The driver's answer.
#[derive(Debug, Clone, Default)]
pub struct DriverAnswer {
    /// The GPUs.
    pub inventory: Inventory,
    /// The memory that processes hold.
    pub processes: Vec<GpuProcess>,
}

/// The thread that asks.
#[derive(Debug)]
pub struct Asker {
    questions: SyncSender<Sender<Option<DriverAnswer>>>,
    patience: Duration,
    /// The last question was not answered in time: it has been said.
    silent: AtomicBool,
}

impl Asker {
    /// Starts the thread. The driver is opened at the first question, and looked for again when it was not there;
    /// `files` hears how opening it ends.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(files: DriverFiles) -> std::io::Result<Self> {
        Self::start_with(PATIENCE, move || {
            let opened = NvmlGpus::open();
            match &opened {
                Err(error @ (GpuError::NoLibrary(_) | GpuError::Unusable(_))) => files.fail(error),
                // Another failure is not one of the files.
                Ok(_) | Err(GpuError::Call { .. }) => files.work(),
            }
            opened.map(|gpus| Box::new(gpus) as Box<dyn Gpus>)
        })
    }

    fn start_with(
        patience: Duration,
        open: impl Fn() -> Result<Box<dyn Gpus>, GpuError> + Send + 'static,
    ) -> std::io::Result<Self> {
        // No room beside the question that is being answered: a second one is refused at once.
        let (questions, asked) = sync_channel(0);
        std::thread::Builder::new()
            .name("nvml".to_owned())
            .spawn(move || answer_all(&asked, &open))?;
        Ok(Self {
            questions,
            patience,
            silent: AtomicBool::new(false),
        })
    }

    /// The driver's answer; `None` if it is missing, fails, or does not answer in time.
    #[must_use]
    pub fn ask(&self) -> Option<DriverAnswer> {
        let answer = self.question();
        // Relaxed: the flag guards no other memory.
        let was_silent = self.silent.swap(answer.is_err(), Ordering::Relaxed);
        if answer.is_err() && !was_silent {
            let patience = self.patience;
            tracing::warn!(?patience, "the NVIDIA driver does not answer in time");
        }
        answer.ok().flatten()
    }

    fn question(&self) -> Result<Option<DriverAnswer>, RecvTimeoutError> {
        let (reply, answer) = channel();
        let begun = Instant::now();
        // The thread may still be on its way back to its channel, which takes a moment: it is asked again for a while,
        // while a hanging driver is noticed without waiting for it again and again.
        while self.questions.try_send(reply.clone()).is_err() {
            if begun.elapsed() > Duration::from_millis(100).min(self.patience) {
                return Err(RecvTimeoutError::Timeout);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(reply);
        answer.recv_timeout(self.patience)
    }
}

type Open = dyn Fn() -> Result<Box<dyn Gpus>, GpuError>;

fn answer_all(questions: &Receiver<Sender<Option<DriverAnswer>>>, open: &Open) {
    let mut gpus: Option<Box<dyn Gpus>> = None;
    let mut failed_at: Option<Instant> = None;
    let mut last_failure = String::new();
    loop {
        let reply = match questions.recv_timeout(RETRY) {
            Ok(reply) => Some(reply),
            // A driver that comes or goes is noticed without a scrape, too.
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let mut fail = |error: &GpuError| {
            // Each reason is logged once: a node without a GPU stays one.
            let reason = error.to_string();
            if reason != last_failure {
                tracing::warn!(%reason, "no answer from the NVIDIA driver");
                last_failure = reason;
            }
        };
        if gpus.is_none() && failed_at.is_none_or(|at| at.elapsed() >= RETRY) {
            match open() {
                Ok(opened) => {
                    tracing::info!("the NVIDIA driver answers");
                    gpus = Some(opened);
                }
                Err(error) => {
                    failed_at = Some(Instant::now());
                    fail(&error);
                }
            }
        }
        let ask = |gpus: &dyn Gpus| match reply {
            Some(_) => ask_once(gpus),
            None => gpus.inventory().map(|_| DriverAnswer::default()),
        };
        let answer = gpus.as_deref().map(ask).transpose();
        let answer = answer.unwrap_or_else(|error| {
            fail(&error);
            // A driver that was replaced under us wants to be opened again.
            gpus = None;
            failed_at = Some(Instant::now());
            None
        });
        if let Some(reply) = reply {
            // The caller may have given up.
            drop(reply.send(answer));
        }
    }
}

fn ask_once(gpus: &dyn Gpus) -> Result<DriverAnswer, GpuError> {
    Ok(DriverAnswer {
        inventory: gpus.inventory()?,
        processes: gpus.processes()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Answers, or hangs until the other end of `hang` is dropped.
    struct Driver {
        hang: Option<Receiver<()>>,
    }

    impl Gpus for Driver {
        fn inventory(&self) -> Result<Inventory, GpuError> {
            if let Some(hang) = &self.hang {
                assert!(hang.recv().is_err(), "the sender stays silent");
            }
            Ok(Inventory {
                gpus: Vec::new(),
                faults: vec!["GPU 3: lost".to_owned()],
            })
        }

        fn processes(&self) -> Result<Vec<GpuProcess>, GpuError> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn drivers_answer_is_passed_on() {
        let asker = Asker::start_with(PATIENCE, || Ok(Box::new(Driver { hang: None }))).unwrap();

        for _ in 0..3 {
            let answer = asker.ask().unwrap();
            assert_eq!(answer.inventory.faults, ["GPU 3: lost"]);
        }
    }

    #[test]
    fn hanging_driver_times_out_and_recovers() {
        let (wake, hang) = channel();
        let hang = Mutex::new(Some(hang));
        let asker = Asker::start_with(Duration::from_millis(20), move || {
            Ok(Box::new(Driver {
                hang: hang.lock().unwrap().take(),
            }))
        })
        .unwrap();

        assert!(asker.ask().is_none());
        assert!(asker.ask().is_none());

        drop(wake);
        let awake = (0..1000).find(|_| asker.ask().is_some());
        assert!(awake.is_some());
    }

    #[test]
    fn missing_driver_is_reported() {
        let asker = Asker::start_with(PATIENCE, || {
            Err(GpuError::NoLibrary("no such file".to_owned()))
        })
        .unwrap();

        assert!(asker.ask().is_none());
        assert!(asker.ask().is_none());
    }
}
