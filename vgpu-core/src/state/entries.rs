//! What an entry of the map is charged as, and what that says of it. Calls nothing.

use vgpu_abi::region::SharedKey;

use crate::base::map::Entry;

/// Is it charged past the container's share of the device?
pub(crate) fn is_past_the_share(entry: &Entry) -> bool {
    matches!(entry.what, what::PAGED | what::MANAGED)
}

/// Does the driver free it with the context that it was made in?
pub(crate) fn dies_with_its_context(entry: &Entry) -> bool {
    matches!(
        entry.what,
        what::OWN | what::PAGED | what::MANAGED | what::MANAGED_HERE
    )
}

/// The name of a shared object, from the bytes by which the driver names it to other processes.
pub(crate) fn key_of(bytes: &[u8]) -> SharedKey {
    let half = |seed: u64| {
        bytes.iter().fold(seed, |hash, &byte| {
            (hash ^ u64::from(byte))
                .wrapping_mul(0x0100_0000_01b3)
                .rotate_left(5)
        })
    };
    SharedKey([half(0xcbf2_9ce4_8422_2325) | 1, half(0x9e37_79b9_7f4a_7c15)])
}

/// What of an array's charge the driver may not hold, bytes.
pub(crate) fn doubtful(entry: &Entry) -> u64 {
    entry.maps_as_bytes().min(entry.bytes)
}

/// What an object is charged as (`Entry::what`), beside `what::OWN` and `what::SHARED`.
pub(crate) mod object {
    /// Memory that this process did not see made; charged by what of it is mapped.
    pub(crate) const ADOPTED: u8 = 7;
    /// Memory of another process that this container does not charge.
    pub(crate) const FOREIGN: u8 = 8;
    /// Imported; held in the shared table.
    pub(crate) const IMPORTED: u8 = 9;
    /// A multicast object: no memory of its own, but bindings.
    pub(crate) const MULTICAST: u8 = 10;
    /// A multicast object that other processes may hold, too.
    pub(crate) const MULTICAST_SHARED: u8 = 11;
}

/// What a pointer is charged as (`Entry::what`).
pub(crate) mod what {
    /// A charge of its own.
    pub(crate) const OWN: u8 = 0;
    /// Out of a pool that cannot be asked what it holds: a charge of its own, which no context takes
    /// along.
    pub(crate) const LOOSE: u8 = 2;
    /// In the shared table, exported from here; `owner` is the context.
    pub(crate) const SHARED: u8 = 3;
    /// In the shared table, opened here: `bytes` is how often, `owner` is the context, `maps` how large
    /// it is.
    pub(crate) const OPENED: u8 = 4;
    /// Managed memory in place of the device's own, which the container's share had no room for.
    pub(crate) const PAGED: u8 = 5;
    /// Managed memory because the program asked for it, charged past the share.
    pub(crate) const MANAGED: u8 = 6;
    /// Of a pool, named to other processes: `owner` is the object that stands in the shared table, `maps`
    /// the pool's place in its table.
    pub(crate) const OFFERED: u8 = 7;
    /// Of another process's pool: `bytes` is how often it was imported, `owner` is the object that holds
    /// it.
    pub(crate) const TAKEN: u8 = 8;
    /// The same within the share.
    pub(crate) const MANAGED_HERE: u8 = 12;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_of_a_charge_is_in_doubt_than_there_is() {
        let entry = Entry {
            bytes: 1000,
            maps: u32::MAX,
            ..Entry::default()
        };

        assert_eq!(doubtful(&entry), 1000);
    }

    #[test]
    fn keys_differ_as_their_bytes_do() {
        let mut bytes = [0u8; 64];
        let first = key_of(&bytes);
        bytes[63] = 1;

        assert_ne!(first, key_of(&bytes));
    }
}
