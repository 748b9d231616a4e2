//! Text for people: sizes, bars, times, tables.
//!
//! Never asks what the terminal can do: the caller says so.

use std::fmt::Write;

use vgpu_abi::limits::Policy;
use vgpu_abi::size::Size;

use crate::values::policy_word;

/// Colours of a terminal, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Paint(pub(crate) bool);

impl Paint {
    pub(crate) fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.wrap("32", text)
    }

    pub(crate) fn yellow(self, text: &str) -> String {
        self.wrap("33", text)
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.wrap("31", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.0 {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// `3.1Gi / 4Gi`, or `3.1Gi` where there is no limit.
pub(crate) fn used_of(used: u64, limit: u64) -> String {
    if limit == 0 {
        Size(used).to_string()
    } else {
        format!("{} / {}", Size(used), Size(limit))
    }
}

/// The requested compute limit: `30% force`, `20-50% floor`, `none`.
pub(crate) fn asked_text(policy: Policy, cap: u32, floor: u32) -> String {
    let cap = if cap == 0 || cap >= 100 {
        None
    } else {
        Some(cap)
    };
    match (policy, cap) {
        (Policy::Floor, cap) if floor > 0 => format!("{floor}-{}% floor", cap.unwrap_or(100)),
        (_, None) => String::from("none"),
        (policy, Some(cap)) => format!("{cap}% {}", policy_word(policy)),
    }
}

/// Percent, rounded down; more than 100 if the use is above the limit.
pub(crate) fn percent(used: u64, limit: u64) -> Option<u64> {
    let hundredfold = u128::from(used) * 100;
    let percent = hundredfold.checked_div(u128::from(limit))?;
    Some(u64::try_from(percent).unwrap_or(u64::MAX))
}

/// `[#####-----]`, coloured by how full it is.
pub(crate) fn bar(used: u64, limit: u64, width: usize, paint: Paint) -> String {
    let Some(percent) = percent(used, limit) else {
        return String::new();
    };
    let share = usize::try_from(percent.min(100)).unwrap_or(100);
    // Any use shows at least one mark.
    let full = (share * width / 100).max(usize::from(used > 0)).min(width);
    let filled = "#".repeat(full);
    let filled = match percent {
        0..75 => paint.green(&filled),
        75..95 => paint.yellow(&filled),
        _ => paint.red(&filled),
    };
    format!("[{filled}{}]", paint.dim(&"-".repeat(width - full)))
}

/// `12%`, or a dash if unknown.
pub(crate) fn percent_text(percent: Option<u32>) -> String {
    percent.map_or_else(|| String::from("–"), |percent| format!("{percent}%"))
}

/// Thousandths as `29.8%`, or `30%` without a fraction.
pub(crate) fn permille_text(permille: u32) -> String {
    match permille % 10 {
        0 => format!("{}%", permille / 10),
        tenth => format!("{}.{tenth}%", permille / 10),
    }
}

/// A time span, short: `0ms`, `850ms`, `12.3s`, `4m`, `3h`, `2d`.
pub(crate) fn span(ns: u64) -> String {
    let ms = ns / 1_000_000;
    match ms {
        0..1_000 => format!("{ms}ms"),
        1_000..100_000 => format!("{}.{}s", ms / 1_000, ms / 100 % 10),
        100_000..6_000_000 => format!("{}m", ms / 60_000),
        6_000_000..172_800_000 => format!("{}h", ms / 3_600_000),
        _ => format!("{}d", ms / 86_400_000),
    }
}

/// A number, short: `999`, `12.3k`, `4.5M`.
pub(crate) fn number(number: u64) -> String {
    let mut whole = number;
    let mut rest = 0;
    for unit in ["", "k", "M", "G", "T", "P", "E"] {
        if whole < 1_000 {
            return match unit {
                "" => whole.to_string(),
                unit if whole < 100 => format!("{whole}.{}{unit}", rest / 100),
                unit => format!("{whole}{unit}"),
            };
        }
        rest = whole % 1_000;
        whole /= 1_000;
    }
    number.to_string()
}

/// Seconds since 1970 as `2026-11-21 14:02:03Z`.
pub(crate) fn utc(unix: u64) -> String {
    let days = unix / 86_400;
    let second = unix % 86_400;
    let (year, month, day) = civil(days);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}Z",
        second / 3_600,
        second / 60 % 60,
        second % 60
    )
}

/// Year, month and day of a number of days since 1970-01-01, in the Gregorian calendar.
fn civil(days: u64) -> (u64, u64, u64) {
    // Counted from 0000-03-01, so that the leap day is the last of its year.
    let days = days + 719_468;
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

/// A table whose columns are as wide as their widest cell. Escape sequences take no room.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    hidden: Vec<usize>,
}

impl Table {
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Leaves out columns, in this order, until it fits the width.
    pub(crate) fn fit(&mut self, columns: usize, expendable: &[usize]) {
        for column in expendable {
            let widths = self.widths();
            let shown = widths
                .iter()
                .enumerate()
                .filter(|(column, _)| !self.hidden.contains(column));
            let needed: usize = shown.map(|(_, width)| width + 2).sum();
            if needed.saturating_sub(2) <= columns {
                return;
            }
            self.hidden.push(*column);
        }
    }

    fn widths(&self) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width_of = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| width(cell)).max().unwrap_or(0)
        };
        (0..columns).map(width_of).collect()
    }

    pub(crate) fn write(&self, out: &mut String) {
        let widths = self.widths();
        for row in &self.rows {
            let mut line = String::new();
            for (index, (cell, column)) in row.iter().zip(&widths).enumerate() {
                if self.hidden.contains(&index) {
                    continue;
                }
                line.push_str(cell);
                line.extend(std::iter::repeat_n(' ', column - width(cell) + 2));
            }
            writeln!(out, "{}", line.trim_end()).ok();
        }
    }
}

/// How many columns a text takes, without its escape sequences.
pub(crate) fn width(text: &str) -> usize {
    let mut columns = 0;
    let mut in_escape = false;
    for c in text.chars() {
        if in_escape {
            in_escape = c != 'm';
        } else if c == '\x1b' {
            in_escape = true;
        } else {
            columns += 1;
        }
    }
    columns
}

/// Cuts each line to a width, keeping escape sequences whole.
pub(crate) fn clip(text: &str, columns: usize) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let mut taken = 0;
        let mut in_escape = false;
        for c in line.chars() {
            if in_escape {
                in_escape = c != 'm';
                out.push(c);
            } else if c == '\x1b' {
                in_escape = true;
                out.push(c);
            } else if taken < columns {
                taken += 1;
                out.push(c);
            }
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_as_the_calendar_says() {
        let written = [0, 951_782_400, 1_709_164_799, 1_795_271_523].map(utc);

        let expected = [
            "1970-01-01 00:00:00Z",
            "2000-02-29 00:00:00Z",
            "2024-02-28 23:59:59Z",
            "2026-11-21 14:32:03Z",
        ];
        assert_eq!(written, expected);
    }

    #[test]
    fn a_bar_shows_that_something_is_used_and_never_overflows() {
        let bars = [(0, 100), (1, 100), (50, 100), (100, 100), (250, 100)]
            .map(|(used, limit)| bar(used, limit, 10, Paint(false)));

        let expected = [
            "[----------]",
            "[#---------]",
            "[#####-----]",
            "[##########]",
            "[##########]",
        ];
        assert_eq!(bars, expected);
        assert_eq!(bar(5, 0, 10, Paint(true)), "");
    }

    #[test]
    fn colours_take_no_room_in_a_table_and_are_not_cut_in_two() {
        let mut table = Table::default();
        table.row(vec![Paint(true).red("ab"), String::from("c")]);
        table.row(vec![String::from("abcd"), String::from("e")]);
        let mut out = String::new();
        table.write(&mut out);

        assert_eq!(out, "\x1b[31mab\x1b[0m    c\nabcd  e\n");
        assert_eq!(clip(&out, 1), "\x1b[31ma\x1b[0m\na\n");
    }

    #[test]
    fn a_table_that_is_too_wide_leaves_out_what_matters_least() {
        let mut table = Table::default();
        table.row(
            ["name", "bar-bar-bar", "used", "age"]
                .map(String::from)
                .to_vec(),
        );
        table.row(["a", "b", "c", "d"].map(String::from).to_vec());
        let drawn = |columns| {
            let mut table = Table {
                rows: table.rows.clone(),
                hidden: Vec::new(),
            };
            table.fit(columns, &[1, 3]);
            let mut out = String::new();
            table.write(&mut out);
            out
        };

        assert_eq!(
            drawn(28),
            "name  bar-bar-bar  used  age\na     b            c     d\n"
        );
        assert_eq!(drawn(27), "name  used  age\na     c     d\n");
        assert_eq!(drawn(14), "name  used\na     c\n");
        assert_eq!(drawn(1), "name  used\na     c\n");
    }

    #[test]
    fn spans_and_numbers_are_short_and_lose_no_order() {
        let ms = |ms: u64| span(ms * 1_000_000 + 999_999);
        let spans = [
            0,
            999,
            1_000,
            99_999,
            100_000,
            5_999_999,
            6_000_000,
            999_999_999,
        ]
        .map(ms);
        assert_eq!(
            spans,
            ["0ms", "999ms", "1.0s", "99.9s", "1m", "99m", "1h", "11d"]
        );
        assert_eq!(span(u64::MAX), "213503d");
        let numbers = [0, 999, 1_000, 99_999, 123_456, 4_567_890, u64::MAX].map(number);
        assert_eq!(
            numbers,
            ["0", "999", "1.0k", "99.9k", "123k", "4.5M", "18.4E"]
        );
        assert_eq!(
            [0, 5, 298, 300, 1000].map(permille_text),
            ["0%", "0.5%", "29.8%", "30%", "100%"]
        );
    }

    #[test]
    fn compute_request_is_shown_in_a_word_or_two() {
        let asked = [
            asked_text(Policy::Force, 30, 0),
            asked_text(Policy::Default, 30, 0),
            asked_text(Policy::Disable, 30, 0),
            asked_text(Policy::Floor, 50, 20),
            asked_text(Policy::Floor, 0, 20),
            asked_text(Policy::Floor, 50, 0),
            asked_text(Policy::Force, 0, 0),
            asked_text(Policy::Default, 100, 0),
        ];

        assert_eq!(
            asked,
            [
                "30% force",
                "30% default",
                "30% disable",
                "20-50% floor",
                "20-100% floor",
                "50% floor",
                "none",
                "none"
            ]
        );
    }

    #[test]
    fn a_share_of_the_largest_numbers_is_not_lost() {
        assert_eq!(percent(u64::MAX, u64::MAX), Some(100));
        assert_eq!(percent(u64::MAX, 1), Some(u64::MAX));
        assert_eq!(percent(1, 0), None);
    }
}
