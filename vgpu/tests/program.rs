//! The whole way: a CUDA program under `vgpu run` on the simulated driver, watched and changed by
//! `vgpu top`, `set` and `oom` while it runs.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test that is wrong about its own machine has failed"
)]

use crate::common;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use common::{Machine, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The driver's word for a refusal: `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) const OUT_OF_MEMORY: &str = "2";

/// The compiled program; none if there is no C compiler.
pub(crate) fn compiled(machine: &Machine) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/client.c");
    let program = machine.path("client");
    let compiler = Command::new("cc")
        .arg("-o")
        .arg(&program)
        .arg(source)
        .args(["-ldl", "-lpthread"])
        .status();
    match compiler {
        Ok(status) => {
            assert!(status.success());
            Some(program)
        }
        Err(error) => {
            println!("skipped: no C compiler ({error})");
            None
        }
    }
}

/// The program while it runs.
pub(crate) struct Client {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Client {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().unwrap());
        let mut client = Self { child, to, from };
        assert_eq!(client.answer(), "ready");
        client
    }

    fn run(machine: &Machine, program: &Path, flags: &[&str]) -> Self {
        let words = [&["run"], flags, &["--", program.to_str().unwrap()]].concat();
        Self::start(&mut machine.vgpu(words))
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    pub(crate) fn ask(&mut self, command: &str) -> String {
        writeln!(self.to.as_mut().unwrap(), "{command}").unwrap();
        self.answer()
    }

    /// The end of its input ends it.
    pub(crate) fn end(mut self) {
        drop(self.to.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn used_mib(top: &serde_json::Value, container: usize) -> u64 {
    top["containers"][container]["devices"][0]["used_bytes"]
        .as_u64()
        .unwrap()
        >> 20
}

#[test]
fn program_refused_at_its_limit_continues_when_set_raises_it() {
    let machine = Machine::new();
    let Some(program) = compiled(&machine) else {
        return;
    };
    let mut client = Client::run(&machine, &program, &["--gpumem", "4Gi", "--name", "train"]);

    assert_eq!(client.ask("total"), "4096");
    assert_eq!(client.ask("alloc 3072"), "ok");
    assert_eq!(client.ask("alloc 1024"), OUT_OF_MEMORY);

    let oom = machine.run(&["oom", "train"]);
    assert!(oom.out.contains("cuMemAlloc_v2"), "{}", oom.out);
    let advice = oom
        .out
        .lines()
        .find_map(|line| line.split_once(": vgpu "))
        .unwrap()
        .1;
    let words: Vec<_> = advice.split(' ').collect();
    let set = machine.run(&words);
    assert_eq!(set.code, Some(0), "{advice}: {}", set.err);
    assert_eq!(client.ask("alloc 1024"), "ok");
    let top = machine.top();
    assert_eq!(top["containers"][0]["ooms"], 1);
    assert!(used_mib(&top, 0) >= 4096);
    // NVML and the region agree, the program's context included.
    assert_eq!(top["containers"][0]["unaccounted_bytes"], 0);
    assert_eq!(
        top["gpus"][0]["used_bytes"].as_u64().unwrap() >> 20,
        used_mib(&top, 0)
    );

    assert_eq!(
        machine.run(&["set", "train", "--gpumem", "2Gi"]).code,
        Some(0)
    );
    assert_eq!(machine.top()["containers"][0]["state"], "pending-shrink");
    assert_eq!(client.ask("alloc 1"), OUT_OF_MEMORY);
    assert_eq!(client.ask("free"), "ok");
    assert_eq!(client.ask("free"), "ok");
    assert_eq!(client.ask("alloc 1"), "ok");
    client.end();
    assert_eq!(machine.top()["gpus"][0]["used_bytes"], 0);
}

#[test]
fn killed_program_holds_nothing_and_its_neighbour_continues() {
    let machine = Machine::new();
    let Some(program) = compiled(&machine) else {
        return;
    };
    let program = program.to_str().unwrap();
    // Two processes of one container, one of them in the background.
    let script = format!("mkfifo in; {program} <in >out & echo $! >pid; exec {program}");
    let mut command = machine.vgpu(["run", "--gpumem", "4Gi", "--", "sh", "-c", &script]);
    let mut client = Client::start(command.current_dir(machine.dir.path()));
    // Opened for both, so that it does not wait for a reader.
    let mut other = std::fs::File::options()
        .read(true)
        .write(true)
        .open(machine.path("in"))
        .unwrap();
    let said =
        |text: &str| std::fs::read_to_string(machine.path("out")).unwrap_or_default() == text;
    until("the other one is ready", || said("ready\n"));
    other.write_all(b"alloc 3000\n").unwrap();
    until("the other one has allocated", || said("ready\nok\n"));
    assert_eq!(client.ask("alloc 1000"), OUT_OF_MEMORY);
    assert_eq!(
        machine.top()["containers"][0]["processes"]
            .as_array()
            .unwrap()
            .len(),
        2
    );

    let pid = std::fs::read_to_string(machine.path("pid")).unwrap();
    kill(Pid::from_raw(pid.trim().parse().unwrap()), Signal::SIGKILL).unwrap();
    until("its memory is free", || client.ask("alloc 1000") == "ok");

    let top = machine.top();
    assert_eq!(
        top["containers"][0]["processes"].as_array().unwrap().len(),
        1
    );
    assert_eq!(top["containers"][0]["unaccounted_bytes"], 0);
    client.end();
}

#[test]
fn the_runner_publishes_what_contexts_really_take() {
    use vgpu_abi::targets::TargetsFile;
    let machine = Machine::new();
    let Some(program) = compiled(&machine) else {
        return;
    };
    let words = [
        "run",
        "--gpumem",
        "4Gi",
        "--name",
        "c",
        "--",
        program.to_str().unwrap(),
    ];
    let mut command = machine.vgpu(words);
    let mut client = Client::start(command.env("VGPU_SIM_CONTEXT", "437Mi"));
    assert_eq!(client.ask("alloc 100"), "ok");

    let targets = TargetsFile::open(&machine.containers().join("c/targets")).unwrap();
    until("the context was measured", || {
        let published = targets.read().unwrap();
        published
            .iter()
            .any(|(_, target)| target.overhead_bytes[0] == 437 << 20 && target.host_pid != 0)
    });
    client.end();
}

#[test]
fn a_nested_run_has_the_smaller_limit() {
    let machine = Machine::new();
    let Some(program) = compiled(&machine) else {
        return;
    };
    let words = [
        "run",
        "--gpumem",
        "4Gi",
        "--",
        common::VGPU,
        "run",
        "--gpumem",
        "1Gi",
        "--",
        program.to_str().unwrap(),
    ];
    let mut client = Client::start(&mut machine.vgpu(words));

    assert_eq!(client.ask("total"), "1024");
    assert_eq!(client.ask("alloc 500"), "ok");
    assert_eq!(client.ask("alloc 500"), OUT_OF_MEMORY);
    client.end();
}

#[test]
fn program_sees_only_the_chosen_gpus_each_with_its_limit() {
    let machine = Machine::new();
    let Some(program) = compiled(&machine) else {
        return;
    };
    let mut first = Client::run(&machine, &program, &["--gpumem", "1=3Gi", "--name", "a"]);
    let mut second = Client::run(
        &machine,
        &program,
        &["--gpumem", "2Gi", "--gpu", "1", "--name", "b"],
    );

    assert_eq!(
        (first.ask("total"), second.ask("total")),
        ("3072".into(), "2048".into())
    );
    assert_eq!(first.ask("alloc 2048"), "ok");
    assert_eq!(second.ask("alloc 2048"), OUT_OF_MEMORY);
    let top = machine.top();
    assert_eq!(top["gpus"][0]["used_bytes"], 0);
    assert_eq!(top["containers"][0]["devices"][0]["gpu"], 1);
    first.end();
    second.end();
}

/// The first device of a container, as `vgpu top --json` shows it.
fn device(machine: &Machine, name: &str) -> serde_json::Value {
    let top = machine.top();
    let containers = top["containers"].as_array().unwrap();
    let container = containers.iter().find(|c| c["name"] == name).unwrap();
    container["devices"][0].clone()
}

#[test]
fn top_shows_what_a_program_launched_and_how_long_it_waited() {
    let machine = Machine::new();
    let Some(program) = compiled(&machine) else {
        return;
    };
    let flags = ["--gpucores", "10", "--gpu", "0", "--name", "train"];
    let mut client = Client::run(&machine, &program, &flags);

    // 40 ms of work at a tenth of the GPU: most of the time it waits.
    assert_eq!(client.ask("launch 40"), "ok");

    until("the arbiter has looked", || {
        device(&machine, "train")["granted_percent"] == 10.0
    });
    let seen = device(&machine, "train");
    assert_eq!(seen["cap_percent"], 10);
    assert_eq!(seen["launches"], 40);
    assert!(seen["throttled_ns"].as_u64().unwrap() > 0, "{seen}");
    assert!(seen["waits"].as_u64().unwrap() > 0, "{seen}");
    assert!(seen["waited_ns"]["cap"].as_u64().unwrap() > 0, "{seen}");
    assert_eq!(seen["waited_ns"]["grant"], 0, "{seen}");
    let lengths = seen["waits_by_length"].as_array().unwrap();
    let waits = lengths
        .iter()
        .map(|length| length["waits"].as_u64().unwrap());
    assert_eq!(
        waits.sum::<u64>(),
        seen["waits"].as_u64().unwrap(),
        "{seen}"
    );
    assert_eq!(lengths[0]["at_most_ns"], 100_000);
    assert!(lengths[6]["at_most_ns"].is_null());
    assert!(seen["busy_ns"].as_u64().unwrap() > 0, "{seen}");
    assert!(seen["last_launch_ago_ns"].is_number(), "{seen}");
    assert_eq!(client.ask("busy"), "ok");
    until("its share was seen", || {
        device(&machine, "train")["used_percent"]
            .as_f64()
            .is_some_and(|used| used > 1.0)
    });
    let top = machine.top();
    let of_process = &top["containers"][0]["processes"][0]["devices"][0];
    assert!(of_process["waits"].is_number(), "{of_process}");
    assert_eq!(client.ask("idle"), "ok");
    client.end();
}

#[test]
fn set_changes_cap_and_priority_of_a_running_program() {
    let machine = Machine::new();
    let Some(program) = compiled(&machine) else {
        return;
    };
    let mut train = Client::run(
        &machine,
        &program,
        &["--gpucores", "20", "--gpu", "0", "--name", "train"],
    );
    let mut serve = Client::run(
        &machine,
        &program,
        &["--gpumem", "0=1Gi", "--name", "serve"],
    );
    for client in [&mut train, &mut serve] {
        assert_eq!(client.ask("launch 1"), "ok");
        assert_eq!(client.ask("busy"), "ok");
    }
    let granted = |name: &str, wanted: f64| {
        until(&format!("{name} has {wanted} %"), || {
            device(&machine, name)["granted_percent"] == wanted
        });
    };
    granted("train", 20.0);

    assert_eq!(
        machine.run(&["set", "train", "--gpucores", "40"]).code,
        Some(0)
    );
    granted("train", 40.0);

    // The lower priority waits, and goes on when the other one is done.
    assert_eq!(
        machine.run(&["set", "train", "--priority", "0"]).code,
        Some(0)
    );
    granted("serve", 0.0);
    until("serve waits", || {
        device(&machine, "serve")["waiting"] == true
    });
    // A machine that gives `train` no processor for some milliseconds lets `serve` in meanwhile.
    until("the table says that serve waits", || {
        let table = machine.run(&["top", "--once"]);
        let line = table.out.lines().find(|line| line.starts_with("serve"));
        line.unwrap().ends_with("waits")
    });
    assert_eq!(train.ask("idle"), "ok");
    granted("serve", 100.0);
    assert_eq!(serve.ask("idle"), "ok");
    train.end();
    serve.end();
}

#[test]
fn pageable_program_sees_the_sum_and_top_shows_its_host_memory() {
    let machine = Machine::new();
    let Some(program) = compiled(&machine) else {
        return;
    };
    let flags = "--gpumem 0=1Gi --oversubscribe 1Gi --name paged";
    let flags: Vec<_> = flags.split(' ').collect();
    let mut client = Client::run(&machine, &program, &flags);

    assert_eq!(client.ask("total"), "2048");
    assert_eq!(client.ask("alloc 600"), "ok");
    assert_eq!(device(&machine, "paged")["oversubscribed_bytes"], 0);
    assert_eq!(client.ask("alloc 600"), "ok");
    assert_eq!(client.ask("alloc 900"), OUT_OF_MEMORY);

    let paged = device(&machine, "paged");
    assert_eq!(paged["limit_bytes"], 2_u64 << 30);
    assert_eq!(paged["resident_bytes"], 1_u64 << 30);
    assert_eq!(paged["oversubscribed_bytes"], 600_u64 << 20);
    let table = machine.run(&["top", "--once"]);
    assert!(table.out.contains("600Mi on host"), "{}", table.out);
    let set = machine.run(&["set", "paged", "--oversubscribe", "2Gi"]);
    assert_eq!(set.code, Some(0), "{}", set.err);
    assert_eq!(client.ask("alloc 900"), "ok");
    client.end();
}

#[test]
fn a_nested_run_is_granted_the_smaller_share() {
    let machine = Machine::new();
    let Some(program) = compiled(&machine) else {
        return;
    };
    let nested = [
        common::VGPU,
        "run",
        "--gpucores",
        "20",
        "--name",
        "inner",
        "--",
        program.to_str().unwrap(),
    ];
    let outer = ["run", "--gpucores", "30", "--gpu", "0", "--"];
    let mut client = Client::start(&mut machine.vgpu(outer.iter().chain(&nested)));
    assert_eq!(client.ask("launch 1"), "ok");
    assert_eq!(client.ask("busy"), "ok");

    until("the inner one has its share", || {
        device(&machine, "inner")["granted_percent"] == 20.0
    });
    assert_eq!(client.ask("idle"), "ok");
    client.end();
}
