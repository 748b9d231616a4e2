//! Which cluster a command asks: that of `--kubeconfig` and `--context`, else the one that is known. Never asks it.

use std::path::Path;

use anyhow::Context;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};

/// The cluster's address and credentials. `otherwise` says what to give where no cluster is known.
pub(crate) async fn config(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
    otherwise: &'static str,
) -> anyhow::Result<Config> {
    let options = KubeConfigOptions {
        context: context.map(str::to_owned),
        ..KubeConfigOptions::default()
    };
    Ok(match (kubeconfig, context) {
        (Some(file), _) => {
            let read = Kubeconfig::read_from(file)
                .with_context(|| format!("cannot read {}", file.display()))?;
            Config::from_custom_kubeconfig(read, &options).await?
        }
        (None, Some(_)) => Config::from_kubeconfig(&options).await?,
        (None, None) => Config::infer()
            .await
            .with_context(|| format!("no cluster is known: {otherwise}"))?,
    })
}
