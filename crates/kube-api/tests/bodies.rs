//! Bodies of the extender, quotas and amounts: read as Go would read them, and without panics.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use crate::common;

use common::{MIB, quota, vendors};
use kube_api::extender::{
    ExtenderArgs, ExtenderBindingArgs, ExtenderFilterResult, ExtenderPreemptionArgs,
    ExtenderPreemptionResult, MetaVictims, NodeList,
};
use kube_api::object::Pod;
use kube_api::quantity::{Form, Quantity, QuantityError};
use kube_api::quota::limits;
use proptest::prelude::*;
use serde_json::json;

#[test]
fn keys_are_read_in_any_case_and_null_is_nothing() {
    for body in [
        r#"{"Pod":{"metadata":{"name":"p"}},"Nodes":null,"NodeNames":["a",null]}"#,
        r#"  {"nodenames":["a",""],"pod":{"metadata":{"name":"p"}},"Other":[{"x":1}]}"#,
        r#"{"NODENAMES":["a",""],"POD":{"metadata":{"name":"p"},"spec":null,"status":null}}"#,
    ] {
        let args: ExtenderArgs = serde_json::from_str(body).unwrap();
        assert_eq!(
            args.pod.unwrap().metadata.name.as_deref(),
            Some("p"),
            "{body}"
        );
        assert_eq!(args.node_names.unwrap(), ["a", ""]);
        assert!(args.nodes.is_none());
    }
    for body in ["null", "{}", r#"{"Pod":null,"NodeNames":null}"#] {
        let args: ExtenderArgs = serde_json::from_str(body).unwrap();
        assert!(args.pod.is_none() && args.node_names.is_none(), "{body}");
    }
    for body in [
        "",
        "3",
        "[]",
        r#"{"Pod":3}"#,
        r#"{"NodeNames":{}}"#,
        r#"{"Nodes":[]}"#,
        "{}x",
    ] {
        assert!(
            serde_json::from_str::<ExtenderArgs>(body).is_err(),
            "{body}"
        );
    }
}

#[test]
fn object_keeps_its_metadata_without_managed_fields() {
    let text = r#"{"metadata": {"name": "p", "namespace": "n", "uid": "u", "resourceVersion": "7", "generation": 2,
        "generateName": null, "labels": {"a": "b", "c": null}, "annotations": null,
        "creationTimestamp": "2026-01-02T03:04:05Z", "deletionTimestamp": "2026-01-02T03:04:06Z",
        "deletionGracePeriodSeconds": 30, "finalizers": ["f"], "newer": {},
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "v"}],
        "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}]}}"#;
    let mut whole: k8s_openapi::api::core::v1::Pod =
        serde_json::from_str(text.replace("\"c\": null", "\"c\": \"\"").as_str()).unwrap();
    whole.metadata.managed_fields = None;

    let slim: Pod = serde_json::from_str(text).unwrap();

    assert_eq!(slim.metadata, whole.metadata);
    assert_eq!(
        serde_json::from_str::<Pod>(r#"{"metadata":null}"#).unwrap(),
        Pod::default()
    );
}

#[test]
fn whole_nodes_go_back_as_they_came() {
    let node = r#"{"metadata": {"name":"n"},  "newer": 1e3}"#;
    let body = format!(r#"{{"Nodes":{{"metadata":{{}},"Items":[{node}]}}}}"#);

    let args: ExtenderArgs = serde_json::from_str(&body).unwrap();
    let answer = ExtenderFilterResult {
        nodes: Some(NodeList {
            items: args.nodes.unwrap(),
        }),
        ..ExtenderFilterResult::default()
    };

    assert_eq!(
        serde_json::to_string(&answer).unwrap(),
        format!(
            r#"{{"Nodes":{{"items":[{node}]}},"NodeNames":null,"FailedNodes":null,"FailedAndUnresolvableNodes":null,"Error":""}}"#
        )
    );
}

#[test]
fn a_binding_is_read_in_any_case() {
    let expected = ExtenderBindingArgs {
        pod_name: "p".to_owned(),
        pod_namespace: "ns".to_owned(),
        pod_uid: "u".to_owned(),
        node: "n".to_owned(),
    };
    for body in [
        r#"{"PodName":"p","PodNamespace":"ns","PodUID":"u","Node":"n"}"#,
        r#"{"podname":"p","podNamespace":"ns","poduid":"u","node":"n"}"#,
    ] {
        assert_eq!(
            serde_json::from_str::<ExtenderBindingArgs>(body).unwrap(),
            expected
        );
    }
    assert_eq!(
        serde_json::from_str::<ExtenderBindingArgs>(r#"{"PodName":null}"#).unwrap(),
        ExtenderBindingArgs::default()
    );
}

#[test]
fn victims_are_uids_whether_whole_pods_or_names_are_sent() {
    let check = |body: &str| {
        let args: ExtenderPreemptionArgs = serde_json::from_str(body).unwrap();
        let victims = &args.victims["n1"];
        assert_eq!(victims.uids, ["a", "b"], "{body}");
        assert_eq!(victims.num_pdb_violations, 1);
        assert_eq!(args.victims["n2"].uids, Vec::<String>::new());
        MetaVictims::from(victims)
    };
    check(
        r#"{"Pod":{},"NodeNameToVictims":{"n1":{"Pods":[{"metadata":{"uid":"a","name":"x"},"spec":{}},{"metadata":{"uid":"b"}}],"NumPDBViolations":1},"n2":null}}"#,
    );
    check(
        r#"{"nodeNameToVictims":{"n1":{"pods":[{"metadata":{"uid":"z"}}]}},"nodenametometavictims":{"n1":{"pods":[{"uid":"a"},null,{"UID":"b"}],"numPDBViolations":1},"n2":{"Pods":null}}}"#,
    );
    let victims = check(
        r#"{"NodeNameToMetaVictims":{"n1":{"Pods":[{"UID":"a"},{"UID":"b"}],"NumPDBViolations":1},"n2":{}}}"#,
    );

    let answer = ExtenderPreemptionResult {
        node_name_to_meta_victims: [("n1".to_owned(), victims)].into(),
    };
    assert_eq!(
        serde_json::to_value(answer).unwrap(),
        json!({"NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "a"}, {"UID": "b"}], "NumPDBViolations": 1}}})
    );
}

#[test]
fn a_quota_limits_what_its_lines_name_and_only_under_limits() {
    let quota = quota(json!({"spec": {"hard": {
        "limits.nvidia.com/gpumem": "3000",
        "limits.nvidia.com/gpucores": 0,
        "limits.hygon.com/dcumem": "16Gi",
        "limits.cambricon.com/mlu.smlu.vmemory": "4",
        "limits.cpu": "x",
        "limits.mthreads.com/sgpu-memory": "lots",
        "limits.nvidia.com/gpu": "500m",
        "requests.nvidia.com/gpumem": "1",
        "pods": "3",
    }}}));

    let (limits, errors) = limits(&quota, vendors());

    let found: Vec<(&str, Option<u64>, Option<u32>)> = limits
        .iter()
        .map(|(vendor, quota)| {
            (
                vendor.as_str(),
                quota.memory_bytes.map(|bytes| bytes / MIB),
                quota.cores,
            )
        })
        .collect();
    assert_eq!(
        found,
        [
            ("MLU", Some(1024), None),
            ("DCU", Some(16384), None),
            ("NVIDIA", Some(3000), Some(0))
        ]
    );
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        errors,
        [
            "hard.limits.mthreads.com/sgpu-memory: \"lots\" is no amount; write a number such as 3000, 3k, 16Gi or 500m",
            "hard.limits.nvidia.com/gpu: 500m is no whole number of 0 or more",
        ]
    );
}

#[test]
fn amounts_are_exact() {
    let check = |text: &str, whole: Option<i128>, milli: Option<i128>| {
        let amount = Quantity::from(text).parse().unwrap();
        assert_eq!((amount.whole(), amount.milli()), (whole, milli), "{text}");
        amount.form
    };
    let whole = |number: i128| (Some(number), Some(number * 1000));
    for (text, number) in [
        ("0", 0),
        ("3000", 3000),
        ("+3", 3),
        ("-3", -3),
        ("3k", 3000),
        ("1.5k", 1500),
        (".5k", 500),
        ("5.", 5),
        ("007", 7),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 1_000_000_000_000_000_000),
        ("2500m", 2),
        ("1e-0", 1),
        ("1000e-3", 1),
        ("9223372036854775807", i128::from(i64::MAX)),
        ("0e99999999", 0),
        ("1.000000000000000000000000000000000", 1),
    ] {
        let (whole, milli) = whole(number);
        if text == "2500m" {
            assert_eq!(check(text, None, Some(2500)), Form::Decimal);
        } else {
            assert_eq!(check(text, whole, milli), Form::Decimal);
        }
    }
    for (text, number) in [
        ("16Gi", 16 << 30),
        ("0.5Gi", 1 << 29),
        ("1Ei", 1 << 60),
        ("-1Ki", -1024),
    ] {
        let (whole, milli) = whole(number);
        assert_eq!(check(text, whole, milli), Form::Binary);
    }
    check("1u", None, None);
    check("0.1", None, Some(100));
}

#[test]
fn invalid_amount_is_refused_with_a_reason() {
    for text in [
        "",
        ".",
        "-",
        "abc",
        "1.2.3",
        "1 ",
        " 1",
        "1Gib",
        "1gi",
        "1K",
        "1e",
        "1e+",
        "1e1.5",
        "--1",
        "0x10",
        "1_000",
        "∞",
        "1e99999999999999999999",
    ] {
        let error = Quantity::from(text).parse().unwrap_err();
        assert!(
            matches!(error, QuantityError::Malformed(_)),
            "{text:?}: {error}"
        );
    }
    for text in [
        "9223372036854775808",
        "8Ei",
        "1e19",
        "1e999",
        "99999999999999999999999999999999999999999",
    ] {
        let error = Quantity::from(text).parse().unwrap_err();
        assert!(
            matches!(error, QuantityError::TooLarge(_)),
            "{text:?}: {error}"
        );
    }
    for text in ["1e-10", "0.0000000001", "0.1n", "1e-999"] {
        let error = Quantity::from(text).parse().unwrap_err();
        assert!(
            matches!(error, QuantityError::TooFine(_)),
            "{text:?}: {error}"
        );
    }
    let long = Quantity("x".repeat(1 << 20))
        .parse()
        .unwrap_err()
        .to_string();
    assert!(long.len() < 200, "an error shows no megabyte");
}

#[test]
fn json_may_have_an_amount_as_a_number_and_null_is_0() {
    let read = |text: &str| serde_json::from_str::<Quantity>(text).map(|quantity| quantity.0);
    assert_eq!(read("3").unwrap(), "3");
    assert_eq!(read("-3").unwrap(), "-3");
    assert_eq!(read("\"16Gi\"").unwrap(), "16Gi");
    assert_eq!(read("null").unwrap(), "0");
    assert_eq!(
        Quantity(read("1.5e3").unwrap()).parse().unwrap().whole(),
        Some(1500)
    );
    assert!(read("true").is_err() && read("[]").is_err());
}

proptest! {
    #[test]
    fn an_amount_is_what_its_digits_say(number in any::<i64>(), places in 0..9_u32) {
        let number = i128::from(number) / 1_000_000_000;
        let power = 10_i128.pow(places);
        let sign = if number < 0 { "-" } else { "" };
        let (whole, rest) = (number.abs() / power, number.abs() % power);
        let width = usize::try_from(places).unwrap();
        let text = if places == 0 { number.to_string() } else { format!("{sign}{whole}.{rest:0width$}") };

        let amount = Quantity(format!("{text}e{places}")).parse().unwrap();

        prop_assert_eq!(amount.whole(), Some(number));
    }

    #[test]
    fn no_text_makes_an_amount_panic(text in "[-+]?[0-9.]{0,60}[eEinumkKMGTP]{0,3}[-+]?[0-9]{0,12}|\\PC{0,20}") {
        if let Ok(amount) = Quantity(text).parse() {
            prop_assert!(amount.whole().is_none_or(|whole| whole.abs() <= i128::from(i64::MAX)));
        }
    }

    #[test]
    fn no_body_makes_a_decoder_panic(text in "[\\PC\\[\\]{}\":,]{0,60}", at in any::<prop::sample::Index>()) {
        let whole = r#"{"Pod":{"metadata":{"name":"p"},"spec":{"containers":[{"resources":{"limits":{"a":1}}}]}},"Nodes":{"items":[{"a":1}]},"NodeNames":["a"],"NodeNameToMetaVictims":{"n1":{"Pods":[{"UID":"a"}],"NumPDBViolations":1}},"PodName":"p"}"#;
        let (start, end) = whole.split_at(at.index(whole.len()));
        for body in [text.clone(), format!("{start}{text}{end}"), start.to_owned()] {
            serde_json::from_str::<ExtenderArgs>(&body).ok();
            serde_json::from_str::<ExtenderBindingArgs>(&body).ok();
            serde_json::from_str::<ExtenderPreemptionArgs>(&body).ok();
        }
    }
}
