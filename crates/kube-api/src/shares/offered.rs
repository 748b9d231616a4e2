//! What nodes offer to claims of our driver, and what claims ask for and hold there, in the terms of `placement`. Reads
//! ResourceSlices and ResourceClaims in each of their versions. Does not choose.

use std::sync::Arc;

use placement::{
    Ask, Compute, Device, DevicePolicy, Grant, Granted, Key, Kind, Memory, Placement, Vendor,
};
use serde_json::Value;

use super::selector;
use super::{CLASS, CORES, DRIVER, MEMORY, SHARES, UUID};
use crate::quantity::{MIB, Quantity};

/// The vendor of the devices and of the asks.
pub const VENDOR: &str = "claims";
/// Units of compute for one percent. kube-scheduler shares a GPU between a claim of 100 percent and one of none, and
/// `placement` gives a request of 100 of 100 units a device to itself: so the unit is not a percent.
const UNITS: u64 = 10;
/// The most requests of a claim, as the API server accepts them.
const MOST_REQUESTS: usize = 32;
/// The most alternatives of a request, as the API server accepts them.
const MOST_ALTERNATIVES: usize = 8;
/// The most devices of a claim.
const MOST_DEVICES: u64 = 32;

/// The devices of our driver in one ResourceSlice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfferedSlice {
    /// The node, which is also the name of the pool.
    pub node: String,
    /// The generation of the pool; only the slices of the highest one count.
    pub generation: u64,
    /// The devices, by their names in the slice. Their index is their place in the slice.
    pub devices: Vec<Device>,
}

impl OfferedSlice {
    /// Reads a ResourceSlice; `None` for another driver's, and for devices that are not a node's.
    #[must_use]
    pub fn read(slice: &Value) -> Option<Self> {
        let node = text(slice, "/spec/nodeName");
        if text(slice, "/spec/driver") != DRIVER
            || node.is_empty()
            || node != text(slice, "/spec/pool/name")
        {
            return None;
        }
        let generation = slice.pointer("/spec/pool/generation");
        let devices = list(slice, "/spec/devices").iter().zip(0..);
        Some(Self {
            node: node.to_owned(),
            generation: generation.and_then(Value::as_u64).unwrap_or(0),
            devices: devices
                .filter_map(|(device, place)| offered(device, place))
                .collect(),
        })
    }
}

/// A device of a slice; `None` if it has no memory to share, or is a MIG instance: that is given as a whole, by a class of
/// its own.
fn offered(written: &Value, place: u32) -> Option<Device> {
    // Until v1beta1 a device's fields are below `basic`.
    let fields = written.get("basic").unwrap_or(written);
    if !list(fields, "/consumesCounters").is_empty() {
        return None;
    }
    let capacity = |name: &str| {
        let value = fields.pointer(&format!("/capacity/{name}/value"))?;
        whole(value)
    };
    let number = |name: &str| {
        let value = fields.pointer(&format!("/attributes/{name}/int"))?;
        u32::try_from(value.as_u64()?).ok()
    };
    let name = text(written, "/name");
    let model = text(fields, "/attributes/productName/string");
    let sick = list(fields, "/taints")
        .iter()
        .any(|taint| ["NoSchedule", "NoExecute"].contains(&text(taint, "/effect")));
    let mut device = Device::new(VENDOR, name, model, capacity(MEMORY)?);
    device.index = place;
    device.numa = number("numa").unwrap_or(0);
    device.slots = small(capacity(SHARES).unwrap_or(1));
    device.cores = units(capacity(CORES).unwrap_or(0));
    device.healthy = !sick;
    Some(device)
}

/// A ResourceClaim.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OfferedClaim {
    /// The uids of the pods that own it or for which it is reserved.
    pub pods: Vec<String>,
    /// What it asks for of our devices.
    pub requests: Vec<AskedRequest>,
    /// What it has.
    pub held: Option<Placement>,
}

/// A request of a claim.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AskedRequest {
    /// Its alternatives in the order in which kube-scheduler tries them on a node: of each one the asks, one for each
    /// group of devices that have to differ. An alternative of other devices than ours has none.
    pub alternatives: Vec<Vec<Ask>>,
}

impl OfferedClaim {
    /// Reads a ResourceClaim. Of what it asks for and has, only our devices count.
    #[must_use]
    pub fn read(claim: &Value) -> Self {
        let owners = list(claim, "/metadata/ownerReferences")
            .iter()
            .filter(|owner| text(owner, "/kind") == "Pod");
        let users = list(claim, "/status/reservedFor").iter();
        let uids = owners.chain(users).map(|it| text(it, "/uid").to_owned());
        Self {
            pods: uids.filter(|uid| !uid.is_empty()).collect(),
            requests: requests(claim),
            held: held(claim),
        }
    }
}

fn requests(claim: &Value) -> Vec<AskedRequest> {
    let requests = list(claim, "/spec/devices/requests").iter();
    let asked = requests.take(MOST_REQUESTS).map(|request| {
        let name = text(request, "/name");
        let alternatives = list(request, "/firstAvailable").iter();
        let mut alternatives: Vec<Vec<Ask>> = alternatives
            .take(MOST_ALTERNATIVES)
            .map(|one| ask(claim, [name, text(one, "/name")], one))
            .collect();
        if alternatives.is_empty() {
            let exactly = request.get("exactly").unwrap_or(request);
            alternatives.push(ask(claim, [name, ""], exactly));
        }
        AskedRequest { alternatives }
    });
    asked
        .filter(|request| request.alternatives.iter().any(|asks| !asks.is_empty()))
        .collect()
}

/// What one request asks for, or one of its alternatives: its name and the alternative's.
fn ask(claim: &Value, [name, alternative]: [&str; 2], exactly: &Value) -> Vec<Ask> {
    let looks_on = exactly.get("adminAccess") == Some(&Value::Bool(true));
    if text(exactly, "/deviceClassName") != CLASS || looks_on {
        return Vec::new();
    }
    let count = exactly.get("count").and_then(Value::as_u64).unwrap_or(1);
    let count = small(count.min(MOST_DEVICES));
    let amount = |name: &str| whole(exactly.pointer(&format!("/capacity/requests/{name}"))?);
    let memory = amount(MEMORY).map_or(Memory::Percent(100), |bytes| {
        // kube-scheduler rounds up to the step.
        Memory::Bytes(bytes.div_ceil(MIB).saturating_mul(MIB))
    });
    let mut ask = Ask::new(VENDOR, count, memory);
    ask.compute = match units(amount(CORES).unwrap_or(0)) {
        0 => Compute::Unchecked,
        units => Compute::Units(units),
    };
    // kube-scheduler takes the first device with room.
    ask.policy = DevicePolicy::Chain(vec![Key::LowestIndex]);
    ask.slots = small(amount(SHARES).unwrap_or(1)).max(1);
    for written in list(exactly, "/selectors") {
        selector::narrow(&mut ask.select, text(written, "/cel/expression"));
    }
    let constrained = |key: &str, attribute: &str| {
        list(claim, "/spec/devices/constraints").iter().any(|it| {
            let requests = list(it, "/requests");
            let means = |named: &Value| {
                // `REQUEST`, or `REQUEST/ALTERNATIVE`.
                let mut named = named.as_str().unwrap_or_default().splitn(2, '/');
                named.next() == Some(name) && named.next().is_none_or(|it| it == alternative)
            };
            text(it, key) == attribute && (requests.is_empty() || requests.iter().any(means))
        })
    };
    ask.numa_bind = count > 1 && constrained("/matchAttribute", &format!("{DRIVER}/numa"));
    if count > 1 && !constrained("/distinctAttribute", UUID) {
        // Several shares may be of one device.
        ask.count = 1;
        return (0..count).map(|_| ask.clone()).collect();
    }
    vec![ask]
}

/// What a claim has of our devices. All devices of a claim are on one node.
fn held(claim: &Value) -> Option<Placement> {
    let results = list(claim, "/status/allocation/devices/results").iter();
    let mut ours = results
        .filter(|it| text(it, "/driver") == DRIVER)
        .filter(|it| it.get("adminAccess") != Some(&Value::Bool(true)))
        .peekable();
    let node = text(ours.peek()?, "/pool");
    let grants = ours.filter(|it| text(it, "/pool") == node).map(|result| {
        let amount = |name: &str| whole(result.pointer(&format!("/consumedCapacity/{name}"))?);
        let memory = amount(MEMORY).unwrap_or(0);
        let cores = units(amount(CORES).unwrap_or(0));
        let device = text(result, "/device");
        let mut grant = Grant::new(Vendor::new(VENDOR), device, memory, cores);
        grant.slots = small(amount(SHARES).unwrap_or(1));
        grant
    });
    let grants = Granted {
        kind: Kind::App,
        grants: grants.collect(),
    };
    Some(Placement {
        node: Arc::from(node),
        containers: vec![grants],
    })
}

fn units(percent: u64) -> u32 {
    small(percent.saturating_mul(UNITS))
}

fn small(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn whole(amount: &Value) -> Option<u64> {
    let amount = match amount {
        Value::String(text) => Quantity::from(text.as_str()),
        other => Quantity::from(other.to_string().as_str()),
    };
    u64::try_from(amount.parse().ok()?.whole()?).ok()
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    let text = value.pointer(pointer).and_then(Value::as_str);
    text.unwrap_or_default()
}

fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    let list = value.pointer(pointer).and_then(Value::as_array);
    list.map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slice(devices: &Value) -> Value {
        json!({"spec": {"driver": DRIVER, "nodeName": "a", "pool": {"name": "a", "generation": 3},
            "devices": devices}})
    }

    fn claim(request: &Value, constraints: &Value) -> Value {
        json!({"metadata": {"ownerReferences": [{"kind": "Pod", "uid": "u"}]},
            "spec": {"devices": {"requests": [request], "constraints": constraints}}})
    }

    fn exactly(fields: Value) -> Value {
        let mut exactly = json!({"deviceClassName": CLASS});
        let fields = fields.as_object().unwrap().clone();
        exactly.as_object_mut().unwrap().extend(fields);
        json!({"name": "gpu", "exactly": exactly})
    }

    #[test]
    fn devices_of_a_slice_are_read_in_every_version() {
        let fields = json!({
            "attributes": {"numa": {"int": 1}, "productName": {"string": "NVIDIA H100"}},
            "capacity": {"memory": {"value": "8Gi"}, "cores": {"value": "100"}, "shares": {"value": "10"}},
        });
        let mut flat = fields.clone();
        flat["name"] = json!("gpu-0");
        let sick = json!({"name": "gpu-2", "capacity": {"memory": {"value": "1Gi"}},
            "taints": [{"key": "vgpu.io/unhealthy", "effect": "NoSchedule"}]});
        let mut instance = flat.clone();
        instance["name"] = json!("gpu-3-3g-40gb-0");
        instance["consumesCounters"] =
            json!([{"counterSet": "gpu-3", "counters": {"compute-slices": {"value": "3"}}}]);
        let read = OfferedSlice::read(&slice(&json!([
            flat, {"name": "gpu-1", "basic": fields}, sick, {"name": "odd"}, instance
        ])));

        let read = read.unwrap();
        assert_eq!((read.node.as_str(), read.generation), ("a", 3));
        let seen = read.devices.iter().map(|it| {
            (
                it.id.as_str(),
                it.index,
                it.numa,
                it.slots,
                it.cores,
                it.healthy,
            )
        });
        assert_eq!(
            seen.collect::<Vec<_>>(),
            [
                ("gpu-0", 0, 1, 10, 1000, true),
                ("gpu-1", 1, 1, 10, 1000, true),
                ("gpu-2", 2, 0, 1, 0, false)
            ]
        );
        assert_eq!(read.devices[0].memory_bytes, 8 << 30);
    }

    #[test]
    fn slices_of_other_drivers_and_of_no_node_offer_nothing() {
        let mut other = slice(&json!([]));
        other["spec"]["driver"] = json!("gpu.nvidia.com");
        let mut shared = slice(&json!([]));
        shared["spec"]["nodeName"] = json!("b");
        for odd in [other, shared, json!({}), json!(7)] {
            assert_eq!(OfferedSlice::read(&odd), None, "{odd}");
        }
    }

    #[test]
    fn requests_of_a_claim_become_asks() {
        let distinct = json!([{"requests": ["gpu"], "distinctAttribute": UUID}]);
        let numa = json!([{"distinctAttribute": UUID}, {"matchAttribute": "gpu.vgpu.io/numa"}]);
        let amounts = json!({"requests": {"memory": "1500M", "cores": "30"}});
        let alternatives = json!({"name": "gpu", "firstAvailable": [
            {"name": "small", "deviceClassName": CLASS, "capacity": {"requests": {"memory": "1Gi"}}},
            {"name": "all", "deviceClassName": CLASS}]});
        let whole = Memory::Percent(100);
        let rounded = Memory::Bytes(1431 * MIB);
        let gib = Memory::Bytes(1 << 30);
        let unchecked = Compute::Unchecked;
        for (request, constraints, count, memory, compute, each) in [
            (exactly(json!({})), json!([]), 1, whole, unchecked, 1),
            (
                exactly(json!({"capacity": amounts})),
                json!([]),
                1,
                rounded,
                Compute::Units(300),
                1,
            ),
            (
                exactly(json!({"count": 3})),
                json!([]),
                3,
                whole,
                unchecked,
                1,
            ),
            (
                exactly(json!({"count": 3})),
                distinct,
                1,
                whole,
                unchecked,
                3,
            ),
            (
                exactly(json!({"count": 2})),
                numa.clone(),
                1,
                whole,
                unchecked,
                2,
            ),
            (alternatives, json!([]), 1, gib, unchecked, 1),
        ] {
            let read = OfferedClaim::read(&claim(&request, &constraints));
            let asks = &read.requests[0].alternatives[0];
            let [ask, ..] = &asks[..] else {
                panic!("{read:?}");
            };
            assert_eq!(read.pods, ["u"]);
            assert_eq!(
                (asks.len(), ask.memory, ask.compute, ask.count),
                (count, memory, compute, each),
                "{request}"
            );
            assert_eq!(ask.numa_bind, constraints == numa, "{request}");
        }
    }

    #[test]
    fn alternatives_are_read_in_their_order_with_their_own_constraints() {
        let request = json!({"name": "gpu", "firstAvailable": [
            {"name": "two", "deviceClassName": CLASS, "count": 2, "capacity": {"requests": {"memory": "1Gi"}}},
            {"name": "mig", "deviceClassName": "mig.vgpu.io"},
            {"name": "loose", "deviceClassName": CLASS, "count": 2, "selectors": [{"cel": {"expression":
                "device.attributes[\"gpu.vgpu.io\"].productName == \"NVIDIA H100\""}}]}]});
        let constraints = json!([{"requests": ["gpu/two"], "distinctAttribute": UUID}]);

        let read = OfferedClaim::read(&claim(&request, &constraints));

        let [request] = &read.requests[..] else {
            panic!("{read:?}");
        };
        let seen = request.alternatives.iter().map(|asks| {
            let counts = asks.iter().map(|ask| ask.count);
            counts.collect::<Vec<_>>()
        });
        assert_eq!(seen.collect::<Vec<_>>(), [vec![2], vec![], vec![1, 1]]);
        assert_eq!(request.alternatives[2][0].select.models, ["NVIDIA H100"]);
    }

    #[test]
    fn claims_of_other_classes_and_for_looking_on_ask_for_nothing() {
        let mut other = exactly(json!({}));
        other["exactly"]["deviceClassName"] = json!("gpu.nvidia.com");
        for request in [other, exactly(json!({"adminAccess": true})), json!({})] {
            let read = OfferedClaim::read(&claim(&request, &json!([])));
            assert_eq!((read.requests, read.held), (Vec::new(), None));
        }
        assert_eq!(OfferedClaim::read(&json!([])), OfferedClaim::default());
    }

    #[test]
    fn allocated_claim_holds_what_was_charged() {
        let mut allocated = claim(&exactly(json!({})), &json!([]));
        allocated["status"] = json!({
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "v"}],
            "allocation": {"devices": {"results": [
                {"driver": "other", "pool": "b", "device": "x"},
                {"driver": DRIVER, "pool": "a", "device": "gpu-0",
                    "consumedCapacity": {"memory": "3Gi", "cores": "30", "shares": "1"}}]}},
        });
        let read = OfferedClaim::read(&allocated);
        assert_eq!(read.pods, ["u", "v"]);
        let held = read.held.unwrap();
        let grant = Grant::new(Vendor::new(VENDOR), "gpu-0", 3 << 30, 300);
        assert_eq!(
            (&*held.node, &held.containers[0].grants[..]),
            ("a", &[grant][..])
        );
    }
}
