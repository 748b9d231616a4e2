//! A bar of the held part of a whole: used, not used, and not measured.

use super::{Sum, compute};
use crate::text;
use crate::view::bar::share;

/// A bar and its words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Meter {
    /// The held amount and the whole.
    pub held: String,
    /// The used part, or a note that it is not measured; empty if nothing is held.
    pub used: String,
    /// Whether the use of the held part is known.
    pub measured: bool,
    /// Whether more is held than exists.
    pub over: bool,
    /// The parts, from the left.
    pub parts: Vec<MeterPart>,
    /// The bar in words, for screen readers.
    pub spoken: String,
}

/// A part of a bar.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MeterPart {
    /// Its class in the style sheet.
    pub class: &'static str,
    /// Its start, in percent of the bar with two decimals.
    pub from: String,
    /// Its width, in the same unit.
    pub width: String,
}

/// The used part.
const USED: &str = "meter-used";
/// The part that is held and not used.
const IDLE: &str = "meter-idle";
/// The part that is held and not measured.
const UNKNOWN: &str = "meter-unknown";

/// A bar of the held part of a whole. `measured` is the part of `held` that is measured, and `used` the used part of
/// that.
pub fn meter(
    label: &str,
    whole: u64,
    held: u64,
    measured: u64,
    used: Option<u64>,
    words: impl Fn(u64) -> String,
) -> Meter {
    let within = used.unwrap_or(0).min(measured);
    let scale = u128::from(whole.max(held).max(1));
    let mut begin = 0;
    let mut parts = Vec::new();
    for (class, amount) in [
        (USED, within),
        (IDLE, measured - within),
        (UNKNOWN, held.saturating_sub(measured)),
    ] {
        if amount > 0 {
            parts.push(MeterPart {
                class,
                from: format!("{:.2}", share(begin, scale)),
                width: format!("{:.2}", share(amount.into(), scale)),
            });
            begin += u128::from(amount);
        }
    }
    let held_text = if whole == 0 {
        format!("{} held", words(held))
    } else if held == 0 {
        format!("{} free", words(whole))
    } else {
        format!("{} of {} held", words(held), words(whole))
    };
    let used_text = match used {
        Some(used) => format!("{} used", words(used)),
        None if held == 0 => String::new(),
        None => "use not measured".to_owned(),
    };
    let spoken = if used_text.is_empty() {
        format!("{label}: {held_text}")
    } else if used.is_none() {
        format!("{label}: {held_text}, use not measured")
    } else {
        format!("{label}: {held_text}, {used_text}")
    };
    Meter {
        over: whole > 0 && held > whole,
        held: held_text,
        used: used_text,
        measured: used.is_some(),
        parts,
        spoken,
    }
}

/// The memory of a whole that these shares hold.
pub fn memory(whole: u64, sum: &Sum) -> Meter {
    let used = sum.is_measured().then_some(sum.used);
    meter("Memory", whole, sum.memory, sum.measured, used, text::bytes)
}

/// The compute that these shares hold of one GPU, in percent of it.
pub fn compute_of_one(sum: &Sum) -> Meter {
    let percent = |thousandths: u64| format!("{} %", (thousandths + 5) / 10);
    let whole = meter("Compute", 0, sum.compute, 0, None, percent);
    let drawn = compute_meter(1000, sum, percent);
    let spoken = if drawn.measured {
        format!("Compute: {}, {}", whole.held, drawn.used)
    } else {
        whole.spoken
    };
    Meter {
        held: whole.held,
        spoken,
        ..drawn
    }
}

fn compute_meter(whole: u64, sum: &Sum, words: impl Fn(u64) -> String) -> Meter {
    let used = sum.is_measured().then_some(sum.compute_used);
    let measured = sum.compute_measured.min(sum.compute);
    meter("Compute", whole, sum.compute, measured, used, words)
}

/// The compute of a whole that these shares hold, in thousandths of a GPU.
pub fn compute_of(whole: u64, sum: &Sum) -> Meter {
    compute_meter(whole, sum, compute)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(meter: &Meter) -> Vec<(&str, &str, &str)> {
        let parts = meter.parts.iter();
        parts
            .map(|part| (part.class, &*part.from, &*part.width))
            .collect()
    }

    #[test]
    fn a_gpu_that_no_pod_holds_is_free() {
        let meter = memory(80 << 30, &Sum::default());

        assert_eq!(meter.held, "80 GiB free");
        assert_eq!(meter.spoken, "Memory: 80 GiB free");
    }

    #[test]
    fn used_idle_and_unmeasured_follow_each_other() {
        let meter = meter("Memory", 100, 60, 40, Some(10), |v| v.to_string());

        assert_eq!(
            drawn(&meter),
            [
                (USED, "0.00", "10.00"),
                (IDLE, "10.00", "30.00"),
                (UNKNOWN, "40.00", "20.00"),
            ]
        );
        assert_eq!(meter.spoken, "Memory: 60 of 100 held, 10 used");
    }

    #[test]
    fn of_one_gpu_compute_is_said_in_percent() {
        let sum = Sum {
            compute: 500,
            compute_measured: 500,
            compute_used: 123,
            known: 1,
            ..Sum::default()
        };

        let half = compute_of_one(&sum);
        let none = compute_of_one(&Sum::default());

        assert_eq!(half.spoken, "Compute: 50 % held, 12 % used");
        assert_eq!(half.parts[0].width, "12.30");
        assert_eq!((&*none.spoken, &*none.used), ("Compute: 0 % held", ""));
    }

    #[test]
    fn more_than_the_whole_fills_the_bar_and_says_so() {
        let full = meter("Memory", 100, 150, 0, None, |v| v.to_string());
        let forged = meter("Memory", 100, 50, 50, Some(u64::MAX), |v| v.to_string());

        assert!(full.over);
        assert_eq!(drawn(&full), [(UNKNOWN, "0.00", "100.00")]);
        assert_eq!(full.spoken, "Memory: 150 of 100 held, use not measured");
        assert!(!full.measured);
        assert_eq!(drawn(&forged), [(USED, "0.00", "50.00")]);
    }
}
