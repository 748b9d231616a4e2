//! The names that the documents promise: every flag, every key of the device configuration, every annotation, label
//! and resource. Does not check whether a sentence is true.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test: a panic is its answer"
)]

use crate::conformance::{http, program};
use std::path::Path;
use std::process::Command;

use kube_api::config::{ConfigError, DeviceConfig, NodeOverrides};
use kube_api::vendor::{Switches, Vendors};

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs")
        .join(name);
    std::fs::read_to_string(path).unwrap()
}

/// Whether the text contains the word as code: between backquotes, by itself or with a suffix.
fn names(text: &str, word: &str) -> bool {
    text.match_indices(&format!("`{word}")).any(|(at, found)| {
        match text[at + found.len()..].chars().next() {
            Some(next) => !(next.is_alphanumeric() || next == '_' || next == '-' || next == '/'),
            None => true,
        }
    })
}

#[test]
fn the_configuration_names_every_flag() {
    let help = Command::new(env!("CARGO_BIN_EXE_vgpu-scheduler"))
        .arg("--help")
        .env("COLUMNS", "200")
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let flags: Vec<&str> = help
        .lines()
        .map(str::trim_start)
        .filter(|line| line.starts_with('-'))
        .flat_map(|line| {
            line.split([' ', '=', ',', '['])
                .filter(|word| word.starts_with("--"))
        })
        .collect();
    assert!(flags.len() > 20, "{help}");
    let text = document("configuration.md");
    let missing: Vec<&&str> = flags.iter().filter(|flag| !names(&text, flag)).collect();
    assert!(
        missing.is_empty(),
        "docs/configuration.md lacks {missing:?}"
    );

    // Each with the default that it has.
    let mut flag = "";
    for line in help.lines() {
        // Descriptions are indented further, and may begin with the name of another flag.
        let (indent, line) = (line.len() - line.trim_start().len(), line.trim_start());
        let mut words = line.split([' ', '=', ',', '[']);
        if let Some(word) = words.find(|word| word.starts_with("--"))
            && line.starts_with('-')
            && indent < 8
        {
            flag = word;
        }
        let Some((_, default)) = line.split_once("[default: ") else {
            continue;
        };
        let default = default.split(']').next().unwrap().trim_matches('"');
        let row = text
            .lines()
            .find(|row| row.starts_with("| ") && names(row.split('|').nth(1).unwrap(), flag))
            .unwrap();
        let said = row.split('|').nth(2).unwrap();
        let right = match default {
            "" => said.contains("empty"),
            "true" => said.contains("on"),
            "false" => said.contains("off"),
            _ => said.contains(&format!("`{default}`")),
        };
        assert!(
            right,
            "{flag} is {default} by default, docs/configuration.md says{said}"
        );
    }

    // The table names no flag that does not exist.
    let table = text.split("## Flags of `vgpu-scheduler`").nth(1).unwrap();
    let table = table.split("\n## ").next().unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| `--"));
    let invented: Vec<&str> = rows
        .flat_map(|row| row.split('|').nth(1).unwrap().split('`'))
        .filter(|word| word.starts_with("--"))
        .map(|word| word.split(['=', ' ']).next().unwrap())
        .filter(|word| !help.contains(word))
        .collect();
    assert!(invented.is_empty(), "no such flags: {invented:?}");
}

/// The keys that this place of a configuration accepts, as its own refusal names them.
fn accepted(refused: ConfigError) -> Vec<&'static str> {
    match refused {
        ConfigError::UnknownKey { known, .. } => known,
        other => panic!("{other}"),
    }
}

#[test]
fn the_configuration_names_every_section_and_key() {
    let text = document("configuration.md");
    let mut keys = accepted(DeviceConfig::parse("none-such: 1").unwrap_err());
    for section in keys.clone() {
        let entry = match section {
            "iluvatars" => "iluvatars: [{none-such: 1}]".to_owned(),
            _ => format!("{section}: {{none-such: 1}}"),
        };
        keys.extend(accepted(DeviceConfig::parse(&entry).unwrap_err()));
    }
    for inner in [
        "nvidia: {migProfileAllowlist: [{none-such: 1}]}",
        "vnpus: {configs: [{none-such: 1}]}",
        "vnpus: {configs: [{templates: [{none-such: 1}]}]}",
    ] {
        keys.extend(accepted(DeviceConfig::parse(inner).unwrap_err()));
    }
    for inner in [
        "none-such: 1",
        "nodeconfig: [{none-such: 1}]",
        "nodeconfig: [{filterdevices: {none-such: 1}}]",
    ] {
        keys.extend(accepted(NodeOverrides::parse(inner).unwrap_err()));
    }
    assert!(keys.len() > 80, "{keys:?}");
    let missing: Vec<&&str> = keys.iter().filter(|key| !names(&text, key)).collect();
    assert!(
        missing.is_empty(),
        "docs/configuration.md lacks {missing:?}"
    );
}

#[test]
fn the_annotations_name_every_key_and_resource() {
    let text = document("annotations.md");
    let vendors = Vendors::new(
        DeviceConfig::standard(),
        Switches {
            ascend: true,
            iluvatar: true,
        },
    )
    .unwrap();
    let mut missing = Vec::new();
    for row in vendors.iter() {
        let keys = &row.keys;
        let named = keys
            .register
            .iter()
            .chain(&keys.score)
            .chain(&keys.handshake)
            .chain(&keys.also_read)
            .chain(&keys.to_allocate)
            .chain(&keys.allocated)
            .chain(&keys.copies)
            .chain(&keys.also_written)
            .chain(&keys.use_ids)
            .chain(&keys.nouse_ids)
            .chain(&keys.use_types)
            .chain(&keys.nouse_types)
            .chain(row.resources.iter().map(|(_, name)| name));
        for key in named {
            if !names(&text, key) && !names(&text, &key.replace(&row.word, "WORD")) {
                missing.push(key.clone());
            }
        }
        if !names(&text, &row.word) {
            missing.push(row.word.clone());
        }
    }
    // A constant cannot be listed at run time; its source can.
    let source = include_str!("../../crates/kube-api/src/keys.rs");
    let constants: Vec<&str> = source
        .lines()
        .filter(|line| line.starts_with("pub const") && line.contains("&str ="))
        .map(|line| line.split('"').nth(1).unwrap())
        .collect();
    assert!(constants.len() > 10, "{constants:?}");
    for key in constants {
        if !text.contains(&format!("`{key}")) {
            missing.push(key.to_owned());
        }
    }
    assert!(missing.is_empty(), "docs/annotations.md lacks {missing:?}");
}

#[test]
fn the_protocol_names_every_route_and_answers_as_it_says() {
    let text = document("protocol.md");
    let state = serde_json::json!({ "nodes": [] });
    let scheduler = program::Program::start(&state, None, &[]).unwrap();
    let ask = |method: &str, path: &str, body: &[u8]| {
        http::send(scheduler.address, method, path, "application/json", body).unwrap()
    };
    for (method, path, status) in [
        ("GET", "/healthz", 200),
        ("GET", "/readyz", 200),
        ("GET", "/livez/kube-scheduler", 200),
        ("GET", "/metrics", 200),
        ("POST", "/filter", 400),
        ("POST", "/prioritize", 400),
        ("POST", "/preempt", 400),
        ("POST", "/bind", 400),
        ("POST", "/webhook", 400),
        ("GET", "/explain", 400),
        ("GET", "/filter", 405),
        ("GET", "/none-such", 404),
    ] {
        let answer = ask(method, path, b"no JSON");
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.text());
        if status != 404 {
            assert!(text.contains(path), "docs/protocol.md lacks {path}");
        }
        if status == 400 && method == "POST" && path != "/webhook" {
            let error = answer.json()["Error"].as_str().map(str::to_owned);
            assert!(error.is_some_and(|error| !error.is_empty()), "{path}");
        }
    }
    for path in ["/mutate", "/mutate-v1-pod", "/validate-v1-pod"] {
        let answer = ask("POST", path, b"{}");
        assert_eq!(answer.json()["response"]["allowed"], false, "{path}");
        assert!(text.contains(path), "docs/protocol.md lacks {path}");
    }
    let large = vec![b' '; 64 << 20];
    for (size, status) in [(large.len(), 400), (large.len() + 1, 413)] {
        let mut body = large.clone();
        body.resize(size, b' ');
        assert_eq!(ask("POST", "/filter", &body).status, status, "{size} bytes");
    }
}
