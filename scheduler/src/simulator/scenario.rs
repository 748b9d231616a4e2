//! Scenarios: operations in steps, in the format of the reference's proposal KEP-140. Each step waits until the
//! scheduler has nothing left to do, and then counts the pods with a node.

use std::collections::BTreeMap;
use std::time::Duration;

use embedded_cluster::{DeleteOptions, Patch, Status, Target, Write};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Simulator;

/// Operations, sorted by step.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    operations: Vec<Operation>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Operation {
    id: String,
    step: u32,
    create_operation: Option<Create>,
    patch_operation: Option<Change>,
    delete_operation: Option<Named>,
    done_operation: Option<Value>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Create {
    object: Value,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Change {
    type_meta: TypeMeta,
    object_meta: ObjectMeta,
    /// JSON as a string, or as a value.
    patch: Value,
    #[serde(default)]
    patch_type: String,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Named {
    type_meta: TypeMeta,
    object_meta: ObjectMeta,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TypeMeta {
    api_version: String,
    kind: String,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct ObjectMeta {
    name: String,
    #[serde(default)]
    namespace: String,
}

/// The result of a scenario.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// `Succeeded`, or `Failed`.
    pub phase: &'static str,
    /// Why it failed; empty if it succeeded.
    pub message: String,
    /// The state after each step.
    pub steps: Vec<StepState>,
}

/// The state after a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepState {
    /// Its number.
    pub step: u32,
    /// The number of pods with a node.
    pub placed: usize,
    /// The number of pods without one.
    pub pending: usize,
    /// The number of those, by the reason in their condition.
    pub reasons: BTreeMap<String, usize>,
}

/// Why a scenario cannot be played.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// There is no list of operations.
    #[error("spec.operations is missing, or not a list")]
    NoOperations,
    /// An operation cannot be read.
    #[error("spec.operations[{at}]: {error}")]
    Operation {
        /// Its index.
        at: usize,
        /// The problem with it.
        error: serde_json::Error,
    },
    /// An operation does nothing, or several things.
    #[error(
        "spec.operations[{at}]: expected exactly one of createOperation, patchOperation, deleteOperation and doneOperation"
    )]
    NotOne {
        /// Its index.
        at: usize,
    },
    /// No operation ends the scenario.
    #[error("no doneOperation says when the scenario has succeeded; add one to the last step")]
    NeverDone,
}

impl Scenario {
    /// Reads a scenario: an object with `spec.operations`.
    ///
    /// # Errors
    ///
    /// The part that cannot be read or done.
    pub fn read(written: &Value) -> Result<Self, ScenarioError> {
        let operations = written
            .pointer("/spec/operations")
            .and_then(Value::as_array)
            .ok_or(ScenarioError::NoOperations)?;
        let mut read = Vec::new();
        for (at, operation) in operations.iter().enumerate() {
            let operation = Operation::deserialize(operation)
                .map_err(|error| ScenarioError::Operation { at, error })?;
            let kinds = [
                operation.create_operation.is_some(),
                operation.patch_operation.is_some(),
                operation.delete_operation.is_some(),
                operation.done_operation.is_some(),
            ];
            if kinds.iter().filter(|there| **there).count() != 1 {
                return Err(ScenarioError::NotOne { at });
            }
            read.push(operation);
        }
        read.sort_by_key(|operation| operation.step);
        if !read
            .iter()
            .any(|operation| operation.done_operation.is_some())
        {
            return Err(ScenarioError::NeverDone);
        }
        Ok(Self { operations: read })
    }

    /// The objects of this kind that it creates.
    pub fn created<'s>(&'s self, kind: &'s str) -> impl Iterator<Item = &'s Value> {
        let objects = self.operations.iter();
        let objects =
            objects.filter_map(|operation| Some(&operation.create_operation.as_ref()?.object));
        objects.filter(move |object| object.get("kind").is_some_and(|of| of == kind))
    }
}

impl Simulator {
    /// Plays a scenario. A step fails if it does not come to rest within `patience`, or if the cluster refuses an
    /// operation; earlier operations stay.
    pub async fn play(&self, scenario: &Scenario, patience: Duration) -> Report {
        let mut report = Report {
            phase: "Failed",
            message: String::new(),
            steps: Vec::new(),
        };
        for step in scenario.operations.chunk_by(|a, b| a.step == b.step) {
            let mut done = false;
            for operation in step {
                done |= operation.done_operation.is_some();
                if let Err(status) = self.operate(operation).await {
                    report.message = format!(
                        "operation {} of step {}: {status}",
                        operation.id, operation.step
                    );
                    return report;
                }
            }
            let number = step.first().map_or(0, |operation| operation.step);
            if tokio::time::timeout(patience, self.at_rest())
                .await
                .is_err()
            {
                report.message = format!(
                    "step {number} did not come to rest within {} s",
                    patience.as_secs()
                );
                return report;
            }
            report.steps.push(self.count(number));
            if done {
                report.phase = "Succeeded";
                break;
            }
        }
        report
    }

    async fn operate(&self, operation: &Operation) -> Result<(), Status> {
        let cluster = self.cluster();
        let write = Write {
            field_manager: "scenario".into(),
            ..Write::default()
        };
        if let Some(create) = &operation.create_operation {
            let text = |path: &str| {
                create
                    .object
                    .pointer(path)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
            };
            let meta = ObjectMeta {
                name: String::new(),
                namespace: text("/metadata/namespace").to_owned(),
            };
            let kind = TypeMeta {
                api_version: text("/apiVersion").to_owned(),
                kind: text("/kind").to_owned(),
            };
            let target = self.target(&kind, &meta)?;
            cluster
                .create(&target, create.object.clone(), &write)
                .await?;
        }
        if let Some(change) = &operation.patch_operation {
            let target = self.target(&change.type_meta, &change.object_meta)?;
            let body = match &change.patch {
                Value::String(text) => serde_json::from_str(text).map_err(|error| {
                    Status::bad_request(format!("the patch is not JSON: {error}"))
                })?,
                other => other.clone(),
            };
            let kind = match change.patch_type.as_str() {
                "" => "application/strategic-merge-patch+json",
                kind => kind,
            };
            cluster
                .patch(&target, &Patch::parse(kind, body)?, &write)
                .await?;
        }
        if let Some(named) = &operation.delete_operation {
            let target = self.target(&named.type_meta, &named.object_meta)?;
            let options = DeleteOptions::default();
            cluster.delete(&target, &options, &write).await?;
        }
        Ok(())
    }

    fn target(&self, kind: &TypeMeta, meta: &ObjectMeta) -> Result<Target, Status> {
        let resources = self.cluster().resources();
        let found = resources.iter().find(|resource| {
            resource.kind == kind.kind && resource.api_version() == kind.api_version
        });
        let resource = found.ok_or_else(|| {
            Status::bad_request(format!(
                "no kind {} of {} is known",
                kind.kind, kind.api_version
            ))
        })?;
        let namespace = match meta.namespace.as_str() {
            "" => "default",
            namespace => namespace,
        };
        Ok(Target::object(resource, namespace, &meta.name))
    }

    fn count(&self, step: u32) -> StepState {
        let mut count = StepState {
            step,
            placed: 0,
            pending: 0,
            reasons: BTreeMap::new(),
        };
        let Ok(pods) = self.cluster().resource("", "pods") else {
            return count;
        };
        for pod in self.cluster().snapshot().list(&pods) {
            let pod = pod.value();
            if pod.pointer("/spec/nodeName").is_some() {
                count.placed += 1;
                continue;
            }
            count.pending += 1;
            let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
            let text = |of: &Value, name: &str| {
                of.get(name)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned()
            };
            let said = conditions
                .into_iter()
                .flatten()
                .find(|of| text(of, "type") == "PodScheduled")
                .map(|of| text(of, "message"));
            let reason = said
                .unwrap_or_else(|| "no profile takes it, or it has scheduling gates".to_owned());
            *count.reasons.entry(reason).or_insert(0) += 1;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_scenario_that_cannot_be_played_is_refused_with_its_place() {
        let read =
            |operations: Value| Scenario::read(&json!({ "spec": { "operations": operations } }));
        let done = json!({ "id": "d", "step": 9, "doneOperation": {} });

        assert!(read(json!([done])).is_ok());
        for (operations, why) in [
            (json!([]), "no doneOperation"),
            (json!({}), "not a list"),
            (
                json!([done, { "id": "x", "step": 1 }]),
                "spec.operations[1]: expected exactly one",
            ),
            (
                json!([{ "id": "x", "step": "1" }]),
                "spec.operations[0]: invalid type",
            ),
            (
                json!([{ "id": "x", "step": 1, "doOperation": {} }]),
                "unknown field `doOperation`",
            ),
        ] {
            let said = read(operations).unwrap_err().to_string();
            assert!(said.contains(why), "{said}");
        }
    }
}
