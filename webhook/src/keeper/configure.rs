//! One part of a look at the cluster: which configurations trust the CA is determined, and
//! configurations that differ from the wanted ones are corrected.

use anyhow::{Context, anyhow};
use jiff::SignedDuration;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use kube_api::version;
use serde_json::{Value, json};

use super::{Configurations, Keeper, Source, told};
use crate::authority::Agreed;
use crate::configuration::{self, KINDS, Written};

/// The API server's version is asked again after this time, because clusters are upgraded.
const VERSION_HOLDS: SignedDuration = SignedDuration::from_mins(10);

/// The result of a look at the configurations.
#[derive(Default)]
pub(super) struct Trust {
    /// Whether all existing configurations trust the CA that signs; `None` if that is not known.
    pub(super) current: Option<bool>,
    /// The first that does not trust the certificate on the port.
    pub(super) stranger: Option<String>,
    /// The first that does not exist.
    pub(super) absent: Option<String>,
}

impl Keeper {
    /// Looks at the configurations (every replica) and writes them (only the holder of the Lease).
    /// Returns whether one was written.
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
                // A failure to write one does not keep the other from being written.
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

    /// The `ownerReferences` of the configurations. Null, which means any value, when the owner
    /// does not exist: with an owner that does not exist they would be deleted.
    async fn owner(&self, name: &str) -> anyhow::Result<Value> {
        let roles = GroupVersionKind::gvk("rbac.authorization.k8s.io", "v1", "ClusterRole");
        let api: Api<DynamicObject> =
            Api::all_with(self.client.clone(), &ApiResource::from_gvk(&roles));
        let role = api.get_metadata_opt(name).await.map_err(told);
        let role = role.with_context(|| format!("cannot read the ClusterRole {name}"))?;
        let Some(uid) = role.and_then(|role| role.metadata.uid) else {
            tracing::debug!(
                name,
                "there is no such ClusterRole, so the configurations have no owner"
            );
            return Ok(Value::Null);
        };
        Ok(json!([{
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "name": name, "uid": uid,
        }]))
    }

    /// Returns whether it was written, and its contents.
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
            // Another writer was faster: the next look reads the result.
            Written::Again => Err(anyhow!("another writer changed it at the same time")),
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
                let has = version::has_match_conditions(&version.major, &version.minor);
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

    /// The CAs for every `caBundle`; `None` if another program keeps the `caBundle`.
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
