//! The version that an API server answers at `/version`, in which each number is a text: `1` and `28+`.

/// Kubernetes has match conditions of webhooks from this minor version of 1 on.
const MATCH_CONDITIONS: u32 = 28;

/// The number at the beginning of a part of a version: 28 of `28+`, 1 of `v1`. `None` for a text without one.
#[must_use]
pub fn number(part: &str) -> Option<u32> {
    let digits = part.trim_start_matches('v');
    let end = digits.find(|letter: char| !letter.is_ascii_digit());
    digits.get(..end.unwrap_or(digits.len()))?.parse().ok()
}

/// Whether an API server of this version has match conditions. A version that cannot be read counts as a current one.
#[must_use]
pub fn has_match_conditions(major: &str, minor: &str) -> bool {
    match (number(major), number(minor)) {
        (Some(1), Some(minor)) => minor >= MATCH_CONDITIONS,
        (Some(0), _) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_clouds_write_them() {
        for (major, minor, has) in [
            ("1", "28", true),
            ("1", "27", false),
            ("1", "28+", true),
            ("1", "27-gke.100", false),
            ("1", "9", false),
            ("1", "130", true),
            ("v1", "30", true),
            ("2", "0", true),
            ("0", "99", false),
            ("", "", true),
            ("one", "many", true),
            ("1", "99999999999999999999", true),
        ] {
            assert_eq!(has_match_conditions(major, minor), has, "{major}.{minor}");
        }
    }
}
