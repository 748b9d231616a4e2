//! Which of our crates depends on which: what cargo says, against the picture in docs/architecture.md.
//! Compiled into `cargo xtask check` and into the test of that name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::Value;

/// From a crate to the crates of this workspace that its `[dependencies]` name.
pub(crate) type Graph = BTreeMap<String, BTreeSet<String>>;

/// Edges that cargo has and the picture lacks, or the other way round, one sentence each.
///
/// # Errors
/// When cargo or the document cannot be read.
pub(crate) fn differences(root: &Path) -> anyhow::Result<Vec<String>> {
    let document = root.join("docs/architecture.md");
    let text = std::fs::read_to_string(&document)
        .with_context(|| format!("cannot read {}", document.display()))?;
    let drawn = drawn(&text)?;
    let built = built(root)?;
    let nothing = BTreeSet::new();
    let mut found = Vec::new();
    for (from, edges) in &built {
        let allowed = drawn.get(from).unwrap_or(&nothing);
        found.extend(
            edges
                .difference(allowed)
                .map(|to| format!("{from} depends on {to}, which the picture does not have")),
        );
    }
    for (from, edges) in &drawn {
        if !built.contains_key(from) {
            found.push(format!(
                "the picture has {from}, which is no member of the workspace"
            ));
        }
        for to in edges.iter().filter(|to| !built.contains_key(*to)) {
            found.push(format!(
                "the picture has {from} → {to}, but {to} is no member of the workspace"
            ));
        }
    }
    Ok(found)
}

/// The block of lines `a → b, c` below the heading "Dependencies".
fn drawn(document: &str) -> anyhow::Result<Graph> {
    let section = document
        .split("\n## ")
        .find(|part| part.starts_with("Dependencies\n"));
    let section = section.context("docs/architecture.md has no section \"Dependencies\"")?;
    let block = section
        .split("```")
        .nth(1)
        .context("the section \"Dependencies\" has no picture")?;
    let mut graph = Graph::new();
    for line in block.lines() {
        let Some((from, to)) = line.split_once('→') else {
            continue;
        };
        let to = to.split('(').next().unwrap_or_default();
        let to: BTreeSet<String> = names(to).filter(|name| name != "none of ours").collect();
        for from in names(from) {
            graph.entry(from).or_default().extend(to.iter().cloned());
        }
    }
    ensure!(
        !graph.is_empty(),
        "the picture in docs/architecture.md has no line with an arrow"
    );
    Ok(graph)
}

fn names(list: &str) -> impl Iterator<Item = String> {
    list.split(',')
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
}

/// The packages that cargo will build: `[dependencies]` only, since tests may look at anything.
fn built(root: &Path) -> anyhow::Result<Graph> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .current_dir(root)
        .output()
        .context("cannot start cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let metadata: Value =
        serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")?;
    let list = |value: &Value, key: &str| {
        value
            .get(key)
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default()
    };
    let text = |value: &Value, key: &str| {
        value
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let mut graph = Graph::new();
    for package in list(&metadata, "packages") {
        let ours = |dependency: &Value| {
            dependency.get("path").is_some_and(|path| !path.is_null())
                && text(dependency, "kind") != "dev"
        };
        let edges = list(&package, "dependencies")
            .iter()
            .filter(|d| ours(d))
            .map(|d| text(d, "name"))
            .collect();
        graph.insert(text(&package, "name"), edges);
    }
    Ok(graph)
}

#[cfg(test)]
mod picture {
    use super::*;

    #[test]
    fn an_edge_is_read_for_every_name_left_of_the_arrow() {
        let graph =
            drawn("# A\n\n## Dependencies\n\n```text\na, b → c, d (why)\nc → none of ours\n```\n")
                .unwrap();

        let cd: BTreeSet<String> = ["c", "d"].map(str::to_owned).into();
        assert_eq!(
            graph,
            Graph::from([
                ("a".into(), cd.clone()),
                ("b".into(), cd),
                ("c".into(), BTreeSet::new())
            ])
        );
    }

    #[test]
    fn a_document_without_the_picture_is_an_error() {
        assert!(drawn("# A\n\n## Other\n").is_err());
    }
}
