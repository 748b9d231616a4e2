//! The thread that queries the driver: events of every GPU, and the state of each. It reports and judges
//! nothing, and it may hang for as long as the driver does: no other thread waits for it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::event::EventSet;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};

use super::judge::{Fault, GpuIdentity, Report};
use super::score::Vitals;
use crate::driver_files::DriverFiles;
use crate::node_gpus::Inventories;

/// How often the driver is queried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueryPace {
    /// Events are looked for this often.
    pub events: Duration,
    /// Each GPU is asked how it is this often.
    pub probe: Duration,
    /// A driver that is not there is looked for again after this.
    pub retry: Duration,
}

impl Default for QueryPace {
    fn default() -> Self {
        Self {
            events: Duration::from_millis(250),
            probe: Duration::from_secs(5),
            retry: Duration::from_secs(5),
        }
    }
}

/// `NVML_FI_DEV_REMAPPED_PENDING`.
const REMAP_PENDING: FieldId = FieldId(144);
/// `NVML_FI_DEV_REMAPPED_FAILURE`.
const REMAP_FAILED: FieldId = FieldId(145);
/// A GPU has at most seven parts; a driver that says more is not believed.
const INSTANCES_MOST: u32 = 16;

/// Queries until the receiver is dropped. `library` is NVML's file; nothing means the driver's own.
pub(super) fn ask(
    library: Option<&OsStr>,
    pace: QueryPace,
    files: &DriverFiles,
    inventories: &Inventories,
    to: &Sender<Report>,
) {
    loop {
        if to.send(Report::Starting).is_err() {
            return;
        }
        let opened = open(library);
        match &opened {
            // Another failure is not one of the files.
            Ok(_) | Err(DriverError::Other(_)) => files.work(),
            Err(error) => files.fail(error),
        }
        let reason = match opened {
            // The session ends with its reason; dropping NVML unloads the library, so that the next one is that of
            // a driver which has been replaced meanwhile.
            Ok(nvml) => match session(&nvml, pace, inventories, to) {
                Ok(reason) => reason,
                Err(ReceiverDropped) => return,
            },
            Err(error) => error.to_string(),
        };
        if to.send(Report::Down(reason)).is_err() {
            return;
        }
        std::thread::sleep(pace.retry);
    }
}

/// The receiver was dropped.
struct ReceiverDropped;

/// Why the driver as a whole does not work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum DriverError {
    #[error("cannot load the NVIDIA driver's library: {0}")]
    NoLibrary(String),
    #[error(
        "the NVIDIA driver was replaced: its library and its kernel module are of different versions (reboot the \
             node, or reload the driver's modules)"
    )]
    Replaced,
    #[error("the NVIDIA driver is not loaded")]
    NotLoaded,
    #[error("the NVIDIA driver refuses this process: no access to /dev/nvidiactl")]
    NoPermission,
    #[error("the NVIDIA driver does not work: {0}")]
    Other(String),
}

impl From<&NvmlError> for DriverError {
    fn from(error: &NvmlError) -> Self {
        match error {
            NvmlError::LibRmVersionMismatch => Self::Replaced,
            NvmlError::DriverNotLoaded => Self::NotLoaded,
            NvmlError::NoPermission => Self::NoPermission,
            other => Self::Other(other.to_string()),
        }
    }
}

fn open(library: Option<&OsStr>) -> Result<Nvml, DriverError> {
    let names: Vec<&OsStr> = match library {
        Some(library) => vec![library],
        None => ["libnvidia-ml.so.1", "libnvidia-ml.so"]
            .map(OsStr::new)
            .into(),
    };
    let mut missing = None;
    for name in names {
        match Nvml::builder().lib_path(name).init() {
            Ok(nvml) => return Ok(nvml),
            Err(NvmlError::LibloadingError(error)) => {
                missing.get_or_insert_with(|| DriverError::NoLibrary(error.to_string()));
            }
            Err(error) => return Err((&error).into()),
        }
    }
    Err(missing.unwrap_or(DriverError::NotLoaded))
}

struct WatchedGpu<'nvml> {
    device: Device<'nvml>,
    events: Option<EventSet<'nvml>>,
    /// It answered when it was last asked.
    answers: bool,
}

fn session(
    nvml: &Nvml,
    pace: QueryPace,
    inventories: &Inventories,
    to: &Sender<Report>,
) -> Result<String, ReceiverDropped> {
    let mut watched: BTreeMap<String, WatchedGpu<'_>> = BTreeMap::new();
    let first = match watch(nvml, &mut watched) {
        Ok(known) => known,
        Err(error) => return Ok(DriverError::from(&error).to_string()),
    };
    to.send(Report::Started(first))
        .map_err(|_| ReceiverDropped)?;
    let mut probed_at: Option<Instant> = None;
    loop {
        for (uuid, gpu) in &watched {
            for number in new_xids(gpu) {
                let uuid = uuid.clone();
                to.send(Report::Xid { uuid, number })
                    .map_err(|_| ReceiverDropped)?;
            }
        }
        if probed_at.is_none_or(|at| at.elapsed() >= pace.probe) {
            if let Err(error) = watch(nvml, &mut watched) {
                return Ok(DriverError::from(&error).to_string());
            }
            let probes = probe_all(nvml, &mut watched, inventories);
            // All GPUs at once do not break: that is the driver.
            let mut broken = probes.values().map(|found| match found {
                Err(Fault::Other(text)) => Some(text),
                _ => None,
            });
            if let Some(Some(first)) = broken.next()
                && broken.all(|text| text.is_some())
            {
                return Ok(format!("the NVIDIA driver does not work: {first}"));
            }
            for (uuid, found) in probes {
                to.send(Report::Probed { uuid, found })
                    .map_err(|_| ReceiverDropped)?;
            }
            probed_at = Some(Instant::now());
        }
        to.send(Report::Alive).map_err(|_| ReceiverDropped)?;
        std::thread::sleep(pace.events);
    }
}

/// Takes up every GPU that the driver lists and that is not watched yet, or did not answer: its handle and its events
/// are of the driver's state since then. One set of events for each GPU: an event of a GPU that is lost names a handle
/// that says no more whose it was.
fn watch<'nvml>(
    nvml: &'nvml Nvml,
    watched: &mut BTreeMap<String, WatchedGpu<'nvml>>,
) -> Result<Vec<GpuIdentity>, NvmlError> {
    let mut listed = Vec::new();
    for index in 0..nvml.device_count()? {
        let Ok(device) = nvml.device_by_index(index) else {
            continue;
        };
        let Ok(uuid) = device.uuid() else { continue };
        listed.push(GpuIdentity {
            uuid: uuid.clone(),
            index,
            model: device.name().unwrap_or_default(),
        });
        if watched.get(&uuid).is_some_and(|gpu| gpu.answers) {
            continue;
        }
        let events = events_of(nvml, &device);
        if let Err(error) = &events
            && !watched.contains_key(&uuid)
        {
            tracing::warn!(%uuid, %error, "the GPU reports no XID events: only its state is polled");
        }
        let gpu = WatchedGpu {
            device,
            events: events.ok(),
            answers: true,
        };
        watched.insert(uuid, gpu);
    }
    Ok(listed)
}

fn events_of<'nvml>(
    nvml: &'nvml Nvml,
    device: &Device<'nvml>,
) -> Result<EventSet<'nvml>, NvmlError> {
    let set = nvml.create_event_set()?;
    device
        .register_events(EventTypes::CRITICAL_XID_ERROR, set)
        .map_err(|error| error.error)
}

/// At most this many events of one GPU are taken at once: the rest comes next time.
const EVENTS_MOST: usize = 64;

fn new_xids(gpu: &WatchedGpu<'_>) -> Vec<u64> {
    let Some(events) = &gpu.events else {
        return Vec::new();
    };
    let mut numbers = Vec::new();
    while numbers.len() < EVENTS_MOST {
        match events.wait(0) {
            Ok(event) => match event.event_data {
                Some(XidError::Value(number)) => numbers.push(number),
                // NVML's value for an XID that it does not know.
                Some(XidError::Unknown) => numbers.push(999),
                None => {}
            },
            // Also for a GPU that is lost, which the probe reports.
            Err(_) => break,
        }
    }
    numbers
}

fn probe_all(
    nvml: &Nvml,
    watched: &mut BTreeMap<String, WatchedGpu<'_>>,
    inventories: &Inventories,
) -> BTreeMap<String, Result<Vitals, Fault>> {
    let mut probes: BTreeMap<String, Result<Vitals, Fault>> = BTreeMap::new();
    for (uuid, gpu) in watched {
        let found = probe(&gpu.device);
        gpu.answers = found.is_ok();
        probes.insert(uuid.clone(), found);
    }
    let promised: BTreeSet<String> = inventories
        .borrow()
        .iter()
        .flat_map(|inventory| &inventory.gpus)
        // This thread asks NVIDIA's driver.
        .filter(|gpu| gpu.device.vendor.as_str() == "NVIDIA")
        .map(|gpu| gpu.device.id.clone())
        .collect();
    for uuid in promised {
        probes
            .entry(uuid)
            .or_insert_with_key(|uuid| match nvml.device_by_uuid(uuid.as_str()) {
                Ok(device) => probe(&device),
                Err(NvmlError::NotFound | NvmlError::InvalidArg) => Err(Fault::Missing),
                Err(error) => Err(fault(error)),
            });
    }
    probes
}

/// Asks a GPU what needs it to answer.
fn probe(device: &Device<'_>) -> Result<Vitals, Fault> {
    device.memory_info().map_err(fault)?;
    match device.utilization_rates() {
        // Not on parts, nor on some GPUs.
        Ok(_) | Err(NvmlError::NotSupported | NvmlError::NoData) => {}
        Err(error) => return Err(fault(error)),
    }
    let values = device.field_values_for(&[REMAP_PENDING, REMAP_FAILED]);
    let mut remaps = values.unwrap_or_default().into_iter().map(|value| {
        let value = value.ok().and_then(|sample| sample.value.ok());
        value.is_some_and(|value| is_set(&value))
    });
    Ok(Vitals {
        remap_pending: remaps.next().unwrap_or(false),
        remap_failed: remaps.next().unwrap_or(false),
        pages_pending: device.are_pages_pending_retired().unwrap_or(false),
        instances: instances(device),
        celsius: device.temperature(TemperatureSensor::Gpu).ok(),
        uncorrected: device
            .total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile)
            .unwrap_or(0),
    })
}

fn is_set(value: &SampleValue) -> bool {
    match value {
        SampleValue::F64(number) => *number != 0.0,
        SampleValue::U32(number) => *number != 0,
        SampleValue::U64(number) => *number != 0,
        _ => false,
    }
}

fn instances(device: &Device<'_>) -> Vec<String> {
    let places = device.mig_device_count().unwrap_or(0).min(INSTANCES_MOST);
    (0..places)
        .filter_map(|place| device.mig_device_by_index(place).ok()?.uuid().ok())
        .collect()
}

fn fault(error: NvmlError) -> Fault {
    match error {
        NvmlError::GpuLost => Fault::Lost,
        NvmlError::ResetRequired => Fault::ResetRequired,
        NvmlError::NotFound => Fault::Missing,
        other => Fault::Other(other.to_string()),
    }
}
