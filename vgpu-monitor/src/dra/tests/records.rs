//! Records of claims that were lost, or that the disk does not let go.

use super::*;

#[tokio::test]
async fn lost_record_costs_no_running_container_its_files() {
    let world = World::new();
    world.objects.pod(&[("work", &[("share", None)])]);
    world.objects.claim("share", &[("gpu", 0, 1024, 0)]);
    let driver = world.driver().await;
    let given = driver.prepare_one("share").await.unwrap();
    driver.end().await;
    let record = world.node.path("var/lib/vgpu/claims/u-share.json");
    std::fs::remove_file(&record).unwrap();
    let folder = world.node.path("var/lib/vgpu/containers/claim-u-share");
    let slot = crate::delivery::tests::repair::lock(&folder.join("region"));
    let limits = std::fs::read(folder.join("limits")).unwrap();
    let driver = world.driver().await;

    // The record cannot be written, and the claim was given something else meanwhile.
    let new = world.node.path("var/lib/vgpu/claims/.u-share.json.new");
    std::fs::create_dir(&new).unwrap();
    let why = driver.prepare_one("share").await.unwrap_err();
    assert!(why.contains("cannot write the claim's record"), "{why}");
    std::fs::remove_dir(&new).unwrap();
    world.objects.claim("share", &[("gpu", 0, 2048, 0)]);
    let why = driver.prepare_one("share").await.unwrap_err();
    assert!(why.contains("which was given other devices"), "{why}");
    assert!(std::fs::read(folder.join("limits")).unwrap() == limits);
    assert!(world.description("claim-u-share").is_some());

    world.objects.claim("share", &[("gpu", 0, 1024, 0)]);
    assert_eq!(driver.prepare_one("share").await.unwrap(), given);
    assert!(record.exists());
    drop(slot);
    assert_eq!(driver.unprepare("share").await, "");
    driver.end().await;
}

#[tokio::test]
async fn record_that_could_not_be_removed_is_removed_later() {
    let world = World::new();
    world.has_two_claims();
    let driver = world.driver().await;
    driver.prepare_one("one").await.unwrap();
    driver.prepare_one("two").await.unwrap();
    // The garbage collection has cleared one claim, and the disk keeps its record.
    driver.delivery.remove(&part_name("u-one", 0)).unwrap();
    let record = world.node.path("var/lib/vgpu/claims/u-one.json");
    let text = std::fs::read(&record).unwrap();
    std::fs::remove_file(&record).unwrap();
    std::fs::create_dir(&record).unwrap();
    let known = || driver.checkpoint.all().into_keys().collect::<Vec<_>>();

    // Neither as long as the API server has it allocated, nor while that cannot be known.
    driver.preparer.forget_gone().await;
    let objects = world.objects.0.lock().take();
    driver.preparer.forget_gone().await;
    *world.objects.0.lock() = objects;
    assert_eq!(known(), ["u-one", "u-two"]);
    world.objects.remove(&claim_path("one"));
    world.objects.remove(&claim_path("two"));
    driver.preparer.forget_gone().await;
    assert_eq!(known(), ["u-one", "u-two"], "the disk keeps the record");

    std::fs::remove_dir(&record).unwrap();
    std::fs::write(&record, text).unwrap();
    driver.preparer.forget_gone().await;

    // The other claim has its directory, so the garbage collection decides about it.
    assert_eq!(known(), ["u-two"]);
    assert!(!record.exists());
    driver.end().await;
}
