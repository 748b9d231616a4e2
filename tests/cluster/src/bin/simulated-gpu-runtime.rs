//! An OCI runtime for nodes with simulated GPUs: runc, but a container first gets what its `NVIDIA_VISIBLE_DEVICES`
//! names, as NVIDIA's runtime does it. What a GPU's edits are, the node's CDI specification says.
//!
//! `runc` lies beside this program. Nothing of the container is run, and nothing but its `config.json` is changed.
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
    if creates && let Err(error) = cdi::show_gpus(&bundle(&arguments), Path::new(cdi::NODE)) {
        // As runc says it when it is given a --log, which is where containerd looks first.
        if let Some(log) = value(&arguments, &["--log"]) {
            let time = "1970-01-01T00:00:00Z"; // containerd wants one and shows none
            let line = serde_json::json!({"level": "error", "msg": error, "time": time});
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
