//! Links of the documentation, and of the alerts' `runbook_url`: each leads to a file of this repository, and to a
//! heading in it. Links to other sites are not followed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use anyhow::Context as _;

/// Every link that leads nowhere, one sentence each.
///
/// # Errors
/// When a page cannot be read.
pub(crate) fn complaints(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut pages = Vec::new();
    for folder in ["", "docs", "docs/decisions", "charts/vgpu"] {
        pages.extend(files(&root.join(folder), "md")?);
    }
    let mut headings = BTreeMap::new();
    let mut links = Vec::new();
    for page in &pages {
        let text = read(page)?;
        headings.insert(page.clone(), anchors(&text));
        links.extend(targets(&text).map(|target| (page.clone(), target)));
    }
    for rules in files(&root.join("charts/vgpu/rules"), "yaml")? {
        // The chart puts a site before them, or leaves them out.
        links.extend(runbooks(&read(&rules)?).map(|target| (root.join("rules"), target)));
    }
    let mut found = Vec::new();
    for (page, target) in links {
        if let Err(why) = leads(&page, &target, &headings) {
            let page = page.strip_prefix(root).unwrap_or(&page);
            found.push(format!("{}: {target} {why}", page.display()));
        }
    }
    Ok(found)
}

fn read(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// The files of a folder with this ending, sorted.
fn files(folder: &Path, ending: &str) -> anyhow::Result<Vec<PathBuf>> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|it| it == ending))
        .collect();
    found.sort();
    Ok(found)
}

/// Whether the target is there; or why not.
fn leads(
    page: &Path,
    target: &str,
    headings: &BTreeMap<PathBuf, BTreeSet<String>>,
) -> Result<(), &'static str> {
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let file = if file.is_empty() {
        page.to_owned()
    } else {
        flat(&page.parent().unwrap_or(page).join(file))
    };
    if !file.exists() {
        return Err("is no file here");
    }
    match headings.get(&file) {
        Some(known) if !anchor.is_empty() && !known.contains(anchor) => Err("has no such heading"),
        _ => Ok(()),
    }
}

/// Without `..`.
fn flat(path: &Path) -> PathBuf {
    let mut flat = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(flat.pop()),
            Component::CurDir => {}
            other => flat.push(other),
        }
    }
    flat
}

/// Lines outside of fenced code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// The anchors of a page's headings, as forges make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    let mut anchors = BTreeSet::new();
    for line in prose(text) {
        let words = line.trim_start_matches('#');
        if words.len() == line.len() || !words.starts_with(' ') {
            continue;
        }
        let slug: String = words
            .trim()
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || ['-', '_', ' '].contains(c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let count = counts.entry(slug.clone()).or_default();
        anchors.insert(match *count {
            0 => slug,
            number => format!("{slug}-{number}"),
        });
        *count += 1;
    }
    anchors
}

/// The targets of a page's links that lead into this repository.
fn targets(text: &str) -> impl Iterator<Item = String> {
    prose(text)
        .flat_map(|line| line.split("](").skip(1))
        .filter_map(|rest| Some(rest.split_once(')')?.0))
        .filter(|target| !target.contains("://") && !target.contains(' '))
        .map(str::to_owned)
}

/// The pages that alerts name.
fn runbooks(text: &str) -> impl Iterator<Item = String> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("runbook_url: "))
        .map(|target| target.trim_matches(['\'', '"']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_get_the_anchors_of_a_forge() {
        let text =
            "# One\n```sh\n# no heading\n```\n## `a` and b/c, d-e\n## One\n#hash\n### VGPU_X (y)\n";
        let found: Vec<String> = anchors(text).into_iter().collect();
        assert_eq!(found, ["a-and-bc-d-e", "one", "one-1", "vgpu_x-y"]);
    }

    #[test]
    fn broken_links_and_runbooks_are_reported() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let file = root.path().join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        write(
            "README.md",
            "[a](docs/a.md#x) [b](docs/b.md) [c](https://example.com/#n)",
        );
        write(
            "docs/a.md",
            "# X\n[up](../README.md) [own](#x) [none](#y) `[code]`",
        );
        write("docs/decisions/1.md", "[a](../a.md#x) [a](../a.md#z)");
        write("charts/vgpu/README.md", "");
        write(
            "charts/vgpu/rules/alerts.yaml",
            "  runbook_url: docs/a.md#x\n  runbook_url: docs/a.md#gone\n",
        );

        let found = complaints(root.path()).unwrap();

        assert_eq!(
            found,
            [
                "README.md: docs/b.md is no file here",
                "docs/a.md: #y has no such heading",
                "docs/decisions/1.md: ../a.md#z has no such heading",
                "rules: docs/a.md#gone has no such heading",
            ]
        );
    }
}
