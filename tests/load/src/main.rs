//! Load on a scheduler over HTTP, as kube-scheduler and the API server produce it: many callers, many nodes, many
//! placed pods. Prints rows of a table; asserts nothing, because the figures depend on the machine.
//!
//! Two processes of `vgpu-scheduler` run: one is the API server (`--embedded`), the other is measured and treats the
//! first as any cluster (`--kubeconfig`), so its memory is that on a real cluster.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a program that prints a table")]

mod http;
mod process;
mod report;
mod simulator;
mod world;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand, ValueEnum};

use crate::process::Scheduler;
use crate::report::{Row, Times};

/// Load on a scheduler over HTTP. Prints a Markdown table.
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Args {
    /// The scheduler to measure.
    #[arg(long, default_value = "target/release/vgpu-scheduler")]
    scheduler: PathBuf,
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// `POST /filter`, with the time from start to the first answer, and peak memory.
    Filter {
        /// Nodes of eight GPUs.
        #[arg(long, value_delimiter = ',', default_value = "1000,5000,15000")]
        nodes: Vec<usize>,
        /// Pods that already have their devices.
        #[arg(long, value_delimiter = ',', default_value = "0,5000,50000")]
        placed: Vec<usize>,
        /// Callers at a time, each with a connection that it keeps.
        #[arg(long, value_delimiter = ',', default_value = "1,8,40")]
        callers: Vec<usize>,
        /// The kinds of pods.
        #[arg(
            long,
            value_enum,
            value_delimiter = ',',
            default_value = "fits,nowhere"
        )]
        pod: Vec<Pod>,
        /// How long each row is measured.
        #[arg(long, default_value_t = 3)]
        seconds: u64,
    },
    /// `POST /webhook` on the scheduler's listener.
    Webhook {
        /// Callers at a time.
        #[arg(long, value_delimiter = ',', default_value = "1,8")]
        callers: Vec<usize>,
        /// How long each row is measured.
        #[arg(long, default_value_t = 3)]
        seconds: u64,
    },
    /// `GET /metrics`.
    Metrics {
        /// Nodes of eight GPUs.
        #[arg(long, value_delimiter = ',', default_value = "1000,5000")]
        nodes: Vec<usize>,
        /// Pods that already have their devices.
        #[arg(long, value_delimiter = ',', default_value = "5000")]
        placed: Vec<usize>,
        /// How long each row is measured.
        #[arg(long, default_value_t = 3)]
        seconds: u64,
    },
    /// The whole simulator: pods without a node on nodes of which one in five has eight GPUs. And beside it a real
    /// kube-scheduler on the same objects, over the simulator's API server.
    Simulator {
        /// How many nodes.
        #[arg(long, default_value_t = 5000)]
        nodes: usize,
        /// How many pods.
        #[arg(long, default_value_t = 10_000)]
        pods: usize,
        /// A kube-scheduler; `scripts/cluster build` makes target/cluster/bin/kube-scheduler.
        #[arg(long)]
        kube_scheduler: Option<PathBuf>,
    },
}

/// The request of a `/filter`.
#[derive(Clone, Copy, ValueEnum)]
enum Pod {
    /// One GPU with 1,000 MiB.
    Fits,
    /// More memory than any GPU has: every node is refused, with its reason.
    Nowhere,
    /// Four whole GPUs.
    Whole,
}

impl Pod {
    fn limits(self) -> serde_json::Value {
        match self {
            Self::Fits => serde_json::json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}),
            Self::Nowhere => {
                serde_json::json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "900000"})
            }
            Self::Whole => serde_json::json!({"nvidia.com/gpu": "4", "nvidia.com/gpucores": "100"}),
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Fits => "fits",
            Self::Nowhere => "fits nowhere",
            Self::Whole => "four whole GPUs",
        }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    match args.what {
        What::Filter {
            nodes,
            placed,
            callers,
            pod,
            seconds,
        } => {
            report::head("pod");
            for nodes in &nodes {
                for placed in &placed {
                    filter(&args.scheduler, *nodes, *placed, &callers, &pod, seconds).await?;
                }
            }
        }
        What::Simulator {
            nodes,
            pods,
            kube_scheduler,
        } => simulator::run(&args.scheduler, kube_scheduler.as_deref(), nodes, pods).await?,
        What::Webhook { callers, seconds } => webhook(&args.scheduler, &callers, seconds).await?,
        What::Metrics {
            nodes,
            placed,
            seconds,
        } => {
            report::head("call");
            for nodes in &nodes {
                for placed in &placed {
                    metrics(&args.scheduler, *nodes, *placed, seconds).await?;
                }
            }
        }
    }
    Ok(())
}

async fn filter(
    scheduler: &std::path::Path,
    nodes: usize,
    placed: usize,
    callers: &[usize],
    pods: &[Pod],
    seconds: u64,
) -> Result<()> {
    let api = Scheduler::embedded(scheduler, &world::state(nodes, placed)).await?;
    let names = world::node_names(nodes);
    let started = Instant::now();
    let measured = Scheduler::beside(scheduler, &api).await?;
    let first = world::filter_body("first", &Pod::Fits.limits(), &names);
    loop {
        let answer = http::Connection::open(measured.port).await;
        if let Ok(mut connection) = answer
            && let Ok((200, body)) = connection.post("/filter", first.clone()).await
            && !body.windows(16).any(|part| part == b"\"NodeNames\":null,")
        {
            break;
        }
        anyhow::ensure!(
            started.elapsed() < Duration::from_secs(120),
            "no first fit within two minutes; see {}",
            measured.log.display()
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let first_fit = started.elapsed();
    let at_rest = measured.memory()?;
    for pod in pods {
        for callers in callers {
            let bodies: Vec<_> = (0..*callers)
                .map(|caller| {
                    world::filter_body(&format!("caller-{caller}"), &pod.limits(), &names)
                })
                .collect();
            let times = drive(measured.port, "/filter", bodies, seconds).await?;
            report::row(&Row {
                nodes,
                placed,
                what: pod.word(),
                callers: *callers,
                times,
                memory: Some(measured.memory()?),
            });
        }
    }
    println!(
        "\n{nodes} nodes, {placed} placed: first fit {} ms after the process started, {} MiB peak then\n",
        first_fit.as_millis(),
        at_rest.peak_bytes >> 20
    );
    Ok(())
}

async fn webhook(scheduler: &std::path::Path, callers: &[usize], seconds: u64) -> Result<()> {
    let measured = Scheduler::embedded(scheduler, &world::state(1, 0)).await?;
    report::head("review");
    for (what, review) in world::reviews() {
        for callers in callers {
            let bodies = vec![review.clone(); *callers];
            let times = drive(measured.port, "/webhook", bodies, seconds).await?;
            report::row(&Row {
                nodes: 1,
                placed: 0,
                what,
                callers: *callers,
                times,
                memory: None,
            });
        }
    }
    Ok(())
}

async fn metrics(
    scheduler: &std::path::Path,
    nodes: usize,
    placed: usize,
    seconds: u64,
) -> Result<()> {
    let api = Scheduler::embedded(scheduler, &world::state(nodes, placed)).await?;
    let measured = Scheduler::beside(scheduler, &api).await?;
    measured.ready().await?;
    let mut connection = http::Connection::open(measured.port).await?;
    let mut times = Times::default();
    let mut bytes = 0;
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        let began = Instant::now();
        let (status, body) = connection.get("/metrics").await?;
        anyhow::ensure!(status == 200, "GET /metrics: {status}");
        bytes = body.len();
        times.add(began.elapsed());
    }
    report::row(&Row {
        nodes,
        placed,
        what: "/metrics",
        callers: 1,
        times,
        memory: Some(measured.memory()?),
    });
    println!("\n{bytes} bytes\n");
    Ok(())
}

/// One caller for each body, each sending its own again and again.
async fn drive(
    port: u16,
    path: &'static str,
    bodies: Vec<bytes::Bytes>,
    seconds: u64,
) -> Result<Times> {
    let mut callers = tokio::task::JoinSet::new();
    let warm = Instant::now() + Duration::from_millis(300);
    let end = warm + Duration::from_secs(seconds);
    for body in bodies {
        callers.spawn(async move {
            let mut connection = http::Connection::open(port).await?;
            let mut times = Times::default();
            loop {
                let began = Instant::now();
                let (status, answer) = connection.post(path, body.clone()).await?;
                anyhow::ensure!(
                    status == 200,
                    "POST {path}: {status} {}",
                    String::from_utf8_lossy(&answer)
                );
                let now = Instant::now();
                if now > end {
                    return Ok(times);
                }
                if began > warm {
                    times.add(now - began);
                }
            }
        });
    }
    let mut all = Times::default();
    while let Some(times) = callers.join_next().await {
        all.join(times.context("a caller ended early")??);
    }
    all.took(Duration::from_secs(seconds));
    Ok(all)
}
