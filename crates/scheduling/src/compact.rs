//! Values of result annotations in a compact form, which is expanded to text when it is read.
//!
//! The filters' answer about a node is an index into a list of a few rows, a score takes one or two bytes, and the
//! nodes' names are the snapshot's own. The length of a value's text, and its length inside another JSON text, are
//! known without writing it. So a value can be cut to a length, and a history bounded, before anything is rendered.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use crate::names::Numbered;
use crate::plugin::Plugin;
use crate::record::{Record, Said, Scored, Verdict};

/// The length of a text in bytes, by itself and inside a JSON text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Size {
    plain: usize,
    quoted: usize,
}

impl Size {
    fn of(text: &str) -> Self {
        Self {
            plain: text.len(),
            quoted: text.chars().map(escaped_len).sum(),
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            plain: self.plain + other.plain,
            quoted: self.quoted + other.quoted,
        }
    }
}

/// A value of an annotation.
#[derive(Debug, Clone, PartialEq)]
pub struct Kept {
    form: Form,
    size: Size,
}

#[derive(Debug, Clone, PartialEq)]
enum Form {
    Text(Arc<str>),
    Rows(Rows),
}

/// An object with an entry for each node.
#[derive(Debug, Clone, PartialEq)]
struct Rows {
    /// Names of nodes, sorted. There may be more of them than entries: lists are shared.
    nodes: Arc<[Arc<str>]>,
    count: usize,
    /// The number of all entries, where some were cut off.
    of: Option<usize>,
    cells: Cells,
}

#[derive(Debug, Clone, PartialEq)]
enum Cells {
    /// Each entry is one of a few texts. The indices are left out where there is only one text.
    Texts(Box<[Arc<str>]>, Box<[u32]>),
    /// Each entry is a number for each of these plugins, as variable-length integers one after another.
    Numbers(Arc<[&'static str]>, Box<[u8]>),
}

/// A value before it is cut.
#[derive(Debug)]
pub struct Draft<'r> {
    form: Drafted<'r>,
    size: Size,
}

#[derive(Debug)]
enum Drafted<'r> {
    Text(String),
    /// Sorted by node.
    Texts(Vec<(&'r Arc<str>, u32, Size)>, Vec<String>),
    /// Sorted by node; the number is the index of the entry's row of scores.
    Numbers(Vec<(&'r Arc<str>, usize, Size)>, Vec<Column>, &'r [i64]),
}

/// A plugin that scored, and its index in a row.
type Column = (&'static str, usize);

/// Texts and lists of names that many values share. Entries that only the pool still holds are dropped when the pool
/// has doubled in size.
#[derive(Debug, Default)]
pub struct Pool {
    texts: HashSet<Arc<str>>,
    swept: usize,
    lists: Vec<Arc<[Arc<str>]>>,
    plugins: Vec<Arc<[&'static str]>>,
}

/// How many of the latest lists of names, and of plugins, are searched for an equal one.
const RECENT: usize = 4;
/// With fewer texts than this the pool is not swept.
const FEW: usize = 1024;

impl Pool {
    fn text(&mut self, text: &str) -> Arc<str> {
        if let Some(there) = self.texts.get(text) {
            return Arc::clone(there);
        }
        if self.texts.len() > 2 * self.swept.max(FEW) {
            self.texts.retain(|text| Arc::strong_count(text) > 1);
            self.swept = self.texts.len();
        }
        let text: Arc<str> = text.into();
        self.texts.insert(Arc::clone(&text));
        text
    }

    /// A list that begins with these names.
    fn list(&mut self, names: &[&Arc<str>]) -> Arc<[Arc<str>]> {
        let begins = |list: &Arc<[Arc<str>]>| {
            list.len() >= names.len()
                && list
                    .iter()
                    .zip(names)
                    .all(|(a, b)| Arc::ptr_eq(a, b) || a == *b)
        };
        if let Some(at) = self.lists.iter().position(begins) {
            let list = self.lists.remove(at);
            self.lists.push(Arc::clone(&list));
            return list;
        }
        let list: Arc<[Arc<str>]> = names.iter().map(|name| Arc::clone(name)).collect();
        keep_recent(&mut self.lists, &list);
        list
    }

    fn plugins(&mut self, columns: &[Column]) -> Arc<[&'static str]> {
        let same = |list: &&Arc<[&'static str]>| {
            let names = columns.iter().map(|(name, _)| name);
            list.len() == columns.len() && list.iter().zip(names).all(|(a, b)| a == b)
        };
        if let Some(list) = self.plugins.iter().find(same) {
            return Arc::clone(list);
        }
        let list: Arc<[&'static str]> = columns.iter().map(|(name, _)| *name).collect();
        keep_recent(&mut self.plugins, &list);
        list
    }
}

fn keep_recent<T: ?Sized>(lists: &mut Vec<Arc<T>>, list: &Arc<T>) {
    if lists.len() >= RECENT {
        lists.remove(0);
    }
    lists.push(Arc::clone(list));
}

/// Every annotation of a cycle except `result-history` and those of extenders, by the part of its name after the
/// prefix. All keys are always present.
pub fn drafts(record: &Record) -> BTreeMap<&'static str, Draft<'_>> {
    let mut narrowed = BTreeMap::new();
    for (plugin, nodes) in &record.only {
        let nodes: Vec<String> = nodes.iter().map(|node| quoted(node)).collect();
        narrowed.insert(plugin.name(), format!("[{}]", nodes.join(",")));
    }
    let scored = |weighted: bool| match &record.scored {
        Some(scored) => Draft::scores(scored, weighted),
        None => Draft::text("{}".to_owned()),
    };
    let text = Draft::text;
    BTreeMap::from([
        ("bind-result", text(said(&record.bind))),
        ("filter-result", Draft::filter(record)),
        ("finalscore-result", scored(true)),
        ("permit-result", text("{}".to_owned())),
        ("permit-result-timeout", text("{}".to_owned())),
        ("postfilter-result", Draft::post_filter(record)),
        ("prebind-result", text(said(&record.pre_bind))),
        ("prefilter-result", text(object(narrowed))),
        ("prefilter-result-status", text(said(&record.pre_filter))),
        ("prescore-result", text(said(&record.pre_score))),
        ("reserve-result", text(said(&record.reserve))),
        ("score-result", scored(false)),
        (
            "selected-node",
            text(record.selected.as_deref().unwrap_or_default().to_owned()),
        ),
    ])
}

/// The size of an entry without its row: `"node":`.
fn name_size(node: &str) -> Size {
    let (mut plain, mut quoted) = (0, 0);
    for letter in node.chars() {
        plain += escaped_len(letter);
        quoted += twice_escaped_len(letter);
    }
    Size {
        plain: plain + 3,
        quoted: quoted + 5,
    }
}

/// The size of an object with such entries.
fn object_size(entries: impl Iterator<Item = Size>) -> Size {
    let (mut count, mut size) = (0, Size::default());
    for entry in entries {
        count += 1;
        size = size.plus(entry);
    }
    let around = 2 + usize::saturating_sub(count, 1);
    size.plus(Size {
        plain: around,
        quoted: around,
    })
}

impl<'r> Draft<'r> {
    /// A value that is already text.
    pub fn text(text: String) -> Self {
        Self {
            size: Size::of(&text),
            form: Drafted::Text(text),
        }
    }

    fn filter(record: &'r Record) -> Self {
        let mut nodes: Vec<&(Arc<str>, Verdict)> = record.nodes.iter().collect();
        // The search starts in the middle of the sorted names, so they are nearly sorted.
        nodes.sort_by(|a, b| a.0.cmp(&b.0));
        let mut texts = Vec::new();
        let mut known: Numbered<(u32, Option<u32>), (u32, Size)> = Numbered::default();
        let mut entries: Vec<(&Arc<str>, u32, Size)> = Vec::with_capacity(nodes.len());
        for of_node in nodes.chunk_by(|a, b| a.0 == b.0) {
            let [(node, verdict), rest @ ..] = of_node else {
                continue;
            };
            let key = (verdict.passed, verdict.refused);
            let (row, size) = match known.get(&key) {
                Some(there) if rest.is_empty() => *there,
                _ => {
                    let verdicts = of_node.iter().map(|(_, verdict)| verdict);
                    let text = filter_row(record, verdicts);
                    let row = u32::try_from(texts.len()).unwrap_or(u32::MAX);
                    let size = Size::of(&text);
                    texts.push(text);
                    if rest.is_empty() {
                        known.insert(key, (row, size));
                    }
                    (row, size)
                }
            };
            entries.push((node, row, size.plus(name_size(node))));
        }
        Self::texts(entries, texts)
    }

    fn post_filter(record: &'r Record) -> Self {
        let Some(found) = &record.post_filter else {
            return Self::text("{}".to_owned());
        };
        let victim = [(found.plugin.name(), quoted("preemption victim"))];
        let texts = vec!["{}".to_owned(), object(victim)];
        let sizes: Vec<Size> = texts.iter().map(|text| Size::of(text)).collect();
        let mut nodes: Vec<&Arc<str>> = record.all_nodes.iter().collect();
        nodes.sort();
        nodes.dedup();
        let entries = nodes.into_iter().map(|node| {
            let nominated = found.nominated.as_ref() == Some(node);
            let size = sizes.get(usize::from(nominated)).copied();
            let size = size.unwrap_or_default().plus(name_size(node));
            (node, u32::from(nominated), size)
        });
        Self::texts(entries.collect(), texts)
    }

    fn texts(entries: Vec<(&'r Arc<str>, u32, Size)>, texts: Vec<String>) -> Self {
        Self {
            size: object_size(entries.iter().map(|(_, _, size)| *size)),
            form: Drafted::Texts(entries, texts),
        }
    }

    fn scores(scored: &'r Scored, weighted: bool) -> Self {
        let values = if weighted {
            &scored.weighted
        } else {
            &scored.raw
        };
        let mut columns: Vec<Column> = scored
            .plugins
            .iter()
            .enumerate()
            .map(|(at, (plugin, _))| (plugin.name(), at))
            .collect();
        columns.sort_unstable();
        columns.dedup_by(|later, kept| {
            let same = later.0 == kept.0;
            if same {
                kept.1 = later.1;
            }
            same
        });
        let around: usize = columns.iter().map(|(name, _)| name.len() + 5).sum();
        let wide = scored.plugins.len();
        let mut entries: Vec<(&Arc<str>, usize, Size)> = Vec::with_capacity(scored.nodes.len());
        for (at, node) in scored.nodes.iter().enumerate() {
            let Some(row) = values.get(at * wide..(at + 1) * wide) else {
                break;
            };
            let digits: usize = columns
                .iter()
                .map(|(_, at)| digits(row.get(*at).copied().unwrap_or_default()))
                .sum();
            let plain = around + digits + 2 + columns.len().saturating_sub(1);
            let size = Size {
                plain,
                quoted: plain + 4 * columns.len(),
            };
            entries.push((node, at, size.plus(name_size(node))));
        }
        entries.sort_by(|a, b| a.0.cmp(b.0));
        Self {
            size: object_size(entries.iter().map(|(_, _, size)| *size)),
            form: Drafted::Numbers(entries, columns, values),
        }
    }

    /// The length of the text in bytes.
    pub fn len(&self) -> usize {
        self.size.plain
    }

    /// Whether the text is empty.
    pub fn is_empty(&self) -> bool {
        self.size.plain == 0
    }

    /// The value, cut to at most `most_bytes`: an object loses its last entries, and an extra entry gives their number;
    /// another text is cut between characters.
    pub fn keep(&self, most_bytes: usize, pool: &mut Pool) -> Kept {
        match &self.form {
            Drafted::Text(text) => {
                let text = cut(text, most_bytes);
                Kept {
                    size: Size::of(&text),
                    form: Form::Text(pool.text(&text)),
                }
            }
            Drafted::Texts(entries, texts) => {
                let sizes = entries.iter().map(|(_, _, size)| *size);
                let kept = entries_kept(sizes, self.size, most_bytes);
                rows(entries, kept, most_bytes, pool, |entries, pool| {
                    let last = entries.iter().map(|(_, row, _)| *row).max().unwrap_or(0);
                    let texts: Box<[Arc<str>]> = (0..=last)
                        .zip(texts)
                        .map(|(_, text)| pool.text(text))
                        .collect();
                    let which = if texts.len() > 1 {
                        entries.iter().map(|(_, row, _)| *row).collect()
                    } else {
                        Box::default()
                    };
                    Cells::Texts(texts, which)
                })
            }
            Drafted::Numbers(entries, columns, values) => {
                let sizes = entries.iter().map(|(_, _, size)| *size);
                let kept = entries_kept(sizes, self.size, most_bytes);
                let wide = values.len() / entries.len().max(1);
                rows(entries, kept, most_bytes, pool, |entries, pool| {
                    let mut bytes = Vec::with_capacity(entries.len() * columns.len());
                    for (_, row, _) in entries {
                        for (_, at) in columns {
                            let score = values.get(row * wide + at).copied().unwrap_or_default();
                            push_number(&mut bytes, score);
                        }
                    }
                    Cells::Numbers(pool.plugins(columns), bytes.into())
                })
            }
        }
    }
}

/// How many of the first entries fit, and the size of the text with them; `None` if not even the marker fits.
fn entries_kept(
    sizes: impl ExactSizeIterator<Item = Size> + Clone,
    whole: Size,
    most_bytes: usize,
) -> Option<(usize, Size)> {
    let count = sizes.len();
    if whole.plain <= most_bytes {
        return Some((count, whole));
    }
    let mut best = None;
    let mut size = Size {
        plain: 1,
        quoted: 1,
    };
    let mut sizes = sizes;
    for kept in 0..count {
        let marker = marker(count - kept, count);
        let with = size.plus(Size::of(&marker));
        if with.plain <= most_bytes {
            best = Some((kept, with));
        } else if size.plain > most_bytes {
            break;
        }
        // The entry and the comma behind it.
        size = size.plus(sizes.next().unwrap_or_default()).plus(Size {
            plain: 1,
            quoted: 1,
        });
    }
    best
}

fn rows<'r, T>(
    entries: &[(&'r Arc<str>, T, Size)],
    kept: Option<(usize, Size)>,
    most_bytes: usize,
    pool: &mut Pool,
    cells: impl FnOnce(&[(&'r Arc<str>, T, Size)], &mut Pool) -> Cells,
) -> Kept {
    let Some((count, size)) = kept else {
        let text = if most_bytes >= 2 { "{}" } else { "" };
        return Kept {
            size: Size::of(text),
            form: Form::Text(pool.text(text)),
        };
    };
    let of = (count < entries.len()).then_some(entries.len());
    let entries = entries.get(..count).unwrap_or(entries);
    let names: Vec<&Arc<str>> = entries.iter().map(|(node, _, _)| *node).collect();
    let rows = Rows {
        nodes: pool.list(&names),
        count,
        of,
        cells: cells(entries, pool),
    };
    Kept {
        form: Form::Rows(rows),
        size,
    }
}

impl Kept {
    /// The length of the text in bytes.
    pub fn len(&self) -> usize {
        self.size.plain
    }

    /// Whether the text is empty.
    pub fn is_empty(&self) -> bool {
        self.size.plain == 0
    }

    /// Its length in bytes as a JSON string, with the quotation marks.
    pub fn quoted_len(&self) -> usize {
        self.size.quoted + 2
    }

    /// The text.
    pub fn render(&self) -> String {
        let mut out = String::with_capacity(self.size.plain);
        match &self.form {
            Form::Text(text) => out.push_str(text),
            Form::Rows(rows) => rows.write(&mut out),
        }
        out
    }
}

impl Rows {
    fn write(&self, out: &mut String) {
        out.push('{');
        let mut numbers = Numbers(match &self.cells {
            Cells::Numbers(_, bytes) => bytes,
            Cells::Texts(..) => &[],
        });
        for (at, node) in self.nodes.iter().take(self.count).enumerate() {
            if at > 0 {
                out.push(',');
            }
            push_quoted(out, node);
            out.push(':');
            match &self.cells {
                Cells::Texts(texts, which) => {
                    let row = which.get(at).copied().unwrap_or_default();
                    let text = usize::try_from(row).ok().and_then(|row| texts.get(row));
                    out.push_str(text.map_or("{}", |text| text));
                }
                Cells::Numbers(plugins, _) => {
                    out.push('{');
                    for (at, plugin) in plugins.iter().enumerate() {
                        let comma = if at > 0 { "," } else { "" };
                        let score = numbers.next().unwrap_or_default();
                        out.push_str(&format!("{comma}\"{plugin}\":\"{score}\""));
                    }
                    out.push('}');
                }
            }
        }
        match self.of {
            None => out.push('}'),
            Some(of) => {
                if self.count > 0 {
                    out.push(',');
                }
                out.push_str(&marker(of - self.count, of));
            }
        }
    }
}

/// Appends an integer; a small one of either sign takes one byte.
fn push_number(bytes: &mut Vec<u8>, number: i64) {
    let mut rest = ((number << 1) ^ (number >> 63)).cast_unsigned();
    while rest >= 0x80 {
        bytes.push(rest.to_le_bytes()[0] | 0x80);
        rest >>= 7;
    }
    bytes.push(rest.to_le_bytes()[0]);
}

/// Reads the integers that [`push_number`] wrote.
struct Numbers<'a>(&'a [u8]);

impl Iterator for Numbers<'_> {
    type Item = i64;

    fn next(&mut self) -> Option<i64> {
        let (mut number, mut shift) = (0_u64, 0_u32);
        loop {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f)
                .checked_shl(shift)
                .unwrap_or_default();
            if byte & 0x80 == 0 {
                let sign = (number & 1).cast_signed();
                return Some((number >> 1).cast_signed() ^ -sign);
            }
            shift += 7;
        }
    }
}

/// The number of characters of an integer.
fn digits(number: i64) -> usize {
    let magnitude = number.unsigned_abs();
    let digits = magnitude.checked_ilog10().unwrap_or(0) + 1;
    usize::try_from(digits).unwrap_or(20) + usize::from(number < 0)
}

fn filter_row<'r>(record: &'r Record, verdicts: impl Iterator<Item = &'r Verdict>) -> String {
    let mut of_node: BTreeMap<&str, &str> = BTreeMap::new();
    for verdict in verdicts {
        let passed = usize::try_from(verdict.passed).unwrap_or(usize::MAX);
        for plugin in record.filters.iter().take(passed) {
            of_node.insert(plugin.name(), "passed");
        }
        let text = verdict
            .refused
            .and_then(|at| record.texts.get(usize::try_from(at).ok()?));
        if let (Some(text), Some(plugin)) = (text, record.filters.get(passed)) {
            of_node.insert(plugin.name(), text);
        }
    }
    object(
        of_node
            .into_iter()
            .map(|(plugin, text)| (plugin, quoted(text))),
    )
}

fn said(list: &[(Plugin, Said)]) -> String {
    let texts: BTreeMap<&str, String> = list
        .iter()
        .map(|(plugin, said)| {
            let text = match said {
                Said::Success => "success",
                Said::Skipped => "",
                Said::No(why) => why,
            };
            (plugin.name(), quoted(text))
        })
        .collect();
    object(texts)
}

/// The marker for entries that are left out, with the end of the object.
fn marker(missing: usize, of: usize) -> String {
    format!("\"…\":\"cut: {missing} of {of} entries are left out\"}}")
}

/// A JSON object with as many of its first entries as fit into `most_bytes`, and an extra entry with the number of
/// missing ones. Other texts are cut between characters.
pub fn cut(value: &str, most_bytes: usize) -> String {
    if value.len() <= most_bytes {
        return value.to_owned();
    }
    let ends = entry_ends(value);
    if value.starts_with('{') && !ends.is_empty() {
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let sizes: Vec<Size> = starts
            .zip(&ends)
            .map(|(start, end)| Size {
                plain: end - start - 1,
                quoted: 0,
            })
            .collect();
        let whole = Size::of(value);
        let Some((kept, _)) = entries_kept(sizes.iter().copied(), whole, most_bytes) else {
            let empty = if most_bytes >= 2 { "{}" } else { "" };
            return empty.to_owned();
        };
        let end = kept.checked_sub(1).and_then(|at| ends.get(at)).copied();
        let first = value.get(1..end.unwrap_or(1)).unwrap_or_default();
        let comma = if kept > 0 { "," } else { "" };
        return format!("{{{first}{comma}{}", marker(ends.len() - kept, ends.len()));
    }
    let end = (0..=most_bytes.saturating_sub(3))
        .rev()
        .find(|at| value.is_char_boundary(*at))
        .unwrap_or(0);
    format!("{}…", value.get(..end).unwrap_or_default())
}

/// The ends of an object's entries: the position of the comma, or of the brace, after each.
fn entry_ends(object: &str) -> Vec<usize> {
    let (mut depth, mut inside, mut escaped) = (0_u32, false, false);
    let mut ends = Vec::new();
    for (at, byte) in object.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if inside => escaped = true,
            b'"' => inside = !inside,
            _ if inside => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    ends.push(at);
                }
            }
            b',' if depth == 1 => ends.push(at),
            _ => {}
        }
    }
    ends
}

/// A JSON object of values that are already JSON.
fn object<'a>(fields: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let mut text = String::from("{");
    for (name, value) in fields {
        if text.len() > 1 {
            text.push(',');
        }
        push_quoted(&mut text, name);
        text.push(':');
        text.push_str(&value);
    }
    text.push('}');
    text
}

/// A JSON text as Go's encoder writes it: `<`, `>`, `&` and two line separators are escaped, too.
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    push_quoted(&mut out, text);
    out
}

/// Appends the output of [`quoted`].
pub fn push_quoted(out: &mut String, text: &str) {
    out.push('"');
    let mut rest = text;
    // Most characters need no escape.
    while let Some(at) = rest.find(|letter| escaped_len(letter) != letter.len_utf8()) {
        let (plain, from) = rest.split_at(at);
        out.push_str(plain);
        let mut letters = from.chars();
        match letters.next() {
            Some('"') => out.push_str("\\\""),
            Some('\\') => out.push_str("\\\\"),
            Some('\n') => out.push_str("\\n"),
            Some('\r') => out.push_str("\\r"),
            Some('\t') => out.push_str("\\t"),
            Some('\u{8}') => out.push_str("\\b"),
            Some('\u{c}') => out.push_str("\\f"),
            Some(letter) => {
                out.push_str(&format!("\\u{:04x}", u32::from(letter)));
            }
            None => {}
        }
        rest = letters.as_str();
    }
    out.push_str(rest);
    out.push('"');
}

/// The length in bytes of a character inside a JSON string.
fn escaped_len(letter: char) -> usize {
    match letter {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => 6,
        letter => letter.len_utf8(),
    }
}

/// The length in bytes of a JSON text's character inside another JSON string.
fn twice_escaped_len(letter: char) -> usize {
    match letter {
        '"' | '\\' => 4,
        '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 3,
        '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => 7,
        letter => letter.len_utf8(),
    }
}
