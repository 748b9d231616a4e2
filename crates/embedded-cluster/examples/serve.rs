//! Serves an empty cluster, or the state in a file: `serve [ADDRESS] [STATE.json]`. Then
//! `kubectl --server http://ADDRESS get nodes`.

use std::net::SocketAddr;

use embedded_cluster::{Cluster, guard};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address: SocketAddr = arguments
        .next()
        .as_deref()
        .unwrap_or("127.0.0.1:8001")
        .parse()?;
    let cluster = Cluster::default();
    if let Some(file) = arguments.next() {
        cluster.import(&serde_json::from_slice(&std::fs::read(file)?)?)?;
    }
    let token = std::env::var("VGPU_TOKEN").ok();
    let routes = guard(cluster.router(), address, token.as_deref())?;
    let listener = tokio::net::TcpListener::bind(address).await?;
    axum::serve(listener, routes).await?;
    Ok(())
}
