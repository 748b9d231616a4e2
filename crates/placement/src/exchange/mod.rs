//! The exchange table: what a device of one model is worth in devices of another. Values in, values out. The engine
//! decides which device a pod gets.
//!
//! Rates, normalised amounts, scores and error texts are those of the published hetero-compute-router, and the tests
//! compare with recordings of it. In addition, a model is found by the name that drivers give it ([`Table::find`]),
//! and there are more models.

mod names;
mod profiles;
mod score;

use std::collections::BTreeMap;

use names::Name;
pub use score::{NodeFigures, Wanted, raw, spread_out};

/// The model that amounts are expressed in.
pub const BASE_MODEL: &str = "A100-80GB";

/// The allowed difference between the memory that a device reports and its model's, in percent. The driver keeps some
/// memory for itself.
const MEMORY_TOLERANCE: u64 = 12;

/// The maker of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Maker {
    /// NVIDIA.
    Nvidia,
    /// Huawei.
    Huawei,
    /// Hygon.
    Hygon,
    /// Cambricon.
    Cambricon,
}

impl Maker {
    /// All makers.
    pub const ALL: [Self; 4] = [Self::Nvidia, Self::Huawei, Self::Hygon, Self::Cambricon];

    /// The word in tables and annotations.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nvidia => "nvidia",
            Self::Huawei => "huawei",
            Self::Hygon => "hygon",
            Self::Cambricon => "cambricon",
        }
    }

    /// The maker of this word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|maker| maker.as_str() == word)
    }
}

/// How reliable the numbers of a built-in model are; the module `profiles` explains each value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sure {
    /// From the published table.
    Recorded,
    /// From the vendor's datasheet.
    Datasheet,
    /// From other lists that agree.
    Reported,
}

impl Sure {
    /// The word in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Recorded => "recorded",
            Self::Datasheet => "datasheet",
            Self::Reported => "reported",
        }
    }
}

/// The figures of one device of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// The maker's word, in lower case.
    pub vendor: String,
    /// Name of the model in the table.
    pub model: String,
    /// TFLOPS of 16-bit floats; 0 if unknown.
    pub fp16_tflops: f64,
    /// TFLOPS of 32-bit floats; 0 if unknown.
    pub fp32_tflops: f64,
    /// Memory in bytes.
    pub vram_bytes: u64,
    /// Bandwidth of the memory in GB/s.
    pub mem_bw_gbps: f64,
    /// Power in W.
    pub tdp_watts: u32,
}

impl Profile {
    /// Speed in GFLOPS for 16 and for 32 bits, as the engine counts it.
    pub fn gflops(&self) -> [u64; 2] {
        [gflops(self.fp16_tflops), gflops(self.fp32_tflops)]
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and the table takes no negative figure"
)]
fn gflops(tflops: f64) -> u64 {
    (tflops * 1000.0).round() as u64
}

/// The value of one model's devices in devices of another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Compute of the one in units of the other.
    pub compute: f64,
    /// Memory of the one in units of the other.
    pub memory: f64,
}

/// Several devices of one model, in devices of the base model.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Normalised {
    /// Compute.
    pub tflops: f64,
    /// Memory.
    pub vram: f64,
}

impl Normalised {
    /// The score of a node with these devices and this much free memory, in bytes.
    pub fn score(&self, free_vram_bytes: u64) -> f64 {
        const BASE: f64 = (80_u64 << 30) as f64;
        0.7 * self.tflops + 0.3 * (bytes(free_vram_bytes) / BASE)
    }
}

/// Why a table cannot be built or queried.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// No profile has this name.
    #[error("unknown model: {0}")]
    UnknownModel(String),
    /// The base model has no profile.
    #[error("base model {0:?} not found in profiles")]
    NoBase(String),
    /// A profile without memory.
    #[error("profile[{0}]: vram_bytes must be positive")]
    NoMemory(usize),
    /// A profile without compute.
    #[error("profile[{0}]: at least one of fp16_tflops or fp32_tflops must be specified")]
    NoCompute(usize),
    /// A profile with an invalid figure.
    #[error("profile[{0}]: {1} must be 0 or more")]
    NoAmount(usize, &'static str),
    /// A profile without a name.
    #[error("profile[{0}]: {1} must not be empty")]
    NoName(usize, &'static str),
}

/// The profiles of all models.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    base: Profile,
    /// By maker and model.
    profiles: BTreeMap<(String, String), Profile>,
}

impl Default for Table {
    fn default() -> Self {
        let profiles: BTreeMap<_, _> = profiles::built_in()
            .map(|(profile, _)| (key(&profile), profile))
            .collect();
        let base = profiles
            .values()
            .find(|profile| profile.model == BASE_MODEL)
            .cloned()
            .expect("the base model is built in");
        Self { base, profiles }
    }
}

fn key(profile: &Profile) -> (String, String) {
    (profile.vendor.clone(), profile.model.clone())
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a ratio: what is lost above 2^53 bytes is no device's memory"
)]
fn bytes(bytes: u64) -> f64 {
    bytes as f64
}

impl Table {
    /// The built-in models plus these, which replace built-in ones of the same vendor and model. Amounts are
    /// expressed in `base`, or in [`BASE_MODEL`] if `base` is empty.
    ///
    /// # Errors
    ///
    /// If a profile lacks a figure, or the base model has no profile.
    pub fn with(custom: &[Profile], base: &str) -> Result<Self, ExchangeError> {
        for (at, profile) in custom.iter().enumerate() {
            if profile.vram_bytes == 0 {
                return Err(ExchangeError::NoMemory(at));
            }
            for (name, figure) in [
                ("fp16_tflops", profile.fp16_tflops),
                ("fp32_tflops", profile.fp32_tflops),
                ("mem_bw_gbps", profile.mem_bw_gbps),
            ] {
                if !figure.is_finite() || figure < 0.0 {
                    return Err(ExchangeError::NoAmount(at, name));
                }
            }
            if profile.fp16_tflops == 0.0 && profile.fp32_tflops == 0.0 {
                return Err(ExchangeError::NoCompute(at));
            }
            for (name, text) in [("vendor", &profile.vendor), ("model", &profile.model)] {
                if text.trim().is_empty() {
                    return Err(ExchangeError::NoName(at, name));
                }
            }
        }
        let mut table = Self::default();
        for profile in custom {
            table.profiles.insert(key(profile), profile.clone());
        }
        let base = if base.is_empty() { BASE_MODEL } else { base };
        table.base = table
            .profile(base)
            .map_err(|_| ExchangeError::NoBase(base.to_owned()))?
            .clone();
        Ok(table)
    }

    /// All profiles, by vendor and model.
    pub fn profiles(&self) -> impl ExactSizeIterator<Item = &Profile> {
        self.profiles.values()
    }

    /// The model that amounts are expressed in.
    pub fn base(&self) -> &Profile {
        &self.base
    }

    /// The profile with exactly this name.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn profile(&self, model: &str) -> Result<&Profile, ExchangeError> {
        self.profiles
            .values()
            .find(|profile| profile.model == model)
            .ok_or_else(|| ExchangeError::UnknownModel(model.to_owned()))
    }

    /// The profile of a device that calls itself `text` and has this much memory (0 if unknown). If the name means
    /// several sizes, the size in the name decides, else the memory, else the smallest size is taken.
    pub fn find(&self, maker: Maker, text: &str, memory_bytes: u64) -> Option<&Profile> {
        let of_maker = || {
            self.profiles
                .values()
                .filter(|profile| profile.vendor == maker.as_str())
        };
        if let Some(exact) = of_maker().find(|profile| profile.model.eq_ignore_ascii_case(text)) {
            return Some(exact);
        }
        let name = names::parse(text)?;
        let of_chip = |chip: &str| -> Vec<&Profile> {
            of_maker()
                .filter(|profile| names::parse(&profile.model).is_some_and(|of| of.chip == chip))
                .collect()
        };
        let mut found = of_chip(&name.chip);
        if found.is_empty()
            && let Some(chip) = &name.without_form
        {
            found = of_chip(chip);
        }
        sized(&found, &name, memory_bytes)
    }

    /// The worth of a device of `from` in devices of `to`.
    ///
    /// # Errors
    ///
    /// If one of them has no profile.
    pub fn rate(&self, from: &str, to: &str) -> Result<Rate, ExchangeError> {
        let (from, to) = (self.profile(from)?, self.profile(to)?);
        if from.model == to.model {
            return Ok(Rate {
                compute: 1.0,
                memory: 1.0,
            });
        }
        if to.model == self.base.model {
            let of_base = self.in_base(from);
            return Ok(Rate {
                compute: 1.0 / of_base.compute,
                memory: 1.0 / of_base.memory,
            });
        }
        // The rate goes through the base, as in the published table, so that even the last bit of the float is the
        // same.
        let of_base = self.in_base(to);
        Ok(Rate {
            compute: self.compute_of(&self.base) / self.compute_of(from) * of_base.compute,
            memory: bytes(self.base.vram_bytes) / bytes(from.vram_bytes) * of_base.memory,
        })
    }

    /// The figure by which compute is compared: 16-bit floats, unless the base has none.
    fn compute_of(&self, profile: &Profile) -> f64 {
        if self.base.fp16_tflops > 0.0 {
            profile.fp16_tflops
        } else {
            profile.fp32_tflops
        }
    }

    /// A device of this profile in devices of the base.
    fn in_base(&self, profile: &Profile) -> Rate {
        Rate {
            compute: self.compute_of(profile) / self.compute_of(&self.base),
            memory: bytes(profile.vram_bytes) / bytes(self.base.vram_bytes),
        }
    }

    /// `devices` devices of this profile, in devices of the base.
    pub fn normalise(&self, profile: &Profile, devices: u32) -> Normalised {
        let devices = f64::from(devices);
        Normalised {
            tflops: devices * self.compute_of(profile) / self.compute_of(&self.base),
            vram: devices * bytes(profile.vram_bytes) / bytes(self.base.vram_bytes),
        }
    }

    /// The amount of `to`, in percent or TFLOPS, that has as much compute as `amount` of the base.
    ///
    /// # Errors
    ///
    /// If `to` has no profile.
    pub fn convert_compute(&self, amount: f64, to: &str) -> Result<f64, ExchangeError> {
        let rate = self.rate(&self.base.model, to)?;
        Ok(amount / rate.compute)
    }
}

/// Among the models of one chip, the one with the right memory.
fn sized<'t>(found: &[&'t Profile], name: &Name, memory_bytes: u64) -> Option<&'t Profile> {
    let gigabytes = |profile: &Profile| profile.vram_bytes >> 30;
    let fits = |profile: &Profile, bytes: u64| {
        bytes.abs_diff(profile.vram_bytes) <= profile.vram_bytes / 100 * MEMORY_TOLERANCE
    };
    if let Some(said) = name.gigabytes {
        let exact = found.iter().find(|profile| gigabytes(profile) == said);
        // If the profile's name has no size, any size that is close will do.
        return exact
            .or_else(|| found.iter().find(|profile| fits(profile, said << 30)))
            .copied();
    }
    if memory_bytes > 0 && found.len() > 1 {
        let near = found
            .iter()
            .filter(|profile| fits(profile, memory_bytes))
            .min_by_key(|profile| memory_bytes.abs_diff(profile.vram_bytes));
        if let Some(near) = near {
            return Some(near);
        }
    }
    (found.iter().copied()).min_by_key(|profile| profile.vram_bytes)
}

/// The built-in models with the reliability of their figures, for documents.
pub fn built_in() -> Vec<(Profile, Sure)> {
    profiles::built_in().collect()
}
