use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, HttpBody, to_bytes};
use expect_test::expect;
use http::Request;
use placement::{
    Cluster, Device, Grant, Granted, Instance, Kind, Node, Placement, Pod, Quota, Span, Vendor,
};
use scheduler::events;
use scheduler::ledger::{AccountKey, AccountView, Amounts, QuotaUse};
use scheduler::metrics::{
    Choice, Detail, InstanceAt, InstanceNames, Meters, Outcome, Snapshot, SnapshotSource, Verb,
    routes,
};
use tower::ServiceExt;

use crate::beside::support::VENDORS;

const MIB: u64 = 1 << 20;

/// All series, and HAMi's older names.
const WITH_LEGACY: Choice = Choice {
    legacy: true,
    ..Choice::FULL
};

const STANDARD: Choice = Choice {
    legacy: false,
    detail: Detail::Standard,
};

struct Fixed(Snapshot);

impl SnapshotSource for Fixed {
    fn snapshot(&self) -> Snapshot {
        self.0.clone()
    }
}

fn snapshot(cluster: Cluster) -> Snapshot {
    Snapshot {
        cluster,
        vendors: Arc::clone(&VENDORS),
        instances: HashMap::new(),
        pending: BTreeMap::from([("CardInsufficientMemory".to_owned(), 3)]),
        unconfirmed: 1,
        broken_nodes: 2,
        broken_pods: 0,
        answers: true,
        synced: true,
        events: events::Counts::default(),
        woken: 4,
        compute_quotas: None,
        compute_tasks: None,
        scheduler: "hami-scheduler".to_owned(),
        accounts: vec![account("train", 12.5)],
    }
}

fn account(workload: &str, asked: f64) -> AccountView {
    AccountView {
        key: AccountKey {
            namespace: "ml".to_owned(),
            team: "vision".to_owned(),
            kind: "job".to_owned(),
            workload: workload.to_owned(),
        },
        held: Amounts {
            asked,
            granted: asked / 2.0,
            gib: asked * 10.0,
        },
    }
}

fn grant(device: &str, mib: u64, cores: u32) -> Grant {
    Grant::new(Vendor::new("NVIDIA"), device, mib * MIB, cores)
}

fn placement(node: &str, containers: Vec<Vec<Grant>>) -> Placement {
    Placement {
        node: node.into(),
        containers: containers
            .into_iter()
            .map(|grants| Granted {
                kind: Kind::App,
                grants,
            })
            .collect(),
    }
}

fn small() -> Cluster {
    let mut cluster = Cluster::new();
    let device = |id: &str, index, model: &str| {
        let mut device = Device::new("NVIDIA", id, model, 16384 * MIB);
        device.index = index;
        device
    };
    let mut mig = device("GPU-2", 1, "NVIDIA A100");
    mig.mode = "mig".to_owned();
    let node = Node {
        name: "n\"1".to_owned(),
        devices: vec![device("GPU-1", 0, "NVIDIA \\A100"), mig],
        pairs: Vec::new(),
    };
    cluster.set_node(node).unwrap();
    // The second of two containers with devices; the first one has none.
    let a = placement(
        "n\"1",
        vec![
            vec![],
            vec![grant("GPU-1", 4096, 30)],
            vec![grant("GPU-1", 1024, 0)],
        ],
    );
    cluster.reserve(Pod::named("ml", "a"), a);
    let mut instance = grant("GPU-2", 8192, 42);
    instance.instance = Some(Instance {
        profile: "3g.20gb".into(),
        span: Span { start: 4, size: 4 },
    });
    cluster.reserve(
        Pod::named("ml", "b"),
        placement("n\"1", vec![vec![instance]]),
    );
    let limit = Quota {
        memory_bytes: Some(20000 * MIB),
        cores: Some(0),
        devices: None,
    };
    cluster.set_quota("ml", "q", &[], &[(Vendor::new("NVIDIA"), limit)]);
    cluster
}

async fn scrape(router: &Router, accept: &str) -> String {
    let request = Request::get("/metrics").header("accept", accept);
    let request = request.body(Body::empty()).unwrap();
    let answer = router.clone().oneshot(request).await.unwrap();
    assert_eq!(answer.status(), 200);
    let body = to_bytes(answer.into_body(), 1 << 30).await.unwrap();
    String::from_utf8(body.to_vec()).unwrap()
}

/// The text without values that differ between builds, and without counters at zero.
fn stable(text: &str) -> String {
    let keep = |line: &&str| {
        !line.starts_with("hami_build_info")
            && !line.contains("_bucket")
            && !line.contains("# HELP")
    };
    text.lines().filter(keep).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn devices_shares_and_quotas_have_the_references_names() {
    let mut snapshot = snapshot(small());
    let at = InstanceAt {
        node: "n\"1".to_owned(),
        device: "GPU-2".to_owned(),
        span: Span { start: 4, size: 4 },
    };
    let names = InstanceNames {
        uuid: "MIG-7".to_owned(),
        gpu_instance: "2".to_owned(),
        compute_instance: "0".to_owned(),
    };
    snapshot.instances.insert(at, names);
    let meters = Meters::new();
    meters.answered(Verb::Filter, Outcome::NoNode, Duration::from_millis(3));
    meters.expired();
    let router = routes(Arc::new(Fixed(snapshot)), meters, WITH_LEGACY);

    let text = scrape(&router, "*/*").await;

    expect![[r##"
        # TYPE vgpu_scheduler_request_duration_seconds histogram
        vgpu_scheduler_request_duration_seconds_sum{verb="filter",outcome="no_node"} 0.003
        vgpu_scheduler_request_duration_seconds_count{verb="filter",outcome="no_node"} 1
        # TYPE vgpu_scheduler_reservations_expired_total counter
        vgpu_scheduler_reservations_expired_total 1
        # TYPE vgpu_scheduler_reservations_given_back_total counter
        vgpu_scheduler_reservations_given_back_total 0
        # TYPE hami_build_info gauge
        # TYPE vgpu_scheduler_answers gauge
        vgpu_scheduler_answers{scheduler="hami-scheduler"} 1
        # TYPE vgpu_scheduler_synced gauge
        vgpu_scheduler_synced{scheduler="hami-scheduler"} 1
        # TYPE vgpu_scheduler_nodes gauge
        vgpu_scheduler_nodes 1
        # TYPE vgpu_scheduler_broken_nodes gauge
        vgpu_scheduler_broken_nodes 2
        # TYPE vgpu_scheduler_broken_pods gauge
        vgpu_scheduler_broken_pods 0
        # TYPE vgpu_scheduler_reservations gauge
        vgpu_scheduler_reservations 2
        # TYPE vgpu_scheduler_reservations_unconfirmed gauge
        vgpu_scheduler_reservations_unconfirmed 1
        # TYPE vgpu_scheduler_events_waiting gauge
        vgpu_scheduler_events_waiting 0
        # TYPE vgpu_scheduler_pending_pods gauge
        vgpu_scheduler_pending_pods{reason="CardInsufficientMemory"} 3
        # TYPE vgpu_scheduler_events_total counter
        vgpu_scheduler_events_total{result="sent"} 0
        vgpu_scheduler_events_total{result="merged"} 0
        vgpu_scheduler_events_total{result="dropped"} 0
        vgpu_scheduler_events_total{result="limited"} 0
        vgpu_scheduler_events_total{result="refused"} 0
        # TYPE vgpu_scheduler_wakeups_total counter
        vgpu_scheduler_wakeups_total 4
        # TYPE hami_resource_quota_limit gauge
        hami_resource_quota_limit{namespace="ml",quota_name="nvidia.com/gpucores"} 0
        hami_resource_quota_limit{namespace="ml",quota_name="nvidia.com/gpumem"} 20000
        # TYPE hami_resource_quota_used gauge
        hami_resource_quota_used{namespace="ml",quota_name="nvidia.com/gpucores",limit="0"} 72
        hami_resource_quota_used{namespace="ml",quota_name="nvidia.com/gpumem",limit="20000"} 13312
        # TYPE QuotaUsed gauge
        QuotaUsed{quotanamespace="ml",quotaName="nvidia.com/gpucores",limit="0"} 72
        QuotaUsed{quotanamespace="ml",quotaName="nvidia.com/gpumem",limit="20000"} 13312
        # TYPE vgpu_workload_gpu_asked_seconds_total counter
        vgpu_workload_gpu_asked_seconds_total{namespace="ml",team="vision",workload_type="job",workload="train"} 12.5
        # TYPE vgpu_workload_gpu_granted_seconds_total counter
        vgpu_workload_gpu_granted_seconds_total{namespace="ml",team="vision",workload_type="job",workload="train"} 6.25
        # TYPE vgpu_workload_memory_given_gibibyte_seconds_total counter
        vgpu_workload_memory_given_gibibyte_seconds_total{namespace="ml",team="vision",workload_type="job",workload="train"} 125
        # TYPE hami_gpu_memory_limit_bytes gauge
        hami_gpu_memory_limit_bytes{node="n\"1",device_uuid="GPU-1",device_index="0",device_type="NVIDIA \\A100"} 17179869184
        hami_gpu_memory_limit_bytes{node="n\"1",device_uuid="GPU-2",device_index="1",device_type="NVIDIA A100"} 17179869184
        # TYPE GPUDeviceMemoryLimit gauge
        GPUDeviceMemoryLimit{nodeid="n\"1",deviceuuid="GPU-1",deviceidx="0",devicetype="NVIDIA \\A100"} 17179869184
        GPUDeviceMemoryLimit{nodeid="n\"1",deviceuuid="GPU-2",deviceidx="1",devicetype="NVIDIA A100"} 17179869184
        # TYPE hami_gpu_core_limit_ratio gauge
        hami_gpu_core_limit_ratio{node="n\"1",device_uuid="GPU-1",device_index="0",device_type="NVIDIA \\A100"} 100
        hami_gpu_core_limit_ratio{node="n\"1",device_uuid="GPU-2",device_index="1",device_type="NVIDIA A100"} 100
        # TYPE GPUDeviceCoreLimit gauge
        GPUDeviceCoreLimit{nodeid="n\"1",deviceuuid="GPU-1",deviceidx="0",devicetype="NVIDIA \\A100"} 100
        GPUDeviceCoreLimit{nodeid="n\"1",deviceuuid="GPU-2",deviceidx="1",devicetype="NVIDIA A100"} 100
        # TYPE hami_gpu_core_allocated_ratio gauge
        hami_gpu_core_allocated_ratio{node="n\"1",device_uuid="GPU-1",device_index="0",device_type="NVIDIA \\A100"} 30
        hami_gpu_core_allocated_ratio{node="n\"1",device_uuid="GPU-2",device_index="1",device_type="NVIDIA A100"} 42
        # TYPE GPUDeviceCoreAllocated gauge
        GPUDeviceCoreAllocated{nodeid="n\"1",deviceuuid="GPU-1",deviceidx="0",devicetype="NVIDIA \\A100"} 30
        GPUDeviceCoreAllocated{nodeid="n\"1",deviceuuid="GPU-2",deviceidx="1",devicetype="NVIDIA A100"} 42
        # TYPE hami_gpu_shared_count gauge
        hami_gpu_shared_count{node="n\"1",device_uuid="GPU-1",device_index="0",device_type="NVIDIA \\A100"} 2
        hami_gpu_shared_count{node="n\"1",device_uuid="GPU-2",device_index="1",device_type="NVIDIA A100"} 1
        # TYPE GPUDeviceSharedNum gauge
        GPUDeviceSharedNum{nodeid="n\"1",deviceuuid="GPU-1",deviceidx="0",devicetype="NVIDIA \\A100"} 2
        GPUDeviceSharedNum{nodeid="n\"1",deviceuuid="GPU-2",deviceidx="1",devicetype="NVIDIA A100"} 1
        # TYPE hami_gpu_memory_allocated_bytes gauge
        hami_gpu_memory_allocated_bytes{node="n\"1",device_uuid="GPU-1",device_index="0",device_type="NVIDIA \\A100",device_cores="100"} 5368709120
        hami_gpu_memory_allocated_bytes{node="n\"1",device_uuid="GPU-2",device_index="1",device_type="NVIDIA A100",device_cores="100"} 8589934592
        # TYPE GPUDeviceMemoryAllocated gauge
        GPUDeviceMemoryAllocated{nodeid="n\"1",deviceuuid="GPU-1",deviceidx="0",devicetype="NVIDIA \\A100",devicecores="100"} 5368709120
        GPUDeviceMemoryAllocated{nodeid="n\"1",deviceuuid="GPU-2",deviceidx="1",devicetype="NVIDIA A100",devicecores="100"} 8589934592
        # TYPE hami_node_gpu_overview gauge
        hami_node_gpu_overview{node="n\"1",device_uuid="GPU-1",device_index="0",device_type="NVIDIA \\A100",device_cores="100",device_memory_limit="16384"} 5368709120
        hami_node_gpu_overview{node="n\"1",device_uuid="GPU-2",device_index="1",device_type="NVIDIA A100",device_cores="100",device_memory_limit="16384"} 8589934592
        # TYPE nodeGPUOverview gauge
        nodeGPUOverview{nodeid="n\"1",deviceuuid="GPU-1",deviceidx="0",devicetype="NVIDIA \\A100",devicecores="100",devicememorylimit="16384"} 5368709120
        nodeGPUOverview{nodeid="n\"1",deviceuuid="GPU-2",deviceidx="1",devicetype="NVIDIA A100",devicecores="100",devicememorylimit="16384"} 8589934592
        # TYPE hami_node_gpu_memory_allocated_ratio gauge
        hami_node_gpu_memory_allocated_ratio{node="n\"1",device_uuid="GPU-1",device_index="0"} 0.3125
        hami_node_gpu_memory_allocated_ratio{node="n\"1",device_uuid="GPU-2",device_index="1"} 0.5
        # TYPE nodeGPUMemoryPercentage gauge
        nodeGPUMemoryPercentage{nodeid="n\"1",deviceuuid="GPU-1",deviceidx="0"} 0.3125
        nodeGPUMemoryPercentage{nodeid="n\"1",deviceuuid="GPU-2",deviceidx="1"} 0.5
        # TYPE hami_node_gpu_mig_instance_info gauge
        hami_node_gpu_mig_instance_info{node="n\"1",device_uuid="GPU-2",device_index="1",mig_uuid="MIG-7",profile="3g.20gb",gpu_instance_id="2",compute_instance_id="0",placement_start="4",placement_size="4"} 1
        # TYPE nodeGPUMigInstance gauge
        nodeGPUMigInstance{nodeid="n\"1",deviceuuid="GPU-2",deviceidx="1",migname="3g.20gb-2"} 1
        # TYPE hami_vgpu_memory_allocated_bytes gauge
        hami_vgpu_memory_allocated_bytes{namespace="ml",node="n\"1",pod="a",container_index="1",device_uuid="GPU-1"} 4294967296
        hami_vgpu_memory_allocated_bytes{namespace="ml",node="n\"1",pod="a",container_index="2",device_uuid="GPU-1"} 1073741824
        hami_vgpu_memory_allocated_bytes{namespace="ml",node="n\"1",pod="b",container_index="0",device_uuid="GPU-2"} 8589934592
        # TYPE hami_vgpu_core_allocated_ratio gauge
        hami_vgpu_core_allocated_ratio{namespace="ml",node="n\"1",pod="a",container_index="1",device_uuid="GPU-1"} 30
        hami_vgpu_core_allocated_ratio{namespace="ml",node="n\"1",pod="a",container_index="2",device_uuid="GPU-1"} 0
        hami_vgpu_core_allocated_ratio{namespace="ml",node="n\"1",pod="b",container_index="0",device_uuid="GPU-2"} 42
        # TYPE vGPUMemoryAllocated gauge
        vGPUMemoryAllocated{podnamespace="ml",nodename="n\"1",podname="a",containeridx="1",deviceuuid="GPU-1"} 4294967296
        vGPUMemoryAllocated{podnamespace="ml",nodename="n\"1",podname="a",containeridx="2",deviceuuid="GPU-1"} 1073741824
        vGPUMemoryAllocated{podnamespace="ml",nodename="n\"1",podname="b",containeridx="0",deviceuuid="GPU-2"} 8589934592
        # TYPE vGPUCoreAllocated gauge
        vGPUCoreAllocated{podnamespace="ml",nodename="n\"1",podname="a",containeridx="1",deviceuuid="GPU-1"} 30
        vGPUCoreAllocated{podnamespace="ml",nodename="n\"1",podname="a",containeridx="2",deviceuuid="GPU-1"} 0
        vGPUCoreAllocated{podnamespace="ml",nodename="n\"1",podname="b",containeridx="0",deviceuuid="GPU-2"} 42"##]].assert_eq(&stable(&text));
}

#[tokio::test]
async fn both_formats_agree_and_older_names_are_optional() {
    let of = |legacy| {
        let choice = Choice {
            legacy,
            ..Choice::FULL
        };
        routes(Arc::new(Fixed(snapshot(small()))), Meters::new(), choice)
    };
    let samples = |text: &str| -> BTreeSet<String> {
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        samples.map(str::to_owned).collect()
    };
    let old_text = scrape(&of(false), "*/*").await;
    let open_metrics = scrape(&of(false), "application/openmetrics-text").await;
    let with_legacy = scrape(&of(true), "*/*").await;

    assert!(!samples(&old_text).is_empty());
    assert_eq!(samples(&old_text), samples(&open_metrics));
    assert!(open_metrics.ends_with("# EOF\n") && !old_text.contains("# EOF"));
    assert!(samples(&old_text).is_subset(&samples(&with_legacy)));
    let only_legacy = |line: &str| line.starts_with("GPUDevice") || line.starts_with("nodeGPU");
    assert!(!old_text.lines().any(only_legacy));
    assert!(with_legacy.lines().any(only_legacy));
    // No series twice: Prometheus refuses such a scrape, or takes one of the two.
    let names: Vec<&str> = with_legacy
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
}

#[tokio::test]
async fn compute_quotas_and_tasks_are_shown_where_hcs_is_served() {
    let amount = |resource, hard, used| QuotaUse {
        namespace: "ml".to_owned(),
        quota: "q".to_owned(),
        resource,
        hard,
        used,
    };
    let mut snapshot = snapshot(Cluster::new());
    snapshot.compute_quotas = Some(vec![
        amount("vram", 64 << 30, 16 << 30),
        amount("tflops-fp16", 312_000, 100_500),
    ]);
    snapshot.compute_tasks = Some(BTreeMap::from([("Pending", 2), ("Running", 1)]));
    let text = scrape(
        &routes(Arc::new(Fixed(snapshot)), Meters::new(), Choice::FULL),
        "*/*",
    )
    .await;

    let lines: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("vgpu_compute"))
        .collect();
    expect![[r#"
        vgpu_compute_quota_hard{namespace="ml",quota="q",resource="vram"} 68719476736
        vgpu_compute_quota_hard{namespace="ml",quota="q",resource="tflops-fp16"} 312
        vgpu_compute_quota_used{namespace="ml",quota="q",resource="vram"} 17179869184
        vgpu_compute_quota_used{namespace="ml",quota="q",resource="tflops-fp16"} 100.5
        vgpu_compute_tasks{phase="Pending"} 2
        vgpu_compute_tasks{phase="Running"} 1"#]]
    .assert_eq(&lines.join("\n"));
}

#[tokio::test]
async fn a_pod_and_its_successor_of_the_same_name_are_one_series() {
    let mut cluster = small();
    let again = Pod {
        uid: "another".to_owned(),
        ..Pod::named("ml", "a")
    };
    cluster.reserve(
        again,
        placement("n\"1", vec![vec![], vec![grant("GPU-1", 100, 5)]]),
    );
    let router = routes(
        Arc::new(Fixed(snapshot(cluster))),
        Meters::new(),
        Choice::FULL,
    );

    let text = scrape(&router, "*/*").await;

    let series: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("hami_vgpu_core") && line.contains("\"1\",device"))
        .collect();
    assert_eq!(
        series,
        [
            "hami_vgpu_core_allocated_ratio{namespace=\"ml\",node=\"n\\\"1\",pod=\"a\",container_index=\"1\",device_uuid=\"GPU-1\"} 35"
        ]
    );
}

#[tokio::test]
async fn only_the_replica_that_answers_shows_the_cluster() {
    let stands_by = Snapshot {
        answers: false,
        ..snapshot(small())
    };
    let router = routes(Arc::new(Fixed(stands_by)), Meters::new(), WITH_LEGACY);

    let text = scrape(&router, "*/*").await;

    let shown: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .filter_map(|line| line.split(' ').next())
        .collect();
    let expected = [
        "hami_build_info",
        "vgpu_scheduler_answers",
        "vgpu_scheduler_reservations_expired_total",
        "vgpu_scheduler_reservations_given_back_total",
        "vgpu_scheduler_synced",
    ];
    assert_eq!(shown, BTreeSet::from(expected));
}

fn samples_of(text: &str, name: &str) -> usize {
    let of_it = |line: &&str| {
        line.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with(['{', ' ']))
    };
    text.lines().filter(of_it).count()
}

/// docs/metrics.md, "How many series there are": 1,000 nodes of 8 GPUs and 20 pods, in 5,000 workloads.
#[tokio::test]
async fn series_of_a_thousand_nodes_are_as_many_as_documented() {
    let mut cluster = large(1000);
    for number in 0..20_000_u32 {
        let node = format!("node-{:05}.example.internal", number / 20);
        let device = format!(
            "GPU-{:08x}-0000-0000-0000-00000000000{}",
            number / 20,
            number % 8
        );
        let pod = Pod::named("ml", &format!("pod-{number}"));
        cluster.reserve(pod, placement(&node, vec![vec![grant(&device, 4096, 10)]]));
    }
    let snapshot = Snapshot {
        accounts: (0..5000)
            .map(|number| account(&format!("w{number}"), 1.0))
            .collect(),
        ..snapshot(cluster)
    };
    let count = async |choice| {
        let router = routes(Arc::new(Fixed(snapshot.clone())), Meters::new(), choice);
        let text = scrape(&router, "*/*").await;
        assert_eq!(samples_of(&text, "hami_gpu_memory_limit_bytes"), 8000);
        assert_eq!(
            samples_of(&text, "vgpu_workload_gpu_asked_seconds_total"),
            5000
        );
        text.lines().filter(|line| !line.starts_with('#')).count()
    };
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
    let document = std::fs::read_to_string(document).unwrap();
    let row = document
        .lines()
        .find(|line| line.starts_with("| scheduler, the replica"));
    let documented: Vec<usize> = row
        .unwrap()
        .split('|')
        .filter_map(|cell| cell.trim().replace(',', "").parse().ok())
        .collect();

    // A few of the scheduler's own come and go with what happens.
    for (choice, documented) in [(STANDARD, documented[0]), (Choice::FULL, documented[1])] {
        let counted = count(choice).await;
        assert!(
            (documented - 200..=documented).contains(&counted),
            "{counted}, documented {documented}"
        );
    }
}

struct Panics;

impl SnapshotSource for Panics {
    fn snapshot(&self) -> Snapshot {
        panic!("a source of this test panics");
    }
}

#[tokio::test]
async fn a_broken_scrape_looks_incomplete_and_disturbs_no_other() {
    let router = routes(Arc::new(Panics), Meters::new(), Choice::FULL);
    for _ in 0..3 {
        let request = Request::get("/metrics").body(Body::empty()).unwrap();
        let answer = router.clone().oneshot(request).await.unwrap();
        assert!(to_bytes(answer.into_body(), 1 << 20).await.is_err());
    }
}

fn large(nodes: usize) -> Cluster {
    let mut cluster = Cluster::new();
    for number in 0..nodes {
        let devices = (0..8).map(|index| {
            let id = format!("GPU-{number:08x}-0000-0000-0000-00000000000{index}");
            let mut device = Device::new("NVIDIA", &id, "NVIDIA H100 80GB HBM3", 81559 * MIB);
            device.index = index;
            device
        });
        let node = Node {
            name: format!("node-{number:05}.example.internal"),
            devices: devices.collect(),
            pairs: Vec::new(),
        };
        cluster.set_node(node).unwrap();
    }
    cluster
}

/// 5,000 nodes of 8 GPUs; prints time and size, for docs/performance.md.
#[tokio::test]
async fn a_large_cluster_is_sent_in_small_pieces() {
    let router = routes(
        Arc::new(Fixed(snapshot(large(5000)))),
        Meters::new(),
        Choice::FULL,
    );
    let began = Instant::now();
    let request = Request::get("/metrics").body(Body::empty()).unwrap();
    let mut body = router.oneshot(request).await.unwrap().into_body();
    let (mut pieces, mut bytes, mut largest) = (0, 0, 0);
    while let Some(frame) =
        std::future::poll_fn(|context| std::pin::Pin::new(&mut body).poll_frame(context)).await
    {
        let piece = frame.unwrap().into_data().unwrap();
        pieces += 1;
        bytes += piece.len();
        largest = largest.max(piece.len());
    }
    eprintln!("{bytes} bytes in {pieces} pieces, {:?}", began.elapsed());

    assert!(bytes > 30 << 20, "{bytes}");
    assert!(largest <= 128 << 10, "{largest}");
}

/// A scraper that stops reading blocks other scrapers only for a short time.
#[tokio::test(flavor = "multi_thread")]
async fn a_scraper_that_goes_away_leaves_its_turn_to_the_next() {
    let router = routes(
        Arc::new(Fixed(snapshot(large(500)))),
        Meters::new(),
        Choice::FULL,
    );
    for _ in 0..3 {
        let request = Request::get("/metrics").body(Body::empty()).unwrap();
        let answer = router.clone().oneshot(request).await.unwrap();
        drop(answer);
    }
    let text = scrape(&router, "*/*").await;
    assert!(text.contains("hami_gpu_memory_limit_bytes{node=\"node-00499.example.internal\""));
}

#[tokio::test]
async fn docs_metrics_md_names_every_series_and_no_other() {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
    let document = std::fs::read_to_string(document).unwrap();
    let section = document
        .split("\n## ")
        .find(|section| section.starts_with("The scheduler's series"))
        .unwrap();
    let documented: BTreeSet<&str> = section
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|word| {
            [
                "hami_",
                "vgpu_scheduler_",
                "vgpu_workload_",
                "GPUDevice",
                "nodeGPU",
                "vGPU",
                "Quota",
            ]
            .iter()
            .any(|start| word.starts_with(start))
        })
        .collect();
    let meters = Meters::new();
    meters.answered(Verb::Bind, Outcome::Ok, Duration::from_millis(3));
    let router = routes(Arc::new(Fixed(snapshot(small()))), meters, WITH_LEGACY);

    let text = scrape(&router, "*/*").await;

    let shown: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert_eq!(documented, shown);
}
