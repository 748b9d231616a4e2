//! The program itself under abuse: its memory, its descriptors, and its token.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::wire::{node, pod};

/// `vgpu-scheduler simulator` on ports of its own, ended with the test.
struct Program {
    child: Child,
    folder: tempfile::TempDir,
}

impl Program {
    fn start(flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let printed = File::create(folder.path().join("printed")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_vgpu-scheduler"));
        command
            .args([
                "simulator",
                "--bind=127.0.0.1:0",
                "--kubernetes-bind=127.0.0.1:0",
            ])
            .args(flags)
            .stdin(Stdio::null())
            .stdout(printed.try_clone().unwrap())
            .stderr(printed);
        for name in [
            "KUBE_SCHEDULER_CONFIG_PATH",
            "PORT",
            "VGPU_TOKEN",
            "VGPU_SCHEDULER_LOG",
        ] {
            command.env_remove(name);
        }
        let child = command.spawn().unwrap();
        let program = Self { child, folder };
        program.wait(|program| program.address("page=http://").is_some());
        program
    }

    fn printed(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("printed")).unwrap()
    }

    fn address(&self, before: &str) -> Option<String> {
        let printed = self.printed();
        let (_, rest) = printed.split_once(before)?;
        Some(rest.split_whitespace().next()?.to_owned())
    }

    fn page(&self) -> String {
        self.address("page=http://").unwrap()
    }

    #[track_caller]
    fn wait(&self, until: impl Fn(&Self) -> bool) {
        let patience = Instant::now() + Duration::from_secs(30);
        while !until(self) {
            assert!(
                Instant::now() < patience,
                "not within 30 s: {}",
                self.printed()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A line of `/proc/PID/status`, in KiB.
    fn memory(&self, line: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|of| of.strip_prefix(line)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    fn descriptors(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.child.id());
        std::fs::read_dir(folder).unwrap().count()
    }

    fn open(&self, head: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.page()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        stream
            .write_all(format!("{head}\r\n\r\n").as_bytes())
            .unwrap();
        stream
    }

    fn send(&self, method: &str, path: &str, more: &str, body: &str) -> (u16, String) {
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}{more}"
        );
        let mut stream = self.open(&head);
        stream.write_all(body.as_bytes()).unwrap();
        answer(stream)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.child.kill().and_then(|()| self.child.wait()));
    }
}

/// The status and the rest of an answer.
fn answer(mut stream: TcpStream) -> (u16, String) {
    let mut text = Vec::new();
    // A refused client may find the connection reset behind the answer.
    drop(stream.read_to_end(&mut text));
    let text = String::from_utf8_lossy(&text).into_owned();
    let code = text.split(' ').nth(1).and_then(|code| code.parse().ok());
    (code.unwrap_or_default(), text)
}

const LARGE: usize = 100_000_000;

/// The memory that the process may use beyond its idle memory, in KiB: the longest accepted body (64 MiB), and the
/// half of it that is copied while the buffer grows.
const BOUND: u64 = 128 << 10;

#[test]
fn a_body_of_100_mb_is_refused_on_every_route_within_bounds() {
    let program = Program::start(&[]);
    let routes = [
        (
            "POST",
            "/api/v1/import",
            "the request's body is longer than",
        ),
        (
            "POST",
            "/api/v1/schedulerconfiguration",
            "the request's body is longer than",
        ),
        (
            "POST",
            "/api/v1/extender/filter/0",
            "the request's body is longer than",
        ),
        (
            "POST",
            "/api/v1/namespaces/default/pods",
            "limit is 3145728",
        ),
        ("PUT", "/api/v1/nodes/n", "limit is 3145728"),
        ("PATCH", "/api/v1/nodes/n/status", "limit is 3145728"),
        (
            "POST",
            "/apis/storage.k8s.io/v1/storageclasses",
            "limit is 3145728",
        ),
        (
            "POST",
            "/page/new/pods",
            "the request's body is longer than",
        ),
        (
            "POST",
            "/page/edit/nodes/-/n",
            "the request's body is longer than",
        ),
        (
            "POST",
            "/page/configuration",
            "the request's body is longer than",
        ),
        ("POST", "/page/data", "the request's body is longer than"),
        ("POST", "/page/compare", "the request's body is longer than"),
    ];
    let before = program.memory("VmHWM:");

    for (method, path, said) in routes {
        let head = |more: &str| {
            format!(
                "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n{more}"
            )
        };
        let declared = head(&format!("Content-Length: {LARGE}\r\nExpect: 100-continue"));
        let (code, text) = answer(program.open(&declared));
        assert_eq!(code, 413, "{method} {path}: {text}");
        assert!(text.contains(said), "{path}: {text}");
        // A client that does not announce the length of its body.
        let mut stream = program.open(&head("Transfer-Encoding: chunked"));
        let chunk = vec![b' '; 1 << 20];
        for _ in 0..LARGE >> 20 {
            let size = format!("{:x}\r\n", chunk.len());
            let sent = stream.write_all(size.as_bytes());
            if sent
                .and_then(|()| stream.write_all(&chunk))
                .and_then(|()| stream.write_all(b"\r\n"))
                .is_err()
            {
                break;
            }
        }
        drop(stream.write_all(b"0\r\n\r\n"));
        let (code, text) = answer(stream);
        assert_eq!(code, 413, "{method} {path}: {text}");
        assert!(text.contains(said), "{path}: {text}");
    }

    let most = program.memory("VmHWM:");
    assert!(
        most < before + BOUND,
        "{} MiB more than idle",
        (most - before) >> 10
    );
    let import = json!({ "nodes": [node("n")], "pods": [pod("p")] }).to_string();
    let (code, text) = program.send(
        "POST",
        "/api/v1/import",
        "\r\nContent-Type: application/json",
        &import,
    );
    assert_eq!(code, 200, "{text}");
}

#[test]
fn fifty_clients_that_go_away_half_way_leave_nothing() {
    let program = Program::start(&[]);
    let nodes: Vec<Value> = (0..500).map(|at| node(&format!("n{at}"))).collect();
    let import = json!({ "nodes": nodes }).to_string();
    let json = "\r\nContent-Type: application/json";
    assert_eq!(program.send("POST", "/api/v1/import", json, &import).0, 200);
    // The connection of the import is closed by now.
    std::thread::sleep(Duration::from_millis(200));
    let before = program.descriptors();
    let mut memory = Vec::new();

    for _ in 0..4 {
        let mut clients = Vec::new();
        for at in 0..50 {
            let path = match at % 3 {
                0 => "/api/v1/listwatchresources",
                1 => "/api/v1/nodes?watch=true",
                _ => "/page/events",
            };
            let stream = program.open(&format!("GET {path} HTTP/1.1\r\nHost: localhost"));
            let mut reader = BufReader::new(stream);
            let mut line = String::new();
            // Some have read the first line, others are in the middle of their many lines.
            reader.read_line(&mut line).unwrap();
            assert!(line.contains("200"), "{path}: {line}");
            clients.push(reader);
        }
        assert!(program.descriptors() >= before + 50);
        let mut changed = node("n0");
        changed["metadata"]["labels"] = json!({ "round": "x" });
        drop(clients);
        let changed = json!({ "nodes": [changed] }).to_string();
        assert_eq!(
            program.send("POST", "/api/v1/import", json, &changed).0,
            200
        );
        program.wait(|program| program.descriptors() <= before);
        memory.push(program.memory("VmRSS:"));
    }

    // Buffers of the allocator may grow at first, and not with each round.
    assert!(memory[3] < memory[1] + (16 << 10), "{memory:?} KiB");
}

#[test]
fn with_a_token_every_request_needs_it() {
    let program = Program::start(&["--token=secret"]);
    let html = "\r\nAccept: text/html";
    for path in [
        "/",
        "/api/v1/export",
        "/api/v1/nodes",
        "/page/objects/nodes",
        "/page/assets/page.css",
    ] {
        assert_eq!(program.send("GET", path, html, "").0, 401, "{path}");
    }
    let (code, text) = program.send("GET", "/", html, "");
    assert!(
        code == 401
            && text
                .to_ascii_lowercase()
                .contains("www-authenticate: basic"),
        "{text}"
    );
    assert_eq!(
        program
            .send(
                "PUT",
                "/api/v1/reset",
                "\r\nAuthorization: Bearer other",
                ""
            )
            .0,
        401
    );

    let bearer = "\r\nAuthorization: Bearer secret";
    assert_eq!(program.send("PUT", "/api/v1/reset", bearer, "").0, 202);
    // `me:secret`, as a browser sends what was typed.
    let basic = format!("{html}\r\nAuthorization: Basic bWU6c2VjcmV0");
    let (code, page) = program.send("GET", "/", &basic, "");
    assert_eq!(code, 200);
    assert!(page.contains("Nothing is here yet"));
    // The browser sends the password with every request: pages of other sites change nothing all the same.
    let foreign = format!("{basic}\r\nOrigin: http://evil.example");
    assert_eq!(program.send("PUT", "/api/v1/reset", &foreign, "").0, 403);
    // A name of the machine in its network.
    let mut stream = program.open("GET /api/v1/export HTTP/1.1\r\nHost: lab.example\r\nConnection: close\r\nAuthorization: Bearer secret");
    stream.flush().unwrap();
    assert_eq!(answer(stream).0, 200);
}

/// A node with a GPU to share, and pods of which one fits.
fn with_gpus() -> Value {
    let device = json!([{ "id": "GPU-0", "index": 0, "count": 10, "devmem": 40_960, "devcore": 100, "type": "A100",
        "health": true, "mode": "hami-core" }]);
    let mut gpu = node("gpu-1");
    gpu["metadata"]["annotations"] = json!({ "hami.io/node-nvidia-register": device.to_string() });
    for part in ["capacity", "allocatable"] {
        gpu["status"][part]["nvidia.com/gpu"] = "10".into();
    }
    let asking = |name: &str, memory: u32| {
        let mut pod = pod(name);
        pod["spec"]["containers"][0]["resources"]["limits"] =
            json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": memory.to_string() });
        pod
    };
    json!({ "nodes": [gpu], "pods": [asking("fits", 10_000), asking("too-large", 50_000)] })
}

#[test]
fn auto_adds_the_gpu_plugins_if_the_start_has_gpus() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gpus.json");
    std::fs::write(&file, with_gpus().to_string()).unwrap();
    let import = format!("--import={}", file.display());
    let pod = |program: &Program, name: &str| {
        program
            .send(
                "GET",
                &format!("/api/v1/namespaces/default/pods/{name}"),
                "",
                "",
            )
            .1
    };

    let program = Program::start(&[&import, "--gpu-plugins=auto"]);
    program.wait(|program| {
        pod(program, "fits").contains("hami.io/vgpu-devices-allocated")
            && pod(program, "too-large")
                .contains("1/1 CardInsufficientMemory (too little memory is free)")
    });
    let shown = program
        .send("GET", "/api/v1/schedulerconfiguration", "", "")
        .1;
    assert!(
        shown.contains("GpuFit") && shown.contains("GpuScore"),
        "{shown}"
    );
    assert_eq!(program.send("PUT", "/api/v1/reset", "", "").0, 202);
    program.wait(|program| pod(program, "fits").contains("hami.io/vgpu-devices-allocated"));

    // The default of this program is the recorded contract.
    let program = Program::start(&[&import]);
    program.wait(|program| pod(program, "fits").contains("finalscore-result"));
    let (code, shown) = program.send("GET", "/api/v1/schedulerconfiguration", "", "");
    assert_eq!(code, 200, "{shown}");
    assert!(
        shown.contains("NodeResourcesFit") && !shown.contains("Gpu"),
        "{shown}"
    );
    assert!(!pod(&program, "fits").contains("vgpu-devices-allocated"));

    // Without shared GPUs nothing is added.
    let program = Program::start(&["--gpu-plugins=auto"]);
    let (code, shown) = program.send("GET", "/api/v1/schedulerconfiguration", "", "");
    assert_eq!(code, 200, "{shown}");
    assert!(
        shown.contains("NodeResourcesFit") && !shown.contains("Gpu"),
        "{shown}"
    );
}
