//! Numbers texts, so that the inner loops compare four bytes instead of strings. Texts are never removed: a table lives
//! as long as its snapshot.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

/// A text of a [`Names`] table. Two symbols of one table are equal exactly when their texts are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Symbol(u32);

impl Symbol {
    /// The empty text.
    pub const EMPTY: Self = Self(0);
    /// `kubernetes.io/hostname`.
    pub const HOSTNAME: Self = Self(1);
    /// `topology.kubernetes.io/zone`.
    pub const ZONE: Self = Self(2);
    /// `0.0.0.0`.
    pub const ANY_IP: Self = Self(3);
    /// `node.kubernetes.io/unschedulable`.
    pub const UNSCHEDULABLE: Self = Self(4);
    /// `topology.kubernetes.io/region`.
    pub const REGION: Self = Self(5);
    /// `failure-domain.beta.kubernetes.io/zone`.
    pub const OLD_ZONE: Self = Self(6);
    /// `failure-domain.beta.kubernetes.io/region`.
    pub const OLD_REGION: Self = Self(7);
}

const KNOWN: [&str; 8] = [
    "",
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "0.0.0.0",
    "node.kubernetes.io/unschedulable",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
];

/// Texts and their numbers.
#[derive(Debug, Clone)]
pub struct Names {
    texts: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, Symbol>,
}

impl Default for Names {
    fn default() -> Self {
        let mut names = Self {
            texts: Vec::new(),
            numbers: HashMap::new(),
        };
        for text in KNOWN {
            names.intern(text);
        }
        names
    }
}

impl Names {
    /// The number of this text, newly assigned if needed.
    pub fn intern(&mut self, text: &str) -> Symbol {
        if let Some(symbol) = self.numbers.get(text) {
            return *symbol;
        }
        let symbol = Symbol(u32::try_from(self.texts.len()).unwrap_or(u32::MAX));
        let text: Arc<str> = text.into();
        self.texts.push(Arc::clone(&text));
        self.numbers.insert(text, symbol);
        symbol
    }

    /// The number of this text; `None` if the table does not have it.
    pub fn known(&self, text: &str) -> Option<Symbol> {
        self.numbers.get(text).copied()
    }

    /// The text of this number; empty for a number of another table.
    pub fn text(&self, symbol: Symbol) -> &str {
        usize::try_from(symbol.0)
            .ok()
            .and_then(|at| self.texts.get(at))
            .map_or("", |text| text)
    }
}

/// Hashes a few small integers, with one multiplication each. The keys are numbers that this crate assigns, so an
/// attacker cannot choose them.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(u64::try_from(number).unwrap_or(u64::MAX));
    }
}

/// A map by symbols or other small numbers.
pub(crate) type Numbered<K, V> = HashMap<K, V, BuildHasherDefault<Mixer>>;
