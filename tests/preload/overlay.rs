//! The library under the driver's own name, in front of the driver: the programs that it reaches where a preload
//! cannot, those that it misses, and that it shares one account with a preload.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::linkage::{LIMITED, UNLIMITED, is_limited, static_program, world};
use crate::support::{CONTEXT, MIB, Program, World, built, skip};

/// As [`LIMITED`], with a peer's variable, which does not contain the size of a context.
const LIMITED_BY_PEERS: &str = "\
ready 0
total 116
first 0
free 40 of 116
second 2
freed 0
again 0
freed 0
";

/// The commands of docs/interception.md: this library before that one, under its name. `None`, and a
/// word about it, where patchelf is not installed.
fn before(test: &str, folder: &Path, soname: &str, real: &Path) -> Option<()> {
    let file = folder.join(soname);
    std::fs::create_dir_all(folder).unwrap();
    std::fs::copy(built("libvgpu.so"), &file).unwrap();
    for change in [
        ["--set-soname".as_ref(), OsStr::new(soname)],
        ["--add-needed".as_ref(), real.as_os_str()],
    ] {
        match Command::new("patchelf").args(change).arg(&file).status() {
            Ok(done) => assert!(done.success(), "patchelf {change:?}: {done}"),
            Err(_) => {
                skip(test, "patchelf is not installed");
                return None;
            }
        }
    }
    let link = soname.strip_suffix(".1").expect("a first version");
    std::os::unix::fs::symlink(soname, folder.join(link)).unwrap();
    Some(())
}

/// The overlay's folder for this world's driver.
fn overlay(test: &str, world: &World) -> Option<PathBuf> {
    let folder = world.path("overlay");
    let real = world.path("sim/libcuda.so.1");
    before(test, &folder, "libcuda.so.1", &real)?;
    Some(folder)
}

/// The overlay alone, without a preload.
fn below<'a>(program: Program<'a>, folder: &Path) -> Program<'a> {
    program.native().env("LD_LIBRARY_PATH", folder)
}

#[test]
fn a_static_program_is_caught_by_the_overlay() {
    let world = world();
    let program = static_program(&world, "static_program");
    let Some(folder) = overlay("a_static_program_is_caught_by_the_overlay", &world) else {
        return;
    };
    assert_eq!(below(program, &folder).prints(), LIMITED_BY_PEERS);
}

#[test]
fn overlay_limits_threads_and_children_of_a_static_program() {
    let name = "overlay_limits_threads_and_children_of_a_static_program";
    let world = world();
    let program = static_program(&world, "static_family");
    let Some(folder) = overlay(name, &world) else {
        return;
    };
    assert_eq!(
        below(program, &folder).prints(),
        "ready 0, first 0\n\
         thread: ready 0, second 2\n\
         child: beside the parent 2, less 0\n\
         child ended 0, freed 0, again 0\n"
    );
}

#[test]
fn the_overlay_catches_what_a_preload_catches() {
    let world = world();
    let Some(folder) = overlay("the_overlay_catches_what_a_preload_catches", &world) else {
        return;
    };
    let plugin = world.library("plugin", true);
    let own = world.library("plugin_dlsym", false);
    for program in [
        world.program("direct").linked(),
        world.program("direct_default").linked(),
        world.program("direct_next").linked(),
        world.program("dlopen_dlsym"),
        world.program("dlopen_dlsym").arg("libcuda.so"),
        world.program("deepbind"),
        world.program("dlmopen"),
        world.program("getprocaddress"),
        world.program("getprocaddress").arg("itself"),
        world.program("getprocaddress").arg("v1"),
        world.program("plugin_host").arg(plugin).arg("deepbind"),
        world.program("plugin_host").arg(own).arg("deepbind"),
    ] {
        is_limited(&below(program, &folder));
        world.bury_the_dead();
    }
}

#[test]
fn code_in_a_namespace_of_its_own_is_out_of_a_preloads_reach() {
    let world = world();
    let own = world.library("plugin_dlsym", false);
    assert_eq!(
        world.program("overlay_namespace").arg(own).prints(),
        UNLIMITED
    );
}

#[test]
fn code_in_a_namespace_of_its_own_is_caught_by_the_overlay() {
    let name = "code_in_a_namespace_of_its_own_is_caught_by_the_overlay";
    let world = world();
    let Some(folder) = overlay(name, &world) else {
        return;
    };
    for plugin in [
        world.library("plugin", true),
        world.library("plugin_dlsym", false),
    ] {
        let program = || world.program("overlay_namespace").arg(&plugin);
        assert_eq!(below(program(), &folder).prints(), LIMITED);
        world.bury_the_dead();
        // The namespace knows nothing of a preload either.
        let both = program().env("LD_LIBRARY_PATH", &folder);
        assert_eq!(both.prints(), LIMITED);
        world.bury_the_dead();
    }
}

#[test]
fn overlay_does_not_reach_a_program_that_opens_the_real_file() {
    let name = "overlay_does_not_reach_a_program_that_opens_the_real_file";
    let world = world();
    let Some(folder) = overlay(name, &world) else {
        return;
    };
    let real = world.path("sim/libcuda.so.1");
    let program = world.program("dlopen_dlsym").arg(real);
    assert_eq!(below(program, &folder).prints(), UNLIMITED);
}

#[test]
fn what_we_do_not_hook_is_the_drivers() {
    let world = world();
    let Some(folder) = overlay("what_we_do_not_hook_is_the_drivers", &world) else {
        return;
    };
    let real = world.path("sim/libcuda.so.1");
    let names = [
        "cuMemAlloc_v2",
        "cuGetProcAddress_v2",
        "cuDriverGetVersion",
        "cuFuncGetName",
        "cuNoSuchFunction",
    ];
    let ask = |library: &OsStr| {
        let program = world.program("overlay_symbols").arg(library);
        let program = names.iter().fold(program, |it, name| it.arg(name));
        below(program, &folder).prints()
    };
    assert_eq!(
        ask("libcuda.so.1".as_ref()),
        "cuMemAlloc_v2 overlay\n\
         cuGetProcAddress_v2 overlay\n\
         cuDriverGetVersion sim\n\
         cuFuncGetName sim\n\
         cuNoSuchFunction nowhere\n"
    );
    assert!(ask(real.as_os_str()).starts_with("cuMemAlloc_v2 sim\n"));
}

#[test]
fn overlay_and_preload_together_keep_one_account() {
    let world = world();
    let Some(folder) = overlay("overlay_and_preload_together_keep_one_account", &world) else {
        return;
    };
    let program = || world.program("overlay_mixed").linked();
    for program in [
        below(program(), &folder),
        program().env("LD_LIBRARY_PATH", &folder),
    ] {
        let mut running = program.start();
        assert_eq!(
            [running.line(), running.line(), running.line()],
            [
                "ready 0 0",
                "took 0, free 40 and 40 of 116, gave 0, free 100",
                "took 0, free 40 and 40 of 116, gave 0, free 100",
            ],
            "{}",
            world.log()
        );
        assert_eq!(world.snapshot().slots.len(), 1);
        assert_eq!(world.booked(0), CONTEXT);
        assert_eq!(running.end(), Some(0));
        world.bury_the_dead();
    }
}

#[test]
fn overlay_and_preload_together_catch_every_style() {
    let world = world();
    let Some(folder) = overlay("overlay_and_preload_together_catch_every_style", &world) else {
        return;
    };
    let plugin = world.library("plugin", true);
    for program in [
        world.program("direct").linked(),
        world.program("direct_next").linked(),
        world.program("dlopen_dlsym"),
        world.program("dlmopen"),
        world.program("getprocaddress"),
        world.program("plugin_host").arg(&plugin).arg("deepbind"),
        // The plugin binds past the preload, to the overlay.
        world
            .program("plugin_host")
            .arg(&plugin)
            .arg("deepbind")
            .env("VGPU_DEEPBIND_KEEP", "libplugin"),
    ] {
        is_limited(&program.env("LD_LIBRARY_PATH", &folder));
        world.bury_the_dead();
    }
}

#[test]
fn an_overlay_of_each_library_keeps_one_account_in_either_order() {
    let name = "an_overlay_of_each_library_keeps_one_account_in_either_order";
    let world = world();
    let Some(folder) = overlay(name, &world) else {
        return;
    };
    let real = world.path("sim/libnvidia-ml.so.1");
    if before(name, &folder, "libnvidia-ml.so.1", &real).is_none() {
        return;
    }
    let (cuda, nvml) = ("libcuda.so.1", "libnvidia-ml.so.1");
    for (first, second) in [(cuda, nvml), (nvml, cuda)] {
        let program = world.program("overlay_nvml").arg(first).arg(second);
        assert_eq!(
            below(program, &folder).prints(),
            "ready 0\nfirst 0\nnvml 0 0 0\nused 76 of 116\n"
        );
    }
    assert_eq!(CONTEXT + 60 * MIB, 76 * MIB);
}
