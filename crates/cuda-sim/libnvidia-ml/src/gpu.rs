//! One GPU as this library shows it, over the board. Everything that comes from `cuda_sim` comes
//! through here.

use std::sync::OnceLock;
use std::time::Duration;

use cuda_api::nvml::{NO_INSTANCE, NvmlReturn};
use cuda_sim::Board;
use cuda_sim::board::{Driver, GroupLimit, NO_LIMIT};
use cuda_sim::exec::Exec;
use cuda_sim::faults::Faults;
use cuda_sim::groups::Groups;
use cuda_sim::lacks::{self, Lacks};
use cuda_sim::mig::{self, Instance};
use cuda_sim::nodes::Nodes;
use cuda_sim::pci::Address;
use cuda_sim::topology::Path;

use crate::late::{self, Process};

pub(crate) const SM_MHZ_LEAST: u32 = 210;
pub(crate) const SM_MHZ_MOST: u32 = 1_410;

/// How busy a process kept a GPU in one sampling period.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ProcessSample {
    pub(crate) pid: u32,
    /// When, in microseconds since the epoch.
    pub(crate) time_us: u64,
    /// Percent of the period in which its kernels ran.
    pub(crate) sm: u32,
    /// Percent of the period in which they used memory.
    pub(crate) memory: u32,
}

/// The board, and the work on it.
struct Machine {
    board: Board,
    /// `None` when NVML cannot tell which process is busy; then none is.
    work: Option<Exec>,
    faults: Faults,
    nodes: Nodes,
    lacks: Lacks,
}

static MACHINE: OnceLock<Option<Machine>> = OnceLock::new();

/// Opens the board, once.
pub(crate) fn open() -> Result<(), NvmlReturn> {
    machine().map(|_| ()).ok_or(NvmlReturn::DRIVER_NOT_LOADED)
}

fn machine() -> Option<&'static Machine> {
    MACHINE
        .get_or_init(|| match join() {
            Ok(machine) => Some(machine),
            Err(error) => {
                // The real library says nothing either; set the variable to learn why.
                if let Some(path) = std::env::var_os("VGPU_SIM_LOG") {
                    drop(std::fs::write(path, format!("nvmlInit: {error}\n")));
                }
                None
            }
        })
        .as_ref()
}

fn join() -> std::io::Result<Machine> {
    let board = Board::from_env()?;
    let own = std::env::var("VGPU_SIM_NVML").ok();
    let lacks = lacks::of(own.as_deref(), &board.nvml(), board.is_contrary());
    if lacks.absent {
        return Err(std::io::Error::other(
            "VGPU_SIM_NVML says that it is absent",
        ));
    }
    let work = board.exec().ok();
    let faults = Faults::parse(&board.faults());
    let nodes = Nodes::from_env(board.gpus(), false)
        .ok_or_else(|| std::io::Error::other("no nvidiactl in VGPU_SIM_DEVICES_DIR"))?;
    Ok(Machine {
        board,
        work,
        faults,
        nodes,
        lacks,
    })
}

fn board() -> Option<&'static Board> {
    machine().map(|machine| &machine.board)
}

/// The missing parts of this NVML.
pub(crate) fn lacks() -> Lacks {
    machine().map(|machine| machine.lacks).unwrap_or_default()
}

fn work() -> Option<&'static Exec> {
    machine()?.work.as_ref()
}

/// Lets this much of the board's time go by in this thread, nanoseconds.
pub(crate) fn spend(ns: u64) {
    if let Some(work) = work() {
        work.clock().spend(ns);
    }
}

/// The faults of calls that the board was made with.
pub(crate) fn faults() -> Option<&'static Faults> {
    machine().map(|machine| &machine.faults)
}

/// Waits while the driver hangs; fails where it is gone or of another version than this library, as it says to `begins`
/// (an `nvmlInit`) and to those that were there before.
pub(crate) fn driver_answers(begins: bool) -> Result<(), NvmlReturn> {
    // Not opened by asking: a program that has not begun knows no board.
    let Some(Some(machine)) = MACHINE.get() else {
        return Ok(());
    };
    loop {
        match machine.board.driver() {
            Driver::Well => return Ok(()),
            Driver::Hangs => std::thread::sleep(Duration::from_millis(5)),
            Driver::Replaced if begins => return Err(NvmlReturn::LIB_RM_VERSION_MISMATCH),
            Driver::Unloaded if begins => return Err(NvmlReturn::DRIVER_NOT_LOADED),
            Driver::Replaced | Driver::Unloaded => return Err(NvmlReturn::UNKNOWN),
        }
    }
}

/// How many GPUs this process was given.
pub(crate) fn count() -> usize {
    machine().map_or(0, |machine| machine.nodes.gpus.len())
}

/// The CUDA version that the driver reports: 1000 × major + 10 × minor.
pub(crate) fn cuda_version() -> i32 {
    board().map_or(0, |board| board.driver_version() as i32)
}

/// The MIG device with this UUID.
pub(crate) fn instance_named(uuid: &str) -> Option<(BoardGpu, Instance)> {
    let (gpu, instance) = board()?.instance_named(uuid)?;
    let opens = machine()?.nodes.opens(gpu, instance.index);
    opens.then_some((BoardGpu(gpu), instance))
}

/// A GPU of the board, by the place that it has there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BoardGpu(usize);

impl BoardGpu {
    /// The GPU with this index.
    pub(crate) fn at(index: usize) -> Option<BoardGpu> {
        machine()?.nodes.gpu(index).map(BoardGpu)
    }

    /// All of them.
    pub(crate) fn all() -> impl Iterator<Item = BoardGpu> {
        (0..count()).filter_map(BoardGpu::at)
    }

    /// Where this process sees it.
    pub(crate) fn index(self) -> usize {
        machine()
            .and_then(|machine| machine.nodes.index(self.0))
            .unwrap_or(self.0)
    }

    /// The number of its device node, the same for all processes.
    pub(crate) fn minor(self) -> u32 {
        self.0 as u32
    }

    pub(crate) fn uuid(self) -> String {
        board().map(|board| board.uuid(self.0)).unwrap_or_default()
    }

    pub(crate) fn serial(self) -> String {
        let digits: String = self
            .uuid()
            .bytes()
            .map(|byte| char::from(b'0' + byte % 10))
            .collect();
        digits.get(4..17).unwrap_or("0").to_owned()
    }

    pub(crate) fn name(self) -> String {
        "Simulated GPU".to_owned()
    }

    pub(crate) fn total(self) -> u64 {
        board().map_or(0, |board| board.total_bytes(self.0))
    }

    /// Kept by driver and firmware.
    pub(crate) fn reserved(self) -> u64 {
        0
    }

    /// Used by processes, in bytes.
    pub(crate) fn used(self) -> u64 {
        board().map_or(0, |board| board.used_bytes(self.0))
    }

    /// Its UUID's 16 bytes.
    pub(crate) fn uuid_bytes(self) -> [u8; 16] {
        board().map_or([0; 16], |board| board.uuid_bytes(self.0))
    }

    /// Its size and use as processes of these control groups see them, if a limit holds for them.
    pub(crate) fn seen_from(self, groups: &Groups) -> Option<(u64, u64)> {
        board()?.seen_from(self.0, groups)
    }

    /// Limits a control group. Answers whether there was room for one more.
    pub(crate) fn limit_group(
        self,
        groups: &Groups,
        directory: &std::path::Path,
        limit: GroupLimit,
    ) -> bool {
        board().is_some_and(|board| board.limit_group(self.0, groups, directory, limit))
    }

    /// A control group's limits, and the memory that they count.
    pub(crate) fn group_limit(self, groups: &Groups) -> (GroupLimit, u64) {
        let none = GroupLimit {
            soft: 0,
            hard: NO_LIMIT,
        };
        board().map_or((none, 0), |board| board.group_limit(self.0, groups))
    }

    /// Where it stands on the PCI bus.
    pub(crate) fn pci(self) -> Address {
        board().map_or_else(|| Address::default_of(self.0), |board| board.pci(self.0))
    }

    pub(crate) fn capability(self) -> (i32, i32) {
        (9, 0)
    }

    pub(crate) fn multiprocessors(self) -> u32 {
        132
    }

    /// Whether it is in MIG mode.
    pub(crate) fn is_mig(self) -> bool {
        board().is_some_and(|board| board.is_mig(self.0))
    }

    /// The GPU instances that it is cut into, those without a compute instance too.
    pub(crate) fn gpu_instances(self) -> Vec<Instance> {
        board()
            .map(|board| board.gpu_instances(self.0))
            .unwrap_or_default()
    }

    /// Cuts it, or takes a cut back.
    pub(crate) fn cut<T>(
        self,
        how: impl FnOnce(&Board, usize) -> Result<T, mig::InstanceRefused>,
    ) -> Result<T, NvmlReturn> {
        let board = board().ok_or(NvmlReturn::UNINITIALIZED)?;
        how(board, self.0).map_err(|refused| match refused {
            mig::InstanceRefused::Off => NvmlReturn::NOT_SUPPORTED,
            mig::InstanceRefused::NoRoom => NvmlReturn::INSUFFICIENT_RESOURCES,
            mig::InstanceRefused::Misplaced => NvmlReturn::INVALID_ARGUMENT,
            mig::InstanceRefused::Unknown => NvmlReturn::NOT_FOUND,
            mig::InstanceRefused::InUse => NvmlReturn::IN_USE,
        })
    }

    /// How it reaches another GPU.
    pub(crate) fn path_to(self, other: BoardGpu) -> Option<Path> {
        board().map(|board| board.path_between(self.0, other.0))
    }

    /// The GPU at the other end of each of its NVLinks.
    pub(crate) fn link_ends(self) -> Vec<BoardGpu> {
        let ends = board().map(|board| board.link_ends(self.0));
        ends.unwrap_or_default().into_iter().map(BoardGpu).collect()
    }

    /// The MIG devices that it is cut into, as far as this process can open them.
    pub(crate) fn instances(self) -> Vec<Instance> {
        let Some(machine) = machine() else {
            return Vec::new();
        };
        let mut instances = machine.board.instances(self.0);
        instances.retain(|instance| machine.nodes.opens(self.0, instance.index));
        instances
    }

    /// One of them.
    pub(crate) fn instance(self, index: u32) -> Option<Instance> {
        self.instances()
            .into_iter()
            .find(|instance| instance.index == index)
    }

    /// The name of one of them.
    pub(crate) fn instance_uuid(self, index: u32) -> String {
        board()
            .map(|board| board.instance_uuid(self.0, index))
            .unwrap_or_default()
    }

    /// Whether an MPS server runs its kernels.
    pub(crate) fn is_mps(self) -> bool {
        work().is_some_and(Exec::is_mps)
    }

    /// Whether it fell off the bus.
    pub(crate) fn lost(self) -> bool {
        board().is_some_and(|board| board.is_lost(self.0))
    }

    /// Whether memory rows wait for a reset to be replaced, and whether one could not be.
    pub(crate) fn remaps(self) -> (bool, bool) {
        board().map_or((false, false), |board| board.remaps(self.0))
    }

    /// How many faults it has had, and the XID of the last.
    pub(crate) fn faults(self) -> (u64, u64) {
        board().map_or((0, 0), |board| board.fault_count(self.0))
    }

    /// The processes that compute on it, as far and as soon as this NVML tells.
    pub(crate) fn processes(self) -> Vec<Process> {
        let lacks = lacks();
        if lacks.processes {
            return Vec::new();
        }
        let now = self.processes_now();
        if lacks.late {
            late::told(self.0, now)
        } else {
            now
        }
    }

    fn processes_now(self) -> Vec<Process> {
        let parts = self.gpu_instances();
        let processes = board()
            .map(|board| board.processes(self.0))
            .unwrap_or_default();
        processes
            .into_iter()
            .map(|process| Process {
                pid: process.pid,
                bytes: process.alloc_bytes + process.overhead_bytes,
                instance: process
                    .instance
                    .and_then(|index| parts.iter().find(|part| part.index == index))
                    .map_or(NO_INSTANCE, |part| part.gpu_instance),
            })
            .collect()
    }

    /// Samples of processes that are newer than `last_seen` (microseconds since the epoch).
    pub(crate) fn process_samples(self, last_seen: u64) -> Vec<ProcessSample> {
        let Some(work) = work() else {
            return Vec::new();
        };
        work.process_utilization(self.0, work.board_ns(last_seen))
            .into_iter()
            .map(|sample| ProcessSample {
                pid: sample.pid,
                time_us: work.unix_us(sample.time_ns),
                sm: sample.sm_percent,
                memory: sample.memory_percent,
            })
            .filter(|sample| sample.time_us > last_seen)
            .collect()
    }

    /// Samples of the whole GPU that are newer than `last_seen` (microseconds since the epoch).
    pub(crate) fn samples(self, last_seen: u64) -> Vec<ProcessSample> {
        let Some(work) = work() else {
            return Vec::new();
        };
        work.device_samples(self.0, work.board_ns(last_seen))
            .into_iter()
            .map(|sample| ProcessSample {
                pid: 0,
                time_us: work.unix_us(sample.time_ns),
                sm: sample.sm_percent,
                memory: sample.memory_percent,
            })
            .filter(|sample| sample.time_us > last_seen)
            .collect()
    }

    /// The present, in microseconds since the epoch, on the board's clock.
    pub(crate) fn now_us(self) -> u64 {
        work().map_or(0, |work| work.unix_us(work.clock().now()))
    }

    /// Percent of the last sampling period in which a kernel ran, and in which memory was used.
    pub(crate) fn utilization(self) -> (u32, u32) {
        work().map_or((0, 0), |work| {
            let sample = work.device_utilization(self.0);
            (sample.sm_percent, sample.memory_percent)
        })
    }

    pub(crate) fn sm_mhz(self) -> u32 {
        if self.utilization().0 == 0 {
            SM_MHZ_LEAST
        } else {
            SM_MHZ_MOST
        }
    }

    pub(crate) fn celsius(self) -> u32 {
        31 + self.utilization().0 * 40 / 100
    }

    pub(crate) fn power_mw(self) -> u32 {
        power_mw(self.utilization().0)
    }

    /// Energy since the machine's midnight, in millijoules: the use of an idle GPU, and the kernels' use on top of it.
    pub(crate) fn energy_mj(self) -> u64 {
        let idle = self.now_us() / 1_000_000 % 86_400 * u64::from(power_mw(0));
        idle + self.busy_ns() / 1_000_000 * u64::from(power_mw(100) - power_mw(0)) / 1_000
    }

    fn busy_ns(self) -> u64 {
        work().map_or(0, |work| work.device_busy_ns(self.0))
    }

    /// KiB sent over one NVLink, and as much received: made up, 10 GB for each second of work.
    pub(crate) fn link_kib(self) -> u64 {
        self.busy_ns() / 100
    }

    /// Bytes sent over PCIe, half of what is received: made up, 1 GB for each second of work.
    pub(crate) fn pcie_bytes(self) -> u64 {
        self.busy_ns()
    }
}

/// The power that a GPU draws at this utilisation (percent), in milliwatts.
pub(crate) fn power_mw(percent: u32) -> u32 {
    52_000 + percent * 2_300
}
