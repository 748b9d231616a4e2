//! How NVML tells utilisation on a board: how often, how late, how rounded, and of which process. Values only.

/// How NVML tells utilisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figures {
    /// Nanoseconds between two samples.
    pub sample_ns: u64,
    /// Nanoseconds from the end of a sample's period until it can be read.
    pub lag_ns: u64,
    /// How a part of a period becomes a whole percent.
    pub rounding: Rounding,
    /// The process in whose figure a slice's time is counted.
    pub credit: Credit,
}

/// How a part of a sampling period becomes a whole percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rounding {
    /// 1.9 is told as 1.
    #[default]
    Down,
    /// 1.5 is told as 2, 1.4 as 1.
    Nearest,
    /// 1.1 is told as 2.
    Up,
}

impl Rounding {
    /// Percent of a period.
    #[must_use]
    pub fn percent(self, ns: u64, period_ns: u64) -> u64 {
        let add_ns = match self {
            Self::Down => 0,
            Self::Nearest => period_ns / 2,
            Self::Up => period_ns - 1,
        };
        (ns * 100 + add_ns) / period_ns
    }

    /// As it stands in the board's file.
    pub(crate) fn number(self) -> u64 {
        match self {
            Self::Down => 0,
            Self::Nearest => 1,
            Self::Up => 2,
        }
    }

    pub(crate) fn numbered(number: u64) -> Self {
        match number {
            1 => Self::Nearest,
            2 => Self::Up,
            _ => Self::Down,
        }
    }
}

/// The process in whose figure a slice's time is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Credit {
    /// The process's whose kernels ran.
    #[default]
    Own,
    /// In each period, the first slice that ends in it is in the figure of the process that had the next one.
    NextProcess,
}
