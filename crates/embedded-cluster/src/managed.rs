//! stub
use crate::cluster::{Target, Write};
use crate::status::Status;
use serde_json::Value;

pub(crate) fn track(_target: &Target, _old: Option<&Value>, _new: &mut Value, _write: &Write) {}
pub(crate) fn begin(_target: &Target, _object: &mut Value, _write: &Write) {}
pub(crate) fn apply(
    _target: &Target,
    old: &Value,
    applied: &Value,
    _write: &Write,
) -> Result<Value, Status> {
    let mut new = old.clone();
    json_patch::merge(&mut new, applied);
    Ok(new)
}
