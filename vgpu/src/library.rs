//! Finds the library and the simulated driver. Owns the list of paths to try.
//!
//! Never searches beyond that list: preloading a library from an unexpected path is worse than preloading none.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use supervisor::instance::INSIDE_LIBRARY;

/// The library to preload.
pub(crate) fn find(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    let candidates = match named {
        Some(path) => vec![path.to_owned()],
        None => {
            let mut candidates = Vec::new();
            if let Some(dir) = exe_dir() {
                candidates.push(dir.join("../lib/vgpu/libvgpu.so"));
                candidates.push(dir.join("libvgpu.so"));
            }
            candidates.push(PathBuf::from(INSIDE_LIBRARY));
            candidates
        }
    };
    let Some(found) = candidates.iter().find(|path| path.exists()) else {
        let list: Vec<_> = candidates
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        bail!(
            "cannot find libvgpu.so; looked at {}. Say where it is with --library or VGPU_LIBRARY",
            list.join(", ")
        );
    };
    let found = found
        .canonicalize()
        .with_context(|| format!("cannot follow {}", found.display()))?;
    check(&found)?;
    Ok(found)
}

/// Checks that the library can be preloaded. Without this check the loader would run the program without a
/// limit.
fn check(path: &Path) -> anyhow::Result<()> {
    if let Err(error) = supervisor::library::check(path) {
        bail!("{error}. Name libvgpu.so with --library");
    }
    if path
        .as_os_str()
        .as_bytes()
        .iter()
        .any(|byte| b" :\t\n".contains(byte))
    {
        bail!(
            "the library's path {:?} contains a space or a colon, which separate paths in LD_PRELOAD; \
             copy the library elsewhere and name it with --library",
            path.display()
        );
    }
    Ok(())
}

/// The value of `LD_PRELOAD` with the library first and everything else kept.
pub(crate) fn preload(library: &Path, old: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    let Some(old) = old else { return value };
    let others = old
        .as_bytes()
        .split(|byte| b" :".contains(byte))
        .filter(|path| !path.is_empty() && *path != library.as_os_str().as_bytes());
    for path in others {
        value.push(":");
        value.push(OsStr::from_bytes(path));
    }
    value
}

/// The two libraries of the simulated driver: `libcuda` and `libnvidia-ml`.
pub(crate) fn find_simulated() -> anyhow::Result<(PathBuf, PathBuf)> {
    let dirs = match std::env::var_os("VGPU_SIM_LIBS") {
        Some(dir) => vec![PathBuf::from(dir)],
        None => exe_dir()
            .map(|dir| vec![dir.join("../lib/vgpu/sim"), dir.clone(), dir.join("deps")])
            .unwrap_or_default(),
    };
    for dir in &dirs {
        let first = |names: &[&str]| {
            names
                .iter()
                .map(|name| dir.join(name))
                .find_map(|path| path.canonicalize().ok())
        };
        let cuda = first(&["libcuda.so.1", "libcuda.so"]);
        let nvml = first(&["libnvidia-ml.so.1", "libnvidia-ml.so", "libnvidia_ml.so"]);
        if let (Some(cuda), Some(nvml)) = (cuda, nvml) {
            return Ok((cuda, nvml));
        }
    }
    let list: Vec<_> = dirs.iter().map(|dir| dir.display().to_string()).collect();
    bail!(
        "cannot find the simulated driver (libcuda.so and libnvidia-ml.so); looked in {}. Say where \
         it is with VGPU_SIM_LIBS=DIR",
        list.join(", ")
    )
}

fn exe_dir() -> Option<PathBuf> {
    let exe = std::env::current_exe().ok()?;
    Some(exe.parent()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_comes_first_and_everything_else_stays() {
        let check = |old: Option<&str>| {
            preload(Path::new("/l/libvgpu.so"), old.map(OsStr::new))
                .into_string()
                .unwrap()
        };

        assert_eq!(check(None), "/l/libvgpu.so");
        assert_eq!(check(Some("")), "/l/libvgpu.so");
        assert_eq!(
            check(Some("/a.so /b.so:/c.so")),
            "/l/libvgpu.so:/a.so:/b.so:/c.so"
        );
        assert_eq!(check(Some("/a.so:/l/libvgpu.so")), "/l/libvgpu.so:/a.so");
    }
}
