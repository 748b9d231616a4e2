//! The list of what ships (an SBOM): every package of other authors that is linked into our programs and libraries, with
//! its version, licence and checksum, as CycloneDX 1.5. Made from what cargo says; nothing is downloaded.
//!
//! Never has what only builds or tests use, nor what the C compiler and glibc bring.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

/// The file in the folder of what ships.
pub(crate) const FILE: &str = "sbom.cdx.json";
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Writes the list of all that these packages of the workspace link into `to`.
///
/// # Errors
/// When cargo does not answer, or a package has no licence.
pub(crate) fn write(root: &Path, triple: &str, ours: &[&str], to: &Path) -> anyhow::Result<()> {
    let metadata = metadata(root, triple)?;
    let lock = root.join("Cargo.lock");
    let lock = std::fs::read_to_string(&lock)
        .with_context(|| format!("cannot read {}", lock.display()))?;
    let list = list(&metadata, &checksums(&lock), triple, ours)?;
    let text = serde_json::to_string_pretty(&list)?;
    std::fs::write(to, text + "\n").with_context(|| format!("cannot write {}", to.display()))
}

fn metadata(root: &Path, triple: &str) -> anyhow::Result<Value> {
    let answer = Command::new("cargo")
        .args(["metadata", "--format-version=1", "--locked"])
        .args(["--filter-platform", triple])
        .current_dir(root)
        .output()
        .context("cannot start cargo metadata")?;
    ensure!(
        answer.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&answer.stderr).trim()
    );
    serde_json::from_slice(&answer.stdout).context("cannot read what cargo metadata says")
}

/// SHA-256 by name and version, as Cargo.lock has them.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let entries = lock.split("[[package]]").skip(1);
    let field = |entry: &str, key: &str| {
        let start = format!("{key} = \"");
        let line = entry.lines().find(|line| line.starts_with(&start))?;
        Some(line.strip_prefix(&start)?.trim_end_matches('"').to_owned())
    };
    let read = |entry: &str| {
        let name = (field(entry, "name")?, field(entry, "version")?);
        Some((name, field(entry, "checksum")?))
    };
    entries.filter_map(read).collect()
}

/// Cargo's data about one package.
struct Package<'a> {
    name: &'a str,
    version: &'a str,
    licence: Option<String>,
    from_registry: bool,
    is_ours: bool,
    /// It runs in the compiler, and is linked into nothing.
    is_macro: bool,
}

fn package(package: &Value) -> Option<(&str, Package<'_>)> {
    let text = |key: &str| package.get(key).and_then(Value::as_str);
    let source = text("source");
    // Before the expressions of SPDX, a slash meant "or".
    let licence = text("license").map(|licence| licence.replace('/', " OR "));
    let targets = package.get("targets").and_then(Value::as_array);
    let is_macro = |target: &Value| {
        let kinds = target.get("kind").and_then(Value::as_array);
        kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind == "proc-macro"))
    };
    Some((
        text("id")?,
        Package {
            name: text("name")?,
            version: text("version")?,
            licence,
            from_registry: source == Some(REGISTRY),
            is_ours: source.is_none(),
            is_macro: targets.is_some_and(|targets| targets.iter().any(is_macro)),
        },
    ))
}

/// The list, with packages by name and version.
fn list(
    metadata: &Value,
    checksums: &BTreeMap<(String, String), String>,
    triple: &str,
    ours: &[&str],
) -> anyhow::Result<Value> {
    let array = |at: &str| metadata.pointer(at).and_then(Value::as_array);
    let packages = array("/packages").context("cargo metadata names no packages")?;
    let packages: BTreeMap<&str, Package<'_>> = packages.iter().filter_map(package).collect();
    let nodes = array("/resolve/nodes").context("cargo metadata has no graph")?;
    let links: BTreeMap<&str, BTreeSet<&str>> = nodes.iter().filter_map(linked).collect();

    let root = |name: &&str| {
        let mut all = packages.iter();
        let found = all.find(|(_, package)| package.is_ours && package.name == *name);
        found.map(|(id, _)| *id)
    };
    let mut waiting: Vec<&str> = ours.iter().filter_map(root).collect();
    ensure!(
        waiting.len() == ours.len(),
        "not all of {ours:?} are packages of the workspace"
    );
    let mut shipped = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        let known = packages.get(id).context("a package without an entry")?;
        if known.is_macro || !shipped.insert(id) {
            continue;
        }
        waiting.extend(links.get(id).into_iter().flatten());
    }

    let mut components = Vec::new();
    let mut dependencies = Vec::new();
    let mut shipped: Vec<(&str, &Package<'_>)> = shipped
        .into_iter()
        .filter_map(|id| Some((id, packages.get(id)?)))
        .collect();
    shipped.sort_by_key(|(_, package)| (package.name, package.version));
    let reference =
        |package: &Package<'_>| format!("pkg:cargo/{}@{}", package.name, package.version);
    let by_id: BTreeMap<&str, &Package<'_>> = shipped.iter().copied().collect();
    for (id, package) in &shipped {
        let (name, version) = (package.name, package.version);
        let licence = package.licence.as_deref().with_context(|| {
            format!(
                "{name} {version} ships and names no licence: ask its authors, or do without it"
            )
        })?;
        let mut component = serde_json::Map::new();
        let mut say = |key: &str, value: Value| drop(component.insert(key.to_owned(), value));
        say("type", json!("library"));
        say("bom-ref", json!(reference(package)));
        say("name", json!(name));
        say("version", json!(version));
        say("licenses", json!([{ "expression": licence }]));
        if package.from_registry {
            say("purl", json!(reference(package)));
            let sum = checksums.get(&(name.to_owned(), version.to_owned()));
            let sum =
                sum.with_context(|| format!("Cargo.lock has no checksum of {name} {version}"))?;
            say("hashes", json!([{ "alg": "SHA-256", "content": sum }]));
        }
        components.push(Value::Object(component));
        let to = links.get(id).into_iter().flatten();
        let to: Vec<String> = to
            .filter_map(|to| by_id.get(to))
            .map(|to| reference(to))
            .collect();
        dependencies.push(json!({ "ref": reference(package), "dependsOn": to }));
    }
    let version = root(&ours.first().copied().unwrap_or_default());
    let version = version.and_then(|id| packages.get(id)).map(|it| it.version);
    let processor = triple.split('-').next().unwrap_or(triple);
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": "vgpu",
                "name": "vgpu",
                "version": version,
                "licenses": [{ "expression": "Apache-2.0" }],
                "properties": [{ "name": "vgpu:processor", "value": processor }],
            },
        },
        "components": components,
        "dependencies": dependencies,
    }))
}

/// A package's id and those that it links: no build scripts' and no tests' dependencies.
fn linked(node: &Value) -> Option<(&str, BTreeSet<&str>)> {
    let is_linked = |dependency: &&Value| {
        let kinds = dependency.get("dep_kinds").and_then(Value::as_array);
        kinds.is_some_and(|kinds| {
            kinds
                .iter()
                .any(|kind| kind.get("kind").is_some_and(Value::is_null))
        })
    };
    let dependencies = node.get("deps")?.as_array()?;
    let linked = dependencies.iter().filter(is_linked);
    let linked = linked.filter_map(|dependency| dependency.get("pkg")?.as_str());
    Some((node.get("id")?.as_str()?, linked.collect()))
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "what is wrong in a test ends it"
)]
mod tests {
    use super::*;
    use crate::dist::{PROGRAMS, Processor};

    fn metadata_of(licence: Value) -> Value {
        let kind = |kind: &str| json!([{ "kind": [kind] }]);
        let dependency = |id: &str, kinds: Value| json!({ "pkg": id, "dep_kinds": kinds });
        json!({
            "packages": [
                { "id": "a", "name": "ours", "version": "0.1.0", "source": null, "license": "Apache-2.0", "targets": kind("bin") },
                { "id": "b", "name": "linked", "version": "1.2.3", "source": REGISTRY, "license": licence, "targets": kind("lib") },
                { "id": "c", "name": "built-with", "version": "1.0.0", "source": REGISTRY, "license": "MIT", "targets": kind("lib") },
                { "id": "d", "name": "derives", "version": "1.0.0", "source": REGISTRY, "license": "MIT", "targets": kind("proc-macro") },
                { "id": "e", "name": "parses", "version": "1.0.0", "source": REGISTRY, "license": "MIT", "targets": kind("lib") },
            ],
            "resolve": { "nodes": [
                { "id": "a", "deps": [
                    dependency("b", json!([{ "kind": "dev" }, { "kind": null }])),
                    dependency("c", json!([{ "kind": "build" }, { "kind": "dev" }])),
                    dependency("d", json!([{ "kind": null }])),
                ] },
                { "id": "b", "deps": [] }, { "id": "c", "deps": [] },
                { "id": "d", "deps": [dependency("e", json!([{ "kind": null }]))] }, { "id": "e", "deps": [] },
            ] },
        })
    }

    #[test]
    fn only_what_is_linked_is_listed_with_licence_and_checksum() {
        let sums =
            checksums("[[package]]\nname = \"linked\"\nversion = \"1.2.3\"\nchecksum = \"abc\"\n");

        let list = list(
            &metadata_of(json!("MIT/Apache-2.0")),
            &sums,
            "x86_64-unknown-linux-gnu",
            &["ours"],
        )
        .unwrap();

        assert_eq!(
            list["components"],
            json!([
                { "type": "library", "bom-ref": "pkg:cargo/linked@1.2.3", "purl": "pkg:cargo/linked@1.2.3", "name": "linked",
                  "version": "1.2.3", "licenses": [{ "expression": "MIT OR Apache-2.0" }],
                  "hashes": [{ "alg": "SHA-256", "content": "abc" }] },
                { "type": "library", "bom-ref": "pkg:cargo/ours@0.1.0", "name": "ours", "version": "0.1.0",
                  "licenses": [{ "expression": "Apache-2.0" }] },
            ])
        );
        assert_eq!(
            list["dependencies"][1],
            json!({ "ref": "pkg:cargo/ours@0.1.0", "dependsOn": ["pkg:cargo/linked@1.2.3"] })
        );
        assert_eq!(list["metadata"]["component"]["version"], "0.1.0");
    }

    #[test]
    fn package_without_licence_is_refused() {
        let sums =
            checksums("[[package]]\nname = \"linked\"\nversion = \"1.2.3\"\nchecksum = \"abc\"\n");
        let error = list(
            &metadata_of(Value::Null),
            &sums,
            "x86_64-unknown-linux-gnu",
            &["ours"],
        )
        .unwrap_err();
        assert!(
            error
                .to_string()
                .contains("linked 1.2.3 ships and names no licence"),
            "{error}"
        );
    }

    /// The packages that cargo itself lists for each program and library.
    #[test]
    fn all_that_cargo_links_is_listed() {
        let root = crate::root();
        let triple = Processor::HERE.triple();
        let metadata = metadata(&root, triple).unwrap();
        let lock = std::fs::read_to_string(root.join("Cargo.lock")).unwrap();
        let list = list(&metadata, &checksums(&lock), triple, &PROGRAMS).unwrap();
        let listed: BTreeSet<String> = list["components"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| {
                format!(
                    "{} v{}",
                    it["name"].as_str().unwrap(),
                    it["version"].as_str().unwrap()
                )
            })
            .collect();

        let mut tree = Command::new("cargo");
        tree.args(["tree", "--locked", "--edges=normal,no-proc-macro"]);
        tree.args([
            "--prefix=none",
            "--no-dedupe",
            "--format={p}",
            "--target",
            triple,
        ]);
        for name in PROGRAMS {
            tree.args(["-p", name]);
        }
        let tree = tree.current_dir(&root).output().unwrap();
        assert!(
            tree.status.success(),
            "{}",
            String::from_utf8_lossy(&tree.stderr)
        );
        let tree = String::from_utf8(tree.stdout).unwrap();
        let linked: BTreeSet<String> = tree
            .lines()
            .filter_map(|line| {
                let mut words = line.split(' ');
                Some(format!("{} {}", words.next()?, words.next()?))
            })
            .filter(|line| line.len() > 2)
            .collect();

        assert!(linked.len() > 100, "{}", linked.len());
        let missing: Vec<_> = linked.difference(&listed).collect();
        assert!(missing.is_empty(), "not listed: {missing:?}");
    }
}
