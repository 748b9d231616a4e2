//! The simulator's data for the web pages: its objects, a person's changes, and why a pod waits. The pages' look is in
//! `pages`.

#![allow(
    clippy::indexing_slicing,
    reason = "a JSON value is read by name, and what it lacks is null; slices and maps are not indexed here"
)]

use std::sync::Arc;

use embedded_cluster::{
    Cluster, DeleteOptions, Event, Happened, ListOptions, Part, Selector, Start, Status, Target,
    Watch, Write,
};
use futures_util::{Stream, StreamExt, stream};
use kube_api::config::DeviceConfig;
use kube_api::object::{Node, Pod, ResourceQuota};
use kube_api::request::Defaults;
use kube_api::vendor::{Switches, Vendors};
use pages::{Change, Changes, Compare, Comparison, Future, Kind, Refused, Run, Source, Why};
use parking_lot::Mutex;
use scheduling::plugin::{Plugin, Point};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::compare::{Added, Base, Column, MOST_ADDED, Question, Variant};
use super::gpus::with_gpus;
use super::{Import, Merge, Refusal, Simulator};
use crate::explain::{AnswerDetail, View, explain};
use crate::shown::why;

/// The field manager of a person's changes; the reference's page has the same name.
const MANAGER: &str = "simulator";

/// How many times a person's change is tried again while other programs change the same object's status.
const TRIES: usize = 5;

/// The source of the pages.
pub struct Pages {
    simulator: Simulator,
    vendors: Arc<Vendors>,
    /// The data for explaining pods, with the version of the cluster that it is from.
    view: Mutex<Option<(u64, Arc<View>)>>,
    /// Comparisons run one after the other.
    comparing: tokio::sync::Mutex<()>,
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pages").finish_non_exhaustive()
    }
}

impl Pages {
    /// The pages of this simulator.
    pub fn of(simulator: &Simulator) -> Self {
        let switches = Switches {
            ascend: true,
            iluvatar: true,
        };
        let vendors = Vendors::new(DeviceConfig::standard(), switches);
        Self {
            simulator: simulator.clone(),
            vendors: Arc::new(vendors.expect("a test reads the standard configuration")),
            view: Mutex::new(None),
            comparing: tokio::sync::Mutex::default(),
        }
    }

    fn cluster(&self) -> &Cluster {
        self.simulator.cluster()
    }

    /// The data for explaining pods, from the current cluster.
    fn view(&self) -> Arc<View> {
        let version = self.cluster().resource_version();
        let mut kept = self.view.lock();
        if let Some((of, view)) = &*kept
            && *of == version
        {
            return view.clone();
        }
        let cluster = self.cluster();
        let view = Arc::new(View::of(
            all::<Node>(cluster, "nodes"),
            &all::<Pod>(cluster, "pods"),
            all::<ResourceQuota>(cluster, "resourcequotas"),
            self.vendors.clone(),
            Defaults::default(),
        ));
        *kept = Some((version, view.clone()));
        view
    }

    async fn replaced(&self, kind: Kind, object: Value) -> Result<Value, Status> {
        let (namespace, name) = place(&object);
        let target = target(self.cluster(), kind, &namespace, &name)?;
        let status = object.get("status").filter(|status| status.is_object());
        let part = target.clone().part(Part::Status);
        let tried = Write {
            dry_run: true,
            ..write()
        };
        // Both halves are tried first, so that nothing is done if the second is refused.
        let mut next = self
            .cluster()
            .update(&target, object.clone(), &tried)
            .await?
            .value();
        let changes = status.is_some_and(|status| next.get("status") != Some(status));
        if let (Some(status), true) = (status, changes) {
            set_status(&mut next, status);
            self.cluster()
                .update(&part, unversioned(next), &tried)
                .await?;
        }
        let mut saved = self
            .cluster()
            .update(&target, object.clone(), &write())
            .await?
            .value();
        let Some(status) = status.filter(|_| changes) else {
            return Ok(saved);
        };
        for _ in 0..TRIES {
            set_status(&mut saved, status);
            match self.cluster().update(&part, saved, &write()).await {
                Ok(stored) => return Ok(stored.value()),
                Err(refused) if refused.code == 409 => saved = self.cluster().get(&target)?.value(),
                Err(refused) => return Err(refused),
            }
        }
        let why = "others change its status all the time; save it again";
        Err(Status::conflict(kind.group(), kind.plural(), &name, why))
    }
}

fn set_status(object: &mut Value, status: &Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert("status".to_owned(), status.clone());
    }
}

/// A trial's version does not exist in the cluster.
fn unversioned(mut object: Value) -> Value {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("resourceVersion");
    }
    object
}

/// The objects of a core kind that can be parsed.
fn all<T: DeserializeOwned>(cluster: &Cluster, plural: &str) -> Vec<T> {
    let listed = cluster.resource("", plural).and_then(|resource| {
        cluster.list(&Target::collection(&resource, ""), &ListOptions::default())
    });
    let items = listed.map(|listed| listed.items).unwrap_or_default();
    items.iter().filter_map(|item| item.parse().ok()).collect()
}

fn target(cluster: &Cluster, kind: Kind, namespace: &str, name: &str) -> Result<Target, Status> {
    let resource = cluster.resource(kind.group(), kind.plural())?;
    Ok(Target::object(&resource, namespace, name))
}

fn place(object: &Value) -> (String, String) {
    let text = |pointer| object.pointer(pointer).and_then(Value::as_str);
    (
        text("/metadata/namespace").unwrap_or_default().to_owned(),
        text("/metadata/name").unwrap_or_default().to_owned(),
    )
}

fn write() -> Write {
    Write {
        field_manager: MANAGER.to_owned(),
        ..Write::default()
    }
}

fn refused(status: Status) -> Refused {
    Refused::new(status.code, status.message)
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        let code = match refusal {
            Refusal::Unreadable(_) => 400,
            Refusal::Impossible(_) => 422,
            Refusal::Expired(_) => 410,
        };
        Self::new(code, refusal.to_string())
    }
}

/// An item from the watch of one kind.
enum WatchItem {
    Change(Change),
    Started,
    Lost,
}

fn told(kind: Kind, watch: Watch) -> impl Stream<Item = WatchItem> + Send {
    stream::unfold(Some(watch), move |watch| async move {
        let mut watch = watch?;
        Some(match watch.next().await {
            Ok(Event::Object(Happened::Deleted, object)) => {
                let change = Change::Gone(kind, Arc::new(object.bare()));
                (WatchItem::Change(change), Some(watch))
            }
            Ok(Event::Object(_, object)) => {
                let change = Change::Put(kind, Arc::new(object.bare()));
                (WatchItem::Change(change), Some(watch))
            }
            Ok(Event::Started(_)) => (WatchItem::Started, Some(watch)),
            Err(status) => {
                tracing::debug!(kind = kind.plural(), %status, "the pages list again");
                (WatchItem::Lost, None)
            }
        })
    })
}

impl Source for Pages {
    fn changes(&self) -> Changes {
        let open = |kind: Kind| {
            let target = target(self.cluster(), kind, "", "")?;
            let watch = self
                .cluster()
                .watch(&target, Selector::default(), Start::Now)?;
            Ok::<_, Status>(told(kind, watch).boxed())
        };
        let watches: Result<Vec<_>, Status> = Kind::ALL.into_iter().map(open).collect();
        let watches = match watches {
            Ok(watches) => watches,
            Err(status) => {
                tracing::error!(%status, "the pages cannot watch the cluster");
                return stream::empty().boxed();
            }
        };
        let mut left = watches.len();
        let changes = stream::select_all(watches)
            .take_while(|told| std::future::ready(!matches!(told, WatchItem::Lost)))
            .filter_map(move |told| {
                std::future::ready(match told {
                    WatchItem::Change(change) => Some(change),
                    WatchItem::Started => {
                        left = left.saturating_sub(1);
                        (left == 0).then_some(Change::Listed)
                    }
                    WatchItem::Lost => None,
                })
            });
        stream::once(async { Change::Began }).chain(changes).boxed()
    }

    fn get<'a>(
        &'a self,
        kind: Kind,
        namespace: &'a str,
        name: &'a str,
    ) -> Future<'a, Result<Value, Refused>> {
        Box::pin(async move {
            let target = target(self.cluster(), kind, namespace, name).map_err(refused)?;
            Ok(self.cluster().get(&target).map_err(refused)?.value())
        })
    }

    fn create(&self, kind: Kind, object: Value) -> Future<'_, Result<Value, Refused>> {
        Box::pin(async move {
            let (namespace, _) = place(&object);
            let target = target(self.cluster(), kind, &namespace, "").map_err(refused)?;
            let made = self.cluster().create(&target, object, &write()).await;
            Ok(made.map_err(refused)?.value())
        })
    }

    fn replace(&self, kind: Kind, object: Value) -> Future<'_, Result<Value, Refused>> {
        Box::pin(async move { self.replaced(kind, object).await.map_err(refused) })
    }

    fn delete<'a>(
        &'a self,
        kind: Kind,
        namespace: &'a str,
        name: &'a str,
    ) -> Future<'a, Result<(), Refused>> {
        Box::pin(async move {
            let target = target(self.cluster(), kind, namespace, name).map_err(refused)?;
            let options = DeleteOptions::default();
            let gone = self.cluster().delete(&target, &options, &write()).await;
            gone.map(drop).map_err(refused)
        })
    }

    fn why<'a>(&'a self, namespace: &'a str, name: &'a str) -> Future<'a, Option<Why>> {
        Box::pin(async move {
            let target = target(self.cluster(), Kind::Pods, namespace, name).ok()?;
            let pod: Pod = self.cluster().get(&target).ok()?.parse().ok()?;
            let view = self.view();
            let explained =
                tokio::task::spawn_blocking(move || explain(&view, &pod, AnswerDetail::default()));
            why(explained.await.ok()?)
        })
    }

    fn configuration(&self) -> Future<'_, Result<Value, Refused>> {
        Box::pin(async { Ok(self.simulator.setup().shown.to_value()) })
    }

    fn configure(&self, configuration: Value) -> Future<'_, Result<(), Refused>> {
        Box::pin(async move { Ok(self.simulator.configure(&configuration).await?) })
    }

    fn configuration_for_gpus(&self) -> Option<Value> {
        let setup = self.simulator.setup();
        let lacks = setup.running.profiles.iter().any(|profile| {
            let filters = profile.plugins.expand(Point::Filter);
            !filters.contains(&Plugin::GpuFit)
        });
        lacks.then(|| with_gpus(setup.shown.to_value()))
    }

    fn export(&self) -> Future<'_, Result<Value, Refused>> {
        Box::pin(async {
            serde_json::to_value(self.simulator.export())
                .map_err(|error| Refused::new(500, error.to_string()))
        })
    }

    fn import(&self, state: Value, replace: bool) -> Future<'_, Result<(), Refused>> {
        Box::pin(async move {
            let import = Import::read(state)?;
            let merge = if replace { Merge::Replace } else { Merge::Keep };
            self.simulator.import(&import, merge).await?;
            Ok(())
        })
    }

    fn reset(&self) -> Future<'_, Result<(), Refused>> {
        Box::pin(async {
            self.simulator.reset().await;
            Ok(())
        })
    }

    fn can_compare(&self) -> bool {
        true
    }

    fn compare(&self, asked: Compare) -> Future<'_, Result<Comparison, Refused>> {
        Box::pin(async move {
            let _alone = self.comparing.lock().await;
            let question = question(asked, self.export().await?)?;
            let vendors = self.vendors.clone();
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            let answer = tokio::task::spawn_blocking(move || question.answer(&vendors, threads));
            let answer = answer
                .await
                .map_err(|error| Refused::new(500, error.to_string()))??;
            Ok(Comparison {
                runs: answer.runs.into_iter().map(column).collect(),
                notes: answer.notes.into_iter().map(note).collect(),
            })
        })
    }
}

/// The question of a page over these objects: one variant for each change.
fn question(asked: Compare, export: Value) -> Result<Question, Refused> {
    let import = Import::read(export)?;
    let mut question = Question {
        base: Base::of_export("the simulator", import),
        anew: asked.anew,
        ..Question::default()
    };
    for (name, configuration) in asked.configurations {
        question.variants.push(Variant {
            name,
            configuration: Some(configuration),
            ..Variant::default()
        });
    }
    let count = asked.add_nodes;
    if count > MOST_ADDED {
        let why = format!("{count} nodes to add; a number from 1 to {MOST_ADDED} is accepted");
        return Err(Refused::new(422, why));
    }
    if count > 0 {
        question.variants.push(Variant {
            name: format!(
                "with {count} more {}",
                if count == 1 { "node" } else { "nodes" }
            ),
            add: vec![Added { count, like: None }],
            ..Variant::default()
        });
    }
    if !asked.drain.is_empty() {
        question.variants.push(Variant {
            name: format!("without {}", asked.drain.join(", ")),
            drain: asked.drain,
            ..Variant::default()
        });
    }
    Ok(question)
}

/// A page's name for the run without changes.
const AS_IT_IS: &str = "as it is";

/// A note as a page shows it.
fn note(text: String) -> String {
    match text.strip_prefix("base: ") {
        Some(rest) => format!("{AS_IT_IS}: {rest}"),
        None => text,
    }
}

/// A run as a page shows it.
fn column(column: Column) -> Run {
    let figures = column.figures;
    let known = |figure: Option<f64>| figure.unwrap_or(f64::NAN);
    Run {
        name: match column.name.as_str() {
            "base" => AS_IT_IS.to_owned(),
            _ => column.name,
        },
        placed: figures.placed,
        pending: figures.reasons.into_iter().collect(),
        memory_percent: known(figures.utilisation.gpu_memory),
        compute_percent: known(figures.utilisation.gpu_cores),
        cpu_percent: known(figures.utilisation.cpu),
        node_memory_percent: known(figures.utilisation.memory),
        fragmentation_percent: known(figures.fragmentation),
        fairness: known(figures.fairness),
        waited_p50_seconds: known(figures.waiting.p50_seconds),
        waited_p95_seconds: known(figures.waiting.p95_seconds),
        waited_max_seconds: known(figures.waiting.max_seconds),
        drained: figures.evicted.drained,
        preempted: figures.evicted.preempted,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_change_that_a_page_asks_for_is_a_run() {
        let asked = Compare {
            configurations: vec![("other".to_owned(), json!({}))],
            add_nodes: 2,
            drain: vec!["n1".to_owned(), "n2".to_owned()],
            anew: true,
        };

        let question = question(asked, json!({})).unwrap();

        let names: Vec<_> = question
            .variants
            .iter()
            .map(|of| of.name.as_str())
            .collect();
        assert_eq!(names, ["other", "with 2 more nodes", "without n1, n2"]);
        assert!(question.anew);
        let too_many = Compare {
            add_nodes: u32::MAX,
            ..Compare::default()
        };
        assert_eq!(super::question(too_many, json!({})).unwrap_err().code, 422);
    }
}
