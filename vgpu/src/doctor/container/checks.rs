//! The checks of a container: facts in, verdicts out.

use vgpu_abi::layout::{REGION_VERSION, RegionLayout};
use vgpu_abi::size::Size;

use super::{ContainerFacts, LIMITS, PRELOAD, preloads};
use crate::doctor::check::{Check, Finding, Judged, fail, ok, several, skip, warn};
use crate::doctor::elf::glibc_version;

/// In the order of their ids.
pub(in crate::doctor) const CHECKS: &[Check<ContainerFacts>] = &[
    Check {
        id: "VGPU-C01",
        title: "the container has limits",
        cure: "ask for nvidia.com/gpu under the container's resources.limits; if the pod already does, vgpu doctor cluster finds out which part failed (webhook, scheduler, agent)",
        judge: limits_given,
    },
    Check {
        id: "VGPU-C02",
        title: "the limits file is intact and of a version known here",
        cure: "delete the pod, so that the agent writes a new file; if the fault returns, the agent and the library are of different releases",
        judge: limits_intact,
    },
    Check {
        id: "VGPU-C03",
        title: "the limits cannot be written from inside",
        cure: "remove hostPath volumes over /etc/vgpu from the pod and delete it: the agent mounts /etc/vgpu read-only",
        judge: limits_read_only,
    },
    Check {
        id: "VGPU-C04",
        title: "the usage region is there, of the right size, and can be written",
        cure: "delete the pod, so that the agent makes a new region; vgpu doctor node checks whether the node's disk is full",
        judge: region_usable,
    },
    Check {
        id: "VGPU-C05",
        title: "the library and the region have the same version",
        cure: "delete the pod: a new one gets a library and a region of one release",
        judge: versions_agree,
    },
    Check {
        id: "VGPU-C06",
        title: "the usage region lies on a file system with record locks",
        cure: "mount the region from a local file system of the node (the agent's --state-dir), not from the image's overlay or a network",
        judge: region_file_system,
    },
    Check {
        id: "VGPU-C07",
        title: "the library is preloaded into every program",
        cure: "delete the pod, so that the agent mounts /etc/ld.so.preload; remove volumes over that file from the pod",
        judge: preloaded,
    },
    Check {
        id: "VGPU-C08",
        title: "the preloaded library exists and is vgpu's",
        cure: "delete the pod; if the fault returns, look at lib/ in the agent's state directory and restart the agent, which installs the library",
        judge: library_there,
    },
    Check {
        id: "VGPU-C09",
        title: "the image's programs are linked to glibc",
        cure: "use an image based on glibc (debian, ubuntu, ubi): CUDA does not run on musl, and the library does nothing there",
        judge: not_musl,
    },
    Check {
        id: "VGPU-C10",
        title: "the image's glibc is new enough for the library",
        cure: "use a newer image, or the released library, which needs only glibc 2.17",
        judge: glibc_new_enough,
    },
    Check {
        id: "VGPU-C11",
        title: "no process has an LD_PRELOAD that leaves out the library",
        cure: "if a start script sets LD_PRELOAD, let it add to the variable (LD_PRELOAD=mine.so:$LD_PRELOAD) instead of replacing it",
        judge: preload_kept,
    },
    Check {
        id: "VGPU-C12",
        title: "every process that loaded the CUDA driver has the library",
        cure: "restart the named processes; a program that still starts without the library is statically linked or clears its environment: remove it from the image, or let the agent evict it (--attest=evict)",
        judge: no_process_without,
    },
    Check {
        id: "VGPU-C13",
        title: "nothing tries to switch the limits off",
        cure: "remove CUDA_DISABLE_CONTROL (and LD_AUDIT) from the image or the start script: the webhook refuses them in a pod, and they do not switch the limits off here",
        judge: not_disabled,
    },
    Check {
        id: "VGPU-C14",
        title: "NVIDIA_VISIBLE_DEVICES does not ask for every GPU",
        cure: "ask for nvidia.com/gpu in the pod, so that the agent chooses the GPUs; or set NVIDIA_VISIBLE_DEVICES=void in the image",
        judge: not_all_visible,
    },
    Check {
        id: "VGPU-C15",
        title: "the container sees only the GPUs that it was given",
        cure: "let the runtime hand out GPUs by CDI, or by NVIDIA's runtime only for containers that ask: a default runtime with NVIDIA_VISIBLE_DEVICES=all, or a privileged pod, exposes all of them",
        judge: only_given_gpus,
    },
    Check {
        id: "VGPU-C16",
        title: "the container has a process namespace of its own",
        cure: "remove hostPID: true from the pod",
        judge: own_pid_namespace,
    },
    Check {
        id: "VGPU-C17",
        title: "the CUDA driver in the container matches the kernel module",
        cure: "remove libcuda.so.1 and /usr/local/cuda/compat from the image (and from LD_LIBRARY_PATH): the driver is mounted from the node",
        judge: drivers_agree,
    },
    Check {
        id: "VGPU-C18",
        title: "an arbiter serves the container",
        cure: "look at the log of this node's agent (kubectl logs, container exporter); without an arbiter caps still hold, floors and priorities do not",
        judge: served,
    },
    Check {
        id: "VGPU-C19",
        title: "the container is not privileged",
        cure: "remove privileged: true and CAP_SYS_ADMIN from the container: with them it can undo the agent's mounts",
        judge: not_privileged,
    },
    Check {
        id: "VGPU-C20",
        title: "the memory limits leave room for a CUDA context",
        cure: "ask for more nvidia.com/gpumem: a CUDA context alone takes a few hundred MiB",
        judge: room_for_a_context,
    },
    Check {
        id: "VGPU-C21",
        title: "the image has what the library needs",
        cure: "install the released library, which needs only glibc (cargo xtask dist): while a needed library is missing, no program of the container starts",
        judge: nothing_missing,
    },
];

/// A context, and little beside it.
const SMALLEST_USEFUL: u64 = 512 << 20;
/// The arbiter writes every 50 to 100 ms; after 300 the library takes it for dead.
const DEAD_ARBITER_MS: u64 = 2_000;
/// The host's own namespace of processes has this number on every Linux.
const HOST_PID_NAMESPACE: &str = "pid:[4026531836]";
/// `CAP_SYS_ADMIN`.
const SYS_ADMIN: u64 = 1 << 21;
/// File systems that a region must not lie on, by how their names begin.
const UNFIT: [&str; 7] = ["overlay", "aufs", "nfs", "cifs", "smb", "fuse", "9p"];

impl ContainerFacts {
    fn has_limits(&self) -> Result<(), Finding> {
        if self.limits.present {
            Ok(())
        } else {
            Err(skip("there are no limits here (VGPU-C01)"))
        }
    }

    /// Whether the node's agent made it; else a `vgpu run` did.
    fn is_the_agents(&self) -> bool {
        self.limits_path == LIMITS
    }

    /// Paths that `LD_PRELOAD` of the first process names.
    fn variable(&self) -> Vec<&str> {
        let value = self.env.get("LD_PRELOAD").map_or("", String::as_str);
        preloads(value).collect()
    }

    /// The preloaded path of vgpu's library, and where it is named.
    fn preload(&self) -> Option<(&str, &'static str)> {
        let is_ours = |path: &&str| {
            path.rsplit('/')
                .next()
                .unwrap_or_default()
                .starts_with("libvgpu")
        };
        let file = self.preload_file.iter().flatten().map(String::as_str);
        let of_file = file
            .filter(|path| is_ours(path))
            .map(|path| (path, PRELOAD));
        let of_variable = self.variable().into_iter().filter(|path| is_ours(path));
        of_file
            .chain(of_variable.map(|path| (path, "LD_PRELOAD")))
            .next()
    }

    fn on_glibc(&self) -> Result<(), Finding> {
        match &self.musl {
            Some(path) if self.glibc.is_none() => {
                Err(skip(format!("the image is on musl ({path}; VGPU-C09)")))
            }
            _ => Ok(()),
        }
    }
}

fn limits_given(facts: &ContainerFacts) -> Judged {
    let path = &facts.limits_path;
    if facts.limits.present {
        return Ok(ok(format!("{path} is here")));
    }
    let error = facts.limits.error.clone();
    let why = error.unwrap_or_else(|| format!("there is no {path}, and VGPU_LIMITS is not set"));
    let visible = match facts.gpus.len() {
        0 => String::from("and no GPU is visible"),
        count => format!("and {count} GPUs are visible, without a limit"),
    };
    Err(fail(format!("{why}, {visible}")))
}

fn limits_intact(facts: &ContainerFacts) -> Judged {
    facts.has_limits()?;
    if let Some(error) = &facts.limits_error {
        return Err(fail(format!("{}: {error}", facts.limits_path)));
    }
    if facts.devices.is_empty() {
        return Err(fail(format!("{} names no device", facts.limits_path)));
    }
    let devices: Vec<String> = facts
        .devices
        .iter()
        .map(|device| {
            let memory = match device.memory_bytes {
                0 => String::from("all memory"),
                bytes => Size(bytes).to_string(),
            };
            let cores = match device.core_percent {
                0 | 100.. => String::new(),
                percent => format!(", {percent}% of its time"),
            };
            format!("{}: {memory}{cores}", device.uuid)
        })
        .collect();
    Ok(ok(several(&devices)))
}

fn limits_read_only(facts: &ContainerFacts) -> Judged {
    facts.has_limits()?;
    if !facts.is_the_agents() {
        return Err(skip("a vgpu run is cooperative: its user owns the limits"));
    }
    let mount = facts.limits_mount.as_ref();
    let mount = mount.ok_or_else(|| skip("the mount table cannot be read"))?;
    if mount.read_only {
        return Ok(ok(format!("{} is mounted read-only", mount.point)));
    }
    Ok(fail(format!(
        "{} lies on {}, a {} that can be written",
        facts.limits_path, mount.point, mount.kind
    )))
}

fn region_usable(facts: &ContainerFacts) -> Judged {
    facts.has_limits()?;
    let path = &facts.region_path;
    let region = &facts.region;
    if !region.present {
        let why = region.error.clone();
        return Err(fail(why.unwrap_or_else(|| format!("there is no {path}"))));
    }
    let expected = size_of::<RegionLayout>();
    if !region.regular || region.bytes != expected as u64 {
        return Err(fail(format!(
            "{path} has {} bytes, expected a regular file of {expected}",
            region.bytes
        )));
    }
    if facts
        .region_mount
        .as_ref()
        .is_some_and(|mount| mount.read_only)
    {
        return Err(fail(format!("{path} is mounted read-only")));
    }
    if let Some(error) = &facts.region_error {
        return Err(fail(format!("{path}: {error}")));
    }
    Ok(ok(format!("{path}, {expected} bytes")))
}

fn versions_agree(facts: &ContainerFacts) -> Judged {
    facts.has_limits()?;
    let region = facts
        .region_version
        .ok_or_else(|| skip("there is no readable region (VGPU-C04)"))?;
    let library = facts
        .preload()
        .and_then(|(path, _)| Some((path, facts.libraries.get(path)?.as_ref()?.region_version?)));
    match library {
        Some((path, version)) if version != region => Err(fail(format!(
            "{path} reads regions of version {version}, and {} has version {region}",
            facts.region_path
        ))),
        Some((path, version)) => Ok(ok(format!("{path} and the region: version {version}"))),
        None if region != REGION_VERSION => Err(fail(format!(
            "{} has version {region}, and this release knows {REGION_VERSION}",
            facts.region_path
        ))),
        None => Ok(ok(format!(
            "the region has version {region}, as this command"
        ))),
    }
}

fn region_file_system(facts: &ContainerFacts) -> Judged {
    facts.has_limits()?;
    if !facts.region.present {
        return Err(skip("there is no region (VGPU-C04)"));
    }
    let mount = facts.region_mount.as_ref();
    let mount = mount.ok_or_else(|| skip("the mount table cannot be read"))?;
    let said = format!(
        "{} lies on {} ({})",
        facts.region_path, mount.point, mount.kind
    );
    if UNFIT.iter().any(|kind| mount.kind.starts_with(kind)) {
        return Ok(fail(said));
    }
    Ok(ok(said))
}

fn preloaded(facts: &ContainerFacts) -> Judged {
    facts.has_limits()?;
    facts.on_glibc()?;
    match facts.preload() {
        Some((path, by)) => Ok(ok(format!("{by} names {path}"))),
        None => {
            let file = match &facts.preload_file {
                None => format!("there is no {PRELOAD}"),
                Some(lines) => format!("{PRELOAD} names {:?}", lines.join(" ")),
            };
            Ok(fail(format!(
                "{file}, and LD_PRELOAD names {:?}",
                facts.variable().join(" ")
            )))
        }
    }
}

fn library_there(facts: &ContainerFacts) -> Judged {
    facts.has_limits()?;
    let (path, by) = facts
        .preload()
        .ok_or_else(|| skip("no library is preloaded (VGPU-C07)"))?;
    match facts.libraries.get(path) {
        None | Some(None) => Ok(fail(format!(
            "{by} names {path}, and there is no such file"
        ))),
        Some(Some(library)) => match (&library.error, library.region_version) {
            (Some(error), _) => Ok(fail(format!("{path}: {error}"))),
            (None, None) => Ok(fail(format!(
                "{path} is not vgpu's library: it has no VGPU_LIBRARY_MARKER"
            ))),
            (None, Some(_)) => Ok(ok(format!("{path} ({})", library.machine))),
        },
    }
}

fn not_musl(facts: &ContainerFacts) -> Judged {
    match (&facts.musl, &facts.glibc) {
        (Some(path), None) => Ok(fail(format!("{path} is here, and no libc.so.6"))),
        (_, Some(version)) => Ok(ok(format!("glibc {version}"))),
        (None, None) => Ok(skip("no C library was found in the usual directories")),
    }
}

fn glibc_new_enough(facts: &ContainerFacts) -> Judged {
    facts.has_limits()?;
    facts.on_glibc()?;
    let here = facts
        .glibc
        .as_deref()
        .ok_or_else(|| skip("no libc.so.6 was found in the usual directories"))?;
    let (path, needed) = facts
        .preload()
        .and_then(|(path, _)| {
            let library = facts.libraries.get(path)?.as_ref()?;
            Some((path, library.needs_glibc.as_deref()?))
        })
        .ok_or_else(|| skip("the library is not preloaded (VGPU-C07, VGPU-C08)"))?;
    let said = format!("{path} needs glibc {needed}, the image has {here}");
    if glibc_version(here) < glibc_version(needed) {
        return Ok(fail(said));
    }
    Ok(ok(said))
}

fn preload_kept(facts: &ContainerFacts) -> Judged {
    facts.has_limits()?;
    facts.on_glibc()?;
    let (ours, by) = facts
        .preload()
        .ok_or_else(|| skip("no library is preloaded (VGPU-C07)"))?;
    if by == PRELOAD {
        return Ok(ok(format!(
            "{PRELOAD} names the library: LD_PRELOAD may be what it likes"
        )));
    }
    let mut read = 0;
    let others: Vec<String> = facts
        .processes
        .iter()
        .filter(|process| process.env.is_some())
        .inspect(|_| read += 1)
        .filter_map(|process| {
            let value = process.variable("LD_PRELOAD").unwrap_or_default();
            let kept = preloads(value).any(|path| path == ours);
            (!kept).then(|| format!("{} has LD_PRELOAD={value:?}", process.shown()))
        })
        .collect();
    if others.is_empty() {
        return Ok(ok(format!("{read} processes have it")));
    }
    Ok(fail(several(&others)))
}

fn no_process_without(facts: &ContainerFacts) -> Judged {
    facts.has_limits()?;
    let cuda = facts
        .processes
        .iter()
        .filter(|process| process.cuda == Some(true));
    let without: Vec<String> = cuda
        .clone()
        .filter(|process| process.ours == Some(false))
        .map(|process| process.shown())
        .collect();
    if without.is_empty() {
        return Ok(ok(format!("{} processes with a CUDA driver", cuda.count())));
    }
    Ok(fail(format!("without the library: {}", several(&without))))
}

fn not_disabled(facts: &ContainerFacts) -> Judged {
    let off = |value: &str| !matches!(value.to_lowercase().as_str(), "" | "0" | "false");
    let mut found = Vec::new();
    for name in ["CUDA_DISABLE_CONTROL", "LD_AUDIT"] {
        if let Some(value) = facts.env.get(name).filter(|value| off(value)) {
            found.push(format!("{name}={value}"));
            continue;
        }
        let other = facts
            .processes
            .iter()
            .find(|process| process.variable(name).is_some_and(off));
        if let Some(process) = other {
            found.push(format!("{name} of {}", process.shown()));
        }
    }
    if found.is_empty() {
        return Ok(ok("neither CUDA_DISABLE_CONTROL nor LD_AUDIT is set"));
    }
    Ok(warn(several(&found)))
}

fn not_all_visible(facts: &ContainerFacts) -> Judged {
    match facts.env.get("NVIDIA_VISIBLE_DEVICES").map(String::as_str) {
        Some("all") => Ok(fail(
            "NVIDIA_VISIBLE_DEVICES=all, from the image or the pod",
        )),
        Some(value) => Ok(ok(format!("NVIDIA_VISIBLE_DEVICES={value}"))),
        None => Ok(ok("NVIDIA_VISIBLE_DEVICES is not set")),
    }
}

fn only_given_gpus(facts: &ContainerFacts) -> Judged {
    facts.has_limits()?;
    if !facts.is_the_agents() {
        return Err(skip("a vgpu run sees the machine's GPUs"));
    }
    if facts.devices.is_empty() {
        return Err(skip("the limits cannot be read (VGPU-C02)"));
    }
    let (seen, given) = (facts.gpus.len(), facts.devices.len());
    let said = format!("{seen} of /dev/nvidiaN are here, the limits name {given} devices");
    if seen > given {
        return Ok(fail(said));
    }
    Ok(ok(said))
}

fn own_pid_namespace(facts: &ContainerFacts) -> Judged {
    facts.has_limits()?;
    if !facts.is_the_agents() {
        return Err(skip("a vgpu run shares the machine's processes"));
    }
    match facts.pid_namespace.as_deref() {
        None => Ok(skip("/proc/PID/ns/pid cannot be read")),
        Some(HOST_PID_NAMESPACE) => Ok(warn(format!(
            "{HOST_PID_NAMESPACE} is the host's: the pod has hostPID"
        ))),
        Some(other) => Ok(ok(other)),
    }
}

fn drivers_agree(facts: &ContainerFacts) -> Judged {
    let Some(kernel) = &facts.kernel_driver else {
        return Err(skip(
            "/proc/driver/nvidia/version is not here: no driver, or a simulated one",
        ));
    };
    match &facts.libcuda {
        None => Ok(fail(format!(
            "the kernel has driver {kernel}, and no libcuda.so.1 is in the usual directories"
        ))),
        Some((path, None)) => Ok(skip(format!("{path} does not say its release"))),
        Some((path, Some(release))) if release == kernel => {
            Ok(ok(format!("{path} and the kernel: {kernel}")))
        }
        Some((path, Some(release))) => Ok(fail(format!(
            "{path} is of {release}, the kernel's driver of {kernel}"
        ))),
    }
}

fn served(facts: &ContainerFacts) -> Judged {
    facts.has_limits()?;
    if let Some(error) = &facts.targets_error {
        return Err(fail(format!("the targets beside the limits: {error}")));
    }
    match facts.heartbeat_ago_ms {
        None => Ok(warn("there are no targets beside the limits")),
        Some(ago) if ago > DEAD_ARBITER_MS => {
            Ok(warn(format!("it last wrote {} s ago", ago / 1_000)))
        }
        Some(_) => Ok(ok("it wrote within 2 s")),
    }
}

fn not_privileged(facts: &ContainerFacts) -> Judged {
    facts.has_limits()?;
    if !facts.is_the_agents() {
        return Err(skip("a vgpu run has the rights of its user"));
    }
    match facts.capabilities {
        None => Ok(skip("/proc/PID/status cannot be read")),
        Some(held) if held & SYS_ADMIN != 0 => {
            Ok(warn(format!("CapEff is {held:016x}, with CAP_SYS_ADMIN")))
        }
        Some(held) => Ok(ok(format!("CapEff is {held:016x}"))),
    }
}

fn nothing_missing(facts: &ContainerFacts) -> Judged {
    facts.has_limits()?;
    facts.on_glibc()?;
    facts
        .preload()
        .and_then(|(path, _)| facts.libraries.get(path)?.as_ref())
        .ok_or_else(|| skip("the library is not preloaded (VGPU-C07, VGPU-C08)"))?;
    if facts.missing.is_empty() {
        return Ok(ok("nothing is missing"));
    }
    Ok(fail(format!(
        "the usual directories lack {}",
        several(&facts.missing)
    )))
}

fn room_for_a_context(facts: &ContainerFacts) -> Judged {
    facts.has_limits()?;
    if facts.devices.is_empty() {
        return Err(skip("the limits cannot be read (VGPU-C02)"));
    }
    let small: Vec<String> = facts
        .devices
        .iter()
        .filter(|device| (1..SMALLEST_USEFUL).contains(&device.memory_bytes))
        .map(|device| format!("{} of {}", Size(device.memory_bytes), device.uuid))
        .collect();
    if small.is_empty() {
        return Ok(ok(format!("none is below {}", Size(SMALLEST_USEFUL))));
    }
    Ok(warn(several(&small)))
}
