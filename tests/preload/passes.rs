//! Calls that have a hook although they are about no limit by themselves: the hook keeps another call's account
//! right. If the driver refuses such a call, it has seen the program's own arguments, and the program gets the
//! driver's answer.

use std::collections::BTreeSet;
use std::ffi::{OsString, c_char, c_void};
use std::fmt::Write as _;
use std::mem::size_of;
use std::process::Command;

use cuda_api::driver::*;
use cuda_api::{Class, class_of};

use crate::support::{MIB, World, built};

/// The calls of the table of signatures: the name, and the bytes of each argument.
fn signatures() -> Vec<(&'static str, Vec<usize>)> {
    macro_rules! rows {
        ($(fn $name:ident($($arg:ident: $ty:ty),*);)*) => {
            vec![$((stringify!($name), vec![$(size_of::<$ty>()),*])),*]
        };
    }
    cuda_api::driver_functions!(rows)
}

/// The names of the driver that the library has a hook for.
fn hooked() -> BTreeSet<String> {
    let printed = Command::new("nm")
        .args(["-D", "--defined-only", "--format=posix"])
        .arg(built("libvgpu.so"))
        .output()
        .unwrap();
    assert!(printed.status.success(), "{printed:?}");
    let text = String::from_utf8(printed.stdout).unwrap();
    let names = text.lines().filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

/// The hooked calls of class `Pass`, with the bytes of each argument.
fn passing() -> Vec<(&'static str, Vec<usize>)> {
    let hooked = hooked();
    let mut rows = signatures();
    rows.retain(|(name, _)| class_of(name) == Some(Class::Pass) && hooked.contains(*name));
    rows
}

#[test]
fn hooked_calls_that_are_about_no_limit_reach_the_driver_unchanged() {
    let world = World::with_limits(&[116 * MIB]);
    let rows = passing();
    let (mut text, mut expected) = (String::new(), String::new());
    for (number, (name, sizes)) in rows.iter().enumerate() {
        assert!(
            sizes.len() <= 6 && sizes.iter().all(|size| matches!(size, 4 | 8)),
            "{name}: {sizes:?}"
        );
        let sizes: String = sizes.iter().map(ToString::to_string).collect();
        // No code of the driver's.
        let answer = 3000 + number;
        writeln!(text, "ROW({name}, \"{sizes}\", {answer})").unwrap();
        writeln!(expected, "{name}: unchanged").unwrap();
    }
    assert!(rows.len() > 20, "{rows:?}");
    std::fs::write(world.path("echo_rows.inc"), text).unwrap();
    let mut include = OsString::from("-I");
    include.push(world.path(""));
    world.put_driver("echo_driver", &[include.clone()]);

    // By a peer's variable, which names no UUID: the small driver's GPU is none of the board's.
    let program = world.program("passes").linked();
    let program = program
        .option(include.to_str().unwrap())
        .env("CUDA_DEVICE_MEMORY_LIMIT", "116m")
        .env("CUDA_DEVICE_MEMORY_SHARED_CACHE", world.path("shared"))
        .without("VGPU_LIMITS");
    let printed = program.prints();

    assert_eq!(
        printed,
        format!("within the limit 0, beyond it 2\n{expected}"),
        "{}",
        world.log()
    );
}
