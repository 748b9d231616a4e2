//! Shared parts of several tests.
#![allow(dead_code, reason = "each test takes what it needs")]
#![allow(unreachable_pub, reason = "shared by tests")]

use std::path::PathBuf;
use std::sync::Arc;

use admission::{Admission, Context, Settings};
use kube_api::config::DeviceConfig;
use kube_api::vendor::{Switches, Vendors};
use serde_json::Value;

pub const ALL: Switches = Switches {
    ascend: true,
    iluvatar: true,
};

/// The directory of the reference's recordings.
pub fn recordings() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../tests/vectors/hami"]
        .iter()
        .collect()
}

/// The vendors of one of the recordings' device configurations.
pub fn vendors(config: &str) -> Vendors {
    let file = recordings()
        .join("_configs")
        .join(config)
        .with_extension("yaml");
    let text = std::fs::read_to_string(&file)
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    Vendors::new(DeviceConfig::parse(&text).unwrap(), ALL).unwrap()
}

pub fn admission(settings: Settings) -> Admission {
    Admission::new(Arc::new(vendors("default")), settings)
}

/// The context of a tenant that creates a pod.
pub fn create() -> Context<'static> {
    Context {
        namespace: "team-a",
        user: "alice",
        ..Context::default()
    }
}

/// The object with admission's patch applied.
pub fn patched(admission: &Admission, object: &Value, context: &Context<'_>) -> Value {
    let admitted = admission
        .admit(object, context)
        .unwrap_or_else(|denied| panic!("{object}: {denied}"));
    let mut after = object.clone();
    json_patch::patch(&mut after, &admitted.patch).unwrap();
    after
}
