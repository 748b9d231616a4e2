//! Programs that fork, exec, have busy threads at exit, jump out of the driver through our hooks, close descriptors,
//! use another C library, or switch users.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::support::{
    CONTEXT, MIB, Program, World, built, compile, compile_with, installed, skip, source,
};

fn world() -> World {
    World::with_room(100 * MIB)
}

/// The odd driver's own lines.
const OWN_OF_ODD_DRIVER: [&str; 12] = [
    "cuMemAlloc_v2",
    "cuInit",
    "cuDeviceGetPCIBusId",
    "cuDeviceGetUuid",
    "cuDeviceGetUuid_v2",
    "cuGraphicsGLRegisterBuffer",
    "cuGraphicsMapResources",
    "cuGraphicsMapResources_ptsz",
    "cuGraphicsResourceGetMappedPointer_v2",
    "cuGraphicsUnmapResources",
    "cuGraphicsUnmapResources_ptsz",
    "cuGraphicsUnregisterResource",
];

/// Puts a driver in the simulated one's place that hands on every call but the odd ones.
pub(crate) fn with_odd_driver(world: &World) {
    let renamed = world.path("libreal.so");
    let mut bytes = std::fs::read(built("libcuda.so")).unwrap();
    // Under its own name it would be taken for the driver itself.
    let own = b"\0libcuda.so.1\0";
    let at = bytes
        .windows(own.len())
        .position(|window| window == own)
        .expect("it has a soname");
    bytes[at + 4] = b'x';
    std::fs::write(&renamed, bytes).unwrap();

    let symbols = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors/symbols/libcuda-550.txt");
    let names: String = std::fs::read_to_string(symbols)
        .unwrap()
        .lines()
        .filter(|name| !OWN_OF_ODD_DRIVER.contains(name))
        .map(|name| format!("NAME({name})\n"))
        .collect();
    std::fs::write(world.path("odd_names.inc"), names).unwrap();
    let mut include = OsString::from("-I");
    include.push(world.path(""));
    let options = ["-fexceptions", "-Wl,-Bsymbolic"].map(OsString::from);
    world.put_driver("odd_driver", &[options.as_slice(), &[include]].concat());
}

fn odd_world() -> World {
    let world = world();
    with_odd_driver(&world);
    world
}

/// A program in a world of the odd driver.
pub(crate) fn on_odd_driver<'a>(world: &'a World, name: &str) -> Program<'a> {
    let program = world.program(name).linked();
    program.env("ODD_REAL", world.path("libreal.so"))
}

#[test]
fn child_forked_before_the_first_call_has_its_own_charge() {
    assert_eq!(
        world().program("fork_before").linked().prints(),
        "ready 0\nbeside the child 2\nchild 0\nafter the child 0\n"
    );
}

#[test]
fn a_forked_child_cannot_give_back_what_its_parent_holds() {
    assert_eq!(
        world().program("fork_after").linked().prints(),
        "ready 0\nfirst 0\nchild 0\nsecond 2\nfreed 0\nagain 0\n"
    );
}

#[test]
fn an_exec_gives_back_what_the_old_program_held() {
    assert_eq!(
        world().program("exec").linked().prints(),
        "before: ready 0\nfirst 0\nsecond 2\nafter: ready 0\nfirst 0\nsecond 2\n"
    );
}

#[test]
fn a_child_of_vfork_and_exec_shares_the_limit() {
    assert_eq!(
        world().program("vfork").linked().prints(),
        "ready 0\nfirst 0\nchild: ready 0\nchild: too much 2\nchild: enough 0\nchild 0\nsecond 2\nthird 0\n"
    );
}

#[test]
fn threads_may_be_in_calls_while_the_program_ends() {
    let world = world();
    for _ in 0..20 {
        assert_eq!(
            world.program("threads_at_exit").linked().prints(),
            "ready 0\n"
        );
    }
    assert_eq!(
        (
            world.board().used_bytes(0),
            world
                .snapshot()
                .slots
                .iter()
                .filter(|slot| slot.alive)
                .count()
        ),
        (0, 0)
    );
}

#[test]
fn library_that_another_thread_still_loads_is_not_called() {
    let world = World::with_room(CONTEXT + 100 * MIB);
    let folder = world.path("sim");
    let file = |name: &str| folder.join(name).into_os_string();
    let shared = |more: &[OsString]| [&["-shared", "-fPIC"].map(OsString::from)[..], more].concat();
    let part = shared(&["-DPART".into()]);
    compile(&source("half_loaded"), &folder.join("libpart.so"), &part);
    let nvml = shared(&[
        "-DNVML".into(),
        "-Wl,-soname,libnvidia-ml.so.1".into(),
        "-Wl,--no-as-needed".into(),
        file("libpart.so"),
    ]);
    std::fs::remove_file(file("libnvidia-ml.so.1")).unwrap();
    compile(
        &source("half_loaded"),
        &folder.join("libnvidia-ml.so.1"),
        &nvml,
    );

    let program = world.program("half_loaded").linked();
    let mut killed = world.program("half_loaded").linked().arg("hold").start();
    let mut running = program.start();
    assert_eq!(
        (killed.line(), running.line()),
        ("ready 0".into(), "ready 0".into())
    );
    killed.kill();

    assert_eq!(running.step(""), "NVML is loaded");

    let ended = running.ends();
    assert_eq!((ended.code, ended.signal), (Some(0), None));
}

#[test]
fn the_driver_may_be_closed_and_opened_again() {
    let round = "ready 0\ntotal 116\nfirst 0\nfree 40 of 116\nsecond 2\nfreed 0\nagain 0\nfreed 0\nclosed 0\n";
    assert_eq!(world().program("dlclose").prints(), round.repeat(3));
}

#[test]
fn program_that_closes_every_descriptor_keeps_limit_and_slot() {
    let world = world();
    let mut program = world.program("close_everything").linked().start();
    assert_eq!(program.line(), "ready 0");
    assert_eq!(program.line(), "first 0");
    assert_eq!(program.line(), "second 2");

    let slots = world.snapshot().slots;
    assert_eq!(
        slots.iter().filter(|slot| slot.alive).count(),
        1,
        "{slots:?}"
    );
    assert_eq!(world.booked(0), world.board().used_bytes(0));
    // Another process needs room and reaps: it must not take a living program for a dead one.
    assert_eq!(
        world.program("vfork").linked().arg("child").prints(),
        "child: ready 0\nchild: too much 2\nchild: enough 0\n"
    );

    assert_eq!(program.step("on"), "freed 0");
    assert_eq!(program.line(), "again 0");
    assert_eq!(world.booked(0), world.board().used_bytes(0));
    program.tell("end");
    assert_eq!(program.end(), Some(0));
}

#[test]
fn cpp_exception_passes_through_and_the_limit_still_holds() {
    let world = odd_world();
    let printed = on_odd_driver(&world, "exception").prints();
    assert_eq!(
        printed,
        "ready 0\ncaught odd\ncaught odd\ncaught odd\nfirst 0\nsecond 2\n"
    );
}

#[test]
fn a_long_jump_passes_through_us_and_the_limit_holds_after_it() {
    let world = odd_world();
    let printed = on_odd_driver(&world, "long_jump").prints();
    assert_eq!(
        printed,
        "ready 0\njumped\njumped\njumped\nfirst 0\nsecond 2\n"
    );
}

#[test]
fn memory_from_calls_that_were_left_by_a_jump_stays_charged() {
    let world = odd_world();
    let program = on_odd_driver(&world, "jump_again");
    let mut program = program.arg("14").arg("50").start();
    assert_eq!(program.line(), "ready 0");
    assert_eq!(program.line(), "jumped 7, answered 2");
    assert_eq!(world.board().used_bytes(0), CONTEXT + 98 * MIB);
    assert!(world.booked(0) >= world.board().used_bytes(0));
    assert_eq!(program.step("on"), "more 2");
}

#[test]
fn failed_calls_left_by_a_jump_cost_nothing_once_measured() {
    let world = odd_world();
    let program = on_odd_driver(&world, "jump_again");
    let mut program = program.arg("12").arg("50").start();
    assert_eq!(program.line(), "ready 0");
    assert_eq!(program.line(), "jumped 50, answered 0");
    assert_eq!(program.step("on"), "more 0");
    assert_eq!(world.board().used_bytes(0), world.booked(0));
}

#[test]
fn thread_cancelled_inside_the_driver_keeps_the_limit() {
    let world = odd_world();
    let printed = on_odd_driver(&world, "cancel").prints();
    assert_eq!(
        printed,
        "ready 0\ncancelled 1\ncancelled 1\nfirst 0\nsecond 2\n"
    );
}

#[test]
fn a_fork_during_another_threads_first_call_hangs_no_process() {
    let world = odd_world();
    let program = on_odd_driver(&world, "fork_in_first_call");
    assert_eq!(
        program.env("ODD_INIT_MS", "300").arg("100000").prints(),
        "child 0\n"
    );
    // And at every other moment of that call.
    for pause in (0..3000).step_by(150) {
        let program = on_odd_driver(&world, "fork_in_first_call");
        assert_eq!(
            program.arg(pause.to_string()).prints(),
            "child 0\n",
            "fork after {pause} µs"
        );
    }
}

#[test]
fn a_setuid_program_is_caught_by_the_preload_file() {
    const TEST: &str = "a_setuid_program_is_caught_by_the_preload_file";
    let world = world();
    let inside = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", script]);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
            .env("W", world.path(""))
            .env("LIBRARY", built("libvgpu.so"));
        command.env("VGPU_SIM_BOARD", world.path("board"));
        command
    };
    if !inside("mount -t tmpfs none /run")
        .status()
        .is_ok_and(|status| status.success())
    {
        return skip(TEST, "only root may make a mount namespace here");
    }
    if !installed("setpriv") {
        return skip(TEST, "setpriv is not installed");
    }
    let program = world.program("dlopen_dlsym");
    program.build();
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap()
    };
    open(&world.path(""), 0o755);
    open(&world.path("dlopen_dlsym"), 0o4755);

    // The files that the agent mounts into a container, in a separate mount namespace.
    let output = inside(
        "set -e
        cp -a /etc $W/etc; mkdir -p $W/etc/vgpu; cp $W/limits $W/etc/vgpu/limits
        cp $LIBRARY $W/libvgpu.so; chmod 755 $W/libvgpu.so; echo $W/libvgpu.so > $W/etc/ld.so.preload
        mount --bind $W/etc /etc
        mount -t tmpfs none /run; mkdir /run/vgpu; touch /run/vgpu/region
        mount --bind $W/region /run/vgpu/region
        exec setpriv --reuid=65534 --regid=65534 --clear-groups $W/dlopen_dlsym $W/sim/libcuda.so.1",
    )
    .env("LD_PRELOAD", "/nowhere/ignored.so")
    .output()
    .unwrap();

    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        printed.contains("total 116\nfirst 0\nfree 40 of 116\nsecond 2\n"),
        "{output:?}"
    );
}

#[test]
fn a_musl_program_does_not_notice_us() {
    const TEST: &str = "a_musl_program_does_not_notice_us";
    // Only the library that ships has no dependency on glibc's own loader.
    if std::env::var_os("VGPU_TEST_LIBRARY").is_none() {
        println!("left out {TEST}: it tests the library that ships; run: scripts/test dist");
        return;
    }
    if !installed("musl-gcc") {
        return skip(TEST, "musl-gcc is not installed");
    }
    let world = world();
    for name in ["quiet", "no_driver"] {
        compile_with("musl-gcc", &source(name), &world.path(name), &[]);
        let program = || world.command(world.path(name)).without("LD_LIBRARY_PATH");
        let with = program().run();
        let without = program().native().run();
        assert_eq!(with, without, "{name}");
    }
}
