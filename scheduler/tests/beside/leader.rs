use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use scheduler::leader::{LeaderSettings, Leadership, NotLeader};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use crate::beside::support::{self, Server};

const OURS: &str = "host-1_0b7c";

fn api() -> support::Api {
    support::Api::with(&json!({ "namespaces": [{ "metadata": { "name": "sched" } }] }))
}

fn follow(api: &support::Api) -> Leadership {
    Leadership::follow(
        api.client(),
        LeaderSettings::new("sched", "hami-scheduler", "host-1"),
    )
}

fn leases(api: &support::Api) -> Api<Lease> {
    Api::namespaced(api.direct(), "sched")
}

async fn create(api: &support::Api, holder: &str, renewed: Timestamp) {
    let lease = serde_json::from_value(json!({
        "metadata": { "name": "hami-scheduler", "namespace": "sched" },
        "spec": { "holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": micro(renewed) },
    }));
    leases(api)
        .create(&PostParams::default(), &lease.unwrap())
        .await
        .unwrap();
}

async fn renew(api: &support::Api, holder: &str, renewed: Timestamp) {
    let patch = json!({ "spec": { "holderIdentity": holder, "renewTime": micro(renewed) } });
    leases(api)
        .patch(
            "hami-scheduler",
            &PatchParams::default(),
            &Patch::Merge(patch),
        )
        .await
        .unwrap();
}

fn micro(time: Timestamp) -> String {
    format!("{time:.6}")
}

fn long_ago() -> Timestamp {
    "2001-01-01T00:00:00Z".parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_one_beside_the_holder_answers_and_no_other() {
    let api = api();
    let leadership = follow(&api);
    assert!(matches!(
        leadership.answers(),
        Err(NotLeader::Unknown { .. })
    ));
    sleep(Duration::from_secs(1)).await;
    assert!(matches!(
        leadership.answers(),
        Err(NotLeader::NoLease { .. })
    ));

    create(&api, "host-10_9a", Timestamp::now()).await;
    sleep(Duration::from_secs(3)).await;
    let no = leadership.answers().unwrap_err();
    assert_eq!(
        no.to_string(),
        "the lease sched/hami-scheduler is held by host-10_9a, not on this host (host-1)"
    );

    renew(&api, OURS, Timestamp::now()).await;
    sleep(Duration::from_secs(3)).await;
    assert_eq!(leadership.answers(), Ok(()));
    assert_eq!(leadership.terms(), 1);

    // Given up at a shutdown.
    renew(&api, "", Timestamp::now()).await;
    sleep(Duration::from_secs(3)).await;
    assert!(matches!(
        leadership.answers(),
        Err(NotLeader::NoHolder { .. })
    ));

    leases(&api)
        .delete("hami-scheduler", &DeleteParams::default())
        .await
        .unwrap();
    sleep(Duration::from_secs(3)).await;
    assert!(matches!(
        leadership.answers(),
        Err(NotLeader::NoLease { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_not_renewed_is_no_lease() {
    let api = api();
    create(&api, OURS, Timestamp::now()).await;
    let leadership = follow(&api);
    for _ in 0..10 {
        sleep(Duration::from_secs(5)).await;
        assert_eq!(leadership.answers(), Ok(()));
        renew(&api, OURS, Timestamp::now()).await;
    }

    sleep(Duration::from_secs(18)).await;

    let no = leadership.answers().unwrap_err();
    assert_eq!(
        no.to_string(),
        "host-1_0b7c holds the lease sched/hami-scheduler and was not seen to renew it for 15 s"
    );
    renew(&api, OURS, Timestamp::now()).await;
    assert_eq!(leadership.wait(Duration::from_secs(1)).await, Ok(()));
    assert_eq!(leadership.terms(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_old_lease_counts_once_renewed_regardless_of_clocks() {
    let api = api();
    // Left behind by a kube-scheduler that is dead, or written by one whose clock is wrong.
    create(&api, OURS, long_ago()).await;
    let leadership = follow(&api);
    sleep(Duration::from_secs(5)).await;
    assert!(matches!(
        leadership.answers(),
        Err(NotLeader::Expired { .. })
    ));

    renew(&api, OURS, long_ago() + Duration::from_secs(2)).await;
    sleep(Duration::from_secs(3)).await;

    assert_eq!(leadership.answers(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn without_the_server_the_last_answer_lasts_for_the_lease() {
    for server in [Server::Away, Server::Hangs] {
        let api = api();
        create(&api, OURS, Timestamp::now()).await;
        let leadership = follow(&api);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(leadership.answers(), Ok(()));

        api.is(server);
        sleep(Duration::from_secs(13)).await;
        assert_eq!(leadership.answers(), Ok(()));
        sleep(Duration::from_secs(3)).await;
        let no = leadership.answers().unwrap_err();
        assert!(
            matches!(&no, NotLeader::Expired { problem, .. } if !problem.is_empty()),
            "{no}"
        );

        // Another one has taken over meanwhile.
        renew(&api, "host-2_77", Timestamp::now()).await;
        api.is(Server::Up);
        sleep(Duration::from_secs(8)).await;
        assert!(matches!(leadership.answers(), Err(NotLeader::Other { .. })));
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiting_caller_sees_a_takeover_at_once() {
    let api = api();
    create(&api, "host-2_77", Timestamp::now()).await;
    let leadership = follow(&api);
    sleep(Duration::from_millis(2500)).await;

    let began = Instant::now();
    let waiting = {
        let leadership = leadership.clone();
        tokio::spawn(async move {
            let answer = leadership.wait(Duration::from_secs(5)).await;
            (answer, began.elapsed())
        })
    };
    let changed = {
        let leadership = leadership.clone();
        tokio::spawn(async move { leadership.changed().await })
    };
    sleep(Duration::from_millis(50)).await;
    renew(&api, OURS, Timestamp::now()).await;

    let (answer, took) = waiting.await.unwrap();
    assert_eq!(answer, Ok(()));
    assert!(took <= Duration::from_millis(300), "{took:?}");
    timeout(Duration::from_secs(1), changed)
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn many_waiting_callers_do_not_flood_the_server() {
    let api = api();
    let leadership = follow(&api);
    let waiting: Vec<_> = (0..100)
        .map(|_| {
            let leadership = leadership.clone();
            tokio::spawn(async move { leadership.wait(Duration::from_secs(1)).await })
        })
        .collect();
    for waiting in waiting {
        assert!(waiting.await.unwrap().is_err());
    }
    assert!(api.calls() <= 12, "{}", api.calls());
}

#[tokio::test(start_paused = true)]
async fn a_single_replica_always_answers() {
    let leadership = Leadership::always();
    assert_eq!(leadership.answers(), Ok(()));
    assert_eq!(leadership.wait(Duration::ZERO).await, Ok(()));
    let changed = timeout(Duration::from_secs(3600), leadership.changed()).await;
    assert!(changed.is_err());
}
