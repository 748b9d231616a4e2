use std::cell::RefCell;

use vgpu_abi::limits::{DeviceUuid, LimitsFile};

use super::*;
use crate::gpu::group_limit::GroupLimitError;
use crate::gpu::{GpuError, GpuProcess, Inventory};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn limit(memory_bytes: u64) -> DeviceLimit {
    DeviceLimit {
        uuid: DeviceUuid::new("GPU-a").unwrap(),
        memory_bytes,
        physical_bytes: 16 * GIB,
        ..DeviceLimit::default()
    }
}

#[test]
fn limit_of_the_driver_has_room_for_a_context() {
    let resident = DeviceLimit {
        resident_bytes: GIB,
        ..limit(4 * GIB)
    };
    let small = DeviceLimit {
        physical_bytes: GIB,
        ..limit(GIB / 2)
    };
    for (limit, context, wanted) in [
        (limit(4 * GIB), 0, Some(4 * GIB + CONTEXT_MOST)),
        (limit(4 * GIB), 300 * MIB, Some(4 * GIB + 300 * MIB)),
        // A tenant wrote it.
        (limit(4 * GIB), u64::MAX, Some(4 * GIB + 4 * CONTEXT_MOST)),
        (small, 0, Some(GIB / 2 + GIB / 8)),
        (resident, 300 * MIB, Some(GIB + 300 * MIB)),
        (limit(0), 300 * MIB, None),
    ] {
        assert_eq!(limit_for(&limit, context), wanted, "{limit:?} {context}");
    }
}

#[test]
fn group_is_found_under_every_mount() {
    assert_eq!(path_in("4:memory:/x\n0::/a/b\n"), Some("/a/b"));
    assert_eq!(path_in("4:memory:/x\n"), None);
    assert_eq!(path_in("0::/../../a\n"), None);
    let mounts = "30 20 0:9 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                  31 20 0:10 / /sys/fs/cgroup/unified rw shared:1 - cgroup2 cgroup2 rw\n";
    assert_eq!(mount_in(mounts), Some("/sys/fs/cgroup/unified"));
    assert_eq!(
        mount_in("31 20 0:10 /pod /x rw - cgroup2 cgroup2 rw\n"),
        None
    );
}

#[test]
fn group_of_other_programs_is_never_limited() {
    let paths = |list: &[&str]| list.iter().map(|&path| path.to_owned()).collect::<Vec<_>>();
    let of = |list: &[&str]| common(&paths(list));

    assert_eq!(of(&["/pod/a", "/pod/a/init"]), Some("/pod/a".into()));
    assert_eq!(of(&["/pod/a", "/pod/ab"]), Some("/pod".into()));
    assert_eq!(of(&[]), None);
    assert!(may_limit(Path::new("/pod/a"), "/system/agent"));
    assert!(may_limit(Path::new("/pod/a"), "/pod/ab"));
    for group in ["/", "/pod", "/pod/a"] {
        assert!(!may_limit(Path::new(group), "/pod/a"), "{group}");
    }
}

/// A driver that keeps what it was told.
#[derive(Default)]
struct Told {
    answer: Option<GroupLimitError>,
    limits: RefCell<Vec<(PathBuf, GroupLimit)>>,
}

impl Gpus for Told {
    fn inventory(&self) -> Result<Inventory, GpuError> {
        Ok(Inventory::default())
    }

    fn processes(&self) -> Result<Vec<GpuProcess>, GpuError> {
        Ok(Vec::new())
    }

    fn limits_groups(&self) -> bool {
        true
    }

    fn limit_group(
        &self,
        uuid: &str,
        group: &Path,
        limit: GroupLimit,
    ) -> Result<(), GroupLimitError> {
        assert_eq!(uuid, "GPU-a");
        self.limits.borrow_mut().push((group.to_owned(), limit));
        self.answer.map_or(Ok(()), Err)
    }
}

fn container(directory: &Path, memory_bytes: u64) -> (Instance, Limits) {
    let limits = Limits {
        devices: vec![limit(memory_bytes)],
        ..Limits::default()
    };
    fs::create_dir_all(directory).unwrap();
    let instance = Instance::open(directory).unwrap();
    instance.fill(&limits, 0o600).unwrap();
    (instance, limits)
}

#[test]
fn limits_of_a_group_are_set_changed_and_lifted() {
    let dir = tempfile::tempdir().unwrap();
    let (instance, limits) = container(&dir.path().join("a"), GIB);
    let group = dir.path().join("group");
    fs::create_dir(&group).unwrap();
    let driver = Told::default();

    raise(&driver, &instance, &limits, None, Ok(&group), true);
    assert_eq!(
        read(&instance).unwrap().limit_bytes("GPU-a"),
        GIB + CONTEXT_MOST
    );

    let file = LimitsFile::open(&dir.path().join("a").join(LIMITS)).unwrap();
    let twice = Limits {
        devices: vec![limit(2 * GIB)],
        ..limits
    };
    file.update(|_| twice.clone()).unwrap();
    assert_eq!(renew(&driver, &instance), None);
    lower(Some(&driver), &instance);

    let told = driver.limits.borrow();
    let hard: Vec<u64> = told.iter().map(|(_, limit)| limit.hard_bytes).collect();
    assert_eq!(hard, [GIB + CONTEXT_MOST, 2 * GIB + CONTEXT_MOST, NO_LIMIT]);
    assert!(
        told.iter()
            .all(|(at, limit)| *at == group && limit.soft_bytes == 0)
    );
    assert!(!group.exists());
}

#[test]
fn refused_limit_leaves_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let (instance, limits) = container(dir.path(), GIB);
    let driver = Told {
        answer: Some(GroupLimitError::NotSupported),
        ..Told::default()
    };

    let fence = raise(&driver, &instance, &limits, None, Ok(dir.path()), false);

    assert_eq!(fence.limit_bytes("GPU-a"), 0);
    assert!(fence.devices[0].reason.contains("MIG"), "{fence:?}");
    assert_eq!(read(&instance), Some(fence));
    let fence = raise(&driver, &instance, &limits, None, Err(NO_GROUP), false);
    assert_eq!(fence.devices[0].reason, NO_GROUP);
}

#[test]
fn keeper_sets_a_fence_again_when_the_limits_change() {
    let dir = tempfile::tempdir().unwrap();
    let (instance, limits) = container(&dir.path().join("0/a"), GIB);
    container(&dir.path().join("0/shares-its-group"), GIB);
    let driver = Told::default();
    raise(&driver, &instance, &limits, None, Ok(dir.path()), false);
    let mut keeper = Keeper::default();

    assert_eq!(keeper.tick(1, &driver, dir.path()).len(), 1);
    assert_eq!(keeper.tick(2, &driver, dir.path()), []);
    assert_eq!(keeper.tick(EVERY_NS + 1, &driver, dir.path()), []);
    let file = LimitsFile::open(&dir.path().join("0/a").join(LIMITS)).unwrap();
    let twice = Limits {
        devices: vec![limit(2 * GIB)],
        ..limits
    };
    file.update(|_| twice.clone()).unwrap();
    let kept = keeper.tick(3 * EVERY_NS, &driver, dir.path());

    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].fence.limit_bytes("GPU-a"), 2 * GIB + CONTEXT_MOST);
}

/// The directory of this process's control group of version 2, if this process may make groups in it.
fn own_group() -> Option<PathBuf> {
    let own = directory(Path::new(&group_of("self")?))?;
    let probe = own.join(format!("vgpu-probe-{}", std::process::id()));
    fs::create_dir(&probe).ok()?;
    fs::remove_dir(probe).ok()?;
    nix::unistd::geteuid().is_root().then_some(own)
}

#[test]
fn keeper_finds_a_pods_group_by_the_limits_that_its_processes_see() {
    let Some(own) = own_group() else {
        println!("skipped: this process may make no control group of version 2");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (instance, _) = container(&dir.path().join("pod/web"), GIB);
    let limits = instance.path().join(LIMITS);
    // As in a container: a mount namespace in which the limits stand at their place.
    let script = format!(
        "mount -t tmpfs none /etc && mkdir /etc/vgpu && touch {INSIDE_LIMITS} \
         && mount --bind {} {INSIDE_LIMITS} && exec sleep 1000",
        limits.display()
    );
    let mut process = std::process::Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", &script])
        .spawn()
        .unwrap();
    let group = own.join(format!("vgpu-test-{}", process.id()));
    fs::create_dir(&group).unwrap();
    fs::write(group.join("cgroup.procs"), process.id().to_string()).unwrap();
    let seen = format!("/proc/{}/root{INSIDE_LIMITS}", process.id());
    let file = fs::metadata(&limits).unwrap().ino();
    for _ in 0..1000 {
        if fs::metadata(&seen).is_ok_and(|seen| seen.ino() == file) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }

    let driver = Told::default();
    let kept = Keeper::default().tick(1, &driver, dir.path());

    process.kill().unwrap();
    process.wait().unwrap();
    fs::remove_dir(&group).unwrap();
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].fence.control_group.as_ref(), Some(&group));
    assert_eq!(kept[0].fence.limit_bytes("GPU-a"), GIB + CONTEXT_MOST);
}
