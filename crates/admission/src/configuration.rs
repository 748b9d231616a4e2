//! The webhook's own configuration, written from the device configuration. Never sends it.
use crate::settings::Settings;
use kube_api::vendor::Vendors;
use serde_json::{Value, json};

/// Where an API server finds the webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientConfig {
    /// Behind a Service of the cluster.
    Service {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its port.
        port: u16,
        /// The certificates to trust, as PEM text in base64; none leaves out what somebody else fills in.
        ca_bundle: Option<String>,
    },
    /// At an address.
    Url {
        /// `https://host:port`, without a path.
        base: String,
        /// The certificates to trust, as PEM text in base64.
        ca_bundle: Option<String>,
    },
}

/// The `MutatingWebhookConfiguration` and the `ValidatingWebhookConfiguration`.
pub fn webhook_configurations(
    vendors: &Vendors,
    settings: &Settings,
    client: &ClientConfig,
) -> (Value, Value) {
    let _ = (vendors, settings, client);
    (json!({}), json!({}))
}
