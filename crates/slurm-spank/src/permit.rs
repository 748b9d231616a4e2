//! Asks `vgpu slurm task` to put this task under its job's limits.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::options::{Arguments, Flag, Refusal};

/// The file that NVIDIA's driver makes on a machine with its GPUs.
const NVIDIA: &str = "/dev/nvidiactl";

/// Runs `vgpu slurm task` in this process's mount namespace; the error is what the job's owner reads.
pub(crate) fn ask(
    arguments: &Arguments,
    job: u32,
    options: &[(Flag, String)],
) -> Result<(), Refusal> {
    let mut command = Command::new(&arguments.vgpu);
    // Nothing of the job's environment reaches a process of root.
    command
        .env_clear()
        .args(words(arguments, job, options))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            let text = text.trim().trim_start_matches("vgpu slurm: ").to_owned();
            Err(Refusal::new(match text.is_empty() {
                true => format!("{} slurm task failed: {}", arguments.vgpu.display(), output.status),
                false => text,
            }))
        }
        Err(error) => may_lack(&error, Path::new(NVIDIA).exists()).map_err(|()| {
            Refusal::new(format!(
                "cannot run {}: {error}; install vgpu on this node, or name it in plugstack.conf by vgpu=/PATH",
                arguments.vgpu.display()
            ))
        }),
    }
}

fn words(arguments: &Arguments, job: u32, options: &[(Flag, String)]) -> Vec<String> {
    let mut words = vec![
        String::from("slurm"),
        String::from("task"),
        format!("--job={job}"),
    ];
    if let Some(board) = &arguments.board {
        words.push(format!("--board={}", board.display()));
    }
    for (option, value) in options {
        words.push(format!("--{}={value}", option.name()));
    }
    words
}

/// A node without GPUs needs no vgpu: its jobs have nothing to share.
fn may_lack(error: &io::Error, has_gpus: bool) -> Result<(), ()> {
    match error.kind() {
        io::ErrorKind::NotFound if !has_gpus => Ok(()),
        _ => Err(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn the_command_gets_the_job_and_its_options() {
        let arguments = Arguments {
            vgpu: PathBuf::from("/v"),
            board: Some(PathBuf::from("/b")),
        };
        let words = words(&arguments, 7, &[(Flag::Memory, String::from("4Gi"))]);
        assert_eq!(
            words,
            ["slurm", "task", "--job=7", "--board=/b", "--gpumem=4Gi"]
        );
    }

    #[test]
    fn only_a_node_without_gpus_may_lack_the_command() {
        let missing = io::Error::from(io::ErrorKind::NotFound);
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        assert!(may_lack(&missing, false).is_ok());
        assert!(may_lack(&missing, true).is_err());
        assert!(may_lack(&denied, false).is_err());
    }
}
