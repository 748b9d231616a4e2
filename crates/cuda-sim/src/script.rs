//! How long a simulated kernel takes: a rule by its name, the script that a person writes, and the
//! names and arguments that carry a time themselves. Text in, values out; never reads a clock.
//!
//! A script is lines of words; `#` begins a comment. The first `kernel` line whose pattern fits
//! decides (`*` stands for any characters, `?` for one).
//!
//! ```text
//! default 10us                      # what no line names
//! kernel matmul*      2ms           # a fixed time
//! kernel axpy         5us + 20ns/block
//! kernel sleep_ns     arg ns        # its first argument, a u64, counts ns (us, ms)
//! kernel allreduce*   peers 2 50us  # spins until two such kernels run, then 50us
//! kernel wait_flag    flag 10us     # spins until the u32 that its first argument points to is not 0
//! kernel noisy*       1ms ±20%      # each launch takes another time in that range (also +-20%)
//! seed   7                          # another row of such times
//! while  step*        5             # a loop node with such a kernel in it runs five times (or 3..7)
//! copy   25GB/s 2us                 # copies: this rate, and a latency
//! slice  2ms                        # how long a process keeps the GPU while another one waits
//! slice  order least-run            # which process is next (or round-robin)
//! slice  empty kept                 # a slice whose process has nothing to run (or given-up)
//! slice  switch 50us                # how long the GPU runs nothing when it changes to another process
//! sample 167ms                      # how often NVML's utilisation is written down
//! nvml   lag 500ms                  # how much later it can be read
//! nvml   round up                   # how its percents are rounded (or nearest, down)
//! nvml   credit next                # one slice of each period is told of the next process (or own)
//! call   cuEventRecord 800ns        # processor time that this driver call costs
//! ```
//!
//! Without a script a kernel takes 10 us, unless its name ends in a time of its own, as
//! `step__250us` does, or its launch carries [`LAUNCH_ATTRIBUTE_NS`].

use std::fmt;

use crate::figures::{Credit, Figures, Rounding};
use crate::slices::{Emptied, Order, Rules};

/// A launch attribute (`CUlaunchAttribute.id`) that only the simulated driver knows: its value's
/// first eight bytes are the kernel's time in nanoseconds. It wins over the script.
pub const LAUNCH_ATTRIBUTE_NS: u32 = 0x5647_5055;

/// The longest script in bytes: it lies in the board's file, so that all processes use one.
pub const MAX_SCRIPT_BYTES: usize = 16 * 1024;

/// The work of a kernel on the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duration {
    /// Runs for `ns + ns_per_block * blocks`.
    Fixed {
        /// Nanoseconds of the whole launch.
        ns: u64,
        /// Nanoseconds for each block of the grid.
        ns_per_block: u64,
        /// How far a launch may be from that, in percent.
        jitter_percent: u32,
    },
    /// Runs for what its first argument says, times this many nanoseconds.
    Argument {
        /// Nanoseconds that one unit of the argument stands for.
        unit_ns: u64,
    },
    /// Spins until this many kernels of the same rule run, then runs for `ns`.
    Peers {
        /// How many must run together.
        parties: u32,
        /// Nanoseconds after that.
        ns: u64,
    },
    /// Spins until the word that its first argument points to is not zero, then runs for `ns`.
    Flag {
        /// Nanoseconds after that.
        ns: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    pattern: String,
    duration: Duration,
}

/// Everything that a script says, with the defaults where it is silent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    default_ns: u64,
    rules: Vec<Rule>,
    calls: Vec<(String, u64)>,
    loops: Vec<(String, u32, u32)>,
    seed: u64,
    /// Bytes that a copy moves in a second.
    pub copy_bytes_per_second: u64,
    /// Nanoseconds that each copy takes besides.
    pub copy_latency_ns: u64,
    /// How processes divide a GPU's time.
    pub slices: Rules,
    /// How NVML tells utilisation.
    pub figures: Figures,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            default_ns: 10_000,
            rules: Vec::new(),
            calls: Vec::new(),
            loops: Vec::new(),
            seed: 0,
            copy_bytes_per_second: 25_000_000_000,
            copy_latency_ns: 2_000,
            slices: Rules {
                slice_ns: 2_000_000,
                switch_ns: 0,
                order: Order::RoundRobin,
                emptied: Emptied::GivenUp,
            },
            figures: Figures {
                sample_ns: 166_666_667,
                lag_ns: 0,
                rounding: Rounding::Down,
                credit: Credit::Own,
            },
        }
    }
}

/// A line that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptError {
    /// Counted from 1; 0 when it is about the whole script.
    pub line: usize,
    /// The problem with the line.
    pub problem: ScriptProblem,
}

/// A problem with a line of a script, with the text that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScriptProblem {
    /// The script has this many bytes: more than the board's file holds.
    Bytes(usize),
    /// A first word that begins no line, or a line with too many or too few words.
    Line(String),
    /// A `seed` that is no whole number.
    Seed(String),
    /// Times of a loop that are no number and no range.
    Times(String),
    /// The number of a `peers` rule.
    Parties,
    /// A second time of a kernel that is not for each block.
    PerBlock(String),
    /// Words that are no time of a kernel.
    KernelTime(String),
    /// Another value than a line accepts.
    Value {
        /// The words that begin the line.
        line: &'static str,
        /// The text that was read.
        read: String,
        /// The accepted values.
        accepted: &'static str,
    },
    /// A time of 0 where this line needs more.
    Zero(&'static str),
    /// An unknown unit of time.
    Unit(String),
    /// A time beyond the longest one.
    Long(String),
    /// A rate without a known unit, or of 0.
    Rate(String),
    /// Neither a time nor a rate.
    Number(String),
}

impl fmt::Display for ScriptProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => {
                write!(f, "{bytes} bytes long, at most {MAX_SCRIPT_BYTES} fit")
            }
            Self::Line(word) => write!(
                f,
                "{word:?} begins no line that is known, or has too many or too few words: \
                 accepted are default, kernel, copy, slice, slice order, slice empty, slice switch, \
                 sample, nvml lag, nvml round, nvml credit, seed, while, call"
            ),
            Self::Seed(text) => write!(f, "seed: {text:?} is no whole number"),
            Self::Times(text) => write!(
                f,
                "while: {text:?} is no number up to {MOST_TIMES} and no range of such, as 3..7"
            ),
            Self::Parties => f.write_str("peers: a number from 1 to 64 is accepted"),
            Self::PerBlock(text) => write!(
                f,
                "{text:?}: a time for each block is accepted, as 20ns/block"
            ),
            Self::KernelTime(words) => write!(
                f,
                "{words:?} is no time of a kernel: accepted are 2ms, 5us + 20ns/block, arg ns, \
                 peers 2 50us, flag 10us, 1ms ±20%"
            ),
            Self::Value {
                line,
                read,
                accepted,
            } => write!(f, "{line}: {read:?} is read; accepted are {accepted}"),
            Self::Zero(line) => write!(f, "{line}: a time above 0 is accepted"),
            Self::Unit(text) => {
                write!(f, "{text:?} is no unit of time: accepted are ns, us, ms, s")
            }
            Self::Long(text) => write!(f, "{text:?} is longer than eleven days"),
            Self::Rate(text) => write!(
                f,
                "{text:?} is no rate: accepted are B/s, KB/s, MB/s, GB/s, TB/s"
            ),
            Self::Number(text) => {
                write!(f, "{text:?} is no time or rate: 10us, 1.5ms, 2s are")
            }
        }
    }
}

impl std::error::Error for ScriptProblem {}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            return write!(f, "script: {}", self.problem);
        }
        write!(f, "script line {}: {}", self.line, self.problem)
    }
}

impl std::error::Error for ScriptError {}

impl Script {
    /// Reads a script.
    ///
    /// # Errors
    /// Names the line, what stands there and what is accepted.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        if text.len() > MAX_SCRIPT_BYTES {
            let problem = ScriptProblem::Bytes(text.len());
            return Err(ScriptError { line: 0, problem });
        }
        let mut script = Self::default();
        for (index, line) in text.lines().enumerate() {
            let bare = line.split('#').next().unwrap_or("");
            let words: Vec<&str> = bare.split_whitespace().collect();
            script.take(&words).map_err(|problem| ScriptError {
                line: index + 1,
                problem,
            })?;
        }
        Ok(script)
    }

    fn take(&mut self, words: &[&str]) -> Result<(), ScriptProblem> {
        match words {
            [] => {}
            ["default", time] => self.default_ns = time_ns(time)?,
            ["kernel", pattern, rule @ ..] => {
                let duration = duration(rule)?;
                self.rules.push(Rule {
                    pattern: (*pattern).to_owned(),
                    duration,
                });
            }
            ["copy", rate] => self.copy_bytes_per_second = bytes_per_second(rate)?,
            ["copy", rate, latency] => {
                self.copy_bytes_per_second = bytes_per_second(rate)?;
                self.copy_latency_ns = time_ns(latency)?;
            }
            ["slice", time] => self.slices.slice_ns = above_zero("slice", time_ns(time)?)?,
            ["slice", "order", order] => {
                self.slices.order = match *order {
                    "round-robin" => Order::RoundRobin,
                    "least-run" => Order::LeastRun,
                    _ => return Err(wrong("slice order", order, "round-robin, least-run")),
                };
            }
            ["slice", "empty", emptied] => {
                self.slices.emptied = match *emptied {
                    "given-up" => Emptied::GivenUp,
                    "kept" => Emptied::Kept,
                    _ => return Err(wrong("slice empty", emptied, "given-up, kept")),
                };
            }
            ["slice", "switch", time] => {
                self.slices.switch_ns = time_ns(time)?;
                if self.slices.switch_ns > MOST_SWITCH_NS {
                    return Err(wrong("slice switch", time, "0us to 10ms"));
                }
            }
            ["sample", time] => self.figures.sample_ns = above_zero("sample", time_ns(time)?)?,
            ["nvml", "lag", time] => self.figures.lag_ns = time_ns(time)?,
            ["nvml", "round", rounding] => {
                self.figures.rounding = match *rounding {
                    "down" => Rounding::Down,
                    "nearest" => Rounding::Nearest,
                    "up" => Rounding::Up,
                    _ => return Err(wrong("nvml round", rounding, "down, nearest, up")),
                };
            }
            ["nvml", "credit", credit] => {
                self.figures.credit = match *credit {
                    "own" => Credit::Own,
                    "next" => Credit::NextProcess,
                    _ => return Err(wrong("nvml credit", credit, "own, next")),
                };
            }
            ["seed", number] => {
                self.seed = number
                    .parse()
                    .map_err(|_| ScriptProblem::Seed((*number).to_owned()))?;
            }
            ["while", pattern, times] => {
                let (least, most) = times_of(times)?;
                self.loops.push(((*pattern).to_owned(), least, most));
            }
            ["call", name, time] => self.calls.push(((*name).to_owned(), time_ns(time)?)),
            [word, ..] => {
                return Err(ScriptProblem::Line((*word).to_owned()));
            }
        }
        Ok(())
    }

    /// The duration of the kernel with this name, and the line that set it (0: no line; the name or the default).
    pub fn kernel(&self, name: &str) -> (Duration, usize) {
        let found = self.rules.iter().position(|rule| fits(&rule.pattern, name));
        if let Some((index, rule)) = found.and_then(|i| self.rules.get(i).map(|rule| (i, rule))) {
            return (rule.duration, index + 1);
        }
        let own = name
            .rsplit_once("__")
            .and_then(|(_, time)| time_ns(time).ok());
        (
            Duration::Fixed {
                ns: own.unwrap_or(self.default_ns),
                ns_per_block: 0,
                jitter_percent: 0,
            },
            0,
        )
    }

    /// A launch's time within its jitter: `draw` tells it from every other launch, the seed one row of
    /// launches from another.
    pub fn jittered(&self, ns: u64, percent: u32, draw: u64) -> u64 {
        if percent == 0 {
            return ns;
        }
        let reach = u128::from(ns) * u128::from(percent) / 100;
        let random = u128::from(mix(self.seed ^ mix(draw)));
        let up = (random * (2 * reach + 1)) >> 64;
        u64::try_from((u128::from(ns) + up).saturating_sub(reach)).unwrap_or(u64::MAX)
    }

    /// How often a loop runs that has a kernel of this name in it; `None` when no line says so.
    pub fn loops(&self, kernel: &str, draw: u64) -> Option<u32> {
        let (_, least, most) = self.loops.iter().find(|(name, ..)| fits(name, kernel))?;
        let span = u128::from(most - least) + 1;
        let random = u128::from(mix(self.seed ^ mix(draw)));
        Some(least + ((random * span) >> 64) as u32)
    }

    /// Nanoseconds of processor time that a driver call costs, 0 for most.
    pub fn call_ns(&self, name: &str) -> u64 {
        self.calls
            .iter()
            .find(|(call, _)| call == name)
            .map_or(0, |(_, ns)| *ns)
    }

    /// Whether any driver call costs anything.
    pub fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Nanoseconds that a copy of `bytes` takes.
    pub fn copy_ns(&self, bytes: u64) -> u64 {
        let transfer = u128::from(bytes) * 1_000_000_000 / u128::from(self.copy_bytes_per_second);
        self.copy_latency_ns
            .saturating_add(u64::try_from(transfer).unwrap_or(u64::MAX))
    }
}

/// Spreads numbers that differ in a few bits over all of them (splitmix64).
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The most times of a loop: a loop that nothing ends is a program that hangs.
const MOST_TIMES: u32 = 10_000;

fn times_of(text: &str) -> Result<(u32, u32), ScriptProblem> {
    let (least, most) = text.split_once("..").unwrap_or((text, text));
    match (least.parse::<u32>(), most.parse::<u32>()) {
        (Ok(least), Ok(most)) if least <= most && most <= MOST_TIMES => Ok((least, most)),
        _ => Err(ScriptProblem::Times(text.to_owned())),
    }
}

fn jitter_percent(word: &str) -> Option<u32> {
    let number = word.strip_prefix('±').or_else(|| word.strip_prefix("+-"))?;
    let percent = number.strip_suffix('%')?.parse().ok();
    percent.filter(|percent| (0..=100).contains(percent))
}

fn duration(words: &[&str]) -> Result<Duration, ScriptProblem> {
    if let [rule @ .., last] = words
        && let Some(percent) = jitter_percent(last)
        && let Duration::Fixed {
            ns, ns_per_block, ..
        } = duration(rule)?
    {
        return Ok(Duration::Fixed {
            ns,
            ns_per_block,
            jitter_percent: percent,
        });
    }
    match words {
        ["arg", unit] => Ok(Duration::Argument {
            unit_ns: unit_ns(unit)?,
        }),
        ["peers", parties, time] => {
            let parties = parties.parse().ok().filter(|n| (1..=64).contains(n));
            Ok(Duration::Peers {
                parties: parties.ok_or(ScriptProblem::Parties)?,
                ns: time_ns(time)?,
            })
        }
        ["flag", time] => Ok(Duration::Flag { ns: time_ns(time)? }),
        [time] => match time.strip_suffix("/block") {
            Some(each) => Ok(Duration::Fixed {
                ns: 0,
                ns_per_block: time_ns(each)?,
                jitter_percent: 0,
            }),
            None => Ok(Duration::Fixed {
                ns: time_ns(time)?,
                ns_per_block: 0,
                jitter_percent: 0,
            }),
        },
        [time, "+", each] => match each.strip_suffix("/block") {
            Some(each) => Ok(Duration::Fixed {
                ns: time_ns(time)?,
                ns_per_block: time_ns(each)?,
                jitter_percent: 0,
            }),
            None => Err(ScriptProblem::PerBlock((*each).to_owned())),
        },
        other => Err(ScriptProblem::KernelTime(other.join(" "))),
    }
}

/// A GPU that takes longer to change to another process is none.
const MOST_SWITCH_NS: u64 = 10_000_000;

fn wrong(line: &'static str, read: &str, accepted: &'static str) -> ScriptProblem {
    ScriptProblem::Value {
        line,
        read: read.to_owned(),
        accepted,
    }
}

fn above_zero(line: &'static str, ns: u64) -> Result<u64, ScriptProblem> {
    if ns == 0 {
        Err(ScriptProblem::Zero(line))
    } else {
        Ok(ns)
    }
}

fn unit_ns(unit: &str) -> Result<u64, ScriptProblem> {
    match unit {
        "ns" => Ok(1),
        "us" => Ok(1_000),
        "ms" => Ok(1_000_000),
        "s" => Ok(1_000_000_000),
        other => Err(ScriptProblem::Unit(other.to_owned())),
    }
}

/// Reads `10us`, `1.5ms`, `2s`, `0ns`.
///
/// # Errors
/// Says what was read and what is accepted.
pub fn time_ns(text: &str) -> Result<u64, ScriptProblem> {
    let (number, unit) = number_and_unit(text)?;
    let ns = number * unit_ns(unit)? as f64;
    if ns > 1e15 {
        return Err(ScriptProblem::Long(text.to_owned()));
    }
    Ok(ns.round() as u64)
}

fn bytes_per_second(text: &str) -> Result<u64, ScriptProblem> {
    let refused = || ScriptProblem::Rate(text.to_owned());
    let (number, unit) = number_and_unit(text)?;
    let factor = match unit {
        "B/s" => 1.0,
        "KB/s" => 1e3,
        "MB/s" => 1e6,
        "GB/s" => 1e9,
        "TB/s" => 1e12,
        _ => return Err(refused()),
    };
    let rate = (number * factor).round() as u64;
    if rate == 0 { Err(refused()) } else { Ok(rate) }
}

fn number_and_unit(text: &str) -> Result<(f64, &str), ScriptProblem> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let value: f64 = number
        .parse()
        .map_err(|_| ScriptProblem::Number(text.to_owned()))?;
    Ok((value, unit))
}

/// Whether `name` fits `pattern`, where `*` stands for any characters and `?` for one.
fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    // Where the last star stood, and how much of the name it has taken: on a misfit it takes one more.
    let mut retry: Option<(usize, usize)> = None;
    while let Some(&letter) = name.get(n) {
        match pattern.get(p) {
            Some(b'*') => {
                retry = Some((p, n));
                p += 1;
            }
            Some(&want) if want == b'?' || want == letter => {
                p += 1;
                n += 1;
            }
            _ => {
                let Some((star, taken)) = retry else {
                    return false;
                };
                retry = Some((star, taken + 1));
                p = star + 1;
                n = taken + 1;
            }
        }
    }
    pattern
        .get(p..)
        .is_some_and(|rest| rest.iter().all(|&letter| letter == b'*'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixed(ns: u64) -> Duration {
        Duration::Fixed {
            ns,
            ns_per_block: 0,
            jitter_percent: 0,
        }
    }

    #[test]
    fn the_first_line_that_fits_decides() {
        let script = Script::parse("kernel matmul_small 5us\nkernel matmul* 2ms # big\n").unwrap();

        assert_eq!(script.kernel("matmul_small"), (fixed(5_000), 1));
        assert_eq!(script.kernel("matmul_f32"), (fixed(2_000_000), 2));
        assert_eq!(script.kernel("other"), (fixed(10_000), 0));
    }

    #[test]
    fn a_name_may_carry_its_own_time() {
        let script = Script::default();

        assert_eq!(script.kernel("step__250us").0, fixed(250_000));
        assert_eq!(script.kernel("step__fast").0, fixed(10_000));
    }

    #[test]
    fn every_form_of_the_documentation_is_read() {
        let script = Script::parse(
            "default 1ms\nkernel axpy 5us + 20ns/block\nkernel sleep_ns arg us\n\
             kernel allreduce* peers 2 50us\nkernel wait_flag flag 10us\ncopy 10GB/s 1us\n\
             slice 1ms\nslice order least-run\nslice empty kept\nslice switch 50us\n\
             sample 1s\nnvml lag 170ms\nnvml round nearest\nnvml credit next\n\
             call cuEventRecord 800ns",
        )
        .unwrap();

        assert_eq!(
            script.kernel("axpy").0,
            Duration::Fixed {
                ns: 5_000,
                ns_per_block: 20,
                jitter_percent: 0
            }
        );
        assert_eq!(
            script.kernel("sleep_ns").0,
            Duration::Argument { unit_ns: 1_000 }
        );
        assert_eq!(
            script.kernel("allreduce_f").0,
            Duration::Peers {
                parties: 2,
                ns: 50_000
            }
        );
        assert_eq!(script.kernel("wait_flag").0, Duration::Flag { ns: 10_000 });
        assert_eq!(script.copy_ns(10_000_000_000), 1_000_001_000);
        assert_eq!(
            script.slices,
            Rules {
                slice_ns: 1_000_000,
                switch_ns: 50_000,
                order: Order::LeastRun,
                emptied: Emptied::Kept,
            }
        );
        assert_eq!(
            script.figures,
            Figures {
                sample_ns: 1_000_000_000,
                lag_ns: 170_000_000,
                rounding: Rounding::Nearest,
                credit: Credit::NextProcess,
            }
        );
        assert_eq!(
            (script.call_ns("cuEventRecord"), script.call_ns("cuInit")),
            (800, 0)
        );
    }

    #[test]
    fn a_bad_line_is_named_with_what_is_accepted() {
        for (text, line, says) in [
            ("slice 0ms", 1, "above 0"),
            (
                "slice order fair",
                1,
                "\"fair\" is read; accepted are round-robin, least-run",
            ),
            (
                "slice empty lost",
                1,
                "\"lost\" is read; accepted are given-up, kept",
            ),
            (
                "slice switch 1s",
                1,
                "\"1s\" is read; accepted are 0us to 10ms",
            ),
            ("slice switch soon", 1, "no time or rate"),
            (
                "nvml round 5",
                1,
                "\"5\" is read; accepted are down, nearest, up",
            ),
            (
                "nvml credit all",
                1,
                "\"all\" is read; accepted are own, next",
            ),
            ("\nkernel a 10", 2, "no unit of time"),
            ("kernel a peers many 1us", 1, "1 to 64"),
            ("kernel a", 1, "accepted are 2ms"),
            ("kernal a 1us", 1, "accepted are default, kernel"),
            ("copy fast", 1, "no time or rate"),
            ("while a 7..3", 1, "no range"),
            ("kernel a 1ms ±200%", 1, "no time of a kernel"),
        ] {
            let error = Script::parse(text).unwrap_err();
            assert_eq!(error.line, line, "{text}");
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn a_jitter_stays_in_its_range_and_reaches_all_of_it() {
        let script = Script::parse("seed 7\nkernel a 1ms ±20%\nkernel b 5us + 1us/block +-10%");
        let script = script.unwrap();
        let Duration::Fixed {
            ns, jitter_percent, ..
        } = script.kernel("a").0
        else {
            panic!("a fixed time with a jitter");
        };
        assert_eq!((ns, jitter_percent), (1_000_000, 20));

        let row = |script: &Script| -> Vec<u64> {
            (0..1000)
                .map(|draw| script.jittered(ns, jitter_percent, draw))
                .collect()
        };

        let times = row(&script);
        assert!(times.iter().all(|ns| (800_000..=1_200_000).contains(ns)));
        assert!(times.iter().any(|&ns| ns < 810_000) && times.iter().any(|&ns| ns > 1_190_000));
        let mean = times.iter().sum::<u64>() / 1000;
        assert!((990_000..=1_010_000).contains(&mean), "{mean}");
        assert_eq!(row(&script), times);
        assert_ne!(row(&Script::parse("seed 8").unwrap()), times);
    }

    #[test]
    fn loops_run_as_often_as_their_line_says() {
        let script = Script::parse("while step* 3..5\nwhile once 1").unwrap();

        let mut seen: Vec<_> = (0..100)
            .map(|draw| script.loops("step_a", draw).unwrap())
            .collect();
        seen.sort_unstable();
        seen.dedup();

        assert_eq!(seen, [3, 4, 5]);
        assert_eq!(script.loops("once", 9), Some(1));
        assert_eq!(script.loops("other", 9), None);
    }

    #[test]
    fn patterns_fit_as_in_a_shell() {
        for (pattern, name, want) in [
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abcb", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*mul*", "matmul_f32", true),
            ("a*b*c", "a-b-b-c", true),
        ] {
            assert_eq!(fits(pattern, name), want, "{pattern} {name}");
        }
    }
}
