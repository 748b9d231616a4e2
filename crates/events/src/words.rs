//! Limits on a message: its length, and that it is one line.

/// A message is at most this long, in bytes; a longer one is cut and ends in `…`. (The newer events API has the same
/// limit.)
pub const MOST_MESSAGE_BYTES: usize = 1024;

/// The message on one line, with at most `most` bytes; `…` marks a cut.
pub(super) fn bounded(message: &str, most: usize) -> String {
    let line: String = message
        .chars()
        .map(|character| {
            if character.is_control() {
                ' '
            } else {
                character
            }
        })
        .collect();
    if line.len() <= most {
        return line;
    }
    let mut text = cut(&line, most.saturating_sub('…'.len_utf8())).to_owned();
    text.push('…');
    text
}

/// The longest prefix of at most `most` bytes.
pub(super) fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_of_at_most_a_kibibyte() {
        assert_eq!(bounded("a\nb\u{7}c", 1024), "a b c");
        let long = "é".repeat(1000);
        let cut = bounded(&long, MOST_MESSAGE_BYTES);
        assert!(
            cut.len() <= MOST_MESSAGE_BYTES && cut.ends_with('…'),
            "{}",
            cut.len()
        );
        assert_eq!(bounded("", 10), "");
    }
}
