//! The exchange table against recordings of the published one, and the names of devices that it knows.

use placement::exchange::{
    self, ExchangeError, Maker, NodeFigures, Profile, Table, Wanted, raw, spread_out,
};
use serde_json::Value;

const EXCHANGE: &str = include_str!("../../../tests/vectors/hcs/exchange.json");
const SCHEDULER: &str = include_str!("../../../tests/vectors/hcs/scheduler.json");

fn recorded(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// The tests' JSON reader may be off by the last bit of a float.
#[track_caller]
fn check_close(is: f64, recorded: &Value) {
    let recorded = recorded.as_f64().unwrap();
    assert!(
        (is - recorded).abs() <= recorded.abs() * 5e-16,
        "{is} {recorded}"
    );
}

fn profile(value: &Value) -> Profile {
    let number = |key: &str| value[key].as_f64().unwrap_or_default();
    Profile {
        vendor: value["vendor"].as_str().unwrap_or_default().to_owned(),
        model: value["model"].as_str().unwrap_or_default().to_owned(),
        fp16_tflops: number("fp16_tflops"),
        fp32_tflops: number("fp32_tflops"),
        vram_bytes: value["vram_bytes"].as_u64().unwrap_or_default(),
        mem_bw_gbps: number("mem_bw_gbps"),
        tdp_watts: u32::try_from(value["tdp_watts"].as_u64().unwrap_or_default()).unwrap(),
    }
}

#[test]
fn the_recorded_profiles_are_built_in() {
    let table = Table::default();
    let recorded = recorded(EXCHANGE);
    let profiles = recorded["profiles"].as_array().unwrap();
    assert!(profiles.len() > 5, "{}", profiles.len());
    for value in profiles {
        let expected = profile(value);

        assert_eq!(table.profile(&expected.model).unwrap(), &expected);
    }
}

#[test]
fn rates_are_the_recorded_ones() {
    let table = Table::default();
    let recorded = recorded(EXCHANGE);
    let mut compared = 0;
    for case in recorded["rates"].as_array().unwrap() {
        let (from, to) = (case["from"].as_str().unwrap(), case["to"].as_str().unwrap());
        // The recorded table returns a rate for a model that it does not know, to itself.
        if (from, to) == ("nope", "nope") {
            assert!(table.rate(from, to).is_err());
            continue;
        }
        match table.rate(from, to) {
            Ok(rate) => {
                check_close(rate.compute, &case["compute_ratio"]);
                check_close(rate.memory, &case["memory_ratio"]);
            }
            Err(error) => assert_eq!(Some(error.to_string().as_str()), case["error"].as_str()),
        }
        compared += 1;
    }
    assert!(compared > 70, "{compared}");
}

#[test]
fn amounts_are_normalised_as_recorded() {
    let table = Table::default();
    let (mut converted, mut normalised) = (0, 0);
    for case in recorded(EXCHANGE)["normalize"].as_array().unwrap() {
        if let Some(to) = case["to"].as_str() {
            let worth = table.convert_compute(100.0, to).unwrap();
            check_close(worth, &case["convert_compute_100"]);
            converted += 1;
            continue;
        }
        let model = case["model"].as_str().unwrap();
        // The recorded table has no Hygon. Ours finds it by the driver's name, and not by this exact name.
        if model == "Z100" {
            assert!(table.profile(model).is_err());
            continue;
        }
        let profile = table.profile(model).unwrap();
        let devices = u32::try_from(case["devices"].as_u64().unwrap()).unwrap();
        let worth = table.normalise(profile, devices);
        let score = worth.score(u64::from(devices) * profile.vram_bytes);

        check_close(worth.tflops, &case["normalized_tflops"]);
        check_close(worth.vram, &case["normalized_vram"]);
        check_close(score, &case["score_node_full_vram"]);
        normalised += 1;
    }
    assert!(converted > 2 && normalised > 5, "{converted} {normalised}");
}

#[test]
fn scores_are_the_recorded_ones() {
    let table = Table::default();
    let recorded = recorded(SCHEDULER);
    let mut compared = 0;
    for case in recorded["cases"].as_array().unwrap() {
        let requests = &case["requests"];
        let Some(scores) = case["score_raw"].as_object() else {
            continue;
        };
        let fp16 = requests["ai.compute/tflops-fp16"].as_str();
        // The recorded scheduler reads whole numbers, rounded up.
        let fp16 = fp16.map_or(0.0, |text| text.parse::<f64>().unwrap().ceil());
        let wanted = Wanted {
            anything: requests["ai.compute/vram"].is_string() || fp16 > 0.0,
            fp16_tflops: fp16,
        };
        let mut raws = Vec::new();
        let mut names = Vec::new();
        for (name, score) in scores {
            let nodes = recorded["nodes"].as_array().unwrap();
            let node = nodes.iter().find(|node| node["metadata"]["name"] == **name);
            // A node without a ComputeNode has no figures at all.
            let raw = match node {
                Some(node) => raw(&table, wanted, &figures(&table, node)),
                None if wanted.anything => 0,
                None => 50,
            };
            assert_eq!(Some(raw), score.as_i64(), "{name} {requests}");
            compared += 1;
            raws.push(raw);
            names.push(name);
        }
        for (name, score) in names.iter().zip(spread_out(&raws)) {
            let expected = case["score_normalized"][name.as_str()].as_i64();
            assert_eq!(Some(score), expected, "{name} {requests}");
        }
    }
    assert!(compared > 5, "{compared}");
}

fn figures<'t>(table: &'t Table, node: &Value) -> NodeFigures<'t> {
    let none = Vec::new();
    let devices = node["status"]["devices"].as_array().unwrap_or(&none);
    let sum = |key: &str| -> f64 { devices.iter().filter_map(|one| one[key].as_f64()).sum() };
    let count = u32::try_from(devices.len()).unwrap();
    let model = devices.first().and_then(|device| device["model"].as_str());
    NodeFigures {
        devices: count,
        profile: model.and_then(|model| table.profile(model).ok()),
        vram_bytes: node["spec"]["totalCapacity"]["vram"].as_u64().unwrap_or(0),
        vram_used_bytes: devices
            .iter()
            .filter_map(|one| one["vramUsed"].as_u64())
            .sum(),
        fp16_tflops: node["spec"]["totalCapacity"]["fp16Tflops"]
            .as_f64()
            .unwrap_or(0.0),
        health: if count == 0 {
            100.0
        } else {
            sum("healthScore") / f64::from(count)
        },
        fast_link: devices
            .iter()
            .any(|device| device["interconnectType"] == "NVLink"),
    }
}

#[test]
fn the_names_that_drivers_give_are_found() {
    const GIB: u64 = 1 << 30;
    let table = Table::default();
    let check = |maker, text: &str, memory_bytes: u64, expected: Option<&str>| {
        let found = table.find(maker, text, memory_bytes);
        assert_eq!(
            found.map(|profile| profile.model.as_str()),
            expected,
            "{text}"
        );
    };
    let nvidia = Maker::Nvidia;
    check(nvidia, "NVIDIA A100-SXM4-80GB", 0, Some("A100-80GB"));
    check(nvidia, "NVIDIA-NVIDIA A100-SXM4-40GB", 0, Some("A100-40GB"));
    check(nvidia, "A100-80G", 0, Some("A100-80GB"));
    check(nvidia, "NVIDIA A100-PCIE-40GB", 0, Some("A100-40GB"));
    check(nvidia, "NVIDIA A100", 81_920 << 20, Some("A100-80GB"));
    check(nvidia, "NVIDIA A100", 0, Some("A100-40GB"));
    check(nvidia, "NVIDIA H100 80GB HBM3", 0, Some("H100-80GB"));
    check(nvidia, "NVIDIA H100 PCIe", 0, Some("H100-PCIE-80GB"));
    check(nvidia, "NVIDIA H100 NVL", 0, Some("H100-NVL-94GB"));
    check(nvidia, "NVIDIA H200", 140 * GIB, Some("H200-141GB"));
    check(nvidia, "NVIDIA H20", 96 * GIB, Some("H20-96GB"));
    check(nvidia, "Tesla V100-SXM2-32GB", 0, Some("V100-32GB"));
    check(nvidia, "Tesla V100-PCIE-16GB", 0, Some("V100-16GB"));
    check(nvidia, "Tesla T4", 0, Some("T4-16GB"));
    check(nvidia, "NVIDIA L4", 0, Some("L4-24GB"));
    check(nvidia, "NVIDIA L40S", 0, Some("L40S-48GB"));
    check(nvidia, "NVIDIA GeForce RTX 4090", 0, Some("RTX4090"));
    check(nvidia, "NVIDIA GeForce RTX 5090", 0, Some("RTX5090-32GB"));
    check(nvidia, "NVIDIA B200", 0, Some("B200-180GB"));
    check(Maker::Huawei, "Ascend910B3", 0, Some("910B3"));
    check(Maker::Huawei, "Ascend910A", 0, Some("910A"));
    check(Maker::Huawei, "Ascend310P3", 0, Some("310P"));
    check(Maker::Hygon, "DCU K100_AI", 0, Some("K100-AI-64GB"));
    check(Maker::Hygon, "Z100L", 0, Some("Z100L-32GB"));
    check(Maker::Cambricon, "MLU370-X8", 0, Some("MLU370-X8-48GB"));
    check(Maker::Cambricon, "MLU590", 0, Some("MLU590-80GB"));
    // Other models of the family and of other makers are not confused with them.
    check(nvidia, "NVIDIA GeForce RTX 3090 Ti", 0, None);
    check(nvidia, "NVIDIA GeForce RTX 4090 Laptop GPU", 0, None);
    check(nvidia, "NVIDIA A100-SXM4-80GB MIG 1g.10gb", 0, None);
    check(nvidia, "Ascend910B3", 0, None);
    check(nvidia, "", 0, None);
}

#[test]
fn custom_profiles_add_and_replace() {
    let custom = |model: &str, fp16: f64, vram_bytes: u64| Profile {
        vendor: "hygon".to_owned(),
        model: model.to_owned(),
        fp16_tflops: fp16,
        fp32_tflops: 0.0,
        vram_bytes,
        mem_bw_gbps: 0.0,
        tdp_watts: 0,
    };
    let built_in = Table::default().profiles().len();

    let table = Table::with(&[custom("BW1000-64GB", 500.0, 64 << 30)], "").unwrap();
    assert_eq!(table.profiles().len(), built_in + 1);
    assert!(table.find(Maker::Hygon, "DCU BW1000", 0).is_some());

    let table = Table::with(&[custom("K100-64GB", 1.0, 64 << 30)], "").unwrap();
    assert_eq!(table.profiles().len(), built_in);
    assert_eq!(table.profile("K100-64GB").unwrap().fp16_tflops, 1.0);

    assert_eq!(
        Table::with(&[custom("M", 1.0, 0)], ""),
        Err(ExchangeError::NoMemory(0))
    );
    assert_eq!(
        Table::with(&[custom("M", 0.0, 5)], ""),
        Err(ExchangeError::NoCompute(0))
    );
    assert_eq!(
        Table::with(&[custom("M", f64::NAN, 5)], ""),
        Err(ExchangeError::NoAmount(0, "fp16_tflops"))
    );
    assert_eq!(
        Table::with(&[], "X"),
        Err(ExchangeError::NoBase("X".to_owned()))
    );
}

#[test]
fn each_built_in_model_finds_itself() {
    let table = Table::default();
    for (profile, _) in exchange::built_in() {
        let maker = Maker::parse(&profile.vendor).unwrap();
        let found = table.find(maker, &profile.model, profile.vram_bytes);
        assert_eq!(found, Some(&profile));
    }
}
