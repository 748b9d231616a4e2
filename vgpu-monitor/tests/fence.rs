//! `vgpu-monitor fence` on control groups of version 2, named as the kubelet names those of pods, with the simulated
//! driver: it sets the driver's limit on the group of each container, follows changes, and forgets containers that ended.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test: a panic is its answer, and why it is skipped is printed"
)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use cuda_sim::Config;
use cuda_sim::groups::Groups;
use supervisor::fence;
use supervisor::instance::{ClaimLabel, Instance, Labels};
use vgpu_abi::limits::{DeviceLimit, DeviceUuid, Limits, LimitsFile};

use crate::common::agent::{Agent, command};
use crate::harness::built;
use crate::waiting::until;

const GIB: u64 = 1 << 30;
/// What is added for a context that has not been measured.
const CONTEXT: u64 = 640 << 20;
const POD: &str = "0a1b2c3d-1111-2222-3333-444455556666";
const OTHER: &str = "ffffffff-1111-2222-3333-444455556666";

/// A node with control groups of its own, and the process that keeps its fences.
struct World {
    folder: tempfile::TempDir,
    groups: PathBuf,
    board: cuda_sim::Board,
    keeper: Option<Child>,
}

impl World {
    /// `None`, with the reason printed, where this user cannot make control groups of version 2.
    fn new(test: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mut mounts = mounts.lines().filter(|line| line.contains(" - cgroup2 "));
        let mount = mounts.find_map(|line| line.split(' ').nth(4));
        let groups = Path::new(mount.unwrap_or("/nowhere"));
        let groups = groups.join(format!("vgpu-test-{test}-{}", std::process::id()));
        if let Err(error) = fs::create_dir(&groups) {
            println!("skipped: {}: {error}", groups.display());
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        for dir in ["sim", "containers"] {
            fs::create_dir(folder.path().join(dir)).unwrap();
        }
        let library = folder.path().join("sim/libnvidia-ml.so.1");
        symlink(built("libnvidia_ml.so"), library).unwrap();
        let config = Config {
            memory_bytes: vec![16 * GIB],
            driver_version: 13_040,
            ..Config::default()
        };
        let board = cuda_sim::Board::create(&folder.path().join("board"), &config).unwrap();
        Some(Self {
            folder,
            groups,
            board,
            keeper: None,
        })
    }

    fn containers(&self) -> PathBuf {
        self.folder.path().join("containers")
    }

    /// A container's directory, as the plugin makes it, with 4 GiB.
    fn container(&self, name: &str, labels: &Labels) -> Instance {
        let limits = Limits {
            devices: vec![DeviceLimit {
                uuid: DeviceUuid::new(&self.board.uuid(0)).unwrap(),
                memory_bytes: 4 * GIB,
                physical_bytes: 16 * GIB,
                ..DeviceLimit::default()
            }],
            ..Limits::default()
        };
        let parent = fs::File::open(self.containers()).unwrap().into();
        let made = Instance::create(&parent, &self.containers(), name, labels).unwrap();
        made.0.fill(&limits, 0o666).unwrap();
        made.0
    }

    /// A group of a pod, by its path below the host's.
    fn group(&self, path: &str) -> PathBuf {
        let group = self.groups.join(path);
        fs::create_dir_all(&group).unwrap();
        group
    }

    /// A process in this group that sees what a container sees; without an instance, as a pod's pause process.
    fn process(&self, group: &Path, instance: Option<&Instance>) -> Process {
        let mounts = instance.map_or_else(String::new, |instance| {
            let directory = instance.path().display();
            format!("mount -t tmpfs none /etc && mkdir /etc/vgpu && mount --bind {directory} /etc/vgpu &&")
        });
        // As a runtime does: into the group first, then the mounts.
        let procs = group.join("cgroup.procs");
        let script = format!("echo $$ > {} && {mounts} exec sleep 1000", procs.display());
        let child = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", &script])
            .spawn()
            .unwrap();
        Process(child)
    }

    /// Starts the process that keeps the fences.
    fn keep(&mut self) {
        let root = format!("--root={}", self.containers().display());
        let groups = format!("--control-groups={}", self.groups.display());
        let keeper = command(&["fence", &root, &groups])
            .env("LD_LIBRARY_PATH", self.folder.path().join("sim"))
            .env("VGPU_SIM_BOARD", self.folder.path().join("board"))
            .stdout(std::process::Stdio::inherit())
            .stderr(std::process::Stdio::inherit())
            .spawn();
        self.keeper = Some(keeper.unwrap());
    }

    /// The limit that the simulated driver shows to a group; `None` if there is none.
    fn limit(&self, group: &Path) -> Option<u64> {
        let groups = Groups::of(group).unwrap();
        self.board.seen_from(0, &groups).map(|(limit, _)| limit)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(keeper) = &mut self.keeper {
            keeper.kill().unwrap();
            keeper.wait().unwrap();
        }
        remove_groups(&self.groups);
    }
}

/// Removes a group with those below it. The kernel needs a moment for the last process.
fn remove_groups(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|it| it.is_dir()) {
            remove_groups(&entry.path());
        }
    }
    for _ in 0..500 {
        if fs::remove_dir(group).is_ok() || !group.exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn labels(container: &str, pod_uid: &str) -> Labels {
    Labels {
        namespace: String::from("ml"),
        pod: String::from("train"),
        container: container.to_owned(),
        pod_uid: pod_uid.to_owned(),
        ..Labels::default()
    }
}

fn fenced(instance: &Instance) -> u64 {
    let fence = fence::read(instance).unwrap_or_default();
    fence.devices.first().map_or(0, |device| device.limit_bytes)
}

#[test]
fn pods_group_is_limited_followed_and_forgotten() {
    let Some(mut world) = World::new("pod") else {
        return;
    };
    let web = world.container("a1", &labels("web", POD));
    let waits = world.container("b2", &labels("waits", POD));
    let slice = format!(
        "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice",
        POD.replace('-', "_")
    );
    let pause = world.group(&format!("{slice}/cri-containerd-0000.scope"));
    let group = world.group(&format!("{slice}/cri-containerd-aaaa.scope"));
    let foreign = world.group(&format!("kubepods/pod{OTHER}/bbbb"));
    let _pause = world.process(&pause, None);
    // A process of another pod that sees these limits all the same.
    let _foreign = world.process(&foreign, Some(&web));
    let process = world.process(&group, Some(&web));
    world.keep();

    until("the container's group is limited", || {
        fenced(&web) == 4 * GIB + CONTEXT
    });
    assert_eq!(world.limit(&group), Some(4 * GIB + CONTEXT));
    assert_eq!(
        fence::read(&web).unwrap().control_groups,
        std::slice::from_ref(&group)
    );
    assert_eq!(fence::read(&waits), None);
    for other in [&pause, &foreign, &group.parent().unwrap().to_owned()] {
        assert_eq!(world.limit(other), None, "{}", other.display());
    }
    let sim = world.folder.path().join("sim");
    let board = world.folder.path().join("board");
    let variables = [
        ("LD_LIBRARY_PATH", sim.as_path()),
        ("VGPU_SIM_BOARD", &board),
    ];
    let exporter = Agent::start_in(
        &world.containers(),
        &["--no-fence", "--no-arbiter"],
        &variables,
    );
    let shown = exporter.series("vgpu_container_memory_fences_info");
    let of = |container: &str| {
        let name = format!("container=\"{container}\"");
        shown
            .iter()
            .find(|line| line.contains(&name))
            .cloned()
            .unwrap()
    };
    assert!(of("web").contains("fences=\"both\""), "{shown:?}");
    assert!(of("waits").contains("fences=\"library\""), "{shown:?}");

    let file = LimitsFile::open(&web.path().join("limits")).unwrap();
    file.update(|limits| {
        let mut limits = limits.unwrap();
        limits.devices[0].memory_bytes = 6 * GIB;
        limits
    })
    .unwrap();
    until("the limit follows", || {
        world.limit(&group) == Some(6 * GIB + CONTEXT)
    });

    drop(process);
    remove_groups(&group);
    until("the fence is forgotten", || fence::read(&web).is_none());
    // The container is started again, in a group of another name.
    let again = world.group(&format!("{slice}/cri-containerd-cccc.scope"));
    let _again = world.process(&again, Some(&web));
    until("the new group is limited", || {
        fenced(&web) == 6 * GIB + CONTEXT
    });
    assert_eq!(world.limit(&again), Some(6 * GIB + CONTEXT));
}

#[test]
fn containers_that_share_a_claim_are_limited_each() {
    let Some(mut world) = World::new("claim") else {
        return;
    };
    let claim = ClaimLabel {
        pods: vec![POD.to_owned(), OTHER.to_owned()],
        ..ClaimLabel::default()
    };
    let labels = Labels {
        claim: Some(claim),
        ..labels("web", POD)
    };
    let shared = world.container("c3", &labels);
    // As runc names groups without systemd, and as crun does with it.
    let one = world.group(&format!("kubepods/pod{POD}/aaaa"));
    let slice = format!(
        "kubepods.slice/kubepods-pod{}.slice",
        OTHER.replace('-', "_")
    );
    let other = world.group(&format!("{slice}/crio-bbbb.scope/container"));
    let _one = world.process(&one, Some(&shared));
    world.keep();
    until("the first group is limited", || {
        fenced(&shared) == 4 * GIB + CONTEXT
    });

    let _other = world.process(&other, Some(&shared));

    until("both groups are limited", || {
        let found = fence::read(&shared).unwrap_or_default().control_groups;
        found == [one.clone(), other.clone()]
    });
    for group in [&one, &other] {
        assert_eq!(world.limit(group), Some(4 * GIB + CONTEXT));
    }
    assert_eq!(world.limit(&world.groups.join("kubepods")), None);
}
