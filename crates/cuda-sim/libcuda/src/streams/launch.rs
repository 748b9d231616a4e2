//! A launch: what a program passes is checked as the driver checks it, and its arguments are copied. A
//! kernel never computes anything: its plan, by the board's script, says how long it takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_api::driver::*;
use cuda_sim::script::{Duration, LAUNCH_ATTRIBUTE_NS};

use crate::base::border::{Done, handle, invalid_if, lock, read, read_all, refuse_if};
use crate::process::work::{exec, process};
use crate::streams::module::{self, Function};

/// A kernel's arguments, copied, with the array of pointers that programs read them through.
#[derive(Debug)]
pub(crate) struct Arguments {
    values: Vec<u8>,
    pointers: Vec<*mut c_void>,
}

// SAFETY: the pointers point into `values`, which is never changed.
unsafe impl Send for Arguments {}

// SAFETY: `values` and `pointers` are never changed, so threads may read them at once.
unsafe impl Sync for Arguments {}

/// Everything that a launch is passed.
pub(crate) struct Call<'a> {
    pub(crate) function: CuFunction,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) stream: CuStream,
    pub(crate) params: *mut *mut c_void,
    pub(crate) extra: *mut *mut c_void,
    pub(crate) attributes: &'a [CuLaunchAttribute],
}

/// A launch as one of CUDA's descriptions says it: their fields for grid, block and shared memory have the same names.
macro_rules! described {
    ($of:ident: $($field:ident: $value:expr),*) => {
        $crate::streams::launch::Call {
            grid: [$of.grid_x, $of.grid_y, $of.grid_z],
            block: [$of.block_x, $of.block_y, $of.block_z],
            shared: $of.shared_bytes,
            $($field: $value),*
        }
    };
}
pub(crate) use described;

/// A launch that is done later: a graph's node.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    pub(crate) function: Arc<Function>,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    arguments: Arc<Arguments>,
    pub(crate) attributes: Vec<(u32, [u64; 8])>,
}

impl Launch {
    /// Reads a launch as a program passes it, its arguments too.
    ///
    /// # Errors
    /// As the launch itself would answer.
    pub(crate) fn read(call: &Call<'_>) -> Done<Self> {
        let Call {
            grid,
            block,
            shared,
            ..
        } = *call;
        let function = module::function(call.function)?;
        check(&function, grid, block, shared)?;
        let arguments = Arc::new(copy_arguments(&function, call.params, call.extra)?);
        let attributes = Vec::new();
        let mut launch = Self {
            function,
            grid,
            block,
            shared,
            arguments,
            attributes,
        };
        for attribute in call.attributes {
            launch.set_attribute(attribute.id, attribute.value.words);
        }
        Ok(launch)
    }

    pub(crate) fn attribute(&self, id: u32) -> Option<[u64; 8]> {
        let mut all = self.attributes.iter();
        all.find(|(known, _)| *known == id).map(|(_, words)| *words)
    }

    pub(crate) fn set_attribute(&mut self, id: u32, words: [u64; 8]) {
        self.attributes.retain(|(known, _)| *known != id);
        self.attributes.push((id, words));
    }

    /// Its effect on the GPU.
    pub(crate) fn plan(&self) -> Done<Plan> {
        let own = self.attribute(LAUNCH_ATTRIBUTE_NS).map(|words| words[0]);
        plan(&self.function, self.grid, own, || self.arguments.first())
    }

    pub(crate) fn as_params(&self) -> CuKernelNodeParams {
        let [grid_x, grid_y, grid_z] = self.grid;
        let [block_x, block_y, block_z] = self.block;
        CuKernelNodeParams {
            function: handle(self.function.handle()),
            grid_x,
            grid_y,
            grid_z,
            block_x,
            block_y,
            block_z,
            shared_bytes: self.shared,
            params: self.arguments.as_ptr(),
            extra: std::ptr::null_mut(),
            kernel: std::ptr::null_mut(),
            context: std::ptr::null_mut(),
        }
    }

    pub(crate) fn as_params_v1(&self) -> CuKernelNodeParamsV1 {
        let p = self.as_params();
        CuKernelNodeParamsV1 {
            function: p.function,
            grid_x: p.grid_x,
            grid_y: p.grid_y,
            grid_z: p.grid_z,
            block_x: p.block_x,
            block_y: p.block_y,
            block_z: p.block_z,
            shared_bytes: p.shared_bytes,
            params: p.params,
            extra: p.extra,
        }
    }
}

impl Arguments {
    fn first(&self) -> Option<u64> {
        let bytes = self.values.get(..8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    fn as_ptr(&self) -> *mut *mut c_void {
        if self.pointers.is_empty() {
            return std::ptr::null_mut();
        }
        self.pointers.as_ptr().cast_mut()
    }
}

/// The effect of a kernel on the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Takes so long.
    Time { ns: u64 },
    /// Spins until that many of this key run, then takes so long.
    Meet { key: u64, parties: u32, ns: u64 },
    /// Spins until the word at this address is not zero, then takes so long.
    Flag { address: u64, ns: u64 },
}

pub(crate) fn plan(
    function: &Function,
    grid: [u32; 3],
    own_ns: Option<u64>,
    first: impl FnOnce() -> Option<u64>,
) -> Done<Plan> {
    if let Some(ns) = own_ns {
        return Ok(Plan::Time { ns });
    }
    let (duration, rule) = function.duration;
    Ok(match duration {
        Duration::Fixed {
            ns,
            ns_per_block,
            jitter_percent,
        } => {
            let blocks = grid.iter().map(|&n| u64::from(n)).product::<u64>();
            let ns = ns.saturating_add(ns_per_block.saturating_mul(blocks));
            Plan::Time {
                ns: match jitter_percent {
                    0 => ns,
                    percent => exec()?.script().jittered(ns, percent, draw()?),
                },
            }
        }
        Duration::Argument { unit_ns } => Plan::Time {
            ns: first().unwrap_or(0).saturating_mul(unit_ns),
        },
        Duration::Peers { parties, ns } => Plan::Meet {
            key: rule as u64,
            parties,
            ns,
        },
        Duration::Flag { ns } => {
            let address = first().filter(|a| *a != 0 && a.is_multiple_of(4));
            Plan::Flag {
                address: address.ok_or(CuResult::INVALID_VALUE)?,
                ns,
            }
        }
    })
}

/// A number that tells one chance of this process from every other, here and in other processes; the
/// same in each run that does the same.
pub(crate) fn draw() -> Done<u64> {
    static DRAWN: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only has to differ from every other.
    let count = DRAWN.fetch_add(1, Ordering::Relaxed);
    Ok(u64::from(process()?.index()) << 48 | count)
}

/// Threads of a block at most, as on every GPU since long.
pub(crate) const MAX_THREADS: u32 = 1024;

/// Shared memory of a block, without being asked for more.
const SHARED_BYTES: u32 = 48 << 10;

/// Shared memory of a block at most.
pub(crate) const SHARED_BYTES_OPT_IN: u32 = 227 << 10;
pub(crate) const MULTIPROCESSORS: u32 = crate::base::model::MULTIPROCESSORS as u32;
const MAX_DYNAMIC_SHARED: u32 = 8;

pub(crate) fn check(function: &Function, grid: [u32; 3], block: [u32; 3], shared: u32) -> Done {
    invalid_if(grid.contains(&0) || block.contains(&0))?;
    invalid_if(grid[0] > i32::MAX as u32 || grid[1] > 65_535 || grid[2] > 65_535 || block[2] > 64)?;
    let threads = block.iter().map(|&n| u64::from(n)).product::<u64>();
    invalid_if(threads > u64::from(MAX_THREADS))?;
    let most = function.kernel.max_threads;
    refuse_if(
        most > 0 && threads > most as u64,
        CuResult::LAUNCH_OUT_OF_RESOURCES,
    )?;
    let asked = lock(&function.attributes).get(&MAX_DYNAMIC_SHARED).copied();
    let asked = asked.unwrap_or(0) as u32;
    let room = SHARED_BYTES
        .max(asked)
        .saturating_sub(function.kernel.shared_bytes as u32);
    invalid_if(shared > room.max(asked))
}

/// The buffer that `extra` names, when it does.
pub(crate) fn packed(extra: *mut *mut c_void) -> Done<Option<(*const u8, usize)>> {
    const BUFFER: usize = 1;
    const SIZE: usize = 2;
    if extra.is_null() {
        return Ok(None);
    }
    let (mut buffer, mut size) = (std::ptr::null::<u8>(), 0);
    let mut at = 0;
    loop {
        // SAFETY: pairs of a number and a pointer, ended by a zero: the caller's contract.
        let key = unsafe { extra.add(at).read() }.addr();
        if key == 0 {
            break;
        }
        // SAFETY: a key that is not zero has a value behind it: the caller's contract.
        let value = unsafe { extra.add(at + 1).read() };
        match key {
            BUFFER => buffer = value.cast(),
            SIZE => size = read(value.cast::<usize>().cast_const())?,
            _ => return Err(CuResult::INVALID_VALUE),
        }
        at += 2;
    }
    Ok((!buffer.is_null()).then_some((buffer, size)))
}

fn copy_arguments(
    function: &Function,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Done<Arguments> {
    let wanted = &function.kernel.parameters;
    let ends = wanted.iter().map(|(offset, size)| offset + size);
    let length = ends.max().unwrap_or(0);
    let mut values = vec![0; length];
    if let Some((buffer, size)) = packed(extra)? {
        values = read_all(buffer, size.max(length))?;
    } else if !wanted.is_empty() {
        let sources = read_all(params.cast_const(), wanted.len())?;
        for (&(offset, size), source) in wanted.iter().zip(sources) {
            let bytes = read_all(source.cast::<u8>().cast_const(), size)?;
            values[offset..offset + size].copy_from_slice(&bytes);
        }
    }
    let start = values.as_mut_ptr();
    let pointers = wanted
        .iter()
        .map(|(offset, _)| start.wrapping_add(*offset).cast())
        .collect();
    Ok(Arguments { values, pointers })
}
