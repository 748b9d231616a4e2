//! In each task, before its program starts: puts the task under its job's limits, as the prolog recorded them.

use std::process::ExitCode;

use anyhow::anyhow;
use supervisor::instance::Instance;

use super::job::JobOptions;
use super::prolog::require_root;
use super::record::{JobRecord, JobVerdict, PRELOAD, Records};
use crate::args::slurm::TaskArgs;
use crate::board::UserDir;
use crate::failure::{Failure, Misuse};
use crate::mounts;

pub(super) fn run(args: &TaskArgs) -> Result<ExitCode, Failure> {
    require_root()?;
    let user = UserDir::open(args.board.board.as_deref())?;
    let records = Records::of(user.path());
    let asked = JobOptions {
        gpumem: args.gpumem.clone(),
        gpucores: args.gpucores.clone(),
        gpupriority: args.gpupriority.clone(),
    };
    let may_start = permit(args.job, records.read(args.job)?.as_ref(), &asked);
    let name = may_start.map_err(|reason| Failure::Failed(anyhow!("{reason}")))?;
    if let Some(name) = name {
        let instance = Instance::open(&user.path().join(name))?;
        mounts::mount_here(&instance, &records.path(PRELOAD))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether a task may start, and the directory with its limits; the error is what the job's owner reads.
fn permit(
    job: u32,
    record: Option<&JobRecord>,
    asked: &JobOptions,
) -> Result<Option<String>, Misuse> {
    let Some(record) = record else {
        return Err(Misuse::new(format!(
            "the prolog of job {job} has not run on this node, so its limits are not known; have Prolog= of slurm.conf \
             run vgpu slurm prolog on every node that loads vgpu_spank.so"
        )));
    };
    if let JobVerdict::Refused(reason) = &record.verdict {
        return Err(Misuse::new(reason.clone()));
    }
    for ((flag, wanted), (_, had)) in asked.each().into_iter().zip(record.asked.each()) {
        if wanted.is_some() && wanted != had {
            return Err(Misuse::new(format!(
                "{flag} is an option of the whole job, whose steps share its limits; give it to the sbatch, salloc or \
                 srun that starts the job"
            )));
        }
    }
    match &record.verdict {
        JobVerdict::Share(name) => Ok(Some(name.clone())),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(verdict: JobVerdict, gpumem: Option<&str>) -> JobRecord {
        JobRecord {
            verdict,
            asked: JobOptions {
                gpumem: gpumem.map(str::to_owned),
                ..JobOptions::default()
            },
            boot: String::new(),
        }
    }

    fn memory(text: &str) -> JobOptions {
        JobOptions {
            gpumem: Some(text.to_owned()),
            ..JobOptions::default()
        }
    }

    #[test]
    fn a_task_starts_as_its_prolog_decided() {
        let share = record(JobVerdict::Share(String::from("slurm-1")), Some("4Gi"));
        let none = JobOptions::default();
        assert_eq!(
            permit(1, Some(&share), &none),
            Ok(Some(String::from("slurm-1")))
        );
        assert_eq!(
            permit(1, Some(&share), &memory("4Gi")),
            Ok(Some(String::from("slurm-1")))
        );
        assert_eq!(
            permit(1, Some(&record(JobVerdict::Free, None)), &none),
            Ok(None)
        );
    }

    #[test]
    fn a_task_without_a_decision_does_not_start() {
        let error = permit(1, None, &JobOptions::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains("the prolog of job 1 has not run"), "{error}");
        let refused = record(JobVerdict::Refused(String::from("too much")), None);
        assert_eq!(
            permit(1, Some(&refused), &JobOptions::default()),
            Err(Misuse::new("too much"))
        );
    }

    #[test]
    fn a_step_cannot_change_the_jobs_options() {
        let share = record(JobVerdict::Share(String::from("slurm-1")), Some("4Gi"));
        for other in ["8Gi", "1Gi"] {
            let error = permit(1, Some(&share), &memory(other))
                .unwrap_err()
                .to_string();
            assert!(
                error.contains("--gpumem is an option of the whole job"),
                "{error}"
            );
        }
        let free = record(JobVerdict::Free, None);
        assert!(permit(1, Some(&free), &memory("1Gi")).is_err());
    }
}
