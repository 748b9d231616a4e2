//! The library exports the real one's names, by `nm`, and is linked as the real one is.

use std::path::PathBuf;
use std::process::Command;

/// The shared object that cargo built next to this test program.
fn library() -> PathBuf {
    let program = std::env::current_exe().expect("a test program has a path");
    let library = program.with_file_name("libnvidia_ml.so");
    assert!(
        library.exists(),
        "{} is built together with its tests",
        library.display()
    );
    library
}

fn tool(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .arg(library())
        .output()
        .expect(program);
    assert!(
        output.status.success(),
        "{program}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("names are ASCII")
}

/// The names that a program finds in the library of a driver.
fn found(driver: &str, more: (&str, &str)) -> Vec<String> {
    // The loader takes names out as the library is loaded, so each driver needs a process of its own.
    let directory = tempfile::tempdir().expect("there is room");
    let program = std::env::current_exe().expect("a test program has a path");
    let output = Command::new(program)
        .args([
            "symbols::tell_the_names",
            "--exact",
            "--nocapture",
            "--ignored",
        ])
        .env("VGPU_SIM_BOARD", directory.path().join("board"))
        .env("VGPU_SIM_DRIVER", driver)
        .env(more.0, more.1)
        .output()
        .expect("it runs");
    let printed = String::from_utf8(output.stdout).expect("names are ASCII");
    let names = printed.lines().filter_map(|line| line.strip_prefix("has "));
    names.map(str::to_owned).collect()
}

#[test]
#[ignore = "runs in a process of its own, for the tests below"]
fn tell_the_names() {
    let printed = tool("nm", &["-D", "--defined-only", "--format=posix"]);
    // SAFETY: loading it runs nothing but what takes names out.
    let nvml = unsafe { libloading::Library::new(library()) }.expect("it loads");
    for name in printed
        .lines()
        .filter_map(|line| line.split_whitespace().next())
    {
        // SAFETY: looked for, and not called.
        if unsafe { nvml.get::<*const ()>(name) }.is_ok() {
            println!("has {name}");
        }
    }
}

fn real() -> Vec<String> {
    let listed = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../tests/vectors/symbols/libnvidia-ml-550.txt"
    );
    let listed = std::fs::read_to_string(listed).expect("vectors");
    let lines = listed.lines().map(str::trim);
    let mut real: Vec<String> = lines.filter(|l| !l.is_empty()).map(str::to_owned).collect();
    real.sort_unstable();
    real
}

#[test]
fn every_name_of_the_real_library_is_exported_and_no_other() {
    let mut exported = found("12.4", ("VGPU_SIM_GPUS", "1"));
    exported.sort_unstable();

    let real = real();
    assert_eq!(real.len(), 350);
    assert_eq!(exported, real);
}

#[test]
fn a_newer_driver_has_more_names() {
    let names = found("13.0", ("VGPU_SIM_GPUS", "1"));

    assert!(names.iter().any(|name| name == "nvmlDeviceGetPdi"));
    assert!(
        !names
            .iter()
            .any(|name| name == "nvmlDeviceGetMemoryLimits_v1")
    );
    assert!(real().iter().all(|name| names.contains(name)));
}

#[test]
fn an_nvml_without_a_look_up_by_uuid_has_no_such_name() {
    for more in [("VGPU_SIM_NVML", "no-uuid"), ("VGPU_SIM_CONTRARY", "1")] {
        let names = found("12.4", more);

        assert!(
            !names.iter().any(|name| name.contains("ByUUID")),
            "{more:?}"
        );
        assert_eq!(names.len(), real().len() - 1);
    }
}

#[test]
fn its_soname_is_real_and_it_binds_its_own_names() {
    let printed = tool("readelf", &["-d", "-W"]);

    assert!(
        printed.contains("Library soname: [libnvidia-ml.so.1]"),
        "{printed}"
    );
    assert!(printed.contains("SYMBOLIC"), "{printed}");
}
