"""The inside of chart-check: renders the chart, and judges what comes out.

A check is a function whose name says what holds; it raises Wrong with a sentence. Nothing here knows how the chart
makes an object, only what has to be true of it. Writes to its working folder and, with --server, to the API server
that KUBECONFIG names.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import time
import urllib.request

import yaml

from chart_rules import RBAC, HOST_PATHS, CAPABILITIES, REFUSED, UPGRADES_KEEP

CHART = pathlib.Path("charts/vgpu")
NAMESPACE = "gpu-system"
RELEASE = "vgpu"
VERSIONS = [f"1.{minor}.{patch}" for minor, patch in zip(range(18, 38), [20, 16, 15, 14, 17, 17, 17, 16, 15, 16, 15, 15, 14, 13, 12, 8, 3, 4, 1, 2])]
LATEST = VERSIONS[-1]
# Kinds that the API server of our tests lacks; the checks themselves look at their shape.
OPERATOR = {"ServiceMonitor", "PrometheusRule"}
VENDOR_VERSIONS = ["v1.31.2-eks-7f9249a", "v1.30.4-gke.1348000", "v1.33.1+k3s1", "v1.29.8+rke2r1"]


class Wrong(Exception):
    """A check that failed, in a sentence."""


def need(truth, text):
    if not truth:
        raise Wrong(text)


def run(*command, ok=True, **more):
    done = subprocess.run(command, capture_output=True, text=True, **more)
    if ok and done.returncode != 0:
        raise Wrong(f"{' '.join(map(str, command))[:200]}: {(done.stderr or done.stdout).strip()[-1500:]}")
    return done


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """YAML that refuses a key given twice: the later one would win without a word."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        need(len(keys) == len(set(keys)), f"a key is given twice: {sorted(k for k in set(keys) if keys.count(k) > 1)}")
        return super().construct_mapping(node, deep)


def read(text):
    return [document for document in yaml.load_all(text, Loader) if document]


def containers_of(workload):
    """Sidecars, which Kubernetes lists as init containers, and the others."""
    spec = workload["spec"]["template"]["spec"]
    return spec.get("initContainers", []) + spec["containers"]


class Rendered:
    """The objects of one set of values on one version."""

    def __init__(self, values, version, text):
        self.values, self.version, self.text = values, version, text
        self.minor = int(re.search(r"1\.(\d+)", version)[1])
        self.objects = read(text)

    def __str__(self):
        return f"{self.values} on {self.version}"

    def of(self, *kinds):
        return [thing for thing in self.objects if thing["kind"] in kinds]

    def one(self, kind, name):
        found = [thing for thing in self.of(kind) if thing["metadata"]["name"] == name]
        need(len(found) == 1, f"{self}: {len(found)} of {kind} {name}")
        return found[0]

    def workloads(self):
        return self.of("Deployment", "DaemonSet")

    def containers(self):
        for workload in self.workloads():
            for container in containers_of(workload):
                yield workload, container

    def parsed(self):
        """Configuration inside of ConfigMaps: (name, key, value)."""
        for config in self.of("ConfigMap"):
            for key, text in config["data"].items():
                yield config["metadata"]["name"], key, text


def values_file(values):
    """A set of values for tests, or a profile that the chart ships."""
    profile = CHART / "profiles" / f"{values}.yaml"
    return profile if profile.exists() else CHART / "ci" / f"{values}-values.yaml"


def render(values, version, *more):
    files = [] if values == "defaults" else ["-f", str(values_file(values))]
    command = ["helm", "template", RELEASE, str(CHART), "-n", NAMESPACE, "--kube-version", version, *files, *more]
    return Rendered(values, version, run(*command).stdout)


# --- what holds of every rendering ---------------------------------------------------------------------------------


def no_container_has_more_rights_than_it_needs(rendered):
    for workload, container in rendered.containers():
        name = f"{rendered}: {container['name']}"
        security = container.get("securityContext", {})
        need(not security.get("privileged"), f"{name} is privileged")
        need(security.get("allowPrivilegeEscalation") is False, f"{name} may gain rights")
        need(security.get("readOnlyRootFilesystem") is True, f"{name} may write to its root file system")
        need(security["capabilities"].get("drop") == ["ALL"], f"{name} keeps capabilities")
        added = set(security["capabilities"].get("add", []))
        need(added <= CAPABILITIES.get(container["name"], set()), f"{name} has the capabilities {added}")
        mixed = "--mig-strategy=mixed" in container.get("args", [])
        fence = container["name"] == "fence"
        need(("SYS_ADMIN" in added) == (mixed or fence), f"{name}: SYS_ADMIN is for MIG and the second fence alone")
        groups = [m["name"] for m in container.get("volumeMounts", []) if m["mountPath"] == "/sys/fs/cgroup"]
        need(groups == (["control-groups"] if fence else []), f"{name}: the host's control groups are for the second fence alone: {groups}")
        need(not (fence and container.get("ports")), f"{name} serves something")
        need("limits" in container["resources"] or container["name"].endswith("scheduler"), f"{name} has no limit")
        pod = workload["spec"]["template"]
        host = pod["spec"]
        agent = workload["kind"] == "DaemonSet"
        need(bool(host.get("hostPID")) <= agent and not host.get("hostIPC"), f"{name} shares the host's processes")
        need(not host.get("hostNetwork") or container["name"] == "vgpu-webhook", f"{name} is in the host's network")
        if not agent:
            need(host["securityContext"]["runAsNonRoot"] is True, f"{name} runs as root")
        if rendered.minor >= 19:
            need(host["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, f"{name} has no seccomp profile")
        else:
            key = "seccomp.security.alpha.kubernetes.io/pod"
            need(pod["metadata"]["annotations"].get(key) == "runtime/default", f"{name} has no seccomp profile")


def only_the_plugin_has_the_agents_token(rendered):
    """A container with a mount at that path gets no token."""
    path = "/var/run/secrets/kubernetes.io/serviceaccount"
    for workload, container in rendered.containers():
        over = [m["name"] for m in container["volumeMounts"] if m["mountPath"] == path]
        need(over == (["no-token"] if container["name"] in ("exporter", "fence") else []), f"{rendered}: {container['name']}: {over} at {path}")
        volumes = {v["name"]: v for v in workload["spec"]["template"]["spec"].get("volumes", [])}
        need(not over or "emptyDir" in volumes["no-token"], f"{rendered}: {volumes.get('no-token')}")


def nothing_of_the_host_is_mounted_but_what_is_listed(rendered):
    for workload in rendered.workloads():
        for volume in workload["spec"]["template"]["spec"].get("volumes", []):
            if "hostPath" in volume:
                need(workload["kind"] == "DaemonSet", f"{rendered}: {workload['metadata']['name']} mounts a path of the host")
                path = volume["hostPath"]["path"].replace("/data/kubelet", "/var/lib/kubelet")
                need(path in HOST_PATHS, f"{rendered}: {path} is mounted")


def every_image_has_a_tag_and_a_registry(rendered):
    for _, container in rendered.containers():
        image = container["image"]
        need(re.fullmatch(r"[a-z0-9.:-]+(/[a-z0-9._-]+)+(:v?\d[\w.-]*|@sha256:[0-9a-f]{64})", image), f"{rendered}: image {image}")
        need(not image.endswith(":latest"), f"{rendered}: {image} is another one each day")


def every_selector_selects_its_own_pods(rendered):
    pods = [(w["metadata"]["name"], w["spec"]["template"]["metadata"]["labels"]) for w in rendered.workloads()]
    for thing in rendered.of("Service", "PodDisruptionBudget", "NetworkPolicy", "Deployment", "DaemonSet"):
        spec = thing["spec"]
        selector = spec.get("podSelector", spec.get("selector"))
        selector = selector.get("matchLabels", selector)
        hit = [name for name, labels in pods if selector.items() <= labels.items()]
        need(len(hit) == 1, f"{rendered}: {thing['kind']} {thing['metadata']['name']} selects {hit}")
        need(thing["metadata"]["name"].startswith(hit[0]), f"{rendered}: {thing['metadata']['name']} selects {hit[0]}")


def every_port_that_is_named_is_there(rendered):
    for service in rendered.of("Service"):
        selector = service["spec"]["selector"]
        for workload in rendered.workloads():
            template = workload["spec"]["template"]
            if selector.items() <= template["metadata"]["labels"].items():
                ports = {p["name"]: p["containerPort"] for c in containers_of(workload) for p in c.get("ports", [])}
                for port in service["spec"]["ports"]:
                    need(port["targetPort"] in ports, f"{rendered}: Service {service['metadata']['name']}: port {port}")
        if service["spec"].get("type") == "NodePort":
            need(service["spec"]["externalTrafficPolicy"] == "Local", f"{rendered}: any node answers for any other")
            need(service["metadata"]["labels"]["vgpu.io/scrape"] == "false", f"{rendered}: agents are scraped twice")
    for workload, container in rendered.containers():
        names = {port["name"] for port in container.get("ports", [])}
        numbers = {str(port["containerPort"]) for port in container.get("ports", [])}
        # A probe of one container may ask another one of the pod, by its number.
        asked = names | {port["containerPort"] for c in containers_of(workload) for port in c.get("ports", [])}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if probe in container:
                need(container[probe]["httpGet"]["port"] in asked, f"{rendered}: {container['name']}: {probe} names no port of the pod")
        for argument in container.get("args", []):
            listens = re.fullmatch(r"--(metrics-bind-address|metrics-addr|http_bind|gpu-page)=(.*):(\d+)", argument)
            if listens and not listens[2].startswith("127."):
                need(listens[3] in numbers, f"{rendered}: {container['name']} listens on {listens[3]}, which is no port of it")


def the_verbs_listen_on_loopback_beside_kube_scheduler(rendered):
    pods = [w for w in rendered.workloads() if w["metadata"]["name"].endswith("-scheduler")]
    for pod in pods:
        containers = {c["name"]: c for c in containers_of(pod)}
        bind = [a for a in containers["vgpu-scheduler"]["args"] if a.startswith("--http_bind=")]
        if "kube-scheduler" in containers:
            need(bind == ["--http_bind=127.0.0.1:8080"], f"{rendered}: the verbs listen on {bind}")
        else:
            need(any(s["metadata"]["name"].endswith("-extender") for s in rendered.of("Service")), f"{rendered}: no Service leads to the extender")


def a_kube_scheduler_without_its_extender_does_not_work(rendered):
    """It ends when its extender fails, and where the kubelet can order containers it starts after it is ready."""
    for pod in [w for w in rendered.workloads() if w["metadata"]["name"] == f"{RELEASE}-scheduler"]:
        containers = {c["name"]: c for c in containers_of(pod)}
        extender = containers["vgpu-scheduler"]
        replicas = pod["spec"]["replicas"]
        need(replicas == (2 if "kube-scheduler" in containers else 1), f"{rendered}: {replicas} replicas of the scheduler")
        if "kube-scheduler" not in containers:
            continue
        [metrics] = [p["containerPort"] for p in extender["ports"] if p["name"] == "metrics"]
        asked = containers["kube-scheduler"]["livenessProbe"]["httpGet"]
        need(asked == {"path": "/livez/kube-scheduler", "port": metrics}, f"{rendered}: kube-scheduler's liveness asks {asked}")
        need("--kube-scheduler-health=https://127.0.0.1:10259/healthz" in extender["args"], f"{rendered}: kube-scheduler's own health is not asked for")
        first = pod["spec"]["template"]["spec"].get("initContainers", []) == [extender]
        need(first == (rendered.minor >= 29), f"{rendered}: the extender starts first: {first}")
        if first:
            need(extender["restartPolicy"] == "Always", f"{rendered}: kube-scheduler waits for the end of the extender")
            need(extender["startupProbe"]["httpGet"]["path"] == "/readyz", f"{rendered}: kube-scheduler starts before the extender is ready")
        text = next(text for _, key, text in rendered.parsed() if key == "config.yaml")
        election = read(text)[0]["leaderElection"]
        theirs = yaml.load(pathlib.Path("tests/cluster/kube-scheduler.yaml").read_text(), Loader)["leaderElection"]
        for field in ("leaseDuration", "renewDeadline", "retryPeriod"):
            need(election[field] == theirs[field], f"{rendered}: {field} differs from tests/cluster/kube-scheduler.yaml, which the tests measure")


def rights_are_only_those_that_are_listed(rendered):
    for role in rendered.of("ClusterRole", "Role"):
        name = role["metadata"]["name"].removeprefix(f"{RELEASE}-")
        allowed = RBAC.get((role["kind"], name))
        need(allowed is not None, f"{rendered}: {role['kind']} {name} is not listed")
        for rule in role["rules"] or []:
            for group in rule.get("apiGroups", ["URL"]):
                for resource in rule.get("resources") or rule["nonResourceURLs"]:
                    for verb in rule["verbs"]:
                        need("*" not in (group, resource, verb), f"{rendered}: {name}: a right to everything")
                        named = bool(rule.get("resourceNames"))
                        right = (group, resource, verb)
                        need(right in allowed, f"{rendered}: {role['kind']} {name}: {right} is not listed")
                        need(named or not allowed[right], f"{rendered}: {role['kind']} {name}: {right} without a name")
    for binding in rendered.of("ClusterRoleBinding", "RoleBinding"):
        role, [subject] = binding["roleRef"]["name"], binding["subjects"]
        if role.startswith("system:"):
            need(role in ("system:kube-scheduler", "system:volume-scheduler"), f"{rendered}: bound to {role}")
            need(subject["name"] == f"{RELEASE}-scheduler", f"{rendered}: {role} goes to {subject['name']}")
        else:
            # The scheduler reads the assigner's reservations.
            of = f"{RELEASE}-scheduler" if role == f"{RELEASE}-claims" else role
            need(of == subject["name"], f"{rendered}: {role} goes to {subject['name']}")
        need(subject["namespace"] == NAMESPACE, f"{rendered}: an account of {subject['namespace']}")
    accounts = {a["metadata"]["name"] for a in rendered.of("ServiceAccount")}
    for workload in rendered.workloads():
        need(workload["spec"]["template"]["spec"]["serviceAccountName"] in accounts, f"{rendered}: an account is missing")


def api_versions_are_those_of_the_cluster(rendered):
    minor = rendered.minor
    for budget in rendered.of("PodDisruptionBudget"):
        need(budget["apiVersion"] == ("policy/v1" if minor >= 21 else "policy/v1beta1"), f"{rendered}: {budget['apiVersion']}")
    for runtime in rendered.of("RuntimeClass"):
        need(runtime["apiVersion"] == ("node.k8s.io/v1" if minor >= 20 else "node.k8s.io/v1beta1"), f"{rendered}: {runtime['apiVersion']}")
    for agent in rendered.of("DaemonSet"):
        template = agent["spec"]["template"]
        exporter = [c for c in template["spec"]["containers"] if c["name"] == "exporter"]
        key = "container.apparmor.security.beta.kubernetes.io/exporter"
        for container in exporter:
            need(("appArmorProfile" in container["securityContext"]) == (minor >= 30), f"{rendered}: appArmorProfile")
            need((key in template["metadata"]["annotations"]) == (minor < 30), f"{rendered}: {key}")
        manner = [a for c in template["spec"]["containers"] for a in c["args"] if a.startswith("--manner=")]
        need(minor >= 29 or manner == ["--manner=mounts"], f"{rendered}: {manner}, and the kubelet drops CDI names")
    for name, key, text in rendered.parsed():
        if key == "config.yaml":
            # The tag of the image, where values name one, says which kube-scheduler reads it.
            image = next(c["image"] for _, c in rendered.containers() if c["name"] == "kube-scheduler")
            scheduler = int(re.search(r":v1\.(\d+)", image)[1])
            api = "v1" if scheduler >= 25 else "v1beta3" if scheduler >= 23 else "v1beta2" if scheduler >= 22 else "v1beta1" if scheduler >= 19 else "v1alpha2"
            need(read(text)[0]["apiVersion"] == f"kubescheduler.config.k8s.io/{api}", f"{rendered}: {text[:60]}")
            need(rendered.values == "hami" or scheduler == minor, f"{rendered}: kube-scheduler {image}")


# Resources that pods of hcs.io request: its own, and the other names of the vendors' devices.
HCS_NAMES = {
    "ai.compute/vram",
    "ai.compute/devices",
    "ai.compute/tflops-fp16",
    "ai.compute/tflops-fp32",
    "huawei.com/ascend",
    "huawei.com/npu",
    "hygon.com/dcu",
    "cambricon.com/mlu",
}


def kube_scheduler_asks_for_every_resource(rendered):
    device = next(text for _, key, text in rendered.parsed() if key == "device-config.yaml")
    [device] = read(device)
    for _, key, text in rendered.parsed():
        if key != "config.yaml":
            continue
        [config] = read(text)
        need(config["percentageOfNodesToScore"] == 100, f"{rendered}: nodes are sampled before we are asked")
        [extender, *scores] = config["extenders"]
        # About pods with ResourceClaims kube-scheduler asks only an extender without managedResources.
        by_claims = bool(rendered.of("DeviceClass"))
        need([("managedResources" in e, e["prioritizeVerb"], e["weight"], e["ignorable"], "filterVerb" in e) for e in scores] == [(False, "prioritize", 1000, True, False)] * by_claims, f"{rendered}: {scores}")
        need(extender["preemptVerb"] == "preempt" and not extender["ignorable"] and extender["nodeCacheCapable"], f"{rendered}: extender")
        managed = {entry["name"]: entry["ignoredByScheduler"] for entry in extender["managedResources"]}
        counted = [name for name, ignored in managed.items() if not ignored]
        # A pod of hcs.io names the count of every vendor that would do. kube-scheduler may count none of them, unless such
        # pods have a profile of their own, whose NodeResourcesFit ignores them; else it would never preempt for a GPU.
        count = device["nvidia"]["resourceCountName"]
        own = (device.get("hcs") or {}).get("anyVendorScheduler") if "hcs" in device else None
        expected = [] if "hcs" in device and not own else [count]
        need(counted == expected, f"{rendered}: kube-scheduler counts {counted} and not {expected}")
        profiles = {profile["schedulerName"]: profile for profile in config["profiles"]}
        need((own in profiles) == bool(own), f"{rendered}: profiles {sorted(profiles)} and anyVendorScheduler {own}")
        if own:
            fit = next(one["args"] for one in profiles[own]["pluginConfig"] if one["name"] == "NodeResourcesFit")
            need(count.split("/")[0] in fit["ignoredResourceGroups"], f"{rendered}: {own} counts {count}: {fit}")
        if rendered.values == "all-on":
            theirs = yaml.load(pathlib.Path("tests/cluster/kube-scheduler.yaml").read_text(), Loader)
            theirs = {e["name"]: e["ignoredByScheduler"] for e in theirs["extenders"][0]["managedResources"]}
            managed.pop("example.com/accelerator")
            # The cluster of the tests runs without hcs.io.
            need(HCS_NAMES <= set(managed), f"{rendered}: kube-scheduler does not ask for {HCS_NAMES - set(managed)}")
            managed = {name: ignored for name, ignored in managed.items() if name not in HCS_NAMES}
            managed["nvidia.com/gpu"] = False
            need(managed == theirs, f"{rendered}: managedResources and tests/cluster/kube-scheduler.yaml differ in {set(managed) ^ set(theirs)}")


def nothing_is_left_of_helm(rendered):
    for line in rendered.text.splitlines():
        if "{{" in line and not re.search(r"\{\{ ?\$(labels|value)|\{\{[a-z_]+\}\}", line):
            raise Wrong(f"{rendered}: {line.strip()[:120]}")
        need("<no value>" not in line and "%!" not in line, f"{rendered}: {line.strip()[:120]}")
    for thing in rendered.objects:
        cluster = thing["kind"] in ("ClusterRole", "ClusterRoleBinding", "PriorityClass", "RuntimeClass", "DeviceClass", "CustomResourceDefinition", "Namespace", "MutatingWebhookConfiguration", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
        need(cluster == ("namespace" not in thing["metadata"]), f"{rendered}: namespace of {thing['kind']}")
        need(thing["metadata"]["labels"]["app.kubernetes.io/name"] == "vgpu", f"{rendered}: labels of {thing['kind']}")
        size = len(json.dumps(thing))
        # kubectl apply keeps the whole object in an annotation, of which 256 KiB are allowed.
        need(size < 200_000, f"{rendered}: {thing['kind']} {thing['metadata']['name']} has {size} bytes")


EACH = [
    no_container_has_more_rights_than_it_needs,
    only_the_plugin_has_the_agents_token,
    nothing_of_the_host_is_mounted_but_what_is_listed,
    every_image_has_a_tag_and_a_registry,
    every_selector_selects_its_own_pods,
    every_port_that_is_named_is_there,
    the_verbs_listen_on_loopback_beside_kube_scheduler,
    a_kube_scheduler_without_its_extender_does_not_work,
    rights_are_only_those_that_are_listed,
    api_versions_are_those_of_the_cluster,
    kube_scheduler_asks_for_every_resource,
    nothing_is_left_of_helm,
]


# --- what holds of the chart ---------------------------------------------------------------------------------------


def helm_has_nothing_to_say(_):
    for values in SETS:
        files = [] if values == "defaults" else ["-f", str(values_file(values))]
        said = run("helm", "lint", "--strict", str(CHART), *files).stdout
        need("[ERROR]" not in said and "[WARNING]" not in said, said)


def every_program_takes_the_flags_it_is_given(all_rendered):
    """With --help at the end a program reads its flags, says what it takes and does nothing else."""
    seen = set()
    for rendered in all_rendered:
        for _, container in rendered.containers():
            program, *rest = container["command"]
            if program == "kube-scheduler":
                continue
            # Flags that need a file or another flag are only parsed here.
            command = (os.environ["VGPU_BIN"] + "/" + program, *rest, *container["args"])
            if command not in seen:
                seen.add(command)
                run(*command, "--help", env={"PATH": os.environ["PATH"]})
    need(len(seen) >= 8, f"only {len(seen)} commands were tried")


def our_scheduler_reads_the_device_configuration(all_rendered):
    for rendered in all_rendered:
        if rendered.version != LATEST:
            continue
        text = next(text for _, key, text in rendered.parsed() if key == "device-config.yaml")
        file = WORK / f"device-{rendered.values}.yaml"
        file.write_text(text)
        state = WORK / "state.json"
        state.write_text('{"nodes": [], "pods": []}')
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        program = os.environ["VGPU_BIN"] + "/vgpu-scheduler"
        arguments = ["--embedded", state, f"--http_bind=127.0.0.1:{port}", "--device-config-file", file]
        process = subprocess.Popen([program, *map(str, arguments)], stderr=subprocess.PIPE, text=True)
        try:
            until = time.monotonic() + 20
            while True:
                if process.poll() is not None:
                    raise Wrong(f"{rendered}: {process.stderr.read()[-500:]}")
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5).close()
                    break
                except OSError:
                    need(time.monotonic() < until, f"{rendered}: vgpu-scheduler does not serve")
                    time.sleep(0.02)
        finally:
            process.kill()
            process.wait()


def the_standard_device_configuration_is_the_products(all_rendered):
    ours = (CHART / "files/device-config.yaml").read_text()
    theirs = pathlib.Path("crates/kube-api/src/config/standard.yaml").read_text()
    need(ours == theirs, "charts/vgpu/files/device-config.yaml is not crates/kube-api/src/config/standard.yaml: copy it")
    rendered = next(r for r in all_rendered if r.values == "defaults" and r.version == LATEST)
    text = next(text for _, key, text in rendered.parsed() if key == "device-config.yaml")
    need(read(text) == read(theirs), "the values' defaults change the standard device configuration")


def values_reach_what_they_are_for(all_rendered):
    by = {r.values: r for r in all_rendered if r.version == LATEST}
    device = lambda r: read(next(text for _, key, text in r.parsed() if key == "device-config.yaml"))[0]["nvidia"]
    args = lambda r, container: next(c["args"] for _, c in r.containers() if c["name"] == container)
    hami = device(by["hami"])
    need((hami["deviceSplitCount"], hami["deviceMemoryScaling"], hami["runtimeClassName"]) == (8, 1.2, "nvidia"), f"{hami}")
    need("--node-scheduler-policy=spread" in args(by["hami"], "vgpu-scheduler"), "hami: policy")
    need("--gpu-scheduler-policy=binpack" in args(by["hami"], "vgpu-webhook"), "hami: policy")
    nodes = by["hami"].one("ConfigMap", "vgpu-device-plugin")["data"]["config.json"]
    need(json.loads(nodes)["nodeconfig"][0]["devicememoryscaling"] == 1.8, nodes)
    nodes = by["all-on"].one("ConfigMap", "vgpu-device-plugin")["data"]["config.json"]
    need(json.loads(nodes)["nodeconfig"][0]["operatingmode"] == "mig", nodes)
    need(device(by["all-on"])["gpuCorePolicy"] == "force" and device(by["all-on"])["defaultMemory"] == 0, "overrides")
    need("--devices-by-annotation=true" in args(by["mounts"], "vgpu-webhook"), "mounts: the webhook names no devices")
    need("--devices-by-annotation=false" in args(by["defaults"], "vgpu-webhook"), "defaults: the webhook names devices")
    need("--kubelet-dir=/data/kubelet" in args(by["mounts"], "plugin"), "mounts: kubeletDir")
    need("--http_bind=[::]:9443" in args(by["defaults"], "vgpu-webhook"), "defaults: listenAddress")
    need("--http_bind=0.0.0.0:9443" in args(by["all-on"], "vgpu-webhook"), "all-on: listenAddress")
    need("--node-label-selector=gpu=on,zone=a" in args(by["all-on"], "vgpu-scheduler"), "all-on: nodeLabelSelector")
    need("--otlp-endpoint=http://collector.observability:4318" in args(by["all-on"], "exporter"), "all-on: tracing")
    for rendered in by.values():
        written = rendered.of("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "Secret", "Job", "Certificate")
        written = [o for o in written if o["metadata"]["name"] not in (f"{RELEASE}-assigner", f"{RELEASE}-metrics")]
        need(not written, f"{rendered}: the webhook writes its configuration itself, and here is {[o['kind'] for o in written]}")
    operator = {thing["metadata"]["name"] for thing in by["all-on"].of("ServiceMonitor")}
    assigner = {"vgpu-assigner"} if "kind: MutatingWebhookConfiguration" in by["all-on"].text else set()
    need(operator == {"vgpu-scheduler", "vgpu-webhook", "vgpu-monitor", *assigner}, f"all-on: ServiceMonitors {operator}")
    for monitor in by["all-on"].of("ServiceMonitor"):
        services = [s for s in by["all-on"].of("Service") if monitor["spec"]["selector"]["matchLabels"].items() <= s["metadata"]["labels"].items()]
        for end in monitor["spec"]["endpoints"]:
            need(end["honorLabels"] is True, "the workload's labels would be renamed")
            found = [s for s in services if end["port"] in {p["name"] for p in s["spec"]["ports"]} and s["metadata"]["labels"].get("vgpu.io/scrape") != "false"]
            need(len(found) == 1, f"ServiceMonitor {monitor['metadata']['name']}: port {end['port']} is of {len(found)} Services")
    [end] = by["all-on"].one("ServiceMonitor", "vgpu-scheduler")["spec"]["endpoints"]
    secret = by["all-on"].one("Secret", end["authorization"]["credentials"]["name"])
    account = secret["metadata"]["annotations"]["kubernetes.io/service-account.name"]
    bound = by["all-on"].one("ClusterRoleBinding", "vgpu-metrics")
    need(secret["type"] == "kubernetes.io/service-account-token" and bound["subjects"][0]["name"] == account, f"{secret}, {bound}")
    need("--metrics-access=authorized" in args(by["all-on"], "vgpu-scheduler"), "all-on: metricsAccess")
    need("--metrics-access=open" in args(by["outside"], "vgpu-scheduler"), "outside: metricsAccess")
    need("tokenreviews" not in by["outside"].text and "/explain]" not in by["outside"].text, "outside: rights for what is open")
    for rule in by["all-on"].of("PrometheusRule"):
        need(rule["spec"]["groups"], "a PrometheusRule without groups")
    need("https://example.com/vgpu/docs/alerts.md" in by["all-on"].text, "runbookPrefix")
    without = render("defaults", LATEST, "--set", "prometheus.enabled=true")
    need("runbook_url:" not in without.text and without.of("PrometheusRule"), "without runbookPrefix: a runbook_url that leads nowhere")
    # Without a word, what a cluster of a thousand nodes can pay for.
    for name, detail, team in (("defaults", "standard", "team"), ("all-on", "full", "example.com/cost-center")):
        for container in ("vgpu-scheduler", "plugin", "exporter"):
            need(f"--metrics-detail={detail}" in args(by[name], container), f"{name}: {container}: metricsDetail")
            if container != "exporter":
                need(f"--team-label={team}" in args(by[name], container), f"{name}: {container}: teamLabel")
    need("--report-capacity=false" in args(by["defaults"], "plugin"), "defaults: reportCapacity")
    for version, answer in (("1.30.14", "true"), ("1.31.0", "false")):
        need(f"--report-capacity={answer}" in args(render("defaults", version), "plugin"), f"{version}: reportCapacity is not {answer}")
    for version, count in (("1.23.17", 0), ("1.24.17", 1), ("1.29.15", 1), ("1.30.14", 0)):
        need(len(args_of(render("defaults", version), "kube-scheduler", "--pod-max-in-unschedulable-pods-duration=1m")) == count, f"{version}: kube-scheduler's flag for pods that wait")
    need("--report-capacity=true" in args(by["all-on"], "plugin"), "all-on: reportCapacity")
    need(not any(arg.startswith("--safe-to-evict") for arg in args(by["defaults"], "vgpu-webhook")), "defaults: safeToEvict")
    need("--safe-to-evict=false" in args(by["all-on"], "vgpu-webhook"), "all-on: safeToEvict")
    for name, reports in (("defaults", False), ("all-on", True)):
        nodes = next(p for p in by[name].of("ValidatingAdmissionPolicy") if p["metadata"]["name"].endswith("-monitor-nodes"))
        words = {v["name"]: json.loads(v["expression"]) for v in nodes["spec"]["variables"] if v["name"] in ("removable", "writable")}
        ours = [n["resource%sName" % word] for n in [device(by[name])] for word in ("Memory", "MemoryPercentage", "Core", "Priority")]
        need(words == {"removable": ours, "writable": ours if reports else []}, f"{name}: an agent writes {words} of {ours}")
    need("dcgm" not in by["defaults"].text, "defaults: files for dcgm-exporter")
    need("/sys/fs/cgroup" not in by["defaults"].text, "defaults: a second fence")
    need("--no-fence" in args(by["all-on"], "exporter") and "--control-groups=/sys/fs/cgroup" in args(by["all-on"], "fence"), "all-on: no second fence")
    need("--dcgm-job-mapping-dir=/run/dcgm-jobs" in args(by["all-on"], "exporter") and "path: /var/lib/vgpu-dcgm" in by["all-on"].text,
         "all-on: dcgmJobMappingDir")
    boards = [c for c in by["all-on"].of("ConfigMap") if "grafana_dashboard" in c["metadata"]["labels"]]
    need(len(boards) == len(list(CHART.glob("dashboards/*.json"))) and boards[0]["metadata"]["namespace"] == "monitoring", "dashboards")
    for board in boards:
        [text] = board["data"].values()
        json.loads(text)
    probe = render("defaults", LATEST, "--api-versions", "monitoring.coreos.com/v1")
    need(len(probe.of("ServiceMonitor")) == 3, "auto does not see Prometheus' operator")
    need(not by["defaults"].of("ServiceMonitor"), "ServiceMonitors where there is no such API")


def the_systems_priority_classes_are_taken_by_one_value(_):
    rendered = render("defaults", LATEST, "--set", "priorityClass.system=true", "--set", "scheduler.priorityClassName=own")
    classes = {workload["metadata"]["name"]: workload["spec"]["template"]["spec"]["priorityClassName"] for workload in rendered.workloads()}
    need(classes == {"vgpu-monitor": "system-node-critical", "vgpu-webhook": "system-cluster-critical", "vgpu-scheduler": "own"}, f"{classes}")
    need(not rendered.of("PriorityClass"), "a class of its own beside the system's")
    [quota] = rendered.of("ResourceQuota")
    need(quota["spec"]["scopeSelector"]["matchExpressions"][0]["values"] == ["system-node-critical", "system-cluster-critical"], f"{quota}")


def the_version_may_come_from_the_values(_):
    for version in (LATEST, "1.27.3"):
        told = render("defaults", version)
        command = ["helm", "template", RELEASE, str(CHART), "-n", NAMESPACE, "--set", f"kubeVersion={version}"]
        by_value = Rendered("defaults", version, run(*command).stdout)
        need(by_value.text == told.text, f"kubeVersion={version} is not --kube-version={version}")


def webhook_and_attestation_leave_the_same_namespaces_alone(all_rendered):
    by = {r.values: r for r in all_rendered if r.version == LATEST}
    for rendered in by.values():
        lists = [a.split("=")[1] for a in args_of(rendered, "vgpu-webhook", "--exempt-namespaces=") + args_of(rendered, "exporter", "--attest-exempt-namespaces=")]
        more = ",monitoring" if rendered.values == "all-on" else ""
        need(set(lists) <= {f"{NAMESPACE},kube-system,gpu-operator{more}"}, f"{rendered}: exempt are {lists}")
        need(len(lists) == {"outside": 0, "dra": 3}.get(rendered.values, 2), f"{rendered}: exempt are {lists}")


def a_pod_without_a_request_is_kept_from_gpus(all_rendered):
    by = {r.values: r for r in all_rendered if r.version == LATEST}
    webhook = lambda values, flag: args_of(by[values], "vgpu-webhook", f"--{flag}=")[0].split("=")[1]
    # Where no runtime class is named, NVIDIA's runtime is the nodes' default.
    hidden = {values: webhook(values, "hide-devices") for values in by if values != "outside"}
    expected = {"mounts": "runtime-classes", "hami": "runtime-classes"}
    need(all(how == expected.get(values, "everywhere") for values, how in hidden.items()), f"--hide-devices: {hidden}")
    need(webhook("defaults", "gpu-runtime-classes") == "nvidia,nvidia-cdi,nvidia-legacy", "defaults: runtime classes")
    need(webhook("all-on", "gpu-runtime-classes") == "gpus,nvidia", "all-on: the agent's own runtime class is NVIDIA's too")
    counts = {values: webhook(values, "ignore-namespace-label") for values in hidden}
    need(all((value == "false") == (values in ("all-on", "multi-tenant")) for values, value in counts.items()), f"{counts}")
    evicts = args_of(by["multi-tenant"], "exporter", "--attest")
    need({"--attest=evict", "--attest-evict-dry-run=false", "--attest-evict-grace=60"} <= set(evicts), f"multi-tenant: {evicts}")
    need(args_of(by["defaults"], "exporter", "--attest=") == ["--attest=report"], "defaults: pods are evicted")
    for rendered in by.values():
        deletes = any("delete" in rule["verbs"] and "pods" in rule["resources"] for role in rendered.of("ClusterRole") if role["metadata"]["name"].endswith("-monitor") for rule in role["rules"])
        need(deletes == (rendered.values in ("all-on", "multi-tenant")), f"{rendered}: the agent may delete pods: {deletes}")
        # Evictions are limited to dry runs wherever an agent may ask for them.
        evicts = any("pods/eviction" in rule.get("resources", []) for role in rendered.of("ClusterRole") for rule in role["rules"])
        limited = any(policy["metadata"]["name"].endswith("-monitor-evictions") for policy in rendered.of("ValidatingAdmissionPolicy"))
        need(evicts == limited, f"{rendered}: the agent asks for evictions: {evicts}, limited to dry runs: {limited}")
        for agent in rendered.of("DaemonSet"):
            for container in agent["spec"]["template"]["spec"]["containers"]:
                mounts = [m["mountPath"] for m in container["volumeMounts"] if m["name"] == "all-gpus"]
                need(mounts == ["/var/run/nvidia-container-devices/all"], f"{rendered}: {container['name']} sees no GPU without the variable")


def args_of(rendered, container, beginning):
    return [a for _, c in rendered.containers() if c["name"] == container for a in c["args"] if a.startswith(beginning)]


def the_assigner_and_hcs_are_off_by_default(all_rendered):
    """hcs.io: its definitions, its flags and its rights come together, and none of them by default."""
    by = {r.values: r for r in all_rendered if r.version == LATEST}
    kinds = ["computenodes", "computequotas", "computetasks", "computetopologies"]
    for rendered in by.values():
        file = values_file(rendered.values)
        values = read(file.read_text())[0] if file.exists() else {}
        opened = values.get("hcs", {}).get("enabled", False)
        assigns = values.get("assigner", {}).get("enabled", False)
        flagged = {c["name"] for _, c in rendered.containers() if "--hcs" in c.get("args", [])}
        need(flagged == ({"plugin", "vgpu-scheduler"} if opened else set()), f"{rendered}: --hcs goes to {flagged}")
        groups = {g for role in rendered.of("ClusterRole") for rule in role["rules"] for g in rule.get("apiGroups", [])}
        need(("hcs.io" in groups) == opened, f"{rendered}: rights in {groups}")
        made = sorted(d["metadata"]["name"].removesuffix(".hcs.io") for d in rendered.of("CustomResourceDefinition"))
        # assigner-and-hcs-values.yaml says that they are applied by hand.
        need(made == (kinds if rendered.values == "all-on" else []), f"{rendered}: definitions {made}")
        hooks = rendered.of("MutatingWebhookConfiguration")
        assigners = [w for w in rendered.workloads() if w["metadata"]["name"] == f"{RELEASE}-assigner"]
        need(len(hooks) == len(assigners) == int(assigns), f"{rendered}: {len(assigners)} assigners, {len(hooks)} configurations")
        counted = [a for _, c in rendered.containers() if c["name"] == "vgpu-scheduler" for a in c["args"] if a.startswith("--claims-namespace=")]
        reserved = [a for w in assigners for a in w["spec"]["template"]["spec"]["containers"][0]["args"] if a.startswith("--claims-namespace=")]
        need(counted == reserved, f"{rendered}: the assigner reserves in {reserved}, the scheduler counts {counted}")
        for role in rendered.of("Role"):
            if role["metadata"]["name"] in (f"{RELEASE}-claims", f"{RELEASE}-assigner"):
                need(f"--claims-namespace={role['metadata']['namespace']}" in reserved, f"{rendered}: rights in {role['metadata']['namespace']}")
        for service in rendered.of("Service"):
            if service["metadata"]["name"] == f"{RELEASE}-assigner":
                need([p["port"] for p in service["spec"]["ports"]] == [443, 8080], f"{rendered}: the documented ports are 443 and 8080")
    page = args_of(by["assigner-and-hcs"], "vgpu-scheduler", "--gpu-page")
    need(page == ["--gpu-page=[::]:8081", "--gpu-page-interval=30s", "--gpu-page-monitors=vgpu-monitor.gpu-system.svc:31993"], f"assigner-and-hcs: {page}")
    page = args_of(by["all-on"], "vgpu-scheduler", "--gpu-page")
    need(page[0] == "--gpu-page=0.0.0.0:9000" and page[2].endswith("=vgpu-monitor.gpu-system.svc:31993,node-a.example.com:31993"), f"all-on: {page}")
    for rendered in by.values():
        [scheduler] = [c for _, c in rendered.containers() if c["name"] == "vgpu-scheduler"]
        tokens = [e["valueFrom"]["secretKeyRef"]["name"] for e in scheduler["env"] if e["name"] == "VGPU_GPU_PAGE_TOKEN"]
        served = [p for s in rendered.of("Service") for p in s["spec"]["ports"] if p["name"] == "gpu-page"]
        need(len(tokens) == len(served) == int(rendered.values in ("all-on", "assigner-and-hcs")), f"{rendered}: the GPU page has tokens {tokens}, ports {served}")
    for rendered in all_rendered:
        for hook in [w for o in rendered.of("MutatingWebhookConfiguration") for w in o["webhooks"]]:
            closed = hook["failurePolicy"] == "Fail"
            need(closed == bool(hook.get("matchConditions")) == (rendered.minor >= 28), f"{rendered}: {hook['name']} holds back pods that ask for nothing, or lets in those that do")
    by_hand = {d["metadata"]["name"]: d for d in read((CHART / "files/hcs-crds.yaml").read_text())}
    need(len(by_hand) == len(kinds), f"{sorted(by_hand)}")
    for made in by["all-on"].of("CustomResourceDefinition"):
        need(made["spec"] == by_hand[made["metadata"]["name"]]["spec"], f"{made['metadata']['name']} is not as in the file")
        need(made["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep", f"{made['metadata']['name']} goes with the release, and its objects with it")


def claims_and_the_device_plugin_never_meet_on_a_node(all_rendered):
    defaults = next(r for r in all_rendered if (r.values, r.version) == ("defaults", LATEST))
    need(not defaults.of("DeviceClass"), "defaults: a DeviceClass without dra.enabled")
    need([d["metadata"]["name"] for d in defaults.of("DaemonSet")] == [f"{RELEASE}-monitor"], "defaults: a DaemonSet without dra.enabled")
    rendered = next(r for r in all_rendered if (r.values, r.version) == ("dra", LATEST))
    plugin, claims = (rendered.one("DaemonSet", name)["spec"]["template"]["spec"] for name in (f"{RELEASE}-monitor", f"{RELEASE}-monitor-dra"))
    need(claims["nodeSelector"]["example.com/gives"] == "claims" and claims["nodeSelector"]["gpu"] == "on", f"dra: {claims['nodeSelector']}")
    [term] = plugin["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    need(term == {"matchExpressions": [{"key": "example.com/gives", "operator": "NotIn", "values": ["claims"]}]}, f"dra: {term}")
    names = [[c["name"] for c in spec["containers"]] for spec in (plugin, claims)]
    need(names == [["plugin", "exporter", "fence"], ["dra", "exporter", "fence"]], f"dra: {names}")
    need("--driver-patience=60" in claims["containers"][0]["args"], "dra: extraArgs")
    kind = rendered.one("DeviceClass", "gpu.vgpu.io")["spec"]
    profiles = [rendered.one("DeviceClass", name)["spec"]["selectors"][0]["cel"]["expression"].split(" && ")[1] for name in ("gpu.vgpu.io", "mig.vgpu.io")]
    need(profiles == [f"{no}has(device.attributes[\"gpu.vgpu.io\"].profile)" for no in ("!", "")], f"dra: a device is of both classes: {profiles}")
    mixed = render("dra", LATEST, "--set", "devicePlugin.migStrategy=mixed").one("DaemonSet", f"{RELEASE}-monitor-dra")["spec"]["template"]["spec"]["containers"][0]
    need("--mig-strategy=mixed" in mixed["args"] and {"name": "NVIDIA_MIG_CONFIG_DEVICES", "value": "all"} in mixed["env"], f"dra: {mixed}")
    need("SYS_ADMIN" in mixed["securityContext"]["capabilities"]["add"], "dra: it cannot make MIG instances")
    need(kind["extendedResourceName"] == "example.com/whole-gpu", f"dra: {kind}")
    need(kind["config"][0]["opaque"]["parameters"] == {"apiVersion": "gpu.vgpu.io/v1", "kind": "ShareParameters", "priority": 1, "policy": "force"}, f"dra: {kind}")
    args = [c["args"] for d in ("webhook", "scheduler") for s in [rendered.one("Deployment", f"{RELEASE}-{d}")["spec"]["template"]["spec"]] for c in s["containers"] + s.get("initContainers", []) if "args" in c]
    need(any("--by-claims" in a for a in args) and any("--claim-templates" in a for a in args), "dra.replaceResources: a program does not know of it")
    everywhere = render("dra", LATEST, "--set-json", "dra.nodeSelector=null")
    need([d["metadata"]["name"] for d in everywhere.of("DaemonSet")] == [f"{RELEASE}-monitor-dra"], "dra without nodeSelector: the device plugin is there, too")


def versions_with_a_vendors_suffix_are_taken(_):
    for version in VENDOR_VERSIONS:
        rendered = render("defaults", version)
        images = [c["image"] for _, c in rendered.containers() if c["name"] == "kube-scheduler"]
        need(images == ["registry.k8s.io/kube-scheduler:v" + re.search(r"\d+\.\d+\.\d+", version)[0]], f"{version}: {images}")


def values_that_cannot_work_are_refused_with_what_is_wrong(_):
    def refused(case):
        done = run("helm", "template", RELEASE, str(CHART), "-n", NAMESPACE, *case[0], ok=False)
        need(done.returncode != 0, f"{case[0]} is accepted")
        for word in case[1:]:
            need(word in done.stderr, f"{case[0]}: \"{word}\" is not in: {done.stderr.strip()[-300:]}")

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(refused, REFUSED))


def several_tenants_before_policies_are_accepted_by_a_value(_):
    arguments = ["template", RELEASE, str(CHART), "-n", NAMESPACE, "-f", str(CHART / "profiles/multi-tenant.yaml"), "--kube-version", "1.29.9"]
    said = run("helm", *arguments, "--set", "devicePlugin.acceptUnconfined=true").stdout
    need("kind: DaemonSet" in said and "ValidatingAdmissionPolicy" not in said, "1.29 with acceptUnconfined")


def the_notes_name_the_traps(_):
    said = run("helm", "install", RELEASE, str(CHART), "-n", NAMESPACE, "--dry-run=client", "-f", str(CHART / "ci/hami-values.yaml")).stdout
    for word in ("kubectl label node NODE gpu=on", "scripts/images", "Another device plugin", "pod-security", "scheduler.admissionWebhook", "devicePlugin.deviceListStrategy", "vgpu doctor"):
        need(word in said, f"NOTES do not say \"{word}\"")
    capacity = lambda *more: "ignoredByScheduler" in run("helm", "install", RELEASE, str(CHART), "-n", NAMESPACE, "--dry-run=client", "--set", "scheduler.kubeScheduler.enabled=false", *more).stdout
    need(capacity("--set", "devicePlugin.reportCapacity=true") and not capacity(), "NOTES: another scheduler has to ignore what reportCapacity reports")


def what_an_upgrade_cannot_change_is_as_it_was(all_rendered):
    """Selectors, names, bindings and paths of released versions: a change there breaks `helm upgrade`."""
    rendered = next(r for r in all_rendered if r.values == "defaults" and r.version == LATEST)
    for kind, name, path, before in UPGRADES_KEEP:
        now = rendered.one(kind, name)
        for key in path:
            now = now[int(key) if key.isdigit() else key]
        need(now == before, f"{kind} {name}: {'.'.join(path)} was {before}, and is {now}: an upgrade cannot change it")


# --- against a real API server -------------------------------------------------------------------------------------


def schemas():
    """JSON schemas of what the API server knows, unknown fields refused."""
    document = json.loads(run("kubectl", "get", "--raw", "/openapi/v2").stdout)
    definitions = document["definitions"]
    for name, schema in definitions.items():
        if name.endswith(".IntOrString"):
            schema.pop("format", None)
            schema.pop("type", None)
            schema["oneOf"] = [{"type": "string"}, {"type": "integer"}]
        elif name.endswith(".resource.Quantity"):
            schema["type"] = ["string", "number"]
        elif "properties" in schema:
            schema.setdefault("additionalProperties", False)
    folder = WORK / "schemas"
    folder.mkdir()
    text = json.dumps({"definitions": definitions}).replace('"#/definitions/', '"_definitions.json#/definitions/')
    (folder / "_definitions.json").write_text(text)
    for name, schema in definitions.items():
        for kind in schema.get("x-kubernetes-group-version-kind", []):
            group = kind["group"].split(".")[0]
            file = "-".join(filter(None, [kind["kind"].lower(), group, kind["version"]])) + ".json"
            (folder / file).write_text(json.dumps({"$ref": f"_definitions.json#/definitions/{name}"}))
    return folder


def without_a_cluster_is_rendered_what_is_installed(_):
    version = json.loads(run("kubectl", "version", "-o", "json").stdout)["serverVersion"]["gitVersion"]
    installed = run("helm", "install", RELEASE, str(CHART), "-n", NAMESPACE, "--dry-run=server", "-o", "json").stdout
    values = ["--set", f"kubeVersion={version}", "--set", "prometheus.enabled=false"]
    told = run("helm", "template", RELEASE, str(CHART), "-n", NAMESPACE, *values).stdout
    key = lambda thing: (thing["kind"], thing["metadata"].get("namespace", ""), thing["metadata"]["name"])
    objects = lambda text: {key(thing): thing for thing in read(text) if thing}
    installed, told = objects(json.loads(installed)["manifest"]), objects(told)
    need(installed.keys() == told.keys(), f"only one has {installed.keys() ^ told.keys()}")
    for name, thing in installed.items():
        need(thing == told[name], f"{name} is another one without a cluster")


def kubeconform_knows_every_field(all_rendered):
    folder = schemas()
    files = []
    for rendered in all_rendered:
        # Kinds that 1.35 has dropped (policy/v1beta1, node.k8s.io/v1beta1) get only the check of API versions.
        objects = [o for o in rendered.objects if o["kind"] not in OPERATOR and not ("v1beta1" in o["apiVersion"] and rendered.minor < 21)]
        file = WORK / f"{rendered.values}-{rendered.version}.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        files.append(str(file))
    location = str(folder) + "/{{ .ResourceKind }}{{ .KindSuffix }}.json"
    done = run("kubeconform", "-strict", "-summary", "-n", "2", "-schema-location", location, *files)
    # The schemas are our own make: they have to refuse what is wrong.
    for field, value in (("replikas", 1), ("replicas", "many"), ("template", None)):
        bad = json.loads(json.dumps(all_rendered[0].of("Deployment")[0]))
        bad["spec"][field] = value
        said = run("kubeconform", "-strict", "-schema-location", location, "-", ok=False, input=json.dumps(bad))
        need(said.returncode != 0, f"kubeconform takes {field}: {value}")
    print("   ", done.stdout.strip().splitlines()[-1])


def make_namespaces(all_rendered):
    """The release's, and those of reservations."""
    for namespace in {r["metadata"]["namespace"] for rendered in all_rendered for r in rendered.of("Role")}:
        run("kubectl", "create", "namespace", namespace, "--save-config", ok=False)


def the_api_server_takes_every_object(all_rendered):
    make_namespaces(all_rendered)
    for rendered in all_rendered:
        if rendered.version != LATEST:
            continue
        file = WORK / "apply.json"
        objects = [o for o in rendered.objects if o["kind"] not in OPERATOR and o["metadata"].get("namespace") != "monitoring"]
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        said = run("kubectl", "apply", "--dry-run=server", "--validate=strict", "-f", file)
        need("Warning" not in said.stderr, f"{rendered}: {said.stderr}")


def kube_scheduler_reads_its_configuration(all_rendered):
    for rendered in all_rendered:
        for _, key, text in rendered.parsed():
            if key == "config.yaml" and "kubescheduler.config.k8s.io/v1\n" in text and rendered.version == LATEST:
                [config] = read(text)
                config["clientConnection"]["kubeconfig"] = os.environ["KUBECONFIG"]
                file = WORK / f"kube-scheduler-{rendered.values}.yaml"
                file.write_text(json.dumps(config))
                out = WORK / f"kube-scheduler-{rendered.values}.out"
                args = [a for _, c in rendered.containers() if c["name"] == "kube-scheduler" for a in c["args"] if "--config" not in a]
                run("kube-scheduler", "--config", file, "--write-config-to", out, "--secure-port=0", *args, timeout=60)
                [taken] = read(out.read_text())
                need(len(taken["extenders"][0]["managedResources"]) == len(config["extenders"][0]["managedResources"]), f"{rendered}: {out}")


def pod_security_is_as_the_notes_say(all_rendered):
    rendered = next(r for r in all_rendered if r.values == "defaults" and r.version == LATEST)
    for level in ("restricted", "baseline", "privileged"):
        run("kubectl", "create", "namespace", level)
        run("kubectl", "label", "namespace", level, f"pod-security.kubernetes.io/enforce={level}")
        for name in ("default", *(a["metadata"]["name"] for a in rendered.of("ServiceAccount"))):
            run("kubectl", "-n", level, "create", "serviceaccount", name, ok=False)
    run("kubectl", "create", "priorityclass", f"{RELEASE}-trial", "--value=1")

    def admit(workload, level):
        template = workload["spec"]["template"]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "trial", "namespace": level, **template["metadata"]}, "spec": dict(template["spec"])}
        pod["spec"]["priorityClassName"] = f"{RELEASE}-trial"
        return run("kubectl", "create", "--dry-run=server", "-f", "-", ok=False, input=json.dumps(pod))

    for workload in rendered.workloads():
        name = workload["metadata"]["name"]
        agent = workload["kind"] == "DaemonSet"
        done = admit(workload, "privileged" if agent else "restricted")
        need(done.returncode == 0, f"{name}: {done.stderr}")
        if agent:
            said = admit(workload, "baseline").stderr
            need("violates PodSecurity" in said, f"{name} is admitted by \"baseline\": say so in NOTES")
            reasons = set(re.findall(r"(host namespaces|hostPath volumes|non-default capabilities|forbidden AppArmor profile)", said))
            need(reasons >= {"host namespaces", "hostPath volumes", "non-default capabilities"}, said)
            need("privileged" not in said.replace("privileged\":", ""), said)


def an_upgrade_changes_objects_and_makes_none_anew(_):
    """From a chart of another version: what running pods depend on keeps its uid, and its path."""
    chart = WORK / "previous"
    run("cp", "-R", str(CHART), str(chart))
    about = (chart / "Chart.yaml").read_text()
    (chart / "Chart.yaml").write_text(re.sub(r"(?m)^(version|appVersion): .*", r"\1: 0.0.9", about))
    # Values of that time, kept: names that exist now and did not then are not among them.
    options = ["-n", NAMESPACE, "--set", "devicePlugin.deviceSplitCount=5", "--set", "scheduler.livenessProbe=false"]
    run("helm", "install", RELEASE, str(chart), *options)
    kinds = "deployments,daemonsets,services,serviceaccounts,configmaps,poddisruptionbudgets"
    objects = lambda: {(o["kind"], o["metadata"]["name"]): o for o in json.loads(run("kubectl", "-n", NAMESPACE, "get", kinds, "-o", "json").stdout)["items"]}
    before = objects()
    run("helm", "upgrade", RELEASE, str(CHART), "-n", NAMESPACE, "--reset-then-reuse-values", "--set", "webhook.replicas=3")
    after = objects()
    need(before.keys() <= after.keys(), f"gone: {before.keys() - after.keys()}")
    for key, thing in before.items():
        need(after[key]["metadata"]["uid"] == thing["metadata"]["uid"], f"{key} was made anew")
    agent = after["DaemonSet", f"{RELEASE}-monitor"]
    need("0.0.9" in json.dumps(before["DaemonSet", f"{RELEASE}-monitor"]) and "0.0.9" not in json.dumps(agent["spec"]), "the agent's image is the old one")
    need(agent["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == 1, "all agents go at once")
    device = after["ConfigMap", f"{RELEASE}-scheduler-device"]["data"]["device-config.yaml"]
    need(read(device)[0]["nvidia"]["deviceSplitCount"] == 5, "a value of the first installation is lost")
    need(after["Deployment", f"{RELEASE}-webhook"]["spec"]["replicas"] == 3, "a value of the upgrade is lost")
    run("helm", "rollback", RELEASE, "1", "-n", NAMESPACE)
    run("helm", "uninstall", RELEASE, "-n", NAMESPACE, "--wait")
    left = [key for key in objects() if key[1].startswith(RELEASE)]
    need(not left, f"helm uninstall left {left}")


def programs_have_the_rights_they_use(all_rendered):
    """As their own accounts, by the API server's word."""
    make_namespaces(all_rendered)
    rendered = next(r for r in all_rendered if r.values == "assigner-and-hcs" and r.version == LATEST)
    roles = [o for o in rendered.objects if o["kind"] in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")]
    file = WORK / "roles.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": roles}))
    run("kubectl", "apply", "-f", file)
    # Without its definition kubectl does not know which group a kind is of.
    run("kubectl", "apply", "--server-side", "-f", CHART / "files/hcs-crds.yaml")
    run("kubectl", "wait", "--for=condition=Established", "--timeout=60s", "crd/computequotas.hcs.io")
    may = {
        "scheduler": ["list nodes", "watch pods", "create pods/binding -n default", "patch pods -n default", "patch pods/status -n default", "watch computequotas.hcs.io", "list leases -n gpu-claims", f"get leases/hami-scheduler -n {NAMESPACE}", f"update leases/hami-scheduler -n {NAMESPACE}", "create events -n default"],
        "webhook": ["patch mutatingwebhookconfigurations/vgpu-webhook", "create mutatingwebhookconfigurations/vgpu-webhook", "get clusterroles/vgpu-webhook", f"patch secrets/vgpu-webhook-ca -n {NAMESPACE}", "watch resourcequotas", "watch computequotas.hcs.io"],
        "assigner": ["list nodes", "watch pods", "create leases -n gpu-claims", "delete leases -n gpu-claims"],
        "monitor": ["get pods -n default", "patch nodes/status", "patch pods/status -n default", "create events -n default", f"patch leases -n {NAMESPACE}"],
    }
    may_not = {
        "scheduler": ["get secrets -n default", f"update leases/other -n {NAMESPACE}", "patch deployments -n default"],
        "assigner": ["create leases -n default", "patch pods -n default", "get secrets -n default"],
        "webhook": ["patch mutatingwebhookconfigurations/other", "create validatingwebhookconfigurations", "create mutatingwebhookconfigurations/other", f"get secrets/other -n {NAMESPACE}", "list pods", "update clusterroles/vgpu-webhook"],
        "monitor": ["delete pods -n default", "patch pods -n default", "patch nodes", "create pods/eviction -n default", "get secrets -n default", "update nodes/status", "list configmaps -n default", "delete nodes"],
    }
    try:
        for wanted, table in (("yes", may), ("no", may_not)):
            for part, questions in table.items():
                for question in questions:
                    account = f"system:serviceaccount:{NAMESPACE}:{RELEASE}-{part}"
                    # Asked of the resource's subresource as kubectl spells it.
                    said = run("kubectl", "auth", "can-i", *question.replace("pods/binding", "pods --subresource=binding").replace("pods/eviction", "pods --subresource=eviction").replace("nodes/status", "nodes --subresource=status").replace("pods/status", "pods --subresource=status").split(), "--as", account, ok=False).stdout.strip()
                    need(said.splitlines()[-1:] == [wanted], f"{part}: may it {question}? {said}")
    finally:
        run("kubectl", "delete", "-f", file, "--wait=false")


STATIC = [
    helm_has_nothing_to_say,
    every_program_takes_the_flags_it_is_given,
    our_scheduler_reads_the_device_configuration,
    the_standard_device_configuration_is_the_products,
    values_reach_what_they_are_for,
    the_assigner_and_hcs_are_off_by_default,
    the_systems_priority_classes_are_taken_by_one_value,
    the_version_may_come_from_the_values,
    webhook_and_attestation_leave_the_same_namespaces_alone,
    a_pod_without_a_request_is_kept_from_gpus,
    claims_and_the_device_plugin_never_meet_on_a_node,
    versions_with_a_vendors_suffix_are_taken,
    values_that_cannot_work_are_refused_with_what_is_wrong,
    several_tenants_before_policies_are_accepted_by_a_value,
    the_notes_name_the_traps,
    what_an_upgrade_cannot_change_is_as_it_was,
]
SERVER = [
    without_a_cluster_is_rendered_what_is_installed,
    kubeconform_knows_every_field,
    the_api_server_takes_every_object,
    kube_scheduler_reads_its_configuration,
    pod_security_is_as_the_notes_say,
    an_upgrade_changes_objects_and_makes_none_anew,
    programs_have_the_rights_they_use,
]
PROFILES = sorted(file.stem for file in CHART.glob("profiles/*.yaml"))
SETS = ["defaults", *sorted(file.name.removesuffix("-values.yaml") for file in CHART.glob("ci/*-values.yaml")), *PROFILES]
# The oldest Kubernetes that a set is for.
OLDEST = {"multi-tenant": 30, "dra": 34}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--server", action="store_true")
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    global WORK
    WORK = asked.work
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        # Every version with two sets, and with the others where something changes.
        some = [version for version in VERSIONS if version == LATEST or version.split(".")[1] in ("18", "20", "24", "28")]
        wanted = [(values, version) for values in SETS for version in (VERSIONS if values in ("defaults", "all-on") else some) if int(version.split(".")[1]) >= OLDEST.get(values, 0)]
        rendered = list(pool.map(lambda both: render(*both), wanted))
    print(f"{len(rendered)} renderings in {time.monotonic() - began:.1f} s")
    passed = failed = 0

    def attempt(name, check):
        nonlocal passed, failed
        if asked.only not in name:
            return
        began = time.monotonic()
        try:
            check()
            passed += 1
            print(f"test {name.replace('_', ' ')} ... ok ({time.monotonic() - began:.1f} s)")
        except Wrong as wrong:
            failed += 1
            print(f"WRONG {name.replace('_', ' ')}: {wrong}")

    for check in EACH:
        attempt(check.__name__, lambda: [check(one) for one in rendered])
    for check in STATIC + (SERVER if asked.server else []):
        attempt(check.__name__, lambda: check(rendered))
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


main()
