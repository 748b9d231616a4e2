//! Checks and files that cargo does not know: the C header, generated tables, the files that ship, and the checks on
//! them.
//! This file only hands each command to its module; nothing here ships.
#![forbid(unsafe_code)]
#![allow(
    clippy::print_stdout,
    reason = "a command for developers talks to them"
)]

mod check;
mod codegen;
mod crds;
mod dist;
mod elf;
mod graph;
mod header;
mod links;
mod modules;
mod overlay;
mod product;
mod profile;
mod protogen;
mod sbom;
mod source;
mod types;

use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Tasks of the workspace that cargo has no word for")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Write include/vgpu.h from vgpu-abi.
    Header {
        /// Change nothing; fail when the committed file is stale.
        #[arg(long)]
        check: bool,
    },
    /// Write the tables of crates/cuda-api from tests/vectors/symbols.
    Codegen {
        /// Change nothing; fail when a committed file is stale.
        #[arg(long)]
        check: bool,
    },
    /// Write the kubelet's protocols of vgpu-monitor from vgpu-monitor/proto.
    Protogen {
        /// Change nothing; fail when a committed file is stale.
        #[arg(long)]
        check: bool,
    },
    /// Write charts/vgpu/files/hcs-crds.yaml from the types of kube-api.
    Crds {
        /// Change nothing; fail when the committed file is stale.
        #[arg(long)]
        check: bool,
    },
    /// Build what ships into target/dist: glibc 2.17 and newer, no other dependency that could be missing.
    Dist(dist::DistArgs),
    /// Put libvgpu.so before the driver under the driver's own name, for what a preload cannot reach.
    Overlay(overlay::OverlayArgs),
    /// Write the layers of the library into docs/architecture.md from what their folders say.
    Layers {
        /// Change nothing; fail when the committed file is stale.
        #[arg(long)]
        check: bool,
    },
    /// Header, generated code, crate graph, modules, and the ELF rules for what `dist` built.
    Check(check::CheckArgs),
}

fn main() -> anyhow::Result<()> {
    match Args::parse().task {
        Task::Header { check } => header::run(check),
        Task::Codegen { check } => codegen::run(check),
        Task::Protogen { check } => protogen::run(check),
        Task::Crds { check } => crds::run(check),
        Task::Dist(args) => dist::run(&args),
        Task::Overlay(args) => overlay::run(&args),
        Task::Layers { check } => modules::run(check),
        Task::Check(args) => check::run(&args),
    }
}

/// The top of the repository, wherever cargo was called from.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask stands in the workspace")
        .to_path_buf()
}
