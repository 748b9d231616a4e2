//! Finds processes of the node that hold a GPU without our library or with another container's limits, and
//! GPU memory that is not charged to any container. A thread of its own looks, judges and reports, and no
//! other thread waits for it. Never stops a process by itself: with `--attest=evict` it asks the API server
//! to evict a pod.

pub mod args;

pub mod cluster;

pub mod look;

pub mod cgroup;

pub mod series;

pub mod tell;

pub mod verdict;

pub mod watch;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use events::Events;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use supervisor::instance::{self, LIMITS, REGION};
use supervisor::view::{self, ContainerView};

use crate::gpu::{Asker, DriverAnswer};
use crate::reconcile::{self, Owners, StandingGaps};
use args::{Flags, Mode};
use cluster::Cluster;
use look::{Eyes, FileId, Ours, file_id};
use series::{Owner, Picture, Row};
use tell::{Policy, Teller};
use verdict::{Ground, ManagedContainer, Verdict};
use watch::{GpuHolder, LookPace, Watch};

/// The settings of attestation.
#[derive(Debug, Clone)]
pub struct AttestSettings {
    /// Name of the node.
    pub node: String,
    /// Where the containers have their directories.
    pub root: PathBuf,
    /// Where the libraries have theirs.
    pub libraries: PathBuf,
    /// The library of this release, by its file; its name is made from its bytes.
    pub library: PathBuf,
    /// `/proc` with the host's pids.
    pub proc: PathBuf,
    /// The prefix of the paths of GPU devices.
    pub devices: String,
    /// Namespaces whose pods may hold GPUs without limits.
    pub exempt_namespaces: BTreeSet<String>,
    /// Programs that may do so outside of pods.
    pub exempt_programs: BTreeSet<String>,
    /// The reaction to a confirmed bad verdict.
    pub policy: Policy,
    /// How often processes are looked at.
    pub pace: LookPace,
    /// The driver's figures are compared with the charges this often.
    pub reconcile: Duration,
}

impl AttestSettings {
    /// From the flags; `None` if attestation is off.
    #[must_use]
    pub fn of(flags: &Flags, root: &Path, node: &str) -> Option<Self> {
        let policy = match flags.attest {
            Mode::Off => return None,
            Mode::Report => Policy::Report,
            Mode::Evict => Policy::Evict {
                dry_run: flags.attest_evict_dry_run,
                grace: Duration::from_secs(flags.attest_evict_grace.into()),
                every: Duration::from_secs(60),
            },
        };
        let names = |names: &[String]| {
            let names = names.iter().map(|name| name.trim().to_owned());
            names.filter(|name| !name.is_empty()).collect()
        };
        let beside = || root.parent().unwrap_or(root).join("lib");
        Some(Self {
            node: node.to_owned(),
            root: root.to_owned(),
            libraries: flags.attest_libraries.clone().unwrap_or_else(beside),
            library: flags.attest_library.clone(),
            proc: PathBuf::from("/proc"),
            devices: flags.attest_devices.clone(),
            exempt_namespaces: names(&flags.attest_exempt_namespaces),
            exempt_programs: names(&flags.attest_exempt_programs),
            policy,
            pace: LookPace::default(),
            reconcile: Duration::from_secs(10),
        })
    }
}

/// The thread that looks.
#[derive(Debug)]
pub struct Attestation {
    picture: Arc<Mutex<Arc<Picture>>>,
    stop: Arc<AtomicBool>,
}

impl Attestation {
    /// Starts the thread. Without an asker the driver is not queried: memory is then not reconciled, and a
    /// process that hides from `/proc` is not found.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(
        settings: AttestSettings,
        asker: Option<Asker>,
        events: Events,
        cluster: Cluster,
    ) -> std::io::Result<Self> {
        let picture = Arc::new(Mutex::new(Arc::new(Picture {
            node: settings.node.clone(),
            ..Picture::default()
        })));
        let stop = Arc::new(AtomicBool::new(false));
        let (shown, ends) = (Arc::clone(&picture), Arc::clone(&stop));
        std::thread::Builder::new()
            .name(String::from("attest"))
            .spawn(move || Looker::new(settings, asker, events, cluster).run(&shown, &ends))?;
        Ok(Self { picture, stop })
    }

    /// How the processes stand.
    #[must_use]
    pub fn picture(&self) -> Arc<Picture> {
        Arc::clone(&self.picture.lock())
    }
}

impl Drop for Attestation {
    fn drop(&mut self) {
        // Relaxed: the flag guards no other memory.
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Our files and containers are looked for at this interval.
const OURS_EVERY: Duration = Duration::from_secs(5);

/// After this delay a process is reported without the name of its pod.
const NAMED_WITHIN: Duration = Duration::from_secs(60);

struct Looker {
    settings: AttestSettings,
    asker: Option<Asker>,
    cluster: Cluster,
    watch: Watch,
    teller: Teller,
    ours: Ours,
    /// Every library that was ever seen installed: one that was taken away may still be mapped.
    libraries: HashMap<FileId, String>,
    ground: Ground,
    own_pod: Option<String>,
    /// The number of the containers' file system as mappings show it, where it differs from what `stat` says.
    device: Option<(u32, u32)>,
    ours_at: Option<Instant>,
    driver_at: Option<Instant>,
    named: BTreeSet<u32>,
    answer: Option<DriverAnswer>,
    standing: StandingGaps,
    turns: u64,
    complained: bool,
}

impl Looker {
    fn new(
        settings: AttestSettings,
        asker: Option<Asker>,
        events: Events,
        cluster: Cluster,
    ) -> Self {
        let eyes = Eyes::of(settings.proc.clone(), settings.devices.clone());
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let mut ground = Ground {
            exempt_namespaces: settings.exempt_namespaces.clone(),
            exempt_programs: settings.exempt_programs.clone(),
            ..Ground::default()
        };
        ground.newest = newest(&settings).unwrap_or_default();
        let teller = Teller::new(&settings.node, settings.policy, events, cluster.clone());
        Self {
            watch: Watch::new(eyes, settings.pace),
            teller,
            cluster,
            ours: Ours::default(),
            libraries: HashMap::new(),
            ground,
            own_pod: cgroup::of(&own).map(|place| place.pod_uid),
            device: None,
            ours_at: None,
            driver_at: None,
            named: BTreeSet::new(),
            answer: None,
            standing: StandingGaps::default(),
            turns: 0,
            complained: false,
            settings,
            asker,
        }
    }

    fn run(mut self, shown: &Mutex<Arc<Picture>>, stop: &AtomicBool) {
        // Relaxed: the flag guards no other memory.
        while !stop.load(Ordering::Relaxed) {
            let picture = self.turn(Instant::now());
            *shown.lock() = Arc::new(picture);
            std::thread::sleep(self.settings.pace.every);
        }
    }

    fn turn(&mut self, now: Instant) -> Picture {
        let due = |at: Option<Instant>, every: Duration| {
            at.is_none_or(|at| now.saturating_duration_since(at) >= every)
        };
        if due(self.ours_at, OURS_EVERY.min(self.settings.reconcile)) {
            self.read_ours();
            self.ours_at = Some(now);
        }
        let reconciles = due(self.driver_at, self.settings.reconcile);
        let mut views = None;
        if reconciles {
            self.driver_at = Some(now);
            self.answer = self.asker.as_ref().and_then(Asker::ask);
            let processes = self.answer.iter().flat_map(|answer| &answer.processes);
            self.named = processes.map(|process| process.pid).collect();
            views = view::read_all(&self.settings.root)
                .ok()
                .map(|views| views.containers);
            self.read_slots(views.as_deref().unwrap_or_default());
        }
        self.ground.pods = (*self.cluster.pods()).clone();
        if let Err(error) = self.watch.turn(now, &self.ours, &self.ground, &self.named) {
            tracing::warn!(%error, "cannot list processes: nothing is attested");
        }
        self.complain();
        self.tell(now);
        let owners = self.owners();
        if let Some(views) = views {
            self.reconcile(views, &owners, now);
        }
        self.turns = self.turns.saturating_add(1);
        self.picture(owners, now)
    }

    /// The agent's files: libraries, limits, regions; and the containers that they belong to.
    fn read_ours(&mut self) {
        for entry in fs::read_dir(&self.settings.libraries)
            .into_iter()
            .flatten()
            .flatten()
        {
            let version = entry.file_name().to_string_lossy().into_owned();
            // A directory that is being made, or taken away.
            if version.starts_with('.') {
                continue;
            }
            if let Some(id) = file_id(&entry.path().join("libvgpu.so")) {
                self.libraries.insert(id, version);
            }
        }
        // As it lies in a checkout, or where there is no version of it.
        if let Some(id) = file_id(&self.settings.libraries.join("libvgpu.so")) {
            self.libraries.insert(id, self.ground.newest.clone());
        }
        if self.device.is_none() {
            self.device = shown_device(&self.settings.root);
        }
        let mut ours = Ours {
            libraries: self.libraries.clone(),
            ..Ours::default()
        };
        let mut containers: HashMap<PathBuf, ManagedContainer> = HashMap::new();
        let our_uid = nix::unistd::geteuid().as_raw();
        let scan = instance::scan(&self.settings.root, &mut |instance| {
            let path = instance.path().to_owned();
            let mut known = ManagedContainer {
                path: path.clone(),
                ..ManagedContainer::default()
            };
            // The pod's name is used only if root or this process's user wrote it.
            if instance.owner() == 0 || instance.owner() == our_uid {
                let labels = instance.labels().unwrap_or_default();
                known.namespace = labels.namespace;
                known.pod = labels.pod;
                known.pod_uid = labels.pod_uid;
                known.sharers = labels.claim.unwrap_or_default().pods.into_iter().collect();
                known.container = labels.container;
            }
            for (file, files) in [(LIMITS, &mut ours.limits), (REGION, &mut ours.regions)] {
                if let Some(id) = file_id(&path.join(file)) {
                    files.insert(id, path.clone());
                }
            }
            containers.insert(path, known);
        });
        if let Err(error) = scan
            && self.turns == 0
        {
            tracing::debug!(%error, "no container is known yet");
        }
        if let Some(device) = self.device {
            for files in [&mut ours.limits, &mut ours.regions] {
                let again: Vec<_> = files
                    .iter()
                    .map(|(id, path)| (FileId { device, ..*id }, path.clone()))
                    .collect();
                files.extend(again);
            }
            let again: Vec<_> = ours
                .libraries
                .iter()
                .map(|(id, version)| (FileId { device, ..*id }, version.clone()))
                .collect();
            ours.libraries.extend(again);
        }
        // Slots were read by the last comparison.
        for (path, known) in &mut containers {
            if let Some(old) = self.ground.containers.get(path) {
                known.slots.clone_from(&old.slots);
            }
        }
        self.ours = ours;
        self.ground.containers = containers;
    }

    fn read_slots(&mut self, views: &[ContainerView]) {
        for view in views {
            if let Some(known) = self.ground.containers.get_mut(&view.path) {
                known.slots = view.processes.iter().filter_map(|p| p.host_pid).collect();
            }
        }
    }

    fn complain(&mut self) {
        let (_, refused) = self.watch.counts();
        if refused > 0 && !self.complained {
            self.complained = true;
            tracing::warn!(
                refused,
                "some processes may not be looked at: attestation needs the host's pids, CAP_SYS_PTRACE and \
                 CAP_DAC_READ_SEARCH"
            );
        }
    }

    fn is_own(&self, holder: &GpuHolder) -> bool {
        let place = holder.facts.place.as_ref();
        place.is_some_and(|place| Some(&place.pod_uid) == self.own_pod.as_ref())
    }

    fn tell(&mut self, now: Instant) {
        let mut unknown = false;
        let hidden = self.watch.hidden(now);
        let bad: Vec<GpuHolder> = self
            .watch
            .holders()
            .filter(|holder| holder.confirmed && !self.is_own(holder))
            .cloned()
            .chain(hidden)
            .collect();
        for holder in &bad {
            let known = holder.judged.container.as_ref();
            let known = known.and_then(|path| self.ground.containers.get(path));
            if let Some(place) = &holder.facts.place
                && self.ground.pod(known, &place.pod_uid).is_none()
            {
                unknown = true;
                // Reported later, with its name and its namespace's exemption; without them if the name stays
                // unknown.
                if self.cluster.is_asked() && !holder.has_stood(NAMED_WITHIN, now) {
                    continue;
                }
            }
            self.teller.process(holder, &self.ground, now);
        }
        if unknown {
            self.cluster.want();
        }
    }

    fn owners(&self) -> Owners {
        let of = |holder: &GpuHolder| Some((holder.facts.pid, holder.judged.container.clone()?));
        self.watch.holders().filter_map(of).collect()
    }

    fn owner(&self, holder: &GpuHolder) -> Owner {
        if let Some(known) = holder
            .judged
            .container
            .as_ref()
            .and_then(|path| self.ground.containers.get(path))
        {
            return Owner {
                namespace: known.namespace.clone(),
                pod: known.pod.clone(),
                container: known.container.clone(),
            };
        }
        let Some(place) = &holder.facts.place else {
            return Owner::default();
        };
        let (namespace, pod) = match self.ground.pods.get(&place.pod_uid) {
            Some((namespace, pod)) => (namespace.clone(), pod.clone()),
            None => (String::new(), place.pod_uid.clone()),
        };
        Owner {
            namespace,
            pod,
            container: String::new(),
        }
    }

    fn reconcile(&mut self, views: Vec<ContainerView>, owners: &Owners, now: Instant) {
        let Some(answer) = &self.answer else { return };
        let held = &answer.processes;
        let mut gaps = Vec::new();
        for mut view in views {
            view.account(held);
            reconcile::add_slotless(&mut view, held, owners);
            gaps.extend(reconcile::gaps(&view, held, owners));
        }
        let programs: HashMap<u32, String> = self
            .watch
            .holders()
            .map(|holder| (holder.facts.pid, holder.facts.program.clone()))
            .collect();
        for gap in self.standing.take(gaps) {
            if let Some(known) = self.ground.containers.get(&gap.path) {
                self.teller.gap(&gap, known, &programs, now);
            }
        }
    }

    fn picture(&self, owners: Owners, now: Instant) -> Picture {
        let mut picture = Picture {
            node: self.settings.node.clone(),
            turns: self.turns,
            ..Picture::default()
        };
        let hidden: Vec<GpuHolder> = self.watch.hidden(now).collect();
        let mut owner_of: HashMap<u32, Owner> = HashMap::new();
        for holder in self.watch.holders().chain(&hidden) {
            let owner = self.owner(holder);
            owner_of.insert(holder.facts.pid, owner.clone());
            let mut verdict = holder.judged.verdict;
            if self.is_own(holder) {
                verdict = Verdict::Exempt;
            }
            // An unconfirmed verdict is not shown: at its start a process is between two states.
            if verdict.is_bad() && !holder.confirmed {
                continue;
            }
            picture.holders.push(Row {
                pid: holder.facts.pid,
                verdict,
                reason: holder.judged.reason.as_str(),
                owner,
                container: holder.judged.container.clone(),
            });
        }
        let slots: HashSet<u32> = self
            .ground
            .containers
            .values()
            .flat_map(|known| known.slots.iter().copied())
            .collect();
        let held = self
            .answer
            .as_ref()
            .map_or(&[][..], |answer| &answer.processes);
        for ((uuid, pid), bytes) in reconcile::unmanaged(held, &owners, &slots) {
            let owner = owner_of.get(&pid).cloned().unwrap_or_default();
            let sum = picture
                .unmanaged_bytes
                .entry((uuid.to_owned(), owner))
                .or_default();
            *sum = sum.saturating_add(bytes);
        }
        let (processes, unreadable) = self.watch.counts();
        picture.processes = processes as u64;
        picture.unreadable = unreadable as u64;
        picture.owners = owners;
        picture
    }
}

/// The name of the newest library: as the plugin names it, by the release and the file's bytes; where that file is not
/// here, the youngest of the installed directories.
fn newest(settings: &AttestSettings) -> Option<String> {
    if let Ok(bytes) = fs::read(&settings.library) {
        let hash = Sha256::digest(&bytes);
        let hex: String = hash
            .iter()
            .take(6)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        return Some(format!("{}-{hex}", env!("CARGO_PKG_VERSION")));
    }
    let entries = fs::read_dir(&settings.libraries).ok()?.flatten();
    entries
        .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
        .filter(|entry| entry.path().join("libvgpu.so").is_file())
        .max_by_key(|entry| entry.metadata().and_then(|meta| meta.modified()).ok())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
}

/// The number that mappings of files below `path` show. On some file systems (btrfs) it is not what `stat` says.
fn shown_device(path: &Path) -> Option<(u32, u32)> {
    let path = path.canonicalize().ok()?;
    let text = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mount = |line: &str| {
        let mut fields = line.split(' ');
        let (major, minor) = fields.nth(2)?.split_once(':')?;
        let point = PathBuf::from(fields.nth(1)?);
        let device = (major.parse().ok()?, minor.parse().ok()?);
        path.starts_with(&point)
            .then(|| (point.components().count(), device))
    };
    let mounts = text.lines().filter_map(mount);
    // The last of equally long ones lies on top.
    mounts
        .max_by_key(|(depth, _)| *depth)
        .map(|(_, device)| device)
}
