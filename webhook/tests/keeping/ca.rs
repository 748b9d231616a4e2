//! The CA that the replicas agree on, and their certificates from it.

use std::time::Duration;

use jiff::SignedDuration;
use kube::api::DeleteParams;
use serde_json::json;
use webhook::authority::CaCertificate;
use webhook::keeper::Source;

use crate::keeping::support::{self, MUTATING, World, days, wanted};

fn certificates(bundle: &str) -> usize {
    CaCertificate::read_all(bundle).len()
}

#[tokio::test]
async fn replicas_that_start_at_once_on_an_empty_cluster_agree() {
    let world = World::new();
    let mut replicas = Vec::new();
    for name in ["a", "b", "c", "d"] {
        replicas.push(world.replica(name).await);
    }

    let looks = replicas.iter_mut().map(|replica| replica.keeper.look());
    for looked in futures_util::future::join_all(looks).await {
        looked.unwrap();
    }
    for replica in &mut replicas {
        replica.settles().await;
    }

    let bundle = world.bundle().await;
    assert_eq!(certificates(&bundle), 1);
    assert_eq!(world.secret().await["ca.crt"], bundle);
    for replica in &replicas {
        assert!(world.is_served(replica, &bundle).await);
        assert!(replica.is_ready(), "{:?}", replica.readiness.reason());
    }
    let made = |replica: &support::Replica| replica.metrics().contains("ca_rotations_total{");
    assert_eq!(replicas.iter().filter(|replica| made(replica)).count(), 1);
    // Each replica has a key of its own.
    let shown: std::collections::BTreeSet<_> = replicas
        .iter()
        .map(|replica| replica.tls.certificate())
        .collect();
    assert_eq!(shown.len(), 4);
}

#[tokio::test]
async fn each_replica_renews_its_own_serving_certificate_in_time() {
    let world = World::new();
    let (mut a, mut b) = (world.replica("a").await, world.replica("b").await);
    a.settles().await;
    b.settles().await;
    let bundle = world.bundle().await;
    let before = (a.tls.certificate(), b.tls.certificate());
    let writes = world.writes();

    world.pass(days(19));
    a.settles().await;
    assert_eq!(a.tls.certificate(), before.0);
    world.pass(days(2));
    a.settles().await;
    b.settles().await;

    assert_ne!(a.tls.certificate(), before.0);
    assert_ne!(b.tls.certificate(), before.1);
    assert_eq!(world.writes(), writes, "it concerns no other replica");
    world.pass(days(15));
    assert!(world.is_served(&a, &bundle).await);
    assert!(world.is_served(&b, &bundle).await);
}

#[tokio::test]
async fn a_ca_is_rotated_in_time_with_both_trusted_meanwhile() {
    let world = World::new();
    let (mut holder, mut other) = (world.replica("a").await, world.replica("b").await);
    holder.settles().await;
    other.settles().await;
    let old = world.bundle().await;

    // Two thirds of a year later, with renewals of serving certificates on the way.
    for _ in 0..27 {
        world.pass(days(9));
        holder.settles().await;
        other.settles().await;
        assert_eq!(world.bundle().await, old);
    }
    world.pass(days(9));
    other.settles().await;
    assert_eq!(world.bundle().await, old, "the holder alone replaces a CA");
    holder.settles().await;
    other.settles().await;

    let both = world.bundle().await;
    assert_eq!(certificates(&both), 2);
    assert!(both.ends_with(&old) && both != old);
    let new = both.strip_suffix(&old).unwrap().to_owned();
    // An API server that has not seen the change yet still trusts the shown certificates.
    for replica in [&holder, &other] {
        assert!(world.is_served(replica, &old).await);
        assert!(world.is_served(replica, &both).await);
        assert!(!world.is_served(replica, &new).await);
    }

    // All API servers have seen it: the new CA signs, and clients that trust both are still served.
    world.pass(SignedDuration::from_mins(1));
    holder.settles().await;
    assert!(world.is_served(&holder, &new).await);
    assert!(world.is_served(&holder, &both).await);
    assert!(world.is_served(&other, &old).await);
    other.settles().await;
    assert!(world.is_served(&other, &new).await);

    // A day later the old CA is dropped.
    world.pass(days(1));
    other.settles().await;
    assert_eq!(world.bundle().await, both);
    holder.settles().await;
    assert_eq!(world.bundle().await, new);
    assert_eq!(world.secret().await["old.crt"], "");
    for replica in [&holder, &other] {
        assert!(world.is_served(replica, &new).await);
        assert!(replica.is_ready());
    }
    assert!(
        holder
            .metrics()
            .contains("ca_rotations_total{reason=\"due\"} 1")
    );
}

#[tokio::test]
async fn a_deleted_secret_gets_a_new_ca_without_downtime() {
    let world = World::new();
    let (mut a, mut b) = (world.replica("a").await, world.replica("b").await);
    a.settles().await;
    b.settles().await;
    let old = world.bundle().await;
    world
        .secrets()
        .delete("vgpu-webhook-ca", &DeleteParams::default())
        .await
        .unwrap();

    // The first replica that reads it.
    b.settles().await;
    assert!(
        world.is_served(&b, &old).await,
        "no configuration trusts the new one yet"
    );
    a.settles().await;
    b.settles().await;

    let both = world.bundle().await;
    assert_eq!(certificates(&both), 2);
    assert_ne!(world.secret().await["ca.crt"], old);
    assert!(
        b.metrics()
            .contains("ca_rotations_total{reason=\"deleted\"} 1")
    );
    world.pass(SignedDuration::from_mins(1));
    a.settles().await;
    b.settles().await;
    let new = both.strip_suffix(&old).unwrap();
    for replica in [&a, &b] {
        assert!(world.is_served(replica, new).await);
    }
    let notes = world.event_notes().await;
    assert!(
        notes
            .iter()
            .any(|note| note == "the Secret of the webhook's CA was deleted; it holds a new CA"),
        "{notes:?}"
    );
}

#[tokio::test]
async fn another_ca_in_the_secret_is_adopted_without_downtime() {
    let backup = {
        let world = World::new();
        let mut replica = world.replica("x").await;
        replica.settles().await;
        world.secret().await
    };
    let world = World::new();
    let (mut a, mut b) = (world.replica("a").await, world.replica("b").await);
    a.settles().await;
    b.settles().await;
    let old = world.bundle().await;
    world.pass(days(60));
    a.settles().await;
    b.settles().await;

    // A valid pair, made before ours was replaced, without anything of ours.
    for key in ["ca.crt", "ca.key", "old.crt", "old.since"] {
        world
            .set_secret(key, backup.get(key).map(String::as_str))
            .await;
    }
    b.settles().await;
    assert!(
        world.is_served(&b, &old).await,
        "no configuration trusts another"
    );
    a.settles().await;
    b.settles().await;
    let both = world.bundle().await;
    assert_eq!(both, format!("{}{old}", backup["ca.crt"]));
    for replica in [&a, &b] {
        assert!(world.is_served(replica, &old).await);
    }

    world.pass(SignedDuration::from_mins(1));
    a.settles().await;
    b.settles().await;
    for replica in [&a, &b] {
        assert!(world.is_served(replica, &backup["ca.crt"]).await);
    }
    assert_eq!(world.bundle().await, both);
    world.pass(days(1));
    a.settles().await;
    assert_eq!(world.bundle().await, backup["ca.crt"]);
}

#[tokio::test]
async fn a_broken_secret_is_replaced_whatever_is_wrong_with_it() {
    let other_ca = {
        let world = World::new();
        let mut replica = world.replica("x").await;
        replica.settles().await;
        world.secret().await
    };
    let leaf_key = rcgen::KeyPair::generate().unwrap();
    let leaf = rcgen::CertificateParams::new(["x".to_owned()])
        .unwrap()
        .self_signed(&leaf_key)
        .unwrap()
        .pem();
    for (key, value, reason) in [
        ("ca.crt", None, "ca.crt is missing"),
        ("ca.key", None, "ca.key is missing"),
        ("ca.crt", Some("hello"), "ca.crt is not a certificate"),
        ("ca.crt", Some(""), "ca.crt is not a certificate"),
        ("ca.crt", Some(&leaf), "not a CA's"),
        ("ca.key", Some("hello"), "ca.key is not a private key"),
        (
            "ca.key",
            Some(&other_ca["ca.key"]),
            "ca.key is not the key of ca.crt",
        ),
        (
            "ca.crt",
            Some(&other_ca["ca.crt"]),
            "ca.key is not the key of ca.crt",
        ),
    ] as [(&str, Option<&str>, &str); 8]
    {
        let world = World::new();
        let (mut a, mut b) = (world.replica("a").await, world.replica("b").await);
        a.settles().await;
        b.settles().await;
        let old = world.bundle().await;
        world.set_secret(key, value).await;

        // A replica without the Lease changes nothing and keeps serving.
        assert!(!b.keeper.look().await.unwrap());
        assert_eq!(world.bundle().await, old);
        a.settles().await;
        b.settles().await;

        let secret = world.secret().await;
        let bundle = world.bundle().await;
        assert!(bundle.starts_with(&secret["ca.crt"]), "{reason}");
        assert!(
            bundle.contains(&old),
            "{reason}: what is shown stays trusted"
        );
        for replica in [&a, &b] {
            assert!(world.is_served(replica, &bundle).await, "{reason}");
            assert!(replica.is_ready(), "{reason}");
        }
        assert!(
            a.metrics()
                .contains("ca_rotations_total{reason=\"broken\"} 1")
        );
        // A replica that starts now can use the existing Secret.
        let mut c = world.replica("c").await;
        c.settles().await;
        assert!(world.is_served(&c, &bundle).await, "{reason}");

        // A replica that starts without the Lease on a broken Secret says which replica it waits for.
        world.set_secret(key, value).await;
        let mut d = world.replica("d").await;
        let error = d.keeper.look().await.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
        assert!(
            d.readiness
                .reason()
                .unwrap()
                .contains("holder of the Lease")
        );
    }
}

#[tokio::test]
async fn an_expired_ca_is_replaced() {
    let world = World::new();
    let mut first = world.replica("a").await;
    first.settles().await;
    drop(first);
    // The whole cluster slept for two years.
    world.pass(days(730));

    let mut replica = world.replica("a").await;
    replica.settles().await;

    let bundle = world.bundle().await;
    assert_eq!(certificates(&bundle), 1, "an expired one is of no use");
    assert!(world.is_served(&replica, &bundle).await);
}

#[tokio::test]
async fn a_given_certificate_comes_with_or_without_a_ca_bundle() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new([support::NAME.to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap()
        .pem();
    std::fs::write(at("tls.crt"), &certificate).unwrap();
    std::fs::write(at("tls.key"), key.serialize_pem()).unwrap();
    let tls = || {
        server::Tls::from_files(server::TlsFiles {
            certificate: at("tls.crt"),
            key: at("tls.key"),
            client_ca: None,
        })
        .unwrap()
    };
    let hour = Duration::from_secs(3600);
    let world = World::new();

    // cert-manager writes the bundle; we keep the other fields and leave the bundle alone.
    let given = Source::Given { bundle: None };
    let mut replica = world.replica_with("a", wanted(), hour, given, tls()).await;
    replica.settles().await;
    let live = world.configuration(MUTATING).await;
    let client = &live["webhooks"][0]["clientConfig"];
    assert_eq!(client["service"]["name"], "vgpu-webhook", "{live}");
    assert_eq!(client["caBundle"], json!(null), "{live}");
    assert!(replica.is_ready());
    assert!(
        world
            .secrets()
            .get_opt("vgpu-webhook-ca")
            .await
            .unwrap()
            .is_none()
    );
    world
        .edit(MUTATING, |live| {
            live["webhooks"][0]["clientConfig"]["caBundle"] = json!("YQ==");
            live["webhooks"][0]["timeoutSeconds"] = json!(1);
        })
        .await;
    replica.settles().await;
    let live = world.configuration(MUTATING).await;
    assert_eq!(live["webhooks"][0]["clientConfig"]["caBundle"], "YQ==");
    assert_eq!(live["webhooks"][0]["timeoutSeconds"], 10);
    replica.keeper.let_go().await;

    // With the CA in a file we write it.
    std::fs::write(at("ca.crt"), &certificate).unwrap();
    let given = Source::Given {
        bundle: Some(at("ca.crt")),
    };
    let mut replica = world.replica_with("b", wanted(), hour, given, tls()).await;
    replica.settles().await;
    assert_eq!(world.bundle().await, certificate);
    assert!(world.is_served(&replica, &certificate).await);
    assert!(
        replica
            .metrics()
            .contains("certificate_expiry_timestamp_seconds 6")
    );
}
