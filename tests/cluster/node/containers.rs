//! Pods of more than one container, and of more than one life: whose share is whose.

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::agent;
use crate::world::{
    devices, gpu_container, gpu_pod, idle_container, pod_of, run_of, share, status, uid, within,
};

const MIB: u64 = 1 << 20;

#[test]
fn every_kind_of_container_gets_its_own_share() {
    within(async |world| {
        let two = json!({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000});
        let words = ["uuids", "total", "hold"];
        let mut pod = pod_of(
            "many",
            &[
                gpu_container("one", &share(1000), &words),
                // A container without a GPU, between two that have some.
                idle_container("none", &json!({})),
                gpu_container(
                    "pair",
                    &two,
                    &["count", "uuids", "total", "on=1", "total", "hold"],
                ),
            ],
        );
        let mut before = vec![
            gpu_container("first", &share(900), &["uuids", "total"]),
            gpu_container("second", &share(800), &["uuids", "total"]),
        ];
        let mut shares = vec![("first", 900), ("second", 800), ("one", 1000)];
        if world.minor >= 29 {
            let mut sidecar = gpu_container("sidecar", &share(700), &words);
            sidecar["restartPolicy"] = json!("Always");
            before.insert(1, sidecar);
            shares.push(("sidecar", 700));
        } else {
            println!("left out: sidecars, which Kubernetes has from 1.29 on");
        }
        pod["spec"]["initContainers"] = json!(before);
        world.make_pod(pod).await;
        let pod = world.until_ready("many").await;

        let given = devices(&pod);
        for (container, memory) in shares {
            let said = world.said_by("many", container, 2).await;
            assert_eq!(said["total"], (memory * MIB).to_string(), "{container}");
            let own = (said["uuids"].clone(), memory);
            assert!(given.contains(&own), "{container} has {own:?} of {given:?}");
        }
        let said = world.said_by("many", "pair", 6).await;
        assert_eq!(said["count"], "2");
        let uuids: Vec<&str> = said["uuids"].split(' ').collect();
        assert_ne!(uuids[0], uuids[1]);
        for uuid in uuids {
            assert!(
                given.contains(&(uuid.to_owned(), 3000)),
                "{uuid} of {given:?}"
            );
        }
        // On the second GPU; the first was asked before it.
        assert_eq!(said["total"], (3000 * MIB).to_string());
        let nodes = world.exec(
            "many",
            "none",
            &["sh", "-c", "ls /dev /usr/lib/x86_64-linux-gnu"],
        );
        assert!(
            !nodes.unwrap().contains("nvidia"),
            "a container without a GPU is shown one"
        );
    });
}

#[test]
fn container_with_a_63_letter_name_gets_its_share_again() {
    within(async |world| {
        let long = "a".repeat(63);
        let pod = |memory| {
            pod_of(
                "again",
                &[gpu_container(&long, &share(memory), &["total", "hold"])],
            )
        };
        let first = world.make_pod(pod(1000)).await;
        let said = world.said_by("again", &long, 2).await;
        assert_eq!(said["total"], (1000 * MIB).to_string());

        world.remove("again").await;
        let second = world.make_pod(pod(2000)).await;
        assert_ne!(uid(&first), uid(&second));
        let said = world.said_by("again", &long, 2).await;

        assert_eq!(said["total"], (2000 * MIB).to_string());
        let own = agent::given("again");
        assert!(
            own.iter().any(|given| given.pod_uid == uid(&second)),
            "{own:?}"
        );
    });
}

#[test]
fn restarted_container_has_the_same_share_and_no_charges() {
    within(async |world| {
        let words = ["total", "take=1500", "hold"];
        world
            .make_pod(gpu_pod("restarted", &share(2000), &words))
            .await;
        let pod = world.until_ready("restarted").await;
        world.lines("restarted", "work", 3).await;
        let (before, directories) = (run_of(&pod, "work"), agent::given("restarted"));

        agent::kill_container(&pod, "work");
        world
            .until("restarted", "is started again", |pod| {
                let state = status(pod, "work");
                state.is_some_and(|state| state.restart_count > 0 && state.ready)
            })
            .await;
        let said = world.said("restarted", 3).await;
        let pod = world.until_ready("restarted").await;

        assert_ne!(run_of(&pod, "work"), before);
        assert_eq!(said["total"], (2000 * MIB).to_string());
        assert_eq!(
            said["take=1500"], "took",
            "what the dead process had is counted still"
        );
        assert_eq!(agent::given("restarted"), directories);
    });
}

#[test]
fn namesake_of_a_pod_that_was_deleted_before_its_first_start_gets_its_own_share() {
    within(async |world| {
        // Admitted, and its GPU container waits for its init container.
        let mut gate = idle_container("gate", &json!({}));
        gate["command"] = json!(["sh", "-c", "until [ -e /go ]; do sleep 0.1; done"]);
        let mut first = gpu_pod("twin", &share(1000), &["total", "hold"]);
        first["spec"]["initContainers"] = json!([gate]);
        world.make_pod(first).await;
        let runs = |pod: &Pod| {
            let state = status(pod, "gate").and_then(|status| status.state.clone());
            state.is_some_and(|state| state.running.is_some())
        };
        let first = world.until("twin", "waits in its gate", runs).await;
        let gate = agent::process_of(&first, "gate");

        // The kubelet hears of all of it at once: that the pod is gone, that there is another one of its name, and that
        // the first one's gate is open.
        let kubelet = agent::Paused::new("kubelet");
        let forced = ["delete", "pod", "twin", "--grace-period=0", "--force"];
        world.kubectl(&forced).unwrap();
        let second = gpu_pod("twin", &share(2000), &["total", "hold"]);
        let second = world.make_pod(second).await;
        std::fs::write(format!("/proc/{gate}/root/go"), "").unwrap();
        drop(kubelet);

        world.until_ready("twin").await;
        let said = world.said("twin", 2).await;
        assert_eq!(said["total"], (2000 * MIB).to_string());
        world
            .eventually("only the second one has something", async || {
                let given = agent::given("twin");
                let own = given.iter().all(|given| given.pod_uid == uid(&second));
                (own && given.len() == 1).then_some(())
            })
            .await;
    });
}
