//! The board shared by several users: which containers each may see, and which prepared boards are refused.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test that is wrong about its own machine has failed"
)]

use crate::common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::process::Command;

use common::{Machine, Running, VGPU, ended, is_root};

const LOOP: &str = "echo ready; while :; do sleep 0.02; done";
const NOBODY: u32 = 65534;

/// The same command as another user.
fn as_nobody(command: &Command) -> Command {
    let mut other = Command::new("setpriv");
    other.args([
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        "--",
    ]);
    other
        .arg(command.get_program())
        .args(command.get_args())
        .env_clear();
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            other.env(name, value);
        }
    }
    other.stdin(std::process::Stdio::null());
    other
}

/// A machine whose files another user can reach too. None if there is no other user.
fn shared() -> Option<Machine> {
    if !is_root() {
        println!("skipped: only root can be several users");
        return None;
    }
    let machine = Machine::new();
    fs::set_permissions(machine.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let probe = as_nobody(machine.command(VGPU).arg("version")).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        println!("skipped: another user cannot run {VGPU} (or there is no setpriv)");
        return None;
    }
    Some(machine)
}

/// The simulated board is each user's own, because this test is not about the driver's file.
fn nobody(machine: &Machine, words: &[&str]) -> Command {
    let mut command = machine.vgpu(words);
    let home = machine.path("nobody");
    if !home.exists() {
        fs::create_dir(&home).unwrap();
        chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    command.env("VGPU_SIM_BOARD", home.join("sim-board"));
    as_nobody(&command)
}

#[test]
fn users_on_a_shared_board_see_only_their_own_except_root() {
    let Some(machine) = shared() else { return };
    let mine = machine.start(&["--gpumem", "4Gi", "--name", "train"], LOOP);
    let theirs = Running::start(&mut nobody(
        &machine,
        &[
            "run", "--gpumem", "2Gi", "--name", "train", "--", "sh", "-c", LOOP,
        ],
    ));
    assert_eq!(
        fs::metadata(&machine.board).unwrap().permissions().mode() & 0o7777,
        0o1777
    );

    // Root sees both, and must name the user only for a container that is not its own.
    let top = machine.top();
    let owners: Vec<_> = top["containers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["owner_uid"].clone())
        .collect();
    assert_eq!(owners, [0, NOBODY]);
    assert_eq!(
        machine.run(&["set", "train", "--gpumem", "3Gi"]).code,
        Some(0)
    );
    assert_eq!(
        machine.run(&["set", "65534/train", "--gpumem", "1Gi"]).code,
        Some(0)
    );
    let limits = |top: &serde_json::Value, index: usize| {
        top["containers"][index]["devices"][0]["limit_bytes"].clone()
    };
    let top = machine.top();
    assert_eq!(
        (limits(&top, 0), limits(&top, 1)),
        ((3_u64 << 30).into(), (1_u64 << 30).into())
    );

    // The other user sees its own containers, and that there are more.
    let seen = ended(&mut nobody(&machine, &["top", "--once"]));
    assert!(seen.out.contains("1 container,"), "{}", seen.out);
    assert!(
        seen.out
            .contains("the containers of 1 other user are not shown"),
        "{}",
        seen.out
    );
    let refused = ended(&mut nobody(
        &machine,
        &["set", "0/train", "--gpumem", "1Gi"],
    ));
    assert_eq!(refused.code, Some(1));
    assert!(
        refused.err.contains("which only root can read"),
        "{}",
        refused.err
    );
    assert!(ended(&mut nobody(&machine, &["set", "train", "--gpumem", "2Gi"])).code == Some(0));

    mine.stop();
    theirs.stop();
    assert_eq!(machine.names(), [""; 0]);
    let left: Vec<_> = fs::read_dir(machine.board.join("65534"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with('.'))
        .collect();
    assert_eq!(left, [""; 0], "only locks");
}

#[test]
fn a_board_that_is_a_link_or_open_to_others_is_refused() {
    let machine = Machine::new();
    let refused = |says: &str| {
        let ended = machine.run(&["run", "--gpumem", "1Gi", "--", "echo", "started"]);
        assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""), "{ended:?}");
        assert!(ended.err.contains(says), "{}", ended.err);
    };

    let elsewhere = machine.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, &machine.board).unwrap();
    refused("is not a directory, or is a link");
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    fs::remove_file(&machine.board).unwrap();

    fs::write(&machine.board, "").unwrap();
    refused("is not a directory");
    fs::remove_file(&machine.board).unwrap();

    fs::create_dir(&machine.board).unwrap();
    fs::set_permissions(&machine.board, PermissionsExt::from_mode(0o777)).unwrap();
    refused("is not sticky");
    fs::set_permissions(&machine.board, PermissionsExt::from_mode(0o1777)).unwrap();

    symlink(&elsewhere, machine.containers()).unwrap();
    refused("is a link");
    fs::remove_file(machine.containers()).unwrap();

    fs::create_dir(machine.containers()).unwrap();
    fs::set_permissions(machine.containers(), PermissionsExt::from_mode(0o777)).unwrap();
    refused("others may write to it");
    fs::set_permissions(machine.containers(), PermissionsExt::from_mode(0o700)).unwrap();

    symlink(&elsewhere, machine.containers().join("train")).unwrap();
    let taken = machine.run(&[
        "run", "--gpumem", "1Gi", "--name", "train", "--", "echo", "started",
    ]);
    assert_eq!((taken.code, taken.out.as_str()), (Some(1), ""));
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    let missing = machine.path("no/such/board");
    let ended = machine.run(&[
        "run",
        "--gpumem",
        "1Gi",
        "--board",
        missing.to_str().unwrap(),
        "--",
        "true",
    ]);
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.err.contains("give another with --board"),
        "{}",
        ended.err
    );
}

#[test]
fn a_place_that_a_stranger_took_is_refused() {
    let Some(machine) = shared() else { return };
    // The stranger's board.
    fs::create_dir(&machine.board).unwrap();
    chown(&machine.board, Some(NOBODY), Some(NOBODY)).unwrap();
    let ended = machine.run(&["run", "--gpumem", "1Gi", "--", "echo", "started"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""));
    assert!(ended.err.contains("belongs to uid 65534"), "{}", ended.err);

    // Our place on a good board.
    chown(&machine.board, Some(0), Some(0)).unwrap();
    fs::set_permissions(&machine.board, PermissionsExt::from_mode(0o1777)).unwrap();
    fs::create_dir(machine.containers()).unwrap();
    chown(machine.containers(), Some(NOBODY), Some(NOBODY)).unwrap();
    let ended = machine.run(&["run", "--gpumem", "1Gi", "--", "echo", "started"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""));
    assert!(
        ended.err.contains("another user took your place"),
        "{}",
        ended.err
    );

    // A container in another user's name is reported, and not trusted.
    let forged = machine.board.join("4242/forged");
    fs::create_dir_all(&forged).unwrap();
    fs::write(forged.join("limits"), "").unwrap();
    for path in [&forged, &forged.join("limits"), &machine.board.join("4242")] {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let top = machine.top();
    assert_eq!(top["containers"].as_array().unwrap().len(), 0);
    assert_eq!(top["broken"].as_array().unwrap().len(), 1);
}

#[test]
fn without_a_board_of_the_machine_each_user_finds_one() {
    let Some(machine) = shared() else { return };
    // No --board, no VGPU_BOARD: /run/vgpu, which root has made by now, serves all.
    let run = |command: &mut Command| {
        command.env_remove("VGPU_BOARD");
        command.env("VGPU_LIBRARY", common::library());
    };
    let script = "dirname $VGPU_LIMITS";
    let mut mine = machine.vgpu([
        "run",
        "--gpumem",
        "1Gi",
        "--name",
        "vgpu-users-test",
        "--",
        "sh",
        "-c",
        script,
    ]);
    run(&mut mine);
    let mine = ended(&mut mine);
    let mut theirs = nobody(
        &machine,
        &[
            "run",
            "--gpumem",
            "1Gi",
            "--name",
            "vgpu-users-test",
            "--",
            "sh",
            "-c",
            script,
        ],
    );
    run(&mut theirs);
    let theirs = ended(&mut theirs);

    assert_eq!(mine.out, "/run/vgpu/0/vgpu-users-test\n", "{}", mine.err);
    assert_eq!(
        theirs.out, "/run/vgpu/65534/vgpu-users-test\n",
        "{}",
        theirs.err
    );
}

#[test]
fn a_full_disk_starts_nothing_and_leaves_nothing() {
    let machine = Machine::new();
    let small = machine.path("small");
    fs::create_dir(&small).unwrap();
    // A mount that only this command sees, and that goes with it.
    let script = format!(
        "mount -t tmpfs -o size=300k,mode=1777 none {small} || exit 99
         {VGPU} run --gpumem 1Gi --board {small} -- echo started; echo code $?
         find {small} -type f",
        small = small.display()
    );
    let ended = ended(
        machine
            .command("unshare")
            .args(["--mount", "sh", "-c", &script]),
    );
    if matches!(ended.code, Some(1 | 99 | 127)) && ended.out.is_empty() {
        println!("skipped: no mounts here: {}", ended.err);
        return;
    }

    let lock = small.join(nix::unistd::geteuid().to_string()).join(".lock");
    assert_eq!(
        ended.out,
        format!("code 1\n{}\n", lock.display()),
        "{}",
        ended.err
    );
    assert!(
        ended.err.contains("no space left on the disk"),
        "{}",
        ended.err
    );
}

#[test]
fn floors_of_other_users_count_as_long_as_their_runner_lives() {
    let Some(machine) = shared() else { return };
    // Both use the same simulated GPUs; the first command creates them.
    machine.top();
    let nobody = |words: &[&str]| {
        let mut command = machine.vgpu(words);
        command.env("VGPU_SIM_BOARD", machine.path("sim-board"));
        as_nobody(&command)
    };
    let script = format!("echo $$; {LOOP}");
    let mut mine = machine.start(&["--floor", "0=60", "--name", "mine"], &script);
    let command = mine.said().lines().next().unwrap().parse().unwrap();
    let theirs = Running::start(&mut nobody(&[
        "run", "--floor", "0=30", "--name", "theirs", "--", "sh", "-c", LOOP,
    ]));

    // They cannot read my containers, but the error still names the holders; root sees both.
    let refused = ended(&mut nobody(&["run", "--floor", "0=11", "--", "true"]));
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(
        refused
            .err
            .contains("of its 100 %, 0/mine has 60 %, theirs has 30 %. At most --floor 10 fits"),
        "{}",
        refused.err
    );
    let refused = machine.run(&["run", "--floor", "0=11", "--", "true"]);
    assert!(
        refused.err.contains("mine has 60 %, 65534/theirs has 30 %"),
        "{}",
        refused.err
    );
    // A floor that is set later counts too, and root may set it.
    let set = machine.run(&["set", "65534/theirs", "--floor", "0=40"]);
    assert_eq!(set.code, Some(0), "{}", set.err);
    assert_eq!(
        machine.run(&["set", "mine", "--floor", "0=61"]).code,
        Some(2)
    );
    let refused = ended(&mut nobody(&["set", "theirs", "--floor", "0=41"]));
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert_eq!(
        machine.run(&["set", "mine", "--floor", "0=50"]).code,
        Some(0)
    );
    let fits = |floor: &str| ended(&mut nobody(&["run", "--floor", floor, "--", "true"])).code;
    assert_eq!((fits("0=11"), fits("0=10")), (Some(2), Some(0)));

    // A killed runner keeps no promise against others, whatever files it left.
    mine.signal(nix::sys::signal::Signal::SIGKILL);
    assert!(!mine.child.wait().unwrap().success());
    let fitted = (fits("0=61"), fits("0=60"));
    let command = nix::unistd::Pid::from_raw(command);
    nix::sys::signal::kill(command, nix::sys::signal::Signal::SIGKILL).unwrap();
    assert_eq!(fitted, (Some(2), Some(0)));
    theirs.stop();
}

#[test]
fn floors_file_of_another_owner_is_ignored() {
    let Some(machine) = shared() else { return };
    machine.top();
    let words = ["run", "--floor", "0=60", "--", "echo", "started"];
    let mut command = machine.vgpu(words);
    command.env("VGPU_SIM_BOARD", machine.path("sim-board"));
    let mut nobody = as_nobody(&command);
    // A list that another user wrote in the place of root, whose containers cannot be read.
    let mine = machine.start(&["--gpumem", "1Gi"], LOOP);
    let uuid = machine.top()["gpus"][0]["uuid"]
        .as_str()
        .unwrap()
        .to_owned();
    let list = format!(
        "{{\"version\":1,\"promises\":[{{\"name\":\"x\",\"gpu_uuid\":\"{uuid}\",\"floor_percent\":100,\"runner_pid\":{}}}]}}",
        std::process::id()
    );
    let path = machine.board.join(".floors-0");
    fs::write(&path, &list).unwrap();
    chown(&path, Some(1), Some(1)).unwrap();

    assert_eq!(ended(&mut nobody).out, "started\n");
    // As root's own it counts; broken, or a link, or a pipe, it does not.
    chown(&path, Some(0), Some(0)).unwrap();
    assert_eq!(ended(&mut nobody).code, Some(2));
    fs::write(&path, "{\"version\":1,\"promises\":[{\"name\":7}]}").unwrap();
    assert_eq!(ended(&mut nobody).out, "started\n");
    fs::remove_file(&path).unwrap();
    symlink("/dev/zero", &path).unwrap();
    assert_eq!(ended(&mut nobody).out, "started\n");
    fs::remove_file(&path).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(ended(&mut nobody).out, "started\n");
    mine.stop();
}
