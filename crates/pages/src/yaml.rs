//! Converts YAML text to a JSON value and back, as the editors show it. Does not know what the object means.

use serde_json::Value;

/// Why a text is no object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum YamlError {
    #[error("the text is empty; write one object as YAML or JSON")]
    Empty,
    /// The first line of the parser's message.
    #[error("this is not YAML: {0}")]
    Syntax(String),
    #[error("read {0}; write one object, with keys such as metadata and spec")]
    NoObject(&'static str),
}

/// Reads one object.
///
/// # Errors
///
/// The error with its line, and the accepted input.
pub(crate) fn read(text: &str) -> Result<Value, YamlError> {
    if text.trim().is_empty() {
        return Err(YamlError::Empty);
    }
    let options = serde_saphyr::options! { with_snippet: false };
    let value: Value = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let error = error.without_snippet().to_string();
        YamlError::Syntax(error.lines().next().unwrap_or_default().to_owned())
    })?;
    if value.is_object() {
        return Ok(value);
    }
    Err(YamlError::NoObject(match value {
        Value::Array(_) => "a list",
        Value::Null => "nothing",
        _ => "a single value",
    }))
}

/// Writes a value as YAML that reads back as the same value.
pub(crate) fn write(value: &Value) -> String {
    let written = serde_saphyr::to_string(value).unwrap_or_default();
    // JSON is valid YAML, so if the writer's output does not read back, the value is shown as JSON.
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
    fn written_yaml_reads_back_as_the_same_value() {
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

        assert!(error.to_string().contains("line"), "{error}");
    }

    #[test]
    fn a_list_or_nothing_is_no_object() {
        assert_eq!(read("- a\n"), Err(YamlError::NoObject("a list")));
        assert_eq!(read("  \n"), Err(YamlError::Empty));
        assert_eq!(
            read("# only a comment\n"),
            Err(YamlError::NoObject("nothing"))
        );
    }
}
