//! The state of each GPU's hardware, as far as NVML says: power, temperatures, clocks, errors, throughput, throttling.
//!
//! Never decides what is healthy, and never fails for a figure that a GPU does not have: that figure is missing.

#![allow(
    unsafe_code,
    reason = "fields of NVLink need a scope, which nvml-wrapper cannot pass"
)]

use nvml_wrapper::Device;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, PcieUtilCounter, PerformancePolicy, TemperatureSensor,
};
use nvml_wrapper::error::{nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::nvmlFieldValue_t;

use super::{GpuError, NvmlGpus, call};

/// A GPU's hardware at one moment. A figure that the GPU or its driver does not have is missing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Hardware {
    /// Its number, as `nvidia-smi` counts.
    pub index: u32,
    /// Its UUID.
    pub uuid: String,
    /// Power that it draws, milliwatts.
    pub power_mw: Option<u32>,
    /// Power limit that the driver enforces, milliwatts.
    pub power_limit_mw: Option<u32>,
    /// Energy since the driver was loaded, millijoules.
    pub energy_mj: Option<u64>,
    /// Temperature of the GPU, degrees Celsius.
    pub celsius: Option<u32>,
    /// Temperature of its memory, degrees Celsius.
    pub memory_celsius: Option<u32>,
    /// Clock of its multiprocessors, MHz.
    pub sm_mhz: Option<u32>,
    /// Clock of its memory, MHz.
    pub memory_mhz: Option<u32>,
    /// Memory errors that ECC corrected since the driver was loaded.
    pub ecc_corrected: Option<u64>,
    /// Memory errors that ECC could not correct since the driver was loaded.
    pub ecc_uncorrected: Option<u64>,
    /// Memory rows that were replaced after corrected errors, ever.
    pub rows_corrected: Option<u64>,
    /// Memory rows that were replaced after uncorrected errors, ever.
    pub rows_uncorrected: Option<u64>,
    /// PCIe packets that were sent again.
    pub pcie_replays: Option<u32>,
    /// Traffic over PCIe.
    pub pcie: Option<Pcie>,
    /// Bytes sent and received over all NVLinks.
    pub nvlink_bytes: Option<(u64, u64)>,
    /// Why its clocks are lower than they could be now.
    pub throttled_by: Vec<&'static str>,
    /// How long its clocks have been lowered, by cause, in nanoseconds.
    pub throttled_ns: Vec<(&'static str, u64)>,
}

/// Traffic over PCIe: a driver either counts bytes, or measures for a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pcie {
    /// Bytes sent and received since the driver was loaded.
    Counted {
        /// Sent by the GPU.
        sent: u64,
        /// Received by the GPU.
        received: u64,
    },
    /// Bytes a second, over the 20 ms in which the driver measured.
    Measured {
        /// Sent by the GPU.
        sent: u64,
        /// Received by the GPU.
        received: u64,
    },
}

/// The reasons for lower clocks that a person can do something about. An idle GPU's are no reason.
const REASONS: [(ThrottleReasons, &str); 7] = [
    (ThrottleReasons::SW_POWER_CAP, "sw_power_cap"),
    (ThrottleReasons::HW_SLOWDOWN, "hw_slowdown"),
    (ThrottleReasons::SYNC_BOOST, "sync_boost"),
    (ThrottleReasons::SW_THERMAL_SLOWDOWN, "sw_thermal_slowdown"),
    (ThrottleReasons::HW_THERMAL_SLOWDOWN, "hw_thermal_slowdown"),
    (
        ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN,
        "hw_power_brake_slowdown",
    ),
    (
        ThrottleReasons::DISPLAY_CLOCK_SETTING,
        "display_clock_setting",
    ),
];

/// The causes of which the driver sums up how long they lowered the clocks.
const CAUSES: [(PerformancePolicy, &str); 5] = [
    (PerformancePolicy::Power, "power"),
    (PerformancePolicy::Thermal, "thermal"),
    (PerformancePolicy::SyncBoost, "sync_boost"),
    (PerformancePolicy::BoardLimit, "board_limit"),
    (PerformancePolicy::Reliability, "reliability"),
];

/// Fields of `nvmlDeviceGetFieldValues` (nvml.h).
mod field {
    pub(super) const MEMORY_CELSIUS: u32 = 82;
    /// KiB over all links with the scope [`ALL_LINKS`].
    pub(super) const NVLINK_SENT: u32 = 138;
    pub(super) const NVLINK_RECEIVED: u32 = 139;
    pub(super) const ROWS_CORRECTED: u32 = 142;
    pub(super) const ROWS_UNCORRECTED: u32 = 143;
    pub(super) const PCIE_SENT: u32 = 197;
    pub(super) const PCIE_RECEIVED: u32 = 198;
    pub(super) const ALL_LINKS: u32 = u32::MAX;
}

/// The fields of one question, each with its scope.
const FIELDS: [(u32, u32); 7] = [
    (field::MEMORY_CELSIUS, 0),
    (field::NVLINK_SENT, field::ALL_LINKS),
    (field::NVLINK_RECEIVED, field::ALL_LINKS),
    (field::ROWS_CORRECTED, 0),
    (field::ROWS_UNCORRECTED, 0),
    (field::PCIE_SENT, 0),
    (field::PCIE_RECEIVED, 0),
];

impl NvmlGpus {
    /// Asks every GPU that answers. A lost one is left out.
    ///
    /// # Errors
    /// Nothing can be asked at all.
    pub fn hardware(&self) -> Result<Vec<Hardware>, GpuError> {
        let count = self
            .nvml
            .device_count()
            .map_err(call("nvmlDeviceGetCount_v2"))?;
        let asked = (0..count).filter_map(|index| {
            let device = self.nvml.device_by_index(index).ok()?;
            Some(of(index, device.uuid().ok()?, &device))
        });
        Ok(asked.collect())
    }
}

fn of(index: u32, uuid: String, device: &Device<'_>) -> Hardware {
    let fields = fields(device);
    let value = |id: u32| {
        let at = FIELDS.iter().position(|(field, _)| *field == id)?;
        fields.get(at).copied().flatten()
    };
    let ecc = |kind| device.total_ecc_errors(kind, EccCounter::Volatile).ok();
    Hardware {
        index,
        uuid,
        power_mw: device.power_usage().ok(),
        power_limit_mw: device.enforced_power_limit().ok(),
        energy_mj: device.total_energy_consumption().ok(),
        celsius: device.temperature(TemperatureSensor::Gpu).ok(),
        memory_celsius: value(field::MEMORY_CELSIUS).and_then(|value| u32::try_from(value).ok()),
        sm_mhz: device.clock_info(Clock::SM).ok(),
        memory_mhz: device.clock_info(Clock::Memory).ok(),
        ecc_corrected: ecc(MemoryError::Corrected),
        ecc_uncorrected: ecc(MemoryError::Uncorrected),
        rows_corrected: value(field::ROWS_CORRECTED),
        rows_uncorrected: value(field::ROWS_UNCORRECTED),
        pcie_replays: device.pcie_replay_counter().ok(),
        pcie: pcie(
            value(field::PCIE_SENT).zip(value(field::PCIE_RECEIVED)),
            device,
        ),
        nvlink_bytes: value(field::NVLINK_SENT)
            .zip(value(field::NVLINK_RECEIVED))
            .map(|(sent, received)| (sent.saturating_mul(1024), received.saturating_mul(1024))),
        throttled_by: device
            .current_throttle_reasons()
            .map(reasons)
            .unwrap_or_default(),
        throttled_ns: CAUSES
            .into_iter()
            .filter_map(|(cause, name)| {
                let lasted = device.violation_status(cause).ok()?;
                (lasted.violation_time > 0).then_some((name, lasted.violation_time))
            })
            .collect(),
    }
}

/// The names of the reasons that hold.
fn reasons(all: ThrottleReasons) -> Vec<&'static str> {
    let holding = REASONS.iter().filter(|(reason, _)| all.contains(*reason));
    holding.map(|(_, name)| *name).collect()
}

/// The driver's own counters, else two measurements of 20 ms, in which this thread waits.
fn pcie(counted: Option<(u64, u64)>, device: &Device<'_>) -> Option<Pcie> {
    if let Some((sent, received)) = counted {
        return Some(Pcie::Counted { sent, received });
    }
    // KiB a second.
    let measured = |counter| device.pcie_throughput(counter).map(u64::from).ok();
    let sent = measured(PcieUtilCounter::Send)?;
    let received = measured(PcieUtilCounter::Receive)?;
    Some(Pcie::Measured {
        sent: sent.saturating_mul(1024),
        received: received.saturating_mul(1024),
    })
}

/// The values of [`FIELDS`], as whole numbers.
fn fields(device: &Device<'_>) -> Vec<Option<u64>> {
    let library = device.nvml().lib();
    let Ok(ask) = nvml_sym(library.nvmlDeviceGetFieldValues.as_ref()) else {
        return Vec::new();
    };
    let mut values = FIELDS.map(|(id, scope)| {
        // SAFETY: numbers and a union of numbers, of which zeros are a value (C's own declaration).
        let mut value: nvmlFieldValue_t = unsafe { std::mem::zeroed() };
        value.fieldId = id;
        value.scopeId = scope;
        value
    });
    let Ok(count) = i32::try_from(values.len()) else {
        return Vec::new();
    };
    // SAFETY: only read out; its use below is a call of the NVML that `device` borrows.
    let handle = unsafe { device.handle() };
    // SAFETY: the device is alive as long as its NVML, which `device` borrows; `values` is a local array of `count`
    // entries of the type that the call fills.
    if nvml_try(unsafe { ask(handle, count, values.as_mut_ptr()) }).is_err() {
        return Vec::new();
    }
    values.iter().map(whole).collect()
}

/// The whole number of an answered field.
fn whole(answer: &nvmlFieldValue_t) -> Option<u64> {
    // nvmlValueType_t (nvml.h).
    const UNSIGNED_INT: u32 = 1;
    const UNSIGNED_LONG: u32 = 2;
    const UNSIGNED_LONG_LONG: u32 = 3;
    const SIGNED_INT: u32 = 5;
    nvml_try(answer.nvmlReturn).ok()?;
    // SAFETY: every bit pattern is a value of the union's longest member, and all of its bytes were set before the call.
    let bits = unsafe { answer.value.ullVal };
    // A shorter member is in the first bytes.
    let [a, b, c, d, ..] = bits.to_ne_bytes();
    match answer.valueType {
        UNSIGNED_INT => Some(u64::from(u32::from_ne_bytes([a, b, c, d]))),
        UNSIGNED_LONG | UNSIGNED_LONG_LONG => Some(bits),
        SIGNED_INT => u64::try_from(i32::from_ne_bytes([a, b, c, d])).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_requested_clocks_are_no_throttling() {
        let idle = ThrottleReasons::GPU_IDLE | ThrottleReasons::APPLICATIONS_CLOCKS_SETTING;
        assert!(reasons(idle).is_empty());

        let hot = ThrottleReasons::SW_POWER_CAP | ThrottleReasons::HW_THERMAL_SLOWDOWN;
        assert_eq!(reasons(hot), ["sw_power_cap", "hw_thermal_slowdown"]);
    }

    #[test]
    fn a_fields_value_is_read_by_its_kind() {
        // SAFETY: numbers and a union of numbers, of which zeros are a value.
        let mut answer: nvmlFieldValue_t = unsafe { std::mem::zeroed() };
        answer.value.ullVal = 7;
        answer.valueType = 3;
        assert_eq!(whole(&answer), Some(7));
        answer.valueType = 1;
        assert_eq!(whole(&answer), Some(7));
        // A double is none of the fields that are asked for.
        answer.valueType = 0;
        assert_eq!(whole(&answer), None);
        // NOT_SUPPORTED.
        (answer.valueType, answer.nvmlReturn) = (3, 3);
        assert_eq!(whole(&answer), None);
    }
}
