//! Arrangements: which of the suitable cards a request for several takes, and the bonus that they give a node. Never
//! decides whether a card is suitable.

use crate::request::Arrange;

/// The properties of a card that arrangements use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CardTraits {
    pub(crate) index: u32,
    pub(crate) group: Option<u32>,
    pub(crate) module: Option<u32>,
    /// Number of the node's cards in its module.
    pub(crate) module_size: usize,
    /// Part of a ring.
    pub(crate) ring: bool,
    /// Containers that already use it.
    pub(crate) used: u32,
    /// Of these, containers of the ask's class.
    pub(crate) own: u32,
    /// Of these, containers of other classes.
    pub(crate) others: u32,
}

/// The cards that an arrangement chooses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Pick {
    /// The first cards in the policy's order.
    AsOrdered,
    /// The cards at these positions, in this order.
    These(Vec<usize>),
    /// No choice of these cards satisfies the rule.
    None,
}

/// The wings of eight cards: the first by index and the others.
const WING: u32 = 4;

/// Squares of four cards over both wings, in the order in which they are tried.
const SQUARES: [[u32; 4]; 6] = [
    [0, 1, 4, 5],
    [2, 3, 6, 7],
    [0, 2, 4, 6],
    [1, 3, 5, 7],
    [0, 3, 4, 7],
    [1, 2, 5, 6],
];

impl Arrange {
    /// Whether other choices of cards are invalid.
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

/// Chooses `count` of the cards, which are in the policy's order.
pub(crate) fn pick(arrange: Arrange, count: usize, cards: &[CardTraits]) -> Pick {
    if cards.len() < count {
        return Pick::None;
    }
    match arrange {
        Arrange::Anyhow | Arrange::Appraised => Pick::AsOrdered,
        Arrange::LargestGroups { .. } => largest_groups(count, cards),
        Arrange::Modules { .. } => modules(count, cards),
        Arrange::TightestGroup { .. } => tightest_group(count, cards),
        Arrange::Wings => wings(count, cards),
        Arrange::Row => row(count, cards),
        Arrange::Apart => {
            let mut order: Vec<(usize, &CardTraits)> = cards.iter().enumerate().collect();
            order
                .sort_by_key(|(_, card)| (card.own == 0 && card.others > 0, card.own, card.others));
            Pick::These(order.into_iter().map(|(at, _)| at).take(count).collect())
        }
    }
}

/// The positions of each group's cards, in the order in which the groups are first met.
fn by<K: PartialEq>(
    cards: &[CardTraits],
    key: impl Fn(&CardTraits) -> Option<K>,
) -> Vec<(K, Vec<usize>)> {
    let mut groups: Vec<(K, Vec<usize>)> = Vec::new();
    for (at, card) in cards.iter().enumerate() {
        let Some(key) = key(card) else {
            continue;
        };
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, positions)) => positions.push(at),
            None => groups.push((key, vec![at])),
        }
    }
    groups
}

fn largest_groups(count: usize, cards: &[CardTraits]) -> Pick {
    if count < 2 || cards.iter().any(|card| card.group.is_none()) {
        return Pick::AsOrdered;
    }
    let mut groups = by(cards, |card| card.group);
    groups.sort_by_key(|(_, positions)| std::cmp::Reverse(positions.len()));
    Pick::These(
        groups
            .into_iter()
            .flat_map(|(_, positions)| positions)
            .take(count)
            .collect(),
    )
}

fn modules(count: usize, cards: &[CardTraits]) -> Pick {
    let mut chosen = Vec::with_capacity(count);
    for (_, positions) in by(cards, |card| card.module) {
        let size = positions
            .first()
            .and_then(|&at| cards.get(at))
            .map_or(0, |card| card.module_size);
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

fn tightest_group(count: usize, cards: &[CardTraits]) -> Pick {
    let mut groups = by(cards, |card| card.group);
    groups.sort_by_key(|(_, positions)| positions.len());
    if let Some((_, positions)) = groups
        .iter()
        .find(|(_, positions)| positions.len() >= count)
    {
        return Pick::These(positions.iter().copied().take(count).collect());
    }
    let alone = (0..cards.len()).filter(|&at| cards.get(at).is_some_and(|s| s.group.is_none()));
    Pick::These(
        groups
            .into_iter()
            .flat_map(|(_, positions)| positions)
            .chain(alone)
            .take(count)
            .collect(),
    )
}

fn wings(count: usize, cards: &[CardTraits]) -> Pick {
    let mut order: Vec<(u32, usize)> = (0..).zip(cards).map(|(at, s)| (s.index, at)).collect();
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
    // A wing with exactly this many free cards is already partly used, or is used up completely.
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

fn row(count: usize, cards: &[CardTraits]) -> Pick {
    if count < 2 {
        return Pick::AsOrdered;
    }
    let mut order: Vec<(u32, usize)> = (0..)
        .zip(cards)
        .filter(|(_, card)| card.used == 0)
        .map(|(at, card)| (card.index, at))
        .collect();
    order.sort_unstable();
    let ring = cards.iter().all(|card| card.ring);
    let Ok(length) = u32::try_from(count) else {
        return Pick::None;
    };
    if !ring && !matches!(length, 4 | 8 | 16) {
        return Pick::None;
    }
    order
        .windows(count)
        .find(|cards| {
            let (Some((first, _)), Some((last, _))) = (cards.first(), cards.last()) else {
                return false;
            };
            last - first == length - 1 && (ring || first % length == 0)
        })
        .map_or(Pick::None, |cards| {
            Pick::These(cards.iter().map(|(_, at)| *at).collect())
        })
}

/// The node's bonus for the choice; more is better. `taken` are the container's cards, `cards` all of the vendor's
/// cards on the node, both in their state before the choice.
pub(crate) fn worth(arrange: Arrange, taken: &[CardTraits], cards: &[CardTraits]) -> f64 {
    match arrange {
        Arrange::LargestGroups { worth } | Arrange::Modules { worth } => {
            if taken.is_empty() || cards.iter().any(|card| card.group.is_none()) {
                return 0.0;
            }
            let largest = by(taken, |card| card.group)
                .into_iter()
                .map(|(_, positions)| positions.len())
                .max()
                .unwrap_or(0);
            f64::from(worth) * ratio(largest, taken.len())
        }
        Arrange::TightestGroup { weigh: true } => {
            let idle: Vec<CardTraits> = cards.iter().copied().filter(|s| s.used == 0).collect();
            let rest: Vec<CardTraits> = idle
                .iter()
                .copied()
                .filter(|card| !taken.iter().any(|taken| taken.index == card.index))
                .collect();
            let (before, kept, left) = (pairs(&idle), pairs(taken), pairs(&rest));
            // A pair that is taken counts ten times as much as a pair that is split.
            10_000.0 * (100.0 * kept - 10.0 * (before - kept - left))
        }
        Arrange::Wings => {
            let used = |card: &CardTraits| card.used > 0;
            let before = broken(cards.iter().filter(|card| used(card)));
            let after =
                broken(cards.iter().filter(|card| {
                    used(card) || taken.iter().any(|taken| taken.index == card.index)
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
            .map(|card| {
                let (own, others) = (f64::from(card.own), f64::from(card.others));
                if card.own == 0 {
                    -1_000_000.0 * others
                } else {
                    -200_000.0 * own - 20_000.0 * others
                }
            })
            .sum(),
        // The node's own appraisal is added once for the whole pod.
        Arrange::Appraised
        | Arrange::Anyhow
        | Arrange::Row
        | Arrange::TightestGroup { weigh: false } => 0.0,
    }
}

/// Pairs of cards of one group.
fn pairs(cards: &[CardTraits]) -> f64 {
    by(cards, |card| card.group)
        .into_iter()
        .map(|(_, positions)| positions.len())
        .map(|count| ratio(count * count.saturating_sub(1), 2))
        .sum()
}

/// How fragmented the wings are: 0 for a wing in full use, 2 for one with a single used card, else 1; and 1 for an
/// idle node.
fn broken<'a>(used: impl Iterator<Item = &'a CardTraits>) -> i32 {
    let (mut left, mut right) = (0, 0);
    for card in used {
        if card.index < WING {
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
    reason = "counts of a node's cards, at most 1024"
)]
fn ratio(part: usize, whole: usize) -> f64 {
    part as f64 / whole as f64
}
