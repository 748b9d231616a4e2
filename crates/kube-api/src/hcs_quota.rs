//! A ComputeQuota as limits, the pods that it counts, and a pod's charge. Does not know the present use.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use placement::{Device, Grant, Granted, Kind, Placement};

use crate::fields::in_order;
use crate::hcs::{Amounts, ComputeQuota, ComputeQuotaStatus, NamedScope, Scope};
use crate::hcs_request::asked;
use crate::object::Pod;
use crate::quantity::Quantity;
use crate::vendor::Vendors;

/// Amounts that a quota counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Charge {
    /// Memory in bytes.
    pub vram: u64,
    /// GFLOPS of 16-bit floats.
    pub fp16: u64,
    /// GFLOPS of 32-bit floats.
    pub fp32: u64,
    /// Devices, or shares of them.
    pub devices: u64,
}

impl Charge {
    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.each(other, u64::saturating_add)
    }

    /// The larger one of each amount.
    #[must_use]
    pub fn at_least(self, other: Self) -> Self {
        self.each(other, u64::max)
    }

    fn each(self, other: Self, of: fn(u64, u64) -> u64) -> Self {
        Self {
            vram: of(self.vram, other.vram),
            fp16: of(self.fp16, other.fp16),
            fp32: of(self.fp32, other.fp32),
            devices: of(self.devices, other.devices),
        }
    }

    fn is_zero(self) -> bool {
        self == Self::default()
    }
}

/// The pod's charge. A container with `ai.compute/*` amounts is charged for them; another container for the shares of
/// devices that it got. Without a placement only the former are charged, with the number of devices that they ask for,
/// at least one. `device` finds a device by its identifier.
///
/// The charges of containers that run at the same time add up; of init containers the largest counts.
pub fn charge<'d>(
    pod: &Pod,
    placement: Option<&Placement>,
    vendors: &Vendors,
    device: impl Fn(&str) -> Option<&'d Device>,
) -> Charge {
    let (mut beside, mut before) = (Charge::default(), Charge::default());
    let nothing = Granted::default();
    for (at, (container, kind)) in in_order(pod).enumerate() {
        let granted = placement
            .and_then(|placement| placement.containers.get(at))
            .unwrap_or(&nothing);
        let mut one = granted.grants.iter().fold(Charge::default(), |sum, grant| {
            sum.plus(share(grant, device(&grant.device)))
        });
        if let Ok(Some(asked)) = asked(container, vendors) {
            let demand = asked.demand;
            one = Charge {
                vram: match demand.memory_bytes {
                    0 => one.vram,
                    bytes => bytes,
                },
                fp16: demand.fp16,
                fp32: demand.fp32,
                devices: one.devices.max(u64::from(demand.devices.max(1))),
            };
        }
        match kind {
            Kind::Init => before = before.each(one, u64::max),
            Kind::App | Kind::Sidecar => beside = beside.plus(one),
        }
    }
    beside.each(before, u64::max)
}

/// The charge of a share of a device; without the device its TFLOPS are unknown.
pub fn share(grant: &Grant, device: Option<&Device>) -> Charge {
    let part = |gflops: u64| match device {
        Some(device) if device.cores > 0 => {
            gflops.saturating_mul(u64::from(grant.cores)) / u64::from(device.cores)
        }
        _ => 0,
    };
    let [fp16, fp32] = device.map_or([0, 0], |device| device.gflops);
    Charge {
        vram: grant.memory_bytes,
        fp16: part(fp16),
        fp32: part(fp32),
        devices: 1,
    }
}

/// The properties by which a quota counts a pod, kept for as long as the pod holds something.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counted {
    /// Its charge.
    pub charge: Charge,
    labels: BTreeMap<String, String>,
    priority_class: String,
    terminating: bool,
}

impl Counted {
    /// The pod with this charge.
    pub fn new(pod: &Pod, charge: Charge) -> Self {
        Self {
            charge,
            labels: pod.metadata.labels.clone().unwrap_or_default(),
            priority_class: pod.spec.priority_class_name.clone(),
            terminating: pod.spec.active_deadline_seconds.is_some(),
        }
    }
}

impl Counted {
    /// The same pod with this charge.
    #[must_use]
    pub fn with(&self, charge: Charge) -> Self {
        Self {
            charge,
            ..self.clone()
        }
    }
}

/// The use of a quota, by its status. A missing or unreadable amount counts as 0.
pub fn used(quota: &ComputeQuota) -> Charge {
    let used = quota
        .status
        .as_ref()
        .and_then(|status| status.used.as_ref());
    let amount = |quantity: Option<&Quantity>, scale: i128| {
        let nano = quantity.and_then(|quantity| quantity.parse().ok());
        let nano = nano.map_or(0, |amount| amount.nano());
        u64::try_from(nano.saturating_mul(scale) / 1_000_000_000).unwrap_or_default()
    };
    used.map_or_else(Charge::default, |used| Charge {
        vram: amount(used.vram.as_ref(), 1),
        fp16: amount(used.tflops_fp16.as_ref(), 1000),
        fp32: amount(used.tflops_fp32.as_ref(), 1000),
        devices: amount(used.devices.as_ref(), 1),
    })
}

/// A parsed ComputeQuota.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Limit {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    hard: Hard,
    written: Amounts,
    scopes: Vec<Scope>,
    selector: Option<LabelSelector>,
    /// The errors in its spec, by field.
    pub errors: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Hard {
    vram: Option<u64>,
    fp16: Option<u64>,
    fp32: Option<u64>,
    devices: Option<u64>,
}

impl Limit {
    /// Reads the quota. An unreadable amount allows nothing, and an unreadable scope counts every pod, so that a
    /// mistake in a quota does not lift it.
    pub fn read(quota: &ComputeQuota) -> Self {
        let mut errors = BTreeMap::new();
        let spec = &quota.spec;
        let mut amount = |field: &str, quantity: &Option<Quantity>, scale: i128| -> Option<u64> {
            let quantity = quantity.as_ref()?;
            let nano = match quantity.parse() {
                Ok(amount) if !amount.is_negative() => amount.nano(),
                Ok(_) => {
                    errors.insert(
                        format!("hard.{field}"),
                        format!("{quantity} is below 0, so nothing is allowed; write 0 or more"),
                    );
                    0
                }
                Err(error) => {
                    errors.insert(
                        format!("hard.{field}"),
                        format!("{error}; until then nothing is allowed"),
                    );
                    0
                }
            };
            Some(u64::try_from(nano.saturating_mul(scale) / 1_000_000_000).unwrap_or(u64::MAX))
        };
        let hard = Hard {
            vram: amount("vram", &spec.hard.vram, 1),
            fp16: amount("tflops-fp16", &spec.hard.tflops_fp16, 1000),
            fp32: amount("tflops-fp32", &spec.hard.tflops_fp32, 1000),
            devices: amount("devices", &spec.hard.devices, 1),
        };
        for (at, scope) in spec.scopes.iter().enumerate() {
            if let Scope::Unknown(value) = scope {
                errors.insert(
                    format!("scopes[{at}]"),
                    format!(
                        "{value} is no scope, so it leaves no pod out; write PriorityClass, Terminating, NotTerminating \
                         or priority: NAME"
                    ),
                );
            }
        }
        Self {
            namespace: quota.metadata.namespace.clone().unwrap_or_default(),
            name: quota.metadata.name.clone().unwrap_or_default(),
            hard,
            written: spec.hard.clone(),
            scopes: spec.scopes.clone(),
            selector: spec.selector.clone(),
            errors,
        }
    }

    /// Whether the quota counts this pod of its namespace.
    pub fn counts(&self, pod: &Counted) -> bool {
        let in_scope = self.scopes.iter().all(|scope| match scope {
            Scope::Named(NamedScope::PriorityClass) => !pod.priority_class.is_empty(),
            Scope::Named(NamedScope::Terminating) => pod.terminating,
            Scope::Named(NamedScope::NotTerminating) => !pod.terminating,
            Scope::Priority(scope) => pod.priority_class == scope.priority,
            Scope::Unknown(_) => true,
        });
        in_scope
            && self
                .selector
                .as_ref()
                .is_none_or(|selector| selects(selector, &pod.labels))
    }

    /// The amount that would exceed the quota if `more` were added to `used`, in a sentence; `None` if nothing would.
    pub fn exceeded(&self, used: Charge, more: Charge) -> Option<String> {
        /// Formats an amount for people.
        type Say<'a> = &'a dyn Fn(u64) -> String;
        if more.is_zero() {
            return None;
        }
        let hard = self.hard;
        let bytes = |bytes: u64| format!("{} MiB", bytes.div_ceil(1 << 20));
        let tflops = |gflops: u64| tflops(gflops).0;
        let plain = |number: u64| number.to_string();
        let each: [(&str, Option<u64>, u64, u64, Say<'_>); 4] = [
            ("vram", hard.vram, used.vram, more.vram, &bytes),
            ("tflops-fp16", hard.fp16, used.fp16, more.fp16, &tflops),
            ("tflops-fp32", hard.fp32, used.fp32, more.fp32, &tflops),
            ("devices", hard.devices, used.devices, more.devices, &plain),
        ];
        each.into_iter().find_map(|(name, hard, used, more, say)| {
            let hard = hard?;
            (more > 0 && used.saturating_add(more) > hard).then(|| {
                format!(
                    "exceeded quota: ComputeQuota {} allows {} of {name} in namespace {}, its pods hold {}, and this \
                     pod asks for {}",
                    self.name,
                    say(hard),
                    self.namespace,
                    say(used),
                    say(more)
                )
            })
        })
    }

    /// Each amount that the quota limits, with its limit and its use: bytes, GFLOPS, devices.
    pub fn amounts(&self, used: Charge) -> impl Iterator<Item = (&'static str, u64, u64)> {
        let hard = self.hard;
        [
            ("vram", hard.vram, used.vram),
            ("tflops-fp16", hard.fp16, used.fp16),
            ("tflops-fp32", hard.fp32, used.fp32),
            ("devices", hard.devices, used.devices),
        ]
        .into_iter()
        .filter_map(|(name, hard, used)| Some((name, hard?, used)))
    }

    /// The quota's status with this use.
    pub fn status(&self, used: Charge) -> ComputeQuotaStatus {
        let hard = &self.written;
        ComputeQuotaStatus {
            used: Some(Amounts {
                vram: hard.vram.as_ref().map(|_| gibibytes(used.vram)),
                tflops_fp16: hard.tflops_fp16.as_ref().map(|_| tflops(used.fp16)),
                tflops_fp32: hard.tflops_fp32.as_ref().map(|_| tflops(used.fp32)),
                devices: hard.devices.as_ref().map(|_| Quantity::from(used.devices)),
            }),
            hard: Some(hard.clone()),
            errors: self.errors.clone(),
        }
    }
}

/// Bytes in the largest binary unit in which they are a whole number.
fn gibibytes(bytes: u64) -> Quantity {
    for (unit, shift) in [("Gi", 30), ("Mi", 20), ("Ki", 10)] {
        if bytes > 0 && bytes.is_multiple_of(1 << shift) {
            return Quantity(format!("{}{unit}", bytes >> shift));
        }
    }
    Quantity(bytes.to_string())
}

/// TFLOPS, in thousandths if they are not a whole number.
fn tflops(gflops: u64) -> Quantity {
    if gflops.is_multiple_of(1000) {
        Quantity::from(gflops / 1000)
    } else {
        Quantity(format!("{gflops}m"))
    }
}

/// Whether the selector matches these labels. An operator that Kubernetes does not know matches none.
fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let exactly = selector.match_labels.iter().flatten();
    let by_rule = selector.match_expressions.iter().flatten();
    exactly
        .into_iter()
        .all(|(key, value)| labels.get(key) == Some(value))
        && by_rule.into_iter().all(|rule| {
            let value = labels.get(&rule.key);
            let listed = || {
                value
                    .is_some_and(|value| (rule.values.iter().flatten()).any(|other| other == value))
            };
            match rule.operator.as_str() {
                "In" => listed(),
                "NotIn" => !listed(),
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}
