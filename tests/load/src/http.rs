//! One connection that is kept, one request at a time.

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

pub(crate) struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
}

impl Connection {
    pub(crate) async fn open(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // Its end shows as an error of the next request.
        drop(tokio::spawn(connection));
        Ok(Self { sender })
    }

    pub(crate) async fn post(&mut self, path: &str, body: Bytes) -> Result<(u16, Bytes)> {
        self.send("POST", path, body).await
    }

    pub(crate) async fn get(&mut self, path: &str) -> Result<(u16, Bytes)> {
        self.send("GET", path, Bytes::new()).await
    }

    async fn send(&mut self, method: &str, path: &str, body: Bytes) -> Result<(u16, Bytes)> {
        let request = hyper::Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .header("content-type", "application/json")
            .body(Full::new(body))?;
        self.sender.ready().await?;
        let answer = self
            .sender
            .send_request(request)
            .await
            .with_context(|| format!("{method} {path}"))?;
        let status = answer.status().as_u16();
        Ok((status, answer.into_body().collect().await?.to_bytes()))
    }
}
