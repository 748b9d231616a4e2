use supervisor::gpu::Gpu;
use vgpu_abi::limits::{DeviceLimit, DeviceUuid, Limits, Policy, Unlisted};
use vgpu_abi::size::Size;

use super::*;
use crate::args::{Args, Command};
use crate::failure::Misuse;
use crate::values::policy_word;
use clap::Parser;
use expect_test::{Expect, expect};

fn gpu(index: u32, uuid: &str, gib: u64) -> Gpu {
    Gpu {
        index,
        uuid: String::from(uuid),
        name: String::from("Test GPU"),
        memory_bytes: gib << 30,
        used_bytes: 0,
        utilization_percent: None,
        memory_utilization_percent: None,
        instances: Vec::new(),
    }
}

fn outer_of(devices: &[(&str, u64)], unlisted: Unlisted) -> Outer {
    let devices = devices
        .iter()
        .map(|(uuid, gib)| DeviceLimit {
            uuid: DeviceUuid::new(uuid).unwrap(),
            memory_bytes: gib << 30,
            physical_bytes: if uuid.is_empty() { 0 } else { 16 << 30 },
            ..DeviceLimit::default()
        })
        .collect();
    let limits = Limits {
        unlisted,
        devices,
        ..Limits::default()
    };
    Outer {
        source: String::from("outer"),
        file: None,
        limits,
    }
}

/// These flags, as they are typed, on GPUs 0 (16 GiB) and 1 (40 GiB).
fn tried(line: &str, outer: Option<&Outer>) -> Result<Shares, Misuse> {
    let gpus = [gpu(0, "GPU-aa00", 16), gpu(1, "GPU-ab11", 40)];
    let words = ["vgpu", "run"].into_iter().chain(line.split_whitespace());
    let args = match Args::try_parse_from(words.chain(["--", "true"])) {
        Ok(args) => args,
        Err(error) => panic!("{line}: {error}"),
    };
    let Command::Run(args) = args.command else {
        panic!("{line}")
    };
    let wish = Wish::of(&args.gpumem, &args.compute)?;
    share(&gpus, &args.gpu, &wish, outer)
}

fn check_flags(line: &str, outer: Option<&Outer>, expected: Expect) {
    let one = |s: &Share| {
        let memory = match (s.bytes, s.resident_bytes) {
            (0, _) => String::from("all"),
            (bytes, 0) => Size(bytes).to_string(),
            (bytes, resident) => format!("{}({})", Size(bytes), Size(resident)),
        };
        format!(
            "{} {memory}/{} {}%/{}%",
            s.index,
            Size(s.physical_bytes),
            s.core_percent,
            s.floor_percent
        )
    };
    let found = match tried(line, outer) {
        Ok(shares) => format!(
            "{}; {} {}{}",
            shares.gpus.iter().map(one).collect::<Vec<_>>().join(", "),
            policy_word(shares.policy),
            shares.priority,
            if shares.is_choice { "; chosen" } else { "" }
        ),
        Err(misuse) => misuse.to_string(),
    };
    expected.assert_eq(&found);
}

/// `--gpu`, `--gpumem` … alone.
fn check(gpu_list: &str, memory: &[&str], outer: Option<&Outer>, expected: Expect) {
    let mut line = String::new();
    if !gpu_list.is_empty() {
        line.push_str(&format!("--gpu {gpu_list} "));
    }
    for memory in memory {
        line.push_str(&format!("--gpumem {memory} "));
    }
    let found = match tried(&line, outer) {
        Ok(shares) => shares
            .gpus
            .iter()
            .map(|s| format!("{} {}/{}", s.index, Size(s.bytes), Size(s.physical_bytes)))
            .collect::<Vec<_>>()
            .join(", "),
        Err(misuse) => misuse.to_string(),
    };
    expected.assert_eq(&found);
}

#[test]
fn one_size_counts_for_every_gpu_that_was_chosen() {
    check("", &["4Gi"], None, expect!["0 4Gi/16Gi, 1 4Gi/40Gi"]);
    check("1", &["4Gi"], None, expect!["1 4Gi/40Gi"]);
    check("1,0", &["4Gi"], None, expect!["1 4Gi/40Gi, 0 4Gi/16Gi"]);
    check("GPU-ab", &["4Gi"], None, expect!["1 4Gi/40Gi"]);
    check(
        "",
        &["4Gi", "1=8Gi"],
        None,
        expect!["0 4Gi/16Gi, 1 8Gi/40Gi"],
    );
}

#[test]
fn a_list_by_gpu_chooses_those_gpus() {
    check("", &["1=8Gi"], None, expect!["1 8Gi/40Gi"]);
    check(
        "",
        &["0=4Gi,1=8Gi"],
        None,
        expect!["0 4Gi/16Gi, 1 8Gi/40Gi"],
    );
    check(
        "",
        &["0=4Gi", "1=8Gi"],
        None,
        expect!["0 4Gi/16Gi, 1 8Gi/40Gi"],
    );
    check(
        "0,1",
        &["1=8Gi"],
        None,
        expect!["GPU 0 has no limit; add 0=SIZE to --gpumem, or remove it from --gpu"],
    );
    check(
        "0",
        &["0=4Gi,1=8Gi"],
        None,
        expect![
            "--gpumem names GPU 1, which --gpu leaves out; add 1 to --gpu, or remove it from --gpumem"
        ],
    );
}

#[test]
fn refused_amount_names_the_accepted_ones() {
    check(
        "",
        &["17Gi"],
        None,
        expect!["17Gi is more than GPU 0 has: 16Gi (Test GPU); give at most that"],
    );
    check(
        "7",
        &["4Gi"],
        None,
        expect!["there is no GPU 7; there are: 0 (GPU-aa00, 16Gi), 1 (GPU-ab11, 40Gi)"],
    );
    check(
        "GPU-a",
        &["4Gi"],
        None,
        expect![
            "GPU-a is the beginning of several GPUs' UUIDs: 0 (GPU-aa00, 16Gi), 1 (GPU-ab11, 40Gi)"
        ],
    );
    check(
        "GPU-zz",
        &["4Gi"],
        None,
        expect!["there is no GPU GPU-zz; there are: 0 (GPU-aa00, 16Gi), 1 (GPU-ab11, 40Gi)"],
    );
    check(
        "0,GPU-aa00",
        &["4Gi"],
        None,
        expect!["--gpu names GPU 0 twice; name it once"],
    );
    check(
        "",
        &["0=1Gi,GPU-aa=2Gi"],
        None,
        expect!["--gpumem names GPU 0 twice; name it once"],
    );
    check(
        "",
        &[],
        None,
        expect![
            "no limit given; give one, such as --gpumem 4Gi (of every GPU), --gpumem 0=4Gi,1=8Gi or --gpucores 30"
        ],
    );
    check(
        "0",
        &[],
        None,
        expect![
            "no limit given; give one, such as --gpumem 4Gi (of every GPU), --gpumem 0=4Gi,1=8Gi or --gpucores 30"
        ],
    );
    check(
        "",
        &["4Gi", "8Gi"],
        None,
        expect!["--gpumem gives every GPU 4Gi and 8Gi; give one of them, or GPU=SIZE"],
    );
    check(
        "",
        &["0=4Gi", "0=8Gi"],
        None,
        expect!["--gpumem names GPU 0 twice; name it once"],
    );
}

#[test]
fn inside_limits_they_can_only_be_lowered() {
    let outer = outer_of(&[("GPU-aa00", 4)], Unlisted::Deny);
    check("", &["2Gi"], Some(&outer), expect!["0 2Gi/16Gi"]);
    check("", &["4Gi"], Some(&outer), expect!["0 4Gi/16Gi"]);
    check(
        "",
        &["5Gi"],
        Some(&outer),
        expect![
            "5Gi of GPU 0 is more than the outer limit of 4Gi (outer); inside a container limits can only be lowered"
        ],
    );
    check(
        "1",
        &["2Gi"],
        Some(&outer),
        expect![
            "GPU 1 (GPU-ab11) is not among the GPUs that the outer limits allow (outer); choose others with --gpu"
        ],
    );

    let by_index = outer_of(&[("", 4), ("", 0)], Unlisted::Allow);
    check(
        "",
        &["8Gi"],
        Some(&by_index),
        expect![
            "8Gi of GPU 0 is more than the outer limit of 4Gi (outer); inside a container limits can only be lowered"
        ],
    );
    check("1", &["8Gi"], Some(&by_index), expect!["1 8Gi/40Gi"]);
}

#[test]
fn a_compute_limit_alone_leaves_memory_free_and_is_forced() {
    check_flags(
        "--gpucores 30",
        None,
        expect!["0 all/16Gi 30%/0%, 1 all/40Gi 30%/0%; force 1"],
    );
    check_flags(
        "--gpucores 0=30,1=50",
        None,
        expect!["0 all/16Gi 30%/0%, 1 all/40Gi 50%/0%; force 1; chosen"],
    );
    check_flags(
        "--gpucores 0=30",
        None,
        expect!["0 all/16Gi 30%/0%; force 1; chosen"],
    );
    check_flags(
        "--gpucores 30 --policy default",
        None,
        expect!["0 all/16Gi 30%/0%, 1 all/40Gi 30%/0%; default 1"],
    );
    check_flags(
        "--gpucores 30 --policy DISABLE",
        None,
        expect!["0 all/16Gi 30%/0%, 1 all/40Gi 30%/0%; disable 1"],
    );
    check_flags(
        "--gpucores 100 --gpumem 4Gi",
        None,
        expect!["0 4Gi/16Gi 0%/0%, 1 4Gi/40Gi 0%/0%; force 1"],
    );
    check_flags(
        "--priority 0",
        None,
        expect!["0 all/16Gi 0%/0%, 1 all/40Gi 0%/0%; default 0"],
    );
    check_flags(
        "--floor 20",
        None,
        expect!["0 all/16Gi 0%/20%, 1 all/40Gi 0%/20%; floor 1"],
    );
    check_flags(
        "--floor 1=20 --gpucores 50 --policy floor",
        None,
        expect!["0 all/16Gi 50%/0%, 1 all/40Gi 50%/20%; floor 1"],
    );
    check_flags(
        "--gpumem 0=4Gi --gpucores 30 --priority 1000",
        None,
        expect!["0 4Gi/16Gi 30%/0%; force 1000; chosen"],
    );
    check_flags(
        "--gpumem 4Gi --gpucores 30 --gpucores 1=50 --gpu 1,0",
        None,
        expect!["1 4Gi/40Gi 50%/0%, 0 4Gi/16Gi 30%/0%; force 1; chosen"],
    );
}

#[test]
fn oversubscribed_memory_comes_on_top_of_the_limit() {
    check_flags(
        "--gpumem 4Gi --oversubscribe 4Gi",
        None,
        expect!["0 8Gi(4Gi)/16Gi 0%/0%, 1 8Gi(4Gi)/40Gi 0%/0%; default 1"],
    );
    check_flags(
        "--gpumem 4Gi --oversubscribe 1=40Gi",
        None,
        expect!["0 4Gi/16Gi 0%/0%, 1 44Gi(4Gi)/40Gi 0%/0%; default 1"],
    );
    check_flags(
        "--gpumem 16Gi --oversubscribe 1Ti --gpu 0",
        None,
        expect!["0 1.01Ti(16Gi)/16Gi 0%/0%; default 1; chosen"],
    );
    check_flags(
        "--oversubscribe 4Gi",
        None,
        expect![
            "--oversubscribe says how much more than --gpumem the program may have, and there is no --gpumem; add it, such as --gpumem 4Gi"
        ],
    );
    check_flags(
        "--oversubscribe 4Gi --gpucores 30",
        None,
        expect![
            "--oversubscribe says how much more than --gpumem the program may have, and there is no --gpumem; add it, such as --gpumem 4Gi"
        ],
    );
    check_flags(
        "--gpumem 4Gi --oversubscribe none",
        None,
        expect![
            "--oversubscribe none removes oversubscription from a running container; at the start leave it out"
        ],
    );
    check_flags(
        "--gpumem 4Gi --oversubscribe 9Ti",
        None,
        expect!["--gpumem and --oversubscribe add up to 9Ti on GPU 0; give at most 8Ti together"],
    );
    check_flags(
        "--gpumem 0=4Gi --oversubscribe 1=4Gi",
        None,
        expect![
            "--oversubscribe names GPU 1, which --gpumem leaves out; add 1 to --gpumem, or remove it from --oversubscribe"
        ],
    );
    check_flags(
        "--gpumem 17Gi --oversubscribe 1Gi",
        None,
        expect!["17Gi is more than GPU 0 has: 16Gi (Test GPU); give at most that"],
    );
}

#[test]
fn compute_flags_that_do_not_go_together_say_what_does() {
    check_flags(
        "--floor 20 --policy force",
        None,
        expect![
            "--floor has no meaning with --policy force, which guarantees nothing; leave --floor out, or give --policy floor"
        ],
    );
    check_flags(
        "--floor 20 --policy default",
        None,
        expect![
            "--floor has no meaning with --policy default, which guarantees nothing; leave --floor out, or give --policy floor"
        ],
    );
    check_flags(
        "--floor 20 --policy disable",
        None,
        expect![
            "--floor has no meaning with --policy disable, which ignores shares; leave --floor out, or give --policy floor"
        ],
    );
    check_flags(
        "--policy floor",
        None,
        expect![
            "--policy floor guarantees the share that --floor names, and there is none; add --floor, such as --floor 20"
        ],
    );
    check_flags(
        "--policy floor --gpucores 30",
        None,
        expect![
            "--policy floor guarantees the share that --floor names, and there is none; add --floor, such as --floor 20"
        ],
    );
    check_flags(
        "--policy force --gpumem 4Gi",
        None,
        expect![
            "--policy force says when the cap of --gpucores holds, and there is none; add --gpucores, such as --gpucores 30"
        ],
    );
    check_flags(
        "--gpucores 20 --floor 30",
        None,
        expect![
            "the floor of 30 % of GPU 0 is above its cap of 20 %; give --floor 20 or less, or --gpucores 30 or more"
        ],
    );
    check_flags(
        "--gpucores 0=20,1=50 --floor 30",
        None,
        expect![
            "the floor of 30 % of GPU 0 is above its cap of 20 %; give --floor 20 or less, or --gpucores 30 or more"
        ],
    );
    check_flags(
        "--gpucores 20 --gpucores 30",
        None,
        expect!["--gpucores gives every GPU 20 % and 30 %; give one of them, or GPU=PERCENT"],
    );
    check_flags(
        "--floor 20 --floor 30",
        None,
        expect!["--floor gives every GPU 20 % and 30 %; give one of them, or GPU=PERCENT"],
    );
    check_flags(
        "--gpucores 0=20 --gpucores 0=30",
        None,
        expect!["--gpucores names GPU 0 twice; name it once"],
    );
    check_flags(
        "--gpucores 0=20,GPU-aa=30",
        None,
        expect!["--gpucores names GPU 0 twice; name it once"],
    );
    check_flags(
        "--gpucores 7=20",
        None,
        expect!["there is no GPU 7; there are: 0 (GPU-aa00, 16Gi), 1 (GPU-ab11, 40Gi)"],
    );
    check_flags(
        "--gpumem 4Gi --gpucores 0=20",
        None,
        expect![
            "GPU 1 has no compute limit; add 1=PERCENT (100 is no cap) to --gpucores, or choose GPUs with --gpu"
        ],
    );
    check_flags(
        "--gpumem 0=4Gi --gpucores 1=20",
        None,
        expect![
            "--gpucores names GPU 1, which --gpumem leaves out; add 1 to --gpumem, or remove it from --gpucores"
        ],
    );
    check_flags(
        "--gpu 1 --floor 0=20",
        None,
        expect![
            "--floor names GPU 0, which --gpu leaves out; add 0 to --gpu, or remove it from --floor"
        ],
    );
}

#[test]
fn inside_compute_limits_they_can_only_be_lowered() {
    let outer_of = |core_percent, floor_percent, policy| {
        let mut outer = outer_of(&[("GPU-aa00", 4)], Unlisted::Deny);
        outer.limits.policy = policy;
        outer.limits.priority = 5;
        for device in &mut outer.limits.devices {
            device.core_percent = core_percent;
            device.floor_percent = floor_percent;
        }
        outer
    };
    let forced = outer_of(30, 0, Policy::Force);
    check_flags(
        "--gpumem 2Gi",
        Some(&forced),
        expect!["0 2Gi/16Gi 30%/0%; force 5"],
    );
    check_flags(
        "--gpucores 20",
        Some(&forced),
        expect!["0 4Gi/16Gi 20%/0%; force 5"],
    );
    check_flags(
        "--gpucores 30 --priority 5",
        Some(&forced),
        expect!["0 4Gi/16Gi 30%/0%; force 5"],
    );
    check_flags(
        "--gpucores 31",
        Some(&forced),
        expect![
            "--gpucores 31 of GPU 0 is more than the outer limit of 30 % (outer); inside a container limits can only be lowered"
        ],
    );
    check_flags(
        "--gpucores 100",
        Some(&forced),
        expect![
            "--gpucores 100 of GPU 0 is more than the outer limit of 30 % (outer); inside a container limits can only be lowered"
        ],
    );
    check_flags(
        "--gpucores 20 --policy default",
        Some(&forced),
        expect![
            "--policy default would lift the outer cap (policy force, outer); inside a container limits can only be lowered: give --policy force"
        ],
    );
    check_flags(
        "--gpucores 20 --policy disable",
        Some(&forced),
        expect![
            "--policy disable would lift the outer cap (policy force, outer); inside a container limits can only be lowered: give --policy force"
        ],
    );
    check_flags(
        "--floor 10",
        Some(&forced),
        expect![
            "--floor 10 of GPU 0: the outer limits guarantee nothing of it (outer), and no more can be guaranteed inside. Leave --floor out, or give the outer container a floor"
        ],
    );
    check_flags(
        "--gpumem 2Gi --priority 4",
        Some(&forced),
        expect![
            "--priority 4 is above the outer priority of 5 (outer); inside a container it can only be lowered: give 5 or a larger number"
        ],
    );
    check_flags(
        "--priority 6",
        Some(&forced),
        expect!["0 4Gi/16Gi 30%/0%; force 6"],
    );
    let floored = outer_of(60, 40, Policy::Floor);
    check_flags(
        "--gpumem 2Gi",
        Some(&floored),
        expect!["0 2Gi/16Gi 60%/40%; floor 5"],
    );
    check_flags(
        "--gpucores 20",
        Some(&floored),
        expect!["0 4Gi/16Gi 20%/0%; force 5"],
    );
    check_flags(
        "--floor 20",
        Some(&floored),
        expect!["0 4Gi/16Gi 60%/20%; floor 5"],
    );
    check_flags(
        "--floor 41",
        Some(&floored),
        expect![
            "--floor 41 of GPU 0: the outer limits guarantee 40 % (outer), and no more can be guaranteed inside. Give at most 40"
        ],
    );
    let free = outer_of(0, 0, Policy::Default);
    check_flags(
        "--gpucores 80 --policy disable",
        Some(&free),
        expect!["0 4Gi/16Gi 80%/0%; disable 5"],
    );
    let mut paged = outer_of(0, 0, Policy::Default);
    paged.limits.devices[0].resident_bytes = 1 << 30;
    check_flags(
        "--priority 9",
        Some(&paged),
        expect!["0 4Gi(1Gi)/16Gi 0%/0%; default 9"],
    );
    check_flags(
        "--gpumem 1Gi --oversubscribe 3Gi",
        Some(&paged),
        expect!["0 4Gi(1Gi)/16Gi 0%/0%; default 5"],
    );
    check_flags(
        "--gpumem 1Gi --oversubscribe 4Gi",
        Some(&paged),
        expect![
            "5Gi of GPU 0 is more than the outer limit of 4Gi (outer); inside a container limits can only be lowered"
        ],
    );
    check_flags(
        "--gpumem 2Gi",
        Some(&paged),
        expect![
            "2Gi of GPU 0 is more than the outer limit of 1Gi (outer); inside a container limits can only be lowered"
        ],
    );
}
