//! The configurations' part of a look: who trusts us is seen, and what they say is put right.

use anyhow::{Context, anyhow};
use jiff::SignedDuration;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Value, json};

use super::{Configurations, Keeper, Source, told};
use crate::authority::Agreed;
use crate::configuration::{self, KINDS, Written};

/// A cluster is upgraded now and then.
const VERSION_HOLDS: SignedDuration = SignedDuration::from_mins(10);

/// What a look at the configurations has shown.
#[derive(Default)]
pub(super) struct Trust {
    /// Whether all that exist trust the CA that signs; nothing when that is not known.
    pub(super) current: Option<bool>,
    /// The first that does not trust the certificate that is shown.
    pub(super) stranger: Option<String>,
    /// The first that does not exist.
    pub(super) absent: Option<String>,
}

impl Keeper {
    /// The configurations: looked at by all, written by the holder. Whether one was written.
    pub(super) async fn configure(
        &mut self,
        ours: bool,
        trust: &mut Trust,
    ) -> anyhow::Result<bool> {
        let Some(Configurations {
            name,
            wanted,
            owner,
        }) = self.settings.configurations.clone()
        else {
            return Ok(false);
        };
        let match_conditions = self.match_conditions().await?;
        let bundle = self.bundle()?;
        let owner = match owner.filter(|_| ours) {
            Some(owner) => self.owner(&owner).await?,
            None => Value::Null,
        };
        let shown = self.shown.as_ref().map(|(ca, _)| ca.clone());
        let current = self
            .agreed
            .as_ref()
            .map(|agreed| agreed.current.certificate().pem().to_owned());
        let mut wanted = wanted(match_conditions);
        let mut wrote = false;
        let mut failed = None;
        for kind in KINDS {
            let wanted = wanted
                .iter_mut()
                .find(|wanted| wanted["kind"] == kind)
                .map(Value::take);
            let Some(wanted) = wanted else { continue };
            let done = self
                .configure_one(ours, kind, &name, |live| {
                    configuration::whole(wanted, &name, &owner, bundle.as_deref(), live)
                })
                .await
                .with_context(|| format!("the {kind} {name}"));
            match done {
                Ok((written, live)) => {
                    wrote |= written;
                    let trusted = |ca: &Option<String>| match (&live, ca) {
                        (Some(live), Some(ca)) => configuration::trusts(live, ca),
                        _ => true,
                    };
                    trust.current = trust.current.map(|so_far| so_far && trusted(&current));
                    if live.is_none() {
                        trust
                            .absent
                            .get_or_insert_with(|| format!("the {kind} {name}"));
                    }
                    if !trusted(&shown) {
                        trust
                            .stranger
                            .get_or_insert_with(|| format!("the {kind} {name}"));
                    }
                }
                // One that cannot be written does not keep the other from being so.
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            None => Ok(wrote),
            Some(error) => {
                trust.current = None;
                Err(error)
            }
        }
    }

    /// `ownerReferences` for the configurations; null, of which nobody wants anything, when the
    /// owner is not there: an owner that is not there would have them deleted.
    async fn owner(&self, name: &str) -> anyhow::Result<Value> {
        let roles = GroupVersionKind::gvk("rbac.authorization.k8s.io", "v1", "ClusterRole");
        let api: Api<DynamicObject> =
            Api::all_with(self.client.clone(), &ApiResource::from_gvk(&roles));
        let role = api.get_metadata_opt(name).await.map_err(told);
        let role = role.with_context(|| format!("cannot read the ClusterRole {name}"))?;
        let Some(uid) = role.and_then(|role| role.metadata.uid) else {
            tracing::debug!(
                name,
                "there is no such ClusterRole: nobody owns the configurations"
            );
            return Ok(Value::Null);
        };
        Ok(json!([{
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "name": name, "uid": uid,
        }]))
    }

    /// Whether it was written, and how it stands.
    async fn configure_one(
        &self,
        ours: bool,
        kind: &'static str,
        name: &str,
        wanted: impl FnOnce(Option<&Value>) -> Value,
    ) -> anyhow::Result<(bool, Option<Value>)> {
        let live = configuration::read(&self.client, kind, name).await;
        let live = live.map_err(told).context("cannot be read")?;
        if !ours {
            return Ok((false, live));
        }
        let wanted = wanted(live.as_ref());
        let written = configuration::write(&self.client, live.as_ref(), &wanted).await;
        match written.map_err(told).context("cannot be written")? {
            Written::Nothing => Ok((false, live)),
            Written::Created => {
                tracing::info!(kind, name, "created");
                self.meters.wrote("created");
                Ok((true, Some(wanted)))
            }
            Written::Changed => {
                tracing::info!(kind, name, "changed to what it has to be");
                self.meters.wrote("changed");
                Ok((true, Some(wanted)))
            }
            // Somebody wrote between: what stands there is known after the next look.
            Written::Again => Err(anyhow!("somebody else wrote it at the same time")),
        }
    }

    async fn match_conditions(&mut self) -> anyhow::Result<bool> {
        let now = self.now();
        match self.match_conditions {
            Some((has, since)) if since.duration_until(now) < VERSION_HOLDS => Ok(has),
            _ => {
                let version = self.client.apiserver_version().await;
                let version = version
                    .map_err(told)
                    .context("cannot ask the API server for its version")?;
                let has = configuration::has_match_conditions(&version.major, &version.minor);
                if self.match_conditions.is_none() {
                    tracing::info!(
                        version = version.git_version,
                        match_conditions = has,
                        "API server"
                    );
                }
                self.match_conditions = Some((has, now));
                Ok(has)
            }
        }
    }

    /// What goes into every `caBundle`; nothing where that is not ours to say.
    fn bundle(&self) -> anyhow::Result<Option<String>> {
        match &self.settings.source {
            Source::Own { .. } => Ok(self.agreed.as_ref().map(Agreed::bundle)),
            Source::Given { bundle: None } => Ok(None),
            Source::Given { bundle: Some(path) } => {
                let read = std::fs::read_to_string(path);
                let pem = read.with_context(|| format!("cannot read {}", path.display()))?;
                Ok(Some(pem))
            }
        }
    }
}
