//! Containers as they are shown: which of what a directory says is believed, and under which name
//! each stands, so that no two series are the same.
//!
//! Never reads a tenant's file itself: `supervisor` does, by `pread`, and clamps.

use std::collections::HashSet;
use std::path::Path;

use nix::errno::Errno;
use supervisor::instance::InstanceError;
use supervisor::view::{self, ContainerView, DeviceView, Views};

use crate::exporter::{Container, Device, Instance};
use crate::gpu::Answer;

/// Reads everything below the root. One that is not there yet holds no container.
///
/// # Errors
/// The root is there and cannot be read.
pub fn read(root: &Path) -> Result<Views, InstanceError> {
    match view::read_all(root) {
        Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(Views::default()),
        views => views,
    }
}

/// A container, where it was found, and what a later look needs to know of this one.
#[derive(Debug, Clone)]
pub struct Found {
    /// As it is shown.
    pub shown: Container,
    /// As it was read.
    pub view: ContainerView,
}

/// What a look found.
#[derive(Debug, Default)]
pub struct Census {
    /// Containers; no two have the same namespace, pod and container.
    pub found: Vec<Found>,
    /// Paths of those that would have had another one's name.
    pub duplicates: Vec<String>,
}

/// Chooses names and fills in what the driver knows.
///
/// Namespace and pod are believed where root or `our_uid` owns the directory: any user can make a
/// directory of their own below a shared root and write into it whose pod it is. Where two
/// containers of several users have the same name, the owner with the smallest uid keeps it, and
/// the others stand as `UID/NAME`.
#[must_use]
pub fn census(views: Vec<ContainerView>, answer: Option<&Answer>, our_uid: u32) -> Census {
    let mut views: Vec<_> = views.into_iter().filter(|view| !is_over(view)).collect();
    views.sort_by(|a, b| (a.owner, &a.path).cmp(&(b.owner, &b.path)));
    let mut taken: HashSet<[String; 3]> = HashSet::with_capacity(views.len());
    let mut census = Census::default();
    for mut view in views {
        if let Some(answer) = answer {
            view.account(&answer.processes);
        }
        let trusted = view.owner == 0 || view.owner == our_uid;
        let own_name = if view.container.is_empty() {
            &view.name
        } else {
            &view.container
        };
        let (namespace, pod) = match trusted {
            true => (view.namespace.clone(), view.pod.clone()),
            false => (String::new(), String::new()),
        };
        let names = [own_name.clone(), format!("{}/{own_name}", view.owner)];
        let name = names
            .into_iter()
            .find(|name| taken.insert([namespace.clone(), pod.clone(), name.clone()]));
        let Some(container) = name else {
            census.duplicates.push(view.path.display().to_string());
            continue;
        };
        let shown = Container {
            namespace,
            pod,
            container,
            devices: view
                .devices
                .iter()
                .map(|d| device(&view, d, answer))
                .collect(),
            processes: view.processes.len() as u64,
            ooms: view.oom_count,
            refused: view.refused,
            waits_expired: view.waits_ran_out,
            hook_calls: view.hook_calls.clone(),
        };
        census.found.push(Found { shown, view });
    }
    census
}

/// A directory that a killed `vgpu run` left behind: whoever comes next takes it away.
fn is_over(view: &ContainerView) -> bool {
    view.runner_alive == Some(false)
        && view.processes.is_empty()
        && view.devices.iter().all(|device| device.used_bytes == 0)
}

fn device(view: &ContainerView, device: &DeviceView, answer: Option<&Answer>) -> Device {
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
        utilization_percent: gpu
            .and(answer)
            .and_then(|answer| utilization(view, device, answer)),
        since_launch: None,
        unaccounted_bytes: gpu.map(|_| device.unaccounted_bytes),
        pending_shrink: device.pending_shrink,
        instance: instance.map(|instance| Instance {
            profile: instance.profile.clone(),
            ids: instance.ids,
        }),
    }
}

/// The sum over the container's processes; nothing where the driver knows of processes and says
/// of none how busy it is.
fn utilization(view: &ContainerView, device: &DeviceView, answer: &Answer) -> Option<f64> {
    let pids: HashSet<u32> = view.processes.iter().filter_map(|p| p.host_pid).collect();
    let mut held = answer
        .processes
        .iter()
        .filter(|process| process.uuid == device.uuid && pids.contains(&process.pid))
        .peekable();
    if held.peek().is_none() {
        return Some(0.0);
    }
    held.filter_map(|process| process.utilization_percent)
        .map(f64::from)
        .reduce(|sum, percent| sum + percent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use supervisor::gpu::{Gpu, GpuProcess, Inventory, MigInstance};
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
            command: Vec::new(),
            created_unix: 0,
            runner_pid: 0,
            runner_alive: None,
            limits_generation: 1,
            priority: 0,
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
            shared_bytes: 0,
            pending_bytes: 0,
            pending_shrink: false,
            busy_ns: 0,
            launches: 0,
            unaccounted_bytes: 0,
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

    fn names(census: &Census) -> Vec<String> {
        let name = |found: &Found| {
            let Container {
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
    fn two_users_with_the_same_name_are_both_shown_and_neither_can_take_the_others() {
        let views = vec![
            container(1000, "/r/1000/train", "train"),
            container(7, "/r/7/train", "train"),
            container(7, "/r/7/x", "1000/train"),
        ];

        let census = census(views, None, 0);

        assert_eq!(names(&census), ["||train", "||1000/train"]);
        assert_eq!(census.duplicates, ["/r/1000/train"]);
    }

    #[test]
    fn the_same_container_name_in_two_pods_is_no_conflict() {
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
    fn only_root_and_we_can_say_whose_pod_it_is() {
        let forge = |owner: u32| {
            let mut view = container(owner, &format!("/r/{owner}"), &format!("c{owner}"));
            (view.namespace, view.pod) = ("prod".to_owned(), "payments".to_owned());
            view
        };

        let census = census(vec![forge(0), forge(500), forge(1000)], None, 500);

        assert_eq!(
            names(&census),
            ["prod|payments|c0", "prod|payments|c500", "||c1000"]
        );
    }

    #[test]
    fn what_a_killed_run_left_behind_is_not_shown_unless_it_holds_something() {
        let mut left = container(1, "/r/1/left", "left");
        left.runner_alive = Some(false);
        let mut holds = left.clone();
        holds.name = "holds".to_owned();
        holds.container = "holds".to_owned();
        holds.devices = vec![device_of("GPU-1")];

        assert_eq!(names(&census(vec![left, holds], None, 0)), ["||holds"]);
    }

    #[test]
    fn the_driver_fills_in_what_only_it_knows() {
        let mut view = container(0, "/r/a", "a");
        view.devices = vec![device_of("GPU-1"), device_of("MIG-1"), device_of("GPU-9")];
        view.processes = vec![process(11), process(12)];
        let mut whole = gpu("GPU-1");
        whole.instances = vec![MigInstance {
            uuid: "MIG-1".to_owned(),
            profile: "1g.5gb".to_owned(),
            ids: Some((7, 0)),
        }];
        let answer = Answer {
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
        assert_eq!(on_gpu.limit_bytes, Some(1000), "no limit: the card's size");
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
    fn a_container_at_rest_is_idle_and_one_that_nobody_measures_is_unknown() {
        let mut view = container(0, "/r/a", "a");
        view.devices = vec![device_of("GPU-1")];
        view.processes = vec![process(11)];
        let mut answer = Answer {
            inventory: Inventory {
                gpus: vec![gpu("GPU-1")],
                faults: Vec::new(),
            },
            processes: Vec::new(),
        };
        let busy = |answer: Option<&Answer>| {
            census(vec![view.clone()], answer, 0).found[0].shown.devices[0].utilization_percent
        };

        assert_eq!(busy(Some(&answer)), Some(0.0));
        answer.processes = vec![held("GPU-1", 11, 1, None)];
        assert_eq!(busy(Some(&answer)), None);
        assert_eq!(busy(None), None);
    }
}
