//! Rules: memory of another API (imported external memory, resources of a graphics API), charged
//! as long as the import lasts; and memory that a descriptor keeps after the program has freed it.

use core::ffi::{c_int, c_void};

use cuda_api::{
    CuDevicePtr, CuExternalMemory, CuExternalMemoryHandleDesc, CuGraphicsResource, CuResult,
    CuStream,
};
use vgpu_abi::region::Kind;

use crate::base::map::Then;
use crate::driver::query;
use crate::figures::sizes::taken;
use crate::guest::border::{InPtr, OutPtr};
use crate::guest::manners::Verdict;
use crate::holdings::descriptors::put;
use crate::holdings::objects::Objects;
use crate::holdings::{locate, requests};
use crate::rules::memory::{self, Freeing, Reserved};
use crate::state::accounts::{self, Destination};
use crate::state::entries::{External, Graphics, KeptMemory, Mapping, Pointer};
use crate::state::standing::{self, accounts};

/// The program says how large it is.
pub(crate) fn before_import(
    call: &str,
    description: InPtr<CuExternalMemoryHandleDesc>,
) -> Verdict<Reserved> {
    let accounts = accounts!(Memory);
    match description.read().map(|it| it.size) {
        None | Some(0) => Verdict::Pass,
        Some(bytes) => memory::reserve_here(&accounts, call, taken(bytes)),
    }
}

pub(crate) fn after_import(reserved: Reserved, result: CuResult, out: OutPtr<CuExternalMemory>) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    match out.read() {
        Some(memory) if result == CuResult::SUCCESS => {
            let bytes = reserved.charge().bytes();
            let entry = reserved.external(bytes);
            memory::given(&accounts, reserved, memory as u64, bytes, entry);
        }
        _ => accounts.refund(reserved.charge()),
    }
}

pub(crate) fn before_destroy(memory: CuExternalMemory) -> Verdict<Freeing<External>> {
    let accounts = accounts!(Memory);
    memory::freeing(&accounts, memory as u64)
}

pub(crate) fn after_destroy(freeing: Freeing<External>, result: CuResult) {
    memory::after_free(freeing, result);
}

/// A resource is charged when it is first mapped, and until it is unregistered. Where there is no room
/// for it, it is unmapped again.
pub(crate) fn after_map_resources(
    result: CuResult,
    count: u32,
    resources: OutPtr<CuGraphicsResource>,
    stream: CuStream,
    per_thread: bool,
) -> Option<CuResult> {
    if result != CuResult::SUCCESS || resources.is_null() {
        return None;
    }
    let accounts = standing::opened()?;
    accounts.count(accounts::Group::Memory);
    let Destination::Device { device, owner } = locate::here(&accounts) else {
        return None;
    };
    for at in 0..count as usize {
        let resource = resources.at(at).read()?;
        let map = &accounts.holdings().map;
        if map.get::<Graphics>(resource as u64).is_some() {
            continue;
        }
        let Some(bytes) = query::relaxed(|| query::resource_bytes(resource)) else {
            continue;
        };
        match requests::reserve(&accounts, "cuGraphicsMapResources", device, taken(bytes)) {
            Ok(charge) => {
                accounts.confirm(charge, Kind::Buffer);
                let entry = Graphics {
                    bytes: charge.bytes(),
                    context: owner,
                    device: u8::try_from(device).unwrap_or(u8::MAX),
                };
                map.put(resource as u64, entry);
            }
            Err(refused) => {
                query::unmap_resources(count, resources.raw(), stream, per_thread);
                return Some(refused);
            }
        }
    }
    None
}

pub(crate) fn before_unregister(resource: CuGraphicsResource) -> Verdict<Freeing<Graphics>> {
    let accounts = accounts!(Memory);
    memory::freeing(&accounts, resource as u64)
}

pub(crate) fn after_unregister(freeing: Freeing<Graphics>, result: CuResult) {
    memory::after_free(freeing, result);
}

/// `cuMemGetHandleForAddressRange`: a DMA-BUF keeps its memory until it is closed.
pub(crate) fn after_range(result: CuResult, out: OutPtr<c_void>, pointer: CuDevicePtr) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    let Some(descriptor) = out
        .cast::<c_int>()
        .read()
        .filter(|_| result == CuResult::SUCCESS)
    else {
        return;
    };
    let base = query::relaxed(|| query::allocation_of(pointer)).unwrap_or(pointer.0);
    let objects = Objects::lock(&accounts);
    let map = &accounts.holdings().map;
    if let Some(mapping) = map.get::<Mapping>(base) {
        if objects.hold(mapping.object) {
            let keeps = KeptMemory::OfObject(mapping.object);
            put(&accounts, &objects, descriptor, keeps);
        }
        return;
    }
    let more = |entry: &mut Pointer| match entry {
        Pointer::Own { descriptors, .. } => {
            *descriptors = descriptors.saturating_add(1);
            (Then::Keep, true)
        }
        _ => (Then::Keep, false),
    };
    if map.change(base, more) == Some(true) {
        let keeps = KeptMemory::OfPointer(base);
        put(&accounts, &objects, descriptor, keeps);
    }
}
