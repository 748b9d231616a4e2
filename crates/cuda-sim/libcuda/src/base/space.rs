//! Addresses for simulated memory: a stretch of host memory that costs nothing until it is touched,
//! handed out in pages. Knows nothing of devices, and counts nothing.

use std::collections::HashMap;

/// Every piece begins on a page, so that a file can be mapped over it later.
pub(crate) const PAGE: u64 = 4096;

/// A stretch of addresses. A piece that is freed is used again for the same size; the rest is handed
/// out in order, so neither taking nor freeing depends on how many pieces there are.
#[derive(Debug)]
pub(crate) struct Space {
    next: u64,
    end: u64,
    free: HashMap<u64, Vec<u64>>,
}

impl Space {
    /// Reserves `bytes` of addresses; half of it is tried when that much cannot be had.
    #[must_use]
    pub(crate) fn reserve(bytes: u64) -> Option<Self> {
        let mut bytes = bytes.next_multiple_of(PAGE);
        while bytes >= 1 << 30 {
            if let Some(space) = Self::map(bytes, 0, 0) {
                return Some(space);
            }
            bytes /= 2;
        }
        None
    }

    /// The same below 4 GiB, for the first forms of driver functions, whose addresses have 32 bits.
    #[must_use]
    pub(crate) fn reserve_low(bytes: u64) -> Option<Self> {
        const STEP: u64 = 256 << 20;
        // High addresses first: a program that is not position independent is at low addresses, and grows.
        let starts = (1..).map(|step| (1_u64 << 32).saturating_sub(bytes + step * STEP));
        starts
            .take_while(|start| *start >= 1 << 30)
            .find_map(|start| Self::map(bytes, start, libc::MAP_FIXED_NOREPLACE))
    }

    fn map(bytes: u64, at: u64, flags: i32) -> Option<Self> {
        // SAFETY: a new anonymous mapping, which replaces none.
        let start = unsafe {
            libc::mmap(
                address(at),
                bytes as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | flags,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: the stretch mapped above. Huge pages would make one touched byte cost 2 MiB; where
        // the kernel has none, the advice fails and is not needed.
        unsafe { libc::madvise(start, bytes as usize, libc::MADV_NOHUGEPAGE) };
        let start = start.expose_provenance() as u64;
        if at != 0 && start != at {
            // A kernel that does not know the flag takes the address for a wish.
            // SAFETY: the mapping made above, which no caller has seen.
            unsafe { libc::munmap(address(start), bytes as usize) };
            return None;
        }
        Some(Self {
            next: start,
            end: start + bytes,
            free: HashMap::new(),
        })
    }

    /// Whether an address is one of these.
    #[must_use]
    pub(crate) fn owns(&self, address: u64, whole: u64) -> bool {
        address < self.end && address >= self.end - whole
    }

    /// Hands out a piece of at least `bytes`.
    #[must_use]
    pub(crate) fn take(&mut self, bytes: u64) -> Option<u64> {
        let bytes = bytes.max(1).checked_next_multiple_of(PAGE)?;
        if let Some(piece) = self.free.get_mut(&bytes).and_then(Vec::pop) {
            return Some(piece);
        }
        if let Some(next) = self
            .next
            .checked_add(bytes)
            .filter(|next| *next <= self.end)
        {
            return Some(std::mem::replace(&mut self.next, next));
        }
        self.merge();
        let (&size, _) = self
            .free
            .iter()
            .filter(|(size, _)| **size >= bytes)
            .min_by_key(|(size, _)| **size)?;
        let piece = self.free.get_mut(&size)?.pop()?;
        if self.free.get(&size).is_some_and(Vec::is_empty) {
            self.free.remove(&size);
        }
        if size > bytes {
            self.free
                .entry(size - bytes)
                .or_default()
                .push(piece + bytes);
        }
        Some(piece)
    }

    /// Takes a piece back; its contents are gone.
    pub(crate) fn give(&mut self, piece: u64, bytes: u64) {
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        discard(piece, bytes);
        self.free.entry(bytes).or_default().push(piece);
    }

    /// Makes free neighbours one piece.
    fn merge(&mut self) {
        let mut pieces: Vec<(u64, u64)> = self
            .free
            .drain()
            .flat_map(|(size, starts)| starts.into_iter().map(move |start| (start, size)))
            .collect();
        pieces.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (start, size) in pieces {
            match merged.last_mut() {
                Some(last) if last.0 + last.1 == start => last.1 += size,
                _ => merged.push((start, size)),
            }
        }
        if let Some(&(start, size)) = merged.last().filter(|last| last.0 + last.1 == self.next) {
            merged.pop();
            self.next = start;
            let _the_tail_is_unused_again = size;
        }
        for (start, size) in merged {
            self.free.entry(size).or_default().push(start);
        }
    }
}

/// Gives the pages of a piece back to the machine.
fn discard(piece: u64, bytes: u64) {
    // SAFETY: a piece of a mapping of ours that is no longer used.
    unsafe { libc::madvise(address(piece), bytes as usize, libc::MADV_DONTNEED) };
}

/// A simulated address as the host's.
#[must_use]
pub(crate) fn address<T>(device: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(device as usize)
}

/// What a page allows: reading and writing, or nothing.
pub(crate) fn protection(usable: bool) -> i32 {
    let both = libc::PROT_READ | libc::PROT_WRITE;
    if usable { both } else { libc::PROT_NONE }
}

/// Frees pages: nothing can be read there afterwards, or, with `usable`, zeroes can.
pub(crate) fn blank(base: u64, bytes: u64, usable: bool) {
    let protection = protection(usable);
    // SAFETY: replaces pages of a mapping of ours that are no longer used. Where the machine
    // refuses, the old pages stay, and their address is not handed out again.
    unsafe {
        libc::mmap(
            address(base),
            bytes as usize,
            protection,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
            -1,
            0,
        )
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_piece_is_used_again() {
        let mut space = Space::reserve(1 << 30).unwrap();
        let one = space.take(5000).unwrap();
        let two = space.take(1).unwrap();

        assert_eq!(two - one, 8192);
        space.give(one, 5000);
        assert_eq!(space.take(8192), Some(one));
    }

    #[test]
    fn neighbours_grow_together_when_there_is_nothing_else() {
        let mut space = Space::reserve(1 << 30).unwrap();
        let pieces: Vec<u64> = (0..4).map(|_| space.take(1 << 28).unwrap()).collect();
        assert_eq!(space.take(1), None);

        space.give(pieces[1], 1 << 28);
        space.give(pieces[2], 1 << 28);

        assert_eq!(space.take(1 << 29), Some(pieces[1]));
    }

    #[test]
    fn freed_memory_is_empty_again() {
        let mut space = Space::reserve(1 << 30).unwrap();
        let piece = space.take(4096).unwrap();
        // SAFETY: `take` gave 4096 bytes at this address.
        unsafe { address::<u8>(piece).write(7) };

        space.give(piece, 4096);

        // SAFETY: the address stays mapped as long as `space`, which `give` does not unmap.
        assert_eq!(unsafe { address::<u8>(piece).read() }, 0);
    }
}
