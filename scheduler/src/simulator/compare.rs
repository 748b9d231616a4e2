//! What-if comparisons: several runs over the same objects, each with one change, and their figures side by side. Each
//! run has its own cluster, its own scheduling loop, and a clock that stands still while nothing happens. So the same
//! question gets the same answer on every machine, with any number of threads.
//!
//! `base` is the initial state of the runs, `variant` the change in each, `tally` the measurement; `table` and `chart`
//! format the figures. All of these are values; only `run` acts.

mod base;
mod chart;
mod run;
mod table;
mod tally;
mod variant;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kube_api::vendor::Vendors;
use parking_lot::Mutex;
use scheduling::plugin::{Plugin, Point};
use serde::Serialize;
use serde_json::Value;

use self::base::Facts;
use self::run::Ran;
use self::variant::World;
use super::{Refusal, Setup};

pub use self::base::Base;
pub use self::tally::{Evicted, Figures, Utilisation, WaitTimes};
pub use self::variant::{Added, MOST_ADDED, Variant};

/// The most variants in one comparison: more columns would be unreadable.
pub const MOST_VARIANTS: usize = 20;

/// A question: the base and its variants.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Question {
    /// The initial state of every run.
    pub base: Base,
    /// The scheduler configuration of the base run, instead of the one that came with the base.
    pub configuration: Option<Value>,
    /// The runs besides the unchanged base.
    pub variants: Vec<Variant>,
    /// Whether pods that have a node lose it and are placed again, in every run.
    pub anew: bool,
}

/// The answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Comparison {
    /// The name of the base.
    pub base: String,
    /// Whether all pods were placed again.
    pub anew: bool,
    /// The request by which fragmentation is judged; `None` if no pod asks for GPUs.
    pub typical_request: Option<TypicalRequest>,
    /// The base, then each variant.
    pub runs: Vec<Column>,
    /// Remarks for the reader.
    pub notes: Vec<String>,
}

/// The share of one GPU that pods typically ask for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TypicalRequest {
    /// The GPUs' vendor.
    pub vendor: String,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Compute in the GPU's own unit.
    pub cores: u32,
}

/// The figures of one run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Column {
    /// The name of the run.
    pub name: String,
    /// Its figures.
    #[serde(flatten)]
    pub figures: Figures,
}

/// A run that is ready to start.
struct Prepared {
    name: String,
    setup: Setup,
    world: World,
}

impl Question {
    /// Runs the base and every variant, at most `threads` at the same time.
    ///
    /// # Errors
    ///
    /// The part of the question that cannot be run. Everything is checked before the first run.
    pub fn answer(&self, vendors: &Arc<Vendors>, threads: usize) -> Result<Comparison, Refusal> {
        let prepared = self.prepare(vendors)?;
        let facts = Facts::of(&self.base, vendors);
        let next = AtomicUsize::new(0);
        let ran: Mutex<Vec<Option<Result<Ran, Refusal>>>> =
            Mutex::new(prepared.iter().map(|_| None).collect());
        std::thread::scope(|scope| {
            for _ in 0..threads.clamp(1, prepared.len()) {
                scope.spawn(|| {
                    // Relaxed: the counter orders no other memory.
                    while let at = next.fetch_add(1, Ordering::Relaxed)
                        && let Some(one) = prepared.get(at)
                    {
                        let result = self.run(one, &facts, vendors);
                        if let Some(place) = ran.lock().get_mut(at) {
                            *place = Some(result);
                        }
                    }
                });
            }
        });
        let mut comparison = Comparison {
            base: self.base.name.clone(),
            anew: self.anew,
            typical_request: facts.typical.as_ref().map(|typical| TypicalRequest {
                vendor: typical.vendor.to_string(),
                memory_mib: typical.memory_bytes >> 20,
                cores: typical.cores,
            }),
            runs: Vec::new(),
            notes: self.notes(&prepared, &facts),
        };
        for (one, ran) in prepared.into_iter().zip(ran.into_inner()) {
            let missing = || Refusal::Impossible(format!("the run {} did not end", one.name));
            let ran = ran.ok_or_else(missing)??;
            if let Some((count, first)) = &ran.refused {
                let objects = if *count == 1 {
                    "object was"
                } else {
                    "objects were"
                };
                comparison.notes.push(format!(
                    "{}: {count} {objects} refused by the cluster and left out; the first is {first}",
                    one.name
                ));
            }
            comparison.runs.push(Column {
                name: one.name,
                figures: ran.figures,
            });
        }
        Ok(comparison)
    }

    fn prepare(&self, vendors: &Vendors) -> Result<Vec<Prepared>, Refusal> {
        let name = &self.base.name;
        if self.variants.len() > MOST_VARIANTS {
            return Err(Refusal::Impossible(format!(
                "{} variants to compare; at most {MOST_VARIANTS} are shown beside each other",
                self.variants.len()
            )));
        }
        for (what, count) in [("node", self.base.nodes().len()), ("pod", self.base.pods())] {
            if count == 0 {
                return Err(Refusal::Impossible(format!(
                    "{name} has no {what}, so there is nothing to compare; expected nodes and pods, \
                     as GET /api/v1/export gives them or a recording has them"
                )));
            }
        }
        let of_base = match (&self.configuration, &self.base.configuration) {
            (Some(written), _) => Setup::read(written)?,
            (None, Some(written)) => Setup::read(written).map_err(|why| within(name, &why))?,
            (None, None) => Setup::defaults(),
        };
        let base = Variant {
            name: "base".to_owned(),
            ..Variant::default()
        };
        let mut prepared = Vec::new();
        for variant in std::iter::once(&base).chain(&self.variants) {
            let setup = match &variant.configuration {
                Some(written) => Setup::read(written).map_err(|why| within(&variant.name, &why))?,
                None => of_base.clone(),
            };
            prepared.push(Prepared {
                name: variant.name.clone(),
                setup,
                world: World::of(&self.base, variant, self.anew, vendors)?,
            });
        }
        Ok(prepared)
    }

    fn run(&self, one: &Prepared, facts: &Facts, vendors: &Arc<Vendors>) -> Result<Ran, Refusal> {
        // Only extenders are called over the network; nothing else waits.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Refusal::Impossible(format!("no runtime for a run: {error}")))?;
        let run = run::run(&self.base, &one.world, facts, &one.setup, vendors);
        runtime.block_on(run).map_err(|why| within(&one.name, &why))
    }

    fn notes(&self, prepared: &[Prepared], facts: &Facts) -> Vec<String> {
        let mut notes = Vec::new();
        if self.base.recorded {
            notes.push(
                "utilisation and fragmentation are means over the time of the recording".to_owned(),
            );
        }
        if self.anew {
            notes.push("every pod lost its node first and was placed again".to_owned());
        }
        for one in prepared {
            let profiles = &one.setup.running.profiles;
            let shares = profiles.iter().any(|profile| {
                profile
                    .plugins
                    .expand(Point::Filter)
                    .contains(&Plugin::GpuFit)
            });
            if facts.has_devices && facts.typical.is_some() && !shares {
                notes.push(format!(
                    "{}: the configuration lacks the plugins GpuFit and GpuScore, so pods get no device and the devices' \
                     figures count only what they held before",
                    one.name
                ));
            }
            let named = |name: &Arc<str>| {
                profiles
                    .iter()
                    .any(|profile| *profile.scheduler_name == **name)
            };
            if !facts.schedulers.iter().any(named) {
                let names: Vec<&str> = facts.schedulers.iter().map(|name| &**name).collect();
                notes.push(format!(
                    "{}: no pod asks for a scheduler of this configuration; pods ask for {}",
                    one.name,
                    names.join(", ")
                ));
            }
        }
        notes
    }
}

/// The refusal with the name of its subject.
fn within(name: &str, why: &Refusal) -> Refusal {
    Refusal::Impossible(format!("{name}: {why}"))
}

impl Comparison {
    /// A table for a terminal, one column for each run.
    pub fn table(&self) -> String {
        table::table(self)
    }

    /// A chart of the same figures, as a whole SVG document.
    pub fn chart(&self) -> String {
        chart::chart(self)
    }
}
