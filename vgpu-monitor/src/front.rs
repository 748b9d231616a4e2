//! The parent of the device plugin: holds the kubelet's connection, so that a plugin that ends and is restarted costs
//! no pod. The kubelet takes all devices for gone as soon as the stream of their list ends.
//!
//! ```text
//! kubelet ◄─sockets─► front: the last lists, calls that wait ◄─one connection─► plugin: allotments, GPUs, API server
//! ```
//!
//! It has no GPU, opens no driver, asks no API server and writes no file of its own: there is little in it that could
//! end it. When it does end, the process behind it ends with it.

pub mod command;

pub mod rules;

mod calls;

mod child;

mod known;

mod registration;

mod service;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};
use tower::service_fn;

use crate::plugin::RESOURCE;
use crate::proto::device_plugin::Empty;
use crate::proto::device_plugin::device_plugin_client::DevicePluginClient;
use crate::proto::front::behind_client::BehindClient;
use crate::proto::front::{Told, Watched};
use known::{Answering, Known};

/// Time between two messages to the process when nothing changes.
const TELL: Duration = Duration::from_secs(2);
/// A process that has answered and is silent for this long hangs.
const SILENT: Duration = Duration::from_secs(20);
/// A process that replaces another one is silent for this long at most, before its first answer.
const START: Duration = Duration::from_secs(60);
/// A process that has closed its connection has ended, or is ended after this.
const CLOSED: Duration = Duration::from_secs(2);
/// Before a list is asked for again that has ended while its process lives.
const AGAIN: Duration = Duration::from_millis(200);

/// The front. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Front(Known);

/// Why a process behind the front is of no more use, though it has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Useless {
    /// It does not answer.
    Silent,
    /// It has closed its connection.
    Closed,
    /// It serves other resources than those that this front keeps registered.
    Other,
}

impl Useless {
    /// In words, after "the plugin's process".
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Silent => "does not answer",
            Self::Closed => "has closed its connection",
            Self::Other => "serves other resources since the device configuration changed",
        }
    }
}

/// A process behind the front, for as long as this value lives.
#[derive(Debug)]
pub struct Behind {
    known: Known,
    number: u64,
    useless: watch::Receiver<Option<Useless>>,
    served: watch::Receiver<bool>,
    _tasks: JoinSet<()>,
}

impl Front {
    /// One for these resources, with nothing behind it. `folder` is the kubelet's folder of device plugins.
    pub fn new(folder: PathBuf, resources: Vec<String>) -> Self {
        Self(Known::new(folder, resources))
    }

    /// Keeps every resource registered, as soon as a process has made its list, until it is stopped.
    pub async fn serve(&self, stop: impl Future<Output = ()>) {
        registration::serve(&self.0, stop).await;
    }

    /// A process answers at the other end of this connection: the one that has this number, counted from 0.
    ///
    /// # Errors
    ///
    /// When the connection cannot be used.
    pub async fn put(&self, stream: UnixStream, number: u64) -> anyhow::Result<Behind> {
        let channel = over(stream).await?;
        let (says_useless, useless) = watch::channel(None);
        let (says_served, served) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let telling = tell(
            self.0.clone(),
            channel.clone(),
            number,
            says_useless.clone(),
        );
        tasks.spawn(telling);
        for resource in self.0.resources() {
            tasks.spawn(follow(
                self.0.clone(),
                resource.clone(),
                channel.clone(),
                says_served.clone(),
                says_useless.clone(),
            ));
        }
        self.0.answers(Answering { number, channel });
        Ok(Behind {
            known: self.0.clone(),
            number,
            useless,
            served,
            _tasks: tasks,
        })
    }
}

impl Behind {
    /// Ends when the process is of no more use. One that dies does not answer either: its end is noticed by the caller.
    pub async fn useless(&self) -> Useless {
        let mut useless = self.useless.clone();
        let found = useless.wait_for(Option::is_some).await;
        match found.as_deref() {
            Ok(Some(why)) => *why,
            // Its senders live as long as its tasks, which end with this value.
            _ => Useless::Closed,
        }
    }

    /// Whether it has made a list.
    #[must_use]
    pub fn has_served(&self) -> bool {
        *self.served.borrow()
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.known.is_gone(self.number);
    }
}

/// The protocol over a connection that is there.
async fn over(stream: UnixStream) -> Result<Channel, tonic::transport::Error> {
    let stream = Mutex::new(Some(stream));
    // The address is for the protocol's sake.
    Endpoint::from_static("http://localhost")
        .connect_with_connector(service_fn(move |_| {
            let stream = stream.lock().take();
            async move {
                let gone = || io::Error::from(io::ErrorKind::ConnectionReset);
                Ok::<_, io::Error>(TokioIo::new(stream.ok_or_else(gone)?))
            }
        }))
        .await
}

/// Tells the process what the kubelet does, and notices when it does not answer.
async fn tell(
    known: Known,
    channel: Channel,
    number: u64,
    useless: watch::Sender<Option<Useless>>,
) {
    let mut client = BehindClient::new(channel);
    let mut kubelets = known.kubelets();
    let mut patience = (number > 0).then_some(START);
    loop {
        let told = Told {
            resources: kubelets
                .borrow_and_update()
                .iter()
                .map(|(resource, kubelet)| Watched {
                    resource: resource.clone(),
                    now: kubelet.watches,
                    registrations: kubelet.registrations,
                })
                .collect(),
            restarts: number,
        };
        let heard = client.tell(told);
        let heard = match patience {
            Some(patience) => timeout(patience, heard).await,
            None => Ok(heard.await),
        };
        match heard {
            Ok(Ok(_)) => {}
            Ok(Err(status)) => {
                tracing::debug!(%status, "the plugin's process has closed its connection");
                sleep(CLOSED).await;
                useless.send_replace(Some(Useless::Closed));
                return;
            }
            Err(_) => {
                useless.send_replace(Some(Useless::Silent));
                return;
            }
        }
        patience = Some(SILENT);
        tokio::select! {
            _ = kubelets.changed() => {}
            () = sleep(TELL) => {}
        }
    }
}

/// Takes in the lists of a resource, until the connection ends.
async fn follow(
    known: Known,
    resource: String,
    channel: Channel,
    served: watch::Sender<bool>,
    useless: watch::Sender<Option<Useless>>,
) {
    let mut client = DevicePluginClient::new(channel);
    loop {
        let mut request = Request::new(Empty {});
        // A resource's name is ASCII: the API server takes no other.
        if let Ok(name) = AsciiMetadataValue::try_from(resource.as_str()) {
            request.metadata_mut().insert(RESOURCE, name);
        }
        match client.list_and_watch(request).await {
            Ok(lists) => {
                let mut lists = lists.into_inner();
                while let Ok(Some(list)) = lists.message().await {
                    known.listed(&resource, list);
                    served.send_replace(true);
                }
            }
            Err(status) if !calls::is_loss(&status) && status.code() == Code::NotFound => {
                useless.send_replace(Some(Useless::Other));
                return;
            }
            Err(_) => {}
        }
        sleep(AGAIN).await;
    }
}
