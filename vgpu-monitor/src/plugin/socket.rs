//! Unix sockets as tonic's client takes them. Never what is said over them.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

/// How long a connection may take: the other end is on this machine.
const CONNECT: Duration = Duration::from_secs(2);

/// Connects to a socket.
///
/// # Errors
///
/// When no process listens on it.
pub(crate) async fn connect(path: &Path) -> Result<Channel, tonic::transport::Error> {
    let path: PathBuf = path.to_owned();
    // The address is for the protocol's sake; what is called is the socket.
    Endpoint::from_static("http://localhost")
        .connect_timeout(CONNECT)
        .connect_with_connector(service_fn(move |_| {
            let path = path.clone();
            async move { Ok::<_, io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
        }))
        .await
}
