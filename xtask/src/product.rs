//! The product code of the workspace, read once for all checks: each file with its text and its tokens, macros
//! included. Judges nothing.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context;
use proc_macro2::{Delimiter, LexError, TokenStream, TokenTree};

/// A module by its path below the crate's root: `["rules", "nvml", "lists"]`.
pub(crate) type Module = Vec<String>;

/// A file of product code.
pub(crate) struct File {
    /// The folder of its crate, from the top of the repository.
    pub(crate) folder: String,
    /// The module that it is.
    pub(crate) module: Module,
    /// Its path from the top of the repository.
    pub(crate) path: String,
    /// Its text, tests included.
    pub(crate) text: String,
    /// Its tokens, tests left out.
    pub(crate) tokens: TokenStream,
}

/// All product code of the workspace's members, one crate after the other.
///
/// # Errors
/// When the source cannot be read, or is no Rust.
pub(crate) fn files(root: &Path) -> anyhow::Result<Vec<File>> {
    let mut found = Vec::new();
    for folder in crates(root)? {
        let mut files = Vec::new();
        files_below(&root.join(&folder).join("src"), &mut Vec::new(), &mut files)?;
        for (module, file) in files {
            let text = std::fs::read_to_string(&file)
                .with_context(|| format!("cannot read {}", file.display()))?;
            let tokens =
                tokens(&text).map_err(|error| anyhow::anyhow!("{}: {error}", file.display()))?;
            let path = file.strip_prefix(root).unwrap_or(&file);
            found.push(File {
                folder: folder.clone(),
                module,
                path: path.to_string_lossy().into_owned(),
                text,
                tokens,
            });
        }
    }
    Ok(found)
}

/// The tokens of a file, without the items behind `#[cfg(test)]`.
///
/// # Errors
/// When it is no Rust.
pub(crate) fn tokens(text: &str) -> Result<TokenStream, LexError> {
    Ok(without_tests(TokenStream::from_str(text)?))
}

fn without_tests(tokens: TokenStream) -> TokenStream {
    let mut kept = Vec::new();
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(mark) if mark.as_char() == '#' && is_for_tests(tokens.peek()) => {
                // The item: up to its braces, or to a semicolon.
                tokens.find(|token| match token {
                    TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                    TokenTree::Punct(mark) => mark.as_char() == ';',
                    _ => false,
                });
            }
            TokenTree::Group(group) => {
                let inner = without_tests(group.stream());
                kept.push(proc_macro2::Group::new(group.delimiter(), inner).into());
            }
            token => kept.push(token),
        }
    }
    kept.into_iter().collect()
}

/// Is it the `[cfg(test)]` or `[cfg(all(test, …))]` of an attribute?
fn is_for_tests(token: Option<&TokenTree>) -> bool {
    let Some(TokenTree::Group(group)) = token else {
        return false;
    };
    let text: String = group.stream().to_string().split_whitespace().collect();
    text.starts_with("cfg(test")
        || text.starts_with("cfg(all(test")
        || text.starts_with("cfg(all(loom,test")
}

/// The folders of the workspace's members that have source of their own, from the top of the repository.
///
/// # Errors
/// When Cargo.toml cannot be read.
pub(crate) fn crates(root: &Path) -> anyhow::Result<Vec<String>> {
    let manifest =
        std::fs::read_to_string(root.join("Cargo.toml")).context("cannot read Cargo.toml")?;
    let members = manifest
        .split_once("members = [")
        .and_then(|(_, rest)| rest.split_once(']'))
        .context("Cargo.toml names no members")?
        .0;
    let mut found = Vec::new();
    for member in members.split(',').map(|it| it.trim().trim_matches('"')) {
        if !member.is_empty() && root.join(member).join("src").is_dir() {
            found.push(member.to_owned());
        }
    }
    Ok(found)
}

/// Rust files with the module that each is. Files of tests are left out.
fn files_below(
    folder: &Path,
    module: &mut Module,
    files: &mut Vec<(Module, PathBuf)>,
) -> anyhow::Result<()> {
    let read =
        std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut entries: Vec<PathBuf> = read
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    entries.sort();
    for path in entries {
        let name = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if name == "tests" || name.ends_with("_tests") {
            continue;
        }
        if path.is_dir() {
            module.push(name);
            files_below(&path, module, files)?;
            module.pop();
        } else if path.extension().is_some_and(|it| it == "rs") {
            let mut of = module.clone();
            if !matches!(name.as_str(), "lib" | "main" | "mod") {
                of.push(name);
            }
            files.push((of, path));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_for_tests_is_left_out() {
        let kept = |code: &str| tokens(code).unwrap().to_string();
        for code in [
            "#[cfg(test)] mod tests { use crate::a; } use crate::b;",
            "#[cfg(test)] use crate::a; use crate::b;",
            "#[cfg(all(loom, test))] mod tests { use crate::a; } use crate::b;",
        ] {
            assert_eq!(kept(code), kept("use crate::b;"), "{code}");
        }
        assert_eq!(
            kept("mod m { #[cfg(test)] fn f() {} fn g() {} }"),
            kept("mod m { fn g() {} }")
        );
    }
}
