//! Invalid input: every flag with invalid values. The command is never started, the exit code is 2, and the error
//! names the value and what is accepted or what to do.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test that is wrong about its own machine has failed"
)]

use crate::common;

use common::Machine;

/// Values that are no sizes, no GPUs, no names, no numbers: tried on every flag.
const NONSENSE: [&str; 24] = [
    "",
    " ",
    "\t",
    "-",
    "--",
    "=",
    ",",
    "==",
    ",,",
    "0",
    "00",
    "-1",
    "-1Gi",
    "+1Gi",
    "1e3Gi",
    "0x10",
    "nan",
    "inf",
    "null",
    "ä",
    "1\u{661}Gi",
    "🦀",
    "$(reboot)",
    "../../etc/passwd",
];

fn check(machine: &Machine, flag: &str, values: &[&str], before: &[&str], says: &[&str]) {
    let marker = machine.path("started");
    let script = format!("touch {}", marker.display());
    let mut tried = 0;
    for value in values {
        // `--flag=value`, so that a value that looks like a flag is still a value.
        let flag = format!("{flag}={value}");
        let words = [before, &[flag.as_str(), "--", "sh", "-c", &script]].concat();
        let ended = machine.run(&words);
        assert_eq!(ended.code, Some(2), "{flag}: {ended:?}");
        assert_eq!(ended.out, "", "{flag}");
        let is_said = says.iter().any(|text| ended.err.contains(text));
        assert!(is_said, "{flag} says only: {}", ended.err);
        assert!(!marker.exists(), "{flag} started the command");
        tried += 1;
    }
    assert!(tried >= 40, "{flag}: {tried} values");
    assert_eq!(machine.names(), [""; 0]);
}

#[test]
fn a_memory_limit_that_was_not_understood_starts_nothing() {
    let own = [
        "4",
        "4096",
        "4g",
        "4gi",
        "4GB",
        "4GiB",
        "4 GB",
        "4Pi",
        "4Ei",
        "4B",
        "4i",
        "Gi",
        "4Gi4",
        "4.Gi",
        ".5Gi",
        "1..5Gi",
        "4,5Gi",
        "0Gi",
        "0.0Gi",
        "0.0000001Ki",
        "999999999999Ti",
        "4Gi,",
        ",4Gi",
        "4Gi,8Gi",
        "0=",
        "=4Gi",
        "0=4",
        "0=0Gi",
        "0=4Gi,",
        "0=4Gi,0=8Gi",
        "0=4Gi,1",
        "0:4Gi",
        "x=4Gi",
        "-1=4Gi",
        "0x0=4Gi",
        "GPU=4Gi",
        "GPU-=4Gi",
        "0=4Gi;1=4Gi",
        "0==4Gi",
        "4Gi 8Gi",
        "50%",
        "all",
        "max",
        "unlimited",
        "none",
        "17Gi",
        "16385Mi",
        "2=4Gi",
        "0=17Gi",
        "GPU-ffffffff=1Gi",
    ];
    let values: Vec<_> = NONSENSE.into_iter().chain(own).collect();

    check(
        &Machine::new(),
        "--gpumem",
        &values,
        &["run"],
        &[
            "accepted:",
            "give",
            "name it once",
            "leaves no memory",
            "there are:",
        ],
    );
}

#[test]
fn a_gpu_that_is_not_known_starts_nothing() {
    let own = [
        "2",
        "16",
        "4095",
        "4096",
        "99999999999999999999",
        "0,2",
        "0,0",
        "0,,1",
        "0,",
        ",0",
        "0;1",
        "0 1",
        "0-1",
        "gpu0",
        "GPU",
        "GPU-",
        "GPU-zzzz",
        "gpu-0",
        "MIG-",
        "MIG-1",
        "all",
        "none",
        "0.0",
        "1e0",
        "0=1",
    ];
    // GPU 0 and its many spellings are known.
    let values: Vec<_> = NONSENSE
        .into_iter()
        .filter(|v| *v != "0" && *v != "00")
        .chain(own)
        .collect();

    check(
        &Machine::new(),
        "--gpu",
        &values,
        &["run", "--gpumem", "1Gi"],
        &["accepted:", "there are:", "name it once"],
    );
}

#[test]
fn a_name_that_is_none_starts_nothing() {
    let long = "x".repeat(64);
    let own = [
        ".", "..", ".hidden", "a/b", "/a", "a b", "a\tb", "a\nb", "a:b", "a,b", "a;b", "a*", "a?",
        "~", "_a", ".a", "a\\b", "a'b", "a\"b", "a|b", "a&b", "a<b", "a>b", "a(b", "{a}", "[a]",
        "é", &long,
    ];
    // These are names, odd as they are.
    let fine = ["0", "00", "0x10", "1e3Gi", "nan", "inf", "null"];
    let values: Vec<_> = NONSENSE
        .into_iter()
        .filter(|v| !fine.contains(v))
        .chain(own)
        .collect();

    check(
        &Machine::new(),
        "--name",
        &values,
        &["run", "--gpumem", "1Gi"],
        &["accepted:"],
    );
}

/// Texts that are not a whole percentage.
const NO_PERCENT: [&str; 34] = [
    "101",
    "1000",
    "65536",
    "4294967326",
    "18446744073709551646",
    "99999999999999999999999",
    "30%",
    "30 %",
    "%",
    "0.5",
    "30.0",
    "30,5",
    "3e1",
    "thirty",
    "half",
    "all",
    "max",
    "none",
    "force",
    "30 40",
    "30;40",
    "30,40",
    "30-40",
    "1/3",
    "0=",
    "=30",
    "0=0",
    "0=101",
    "0=30,",
    "0=30,0=40",
    "0:30",
    "x=30",
    "0=30,1",
    "2=30",
];

#[test]
fn invalid_compute_share_starts_nothing() {
    let values: Vec<_> = NONSENSE.into_iter().chain(NO_PERCENT).collect();
    for flag in ["--gpucores", "--floor"] {
        let machine = Machine::new();
        for before in [&["run"][..], &["run", "--gpumem", "1Gi"]] {
            check(
                &machine,
                flag,
                &values,
                before,
                &["accepted:", "name it once", "there are:", "named twice"],
            );
        }
    }
}

#[test]
fn a_policy_that_is_none_starts_nothing() {
    let own = [
        "forced",
        "forc",
        "f",
        "hard",
        "soft",
        "strict",
        "always",
        "never",
        "on",
        "off",
        "enable",
        "enabled",
        "disabled",
        "none",
        "auto",
        "fair",
        "floors",
        "default,force",
        "force=1",
        "0=force",
        " force",
        "force ",
        "true",
        "1",
        "30",
    ];
    let values: Vec<_> = NONSENSE.into_iter().chain(own).collect();

    check(
        &Machine::new(),
        "--policy",
        &values,
        &["run", "--gpucores", "30"],
        &[
            "possible values: force, default, floor, disable",
            "a value is required",
        ],
    );
}

#[test]
fn a_priority_that_is_none_starts_nothing() {
    let own = [
        "1001",
        "65536",
        "2147483648",
        "4294967295",
        "4294967296",
        "18446744073709551616",
        "99999999999999999999999",
        "-2",
        "-1000",
        "1.0",
        "0.5",
        "1,2",
        "0=1",
        "1 2",
        "high",
        "low",
        "normal",
        "highest",
        "1st",
        "P1",
        "+1",
        "1%",
        "1_0",
        "١",
    ];
    // These are numbers, the highest priority.
    let values: Vec<_> = NONSENSE
        .into_iter()
        .filter(|v| *v != "0" && *v != "00")
        .chain(own)
        .collect();

    check(
        &Machine::new(),
        "--priority",
        &values,
        &["run", "--gpumem", "1Gi"],
        &["accepted: a whole number from 0 (the highest) to 1000"],
    );
}

#[test]
fn invalid_oversubscription_starts_nothing() {
    let own = [
        "4",
        "4096",
        "4g",
        "4GB",
        "4GiB",
        "4Pi",
        "Gi",
        "4Gi4",
        ".5Gi",
        "4,5Gi",
        "0Gi",
        "0.0Gi",
        "999999999999Ti",
        "8Ti",
        "9Ti",
        "4Gi,",
        ",4Gi",
        "4Gi,8Gi",
        "0=",
        "=4Gi",
        "0=4",
        "0=0Gi",
        "0=4Gi,0=8Gi",
        "0:4Gi",
        "x=4Gi",
        "2=4Gi",
        "50%",
        "all",
        "max",
        "unlimited",
        "none",
        "0=none",
        "NONE",
    ];
    let values: Vec<_> = NONSENSE.into_iter().chain(own).collect();

    check(
        &Machine::new(),
        "--oversubscribe",
        &values,
        &["run", "--gpumem", "1Gi"],
        &[
            "accepted:",
            "adds nothing",
            "give at most",
            "name it once",
            "there are:",
            "leave it out",
        ],
    );
}

#[test]
fn compute_flags_that_do_not_go_together_start_nothing() {
    let machine = Machine::new();
    let marker = machine.path("started");
    for (flags, says) in [
        ("--gpucores", "accepted:"),
        ("--policy", "a value is required"),
        ("--floor 20 --policy force", "has no meaning"),
        ("--floor 20 --policy default", "has no meaning"),
        ("--floor 20 --policy disable", "has no meaning"),
        (
            "--floor 20 --policy DISABLE --gpucores 50",
            "has no meaning",
        ),
        ("--policy floor", "add --floor"),
        ("--policy floor --gpucores 30", "add --floor"),
        ("--policy force", "add --gpucores"),
        ("--policy disable --gpumem 1Gi", "add --gpucores"),
        ("--policy default --priority 0", "add --gpucores"),
        (
            "--policy force --policy force --gpucores 30",
            "cannot be used multiple times",
        ),
        ("--priority 0 --priority 0", "cannot be used multiple times"),
        ("--gpucores 20 --floor 30", "above its cap of 20 %"),
        ("--gpucores 30,1=20 --floor 30", "accepted:"),
        (
            "--gpucores 30 --gpucores 1=20 --floor 30",
            "of GPU 1 is above its cap of 20 %",
        ),
        ("--gpucores 20 --gpucores 20", "give one of them"),
        ("--floor 20 --floor 30", "give one of them"),
        ("--gpucores 0=20 --gpucores 0=30", "name it once"),
        ("--gpumem 1Gi --gpucores 0=20", "GPU 1 has no compute limit"),
        (
            "--gpumem 0=1Gi --gpucores 1=20",
            "which --gpumem leaves out",
        ),
        (
            "--gpucores 0=20 --floor 1=20",
            "which --gpucores leaves out",
        ),
        ("--gpu 1 --floor 0=20", "which --gpu leaves out"),
        ("--oversubscribe 1Gi", "there is no --gpumem"),
        ("--oversubscribe 1Gi --gpucores 30", "there is no --gpumem"),
        ("--gpumem 17Gi --oversubscribe 1Gi", "more than GPU 0 has"),
    ] {
        let words: Vec<_> = flags.split(' ').collect();
        let script = format!("touch {}", marker.display());
        let words = [&["run"], words.as_slice(), &["--", "sh", "-c", &script]].concat();
        let ended = machine.run(&words);
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{flags}");
        assert!(ended.err.contains(says), "{flags}: {}", ended.err);
        assert!(!marker.exists(), "{flags} started the command");
    }
    assert_eq!(machine.names(), [""; 0]);
}

#[test]
fn set_understands_no_more_than_run_does() {
    let machine = Machine::new();
    for (flags, says) in [
        ("--gpucores 0", "is not a share"),
        ("--gpucores 101", "is more than the whole GPU"),
        ("--gpucores -5", "is not a percentage"),
        ("--floor 30%", "leave it out: 30"),
        (
            "--policy fast",
            "possible values: force, default, floor, disable",
        ),
        ("--priority -1", "accepted: a whole number from 0"),
        ("--priority 1001", "accepted: a whole number from 0"),
        ("--floor 20 --policy force", "has no meaning"),
        ("--oversubscribe 4", "has no unit"),
        ("--gpucores 20 --gpucores 30", "give one of them"),
    ] {
        let words: Vec<_> = flags.split(' ').collect();
        let ended = machine.run(&[&["set", "x"], words.as_slice()].concat());
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{flags}");
        assert!(ended.err.contains(says), "{flags}: {}", ended.err);
    }
}

#[test]
fn a_simulated_gpu_that_was_not_understood_starts_nothing() {
    let machine = Machine::new();
    let gpus = [
        "17",
        "1000",
        "1.5",
        "two",
        "1,2",
        "0=1",
        "2 2",
        "1Gi",
        "4294967296",
        "99999999999999999999",
        "²",
        "1_0",
        "١",
        "0b1",
        "0o1",
        "1-2",
        "all",
    ];
    let values: Vec<_> = NONSENSE.into_iter().chain(gpus).collect();
    check(
        &machine,
        "--gpus",
        &values,
        &["sim"],
        &["accepted: 1 to 16"],
    );

    let memory = [
        "16",
        "16GB",
        "16gi",
        "1Mi",
        "63Mi",
        "5Ti",
        "0Gi",
        "16Gi,",
        "16Gi,16Gi",
        "0=",
        "=16Gi",
        "0=16",
        "16=1Gi",
        "0=1Gi,0=2Gi",
        "GPU-1=1Gi",
        "2=16Gi",
        "0=16Gi,2=16Gi",
    ];
    let values: Vec<_> = NONSENSE.into_iter().chain(memory).collect();
    check(
        &machine,
        "--memory",
        &values,
        &["sim"],
        &["accepted:", "name it once"],
    );

    let driver = [
        "12",
        "12.",
        ".4",
        "12.4.1",
        "12.10",
        "10.2",
        "14.0",
        "12040",
        "12,4",
        "twelve",
        "v12.4",
        "12.4 ",
        " 12.4",
        "550.54.15",
        "12.-1",
        "-12.4",
        "1.2e1",
    ];
    let values: Vec<_> = NONSENSE.into_iter().chain(driver).collect();
    check(
        &machine,
        "--driver",
        &values,
        &["sim"],
        &["accepted: 11.0 to 13.9"],
    );

    let clock = [
        "Real",
        "REAL",
        "reel",
        "virtual ",
        " real",
        "fake",
        "1",
        "true",
        "false",
        "monotonic",
        "utc",
        "now",
        "r",
        "v",
        "realvirtual",
        "real,virtual",
    ];
    let values: Vec<_> = NONSENSE.into_iter().chain(clock).collect();
    check(
        &machine,
        "--clock",
        &values,
        &["sim"],
        &["possible values: real, virtual", "a value is required"],
    );
}

#[test]
fn an_interval_that_is_none_draws_nothing() {
    let machine = Machine::new();
    let own = [
        "1h", "1m", "1us", "99ms", "0s", "0.0", "-1s", "1s1", "1 s s", "3601", "1e3", "s", "ms",
        "1,5", "ten", "1s,2s", "infinity",
    ];
    let values: Vec<_> = NONSENSE.into_iter().chain(own).collect();
    assert!(values.len() >= 40);
    for value in values {
        let flag = format!("--interval={value}");
        let ended = machine.run(&["top", "--once", &flag]);
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{flag}");
        assert!(
            ended.err.contains("accepted: 100ms to 3600s"),
            "{flag}: {}",
            ended.err
        );
    }
}

#[test]
fn an_empty_path_is_no_path() {
    let machine = Machine::new();
    for words in [
        &["run", "--gpumem", "1Gi", "--library=", "--", "true"][..],
        &["run", "--gpumem", "1Gi", "--board=", "--", "true"],
        &["sim", "--board=", "--", "true"],
        &["sim", "--script=", "--", "true"],
        &["top", "--once", "--board="],
    ] {
        let ended = machine.run(words);
        assert_eq!(ended.code, Some(2), "{words:?} {ended:?}");
    }
    let mut command = machine.vgpu(["run", "--gpumem", "1Gi", "--", "true"]);
    let ended = common::ended(command.env("VGPU_BOARD", ""));
    assert_eq!(ended.code, Some(2), "{ended:?}");
}

#[test]
fn a_flag_that_does_not_exist_is_not_taken_for_the_command() {
    let machine = Machine::new();
    for words in [
        &["run", "--gpumen", "1Gi", "true"][..],
        &["run", "--gpumem", "1Gi", "--gpu-mem", "2Gi", "true"],
        &["run", "-x", "true"],
        &["run"],
        &["run", "--gpumem", "1Gi"],
        &["run", "--gpumem", "1Gi", "--"],
        &["sim"],
        &["sim", "--gpu", "2", "--", "true"],
        &["set"],
        &["set", "x", "y", "--gpumem", "1Gi"],
        &["top", "x"],
        &["oom", "x", "y"],
        &["completions", "tcsh"],
        &["walk"],
    ] {
        let ended = machine.run(words);
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{words:?}");
    }
}

#[test]
fn without_a_limit_the_first_line_says_how_to_give_one() {
    let machine = Machine::new();

    let mut command = machine.vgpu(["run", "--", "true"]);
    let ended = common::ended(
        command
            .env_remove("LD_LIBRARY_PATH")
            .env("VGPU_LIBRARY", "/none"),
    );

    assert_eq!(ended.code, Some(2));
    expect_test::expect!["vgpu run: no limit given; give one, such as --gpumem 4Gi (of every GPU), --gpumem 0=4Gi,1=8Gi or --gpucores 30\n"]
    .assert_eq(&ended.err);
}

#[test]
fn non_utf8_arguments_are_refused_except_for_the_command() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let machine = Machine::new();
    let noise = OsStr::from_bytes(b"\xff\xfe");

    for flag in [
        "--gpumem",
        "--gpu",
        "--name",
        "--gpucores",
        "--policy",
        "--floor",
        "--priority",
        "--oversubscribe",
    ] {
        let mut command = machine.vgpu(["run", "--gpumem", "1Gi", flag]);
        let ended = common::ended(command.arg(noise).args(["--", "true"]));
        assert_eq!(ended.code, Some(2), "{flag}: {ended:?}");
    }
    let mut command = machine.vgpu(["run", "--gpumem", "1Gi", "--", "printf", "%s"]);
    let output = command.arg(noise).output().unwrap();
    assert_eq!(output.stdout, b"\xff\xfe");
}
