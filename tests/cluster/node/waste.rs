//! The remains of ended pods. This test runs last, so that most of them have been dead for a while.

use std::collections::BTreeSet;

use kube::api::ListParams;

use crate::agent;
use crate::world::{gpu_pod, share, uid, within};

#[test]
fn files_of_ended_pods_are_removed_and_of_running_ones_kept() {
    within(async |world| {
        let words = ["take=500", "hold"];
        world.make_pod(gpu_pod("kept", &share(1500), &words)).await;
        let pod = world.until_ready("kept").await;
        world.lines("kept", "work", words.len()).await;
        let kept = agent::given("kept");
        assert_eq!(kept.len(), 1);

        world
            .eventually("only what runs has a directory", async || {
                let living = world.pods().list(&ListParams::default()).await.ok()?;
                let living: BTreeSet<&str> = living.items.iter().map(uid).collect();
                let all = agent::all_given();
                let dead = all
                    .iter()
                    .filter(|given| !living.contains(given.pod_uid.as_str()))
                    .count();
                (dead == 0).then_some(())
            })
            .await;

        assert_eq!(agent::given("kept"), kept);
        assert_eq!(kept[0].pod_uid, uid(&pod));
        // Of its 1500 MiB, the program takes 500, and the contexts of the two processes 600.
        assert_eq!(world.ask("kept", "work", &["take=400"]), ["took"]);
    });
}
