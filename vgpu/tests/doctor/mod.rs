//! `vgpu doctor` on healthy objects, and on the same objects with one fault each: a healthy one fails no check, and
//! each fault fails exactly its own. The real command gathers the facts, from a directory that stands for a container
//! or a node, or from an API server.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that is wrong about its own fixtures has failed"
)]

use crate::common;

mod cluster;
mod command;
mod container;
mod node;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::VGPU;
use serde_json::Value;
use tempfile::TempDir;

/// One fault, and the check that it fails.
struct Fault<S: 'static> {
    id: &'static str,
    what: &'static str,
    verdict: &'static str,
    /// Breaks the source.
    at_source: fn(&mut S),
    /// Breaks the gathered facts, for faults that a test cannot cause, such as a full disk.
    as_seen: fn(&mut Value),
}

/// A fault of the source.
const fn broken<S>(
    id: &'static str,
    verdict: &'static str,
    what: &'static str,
    at_source: fn(&mut S),
) -> Fault<S> {
    Fault {
        id,
        what,
        verdict,
        at_source,
        as_seen: |_| (),
    }
}

/// A fault of the gathered facts.
const fn seen<S>(
    id: &'static str,
    verdict: &'static str,
    what: &'static str,
    as_seen: fn(&mut Value),
) -> Fault<S> {
    Fault {
        id,
        what,
        verdict,
        at_source: |_| (),
        as_seen,
    }
}

fn vgpu(args: &[&str]) -> Output {
    Command::new(VGPU)
        .arg("doctor")
        .args(args)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Gathers the facts, changes them, and judges them.
fn diagnosed(gather: &[&str], change: impl Fn(&mut Value)) -> (i32, Value) {
    let dir = TempDir::with_prefix("vgpu-test-").unwrap();
    let file = dir.path().join("facts.json");
    let file = file.to_str().unwrap();
    let gathered = vgpu(&[gather, &["--facts", file]].concat());
    assert!(gathered.status.success(), "{gathered:?}");
    let mut facts: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let place = gather[0];
    change(&mut facts["seen"][place]);
    fs::write(file, facts.to_string()).unwrap();
    let judged = vgpu(&["--from", file, "--json"]);
    let document = serde_json::from_slice(&judged.stdout).unwrap_or_else(|_| panic!("{judged:?}"));
    (judged.status.code().unwrap(), document)
}

/// The checks that are not `ok`, with their verdicts; `skipped` ones only on request.
fn tripped(document: &Value, skipped: bool) -> BTreeMap<String, String> {
    let text = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
    let rows = document["checks"].as_array().unwrap().iter();
    rows.filter(|row| row["verdict"] != "ok" && (skipped || row["verdict"] != "skipped"))
        .map(|row| (text(row, "id"), text(row, "verdict")))
        .collect()
}

/// Runs all faults of a place, and asserts that every check of it has one.
fn drive<S>(place: &str, faults: &[Fault<S>], diagnose: impl Fn(&Fault<S>) -> (i32, Value)) {
    let none = Fault {
        id: "",
        what: "nothing",
        verdict: "",
        at_source: |_| (),
        as_seen: |_| (),
    };
    let (code, healthy) = diagnose(&none);
    assert_eq!(
        tripped(&healthy, true),
        BTreeMap::new(),
        "a healthy {place}: {healthy:#}"
    );
    assert_eq!(code, 0);

    let mut wrong = Vec::new();
    for fault in faults {
        let (code, document) = diagnose(fault);
        let found = tripped(&document, false);
        let expected = BTreeMap::from([(fault.id.to_owned(), fault.verdict.to_owned())]);
        if found != expected || code != i32::from(fault.verdict == "fail") {
            let rows = document["checks"].as_array().unwrap().iter();
            let said: Vec<_> = rows
                .filter(|row| found.contains_key(row["id"].as_str().unwrap()))
                .map(|row| format!("{}: {}", row["id"], row["evidence"]))
                .collect();
            wrong.push(format!(
                "{} ({}): {found:?} with code {code}; {said:?}",
                fault.id, fault.what
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    let listed = vgpu(&[place, "--list", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let without: Vec<_> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|check| check["id"].as_str().unwrap())
        .filter(|id| !faults.iter().any(|fault| fault.id == *id))
        .collect();
    assert!(without.is_empty(), "no fixture trips {without:?}");
}

/// A file below a directory that stands for `/`, and the directories to it.
fn put(root: &Path, path: &str, text: impl AsRef<[u8]>) {
    let file = root.join(path);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, text).unwrap();
}

/// Changes text in a file.
fn replace(root: &Path, path: &str, from: &str, to: &str) {
    let file = root.join(path);
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains(from), "{path} has no {from:?}");
    fs::write(file, text.replace(from, to)).unwrap();
}

/// A process of the directory's `/proc`.
fn process(root: &Path, pid: u32, command: &[&str], environment: &[&str], libraries: &[&str]) {
    let at = |name: &str| format!("proc/{pid}/{name}");
    let name = command[0].rsplit('/').next().unwrap();
    put(root, &at("comm"), format!("{name}\n"));
    put(root, &at("cmdline"), command.join("\0"));
    put(root, &at("environ"), environment.join("\0"));
    let line = |path: &&str| format!("7f00-7f01 r-xp 00000000 08:01 1 {path}\n");
    put(
        root,
        &at("maps"),
        libraries.iter().map(line).collect::<String>(),
    );
    put(root, &at("status"), "Name:\tx\nCapEff:\t00000000a80425fb\n");
    for (kind, number) in [("pid", 4_026_532_001_u32), ("mnt", 4_026_532_002)] {
        let link = root.join(at(&format!("ns/{kind}")));
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(format!("{kind}:[{number}]"), link).unwrap();
    }
}

/// The files of a node's or container's `/proc` besides processes.
fn proc(root: &Path, mountinfo: &str) {
    std::os::unix::fs::symlink("1", root.join("proc/self")).unwrap();
    put(root, "proc/1/mountinfo", mountinfo);
    put(
        root,
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n",
    );
}

fn link(root: &Path, path: &str, to: &str) {
    let link = root.join(path);
    fs::create_dir_all(link.parent().unwrap()).unwrap();
    fs::remove_file(&link).ok();
    std::os::unix::fs::symlink(to, link).unwrap();
}

/// Nanoseconds of the clock that does not jump.
fn monotonic_ns() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
    u64::try_from(now.tv_sec() * 1_000_000_000 + now.tv_nsec()).unwrap()
}
