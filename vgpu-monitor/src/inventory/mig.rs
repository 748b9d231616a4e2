//! MIG instances on demand: created where the scheduler chose, adopted if they exist there already, and
//! removed when no pod holds them. A journal records each step, so that an agent that is killed between two
//! steps leaves no instance that it does not know of.
//!
//! Never touches an instance that it did not create, never takes one from under a process, and never switches
//! a GPU's MIG mode. The driver is queried on a thread of its own: a caller waits [`PATIENCE`] and no longer.

mod gpu;
mod journal;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use parking_lot::Mutex;
use placement::Span;
use supervisor::gpu::partition::{self, GpuInstance, Profile};

use gpu::{MigGpu, failed};
use journal::{InstanceStep, Journal, JournalInstance};

/// The kubelet gives a container 30 s to be prepared; the refusal has to come before that.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// A GPU has at most seven instances; a driver that says more is not believed.
const MIG_DEVICES: u32 = 16;

/// An instance with its compute instance, which is what a container gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MadeInstance {
    /// `MIG-…`.
    pub uuid: String,
    /// UUID of the GPU.
    pub gpu: String,
    /// `3g.40gb`.
    pub profile: String,
    /// Its position.
    pub span: Span,
    /// Id of the GPU instance.
    pub gpu_instance: u32,
    /// Id of the compute instance.
    pub compute_instance: u32,
    /// Its memory, as the profile has it.
    pub memory_bytes: u64,
}

/// An instance that another program made: an administrator, or one that is beside this agent.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct OtherInstance {
    /// UUID of the GPU.
    pub gpu: String,
    /// `3g.40gb`.
    pub profile: String,
    /// Its position.
    pub span: Span,
    /// Whether a container can get it as it is: it is not divided into several compute instances.
    pub is_whole: bool,
}

/// Why an instance is not made or not removed. The text is the one that the pod's event shows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MigError {
    /// The driver hangs, or is still at an earlier question.
    #[error("the NVIDIA driver did not answer within {} s; tried again", PATIENCE.as_secs())]
    Silent,
    /// The driver says no.
    #[error("GPU {gpu}: {step}: {reason}")]
    Driver {
        /// UUID of the GPU.
        gpu: String,
        /// The step that failed.
        step: &'static str,
        /// The driver's message.
        reason: String,
    },
    /// The GPU is not cut at all.
    #[error(
        "GPU {gpu} is not in MIG mode; switch it on (nvidia-smi -mig 1) or take operatingmode mig off the node"
    )]
    Off {
        /// UUID of the GPU.
        gpu: String,
    },
    /// There is no such shape.
    #[error("GPU {gpu} has no MIG profile {asked:?}; it has {known}")]
    NoProfile {
        /// UUID of the GPU.
        gpu: String,
        /// The requested profile.
        asked: String,
        /// The profiles that the GPU has.
        known: String,
    },
    /// The shape does not lie there.
    #[error("GPU {gpu}: no {profile} can lie at slice {start}; it can at {known}")]
    NoPlace {
        /// UUID of the GPU.
        gpu: String,
        /// The shape.
        profile: String,
        /// The requested position.
        start: u32,
        /// Where it can.
        known: String,
    },
    /// Another instance is in the way.
    #[error(
        "GPU {gpu}: {profile} at slice {start} overlaps {other}; tried again, and it fits once that is gone"
    )]
    Occupied {
        /// UUID of the GPU.
        gpu: String,
        /// The shape.
        profile: String,
        /// The requested position.
        start: u32,
        /// The instance in the way.
        other: String,
    },
    /// Processes work on it.
    #[error("MIG instance {uuid} is in use by {processes}")]
    InUse {
        /// The instance.
        uuid: String,
        /// The processes that use it.
        processes: String,
    },
    /// The journal cannot be read or written, so no instance may be touched.
    #[error("the journal of MIG instances, {file}: {reason}")]
    Journal {
        /// The journal.
        file: String,
        /// Why.
        reason: String,
    },
}

type Job = Box<dyn FnOnce(&mut Instances) + Send>;

/// Makes and removes instances. Clones share the thread and the journal.
#[derive(Debug, Clone)]
pub struct Mig {
    jobs: Arc<Mutex<Sender<Job>>>,
    patience: Duration,
}

impl Mig {
    /// Starts the thread and reads the journal; the driver is opened when it is needed. `library` as
    /// [`super::InventorySettings::library`].
    ///
    /// # Errors
    /// The system gives no thread. A journal that exists and cannot be read is no error here: the agent then
    /// cannot know which instances are its own, creates and removes none, and each refusal says what a person
    /// has to look at.
    pub fn start(state_dir: &Path, library: Option<PathBuf>) -> io::Result<Self> {
        let journal = Journal::open(state_dir);
        let (jobs, asked) = channel::<Job>();
        let mut cutter = Instances {
            library,
            nvml: None,
            journal,
            asked: BTreeMap::new(),
        };
        std::thread::Builder::new()
            .name("mig".to_owned())
            .spawn(move || {
                while let Ok(job) = asked.recv() {
                    job(&mut cutter);
                }
            })?;
        Ok(Self {
            jobs: Arc::new(Mutex::new(jobs)),
            patience: PATIENCE,
        })
    }

    /// The instance of this profile at this position: the existing one, or a new one.
    ///
    /// # Errors
    /// With the sentence for the pod.
    pub fn make(&self, gpu: &str, profile: &str, span: Span) -> Result<MadeInstance, MigError> {
        let (gpu, profile) = (gpu.to_owned(), profile.to_owned());
        self.ask(move |cutter| cutter.make(&gpu, &profile, span))
    }

    /// Removes an instance that this agent created; any other instance, and one that is gone, stays as it is.
    ///
    /// # Errors
    /// [`MigError::InUse`] while a process works on it; others as the driver has them.
    pub fn unmake(&self, uuid: &str) -> Result<(), MigError> {
        let uuid = uuid.to_owned();
        self.ask(move |cutter| cutter.unmake(|entry| entry.uuid.as_ref() == Some(&uuid)))
    }

    /// Removes the instances that were made here and lie in none of these places (GPU and span), and those left half
    /// made. For the start, and whenever pods are over. An instance that was requested after `as_of`, when the places
    /// were looked up, stays. Returns the instances that could not be removed, and why.
    ///
    /// # Errors
    /// [`MigError::Silent`].
    pub fn keep_only(
        &self,
        held: &BTreeSet<(String, Span)>,
        as_of: Instant,
    ) -> Result<Vec<MigError>, MigError> {
        let held = held.clone();
        self.ask(move |cutter| Ok(cutter.keep_only(&held, as_of)))
    }

    /// The instances that were made or adopted here and are there.
    ///
    /// # Errors
    /// As the driver has them.
    pub fn list(&self) -> Result<Vec<MadeInstance>, MigError> {
        self.ask(Instances::list)
    }

    /// The instances of these GPUs that were not made here. A GPU that is not in MIG mode has none.
    ///
    /// # Errors
    /// As the driver has them, or if the journal cannot be read.
    pub fn others(&self, gpus: Vec<String>) -> Result<Vec<OtherInstance>, MigError> {
        // The thread that makes and removes ours answers, so none of them is on its way meanwhile.
        self.ask(move |cutter| cutter.others(&gpus))
    }

    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Instances) -> Result<T, MigError> + Send + 'static,
    ) -> Result<T, MigError> {
        let (reply, answer) = channel();
        let abandoned = Arc::new(AtomicBool::new(false));
        let given_up = Arc::clone(&abandoned);
        let job: Job = Box::new(move |cutter| {
            // Relaxed: the flag guards no other memory.
            if !given_up.load(Ordering::Relaxed) {
                let broken = cutter.journal.broken.clone();
                let answer = match broken {
                    Some(reason) => Err(cutter.journal.error(reason)),
                    None => question(cutter),
                };
                // The caller may have given up meanwhile; the journal has what was done.
                drop(reply.send(answer));
            }
        });
        self.jobs.lock().send(job).map_err(|_| MigError::Silent)?;
        match answer.recv_timeout(self.patience) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                // Relaxed: as above.
                abandoned.store(true, Ordering::Relaxed);
                Err(MigError::Silent)
            }
        }
    }
}

/// The thread's own.
struct Instances {
    library: Option<PathBuf>,
    nvml: Option<Nvml>,
    journal: Journal,
    /// When an instance was asked for last, by its place.
    asked: BTreeMap<(String, Span), Instant>,
}

impl Instances {
    fn nvml(&mut self, gpu: &str) -> Result<(), MigError> {
        // A driver that was replaced under us, or was not there.
        let works = self
            .nvml
            .as_ref()
            .is_some_and(|nvml| nvml.device_count().is_ok());
        if !works {
            self.nvml = None;
            let library = self.library.as_deref().map(Path::as_os_str);
            let opened = supervisor::gpu::nvml(library).map_err(|error| MigError::Driver {
                gpu: gpu.to_owned(),
                step: "opening the NVIDIA driver",
                reason: error.to_string(),
            })?;
            self.nvml = Some(opened);
        }
        Ok(())
    }

    fn make(&mut self, uuid: &str, profile: &str, span: Span) -> Result<MadeInstance, MigError> {
        self.asked.insert((uuid.to_owned(), span), Instant::now());
        self.nvml(uuid)?;
        let Some(nvml) = &self.nvml else {
            return Err(MigError::Silent);
        };
        let gpu = MigGpu::open(nvml, uuid)?;
        let shape = shape(&gpu, profile, span)?;
        let there = gpu.instances()?;
        let lies = |other: &&GpuInstance| {
            (shape.id, span.start, span.size) == (other.profile, other.start, other.size)
        };
        if let Some(instance) = there.iter().find(lies) {
            return adopt(&gpu, shape, instance, &mut self.journal);
        }
        let overlaps = |other: &&GpuInstance| {
            let other = Span {
                start: other.start,
                size: other.size,
            };
            span.overlaps(other)
        };
        if let Some(other) = there.iter().find(overlaps) {
            let known = self.journal.at(uuid, other).is_some();
            let maker = if known {
                "made for a container before"
            } else {
                "created by another program"
            };
            return Err(MigError::Occupied {
                gpu: uuid.to_owned(),
                profile: profile.to_owned(),
                start: span.start,
                other: format!(
                    "{} at slice {} ({maker})",
                    gpu.profile_name(other.profile),
                    other.start
                ),
            });
        }
        // The journal's entry for this position is outdated: the machine was restarted, or the instance was
        // removed by another program.
        let entries = &mut self.journal.entries;
        entries.retain(|entry| {
            let other = Span {
                start: entry.start,
                size: entry.size,
            };
            entry.gpu != uuid || !span.overlaps(other)
        });
        entries.push(JournalInstance {
            gpu: uuid.to_owned(),
            profile: profile.to_owned(),
            profile_id: shape.id,
            start: span.start,
            size: span.size,
            step: InstanceStep::Making,
            uuid: None,
            ours: true,
        });
        // From here on a kill leaves an entry that says what may be there.
        if let Err(error) = self.journal.write() {
            self.journal.entries.pop();
            return Err(error);
        }
        let made = create(&gpu, shape, span);
        let entry = self.journal.entries.iter_mut().find(|entry| {
            entry.gpu == uuid && entry.step == InstanceStep::Making && entry.start == span.start
        });
        match (&made, entry) {
            (Ok(made), Some(entry)) => {
                entry.step = InstanceStep::Made;
                entry.uuid = Some(made.uuid.clone());
                tracing::info!(instance = %made.uuid, %profile, gpu = %uuid, start = span.start, "created a MIG instance");
            }
            (Err(_), Some(_)) => {
                // An instance that failed half-way and could not be destroyed stays in the journal.
                let there = gpu.instances().unwrap_or_default();
                if !there.iter().any(|other| lies(&other)) {
                    self.journal.entries.retain(|entry| {
                        entry.gpu != uuid || entry.start != span.start || entry.uuid.is_some()
                    });
                }
            }
            (_, None) => {}
        }
        // Should this fail, the entry on disk still says that it may be there.
        if let Err(error) = self.journal.write() {
            tracing::warn!(%error, "a MIG instance is in the journal as half created");
        }
        made
    }

    /// Removes the instances of the entries that `which` picks; the first that cannot be removed ends it.
    fn unmake(&mut self, which: impl Fn(&JournalInstance) -> bool) -> Result<(), MigError> {
        let entries = self.journal.entries.clone();
        for entry in entries.iter().filter(|entry| which(entry)) {
            if entry.ours {
                self.remove(entry)?;
            }
            self.journal
                .entries
                .retain(|other| other != entry && !is_step_of(other, entry));
            self.asked.remove(&entry.place());
            if let Err(error) = self.journal.write() {
                // The entry is met again, and then there is no such instance.
                tracing::warn!(%error, "a MIG instance that is gone is still in the journal");
            }
        }
        Ok(())
    }

    fn remove(&mut self, entry: &JournalInstance) -> Result<(), MigError> {
        self.nvml(&entry.gpu)?;
        let Some(nvml) = &self.nvml else {
            return Err(MigError::Silent);
        };
        let Some(gpu) = MigGpu::open_if_on(nvml, &entry.gpu)? else {
            return Ok(());
        };
        let there = gpu.instances()?;
        let Some(instance) = there.iter().find(|instance| entry.lies_as(instance)) else {
            return Ok(());
        };
        let processes = gpu.processes(instance);
        if !processes.is_empty() {
            let pids: Vec<String> = processes
                .iter()
                .map(|pid| format!("process {pid}"))
                .collect();
            return Err(MigError::InUse {
                uuid: entry.uuid.clone().unwrap_or_default(),
                processes: pids.join(", "),
            });
        }
        for known in &mut self.journal.entries {
            if known == entry {
                known.step = InstanceStep::Removing;
            }
        }
        if let Err(error) = self.journal.write() {
            tracing::debug!(%error, "cannot write the journal before removing a MIG instance");
        }
        gpu.destroy(instance)?;
        tracing::info!(gpu = %entry.gpu, profile = %entry.profile, start = entry.start, "removed a MIG instance");
        Ok(())
    }

    fn keep_only(&mut self, held: &BTreeSet<(String, Span)>, as_of: Instant) -> Vec<MigError> {
        let is_held = |place: &(String, Span)| {
            held.contains(place) || self.asked.get(place).is_some_and(|asked| *asked >= as_of)
        };
        let entries = self.journal.entries.iter();
        let gone: Vec<JournalInstance> = entries
            .filter(|entry| !is_held(&entry.place()))
            .cloned()
            .collect();
        self.asked.retain(|_, asked| *asked >= as_of);
        gone.iter()
            .filter_map(|gone| self.unmake(|entry| is_step_of(entry, gone)).err())
            .collect()
    }

    fn list(&mut self) -> Result<Vec<MadeInstance>, MigError> {
        let gpus: BTreeSet<String> = self
            .journal
            .entries
            .iter()
            .map(|entry| entry.gpu.clone())
            .collect();
        let mut all = Vec::new();
        for uuid in &gpus {
            self.nvml(uuid)?;
            let Some(nvml) = &self.nvml else { continue };
            let Some(gpu) = MigGpu::open_if_on(nvml, uuid)? else {
                continue;
            };
            for instance in gpu.instances()? {
                let Some(entry) = self.journal.at(uuid, &instance) else {
                    continue;
                };
                let (Some(mig), Some(&compute)) = (entry.uuid.clone(), instance.compute.first())
                else {
                    continue;
                };
                let shape = gpu.profiles.iter().find(|it| it.id == instance.profile);
                all.push(MadeInstance {
                    uuid: mig,
                    gpu: uuid.clone(),
                    profile: entry.profile.clone(),
                    span: Span {
                        start: instance.start,
                        size: instance.size,
                    },
                    gpu_instance: instance.id,
                    compute_instance: compute,
                    memory_bytes: shape.map_or(0, |shape| shape.memory_mib << 20),
                });
            }
        }
        Ok(all)
    }
}

impl Instances {
    fn others(&mut self, gpus: &[String]) -> Result<Vec<OtherInstance>, MigError> {
        let mut all = Vec::new();
        for uuid in gpus {
            self.nvml(uuid)?;
            let Some(nvml) = &self.nvml else { continue };
            let Some(gpu) = MigGpu::open_if_on(nvml, uuid)? else {
                continue;
            };
            for instance in gpu.instances()? {
                if self.journal.at(uuid, &instance).is_some_and(|it| it.ours) {
                    continue;
                }
                all.push(OtherInstance {
                    gpu: uuid.clone(),
                    profile: gpu.profile_name(instance.profile),
                    span: Span {
                        start: instance.start,
                        size: instance.size,
                    },
                    is_whole: instance.compute.len() <= 1,
                });
            }
        }
        Ok(all)
    }
}

/// Whether both are one instance, however far it is.
fn is_step_of(one: &JournalInstance, other: &JournalInstance) -> bool {
    (&one.gpu, one.profile_id, one.start, one.size)
        == (&other.gpu, other.profile_id, other.start, other.size)
}

/// The shape of that name, if it can lie there.
fn shape<'a>(gpu: &'a MigGpu<'_>, profile: &str, span: Span) -> Result<&'a Profile, MigError> {
    let shape = gpu.profiles.iter().find(|known| known.name == profile);
    let shape = shape.ok_or_else(|| MigError::NoProfile {
        gpu: gpu.uuid.to_owned(),
        asked: profile.to_owned(),
        known: names(gpu.profiles.iter().map(|known| known.name.clone())),
    })?;
    if !shape.placements.contains(&(span.start, span.size)) {
        return Err(MigError::NoPlace {
            gpu: gpu.uuid.to_owned(),
            profile: profile.to_owned(),
            start: span.start,
            known: names(shape.placements.iter().map(|(start, _)| start.to_string())),
        });
    }
    Ok(shape)
}

fn names(names: impl Iterator<Item = String>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

/// Takes what lies there: whole, or half made by an earlier life of the agent.
fn adopt(
    gpu: &MigGpu<'_>,
    shape: &Profile,
    instance: &GpuInstance,
    journal: &mut Journal,
) -> Result<MadeInstance, MigError> {
    let compute = match instance.compute.as_slice() {
        [] => partition::create_compute(&gpu.device, instance.id)
            .map_err(failed(gpu.uuid, "creating a compute instance"))?,
        [compute] => *compute,
        several => {
            return Err(MigError::Occupied {
                gpu: gpu.uuid.to_owned(),
                profile: shape.name.clone(),
                start: instance.start,
                other: format!(
                    "the same with {} compute instances (created by another program)",
                    several.len()
                ),
            });
        }
    };
    let made = made(gpu, shape, instance, compute)?;
    match journal.at(gpu.uuid, instance) {
        Some(entry) => {
            entry.step = InstanceStep::Made;
            entry.uuid = Some(made.uuid.clone());
        }
        None => journal.entries.push(JournalInstance {
            gpu: gpu.uuid.to_owned(),
            profile: shape.name.clone(),
            profile_id: shape.id,
            start: instance.start,
            size: instance.size,
            step: InstanceStep::Made,
            uuid: Some(made.uuid.clone()),
            ours: false,
        }),
    }
    journal.write()?;
    Ok(made)
}

/// Makes an instance, or nothing.
fn create(gpu: &MigGpu<'_>, shape: &Profile, span: Span) -> Result<MadeInstance, MigError> {
    let id = partition::create(&gpu.device, shape.id, span.start, span.size)
        .map_err(failed(gpu.uuid, "creating a GPU instance"))?;
    let mut instance = GpuInstance {
        id,
        profile: shape.id,
        start: span.start,
        size: span.size,
        compute: Vec::new(),
    };
    let made = partition::create_compute(&gpu.device, id)
        .map_err(failed(gpu.uuid, "creating a compute instance"))
        .and_then(|compute| {
            instance.compute.push(compute);
            made(gpu, shape, &instance, compute)
        });
    if made.is_err()
        && let Err(error) = gpu.destroy(&instance)
    {
        tracing::warn!(%error, gpu = %gpu.uuid, "a MIG instance that failed half-way is still there");
    }
    made
}

fn made(
    gpu: &MigGpu<'_>,
    shape: &Profile,
    instance: &GpuInstance,
    compute: u32,
) -> Result<MadeInstance, MigError> {
    let step = "finding the new MIG device";
    let device = gpu
        .device_of(instance.id, compute)
        .ok_or(NvmlError::NotFound)
        .map_err(failed(gpu.uuid, step))?;
    Ok(MadeInstance {
        uuid: device.uuid().map_err(failed(gpu.uuid, step))?,
        gpu: gpu.uuid.to_owned(),
        profile: shape.name.clone(),
        span: Span {
            start: instance.start,
            size: instance.size,
        },
        gpu_instance: instance.id,
        compute_instance: compute,
        memory_bytes: shape.memory_mib << 20,
    })
}
