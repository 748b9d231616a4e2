//! Arrangements: which of the suitable devices a request for several takes, and the bonus that they give a node. Does
//! not decide whether a device is suitable.

use crate::request::Arrange;

/// The properties of a device that arrangements use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DeviceTraits {
    pub(crate) index: u32,
    pub(crate) group: Option<u32>,
    pub(crate) module: Option<u32>,
    /// The number of the node's devices in its module.
    pub(crate) module_size: usize,
    /// Part of a ring.
    pub(crate) ring: bool,
    /// Containers that already use it.
    pub(crate) used: u32,
    /// Of these, containers of the ask's class.
    pub(crate) own: u32,
    /// Of these, containers of other classes than the ask's.
    pub(crate) others: u32,
}

/// The devices that an arrangement chooses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Pick {
    /// The first devices in the policy's order.
    AsOrdered,
    /// The devices at these positions, in this order.
    These(Vec<usize>),
    /// No choice of these devices satisfies the rule.
    None,
}

/// The wings of eight devices: the first by index and the others.
const WING: u32 = 4;

/// Squares of four devices over both wings, in the order in which they are tried.
const SQUARES: [[u32; 4]; 6] = [
    [0, 1, 4, 5],
    [2, 3, 6, 7],
    [0, 2, 4, 6],
    [1, 3, 5, 7],
    [0, 3, 4, 7],
    [1, 2, 5, 6],
];

impl Arrange {
    /// Whether other choices of devices are invalid.
    pub(crate) fn is_strict(self) -> bool {
        matches!(self, Self::Modules { .. } | Self::Wings | Self::Row)
    }

    /// The most that `worth` can be for one container.
    pub(crate) fn most_worth(self) -> f64 {
        match self {
            Self::Anyhow | Self::Row | Self::TightestGroup { weigh: false } => 0.0,
            Self::LargestGroups { worth } | Self::Modules { worth } => f64::from(worth),
            Self::Wings => 3000.0,
            Self::Appraised | Self::TightestGroup { weigh: true } | Self::Apart => f64::INFINITY,
        }
    }
}

/// Chooses `count` of the devices, which are in the policy's order.
pub(crate) fn pick(arrange: Arrange, count: usize, devices: &[DeviceTraits]) -> Pick {
    if devices.len() < count {
        return Pick::None;
    }
    match arrange {
        Arrange::Anyhow | Arrange::Appraised => Pick::AsOrdered,
        Arrange::LargestGroups { .. } => largest_groups(count, devices),
        Arrange::Modules { .. } => modules(count, devices),
        Arrange::TightestGroup { .. } => tightest_group(count, devices),
        Arrange::Wings => wings(count, devices),
        Arrange::Row => row(count, devices),
        Arrange::Apart => {
            let mut order: Vec<(usize, &DeviceTraits)> = devices.iter().enumerate().collect();
            order.sort_by_key(|(_, device)| {
                (
                    device.own == 0 && device.others > 0,
                    device.own,
                    device.others,
                )
            });
            Pick::These(order.into_iter().map(|(at, _)| at).take(count).collect())
        }
    }
}

/// The positions of each group's devices, in the order in which the groups are first met.
fn by<K: PartialEq>(
    devices: &[DeviceTraits],
    key: impl Fn(&DeviceTraits) -> Option<K>,
) -> Vec<(K, Vec<usize>)> {
    let mut groups: Vec<(K, Vec<usize>)> = Vec::new();
    for (at, device) in devices.iter().enumerate() {
        let Some(key) = key(device) else {
            continue;
        };
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, positions)) => positions.push(at),
            None => groups.push((key, vec![at])),
        }
    }
    groups
}

fn largest_groups(count: usize, devices: &[DeviceTraits]) -> Pick {
    if count < 2 || devices.iter().any(|device| device.group.is_none()) {
        return Pick::AsOrdered;
    }
    let mut groups = by(devices, |device| device.group);
    groups.sort_by_key(|(_, positions)| std::cmp::Reverse(positions.len()));
    Pick::These(
        groups
            .into_iter()
            .flat_map(|(_, positions)| positions)
            .take(count)
            .collect(),
    )
}

fn modules(count: usize, devices: &[DeviceTraits]) -> Pick {
    let mut chosen = Vec::with_capacity(count);
    for (_, positions) in by(devices, |device| device.module) {
        let size = positions
            .first()
            .and_then(|&at| devices.get(at))
            .map_or(0, |device| device.module_size);
        if positions.len() == size && chosen.len() + size <= count {
            chosen.extend(positions);
        }
    }
    if chosen.len() == count {
        Pick::These(chosen)
    } else {
        Pick::None
    }
}

fn tightest_group(count: usize, devices: &[DeviceTraits]) -> Pick {
    let mut groups = by(devices, |device| device.group);
    groups.sort_by_key(|(_, positions)| positions.len());
    if let Some((_, positions)) = groups
        .iter()
        .find(|(_, positions)| positions.len() >= count)
    {
        return Pick::These(positions.iter().copied().take(count).collect());
    }
    let alone = (0..devices.len()).filter(|&at| devices.get(at).is_some_and(|s| s.group.is_none()));
    Pick::These(
        groups
            .into_iter()
            .flat_map(|(_, positions)| positions)
            .chain(alone)
            .take(count)
            .collect(),
    )
}

fn wings(count: usize, devices: &[DeviceTraits]) -> Pick {
    let mut order: Vec<(u32, usize)> = (0..).zip(devices).map(|(at, s)| (s.index, at)).collect();
    order.sort_unstable();
    let position = |index: u32| {
        order
            .iter()
            .find(|(known, _)| *known == index)
            .map(|(_, at)| *at)
    };
    let all = |indices: &[u32]| -> Option<Vec<usize>> {
        indices.iter().map(|&index| position(index)).collect()
    };
    let take = |wing: &[(u32, usize)]| wing.iter().take(count).map(|(_, at)| *at).collect();
    let split = order.partition_point(|(index, _)| *index < WING);
    let (left, right) = order.split_at(split);
    // A wing with exactly this many free devices is already partly used, or is then fully used.
    let fitting: &[usize] = match count {
        1 => &[1, 3, 2, 4],
        2 => &[2, 3, 4],
        4 => &[4],
        8 if order.len() == 8 => return Pick::These(order.iter().map(|(_, at)| *at).collect()),
        _ => return Pick::None,
    };
    for &free in fitting {
        if left.len() == free {
            return Pick::These(take(left));
        }
        if right.len() == free {
            return Pick::These(take(right));
        }
    }
    let over_both = match count {
        2 => (0..WING).find_map(|index| all(&[index, index + WING])),
        4 => {
            let squares: Vec<&[u32; 4]> = SQUARES
                .iter()
                .filter(|square| all(*square).is_some())
                .collect();
            let leaves_linked = |square: &[u32; 4]| {
                let rest: Vec<u32> = order
                    .iter()
                    .map(|(index, _)| *index)
                    .filter(|index| !square.contains(index))
                    .collect();
                matches!(rest.as_slice(), [a, b] if are_linked(*a, *b))
            };
            let best = if order.len() == 6 {
                squares
                    .iter()
                    .find(|square| leaves_linked(square))
                    .or(squares.last())
            } else {
                squares.first()
            };
            best.and_then(|square| all(*square))
        }
        _ => None,
    };
    over_both.map_or(Pick::None, Pick::These)
}

fn are_linked(one: u32, other: u32) -> bool {
    one / WING == other / WING || one.abs_diff(other) == WING
}

fn row(count: usize, devices: &[DeviceTraits]) -> Pick {
    if count < 2 {
        return Pick::AsOrdered;
    }
    let mut order: Vec<(u32, usize)> = (0..)
        .zip(devices)
        .filter(|(_, device)| device.used == 0)
        .map(|(at, device)| (device.index, at))
        .collect();
    order.sort_unstable();
    let ring = devices.iter().all(|device| device.ring);
    let Ok(length) = u32::try_from(count) else {
        return Pick::None;
    };
    if !ring && !matches!(length, 4 | 8 | 16) {
        return Pick::None;
    }
    order
        .windows(count)
        .find(|devices| {
            let (Some((first, _)), Some((last, _))) = (devices.first(), devices.last()) else {
                return false;
            };
            last - first == length - 1 && (ring || first % length == 0)
        })
        .map_or(Pick::None, |devices| {
            Pick::These(devices.iter().map(|(_, at)| *at).collect())
        })
}

/// The node's bonus for the choice; more is better. `taken` are the container's devices, `devices` all of the vendor's
/// devices on the node, both in their state before the choice.
pub(crate) fn worth(arrange: Arrange, taken: &[DeviceTraits], devices: &[DeviceTraits]) -> f64 {
    match arrange {
        Arrange::LargestGroups { worth } | Arrange::Modules { worth } => {
            if taken.is_empty() || devices.iter().any(|device| device.group.is_none()) {
                return 0.0;
            }
            let largest = by(taken, |device| device.group)
                .into_iter()
                .map(|(_, positions)| positions.len())
                .max()
                .unwrap_or(0);
            f64::from(worth) * ratio(largest, taken.len())
        }
        Arrange::TightestGroup { weigh: true } => {
            let idle: Vec<DeviceTraits> = devices.iter().copied().filter(|s| s.used == 0).collect();
            let rest: Vec<DeviceTraits> = idle
                .iter()
                .copied()
                .filter(|device| !taken.iter().any(|taken| taken.index == device.index))
                .collect();
            let (before, kept, left) = (pairs(&idle), pairs(taken), pairs(&rest));
            // A pair that is taken counts ten times as much as a pair that is split.
            10_000.0 * (100.0 * kept - 10.0 * (before - kept - left))
        }
        Arrange::Wings => {
            let used = |device: &DeviceTraits| device.used > 0;
            let before = broken(devices.iter().filter(|device| used(device)));
            let after = broken(devices.iter().filter(|device| {
                used(device) || taken.iter().any(|taken| taken.index == device.index)
            }));
            match after - before {
                ..=-1 => 3000.0,
                0 => 2000.0,
                1 => 1000.0,
                _ => 0.0,
            }
        }
        Arrange::Apart => taken
            .iter()
            .map(|device| {
                let (own, others) = (f64::from(device.own), f64::from(device.others));
                if device.own == 0 {
                    -1_000_000.0 * others
                } else {
                    -200_000.0 * own - 20_000.0 * others
                }
            })
            .sum(),
        // The node's own appraisal is added once, for the whole pod.
        Arrange::Appraised
        | Arrange::Anyhow
        | Arrange::Row
        | Arrange::TightestGroup { weigh: false } => 0.0,
    }
}

/// Pairs of devices of one group.
fn pairs(devices: &[DeviceTraits]) -> f64 {
    by(devices, |device| device.group)
        .into_iter()
        .map(|(_, positions)| positions.len())
        .map(|count| ratio(count * count.saturating_sub(1), 2))
        .sum()
}

/// How fragmented the wings are: 0 for a fully used wing, 2 for one with a single used device, otherwise 1; and 1 for
/// an idle node.
fn broken<'a>(used: impl Iterator<Item = &'a DeviceTraits>) -> i32 {
    let (mut left, mut right) = (0, 0);
    for device in used {
        if device.index < WING {
            left += 1;
        } else {
            right += 1;
        }
    }
    let wing = |used: i32| match used {
        4 => 0,
        1 => 2,
        _ => 1,
    };
    if left == 0 && right == 0 {
        1
    } else {
        wing(left) + wing(right)
    }
}

#[allow(
    clippy::cast_precision_loss,
    reason = "counts of a node's devices, at most 1024"
)]
fn ratio(part: usize, whole: usize) -> f64 {
    part as f64 / whole as f64
}
