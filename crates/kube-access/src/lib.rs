//! Which cluster a program asks: the one of the kubeconfig that it was given, else the one in which it runs or that the
//! variable `KUBECONFIG` names. Reads files, and asks no cluster.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use kube::Config;
use kube::config::{InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError};

/// Why no cluster is known.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The kubeconfig cannot be read, or lacks something.
    #[error("--kubeconfig {}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: KubeconfigError,
    },
    /// There is no kubeconfig with this context.
    #[error("no context {context:?} in the kubeconfig that KUBECONFIG or ~/.kube/config names")]
    Context {
        /// The name of the context.
        context: String,
        /// What is wrong.
        source: KubeconfigError,
    },
    /// Neither a kubeconfig nor a pod's service account is here.
    #[error("no cluster is known: {otherwise}")]
    Unknown {
        /// The options of the program that name a cluster.
        otherwise: &'static str,
        /// What was looked for.
        source: Box<InferConfigError>,
    },
}

/// The cluster's address and credentials: of the kubeconfig's context, or of its current one. `otherwise` says which options
/// of the program name a cluster, for a user who has given none where none is known.
///
/// # Errors
/// See [`AccessError`].
pub async fn config(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
    otherwise: &'static str,
) -> Result<Config, AccessError> {
    let options = KubeConfigOptions {
        context: context.map(str::to_owned),
        ..KubeConfigOptions::default()
    };
    match (kubeconfig, context) {
        (Some(path), _) => {
            of_file(path, &options)
                .await
                .map_err(|source| AccessError::Kubeconfig {
                    path: path.to_owned(),
                    source,
                })
        }
        (None, Some(context)) => {
            Config::from_kubeconfig(&options)
                .await
                .map_err(|source| AccessError::Context {
                    context: context.to_owned(),
                    source,
                })
        }
        (None, None) => Config::infer()
            .await
            .map_err(|source| AccessError::Unknown {
                otherwise,
                source: Box::new(source),
            }),
    }
}

async fn of_file(path: &Path, options: &KubeConfigOptions) -> Result<Config, KubeconfigError> {
    Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, options).await
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "
apiVersion: v1
kind: Config
clusters:
- {name: one, cluster: {server: 'https://one.example:6443'}}
- {name: two, cluster: {server: 'https://two.example:6443'}}
contexts:
- {name: first, context: {cluster: one, user: reader}}
- {name: second, context: {cluster: two, user: reader}}
users:
- {name: reader, user: {}}
current-context: first
";

    async fn host(text: &str, context: Option<&str>) -> Result<String, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let found = config(Some(file.path()), context, "").await;
        found
            .map(|config| config.cluster_url.host().unwrap_or_default().to_owned())
            .map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn kubeconfig_names_the_cluster_by_its_context() {
        assert_eq!(host(TWO, None).await.unwrap(), "one.example");
        assert_eq!(host(TWO, Some("second")).await.unwrap(), "two.example");
    }

    #[tokio::test]
    async fn error_names_the_file() {
        let missing = config(Some(Path::new("/does/not/exist")), None, "").await;
        let said = missing.unwrap_err().to_string();
        assert_eq!(said, "--kubeconfig /does/not/exist");
        let said = host("clusters: 7", None).await.unwrap_err();
        assert!(said.starts_with("--kubeconfig /"), "{said}");
        let said = host(TWO, Some("third")).await.unwrap_err();
        assert!(said.starts_with("--kubeconfig /"), "{said}");
    }
}
