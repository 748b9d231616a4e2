//! The steps before a container starts: find the pod that holds the slots, determine the share of each of its
//! containers, and give it. Never chooses a device.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use events::{About, Kind as Tone};
use kube_api::object::Pod;
use placement::Kind;
use server::TraceContext;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

use super::allotments::{Allotment, Recipient};
use super::api;
use super::checkpoint::{self, CheckpointEntry};
use super::identity::{self, Refusal, WantedContainer, is_over};
use super::matching::{self, Evidence, Lot, PodSlots};
use super::pods::Pods;
use super::room::{self, NoRoom};
use super::{Plugin, answered_name, mounts, tell};
use crate::api_answer::Without;
use crate::delivery::Name;
use crate::node_gpus::{Health, Inventory};

/// Between two looks at which pod holds the slots, and at whether the GPUs are known.
const AGAIN: Duration = Duration::from_millis(200);
/// Part of the kubelet's patience that is kept for the answer.
const KEPT: Duration = Duration::from_secs(3);
/// How long the API server may take to say which pods are over, when a GPU is full.
const LOOK: Duration = Duration::from_secs(2);
/// How long the kubelet may take to know a pod of its own.
const UNNAMED: Duration = Duration::from_secs(6);

/// One `PreStartContainer` of the kubelet.
pub(super) struct Call<'a> {
    plugin: &'a Plugin,
    resource: &'a str,
    /// The slots of the container that is about to start, sorted.
    called: Vec<String>,
    /// When the answer has to be decided.
    deadline: Instant,
}

/// How a call ended.
pub(super) struct Prepared {
    /// Why not, where the container is not started now. The kubelet shows it and tries again.
    pub(super) answer: Result<(), Refusal>,
    /// The pod's trace, if it has one.
    pub(super) trace: Option<TraceContext>,
}

impl<'a> Call<'a> {
    /// The kubelet gives up at `deadline`.
    pub(super) fn new(
        plugin: &'a Plugin,
        resource: &'a str,
        mut called: Vec<String>,
        deadline: Instant,
    ) -> Self {
        called.sort();
        called.dedup();
        Self {
            plugin,
            resource,
            called,
            deadline: deadline.checked_sub(KEPT).unwrap_or(deadline),
        }
    }

    /// Ensures that the container that is about to start, and all others of its pod, have what they were given.
    pub(super) async fn prepare(&self) -> Prepared {
        let mut trace = None;
        let answer = self.answer(&mut trace).await;
        Prepared { answer, trace }
    }

    async fn answer(&self, trace: &mut Option<TraceContext>) -> Result<(), Refusal> {
        let named = self.named().await?;
        let mut refusals = Vec::new();
        // There are several only while the kubelet lists a pod that is over.
        for holder in &named.holders {
            match self.read(&holder.namespace, &holder.name).await {
                Ok(pod) if is_over(&pod) => {}
                Ok(pod) => {
                    let case = Case {
                        call: self,
                        named: &named,
                        listed: &holder.slots,
                    };
                    match case.serve(pod, trace).await {
                        Ok(()) => return Ok(()),
                        Err(refusal) => refusals.push(refusal),
                    }
                }
                Err(Without::Gone) => refusals.push(Refusal(format!(
                    "pod {}/{} is gone",
                    holder.namespace, holder.name
                ))),
                Err(Without::Refused(why)) => refusals.push(Refusal(format!(
                    "the API server does not show pod {}/{}: {why}",
                    holder.namespace, holder.name
                ))),
                Err(Without::Away(why)) => {
                    return self.give_remembered(Some(&named.holders), &why).await;
                }
            }
        }
        if let Some(uid) = &named.uid {
            return self.by_uid(&named, uid, trace).await;
        }
        Err(refusals.pop().unwrap_or_else(|| {
            Refusal(
                "the pod that holds these slots has ended; no container of it is started"
                    .to_owned(),
            )
        }))
    }

    async fn named(&self) -> Result<Named, Refusal> {
        let (resource, called) = (self.resource, &self.called);
        let until = self.deadline.min(Instant::now() + UNNAMED);
        loop {
            let answer = self.plugin.0.lister.pods().await;
            let problem = match answer {
                Ok(pods) => {
                    let all = pods.holders(resource);
                    let holders: Vec<PodSlots> = matching::holders(&all, called)
                        .into_iter()
                        .cloned()
                        .collect();
                    if !holders.is_empty() {
                        return Ok(Named {
                            pods,
                            holders,
                            uid: None,
                        });
                    }
                    // A pod with nothing but plain init containers is in no list.
                    let uid = record(self.plugin)
                        .await
                        .into_iter()
                        .rev()
                        .find_map(|entry| {
                            (entry.resource == resource && entry.ids == *called)
                                .then_some(entry.uid)
                        });
                    if uid.is_some() {
                        return Ok(Named { pods, holders, uid });
                    }
                    format!(
                        "the kubelet names no pod that holds {} of {resource}",
                        called.join(", ")
                    )
                }
                Err(problem) => {
                    format!(
                        "the kubelet does not say which pod this container belongs to: {problem}"
                    )
                }
            };
            if Instant::now() >= until {
                return Err(Refusal(problem));
            }
            sleep(AGAIN).await;
        }
    }

    /// Reads a pod by its name. The garbage collection counts it as living from then on.
    async fn read(&self, namespace: &str, name: &str) -> Result<Pod, Without> {
        let pod = api::pod(&self.plugin.0.parts.client, namespace, name).await?;
        self.plugin.0.parts.pods.pods.saw(&pod);
        Ok(pod)
    }

    async fn by_uid(
        &self,
        named: &Named,
        uid: &str,
        trace: &mut Option<TraceContext>,
    ) -> Result<(), Refusal> {
        let plugin = self.plugin;
        let pods = match plugin.0.parts.pods.pods.all().await {
            Ok(pods) => pods,
            Err(why) => return self.give_remembered(None, &why.to_string()).await,
        };
        let Some(seen) = pods.into_iter().find(|pod| identity::uid(pod) == uid) else {
            // The kubelet may know a new pod a moment before this watch does; it tries again.
            return Err(Refusal(format!(
                "the API server shows no pod of uid {uid} on this node (yet)"
            )));
        };
        let (namespace, name) = (seen.metadata.namespace, seen.metadata.name);
        let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
        let pod = match self.read(&namespace, &name).await {
            Ok(pod) if identity::uid(&pod) == uid => pod,
            Ok(_) | Err(Without::Gone) => {
                return Err(Refusal(format!("the pod of uid {uid} is gone")));
            }
            Err(Without::Away(why)) => return self.give_remembered(None, &why).await,
            Err(Without::Refused(why)) => {
                return Err(Refusal(format!(
                    "the API server does not show pod {namespace}/{name}: {why}"
                )));
            }
        };
        let case = Case {
            call: self,
            named,
            listed: &BTreeMap::new(),
        };
        case.serve(pod, trace).await
    }

    /// The pod cannot be read. The earlier shares of exactly these slots, and of a pod of this name, are given again.
    async fn give_remembered(
        &self,
        holders: Option<&[PodSlots]>,
        why: &str,
    ) -> Result<(), Refusal> {
        let plugin = self.plugin;
        let away = |more: &str| Refusal(format!("the API server does not answer ({why}), {more}"));
        let all = plugin.0.store.all();
        let same: Vec<&Allotment> = all
            .iter()
            .filter(|lot| lot.resource == self.resource && lot.ids == self.called)
            .collect();
        let Some(newest) = same.last().and_then(|lot| lot.recipient.as_ref()) else {
            return Err(away("and this container was given nothing before"));
        };
        let is_holder = |recipient: &Recipient| {
            holders.is_none_or(|holders| {
                holders.iter().any(|holder| {
                    holder.namespace == recipient.namespace && holder.name == recipient.pod
                })
            })
        };
        if !is_holder(newest) {
            return Err(away("and another pod held these slots before"));
        }
        let again: Vec<(Name, Recipient)> = same
            .iter()
            .filter_map(|lot| {
                let recipient = lot
                    .recipient
                    .as_ref()
                    .filter(|recipient| recipient.uid == newest.uid)?;
                Some((Name(lot.name.clone()), recipient.clone()))
            })
            .collect();
        tracing::info!(
            pod = %newest.pod, namespace = %newest.namespace,
            "the API server is away: giving again what is remembered"
        );
        give(plugin, again).await
    }
}

/// The pods that hold the slots, as the kubelet says.
struct Named {
    pods: Arc<Pods>,
    /// The pods in the kubelet's list.
    holders: Vec<PodSlots>,
    /// The pod's uid in the kubelet's record, where the list has no pod.
    uid: Option<String>,
}

/// The kubelet's own record.
async fn record(plugin: &Plugin) -> Vec<CheckpointEntry> {
    let folder = plugin.0.settings.device_plugins.clone();
    let read = spawn_blocking(move || checkpoint::read(&folder)).await;
    read.ok().flatten().unwrap_or_default()
}

/// One pod, one call.
struct Case<'a> {
    call: &'a Call<'a>,
    named: &'a Named,
    /// The pod's slots by container, as the kubelet lists them.
    listed: &'a BTreeMap<String, Vec<String>>,
}

impl Case<'_> {
    async fn serve(&self, pod: Pod, trace: &mut Option<TraceContext>) -> Result<(), Refusal> {
        let parts = &self.call.plugin.0.parts;
        let traceparent = identity::traceparent(&pod);
        let parent = TraceContext::of_pod(traceparent.as_deref(), identity::uid(&pod));
        let mut span = parts.traces.span("pre_start", parent);
        *trace = trace.or(span.context());
        span.set("k8s.node.name", self.call.plugin.0.settings.node.clone());
        span.set(
            "k8s.pod.name",
            pod.metadata.name.clone().unwrap_or_default(),
        );
        span.set(
            "k8s.namespace.name",
            pod.metadata.namespace.clone().unwrap_or_default(),
        );
        span.set("k8s.pod.uid", identity::uid(&pod));
        let served = self.given(&pod, parent).await;
        if let Err(refusal) = &served {
            span.fail(refusal.to_string());
            let events = &self.call.plugin.0.parts.events;
            let about = About::from(&pod);
            events.pod(about, Tone::Warning, "VgpuNotStarted", refusal.to_string());
        }
        served
    }

    async fn given(&self, pod: &Pod, parent: Option<TraceContext>) -> Result<(), Refusal> {
        let shared = &self.call.plugin.0;
        let (inventory, health) = self.gpus().await?;
        let settings = &shared.settings;
        if let Some(recipients) = self.remembered(pod) {
            return self.again(pod, recipients, &inventory, &health).await;
        }
        self.is_the_holder(pod).await?;
        let wanted = identity::wanted(
            pod,
            &settings.node,
            &settings.served,
            &shared.parts.vendors,
            &inventory,
            &health,
        )?;
        let workload = identity::workload(pod, &settings.team_label);
        let wanted: Vec<WantedContainer> = wanted
            .into_iter()
            .filter(|wanted| wanted.resource == self.call.resource)
            .map(|mut wanted| {
                wanted.recipient.workload = workload.clone();
                wanted
            })
            .collect();
        if wanted.is_empty() {
            return Err(Refusal(format!(
                "no container of the pod asks for {}, and the kubelet says that one holds it",
                self.call.resource
            )));
        }
        let turn = shared.turn.lock().await;
        let orders = self.orders(identity::uid(pod), &wanted).await?;
        let all = shared.store.all();
        let mut recipients: Vec<(Name, Recipient)> = Vec::new();
        let mut fresh = Vec::new();
        for (order, wanted) in orders.iter().zip(&wanted) {
            let Some(lot) = all.iter().find(|lot| lot.order == *order) else {
                return Err(Refusal("the pod was removed meanwhile".to_owned()));
            };
            let recipient = match &lot.recipient {
                Some(first) => {
                    if !first.same(&wanted.recipient) {
                        self.changed(pod, &wanted.asking.container);
                    }
                    first.clone()
                }
                None => {
                    let container = &wanted.asking.container;
                    let traces = &shared.parts.traces;
                    shared.handed.to(traces, &lot.name, container, parent);
                    fresh.push((Name(lot.name.clone()), wanted.recipient.clone()));
                    wanted.recipient.clone()
                }
            };
            recipients.push((Name(lot.name.clone()), recipient));
        }
        for (_, recipient) in &recipients {
            identity::shown_as_given(pod, recipient)?;
        }
        if !fresh.is_empty() {
            self.room(&inventory, &all, &recipients).await?;
            let store = Arc::clone(&shared.store);
            // It is kept in memory in any case; a file that cannot be written is counted and logged there.
            drop(spawn_blocking(move || store.record(&fresh)).await);
            shared.changed.notify_one();
        }
        drop(turn);
        give(self.call.plugin, self.to_give(&all, &recipients)).await?;
        tell::later(self.call.plugin, pod.clone(), recipients.len());
        Ok(())
    }

    /// Refuses a pod that only has the name of the one that holds the slots. Without a readable record that is
    /// unknown.
    async fn is_the_holder(&self, pod: &Pod) -> Result<(), Refusal> {
        let entries = record(self.call.plugin).await;
        let of_resource = entries
            .iter()
            .filter(|entry| entry.resource == self.call.resource)
            .map(|entry| (entry.uid.as_str(), entry.ids.as_slice()));
        let uid = identity::uid(pod);
        match matching::other_holder(of_resource, &self.call.called, uid) {
            None => Ok(()),
            Some(other) => Err(Refusal(format!(
                "an earlier pod of this name (uid {other}) holds these slots, and the API server has the one of uid \
                 {uid}; no container of the earlier pod is started"
            ))),
        }
    }

    /// The pod's earlier shares, if all of its containers were given one, and no allotment has been made for it since.
    fn remembered(&self, pod: &Pod) -> Option<Vec<(Name, Recipient)>> {
        let shared = &self.call.plugin.0;
        let served = shared.settings.served.iter();
        let vendor = served
            .filter(|served| served.resource == self.call.resource)
            .map(|served| served.vendor.as_str())
            .next()?;
        let all = shared.store.all();
        let uid = identity::uid(pod);
        let of_resource = || {
            all.iter()
                .rev()
                .filter(|lot| lot.resource == self.call.resource)
        };
        let is_own = |lot: &&Allotment| {
            lot.recipient
                .as_ref()
                .is_some_and(|recipient| recipient.uid == uid)
        };
        // The newest that has just these slots is the one that counts.
        let mut held = self
            .listed
            .values()
            .map(Vec::as_slice)
            .chain([self.call.called.as_slice()]);
        if !held.all(|ids| {
            let newest = of_resource().find(|lot| lot.ids == ids);
            newest.as_ref().is_some_and(is_own)
        }) {
            return None;
        }
        let names = identity::names_asking(pod, vendor, &shared.parts.vendors)?;
        let recipients = names.iter().map(|name| {
            of_resource().find_map(|lot| {
                let recipient = lot.recipient.as_ref()?;
                (recipient.uid == uid && recipient.container == *name)
                    .then(|| (Name(lot.name.clone()), recipient.clone()))
            })
        });
        let recipients: Vec<_> = recipients.collect::<Option<_>>()?;
        (!recipients.is_empty()).then_some(recipients)
    }

    /// Gives the earlier shares again: later changes of annotations or configuration do not remove them. A sick
    /// GPU holds back only the container that is to start on it.
    async fn again(
        &self,
        pod: &Pod,
        recipients: Vec<(Name, Recipient)>,
        inventory: &Inventory,
        health: &Health,
    ) -> Result<(), Refusal> {
        let shared = &self.call.plugin.0;
        let settings = &shared.settings;
        let now = identity::wanted(
            pod,
            &settings.node,
            &settings.served,
            &shared.parts.vendors,
            inventory,
            &Health::new(),
        );
        for (_, first) in &recipients {
            let says = now.iter().flatten();
            let mut says = says.filter(|wanted| wanted.recipient.container == first.container);
            if says.any(|wanted| !first.same(&wanted.recipient)) {
                self.changed(pod, &first.container);
            }
        }
        let all = shared.store.all();
        let start = self.to_give(&all, &recipients);
        for (name, recipient) in &recipients {
            let starts = all
                .iter()
                .any(|lot| lot.name == name.0 && lot.ids == self.call.called);
            if !starts {
                continue;
            }
            identity::shown_as_given(pod, recipient)?;
            for share in &recipient.shares {
                if let Some(sick) = health.get(&share.gpu) {
                    return Err(Refusal(format!(
                        "container {}: GPU {} cannot be used now: {}",
                        recipient.container, share.gpu, sick.reason
                    )));
                }
            }
        }
        give(self.call.plugin, start).await?;
        tell::later(self.call.plugin, pod.clone(), recipients.len());
        Ok(())
    }

    /// The GPUs, once they are known.
    async fn gpus(&self) -> Result<(Arc<Inventory>, Arc<Health>), Refusal> {
        let parts = &self.call.plugin.0.parts;
        loop {
            let inventory = parts.inventories.borrow().clone();
            if let Some(inventory) = inventory {
                let health = Arc::clone(&parts.healths.borrow());
                return Ok((inventory, health));
            }
            if Instant::now() >= self.call.deadline {
                return Err(Refusal(
                    "the driver has not said yet which GPUs there are".to_owned(),
                ));
            }
            sleep(AGAIN).await;
        }
    }

    /// The allotment of each container.
    async fn orders(&self, uid: &str, wanted: &[WantedContainer]) -> Result<Vec<u64>, Refusal> {
        let asking: Vec<matching::Asking> =
            wanted.iter().map(|wanted| wanted.asking.clone()).collect();
        let of_init = asking.iter().any(|asking| asking.kind == Kind::Init);
        let mut recorded = BTreeMap::new();
        if of_init {
            recorded = self.recorded(uid, &record(self.call.plugin).await);
        }
        match self.assign(uid, &asking, &recorded) {
            Ok(orders) => Ok(orders),
            Err(_) => {
                // An allotment is missing from our memory, or from the list.
                let plugin = self.call.plugin.clone();
                drop(spawn_blocking(move || plugin.recover()).await);
                recorded = self.recorded(uid, &record(self.call.plugin).await);
                self.assign(uid, &asking, &recorded)
                    .map_err(|unknown| Refusal(unknown.to_string()))
            }
        }
    }

    fn assign(
        &self,
        uid: &str,
        asking: &[matching::Asking],
        recorded: &BTreeMap<String, u64>,
    ) -> Result<Vec<u64>, matching::Unknown> {
        let all = self.call.plugin.0.store.all();
        let lots: Vec<Lot<'_>> = all
            .iter()
            .filter(|lot| lot.resource == self.call.resource)
            .map(|lot| Lot {
                order: lot.order,
                ids: &lot.ids,
                owner: lot
                    .recipient
                    .as_ref()
                    .map(|recipient| (recipient.uid.as_str(), recipient.container.as_str())),
            })
            .collect();
        let evidence = Evidence {
            uid,
            listed: self.listed,
            called: &self.call.called,
            recorded,
        };
        matching::assign(asking, &lots, evidence)
    }

    /// The allotment that the kubelet's record names, by container.
    fn recorded(&self, uid: &str, entries: &[CheckpointEntry]) -> BTreeMap<String, u64> {
        let all = self.call.plugin.0.store.all();
        let of_pod = entries
            .iter()
            .filter(|entry| entry.uid == uid && entry.resource == self.call.resource);
        of_pod
            .filter_map(|entry| {
                let name = entry.answer.as_ref().and_then(answered_name);
                let lot = all.iter().rev().find(|lot| match &name {
                    Some(name) => lot.name == name.0,
                    None => mounts(entry, &Name(lot.name.clone())),
                })?;
                Some((entry.container.clone(), lot.order))
            })
            .collect()
    }

    /// The annotations were changed after they were first read. The first shares stay.
    fn changed(&self, pod: &Pod, container: &str) {
        let text = format!(
            "container {container}: the annotations say something else than when its devices were given; what was given first stays. Delete the pod and let the scheduler place it again"
        );
        let about = About::from(pod);
        tracing::warn!(
            container,
            "the pod's annotations were changed after placement"
        );
        let events = &self.call.plugin.0.parts.events;
        events.pod(about, Tone::Warning, "VgpuAnnotationsChanged", text);
    }

    async fn room(
        &self,
        inventory: &Inventory,
        all: &[Allotment],
        recipients: &[(Name, Recipient)],
    ) -> Result<(), Refusal> {
        let uid = recipients
            .first()
            .map_or("", |(_, recipient)| recipient.uid.as_str());
        let mut others = room::by_pod(all);
        let mut own: Vec<&Recipient> = recipients.iter().map(|(_, recipient)| recipient).collect();
        let elsewhere = others.remove(uid).unwrap_or_default();
        let is_known = |recipient: &Recipient| {
            own.iter()
                .any(|known| known.container == recipient.container)
        };
        let more: Vec<&Recipient> = elsewhere
            .into_iter()
            .filter(|recipient| !is_known(recipient))
            .collect();
        own.extend(more);
        others.retain(|_, recipients| {
            let pod = recipients.first();
            pod.is_some_and(|recipient| self.named.pods.has(&recipient.namespace, &recipient.pod))
        });
        let refused = |why: NoRoom| Refusal(why.to_string());
        match room::check(inventory, &others, &own) {
            Ok(()) => Ok(()),
            Err(why @ NoRoom::Node(_)) => Err(refused(why)),
            Err(why @ NoRoom::Full { .. }) => {
                // Perhaps the kubelet still lists pods that are over. The API server knows them by uid.
                // All other containers of the node wait meanwhile.
                let Ok(over) = timeout(LOOK, self.over(&others)).await else {
                    return Err(refused(why));
                };
                others.retain(|uid, _| !over.contains(*uid));
                room::check(inventory, &others, &own).map_err(refused)
            }
        }
    }

    /// The pods among these that are over or gone. The watch may be behind, so what it says of them is read again, by
    /// name; a pod that cannot be read is not over.
    async fn over(&self, others: &BTreeMap<&str, Vec<&Recipient>>) -> BTreeSet<String> {
        let parts = &self.call.plugin.0.parts;
        let Ok(pods) = parts.pods.pods.all().await else {
            return BTreeSet::new();
        };
        let living: BTreeSet<&str> = pods
            .iter()
            .filter(|pod| !is_over(pod))
            .map(identity::uid)
            .collect();
        let mut over = BTreeSet::new();
        for (uid, recipients) in others {
            let Some(recipient) = recipients.first().filter(|_| !living.contains(uid)) else {
                continue;
            };
            match api::pod(&parts.client, &recipient.namespace, &recipient.pod).await {
                Ok(pod) if identity::uid(&pod) == *uid && !is_over(&pod) => {}
                Ok(_) | Err(Without::Gone) => drop(over.insert((*uid).to_owned())),
                Err(Without::Refused(_) | Without::Away(_)) => {}
            }
        }
        over
    }

    /// The shares that have to be given now: to the container that starts, whichever it is, and to those that got
    /// nothing from this process.
    fn to_give(
        &self,
        all: &[Allotment],
        recipients: &[(Name, Recipient)],
    ) -> Vec<(Name, Recipient)> {
        let given = self.call.plugin.0.given.lock();
        let starts = |name: &Name| {
            all.iter()
                .any(|lot| lot.name == name.0 && lot.ids == self.call.called)
        };
        recipients
            .iter()
            .filter(|(name, _)| starts(name) || !given.contains(&name.0))
            .cloned()
            .collect()
    }
}

/// Makes the instances, writes them down, and gives.
async fn give(plugin: &Plugin, recipients: Vec<(Name, Recipient)>) -> Result<(), Refusal> {
    let plugin = plugin.clone();
    let done = spawn_blocking(move || {
        for (name, mut recipient) in recipients {
            let container = recipient.container.clone();
            let refuse = |why: anyhow::Error| Refusal(format!("container {container}: {why}"));
            let mut made = false;
            for share in &mut recipient.shares {
                let Some(cut) = &mut share.instance else {
                    continue;
                };
                let giver = &plugin.0.parts.giver;
                // Again at each start: a reboot takes instances away.
                let found = giver
                    .make(&share.gpu, &cut.profile(), cut.span())
                    .map_err(refuse)?;
                made |= cut.made.as_ref() != Some(&found);
                cut.made = Some(found);
            }
            if made {
                // It is kept in memory in any case; a file that cannot be written is counted and logged there.
                drop(plugin.0.store.record(&[(name.clone(), recipient.clone())]));
            }
            let giver = &plugin.0.parts.giver;
            giver.give(&name, &recipient.given()).map_err(refuse)?;
            plugin.0.given.lock().insert(name.0);
        }
        Ok(())
    });
    done.await.unwrap_or_else(|_| {
        Err(Refusal(
            "preparing the container failed; the agent's log says why".to_owned(),
        ))
    })
}
