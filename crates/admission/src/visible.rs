//! `NVIDIA_VISIBLE_DEVICES`, by which NVIDIA's container runtime shows a container GPUs without asking the scheduler: in
//! the pod, or in the image if the pod does not set it. A container shows what its source gives it, and nothing else.

use kube_api::object::{Container, EnvVar, Pod};
use kube_api::vendor::{Role, Vendors};
use placement::Request;
use placement::exchange::Maker;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::checks::{NO_DEVICES, VISIBLE_DEVICES};
use crate::denied::Denied;
use crate::inject::{NVIDIA, gets_gpu};
use crate::patch::Patch;
use crate::place::At;
use crate::settings::{Agent, Settings};

/// Other device plugins of NVIDIA's have resources with this prefix (`nvidia.com/mig-1g.5gb`).
const NVIDIA_RESOURCES: &str = "nvidia.com/";

/// The source of a container's NVIDIA GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// Our scheduler and the node agent.
    Ours,
    /// Another scheduler or another device plugin, which names the devices in the same variable.
    Other,
    /// None: it gets no GPU.
    None,
}

/// The runtime classes of NVIDIA's runtime: those of the settings, and those that admission itself gives pods.
pub(crate) fn runtime_classes(vendors: &Vendors, settings: &Settings) -> Vec<String> {
    let nvidia = vendors.config().nvidia.as_ref();
    let given = nvidia.map(|nvidia| nvidia.runtime_class_name.clone());
    let by_maker = vendors.hcs().and_then(|rules| {
        let classes = &rules.config.runtime_classes;
        classes.get(Maker::Nvidia.as_str()).cloned()
    });
    let all = settings.gpu_runtime_classes.iter().cloned();
    let mut all: Vec<String> = all
        .chain(given)
        .chain(by_maker)
        .filter(|class| !class.is_empty())
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Whether every pod is reviewed, so that its containers without a GPU see none.
pub(crate) fn hides_everywhere(vendors: &Vendors, settings: &Settings) -> bool {
    let nvidia = vendors.config().nvidia.as_ref();
    settings.hide_everywhere || nvidia.is_some_and(|nvidia| nvidia.overwrite_env)
}

/// The source of the GPUs of the container at `index`, in the order of the request. `is_foreign`: another scheduler
/// places the pod.
pub(crate) fn source(
    vendors: &Vendors,
    request: &Request,
    pod: &Pod,
    (index, container): (usize, &Container),
    is_foreign: bool,
) -> Source {
    if !is_foreign && gets_gpu(request, index) {
        return Source::Ours;
    }
    let is_counted = |name: &str| match vendors.of_resource(name) {
        Some((row, role)) => is_foreign && role == Role::Count && row.word == NVIDIA,
        None => name.starts_with(NVIDIA_RESOURCES),
    };
    let resources = &container.resources;
    let asks = resources
        .limits
        .iter()
        .chain(&resources.requests)
        .any(|(name, amount)| amount.0 != "0" && is_counted(name));
    // Without a scheduler the resource counts for nothing: a kubelet drops one that its node does not have, and starts
    // the container.
    if asks && pod.spec.node_name.is_empty() {
        Source::Other
    } else {
        Source::None
    }
}

/// Whether the variable shows a container devices, or may: a value from elsewhere cannot be seen here.
fn shows(variable: &EnvVar) -> bool {
    let value = variable.value.as_deref().unwrap_or_default();
    variable.name == VISIBLE_DEVICES
        && (variable.value_from.is_some() || !NO_DEVICES.contains(&value))
}

/// Rewrites the container's own variables. `ours` says which of them admission itself set.
pub(crate) fn rewrite(
    settings: &Settings,
    source: Source,
    at: At,
    ours: impl Fn(&EnvVar) -> bool,
    patch: &mut Patch<'_>,
) {
    let index = at.index.to_string();
    let env = ["spec", at.list, index.as_str(), "env"];
    let variables = patch.get(&env).and_then(Value::as_array);
    let showing: Vec<usize> = variables
        .into_iter()
        .flatten()
        .enumerate()
        .filter_map(|(place, variable)| {
            let variable = EnvVar::deserialize(variable).ok()?;
            (shows(&variable) && !ours(&variable)).then_some(place)
        })
        .collect();
    let removes =
        source == Source::Other || (source == Source::Ours && settings.agent != Agent::Ours);
    // From the end, because an entry that is removed moves the later ones.
    for place in showing.into_iter().rev() {
        if removes {
            patch.remove(&env, place);
        } else {
            let number = place.to_string();
            let void = json!({ "name": VISIBLE_DEVICES, "value": "void" });
            patch.set(&["spec", at.list, &index, "env", &number], void);
        }
    }
}

/// Refuses a container that would show devices after all other webhooks have changed it. `is_hidden`: the variable must
/// be there, because the image may set it.
pub(crate) fn check(
    container: &Container,
    source: Source,
    is_hidden: bool,
    ours: impl Fn(&EnvVar) -> bool,
) -> Result<(), Denied> {
    let denied = |problem: String| {
        let field = format!("env[{VISIBLE_DEVICES}]");
        Err(Denied::container(&container.name, field, problem))
    };
    let mut is_set = false;
    for variable in &container.env {
        is_set |= variable.name == VISIBLE_DEVICES;
        if !shows(variable) || ours(variable) {
            continue;
        }
        // A value may be as long as the object.
        let shown: String = match (&variable.value_from, &variable.value) {
            (None, Some(value)) => format!("{:?}", value.chars().take(100).collect::<String>()),
            _ => "its value comes from elsewhere, where it cannot be seen,".to_owned(),
        };
        return denied(format!(
            "{shown} would show devices to the container beside those that it is given, and was written after vgpu's \
             webhook had changed it; remove it (only \"void\", \"none\" and \"\" are accepted) and ask for devices \
             under resources.limits"
        ));
    }
    if is_hidden && !is_set && source == Source::None {
        return denied(
            "it is not set, so NVIDIA's runtime would show the container the devices that its image names; set it to \
             \"void\" (vgpu's webhook had set it, or the pod got its runtime class from another webhook later)"
                .to_owned(),
        );
    }
    Ok(())
}
