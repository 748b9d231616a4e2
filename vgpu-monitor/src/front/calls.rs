//! The kubelet's calls while the process behind may be on its way: held back until one answers. Never answers by itself.

use std::error::Error as _;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use super::known::Known;
use crate::plugin::RESOURCE;
use crate::proto::device_plugin::device_plugin_client::DevicePluginClient;

/// How long a call waits for a process, where the kubelet names no time: it admits no other pod meanwhile.
const HELD: Duration = Duration::from_secs(10);

/// A client of the process behind.
pub(super) type Client = DevicePluginClient<Channel>;

/// Asks the process behind, and once more each time that one dies over it. All calls can be repeated: a repeated call
/// makes a new allotment, and the first one of these slots is forgotten.
///
/// # Errors
///
/// The process's own refusal; or that there was none until the deadline, or for [`HELD`] where there is no deadline.
pub(super) async fn ask<Question, Answer, Asking>(
    known: &Known,
    resource: &str,
    question: &Question,
    deadline: Option<Instant>,
    call: impl Fn(Client, Request<Question>) -> Asking,
) -> Result<Response<Answer>, Status>
where
    Question: Clone,
    Asking: Future<Output = Result<Response<Answer>, Status>>,
{
    let mut processes = known.answering();
    let mut died = None;
    loop {
        let waits = deadline.unwrap_or_else(|| Instant::now() + HELD);
        let other = processes.wait_for(|process| {
            process
                .as_ref()
                .is_some_and(|process| Some(process.number) != died)
        });
        let process = match timeout_at(waits, other).await {
            Ok(Ok(process)) => process.clone(),
            Ok(Err(_)) | Err(_) => None,
        };
        let Some(process) = process else {
            return Err(Status::unavailable(
                "vgpu: the device plugin's process is being restarted",
            ));
        };
        let mut request = Request::new(question.clone());
        // A resource's name is ASCII: the API server takes no other.
        if let Ok(name) = AsciiMetadataValue::try_from(resource) {
            request.metadata_mut().insert(RESOURCE, name);
        }
        if let Some(deadline) = deadline {
            request.set_timeout(deadline.saturating_duration_since(Instant::now()));
        }
        match call(Client::new(process.channel), request).await {
            Err(status) if is_loss(&status) && deadline.is_none_or(|it| Instant::now() < it) => {
                tracing::info!(resource, %status, "a call of the kubelet waits for the plugin's next process");
                died = Some(process.number);
            }
            answered => {
                return answered.map_err(|status| Status::new(status.code(), status.message()));
            }
        }
    }
}

/// Whether this status comes from a broken connection to a dead child, and is not an answer of the child.
pub(super) fn is_loss(status: &Status) -> bool {
    let answers = [Code::FailedPrecondition, Code::Internal, Code::NotFound];
    status.source().is_some() || !answers.contains(&status.code())
}
