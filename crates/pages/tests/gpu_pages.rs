//! The GPU page and the assigner's page through their routers.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use pages::assigner::{self, DeviceRow, DeviceSource, DeviceState, Happening, Inventory};
use pages::gpus::{
    self, Gpu, GpuPendingPod, GpuPod, GpuShare, GpuSource, OfGpu, Picture, Point, Usage,
};
use pages::{Future, Way, Why};
use tokio::sync::watch;
use tower::ServiceExt as _;

const EVIL: &str = "<script>alert(1)</script><b hx-get=/x onclick='y'>\"";

struct Fixed(Arc<Picture>, watch::Sender<u64>);

impl GpuSource for Fixed {
    fn picture(&self) -> Future<'_, Arc<Picture>> {
        Box::pin(async { self.0.clone() })
    }

    fn history(&self, _: &str, _: &str) -> Vec<OfGpu> {
        let point = Point {
            memory_bytes: 1 << 30,
            compute: Some(100),
            ooms: 1,
        };
        vec![OfGpu {
            gpu: EVIL.into(),
            points: vec![Some(point); 3],
        }]
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.1.subscribe()
    }

    fn why<'a>(&'a self, _: &'a str, _: &'a str) -> Future<'a, Option<Why>> {
        let way = Way {
            text: EVIL.into(),
            node: EVIL.into(),
            edits: vec![EVIL.into()],
        };
        let why = Why {
            ways: vec![way],
            ..Why::default()
        };
        Box::pin(async { Some(why) })
    }
}

/// `nodes` nodes of eight GPUs, with one pod on each GPU.
fn large(nodes: usize) -> Picture {
    let mut picture = Picture {
        synced: true,
        step_seconds: 30,
        steps: 240,
        ..Picture::default()
    };
    for node in 0..nodes {
        let node: Arc<str> = format!("gpu-{node:04}").into();
        for index in 0..8 {
            let id: Arc<str> = format!("{node}-{index}").into();
            picture.gpus.push(gpu(&node, &id, index));
            picture
                .holders
                .push(holder("default", &format!("pod-{id}"), &node, &id));
        }
    }
    picture
}

fn gpu(node: &Arc<str>, id: &Arc<str>, index: u32) -> Gpu {
    Gpu {
        node: node.clone(),
        id: id.clone(),
        index,
        model: "NVIDIA A100-SXM4-80GB".into(),
        memory_bytes: 80 << 30,
        given_bytes: 20 << 30,
        used_bytes: Some(12 << 30),
        given_compute: Some(300),
        busy_compute: Some(200),
        slots: 10,
        slots_taken: 1,
        healthy: true,
        cordoned: false,
    }
}

fn holder(namespace: &str, pod: &str, node: &Arc<str>, id: &Arc<str>) -> GpuPod {
    GpuPod {
        namespace: namespace.into(),
        pod: pod.into(),
        node: node.clone(),
        bound: true,
        shares: vec![GpuShare {
            gpu: id.clone(),
            memory_bytes: 20 << 30,
            compute: Some(300),
            usage: Some(Usage {
                memory_bytes: 10 << 30,
                most_bytes: 12 << 30,
                compute: Some(100),
                mean_compute: Some(90),
            }),
        }],
        ooms: 1,
    }
}

fn site(picture: Picture) -> Router {
    gpus::router(Arc::new(Fixed(Arc::new(picture), watch::Sender::new(0))))
}

async fn get(router: &Router, path: &str, source: &str) -> (StatusCode, String, String) {
    let request = Request::get(path).header("hx-source", source);
    let request = request.body(Body::empty()).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let replace = response.headers().get("hx-replace-url");
    let replace = replace.map_or(String::new(), |url| url.to_str().unwrap().to_owned());
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8(bytes.to_vec()).unwrap(), replace)
}

async fn page(router: &Router, path: &str) -> String {
    let (status, text, _) = get(router, path, "").await;
    assert_eq!(status, StatusCode::OK, "{path}");
    text
}

#[tokio::test]
async fn names_with_html_are_text_on_every_gpu_page() {
    let name: Arc<str> = EVIL.into();
    let mut gpu = gpu(&name, &name, 0);
    gpu.model = name.clone();
    let picture = Picture {
        gpus: vec![gpu],
        holders: vec![holder(EVIL, EVIL, &name, &name)],
        pending: vec![GpuPendingPod {
            namespace: name.clone(),
            pod: name.clone(),
            reason: EVIL.into(),
        }],
        notes: vec![EVIL.into()],
        synced: true,
        ..Picture::default()
    };
    let site = site(picture);
    let coded: String = EVIL.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let mut seen = 0;
    for path in [
        "/".to_owned(),
        "/page/gpus".into(),
        "/page/pods".into(),
        "/page/namespaces".into(),
        "/page/pending".into(),
        format!("/page/gpus/{coded}/{coded}"),
        format!("/page/pods/{coded}/{coded}"),
        format!("/page/part/why/{coded}/{coded}"),
        format!("/page/gpus?q={coded}&show={coded}&sort={coded}"),
    ] {
        let text = page(&site, &path).await;

        assert!(!text.contains("<script>alert"), "{path}");
        assert!(!text.contains("<b hx-get"), "{path}");
        seen += usize::from(text.contains("alert(1)"));
    }
    assert_eq!(seen, 9);
}

#[tokio::test]
async fn a_form_moves_the_address_and_a_live_change_does_not() {
    let site = site(large(40));

    let path = "/page/part/gpus?q=gpu-0007&sort=full";
    let (_, text, typed) = get(&site, path, "form").await;
    let (_, _, live) = get(&site, path, "div#gpus").await;

    assert!(text.contains("gpu-0007-3") && !text.contains("gpu-0008"));
    assert!(text.contains(r#"hx-get="/page/part/gpus?q=gpu-0007&#38;sort=full""#));
    assert_eq!((&*typed, &*live), ("/page/gpus?q=gpu-0007&sort=full", ""));
}

#[tokio::test]
async fn lists_are_paged() {
    let site = site(large(40));

    let first = page(&site, "/page/pods").await;
    let last = page(&site, "/page/pods?page=99").await;

    assert!(first.contains("1–25 of 320") && first.contains("page=2"));
    assert!(last.contains("301–320 of 320"));
    assert!(
        page(&site, "/page/pods?q=nothing")
            .await
            .contains("None of 320 pods matches")
    );
}

#[tokio::test]
async fn missing_page_is_404_and_a_part_reports_it() {
    let site = site(large(1));

    let (status, text, _) = get(&site, "/page/gpus/gpu-0000/none", "").await;
    let gone = page(&site, "/page/part/gpus/gpu-0000/none").await;
    let (nowhere, ..) = get(&site, "/nowhere", "").await;

    assert_eq!(
        (status, nowhere),
        (StatusCode::NOT_FOUND, StatusCode::NOT_FOUND)
    );
    assert!(text.contains("Node gpu-0000 has no GPU none."));
    assert!(gone.contains("has this GPU no more"));
}

#[tokio::test]
async fn a_cluster_without_gpus_says_so() {
    let site = site(Picture::default());

    let first = page(&site, "/").await;

    assert!(first.contains("No GPU is registered yet"));
    assert!(first.contains("have not been read from the API server yet"));
    assert!(first.contains("No pod waits for a GPU."));
}

struct Devices(Arc<Inventory>, watch::Sender<u64>);

impl DeviceSource for Devices {
    fn inventory(&self) -> Arc<Inventory> {
        self.0.clone()
    }

    fn history(&self, _: &str) -> Option<Vec<Happening>> {
        Some(vec![Happening {
            at_unix_ms: 0,
            what: assigner::Happened::Proposed,
            namespace: EVIL.into(),
            pod: EVIL.into(),
            reservation_id: EVIL.into(),
        }])
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.1.subscribe()
    }
}

fn devices(rows: Vec<DeviceRow>) -> Router {
    let inventory = Inventory {
        synced: true,
        devices: rows,
        ..Inventory::default()
    };
    assigner::router(Arc::new(Devices(
        Arc::new(inventory),
        watch::Sender::new(0),
    )))
}

#[tokio::test]
async fn the_assigners_page_has_the_documented_texts() {
    let text = page(&devices(Vec::new()), "/").await;

    assert!(text.contains("<title>GPU Device Assignment</title>"));
    assert!(text.contains("<h1>GPU Device Assigner</h1>"));
    assert!(text.contains("No devices discovered."));
}

#[tokio::test]
async fn devices_with_html_in_their_names_are_text() {
    let row = DeviceRow {
        uuid: EVIL.into(),
        node: EVIL.into(),
        labels: vec![EVIL.into()],
        model: EVIL.into(),
        memory_bytes: 0,
        sharers: 0,
        state: DeviceState::Assigned,
        assignment: Some(assigner::Assignment {
            namespace: EVIL.into(),
            name: Some(EVIL.into()),
            uid: None,
            exists: true,
            reservation_id: EVIL.into(),
            active: true,
            since_unix_ms: 0,
        }),
    };
    let site = devices(vec![row]);
    let coded: String = EVIL.bytes().map(|byte| format!("%{byte:02X}")).collect();

    for path in [
        "/".to_owned(),
        format!("/page/devices/{coded}"),
        format!("/?q={coded}"),
    ] {
        let text = page(&site, &path).await;

        assert!(
            text.contains("alert(1)") && !text.contains("<script>alert"),
            "{path}"
        );
        assert!(!text.contains("<b hx-get"), "{path}");
    }
    let head = ["Device", "Labels", "Node", "Assignment", "Status"];
    let text = page(&site, "/").await;
    let columns: Vec<&str> = text
        .split("<th role=\"columnheader\" scope=\"col\">")
        .skip(1)
        .map(|rest| rest.split("</th>").next().unwrap())
        .collect();
    assert_eq!(columns, head);
}
