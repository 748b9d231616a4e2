//! Claims that are refused: nothing is left of them, and nothing that runs is changed.

use super::*;
use crate::delivery::tests::GIB;

#[tokio::test]
async fn refused_claims_leave_nothing_and_say_why() {
    let world = World::new();
    world
        .objects
        .pod(&[("work", &[("one", None), ("two", None)])]);
    world.objects.claim("one", &[("gpu", 0, 1024, 0)]);
    world.objects.claim("two", &[("gpu", 1, 1024, 0)]);
    let driver = world.driver().await;

    // A container with two claims, both in one call.
    for (_, answer) in driver.prepare(&["one", "two"]).await {
        let why = answer.unwrap_err();
        assert!(
            why.contains("container work uses 2 claims of GPUs (one, two)"),
            "{why}"
        );
    }
    // A deleted claim, and another one of its name.
    let why = driver.prepare_one("gone").await.unwrap_err();
    assert!(why.contains("default/gone is gone"), "{why}");
    world.objects.pod(&[("work", &[("one", None)])]);
    let path = claim_path("one");
    let mut other = world.objects.0.lock().clone().unwrap()[&path].clone();
    other["metadata"]["uid"] = json!("u-later");
    let first = other.clone();
    world.objects.put(&path, first);
    let why = driver.prepare_one("one").await.unwrap_err();
    assert!(why.contains("u-later"), "{why}");
    // More than the GPU has.
    world.objects.claim("one", &[("gpu", 0, 17 << 10, 0)]);
    let why = driver.prepare_one("one").await.unwrap_err();
    assert!(why.contains("is more than is left of its 16Gi"), "{why}");
    // A sick GPU.
    world.objects.claim("one", &[("gpu", 0, 1024, 0)]);
    world.makes_sick(0);
    let why = driver.prepare_one("one").await.unwrap_err();
    assert!(why.contains("cannot be used now: XID 79"), "{why}");
    world.health.send_replace(Arc::default());
    // A pod that was deleted.
    world.objects.remove("api/v1/namespaces/default/pods/p");
    let why = driver.prepare_one("one").await.unwrap_err();
    assert!(why.contains("reserved for no pod"), "{why}");

    assert!(driver.delivery.known().unwrap().is_empty());
    assert_eq!(world.description("claim-u-one"), None);
    // The kubelet tries again, and by then it can be.
    world.objects.pod(&[("work", &[("one", None)])]);
    driver.prepare_one("one").await.unwrap();
    driver.end().await;
}

#[tokio::test]
async fn claim_that_cannot_be_written_is_refused_and_leaves_other_claims_alone() {
    let world = World::new();
    world.has_two_claims();
    let driver = world.driver().await;
    driver.prepare_one("one").await.unwrap();
    let files = |name: &str| {
        let path = world.node.path("var/lib/vgpu/containers").join(name);
        let read = |file: &str| std::fs::read(path.join(file)).unwrap();
        (read("limits"), read("container.json"))
    };
    let before = files("claim-u-one");

    // A folder in the place of the record's new version: it cannot be written, by root either.
    let new = world.node.path("var/lib/vgpu/claims/.u-two.json.new");
    std::fs::create_dir(&new).unwrap();
    let why = driver.prepare_one("two").await.unwrap_err();
    assert!(why.contains("cannot write the claim's record"), "{why}");
    assert_eq!(world.description("claim-u-two"), None);
    assert_eq!(driver.delivery.known().unwrap(), [part_name("u-one", 0)]);
    std::fs::remove_dir(&new).unwrap();

    // The same in the place of the description.
    let cdi = world.node.path("var/run/cdi/.vgpu-claim-u-two.json.new");
    std::fs::create_dir(&cdi).unwrap();
    let why = driver.prepare_one("two").await.unwrap_err();
    assert!(why.contains(".vgpu-claim-u-two.json.new"), "{why}");
    assert_eq!(driver.delivery.known().unwrap(), [part_name("u-one", 0)]);
    std::fs::remove_dir(&cdi).unwrap();

    assert!(files("claim-u-one") == before, "the first claim's files");
    driver.prepare_one("two").await.unwrap();
    driver.end().await;
}

#[tokio::test]
async fn claim_in_use_is_neither_taken_away_nor_changed() {
    let world = World::new();
    world.objects.pod(&[("work", &[("share", None)])]);
    world.objects.claim("share", &[("gpu", 0, 1024, 0)]);
    let driver = world.driver().await;
    driver.prepare_one("share").await.unwrap();
    let limits = world.limits("claim-u-share");
    // A process holds a slot.
    let region = world
        .node
        .path("var/lib/vgpu/containers/claim-u-share/region");
    let slot = crate::delivery::tests::repair::lock(&region);

    let why = driver.unprepare("share").await;
    assert!(why.contains("a process still uses"), "{why}");
    // The scheduler has given the claim another GPU meanwhile.
    world.objects.claim("share", &[("gpu", 1, 2048, 0)]);
    let why = driver.prepare_one("share").await.unwrap_err();
    assert!(why.contains("was given other devices"), "{why}");
    assert_eq!(world.limits("claim-u-share"), limits);

    drop(slot);
    driver.prepare_one("share").await.unwrap();
    assert_eq!(
        world.limits("claim-u-share"),
        [(GPUS[1].to_owned(), 2 * GIB, 0)]
    );
    assert_eq!(driver.unprepare("share").await, "");
    driver.end().await;
}
