//! A replica while the API server is away, hangs or refuses.

use axum::http::Method;

use crate::keeping::support::{VALIDATING, World, days};

#[tokio::test]
async fn without_an_api_server_only_a_new_replica_waits() {
    let world = World::new();
    let mut old = world.replica("old").await;
    old.settles().await;
    let bundle = world.bundle().await;
    let before = old.tls.certificate();
    world.api_server_is_gone(true);

    let mut new = world.replica("new").await;
    let error = format!("{:#}", new.keeper.look().await.unwrap_err());
    assert!(
        error.contains("cannot read the Secret vgpu-webhook-ca"),
        "{error}"
    );
    let reason = new.readiness.reason().unwrap();
    assert!(reason.contains("connection refused"), "{reason}");
    assert!(!world.is_served(&new, &bundle).await);

    // The existing replica serves for longer than one certificate lasts.
    for _ in 0..4 {
        world.pass(days(21));
        old.keeper.look().await.unwrap_err();
        assert!(world.is_served(&old, &bundle).await);
        assert!(old.is_ready());
    }
    assert_ne!(old.tls.certificate(), before);

    world.api_server_is_gone(false);
    new.settles().await;
    assert!(new.is_ready());
    assert!(world.is_served(&new, &bundle).await);
    assert!(old.metrics().contains("cluster_failures_total 4"));
}

#[tokio::test]
async fn forbidden_writes_are_reported_and_the_rest_is_done() {
    let world = World::new();
    world.forbidden.lock().unwrap().extend([
        // A configuration is made by server-side apply.
        (Method::PATCH, "/mutatingwebhook".to_owned()),
        (Method::GET, "/leases/".to_owned()),
    ]);
    let mut replica = world.replica("a").await;

    // Without the Lease it serves, and writes nothing that only the holder writes.
    let error = format!("{:#}", replica.keeper.look().await.unwrap_err());
    assert!(
        error.contains("the Lease") && error.contains("forbidden"),
        "{error}"
    );
    let ca = world.secret().await["ca.crt"].clone();
    assert!(world.is_served(&replica, &ca).await);

    // With the Lease it writes what it may.
    world.forbidden.lock().unwrap().pop();
    let error = format!("{:#}", replica.keeper.look().await.unwrap_err());
    assert!(
        error.contains("the MutatingWebhookConfiguration vgpu-webhook"),
        "{error}"
    );
    assert!(world.configuration(VALIDATING).await["webhooks"].is_array());
    let reason = replica.readiness.reason().unwrap_or_default();
    assert!(
        reason.contains("the MutatingWebhookConfiguration vgpu-webhook is not there yet"),
        "an installer that waits for it would create pods without a review: {reason}"
    );
}

#[tokio::test(start_paused = true)]
async fn certificates_are_renewed_while_the_api_server_hangs() {
    let world = World::new();
    let mut replica = world.replica("a").await;
    replica.settles().await;
    let before = replica.tls.certificate();
    world.api_server_hangs(true);
    world.pass(days(25));

    let error = replica.keeper.look().await.unwrap_err().to_string();

    assert!(
        error.contains("did not answer within 30 seconds"),
        "{error}"
    );
    assert_ne!(replica.tls.certificate(), before);
    assert!(replica.is_ready());
    world.api_server_hangs(false);
    replica.settles().await;
}
