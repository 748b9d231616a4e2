//! Memory that is made apart from addresses: which objects there are, which handles name them, and how
//! often each is held (by handles, mappings and bindings). An object's charge ends with its last hold,
//! and a hold ends only when the driver has done its part. Every change is made under one lock of this process, which
//! is never held across a call of the driver.

use core::sync::atomic::Ordering;

use vgpu_abi::region::{Family, Import, Kind, ObjectCharge, SharedKey};

use crate::base::lock::LockGuard;
use crate::base::log::line;
use crate::base::map::Then;
use crate::state::accounts::Accounts;
use crate::state::entries::{
    Binding, Handle, HandleOf, ImportRange, MemoryObject, ObjectImport, ObjectKind, ObjectName,
    PointerImport, PointerName, TableName,
};

/// An object as a rule sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldObject {
    /// Our number of it.
    pub(crate) number: u64,
    /// Charged, bytes.
    pub(crate) bytes: u64,
    /// Region index of its device.
    pub(crate) device: u8,
    pub(crate) kind: ObjectKind,
}

/// The objects of this process, under their lock.
pub(crate) struct Objects<'a> {
    accounts: &'a Accounts,
    _held: Option<LockGuard<'a>>,
}

impl<'a> Objects<'a> {
    pub(crate) fn lock(accounts: &'a Accounts) -> Self {
        Self {
            accounts,
            _held: accounts.holdings().objects_lock.hold(),
        }
    }

    /// A new object, held once by this handle.
    pub(crate) fn make(&self, handle: u64, device: usize, bytes: u64, kind: ObjectKind) -> u64 {
        let number = self.make_unnamed(device, bytes, kind);
        self.name(number, handle);
        number
    }

    /// A new object without a handle, held once.
    pub(crate) fn make_unnamed(&self, device: usize, bytes: u64, kind: ObjectKind) -> u64 {
        let holdings = self.accounts.holdings();
        // Relaxed: only has to differ from all others.
        let number = holdings.objects_numbered.fetch_add(1, Ordering::Relaxed) + 1;
        let object = MemoryObject {
            bytes,
            holds: 1,
            releasing: 0,
            device: u8::try_from(device).unwrap_or(u8::MAX),
            kind,
        };
        let (_, kept) = holdings.map.put(number, object);
        if !kept {
            line!(
                Error,
                "{bytes} bytes stay charged until the end: no memory to remember them in"
            );
        }
        number
    }

    /// From now on the handle names this object, with one reference.
    fn name(&self, number: u64, handle: u64) {
        let map = &self.accounts.holdings().map;
        let (before, _) = map.put(handle, Handle::first(number));
        map.put(number, HandleOf(handle));
        if let Some(before) = before {
            self.renamed(before, number);
        }
    }

    /// The driver has given a handle again. Its earlier object is gone, and the releases that are on
    /// their way back say so; other holds (a mapping made just then) may be of the new object, which
    /// then stays charged until the end.
    fn renamed(&self, before: Handle, number: u64) {
        let map = &self.accounts.holdings().map;
        let Some(old) = map.get::<MemoryObject>(before.object) else {
            return;
        };
        let gone = before.references.saturating_add(u64::from(old.releasing));
        let other = old.holds.saturating_sub(gone);
        if other == 0 {
            map.take::<MemoryObject>(before.object);
            self.let_go(before.object, &old);
            return;
        }
        line!(
            Warn,
            "a memory handle came again while its memory was mapped: {} bytes may stay charged",
            old.bytes
        );
        self.change(number, |object| {
            object.holds = object.holds.saturating_add(other);
        });
    }

    /// The object that a handle names.
    pub(crate) fn of(&self, handle: u64) -> Option<HeldObject> {
        let handle: Handle = self.accounts.holdings().map.get(handle)?;
        self.get(handle.object)
    }

    pub(crate) fn get(&self, number: u64) -> Option<HeldObject> {
        let object: MemoryObject = self.accounts.holdings().map.get(number)?;
        Some(HeldObject {
            number,
            bytes: object.bytes,
            device: object.device,
            kind: object.kind,
        })
    }

    fn change<T>(&self, number: u64, change: impl FnOnce(&mut MemoryObject) -> T) -> Option<T> {
        let map = &self.accounts.holdings().map;
        map.change(number, |object| (Then::Keep, change(object)))
    }

    /// Changes the kind as which the object is charged.
    pub(crate) fn set_kind(&self, number: u64, kind: ObjectKind) {
        self.change(number, |object| object.kind = kind);
    }

    /// It turned out to be larger, and that is charged.
    pub(crate) fn grow(&self, number: u64, bytes: u64) {
        self.change(number, |object| {
            object.bytes = object.bytes.saturating_add(bytes);
        });
    }

    /// One hold more. (A count of 64 bits has no edge that calls could reach.)
    pub(crate) fn hold(&self, number: u64) -> bool {
        let more = |object: &mut MemoryObject| object.holds = object.holds.saturating_add(1);
        self.change(number, more).is_some()
    }

    /// One hold less; with the last one the charge ends.
    pub(crate) fn drop_hold(&self, number: u64) {
        let map = &self.accounts.holdings().map;
        let last = map.change(number, |object: &mut MemoryObject| {
            object.holds = object.holds.saturating_sub(1);
            if object.holds == 0 {
                (Then::Remove, Some(*object))
            } else {
                (Then::Keep, None)
            }
        });
        if let Some(object) = last.flatten() {
            self.let_go(number, &object);
        }
    }

    /// One more reference of a handle, which holds its object. False: the handle is not charged.
    pub(crate) fn refer(&self, handle: u64) -> bool {
        let Some(object) = self.of(handle) else {
            return false;
        };
        let more = |handle: &mut Handle| {
            handle.references = handle.references.saturating_add(1);
            (Then::Keep, ())
        };
        self.accounts.holdings().map.change(handle, more);
        self.hold(object.number)
    }

    /// The driver names an object by one more handle.
    pub(crate) fn refer_as(&self, number: u64, handle: u64) -> bool {
        let held = self.hold(number);
        if held {
            let map = &self.accounts.holdings().map;
            let (before, _) = map.put(handle, Handle::first(number));
            if let Some(before) = before {
                self.renamed(before, number);
            }
        }
        held
    }

    /// A reference of a handle is about to be released. Its hold stays until the driver has done so.
    pub(crate) fn begin_release(&self, handle: u64) -> Option<u64> {
        let less = |handle: &mut Handle| {
            let held = handle.references > 0;
            handle.references = handle.references.saturating_sub(1);
            (Then::Keep, held.then_some(handle.object))
        };
        let map = &self.accounts.holdings().map;
        let number = map.change(handle, less).flatten()?;
        self.change(number, |object| {
            object.releasing = object.releasing.saturating_add(1);
        })?;
        Some(number)
    }

    /// The driver has released the reference, or refused to.
    pub(crate) fn end_release(&self, number: u64, handle: u64, released: bool) {
        let less = |object: &mut MemoryObject| {
            object.releasing = object.releasing.saturating_sub(1);
        };
        if self.change(number, less).is_none() {
            // The driver gave the handle to another object meanwhile.
            return;
        }
        let map = &self.accounts.holdings().map;
        let again = !released
            && map
                .change(handle, |handle: &mut Handle| {
                    let same = handle.object == number;
                    handle.references = handle.references.saturating_add(u64::from(same));
                    (Then::Keep, same)
                })
                .unwrap_or(false);
        if !again {
            self.drop_hold(number);
        }
    }

    /// Nothing holds it any more: the driver has freed it.
    fn let_go(&self, number: u64, object: &MemoryObject) {
        let map = &self.accounts.holdings().map;
        let region = &self.accounts.container.region;
        if let Some(HandleOf(handle)) = map.take(number) {
            let is_its = |handle: &mut Handle| {
                let its = handle.object == number;
                (if its { Then::Remove } else { Then::Keep }, ())
            };
            map.change(handle, is_its);
        }
        match object.kind {
            ObjectKind::Exported => {
                if let Some(ObjectName(TableName::Exported(key))) = map.take(number) {
                    unhold(self.accounts, key);
                }
            }
            ObjectKind::Imported => {
                if let Some(import) = take_import(self.accounts, ImportOf::Object(number)) {
                    end_import(self.accounts, &import);
                }
            }
            ObjectKind::Multicast => self.unbind_all(number),
            ObjectKind::Foreign | ObjectKind::MulticastShared => {}
            ObjectKind::Own | ObjectKind::Adopted => {
                region.release(usize::from(object.device), object.bytes, Kind::Buffer);
            }
        }
    }

    /// A multicast object was released, which ends its bindings.
    fn unbind_all(&self, multicast: u64) {
        const AT_ONCE: usize = 32;
        loop {
            let mut bound = [0u64; AT_ONCE];
            let mut count = 0;
            let map = &self.accounts.holdings().map;
            map.sweep_of(|_, binding: &mut Binding| {
                let of_it = multicast != 0
                    && u64::from(binding.multicast) == multicast & u64::from(u32::MAX);
                match bound.get_mut(count) {
                    Some(place) if of_it => {
                        *place = binding.object;
                        count += 1;
                        true
                    }
                    _ => false,
                }
            });
            for &number in bound.iter().take(count) {
                self.drop_hold(number);
            }
            if count < AT_ONCE {
                return;
            }
        }
    }
}

impl Handle {
    /// A handle that the driver has given for this object.
    fn first(object: u64) -> Self {
        Self {
            object,
            references: 1,
        }
    }
}

/// Where an import is remembered.
#[derive(Clone, Copy)]
pub(crate) enum ImportOf {
    /// By the pointer of an IPC mapping.
    Pointer(u64),
    /// By the number of an object.
    Object(u64),
}

/// Remembers the objects that an import holds.
pub(crate) fn keep_import(accounts: &Accounts, of: ImportOf, import: &Import) {
    let family = import.family.number();
    let name = match import.name {
        Some(name) => TableName::Imported { name, family },
        None => TableName::Unnamed { family },
    };
    let range = ImportRange {
        until: import.until,
        least: import.least,
        objects: import.objects,
        device: u8::try_from(import.first.device).unwrap_or(u8::MAX),
    };
    let map = &accounts.holdings().map;
    match of {
        ImportOf::Pointer(pointer) => {
            map.put(pointer, PointerName(name));
            map.put(pointer, PointerImport(range));
        }
        ImportOf::Object(number) => {
            map.put(number, ObjectName(name));
            map.put(number, ObjectImport(range));
        }
    }
}

/// A context's number, short enough to share an entry with other fields.
pub(crate) fn context_mark(context: u64) -> u32 {
    u32::try_from(context).unwrap_or(u32::MAX)
}

/// The import; `None` for memory that was exported from here.
fn import_of(name: TableName, range: ImportRange) -> Option<Import> {
    let (name, family) = match name {
        TableName::Imported { name, family } => (Some(name), family),
        TableName::Unnamed { family } => (None, family),
        TableName::Exported(_) => return None,
    };
    Some(Import {
        family: Family::from_number(family),
        name,
        until: range.until,
        least: range.least,
        objects: range.objects,
        first: ObjectCharge {
            device: usize::from(range.device),
            bytes: 0,
        },
    })
}

/// An import as it is remembered.
pub(crate) fn known_import(accounts: &Accounts, of: ImportOf) -> Option<Import> {
    let map = &accounts.holdings().map;
    let (name, range) = match of {
        ImportOf::Pointer(pointer) => (
            map.get::<PointerName>(pointer)?.0,
            map.get::<PointerImport>(pointer)?.0,
        ),
        ImportOf::Object(number) => (
            map.get::<ObjectName>(number)?.0,
            map.get::<ObjectImport>(number)?.0,
        ),
    };
    import_of(name, range)
}

/// As [`known_import`], which forgets it.
pub(crate) fn take_import(accounts: &Accounts, of: ImportOf) -> Option<Import> {
    let map = &accounts.holdings().map;
    let (name, range) = match of {
        ImportOf::Pointer(pointer) => (
            map.take::<PointerName>(pointer)?.0,
            map.take::<PointerImport>(pointer)?.0,
        ),
        ImportOf::Object(number) => (
            map.take::<ObjectName>(number)?.0,
            map.take::<ObjectImport>(number)?.0,
        ),
    };
    import_of(name, range)
}

/// Ends the import's hold.
pub(crate) fn end_import(accounts: &Accounts, import: &Import) {
    if let Err(error) = accounts.container.region.end_import(import) {
        line!(Warn, "a shared object stays charged: {error}");
    }
}

pub(crate) fn unhold(accounts: &Accounts, key: SharedKey) {
    if let Err(error) = accounts.container.region.unhold(key) {
        line!(Warn, "a shared object stays charged: {error}");
    }
}
