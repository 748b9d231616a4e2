//! `cargo xtask overlay`: libvgpu.so under the name of a vendor's library, depending on that library by
//! its path. The same two patchelf commands stand in docs/interception.md for those without Rust.
//! Never writes what it has not read back, and never touches the vendor's file.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::{dist, elf};

/// Our own library has this symbol, whatever it is called; a vendor's has not.
const MARKER: &str = "VGPU_LIBRARY_MARKER";

/// For each vendor's library: a symbol that identifies it, the name by which programs open it, and the name that they
/// link to.
const STANDS_FOR: [(&str, &str, &str); 2] = [
    ("cuInit", "libcuda.so.1", "libcuda.so"),
    ("nvmlInit_v2", "libnvidia-ml.so.1", "libnvidia-ml.so"),
];

#[derive(clap::Args)]
pub(crate) struct OverlayArgs {
    /// The vendor's library, such as /usr/lib/x86_64-linux-gnu/libcuda.so.550.163.01.
    #[arg(long, value_name = "FILE")]
    driver: PathBuf,
    /// The folder to write to, which then goes before the vendor's in LD_LIBRARY_PATH.
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// The libvgpu.so to take; what `cargo xtask dist` built if not given.
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
}

/// Writes the overlay.
///
/// # Errors
/// When a file is not what it is said to be, or patchelf is missing or fails.
pub(crate) fn run(args: &OverlayArgs) -> anyhow::Result<()> {
    let library = args
        .library
        .clone()
        .unwrap_or_else(|| dist::Processor::HERE.folder().join("lib/vgpu/libvgpu.so"));
    let file = make(&library, &args.driver, &args.out)?;
    println!("wrote {}", file.display());
    Ok(())
}

fn make(library: &Path, driver: &Path, out: &Path) -> anyhow::Result<PathBuf> {
    // The path as it was given, with its links: a user that names the link wants to follow the driver's updates.
    let driver = std::path::absolute(driver)
        .with_context(|| format!("{} has no absolute path", driver.display()))?;
    let (soname, link) = stands_for(&driver)?;
    let ours = elf::read(library)
        .context("the library is built by `cargo xtask dist --library`, or named by --library")?;
    ensure!(
        has(&ours, MARKER),
        "{} is not libvgpu.so",
        library.display()
    );
    std::fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    let (file, fresh) = (out.join(soname), out.join(format!("{soname}.fresh")));
    ensure!(
        !is_same(&file, &driver),
        "{} is the vendor's library itself: choose another folder",
        file.display()
    );
    std::fs::copy(library, &fresh).with_context(|| format!("cannot copy {}", library.display()))?;
    // Two runs: in one, patchelf 0.14 writes the needed name over the soname.
    patchelf(&fresh, "--set-soname", soname.as_ref())?;
    patchelf(&fresh, "--add-needed", driver.as_os_str())?;
    let made = elf::read(&fresh)?;
    let needs = made.needed.iter().any(|it| Path::new(it) == driver);
    if made.soname.as_deref() != Some(soname) || !needs || made.exports != ours.exports {
        bail!("patchelf has not done what it was asked for: {made:?}");
    }
    // A program that has the old file mapped keeps it whole.
    std::fs::rename(&fresh, &file)
        .with_context(|| format!("cannot put {} in place", file.display()))?;
    link_to(soname, &out.join(link))?;
    Ok(file)
}

/// The names to take, by what the vendor's file exports.
fn stands_for(driver: &Path) -> anyhow::Result<(&'static str, &'static str)> {
    let found = elf::read(driver)?;
    ensure!(
        !has(&found, MARKER),
        "{} is an overlay itself: name the vendor's library",
        driver.display()
    );
    STANDS_FOR
        .iter()
        .find(|(proof, ..)| has(&found, proof))
        .map(|&(_, soname, link)| (soname, link))
        .with_context(|| format!("{} is neither libcuda nor NVML", driver.display()))
}

fn has(found: &elf::Dynamic, name: &str) -> bool {
    found.exports.iter().any(|exported| exported == name)
}

/// One file, by whichever links?
fn is_same(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

fn patchelf(file: &Path, option: &str, value: &OsStr) -> anyhow::Result<()> {
    let done = Command::new("patchelf")
        .args([OsStr::new(option), value])
        .arg(file)
        .status()
        .context("cannot start patchelf (`apt-get install patchelf`)")?;
    ensure!(done.success(), "patchelf {option} failed");
    Ok(())
}

fn link_to(target: &str, link: &Path) -> anyhow::Result<()> {
    match std::fs::remove_file(link) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => std::os::unix::fs::symlink(target, link),
    }
    .with_context(|| format!("cannot link {}", link.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shared object that exports these names, or `None` without a compiler.
    fn object(folder: &Path, name: &str, exports: &[&str]) -> Option<PathBuf> {
        let (source, file) = (folder.join(format!("{name}.c")), folder.join(name));
        let text: String = exports
            .iter()
            .map(|it| format!("int {it}(void) {{ return 0; }}\n"))
            .collect();
        std::fs::write(&source, text).unwrap();
        let done = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .args([&file, &source])
            .status();
        done.is_ok_and(|status| status.success()).then_some(file)
    }

    fn tools(test: &str) -> bool {
        for tool in ["cc", "patchelf"] {
            if Command::new(tool).arg("--version").output().is_err() {
                println!("skipped {test}: {tool} is not installed");
                return false;
            }
        }
        true
    }

    #[test]
    fn an_overlay_has_the_drivers_name_and_depends_on_it_by_path() {
        if !tools("an_overlay_has_the_drivers_name_and_depends_on_it_by_path") {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let ours = object(folder.path(), "ours.so", &[MARKER, "cuInit", "nvmlInit_v2"]).unwrap();
        let out = folder.path().join("out");
        for (vendor, exports, soname, link) in [
            ("vendor.so", "cuInit", "libcuda.so.1", "libcuda.so"),
            (
                "ml.so",
                "nvmlInit_v2",
                "libnvidia-ml.so.1",
                "libnvidia-ml.so",
            ),
        ] {
            let vendor = object(folder.path(), vendor, &[exports]).unwrap();

            // Twice: what is there is replaced.
            make(&ours, &vendor, &out).unwrap();
            let file = make(&ours, &vendor, &out).unwrap();

            let made = elf::read(&file).unwrap();
            assert_eq!(made.soname.as_deref(), Some(soname));
            assert!(made.needed.contains(&vendor.to_str().unwrap().to_owned()));
            assert_eq!(file, out.join(soname));
            assert_eq!(
                std::fs::read_link(out.join(link)).unwrap(),
                Path::new(soname)
            );
        }
    }

    #[test]
    fn library_of_another_vendor_is_refused() {
        if !tools("library_of_another_vendor_is_refused") {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let at = |name, exports: &[&str]| object(folder.path(), name, exports).unwrap();
        let ours = at("ours.so", &[MARKER, "cuInit"]);
        let (vendor, other) = (at("libcuda.so.1", &["cuInit"]), at("other.so", &["main_"]));
        let refused = |library: &Path, driver: &Path, out: &str| {
            let out = folder.path().join(out);
            format!("{:#}", make(library, driver, &out).unwrap_err())
        };

        assert!(refused(&ours, &other, "out").contains("neither libcuda nor NVML"));
        assert!(refused(&ours, &ours, "out").contains("is an overlay itself"));
        assert!(refused(&other, &vendor, "out").contains("is not libvgpu.so"));
        assert!(refused(&ours, &vendor, "").contains("choose another folder"));
        assert!(refused(&folder.path().join("no.so"), &vendor, "out").contains("xtask dist"));
    }
}
