//! The entries of this process's map: one type for each kind of pointer or handle, with all that the rules know of
//! it. Calls nothing.

use core::num::NonZeroU64;

use vgpu_abi::region::SharedKey;

use crate::base::map::{ENTRY_BYTES, FoundEntry, Kept, Map};

/// Makes [`Entry`] and gives each of its types a space of the map.
macro_rules! entries {
    ($($(#[$doc:meta])* $space:literal $kind:ident,)*) => {
        /// An entry of any kind, for a sweep over all of them.
        #[derive(Debug)]
        #[expect(dead_code, reason = "each sweep is about a few kinds, and none about all")]
        pub(crate) enum Entry<'a> {
            $($(#[$doc])* $kind(&'a mut $kind),)*
        }

        impl<'a> Entry<'a> {
            fn of(found: FoundEntry<'a>) -> Option<Self> {
                match found.space() {
                    $($space => found.entry().map(Self::$kind),)*
                    _ => None,
                }
            }
        }

        #[repr(u8)]
        enum Space {
            $($kind = $space,)*
        }

        $(
            // SAFETY: the compiler lets no two variants of `Space` have the same number.
            unsafe impl Kept for $kind {
                const SPACE: u8 = Space::$kind as u8;
            }

            const _: () = assert!(size_of::<$kind>() <= ENTRY_BYTES && $space != 0);
        )*
    };
}

entries! {
    /// A device pointer.
    1 Pointer,
    /// A memory handle of `cuMemCreate` or of an import.
    2 Handle,
    /// An address range that a memory handle is mapped to.
    3 Mapping,
    /// An array or a mipmapped array.
    4 Array,
    /// A module.
    5 Module,
    /// A context.
    6 Context,
    /// An executable graph with memory nodes.
    7 GraphExec,
    /// The name in the region's shared table of a pointer that was exported or imported.
    8 PointerName,
    /// A binding to a multicast object, by object, device and offset.
    9 Binding,
    /// Imported external memory.
    10 External,
    /// A green context.
    11 Green,
    /// As [`PointerName`], of an object.
    12 ObjectName,
    /// An allocation of a graph that may outlive the launch.
    13 GraphAllocation,
    /// Memory that was made apart from addresses, by our number.
    14 MemoryObject,
    /// The handle of an object, by the object's number.
    15 HandleOf,
    /// The objects that an imported pointer may be.
    16 PointerImport,
    /// As [`PointerImport`], of an object.
    17 ObjectImport,
    /// The handle by which memory was exported by IPC, in four parts.
    18 IpcHandlePart,
    /// A resource of a graphics API that was mapped.
    19 Graphics,
    /// Holds of a sparse array that end at an event of the library, by the event.
    20 Ending,
    /// A file descriptor that keeps memory after it was freed.
    21 Descriptor,
    /// A part of a sparse array that memory is mapped to.
    22 SparsePart,
    /// A library.
    23 Library,
    /// The copy of a library in one context.
    24 LibraryCopy,
    /// The part of an executable graph on one device.
    25 GraphPart,
}

/// Calls `goes` with the number of each entry (exact below 2^56), and takes out each entry for which it returns true.
/// Linear in the number of entries.
pub(crate) fn sweep(map: &Map, mut goes: impl FnMut(u64, Entry<'_>) -> bool) {
    map.sweep(|found| {
        let number = found.number();
        Entry::of(found).is_some_and(|entry| goes(number, entry))
    });
}

/// A device pointer, by how its memory is charged. `context` is our number of the context that the memory dies
/// with, 0 for none; `device` is the device's index in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pointer {
    /// Memory of the device, with a charge of its own.
    Own {
        bytes: u64,
        context: u64,
        device: u8,
        /// Number of file descriptors that keep it.
        descriptors: u32,
    },
    /// From a pool that cannot be asked what it holds: a charge of its own, which ends with no context.
    Loose { bytes: u64, device: u8 },
    /// Exported from here: charged in the region's shared table.
    Exported {
        bytes: u64,
        context: u64,
        device: u8,
        /// Number of file descriptors that keep it.
        descriptors: u32,
    },
    /// Exported by another process, and opened here: charged in the region's shared table.
    Opened {
        /// How many times.
        times: u64,
        context: u64,
        device: u8,
        /// Its size in the shared table; 0 for memory that is not there.
        size: Steps,
    },
    /// Managed memory in place of the device's own, which the container's share had no room for.
    Paged {
        bytes: u64,
        context: u64,
        device: u8,
    },
    /// Managed memory that the program asked for, charged past the share.
    Managed {
        bytes: u64,
        context: u64,
        device: u8,
    },
    /// The same, charged within the share.
    ManagedHere {
        bytes: u64,
        context: u64,
        device: u8,
    },
    /// From a pool, named to other processes: charged in the region's shared table.
    Offered {
        bytes: u64,
        /// The object in the shared table.
        object: u64,
        device: u8,
        /// The pool's place in the table of pools.
        pool: u32,
    },
    /// From a pool of another process.
    Taken {
        /// How many times.
        times: u64,
        /// The object that holds it.
        object: u64,
        device: u8,
    },
}

impl Pointer {
    /// Index in the region.
    pub(crate) fn device(&self) -> u8 {
        match *self {
            Self::Own { device, .. }
            | Self::Loose { device, .. }
            | Self::Exported { device, .. }
            | Self::Opened { device, .. }
            | Self::Paged { device, .. }
            | Self::Managed { device, .. }
            | Self::ManagedHere { device, .. }
            | Self::Offered { device, .. }
            | Self::Taken { device, .. } => device,
        }
    }

    /// The charge that ends when the driver frees the memory with this context.
    pub(crate) fn dies_with(&self, gone: u64) -> Option<DeviceCharge> {
        match *self {
            Self::Own { bytes, context, .. } | Self::ManagedHere { bytes, context, .. }
                if context == gone =>
            {
                Some(DeviceCharge::Within(bytes))
            }
            Self::Paged { bytes, context, .. } | Self::Managed { bytes, context, .. }
                if context == gone =>
            {
                Some(DeviceCharge::PastTheShare(bytes))
            }
            _ => None,
        }
    }
}

/// A charge in this process's slot, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceCharge {
    /// Within the container's share of the device.
    Within(u64),
    /// Past it.
    PastTheShare(u64),
}

/// A memory handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    /// The library's number of the object that it names.
    pub(crate) object: u64,
    /// Number of references that the program holds.
    pub(crate) references: u64,
}

/// An address range that an object's memory is mapped to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// The object; 0: memory that is not charged.
    pub(crate) object: u64,
    /// Its length.
    pub(crate) bytes: u64,
    /// The mark of the call that takes it off, 0 where none does.
    pub(crate) unmapping: u32,
}

/// An array or a mipmapped array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Array {
    /// Charged.
    pub(crate) bytes: u64,
    /// Our number of the context that it dies with.
    pub(crate) context: u64,
    /// The part of the charge that the driver may not hold.
    pub(crate) doubtful: Steps,
    /// Index in the region.
    pub(crate) device: u8,
}

impl Array {
    /// The part of the charge that the driver may not hold, bytes.
    pub(crate) fn doubtful_bytes(&self) -> u64 {
        self.doubtful.bytes().min(self.bytes)
    }
}

/// Memory of another API, imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct External {
    /// Charged.
    pub(crate) bytes: u64,
    /// Our number of the context that it dies with.
    pub(crate) context: u64,
    /// Index in the region.
    pub(crate) device: u8,
}

/// A resource of a graphics API that was mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Graphics {
    /// Charged.
    pub(crate) bytes: u64,
    /// Our number of the context that it dies with.
    pub(crate) context: u64,
    /// Index in the region.
    pub(crate) device: u8,
}

/// The charge of a module in a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loaded {
    /// Charged.
    pub(crate) bytes: u64,
    /// Our number of the context that it dies with.
    pub(crate) context: u64,
    /// The number of the driver's steps that were charged in advance and are in the charge.
    pub(crate) steps_in_advance: u32,
    /// Index in the region.
    pub(crate) device: u8,
    /// All of its image was read, and the driver has loaded it: the charge covers it.
    pub(crate) is_whole: bool,
}

/// A module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Module(pub(crate) Loaded);

/// A library, which belongs to no context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Library {
    /// The library's number of it.
    pub(crate) number: u64,
    /// The bytes that its image declares.
    pub(crate) declared: u64,
    /// All of its image was read.
    pub(crate) is_whole: bool,
}

/// The copy of a library in one context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LibraryCopy(pub(crate) Loaded);

/// A context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Context {
    /// A primary context, or one that the program has made.
    Own {
        /// The library's number of it.
        number: u64,
        /// Charged.
        bytes: u64,
        /// Index in the region.
        device: u8,
        /// A count that has reached the largest number stays there.
        references: u16,
    },
    /// The context of a green context: its memory is the primary context's.
    OfGreen {
        /// Our number of the primary context.
        primary: u64,
        /// Index in the region.
        device: u8,
    },
}

impl Context {
    /// Our number of the context that memory dies with which is allocated here.
    pub(crate) fn number(&self) -> u64 {
        match *self {
            Self::Own { number, .. } => number,
            Self::OfGreen { primary, .. } => primary,
        }
    }

    pub(crate) fn is_of_green(&self) -> bool {
        matches!(self, Self::OfGreen { .. })
    }

    /// Changes its charge.
    pub(crate) fn recharge(&mut self, change: impl FnOnce(u64) -> u64) {
        if let Self::Own { bytes, .. } = self {
            *bytes = change(*bytes);
        }
    }
}

/// A green context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Green {
    /// Charged beside the primary context.
    pub(crate) bytes: u64,
    /// Its context, where the program has asked for it.
    pub(crate) context: Option<NonZeroU64>,
    /// Our number of the primary context that it is over; 0: not known.
    pub(crate) primary: u32,
    /// The driver's ordinal of the device.
    pub(crate) ordinal: u16,
    /// Index in the region.
    pub(crate) device: u8,
}

/// An executable graph with memory nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct GraphExec {
    /// One bit for each device that it allocates on.
    pub(crate) devices: u32,
    /// Some of the graph's memory outlives a launch: the next launch may find it still in use.
    pub(crate) keeps: bool,
}

/// The part of an executable graph on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GraphPart {
    /// Memory that its nodes want, bytes.
    pub(crate) bytes: u64,
    /// The device's graph memory can grow by this for it, bytes.
    pub(crate) growth: u64,
    /// The launch that got its memory here, if there was one.
    pub(crate) mapped: MappedBy,
}

impl GraphPart {
    /// Of a graph that was not launched yet.
    pub(crate) fn new(bytes: u64, growth: u64) -> Self {
        Self {
            bytes,
            growth,
            mapped: MappedBy::default(),
        }
    }
}

/// The launch by which a graph got its memory on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct MappedBy {
    /// Differs from now if the graph may have lost its memory since; 0: never launched.
    pub(crate) mark: u32,
    /// The launch's stream, folded.
    pub(crate) stream: u16,
    /// No other graph had any of the memory.
    pub(crate) is_own: bool,
}

/// An allocation of a graph that may outlive the launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GraphAllocation;

/// The name of an object in the region's shared table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableName {
    /// Exported from here under this name.
    Exported(SharedKey),
    /// Imported by this name, in a family of this number.
    Imported { name: SharedKey, family: u8 },
    /// Imported by a name that identifies no object.
    Unnamed { family: u8 },
}

/// The name of a pointer in the region's shared table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PointerName(pub(crate) TableName);

/// The name of an object in the region's shared table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectName(pub(crate) TableName);

/// The objects of the region's shared table that an import may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ImportRange {
    /// No object that came later.
    pub(crate) until: u64,
    /// No smaller object, bytes.
    pub(crate) least: u64,
    /// Number of objects.
    pub(crate) objects: u32,
    /// The device of the first one.
    pub(crate) device: u8,
}

/// The objects that an imported pointer may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PointerImport(pub(crate) ImportRange);

/// The objects of the shared table that an object of this process may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectImport(pub(crate) ImportRange);

/// Memory that is bound to a multicast object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    /// The object of the memory.
    pub(crate) object: u64,
    /// Bytes that are bound.
    pub(crate) bytes: u64,
    /// The low half of the multicast object's number; 0: not known.
    pub(crate) multicast: u32,
}

/// Memory that was made apart from addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryObject {
    /// Charged.
    pub(crate) bytes: u64,
    /// The number of handles, mappings and bindings that hold it.
    pub(crate) holds: u64,
    /// The number of these that the driver is about to release.
    pub(crate) releasing: u32,
    /// Index in the region.
    pub(crate) device: u8,
    pub(crate) kind: ObjectKind,
}

/// How an object is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectKind {
    /// In this process's slot.
    Own,
    /// Exported: in the region's shared table.
    Exported,
    /// This process did not see it made: in its slot, by the part of it that is mapped.
    Adopted,
    /// Memory of another process that this container does not charge.
    Foreign,
    /// Imported: in the region's shared table.
    Imported,
    /// A multicast object: no memory of its own, but bindings.
    Multicast,
    /// A multicast object that other processes may hold, too.
    MulticastShared,
}

/// The handle of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HandleOf(pub(crate) u64);

/// Sixteen bytes of the handle by which memory was exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IpcHandlePart(pub(crate) [u8; 16]);

/// Holds that end at an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    /// The object that is held.
    pub(crate) object: u64,
    /// The driver's event.
    pub(crate) event: u64,
    /// Number of holds that end.
    pub(crate) holds: u32,
}

/// A file descriptor that keeps memory after it was freed. Its key is the descriptor's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    /// Distinguishes the file from others that get the number later.
    pub(crate) file: u64,
    pub(crate) keeps: KeptMemory,
}

/// The memory that a descriptor keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeptMemory {
    /// Memory of this pointer, which the program has not freed yet.
    OfPointer(u64),
    /// An object.
    OfObject(u64),
}

/// A part of a sparse array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SparsePart {
    /// The driver's handle of the array.
    pub(crate) array: u64,
    /// The object whose memory is mapped to it.
    pub(crate) object: u64,
}

/// A size in steps of 512 bytes, rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Steps(u32);

impl Steps {
    const BYTES: u64 = 512;

    pub(crate) fn of(bytes: u64) -> Self {
        Self(u32::try_from(bytes.div_ceil(Self::BYTES)).unwrap_or(u32::MAX))
    }

    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.0) * Self::BYTES
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_of_a_charge_is_in_doubt_than_there_is() {
        let array = Array {
            bytes: 1000,
            context: 1,
            doubtful: Steps::of(u64::MAX),
            device: 0,
        };

        assert_eq!(array.doubtful_bytes(), 1000);
    }

    #[test]
    fn keys_differ_as_their_bytes_do() {
        let mut bytes = [0u8; 64];
        let first = key_of(&bytes);
        bytes[63] = 1;

        assert_ne!(first, key_of(&bytes));
    }
}
