//! A node that gives its GPUs by claims: the ResourceSlices that the API server has of it, beside the GPUs that the
//! driver shows. `ask` reads, `slices_fit` judges.

use std::collections::BTreeMap;

use anyhow::{Context as _, anyhow};
use kube::Client;
use kube_api::shares::{DRIVER, MEMORY};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{NodeFacts, flag, is_dra};
use crate::args::doctor::DoctorArgs;
use crate::doctor::check::{Judged, fail, ok, several, skip, warn};

/// A ResourceSlice of our driver, as far as it is judged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Slice {
    pub(super) name: String,
    pub(super) generation: i64,
    /// How many slices the pool has, by this one's word.
    pub(super) count: usize,
    pub(super) devices: Vec<SliceDevice>,
}

/// A device of a slice.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct SliceDevice {
    pub(super) name: String,
    /// UUID of its GPU.
    pub(super) uuid: String,
    /// The MIG profile; empty for a whole GPU.
    pub(super) profile: String,
    /// Its memory, as the slice has it.
    pub(super) memory: String,
}

/// Asks the API server for the slices of this node.
pub(super) fn ask(args: &DoctorArgs, node: &str) -> anyhow::Result<Vec<Slice>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    runtime.block_on(async {
        let file = args.kubeconfig.as_deref();
        let config = kube_access::config(file, args.context.as_deref(), "give --kubeconfig FILE");
        let client = Client::try_from(config.await?)?;
        let path = format!(
            "/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName%3D{node}%2Cspec.driver%3D{DRIVER}"
        );
        let request = http::Request::get(path).body(Vec::new())?;
        let answer = tokio::time::timeout(args.timeout, client.request::<Value>(request)).await;
        let late = |_| anyhow!("the API server: no answer within {:?}", args.timeout);
        let answer: Value = answer.map_err(late)??;
        let items = answer.get("items").and_then(Value::as_array);
        Ok(items.into_iter().flatten().map(slice).collect())
    })
}

fn text(of: &Value, path: &str) -> String {
    let found = of.pointer(path).and_then(Value::as_str);
    found.unwrap_or_default().to_owned()
}

fn slice(object: &Value) -> Slice {
    let number = |path: &str| object.pointer(path).and_then(Value::as_i64).unwrap_or(0);
    let devices = object.pointer("/spec/devices").and_then(Value::as_array);
    let device = |device: &Value| SliceDevice {
        name: text(device, "/name"),
        uuid: text(device, "/attributes/uuid/string"),
        profile: text(device, "/attributes/profile/string"),
        memory: text(device, &format!("/capacity/{MEMORY}/value")),
    };
    Slice {
        name: text(object, "/metadata/name"),
        generation: number("/spec/pool/generation"),
        count: usize::try_from(number("/spec/pool/resourceSliceCount")).unwrap_or(0),
        devices: devices.into_iter().flatten().map(device).collect(),
    }
}

impl NodeFacts {
    /// Reads the slices where the node gives by claims.
    pub(super) fn read_slices(&mut self, args: &DoctorArgs) {
        let Some(dra) = self.agents.iter().find(|agent| is_dra(agent)) else {
            return;
        };
        let node = flag(dra, "--node-name")
            .or_else(|| dra.variable("NODE_NAME").map(str::to_owned))
            .unwrap_or_default();
        let asked = match node.as_str() {
            "" => Err(anyhow!("the node's name is not seen from here")),
            node => ask(args, node),
        };
        match asked {
            Ok(slices) => self.slices = Some(slices),
            Err(error) => self.slices_error = Some(format!("{error:#}")),
        }
    }
}

/// Whether the slices show the GPUs that the driver has.
pub(super) fn slices_fit(facts: &NodeFacts) -> Judged {
    if !facts.agents.iter().any(is_dra) {
        return Ok(ok("the node gives no GPU by claims"));
    }
    let driver = facts.driver()?;
    let slices = facts.slices.as_ref().ok_or_else(|| {
        skip(match &facts.slices_error {
            Some(error) => format!("the ResourceSlices cannot be read: {error}"),
            None => {
                String::from("the API server was not asked: --root names another system's files")
            }
        })
    })?;
    let mut wrong = stale(slices);
    let newest = slices.iter().map(|slice| slice.generation).max();
    let devices: Vec<&SliceDevice> = slices
        .iter()
        .filter(|slice| Some(slice.generation) == newest)
        .flat_map(|slice| &slice.devices)
        .collect();
    let memory: BTreeMap<&str, u64> = driver
        .gpus
        .iter()
        .map(|gpu| (gpu.uuid.as_str(), gpu.memory_bytes))
        .collect();
    for device in &devices {
        let Some(there) = memory.get(device.uuid.as_str()) else {
            wrong.push(format!(
                "device {} is GPU {:?}, which the driver does not show",
                device.name, device.uuid
            ));
            continue;
        };
        let published = bytes(&device.memory);
        let promised = facts.promised_memory(*there);
        if device.profile.is_empty() && published.map(|it| it >> 20) != Some(promised >> 20) {
            wrong.push(format!(
                "device {} has memory {:?}, and {} MiB are promised of the {} MiB that the driver shows",
                device.name,
                device.memory,
                promised >> 20,
                there >> 20
            ));
        }
    }
    if !wrong.is_empty() {
        return Ok(fail(several(&wrong)));
    }
    let sick: Vec<&String> = facts.metrics.values().flat_map(|it| &it.sick).collect();
    let missing: Vec<&str> = driver
        .gpus
        .iter()
        .map(|gpu| gpu.uuid.as_str())
        .filter(|uuid| !devices.iter().any(|device| device.uuid == *uuid))
        .filter(|uuid| !sick.iter().any(|sick| sick == uuid))
        .collect();
    if !missing.is_empty() {
        return Ok(warn(format!(
            "no slice has {}: left out by the configuration, given by another driver, or in MIG mode without counters",
            several(&missing)
        )));
    }
    Ok(ok(format!(
        "{} slices, {} devices of {} GPUs, generation {}",
        slices.len(),
        devices.len(),
        driver.gpus.len(),
        newest.unwrap_or(0)
    )))
}

/// What is wrong with a pool: kube-scheduler considers one only when it has all slices of its newest generation.
fn stale(slices: &[Slice]) -> Vec<String> {
    let Some(newest) = slices.iter().map(|slice| slice.generation).max() else {
        return vec![String::from("the node has no ResourceSlice")];
    };
    let older = slices.iter().filter(|slice| slice.generation != newest);
    let mut wrong: Vec<String> = older
        .map(|slice| {
            format!(
                "{} is of generation {}, and the pool's is {newest}",
                slice.name, slice.generation
            )
        })
        .collect();
    let current: Vec<&Slice> = slices
        .iter()
        .filter(|slice| slice.generation == newest)
        .collect();
    if let Some(slice) = current.iter().find(|slice| slice.count != current.len()) {
        wrong.push(format!(
            "generation {newest} has {} slices, and {} says {}",
            current.len(),
            slice.name,
            slice.count
        ));
    }
    wrong
}

fn bytes(quantity: &str) -> Option<u64> {
    let parsed = kube_api::quantity::Quantity::from(quantity).parse().ok()?;
    u64::try_from(parsed.whole()?).ok()
}
