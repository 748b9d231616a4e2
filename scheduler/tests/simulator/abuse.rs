//! Input that is wrong or far too large: the right code, a message, and a simulator that goes on as before.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::wire::{Served, node, recording};

const JSON: (&str, &str) = ("Content-Type", "application/json");

#[tokio::test]
async fn a_body_of_100_mb_is_refused_and_not_kept() {
    let served = Served::start(None).await;
    let body = vec![b' '; 100_000_000];

    for path in ["/api/v1/import", "/api/v1/schedulerconfiguration"] {
        let answer = served
            .send(
                "POST",
                path,
                &[JSON, ("Expect", "100-continue")],
                Some(&body),
            )
            .await;
        assert_eq!(answer.code(), 413, "{path}");
        assert!(answer.message().contains("bytes"), "{}", answer.message());
    }

    assert_eq!(
        served.import(&json!({ "nodes": [node("n")] })).await.code(),
        200
    );
}

#[tokio::test]
async fn a_body_that_is_not_json_is_refused_with_its_place() {
    let served = Served::start(None).await;
    let before = served.get("/api/v1/schedulerconfiguration").await.json();

    for (kind, body, said) in [
        ("application/json", "{bad", "line 1 column 2"),
        ("application/yaml", "a: b", "application/yaml"),
        ("application/json", "[]", "a list"),
    ] {
        let kind = [("Content-Type", kind)];
        let import = served
            .send("POST", "/api/v1/import", &kind, Some(body.as_bytes()))
            .await;
        assert_eq!(import.code(), 400, "{body}");
        assert!(import.message().contains(said), "{}", import.message());
        let posted = served
            .send(
                "POST",
                "/api/v1/schedulerconfiguration",
                &kind,
                Some(body.as_bytes()),
            )
            .await;
        assert_eq!(posted.code(), 500, "{body}");
    }

    assert_eq!(
        served.get("/api/v1/schedulerconfiguration").await.json(),
        before
    );
}

#[tokio::test]
async fn a_configuration_that_cannot_run_is_refused() {
    let served = Served::start(None).await;
    let before = served.get("/api/v1/schedulerconfiguration").await.json();
    let enabled = |name: &str| json!({ "profiles": [{ "plugins": { "multiPoint": { "enabled": [{ "name": name }] } } }] });
    let wrong = [
        (enabled("NoSuch"), "NoSuch"),
        (
            json!({ "profiles": [{ "schedulerName": "a" }, { "schedulerName": "a" }] }),
            "a",
        ),
        (
            json!({ "profiles": [{ "pluginConfig": [{ "name": "NodeResourcesFit",
                "args": { "scoringStrategy": { "type": "NoStrategy" } } }] }] }),
            "NoStrategy",
        ),
    ];

    for (configuration, said) in wrong {
        let posted = served
            .post("/api/v1/schedulerconfiguration", &configuration)
            .await;
        assert_eq!(posted.code(), 500, "{configuration}");
        assert!(posted.message().contains(said), "{}", posted.message());
        let import = json!({ "nodes": [node("n")], "schedulerConfig": configuration });
        let imported = served.import(&import).await;
        assert_eq!(imported.code(), 500);
        assert!(imported.message().contains(said), "{}", imported.message());
    }

    assert_eq!(
        served.get("/api/v1/schedulerconfiguration").await.json(),
        before
    );
    assert_eq!(served.export().await["nodes"], json!([]));
}

/// A document with one of its values exchanged for another, at a place that these steps lead to.
pub(super) fn broken(document: &Value, at: &[usize], with: &Value) -> Value {
    let Some((step, rest)) = at.split_first() else {
        return with.clone();
    };
    let mut whole = document.clone();
    let inner = match &mut whole {
        Value::Object(fields) if !fields.is_empty() => {
            let at = step % fields.len();
            fields.values_mut().nth(at)
        }
        Value::Array(items) if !items.is_empty() => {
            let at = step % items.len();
            items.get_mut(at)
        }
        _ => return with.clone(),
    };
    if let Some(inner) = inner {
        *inner = broken(inner, rest, with);
    }
    whole
}

pub(super) fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        Just(json!({})),
        Just(json!([])),
        Just(json!([{}])),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,20}".prop_map(Value::from),
    ]
}

#[test]
fn random_input_never_breaks_the_simulator() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let served = runtime.block_on(Served::start(None));
    let sample = recording("export-sample.json");
    let configuration = recording("http-default-config.json")[0]["response"]["body_json"].clone();
    let tree = |document: Value| {
        (prop::collection::vec(any::<usize>(), 0..7), value())
            .prop_map(move |(at, with)| broken(&document, &at, &with).to_string().into_bytes())
    };
    let bytes = prop::collection::vec(any::<u8>(), 0..200);
    let input = prop_oneof![
        (
            Just("/api/v1/import"),
            prop_oneof![bytes.clone(), tree(sample)]
        ),
        (
            Just("/api/v1/schedulerconfiguration"),
            prop_oneof![bytes, tree(configuration)]
        ),
    ];
    let config = ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(config, |((path, body) in input)| {
        runtime.block_on(async {
            let before = served.export().await;
            let answer = served.send("POST", path, &[JSON], Some(&body)).await;
            match answer.code() {
                200 | 202 => {}
                400 | 500 => {
                    let message = answer.message();
                    prop_assert!(message.len() > 8 && !message.contains("panicked"), "{}", message);
                    prop_assert_eq!(served.export().await, before);
                }
                other => prop_assert!(false, "{}: {}", other, String::from_utf8_lossy(&answer.body)),
            }
            Ok(())
        })?;
    });
    assert_eq!(
        runtime
            .block_on(served.send("PUT", "/api/v1/reset", &[], None))
            .code(),
        202
    );
    assert_eq!(
        runtime
            .block_on(served.import(&json!({ "nodes": [node("n")] })))
            .code(),
        200
    );
    runtime.block_on(async { drop(served) });
}
