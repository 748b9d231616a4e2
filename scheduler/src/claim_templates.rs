//! The ResourceClaimTemplates that stand for pods' GPU resources, where the cluster gives GPUs by claims. The webhook
//! names a template in a pod and creates nothing; the leader makes the template, and deletes it when no pod has waited
//! for it for a while. A pod that has a node has its claims and needs no template any more, so only pods without a node
//! are watched. Objects of others are never changed.
//!
//! | | what the leader does |
//! |---|---|
//! | a pod waits for a template that is not there | makes it |
//! | the pod's description does not belong to the template's name | `ClaimTemplateForged` on the pod |
//! | a template of this name has another content | `ClaimTemplateForeign` on the pod |
//! | a template of ours has other parameters, from an earlier release | deletes it, and makes it again |
//! | the template is there, and kube-controller-manager has not made the claim after `WAKE_AFTER` | a condition on the pod, which wakes kube-controller-manager |
//! | the API server refuses it | `ClaimTemplateRefused` on the pod; tried again |
//! | no pod has waited for a template of ours for [`Pace::keep`] | deletes it |

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use futures_util::StreamExt as _;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, PostParams};
use kube::api::{Patch, PatchParams, Preconditions, ResourceExt as _};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube_api::object::Pod;
use kube_api::resource_claims::GROUP;
use kube_api::shares::template::{self, MANAGED_BY, Shape, ShapesError, named_by};
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::Scheduler;
use crate::calls::within;
use crate::events::{About, Kind};
use crate::ledger::uid_of;

/// The time limit of one call.
const CALL: Duration = Duration::from_secs(5);
/// The most templates that are written at a time; the rest wait for the next.
const MOST_WRITES: usize = 100;
/// A template that the API server refused is tried again after this time.
const AGAIN: Duration = Duration::from_secs(10);

/// kube-controller-manager makes the claims of a pod. It looks again after ever longer pauses, up to 17 minutes, when it
/// finds no template, and at once when the pod changes; a template that appears is no reason for it to look. In a burst of
/// pods it takes seconds by itself, because it limits its own calls.
const WAKE_AFTER: Duration = Duration::from_secs(5);
/// The most pause between two changes of a pod. They begin with [`WAKE_AFTER`] and double.
const WAKE_AT_MOST: Duration = Duration::from_secs(60);
/// The pod's condition that says that its templates are there.
const CONDITION: &str = "vgpu.io/ClaimTemplates";

/// The timing of the checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// How long a template stays without a pod that waits for it.
    pub keep: Duration,
    /// The time between two checks; a pod that appears is looked at at once.
    pub every: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            keep: Duration::from_secs(600),
            every: Duration::from_secs(1),
        }
    }
}

/// Namespace and name.
type TemplateName = (String, String);

/// A pod without a node that names templates of ours.
#[derive(Debug, Clone)]
struct Waits {
    about: About,
    namespace: String,
    name: String,
    shapes: Result<BTreeMap<String, Shape>, ShapesError>,
    /// What was said on the pod last.
    said: Option<String>,
    /// Whether a claim from a template of ours is still to be made.
    lacks_claims: bool,
    /// When kube-controller-manager is woken next, and the pause after that.
    wake: Option<(Instant, Duration)>,
}

/// A template with a name of ours.
#[derive(Debug, Clone)]
struct Stands {
    object: DynamicObject,
    /// Since when no pod has waited for it.
    unused: Instant,
}

impl Stands {
    fn is_ours(&self) -> bool {
        let (label, program) = MANAGED_BY;
        self.object.labels().get(label).map(String::as_str) == Some(program)
    }
}

/// What the leader has to do.
#[derive(Debug, Clone, PartialEq)]
enum Step {
    Make(TemplateName, Shape),
    Delete(TemplateName),
    Say(String, &'static str, String),
    Wake(String),
}

/// The pods and templates of the cluster.
#[derive(Debug, Default)]
struct Known {
    pods: HashMap<String, Waits>,
    templates: HashMap<TemplateName, Stands>,
    refused: HashMap<TemplateName, (Instant, String)>,
    listed_pods: bool,
    listed_templates: bool,
    /// What the list that is in progress has.
    listing_pods: BTreeSet<String>,
    listing_templates: BTreeSet<TemplateName>,
}

impl Known {
    fn take_pod(&mut self, event: Event<Pod>) {
        match event {
            Event::Init => self.listing_pods.clear(),
            Event::InitApply(pod) => {
                self.listing_pods.insert(uid_of(&pod).to_string());
                self.set_pod(&pod);
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listing_pods);
                self.pods.retain(|uid, _| listed.contains(uid));
                self.listed_pods = true;
            }
            Event::Apply(pod) => self.set_pod(&pod),
            Event::Delete(pod) => {
                self.pods.remove(&*uid_of(&pod));
            }
        }
    }

    fn set_pod(&mut self, pod: &Pod) {
        let uid = uid_of(pod).to_string();
        let shapes = named_by(pod);
        if !pod.spec.node_name.is_empty() || shapes.as_ref().is_ok_and(BTreeMap::is_empty) {
            self.pods.remove(&uid);
            return;
        }
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let name = pod.metadata.name.clone().unwrap_or_default();
        let before = self.pods.remove(&uid);
        let (said, wake) = before.map_or((None, None), |it| (it.said, it.wake));
        let made = &pod.status.resource_claim_statuses;
        let lacks_claims = pod.spec.resource_claims.iter().any(|claim| {
            let of_ours = claim.resource_claim_template_name.as_deref();
            of_ours.is_some_and(template::is_ours) && !made.iter().any(|it| it.name == claim.name)
        });
        let about = About::pod(&namespace, &name, &uid);
        let waits = Waits {
            about,
            namespace,
            name,
            shapes,
            said,
            lacks_claims,
            wake,
        };
        self.pods.insert(uid, waits);
    }

    fn take_template(&mut self, event: Event<DynamicObject>, now: Instant) {
        match event {
            Event::Init => self.listing_templates.clear(),
            Event::InitApply(object) => {
                self.listing_templates.insert(name_of(&object));
                self.set_template(object, now);
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listing_templates);
                self.templates.retain(|name, _| listed.contains(name));
                self.listed_templates = true;
            }
            Event::Apply(object) => self.set_template(object, now),
            Event::Delete(object) => {
                self.templates.remove(&name_of(&object));
            }
        }
    }

    fn set_template(&mut self, object: DynamicObject, now: Instant) {
        let name = name_of(&object);
        if !template::is_ours(&name.1) {
            return;
        }
        self.refused.remove(&name);
        let before = self.templates.get(&name);
        let unused = before.map_or(now, |before| before.unused);
        self.templates.insert(name, Stands { object, unused });
    }

    /// The pods for which kube-controller-manager has not made all claims, although it could.
    fn wakes(&mut self, now: Instant) -> Vec<Step> {
        let mut steps = Vec::new();
        for (uid, waits) in &mut self.pods {
            let of_shape = |name: &String| (waits.namespace.clone(), name.clone());
            let stand = waits.shapes.as_ref().is_ok_and(|shapes| {
                let mut names = shapes.keys();
                names.all(|name| self.templates.contains_key(&of_shape(name)))
            });
            if !(stand && waits.lacks_claims) {
                waits.wake = None;
                continue;
            }
            let (at, pause) = *waits.wake.get_or_insert((now + WAKE_AFTER, WAKE_AFTER));
            if now >= at {
                let next = (pause * 2).min(WAKE_AT_MOST);
                waits.wake = Some((now + next, next));
                steps.push(Step::Wake(uid.clone()));
            }
        }
        steps
    }

    /// What is to be done. Notes which templates pods wait for.
    fn steps(&mut self, now: Instant, keep: Duration) -> Vec<Step> {
        let mut steps = self.wakes(now);
        let mut wanted: BTreeMap<TemplateName, &Shape> = BTreeMap::new();
        for (uid, waits) in &self.pods {
            let mut say = |reason, text: String| {
                if waits.said.as_ref() != Some(&text) {
                    steps.push(Step::Say(uid.clone(), reason, text));
                }
            };
            let shapes = match &waits.shapes {
                Ok(shapes) => shapes,
                Err(why) => {
                    say("ClaimTemplateForged", forged(why));
                    continue;
                }
            };
            for (name, shape) in shapes {
                let at = (waits.namespace.clone(), name.clone());
                let wanted_spec = shape.template(&waits.namespace);
                if let Some(stands) = self.templates.get(&at)
                    && !is_as_wanted(&stands.object, &wanted_spec)
                {
                    say("ClaimTemplateForeign", foreign(name));
                } else if let Some((_, why)) = self.refused.get(&at) {
                    say("ClaimTemplateRefused", refused(name, why));
                }
                wanted.insert(at, shape);
            }
        }
        for (name, shape) in &wanted {
            // An earlier release wrote parameters that hide those of the DeviceClass.
            if let Some(stands) = self.templates.get(name)
                && stands.is_ours()
                && !has_right_parameters(&stands.object, &shape.template(&name.0))
            {
                steps.push(Step::Delete(name.clone()));
                continue;
            }
            if let Some(stands) = self.templates.get_mut(name) {
                stands.unused = now;
                continue;
            }
            let tried = self.refused.get(name).map(|(at, _)| *at);
            if tried.is_none_or(|at| now.saturating_duration_since(at) >= AGAIN) {
                steps.push(Step::Make(name.clone(), (*shape).clone()));
            }
        }
        for (name, stands) in &self.templates {
            if stands.is_ours() && now.saturating_duration_since(stands.unused) >= keep {
                steps.push(Step::Delete(name.clone()));
            }
        }
        self.refused.retain(|name, _| wanted.contains_key(name));
        steps
    }
}

fn name_of(object: &DynamicObject) -> TemplateName {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// Whether the template asks for what it should.
fn is_as_wanted(live: &DynamicObject, wanted: &Value) -> bool {
    let (live, wanted) = (live.data.get("spec"), wanted.get("spec"));
    live.zip(wanted)
        .is_some_and(|(live, wanted)| template::has(live, wanted))
}

fn has_right_parameters(live: &DynamicObject, wanted: &Value) -> bool {
    let (live, wanted) = (live.data.get("spec"), wanted.get("spec"));
    live.zip(wanted)
        .is_some_and(|(live, wanted)| template::has_parameters(live, wanted))
}

fn forged(why: &ShapesError) -> String {
    format!(
        "metadata.annotations[{}] {why}: no template is made for this pod. Ask for GPUs under resources.limits, or name \
         a ResourceClaimTemplate of your own",
        template::SHAPES
    )
}

fn foreign(name: &str) -> String {
    format!(
        "ResourceClaimTemplate {name} asks for something else than its name says, and was not made by vgpu's scheduler: \
         delete it, and the right one is made. Claims that were made from it stay as they are"
    )
}

fn refused(name: &str, why: &str) -> String {
    format!("ResourceClaimTemplate {name} cannot be made: {why}. It is tried again")
}

/// Makes and deletes templates. Never returns.
pub async fn keep(client: kube::Client, scheduler: Scheduler, pace: Pace) {
    let kind = GroupVersionKind::gvk(GROUP, "v1", "ResourceClaimTemplate");
    let resource = ApiResource::from_gvk(&kind);
    let pods: Api<Pod> = Api::all(client.clone());
    let templates: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let waiting = watcher::Config::default().fields("spec.nodeName=");
    let mut pods = std::pin::pin!(watcher(pods, waiting).default_backoff());
    let every = watcher::Config::default();
    let mut templates = std::pin::pin!(watcher(templates, every).default_backoff());
    let in_namespace = |namespace: &str| Api::namespaced_with(client.clone(), namespace, &resource);
    let mut known = Known::default();
    let mut look = interval(pace.every);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told: Option<String> = None;
    let mut trouble = |error: watcher::Error| {
        let error = error.to_string();
        if told.as_ref() != Some(&error) {
            tracing::warn!(
                error,
                "pods and ResourceClaimTemplates cannot be watched: pods that ask for GPUs wait for their templates"
            );
            told = Some(error);
        }
    };
    loop {
        tokio::select! {
            event = pods.next() => match event {
                Some(Ok(event)) => known.take_pod(event),
                Some(Err(error)) => trouble(error),
                None => return,
            },
            event = templates.next() => match event {
                Some(Ok(event)) => known.take_template(event, Instant::now()),
                Some(Err(error)) => trouble(error),
                None => return,
            },
            _ = look.tick() => {}
        }
        if !(known.listed_pods && known.listed_templates && scheduler.answers().is_ok()) {
            continue;
        }
        let steps = known.steps(Instant::now(), pace.keep);
        for step in steps.into_iter().take(MOST_WRITES) {
            match step {
                Step::Make(name, shape) => {
                    make(&in_namespace(&name.0), &mut known, name, &shape).await
                }
                Step::Delete(name) => delete(&in_namespace(&name.0), &mut known, name).await,
                Step::Wake(uid) => {
                    if let Some(waits) = known.pods.get(&uid) {
                        wake(&client, waits, &uid).await;
                    }
                }
                Step::Say(uid, reason, text) => {
                    if let Some(waits) = known.pods.get_mut(&uid) {
                        let events = &scheduler.0.events;
                        events.pod(waits.about.clone(), Kind::Warning, reason, text.clone());
                        waits.said = Some(text);
                    }
                }
            }
        }
    }
}

async fn make(api: &Api<DynamicObject>, known: &mut Known, name: TemplateName, shape: &Shape) {
    let template = match serde_json::from_value(shape.template(&name.0)) {
        Ok(template) => template,
        Err(error) => {
            tracing::error!(%error, "a defect in the scheduler: a template is not an object");
            return;
        }
    };
    let now = Instant::now();
    match within(CALL, api.create(&PostParams::default(), &template)).await {
        Ok(made) => {
            tracing::info!(
                namespace = name.0,
                name = name.1,
                "made a template of claims"
            );
            known.set_template(made, now);
        }
        Err(error) => {
            tracing::warn!(namespace = name.0, name = name.1, %error, "cannot make a template of claims; tried again");
            known.refused.insert(name, (now, error.to_string()));
        }
    }
}

/// Changes the pod's status, so that kube-controller-manager looks at the pod again.
async fn wake(client: &kube::Client, waits: &Waits, uid: &str) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &waits.namespace);
    let name = &waits.name;
    let time = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ");
    let condition = json!({
        "type": CONDITION, "status": "True", "reason": "Made", "lastProbeTime": time.to_string(),
        "message": "the ResourceClaimTemplates are there, and kube-controller-manager makes claims from them",
    });
    // Tied to what was seen: another pod of this name is not changed.
    let patch = json!({"metadata": {"uid": uid}, "status": {"conditions": [condition]}});
    let (params, patch) = (PatchParams::default(), Patch::Strategic(&patch));
    match within(CALL, pods.patch_status(name, &params, &patch)).await {
        Ok(_) => tracing::info!(
            namespace = waits.namespace,
            name,
            "its claims have not been made from their templates: kube-controller-manager was asked to look again"
        ),
        Err(error) => {
            tracing::warn!(namespace = waits.namespace, name, %error, "cannot change the status of a pod that waits for its claims");
        }
    }
}

async fn delete(api: &Api<DynamicObject>, known: &mut Known, name: TemplateName) {
    let Some(stands) = known.templates.get_mut(&name) else {
        return;
    };
    // Tied to what was seen: another one of this name is not deleted.
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: stands.object.uid(),
            resource_version: stands.object.resource_version(),
        }),
        ..DeleteParams::default()
    };
    match within(CALL, api.delete(&name.1, &params)).await {
        // A pod that names it meanwhile has it made again.
        Ok(_) => {
            tracing::info!(
                namespace = name.0,
                name = name.1,
                "deleted a template that no pod waits for"
            );
            known.templates.remove(&name);
        }
        Err(error) => {
            tracing::warn!(namespace = name.0, name = name.1, %error, "cannot delete a template of claims");
            stands.unused = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Duration = Duration::from_secs(60);

    fn shape(mib: u64) -> Shape {
        Shape {
            count: 1,
            memory_mib: Some(mib),
            ..Shape::default()
        }
    }

    fn pod(name: &str, template: &str, shapes: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "a", "uid": name,
                "annotations": {template::SHAPES: shapes.to_string()}},
            "spec": {"resourceClaims": [{"name": "vgpu-0", "resourceClaimTemplateName": template}]},
        }))
        .unwrap()
    }

    fn good(name: &str, shape: &Shape) -> Pod {
        pod(name, &shape.name(), &json!({shape.name(): shape}))
    }

    fn object(shape: &Shape) -> DynamicObject {
        serde_json::from_value(shape.template("a")).unwrap()
    }

    fn at(shape: &Shape) -> TemplateName {
        ("a".to_owned(), shape.name())
    }

    #[tokio::test(start_paused = true)]
    async fn template_is_made_once_and_goes_when_no_pod_has_waited_for_it() {
        let (mut known, shape) = (Known::default(), shape(1024));
        known.set_pod(&good("p", &shape));
        known.set_pod(&good("q", &shape));
        let start = Instant::now();
        let made = [Step::Make(at(&shape), shape.clone())];
        assert_eq!(known.steps(start, KEEP), made);

        known.set_template(object(&shape), start);
        assert_eq!(known.steps(start + KEEP, KEEP), []);

        // A pod that has a node has its claim.
        let mut placed = good("p", &shape);
        placed.spec.node_name = "n".to_owned();
        known.set_pod(&placed);
        known.take_pod(Event::Delete(good("q", &shape)));
        assert_eq!(known.steps(start + KEEP, KEEP), []);
        assert_eq!(
            known.steps(start + 2 * KEEP, KEEP),
            [Step::Delete(at(&shape))]
        );

        // A pod that comes meanwhile keeps it, or has it made again.
        known.set_pod(&good("r", &shape));
        assert_eq!(known.steps(start + 2 * KEEP, KEEP), []);
        known.take_template(Event::Delete(object(&shape)), start);
        assert_eq!(known.steps(start + 2 * KEEP, KEEP), made);
    }

    #[tokio::test(start_paused = true)]
    async fn pod_whose_claim_is_not_made_from_the_template_is_changed_until_it_is() {
        let (mut known, shape) = (Known::default(), shape(1024));
        let start = Instant::now();
        let mut pod = good("p", &shape);
        known.set_pod(&pod);
        let made = [Step::Make(at(&shape), shape.clone())];
        assert_eq!(known.steps(start + 9 * WAKE_AFTER, KEEP), made);

        // The template appears long after the pod.
        let start = start + 10 * WAKE_AFTER;
        known.set_template(object(&shape), start);
        let mut seconds = Vec::new();
        for second in 0..200 {
            let steps = known.steps(start + Duration::from_secs(second), KEEP * 10);
            if !steps.is_empty() {
                assert_eq!(steps, [Step::Wake("p".to_owned())]);
                seconds.push(second);
                // As its own change comes back.
                known.set_pod(&pod);
            }
        }
        assert_eq!(seconds, [5, 15, 35, 75, 135, 195]);

        let claims = json!([{"name": "vgpu-0", "resourceClaimName": "p-vgpu-0-x"}]);
        pod.status.resource_claim_statuses = serde_json::from_value(claims).unwrap();
        known.set_pod(&pod);
        assert_eq!(known.steps(start + 4 * KEEP, KEEP * 10), []);
    }

    #[tokio::test(start_paused = true)]
    async fn templates_of_others_are_named_on_the_pod_and_never_touched() {
        let (mut known, shape) = (Known::default(), shape(1024));
        known.set_pod(&good("p", &shape));
        let mut other = object(&self::shape(9000));
        other.metadata.name = Some(shape.name());
        other.metadata.labels = None;
        let start = Instant::now();
        known.set_template(other, start);

        let steps = known.steps(start, KEEP);
        let [Step::Say(uid, "ClaimTemplateForeign", text)] = &steps[..] else {
            panic!("{steps:?}");
        };
        assert!(uid == "p" && text.contains(&shape.name()), "{text}");
        known.pods.get_mut("p").unwrap().said = Some(text.clone());
        assert_eq!(known.steps(start, KEEP), [], "it is said once");
        known.take_pod(Event::Delete(good("p", &shape)));
        assert_eq!(known.steps(start + 2 * KEEP, KEEP), []);
    }

    #[tokio::test(start_paused = true)]
    async fn template_of_ours_with_an_earlier_releases_parameters_is_made_again() {
        let (mut known, mut shape) = (Known::default(), shape(1024));
        shape.priority = 3;
        known.set_pod(&good("p", &shape));
        let mut earlier = object(&shape);
        let parameters = "/spec/spec/devices/config/0/opaque/parameters";
        earlier.data.pointer_mut(parameters).unwrap()["policy"] = json!("default");
        let start = Instant::now();
        known.set_template(earlier.clone(), start);
        assert_eq!(known.steps(start, KEEP), [Step::Delete(at(&shape))]);
        known.take_template(Event::Delete(earlier), start);
        let again = [Step::Make(at(&shape), shape.clone())];
        assert_eq!(known.steps(start, KEEP), again);

        known.set_template(object(&shape), start);
        assert_eq!(known.steps(start, KEEP), []);
    }

    #[tokio::test(start_paused = true)]
    async fn forged_description_makes_no_template() {
        let (mut known, shape) = (Known::default(), shape(1024));
        let forged = json!({shape.name(): self::shape(9000)});
        known.set_pod(&pod("p", &shape.name(), &forged));

        let steps = known.steps(Instant::now(), KEEP);
        let [Step::Say(_, "ClaimTemplateForged", text)] = &steps[..] else {
            panic!("{steps:?}");
        };
        assert!(text.contains("vgpu-share-1x9000mi"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn refused_template_is_named_on_the_pod_and_tried_again() {
        let (mut known, shape) = (Known::default(), shape(1024));
        known.set_pod(&good("p", &shape));
        let start = Instant::now();
        let why = "forbidden: no right".to_owned();
        known.refused.insert(at(&shape), (start, why));

        let steps = known.steps(start, KEEP);
        let [Step::Say(_, "ClaimTemplateRefused", text)] = &steps[..] else {
            panic!("{steps:?}");
        };
        assert!(text.contains("forbidden: no right"), "{text}");
        let later = known.steps(start + AGAIN, KEEP);
        assert!(
            later.contains(&Step::Make(at(&shape), shape.clone())),
            "{later:?}"
        );
    }

    #[test]
    fn a_list_that_begins_again_forgets_what_is_gone() {
        let (mut known, shape) = (Known::default(), shape(1024));
        let now = Instant::now();
        for event in [
            Event::Init,
            Event::InitApply(good("p", &shape)),
            Event::InitDone,
        ] {
            known.take_pod(event);
        }
        for event in [
            Event::Init,
            Event::InitApply(object(&shape)),
            Event::InitDone,
        ] {
            known.take_template(event, now);
        }
        assert_eq!((known.pods.len(), known.templates.len()), (1, 1));

        for event in [Event::Init, Event::InitDone] {
            known.take_pod(event);
        }
        for event in [Event::Init, Event::InitDone] {
            known.take_template(event, now);
        }
        assert_eq!((known.pods.len(), known.templates.len()), (0, 0));
    }
}
