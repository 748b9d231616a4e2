//! Which module imports which, inside each crate: read from the source's tokens, macros included. Modules
//! that stand side by side may not import each other in a circle, and the layers of the library import
//! downwards. Tests are not looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, bail};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::product::{File, Module};

/// Crates whose modules stand in layers: each with the folder of the crate and its layers, the lowest one first. A layer is a
/// folder; it imports itself and those before it.
const LAYERED: &[(&str, &[&str])] = &[
    (
        "vgpu-core",
        &[
            "base", "figures", "guest", "driver", "state", "holdings", "rules", "hooks",
        ],
    ),
    (
        "crates/cuda-sim/libcuda",
        &["base", "process", "memory", "streams", "calls"],
    ),
];

/// Imports between the modules of one crate.
#[derive(Debug, Default)]
struct Imports(BTreeMap<Module, BTreeSet<Module>>);

/// Every circle and every import of a higher layer, one sentence each.
pub(crate) fn complaints(files: &[File]) -> Vec<String> {
    let mut found = Vec::new();
    for files in files.chunk_by(|a, b| a.folder == b.folder) {
        let Some(File { folder, .. }) = files.first() else {
            continue;
        };
        let name = folder.rsplit('/').next().unwrap_or(folder);
        let imports = Imports::of(files);
        for circle in imports.circles() {
            found.push(format!(
                "{name}: {} import each other in a circle",
                circle.join(", ")
            ));
        }
        for (_, layers) in LAYERED.iter().filter(|(layered, _)| layered == folder) {
            found.extend(imports.upward(name, layers));
        }
    }
    found
}

/// The layers of a crate as docs/architecture.md shows them: made from the folders' own first words.
///
/// # Errors
/// When a folder's file cannot be read or has no words.
fn picture(source: &Path, layers: &[&str]) -> anyhow::Result<String> {
    let mut text = String::new();
    for layer in layers.iter().rev() {
        let file = source.join(layer).with_extension("rs");
        let code = std::fs::read_to_string(&file)
            .with_context(|| format!("cannot read {}", file.display()))?;
        let words: Vec<&str> = code
            .lines()
            .map_while(|line| line.strip_prefix("//!"))
            .map(str::trim)
            .collect();
        if words.is_empty() {
            bail!("{} does not say what the layer is for", file.display());
        }
        let mut modules: Vec<&str> = code
            .lines()
            .filter_map(|line| {
                let line = line
                    .strip_prefix("pub(crate) ")
                    .or(line.strip_prefix("pub "))
                    .unwrap_or(line);
                line.strip_prefix("mod ")
            })
            .filter_map(|line| line.strip_suffix(';'))
            .collect();
        modules.sort_unstable();
        text.push_str(&format!(
            "* **`{layer}`** {} ({})\n",
            words.join(" "),
            modules.join(", ")
        ));
    }
    Ok(text)
}

/// Writes each crate's picture between its marks in docs/architecture.md, or fails when one is stale.
///
/// # Errors
/// When the document or the source cannot be read, or when a picture is stale.
pub(crate) fn run(check: bool) -> anyhow::Result<()> {
    const END: &str = "<!-- layers end -->";
    let root = crate::root();
    let file = root.join("docs/architecture.md");
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("cannot read {}", file.display()))?;
    let mut fresh = text.clone();
    for (folder, layers) in LAYERED {
        let begin = format!("<!-- layers of {folder}: cargo xtask layers -->\n");
        let (before, rest) = fresh
            .split_once(&begin)
            .with_context(|| format!("{} has no line {begin}", file.display()))?;
        let (_, after) = rest
            .split_once(END)
            .with_context(|| format!("{} has no line {END}", file.display()))?;
        let picture = picture(&root.join(folder).join("src"), layers)?;
        fresh = format!("{before}{begin}{picture}{END}{after}");
    }
    if fresh == text {
        return Ok(());
    }
    if check {
        bail!("docs/architecture.md is stale: run `cargo xtask layers`");
    }
    std::fs::write(&file, fresh).with_context(|| format!("cannot write {}", file.display()))
}

impl Imports {
    /// The imports between the modules of one crate.
    fn of(files: &[File]) -> Self {
        let modules: BTreeSet<Module> = files.iter().map(|file| file.module.clone()).collect();
        let mut imports = Self::default();
        for file in files {
            let mut paths = Vec::new();
            collect(file.tokens.clone(), &mut paths);
            let to = imports.0.entry(file.module.clone()).or_default();
            let targets = paths
                .iter()
                .filter_map(|path| path.resolve(&file.module, &modules));
            to.extend(targets.filter(|target| *target != file.module));
        }
        imports
    }

    /// Circles among modules that stand side by side, at every depth.
    fn circles(&self) -> Vec<Vec<String>> {
        let mut levels: BTreeMap<Module, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
        for (from, targets) in &self.0 {
            for to in targets {
                let common = from.iter().zip(to).take_while(|(a, b)| a == b).count();
                if let (Some(a), Some(b)) = (from.get(common), to.get(common)) {
                    let level = levels
                        .entry(from.iter().take(common).cloned().collect())
                        .or_default();
                    level.entry(a.clone()).or_default().insert(b.clone());
                }
            }
        }
        let mut found = Vec::new();
        for (parent, edges) in levels {
            for circle in strongly_connected(&edges) {
                let named = |name: &String| {
                    let mut path = parent.clone();
                    path.push(name.clone());
                    path.join("::")
                };
                found.push(circle.iter().map(named).collect());
            }
        }
        found
    }

    /// Imports from a layer to a higher one, and modules that are in no layer.
    fn upward(&self, name: &str, layers: &[&str]) -> Vec<String> {
        let place = |module: &Module| {
            let first = module.first()?;
            layers.iter().position(|layer| layer == first)
        };
        let mut found = BTreeSet::new();
        for (from, targets) in &self.0 {
            if !from.is_empty() && place(from).is_none() {
                found.insert(format!("{name}: {} stands in no layer", from.join("::")));
            }
            for to in targets {
                if let (Some(a), Some(b)) = (place(from), place(to))
                    && b > a
                {
                    found.insert(format!(
                        "{name}: {} imports {}, which is a layer above it",
                        from.join("::"),
                        to.join("::")
                    ));
                }
            }
        }
        found.into_iter().collect()
    }
}

/// A path that begins with `crate`, or with this many `super`.
#[derive(Debug, PartialEq, Eq)]
struct Written {
    /// `None` for `crate`.
    ups: Option<usize>,
    names: Vec<String>,
}

impl Written {
    /// The module that the path leads to, or into.
    fn resolve(&self, here: &Module, modules: &BTreeSet<Module>) -> Option<Module> {
        let mut at: Module = match self.ups {
            None => Vec::new(),
            Some(ups) => here.get(..here.len().checked_sub(ups)?)?.to_vec(),
        };
        for name in &self.names {
            at.push(name.clone());
            if !modules.contains(&at) {
                at.pop();
                break;
            }
        }
        // A name of the crate's root itself.
        (!at.is_empty()).then_some(at)
    }
}

/// The paths in a stream of tokens.
fn collect(tokens: TokenStream, paths: &mut Vec<Written>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token {
            TokenTree::Ident(name) if name == "crate" || name == "super" => {
                let mut ups = None;
                let mut next = at + 1;
                if name == "super" {
                    let mut count = 1;
                    while is_colons(&tokens, next)
                        && matches!(tokens.get(next + 2), Some(TokenTree::Ident(name)) if name == "super")
                    {
                        count += 1;
                        next += 3;
                    }
                    ups = Some(count);
                }
                let begun = Written {
                    ups,
                    names: Vec::new(),
                };
                at = follow(&tokens, next, &begun, paths);
            }
            TokenTree::Group(group) => {
                collect(group.stream(), paths);
                at += 1;
            }
            _ => at += 1,
        }
    }
}

/// Follows `::name`, `::{…}` and `::*` from `at` on; answers where that ends.
fn follow(tokens: &[TokenTree], mut at: usize, begun: &Written, paths: &mut Vec<Written>) -> usize {
    let mut path = Written {
        ups: begun.ups,
        names: begun.names.clone(),
    };
    while is_colons(tokens, at) {
        match tokens.get(at + 2) {
            Some(TokenTree::Ident(name)) => {
                path.names.push(name.to_string());
                at += 3;
            }
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                tree(group.stream(), &path, paths);
                return at + 3;
            }
            _ => break,
        }
    }
    paths.push(path);
    at
}

/// The parts of a `{…}` in a `use`.
fn tree(tokens: TokenStream, path: &Written, paths: &mut Vec<Written>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for part in
        tokens.split(|token| matches!(token, TokenTree::Punct(mark) if mark.as_char() == ','))
    {
        let Some(TokenTree::Ident(name)) = part.first() else {
            continue;
        };
        let mut begun = Written {
            ups: path.ups,
            names: path.names.clone(),
        };
        if name != "self" {
            begun.names.push(name.to_string());
        }
        follow(part, 1, &begun, paths);
    }
}

fn is_colons(tokens: &[TokenTree], at: usize) -> bool {
    let is_colon = |token: Option<&TokenTree>| matches!(token, Some(TokenTree::Punct(mark)) if mark.as_char() == ':');
    is_colon(tokens.get(at)) && is_colon(tokens.get(at + 1))
}

/// Groups of two or more that reach each other.
fn strongly_connected(edges: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<String>> {
    let reach = |from: &String| {
        let mut seen: BTreeSet<&String> = BTreeSet::new();
        let mut next: Vec<&String> = edges.get(from).into_iter().flatten().collect();
        while let Some(name) = next.pop() {
            if seen.insert(name) {
                next.extend(edges.get(name).into_iter().flatten());
            }
        }
        seen
    };
    let mut found: Vec<Vec<String>> = Vec::new();
    for name in edges.keys() {
        if found.iter().any(|circle| circle.contains(name)) {
            continue;
        }
        let there = reach(name);
        let circle: Vec<String> = there
            .into_iter()
            .filter(|other| *other != name && reach(other).contains(name))
            .chain([name])
            .cloned()
            .collect();
        if circle.len() > 1 {
            let mut circle = circle;
            circle.sort();
            found.push(circle);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::str::FromStr;

    fn module(path: &str) -> Module {
        path.split("::").map(str::to_owned).collect()
    }

    /// The modules that `code` of the module `here` imports.
    fn imported(here: &str, code: &str) -> Vec<String> {
        let modules = ["a", "a::x", "a::y", "b", "b::z"].map(module).into();
        let mut paths = Vec::new();
        collect(TokenStream::from_str(code).unwrap(), &mut paths);
        let found = paths
            .iter()
            .filter_map(|path| path.resolve(&module(here), &modules));
        found.map(|module| module.join("::")).collect()
    }

    #[test]
    fn imports_are_read_from_uses_paths_and_macros() {
        assert_eq!(
            imported("a::x", "use crate::b::z::{self, Thing};"),
            ["b::z", "b::z"]
        );
        assert_eq!(
            imported("a::x", "use super::{y::Thing, y};"),
            ["a::y", "a::y"]
        );
        assert_eq!(
            imported("b::z", "fn f() { super::super::a::y::go() }"),
            ["a::y"]
        );
        assert_eq!(
            imported("b", "macro_rules! m { () => { $crate::a::x::go() } }"),
            ["a::x"]
        );
        assert_eq!(
            imported("b", "use crate::{a::{x, y}, b};"),
            ["a::x", "a::y", "b"]
        );
        assert_eq!(
            imported("b", "use std::sync::Arc; fn a() { x::y() }"),
            [""; 0]
        );
    }

    fn imports(edges: &[(&str, &str)]) -> Imports {
        let mut imports = Imports::default();
        for (from, to) in edges {
            imports
                .0
                .entry(module(from))
                .or_default()
                .insert(module(to));
        }
        imports
    }

    #[test]
    fn a_circle_is_named_at_its_own_depth() {
        let found = imports(&[("a::x", "b"), ("b", "a::y"), ("c", "a")]).circles();
        assert_eq!(found, [["a", "b"]]);

        let found = imports(&[("a::x", "a::y"), ("a::y", "a::x"), ("a::x", "b")]).circles();
        assert_eq!(found, [["a::x", "a::y"]]);

        assert!(
            imports(&[("a::x", "a::y"), ("a::x", "b"), ("b", "c")])
                .circles()
                .is_empty()
        );
    }

    #[test]
    fn an_import_of_a_higher_layer_is_named() {
        let found = imports(&[("low::x", "high::y"), ("high::y", "low::x"), ("z", "low")]);

        assert_eq!(
            found.upward("vgpu-core", &["low", "high"]),
            [
                "vgpu-core: low::x imports high::y, which is a layer above it",
                "vgpu-core: z stands in no layer",
            ]
        );
    }
}
