//! Requests that accept devices of any vendor: turns one demand into a question for each vendor, and chooses the best
//! of the answers. Each question is an ordinary request, so this file does not decide whether a device fits.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::cluster::{Among, Cluster, MOST_CHOICES, Outcome, Question};
use crate::exchange::{self, Maker, NodeFigures, Wanted};
use crate::fit;
use crate::inventory::{Device, Vendor};
use crate::misfit::{Misfit, NodeMisfit};
use crate::node::NodeState;
use crate::request::{AnyVendor, Demand, Family, NodePolicy, Request};
use crate::reservation::{Granted, Placement};

impl Demand {
    /// The number of devices like this one that satisfy the demand if no pod uses them; `None` if no number does.
    fn count_on(&self, device: &Device) -> Option<u32> {
        let parts = |asked: u64, each: u64| match (asked, each) {
            (0, _) => Some(1),
            (_, 0) => None,
            (asked, each) => u32::try_from(asked.div_ceil(each)).ok(),
        };
        let memory = parts(self.memory_bytes, device.memory_bytes)?;
        let [fp16, fp32] = device.gflops;
        let speed = parts(self.fp16, fp16)?.max(parts(self.fp32, fp32)?);
        Some(memory.max(speed).max(self.devices).max(1))
    }
}

impl AnyVendor {
    /// The part of the demand that the score uses.
    fn wanted(&self) -> Wanted {
        let sum = |of: fn(&Demand) -> u64| -> u64 {
            self.wishes
                .iter()
                .map(|wish| of(&wish.demand))
                .fold(0, u64::saturating_add)
        };
        let fp16 = sum(|demand| demand.fp16);
        Wanted {
            anything: fp16 > 0 || sum(|demand| demand.memory_bytes) > 0,
            fp16_tflops: tflops(fp16),
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a score is a ratio: what is lost above 2^53 GFLOPS is no cluster's"
)]
fn tflops(gflops: u64) -> f64 {
    gflops as f64 / 1000.0
}

/// An ordinary request that would satisfy the demand.
struct Choice {
    tier: u32,
    maker: Maker,
    vendor: Vendor,
    request: Request,
}

/// The result of a choice: where it fits, and its score.
struct Found {
    score: i64,
    fullness: f64,
    placement: Placement,
}

impl Found {
    fn is_better_than(&self, other: &Self, policy: NodePolicy) -> bool {
        let fullness = match policy {
            NodePolicy::Binpack => self.fullness.total_cmp(&other.fullness),
            NodePolicy::Spread => other.fullness.total_cmp(&self.fullness),
        };
        self.score
            .cmp(&other.score)
            .then(fullness)
            .then_with(|| other.placement.node.cmp(&self.placement.node))
            .is_gt()
    }
}

impl Request {
    /// Whether the container at this position asks for devices of this vendor, or accepts them.
    pub fn may_take(&self, container: usize, vendor: &str) -> bool {
        let asks = self.containers.get(container).map(|one| &one.asks);
        let wishes = |any: &AnyVendor| {
            any.wishes.iter().any(|wish| wish.container == container)
                && any
                    .families
                    .iter()
                    .any(|family| family.vendor.as_str() == vendor)
        };
        asks.into_iter()
            .flatten()
            .any(|ask| ask.vendor.as_str() == vendor)
            || self.any.as_deref().is_some_and(wishes)
    }

    /// The ordinary request that these grants answer: its asks for any vendor become asks for the vendor of the
    /// grants.
    #[must_use]
    pub fn given(mut self, granted: &[Granted]) -> Self {
        let Some(any) = self.any.take() else {
            return self;
        };
        for (at, wish) in any.wishes.iter().enumerate() {
            let Some(grants) = granted.get(wish.container).map(|one| &one.grants) else {
                continue;
            };
            let ask = grants.first().and_then(|first| {
                let family = any.families.iter().find(|it| it.vendor == first.vendor)?;
                family.asks.get(at)?.get(grants.len().checked_sub(1)?)
            });
            if let (Some(ask), Some(container)) = (ask, self.containers.get_mut(wish.container)) {
                container.asks.push(ask.clone());
            }
        }
        self
    }
}

impl Cluster {
    /// As [`Cluster::place`], for a request that accepts any vendor's devices, as if the pods with these uids held
    /// nothing.
    pub(crate) fn place_any(
        &self,
        request: &Request,
        any: &AnyVendor,
        among: Among<'_>,
        leaving: &[&str],
    ) -> Outcome {
        let choices = self.choices(request, any);
        let mut budget = MOST_CHOICES;
        let mut tiers: Vec<u32> = choices.iter().map(|choice| choice.tier).collect();
        tiers.sort_unstable();
        tiers.dedup();
        for tier in tiers {
            let mut best: Option<Found> = None;
            for choice in choices.iter().filter(|choice| choice.tier == tier) {
                let question = Question::without(self, &choice.request, leaving);
                for (_, node) in self.in_question(among) {
                    let Some(node) = node.and_then(|node| question.node(node)) else {
                        continue;
                    };
                    if !question.plan.may_fit(&node.summary) {
                        continue;
                    }
                    let Some(placement) = fit::place(node, &question.plan, &mut budget) else {
                        continue;
                    };
                    let found = Found {
                        score: score(any, choice.maker, &choice.vendor, node),
                        fullness: question.score(node),
                        placement,
                    };
                    if best
                        .as_ref()
                        .is_none_or(|best| found.is_better_than(best, request.node_policy))
                    {
                        best = Some(found);
                    }
                }
            }
            if let Some(best) = best {
                return Ok(best.placement);
            }
        }
        Err(self.misfits_of_any(&choices, among, leaving))
    }

    /// The most informative misfit of each node in question.
    fn misfits_of_any(
        &self,
        choices: &[Choice],
        among: Among<'_>,
        leaving: &[&str],
    ) -> Vec<NodeMisfit> {
        let questions: Vec<Question<'_>> = choices
            .iter()
            .map(|choice| Question::without(self, &choice.request, leaving))
            .collect();
        let mut misfits: Vec<NodeMisfit> = self
            .in_question(among)
            .map(|(name, node)| {
                let misfit = questions
                    .iter()
                    .filter_map(|question| {
                        let node = node.and_then(|node| question.node(node))?;
                        Some(fit::misfit(node, &question.plan))
                    })
                    .max_by_key(says);
                let has_devices = node.is_some_and(|node| !node.devices.is_empty());
                NodeMisfit {
                    node: node.map_or_else(|| name.into(), |node| Arc::clone(&node.name)),
                    misfit: misfit.unwrap_or(if has_devices {
                        Misfit::NoVendor
                    } else {
                        Misfit::UnknownNode
                    }),
                }
            })
            .collect();
        misfits.sort_by(|a, b| a.node.cmp(&b.node));
        misfits
    }

    /// As [`Cluster::rank`], with 0 to 100 points for each node on which the request fits.
    pub(crate) fn rank_any(
        &self,
        request: &Request,
        any: &AnyVendor,
        among: Among<'_>,
    ) -> Vec<(Arc<str>, Result<f64, Misfit>)> {
        let names: BTreeSet<Arc<str>> = self
            .in_question(among)
            .map(|(name, node)| node.map_or_else(|| name.into(), |node| Arc::clone(&node.name)))
            .collect();
        names
            .into_iter()
            .map(|name| {
                let one = [&*name];
                let result = match self.place_any(request, any, Among::Names(&one), &[]) {
                    Ok(placement) => Ok(f64::from(self.score_of_any(any, &placement))),
                    Err(mut misfits) => {
                        Err(misfits.pop().map_or(Misfit::UnknownNode, |of| of.misfit))
                    }
                };
                (name, result)
            })
            .collect()
    }

    /// The score of a placement of such a request, 0 to 100, by the node's devices of the vendor.
    pub fn score_of_any(&self, any: &AnyVendor, placement: &Placement) -> i32 {
        let Some(VendorOnNode { node, vendor }) = self.granted_any(any, placement) else {
            return 0;
        };
        let maker = any
            .families
            .iter()
            .find(|family| family.vendor == *vendor)
            .map_or(Maker::Nvidia, |family| family.maker);
        i32::try_from(score(any, maker, vendor, node)).unwrap_or(0)
    }

    fn granted_any<'a>(
        &'a self,
        any: &AnyVendor,
        placement: &'a Placement,
    ) -> Option<VendorOnNode<'a>> {
        let wish = any.wishes.first()?;
        let grant = placement.containers.get(wish.container)?.grants.first()?;
        Some(VendorOnNode {
            node: self.node_state(&placement.node)?,
            vendor: &grant.vendor,
        })
    }

    /// The ordinary requests that would satisfy the request, the preferred ones first.
    pub(crate) fn requests_of_any(&self, request: &Request) -> Vec<Request> {
        let Some(any) = &request.any else {
            return Vec::new();
        };
        let mut choices = self.choices(request, any);
        choices.sort_by_key(|choice| choice.tier);
        choices.into_iter().map(|choice| choice.request).collect()
    }

    /// A request for each family and for each number of devices that the family's models need.
    fn choices(&self, request: &Request, any: &AnyVendor) -> Vec<Choice> {
        let mut choices = Vec::new();
        for family in &any.families {
            for (counts, models) in self.counts(family, any) {
                let mut concrete = request.clone();
                concrete.any = None;
                let mut complete = true;
                for (at, wish) in any.wishes.iter().enumerate() {
                    let ask = counts
                        .get(at)
                        .and_then(|count| usize::try_from(*count).ok())
                        .and_then(|count| family.asks.get(at)?.get(count.checked_sub(1)?));
                    let container = concrete.containers.get_mut(wish.container);
                    match (ask, container) {
                        (Some(ask), Some(container)) => {
                            let mut ask = ask.clone();
                            ask.select.models.clone_from(&models);
                            container.asks.push(ask);
                        }
                        _ => complete = false,
                    }
                }
                if !complete {
                    continue;
                }
                let several = counts.iter().any(|count| *count > 1);
                for bound in [true, false] {
                    if bound && !(any.near && several) {
                        continue;
                    }
                    let mut request = concrete.clone();
                    if bound {
                        for wish in &any.wishes {
                            let container = request.containers.get_mut(wish.container);
                            for ask in container.into_iter().flat_map(|it| &mut it.asks) {
                                ask.numa_bind = true;
                            }
                        }
                    }
                    choices.push(Choice {
                        tier: family.tier.saturating_mul(2) + u32::from(any.near && !bound),
                        maker: family.maker,
                        vendor: family.vendor.clone(),
                        request,
                    });
                }
            }
        }
        choices
    }

    /// The numbers of devices that each wish takes of this family, with the models that need these numbers. Models
    /// for which no number is enough are listed with the smallest numbers, so that the answer explains why.
    fn counts(&self, family: &Family, any: &AnyVendor) -> Vec<(Vec<u32>, Vec<String>)> {
        let fixed = any.wishes.iter().all(|wish| wish.demand.devices > 0);
        let least = || -> Vec<u32> {
            let wishes = any.wishes.iter();
            wishes.map(|wish| wish.demand.devices.max(1)).collect()
        };
        let mut seen: BTreeSet<(&str, u64)> = BTreeSet::new();
        let mut groups: Vec<(Vec<u32>, Vec<String>)> = Vec::new();
        for device in self.devices_of(&family.vendor) {
            if !seen.insert((&device.model, device.memory_bytes)) {
                continue;
            }
            let counts = if fixed {
                least()
            } else {
                let counts: Option<Vec<u32>> = any
                    .wishes
                    .iter()
                    .zip(&family.asks)
                    .map(|(wish, asks)| {
                        let count = wish.demand.count_on(device)?;
                        let most = u32::try_from(asks.len()).unwrap_or(u32::MAX);
                        (count <= most).then_some(count)
                    })
                    .collect();
                counts.unwrap_or_else(least)
            };
            match groups.iter_mut().find(|(of, _)| *of == counts) {
                Some((_, models)) if !models.contains(&device.model) => {
                    models.push(device.model.clone());
                }
                Some(_) => {}
                None => groups.push((counts, vec![device.model.clone()])),
            }
        }
        // If all models need the same numbers, a model that joins later needs no question of its own.
        if let [(_, models)] = groups.as_mut_slice() {
            models.clear();
        }
        groups.sort();
        groups
    }
}

struct VendorOnNode<'a> {
    node: &'a NodeState,
    vendor: &'a Vendor,
}

/// How informative a misfit is.
fn says(misfit: &Misfit) -> u32 {
    match misfit {
        Misfit::UnknownNode | Misfit::NoVendor => 0,
        Misfit::TooFewDevices { present: 0, .. } => 1,
        Misfit::TooFewDevices { .. } => 2,
        Misfit::Devices { .. } => 3,
    }
}

/// The score of the node for the demand, by its devices of this vendor.
fn score(any: &AnyVendor, maker: Maker, vendor: &Vendor, node: &NodeState) -> i64 {
    let of_vendor = || {
        node.devices
            .iter()
            .enumerate()
            .filter(|(_, device)| device.device.vendor == *vendor)
    };
    let devices = u32::try_from(of_vendor().count()).unwrap_or(u32::MAX);
    let sum = |of: &dyn Fn(&crate::node::DeviceState) -> u64| -> u64 {
        of_vendor().fold(0, |sum, (_, device)| sum.saturating_add(of(device)))
    };
    let healthy = of_vendor().filter(|(_, device)| device.healthy).count();
    let first = of_vendor().next().map(|(_, device)| &device.device);
    let figures = NodeFigures {
        devices,
        profile: first.and_then(|first| any.table.find(maker, &first.model, first.memory_bytes)),
        vram_bytes: sum(&|device| device.total.memory_bytes),
        vram_used_bytes: sum(&|device| device.used.memory_bytes),
        fp16_tflops: tflops(sum(&|device| {
            device.device.gflops.first().copied().unwrap_or(0)
        })),
        health: if devices == 0 {
            100.0
        } else {
            100.0 * f64::from(u32::try_from(healthy).unwrap_or(u32::MAX)) / f64::from(devices)
        },
        fast_link: of_vendor().any(|(one, _)| {
            of_vendor().any(|(other, _)| one != other && node.pair(one, other) >= FAST_PAIR)
        }),
    };
    exchange::raw(&any.table, any.wanted(), &figures)
}

/// Two devices with at least this pair score have a link of their vendor: one NVLink scores 100, the best way over PCIe
/// less.
const FAST_PAIR: i64 = 100;
