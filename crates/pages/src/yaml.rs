//! YAML text to a JSON value and back, as the editors show it. Never what the object means.

use serde_json::Value;

/// Reads one object.
///
/// # Errors
///
/// What is wrong and in which line; what is accepted.
pub(crate) fn read(text: &str) -> Result<Value, String> {
    if text.trim().is_empty() {
        return Err("the text is empty; write one object as YAML or JSON".to_owned());
    }
    let options = serde_saphyr::options! { with_snippet: false };
    let value: Value = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let error = error.without_snippet().to_string();
        let line = error.lines().next().unwrap_or_default().to_owned();
        format!("this is not YAML: {line}")
    })?;
    if value.is_object() {
        return Ok(value);
    }
    let what = match value {
        Value::Array(_) => "a list",
        Value::Null => "nothing",
        _ => "a single value",
    };
    Err(format!(
        "read {what}; write one object, with keys such as metadata and spec"
    ))
}

/// Writes a value as YAML that reads back as the same value.
pub(crate) fn write(value: &Value) -> String {
    let written = serde_saphyr::to_string(value).unwrap_or_default();
    // JSON is YAML, too: what the writer gets wrong is shown in a form that is right.
    if read(&written).is_ok_and(|back| back == *value) {
        return written;
    }
    serde_json::to_string_pretty(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_written_reads_back_as_the_same_value() {
        let awkward = json!({
            "a": "yes", "b": "1.0", "c": "0x10", "d": "line\nline\n", "e": "", "f": null, "g": [], "h": {},
            "i": " leading", "j": "a: b # c", "k": "~", "l": 1, "m": 1.5, "n": true, "o": ["x", {"y": "null"}],
            "p": "- x", "q": "{x", "r": "trailing ", "s": "\u{1}\u{7f}", "t": "012", "u": "1e3", "v": "\ttab",
            "w": "x".repeat(300), "x": "2026-11-22T00:00:00Z",
        });

        assert_eq!(read(&write(&awkward)), Ok(awkward));
    }

    #[test]
    fn an_error_names_the_line() {
        let error = read("a: 1\nb: [1, 2\nc: 3\n").unwrap_err();

        assert!(error.contains("line"), "{error}");
    }

    #[test]
    fn a_list_or_nothing_is_no_object() {
        assert!(read("- a\n").unwrap_err().contains("read a list"));
        assert!(read("  \n").unwrap_err().contains("empty"));
        assert!(read("# only a comment\n").unwrap_err().contains("nothing"));
    }
}
