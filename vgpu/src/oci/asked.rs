//! The share that a container's environment asks for. Values in, values out.

use clap::ValueEnum;

use super::GIVEN;
use crate::args::ComputeArgs;
use crate::args::containers::DefaultShare;
use crate::failure::Misuse;
use crate::limits::Wish;
use crate::values::{self, BadValue, ContainerName, EngineGpu, GpuRef, PerGpu, PolicyName};

/// The variables of a container that set its share, with the flag of `vgpu run` of the same meaning.
const VARIABLES: [(&str, &str); 8] = [
    ("VGPU_MEMORY", "--gpumem"),
    ("VGPU_CORES", "--gpucores"),
    ("VGPU_POLICY", "--policy"),
    ("VGPU_FLOOR", "--floor"),
    ("VGPU_PRIORITY", "--priority"),
    ("VGPU_OVERSUBSCRIBE", "--oversubscribe"),
    ("VGPU_NAME", "--name"),
    ("VGPU_GPU", "--gpu"),
];

/// Variables that the library, the command or the simulated driver reads inside the container.
const OF_PROGRAMS: [&str; 5] = [
    "VGPU_BOARD",
    "VGPU_DEEPBIND_KEEP",
    "VGPU_LIBRARY",
    "VGPU_LOG",
    "VGPU_LOG_LEVEL",
];
/// The simulated driver's variables begin with this.
const OF_SIMULATOR: &str = "VGPU_SIM_";

/// A container's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ContainerRequest {
    /// The GPUs that the engine gave it, in order of their numbers.
    pub(super) gpus: Vec<EngineGpu>,
    pub(super) wish: Wish,
    /// The name that it is to have.
    pub(super) name: Option<ContainerName>,
}

/// Reads a container's request from its environment (`NAME=VALUE`). Of two values of one name the last counts, as for
/// the container's first process.
pub(super) fn asked(
    env: &[String],
    machine: &[EngineGpu],
    default: &DefaultShare,
) -> Result<ContainerRequest, Misuse> {
    let mut variables: Vec<(&str, &str)> = Vec::new();
    for (name, value) in env.iter().filter_map(|entry| entry.split_once('=')) {
        if name.starts_with("VGPU_") {
            variables.retain(|(known, _)| *known != name);
            variables.push((name, value));
        }
    }
    let mut gpus = Vec::new();
    for (name, value) in &variables {
        if let Some(number) = name.strip_prefix(GIVEN) {
            gpus.push(given(name, number, value, machine)?);
        } else if !is_known(name) {
            return Err(Misuse::new(format!(
                "the container's environment has {name}, which vgpu does not know; accepted: {}. Correct it or \
                 remove it",
                names().join(", ")
            )));
        }
    }
    if gpus.is_empty() {
        return Err(Misuse::new(
            "the container has no GPU of vgpu; give one, such as --device vgpu.io/gpu=0 or --device \
             vgpu.io/gpu=all",
        ));
    }
    gpus.sort_by_key(|gpu: &EngineGpu| gpu.index);
    let value = |wanted: &str| {
        let found = variables.iter().find(|(name, _)| *name == wanted);
        // An empty value is what a Compose file passes for a variable that is not set.
        found
            .map(|(_, value)| *value)
            .filter(|value| !value.trim().is_empty())
    };
    if let Some(chosen) = value("VGPU_GPU") {
        check_choice(chosen, &gpus)?;
    }
    let default_memory = default.gpumem.as_ref().map(|shown| shown.value.clone());
    let default_cores = default.gpucores.as_ref().map(|shown| shown.value.clone());
    let per_gpu = |name: &str, parse: fn(&str) -> Result<PerGpu, BadValue>| {
        value(name).map(|text| read(name, text, parse)).transpose()
    };
    let memory = per_gpu("VGPU_MEMORY", values::gpu_mem)?.or(default_memory);
    let compute = ComputeArgs {
        gpucores: per_gpu("VGPU_CORES", values::gpu_cores)?
            .or(default_cores)
            .into_iter()
            .collect(),
        policy: value("VGPU_POLICY")
            .map(|text| read("VGPU_POLICY", text, policy))
            .transpose()?,
        floor: per_gpu("VGPU_FLOOR", values::floor)?.into_iter().collect(),
        priority: value("VGPU_PRIORITY")
            .map(|text| read("VGPU_PRIORITY", text, values::priority))
            .transpose()?,
        oversubscribe: per_gpu("VGPU_OVERSUBSCRIBE", values::oversubscribe)?
            .into_iter()
            .collect(),
    };
    let memory: Vec<PerGpu> = memory.into_iter().collect();
    let name = value("VGPU_NAME").map(|text| read("VGPU_NAME", text, values::container_name));
    let is_any = !memory.is_empty()
        || !compute.gpucores.is_empty()
        || !compute.floor.is_empty()
        || !compute.oversubscribe.is_empty()
        || compute.policy.is_some()
        || compute.priority.is_some();
    let wish = match is_any {
        true => Wish::of(&memory, &compute).map_err(in_variables)?,
        false => Wish::nothing(),
    };
    wish.check_new().map_err(in_variables)?;
    Ok(ContainerRequest {
        gpus,
        wish,
        name: name.transpose()?,
    })
}

fn is_known(name: &str) -> bool {
    VARIABLES.iter().any(|(known, _)| *known == name)
        || OF_PROGRAMS.contains(&name)
        || name.starts_with(OF_SIMULATOR)
}

fn names() -> Vec<&'static str> {
    VARIABLES.iter().map(|(name, _)| *name).collect()
}

fn read<T>(name: &str, text: &str, parse: fn(&str) -> Result<T, BadValue>) -> Result<T, Misuse> {
    parse(text).map_err(|error| in_variables(Misuse::new(format!("{name}: {error}"))))
}

fn policy(text: &str) -> Result<PolicyName, BadValue> {
    PolicyName::from_str(text.trim(), true).map_err(|_| {
        BadValue::new(format!(
            "{text:?} is not a policy; accepted: force, default, floor, disable"
        ))
    })
}

/// The GPU that one of `vgpu cdi`'s variables names.
fn given(name: &str, number: &str, uuid: &str, machine: &[EngineGpu]) -> Result<EngineGpu, Misuse> {
    let known = machine
        .iter()
        .find(|gpu| gpu.index.to_string() == number && gpu.uuid == uuid);
    known.cloned().ok_or_else(|| {
        let list: Vec<_> = machine
            .iter()
            .map(|gpu| format!("{GIVEN}{}={}", gpu.index, gpu.uuid))
            .collect();
        Misuse::new(format!(
            "the container's environment has {name}={uuid}, which is no GPU of this machine's CDI file; there are: {}. \
             Container engines set these variables by --device vgpu.io/gpu=…; run vgpu cdi again if the GPUs have \
             changed",
            list.join(", ")
        ))
    })
}

/// The GPUs that `VGPU_GPU` names, as the runtime wrapper reads it.
pub(super) fn choice(text: &str) -> Result<Option<Vec<GpuRef>>, Misuse> {
    if text.trim() == "all" {
        return Ok(None);
    }
    let list = text
        .split(',')
        .map(values::gpu_ref)
        .collect::<Result<_, _>>();
    list.map(Some).map_err(|error| {
        Misuse::new(format!(
            "VGPU_GPU: {error}, a list of these separated by commas, or all"
        ))
    })
}

/// Refuses a choice of GPUs that are not those that the engine gave the container.
fn check_choice(text: &str, gpus: &[EngineGpu]) -> Result<(), Misuse> {
    let Some(list) = choice(text)? else {
        return Ok(());
    };
    let is = |gpu: &EngineGpu, wanted: &GpuRef| match wanted {
        GpuRef::Index(index) => gpu.index == *index,
        GpuRef::Uuid(uuid) => gpu.uuid.starts_with(uuid),
    };
    let is_same = gpus.len() == list.len()
        && gpus
            .iter()
            .all(|gpu| list.iter().any(|wanted| is(gpu, wanted)));
    if is_same {
        return Ok(());
    }
    let has: Vec<_> = gpus.iter().map(|gpu| gpu.index.to_string()).collect();
    Err(Misuse::new(format!(
        "VGPU_GPU is {text}, and --device gave the container GPU {}; remove one of both",
        has.join(", ")
    )))
}

/// An error in the words of the command line, in those of a container's environment.
pub(super) fn in_variables(misuse: Misuse) -> Misuse {
    let text = misuse.to_string();
    // A command that the reader is to type stays as it is.
    let (text, command) = match text.find("vgpu set ") {
        Some(at) => text.split_at(at),
        None => (text.as_str(), ""),
    };
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("--") {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let end = from
            .bytes()
            .skip(2)
            .position(|byte| !byte.is_ascii_lowercase())
            .map_or(from.len(), |length| length + 2);
        let (flag, after) = from.split_at(end);
        let variable = VARIABLES.iter().find(|(_, known)| *known == flag);
        match variable {
            Some(("VGPU_GPU", _)) => out.push_str("--device vgpu.io/gpu"),
            Some((variable, _)) => out.push_str(variable),
            None => out.push_str(flag),
        }
        rest = after;
        // The value of an example: --gpumem 4Gi is VGPU_MEMORY=4Gi.
        let is_value = |word: &str| {
            word.starts_with(|c: char| c.is_ascii_digit())
                || ["force", "default", "floor", "disable", "none"]
                    .contains(&word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric()))
        };
        if variable.is_some()
            && let Some(value) = after.strip_prefix(' ')
            && value.split_whitespace().next().is_some_and(is_value)
        {
            out.push('=');
            rest = value;
        }
    }
    out.push_str(rest);
    out.push_str(command);
    Misuse::new(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Shown;
    use expect_test::{Expect, expect};

    fn machine() -> Vec<EngineGpu> {
        [(0, "GPU-aa"), (1, "GPU-bb")]
            .map(|(index, uuid)| EngineGpu {
                index,
                uuid: uuid.to_owned(),
                memory_bytes: 16 << 30,
            })
            .to_vec()
    }

    fn of(env: &[&str]) -> Result<ContainerRequest, Misuse> {
        let env: Vec<_> = env.iter().map(|entry| (*entry).to_owned()).collect();
        asked(&env, &machine(), &DefaultShare::default())
    }

    fn one(env: &[&str]) -> Result<ContainerRequest, Misuse> {
        of(&[&["VGPU_GPU_0=GPU-aa"], env].concat())
    }

    #[test]
    fn variables_mean_what_the_flags_mean() {
        let asked = of(&[
            "PATH=/bin",
            "VGPU_GPU_1=GPU-bb",
            "VGPU_GPU_0=GPU-aa",
            "VGPU_MEMORY=1Gi",
            "VGPU_MEMORY=4Gi",
            "VGPU_CORES=0=30,1=50",
            "VGPU_POLICY=Default",
            "VGPU_PRIORITY=0",
            "VGPU_NAME=train",
            "VGPU_SIM_BOARD=/b",
            "VGPU_LOG_LEVEL=debug",
        ])
        .unwrap();

        let numbers: Vec<_> = asked.gpus.iter().map(|gpu| gpu.index).collect();
        assert_eq!(numbers, [0, 1]);
        assert_eq!(asked.wish.memory.each, Some(4 << 30));
        assert_eq!(asked.wish.cores.by_gpu.len(), 2);
        assert_eq!(asked.wish.priority, Some(0));
        assert_eq!(asked.name.unwrap().as_str(), "train");
    }

    #[test]
    fn a_container_that_asks_for_nothing_gets_the_default_or_the_whole_gpu() {
        let env = [
            String::from("VGPU_GPU_0=GPU-aa"),
            String::from("VGPU_CORES= "),
        ];
        let bare = asked(&env, &machine(), &DefaultShare::default()).unwrap();
        assert_eq!(bare.wish, Wish::nothing());
        let default = DefaultShare {
            gpumem: Some(Shown {
                text: String::from("2Gi"),
                value: PerGpu::Each(2 << 30),
            }),
            gpucores: None,
        };

        let with_default = asked(&env, &machine(), &default).unwrap();
        let own = [&env[..], &[String::from("VGPU_MEMORY=3Gi")]].concat();
        let own = asked(&own, &machine(), &default).unwrap();

        assert_eq!(with_default.wish.memory.each, Some(2 << 30));
        assert_eq!(own.wish.memory.each, Some(3 << 30));
    }

    #[test]
    fn empty_values_leave_nothing_of_what_an_image_sets() {
        let cleared = one(&[
            "VGPU_CORES=30",
            "VGPU_POLICY=",
            "VGPU_FLOOR=",
            "VGPU_PRIORITY=",
            "VGPU_OVERSUBSCRIBE=",
            "VGPU_NAME=",
        ]);

        assert_eq!(cleared.unwrap(), one(&["VGPU_CORES=30"]).unwrap());
    }

    #[test]
    fn unknown_value_is_refused_with_the_accepted_ones() {
        let check = |env: &[&str], expected: Expect| {
            expected.assert_eq(&one(env).unwrap_err().to_string());
        };
        check(
            &["VGPU_MEMORY=4096"],
            expect![[
                r#"VGPU_MEMORY: size "4096" has no unit; accepted: a number and one of Ki Mi Gi Ti (1024-based) or K M G T (1000-based), such as 4Gi, 1.5Gi or 500M"#
            ]],
        );
        check(
            &["VGPU_MEMORY=0Gi"],
            expect![[
                r#"VGPU_MEMORY: a limit of "0Gi" leaves no memory at all; to exclude the GPU, use --device vgpu.io/gpu"#
            ]],
        );
        check(
            &["VGPU_CORES=130"],
            expect![[
                r#"VGPU_CORES: "130" is more than the whole GPU; accepted: a whole number of percent, 1 to 100, such as 30"#
            ]],
        );
        check(
            &["VGPU_POLICY=hard"],
            expect![[
                r#"VGPU_POLICY: "hard" is not a policy; accepted: force, default, floor, disable"#
            ]],
        );
        check(
            &["VGPU_POLICY=force"],
            expect![
                "VGPU_POLICY=force says when the cap of VGPU_CORES holds, and there is none; add VGPU_CORES, such as VGPU_CORES=30"
            ],
        );
        check(
            &["VGPU_OVERSUBSCRIBE=1Gi"],
            expect![
                "VGPU_OVERSUBSCRIBE says how much more than VGPU_MEMORY the program may have, and there is no VGPU_MEMORY; add it, such as VGPU_MEMORY=4Gi"
            ],
        );
        check(
            &["VGPU_FLOOR=20", "VGPU_POLICY=force"],
            expect![
                "VGPU_FLOOR has no meaning with VGPU_POLICY=force, which guarantees nothing; leave VGPU_FLOOR out, or give VGPU_POLICY=floor"
            ],
        );
        check(
            &["VGPU_MEM=4Gi"],
            expect![
                "the container's environment has VGPU_MEM, which vgpu does not know; accepted: VGPU_MEMORY, VGPU_CORES, VGPU_POLICY, VGPU_FLOOR, VGPU_PRIORITY, VGPU_OVERSUBSCRIBE, VGPU_NAME, VGPU_GPU. Correct it or remove it"
            ],
        );
        check(
            &["VGPU_LIMITS=/x"],
            expect![
                "the container's environment has VGPU_LIMITS, which vgpu does not know; accepted: VGPU_MEMORY, VGPU_CORES, VGPU_POLICY, VGPU_FLOOR, VGPU_PRIORITY, VGPU_OVERSUBSCRIBE, VGPU_NAME, VGPU_GPU. Correct it or remove it"
            ],
        );
        check(
            &["VGPU_NAME=../x"],
            expect![[
                r#"VGPU_NAME: "../x" is not a name; accepted: 1 to 63 of a-z A-Z 0-9 . _ -, the first a letter or a digit"#
            ]],
        );
        check(
            &["VGPU_GPU=1"],
            expect!["VGPU_GPU is 1, and --device gave the container GPU 0; remove one of both"],
        );
        check(
            &["VGPU_GPU_1=GPU-zz"],
            expect![
                "the container's environment has VGPU_GPU_1=GPU-zz, which is no GPU of this machine's CDI file; there are: VGPU_GPU_0=GPU-aa, VGPU_GPU_1=GPU-bb. Container engines set these variables by --device vgpu.io/gpu=…; run vgpu cdi again if the GPUs have changed"
            ],
        );
        let none = of(&["VGPU_MEMORY=4Gi"]).unwrap_err().to_string();
        assert!(
            none.starts_with("the container has no GPU of vgpu; give one"),
            "{none}"
        );
    }

    #[test]
    fn a_command_to_type_keeps_its_flags() {
        let said = "--floor 60 of GPU 0 cannot be kept; to release some: vgpu set a --floor N";
        expect!["VGPU_FLOOR=60 of GPU 0 cannot be kept; to release some: vgpu set a --floor N"]
            .assert_eq(&in_variables(Misuse::new(said)).to_string());
    }
}
