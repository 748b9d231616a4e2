//! A unix socket on which the kubelet calls this process: made with its server, and taken away at the end if it is still
//! ours. A kubelet that starts deletes the sockets in its folders. Never decides when one is made again.

use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::stream::unfold;
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::transport::server::Router;

/// The identity of the file under a name: a new file has other numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

/// The file that is under this name now.
pub(crate) fn identity(path: &Path) -> Option<Identity> {
    let found = std::fs::symlink_metadata(path).ok()?;
    Some(Identity {
        device: found.dev(),
        inode: found.ino(),
        // An inode's number is given out again.
        changed: (found.ctime(), found.ctime_nsec()),
    })
}

/// A socket that is served.
pub(crate) struct ServedSocket {
    path: PathBuf,
    is: Option<Identity>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl ServedSocket {
    /// Makes the socket, in the place of an older one, and serves it.
    pub(crate) fn begin(path: &Path, router: Router) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        let is = identity(path);
        let incoming = unfold(listener, async |listener| {
            let accepted = listener.accept().await.map(|(stream, _)| stream);
            Some((accepted, listener))
        });
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            let stopped = async {
                // Told or forgotten: either is the end.
                drop(stopped.await);
            };
            let ended = router
                .serve_with_incoming_shutdown(Box::pin(incoming), stopped)
                .await;
            if let Err(error) = ended {
                tracing::error!(%error, "a socket is no longer served");
            }
        });
        Ok(Self {
            path: path.to_path_buf(),
            is,
            stop,
            task,
        })
    }

    /// Whether the socket is served and still under its name.
    pub(crate) fn is_there(&self) -> bool {
        !self.task.is_finished() && self.is.is_some() && identity(&self.path) == self.is
    }

    /// Takes the socket away, if it is still ours, and ends. Calls that are being answered get `patience` to end.
    pub(crate) async fn end(self, patience: Duration) {
        if self.is.is_some() && identity(&self.path) == self.is {
            drop(std::fs::remove_file(&self.path));
        }
        // Forgetting it says the same as sending.
        drop(self.stop);
        let mut task = self.task;
        // A stream that the kubelet watches has no end of its own.
        if timeout(patience, &mut task).await.is_err() {
            task.abort();
        }
    }
}
