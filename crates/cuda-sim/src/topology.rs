//! How the GPUs of a board are connected: the text of `VGPU_SIM_TOPOLOGY`. Pairs separated by commas, in the words of
//! `nvidia-smi topo -m`: `0-1=PIX+NV4,0-2=SYS`. A pair that is not listed is `PHB`. Knows nothing of the traffic on a
//! link.

use crate::Board;
use crate::pci::MAX_GPUS;
use crate::setting::BadSetting;

/// NVLinks that a GPU has, used or not.
pub const MAX_LINKS: usize = 18;

/// Two GPUs, by their indices, the lower one first.
pub type Ends = (usize, usize);

/// How two GPUs reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// The way over PCIe, as NVML numbers it (10 one switch … 50 between processors).
    pub level: u32,
    /// NVLinks between them.
    pub links: usize,
}

const HOST_BRIDGE: u32 = 30;

/// Reads the paths of the pairs that `text` names.
///
/// # Errors
/// With what was read and what is accepted.
pub fn parse(text: &str) -> Result<Vec<(Ends, Path)>, BadSetting> {
    let wrong = || {
        let accepted = "pairs of GPUs with commas between them, such as \
             0-1=PIX+NV4,0-2=SYS; words out of PIX, PXB, PHB, NODE, SYS and NV1 to NV18, at most 18 NVLinks of a GPU";
        BadSetting::value("VGPU_SIM_TOPOLOGY", text, accepted)
    };
    let mut pairs: Vec<(Ends, Path)> = Vec::new();
    let mut links = [0; MAX_GPUS];
    for part in text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        let (pair, words) = part.split_once('=').ok_or_else(wrong)?;
        let (one, other) = pair.split_once('-').ok_or_else(wrong)?;
        let number = |text: &str| {
            let number: Option<usize> = text.trim().parse().ok();
            number.filter(|&number| number < MAX_GPUS).ok_or_else(wrong)
        };
        let (one, other) = (number(one)?, number(other)?);
        let pair = (one.min(other), one.max(other));
        if one == other || pairs.iter().any(|(known, _)| *known == pair) {
            return Err(wrong());
        }
        let mut path = Path {
            level: HOST_BRIDGE,
            links: 0,
        };
        for word in words.split('+').map(str::trim) {
            match word {
                "PIX" => path.level = 10,
                "PXB" => path.level = 20,
                "PHB" => path.level = HOST_BRIDGE,
                "NODE" => path.level = 40,
                "SYS" => path.level = 50,
                other => {
                    let count = other.strip_prefix("NV").ok_or_else(wrong)?;
                    let count: usize = count.parse().map_err(|_| wrong())?;
                    path.links = Some(count).filter(|&count| count > 0).ok_or_else(wrong)?;
                }
            }
        }
        for end in [pair.0, pair.1] {
            links[end] += path.links;
            if links[end] > MAX_LINKS {
                return Err(wrong());
            }
        }
        pairs.push((pair, path));
    }
    Ok(pairs)
}

impl Board {
    /// How two different GPUs reach each other.
    #[must_use]
    pub fn path_between(&self, one: usize, other: usize) -> Path {
        let pair = (one.min(other), one.max(other));
        // The settings were understood when the board was made.
        let pairs = parse(&self.topology()).unwrap_or_default();
        let named = pairs.into_iter().find(|(known, _)| *known == pair);
        named.map_or(
            Path {
                level: HOST_BRIDGE,
                links: 0,
            },
            |(_, path)| path,
        )
    }

    /// The GPU at the other end of each NVLink of this one, by the link's number.
    #[must_use]
    pub fn link_ends(&self, gpu: usize) -> Vec<usize> {
        let pairs = parse(&self.topology()).unwrap_or_default();
        let mut ends = Vec::new();
        for ((one, other), path) in pairs {
            let end = match gpu {
                _ if gpu == one => other,
                _ if gpu == other => one,
                _ => continue,
            };
            // A GPU that is not on the board is at no end.
            if end < self.gpus() {
                ends.extend(std::iter::repeat_n(end, path.links));
            }
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn pairs_are_linked_as_the_text_says() {
        let directory = tempfile::tempdir().unwrap();
        let config = Config {
            memory_bytes: vec![1 << 30; 3],
            topology: "1-0=PIX+NV2, 1-2=SYS+NV1".to_owned(),
            ..Config::default()
        };
        let board = Board::create(&directory.path().join("board"), &config).unwrap();

        assert_eq!(
            board.path_between(0, 1),
            Path {
                level: 10,
                links: 2
            }
        );
        assert_eq!(
            board.path_between(2, 0),
            Path {
                level: 30,
                links: 0
            }
        );
        assert_eq!(board.link_ends(1), [0, 0, 2]);
        assert_eq!(board.link_ends(2), [1]);
    }

    #[test]
    fn what_joins_no_gpus_is_refused_with_what_was_read() {
        for text in [
            "0-1",
            "0=PIX",
            "0-0=PIX",
            "0-99=PIX",
            "0-1=NEAR",
            "0-1=NV0",
            "0-1=NV19",
            "0-1=NV9,0-2=NV10",
            "0-1=PIX,1-0=SYS",
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
