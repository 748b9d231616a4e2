//! Writes the text of a scrape in pieces: families, samples, labels. Knows no series' meaning.

use std::fmt::{self, Write};

use axum::body::Bytes;
use server::Format;

/// How much text is collected before it is sent.
const PIECE: usize = 64 << 10;

/// A piece for the client.
#[derive(Debug)]
pub(super) enum Piece {
    More(Bytes),
    End,
}

/// Text that is sent in pieces.
pub(super) struct Page<S> {
    text: String,
    send: S,
}

impl<S: FnMut(Piece) -> fmt::Result> Page<S> {
    pub(super) fn new(send: S) -> Self {
        Self {
            text: String::with_capacity(PIECE + PIECE / 4),
            send,
        }
    }

    pub(super) fn text(&mut self, text: String) -> fmt::Result {
        self.text.push_str(&text);
        self.flush(PIECE)
    }

    pub(super) fn family(&mut self, name: &str, help: &str) -> fmt::Result {
        writeln!(self.text, "# HELP {name} {help}.\n# TYPE {name} gauge")
    }

    /// Writes one sample; `labels` writes the text between the braces.
    pub(super) fn sample(
        &mut self,
        name: &str,
        value: impl fmt::Display,
        labels: impl FnOnce(&mut LabelWriter<'_>),
    ) -> fmt::Result {
        self.text.push_str(name);
        let before = self.text.len();
        labels(&mut LabelWriter {
            text: &mut self.text,
            before,
        });
        if self.text.len() > before {
            self.text.push('}');
        }
        writeln!(self.text, " {value}")?;
        self.flush(PIECE)
    }

    /// OpenMetrics declares a counter without the suffix of its samples.
    pub(super) fn counter(&mut self, name: &str, help: &str, format: Format) -> fmt::Result {
        let total = match format {
            Format::OpenMetrics => "",
            Format::PrometheusText => "_total",
        };
        writeln!(
            self.text,
            "# HELP {name}{total} {help}.\n# TYPE {name}{total} counter"
        )
    }

    fn flush(&mut self, above: usize) -> fmt::Result {
        if self.text.len() < above || self.text.is_empty() {
            return Ok(());
        }
        let next = String::with_capacity(PIECE + PIECE / 4);
        let full = std::mem::replace(&mut self.text, next);
        (self.send)(Piece::More(Bytes::from(full)))
    }

    pub(super) fn end(mut self) -> fmt::Result {
        self.flush(0)?;
        (self.send)(Piece::End)
    }
}

/// The labels of one sample.
pub(super) struct LabelWriter<'a> {
    text: &'a mut String,
    before: usize,
}

impl LabelWriter<'_> {
    fn name(&mut self, name: &str) {
        let separator = if self.text.len() == self.before {
            '{'
        } else {
            ','
        };
        self.text.push(separator);
        self.text.push_str(name);
        self.text.push_str("=\"");
    }

    pub(super) fn text(&mut self, name: &str, value: &str) -> &mut Self {
        self.name(name);
        if value.contains(['\\', '"', '\n']) {
            for character in value.chars() {
                match character {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    other => self.text.push(other),
                }
            }
        } else {
            self.text.push_str(value);
        }
        self.text.push('"');
        self
    }

    pub(super) fn number(&mut self, name: &str, value: impl Into<u64>) -> &mut Self {
        self.name(name);
        // Writing to a String cannot fail.
        write!(self.text, "{}\"", value.into()).ok();
        self
    }
}
