//! The flags of the program and those of `docs/configuration.md`.

use std::process::Command;

#[test]
fn the_configuration_names_no_flag_that_does_not_exist() {
    let help = Command::new(env!("CARGO_BIN_EXE_vgpu-webhook"))
        .arg("--help")
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let text = include_str!("../../docs/configuration.md");
    let table = text.split("## Flags of `vgpu-webhook`").nth(1).unwrap();
    let table = table.split("\n## ").next().unwrap();

    let flags: Vec<&str> = table
        .lines()
        .filter(|line| line.starts_with("| `--"))
        .flat_map(|row| row.split('|').nth(1).unwrap().split('`'))
        .filter(|word| word.starts_with("--"))
        .collect();

    assert!(flags.len() > 5, "{flags:?}");
    for flag in flags {
        let names = |line: &str| {
            line.trim_start()
                .split([' ', '=', '['])
                .any(|word| word == flag)
        };
        assert!(help.lines().any(names), "vgpu-webhook has no flag {flag}");
    }
}
