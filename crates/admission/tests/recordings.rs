//! All recordings of the reference's webhook: allowed, code, message, and the pod after the patch. Cases in which ours
//! differs are in `deviations`, with the reason and our correct answer; a listed case that does not differ fails.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "what is wrong in a test ends it"
)]

use crate::common;

use std::collections::BTreeMap;
use std::sync::Arc;

use admission::{Admission, Answer, Settings};
use base64::Engine as _;
use kube_api::quantity::Quantity;
use serde_json::{Value, json};

/// A webhook's answer.
#[derive(Debug, Clone, PartialEq)]
struct Said {
    allowed: bool,
    code: u64,
    message: Option<String>,
    /// After the patch; none if it is refused.
    pod: Option<Value>,
}

impl Said {
    /// Reads an `AdmissionReview`. Amounts are compared by value, and the empty status that the reference adds to
    /// every pod is ignored.
    fn of(review: &Value, object: &Value, operations: Value) -> Self {
        let response = &review["response"];
        let allowed = response["allowed"] == true;
        let pod = allowed.then(|| {
            let operations: json_patch::Patch = serde_json::from_value(operations).unwrap();
            let mut pod = object.clone();
            json_patch::patch(&mut pod, &operations).unwrap();
            if pod["status"] == json!({}) {
                pod.as_object_mut().unwrap().remove("status");
            }
            for list in ["containers", "initContainers"] {
                for container in pod["spec"][list].as_array_mut().into_iter().flatten() {
                    for kind in ["limits", "requests"] {
                        let amounts = container["resources"][kind].as_object_mut();
                        for (_, amount) in amounts.into_iter().flatten() {
                            let read: Quantity = serde_json::from_value(amount.clone()).unwrap();
                            *amount = json!(format!("{:?}", read.parse()));
                        }
                    }
                }
            }
            pod
        });
        Self {
            allowed,
            code: response["status"]["code"].as_u64().unwrap_or_default(),
            message: response["status"]["message"].as_str().map(str::to_owned),
            pod,
        }
    }
}

struct Case {
    recorded: Said,
    ours: Said,
}

fn run(recording: &Value) -> Case {
    let config = recording["deviceConfigFile"].as_str().unwrap();
    let config = config
        .strip_prefix("_configs/")
        .unwrap()
        .strip_suffix(".yaml")
        .unwrap();
    let arguments = &recording["args"];
    let mut settings = Settings::default();
    if let Some(force) = arguments["forceOverwriteDefaultScheduler"].as_bool() {
        settings.force_overwrite_default_scheduler = force;
    }
    if let Some(name) = arguments["schedulerName"].as_str() {
        settings.scheduler_name = name.into();
    }
    let admission = Admission::new(Arc::new(common::vendors(config)), settings);
    let request = &recording["steps"][0]["request"];
    let object = &request["request"]["object"];
    let expected = &recording["expect"]["steps"][0];
    let patch = match &expected["decodedPatchSorted"] {
        Value::Null => json!([]),
        patch => patch.clone(),
    };
    let recorded = Said::of(&expected["response"], object, patch);

    let Answer::Reviewed(answer) = admission.review(&serde_json::to_vec(request).unwrap()) else {
        panic!("{recording}");
    };

    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(
        answer["response"]["uid"],
        expected["response"]["response"]["uid"]
    );
    let patch = match answer["response"]["patch"].as_str() {
        None => json!([]),
        Some(patch) => {
            let patch = base64::engine::general_purpose::STANDARD
                .decode(patch)
                .unwrap();
            serde_json::from_slice(&patch).unwrap()
        }
    };
    Case {
        recorded,
        ours: Said::of(&answer, object, patch),
    }
}

/// The recording's number, our answer, and the reason.
type Deviation = (&'static str, Ours, &'static str);

enum Ours {
    /// Refused, with a message that contains all of these texts.
    Refused(&'static [&'static str]),
    /// Admitted, with these operations on the pod as it was sent.
    Patched(Value),
}

fn deviations() -> Vec<Deviation> {
    const WORDS: &str = "the text goes on with the field and the cure";
    const CODE: &str = "what its author has to mend is refused with 403, not 500, and the text names container and field";
    const MALFORMED: &str =
        "the reference lets an amount pass that fits nowhere, so the pod would wait for ever";
    const FUTURE: &str = "fields that this build does not know stay";
    let scheduled = |more: Value| {
        let mut operations =
            vec![json!({ "op": "add", "path": "/spec/schedulerName", "value": "hami-scheduler" })];
        operations.extend(more.as_array().cloned().unwrap());
        Ours::Patched(Value::Array(operations))
    };
    let refused = Ours::Refused;
    vec![
        (
            "176",
            refused(&[
                "container c0",
                "resources.limits[nvidia.com/gpumem-percentage]",
                "150",
            ]),
            CODE,
        ),
        (
            "179",
            scheduled(
                json!([{ "op": "replace", "path": "/spec/containers/0/env/0/value", "value": "1" }]),
            ),
            "the variable stands there once, with the value that counted there: the last",
        ),
        (
            "180",
            refused(&[
                "container c0",
                "securityContext.privileged",
                "is privileged",
            ]),
            WORDS,
        ),
        (
            "181",
            refused(&["container x", "securityContext.privileged", "is privileged"]),
            WORDS,
        ),
        (
            "183",
            refused(&["spec.nodeName", "pod has node assigned", "n1"]),
            WORDS,
        ),
        (
            "191",
            refused(&["spec.containers", "pod has no containers"]),
            WORDS,
        ),
        (
            "196",
            scheduled(json!([
                { "op": "add", "path": "/spec/initContainers/0/resources/limits/nvidia.com~1gpu", "value": "1" },
                {
                    "op": "add",
                    "path": "/spec/containers/0/env",
                    "value": [{ "name": "NVIDIA_VISIBLE_DEVICES", "value": "void" }],
                },
            ])),
            "a container without a GPU beside one with a GPU sees no GPU, whatever its image says",
        ),
        (
            "197",
            scheduled(json!([{
                "op": "add",
                "path": "/spec/containers/0/resources/limits",
                "value": { "nvidia.com/gpu": "1", "nvidia.com/gpucores": "100" },
            }])),
            "the API server refuses a pod whose extended resource has a request and no limit",
        ),
        (
            "202",
            refused(&["there is no content to decode", "request.object"]),
            WORDS,
        ),
        (
            "204",
            refused(&[
                "metadata.annotations[hami.io/vgpu-devices-allocated]",
                "remove it",
            ]),
            "what a pod was given is not its author's to say (HAMi#3041)",
        ),
        (
            "209",
            refused(&[
                "container c0",
                "resources.limits[huawei.com/Ascend910B3-core]",
                "hami-core",
            ]),
            CODE,
        ),
        (
            "211",
            refused(&[
                "container c0",
                "resources.limits[huawei.com/Ascend910C]",
                "1 or 2*n",
            ]),
            CODE,
        ),
        (
            "213",
            refused(&[
                "container c0",
                "resources.limits[mthreads.com/sgpu-memory]",
                "[2, 4, 8",
            ]),
            CODE,
        ),
        (
            "216",
            refused(&[
                "metadata.annotations[metax-tech.com/sgpu-qos-policy]",
                "best-effort",
            ]),
            CODE,
        ),
        (
            "219",
            refused(&[
                "container c0",
                "resources.limits[aws.amazon.com/neuroncore]",
                "3",
            ]),
            CODE,
        ),
        ("248", scheduled(json!([])), FUTURE),
        ("249", Ours::Patched(json!([])), FUTURE),
        (
            "253",
            refused(&["container c0", "resources.limits[nvidia.com/gpu]", "500m"]),
            MALFORMED,
        ),
        (
            "254",
            refused(&["container c0", "resources.limits[nvidia.com/gpumem]", "-5"]),
            MALFORMED,
        ),
    ]
}

#[test]
fn recorded_reviews_get_the_same_answers_except_listed_ones() {
    let listed: BTreeMap<&str, (Ours, &str)> = deviations()
        .into_iter()
        .map(|(number, ours, why)| (number, (ours, why)))
        .collect();
    let mut seen = 0;
    let mut wrong = Vec::new();
    for entry in std::fs::read_dir(common::recordings()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if !name.contains("-webhook-") {
            continue;
        }
        seen += 1;
        let recording: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let Case { recorded, ours } = run(&recording);
        let object = &recording["steps"][0]["request"]["request"]["object"];
        match listed.get(&name[..3]) {
            None if recorded == ours => {}
            None => wrong.push(format!(
                "{name}\n  recorded {recorded:?}\n  ours     {ours:?}"
            )),
            Some(_) if recorded == ours => {
                wrong.push(format!("{name} is listed, and does not differ"))
            }
            Some((Ours::Refused(texts), _)) => {
                let message = ours.message.as_deref().unwrap_or_default();
                if ours.allowed
                    || ours.code < 400
                    || !texts.iter().all(|text| message.contains(text))
                {
                    wrong.push(format!("{name}\n  not refused with {texts:?}: {ours:?}"));
                }
            }
            Some((Ours::Patched(operations), _)) => {
                let review = json!({ "response": { "allowed": true, "status": { "code": 200 } } });
                let right = Said::of(&review, object, operations.clone());
                if ours != right {
                    wrong.push(format!("{name}\n  right {right:?}\n  ours  {ours:?}"));
                }
            }
        }
    }
    assert!(seen >= 41, "{seen} recordings");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
