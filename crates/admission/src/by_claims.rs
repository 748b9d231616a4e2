//! Turns a pod's NVIDIA resources into ResourceClaims, where the cluster gives GPUs by claims. The pod then names
//! templates, which the scheduler makes: nothing is created here.

use std::collections::BTreeMap;

use kube_api::keys;
use kube_api::object::{Container, Pod};
use kube_api::shares::template::{self, SHAPES, Shape};
use kube_api::vendor::Vendors;
use placement::{Ask, Kind, Request};
use serde_json::json;

use crate::denied::Denied;
use crate::inject::NVIDIA;
use crate::patch::Patch;
use crate::place::At;

/// The beginning of the names of the claims in the pod.
const CLAIM: &str = "vgpu-";
/// The rules of a pod about devices, which kube-scheduler chooses for claims.
const ABOUT_DEVICES: [&str; 2] = [keys::DEVICE_POLICY, keys::SCORING_WEIGHTS];

/// The shares that a pod asks for: the claim of each container, and what each claim contains.
#[derive(Debug, Default, PartialEq)]
struct Plan {
    /// By place in the request.
    used: BTreeMap<usize, usize>,
    shapes: Vec<Shape>,
}

/// Whether this is a resource that claims replace.
pub(crate) fn replaces(vendors: &Vendors, resource: &str) -> bool {
    let of = vendors.of_resource(resource);
    of.is_some_and(|(row, _)| row.word == NVIDIA)
}

/// Whether the request is for NVIDIA's GPUs, each container's by its vendor's name.
///
/// # Errors
///
/// It is for those and for other vendors' devices, too.
pub(crate) fn is_meant(request: &Request) -> Result<bool, Denied> {
    if request.any.is_some() {
        return Ok(false);
    }
    let mut asks = request.containers.iter().flat_map(|it| &it.asks);
    let is_ours = |ask: &Ask| ask.vendor.as_str() == NVIDIA;
    if !asks.clone().any(is_ours) {
        return Ok(false);
    }
    match asks.find(|ask| !is_ours(ask)) {
        None => Ok(true),
        Some(other) => Err(Denied::pod(
            "spec.containers",
            format!(
                "the pod asks for NVIDIA's GPUs and for {}'s devices, and this cluster gives the former by ResourceClaims \
                 and the latter by another scheduler; use a pod for each vendor",
                other.vendor.as_str()
            ),
        )),
    }
}

/// Replaces the resources. Returns warnings for the author of the pod. `scheduler_name` is the scheduler that scores nodes
/// for pods with claims.
///
/// # Errors
///
/// A container asks for something for which no claim can ask.
pub(crate) fn turn(
    vendors: &Vendors,
    pod: &Pod,
    request: &Request,
    scheduler_name: &str,
    patch: &mut Patch<'_>,
) -> Result<Vec<String>, Denied> {
    let plan = plan(vendors, pod, request)?;
    let taken = |name: &str| pod.spec.resource_claims.iter().any(|it| it.name == name);
    let mut free = (0_usize..)
        .map(|number| format!("{CLAIM}{number}"))
        .filter(|name| !taken(name));
    let names: Vec<String> = free.by_ref().take(plan.shapes.len()).collect();
    let mut described: BTreeMap<String, Shape> = template::named_by(pod).unwrap_or_default();
    for (name, shape) in names.iter().zip(&plan.shapes) {
        let template = shape.name();
        let claim = json!({"name": name, "resourceClaimTemplateName": template});
        patch.append(&["spec", "resourceClaims"], claim);
        described.insert(template, shape.clone());
    }
    for (index, (at, container)) in At::of(pod).enumerate() {
        let place = at.index.to_string();
        for (kind, amounts) in [
            ("limits", &container.resources.limits),
            ("requests", &container.resources.requests),
        ] {
            for name in amounts.keys().filter(|name| replaces(vendors, name)) {
                patch.take(&["spec", at.list, &place, "resources", kind, name]);
            }
        }
        if let Some(name) = plan.used.get(&index).and_then(|claim| names.get(*claim)) {
            let path = ["spec", at.list, &place, "resources", "claims"];
            patch.append(&path, json!({"name": name}));
        }
    }
    let text = serde_json::to_string(&described).unwrap_or_default();
    patch.set(&["metadata", "annotations", SHAPES], json!(text));
    let annotations = pod.metadata.annotations.as_ref();
    let given = |key: &str| annotations.is_some_and(|all| all.contains_key(key));
    let without = |key: &&str| {
        format!(
            "metadata.annotations[{key}] has no effect: this cluster gives GPUs by ResourceClaims, and kube-scheduler \
             takes the first GPU with room"
        )
    };
    let about_devices = ABOUT_DEVICES.iter().filter(|key| given(key));
    let mut warnings: Vec<String> = about_devices.map(without).collect();
    let (key, named) = (keys::NODE_POLICY, &pod.spec.scheduler_name);
    if given(key) && named != scheduler_name {
        warnings.push(format!(
            "metadata.annotations[{key}] has no effect: spec.schedulerName is {named:?}, and for pods with ResourceClaims \
             {scheduler_name:?} alone follows it; name that scheduler"
        ));
    }
    Ok(warnings)
}

/// Each container gets a claim of its own. An init container shares the claim of the first app container that asks for
/// the same, or of another init container: it ends before they start, and a claim is charged as long as the pod lives.
fn plan(vendors: &Vendors, pod: &Pod, request: &Request) -> Result<Plan, Denied> {
    let (Some(row), Some(config)) = (vendors.get(NVIDIA), vendors.config().nvidia.as_ref()) else {
        return Ok(Plan::default());
    };
    let mut asking: Vec<(usize, Kind, Shape)> = Vec::new();
    let containers: Vec<&Container> = At::of(pod).map(|(_, container)| container).collect();
    for (index, (container, asked)) in containers.iter().zip(&request.containers).enumerate() {
        let mut asks = asked.asks.iter();
        if let Some(ask) = asks.find(|ask| ask.count > 0 && ask.vendor.as_str() == NVIDIA) {
            asking.push((index, asked.kind, Shape::of(container, ask, row, config)?));
        }
    }
    let mut plan = Plan::default();
    let mut shared: Vec<(Shape, usize)> = Vec::new();
    let (init, own): (Vec<_>, Vec<_>) = asking
        .into_iter()
        .partition(|(_, kind, _)| *kind == Kind::Init);
    for (index, kind, shape) in own {
        let claim = plan.shapes.len();
        if kind == Kind::App {
            shared.push((shape.clone(), claim));
        }
        plan.used.insert(index, claim);
        plan.shapes.push(shape);
    }
    for (index, _, shape) in init {
        let known = shared.iter().find(|(other, _)| *other == shape);
        let claim = known.map_or(plan.shapes.len(), |(_, claim)| *claim);
        if claim == plan.shapes.len() {
            shared.push((shape.clone(), claim));
            plan.shapes.push(shape);
        }
        plan.used.insert(index, claim);
    }
    Ok(plan)
}

/// Checks what a pod says about the templates that it names.
pub(crate) fn check(pod: &Pod) -> Result<(), Denied> {
    template::named_by(pod).map(drop).map_err(|why| {
        Denied::pod(
            format!("metadata.annotations[{SHAPES}]"),
            format!(
                "it {why}; templates whose names begin with {} are those that vgpu's scheduler makes: ask for GPUs under \
                 resources.limits, or name a template of your own",
                template::PREFIX
            ),
        )
    })
}
