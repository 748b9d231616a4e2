//! The files of a container that this process sees: the usage region, the limits, the host's targets. They
//! are found by the settings, and survive a fork, since the mappings are shared. Decides no call.

use std::path::Path;

use vgpu_abi::doorbell::Doorbell;
use vgpu_abi::host::KEEP_DEAD_NS;
use vgpu_abi::interval::Interval;
use vgpu_abi::limits::{LimitsMap, LimitsValue};
use vgpu_abi::region::{Dead, Region};
use vgpu_abi::targets::{Grant, Target, TargetsMap, Unaccounted};

use crate::base::clock;
use crate::base::log::line;
use crate::guest::peer_region;
use crate::guest::settings::{LimitsSource, PeerSettings, Settings, ThisProcess as Here};
use crate::guest::thread::{ReadGrant, thread};

/// The shared files. Survives a fork: the mappings are shared.
pub(crate) struct Container {
    /// The usage region.
    pub(crate) region: Region,
    pub(crate) limits: LimitsFrom,
    pub(crate) targets: Option<TargetsMap>,
    doorbell: Option<Doorbell>,
}

/// Where the limits come from.
pub(crate) enum LimitsFrom {
    /// The file that the host wrote.
    File(LimitsMap),
    /// The peers' variables.
    Peers(Box<PeerSettings>),
}

/// The charges of a dead process stay at most this long after it was seen to be dead. A driver releases the memory
/// within a second; a driver that hangs must not keep the room for ever.
pub(crate) const DEAD_NS: u64 = KEEP_DEAD_NS;

/// If the host has not written for this long, it is considered dead, and its targets no longer count.
const SILENT_NS: u64 = 2_000_000_000;

fn closed(path: &Path, error: &impl core::fmt::Display) {
    line!(Error, "CUDA is refused: {}: {error}", path.display());
}

impl Container {
    /// Opens the files that the settings name: `None` when they name none.
    ///
    /// # Errors
    /// The settings were not understood, or a file that they name cannot be used; the log says which.
    pub(crate) fn open() -> Result<Option<Self>, ()> {
        let settings = Settings::read(&Here)
            .inspect_err(|error| line!(Error, "CUDA is refused: {error}"))
            .map_err(|_| ())?;
        let container = match settings.source {
            LimitsSource::None => return Ok(None),
            LimitsSource::Files {
                limits,
                targets,
                region,
            } => {
                let map = LimitsMap::open(&limits).map_err(|error| closed(&limits, &error))?;
                map.load().map_err(|error| closed(&limits, &error))?;
                Self {
                    region: Region::open(&region).map_err(|error| closed(&region, &error))?,
                    limits: LimitsFrom::File(map),
                    targets: TargetsMap::open(&targets).ok(),
                    doorbell: Doorbell::beside(&targets),
                }
            }
            LimitsSource::Peers(peers) => {
                if peers.is_oversubscribed {
                    line!(
                        Info,
                        "CUDA_OVERSUBSCRIBE names no share of the GPU: the limits are of the GPU's own memory"
                    );
                }
                let region =
                    peer_region::open(&peers).map_err(|(path, error)| closed(&path, &error))?;
                Self {
                    region,
                    limits: LimitsFrom::Peers(peers),
                    targets: None,
                    doorbell: None,
                }
            }
        };
        container.region.keep_dead_for(DEAD_NS);
        Ok(Some(container))
    }

    /// The host's measurement of this process, once there is one.
    pub(crate) fn target(&self) -> Option<Target> {
        let own = self.region.own_slot()?;
        self.targets.as_ref()?.target(own.slot, own.generation)
    }

    /// The arbiter's grant to this process on a device.
    pub(crate) fn grant(&self, device: usize) -> Option<Grant> {
        let own = self.region.own_slot()?;
        let targets = self.targets.as_ref()?;
        let asked = ReadGrant {
            // Before the grant: if the host writes meanwhile, the next call reads again.
            written: targets.written(own.slot),
            slot_generation: own.generation,
            slot: u16::try_from(own.slot).ok()?,
            device: u16::try_from(device).ok()?.checked_add(1)?,
            bits: 0,
        };
        thread(|thread| {
            let known = thread.grant.get();
            if (ReadGrant { bits: 0, ..known }) == asked {
                return Grant::of_bits(known.bits);
            }
            let grant = targets.grant(own.slot, own.generation, device);
            let bits = Grant::to_bits(grant);
            thread.grant.set(ReadGrant { bits, ..asked });
            grant
        })
    }

    /// The container's part of a device's timetable.
    pub(crate) fn interval(&self, device: usize) -> Option<Interval> {
        self.targets.as_ref()?.interval(device)
    }

    /// The host's knowledge of the process that has this slot in this generation.
    pub(crate) fn target_of(&self, slot: usize, generation: u64) -> Option<Target> {
        self.targets.as_ref()?.target(slot, generation)
    }

    /// The present limits, for values that are not cached.
    pub(crate) fn limits(&self) -> Option<LimitsValue> {
        match &self.limits {
            LimitsFrom::File(map) => map.load().ok(),
            LimitsFrom::Peers(_) => None,
        }
    }

    /// Whether the host has seen that the driver holds nothing more for a dead process.
    pub(crate) fn is_released(&self, dead: &Dead) -> bool {
        let target = self.target_of(dead.slot, dead.generation);
        target.is_some_and(|target| target.released)
    }

    /// Clears the slots of those dead processes. Makes no call to the driver.
    pub(crate) fn bury_released(&self) {
        for dead in self.region.dead() {
            if self.is_released(&dead) {
                self.region.let_go(&dead);
            }
        }
    }

    /// Memory that the driver holds for this container beyond its charges, as the host measured it; 0 if the host has
    /// not measured for a while.
    pub(crate) fn unaccounted(&self, device: usize) -> Unaccounted {
        let none = Unaccounted::default();
        let Some(targets) = &self.targets else {
            return none;
        };
        let said = targets.unaccounted(device);
        if said.bytes == 0 {
            return none;
        }
        let age_ns = clock::now_ns().saturating_sub(targets.heartbeat_ns());
        if age_ns < SILENT_NS { said } else { none }
    }

    /// Notifies the host's arbiter that this container begins to work.
    pub(crate) fn ring(&self) {
        if let Some(doorbell) = &self.doorbell {
            doorbell.ring();
        }
    }

    /// Differs when the host has written its targets again.
    #[inline]
    pub(crate) fn targets_generation(&self) -> u64 {
        self.targets.as_ref().map_or(0, TargetsMap::generation)
    }

    /// When the host's arbiter last wrote, nanoseconds of the monotonic clock; `None` if there is no arbiter.
    pub(crate) fn arbiter_heartbeat_ns(&self) -> Option<u64> {
        self.targets.as_ref().map(TargetsMap::heartbeat_ns)
    }

    /// Differs when the limits have changed.
    #[inline]
    pub(crate) fn limits_generation(&self) -> u64 {
        match &self.limits {
            LimitsFrom::File(map) => map.generation(),
            LimitsFrom::Peers(_) => 1,
        }
    }
}
