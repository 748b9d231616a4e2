//! Requests with hcs.io's resource names at admission: the rewritten amounts, the injected parts, and that a second
//! admission changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use admission::{Admission, Settings};
use kube_api::config::{DeviceConfig, Hcs, ImageRule};
use kube_api::vendor::Vendors;
use serde_json::{Value, json};

use crate::common::{ALL, create, patched};

fn admission(change: impl FnOnce(&mut Hcs)) -> Admission {
    let mut hcs = Hcs::default();
    change(&mut hcs);
    let config = DeviceConfig {
        hcs: Some(hcs),
        ..DeviceConfig::standard()
    };
    let vendors = Vendors::new(config, ALL).unwrap();
    Admission::new(Arc::new(vendors), Settings::default())
}

fn pod(annotations: Value, resources: Value) -> Value {
    json!({
        "metadata": { "name": "p", "annotations": annotations },
        "spec": { "containers": [
            { "name": "c", "image": "docker.io/library/pytorch:2.0", "resources": resources },
        ] },
    })
}

fn vram() -> Value {
    json!({ "requests": { "ai.compute/vram": "16Gi" }, "limits": { "ai.compute/vram": "32Gi" } })
}

fn huawei(hcs: &mut Hcs) {
    let one = |text: &str| BTreeMap::from([("huawei".to_owned(), text.to_owned())]);
    hcs.runtime_classes = one("ascend");
    hcs.library_paths = one("/usr/local/Ascend/driver/lib64");
    hcs.images = vec![ImageRule {
        vendor: "huawei".to_owned(),
        from: "docker.io/library/*".to_owned(),
        to: "registry.example.com/ascend/*".to_owned(),
    }];
}

#[test]
fn limits_become_what_an_api_server_takes() {
    let after = patched(&admission(|_| ()), &pod(json!({}), vram()), &create());

    let resources = &after["spec"]["containers"][0]["resources"];
    assert_eq!(resources["limits"]["ai.compute/vram"], "16Gi");
    assert_eq!(resources["requests"]["ai.compute/vram"], "16Gi");
    for count in ["nvidia.com/gpu", "hygon.com/dcunum", "cambricon.com/vmlu"] {
        assert_eq!(resources["limits"][count], "1", "{count}");
    }
    assert_eq!(
        after["metadata"]["annotations"]["hcs.io/burst-limits"],
        r#"{"c":{"ai.compute/vram":"32Gi"}}"#
    );
    assert_eq!(after["spec"]["schedulerName"], "hami-scheduler");
}

#[test]
fn a_pod_of_several_vendors_gets_their_own_scheduler() {
    let admission = admission(|hcs| hcs.any_vendor_scheduler = "any-vendor".to_owned());
    let prefers = |vendor: &str| json!({ "hcs.io/vendor-preference": vendor });
    let scheduler = |annotations: Value, resources: Value| {
        let once = patched(&admission, &pod(annotations, resources), &create());
        let twice = patched(&admission, &once, &create());
        assert_eq!(once, twice);
        once["spec"]["schedulerName"].as_str().unwrap().to_owned()
    };

    assert_eq!(scheduler(prefers("any"), vram()), "any-vendor");
    assert_eq!(scheduler(prefers("nvidia"), vram()), "hami-scheduler");
    let plain = json!({ "limits": { "nvidia.com/gpu": "1" } });
    assert_eq!(scheduler(json!({}), plain), "hami-scheduler");
}

#[test]
fn a_second_look_changes_nothing() {
    let admission = admission(huawei);
    let annotations = json!({
        "hcs.io/vendor-preference": "huawei", "hcs.io/image-rebinding": "true", "team": "a",
    });
    let once = patched(&admission, &pod(annotations, vram()), &create());

    assert_eq!(patched(&admission, &once, &create()), once);
    assert!(admission.passed(&once).is_ok());
    assert_eq!(once["metadata"]["annotations"]["team"], "a");
}

#[test]
fn one_vendor_gets_its_driver_runtime_and_image() {
    let annotations =
        json!({ "hcs.io/vendor-preference": "huawei", "hcs.io/image-rebinding": "true" });

    let after = patched(&admission(huawei), &pod(annotations, vram()), &create());

    let container = &after["spec"]["containers"][0];
    assert_eq!(
        container["image"],
        "registry.example.com/ascend/pytorch:2.0"
    );
    assert_eq!(
        after["metadata"]["annotations"]["hcs.io/original-images"],
        r#"{"c":"docker.io/library/pytorch:2.0"}"#
    );
    assert_eq!(after["spec"]["runtimeClassName"], "ascend");
    assert_eq!(
        container["env"],
        json!([{ "name": "LD_LIBRARY_PATH", "value": "/usr/local/Ascend/driver/lib64" }])
    );
}

#[test]
fn switches_turn_injection_off() {
    let annotations = json!({
        "hcs.io/vendor-preference": "huawei",
        "hcs.io/inject-driver": "false", "hcs.io/inject-runtime": "false",
    });

    let after = patched(&admission(huawei), &pod(annotations, vram()), &create());

    let container = &after["spec"]["containers"][0];
    assert_eq!(container["image"], "docker.io/library/pytorch:2.0");
    assert_eq!(container["env"], Value::Null);
    assert_eq!(after["spec"]["runtimeClassName"], Value::Null);
}

#[test]
fn several_vendors_get_nothing_that_is_of_one() {
    let annotations = json!({ "hcs.io/image-rebinding": "true" });

    let after = patched(&admission(huawei), &pod(annotations, vram()), &create());

    assert_eq!(
        after["spec"]["containers"][0]["image"],
        "docker.io/library/pytorch:2.0"
    );
    assert_eq!(after["spec"]["runtimeClassName"], Value::Null);
}

#[test]
fn pods_own_values_stay() {
    let annotations = json!({ "hcs.io/vendor-preference": "huawei" });
    let mut said = pod(annotations, vram());
    said["spec"]["runtimeClassName"] = "own".into();
    said["spec"]["containers"][0]["env"] = json!([{ "name": "LD_LIBRARY_PATH", "value": "/own" }]);

    let after = patched(&admission(huawei), &said, &create());

    assert_eq!(after["spec"]["runtimeClassName"], "own");
    assert_eq!(after["spec"]["containers"][0]["env"][0]["value"], "/own");
    assert_eq!(after["spec"]["containers"][0]["env"][1], Value::Null);
}

#[test]
fn no_path_is_written_into_any_recorded_pod() {
    let recorded = include_str!("../../../tests/vectors/hcs/webhook.json");
    let recorded: Value = serde_json::from_str(recorded).unwrap();
    let mut pods = Vec::new();
    collect(&recorded, &mut pods);
    assert!(pods.len() > 10, "{}", pods.len());
    let admission = admission(huawei);
    for pod in pods {
        if let Ok(admitted) = admission.admit(&pod, &create()) {
            let text = json!(admitted.patch).to_string();
            assert!(
                !text.contains("\"PATH\"") && !text.contains("hostPath"),
                "{text}"
            );
        }
    }
}

/// Every pod in the recordings.
fn collect(value: &Value, into: &mut Vec<Value>) {
    match value {
        Value::Object(map) => {
            if map
                .get("spec")
                .is_some_and(|spec| spec["containers"].is_array())
            {
                into.push(value.clone());
            }
            map.values().for_each(|inner| collect(inner, into));
        }
        Value::Array(values) => values.iter().for_each(|inner| collect(inner, into)),
        _ => {}
    }
}
