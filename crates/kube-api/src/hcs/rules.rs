//! The rules for reading requests of hcs.io: the configuration, and the figures of models.

use std::sync::Arc;

use placement::exchange::{Maker, Table};

use crate::config::Hcs;

/// The rules for reading requests of hcs.io: their configuration, the exchange table, and the vendor of each family
/// of devices.
#[derive(Debug)]
pub struct Rules {
    /// The configuration.
    pub config: Hcs,
    /// Figures of models.
    pub table: Arc<Table>,
}

/// The maker of this vendor's devices; `None` for vendors that the API does not name.
pub fn maker_of(word: &str) -> Option<Maker> {
    match word {
        "NVIDIA" => Some(Maker::Nvidia),
        "DCU" => Some(Maker::Hygon),
        "MLU" => Some(Maker::Cambricon),
        word if word.starts_with("Ascend") => Some(Maker::Huawei),
        _ => None,
    }
}
