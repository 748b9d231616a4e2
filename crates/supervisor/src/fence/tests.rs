use std::cell::RefCell;

use vgpu_abi::limits::{DeviceUuid, LimitsFile};

use super::*;
use crate::gpu::group_limit::GroupLimitError;
use crate::gpu::{GpuError, GpuProcess, Inventory};
use crate::instance::INSIDE;

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

    raise(
        &driver,
        &instance,
        &limits,
        None,
        Ok(std::slice::from_ref(&group)),
        true,
    );
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

    let fence = raise(
        &driver,
        &instance,
        &limits,
        None,
        Ok(&[dir.path().to_owned()]),
        false,
    );

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
    raise(
        &driver,
        &instance,
        &limits,
        None,
        Ok(&[dir.path().to_owned()]),
        false,
    );
    let mut keeper = Keeper::default();

    assert_eq!(
        keeper
            .tick(1, &driver, dir.path(), &mut ByLimits::default())
            .len(),
        1
    );
    assert_eq!(
        keeper.tick(2, &driver, dir.path(), &mut ByLimits::default()),
        []
    );
    assert_eq!(
        keeper.tick(EVERY_NS + 1, &driver, dir.path(), &mut ByLimits::default()),
        []
    );
    let file = LimitsFile::open(&dir.path().join("0/a").join(LIMITS)).unwrap();
    let twice = Limits {
        devices: vec![limit(2 * GIB)],
        ..limits
    };
    file.update(|_| twice.clone()).unwrap();
    let kept = keeper.tick(3 * EVERY_NS, &driver, dir.path(), &mut ByLimits::default());

    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].fence.limit_bytes("GPU-a"), 2 * GIB + CONTEXT_MOST);
}

/// A process in a mount namespace in which a container's limits stand at their place, as in a container.
struct Inside(std::process::Child);

impl Inside {
    fn of(instance: &Instance) -> Self {
        let script = format!(
            "mount -t tmpfs none /etc && mkdir {INSIDE} && mount --bind {} {INSIDE} && exec sleep 1000",
            instance.path().display()
        );
        let process = std::process::Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", &script])
            .spawn()
            .unwrap();
        let seen = format!("/proc/{}/root{INSIDE_LIMITS}", process.id());
        let command = format!("/proc/{}/comm", process.id());
        let file = fs::metadata(instance.path().join(LIMITS)).unwrap().ino();
        // The limits are there before the last mount command has ended. That is a process of its own, which sees them, too,
        // and stays outside of the group to which a test adds this one.
        let is_ready = || {
            fs::metadata(&seen).is_ok_and(|seen| seen.ino() == file)
                && fs::read_to_string(&command).is_ok_and(|name| name == "sleep\n")
        };
        for _ in 0..1000 {
            if is_ready() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        Self(process)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A control group for one test, which goes with it.
struct Group(PathBuf);

impl Group {
    fn add(&self, process: &Inside) {
        fs::write(self.0.join("cgroup.procs"), process.pid()).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel needs a moment for the last process.
        for _ in 0..500 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

/// A control group below this process's own, if this process may make one.
fn test_group(name: &str) -> Option<Group> {
    let own = directory(Path::new(&group_of("self")?))?;
    let group = own.join(format!("vgpu-test-{name}-{}", std::process::id()));
    if let Err(error) = fs::create_dir(&group) {
        println!("skipped: {}: {error}", group.display());
        return None;
    }
    Some(Group(group))
}

#[test]
fn keeper_finds_a_group_by_the_limits_that_its_processes_see() {
    let Some(group) = test_group("limits") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (instance, _) = container(&dir.path().join("job"), GIB);
    let process = Inside::of(&instance);
    group.add(&process);

    let driver = Told::default();
    let kept = Keeper::default().tick(1, &driver, dir.path(), &mut ByLimits::default());

    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].fence.control_groups, std::slice::from_ref(&group.0));
    assert_eq!(kept[0].fence.limit_bytes("GPU-a"), GIB + CONTEXT_MOST);
}

#[test]
fn group_with_a_process_that_sees_other_limits_is_not_limited() {
    let Some(group) = test_group("shared") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (one, _) = container(&dir.path().join("one"), GIB);
    let (other, _) = container(&dir.path().join("other"), GIB);
    let (one, other) = (Inside::of(&one), Inside::of(&other));
    group.add(&one);
    group.add(&other);

    let driver = Told::default();
    Keeper::default().tick(1, &driver, dir.path(), &mut ByLimits::default());

    assert!(driver.limits.borrow().is_empty(), "{:?}", driver.limits);
}

/// The control groups of a job of Slurm with two steps. Slurm's own process of a step is in a group beside the step's
/// tasks, and sees no limits.
struct JobGroups {
    task_0: Group,
    task_1: Group,
    // Dropped after those within them.
    _around: Vec<Group>,
    slurms: [std::process::Child; 2],
}

impl JobGroups {
    fn make() -> Option<Self> {
        let job = test_group("job")?;
        let below = |group: &Group, name: &str| {
            let group = group.0.join(name);
            fs::create_dir(&group).unwrap();
            Group(group)
        };
        let steps = [below(&job, "step_0"), below(&job, "step_1")];
        let own = [below(&steps[0], "slurm"), below(&steps[1], "slurm")];
        let slurms = own.each_ref().map(|group| {
            let process = std::process::Command::new("sleep")
                .arg("1000")
                .spawn()
                .unwrap();
            fs::write(group.0.join("cgroup.procs"), process.id().to_string()).unwrap();
            process
        });
        let users = [below(&steps[0], "user"), below(&steps[1], "user")];
        let (task_0, task_1) = (below(&users[0], "task_0"), below(&users[1], "task_0"));
        let mut around: Vec<Group> = users.into_iter().chain(own).collect();
        around.extend(steps);
        around.push(job);
        Some(Self {
            task_0,
            task_1,
            _around: around,
            slurms,
        })
    }
}

impl Drop for JobGroups {
    fn drop(&mut self) {
        for process in &mut self.slurms {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }
}

#[test]
fn each_step_of_a_job_is_behind_the_second_fence() {
    let Some(groups) = JobGroups::make() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (instance, _) = container(&dir.path().join("slurm-7"), GIB);
    fs::write(
        instance.path().join("container.json"),
        r#"{"slurm": {"id": 7}}"#,
    )
    .unwrap();
    let (driver, mut keeper) = (Told::default(), Keeper::default());
    let mut look = |second: u64| {
        keeper.tick(
            second * EVERY_NS,
            &driver,
            dir.path(),
            &mut ByLimits::default(),
        );
        read(&instance)
            .map(|fence| fence.control_groups)
            .unwrap_or_default()
    };

    let first = Inside::of(&instance);
    groups.task_0.add(&first);
    assert_eq!(look(1), [groups.task_0.0.as_path()], "the first step");

    let second = Inside::of(&instance);
    groups.task_1.add(&second);
    assert_eq!(
        look(2),
        [groups.task_0.0.as_path(), groups.task_1.0.as_path()],
        "a step beside it"
    );

    drop(first);
    assert_eq!(
        look(3),
        [groups.task_1.0.as_path()],
        "the second step alone"
    );
    drop(second);
    assert!(look(4).is_empty(), "no step");
}

#[test]
fn fence_follows_the_groups_that_are_found() {
    let groups = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
    let limited = Fence {
        control_groups: groups(&["/a"]),
        ..Fence::default()
    };
    let told = Fence::default();
    let found = |names: &[&str]| FoundGroups::Groups(groups(names));
    let unseen = FoundGroups::Unseen("no mount");
    for (found, known, is_set, is_lost, wanted) in [
        (
            found(&["/a"]),
            None,
            false,
            true,
            FenceStep::Set(groups(&["/a"])),
        ),
        (
            found(&["/a"]),
            Some(&limited),
            true,
            true,
            FenceStep::Nothing,
        ),
        // New limits, another group, or a minute later.
        (
            found(&["/a"]),
            Some(&limited),
            false,
            true,
            FenceStep::Set(groups(&["/a"])),
        ),
        (
            found(&["/a", "/b"]),
            Some(&limited),
            false,
            true,
            FenceStep::Set(groups(&["/a", "/b"])),
        ),
        // Another process has taken the file away.
        (
            found(&["/a"]),
            None,
            true,
            true,
            FenceStep::Set(groups(&["/a"])),
        ),
        (
            FoundGroups::Gone,
            Some(&limited),
            true,
            false,
            FenceStep::Forget,
        ),
        (
            FoundGroups::Gone,
            Some(&told),
            false,
            false,
            FenceStep::Nothing,
        ),
        (FoundGroups::Gone, None, false, false, FenceStep::Nothing),
        (
            FoundGroups::Gone,
            None,
            false,
            true,
            FenceStep::Tell(NO_GROUP),
        ),
        // What another process has set is not undone by one that cannot see.
        (
            unseen.clone(),
            Some(&limited),
            false,
            true,
            FenceStep::Nothing,
        ),
        (
            unseen.clone(),
            None,
            false,
            true,
            FenceStep::Tell("no mount"),
        ),
        (unseen.clone(), Some(&told), false, true, FenceStep::Nothing),
        (unseen, None, false, false, FenceStep::Nothing),
    ] {
        let said = format!("{found:?} {known:?} {is_set} {is_lost}");
        assert_eq!(step(found, known, is_set, is_lost), wanted, "{said}");
    }
}

/// A finder that says what it is told.
struct Says(FoundGroups);

impl Finder for Says {
    fn begin(&mut self, _: u64, _: &[Instance]) {}

    fn find(&mut self, _: &Instance, _: &[PathBuf]) -> FoundGroups {
        self.0.clone()
    }
}

#[test]
fn fence_of_a_container_that_ended_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let (instance, _) = container(&dir.path().join("0/a"), GIB);
    let driver = Told::default();
    let mut keeper = Keeper::default();
    let mut tick = |second, found| {
        keeper
            .tick(second * EVERY_NS, &driver, dir.path(), &mut Says(found))
            .len()
    };
    let groups = || FoundGroups::Groups(vec!["/a".into(), "/b".into()]);

    assert_eq!(tick(1, groups()), 1);
    assert_eq!(driver.limits.borrow().len(), 2);
    assert_eq!(read(&instance).unwrap().control_groups.len(), 2);
    assert_eq!(tick(2, FoundGroups::Gone), 0);
    assert_eq!(read(&instance), None);
    // It was started again.
    assert_eq!(tick(3, groups()), 1);
    // The limit is set again after a minute, in case the driver was loaded anew, and that is no news.
    assert_eq!(tick(62, groups()), 0);
    assert_eq!(driver.limits.borrow().len(), 4);
    assert_eq!(tick(63, groups()), 0);
    assert_eq!(driver.limits.borrow().len(), 6);
}
