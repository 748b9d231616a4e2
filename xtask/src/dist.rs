//! `cargo xtask dist`: what ships, built against glibc 2.17, laid out below target/dist.
//! Never builds on the machine's own glibc by silence: without zig it stops and says how to get it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

const TARGET: &str = "x86_64-unknown-linux-gnu";
const GLIBC: &str = "2.17";
/// Links of a simulated driver's folder, and the file that each one stands for.
const SIM_NAMES: [(&str, &str); 4] = [
    ("libcuda.so", "libcuda.so"),
    ("libcuda.so.1", "libcuda.so"),
    ("libnvidia-ml.so", "libnvidia_ml.so"),
    ("libnvidia-ml.so.1", "libnvidia_ml.so"),
];

#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Only libvgpu.so, which takes seconds.
    #[arg(long)]
    pub(crate) library: bool,
    /// Only what runs on nodes and in clusters: the simulated driver, which `vgpu sim` loads, is not built.
    #[arg(long, conflicts_with = "library")]
    pub(crate) no_simulator: bool,
}

/// Where `dist` puts what it built.
pub(crate) fn folder() -> PathBuf {
    target().join("dist")
}

/// Cargo's target folder, and with it the tools that scripts/setup puts there.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| crate::root().join("target"), PathBuf::from)
}

/// The PATH to build with.
///
/// # Errors
/// When a tool is not on it.
pub(crate) fn tools() -> anyhow::Result<std::ffi::OsString> {
    let own = target().join("venv/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(own).chain(std::env::split_paths(&path));
    let path = std::env::join_paths(all)?;
    for (tool, source) in [
        ("cargo-zigbuild", "pip install ziglang cargo-zigbuild"),
        ("patchelf", "apt-get install patchelf"),
    ] {
        if !std::env::split_paths(&path).any(|dir| dir.join(tool).is_file()) {
            bail!("{tool} is not installed (./scripts/setup does it, or `{source}`)");
        }
    }
    Ok(path)
}

/// Builds and lays out.
///
/// # Errors
/// When a tool is missing or a build fails.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let path = tools().with_context(|| format!("cannot build for glibc {GLIBC}"))?;
    let dist = folder();
    let library = dist.join("lib/vgpu/libvgpu.so");
    zigbuild(&path, &["-p", "vgpu-core", "--lib", "--profile", "preload"])?;
    place(&built("preload", "libvgpu.so"), &library)?;
    // It is the dynamic linker itself, always there under glibc, and what kills every program on musl.
    let done = Command::new("patchelf")
        .args(["--remove-needed", "ld-linux-x86-64.so.2"])
        .arg(&library)
        .status();
    ensure!(
        done.context("cannot start patchelf")?.success(),
        "patchelf failed on {}",
        library.display()
    );
    if !args.library {
        release(&path, &["vgpu", "vgpu-monitor", "scheduler", "webhook"])?;
        for program in ["vgpu", "vgpu-monitor", "vgpu-scheduler", "vgpu-webhook"] {
            place(&built("release", program), &dist.join("bin").join(program))?;
        }
    }
    if !args.library && !args.no_simulator {
        release(&path, &["cuda-sim-libcuda", "cuda-sim-libnvidia-ml"])?;
        for (name, file) in SIM_NAMES {
            place(
                &built("release", file),
                &dist.join("lib/vgpu/sim").join(name),
            )?;
        }
    }
    println!("built {}", dist.display());
    Ok(())
}

fn release(path: &std::ffi::OsStr, packages: &[&str]) -> anyhow::Result<()> {
    let packages = packages.iter().flat_map(|name| ["-p", name]);
    zigbuild(path, &packages.chain(["--release"]).collect::<Vec<_>>())
}

fn zigbuild(path: &std::ffi::OsStr, args: &[&str]) -> anyhow::Result<()> {
    let target = format!("{TARGET}.{GLIBC}");
    let mut command = Command::new("cargo");
    command
        .args(["zigbuild", "--target", &target])
        .args(args)
        .current_dir(crate::root())
        .env("PATH", path);
    let status = command.status().context("cannot start cargo zigbuild")?;
    ensure!(status.success(), "cargo zigbuild {} failed", args.join(" "));
    Ok(())
}

fn built(profile: &str, file: &str) -> PathBuf {
    target().join(TARGET).join(profile).join(file)
}

/// Copies by a new name and a rename, so that a program that has the old file mapped keeps it whole.
fn place(from: &Path, to: &Path) -> anyhow::Result<()> {
    let folder = to.parent().context("a file of dist has a folder")?;
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot create {}", folder.display()))?;
    let fresh = to.with_extension("fresh");
    std::fs::copy(from, &fresh)
        .with_context(|| format!("cannot copy {} to {}", from.display(), fresh.display()))?;
    std::fs::rename(&fresh, to).with_context(|| format!("cannot put {} in place", to.display()))
}
