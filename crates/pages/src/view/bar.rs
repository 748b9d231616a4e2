//! A bar that shows how much of a resource is taken, and by which pods.

/// The number of tones that tell neighbours on a bar apart. Pods are named by letters; tones only help.
const TONES: usize = 6;

/// A segment narrower than this, in percent of the bar, has no room for its letter.
const ROOM_FOR_LETTER: f64 = 7.0;

/// A bar with its texts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Bar {
    /// The resource.
    pub label: String,
    /// The amount taken and the whole, in words.
    pub text: String,
    /// The part taken, in percent; above 100 if more is promised than there is.
    pub percent: u16,
    /// The parts, from the left.
    pub segments: Vec<Segment>,
    /// The bar in words, for a reader who does not see it.
    pub spoken: String,
}

/// A part of a bar.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Segment {
    /// Its start, in percent of the bar with two decimals.
    pub from: String,
    /// Its width, in the same unit.
    pub width: String,
    /// The position of its letter.
    pub middle: String,
    /// The letter of the pod; empty if it does not fit.
    pub letter: String,
    /// The number of its tone.
    pub tone: usize,
    /// The pod and its amount.
    pub title: String,
}

/// The input for one part of a bar.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BarPart {
    /// The amount.
    pub amount: u128,
    /// The letter of the pod; empty if the part stands for many pods.
    pub letter: String,
    /// The position of the pod on its node.
    pub position: usize,
    /// The pod and its amount, in words.
    pub title: String,
}

/// A bar of these parts of a whole.
pub fn bar(label: &str, text: String, whole: u128, parts: &[BarPart]) -> Bar {
    let taken: u128 = parts.iter().map(|part| part.amount).sum();
    // If more is promised than there is, the bar's full width stands for the promised amount.
    let scale = whole.max(taken);
    let mut begin = 0_u128;
    let mut segments = Vec::new();
    for part in parts.iter().filter(|part| part.amount > 0) {
        let (from, width) = (share(begin, scale), share(part.amount, scale));
        begin += part.amount;
        segments.push(Segment {
            from: format!("{from:.2}"),
            width: format!("{width:.2}"),
            middle: format!("{:.2}", from + width / 2.0),
            letter: if width >= ROOM_FOR_LETTER {
                part.letter.clone()
            } else {
                String::new()
            },
            tone: tone(part.position),
            title: part.title.clone(),
        });
    }
    let holders: Vec<&str> = parts
        .iter()
        .filter(|part| part.amount > 0 && !part.letter.is_empty())
        .map(|part| part.title.as_str())
        .collect();
    let spoken = if holders.is_empty() {
        format!("{label}: {text}")
    } else {
        format!("{label}: {text}; {}", holders.join("; "))
    };
    Bar {
        label: label.to_owned(),
        text,
        percent: crate::text::percent(taken, whole),
        segments,
        spoken,
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a bar is a few hundred pixels wide"
)]
pub(crate) fn share(part: u128, whole: u128) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 * 100.0 / whole as f64
    }
}

/// The tone of the pod at this position on its node.
pub fn tone(position: usize) -> usize {
    position % TONES
}

/// The letter of the pod at this position: A to Z, then AA, AB and so on.
pub fn letter(position: usize) -> String {
    let mut left = position + 1;
    let mut letters = Vec::new();
    while left > 0 {
        let digit = (left - 1) % 26;
        letters.push(char::from(b'A' + u8::try_from(digit).unwrap_or_default()));
        left = (left - 1) / 26;
    }
    letters.iter().rev().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(amount: u128, position: usize) -> BarPart {
        BarPart {
            amount,
            letter: letter(position),
            position,
            title: format!("pod {position}"),
        }
    }

    #[test]
    fn segments_follow_each_other() {
        let bar = bar(
            "Memory",
            "6 of 8".into(),
            8,
            &[part(2, 0), part(0, 1), part(4, 2)],
        );

        let drawn: Vec<_> = bar
            .segments
            .iter()
            .map(|segment| (&*segment.from, &*segment.width, &*segment.letter))
            .collect();
        assert_eq!(drawn, [("0.00", "25.00", "A"), ("25.00", "50.00", "C")]);
        assert_eq!(bar.percent, 75);
        assert_eq!(bar.spoken, "Memory: 6 of 8; pod 0; pod 2");
    }

    #[test]
    fn more_than_the_whole_fills_the_bar_and_no_more() {
        let bar = bar("Compute", String::new(), 100, &[part(150, 0), part(50, 1)]);

        assert_eq!(bar.percent, 200);
        assert_eq!(bar.segments[0].width, "75.00");
        assert_eq!(bar.segments[1].from, "75.00");
    }

    #[test]
    fn letters_go_on_after_z() {
        assert_eq!(
            [0, 25, 26, 701, 702].map(letter),
            ["A", "Z", "AA", "ZZ", "AAA"]
        );
    }
}
