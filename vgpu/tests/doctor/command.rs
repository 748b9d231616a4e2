//! The command itself: its list, its arguments, its exit codes, and that the document has every check.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::Machine;
use crate::doctor::vgpu;

fn code_and_text(args: &[&str]) -> (Option<i32>, String) {
    let output = vgpu(args);
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

fn listed(place: &[&str]) -> Vec<Value> {
    let output = vgpu(&[place, &["--list", "--json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_document_has_every_check_with_its_cure() {
    let page =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/doctor.md")).unwrap();
    let rows: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with("| VGPU-"))
        .collect();
    let text = |check: &Value, key: &str| check[key].as_str().unwrap().to_owned();
    let expected: Vec<String> = listed(&[])
        .iter()
        .map(|check| {
            let [id, title, cure] = ["id", "title", "cure"].map(|key| text(check, key));
            format!("| {id} | {title} | {cure} |")
        })
        .collect();

    assert_eq!(
        rows,
        expected,
        "docs/doctor.md should have\n{}",
        expected.join("\n")
    );
}

#[test]
fn ids_are_counted_by_place_and_used_once() {
    let mut count = 0;
    for (place, letter) in [("container", "C"), ("node", "N"), ("cluster", "K")] {
        for (at, check) in listed(&[place]).iter().enumerate() {
            assert_eq!(check["id"], format!("VGPU-{letter}{:02}", at + 1));
            assert_eq!(check["place"], place);
            count += 1;
        }
    }
    assert_eq!(listed(&[]).len(), count);
    assert!(count >= 40, "{count}");
}

#[test]
fn invalid_arguments_exit_with_2_and_unreadable_input_with_1() {
    let dir = TempDir::with_prefix("vgpu-test-").unwrap();
    let file = dir.path().join("facts.json");
    let path = file.to_str().unwrap();
    fs::write(&file, r#"{"version":9,"new":1}"#).unwrap();
    for (args, code, text) in [
        (
            &["--only", "VGPU-X01"][..],
            2,
            "there is no such check; vgpu doctor --list",
        ),
        (
            &["node", "--root", "/", "--only", "VGPU-C01"],
            2,
            "is not a check of a node",
        ),
        (&["everything"], 2, "invalid value 'everything'"),
        (&["--from", path, "--root", "/"], 2, "cannot be used with"),
        (
            &["--from", path],
            1,
            "facts of version 9, and this release reads version 1",
        ),
        (
            &["--from", "/nowhere/f.json"],
            1,
            "cannot read /nowhere/f.json",
        ),
        (
            &["container", "--pid", "4194305"],
            1,
            "cannot open the directory /proc/4194305/root",
        ),
        (
            &["node", "--root", "/nowhere"],
            1,
            "cannot open the directory /nowhere",
        ),
        (
            &["cluster"],
            1,
            "no cluster is known: give --kubeconfig FILE",
        ),
        (
            &["cluster", "--kubeconfig", "/nowhere/config"],
            1,
            "--kubeconfig /nowhere/config: ",
        ),
    ] {
        let (ended, said) = code_and_text(args);
        assert_eq!(ended, Some(code), "{args:?}: {said}");
        assert!(said.contains(text), "{args:?}: {said}");
    }
    fs::write(&file, "no facts").unwrap();
    let (ended, said) = code_and_text(&["--from", path]);
    assert_eq!(ended, Some(1), "{said}");
    assert!(
        said.contains("is not a file that vgpu doctor --facts wrote"),
        "{said}"
    );
}

#[test]
fn warnings_fail_only_on_request_and_facts_have_one_source() {
    let dir = TempDir::with_prefix("vgpu-test-").unwrap();
    let file = dir.path().join("facts.json");
    let path = file.to_str().unwrap();
    let facts = json!({ "version": 1, "vgpu": "0", "why": "a\u{1b}[2Jb", "at_unix": 0,
        "seen": { "container": { "limits_path": "/etc/vgpu/limits", "env": { "CUDA_DISABLE_CONTROL": "1" } } } });
    fs::write(&file, facts.to_string()).unwrap();

    let only = ["--from", path, "--only", "VGPU-C13"];
    let (code, text) = code_and_text(&only);
    assert_eq!(code, Some(0), "{text}");
    // No colour and no cursor movement without a terminal.
    assert!(
        text.contains("warn (1)\n  VGPU-C13  ") && !text.contains('\u{1b}'),
        "{text}"
    );
    assert!(
        text.ends_with("\n0 fail, 1 warn, 0 ok, 0 skipped\n"),
        "{text}"
    );
    assert_eq!(
        code_and_text(&[&only[..], &["--strict"]].concat()).0,
        Some(2)
    );
    assert_eq!(code_and_text(&["--from", path]).0, Some(1));
    let (code, text) = code_and_text(&["node", "--from", path]);
    assert_eq!(code, Some(2), "{text}");
    assert!(
        text.contains("contains facts of a container, not of a node"),
        "{text}"
    );
}

#[test]
fn inside_a_run_it_looks_at_the_run_and_finds_nothing_wrong() {
    let machine = Machine::new();

    let ended = machine.run(&[
        "run",
        "--gpumem",
        "4Gi",
        "--",
        crate::doctor::VGPU,
        "doctor",
        "--json",
    ]);

    let document: Value = serde_json::from_str(&ended.out).unwrap_or_else(|_| panic!("{ended:?}"));
    assert_eq!(document["place"], "container", "{document:#}");
    assert_eq!(document["why"], "VGPU_LIMITS is set: this is a vgpu run");
    assert_eq!(document["summary"]["fail"], 0, "{document:#}");
    let intact = &document["checks"][1];
    assert_eq!(intact["id"], "VGPU-C02");
    assert!(
        intact["evidence"].as_str().unwrap().contains("4Gi"),
        "{intact}"
    );
}

#[test]
fn on_simulated_gpus_a_node_has_its_gpus() {
    let machine = Machine::new();
    let dir = TempDir::with_prefix("vgpu-test-").unwrap();
    let file = dir.path().join("facts.json");

    let ended = machine.run(&["doctor", "node", "--facts", file.to_str().unwrap()]);

    assert_eq!(ended.code, Some(0), "{ended:?}");
    let facts: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let driver = &facts["seen"]["node"]["driver"];
    assert_eq!(driver["cards"].as_array().unwrap().len(), 2, "{driver}");
    assert!(
        driver["release"].as_str().unwrap().starts_with("550"),
        "{driver}"
    );
}
