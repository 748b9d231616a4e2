//! `cargo xtask header`: include/vgpu.h from vgpu-abi.

pub(crate) fn run(_check: bool) -> anyhow::Result<()> {
    anyhow::bail!("the header is not generated yet")
}
