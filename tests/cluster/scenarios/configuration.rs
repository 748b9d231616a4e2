//! Files outside the code that must agree with it.

use kube_api::config::DeviceConfig;
use kube_api::vendor::{Switches, Vendors};

#[test]
fn kube_scheduler_calls_us_for_every_standard_resource() {
    let switches = Switches {
        ascend: true,
        iluvatar: true,
    };
    let vendors = Vendors::new(DeviceConfig::standard(), switches).unwrap();
    let asked = include_str!("../kube-scheduler.yaml");

    let missing: Vec<String> = vendors
        .resources()
        .filter(|(name, ..)| !asked.contains(&format!("{{name: {name},")))
        .map(|(name, ..)| format!("  - {{name: {name}, ignoredByScheduler: true}}"))
        .collect();

    assert!(
        missing.is_empty(),
        "tests/cluster/kube-scheduler.yaml lacks\n{}",
        missing.join("\n")
    );
}
