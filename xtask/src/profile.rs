//! The settings of our crates' debug builds in Cargo.toml: each crate has a line of its own, and a crate that may have unsafe
//! code keeps the standard library's checks of it. Of a crate's source only `lib.rs` and `main.rs` are read.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, ensure};

/// The heading of the settings of single crates.
const SETTINGS: &str = "[profile.dev.package]";
const CHECKED: &str = "debug-assertions = true";
const SAFE: &str = "#![forbid(unsafe_code)]";

/// One sentence for each crate that has no line in Cargo.toml's section, and for each crate that may have unsafe code and is
/// built without `debug-assertions`.
///
/// # Errors
/// When Cargo.toml or a crate's root cannot be read.
pub(crate) fn complaints(root: &Path, folders: &[String]) -> anyhow::Result<Vec<String>> {
    let manifest = read(&root.join("Cargo.toml"))?;
    let settings = settings(&manifest)?;
    let mut found = Vec::new();
    for folder in folders {
        let folder = root.join(folder);
        let name = name(&read(&folder.join("Cargo.toml"))?)
            .with_context(|| format!("{} has no name", folder.display()))?;
        let mut is_safe = true;
        for file in ["src/lib.rs", "src/main.rs"].map(|file| folder.join(file)) {
            is_safe &= !file.exists() || read(&file)?.contains(SAFE);
        }
        found.extend(complaint(&settings, &name, is_safe));
    }
    Ok(found)
}

fn complaint(settings: &BTreeMap<&str, &str>, name: &str, is_safe: bool) -> Option<String> {
    match settings.get(name) {
        None => Some(format!(
            "{SETTINGS} of Cargo.toml has no line for {name}, which is then optimised; it needs one, such as {}",
            if is_safe { "`opt-level = 0`" } else { CHECKED }
        )),
        Some(setting) if !is_safe && !setting.contains(CHECKED) => Some(format!(
            "{name} does not have {SAFE} and may have unsafe code; its line in {SETTINGS} of Cargo.toml needs {CHECKED}"
        )),
        Some(_) => None,
    }
}

/// The lines `name = { … }` of that section.
fn settings(manifest: &str) -> anyhow::Result<BTreeMap<&str, &str>> {
    let (_, section) = manifest
        .split_once(SETTINGS)
        .with_context(|| format!("Cargo.toml has no section {SETTINGS}"))?;
    let lines = section.lines().take_while(|line| !line.starts_with('['));
    let found: BTreeMap<_, _> = lines
        .filter_map(|line| line.split_once(" = "))
        .filter(|(name, _)| !name.starts_with('#'))
        .collect();
    ensure!(!found.is_empty(), "{SETTINGS} of Cargo.toml is empty");
    Ok(found)
}

/// The package's name in its Cargo.toml.
fn name(manifest: &str) -> Option<String> {
    let line = manifest
        .lines()
        .find_map(|line| line.strip_prefix("name = "))?;
    Some(line.trim_matches('"').to_owned())
}

fn read(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[profile.dev]\nopt-level = 1\n\n[profile.dev.package]\n# safe = {}\n\
        safe = { opt-level = 0 }\nrisky = { debug-assertions = true }\n\n[profile.release]\nlto = {}\n";

    fn complains(name: &str, is_safe: bool) -> bool {
        complaint(&settings(MANIFEST).unwrap(), name, is_safe).is_some()
    }

    #[test]
    fn each_crate_has_a_line() {
        assert!(!complains("safe", true));
        assert!(!complains("risky", false));
        assert!(complains("new", true));
        // It is a line of another section.
        assert!(complains("lto", true));
    }

    #[test]
    fn a_crate_with_unsafe_code_keeps_its_checks() {
        assert!(complains("safe", false));
    }

    #[test]
    fn a_manifest_without_the_section_is_an_error() {
        assert!(settings("[profile.dev]\n").is_err());
    }
}
