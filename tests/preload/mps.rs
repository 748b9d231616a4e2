//! GPUs that programs share through MPS: a compute cap counts as a share of the multiprocessors there,
//! and a program that was not started with one makes no context.

use cuda_sim::Config;
use vgpu_abi::limits::{DeviceLimit, DeviceUuid, Limits, LimitsFile, Policy};
use vgpu_abi::region::Region;

use crate::support::World;

const SHARE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";

/// One GPU, under MPS or not, with a cap in percent.
fn world(mps: bool, core_percent: u32, policy: Policy) -> World {
    let config = Config {
        mps,
        ..Config::default()
    };
    let world = World::with_board(1, &config);
    let limits = Limits {
        policy,
        devices: vec![DeviceLimit {
            uuid: DeviceUuid::new(&world.board().uuid(0)).unwrap(),
            core_percent,
            ..DeviceLimit::default()
        }],
        ..Limits::default()
    };
    LimitsFile::create(&world.path("limits"), &limits).unwrap();
    Region::create(&world.path("region"), &[], 0o666).unwrap();
    world
}

/// The result of a program's first context, with this share in its environment.
fn first_context(world: &World, share: Option<&str>) -> String {
    let mut program = world.program("oversubscribe").linked();
    if let Some(share) = share {
        program = program.env(SHARE, share);
    }
    program.start().step("ready")
}

#[test]
fn a_context_is_made_only_with_a_share_that_the_cap_allows() {
    let world = world(true, 30, Policy::Force);

    for (share, answer) in [
        (None, "ready 800"),
        (Some(""), "ready 800"),
        (Some("31"), "ready 800"),
        (Some("all"), "ready 800"),
        (Some("30"), "ready 0"),
        (Some("12.5"), "ready 0"),
    ] {
        assert_eq!(first_context(&world, share), answer, "{share:?}");
    }
    let log = world.log();
    assert!(log.contains("shared through MPS"), "{log}");
    assert!(log.contains("at most 30"), "{log}");
}

#[test]
fn other_ways_to_a_context_are_refused_as_well() {
    let world = world(true, 30, Policy::Default);
    let mut program = world.program("oversubscribe").linked().start();
    assert_eq!(program.step("ready"), "ready 800");
    assert_eq!(program.step("context"), "context 800");
    drop(program);

    // The context was made past the hooks: it exists, and no memory may be taken in it.
    let mut runtime = world.program("runtime").linked().start();
    assert_eq!(runtime.step("table"), "table 0");
    assert_eq!(runtime.step("context"), "context 800");
    assert_eq!(runtime.step("private_context"), "private_context 0");
    assert_eq!(runtime.step("alloc 1"), "alloc 800");
}

#[test]
fn without_mps_or_a_cap_no_share_is_requested() {
    for (mps, cap, policy) in [
        (false, 30, Policy::Force),
        (true, 0, Policy::Force),
        (true, 100, Policy::Floor),
        (true, 30, Policy::Disable),
    ] {
        let world = world(mps, cap, policy);

        let answer = first_context(&world, None);

        assert_eq!(answer, "ready 0", "{mps} {cap} {policy:?}\n{}", world.log());
    }
}

#[test]
fn a_cap_that_comes_later_counts_for_the_contexts_after_it() {
    let world = world(true, 0, Policy::Force);
    let mut program = world
        .program("oversubscribe")
        .linked()
        .env(SHARE, "50")
        .start();
    assert_eq!(program.step("ready"), "ready 0");

    let file = LimitsFile::open(&world.path("limits")).unwrap();
    let mut limits = file.read().unwrap();
    limits.devices[0].core_percent = 40;
    file.write(&limits).unwrap();
    assert_eq!(program.step("context"), "context 800");

    limits.devices[0].core_percent = 60;
    file.write(&limits).unwrap();
    assert_eq!(program.step("context"), "context 0");
}
