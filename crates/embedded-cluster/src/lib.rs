//! A Kubernetes API server in memory: objects, versions, watches and the verbs, in this process and over HTTP.
//!
//! It does what an API server does, in the same way: optimistic concurrency, watches that can be resumed, patches of
//! all four kinds, subresources, refusals as `Status`. It decides nothing: no scheduler, no controller and no kubelet
//! runs in it, and it knows nothing of GPUs. It opens no listener.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let cluster = embedded_cluster::Cluster::default();
//! cluster.import(&serde_json::json!({ "nodes": [{ "metadata": { "name": "n1" } }] }))?;
//! let address = "127.0.0.1:8001".parse()?;
//! let routes = embedded_cluster::guard(cluster.router(), address, None)?;
//! axum::serve(tokio::net::TcpListener::bind(address).await?, routes).await?;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
#![allow(
    clippy::indexing_slicing,
    reason = "a JSON value is read by name, and what it lacks is null; slices and maps are not indexed here"
)]

mod admission;
mod change;
mod check;
mod cluster;
mod compact;
mod crd;
mod events;
mod fork;
mod hooks;
mod http;
mod kinds;
mod managed;
mod namespaces;
mod object;
mod page;
mod patch;
mod plant;
mod pod;
mod quantity;
mod resource;
mod scale;
mod schema;
mod selector;
mod state;
mod status;
mod store;
mod strategic;
mod target;
mod watch;
mod webhooks;
mod writes;

pub use admission::{Admission, BoxFuture, Operation, Review, WebhookClient, WebhookError};
pub use cluster::Cluster;
pub use compact::Compact;
pub use fork::{Fork, Snapshot};
pub use http::{TokenNeeded, guard};
pub use object::Stored;
pub use patch::Patch;
pub use resource::{Resource, Version};
pub use selector::Selector;
pub use status::{Reason, Status};
pub use store::Happened;
pub use target::{DeleteOptions, Deleted, ListOptions, Listed, Options, Part, Target, Write};
pub use watch::{Event, Start, Watch};
