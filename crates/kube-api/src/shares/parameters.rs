//! The opaque parameters that a claim or a DeviceClass carries for our driver. The webhook reads them when the object is
//! written, and the driver reads them again before it gives the share.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::quantity::{Quantity, shortened};

/// The version and the kind of our opaque parameters.
pub const API_VERSION: &str = "gpu.vgpu.io/v1";
/// See [`API_VERSION`].
pub const KIND: &str = "ShareParameters";
/// The largest priority, as in `vgpu run`.
pub const PRIORITY_MOST: u32 = 9;
/// The most memory beyond a share: more than this the accounts of a container cannot count.
const OVERSUBSCRIBE_MOST: u64 = 8 << 40;

/// A share's opaque parameters; every field may be left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Parameters {
    /// The priority; 0 is the highest.
    pub priority: u32,
    /// When the cap on compute time holds.
    pub policy: PolicyWord,
    /// Percent of the GPU's time that is guaranteed; the cap stays. 0 is nothing besides the policy.
    pub floor: u32,
    /// Bytes that the container may have beyond its memory of the GPU, as managed memory.
    pub oversubscribe_bytes: u64,
}

/// The object that carries parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A DeviceClass, which only the cluster's operators write.
    Class,
    /// A ResourceClaim or its template, which tenants write.
    Claim,
}

/// A policy, as it is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyWord {
    /// The cap holds while another container works on the GPU.
    #[default]
    Default,
    /// It always holds.
    Force,
    /// The percentage is a floor and not a cap.
    Floor,
    /// There is no cap.
    Disable,
}

/// Why parameters are not ours, or not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParametersError {
    /// They have other fields or values.
    #[error("cannot be read: {0}; {ACCEPTED}")]
    Unreadable(String),
    /// They are of another version or kind.
    #[error("are {version} {kind}; {ACCEPTED}")]
    OtherKind {
        /// Their `apiVersion`.
        version: String,
        /// Their kind.
        kind: String,
    },
    /// The priority is too large.
    #[error("have the priority {0}; {ACCEPTED}")]
    Priority(u32),
    /// The floor is no percentage.
    #[error("have the floor {0}; {ACCEPTED}")]
    Floor(u32),
    /// The floor stands beside a policy that guarantees nothing.
    #[error(
        "have the floor {floor} and the policy {policy}, which guarantees nothing; write policy: floor, or leave one of \
         both out"
    )]
    FloorBeside {
        /// The floor.
        floor: u32,
        /// The policy.
        policy: PolicyWord,
    },
    /// More is guaranteed than the container may use.
    #[error(
        "have the floor {floor}, and the cap, which is the claim's capacity cores, is {cores} %; accepted: a floor of at \
         most the cores. Ask for more cores, or lower the floor"
    )]
    FloorAboveCap {
        /// The floor.
        floor: u32,
        /// The cores.
        cores: u32,
    },
    /// A floor of a MIG instance.
    #[error(
        "have the floor {0}, but the hardware gives each MIG instance its own compute time, so there is nothing to promise; \
         leave floor out"
    )]
    FloorOfInstance(u32),
    /// The memory beyond the share is no amount.
    #[error(
        "have oversubscribe {0}; accepted: a number of bytes above 0 and at most 8Ti, such as 4Gi"
    )]
    Oversubscribe(String),
    /// A tenant asks for memory beyond the share.
    #[error(
        "have oversubscribe, which only a DeviceClass may set, because the memory beyond a share takes the node's memory; \
         leave it out, or name a DeviceClass that has it"
    )]
    OversubscribeOfClaim,
}

const ACCEPTED: &str = "accepted: apiVersion gpu.vgpu.io/v1, kind ShareParameters, and any of priority (0, the highest, to \
                        9), policy (default, force, floor, disable), floor (percent from 1 to the claim's cores) and, in a \
                        DeviceClass, oversubscribe (bytes, such as 4Gi)";

/// Parameters as they are written.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenParameters {
    api_version: String,
    kind: String,
    priority: Option<u32>,
    policy: Option<PolicyWord>,
    floor: Option<u32>,
    oversubscribe: Option<Value>,
}

impl std::fmt::Display for PolicyWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::Force => "force",
            Self::Floor => "floor",
            Self::Disable => "disable",
        })
    }
}

/// Bytes that are written as a quantity or as a number.
fn bytes(written: &Value) -> Option<u64> {
    let text = match written {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let amount = Quantity(text).parse().ok()?.whole()?;
    let bytes = u64::try_from(amount).ok()?;
    (1..=OVERSUBSCRIBE_MOST).contains(&bytes).then_some(bytes)
}

/// An error's text repeats what was read, which may be as long as the object.
fn beginning(text: &str) -> String {
    const MOST_LETTERS: usize = 200;
    match text.char_indices().nth(MOST_LETTERS) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

impl Parameters {
    /// These parameters with the changes of later ones: a later one changes what it names.
    ///
    /// # Errors
    /// The later ones are not of our kind, or have a field or a value that is not accepted.
    pub fn changed_by(self, later: &Value, source: Source) -> Result<Self, ParametersError> {
        let written = WrittenParameters::deserialize(later)
            .map_err(|error| ParametersError::Unreadable(beginning(&error.to_string())))?;
        if written.api_version != API_VERSION || written.kind != KIND {
            return Err(ParametersError::OtherKind {
                version: shortened(&written.api_version),
                kind: shortened(&written.kind),
            });
        }
        if let Some(priority) = written.priority
            && priority > PRIORITY_MOST
        {
            return Err(ParametersError::Priority(priority));
        }
        let policy = match (written.floor, written.policy) {
            (Some(floor), _) if !(1..=100).contains(&floor) => {
                return Err(ParametersError::Floor(floor));
            }
            (Some(floor), Some(policy)) if policy != PolicyWord::Floor => {
                return Err(ParametersError::FloorBeside { floor, policy });
            }
            (Some(_), _) => PolicyWord::Floor,
            (None, policy) => policy.unwrap_or(self.policy),
        };
        // A policy that guarantees nothing releases an earlier floor.
        let floor = match policy {
            PolicyWord::Floor => written.floor.unwrap_or(self.floor),
            _ => 0,
        };
        let oversubscribe_bytes = match (&written.oversubscribe, source) {
            (None, _) => self.oversubscribe_bytes,
            (Some(_), Source::Claim) => return Err(ParametersError::OversubscribeOfClaim),
            (Some(amount), Source::Class) => bytes(amount)
                .ok_or_else(|| ParametersError::Oversubscribe(shortened(&amount.to_string())))?,
        };
        Ok(Self {
            priority: written.priority.unwrap_or(self.priority),
            policy,
            floor,
            oversubscribe_bytes,
        })
    }

    /// The same with a floor of at most this cap: a DeviceClass is for claims of every size.
    #[must_use]
    pub fn lowered_to_cap(self, cores: u32) -> Self {
        let floor = self.floor.min(cores);
        Self { floor, ..self }
    }

    /// Whether a MIG instance can have these parameters: no cap holds on it.
    ///
    /// # Errors
    /// There is a floor.
    pub fn of_instance(self) -> Result<Self, ParametersError> {
        match self.floor {
            0 => Ok(self),
            floor => Err(ParametersError::FloorOfInstance(floor)),
        }
    }

    /// Whether a share with this cap can have the floor.
    ///
    /// # Errors
    /// The floor is above the cap.
    pub fn under_cap(self, cores: u32) -> Result<Self, ParametersError> {
        let floor = self.floor;
        if floor > cores {
            return Err(ParametersError::FloorAboveCap { floor, cores });
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn changed(fields: Value) -> Result<Parameters, ParametersError> {
        let mut written = json!({"apiVersion": API_VERSION, "kind": KIND});
        for (name, value) in fields.as_object().unwrap() {
            written[name] = value.clone();
        }
        let before = Parameters {
            priority: 1,
            policy: PolicyWord::Force,
            ..Parameters::default()
        };
        before.changed_by(&written, Source::Claim)
    }

    fn of_class(fields: &Value) -> Result<Parameters, ParametersError> {
        let mut written = json!({"apiVersion": API_VERSION, "kind": KIND});
        for (name, value) in fields.as_object().unwrap() {
            written[name] = value.clone();
        }
        Parameters::default().changed_by(&written, Source::Class)
    }

    #[test]
    fn later_parameters_change_what_they_name() {
        let with = |priority, policy| {
            Ok(Parameters {
                priority,
                policy,
                ..Parameters::default()
            })
        };

        assert_eq!(changed(json!({})), with(1, PolicyWord::Force));
        assert_eq!(changed(json!({"priority": 9})), with(9, PolicyWord::Force));
        assert_eq!(
            changed(json!({"policy": "floor"})),
            with(1, PolicyWord::Floor)
        );
    }

    #[test]
    fn floor_brings_its_policy_and_another_policy_releases_it() {
        let floor = |policy, floor| Parameters {
            priority: 1,
            policy,
            floor,
            ..Parameters::default()
        };
        let twenty = changed(json!({"floor": 20})).unwrap();
        assert_eq!(twenty, floor(PolicyWord::Floor, 20));
        let later = |fields: Value| {
            let mut written = json!({"apiVersion": API_VERSION, "kind": KIND});
            let fields = fields.as_object().unwrap().clone();
            written.as_object_mut().unwrap().extend(fields);
            twenty.changed_by(&written, Source::Claim).unwrap()
        };
        assert_eq!(later(json!({})), twenty);
        assert_eq!(later(json!({"policy": "floor"})), twenty);
        assert_eq!(
            later(json!({"policy": "force"})),
            floor(PolicyWord::Force, 0)
        );
        assert_eq!(later(json!({"floor": 30})), floor(PolicyWord::Floor, 30));

        assert_eq!(twenty.under_cap(20), Ok(twenty));
        let why = twenty.under_cap(19).unwrap_err().to_string();
        assert!(why.contains("floor 20") && why.contains("is 19 %"), "{why}");
    }

    #[test]
    fn only_a_device_class_oversubscribes() {
        let given = |amount: Value| of_class(&json!({"oversubscribe": amount}));
        assert_eq!(given(json!("4Gi")).unwrap().oversubscribe_bytes, 4 << 30);
        assert_eq!(given(json!(1024)).unwrap().oversubscribe_bytes, 1024);
        for amount in [
            json!("0"),
            json!("-1Gi"),
            json!("much"),
            json!("9Ti"),
            json!(["4Gi"]),
        ] {
            let why = given(amount.clone()).unwrap_err().to_string();
            assert!(
                why.contains("have oversubscribe") && why.contains("such as 4Gi"),
                "{why}"
            );
        }
        let why = changed(json!({"oversubscribe": "4Gi"})).unwrap_err();
        assert_eq!(why, ParametersError::OversubscribeOfClaim);
    }

    #[test]
    fn refusals_name_what_was_read_and_what_is_accepted() {
        for (fields, says) in [
            (json!({"priority": 10}), "have the priority 10"),
            (json!({"priority": -1}), "-1"),
            (json!({"policy": "often"}), "`often`"),
            (json!({"speed": 1}), "`speed`"),
            (json!({"floor": 0}), "have the floor 0"),
            (json!({"floor": 101}), "have the floor 101"),
            (json!({"floor": -1}), "-1"),
            (json!({"kind": "Other"}), "are gpu.vgpu.io/v1 Other"),
            (json!({"apiVersion": "v2"}), "are v2 ShareParameters"),
            (json!({"apiVersion": null}), "cannot be read"),
        ] {
            let why = changed(fields).unwrap_err().to_string();
            assert!(why.contains(says), "{why}");
            assert!(why.contains("accepted: apiVersion gpu.vgpu.io/v1"), "{why}");
        }
        let beside = changed(json!({"floor": 20, "policy": "force"}));
        let why = beside.unwrap_err().to_string();
        assert!(why.contains("floor 20 and the policy force"), "{why}");
    }
}
