//! Admission of one object: the order in which a pod is checked and changed. Keeps nothing between two reviews, and
//! asks nothing outside but [`Quotas`].

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use json_patch::PatchOperation;
use kube_api::keys;
use kube_api::object::{Container, EnvVar, Pod};
use kube_api::quantity::Quantity;
use kube_api::request::request;
use kube_api::shares::template;
use kube_api::vendor::{Edits, Role, Vendors};
use placement::Request;
use serde::Deserialize;
use serde_json::{Value, json};
use server::{Span, TraceContext, Traces};

use crate::by_claims;
use crate::checks::{self, Asks};
use crate::context::{Context, Operation};
use crate::denied::Denied;
use crate::forgery::Reserved;
use crate::hcs;
use crate::inject::{NVIDIA, hide_devices, inject, is_own_reference, say_evictable, set_variable};
use crate::patch::Patch;
use crate::place::At;
use crate::quotas::{self, Quotas};
use crate::settings::Settings;
use crate::visible::{self, Source};

const DEFAULT_SCHEDULER: &str = "default-scheduler";
const IGNORE: &str = "ignore";

/// The webhook's checks and changes of pods. Cheap to call, from any thread.
pub struct Admission {
    vendors: Arc<Vendors>,
    settings: Settings,
    /// The runtime classes of NVIDIA's runtime.
    gpu_classes: Vec<String>,
    reserved: Reserved,
    quotas: Option<Arc<dyn Quotas>>,
    traces: Traces,
}

/// An object that is admitted, with the changes and messages that go with it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Admitted {
    /// The changes to the object, in this order; empty if there are none.
    pub patch: Vec<PatchOperation>,
    /// Why nothing is changed, where that may surprise the author.
    pub message: Option<String>,
    /// Warnings for the author of the object; kubectl prints them.
    pub warnings: Vec<String>,
    /// The pod's trace, where it has one.
    pub trace: Option<TraceContext>,
}

/// Why a pod is reviewed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// To change it. This trace is written on it.
    Change(Option<TraceContext>),
    /// To check that no other program has changed it for the worse since it was admitted.
    Look,
    /// To check whether it has been admitted here.
    Recognise,
}

impl Admission {
    /// Admission of pods that ask for devices of these vendors.
    pub fn new(vendors: Arc<Vendors>, settings: Settings) -> Self {
        Self {
            reserved: Reserved::of(&vendors),
            gpu_classes: visible::runtime_classes(&vendors, &settings),
            vendors,
            settings,
            quotas: None,
            traces: Traces::off(),
        }
    }

    /// Uses `quotas` to refuse a pod that its namespace has no room for.
    #[must_use]
    pub fn with_quotas(mut self, quotas: Arc<dyn Quotas>) -> Self {
        self.quotas = Some(quotas);
        self
    }

    /// Starts a trace for each pod that it changes, and names the trace in an annotation.
    #[must_use]
    pub fn with_traces(mut self, traces: Traces) -> Self {
        self.traces = traces;
        self
    }

    /// The settings that it was built with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The changes to a pod, as a mutating webhook.
    ///
    /// # Errors
    ///
    /// The pod is refused: the text names the container, the field and the cure.
    pub fn mutate(
        &self,
        pod: &Value,
        context: &Context<'_>,
    ) -> Result<Vec<PatchOperation>, Denied> {
        self.admit(pod, context).map(|admitted| admitted.patch)
    }

    /// Like [`Admission::mutate`], with the messages for the author of the pod.
    ///
    /// # Errors
    ///
    /// The pod is refused: the text names the container, the field and the cure.
    pub fn admit(&self, object: &Value, context: &Context<'_>) -> Result<Admitted, Denied> {
        let mut span = self.span(object, context);
        let judged = self.judge(object, context, Purpose::Change(span.context()));
        match &judged {
            Ok(admitted) if admitted.trace.is_some() => {}
            // Not a pod that asks for a device that vgpu gives.
            Ok(_) => span.forget(),
            Err(denied) => span.fail(denied.to_string()),
        }
        judged
    }

    /// The span of a pod's admission; an empty span where traces are off. Its parent may be any span that the pod's
    /// author names, so that a pipeline finds its pods in its own trace.
    fn span(&self, object: &Value, context: &Context<'_>) -> Span {
        if !self.traces.is_on() {
            return self.traces.span("admission", None);
        }
        let metadata = object.get("metadata");
        let text = |key: &str| metadata?.get(key)?.as_str();
        let given = metadata
            .and_then(|metadata| {
                metadata
                    .get("annotations")?
                    .get(keys::TRACEPARENT)?
                    .as_str()
            })
            .and_then(TraceContext::parse);
        let mut span = self.traces.span("admission", given);
        let name = text("name").or(text("generateName")).unwrap_or_default();
        span.set("k8s.namespace.name", namespace(object, context));
        span.set("k8s.pod.name", name);
        span
    }

    /// Checks a pod without changing it, as a validating webhook: this sees what other webhooks changed after ours.
    ///
    /// # Errors
    ///
    /// The pod is refused: the text names the container, the field and the cure.
    pub fn validate(&self, object: &Value, context: &Context<'_>) -> Result<(), Denied> {
        self.judge(object, context, Purpose::Look).map(|_| ())
    }

    /// Whether a pending pod has been admitted here, which is the case when nothing would be refused or changed. The
    /// scheduler asks this where the API server knows no match conditions: such an API server skips a webhook that is
    /// down.
    ///
    /// # Errors
    ///
    /// The pod has not been admitted: the text names what it lacks.
    pub fn passed(&self, pod: &Value) -> Result<(), Denied> {
        let admitted = self.judge(pod, &Context::default(), Purpose::Recognise)?;
        match admitted.patch.first() {
            None => Ok(()),
            Some(operation) => Err(Denied::pod(
                operation.path().to_string(),
                "the pod was created without the webhook, which would have changed this; delete it and make it again \
                 while the webhook answers",
            )),
        }
    }

    fn judge(
        &self,
        object: &Value,
        context: &Context<'_>,
        purpose: Purpose,
    ) -> Result<Admitted, Denied> {
        let namespace = namespace(object, context);
        if among(&self.settings.exempt_namespaces, namespace) {
            return Ok(Admitted::default());
        }
        let trusted = among(&self.settings.own_accounts, context.user);
        match (context.operation, context.subresource) {
            (Operation::Create, "") => self.create(object, context, namespace, trusted, purpose),
            // The annotations of a binding become the pod's.
            (Operation::Create, "binding") | (Operation::Update, _) if !trusted => {
                self.reserved.check(context.old, object, |_, _| false)?;
                if context.subresource == "ephemeralcontainers" {
                    return self.ephemeral(object, context, purpose);
                }
                Ok(Admitted::default())
            }
            (Operation::Update, "ephemeralcontainers") => self.ephemeral(object, context, purpose),
            _ => Ok(Admitted::default()),
        }
    }

    fn create(
        &self,
        object: &Value,
        context: &Context<'_>,
        namespace: &str,
        trusted: bool,
        purpose: Purpose,
    ) -> Result<Admitted, Denied> {
        let mut pod = decode(object)?;
        if pod.spec.containers.is_empty() {
            return Err(Denied::pod(
                "spec.containers",
                "pod has no containers; name at least one",
            ));
        }
        let mut admitted = Admitted::default();
        if self.is_to_be_ignored(&pod, context, &mut admitted.warnings) {
            return Ok(admitted);
        }
        let is_foreign = self.belongs_to_another_scheduler(&pod);
        // The amounts of a pod that another scheduler places are neither rounded nor refused.
        let edits = if is_foreign {
            Vec::new()
        } else {
            self.edits(&pod)?
        };
        let is_ours = |key: &str, value: &str| {
            edits
                .iter()
                .flat_map(|(_, edits)| &edits.annotations)
                .any(|(edit, to)| edit == key && to == value)
        };
        if !trusted && purpose != Purpose::Recognise {
            self.reserved.check(None, object, is_ours)?;
        }
        // Defaults can add a device to a pod that asks for none itself.
        let mut patch = Patch::of(object);
        for (at, edits) in &edits {
            self.write_edits(*at, edits, &mut pod, &mut patch);
        }
        let takes_several_vendors =
            !is_foreign && hcs::admit(&self.vendors, &self.settings, &mut pod, object, &mut patch)?;
        let mentions = self.mentions(&pod);
        let of_vendors = |at: At, container: &Container, variable: &EnvVar| {
            edits
                .iter()
                .filter(|(edited, _)| edited.list == at.list && edited.index == at.index)
                .flat_map(|(_, edits)| &edits.env)
                .any(|(name, value)| {
                    *name == variable.name
                        && variable.value_from.is_none()
                        && variable.value.as_deref().unwrap_or_default() == value
                })
                || is_own_reference(container, variable)
                || hcs::is_own_reference(variable, &self.vendors)
        };
        for (at, container) in At::of(&pod) {
            if mentions {
                checks::environment(container, |variable| of_vendors(at, container, variable))?;
            }
            let asks = if self.gets_gpu(&pod, container) {
                Asks::Itself
            } else if mentions {
                Asks::Beside
            } else {
                Asks::Nothing
            };
            checks::mounts(container, at.value(object), asks)?;
        }
        let request = if mentions && !is_foreign {
            request(&pod, &self.vendors, &self.settings.defaults)?
        } else {
            Request::default()
        };
        let is_hidden = self.is_hidden(&pod);
        for (index, (at, container)) in At::of(&pod).enumerate() {
            let ours = |variable: &EnvVar| of_vendors(at, container, variable);
            let place = (index, container);
            let source = if !is_foreign && template::is_used(&pod, container) {
                Source::Ours
            } else {
                visible::source(&self.vendors, &request, &pod, place, is_foreign)
            };
            if purpose == Purpose::Look {
                visible::check(container, source, is_hidden, ours)?;
                continue;
            }
            visible::rewrite(&self.settings, source, at, ours, &mut patch);
            if is_hidden && source == Source::None {
                hide_devices(&mut patch, at);
            }
        }
        if is_foreign {
            admitted.message = Some("pod already has different scheduler assigned".into());
            if mentions {
                admitted.warnings.push(format!(
                    "spec.schedulerName is {:?}, so {} does not place this pod and its devices are not limited",
                    pod.spec.scheduler_name, self.settings.scheduler_name
                ));
            }
            admitted.patch = patch.into_operations();
            return Ok(admitted);
        }

        let has_claims = At::of(&pod).any(|(_, container)| template::is_used(&pod, container));
        by_claims::check(&pod)?;
        if !request.asks_for_devices() {
            if has_claims {
                for (_, container) in At::of(&pod) {
                    checks::rights(container)?;
                }
                self.check_pod(&pod, object)?;
                self.warn_of_capabilities(&pod, object, &mut admitted.warnings);
                inject(&self.settings, &pod, object, &request, &mut patch);
            }
            admitted.patch = patch.into_operations();
            return Ok(admitted);
        }
        let by_claims = self.settings.by_claims && by_claims::is_meant(&request)?;
        for (_, container) in At::of(&pod) {
            checks::rights(container)?;
        }
        self.check_pod(&pod, object)?;
        self.warn_of_capabilities(&pod, object, &mut admitted.warnings);
        if matches!(purpose, Purpose::Change(_))
            && let Some(quotas) = &self.quotas
        {
            quotas::check(&request, &pod, namespace, &self.vendors, &**quotas)?;
            if let Some(why) = quotas.exceeded(namespace, &pod) {
                return Err(Denied::pod("spec.containers", why));
            }
        }
        if by_claims {
            let warnings = by_claims::turn(
                &self.vendors,
                &pod,
                &request,
                &self.settings.scheduler_name,
                &mut patch,
            )?;
            admitted.warnings.extend(warnings);
        } else {
            for (at, container) in At::of(&pod) {
                self.equalise(at, container, &mut patch);
            }
        }
        if !by_claims && !self.settings.scheduler_name.is_empty() {
            let own = self.settings.scheduler_name.as_str();
            let any_vendor = self.vendors.any_vendor_scheduler();
            let name = any_vendor.filter(|_| takes_several_vendors).unwrap_or(own);
            patch.set(&["spec", "schedulerName"], json!(name));
        }
        inject(&self.settings, &pod, object, &request, &mut patch);
        say_evictable(self.settings.safe_to_evict, &mut patch);
        if let Purpose::Change(Some(own)) = purpose {
            let key = keys::TRACEPARENT;
            patch.set(&["metadata", "annotations", key], json!(own.to_string()));
            admitted.trace = Some(own);
        }
        admitted.patch = patch.into_operations();
        Ok(admitted)
    }

    /// Whether the label that exempts a pod from admission counts. If it does not, a warning says so.
    fn is_to_be_ignored(
        &self,
        pod: &Pod,
        context: &Context<'_>,
        warnings: &mut Vec<String>,
    ) -> bool {
        let label = pod
            .metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(keys::WEBHOOK));
        if label.map(String::as_str) != Some(IGNORE) {
            return false;
        }
        let counts = self.settings.ignore_label_for_all
            || among(&self.settings.ignore_label_accounts, context.user)
            || among(&self.settings.own_accounts, context.user);
        if !counts && self.mentions(pod) {
            warnings.push(format!(
                "metadata.labels[{}] is not taken from {:?}; label the namespace, or ask the operator",
                keys::WEBHOOK,
                context.user
            ));
        }
        counts
    }

    fn belongs_to_another_scheduler(&self, pod: &Pod) -> bool {
        let name = pod.spec.scheduler_name.as_str();
        !(name.is_empty()
            || name == self.settings.scheduler_name
            || self.vendors.any_vendor_scheduler() == Some(name)
            || (name == DEFAULT_SCHEDULER && self.settings.force_overwrite_default_scheduler))
    }

    /// The vendors' changes of each container; unchanged containers are left out.
    fn edits(&self, pod: &Pod) -> Result<Vec<(At, Edits)>, Denied> {
        let mut all = Vec::new();
        for (at, container) in At::of(pod) {
            // In such a container a vendor's own resource name is only for its device plugin, and is not a request for
            // a share.
            if hcs::concerns(container, &self.vendors) {
                continue;
            }
            for row in self.vendors.iter() {
                let edits = row.admit(container, pod)?;
                if edits != Edits::default() {
                    all.push((at, edits));
                }
            }
        }
        Ok(all)
    }

    fn write_edits(&self, at: At, edits: &Edits, pod: &mut Pod, patch: &mut Patch<'_>) {
        let index = at.index.to_string();
        let of_container = |rest: &[&'static str]| -> Vec<&str> {
            ["spec", at.list, &index]
                .into_iter()
                .chain(rest.iter().copied())
                .collect()
        };
        if let Some(container) = at.mut_in(pod) {
            let resources = &mut container.resources;
            for (kind, amounts, here) in [
                ("limits", &edits.limits, &mut resources.limits),
                ("requests", &edits.requests, &mut resources.requests),
            ] {
                for (name, amount) in amounts {
                    let amount = Quantity(amount.clone());
                    if here.get(name).is_some_and(|here| same(here, &amount)) {
                        continue;
                    }
                    // Claims replace the resource.
                    if !(self.settings.by_claims && by_claims::replaces(&self.vendors, name)) {
                        let mut path = of_container(&["resources", kind]);
                        path.push(name);
                        patch.set(&path, json!(amount.0));
                    }
                    here.insert(name.clone(), amount);
                }
            }
        }
        for (name, value) in &edits.env {
            set_variable(patch, at, name, &json!({ "name": name, "value": value }));
        }
        let post_start = of_container(&["lifecycle", "postStart"]);
        if !edits.post_start.is_empty() && patch.get(&post_start).is_none() {
            let hook = json!({ "exec": { "command": edits.post_start } });
            patch.set(&post_start, hook);
        }
        for (key, value) in &edits.annotations {
            let path = ["metadata", "annotations", key.as_str()];
            if patch.get(&path).is_none() {
                patch.set(&path, json!(value));
            }
        }
        if let Some(class) = &edits.runtime_class {
            let path = ["spec", "runtimeClassName"];
            if patch.get(&path).and_then(Value::as_str).unwrap_or_default() == "" {
                patch.set(&path, json!(class));
            }
        }
    }

    /// For our resources the API server requires a limit, and a request that equals it.
    fn equalise(&self, at: At, container: &Container, patch: &mut Patch<'_>) {
        let index = at.index.to_string();
        let resources = &container.resources;
        for (name, request) in &resources.requests {
            if self.vendors.of_resource(name).is_none() {
                continue;
            }
            let path = |kind| ["spec", at.list, &index, "resources", kind, name.as_str()];
            match resources.limits.get(name) {
                None => patch.set(&path("limits"), json!(request.0)),
                Some(limit) if !same(limit, request) => {
                    patch.set(&path("requests"), json!(limit.0));
                }
                Some(_) => {}
            }
        }
    }

    /// Refuses what is not allowed for a pod with devices as a whole.
    fn check_pod(&self, pod: &Pod, object: &Value) -> Result<(), Denied> {
        if !pod.spec.node_name.is_empty() && !self.settings.scheduler_name.is_empty() {
            return Err(Denied::pod(
                "spec.nodeName",
                format!(
                    "pod has node assigned ({}), and only the scheduler knows which devices of a node are free; \
                     remove it, and use spec.nodeSelector or node affinity",
                    pod.spec.node_name
                ),
            ));
        }
        let host_pid = object
            .get("spec")
            .and_then(|spec| spec.get("hostPID"))
            .and_then(Value::as_bool);
        if host_pid == Some(true) && !self.settings.allow_host_pid {
            return Err(Denied::pod(
                "spec.hostPID",
                "a pod with devices would see and could end the processes of others on the device; remove it, or ask \
                 the operator to allow it",
            ));
        }
        if self.settings.devices_by_annotation {
            let mut seen = HashMap::new();
            for (_, container) in At::of(pod) {
                let key = keys::visible_devices(&container.name);
                if let Some(other) = seen.insert(key, &container.name)
                    && *other != container.name
                {
                    return Err(Denied::container(
                        &container.name,
                        "name",
                        format!(
                            "begins with the same digits of SHA-256 as {other}; give it another name"
                        ),
                    ));
                }
            }
        }
        Ok(())
    }

    /// Warns of capabilities with which a container could unmount the agent's mounts. They are not refused, because
    /// file systems in user space need the same ones.
    fn warn_of_capabilities(&self, pod: &Pod, object: &Value, warnings: &mut Vec<String>) {
        for (at, container) in At::of(pod) {
            let added = at
                .value(object)
                .pointer("/securityContext/capabilities/add")
                .and_then(Value::as_array);
            let strong = added
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .find(|added| {
                    // Container runtimes accept capability names in upper and lower case.
                    let name = added.to_ascii_uppercase();
                    let name = name.strip_prefix("CAP_").unwrap_or(&name);
                    matches!(name, "ALL" | "SYS_ADMIN" | "SYS_MODULE")
                });
            if let Some(capability) = strong {
                warnings.push(format!(
                    "container {}: securityContext.capabilities.add[{capability}] lets it undo what keeps its limits",
                    container.name
                ));
            }
        }
    }

    fn ephemeral(
        &self,
        object: &Value,
        context: &Context<'_>,
        purpose: Purpose,
    ) -> Result<Admitted, Denied> {
        let pod = decode(object)?;
        let old = context.old.map(decode).transpose()?.unwrap_or_default();
        let before = old.spec.ephemeral_containers.iter();
        let known: HashSet<&str> = before.map(|container| container.name.as_str()).collect();
        let mentions = self.mentions(&pod);
        let is_hidden = self.is_hidden(&pod)
            || self.mentions_nvidia(&pod)
            || visible::hides_everywhere(&self.vendors, &self.settings);
        let mut patch = Patch::of(object);
        for (index, container) in pod.spec.ephemeral_containers.iter().enumerate() {
            if known.contains(container.name.as_str()) {
                continue;
            }
            let at = At {
                list: At::EPHEMERAL,
                index,
            };
            if mentions {
                checks::environment(container, |_| false)?;
                checks::rights(container)?;
            }
            let asks = if mentions {
                Asks::Beside
            } else {
                Asks::Nothing
            };
            checks::mounts(container, at.value(object), asks)?;
            if purpose == Purpose::Look {
                visible::check(container, Source::None, is_hidden, |_| false)?;
                continue;
            }
            visible::rewrite(&self.settings, Source::None, at, |_| false, &mut patch);
            if is_hidden {
                hide_devices(&mut patch, at);
            }
        }
        Ok(Admitted {
            patch: patch.into_operations(),
            ..Admitted::default()
        })
    }

    /// Whether any container names one of the configured resources with an amount.
    fn mentions(&self, pod: &Pod) -> bool {
        self.mentions_where(pod, |_| true)
    }

    fn mentions_nvidia(&self, pod: &Pod) -> bool {
        self.mentions_where(pod, |vendor| vendor == NVIDIA)
    }

    fn mentions_where(&self, pod: &Pod, vendor: impl Fn(&str) -> bool) -> bool {
        At::of(pod).any(|(_, container)| {
            self.names_device(container, &vendor)
                || (vendor(NVIDIA) && template::is_used(pod, container))
        })
    }

    /// Whether the container may get a GPU into which the node agent mounts its files.
    fn gets_gpu(&self, pod: &Pod, container: &Container) -> bool {
        self.names_device(container, |vendor| vendor == NVIDIA) || template::is_used(pod, container)
    }

    /// Whether the container names a resource of such a vendor with an amount; one of hcs.io may be of any vendor.
    fn names_device(&self, container: &Container, vendor: impl Fn(&str) -> bool) -> bool {
        let resources = &container.resources;
        resources
            .limits
            .iter()
            .chain(&resources.requests)
            .any(|(name, amount)| {
                let of = self.vendors.of_resource(name);
                if kube_api::hcs_request::is_resource(name, &self.vendors) {
                    return amount.0 != "0";
                }
                // A priority alone asks for no device.
                of.is_some_and(|(row, role)| role != Role::Priority && vendor(&row.word))
                    && amount.0 != "0"
            })
    }

    /// Whether a container of the pod without a GPU must not see what its image names.
    fn is_hidden(&self, pod: &Pod) -> bool {
        let class = pod.spec.runtime_class_name.as_deref().unwrap_or_default();
        self.settings.hide_everywhere || among(&self.gpu_classes, class)
    }
}

fn decode(object: &Value) -> Result<Pod, Denied> {
    if !object.is_object() {
        return Err(Denied::unreadable("it is no pod: it is not a JSON object"));
    }
    Pod::deserialize(object).map_err(|error| Denied::unreadable(format!("it is no pod: {error}")))
}

/// The namespace of the request: a pod that is being created may leave its own out.
pub(crate) fn namespace<'a>(object: &'a Value, context: &Context<'a>) -> &'a str {
    if !context.namespace.is_empty() {
        return context.namespace;
    }
    object
        .pointer("/metadata/namespace")
        .and_then(Value::as_str)
        .unwrap_or_default()
}

pub(crate) fn among(names: &[String], name: &str) -> bool {
    names.iter().any(|one| one == name)
}

/// Whether two amounts are equal, however they are written: the API server turns `3000` into `3k`.
fn same(one: &Quantity, other: &Quantity) -> bool {
    if one == other {
        return true;
    }
    match (one.parse(), other.parse()) {
        // For a memory resource the notation decides the unit.
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}
