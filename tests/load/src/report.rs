//! Rows of a Markdown table.

use std::time::Duration;

use crate::process::Memory;

/// How long answers took.
#[derive(Default)]
pub(crate) struct Times {
    micros: Vec<u64>,
    seconds: f64,
}

impl Times {
    pub(crate) fn add(&mut self, took: Duration) {
        self.micros
            .push(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        self.seconds += took.as_secs_f64();
    }

    pub(crate) fn join(&mut self, mut other: Self) {
        self.micros.append(&mut other.micros);
    }

    /// Sets the total time of all calls, for concurrent callers.
    pub(crate) fn took(&mut self, time: Duration) {
        self.seconds = time.as_secs_f64();
    }

    fn quantile(&mut self, thousandths: usize) -> f64 {
        self.micros.sort_unstable();
        let at = self.micros.len().saturating_sub(1) * thousandths / 1000;
        let micros = self.micros.get(at).copied().unwrap_or_default();
        Duration::from_micros(micros).as_secs_f64() * 1000.0
    }

    #[allow(
        clippy::cast_precision_loss,
        reason = "a count of answers, for a table"
    )]
    fn per_second(&self) -> f64 {
        self.micros.len() as f64 / self.seconds.max(1e-9)
    }
}

pub(crate) struct Row {
    pub(crate) nodes: usize,
    pub(crate) placed: usize,
    pub(crate) what: &'static str,
    pub(crate) callers: usize,
    pub(crate) times: Times,
    pub(crate) memory: Option<Memory>,
}

pub(crate) fn head(what: &str) {
    println!(
        "| nodes | placed pods | {what} | callers | p50 ms | p99 ms | answers/s | peak (now) MiB |"
    );
    println!("|---|---|---|---|---|---|---|---|");
}

pub(crate) fn row(row: &Row) {
    let mut times = Times {
        micros: row.times.micros.clone(),
        seconds: row.times.seconds,
    };
    let memory = row.memory.map_or_else(String::new, |memory| {
        format!("{} ({})", memory.peak_bytes >> 20, memory.now_bytes >> 20)
    });
    println!(
        "| {} | {} | {} | {} | {:.2} | {:.2} | {:.0} | {memory} |",
        row.nodes,
        row.placed,
        row.what,
        row.callers,
        times.quantile(500),
        times.quantile(990),
        times.per_second(),
    );
}
