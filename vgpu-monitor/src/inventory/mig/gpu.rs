//! One GPU in MIG mode: its profiles, its instances, the processes that work on them, destroying one. Never
//! decides which pod has which.

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use supervisor::gpu::partition::{self, GpuInstance, Profile};

use super::{MIG_DEVICES, MigError};

/// Turns what the driver says into a sentence with the step that failed.
pub(super) fn failed<'a>(gpu: &'a str, step: &'static str) -> impl Fn(NvmlError) -> MigError + 'a {
    move |error| MigError::Driver {
        gpu: gpu.to_owned(),
        step,
        reason: error.to_string(),
    }
}

/// A GPU in MIG mode, and what it offers.
pub(super) struct MigGpu<'a> {
    pub(super) uuid: &'a str,
    pub(super) device: Device<'a>,
    pub(super) profiles: Vec<Profile>,
}

impl<'a> MigGpu<'a> {
    pub(super) fn open(nvml: &'a Nvml, uuid: &'a str) -> Result<Self, MigError> {
        let device = nvml
            .device_by_uuid(uuid)
            .map_err(failed(uuid, "finding the GPU"))?;
        let mode = match device.mig_mode() {
            Ok(mode) => mode.current == 1,
            Err(NvmlError::NotSupported) => false,
            Err(error) => return Err(failed(uuid, "asking for its MIG mode")(error)),
        };
        if !mode {
            return Err(MigError::Off {
                gpu: uuid.to_owned(),
            });
        }
        let profiles =
            partition::profiles(&device).map_err(failed(uuid, "asking for its MIG profiles"))?;
        Ok(Self {
            uuid,
            device,
            profiles,
        })
    }

    /// The same; `None` for a GPU that is not in MIG mode, which has no instances.
    pub(super) fn open_if_on(nvml: &'a Nvml, uuid: &'a str) -> Result<Option<Self>, MigError> {
        match Self::open(nvml, uuid) {
            Ok(gpu) => Ok(Some(gpu)),
            Err(MigError::Off { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn instances(&self) -> Result<Vec<GpuInstance>, MigError> {
        partition::instances(&self.device)
            .map_err(failed(self.uuid, "asking for its MIG instances"))
    }

    pub(super) fn profile_name(&self, id: u32) -> String {
        let profile = self.profiles.iter().find(|profile| profile.id == id);
        profile.map_or_else(|| format!("profile {id}"), |profile| profile.name.clone())
    }

    /// The MIG device of an instance.
    pub(super) fn device_of(&self, gpu: u32, compute: u32) -> Option<Device<'a>> {
        (0..MIG_DEVICES)
            .filter_map(|index| self.device.mig_device_by_index(index).ok())
            .find(|device| partition::ids(device).ok() == Some((gpu, compute)))
    }

    /// Destroys an instance with all that is in it.
    pub(super) fn destroy(&self, instance: &GpuInstance) -> Result<(), MigError> {
        let gone = |step, result: Result<(), NvmlError>| match result {
            Ok(()) | Err(NvmlError::NotFound) => Ok(()),
            Err(error) => Err(failed(self.uuid, step)(error)),
        };
        for &compute in &instance.compute {
            gone(
                "destroying a compute instance",
                partition::destroy_compute(&self.device, instance.id, compute),
            )?;
        }
        gone(
            "destroying a GPU instance",
            partition::destroy(&self.device, instance.id),
        )
    }

    /// Processes on an instance.
    pub(super) fn processes(&self, instance: &GpuInstance) -> Vec<u32> {
        let devices = instance
            .compute
            .iter()
            .filter_map(|&compute| self.device_of(instance.id, compute));
        let mut pids: Vec<u32> = devices
            .flat_map(|device| {
                let compute = device.running_compute_processes().unwrap_or_default();
                let graphics = device.running_graphics_processes().unwrap_or_default();
                compute.into_iter().chain(graphics)
            })
            .map(|process| process.pid)
            .collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }
}
