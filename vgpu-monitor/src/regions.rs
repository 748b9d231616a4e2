//! Containers as they are shown: which part of a directory's data is trusted, and the name under which each
//! container appears, so that no two series are the same.
//!
//! Never reads a tenant's file itself: `supervisor` does, by `pread`, and clamps. Never lets one owner of
//! directories use up the time or the room of the others.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use supervisor::gpu::Gpu;
use supervisor::instance::{self, Broken, InstanceError, Workload};
use supervisor::view::{self, ClaimView, ContainerView, DeviceView};

use vgpu_abi::host::ComputeSnapshot;
use vgpu_abi::limits::Policy;

use crate::exporter::{Compute, Device, Instance, ShownClaim, ShownContainer, Work};
use crate::gpu::DriverAnswer;
use crate::reconcile::{self, Owners};

/// The allowed cost of reading one owner's containers in one look, for owners other than root and ourselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Containers of one owner.
    pub containers: usize,
    /// Time for one owner.
    pub time: Duration,
}

impl Default for Budget {
    /// More than a person starts, and less than a scrape waits.
    fn default() -> Self {
        Self {
            containers: 512,
            time: Duration::from_millis(500),
        }
    }
}

/// A container, where it was found, and what the next look wants to know of this one.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// The container as it is shown.
    pub shown: ShownContainer,
    /// Its directory.
    pub path: PathBuf,
    /// Uid that owns the directory.
    pub owner: u32,
    /// When it was made, seconds since 1970.
    pub created_unix: u64,
    /// The workload under which metrics sum up the container's use; empty where the directory's owner is not trusted.
    pub workload: Workload,
    /// By device: launches, and GPU time used in nanoseconds.
    pub work: Vec<(u64, u64)>,
}

/// Everything below a root.
#[derive(Debug, Default)]
pub struct Census {
    /// Containers; no two have the same namespace, pod and container.
    pub found: Vec<Found>,
    /// Directories that look like containers and could not be shown; the first 1,000.
    pub broken: Vec<Broken>,
    /// Directories that this process may not read; the first 1,000.
    pub unreadable: Vec<PathBuf>,
    /// Containers that would have had another one's name.
    pub duplicates: Vec<PathBuf>,
    /// Containers beyond their owner's budget.
    pub beyond_budget: u64,
}

/// Reads everything below the root. A root that is not there yet holds no container. `answer` is the driver's
/// answer; the owners name the containers of processes that hold no slot; `now_ns` is the monotonic
/// clock.
///
/// # Errors
/// The root is there and cannot be read.
pub fn read(
    root: &Path,
    answer: Option<(&DriverAnswer, &Owners)>,
    our_uid: u32,
    now_ns: u64,
    budget: Budget,
) -> Result<Census, InstanceError> {
    let mut census = Census::default();
    let mut spent: HashMap<u32, (usize, Duration)> = HashMap::new();
    let mut broken = Vec::new();
    let scan = instance::scan(root, &mut |instance| {
        let owner = instance.owner();
        let begun = Instant::now();
        let (containers, time) = spent.entry(owner).or_default();
        let is_over = *containers >= budget.containers || *time >= budget.time;
        if is_over && owner != 0 && owner != our_uid {
            census.beyond_budget = census.beyond_budget.saturating_add(1);
            return;
        }
        match view::read(&instance) {
            // Only what is shown is kept: a region may name a thousand processes.
            Ok(view) => census.found.extend(found(view, answer, our_uid, now_ns)),
            Err(reason) => broken.push(Broken {
                path: instance.path().to_owned(),
                reason: reason.to_string(),
            }),
        }
        *containers = containers.saturating_add(1);
        *time = time.saturating_add(begun.elapsed());
    });
    let scan = match scan {
        Err(error) if error.errno() == Some(Errno::ENOENT) => instance::Scan::default(),
        scan => scan?,
    };
    census.broken = broken;
    census.broken.extend(scan.broken);
    census.unreadable = scan.unreadable;
    census.settle_names();
    Ok(census)
}

impl Census {
    /// Gives each container a unique name. If containers of several users have the same one, the owner with
    /// the smallest uid keeps it (that owner's newest container), and the others are shown as `UID/NAME`.
    fn settle_names(&mut self) {
        let place = |found: &Found| {
            let newest_first = Reverse(found.created_unix);
            (found.owner, newest_first, found.path.clone())
        };
        self.found.sort_by_cached_key(place);
        let mut taken: HashSet<[String; 3]> = HashSet::with_capacity(self.found.len());
        let duplicates = &mut self.duplicates;
        self.found.retain_mut(|found| {
            let ShownContainer {
                namespace,
                pod,
                container,
                processes,
                ..
            } = &mut found.shown;
            // The directory of an earlier pod of the same name, unused by any process: it is removed within a minute.
            let is_left = *processes == 0 && !pod.is_empty();
            if is_left && taken.contains(&[namespace.clone(), pod.clone(), container.clone()]) {
                return false;
            }
            let names = [container.clone(), format!("{}/{container}", found.owner)];
            let free = names
                .into_iter()
                .find(|name| taken.insert([namespace.clone(), pod.clone(), name.clone()]));
            let Some(free) = free else {
                duplicates.push(found.path.clone());
                return false;
            };
            *container = free;
            true
        });
    }
}

/// A container as it is shown, with the driver's figures; nothing for what a killed run left behind.
///
/// Namespace and pod are trusted if root or `our_uid` owns the directory: any user can create a directory on
/// a shared board and write any pod's name into it.
fn found(
    mut view: ContainerView,
    answer: Option<(&DriverAnswer, &Owners)>,
    our_uid: u32,
    now_ns: u64,
) -> Option<Found> {
    if is_over(&view) {
        return None;
    }
    let reaches = answer
        .is_none_or(|(answer, owners)| reconcile::is_reached(&view, &answer.processes, owners));
    if let Some((answer, owners)) = answer {
        view.account(&answer.processes);
        reconcile::add_slotless(&mut view, &answer.processes, owners);
    }
    let answer = answer.map(|(answer, _)| answer);
    let trusted = view.owner == 0 || view.owner == our_uid;
    let believed = |text: &str| {
        if trusted {
            text.to_owned()
        } else {
            String::new()
        }
    };
    let name = if view.container.is_empty() {
        &view.name
    } else {
        &view.container
    };
    Some(Found {
        shown: ShownContainer {
            namespace: believed(&view.namespace),
            pod: believed(&view.pod),
            container: name.clone(),
            claim: view.claim.as_ref().filter(|_| trusted).map(claim),
            devices: view
                .devices
                .iter()
                .map(|d| device(&view, d, answer, reaches, now_ns))
                .collect(),
            processes: view.processes.len() as u64,
            ooms: view.oom_count,
            refused: view.refused,
            waits_expired: view.waits_ran_out,
            hook_calls: view.hook_calls.clone(),
            priority: view.priority,
            policy: policy(view.policy),
            arbiter_age: arbiter_age(&view, now_ns),
        },
        owner: view.owner,
        created_unix: view.created_unix,
        workload: if trusted {
            view.workload.clone()
        } else {
            Workload::default()
        },
        work: view
            .devices
            .iter()
            .map(|d| (launches(&d.compute), d.busy_ns))
            .collect(),
        path: view.path,
    })
}

/// A directory that a killed `vgpu run` left behind; the next run removes it.
fn is_over(view: &ContainerView) -> bool {
    view.runner_alive == Some(false)
        && view.processes.is_empty()
        && view.devices.iter().all(|device| device.used_bytes == 0)
}

fn claim(claim: &ClaimView) -> ShownClaim {
    ShownClaim {
        name: claim.name.clone(),
        uid: claim.uid.clone(),
    }
}

fn policy(policy: Policy) -> &'static str {
    match policy {
        Policy::Default => "default",
        Policy::Force => "force",
        Policy::Floor => "floor",
        Policy::Disable => "disable",
    }
}

fn launches(compute: &ComputeSnapshot) -> u64 {
    compute.launches.saturating_add(compute.graph_launches)
}

/// Time since the arbiter's last heartbeat; `None` if there never was one.
fn arbiter_age(view: &ContainerView, now_ns: u64) -> Option<Duration> {
    let at_ns = view.arbiter_at_ns;
    (at_ns != 0).then(|| Duration::from_nanos(now_ns.saturating_sub(at_ns)))
}

/// Older data of an arbiter is not used.
const STALE: Duration = Duration::from_secs(2);

fn compute(view: &ContainerView, device: &DeviceView, now_ns: u64) -> Compute {
    let ratio = |permille: u32| f64::from(permille) / 1000.0;
    let seen = arbiter_age(view, now_ns)
        .is_some_and(|age| age <= STALE)
        .then_some(device.seen);
    let asked = match device.core_percent {
        0 | 100.. => 100,
        percent => percent,
    };
    let told = &device.compute;
    let has_worked = launches(told) > 0 || told.copies > 0 || told.host_functions > 0;
    Compute {
        asked: Some(ratio(asked * 10)),
        floor: (device.floor_percent > 0).then(|| ratio(device.floor_percent * 10)),
        granted: seen.and_then(|seen| Some(ratio(seen.granted_permille?.into()))),
        used: seen.and_then(|seen| Some(ratio(seen.used_permille?.into()))),
        waiting: seen.map(|seen| ratio(seen.throttled_permille.into())),
        waits_for_turn: seen.is_some_and(|seen| seen.waits_for_turn),
        work: has_worked.then(|| Work {
            busy: Duration::from_nanos(device.busy_ns),
            throttled: Duration::from_nanos(told.throttled_ns),
            waits: told.waits,
            waited: device.waits,
            kernels: told.launches,
            graphs: told.graph_launches,
            copies: told.copies,
            copied_bytes: told.copy_bytes,
            host_functions: told.host_functions,
        }),
    }
}

fn device(
    view: &ContainerView,
    device: &DeviceView,
    answer: Option<&DriverAnswer>,
    reaches: bool,
    now_ns: u64,
) -> Device {
    let gpu = answer.and_then(|answer| {
        answer
            .inventory
            .gpus
            .iter()
            .find(|gpu| !device.uuid.is_empty() && gpu.uuid == device.uuid)
    });
    let instance = answer.and_then(|answer| {
        let mut instances = answer.inventory.gpus.iter().flat_map(|gpu| &gpu.instances);
        instances.find(|instance| instance.uuid == device.uuid)
    });
    let sizes = [
        device.limit_bytes,
        device.physical_bytes,
        gpu.map_or(0, |gpu| gpu.memory_bytes),
    ];
    Device {
        index: device.index,
        uuid: device.uuid.clone(),
        used_bytes: device.used_bytes,
        limit_bytes: sizes.into_iter().find(|bytes| *bytes != 0),
        context_bytes: device.context_bytes,
        module_bytes: device.module_bytes,
        buffer_bytes: device.buffer_bytes,
        ended_bytes: device.ended_bytes,
        utilization_percent: gpu
            .zip(answer)
            .and_then(|(gpu, answer)| utilization(view, device, gpu, answer)),
        since_launch: Some(device.compute.last_launch_ns)
            .filter(|at_ns| *at_ns != 0)
            .map(|at_ns| Duration::from_nanos(now_ns.saturating_sub(at_ns))),
        compute: compute(view, device, now_ns),
        oversubscribed_bytes: (device.resident_bytes != 0 || device.oversubscribed_bytes != 0)
            .then_some(device.oversubscribed_bytes),
        unaccounted_bytes: gpu.map(|_| device.unaccounted_bytes),
        driver_limit_bytes: (device.driver_limit_bytes != 0).then_some(device.driver_limit_bytes),
        fences: device.fences(reaches),
        pending_shrink: device.pending_shrink,
        instance: instance.map(|instance| Instance {
            profile: instance.profile.clone(),
            ids: instance.ids,
        }),
    }
}

/// The sum over the container's processes. Where the driver says how busy the GPU is, a process without a
/// sample was idle; where it does not (a GPU that is split), the use is unknown.
fn utilization(
    view: &ContainerView,
    device: &DeviceView,
    gpu: &Gpu,
    answer: &DriverAnswer,
) -> Option<f64> {
    let pids: HashSet<u32> = view.processes.iter().filter_map(|p| p.host_pid).collect();
    let held = answer
        .processes
        .iter()
        .filter(|process| process.uuid == device.uuid && pids.contains(&process.pid));
    let measured = held
        .filter_map(|process| process.utilization_percent)
        .map(f64::from)
        .reduce(|sum, percent| sum + percent);
    measured.or_else(|| gpu.utilization_percent.map(|_| 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use supervisor::gpu::{GpuProcess, Inventory, MigInstance};
    use supervisor::view::ProcessView;

    fn container(owner: u32, path: &str, name: &str) -> ContainerView {
        ContainerView {
            path: PathBuf::from(path),
            owner,
            name: name.to_owned(),
            namespace: String::new(),
            pod: String::new(),
            container: name.to_owned(),
            pod_uid: String::new(),
            workload: Workload::default(),
            claim: None,
            command: Vec::new(),
            created_unix: 0,
            runner_pid: 0,
            runner_alive: None,
            outer_limits: None,
            limits_generation: 1,
            priority: 0,
            policy: Policy::Default,
            arbiter_at_ns: 0,
            devices: Vec::new(),
            processes: Vec::new(),
            ooms: Vec::new(),
            oom_count: 0,
            refused: 0,
            waits_ran_out: 0,
            hook_calls: Vec::new(),
            counters: vgpu_abi::host::Counters::default(),
            unaccounted_bytes: 0,
        }
    }

    fn device_of(uuid: &str) -> DeviceView {
        DeviceView {
            index: 0,
            uuid: uuid.to_owned(),
            limit_bytes: 0,
            physical_bytes: 0,
            core_percent: 0,
            used_bytes: 100,
            context_bytes: 0,
            module_bytes: 0,
            buffer_bytes: 100,
            ended_bytes: 0,
            shared_bytes: 0,
            pending_bytes: 0,
            pending_shrink: false,
            floor_percent: 0,
            resident_bytes: 0,
            oversubscribed_bytes: 0,
            credit_ns: 0,
            busy_ns: 0,
            compute: ComputeSnapshot::default(),
            waits: vgpu_abi::waits::Waits::default(),
            seen: vgpu_abi::targets::ComputeStatus::default(),
            unaccounted_bytes: 0,
            driver_limit_bytes: 0,
            driver_limit_reason: String::new(),
        }
    }

    fn process(host_pid: u32) -> ProcessView {
        ProcessView {
            slot: 0,
            pid: 1,
            host_pid: Some(host_pid),
            name: String::new(),
            joined_unix: 0,
            devices: Vec::new(),
            hook_calls: 0,
        }
    }

    fn gpu(uuid: &str) -> Gpu {
        Gpu {
            index: 0,
            uuid: uuid.to_owned(),
            name: "NVIDIA T".to_owned(),
            memory_bytes: 1000,
            used_bytes: 0,
            utilization_percent: None,
            memory_utilization_percent: None,
            instances: Vec::new(),
        }
    }

    fn held(uuid: &str, pid: u32, used: u64, busy: Option<u32>) -> GpuProcess {
        GpuProcess {
            uuid: uuid.to_owned(),
            pid,
            used_bytes: Some(used),
            utilization_percent: busy,
        }
    }

    fn census(views: Vec<ContainerView>, answer: Option<&DriverAnswer>, our_uid: u32) -> Census {
        let no_owners = Owners::new();
        let answer = answer.map(|answer| (answer, &no_owners));
        let found = views
            .into_iter()
            .filter_map(|v| found(v, answer, our_uid, 0));
        let mut census = Census {
            found: found.collect(),
            ..Census::default()
        };
        census.settle_names();
        census
    }

    fn names(census: &Census) -> Vec<String> {
        let name = |found: &Found| {
            let ShownContainer {
                namespace,
                pod,
                container,
                ..
            } = &found.shown;
            format!("{namespace}|{pod}|{container}")
        };
        census.found.iter().map(name).collect()
    }

    #[test]
    fn recreated_pod_is_shown_instead_of_the_old_one() {
        let of_pod = |path: &str, created_unix| ContainerView {
            pod: "train".to_owned(),
            created_unix,
            ..container(0, path, "main")
        };
        let views = vec![of_pod("/r/a-dead", 100), of_pod("/r/b-new", 200)];

        let census = census(views, None, 0);

        assert_eq!(names(&census), ["|train|main"]);
        assert_eq!(census.found[0].path, PathBuf::from("/r/b-new"));
        assert_eq!(census.duplicates, Vec::<PathBuf>::new());
    }

    #[test]
    fn same_name_of_two_users_is_shown_for_both() {
        let views = vec![
            container(1000, "/r/1000/train", "train"),
            container(7, "/r/7/train", "train"),
            container(7, "/r/7/x", "1000/train"),
        ];

        let census = census(views, None, 0);

        assert_eq!(names(&census), ["||train", "||1000/train"]);
        assert_eq!(census.duplicates, [PathBuf::from("/r/1000/train")]);
    }

    #[test]
    fn same_container_name_in_two_pods_is_no_conflict() {
        let mut a = container(0, "/r/a", "main");
        let mut b = container(0, "/r/b", "main");
        (a.namespace, a.pod) = ("prod".to_owned(), "one".to_owned());
        (b.namespace, b.pod) = ("prod".to_owned(), "two".to_owned());

        assert_eq!(
            names(&census(vec![a, b], None, 0)),
            ["prod|one|main", "prod|two|main"]
        );
    }

    #[test]
    fn pod_labels_are_trusted_only_from_root_and_own_user() {
        let forge = |owner: u32| {
            let mut view = container(owner, &format!("/r/{owner}"), &format!("c{owner}"));
            (view.namespace, view.pod) = ("prod".to_owned(), "payments".to_owned());
            view.claim = Some(ClaimView::default());
            view
        };

        let census = census(vec![forge(0), forge(500), forge(1000)], None, 500);

        assert_eq!(
            names(&census),
            ["prod|payments|c0", "prod|payments|c500", "||c1000"]
        );
        let claims = census.found.iter().map(|it| it.shown.claim.is_some());
        assert_eq!(claims.collect::<Vec<_>>(), [true, true, false]);
    }

    #[test]
    fn killed_runs_directory_is_shown_only_while_it_holds_memory() {
        let mut left = container(1, "/r/1/left", "left");
        left.runner_alive = Some(false);
        let mut holds = left.clone();
        holds.name = "holds".to_owned();
        holds.container = "holds".to_owned();
        holds.devices = vec![device_of("GPU-1")];

        assert_eq!(names(&census(vec![left, holds], None, 0)), ["||holds"]);
    }

    #[test]
    fn driver_figures_fill_in_the_view() {
        let mut view = container(0, "/r/a", "a");
        view.devices = vec![device_of("GPU-1"), device_of("MIG-1"), device_of("GPU-9")];
        view.processes = vec![process(11), process(12)];
        let mut whole = gpu("GPU-1");
        whole.instances = vec![MigInstance {
            uuid: "MIG-1".to_owned(),
            profile: "1g.5gb".to_owned(),
            ids: Some((7, 0)),
        }];
        let answer = DriverAnswer {
            inventory: Inventory {
                gpus: vec![whole],
                faults: Vec::new(),
            },
            processes: vec![
                held("GPU-1", 11, 150, Some(60)),
                held("GPU-1", 12, 0, Some(50)),
                held("GPU-1", 13, 900, Some(9)),
                held("GPU-2", 11, 900, Some(9)),
            ],
        };

        let census = census(vec![view], Some(&answer), 0);

        let [on_gpu, on_instance, elsewhere] = &census.found[0].shown.devices[..] else {
            panic!("three devices")
        };
        assert_eq!(on_gpu.utilization_percent, Some(110.0));
        assert_eq!(on_gpu.limit_bytes, Some(1000), "no limit: the GPU's size");
        assert_eq!(on_gpu.unaccounted_bytes, Some(150));
        assert_eq!(on_instance.instance.as_ref().unwrap().profile, "1g.5gb");
        assert_eq!(
            on_instance.utilization_percent, None,
            "the driver says nothing of instances"
        );
        assert_eq!(
            (elsewhere.limit_bytes, elsewhere.unaccounted_bytes),
            (None, None)
        );
    }

    #[test]
    fn fences_that_hold_are_shown() {
        let fences = |limit_bytes, driver_limit_bytes, owner_of_12: &str| {
            let mut view = container(0, "/r/a", "a");
            view.devices = vec![DeviceView {
                limit_bytes,
                driver_limit_bytes,
                ..device_of("GPU-1")
            }];
            view.processes = vec![process(11)];
            let answer = DriverAnswer {
                inventory: Inventory::default(),
                processes: vec![held("GPU-1", 11, 1, None), held("GPU-1", 12, 1, None)],
            };
            let owners = Owners::from([
                (11, PathBuf::from("/r/a")),
                (12, PathBuf::from(owner_of_12)),
            ]);
            let found = found(view, Some((&answer, &owners)), 0, 0).unwrap();
            found.shown.devices[0].fences
        };

        assert_eq!(fences(100, 150, "/r/b"), "both");
        assert_eq!(fences(100, 0, "/r/b"), "library");
        assert_eq!(fences(0, 0, "/r/b"), "none");
        // A process of the container holds memory and has no slot.
        assert_eq!(fences(100, 150, "/r/a"), "driver");
        assert_eq!(fences(100, 0, "/r/a"), "none");
    }

    #[test]
    fn resting_container_is_idle_and_unmeasured_one_unknown() {
        let mut view = container(0, "/r/a", "a");
        view.devices = vec![device_of("GPU-1")];
        view.processes = vec![process(11)];
        let busy = |of_gpu: Option<u32>, of_process: Option<u32>| {
            let mut gpu = gpu("GPU-1");
            gpu.utilization_percent = of_gpu;
            let inventory = Inventory {
                gpus: vec![gpu],
                faults: Vec::new(),
            };
            let answer = DriverAnswer {
                inventory,
                processes: vec![held("GPU-1", 11, 1, of_process)],
            };
            let census = census(vec![view.clone()], Some(&answer), 0);
            census.found[0].shown.devices[0].utilization_percent
        };

        assert_eq!(busy(Some(90), Some(40)), Some(40.0));
        assert_eq!(busy(Some(90), None), Some(0.0));
        assert_eq!(busy(None, None), None);
        assert_eq!(
            census(vec![view], None, 0).found[0].shown.devices[0].utilization_percent,
            None
        );
    }
}
