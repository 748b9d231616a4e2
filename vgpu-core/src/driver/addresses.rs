//! From an address that the driver's `cuGetProcAddress` gave to our hook of that very function. Where
//! the driver does not export the function, the address is kept: it is what the hook calls. Changes no
//! answer itself.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicU64, Ordering};

use cuda_api::{PROC_ADDRESSES, ProcAddress};

use crate::driver::genuine::cuda::LIBRARY;
use crate::driver::hook::{Hook, contains, hash, insert, is_same};
use crate::driver::query;

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: u64 = 2;

/// The hooks of the driver's functions, and the names that lead to one.
pub(crate) struct Lookup {
    hooks: &'static [Hook],
    /// By looked-up name, its first row in the driver's version table, plus one.
    first_rows: &'static [u16],
}

impl Lookup {
    /// Of these hooks; `first_rows` is [`first_rows`] of their names.
    pub(crate) const fn new(hooks: &'static [Hook], first_rows: &'static [u16]) -> Self {
        Self { hooks, first_rows }
    }

    /// An address that the genuine `cuGetProcAddress` gave for `symbol`: our hook of that very function,
    /// if it has one. An exported address says by itself which function it is. Any other address is
    /// compared with what the driver gives for the versions of the name that we know.
    pub(crate) fn hook_of(
        &self,
        found: *mut c_void,
        symbol: &CStr,
        version: i32,
        flags: u64,
    ) -> Option<*const c_void> {
        if let Some(number) = self.by_address(found as usize) {
            return self.hooks.get(number).map(|hook| hook.address);
        }
        let wanted = AskedAddress {
            version,
            per_thread: flags & PER_THREAD != 0,
            driver: query::driver_version().unwrap_or(i32::MAX),
            found: found as usize,
        };
        let row = wanted.row(self.rows_of(symbol)?, |version| {
            query::proc_address(symbol, version, flags).unwrap_or(0)
        })?;
        let is_it = |hook: &Hook| hook.name.to_bytes() == row.symbol.as_bytes();
        let number = self.hooks.iter().position(is_it)?;
        let hook = self.hooks.get(number)?;
        LIBRARY.keep_given(hook.row, found);
        put(found as usize, number as u64);
        Some(hook.address)
    }

    /// The rows of this name, if one of them has a hook.
    fn rows_of(&self, symbol: &CStr) -> Option<&'static [ProcAddress]> {
        let name = symbol.to_bytes();
        let mut at = hash(name);
        let first = loop {
            let entry = *self.first_rows.get(at % self.first_rows.len())?;
            let first = usize::from(entry).checked_sub(1)?;
            if PROC_ADDRESSES.get(first)?.name.as_bytes() == name {
                break first;
            }
            at += 1;
        };
        let rows = PROC_ADDRESSES.get(first..)?;
        let count = rows
            .iter()
            .take_while(|row| row.name.as_bytes() == name)
            .count();
        rows.get(..count)
    }

    /// The number of the one hook for the function at this address.
    fn by_address(&self, address: usize) -> Option<usize> {
        // Acquire: the table was stored before.
        if FILLED.load(Ordering::Acquire) == 0 {
            self.fill();
        }
        for at in (0..SLOTS).map(|step| spread(address) + step) {
            // Acquire: the function that the hook of a joined address calls was stored before.
            let entry = BY_ADDRESS
                .get(at % SLOTS)
                .map_or(0, |slot| slot.load(Ordering::Acquire));
            if entry == 0 {
                break;
            }
            if entry >> 16 == address as u64 {
                let number = entry & 0xffff;
                return (number != MIXED)
                    .then(|| usize::try_from(number).ok())
                    .flatten();
            }
        }
        None
    }

    #[cold]
    fn fill(&self) {
        if !LIBRARY.is_loaded() {
            return;
        }
        for (number, hook) in self.hooks.iter().enumerate() {
            put(LIBRARY.address(hook.row) as usize, number as u64);
        }
        // Release: a thread that sees the mark sees the table. Two threads may fill it: they store the same.
        FILLED.store(1, Ordering::Release);
    }
}

/// An address that the driver gave: how it was asked for, and of which driver.
#[derive(Clone, Copy)]
struct AskedAddress {
    /// The version that the program asked for.
    version: i32,
    /// The program asked for per-thread default streams.
    per_thread: bool,
    /// The version of the driver.
    driver: i32,
    /// The address.
    found: usize,
}

impl AskedAddress {
    /// The row of the name that the address is. `answer` is the address that the driver gives for
    /// another version of the name, in the same stream mode. `None`: a form of the function that is
    /// newer than our table, whose arguments are not known.
    fn row(
        self,
        rows: &'static [ProcAddress],
        answer: impl Fn(i32) -> usize,
    ) -> Option<&'static ProcAddress> {
        let fits =
            |row: &&ProcAddress| row.since <= self.driver && (self.per_thread || !row.per_thread);
        let order = |row: &&ProcAddress| (row.per_thread, row.since);
        let known = || rows.iter().filter(fits);
        let asked = known()
            .filter(|row| row.since <= self.version)
            .max_by_key(order);
        // A driver gives the first form of a name that is a little newer than the version asked for.
        let first = || known().min_by_key(|row| (row.since, !row.per_thread));
        let guess = asked.or_else(first)?;
        let is_it = |row: &&ProcAddress| answer(row.since) == self.found;
        if is_it(&guess) {
            return Some(guess);
        }
        if let Some(other) = known().filter(is_it).max_by_key(order) {
            return Some(other);
        }
        // If the driver returns a different address at each call, addresses identify no form, and the guess stands.
        (answer(self.version) != self.found).then_some(guess)
    }
}

/// By looked-up name, its first row in the driver's version table, for names that lead to a hook.
#[allow(
    clippy::indexing_slicing,
    reason = "evaluated by the compiler: a wrong index does not compile"
)]
pub(crate) const fn first_rows(index: &[u16], names: &[&str]) -> [u16; 1024] {
    let rows = PROC_ADDRESSES;
    let mut table = [0; 1024];
    let mut count = 0;
    let mut first = 0;
    while first < rows.len() {
        // The rows of a name are next to each other.
        let mut end = first;
        let mut any = false;
        while end < rows.len() && is_same(rows[end].name.as_bytes(), rows[first].name.as_bytes()) {
            any |= contains(index, names, rows[end].symbol.as_bytes());
            end += 1;
        }
        if any {
            insert(&mut table, rows[first].name.as_bytes(), first);
            count += 1;
        }
        first = end;
    }
    assert!(count * 2 <= table.len(), "the table of names is too small");
    table
}

const SLOTS: usize = 2048;
const MIXED: u64 = 0xffff;

/// Address (48 bits) and number of its hook (16 bits, [`MIXED`] where several functions share an
/// address); 0 is empty. Exported addresses are in it before the first use, and others join.
static BY_ADDRESS: [AtomicU64; SLOTS] = [const { AtomicU64::new(0) }; SLOTS];
static FILLED: AtomicU64 = AtomicU64::new(0);

fn put(address: usize, number: u64) {
    if address == 0 {
        return;
    }
    let mut at = spread(address);
    for _ in 0..SLOTS {
        let Some(slot) = BY_ADDRESS.get(at % SLOTS) else {
            return;
        };
        let wanted = (address as u64) << 16 | number;
        // Release: see `by_address`.
        match slot.compare_exchange(0, wanted, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(there) if there >> 16 == address as u64 => {
                if there != wanted {
                    // Release: as above.
                    slot.store((address as u64) << 16 | MIXED, Ordering::Release);
                }
                return;
            }
            Err(_) => at += 1,
        }
    }
}

fn spread(address: usize) -> usize {
    (address >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::cuda::LOOKUP;

    /// The driver's answers for one name: from each version on, an address, plain or per thread.
    type Answers = &'static [(i32, usize)];

    /// The symbol that an address is taken for, on a driver of this version.
    fn symbol(
        name: &CStr,
        (version, per_thread): (i32, bool),
        driver: i32,
        answers: Answers,
    ) -> Option<&'static str> {
        let answer = |version| {
            let known = answers.iter().filter(|(since, _)| *since <= version);
            known
                .max_by_key(|(since, _)| *since)
                .or(answers.first())
                .map_or(0, |(_, address)| *address)
        };
        let wanted = AskedAddress {
            version,
            per_thread,
            driver,
            found: answer(version),
        };
        Some(wanted.row(LOOKUP.rows_of(name)?, answer)?.symbol)
    }

    #[test]
    fn an_address_is_the_newest_form_that_was_asked_for() {
        let memory: Answers = &[(2000, 0x10), (3020, 0x20)];
        for (version, expected) in [
            (2000, "cuMemAlloc"),
            (3010, "cuMemAlloc"),
            (3020, "cuMemAlloc_v2"),
            (13_000, "cuMemAlloc_v2"),
            (i32::MAX, "cuMemAlloc_v2"),
        ] {
            let found = symbol(c"cuMemAlloc", (version, false), 13_000, memory);
            assert_eq!(found, Some(expected), "{version}");
        }
    }

    #[test]
    fn an_old_driver_gives_no_form_that_it_does_not_have() {
        let context: Answers = &[(2000, 0x10), (3020, 0x20), (11_040, 0x30)];

        let found = symbol(c"cuCtxCreate", (13_000, false), 12_040, context);

        assert_eq!(found, Some("cuCtxCreate_v3"));
    }

    #[test]
    fn the_first_form_is_given_to_a_slightly_older_version() {
        let ordered: Answers = &[(11_020, 0x10)];

        let plain = symbol(c"cuMemAllocAsync", (11_000, false), 12_040, ordered);
        let own = symbol(c"cuMemAllocAsync", (11_000, true), 12_040, ordered);

        assert_eq!(plain, Some("cuMemAllocAsync"));
        assert_eq!(own, Some("cuMemAllocAsync_ptsz"));
    }

    #[test]
    fn a_form_newer_than_our_table_has_no_row() {
        let memory: Answers = &[(2000, 0x10), (3020, 0x20), (15_000, 0x30)];

        assert_eq!(symbol(c"cuMemAlloc", (15_000, false), 15_000, memory), None);
        assert_eq!(
            symbol(c"cuMemAlloc", (14_000, false), 15_000, memory),
            Some("cuMemAlloc_v2")
        );
    }

    #[test]
    fn an_address_that_changes_each_time_is_taken_by_its_version() {
        let wanted = AskedAddress {
            version: 12_000,
            per_thread: false,
            driver: 12_040,
            found: 0x10,
        };

        let row = wanted.row(LOOKUP.rows_of(c"cuMemAlloc").unwrap(), |_| 0x99);

        assert_eq!(row.unwrap().symbol, "cuMemAlloc_v2");
    }

    #[test]
    fn a_name_without_a_hook_has_no_rows() {
        for name in [c"cuStreamCreate", c"cudnnCreate", c""] {
            assert!(LOOKUP.rows_of(name).is_none(), "{name:?}");
        }
    }
}
