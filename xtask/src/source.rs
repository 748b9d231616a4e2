//! What the source of the products may not have: a long file, an error that is text, a table of hooks outside
//! `hooks`, and `unsafe` in a place that docs/architecture.md does not list. Read from the source's tokens, macros
//! included. Tests are not looked at.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::product::File;

/// The longest file of product code, lines.
const LINES_MOST: usize = 800;
/// Generated files and folders, of any length.
const GENERATED: [&str; 2] = [
    "crates/cuda-api/src/generated.rs",
    "vgpu-monitor/src/proto/",
];
/// The folder of the library's layer that alone has tables of hooks.
const HOOKS: &str = "vgpu-core/src/hooks/";
/// Where the macro of these tables is defined.
const HOOKS_MACRO: &str = "vgpu-core/src/driver/hook.rs";
/// The heading in docs/architecture.md over the tables of places with `unsafe`.
const HEADING: &str = "## Where `unsafe` is";

/// Files that are too long, errors that are text, and tables of hooks in the wrong place, one sentence each.
pub(crate) fn complaints(files: &[File]) -> Vec<String> {
    let judged = files.iter().map(|file| {
        let words = words(&file.tokens);
        faults(&file.path, product_lines(&file.text), &words)
    });
    judged.flatten().collect()
}

/// Files with `unsafe` that the tables in docs/architecture.md do not list, and places in the tables without `unsafe`.
///
/// # Errors
/// When the document cannot be read.
pub(crate) fn unsafe_complaints(root: &Path, files: &[File]) -> anyhow::Result<Vec<String>> {
    let document = root.join("docs/architecture.md");
    let text = std::fs::read_to_string(&document)
        .with_context(|| format!("cannot read {}", document.display()))?;
    let listed = listed(&text).with_context(|| format!("{}", document.display()))?;
    let with_unsafe = files
        .iter()
        .filter(|file| words(&file.tokens).iter().any(|word| word == "unsafe"))
        .map(|file| file.path.as_str());
    Ok(compared(&listed, &with_unsafe.collect::<Vec<_>>()))
}

/// Does a program write this file?
pub(crate) fn is_generated(path: &str) -> bool {
    GENERATED
        .iter()
        .any(|generated| path.starts_with(generated))
}

fn faults(path: &str, lines: usize, words: &[String]) -> Vec<String> {
    if is_generated(path) {
        return Vec::new();
    }
    let mut found = Vec::new();
    if lines > LINES_MOST {
        found.push(format!(
            "{path} has {lines} lines beside its tests; a file of product code has at most {LINES_MOST}: split it"
        ));
    }
    if has_text_error(words) {
        found.push(format!(
            "{path} has a Result whose error is a String; give the error a type, so that callers match it"
        ));
    }
    let is_table = words
        .windows(2)
        .any(|pair| matches!(pair, [name, mark] if name == "hooks" && mark == "!"));
    if is_table && !path.starts_with(HOOKS) && path != HOOKS_MACRO {
        found.push(format!(
            "{path} has a table of hooks; they stand in {HOOKS}, and rules in rules/"
        ));
    }
    found
}

/// The tokens in order, with the brackets of groups.
fn words(tokens: &TokenStream) -> Vec<String> {
    let mut words = Vec::new();
    flatten(tokens.clone(), &mut words);
    words
}

fn flatten(tokens: TokenStream, words: &mut Vec<String>) {
    for token in tokens {
        let TokenTree::Group(group) = token else {
            words.push(token.to_string());
            continue;
        };
        let (open, close) = match group.delimiter() {
            Delimiter::Parenthesis => ("(", ")"),
            Delimiter::Brace => ("{", "}"),
            Delimiter::Bracket => ("[", "]"),
            Delimiter::None => ("", ""),
        };
        words.push(open.to_owned());
        flatten(group.stream(), words);
        words.push(close.to_owned());
    }
}

/// Is there a `Result<…, String>`?
fn has_text_error(words: &[String]) -> bool {
    let begins = words
        .windows(2)
        .enumerate()
        .filter(|(_, pair)| matches!(pair, [name, mark] if name == "Result" && mark == "<"));
    begins
        .filter_map(|(at, _)| words.get(at + 2..))
        .any(|rest| last_argument(rest) == ["String"])
}

/// The last of two or more arguments of a type whose `<` stands before these tokens.
fn last_argument(words: &[String]) -> &[String] {
    let (mut depth, mut brackets, mut last) = (1_u32, 0_u32, None);
    for (at, word) in words.iter().enumerate() {
        let is_arrow = at
            .checked_sub(1)
            .and_then(|before| words.get(before))
            .is_some_and(|before| before == "-" || before == "=");
        match word.as_str() {
            "(" | "[" | "{" => brackets += 1,
            ")" | "]" | "}" => brackets = brackets.saturating_sub(1),
            "<" => depth += 1,
            ">" if !is_arrow => depth -= 1,
            "," if depth == 1
                && brackets == 0
                && words.get(at + 1).is_some_and(|next| next != ">") =>
            {
                last = Some(at + 1);
            }
            _ => {}
        }
        if depth == 0 {
            let argument = last.and_then(|last| words.get(last..at));
            return argument
                .map(|argument| {
                    argument
                        .strip_suffix(&[String::from(",")])
                        .unwrap_or(argument)
                })
                .unwrap_or_default();
        }
    }
    &[]
}

/// Lines of a formatted file without its modules of tests.
fn product_lines(code: &str) -> usize {
    let mut lines = code.lines();
    let mut count = 0;
    while let Some(line) = lines.next() {
        if !line.starts_with("#[cfg(test)]") {
            count += 1;
            continue;
        }
        // Up to the item's last line; further attributes may stand before it.
        let item = lines.find(|line| !line.starts_with("#["));
        if item.is_some_and(|item| item.ends_with('{')) {
            lines.find(|line| line.starts_with('}'));
        }
    }
    count
}

/// The places of the tables: a file, or a folder that ends in `/`, from the top of the repository.
fn listed(document: &str) -> anyhow::Result<BTreeSet<String>> {
    let section = document
        .split_once(HEADING)
        .with_context(|| format!("there is no heading \"{HEADING}\""))?
        .1;
    let section = section
        .split_once("\n## ")
        .map_or(section, |(section, _)| section);
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let places = rows.filter_map(|row| row.split_once(" |")).flat_map(|row| {
        let cell = row.0.trim_end_matches('`');
        cell.split("`, `").map(str::to_owned).collect::<Vec<_>>()
    });
    Ok(places.flat_map(|place| unfolded(&place)).collect())
}

/// `a/{b,c}.rs` is `a/b.rs` and `a/c.rs`.
fn unfolded(place: &str) -> Vec<String> {
    let braces = place
        .split_once('{')
        .and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    match braces {
        None => vec![place.to_owned()],
        Some((before, (inner, after))) => inner
            .split(',')
            .map(|one| format!("{before}{one}{after}"))
            .collect(),
    }
}

fn compared(listed: &BTreeSet<String>, with_unsafe: &[&str]) -> Vec<String> {
    let covers = |place: &str, file: &str| {
        if place.ends_with('/') {
            file.starts_with(place)
        } else {
            file == place
        }
    };
    let missing = with_unsafe
        .iter()
        .filter(|file| !listed.iter().any(|place| covers(place, file)))
        .map(|file| {
            format!(
                "{file} has unsafe, and the tables in docs/architecture.md do not list it: use what has it already, \
                 or list the file with the reason"
            )
        });
    let stale = listed
        .iter()
        .filter(|place| !with_unsafe.iter().any(|file| covers(place, file)))
        .map(|place| {
            format!("docs/architecture.md lists {place} as a place with unsafe, and it has none")
        });
    missing.chain(stale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::product;

    fn said(path: &str, code: &str) -> String {
        let tokens = product::tokens(code).unwrap();
        faults(path, product_lines(code), &words(&tokens)).join("; ")
    }

    #[test]
    fn error_that_is_text_is_found_wherever_the_type_stands() {
        for code in [
            "fn f() -> Result<(), String> {}",
            "fn f() -> Result<\n    Vec<(u8, u8)>,\n    String,\n> {}",
            "struct S { s: Sender<Option<Result<(), String>>> }",
            "fn f() { let g = || -> Result<fn(u8) -> u8, String> { h() }; }",
        ] {
            assert!(said("a.rs", code).contains("error is a String"), "{code}");
        }
    }

    #[test]
    fn texts_that_are_no_errors_are_left_alone() {
        for code in [
            "fn f() -> Result<String, Misfit> {}",
            "fn f() -> anyhow::Result<String> {}",
            "fn f() -> Result<u8, Vec<String>> {}",
            "fn f() -> Result<(u8, String), Misfit> {}",
            "fn f() -> Result<HashMap<u8, String>, Misfit> {}",
            "#[cfg(test)]\nmod tests {\n    fn f() -> Result<(), String> {}\n}\n",
        ] {
            assert_eq!(said("a.rs", code), "", "{code}");
        }
    }

    #[test]
    fn lines_of_tests_are_not_counted() {
        let code = "fn a() {}\n".repeat(LINES_MOST);
        let tests = "\n#[cfg(test)]\nmod tests {\n    fn b() {\n    }\n}\n";
        assert_eq!(product_lines(&format!("{code}#[cfg(test)]\nmod t;\n")), 800);
        assert_eq!(said("a.rs", &code), "");

        let more = format!("{code}{tests}fn c() {{}}\n");
        assert!(said("a.rs", &more).starts_with("a.rs has 802 lines"));
        assert_eq!(said("vgpu-monitor/src/proto/a.rs", &more), "");
    }

    #[test]
    fn tables_of_hooks_stand_in_their_folder() {
        let code = "hooks! { cuda -> CuResult, default; }";
        assert_eq!(said("vgpu-core/src/hooks/cuda.rs", code), "");
        assert!(said("vgpu-core/src/rules/nvml.rs", code).contains("table of hooks"));
    }

    #[test]
    fn places_with_unsafe_are_compared_in_both_directions() {
        let document = format!(
            "# A\n\n{HEADING}\n\n| place | why |\n|---|---|\n| `a/{{b,c}}.rs`, `d/` | x |\n\n## B\n\n| `z` | y |\n"
        );
        let listed = listed(&document).unwrap();

        assert!(compared(&listed, &["a/b.rs", "a/c.rs", "d/e.rs"]).is_empty());
        let said = compared(&listed, &["a/b.rs", "d/e.rs", "d.rs"]).join("; ");
        assert!(said.contains("d.rs has unsafe"), "{said}");
        assert!(said.contains("lists a/c.rs"), "{said}");
    }
}
