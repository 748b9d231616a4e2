//! Time that a container was promised by its floor, wanted, and did not get: it is made good in the moments that
//! follow. A neighbour's kernel that cannot be interrupted holds a container back, and so does time that was lent
//! and comes back late; afterwards the floor alone would hold from then on, and not over the second.
//!
//! Values in, values out. The memory is bounded: no container is ever given back more than one second of its floor,
//! and one that rests is given back nothing.

use std::collections::HashMap;

use super::shares::WHOLE;

/// The most that is made good, in nanoseconds of the floor.
const MOST_NS: f64 = 1e9;
/// Arrears are made good at a rate that would take this long, nanoseconds, if others can give as much.
const SOON_NS: f64 = 100e6;
/// A container is held back while it gets less than this part of its floor.
const HELD: f64 = 0.75;
/// Missed time that was not made good is forgotten this long after the container was last held back, nanoseconds.
const KEPT_NS: u64 = 1_000_000_000;
/// A shortfall of less than this part of the floor is noise of the containers' measurements.
const NOISE: f64 = 0.05;
/// Of what another container is granted and not promised, at most this part is taken.
const MOST_LENT: f64 = 0.75;
/// Of its floor a container gives at most this part, and only what it had too much while others had too little.
const MOST_PROMISED: f64 = 0.5;
/// A container that had more than its grant stands still until its account is even: until then it is assumed not to
/// use its grant, in ticks of this many nanoseconds.
const TICK_NS: f64 = 50e6;
/// Credit that it had saved up is no such overrun, nanoseconds.
const SAVED_NS: f64 = 5e6;
/// A presumed overrun fades in this time, nanoseconds: it is an estimate.
const OVERRUN_FADES_NS: f64 = 10e9;
/// A longer time between two ticks says nothing: the arbiter itself was away.
const LONGEST_TICK_NS: u64 = 500_000_000;

/// A container at a tick.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Party {
    /// Which; never used again for another.
    pub(super) id: u64,
    /// Its floor, thousandths; 0 is none.
    pub(super) floor: u32,
    /// The most that it may be granted, thousandths.
    pub(super) cap: u32,
    /// Its grant when nothing is made good, thousandths.
    pub(super) share: u32,
    /// The part of that grant that it would use, thousandths.
    pub(super) demand: u32,
    /// It works, and its grant binds it.
    pub(super) active: bool,
    /// A launch of it waited since the last tick, or it was busy all the time.
    pub(super) waited: bool,
    /// Its library makes it wait by itself after it had more than its grant. In a timetable no container does.
    pub(super) pays: bool,
    /// GPU time that it got since the last tick, nanoseconds.
    pub(super) got_ns: f64,
    /// GPU time that it got earlier, and that only the driver has reported, nanoseconds.
    pub(super) got_late_ns: f64,
}

/// The arrears of all containers on a device.
#[derive(Debug, Default)]
pub(super) struct Arrears {
    at_ns: Option<u64>,
    accounts: HashMap<u64, Account>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Account {
    /// Time that it is to be given, nanoseconds.
    arrears_ns: f64,
    /// Time beyond its floor that it had while others were held back, nanoseconds.
    surplus_ns: f64,
    /// Time beyond its grant that it had and still owes, nanoseconds.
    overrun_ns: f64,
    /// Its grant at the last tick, thousandths.
    granted: Option<u32>,
    /// It wanted its floor at the last tick.
    wanted: bool,
    /// It was held back since the last tick.
    is_held: bool,
    /// When it was last held back.
    held_at_ns: Option<u64>,
}

impl Arrears {
    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Counts what each got since the last tick, and returns what each is granted, thousandths. Those that work
    /// are together granted no more of what they want than before, or the whole device.
    pub(super) fn tick(&mut self, now_ns: u64, parties: &[Party]) -> Vec<u32> {
        let passed_ns = self.at_ns.map_or(0, |at_ns| now_ns.saturating_sub(at_ns));
        self.at_ns = Some(now_ns);
        self.count(now_ns, passed_ns, parties);
        let accounts: Vec<Account> = parties.iter().map(|party| self.account(party)).collect();
        let grants = amend(parties, &accounts);
        for (party, grant) in parties.iter().zip(&grants) {
            if let Some(account) = self.accounts.get_mut(&party.id) {
                account.granted = Some(*grant);
            }
        }
        grants
    }

    fn account(&self, party: &Party) -> Account {
        self.accounts.get(&party.id).copied().unwrap_or_default()
    }

    fn count(&mut self, now_ns: u64, passed_ns: u64, parties: &[Party]) {
        let known = passed_ns > 0 && passed_ns <= LONGEST_TICK_NS;
        let passed = if known { real(passed_ns) } else { 0.0 };
        let mut missed_ns = 0.0;
        let mut spare: Vec<f64> = Vec::with_capacity(parties.len());
        let mut accounts = HashMap::with_capacity(parties.len());
        for party in parties {
            // One that rests is given nothing back and gives nothing back.
            let mut account = match party.active {
                true => self.account(party),
                false => Account::default(),
            };
            let got_ns = if known { party.got_ns } else { 0.0 };
            let promised_ns = part(party.floor) * passed;
            let granted_ns = part(account.granted.unwrap_or(party.share)) * passed;
            // The container pays for time beyond its grant by itself: its launches wait until it has.
            let repaid_ns = (granted_ns - got_ns).clamp(0.0, account.overrun_ns);
            account.overrun_ns += (got_ns - granted_ns).max(0.0) - repaid_ns;
            account.overrun_ns *= 1.0 - (passed / OVERRUN_FADES_NS).min(1.0);
            account.overrun_ns = match party.pays {
                true => account.overrun_ns.min(MOST_NS),
                false => 0.0,
            };
            // It works again: what is left the library has counted less than it was.
            if (granted_ns * HELD..=granted_ns).contains(&got_ns) {
                account.surplus_ns += std::mem::take(&mut account.overrun_ns);
            }

            let made_good_ns = (got_ns - promised_ns).clamp(0.0, account.arrears_ns);
            let late_ns = (party.got_late_ns * (1.0 - NOISE)).max(0.0);
            account.arrears_ns = (account.arrears_ns - made_good_ns - late_ns).max(0.0);
            // Time beyond its grant is either paid back by the container itself, or counts as too much, too.
            let kept_ns = match party.pays {
                true => got_ns.min(granted_ns),
                false => got_ns,
            };
            let beyond_ns = kept_ns - promised_ns - made_good_ns;
            spare.push(if party.active {
                beyond_ns.max(0.0)
            } else {
                0.0
            });

            let short_ns = (promised_ns - got_ns - repaid_ns).max(0.0);
            let returned_ns = short_ns.min(account.surplus_ns);
            account.surplus_ns -= returned_ns;
            let short_ns = short_ns - returned_ns;
            account.is_held = false;
            if party.waited && account.wanted && party.active {
                if short_ns > promised_ns * (1.0 - HELD) {
                    account.is_held = true;
                    account.held_at_ns = Some(now_ns);
                }
                let most_ns = (part(party.floor) * MOST_NS).max(account.arrears_ns);
                let noise_ns = match account.is_held {
                    true => 0.0,
                    false => promised_ns * NOISE,
                };
                let more_ns = (short_ns - noise_ns).max(0.0);
                let arrears_ns = (account.arrears_ns + more_ns).min(most_ns);
                missed_ns += arrears_ns - account.arrears_ns;
                account.arrears_ns = arrears_ns;
            }
            let held = |at_ns: u64| now_ns.saturating_sub(at_ns) <= KEPT_NS;
            // It uses less than its floor although nothing holds it back: it does not want more.
            let wants = party.waited || got_ns >= promised_ns * HELD;
            if !wants || !account.held_at_ns.is_some_and(held) {
                account.arrears_ns = 0.0;
            }
            account.wanted = wants && party.active;
            accounts.insert(party.id, account);
        }
        self.accounts = accounts;
        self.blame(missed_ns, parties, &spare);
    }

    /// Those that had more than their floors meanwhile had what others missed.
    fn blame(&mut self, missed_ns: f64, parties: &[Party], spare: &[f64]) {
        let all_spare_ns: f64 = spare.iter().sum();
        let taken = (missed_ns / all_spare_ns.max(1.0)).min(1.0);
        let arrears_ns: f64 = self.accounts.values().map(|all| all.arrears_ns).sum();
        for (party, spare_ns) in parties.iter().zip(spare) {
            if let Some(account) = self.accounts.get_mut(&party.id) {
                account.surplus_ns = (account.surplus_ns + spare_ns * taken).min(arrears_ns);
            }
        }
    }
}

/// Gives to those in arrears: what no container wants first, then what is lent, then of the floors of those that
/// had too much.
fn amend(parties: &[Party], accounts: &[Account]) -> Vec<u32> {
    let each = || parties.iter().zip(accounts);
    // Time that no other container uses costs nothing: all of it at once.
    let needs: Vec<u32> = each()
        .map(|(party, account)| need(party, account, TICK_NS))
        .collect();
    if needs.iter().all(|need| *need == 0) {
        return parties.iter().map(|party| party.share).collect();
    }
    let uses: Vec<u32> = each()
        .map(|(party, account)| used(party, account))
        .collect();
    let gives = |(party, account): &(&Party, &Account)| party.active && account.arrears_ns <= 0.0;
    let each = || parties.iter().zip(accounts).zip(&uses);
    let lent = |((party, account), used): ((&Party, &Account), &u32)| match gives(&(party, account))
    {
        false => 0,
        true if party.floor > 0 => used.saturating_sub(party.floor),
        true => thousandths(part(*used) * MOST_LENT),
    };
    let promised =
        |((party, account), used): ((&Party, &Account), &u32)| match gives(&(party, account)) {
            false => 0,
            true => {
                let due = thousandths(account.surplus_ns / SOON_NS);
                due.min(thousandths(part(party.floor.min(*used)) * MOST_PROMISED))
            }
        };
    let free = WHOLE.saturating_sub(uses.iter().sum());
    let from_free = spread(&needs, free);
    // Time that is taken from others while it is still held back would be lost to all.
    let unmet = each().zip(needs.iter().zip(&from_free));
    let unmet: Vec<u32> = unmet
        .map(
            |(((party, account), _), (need_now, free))| match account.is_held {
                true => 0,
                false => need(party, account, SOON_NS)
                    .min(*need_now)
                    .saturating_sub(*free),
            },
        )
        .collect();
    let lent: Vec<u32> = each().map(lent).collect();
    let promised: Vec<u32> = each().map(promised).collect();
    let from_lent = spread(&lent, unmet.iter().sum());
    let still_unmet = unmet.iter().sum::<u32>() - from_lent.iter().sum::<u32>();
    let from_promised = spread(&promised, still_unmet);
    let minus = from_lent.into_iter().zip(from_promised);
    let minus: Vec<u32> = minus.map(|(lent, promised)| lent + promised).collect();
    let plus = spread(&unmet, minus.iter().sum());
    let plus = plus.into_iter().zip(from_free);
    let each = parties.iter().zip(plus.zip(minus));
    each.map(|(party, change)| match change {
        ((taken, free), 0) => party.share + taken + free,
        (_, minus) => party.share.min(party.demand).saturating_sub(minus),
    })
    .collect()
}

/// The part of its share that it will use until the next tick, thousandths.
fn used(party: &Party, account: &Account) -> u32 {
    if !party.active {
        return 0;
    }
    let idle = match account.overrun_ns > SAVED_NS {
        true => thousandths(account.overrun_ns / TICK_NS),
        false => 0,
    };
    party.share.min(party.demand).saturating_sub(idle)
}

/// How much more than its share it needs to be even within a time, thousandths.
fn need(party: &Party, account: &Account, within_ns: f64) -> u32 {
    if !party.active || account.arrears_ns <= 0.0 {
        return 0;
    }
    let wanted = thousandths(account.arrears_ns / within_ns);
    // Time that it is lent makes arrears good, too.
    let lent = party.share.saturating_sub(party.floor);
    let room = party.cap.min(WHOLE).saturating_sub(party.share);
    wanted.saturating_sub(lent).min(room)
}

/// Divides a sum in proportion to what each can take; never more than that, and never more than the sum.
fn spread(most: &[u32], sum: u32) -> Vec<u32> {
    let all: u32 = most.iter().sum();
    let part = |most: &u32| {
        let part = u64::from(*most) * u64::from(sum.min(all)) / u64::from(all.max(1));
        u32::try_from(part).unwrap_or(0)
    };
    most.iter().map(part).collect()
}

fn part(permille: u32) -> f64 {
    f64::from(permille) / f64::from(WHOLE)
}

/// A part of one as thousandths, rounded down; at most the whole.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is clamped to 0..=1000"
)]
fn thousandths(part: f64) -> u32 {
    (part * f64::from(WHOLE)).clamp(0.0, f64::from(WHOLE)) as u32
}

/// Times between two ticks are far below what a `f64` holds exactly.
#[expect(
    clippy::cast_precision_loss,
    reason = "52 bits of nanoseconds are 52 days"
)]
fn real(ns: u64) -> f64 {
    ns as f64
}

#[cfg(test)]
mod tests;
