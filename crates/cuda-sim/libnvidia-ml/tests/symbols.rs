//! The library exports what the real one does, by `nm`, and is linked as the real one is.

use std::path::PathBuf;
use std::process::Command;

/// The shared object that cargo built beside this test program.
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

#[test]
fn every_name_of_the_real_library_is_exported_and_no_other() {
    let printed = tool("nm", &["-D", "--defined-only", "--format=posix"]);
    let mut exported: Vec<&str> = printed
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    exported.sort_unstable();

    let listed = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../tests/vectors/symbols/"
    );
    let listed = std::fs::read_to_string(format!("{listed}libnvidia-ml-550.txt")).expect("vectors");
    let mut real: Vec<&str> = listed
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect();
    real.sort_unstable();

    assert_eq!(real.len(), 350);
    assert_eq!(exported, real);
}

#[test]
fn it_is_called_libnvidia_ml_so_1_and_binds_its_own_names_to_itself() {
    let printed = tool("readelf", &["-d", "-W"]);

    assert!(
        printed.contains("Library soname: [libnvidia-ml.so.1]"),
        "{printed}"
    );
    assert!(printed.contains("SYMBOLIC"), "{printed}");
}
