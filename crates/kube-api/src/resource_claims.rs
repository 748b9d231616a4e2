//! The GPUs in resource.k8s.io: which GPU a driver's device is, and which ones ResourceClaims have. Owns the reading
//! of ResourceSlices and ResourceClaims in each of their versions. Never asks an API server.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// The group.
pub const GROUP: &str = "resource.k8s.io";
/// Its versions that are read, the best one first.
pub const VERSIONS: [&str; 3] = ["v1", "v1beta2", "v1beta1"];

/// A device as a driver names it: driver, pool, device.
type DriverDevice = (String, String, String);
/// Namespace and name.
type Name = (String, String);

/// The slices and claims that were read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourceClaims {
    /// The GPUs behind each device, by the name of the slice.
    slices: BTreeMap<String, BTreeMap<DriverDevice, BTreeSet<String>>>,
    /// The devices that each claim has.
    claims: BTreeMap<Name, BTreeSet<DriverDevice>>,
    /// The GPUs of devices that a claim still has although no ResourceSlice has them any more. A DRA driver that is being
    /// replaced deletes its slices and publishes them again, and a driver may take a sick GPU out of its slice.
    remembered: BTreeMap<DriverDevice, BTreeSet<String>>,
}

impl ResourceClaims {
    /// Takes in a ResourceSlice.
    pub fn set_slice(&mut self, slice: &Value) {
        let (name, devices) = (text(slice, "/metadata/name"), gpus_of(slice));
        let mut before = self.slices.remove(&name);
        if let Some(before) = &mut before {
            before.retain(|device, _| !devices.contains_key(device));
        }
        self.slices.insert(name, devices);
        self.remember(before);
    }

    /// The slice is gone.
    pub fn remove_slice(&mut self, name: &str) {
        let gone = self.slices.remove(name);
        self.remember(gone);
    }

    /// Remembers what claims have of a slice that is not as it was.
    fn remember(&mut self, before: Option<BTreeMap<DriverDevice, BTreeSet<String>>>) {
        for (device, gpus) in before.into_iter().flatten() {
            if self.claims.values().any(|claim| claim.contains(&device)) {
                self.remembered.insert(device, gpus);
            }
        }
    }

    /// A list of all slices is complete: others are gone.
    pub fn keep_slices(&mut self, listed: &BTreeSet<String>) {
        let gone: Vec<String> = self.slices.keys().cloned().collect();
        for name in gone.iter().filter(|name| !listed.contains(*name)) {
            self.remove_slice(name);
        }
    }

    /// Takes in a ResourceClaim.
    pub fn set_claim(&mut self, claim: &Value) {
        let devices = devices_of(claim);
        if devices.is_empty() {
            self.remove_claim(&name_of(claim));
        } else {
            self.claims.insert(name_of(claim), devices);
        }
    }

    /// The claim is gone.
    pub fn remove_claim(&mut self, name: &Name) {
        self.claims.remove(name);
        let claims = &self.claims;
        self.remembered
            .retain(|device, _| claims.values().any(|claim| claim.contains(device)));
    }

    /// A list of all claims is complete: others are gone.
    pub fn keep_claims(&mut self, listed: &BTreeSet<Name>) {
        let gone: Vec<Name> = self.claims.keys().cloned().collect();
        for name in gone.iter().filter(|name| !listed.contains(*name)) {
            self.remove_claim(name);
        }
    }

    /// The GPUs that claims have, each with the first of its claims (`NAMESPACE/NAME of DRIVER`).
    pub fn given_out(&self) -> BTreeMap<String, String> {
        // By device: this is asked at each event of a claim, and a search through all slices for each claim would grow
        // with both. Of several slices the first counts.
        let sliced = self.slices.values().rev().flatten();
        let known: BTreeMap<&DriverDevice, &BTreeSet<String>> =
            self.remembered.iter().chain(sliced).collect();
        let mut given = BTreeMap::new();
        for ((namespace, name), devices) in &self.claims {
            for device in devices {
                for gpu in known.get(device).copied().into_iter().flatten() {
                    let claim = || format!("{namespace}/{name} of {}", device.0);
                    given.entry(gpu.clone()).or_insert_with(claim);
                }
            }
        }
        given
    }
}

/// Namespace and name of an object.
pub fn name_of(object: &Value) -> (String, String) {
    (
        text(object, "/metadata/namespace"),
        text(object, "/metadata/name"),
    )
}

fn text(value: &Value, pointer: &str) -> String {
    let text = value.pointer(pointer).and_then(Value::as_str);
    text.unwrap_or_default().to_owned()
}

fn list<'a>(value: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    let list = value.pointer(pointer).and_then(Value::as_array);
    list.into_iter().flatten()
}

/// The UUIDs of the GPUs behind each device of a slice. A MIG instance has its own and that of its GPU.
pub fn gpus_of(slice: &Value) -> BTreeMap<(String, String, String), BTreeSet<String>> {
    let (driver, pool) = (text(slice, "/spec/driver"), text(slice, "/spec/pool/name"));
    let devices = list(slice, "/spec/devices").map(|device| {
        // Until v1beta1 a device's fields are below `basic`.
        let fields = device.get("basic").unwrap_or(device);
        let attributes = fields.get("attributes").and_then(Value::as_object);
        let uuids = attributes.into_iter().flatten().filter_map(|(key, value)| {
            // An attribute of the driver's own domain may be named with it or without.
            let key = key.rsplit('/').next().unwrap_or_default();
            let is_uuid = ["uuid", "parentuuid"].contains(&key.to_ascii_lowercase().as_str());
            is_uuid.then(|| text(value, "/string"))
        });
        let name = text(device, "/name");
        let uuids = uuids.filter(|uuid| !uuid.is_empty()).collect();
        ((driver.clone(), pool.clone(), name), uuids)
    });
    devices
        .filter(|(_, uuids): &(_, BTreeSet<String>)| !uuids.is_empty())
        .collect()
}

/// The devices that a claim has been given. Access for administration leaves a device to others.
fn devices_of(claim: &Value) -> BTreeSet<DriverDevice> {
    list(claim, "/status/allocation/devices/results")
        .filter(|result| result.get("adminAccess") != Some(&Value::Bool(true)))
        .map(|result| {
            (
                text(result, "/driver"),
                text(result, "/pool"),
                text(result, "/device"),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slice(name: &str, devices: &Value) -> Value {
        json!({"metadata": {"name": name}, "spec": {"driver": "gpu.nvidia.com", "nodeName": "n1",
            "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1}, "devices": devices}})
    }

    fn claim(name: &str, results: &Value) -> Value {
        json!({"metadata": {"namespace": "team", "name": name},
            "status": {"allocation": {"devices": {"results": results}}}})
    }

    fn has(device: &str) -> Value {
        json!([{"request": "gpu", "driver": "gpu.nvidia.com", "pool": "n1", "device": device}])
    }

    fn known() -> ResourceClaims {
        let mut known = ResourceClaims::default();
        known.set_slice(&slice(
            "s1",
            &json!([
                {"name": "gpu-0", "attributes": {"uuid": {"string": "GPU-0"}, "type": {"string": "gpu"}}},
                {"name": "gpu-1", "basic": {"attributes": {"gpu.nvidia.com/uuid": {"string": "GPU-1"}}}},
                {"name": "mig-2", "attributes": {"uuid": {"string": "MIG-2"}, "parentUUID": {"string": "GPU-2"}}},
                {"name": "odd", "attributes": {"uuid": {"int": 7}}},
            ]),
        ));
        known
    }

    fn given(known: &ResourceClaims) -> Vec<(String, String)> {
        known.given_out().into_iter().collect()
    }

    #[test]
    fn gpu_of_an_allocated_claim_is_given_out_in_every_version_of_the_slice() {
        for (device, gpus) in [
            ("gpu-0", vec!["GPU-0"]),
            ("gpu-1", vec!["GPU-1"]),
            ("mig-2", vec!["GPU-2", "MIG-2"]),
            ("odd", vec![]),
            ("unknown", vec![]),
        ] {
            let mut known = known();
            known.set_claim(&claim("c", &has(device)));

            let said = "team/c of gpu.nvidia.com".to_owned();
            let expected: Vec<(String, String)> = gpus
                .iter()
                .map(|gpu| ((*gpu).to_owned(), said.clone()))
                .collect();
            assert_eq!(given(&known), expected, "{device}");
        }
    }

    #[test]
    fn claim_that_has_nothing_or_looks_on_only_takes_nothing() {
        let mut known = known();
        let mut look = has("gpu-0");
        look[0]["adminAccess"] = json!(true);
        known.set_claim(&claim("monitor", &look));
        known.set_claim(&json!({"metadata": {"namespace": "team", "name": "waits"}}));
        assert_eq!(given(&known), []);

        known.set_claim(&claim("c", &has("gpu-0")));
        // It is deallocated.
        known.set_claim(&claim("c", &json!([])));
        assert_eq!(given(&known), []);
    }

    #[test]
    fn gpu_stays_given_out_while_the_driver_is_replaced() {
        let mut known = known();
        known.set_claim(&claim("c", &has("gpu-0")));

        known.keep_slices(&BTreeSet::new());

        assert_eq!(given(&known).len(), 1);
        known.keep_claims(&BTreeSet::new());
        assert_eq!(given(&known), []);
        assert_eq!(known, ResourceClaims::default());
    }

    #[test]
    fn gpu_that_its_driver_takes_out_of_a_slice_stays_with_its_claim() {
        let mut known = known();
        known.set_claim(&claim("c", &has("gpu-0")));

        // As a driver does with a GPU that is sick, while a container still has it.
        let rest = json!([{"name": "gpu-1", "attributes": {"uuid": {"string": "GPU-1"}}}]);
        known.set_slice(&slice("s1", &rest));

        let said = ("GPU-0".to_owned(), "team/c of gpu.nvidia.com".to_owned());
        assert_eq!(given(&known), [said]);
        known.remove_claim(&("team".to_owned(), "c".to_owned()));
        assert_eq!(given(&known), []);
    }

    #[test]
    fn present_slice_counts_more_than_what_was_remembered_and_the_first_of_several_most() {
        let mut known = known();
        known.set_claim(&claim("c", &has("gpu-0")));
        known.remove_slice("s1");
        for (name, uuid) in [("s3", "GPU-3"), ("s2", "GPU-2")] {
            let device = json!([{"name": "gpu-0", "attributes": {"uuid": {"string": uuid}}}]);
            known.set_slice(&slice(name, &device));
        }

        let gpus: Vec<String> = given(&known).into_iter().map(|(gpu, _)| gpu).collect();
        assert_eq!(gpus, ["GPU-2"]);
    }

    #[test]
    fn objects_without_any_field_are_read_as_empty() {
        let mut known = ResourceClaims::default();
        for odd in [
            json!({}),
            json!(null),
            json!([1]),
            json!({"spec": {"devices": {"a": 1}}}),
        ] {
            known.set_slice(&odd);
            known.set_claim(&odd);
            assert_eq!(given(&known), []);
        }
    }
}
