//! How the container may use a device of the driver, and questions that need to be asked only once.

/// Ordinals that the driver may number devices by.
pub(crate) const MAX_ORDINALS: usize = 64;

/// A device as the rules see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// The device at this index of limits and region.
    Limited(usize),
    /// Not named in the limits, which let such devices be used.
    Unlimited,
    /// Not named in the limits, which forbid such devices.
    Denied,
}

/// A question that a device is asked once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fact {
    /// Managed memory that moves while kernels run, so that there may be more of it than memory.
    Pages,
    /// Contexts share it through MPS.
    Mps,
}

impl Fact {
    /// The bit that says that it was asked.
    pub(crate) fn asked(self) -> u32 {
        match self {
            Self::Pages => 1,
            Self::Mps => 4,
        }
    }

    /// The bit that says that it is so.
    pub(crate) fn yes(self) -> u32 {
        self.asked() << 1
    }
}

impl Device {
    /// The device as a word that is never 0.
    pub(crate) fn to_word(self) -> u32 {
        match self {
            Self::Limited(index) => u32::try_from(index).map_or(2, |index| index + 3),
            Self::Unlimited => 1,
            Self::Denied => 2,
        }
    }

    /// The device of a word.
    pub(crate) fn of_word(word: u32) -> Self {
        match word {
            1 => Self::Unlimited,
            2 => Self::Denied,
            index => Self::Limited(index.saturating_sub(3) as usize),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_survives_its_word() {
        for device in [
            Device::Limited(0),
            Device::Limited(15),
            Device::Unlimited,
            Device::Denied,
        ] {
            assert_eq!(Device::of_word(device.to_word()), device);
            assert_ne!(device.to_word(), 0);
        }
    }
}
