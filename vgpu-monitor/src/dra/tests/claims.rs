//! Claims that are made ready, given again, and taken away.

use super::*;
use crate::delivery::tests::GIB;
use crate::{exporter, regions};

#[tokio::test]
async fn floor_of_a_claim_and_memory_beyond_its_share_reach_the_limits() {
    let world = World::new();
    world.objects.claim("share", &[("gpu", 0, 4096, 30)]);
    world.objects.pod(&[("work", &[("share", None)])]);
    if let Some(all) = world.objects.0.lock().as_mut() {
        let claim = all.get_mut(&claim_path("share")).unwrap();
        let with = |source: &str, field: &str, value: Value| {
            json!({"source": source, "opaque": {"driver": DRIVER, "parameters": {
                "apiVersion": "gpu.vgpu.io/v1", "kind": "ShareParameters", field: value}}})
        };
        claim["status"]["allocation"]["devices"]["config"] = json!([
            with("FromClass", "oversubscribe", json!("2Gi")),
            with("FromClaim", "floor", json!(20)),
        ]);
    }
    let driver = world.driver().await;

    driver.prepare_one("share").await.unwrap();

    let limits = world
        .node
        .path("var/lib/vgpu/containers/claim-u-share/limits");
    let limits = LimitsMap::open(&limits).unwrap().load().unwrap();
    let limits = vgpu_abi::limits::Limits::from(&limits);
    let gpu = limits.devices[0];
    assert_eq!((gpu.memory_bytes, gpu.resident_bytes), (6 * GIB, 4 * GIB));
    assert_eq!((gpu.core_percent, gpu.floor_percent), (30, 20));
    driver.end().await;
}

#[tokio::test]
async fn claim_is_made_ready_again_and_taken_away() {
    let world = World::new();
    world.objects.claim("share", &[("gpu", 0, 4096, 30)]);
    world.objects.pod(&[("work", &[("share", None)])]);
    let driver = world.driver().await;

    let given = driver.prepare_one("share").await.unwrap();

    let device = Device {
        request_names: vec![String::from("gpu")],
        pool_name: String::from("n1"),
        device_name: device_name(GPUS[0]),
        cdi_device_ids: vec![String::from("vgpu.io/container=claim-u-share-0")],
        share_id: Some(String::from("s-gpu")),
    };
    assert_eq!(given, [device]);
    assert_eq!(
        world.limits("claim-u-share"),
        [(GPUS[0].to_owned(), 4 * GIB, 30)]
    );
    let spec = world.description("claim-u-share").unwrap();
    assert_eq!(spec["kind"], "vgpu.io/container");
    assert_eq!(spec["devices"][0]["name"], "claim-u-share-0");
    let nodes = &spec["devices"][0]["containerEdits"]["deviceNodes"];
    assert_eq!(nodes[0]["path"], "/dev/nvidia4");
    // What belongs to every container stands once, however many devices one gets.
    let common = &spec["containerEdits"];
    assert_eq!(common["deviceNodes"][0]["path"], "/dev/nvidiactl");
    assert_eq!(common["hooks"].as_array().unwrap().len(), 1);
    let variables = common["env"].as_array().unwrap();
    assert!(variables.contains(&json!("NVIDIA_VISIBLE_DEVICES=void")));
    let preloads = |mount: &Value| mount["containerPath"] == "/etc/ld.so.preload";
    assert!(common["mounts"].as_array().unwrap().iter().any(preloads));
    let labels = driver.delivery.labels(&part_name("u-share", 0)).unwrap();
    assert_eq!(
        (
            labels.pod.as_str(),
            labels.container.as_str(),
            labels.workload.team.as_str()
        ),
        ("p", "work", "vision")
    );
    // The exporter finds the claim's name where it finds the container.
    let containers = world.node.path("var/lib/vgpu/containers");
    let uid = nix::unistd::getuid().as_raw();
    let census = regions::read(&containers, None, uid, 0, regions::Budget::default()).unwrap();
    let shown: Vec<_> = census
        .found
        .iter()
        .map(|it| it.shown.claim.clone())
        .collect();
    let (name, uid) = (String::from("share"), String::from("u-share"));
    assert_eq!(shown, [Some(exporter::ShownClaim { name, uid })]);

    // Again, as after a restart of the kubelet; and by an agent that has just begun, without an API server.
    assert_eq!(driver.prepare_one("share").await.unwrap(), given);
    driver.end().await;
    *world.objects.0.lock() = None;
    let spec = world.node.path("var/run/cdi/vgpu-claim-u-share.json");
    std::fs::remove_file(&spec).unwrap();
    let driver = world.driver().await;
    assert_eq!(driver.prepare_one("share").await.unwrap(), given);
    assert!(spec.exists(), "the reboot emptied /var/run");

    assert_eq!(driver.unprepare("share").await, "");
    assert!(!spec.exists());
    assert!(driver.delivery.known().unwrap().is_empty());
    // It may come again, and for a claim that was never known.
    assert_eq!(driver.unprepare("share").await, "");
    assert_eq!(driver.unprepare("unknown").await, "");
    let why = driver.prepare_one("share").await.unwrap_err();
    assert!(why.contains("was not ready before"), "{why}");
    driver.end().await;
}

#[tokio::test]
async fn containers_with_requests_of_their_own_have_limits_of_their_own() {
    let world = World::new();
    world
        .objects
        .claim("share", &[("a", 0, 4096, 0), ("b", 0, 2048, 10)]);
    world.objects.pod(&[
        ("x", &[("share", Some("a"))]),
        ("y", &[("share", Some("b"))]),
    ]);
    let driver = world.driver().await;

    let given = driver.prepare_one("share").await.unwrap();

    let cdi = |at: usize| given[at].cdi_device_ids.clone();
    assert_eq!(cdi(0), ["vgpu.io/container=claim-u-share-0"]);
    assert_eq!(cdi(1), ["vgpu.io/container=claim-u-share-1-0"]);
    assert_eq!(world.limits("claim-u-share")[0].1, 4 * GIB);
    assert_eq!(world.limits("claim-u-share-1")[0].1, 2 * GIB);
    assert_eq!(driver.unprepare("share").await, "");
    assert!(driver.delivery.known().unwrap().is_empty());
    driver.end().await;
}

#[tokio::test]
async fn claims_of_one_call_are_made_ready_at_the_same_time() {
    let mut world = World::new();
    world.has_two_claims();
    // The API server shows the first claim when it is asked for the second.
    world.objects.1 = Some(Arc::new(tokio::sync::Barrier::new(2)));
    let driver = world.driver().await;

    let answers = driver.prepare(&["one", "two"]).await;

    assert_eq!(answers.len(), 2);
    for (uid, answer) in answers {
        assert!(answer.is_ok(), "{uid}: {answer:?}");
    }
    driver.end().await;
}
