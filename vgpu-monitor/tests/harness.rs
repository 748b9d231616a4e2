//! Helpers for tests that need an agent: a process of its own on a simulated board, files that the build has made, and
//! an API server that counts writes and can go away.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse as _;
use embedded_cluster::Cluster;

/// Set in the process that [`alone`] starts: the test's folder.
const HOME: &str = "VGPU_TEST_HOME";

/// This program, running only the test of this path: what a test does in a process of its own.
pub(crate) fn only(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]);
    command
}

/// Runs the test of this path (`health::NAME`) in a process of its own, because a simulated board is chosen by the
/// environment. Returns the test's folder in that process, and nothing in the one that waited for it.
pub(crate) fn alone(test: &str) -> Option<PathBuf> {
    if let Some(home) = std::env::var_os(HOME) {
        return Some(PathBuf::from(home));
    }
    let directory = tempfile::tempdir().unwrap();
    let status = only(test)
        .env(HOME, directory.path())
        .env("VGPU_SIM_BOARD", directory.path().join("board"))
        .status()
        .unwrap();
    assert!(status.success(), "{test}: {status}");
    None
}

/// A library that the build has put beside this program.
pub(crate) fn built(file: &str) -> PathBuf {
    let file = std::env::current_exe().unwrap().with_file_name(file);
    assert!(file.exists(), "{} is not built", file.display());
    file
}

/// An API server that a test can switch off.
pub(crate) struct Server {
    pub(crate) client: kube::Client,
    /// The server answers 503.
    pub(crate) away: Arc<AtomicBool>,
    /// Requests of the kind that is counted, answered or not.
    pub(crate) writes: Arc<AtomicU64>,
}

impl Server {
    /// Serves this cluster, and counts the requests for which `is_counted` holds.
    pub(crate) fn start(cluster: &Cluster, is_counted: fn(&Request) -> bool) -> Self {
        let (away, writes) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (is_away, counted) = (Arc::clone(&away), Arc::clone(&writes));
        let switch = move |request: Request, next: Next| {
            if is_counted(&request) {
                counted.fetch_add(1, Ordering::Relaxed);
            }
            let is_away = is_away.load(Ordering::Relaxed);
            async move {
                if is_away {
                    return StatusCode::SERVICE_UNAVAILABLE.into_response();
                }
                next.run(request).await
            }
        };
        Self {
            client: kube::Client::new(cluster.router().layer(from_fn(switch)), "default"),
            away,
            writes,
        }
    }
}
