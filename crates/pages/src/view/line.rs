//! A chart of values over time: lines with their scale and their words. The same input gives the same bytes.

/// A chart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lines {
    /// The measured quantity.
    pub label: String,
    /// The last column of the drawing; the first is 0.
    pub width: usize,
    /// The lines.
    pub lines: Vec<ChartLine>,
    /// The columns with events.
    pub marks: Vec<String>,
    /// The value at the upper edge, in words.
    pub top: String,
    /// The time at the left edge, in words.
    pub since: String,
    /// The chart in words.
    pub spoken: String,
}

/// One line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChartLine {
    /// The measured quantity.
    pub name: &'static str,
    /// Its class in the style sheet.
    pub class: &'static str,
    /// Pieces without a gap, each as the points of a `polyline`.
    pub pieces: Vec<String>,
    /// Its last value, in words.
    pub now: String,
}

/// The values of one line.
#[derive(Debug, Clone)]
pub struct Values {
    /// The measured quantity.
    pub name: &'static str,
    /// Its class in the style sheet.
    pub class: &'static str,
    /// One for each step, the oldest first; none for a step without a report.
    pub values: Vec<Option<u64>>,
}

/// The height of a drawing, in its own unit.
const HEIGHT: f64 = 100.0;

/// The least number of steps that a chart spans, so that two values do not fill it.
const LEAST: usize = 20;

/// A chart of these lines. `top` is the value at its upper edge; if a line goes above it, the edge is the line's
/// highest value. `words` formats a value.
pub fn lines(
    label: &str,
    step_seconds: u32,
    top: u64,
    lines: &[Values],
    marks: &[usize],
    words: impl Fn(u64) -> String,
) -> Lines {
    let steps = lines
        .iter()
        .map(|line| line.values.len())
        .max()
        .unwrap_or(0);
    let highest = lines
        .iter()
        .flat_map(|line| line.values.iter().flatten())
        .copied();
    let top = highest.fold(top, u64::max).max(1);
    let width = steps.max(LEAST) - 1;
    // The newest value is at the right edge.
    let moved = (width + 1).saturating_sub(steps);
    let drawn: Vec<ChartLine> = lines
        .iter()
        .map(|line| ChartLine {
            name: line.name,
            class: line.class,
            pieces: pieces(&line.values, moved, top),
            now: line
                .values
                .last()
                .copied()
                .flatten()
                .map_or_else(|| "not known".to_owned(), &words),
        })
        .collect();
    let since = ago(width, step_seconds);
    let said: Vec<String> = drawn
        .iter()
        .map(|line| format!("{} {}", line.name, line.now))
        .collect();
    Lines {
        label: label.to_owned(),
        width,
        marks: marks
            .iter()
            .map(|mark| (mark + moved).to_string())
            .collect(),
        top: words(top),
        spoken: format!(
            "{} over the last {since}; now: {}",
            label.trim_end_matches(" over time"),
            said.join(", ")
        ),
        since,
        lines: drawn,
    }
}

/// This number of steps as a time: `90 s`, `10 min`, `2 h`.
pub fn ago(steps: usize, step_seconds: u32) -> String {
    let seconds = u64::try_from(steps)
        .unwrap_or(u64::MAX)
        .saturating_mul(step_seconds.into());
    let minutes = (seconds + 30) / 60;
    if seconds < 120 {
        format!("{seconds} s")
    } else if minutes < 120 {
        format!("{minutes} min")
    } else {
        format!("{} h", (minutes + 30) / 60)
    }
}

fn pieces(values: &[Option<u64>], moved: usize, top: u64) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut piece: Vec<String> = Vec::new();
    let mut end = |piece: &mut Vec<String>, at: usize| {
        // A line of one point would not be drawn, so it becomes one step wide.
        if let [only] = piece.as_slice()
            && let Some((_, y)) = only.split_once(',')
        {
            let left = at.saturating_sub(2);
            let again = format!("{left},{y}");
            piece.insert(0, again);
        }
        if !piece.is_empty() {
            pieces.push(piece.join(" "));
            piece.clear();
        }
    };
    for (at, value) in values.iter().enumerate() {
        match value {
            Some(value) => piece.push(format!("{},{:.1}", at + moved, height(*value, top))),
            None => end(&mut piece, at + moved),
        }
    }
    end(&mut piece, values.len() + moved);
    pieces
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a chart is a few hundred pixels high"
)]
fn height(value: u64, top: u64) -> f64 {
    HEIGHT - value as f64 * HEIGHT / top as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: Vec<Option<u64>>) -> Values {
        Values {
            name: "used",
            class: "line-used",
            values,
        }
    }

    #[test]
    fn a_gap_is_not_drawn() {
        let mut values = vec![Some(0); 20];
        values[5] = None;
        values[19] = Some(200);

        let chart = lines("Memory", 30, 100, &[of(values)], &[19], |v| v.to_string());

        assert_eq!(chart.lines[0].pieces.len(), 2);
        assert!(chart.lines[0].pieces[0].starts_with("0,100.0 1,100.0"));
        assert!(chart.lines[0].pieces[1].ends_with("19,0.0"));
        assert_eq!((chart.top.as_str(), chart.width), ("200", 19));
        assert_eq!(chart.marks, ["19"]);
        assert_eq!(chart.spoken, "Memory over the last 10 min; now: used 200");
    }

    #[test]
    fn few_values_stand_at_the_right_edge() {
        let chart = lines("Memory", 30, 10, &[of(vec![Some(5)])], &[], |v| {
            v.to_string()
        });

        assert_eq!(chart.lines[0].pieces, ["18,50.0 19,50.0"]);
        assert_eq!(chart.since, "10 min");
    }

    #[test]
    fn no_value_at_all_does_no_harm() {
        let chart = lines("Memory", 30, 0, &[of(Vec::new())], &[], |v| v.to_string());

        assert!(chart.lines[0].pieces.is_empty());
        assert_eq!(chart.lines[0].now, "not known");
        assert_eq!(ago(240, 30), "2 h");
        assert_eq!(ago(1, 60), "60 s");
    }
}
