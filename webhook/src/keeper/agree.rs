//! One part of a look at the cluster: the Secret is read and remembered, and created or replaced
//! where needed.

use anyhow::{Context, anyhow};
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};

use super::{Keeper, Source, told};
use crate::authority::Agreed;
use crate::secret::{self, WRITER};

/// The next step for a Secret that can be used.
enum Next {
    Stays(Agreed),
    /// A new CA signs from now on. The text says why.
    Replaced(Result<Agreed, rcgen::Error>, Rotation, &'static str),
    /// The same CA signs, and the set of other trusted CAs changes. The text is the reason.
    Trusted(Agreed, &'static str),
}

/// Why a new CA signs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rotation {
    /// There was no Secret.
    Created,
    /// The Secret was deleted.
    Deleted,
    /// The Secret could not be used.
    Broken,
    /// The old CA ends soon.
    Due,
}

impl Rotation {
    /// The word in the metrics and the log.
    fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Deleted => "deleted",
            Self::Broken => "broken",
            Self::Due => "due",
        }
    }
}

impl Keeper {
    /// Reads the Secret, and creates or replaces it where needed. Returns whether it was written.
    pub(super) async fn agree(&mut self, ours: bool) -> anyhow::Result<bool> {
        let Source::Own {
            secret: name,
            lifetimes,
            ..
        } = &self.settings.source
        else {
            return Ok(false);
        };
        let (name, lifetimes) = (name.clone(), *lifetimes);
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.settings.namespace);
        // Other replicas write, too. If another one was faster, the Secret is read again.
        for _ in 0..4 {
            let now = self.now();
            let remembered = self.agreed.iter().flat_map(Agreed::trusted).cloned();
            let mut remembered: Vec<_> = remembered.collect();
            let kept = secret::read(&api, &name, now).await;
            let kept = kept
                .map_err(told)
                .with_context(|| format!("cannot read the Secret {name}"))?;
            let Some(kept) = kept else {
                let (why, text) = if self.agreed.is_some() {
                    let text = "the Secret of the webhook's CA was deleted; it holds a new CA";
                    (Rotation::Deleted, text)
                } else {
                    (Rotation::Created, "the webhook's CA was made")
                };
                let agreed =
                    Agreed::anew(remembered, now, &lifetimes).context("cannot make a CA")?;
                let created = secret::create(&api, &name, &agreed).await;
                let created = created
                    .map_err(told)
                    .with_context(|| format!("cannot create the Secret {name}"))?;
                if created {
                    self.renewed(agreed, why, text).await;
                    return Ok(true);
                }
                continue;
            };
            let agreed = match kept.agreed {
                Ok(agreed) => agreed,
                Err(broken) if !ours => {
                    let text = format!(
                        "the Secret {name} is broken ({broken}); the holder of the Lease replaces \
                         what is in it"
                    );
                    tracing::warn!("{text}");
                    return if self.agreed.is_some() {
                        Ok(false)
                    } else {
                        Err(anyhow!(text))
                    };
                }
                Err(broken) => {
                    remembered.extend(kept.certificates);
                    let agreed =
                        Agreed::anew(remembered, now, &lifetimes).context("cannot make a CA")?;
                    if replace(&api, &name, &kept.version, &agreed).await? {
                        let text = format!(
                            "the Secret of the webhook's CA was broken ({broken}); it holds a new CA"
                        );
                        self.renewed(agreed, Rotation::Broken, &text).await;
                        return Ok(true);
                    }
                    continue;
                }
            };
            return match self.next(ours, agreed) {
                Next::Stays(agreed) => {
                    self.take(agreed);
                    Ok(false)
                }
                Next::Replaced(agreed, why, text) => {
                    let agreed = agreed.context("cannot make a CA")?;
                    if !replace(&api, &name, &kept.version, &agreed).await? {
                        continue;
                    }
                    self.renewed(agreed, why, text).await;
                    Ok(true)
                }
                Next::Trusted(agreed, text) => {
                    if !replace(&api, &name, &kept.version, &agreed).await? {
                        continue;
                    }
                    tracing::info!(secret = name, "{text}");
                    self.take(agreed);
                    Ok(true)
                }
            };
        }
        Err(anyhow!(
            "the Secret {name} changes all the time; another program writes it, too"
        ))
    }

    /// Decides what to do with a Secret that can be used.
    fn next(&self, ours: bool, mut agreed: Agreed) -> Next {
        let Source::Own { lifetimes, .. } = &self.settings.source else {
            return Next::Stays(agreed);
        };
        let now = self.now();
        if !ours {
            return Next::Stays(agreed);
        }
        // The Secret holds a CA that this replica does not know, for example from a backup. The CA
        // of the certificate on the port has to stay trusted until the new one is.
        let shown = self.shown.as_ref().map(|(ca, _)| ca.as_str());
        let lost = self.agreed.iter().flat_map(Agreed::trusted);
        let lost = lost.filter(|ca| Some(ca.pem()) == shown && ca.not_after() > now);
        let lost: Vec<_> = lost
            .filter(|ca| !agreed.trusted().any(|known| known == *ca))
            .cloned()
            .collect();
        if agreed.current.certificate().is_due(now) {
            let mut old = lost;
            old.extend(agreed.trusted().cloned());
            let text = "the webhook's CA was replaced before its end; the old one is trusted for \
                        a while";
            return Next::Replaced(Agreed::anew(old, now, lifetimes), Rotation::Due, text);
        }
        if !lost.is_empty() {
            agreed.trust(lost, now);
            return Next::Trusted(
                agreed,
                "there is another CA in the Secret; the one before is trusted for a while",
            );
        }
        if agreed.old_are_over(now, lifetimes) {
            agreed.old.clear();
            return Next::Trusted(agreed, "replaced CAs are trusted no longer");
        }
        Next::Stays(agreed)
    }

    fn take(&mut self, agreed: Agreed) {
        let known = self
            .agreed
            .as_ref()
            .is_some_and(|known| known.current.certificate() == agreed.current.certificate());
        if !known {
            let until = agreed.current.certificate().not_after();
            tracing::info!(%until, "the CA in the Secret signs");
            self.meters.signs(until);
        }
        self.agreed = Some(agreed);
    }

    async fn renewed(&mut self, agreed: Agreed, why: Rotation, text: &str) {
        tracing::warn!(reason = why.word(), "{text}");
        self.meters.rotated(why.word());
        self.take(agreed);
        self.event(why, text).await;
    }

    /// Emits an event on the Secret. The log has the same text in any case.
    async fn event(&self, why: Rotation, note: &str) {
        let Source::Own { secret, .. } = &self.settings.source else {
            return;
        };
        let reporter = Reporter {
            controller: WRITER.to_owned(),
            instance: None,
        };
        let event = Event {
            type_: match why {
                Rotation::Broken | Rotation::Deleted => EventType::Warning,
                Rotation::Created | Rotation::Due => EventType::Normal,
            },
            reason: "CertificateAuthorityReplaced".to_owned(),
            note: Some(note.to_owned()),
            action: "Replace".to_owned(),
            secondary: None,
        };
        let about = k8s_openapi::api::core::v1::ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Secret".to_owned()),
            name: Some(secret.clone()),
            namespace: Some(self.settings.namespace.clone()),
            ..Default::default()
        };
        let recorder = Recorder::new(self.client.clone(), reporter);
        if let Err(error) = recorder.publish(&event, &about).await {
            tracing::debug!(%error, "no event");
        }
    }
}

async fn replace(
    api: &Api<Secret>,
    name: &str,
    version: &str,
    agreed: &Agreed,
) -> anyhow::Result<bool> {
    let replaced = secret::replace(api, name, version, agreed).await;
    replaced
        .map_err(told)
        .with_context(|| format!("cannot replace what is in the Secret {name}"))
}
