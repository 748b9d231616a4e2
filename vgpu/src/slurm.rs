//! Jobs of Slurm: each gets the part of a GPU that slurmctld has given it as shards. `prolog` runs before a job's first
//! task on the node, `task` in each task before its program starts, and `epilog` when the job has ended.
//!
//! Never takes a share from a variable or an option that a job's owner can set: those only lower it. Never fails a
//! prolog for a mistake of a job's owner, because slurmd would drain the node.

mod allocation;
mod epilog;
mod head;
mod job;
mod prolog;
mod record;
mod share;
mod task;

use std::process::ExitCode;

use crate::args::slurm::{SlurmArgs, SlurmMoment};
use crate::failure::Failure;

pub(crate) fn run(args: &SlurmArgs) -> Result<ExitCode, Failure> {
    match &args.moment {
        SlurmMoment::Prolog(args) => prolog::run(args),
        SlurmMoment::Task(args) => task::run(args),
        SlurmMoment::Epilog(args) => epilog::run(args),
    }
}

/// The name of a job's container, for `vgpu top`, `set` and `oom`. Slurm shows a task of an array as `18_3`.
fn name_of(job: u32, array_task: Option<&str>) -> String {
    match array_task {
        Some(task) => format!("slurm-{task}"),
        None => format!("slurm-{job}"),
    }
}
