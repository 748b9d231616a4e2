//! `vgpu sim`: the files that the command finds, those that it leaves, and `vgpu run` inside and around it.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test that is wrong about its own machine has failed"
)]

use crate::common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{Machine, Running, VGPU, ended, lives, until};
use nix::sys::signal::Signal;

/// `vgpu sim` on a machine without GPUs.
fn sim(machine: &Machine, words: &[&str]) -> Command {
    let mut command = machine.vgpu([&["sim"], words].concat());
    command
        .env_remove("LD_LIBRARY_PATH")
        .env_remove("VGPU_SIM_BOARD")
        .env_remove("VGPU_SIM_DRIVER");
    command
}

const PRINT: &str = "echo $LD_LIBRARY_PATH; echo $VGPU_SIM_BOARD; echo $VGPU_SIM_GPUS $VGPU_SIM_MEMORY $VGPU_SIM_DRIVER $VGPU_SIM_CLOCK; ls $(dirname $VGPU_SIM_BOARD)/lib";

#[test]
fn command_finds_the_simulated_driver_and_leaves_nothing() {
    let machine = Machine::new();

    let ended = ended(&mut sim(&machine, &["--", "sh", "-c", PRINT]));

    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    let lines: Vec<_> = ended.out.lines().collect();
    let board = Path::new(lines[1]);
    let dir = board.parent().unwrap();
    assert_eq!(Path::new(lines[0]), dir.join("lib"));
    assert_eq!(lines[2].trim(), "");
    assert_eq!(
        lines[3..],
        [
            "libcuda.so",
            "libcuda.so.1",
            "libnvidia-ml.so",
            "libnvidia-ml.so.1"
        ]
    );
    assert!(!dir.exists());
}

#[test]
fn settings_reach_the_board() {
    let machine = Machine::new();
    let words = [
        "--gpus",
        "3",
        "--memory",
        "0=8Gi,2=1.5Gi",
        "--driver",
        "13.0",
        "--clock",
        "virtual",
        "--",
        VGPU,
        "top",
        "--json",
    ];

    let ended = ended(&mut sim(&machine, &words));

    let top: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    let sizes: Vec<_> = top["gpus"]
        .as_array()
        .unwrap()
        .iter()
        .map(|g| g["memory_bytes"].as_u64().unwrap() >> 20)
        .collect();
    assert_eq!(sizes, [8192, 16384, 1536]);
}

#[test]
fn exit_codes_and_signals_are_the_commands() {
    let machine = Machine::new();

    assert_eq!(
        ended(&mut sim(&machine, &["--", "sh", "-c", "exit 42"])).code,
        Some(42)
    );
    assert_eq!(
        ended(&mut sim(&machine, &["--", "sh", "-c", "kill -TERM $$"])).signal,
        Some(15)
    );
    assert_eq!(
        ended(&mut sim(&machine, &["--", "/nonexistent"])).code,
        Some(127)
    );
    assert_eq!(ended(&mut sim(&machine, &["--", "/"])).code, Some(126));
    let script = "trap 'echo got; exit 7' USR1; echo ready; while :; do sleep 0.02; done";
    let running = Running::start(&mut sim(&machine, &["--", "sh", "-c", script]));
    running.signal(Signal::SIGUSR1);
    assert_eq!(running.end().code, Some(7));
}

#[test]
fn a_run_inside_a_simulation_gets_its_gpus() {
    let machine = Machine::new();
    let words = [
        "--gpus", "1", "--memory", "8Gi", "--", VGPU, "run", "--gpumem", "4Gi", "--", VGPU, "top",
        "--json",
    ];

    let ended = ended(&mut sim(&machine, &words));

    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let top: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(
        top["containers"][0]["devices"][0]["limit_bytes"],
        4_u64 << 30
    );
    assert_eq!(top["containers"][0]["devices"][0]["gpu"], 0);
    let too_much = common::ended(&mut sim(
        &machine,
        &[
            "--memory", "2Gi", "--", VGPU, "run", "--gpumem", "4Gi", "--", "true",
        ],
    ));
    assert_eq!(too_much.code, Some(2));
    assert!(
        too_much.err.contains("4Gi is more than GPU 0 has: 2Gi"),
        "{}",
        too_much.err
    );
}

#[test]
fn a_simulation_inside_a_run_joins_the_board_around_it() {
    let machine = Machine::new();
    let inner = format!(
        "echo $VGPU_SIM_BOARD; {VGPU} sim -- sh -c 'echo $VGPU_SIM_BOARD; echo $VGPU_LIMITS'"
    );

    let words = [
        "--", VGPU, "run", "--gpumem", "4Gi", "--name", "in", "--", "sh", "-c", &inner,
    ];
    let ended = ended(&mut sim(&machine, &words));

    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let lines: Vec<_> = ended.out.lines().collect();
    assert_eq!(lines[0], lines[1]);
    assert_eq!(
        lines[2],
        machine.containers().join("in/limits").to_str().unwrap()
    );
}

#[test]
fn a_board_with_a_name_is_kept_and_joined() {
    let machine = Machine::new();
    let board = machine.path("kept");
    let board_text = board.to_str().unwrap();
    let sizes = |words: &[&str]| {
        let words = [
            &["--board", board_text],
            words,
            &["--", VGPU, "top", "--json"],
        ]
        .concat();
        let ended = ended(&mut sim(&machine, &words));
        let top: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
        let gpus = top["gpus"].as_array().unwrap().clone();
        gpus.iter()
            .map(|g| (g["uuid"].clone(), g["memory_bytes"].clone()))
            .collect::<Vec<_>>()
    };

    let first = sizes(&["--gpus", "1", "--memory", "8Gi"]);
    assert!(board.exists());
    let second = sizes(&[]);

    assert_eq!(first.len(), 1);
    assert_eq!(first, second);
}

#[test]
fn files_of_a_killed_simulation_are_removed_once_unused() {
    let machine = Machine::new();
    let script = "echo $$; dirname $VGPU_SIM_BOARD; echo ready; while :; do sleep 0.02; done";
    let mut running = Running::start(&mut sim(&machine, &["--", "sh", "-c", script]));
    let said = running.said();
    let mut lines = said.lines();
    let (pid, dir) = (lines.next().unwrap(), lines.next().unwrap());
    running.signal(Signal::SIGKILL);
    running.child.wait().unwrap();
    // As if it had happened a minute ago: a directory that was just made is left alone.
    let age = || {
        assert!(
            Command::new("touch")
                .args(["-d", "1 minute ago", dir])
                .status()
                .unwrap()
                .success()
        );
    };
    age();
    ended(&mut sim(&machine, &["--", "true"]));
    assert!(Path::new(dir).exists(), "a program still runs on it");

    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(pid.parse().unwrap()),
        Signal::SIGKILL,
    )
    .unwrap();
    until("the program is gone", || !lives(pid));
    until("it is taken away", || {
        if Path::new(dir).exists() {
            age();
        }
        ended(&mut sim(&machine, &["--", "true"]));
        !Path::new(dir).exists()
    });
}

#[test]
fn missing_libraries_and_scripts_are_reported() {
    let machine = Machine::new();
    fs::create_dir(machine.path("empty")).unwrap();
    let mut command = sim(&machine, &["--", "echo", "started"]);
    let missing = ended(command.env("VGPU_SIM_LIBS", machine.path("empty")));
    assert_eq!((missing.code, missing.out.as_str()), (Some(1), ""));
    assert!(
        missing.err.contains("looked in") && missing.err.contains("VGPU_SIM_LIBS"),
        "{}",
        missing.err
    );

    let no_script = ended(&mut sim(
        &machine,
        &["--script", "/nonexistent", "--", "echo", "started"],
    ));
    assert_eq!((no_script.code, no_script.out.as_str()), (Some(2), ""));
    let not_there = ended(&mut sim(
        &machine,
        &["--gpus", "2", "--memory", "2=8Gi", "--", "echo", "started"],
    ));
    assert_eq!((not_there.code, not_there.out.as_str()), (Some(2), ""));
    assert!(
        not_there.err.contains("names GPU 2 of 2"),
        "{}",
        not_there.err
    );
}
