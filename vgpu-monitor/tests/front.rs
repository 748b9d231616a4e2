//! The front between a kubelet and a plugin that dies: the kubelet keeps its slots, and its calls are answered.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests stand outside of them"
)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use crate::common::agent::command;
use crate::harness::{alone, built};
use crate::kubelet::Kubelet;
use crate::kubelet::world::{GPU, World, gpu, gpus, inventory, uid};
use crate::waiting::until_later;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vgpu_monitor::front::{Front, Useless};
use vgpu_monitor::node_gpus::{Health, Sick};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubelet_keeps_its_slots_while_the_plugin_dies_again_and_again() {
    let world = World::new();
    let mut agent = world.up().await;
    let pod = world.pod("p", &[("main", "app", &[(0, 100)])]).await;
    world.kubelet.admit(&pod).await.unwrap();

    for _ in 0..5 {
        let crashed = agent.crash().await;
        assert_eq!(world.kubelet.slots(GPU), (40, 40));
        agent = crashed.again(&world).await;
        world.kubelet.starts(uid(&pod), "main").await.unwrap();
    }

    assert_eq!(gpus(&world.hands.of(uid(&pod))["main"]), [("GPU-0", 100)]);
    assert_eq!(world.kubelet.slots(GPU), (40, 40));
    assert_eq!(
        (world.kubelet.ended(), world.kubelet.registrations()),
        (0, 1)
    );
    agent.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_that_arrives_while_there_is_no_plugin_is_admitted_and_started() {
    let world = World::new();
    let agent = world.up().await;
    let crashed = agent.crash().await;
    let pod = world
        .pod(
            "p",
            &[("prep", "init", &[(0, 100)]), ("a", "app", &[(1, 200)])],
        )
        .await;

    let admitting = async { world.kubelet.admit(&pod).await };
    let starting = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        crashed.again(&world).await
    };
    let (admitted, agent) = tokio::join!(admitting, starting);

    admitted.unwrap();
    // And the same for the start of a container.
    let crashed = agent.crash().await;
    let (kubelet, of) = (world.kubelet.clone(), uid(&pod).to_owned());
    let held = tokio::spawn(async move { kubelet.starts(&of, "prep").await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!held.is_finished());
    let agent = crashed.again(&world).await;
    held.await.unwrap().unwrap();
    let given = world.hands.of(uid(&pod));
    assert_eq!(gpus(&given["prep"]), [("GPU-0", 100)]);
    assert_eq!(gpus(&given["a"]), [("GPU-1", 200)]);
    assert_eq!(world.kubelet.ended(), 0);
    agent.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugin_that_dies_over_a_call_is_asked_again() {
    let world = World::new();
    let agent = world.up().await;
    let pod = world.pod("p", &[("main", "app", &[(0, 100)])]).await;
    // While it allots, whatever it had noted.
    world.hands.allotting_hangs.store(true, Ordering::SeqCst);
    world.hands.hang(true);
    let (kubelet, asked) = (world.kubelet.clone(), pod.clone());
    let admitting = tokio::spawn(async move { kubelet.admit(&asked).await });
    until_later("it allots", || {
        world.hands.waiting.load(Ordering::SeqCst) == 1
    })
    .await;
    let crashed = agent.crash().await;
    world.hands.allotting_hangs.store(false, Ordering::SeqCst);
    let agent = crashed.again(&world).await;
    admitting.await.unwrap().unwrap();
    // While it gives.
    let (kubelet, of) = (world.kubelet.clone(), uid(&pod).to_owned());
    let starting = tokio::spawn(async move { kubelet.starts(&of, "main").await });
    until_later("it gives", || {
        world.hands.waiting.load(Ordering::SeqCst) == 2
    })
    .await;
    let crashed = agent.crash().await;
    world.hands.hang(false);
    let agent = crashed.again(&world).await;

    starting.await.unwrap().unwrap();

    assert_eq!(gpus(&world.hands.of(uid(&pod))["main"]), [("GPU-0", 100)]);
    assert_eq!(world.kubelet.ended(), 0);
    // The pod that comes next gets slots and shares of its own.
    let other = world.pod("q", &[("main", "app", &[(1, 200)])]).await;
    world.kubelet.admit(&other).await.unwrap();
    world.kubelet.starts(uid(&other), "main").await.unwrap();
    assert_eq!(gpus(&world.hands.of(uid(&other))["main"]), [("GPU-1", 200)]);
    agent.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusal_of_the_plugin_reaches_the_kubelet_as_it_is() {
    let world = World::new();
    let agent = world.up().await;
    // More than the GPU has.
    let pod = world.pod("p", &[("main", "app", &[(9, 100)])]).await;
    world.kubelet.admit(&pod).await.unwrap();

    let refused = world.kubelet.starts(uid(&pod), "main").await.unwrap_err();

    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    assert!(refused.message().starts_with("vgpu: "), "{refused}");
    assert!(refused.message().contains("GPU-9"), "{refused}");
    agent.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubelet_that_restarts_meanwhile_is_served_from_the_fronts_memory() {
    let world = World::new();
    let agent = world.up().await;
    let crashed = agent.crash().await;

    world.kubelet.kill().await;
    assert_eq!(world.kubelet.slots(GPU).0, 0);
    world.kubelet.start();

    world.is_known(40).await;
    let agent = crashed.again(&world).await;
    let mut registered = agent.plugin.registered();
    let known = registered.wait_for(|known| known.contains(GPU));
    let limit = Duration::from_secs(60);
    tokio::time::timeout(limit, known).await.unwrap().unwrap();
    agent.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_plugins_list_replaces_the_last_ones() {
    let world = World::new();
    let agent = world.up().await;
    let crashed = agent.crash().await;
    // A GPU fell sick, and another one is new.
    let sick = Sick {
        reason: "XID 79".to_owned(),
        since: SystemTime::now(),
        recovers: false,
    };
    let sick = Health::from([("GPU-0".to_owned(), sick)]);
    world.health.send_replace(Arc::new(sick));
    let gpus = (0..5).map(gpu).collect();
    world.inventory.send_replace(inventory(gpus));
    assert_eq!(world.kubelet.slots(GPU), (40, 40));

    let agent = crashed.again(&world).await;

    until_later("the next list is known", || {
        world.kubelet.slots(GPU) == (50, 40)
    })
    .await;
    assert_eq!(world.kubelet.ended(), 0);
    agent.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugin_that_loses_its_disk_keeps_the_slots() {
    let world = World::new();
    let agent = world.up().await;
    let crashed = agent.crash().await;
    // Nothing that the plugin remembers can be read or written, and the driver has not answered.
    let state = world.folder.path().join("state");
    std::fs::remove_dir_all(&state).unwrap();
    std::fs::write(&state, "").unwrap();
    world.inventory.send_replace(None);

    let agent = crashed.again(&world).await;
    let pod = world.pod("p", &[("main", "app", &[(1, 100)])]).await;
    world.kubelet.admit(&pod).await.unwrap();
    assert_eq!(world.kubelet.slots(GPU), (40, 40));
    let gpus_again = inventory((0..4).map(gpu).collect());
    world.inventory.send_replace(gpus_again);

    world.kubelet.starts(uid(&pod), "main").await.unwrap();
    assert_eq!(gpus(&world.hands.of(uid(&pod))["main"]), [("GPU-1", 100)]);
    assert_eq!(world.kubelet.ended(), 0);
    agent.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugin_of_other_resources_is_of_no_use() {
    let mut world = World::new();
    let agent = world.up().await;
    let crashed = agent.crash().await;
    world.served[0].resource = "example.com/gpu".to_owned();

    let agent = crashed.again(&world).await;

    assert_eq!(agent.useless().await, Useless::Other);
    agent.kill().await;
}

#[tokio::test(start_paused = true)]
async fn process_that_takes_the_connection_and_never_answers_is_of_no_use() {
    let front = Front::new("/nowhere".into(), vec![GPU.to_owned()]);
    let (own, _its) = tokio::net::UnixStream::pair().unwrap();

    // The clock is tokio's, and goes on by itself.
    let behind = front.put(own, 1).await.unwrap();

    assert_eq!(behind.useless().await, Useless::Silent);
    assert!(!behind.has_served());
}

#[tokio::test(start_paused = true)]
async fn process_that_closes_its_connection_is_of_no_use() {
    let front = Front::new("/nowhere".into(), vec![GPU.to_owned()]);
    let (own, its) = tokio::net::UnixStream::pair().unwrap();
    let behind = front.put(own, 1).await.unwrap();

    drop(its);

    assert_eq!(behind.useless().await, Useless::Closed);
}

/// `vgpu-monitor plugin` on a simulated board, with a kubelet and without an API server.
struct Agent {
    parent: std::process::Child,
    kubelet: Kubelet,
}

impl Agent {
    async fn start(home: &Path) -> Self {
        cuda_sim::Board::create(&home.join("board"), &cuda_sim::Config::default()).unwrap();
        let libraries = home.join("lib");
        std::fs::create_dir(&libraries).unwrap();
        let nvml = libraries.join("libnvidia-ml.so.1");
        std::os::unix::fs::symlink(built("libnvidia_ml.so"), nvml).unwrap();
        let config = home.join("kubeconfig");
        std::fs::write(&config, NO_SERVER).unwrap();
        let kubelet = Kubelet::new(&home.join("kubelet"));
        kubelet.start();
        let library = format!("--library={}", built("libvgpu.so").display());
        let cdi = format!("--cdi-dir={}", home.join("cdi").display());
        let arguments = [
            "plugin",
            "--node-name=n1",
            "--metrics-addr=127.0.0.1:0",
            "--manner=cdi",
        ];
        let mut command = command(&[&arguments[..], &[&library, &cdi]].concat());
        command
            .env("VGPU_STATE_DIR", home.join("state"))
            .env("VGPU_KUBELET_DIR", home.join("kubelet"))
            .env("KUBECONFIG", &config)
            .env("LD_LIBRARY_PATH", &libraries)
            .env("VGPU_SIM_BOARD", home.join("board"))
            .stderr(std::fs::File::create(home.join("log")).unwrap());
        let parent = command.spawn().unwrap();
        let agent = Self { parent, kubelet };
        until_later("the kubelet knows the slots", || {
            agent.kubelet.slots(GPU).0 > 0
        })
        .await;
        agent
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.parent.id().cast_signed())
    }

    /// The plugin's process; none between two.
    fn child(&self) -> Option<Pid> {
        let list = format!("/proc/{0}/task/{0}/children", self.pid());
        let pid = std::fs::read_to_string(list).ok()?;
        Some(Pid::from_raw(pid.split_whitespace().next()?.parse().ok()?))
    }

    async fn another_child(&self, before: Pid) -> Pid {
        // One that hangs is noticed after 20 s.
        for _ in 0..6000 {
            match self.child() {
                Some(child) if child != before => return child,
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
        panic!("no other process takes its place");
    }

    /// A pod is admitted: the plugin has answered two calls of the kubelet.
    async fn admits(&self, name: &str) {
        let pod = serde_json::json!({
            "metadata": {"namespace": "default", "name": name, "uid": name},
            "spec": {"containers": [{"name": "main", "resources": {"limits": {GPU: "1"}}}]},
        });
        self.kubelet.admit(&pod).await.unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.parent.kill());
        drop(self.parent.wait());
    }
}

/// No server answers there.
const NO_SERVER: &str = "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: \
    'http://127.0.0.1:1'}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n";

fn lives(pid: Pid) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !stat
            .rsplit_once(')')
            .is_some_and(|(_, rest)| rest.starts_with(" Z"))
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_process_is_replaced_whatever_it_was_doing() {
    let Some(home) = alone("front::killed_process_is_replaced_whatever_it_was_doing") else {
        return;
    };
    let agent = Agent::start(&home).await;
    let slots = agent.kubelet.slots(GPU);
    agent.admits("before").await;
    let mut child = agent.child().unwrap();
    // At the first steps of its life, and later ones.
    for (number, wait) in [0, 5, 15, 40, 100, 300].into_iter().enumerate() {
        tokio::time::sleep(Duration::from_millis(wait)).await;
        kill(child, Signal::SIGKILL).unwrap();
        child = agent.another_child(child).await;
        assert_eq!(agent.kubelet.slots(GPU), slots, "after {number} ends");
        if number == 0 {
            agent.admits("meanwhile").await;
        }
    }
    // One that hangs is replaced, too.
    agent.admits("answered").await;
    kill(child, Signal::SIGSTOP).unwrap();
    agent.another_child(child).await;
    agent.admits("after").await;

    assert_eq!(agent.kubelet.slots(GPU), slots);
    assert_eq!(
        (agent.kubelet.ended(), agent.kubelet.registrations()),
        (0, 1)
    );
}

/// Ten ends, each of a process that has served, behind a front of its own: a front gives the second process that fails in
/// a row a pause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_that_arrives_as_the_process_dies_is_admitted() {
    let Some(home) = alone("front::pod_that_arrives_as_the_process_dies_is_admitted") else {
        return;
    };
    let mut took = Vec::new();
    for number in 0..10 {
        let home = home.join(number.to_string());
        std::fs::create_dir(&home).unwrap();
        let agent = Agent::start(&home).await;
        agent.admits("before").await;
        let child = agent.child().unwrap();
        kill(child, Signal::SIGKILL).unwrap();
        let begun = Instant::now();

        agent.admits("after").await;

        took.push(begun.elapsed());
        assert_ne!(agent.another_child(child).await, child);
        assert_eq!(
            (agent.kubelet.ended(), agent.kubelet.registrations()),
            (0, 1)
        );
    }
    // For a reader alone: a busy machine takes its time.
    took.sort();
    println!(
        "from the plugin's end to the next answered Allocate: median {:?}, at most {:?}, of {}",
        (took[4] + took[5]) / 2,
        took[9],
        took.len()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_loop_ends_the_front_and_no_end_leaves_a_process() {
    let Some(home) = alone("front::crash_loop_ends_the_front_and_no_end_leaves_a_process") else {
        return;
    };
    let mut agent = Agent::start(&home).await;
    let mut ends = 0;
    let status = loop {
        if let Some(child) = agent.child() {
            ends += u32::from(kill(child, Signal::SIGKILL).is_ok());
        }
        if let Some(status) = agent.parent.try_wait().unwrap() {
            break status;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    assert_eq!(status.code(), Some(1));
    assert!(ends > 8, "{ends}");
    let log = std::fs::read_to_string(home.join("log")).unwrap();
    let again = log.matches("another process is started").count();
    assert_eq!(again, 8, "{log}");
    drop(agent);
    for (signal, code) in [(Signal::SIGTERM, Some(0)), (Signal::SIGKILL, None)] {
        let home = home.join(signal.as_str());
        std::fs::create_dir(&home).unwrap();
        let mut agent = Agent::start(&home).await;
        let child = agent.child().unwrap();

        kill(agent.pid(), signal).unwrap();

        assert_eq!(agent.parent.wait().unwrap().code(), code);
        until_later("the plugin's process is gone", || !lives(child)).await;
    }
}
