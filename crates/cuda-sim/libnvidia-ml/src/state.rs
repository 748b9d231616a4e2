//! Whether the library is initialised, and the meaning of handles. Owns the count of `nvmlInit` calls; of the board
//! it only holds which one it is.

use std::sync::atomic::{AtomicU32, Ordering};

use cuda_api::nvml::{NvmlComputeInstance, NvmlDevice, NvmlGpuInstance, NvmlReturn};
use cuda_sim::mig::Instance;

use crate::border::Answer;
use crate::gpu::{self, BoardGpu};

static USERS: AtomicU32 = AtomicU32::new(0);

/// Counts one more user; the first one opens the board.
pub(crate) fn init(gpus_needed: bool) -> Answer {
    gpu::open()?;
    if gpus_needed && gpu::count() == 0 {
        return Err(NvmlReturn::DRIVER_NOT_LOADED);
    }
    // Relaxed: the count guards no other memory.
    USERS.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Counts one user less.
pub(crate) fn shutdown() -> Answer {
    // Relaxed: the count guards no other memory.
    USERS
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |users| {
            users.checked_sub(1)
        })
        .map(|_| ())
        .map_err(|_| NvmlReturn::UNINITIALIZED)
}

/// Fails before the first `nvmlInit` and after the last `nvmlShutdown`.
pub(crate) fn ready() -> Answer {
    // Relaxed: the count guards no other memory.
    if USERS.load(Ordering::Relaxed) == 0 {
        return Err(NvmlReturn::UNINITIALIZED);
    }
    Ok(())
}

/// The checks before a call is answered: the driver's present state, and the board's faults.
pub(crate) fn toll(name: &str) -> Answer {
    let begins = name.starts_with("nvmlInit");
    if begins {
        gpu::open()?;
    }
    gpu::driver_answers(begins)?;
    // Before the board is open there are no faults.
    if ready().is_err() {
        return Ok(());
    }
    gpu::faults().map_or(Ok(()), |faults| {
        faults.meet(name, gpu::spend).map_err(NvmlReturn)
    })
}

/// The meaning of a device handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// A whole GPU.
    Gpu(BoardGpu),
    /// A MIG device of it.
    Mig(BoardGpu, Instance),
}

impl Target {
    /// The GPU, whichever part of it is meant.
    pub(crate) fn gpu(self) -> BoardGpu {
        match self {
            Target::Gpu(gpu) | Target::Mig(gpu, _) => gpu,
        }
    }
}

// A handle is a number that no pointer has: this page is never mapped.
const TAG: usize = 0x5_6000;

/// The handle of a GPU, or of the MIG device `index` of it.
pub(crate) fn handle(gpu: BoardGpu, mig: Option<u32>) -> NvmlDevice {
    let mig = mig.map_or(0, |index| index as usize + 1);
    NvmlDevice(std::ptr::without_provenance_mut(
        TAG | (gpu.index() << 5) | mig,
    ))
}

// Those of GPU instances and of compute instances, on pages of their own.
const INSTANCE_TAG: usize = 0x5_7000;
const COMPUTE_TAG: usize = 0x5_8000;

fn part_bits(tag: usize, gpu: BoardGpu, index: u32) -> usize {
    tag | (gpu.index() << 5) | (index as usize + 1)
}

/// The handle of the GPU instance `index` of a GPU.
pub(crate) fn instance_handle(gpu: BoardGpu, index: u32) -> NvmlGpuInstance {
    let bits = part_bits(INSTANCE_TAG, gpu, index);
    NvmlGpuInstance(std::ptr::without_provenance_mut(bits))
}

/// The handle of its compute instance.
pub(crate) fn compute_handle(gpu: BoardGpu, index: u32) -> NvmlComputeInstance {
    let bits = part_bits(COMPUTE_TAG, gpu, index);
    NvmlComputeInstance(std::ptr::without_provenance_mut(bits))
}

/// The GPU of a handle on the page `tag`, and what of it is meant: 0 for all of it, else a part's index plus one.
fn unpacked(bits: usize, tag: usize) -> Result<(BoardGpu, usize), NvmlReturn> {
    ready()?;
    if bits & !0xfff != tag {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    let gpu = BoardGpu::at((bits >> 5) & 0x7f).ok_or(NvmlReturn::INVALID_ARGUMENT)?;
    if gpu.lost() {
        return Err(NvmlReturn::GPU_IS_LOST);
    }
    Ok((gpu, bits & 0x1f))
}

fn part_of(bits: usize, tag: usize) -> Result<(BoardGpu, Instance), NvmlReturn> {
    let (gpu, part) = unpacked(bits, tag)?;
    let mut parts = gpu.gpu_instances().into_iter();
    parts
        .find(|known| known.index as usize + 1 == part)
        .map(|known| (gpu, known))
        .ok_or(NvmlReturn::INVALID_ARGUMENT)
}

/// The GPU instance of a handle, while it lives.
pub(crate) fn gpu_instance(instance: NvmlGpuInstance) -> Result<(BoardGpu, Instance), NvmlReturn> {
    part_of(instance.0.addr(), INSTANCE_TAG)
}

/// The compute instance of a handle, while it lives.
pub(crate) fn compute_instance(
    instance: NvmlComputeInstance,
) -> Result<(BoardGpu, Instance), NvmlReturn> {
    let (gpu, part) = part_of(instance.0.addr(), COMPUTE_TAG)?;
    if part.compute {
        Ok((gpu, part))
    } else {
        Err(NvmlReturn::INVALID_ARGUMENT)
    }
}

/// The meaning of a handle; an unknown one is an invalid argument, one of a lost GPU returns that code.
pub(crate) fn target(device: NvmlDevice) -> Result<Target, NvmlReturn> {
    let (gpu, part) = unpacked(device.0.addr(), TAG)?;
    match part {
        0 => Ok(Target::Gpu(gpu)),
        mig => gpu
            .instance(mig as u32 - 1)
            .map(|part| Target::Mig(gpu, part))
            .ok_or(NvmlReturn::INVALID_ARGUMENT),
    }
}

/// A whole GPU, for a question that does not apply to a MIG device.
pub(crate) fn whole(device: NvmlDevice) -> Result<BoardGpu, NvmlReturn> {
    match target(device)? {
        Target::Gpu(gpu) => Ok(gpu),
        Target::Mig(..) => Err(NvmlReturn::NOT_SUPPORTED),
    }
}
