"""The rights and paths that the chart may use. A change that adds one adds it here, and says why in the template."""


def rights(*rows):
    """{(group, resource, verb): whether only of named objects}. "create" has no name, but by server-side apply."""
    allowed = {}
    for group, resources, verbs, named in rows:
        for resource in resources.split():
            for verb in verbs.split():
                allowed[group, resource, verb] = named == "all" or (named and verb != "create")
    return allowed


RBAC = {
    ("ClusterRole", "scheduler"): rights(
        ("", "pods nodes resourcequotas", "get list watch", False),
        ("", "pods nodes pods/status", "patch", False),
        ("", "pods/binding", "create", False),
        ("", "events", "create patch", False),
        # Only with scheduler.metricsAccess: authorized.
        ("authentication.k8s.io", "tokenreviews", "create", False),
        ("authorization.k8s.io", "subjectaccessreviews", "create", False),
        # Only with scheduler.resourceClaims or dra.enabled.
        ("resource.k8s.io", "resourceclaims resourceslices", "list watch", False),
        # Only with dra.replaceResources.
        ("resource.k8s.io", "resourceclaimtemplates", "get list watch create delete", False),
        # Only with hcs.enabled.
        ("hcs.io", "computenodes", "get list watch create patch delete", False),
        ("hcs.io", "computetopologies", "get create patch delete", False),
        ("hcs.io", "computenodes/status computetopologies/status", "patch", False),
        ("hcs.io", "computequotas computetasks", "get list watch", False),
        ("hcs.io", "computequotas/status computetasks/status", "patch", False),
        ("", "pods", "create", False),
    ),
    ("Role", "scheduler"): rights(("coordination.k8s.io", "leases", "create get update", True)),
    ("ClusterRole", "metrics"): rights(("URL", "/metrics", "get", False)),
    ("ClusterRole", "explain"): rights(("URL", "/explain", "get", False)),
    # Only with assigner.enabled, in the namespace of the reservations.
    ("Role", "claims"): rights(("coordination.k8s.io", "leases", "get list watch create update delete", False)),
    ("Role", "assigner"): rights(("coordination.k8s.io", "leases", "get list watch create update patch delete", False)),
    ("ClusterRole", "assigner"): rights(
        ("", "pods nodes resourcequotas", "get list watch", False),
        # Only with hcs.enabled.
        ("hcs.io", "computequotas", "get list watch", False),
    ),
    ("ClusterRole", "webhook"): rights(
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations validatingwebhookconfigurations", "create get list watch patch", "all"),
        ("rbac.authorization.k8s.io", "clusterroles", "get", True),
        ("", "resourcequotas", "list watch", False),
        # Only with hcs.enabled.
        ("hcs.io", "computequotas", "list watch", False),
    ),
    ("Role", "webhook"): rights(
        ("", "secrets", "create get list watch patch", True),
        ("coordination.k8s.io", "leases", "create get update", True),
        ("events.k8s.io", "events", "create patch", False),
    ),
    ("ClusterRole", "monitor"): rights(
        ("", "pods nodes", "get list watch", False),
        ("", "pods/status nodes/status", "patch", False),
        ("", "events", "create patch", False),
        # Only with devicePlugin.monitor.attest: evict. Policies allow dry runs alone.
        ("", "pods/eviction", "create", False),
        # The same, with evictDryRun: false.
        ("", "pods", "delete", False),
        # Only with hcs.enabled.
        ("hcs.io", "computenodes computetopologies", "get create update", False),
        ("hcs.io", "computenodes/status computetopologies/status", "update", False),
        # Only with dra.enabled.
        ("resource.k8s.io", "resourceclaims", "get", False),
        ("resource.k8s.io", "resourceslices", "list watch create update delete", False),
    ),
    ("Role", "monitor"): rights(("coordination.k8s.io", "leases", "create patch", False)),
}

HOST_PATHS = {
    "/var/lib/vgpu",
    "/var/lib/vgpu/containers",
    "/var/run/cdi",
    "/etc/cdi",
    "/etc/containerd",
    # For dcgm-exporter, where it is asked for.
    "/var/lib/vgpu-dcgm",
    "/var/lib/kubelet/device-plugins",
    "/var/lib/kubelet/pod-resources",
    # Only with dra.enabled.
    "/var/lib/kubelet/plugins_registry",
    "/var/lib/kubelet/plugins/gpu.vgpu.io",
    # Only with devicePlugin.secondFence.enabled, in its container alone.
    "/sys/fs/cgroup",
    # A mount that makes NVIDIA's runtime show all GPUs.
    "/dev/null",
}

CAPABILITIES = {"plugin": {"DAC_OVERRIDE", "SYS_ADMIN"}, "dra": {"DAC_OVERRIDE", "SYS_ADMIN"}, "exporter": {"SYS_PTRACE", "DAC_READ_SEARCH"}, "fence": {"SYS_ADMIN"}}

MULTI_TENANT = "charts/vgpu/profiles/multi-tenant.yaml"

# Arguments of helm, and what it has to say.
REFUSED = [
    (["--set", "devicePlugin.deviceSplitCuont=4"], "deviceSplitCuont"),
    (["--set", "devicePlugin.deviceSplitCount=0"], "deviceSplitCount", "minimum"),
    (["--set", "devicePlugin.deviceSplitCount=many"], "deviceSplitCount", "want integer"),
    (["--set", "devicePlugin.updateStrategy.rollingUpdate.maxSurge=1"], "rollingUpdate", "not allowed"),
    (["--set", "devicePlugin.deviceMemoryScaling=0"], "deviceMemoryScaling"),
    (["--set", "devicePlugin.migStrategy=single"], "migStrategy", "'mixed'"),
    (["--set", "devicePlugin.manner=env"], "manner", "'cdi'"),
    (["--set", "devicePlugin.stateDir=var/lib"], "stateDir"),
    (["--set", "devicePlugin.monitor.attest=kill"], "attest", "'report'"),
    (["--set", "devicePlugin.monitor.service.type=LoadBalancer"], "service/type", "'NodePort'"),
    (["--set", "devicePlugin.secondFence.enabled=true,devicePlugin.hostPID=false"], "secondFence.enabled contradicts devicePlugin.hostPID: false"),
    (["--set", "devicePlugin.secondFence.enabled=true,devicePlugin.enabled=false"], "secondFence.enabled contradicts devicePlugin.enabled: false"),
    (["--set", "devicePlugin.secondFence.enabled=true,devicePlugin.monitor.extraArgs={--no-fence=false}"], "--no-fence=false contradicts devicePlugin.secondFence"),
    (["--set", "devicePlugin.secondFence.capabilities={SYS_PTRACE}"], "secondFence/capabilities", "'SYS_ADMIN'"),
    (["--set", "devicePlugin.image.tag=a b"], "tag"),
    (["--set", "scheduler.defaultSchedulerPolicy.nodeSchedulerPolicy=pack"], "nodeSchedulerPolicy", "'binpack'"),
    (["--set", "scheduler.kubeScheduler.percentageOfNodesToScore=0"], "percentageOfNodesToScore"),
    (["--set", "scheduler.metricsBindAddress=9395"], "metricsBindAddress"),
    (["--set", "scheduler.reservationTimeout=15"], "reservationTimeout"),
    (["--set", "webhook.url=http://gate:9443"], "webhook/url"),
    (["--set", "webhook.timeoutSeconds=60"], "timeoutSeconds"),
    (["--set", "webhook.failurePolicy=Ignore"], "failurePolicy"),
    (["--set", "prometheus.enabled=yes"], "prometheus/enabled"),
    (["--set", "resourceName=gpu"], "resourceName"),
    (["--set", "priorityClass.value=2000000000"], "priorityClass/value"),
    (["--set", "nothing=1"], "nothing"),
    (["--set", "scheduler.gpuPage.enabled=true"], "needs scheduler.gpuPage.tokenSecretName"),
    (["--set", "scheduler.gpuPage.monitors={a}"], "gpuPage/monitors"),
    (["--set", "assigner.enabled=true"], "needs assigner.tlsSecretName"),
    (["--set", "assigner.enabled=true,assigner.tlsSecretName=t"], "needs assigner.caBundle"),
    (["--set", "assigner.enabled=true,assigner.tlsSecretName=t,assigner.caBundle=Q0E=,scheduler.enabled=false"], "needs scheduler.enabled"),
    (["--set", "assigner.pin=anywhere"], "assigner/pin", "'affinity'"),
    (["--set", "assigner.caBundle=-----BEGIN"], "caBundle"),
    (["--set", "hcs.enabled=yes"], "hcs/enabled", "want boolean"),
    (["--set", "scheduler.replicas=2", "--set", "scheduler.leaderElect=false"], "needs scheduler.leaderElect"),
    (["--set", "scheduler.replicas=2", "--set", "scheduler.kubeScheduler.enabled=false"], "needs scheduler.kubeScheduler.enabled"),
    (["--set", "metricsDetail=some"], "metricsDetail", "'standard'"),
    (["--set", "teamLabel=a b"], "teamLabel"),
    (["--set", "devicePlugin.monitor.dcgmJobMappingDir=jobs"], "dcgmJobMappingDir"),
    (["--set", "scheduler.metricsAccess=token"], "scheduler/metricsAccess", "'authorized'"),
    (["--set", "scheduler.metricsAccess=open,prometheus.tokenSecretName=t"], "prometheus.tokenSecretName", "scheduler.metricsAccess"),
    (["--set", "prometheus.enabled=false,prometheus.tokenSecretName=t"], "prometheus.tokenSecretName", "prometheus.enabled"),
    (["--set", "scheduler.extender.extraArgs={--metrics-access=open}"], "scheduler.extender.extraArgs", "scheduler.metricsAccess"),
    (["--set", "devicePlugin.monitor.extraArgs={--kubernetes}"], "devicePlugin.monitor.extraArgs", "has no token"),
    (["--set", "devicePlugin.confineToNode=true", "--kube-version", "1.29.0"], "devicePlugin.confineToNode", "1.30"),
    (["--set", "devicePlugin.confineToNode=maybe"], "confineToNode", "'auto'"),
    (["--set", "devicePlugin.createRuntimeClass=true"], "needs devicePlugin.runtimeClassName"),
    (["--set", "dra.enabled=true", "--kube-version", "1.33.0"], "dra.enabled needs Kubernetes 1.34"),
    (["--set", "dra.enabled=true", "--set-json", "devicePlugin.affinity={\"nodeAffinity\":{}}", "--kube-version", "1.35.0"], "devicePlugin.affinity.nodeAffinity contradicts dra.enabled"),
    (["--set", "dra.replaceResources=true", "--kube-version", "1.35.0"], "dra.enabled: \"false\" contradicts dra.replaceResources: true"),
    (["--set", "dra.enabled=true,dra.replaceResources=true,scheduler.enabled=false", "--kube-version", "1.35.0"], "scheduler.enabled: \"false\" contradicts dra.replaceResources: true"),
    (["--set", "dra.enabled=true,dra.replaceResources=true,devicePlugin.manner=mounts", "--kube-version", "1.35.0"], "dra.replaceResources: true contradicts webhook.devicesByAnnotation"),
    (["--set", "dra.enabled=true,dra.replaceResources=true,dra.extendedResourceName=nvidia.com/gpu", "--kube-version", "1.35.0"], "dra.extendedResourceName: nvidia.com/gpu contradicts dra.replaceResources"),
    (["--set", "dra.parameters.policy=hard"], "dra/parameters/policy", "'force'"),
    (["--set", "dra.parameters.priority=10"], "dra/parameters/priority", "maximum"),
    (["--set", "dra.parameters.floor=0"], "dra/parameters/floor", "minimum"),
    (["--set", "dra.parameters.oversubscribe=much"], "dra/parameters/oversubscribe", "pattern"),
    (["--set", "dra.extendedResourceName=gpu"], "dra/extendedResourceName"),
    (["--set", "deviceConfig.content=a: {", "--set-json", "deviceConfig.overrides={}"], "no YAML"),
    (["--set", "deviceConfig.content=nvidia: {}", "--set", "deviceConfig.overrides.nvidia.defaultCores=1"], "not both"),
    (["--set", "devicePlugin.image.repository=projecthami/hami"], "HAMi's image"),
    (["--set", "webhook.exemptNamespaces={a}"], "webhook.exemptNamespaces", "exemptNamespaces now"),
    (["--set", "devicePlugin.monitor.attestExemptNamespaces={a}"], "devicePlugin.monitor.attestExemptNamespaces", "exemptNamespaces now"),
    (["--set", "exemptNamespaces={A b}"], "exemptNamespaces"),
    (["--set", "webhook.hideDevices=all"], "webhook/hideDevices", "'everywhere'"),
    (["--set", "webhook.gpuRuntimeClasses={NVIDIA}"], "webhook/gpuRuntimeClasses"),
    (["--set", "webhook.ignoreNamespaceLabel=false,webhook.ignoreLabelForAll=true"], "webhook.ignoreLabelForAll: true contradicts webhook.ignoreNamespaceLabel"),
    (["--set", "devicePlugin.monitor.evictGraceSeconds=5m"], "evictGraceSeconds", "want integer"),
    (["--set", "devicePlugin.monitor.attest=evict,devicePlugin.hostPID=false"], "devicePlugin.hostPID: \"false\" contradicts devicePlugin.monitor.attest: evict"),
    (["--set", "devicePlugin.monitor.attest=evict,devicePlugin.monitor.enabled=false"], "devicePlugin.monitor.enabled: \"false\" contradicts"),
    *((["-f", MULTI_TENANT, *arguments], *texts) for arguments, *texts in (
        (["--set", "webhook.enabled=false"], "webhook.enabled: \"false\" contradicts multiTenant: true"),
        (["--set", "webhook.ignoreNamespaceLabel=true"], "webhook.ignoreNamespaceLabel: \"true\" contradicts"),
        (["--set", "webhook.hideDevices=runtime-classes"], "webhook.hideDevices: \"runtime-classes\" contradicts"),
        (["--set", "webhook.nodeAgent=hami"], "webhook.nodeAgent: \"hami\" contradicts"),
        (["--set", "webhook.allowHostPID=true"], "webhook.allowHostPID: \"true\" contradicts"),
        (["--set", "webhook.writeConfiguration=false"], "webhook.writeConfiguration: \"false\" contradicts"),
        (["--set", "devicePlugin.monitor.attest=report"], "devicePlugin.monitor.attest: \"report\" contradicts"),
        (["--set", "devicePlugin.monitor.evictDryRun=true"], "devicePlugin.monitor.evictDryRun: \"true\" contradicts"),
        (["--set", "devicePlugin.monitor.appArmorProfile=RuntimeDefault"], "devicePlugin.monitor.appArmorProfile"),
        (["--set", "webhook.extraArgs={--exempt-namespaces=team-a}"], "webhook.extraArgs: \"--exempt-namespaces=team-a\" contradicts"),
        (["--set", "devicePlugin.monitor.extraArgs={--attest-exempt-programs=x}"], "devicePlugin.monitor.extraArgs"),
        (["--set", "scheduler.metricsAccess=open"], "scheduler.metricsAccess: \"open\" contradicts multiTenant: true"),
        (["--set", "networkPolicies.enabled=false"], "networkPolicies.enabled: \"false\" contradicts multiTenant: true"),
        (["--set-json", "networkPolicies.metricsFrom=[]"], "networkPolicies.metricsFrom: [] contradicts multiTenant: true"),
        (["--set", "devicePlugin.confineToNode=false"], "devicePlugin.confineToNode: \"false\" contradicts multiTenant: true"),
        (["--kube-version", "1.29.9"], "multiTenant: true needs Kubernetes 1.30", "devicePlugin.acceptUnconfined"),
        (["--kube-version", "1.27.3", "--set", "devicePlugin.acceptUnconfined=true"], "multiTenant: true needs Kubernetes 1.28"),
    )),
    (["--kube-version", "1.17.0"], "kubeVersion"),
]

LABELS = lambda component: {"app.kubernetes.io/name": "vgpu", "app.kubernetes.io/instance": "vgpu", "app.kubernetes.io/component": component}

# (kind, name, path, value): the API server refuses to change these, or running containers rely on them.
UPGRADES_KEEP = [
    ("Deployment", "vgpu-scheduler", ["spec", "selector", "matchLabels"], LABELS("scheduler")),
    ("Deployment", "vgpu-webhook", ["spec", "selector", "matchLabels"], LABELS("webhook")),
    ("DaemonSet", "vgpu-monitor", ["spec", "selector", "matchLabels"], LABELS("agent")),
    ("Service", "vgpu-monitor", ["spec", "clusterIP"], "None"),
    ("Service", "vgpu-scheduler", ["spec", "clusterIP"], "None"),
    ("Service", "vgpu-webhook-metrics", ["spec", "clusterIP"], "None"),
    ("PriorityClass", "vgpu", ["value"], 1000000),
    ("ClusterRoleBinding", "vgpu-scheduler", ["roleRef", "name"], "vgpu-scheduler"),
    ("ClusterRoleBinding", "vgpu-webhook", ["roleRef", "name"], "vgpu-webhook"),
    ("ClusterRoleBinding", "vgpu-monitor", ["roleRef", "name"], "vgpu-monitor"),
    # Containers that run have their limits, regions and library below it.
    ("DaemonSet", "vgpu-monitor", ["spec", "template", "spec", "volumes", "0", "hostPath", "path"], "/var/lib/vgpu"),
]
