//! How each vendor reads a container's amounts and annotations, in the scheduler and in the webhook: one line for
//! each rule.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test: a panic is its answer"
)]

use crate::common;

use kube_api::config::DeviceConfig;
use kube_api::object::{Container, Pod};
use kube_api::request::{self, Defaults};
use kube_api::vendor::Vendors;
use placement::{Ask, Compute, Memory};
use serde_json::{Value, json};

use common::MIB;

fn pod(limits: Value, annotations: Value) -> Pod {
    common::asking(limits, annotations)
}

/// One ask in a line: vendor, number of devices, memory in MiB or percent, compute, and anything unusual.
fn shown(ask: &Ask) -> String {
    let memory = match ask.memory {
        Memory::Bytes(bytes) => format!("{} MiB", bytes / MIB),
        Memory::Percent(percent) => format!("{percent}%"),
    };
    let compute = match ask.compute {
        Compute::Units(units) => units.to_string(),
        Compute::Percent(percent) => format!("{percent}%"),
        Compute::Lanes(u32::MAX) => "all lanes".to_owned(),
        Compute::Lanes(lanes) => format!("{lanes} lanes"),
        Compute::Unchecked => "unchecked".to_owned(),
        Compute::Gflops { .. } => "gflops".to_owned(),
    };
    let mut text = format!("{} x{} {memory} {compute}", ask.vendor, ask.count);
    if let Some(slices) = ask.slices {
        text += &format!(" slices={slices}");
    }
    if ask.arrange != placement::Arrange::Anyhow {
        text += &format!(" {:?}", ask.arrange);
    }
    if ask.together {
        text += " together";
    }
    if let Some(company) = &ask.company {
        text += &format!(" {}|{}", company.class, company.accepts.join("+"));
    }
    if ask.even {
        text += " even";
    }
    if let Some(mode) = &ask.select.mode {
        text += &format!(" mode={mode}");
    }
    text
}

fn asked(vendors: &Vendors, pod: &Pod) -> String {
    match request::request(pod, vendors, &Defaults::default()) {
        Ok(request) => {
            let asks = request
                .containers
                .iter()
                .flat_map(|container| &container.asks);
            asks.map(shown).collect::<Vec<_>>().join(", ")
        }
        Err(error) => format!("error: {error}"),
    }
}

#[test]
fn amounts_are_read_in_each_vendors_units_with_its_defaults() {
    let vendors = common::vendors();
    let cases = [
        (json!({"cambricon.com/vmlu": 1}), "MLU x1 100% 100"),
        (
            json!({"cambricon.com/vmlu": 2, "cambricon.com/mlu.smlu.vmemory": 20, "cambricon.com/mlu.smlu.vcore": 10}),
            "MLU x2 5120 MiB 10",
        ),
        (json!({"hygon.com/dcunum": 1}), "DCU x1 100% 100"),
        (
            json!({"hygon.com/dcunum": 2, "hygon.com/dcumem": "2k", "hygon.com/dcucores": 60}),
            "DCU x2 2000 MiB 60",
        ),
        (
            json!({"hygon.com/dcunum": 1, "hygon.com/dcumem": "4Gi", "hygon.com/dcucores": 160}),
            "DCU x1 4096 MiB 100",
        ),
        (json!({"iluvatar.ai/MR-V100-vgpu": 1}), "MR-V100 x1 100% 0"),
        (
            json!({"iluvatar.ai/BI-V150-vgpu": 2, "iluvatar.ai/BI-V150.vMem": 64, "iluvatar.ai/BI-V150.vCore": 200}),
            "BI-V150 x2 16384 MiB 100",
        ),
        (
            json!({"mthreads.com/vgpu": 1}),
            "Mthreads x1 100% 0 together",
        ),
        (
            json!({"mthreads.com/vgpu": 1, "mthreads.com/sgpu-memory": 16, "mthreads.com/sgpu-core": 8}),
            "Mthreads x1 8192 MiB 8 together",
        ),
        (
            json!({"mthreads.com/vgpu": 2, "mthreads.com/sgpu-memory": 192, "mthreads.com/sgpu-core": 32}),
            "Mthreads x2 49152 MiB 16 together",
        ),
        (
            json!({"metax-tech.com/gpu": 2}),
            "Metax-GPU x2 100% 100 Appraised",
        ),
        (json!({"enflame.com/gcu": 2}), "GCU x2 100 MiB 100"),
        (
            json!({"enflame.com/drs-gcu": 3}),
            "Enflame x1 0 MiB 0 slices=3",
        ),
        (
            json!({"enflame.com/gcu-memory": 20}),
            "Enflame x1 20480 MiB 0",
        ),
        (
            json!({"enflame.com/gcu-memory": 20480}),
            "Enflame x1 20480 MiB 0",
        ),
        (
            json!({"enflame.com/gcu-memory": "20Gi", "enflame.com/gcu-core": 40}),
            "Enflame x1 20480 MiB 40",
        ),
        (
            json!({"enflame.com/gcu-core": 101}),
            "error: container c: enflame.com/gcu-core: enflame.com/gcu-core must be in range (0,100]",
        ),
        (json!({"kunlunxin.com/xpu": 4}), "kunlun x4 100% 100 Wings"),
        (
            json!({"kunlunxin.com/vxpu": 1}),
            "XPU x1 98304 MiB 100 Wings even",
        ),
        (
            json!({"kunlunxin.com/vxpu": 1, "kunlunxin.com/vxpu-memory": 1000}),
            "XPU x1 24576 MiB 25 Wings even",
        ),
        (
            json!({"kunlunxin.com/vxpu": 2, "kunlunxin.com/vxpu-memory": 24577}),
            "XPU x2 49152 MiB 50 Wings even",
        ),
        (
            json!({"kunlunxin.com/vxpu": 1, "kunlunxin.com/vxpu-memory": 100_000}),
            "XPU x1 98304 MiB 100 Wings even",
        ),
        (
            json!({"aws.amazon.com/neuron": 4}),
            "AWSNeuron x4 0 MiB all lanes Row",
        ),
        (
            json!({"aws.amazon.com/neuroncore": 1}),
            "AWSNeuron x1 0 MiB 1 lanes Row",
        ),
        (
            json!({"aws.amazon.com/neuroncore": 2}),
            "AWSNeuron x1 0 MiB 2 lanes Row",
        ),
        (
            json!({"aws.amazon.com/neuroncore": 8}),
            "AWSNeuron x4 0 MiB 2 lanes Row",
        ),
        (json!({"aws.amazon.com/neuroncore": 0}), ""),
        (
            json!({"aws.amazon.com/neuroncore": 3}),
            "error: container c: aws.amazon.com/neuroncore: aws.amazon.com/neuroncore must be 1 or a multiple of 2, got 3",
        ),
        (json!({"amd.com/gpu": 1}), "AMD x1 100% 100%"),
        (
            json!({"amd.com/gpu": 2, "amd.com/gpumem": 4096, "amd.com/gpucores": 33}),
            "AMD x2 4096 MiB 33%",
        ),
        (
            json!({"amd.com/gpu": 1, "amd.com/gpucores": 0}),
            "error: container c: amd.com/gpucores: amd.com/gpucores must be an integer percentage between 1 and 100, got 0",
        ),
        (
            json!({"vastaitech.com/va": 2}),
            "Vastai x2 0 MiB 0 LargestGroups { worth: 1 }",
        ),
        (json!({"birentech.com/gpu": 2}), "Biren x2 0 MiB 0"),
        (
            json!({"huawei.com/Ascend910B3": 1}),
            "Ascend910B3 x1 100% 0 LargestGroups { worth: 10 }",
        ),
        (
            json!({"huawei.com/Ascend910B3": 1, "huawei.com/Ascend910B3-memory": 10_000}),
            "Ascend910B3 x1 16384 MiB 0 LargestGroups { worth: 10 }",
        ),
        (
            json!({"huawei.com/Ascend910B3": 1, "huawei.com/Ascend910B3-memory": 40_000}),
            "Ascend910B3 x1 65536 MiB 0 LargestGroups { worth: 10 }",
        ),
        (
            json!({"huawei.com/Ascend310P": 1, "huawei.com/Ascend310P-memory": 13_000}),
            "Ascend310P x1 21527 MiB 0",
        ),
        (
            json!({"huawei.com/Ascend910B3": 1, "huawei.com/Ascend910B3-memory": 70_000}),
            "error: container c: huawei.com/Ascend910B3-memory: huawei.com/Ascend910B3-memory 70000 is invalid: a device has 65536 MiB",
        ),
        (
            json!({"huawei.com/Ascend910C": 4}),
            "Ascend910C x4 100% 0 Modules { worth: 10 }",
        ),
        (
            json!({"huawei.com/Ascend910C": 3}),
            "error: container c: huawei.com/Ascend910C: Ascend910C device request must be 1 or 2*n, got 3",
        ),
    ];
    for (limits, expected) in cases {
        let text = limits.to_string();

        assert_eq!(asked(vendors, &pod(limits, json!({}))), expected, "{text}");
    }
}

#[test]
fn annotations_change_what_some_vendors_are_asked() {
    let vendors = common::vendors();
    let ascend = || json!({"huawei.com/Ascend910B3": 1, "huawei.com/Ascend910B3-memory": 10_000, "huawei.com/Ascend910B3-core": 30});
    let metax = |memory: Value, cores: u32| json!({"metax-tech.com/sgpu": 1, "metax-tech.com/vmemory": memory, "metax-tech.com/vcore": cores});
    let cases = [
        (
            ascend(),
            json!({"huawei.com/vnpu-mode": "hami-core"}),
            "Ascend910B3 x1 10000 MiB 30 LargestGroups { worth: 10 } mode=hami-core",
        ),
        (
            json!({"huawei.com/Ascend910C": 3}),
            json!({"huawei.com/vnpu-mode": "hami-core"}),
            "Ascend910C x3 100% 0 LargestGroups { worth: 10 } mode=hami-core",
        ),
        (
            json!({"huawei.com/Ascend910B3": 1}),
            json!({"huawei.com/vnpu-mode": "template"}),
            "Ascend910B3 x1 100% 0 LargestGroups { worth: 10 } mode=template",
        ),
        (
            metax(json!(4), 30),
            json!({}),
            "Metax-SGPU x1 4096 MiB 30 best-effort|best-effort",
        ),
        (
            metax(json!("512Mi"), 30),
            json!({"metax-tech.com/sgpu-qos-policy": "fixed-share"}),
            "Metax-SGPU x1 512 MiB 30 fixed-share|fixed-share",
        ),
        (
            metax(json!("2G"), 30),
            json!({}),
            "Metax-SGPU x1 1907 MiB 30 best-effort|best-effort",
        ),
        (
            json!({"metax-tech.com/sgpu": 2}),
            json!({}),
            "Metax-SGPU x2 100% 100 TightestGroup { weigh: false } exclusive|",
        ),
        (
            json!({"metax-tech.com/sgpu": 2}),
            json!({"metax-tech.com/sgpu-topology-aware": "true"}),
            "Metax-SGPU x2 100% 100 TightestGroup { weigh: true } exclusive|",
        ),
        (
            metax(json!(4), 30),
            json!({"metax-tech.com/sgpu-app-class": "online"}),
            "Metax-SGPU x1 4096 MiB unchecked Apart online|offline best-effort+offline fixed-share+offline burst-share+online",
        ),
        (
            metax(json!(4), 100),
            json!({"metax-tech.com/sgpu-app-class": "offline"}),
            "Metax-SGPU x1 4096 MiB 100 offline best-effort|offline best-effort",
        ),
    ];
    for (limits, annotations, expected) in cases {
        let text = format!("{limits} {annotations}");

        assert_eq!(
            asked(vendors, &pod(limits, annotations)),
            expected,
            "{text}"
        );
    }
}

#[test]
fn each_vendor_has_its_own_annotations_for_ids_and_models() {
    let vendors = common::vendors();
    let cases = [
        (
            "cambricon.com/vmlu",
            "cambricon.com/use-gpuuuid",
            "cambricon.com/nouse-gpuuuid",
        ),
        (
            "hygon.com/dcunum",
            "hygon.com/use-gpuuuid",
            "hygon.com/nouse-gpuuuid",
        ),
        (
            "iluvatar.ai/MR-V50-vgpu",
            "hami.io/use-MR-V50-uuid",
            "hami.io/no-use-MR-V50-uuid",
        ),
        (
            "mthreads.com/vgpu",
            "mthreads.ai/use-gpuuuid",
            "mthreads.ai/nouse-gpuuuid",
        ),
        (
            "metax-tech.com/sgpu",
            "metax-tech.com/use-gpuuuid",
            "metax-tech.com/nouse-gpuuuid",
        ),
        (
            "enflame.com/gcu",
            "enflame.com/use-gpuuuid",
            "enflame.com/nouse-gpuuuid",
        ),
        (
            "enflame.com/drs-gcu",
            "enflame.com/use-gpuuuid",
            "enflame.com/nouse-gpuuuid",
        ),
        (
            "kunlunxin.com/xpu",
            "baidu.com/use-gpuuuid",
            "baidu.com/nouse-gpuuuid",
        ),
        (
            "kunlunxin.com/xpu",
            "hami.io/use-xpu-uuid",
            "hami.io/no-use-xpu-uuid",
        ),
        (
            "kunlunxin.com/vxpu",
            "hami.io/use-xpu-uuid",
            "hami.io/no-use-xpu-uuid",
        ),
        (
            "aws.amazon.com/neuron",
            "aws.amazon.com/use-neuron-uuid",
            "aws.amazon.com/nouse-neuron-uuid",
        ),
        (
            "amd.com/gpu",
            "amd.com/use-gpu-uuid",
            "amd.com/nouse-gpu-uuid",
        ),
        (
            "vastaitech.com/va",
            "vastaitech.com/use-gpuuuid",
            "vastaitech.com/nouse-gpuuuid",
        ),
        (
            "birentech.com/gpu",
            "birentech.com/use-gpuuuid",
            "birentech.com/nouse-gpuuuid",
        ),
        (
            "huawei.com/Ascend310P",
            "hami.io/use-Ascend310P-uuid",
            "hami.io/no-use-Ascend310P-uuid",
        ),
    ];
    for (resource, wanted, unwanted) in cases {
        let pod = pod(json!({resource: 1}), json!({wanted: "a, b", unwanted: "c"}));

        let request = request::request(&pod, vendors, &Defaults::default()).unwrap();

        let select = &request.containers[0].asks[0].select;
        assert_eq!(select.use_ids, ["a", "b"], "{wanted}");
        assert_eq!(select.nouse_ids, ["c"], "{unwanted}");
    }
    for (resource, wanted, unwanted) in [
        (
            "hygon.com/dcunum",
            "hygon.com/use-dcutype",
            "hygon.com/nouse-dcutype",
        ),
        (
            "amd.com/gpu",
            "amd.com/use-gputype",
            "amd.com/nouse-gputype",
        ),
    ] {
        let pod = pod(
            json!({resource: 1}),
            json!({wanted: "Z100", unwanted: "K100"}),
        );

        let request = request::request(&pod, vendors, &Defaults::default()).unwrap();

        let select = &request.containers[0].asks[0].select;
        assert_eq!(
            (&select.use_types[..], &select.nouse_types[..]),
            (&["Z100".to_owned()][..], &["K100".to_owned()][..])
        );
    }
}

/// The webhook's result for a container: limits, requests, environment, annotations, or the refusal.
fn admitted(vendors: &Vendors, container: &Container, pod: &Pod) -> String {
    let mut parts = Vec::new();
    for row in vendors.iter() {
        match row.admit(container, pod) {
            Ok(edits) => {
                let of = |name: &str, map: &std::collections::BTreeMap<String, String>| {
                    map.iter()
                        .map(|(key, value)| format!("{name} {key}={value}"))
                        .collect::<Vec<_>>()
                };
                parts.extend(of("limit", &edits.limits));
                parts.extend(of("request", &edits.requests));
                parts.extend(
                    edits
                        .env
                        .iter()
                        .map(|(name, value)| format!("env {name}={value}")),
                );
                parts.extend(of("annotation", &edits.annotations));
                parts.extend(edits.runtime_class.map(|class| format!("class {class}")));
                parts.extend(edits.post_start.last().map(|_| "started".to_owned()));
            }
            Err(error) => return format!("refused: {error}"),
        }
    }
    parts.join(", ")
}

#[test]
fn webhook_completes_and_refuses_by_each_vendors_rules() {
    let vendors = common::vendors();
    let soft = || json!({"huawei.com/vnpu-mode": "hami-core"});
    let cases = [
        (json!({"hygon.com/dcunum": 1}), json!({}), ""),
        (
            json!({"hygon.com/dcunum": -1}),
            json!({}),
            "refused: container c: resources.limits[hygon.com/dcunum]: -1 is below 0; write 0 or more, or take it out",
        ),
        (
            json!({"iluvatar.ai/BI-V100-vgpu": 1}),
            json!({}),
            "env SOL_CONTINER_NAME=c",
        ),
        (
            json!({"mthreads.com/vgpu": 1}),
            json!({}),
            "limit mthreads.com/sgpu-core=16, limit mthreads.com/sgpu-memory=96",
        ),
        (
            json!({"mthreads.com/vgpu": 1, "mthreads.com/sgpu-memory": "16Gi"}),
            json!({}),
            "limit mthreads.com/sgpu-memory=32",
        ),
        (
            json!({"mthreads.com/vgpu": 3, "mthreads.com/sgpu-memory": 2}),
            json!({}),
            "limit mthreads.com/sgpu-core=48, limit mthreads.com/sgpu-memory=288, annotation mthreads.com/request-gpu-num=3",
        ),
        (
            json!({"metax-tech.com/sgpu": 1}),
            json!({}),
            "annotation metax-tech.com/sgpu-qos-policy=best-effort",
        ),
        (
            json!({"metax-tech.com/sgpu": 1}),
            json!({"metax-tech.com/sgpu-app-class": "online"}),
            "",
        ),
        (
            json!({"metax-tech.com/sgpu": 2}),
            json!({"metax-tech.com/sgpu-app-class": "offline"}),
            "refused: container c: metadata.annotations[metax-tech.com/sgpu-app-class]: app-class pod must request single device, got 2",
        ),
        (
            json!({"metax-tech.com/sgpu": 1}),
            json!({"metax-tech.com/sgpu-app-class": "urgent"}),
            "refused: container c: metadata.annotations[metax-tech.com/sgpu-app-class]: metax-tech.com/sgpu-app-class must be set one of [online, offline], got \"urgent\"",
        ),
        (
            json!({"enflame.com/drs-gcu": 3}),
            json!({}),
            "request enflame.com/drs-gcu=3",
        ),
        (
            json!({"enflame.com/drs-gcu": 0}),
            json!({}),
            "refused: container c: resources.limits[enflame.com/drs-gcu]: enflame.com/drs-gcu must be greater than 0",
        ),
        (
            json!({"enflame.com/gcu-memory": 20, "enflame.com/gcu-core": 40}),
            json!({}),
            "request enflame.com/gcu-core=40, request enflame.com/gcu-memory=20",
        ),
        (json!({"kunlunxin.com/vxpu": 1}), json!({}), ""),
        (
            json!({"amd.com/gpu": 1, "amd.com/gpucores": 101}),
            json!({}),
            "refused: container c: resources.limits[amd.com/gpucores]: amd.com/gpucores must be an integer percentage between 1 and 100, got 101",
        ),
        (
            json!({"huawei.com/Ascend910B3": 2}),
            json!({}),
            "limit huawei.com/Ascend910B3-memory=65536, request huawei.com/Ascend910B3-memory=65536",
        ),
        (
            json!({"huawei.com/Ascend910B3": 2, "huawei.com/Ascend910B3-memory": 100}),
            json!({}),
            "refused: container c: resources.limits[huawei.com/Ascend910B3-memory]: vNPU not supported for multiple devices: 2 devices with 16384 MiB each; ask for one device, or for whole ones",
        ),
        (
            json!({"huawei.com/Ascend910B3": 1, "huawei.com/Ascend910B3-memory": 100, "huawei.com/Ascend910B3-core": 10}),
            soft(),
            "limit huawei.com/Ascend910B3-memory=100, request huawei.com/Ascend910B3-memory=100, started",
        ),
        (
            json!({"huawei.com/Ascend910C": 1, "huawei.com/Ascend910C-memory": 20_000}),
            json!({}),
            "limit huawei.com/Ascend910C=2, limit huawei.com/Ascend910C-memory=32768, request huawei.com/Ascend910C-memory=32768",
        ),
        (
            json!({"huawei.com/Ascend910C": 2, "huawei.com/Ascend910C-memory": 32_768}),
            json!({}),
            "limit huawei.com/Ascend910C-memory=32768, request huawei.com/Ascend910C-memory=32768",
        ),
        (
            json!({"huawei.com/Ascend910C": 4, "huawei.com/Ascend910C-memory": 32_768}),
            json!({}),
            "refused: container c: resources.limits[huawei.com/Ascend910C-memory]: vNPU not supported for multiple devices: 4 devices with 32768 MiB each; ask for one device, or for whole ones",
        ),
        (
            json!({"huawei.com/Ascend910C": 1}),
            soft(),
            "limit huawei.com/Ascend910C-memory=65536, request huawei.com/Ascend910C-memory=65536, started",
        ),
    ];
    for (limits, annotations, expected) in cases {
        let text = format!("{limits} {annotations}");
        let pod = pod(limits, annotations);

        let found = admitted(vendors, &pod.spec.containers[0], &pod);

        assert_eq!(found, expected, "{text}");
    }
}

#[test]
fn chip_can_set_a_runtime_class_and_hide_devices_without_it() {
    let mut config = DeviceConfig::standard();
    let chips = &mut config.vnpus.as_mut().unwrap().configs;
    chips.retain(|chip| chip.common_word == "Ascend310P");
    chips[0].runtime_class_name = "ascend".to_owned();
    chips[0].overwrite_env = true;
    let vendors = Vendors::new(config, common::all_vendors()).unwrap();
    let pod = |limits| pod(limits, json!({}));
    let [with, without] = [pod(json!({"huawei.com/Ascend310P": 1})), pod(json!({}))];

    assert_eq!(
        admitted(&vendors, &with.spec.containers[0], &with),
        "limit huawei.com/Ascend310P-memory=21527, request huawei.com/Ascend310P-memory=21527, class ascend"
    );
    assert_eq!(
        admitted(&vendors, &without.spec.containers[0], &without),
        "env ASCEND_VISIBLE_DEVICES="
    );
}
