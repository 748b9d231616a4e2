//! A type's name stands for one type in a package: struct, enum, union, trait and alias at the level of a module,
//! those in a module's macro calls included where the call writes `struct` or another of these words. Types of
//! functions and of tests are local and may repeat a name, and so are a trait's associated types.

use std::collections::BTreeMap;

use proc_macro2::{TokenStream, TokenTree};

use crate::product::File;
use crate::source;

/// The words that a type's name follows.
const KINDS: [&str; 5] = ["struct", "enum", "union", "trait", "type"];

/// A type by its name, with the place that declares it: the file, and the path of a module inside it.
type Named = (String, String);

/// Every name that stands for types of two places in one package, one sentence each.
pub(crate) fn complaints(files: &[File]) -> Vec<String> {
    let mut found = Vec::new();
    for files in files.chunk_by(|a, b| a.folder == b.folder) {
        let written = files
            .iter()
            .filter(|file| !source::is_generated(&file.path));
        let named = written.flat_map(|file| declared(&file.path, file.tokens.clone()));
        found.extend(repeated(named));
    }
    found
}

fn repeated(named: impl Iterator<Item = Named>) -> Vec<String> {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, place) in named {
        let places = places.entry(name).or_default();
        // Twice in one module is one type with a form for each `cfg`.
        if !places.contains(&place) {
            places.push(place);
        }
    }
    let twice = places.into_iter().filter(|(_, places)| places.len() > 1);
    twice
        .map(|(name, places)| {
            format!(
                "the type {name} stands in {}; give each a name that says what it is, or share one type",
                places.join(" and in ")
            )
        })
        .collect()
}

/// The types that a stream of a module's tokens declares.
fn declared(place: &str, tokens: TokenStream) -> Vec<Named> {
    let mut found = Vec::new();
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        let before = |back: usize| at.checked_sub(back).and_then(|at| tokens.get(at));
        match token {
            TokenTree::Ident(name) => {
                let kind = before(1).and_then(word);
                if kind.is_some_and(|kind| KINDS.contains(&kind.as_str())) {
                    found.push((name.to_string(), place.to_owned()));
                }
            }
            TokenTree::Group(group) => {
                let inner = match (before(2).and_then(word).as_deref(), before(1)) {
                    // `mod name { … }`
                    (Some("mod"), Some(TokenTree::Ident(name))) => format!("{place} mod {name}"),
                    // `name! { … }` or `name!(…)`, and no `macro_rules! name { … }`
                    (Some(_), Some(TokenTree::Punct(mark))) if mark.as_char() == '!' => {
                        place.to_owned()
                    }
                    _ => continue,
                };
                found.extend(declared(&inner, group.stream()));
            }
            _ => {}
        }
    }
    found
}

fn word(token: &TokenTree) -> Option<String> {
    match token {
        TokenTree::Ident(name) => Some(name.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::product;

    /// What is said of a package with these files, `a.rs`, `b.rs` and so on.
    fn said(codes: &[&str]) -> String {
        let files: Vec<File> = ('a'..)
            .zip(codes)
            .map(|(name, code)| File {
                folder: "p".to_owned(),
                module: vec![name.to_string()],
                path: format!("{name}.rs"),
                text: (*code).to_owned(),
                tokens: product::tokens(code).unwrap(),
            })
            .collect();
        complaints(&files).join("; ")
    }

    #[test]
    fn name_of_two_types_is_named_with_both_places() {
        assert_eq!(
            said(&["pub struct Entry;", "enum Entry {}"]),
            "the type Entry stands in a.rs and in b.rs; give each a name that says what it is, or share one type"
        );
        for (a, b) in [
            ("union Entry { a: u8 }", "pub(crate) trait Entry {}"),
            ("type Entry = u8;", "unsafe trait Entry {}"),
            (
                "struct Entry<T>(T);",
                "#[derive(Debug)]\nstruct Entry { a: u8 }",
            ),
            ("bitflags! { struct Entry: u32 {} }", "struct Entry;"),
            ("page!(struct Entry, u32);", "struct Entry;"),
        ] {
            assert!(
                said(&[a, b]).contains("Entry stands in a.rs and in b.rs"),
                "{a} {b}"
            );
        }
        assert!(
            said(&["struct Entry; mod list { struct Entry; }"])
                .contains("Entry stands in a.rs and in a.rs mod list;")
        );
    }

    #[test]
    fn local_types_and_one_type_under_two_cfgs_are_left_alone() {
        for (a, b) in [
            ("struct Entry;", "struct Line;"),
            ("struct Entry;", "#[cfg(test)] mod tests { struct Entry; }"),
            ("struct Entry;", "fn f() { struct Entry; }"),
            ("struct Entry;", "impl Iterator for A { type Entry = u8; }"),
            ("struct Entry;", "trait A { type Entry; }"),
            ("struct Entry;", "use c::Entry; fn f() -> Entry {}"),
            (
                "struct Entry;",
                "macro_rules! m { () => { struct Entry; } }",
            ),
            ("#[cfg(a)] struct Entry; #[cfg(b)] struct Entry;", ""),
        ] {
            assert_eq!(said(&[a, b]), "", "{a} {b}");
        }
    }

    #[test]
    fn packages_may_share_a_name() {
        let file = |folder: &str| File {
            folder: folder.to_owned(),
            module: Vec::new(),
            path: format!("{folder}/src/lib.rs"),
            text: String::new(),
            tokens: product::tokens("struct Entry;").unwrap(),
        };
        assert_eq!(complaints(&[file("p"), file("q")]), [""; 0]);
    }
}
