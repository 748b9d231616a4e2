//! The board's memory: one file that every process maps, how much of which GPU each has taken, and
//! what processes hold together. It is the truth that tests compare with. It never sees a pointer:
//! addresses and contents are the driver library's.
//!
//! A process's memory ends with the process, as with the real driver: the next process that looks finds it
//! gone and gives its memory back (after `release_delay_ms`, when a test wants to see that).

mod checkpoint;
mod cut;
mod files;
mod limits;
mod members;
mod trouble;
mod truth;

use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use crate::clock::monotonic_ns;
use crate::config::{self, Config, MAX_GPUS};
use crate::exec::{Exec, ExecConfig};
use crate::groups::Groups;
use crate::mig;
use crate::pci;
use crate::process::{self, Identity};

pub use checkpoint::{Stage, Stays};
pub use limits::{GroupLimit, NO_LIMIT};
pub use trouble::{Driver, UnknownTrouble};

const MAGIC: u64 = u64::from_le_bytes(*b"vgpuboad");
const VERSION: u64 = 9;
/// Processes that can be on the board at once.
pub const MAX_PROCESSES: usize = 1024;
/// Allocations that several processes can hold together at once.
pub const MAX_SHARED: usize = 4096;
/// Processes that can hold one of them.
pub const MAX_HOLDERS: usize = 32;
/// Control groups that can have limits at once.
pub const MAX_GROUPS: usize = 128;

/// Why memory was not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryRefused {
    /// The GPU has no room for it.
    NoMemory,
    /// The board's tables are full.
    NoRoom,
    /// No such thing, or not this process's.
    Unknown,
}

/// The use of a piece of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Asked for by the program.
    Alloc,
    /// The same, managed: no limit of a control group counts it.
    Managed,
    /// Contexts, modules: what the driver takes for itself.
    Overhead,
}

/// A process's place on the board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    index: usize,
    generation: u64,
}

/// An allocation that several processes can hold, the same number for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SharedId(pub u64);

/// The memory that a process has taken of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessUse {
    /// Process id as it sees itself.
    pub pid: u32,
    /// Start time, in clock ticks since boot.
    pub start_time: u64,
    /// Bytes that the program asked for, as the driver rounds them; shared ones with their first
    /// living holder.
    pub alloc_bytes: u64,
    /// Bytes of contexts and modules.
    pub overhead_bytes: u64,
    /// Index of the MIG device that it works on.
    pub instance: Option<u32>,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Use {
    alloc: u64,
    /// The managed part of `alloc`.
    managed: u64,
    overhead: u64,
}

impl Use {
    const NONE: Self = Self {
        alloc: 0,
        managed: 0,
        overhead: 0,
    };
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ProcessMemory {
    identity: Identity,
    generation: u64,
    /// When it was first seen dead, in ns of the machine's clock; 0 while it lives.
    died_ns: u64,
    /// Index of the MIG device that it works on, plus one; 0 is none.
    instance: u64,
    /// The control groups that it was in when it joined.
    groups: Groups,
    uses: [Use; MAX_GPUS],
    /// How far a checkpoint has come with it, as `checkpoint::Stage` numbers it.
    stage: u64,
    /// The memory that it held before, and will take again.
    away: [Use; MAX_GPUS],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Hold {
    /// Index of the process, plus one; 0 is empty.
    process: u32,
    count: u32,
    generation: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct SharedAllocation {
    /// 0 is empty.
    id: u64,
    device: u64,
    bytes: u64,
    /// 1 where descriptors of its file keep it too, as those of a dma-buf do.
    exported: u64,
    holders: [Hold; MAX_HOLDERS],
}

#[repr(C)]
struct DeviceMemory {
    total: u64,
    used: u64,
    faults: u64,
    last_xid: u64,
    lost: u64,
    /// Memory rows wait for a reset to be replaced.
    remap_pending: u64,
    /// A memory row could not be replaced.
    remap_failed: u64,
}

impl DeviceMemory {
    fn met(&mut self, xid: u64) {
        self.faults += 1;
        self.last_xid = xid;
        if xid == 79 {
            self.lost = 1;
        }
    }
}

#[repr(C)]
struct BoardState {
    next_generation: u64,
    next_shared: u64,
    /// No process ever stood at this index or above: what a look at all of them need not read.
    process_end: u64,
    /// The same for shared allocations.
    shared_end: u64,
    /// Shared allocations that descriptors keep: while there is none, no file has to be looked at.
    exports: u64,
    devices: [DeviceMemory; MAX_GPUS],
    cuts: [mig::Cut; MAX_GPUS],
    groups: [limits::Group; MAX_GROUPS],
    processes: [ProcessMemory; MAX_PROCESSES],
    shared: [SharedAllocation; MAX_SHARED],
}

const TEXT: usize = 4096;

#[repr(C)]
struct MemoryArea {
    magic: AtomicU64,
    version: u64,
    boot_id: [u8; 40],
    seed: u64,
    gpus: u64,
    driver_version: AtomicU64,
    context_bytes: u64,
    release_delay_ns: u64,
    topology: [u8; TEXT],
    faults: [u8; TEXT],
    /// 1 where the driver does the opposite of its usual choices.
    contrary: u64,
    nvml: [u8; TEXT],
    missing: [u8; TEXT],
    pci: [u8; TEXT],
    /// How the driver is, as `trouble::Driver` numbers it.
    driver: AtomicU64,
    /// 1 while some process may be locked by a checkpoint.
    any_halted: AtomicU64,
    lock: libc::pthread_mutex_t,
    state: BoardState,
}

/// One process's view of the board's memory.
#[derive(Debug)]
pub struct Board {
    map: MmapRaw,
    path: PathBuf,
}

impl Board {
    /// Joins the board that the environment names, and makes it when there is none.
    ///
    /// # Errors
    /// When the settings are not understood, or the file cannot be made, mapped, or is another's.
    pub fn from_env() -> io::Result<Self> {
        let path = config::board_path();
        let config = Config::from_env().map_err(invalid)?;
        Self::create(&path, &config)
    }

    /// Makes the board at `path`, or joins it as it is when it is there.
    ///
    /// # Errors
    /// When the file cannot be made, mapped, or is another's.
    pub fn create(path: &Path, config: &Config) -> io::Result<Self> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o666)
            .open(path)?;
        Self::join_file(path, &file, Some(config))
    }

    /// Opens a board that is there.
    ///
    /// # Errors
    /// When there is none, or the file is another's.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Self::join_file(path, &file, None)
    }

    fn join_file(path: &Path, file: &File, config: Option<&Config>) -> io::Result<Self> {
        let not_ours = || {
            invalid(format!(
                "{} is not a board of this version; remove it, or name another in VGPU_SIM_BOARD",
                path.display()
            ))
        };
        let _locked = process::FileLock::take(file)?;
        let fresh = file.metadata()?.len() == 0;
        if fresh {
            if config.is_none() {
                return Err(not_ours());
            }
            file.set_len(size_of::<MemoryArea>() as u64)?;
        } else if file.metadata()?.len() != size_of::<MemoryArea>() as u64 {
            return Err(not_ours());
        }
        // Best effort: the creator's umask must not keep another user's programs off the board.
        drop(file.set_permissions(fs::Permissions::from_mode(0o666)));
        let board = Self {
            map: MmapOptions::new().map_raw(file)?,
            path: path.to_owned(),
        };
        // Acquire: what was written before the magic is seen.
        let magic = board.area().magic.load(Ordering::Acquire);
        let earlier_boot = magic == MAGIC && board.area().boot_id != process::boot_id();
        match config {
            Some(config) if magic == 0 || earlier_boot => {
                // All zeros again: no process is left that used what was there.
                file.set_len(0)?;
                file.set_len(size_of::<MemoryArea>() as u64)?;
                board.init(config)?;
            }
            _ if magic != MAGIC || board.area().version != VERSION => return Err(not_ours()),
            _ => {}
        }
        Ok(board)
    }

    /// Makes the board in a file of zeros. Its tables are empty then: three megabytes are not written.
    fn init(&self, config: &Config) -> io::Result<()> {
        // SAFETY: the file has an Area's size, and the file lock keeps every other process out of
        // it until the magic is published.
        let area = unsafe { &mut *self.map.as_mut_ptr().cast::<MemoryArea>() };
        // SeqCst: no process may take an old magic for the new content.
        area.magic.store(0, Ordering::SeqCst);
        area.version = VERSION;
        area.boot_id = process::boot_id();
        area.seed = seed_of(&self.path);
        area.gpus = config.memory_bytes.len().min(MAX_GPUS) as u64;
        area.driver_version = AtomicU64::new(config.driver_version.into());
        area.context_bytes = config.context_bytes;
        area.release_delay_ns = config.release_delay_ms.saturating_mul(1_000_000);
        area.topology = text(&config.topology)?;
        area.faults = text(&config.faults)?;
        area.contrary = u64::from(config.contrary);
        area.nvml = text(&config.nvml)?;
        area.missing = text(&config.missing)?;
        let set = pci::parse(&config.pci).map_err(invalid)?;
        let places = pci::chosen(set, Path::new("/sys"), config.memory_bytes.len());
        let places: Vec<String> = places.iter().map(ToString::to_string).collect();
        area.pci = text(&places.join(","))?;
        // Relaxed: published by the magic.
        area.driver.store(0, Ordering::Relaxed);
        area.any_halted.store(0, Ordering::Relaxed);
        process::init_robust(&mut area.lock)?;
        area.state.next_generation = 1;
        area.state.next_shared = 1;
        area.state.process_end = 0;
        area.state.shared_end = 0;
        area.state.exports = 0;
        area.state.groups = [limits::Group::EMPTY; MAX_GROUPS];
        for (device, &bytes) in area.state.devices.iter_mut().zip(&config.memory_bytes) {
            *device = DeviceMemory {
                total: bytes,
                used: 0,
                faults: 0,
                last_xid: 0,
                lost: 0,
                remap_pending: 0,
                remap_failed: 0,
            };
        }
        for (gpu, xid) in crate::faults::xids(&config.faults) {
            if let Some(device) = area.state.devices.get_mut(gpu) {
                device.met(xid);
            }
        }
        let cuts = mig::parse(&config.mig).map_err(invalid)?;
        area.state.cuts = [mig::Cut::NONE; MAX_GPUS];
        for (gpu, sizes) in cuts {
            if let Some(cut) = area.state.cuts.get_mut(gpu) {
                let no_room = |_| invalid(format!("no room for MIG devices of {sizes:?} sevenths"));
                *cut = mig::Cut::into(&sizes).map_err(no_room)?;
            }
        }
        // The work of an earlier board at this path belongs to no process.
        drop(fs::remove_file(self.exec_path()));
        let exec = ExecConfig {
            clock: config.clock,
            script: config.script.clone(),
            mps: config.mps,
        };
        Exec::open(&self.exec_path(), &exec)?;
        // Release: pairs with the Acquire of a process that joins.
        area.magic.store(MAGIC, Ordering::Release);
        Ok(())
    }

    fn area(&self) -> &MemoryArea {
        // SAFETY: the mapping has an Area's size and lives as long as self; what others write in it
        // is atomic, or under the lock, or was written before the magic.
        unsafe { &*self.map.as_ptr().cast::<MemoryArea>() }
    }

    fn lock(&self) -> process::Locked<'_, BoardState> {
        let area = self.map.as_mut_ptr().cast::<MemoryArea>();
        // SAFETY: the mapping holds an Area; only the address is taken.
        let lock = unsafe { &raw mut (*area).lock };
        // SAFETY: the mapping holds an Area; only the address of another field is taken.
        let state = unsafe { &raw mut (*area).state };
        // SAFETY: both live in the mapping, which self keeps; the mutex was made by `init` and
        // guards this state.
        unsafe { process::Locked::take(lock, state, BoardState::repair) }
    }

    /// Where the board is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The board's clock and the GPUs' work.
    ///
    /// # Errors
    /// When its file cannot be mapped.
    pub fn exec(&self) -> io::Result<Exec> {
        Exec::open(&self.exec_path(), &ExecConfig::default())
    }

    fn exec_path(&self) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(".exec");
        PathBuf::from(name)
    }

    /// The directory beside it, for memory that processes share.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn shared_dir(&self) -> io::Result<PathBuf> {
        files::directory(&self.path)
    }

    /// How many GPUs it has.
    #[must_use]
    pub fn gpus(&self) -> usize {
        (self.area().gpus as usize).min(MAX_GPUS)
    }

    /// The CUDA version that the driver reports.
    #[must_use]
    pub fn driver_version(&self) -> u32 {
        // Relaxed: the word guards no other memory.
        self.area().driver_version.load(Ordering::Relaxed) as u32
    }

    /// The memory of a context, in bytes.
    #[must_use]
    pub fn context_bytes(&self) -> u64 {
        self.area().context_bytes
    }

    /// How the GPUs reach each other, as the creator's settings said.
    #[must_use]
    pub fn topology(&self) -> String {
        untext(&self.area().topology)
    }

    /// Whether the driver does the opposite of its usual choices wherever CUDA leaves one.
    #[must_use]
    pub fn is_contrary(&self) -> bool {
        self.area().contrary != 0
    }

    /// The missing parts of NVML, from the creator's settings.
    #[must_use]
    pub fn nvml(&self) -> String {
        untext(&self.area().nvml)
    }

    /// Functions that the libraries do not have, as the creator's settings said.
    #[must_use]
    pub fn missing(&self) -> String {
        untext(&self.area().missing)
    }

    /// Where a GPU stands on the PCI bus.
    #[must_use]
    pub fn pci(&self, gpu: usize) -> pci::Address {
        let places = pci::parse(&untext(&self.area().pci)).unwrap_or_default();
        let place = places.get(gpu).copied();
        place.unwrap_or_else(|| pci::Address::default_of(gpu))
    }

    /// Faults on demand, as the creator's settings said.
    #[must_use]
    pub fn faults(&self) -> String {
        untext(&self.area().faults)
    }

    /// A GPU's 16 bytes of identity: the same for all processes, different on another board.
    #[must_use]
    pub fn uuid_bytes(&self, gpu: usize) -> [u8; 16] {
        let mut bytes = [0; 16];
        let first = mix(self.area().seed ^ (gpu as u64 + 1));
        bytes[..8].copy_from_slice(&first.to_be_bytes());
        bytes[8..].copy_from_slice(&mix(first).to_be_bytes());
        bytes
    }

    /// The same as NVML and `CUDA_VISIBLE_DEVICES` write it.
    #[must_use]
    pub fn uuid(&self, gpu: usize) -> String {
        let hex: String = self
            .uuid_bytes(gpu)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!(
            "GPU-{}-{}-{}-{}-{}",
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..]
        )
    }

    /// Memory of a GPU, in bytes; 0 when there is no such GPU.
    #[must_use]
    pub fn total_bytes(&self, gpu: usize) -> u64 {
        if gpu < self.gpus() {
            self.lock().devices[gpu].total
        } else {
            0
        }
    }
}

impl ProcessMemory {
    fn is_same_process(&self, identity: &Identity) -> bool {
        self.generation != 0
            && self.identity.pid == identity.pid
            && self.identity.start_time == identity.start_time
            && self.identity.pid_namespace == identity.pid_namespace
    }
}

fn instance_of(process: &ProcessMemory) -> Option<u32> {
    process.instance.checked_sub(1).map(|index| index as u32)
}

impl BoardState {
    /// After a holder of the lock died: `used` is derived from what each process holds.
    fn repair(&mut self) {
        for gpu in 0..MAX_GPUS {
            let own: u64 = self
                .processes
                .iter()
                .filter(|process| process.generation != 0)
                .map(|process| process.uses[gpu].alloc + process.uses[gpu].overhead)
                .sum();
            let shared: u64 = self
                .shared()
                .iter()
                .filter(|shared| shared.id != 0 && shared.device as usize == gpu)
                .map(|shared| shared.bytes)
                .sum();
            self.devices[gpu].used = own + shared;
        }
    }

    fn own(&self, member: Member) -> Option<&ProcessMemory> {
        self.processes
            .get(member.index)
            .filter(|process| process.generation == member.generation)
    }

    fn has_room(&self, gpu: usize, bytes: u64) -> bool {
        let device = &self.devices[gpu];
        device
            .used
            .checked_add(bytes)
            .is_some_and(|used| used <= device.total)
    }

    /// Bytes of a GPU that processes of one MIG device of it have taken.
    fn part_used(&self, gpu: usize, instance: Option<u32>) -> u64 {
        let is_of = |process: &ProcessMemory| instance_of(process) == instance;
        let managed: u64 = self
            .living()
            .filter(|process| is_of(process))
            .map(|process| process.uses[gpu].managed)
            .sum();
        self.used_by(gpu, is_of) + managed
    }

    fn living(&self) -> impl Iterator<Item = &ProcessMemory> {
        let all = self.processes[..self.process_end()].iter();
        all.filter(|process| process.generation != 0)
    }

    /// Bytes of a GPU that some processes have taken, without managed memory.
    fn used_by(&self, gpu: usize, is_of: impl Fn(&ProcessMemory) -> bool) -> u64 {
        let own: u64 = self
            .living()
            .filter(|process| is_of(process))
            .map(|process| &process.uses[gpu])
            .map(|uses| (uses.alloc + uses.overhead).saturating_sub(uses.managed))
            .sum();
        let of_first_holder = |shared: &&SharedAllocation| {
            let first = shared.holders.iter().find(|holder| holder.process != 0);
            first.is_some_and(|first| is_of(&self.processes[first.process as usize - 1]))
        };
        let shared: u64 = self
            .shared()
            .iter()
            .filter(|shared| shared.id != 0 && shared.device as usize == gpu)
            .filter(of_first_holder)
            .map(|shared| shared.bytes)
            .sum();
        own + shared
    }

    fn process_end(&self) -> usize {
        (self.process_end as usize).min(MAX_PROCESSES)
    }

    fn shared(&self) -> &[SharedAllocation] {
        &self.shared[..(self.shared_end as usize).min(MAX_SHARED)]
    }

    fn shared_mut(&mut self, id: SharedId) -> Option<&mut SharedAllocation> {
        let end = (self.shared_end as usize).min(MAX_SHARED);
        self.shared[..end]
            .iter_mut()
            .find(|shared| shared.id == id.0 && id.0 != 0)
    }

    fn drop_if_unheld(&mut self, id: SharedId) -> bool {
        let Some(shared) = self.shared_mut(id) else {
            return true;
        };
        // Memory that descriptors keep is freed once they are closed.
        if shared.exported != 0 || shared.holders.iter().any(|holder| holder.process != 0) {
            return false;
        }
        let (gpu, bytes) = (shared.device as usize, shared.bytes);
        shared.id = 0;
        self.devices[gpu].used = self.devices[gpu].used.saturating_sub(bytes);
        true
    }

    fn reap(&mut self, delay_ns: u64, board: &Path) {
        for index in 0..self.process_end() {
            let process = &self.processes[index];
            if process.generation == 0 || process.identity.is_alive() {
                continue;
            }
            // A forked child has the device open too, and the memory goes with the last of them.
            if files::stands(board, process.generation) {
                continue;
            }
            let now_ns = monotonic_ns().max(1);
            let died_ns = match process.died_ns {
                0 => now_ns,
                seen => seen,
            };
            self.processes[index].died_ns = died_ns;
            if now_ns.saturating_sub(died_ns) >= delay_ns {
                files::leave(board, self.processes[index].generation);
                self.release(index);
            }
        }
    }

    fn release(&mut self, index: usize) {
        for gpu in 0..MAX_GPUS {
            let uses = self.processes[index].uses[gpu];
            let bytes = uses.alloc + uses.overhead;
            self.devices[gpu].used = self.devices[gpu].used.saturating_sub(bytes);
        }
        let generation = self.processes[index].generation;
        self.processes[index].generation = 0;
        self.processes[index].stage = 0;
        let own = index as u32 + 1;
        for slot in 0..self.shared().len() {
            if self.shared[slot].id == 0 {
                continue;
            }
            for holder in &mut self.shared[slot].holders {
                if holder.process == own && holder.generation == generation {
                    holder.process = 0;
                }
            }
            self.drop_if_unheld(SharedId(self.shared[slot].id));
        }
    }
}

fn invalid(why: impl Into<Box<dyn Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn text(from: &str) -> io::Result<[u8; TEXT]> {
    let mut to = [0; TEXT];
    if from.len() >= TEXT {
        return Err(invalid(format!("a setting of {} bytes", from.len())));
    }
    to[..from.len()].copy_from_slice(from.as_bytes());
    Ok(to)
}

fn untext(from: &[u8; TEXT]) -> String {
    let end = from.iter().position(|&byte| byte == 0).unwrap_or(TEXT);
    String::from_utf8_lossy(&from[..end]).into_owned()
}

/// From the path, so that a board's UUIDs are the same each time it is made there.
fn seed_of(path: &Path) -> u64 {
    path.as_os_str()
        .as_encoded_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |seed, &byte| {
            mix(seed ^ u64::from(byte))
        })
}

/// The finaliser of splitmix64.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board() -> (tempfile::TempDir, Board) {
        let directory = tempfile::tempdir().unwrap();
        let config = Config {
            memory_bytes: vec![1 << 30; 2],
            ..Config::default()
        };
        let board = Board::create(&directory.path().join("board"), &config).unwrap();
        (directory, board)
    }

    #[test]
    fn memory_past_the_gpu_is_refused_and_takes_nothing() {
        let (_directory, board) = board();
        let me = board.join().unwrap();

        assert_eq!(board.take(me, 0, 1 << 29, Kind::Alloc), Ok(()));
        assert_eq!(
            board.take(me, 0, (1 << 29) + 1, Kind::Alloc),
            Err(MemoryRefused::NoMemory)
        );

        assert_eq!(board.used_bytes(0), 1 << 29);
        assert_eq!(board.used_bytes(1), 0);
    }

    #[test]
    fn a_killed_process_gives_its_memory_back() {
        let (_directory, board) = board();
        // SAFETY: the child only uses the board, then is killed; it never returns into the test.
        let child = unsafe { libc::fork() };
        if child == 0 {
            if let Ok(me) = board.join() {
                let taken = board.take(me, 0, 1 << 20, Kind::Alloc);
                taken
                    .and_then(|()| board.share(me, 0, 1 << 19).map(drop))
                    .ok();
            }
            loop {
                // SAFETY: waits for the signal.
                unsafe { libc::pause() };
            }
        }
        while board.used_bytes(0) == 0 || board.shared_bytes(0) == 0 {
            std::thread::yield_now();
        }
        // SAFETY: our own child.
        unsafe { libc::kill(child, libc::SIGKILL) };
        // SAFETY: waits for it; it may stay a zombie until then, and a zombie holds no memory.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };

        assert_eq!(board.used_bytes(0), 0);
        assert!(board.processes(0).is_empty());
    }

    #[test]
    fn shared_memory_lives_until_its_last_holder_lets_go() {
        let (_directory, board) = board();
        let me = board.join().unwrap();
        board.take(me, 1, 4096, Kind::Alloc).unwrap();

        let id = board.share(me, 1, 4096).unwrap();
        board.hold(me, id).unwrap();

        assert!(!board.let_go(me, id));
        assert_eq!(board.used_bytes(1), 4096);
        assert!(board.let_go(me, id));
        assert_eq!(board.used_bytes(1), 0);
    }

    #[test]
    fn uuids_differ_and_stay() {
        let (directory, board) = board();
        let again = Board::open(&directory.path().join("board")).unwrap();

        assert_ne!(board.uuid(0), board.uuid(1));
        assert_eq!(board.uuid(0), again.uuid(0));
        assert_eq!(board.uuid(0).len(), 40);
    }

    #[test]
    fn a_file_that_is_no_board_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("board");
        fs::write(&path, "not a board").unwrap();

        let error = Board::create(&path, &Config::default()).unwrap_err();

        assert!(error.to_string().contains("not a board"), "{error}");
    }

    #[test]
    fn a_process_on_a_mig_device_has_no_more_room_than_that() {
        let directory = tempfile::tempdir().unwrap();
        let config = Config {
            memory_bytes: vec![16 << 30],
            mig: "0=1g,3g".to_owned(),
            ..Config::default()
        };
        let board = Board::create(&directory.path().join("board"), &config).unwrap();
        let me = board.join().unwrap();
        board.settle(me, 0);

        assert_eq!(board.take(me, 0, 2 << 30, Kind::Alloc), Ok(()));
        assert_eq!(
            board.take(me, 0, 512, Kind::Alloc),
            Err(MemoryRefused::NoMemory)
        );
        assert_eq!(board.processes(0)[0].instance, Some(0));
    }
}
