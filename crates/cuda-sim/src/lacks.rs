//! The missing parts of NVML: the words of `VGPU_SIM_NVML`, and the default of a contrary board. Decides with values.

use crate::setting::BadSetting;

/// The parts of NVML that CUDA's and NVML's documentation allow to be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lacks {
    /// `nvmlDeviceGetHandleByUUID` and its like find nothing.
    pub uuid: bool,
    /// NVML's lists of processes are empty.
    pub processes: bool,
    /// NVML does not support the utilisation of each process (`NOT_SUPPORTED`).
    pub figures: bool,
    /// NVML supports it, and never has a sample of a process.
    pub samples: bool,
    /// Whether the processes' memory is reported as it was a while ago.
    pub late: bool,
    /// The library cannot be initialised: the driver's other half is not there.
    pub absent: bool,
}

/// Reads the words of a setting.
///
/// # Errors
/// With the word that is none.
pub fn parse(text: &str) -> Result<Lacks, BadSetting> {
    let mut lacks = Lacks::default();
    for word in text
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
    {
        match word {
            "no-uuid" => lacks.uuid = true,
            "no-processes" => lacks.processes = true,
            "no-figures" => lacks.figures = true,
            "no-samples" => lacks.samples = true,
            "late" => lacks.late = true,
            "absent" => lacks.absent = true,
            // A contrary board's NVML is whole again.
            "whole" => {}
            _ => {
                let accepted = "a list of no-uuid, no-processes, no-figures, no-samples, late, absent, or whole";
                return Err(BadSetting::value("VGPU_SIM_NVML", text, accepted));
            }
        }
    }
    Ok(lacks)
}

/// The missing parts of NVML for a process whose environment says `own`, on a board whose creator said `board`.
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
        assert!(parse("no-figures").unwrap().figures && parse("no-samples").unwrap().samples);
        assert!(!lacks.figures && !lacks.samples);
        assert!(parse("no-uid").is_err());
    }

    #[test]
    fn a_process_has_its_own_word_before_the_board() {
        assert!(of(None, "absent", false).absent);
        assert!(!of(Some("whole"), "absent", false).absent);
        assert!(of(None, "", true).uuid);
        assert!(!of(Some("whole"), "", true).uuid);
    }
}
