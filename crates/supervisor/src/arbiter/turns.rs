//! Turns on a device whose memory cannot hold everything that its containers want at once. Each
//! oversubscribed container then gets the device for a while without the others: memory moves once for each
//! turn, not for each kernel.
//!
//! Never ends a turn while no other container waits for it, and never concerns a container that holds only
//! device memory.

/// The assumed rate of moving memory to a device, bytes per millisecond: 8 GiB a second, about that of PCIe 3.
const MOVED_PER_MS: u64 = 8 << 20;
/// A turn lasts this many times as long as moving the memory that its holder needs.
const WORTH: u64 = 4;
/// No turn is shorter.
const SHORTEST_NS: u64 = 200_000_000;
/// No turn is longer.
const LONGEST_NS: u64 = 5_000_000_000;
/// A container that is idle for this long during its turn loses the turn.
const IDLE_NS: u64 = 100_000_000;

/// An oversubscribed container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contender {
    /// Which container.
    pub id: u64,
    /// Memory of the device that it wants, bytes.
    pub bytes: u64,
    /// Its share of the time, thousandths.
    pub weight: u32,
    /// When it last worked or waited to, nanoseconds.
    pub worked_at_ns: u64,
}

/// The turns of a device: which container has it now.
#[derive(Debug, Default)]
pub struct Turns {
    holder: Option<TurnHolder>,
}

#[derive(Debug, Clone, Copy)]
struct TurnHolder {
    id: u64,
    since_ns: u64,
}

impl Turns {
    /// Which contender has the turn, if turns are needed: two or more contenders want the device and it does
    /// not hold `wanted_bytes`. Contenders are in a fixed order. `active` are the containers that work or
    /// wait.
    pub fn tick(
        &mut self,
        now_ns: u64,
        device_bytes: u64,
        wanted_bytes: u64,
        contenders: &[Contender],
    ) -> Option<u64> {
        if device_bytes == 0 || wanted_bytes <= device_bytes || contenders.len() < 2 {
            self.holder = None;
            return None;
        }
        let mean =
            contenders.iter().map(|c| u64::from(c.weight)).sum::<u64>() / contenders.len() as u64;
        let over = self.holder.is_none_or(|holder| {
            let Some(contender) = contenders.iter().find(|c| c.id == holder.id) else {
                return true;
            };
            let idle_since = contender.worked_at_ns.max(holder.since_ns);
            now_ns.saturating_sub(idle_since) > IDLE_NS
                || now_ns.saturating_sub(holder.since_ns) >= quantum_ns(contender, mean)
        });
        if over {
            let after = self.holder.map_or(0, |holder| holder.id);
            let next = contenders
                .iter()
                .find(|c| c.id > after)
                .or(contenders.first());
            self.holder = next.map(|next| TurnHolder {
                id: next.id,
                since_ns: now_ns,
            });
        }
        self.holder.map(|holder| holder.id)
    }
}

fn quantum_ns(contender: &Contender, mean: u64) -> u64 {
    let move_ms = contender.bytes / MOVED_PER_MS;
    let worth_ns = move_ms.saturating_mul(WORTH).saturating_mul(1_000_000);
    let worth_ns = worth_ns.clamp(SHORTEST_NS, LONGEST_NS / 2);
    let by_share = worth_ns.saturating_mul(u64::from(contender.weight)) / mean.max(1);
    by_share.clamp(SHORTEST_NS, LONGEST_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const GIB: u64 = 1 << 30;

    fn contender(id: u64, weight: u32, worked_at_ns: u64) -> Contender {
        Contender {
            id,
            bytes: 10 * GIB,
            weight,
            worked_at_ns,
        }
    }

    /// Ticks every 50 ms for `ms`; `works` says which contender works when. Returns how long each had the
    /// device.
    fn play(weights: [u32; 2], ms: u64, works: impl Fn(u64, u64) -> bool) -> ([u64; 2], usize) {
        let mut turns = Turns::default();
        let mut had = [0; 2];
        let mut worked = [0; 2];
        let (mut last, mut changes) = (None, 0);
        for now in (50..=ms).step_by(50) {
            for (id, worked) in [1, 2].into_iter().zip(&mut worked) {
                if works(id, now) {
                    *worked = now * MS;
                }
            }
            let list = [
                contender(1, weights[0], worked[0]),
                contender(2, weights[1], worked[1]),
            ];
            let holder = turns.tick(now * MS, 16 * GIB, 20 * GIB, &list);
            had[usize::from(holder == Some(2))] += 50;
            changes += usize::from(last != holder);
            last = holder;
        }
        (had, changes)
    }

    #[test]
    fn turn_length_follows_the_memory_to_move() {
        let ([one, other], changes) = play([500, 500], 100_000, |_, _| true);

        assert!(one.abs_diff(other) <= 5_000, "{one} {other}");
        assert!(changes <= 41, "{changes}");
    }

    #[test]
    fn turn_length_is_proportional_to_shares() {
        let ([one, other], _) = play([300, 700], 200_000, |_, _| true);

        assert!(
            (28..=32).contains(&(one * 100 / (one + other))),
            "{one} {other}"
        );
    }

    #[test]
    fn idle_container_loses_its_turn() {
        // The first works a tenth of the time.
        let ([one, other], _) = play([500, 500], 100_000, |id, now| id == 2 || now % 1000 < 100);

        assert!(one < 35_000 && other > 65_000, "{one} {other}");
    }

    #[test]
    fn fitting_or_single_containers_take_no_turns() {
        let mut turns = Turns::default();
        let both = [contender(1, 500, 0), contender(2, 500, 0)];

        assert_eq!(turns.tick(MS, 16 * GIB, 16 * GIB, &both), None);
        assert_eq!(turns.tick(MS, 16 * GIB, 20 * GIB, &both[..1]), None);
        assert_eq!(turns.tick(MS, 0, 20 * GIB, &both), None);
        assert_eq!(turns.tick(MS, 16 * GIB, 20 * GIB, &both), Some(1));
    }
}
