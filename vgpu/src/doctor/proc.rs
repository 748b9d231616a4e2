//! Processes, read from `/proc`. Owns which of their variables are kept.
//!
//! Never keeps a variable that the checks do not need: an environment contains secrets, and facts are passed on.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::root::RootDir;

/// Variables that matter for GPUs.
const VARIABLES: [&str; 17] = [
    "CUDA_DEVICE_MEMORY_LIMIT",
    "CUDA_DEVICE_MEMORY_SHARED_CACHE",
    "CUDA_DEVICE_SM_LIMIT",
    "CUDA_DISABLE_CONTROL",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_VISIBLE_DEVICES",
    "GPU_CORE_UTILIZATION_POLICY",
    "HCS_VRAM_QUOTA",
    "LD_AUDIT",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "NODE_NAME",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_VISIBLE_DEVICES",
    "VGPU_LIMITS",
    "VGPU_REGION",
    "VGPU_SIM_BOARD",
];

/// The most processes that are read.
const MOST_PROCESSES: usize = 20_000;

/// A process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ProcessFacts {
    pub(super) pid: u32,
    pub(super) name: String,
    /// Its relevant variables; `None` if they may not be read.
    pub(super) env: Option<BTreeMap<String, String>>,
    /// Whether a CUDA driver is in its memory; `None` if that may not be read.
    pub(super) cuda: Option<bool>,
    /// Whether vgpu's library is in its memory.
    pub(super) ours: Option<bool>,
    /// Its arguments, if the checks need them.
    pub(super) command: Vec<String>,
    /// Its namespaces: `pid:[4026531836]`.
    pub(super) pid_namespace: Option<String>,
    pub(super) mount_namespace: Option<String>,
    pub(super) net_namespace: Option<String>,
}

impl ProcessFacts {
    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        self.env.as_ref()?.get(name).map(String::as_str)
    }

    /// `name (pid)`.
    pub(super) fn shown(&self) -> String {
        format!("{} ({})", self.name, self.pid)
    }
}

/// Ids of all processes.
pub(super) fn pids(proc: &RootDir) -> Vec<u32> {
    let mut pids: Vec<u32> = proc
        .names("/")
        .iter()
        .filter_map(|name| name.parse().ok())
        .collect();
    pids.sort_unstable();
    pids.truncate(MOST_PROCESSES);
    pids
}

/// The variables of `/proc/PID/environ` that are kept.
pub(super) fn environment(proc: &RootDir, pid_dir: &str) -> Option<BTreeMap<String, String>> {
    let bytes = proc
        .bytes(&format!("/{pid_dir}/environ"), super::root::MOST_TEXT)
        .ok()??;
    let variables = bytes.split(|byte| *byte == 0).filter_map(|variable| {
        let (name, value) = std::str::from_utf8(variable).ok()?.split_once('=')?;
        let kept = VARIABLES.contains(&name)
            || name
                .strip_prefix("CUDA_DEVICE_MEMORY_LIMIT_")
                .is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()));
        kept.then(|| (name.to_owned(), value.to_owned()))
    });
    Some(variables.collect())
}

/// A namespace of a process.
pub(super) fn namespace(proc: &RootDir, pid_dir: &str, kind: &str) -> Option<String> {
    proc.link(&format!("/{pid_dir}/ns/{kind}"))
}

/// Reads a process from `/proc`; `None` if it has ended.
pub(super) fn process(proc: &RootDir, pid: u32) -> Option<ProcessFacts> {
    let pid_dir = pid.to_string();
    let name = proc
        .text(&format!("/{pid_dir}/comm"))?
        .trim_end()
        .to_owned();
    let maps = proc.text(&format!("/{pid_dir}/maps"));
    let mapped = |begins: &str| {
        let maps = maps.as_ref()?;
        Some(maps.lines().any(|line| {
            let path = line.split_whitespace().nth(5).unwrap_or_default();
            let file = path.rsplit('/').next().unwrap_or_default();
            file.starts_with(begins)
        }))
    };
    let command = proc
        .text(&format!("/{pid_dir}/cmdline"))
        .unwrap_or_default()
        .split('\0')
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect::<Vec<_>>();
    // Other programs' arguments may contain any bytes.
    let known = ["vgpu-monitor", "vGPUmonitor", "nvidia-device-plugin"];
    let program = command.first().map(String::as_str).unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or_default();
    Some(ProcessFacts {
        pid,
        env: environment(proc, &pid_dir),
        cuda: mapped("libcuda.so"),
        ours: mapped("libvgpu"),
        command: if known.contains(&program) {
            command
        } else {
            Vec::new()
        },
        pid_namespace: namespace(proc, &pid_dir, "pid"),
        mount_namespace: namespace(proc, &pid_dir, "mnt"),
        net_namespace: namespace(proc, &pid_dir, "net"),
        name,
    })
}

/// The release in `/proc/driver/nvidia/version`, as `550.54.15`.
pub(super) fn driver_release(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.contains("NVRM version"))?;
    line.split_whitespace().find_map(release)
}

/// The word, if it looks like a release.
pub(super) fn release(word: &str) -> Option<String> {
    let parts: Vec<&str> = word.split('.').collect();
    let numbers = parts.len() >= 2
        && parts
            .iter()
            .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    numbers.then(|| word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_release_is_found_in_both_forms_of_its_line() {
        for line in [
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build",
        ] {
            let found = driver_release(&format!("{line}\nGCC version: gcc 12.2.0\n"));
            assert!(
                matches!(found.as_deref(), Some("550.54.15" | "570.86.15")),
                "{found:?}"
            );
        }
        assert_eq!(driver_release("GCC version:  gcc 12.2.0"), None);
    }
}
