//! Two replicas, each an extender with its own kube-scheduler; a Lease decides which of the two works.

use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::http;
use crate::objects::{Gpus, pod, uuids, whole};
use crate::programs::{Handover, ONE, Pair, TWO, Tuning};
use crate::world::{World, within};

const QUICK: Tuning = Tuning {
    volume_seconds: None,
    lease: Handover::Quick,
    hcs: false,
    claims: false,
};

#[test]
fn the_other_replica_takes_over_with_all_that_was_given_out() {
    within(async |world| {
        world.make_nodes(["a"], &Gpus::default()).await;
        let mut first = Pair::start_with(world, &[], QUICK).await;
        let mut second = Pair::start_at(world, TWO, &[], QUICK);
        world
            .make_pods(
                (0..4)
                    .map(|index| pod(&format!("p{index}"), whole(1)))
                    .collect(),
            )
            .await;
        for index in 0..4 {
            world.until_placed(&format!("p{index}")).await;
        }
        let asked = json!({"Pod": pod("stray", whole(1)), "NodeNames": ["a"]});
        let (status, answer) = world
            .eventually("the second replica listens", async || {
                http::ask(TWO.extender, "POST", "/filter", Some(&asked)).await
            })
            .await;
        assert_eq!(status, 503, "{answer}");
        assert!(answer.contains("Error"), "{answer}");

        first.kube_scheduler.kill();
        first.extender.kill();
        world
            .make_pods(
                (4..12)
                    .map(|index| pod(&format!("p{index}"), whole(1)))
                    .collect(),
            )
            .await;

        second.answers(world).await;
        world
            .eventually("eight are placed", async || {
                (world.placed().await.len() >= 8).then_some(())
            })
            .await;
        world
            .eventually("four are refused", async || {
                let mut refused = 0;
                for index in 4..12 {
                    refused += usize::from(world.refusal(&format!("p{index}")).await.is_some());
                }
                (refused == 4).then_some(())
            })
            .await;
        let placed = world.placed().await;
        assert_eq!((placed.len(), uuids(&placed).len()), (8, 8));
    });
}

/// A product's promise, not a measurement: with the chart's Lease the rest is at most 13 s, so a slow machine has 2 s.
const NODE_LOSS: Duration = Duration::from_secs(15);

#[test]
fn binding_goes_on_within_15_s_of_the_loss_of_a_node() {
    within(async |world| {
        world.make_nodes(["a"], &Gpus::default()).await;
        let chart = Tuning {
            lease: Handover::AsInTheChart,
            ..Tuning::default()
        };
        let mut first = Pair::start_with(world, &[], chart).await;
        let _second = Pair::start_at(world, TWO, &[], chart);
        world.make_pod(pod("before", whole(1))).await;
        world.until_placed("before").await;
        world
            .eventually("the second replica is ready", async || {
                (http::status(TWO.extender, "/readyz").await? == 200).then_some(())
            })
            .await;

        first.kube_scheduler.kill();
        first.extender.kill();
        let lost = Instant::now();
        world.make_pod(pod("after", whole(1))).await;

        world.until_placed("after").await;
        let took = lost.elapsed();
        println!("the next pod was bound {:.1} s later", took.as_secs_f64());
        assert!(took < NODE_LOSS, "{took:?}");
    });
}

/// The liveness probe of kube-scheduler as the chart has it, which the test carries out in the kubelet's place.
struct Probe {
    /// Whether it asks the extender's port, and not kube-scheduler's own.
    asks_extender: bool,
    path: String,
    period: Duration,
    timeout: Duration,
    failures: u64,
}

impl Probe {
    fn of_the_chart(world: &World) -> Self {
        let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/vgpu");
        let output = Command::new(world.bin.join("helm"))
            .args(["template", "vgpu", chart, "--kube-version", &world.version])
            .args(["--show-only", "templates/scheduler/deployment.yaml"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let deployment: Value = serde_saphyr::from_str(&text).unwrap();
        let containers = deployment["spec"]["template"]["spec"]["containers"]
            .as_array()
            .unwrap();
        let kube_scheduler = containers
            .iter()
            .find(|container| container["name"] == "kube-scheduler")
            .unwrap();
        let probe = &kube_scheduler["livenessProbe"];
        let seconds = |field: &str| Duration::from_secs(probe[field].as_u64().unwrap());
        Self {
            asks_extender: probe["httpGet"]["port"] == 9395,
            path: probe["httpGet"]["path"].as_str().unwrap().to_owned(),
            period: seconds("periodSeconds"),
            timeout: seconds("timeoutSeconds"),
            failures: probe["failureThreshold"].as_u64().unwrap(),
        }
    }

    async fn succeeds(&self, pair: &Pair) -> bool {
        let place = pair.place();
        let address = match self.asks_extender {
            true => format!("http://127.0.0.1:{}", place.extender),
            false => format!("https://127.0.0.1:{}", place.scheduler),
        };
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--insecure", "--fail", "--output", "/dev/null"])
            .args(["--max-time", &self.timeout.as_secs().to_string()])
            .arg(format!("{address}{}", self.path));
        let status = tokio::task::spawn_blocking(move || curl.status());
        status.await.unwrap().unwrap().success()
    }

    /// Whether it fails so often that a kubelet ends kube-scheduler. Gives up after three times as many tries as that
    /// takes.
    async fn ends(&self, pair: &Pair) -> bool {
        let mut failed = 0;
        for _ in 0..3 * self.failures {
            failed = if self.succeeds(pair).await {
                0
            } else {
                failed + 1
            };
            if failed == self.failures {
                return true;
            }
            tokio::time::sleep(self.period).await;
        }
        false
    }
}

#[test]
fn a_kube_scheduler_whose_extender_hangs_gives_up_its_lease() {
    within(async |world| {
        world.make_nodes(["a"], &Gpus::default()).await;
        let probe = Probe::of_the_chart(world);
        let health =
            |port: u16| format!("--kube-scheduler-health=https://127.0.0.1:{port}/healthz");
        let mut first = Pair::start_with(world, &[&health(ONE.scheduler)], QUICK).await;
        let second = Pair::start_at(world, TWO, &[&health(TWO.scheduler)], QUICK);
        world
            .eventually("both pairs are well", async || {
                for pair in [&first, &second] {
                    let status = http::status(pair.place().extender, "/livez/kube-scheduler");
                    if status.await? != 200 {
                        return None;
                    }
                }
                Some(())
            })
            .await;

        // All of its threads stand still, as if each waited for the ledger.
        first.extender.signal(Signal::SIGSTOP);
        world.make_pod(pod("p", whole(1))).await;
        // The probe of the healthy replica is carried out meanwhile: more often than would end it.
        tokio::select! {
            is_ended = probe.ends(&first) => assert!(is_ended, "kube-scheduler lives on"),
            is_ended = probe.ends(&second) => panic!("the probes of the healthy replica came to an end first; it is ended: {is_ended}"),
        }
        first.kube_scheduler.terminate();

        world.until_placed("p").await;
    });
}

#[test]
fn a_replica_that_slept_through_its_lease_answers_no_more() {
    within(async |world| {
        world.make_nodes(["a"], &Gpus::default()).await;
        let first = Pair::start_with(world, &[], QUICK).await;
        let mut second = Pair::start_at(world, TWO, &[], QUICK);

        first.kube_scheduler.signal(Signal::SIGSTOP);
        first.extender.signal(Signal::SIGSTOP);
        second.answers(world).await;
        first.extender.signal(Signal::SIGCONT);

        let asked = json!({"Pod": pod("stray", whole(1)), "NodeNames": ["a"]});
        let (status, answer) = http::ask(ONE.extender, "POST", "/filter", Some(&asked))
            .await
            .unwrap();
        assert_eq!(status, 503, "{answer}");
        world.make_pod(pod("p", whole(1))).await;
        world.until_placed("p").await;
    });
}

#[test]
fn a_kube_scheduler_that_restarts_finds_its_extender_answering() {
    within(async |world| {
        world.make_nodes(["a"], &Gpus::default()).await;
        let mut pair = Pair::start_with(world, &[], QUICK).await;
        world.make_pod(pod("before", whole(1))).await;
        world.until_placed("before").await;

        pair.kube_scheduler.terminate();
        pair.kube_scheduler = crate::programs::start_kube_scheduler(world, ONE, QUICK);
        world.make_pod(pod("after", whole(1))).await;

        world.until_placed("after").await;
    });
}

#[test]
fn pods_wait_without_the_extender_and_are_placed_after() {
    within(async |world| {
        world.make_nodes(["a"], &Gpus::default()).await;
        let mut pair = Pair::start(world).await;
        pair.extender.kill();
        world
            .make_pods(
                (0..3)
                    .map(|index| pod(&format!("p{index}"), whole(1)))
                    .collect(),
            )
            .await;
        world.until_refused("p0").await;

        pair.extender = crate::programs::start_extender(world, ONE, &[]);

        for index in 0..3 {
            world.until_placed(&format!("p{index}")).await;
        }
    });
}
