//! The opaque parameters that a claim or a DeviceClass carries for our driver. The webhook reads them when the object is
//! written, and the driver reads them again before it gives the share.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::quantity::shortened;

/// The version and the kind of our opaque parameters.
pub const API_VERSION: &str = "gpu.vgpu.io/v1";
/// See [`API_VERSION`].
pub const KIND: &str = "ShareParameters";
/// The largest priority, as in `vgpu run`.
pub const PRIORITY_MOST: u32 = 9;

/// A share's opaque parameters; every field may be left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Parameters {
    /// The priority; 0 is the highest.
    pub priority: u32,
    /// When the cap on compute time holds.
    pub policy: PolicyWord,
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
}

const ACCEPTED: &str = "accepted: apiVersion gpu.vgpu.io/v1, kind ShareParameters, and any of priority (0, the highest, to \
                        9) and policy (default, force, floor, disable)";

/// Parameters as they are written.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    api_version: String,
    kind: String,
    priority: Option<u32>,
    policy: Option<PolicyWord>,
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
    pub fn changed_by(self, later: &Value) -> Result<Self, ParametersError> {
        let written = Written::deserialize(later)
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
        Ok(Self {
            priority: written.priority.unwrap_or(self.priority),
            policy: written.policy.unwrap_or(self.policy),
        })
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
        };
        before.changed_by(&written)
    }

    #[test]
    fn later_parameters_change_what_they_name() {
        let with = |priority, policy| Ok(Parameters { priority, policy });

        assert_eq!(changed(json!({})), with(1, PolicyWord::Force));
        assert_eq!(changed(json!({"priority": 9})), with(9, PolicyWord::Force));
        assert_eq!(
            changed(json!({"policy": "floor"})),
            with(1, PolicyWord::Floor)
        );
    }

    #[test]
    fn refusals_name_what_was_read_and_what_is_accepted() {
        for (fields, says) in [
            (json!({"priority": 10}), "have the priority 10"),
            (json!({"priority": -1}), "-1"),
            (json!({"policy": "often"}), "`often`"),
            (json!({"speed": 1}), "`speed`"),
            (json!({"kind": "Other"}), "are gpu.vgpu.io/v1 Other"),
            (json!({"apiVersion": "v2"}), "are v2 ShareParameters"),
            (json!({"apiVersion": null}), "cannot be read"),
        ] {
            let why = changed(fields).unwrap_err().to_string();
            assert!(why.contains(says), "{why}");
            assert!(why.contains("accepted: apiVersion gpu.vgpu.io/v1"), "{why}");
        }
    }
}
