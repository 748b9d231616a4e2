//! Prints the webhook configurations as a JSON `List`, for `kubectl apply -f -`:
//! `cargo run -p admission --example configuration -- https://127.0.0.1:9443 CA.pem [DEVICE-CONFIG.yaml]`

use std::io::Write as _;

use admission::{ClientConfig, Settings, webhook_configurations};
use base64::Engine as _;
use kube_api::config::DeviceConfig;
use kube_api::vendor::{Switches, Vendors};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let base = arguments
        .next()
        .ok_or("first argument: https://host:port")?;
    let ca_bundle = match arguments.next() {
        Some(file) => Some(base64::engine::general_purpose::STANDARD.encode(std::fs::read(file)?)),
        None => None,
    };
    let config = match arguments.next() {
        Some(file) => DeviceConfig::parse(&std::fs::read_to_string(file)?)?,
        None => DeviceConfig::standard(),
    };
    let switches = Switches {
        ascend: true,
        iluvatar: true,
    };
    let vendors = Vendors::new(config, switches)?;
    let (mutating, validating) = webhook_configurations(
        &vendors,
        &Settings::default(),
        &ClientConfig::Url { base, ca_bundle },
    );
    let list = serde_json::json!({
        "apiVersion": "v1",
        "kind": "List",
        "items": [mutating, validating],
    });
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, &list)?;
    writeln!(out)?;
    Ok(())
}
