//! The pages that only show, and their live parts.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use futures_util::future::join_all;
use serde::Deserialize;

use super::{Site, shown};
use crate::board::{Board, OtherRow};
use crate::frame::Shell;
use crate::kind::Kind;
use crate::pages::{
    GonePart, KindLink, NavSection, NodeDetail, NodePart, NodesPart, ObjectLine, ObjectList,
    ObjectsPage, ObjectsPart, OverviewPage, PendingPart, PodDetail, PodPart, PodsPage, PodsPart,
    SummaryPart, Tab, WhyPart,
};
use crate::source::Refused;
use crate::view::node::{Most, node_card};
use crate::view::overview::{
    NodeQuery, PodList, PodQuery, node_list, pending_list, pod_list, summary,
};
use crate::view::pod::{PodPage, pod_page};
use crate::view::{Slice, address, decision};

/// The number of objects of the smaller kinds on a page of their list.
const OBJECTS: usize = 50;

/// The query parameters of an address.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PageParameters {
    nodes: String,
    only: String,
    sort: String,
    pods: String,
    state: String,
    q: String,
    page: String,
    pub(super) template: String,
    pub(super) done: String,
    pub(super) name: String,
}

impl PageParameters {
    fn page(&self) -> usize {
        self.page.parse().unwrap_or(1)
    }

    fn of_nodes(&self) -> NodeQuery {
        NodeQuery {
            text: self.nodes.clone(),
            only: self.only.clone(),
            sort: self.sort.clone(),
            page: self.page(),
        }
    }

    fn of_pods(&self) -> PodQuery {
        PodQuery {
            text: self.pods.clone(),
            state: self.state.clone(),
            page: self.page(),
        }
    }

    /// Adds a note about the action that led to this page.
    pub(super) fn tell(&self, mut shell: Shell) -> Shell {
        let name = &self.name;
        shell.done = match self.done.as_str() {
            "created" => format!("Created {name}."),
            "saved" => format!("Saved {name}."),
            "deleted" => format!("Deleted {name}."),
            "configured" => "The scheduler now runs with this configuration.".to_owned(),
            "imported" => "Imported.".to_owned(),
            "reset" => "Reset: the state at the start is restored.".to_owned(),
            _ => String::new(),
        };
        shell
    }
}

/// The query of an address, if it can be read.
pub(super) type QueryResult<T> = Result<Query<T>, QueryRejection>;

/// The query, or an empty one if it cannot be parsed.
pub(super) fn plain<T: Default>(query: QueryResult<T>) -> T {
    query.map(|Query(asked)| asked).unwrap_or_default()
}

pub(super) async fn overview(
    State(site): State<Site>,
    query: QueryResult<PageParameters>,
) -> Response {
    let asked = plain(query);
    let shell = site.shell("Overview", NavSection::Overview);
    let (summary, pending, nodes, mut pods) = site
        .read(|board| {
            (
                summary(board),
                pending_list(board),
                node_list(board, &asked.of_nodes()),
                pod_list(board, &PodQuery::default()),
            )
        })
        .await;
    explain(&site, &mut pods).await;
    let lacks = || site.source().configuration_for_gpus().is_some();
    shown(&OverviewPage {
        only_counted: !summary.gpus.is_empty() && lacks(),
        shell: asked.tell(shell),
        summary,
        pending,
        nodes,
        pods,
    })
}

/// Adds to each pod in the list why it is in its state.
async fn explain(site: &Site, pods: &mut PodList) {
    let sentences = pods.pods.iter().map(|line| async {
        let object = site
            .source()
            .get(Kind::Pods, &line.namespace, &line.name)
            .await;
        let annotations = object.ok()?.pointer("/metadata/annotations").cloned()?;
        let annotations = serde_json::from_value(annotations).ok()?;
        Some(decision::sentence(&annotations, &line.node))
    });
    let sentences = join_all(sentences).await;
    for (line, sentence) in pods.pods.iter_mut().zip(sentences) {
        line.explain(sentence.unwrap_or_default());
    }
}

pub(super) async fn summary_part(State(site): State<Site>) -> Response {
    let summary = site.read(summary).await;
    shown(&SummaryPart { summary })
}

pub(super) async fn pending_part(State(site): State<Site>) -> Response {
    let pending = site.read(pending_list).await;
    shown(&PendingPart { pending })
}

pub(super) async fn nodes_part(
    State(site): State<Site>,
    query: QueryResult<PageParameters>,
) -> Response {
    let query = plain(query).of_nodes();
    let nodes = site.read(|board| node_list(board, &query)).await;
    shown(&NodesPart { nodes })
}

pub(super) async fn pods_part(
    State(site): State<Site>,
    query: QueryResult<PageParameters>,
) -> Response {
    let query = plain(query).of_pods();
    let mut pods = site.read(|board| pod_list(board, &query)).await;
    explain(&site, &mut pods).await;
    shown(&PodsPart { pods })
}

pub(super) async fn why_part(
    State(site): State<Site>,
    Path((namespace, name)): Path<(String, String)>,
) -> Response {
    let why = site.source().why(&namespace, &name).await;
    shown(&WhyPart { why })
}

async fn found_pod(
    site: &Site,
    namespace: &str,
    name: &str,
    page: usize,
) -> Result<PodPage, Refused> {
    let object = site.source().get(Kind::Pods, namespace, name).await?;
    let made = site
        .read(|board| {
            let row = board.pod(namespace, name)?;
            Some(pod_page(board, row, &object, page))
        })
        .await;
    made.ok_or_else(|| {
        Refused::new(
            404,
            format!("pod {namespace}/{name} does not exist any more"),
        )
    })
}

pub(super) async fn pod(
    State(site): State<Site>,
    Path((namespace, name)): Path<(String, String)>,
    query: QueryResult<PageParameters>,
) -> Response {
    let asked = plain(query);
    let shell = site.shell(&format!("Pod {name}"), NavSection::Objects);
    match found_pod(&site, &namespace, &name, asked.page()).await {
        Ok(pod) => shown(&PodDetail {
            shell: asked.tell(shell),
            pod,
        }),
        Err(refused) => site.problem(&refused),
    }
}

pub(super) async fn pod_part(
    State(site): State<Site>,
    Path((namespace, name)): Path<(String, String)>,
    query: QueryResult<PageParameters>,
) -> Response {
    match found_pod(&site, &namespace, &name, plain(query).page()).await {
        Ok(pod) => shown(&PodPart { pod }),
        Err(refused) if refused.code == 404 => shown(&GonePart {
            id: "pod",
            what: format!("Pod {name} was deleted."),
        }),
        Err(refused) => site.problem(&refused),
    }
}

fn no_node(name: &str) -> Refused {
    Refused::new(404, format!("node {name} does not exist"))
}

pub(super) async fn node(
    State(site): State<Site>,
    Path(name): Path<String>,
    query: QueryResult<PageParameters>,
) -> Response {
    let asked = plain(query);
    let shell = site.shell(&format!("Node {name}"), NavSection::Objects);
    let found = site
        .read(|board| {
            let row = board.node(&name)?;
            Some((node_card(board, row, Most::PAGE), row.labels.clone()))
        })
        .await;
    let Some((node, labels)) = found else {
        return site.problem(&no_node(&name));
    };
    shown(&NodeDetail {
        shell: asked.tell(shell),
        part: address::node_part(&name),
        node,
        labels,
        edit: address::edit(Kind::Nodes, "", &name),
        delete: address::delete(Kind::Nodes, "", &name),
    })
}

pub(super) async fn node_part(State(site): State<Site>, Path(name): Path<String>) -> Response {
    let found = site
        .read(|board| Some(node_card(board, board.node(&name)?, Most::PAGE)))
        .await;
    match found {
        Some(node) => shown(&NodePart {
            part: address::node_part(&name),
            node,
        }),
        None => shown(&GonePart {
            id: "node",
            what: format!("Node {name} was deleted."),
        }),
    }
}

/// The kind in an address.
pub(super) fn kind(plural: &str) -> Result<Kind, Refused> {
    Kind::of_plural(plural).ok_or_else(|| {
        let known: Vec<&str> = Kind::ALL.into_iter().map(Kind::plural).collect();
        let known = known.join(", ");
        Refused::new(404, format!("there is no kind {plural}; there are {known}"))
    })
}

fn tabs(board: &Board, current: Kind) -> Vec<Tab> {
    let tab = |kind: Kind| Tab {
        title: kind.title(),
        href: address::list(kind),
        count: board.count(kind),
        current: if kind == current { "page" } else { "false" },
    };
    Kind::ALL.into_iter().map(tab).collect()
}

fn object_list(board: &Board, kind: Kind, asked: &PageParameters) -> ObjectList {
    let wanted = asked.q.trim().to_lowercase();
    let takes = |row: &OtherRow| {
        wanted.is_empty()
            || row.name.to_lowercase().contains(&wanted)
            || row.namespace.to_lowercase().contains(&wanted)
    };
    let nodes = board.nodes().filter(|_| kind == Kind::Nodes).map(|node| {
        let facts = match node.gpus.len() {
            0 => String::new(),
            gpus => crate::text::count(gpus, "GPU"),
        };
        OtherRow {
            name: node.name.clone(),
            facts,
            ..OtherRow::default()
        }
    });
    let rows: Vec<OtherRow> = nodes
        .chain(board.others(kind).cloned())
        .filter(takes)
        .collect();
    let own = |path: String, page: usize| {
        let page = if page > 1 {
            page.to_string()
        } else {
            String::new()
        };
        format!(
            "{path}{}",
            address::query(&[("q", &asked.q), ("page", &page)])
        )
    };
    let slice = Slice::of(rows.len(), asked.page(), OBJECTS, |page| {
        own(address::list(kind), page)
    });
    let shown = rows.into_iter().skip(slice.skipped()).take(slice.len());
    let line = |row: OtherRow| ObjectLine {
        href: if kind == Kind::Nodes {
            address::node(&row.name)
        } else {
            address::edit(kind, &row.namespace, &row.name)
        },
        edit: address::edit(kind, &row.namespace, &row.name),
        delete: address::delete(kind, &row.namespace, &row.name),
        row,
    };
    ObjectList {
        rows: shown.map(line).collect(),
        part: own(address::list_part(kind), slice.page),
        part_path: address::list_part(kind),
        slice,
        text: asked.q.clone(),
        all: board.count(kind),
        href: address::list(kind),
        singular: kind.singular(),
        title: kind.title(),
        plural: kind.plural(),
        namespaced: kind.is_namespaced(),
    }
}

pub(super) async fn objects(
    State(site): State<Site>,
    Path(plural): Path<String>,
    query: QueryResult<PageParameters>,
) -> Response {
    let asked = plain(query);
    let kind = match kind(&plural) {
        Ok(kind) => kind,
        Err(refused) => return site.problem(&refused),
    };
    let shell = asked.tell(site.shell(kind.title(), NavSection::Objects));
    let tabs = site.read(|board| tabs(board, kind)).await;
    let link = KindLink {
        title: kind.title(),
        singular: kind.singular(),
        new: address::new(kind),
    };
    if kind == Kind::Pods {
        let mut pods = site.read(|board| pod_list(board, &asked.of_pods())).await;
        explain(&site, &mut pods).await;
        return shown(&PodsPage {
            shell,
            tabs,
            kind: link,
            pods,
        });
    }
    let list = site.read(|board| object_list(board, kind, &asked)).await;
    shown(&ObjectsPage {
        shell,
        tabs,
        kind: link,
        list,
    })
}

pub(super) async fn objects_part(
    State(site): State<Site>,
    Path(plural): Path<String>,
    query: QueryResult<PageParameters>,
) -> Response {
    match kind(&plural) {
        Ok(kind) => {
            let asked = plain(query);
            let list = site.read(|board| object_list(board, kind, &asked)).await;
            shown(&ObjectsPart { list })
        }
        Err(refused) => site.problem(&refused),
    }
}
