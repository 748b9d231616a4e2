//! The `vgpu` command: `run`, `top`, `set`, `oom`, `sim`, `cdi`, `slurm`, `explain`, `simulate`, `doctor`. Owns the command line and
//! its output; code that the daemons share is in `supervisor`.
//!
//! Never needs root (except for containers of container engines and jobs of Slurm), talks to no daemon (except that `explain` and
//! `doctor` talk to a cluster's), and never starts a program under a limit that it did not understand.

#![forbid(unsafe_code)]

mod args;
mod values;

mod bench;
mod cdi;
mod doctor;
mod explain;
mod oci;
mod oom;
mod run;
mod set;
mod sim;
mod slurm;
mod top;

mod board;
mod child;
mod failure;
mod floors;
mod library;
mod limits;
mod mounts;
mod mps;
mod text;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::{Args, Command};
use failure::Failure;

fn main() -> ExitCode {
    let args = Args::parse_from(oci::as_runtime(std::env::args_os()));
    // `explain` and `doctor` ask API servers.
    if let Err(error) = server::choose_cryptography() {
        return fail("vgpu", &Failure::from(error));
    }
    let (name, result) = match args.command {
        Command::Run(args) => ("vgpu run", run::run(&args)),
        Command::Set(args) => ("vgpu set", set::run(&args)),
        Command::Top(args) => ("vgpu top", top::run(&args)),
        Command::Oom(args) => ("vgpu oom", oom::run(&args)),
        Command::Sim(args) => ("vgpu sim", sim::run(&args)),
        Command::Cdi(args) => ("vgpu cdi", cdi::run(&args)),
        Command::OciHook(args) => ("vgpu oci-hook", oci::hook(&args)),
        Command::OciRuntime(args) => ("vgpu oci-runtime", oci::runtime(&args)),
        Command::Slurm(args) => ("vgpu slurm", slurm::run(&args)),
        Command::Bench(args) => ("vgpu bench", bench::run(&args)),
        Command::Doctor(args) => ("vgpu doctor", doctor::run(&args)),
        Command::Explain(args) => ("vgpu explain", explain::run(&args)),
        Command::Simulate(mut args) => {
            args.gpu_plugins
                .get_or_insert(scheduler::simulator::gpus::GpuPlugins::Auto);
            return scheduler::simulate::program("vgpu simulate", *args);
        }
        Command::Completions { shell } => ("vgpu completions", completions(shell)),
        Command::Version => ("vgpu version", version()),
    };
    match result {
        Ok(code) => code,
        Err(failure) => fail(name, &failure),
    }
}

fn fail(name: &str, failure: &Failure) -> ExitCode {
    let (code, text) = match failure {
        Failure::Usage(misuse) => (2, misuse.to_string()),
        Failure::Failed(error) if is_broken_pipe(error) => return ExitCode::SUCCESS,
        Failure::Failed(error) => (1, format!("{error:#}")),
        Failure::NotStarted { code, text } => (*code, text.clone()),
    };
    // If standard error is closed, the exit code still reports the failure.
    writeln!(std::io::stderr(), "{name}: {text}").ok();
    ExitCode::from(code)
}

/// The reader of our output has closed it, as in `vgpu top | head`.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

fn completions(shell: args::Shell) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    let shell = match shell {
        args::Shell::Bash => clap_complete::Shell::Bash,
        args::Shell::Zsh => clap_complete::Shell::Zsh,
        args::Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut offered = offered(&Args::command());
    clap_complete::generate(shell, &mut offered, "vgpu", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// The command without its hidden flags, for completion.
fn offered(command: &clap::Command) -> clap::Command {
    let about = command.get_about().cloned().unwrap_or_default();
    clap::Command::new(command.get_name().to_owned())
        .about(about)
        .disable_help_subcommand(true)
        .args(
            command
                .get_arguments()
                .filter(|arg| !arg.is_hide_set())
                .cloned(),
        )
        .subcommands(command.get_subcommands().map(offered))
}

fn version() -> Result<ExitCode, Failure> {
    writeln!(
        std::io::stdout(),
        "vgpu {} (limits {}, region {}, targets {})",
        env!("CARGO_PKG_VERSION"),
        vgpu_abi::layout::LIMITS_VERSION,
        vgpu_abi::layout::REGION_VERSION,
        vgpu_abi::layout::TARGETS_VERSION,
    )?;
    Ok(ExitCode::SUCCESS)
}
