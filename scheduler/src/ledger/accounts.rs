//! Accounts of what the workloads of the cluster hold: how much GPU time and memory they asked for and were given.
//! Values in, values out: the time is an argument.
//!
//! A bound pod counts from the moment at which this replica learns of its binding until its end, however short that is.
//! The sum of a workload stays when its pods have ended.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kube_api::object::Pod;
use kube_api::request::{self, Defaults};
use kube_api::workload;
use placement::{Cluster, Compute, Device, Grant, Kind, Placement};

use super::Ledger;

/// The most workloads that have a sum of their own; more share one in each namespace, without a name.
const MOST: usize = 10_000;
/// A workload without a pod is forgotten after this. By then its last value has been read many times.
const KEPT: Duration = Duration::from_secs(2 * 3600);
/// A new sum is shown as 0 for this long, so that every scraper sees it grow: `increase()` of a series that appears
/// with a value does not count that value.
const FIRST_AT_ZERO: Duration = Duration::from_secs(60);

const GIB: f64 = 1_073_741_824.0;

/// The account to which a pod belongs.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountKey {
    /// Namespace of the pods.
    pub namespace: String,
    /// Their team.
    pub team: String,
    /// The kind of the workload, in lower case.
    pub kind: String,
    /// The workload.
    pub workload: String,
}

/// The sums of what a workload has held, as they are shown.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AccountView {
    /// Its account.
    pub key: AccountKey,
    /// Sums over time.
    pub held: Amounts,
}

/// Amounts at one moment, or their sums over time in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Amounts {
    /// GPUs' time that the limits allow: the cap of each device, or the whole device without a cap.
    pub asked: f64,
    /// GPUs that are kept from other pods: of each device the larger part of its compute and its memory.
    pub granted: f64,
    /// Memory that was given, in GiB.
    pub gib: f64,
}

impl Amounts {
    fn plus(self, other: Self) -> Self {
        Self {
            asked: self.asked + other.asked,
            granted: self.granted + other.granted,
            gib: self.gib + other.gib,
        }
    }

    fn times(self, time: Duration) -> Self {
        let seconds = time.as_secs_f64();
        Self {
            asked: self.asked * seconds,
            granted: self.granted * seconds,
            gib: self.gib * seconds,
        }
    }

    fn peak(self, other: Self) -> Self {
        Self {
            asked: self.asked.max(other.asked),
            granted: self.granted.max(other.granted),
            gib: self.gib.max(other.gib),
        }
    }
}

/// All accounts of the cluster.
#[derive(Debug)]
pub(super) struct Accounts {
    team_label: String,
    sums: BTreeMap<Arc<AccountKey>, Sum>,
    open: HashMap<Arc<str>, Open>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    closed: Amounts,
    began: Duration,
    /// Pods that hold something now.
    open: usize,
    /// When the last of them ended.
    left: Duration,
}

/// A pod that holds devices.
#[derive(Debug)]
struct Open {
    key: Arc<AccountKey>,
    held: Amounts,
    since: Duration,
    /// The requests of its containers, to compute its amounts again.
    asks: Vec<VendorRequests>,
    /// A device of it was not known: its amounts are rough.
    is_rough: bool,
}

/// A container's asks: for each vendor the compute, and whether whole devices were asked for.
type VendorRequests = Vec<(placement::Vendor, Compute, bool)>;

impl Default for Accounts {
    fn default() -> Self {
        Self {
            team_label: "team".to_owned(),
            sums: BTreeMap::new(),
            open: HashMap::new(),
        }
    }
}

impl Accounts {
    fn open(&mut self, uid: Arc<str>, key: AccountKey, mut open: Open, now: Duration) {
        let key = self.key(key);
        let sum = self.sums.entry(Arc::clone(&key)).or_insert(Sum {
            began: now,
            ..Sum::default()
        });
        sum.open = sum.open.saturating_add(1);
        open.key = key;
        self.open.insert(uid, open);
    }

    /// The account, or the one of all others where there are too many.
    fn key(&self, key: AccountKey) -> Arc<AccountKey> {
        let find = |key: &AccountKey| self.sums.get_key_value(key).map(|(key, _)| Arc::clone(key));
        if let Some(known) = find(&key) {
            return known;
        }
        if self.sums.len() < MOST {
            return Arc::new(key);
        }
        let others = AccountKey {
            namespace: key.namespace,
            ..AccountKey::default()
        };
        find(&others).unwrap_or_else(|| {
            Arc::new(if self.sums.len() < 2 * MOST {
                others
            } else {
                AccountKey::default()
            })
        })
    }

    /// Puts what an open pod has held up to now into its sum.
    fn settle(&mut self, uid: &str, now: Duration) {
        if let Some(open) = self.open.get_mut(uid) {
            let held = open.held.times(now.saturating_sub(open.since));
            open.since = open.since.max(now);
            if let Some(sum) = self.sums.get_mut(&open.key) {
                sum.closed = sum.closed.plus(held);
            }
        }
    }

    pub(super) fn close(&mut self, uid: &str, now: Duration) {
        self.settle(uid, now);
        let Some(open) = self.open.remove(uid) else {
            return;
        };
        if let Some(sum) = self.sums.get_mut(&open.key) {
            sum.open = sum.open.saturating_sub(1);
            sum.left = now;
        }
    }

    /// Forgets workloads that have had no pod for long.
    pub(super) fn sweep(&mut self, now: Duration) {
        self.sums
            .retain(|_, sum| sum.open > 0 || now.saturating_sub(sum.left) < KEPT);
    }

    fn views(&self, now: Duration) -> Vec<AccountView> {
        let mut sums: BTreeMap<&AccountKey, Amounts> = self
            .sums
            .iter()
            .map(|(key, sum)| (&**key, sum.closed))
            .collect();
        for open in self.open.values() {
            if let Some(sum) = sums.get_mut(&*open.key) {
                *sum = sum.plus(open.held.times(now.saturating_sub(open.since)));
            }
        }
        let shown = sums.into_iter().map(|(key, held)| {
            let began = self.sums.get(key).map_or(now, |sum| sum.began);
            let is_new = now.saturating_sub(began) < FIRST_AT_ZERO;
            AccountView {
                key: key.clone(),
                held: if is_new { Amounts::default() } else { held },
            }
        });
        shown.collect()
    }
}

impl Ledger {
    /// The same, with this label of pods as their team.
    #[must_use]
    pub fn with_team_label(mut self, label: &str) -> Self {
        label.clone_into(&mut self.accounts.team_label);
        self
    }

    /// The accounts of all workloads, up to `now`.
    pub fn accounts(&self, now: Duration) -> Vec<AccountView> {
        self.accounts.views(now)
    }

    /// Begins to count a bound pod, unless it is counted already.
    pub(super) fn open_account(&mut self, pod: &Pod, uid: &str, now: Duration) {
        if self.accounts.open.contains_key(uid) {
            return;
        }
        let Some(held) = self.cluster.reservation(uid) else {
            return;
        };
        let asks = asks(pod, &self.vendors);
        let (amounts, is_rough) = amounts(&held.placement, held.initialised, &asks, &self.cluster);
        let (kind, workload) = workload::of(pod);
        let key = AccountKey {
            namespace: held.pod.namespace.clone(),
            team: workload::team(pod, &self.accounts.team_label),
            kind,
            workload,
        };
        let open = Open {
            key: Arc::default(),
            held: amounts,
            since: now,
            asks,
            is_rough,
        };
        self.accounts.open(uid.into(), key, open, now);
    }

    /// The pod holds another amount from now on.
    pub(super) fn weigh_account(&mut self, uid: &str, now: Duration) {
        self.accounts.settle(uid, now);
        let Some(held) = self.cluster.reservation(uid) else {
            return;
        };
        if let Some(open) = self.accounts.open.get_mut(uid) {
            (open.held, open.is_rough) =
                amounts(&held.placement, held.initialised, &open.asks, &self.cluster);
        }
    }

    /// Weighs the pods again that were read before their nodes, and forgets workloads that are gone for long.
    pub(super) fn tend_accounts(&mut self, now: Duration) {
        let rough = self.accounts.open.iter().filter(|(_, open)| open.is_rough);
        let rough: Vec<Arc<str>> = rough.map(|(uid, _)| Arc::clone(uid)).collect();
        for uid in rough {
            self.weigh_account(&uid, now);
        }
        self.accounts.sweep(now);
    }
}

/// The compute that each container asks for; empty if the pod's request cannot be read.
fn asks(pod: &Pod, vendors: &kube_api::vendor::Vendors) -> Vec<VendorRequests> {
    let Ok(request) = request::request(pod, vendors, &Defaults::default()) else {
        return Vec::new();
    };
    let containers = request.containers.into_iter().map(|container| {
        let asks = container.asks.into_iter();
        asks.map(|ask| (ask.vendor, ask.compute, ask.exclusive))
            .collect()
    });
    containers.collect()
}

/// The amounts that a placement holds at one moment, and whether one of its devices is unknown.
fn amounts(
    placement: &Placement,
    initialised: bool,
    asks: &[VendorRequests],
    cluster: &Cluster,
) -> (Amounts, bool) {
    let node = cluster.node(&placement.node);
    let mut is_rough = false;
    let (mut apps, mut sidecars, mut init) = <(Amounts, Amounts, Amounts)>::default();
    for (at, granted) in placement.containers.iter().enumerate() {
        let mut sum = Amounts::default();
        for grant in &granted.grants {
            let view = node.and_then(|node| node.device(&grant.device));
            is_rough |= view.is_none();
            let ask = asks.get(at).into_iter().flatten();
            let ask = ask
                .filter(|(vendor, _, _)| *vendor == grant.vendor)
                .map(|(_, compute, exclusive)| (*compute, *exclusive))
                .next();
            sum = sum.plus(amounts_of(grant, ask, view.map(|view| view.device())));
        }
        match granted.kind {
            Kind::App => apps = apps.plus(sum),
            Kind::Sidecar => sidecars = sidecars.plus(sum),
            Kind::Init if initialised => {}
            Kind::Init => init = init.peak(sum),
        }
    }
    (sidecars.plus(apps.peak(init)), is_rough)
}

/// The amounts of one grant. A device that is not known counts by the units of NVIDIA's.
fn amounts_of(grant: &Grant, ask: Option<(Compute, bool)>, device: Option<&Device>) -> Amounts {
    let (compute, is_exclusive) = ask.unwrap_or((Compute::Units(grant.cores), false));
    let by_lanes = matches!(compute, Compute::Lanes(_));
    let units = |cores: u32| {
        if by_lanes {
            f64::from(cores.count_ones())
        } else {
            f64::from(cores)
        }
    };
    let whole = match device.map(|device| units(device.cores)) {
        Some(cores) if cores > 0.0 => cores,
        _ => 100.0,
    };
    let part = |units: f64| (units / whole).clamp(0.0, 1.0);
    let asked = match compute {
        _ if is_exclusive => 1.0,
        // No cap.
        Compute::Units(0) | Compute::Unchecked => 1.0,
        Compute::Units(units) => part(f64::from(units)),
        Compute::Percent(percent) => (f64::from(percent) / 100.0).clamp(0.0, 1.0),
        Compute::Lanes(_) | Compute::Gflops { .. } => part(units(grant.cores)),
    };
    let memory = device.map_or(0.0, |device| match device.memory_bytes {
        0 => 0.0,
        total => (bytes(grant.memory_bytes) / bytes(total)).clamp(0.0, 1.0),
    });
    let takes_all = is_exclusive || device.is_some_and(|device| is_whole(grant, device));
    Amounts {
        asked,
        granted: if takes_all {
            1.0
        } else {
            part(units(grant.cores)).max(memory)
        },
        gib: bytes(grant.memory_bytes) / GIB,
    }
}

/// Whether the grant takes all slots of a device that several containers could share.
fn is_whole(grant: &Grant, device: &Device) -> bool {
    device.slots > 1 && grant.slots >= device.slots
}

#[allow(clippy::cast_precision_loss, reason = "exact to 8 PiB")]
fn bytes(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
    use placement::Vendor;

    use super::*;

    const GIB_BYTES: u64 = 1 << 30;

    fn device() -> Device {
        let mut device = Device::new("NVIDIA", "GPU-0", "NVIDIA A100", 40 * GIB_BYTES);
        device.cores = 100;
        device.slots = 10;
        device
    }

    fn check(gib: u64, cores: u32, ask: Option<(Compute, bool)>, expected: (f64, f64, f64)) {
        let grant = Grant::new(Vendor::new("NVIDIA"), "GPU-0", gib * GIB_BYTES, cores);
        let found = amounts_of(&grant, ask, Some(&device()));
        let found = (found.asked, found.granted, found.gib);
        assert_eq!(found, expected);
    }

    #[test]
    fn a_grant_is_weighed_by_compute_and_memory() {
        let units = |units| Some((Compute::Units(units), false));
        // Compute is the larger part, then memory.
        check(10, 50, units(50), (0.5, 0.5, 10.0));
        check(30, 25, units(25), (0.25, 0.75, 30.0));
        // Without a cap a container may have the whole device; others are kept from its memory.
        check(10, 0, units(0), (1.0, 0.25, 10.0));
        // An instance is larger than what was asked for.
        check(20, 42, units(30), (0.3, 0.5, 20.0));
        // The whole device for one container.
        check(4, 10, Some((Compute::Units(10), true)), (1.0, 1.0, 4.0));
        check(
            40,
            60,
            Some((Compute::Percent(60), false)),
            (0.6, 1.0, 40.0),
        );
        // The pod's request cannot be read.
        check(10, 20, None, (0.2, 0.25, 10.0));
    }

    fn key(workload: &str) -> AccountKey {
        AccountKey {
            namespace: "n".to_owned(),
            workload: workload.to_owned(),
            ..AccountKey::default()
        }
    }

    fn open(accounts: &mut Accounts, uid: &str, workload: &str, gpus: f64, second: u64) {
        let held = Amounts {
            asked: gpus,
            granted: gpus,
            gib: gpus,
        };
        let since = Duration::from_secs(second);
        let open = Open {
            key: Arc::default(),
            held,
            since,
            asks: Vec::new(),
            is_rough: false,
        };
        accounts.open(uid.into(), key(workload), open, since);
    }

    fn sums(accounts: &Accounts, second: u64) -> Vec<(String, f64)> {
        let views = accounts.views(Duration::from_secs(second)).into_iter();
        views
            .map(|view| (view.key.workload, view.held.granted))
            .collect()
    }

    #[test]
    fn a_pod_that_ended_between_two_scrapes_is_counted() {
        let mut accounts = Accounts::default();
        open(&mut accounts, "a", "short", 0.5, 1000);
        accounts.close("a", Duration::from_secs(1004));
        open(&mut accounts, "b", "short", 1.0, 1010);
        accounts.close("b", Duration::from_secs(1013));

        // First it is seen at 0.
        assert_eq!(sums(&accounts, 1015), [("short".to_owned(), 0.0)]);
        assert_eq!(sums(&accounts, 1060), [("short".to_owned(), 5.0)]);
        accounts.sweep(Duration::from_secs(1013 + 2 * 3600 - 1));
        assert_eq!(sums(&accounts, 9000).len(), 1);
        accounts.sweep(Duration::from_secs(1013 + 2 * 3600));
        assert!(sums(&accounts, 9000).is_empty());
    }

    #[test]
    fn pods_that_hold_devices_count_up_to_now() {
        let mut accounts = Accounts::default();
        open(&mut accounts, "a", "serve", 1.0, 0);
        open(&mut accounts, "b", "serve", 0.5, 100);

        assert_eq!(sums(&accounts, 200), [("serve".to_owned(), 250.0)]);
        accounts.close("a", Duration::from_secs(200));
        accounts.close("a", Duration::from_secs(300));
        assert_eq!(sums(&accounts, 300), [("serve".to_owned(), 300.0)]);
        // A workload with pods is never forgotten.
        accounts.sweep(Duration::from_secs(1_000_000));
        assert_eq!(sums(&accounts, 300).len(), 1);
    }

    #[test]
    fn the_number_of_accounts_is_bounded() {
        let mut accounts = Accounts::default();
        for number in 0..MOST + 100 {
            open(
                &mut accounts,
                &format!("u{number}"),
                &format!("w{number}"),
                1.0,
                0,
            );
        }
        let shown = sums(&accounts, 100);
        assert_eq!(shown.len(), MOST + 1);
        let others: Vec<_> = shown.iter().filter(|(name, _)| name.is_empty()).collect();
        assert_eq!(others, [&(String::new(), 10_000.0)]);
    }
}
