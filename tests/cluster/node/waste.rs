//! What is left of pods that ended; the last test to run, so that most of it has been dead for a while.

use std::collections::BTreeSet;

use kube::api::ListParams;

use crate::agent;
use crate::world::{gpu_pod, share, uid, within};

#[test]
fn what_ended_pods_had_is_cleared_away_and_nothing_of_one_that_runs() {
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
        // Of its 1500 MiB, 500 are taken and 600 are the contexts of the two processes.
        assert_eq!(world.ask("kept", "work", &["take=400"]), ["took"]);
    });
}
