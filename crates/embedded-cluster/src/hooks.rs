//! Asks the admission hooks about each write: hooks in this process, and the webhooks of stored configurations. The
//! cluster obeys their answer and decides nothing itself.

use std::sync::Arc;

use serde_json::Value;

use crate::admission::{Admission, Operation, Review};
use crate::cluster::Cluster;
use crate::object::{Stored, meta, metadata_mut};
use crate::status::Status;
use crate::target::{Target, Write};
use crate::webhooks::Registered;

impl Cluster {
    /// Asks the mutating hooks in order, then the validating hooks.
    pub(crate) async fn admit(
        &self,
        operation: Operation,
        target: &Target,
        old: Option<&Value>,
        new: Value,
        write: &Write,
    ) -> Result<Value, Status> {
        let hooks = self.hooks(target);
        if hooks.is_empty() {
            return Ok(new);
        }
        let mut review = Review::new(operation, target, write, Some(new), old.cloned());
        for hook in &hooks {
            if let Some(changed) = hook.mutate(&review).await? {
                review.object = Some(changed);
            }
        }
        for hook in &hooks {
            hook.validate(&review).await?;
        }
        let mut new = review.object.take().unwrap_or(Value::Null);
        if metadata_mut(&mut new).is_none() || meta(&new, "name") != target.name {
            return Err(Status::internal(
                "an admission hook changed what the object is",
            ));
        }
        Ok(new)
    }

    pub(crate) async fn admit_deletion(
        &self,
        target: &Target,
        old: &Stored,
        write: &Write,
    ) -> Result<(), Status> {
        let hooks = self.hooks(target);
        if hooks.is_empty() {
            return Ok(());
        }
        let review = Review::new(Operation::Delete, target, write, None, Some(old.value()));
        for hook in &hooks {
            hook.mutate(&review).await?;
        }
        for hook in &hooks {
            hook.validate(&review).await?;
        }
        Ok(())
    }

    /// As [`Cluster::admit`], for requests that are not objects of their own, such as a binding.
    pub(crate) async fn admit_connect(
        &self,
        target: &Target,
        subresource: &str,
        object: Value,
        write: &Write,
    ) -> Result<Value, Status> {
        let hooks = self.hooks(target);
        let mut review = Review::new(Operation::Create, target, write, Some(object), None);
        review.subresource = subresource.to_owned();
        for hook in &hooks {
            if let Some(changed) = hook.mutate(&review).await? {
                review.object = Some(changed);
            }
        }
        for hook in &hooks {
            hook.validate(&review).await?;
        }
        Ok(review.object.take().unwrap_or(Value::Null))
    }

    pub(crate) fn hooks(&self, target: &Target) -> Vec<Arc<dyn Admission>> {
        let mut hooks = self.0.admission.read().clone();
        // Webhook configurations themselves are never sent to webhooks: a broken webhook could then not be repaired.
        if let (Some(client), false) = (
            &*self.0.webhooks.read(),
            target.resource.group == "admissionregistration.k8s.io",
        ) {
            hooks.push(Arc::new(Registered::new(self.clone(), client.clone())));
        }
        hooks
    }
}
