//! The pages over a cluster in memory, to try out: `look [ADDRESS] [EXPORT.json | NODES PODS]`. No scheduler runs in
//! it. Without a file there are NODES nodes of eight GPUs (3 by default) and PODS pods on them (12 by default).

#[path = "../tests/support.rs"]
mod support;

use std::sync::Arc;

use pages::{Way, Why, web};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments
        .next()
        .unwrap_or_else(|| "127.0.0.1:1212".to_owned());
    let first = arguments.next();
    let number = |text: Option<&String>, default: usize| {
        text.map_or(Ok(default), |text| text.parse::<usize>())
    };
    let memory = match number(first.as_ref(), 3) {
        Ok(nodes) => {
            let pods = number(arguments.next().as_ref(), 12)?;
            let last = format!("train-{:05}", pods.saturating_sub(1));
            let namespace = if pods % 5 == 0 { "team-b" } else { "default" };
            let way = Way {
                text: "ask for at most 81920 MiB of memory on each GPU".to_owned(),
                node: "gpu-0000".to_owned(),
                edits: vec!["container main: nvidia.com/gpumem: 81920 (is 90000)".to_owned()],
            };
            let why = Why {
                ways: vec![way],
                ..Why::default()
            };
            support::Memory::with(support::shared_gpus(nodes, pods)).why(namespace, &last, why)
        }
        Err(_) => {
            let file = std::fs::read(first.unwrap_or_default())?;
            support::Memory::with(serde_json::from_slice(&file)?)
        }
    };
    let listener = tokio::net::TcpListener::bind(address).await?;
    axum::serve(listener, web::router(Arc::new(memory))).await?;
    Ok(())
}
