//! What a request's selectors (CEL) say about our devices, as far as `placement` has a rule for it: the forms that
//! [`super::template`] writes, and those by which people usually choose a model or a GPU.
//!
//! Never excludes a device that the selector allows: a condition that is not understood is left out. kube-scheduler has
//! checked all of them.

use placement::Selection;

use super::DRIVER;

/// A longer expression is not read, bytes; no API server accepts one.
const MOST_BYTES: usize = 10 << 10;

/// A word of an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CelWord {
    /// A name or a sign, such as `&&`.
    Plain(String),
    /// The content of a string.
    Text(String),
}

/// A condition that is understood.
#[derive(Debug, Clone, PartialEq, Eq)]
enum DeviceCondition {
    /// The model contains this text, ignoring case.
    HasType(String),
    /// The model contains this text in this case, or begins or ends with it.
    HasTypeInCase(String),
    /// The model is this text.
    IsModel(String),
    /// The UUID is one of these.
    IsOneOf(Vec<String>),
}

/// Adds the conditions of a selector to those of the request's other selectors.
pub(super) fn narrow(selection: &mut Selection, expression: &str) {
    let Some(words) = words(expression) else {
        return;
    };
    // Of `a && b ? c : d`, neither `a` nor `b` has to hold.
    if words.contains(&plain("?")) {
        return;
    }
    let whole = inner(&words);
    // `&&` binds before `||`, and `a || b && c` is no list of conditions of which all have to hold.
    if split(whole, "||").len() > 1 && split(whole, "&&").len() > 1 {
        return;
    }
    for part in split(whole, "&&") {
        let alternatives = split(inner(part), "||");
        match alternatives.as_slice() {
            [[not, negated @ ..]] if *not == plain("!") => {
                // None of these may hold.
                for alternative in split(inner(negated), "||") {
                    exclude(selection, condition(inner(alternative)));
                }
            }
            alternatives => {
                let all = alternatives.iter().map(|it| condition(inner(it)));
                include(selection, all.collect());
            }
        }
    }
}

/// One of the alternatives has to hold. `None` if one of them is not understood.
fn include(selection: &mut Selection, alternatives: Option<Vec<DeviceCondition>>) {
    let (mut types, mut models, mut ids) = (Vec::new(), Vec::new(), Vec::new());
    for condition in alternatives.unwrap_or_default() {
        match condition {
            DeviceCondition::HasType(text) | DeviceCondition::HasTypeInCase(text) => {
                types.push(text)
            }
            DeviceCondition::IsModel(text) => models.push(text),
            DeviceCondition::IsOneOf(uuids) => ids.extend(uuids),
        }
    }
    // A selection has one list of each kind, and all lists have to hold.
    match (types.is_empty(), models.is_empty(), ids.is_empty()) {
        (false, _, true) if selection.use_types.is_empty() => {
            types.append(&mut models);
            selection.use_types = types;
        }
        (true, false, true) if selection.models.is_empty() => selection.models = models,
        (true, true, false) if selection.use_ids.is_empty() => {
            selection.use_ids = ids.iter().filter_map(|uuid| device(uuid)).collect();
        }
        _ => {}
    }
}

/// The condition may not hold. Ignoring case excludes more than a text in its case does.
fn exclude(selection: &mut Selection, condition: Option<DeviceCondition>) {
    match condition {
        Some(DeviceCondition::HasType(text)) => selection.nouse_types.push(text),
        Some(DeviceCondition::IsOneOf(uuids)) => {
            let ids = uuids.iter().filter_map(|uuid| device(uuid));
            selection.nouse_ids.extend(ids);
        }
        _ => {}
    }
}

/// The name that the GPU of this UUID has in a slice.
fn device(uuid: &str) -> Option<String> {
    let is_plain = uuid
        .bytes()
        .all(|it| it.is_ascii_alphanumeric() || it == b'-');
    is_plain.then(|| uuid.to_ascii_lowercase())
}

fn plain(text: &str) -> CelWord {
    CelWord::Plain(text.to_owned())
}

/// Reads one condition about an attribute of ours.
fn condition(words: &[CelWord]) -> Option<DeviceCondition> {
    let path = ["device", ".", "attributes", "["].map(plain);
    let words = words.strip_prefix(path.as_slice())?;
    let words =
        words.strip_prefix(&[CelWord::Text(DRIVER.to_owned()), plain("]"), plain(".")][..])?;
    let (attribute, words) = words.split_first()?;
    let lower = [".", "lowerAscii", "(", ")"].map(plain);
    if *attribute == plain("uuid") {
        return uuids(words).map(DeviceCondition::IsOneOf);
    }
    if *attribute != plain("productName") {
        return None;
    }
    let (is_lower, words) = match words.strip_prefix(lower.as_slice()) {
        Some(words) => (true, words),
        None => (false, words),
    };
    match words {
        [equals, CelWord::Text(text)] if *equals == plain("==") && !is_lower => {
            Some(DeviceCondition::IsModel(text.clone()))
        }
        [
            dot,
            CelWord::Plain(function),
            open,
            CelWord::Text(text),
            close,
        ] if *dot == plain(".") && *open == plain("(") && *close == plain(")") => {
            let is_known = ["contains", "startsWith", "endsWith"].contains(&function.as_str());
            let ignores_case =
                is_lower && function == "contains" && *text == text.to_ascii_lowercase();
            match (is_known, ignores_case) {
                (true, true) => Some(DeviceCondition::HasType(text.clone())),
                (true, false) => Some(DeviceCondition::HasTypeInCase(text.clone())),
                (false, _) => None,
            }
        }
        _ => None,
    }
}

/// Reads `== "a"` and `in ["a", "b"]`.
fn uuids(words: &[CelWord]) -> Option<Vec<String>> {
    let list = match words {
        [equals, CelWord::Text(text)] if *equals == plain("==") => return Some(vec![text.clone()]),
        [within, open, list @ .., close]
            if *within == plain("in") && *open == plain("[") && *close == plain("]") =>
        {
            list
        }
        _ => return None,
    };
    let each = list.split(|word| *word == plain(","));
    let each = each.map(|item| match item {
        [CelWord::Text(text)] => Some(text.clone()),
        _ => None,
    });
    each.collect()
}

/// The words without the parentheses around all of them.
fn inner(words: &[CelWord]) -> &[CelWord] {
    let [open, within @ .., close] = words else {
        return words;
    };
    let is_around = *open == plain("(") && *close == plain(")") && depths(within).all(|it| it >= 0);
    if is_around { inner(within) } else { words }
}

/// How many brackets are open after each word.
fn depths(words: &[CelWord]) -> impl Iterator<Item = i64> {
    words.iter().scan(0, |depth, word| {
        if let CelWord::Plain(sign) = word {
            match sign.as_str() {
                "(" | "[" | "{" => *depth += 1,
                ")" | "]" | "}" => *depth -= 1,
                _ => {}
            }
        }
        Some(*depth)
    })
}

/// Splits at a sign outside of brackets.
fn split<'a>(words: &'a [CelWord], sign: &str) -> Vec<&'a [CelWord]> {
    let at = words.iter().zip(depths(words)).zip(0_usize..);
    let at = at.filter(|((word, depth), _)| *depth == 0 && **word == plain(sign));
    let mut parts = Vec::new();
    let mut from = 0;
    for ((_, _), at) in at {
        parts.extend(words.get(from..at));
        from = at + 1;
    }
    parts.extend(words.get(from..));
    parts
}

/// The words of an expression; `None` for one that is too long, has a comment, or has a string of a form that is not read
/// here.
fn words(expression: &str) -> Option<Vec<CelWord>> {
    if expression.len() > MOST_BYTES {
        return None;
    }
    let mut all = Vec::new();
    let mut letters = expression.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            space if space.is_whitespace() => {}
            // A comment.
            '/' if letters.peek() == Some(&'/') => return None,
            '"' | '\'' => {
                // A raw string or one of bytes (r"…", b"…"), or one of three quotes.
                let is_marked = matches!(all.last(), Some(CelWord::Plain(name))
                    if ["r", "R", "b", "B", "br", "rb"].contains(&name.as_str()));
                let text = string(&mut letters, letter)?;
                if is_marked || (text.is_empty() && letters.peek() == Some(&letter)) {
                    return None;
                }
                all.push(CelWord::Text(text));
            }
            letter if letter.is_ascii_alphanumeric() || letter == '_' => {
                let mut name = String::from(letter);
                while let Some(next) =
                    letters.next_if(|it| it.is_ascii_alphanumeric() || *it == '_')
                {
                    name.push(next);
                }
                all.push(CelWord::Plain(name));
            }
            sign => {
                let mut text = String::from(sign);
                let is_double = matches!(
                    (sign, letters.peek()),
                    ('&', Some('&')) | ('|', Some('|')) | ('=' | '!' | '<' | '>', Some('='))
                );
                text.extend(is_double.then(|| letters.next()).flatten());
                all.push(CelWord::Plain(text));
            }
        }
    }
    Some(all)
}

/// The content of a string up to its closing quote.
fn string(letters: &mut impl Iterator<Item = char>, quote: char) -> Option<String> {
    let mut text = String::new();
    loop {
        match letters.next()? {
            letter if letter == quote => return Some(text),
            '\\' => match letters.next()? {
                letter @ ('"' | '\'' | '\\') => text.push(letter),
                'U' => {
                    let code: String = letters.by_ref().take(8).collect();
                    text.push(char::from_u32(u32::from_str_radix(&code, 16).ok()?)?);
                }
                _ => return None,
            },
            letter => text.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With `@N` for our attribute `productName` and `@U` for `uuid`.
    fn of(short: &str) -> Selection {
        let attribute = |name: &str| format!("device.attributes[\"{DRIVER}\"].{name}");
        let text = short
            .replace("@N", &attribute("productName"))
            .replace("@U", &attribute("uuid"));
        let mut selection = Selection::default();
        narrow(&mut selection, &text);
        selection
    }

    fn list(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn what_templates_write_is_read() {
        let read = of(
            r#"(@N.lowerAscii().contains("h100") || @N.lowerAscii().contains("a\"\\")) && !(@N.lowerAscii().contains("mig")) && @U in ["GPU-3F", "GPU-4"] && !(@U in ["GPU-5"])"#,
        );

        assert_eq!(read.use_types, list(&["h100", "a\"\\"]));
        assert_eq!(read.nouse_types, list(&["mig"]));
        assert_eq!(read.use_ids, list(&["gpu-3f", "gpu-4"]));
        assert_eq!(read.nouse_ids, list(&["gpu-5"]));
    }

    #[test]
    fn usual_forms_of_people_are_read() {
        assert_eq!(of(r#"@N == "NVIDIA H200""#).models, list(&["NVIDIA H200"]));
        assert_eq!(of(r#"@N.startsWith('h')"#).use_types, list(&["h"]));
        assert_eq!(
            of(r#"((@N == "a") || @N.endsWith("b"))"#).use_types,
            list(&["b", "a"])
        );
        assert_eq!(
            of(r#"@U == "GPU-1" && device.driver == "x""#).use_ids,
            list(&["gpu-1"])
        );
        assert_eq!(
            of(r#"!@N.lowerAscii().contains("a")"#).nouse_types,
            list(&["a"])
        );
    }

    #[test]
    fn nothing_is_excluded_that_a_selector_allows() {
        for text in [
            // Another attribute may make the alternative true.
            r#"@N == "a" || device.attributes["gpu.vgpu.io"].index == 0"#,
            r#"!@N.lowerAscii().contains("a") || @N == "b""#,
            r#"!(@N.lowerAscii().contains("a") && @U == "GPU-1")"#,
            r#"@N == "a" || @N == "b" && @U == "GPU-1""#,
            r#"@U == "GPU-1" && @N == "a" || @N == "b""#,
            "device.driver == \"x\" // && @N == \"a\"",
            // Ignoring case would exclude more.
            r#"!(@N.contains("a"))"#,
            r#"!(@N == "a")"#,
            r#"@N == "a" && true ? true : false"#,
            r#"@U == "GPU-1" || @N == "a""#,
            r#"@N == r"a""#,
            r#"@N == "\n""#,
            r#"@N == """a""""#,
            r#"@N == "a"#,
            r#"@N.matches("a")"#,
            r#"device.attributes["other"].productName == "a""#,
            "",
            ")(",
            "&& ||",
        ] {
            assert_eq!(of(text), Selection::default(), "{text}");
        }
        // Both have to hold, and there is one list: the first one stays.
        assert_eq!(
            of(r#"@N.contains("a") && @N.contains("b")"#).use_types,
            list(&["a"])
        );
    }
}
