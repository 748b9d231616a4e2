//! When a job has ended: removes its record, and its directory.

use std::process::ExitCode;

use super::prolog::require_root;
use super::record::Records;
use super::{job, name_of};
use crate::args::slurm::EpilogArgs;
use crate::board::UserDir;
use crate::failure::Failure;

pub(super) fn run(args: &EpilogArgs) -> Result<ExitCode, Failure> {
    let variable = |name: &str| std::env::var_os(name).map(|it| it.to_string_lossy().into_owned());
    let id = job::id(&variable)?;
    require_root()?;
    let user = UserDir::open(args.board.board.as_deref())?;
    let only_one = user.lock()?;
    Records::of(user.path()).remove(id)?;
    // A directory that is still there then has a process that nothing could end.
    only_one.remove_ended_name(&name_of(id))?;
    Ok(ExitCode::SUCCESS)
}
