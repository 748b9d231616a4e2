//! Declarations in code: a kernel with its parameters, a variable with its size.

use std::collections::BTreeMap;

use crate::elf::{u16_at, u32_at};

/// A kernel's declaration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Offset and size of each parameter in bytes.
    pub parameters: Vec<(usize, usize)>,
    /// Registers of a thread.
    pub registers: i32,
    /// Bytes of static shared memory.
    pub shared_bytes: i32,
    /// Bytes of local memory of a thread.
    pub local_bytes: i32,
    /// The maximum number of threads of a block, 0 if not declared.
    pub max_threads: i32,
}

/// A variable's declaration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Variable {
    /// Its size.
    pub bytes: usize,
    /// Whether it is in constant memory.
    pub constant: bool,
    /// It is managed memory.
    pub managed: bool,
}

impl Kernel {
    /// Reads a cubin's `.nv.info` section of this kernel.
    pub(crate) fn read_info(&mut self, info: &[u8]) {
        let mut parameters = BTreeMap::new();
        let mut at = 0;
        while let (Some(&format), Some(&attribute)) = (info.get(at), info.get(at + 1)) {
            let value = u16_at(info, at + 2).unwrap_or(0) as usize;
            let (payload, length) = match format {
                4 => (at + 4, value),
                _ => (at + 4, 0),
            };
            match attribute {
                // Parameter: index (4), ordinal (2), offset (2), size in the upper 14 bits of 4.
                0x17 if length >= 12 => {
                    let ordinal = u16_at(info, payload + 4).unwrap_or(0);
                    let offset = u16_at(info, payload + 6).unwrap_or(0) as usize;
                    let size = (u32_at(info, payload + 8).unwrap_or(0) >> 18) as usize;
                    parameters.insert(ordinal, (offset, size));
                }
                0x05 if length >= 12 => {
                    let dims = [0, 4, 8].map(|o| u32_at(info, payload + o).unwrap_or(1));
                    self.max_threads = dims.iter().product::<u32>() as i32;
                }
                _ => {}
            }
            at = payload + length;
        }
        if !parameters.is_empty() {
            self.parameters = parameters.into_values().collect();
        }
    }
}
