//! Annotations in a compact form: readers cannot distinguish them from others, whatever is written in between.

use std::sync::Arc;

use embedded_cluster::{
    Cluster, Compact, DeleteOptions, Deleted, Event, ListOptions, Patch, Selector, Start, Stored,
    Target, Write,
};
use serde_json::{Value, json};

/// `result/0`, `result/1` and so on, each with the same text.
#[derive(Debug)]
struct Results(usize, &'static str);

impl Compact for Results {
    fn render(&self) -> Vec<(String, String)> {
        let keys = self.keys().into_iter();
        keys.map(|key| (key, self.1.to_owned())).collect()
    }

    fn keys(&self) -> Vec<String> {
        (0..self.0).map(|at| format!("result/{at}")).collect()
    }

    fn has(&self, key: &str) -> bool {
        let number = key.strip_prefix("result/").map(str::parse::<usize>);
        matches!(number, Some(Ok(number)) if number < self.0)
    }

    fn size(&self) -> usize {
        self.0 * ("result/0".len() + self.1.len())
    }
}

fn target(cluster: &Cluster) -> Target {
    Target::object(&cluster.resource("", "pods").unwrap(), "default", "p")
}

async fn with_pod(annotations: Value) -> Cluster {
    let cluster = Cluster::default();
    let pod = json!({
        "metadata": { "name": "p", "annotations": annotations },
        "spec": { "containers": [{ "name": "c", "image": "i" }] },
    });
    let made = cluster
        .create(&target(&cluster), pod, &Write::default())
        .await;
    made.unwrap();
    cluster
}

fn give(cluster: &Cluster, count: usize, text: &'static str) -> Arc<Stored> {
    let changed = cluster.change(&target(cluster), &Write::default(), |_, beside| {
        *beside = Some(Arc::new(Results(count, text)));
        Ok(())
    });
    changed.unwrap()
}

fn annotations(object: &Stored) -> Value {
    object.value()["metadata"]["annotations"].clone()
}

async fn merge(cluster: &Cluster, patch: Value) -> Arc<Stored> {
    let patch = Patch::parse("application/merge-patch+json", patch).unwrap();
    let patched = cluster
        .patch(&target(cluster), &patch, &Write::default())
        .await;
    patched.unwrap()
}

#[tokio::test]
async fn every_reader_sees_the_rendered_annotations() {
    let cluster = with_pod(json!({ "mine": "m" })).await;
    let start = Start::After(cluster.resource_version());
    let collection = Target::collection(&cluster.resource("", "pods").unwrap(), "");
    let mut watch = cluster
        .watch(&collection, Selector::default(), start)
        .unwrap();
    let wanted = json!({ "mine": "m", "result/0": "yes", "result/1": "yes" });

    let stored = give(&cluster, 2, "yes");

    assert_eq!(annotations(&stored), wanted);
    assert_eq!(
        stored.bare()["metadata"]["annotations"],
        json!({ "mine": "m" })
    );
    let text: Value = serde_json::from_slice(&stored.json()).unwrap();
    assert_eq!(text, stored.value());
    assert_eq!(*stored.json(), *serde_json::to_vec(&text).unwrap());
    let listed = cluster.list(&collection, &ListOptions::default()).unwrap();
    assert_eq!(annotations(&listed.items[0]), wanted);
    let pods = cluster.export()["pods"].clone();
    assert_eq!(pods[0]["metadata"]["annotations"], wanted);
    let Some(Event::Object(_, told)) = watch.try_next().unwrap() else {
        panic!("nothing was told");
    };
    assert_eq!(annotations(&told), wanted);
    assert_eq!(told.resource_version(), stored.resource_version());

    let gone = cluster
        .delete(
            &target(&cluster),
            &DeleteOptions::default(),
            &Write::default(),
        )
        .await;
    let Deleted::Gone(gone) = gone.unwrap() else {
        panic!("it is held");
    };
    assert_eq!(annotations(&gone), wanted);
    assert!(gone.compact().is_some(), "it is not made text for its end");
}

#[tokio::test]
async fn a_version_is_new_exactly_when_a_reader_sees_a_difference() {
    let cluster = with_pod(json!({})).await;
    let first = give(&cluster, 2, "yes").resource_version();

    assert_eq!(give(&cluster, 2, "yes").resource_version(), first);
    assert!(give(&cluster, 2, "nay").resource_version() > first);
}

#[tokio::test]
async fn writes_of_others_keep_what_they_do_not_change() {
    let cluster = with_pod(json!({ "mine": "m" })).await;
    give(&cluster, 2, "yes");

    let labelled = merge(&cluster, json!({ "metadata": { "labels": { "a": "b" } } })).await;
    let exported = labelled.value();
    let applied = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "p", "annotations": exported["metadata"]["annotations"] },
        "spec": exported["spec"],
    });
    let patch = Patch::parse("application/apply-patch+yaml", applied).unwrap();
    let forced = Write {
        force: true,
        ..Write::default()
    };
    let applied = cluster.patch(&target(&cluster), &patch, &forced).await;
    let applied = applied.unwrap();
    let same = cluster
        .update(&target(&cluster), applied.value(), &Write::default())
        .await;
    let same = same.unwrap();

    assert!(labelled.compact().is_some() && applied.compact().is_some());
    assert_eq!(same.resource_version(), applied.resource_version());
    assert_eq!(
        annotations(&same),
        json!({ "mine": "m", "result/0": "yes", "result/1": "yes" })
    );
}

#[tokio::test]
async fn an_annotation_that_is_changed_counts_as_it_was_written() {
    let cluster = with_pod(json!({})).await;
    give(&cluster, 2, "yes");

    let change = json!({ "metadata": { "annotations": { "result/0": "mine", "result/1": null } } });
    let changed = merge(&cluster, change).await;

    assert_eq!(annotations(&changed), json!({ "result/0": "mine" }));
    assert!(changed.compact().is_none());
    // A binding has annotations too.
    give(&cluster, 1, "yes");
    let binding = json!({
        "metadata": { "name": "p", "annotations": { "result/0": "bound" } },
        "target": { "name": "n" },
    });
    let bound = cluster
        .bind(&target(&cluster), binding, &Write::default())
        .await;
    assert_eq!(annotations(&bound.unwrap()), json!({ "result/0": "bound" }));
}

/// The owners of fields after two writes of results, stored compactly or as text.
async fn owners(beside: bool, old: Value) -> Value {
    let cluster = with_pod(old).await;
    let applied = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p", "labels": { "a": "b" } } });
    let patch = Patch::parse("application/apply-patch+yaml", applied).unwrap();
    let patched = cluster
        .patch(&target(&cluster), &patch, &Write::default())
        .await;
    patched.unwrap();
    for (manager, count, text) in [
        ("first", 2, "yes"),
        ("second", 3, "yes"),
        ("third", 3, "no"),
    ] {
        let write = Write {
            field_manager: manager.into(),
            ..Write::default()
        };
        let results = Results(count, text);
        let changed = cluster.change(&target(&cluster), &write, |pod, there| {
            let annotations = pod["metadata"].as_object_mut().unwrap();
            if beside {
                annotations.remove("annotations");
                *there = Some(Arc::new(Results(count, text)));
            } else {
                let rendered = results.render().into_iter();
                let all: Value = rendered
                    .map(|(key, value)| (key, Value::from(value)))
                    .collect();
                annotations.insert("annotations".into(), all);
            }
            Ok(())
        });
        changed.unwrap();
    }
    let pod = cluster.get(&target(&cluster)).unwrap().value();
    let managers = pod["metadata"]["managedFields"].as_array().unwrap().iter();
    managers
        .map(|of| json!([of["manager"], of["operation"], of["fieldsV1"]]))
        .collect()
}

#[tokio::test]
async fn owners_are_followed_as_of_any_annotation() {
    for old in [
        json!({}),
        json!({ "mine": "m" }),
        json!({ "result/0": "old" }),
    ] {
        let by_text = owners(false, old.clone()).await;

        assert!(by_text.to_string().contains("f:result/2"), "{by_text}");
        assert_eq!(owners(true, old).await, by_text);
    }
}

#[tokio::test]
async fn going_back_takes_results_away_and_brings_them_again() {
    let cluster = with_pod(json!({})).await;
    let before = cluster.snapshot();
    let given = give(&cluster, 2, "yes");
    let after = cluster.snapshot();

    assert_eq!(cluster.restore(&before), 2);
    let back = cluster.get(&target(&cluster)).unwrap();
    assert!(back.compact().is_none());
    assert_eq!(cluster.restore(&after), 2);
    let again = cluster.get(&target(&cluster)).unwrap();
    assert_eq!(annotations(&again), annotations(&given));
    // Equal annotations as text count as unchanged.
    let text = merge(
        &cluster,
        json!({ "metadata": { "annotations": { "result/0": "x" } } }),
    )
    .await;
    assert!(text.compact().is_none());
    merge(
        &cluster,
        json!({ "metadata": { "annotations": { "result/0": "yes" } } }),
    )
    .await;
    assert_eq!(cluster.restore(&after), 0);
}

#[tokio::test]
async fn all_annotations_together_keep_within_the_limit() {
    let cluster = with_pod(json!({ "mine": "m".repeat(262_144 - 20) })).await;

    let large = cluster.change(&target(&cluster), &Write::default(), |_, beside| {
        *beside = Some(Arc::new(Results(2, "yes")));
        Ok(())
    });

    assert_eq!(large.unwrap_err().code, 422);
    assert!(cluster.get(&target(&cluster)).unwrap().compact().is_none());
}
