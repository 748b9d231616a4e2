//! The plugin's options of `srun`, `sbatch` and `salloc`, and its arguments in `plugstack.conf`. Values in, values out.

use std::fmt;
use std::path::PathBuf;

use vgpu_abi::size;

/// Priorities go from 1, the usual one, to this one, which runs last.
const PRIORITY_MOST: u32 = 1000;
/// Where the command is, unless `plugstack.conf` says otherwise.
const VGPU: &str = "/usr/local/bin/vgpu";

/// An option of the commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flag {
    Memory,
    Cores,
    Priority,
}

impl Flag {
    pub(crate) const ALL: [Self; 3] = [Self::Memory, Self::Cores, Self::Priority];

    /// The option's name, without its dashes.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "gpumem",
            Self::Cores => "gpucores",
            Self::Priority => "gpupriority",
        }
    }
}

/// Why Slurm's program must not go on; a person reads it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal(String);

impl Refusal {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Checks an option's value where a job is submitted. The prolog checks it again, together with the job's share.
pub(crate) fn check(option: Flag, text: &str) -> Result<(), Refusal> {
    let flag = option.name();
    let number = || {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if is_number {
            text.parse::<u32>().ok()
        } else {
            None
        }
    };
    let accepted = match option {
        Flag::Memory => match size::parse(text) {
            Ok(0) => "a size above 0, such as 4Gi".to_owned(),
            Ok(_) => return Ok(()),
            Err(error) => return Err(Refusal(format!("--{flag}: {error}"))),
        },
        Flag::Cores => match number() {
            Some(1..=100) => return Ok(()),
            _ => "a whole number of percent, 1 to 100, such as 30".to_owned(),
        },
        Flag::Priority => match number() {
            Some(1..=PRIORITY_MOST) => return Ok(()),
            _ => format!("1 (the usual one) to {PRIORITY_MOST}, where a higher number runs later"),
        },
    };
    Err(Refusal(format!(
        "--{flag}: {text:?} is not accepted; accepted: {accepted}"
    )))
}

/// The plugin's arguments.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Arguments {
    /// The command.
    pub(crate) vgpu: PathBuf,
    /// The board, where it is not the usual one.
    pub(crate) board: Option<PathBuf>,
}

impl Arguments {
    pub(crate) fn read(words: &[String]) -> Result<Self, Refusal> {
        let mut all = Self {
            vgpu: PathBuf::from(VGPU),
            board: None,
        };
        for word in words {
            match word.split_once('=') {
                Some(("vgpu", path)) if path.starts_with('/') => all.vgpu = PathBuf::from(path),
                Some(("board", path)) if path.starts_with('/') => {
                    all.board = Some(PathBuf::from(path));
                }
                _ => {
                    return Err(Refusal(format!(
                        "plugstack.conf gives vgpu_spank.so the argument {word:?}; accepted: vgpu=/PATH/OF/vgpu and \
                         board=/PATH"
                    )));
                }
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_bounds_are_refused_with_the_accepted_ones() {
        for (option, good, bad) in [
            (
                Flag::Memory,
                &["4G", "4Gi", "1.5Gi"][..],
                &["", "4", "0Gi", "-1Gi", "4X", "1=4Gi"][..],
            ),
            (
                Flag::Cores,
                &["1", "100"],
                &["", "0", "101", "30%", "+5", "4294967297"],
            ),
            (
                Flag::Priority,
                &["1", "1000"],
                &["", "0", "1001", "-1", "high"],
            ),
        ] {
            for text in good {
                assert_eq!(check(option, text), Ok(()), "{text}");
            }
            for text in bad {
                let error = check(option, text).unwrap_err().to_string();
                assert!(
                    error.starts_with(&format!("--{}: ", option.name())),
                    "{error}"
                );
                assert!(error.contains("accepted"), "{error}");
            }
        }
    }

    #[test]
    fn arguments_of_plugstack_are_paths() {
        let of = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
            Arguments::read(&words)
        };
        let none = of(&[]).unwrap();
        assert_eq!((none.vgpu, none.board), (PathBuf::from(VGPU), None));
        let both = of(&["vgpu=/opt/vgpu", "board=/run/b"]).unwrap();
        assert_eq!(
            (both.vgpu, both.board),
            (PathBuf::from("/opt/vgpu"), Some(PathBuf::from("/run/b")))
        );
        for word in ["vgpu=vgpu", "board=", "gpumem=4Gi", "x"] {
            assert!(of(&[word]).is_err(), "{word}");
        }
    }
}
