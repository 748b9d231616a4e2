//! Keeps the plugin registered: a socket for each resource in the kubelet's folder, and its registration,
//! again whenever the kubelet restarts. A kubelet that starts deletes all sockets and creates its own; if the
//! plugin is late, pods die whose devices the kubelet could not ask for.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::{Channel, Server};

use super::known::Known;
use super::service::FrontService;
use crate::plugin::{OPTIONS, connect};
use crate::proto::device_plugin::RegisterRequest;
use crate::proto::device_plugin::device_plugin_server::DevicePluginServer;
use crate::proto::device_plugin::registration_client::RegistrationClient;
use crate::served_socket::{Identity, ServedSocket, identity};

/// Name of the kubelet's socket.
const KUBELET: &str = "kubelet.sock";
/// The version of the protocol.
const VERSION: &str = "v1beta1";
/// How often the front checks by itself when no file event arrives.
const LOOK: Duration = Duration::from_secs(1);
/// How long one registration may take. The kubelet calls back within it.
const ONE: Duration = Duration::from_secs(10);
/// Between two tries, at first and at most.
const SOON: Duration = Duration::from_millis(50);
const LATE: Duration = Duration::from_secs(2);
/// How long the list may go unwatched before the plugin registers again: after a registration, and once it
/// was watched.
const UNWATCHED: Duration = Duration::from_secs(3);
const LEFT: Duration = Duration::from_millis(100);
/// How long calls may take to end when the socket goes.
const END: Duration = Duration::from_secs(2);

/// The socket of a resource.
pub(super) fn endpoint(resource: &str) -> String {
    format!("vgpu-{}.sock", resource.replace('/', "_"))
}

/// Serves and registers until it is stopped; then the sockets go.
pub(super) async fn serve(known: &Known, stop: impl Future<Output = ()>) {
    let folder = known.folder().clone();
    let (told, changes) = watch::channel(());
    let mut tasks = JoinSet::new();
    tasks.spawn(watch_folder(folder, told));
    let (stopping, stopped) = watch::channel(false);
    let mut served = JoinSet::new();
    for resource in known.resources() {
        let keeper = RegistrationKeeper {
            known: known.clone(),
            resource: resource.clone(),
            changes: changes.clone(),
            stopped: stopped.clone(),
        };
        served.spawn(keeper.run());
    }
    stop.await;
    stopping.send_replace(true);
    while served.join_next().await.is_some() {}
    tasks.shutdown().await;
}

/// Tells when something in the folder is made or goes.
async fn watch_folder(folder: PathBuf, told: watch::Sender<()>) {
    loop {
        match inotify(&folder) {
            Ok(events) => {
                told.send_replace(());
                while let Ok(mut ready) = events.readable().await {
                    // If there is no event to read, nothing has changed; after any other error the watch is made
                    // again.
                    match ready.get_inner().0.read_events() {
                        Ok(events) => {
                            told.send_replace(());
                            let gone = AddWatchFlags::IN_IGNORED;
                            if events.iter().any(|event| event.mask.contains(gone)) {
                                break;
                            }
                        }
                        Err(nix::errno::Errno::EAGAIN) => ready.clear_ready(),
                        Err(_) => break,
                    }
                }
            }
            Err(error) => {
                tracing::debug!(%error, "cannot watch the kubelet's folder; polling it instead")
            }
        }
        sleep(LOOK).await;
    }
}

/// As tokio's reactor takes it.
struct WatchedFolder(Inotify);

impl AsRawFd for WatchedFolder {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl AsFd for WatchedFolder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[expect(
    deprecated,
    reason = "`register` is unsafe code; what is registered here owns its descriptor, and closes it only when it goes"
)]
fn inotify(folder: &Path) -> io::Result<AsyncFd<WatchedFolder>> {
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    let what = AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_MOVED_FROM
        | AddWatchFlags::IN_DELETE_SELF;
    inotify.add_watch(folder, what)?;
    AsyncFd::new(WatchedFolder(inotify))
}

/// Keeps one resource there.
struct RegistrationKeeper {
    known: Known,
    resource: String,
    changes: watch::Receiver<()>,
    stopped: watch::Receiver<bool>,
}

impl RegistrationKeeper {
    async fn run(mut self) {
        let resource = self.resource.clone();
        self.tell(false);
        let mut wait = SOON;
        while !*self.stopped.borrow() {
            if !self.list_is_known().await {
                continue;
            }
            match self.once().await {
                Ok(()) => wait = SOON,
                Err(error) => {
                    tracing::debug!(resource, error = format!("{error:#}"), "not registered yet");
                    // A socket exists before the kubelet listens on it: after a change it is tried again soon.
                    let changed = self.pause(wait).await;
                    wait = if changed { SOON } else { (wait * 2).min(LATE) };
                }
            }
            self.tell(false);
        }
    }

    /// Says whether the kubelet watches the list.
    fn tell(&self, watched: bool) {
        self.known
            .note(&self.resource, |kubelets| kubelets.watches = watched);
    }

    /// A list of nothing would cost pods that hold something: it is waited for.
    async fn list_is_known(&mut self) -> bool {
        let Some(mut list) = self.known.list(&self.resource) else {
            return false;
        };
        tokio::select! {
            known = list.wait_for(Option::is_some) => known.is_ok(),
            _ = self.stopped.changed() => false,
        }
    }

    /// Waits for a change, at most this long; returns whether there was one.
    async fn pause(&mut self, most: Duration) -> bool {
        tokio::select! {
            _ = self.changes.changed() => true,
            _ = self.stopped.changed() => true,
            () = sleep(most) => false,
        }
    }

    /// One life of a socket: from its making to its end, which is no error once the kubelet knew it.
    async fn once(&mut self) -> anyhow::Result<()> {
        let folder = self.known.folder().clone();
        let kubelet = folder.join(KUBELET);
        let Some(kubelet_is) = identity(&kubelet) else {
            anyhow::bail!("{} is not there", kubelet.display());
        };
        // A kubelet that listens has removed all older sockets of the folder, ours too. So ours is created
        // only now: a kubelet that hears of a socket that does not exist waits ten seconds for it, and its
        // pods do not.
        let channel = connect(&kubelet).await?;
        let own = folder.join(endpoint(&self.resource));
        let service = FrontService::new(&self.known, &self.resource);
        let router = Server::builder().add_service(DevicePluginServer::new(service.clone()));
        let serving = ServedSocket::begin(&own, router).inspect_err(|error| {
            tracing::error!(path = %own.display(), %error, "cannot listen for the kubelet");
        })?;
        let registered = tokio::select! {
            registered = register(channel, &self.resource) => registered,
            () = gone(&serving) => Err(anyhow::anyhow!("the plugin's socket was removed")),
        };
        let ended = match registered {
            Ok(()) => {
                tracing::info!(resource = self.resource, "registered with the kubelet");
                self.known
                    .note(&self.resource, |kubelets| kubelets.registrations += 1);
                self.stay(&kubelet, kubelet_is, &serving, &service).await;
                Ok(())
            }
            Err(why) => Err(why),
        };
        service.end();
        serving.end(END).await;
        ended
    }

    /// Returns when the socket has to be created again.
    async fn stay(
        &mut self,
        kubelet: &Path,
        kubelet_is: Identity,
        serving: &ServedSocket,
        service: &FrontService,
    ) {
        let resource = self.resource.clone();
        let mut watchers = service.watchers();
        let mut unwatched_since = Instant::now();
        let mut patience = UNWATCHED;
        let why = loop {
            if *self.stopped.borrow() {
                return;
            }
            if identity(kubelet).is_some_and(|found| found != kubelet_is) {
                break "the kubelet has restarted";
            }
            if !serving.is_there() {
                break "the plugin's socket was removed";
            }
            let watched = *watchers.borrow_and_update() > 0;
            self.tell(watched);
            if watched {
                unwatched_since = Instant::now();
                patience = LEFT;
            } else if unwatched_since.elapsed() >= patience {
                break "the kubelet does not watch the list";
            }
            tokio::select! {
                _ = self.pause(if watched { LOOK } else { LEFT }) => {}
                _ = watchers.changed() => {}
            }
            // A moment without a watcher counts from its beginning.
            if watched && *watchers.borrow() == 0 {
                unwatched_since = Instant::now();
            }
        };
        tracing::info!(resource, why, "registering again");
    }
}

/// Ends when the socket is no longer there.
async fn gone(serving: &ServedSocket) {
    while serving.is_there() {
        sleep(SOON).await;
    }
}

async fn register(channel: Channel, resource: &str) -> anyhow::Result<()> {
    let said = async {
        let request = RegisterRequest {
            version: VERSION.to_owned(),
            endpoint: endpoint(resource),
            resource_name: resource.to_owned(),
            options: Some(OPTIONS),
        };
        let mut client = RegistrationClient::new(channel);
        match client.register(request).await {
            Ok(_) => Ok(()),
            Err(status) => {
                let why = status.message();
                tracing::warn!(resource, why, "the kubelet did not accept the registration");
                Err(anyhow::anyhow!("{why}"))
            }
        }
    };
    timeout(ONE, said)
        .await
        .unwrap_or_else(|_| Err(anyhow::anyhow!("the kubelet did not answer")))
}
