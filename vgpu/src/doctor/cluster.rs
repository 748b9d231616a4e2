//! stub
use super::args::DoctorArgs;
use super::check::Check;
use serde::{Deserialize, Serialize};
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ClusterFacts {}
pub(super) const CHECKS: &[Check<ClusterFacts>] = &[];
pub(super) fn gather(_args: &DoctorArgs) -> anyhow::Result<ClusterFacts> {
    Ok(ClusterFacts {})
}
