//! Sizes as text, in the two dialects that people use. Owns the one table of suffixes.
//!
//! Never guesses: a text that is not in the table is an error that says what was read and what is
//! accepted. Zero parses; whether it means "no limit" is for the caller to say.

use std::fmt;

/// Why a text is not a size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizeError {
    read: String,
    problem: Problem,
    accepted: &'static str,
}

/// The fault of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Problem {
    /// Nothing but white space.
    Empty,
    /// Begins with a minus sign.
    Negative,
    /// A number without a unit, where a unit is required.
    NoUnit,
    /// A unit that is not in the table.
    UnknownUnit,
    /// Does not begin with a decimal number.
    NotANumber,
    /// A fraction where only whole numbers are taken.
    Fraction,
    /// More than 2^64 - 1 bytes.
    TooLarge,
}

impl SizeError {
    /// The fault of the text.
    #[must_use]
    pub fn problem(&self) -> Problem {
        self.problem
    }
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let problem = match self.problem {
            Problem::Empty => "is empty",
            Problem::Negative => "is negative",
            Problem::NoUnit => "has no unit",
            Problem::UnknownUnit => "has a unit that is not known",
            Problem::NotANumber => "is not a number with a unit",
            Problem::Fraction => "is a fraction",
            Problem::TooLarge => "is larger than 2^64 bytes",
        };
        write!(
            f,
            "size {:?} {problem}; accepted: {}",
            self.read, self.accepted
        )
    }
}

impl std::error::Error for SizeError {}

const OURS: &str = "a number and one of Ki Mi Gi Ti (1024-based) or K M G T (1000-based), \
                    such as 4Gi, 1.5Gi or 500M";
const PEERS: &str = "whole bytes, or a whole number and one of k m g in any case, with or without \
                     i, B or iB (all 1024-based), such as 4g, 4Gi or 4096MiB";

/// Reads a size as our command line and files write it: `Ki Mi Gi Ti` are 1024-based, `K M G T`
/// 1000-based, a fraction is rounded down to whole bytes, a bare number is refused.
///
/// # Errors
/// Says what was read and what is accepted.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let fail = |problem| SizeError {
        read: text.to_owned(),
        problem,
        accepted: OURS,
    };
    let (number, unit) = split(text).map_err(fail)?;
    let unit: u64 = match unit {
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        "K" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "" => return Err(fail(Problem::NoUnit)),
        _ => return Err(fail(Problem::UnknownUnit)),
    };
    number.times(unit).map_err(fail)
}

/// Reads a size as the peers' environment variables write it: `k m g` in any case, with or without
/// `i`, `B` or `iB`, are 1024-based; a bare number is bytes.
///
/// # Errors
/// Says what was read and what is accepted.
pub fn parse_peer(text: &str) -> Result<u64, SizeError> {
    let fail = |problem| SizeError {
        read: text.to_owned(),
        problem,
        accepted: PEERS,
    };
    let (number, unit) = split(text).map_err(fail)?;
    let unit = unit.to_ascii_lowercase();
    let unit: u64 = match unit.as_str() {
        "" => 1,
        "k" | "ki" | "kb" | "kib" => 1 << 10,
        "m" | "mi" | "mb" | "mib" => 1 << 20,
        "g" | "gi" | "gb" | "gib" => 1 << 30,
        _ => return Err(fail(Problem::UnknownUnit)),
    };
    if number.has_point {
        return Err(fail(Problem::Fraction));
    }
    number.times(unit).map_err(fail)
}

/// A decimal number as `digits / 10^places`.
struct Decimal {
    digits: u128,
    places: u32,
    has_point: bool,
}

impl Decimal {
    /// The number times a unit, rounded down.
    fn times(&self, unit: u64) -> Result<u64, Problem> {
        let scale = 10_u128.pow(self.places);
        let product = self
            .digits
            .checked_mul(u128::from(unit))
            .ok_or(Problem::TooLarge)?;
        u64::try_from(product / scale).map_err(|_| Problem::TooLarge)
    }
}

/// More places than this change no byte of a size that fits into 64 bits.
const MOST_PLACES: u32 = 18;

fn split(text: &str) -> Result<(Decimal, &str), Problem> {
    let text = text.trim();
    if text.is_empty() {
        return Err(Problem::Empty);
    }
    if text.starts_with('-') {
        return Err(Problem::Negative);
    }
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let has_point = number.contains('.');
    if whole.is_empty() || (has_point && fraction.is_empty()) || fraction.contains('.') {
        return Err(Problem::NotANumber);
    }
    let mut digits = 0_u128;
    let mut places = 0;
    for digit in whole.bytes() {
        digits = digits
            .checked_mul(10)
            .and_then(|d| d.checked_add(u128::from(digit - b'0')))
            .filter(|d| *d <= u128::from(u64::MAX))
            .ok_or(Problem::TooLarge)?;
    }
    for digit in fraction.bytes() {
        if places == MOST_PLACES {
            break;
        }
        digits = digits * 10 + u128::from(digit - b'0');
        places += 1;
    }
    Ok((
        Decimal {
            digits,
            places,
            has_point,
        },
        unit.trim_start(),
    ))
}

/// Bytes for a person: the largest 1024-based unit with at most two places (`1.5Gi`, `300Mi`, `0`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")] {
            let one = 1_u64 << shift;
            if self.0 < one {
                continue;
            }
            let whole = self.0 >> shift;
            let hundredths = (u128::from(self.0 & (one - 1)) * 100) >> shift;
            let text = match hundredths {
                0 => format!("{whole}{unit}"),
                h if h % 10 == 0 => format!("{whole}.{}{unit}", h / 10),
                h => format!("{whole}.{h:02}{unit}"),
            };
            return f.pad(&text);
        }
        f.pad(&self.0.to_string())
    }
}

impl std::str::FromStr for Size {
    type Err = SizeError;

    /// Parses the text with [`parse`].
    fn from_str(text: &str) -> Result<Self, SizeError> {
        parse(text).map(Self)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn check(read: fn(&str) -> Result<u64, SizeError>, cases: &[(&str, Result<u64, Problem>)]) {
        for (text, expected) in cases {
            let found = read(text).map_err(|e| e.problem());
            assert_eq!(&found, expected, "{text:?}");
        }
    }

    #[test]
    fn peers_suffixes_are_powers_of_1024_and_bare_numbers_bytes() {
        check(
            parse_peer,
            &[
                ("0", Ok(0)),
                ("4096", Ok(4096)),
                ("1k", Ok(1 << 10)),
                ("1K", Ok(1 << 10)),
                ("1KiB", Ok(1 << 10)),
                ("3m", Ok(3 << 20)),
                ("3Mi", Ok(3 << 20)),
                ("3MB", Ok(3 << 20)),
                ("4g", Ok(4 << 30)),
                ("4G", Ok(4 << 30)),
                ("4Gi", Ok(4 << 30)),
                ("4GB", Ok(4 << 30)),
                ("4GIB", Ok(4 << 30)),
                (" 4g\n", Ok(4 << 30)),
                ("18446744073709551615", Ok(u64::MAX)),
            ],
        );
    }

    #[test]
    fn size_that_a_peer_misreads_is_an_error() {
        check(
            parse_peer,
            &[
                ("", Err(Problem::Empty)),
                ("  ", Err(Problem::Empty)),
                ("-1", Err(Problem::Negative)),
                ("-1g", Err(Problem::Negative)),
                ("4T", Err(Problem::UnknownUnit)),
                ("4B", Err(Problem::UnknownUnit)),
                ("4i", Err(Problem::UnknownUnit)),
                ("4gig", Err(Problem::UnknownUnit)),
                ("0x10", Err(Problem::UnknownUnit)),
                ("4gg", Err(Problem::UnknownUnit)),
                ("g", Err(Problem::NotANumber)),
                ("+4g", Err(Problem::NotANumber)),
                ("1.5g", Err(Problem::Fraction)),
                ("18446744073709551616", Err(Problem::TooLarge)),
                ("17179869184g", Err(Problem::TooLarge)),
                (
                    "99999999999999999999999999999999999999999999g",
                    Err(Problem::TooLarge),
                ),
            ],
        );
    }

    #[test]
    fn our_suffixes_say_their_base_and_a_bare_number_is_refused() {
        check(
            parse,
            &[
                ("4Gi", Ok(4 << 30)),
                ("1.5Gi", Ok(3 << 29)),
                ("0.5Ti", Ok(1 << 39)),
                ("512Ki", Ok(512 << 10)),
                ("4G", Ok(4_000_000_000)),
                ("500M", Ok(500_000_000)),
                ("1.25K", Ok(1250)),
                ("2T", Ok(2_000_000_000_000)),
                ("4 Gi", Ok(4 << 30)),
                ("0Gi", Ok(0)),
                ("0.3333333333333333333333333333Ki", Ok(341)),
                ("4096", Err(Problem::NoUnit)),
                ("0", Err(Problem::NoUnit)),
                ("1.5", Err(Problem::NoUnit)),
                ("4GB", Err(Problem::UnknownUnit)),
                ("4gi", Err(Problem::UnknownUnit)),
                ("4Pi", Err(Problem::UnknownUnit)),
                ("-4Gi", Err(Problem::Negative)),
                ("1..5Gi", Err(Problem::NotANumber)),
                ("1.Gi", Err(Problem::NotANumber)),
                (".5Gi", Err(Problem::NotANumber)),
                ("Gi", Err(Problem::NotANumber)),
                ("١Gi", Err(Problem::NotANumber)),
                ("16777216Ti", Err(Problem::TooLarge)),
                ("16777215Ti", Ok(16_777_215 << 40)),
            ],
        );
    }

    #[test]
    fn an_error_says_what_was_read_and_what_is_accepted() {
        let text = parse("4096").unwrap_err().to_string();

        assert!(text.starts_with("size \"4096\" has no unit; accepted: a number and one of Ki"));
    }

    #[test]
    fn a_size_prints_in_its_largest_unit() {
        let printed: Vec<_> = [
            0,
            512,
            1 << 10,
            300 << 20,
            3 << 29,
            (1 << 30) + (1 << 24),
            1 << 44,
            u64::MAX,
        ]
        .map(|b| Size(b).to_string())
        .into();

        let expected = [
            "0",
            "512",
            "1Ki",
            "300Mi",
            "1.5Gi",
            "1.01Gi",
            "16Ti",
            "16777215.99Ti",
        ];
        assert_eq!(printed, expected);
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in "\\PC*") {
            let _ours = parse(&text);
            let _theirs = parse_peer(&text);
        }

        #[test]
        fn whole_gibibytes_come_back(n in 0_u64..1 << 20) {
            proptest::prop_assert_eq!(parse(&format!("{n}Gi")), Ok(n << 30));
        }
    }
}
