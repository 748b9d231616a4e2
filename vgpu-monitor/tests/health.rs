//! Health on the simulated board: faults while the agent runs, the verdict on each GPU, the events, and how a
//! GPU recovers. Each test is a process of its own, since a board is chosen by the environment.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test: a panic is its answer, and what it met is printed"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cuda_sim::{Board, Config};
use embedded_cluster::Cluster;
use events::Events;
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, ListParams};
use supervisor::instance::{LIMITS, Labels};
use tokio::sync::watch;
use vgpu_abi::limits::{DeviceLimit, DeviceUuid, Limits, LimitsFile};
use vgpu_monitor::driver_files::DriverFiles;
use vgpu_monitor::health::driver::QueryPace;
use vgpu_monitor::health::judge::Patience;
use vgpu_monitor::health::xid::{Checks, TABLE, Until};
use vgpu_monitor::health::{self, HealthSettings, Started};
use vgpu_monitor::node_gpus::{Health, Inventory};

use crate::harness::{alone, built};
use crate::waiting::until;

struct World {
    board: Board,
    root: PathBuf,
    started: Started,
    api: kube::Client,
    runtime: tokio::runtime::Runtime,
    _inventories: watch::Sender<Option<Arc<Inventory>>>,
}

impl World {
    /// The agent's health check with hardly any patience, and a pod on the first GPU.
    fn new(home: &Path, checks: Checks) -> Self {
        let board = Board::create(&home.join("board"), &Config::default()).unwrap();
        let root = home.join("containers");
        pod(&root, "train", &board.uuid(0));
        pod(&root, "other", &board.uuid(1));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (inventories, inventory) = watch::channel(None);
        let cluster = Cluster::default();
        let state = serde_json::json!({
            "namespaces": [{ "metadata": { "name": "ml" } }, { "metadata": { "name": "default" } }],
        });
        cluster.import(&state).unwrap();
        let (api, started) = {
            let _inside = runtime.enter();
            let api = kube::Client::new(cluster.router(), "default");
            let events = Events::start(api.clone(), "vgpu-monitor");
            let settings = HealthSettings {
                node: "n1".to_owned(),
                root: root.clone(),
                checks,
                patience: Patience {
                    quiet: Duration::from_millis(300),
                    long_quiet: Duration::from_millis(600),
                    silence: Duration::from_millis(1500),
                    start: Duration::from_secs(30),
                },
                pace: QueryPace {
                    events: Duration::from_millis(10),
                    probe: Duration::from_millis(30),
                    retry: Duration::from_millis(50),
                },
                library: Some(built("libnvidia_ml.so").into_os_string()),
                files: DriverFiles::new(Path::new("/sys"), Duration::ZERO),
            };
            (api, health::start(settings, inventory, events).unwrap())
        };
        let world = Self {
            board,
            root,
            started,
            api,
            runtime,
            _inventories: inventories,
        };
        world.until("the driver is asked", |series| {
            series.contains("vgpu_gpu_driver_up{node=\"n1\"} 1")
                && series.contains(&format!(
                    "vgpu_gpu_healthy{{node=\"n1\",device_uuid=\"{}\"",
                    world.board.uuid(1)
                ))
        });
        world
    }

    fn health(&self) -> Arc<Health> {
        Arc::clone(&self.started.healths.borrow())
    }

    fn sick(&self, gpu: usize) -> Option<String> {
        let health = self.health();
        health
            .get(&self.board.uuid(gpu))
            .map(|sick| sick.reason.clone())
    }

    fn series(&self) -> String {
        let mut registry = prometheus_client::registry::Registry::default();
        registry.register_collector(Box::new(self.started.collector.clone()));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    /// Waits for what the series say.
    fn until(&self, what: &str, is: impl Fn(&str) -> bool) {
        until(what, || is(&self.series()));
    }

    /// Events of a reason: the object that each is about, and its text.
    fn events(&self, reason: &str) -> Vec<(String, String)> {
        let events: Api<Event> = Api::all(self.api.clone());
        let events = self
            .runtime
            .block_on(events.list(&ListParams::default()))
            .unwrap();
        let of = |event: &Event| {
            let about = &event.involved_object;
            format!(
                "{}/{}",
                about.kind.clone().unwrap_or_default(),
                about.name.clone().unwrap_or_default()
            )
        };
        let mut said: Vec<_> = events
            .items
            .iter()
            .filter(|event| event.reason.as_deref() == Some(reason))
            .map(|event| (of(event), event.message.clone().unwrap_or_default()))
            .collect();
        said.sort();
        said
    }
}

fn pod(root: &Path, name: &str, uuid: &str) {
    let path = root.join(name);
    std::fs::create_dir_all(&path).unwrap();
    let limits = Limits {
        devices: vec![DeviceLimit {
            uuid: DeviceUuid::new(uuid).unwrap(),
            ..DeviceLimit::default()
        }],
        ..Limits::default()
    };
    LimitsFile::create(&path.join(LIMITS), &limits).unwrap();
    let labels = Labels {
        namespace: "ml".to_owned(),
        pod: name.to_owned(),
        container: "main".to_owned(),
        pod_uid: format!("uid-{name}"),
        ..Labels::default()
    };
    let labels = serde_json::to_vec(&labels).unwrap();
    std::fs::write(path.join("container.json"), labels).unwrap();
}

#[test]
fn each_xid_reaches_its_verdict_and_the_gpu_recovers() {
    let Some(home) = alone("health::each_xid_reaches_its_verdict_and_the_gpu_recovers") else {
        return;
    };
    let world = World::new(&home, Checks::default());
    let mut recovered = 0;
    for xid in TABLE {
        let number = xid.number;
        world.board.fault(0, number);
        let counted = format!("xid=\"{number}\",kind=\"{}\"}} 1", xid.class.as_str());
        world.until(&format!("XID {number} is counted"), |series| {
            series.contains(&counted)
        });
        if xid.until == Until::Never {
            assert_eq!(world.sick(0), None, "XID {number}");
            continue;
        }
        if xid.until == Until::Reset {
            until(&format!("XID {number} makes the GPU sick"), || {
                world.sick(0).is_some()
            });
            assert!(
                !world.health()[&world.board.uuid(0)].recovers,
                "XID {number}"
            );
            world.board.lose(0, true);
            until(&format!("after XID {number} the GPU is lost"), || {
                world.sick(0).is_some_and(|reason| reason.contains("lost"))
            });
            world.board.reset(0);
        }
        // A short illness may have come and gone between two looks: that it was one is counted at its end.
        recovered += 1;
        let counted = format!(
            "vgpu_gpu_recoveries_total{{node=\"n1\",device_uuid=\"{}\"}} {recovered}",
            world.board.uuid(0)
        );
        world.until(&format!("after XID {number} the GPU is well"), |series| {
            series.contains(&counted)
        });
        // The count and the health are published one after the other.
        until(&format!("after XID {number} the health says so"), || {
            world.sick(0).is_none()
        });
        assert_eq!(world.sick(1), None, "XID {number} is the other GPU's");
    }
}

#[test]
fn only_pods_of_the_gpu_get_events() {
    let Some(home) = alone("health::only_pods_of_the_gpu_get_events") else {
        return;
    };
    let world = World::new(&home, Checks::default());

    world.board.fault(0, 31);
    until("the pod is told", || {
        !world.events("GPUXidError").is_empty()
    });
    let said = world.events("GPUXidError");
    assert_eq!(
        said.len(),
        1,
        "an application's error is no news of the node: {said:?}"
    );
    assert_eq!(said[0].0, "Pod/train");
    assert!(
        said[0].1.contains("XID 31: a program accessed memory"),
        "{said:?}"
    );
    assert!(
        said[0].1.contains("What to do: look at the program"),
        "{said:?}"
    );
    assert_eq!(world.sick(0), None);

    world.board.fault(0, 119);
    until("the pod is told that it is over", || {
        world.events("GPUHealthy").len() == 2
    });
    let objects = |reason: &str| -> Vec<String> {
        let said = world.events(reason);
        said.into_iter().map(|(of, _)| of).collect()
    };
    assert_eq!(objects("GPUUnhealthy"), ["Node/n1", "Pod/train"]);
    assert_eq!(objects("GPUHealthy"), ["Node/n1", "Pod/train"]);
    assert!(world.root.is_dir());
}

#[test]
fn lost_gpu_is_out_until_it_is_back() {
    let Some(home) = alone("health::lost_gpu_is_out_until_it_is_back") else {
        return;
    };
    let world = World::new(&home, Checks::default());

    // Without an XID: the agent may have been away when it came.
    world.board.lose(1, true);
    until("the GPU is out", || world.sick(1).is_some());
    assert!(
        world.sick(1).unwrap().contains("lost"),
        "{:?}",
        world.sick(1)
    );
    assert_eq!(world.sick(0), None);
    world.board.reset(1);
    until("the GPU is back", || world.sick(1).is_none());

    // It tells of XIDs again.
    world.board.fault(1, 74);
    until("the GPU is out again", || world.sick(1).is_some());
    until("and back", || world.sick(1).is_none());
}

#[test]
fn driver_failures_take_all_gpus_out_until_it_recovers() {
    let Some(home) = alone("health::driver_failures_take_all_gpus_out_until_it_recovers") else {
        return;
    };
    let world = World::new(&home, Checks::default());
    for (trouble, reason) in [
        ("driver=hangs", "does not answer"),
        ("driver=replaced", "was replaced"),
        ("driver=unloaded", "is not loaded"),
    ] {
        world.board.trouble(trouble).unwrap();
        for gpu in [0, 1] {
            until(trouble, || {
                world.sick(gpu).is_some_and(|text| text.contains(reason))
            });
        }
        assert!(world.health()[&world.board.uuid(0)].recovers);
        assert!(world.series().contains("vgpu_gpu_driver_up{node=\"n1\"} 0"));
        world.board.trouble("driver=well").unwrap();
        until("all is well", || world.health().is_empty());
    }
    until("the node is told", || {
        world.events("GPUDriverUp").len() == 1
    });
}

#[test]
fn pending_rows_warn_and_a_failed_row_takes_the_gpu_out() {
    let Some(home) = alone("health::pending_rows_warn_and_a_failed_row_takes_the_gpu_out") else {
        return;
    };
    let world = World::new(&home, Checks::default());
    world.board.trouble("remap:0=pending").unwrap();
    world.until("the warning is shown", |series| {
        series.contains("kind=\"remap_pending\"} 1")
    });
    assert_eq!(world.sick(0), None);
    world.board.trouble("remap:0=failed").unwrap();
    until("the GPU is out", || world.sick(0).is_some());
    world.board.trouble("reset:0").unwrap();
    until("the GPU is well", || world.sick(0).is_none());
}

#[test]
fn reference_health_variables_are_respected() {
    let Some(home) = alone("health::reference_health_variables_are_respected") else {
        return;
    };
    let world = World::new(&home, Checks::parse("xids", "31"));
    world.board.fault(0, 48);
    world.until("XID 48 is counted", |series| series.contains("xid=\"48\""));
    assert_eq!(world.sick(0), None);
    world.board.fault(0, 31);
    until("XID 31 takes the GPU out", || world.sick(0).is_some());
    until("and it comes back", || world.sick(0).is_none());
}
