//! PTX text: the kernels, variables and references that it declares. Text in, values out.

use crate::declared::{Kernel, Variable};

pub(crate) struct Statement<'a> {
    pub(crate) text: &'a str,
    pub(crate) end: char,
}

pub(crate) fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(slash) = rest.find('/') {
        let (before, after) = rest.split_at(slash);
        out.push_str(before);
        if after.starts_with("//") {
            rest = after
                .find('\n')
                .map_or("", |end| after.get(end..).unwrap_or(""));
        } else if after.starts_with("/*") {
            rest = after
                .find("*/")
                .map_or("", |end| after.get(end + 2..).unwrap_or(""));
        } else {
            out.push('/');
            rest = after.get(1..).unwrap_or("");
        }
    }
    out.push_str(rest);
    out
}

/// Pieces that end in `;`, `{` or `}`; a brace in an initialiser does not end one.
pub(crate) fn statements(text: &str) -> impl Iterator<Item = Statement<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let mut search = 0;
        loop {
            let found = rest.get(search..)?.find([';', '{', '}'])? + search;
            let (piece, after) = rest.split_at(found);
            let end = after.chars().next()?;
            if end == '{' && piece.trim_end().ends_with('=') {
                search = found + after.find(';')?;
                continue;
            }
            rest = after.get(1..)?;
            return Some(Statement { text: piece, end });
        }
    })
}

pub(crate) fn entry_of(statement: &str) -> Option<(String, Kernel)> {
    let (_, after) = statement.split_once(".entry")?;
    let (name, tail) = match after.split_once('(') {
        Some((name, tail)) => (name, tail),
        None => (after, ")"),
    };
    let name = name.split_whitespace().next()?.to_owned();
    let (list, directives) = tail.rsplit_once(')').unwrap_or((tail, ""));
    let mut kernel = Kernel {
        registers: 32,
        ..Kernel::default()
    };
    let mut offset = 0_usize;
    for parameter in list.split(',').filter(|text| text.contains(".param")) {
        let (bytes, align) = declared(parameter);
        offset = offset.next_multiple_of(align);
        kernel.parameters.push((offset, bytes));
        offset += bytes;
    }
    for name in [".maxntid", ".reqntid"] {
        if let Some((_, dims)) = directives.split_once(name) {
            let dims = dims.split('.').next().unwrap_or("");
            let product = dims
                .split(',')
                .filter_map(|d| d.trim().parse::<i32>().ok())
                .product();
            kernel.max_threads = product;
        }
    }
    Some((name, kernel))
}

pub(crate) fn variable_of(statement: &str) -> Option<(String, Variable)> {
    let statement = statement.trim();
    if statement.contains(".extern") || statement.contains(".func") {
        return None;
    }
    let has = |wanted: &str| statement.split_whitespace().any(|word| word == wanted);
    let constant = has(".const");
    if !constant && !has(".global") {
        return None;
    }
    let declaration = statement.split('=').next()?;
    if declaration.contains("ref") && reference_of(declaration).is_some() {
        return None;
    }
    let last = declaration.split_whitespace().last()?;
    let name = last.split('[').next()?.trim();
    let (bytes, _) = declared(declaration);
    let managed = statement.contains(".attribute") && statement.contains(".managed");
    Some((
        name.to_owned(),
        Variable {
            bytes,
            constant,
            managed,
        },
    ))
}

pub(crate) fn reference_of(statement: &str) -> Option<String> {
    let declared = [".texref", ".surfref", ".samplerref"]
        .iter()
        .any(|t| statement.contains(t));
    let name = statement.split('=').next()?.split_whitespace().last()?;
    declared.then(|| name.to_owned())
}

pub(crate) fn sized_in(statement: &str, space: &str) -> Option<usize> {
    let statement = statement.trim();
    statement.starts_with(space).then(|| declared(statement).0)
}

/// Bytes and alignment of a declaration such as `.align 8 .b8 name[24]` or `.v4 .f32 name`.
fn declared(text: &str) -> (usize, usize) {
    let mut element = 8;
    let mut vector = 1;
    let mut align = 0;
    let mut words = text.split_whitespace();
    while let Some(word) = words.next() {
        match word {
            ".align" => align = words.next().and_then(|n| n.parse().ok()).unwrap_or(0),
            ".b8" | ".u8" | ".s8" => element = 1,
            ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => element = 2,
            ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" => element = 4,
            ".b64" | ".u64" | ".s64" | ".f64" => element = 8,
            ".b128" => element = 16,
            ".v2" => vector = 2,
            ".v4" => vector = 4,
            _ => {}
        }
    }
    let mut count = 1_usize;
    let declaration = text.split('=').next().unwrap_or("");
    for part in declaration.split('[').skip(1) {
        let length = part.split(']').next().unwrap_or("").trim();
        count = count.saturating_mul(number(length).unwrap_or(1));
    }
    let bytes = count.saturating_mul(element * vector);
    // An array without a length has its initialiser's.
    let bytes = match text.split_once('=') {
        Some((before, values)) if before.contains("[]") => values.split(',').count() * element,
        _ => bytes,
    };
    (bytes, if align == 0 { element * vector } else { align })
}

/// A number as PTX writes it: decimal, `0x`, `0b` or octal, with a `U` after it or none.
pub(crate) fn number(text: &str) -> Option<usize> {
    let text = text.strip_suffix(['U', 'u']).unwrap_or(text);
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (text.get(2..)?, 16),
        [b'0', b'b' | b'B', ..] => (text.get(2..)?, 2),
        [b'0', _, ..] => (text.get(1..)?, 8),
        _ => (text, 10),
    };
    usize::from_str_radix(digits, radix).ok()
}
