//! Refuses settings that would switch a limit off: variables, mounts, privileges. Values in, a refusal out; nothing is
//! changed.
//!
//! Some variables are invisible to admission: the image's own environment, variables that `envFrom` takes from a
//! ConfigMap or Secret, and variables that a program sets for its children. `/etc/ld.so.preload` and attestation on the
//! node cover those.

use kube_api::object::{Container, EnvVar};
use serde_json::Value;

use crate::denied::Denied;

/// The variable that tells NVIDIA's container runtime which devices a container sees.
pub(crate) const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";
pub(crate) const PRELOAD: &str = "LD_PRELOAD";
const AUDIT: &str = "LD_AUDIT";
/// Values with which a container sees no device.
pub(crate) const NO_DEVICES: [&str; 3] = ["", "none", "void"];
/// The directories in which NVIDIA's container runtime reads the names of mounts as names of devices to give.
pub(crate) const RUNTIME_DEVICE_MOUNTS: [&str; 2] = [
    "/run/nvidia-container-devices",
    "/var/run/nvidia-container-devices",
];

/// Variables that limit a container's share, in our library and in the peers'. Only the host may set them.
const LIMITS: [&str; 5] = [
    "CUDA_DEVICE_MEMORY_LIMIT",
    "CUDA_DEVICE_SM_LIMIT",
    "CUDA_DEVICE_MEMORY_SHARED_CACHE",
    "CUDA_OVERSUBSCRIBE",
    "HCS_VRAM_QUOTA",
];
/// Those of our own variables that only control logging.
const HARMLESS: [&str; 2] = ["VGPU_LOG", "VGPU_LOG_LEVEL"];
const OWN_PREFIX: &str = "VGPU_";
const DISABLE: &str = "CUDA_DISABLE_CONTROL";
const CORE_POLICY: &str = "GPU_CORE_UTILIZATION_POLICY";
/// The values that Go reads as false; for the peers' agent they mean "keep the limits".
const FALSE: [&str; 6] = ["0", "f", "F", "false", "False", "FALSE"];

/// The paths at which the agent mounts the library, the limits and the region.
const OWN_PATHS: [&str; 5] = [
    "/etc/ld.so.preload",
    "/etc/vgpu",
    "/run/vgpu",
    "/var/run/vgpu",
    "/usr/local/vgpu",
];
/// The directories above them. In a volume there, the agent's mounts lie on entries of that volume: a second container
/// with the volume, or the same one after a restart, can rename those entries, and Linux then detaches the mounts.
const ABOVE_OWN_PATHS: [&str; 6] = ["", "/etc", "/run", "/usr", "/usr/local", "/var/run"];

/// Why a variable that a pod with devices sets is refused; `None` if it is not.
fn fault(variable: &EnvVar) -> Option<String> {
    let name = variable.name.as_str();
    let elsewhere = variable.value_from.is_some();
    let value = variable.value.as_deref().unwrap_or_default();
    let read = if elsewhere {
        "its value comes from elsewhere, where it cannot be seen,".to_owned()
    } else {
        // A value may be as long as the object.
        let shown: String = value.chars().take(100).collect();
        format!("{shown:?}")
    };
    match name {
        DISABLE => (elsewhere || !FALSE.contains(&value)).then(|| {
            format!("{read} would switch the limits off; remove it, and ask for the whole device if it is needed")
        }),
        AUDIT => (elsewhere || !value.is_empty()).then(|| {
            format!("{read} would be loaded before the library that keeps the limits; remove it")
        }),
        PRELOAD => elsewhere.then(|| {
            "its value comes from elsewhere, so the library that keeps the limits cannot be put before it; write the \
             value itself"
                .to_owned()
        }),
        // Only values that are known to leave the limit on: the kubelet expands $(OTHER) after admission.
        CORE_POLICY => (elsewhere || !["", "default", "force"].contains(&value)).then(|| {
            format!(
                "{read} would switch the limit on compute off, or could; use \"default\" or \"force\", or remove it"
            )
        }),
        _ if name.starts_with(OWN_PREFIX) => (!HARMLESS.contains(&name)).then(|| {
            "variables that begin with VGPU_ are the host's to set, but for VGPU_LOG and VGPU_LOG_LEVEL; remove it"
                .to_owned()
        }),
        _ => LIMITS
            .iter()
            .any(|limit| {
                name.strip_prefix(limit)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
            })
            .then(|| {
                "the host says what the container may use; remove it, and ask under resources.limits".to_owned()
            }),
    }
}

/// Checks that the variables of a container leave the limits on, in a pod that asks for devices. `ours` says which of
/// them admission itself set.
pub(crate) fn environment(
    container: &Container,
    ours: impl Fn(&EnvVar) -> bool,
) -> Result<(), Denied> {
    for variable in &container.env {
        if let Some(fault) = fault(variable)
            && !ours(variable)
        {
            return Err(Denied::container(
                &container.name,
                format!("env[{}]", variable.name),
                fault,
            ));
        }
    }
    Ok(())
}

/// The requests of a container, for the check of its mounts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Asks {
    /// No container of the pod asks for devices.
    Nothing,
    /// Another container of the pod asks for devices.
    Beside,
    /// The container itself asks for devices, so the agent mounts its files there.
    Itself,
}

/// Checks that the container's mounts leave the agent's mounts in place. `value` is the container as JSON, as it came.
pub(crate) fn mounts(container: &Container, value: &Value, asks: Asks) -> Result<(), Denied> {
    let mounts = value.get("volumeMounts").and_then(Value::as_array);
    for mount in mounts.into_iter().flatten() {
        let Some(path) = mount.get("mountPath").and_then(Value::as_str) else {
            continue;
        };
        let normal = normal(path);
        let lies_in = |known: &&&str| {
            normal
                .strip_prefix(**known)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let problem = if let Some(known) = RUNTIME_DEVICE_MOUNTS.iter().find(lies_in) {
            format!(
                "NVIDIA's container runtime takes mounts below {known} for the names of devices to give; remove it \
                 and ask for devices under resources.limits"
            )
        } else if asks >= Asks::Beside
            && let Some(known) = OWN_PATHS.iter().find(lies_in)
        {
            format!(
                "{known} is where the node agent mounts what keeps the limits; mount the volume elsewhere"
            )
        } else if asks == Asks::Itself && ABOVE_OWN_PATHS.contains(&normal.as_str()) {
            "the node agent mounts what keeps the limits below it (/etc/ld.so.preload, /etc/vgpu, /run/vgpu, \
             /usr/local/vgpu), and files of a volume there could be moved from under it; mount the volume at a \
             directory of its own, such as /etc/NAME, or single files of it by subPath"
                .to_owned()
        } else {
            continue;
        };
        return Err(Denied::container(
            &container.name,
            format!("volumeMounts[{path}]"),
            problem,
        ));
    }
    Ok(())
}

/// An absolute path without `.`, `..` and doubled slashes.
fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.iter().flat_map(|part| ["/", part]).collect()
}

/// Refuses a container that has the host's devices anyway.
pub(crate) fn rights(container: &Container) -> Result<(), Denied> {
    let privileged = container
        .security_context
        .as_ref()
        .and_then(|context| context.privileged);
    if privileged == Some(true) {
        return Err(Denied::container(
            &container.name,
            "securityContext.privileged",
            format!(
                "container {} is privileged, so it has every device of the host and no limit of this pod would hold; \
                 set it to false, or move that container to a pod that asks for no devices",
                container.name
            ),
        ));
    }
    Ok(())
}
