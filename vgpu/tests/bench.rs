//! `vgpu bench`: it measures and prints what it should. Its figures depend on the machine here;
//! `tests/compute` asserts shares, on a clock that no machine disturbs.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that is wrong about its own machine has failed"
)]

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::common;

use common::Machine;

#[test]
fn each_case_has_a_row_with_its_figures_and_its_share_over_time() {
    let machine = Machine::new();
    let picture = machine.path("accuracy.svg");
    let words = [
        "bench",
        "accuracy",
        "--workload",
        "small,processes,pairs",
        "--caps",
        "50",
        "--time",
        "400ms",
        "--json",
        "--svg",
        picture.to_str().unwrap(),
    ];

    let ended = machine.run(&words);

    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    let results: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(
        (&results["version"], &results["simulated"]),
        (&1.into(), &true.into())
    );
    let rows = results["rows"].as_array().unwrap();
    let names: Vec<_> = rows
        .iter()
        .map(|row| {
            (
                row["workload"].as_str().unwrap(),
                row["asked"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        names,
        [
            ("kernels of 20 µs", 50),
            ("1 ms in four processes", 50),
            ("two containers, 10/90", 10),
            ("two containers, 10/90", 90),
            ("two containers, 30/70", 30),
            ("two containers, 30/70", 70),
            ("two containers, 50/50", 50),
            ("two containers, 50/50", 50),
        ]
    );
    for row in rows {
        let mean = row["mean"].as_f64().unwrap();
        assert!(mean > 0.0 && mean <= 101.0, "{row}");
        for figure in ["worst_100ms", "worst_window", "mae", "overshoot"] {
            assert!(row[figure].is_f64(), "{figure}: {row}");
        }
        assert!(!row["shares"].as_array().unwrap().is_empty());
    }
    let picture = std::fs::read_to_string(picture).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("two containers, 30/70"));
    assert_eq!(machine.names(), Vec::<String>::new());
}

#[test]
fn bench_reports_when_a_change_took_effect_and_the_slowdown() {
    let machine = Machine::new();
    let lines = |workload: &str, time: &str| {
        let words = ["bench", "accuracy", "--caps", "90", "--workload", workload];
        let ended = machine.run(&[&words[..], &["--time", time]].concat());
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
        assert!(ended.out.starts_with("workload "), "{}", ended.out);
        ended.out.lines().map(str::to_owned).collect::<Vec<_>>()
    };

    let change = lines("change", "600ms");
    let sparse = lines("sparse", "100ms");

    let count = |name: &str| change.iter().filter(|line| line.starts_with(name)).count();
    assert_eq!(
        (count("1 ms, cap changed"), count("graphs, cap changed")),
        (3, 3)
    );
    assert!(
        sparse
            .iter()
            .any(|line| line.starts_with("20 µs and 50 ms of pause") && line.ends_with('%'))
    );
}

#[test]
fn change_that_comes_after_the_measured_time_finds_its_container() {
    let machine = Machine::new();
    let [program, text, slow] = ["vgpu", "text", "slow"].map(|name| machine.path(name));
    common::copy_program(common::VGPU.as_ref(), &program);
    let script = format!(
        "#!/bin/sh\nif [ \"$1\" = set ]; then sleep 1; fi\nexec {} \"$@\"\n",
        common::VGPU
    );
    std::fs::write(&text, script).unwrap();
    common::copy_program(&text, &slow);
    std::fs::set_permissions(&slow, Permissions::from_mode(0o755)).unwrap();
    let mut command = machine.command(&program);
    command.args(["bench", "accuracy", "--caps", "90", "--workload", "change"]);
    command.args(["--time", "300ms"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let bench = command.spawn().unwrap();
    // It knows by now where its own program is, which it starts for each change.
    common::until("a container runs", || !machine.names().is_empty());
    std::fs::rename(&slow, &program).unwrap();

    let ended = bench.wait_with_output().unwrap();

    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
    assert!(ended.status.success());
    let out = String::from_utf8_lossy(&ended.stdout);
    let rows = out.lines().filter(|line| line.contains("cap changed"));
    assert_eq!(rows.count(), 6, "{out}");
}

#[test]
fn bad_input_is_refused_before_anything_runs() {
    let machine = Machine::new();
    for (words, says) in [
        (["--caps", "0"], "0 is not in 1..=100"),
        (["--caps", "101"], "101 is not in 1..=100"),
        (["--workload", "huge"], "possible values"),
    ] {
        let ended = machine.run(&[&["bench", "accuracy"][..], &words].concat());

        assert_eq!(ended.code, Some(2));
        assert!(ended.err.contains(says), "{}", ended.err);
    }
}

#[test]
fn latency_is_measured_alone_beside_training_and_with_priorities() {
    let machine = Machine::new();
    let [picture, file] = ["latency.svg", "latency.json"].map(|name| machine.path(name));
    let words = [
        "bench",
        "latency",
        "--quick",
        "--time",
        "1s",
        "--training",
        "graphs",
        "--load",
        "60",
        "--json",
        file.to_str().unwrap(),
        "--svg",
        picture.to_str().unwrap(),
    ];

    // Alone, the service has the GPU for two thirds of the time. A machine that held its process up made its requests wait,
    // and says nothing of waiting beside training: another run does.
    let kept_up = |results: &serde_json::Value| {
        let share = &results["rows"][1]["service"]["share_percent"];
        share.as_f64().is_some_and(|share| share >= 60.0)
    };
    let mut results = serde_json::Value::Null;
    for _ in 0..3 {
        let ended = machine.run(&words);
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
        assert!(ended.out.starts_with("setting "), "{}", ended.out);
        assert_eq!(ended.out.lines().count(), 5, "{}", ended.out);
        results = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        println!("{results}");
        if kept_up(&results) {
            break;
        }
    }
    for (field, value) in [
        ("version", serde_json::json!(1)),
        ("simulated", serde_json::json!(true)),
        ("seconds", serde_json::json!(1.0)),
        ("load_percent", serde_json::json!(60)),
        ("seed", serde_json::json!(1)),
    ] {
        assert_eq!(results[field], value, "{field}");
    }
    let [training, alone, beside, vgpu] = &results["rows"].as_array().unwrap()[..] else {
        panic!("{results}");
    };
    for (row, setting, has_service, has_training) in [
        (training, "alone", false, true),
        (alone, "alone", true, false),
        (beside, "beside", true, true),
        (vgpu, "vgpu", true, true),
    ] {
        assert_eq!(row["setting"], setting);
        assert_eq!(row["service"].is_object(), has_service, "{row}");
        assert_eq!(row["training"].is_object(), has_training, "{row}");
    }
    for row in [alone, beside, vgpu] {
        let service = &row["service"];
        assert_eq!(service["request"], "kernels");
        assert_eq!(service["arrivals"], "poisson");
        assert_eq!(service["requests"], alone["service"]["requests"], "{row}");
        let at = |field: &str| service[field].as_f64().unwrap();
        assert!(0.0 < at("p50_ms") && at("p50_ms") <= at("p90_ms"), "{row}");
        assert!(at("p90_ms") <= at("p99_ms"), "{row}");
        assert!(at("per_second") > 0.0 && at("share_percent") > 0.0, "{row}");
    }
    for row in [training, beside, vgpu] {
        assert_eq!(row["training"]["name"], "graphs");
        assert!(
            row["training"]["per_second"].as_f64().unwrap() > 0.0,
            "{row}"
        );
    }
    // Beside training, the driver gives the service half of the GPU. It needs more, so its requests queue up.
    let p50_ms = |row: &serde_json::Value| row["service"]["p50_ms"].as_f64().unwrap();
    assert!(
        p50_ms(alone) <= p50_ms(beside) || !kept_up(&results),
        "{results}"
    );
    let picture = std::fs::read_to_string(picture).unwrap();
    assert!(
        picture.starts_with("<svg") && picture.contains("requests: kernels; arrivals: poisson")
    );
    assert_eq!(machine.names(), Vec::<String>::new());
}

#[test]
fn latency_measures_other_requests_in_bursts() {
    let machine = Machine::new();
    for request in ["small-model", "generation"] {
        let words = [
            "bench",
            "latency",
            "--arrivals",
            "bursts",
            "--request",
            request,
        ];
        let words = [
            &words[..],
            &["--training", "1ms", "--time", "300ms", "--json"],
        ]
        .concat();

        let ended = machine.run(&words);

        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{request}");
        let results: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
        let rows = results["rows"].as_array().unwrap();
        let settings: Vec<_> = rows
            .iter()
            .map(|row| row["setting"].as_str().unwrap())
            .collect();
        assert_eq!(settings, ["alone", "alone", "beside", "vgpu"], "{results}");
        let services = rows
            .iter()
            .map(|row| &row["service"])
            .filter(|it| it.is_object());
        let services: Vec<_> = services.collect();
        assert_eq!(services.len(), 3, "{results}");
        for service in services {
            assert_eq!(
                (&service["request"], &service["arrivals"]),
                (&request.into(), &"bursts".into())
            );
            let at = |field: &str| service[field].as_f64().unwrap();
            assert!(service["requests"].as_u64().unwrap() > 0, "{service}");
            assert!(
                0.0 < at("p50_ms") && at("p50_ms") <= at("p99_ms"),
                "{service}"
            );
        }
    }
    assert_eq!(machine.names(), Vec::<String>::new());
}

#[test]
fn latency_prints_json_instead_of_the_table() {
    let machine = Machine::new();
    let words = ["bench", "latency", "--quick", "--time", "100ms", "--json"];

    let ended = machine.run(&words);

    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    let results: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(results["rows"].as_array().unwrap().len(), 4);
}

#[test]
fn latency_refuses_bad_input_before_anything_runs() {
    let machine = Machine::new();
    for (flag, value, says) in [
        ("--load", "0", "0 is not in 1..=90"),
        ("--load", "91", "91 is not in 1..=90"),
        ("--seed", "-1", "invalid"),
        ("--time", "soon", "\"soon\" is not a time; accepted: 100ms"),
        ("--arrivals", "steady", "possible values: poisson, bursts"),
        (
            "--request",
            "huge",
            "possible values: kernels, small-model, generation",
        ),
        (
            "--training",
            "2ms",
            "possible values: 100us, 1ms, 5ms, graphs",
        ),
        ("--svg", "", "the path is empty"),
    ] {
        let ended = machine.run(&["bench", "latency", &format!("{flag}={value}")]);

        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""));
        assert!(ended.err.contains(says), "{flag} {value}: {}", ended.err);
    }

    let ended = machine.run(&["bench", "latency", "--gpu", "9"]);

    assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""));
    assert!(
        ended.err.contains("there is no GPU 9; there are: 0 "),
        "{}",
        ended.err
    );

    let ended = machine.run(&["bench", "latency", "--json", "/nonexistent/latency.json"]);

    assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""));
    assert!(
        ended.err.contains("cannot write /nonexistent/latency.json"),
        "{}",
        ended.err
    );
}

/// The processes of one job read their beginnings from one pipe. The first one is stopped until the second one has ended:
/// the second one must leave the first one's byte in the pipe.
#[test]
fn last_process_of_a_job_leaves_the_others_their_beginning() {
    let machine = Machine::new();
    let mut worker = machine
        .vgpu([
            "bench",
            "worker",
            "--kind",
            "kernels",
            "--kernel-ns",
            "100000",
            "--time-ms",
            "400",
            "--processes",
            "2",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(worker.stdout.take().unwrap()).lines();
    let mut line = || lines.next().unwrap().unwrap();
    let first: i32 = line().strip_prefix("ready ").unwrap().parse().unwrap();
    assert!(line().starts_with("ready "));
    let first = Pid::from_raw(first);
    kill(first, Signal::SIGSTOP).unwrap();
    common::until("the first one is stopped", || {
        let status = std::fs::read_to_string(format!("/proc/{first}/status")).unwrap();
        status.contains("State:\tT")
    });

    let mut input = worker.stdin.take().unwrap();
    input.write_all(&[0; 2]).unwrap();
    let done = line();
    kill(first, Signal::SIGCONT).unwrap();

    assert!(done.starts_with("done "), "{done}");
    // Without its byte the first one fails when the pipe is closed.
    drop(input);
    assert!(worker.wait().unwrap().success());
    assert!(line().starts_with("done "));
}
