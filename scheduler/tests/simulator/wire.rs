//! A served simulator, and a client that shows an answer as it was on the wire.

use std::net::SocketAddr;

use scheduler::api::simulator::{Origins, routes};
use scheduler::simulator::{Scheduling, Setup, Simulator};
use serde_json::Value;
use server::{Bodies, Listener, Manners};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A simulator behind a listener of its own, until it is dropped.
pub(crate) struct Served {
    pub(crate) simulator: Simulator,
    address: SocketAddr,
    server: tokio::task::JoinHandle<()>,
    turns: Option<tokio::task::JoinHandle<()>>,
}

/// An answer as it came.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn code(&self) -> u16 {
        self.status.split(' ').nth(1).unwrap().parse().unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    pub(crate) fn message(&self) -> String {
        self.json()["message"].as_str().unwrap().to_owned()
    }

    /// The values of a header, in order.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        let same = |(key, value)| str::eq_ignore_ascii_case(key, name).then_some(value);
        self.headers
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .filter_map(same)
            .collect()
    }
}

impl Served {
    /// With the configuration of this value, or kube-scheduler's defaults.
    pub(crate) async fn start(configuration: Option<&Value>) -> Self {
        let setup = configuration.map_or_else(Setup::defaults, |value| Setup::read(value).unwrap());
        let simulator = Simulator::new(embedded_cluster::Cluster::default(), setup);
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        let address = listener.address();
        let origins = Origins::new(["http://localhost:3000".to_owned()]);
        let bodies = Bodies {
            bytes: 16 << 20,
            ..Bodies::default()
        };
        let router = routes(&simulator, origins, bodies);
        let server = tokio::spawn(async move {
            let never = std::future::pending::<()>();
            listener.serve(router, Manners::default(), never).await;
        });
        Self {
            simulator,
            address,
            server,
            turns: None,
        }
    }

    /// The same, and pods are scheduled.
    pub(crate) async fn scheduling(configuration: Option<&Value>) -> Self {
        let mut served = Self::start(configuration).await;
        let simulator = served.simulator.clone();
        let scheduling = Scheduling {
            vendors: Some(crate::support::vendors()),
            ..Scheduling::default()
        };
        served.turns = Some(tokio::spawn(async move {
            simulator.schedule(&scheduling).await
        }));
        served
    }

    /// The pod once it is as wanted; the last one that was seen, when that takes too long.
    pub(crate) async fn pod_once(&self, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let path = format!("/api/v1/namespaces/default/pods/{name}");
        let mut last = Value::Null;
        for _ in 0..400 {
            last = self.get(&path).await.json();
            if wanted(&last) {
                return last;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        panic!("{name} is not as wanted: {last:#}");
    }

    /// An open connection on which this request was sent.
    pub(crate) async fn open(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> TcpStream {
        let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            head += "Host: localhost\r\n";
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if let Some(body) = body {
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all((head + "\r\n").as_bytes()).await.unwrap();
        if let Some(body) = body {
            // A server that refuses a body need not read it to its end.
            stream.write_all(body).await.ok();
        }
        stream
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> Answer {
        let mut stream = self.open(method, path, headers, body).await;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        parse(&bytes)
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], None).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        let json = [("Content-Type", "application/json")];
        self.send("POST", path, &json, Some(body.to_string().as_bytes()))
            .await
    }

    pub(crate) async fn import(&self, body: &Value) -> Answer {
        self.post("/api/v1/import", body).await
    }

    pub(crate) async fn export(&self) -> Value {
        self.get("/api/v1/export").await.json()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.server.abort();
        if let Some(turns) = &self.turns {
            turns.abort();
        }
    }
}

fn parse(bytes: &[u8]) -> Answer {
    let at = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    let at = at.unwrap_or_else(|| panic!("no head: {}", String::from_utf8_lossy(bytes)));
    let head = String::from_utf8(bytes[..at].to_vec()).unwrap();
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().to_owned();
    let headers: Vec<(String, String)> = lines
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let rest = &bytes[at + 4..];
    let chunked = headers
        .iter()
        .any(|(name, value)| name.eq_ignore_ascii_case("transfer-encoding") && value == "chunked");
    let body = if chunked {
        chunks(rest).0.concat()
    } else {
        rest.to_vec()
    };
    Answer {
        status,
        headers,
        body,
    }
}

/// The whole chunks of a body, and whether it has come to its end.
pub(crate) fn chunks(mut rest: &[u8]) -> (Vec<Vec<u8>>, bool) {
    let mut chunks = Vec::new();
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let size = std::str::from_utf8(&rest[..end]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return (chunks, true);
        }
        let Some(chunk) = rest.get(end + 2..end + 2 + size) else {
            break;
        };
        chunks.push(chunk.to_vec());
        rest = rest.get(end + 4 + size..).unwrap_or_default();
    }
    (chunks, false)
}

/// A recording from the repository.
pub(crate) fn recording(name: &str) -> Value {
    let path = format!(
        "{}/../tests/vectors/simulator/{name}",
        env!("CARGO_MANIFEST_DIR")
    );
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The value without the fields that always differ between clusters: uids, versions, times and field managers.
pub(crate) fn settled(value: &Value) -> Value {
    const VOLATILE: [&str; 6] = [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "lastTransitionTime",
        "managedFields",
        "time",
    ];
    match value {
        Value::Object(fields) => fields
            .iter()
            .filter(|(name, _)| !VOLATILE.contains(&name.as_str()))
            .map(|(name, value)| (name.clone(), settled(value)))
            .collect(),
        Value::Array(items) => items.iter().map(settled).collect(),
        other => other.clone(),
    }
}

/// A node with room.
pub(crate) fn node(name: &str) -> Value {
    let room = serde_json::json!({ "cpu": "4", "memory": "32Gi", "pods": "110" });
    serde_json::json!({
        "metadata": { "name": name },
        "status": { "capacity": room, "allocatable": room, "conditions": [{ "type": "Ready", "status": "True" }] }
    })
}

/// A pod that asks for little.
pub(crate) fn pod(name: &str) -> Value {
    serde_json::json!({
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "containers": [{ "name": "c", "image": "i", "resources": { "requests": { "cpu": "100m" } } }] }
    })
}
