//! How verdicts are printed: failures first, each with evidence and cure.

use std::io::{IsTerminal, Write};

use serde::Serialize;

use super::Facts;
use super::check::{CheckRow, CheckVerdict, Listed};
use crate::args::doctor::DoctorArgs;
use crate::text::Paint;

/// The document that `--json` prints. Fields are added and never renamed.
#[derive(Serialize)]
struct DoctorDocument<'a> {
    version: u32,
    place: &'static str,
    why: &'a str,
    vgpu: &'a str,
    time_unix: u64,
    summary: Summary,
    checks: &'a [CheckRow],
}

/// Number of checks with each verdict.
#[derive(Serialize)]
struct Summary {
    ok: usize,
    warn: usize,
    fail: usize,
    skipped: usize,
}

/// The order in which verdicts are printed.
const ORDER: [CheckVerdict; 4] = [
    CheckVerdict::Fail,
    CheckVerdict::Warn,
    CheckVerdict::Ok,
    CheckVerdict::Skipped,
];

/// The narrowest line of text.
const NARROWEST: usize = 40;
/// The width at which a list of ids is broken if the terminal's width is unknown.
const USUAL: usize = 100;

pub(super) fn list(checks: &[&Listed], json: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, checks).map_err(std::io::Error::from)?;
        writeln!(out)?;
        return Ok(());
    }
    let mut text = String::new();
    let columns = columns();
    for check in checks {
        entry(
            &mut text,
            &format!("{}  {:<9}", check.id, check.place.word()),
            check.title,
            columns,
        );
        detail(&mut text, "cure", check.cure, columns);
    }
    out.write_all(text.as_bytes())?;
    Ok(())
}

pub(super) fn rows(args: &DoctorArgs, facts: &Facts, rows: &[CheckRow]) -> anyhow::Result<()> {
    let count = |verdict| rows.iter().filter(|row| row.verdict == verdict).count();
    let mut out = std::io::stdout().lock();
    if args.json {
        let document = DoctorDocument {
            version: 1,
            place: facts.scope().word(),
            why: &facts.why,
            vgpu: &facts.vgpu,
            time_unix: facts.at_unix,
            summary: Summary {
                ok: count(CheckVerdict::Ok),
                warn: count(CheckVerdict::Warn),
                fail: count(CheckVerdict::Fail),
                skipped: count(CheckVerdict::Skipped),
            },
            checks: rows,
        };
        serde_json::to_writer_pretty(&mut out, &document).map_err(std::io::Error::from)?;
        writeln!(out)?;
        return Ok(());
    }
    let colour = std::io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let text = drawn(facts, rows, args.all, Paint(colour), columns());
    out.write_all(text.as_bytes())?;
    Ok(())
}

fn drawn(
    facts: &Facts,
    rows: &[CheckRow],
    all: bool,
    paint: Paint,
    columns: Option<usize>,
) -> String {
    let mut text = format!(
        "looking at: {} ({})\n",
        facts.scope().word(),
        plain(&facts.why)
    );
    for verdict in ORDER {
        let of_it: Vec<&CheckRow> = rows.iter().filter(|row| row.verdict == verdict).collect();
        if of_it.is_empty() {
            continue;
        }
        let word = match verdict {
            CheckVerdict::Fail => paint.red("fail"),
            CheckVerdict::Warn => paint.yellow("warn"),
            CheckVerdict::Ok => paint.green("ok"),
            CheckVerdict::Skipped => paint.dim("skipped"),
        };
        text.push_str(&format!("\n{word} ({})\n", of_it.len()));
        if all || matches!(verdict, CheckVerdict::Fail | CheckVerdict::Warn) {
            for row in of_it {
                entry(&mut text, row.id, row.title, columns);
                let saw = if verdict == CheckVerdict::Skipped {
                    "why"
                } else {
                    "saw"
                };
                detail(&mut text, saw, &row.evidence, columns);
                if let Some(cure) = row.cure {
                    detail(&mut text, "cure", cure, columns);
                }
            }
            continue;
        }
        if verdict == CheckVerdict::Ok {
            let ids: Vec<&str> = of_it.iter().map(|row| row.id).collect();
            entry(
                &mut text,
                "",
                &ids.join(" "),
                Some(columns.unwrap_or(USUAL)),
            );
            continue;
        }
        // Checks that are skipped for the same reason share a line.
        let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
        for row in of_it {
            match reasons.iter_mut().find(|(why, _)| *why == row.evidence) {
                Some((_, ids)) => ids.push(row.id),
                None => reasons.push((&row.evidence, vec![row.id])),
            }
        }
        for (why, ids) in reasons {
            entry(
                &mut text,
                "",
                &ids.join(" "),
                Some(columns.unwrap_or(USUAL)),
            );
            detail(&mut text, "why", why, columns);
        }
    }
    let count = |verdict| rows.iter().filter(|row| row.verdict == verdict).count();
    let counts = ORDER.map(|verdict| format!("{} {}", count(verdict), verdict.word()));
    text.push_str(&format!("\n{}\n", counts.join(", ")));
    text
}

fn columns() -> Option<usize> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    terminal_size::terminal_size().map(|(width, _)| usize::from(width.0).max(NARROWEST))
}

fn entry(text: &mut String, id: &str, title: &str, columns: Option<usize>) {
    let head = if id.is_empty() {
        String::from("  ")
    } else {
        format!("  {id}  ")
    };
    wrapped(text, &head, title, columns);
}

fn detail(text: &mut String, word: &str, what: &str, columns: Option<usize>) {
    wrapped(text, &format!("    {word:<5}"), what, columns);
}

/// `head`, then the words, wrapped at this width and indented to the first word.
fn wrapped(text: &mut String, head: &str, words: &str, columns: Option<usize>) {
    let indent = head.chars().count();
    let mut at = indent;
    text.push_str(head);
    let mut first = true;
    for word in plain(words).split_whitespace() {
        let length = word.chars().count();
        if !first {
            if columns.is_some_and(|columns| at + 1 + length > columns) {
                text.push('\n');
                text.extend(std::iter::repeat_n(' ', indent));
                at = indent;
            } else {
                text.push(' ');
                at += 1;
            }
        }
        text.push_str(word);
        at += length;
        first = false;
    }
    text.push('\n');
}

/// Evidence may contain any character; characters that would move the terminal's cursor are replaced.
fn plain(text: &str) -> String {
    text.chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_too_long_goes_on_below_its_first_word() {
        let mut text = String::new();
        wrapped(
            &mut text,
            "    saw  ",
            "one two\nthree\x1b[2J four",
            Some(20),
        );
        assert_eq!(
            text,
            "    saw  one two\n         three [2J\n         four\n"
        );
        let mut text = String::new();
        wrapped(&mut text, "  ", "as wide as it is", None);
        assert_eq!(text, "  as wide as it is\n");
    }
}
