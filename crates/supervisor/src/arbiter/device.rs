//! One device and its containers, from tick to tick: which containers work, which want more, and what each is
//! granted. Combines how time is divided ([`shares`]), how measured time is scaled ([`scale`](super::scale)), at which
//! times containers work that all want more ([`timetable`](super::timetable)), and which container has the turn
//! ([`turns`](super::turns)).
//!
//! Between two ticks, [`Bell`]s say which of the containers that come before others hold those up at the moment.
//!
//! Values in, values out: never reads a clock, a file or the driver.

use std::collections::HashMap;

use vgpu_abi::interval::Interval;
use vgpu_abi::limits::Policy;
use vgpu_abi::targets::{Ahead, ComputeStatus, Grant};

use super::arrears::{Arrears, Party};
use super::bell::{Allowed, Bell, BellStep, Seen};
use super::scale::{Meter, ProcessKey, Sample, Work};
use super::shares::{self, Claim, Share, WHOLE};
use super::timetable::{Candidate, Timetable};
use super::turns::{Contender, Turns};
use history::{ContainerHistory, HUNGRY_NS};

mod history;

/// How far apart ticks are, nanoseconds.
const TICK_NS: u64 = 50_000_000;
/// A container that does not want all of its share is taken to want a quarter more than it uses, and so much besides,
/// thousandths: it may begin to want more before the next tick.
const RISE_PARTS: (u32, u32) = (5, 4);
const RISE: u32 = 20;
/// A container that has done nothing for this long is idle.
const IDLE_NS: u64 = 95_000_000;
/// A container's use is averaged over this time.
const DEMAND_NS: u64 = 200_000_000;

/// A container on the device, as it was found at a tick.
#[derive(Debug, Clone)]
pub struct Tenant {
    /// Which; never used again for another.
    pub id: u64,
    /// When its cap counts.
    pub policy: Policy,
    /// 0 is the highest.
    pub priority: u32,
    /// The most, thousandths; 1000 is no cap.
    pub cap: u32,
    /// The share that it gets whenever it wants it, thousandths; 0 is none.
    pub floor: u32,
    /// Everything that it holds on the device, managed memory too, bytes.
    pub held_bytes: u64,
    /// Of that: memory past its share of the device, bytes.
    pub oversubscribed_bytes: u64,
    /// It keeps to the interval that it is given: the arbiter may write its targets, and the library of each of its
    /// processes reads them.
    pub keeps_intervals: bool,
    /// Its living processes.
    pub processes: Vec<Process>,
}

impl Tenant {
    /// The sum of a number of its processes.
    fn sum(&self, number: impl Fn(&Process) -> u64) -> u64 {
        self.processes
            .iter()
            .fold(0, |sum, process| sum.saturating_add(number(process)))
    }
}

/// A process, as it was found at a tick.
#[derive(Debug, Clone, Copy)]
pub struct Process {
    /// Slot and generation.
    pub slot: (usize, u64),
    /// Process id on the host.
    pub host_pid: Option<u32>,
    /// Kernels and graphs launched.
    pub launches: u64,
    /// GPU time that it counts as its own, nanoseconds.
    pub busy_ns: u64,
    /// Time in which it had work on the device, other processes' turns included, nanoseconds; 0 if its library does
    /// not measure that.
    pub occupied_ns: u64,
    /// Estimated GPU time in flight, nanoseconds.
    pub in_flight_ns: u64,
    /// When it last launched, nanoseconds; 0 where it is not kept.
    pub last_launch_ns: u64,
    /// When the work in flight ought to end, nanoseconds.
    pub expected_by_ns: u64,
    /// When work was last seen to end, nanoseconds; 0 where it is not kept.
    pub ended_ns: u64,
    /// Since when a launch of it has been waiting, nanoseconds; 0: none is.
    pub waiting_since_ns: u64,
    /// Time that its launches have waited that wait no longer, nanoseconds.
    pub throttled_ns: u64,
}

impl Process {
    fn is_waiting(&self) -> bool {
        self.waiting_since_ns != 0
    }

    /// Whether something of it has waited for longer than this, or is that late.
    fn waits_for(&self, now_ns: u64, ns: u64) -> bool {
        let is_long_ago = |at_ns: u64| now_ns.saturating_sub(at_ns) > ns;
        let is_late = self.in_flight_ns > 0 && is_long_ago(self.expected_by_ns);
        is_late || self.is_waiting() && is_long_ago(self.waiting_since_ns)
    }

    /// Time that its launches have waited, with the one that waits now.
    fn waited_ns(&self, now_ns: u64) -> u64 {
        let waiting_ns = match self.waiting_since_ns {
            0 => 0,
            since_ns => now_ns.saturating_sub(since_ns),
        };
        self.throttled_ns.saturating_add(waiting_ns)
    }
}

/// The grant of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Which container.
    pub id: u64,
    /// By process, in the order in which they were found.
    pub grants: Vec<Grant>,
    /// When its launches may go; `None` if they may at any time.
    pub interval: Option<Interval>,
    /// The figures for display.
    pub seen: ComputeStatus,
    /// It works, or waits to.
    pub active: bool,
    /// The same targets are to be published again: then its processes report their work, or ring at their next
    /// launch.
    pub anew: bool,
    /// It is to be heard when it rings.
    pub rings: bool,
}

/// The changes that a container's arrears count until the next period.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    /// GPU time that it had, nanoseconds.
    got_ns: f64,
    /// Its grant meanwhile, thousandths.
    granted: u32,
}

/// One device.
#[derive(Debug, Default)]
pub struct Device {
    meter: Meter,
    turns: Turns,
    timetable: Timetable,
    arrears: Arrears,
    /// By container, since the arrears were counted last.
    counted: HashMap<u64, Counted>,
    counted_at_ns: u64,
    known: HashMap<u64, ContainerHistory>,
    /// Of the containers that come before others.
    bells: HashMap<u64, Bell>,
    /// The floors of lower containers, and what they leave to those of the highest priority, are all of the device's time.
    is_promised: bool,
    /// The last tick's containers.
    kept: Vec<TickResult>,
}

/// The results of a tick that are used until the next one.
#[derive(Debug)]
struct TickResult {
    id: u64,
    claim: Claim,
    /// Its share is decided by turns, whatever the claims say.
    has_fixed_share: bool,
    /// The shares by the claims of the tick, and the grants: they differ while arrears are made good.
    usual: u32,
    granted: u32,
    /// As granted last.
    share: u32,
}

impl Device {
    /// Looks at all containers on the device, and returns what each is granted. `samples` are the driver's
    /// since the last tick.
    pub fn tick(
        &mut self,
        now_ns: u64,
        device_bytes: u64,
        tenants: &[Tenant],
        samples: &[Sample],
    ) -> Vec<Verdict> {
        let works: Vec<Work> = tenants.iter().flat_map(works).collect();
        self.meter.look(now_ns, &works);
        self.meter.told(now_ns, samples);
        let mut gone = std::mem::take(&mut self.known);
        for tenant in tenants {
            let mut known = gone.remove(&tenant.id).unwrap_or_default();
            known.look(now_ns, tenant);
            if self.meter.is_saturated(tenant.id) {
                known.hungry_at_ns = Some(now_ns);
            }
            self.known.insert(tenant.id, known);
        }

        let claims: Vec<Claim> = tenants
            .iter()
            .map(|tenant| self.claim(now_ns, tenant))
            .collect();
        let opened = self.hear(now_ns, tenants, &claims);
        let usual = shares::divide(&claims);
        self.is_promised = shares::is_promised(&claims, &usual);
        let holding: Vec<Claim> = tenants
            .iter()
            .zip(&claims)
            .map(|(tenant, claim)| self.while_held(tenant.id, claim))
            .collect();
        let mut shares: Vec<Share> = shares::divide(&holding)
            .into_iter()
            .zip(&usual)
            .map(|(now, usual)| Share {
                permille: now.permille,
                ..*usual
            })
            .collect();
        let turn = self.turn(now_ns, device_bytes, tenants, &holding);
        let usual: Vec<u32> = shares.iter().map(|share| share.permille).collect();
        let is_amended = self.make_good(now_ns, turn.is_some(), &holding, tenants, &mut shares);
        self.plan(now_ns, turn.is_some(), &holding, tenants, &shares);
        for ((tenant, claim), share) in tenants.iter().zip(&claims).zip(&shares) {
            // The use of a container that is held up now and then does not show its share.
            let is_above = |c: &Claim| c.active && c.priority < claim.priority;
            let is_held_up = !self.is_promised && claims.iter().any(is_above);
            let wants_all = claim.active && claim.demand >= WHOLE && turn.is_none() && !is_held_up;
            let is_held = wants_all && !is_amended && !self.timetable.has(tenant.id);
            let share = is_held.then(|| f64::from(share.permille) / f64::from(WHOLE));
            self.meter.hold(now_ns, tenant.id, share);
        }
        let each = tenants.iter().zip(&claims).zip(&shares);
        let verdicts: Vec<Verdict> = each
            .map(|((tenant, claim), share)| {
                // A measured container reports by itself; without a limit a library measures nothing.
                let reports = share.measured && claim.policy != Policy::Disable;
                Verdict {
                    anew: opened.contains(&tenant.id) || !reports && is_awaited(claim, &claims),
                    ..self.verdict(now_ns, tenant, claim, share, turn, tenants)
                }
            })
            .collect();
        self.kept = tenants
            .iter()
            .zip(&claims)
            .zip(shares.iter().zip(&usual))
            .map(|((tenant, claim), (share, usual))| TickResult {
                id: tenant.id,
                claim: *claim,
                has_fixed_share: turn.is_some() && takes_turns(tenant, claim),
                usual: *usual,
                granted: share.permille,
                share: share.permille,
            })
            .collect();
        verdicts
    }

    /// Looks at the containers that come before others, and returns those which others go on beside from now on.
    fn hear(&mut self, now_ns: u64, tenants: &[Tenant], claims: &[Claim]) -> Vec<u64> {
        let is_above = |claim: &Claim| {
            let below = |(tenant, other): (&Tenant, &Claim)| {
                other.priority > claim.priority && !tenant.processes.is_empty()
            };
            tenants.iter().zip(claims).any(below)
        };
        let mut old = std::mem::take(&mut self.bells);
        let mut opened = Vec::new();
        for (tenant, claim) in tenants.iter().zip(claims) {
            if tenant.processes.is_empty() || !is_above(claim) {
                continue;
            }
            let bell = old.remove(&tenant.id);
            let mut bell = bell.unwrap_or_else(|| Bell::new(now_ns));
            let below = claims.iter().filter(|c| c.priority > claim.priority);
            let floors = below.fold(0, |sum: u32, c| sum.saturating_add(c.floor));
            let told = self.meter.told_permille(now_ns, tenant.id, floors);
            bell.allow(now_ns, Allowed::of(claim.cap, floors, told));
            let seen = self.seen(tenant.id, &tenant.processes);
            if bell.look(now_ns, &seen, IDLE_NS) == BellStep::Open && bell.open(now_ns, &seen) {
                opened.push(tenant.id);
            }
            self.bells.insert(tenant.id, bell);
        }
        opened
    }

    /// A claim as it counts at the moment: a container that comes before others works while it holds them up. Where all of
    /// the device's time is promised it holds nothing up: each container has its share, whichever works at the moment.
    fn while_held(&self, id: u64, claim: &Claim) -> Claim {
        if self.is_promised {
            return *claim;
        }
        Claim {
            active: self.bells.get(&id).map_or(claim.active, Bell::holds),
            ..*claim
        }
    }

    /// Whether a container waits because one of a higher priority works.
    fn is_closed(&self, id: u64) -> bool {
        let Some(own) = self.kept.iter().find(|kept| kept.id == id) else {
            return false;
        };
        let holds = |kept: &TickResult| {
            kept.claim.priority < own.claim.priority && self.while_held(kept.id, &kept.claim).active
        };
        self.kept.iter().any(holds)
    }

    /// The work of a container's processes, and what may delay it.
    fn seen(&self, id: u64, processes: &[Process]) -> Seen {
        let kept = self.kept.iter().find(|kept| kept.id == id);
        let waits_for = match kept {
            _ if self.is_closed(id) => WaitsFor::HigherPriority,
            // Nothing but room in flight makes its launches wait.
            Some(kept) if kept.share >= WHOLE => WaitsFor::OwnWork,
            _ => WaitsFor::Credit,
        };
        Seen {
            delay_ns: self.delay_ns(id),
            ..seen(processes, waits_for)
        }
    }

    /// The most work that a container of a lower priority lately had in flight, nanoseconds.
    fn delay_ns(&self, id: u64) -> u64 {
        let own = self.kept.iter().find(|kept| kept.id == id);
        let own = own.map_or(u32::MAX, |kept| kept.claim.priority);
        let below = self.kept.iter().filter(|kept| kept.claim.priority > own);
        let in_flight = below.filter_map(|kept| self.known.get(&kept.id));
        in_flight
            .map(|known| known.most_in_flight_ns)
            .max()
            .unwrap_or(0)
    }

    /// A container's doorbell rang. Tells whether that closes the way of others: then [`Device::divide_again`].
    pub fn rang(&mut self, now_ns: u64, id: u64) -> bool {
        let listened = self.bells.len();
        let bell = self.bells.get_mut(&id);
        bell.is_some_and(|bell| bell.rang(now_ns, listened) == BellStep::Close)
    }

    /// Looks at a container between two ticks.
    pub fn look(&mut self, now_ns: u64, id: u64, processes: &[Process]) -> BellStep {
        let seen = self.seen(id, processes);
        let bell = self.bells.get_mut(&id);
        bell.map_or(BellStep::Stays, |bell| bell.look(now_ns, &seen, IDLE_NS))
    }

    /// A container could not be looked at: the next tick looks at it.
    pub fn look_later(&mut self, now_ns: u64, id: u64) {
        if let Some(bell) = self.bells.get_mut(&id) {
            bell.look_later(now_ns);
        }
    }

    /// Whether others go on, after [`Device::look`] said so and the container's doorbell was armed.
    pub fn open(&mut self, now_ns: u64, id: u64, processes: &[Process]) -> bool {
        let seen = self.seen(id, processes);
        let bell = self.bells.get_mut(&id);
        bell.is_some_and(|bell| bell.open(now_ns, &seen))
    }

    /// Whether this container's rings are not listened to at the moment.
    #[must_use]
    pub fn is_muted(&self, id: u64) -> bool {
        self.bells.get(&id).is_some_and(Bell::is_muted)
    }

    /// The containers to look at again before the next tick, and when.
    pub fn looks(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let each = self.bells.iter();
        each.filter_map(|(id, bell)| bell.look_at_ns().map(|at_ns| (*id, at_ns)))
    }

    /// Divides the device's time again between two ticks, after a container began to hold others up or ceased to.
    /// Returns the containers whose shares are others now, with the new ones in thousandths.
    pub fn divide_again(&mut self) -> Vec<(u64, u16)> {
        let claims: Vec<Claim> = self
            .kept
            .iter()
            .map(|kept| self.while_held(kept.id, &kept.claim))
            .collect();
        let shares = shares::divide(&claims);
        let mut changed = Vec::new();
        for (kept, share) in self.kept.iter_mut().zip(shares) {
            let permille = if share.permille == kept.usual {
                kept.granted
            } else {
                share.permille
            };
            if !kept.has_fixed_share && kept.share != permille {
                kept.share = permille;
                changed.push((kept.id, short(permille)));
            }
        }
        changed
    }

    fn claim(&self, now_ns: u64, tenant: &Tenant) -> Claim {
        let known = self.known.get(&tenant.id);
        let within =
            |at: Option<u64>, span: u64| at.is_some_and(|at| now_ns.saturating_sub(at) <= span);
        let hungry = within(known.and_then(|known| known.hungry_at_ns), HUNGRY_NS);
        let used = |span| {
            self.meter
                .used_within(now_ns, tenant.id, span)
                .unwrap_or(WHOLE)
        };
        // Its use just now, or on average: a rise counts at once, and there is room to rise.
        let used = used(0).max(used(DEMAND_NS));
        Claim {
            policy: tenant.policy,
            priority: tenant.priority,
            cap: tenant.cap.clamp(1, WHOLE),
            floor: tenant.floor.min(WHOLE),
            active: within(known.and_then(|known| known.worked_at_ns), IDLE_NS),
            demand: if hungry {
                WHOLE
            } else {
                (used * RISE_PARTS.0 / RISE_PARTS.1 + RISE).min(WHOLE)
            },
        }
    }

    /// Lays out the timetable of the containers that work at the highest priority and are limited, or beside which
    /// others are; where all time is promised, of those with floors of a lower priority, too.
    fn plan(
        &mut self,
        now_ns: u64,
        takes_turns: bool,
        claims: &[Claim],
        tenants: &[Tenant],
        shares: &[Share],
    ) {
        let top = claims.iter().filter(|c| c.active).map(|c| c.priority).min();
        let each = || tenants.iter().zip(claims).zip(shares);
        // A container that does not wait for its interval would use the others'.
        let is_open = |((tenant, claim), _): &((&Tenant, &Claim), &Share)| {
            claim.active && (claim.policy == Policy::Disable || !tenant.keeps_intervals)
        };
        if takes_turns || each().any(|one| is_open(&one)) {
            self.timetable.clear();
            return;
        }
        let takes_part = |((_, claim), share): &((&Tenant, &Claim), &Share)| {
            let is_due = Some(claim.priority) == top || self.is_promised;
            claim.active && is_due && share.measured && share.permille > 0
        };
        let period_ns = self.timetable.period_ns();
        let candidates: Vec<Candidate> = each()
            .filter(takes_part)
            .map(|((tenant, claim), share)| Candidate {
                id: tenant.id,
                // What a lower container does not use of its floor is lent already.
                share: match Some(claim.priority) == top {
                    true => share.permille.min(WHOLE),
                    false => share.permille.min(claim.demand).min(WHOLE),
                },
                has_top_priority: Some(claim.priority) == top,
                wants_more: claim.demand >= WHOLE,
                is_held_up: tenant
                    .processes
                    .iter()
                    .any(|process| process.waits_for(now_ns, period_ns)),
                busy_ns: tenant.sum(|process| process.busy_ns),
                occupied_ns: tenant.sum(|process| process.occupied_ns),
                launches: tenant.sum(|process| process.launches),
                waited_ns: self
                    .known
                    .get(&tenant.id)
                    .map_or(0, |known| known.waited_ns),
            })
            .collect();
        self.timetable.tick(now_ns, &candidates);
    }

    /// Changes the shares so that containers that were held back get what they missed; says whether any is changed.
    fn make_good(
        &mut self,
        now_ns: u64,
        takes_turns: bool,
        claims: &[Claim],
        tenants: &[Tenant],
        shares: &mut [Share],
    ) -> bool {
        if takes_turns {
            // Within turns no container gets its floor at any moment.
            self.arrears.clear();
            return false;
        }
        for tenant in tenants {
            self.counted.entry(tenant.id).or_default().got_ns += self.meter.got_ns(tenant.id);
        }
        // Within a period a container gets its share at one time and nothing at another.
        let period_ns = self.timetable.period_ns();
        let mut is_amended = false;
        if now_ns.saturating_sub(self.counted_at_ns) + TICK_NS / 2 < period_ns {
            for (tenant, share) in tenants.iter().zip(shares.iter_mut()) {
                let counted = self.counted.get(&tenant.id).copied().unwrap_or_default();
                if counted.granted > 0 {
                    is_amended |= share.permille != counted.granted;
                    share.permille = counted.granted;
                }
            }
            return is_amended;
        }
        self.counted_at_ns = now_ns;
        let counted = std::mem::take(&mut self.counted);
        let each = tenants.iter().zip(claims).zip(shares.iter());
        let parties: Vec<Party> = each
            .zip(shares::floors(claims))
            .map(|(((tenant, claim), share), floor)| {
                let known = self.known.get(&tenant.id);
                let active = claim.active && claim.policy != Policy::Disable;
                let has_interval = self.timetable.has(tenant.id);
                let late_ns = self.meter.take_unreported_ns(tenant.id);
                Party {
                    id: tenant.id,
                    floor,
                    cap: claim.cap.max(floor),
                    share: share.permille,
                    demand: claim.demand,
                    active,
                    waited: known.is_some_and(|known| known.hungry_at_ns == Some(now_ns)),
                    pays: !has_interval,
                    got_ns: counted.get(&tenant.id).map_or(0.0, |it| it.got_ns),
                    // In its intervals a container measures all that it has.
                    got_late_ns: if has_interval { 0.0 } else { late_ns },
                }
            })
            .collect();
        let amended = self.arrears.tick(now_ns, &parties);
        for ((tenant, share), permille) in tenants.iter().zip(shares.iter_mut()).zip(amended) {
            is_amended |= share.permille != permille;
            share.permille = permille;
            let counted = Counted {
                got_ns: 0.0,
                granted: permille,
            };
            self.counted.insert(tenant.id, counted);
        }
        is_amended
    }

    /// The container that has the turn, if oversubscribed containers have to take turns.
    fn turn(
        &mut self,
        now_ns: u64,
        device_bytes: u64,
        tenants: &[Tenant],
        claims: &[Claim],
    ) -> Option<u64> {
        let wanted = tenants
            .iter()
            .fold(0_u64, |sum, tenant| sum.saturating_add(tenant.held_bytes));
        let top = claims
            .iter()
            .filter(|claim| claim.active)
            .map(|claim| claim.priority)
            .min();
        let contends = |(tenant, claim): &(&Tenant, &Claim)| {
            let may_work = Some(claim.priority) == top || claim.floor > 0;
            claim.active
                && may_work
                && tenant.oversubscribed_bytes > 0
                && claim.policy != Policy::Disable
        };
        let contender = |(tenant, claim): (&Tenant, &Claim)| Contender {
            id: tenant.id,
            bytes: tenant.held_bytes,
            weight: if claim.floor > 0 {
                claim.floor
            } else {
                claim.cap
            },
            worked_at_ns: self
                .known
                .get(&tenant.id)
                .and_then(|known| known.worked_at_ns)
                .unwrap_or(0),
        };
        let mut contenders: Vec<Contender> = tenants
            .iter()
            .zip(claims)
            .filter(contends)
            .map(contender)
            .collect();
        contenders.sort_by_key(|contender| contender.id);
        self.turns.tick(now_ns, device_bytes, wanted, &contenders)
    }

    fn verdict(
        &self,
        now_ns: u64,
        tenant: &Tenant,
        claim: &Claim,
        share: &Share,
        turn: Option<u64>,
        tenants: &[Tenant],
    ) -> Verdict {
        let takes_turns = takes_turns(tenant, claim);
        let rings = self.bells.contains_key(&tenant.id) && claim.policy != Policy::Disable;
        let permille = match turn {
            Some(holder) if takes_turns && holder == tenant.id => claim.cap,
            // During a turn no other container starts, not even with its starting share.
            Some(_) if takes_turns => 0,
            _ => share.permille,
        };
        let waits_for_turn = takes_turns && turn.is_some_and(|holder| holder != tenant.id);
        let interval = self.timetable.interval(tenant.id);
        // A floor, its own or another one's, is kept by credit and not by what the driver's turns leave.
        let has_floor = tenants.iter().any(|tenant| tenant.floor > 0);
        let least_own = if claim.cap < WHOLE && claim.demand < WHOLE {
            let share = f64::from(permille) / f64::from(WHOLE);
            self.meter.least_own(now_ns, tenant.id, share)
        } else {
            0.0
        };
        let grant = |process: &Process| {
            let (slot, generation) = process.slot;
            let key = (tenant.id, slot, generation);
            // In its interval all that a container measures is its own time.
            let (scale, own) = match interval {
                Some(_) => (Grant::ONE, Grant::ONE),
                None => {
                    let model = self.meter.own(&key);
                    let own = model.max(least_own);
                    let scale = self.meter.scale(&key) * own / model;
                    // Beside none, all that a container measures is its own time: it counts no less.
                    let scale = if share.contended {
                        scale
                    } else {
                        scale.max(own)
                    };
                    (fixed(scale), fixed(own).min(Grant::ONE))
                }
            };
            Grant {
                permille: short(permille),
                scale,
                own,
                contended: share.contended,
                measured: share.measured || rings || turn.is_some() || is_bounded(claim),
                rings,
                ahead: match (is_below(claim, tenants), rings) {
                    // With one short launch in flight a container gives most of its turns away beside a long kernel.
                    (true, _) if self.is_promised => Ahead::Usual,
                    (true, _) => Ahead::Brief,
                    (false, true) if claim.cap >= WHOLE && !has_floor => Ahead::Any,
                    (false, _) if tenants.len() == 1 => Ahead::Much,
                    (false, _) => Ahead::Usual,
                },
            }
        };
        let known = self.known.get(&tenant.id);
        let used = self.meter.used_permille(now_ns, tenant.id);
        Verdict {
            id: tenant.id,
            grants: tenant.processes.iter().map(grant).collect(),
            interval,
            seen: ComputeStatus {
                granted_permille: Some(short(permille)),
                used_permille: used.map(short),
                throttled_permille: known.map_or(0, |known| known.throttled_permille(now_ns)),
                contended: share.contended,
                waits_for_turn,
            },
            active: claim.active,
            anew: false,
            rings,
        }
    }
}

/// Whether a container's work in flight is bounded although it is the only one on the device: it has the time only until
/// another one comes that is owed some of it. Work that is queued by then cannot be taken back. That is so at the highest
/// priority, too: the other one may have a floor.
fn is_bounded(claim: &Claim) -> bool {
    claim.policy != Policy::Disable
}

/// Whether a container of a higher priority could start at any moment.
fn is_below(claim: &Claim, tenants: &[Tenant]) -> bool {
    let above = |other: &Tenant| other.priority < claim.priority && !other.processes.is_empty();
    tenants.iter().any(above)
}

fn takes_turns(tenant: &Tenant, claim: &Claim) -> bool {
    tenant.oversubscribed_bytes > 0 && claim.policy != Policy::Disable
}

/// What a container's launches wait for, if any of them waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WaitsFor {
    /// A container of a higher priority rests.
    HigherPriority,
    /// It has credit again.
    Credit,
    /// Some of its own work in flight ends: it works, and is not at its cap.
    OwnWork,
}

/// The work of a container's processes, as they report it.
fn seen(processes: &[Process], waits_for: WaitsFor) -> Seen {
    let mut seen = Seen::default();
    let mut waits = false;
    for process in processes {
        seen.launches = seen.launches.wrapping_add(process.launches);
        seen.launched_ns = seen.launched_ns.max(process.last_launch_ns);
        seen.ended_ns = seen.ended_ns.max(process.ended_ns);
        waits |= process.waiting_since_ns != 0;
        if process.in_flight_ns > 0 {
            seen.in_flight_ns = seen.in_flight_ns.max(process.in_flight_ns);
            // While it holds others up, nothing takes turns with it but what was in flight before it: see `delay_ns`.
            let alone_ns = process.last_launch_ns.saturating_add(process.in_flight_ns);
            let end_ns = process.expected_by_ns.min(alone_ns);
            seen.expected_by_ns = seen.expected_by_ns.max(end_ns);
        }
    }
    seen.is_at_cap = waits && waits_for == WaitsFor::Credit;
    seen.is_closed = waits && waits_for == WaitsFor::HigherPriority;
    seen.waits_for_itself = waits && waits_for == WaitsFor::OwnWork;
    seen
}

/// Whether a container of a lower priority waits until this one rests.
fn is_awaited(claim: &Claim, claims: &[Claim]) -> bool {
    let waits = |other: &Claim| {
        other.active && other.policy != Policy::Disable && other.priority > claim.priority
    };
    claim.active && claims.iter().any(waits)
}

fn works(tenant: &Tenant) -> impl Iterator<Item = Work> + '_ {
    tenant.processes.iter().map(|process| {
        let (slot, generation) = process.slot;
        let key: ProcessKey = (tenant.id, slot, generation);
        Work {
            key,
            host_pid: process.host_pid,
            busy_ns: process.busy_ns,
            occupied_ns: process.occupied_ns,
        }
    })
}

fn short(permille: u32) -> u16 {
    u16::try_from(permille.min(WHOLE)).unwrap_or(1000)
}

/// A scale as it is written in the file.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a scale lies within its bounds"
)]
fn fixed(scale: f64) -> u16 {
    (scale * f64::from(Grant::ONE)).clamp(1.0, f64::from(u16::MAX)) as u16
}

#[cfg(test)]
mod tests;
