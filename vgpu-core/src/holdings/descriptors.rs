//! Memory that a descriptor keeps after the program has freed it: which descriptors there are, what each
//! keeps, and which were closed.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use crate::base::map::{Entry, Space, Then};
use crate::holdings::objects::Objects;
use crate::state::accounts::Accounts;
use crate::state::entries::what;

/// `Space::Descriptor`: `bytes` tells the file, `owner` what it keeps, `maps` is the descriptor.
/// What it keeps is an object, or, as long as that is not freed, a pointer.
pub(crate) const KEEPS_OBJECT: u8 = 0;

pub(crate) const KEEPS_POINTER: u8 = 1;

/// Which file a descriptor is of; `None`: it is closed.
pub(crate) fn file_of(descriptor: c_int) -> Option<u64> {
    // SAFETY: a C struct of numbers, for which all zeros is a value.
    let mut file: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: writes one stat.
    if unsafe { libc::fstat(descriptor, &raw mut file) } != 0 {
        return None;
    }
    Some(file.st_ino ^ file.st_dev.rotate_left(40) ^ file.st_rdev.rotate_left(20))
}

pub(crate) fn put(
    accounts: &Accounts,
    objects: &Objects<'_>,
    descriptor: c_int,
    owner: u64,
    what: u8,
) {
    let (Some(file), Ok(number)) = (file_of(descriptor), u32::try_from(descriptor)) else {
        return;
    };
    let entry = Entry {
        bytes: file,
        owner,
        what,
        maps: number,
        ..Entry::default()
    };
    let holdings = accounts.holdings();
    // Relaxed: only says that a look is worth while.
    holdings.descriptors.fetch_add(1, Ordering::Relaxed);
    let (before, _) = holdings
        .map
        .put(Space::Descriptor, u64::from(number), entry);
    if let Some(before) = before {
        // The number was closed and is another file's now.
        ended(accounts, objects, &before);
    }
}

/// A descriptor is gone, and what it kept. Under the lock of the objects.
pub(crate) fn ended(accounts: &Accounts, objects: &Objects<'_>, entry: &Entry) {
    // Relaxed: as above.
    accounts
        .holdings()
        .descriptors
        .fetch_sub(1, Ordering::Relaxed);
    if entry.what == KEEPS_OBJECT {
        objects.drop_hold(entry.owner);
    } else {
        let less = |entry: &mut Entry| {
            entry.maps = entry.maps.saturating_sub(1);
            (Then::Keep, ())
        };
        let map = &accounts.holdings().map;
        map.change(Space::Pointer, entry.owner, less);
    }
}

/// A descriptor keeps an object, from which the objects' lock was let go.
pub(crate) fn keeps_object(accounts: &Accounts, descriptor: c_int, number: u64) {
    let objects = Objects::lock(accounts);
    if objects.hold(number) {
        put(accounts, &objects, descriptor, number, KEEPS_OBJECT);
    }
}

/// Plain memory is freed that a descriptor may keep: it is charged until that is closed.
pub(crate) fn freed(accounts: &Accounts, pointer: u64, entry: &Entry) {
    poll(accounts);
    let objects = Objects::lock(accounts);
    let number = objects.make_unnamed(usize::from(entry.device), entry.bytes, what::OWN);
    accounts.holdings().map.sweep(|space, kept| {
        if space == Space::Descriptor && kept.what == KEEPS_POINTER && kept.owner == pointer {
            kept.what = KEEPS_OBJECT;
            kept.owner = number;
        }
        false
    });
    // One hold for each descriptor, and the one that it was made with, which ends here.
    let kept = |space: Space, kept: &Entry| {
        space == Space::Descriptor && kept.what == KEEPS_OBJECT && kept.owner == number
    };
    let mut count = 0u32;
    accounts.holdings().map.sweep(|space, entry| {
        count += u32::from(kept(space, entry));
        false
    });
    for _ in 0..count {
        objects.hold(number);
    }
    objects.drop_hold(number);
}

/// Looks which descriptors were closed. True: something is charged no more.
pub(crate) fn poll(accounts: &Accounts) -> bool {
    const AT_ONCE: usize = 64;
    let holdings = accounts.holdings();
    // Relaxed: only says that a look is worth while.
    if holdings.descriptors.load(Ordering::Relaxed) == 0 {
        return false;
    }
    let objects = Objects::lock(accounts);
    let mut any = false;
    loop {
        let mut closed = [Entry::default(); AT_ONCE];
        let mut count = 0;
        holdings.map.sweep(|space, entry| {
            if space != Space::Descriptor {
                return false;
            }
            let now = c_int::try_from(entry.maps).ok().and_then(file_of);
            match closed.get_mut(count) {
                Some(place) if now != Some(entry.bytes) => {
                    *place = *entry;
                    count += 1;
                    true
                }
                _ => false,
            }
        });
        for entry in closed.iter().take(count) {
            ended(accounts, &objects, entry);
            any |= entry.what == KEEPS_OBJECT;
        }
        if count < AT_ONCE {
            return any;
        }
    }
}
