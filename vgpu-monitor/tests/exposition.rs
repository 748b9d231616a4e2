//! The whole exposition, letter for letter, in both formats and with both sets of names; and the
//! list of series against the document that explains them.

#![allow(clippy::unwrap_used, reason = "a test: a panic is its answer")]

use std::collections::BTreeSet;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use expect_test::{expect, expect_file};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;
use supervisor::gpu::hardware::{Hardware, Pcie};
use tower::ServiceExt;
use vgpu_abi::waits::Waits;
use vgpu_monitor::arbiter::ArbiterStatus;
use vgpu_monitor::attest::series::{Owner, Picture, Row};
use vgpu_monitor::attest::verdict::Verdict;
use vgpu_monitor::exporter::{
    Account, Compute, Detail, Device, Gpu, Instance, Look, Names, Shown, ShownClaim,
    ShownContainer, Used, Work, encode,
};

#[derive(Debug)]
struct Fixed(Shown, Names, Detail);

impl Collector for Fixed {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        encode(&self.0, self.1, self.2, encoder)
    }
}

fn exposition(shown: Shown, names: Names, accept: &str) -> String {
    detailed(shown, names, Detail::Full, accept)
}

fn detailed(shown: Shown, names: Names, detail: Detail, accept: &str) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Fixed(shown, names, detail)));
    let request = Request::get("/metrics")
        .header("accept", accept)
        .body(Body::empty())
        .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let response = server::metrics(registry).oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let body = to_bytes(response.into_body(), 1 << 24).await.unwrap();
        String::from_utf8(body.to_vec()).unwrap()
    })
}

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0";
const TEXT: &str = "text/plain";

fn gpu(index: u32, used_bytes: u64, busy: Option<u32>) -> Gpu {
    Gpu {
        index,
        uuid: format!("GPU-0000000{index}-1111-2222-3333-444444444444"),
        model: "NVIDIA A100-SXM4-40GB".to_owned(),
        used_bytes,
        utilization_percent: busy,
        memory_utilization_percent: busy.map(|busy| busy / 2),
    }
}

fn hardware(index: u32) -> Hardware {
    Hardware {
        index,
        uuid: format!("GPU-0000000{index}-1111-2222-3333-444444444444"),
        power_mw: Some(251_500),
        power_limit_mw: Some(400_000),
        energy_mj: Some(1_234_567_890),
        celsius: Some(61),
        memory_celsius: Some(70),
        sm_mhz: Some(1410),
        memory_mhz: Some(1593),
        ecc_corrected: Some(3),
        ecc_uncorrected: Some(0),
        rows_corrected: Some(0),
        rows_uncorrected: Some(1),
        pcie_replays: Some(2),
        pcie: Some(Pcie::Counted {
            sent: 1_000_000,
            received: 2_000_000,
        }),
        nvlink_bytes: Some((3_000_000, 4_000_000)),
        throttled_by: vec!["sw_power_cap"],
        throttled_ns: vec![("power", 1_500_000_000)],
    }
}

/// A node with a pod on a GPU, a run without Kubernetes on an instance, and a GPU that says
/// nothing of its use.
fn node() -> Shown {
    let training = ShownContainer {
        namespace: "research".to_owned(),
        pod: "train-0".to_owned(),
        container: "main".to_owned(),
        claim: Some(ShownClaim {
            name: "train-0-share-x7k2p".to_owned(),
            uid: "5a7e3c1d-0b42-4f6e-9d18-2f3a4b5c6d7e".to_owned(),
        }),
        devices: vec![
            Device {
                index: 0,
                uuid: "GPU-00000000-1111-2222-3333-444444444444".to_owned(),
                used_bytes: 3_221_225_472,
                limit_bytes: Some(4_294_967_296),
                context_bytes: 314_572_800,
                module_bytes: 2_097_152,
                buffer_bytes: 2_904_555_520,
                ended_bytes: 536_870_912,
                utilization_percent: Some(62.5),
                since_launch: Some(Duration::from_millis(250)),
                unaccounted_bytes: Some(1_048_576),
                driver_limit_bytes: Some(4_609_540_096),
                fences: "both",
                pending_shrink: false,
                instance: None,
                compute: Compute {
                    asked: Some(0.3),
                    floor: Some(0.2),
                    granted: Some(0.25),
                    used: Some(0.249),
                    waiting: Some(0.75),
                    waits_for_turn: true,
                    work: Some(Work {
                        busy: Duration::from_millis(12_500),
                        throttled: Duration::from_millis(37_250),
                        waits: 3_100,
                        waited: Waits {
                            by_length: [0, 1_000, 2_000, 90, 7, 1, 1],
                            ns_by_cause: [30_000_000_000, 7_000_000_000, 0, 250_000_000],
                        },
                        kernels: 3_999_000,
                        graphs: 1_000,
                        copies: 64,
                        copied_bytes: 67_108_864,
                        host_functions: 5,
                    }),
                },
                oversubscribed_bytes: Some(2_097_152),
            },
            Device {
                index: 1,
                uuid: "GPU-00000001-1111-2222-3333-444444444444".to_owned(),
                used_bytes: 9_007_199_254_740_993,
                limit_bytes: Some(1024),
                buffer_bytes: 9_007_199_254_740_993,
                utilization_percent: Some(0.0),
                unaccounted_bytes: Some(0),
                pending_shrink: true,
                ..Device::default()
            },
        ],
        processes: 2,
        ooms: 1,
        refused: 3,
        waits_expired: 0,
        hook_calls: vec![("alloc", 120), ("launch", 4_000_000)],
        priority: 2,
        policy: "floor",
        arbiter_age: Some(Duration::from_millis(37)),
    };
    let serving = ShownContainer {
        container: "serve".to_owned(),
        devices: vec![Device {
            index: 0,
            uuid: "MIG-22222222-3333-4444-5555-666666666666".to_owned(),
            instance: Some(Instance {
                profile: "1g.5gb".to_owned(),
                ids: Some((7, 0)),
            }),
            ..Device::default()
        }],
        ..ShownContainer::default()
    };
    Shown {
        node: "gpu-node-1".to_owned(),
        gpus: vec![gpu(0, 4_000_000_000, Some(63)), gpu(1, 0, None)],
        hardware: vec![
            hardware(0),
            Hardware {
                index: 1,
                uuid: "GPU-00000001-1111-2222-3333-444444444444".to_owned(),
                pcie: Some(Pcie::Measured {
                    sent: 1024,
                    received: 4096,
                }),
                ..Hardware::default()
            },
        ],
        workloads: vec![
            Used {
                key: Account {
                    namespace: "research".to_owned(),
                    team: "vision".to_owned(),
                    kind: "statefulset".to_owned(),
                    workload: "train".to_owned(),
                },
                gpu_seconds: 12.5,
                gib_seconds: 4096.25,
            },
            Used::default(),
        ],
        containers: vec![training, serving],
        look: Look {
            root_readable: true,
            broken: 1,
            skipped: vec![("broken", 5), ("duplicate", 0)],
            nvml_up: Some(true),
            gpu_faults: 0,
            arbiter: Some(ArbiterStatus {
                leads: true,
                served: 2,
                failed: 0,
                ticks: 1234,
            }),
            took: Duration::from_micros(1500),
        },
    }
}

#[test]
fn present_names_in_open_metrics() {
    expect_file!["golden/present.openmetrics.txt"].assert_eq(&exposition(
        node(),
        Names::Present,
        OPEN_METRICS,
    ));
}

#[test]
fn present_names_in_prometheus_text() {
    expect_file!["golden/present.prometheus.txt"].assert_eq(&exposition(
        node(),
        Names::Present,
        TEXT,
    ));
}

#[test]
fn legacy_names_follow_present_ones_in_open_metrics() {
    expect_file!["golden/legacy.openmetrics.txt"].assert_eq(&exposition(
        node(),
        Names::WithLegacy,
        OPEN_METRICS,
    ));
}

#[test]
fn legacy_names_follow_present_ones_in_prometheus_text() {
    let text = exposition(node(), Names::WithLegacy, TEXT);

    expect_file!["golden/legacy.prometheus.txt"].assert_eq(&text);
    assert!(text.starts_with(&exposition(node(), Names::Present, TEXT)));
}

#[test]
fn empty_node_still_shows_its_own_series() {
    let shown = Shown {
        look: Look {
            took: Duration::ZERO,
            ..Look::default()
        },
        ..Shown::default()
    };

    let samples: Vec<String> = exposition(shown, Names::WithLegacy, TEXT)
        .lines()
        .filter(|line| !line.starts_with('#') && !line.starts_with("hami_build_info{"))
        .map(str::to_owned)
        .collect();

    expect![[r#"
        vgpu_monitor_root_readable{node=""} 0
        vgpu_monitor_broken_regions{node=""} 0
        vgpu_monitor_scrape_duration_seconds{node=""} 0.0"#]]
    .assert_eq(&samples.join("\n"));
}

#[test]
fn container_name_cannot_inject_a_series() {
    let hostile = "x\"} 1\nhami_vgpu_memory_used_bytes{container=\"prod\\";
    let container = ShownContainer {
        container: hostile.to_owned(),
        devices: vec![Device::default()],
        ..ShownContainer::default()
    };
    let shown = Shown {
        containers: vec![container],
        ..Shown::default()
    };

    for accept in [OPEN_METRICS, TEXT] {
        let text = exposition(shown.clone(), Names::WithLegacy, accept);
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("hami_vgpu_memory_used_bytes"))
            .collect();
        assert_eq!(
            lines,
            [
                r#"hami_vgpu_memory_used_bytes{node="",namespace="",pod="",container="x\"} 1\nhami_vgpu_memory_used_bytes{container=\"prod\\",vdevice_index="0",device_uuid=""} 0"#
            ]
        );
    }
}

fn declared(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .filter_map(|line| line.split(' ').next())
        .map(str::to_owned)
        .collect()
}

#[test]
fn documented_series_match_served_series() {
    let served = declared(&exposition(node(), Names::WithLegacy, TEXT));
    let document = include_str!("../../docs/metrics.md");
    // Those of other collectors and programs are not this one's to compare.
    let of_others = [
        "The scheduler's series",
        "The device plugin's series",
        "The DRA driver's series",
        "Health",
        "Attestation",
        "Traces",
    ];
    let explained: BTreeSet<String> = document
        .split("\n## ")
        .filter(|section| !of_others.iter().any(|other| section.starts_with(other)))
        .flat_map(str::lines)
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|line| line.split('`').next())
        .filter(|name| !name.starts_with('-') && !name.starts_with('/'))
        .map(str::to_owned)
        .collect();

    assert_eq!(explained, served);
}

/// A node of 8 GPUs with NVLink and 20 containers of 20 workloads that work; two have a floor, one was refused memory
/// once, one GPU is throttled.
fn full_node() -> Shown {
    let [mut training, _] = <[ShownContainer; 2]>::try_from(node().containers).unwrap();
    training.devices.truncate(1);
    let containers = (0..20).map(|number| {
        let mut container = training.clone();
        container.pod = format!("train-{number}");
        // One series more for each container that a claim gave.
        container.claim = None;
        container.ooms = u64::from(number == 0);
        container.waits_expired = 0;
        let device = &mut container.devices[0];
        (device.unaccounted_bytes, device.oversubscribed_bytes) = (Some(0), None);
        device.compute.floor = (number < 2).then_some(0.1);
        container
    });
    let healthy = |index| Hardware {
        ecc_corrected: Some(0),
        rows_uncorrected: Some(0),
        pcie_replays: Some(0),
        throttled_by: Vec::new(),
        throttled_ns: Vec::new(),
        ..hardware(index)
    };
    let workloads = (0..20).map(|number| Used {
        key: Account {
            workload: number.to_string(),
            ..Account::default()
        },
        ..Used::default()
    });
    Shown {
        gpus: (0..8).map(|index| gpu(index, 1, Some(50))).collect(),
        hardware: (0..8)
            .map(|index| match index {
                0 => Hardware {
                    ecc_corrected: Some(0),
                    rows_uncorrected: Some(0),
                    pcie_replays: Some(0),
                    ..hardware(0)
                },
                _ => healthy(index),
            })
            .collect(),
        containers: containers.collect(),
        workloads: workloads.collect(),
        look: Look {
            broken: 0,
            skipped: ["broken", "duplicate", "unreadable", "budget", "root"]
                .map(|reason| (reason, 0))
                .to_vec(),
            ..node().look
        },
        ..node()
    }
}

/// The numbers of a row of docs/metrics.md, "How many series there are".
fn documented(row: &str) -> Vec<usize> {
    let page = include_str!("../../docs/metrics.md");
    let mut rows = page.lines().filter(|line| line.starts_with(row));
    let row = rows.next().unwrap();
    row.split('|')
        .filter_map(|cell| cell.trim().replace(',', "").parse().ok())
        .collect()
}

#[test]
fn series_of_a_node_are_as_many_as_documented() {
    let [standard, full] = documented("| exporters, each").try_into().unwrap();
    for (detail, documented) in [(Detail::Standard, standard), (Detail::Full, full)] {
        let text = detailed(full_node(), Names::Present, detail, TEXT);
        let mut series = text.lines().filter(|line| !line.starts_with('#')).count();
        series += attested(detail)
            .lines()
            .filter(|line| !line.starts_with('#'))
            .count();
        assert_eq!(series, documented, "{detail:?}");
    }
}

/// What attestation shows of that node: a process of each container, and one of the host that is exempt.
fn attested(detail: Detail) -> String {
    #[derive(Debug)]
    struct Attested(Picture, Detail);
    impl Collector for Attested {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
            self.0.encode(self.1, &mut encoder)
        }
    }
    let row = |number: u32, verdict| Row {
        pid: number,
        verdict,
        reason: "",
        owner: Owner {
            pod: number.to_string(),
            ..Owner::default()
        },
        container: (verdict == Verdict::Managed).then(|| "/r".into()),
    };
    let mut picture = Picture {
        holders: (0..20)
            .map(|number| row(number, Verdict::Managed))
            .collect(),
        processes: 300,
        turns: 7,
        ..Picture::default()
    };
    picture.holders.push(row(99, Verdict::Exempt));
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Attested(picture, detail)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text
}

#[test]
fn a_thousand_nodes_have_at_most_250_000_series() {
    let number = |row: &str| documented(row)[0];
    let all = number("| scheduler, the replica")
        + 1000 * (number("| exporters, each") + number("| device plugins, each"))
        + number("| recording rules");

    assert!(all <= 250_000, "{all}");
    assert!(all.abs_diff(number("| all")) < 1000, "{all}");
}

/// Series of the exporter that only all details show.
fn only_in_detail() -> BTreeSet<String> {
    let of = |detail| declared(&detailed(full_node(), Names::Present, detail, TEXT));
    of(Detail::Full)
        .difference(&of(Detail::Standard))
        .cloned()
        .collect()
}

#[test]
fn rules_look_only_at_standard_series() {
    // Shown where there is something to show.
    let unless_zero = [
        "vgpu_container_arbiter_heartbeat_age_seconds",
        "vgpu_container_oversubscribed_bytes",
        "vgpu_container_pending_shrink",
        "vgpu_container_unaccounted_bytes",
        "vgpu_container_waits_expired_total",
        "vgpu_monitor_broken_regions",
        "vgpu_monitor_gpu_faults",
    ];
    let rules = [
        include_str!("../../charts/vgpu/rules/alerts.yaml"),
        include_str!("../../charts/vgpu/rules/recording.yaml"),
    ];
    let details = only_in_detail();
    assert!(details.contains("vgpu_container_hook_calls_total"));
    let words = rules
        .iter()
        .flat_map(|text| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
    let wrong: BTreeSet<&str> = words
        .filter(|word| details.contains(*word) && !unless_zero.contains(word))
        .collect();

    assert!(wrong.is_empty(), "{wrong:?}");
}

/// The anchor that a heading of a page has on the web.
fn anchor(heading: &str) -> String {
    let kept = heading
        .trim()
        .to_lowercase()
        .replace(' ', "-")
        .replace(|c: char| !c.is_alphanumeric() && c != '-' && c != '_', "");
    format!("docs/alerts.md#{kept}")
}

#[test]
fn every_alert_leads_to_a_section_of_its_page() {
    let page = include_str!("../../docs/alerts.md");
    let headings = page
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| anchor(line.trim_start_matches('#')));
    let headings: BTreeSet<String> = headings.collect();
    let rules = include_str!("../../charts/vgpu/rules/alerts.yaml");
    let value = |line: &str, key: &str| -> Option<String> {
        let rest = line.trim_start_matches([' ', '-']).strip_prefix(key)?;
        Some(rest.trim().trim_matches(['"', '\'']).to_owned())
    };

    let alerts = rules.lines().filter_map(|line| value(line, "alert:"));
    let leads = rules.lines().filter_map(|line| value(line, "runbook_url:"));
    let leads: Vec<String> = leads.collect();

    let nowhere: Vec<&String> = leads
        .iter()
        .filter(|lead| !headings.contains(*lead))
        .collect();
    assert!(nowhere.is_empty(), "docs/alerts.md lacks {nowhere:?}");
    let expected: Vec<String> = alerts.map(|alert| anchor(&alert)).collect();
    assert!(!expected.is_empty());
    assert_eq!(
        leads, expected,
        "each alert leads to the section of its name"
    );
}
