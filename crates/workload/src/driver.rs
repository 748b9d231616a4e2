//! The driver, loaded by its name as a program does, and the few calls of it that a workload makes. All unsafe calls
//! are in this file. Does not decide what to launch.
//!
//! Frees nothing: a workload ends with its process.

use std::ffi::{CString, c_void};
use std::ptr::null_mut;

use cuda_api::driver::{
    CuContext, CuDevicePtr, CuEvent, CuFunction, CuGraph, CuGraphExec, CuModule, CuResult,
    CuStream, signature,
};
use libloading::Library;

use crate::kernels;

/// Why the driver cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// There is no driver.
    #[error("cannot load libcuda.so.1, the NVIDIA driver's library: {0}")]
    NoLibrary(String),
    /// The driver lacks a function.
    #[error("the driver has no {0}")]
    NoFunction(&'static str),
    /// A call failed.
    #[error("{call}: {}", result.name().map_or_else(|| result.0.to_string(), |name| name.to_string_lossy().into_owned()))]
    Call {
        /// The name of the call.
        call: &'static str,
        /// Its result.
        result: CuResult,
    },
}

pub(crate) type Done<T = ()> = Result<T, DriverError>;

/// Flags of the driver's calls.
const NON_BLOCKING: u32 = 1;
const NO_TIMING: u32 = 2;
const THREAD_LOCAL: u32 = 1;
const PORTABLE_AND_MAPPED: u32 = 3;

macro_rules! functions {
    ($($name:ident),* $(,)?) => {
        #[allow(non_snake_case, reason = "the driver's names")]
        struct Functions { $($name: signature::$name,)* }

        impl Functions {
            fn find(library: &Library) -> Done<Self> {
                Ok(Self { $($name: {
                    let name = concat!(stringify!($name), "\0").as_bytes();
                    // SAFETY: the driver exports this name with this signature (the table's).
                    let found = unsafe { library.get::<signature::$name>(name) };
                    *found.map_err(|_| DriverError::NoFunction(stringify!($name)))?
                },)* })
            }
        }
    };
}

functions! {
    cuInit, cuDeviceGet, cuDevicePrimaryCtxRetain, cuCtxSetCurrent, cuCtxSynchronize,
    cuModuleLoadData, cuModuleGetFunction, cuStreamCreate, cuStreamSynchronize, cuLaunchKernel,
    cuEventCreate, cuEventRecord, cuEventSynchronize, cuEventElapsedTime, cuMemHostAlloc,
    cuMemHostGetDevicePointer_v2, cuStreamBeginCapture_v2, cuStreamEndCapture,
    cuGraphInstantiateWithFlags, cuGraphLaunch,
}

/// Calls a function of the driver. The arguments must outlive the call.
macro_rules! call {
    ($driver:expr, $name:ident ( $($arg:expr),* )) => {{
        // SAFETY: the driver's own signature; handles come from it, pointers are good for the call.
        let result = unsafe { ($driver.functions.$name)($($arg),*) };
        if result == CuResult::SUCCESS {
            Ok(())
        } else {
            Err(DriverError::Call { call: stringify!($name), result })
        }
    }};
}

fn load() -> Done<Library> {
    // SAFETY: the driver's library runs nothing that we do not want when it is loaded.
    unsafe { Library::new("libcuda.so.1") }
        .map_err(|error| DriverError::NoLibrary(error.to_string()))
}

/// Whether the driver is the simulated one.
///
/// # Errors
/// There is no driver.
pub fn is_simulated() -> Result<bool, DriverError> {
    Ok(has_marker(&load()?))
}

fn has_marker(library: &Library) -> bool {
    // SAFETY: only looked for, never read.
    unsafe { library.get::<*const u32>(b"vgpu_simulated_driver\0") }.is_ok()
}

/// A simulated driver's own measurements of a process: nanoseconds in which its kernels held a GPU.
pub(crate) struct Told {
    _library: Library,
    busy: unsafe extern "C" fn(device: u32, pid: u32) -> u64,
    now: unsafe extern "C" fn() -> u64,
}

impl Told {
    /// None for a real driver.
    pub(crate) fn open() -> Done<Option<Self>> {
        let library = load()?;
        // SAFETY: the simulated driver's signature for this name, which no other driver has.
        let busy = unsafe { library.get(b"vgpuSimBusyNs\0") }.map(|symbol| *symbol);
        // SAFETY: the simulated driver's signature for this name, which no other driver has.
        let now = unsafe { library.get(b"vgpuSimNow\0") }.map(|symbol| *symbol);
        let (Ok(busy), Ok(now)) = (busy, now) else {
            return Ok(None);
        };
        Ok(Some(Self {
            _library: library,
            busy,
            now,
        }))
    }

    pub(crate) fn busy_ns(&self, device: u32, pid: u32) -> u64 {
        // SAFETY: it takes any numbers, and the library is loaded as long as we are.
        unsafe { (self.busy)(device, pid) }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        // SAFETY: it takes nothing, and `_library` keeps its code loaded.
        unsafe { (self.now)() }
    }
}

/// The driver, with a context on one device and the workload's kernels.
pub(crate) struct Driver {
    functions: Functions,
    _library: Library,
    /// Whether the device is a simulated one.
    pub(crate) simulated: bool,
    module: CuModule,
    records: Option<Records>,
}

/// The record that a kernel wrote about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Record {
    /// Its start, in nanoseconds of the GPU's own clock.
    pub(crate) begin_ns: u64,
    /// Its end, in the same unit.
    pub(crate) end_ns: u64,
    /// The number of rounds that it worked.
    pub(crate) rounds: u64,
}

/// Memory to which kernels write their starts and ends.
struct Records {
    host: *const u64,
    device: CuDevicePtr,
    count: usize,
}

/// A kernel, and the number of rounds that it works.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kernel {
    pub(crate) function: CuFunction,
    /// The intended duration without other work on the GPU, in nanoseconds.
    pub(crate) ns: u64,
    /// The number of rounds that take this long on this device.
    pub(crate) rounds: u64,
}

/// A stream of the driver's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stream(CuStream);

/// An event of the driver's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event(CuEvent);

/// A graph that can be launched.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Graph(CuGraphExec);

impl Driver {
    /// Loads the driver and creates a context on this device, with a kernel for each duration.
    pub(crate) fn open(device: u32, durations_ns: &[u64]) -> Done<Self> {
        let library = load()?;
        let mut driver = Self {
            functions: Functions::find(&library)?,
            simulated: has_marker(&library),
            _library: library,
            module: null_mut(),
            records: None,
        };
        call!(driver, cuInit(0))?;
        let mut handle = cuda_api::driver::CuDevice(0);
        let ordinal = i32::try_from(device).unwrap_or(i32::MAX);
        call!(driver, cuDeviceGet(&raw mut handle, ordinal))?;
        let mut context: CuContext = null_mut();
        call!(driver, cuDevicePrimaryCtxRetain(&raw mut context, handle))?;
        call!(driver, cuCtxSetCurrent(context))?;
        let text = CString::new(kernels::module(durations_ns)).unwrap_or_default();
        let mut module = null_mut();
        call!(
            driver,
            cuModuleLoadData(&raw mut module, text.as_ptr().cast())
        )?;
        driver.module = module;
        Ok(driver)
    }

    /// Makes kernels record their starts and ends. The last `count` records (a power of two) are kept.
    pub(crate) fn keep_records(&mut self, count: usize) -> Done {
        let bytes = kernels::HEAD_BYTES + count * kernels::RECORD_BYTES;
        let mut host = null_mut();
        call!(
            self,
            cuMemHostAlloc(&raw mut host, bytes, PORTABLE_AND_MAPPED)
        )?;
        // SAFETY: the driver gave that many bytes.
        unsafe { std::ptr::write_bytes(host.cast::<u8>(), 0, bytes) };
        let mut device = CuDevicePtr(0);
        call!(self, cuMemHostGetDevicePointer_v2(&raw mut device, host, 0))?;
        self.records = Some(Records {
            host: host.cast(),
            device,
            count,
        });
        Ok(())
    }

    /// The records of the kernels.
    pub(crate) fn records(&self) -> Vec<Record> {
        let Some(records) = &self.records else {
            return Vec::new();
        };
        let word = |at: usize| {
            let place = records.host.wrapping_add(at);
            // SAFETY: within the memory that the driver gave, which the GPU writes.
            unsafe { place.read_volatile() }
        };
        let written = usize::try_from(word(0)).unwrap_or(usize::MAX);
        (0..written.min(records.count))
            .map(|index| (kernels::HEAD_BYTES + index * kernels::RECORD_BYTES) / 8)
            .map(|at| Record {
                begin_ns: word(at),
                end_ns: word(at + 1),
                rounds: word(at + 2),
            })
            .filter(|record| record.begin_ns != 0 && record.begin_ns < record.end_ns)
            .collect()
    }

    pub(crate) fn kernel(&self, ns: u64) -> Done<Kernel> {
        let name = CString::new(kernels::name(ns)).unwrap_or_default();
        let mut function = null_mut();
        call!(
            self,
            cuModuleGetFunction(&raw mut function, self.module, name.as_ptr())
        )?;
        Ok(Kernel {
            function,
            ns,
            rounds: 1,
        })
    }

    pub(crate) fn stream(&self) -> Done<Stream> {
        let mut stream = null_mut();
        call!(self, cuStreamCreate(&raw mut stream, NON_BLOCKING))?;
        Ok(Stream(stream))
    }

    pub(crate) fn launch(&self, kernel: Kernel, stream: Stream) -> Done {
        let mut rounds = kernel.rounds;
        let mut records = self.records.as_ref().map_or(0, |records| records.device.0);
        let mut most = self
            .records
            .as_ref()
            .map_or(0, |records| records.count as u64 - 1);
        let mut params: [*mut c_void; 3] = [
            (&raw mut rounds).cast(),
            (&raw mut records).cast(),
            (&raw mut most).cast(),
        ];
        call!(
            self,
            cuLaunchKernel(
                kernel.function,
                1,
                1,
                1,
                1,
                1,
                1,
                0,
                stream.0,
                params.as_mut_ptr(),
                null_mut()
            )
        )
    }

    pub(crate) fn synchronise(&self, stream: Stream) -> Done {
        call!(self, cuStreamSynchronize(stream.0))
    }

    pub(crate) fn synchronise_all(&self) -> Done {
        call!(self, cuCtxSynchronize())
    }

    pub(crate) fn event(&self, timed: bool) -> Done<Event> {
        let mut event = null_mut();
        let flags = if timed { 0 } else { NO_TIMING };
        call!(self, cuEventCreate(&raw mut event, flags))?;
        Ok(Event(event))
    }

    pub(crate) fn record(&self, event: Event, stream: Stream) -> Done {
        call!(self, cuEventRecord(event.0, stream.0))
    }

    pub(crate) fn wait(&self, event: Event) -> Done {
        call!(self, cuEventSynchronize(event.0))
    }

    pub(crate) fn between_ns(&self, begin: Event, end: Event) -> Done<f64> {
        let mut milliseconds = 0.0_f32;
        call!(
            self,
            cuEventElapsedTime(&raw mut milliseconds, begin.0, end.0)
        )?;
        Ok(f64::from(milliseconds) * 1e6)
    }

    /// A graph of these kernels, one after another, made by a capture.
    pub(crate) fn graph(&self, kernels: &[Kernel], stream: Stream) -> Done<Graph> {
        call!(self, cuStreamBeginCapture_v2(stream.0, THREAD_LOCAL))?;
        for kernel in kernels {
            self.launch(*kernel, stream)?;
        }
        let mut graph: CuGraph = null_mut();
        call!(self, cuStreamEndCapture(stream.0, &raw mut graph))?;
        let mut executable: CuGraphExec = null_mut();
        call!(
            self,
            cuGraphInstantiateWithFlags(&raw mut executable, graph, 0)
        )?;
        Ok(Graph(executable))
    }

    pub(crate) fn launch_graph(&self, graph: Graph, stream: Stream) -> Done {
        call!(self, cuGraphLaunch(graph.0, stream.0))
    }
}
