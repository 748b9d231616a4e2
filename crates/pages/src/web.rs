//! The routes of the pages, over a [`Source`]. A handler asks the source and prints the answer.

mod live;
mod read;
mod write;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::response::Response;
use axum::routing::get;
use parking_lot::RwLock;
use serde_json::Value;
use tokio::sync::{oneshot, watch};

use crate::board::{Board, identity, text};
use crate::frame::Shell;
use crate::kind::Kind;
use crate::pages::{self, NavSection, ProblemPage};
use crate::serve::dressed;
use crate::serve::{code, print, shown};
use crate::source::{Refused, Source};

/// The name of the site.
const BRAND: &str = "vgpu simulator";

/// The largest text of one object or configuration that is accepted, in bytes.
const MOST_TEXT: usize = 4 << 20;

/// The largest export that is accepted, in bytes.
const MOST_IMPORT: usize = 64 << 20;

/// How long a page waits until the board shows a change that was just written.
const PATIENCE: Duration = Duration::from_secs(2);

/// All routes of the pages: `/`, and everything else below `/page/`. Must be called in a Tokio runtime, because a task
/// follows the source's changes for as long as the router, or a clone of it, lives.
pub fn router(source: Arc<dyn Source>) -> Router {
    let site = Site::new(source);
    let routes = Router::new()
        .route("/", get(read::overview))
        .route("/page/nodes/{name}", get(read::node))
        .route("/page/pods/{namespace}/{name}", get(read::pod))
        .route("/page/objects/{kind}", get(read::objects))
        .route("/page/part/summary", get(read::summary_part))
        .route("/page/part/pending", get(read::pending_part))
        .route("/page/part/nodes", get(read::nodes_part))
        .route("/page/part/pods", get(read::pods_part))
        .route("/page/part/objects/{kind}", get(read::objects_part))
        .route("/page/part/node/{name}", get(read::node_part))
        .route("/page/part/pod/{namespace}/{name}", get(read::pod_part))
        .route("/page/part/why/{namespace}/{name}", get(read::why_part))
        .route("/page/new/{kind}", get(write::new).post(write::create))
        .route(
            "/page/edit/{kind}/{namespace}/{name}",
            get(write::edit).post(write::save),
        )
        .route(
            "/page/delete/{kind}/{namespace}/{name}",
            get(write::ask_delete).post(write::delete),
        )
        .route(
            "/page/configuration",
            get(write::configuration).post(write::configure),
        )
        .route("/page/reset", get(write::ask_reset).post(write::reset))
        .route(
            "/page/compare",
            get(write::ask_compare).post(write::compare),
        )
        .layer(DefaultBodyLimit::max(MOST_TEXT))
        .route(
            "/page/data",
            get(write::data)
                .post(write::import)
                .layer(DefaultBodyLimit::max(MOST_IMPORT)),
        )
        .route("/page/export", get(write::export))
        .route("/page/events", get(live::events))
        .with_state(site);
    dressed(routes)
}

/// The state that the handlers share.
#[derive(Clone)]
struct Site(Arc<Inner>);

struct Inner {
    source: Arc<dyn Source>,
    board: Arc<RwLock<Board>>,
    /// The number of changes that the board has processed.
    changed: watch::Receiver<u64>,
    /// Ends the task that follows the source when the last clone is dropped.
    _alive: oneshot::Sender<()>,
}

impl Site {
    fn new(source: Arc<dyn Source>) -> Self {
        let board = Arc::new(RwLock::new(Board::default()));
        let (bell, changed) = watch::channel(0);
        let (alive, gone) = oneshot::channel();
        tokio::spawn(live::follow(source.clone(), board.clone(), bell, gone));
        Self(Arc::new(Inner {
            source,
            board,
            changed,
            _alive: alive,
        }))
    }

    fn source(&self) -> &dyn Source {
        &*self.0.source
    }

    /// Reads the board, once it has everything that existed at the start.
    async fn read<T>(&self, read: impl FnOnce(&Board) -> T) -> T {
        self.wait(Board::is_listed).await;
        read(&self.0.board.read())
    }

    /// Waits until `ready` holds for the board, or the time limit of a page passes.
    async fn wait(&self, ready: impl Fn(&Board) -> bool) {
        let mut changed = self.0.changed.clone();
        let waited = changed.wait_for(|_| ready(&self.0.board.read()));
        // After the time limit the page shows the current state, and is refreshed when more is known.
        drop(tokio::time::timeout(PATIENCE, waited).await);
    }

    /// Waits until the board has this version of the object, or a later one.
    async fn wait_for(&self, kind: Kind, object: &Value) {
        let (namespace, name) = identity(object);
        let version = text(object, "/metadata/resourceVersion").parse::<u64>();
        self.wait(|board| {
            let has = board.version_of(kind, &namespace, &name);
            match (has.map(str::parse::<u64>), &version) {
                (Some(Ok(has)), Ok(version)) => has >= *version,
                // Versions are numbers here; others are not compared.
                (has, _) => has.is_some(),
            }
        })
        .await;
    }

    /// The frame of a page. Made before the page's values are read, so that no change is missed between the two.
    fn shell(&self, title: &str, section: NavSection) -> Shell {
        Shell {
            title: format!("{title} – {BRAND}"),
            brand: BRAND,
            entries: section.entries(self.0.source.can_compare()),
            menu: pages::menu(),
            done: String::new(),
            seen: self.0.board.read().changes(),
            topics: Kind::PLURALS.join(" "),
        }
    }

    /// A page for an error.
    fn problem(&self, refused: &Refused) -> Response {
        let heading = match refused.code {
            404 => "Not found",
            _ => "That did not work",
        };
        let page = ProblemPage {
            shell: self.shell(heading, NavSection::Overview),
            heading: heading.to_owned(),
            what: refused.message.clone(),
        };
        print(code(refused), &page)
    }
}
