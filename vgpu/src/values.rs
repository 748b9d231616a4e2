//! Parsing of flag values. Owns what is accepted; its errors name the accepted forms.
//!
//! Never guesses, and never accepts a size without a unit.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use vgpu_abi::limits::Policy;
use vgpu_abi::size::{self, Size, SizeError};

/// A flag's value that is not accepted: what was read, and what is accepted. clap prints it behind the flag's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BadValue {
    /// A size.
    Size(SizeError),
    /// Any other value.
    Other(String),
}

impl BadValue {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self::Other(text.into())
    }
}

impl From<SizeError> for BadValue {
    fn from(error: SizeError) -> Self {
        Self::Size(error)
    }
}

impl fmt::Display for BadValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(error) => error.fmt(f),
            Self::Other(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for BadValue {}

/// A GPU as the command line names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum GpuRef {
    /// nvidia-smi's number.
    Index(u32),
    /// A UUID, or its beginning.
    Uuid(String),
}

impl fmt::Display for GpuRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => write!(f, "{index}"),
            Self::Uuid(uuid) => f.write_str(uuid),
        }
    }
}

/// One value of a flag that may differ from GPU to GPU: bytes or percent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PerGpu {
    /// The same value for each GPU.
    Each(u64),
    /// Values by GPU.
    By(Vec<(GpuRef, u64)>),
}

/// Priorities go from 0, the highest, to this one.
pub(crate) const PRIORITY_MOST: u32 = 1000;

/// When a cap applies, as the command line names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PolicyName {
    /// The cap always holds
    Force,
    /// The cap holds while another container uses the GPU
    Default,
    /// The share of --floor is guaranteed, idle time is lent up to the cap
    Floor,
    /// The cap is not enforced
    Disable,
}

impl From<PolicyName> for Policy {
    fn from(name: PolicyName) -> Self {
        match name {
            PolicyName::Force => Self::Force,
            PolicyName::Default => Self::Default,
            PolicyName::Floor => Self::Floor,
            PolicyName::Disable => Self::Disable,
        }
    }
}

/// The word for a policy.
pub(crate) fn policy_word(policy: Policy) -> &'static str {
    match policy {
        Policy::Force => "force",
        Policy::Default => "default",
        Policy::Floor => "floor",
        Policy::Disable => "disable",
    }
}

/// A container's name, safe as a file name and on a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainerName(String);

impl ContainerName {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// A name and what tells it from others of the same name, shortened to fit. The second part is an id.
    pub(crate) fn of_parts(name: &str, id: &str) -> Self {
        let id: String = id
            .bytes()
            .filter(|byte| byte.is_ascii_alphanumeric())
            .take(NAME_MOST / 2)
            .map(char::from)
            .collect();
        if id.is_empty() {
            return Self(name_of_command(name));
        }
        let room = NAME_MOST - 1 - id.len();
        let name: String = name.chars().take(room).collect();
        Self(format!("{name}-{id}"))
    }
}

/// A value, and the text in which it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shown<T> {
    pub(crate) text: String,
    pub(crate) value: T,
}

/// Keeps the text beside the value.
pub(crate) fn shown<T>(
    read: fn(&str) -> Result<T, BadValue>,
) -> impl Fn(&str) -> Result<Shown<T>, BadValue> + Clone {
    move |text| {
        let value = read(text)?;
        let text = text.to_owned();
        Ok(Shown { text, value })
    }
}

/// A GPU of this machine, as `vgpu cdi` writes it down for the hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EngineGpu {
    pub(crate) index: u32,
    pub(crate) uuid: String,
    pub(crate) memory_bytes: u64,
}

impl fmt::Display for EngineGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}={}", self.index, self.uuid, self.memory_bytes)
    }
}

pub(crate) fn engine_gpu(text: &str) -> Result<EngineGpu, BadValue> {
    let read = || {
        let mut parts = text.splitn(3, '=');
        let index = parts.next()?.parse().ok()?;
        let GpuRef::Uuid(uuid) = gpu_ref(parts.next()?).ok()? else {
            return None;
        };
        let memory_bytes = parts.next()?.parse().ok().filter(|bytes| *bytes > 0)?;
        Some(EngineGpu {
            index,
            uuid,
            memory_bytes,
        })
    };
    read().ok_or_else(|| {
        BadValue::new(format!(
            "{text:?} is not a GPU of this machine; accepted: INDEX=UUID=BYTES, as vgpu cdi writes it"
        ))
    })
}

/// A CUDA version as the driver numbers it: 12.4 is 12040.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DriverVersion(pub(crate) u32);

/// Memory of simulated GPUs, in the words of `VGPU_SIM_MEMORY`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SimMemory(pub(crate) String);

/// The longest container name.
pub(crate) const NAME_MOST: usize = 63;

pub(crate) fn gpu_ref(text: &str) -> Result<GpuRef, BadValue> {
    let accepted = "accepted: a number as nvidia-smi shows it (0), or a UUID (GPU-…, MIG-…)";
    let text = text.trim();
    if text.is_empty() {
        return Err(BadValue::new(format!("a GPU is missing; {accepted}")));
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return match text.parse::<u32>() {
            Ok(index) if index < 4096 => Ok(GpuRef::Index(index)),
            _ => Err(BadValue::new(format!(
                "GPU {text:?} is too large a number; {accepted}"
            ))),
        };
    }
    let is_uuid = (text.starts_with("GPU-") || text.starts_with("MIG-"))
        && text.len() > 4
        && text.len() < 96
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'/');
    if is_uuid {
        return Ok(GpuRef::Uuid(text.to_owned()));
    }
    Err(BadValue::new(format!(
        "GPU {text:?} is not known; {accepted}"
    )))
}

fn limit(text: &str) -> Result<u64, BadValue> {
    let bytes = size::parse(text)?;
    if bytes == 0 {
        return Err(BadValue::new(format!(
            "a limit of {text:?} leaves no memory at all; to exclude the GPU, use --gpu"
        )));
    }
    Ok(bytes)
}

/// The accepted forms of a flag's values, for errors.
const SIZES: &str = "one SIZE for every GPU (4Gi), or a list of GPU=SIZE (0=4Gi,1=8Gi)";
const PERCENTS: &str = "one PERCENT for every GPU (30), or a list of GPU=PERCENT (0=30,1=50)";

fn by_gpu(
    text: &str,
    value: fn(&str) -> Result<u64, BadValue>,
    accepted: &str,
) -> Result<Vec<(GpuRef, u64)>, BadValue> {
    let mut list: Vec<(GpuRef, u64)> = Vec::new();
    for part in text.split(',') {
        let Some((gpu, amount)) = part.split_once('=') else {
            return Err(BadValue::new(format!(
                "{part:?} names no GPU; accepted: {accepted}"
            )));
        };
        let gpu = gpu_ref(gpu)?;
        if list.iter().any(|(known, _)| *known == gpu) {
            return Err(BadValue::new(format!(
                "GPU {gpu} is named twice in {text:?}; name it once"
            )));
        }
        list.push((gpu, value(amount)?));
    }
    Ok(list)
}

fn per_gpu(
    text: &str,
    value: fn(&str) -> Result<u64, BadValue>,
    accepted: &str,
) -> Result<PerGpu, BadValue> {
    if text.contains('=') || text.contains(',') {
        return by_gpu(text, value, accepted).map(PerGpu::By);
    }
    value(text).map(PerGpu::Each)
}

pub(crate) fn gpu_mem(text: &str) -> Result<PerGpu, BadValue> {
    per_gpu(text, limit, SIZES)
}

/// Slurm's shards of each GPU.
pub(crate) fn shards(text: &str) -> Result<PerGpu, BadValue> {
    const ACCEPTED: &str = "one NUMBER for every GPU (16), or a list of GPU=NUMBER (0=16,1=32)";
    fn number(text: &str) -> Result<u64, BadValue> {
        match text.trim().parse::<u32>() {
            Ok(number) if number > 0 => Ok(u64::from(number)),
            _ => Err(BadValue::new(format!(
                "{text:?} is no number of shards; accepted: the Count of gres.conf's line for the GPU's shards, {ACCEPTED}"
            ))),
        }
    }
    per_gpu(text, number, ACCEPTED)
}

/// Managed memory beyond the limit; `none` removes it.
pub(crate) fn oversubscribe(text: &str) -> Result<PerGpu, BadValue> {
    fn more(text: &str) -> Result<u64, BadValue> {
        if text.trim() == "none" {
            return Ok(0);
        }
        let bytes = size::parse(text)?;
        if bytes == 0 {
            return Err(BadValue::new(format!(
                "{text:?} adds nothing; give the size beyond --gpumem, leave --oversubscribe out, or \
                 remove it with: vgpu set NAME --oversubscribe none"
            )));
        }
        Ok(bytes)
    }
    per_gpu(text, more, SIZES)
}

/// A whole percentage of a GPU's time. `instead` is the hint for a user who types 0.
fn percent(text: &str, instead: &str) -> Result<u64, BadValue> {
    let accepted = "accepted: a whole number of percent, 1 to 100, such as 30";
    let number = text.trim();
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if number.is_empty() {
        return Err(BadValue::new(format!(
            "a percentage is missing; {accepted}"
        )));
    }
    if let Some(bare) = number.strip_suffix('%').filter(|bare| is_digits(bare)) {
        return Err(BadValue::new(format!(
            "{text:?} has a percent sign; leave it out: {bare} ({accepted})"
        )));
    }
    if !is_digits(number) {
        return Err(BadValue::new(format!(
            "{text:?} is not a percentage; {accepted}"
        )));
    }
    match number.parse::<u64>() {
        Ok(percent @ 1..=100) => Ok(percent),
        Ok(0) => Err(BadValue::new(format!(
            "{text:?} is not a share; {accepted}. {instead}"
        ))),
        _ => Err(BadValue::new(format!(
            "{text:?} is more than the whole GPU; {accepted}"
        ))),
    }
}

pub(crate) fn gpu_cores(text: &str) -> Result<PerGpu, BadValue> {
    let cap = |text: &str| percent(text, "To keep a program off a GPU use --gpu; 100 is no cap");
    per_gpu(text, cap, PERCENTS)
}

pub(crate) fn floor(text: &str) -> Result<PerGpu, BadValue> {
    let floor = |text: &str| percent(text, "For no guarantee leave --floor out");
    per_gpu(text, floor, PERCENTS)
}

pub(crate) fn priority(text: &str) -> Result<u32, BadValue> {
    let number = text.trim();
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let known = if is_number { number.parse().ok() } else { None };
    match known {
        Some(priority @ 0..=PRIORITY_MOST) => Ok(priority),
        _ => Err(BadValue::new(format!(
            "{text:?} is no priority; accepted: a whole number from 0 (the highest) to \
             {PRIORITY_MOST}"
        ))),
    }
}

pub(crate) fn container_name(text: &str) -> Result<ContainerName, BadValue> {
    let fits = !text.is_empty()
        && text.len() <= NAME_MOST
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        && text
            .as_bytes()
            .first()
            .is_some_and(u8::is_ascii_alphanumeric);
    if fits {
        return Ok(ContainerName(text.to_owned()));
    }
    Err(BadValue::new(format!(
        "{text:?} is not a name; accepted: 1 to {NAME_MOST} of a-z A-Z 0-9 . _ -, the first a \
         letter or a digit"
    )))
}

/// A container name made from a command's name.
pub(crate) fn name_of_command(command: &str) -> String {
    let base = command.rsplit('/').next().unwrap_or_default();
    let name: String = base
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || "._-".contains(c) {
                c
            } else {
                '-'
            }
        })
        .collect();
    let name = name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    // Room for a dash and a number.
    let name: String = name.chars().take(NAME_MOST - 8).collect();
    if name.is_empty() {
        String::from("program")
    } else {
        name
    }
}

pub(crate) fn path(text: &str) -> Result<PathBuf, BadValue> {
    if text.is_empty() {
        return Err(BadValue::new(
            "the path is empty; give one, or leave the setting out",
        ));
    }
    Ok(PathBuf::from(text))
}

pub(crate) fn interval(text: &str) -> Result<Duration, BadValue> {
    let accepted = "accepted: 100ms to 3600s, as 500ms, 2s or 1.5 (seconds)";
    let text = text.trim();
    let (number, unit_ms) = if let Some(number) = text.strip_suffix("ms") {
        (number, 1.0)
    } else {
        (text.strip_suffix('s').unwrap_or(text), 1000.0)
    };
    let is_decimal = !number.is_empty()
        && number.len() < 16
        && number
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'.')
        && number.as_bytes().first().is_some_and(u8::is_ascii_digit);
    let ms = if is_decimal {
        number.parse::<f64>().ok()
    } else {
        None
    }
    .map(|n| n * unit_ms);
    match ms {
        Some(ms) if (100.0..=3_600_000.0).contains(&ms) => Ok(Duration::from_secs_f64(ms / 1000.0)),
        Some(_) => Err(BadValue::new(format!(
            "interval {text:?} is out of range; {accepted}"
        ))),
        None => Err(BadValue::new(format!(
            "interval {text:?} is not a time; {accepted}"
        ))),
    }
}

pub(crate) fn sim_gpus(text: &str) -> Result<u32, BadValue> {
    match text.trim().parse::<u32>() {
        Ok(count @ 1..=16) if !text.starts_with('+') => Ok(count),
        _ => Err(BadValue::new(format!(
            "{text:?} is not a number of GPUs; accepted: 1 to 16"
        ))),
    }
}

pub(crate) fn sim_memory(text: &str) -> Result<SimMemory, BadValue> {
    fn bytes_of(text: &str) -> Result<u64, BadValue> {
        let bytes = size::parse(text)?;
        let (least, most) = (64 << 20, 4 << 40);
        if !(least..=most).contains(&bytes) {
            return Err(BadValue::new(format!(
                "{text:?} is no size for a GPU; accepted: {} to {}",
                Size(least),
                Size(most)
            )));
        }
        Ok(bytes)
    }
    // The simulated board accepts whole mebibytes only; the flag also accepts 1.5Gi or 16G.
    let mib = |bytes: u64| format!("{}Mi", bytes >> 20);
    if !text.contains('=') && !text.contains(',') {
        return bytes_of(text).map(|bytes| SimMemory(mib(bytes)));
    }
    let mut parts = Vec::new();
    for (gpu, bytes) in by_gpu(text, bytes_of, SIZES)? {
        match gpu {
            GpuRef::Index(index) if index < 16 => parts.push(format!("{index}={}", mib(bytes))),
            gpu => {
                return Err(BadValue::new(format!(
                    "{gpu:?} is no number of a simulated GPU; accepted: 0 to 15",
                    gpu = gpu.to_string()
                )));
            }
        }
    }
    Ok(SimMemory(parts.join(",")))
}

pub(crate) fn driver_version(text: &str) -> Result<DriverVersion, BadValue> {
    let parsed = text.split_once('.').and_then(|(major, minor)| {
        let digits =
            |t: &str| !t.is_empty() && t.len() < 3 && t.bytes().all(|b| b.is_ascii_digit());
        if !digits(major) || !digits(minor) {
            return None;
        }
        Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
    });
    match parsed {
        Some((major @ 11..=13, minor @ 0..=9)) => Ok(DriverVersion(major * 1000 + minor * 10)),
        _ => Err(BadValue::new(format!(
            "{text:?} is no CUDA version; accepted: 11.0 to 13.9, such as 12.4"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn check<T: fmt::Debug>(
        read: fn(&str) -> Result<T, BadValue>,
        texts: &[&str],
        expected: Expect,
    ) {
        let mut found = String::new();
        for text in texts {
            match read(text) {
                Ok(value) => found.push_str(&format!("{text:?} => {value:?}\n")),
                Err(error) => found.push_str(&format!("{text:?} => {error}\n")),
            }
        }
        expected.assert_eq(&found);
    }

    #[test]
    fn a_memory_limit_is_one_size_or_a_list_by_gpu() {
        check(
            gpu_mem,
            &["4Gi", "1.5G", "0=4Gi,1=8Gi", "GPU-ab12=512Mi", " 4 Gi "],
            expect![[r#"
                "4Gi" => Each(4294967296)
                "1.5G" => Each(1500000000)
                "0=4Gi,1=8Gi" => By([(Index(0), 4294967296), (Index(1), 8589934592)])
                "GPU-ab12=512Mi" => By([(Uuid("GPU-ab12"), 536870912)])
                " 4 Gi " => Each(4294967296)
            "#]],
        );
    }

    #[test]
    fn a_memory_limit_that_is_not_understood_says_what_is() {
        check(
            gpu_mem,
            &[
                "4096",
                "4GB",
                "0",
                "0Gi",
                "-1Gi",
                "",
                "4Gi,8Gi",
                "0=4Gi,0=8Gi",
                "x=4Gi",
                "0=",
                "=4Gi",
            ],
            expect![[r#"
                "4096" => size "4096" has no unit; accepted: a number and one of Ki Mi Gi Ti (1024-based) or K M G T (1000-based), such as 4Gi, 1.5Gi or 500M
                "4GB" => size "4GB" has a unit that is not known; accepted: a number and one of Ki Mi Gi Ti (1024-based) or K M G T (1000-based), such as 4Gi, 1.5Gi or 500M
                "0" => size "0" has no unit; accepted: a number and one of Ki Mi Gi Ti (1024-based) or K M G T (1000-based), such as 4Gi, 1.5Gi or 500M
                "0Gi" => a limit of "0Gi" leaves no memory at all; to exclude the GPU, use --gpu
                "-1Gi" => size "-1Gi" is negative; accepted: a number and one of Ki Mi Gi Ti (1024-based) or K M G T (1000-based), such as 4Gi, 1.5Gi or 500M
                "" => size "" is empty; accepted: a number and one of Ki Mi Gi Ti (1024-based) or K M G T (1000-based), such as 4Gi, 1.5Gi or 500M
                "4Gi,8Gi" => "4Gi" names no GPU; accepted: one SIZE for every GPU (4Gi), or a list of GPU=SIZE (0=4Gi,1=8Gi)
                "0=4Gi,0=8Gi" => GPU 0 is named twice in "0=4Gi,0=8Gi"; name it once
                "x=4Gi" => GPU "x" is not known; accepted: a number as nvidia-smi shows it (0), or a UUID (GPU-…, MIG-…)
                "0=" => size "" is empty; accepted: a number and one of Ki Mi Gi Ti (1024-based) or K M G T (1000-based), such as 4Gi, 1.5Gi or 500M
                "=4Gi" => a GPU is missing; accepted: a number as nvidia-smi shows it (0), or a UUID (GPU-…, MIG-…)
            "#]],
        );
    }

    #[test]
    fn a_share_of_compute_time_is_a_whole_number_of_percent() {
        check(
            gpu_cores,
            &["30", " 30 ", "1", "100", "0=30,1=50", "GPU-ab12=5"],
            expect![[r#"
                "30" => Each(30)
                " 30 " => Each(30)
                "1" => Each(1)
                "100" => Each(100)
                "0=30,1=50" => By([(Index(0), 30), (Index(1), 50)])
                "GPU-ab12=5" => By([(Uuid("GPU-ab12"), 5)])
            "#]],
        );
        check(
            gpu_cores,
            &[
                "0",
                "101",
                "30%",
                "%",
                "1 0%",
                "0.5",
                "-1",
                "",
                "30,50",
                "0=0",
                "0=30,0=40",
                "all",
            ],
            expect![[r#"
                "0" => "0" is not a share; accepted: a whole number of percent, 1 to 100, such as 30. To keep a program off a GPU use --gpu; 100 is no cap
                "101" => "101" is more than the whole GPU; accepted: a whole number of percent, 1 to 100, such as 30
                "30%" => "30%" has a percent sign; leave it out: 30 (accepted: a whole number of percent, 1 to 100, such as 30)
                "%" => "%" is not a percentage; accepted: a whole number of percent, 1 to 100, such as 30
                "1 0%" => "1 0%" is not a percentage; accepted: a whole number of percent, 1 to 100, such as 30
                "0.5" => "0.5" is not a percentage; accepted: a whole number of percent, 1 to 100, such as 30
                "-1" => "-1" is not a percentage; accepted: a whole number of percent, 1 to 100, such as 30
                "" => a percentage is missing; accepted: a whole number of percent, 1 to 100, such as 30
                "30,50" => "30" names no GPU; accepted: one PERCENT for every GPU (30), or a list of GPU=PERCENT (0=30,1=50)
                "0=0" => "0" is not a share; accepted: a whole number of percent, 1 to 100, such as 30. To keep a program off a GPU use --gpu; 100 is no cap
                "0=30,0=40" => GPU 0 is named twice in "0=30,0=40"; name it once
                "all" => "all" is not a percentage; accepted: a whole number of percent, 1 to 100, such as 30
            "#]],
        );
        check(
            floor,
            &["20", "0", "1=0"],
            expect![[r#"
            "20" => Each(20)
            "0" => "0" is not a share; accepted: a whole number of percent, 1 to 100, such as 30. For no guarantee leave --floor out
            "1=0" => "0" is not a share; accepted: a whole number of percent, 1 to 100, such as 30. For no guarantee leave --floor out
        "#]],
        );
        check(
            priority,
            &["0", "1000", "1001", "-1", "high", "", "1.0"],
            expect![[r#"
            "0" => 0
            "1000" => 1000
            "1001" => "1001" is no priority; accepted: a whole number from 0 (the highest) to 1000
            "-1" => "-1" is no priority; accepted: a whole number from 0 (the highest) to 1000
            "high" => "high" is no priority; accepted: a whole number from 0 (the highest) to 1000
            "" => "" is no priority; accepted: a whole number from 0 (the highest) to 1000
            "1.0" => "1.0" is no priority; accepted: a whole number from 0 (the highest) to 1000
        "#]],
        );
        check(
            oversubscribe,
            &["4Gi", "0=4Gi", "none", "0Gi", "4", ""],
            expect![[r#"
            "4Gi" => Each(4294967296)
            "0=4Gi" => By([(Index(0), 4294967296)])
            "none" => Each(0)
            "0Gi" => "0Gi" adds nothing; give the size beyond --gpumem, leave --oversubscribe out, or remove it with: vgpu set NAME --oversubscribe none
            "4" => size "4" has no unit; accepted: a number and one of Ki Mi Gi Ti (1024-based) or K M G T (1000-based), such as 4Gi, 1.5Gi or 500M
            "" => size "" is empty; accepted: a number and one of Ki Mi Gi Ti (1024-based) or K M G T (1000-based), such as 4Gi, 1.5Gi or 500M
        "#]],
        );
    }

    #[test]
    fn a_gpu_is_a_number_or_a_uuid() {
        check(
            gpu_ref,
            &[
                "0",
                "15",
                "GPU-1f",
                "MIG-GPU-1/2/3",
                "-1",
                "gpu0",
                "GPU-",
                "99999999999",
                "0x1",
                "",
            ],
            expect![[r#"
                "0" => Index(0)
                "15" => Index(15)
                "GPU-1f" => Uuid("GPU-1f")
                "MIG-GPU-1/2/3" => Uuid("MIG-GPU-1/2/3")
                "-1" => GPU "-1" is not known; accepted: a number as nvidia-smi shows it (0), or a UUID (GPU-…, MIG-…)
                "gpu0" => GPU "gpu0" is not known; accepted: a number as nvidia-smi shows it (0), or a UUID (GPU-…, MIG-…)
                "GPU-" => GPU "GPU-" is not known; accepted: a number as nvidia-smi shows it (0), or a UUID (GPU-…, MIG-…)
                "99999999999" => GPU "99999999999" is too large a number; accepted: a number as nvidia-smi shows it (0), or a UUID (GPU-…, MIG-…)
                "0x1" => GPU "0x1" is not known; accepted: a number as nvidia-smi shows it (0), or a UUID (GPU-…, MIG-…)
                "" => a GPU is missing; accepted: a number as nvidia-smi shows it (0), or a UUID (GPU-…, MIG-…)
            "#]],
        );
    }

    #[test]
    fn a_name_is_safe_as_a_file_and_as_an_argument() {
        let long = "x".repeat(64);
        check(
            container_name,
            &[
                "train", "a.b_c-1", "", ".", "..", ".x", "-x", "a/b", "a b", "ä", &long,
            ],
            expect![[r#"
                "train" => ContainerName("train")
                "a.b_c-1" => ContainerName("a.b_c-1")
                "" => "" is not a name; accepted: 1 to 63 of a-z A-Z 0-9 . _ -, the first a letter or a digit
                "." => "." is not a name; accepted: 1 to 63 of a-z A-Z 0-9 . _ -, the first a letter or a digit
                ".." => ".." is not a name; accepted: 1 to 63 of a-z A-Z 0-9 . _ -, the first a letter or a digit
                ".x" => ".x" is not a name; accepted: 1 to 63 of a-z A-Z 0-9 . _ -, the first a letter or a digit
                "-x" => "-x" is not a name; accepted: 1 to 63 of a-z A-Z 0-9 . _ -, the first a letter or a digit
                "a/b" => "a/b" is not a name; accepted: 1 to 63 of a-z A-Z 0-9 . _ -, the first a letter or a digit
                "a b" => "a b" is not a name; accepted: 1 to 63 of a-z A-Z 0-9 . _ -, the first a letter or a digit
                "ä" => "ä" is not a name; accepted: 1 to 63 of a-z A-Z 0-9 . _ -, the first a letter or a digit
                "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx" => "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx" is not a name; accepted: 1 to 63 of a-z A-Z 0-9 . _ -, the first a letter or a digit
            "#]],
        );
    }

    #[test]
    fn a_command_gives_a_name_that_is_one() {
        for command in [
            "python3",
            "/usr/bin/env",
            "./a b",
            "..",
            "",
            "-x",
            "ünix",
            &"y".repeat(300),
        ] {
            let name = format!("{}-{}", name_of_command(command), 9_999);
            assert!(container_name(&name).is_ok(), "{command:?} gives {name:?}");
        }
    }

    #[test]
    fn an_interval_has_a_smallest_and_a_largest() {
        check(
            interval,
            &[
                "1s", "500ms", "2", "1.5", "99ms", "1h", "0", "-1", "1e3", "3601", "nan", "inf",
                "", "ms",
            ],
            expect![[r#"
                "1s" => 1s
                "500ms" => 500ms
                "2" => 2s
                "1.5" => 1.5s
                "99ms" => interval "99ms" is out of range; accepted: 100ms to 3600s, as 500ms, 2s or 1.5 (seconds)
                "1h" => interval "1h" is not a time; accepted: 100ms to 3600s, as 500ms, 2s or 1.5 (seconds)
                "0" => interval "0" is out of range; accepted: 100ms to 3600s, as 500ms, 2s or 1.5 (seconds)
                "-1" => interval "-1" is not a time; accepted: 100ms to 3600s, as 500ms, 2s or 1.5 (seconds)
                "1e3" => interval "1e3" is not a time; accepted: 100ms to 3600s, as 500ms, 2s or 1.5 (seconds)
                "3601" => interval "3601" is out of range; accepted: 100ms to 3600s, as 500ms, 2s or 1.5 (seconds)
                "nan" => interval "nan" is not a time; accepted: 100ms to 3600s, as 500ms, 2s or 1.5 (seconds)
                "inf" => interval "inf" is not a time; accepted: 100ms to 3600s, as 500ms, 2s or 1.5 (seconds)
                "" => interval "" is not a time; accepted: 100ms to 3600s, as 500ms, 2s or 1.5 (seconds)
                "ms" => interval "ms" is not a time; accepted: 100ms to 3600s, as 500ms, 2s or 1.5 (seconds)
            "#]],
        );
    }

    #[test]
    fn simulated_gpus_are_described_in_words_that_the_board_reads() {
        check(
            sim_memory,
            &[
                "16Gi",
                "1.5Gi",
                "16G",
                "0=16Gi,1=40Gi",
                "16",
                "1Mi",
                "5Ti",
                "16=1Gi",
                "GPU-a=1Gi",
            ],
            expect![[r#"
                "16Gi" => SimMemory("16384Mi")
                "1.5Gi" => SimMemory("1536Mi")
                "16G" => SimMemory("15258Mi")
                "0=16Gi,1=40Gi" => SimMemory("0=16384Mi,1=40960Mi")
                "16" => size "16" has no unit; accepted: a number and one of Ki Mi Gi Ti (1024-based) or K M G T (1000-based), such as 4Gi, 1.5Gi or 500M
                "1Mi" => "1Mi" is no size for a GPU; accepted: 64Mi to 4Ti
                "5Ti" => "5Ti" is no size for a GPU; accepted: 64Mi to 4Ti
                "16=1Gi" => "16" is no number of a simulated GPU; accepted: 0 to 15
                "GPU-a=1Gi" => "GPU-a" is no number of a simulated GPU; accepted: 0 to 15
            "#]],
        );
        check(
            driver_version,
            &[
                "12.4", "13.0", "11.8", "12", "12.10", "10.2", "14.0", "12.4.1", "a.b", "+12.4", "",
            ],
            expect![[r#"
                "12.4" => DriverVersion(12040)
                "13.0" => DriverVersion(13000)
                "11.8" => DriverVersion(11080)
                "12" => "12" is no CUDA version; accepted: 11.0 to 13.9, such as 12.4
                "12.10" => "12.10" is no CUDA version; accepted: 11.0 to 13.9, such as 12.4
                "10.2" => "10.2" is no CUDA version; accepted: 11.0 to 13.9, such as 12.4
                "14.0" => "14.0" is no CUDA version; accepted: 11.0 to 13.9, such as 12.4
                "12.4.1" => "12.4.1" is no CUDA version; accepted: 11.0 to 13.9, such as 12.4
                "a.b" => "a.b" is no CUDA version; accepted: 11.0 to 13.9, such as 12.4
                "+12.4" => "+12.4" is no CUDA version; accepted: 11.0 to 13.9, such as 12.4
                "" => "" is no CUDA version; accepted: 11.0 to 13.9, such as 12.4
            "#]],
        );
    }
}
