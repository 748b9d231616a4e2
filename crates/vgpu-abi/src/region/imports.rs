//! Imports of shared objects: which objects of the table an import may be, if its name identifies one, and if it does
//! not. An import whose name identifies no object holds every object that it may be.
//!
//! Never guesses in favour of the importer: what may be held is charged until the import ends.

use std::sync::atomic::Ordering;

use super::{Kind, ObjectCharge, Region, ShareError, SharedKey, bump, slot_tag_of};
use crate::crash::crash_point;
use crate::layout::{MAX_SHARED, SHARED_CHANGING, SHARED_FREE, SharedObject};
use crate::sys;

/// How objects are passed from process to process. An import is looked for in its family alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Family(pub(super) u64);

impl Family {
    /// Not known: found by every import.
    pub const ANY: Self = Self(0);
    /// By a handle of CUDA's IPC.
    pub const IPC: Self = Self(1);
    /// By a file descriptor.
    pub const DESCRIPTOR: Self = Self(2);
    /// By a name of the fabric.
    pub const FABRIC: Self = Self(3);
    /// By a way that a later driver has.
    pub const OTHER: Self = Self(4);
    /// By what a memory pool says of an allocation.
    pub const POOL: Self = Self(5);

    const UNNAMED: u64 = 1 << 63;

    /// Its number.
    #[must_use]
    pub fn number(self) -> u8 {
        u8::try_from(self.0 & 0xff).unwrap_or(0)
    }

    /// The family of a number.
    #[must_use]
    pub fn from_number(number: u8) -> Self {
        Self(number.into())
    }

    fn unnamed(self) -> Self {
        Self(self.0 | Self::UNNAMED)
    }

    fn is_unnamed(self) -> bool {
        self.0 & Self::UNNAMED != 0
    }

    fn is_in(self, family: Self) -> bool {
        let own = self.0 & !Self::UNNAMED;
        own == Self::ANY.0 || own == family.0
    }
}

/// The objects that an import holds in the table; a plain value that `end_import` takes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Import {
    /// How it came.
    pub family: Family,
    /// Its name, if an object of that name is in the table.
    pub name: Option<SharedKey>,
    /// No object that came later is held by it.
    pub until: u64,
    /// No smaller object is held by it, bytes.
    pub least: u64,
    /// How many objects it holds.
    pub objects: u32,
    /// The object of its name; of several, the last of them.
    pub first: ObjectCharge,
}

impl Import {
    /// May it be this object?
    fn may_be(&self, object: &SharedObject) -> bool {
        // Relaxed: none of these changes while the object is held.
        let family = Family(object.family.load(Ordering::Relaxed));
        if self.name == Some(object.key()) {
            return true;
        }
        family.is_in(self.family)
            && (self.name.is_none() || family.is_unnamed())
            && object.sequence.load(Ordering::Relaxed) <= self.until
            && object.bytes.load(Ordering::Relaxed) >= self.least
    }
}

impl Region {
    /// Later than every object in the table. Under the table's lock.
    pub(super) fn next_sequence(&self) -> u64 {
        let table = self.layout().shared.iter().take(self.high_water_shared());
        // Relaxed: the table's lock orders its changes.
        let last = table
            .filter(|object| object.is_live_at_all())
            .map(|object| object.sequence.load(Ordering::Relaxed));
        // A clock that a tenant has set to the end of time stays there: the container's own harm.
        sys::now_ns().max(last.max().unwrap_or(0).saturating_add(1))
    }

    /// Is there a place for one more shared object? Counts where there is none.
    #[must_use]
    pub fn can_share(&self) -> bool {
        let table = self.layout().shared.iter();
        // Relaxed: a look; what counts is looked at again under the lock.
        let free = table.take(MAX_SHARED).any(|object| {
            let state = object.state.load(Ordering::Relaxed);
            let unheld = || {
                object
                    .holders
                    .iter()
                    .all(|word| word.load(Ordering::Relaxed) == 0)
            };
            state == SHARED_FREE || state == SHARED_CHANGING && unheld()
        });
        if !free {
            bump(&self.layout().header.shared_full);
        }
        free
    }

    /// As [`Region::share`], for objects whose name may be missing, or be that of another object, too:
    /// such an object gets a name made by this library, and every import of the family may be it.
    ///
    /// # Errors
    /// See [`ShareError`]; the charge then stays with this process.
    pub fn share_as(
        &self,
        family: Family,
        name: Option<SharedKey>,
        device: usize,
        bytes: u64,
        kind: Kind,
    ) -> Result<SharedKey, ShareError> {
        self.share_by(device, bytes, kind, || {
            Ok(match name.filter(|name| self.find(*name).is_none()) {
                Some(name) => (name, family),
                None => (
                    // No hash of a name has an even first word.
                    SharedKey([self.next_sequence() << 1, family.0]),
                    family.unnamed(),
                ),
            })
        })
    }

    /// This process imports something: it holds the object of that name and those that have none, or,
    /// where no object has that name, all of the family. Each import wants an `end_import`.
    ///
    /// # Errors
    /// See [`ShareError`]; the import must then not be made.
    pub fn begin_import(
        &self,
        family: Family,
        name: Option<SharedKey>,
    ) -> Result<Import, ShareError> {
        let slot = slot_tag_of(self.begin_change()?).slot;
        let mut import = Import {
            family,
            name: name.filter(|name| self.find(*name).is_some()),
            // Under the lock: whatever is not in the table now is later.
            until: self.next_sequence(),
            least: 0,
            objects: 0,
            first: ObjectCharge::default(),
        };
        let mut edge = false;
        for (index, object) in self.layout().shared.iter().enumerate() {
            if index >= self.high_water_shared() || !object.is_live_at_all() {
                continue;
            }
            if import.may_be(object) {
                object.hold_by(slot);
                crash_point!("hold:held");
                match self.count_hold(index, object) {
                    Some(shared) => {
                        import.objects += 1;
                        if import.name.is_none_or(|name| name == object.key()) {
                            import.first = shared;
                        }
                    }
                    None => edge = true,
                }
            }
        }
        self.unlock_shared();
        crash_point!("shared:unlocked");
        if edge {
            // Four thousand million holds of one object: what could be counted stays held.
            return Err(ShareError::TableFull);
        }
        Ok(import)
    }

    /// The import turned out to have this many bytes: smaller objects are let go of.
    pub fn narrow_import(&self, import: Import, least: u64) -> Import {
        if import.name.is_some() || import.objects == 0 {
            return import;
        }
        let kept = |object: &SharedObject| object.bytes.load(Ordering::Relaxed) >= least;
        let dropped = self.drop_holds(&import, |object| !kept(object));
        match dropped {
            Ok(dropped) => Import {
                least,
                objects: import.objects.saturating_sub(dropped),
                ..import
            },
            Err(_) => import,
        }
    }

    /// The import has ended: it holds each of its objects once less.
    ///
    /// # Errors
    /// [`ShareError::TimedOut`] where the table could not be changed in time: the holds are gone all
    /// the same, and a later `tick` takes them out of the table.
    pub fn end_import(&self, import: &Import) -> Result<(), ShareError> {
        self.drop_holds(import, |_| true).map(|_| ())
    }

    fn drop_holds(
        &self,
        import: &Import,
        goes: impl Fn(&SharedObject) -> bool,
    ) -> Result<u32, ShareError> {
        if import.objects == 0 {
            return Ok(0);
        }
        let locked = self.begin_change();
        let mut dropped = 0;
        let table = self.layout().shared.iter().zip(&self.private().holds);
        for (object, hold) in table.take(self.high_water_shared()) {
            let mine = hold.count() > 0 && hold.key() == object.key();
            if !mine || !import.may_be(object) || !goes(object) {
                continue;
            }
            dropped += 1;
            // Relaxed: the in-process lock of the table orders them; without it, the sweep does.
            let left = hold.count.fetch_sub(1, Ordering::Relaxed).saturating_sub(1);
            if let (Ok(packed), 0) = (locked, left) {
                self.drop_holder(object, slot_tag_of(packed).slot);
            }
        }
        match locked {
            Ok(_) => {
                self.unlock_shared();
                Ok(dropped)
            }
            Err(error) => {
                // Relaxed: the sweep takes the table's lock.
                self.private().sweep.store(1, Ordering::Relaxed);
                Err(error)
            }
        }
    }
}
