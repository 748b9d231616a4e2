//! Words of memory that a stream waits for or writes.

use std::sync::atomic::{AtomicU64, Ordering};

use cuda_api::driver::*;

use crate::base::border::{Done, invalid_if, read_all};

/// The operation of a stream on a word of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueOp {
    Wait {
        address: u64,
        value: u64,
        bits: u32,
        how: u32,
    },
    Write {
        address: u64,
        value: u64,
        bits: u32,
    },
}

impl ValueOp {
    pub(crate) fn wait(address: u64, value: u64, bits: u32, how: u32) -> Self {
        Self::Wait {
            address,
            value,
            bits,
            how,
        }
    }

    pub(crate) fn write(address: u64, value: u64, bits: u32) -> Self {
        Self::Write {
            address,
            value,
            bits,
        }
    }

    pub(crate) fn check(self) -> Done {
        let (Self::Wait { address, bits, .. } | Self::Write { address, bits, .. }) = self;
        invalid_if(address == 0 || !address.is_multiple_of(u64::from(bits / 8)))
    }
}

/// Reads a word that other threads, processes or streams write.
pub(crate) fn load(address: u64, bits: u32) -> u64 {
    let address = address as usize;
    if bits == 32 {
        // SAFETY: the program vouches for the address, which it has given to the driver; it is
        // aligned (checked), and read as an atomic since others write it.
        let word = unsafe {
            std::sync::atomic::AtomicU32::from_ptr(std::ptr::with_exposed_provenance_mut(address))
        };
        return word.load(Ordering::SeqCst).into();
    }
    // SAFETY: the program gave the driver this address; `check` refuses one that is not a multiple of eight.
    let word = unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(address)) };
    word.load(Ordering::SeqCst)
}

pub(crate) fn store(address: u64, value: u64, bits: u32) {
    let address = address as usize;
    if bits == 32 {
        // SAFETY: as for `load`.
        let word = unsafe {
            std::sync::atomic::AtomicU32::from_ptr(std::ptr::with_exposed_provenance_mut(address))
        };
        word.store(value as u32, Ordering::SeqCst);
        return;
    }
    // SAFETY: as for `load`.
    let word = unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(address)) };
    word.store(value, Ordering::SeqCst);
}

/// Reads a batch as a program passes it.
pub(crate) fn value_ops(ops: *mut CuStreamBatchMemOpParams, count: u32) -> Done<Vec<ValueOp>> {
    let mut read_ops = Vec::new();
    for op in read_all(ops.cast_const(), count as usize)? {
        let (address, value, how) = (op.address.0, op.value, op.flags);
        let op = match op.operation {
            1 => ValueOp::wait(address, value, 32, how),
            2 => ValueOp::write(address, value, 32),
            4 => ValueOp::wait(address, value, 64, how),
            5 => ValueOp::write(address, value, 64),
            // Flush of remote writes, memory barrier: nothing to order here.
            3 | 6 => continue,
            _ => return Err(CuResult::INVALID_VALUE),
        };
        op.check()?;
        read_ops.push(op);
    }
    Ok(read_ops)
}
