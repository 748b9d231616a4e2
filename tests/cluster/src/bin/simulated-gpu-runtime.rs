//! An OCI runtime for nodes with simulated GPUs: it runs runc, but first adds the GPUs of the container's
//! `NVIDIA_VISIBLE_DEVICES`, as NVIDIA's runtime does. The node's CDI specification has the edits for each GPU.
//!
//! `runc` is in the directory of this program. Nothing of the container is run, and only its `config.json` is
//! changed.
#![forbid(unsafe_code)]
#![allow(
    clippy::print_stderr,
    reason = "containerd reads why a container cannot be made from standard error"
)]

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use cluster_tests::cdi;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let creates = arguments
        .iter()
        .any(|word| matches!(word.as_str(), "create" | "run"));
    if creates && let Err(error) = show_gpus(&bundle(&arguments)) {
        // The error in runc's format if there is a --log, which is where containerd looks first.
        if let Some(log) = value(&arguments, &["--log"]) {
            let time = "1970-01-01T00:00:00Z"; // containerd wants one and shows none
            let line =
                serde_json::json!({"level": "error", "msg": error.to_string(), "time": time});
            std::fs::write(log, format!("{line}\n")).ok();
        }
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    let runc = match std::env::current_exe() {
        Ok(own) => own.with_file_name("runc"),
        Err(error) => {
            eprintln!("simulated-gpu-runtime: where it lies is not known: {error}");
            return ExitCode::FAILURE;
        }
    };
    let error = Command::new(&runc).args(arguments).exec();
    eprintln!("simulated-gpu-runtime: {}: {error}", runc.display());
    ExitCode::FAILURE
}

fn show_gpus(bundle: &Path) -> Result<(), cdi::CdiError> {
    cdi::show_gpus(bundle, Path::new(cdi::NODE), Path::new(cdi::SWITCHES))
}

fn bundle(arguments: &[String]) -> PathBuf {
    value(arguments, &["--bundle", "-b"]).map_or_else(|| PathBuf::from("."), PathBuf::from)
}

/// The value of an option, as `--option value` or `--option=value`.
fn value<'a>(arguments: &'a [String], names: &[&str]) -> Option<&'a str> {
    arguments.iter().enumerate().find_map(|(place, word)| {
        if names.contains(&word.as_str()) {
            return arguments.get(place + 1).map(String::as_str);
        }
        let (name, value) = word.split_once('=')?;
        names.contains(&name).then_some(value)
    })
}
