//! Compute caps under NVIDIA's MPS. Under MPS, kernels of several programs run side by side on one GPU, so a
//! share of its time becomes a share of its multiprocessors. Owns that conversion.
//!
//! Never starts or stops MPS, and never gives a program more than its environment already does.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use vgpu_abi::limits::Policy;

use crate::failure::Misuse;
use crate::limits::{Shares, cap_of};

/// The variable that MPS reads when a program starts.
pub(crate) const VARIABLE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
/// The default directory of the control daemon.
const USUAL: &str = "/tmp/nvidia-mps";

/// Whether an MPS control daemon is running.
pub(crate) fn is_there() -> bool {
    let named = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").filter(|dir| !dir.is_empty());
    let dir = named.map_or_else(|| Path::new(USUAL).to_owned(), PathBuf::from);
    dir.join("control").exists()
}

/// The value of [`VARIABLE`] for the command, if it has to be set.
pub(crate) fn variable(shares: &Shares) -> Result<Option<OsString>, Misuse> {
    if !is_there() {
        return Ok(None);
    }
    decide(shares, std::env::var_os(VARIABLE).as_deref()).map(|it| it.map(OsString::from))
}

fn decide(shares: &Shares, already: Option<&OsStr>) -> Result<Option<String>, Misuse> {
    let stop = "or stop MPS (echo quit | nvidia-cuda-mps-control)";
    if let Some(share) = shares.gpus.iter().find(|share| share.floor_percent > 0) {
        return Err(Misuse::new(format!(
            "--floor {} of GPU {} cannot be kept under MPS, which is running here: the kernels of \
             several programs run side by side, and none waits for another. Leave --floor out, {stop}",
            share.floor_percent, share.index
        )));
    }
    let capped: Vec<_> = shares
        .gpus
        .iter()
        .map(|share| (share.index, cap_of(share.core_percent)))
        .collect();
    let Some((_, cap)) = capped.first().copied() else {
        return Ok(None);
    };
    if shares.policy == Policy::Disable || capped.iter().all(|(_, cap)| *cap == 0) {
        return Ok(None);
    }
    if shares.policy == Policy::Default {
        return Err(Misuse::new(format!(
            "--policy default cannot hold under MPS, which is running here: a program's share of \
             the GPU is fixed when it starts ({VARIABLE}), whatever other programs run. Give \
             --policy force, {stop}"
        )));
    }
    if capped.iter().any(|(_, other)| *other != cap) {
        let list: Vec<_> = capped
            .iter()
            .map(|(index, cap)| match cap {
                0 => format!("GPU {index} none"),
                cap => format!("GPU {index} {cap} %"),
            })
            .collect();
        return Err(Misuse::new(format!(
            "the compute limits differ by GPU ({}), and MPS, which is running here, has one share \
             for all GPUs of a program ({VARIABLE}). Give every GPU the same --gpucores, choose \
             one with --gpu, {stop}",
            list.join(", ")
        )));
    }
    let Some(already) = already.filter(|text| !text.is_empty()) else {
        return Ok(Some(cap.to_string()));
    };
    let text = already.to_string_lossy();
    match text.trim().parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= f64::from(cap) => Ok(None),
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(Some(cap.to_string())),
        _ => Err(Misuse::new(format!(
            "{VARIABLE} in the environment is {text:?}; accepted: a number above 0, at most 100. \
             Correct it, or unset it"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Share;
    use expect_test::{Expect, expect};

    fn check(caps: &[u32], policy: Policy, already: Option<&str>, expected: Expect) {
        check_floor(caps, 0, policy, already, expected);
    }

    fn check_floor(
        caps: &[u32],
        floor_percent: u32,
        policy: Policy,
        already: Option<&str>,
        expected: Expect,
    ) {
        let gpu = |(index, cap): (u32, &u32)| Share {
            index,
            uuid: format!("GPU-{index}"),
            physical_bytes: 16 << 30,
            bytes: 0,
            resident_bytes: 0,
            core_percent: *cap,
            floor_percent,
        };
        let shares = Shares {
            gpus: (0..).zip(caps).map(gpu).collect(),
            policy,
            priority: 1,
            is_choice: false,
            floors_are_inherited: false,
        };
        let found = match decide(&shares, already.map(OsStr::new)) {
            Ok(value) => value.unwrap_or_else(|| String::from("-")),
            Err(error) => error.to_string(),
        };
        expected.assert_eq(&found);
    }

    #[test]
    fn cap_becomes_a_share_of_the_multiprocessors_if_it_is_lower() {
        check(&[30], Policy::Force, None, expect!["30"]);
        check(&[30, 30], Policy::Floor, Some(""), expect!["30"]);
        check(&[30], Policy::Force, Some("50"), expect!["30"]);
        check(&[30], Policy::Force, Some("12.5"), expect!["-"]);
        check(&[0], Policy::Force, None, expect!["-"]);
        check(&[30], Policy::Disable, None, expect!["-"]);
        check(&[], Policy::Force, None, expect!["-"]);
    }

    #[test]
    fn limit_that_mps_cannot_hold_is_refused_with_a_cure() {
        check(
            &[30, 50],
            Policy::Force,
            None,
            expect![
                "the compute limits differ by GPU (GPU 0 30 %, GPU 1 50 %), and MPS, which is running here, has one share for all GPUs of a program (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE). Give every GPU the same --gpucores, choose one with --gpu, or stop MPS (echo quit | nvidia-cuda-mps-control)"
            ],
        );
        check(
            &[30],
            Policy::Default,
            None,
            expect![
                "--policy default cannot hold under MPS, which is running here: a program's share of the GPU is fixed when it starts (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE), whatever other programs run. Give --policy force, or stop MPS (echo quit | nvidia-cuda-mps-control)"
            ],
        );
        check_floor(
            &[0],
            20,
            Policy::Floor,
            None,
            expect![
                "--floor 20 of GPU 0 cannot be kept under MPS, which is running here: the kernels of several programs run side by side, and none waits for another. Leave --floor out, or stop MPS (echo quit | nvidia-cuda-mps-control)"
            ],
        );
        check(
            &[30],
            Policy::Force,
            Some("many"),
            expect![[
                r#"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE in the environment is "many"; accepted: a number above 0, at most 100. Correct it, or unset it"#
            ]],
        );
    }
}
