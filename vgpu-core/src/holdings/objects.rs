//! Memory that is made apart from addresses: which objects there are, which handles name them, and how
//! often each is held (by handles, mappings and bindings). An object's charge ends with its last hold,
//! and a hold ends only when the driver has done its part. Every change stands under one lock of this
//! process, which is never held across a call of the driver.

use core::sync::atomic::Ordering;

use vgpu_abi::region::{Import, Kind, ObjectCharge, SharedKey};

use crate::base::lock::Held;
use crate::base::log::line;
use crate::base::map::{Entry, Space, Then};
use crate::state::accounts::Accounts;
use crate::state::entries::{object, what};

/// An object as a rule sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    /// Our number of it.
    pub(crate) number: u64,
    /// Charged, bytes.
    pub(crate) bytes: u64,
    /// Region index of its device.
    pub(crate) device: u8,
    /// The kind that it is charged as.
    pub(crate) what: u8,
}

/// The objects of this process, under their lock.
pub(crate) struct Objects<'a> {
    accounts: &'a Accounts,
    _held: Option<Held<'a>>,
}

/// `Space::Object`: `owner` counts the holds, `maps` those whose release is with the driver.
/// `Space::Handle`: `owner` is the object, `bytes` counts the references that the handle has.
impl<'a> Objects<'a> {
    pub(crate) fn lock(accounts: &'a Accounts) -> Self {
        Self {
            accounts,
            _held: accounts.holdings().objects_lock.hold(),
        }
    }

    /// A new object, held once by this handle.
    pub(crate) fn make(&self, handle: u64, device: usize, bytes: u64, what: u8) -> u64 {
        let number = self.make_unnamed(device, bytes, what);
        self.name(number, handle);
        number
    }

    /// A new object without a handle, held once.
    pub(crate) fn make_unnamed(&self, device: usize, bytes: u64, what: u8) -> u64 {
        let holdings = self.accounts.holdings();
        // Relaxed: only has to differ from all others.
        let number = holdings.objects_numbered.fetch_add(1, Ordering::Relaxed) + 1;
        let entry = Entry {
            bytes,
            owner: 1,
            device: u8::try_from(device).unwrap_or(u8::MAX),
            what,
            ..Entry::default()
        };
        let (_, kept) = holdings.map.put(Space::Object, number, entry);
        if !kept {
            line!(
                Error,
                "{bytes} bytes stay charged until the end: no memory to remember them in"
            );
        }
        number
    }

    /// The handle stands for this object from now on, with one reference.
    fn name(&self, number: u64, handle: u64) {
        let link = Entry {
            bytes: 1,
            owner: number,
            ..Entry::default()
        };
        let map = &self.accounts.holdings().map;
        let (before, _) = map.put(Space::Handle, handle, link);
        let back = Entry {
            owner: handle,
            ..Entry::default()
        };
        map.put(Space::HandleOf, number, back);
        if let Some(before) = before {
            self.renamed(before, number);
        }
    }

    /// The driver has given a handle again. What it stood for is gone, and the releases that are on
    /// their way back say so; other holds (a mapping made just then) may be of the new object, which
    /// then stays charged until the end.
    fn renamed(&self, before: Entry, number: u64) {
        let map = &self.accounts.holdings().map;
        let Some(old) = map.get(Space::Object, before.owner) else {
            return;
        };
        let gone = before.bytes.saturating_add(u64::from(old.maps));
        let other = old.owner.saturating_sub(gone);
        if other == 0 {
            map.take(Space::Object, before.owner);
            self.let_go(before.owner, &old);
            return;
        }
        line!(
            Warn,
            "a memory handle came again while its memory was mapped: {} bytes may stay charged",
            old.bytes
        );
        let more = |entry: &mut Entry| {
            entry.owner = entry.owner.saturating_add(other);
            (Then::Keep, ())
        };
        map.change(Space::Object, number, more);
    }

    /// The object that a handle stands for.
    pub(crate) fn of(&self, handle: u64) -> Option<Object> {
        let link = self.accounts.holdings().map.get(Space::Handle, handle)?;
        self.get(link.owner)
    }

    pub(crate) fn get(&self, number: u64) -> Option<Object> {
        let entry = self.accounts.holdings().map.get(Space::Object, number)?;
        Some(Object {
            number,
            bytes: entry.bytes,
            device: entry.device,
            what: entry.what,
        })
    }

    fn change<T>(&self, number: u64, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        let map = &self.accounts.holdings().map;
        map.change(Space::Object, number, |entry| (Then::Keep, change(entry)))
    }

    /// It is charged as something else from now on.
    pub(crate) fn set_what(&self, number: u64, what: u8) {
        self.change(number, |entry| entry.what = what);
    }

    /// It turned out to be larger, and that is charged.
    pub(crate) fn grow(&self, number: u64, bytes: u64) {
        self.change(number, |entry| {
            entry.bytes = entry.bytes.saturating_add(bytes);
        });
    }

    /// One hold more. (A count of 64 bits has no edge that calls could reach.)
    pub(crate) fn hold(&self, number: u64) -> bool {
        let more = |entry: &mut Entry| entry.owner = entry.owner.saturating_add(1);
        self.change(number, more).is_some()
    }

    /// One hold less; with the last one the charge ends.
    pub(crate) fn drop_hold(&self, number: u64) {
        let map = &self.accounts.holdings().map;
        let last = map.change(Space::Object, number, |entry| {
            entry.owner = entry.owner.saturating_sub(1);
            if entry.owner == 0 {
                (Then::Remove, Some(*entry))
            } else {
                (Then::Keep, None)
            }
        });
        if let Some(entry) = last.flatten() {
            self.let_go(number, &entry);
        }
    }

    /// One more reference of a handle, which holds its object. False: the handle is not charged.
    pub(crate) fn refer(&self, handle: u64) -> bool {
        let Some(object) = self.of(handle) else {
            return false;
        };
        let more = |link: &mut Entry| {
            link.bytes = link.bytes.saturating_add(1);
            (Then::Keep, ())
        };
        self.accounts
            .holdings()
            .map
            .change(Space::Handle, handle, more);
        self.hold(object.number)
    }

    /// The driver names an object by one more handle.
    pub(crate) fn refer_as(&self, number: u64, handle: u64) -> bool {
        let held = self.hold(number);
        if held {
            let link = Entry {
                bytes: 1,
                owner: number,
                ..Entry::default()
            };
            let (before, _) = self
                .accounts
                .holdings()
                .map
                .put(Space::Handle, handle, link);
            if let Some(before) = before {
                self.renamed(before, number);
            }
        }
        held
    }

    /// A reference of a handle is about to be released. Its hold stays until the driver has done so.
    pub(crate) fn begin_release(&self, handle: u64) -> Option<u64> {
        let less = |link: &mut Entry| {
            let held = link.bytes > 0;
            link.bytes = link.bytes.saturating_sub(1);
            (Then::Keep, held.then_some(link.owner))
        };
        let map = &self.accounts.holdings().map;
        let number = map.change(Space::Handle, handle, less).flatten()?;
        self.change(number, |entry| {
            entry.maps = entry.maps.saturating_add(1);
        })?;
        Some(number)
    }

    /// The driver has released the reference, or refused to.
    pub(crate) fn end_release(&self, number: u64, handle: u64, released: bool) {
        let less = |entry: &mut Entry| entry.maps = entry.maps.saturating_sub(1);
        if self.change(number, less).is_none() {
            // The driver gave the handle to another object meanwhile.
            return;
        }
        let map = &self.accounts.holdings().map;
        let again = !released
            && map
                .change(Space::Handle, handle, |link| {
                    let same = link.owner == number;
                    link.bytes = link.bytes.saturating_add(u64::from(same));
                    (Then::Keep, same)
                })
                .unwrap_or(false);
        if !again {
            self.drop_hold(number);
        }
    }

    /// Nothing holds it any more: the driver has freed it.
    fn let_go(&self, number: u64, entry: &Entry) {
        let map = &self.accounts.holdings().map;
        let region = &self.accounts.container.region;
        if let Some(handle) = map.take(Space::HandleOf, number) {
            let is_its = |link: &mut Entry| {
                let its = link.owner == number;
                (if its { Then::Remove } else { Then::Keep }, ())
            };
            map.change(Space::Handle, handle.owner, is_its);
        }
        match entry.what {
            what::SHARED => {
                if let Some(key) = map.take(Space::HandleKey, number)
                    && let Err(error) = region.unhold(SharedKey([key.bytes, key.owner]))
                {
                    line!(Warn, "a shared object stays charged: {error}");
                }
            }
            object::IMPORTED => {
                if let Some(import) = take_import(self.accounts, BY_HANDLE, number) {
                    end_import(self.accounts, &import);
                }
            }
            object::MULTICAST => self.unbind_all(number),
            object::FOREIGN | object::MULTICAST_SHARED => {}
            _ => region.release(usize::from(entry.device), entry.bytes, Kind::Buffer),
        }
    }

    /// A multicast object is gone, and its bindings with it.
    fn unbind_all(&self, multicast: u64) {
        const AT_ONCE: usize = 32;
        loop {
            let mut bound = [0u64; AT_ONCE];
            let mut count = 0;
            self.accounts.holdings().map.sweep(|space, entry| {
                let of_it = space == Space::Multicast
                    && multicast != 0
                    && u64::from(entry.maps) == multicast & u64::from(u32::MAX);
                match bound.get_mut(count) {
                    Some(place) if of_it => {
                        *place = entry.owner;
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

/// Where imports are remembered: by the object's number, or by the pointer of an IPC mapping.
pub(crate) const BY_HANDLE: [Space; 2] = [Space::HandleKey, Space::HandleUntil];

/// See [`BY_HANDLE`].
pub(crate) const BY_POINTER: [Space; 2] = [Space::SharedKey, Space::SharedUntil];

/// What an import's entry is (`Entry::what` in the first of the spaces): its object has a name.
const NAMED: u8 = 1;

/// Remembers what an import holds; `context` is that which it dies with.
pub(crate) fn keep_import(
    accounts: &Accounts,
    [key_space, until_space]: [Space; 2],
    number: u64,
    import: &Import,
    context: u64,
) {
    let SharedKey([first, second]) = import.name.unwrap_or(SharedKey([0; 2]));
    let map = &accounts.holdings().map;
    let key = Entry {
        bytes: first,
        owner: second,
        device: import.family.number(),
        what: u8::from(import.name.is_some()) * NAMED,
        maps: context_mark(context),
        ..Entry::default()
    };
    map.put(key_space, number, key);
    let until = Entry {
        bytes: import.until,
        owner: import.least,
        device: u8::try_from(import.first.device).unwrap_or(u8::MAX),
        maps: import.objects,
        ..Entry::default()
    };
    map.put(until_space, number, until);
}

/// A context's number as a mark in an entry.
pub(crate) fn context_mark(context: u64) -> u32 {
    u32::try_from(context).unwrap_or(u32::MAX)
}

fn import_of(key: &Entry, until: &Entry) -> Import {
    Import {
        family: vgpu_abi::region::Family::from_number(key.device),
        name: (key.what == NAMED).then_some(SharedKey([key.bytes, key.owner])),
        until: until.bytes,
        least: until.owner,
        objects: until.maps,
        first: ObjectCharge {
            device: usize::from(until.device),
            bytes: 0,
        },
    }
}

/// An import as it is remembered.
pub(crate) fn known_import(
    accounts: &Accounts,
    [key_space, until_space]: [Space; 2],
    number: u64,
) -> Option<Import> {
    let map = &accounts.holdings().map;
    let key = map.get(key_space, number)?;
    Some(import_of(&key, &map.get(until_space, number)?))
}

/// As [`known_import`], which forgets it.
pub(crate) fn take_import(
    accounts: &Accounts,
    [key_space, until_space]: [Space; 2],
    number: u64,
) -> Option<Import> {
    let map = &accounts.holdings().map;
    let key = map.take(key_space, number)?;
    Some(import_of(&key, &map.take(until_space, number)?))
}

/// It is held no more.
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
