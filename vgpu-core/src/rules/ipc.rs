//! Rules: plain memory that processes share by IPC. Its charge is in the region's table, once, and every process that
//! may hold the memory holds the charge. A handle names the allocation that the pointer is in; a program that asks
//! again gets the first handle.

use cuda_api::{CuDevicePtr, CuIpcMemHandle, CuResult};
use vgpu_abi::region::{Family, Import, Kind};

use crate::base::log::line;
use crate::base::map::Then;
use crate::driver::query;
use crate::figures::sizes::{STEP, taken};
use crate::guest::border::{Address, OutPtr};
use crate::guest::manners::Verdict;
use crate::holdings::exports::{closed, ended, keep_handle, known_handle};
use crate::holdings::objects::{self, ImportOf, Objects};
use crate::holdings::pointers::{Charged, paged};
use crate::holdings::{locate, requests};
use crate::state::accounts::{Accounts, Destination};
use crate::state::entries::{Pointer, PointerName, Steps, TableName, key_of};
use crate::state::standing::{self, accounts};

/// Its charge moves to the shared table when it is exported.
#[derive(Clone, Copy)]
struct Exportable {
    bytes: u64,
    context: u64,
    device: u8,
    descriptors: u32,
}

fn exportable(pointer: Pointer) -> Option<Exportable> {
    match pointer {
        Pointer::Own {
            bytes,
            context,
            device,
            descriptors,
        } => Some(Exportable {
            bytes,
            context,
            device,
            descriptors,
        }),
        Pointer::Loose { bytes, device } => Some(Exportable {
            bytes,
            context: 0,
            device,
            descriptors: 0,
        }),
        _ => None,
    }
}

fn base_of(pointer: CuDevicePtr) -> u64 {
    query::relaxed(|| query::allocation_of(pointer)).unwrap_or(pointer.0)
}

/// Refuses a handle for managed memory, which other processes cannot open, and for memory that does not fit into the
/// table of shared objects.
pub(crate) fn before_get(call: &str, pointer: CuDevicePtr) -> Verdict<()> {
    let accounts = accounts!(Memory);
    if let Some((device, bytes)) = paged(&accounts, pointer) {
        return Verdict::Refuse(accounts.refuse_not_pageable(call, device, bytes));
    }
    let known = accounts.holdings().map.get(base_of(pointer));
    match known.and_then(exportable) {
        Some(memory) if !accounts.container.region.can_share() => {
            let device = usize::from(memory.device);
            Verdict::Refuse(accounts.refuse_export(call, device, memory.bytes))
        }
        _ => Verdict::Call(()),
    }
}

/// Others may open it from now on: its charge moves to the shared table, where the last holder
/// carries it.
pub(crate) fn after_get(
    (): (),
    result: CuResult,
    out: OutPtr<CuIpcMemHandle>,
    pointer: CuDevicePtr,
) -> Option<CuResult> {
    let accounts = standing::opened()?;
    let handle = out.read().filter(|_| result == CuResult::SUCCESS)?;
    let base = base_of(pointer);
    let _objects = Objects::lock(&accounts);
    let map = &accounts.holdings().map;
    let entry = map.get(base)?;
    if let Pointer::Exported { .. } = entry {
        // The driver need not write the same bytes again, and the others know the first ones.
        if let Some(first) = known_handle(&accounts, base).filter(|_| base == pointer.0) {
            out.write(CuIpcMemHandle { reserved: first });
        }
        return None;
    }
    let memory = exportable(entry)?;
    let key = key_of(&handle.reserved);
    let device = usize::from(memory.device);
    let region = &accounts.container.region;
    match region.share_as(Family::IPC, Some(key), device, memory.bytes, Kind::Buffer) {
        Ok(key) => {
            map.put(base, PointerName(TableName::Exported(key)));
            map.change(base, |entry: &mut Pointer| {
                // Another thread may have freed it meanwhile, and the driver may have given the address again.
                if let Some(Exportable {
                    bytes,
                    context,
                    device,
                    descriptors,
                }) = exportable(*entry)
                {
                    *entry = Pointer::Exported {
                        bytes,
                        context,
                        device,
                        descriptors,
                    };
                }
                (Then::Keep, ())
            });
            if base == pointer.0 {
                keep_handle(&accounts, base, &handle.reserved);
            }
            None
        }
        Err(error) => {
            line!(Warn, "cuIpcGetMemHandle: refused: {error}");
            out.write(CuIpcMemHandle { reserved: [0; 64] });
            Some(accounts.refuse_export("cuIpcGetMemHandle", device, memory.bytes))
        }
    }
}

/// Holds the memory before the driver opens it: the process that made it may die during the call.
pub(crate) fn before_open(handle: CuIpcMemHandle) -> Verdict<Import> {
    let accounts = accounts!(Memory);
    let key = key_of(&handle.reserved);
    match accounts
        .container
        .region
        .begin_import(Family::IPC, Some(key))
    {
        Ok(import) => Verdict::Call(import),
        Err(error) => {
            line!(Warn, "cuIpcOpenMemHandle: refused: {error}");
            Verdict::Refuse(CuResult::OUT_OF_MEMORY)
        }
    }
}

/// Memory of another process. If that process is of this container, this process now also holds its charge. Memory
/// that the container is not charged for yet is charged here, in full.
pub(crate) fn after_open<A: Address>(
    import: Import,
    result: CuResult,
    call: &str,
    out: OutPtr<A>,
) -> Option<CuResult> {
    let accounts = standing::opened()?;
    let Some(pointer) = out.read().filter(|_| result == CuResult::SUCCESS) else {
        objects::end_import(&accounts, &import);
        return None;
    };
    let pointer = pointer.number();
    let import = narrowed(&accounts, import, pointer);
    if import.objects > 0 {
        opened(&accounts, import, pointer);
        return None;
    }
    if let Some(Pointer::Opened { .. }) = accounts.holdings().map.get(pointer) {
        // Opened before, and charged then.
        opened(&accounts, import, pointer);
        return None;
    }
    let bytes = query::relaxed(|| query::allocation_bytes(CuDevicePtr(pointer)))?;
    let Destination::Device { device, .. } = locate::here(&accounts) else {
        return None;
    };
    match requests::reserve(&accounts, call, device, taken(bytes)) {
        Ok(charge) => {
            accounts.confirm(charge, Kind::Buffer);
            let mut import = import;
            // An import that holds no object is charged this.
            import.least = charge.bytes();
            import.first.device = device;
            opened(&accounts, import, pointer);
            None
        }
        Err(refused) => {
            query::close_ipc(pointer);
            Some(refused)
        }
    }
}

/// Notes an opened import, which is charged from here on.
fn opened(accounts: &Accounts, import: Import, pointer: u64) {
    let context = match locate::here(accounts) {
        Destination::Device { owner, .. } => owner,
        Destination::Elsewhere | Destination::Denied => 0,
    };
    let _objects = Objects::lock(accounts);
    let map = &accounts.holdings().map;
    let again = map.change(pointer, |entry| match entry {
        Pointer::Opened { times, .. } => {
            *times = times.saturating_add(1);
            (Then::Keep, true)
        }
        _ => (Then::Keep, false),
    });
    if again == Some(true) {
        // At the same address: opened once more, and the driver counts. An import without a name
        // may be of another object than before, so the later import stays.
        let before = objects::known_import(accounts, ImportOf::Pointer(pointer));
        match before {
            Some(before) if before.name.is_some() && before.name == import.name => {
                objects::end_import(accounts, &import);
            }
            // Charged in full when it was opened first.
            Some(before) if before.objects == 0 && import.objects == 0 => {}
            before => {
                if let Some(before) = before {
                    ended(accounts, &before);
                }
                objects::keep_import(accounts, ImportOf::Pointer(pointer), &import);
            }
        }
        return;
    }
    let in_the_table = if import.objects > 0 {
        import.first.bytes
    } else {
        0
    };
    let entry = Pointer::Opened {
        times: 1,
        context,
        device: u8::try_from(import.first.device).unwrap_or(u8::MAX),
        size: Steps::of(in_the_table),
    };
    map.put(pointer, entry);
    objects::keep_import(accounts, ImportOf::Pointer(pointer), &import);
}

/// If the handle does not identify the object, the opened size rules out all smaller objects.
fn narrowed(accounts: &Accounts, import: Import, pointer: u64) -> Import {
    if import.name.is_some() || import.objects == 0 {
        return import;
    }
    let bytes = query::relaxed(|| query::allocation_bytes(CuDevicePtr(pointer))).unwrap_or(0);
    // A small allocation lies in a block of the driver's, which is what is opened.
    let least = if bytes <= STEP { 0 } else { bytes };
    accounts.container.region.narrow_import(import, least)
}

/// Something opened that is about to be closed.
#[derive(Clone, Copy)]
pub(crate) struct Closing {
    until: u64,
}

/// Closing what was opened as often takes our hold away, once the driver has done so.
pub(crate) fn before_close(pointer: CuDevicePtr) -> Verdict<Closing> {
    let accounts = accounts!(Memory);
    let _objects = Objects::lock(&accounts);
    match objects::known_import(&accounts, ImportOf::Pointer(pointer.0)) {
        Some(import) => Verdict::Call(Closing {
            until: import.until,
        }),
        None => Verdict::Pass,
    }
}

pub(crate) fn after_close(closing: Closing, result: CuResult, pointer: CuDevicePtr) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    if result != CuResult::SUCCESS {
        return;
    }
    let _objects = Objects::lock(&accounts);
    let known = objects::known_import(&accounts, ImportOf::Pointer(pointer.0));
    if known.is_none_or(|import| import.until != closing.until) {
        // Another thread has opened something else at this address meanwhile.
        return;
    }
    let less = |entry: &mut Pointer| match entry {
        Pointer::Opened { times, .. } => {
            *times = times.saturating_sub(1);
            match *times {
                0 => (Then::Remove, true),
                _ => (Then::Keep, false),
            }
        }
        _ => (Then::Keep, false),
    };
    if accounts.holdings().map.change(pointer.0, less) == Some(true) {
        closed(&accounts, pointer.0);
    }
}

/// A context was destroyed: the driver has freed what it had exported, and closed what it had opened. Others hold on,
/// and so do descriptors.
pub(crate) fn context_gone(accounts: &Accounts, context: u64) {
    forget_all(accounts, |pointer| match *pointer {
        Pointer::Exported { context: of, .. }
        | Pointer::Opened { context: of, .. }
        | Pointer::Own {
            context: of,
            descriptors: 1..,
            ..
        } if of == context => Some(*pointer),
        _ => None,
    });
}

/// Forgets the pointers for which `gone` returns an entry: that entry is what is given back.
pub(super) fn forget_all(accounts: &Accounts, gone: impl Fn(&Pointer) -> Option<Pointer>) {
    const AT_ONCE: usize = 32;
    let map = &accounts.holdings().map;
    loop {
        let mut pointers = [None; AT_ONCE];
        let mut count = 0;
        map.sweep_of(|number, pointer: &mut Pointer| {
            match (pointers.get_mut(count), gone(pointer)) {
                (Some(place), Some(gone)) => {
                    *place = Some((number, gone));
                    count += 1;
                    true
                }
                _ => false,
            }
        });
        for (number, pointer) in pointers.iter().flatten() {
            pointer.forget(accounts, *number);
        }
        if count < AT_ONCE {
            return;
        }
    }
}
