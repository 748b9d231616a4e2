//! Rules: a device that programs share through NVIDIA's MPS. Kernels of several programs run side by
//! side there, so waiting gives no program a share of its time: a cap counts as a share of the
//! multiprocessors, which MPS gives a program for good when it starts. Says whether a device is shared
//! in this way, and refuses contexts that would run without the cap.
//!
//! Never changes the environment, never talks to the MPS daemon, and lets nothing run uncapped in
//! silence.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, Ordering};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cuda_api::CuResult;
use vgpu_abi::limits::Policy;

use crate::base::environment;
use crate::base::lock;
use crate::base::log::line;
use crate::driver::device::Fact;
use crate::driver::query;
use crate::guest::manners;
use crate::state::accounts::Accounts;

/// The share of the multiprocessors that MPS gives a program, percent.
const SHARE: &CStr = c"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";

/// `CU_DEVICE_ATTRIBUTE_MPS_ENABLED` (from CUDA 12.4 on) and one that every driver knows.
const MPS_ENABLED: u32 = 133;
const MULTIPROCESSORS: u32 = 16;

/// Do contexts share this device (of the region) through MPS? Asked once; the compute rules do without
/// credit there.
pub(crate) fn under_mps(accounts: &Accounts, device: usize) -> bool {
    accounts.process.is(device, Fact::Mps, || {
        let ordinal = accounts.ordinal_of(device)?;
        query::device_attribute(ordinal, MULTIPROCESSORS)?;
        let answer = query::device_attribute(ordinal, MPS_ENABLED);
        // A driver that cannot say makes its contexts through MPS where the daemon is.
        Some(answer.map_or_else(daemon_is_there, |answer| answer != 0))
    })
}

fn daemon_is_there() -> bool {
    let named = variable(c"CUDA_MPS_PIPE_DIRECTORY").filter(|directory| !directory.is_empty());
    let directory = named.unwrap_or_else(|| OsString::from("/tmp/nvidia-mps"));
    Path::new(&directory).join("control").exists()
}

fn variable(name: &CStr) -> Option<OsString> {
    environment::read(name, |value| OsStr::from_bytes(value).to_owned())
}

/// Why a context on this device would run without its cap; `None`: it would not, or there is no cap.
pub(crate) fn refuses(accounts: &Accounts, call: &str, device: usize) -> Option<CuResult> {
    let (policy, percent) = accounts.process.compute_limit(accounts.container, device);
    if policy == Policy::Disable || !(1..100).contains(&percent) || !under_mps(accounts, device) {
        return None;
    }
    manners::uncancelled(|| {
        let share = variable(SHARE);
        let share = share.as_deref().map(OsStr::to_string_lossy);
        if share
            .as_deref()
            .is_some_and(|text| is_within(text, percent))
        {
            return None;
        }
        // A program that tries again and again fills no log.
        let second = lock::milliseconds().unsigned_abs() / 1000 + 1;
        // Relaxed: guards no other memory.
        if LAST_SAID.swap(second, Ordering::Relaxed) != second {
            line!(
                Error,
                "{call}: device {device} is shared through MPS, where the compute limit of {percent} % \
                 is kept as {}, a number above 0 and at most {percent} when the program starts; it is {}",
                SHARE.to_str().unwrap_or_default(),
                share.as_deref().unwrap_or("not set")
            );
        }
        Some(CuResult::NOT_PERMITTED)
    })
}

/// The second (of the monotonic clock, plus one) in which a refusal was last logged.
static LAST_SAID: AtomicU64 = AtomicU64::new(0);

fn is_within(text: &str, percent: u32) -> bool {
    text.trim()
        .parse()
        .is_ok_and(|share: f64| share > 0.0 && share <= f64::from(percent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_counts_when_it_is_a_number_that_the_cap_allows() {
        for (text, within) in [
            ("30", true),
            (" 12.5 ", true),
            ("30.5", false),
            ("100", false),
            ("0", false),
            ("-3", false),
            ("nan", false),
            ("", false),
            ("30%", false),
        ] {
            assert_eq!(is_within(text, 30), within, "{text}");
        }
    }
}
