//! The stream of events: its frames, its two forms, where it begins, and the state after a client disconnects.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::wire::{Served, chunks, node, recording, settled};

const PATH: &str = "/api/v1/listwatchresources";

/// A connection, and the data received on it.
struct Reader {
    stream: TcpStream,
    bytes: Vec<u8>,
}

impl Reader {
    async fn open(served: &Served, path: &str, headers: &[(&str, &str)]) -> Self {
        Self {
            stream: served.open("GET", path, headers, None).await,
            bytes: Vec::new(),
        }
    }

    fn body(&self) -> Option<(String, &[u8])> {
        let at = self.bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        let head = String::from_utf8(self.bytes[..at].to_vec()).unwrap();
        Some((head, &self.bytes[at + 4..]))
    }

    /// The head and the first chunks, once there are that many.
    async fn chunks(&mut self, wanted: usize) -> (String, Vec<String>) {
        let reading = async {
            loop {
                if let Some((head, body)) = self.body() {
                    let (found, _) = chunks(body);
                    if found.len() >= wanted {
                        let texts = found
                            .into_iter()
                            .map(|chunk| String::from_utf8(chunk).unwrap());
                        return (head.clone(), texts.collect());
                    }
                }
                let mut part = [0; 65536];
                let read = self.stream.read(&mut part).await.unwrap();
                assert!(read > 0, "the stream ended");
                self.bytes.extend_from_slice(&part[..read]);
            }
        };
        tokio::time::timeout(Duration::from_secs(10), reading)
            .await
            .unwrap_or_else(|_| panic!("fewer than {wanted} chunks"))
    }
}

fn frame(text: &str) -> Value {
    let (line, rest) = text.split_once('\n').unwrap();
    assert_eq!(rest, "", "one event a chunk");
    serde_json::from_str(line).unwrap()
}

fn label(frame: &Value) -> String {
    let name = frame["Obj"]["metadata"]["name"].as_str().unwrap();
    format!(
        "{} {} {name}",
        frame["Kind"].as_str().unwrap(),
        frame["EventType"].as_str().unwrap()
    )
}

#[tokio::test]
async fn frames_are_those_that_were_recorded() {
    let recorded = recording("listwatch-all-kinds.json");
    let frames = recorded["frames"].as_array().unwrap();
    let frames: Vec<Value> = frames
        .iter()
        .map(|f| frame(f["data"].as_str().unwrap()))
        .collect();
    let served = Served::start(None).await;
    let keys = [
        ("namespaces", "namespaces"),
        ("priorityclasses", "priorityClasses"),
        ("storageclasses", "storageClasses"),
        ("persistentvolumeclaims", "pvcs"),
        ("persistentvolumes", "pvs"),
        ("nodes", "nodes"),
        ("pods", "pods"),
    ];
    let mut state = json!({});
    for (kind, key) in keys {
        let objects: Vec<&Value> = frames
            .iter()
            .filter(|f| f["Kind"] == kind)
            .map(|f| &f["Obj"])
            .collect();
        state[key] = json!(objects);
    }
    let imported = served.import(&state).await;
    assert_eq!(
        imported.code(),
        200,
        "{}",
        String::from_utf8_lossy(&imported.body)
    );

    let (head, chunks) = Reader::open(&served, PATH, &[("Origin", "http://localhost:3000")])
        .await
        .chunks(frames.len())
        .await;

    let wanted = recorded["response_head"].as_str().unwrap();
    let headers = |head: &str| -> Vec<String> {
        let mut lines: Vec<String> = head
            .lines()
            .map(str::to_lowercase)
            .filter(|line| !line.starts_with("date:") && !line.starts_with("connection:"))
            .collect();
        lines.sort();
        lines
    };
    assert_eq!(headers(&head), headers(wanted));
    let of = |frames: &[Value]| -> BTreeMap<String, Value> {
        let all = frames.iter().map(|frame| {
            let keys: Vec<&String> = frame.as_object().unwrap().keys().collect();
            assert_eq!(keys, ["EventType", "Kind", "Obj"]);
            (label(frame), settled(&frame["Obj"]))
        });
        all.collect()
    };
    let given: Vec<Value> = chunks.iter().map(|text| frame(text)).collect();
    let (given, wanted) = (of(&given), of(&frames));
    assert_eq!(
        given.keys().collect::<Vec<_>>(),
        wanted.keys().collect::<Vec<_>>()
    );
    // Objects that every cluster has are this cluster's own.
    let recorded = wanted.iter().filter(|(name, _)| !name.contains("system-"));
    let mut compared = 0;
    for (name, object) in recorded {
        assert_eq!(&given[name], object, "{name}");
        compared += 1;
    }
    assert!(
        compared > 0,
        "the recording has only objects that every cluster has"
    );
    assert!(chunks[0].starts_with("{\"Kind\":"), "{}", chunks[0]);
}

#[tokio::test]
async fn a_stream_begins_after_a_version_in_both_spellings() {
    let served = Served::start(None).await;
    assert_eq!(
        served
            .import(&json!({ "nodes": [node("old")] }))
            .await
            .code(),
        200
    );
    let version = served.simulator.cluster().resource_version();
    let kinds = ["pods", "nodes", "pvs", "pvcs", "scs", "pcs"];
    for (spelling, namespaces) in [("Last", "namespaceLast"), ("last", "namespaceslast")] {
        let mut query = format!("{namespaces}ResourceVersion={version}");
        for kind in kinds {
            query += &format!("&{kind}{spelling}ResourceVersion={version}");
        }
        let mut reader = Reader::open(&served, &format!("{PATH}?{query}"), &[]).await;
        let name = format!(
            "new-{}",
            spelling.to_lowercase() + &namespaces.len().to_string()
        );
        assert_eq!(
            served
                .import(&json!({ "nodes": [node(&name)] }))
                .await
                .code(),
            200
        );

        let (_, chunks) = reader.chunks(1).await;

        let first = frame(&chunks[0]);
        assert!(label(&first).starts_with("nodes ADDED new-"), "{first}");
    }
}

#[tokio::test]
async fn a_version_that_cannot_be_is_refused() {
    let served = Served::start(None).await;

    for wrong in ["abc", "-3", "7x", "123456789"] {
        let answer = served
            .get(&format!("{PATH}?pvcslastResourceVersion={wrong}"))
            .await;
        assert_eq!(answer.code(), 400, "{wrong}");
        let message = answer.message();
        assert!(
            message.contains(wrong) && message.contains("pvcs"),
            "{message}"
        );
    }
}

#[tokio::test]
async fn server_sent_events_come_to_clients_that_accept_them() {
    let served = Served::start(None).await;

    let accept = [("Accept", "text/event-stream")];
    let (head, chunks) = Reader::open(&served, PATH, &accept).await.chunks(6).await;

    assert!(
        head.to_lowercase()
            .contains("content-type: text/event-stream"),
        "{head}"
    );
    let first = chunks.concat();
    let first: Vec<&str> = first.split("\n\n").next().unwrap().lines().collect();
    assert!(first[0].starts_with("id: "), "{first:?}");
    let data: Value = serde_json::from_str(first[1].strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(data["EventType"], "ADDED");
}

#[tokio::test]
async fn a_dropped_stream_leaves_no_task() {
    let served = Served::start(None).await;
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let before = tasks();

    let mut readers = Vec::new();
    for _ in 0..20 {
        let mut reader = Reader::open(&served, PATH, &[]).await;
        reader.chunks(6).await;
        readers.push(reader);
    }
    assert!(tasks() >= before + 20);
    drop(readers);

    let gone = async {
        while tasks() > before {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), gone)
        .await
        .unwrap();
}
