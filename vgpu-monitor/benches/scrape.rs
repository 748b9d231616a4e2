//! The agent's costs with 100 containers, each with a living process and one device: one look, one
//! exposition, one scrape over HTTP of the real process, and that process's memory and CPU; and what
//! its arbiter costs while the containers are idle, and while all of them work on the one GPU.
//!
//! Prints, and never fails by a number.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a bench: it prints, and a panic is its answer"
)]

#[path = "../tests/common/mod.rs"]
mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use common::Board;
use common::agent::Agent;
use criterion::Criterion;
use prometheus_client::registry::Registry;
use server::Readiness;
use vgpu_abi::budget::Kind;
use vgpu_abi::region::Region;
use vgpu_monitor::exporter::Names;
use vgpu_monitor::node::{Node, NodeCollector};

const CONTAINERS: usize = 100;
const TENANTS: &str = "VGPU_BENCH_TENANTS";

fn main() {
    if let Some(root) = std::env::var_os(TENANTS) {
        return be_the_tenants(Path::new(&root));
    }
    let board = Board::new();
    for number in 0..CONTAINERS {
        board.container(&format!("container-{number:03}"), 4 << 30);
    }
    let mut tenants = start_tenants(board.root());

    let mut criterion = Criterion::default()
        .configure_from_args()
        .sample_size(30)
        .measurement_time(Duration::from_secs(4));
    let node = || {
        Arc::new(Node::new(
            board.root().to_owned(),
            "n".into(),
            Names::Present,
            None,
        ))
    };
    let readiness = Readiness::waiting_for("the first look");
    let looked = node();
    let shown = looked.look(&readiness);
    assert_eq!(shown.containers.len(), CONTAINERS);
    assert!(
        shown
            .containers
            .iter()
            .all(|container| container.processes == 1)
    );
    criterion.bench_function("look, 100 containers", |b| {
        b.iter(|| looked.look(&readiness))
    });
    let mut registry = Registry::default();
    registry.register_collector(Box::new(NodeCollector::new(node(), readiness)));
    criterion.bench_function("look and exposition, 100 containers", |b| {
        b.iter(|| {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            server::prometheus_text(&text)
        });
    });
    the_process(board.root(), &mut tenants);
    criterion.final_summary();
    stop(tenants);
}

/// The record lock of a slot belongs to a process, and a process sees its own locks as free: so the tenants
/// are a separate process.
fn start_tenants(root: &Path) -> Child {
    let mut tenants = Command::new(std::env::current_exe().unwrap())
        .env(TENANTS, root)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    BufReader::new(tenants.stdout.take().unwrap())
        .read_line(&mut ready)
        .unwrap();
    assert_eq!(ready, "ready\n");
    tenants
}

fn be_the_tenants(root: &Path) {
    let mut regions = Vec::new();
    for number in 0..CONTAINERS {
        let dir: PathBuf = root.join(format!("1000/container-{number:03}"));
        let region = Region::open(&dir.join("region")).unwrap();
        region.confirm(region.reserve(0, 1 << 30, 4 << 30).unwrap(), Kind::Buffer);
        regions.push(region);
    }
    println!("ready");
    // Until the bench closes our input. Between two lines the containers work: each launches and is
    // busy for a hundredth of the time.
    let works = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&works);
    std::thread::spawn(move || {
        loop {
            for region in regions.iter().filter(|_| seen.load(Relaxed)) {
                let compute = region.compute(0).unwrap();
                compute.own().launches.fetch_add(1, Relaxed);
                compute.count_busy(100_000);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    for line in std::io::stdin().lines() {
        works.store(line.unwrap() == "work", Relaxed);
    }
}

fn the_process(root: &Path, tenants: &mut Child) {
    let agent = Agent::start(root, &[]);
    let scrape = |accept: &str| {
        let answer = agent.get_as("/metrics", accept);
        assert!(answer.starts_with("HTTP/1.1 200 "));
        answer.len()
    };
    scrape("*/*");
    let orders = tenants.stdin.as_mut().unwrap();
    for (order, what) in [("rest", "idle"), ("work", "working")] {
        writeln!(orders, "{order}").unwrap();
        std::thread::sleep(Duration::from_secs(1));
        let before = cpu_ticks(&agent.child);
        std::thread::sleep(Duration::from_secs(10));
        println!(
            "arbiter, {CONTAINERS} containers {what}: {:.2} % of a core",
            f64::from(cpu_ticks(&agent.child) - before) / 10.0
        );
    }
    for accept in ["application/openmetrics-text", "text/plain"] {
        let cpu_before = cpu_ticks(&agent.child);
        let mut times = Vec::new();
        let mut bytes = 0;
        for _ in 0..200 {
            let begun = Instant::now();
            bytes = scrape(accept);
            times.push(begun.elapsed());
        }
        times.sort();
        let ticks = cpu_ticks(&agent.child) - cpu_before;
        println!(
            "scrape over HTTP, {CONTAINERS} containers, {accept}: p50 {:?}, p99 {:?}, {bytes} bytes, \
             {:.2} ms of CPU",
            times[100],
            times[198],
            f64::from(ticks) * 10.0 / 200.0
        );
    }
    println!(
        "memory of the agent: {} kB resident, {} kB at most",
        status(&agent.child, "VmRSS"),
        status(&agent.child, "VmHWM")
    );
}

fn status(process: &Child, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// User and system time, in hundredths of a second.
fn cpu_ticks(process: &Child) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    fields[11].parse::<u32>().unwrap() + fields[12].parse::<u32>().unwrap()
}

fn stop(mut process: Child) {
    drop(process.stdin.take());
    drop(process.kill());
    drop(process.wait());
}
