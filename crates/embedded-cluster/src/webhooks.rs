//! The webhooks of stored configurations: which of them a write concerns, in which order, and the effect of a failed
//! call. The client makes the calls.

use std::sync::Arc;

use serde_json::Value;

use crate::admission::{Admission, BoxFuture, Review, WebhookClient, WebhookError};
use crate::cluster::Cluster;
use crate::object::meta;
use crate::selector::Selector;
use crate::status::Status;
use crate::target::{ListOptions, Target};

pub(crate) struct Registered {
    cluster: Cluster,
    client: Arc<dyn WebhookClient>,
}

impl Registered {
    pub(crate) fn new(cluster: Cluster, client: Arc<dyn WebhookClient>) -> Self {
        Self { cluster, client }
    }

    /// The entries that concern a write, in the order of the configurations' names and then of the entries.
    fn concerned(&self, plural: &str, review: &Review) -> Vec<Value> {
        let listed = self
            .cluster
            .resource("admissionregistration.k8s.io", plural)
            .and_then(|resource| {
                self.cluster
                    .list(&Target::collection(&resource, ""), &ListOptions::default())
            });
        let configurations = listed.map(|listed| listed.items).unwrap_or_default();
        let mut entries = Vec::new();
        for configuration in configurations {
            let Value::Array(webhooks) = configuration.value()["webhooks"].take() else {
                continue;
            };
            entries.extend(
                webhooks
                    .into_iter()
                    .filter(|webhook| self.concerns(webhook, review)),
            );
        }
        entries
    }

    fn concerns(&self, webhook: &Value, review: &Review) -> bool {
        webhook["rules"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|rule| review.is_ruled_by(rule))
            && self.namespace_selected(&webhook["namespaceSelector"], review)
            && object_selected(&webhook["objectSelector"], review)
    }

    fn namespace_selected(&self, selector: &Value, review: &Review) -> bool {
        let selector = Selector::from_object(selector);
        if selector.is_empty() || review.namespace.is_empty() {
            return true;
        }
        let namespace = self
            .cluster
            .resource("", "namespaces")
            .and_then(|namespaces| {
                self.cluster
                    .get(&Target::object(&namespaces, "", &review.namespace))
            });
        match namespace {
            Ok(namespace) => namespace.matches(&selector),
            // A namespace that is being created.
            Err(_) => review.objects().any(|object| has_labels(object, &selector)),
        }
    }

    async fn ask(&self, webhook: &Value, review: &Review) -> Result<Option<Value>, Status> {
        let name = webhook["name"].as_str().unwrap_or("unnamed");
        let failed = match self.client.call(webhook, review.to_value()).await {
            Ok(None) => return Ok(None),
            Ok(Some(answer)) if answer["response"]["uid"] == review.uid => {
                return review.answered(name, &answer);
            }
            Ok(Some(_)) => WebhookError::OtherReview,
            Err(failed) => failed,
        };
        if webhook["failurePolicy"] == "Ignore" {
            tracing::warn!(
                webhook = name,
                why = %failed,
                review = review.describe(),
                "webhook failed and is ignored"
            );
            return Ok(None);
        }
        Err(Status::internal(format!(
            "failed calling webhook \"{name}\": {failed}"
        )))
    }
}

impl Admission for Registered {
    fn mutate<'a>(&'a self, review: &'a Review) -> BoxFuture<'a, Result<Option<Value>, Status>> {
        Box::pin(async move {
            let mut review = review.clone();
            let mut changed = false;
            for webhook in self.concerned("mutatingwebhookconfigurations", &review) {
                if let Some(object) = self.ask(&webhook, &review).await? {
                    review.object = Some(object);
                    changed = true;
                }
            }
            Ok(review.object.filter(|_| changed))
        })
    }

    fn validate<'a>(&'a self, review: &'a Review) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            for webhook in self.concerned("validatingwebhookconfigurations", review) {
                self.ask(&webhook, review).await?;
            }
            Ok(())
        })
    }
}

fn object_selected(selector: &Value, review: &Review) -> bool {
    let selector = Selector::from_object(selector);
    selector.is_empty() || review.objects().any(|object| has_labels(object, &selector))
}

fn has_labels(object: &Value, selector: &Selector) -> bool {
    let labels = &object["metadata"]["labels"];
    selector.matches(
        |key| labels[key].as_str(),
        |path| (path == "metadata.name").then(|| meta(object, "name")),
    )
}
