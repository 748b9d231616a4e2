//! Every request that was recorded from the reference, in order, sent to the simulator. Its status, headers and body
//! must be the recorded ones, except for the differences in [`DIFFERENCES`].

use serde_json::Value;

use super::wire::{Answer, Served, recording, settled};

/// The expected part of a recorded answer.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Expected {
    /// The recorded status and headers; the body is not compared.
    AnyBody,
    /// Another status, with the headers of that; the body is not compared.
    Status(u16),
}

/// Recording, title of the step, the expected answer instead, the reason.
const DIFFERENCES: [(&str, &str, Expected, &str); 13] = [
    (
        "http.json",
        "POST schedulerconfiguration unknown plugin name (accepted, scheduler dies)",
        Expected::Status(500),
        "a configuration that cannot run is refused before anything changes",
    ),
    (
        "http.json",
        "POST schedulerconfiguration when restart fails twice",
        Expected::Status(202),
        "there is no container whose restart could fail",
    ),
    (
        "http.json",
        "GET after failed restart",
        Expected::AnyBody,
        "the configuration before it was taken over",
    ),
    (
        "http.json",
        "PUT reset when restart fails",
        Expected::Status(202),
        "there is no container whose restart could fail",
    ),
    (
        "http.json",
        "GET schedulerconfiguration after import {}",
        Expected::AnyBody,
        "an import without a configuration keeps the present one, so null is never shown",
    ),
    (
        "http.json",
        "POST schedulerconfiguration after nil config",
        Expected::Status(202),
        "the reference drops the connection: its configuration is broken by then",
    ),
    (
        "http.json",
        "POST import pod without namespace",
        Expected::Status(200),
        "such a pod belongs to the namespace default; the reference's configuration is broken by then",
    ),
    (
        "http.json",
        "POST import with namespace, PC, SC, PV, PVC, node, pod",
        Expected::Status(200),
        "the reference's configuration is broken by then",
    ),
    (
        "http.json",
        "GET export after full import",
        Expected::AnyBody,
        "the imports before it were taken over",
    ),
    (
        "http.json",
        "GET export after import",
        Expected::AnyBody,
        "the status of pods is kept, and the reference's scheduler wrote annotations meanwhile",
    ),
    (
        "http.json",
        "GET export after import {}",
        Expected::AnyBody,
        "as after the import before it",
    ),
    (
        "http-2.json",
        "GET export after import",
        Expected::AnyBody,
        "the status of pods is kept, which the reference loses",
    ),
    (
        "http.json",
        "POST extender/filter/0 on the simulator server (nil service)",
        Expected::Status(404),
        "the reference drops the connection: a nil pointer",
    ),
];

#[tokio::test]
async fn every_recorded_request_is_answered_as_recorded() {
    for file in ["http.json", "http-2.json"] {
        let steps = recording(file);
        let steps = steps.as_array().unwrap();
        let first = recording("http.json")[0]["response"]["body_json"].clone();
        let served = Served::start(Some(&first)).await;
        let mut played = 0;
        let mut differences = 0;
        for step in steps {
            let Some(request) = step.get("request") else {
                continue;
            };
            let title = step["title"].as_str().unwrap();
            // The changes that kubectl made between two steps of the recording.
            if title.starts_with("GET export with 3 nodes") {
                let mut state = step["response"]["body_json"].clone();
                state.as_object_mut().unwrap().remove("schedulerConfig");
                let imported = served.import(&state).await;
                assert_eq!(
                    imported.code(),
                    200,
                    "{}",
                    String::from_utf8_lossy(&imported.body)
                );
            }
            let answer = play(&served, request).await;
            let difference = DIFFERENCES
                .iter()
                .find(|row| row.0 == file && row.1 == title)
                .map(|row| row.2);
            differences += usize::from(difference.is_some());
            compare(
                &format!("{file}: {title}"),
                &step["response"],
                &answer,
                difference,
            );
            played += 1;
        }
        assert!(played >= 9, "{file} has {played} requests");
        let listed = DIFFERENCES.iter().filter(|row| row.0 == file).count();
        assert_eq!(differences, listed, "{file}: a difference names no step");
    }
}

async fn play(served: &Served, request: &Value) -> Answer {
    let headers: Vec<(&str, &str)> = request["headers"]
        .as_object()
        .unwrap()
        .iter()
        .filter(|(name, _)| !["Host", "Connection", "Content-Length"].contains(&name.as_str()))
        .map(|(name, value)| (name.as_str(), value.as_str().unwrap()))
        .collect();
    let body = match &request["body"] {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    };
    let (method, path) = (
        request["method"].as_str().unwrap(),
        request["path"].as_str().unwrap(),
    );
    let body = body.as_ref().map(|body| body.as_bytes());
    served.send(method, path, &headers, body).await
}

fn compare(title: &str, recorded: &Value, answer: &Answer, difference: Option<Expected>) {
    let status = recorded["status_line"].as_str().unwrap_or("-");
    if let Some(Expected::Status(code)) = difference {
        assert_eq!(
            answer.code(),
            code,
            "{title}: {}",
            String::from_utf8_lossy(&answer.body)
        );
        assert!(
            !status.contains(&code.to_string()),
            "{title}: there is no difference"
        );
        if code >= 400 {
            assert!(answer.message().len() > 8, "{title}");
        }
        return;
    }
    assert_eq!(
        answer.status,
        status,
        "{title}: {}",
        String::from_utf8_lossy(&answer.body)
    );
    same_headers(title, recorded, answer);
    let ends = recorded["body_ends_with_newline"] == true;
    if difference.is_some() {
        return;
    }
    match recorded.get("body_json") {
        None => assert_eq!(
            String::from_utf8_lossy(&answer.body),
            recorded["body_text"].as_str().unwrap(),
            "{title}"
        ),
        Some(body) => {
            assert_eq!(answer.body.ends_with(b"\n"), ends, "{title}");
            let generic = ["Bad Request", "Internal Server Error"];
            if let Some(message) = body["message"].as_str().filter(|m| generic.contains(m)) {
                // The code is the recorded one; the message says why.
                assert!(
                    answer.message().len() > message.len(),
                    "{title}: {}",
                    answer.message()
                );
                return;
            }
            assert_eq!(
                lists(settled(&answer.json())),
                lists(settled(body)),
                "{title}"
            );
        }
    }
}

/// Every recorded header, as often as it was recorded, and no other but the date.
fn same_headers(title: &str, recorded: &Value, answer: &Answer) {
    let mut wanted: Vec<(String, String)> = Vec::new();
    let mut length = None;
    for pair in recorded["headers"].as_array().unwrap() {
        let (name, value) = (pair[0].as_str().unwrap(), pair[1].as_str().unwrap());
        match name {
            "Content-Length" => length = Some(value),
            // A connection that ends, and a body of unknown length, are the transport's.
            "Connection" | "Transfer-Encoding" => {}
            _ => wanted.push((name.to_lowercase(), value.to_owned())),
        }
    }
    let mut given: Vec<(String, String)> = answer
        .headers
        .iter()
        .map(|(name, value)| (name.to_lowercase(), value.clone()))
        // RFC 9110 wants `Allow` beside 405.
        .filter(|(name, _)| {
            ![
                "date",
                "connection",
                "content-length",
                "transfer-encoding",
                "allow",
            ]
            .contains(&name.as_str())
        })
        .collect();
    wanted.sort();
    given.sort();
    assert_eq!(given, wanted, "{title}");
    if length == Some("0") {
        assert_eq!(answer.all("content-length"), ["0"], "{title}");
    }
}

/// Go prints an empty list of an export as `null`; here it is `[]`.
fn lists(mut export: Value) -> Value {
    if let Some(fields) = export.as_object_mut() {
        for key in [
            "pods",
            "nodes",
            "pvs",
            "pvcs",
            "storageClasses",
            "priorityClasses",
            "namespaces",
        ] {
            if fields.get(key) == Some(&Value::Null) {
                fields.insert(key.to_owned(), Value::Array(Vec::new()));
            }
        }
    }
    export
}

#[tokio::test]
async fn default_configuration_is_kube_schedulers_own() {
    let recorded = recording("http-default-config.json");
    let served = Served::start(None).await;

    let answer = play(&served, &recorded[0]["request"]).await;

    compare("default", &recorded[0]["response"], &answer, None);
}

#[tokio::test]
async fn head_and_unknown_paths_are_refused_in_the_same_form() {
    let served = Served::start(None).await;

    let head = served.send("HEAD", "/api/v1/export", &[], None).await;
    assert_eq!(head.code(), 405);
    for path in [
        "/api/v1/nope",
        "/api/v1/nope/x",
        "/other",
        "/api/v1/import/x",
    ] {
        let answer = served.get(path).await;
        assert_eq!(
            (answer.code(), answer.message().as_str()),
            (404, "Not Found"),
            "{path}"
        );
    }
    // The cluster's API is at the same address, and answers in its own form.
    assert_eq!(served.get("/api/v1/nodes").await.json()["kind"], "NodeList");
    assert_eq!(
        served.get("/api/v1/nodes/n1").await.json()["reason"],
        "NotFound"
    );
    assert_eq!(served.get("/apis/scheduling.k8s.io/v1").await.code(), 200);
}
