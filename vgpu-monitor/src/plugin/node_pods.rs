//! Who lives, as the kubelet and the API server say, for whoever clears away what the dead have left. Never clears away.

use std::collections::{BTreeMap, BTreeSet};

use super::api::{self, Without};
use super::prepare::is_over;
use super::{Living, Plugin, identity};
use crate::collect::LivingPod;
use crate::delivery::Name;

/// See [`Plugin::living`].
pub(super) async fn living(plugin: &Plugin) -> Result<Living, String> {
    // What is handed out from here on is not among these, and lives.
    let as_of = std::time::Instant::now();
    let all = plugin.0.book.all();
    let listed = plugin.0.lister.pods().await?;
    let node = &plugin.0.settings.node;
    let pods = match api::pods_of(&plugin.0.parts.client, node).await {
        Ok(pods) => pods,
        Err(Without::Away(why) | Without::Refused(why)) => {
            return Err(format!("the API server: {why}"));
        }
        Err(Without::Gone) => return Err("the API server: no such list".to_owned()),
    };
    let uids: BTreeSet<&str> = pods.iter().map(identity::uid).collect();
    let held: BTreeMap<&str, BTreeSet<String>> = plugin
        .0
        .lists
        .keys()
        .map(|resource| {
            let holders = listed.holders(resource);
            let ids = holders
                .into_iter()
                .flat_map(|holder| holder.slots.into_values().flatten());
            (resource.as_str(), ids.collect())
        })
        .collect();
    // A pod that is over stays in the API server for a while, and the scheduler has given its place to another.
    let over = |uid: &str| {
        pods.iter()
            .any(|pod| identity::uid(pod) == uid && is_over(pod))
    };
    let mut living = Living {
        names: BTreeSet::new(),
        claimed: BTreeSet::new(),
        instances: BTreeSet::new(),
        as_of,
    };
    // Who got a slot after the allotment that is looked at.
    let mut newer: BTreeMap<(&str, &str), Option<&str>> = BTreeMap::new();
    for lot in all.iter().rev() {
        let resource = lot.resource.as_str();
        let owner = lot.claim.as_ref().map(|claim| claim.uid.as_str());
        let passed_on = lot.ids.iter().all(|id| {
            let later = newer.get(&(resource, id.as_str()));
            later.is_some_and(|later| owner.is_none() || *later != owner)
        });
        let lives = match &lot.claim {
            Some(claim) => {
                uids.contains(claim.uid.as_str())
                    || (listed.has(&claim.namespace, &claim.pod) && !passed_on)
            }
            // Nobody knows yet whose it is: it lives until all its slots were handed out again.
            None => {
                let held = held.get(resource);
                !passed_on || held.is_some_and(|held| lot.ids.iter().any(|id| held.contains(id)))
            }
        };
        if lot.claim.is_some() {
            living.claimed.insert(Name(lot.name.clone()));
        }
        for id in &lot.ids {
            newer.entry((resource, id.as_str())).or_insert(owner);
        }
        if lives {
            living.names.insert(Name(lot.name.clone()));
            let claims = lot.claim.iter().filter(|claim| !over(&claim.uid));
            let shares = claims.flat_map(|claim| &claim.shares);
            let places = shares.filter_map(|share| {
                let cut = share.instance.as_ref()?;
                Some((share.card.clone(), cut.span()))
            });
            living.instances.extend(places);
        }
    }
    Ok(living)
}

/// See [`Plugin::in_use`].
pub(super) async fn in_use(plugin: &Plugin) -> Result<BTreeSet<Name>, String> {
    let all = plugin.0.book.all();
    let pods = plugin.0.lister.pods().await?;
    let mut names = BTreeSet::new();
    for resource in plugin.resources() {
        let holders = pods.holders(resource);
        let mut held: BTreeSet<&str> = holders
            .iter()
            .flat_map(|holder| holder.slots.values().flatten())
            .map(String::as_str)
            .collect();
        let of_resource = all.iter().rev().filter(|lot| lot.resource == resource);
        for lot in of_resource {
            // The newest that has a slot is the one that is held.
            if lot.ids.iter().any(|id| held.contains(id.as_str())) {
                names.insert(Name(lot.name.clone()));
                held.retain(|id| !lot.ids.iter().any(|of| of == id));
            }
        }
    }
    Ok(names)
}

/// See [`Plugin::living_pods`].
pub(super) async fn living_pods(plugin: &Plugin) -> Result<Vec<LivingPod>, String> {
    let settings = &plugin.0.settings;
    let parts = &plugin.0.parts;
    let pods = match api::pods_of(&parts.client, &settings.node).await {
        Ok(pods) => pods,
        Err(Without::Away(why) | Without::Refused(why)) => return Err(why),
        Err(Without::Gone) => return Err("no such list".to_owned()),
    };
    let living = pods.iter().filter(|pod| !is_over(pod));
    Ok(living
        .map(|pod| LivingPod {
            uid: identity::uid(pod).to_owned(),
            containers: identity::asking(pod, &settings.served, &parts.vendors),
        })
        .collect())
}
