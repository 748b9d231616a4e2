//! Rules: arrays and mipmapped arrays. Reserved by their description, and charged with the driver's
//! figure where it gives one.

use cuda_api::{CuArray, CuMipmappedArray, CuResult};

use crate::driver::query;
use crate::figures::shapes::Described;
use crate::figures::sizes::taken;
use crate::guest::border::{Address, InPtr, OutPtr};
use crate::guest::manners::Verdict;
use crate::holdings::sparse_charges;
use crate::rules::memory::{Freeing, Reserved, after_free, freeing, given, reserve_here};
use crate::state::entries::{Array, Steps};
use crate::state::standing::{self, accounts};

pub(crate) fn before_array<D: Described>(
    call: &str,
    description: InPtr<D>,
    levels: u32,
) -> Verdict<Reserved> {
    let accounts = accounts!(Memory);
    let Some(shape) = description.read().map(D::shape) else {
        return Verdict::Pass;
    };
    match shape.bytes(levels) {
        0 => Verdict::Pass,
        bytes => reserve_here(&accounts, call, bytes),
    }
}

/// Charges the driver's own figure if it has one for a format that the library can only estimate.
pub(crate) fn after_array<D: Described>(
    reserved: Reserved,
    result: CuResult,
    out: OutPtr<CuArray>,
    description: InPtr<D>,
) {
    let own = |array| query::array_bytes(array);
    after(reserved, result, out, description, own);
}

/// As [`after_array`].
pub(crate) fn after_mipmapped<D: Described>(
    reserved: Reserved,
    result: CuResult,
    out: OutPtr<CuMipmappedArray>,
    description: InPtr<D>,
) {
    let own = |array| query::mipmapped_bytes(array);
    after(reserved, result, out, description, own);
}

fn after<A: Address, D: Described>(
    reserved: Reserved,
    result: CuResult,
    out: OutPtr<A>,
    description: InPtr<D>,
    own: impl FnOnce(A) -> Option<u64>,
) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    let Some(array) = out.read().filter(|_| result == CuResult::SUCCESS) else {
        return accounts.refund(reserved.charge());
    };
    let shape = description.read().map(D::shape);
    let estimated = shape.is_some_and(|it| !it.is_exact());
    let bytes = estimated
        .then(|| query::relaxed(|| own(array)))
        .flatten()
        .map_or(reserved.charge().bytes(), taken);
    let least = shape.map_or(0, |it| it.least_bytes());
    let entry = reserved.array(bytes, Steps::of(bytes.saturating_sub(least)));
    given(&accounts, reserved, array.number(), bytes, entry);
}

/// An array about to be destroyed, with its charge; a sparse one has none of its own.
#[derive(Clone, Copy)]
pub(crate) struct FreeingArray {
    array: u64,
    charged: Option<Freeing<Array>>,
}

pub(crate) fn before_array_free<A>(array: *mut A) -> Verdict<FreeingArray> {
    let accounts = accounts!(Memory);
    let array = array.number();
    match freeing(&accounts, array) {
        Verdict::Call(freeing) => Verdict::Call(FreeingArray {
            array,
            charged: Some(freeing),
        }),
        _ if sparse_charges::has_parts(&accounts) => Verdict::Call(FreeingArray {
            array,
            charged: None,
        }),
        Verdict::Pass => Verdict::Pass,
        Verdict::Refuse(result) => Verdict::Refuse(result),
    }
}

pub(crate) fn after_array_free(going: FreeingArray, result: CuResult) {
    if let Some(freeing) = going.charged {
        after_free(freeing, result);
    }
    if let Some(accounts) = standing::opened().filter(|_| result == CuResult::SUCCESS) {
        sparse_charges::array_gone(&accounts, going.array);
    }
}
