//! Faults on demand, in the form of `VGPU_SIM_FAULTS`: which call fails with which code, and which one is slow. For
//! both libraries: a code is the CUDA driver's or NVML's, depending on the name. Knows nothing of the calls.
//!
//! Entries are separated by commas; a name may end in `*`: `fail:cuMemAlloc_v2=2` (that code, always),
//! `fail:cuMemAlloc_v2=2@3` (only the third such call of a process), `slow:cuMem*=500us`. `xid:1=79` belongs to no
//! call but to GPU 1: it has had that XID from the start (79: it has fallen off the bus). Faults that begin while a
//! board runs are `Board::trouble`'s.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::setting::BadSetting;

/// The faults of one process.
#[derive(Debug, Default)]
pub struct Faults(Vec<Fault>);

#[derive(Debug)]
struct Fault {
    name: String,
    what: What,
    met: AtomicU64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// Answers this code; at this call only, when not 0.
    Fail {
        code: u32,
        at: u64,
    },
    Slow {
        ns: u64,
    },
}

impl Faults {
    /// Reads the text; an entry that is not understood is left out.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        Self(entries(text).filter_map(entry_of).collect())
    }

    /// No fault of a call.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Waits with `spend`, or returns a code, as the faults for this name say.
    ///
    /// # Errors
    /// With the fault's code.
    pub fn meet(&self, name: &str, spend: impl Fn(u64)) -> Result<(), u32> {
        for fault in self.0.iter().filter(|fault| fault.is_for(name)) {
            // Relaxed: a count, and nothing else.
            let number = fault.met.fetch_add(1, Ordering::Relaxed) + 1;
            match fault.what {
                What::Fail { code, at } if at == 0 || at == number => return Err(code),
                What::Fail { .. } => {}
                What::Slow { ns } => spend(ns),
            }
        }
        Ok(())
    }
}

impl Fault {
    fn is_for(&self, name: &str) -> bool {
        match self.name.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => self.name == name,
        }
    }
}

/// GPUs and the XIDs that they have met from the start.
#[must_use]
pub fn xids(text: &str) -> Vec<(usize, u64)> {
    entries(text).filter_map(xid_of).collect()
}

/// Checks that every entry is valid.
///
/// # Errors
/// With what was read and what is accepted.
pub fn check(text: &str) -> Result<(), BadSetting> {
    match entries(text).find(|entry| entry_of(entry).is_none() && xid_of(entry).is_none()) {
        None => Ok(()),
        Some(entry) => Err(BadSetting::entry(
            "VGPU_SIM_FAULTS",
            entry,
            "fail:NAME=CODE, fail:NAME=CODE@NUMBER, slow:NAME=TIME such as 500us, or xid:GPU=XID, with commas between them",
        )),
    }
}

fn entries(text: &str) -> impl Iterator<Item = &str> {
    text.split(',')
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
}

fn xid_of(entry: &str) -> Option<(usize, u64)> {
    let (gpu, xid) = entry.strip_prefix("xid:")?.split_once('=')?;
    Some((gpu.trim().parse().ok()?, xid.trim().parse().ok()?))
}

fn entry_of(entry: &str) -> Option<Fault> {
    let (kind, rest) = entry.split_once(':')?;
    let (name, value) = rest.split_once('=')?;
    let what = match kind {
        "fail" => {
            let (code, at) = value.split_once('@').unwrap_or((value, "0"));
            What::Fail {
                code: code.parse().ok()?,
                at: at.parse().ok()?,
            }
        }
        "slow" => What::Slow {
            ns: crate::script::time_ns(value).ok()?,
        },
        _ => return None,
    };
    Some(Fault {
        name: name.to_owned(),
        what,
        met: AtomicU64::new(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_fails_as_often_as_its_fault_says() {
        let faults = Faults::parse("fail:cuMemAlloc_v2=2@2, fail:cuMemCreate=801, xid:0=79");

        assert_eq!(faults.meet("cuMemAlloc_v2", |_| ()), Ok(()));
        assert_eq!(faults.meet("cuMemAlloc_v2", |_| ()), Err(2));
        assert_eq!(faults.meet("cuMemAlloc_v2", |_| ()), Ok(()));
        assert_eq!(faults.meet("cuMemCreate", |_| ()), Err(801));
        assert_eq!(faults.meet("cuMemCreate", |_| ()), Err(801));
        assert_eq!(faults.meet("cuMemFree_v2", |_| ()), Ok(()));
    }

    #[test]
    fn a_name_may_end_in_a_star() {
        let faults = Faults::parse("fail:cuMem*=999");

        assert_eq!(faults.meet("cuMemFree_v2", |_| ()), Err(999));
        assert_eq!(faults.meet("cuCtxCreate_v2", |_| ()), Ok(()));
    }

    #[test]
    fn a_gpu_has_met_the_xids_of_its_faults() {
        assert_eq!(
            xids("fail:cuMemCreate=2, xid:1=79,xid:0=31"),
            [(1, 79), (0, 31)]
        );
    }

    #[test]
    fn an_entry_that_is_not_understood_is_named() {
        assert_eq!(
            check("fail:cuInit=100@1, slow:cuMem*=1ms, xid:0=79"),
            Ok(())
        );
        for entry in [
            "fail:cuInit",
            "fail:cuInit=x",
            "slow:cuInit=fast",
            "xid:79",
            "cuInit=2",
        ] {
            let error = check(entry).unwrap_err().to_string();
            assert!(error.contains(entry), "{error}");
        }
    }
}
