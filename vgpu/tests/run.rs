//! `vgpu run` as a parent: exit codes, signals, environment, its directory from beginning to end.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test that is wrong about its own machine has failed"
)]

use crate::common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;

use common::{Machine, Running, VGPU, copy_program, ended, library, lives, until};
use expect_test::expect;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vgpu_abi::limits::{Limits, LimitsFile, Policy};

const LOOP: &str = "echo ready; while :; do sleep 0.02; done";

#[test]
fn the_exit_code_is_the_commands() {
    let machine = Machine::new();

    for code in [0, 1, 2, 3, 126, 127, 128, 255] {
        let script = format!("exit {code}");
        let ended = machine.run(&["run", "--gpumem", "4Gi", "--", "sh", "-c", &script]);
        assert_eq!((ended.code, ended.err.as_str()), (Some(code), ""), "{code}");
    }
}

#[test]
fn run_ends_with_the_signal_that_killed_its_command() {
    let machine = Machine::new();

    for signal in [
        Signal::SIGTERM,
        Signal::SIGKILL,
        Signal::SIGSEGV,
        Signal::SIGINT,
    ] {
        let script = format!("kill -{} $$", signal as i32);
        let ended = machine.run(&["run", "--gpumem", "4Gi", "--", "sh", "-c", &script]);
        assert_eq!(ended.signal, Some(signal as i32), "{signal}: {ended:?}");
    }
    let script = format!("{VGPU} run --gpumem 4Gi -- sh -c 'kill -TERM $$'; echo $?");
    let seen = ended(machine.command("sh").args(["-c", &script]));
    assert_eq!(seen.out, "143\n");
    // SIGPIPE is ignored in our process, so the exit code reports it.
    let ended = machine.run(&["run", "--gpumem", "4Gi", "--", "sh", "-c", "kill -PIPE $$"]);
    assert_eq!(ended.code, Some(141));
}

#[test]
fn a_command_that_cannot_be_run_gives_the_codes_of_a_shell() {
    let machine = Machine::new();
    let text = machine.path("text");
    fs::write(&text, "not a program\n").unwrap();
    let no_interpreter = machine.path("no-interpreter");
    fs::write(&no_interpreter, "#!/nonexistent/sh\n").unwrap();
    let noise = machine.path("noise");
    fs::write(&noise, b"\x7fELF\x01\x02\x03").unwrap();
    for file in [&no_interpreter, &noise] {
        fs::set_permissions(file, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let directory = machine.dir.path().to_owned();

    for (command, code) in [
        ("/nonexistent/program", 127),
        ("no-such-program-anywhere", 127),
        ("", 127),
        (no_interpreter.to_str().unwrap(), 127),
        (text.to_str().unwrap(), 126),
        (directory.to_str().unwrap(), 126),
        (noise.to_str().unwrap(), 126),
    ] {
        let ended = machine.run(&["run", "--gpumem", "4Gi", "--", command]);
        assert_eq!(ended.code, Some(code), "{command:?}: {ended:?}");
        let start = format!("vgpu run: cannot run {command}: ");
        assert!(ended.err.starts_with(&start), "{}", ended.err);
        assert_eq!(machine.names(), [""; 0], "{command:?} left its directory");
    }
}

#[test]
fn signals_sent_to_vgpu_reach_the_command() {
    let machine = Machine::new();

    for name in [
        "HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM", "WINCH",
    ] {
        let script = format!("trap 'echo got {name}; exit 7' {name}; {LOOP}");
        let running = machine.start(&["--gpumem", "4Gi"], &script);
        running.signal(format!("SIG{name}").parse().unwrap());
        let ended = running.end();
        assert_eq!(ended.code, Some(7), "{name}: {ended:?}");
        assert!(ended.out.ends_with(&format!("got {name}\n")), "{ended:?}");
    }
}

#[test]
fn signal_from_the_command_to_its_parent_does_not_come_back() {
    let machine = Machine::new();
    let script = "trap 'echo came back; exit 9' USR1; kill -USR1 $PPID; sleep 0.3; echo ready";

    let ended = machine.start(&["--gpumem", "4Gi"], script).end();

    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "ready\n"));
}

#[test]
fn the_command_gets_the_signal_state_that_a_shell_would_give_it() {
    let machine = Machine::new();
    let words = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"];
    // Signals 32 and 33 are the C library's own, and it sets them as it needs them.
    let state = |ended: common::Ended| {
        let lines = ended.out.lines().map(|line| {
            let (name, bits) = line.split_once(":\t").unwrap();
            (
                name.to_owned(),
                u64::from_str_radix(bits, 16).unwrap() & !(3 << 31),
            )
        });
        lines.collect::<Vec<_>>()
    };
    let plain = state(ended(machine.command("grep").args(&words[1..])));

    let under = state(ended(
        machine.vgpu(["run", "--gpumem", "4Gi", "--"]).args(words),
    ));

    assert_eq!(plain.len(), 2);
    assert_eq!(under, plain);
}

#[test]
fn run_puts_the_library_first_and_keeps_other_variables() {
    let machine = Machine::new();
    let mut command = machine.vgpu(["run", "--gpumem", "4Gi", "--name", "env", "--"]);
    command.args(["sh", "-c", "echo $LD_PRELOAD; echo $VGPU_LIMITS; echo $VGPU_REGION; echo $KEPT; echo $CUDA_VISIBLE_DEVICES"]);
    command.env("LD_PRELOAD", "libm.so.6").env("KEPT", "yes");

    let ended = ended(&mut command);

    let dir = machine.containers().join("env");
    let library = library().canonicalize().unwrap();
    let expected = format!(
        "{}:libm.so.6\n{dir}/limits\n{dir}/region\nyes\n\n",
        library.display(),
        dir = dir.display()
    );
    assert_eq!(ended.out, expected, "{}", ended.err);
}

#[test]
fn a_choice_of_gpus_is_what_the_command_sees() {
    let machine = Machine::new();
    let top = machine.top();
    let uuid = |index: usize| top["gpus"][index]["uuid"].as_str().unwrap().to_owned();
    let seen = |flags: &[&str]| {
        let words = [
            &["run"],
            flags,
            &["--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"],
        ]
        .concat();
        let ended = machine.run(&words);
        assert_eq!(ended.err, "");
        ended.out.trim().to_owned()
    };

    assert_eq!(seen(&["--gpumem", "4Gi"]), "");
    assert_eq!(seen(&["--gpumem", "4Gi", "--gpu", "1"]), uuid(1));
    assert_eq!(seen(&["--gpumem", "1=4Gi"]), uuid(1));
    assert_eq!(
        seen(&["--gpumem", "4Gi", "--gpu", "1,0"]),
        format!("{},{}", uuid(1), uuid(0))
    );
    assert_eq!(seen(&["--gpumem", "4Gi", "--gpu", &uuid(0)]), uuid(0));
}

#[test]
fn directory_exists_only_while_the_command_runs() {
    let machine = Machine::new();

    let running = machine.start(&["--gpumem", "4Gi", "--name", "here"], LOOP);
    let dir = machine.containers().join("here");
    let mut files: Vec<_> = fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(
        files,
        ["container.json", "doorbell", "limits", "region", "targets"]
    );
    for (path, mode) in [
        (&machine.board, 0o1777),
        (&machine.containers(), 0o700),
        (&dir, 0o700),
    ] {
        assert_eq!(
            fs::metadata(path).unwrap().permissions().mode() & 0o7777,
            mode
        );
    }
    running.stop();

    assert_eq!(machine.names(), [""; 0]);
}

#[test]
fn names_are_unique_and_a_taken_one_is_refused() {
    let machine = Machine::new();
    let first = machine.start(&["--gpumem", "1Gi"], LOOP);
    let second = machine.start(&["--gpumem", "1Gi"], LOOP);
    let third = machine.start(&["--gpumem", "1Gi", "--name", "mine"], LOOP);
    assert_eq!(machine.names(), ["mine", "sh-1", "sh-2"]);

    let refused = machine.run(&["run", "--gpumem", "1Gi", "--name", "mine", "--", "true"]);

    assert_eq!(refused.code, Some(1));
    assert!(
        refused
            .err
            .contains("a container called \"mine\" is running"),
        "{}",
        refused.err
    );
    for running in [first, second, third] {
        running.stop();
    }
    let again = machine.run(&["run", "--gpumem", "1Gi", "--name", "mine", "--", "true"]);
    assert_eq!(again.code, Some(0));
}

#[test]
fn a_name_is_free_again_after_a_command_was_killed_while_it_made_or_removed_the_directory() {
    let machine = Machine::new();
    let run = |name: &str| machine.run(&["run", "--gpumem", "1Gi", "--name", name, "--", "true"]);
    assert_eq!(run("first").code, Some(0));
    let half = machine.containers().join("mine");
    for labels in [None, Some(r#"{"name":"mine","runner_pid":4194304}"#)] {
        fs::create_dir(&half).unwrap();
        if let Some(labels) = labels {
            fs::write(half.join("container.json"), labels).unwrap();
        }

        let ended = run("mine");

        assert_eq!(
            (ended.code, ended.err.as_str()),
            (Some(0), ""),
            "{labels:?}"
        );
        assert_eq!(machine.names(), [""; 0]);
    }
    // What another program has put there is not ours to remove.
    fs::create_dir(&half).unwrap();
    fs::write(half.join("theirs"), "").unwrap();
    assert_eq!(run("mine").code, Some(1));
    assert!(half.join("theirs").exists());
}

#[test]
fn twenty_runs_at_once_get_a_name_each_and_leave_nothing() {
    let machine = Machine::new();
    let children: Vec<_> = (0..20)
        .map(|_| {
            let mut command = machine.vgpu(["run", "--gpumem", "100Mi", "--", "sleep", "0.2"]);
            command.spawn().unwrap()
        })
        .collect();

    for mut child in children {
        assert!(child.wait().unwrap().success());
    }

    assert_eq!(machine.names(), [""; 0]);
}

#[test]
fn killed_runner_leaves_the_limit_and_the_next_run_cleans_up() {
    let machine = Machine::new();
    let running = machine.start(
        &["--gpumem", "4Gi", "--name", "left"],
        &format!("echo $$; {LOOP}"),
    );
    let said = running.said();
    let pid = said.lines().next().unwrap().to_owned();
    running.signal(Signal::SIGKILL);
    let mut running = running;
    assert!(!running.child.wait().unwrap().success());

    // It keeps running, top shows it, its limit can be set, and its files stay.
    assert!(lives(&pid));
    let seen = machine.top();
    assert_eq!(seen["containers"][0]["name"], "left");
    assert_eq!(seen["containers"][0]["state"], "orphaned");
    assert_eq!(
        machine.run(&["run", "--gpumem", "1Gi", "--", "true"]).code,
        Some(0)
    );
    assert_eq!(machine.names(), ["left"]);
    assert_eq!(
        machine.run(&["set", "left", "--gpumem", "2Gi"]).code,
        Some(0)
    );

    // Once it has ended, the next run clears up.
    kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGKILL).unwrap();
    until("a run has cleared up", || {
        assert_eq!(
            machine.run(&["run", "--gpumem", "1Gi", "--", "true"]).code,
            Some(0)
        );
        machine.names().is_empty()
    });
}

#[test]
fn top_cleans_up_after_a_killed_runner_and_command() {
    let machine = Machine::new();
    let running = machine.start(&["--gpumem", "4Gi"], &format!("echo $$; {LOOP}"));
    let pid = running.said().lines().next().unwrap().to_owned();
    running.signal(Signal::SIGKILL);
    kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGKILL).unwrap();
    let mut running = running;
    running.child.wait().unwrap();
    until("the command is gone", || !lives(&pid));
    assert_eq!(machine.names(), ["sh-1"]);

    // The shell's last `sleep` may still be there.
    until("top has cleared up", || {
        machine.top()["containers"].as_array().unwrap().is_empty()
    });

    assert_eq!(machine.names(), [""; 0]);
}

#[test]
fn background_process_of_the_command_keeps_its_files() {
    let machine = Machine::new();
    let ended = machine.run(&[
        "run",
        "--gpumem",
        "4Gi",
        "--name",
        "daemon",
        "--",
        "sh",
        "-c",
        "setsid sh -c 'while :; do sleep 0.02; done' >/dev/null 2>&1 & echo $!",
    ]);
    assert_eq!(ended.code, Some(0));
    assert!(
        ended.err.contains("processes of daemon are still running"),
        "{}",
        ended.err
    );
    assert_eq!(machine.names(), ["daemon"]);

    kill(
        Pid::from_raw(ended.out.trim().parse().unwrap()),
        Signal::SIGKILL,
    )
    .unwrap();
    until("top has cleared up", || {
        machine.top();
        machine.names().is_empty()
    });
}

#[test]
fn a_command_that_cannot_be_interrupted_is_waited_for() {
    let machine = Machine::new();
    let script = "trap '' TERM INT; echo ready; sleep 0.3; echo done; exit 5";
    let running = machine.start(&["--gpumem", "4Gi"], script);
    running.signal(Signal::SIGTERM);
    running.signal(Signal::SIGINT);

    let ended = running.end();

    assert_eq!((ended.code, ended.out.as_str()), (Some(5), "ready\ndone\n"));
}

#[test]
fn standard_input_and_descriptors_go_through() {
    let machine = Machine::new();
    let script = format!(
        "echo hello | {VGPU} run --gpumem 4Gi -- cat; {VGPU} run --gpumem 4Gi -- sh -c 'echo three >&3' 3>&1"
    );

    let ended = ended(machine.command("sh").args(["-c", &script]));

    assert_eq!(
        (ended.out.as_str(), ended.err.as_str()),
        ("hello\nthree\n", "")
    );
}

#[test]
fn nested_runs_can_only_lower() {
    let machine = Machine::new();
    let nested = |outer: &str, inner: &str| {
        let script = format!("{VGPU} run {inner} -- echo started");
        machine.run(&["run", "--gpumem", outer, "--", "sh", "-c", &script])
    };

    let lower = nested("4Gi", "--gpumem 2Gi");
    assert_eq!(
        (lower.code, lower.out.as_str()),
        (Some(0), "started\n"),
        "{}",
        lower.err
    );
    let same = nested("4Gi", "--gpumem 4Gi");
    assert_eq!(same.out, "started\n", "{}", same.err);
    let higher = nested("4Gi", "--gpumem 5Gi");
    assert_eq!((higher.code, higher.out.as_str()), (Some(2), ""));
    assert!(
        higher
            .err
            .contains("5Gi of GPU 0 is more than the outer limit of 4Gi"),
        "{}",
        higher.err
    );
    let other_gpu = nested("0=4Gi", "--gpumem 1=1Gi");
    assert_eq!(
        (other_gpu.code, other_gpu.out.as_str()),
        (Some(2), ""),
        "{}",
        other_gpu.err
    );
    let by_other_stack = {
        let mut command = machine.vgpu(["run", "--gpumem", "4Gi", "--", "echo", "started"]);
        ended(command.env("CUDA_DEVICE_MEMORY_LIMIT", "2g"))
    };
    assert_eq!(
        (by_other_stack.code, by_other_stack.out.as_str()),
        (Some(2), "")
    );
    let unreadable = {
        let mut command = machine.vgpu(["run", "--gpumem", "4Gi", "--", "echo", "started"]);
        ended(command.env("VGPU_LIMITS", "/nonexistent/limits"))
    };
    assert_eq!((unreadable.code, unreadable.out.as_str()), (Some(1), ""));
    assert!(
        unreadable.err.contains("/nonexistent/limits"),
        "{}",
        unreadable.err
    );
}

#[test]
fn a_missing_library_says_where_it_was_looked_for() {
    let machine = Machine::new();
    let start = |library: &str| {
        let words = [
            "run",
            "--gpumem",
            "4Gi",
            "--library",
            library,
            "--",
            "echo",
            "started",
        ];
        let ended = machine.run(&words);
        assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""), "{library}");
        ended.err
    };
    let spaced = machine.path("a b.so");
    fs::copy(library(), &spaced).unwrap();
    let text = machine.path("text.so");
    fs::write(&text, "not a library, although it is long enough").unwrap();

    assert!(start("/nonexistent/libvgpu.so").contains("looked at /nonexistent/libvgpu.so"));
    assert!(start(text.to_str().unwrap()).contains("not a 64-bit shared library"));
    assert!(start(spaced.to_str().unwrap()).contains("contains a space or a colon"));
    assert!(start("/").contains("cannot read the library"));
    // Without --library: the places are all named.
    let bare = machine.path("bin/vgpu");
    fs::create_dir(machine.path("bin")).unwrap();
    copy_program(Path::new(VGPU), &bare);
    let mut moved = machine.command(&bare);
    moved
        .args(["run", "--gpumem", "4Gi", "--", "true"])
        .env_remove("VGPU_LIBRARY");
    let ended = ended(&mut moved);
    for place in [
        "bin/../lib/vgpu/libvgpu.so",
        "bin/libvgpu.so",
        "/usr/local/vgpu/libvgpu.so",
    ] {
        assert!(ended.err.contains(place), "{place} in {}", ended.err);
    }
}

#[test]
fn without_a_driver_the_error_says_what_to_try() {
    let machine = Machine::new();
    let mut command = machine.vgpu(["run", "--gpumem", "4Gi", "--", "echo", "started"]);

    let ended = ended(command.env_remove("LD_LIBRARY_PATH"));

    if ended.code == Some(0) {
        // A machine with an NVIDIA driver.
        return;
    }
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""));
    assert!(ended.err.contains("libnvidia-ml.so.1"), "{}", ended.err);
    assert!(ended.err.contains("vgpu sim -- vgpu run"), "{}", ended.err);
}

#[test]
fn limits_that_add_up_to_more_than_the_gpu_are_worth_a_word() {
    let machine = Machine::new();
    let first = machine.start(&["--gpumem", "0=12Gi"], LOOP);

    let second = machine.run(&["run", "--gpumem", "0=8Gi", "--", "true"]);

    assert_eq!(second.code, Some(0));
    assert!(
        second
            .err
            .contains("the limits on GPU 0 add up to 20Gi, and it has 16Gi"),
        "{}",
        second.err
    );
    // A nested run gets its part of the outer run's share.
    let script = format!("{VGPU} run --gpumem 0=3Gi -- true");
    let nested = machine.run(&["run", "--gpumem", "0=3Gi", "--", "sh", "-c", &script]);
    assert_eq!((nested.code, nested.err.as_str()), (Some(0), ""));
    first.stop();
}

#[test]
fn a_run_in_a_new_session_still_ends_with_its_command() {
    let machine = Machine::new();
    let mut command = machine.command("setsid");
    command.args(["--wait", VGPU, "run", "--gpumem", "1Gi", "--", "sh", "-c"]);
    command.arg(format!("trap 'exit 3' TSTP; {LOOP}"));
    let running = Running::start(&mut command);
    // If no shell could continue it, a stop must not stop it for good: the command gets the signal.
    let runner =
        fs::read_to_string(format!("/proc/{0}/task/{0}/children", running.child.id())).unwrap();
    let runner = runner
        .split_whitespace()
        .next()
        .map_or(running.pid(), |pid| Pid::from_raw(pid.parse().unwrap()));

    kill(runner, Signal::SIGTSTP).unwrap();

    assert_eq!(running.end().code, Some(3));
}

#[test]
fn stopping_and_continuing_vgpu_stops_and_continues_the_command() {
    let machine = Machine::new();
    let script = format!("echo $$; {LOOP}");
    let mut command = machine.vgpu(["run", "--gpumem", "1Gi", "--", "sh", "-c", &script]);
    // In a group with a parent that could continue it: the kernel does not stop an orphaned group.
    let running = Running::start(command.process_group(0));
    let pid = running.said().lines().next().unwrap().to_owned();
    let state = |pid: &str| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(") ").next().unwrap().chars().next().unwrap()
    };

    for _ in 0..3 {
        running.signal(Signal::SIGTSTP);
        until("the command has stopped", || state(&pid) == 'T');
        running.signal(Signal::SIGCONT);
        until("the command goes on", || state(&pid) != 'T');
    }

    assert_eq!(running.stop().signal, Some(Signal::SIGTERM as i32));
}

/// The limits of a container of this user, as the library reads them.
fn limits(machine: &Machine, name: &str) -> Limits {
    let file = LimitsFile::open(&machine.containers().join(name).join("limits")).unwrap();
    file.read().unwrap()
}

#[test]
fn compute_limits_stand_in_the_limits_file_as_they_were_typed() {
    let machine = Machine::new();
    let flags = "--name c --gpumem 4Gi --gpucores 0=30,1=50 --floor 0=10 --priority 7 \
                 --oversubscribe 1=2Gi";
    let flags: Vec<_> = flags.split_whitespace().collect();
    let running = machine.start(&flags, LOOP);

    let limits = limits(&machine, "c");

    assert_eq!((limits.policy, limits.priority), (Policy::Floor, 7));
    let devices: Vec<_> = limits
        .devices
        .iter()
        .map(|d| {
            (
                d.core_percent,
                d.floor_percent,
                d.memory_bytes >> 30,
                d.resident_bytes >> 30,
            )
        })
        .collect();
    assert_eq!(devices, [(30, 10, 4, 0), (50, 0, 6, 4)]);
    running.stop();
}

#[test]
fn compute_limit_is_forced_by_default_and_leaves_memory_alone() {
    let machine = Machine::new();
    for (flags, policy, percent) in [
        (&["--gpucores", "30"][..], Policy::Force, 30),
        (
            &["--gpucores", "30", "--policy", "default"],
            Policy::Default,
            30,
        ),
        (
            &["--gpucores", "30", "--policy", "Disable"],
            Policy::Disable,
            30,
        ),
        (&["--gpucores", "100"], Policy::Force, 0),
        (&["--floor", "20"], Policy::Floor, 0),
        (&["--priority", "0"], Policy::Default, 0),
    ] {
        let running = machine.start(&[&["--name", "c"], flags].concat(), LOOP);
        let limits = limits(&machine, "c");
        assert_eq!(limits.policy, policy, "{flags:?}");
        assert!(!limits.devices.is_empty(), "{flags:?}");
        for device in limits.devices {
            assert_eq!((device.core_percent, device.memory_bytes), (percent, 0));
        }
        running.stop();
    }
}

#[test]
fn floors_of_a_gpu_are_never_more_than_the_whole_of_it() {
    let machine = Machine::new();
    let first = machine.start(&["--floor", "60", "--name", "first"], LOOP);
    let second = machine.start(&["--floor", "0=30,1=40", "--name", "second"], LOOP);
    let tried = |floor: &str| {
        let ended = machine.run(&["run", "--floor", floor, "--", "echo", "started"]);
        (ended.code, ended.out, ended.err)
    };

    expect![[r#"
        vgpu run: --floor 11 of GPU 0 cannot be kept: of its 100 %, first has 60 %, second has 30 %. At most --floor 10 fits; to release some: vgpu set first --floor N
    "#]]
    .assert_eq(&tried("0=11").2);
    expect![[r#"
        vgpu run: --floor 1 of GPU 1 cannot be kept: of its 100 %, first has 60 %, second has 40 %. Nothing is left to guarantee; to release some: vgpu set first --floor N
    "#]]
    .assert_eq(&tried("1=1").2);
    assert_eq!(tried("11").0, Some(2));
    assert_eq!(machine.names(), ["first", "second"]);
    assert_eq!(tried("0=10").1, "started\n");

    // A container may change its own floor within the remaining share.
    let set = |name: &str, floor: &str| machine.run(&["set", name, "--floor", floor]);
    let refused = set("second", "0=41");
    assert_eq!((refused.code, refused.out.as_str()), (Some(2), ""));
    assert!(
        refused.err.contains("At most --floor 40 fits"),
        "{}",
        refused.err
    );
    assert_eq!(set("second", "0=40").code, Some(0));
    assert_eq!(set("first", "50").code, Some(0));
    assert_eq!(set("first", "1=60").code, Some(0));

    let lists = || {
        let entries = fs::read_dir(&machine.board).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name());
        names
            .filter(|name| name.to_string_lossy().starts_with(".floors"))
            .count()
    };
    assert_eq!(lists(), 1, "the user's list of floors");

    // The floor of an ended container is free again.
    first.stop();
    assert_eq!(tried("60").1, "started\n");
    second.stop();
    assert_eq!(tried("100").1, "started\n");
    assert_eq!(lists(), 0);
}

#[test]
fn of_twenty_runs_with_a_floor_only_those_with_room_start() {
    let machine = Machine::new();
    let go = machine.path("go");
    let script = format!("while [ ! -e {} ]; do sleep 0.02; done", go.display());
    let mut children: Vec<_> = (0..20)
        .map(|_| {
            let mut command = machine.vgpu(["run", "--floor", "30", "--", "sh", "-c", &script]);
            command.stderr(std::process::Stdio::null()).spawn().unwrap()
        })
        .collect();

    let mut refused = 0;
    until("all have started or were refused", || {
        children.retain_mut(|child| match child.try_wait().unwrap() {
            Some(status) => {
                assert_eq!(status.code(), Some(2));
                refused += 1;
                false
            }
            None => true,
        });
        children.len() <= 3
    });

    assert_eq!(refused, 17);
    fs::write(go, "").unwrap();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(machine.names(), [""; 0]);
}

#[test]
fn compute_limits_of_nested_runs_can_only_be_lowered() {
    let machine = Machine::new();
    let nested = |outer: &str, inner: &str| {
        let script = format!("{VGPU} run --name in {inner} -- {VGPU} top --json");
        let outer: Vec<_> = outer.split(' ').collect();
        let words = [&["run"], outer.as_slice(), &["--", "sh", "-c", &script]].concat();
        let ended = machine.run(&words);
        if ended.code != Some(0) {
            return ended.err;
        }
        let top: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
        let containers = top["containers"].as_array().unwrap();
        let inner = containers.iter().find(|c| c["name"] == "in").unwrap();
        let device = &inner["devices"][0];
        format!(
            "{} {} cap {} floor {}",
            inner["policy"].as_str().unwrap(),
            inner["priority"],
            device["cap_percent"],
            device["floor_percent"]
        )
    };

    let found = [
        nested("--gpucores 30 --priority 4", "--gpumem 1Gi"),
        nested("--gpucores 30", "--gpucores 20 --priority 9"),
        nested("--floor 30 --gpucores 60", "--gpumem 1Gi"),
        nested("--floor 30", "--floor 20 --gpucores 40"),
        nested("--gpumem 1Gi", "--gpucores 40"),
    ];
    assert_eq!(
        found,
        [
            "force 4 cap 30 floor 0",
            "force 9 cap 20 floor 0",
            "floor 1 cap 60 floor 30",
            "floor 1 cap 40 floor 20",
            "force 1 cap 40 floor 0",
        ]
    );
    for (outer, inner, says) in [
        (
            "--gpucores 30",
            "--gpucores 31",
            "--gpucores 31 of GPU 0 is more than the outer limit of 30 %",
        ),
        (
            "--gpucores 30",
            "--gpucores 30 --policy disable",
            "would lift the outer cap",
        ),
        (
            "--floor 30",
            "--floor 31",
            "the outer limits guarantee 30 %",
        ),
        (
            "--gpumem 1Gi",
            "--floor 1",
            "the outer limits guarantee nothing of it",
        ),
        (
            "--priority 4",
            "--priority 3",
            "--priority 3 is above the outer priority of 4",
        ),
        (
            "--gpumem 1Gi --oversubscribe 1Gi",
            "--gpumem 1Gi --oversubscribe 2Gi",
            "3Gi of GPU 0 is more than the outer limit of 2Gi",
        ),
    ] {
        let error = nested(outer, inner);
        assert!(error.contains(says), "{outer} {inner}: {error}");
    }
    let by_other_stack = |name: &str, value: &str| {
        let mut command = machine.vgpu(["run", "--gpucores", "40", "--", "echo", "started"]);
        ended(command.env(name, value))
    };
    let refused = by_other_stack("CUDA_DEVICE_SM_LIMIT", "30");
    assert_eq!((refused.code, refused.out.as_str()), (Some(2), ""));
    assert!(
        refused.err.contains("CUDA_DEVICE_SM_LIMIT"),
        "{}",
        refused.err
    );
    assert_eq!(by_other_stack("CUDA_DEVICE_SM_LIMIT", "40").code, Some(0));
    assert_eq!(by_other_stack("CUDA_DEVICE_SM_LIMIT", "much").code, Some(1));
}

#[test]
fn floors_inside_a_container_are_together_no_more_than_its_own() {
    let machine = Machine::new();
    let outer = machine.start(&["--floor", "50", "--name", "outer"], LOOP);
    let inside = |words: &[&str]| {
        let mut command = machine.vgpu(words);
        command.env("VGPU_LIMITS", machine.containers().join("outer/limits"));
        command
    };
    let first = Running::start(&mut inside(&[
        "run", "--floor", "30", "--name", "first", "--", "sh", "-c", LOOP,
    ]));

    let refused = ended(&mut inside(&["run", "--floor", "21", "--", "true"]));
    expect![[r#"
        vgpu run: --floor 21 of GPU 0 cannot be kept: of the outer container's 50 %, first has 30 %. At most --floor 20 fits; to release some: vgpu set first --floor N
    "#]]
    .assert_eq(&refused.err);
    // A run without a floor gets the remaining share.
    let second = Running::start(&mut inside(&[
        "run", "--gpumem", "1Gi", "--name", "second", "--", "sh", "-c", LOOP,
    ]));
    assert_eq!(limits(&machine, "second").devices[0].floor_percent, 20);

    // On the board they count once, as the outer one's.
    let other = machine.run(&["run", "--floor", "50", "--", "true"]);
    assert_eq!(other.code, Some(0), "{}", other.err);
    second.stop();
    first.stop();
    outer.stop();
}

#[test]
fn cap_is_passed_to_a_running_mps() {
    let machine = Machine::new();
    let pipe = machine.path("mps");
    fs::create_dir(&pipe).unwrap();
    let told = |flags: &[&str], already: Option<&str>| {
        let script = "echo ${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE-none}";
        let words = [&["run"], flags, &["--", "sh", "-c", script]].concat();
        let mut command = machine.vgpu(words);
        command.env("CUDA_MPS_PIPE_DIRECTORY", &pipe);
        if let Some(already) = already {
            command.env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", already);
        }
        let ended = ended(&mut command);
        format!("{}{}", ended.out, ended.err).trim().to_owned()
    };
    // The command was not started.
    assert_eq!(told(&["--gpucores", "30"], None), "none");
    fs::write(pipe.join("control"), "").unwrap();

    assert_eq!(told(&["--gpucores", "30"], None), "30");
    assert_eq!(told(&["--gpucores", "30"], Some("50")), "30");
    assert_eq!(told(&["--gpucores", "30"], Some("20")), "20");
    assert_eq!(told(&["--gpumem", "1Gi"], None), "none");
    assert_eq!(
        told(&["--gpucores", "30", "--policy", "disable"], None),
        "none"
    );
    assert_eq!(told(&["--gpucores", "0=30,1=30"], None), "30");
    let refused = told(&["--gpucores", "0=30,1=50"], None);
    assert!(
        refused.contains("has one share for all GPUs of a program"),
        "{refused}"
    );
    let refused = told(&["--gpucores", "30", "--policy", "default"], None);
    assert!(refused.contains("cannot hold under MPS"), "{refused}");
    let refused = told(&["--floor", "30"], None);
    assert!(refused.contains("cannot be kept under MPS"), "{refused}");
    let help = machine.run(&["run", "--help"]);
    assert!(help.out.contains("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=N"));
}

#[test]
fn held_board_lock_delays_only_runs_with_a_floor() {
    let machine = Machine::new();
    let running = machine.start(&["--gpumem", "1Gi"], LOOP);
    let board = fs::File::open(&machine.board).unwrap();
    board.lock().unwrap();

    let free = machine.run(&["run", "--gpucores", "30", "--", "echo", "started"]);
    assert_eq!(free.out, "started\n", "{}", free.err);
    assert_eq!(
        machine.run(&["set", "sh-1", "--gpucores", "30"]).code,
        Some(0)
    );
    let waited = machine.run(&["run", "--floor", "30", "--", "echo", "started"]);
    assert_eq!((waited.code, waited.out.as_str()), (Some(1), ""));
    assert!(
        waited.err.contains("has held") && waited.err.contains("for 5 s; end it and try again"),
        "{}",
        waited.err
    );

    drop(board);
    let after = machine.run(&["run", "--floor", "30", "--", "echo", "started"]);
    assert_eq!(after.out, "started\n", "{}", after.err);
    running.stop();
}
