//! `cargo xtask dist`: what ships, built against glibc 2.17, laid out below target/dist (for another processor below
//! target/dist-PROCESSOR). Never builds on the machine's own glibc by silence: without zig it stops and says how to get
//! it. Beside the programs lies the list of what is linked into them (`sbom.cdx.json`).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::sbom;

const GLIBC: &str = "2.17";
/// Links of a simulated driver's folder, and the file that each one points to.
const SIM_NAMES: [(&str, &str); 4] = [
    ("libcuda.so", "libcuda.so"),
    ("libcuda.so.1", "libcuda.so"),
    ("libnvidia-ml.so", "libnvidia_ml.so"),
    ("libnvidia-ml.so.1", "libnvidia_ml.so"),
];

/// Our packages that ship as programs and libraries, but for the simulated driver.
pub(crate) const PROGRAMS: [&str; 6] = [
    "vgpu",
    "vgpu-monitor",
    "scheduler",
    "webhook",
    "vgpu-core",
    "slurm-spank",
];
/// Those of the simulated driver.
const SIMULATOR: [&str; 2] = ["cuda-sim-libcuda", "cuda-sim-libnvidia-ml"];

/// A processor that the product is built for.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Processor {
    #[value(name = "x86_64")]
    X86_64,
    #[value(name = "aarch64")]
    Aarch64,
}

impl Processor {
    /// This machine's.
    pub(crate) const HERE: Self = if cfg!(target_arch = "aarch64") {
        Self::Aarch64
    } else {
        Self::X86_64
    };

    pub(crate) fn triple(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-unknown-linux-gnu",
            Self::Aarch64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// The file of glibc's dynamic linker.
    fn loader(self) -> &'static str {
        match self {
            Self::X86_64 => "ld-linux-x86-64.so.2",
            Self::Aarch64 => "ld-linux-aarch64.so.1",
        }
    }

    /// Where `dist` puts what it built.
    pub(crate) fn folder(self) -> PathBuf {
        if self == Self::HERE {
            return target().join("dist");
        }
        let triple = self.triple();
        let name = triple.split('-').next().unwrap_or(triple);
        target().join(format!("dist-{name}"))
    }

    fn built(self, profile: &str, file: &str) -> PathBuf {
        target().join(self.triple()).join(profile).join(file)
    }
}

#[derive(clap::Args)]
pub(crate) struct DistArgs {
    /// Only libvgpu.so, which takes seconds.
    #[arg(long)]
    pub(crate) library: bool,
    /// Only what runs on nodes and in clusters: the simulated driver, which `vgpu sim` loads, is not built.
    #[arg(long, conflicts_with = "library")]
    pub(crate) no_simulator: bool,
    /// The processor to build for; another one than this machine's needs `rustup target add PROCESSOR-unknown-linux-gnu`.
    #[arg(long, value_enum, default_value_t = Processor::HERE)]
    pub(crate) processor: Processor,
}

impl DistArgs {
    /// Only the library, for this machine.
    pub(crate) const LIBRARY: Self = Self {
        library: true,
        no_simulator: false,
        processor: Processor::HERE,
    };
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
pub(crate) fn run(args: &DistArgs) -> anyhow::Result<()> {
    let processor = args.processor;
    let path = tools().with_context(|| format!("cannot build for glibc {GLIBC}"))?;
    let build = |args: &[&str]| zigbuild(processor, &path, args);
    let dist = processor.folder();
    let library = dist.join("lib/vgpu/libvgpu.so");
    build(&["-p", "vgpu-core", "--lib", "--profile", "preload"])?;
    place(&processor.built("preload", "libvgpu.so"), &library)?;
    // It is the dynamic linker itself, always there under glibc, and what kills every program on musl.
    let done = Command::new("patchelf")
        .args(["--remove-needed", processor.loader()])
        .arg(&library)
        .status();
    ensure!(
        done.context("cannot start patchelf")?.success(),
        "patchelf failed on {}",
        library.display()
    );
    if !args.library {
        build(&release(&["vgpu", "vgpu-monitor", "scheduler", "webhook"]))?;
        plugin(processor, &path)?;
        for program in ["vgpu", "vgpu-monitor", "vgpu-scheduler", "vgpu-webhook"] {
            let built = processor.built("release", program);
            place(&built, &dist.join("bin").join(program))?;
        }
    }
    if !args.library && !args.no_simulator {
        build(&release(&SIMULATOR))?;
        for (name, file) in SIM_NAMES {
            let built = processor.built("release", file);
            place(&built, &dist.join("lib/vgpu/sim").join(name))?;
        }
    }
    if !args.library {
        let mut ours = PROGRAMS.to_vec();
        if !args.no_simulator {
            ours.extend(SIMULATOR);
        }
        sbom::write(
            &crate::root(),
            processor.triple(),
            &ours,
            &dist.join(sbom::FILE),
        )?;
    }
    println!("built {}", dist.display());
    Ok(())
}

/// Builds Slurm's plugin for this machine, and says where it is.
///
/// # Errors
/// When a tool is missing or the build fails.
pub(crate) fn plugin_here() -> anyhow::Result<PathBuf> {
    plugin(Processor::HERE, &tools()?)
}

fn plugin(processor: Processor, path: &std::ffi::OsStr) -> anyhow::Result<PathBuf> {
    let to = processor.folder().join("lib/vgpu/vgpu_spank.so");
    let words = ["-p", "slurm-spank", "--lib", "--profile", "preload"];
    zigbuild(processor, path, &words)?;
    place(&processor.built("preload", "libvgpu_spank.so"), &to)?;
    Ok(to)
}

fn release<'a>(packages: &[&'a str]) -> Vec<&'a str> {
    let packages = packages.iter().flat_map(|name| ["-p", name]);
    packages.chain(["--release"]).collect()
}

fn zigbuild(processor: Processor, path: &std::ffi::OsStr, args: &[&str]) -> anyhow::Result<()> {
    let triple = processor.triple();
    if processor != Processor::HERE {
        installed(triple)?;
    }
    let target = format!("{triple}.{GLIBC}");
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

/// Fails where the compiler has no standard library for a target.
fn installed(triple: &str) -> anyhow::Result<()> {
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let answer = Command::new(&compiler)
        .args(["--print", "target-libdir", "--target", triple])
        .output()
        .with_context(|| format!("cannot start {}", compiler.display()))?;
    let folder = PathBuf::from(String::from_utf8_lossy(&answer.stdout).trim());
    ensure!(
        folder.is_dir(),
        "this Rust has no standard library for {triple} ({} is missing): run `rustup target add {triple}`",
        folder.display()
    );
    Ok(())
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
