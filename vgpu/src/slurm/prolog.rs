//! Before a job's first task: decides its share, makes its directory and, last, its record.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow, bail};
use nix::errno::Errno;
use nix::unistd::Uid;
use supervisor::gpu::{Gpus, NvmlGpus};
use supervisor::instance::{
    self, INSIDE, INSIDE_REGION, Labels, SLURM_WORKLOAD, SlurmJob, Workload,
};

use super::allocation::{Allocation, Unclear, allocation};
use super::head::{self, JobHead};
use super::job::{Job, job};
use super::name_of;
use super::record::{JobRecord, JobVerdict, PRELOAD, Records};
use super::share::{NoShare, share};
use crate::args::slurm::PrologArgs;
use crate::board::{UserDir, UserLock};
use crate::failure::{Failure, Misuse};
use crate::limits::Shares;
use crate::{library, mounts, oci};

pub(super) fn run(args: &PrologArgs) -> Result<ExitCode, Failure> {
    let variable = |name: &str| std::env::var_os(name).map(|it| it.to_string_lossy().into_owned());
    let job = job(&variable)?;
    require_root()?;
    let library = library::find(args.library.as_deref())?;
    let (decided, about) = decide(args, &job)?;
    let user = UserDir::open(args.board.board.as_deref())?;
    let only_one = user.lock()?;
    only_one.clear_ended()?;
    let records = Records::of(user.path());
    records.make()?;
    records.clear_half();
    let verdict = match decided {
        Ok(None) => JobVerdict::Free,
        Err(reason) => JobVerdict::Refused(reason.to_string()),
        Ok(Some(shares)) => {
            make_places()?;
            records.remove(job.id)?;
            records.replace(PRELOAD, preload(&library).as_bytes(), 0o644)?;
            JobVerdict::Share(make(&only_one, &job, &about, &shares)?)
        }
    };
    let record = JobRecord {
        verdict,
        asked: job.asked,
        boot: instance::boot(),
    };
    // The last step: a directory without a record belongs to no job, and the next command removes it.
    records.write(job.id, &record)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn require_root() -> anyhow::Result<()> {
    if Uid::effective().is_root() {
        return Ok(());
    }
    bail!(
        "this is not root, and limits that hold against a job's owner have to be root's; run slurmd as root"
    )
}

/// What a job gets: its share, nothing, or the reason why its tasks do not start.
type Decided = Result<Option<Shares>, Misuse>;

/// Decides a job's share; with it, what slurmctld says first about the job.
fn decide(args: &PrologArgs, job: &Job) -> anyhow::Result<(Decided, JobHead)> {
    let (allocation, about) = if job.gpus.is_empty() {
        (Ok(Allocation::Nothing), JobHead::default())
    } else {
        let text = match about_job(&args.scontrol, job.id)? {
            Ok(text) => text,
            Err(unclear) => return Ok((Err(Misuse::new(unclear.to_string())), JobHead::default())),
        };
        let about = head::first(&text).unwrap_or_default();
        (allocation(&text, &job.node, &job.gpus), about)
    };
    let allocation = match allocation {
        Ok(allocation) => allocation,
        Err(unclear @ (Unclear::SeveralLines | Unclear::SeveralGpus(_))) => {
            return Ok((Err(Misuse::new(unclear.to_string())), about));
        }
        Err(unclear @ (Unclear::NoLine | Unclear::Form(_))) => {
            bail!("job {}: {unclear}", job.id)
        }
    };
    let gpus = match allocation {
        Allocation::Nothing => Vec::new(),
        _ => NvmlGpus::open()?.inventory()?.gpus,
    };
    match share(&allocation, &job.gpus, &args.shards, &job.asked, &gpus) {
        Ok(shares) => Ok((Ok(shares), about)),
        Err(NoShare::Refused(reason)) => Ok((Err(Misuse::new(reason)), about)),
        Err(NoShare::Fault(reason)) => bail!("job {}: {reason}", job.id),
    }
}

/// Asks slurmctld about this job alone: by the job's number, and where the answer is about several jobs, by the other
/// name that slurmctld gives the job.
fn about_job(scontrol: &Path, job: u32) -> anyhow::Result<Result<String, Unclear>> {
    let text = show_job(scontrol, &job.to_string())?;
    let name = match head::narrower(&text, job) {
        Ok(None) => return Ok(Ok(text)),
        Ok(Some(name)) => name,
        Err(unclear) => return Ok(Err(unclear)),
    };
    let text = show_job(scontrol, &name)?;
    if head::first(&text).is_none_or(|head| head.id != job) {
        bail!(
            "scontrol show job {name} does not begin with JobId={job}, although slurmctld gave job {job} the name {name}"
        );
    }
    Ok(Ok(text))
}

/// Asks slurmctld what it has allocated.
fn show_job(scontrol: &Path, job: &str) -> anyhow::Result<String> {
    let shown = scontrol.display();
    let answer = Command::new(scontrol)
        .args(["--details", "show", "job", job])
        .stdin(Stdio::null())
        .output()
        .with_context(|| {
            format!("cannot run {shown}; say where Slurm's scontrol is with --scontrol")
        })?;
    if !answer.status.success() {
        let error = String::from_utf8_lossy(&answer.stderr);
        bail!("{shown} --details show job {job} failed: {}", error.trim());
    }
    Ok(String::from_utf8_lossy(&answer.stdout).into_owned())
}

fn make(
    only_one: &UserLock<'_>,
    job: &Job,
    about: &JobHead,
    shares: &Shares,
) -> anyhow::Result<String> {
    let name = name_of(job.id, about.array_task.as_deref());
    let title = &about.title;
    let user = std::env::var_os("SLURM_JOB_USER").unwrap_or_default();
    let labels = Labels {
        name: name.clone(),
        container: name.clone(),
        command: vec![title.clone()],
        created_unix: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |time| time.as_secs()),
        slurm: Some(SlurmJob {
            id: job.id,
            boot: instance::boot(),
        }),
        workload: Workload {
            team: user.to_string_lossy().into_owned(),
            kind: String::from(SLURM_WORKLOAD),
            name: title.clone(),
        },
        ..Labels::default()
    };
    let (instance, lock) = match only_one.create(&name, &labels) {
        Err(error) if error.errno() == Some(Errno::EEXIST) => {
            // A prolog that slurmd repeats for a job. A process of the job that still runs keeps its limits, and
            // the job's further tasks share them.
            if !only_one.remove_ended_name(&name)? {
                return Ok(name);
            }
            only_one.create(&name, &labels)?
        }
        made => made?,
    };
    if let Err(error) = oci::fill(&instance, shares) {
        only_one.remove(instance).ok();
        return Err(error);
    }
    drop(lock);
    Ok(name)
}

/// The list of libraries that a task preloads: the machine's own, and ours.
fn preload(library: &Path) -> String {
    let own = fs::read_to_string(mounts::PRELOAD).unwrap_or_default();
    let library = library.display().to_string();
    let mut lines: Vec<&str> = own.lines().filter(|line| *line != library).collect();
    lines.push(&library);
    lines.join("\n") + "\n"
}

/// Makes the places at which tasks find their limits. Nothing is in them outside of tasks.
fn make_places() -> anyhow::Result<()> {
    for dir in [Some(Path::new(INSIDE)), Path::new(INSIDE_REGION).parent()] {
        let Some(dir) = dir else { continue };
        match fs::DirBuilder::new().mode(0o755).create(dir) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("cannot make {}", dir.display()));
            }
            _ => check(dir, fs::Metadata::is_dir)?,
        }
    }
    for file in [INSIDE_REGION, mounts::PRELOAD].map(Path::new) {
        let make = || {
            let mut options = fs::OpenOptions::new();
            options.write(true).create_new(true).mode(0o644).open(file)
        };
        let is_ours = match make() {
            Ok(_) => true,
            Err(_) => check(file, fs::Metadata::is_file).is_ok(),
        };
        // Every user may put a file of any kind on the board. The machine's own list is never replaced.
        if !is_ours && file == Path::new(INSIDE_REGION) {
            fs::remove_file(file).with_context(|| format!("cannot remove {}", file.display()))?;
            make().with_context(|| format!("cannot make {}", file.display()))?;
        }
        check(file, fs::Metadata::is_file)?;
    }
    Ok(())
}

fn check(path: &Path, is_kind: fn(&fs::Metadata) -> bool) -> anyhow::Result<()> {
    let found =
        fs::symlink_metadata(path).with_context(|| format!("cannot look at {}", path.display()))?;
    if found.uid() == 0 && is_kind(&found) {
        return Ok(());
    }
    Err(anyhow!(
        "{} is not root's, or is a link or of another kind; remove it: tasks have their limits mounted there",
        path.display()
    ))
}
