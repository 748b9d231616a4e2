//! When a job has ended: removes its record, and its directory.

use std::process::ExitCode;

use super::job;
use super::prolog::require_root;
use super::record::{JobVerdict, Records};
use crate::args::slurm::EpilogArgs;
use crate::board::UserDir;
use crate::failure::Failure;

pub(super) fn run(args: &EpilogArgs) -> Result<ExitCode, Failure> {
    let variable = |name: &str| std::env::var_os(name).map(|it| it.to_string_lossy().into_owned());
    let id = job::id(&variable)?;
    require_root()?;
    let user = UserDir::open(args.board.board.as_deref())?;
    let only_one = user.lock()?;
    let records = Records::of(user.path());
    // A record that cannot be read, or of another boot, names no directory. The sweep of the next command removes that.
    let record = records.read(id).ok().flatten();
    records.remove(id)?;
    match record.map(|record| record.verdict) {
        Some(JobVerdict::Share(name)) => {
            // A directory that is still there then has a process that nothing could end.
            only_one.remove_ended_name(&name)?;
        }
        Some(JobVerdict::Free | JobVerdict::Refused(_)) => {}
        // A prolog that was killed before it wrote the record may have left a directory.
        None => {
            records.clear_half();
            only_one.clear_ended()?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
