//! Functions that programs take from `cuGetProcAddress` by version: also those that the driver does not
//! export, or exports at another address.

use cuda_sim::Config;

use crate::guest::with_odd_driver;
use crate::support::{CONTEXT, MIB, World};

/// The output of `versions.c` at version 13000 under a limit.
const LIMITED: &str =
    "ready 0 0\ncontext 0\none 0\nother 2\nbatch 0\nwait 0\nfree 0\nagain 0\nend 0\n";
/// The same at version 12000.
const OLDER: &str = "ready 0 0\ncontext 0\none 0\nother 2\nwait 0\nfree 0\nagain 0\nend 0\n";

fn world(driver_version: u32) -> World {
    let config = Config {
        driver_version,
        ..Config::default()
    };
    World::with_limits_on(&config, &[100 * MIB + CONTEXT])
}

#[test]
fn a_program_of_cuda_13_is_limited() {
    assert_eq!(world(13_000).program("versions").prints(), LIMITED);
}

#[test]
fn a_program_of_cuda_12_is_limited_on_a_driver_of_13() {
    assert_eq!(world(13_000).program("versions").arg("12").prints(), OLDER);
}

/// The driver in front exports the names of version 550 only, and each at an address of its own.
#[test]
fn functions_that_are_not_exported_are_limited() {
    for (version, arg, printed) in [(13_000, "13", LIMITED), (12_040, "12", OLDER)] {
        let world = world(version);
        with_odd_driver(&world);
        let program = world.program("versions").arg(arg);
        let program = program.env("ODD_REAL", world.path("libreal.so"));
        assert_eq!(program.prints(), printed, "{}", world.log());
    }
}

#[test]
fn a_name_that_the_driver_does_not_export_is_not_found_by_dlsym() {
    let world = world(13_000);
    with_odd_driver(&world);
    let program = world.program("versions").arg("13").arg("dlsym");
    let program = program.env("ODD_REAL", world.path("libreal.so"));
    assert_eq!(
        program.prints(),
        format!("{LIMITED}exported 0, known to all 0\n")
    );
}
