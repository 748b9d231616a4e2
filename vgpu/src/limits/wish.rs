//! The limits that the command line asks for.

use vgpu_abi::limits::Policy;
use vgpu_abi::size::Size;

use crate::args::ComputeArgs;
use crate::failure::Misuse;
use crate::values::{GpuRef, PerGpu, policy_word};

/// All values of one flag, merged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Given {
    /// The flag.
    pub(super) flag: &'static str,
    /// The value for every GPU that is not named.
    pub(crate) each: Option<u64>,
    /// The values of named GPUs.
    pub(crate) by_gpu: Vec<(GpuRef, u64)>,
}

impl Given {
    /// Merges repeated uses of one flag: at most one value for all GPUs, and values by GPU.
    fn merge(
        flag: &'static str,
        values: &[PerGpu],
        show: fn(u64) -> String,
    ) -> Result<Self, Misuse> {
        let mut all = Self {
            flag,
            each: None,
            by_gpu: Vec::new(),
        };
        for value in values {
            match value {
                PerGpu::Each(amount) => {
                    if let Some(first) = all.each.replace(*amount) {
                        return Err(Misuse::new(format!(
                            "{flag} gives every GPU {} and {}; give one of them, or GPU={}",
                            show(first),
                            show(*amount),
                            if flag == FLOOR || flag == CORES {
                                "PERCENT"
                            } else {
                                "SIZE"
                            }
                        )));
                    }
                }
                PerGpu::By(list) => {
                    for (gpu, amount) in list {
                        if all.by_gpu.iter().any(|(known, _)| known == gpu) {
                            return Err(Misuse::new(format!(
                                "{flag} names GPU {gpu} twice; name it once"
                            )));
                        }
                        all.by_gpu.push((gpu.clone(), *amount));
                    }
                }
            }
        }
        Ok(all)
    }

    /// Whether the flag was given at all.
    pub(crate) fn is_given(&self) -> bool {
        self.each.is_some() || !self.by_gpu.is_empty()
    }
}

const MEMORY: &str = "--gpumem";
const CORES: &str = "--gpucores";
const FLOOR: &str = "--floor";
const MORE: &str = "--oversubscribe";

/// The limits that the command line asks for, before they are matched with GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wish {
    /// Memory of the GPU, bytes.
    pub(crate) memory: Given,
    /// Managed memory beyond it, bytes; 0 removes it.
    pub(crate) more: Given,
    /// Cap on compute time, percent.
    pub(crate) cores: Given,
    /// Guaranteed compute time, percent.
    pub(crate) floor: Given,
    /// When the caps apply.
    pub(crate) policy: Option<Policy>,
    /// 0 is the highest.
    pub(crate) priority: Option<u32>,
}

impl Wish {
    /// Merges the flags, and refuses combinations that have no meaning.
    pub(crate) fn of(memory: &[PerGpu], compute: &ComputeArgs) -> Result<Self, Misuse> {
        let size = |bytes: u64| Size(bytes).to_string();
        let percent = |percent: u64| format!("{percent} %");
        let wish = Self {
            memory: Given::merge(MEMORY, memory, size)?,
            more: Given::merge(MORE, &compute.oversubscribe, size)?,
            cores: Given::merge(CORES, &compute.gpucores, percent)?,
            floor: Given::merge(FLOOR, &compute.floor, percent)?,
            policy: compute.policy.map(Policy::from),
            priority: compute.priority,
        };
        match wish.policy.filter(|policy| *policy != Policy::Floor) {
            Some(policy) if wish.floor.is_given() => {
                let word = policy_word(policy);
                let why = match policy {
                    Policy::Disable => "ignores shares",
                    _ => "guarantees nothing",
                };
                return Err(Misuse::new(format!(
                    "--floor has no meaning with --policy {word}, which {why}; leave --floor out, \
                     or give --policy floor"
                )));
            }
            _ => {}
        }
        if !wish.is_any() {
            return Err(Misuse::new(
                "no limit given; give one, such as --gpumem 4Gi (of every GPU), --gpumem \
                 0=4Gi,1=8Gi or --gpucores 30",
            ));
        }
        Ok(wish)
    }

    /// No limit on anything, for a container that gets all of its GPUs.
    pub(crate) fn nothing() -> Self {
        let none = |flag| Given {
            flag,
            each: None,
            by_gpu: Vec::new(),
        };
        Self {
            memory: none(MEMORY),
            more: none(MORE),
            cores: none(CORES),
            floor: none(FLOOR),
            policy: None,
            priority: None,
        }
    }

    fn is_any(&self) -> bool {
        let given = [&self.memory, &self.more, &self.cores, &self.floor];
        given.iter().any(|given| given.is_given())
            || self.policy.is_some()
            || self.priority.is_some()
    }

    /// Whether it changes compute limits.
    pub(crate) fn is_of_compute(&self) -> bool {
        self.cores.is_given() || self.floor.is_given() || self.policy.is_some()
    }

    /// Refuses flags that only make sense for an existing container.
    pub(crate) fn check_new(&self) -> Result<(), Misuse> {
        let takes_away = self.more.each == Some(0) || self.more.by_gpu.iter().any(|(_, b)| *b == 0);
        if takes_away {
            return Err(Misuse::new(
                "--oversubscribe none removes oversubscription from a running container; at the \
                 start leave it out",
            ));
        }
        if self.more.is_given() && !self.memory.is_given() {
            return Err(Misuse::new(
                "--oversubscribe says how much more than --gpumem the program may have, and there \
                 is no --gpumem; add it, such as --gpumem 4Gi",
            ));
        }
        match self.policy {
            Some(Policy::Floor) if !self.floor.is_given() => Err(Misuse::new(
                "--policy floor guarantees the share that --floor names, and there is none; add \
                 --floor, such as --floor 20",
            )),
            Some(policy) if !self.cores.is_given() && !self.floor.is_given() => {
                Err(Misuse::new(format!(
                    "--policy {} says when the cap of --gpucores holds, and there is none; add \
                 --gpucores, such as --gpucores 30",
                    policy_word(policy)
                )))
            }
            _ => Ok(()),
        }
    }

    /// The requested policy: by name, or implied by the other flags.
    pub(super) fn asked_policy(&self) -> Option<Policy> {
        let by_floor = self.floor.is_given().then_some(Policy::Floor);
        let by_cap = self.cores.is_given().then_some(Policy::Force);
        self.policy.or(by_floor).or(by_cap)
    }
}
