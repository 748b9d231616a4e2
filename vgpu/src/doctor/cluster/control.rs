//! The installed parts: scheduler, webhook, agent, their configurations, certificates and rights. Facts in, verdicts
//! out.

use kube_api::config::DeviceConfig;
use kube_api::vendor::Role;
use serde_json::Value;

use super::ClusterFacts;
use super::objects::{
    annotation, containers, flag, full_name, is_ours, is_part, is_ready, items, label, name,
    namespace, number, text, unix,
};
use super::tls::{Certificate, certificates};
use crate::doctor::check::{Finding, Judged, fail, ok, several, skip, warn};

/// Versions that work in full, of Kubernetes 1.
const FULL: std::ops::RangeInclusive<u32> = 28..=37;
/// The oldest that works at all.
const OLDEST: u32 = 18;
/// The parts, by the label that says so.
const PARTS: [&str; 3] = ["scheduler", "webhook", "agent"];
/// The reasons why a container without an image waits.
const NO_IMAGE: [&str; 4] = [
    "ImagePullBackOff",
    "ErrImagePull",
    "InvalidImageName",
    "ErrImageNeverPull",
];
const DAY: i64 = 86_400;

impl ClusterFacts {
    /// The minor version of Kubernetes 1.
    fn minor(&self) -> Result<u32, Finding> {
        if let Some(why) = self.unread.get("version") {
            return Err(skip(format!("/version could not be read: {why}")));
        }
        kube_api::version::number(text(&self.version, "/minor"))
            .ok_or_else(|| skip(format!("/version says {:?}", self.version.to_string())))
    }

    /// Whether it is a DaemonSet that no node is for: then it is not missing.
    fn is_for_no_node(&self, part: &str) -> bool {
        self.daemonsets.iter().any(|set| {
            is_part(set, part)
                && set.pointer("/status/desiredNumberScheduled") == Some(&Value::from(0))
        })
    }

    /// Every entry of our webhook configurations.
    fn entries(&self) -> Result<Vec<&Value>, Finding> {
        self.read(&["webhooks"])?;
        let found: Vec<&Value> = self
            .mutating
            .iter()
            .chain(&self.validating)
            .filter(|object| self.is_our_configuration(object))
            .flat_map(|object| items(object, "/webhooks"))
            .collect();
        if found.is_empty() {
            return Err(skip("there is no configuration of the webhook (VGPU-K17)"));
        }
        Ok(found)
    }

    fn is_our_configuration(&self, object: &Value) -> bool {
        let named = self
            .pods_of("webhook")
            .first()
            .and_then(|pod| flag(pod, "--webhook-config-name"));
        named == Some(name(object)) || is_part(object, "webhook")
    }

    /// The certificates that API servers trust.
    fn trusted(&self) -> Result<Vec<Certificate>, Finding> {
        let mut all: Vec<Certificate> = Vec::new();
        for entry in self.entries()? {
            let bundle = text(entry, "/clientConfig/caBundle");
            let pem = super::tls::decoded(bundle).unwrap_or_default();
            for certificate in certificates(&pem) {
                if !all.contains(&certificate) {
                    all.push(certificate);
                }
            }
        }
        Ok(all)
    }

    /// The configuration of the kube-scheduler that asks us.
    fn kube_scheduler(&self) -> Result<Value, Finding> {
        self.home()?;
        self.read(&["configmaps"])?;
        let found = self.configmaps.iter().find_map(|map| {
            let data = map.pointer("/data")?.as_object()?;
            let mut texts = data.values().filter_map(Value::as_str);
            Some((
                map,
                texts.find(|text| text.contains("KubeSchedulerConfiguration"))?,
            ))
        });
        if let Some((map, text)) = found {
            return serde_saphyr::from_str(text).map_err(|error| {
                fail(format!("ConfigMap {} is no YAML: {error}", full_name(map)))
            });
        }
        Err(skip(
            "no ConfigMap with a KubeSchedulerConfiguration is in the namespace: another scheduler asks",
        ))
    }

    /// The extender of that configuration that is ours: the one with our resources, else the first.
    fn our_extender(&self) -> Result<Value, Finding> {
        let config = self.kube_scheduler()?;
        let resource = self.resource();
        let manages = |extender: &&Value| {
            items(extender, "/managedResources").any(|managed| text(managed, "/name") == resource)
        };
        let extenders = || items(&config, "/extenders");
        extenders()
            .find(manages)
            .or_else(|| extenders().next())
            .cloned()
            .ok_or_else(|| fail("the kube-scheduler's configuration names no extender"))
    }
}

pub(super) fn version(facts: &ClusterFacts) -> Judged {
    let minor = facts.minor()?;
    let said = format!(
        "{} says {}",
        facts.server,
        text(&facts.version, "/gitVersion")
    );
    Ok(match minor {
        minor if FULL.contains(&minor) => ok(said),
        minor if minor < OLDEST => fail(said),
        _ => warn(said),
    })
}

pub(super) fn installed(facts: &ClusterFacts) -> Judged {
    facts.read(&["pods"])?;
    let missing: Vec<&str> = PARTS
        .into_iter()
        .filter(|part| facts.pods_of(part).is_empty() && !facts.is_for_no_node(part))
        // Where all nodes give by claims, there is no agent with a device plugin.
        .filter(|part| *part != "agent" || facts.pods_of("dra").is_empty())
        .collect();
    if missing.is_empty() {
        return Ok(ok(format!("in namespace {}", facts.home()?)));
    }
    Ok(fail(format!(
        "no pod with the labels app.kubernetes.io/name=vgpu and app.kubernetes.io/component={}",
        missing.join(", ")
    )))
}

pub(super) fn images(facts: &ClusterFacts) -> Judged {
    facts.home()?;
    facts.read(&["pods"])?;
    let wrong: Vec<String> = facts
        .pods
        .iter()
        .filter(|pod| is_ours(pod))
        .flat_map(|pod| without_image(pod).map(move |status| (pod, status)))
        .map(|(pod, status)| {
            format!(
                "{} of {}: {} ({})",
                text(status, "/image"),
                full_name(pod),
                text(status, "/state/waiting/reason"),
                text(status, "/state/waiting/message")
            )
        })
        .collect();
    if wrong.is_empty() {
        return Ok(ok("no container of vgpu waits for its image"));
    }
    Ok(fail(several(&wrong)))
}

/// Statuses of the pod's containers that have no image.
fn without_image(pod: &Value) -> impl Iterator<Item = &Value> {
    let statuses =
        items(pod, "/status/initContainerStatuses").chain(items(pod, "/status/containerStatuses"));
    statuses.filter(|status| NO_IMAGE.contains(&text(status, "/state/waiting/reason")))
}

/// Pods that are not ready, with why; those that have no image are another check's.
pub(super) fn unready(pods: &[&Value]) -> Vec<String> {
    pods.iter()
        .filter(|pod| !is_ready(pod) && without_image(pod).next().is_none())
        .map(|pod| {
            let sidecars = items(pod, "/status/initContainerStatuses")
                .filter(|status| status.pointer("/state/terminated").is_none());
            let waits = sidecars
                .chain(items(pod, "/status/containerStatuses"))
                .filter(|status| status.get("ready") != Some(&Value::Bool(true)))
                .map(|status| {
                    let why = ["waiting", "terminated"]
                        .iter()
                        .map(|state| text(status, &format!("/state/{state}/reason")))
                        .find(|reason| !reason.is_empty());
                    format!(
                        "{} {}",
                        text(status, "/name"),
                        why.unwrap_or("is not ready")
                    )
                });
            let waits: Vec<String> = waits.collect();
            format!("{}: {}", full_name(pod), several(&waits))
        })
        .collect()
}

pub(super) fn scheduler_ready(facts: &ClusterFacts) -> Judged {
    ready(&facts.need("scheduler")?)
}

fn ready(pods: &[&Value]) -> Judged {
    let wrong = unready(pods);
    if wrong.is_empty() {
        if !pods.iter().any(|pod| is_ready(pod)) {
            return Ok(skip("all of its pods wait for an image (VGPU-K11)"));
        }
        return Ok(ok(format!("{} pods are ready", pods.len())));
    }
    if pods.iter().any(|pod| is_ready(pod)) {
        return Ok(warn(several(&wrong)));
    }
    Ok(fail(several(&wrong)))
}

pub(super) fn scheduler_lease(facts: &ClusterFacts) -> Judged {
    let pods = facts.need("scheduler")?;
    facts.read(&["leases"])?;
    let of = |name: &str| pods.iter().find_map(|pod| flag(pod, name));
    if of("--leader-elect") == Some("false") {
        return Err(skip("it runs with --leader-elect=false"));
    }
    let wanted = of("--leader-elect-resource-name").unwrap_or(&facts.scheduler_name);
    let home = facts.home()?;
    if let Some(other) = of("--leader-elect-resource-namespace").filter(|other| *other != home) {
        return Err(skip(format!("its Lease is in namespace {other}")));
    }
    let lease = facts.leases.iter().find(|lease| name(lease) == wanted);
    let lease = lease.ok_or_else(|| fail(format!("there is no Lease {home}/{wanted}")))?;
    let holder = text(lease, "/spec/holderIdentity");
    let ago = facts
        .now()
        .saturating_sub(unix(text(lease, "/spec/renewTime")).unwrap_or(0));
    let said = format!("Lease {home}/{wanted} is held by {holder:?}, renewed {ago} s ago");
    let lasts = u64::try_from(number(lease, "/spec/leaseDurationSeconds")).unwrap_or(15);
    // The holder is the host's name, which is the pod's, an underline and a random number.
    let host = holder.rsplit_once('_').map_or(holder, |(host, _)| host);
    let is_one_of_ours = pods
        .iter()
        .any(|pod| name(pod) == host || text(pod, "/spec/nodeName") == host);
    if ago > lasts.max(15) * 2 || !is_one_of_ours {
        return Ok(fail(said));
    }
    Ok(ok(said))
}

pub(super) fn extender(facts: &ClusterFacts) -> Judged {
    let extender = facts.our_extender()?;
    let mut wrong = Vec::new();
    for verb in ["filterVerb", "bindVerb"] {
        if text(&extender, &format!("/{verb}")).is_empty() {
            wrong.push(format!("it has no {verb}"));
        }
    }
    let vendors = facts.vendors();
    for (resource, row, role) in vendors.resources() {
        // A vendor that the scheduler does not look at needs no row.
        let managed = items(&extender, "/managedResources")
            .find(|managed| text(managed, "/name") == resource);
        match managed {
            None if row.word == "NVIDIA" => {
                wrong.push(format!("managedResources lacks {resource}"));
            }
            Some(managed)
                if role != Role::Count
                    && managed.get("ignoredByScheduler") != Some(&Value::Bool(true)) =>
            {
                wrong.push(format!("{resource} is not ignoredByScheduler"));
            }
            _ => {}
        }
    }
    let address = text(&extender, "/urlPrefix");
    if wrong.is_empty() {
        return Ok(ok(format!("it asks {address}")));
    }
    Ok(fail(format!("extender {address}: {}", several(&wrong))))
}

pub(super) fn all_nodes(facts: &ClusterFacts) -> Judged {
    let config = facts.kube_scheduler()?;
    let part = number(&config, "/percentageOfNodesToScore");
    let said = format!("percentageOfNodesToScore: {part}");
    Ok(if part == 100 { ok(said) } else { fail(said) })
}

pub(super) fn preempts(facts: &ClusterFacts) -> Judged {
    let extender = facts.our_extender()?;
    let verb = text(&extender, "/preemptVerb");
    let said = format!("preemptVerb: {verb:?}");
    Ok(if verb.is_empty() {
        fail(said)
    } else {
        ok(said)
    })
}

pub(super) fn webhook_ready(facts: &ClusterFacts) -> Judged {
    let pods = facts.need("webhook")?;
    facts.read(&["webhooks"])?;
    for (kind, objects) in [
        ("MutatingWebhookConfiguration", &facts.mutating),
        ("ValidatingWebhookConfiguration", &facts.validating),
    ] {
        if !objects
            .iter()
            .any(|object| facts.is_our_configuration(object))
        {
            return Err(fail(format!("there is no {kind} of vgpu")));
        }
    }
    ready(&pods)
}

pub(super) fn fails_closed(facts: &ClusterFacts) -> Judged {
    let entries = facts.entries()?;
    if facts.minor()? < *FULL.start() {
        return Err(warn(
            "this Kubernetes has no match conditions: pods that are made while the webhook is down get in as they are",
        ));
    }
    let wrong: Vec<String> = entries
        .iter()
        .filter(|entry| !text(entry, "/name").starts_with("hide-devices."))
        .filter_map(|entry| {
            let open = text(entry, "/failurePolicy") == "Ignore";
            let all = items(entry, "/matchConditions").next().is_none();
            let why = match (open, all) {
                (true, _) => "failurePolicy is Ignore",
                (false, true) => "it has no matchConditions: without it no pod at all is made",
                (false, false) => return None,
            };
            Some(format!("{}: {why}", text(entry, "/name")))
        })
        .collect();
    if wrong.is_empty() {
        return Ok(ok(format!("{} entries", entries.len())));
    }
    Ok(fail(several(&wrong)))
}

pub(super) fn ca_bundle(facts: &ClusterFacts) -> Judged {
    let entries = facts.entries()?;
    let pods = facts.need("webhook")?;
    if pods.iter().any(|pod| flag(pod, "--cert_file").is_some()) {
        return Err(skip(
            "the webhook uses a certificate that vgpu did not make (--cert_file)",
        ));
    }
    let secret = facts.ca_secret.as_deref().unwrap_or_default();
    if let Some(why) = &facts.ca_error {
        return Err(skip(format!("Secret {secret} could not be read: {why}")));
    }
    let ca = certificates(facts.ca.as_deref().unwrap_or_default());
    let first = ca
        .first()
        .ok_or_else(|| fail(format!("Secret {secret} has no certificate in ca.crt")))?;
    let wrong: Vec<&str> = entries
        .iter()
        .filter(|entry| {
            let bundle = super::tls::decoded(text(entry, "/clientConfig/caBundle"));
            !certificates(&bundle.unwrap_or_default()).contains(first)
        })
        .map(|entry| text(entry, "/name"))
        .collect();
    if wrong.is_empty() {
        return Ok(ok(format!(
            "{} entries trust the CA of Secret {secret}",
            entries.len()
        )));
    }
    Ok(fail(format!(
        "the CA of Secret {secret} is not in the caBundle of {}",
        several(&wrong)
    )))
}

pub(super) fn ca_valid(facts: &ClusterFacts) -> Judged {
    let trusted = facts.trusted()?;
    let now = i64::try_from(facts.now()).unwrap_or(i64::MAX);
    let last = trusted
        .iter()
        .max_by_key(|certificate| certificate.until)
        .ok_or_else(|| fail("no caBundle has a certificate that can be read"))?;
    let days = (last.until - now).div_euclid(DAY);
    let said = format!(
        "{} certificates are trusted, the last one ends in {days} days",
        trusted.len()
    );
    if last.until <= now {
        return Ok(fail(format!(
            "the last of the trusted certificates ended {} days ago",
            -days
        )));
    }
    if trusted
        .iter()
        .all(|certificate| certificate.from > now + 300)
    {
        return Ok(fail("none of the trusted certificates is valid yet"));
    }
    Ok(if days < 7 { warn(said) } else { ok(said) })
}

pub(super) fn dry_run(facts: &ClusterFacts) -> Judged {
    facts.need("webhook")?;
    let run = facts
        .dry_run
        .as_ref()
        .ok_or_else(|| skip("no pod was sent"))?;
    let asked = format!("a pod sent to namespace {} as a dry run", run.namespace);
    if let Some(error) = &run.error {
        // The caller's own right, and not the webhook's word.
        let forbidden = run.status == 403 && error.contains("cannot create resource");
        let said = format!("{asked}: {error}");
        return Err(if forbidden { skip(said) } else { fail(said) });
    }
    let back = run.scheduler_name.as_deref().unwrap_or_default();
    if back != facts.scheduler_name {
        return Err(fail(format!(
            "{asked} came back for {back:?}, and not for {:?}: the webhook has not seen it",
            facts.scheduler_name
        )));
    }
    Ok(ok(format!("{asked} came back for {back}")))
}

pub(super) fn pod_security(facts: &ClusterFacts) -> Judged {
    let home = facts.home()?;
    facts.read(&["namespaces"])?;
    let space = facts.namespaces.iter().find(|space| name(space) == home);
    let level = space.map_or("", |space| {
        label(space, "pod-security.kubernetes.io/enforce")
    });
    match level {
        "baseline" | "restricted" => Ok(fail(format!("namespace {home} enforces {level}"))),
        "" => Ok(ok(format!("namespace {home} has no level of its own"))),
        level => Ok(ok(format!("namespace {home} enforces {level}"))),
    }
}

pub(super) fn agent_rights(facts: &ClusterFacts) -> Judged {
    rights(facts, "agent")
}

pub(super) fn scheduler_rights(facts: &ClusterFacts) -> Judged {
    rights(facts, "scheduler")
}

pub(super) fn webhook_rights(facts: &ClusterFacts) -> Judged {
    rights(facts, "webhook")
}

fn rights(facts: &ClusterFacts, part: &str) -> Judged {
    let pods = facts.need(part)?;
    if let Some(why) = &facts.access_error {
        return Err(skip(format!(
            "the API server does not tell what others may: {why}"
        )));
    }
    let writes = !pods
        .iter()
        .any(|pod| flag(pod, "--write-configuration") == Some("false"));
    let of_part: Vec<_> = facts
        .access
        .iter()
        .filter(|access| access.part == part)
        .filter(|access| writes || !access.right.contains("admissionregistration"))
        .collect();
    let missing: Vec<&str> = of_part
        .iter()
        .filter(|access| !access.allowed)
        .map(|access| access.right.as_str())
        .collect();
    let account = of_part.first().map_or("", |access| access.account.as_str());
    if missing.is_empty() {
        return Ok(ok(format!(
            "{account} has the {} rights that were asked for",
            of_part.len()
        )));
    }
    Ok(fail(format!("{account} may not {}", several(&missing))))
}

pub(super) fn node_ports(facts: &ClusterFacts) -> Judged {
    facts.read(&["services"])?;
    let wrong: Vec<String> = facts
        .services
        .iter()
        .filter(|service| !is_ours(service))
        .flat_map(|service| items(service, "/spec/ports").map(move |port| (service, port)))
        .filter(|(_, port)| matches!(number(port, "/nodePort"), 31_992 | 31_993))
        .map(|(service, port)| {
            format!(
                "Service {} has node port {}",
                full_name(service),
                number(port, "/nodePort")
            )
        })
        .collect();
    if wrong.is_empty() {
        return Ok(ok("no other Service has node port 31993 or 31992"));
    }
    Ok(warn(several(&wrong)))
}

pub(super) fn no_hami(facts: &ClusterFacts) -> Judged {
    let of_hami = |object: &&Value| {
        !is_ours(object)
            && (name(object).contains("hami-")
                || label(object, "app.kubernetes.io/name") == "hami"
                || items(object, "/spec/template/spec/containers")
                    .any(|container| text(container, "/image").contains("projecthami/")))
    };
    let mut wrong: Vec<String> = Vec::new();
    for (kind, objects) in [
        ("DaemonSet", &facts.daemonsets),
        ("Deployment", &facts.deployments),
    ] {
        let found = objects.iter().filter(of_hami);
        wrong.extend(found.map(|object| format!("{kind} {}", full_name(object))));
    }
    let hooks = facts.mutating.iter().filter(of_hami);
    wrong.extend(hooks.map(|object| format!("MutatingWebhookConfiguration {}", name(object))));
    if wrong.is_empty() {
        facts.read(&["daemonsets", "deployments", "webhooks"])?;
        return Ok(ok("no DaemonSet, Deployment or webhook of HAMi's"));
    }
    Ok(fail(several(&wrong)))
}

pub(super) fn device_config(facts: &ClusterFacts) -> Judged {
    let home = facts.home()?;
    facts.read(&["configmaps"])?;
    let configs = facts.device_configs();
    if configs.is_empty() {
        return Err(warn(format!(
            "no ConfigMap in {home} has device-config.yaml: the standard one holds"
        )));
    }
    let wrong: Vec<String> = configs
        .iter()
        .filter_map(|(map, text)| {
            let error = DeviceConfig::parse(text).err()?;
            Some(format!("ConfigMap {map}: {error}"))
        })
        .collect();
    if wrong.is_empty() {
        let names: Vec<&str> = configs.iter().map(|(map, _)| *map).collect();
        return Ok(ok(format!("ConfigMap {}", several(&names))));
    }
    Ok(fail(several(&wrong)))
}

pub(super) fn same_config(facts: &ClusterFacts) -> Judged {
    facts.home()?;
    facts.read(&["pods", "configmaps"])?;
    let configs = facts.device_configs();
    let mut texts: Vec<&str> = configs.iter().map(|(_, text)| *text).collect();
    texts.dedup();
    if texts.len() > 1 {
        let names: Vec<&str> = configs.iter().map(|(map, _)| *map).collect();
        return Err(fail(format!("ConfigMaps {} differ", several(&names))));
    }
    // The chart writes on each pod what it was started with.
    let mut sums: Vec<(&str, String)> = Vec::new();
    for pod in facts.pods.iter().filter(|pod| is_ours(pod)) {
        let sum = annotation(pod, "checksum/device-config");
        if !sum.is_empty() && !sums.iter().any(|(other, _)| *other == sum) {
            sums.push((sum, full_name(pod)));
        }
    }
    if sums.len() > 1 {
        let shown: Vec<String> = sums
            .iter()
            .map(|(sum, pod)| format!("{pod} with {}", sum.get(..8).unwrap_or(sum)))
            .collect();
        return Err(fail(format!(
            "started with different ones: {}",
            several(&shown)
        )));
    }
    Ok(ok("all were started with the same"))
}

pub(super) fn one_release(facts: &ClusterFacts) -> Judged {
    facts.home()?;
    facts.read(&["pods"])?;
    let mut releases: Vec<(&str, String)> = Vec::new();
    for pod in facts.pods.iter().filter(|pod| is_ours(pod)) {
        let release = label(pod, "app.kubernetes.io/version");
        if !release.is_empty() && !releases.iter().any(|(other, _)| *other == release) {
            releases.push((release, full_name(pod)));
        }
    }
    let shown: Vec<String> = releases
        .iter()
        .map(|(release, pod)| format!("{pod} is of {release}"))
        .collect();
    Ok(match releases.len() {
        0 => skip("no pod of vgpu states its release"),
        1 => ok(several(&shown)),
        _ => warn(several(&shown)),
    })
}

/// Whether the pod is another vendor's device plugin for NVIDIA's GPUs.
pub(super) fn is_nvidias_plugin(pod: &Value) -> bool {
    !is_ours(pod)
        && containers(pod).any(|container| {
            let image = text(container, "/image");
            image.contains("k8s-device-plugin") || image.contains("nvidia-device-plugin")
        })
        && !namespace(pod).is_empty()
}
