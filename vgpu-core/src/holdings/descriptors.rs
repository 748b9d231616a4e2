//! Memory that a descriptor keeps after the program has freed it: which descriptors there are, what each
//! keeps, and which were closed.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use crate::base::map::Then;
use crate::holdings::objects::Objects;
use crate::state::accounts::Accounts;
use crate::state::entries::{Descriptor, KeptMemory, ObjectKind, Pointer};

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
    keeps: KeptMemory,
) {
    let (Some(file), Ok(number)) = (file_of(descriptor), u64::try_from(descriptor)) else {
        return;
    };
    let holdings = accounts.holdings();
    // Relaxed: only says that a look is worth while.
    holdings.descriptors.fetch_add(1, Ordering::Relaxed);
    let (before, _) = holdings.map.put(number, Descriptor { file, keeps });
    if let Some(before) = before {
        // The number was closed and is another file's now.
        ended(accounts, objects, before.keeps);
    }
}

/// A descriptor was closed, and keeps this memory no longer. Under the lock of the objects.
fn ended(accounts: &Accounts, objects: &Objects<'_>, kept: KeptMemory) {
    // Relaxed: as above.
    accounts
        .holdings()
        .descriptors
        .fetch_sub(1, Ordering::Relaxed);
    match kept {
        KeptMemory::OfObject(number) => objects.drop_hold(number),
        KeptMemory::OfPointer(pointer) => {
            let less = |entry: &mut Pointer| {
                if let Pointer::Own { descriptors, .. } | Pointer::Exported { descriptors, .. } =
                    entry
                {
                    *descriptors = descriptors.saturating_sub(1);
                }
                (Then::Keep, ())
            };
            accounts.holdings().map.change(pointer, less);
        }
    }
}

/// A descriptor keeps an object, from which the objects' lock was let go.
pub(crate) fn keeps_object(accounts: &Accounts, descriptor: c_int, number: u64) {
    let objects = Objects::lock(accounts);
    if objects.hold(number) {
        put(accounts, &objects, descriptor, KeptMemory::OfObject(number));
    }
}

/// Plain memory is freed that a descriptor may keep: it is charged until that is closed.
pub(crate) fn freed(accounts: &Accounts, pointer: u64, device: u8, bytes: u64) {
    poll(accounts);
    let objects = Objects::lock(accounts);
    let number = objects.make_unnamed(usize::from(device), bytes, ObjectKind::Own);
    let object = KeptMemory::OfObject(number);
    // One hold for each descriptor, and the one that it was made with, which ends here.
    let mut count = 0u32;
    accounts
        .holdings()
        .map
        .sweep_of(|_, kept: &mut Descriptor| {
            if kept.keeps == KeptMemory::OfPointer(pointer) {
                kept.keeps = object;
            }
            count += u32::from(kept.keeps == object);
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
        let mut closed = [KeptMemory::OfPointer(0); AT_ONCE];
        let mut count = 0;
        holdings.map.sweep_of(|number, entry: &mut Descriptor| {
            let now = c_int::try_from(number).ok().and_then(file_of);
            match closed.get_mut(count) {
                Some(place) if now != Some(entry.file) => {
                    *place = entry.keeps;
                    count += 1;
                    true
                }
                _ => false,
            }
        });
        for &kept in closed.iter().take(count) {
            ended(accounts, &objects, kept);
            any |= matches!(kept, KeptMemory::OfObject(_));
        }
        if count < AT_ONCE {
            return any;
        }
    }
}
