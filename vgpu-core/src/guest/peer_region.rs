//! Where the usage region is when the peers' variables give the limits. The file that they name may be another
//! program's: HAMi-core keeps a region of its own there, and an older release of vgpu has another layout. Such a file
//! is left as it is, and this library's region is made beside it.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use vgpu_abi::file::FileError;
use vgpu_abi::layout::{MAX_DEVICES, REGION_VERSION};
use vgpu_abi::region::{NewDevice, Region};

use crate::base::log::line;
use crate::guest::settings::{PeerSettings, Surroundings, ThisProcess};

/// A file that may become the usage region.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Candidate {
    path: PathBuf,
    /// In a directory that all users share: it must belong to this user.
    is_own: bool,
}

/// The candidates for a file of this name, the best first.
fn candidates(named: &Path, is_own: bool, last: &Path) -> [Candidate; 4] {
    let beside = |end: String| {
        let mut path = OsString::from(named);
        path.push(end);
        Candidate {
            path: path.into(),
            is_own,
        }
    };
    [
        beside(String::new()),
        beside(".vgpu".into()),
        beside(format!(".vgpu.{REGION_VERSION}")),
        Candidate {
            path: last.into(),
            is_own: true,
        },
    ]
}

/// Opens the region that the peers' variables name, or the one in its place.
///
/// # Errors
/// The candidate that was tried first, and what is wrong with it.
pub(crate) fn open(peers: &PeerSettings) -> Result<Region, (PathBuf, FileError)> {
    let candidates = candidates(&peers.region, peers.is_own_region, &peers.own_region);
    // Programs that found the named file occupied have their region beside it. Programs that start later join
    // them there, even if the named file is gone by then.
    let [_, beside @ ..] = &candidates;
    for candidate in beside.iter().take(2).rev() {
        if let Ok(region) = opened(candidate, Region::open) {
            return Ok(region);
        }
    }
    let mut first = None;
    for candidate in &candidates {
        let devices = [NewDevice::default(); MAX_DEVICES];
        // A file that was named is for all users of the container, others are for this user.
        let mode = if candidate.is_own { 0o600 } else { 0o666 };
        let error = match opened(candidate, |path| {
            Region::open_or_create(path, &devices, mode)
        }) {
            Ok(region) => {
                if first.is_some() {
                    line!(Warn, "the usage region is {}", candidate.path.display());
                }
                return Ok(region);
            }
            Err(error) => error,
        };
        line!(Warn, "{}: {error}", candidate.path.display());
        let (path, error) = first.get_or_insert((candidate.path.clone(), error));
        if matches!(error, FileError::BadPath) {
            return Err((path.clone(), *error));
        }
    }
    Err(first.unwrap_or((peers.region.clone(), FileError::Missing)))
}

fn opened(
    candidate: &Candidate,
    open: impl FnOnce(&Path) -> Result<Region, FileError>,
) -> Result<Region, FileError> {
    let region = open(&candidate.path)?;
    // Another user may have been first in a shared directory.
    if candidate.is_own && !is_own(&candidate.path) {
        return Err(FileError::System {
            call: "open another user's file",
            errno: libc::EPERM,
        });
    }
    Ok(region)
}

/// Does the file belong to this user (and not to another user, whose process was first in a shared directory)?
fn is_own(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|file| file.uid() == ThisProcess.user())
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_abi::limits::Policy;
    use vgpu_abi::peers::PeerLimits;

    #[test]
    fn places_stand_beside_the_named_file_and_last_in_the_users_own() {
        let found = candidates(Path::new("/a/b.cache"), false, Path::new("/tmp/own"));

        let paths = found.map(|candidate| {
            (
                candidate.path.to_str().unwrap().to_owned(),
                candidate.is_own,
            )
        });
        assert_eq!(
            paths,
            [
                ("/a/b.cache".to_owned(), false),
                ("/a/b.cache.vgpu".to_owned(), false),
                (format!("/a/b.cache.vgpu.{REGION_VERSION}"), false),
                ("/tmp/own".to_owned(), true),
            ]
        );
    }

    fn peers(folder: &Path, named: &Path) -> PeerSettings {
        PeerSettings {
            limits: PeerLimits {
                memory_bytes: [0; MAX_DEVICES],
                core_percent: [0; MAX_DEVICES],
                priority: 0,
                policy: Policy::Default,
            },
            is_oversubscribed: false,
            region: named.into(),
            is_own_region: false,
            own_region: folder.join("own"),
        }
    }

    /// In which file of the folder the region is, when `occupy` has put something at the named path.
    fn kept_in(named: &str, occupy: impl FnOnce(&Path)) -> String {
        let folder = tempfile::tempdir().unwrap();
        let named = folder.path().join(named);
        occupy(&named);
        let before = std::fs::read(&named).ok();

        let region = open(&peers(folder.path(), &named)).unwrap();

        drop(region);
        assert_eq!(
            std::fs::read(&named).ok().filter(|_| before.is_some()),
            before
        );
        let mut found: Vec<_> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| Region::open(path).is_ok())
            .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
            .collect();
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    #[test]
    fn a_file_of_another_kind_is_left_as_it_is() {
        let hami = |path: &Path| {
            let mut bytes = vec![0; 2_008_952];
            bytes[..4].copy_from_slice(&19_920_718_u32.to_ne_bytes());
            std::fs::write(path, bytes).unwrap();
        };
        assert_eq!(kept_in("cache", hami), "cache.vgpu");
        assert_eq!(
            kept_in("cache", |path| std::fs::create_dir(path).unwrap()),
            "cache.vgpu"
        );
        let link = |path: &Path| std::os::unix::fs::symlink("elsewhere", path).unwrap();
        assert_eq!(kept_in("cache", link), "cache.vgpu");
        assert_eq!(
            kept_in("cache", |path| std::fs::write(path, []).unwrap()),
            "cache.vgpu"
        );
        let zeros = vec![0; size_of::<vgpu_abi::layout::RegionLayout>()];
        let unfinished = |path: &Path| std::fs::write(path, zeros).unwrap();
        assert_eq!(kept_in("cache", unfinished), "cache.vgpu");
    }

    #[test]
    fn a_file_of_another_release_is_left_as_it_is() {
        let older = |path: &Path| {
            Region::create(path, &[], 0o600).unwrap();
            let at = std::mem::offset_of!(vgpu_abi::layout::RegionHeader, version);
            let mut bytes = std::fs::read(path).unwrap();
            bytes[at..at + 4].copy_from_slice(&(REGION_VERSION + 1).to_ne_bytes());
            std::fs::write(path, bytes).unwrap();
        };
        let both = |path: &Path| {
            older(path);
            let mut beside = path.as_os_str().to_owned();
            beside.push(".vgpu");
            older(Path::new(&beside));
        };

        assert_eq!(kept_in("cache", older), "cache.vgpu");
        assert_eq!(
            kept_in("cache", both),
            format!("cache.vgpu.{REGION_VERSION}")
        );
    }

    #[test]
    fn a_place_that_cannot_be_written_falls_to_the_users_own() {
        assert_eq!(kept_in("missing/cache", |_| {}), "own");
    }

    #[test]
    fn later_programs_join_the_books_beside_a_file_that_went_away() {
        let folder = tempfile::tempdir().unwrap();
        let named = folder.path().join("cache");
        std::fs::write(&named, "of another program").unwrap();
        let first = open(&peers(folder.path(), &named)).unwrap();
        std::fs::remove_file(&named).unwrap();

        let second = open(&peers(folder.path(), &named)).unwrap();

        assert!(!named.exists());
        drop((first, second));
    }
}
