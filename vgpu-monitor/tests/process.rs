//! The agent as it ships: a process on a loopback port, a tenant beside it, a scraper before it.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test: a panic is its answer"
)]

use std::io::Read as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use nix::sys::signal::Signal;
use vgpu_abi::budget::Kind;
use vgpu_abi::region::Region;

use crate::common::Board;
use crate::common::agent::{Agent, command};
use crate::harness::{alone, built};
use crate::waiting::{found, until};

fn refused(args: &[&str]) -> String {
    let output = command(args).output().unwrap();
    assert!(!output.status.success());
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn tenants_charges_are_shown_at_each_scrape() {
    let board = Board::new();
    let dir = board.container("train", 4 << 30);
    let agent = Agent::start(board.root(), &["--no-nvml"]);
    let used = || agent.series("hami_vgpu_memory_used_bytes");
    let labels = r#"{node="here",namespace="",pod="",container="train",vdevice_index="0",device_uuid="GPU-00000000-1111-2222-3333-444444444444"}"#;
    assert_eq!(used(), [format!("hami_vgpu_memory_used_bytes{labels} 0")]);

    // This process is the tenant.
    let region = Region::open(&dir.join("region")).unwrap();
    let charge = region.reserve(0, 3 << 30, 4 << 30).unwrap();
    region.confirm(charge, Kind::Buffer);
    let refusal = region.reserve(0, 2 << 30, 4 << 30).unwrap_err();
    region.record_oom("cuMemAlloc_v2", 0, &refusal, 1);

    assert_eq!(
        used(),
        [format!("hami_vgpu_memory_used_bytes{labels} 3221225472")]
    );
    let value = |name: &str| agent.series(name)[0].rsplit(' ').next().unwrap().to_owned();
    assert_eq!(value("hami_vgpu_memory_buffer_bytes"), "3221225472");
    assert_eq!(value("hami_vgpu_memory_limit_bytes"), "4294967296");
    assert_eq!(value("vgpu_container_processes"), "1");
    assert_eq!(value("vgpu_container_oom_total"), "1");
    assert_eq!(value("vgpu_container_refused_calls_total"), "1");

    region.release(0, 3 << 30, Kind::Buffer);
    assert_eq!(used(), [format!("hami_vgpu_memory_used_bytes{labels} 0")]);
}

#[test]
fn limit_below_use_shows_as_pending_shrink() {
    use vgpu_abi::limits::LimitsFile;
    let board = Board::new();
    let dir = board.container("train", 4 << 30);
    let agent = Agent::start(board.root(), &["--no-nvml"]);
    let region = Region::open(&dir.join("region")).unwrap();
    region.confirm(region.reserve(0, 3 << 30, 4 << 30).unwrap(), Kind::Buffer);
    let pending = || agent.series("vgpu_container_pending_shrink")[0].ends_with(" 1");
    assert!(!pending());

    let limits = LimitsFile::open(&dir.join("limits")).unwrap();
    let mut smaller = limits.read().unwrap();
    smaller.devices[0].memory_bytes = 2 << 30;
    limits.write(&smaller).unwrap();

    assert!(pending());
}

#[test]
fn claim_that_gave_a_container_its_share_is_named() {
    let board = Board::new();
    let labels = serde_json::json!({
        "name": "claim-5a7e", "namespace": "research", "pod": "train-0", "container": "main", "created_unix": 1,
        "claim": {"name": "train-0-share-x7k2p", "uid": "5a7e", "pods": ["u-train-0", "u-train-1"]},
    });
    board.container_with("claim-5a7e", 4 << 30, &labels);
    board.container("without", 1 << 30);
    let agent = Agent::start(board.root(), &["--no-nvml", "--metrics-detail=standard"]);

    let node = agent.series("vgpu_monitor_root_readable");
    let node = node[0].split('"').nth(1).unwrap();
    assert_eq!(
        agent.series("vgpu_container_claim_info"),
        [format!(
            "vgpu_container_claim_info{{node=\"{node}\",namespace=\"research\",pod=\"train-0\",container=\"main\",\
             claim=\"train-0-share-x7k2p\",claim_uid=\"5a7e\"}} 1"
        )]
    );
}

#[test]
fn use_of_a_workload_outlives_its_container_and_the_agent() {
    let board = Board::new();
    let dir = board.container("train", 4 << 30);
    let of = |agent: &Agent, name: &str| {
        let found = agent.series(name);
        let of_it = found
            .iter()
            .find(|line| line.contains("workload=\"train\""));
        of_it.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
    };
    let used = "vgpu_workload_gpu_used_seconds_total";
    let agent = Agent::start(board.root(), &["--no-nvml"]);
    // A new sum is shown as 0, so that every scraper sees it grow.
    assert_eq!(of(&agent, used), Some(0.0));
    assert_eq!(agent.stop(Signal::SIGTERM).code(), Some(0));

    // As it is a while later: the sum is there, and the container is gone.
    let file = board.root().join(".usage");
    let mut state: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(state["accounts"][0]["workload"], "train");
    state["accounts"][0]["gpu_ns"] = 12_500_000_000_u64.into();
    state["accounts"][0]["began"] = serde_json::json!({"secs": 1, "nanos": 0});
    std::fs::write(&file, state.to_string()).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();

    let agent = Agent::start(board.root(), &["--no-nvml", "--metrics-detail=standard"]);
    assert_eq!(of(&agent, used), Some(12.5));
    assert!(agent.series("hami_vgpu_memory_used_bytes").is_empty());
    assert_eq!(agent.stop(Signal::SIGTERM).code(), Some(0));

    // A file that cannot be read is no reason to stay away.
    std::fs::write(&file, "{").unwrap();
    let agent = Agent::start(board.root(), &["--no-nvml"]);
    assert_eq!(of(&agent, used), None);
}

#[test]
fn health_and_readiness_answer_and_stop_is_clean() {
    let board = Board::new();
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let agent = Agent::start(&board.root().join("later"), &["--no-nvml"]);

        assert!(agent.get("/healthz").ends_with("\r\n\r\nok\n"));
        until("the first look ends", || {
            agent.get("/readyz").ends_with("\r\n\r\nready\n")
        });
        assert!(agent.get("/").starts_with("HTTP/1.1 404 "));

        assert_eq!(agent.stop(signal).code(), Some(0));
    }
}

#[test]
fn node_without_driver_still_shows_containers() {
    let board = Board::new();
    board.container("train", 4 << 30);
    // The loader finds this file before the library of a driver that the machine may have, and it is no library.
    let libraries = tempfile::tempdir().unwrap();
    std::fs::write(libraries.path().join("libnvidia-ml.so.1"), "none").unwrap();
    let agent = Agent::start_in(
        board.root(),
        &["--node-name", "gpu-7"],
        &[("LD_LIBRARY_PATH", libraries.path())],
    );

    assert_eq!(agent.series("hami_vgpu_memory_limit_bytes").len(), 1);
    until("the driver is known to be missing", || {
        agent.series("vgpu_monitor_nvml_up") == [r#"vgpu_monitor_nvml_up{node="gpu-7"} 0"#]
    });
    assert_eq!(agent.series("hami_vgpu_memory_limit_bytes").len(), 1);
    assert!(agent.series("hami_host_gpu_memory_used_bytes").is_empty());
}

#[test]
fn legacy_names_need_the_flag() {
    let board = Board::new();
    board.container("train", 4 << 30);
    let start = |more: &[&str]| Agent::start(board.root(), &[&["--no-nvml"], more].concat());
    let legacy = |agent: &Agent| agent.series("vGPU_device_memory_limit_in_bytes");

    let without = start(&[]);
    assert_eq!(without.series("hami_vgpu_memory_limit_bytes").len(), 1);
    assert!(legacy(&without).is_empty());
    drop(without);

    assert_eq!(
        legacy(&start(&["--legacy-metrics"])),
        [
            r#"vGPU_device_memory_limit_in_bytes{podnamespace="",podname="",ctrname="train",vdeviceid="0",deviceuuid="GPU-00000000-1111-2222-3333-444444444444"} 4294967296"#
        ]
    );
}

#[test]
fn taken_port_error_names_the_flag() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();

    let error = refused(&["--metrics-addr", &address, "--log", "error"]);

    let port = taken.local_addr().unwrap().port();
    assert_eq!(
        error,
        format!(
            "vgpu-monitor: cannot listen on {address}: the port is in use; `ss -ltnp 'sport = \
             :{port}'` as root shows by which process; perhaps another vgpu-monitor: \
             --metrics-addr takes another port\n"
        )
    );
}

#[test]
fn invalid_settings_start_nothing() {
    let board = Board::new();
    let file = board.root().join("file");
    std::fs::write(&file, "").unwrap();

    let root = refused(&[
        "--root",
        file.to_str().unwrap(),
        "--metrics-addr",
        "127.0.0.1:0",
    ]);
    assert!(root.contains("not a directory"), "{root}");
    let address = refused(&["--metrics-addr", "everywhere"]);
    assert!(address.contains("such as 127.0.0.1:8080"), "{address}");
    let log = refused(&["--log", "vgpu=loud"]);
    assert!(log.contains("accepted: error, warn, info"), "{log}");
}

/// Where the kernel says that it has NVIDIA's module of this version.
fn module(sysfs: &Path, version: &str) {
    let folder = sysfs.join("module/nvidia");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("version"), format!("{version}\n")).unwrap();
}

/// The text that the process ends with. It may not end well.
fn ends(agent: &mut Child) -> String {
    let mut said = String::new();
    let mut log = agent.stderr.take().unwrap();
    log.read_to_string(&mut said).unwrap();
    assert!(!agent.wait().unwrap().success(), "{said}");
    said.lines().last().unwrap_or_default().to_owned()
}

#[test]
fn exporter_without_the_drivers_library_ends_when_the_driver_appears() {
    let Some(home) =
        alone("process::exporter_without_the_drivers_library_ends_when_the_driver_appears")
    else {
        return;
    };
    let sysfs = home.join("sys");
    let mut agent = command(&["--metrics-addr", "127.0.0.1:0", "--driver-patience=2"]);
    agent.env("VGPU_ROOT", &home).env("VGPU_SYSFS", &sysfs);
    let mut agent = agent.spawn().unwrap();
    // Without a driver in the kernel it waits, whatever its patience.
    std::thread::sleep(Duration::from_secs(4));
    assert!(agent.try_wait().unwrap().is_none());

    module(&sysfs, "550.54.15");

    let said = ends(&mut agent);
    assert!(
        said.starts_with(
            "vgpu-monitor: this container has had no usable files of the NVIDIA driver for 2 s (cannot load \
             libnvidia-ml.so.1"
        ),
        "{said}"
    );
    assert!(
        said.contains("NVIDIA's module 550.54.15: this process ends"),
        "{said}"
    );
}

#[test]
fn plugin_with_another_drivers_library_ends_and_recovers() {
    let Some(home) = alone("process::plugin_with_another_drivers_library_ends_and_recovers") else {
        return;
    };
    let board = cuda_sim::Board::create(&home.join("board"), &cuda_sim::Config::default()).unwrap();
    let libraries = home.join("lib");
    std::fs::create_dir(&libraries).unwrap();
    std::os::unix::fs::symlink(
        built("libnvidia_ml.so"),
        libraries.join("libnvidia-ml.so.1"),
    )
    .unwrap();
    let sysfs = home.join("sys");
    module(&sysfs, "560.1");
    // No API server answers there: the driver is watched all the same.
    let config = home.join("kubeconfig");
    let text = "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: \
                'http://127.0.0.1:1'}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: \
                {}}]\n";
    std::fs::write(&config, text).unwrap();
    let start = || {
        let mut agent = command(&[
            "plugin",
            "--node-name=n1",
            "--metrics-addr=127.0.0.1:0",
            "--driver-patience=2",
        ]);
        agent
            .env("VGPU_STATE_DIR", home.join("state"))
            .env("VGPU_KUBELET_DIR", home.join("kubelet"))
            .env("VGPU_SYSFS", &sysfs)
            .env("KUBECONFIG", &config)
            .env("LD_LIBRARY_PATH", &libraries);
        agent.spawn().unwrap()
    };
    let mut agent = start();
    std::thread::sleep(Duration::from_secs(4));
    assert!(agent.try_wait().unwrap().is_none(), "the driver is well");

    board.trouble("driver=replaced").unwrap();

    let said = ends(&mut agent);
    assert!(
        said.contains("for 2 s (the NVIDIA driver was replaced")
            && said.contains("NVIDIA's module 560.1: this process ends"),
        "{said}"
    );
    // The kubelet starts it in a new container, whose library is the driver's.
    board.trouble("driver=well").unwrap();
    let mut agent = start();
    std::thread::sleep(Duration::from_secs(4));
    assert!(agent.try_wait().unwrap().is_none(), "the driver is well");
    agent.kill().unwrap();
    agent.wait().unwrap();
}

#[test]
fn a_cluster_without_dcgm_sees_the_hardware_and_one_with_it_the_pods() {
    let test = "process::a_cluster_without_dcgm_sees_the_hardware_and_one_with_it_the_pods";
    let Some(home) = alone(test) else {
        return;
    };
    let _board =
        cuda_sim::Board::create(&home.join("board"), &cuda_sim::Config::default()).unwrap();
    let libraries = home.join("lib");
    std::fs::create_dir(&libraries).unwrap();
    let library = libraries.join("libnvidia-ml.so.1");
    std::os::unix::fs::symlink(built("libnvidia_ml.so"), library).unwrap();
    let jobs = home.join("jobs");
    std::fs::create_dir(&jobs).unwrap();
    let containers = Board::new();
    containers.container("train", 4 << 30);
    let mapping = format!("--dcgm-job-mapping-dir={}", jobs.display());
    let agent = Agent::start_in(
        containers.root(),
        &["--metrics-detail=standard", &mapping],
        &[("LD_LIBRARY_PATH", &libraries)],
    );
    let value = |name: &str| {
        // The first round of questions may take longer than a scrape waits.
        let line = found(name, || {
            agent.series(name).first().cloned().ok_or("no series")
        });
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };

    // What the simulated driver says of an idle GPU.
    assert!((value("vgpu_gpu_power_watts") - 52.0).abs() < 1e-9);
    assert!((value("vgpu_gpu_temperature_celsius") - 31.0).abs() < 1e-9);
    assert!((value("vgpu_gpu_sm_clock_hertz") - 210e6).abs() < 1.0);
    // An idle GPU has sent nothing.
    assert!(value("vgpu_gpu_pcie_sent_bytes_total").abs() < 1e-9);
    // A node without a driver has neither of these.
    assert!((value("vgpu_monitor_nvml_up") - 1.0).abs() < 1e-9);
    let held = agent.series("hami_host_gpu_memory_used_bytes");
    assert!(!held.is_empty());
    let labels = agent.series("vgpu_gpu_power_watts");
    assert!(labels[0].contains("device_index=\"0\""), "{labels:?}");
    // Nothing is wrong with it, so nothing of that is shown.
    assert!(agent.series("vgpu_gpu_ecc_errors_total").is_empty());
    assert!(agent.series("vgpu_gpu_throttled").is_empty());
    // dcgm-exporter's file of GPU 0 is there; the container's GPU is none of this board's.
    until("the files are written", || jobs.join("0").exists());
}
