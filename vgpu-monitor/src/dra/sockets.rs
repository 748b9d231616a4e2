//! The driver's two sockets in the kubelet's folder: the one by which the kubelet finds it, and the one on which it is
//! called. Owns that they are there as long as the driver serves; never what is said over them.
//!
//! The kubelet's gRPC names a socket's path, escaped, as the authority of its requests (`%2Fvar%2Flib%2F…`). Our HTTP
//! takes a `%` in an authority only before an `@`, so both names have one behind the folders.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::watch;
use tokio::time::sleep;
use tonic::transport::Server;
use tonic::transport::server::Router;

use super::DRIVER;
use super::service::{Introduction, Registered, Service};
use crate::proto::dra_health::dra_resource_health_server::DraResourceHealthServer;
use crate::proto::dra_health_v1::dra_resource_health_server::DraResourceHealthServer as DraResourceHealthServerV1;
use crate::proto::dra_v1::dra_plugin_server::DraPluginServer;
use crate::proto::dra_v1beta1::dra_plugin_server::DraPluginServer as DraPluginServerV1beta1;
use crate::proto::plugin_registration::registration_server::RegistrationServer;
use crate::served_socket::ServedSocket;

/// How often is looked whether the sockets are there.
const LOOK: Duration = Duration::from_secs(1);
/// How long calls that are being answered have when the driver stops.
const END: Duration = Duration::from_secs(5);
/// A unix socket's path has to be shorter, bytes.
const PATH_MOST: usize = 108;

/// Where the sockets are, and whether the kubelet has taken the driver.
#[derive(Debug, Clone)]
pub struct Sockets {
    finding: PathBuf,
    calls: PathBuf,
    registration: watch::Sender<Registered>,
}

impl Sockets {
    /// In the kubelet's folder.
    ///
    /// # Errors
    /// The folder's path is too long for a socket below it.
    pub fn new(kubelet: &Path) -> anyhow::Result<Self> {
        let sockets = Self {
            finding: kubelet.join(format!("plugins_registry/{DRIVER}@reg.sock")),
            calls: kubelet.join(format!("plugins/{DRIVER}/dra@vgpu.sock")),
            registration: watch::Sender::new(Registered::NotYet),
        };
        for path in [&sockets.finding, &sockets.calls] {
            let bytes = path.as_os_str().len();
            anyhow::ensure!(
                bytes < PATH_MOST,
                "--kubelet-dir: {} has {bytes} bytes, and the path of a socket has fewer than {PATH_MOST}",
                path.display()
            );
        }
        Ok(sockets)
    }

    /// Whether the kubelet has accepted the driver, or why not; `None` as long as it has answered neither.
    #[must_use]
    pub fn registration(&self) -> watch::Receiver<Registered> {
        self.registration.subscribe()
    }

    /// Serves until `stop` ends. Sockets that are removed are made again.
    pub async fn serve(&self, service: Service, stop: impl Future<Output = ()>) {
        let mut stop = std::pin::pin!(stop);
        loop {
            let begun = self.begin(&service);
            let pause = async {
                match &begun {
                    Ok(both) => {
                        while both.iter().all(ServedSocket::is_there) {
                            sleep(LOOK).await;
                        }
                        tracing::warn!("a socket of the driver was removed: making it again");
                    }
                    Err(error) => {
                        tracing::error!(
                            error = format!("{error:#}"),
                            "cannot listen for the kubelet"
                        );
                        sleep(LOOK).await;
                    }
                }
            };
            let is_over = tokio::select! {
                () = pause => false,
                () = &mut stop => true,
            };
            self.registration.send_replace(Registered::NotYet);
            for serving in begun.into_iter().flatten() {
                serving.end(END).await;
            }
            if is_over {
                return;
            }
        }
    }

    /// The calls first: the kubelet calls as soon as it has found the driver.
    fn begin(&self, service: &Service) -> anyhow::Result<[ServedSocket; 2]> {
        let calls = Server::builder()
            .add_service(DraPluginServer::new(service.clone()))
            .add_service(DraPluginServerV1beta1::new(service.clone()))
            .add_service(DraResourceHealthServer::new(service.clone()))
            .add_service(DraResourceHealthServerV1::new(service.clone()));
        let calls = begin(&self.calls, calls)
            .with_context(|| format!("cannot make the socket {}", self.calls.display()))?;
        let introduction = Introduction {
            endpoint: self.calls.display().to_string(),
            registration: self.registration.clone(),
        };
        let finding = Server::builder().add_service(RegistrationServer::new(introduction));
        let finding = begin(&self.finding, finding)
            .with_context(|| format!("cannot make the socket {}", self.finding.display()))?;
        Ok([finding, calls])
    }
}

/// The kubelet makes its own folders, and the driver its folder among them.
fn begin(path: &Path, router: Router) -> io::Result<ServedSocket> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    ServedSocket::begin(path, router)
}

#[cfg(test)]
mod tests {
    use axum::http::uri::Authority;

    use super::*;

    #[test]
    fn authority_of_the_kubelets_requests_is_accepted() {
        let sockets = Sockets::new(Path::new("/var/lib/kubelet")).unwrap();
        for path in [&sockets.finding, &sockets.calls] {
            let authority = path.display().to_string().replace('/', "%2F");

            assert!(authority.parse::<Authority>().is_ok(), "{authority}");
            let plain = authority.replace('@', "-");
            assert!(
                plain.parse::<Authority>().is_err(),
                "the @ is not needed any more"
            );
        }
    }

    #[test]
    fn folder_whose_path_is_too_long_is_refused_by_its_flag() {
        let folder = PathBuf::from(format!("/{}", "k".repeat(80)));

        let error = Sockets::new(&folder).unwrap_err().to_string();

        assert!(
            error.contains("--kubelet-dir") && error.contains("fewer than 108"),
            "{error}"
        );
    }
}
