use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, DeleteParams, ListParams};
use scheduler::events::{Counts, Events, Kind, Limits};
use serde_json::json;
use tokio::time::sleep;

use crate::beside::support::{self, Server};

const POD: (&str, &str, &str) = ("default", "p", "uid-1");

fn api() -> support::Api {
    support::Api::with(&json!({
        "nodes": [{ "metadata": { "name": "n1" } }],
        "pods": [{ "metadata": { "name": "p", "namespace": "default" }, "spec": { "containers": [{ "name": "c", "image": "i" }] } }],
    }))
}

async fn written(api: &support::Api) -> Vec<Event> {
    let events: Api<Event> = Api::all(api.direct());
    let mut events = events.list(&ListParams::default()).await.unwrap().items;
    events.sort_by(|a, b| a.reason.cmp(&b.reason));
    events
}

/// The sum of all outcomes.
fn all(counts: Counts) -> u64 {
    counts.waiting + counts.sent + counts.merged + counts.dropped + counts.limited + counts.refused
}

#[tokio::test(start_paused = true)]
async fn an_event_names_its_object_source_and_count() {
    let api = api();
    let events = Events::start(api.client(), "hami-scheduler");

    events.pod(POD, Kind::Warning, "FilteringFailed", "first");
    sleep(Duration::from_secs(1)).await;
    events.pod(POD, Kind::Warning, "FilteringFailed", "second");
    events.pod(POD, Kind::Warning, "FilteringFailed", "third");
    events.node("n1", Kind::Warning, "DevicesUnreadable", "broken");
    sleep(Duration::from_secs(1)).await;

    let [of_node, of_pod] = &written(&api).await[..] else {
        panic!("one event for each object and reason")
    };
    assert_eq!(of_pod.count, Some(3));
    assert_eq!(of_pod.message.as_deref(), Some("third"));
    assert_eq!(of_pod.type_.as_deref(), Some("Warning"));
    assert_eq!(of_pod.involved_object.kind.as_deref(), Some("Pod"));
    assert_eq!(of_pod.involved_object.uid.as_deref(), Some("uid-1"));
    assert_eq!(of_pod.metadata.namespace.as_deref(), Some("default"));
    let component = of_pod.source.as_ref().unwrap().component.as_deref();
    assert_eq!(component, Some("hami-scheduler"));
    assert!(of_pod.first_timestamp <= of_pod.last_timestamp);
    // kubectl looks for a node's events by its name.
    assert_eq!(of_node.involved_object.uid.as_deref(), Some("n1"));
    assert_eq!(of_node.metadata.namespace.as_deref(), Some("default"));
    let counts = events.counts();
    assert_eq!((counts.sent, counts.merged, all(counts)), (3, 1, 4));
}

#[tokio::test(start_paused = true)]
async fn an_event_that_the_server_forgot_is_written_anew() {
    let api = api();
    let events = Events::start(api.client(), "hami-scheduler");
    events.pod(POD, Kind::Normal, "FilteringSucceed", "first");
    sleep(Duration::from_secs(1)).await;
    let all: Api<Event> = Api::namespaced(api.direct(), "default");
    for event in written(&api).await {
        let name = event.metadata.name.unwrap();
        all.delete(&name, &DeleteParams::default()).await.unwrap();
    }

    events.pod(POD, Kind::Normal, "FilteringSucceed", "second");
    sleep(Duration::from_secs(1)).await;

    let [event] = &written(&api).await[..] else {
        panic!("one event")
    };
    assert_eq!(event.message.as_deref(), Some("second"));
}

#[tokio::test(start_paused = true)]
async fn an_object_with_many_events_is_limited_for_a_while() {
    let api = api();
    let events = Events::start(api.client(), "s");
    for number in 0..30 {
        events.pod(POD, Kind::Warning, &format!("Reason{number}"), "x");
    }
    events.pod(("default", "other", ""), Kind::Warning, "Reason", "x");
    sleep(Duration::from_secs(2)).await;
    let counts = events.counts();
    assert_eq!((counts.sent, counts.limited), (11, 20));

    sleep(Duration::from_secs(30)).await;
    events.pod(POD, Kind::Warning, "Later", "x");
    events.pod(POD, Kind::Warning, "TooMuch", "x");
    sleep(Duration::from_secs(1)).await;
    let counts = events.counts();
    assert_eq!((counts.sent, counts.limited), (12, 21));
}

#[tokio::test(start_paused = true)]
async fn while_the_server_is_away_the_queue_is_bounded() {
    for server in [Server::Away, Server::Hangs] {
        let api = api();
        let limits = Limits {
            waiting: 100,
            ..Limits::default()
        };
        let events = Events::start_with(api.client(), "s", limits, Timestamp::now);
        api.is(server);
        for number in 0..1000 {
            let name = format!("p{number}");
            events.pod(
                ("default", &*name, ""),
                Kind::Normal,
                "BindingSucceed",
                "good",
            );
        }
        for number in 0..60 {
            let name = format!("p{number}");
            events.pod(
                ("default", &*name, ""),
                Kind::Warning,
                "FilteringFailed",
                "bad",
            );
        }
        assert_eq!(events.counts().waiting, 100);
        sleep(Duration::from_secs(60)).await;
        assert_eq!(events.counts().sent, 0);

        api.is(Server::Up);
        sleep(Duration::from_secs(60)).await;

        let counts = events.counts();
        assert_eq!(counts.waiting, 0);
        assert_eq!(all(counts), 1060, "{counts:?}");
        let warnings = written(&api).await;
        let warnings = warnings
            .iter()
            .filter(|event| event.type_.as_deref() == Some("Warning"));
        assert_eq!(warnings.count(), 60, "{server:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn news_that_is_too_old_is_lost_and_counted() {
    let api = api();
    let events = Events::start(api.client(), "s");
    api.is(Server::Hangs);
    for number in 0..50 {
        let name = format!("p{number}");
        events.pod(("default", &*name, ""), Kind::Warning, "Reason", "x");
    }
    sleep(Duration::from_secs(700)).await;
    assert_eq!(events.counts().dropped, 50);

    api.is(Server::Up);
    events.pod(POD, Kind::Warning, "Reason", "x");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(events.counts().sent, 1);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_refused_keeps_no_other_from_being_written() {
    let api = api();
    let events = Events::start(api.client(), "s");
    events.pod(("no-such-namespace", "p", ""), Kind::Warning, "Reason", "x");
    events.pod(POD, Kind::Warning, "Reason", "x");
    sleep(Duration::from_secs(1)).await;

    let counts = events.counts();
    assert_eq!((counts.refused, counts.sent), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_events_reaches_the_server_at_a_bounded_rate() {
    let api = api();
    let events = Events::start(api.client(), "s");
    for number in 0..1000 {
        let name = format!("p{number}");
        events.pod(("default", &*name, ""), Kind::Normal, "BindingSucceed", "x");
    }
    sleep(Duration::from_secs(1)).await;

    let calls = api.calls();
    assert!((200..=260).contains(&calls), "{calls}");
}

#[tokio::test]
async fn silence_is_no_error() {
    let events = Events::silent();
    events.pod(POD, Kind::Normal, "FilteringSucceed", "x");
    assert_eq!(events.counts(), Counts::default());
}
