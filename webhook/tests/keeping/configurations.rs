//! The webhook configurations: one replica writes them, corrects them, and leaves correct ones alone.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use kube::api::DeleteParams;
use serde_json::json;
use webhook::run::{Watched, keep};

use crate::keeping::support::{MUTATING, VALIDATING, World, wanted};

#[tokio::test]
async fn nothing_is_written_when_there_is_nothing_to_do() {
    let world = World::new();
    let (mut a, mut b) = (world.replica("a").await, world.replica("b").await);
    a.settles().await;
    b.settles().await;
    let before = world.writes();

    for _ in 0..5 {
        world.pass(SignedDuration::from_hours(5));
        assert!(!a.keeper.look().await.unwrap());
        assert!(!b.keeper.look().await.unwrap());
    }

    assert_eq!(world.writes(), before);
}

#[tokio::test]
async fn hand_edits_are_put_right_and_others_work_is_left_alone() {
    let world = World::new();
    let (mut a, mut b) = (world.replica("a").await, world.replica("b").await);
    a.settles().await;
    b.settles().await;
    let right = world.configuration(MUTATING).await["webhooks"].clone();
    let ca_of_another = json!("LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCg==");

    type Edit = (&'static str, Box<dyn Fn(&mut serde_json::Value)>);
    let edits: Vec<Edit> = vec![
        (
            "another caBundle",
            Box::new(move |live| {
                live["webhooks"][0]["clientConfig"]["caBundle"] = ca_of_another.clone();
            }),
        ),
        (
            "no caBundle",
            Box::new(|live| {
                let client = live["webhooks"][1]["clientConfig"].as_object_mut().unwrap();
                client.remove("caBundle");
            }),
        ),
        (
            "a failure policy",
            Box::new(|live| live["webhooks"][0]["failurePolicy"] = json!("Ignore")),
        ),
        (
            "a selector",
            Box::new(|live| {
                live["webhooks"][0]["objectSelector"] =
                    json!({ "matchLabels": { "never": "there" } });
            }),
        ),
        (
            "a wider selector",
            Box::new(|live| {
                live["webhooks"][0]["namespaceSelector"]["matchLabels"] = json!({ "a": "b" });
            }),
        ),
        (
            "another url",
            Box::new(|live| {
                let client = &mut live["webhooks"][0]["clientConfig"];
                *client =
                    json!({ "url": "https://example.org/webhook", "caBundle": client["caBundle"] });
            }),
        ),
        (
            "a condition",
            Box::new(|live| {
                live["webhooks"][0]["matchConditions"]
                    .as_array_mut()
                    .unwrap()
                    .push(json!({ "name": "never", "expression": "false" }));
            }),
        ),
        (
            "one more entry",
            Box::new(|live| {
                let mut entry = live["webhooks"][0].clone();
                entry["name"] = json!("another.vgpu.io");
                live["webhooks"].as_array_mut().unwrap().push(entry);
            }),
        ),
        (
            "an entry less",
            Box::new(|live| drop(live["webhooks"].as_array_mut().unwrap().remove(0))),
        ),
        (
            "the order",
            Box::new(|live| live["webhooks"].as_array_mut().unwrap().reverse()),
        ),
        ("none", Box::new(|live| live["webhooks"] = json!([]))),
    ];
    for (what, edit) in edits {
        world
            .edit(MUTATING, |live| {
                edit(live);
                live["metadata"]["annotations"]["note"] = json!(what);
                live["metadata"]["labels"]["team"] = json!("platform");
            })
            .await;
        assert_ne!(
            world.configuration(MUTATING).await["webhooks"],
            right,
            "{what}"
        );
        let before = world.writes();

        b.settles().await;
        assert_eq!(
            world.writes(),
            before,
            "{what}: one replica writes, and not this one"
        );
        a.settles().await;

        let live = world.configuration(MUTATING).await;
        assert_eq!(live["webhooks"], right, "{what}");
        assert_eq!(live["metadata"]["annotations"]["note"], what);
        assert_eq!(live["metadata"]["labels"]["team"], "platform");
        assert_eq!(world.writes(), before + 1, "{what}: written once");
        assert!(
            a.is_ready() && {
                b.settles().await;
                b.is_ready()
            }
        );
    }
    for kind in [MUTATING, VALIDATING] {
        let before = world.configuration(kind).await["webhooks"].clone();
        world
            .configurations(kind)
            .delete("vgpu-webhook", &DeleteParams::default())
            .await
            .unwrap();
        b.settles().await;
        a.settles().await;
        assert_eq!(world.configuration(kind).await["webhooks"], before);
    }
}

#[tokio::test]
async fn a_replica_that_is_not_trusted_says_so_until_it_is() {
    let world = World::new();
    let (mut a, mut b) = (world.replica("a").await, world.replica("b").await);
    a.settles().await;
    b.settles().await;
    world
        .edit(MUTATING, |live| {
            live["webhooks"][0]["clientConfig"]["caBundle"] = json!("YQ==");
        })
        .await;

    b.settles().await;
    let reason = b.readiness.reason().unwrap();
    assert!(
        reason.contains("the caBundle of the MutatingWebhookConfiguration vgpu-webhook"),
        "{reason}"
    );

    a.settles().await;
    b.settles().await;
    assert!(b.is_ready());
}

#[tokio::test]
async fn an_old_api_server_gets_the_form_without_match_conditions() {
    let world = World::new();
    let mut replica = world.replica("a").await;
    *world.minor.lock().unwrap() = Some("27+".to_owned());
    replica.settles().await;
    let live = world.configuration(MUTATING).await;
    assert_eq!(live["webhooks"][0]["failurePolicy"], "Ignore");

    // The API server is upgraded while we run.
    *world.minor.lock().unwrap() = Some("28".to_owned());
    world.pass(SignedDuration::from_mins(11));
    replica.settles().await;

    let live = world.configuration(MUTATING).await;
    assert_eq!(live["webhooks"][0]["failurePolicy"], "Fail");
    assert_eq!(live["webhooks"][0]["matchConditions"][0]["name"], "asks");
}

#[tokio::test(start_paused = true)]
async fn a_silent_holder_is_replaced_and_two_releases_do_not_fight() {
    let world = World::new();
    let patience = Duration::from_secs(15);
    let next_release = {
        let wanted = wanted();
        Arc::new(move |match_conditions| {
            let mut all = wanted(match_conditions);
            all[0]["webhooks"][0]["timeoutSeconds"] = json!(7);
            all
        })
    };
    let mut old = world.replica_of("old", wanted(), patience).await;
    let mut new = world.replica_of("new", next_release, patience).await;
    let timeout =
        async || world.configuration(MUTATING).await["webhooks"][0]["timeoutSeconds"].clone();
    old.settles().await;
    for _ in 0..10 {
        world.wait(5).await;
        old.settles().await;
        new.settles().await;
        assert_eq!(timeout().await, 10);
    }

    // Silent, first for too short a time, then for long enough.
    world.wait(10).await;
    new.settles().await;
    assert_eq!(timeout().await, 10);
    world.wait(10).await;
    new.settles().await;
    assert_eq!(timeout().await, 7);

    // The silent replica comes back, and is no longer the holder.
    old.settles().await;
    new.settles().await;
    assert_eq!(timeout().await, 7);

    // A replica that ends passes the Lease on at once.
    new.keeper.let_go().await;
    old.settles().await;
    assert_eq!(timeout().await, 10);
}

#[tokio::test]
async fn the_configurations_go_with_their_owner() {
    let world = World::new();
    let mut replica = world.replica("a").await;
    let owners =
        async || world.configuration(MUTATING).await["metadata"]["ownerReferences"].clone();
    replica.settles().await;
    assert_eq!(owners().await, json!(null), "there is no owner");

    // The chart is installed, and installed again.
    for uid in ["first", "second"] {
        *world.owner.lock().unwrap() = Some(uid.to_owned());
        replica.settles().await;
        assert_eq!(owners().await[0]["uid"], uid);
        assert_eq!(owners().await[0]["kind"], "ClusterRole");
        assert_eq!(owners().await.as_array().unwrap().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_program_that_undoes_every_write_slows_the_keeper() {
    let world = World::new();
    let replica = world
        .replica_of("a", wanted(), Duration::from_secs(30))
        .await;
    let watched = Watched {
        secret: None,
        configurations: Some("vgpu-webhook".to_owned()),
    };
    let never = std::future::pending::<()>();
    let keeping = tokio::spawn(keep(replica.keeper, world.client(), watched, never));
    while world
        .configurations(VALIDATING)
        .get_opt("vgpu-webhook")
        .await
        .unwrap()
        .is_none()
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    // Ten minutes of the paused clock.
    let mut undone = 0;
    for _ in 0..6000 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let live = world.configuration(MUTATING).await;
        if live["webhooks"][0]["timeoutSeconds"] == 10 {
            undone += 1;
            world
                .edit(MUTATING, |live| {
                    live["webhooks"][0]["timeoutSeconds"] = json!(1);
                })
                .await;
        }
    }

    assert!((30..=75).contains(&undone), "{undone}");
    assert!(!keeping.is_finished());
    keeping.abort();
}

#[tokio::test(start_paused = true)]
async fn an_unrenewed_lease_is_taken_despite_its_duration() {
    for (spec, waits) in [
        (json!(null), false),
        (json!({}), false),
        (json!({ "holderIdentity": "" }), false),
        (json!({ "holderIdentity": "ghost" }), true),
        (
            json!({ "holderIdentity": "ghost", "leaseDurationSeconds": -1 }),
            true,
        ),
        (
            json!({ "holderIdentity": "ghost", "leaseDurationSeconds": 2_000_000_000 }),
            true,
        ),
    ] {
        let world = World::new();
        let lease = json!({ "metadata": { "name": "vgpu-webhook" }, "spec": spec });
        let leases = world.leases();
        let lease = serde_json::from_value(lease).unwrap();
        leases.create(&Default::default(), &lease).await.unwrap();
        let patience = Duration::from_secs(15);
        let mut replica = world.replica_of("a", wanted(), patience).await;
        let holder = async || {
            let lease = leases.get("vgpu-webhook").await.unwrap();
            lease.spec.unwrap().holder_identity.unwrap_or_default()
        };

        replica.settles().await;
        assert_eq!(holder().await != "a", waits, "{spec}");
        // No replica waits for a year.
        world.wait(150).await;
        replica.settles().await;

        assert_eq!(holder().await, "a", "{spec}");
    }
}
