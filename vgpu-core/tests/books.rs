//! One C program goes through every part of the interface that takes or gives back memory, under
//! libvgpu.so on the simulated driver. After each step the container's books are compared with what
//! the simulated board says that the process holds.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cuda_sim::board::Board;
use vgpu_abi::host;

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

fn compiled(directory: &Path) -> PathBuf {
    let program = directory.join("books");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/books.c");
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

#[test]
fn after_every_call_the_books_are_what_the_driver_holds() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    for (name, library) in [
        ("libcuda.so.1", "libcuda.so"),
        ("libnvidia-ml.so.1", "libnvidia_ml.so"),
    ] {
        std::os::unix::fs::symlink(built(library), at(name)).unwrap();
    }
    let mut child = Command::new(compiled(directory.path()))
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
    let mut steps = 0;
    let mut last = String::new();
    for line in said.lines() {
        last = line.unwrap();
        if last == "end" {
            break;
        }
        steps += 1;
        let truth = Board::open(&at("board")).map_or(0, |board| board.used_bytes(0));
        let books = host::snapshot(&at("region")).map_or(0, |seen| seen.used_bytes(0));
        let pending: u64 = host::snapshot(&at("region")).map_or(0, |seen| {
            seen.slots
                .iter()
                .map(|slot| slot.devices[0].pending_bytes)
                .sum()
        });
        if truth != books || pending != 0 {
            wrong.push(format!(
                "{last}: driver {} KiB, books {} KiB, pending {} KiB",
                truth / 1024,
                books / 1024,
                pending / 1024
            ));
        }
        go_on.write_all(b"\n").unwrap();
    }
    let status = child.wait().unwrap();

    let log = std::fs::read_to_string(at("log")).unwrap_or_default();
    assert!(wrong.is_empty(), "{}\nlog: {log}", wrong.join("\n"));
    assert_eq!(last, "end", "{status}");
    assert!(steps > 80, "{steps} steps");
}
