//! What slurmd tells a prolog or an epilog about the job, by variables. Values in, values out.

use crate::failure::Misuse;

/// The number of the first job that is no job: Slurm's `NO_VAL`.
const NO_JOB: u32 = 0xffff_fffe;
/// Slurm passes the options of a plugin to a prolog under this prefix.
const OPTION: &str = "SPANK__SLURM_SPANK_OPTION_vgpu_";
/// A longer option is refused, bytes.
const OPTION_MOST: usize = 64;

/// A job on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) id: u32,
    /// The name by which Slurm knows this node.
    pub(super) node: String,
    /// The GPUs that the job has something of, by Slurm's numbers, in order.
    pub(super) gpus: Vec<u32>,
    pub(super) asked: JobOptions,
}

/// The options of a job, as its owner wrote them.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub(super) struct JobOptions {
    pub(super) gpumem: Option<String>,
    pub(super) gpucores: Option<String>,
    pub(super) gpupriority: Option<String>,
}

impl JobOptions {
    pub(super) fn each(&self) -> [(&'static str, Option<&String>); 3] {
        [
            ("--gpumem", self.gpumem.as_ref()),
            ("--gpucores", self.gpucores.as_ref()),
            ("--gpupriority", self.gpupriority.as_ref()),
        ]
    }
}

/// The job's number.
pub(super) fn id(variable: &dyn Fn(&str) -> Option<String>) -> Result<u32, Misuse> {
    let text = variable("SLURM_JOB_ID").unwrap_or_default();
    match text.parse() {
        Ok(id) if id > 0 && id < NO_JOB => Ok(id),
        _ => Err(Misuse::new(format!(
            "SLURM_JOB_ID is {text:?}; accepted: the number of a job. slurmd sets it for the programs of Prolog= and \
             Epilog= in slurm.conf"
        ))),
    }
}

/// Reads a prolog's variables.
pub(super) fn job(variable: &dyn Fn(&str) -> Option<String>) -> Result<Job, Misuse> {
    let id = id(variable)?;
    let node = variable("SLURMD_NODENAME").unwrap_or_default();
    if node.is_empty() {
        return Err(Misuse::new(
            "SLURMD_NODENAME is missing; slurmd sets it for the program of Prolog= in slurm.conf. Prolog= is for \
             vgpu slurm prolog, PrologSlurmctld= and TaskProlog= are not",
        ));
    }
    let mut gpus = Vec::new();
    let text = variable("SLURM_JOB_GPUS").unwrap_or_default();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let number = part.parse::<u32>().map_err(|_| {
            Misuse::new(format!(
                "SLURM_JOB_GPUS is {text:?}; accepted: numbers of GPUs, such as 0 or 0,1"
            ))
        })?;
        gpus.push(number);
    }
    gpus.sort_unstable();
    gpus.dedup();
    let option = |name: &str| {
        let value = variable(&format!("{OPTION}{name}"))?;
        // A value that is too long stays wrong when it is cut.
        Some(value.chars().take(OPTION_MOST).collect())
    };
    Ok(Job {
        id,
        node,
        gpus,
        asked: JobOptions {
            gpumem: option("gpumem"),
            gpucores: option("gpucores"),
            gpupriority: option("gpupriority"),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(list: &[(&str, &str)]) -> Result<Job, String> {
        let find = |name: &str| {
            let found = list.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        job(&find).map_err(|error| error.to_string())
    }

    #[test]
    fn a_prologs_variables_are_read() {
        let job = of(&[
            ("SLURM_JOB_ID", "12"),
            ("SLURMD_NODENAME", "n1"),
            ("SLURM_JOB_GPUS", "3,1"),
            ("SPANK__SLURM_SPANK_OPTION_vgpu_gpumem", "4Gi"),
            ("VGPU_MEMORY", "100Gi"),
        ])
        .unwrap();

        assert_eq!((job.id, job.node.as_str()), (12, "n1"));
        assert_eq!(job.gpus, [1, 3]);
        assert_eq!(job.asked.gpumem.as_deref(), Some("4Gi"));
        assert_eq!(job.asked.gpucores, None);
    }

    #[test]
    fn variables_that_slurmd_never_sets_are_refused() {
        let node = ("SLURMD_NODENAME", "n1");
        for id in ["", "0", "-1", "12_3", "4294967294", "99999999999"] {
            let error = of(&[("SLURM_JOB_ID", id), node]).unwrap_err();
            assert!(error.contains("SLURM_JOB_ID is"), "{error}");
        }
        let error = of(&[("SLURM_JOB_ID", "1")]).unwrap_err();
        assert!(error.contains("SLURMD_NODENAME is missing"), "{error}");
        let gpus = ("SLURM_JOB_GPUS", "0,x");
        let error = of(&[("SLURM_JOB_ID", "1"), node, gpus]).unwrap_err();
        assert!(error.contains("SLURM_JOB_GPUS is \"0,x\""), "{error}");
    }
}
