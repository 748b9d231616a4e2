//! Files that a second delivery restores, and files that it never touches.

use std::os::unix::fs::MetadataExt as _;

use nix::fcntl::{FallocateFlags, fallocate};

use super::*;

#[test]
fn giving_again_repairs_missing_and_damaged_files() {
    type Damage = fn(&NodeDir, &Name);
    let damages: [(&str, Damage); 14] = [
        ("the limits are gone", |node, name| {
            std::fs::remove_file(node.container(name, "limits")).unwrap()
        }),
        ("the limits were never finished", |node, name| {
            std::fs::write(node.container(name, "limits"), vec![0; 12_288]).unwrap()
        }),
        ("the targets are gone", |node, name| {
            std::fs::remove_file(node.container(name, "targets")).unwrap()
        }),
        (
            "the doorbell is gone, as of an earlier release",
            |node, name| std::fs::remove_file(node.container(name, "doorbell")).unwrap(),
        ),
        ("the doorbell is closed", |node, name| {
            std::fs::set_permissions(
                node.container(name, "doorbell"),
                std::fs::Permissions::from_mode(0o000),
            )
            .unwrap();
        }),
        ("the doorbell is a pipe", |node, name| {
            let path = node.container(name, "doorbell");
            std::fs::remove_file(&path).unwrap();
            nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        }),
        ("the region is gone", |node, name| {
            std::fs::remove_file(node.container(name, "region")).unwrap()
        }),
        ("the region is empty", |node, name| {
            std::fs::write(node.container(name, "region"), "").unwrap()
        }),
        ("the region says something else", |node, name| {
            use std::os::unix::fs::FileExt;
            let region = std::fs::OpenOptions::new()
                .write(true)
                .open(node.container(name, "region"))
                .unwrap();
            region.write_all_at(b"GPU-cccc", 4096).unwrap();
        }),
        ("the region is a link", |node, name| {
            std::fs::remove_file(node.container(name, "region")).unwrap();
            std::os::unix::fs::symlink("/etc/passwd", node.container(name, "region")).unwrap();
        }),
        ("the region is closed", |node, name| {
            std::fs::set_permissions(
                node.container(name, "region"),
                std::fs::Permissions::from_mode(0o000),
            )
            .unwrap();
        }),
        ("the directory is gone", |node, name| {
            std::fs::remove_dir_all(node.container(name, "")).unwrap()
        }),
        ("the record is half", |node, name| {
            std::fs::write(node.container(name, "container.json"), "{\"na").unwrap()
        }),
        ("the machine was restarted", |node, _| {
            std::fs::remove_dir_all(node.path("var/run/cdi")).unwrap()
        }),
    ];
    for (what, damage) in damages {
        for is_new_agent in [false, true] {
            let node = NodeDir::new();
            let mut delivery = node.delivery(Manner::Cdi);
            delivery.give(&name("a"), &given("train", 4 * GIB)).unwrap();

            damage(&node, &name("a"));
            if is_new_agent {
                delivery = node.delivery(Manner::Cdi);
            }
            delivery
                .give(&name("a"), &given("train", 4 * GIB))
                .unwrap_or_else(|error| panic!("{what}: {error}"));

            is_whole(&node, &name("a"), what);
        }
    }
}

/// Everything is there, as it must be.
pub(super) fn is_whole(node: &NodeDir, name: &Name, what: &str) {
    assert_eq!(node.limits(name).devices[0].memory_bytes, 4 * GIB, "{what}");
    let instance = supervisor::instance::Instance::open(&node.container(name, "")).unwrap();
    let view = supervisor::view::read(&instance).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(
        (view.pod.as_str(), view.devices[0].uuid.as_str()),
        ("train", GPUS[0]),
        "{what}"
    );
    let modes = ["", "limits", "targets", "doorbell", "region"]
        .map(|file| mode(&node.container(name, file)));
    assert_eq!(modes, [0o755, 0o644, 0o644, 0o644, 0o666], "{what}");
    assert!(instance.host_file("doorbell", false).is_ok(), "{what}");
    let spec = std::fs::read(node.spec(name)).unwrap_or_else(|error| panic!("{what}: {error}"));
    let spec: serde_json::Value = serde_json::from_slice(&spec).unwrap();
    for mount in spec["devices"][0]["containerEdits"]["mounts"]
        .as_array()
        .unwrap()
    {
        let host = mount["hostPath"].as_str().unwrap();
        let is_ours = host.starts_with("/var/lib/vgpu");
        assert!(!is_ours || node.path(&host[1..]).exists(), "{what}: {host}");
    }
}

/// A lock as a living process of the container has one, until it is dropped. Closing the file would not always release it: a
/// process that another test has forked and that has not begun its program yet holds the same open file.
pub(crate) struct Locked(std::fs::File);

impl Locked {
    fn set(&self, kind: i32) {
        let lock = nix::libc::flock {
            l_type: i16::try_from(kind).unwrap(),
            l_whence: 0,
            l_start: i64::try_from(vgpu_abi::layout::LOCK_SLOTS).unwrap() + 3,
            l_len: 1,
            l_pid: 0,
        };
        nix::fcntl::fcntl(&self.0, nix::fcntl::FcntlArg::F_OFD_SETLK(&lock)).unwrap();
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        self.set(nix::libc::F_UNLCK);
    }
}

pub(crate) fn lock(path: &Path) -> Locked {
    let region = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let locked = Locked(region);
    locked.set(nix::libc::F_WRLCK);
    locked
}

#[test]
fn region_with_a_living_process_is_never_touched() {
    let node = NodeDir::new();
    let delivery = node.delivery(Manner::Cdi);
    delivery.give(&name("a"), &given("train", 4 * GIB)).unwrap();
    let path = node.container(&name("a"), "region");
    let living = lock(&path);
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(100)
        .unwrap();

    delivery.give(&name("a"), &given("train", 5 * GIB)).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 100);
    assert!(delivery.is_used(&name("a")));
    assert_eq!(
        delivery.collect(&name("a"), delivery.moment()).ok(),
        Some(false)
    );

    drop(living);
    assert!(!delivery.is_used(&name("a")));
    delivery.give(&name("a"), &given("train", 5 * GIB)).unwrap();
    vgpu_abi::host::snapshot(&path).unwrap();
}

#[test]
fn files_of_another_release_are_left_alone() {
    use std::os::unix::fs::FileExt;
    let node = NodeDir::new();
    let delivery = node.delivery(Manner::Cdi);
    delivery.give(&name("a"), &given("train", GIB)).unwrap();
    let path = node.container(&name("a"), "limits");
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&9_u32.to_ne_bytes(), 8).unwrap();

    let error = delivery
        .give(&name("a"), &given("train", 2 * GIB))
        .unwrap_err()
        .to_string();

    assert!(
        error.contains("limits: limits file of version 9, but this program knows version 1"),
        "{error}"
    );
    assert!(matches!(
        LimitsMap::open(&path),
        Err(FileError::WrongVersion { found: 9, .. })
    ));
}

#[test]
fn extended_region_is_truncated_without_losing_data() {
    let node = NodeDir::new();
    let delivery = node.delivery(Manner::Cdi);
    for pod in ["a", "b"] {
        delivery.give(&name(pod), &given(pod, GIB)).unwrap();
    }
    let path = node.container(&name("a"), "region");
    let before = std::fs::read(&path).unwrap();
    let living = lock(&path);
    living.0.set_len(1 << 30).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();

    let cut = delivery.trim();

    let [(name_cut, Ok(bytes))] = &cut[..] else {
        panic!("{cut:?}")
    };
    assert_eq!(
        (name_cut, *bytes),
        (&name("a"), (1 << 30) - before.len() as u64)
    );
    assert_eq!(std::fs::read(&path).unwrap(), before);
    assert!(delivery.trim().is_empty());

    // The file's length does not show space that is reserved beyond its end.
    let beyond = FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(
        &living.0,
        beyond,
        i64::try_from(before.len()).unwrap(),
        64 << 20,
    )
    .unwrap();
    assert_eq!(living.0.metadata().unwrap().len(), before.len() as u64);
    let cut = delivery.trim();
    let [(name_cut, Ok(bytes))] = &cut[..] else {
        panic!("{cut:?}")
    };
    assert!(*name_cut == name("a") && *bytes >= 63 << 20, "{cut:?}");
    assert!(living.0.metadata().unwrap().blocks() * 512 < 2 * before.len() as u64);
    assert_eq!(std::fs::read(&path).unwrap(), before);
    assert!(delivery.trim().is_empty());
}
