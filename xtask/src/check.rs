//! `cargo xtask check`: what is generated is fresh, the crates depend as drawn, and what ships loads everywhere.
//! Changes nothing in the working tree; the library is built below target/ when it is asked to look at it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::elf::{self, Dynamic};
use crate::{
    codegen, crds, dist, graph, header, links, modules, product, profile, protogen, source, types,
};

/// The newest glibc that a program may need to load us.
const GLIBC_FLOOR: (u32, u32) = (2, 17);
/// A missing dependency of a preloaded library kills every program in a container: these are always there.
const NEEDED: &[&str] = &["libc.so.6", "libpthread.so.0", "libdl.so.2"];
/// Slurm is built for glibc, so the plugin may also need glibc's dynamic linker.
const PLUGIN_NEEDED: &[&str] = &[
    "libc.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
];
/// The library's exports beside the driver's own names: its ways round the dynamic linker.
const LINKER_NAMES: [&str; 4] = ["dlsym", "dlvsym", "dlopen", "dlmopen"];
/// vgpu's own names begin with this; the marker that distinguishes the library from the driver is one.
const OWN_PREFIX: &str = "VGPU_";
/// Names without which the library limits nothing.
const LIBRARY_EXPORTS: &[&str] = &[
    "cuInit",
    "cuMemAlloc_v2",
    "cuGetProcAddress_v2",
    "nvmlDeviceGetMemoryInfo",
    "dlsym",
    "dlvsym",
    "dlopen",
];
/// The names by which Slurm knows a plugin and calls it. Another name would be visible in all of Slurm's programs.
const PLUGIN_EXPORTS: &[&str] = &[
    "plugin_name",
    "plugin_type",
    "plugin_version",
    "slurm_spank_init",
    "slurm_spank_task_init_privileged",
    "spank_plugin_version",
];

#[derive(clap::Args)]
pub(crate) struct CheckArgs {
    /// Look at this libvgpu.so instead of building one for glibc 2.17.
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
}

/// Runs every check and reports all that failed, not only the first.
///
/// # Errors
/// When a check fails.
pub(crate) fn run(args: &CheckArgs) -> anyhow::Result<()> {
    let mut failed = 0_u32;
    let mut report = |what: &str, result: anyhow::Result<String>| match result {
        Ok(note) if note.is_empty() => println!("ok      {what}"),
        Ok(note) => println!("{note}"),
        Err(error) => {
            failed += 1;
            println!("FAILED  {what}: {error:#}");
        }
    };
    report(
        "include/vgpu.h is fresh",
        header::run(true).map(|()| String::new()),
    );
    report(
        "the tables of cuda-api are fresh",
        codegen::run(true).map(|()| String::new()),
    );
    report(
        "the kubelet's protocols are fresh",
        protogen::run(true).map(|()| String::new()),
    );
    report(
        "the definitions of hcs.io are fresh",
        crds::run(true).map(|()| String::new()),
    );
    report(
        "crates depend as docs/architecture.md draws",
        none(graph::differences(&crate::root())),
    );
    let profile = |folders: Vec<String>| profile::complaints(&crate::root(), &folders);
    report(
        "debug builds of crates with unsafe code are checked",
        none(product::crates(&crate::root()).and_then(profile)),
    );
    match product::files(&crate::root()) {
        Err(error) => report("the source of the products can be read", Err(error)),
        Ok(files) => {
            report(
                "modules import downwards",
                none(Ok(modules::complaints(&files))),
            );
            report(
                "files are short, errors have types, and hooks stand in hooks/",
                none(Ok(source::complaints(&files))),
            );
            report(
                "a type's name stands for one type in a package",
                none(Ok(types::complaints(&files))),
            );
            report(
                "unsafe stands where docs/architecture.md lists it",
                none(source::unsafe_complaints(&crate::root(), &files)),
            );
        }
    }
    report(
        "links of docs and alerts lead somewhere",
        none(links::complaints(&crate::root())),
    );
    report(
        "the layers in docs/architecture.md are fresh",
        modules::run(true).map(|()| String::new()),
    );
    let tools = dist::tools();
    match (&args.library, &tools) {
        (Some(file), _) => report("libvgpu.so loads everywhere", library(file)),
        (None, Ok(_)) => {
            let built = dist::run(&dist::DistArgs::LIBRARY);
            let file = dist::Processor::HERE.folder().join("lib/vgpu/libvgpu.so");
            report(
                "libvgpu.so loads everywhere",
                built.and_then(|()| library(&file)),
            );
        }
        (None, Err(missing)) => report(
            "",
            Ok(format!("skipped libvgpu.so loads everywhere: {missing:#}")),
        ),
    }
    match tools {
        Ok(_) => report(
            "vgpu_spank.so loads into every Slurm",
            dist::plugin_here().and_then(|file| plugin(&file)),
        ),
        Err(missing) => report(
            "",
            Ok(format!(
                "skipped vgpu_spank.so loads into every Slurm: {missing:#}"
            )),
        ),
    }
    if failed > 0 {
        bail!("{failed} checks failed");
    }
    Ok(())
}

/// Fails with all complaints, if there are any.
fn none(complaints: anyhow::Result<Vec<String>>) -> anyhow::Result<String> {
    let complaints = complaints?;
    if !complaints.is_empty() {
        bail!("{}", complaints.join("; "));
    }
    Ok(String::new())
}

fn library(file: &Path) -> anyhow::Result<String> {
    let driver = driver_names()?;
    judge(file, &library_complaints(&elf::read(file)?, &driver))
}

fn plugin(file: &Path) -> anyhow::Result<String> {
    judge(file, &plugin_complaints(&elf::read(file)?))
}

fn judge(file: &Path, complaints: &[String]) -> anyhow::Result<String> {
    if !complaints.is_empty() {
        bail!("{}: {}", file.display(), complaints.join("; "));
    }
    Ok(String::new())
}

/// Every name that some release of the driver exports: the ones we may export too.
fn driver_names() -> anyhow::Result<BTreeSet<String>> {
    let folder = crate::root().join("tests/vectors/symbols");
    let read = |name: &str| {
        std::fs::read_to_string(folder.join(name)).with_context(|| format!("cannot read {name}"))
    };
    let mut names: BTreeSet<String> = BTreeSet::new();
    for list in [
        "libcuda-550.txt",
        "libnvidia-ml-550.txt",
        "libnvidia-ml-newer.txt",
    ] {
        names.extend(read(list)?.lines().map(|line| line.trim().to_owned()));
    }
    let table = read("procaddr.csv")?;
    names.extend(table.lines().flat_map(|row| {
        row.split(',')
            .map(|cell| cell.trim().to_owned())
            .collect::<Vec<_>>()
    }));
    Ok(names)
}

fn library_complaints(found: &Dynamic, driver: &BTreeSet<String>) -> Vec<String> {
    let mut complaints = loading(found, NEEDED, LIBRARY_EXPORTS);
    let allowed = |name: &str| {
        driver.contains(name) || LINKER_NAMES.contains(&name) || name.starts_with(OWN_PREFIX)
    };
    for name in found.exports.iter().filter(|name| !allowed(name)) {
        complaints.push(format!("it exports {name}, which no driver has"));
    }
    complaints
}

fn plugin_complaints(found: &Dynamic) -> Vec<String> {
    let mut complaints = loading(found, PLUGIN_NEEDED, PLUGIN_EXPORTS);
    let allowed = |name: &str| PLUGIN_EXPORTS.contains(&name);
    for name in found.exports.iter().filter(|name| !allowed(name)) {
        complaints.push(format!("it exports {name}, for which Slurm does not ask"));
    }
    complaints
}

/// What both have to keep: no dependency that may be missing, no new glibc, and the names without which they do nothing.
fn loading(found: &Dynamic, needed: &[&str], exports: &[&str]) -> Vec<String> {
    let mut complaints = Vec::new();
    let may_lack = |name: &&String| !needed.contains(&name.as_str());
    for name in found.needed.iter().filter(may_lack) {
        complaints.push(format!("it needs {name}, which a system may lack"));
    }
    if let Some((major, minor)) = found.glibc.iter().find(|version| **version > GLIBC_FLOOR) {
        complaints.push(format!(
            "it needs glibc {major}.{minor}, newer than {}.{}",
            GLIBC_FLOOR.0, GLIBC_FLOOR.1
        ));
    }
    for name in exports {
        if !found.exports.iter().any(|exported| exported == name) {
            complaints.push(format!("it does not export {name}"));
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Dynamic {
        Dynamic {
            needed: vec!["libc.so.6".to_owned()],
            exports: owned(LIBRARY_EXPORTS),
            glibc: vec![(2, 2), (2, 17)],
            ..Dynamic::default()
        }
    }

    fn owned(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn check(found: &Dynamic) -> String {
        library_complaints(found, &driver_names().unwrap()).join("; ")
    }

    #[test]
    fn a_good_library_has_no_complaint() {
        assert_eq!(check(&good()), "");
    }

    #[test]
    fn a_newer_glibc_is_named() {
        let found = Dynamic {
            glibc: vec![(2, 17), (2, 34)],
            ..good()
        };
        assert_eq!(check(&found), "it needs glibc 2.34, newer than 2.17");
    }

    #[test]
    fn a_dependency_that_may_be_missing_is_named() {
        let mut found = good();
        found.needed.push("libgcc_s.so.1".to_owned());
        assert_eq!(
            check(&found),
            "it needs libgcc_s.so.1, which a system may lack"
        );
    }

    #[test]
    fn a_name_that_no_driver_has_is_named() {
        let mut found = good();
        found.exports.push("cudnnCreate".to_owned());
        assert_eq!(check(&found), "it exports cudnnCreate, which no driver has");
    }

    fn good_plugin() -> Dynamic {
        Dynamic {
            needed: owned(&["libc.so.6", "ld-linux-x86-64.so.2"]),
            exports: owned(PLUGIN_EXPORTS),
            glibc: vec![(2, 2), (2, 15)],
            ..Dynamic::default()
        }
    }

    #[test]
    fn a_plugin_has_slurms_names_and_an_old_glibc() {
        assert_eq!(plugin_complaints(&good_plugin()), owned(&[]));
        let found = Dynamic {
            glibc: vec![(2, 34)],
            needed: owned(&["libgcc_s.so.1"]),
            exports: owned(&PLUGIN_EXPORTS[1..]),
            ..good_plugin()
        };
        assert_eq!(
            plugin_complaints(&found),
            [
                "it needs libgcc_s.so.1, which a system may lack",
                "it needs glibc 2.34, newer than 2.17",
                "it does not export plugin_name",
            ]
        );
    }

    #[test]
    fn a_name_of_a_plugin_that_slurm_does_not_know_is_named() {
        let mut found = good_plugin();
        found.exports.push("slurm_spank_int".to_owned());
        assert_eq!(
            plugin_complaints(&found),
            ["it exports slurm_spank_int, for which Slurm does not ask"]
        );
    }
}
