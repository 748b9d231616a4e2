//! The cost of a review over HTTP: one connection to a server in this process, one request after another. `cargo
//! bench -p admission --bench http`; prints p50, p99 and the slowest.

mod common;

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use admission::{Admission, Settings, routes};
use common::{pod, review};
use kube_api::config::DeviceConfig;
use kube_api::vendor::{Switches, Vendors};
use serde_json::json;

const WARM: usize = 1_000;
const COUNTED: usize = 20_000;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Sends a request and reads its answer, which must have status 200.
fn ask(stream: &mut TcpStream, request: &[u8], buffer: &mut [u8]) -> Outcome<()> {
    stream.write_all(request)?;
    let mut read = 0;
    loop {
        let more = stream.read(buffer.get_mut(read..).unwrap_or_default())?;
        if more == 0 {
            return Err("the server hung up".into());
        }
        read += more;
        let text = std::str::from_utf8(buffer.get(..read).unwrap_or_default())?;
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        if !head.starts_with("HTTP/1.1 200") {
            return Err(head.into());
        }
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .ok_or("no length")?;
        if body.len() >= length.parse()? {
            return Ok(());
        }
    }
}

fn main() -> Outcome<()> {
    // `cargo test --benches` runs this program without `--bench`, and measures nothing.
    if !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let switches = Switches {
        ascend: true,
        iluvatar: true,
    };
    let vendors = Vendors::new(DeviceConfig::standard(), switches)?;
    let router = routes(Arc::new(Admission::new(
        Arc::new(vendors),
        Settings::default(),
    )));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let listener = runtime.block_on(tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
    let address = listener.local_addr()?;
    runtime.spawn(async move { axum::serve(listener, router).await });

    let gpu =
        json!({ "cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1", "nvidia.com/gpumem": "16Gi" });
    let plain = json!({ "cpu": "4", "memory": "16Gi" });
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 1 << 20];
    for (name, pod) in [
        ("one container with a GPU", pod(1, &gpu)),
        ("one container without", pod(1, &plain)),
        ("ten containers with GPUs", pod(10, &gpu)),
    ] {
        let body = review(&pod);
        let mut request = format!(
            "POST /webhook HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        request.extend(body);
        let mut taken = Vec::with_capacity(COUNTED);
        for count in 0..WARM + COUNTED {
            let began = Instant::now();
            ask(&mut stream, &request, &mut buffer)?;
            if count >= WARM {
                taken.push(began.elapsed());
            }
        }
        taken.sort_unstable();
        let at = |share: usize| taken.get((COUNTED - 1) * share / 1000).copied();
        let shown = [at(500), at(990), at(1000)].map(Option::<Duration>::unwrap_or_default);
        let [half, most, slowest] = shown;
        writeln!(
            std::io::stdout(),
            "{name}: p50 {half:.1?}, p99 {most:.1?}, slowest {slowest:.1?}"
        )?;
    }
    Ok(())
}
