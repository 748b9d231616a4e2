//! Rules: memory whose creation, mapping, export and binding are separate calls. Such memory lives as long as a
//! handle, a mapping, a binding or an import holds it, and is charged that long, to the device that it was
//! requested on. `objects.rs` counts the holds of each object.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU32, Ordering};

use cuda_api::{CuDevice, CuDevicePtr, CuMemAllocationHandle, CuMemAllocationProp, CuResult};
use vgpu_abi::region::{Charge, Family, Import, Kind, SharedKey};

use crate::base::log::line;
use crate::base::map::Then;
use crate::driver::query;
use crate::figures::sizes::{mapped, size};
use crate::guest::border::{InPtr, OutPtr};
use crate::guest::manners::Verdict;
use crate::holdings::objects::{self, ImportOf, Objects};
use crate::holdings::{descriptors, location, requests};
use crate::state::accounts::{Accounts, Destination};
use crate::state::entries::{self, Mapping, ObjectKind, ObjectName, TableName, key_of};
use crate::state::standing::{self, accounts};

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR` and `CU_MEM_HANDLE_TYPE_FABRIC`.
const FILE_DESCRIPTOR: u32 = 1;
const FABRIC: u32 = 8;

/// The device that memory of these properties takes. Managed memory is charged wherever its pages are.
fn place_of(accounts: &Accounts, properties: &CuMemAllocationProp) -> Destination {
    location::place(accounts, properties.location, properties.kind)
}

pub(crate) fn before_create(
    call: &str,
    bytes: usize,
    properties: InPtr<CuMemAllocationProp>,
) -> Verdict<Charge> {
    let accounts = accounts!(Memory);
    let Some(properties) = properties.read() else {
        return Verdict::Pass;
    };
    if bytes == 0 {
        return Verdict::Pass;
    }
    match place_of(&accounts, &properties) {
        Destination::Device { device, .. } => {
            match requests::reserve(&accounts, call, device, mapped(size(bytes))) {
                Ok(charge) => Verdict::Call(charge),
                Err(result) => Verdict::Refuse(result),
            }
        }
        Destination::Elsewhere => Verdict::Pass,
        // The driver reports the error of a device that does not exist.
        Destination::Denied if location::names_no_device(properties.location, properties.kind) => {
            Verdict::Pass
        }
        Destination::Denied => Verdict::Refuse(CuResult::INVALID_DEVICE),
    }
}

pub(crate) fn after_create(charge: Charge, result: CuResult, out: OutPtr<CuMemAllocationHandle>) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    let Some(handle) = out.read().filter(|_| result == CuResult::SUCCESS) else {
        return accounts.refund(charge);
    };
    accounts.confirm(charge, Kind::Buffer);
    Objects::lock(&accounts).make(handle.0, charge.device(), charge.bytes(), ObjectKind::Own);
}

/// A reference that the driver is about to release.
#[derive(Clone, Copy)]
pub(crate) struct Releasing {
    handle: u64,
    number: u64,
}

/// The object stays held until the driver has released the reference, so that a call that maps the memory meanwhile
/// finds it.
pub(crate) fn before_release(handle: CuMemAllocationHandle) -> Verdict<Releasing> {
    let accounts = accounts!(Memory);
    match Objects::lock(&accounts).begin_release(handle.0) {
        Some(number) => Verdict::Call(Releasing {
            handle: handle.0,
            number,
        }),
        None => Verdict::Pass,
    }
}

pub(crate) fn after_release(releasing: Releasing, result: CuResult) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    let Releasing { handle, number } = releasing;
    Objects::lock(&accounts).end_release(number, handle, result == CuResult::SUCCESS);
}

/// Whether the driver says that a handle is that of memory on a device that the container has limits for.
pub(crate) fn is_of_a_device(accounts: &Accounts, handle: u64) -> bool {
    let properties = query::relaxed(|| query::allocation_properties(handle));
    properties.is_some_and(|it| !matches!(place_of(accounts, &it), Destination::Elsewhere))
}

/// A handle, mapping, binding or import that is about to hold memory.
#[derive(Clone, Copy)]
pub(crate) struct Holding {
    /// The object, or 0 for memory that is not charged.
    number: u64,
    /// Room for memory that was not charged.
    charge: Option<Charge>,
}

/// Holds the object of a handle before the driver is called, so that a release meanwhile does not
/// refund what is held. Memory that this process did not see made is charged as far as it is used.
fn hold(accounts: &Accounts, call: &str, handle: u64, bytes: u64) -> Verdict<Holding> {
    let objects = Objects::lock(accounts);
    let known = objects.of(handle);
    let (device, more) = match known {
        Some(known) => {
            objects.hold(known.number);
            let more = match known.kind {
                ObjectKind::Adopted => mapped(bytes).saturating_sub(known.bytes),
                _ => 0,
            };
            (usize::from(known.device), more)
        }
        None => {
            drop(objects);
            let holding = Holding {
                number: 0,
                charge: None,
            };
            let Some(properties) = query::allocation_properties(handle) else {
                // The driver does not know the handle either, and returns the error.
                return Verdict::Call(holding);
            };
            match place_of(accounts, &properties) {
                Destination::Device { device, .. } => (device, mapped(bytes)),
                Destination::Elsewhere => return Verdict::Call(holding),
                Destination::Denied => return Verdict::Refuse(CuResult::INVALID_DEVICE),
            }
        }
    };
    let number = known.map_or(0, |known| known.number);
    if more == 0 {
        return Verdict::Call(Holding {
            number,
            charge: None,
        });
    }
    match requests::reserve(accounts, call, device, more) {
        Ok(charge) => Verdict::Call(Holding {
            number,
            charge: Some(charge),
        }),
        Err(result) => {
            if number != 0 {
                Objects::lock(accounts).drop_hold(number);
            }
            Verdict::Refuse(result)
        }
    }
}

/// The driver refused the call, so nothing holds the memory.
fn not_held(accounts: &Accounts, holding: Holding) {
    if let Some(charge) = holding.charge {
        accounts.refund(charge);
    }
    if holding.number != 0 {
        Objects::lock(accounts).drop_hold(holding.number);
    }
}

/// The object that the driver holds now; 0: memory that is not charged.
fn held(accounts: &Accounts, holding: Holding, handle: u64, bytes: u64) -> u64 {
    let Holding { number, charge } = holding;
    if let Some(charge) = charge {
        accounts.confirm(charge, Kind::Buffer);
    }
    let grown = charge.map_or(0, |charge| charge.bytes());
    let objects = Objects::lock(accounts);
    match objects.of(handle) {
        Some(now) if now.number == number => {
            objects.grow(number, grown);
            return number;
        }
        // Another thread released it and was given the handle again: that one is held.
        Some(now) => {
            objects.hold(now.number);
            if number != 0 {
                objects.drop_hold(number);
            } else if let Some(charge) = charge {
                let region = &accounts.container.region;
                region.release(charge.device(), grown, Kind::Buffer);
            }
            return now.number;
        }
        // Released meanwhile, and held by us.
        None if number != 0 && objects.get(number).is_some() => return number,
        None => {}
    }
    if let Some(charge) = charge {
        let number = objects.make(handle, charge.device(), grown, ObjectKind::Adopted);
        objects.hold(number);
        return number;
    }
    if number == 0 {
        return 0;
    }
    // The object was freed, made again and released meanwhile: only this handle holds it now.
    drop(objects);
    let place = query::allocation_properties(handle).map(|it| place_of(accounts, &it));
    let Some(Destination::Device { device, .. }) = place else {
        return 0;
    };
    accounts
        .container
        .region
        .charge(device, mapped(bytes), Kind::Buffer);
    Objects::lock(accounts).make(handle, device, mapped(bytes), ObjectKind::Adopted)
}

pub(crate) fn before_map(
    call: &str,
    handle: CuMemAllocationHandle,
    offset: usize,
    bytes: usize,
) -> Verdict<Holding> {
    let accounts = accounts!(Memory);
    let end = size(offset).saturating_add(size(bytes));
    hold(&accounts, call, handle.0, end)
}

pub(crate) fn after_map(
    holding: Holding,
    result: CuResult,
    pointer: CuDevicePtr,
    bytes: usize,
    handle: CuMemAllocationHandle,
) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    if result != CuResult::SUCCESS {
        return not_held(&accounts, holding);
    }
    let number = held(&accounts, holding, handle.0, size(bytes));
    let mapping = Mapping {
        object: number,
        bytes: size(bytes),
        unmapping: 0,
    };
    let objects = Objects::lock(&accounts);
    if let (Some(before), _) = accounts.holdings().map.put(pointer.0, mapping) {
        objects.drop_hold(before.object);
    }
}

/// Marks of calls that take mappings off.
static UNMAPPINGS: AtomicU32 = AtomicU32::new(0);

/// Unknown mappings begin at multiples of this: the smallest page of any driver.
const LEAST_STEP: u64 = 64 << 10;
/// At most this many such pages are stepped over. (The driver unmaps a range that is mapped without a gap, and knows
/// nothing of larger ranges.)
const MOST_GAPS: u32 = 1 << 16;

/// Steps through a range from one known part to the next. `each` returns the length of the part that begins
/// at an address, if one does.
fn walk(from: u64, bytes: u64, mut each: impl FnMut(u64) -> Option<u64>) {
    let end = from.saturating_add(bytes);
    let mut at = from;
    let mut gaps = 0;
    while at < end && gaps < MOST_GAPS {
        let step = each(at).map_or_else(
            || {
                gaps += 1;
                LEAST_STEP
            },
            |length| length.max(1),
        );
        at = at.saturating_add(step);
    }
}

/// Marks the mappings that the call removes: after the call another thread may have mapped something there.
pub(crate) fn before_unmap(pointer: CuDevicePtr, bytes: usize) -> Verdict<u32> {
    let accounts = accounts!(Memory);
    // Relaxed: only has to differ from other calls in flight.
    let mark = UNMAPPINGS.fetch_add(1, Ordering::Relaxed) | 1 << 31;
    let _objects = Objects::lock(&accounts);
    walk(pointer.0, size(bytes), |at| {
        accounts.holdings().map.change(at, |mapping: &mut Mapping| {
            mapping.unmapping = mark;
            (Then::Keep, mapping.bytes)
        })
    });
    Verdict::Call(mark)
}

pub(crate) fn after_unmap(mark: u32, result: CuResult, pointer: CuDevicePtr, bytes: usize) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    if result != CuResult::SUCCESS {
        return;
    }
    let objects = Objects::lock(&accounts);
    walk(pointer.0, size(bytes), |at| {
        let found = accounts.holdings().map.change(at, |mapping: &mut Mapping| {
            let goes = mapping.unmapping == mark;
            let found = (goes.then_some(mapping.object), mapping.bytes);
            (if goes { Then::Remove } else { Then::Keep }, found)
        });
        let (number, length) = found?;
        if let Some(number) = number {
            objects.drop_hold(number);
        }
        Some(length)
    });
}

/// The driver gives the handle that the memory was mapped with, as one more reference.
pub(crate) fn after_retain(
    result: CuResult,
    out: OutPtr<CuMemAllocationHandle>,
    address: *mut c_void,
) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    let Some(handle) = out.read().filter(|_| result == CuResult::SUCCESS) else {
        return;
    };
    if Objects::lock(&accounts).refer(handle.0) {
        return;
    }
    // The driver returned another handle than before, so the object is the one whose memory is mapped at the address.
    let Some(base) = query::relaxed(|| query::allocation_of(CuDevicePtr(address as u64))) else {
        return;
    };
    let objects = Objects::lock(&accounts);
    if let Some(mapping) = accounts.holdings().map.get::<Mapping>(base) {
        objects.refer_as(mapping.object, handle.0);
    }
}

/// The name of exported memory that is the same in every process, if there is one: the file behind the descriptor.
/// (The real driver's descriptors are of its device node, which identifies no object.)
fn key_of_descriptor(descriptor: c_int) -> Option<SharedKey> {
    // SAFETY: a C struct of numbers, for which all zeros is a value.
    let mut file: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: writes one stat.
    if unsafe { libc::fstat(descriptor, &raw mut file) } != 0 {
        return None;
    }
    if file.st_mode & libc::S_IFMT != libc::S_IFREG {
        return None;
    }
    let name = [file.st_dev.to_ne_bytes(), file.st_ino.to_ne_bytes()];
    Some(key_of(name.as_flattened()))
}

fn family_of(kind: u32) -> Family {
    match kind {
        FILE_DESCRIPTOR => Family::DESCRIPTOR,
        FABRIC => Family::FABRIC,
        _ => Family::OTHER,
    }
}

/// Refuses to export memory while the table of shared objects is full: importers could not find it there.
pub(crate) fn before_export(call: &str, handle: CuMemAllocationHandle) -> Verdict<()> {
    let accounts = accounts!(Memory);
    let known = Objects::lock(&accounts).of(handle.0);
    match known {
        Some(known) if is_own(known.kind) && !accounts.container.region.can_share() => {
            let device = usize::from(known.device);
            Verdict::Refuse(accounts.refuse_export(call, device, known.bytes))
        }
        _ => Verdict::Call(()),
    }
}

fn is_own(kind: ObjectKind) -> bool {
    matches!(kind, ObjectKind::Own | ObjectKind::Adopted)
}

/// Other processes may import the memory from now on, so its charge moves to the shared table.
pub(crate) fn after_export(
    (): (),
    result: CuResult,
    out: OutPtr<c_void>,
    handle: CuMemAllocationHandle,
    kind: u32,
) -> Option<CuResult> {
    let accounts = standing::opened()?;
    if result != CuResult::SUCCESS {
        return None;
    }
    let key = match kind {
        FILE_DESCRIPTOR => out.cast::<c_int>().read().and_then(key_of_descriptor),
        FABRIC => out.cast::<[u8; 64]>().read().map(|name| key_of(&name)),
        _ => None,
    };
    let objects = Objects::lock(&accounts);
    let known = objects.of(handle.0)?;
    if known.kind == ObjectKind::Multicast {
        objects.set_kind(known.number, ObjectKind::MulticastShared);
    }
    if !is_own(known.kind) {
        drop(objects);
        keep_by_descriptor(&accounts, out, kind, known.number);
        return None;
    }
    let device = usize::from(known.device);
    let region = &accounts.container.region;
    match region.share_as(family_of(kind), key, device, known.bytes, Kind::Buffer) {
        Ok(key) => {
            let map = &accounts.holdings().map;
            map.put(known.number, ObjectName(TableName::Exported(key)));
            objects.set_kind(known.number, ObjectKind::Exported);
            drop(objects);
            keep_by_descriptor(&accounts, out, kind, known.number);
            None
        }
        Err(error) => {
            line!(Warn, "cuMemExportToShareableHandle: refused: {error}");
            take_back(out, kind);
            Some(accounts.refuse_export("cuMemExportToShareableHandle", device, known.bytes))
        }
    }
}

/// The real driver's descriptors keep memory as long as they are open. (A regular file is a simulated
/// driver's, where only an import does.)
fn keep_by_descriptor(accounts: &Accounts, out: OutPtr<c_void>, kind: u32, number: u64) {
    if kind == FILE_DESCRIPTOR
        && let Some(descriptor) = out.cast::<c_int>().read()
        && key_of_descriptor(descriptor).is_none()
    {
        descriptors::keeps_object(accounts, descriptor, number);
    }
}

/// Closes an export that the program has not seen yet.
fn take_back(out: OutPtr<c_void>, kind: u32) {
    match kind {
        FILE_DESCRIPTOR => {
            if let Some(descriptor) = out.cast::<c_int>().read() {
                // SAFETY: a descriptor that the driver made just now; the program does not get it.
                unsafe { libc::syscall(libc::SYS_close, descriptor) };
            }
            out.cast::<c_int>().write(-1);
        }
        FABRIC => out.cast::<[u8; 64]>().write([0; 64]),
        _ => {}
    }
}

/// Holds the memory before the driver imports it: the process that made it may die during the call.
pub(crate) fn before_import(name: InPtr<c_void>, kind: u32) -> Verdict<Import> {
    let accounts = accounts!(Memory);
    let key = match kind {
        // The descriptor itself is passed in the pointer's place.
        FILE_DESCRIPTOR => c_int::try_from(name.number().cast_signed())
            .ok()
            .and_then(key_of_descriptor),
        FABRIC => name.cast::<[u8; 64]>().read().map(|name| key_of(&name)),
        _ => None,
    };
    match accounts.container.region.begin_import(family_of(kind), key) {
        Ok(import) => Verdict::Call(import),
        Err(error) => {
            line!(Warn, "cuMemImportFromShareableHandle: refused: {error}");
            Verdict::Refuse(CuResult::OUT_OF_MEMORY)
        }
    }
}

/// Memory that another process made. If that process is of this container, both processes hold its charge. Memory
/// that the container is not charged for yet is charged here, in full.
pub(crate) fn after_import(
    import: Import,
    result: CuResult,
    out: OutPtr<CuMemAllocationHandle>,
) -> Option<CuResult> {
    let accounts = standing::opened()?;
    let objects = Objects::lock(&accounts);
    let Some(handle) = out.read().filter(|_| result == CuResult::SUCCESS) else {
        objects::end_import(&accounts, &import);
        return None;
    };
    if objects.refer(handle.0) {
        // The driver gave a handle that this process has already: one more reference.
        objects::end_import(&accounts, &import);
        return None;
    }
    if import.objects > 0 {
        let shared = import.first;
        let number = objects.make(handle.0, shared.device, shared.bytes, ObjectKind::Imported);
        objects::keep_import(&accounts, ImportOf::Object(number), &import);
        return None;
    }
    drop(objects);
    let Some((device, bytes)) = foreign(&accounts, handle.0) else {
        Objects::lock(&accounts).make(handle.0, 0, 0, ObjectKind::Foreign);
        return None;
    };
    match requests::reserve(&accounts, "cuMemImportFromShareableHandle", device, bytes) {
        Ok(charge) => {
            accounts.confirm(charge, Kind::Buffer);
            Objects::lock(&accounts).make(handle.0, device, bytes, ObjectKind::Adopted);
            None
        }
        Err(refused) => {
            query::release_memory(handle.0);
            Some(refused)
        }
    }
}

/// The device and the size of imported memory that no process of the container made. Memory whose
/// size cannot be known now is charged when it is mapped.
fn foreign(accounts: &Accounts, handle: u64) -> Option<(usize, u64)> {
    let properties = query::allocation_properties(handle)?;
    let Destination::Device { device, .. } = place_of(accounts, &properties) else {
        return None;
    };
    let bytes = query::relaxed(|| query::imported_bytes(handle, &properties));
    Some((device, bytes.map_or(0, mapped)))
}

/// A multicast object: addresses without memory of their own.
pub(crate) fn after_multicast(result: CuResult, out: OutPtr<CuMemAllocationHandle>) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    if let Some(handle) = out.read().filter(|_| result == CuResult::SUCCESS) {
        Objects::lock(&accounts).make(handle.0, 0, 0, ObjectKind::Multicast);
    }
}

/// The name of a binding to a multicast object: memory of each of its devices may be bound at the same
/// offset.
fn binding(object: u64, device: u8, offset: u64) -> u64 {
    let name = [
        object.to_ne_bytes(),
        u64::from(device).to_ne_bytes(),
        offset.to_ne_bytes(),
    ];
    let SharedKey([first, _]) = key_of(name.as_flattened());
    first
}

pub(crate) fn before_bind(
    call: &str,
    memory: CuMemAllocationHandle,
    offset: usize,
    bytes: usize,
) -> Verdict<MemoryToBind> {
    let accounts = accounts!(Memory);
    let end = size(offset).saturating_add(size(bytes));
    match hold(&accounts, call, memory.0, end) {
        Verdict::Call(holding) => Verdict::Call(MemoryToBind {
            holding,
            handle: memory.0,
        }),
        Verdict::Pass => Verdict::Pass,
        Verdict::Refuse(result) => Verdict::Refuse(result),
    }
}

/// Memory that is about to be bound.
#[derive(Clone, Copy)]
pub(crate) struct MemoryToBind {
    holding: Holding,
    handle: u64,
}

/// The program binds by address: the library holds the memory of the mapping at that address.
pub(crate) fn before_bind_address(pointer: CuDevicePtr) -> Verdict<MemoryToBind> {
    let accounts = accounts!(Memory);
    let base = query::relaxed(|| query::allocation_of(pointer)).unwrap_or(pointer.0);
    let objects = Objects::lock(&accounts);
    let mapping: Option<Mapping> = accounts.holdings().map.get(base);
    match mapping {
        Some(mapping) if objects.hold(mapping.object) => Verdict::Call(MemoryToBind {
            holding: Holding {
                number: mapping.object,
                charge: None,
            },
            handle: 0,
        }),
        _ => Verdict::Pass,
    }
}

pub(crate) fn after_bind(
    bound: MemoryToBind,
    result: CuResult,
    multicast: CuMemAllocationHandle,
    offset: usize,
    bytes: usize,
) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    let MemoryToBind { holding, handle } = bound;
    if result != CuResult::SUCCESS {
        return not_held(&accounts, holding);
    }
    let number = if handle == 0 {
        holding.number
    } else {
        held(&accounts, holding, handle, size(bytes))
    };
    let objects = Objects::lock(&accounts);
    let Some(memory) = objects.get(number) else {
        return;
    };
    let of = objects.of(multicast.0).map_or(0, |it| it.number);
    let bound = entries::Binding {
        object: number,
        bytes: size(bytes),
        multicast: u32::try_from(of & u64::from(u32::MAX)).unwrap_or(0),
    };
    let name = binding(multicast.0, memory.device, size(offset));
    if let (Some(before), _) = accounts.holdings().map.put(name, bound) {
        objects.drop_hold(before.object);
    }
}

/// One call may unbind what several have bound.
pub(crate) fn after_unbind(
    result: CuResult,
    multicast: CuMemAllocationHandle,
    device: CuDevice,
    offset: usize,
    bytes: usize,
) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    if result != CuResult::SUCCESS {
        return;
    }
    let Destination::Device { device, .. } = accounts.of_ordinal(device.0) else {
        return;
    };
    let device = u8::try_from(device).unwrap_or(u8::MAX);
    let objects = Objects::lock(&accounts);
    walk(size(offset), size(bytes), |at| {
        let name = binding(multicast.0, device, at);
        let bound: entries::Binding = accounts.holdings().map.take(name)?;
        objects.drop_hold(bound.object);
        Some(bound.bytes)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_steps_from_part_to_part_and_ends() {
        let mut seen = Vec::new();
        walk(10, 100, |at| {
            seen.push(at);
            Some(60)
        });
        assert_eq!(seen, [10, 70]);

        // The largest numbers, and parts of no length.
        let mut steps = 0u32;
        walk(u64::MAX - 3, u64::MAX, |_| {
            steps += 1;
            Some(0)
        });
        walk(0, u64::MAX, |_| {
            steps += 1;
            None
        });
        assert_eq!(steps, 3 + MOST_GAPS);
    }

    #[test]
    fn bindings_differ_by_object_device_and_offset() {
        let names = [
            binding(1, 0, 0),
            binding(2, 0, 0),
            binding(1, 1, 0),
            binding(1, 0, 1),
        ];
        for (at, name) in names.iter().enumerate() {
            assert!(!names.iter().skip(at + 1).any(|other| other == name));
        }
    }
}
