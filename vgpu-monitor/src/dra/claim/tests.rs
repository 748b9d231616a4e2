use kube_api::shares::parameters::{API_VERSION, KIND};
use serde_json::{Value, from_value, json};

use super::*;
use crate::delivery::tests::{GIB, GPUS, inventory};
use crate::dra::device_name;

const POOL: &str = "n1";

fn asked() -> Asked {
    Asked {
        namespace: String::from("research"),
        name: String::from("share"),
        uid: String::from("u1"),
    }
}

/// A result of our driver for a request, on the GPU of this number.
fn result(request: &str, gpu: usize, consumed: Value) -> Value {
    json!({
        "request": request, "driver": DRIVER, "pool": POOL, "device": device_name(GPUS[gpu]),
        "shareID": format!("s-{request}"), "consumedCapacity": consumed,
    })
}

fn four() -> Value {
    json!({"memory": "4Gi", "cores": "30", "shares": "1"})
}

fn claim(results: &Value, config: &Value) -> ResourceClaim {
    from_value(json!({
        "metadata": {"name": "share", "namespace": "research", "uid": "u1"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER,
            "capacity": {"requests": {"memory": "1Gi", "cores": "10"}}}}]}},
        "status": {"allocation": {"devices": {"results": results, "config": config}}},
    }))
    .unwrap()
}

fn given(results: &Value) -> Result<Vec<Share>, ClaimError> {
    shares(&claim(results, &json!([])), &asked(), POOL, &inventory(1))
}

fn refusal(results: &Value) -> String {
    given(results).unwrap_err().to_string()
}

#[test]
fn limits_are_what_was_charged_and_not_what_was_asked_for() {
    let shares = given(&json!([result("gpu", 0, four())])).unwrap();

    assert_eq!(shares.len(), 1);
    let share = &shares[0];
    assert_eq!(share.gpu, GPUS[0]);
    assert_eq!(share.memory_bytes, 4 * GIB);
    assert_eq!(share.cores, 30);
    assert_eq!(share.physical_bytes, 16 * GIB);
    assert_eq!(share.share_id.as_deref(), Some("s-gpu"));
}

#[test]
fn capacity_with_the_drivers_name_in_front_is_the_same() {
    let consumed = json!({"gpu.vgpu.io/memory": "1048576", "gpu.vgpu.io/cores": 0});

    let shares = given(&json!([result("gpu", 1, consumed)])).unwrap();

    assert_eq!((shares[0].memory_bytes, shares[0].cores), (1 << 20, 0));
}

#[test]
fn another_claim_of_the_name_is_refused() {
    let mut other = asked();
    other.uid = String::from("u0");
    let claim = claim(&json!([result("gpu", 0, four())]), &json!([]));

    let why = shares(&claim, &other, POOL, &inventory(1))
        .unwrap_err()
        .to_string();

    assert!(why.contains("\"u1\"") && why.contains("\"u0\""), "{why}");
    assert!(why.contains("was deleted"), "{why}");
}

#[test]
fn claim_without_an_allocation_of_this_driver_is_refused() {
    let mut bare = claim(&json!([]), &json!([]));
    bare.status = None;
    let why = shares(&bare, &asked(), POOL, &inventory(1))
        .unwrap_err()
        .to_string();
    assert!(why.contains("has no allocation"), "{why}");

    let mut foreign = result("gpu", 0, four());
    foreign["driver"] = json!("gpu.example.com");
    let why = refusal(&json!([foreign]));
    assert!(why.contains("no device of gpu.vgpu.io"), "{why}");
    assert!(why.contains("gpu.example.com"), "{why}");
}

#[test]
fn devices_of_other_drivers_are_left_to_them() {
    let mut nic = result("nic", 0, json!({}));
    nic["driver"] = json!("nic.example.com");

    let shares = given(&json!([nic, result("gpu", 0, four())])).unwrap();

    assert_eq!(shares.len(), 1);
    assert_eq!(shares[0].request, "gpu");
}

#[test]
fn allocation_that_names_no_share_is_refused_with_what_to_do() {
    let mut without = result("gpu", 0, four());
    without.as_object_mut().unwrap().remove("consumedCapacity");
    let why = refusal(&json!([without]));
    assert!(why.contains("DRAConsumableCapacity"), "{why}");

    for (consumed, says) in [
        (json!({"cores": "30"}), "no memory; it has cores"),
        (json!({"memory": "4Gi"}), "no cores; it has memory"),
        (json!({"memory": "0", "cores": "0"}), "memory \"0\""),
        (json!({"memory": "-1Gi", "cores": "0"}), "memory \"-1Gi\""),
        (json!({"memory": "1500m", "cores": "0"}), "memory \"1500m\""),
        (json!({"memory": "4Gi", "cores": "101"}), "cores \"101\""),
        (json!({"memory": "4Gi", "cores": "500m"}), "cores \"500m\""),
        (json!({"memory": "4Gi", "cores": "much"}), "cores \"much\""),
    ] {
        let why = refusal(&json!([result("gpu", 0, consumed)]));
        assert!(why.contains(says), "{why}");
        assert!(why.contains("research/share"), "{why}");
    }
}

#[test]
fn foreign_pools_unknown_devices_and_admin_access_are_refused() {
    for (field, value, says) in [
        ("pool", json!("n2"), "the pool \"n2\""),
        ("device", json!("gpu-9"), "device gpu-9 is not on this node"),
        ("adminAccess", json!(true), "adminAccess is not served"),
    ] {
        let mut result = result("gpu", 0, four());
        result[field] = value;
        let why = refusal(&json!([result]));
        assert!(why.contains(says), "{why}");
    }
}

fn opaque(source: &str, requests: &Value, parameters: &Value) -> Value {
    json!({"source": source, "requests": requests, "opaque": {"driver": DRIVER, "parameters": parameters}})
}

fn ours(more: &Value) -> Value {
    let mut all = json!({"apiVersion": API_VERSION, "kind": KIND});
    let more = more.as_object().unwrap().clone();
    all.as_object_mut().unwrap().extend(more);
    all
}

#[test]
fn claims_parameters_stand_above_the_classes() {
    let config = json!([
        opaque("FromClass", &json!([]), &ours(&json!({"priority": 5, "policy": "force"}))),
        opaque("FromClaim", &json!(["gpu"]), &ours(&json!({"priority": 2}))),
        opaque("FromClaim", &json!(["other"]), &ours(&json!({"priority": 9}))),
        {"source": "FromClaim", "opaque": {"driver": "nic.example.com", "parameters": {"x": 1}}},
    ]);
    let claim = claim(&json!([result("gpu/small", 0, four())]), &config);

    let shares = shares(&claim, &asked(), POOL, &inventory(1)).unwrap();

    let expected = Parameters {
        priority: 2,
        policy: PolicyWord::Force,
        ..Parameters::default()
    };
    assert_eq!(shares[0].parameters, expected);
    assert_eq!(shares[0].request, "gpu");
}

#[test]
fn floor_and_oversubscription_are_judged_by_what_was_charged_and_who_wrote_them() {
    let of = |config: Value| {
        let claim = claim(
            &json!([result("gpu", 0, json!({"memory": "4Gi", "cores": "30"}))]),
            &config,
        );
        let found = shares(&claim, &asked(), POOL, &inventory(1));
        found
            .map(|shares| shares[0].parameters)
            .map_err(|it| it.to_string())
    };
    let class = |fields: Value| opaque("FromClass", &json!([]), &ours(&fields));
    let own = |fields: Value| opaque("FromClaim", &json!([]), &ours(&fields));

    let given = of(json!([
        class(json!({"oversubscribe": "4Gi"})),
        own(json!({"floor": 30}))
    ]));
    let expected = Parameters {
        policy: PolicyWord::Floor,
        floor: 30,
        oversubscribe_bytes: 4 << 30,
        ..Parameters::default()
    };
    assert_eq!(given, Ok(expected));

    // A class is for claims of every size.
    for (floor, has) in [(20, 20), (31, 30)] {
        let given = of(json!([class(json!({"floor": floor}))])).unwrap();
        assert_eq!((given.policy, given.floor), (PolicyWord::Floor, has));
    }

    for (config, says) in [
        (
            json!([own(json!({"floor": 31}))]),
            "of the claim have the floor 31",
        ),
        (
            json!([own(json!({"oversubscribe": "4Gi"}))]),
            "only a DeviceClass",
        ),
        (json!([class(json!({"oversubscribe": "4Pi"}))]), "\"4Pi\""),
    ] {
        let why = of(config).unwrap_err();
        assert!(
            why.contains(says) && why.contains("research/share"),
            "{why}"
        );
    }
}

#[test]
fn malformed_parameters_are_refused_with_what_is_accepted() {
    for (parameters, says) in [
        (json!({"priority": 1}), "missing field `apiVersion`"),
        (ours(&json!({"speed": 1})), "unknown field `speed`"),
        (ours(&json!({"floor": 101})), "floor 101"),
        (ours(&json!({"policy": "hard"})), "unknown variant `hard`"),
        (ours(&json!({"priority": -1})), "invalid value"),
        (ours(&json!({"priority": 10})), "priority 10"),
        (
            json!({"apiVersion": "v0", "kind": KIND}),
            "v0 ShareParameters",
        ),
        (json!("force"), "invalid type"),
    ] {
        let config = json!([opaque("FromClaim", &json!([]), &parameters)]);
        let claim = claim(&json!([result("gpu", 0, four())]), &config);
        let why = shares(&claim, &asked(), POOL, &inventory(1))
            .unwrap_err()
            .to_string();
        assert!(why.contains(says), "{why}");
        assert!(why.contains("accepted: apiVersion gpu.vgpu.io/v1"), "{why}");
        assert!(why.contains("the claim"), "{why}");
    }
}

fn uses(of: &[(&str, Option<&str>)]) -> Vec<Use> {
    let one = |(container, request): &(&str, Option<&str>)| Use {
        pod: String::from("p"),
        container: (*container).to_owned(),
        claim: String::from("share"),
        request: request.map(str::to_owned),
    };
    of.iter().map(one).collect()
}

/// The requests and the containers of each part.
fn told(parts: &[Part]) -> Vec<(Vec<&str>, Vec<&str>)> {
    parts
        .iter()
        .map(|part| {
            (
                part.shares.iter().map(|it| it.request.as_str()).collect(),
                part.containers.iter().map(String::as_str).collect(),
            )
        })
        .collect()
}

#[test]
fn requests_that_no_container_uses_together_are_parts_of_their_own() {
    let same = given(&json!([result("a", 0, four()), result("b", 0, four())])).unwrap();

    let divided = parts(same.clone(), &uses(&[("x", Some("a")), ("y", Some("b"))])).unwrap();
    assert_eq!(
        told(&divided),
        [(vec!["a"], vec!["x"]), (vec!["b"], vec!["y"])]
    );

    // Both shares are of one GPU: a container with both could not tell them apart.
    let why = parts(same.clone(), &uses(&[("x", None)]))
        .unwrap_err()
        .to_string();
    assert!(why.contains("distinctAttribute: gpu.vgpu.io/uuid"), "{why}");
    // As is one of whose containers nothing is known.
    parts(same, &[]).unwrap_err();
}

#[test]
fn containers_that_share_a_request_share_a_part() {
    let results = json!([result("a", 0, four()), result("b", 1, four())]);
    let shares = given(&results).unwrap();

    let one = parts(shares.clone(), &[]).unwrap();
    assert_eq!(told(&one), [(vec!["a", "b"], vec![])]);

    let one = parts(shares.clone(), &uses(&[("x", None), ("y", Some("b"))])).unwrap();
    assert_eq!(told(&one), [(vec!["a", "b"], vec!["x", "y"])]);

    let one = parts(shares.clone(), &uses(&[("x", Some("a")), ("x", Some("b"))])).unwrap();
    assert_eq!(told(&one), [(vec!["a", "b"], vec!["x"])]);

    // A request that no container names is a part that no container gets.
    let two = parts(shares, &uses(&[("x", Some("b"))])).unwrap();
    assert_eq!(told(&two), [(vec!["a"], vec![]), (vec!["b"], vec!["x"])]);
}

#[test]
fn one_container_has_one_set_of_parameters() {
    let config = json!([opaque(
        "FromClaim",
        &json!(["b"]),
        &ours(&json!({"priority": 3}))
    )]);
    let results = json!([result("a", 0, four()), result("b", 1, four())]);
    let given = shares(&claim(&results, &config), &asked(), POOL, &inventory(1)).unwrap();

    let why = parts(given.clone(), &uses(&[("x", None)]))
        .unwrap_err()
        .to_string();
    assert!(
        why.contains("request b has other parameters than a"),
        "{why}"
    );
    parts(given, &uses(&[("x", Some("a")), ("y", Some("b"))])).unwrap();
}

#[test]
fn pod_says_which_container_uses_which_claim() {
    let pod: PodClaims = from_value(json!({
        "spec": {
            "initContainers": [{"name": "prep", "resources": {"claims": [{"name": "mine", "request": "a"}]}}],
            "containers": [
                {"name": "work", "resources": {"claims": [{"name": "mine"}, {"name": "made", "request": ""}]}},
                {"name": "idle"},
            ],
            "resourceClaims": [
                {"name": "mine", "resourceClaimName": "share"},
                {"name": "made", "resourceClaimTemplateName": "t"},
            ],
        },
        "status": {
            "resourceClaimStatuses": [{"name": "made", "resourceClaimName": "p-made-x"}],
            "extendedResourceClaimStatus": {"resourceClaimName": "p-extended", "requestMappings": [
                {"containerName": "idle", "resourceName": "gpu.vgpu.io/share", "requestName": "container-0-request-0"},
            ]},
        },
    }))
    .unwrap();

    let uses = pod.uses("p");

    let told = uses.iter().map(|it| {
        (
            it.container.as_str(),
            it.claim.as_str(),
            it.request.as_deref(),
        )
    });
    assert_eq!(
        told.collect::<Vec<_>>(),
        [
            ("prep", "share", Some("a")),
            ("work", "share", None),
            ("work", "p-made-x", None),
            ("idle", "p-extended", Some("container-0-request-0")),
        ]
    );
    let crowd = crowded(&uses, |claim| claim != "p-extended").unwrap();
    assert_eq!(
        crowd,
        (
            String::from("work"),
            vec![String::from("p-made-x"), String::from("share")]
        )
    );
    assert_eq!(crowded(&uses, |claim| claim == "share"), None);
}

#[test]
fn claim_of_an_instance_gets_all_of_it() {
    let inventory = partitions::tests::with_mig();
    let device = format!("{}-3g-20gb-4", device_name(GPUS[1]));
    let of = |device: &str, config: &Value| {
        // A device that belongs to one claim has no consumed capacity and no share's id.
        let result = json!([{"request": "gpu", "driver": DRIVER, "pool": POOL, "device": device}]);
        shares(&claim(&result, config), &asked(), POOL, &inventory)
    };

    let share = of(&device, &json!([])).unwrap().remove(0);

    assert_eq!(
        (share.gpu.as_str(), share.device.as_str()),
        (GPUS[1], &*device)
    );
    assert_eq!(
        (share.memory_bytes, share.physical_bytes, share.cores),
        (20 * GIB, 20 * GIB, 0)
    );
    let place = share.instance.unwrap();
    assert_eq!(
        (place.profile.as_str(), place.start, place.size),
        ("3g.20gb", 4, 4)
    );
    // Neither the GPU that it is cut out of, nor a position where no instance can lie.
    for other in [
        device_name(GPUS[1]),
        format!("{}-3g-20gb-2", device_name(GPUS[1])),
    ] {
        let why = of(&other, &json!([])).unwrap_err().to_string();
        assert!(why.contains("is not on this node; there are:"), "{why}");
        assert!(why.contains(&device), "{why}");
    }
    // The hardware divides the compute time, so nothing is left to guarantee.
    let floor = json!([{"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": {
        "apiVersion": API_VERSION, "kind": KIND, "floor": 20}}}]);
    let why = of(&device, &floor).unwrap_err().to_string();
    assert!(why.contains("floor 20"), "{why}");
}
