//! A pod's share: asked for, given, seen by an unmodified client, and held.

use serde_json::json;

use crate::world::{devices, gpu_pod, share, within};

const MIB: u64 = 1 << 20;

#[test]
fn pod_sees_its_share_in_cuda_python_and_is_refused_past_it() {
    within(async |world| {
        let limits =
            json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 2000, "nvidia.com/gpucores": 30});
        let words = [
            "count",
            "uuids",
            "total",
            "nvml",
            "take=1000",
            "take=1200",
            "free",
            "hold",
        ];
        let made = world.make_pod(gpu_pod("first", &limits, &words)).await;
        let spec = made.spec.as_ref().unwrap();
        assert_eq!(spec.scheduler_name.as_deref(), Some("hami-scheduler"));

        let said = world.said("first", words.len()).await;
        let pod = world.until_ready("first").await;

        let given = devices(&pod);
        assert_eq!(given.len(), 1);
        assert_eq!(given[0].1, 2000);
        assert_eq!(said["count"], "1");
        assert_eq!(said["uuids"], given[0].0);
        assert_eq!(said["total"], (2000 * MIB).to_string());
        assert!(
            said["nvml"].starts_with(&format!("{}/", 2000 * MIB)),
            "{said:?}"
        );
        assert_eq!(said["take=1000"], "took");
        assert_eq!(said["take=1200"], "refused CUDA_ERROR_OUT_OF_MEMORY");
        let free: u64 = said["free"].parse().unwrap();
        assert!(free <= 1000 * MIB, "{free} of what is left");
        // The GPU itself: a refused request never reached it.
        let gpu = (0..world.board.gpus()).find(|&gpu| world.board.uuid(gpu) == given[0].0);
        let used = world.board.used_bytes(gpu.unwrap());
        assert!((1000 * MIB..=2000 * MIB).contains(&used), "{used}");
    });
}

#[test]
fn two_pods_on_one_gpu_hold_their_shares() {
    within(async |world| {
        let words = [
            "uuids",
            "total",
            "take=3000",
            "take=3000",
            "take=3000",
            "hold",
        ];
        let pods = [("small", 4000), ("large", 7000)];
        let first = world.board.uuid(0);
        for (name, memory) in pods {
            let mut pod = gpu_pod(name, &share(memory), &words);
            pod["metadata"]["annotations"] = json!({"nvidia.com/use-gpuuuid": first});
            world.make_pod(pod).await;
        }

        for (name, memory) in pods {
            let said = world.said(name, words.len()).await;
            assert_eq!(said["uuids"], first, "{name}");
            assert_eq!(said["total"], (memory * MIB).to_string(), "{name}");
        }
        let took = |lines: &[String]| lines.iter().filter(|line| line.ends_with(" took")).count();
        assert_eq!(took(&world.lines("small", "work", words.len()).await), 1);
        assert_eq!(took(&world.lines("large", "work", words.len()).await), 2);
        assert_eq!(world.board.processes(0).len(), 2);
    });
}
