//! One C program goes through every part of the interface that takes or gives back memory, under
//! libvgpu.so on the simulated driver. After each step the container's charges are compared with what
//! the simulated board says that the process holds.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cuda_sim::board::Board;
use vgpu_abi::host;
use vgpu_abi::region::Region;

/// Where cargo puts the libraries that this test depends on.
fn built(name: &str) -> PathBuf {
    let deps = std::env::current_exe()
        .unwrap()
        .parent()
        .unwrap()
        .to_path_buf();
    [deps.join(name), deps.parent().unwrap().join(name)]
        .into_iter()
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("{name} is not built"))
}

fn compiled(name: &str, directory: &Path) -> PathBuf {
    let program = directory.join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{name}.c"));
    let status = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-o"])
        .arg(&program)
        .arg(source)
        .arg("-ldl")
        .status()
        .expect("a C compiler");
    assert!(status.success());
    program
}

/// Runs a program that stops after each step, and compares the books there. Gives the steps.
fn steps_of(name: &str) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    for (name, library) in [
        ("libcuda.so.1", "libcuda.so"),
        ("libnvidia-ml.so.1", "libnvidia_ml.so"),
    ] {
        std::os::unix::fs::symlink(built(library), at(name)).unwrap();
    }
    let mut child = Command::new(compiled(name, directory.path()))
        .env("LD_PRELOAD", built("libvgpu.so"))
        .env("LD_LIBRARY_PATH", directory.path())
        .env("VGPU_SIM_BOARD", at("board"))
        .env("VGPU_SIM_CONTEXT", "24Mi")
        .env("CUDA_DEVICE_MEMORY_LIMIT", "512m")
        .env("CUDA_DEVICE_MEMORY_SHARED_CACHE", at("region"))
        .env("VGPU_LOG", at("log"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut go_on = child.stdin.take().unwrap();
    let said = BufReader::new(child.stdout.take().unwrap());

    let mut wrong = Vec::new();
    let mut steps = Vec::new();
    for line in said.lines() {
        let step = line.unwrap();
        if step == "end" {
            steps.push(step);
            break;
        }
        if step.contains("is killed") {
            // As a host does once the driver has let go of the dead process's memory: its charge, and
            // what it held together with others, stays until then.
            Region::open(&at("region")).unwrap().reap();
        }
        let truth = Board::open(&at("board")).map_or(0, |board| board.used_bytes(0));
        let (books, pending) = host::snapshot(&at("region")).map_or((0, 0), |seen| {
            let pending = seen.slots.iter().map(|slot| slot.devices[0].pending_bytes);
            (seen.used_bytes(0), pending.sum::<u64>())
        });
        if truth != books || pending != 0 {
            wrong.push(format!(
                "{step}: driver {} KiB, books {} KiB, pending {} KiB",
                truth / 1024,
                books / 1024,
                pending / 1024
            ));
        }
        steps.push(step);
        go_on.write_all(b"\n").unwrap();
    }
    let status = child.wait().unwrap();
    let log = std::fs::read_to_string(at("log")).unwrap_or_default();
    assert!(wrong.is_empty(), "{}\nlog: {log}", wrong.join("\n"));
    assert_eq!(steps.last().map(String::as_str), Some("end"), "{status}");
    steps
}

/// Steps that are meant to fail, and what they answer.
const FAILURES: [&str; 2] = ["free again 1", "too much 2"];

#[test]
fn after_every_call_the_books_are_what_the_driver_holds() {
    let steps = steps_of("charges");

    assert!(steps.len() > 80, "{} steps", steps.len());
    let failed: Vec<_> = steps
        .iter()
        .filter(|step| !step.ends_with(" 0") && *step != "end")
        .collect();
    assert_eq!(failed, FAILURES);
}

#[test]
fn object_of_two_processes_is_charged_once_until_both_release() {
    let steps = steps_of("pair");

    let failed: Vec<_> = steps
        .iter()
        .filter(|step| !step.ends_with(" 0") && *step != "end")
        .collect();
    assert!(failed.is_empty(), "{failed:?}");
}
