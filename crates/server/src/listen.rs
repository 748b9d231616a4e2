//! Accepts connections and serves a router on them, with a limit on everything that a client could
//! drag out: headers, reading the answer, the number of connections, stopping.
//!
//! The router decides what is served.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::patience::Patient;
use crate::tls::Tls;

/// The limits on a client's connections and requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Manners {
    /// Connections at a time; further ones are closed at once.
    pub connections: usize,
    /// Connections from one address, so that one client cannot shut out the others.
    pub connections_per_address: usize,
    /// The time for a whole TLS handshake.
    pub handshake_timeout: Duration,
    /// The time for a whole request head, and between two requests on one connection. Go's clients,
    /// among them the API server and kube-scheduler, drop an idle connection after 90 s. A server
    /// that drops it earlier can lose a request that the client is just sending.
    pub head_timeout: Duration,
    /// The longest time without progress while an answer is written.
    pub write_timeout: Duration,
    /// Bytes of a request head; a longer one is answered with 431.
    pub head_bytes: usize,
    /// Headers of a request; a request with more is answered with 431.
    pub headers: usize,
    /// The time for requests in flight when the daemon is asked to stop.
    pub stop_timeout: Duration,
}

impl Default for Manners {
    fn default() -> Self {
        Self {
            connections: 128,
            connections_per_address: 32,
            handshake_timeout: Duration::from_secs(10),
            head_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(10),
            head_bytes: 16 << 10,
            headers: 64,
            stop_timeout: Duration::from_secs(5),
        }
    }
}

/// Why the daemon cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process has the address.
    #[error(
        "cannot listen on {address}: the port is in use; `ss -ltnp 'sport = :{port}'` as root \
         shows by which process",
        port = address.port()
    )]
    InUse {
        /// The address.
        address: SocketAddr,
    },
    /// Ports below 1024 need root.
    #[error(
        "cannot listen on {address}: permission denied; ports below 1024 need root or \
         CAP_NET_BIND_SERVICE"
    )]
    Denied {
        /// The address.
        address: SocketAddr,
    },
    /// The machine does not have the address.
    #[error(
        "cannot listen on {address}: this machine has no such address; `ip address` lists them, \
         0.0.0.0 stands for all"
    )]
    NoSuchAddress {
        /// The address.
        address: SocketAddr,
    },
    /// Another error of the system.
    #[error("cannot listen on {address}: {error}")]
    System {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
}

/// Whether the machine has no IPv6 at all: switched off at the kernel's start, or in this network namespace.
fn is_without_ipv6(error: &io::Error) -> bool {
    /// EAFNOSUPPORT and EADDRNOTAVAIL of Linux.
    const NUMBERS: [i32; 2] = [97, 99];
    error
        .raw_os_error()
        .is_some_and(|number| NUMBERS.contains(&number))
}

/// A bound port. Connections wait in its queue until it is served.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Binds the address; port 0 takes any free port. `[::]` stands for every address of both families, and for
    /// `0.0.0.0` on a machine without IPv6.
    ///
    /// # Errors
    ///
    /// See [`BindError`].
    pub async fn bind(address: SocketAddr) -> Result<Self, BindError> {
        let bound = async {
            let listener = match TcpListener::bind(address).await {
                Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && is_without_ipv6(&error) => {
                    TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await?
                }
                bound => bound?,
            };
            let address = listener.local_addr()?;
            Ok(Self { listener, address })
        };
        bound.await.map_err(|error: io::Error| match error.kind() {
            io::ErrorKind::AddrInUse => BindError::InUse { address },
            io::ErrorKind::PermissionDenied => BindError::Denied { address },
            io::ErrorKind::AddrNotAvailable => BindError::NoSuchAddress { address },
            _ => BindError::System { address, error },
        })
    }

    /// Another handle of the same socket. As long as one of the two lives, no other program gets the port, and connections
    /// wait in the queue that both have.
    ///
    /// # Errors
    ///
    /// The process has no file descriptor left.
    pub fn try_clone(&self) -> io::Result<Self> {
        let descriptor = self.listener.as_fd().try_clone_to_owned()?;
        Ok(Self {
            listener: TcpListener::from_std(descriptor.into())?,
            address: self.address,
        })
    }

    /// The address, with the port that was bound.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is ready; then lets requests in flight finish, up to the stop timeout of
    /// `manners`.
    pub async fn serve(self, router: Router, manners: Manners, stop: impl Future) {
        self.serve_both(router, manners, None, stop).await;
    }

    /// As [`Listener::serve`], over TLS. Checks the certificate's files for changes every ten
    /// seconds, when it has any.
    pub async fn serve_tls(self, router: Router, manners: Manners, tls: Tls, stop: impl Future) {
        let followed = async {
            // A certificate in memory is replaced by its owner.
            if !tls.has_files() {
                std::future::pending::<()>().await;
            }
            follow(&tls).await;
        };
        tokio::select! {
            () = self.serve_both(router, manners, Some(tls.clone()), stop) => {}
            () = followed => {}
        }
    }

    async fn serve_both(
        self,
        router: Router,
        manners: Manners,
        tls: Option<Tls>,
        stop: impl Future,
    ) {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(manners.head_timeout)
            .max_buf_size(manners.head_bytes.max(8192))
            .max_headers(manners.headers);
        let guests = Guests::default();
        let (stopping, stopped) = watch::channel(false);
        let mut connections = JoinSet::new();
        let mut stop = std::pin::pin!(stop);
        loop {
            let accepted = tokio::select! {
                _ = &mut stop => break,
                accepted = self.listener.accept() => accepted,
                // Ended connections are removed at once, to free their memory.
                Some(_) = connections.join_next() => continue,
            };
            match accepted {
                Ok((stream, from)) => {
                    let Some(guest) = guests.admit(from.ip(), &manners) else {
                        tracing::debug!(%from, "too many connections, this one is closed");
                        continue;
                    };
                    let (http, router, tls) = (http.clone(), router.clone(), tls.clone());
                    let mut stopped = stopped.clone();
                    connections.spawn(async move {
                        // Send an answer as soon as it is written. If this fails, the answer is
                        // some milliseconds late, no more.
                        drop(stream.set_nodelay(true));
                        match tls {
                            None => {
                                let stream = Patient::new(stream, manners.write_timeout);
                                serve_one(stream, http, router, stopped).await;
                            }
                            Some(tls) => {
                                if let Some(stream) =
                                    shake_hands(stream, &tls, manners, &mut stopped).await
                                {
                                    serve_one(stream, http, router, stopped).await;
                                }
                            }
                        }
                        drop(guest);
                    });
                }
                // The client closed the connection before it was accepted.
                Err(error) if is_the_clients(&error) => {}
                Err(error) => {
                    // Out of descriptors or memory: both come back when connections end.
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
        drop(self.listener);
        stopping.send_replace(true);
        let all_ended = async { while connections.join_next().await.is_some() {} };
        if timeout(manners.stop_timeout, all_ended).await.is_err() {
            tracing::warn!(open = connections.len(), "connections are cut off");
            connections.shutdown().await;
        }
    }
}

/// How often the files of a certificate are checked. A kubelet takes up to a minute to bring a
/// changed Secret into a pod; this adds little to that.
const LOOK: Duration = Duration::from_secs(10);

/// Never returns.
async fn follow(tls: &Tls) {
    loop {
        sleep(LOOK).await;
        let looking = tls.clone();
        match tokio::task::spawn_blocking(move || looking.look_again()).await {
            Ok(Ok(false)) => {}
            Ok(Ok(true)) => tracing::info!("the certificate was replaced: its files have changed"),
            Ok(Err(error)) => {
                tracing::warn!(%error, "the certificate is not replaced; the one before is shown");
            }
            Err(error) => tracing::error!(%error, "the certificate's files were not looked at"),
        }
    }
}

/// The stream under TLS; `None` if the client is too slow or speaks another protocol, or the daemon
/// stops.
async fn shake_hands(
    stream: TcpStream,
    tls: &Tls,
    manners: Manners,
    stopped: &mut watch::Receiver<bool>,
) -> Option<TlsStream<Patient<TcpStream>>> {
    let handshake = async {
        let mut first = [0; 4];
        let read = stream.peek(&mut first).await?;
        let mut stream = Patient::new(stream, manners.write_timeout);
        if first.get(..read).is_some_and(is_plain_http) {
            stream.write_all(PLAIN_HTTP).await?;
            stream.shutdown().await?;
            // Unread bytes at the close would reset the connection, and the client would lose the
            // answer.
            tokio::io::copy(&mut stream.take(64 << 10), &mut tokio::io::sink()).await?;
            return Err(io::Error::other("it speaks HTTP without TLS"));
        }
        let config = tls
            .config()
            .ok_or_else(|| io::Error::other("there is no certificate yet"))?;
        TlsAcceptor::from(config).accept(stream).await
    };
    let shaken = tokio::select! {
        shaken = timeout(manners.handshake_timeout, handshake) => shaken,
        _ = stopped.wait_for(|stopped| *stopped) => return None,
    };
    match shaken {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, "no TLS handshake");
            None
        }
        Err(_elapsed) => {
            tracing::debug!("no TLS handshake in time");
            None
        }
    }
}

/// The answer to a client that speaks `http` to an `https` port.
const PLAIN_HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\n\
    content-length: 49\r\nconnection: close\r\n\r\nthis port speaks https: use https:// to reach it\n";

fn is_plain_http(first: &[u8]) -> bool {
    matches!(
        first,
        b"GET " | b"POST" | b"HEAD" | b"PUT " | b"PATC" | b"DELE" | b"OPTI" | b"CONN"
    )
}

async fn serve_one(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    http: http1::Builder,
    router: Router,
    mut stopped: watch::Receiver<bool>,
) {
    let io = TokioIo::new(stream);
    let mut connection =
        std::pin::pin!(http.serve_connection(io, TowerToHyperService::new(router)));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = async { drop(stopped.wait_for(|stopped| *stopped).await) } => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        // The client went away, was too slow or does not speak HTTP. That is the client's problem.
        tracing::debug!(%error, "connection ended");
    }
}

fn is_the_clients(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
    )
}

/// The number of connections of each address.
#[derive(Debug, Clone, Default)]
struct Guests {
    by_address: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// One connection of an address; it stops counting when this is dropped.
struct Guest {
    guests: Guests,
    address: IpAddr,
}

impl Guests {
    fn admit(&self, address: IpAddr, manners: &Manners) -> Option<Guest> {
        let mut by_address = self.lock();
        let all: usize = by_address.values().sum();
        let same = by_address.get(&address).copied().unwrap_or(0);
        if all >= manners.connections || same >= manners.connections_per_address {
            return None;
        }
        by_address.insert(address, same + 1);
        Some(Guest {
            guests: self.clone(),
            address,
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<IpAddr, usize>> {
        // The counts are consistent after every statement, so a poisoned lock can be used.
        self.by_address
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut by_address = self.guests.lock();
        match by_address.get_mut(&self.address) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(by_address.remove(&self.address)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn unspecified_ipv6_address_stands_for_both_families() {
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let listener = Listener::bind(any).await.unwrap();
        let port = listener.address().port();

        TcpStream::connect((Ipv4Addr::LOCALHOST, port))
            .await
            .unwrap();
        // A machine without IPv6 is served by IPv4 alone.
        if listener.address().is_ipv6() {
            TcpStream::connect((Ipv6Addr::LOCALHOST, port))
                .await
                .unwrap();
        }
    }

    #[test]
    fn machine_without_ipv6_is_distinguished_from_failures() {
        for (number, without) in [(97, true), (99, true), (98, false), (13, false)] {
            let error = io::Error::from_raw_os_error(number);
            assert_eq!(is_without_ipv6(&error), without, "{error}");
        }
    }

    #[test]
    fn one_address_cannot_shut_out_the_others() {
        let manners = Manners {
            connections: 3,
            connections_per_address: 2,
            ..Manners::default()
        };
        let guests = Guests::default();
        let [a, b, c] = [1, 2, 3].map(|last| IpAddr::from([127, 0, 0, last]));

        let first = guests.admit(a, &manners).unwrap();
        let _second = guests.admit(a, &manners).unwrap();
        assert!(guests.admit(a, &manners).is_none());
        let _other = guests.admit(b, &manners).unwrap();
        assert!(guests.admit(c, &manners).is_none());

        drop(first);
        assert!(guests.admit(a, &manners).is_some());
        drop((_second, _other));
        assert!(guests.lock().is_empty());
    }
}
