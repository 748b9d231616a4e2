//! A served port and clients that behave badly, over loopback.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test: a panic is its answer"
)]

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use server::{BindError, Listener, Manners, Readiness, health};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

const SOON: Duration = Duration::from_secs(20);

fn quick() -> Manners {
    Manners {
        connections: 8,
        connections_per_address: 4,
        head_timeout: Duration::from_millis(300),
        write_timeout: Duration::from_millis(300),
        stop_timeout: Duration::from_millis(500),
        ..Manners::default()
    }
}

struct Served {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

async fn serve(router: Router, manners: Manners) -> Served {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap())
        .await
        .unwrap();
    let address = listener.address();
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(listener.serve(router, manners, stopped));
    Served {
        address,
        stop,
        task,
    }
}

async fn plain(manners: Manners) -> Served {
    serve(health(Readiness::waiting_for("the first scan")), manners).await
}

impl Served {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Everything that comes until the other end closes.
    async fn say(&self, request: &[u8]) -> String {
        let mut stream = self.connect().await;
        // The server may close before it has read everything.
        drop(stream.write_all(request).await);
        read_all(&mut stream).await
    }

    async fn get(&self, path: &str) -> String {
        self.say(format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes())
            .await
    }
}

async fn read_all(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    loop {
        match timeout(SOON, stream.read(&mut part))
            .await
            .expect("the server closes")
        {
            Ok(0) | Err(_) => break,
            Ok(read) => answer.extend_from_slice(&part[..read]),
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn health_is_200_and_readiness_says_what_is_missing() {
    let readiness = Readiness::waiting_for("the first scan");
    let served = serve(health(readiness.clone()), quick()).await;

    assert!(
        served
            .get("/healthz")
            .await
            .starts_with("HTTP/1.1 200 OK\r\n")
    );
    let answer = served.get("/readyz").await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.ends_with("not ready: the first scan\n"), "{answer}");

    readiness.ready();
    assert!(served.get("/readyz").await.ends_with("ready\n"));
}

#[tokio::test]
async fn a_taken_port_is_named_with_how_to_find_its_owner() {
    let served = plain(quick()).await;

    let error = Listener::bind(served.address).await.unwrap_err();

    assert!(matches!(error, BindError::InUse { .. }));
    let port = served.address.port();
    assert_eq!(
        error.to_string(),
        format!(
            "cannot listen on 127.0.0.1:{port}: the port is in use; `ss -ltnp 'sport = :{port}'` \
             as root shows by which process"
        )
    );
    let error = Listener::bind("203.0.113.7:0".parse().unwrap())
        .await
        .unwrap_err();
    assert!(matches!(error, BindError::NoSuchAddress { .. }), "{error}");
}

#[tokio::test]
async fn a_second_handle_keeps_the_port_when_the_first_server_has_stopped() {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap())
        .await
        .unwrap();
    let address = listener.address();
    let kept = listener.try_clone().unwrap();
    let router = Router::new().route("/", get(async || "served"));

    listener
        .serve(router.clone(), Manners::default(), std::future::ready(()))
        .await;

    let refused = Listener::bind(address).await.unwrap_err();
    assert!(matches!(refused, BindError::InUse { .. }), "{refused}");
    // A connection that comes before there is another server waits for it.
    let mut early = TcpStream::connect(address).await.unwrap();
    let asked = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    early.write_all(asked).await.unwrap();
    tokio::spawn(kept.serve(router, Manners::default(), std::future::pending::<()>()));
    let answer = read_all(&mut early).await;
    assert!(answer.ends_with("served"), "{answer}");
}

#[tokio::test]
async fn a_head_that_never_ends_is_cut_off() {
    let served = plain(quick()).await;
    let mut stream = served.connect().await;
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nx: ")
        .await
        .unwrap();

    let drip = async {
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            if stream.write_all(b"a").await.is_err() {
                break;
            }
        }
    };

    timeout(SOON, drip).await.expect("the server closes");
}

#[tokio::test]
async fn a_connection_without_a_request_is_closed() {
    let served = plain(quick()).await;
    let mut stream = served.connect().await;

    assert_eq!(read_all(&mut stream).await, "");
}

#[tokio::test]
async fn big_heads_are_answered_with_431() {
    let served = plain(quick()).await;

    let big = format!(
        "GET /healthz HTTP/1.1\r\nx: {}\r\n\r\n",
        "a".repeat(1 << 20)
    );
    let answer = served.say(big.as_bytes()).await;
    // A reset can overtake the answer; what counts is that the head was not taken.
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 431 "),
        "{answer}"
    );

    let many = format!("GET /healthz HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(65));
    assert!(
        served
            .say(many.as_bytes())
            .await
            .starts_with("HTTP/1.1 431 ")
    );
    assert!(served.get("/healthz").await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn bytes_that_are_not_http_are_answered_with_400() {
    let served = plain(quick()).await;

    let answer = served
        .say(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
        .await;

    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
}

#[tokio::test]
async fn idle_connections_of_one_client_leave_room_for_another() {
    let manners = Manners {
        head_timeout: Duration::from_secs(60),
        ..quick()
    };
    let served = plain(manners).await;
    let mut idle = Vec::new();
    for _ in 0..16 {
        idle.push(served.connect().await);
    }

    // From another address of the loopback range: 127.0.0.1 has used up its share.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut stream = socket.connect(served.address).await.unwrap();
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    assert!(read_all(&mut stream).await.starts_with("HTTP/1.1 200 "));

    assert_eq!(
        served.get("/healthz").await,
        "",
        "closed at once, not kept waiting"
    );
    drop(idle);
}

#[tokio::test]
async fn a_client_that_does_not_read_is_dropped() {
    let router = Router::new().route("/big", get(async || "x".repeat(32 << 20)));
    let served = serve(
        router,
        Manners {
            connections_per_address: 1,
            ..quick()
        },
    )
    .await;
    let mut stream = served.connect().await;
    stream
        .write_all(b"GET /big HTTP/1.1\r\n\r\n")
        .await
        .unwrap();

    let room_again = async {
        while !served.get("/none").await.starts_with("HTTP/1.1 404 ") {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };

    timeout(SOON, room_again)
        .await
        .expect("a connection that the client does not read is closed");
    drop(stream);
}

#[tokio::test]
async fn stopping_lets_a_request_finish_and_ends_idle_connections() {
    let (entered, mut inside) = tokio::sync::mpsc::channel::<()>(1);
    let slow = async move || {
        entered.send(()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        "finished"
    };
    let manners = Manners {
        head_timeout: Duration::from_secs(60),
        ..quick()
    };
    let served = serve(Router::new().route("/slow", get(slow)), manners).await;
    let _idle = served.connect().await;
    let mut stream = served.connect().await;
    stream
        .write_all(b"GET /slow HTTP/1.1\r\n\r\n")
        .await
        .unwrap();
    inside.recv().await.unwrap();

    served.stop.send(()).unwrap();

    assert!(read_all(&mut stream).await.ends_with("finished"));
    timeout(SOON, served.task).await.expect("it stops").unwrap();
    assert!(TcpStream::connect(served.address).await.is_err());
}

#[tokio::test]
async fn stopping_does_not_wait_for_a_request_that_never_ends() {
    let (entered, mut inside) = tokio::sync::mpsc::channel::<()>(1);
    let stuck = async move || {
        entered.send(()).await.unwrap();
        std::future::pending::<()>().await;
    };
    let served = serve(Router::new().route("/stuck", get(stuck)), quick()).await;
    let mut stream = served.connect().await;
    stream
        .write_all(b"GET /stuck HTTP/1.1\r\n\r\n")
        .await
        .unwrap();
    inside.recv().await.unwrap();

    served.stop.send(()).unwrap();

    timeout(SOON, served.task)
        .await
        .expect("it stops all the same")
        .unwrap();
}
