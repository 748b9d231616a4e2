//! A TLS port and its clients, good and bad, over loopback: real handshakes, real files.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test: a panic is its answer"
)]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use server::{Listener, Manners, Tls, TlsError, TlsFiles};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const SOON: Duration = Duration::from_secs(20);

/// A certificate authority of this test.
struct Ca(CertifiedIssuer<'static, KeyPair>);

struct Pair {
    certificate: String,
    key: String,
}

impl Ca {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    fn signs(&self, name: &str) -> Pair {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        Pair {
            certificate: params.signed_by(&key, &self.0).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }

    fn client(&self, own: Option<&Pair>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(self.pem().as_bytes()).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let Some(own) = own else {
            return builder.with_no_client_auth();
        };
        let chain = vec![CertificateDer::from_pem_slice(own.certificate.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap();
        builder.with_client_auth_cert(chain, key).unwrap()
    }
}

struct Served {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// The defaults, with a shorter stop timeout.
fn manners() -> Manners {
    Manners {
        stop_timeout: Duration::from_millis(500),
        ..Manners::default()
    }
}

async fn serve(tls: Tls, manners: Manners) -> Served {
    let router = Router::new().route("/", get(async || "hello\n"));
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap())
        .await
        .unwrap();
    let address = listener.address();
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(listener.serve_tls(router, manners, tls, stopped));
    Served {
        address,
        stop,
        task,
    }
}

impl Served {
    async fn connect(&self, client: ClientConfig) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(client))
            .connect(name, stream)
            .await
    }

    /// The answer to one request, or why there is none.
    async fn get(&self, client: ClientConfig) -> std::io::Result<String> {
        let mut stream = self.connect(client).await?;
        stream
            .write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            .await?;
        let mut answer = String::new();
        timeout(SOON, stream.read_to_string(&mut answer))
            .await
            .expect("the server closes")?;
        Ok(answer)
    }

    async fn says_hello_to(&self, client: ClientConfig) -> bool {
        self.get(client)
            .await
            .is_ok_and(|answer| answer.ends_with("hello\n"))
    }
}

async fn read_all(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    // A reset ends it as well as a close does.
    drop(
        timeout(SOON, stream.read_to_end(&mut answer))
            .await
            .expect("the server closes"),
    );
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn only_clients_that_trust_the_ca_are_served() {
    let (ca, other) = (Ca::new("one"), Ca::new("other"));
    let pair = ca.signs("localhost");
    let tls = Tls::from_pem(pair.certificate.as_bytes(), pair.key.as_bytes()).unwrap();
    let served = serve(tls, manners()).await;

    let stream = served
        .connect({
            let mut client = ca.client(None);
            client.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
            client
        })
        .await
        .unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    assert!(served.says_hello_to(ca.client(None)).await);
    assert!(served.get(other.client(None)).await.is_err());
}

#[tokio::test]
async fn a_certificate_is_replaced_while_connections_stand() {
    let (old, new) = (Ca::new("old"), Ca::new("new"));
    let pair = old.signs("localhost");
    let tls = Tls::from_pem(pair.certificate.as_bytes(), pair.key.as_bytes()).unwrap();
    let served = serve(tls.clone(), manners()).await;
    let mut standing = served.connect(old.client(None)).await.unwrap();
    let before = tls.certificate().unwrap();

    let pair = new.signs("localhost");
    tls.replace(pair.certificate.as_bytes(), pair.key.as_bytes())
        .unwrap();

    assert_ne!(tls.certificate().unwrap(), before);
    assert!(served.says_hello_to(new.client(None)).await);
    assert!(served.get(old.client(None)).await.is_err());
    standing
        .write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    standing.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("hello\n"), "{answer}");
}

#[tokio::test]
async fn without_a_certificate_handshakes_fail_until_there_is_one() {
    let ca = Ca::new("late");
    let tls = Tls::without_certificate();
    let served = serve(tls.clone(), manners()).await;
    assert!(served.get(ca.client(None)).await.is_err());
    assert_eq!(tls.certificate(), None);

    let pair = ca.signs("localhost");
    tls.replace(pair.certificate.as_bytes(), pair.key.as_bytes())
        .unwrap();

    assert!(served.says_hello_to(ca.client(None)).await);
}

fn write(directory: &Path, name: &str, text: &str) {
    std::fs::write(directory.join(name), text).unwrap();
}

fn files(directory: &Path) -> TlsFiles {
    TlsFiles {
        certificate: directory.join("tls.crt"),
        key: directory.join("tls.key"),
        client_ca: None,
    }
}

#[tokio::test]
async fn files_are_read_again_and_halves_of_a_change_are_waited_out() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (old, new) = (Ca::new("old"), Ca::new("new"));
    let pair = old.signs("localhost");
    write(directory, "tls.crt", &pair.certificate);
    write(directory, "tls.key", &pair.key);
    let tls = Tls::from_files(files(directory)).unwrap();
    let served = serve(tls.clone(), manners()).await;
    assert!(served.says_hello_to(old.client(None)).await);
    assert!(!tls.look_again().unwrap(), "nothing has changed");

    let pair = new.signs("localhost");
    write(directory, "tls.crt", &pair.certificate);
    let error = tls.look_again().unwrap_err();
    assert!(matches!(error, TlsError::Mismatch { .. }), "{error}");
    assert!(!tls.look_again().unwrap(), "said once");
    assert!(served.says_hello_to(old.client(None)).await);

    write(directory, "tls.key", &pair.key);
    assert!(tls.look_again().unwrap());
    assert!(served.says_hello_to(new.client(None)).await);

    std::fs::remove_file(directory.join("tls.key")).unwrap();
    let error = tls.look_again().unwrap_err();
    assert!(matches!(error, TlsError::Read { .. }), "{error}");
    assert!(served.says_hello_to(new.client(None)).await);
}

#[tokio::test(start_paused = true)]
async fn a_port_looks_at_its_files_by_itself() {
    let directory = tempfile::tempdir().unwrap();
    let ca = Ca::new("one");
    let pair = ca.signs("localhost");
    write(directory.path(), "tls.crt", &pair.certificate);
    write(directory.path(), "tls.key", &pair.key);
    let tls = Tls::from_files(files(directory.path())).unwrap();
    let before = tls.certificate();
    let served = serve(tls.clone(), manners()).await;

    let pair = ca.signs("localhost");
    write(directory.path(), "tls.crt", &pair.certificate);
    write(directory.path(), "tls.key", &pair.key);

    // The clock is paused: this takes as long as the reading of two files.
    let changed = async {
        while tls.certificate() == before {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    timeout(Duration::from_secs(600), changed)
        .await
        .expect("they are looked at");
    drop(served.stop);
}

#[test]
fn what_cannot_be_used_is_named_with_what_can() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let ca = Ca::new("one");
    let (pair, other) = (ca.signs("localhost"), ca.signs("localhost"));
    let broken_base64 = "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n";
    let junk = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let junk_key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    let path = |name: &str| directory.join(name).display().to_string();
    let no_certificate = format!("{} holds no certificate", path("tls.crt"));
    let no_key = format!("{} holds no private key", path("tls.key"));
    let no_ca = format!("{} holds no CA of clients", path("ca.crt"));
    let mismatch = format!("the key in {} is not that of", path("tls.key"));

    for (certificate, key, client_ca, expected) in [
        ("", pair.key.as_str(), None, &no_certificate),
        ("hello", &pair.key, None, &no_certificate),
        (broken_base64, &pair.key, None, &no_certificate),
        (junk, &pair.key, None, &no_certificate),
        (&pair.key, &pair.key, None, &no_certificate),
        (&pair.certificate, "", None, &no_key),
        (&pair.certificate, &pair.certificate, None, &no_key),
        (&pair.certificate, junk_key, None, &no_key),
        (&pair.certificate, &other.key, None, &mismatch),
        (&pair.certificate, &pair.key, Some(""), &no_ca),
        (&pair.certificate, &pair.key, Some(junk), &no_ca),
    ] {
        write(directory, "tls.crt", certificate);
        write(directory, "tls.key", key);
        write(directory, "ca.crt", client_ca.unwrap_or_default());
        let files = TlsFiles {
            client_ca: client_ca.map(|_| directory.join("ca.crt")),
            ..files(directory)
        };

        let error = Tls::from_files(files).unwrap_err().to_string();

        assert!(error.starts_with(expected.as_str()), "{error}");
        for line in pair.key.lines().chain(other.key.lines()) {
            assert!(
                line.starts_with("-----") || !error.contains(line),
                "{error}"
            );
        }
    }
    let error = Tls::from_files(files(Path::new("/nowhere"))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot read /nowhere/tls.crt: No such file or directory (os error 2)"
    );
}

#[tokio::test]
async fn clients_are_asked_for_a_certificate_of_their_ca() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (ca, clients, stranger) = (Ca::new("server"), Ca::new("clients"), Ca::new("stranger"));
    let pair = ca.signs("localhost");
    write(directory, "tls.crt", &pair.certificate);
    write(directory, "tls.key", &pair.key);
    write(directory, "ca.crt", &clients.pem());
    let tls = Tls::from_files(TlsFiles {
        client_ca: Some(directory.join("ca.crt")),
        ..files(directory)
    })
    .unwrap();
    let served = serve(tls.clone(), manners()).await;
    let (known, unknown) = (clients.signs("api-server"), stranger.signs("api-server"));

    assert!(served.says_hello_to(ca.client(Some(&known))).await);
    assert!(!served.says_hello_to(ca.client(Some(&unknown))).await);
    assert!(!served.says_hello_to(ca.client(None)).await);

    write(directory, "ca.crt", &stranger.pem());
    assert!(tls.look_again().unwrap());
    assert!(served.says_hello_to(ca.client(Some(&unknown))).await);
    assert!(!served.says_hello_to(ca.client(Some(&known))).await);
}

#[tokio::test]
async fn clients_are_asked_with_a_certificate_from_memory_too() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (ca, clients, others) = (Ca::new("server"), Ca::new("clients"), Ca::new("others"));
    let path = directory.join("ca.crt");
    assert!(Tls::for_clients_of(path.clone()).is_err());
    write(directory, "ca.crt", "hello");
    assert!(Tls::for_clients_of(path.clone()).is_err());
    write(directory, "ca.crt", &clients.pem());
    let tls = Tls::for_clients_of(path).unwrap();
    let served = serve(tls.clone(), manners()).await;
    let (known, other) = (clients.signs("api-server"), others.signs("api-server"));
    assert!(!tls.look_again().unwrap(), "there is nothing to show yet");

    for _ in 0..2 {
        let pair = ca.signs("localhost");
        tls.replace(pair.certificate.as_bytes(), pair.key.as_bytes())
            .unwrap();
        assert!(served.says_hello_to(ca.client(Some(&known))).await);
        assert!(!served.says_hello_to(ca.client(None)).await);
        assert!(!tls.look_again().unwrap());
    }

    write(directory, "ca.crt", &others.pem());
    assert!(tls.look_again().unwrap());
    assert!(served.says_hello_to(ca.client(Some(&other))).await);
    assert!(!served.says_hello_to(ca.client(Some(&known))).await);

    // A missing file of client CAs does not open the port to every client.
    std::fs::remove_file(directory.join("ca.crt")).unwrap();
    let pair = ca.signs("localhost");
    let replaced = tls.replace(pair.certificate.as_bytes(), pair.key.as_bytes());
    assert!(matches!(replaced, Err(TlsError::Read { .. })));
    assert!(!served.says_hello_to(ca.client(None)).await);
}

#[tokio::test]
async fn plain_http_is_answered_with_use_https() {
    let pair = Ca::new("one").signs("localhost");
    let tls = Tls::from_pem(pair.certificate.as_bytes(), pair.key.as_bytes()).unwrap();
    let served = serve(tls, manners()).await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();

    stream
        .write_all(b"POST /webhook HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
        .await
        .unwrap();

    let answer = read_all(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.ends_with("use https:// to reach it\n"), "{answer}");
    let length: usize = answer
        .split_once("content-length: ")
        .and_then(|(_, rest)| rest.split_once("\r\n")?.0.parse().ok())
        .unwrap();
    assert_eq!(answer.split_once("\r\n\r\n").unwrap().1.len(), length);
}

#[tokio::test]
async fn broken_and_slow_handshakes_end_and_leave_room() {
    let ca = Ca::new("one");
    let pair = ca.signs("localhost");
    let tls = Tls::from_pem(pair.certificate.as_bytes(), pair.key.as_bytes()).unwrap();
    let served = serve(
        tls,
        Manners {
            connections: 8,
            connections_per_address: 4,
            handshake_timeout: Duration::from_millis(500),
            ..manners()
        },
    )
    .await;

    // Nothing at all; the first bytes of a hello; an SSL 2 hello; noise; a record that is
    // longer than it may be.
    let silent: [&[u8]; 5] = [
        b"",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"\x80\x2e\x01\x00\x02\x00\x15",
        &[0xff; 600],
        b"\x16\x03\x01\xff\xff\x01",
    ];
    for bytes in silent {
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        drop(stream.write_all(bytes).await);
        let answer = read_all(&mut stream).await;
        assert!(!answer.contains("HTTP"), "{answer}");
    }
    // A byte at a time does not draw it out.
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    let drip = async {
        for byte in [
            &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
            &[7; 500],
        ]
        .concat()
        {
            if stream.write_all(&[byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(SOON, drip).await.expect("the server closes");
    // A client that goes away in the middle, as often as there is room, costs no room.
    for _ in 0..20 {
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        drop(stream.write_all(b"\x16\x03\x01\x02\x00\x01").await);
        drop(stream);
        tokio::task::yield_now().await;
    }
    let room = async {
        while !served.says_hello_to(ca.client(None)).await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(SOON, room).await.expect("there is room again");
}

#[tokio::test]
async fn a_client_that_says_nothing_after_the_handshake_is_closed() {
    let ca = Ca::new("one");
    let pair = ca.signs("localhost");
    let tls = Tls::from_pem(pair.certificate.as_bytes(), pair.key.as_bytes()).unwrap();
    let served = serve(
        tls,
        Manners {
            head_timeout: Duration::from_millis(300),
            ..manners()
        },
    )
    .await;
    let mut stream = served.connect(ca.client(None)).await.unwrap();

    let mut answer = Vec::new();
    let ended = timeout(SOON, stream.read_to_end(&mut answer)).await;

    // With or without the word that TLS has for it: nothing was being said.
    drop(ended.expect("the server closes"));
    assert!(answer.is_empty());
}

#[tokio::test]
async fn stopping_does_not_wait_for_a_handshake() {
    let pair = Ca::new("one").signs("localhost");
    let tls = Tls::from_pem(pair.certificate.as_bytes(), pair.key.as_bytes()).unwrap();
    let manners = Manners {
        handshake_timeout: Duration::from_secs(3600),
        stop_timeout: Duration::from_secs(3600),
        ..manners()
    };
    let served = serve(tls, manners).await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    stream.write_all(b"\x16\x03\x01").await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;

    served.stop.send(()).unwrap();

    timeout(SOON, served.task).await.expect("it stops").unwrap();
    assert_eq!(read_all(&mut stream).await, "");
}
