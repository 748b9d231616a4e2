//! How the GPUs of a board are cut, as all processes see it: looking, making, destroying, under the board's lock. What
//! can be cut, and where, is `mig`'s.

use super::{Board, MAX_GPUS};
use crate::mig::{Cut, Instance, InstanceRefused};

impl Board {
    /// Whether a GPU is in MIG mode.
    #[must_use]
    pub fn is_mig(&self, gpu: usize) -> bool {
        gpu < self.gpus() && self.lock().cuts[gpu].is_on()
    }

    /// Switches a GPU's MIG mode, as `nvidia-smi -mig` does.
    ///
    /// # Errors
    /// When a process holds memory of the GPU, or it still has an instance.
    pub fn set_mig_mode(&self, gpu: usize, on: bool) -> Result<(), InstanceRefused> {
        let mut state = self.lock();
        self.look(&mut state);
        if gpu >= self.gpus() {
            return Err(InstanceRefused::Unknown);
        }
        let device = &state.devices[gpu];
        if device.used > 0 || !state.cuts[gpu].instances(device.total).is_empty() {
            return Err(InstanceRefused::InUse);
        }
        state.cuts[gpu] = if on { Cut::EMPTY } else { Cut::NONE };
        Ok(())
    }

    /// The GPU instances of a GPU, those without a compute instance too.
    #[must_use]
    pub fn gpu_instances(&self, gpu: usize) -> Vec<Instance> {
        if gpu >= self.gpus() {
            return Vec::new();
        }
        let state = self.lock();
        state.cuts[gpu].instances(state.devices[gpu].total)
    }

    /// Makes a GPU instance of this many sevenths: at this first slice, or where there is room.
    ///
    /// # Errors
    /// When the GPU is not in MIG mode, has no room there, or no instance can lie there.
    pub fn create_gpu_instance(
        &self,
        gpu: usize,
        sevenths: u32,
        start: Option<u32>,
    ) -> Result<Instance, InstanceRefused> {
        let mut state = self.lock();
        let total = state.devices.get(gpu).map_or(0, |device| device.total);
        let cut = state.cuts.get_mut(gpu).ok_or(InstanceRefused::Unknown)?;
        let index = cut.create(sevenths, start)?;
        cut.instance(total, index).ok_or(InstanceRefused::Unknown)
    }

    /// Gives a GPU instance its compute instance, which makes a MIG device of it.
    ///
    /// # Errors
    /// When there is no such GPU instance, or it has one.
    pub fn create_compute_instance(&self, gpu: usize, index: u32) -> Result<(), InstanceRefused> {
        let mut state = self.lock();
        let cut = state.cuts.get_mut(gpu).ok_or(InstanceRefused::Unknown)?;
        cut.set_compute(index, true)
    }

    /// Takes the compute instance away.
    ///
    /// # Errors
    /// When there is none, or a process works on it.
    pub fn destroy_compute_instance(&self, gpu: usize, index: u32) -> Result<(), InstanceRefused> {
        let mut state = self.lock();
        self.look(&mut state);
        if gpu < MAX_GPUS && state.part_used(gpu, Some(index)) > 0 {
            return Err(InstanceRefused::InUse);
        }
        let cut = state.cuts.get_mut(gpu).ok_or(InstanceRefused::Unknown)?;
        cut.set_compute(index, false)
    }

    /// Takes a GPU instance away.
    ///
    /// # Errors
    /// When there is none, or it has a compute instance.
    pub fn destroy_gpu_instance(&self, gpu: usize, index: u32) -> Result<(), InstanceRefused> {
        let mut state = self.lock();
        let cut = state.cuts.get_mut(gpu).ok_or(InstanceRefused::Unknown)?;
        cut.destroy(index)
    }
}
