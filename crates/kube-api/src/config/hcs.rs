//! The section `hcs`: whether requests of hcs.io are read, and their settings. They are not read if the section is
//! absent.

use std::collections::BTreeMap;

use placement::exchange::{Maker, Profile, Table};
use serde::Deserialize;

use super::ConfigError;
use crate::quantity::shortened;

/// Requests of hcs.io.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Hcs {
    /// The model in which amounts of compute are compared.
    pub base_model: String,
    /// Models in addition to the built-in ones, or in place of them.
    pub profiles: Vec<HcsProfile>,
    /// The vendor preferred by pods that name none: one of the four, or `any`.
    pub default_vendor: String,
    /// Whether vendors other than the preferred one are accepted, unless the pod says otherwise.
    pub allow_downgrade: bool,
    /// Whether pods get variables for the vendor's driver, unless the pod says otherwise.
    pub inject_driver: bool,
    /// Whether pods get the vendor's runtime class, unless the pod says otherwise.
    pub inject_runtime: bool,
    /// Whether images are replaced by `images`, unless the pod says otherwise.
    pub image_rebinding: bool,
    /// Runtime class by vendor; a missing vendor keeps the cluster's default.
    pub runtime_classes: BTreeMap<String, String>,
    /// Value of LD_LIBRARY_PATH by vendor; a missing vendor gets none.
    pub library_paths: BTreeMap<String, String>,
    /// The image replacements, by vendor. The first rule that matches is used.
    pub images: Vec<ImageRule>,
    /// The kube-scheduler profile of pods that accept devices of several vendors; it counts none of the vendors'
    /// resources. Empty: all pods have one profile.
    pub any_vendor_scheduler: String,
}

impl Default for Hcs {
    fn default() -> Self {
        Self {
            base_model: String::new(),
            profiles: Vec::new(),
            default_vendor: ANY.to_owned(),
            allow_downgrade: false,
            inject_driver: true,
            inject_runtime: true,
            image_rebinding: false,
            runtime_classes: BTreeMap::new(),
            library_paths: BTreeMap::new(),
            images: Vec::new(),
            any_vendor_scheduler: String::new(),
        }
    }
}

/// The word for any vendor.
pub const ANY: &str = "any";

/// A model of the exchange table.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HcsProfile {
    /// The maker, in lower case.
    pub vendor: String,
    /// Name of the model.
    pub model: String,
    /// TFLOPS of 16-bit floats.
    pub fp16_tflops: f64,
    /// TFLOPS of 32-bit floats.
    pub fp32_tflops: f64,
    /// Memory in bytes.
    pub vram_bytes: u64,
    /// Bandwidth of the memory in GB/s.
    pub mem_bw_gbps: f64,
    /// Power in W.
    pub tdp_watts: u32,
}

/// An image that is replaced for one vendor.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ImageRule {
    /// The vendor of the pods.
    pub vendor: String,
    /// The image in the pod. A `*` at its end matches any rest.
    pub from: String,
    /// The new image. A `*` at its end is replaced by the rest that `from` matched.
    pub to: String,
}

impl ImageRule {
    /// The replacement for this image; `None` if the rule does not match.
    pub fn apply(&self, image: &str) -> Option<String> {
        match self.from.strip_suffix('*') {
            Some(prefix) => {
                let rest = image.strip_prefix(prefix)?;
                Some(match self.to.strip_suffix('*') {
                    Some(to) => format!("{to}{rest}"),
                    None => self.to.clone(),
                })
            }
            None => (self.from == image).then(|| self.to.clone()),
        }
    }
}

impl Hcs {
    /// The exchange table.
    pub(crate) fn table(&self) -> Result<Table, ConfigError> {
        let profiles: Vec<Profile> = self
            .profiles
            .iter()
            .map(|profile| Profile {
                vendor: profile.vendor.clone(),
                model: profile.model.clone(),
                fp16_tflops: profile.fp16_tflops,
                fp32_tflops: profile.fp32_tflops,
                vram_bytes: profile.vram_bytes,
                mem_bw_gbps: profile.mem_bw_gbps,
                tdp_watts: profile.tdp_watts,
            })
            .collect();
        Table::with(&profiles, &self.base_model).map_err(|error| ConfigError::Wrong {
            key: "hcs.profiles".to_owned(),
            problem: error.to_string(),
        })
    }

    /// Checks for values that no pod could ever use.
    pub(super) fn judge(&self) -> Result<(), ConfigError> {
        let vendor = |key: String, word: &str| match Maker::parse(word) {
            Some(_) => Ok(()),
            None => Err(ConfigError::Wrong {
                key,
                problem: format!(
                    "{:?} is no vendor; write nvidia, huawei, hygon or cambricon",
                    shortened(word)
                ),
            }),
        };
        if self.default_vendor != ANY {
            vendor("hcs.defaultVendor".to_owned(), &self.default_vendor)?;
        }
        for (at, profile) in self.profiles.iter().enumerate() {
            vendor(format!("hcs.profiles[{at}].vendor"), &profile.vendor)?;
        }
        for word in self.runtime_classes.keys() {
            vendor("hcs.runtimeClasses".to_owned(), word)?;
        }
        for (word, path) in &self.library_paths {
            vendor("hcs.libraryPaths".to_owned(), word)?;
            if path.contains('$') {
                return Err(ConfigError::Wrong {
                    key: format!("hcs.libraryPaths.{word}"),
                    problem: format!(
                        "{:?} refers to a variable, which Kubernetes does not take from the image; write the whole path",
                        shortened(path)
                    ),
                });
            }
        }
        for (at, rule) in self.images.iter().enumerate() {
            vendor(format!("hcs.images[{at}].vendor"), &rule.vendor)?;
            if rule.from.is_empty() || rule.to.is_empty() {
                return Err(ConfigError::Wrong {
                    key: format!("hcs.images[{at}]"),
                    problem: "lacks from or to; write both".to_owned(),
                });
            }
        }
        self.table().map(drop)
    }
}
