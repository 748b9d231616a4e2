//! Finds the chip in the table for the name that a driver or an agent gives a device. Does not guess: a name with an
//! unknown word counts as another chip.

/// The parts of a device's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    /// The chip with the suffix that distinguishes it from its siblings: `A100`, `H100-PCIE`, `MLU370-X8`.
    pub(super) chip: String,
    /// The chip without its form, if the name has a form: `H100` for `H100 PCIe`.
    pub(super) without_form: Option<String>,
    /// The memory in the name, in GB.
    pub(super) gigabytes: Option<u64>,
}

/// Words for the maker and the kind of device.
const MAKERS: [&str; 14] = [
    "NVIDIA",
    "TESLA",
    "GEFORCE",
    "QUADRO",
    "HUAWEI",
    "ASCEND",
    "ATLAS",
    "HYGON",
    "DCU",
    "CAMBRICON",
    "GPU",
    "NPU",
    "GENERATION",
    "CORPORATION",
];

/// Words for the mounting or the kind of memory that do not affect any figure.
const FORMS: [&str; 12] = [
    "SXM", "SXM2", "SXM3", "SXM4", "SXM5", "SXM6", "OAM", "HBM2", "HBM2E", "HBM3", "HBM3E", "MIG0",
];

/// Words for the mounting that affect the figures of some chips.
const VARIANTS: [&str; 2] = ["PCIE", "NVL"];

/// Splits a name into its parts; `None` if nothing is left of it.
pub(super) fn parse(text: &str) -> Option<Name> {
    let upper = text.to_uppercase();
    let mut chip: Vec<String> = Vec::new();
    let mut form: Option<&'static str> = None;
    let mut gigabytes = None;
    for word in upper.split([' ', '-', '_', '/', '(', ')']) {
        let word = word
            .strip_prefix("ASCEND")
            .filter(|rest| rest.starts_with(|letter: char| letter.is_ascii_digit()))
            .unwrap_or(word);
        if word.is_empty() || MAKERS.contains(&word) || FORMS.contains(&word) {
            continue;
        }
        if let Some(variant) = VARIANTS.iter().find(|variant| **variant == word) {
            form = Some(variant);
        } else if let Some(size) = size(word) {
            gigabytes = Some(size);
        } else {
            chip.push(word.to_owned());
        }
    }
    let joined = spelled(&chip.join("-"));
    if joined.is_empty() {
        return None;
    }
    Some(match form {
        Some(form) => Name {
            chip: format!("{joined}-{form}"),
            without_form: Some(joined),
            gigabytes,
        },
        None => Name {
            chip: joined,
            without_form: None,
            gigabytes,
        },
    })
}

/// `80GB`, `80G`, `80GIB`.
fn size(word: &str) -> Option<u64> {
    let digits = word
        .strip_suffix("GIB")
        .or_else(|| word.strip_suffix("GB"))
        .or_else(|| word.strip_suffix('G'))?;
    digits.parse().ok()
}

/// A uniform spelling for chips that are spelled in several ways.
fn spelled(chip: &str) -> String {
    let plain = chip
        .strip_prefix("RTX-")
        .map_or_else(|| chip.to_owned(), |rest| format!("RTX{rest}"));
    match plain.as_str() {
        "RTX6000-ADA" => "RTX6000ADA".to_owned(),
        "A6000" => "RTXA6000".to_owned(),
        "MLU370X8" => "MLU370-X8".to_owned(),
        "MLU370X4" => "MLU370-X4".to_owned(),
        "MLU370S4" => "MLU370-S4".to_owned(),
        "310P3" | "310P1" => "310P".to_owned(),
        // An NVIDIA GPU named after its host: "GH200 480GB" has 480 GB on the CPU.
        _ => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_taken_apart() {
        for (text, chip, gigabytes) in [
            ("NVIDIA A100-SXM4-80GB", "A100", Some(80)),
            ("A100-80G", "A100", Some(80)),
            ("NVIDIA H100 80GB HBM3", "H100", Some(80)),
            ("NVIDIA H100 PCIe", "H100-PCIE", None),
            ("Tesla T4", "T4", None),
            ("NVIDIA L40S", "L40S", None),
            ("NVIDIA GeForce RTX 4090", "RTX4090", None),
            ("NVIDIA GeForce RTX 3090 Ti", "RTX3090-TI", None),
            ("NVIDIA RTX 6000 Ada Generation", "RTX6000ADA", None),
            ("NVIDIA RTX A6000", "RTXA6000", None),
            ("Ascend910B3", "910B3", None),
            ("MLU370-X8", "MLU370-X8", None),
            ("DCU K100_AI", "K100-AI", None),
        ] {
            let name = parse(text).unwrap();
            assert_eq!(
                (name.chip.as_str(), name.gigabytes),
                (chip, gigabytes),
                "{text}"
            );
        }
    }

    #[test]
    fn a_name_of_general_words_is_no_chip() {
        assert_eq!(parse("NVIDIA GPU"), None);
        assert_eq!(parse(""), None);
    }
}
