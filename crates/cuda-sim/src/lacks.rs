//! What NVML lacks: the words of `VGPU_SIM_NVML`, and what a contrary board means by none. It decides with values.

/// What an NVML lacks that CUDA's and NVML's documentation let it lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lacks {
    /// `nvmlDeviceGetHandleByUUID` and its like find nothing.
    pub uuid: bool,
    /// NVML's lists of processes are empty.
    pub processes: bool,
    /// What processes hold is told as it was a while ago.
    pub late: bool,
    /// The library cannot be initialised: the driver's other half is not there.
    pub absent: bool,
}

/// Reads the words of a setting.
///
/// # Errors
/// With the word that is none.
pub fn parse(text: &str) -> Result<Lacks, String> {
    let mut lacks = Lacks::default();
    for word in text
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
    {
        match word {
            "no-uuid" => lacks.uuid = true,
            "no-processes" => lacks.processes = true,
            "late" => lacks.late = true,
            "absent" => lacks.absent = true,
            // A contrary board's NVML is whole again.
            "whole" => {}
            _ => {
                return Err(format!(
                    "VGPU_SIM_NVML is {text:?}: a list of no-uuid, no-processes, late, absent, or whole"
                ));
            }
        }
    }
    Ok(lacks)
}

/// What NVML lacks for a process whose environment says `own`, on a board whose creator said `board`.
#[must_use]
pub fn of(own: Option<&str>, board: &str, is_contrary: bool) -> Lacks {
    let said = own.filter(|text| !text.is_empty()).unwrap_or(board);
    if said.is_empty() {
        return Lacks {
            uuid: is_contrary,
            ..Lacks::default()
        };
    }
    parse(said).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_read_and_others_are_refused() {
        let lacks = parse("no-uuid, late").unwrap();

        assert!(lacks.uuid && lacks.late && !lacks.processes && !lacks.absent);
        assert!(parse("no-uid").unwrap_err().contains("no-uid"));
    }

    #[test]
    fn a_process_has_its_own_word_before_the_board() {
        assert!(of(None, "absent", false).absent);
        assert!(!of(Some("whole"), "absent", false).absent);
        assert!(of(None, "", true).uuid);
        assert!(!of(Some("whole"), "", true).uuid);
    }
}
