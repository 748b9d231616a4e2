//! Labelled places at which a test kills the process that passes them. Owns the list of names.
//!
//! Never compiled into a product: without the feature `crash-points` a place is nothing at all.

/// Every labelled place. With the feature `crash-points`, a process that has
/// `VGPU_CRASH_AT=name[:nth]` in its environment kills itself with SIGKILL when it passes the place
/// of that name for the nth time (the first, if none is given).
pub const CRASH_POINTS: &[&str] = &[
    "beyond:taken",
    "charge:confirmed",
    "clear:begin",
    "clear:counts",
    "clear:device",
    "clear:free",
    "clear:generation",
    "clear:shared",
    "confirm:added",
    "confirm:done",
    "hold:held",
    "join:charged",
    "join:described",
    "join:done",
    "join:emptied",
    "join:high-water",
    "join:in-use",
    "join:joining",
    "join:locked",
    "join:named",
    "join:seated",
    "keep:added",
    "keep:marked",
    "leave:begin",
    "leave:vacated",
    "loading:reserved",
    "loading:said",
    "oom:begun",
    "oom:done",
    "oom:filled",
    "reap:locked",
    "reap:unlocked",
    "refund:begin",
    "refund:done",
    "release:begin",
    "release:done",
    "release:slot",
    "release:taken",
    "reserve:done",
    "reserve:pending",
    "reserve:taken-back",
    "share:changing",
    "share:held",
    "share:live",
    "share:moved",
    "share:summed",
    "shared:locked",
    "shared:unlocked",
    "slow:beyond",
    "slow:decided",
    "slow:locked",
    "slow:pending",
    "slow:taken-back",
    "slow:unlocked",
    "unhold:counted",
    "unshare:changing",
    "unshare:dropped",
    "unshare:free",
    "unshare:summed",
];

/// Passes a labelled place.
macro_rules! crash_point {
    ($name:literal) => {
        #[cfg(all(feature = "crash-points", not(loom)))]
        $crate::crash::pass($name);
    };
}
pub(crate) use crash_point;

/// Kills this process if it is to die here.
#[cfg(all(feature = "crash-points", not(loom)))]
#[cold]
pub(crate) fn pass(name: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicI64, Ordering};

    static AT: OnceLock<Option<String>> = OnceLock::new();
    static LEFT: AtomicI64 = AtomicI64::new(0);
    let at = AT.get_or_init(|| {
        let text = std::env::var("VGPU_CRASH_AT").ok()?;
        // The last colon parts the number from a name that has colons of its own.
        let (name, nth) = match text.rsplit_once(':') {
            Some((name, nth)) if nth.parse::<i64>().is_ok() => (name, nth.parse().unwrap_or(1)),
            _ => (text.as_str(), 1),
        };
        // Relaxed: a count, published by the cell.
        LEFT.store(nth, Ordering::Relaxed);
        Some(name.to_owned())
    });
    // Relaxed: a count.
    if at.as_deref() == Some(name) && LEFT.fetch_sub(1, Ordering::Relaxed) == 1 {
        crate::sys::kill_myself();
    }
}

/// How long bounded waits may last in a process of a test: `VGPU_CRASH_WAIT_MS` milliseconds. On a machine that is
/// busy with other tests the living owner of a lock may not run for as long as a product waits; a dead owner's lock
/// is never released, however long the wait is.
#[cfg(all(feature = "crash-points", not(loom)))]
pub(crate) fn most_wait_ns() -> Option<u64> {
    use std::sync::OnceLock;

    static MOST: OnceLock<Option<u64>> = OnceLock::new();
    *MOST.get_or_init(|| {
        let text = std::env::var("VGPU_CRASH_WAIT_MS").ok()?;
        text.parse::<u64>().ok()?.checked_mul(1_000_000)
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    #[test]
    fn the_list_names_exactly_the_places_in_the_source() {
        let sources = [
            include_str!("budget.rs"),
            include_str!("budget/reserve.rs"),
            include_str!("budget/slots.rs"),
            include_str!("budget/words.rs"),
            include_str!("region.rs"),
            include_str!("region/charges.rs"),
            include_str!("region/report.rs"),
            include_str!("region/dead.rs"),
            include_str!("region/shared.rs"),
            include_str!("region/slots.rs"),
        ];
        let places = sources
            .iter()
            .flat_map(|source| source.split("crash_point!(\"").skip(1));
        let mut found: Vec<_> = places.map(|rest| rest.split('"').next().unwrap()).collect();
        found.sort_unstable();
        found.dedup();

        assert_eq!(found, super::CRASH_POINTS);
    }
}
