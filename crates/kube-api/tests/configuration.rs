//! `device-config.yaml` and the per-node file: the values read, and the errors for mistakes.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use crate::common;

use common::{all_vendors, recordings};
use kube_api::config::{CorePolicy, DeviceConfig, NodeOverrides, OperatingMode};
use kube_api::vendor::{Role, Switches, Vendors};
use proptest::prelude::*;

#[test]
fn every_configuration_of_the_recordings_is_read() {
    let mut read = 0;
    for entry in std::fs::read_dir(recordings().join("_configs")).unwrap() {
        let path = entry.unwrap().path();
        let config = DeviceConfig::parse(&std::fs::read_to_string(&path).unwrap())
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Vendors::new(config, all_vendors()).unwrap();
        read += 1;
    }
    assert!(read >= 8);
}

#[test]
fn defaults_without_a_file_are_the_references() {
    let theirs = std::fs::read_to_string(recordings().join("_configs/default.yaml")).unwrap();

    assert_eq!(
        DeviceConfig::standard(),
        DeviceConfig::parse(&theirs).unwrap()
    );
}

#[test]
fn values_are_read_from_every_section() {
    let config = DeviceConfig::standard();
    let nvidia = config.nvidia.unwrap();
    assert_eq!(
        nvidia.resource_memory_percentage_name,
        "nvidia.com/gpumem-percentage"
    );
    assert_eq!((nvidia.device_split_count, nvidia.default_gpu_num), (10, 1));
    assert_eq!(nvidia.gpu_core_policy, CorePolicy::Default);
    assert_eq!(nvidia.mig_profile_allowlist.len(), 9);
    assert_eq!(
        config.metax.unwrap().resource_v_memory_name,
        "metax-tech.com/vmemory"
    );
    assert_eq!(
        config.enflame.unwrap().resource_name_drs_gcu,
        "enflame.com/drs-gcu"
    );
    assert_eq!(config.iluvatars.len(), 4);
    let vnpus = config.vnpus.unwrap();
    let chip = vnpus
        .configs
        .iter()
        .find(|chip| chip.common_word == "Ascend310P")
        .unwrap();
    assert_eq!(
        (chip.memory_allocatable, chip.memory_capacity),
        (21527, 24576)
    );
    assert_eq!(
        (chip.templates[2].name.as_str(), chip.templates[2].ai_cpu),
        ("vir04", 4)
    );
    assert!(vnpus.configs.iter().any(|chip| chip.super_pod));
}

#[test]
fn missing_keys_of_a_section_are_as_in_the_reference() {
    // A chart that renders an empty value writes null.
    let text =
        "nvidia:\n  resourceCountName: x/gpu\n  runtimeClassName:\n  overwriteEnv: ~\nhygon:\n";
    let config = DeviceConfig::parse(text).unwrap();

    let nvidia = config.nvidia.as_ref().unwrap();
    assert_eq!((nvidia.memory_factor, nvidia.default_gpu_num), (1, 1));
    assert!(nvidia.resource_memory_name.is_empty());
    let nulls = "nvidia:\n  resourceCountName: x/gpu\n  deviceSplitCount:\n  memoryFactor:\n  deviceMemoryScaling:\n  defaultGPUNum:\n";
    assert_eq!(DeviceConfig::parse(nulls).unwrap().nvidia, config.nvidia);
    let vendors = Vendors::new(config, all_vendors()).unwrap();
    let found: Vec<_> = vendors
        .resources()
        .map(|(name, row, role)| (name, &*row.word, role))
        .collect();
    assert_eq!(found, [("x/gpu", "NVIDIA", Role::Count)]);
}

#[test]
fn ascend_and_iluvatar_are_looked_at_when_they_are_switched_on() {
    let off = Switches {
        ascend: false,
        iluvatar: false,
    };
    let words = |switches| -> Vec<String> {
        let vendors = Vendors::new(DeviceConfig::standard(), switches).unwrap();
        vendors.iter().map(|row| row.word.clone()).collect()
    };
    assert!(words(all_vendors()).contains(&"Ascend910B3".to_owned()));
    assert!(words(all_vendors()).contains(&"MR-V100".to_owned()));
    assert!(
        !words(off)
            .iter()
            .any(|word| word.starts_with("Ascend") || word == "MR-V100")
    );
    assert_eq!(words(off)[0], "NVIDIA");
}

#[test]
fn a_name_that_is_none_of_an_extended_resource_is_refused() {
    let check = |name: &str, expected: &str| {
        let text = format!("nvidia:\n  resourceCountName: {name}\n  defaultCores: 1\n");
        let config = DeviceConfig::parse(&text).unwrap();
        let error = Vendors::new(config, all_vendors()).unwrap_err().to_string();
        assert_eq!(error, expected);
    };
    let no_name =
        "is no name of an extended resource; write a domain and a word, such as nvidia.com/gpu";
    for name in [
        "cpu",
        "kubernetes.io/gpu",
        "/gpu",
        "nvidia.com/",
        "nvidia.com/g pu",
        "a/b/c",
    ] {
        check(name, &format!("{name:?} of NVIDIA: {no_name}"));
    }
    check(
        "",
        "nvidia.resourceCountName: is not set, so nothing of this section would count; write nvidia.com/gpu",
    );
}

fn error(text: &str) -> String {
    DeviceConfig::parse(text).unwrap_err().to_string()
}

#[test]
fn an_unknown_key_is_refused_with_its_place_and_the_nearest_one() {
    let text = error("nvidia:\n  resourceCountName: a\n  resourceMemoryNme: b\n");
    assert!(
        text.starts_with(
            "line 3, column 3: unknown key resourceMemoryNme, did you mean resourceMemoryName? (accepted: resourceCountName, "
        ),
        "{text}"
    );
    let text = error("nvidia:\n  resourceCountName: a\nhygn: {}\n");
    assert!(
        text.starts_with(
            "line 3, column 1: unknown key hygn, did you mean hygon? (accepted: nvidia, "
        ),
        "{text}"
    );
    let text = error(
        "vnpus:\n  configs:\n  - chipName: a\n    templates:\n    - name: t\n      aicore: 3\n",
    );
    assert!(
        text.starts_with(
            "line 6, column 7: unknown key aicore, did you mean aiCore? (accepted: name, "
        ),
        "{text}"
    );
    let text = error("nvidia:\n  something: 1\n");
    assert!(
        text.starts_with("line 2, column 3: unknown key something (accepted: "),
        "{text}"
    );
}

#[test]
fn invalid_configuration_is_refused_with_place_and_reason() {
    let check = |text: &str, expected: &str| {
        let error = error(text);
        assert!(error.starts_with(expected), "{text:?}: {error}");
    };
    let none = "no vendor is configured; write at least one section, such as nvidia";
    check("", none);
    check("{}", none);
    check("nvidia:\nhygon: null\n", none);
    check("nvidia: 3\n", "line 1, column 9: ");
    check("nvidia:\n  defaultMemory: lots\n", "line 2, column 18: ");
    check("nvidia:\n  defaultMemory: -1\n", "line 2, column 18: ");
    check(
        "nvidia:\n  gpuCorePolicy: sometimes\n",
        "line 2, column 18: ",
    );
    check("nvidia: [\n", "line ");
    check(
        "nvidia:\n  defaultCores: 1\nnvidia:\n  defaultCores: 2\n",
        "line 3, column 1: ",
    );
    check(
        "nvidia:\n  deviceMemoryScaling: -2\n",
        "nvidia.deviceMemoryScaling: -2 is no factor",
    );
    check(
        "nvidia:\n  deviceCoreScaling: .nan\n",
        "nvidia.deviceCoreScaling: NaN is no factor",
    );
    check(
        "nvidia:\n  defaultCores: 101\n",
        "nvidia.defaultCores: 101 is above 100",
    );
}

#[test]
fn a_node_has_what_its_entry_says_and_all_else_as_everywhere() {
    let overrides = NodeOverrides::parse(
        r#"{"nodeconfig": [{"name": "n1", "operatingmode": "mig", "devicesplitcount": 4,
            "devicememoryscaling": 1.8, "migstrategy": "none", "libcudaloglevel": 3,
            "filterdevices": {"uuid": ["GPU-1"], "index": [2]}}, {"name": "n2", "filterdevices": null}]}"#,
    )
    .unwrap();
    let nvidia = DeviceConfig::standard().nvidia.unwrap();

    let here = overrides.of("n1").unwrap();
    assert_eq!(here.operating_mode.map(OperatingMode::as_str), Some("mig"));
    assert_eq!(here.filter_devices.index, [2]);
    let applied = here.apply(&nvidia);
    assert_eq!(
        (applied.device_split_count, applied.lib_cuda_log_level),
        (4, 3)
    );
    assert!(applied.device_memory_scaling > 1.7 && applied.device_core_scaling < 1.1);
    assert_eq!(overrides.of("n2").unwrap().apply(&nvidia), nvidia);
    assert!(overrides.of("n3").is_none());
    assert_eq!(NodeOverrides::parse("").unwrap(), NodeOverrides::default());
}

#[test]
fn a_mistake_in_the_per_node_file_says_where_it_is() {
    let check = |text: &str, expected: &str| {
        let error = NodeOverrides::parse(text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{text:?}: {error}");
    };
    check(
        "{\"nodeconfig\": [{\"name\": \"n\",\n \"deviceSplitCount\": 1}]}",
        "line 2, column 2: unknown key deviceSplitCount, did you mean devicesplitcount?",
    );
    check(
        r#"{"nodeconfig": [{"name": "n"}, {"name": "n"}]}"#,
        "nodeconfig[1]: node \"n\" stands here a second time",
    );
    check(
        r#"{"nodeconfig": [{"devicecorescaling": -1}]}"#,
        "nodeconfig[0]: -1 is no factor",
    );
    check(
        r#"{"nodeconfig": [{"operatingmode": "vm"}]}"#,
        "line 1, column ",
    );
}

proptest! {
    #[test]
    fn no_text_makes_the_configuration_panic(text in "[\\PC\n :{}\\[\\]&*!|>-]{0,60}") {
        DeviceConfig::parse(&text).ok();
        NodeOverrides::parse(&text).ok();
    }

    #[test]
    fn a_standard_file_with_a_line_changed_makes_nothing_panic(
        at in any::<prop::sample::Index>(), line in "[a-zA-Z :{\\[\\]&*-]{0,20}",
    ) {
        const TEXT: &str = "nvidia:\n  resourceCountName: a\n  migProfileAllowlist:\n  - models: [ \"A30\" ]\n    profiles: [ \"1g\" ]\nvnpus:\n  configs:\n  - chipName: c\n    commonWord: w\n    resourceName: r\n    templates:\n    - name: t\n      memory: 5\n";
        let mut lines: Vec<&str> = TEXT.lines().collect();
        let at = at.index(lines.len());
        lines[at] = &line;

        if let Ok(config) = DeviceConfig::parse(&lines.join("\n")) {
            Vendors::new(config, all_vendors()).ok();
        }
    }
}
