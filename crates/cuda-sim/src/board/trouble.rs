//! Faults of a board while it runs: XIDs, a GPU that falls off the bus, memory rows that wait for a reset, a driver
//! that hangs, was replaced or is gone. Any process that opens the board can begin and end them; the libraries decide
//! how a fault changes a call's answer.

use std::fmt;
use std::sync::atomic::Ordering;

use super::Board;

/// How the driver is, for every process of the board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driver {
    /// It answers.
    Well,
    /// It does not answer: every NVML call waits until it does.
    Hangs,
    /// It was replaced by another version, which the loaded library does not fit.
    Replaced,
    /// It is not loaded.
    Unloaded,
}

impl Driver {
    const ALL: [Self; 4] = [Self::Well, Self::Hangs, Self::Replaced, Self::Unloaded];

    fn number(self) -> u64 {
        Self::ALL
            .iter()
            .position(|state| *state == self)
            .unwrap_or(0) as u64
    }
}

/// A line of trouble that is not understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownTrouble {
    line: String,
    gpus: usize,
}

impl fmt::Display for UnknownTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, gpus } = self;
        write!(
            f,
            "{line:?}: xid:GPU=XID, lost:GPU, remap:GPU=pending, remap:GPU=failed, reset:GPU with a GPU below {gpus}, or \
             driver=well, driver=hangs, driver=replaced, driver=unloaded"
        )
    }
}

impl std::error::Error for UnknownTrouble {}

impl Board {
    /// Records an XID on a GPU; 79 means that it fell off the bus.
    pub fn fault(&self, gpu: usize, xid: u64) {
        if let Some(device) = self.lock().devices.get_mut(gpu) {
            device.met(xid);
        }
    }

    /// How many faults a GPU has had, and the XID of the last.
    #[must_use]
    pub fn fault_count(&self, gpu: usize) -> (u64, u64) {
        let state = self.lock();
        state
            .devices
            .get(gpu)
            .map_or((0, 0), |device| (device.faults, device.last_xid))
    }

    /// Takes a GPU off the bus without a word, or puts it back.
    pub fn lose(&self, gpu: usize, lost: bool) {
        if let Some(device) = self.lock().devices.get_mut(gpu) {
            device.lost = u64::from(lost);
        }
    }

    /// Whether a GPU fell off the bus.
    #[must_use]
    pub fn is_lost(&self, gpu: usize) -> bool {
        self.lock()
            .devices
            .get(gpu)
            .is_some_and(|device| device.lost != 0)
    }

    /// Says whether memory rows of a GPU wait for a reset to be replaced, and whether one could not be.
    pub fn remap(&self, gpu: usize, pending: bool, failed: bool) {
        if let Some(device) = self.lock().devices.get_mut(gpu) {
            device.remap_pending = u64::from(pending);
            device.remap_failed = u64::from(failed);
        }
    }

    /// Whether rows wait to be replaced, and whether one could not be.
    #[must_use]
    pub fn remaps(&self, gpu: usize) -> (bool, bool) {
        let state = self.lock();
        state.devices.get(gpu).map_or((false, false), |device| {
            (device.remap_pending != 0, device.remap_failed != 0)
        })
    }

    /// A GPU is reset: it is on the bus, and nothing waits.
    pub fn reset(&self, gpu: usize) {
        if let Some(device) = self.lock().devices.get_mut(gpu) {
            device.lost = 0;
            device.remap_pending = 0;
            device.remap_failed = 0;
        }
    }

    /// Says how the driver is from now on.
    pub fn set_driver(&self, driver: Driver) {
        // Relaxed: the word guards no other memory.
        self.area().driver.store(driver.number(), Ordering::Relaxed);
    }

    /// Installs the driver of another CUDA version (1000 × major + 10 × minor). Programs that load the libraries from now
    /// on have it; a program that has them loaded keeps their names.
    pub fn install_driver(&self, version: u32) {
        // Relaxed: the word guards no other memory.
        let word = &self.area().driver_version;
        word.store(version.into(), Ordering::Relaxed);
    }

    /// How the driver is.
    #[must_use]
    pub fn driver(&self) -> Driver {
        // Relaxed: the word guards no other memory.
        let number = self.area().driver.load(Ordering::Relaxed) as usize;
        Driver::ALL.get(number).copied().unwrap_or(Driver::Well)
    }

    /// Does what a line says: `xid:GPU=XID`, `lost:GPU`, `remap:GPU=pending|failed`, `reset:GPU`, or
    /// `driver=well|hangs|replaced|unloaded`.
    ///
    /// # Errors
    /// With what was read and what is accepted.
    pub fn trouble(&self, line: &str) -> Result<(), UnknownTrouble> {
        let wrong = || UnknownTrouble {
            line: line.to_owned(),
            gpus: self.gpus(),
        };
        if let Some(state) = line.strip_prefix("driver=") {
            let state = match state {
                "well" => Driver::Well,
                "hangs" => Driver::Hangs,
                "replaced" => Driver::Replaced,
                "unloaded" => Driver::Unloaded,
                _ => return Err(wrong()),
            };
            self.set_driver(state);
            return Ok(());
        }
        let (kind, rest) = line.split_once(':').ok_or_else(wrong)?;
        let (gpu, value) = rest.split_once('=').unwrap_or((rest, ""));
        let gpu: usize = gpu
            .trim()
            .parse()
            .ok()
            .filter(|gpu| *gpu < self.gpus())
            .ok_or_else(wrong)?;
        match (kind, value.trim()) {
            ("xid", xid) => self.fault(gpu, xid.parse().map_err(|_| wrong())?),
            ("lost", "") => self.lose(gpu, true),
            ("reset", "") => self.reset(gpu),
            ("remap", "pending") => self.remap(gpu, true, false),
            ("remap", "failed") => self.remap(gpu, true, true),
            _ => return Err(wrong()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn a_line_of_trouble_happens_for_all_processes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("board");
        let one = Board::create(&path, &Config::default()).unwrap();
        let other = Board::open(&path).unwrap();

        for line in ["xid:1=31", "remap:0=failed", "driver=hangs", "lost:0"] {
            one.trouble(line).unwrap();
        }

        assert_eq!(other.fault_count(1), (1, 31));
        assert_eq!(other.remaps(0), (true, true));
        assert_eq!(other.driver(), Driver::Hangs);
        assert!(other.is_lost(0) && !other.is_lost(1));
        other.trouble("reset:0").unwrap();
        other.trouble("driver=well").unwrap();
        assert!(!one.is_lost(0));
        assert_eq!(
            (one.remaps(0), one.driver()),
            ((false, false), Driver::Well)
        );
    }

    #[test]
    fn a_newer_driver_is_installed_for_all_processes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("board");
        let one = Board::create(&path, &Config::default()).unwrap();
        let uuid = one.uuid(0);
        let other = Board::open(&path).unwrap();

        other.install_driver(13_040);

        assert_eq!((one.driver_version(), one.uuid(0)), (13_040, uuid));
    }

    #[test]
    fn a_line_that_is_not_understood_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let board = Board::create(&directory.path().join("board"), &Config::default()).unwrap();
        for line in [
            "", "xid:9=31", "xid:0=x", "lost:0=1", "driver=", "remap:0", "79",
        ] {
            let error = board.trouble(line).unwrap_err();
            assert!(error.to_string().contains(line), "{error}");
        }
    }
}
