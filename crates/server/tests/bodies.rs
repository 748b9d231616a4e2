//! Bodies of every length and pace, over loopback.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test: a panic is its answer"
)]

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::routing::{get, post};
use serde_json::{Value, json};
use server::{Bodies, Listener, Manners};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const SOON: Duration = Duration::from_secs(30);
const MIB: usize = 1 << 20;

async fn serve(bodies: Bodies, router: Router) -> SocketAddr {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap())
        .await
        .unwrap();
    let address = listener.address();
    let manners = Manners {
        head_timeout: Duration::from_secs(60),
        ..Manners::default()
    };
    tokio::spawn(listener.serve(bodies.limit(router), manners, std::future::pending::<()>()));
    address
}

fn counting() -> Router {
    Router::new()
        .route("/", post(async |body: Bytes| body.len().to_string()))
        .route("/", get(async || "got"))
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn error(&self) -> String {
        let body: Value = serde_json::from_str(&self.body).expect("it is JSON");
        assert_eq!(body.as_object().unwrap().len(), 1);
        assert!(self.head.contains("content-type: application/json"));
        body["Error"].as_str().unwrap().to_owned()
    }
}

async fn read_answer(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    loop {
        let read = timeout(SOON, stream.read(&mut part))
            .await
            .expect("there is an answer")
            .expect("and it is not lost to a reset");
        bytes.extend_from_slice(&part[..read]);
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .split("\r\n")
                .find_map(|line| line.strip_prefix("content-length: "))
                .map_or(0, |length| length.parse::<usize>().unwrap());
            if body.len() >= length {
                return Answer {
                    status: head[9..12].parse().unwrap(),
                    head: head.to_owned(),
                    body: body.to_owned(),
                };
            }
        }
        assert!(read > 0, "closed after {text:?}");
    }
}

/// Sends all of it, then reads.
async fn say(address: SocketAddr, head: &str, body: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(format!("{head}\r\n\r\n").as_bytes())
        .await
        .unwrap();
    stream.write_all(body).await.unwrap();
    read_answer(&mut stream).await
}

async fn declared(address: SocketAddr, length: usize) -> Answer {
    let head = format!("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {length}");
    say(address, &head, &vec![b'x'; length]).await
}

async fn chunked(address: SocketAddr, length: usize) -> Answer {
    let mut body = Vec::new();
    let mut left = length;
    while left > 0 {
        let part = left.min(100_000);
        body.extend_from_slice(format!("{part:x}\r\n").as_bytes());
        body.resize(body.len() + part, b'x');
        body.extend_from_slice(b"\r\n");
        left -= part;
    }
    body.extend_from_slice(b"0\r\n\r\n");
    let head = "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked";
    say(address, head, &body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_over_the_limit_get_413_in_every_encoding() {
    let address = serve(Bodies::default(), counting()).await;

    for length in [0, 1, 5 * MIB, 64 * MIB] {
        assert_eq!(declared(address, length).await.body, length.to_string());
        assert_eq!(chunked(address, length).await.body, length.to_string());
    }
    for answer in [
        declared(address, 64 * MIB + 1).await,
        chunked(address, 64 * MIB + 1).await,
        declared(address, 100 * MIB).await,
    ] {
        assert_eq!(answer.status, 413);
        assert_eq!(
            answer.error(),
            "the request's body is longer than the 67108864 bytes that are accepted"
        );
    }
}

#[tokio::test]
async fn a_length_beyond_all_bounds_is_refused_before_a_byte_comes() {
    let address = serve(Bodies::default(), counting()).await;

    for (length, expect) in [
        ("67108865", ""),
        ("67108865", "expect: 100-continue\r\n"),
        ("9999999999999999", ""),
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head =
            format!("POST / HTTP/1.1\r\nhost: x\r\n{expect}content-length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();

        let answer = read_answer(&mut stream).await;

        assert_eq!(answer.status, 413, "{}", answer.head);
        drop(answer.error());
    }
}

#[tokio::test]
async fn one_connection_serves_on_after_a_body_that_was_read() {
    let address = serve(Bodies::default(), counting()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();

    for length in [3, 2 * MIB, 0, 7] {
        let head = format!("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&vec![b'x'; length]).await.unwrap();
        assert_eq!(read_answer(&mut stream).await.body, length.to_string());
    }
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    assert_eq!(read_answer(&mut stream).await.body, "got");
}

#[tokio::test]
async fn a_body_that_drips_or_breaks_off_is_answered_and_ends() {
    let bodies = Bodies {
        time: Duration::from_millis(300),
        ..Bodies::default()
    };
    let address = serve(bodies, counting()).await;

    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nabc")
        .await
        .unwrap();
    let answer = read_answer(&mut stream).await;
    assert_eq!(answer.status, 408);
    assert!(answer.error().contains("did not arrive within"));

    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n")
        .await
        .unwrap();
    let answer = read_answer(&mut stream).await;
    assert_eq!(answer.status, 400);
    assert!(answer.error().contains("broke off"));
}

/// A body of `length` of which all but the last byte is sent.
async fn unfinished(address: SocketAddr, length: usize) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&vec![b'x'; length - 1]).await.unwrap();
    stream
}

#[tokio::test]
async fn long_bodies_wait_for_each_other_and_short_ones_never() {
    let bodies = Bodies {
        bytes: 64 * MIB,
        together: 63 * MIB,
        ..Bodies::default()
    };
    let address = serve(bodies, counting()).await;
    let mut first = unfinished(address, 64 * MIB).await;
    // No socket holds so much: it was read, and has its room.

    let second = tokio::spawn(declared(address, 64 * MIB));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(declared(address, MIB).await.body, MIB.to_string());
    assert!(!second.is_finished());

    first.write_all(b"x").await.unwrap();
    assert_eq!(read_answer(&mut first).await.body, (64 * MIB).to_string());
    assert_eq!(second.await.unwrap().body, (64 * MIB).to_string());
}

#[tokio::test]
async fn a_body_that_waits_too_long_for_room_gets_503() {
    let bodies = Bodies {
        bytes: 64 * MIB,
        together: 63 * MIB,
        time: Duration::from_secs(3),
    };
    let slow = Router::new().route(
        "/",
        post(async |body: Bytes| {
            tokio::time::sleep(Duration::from_secs(60)).await;
            body.len().to_string()
        }),
    );
    let address = serve(bodies, slow).await;
    let mut first = unfinished(address, 64 * MIB).await;
    first.write_all(b"x").await.unwrap();

    let head = format!("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {}", 64 * MIB);
    let mut second = TcpStream::connect(address).await.unwrap();
    second
        .write_all(format!("{head}\r\n\r\n").as_bytes())
        .await
        .unwrap();
    second.write_all(&vec![b'x'; 2 * MIB]).await.unwrap();
    let answer = read_answer(&mut second).await;

    assert_eq!(answer.status, 503);
    assert!(answer.head.contains("retry-after: 1"), "{}", answer.head);
    drop(answer.error());
}

#[tokio::test]
async fn an_error_is_json_whatever_stands_in_it() {
    let text = "a \"quoted\" \\ text\nwith\tall \u{1}\u{7f} é 💥";

    let response = server::error(axum::http::StatusCode::BAD_REQUEST, text);

    let body = axum::body::to_bytes(response.into_body(), MIB)
        .await
        .unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body, json!({ "Error": text }));
}
