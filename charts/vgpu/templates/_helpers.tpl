{{/* Names, labels, versions and pieces that several templates share. */}}

{{- define "vgpu.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "vgpu.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{/* What selects a component's pods. Never changes: a selector of a Deployment cannot. (dict "root" $ "component" "…") */}}
{{- define "vgpu.selector" -}}
app.kubernetes.io/name: vgpu
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "vgpu.labels" -}}
{{ include "vgpu.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.global.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of pods: no chart's version, which would restart them for nothing. */}}
{{- define "vgpu.podLabels" -}}
{{- $own := include "vgpu.selector" . | fromYaml -}}
{{- $_ := set $own "app.kubernetes.io/version" .root.Chart.AppVersion -}}
{{- merge $own (default (dict) .extra) (default (dict) .root.Values.global.labels) | toYaml -}}
{{- end -}}

{{/* metadata of an object in our namespace: (dict "root" $ "component" "…" "name" "…") */}}
{{- define "vgpu.metadata" -}}
name: {{ .name }}
namespace: {{ include "vgpu.namespace" .root }}
labels:
  {{- merge (dict) (default (dict) .extraLabels) (include "vgpu.labels" . | fromYaml) | toYaml | nindent 2 }}
{{- $annotations := merge (dict) (default (dict) .annotations) (default (dict) .root.Values.global.annotations) }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* metadata of an object of the whole cluster */}}
{{- define "vgpu.clusterMetadata" -}}
name: {{ .name }}
labels:
  {{- merge (dict) (default (dict) .extraLabels) (include "vgpu.labels" . | fromYaml) | toYaml | nindent 2 }}
{{- $annotations := merge (dict) (default (dict) .annotations) (default (dict) .root.Values.global.annotations) }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The cluster's version as three numbers: "1.31.2", whatever a vendor hangs on it. */}}
{{- define "vgpu.kubeVersion" -}}
{{- regexFind "[0-9]+\\.[0-9]+\\.[0-9]+" (default .Capabilities.KubeVersion.Version .Values.kubeVersion) -}}
{{- end -}}

{{/* An image: (dict "root" $ "image" .Values.….image "tag" "the one that holds where none is named") */}}
{{- define "vgpu.image" -}}
{{- $registry := default .root.Values.global.imageRegistry .image.registry -}}
{{- $tag := default .tag .image.tag | toString -}}
{{- $separator := hasPrefix "sha256:" $tag | ternary "@" ":" -}}
{{- if $registry -}}{{- $registry -}}/{{- end -}}{{- .image.repository -}}{{- $separator -}}{{- $tag -}}
{{- end -}}

{{- define "vgpu.ourTag" -}}
{{- default .Chart.AppVersion .Values.global.imageTag -}}
{{- end -}}

{{- define "vgpu.pullSecrets" -}}
{{- $secrets := concat (default (list) .Values.imagePullSecrets) (default (list) .Values.global.imagePullSecrets) -}}
{{- with $secrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ kindIs "string" . | ternary . (get (kindIs "map" . | ternary . (dict)) "name") }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Annotations of a pod. Older kubelets read the seccomp profile from here: (dict "root" $ "annotations" (dict)) */}}
{{- define "vgpu.podAnnotations" -}}
{{- $all := merge (dict) (default (dict) .own) (default (dict) .annotations) (default (dict) .root.Values.global.annotations) -}}
{{- if semverCompare "<1.19.0" (include "vgpu.kubeVersion" .root) -}}
{{- $all = merge (dict "seccomp.security.alpha.kubernetes.io/pod" "runtime/default") $all -}}
{{- end -}}
{{- toYaml $all -}}
{{- end -}}

{{- define "vgpu.seccomp" -}}
{{- if semverCompare ">=1.19.0" (include "vgpu.kubeVersion" .) }}
seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- end -}}

{{/* Of pods that need nothing of the machine: what Pod Security calls "restricted". */}}
{{- define "vgpu.restrictedPod" -}}
runAsNonRoot: true
runAsUser: 65534
runAsGroup: 65534
{{- include "vgpu.seccomp" . }}
{{- end -}}

{{- define "vgpu.restrictedContainer" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* (dict "root" $ "own" .Values.….priorityClassName "system" "system-cluster-critical") */}}
{{- define "vgpu.priorityClassName" -}}
{{- if .own -}}{{- .own -}}
{{- else if .root.Values.priorityClass.system -}}{{- .system -}}
{{- else if .root.Values.priorityClass.create -}}{{- include "vgpu.fullname" .root -}}
{{- else -}}{{- .root.Values.priorityClass.name -}}
{{- end -}}
{{- end -}}

{{/* The label of nodes that can run the images: (dict "root" $ "nodeSelector" ...). The selector's own entry goes first. */}}
{{- define "vgpu.architecture" -}}
{{- with .root.Values.global.imageArchitecture -}}
{{- if not (hasKey ($.nodeSelector | default dict) "kubernetes.io/arch") -}}
kubernetes.io/arch: {{ . }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Where pods go: (dict "root" $ "values" .Values.scheduler "component" "scheduler") */}}
{{- define "vgpu.placement" -}}
{{- with include "vgpu.priorityClassName" (dict "root" .root "own" .values.priorityClassName "system" "system-cluster-critical") }}
priorityClassName: {{ . }}
{{- end }}
nodeSelector:
  kubernetes.io/os: linux
  {{- with include "vgpu.architecture" (dict "root" .root "nodeSelector" .values.nodeSelector) }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with .values.nodeSelector }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
affinity:
  {{- if .values.affinity }}
  {{- toYaml .values.affinity | nindent 2 }}
  {{- else }}
  # Replicas on different nodes, where there are several.
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "vgpu.selector" . | nindent 12 }}
  {{- end }}
{{- with .values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "vgpu.pdb" -}}
{{- if semverCompare ">=1.21.0" (include "vgpu.kubeVersion" .) -}}policy/v1{{- else -}}policy/v1beta1{{- end -}}
{{- end -}}

{{/* "true" where Prometheus' operator is asked for: always with true, never with false, with auto where its API is. */}}
{{- define "vgpu.withOperator" -}}
{{- $asked := toString .Values.prometheus.enabled -}}
{{- if eq $asked "true" -}}true
{{- else if and (eq $asked "auto") (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1") -}}true
{{- end -}}
{{- end -}}

{{/* Logging and tracing, the same for all programs: list items of args. (dict "root" $ "values" .Values.webhook) */}}
{{- define "vgpu.commonArgs" -}}
- --log={{ default .root.Values.logging.level .values.logLevel }}
- --log-format={{ .root.Values.logging.format }}
{{- with .root.Values.tracing.otlpEndpoint }}
- --otlp-endpoint={{ . }}
{{- end }}
{{- end -}}

{{/* How containers get what is theirs. Kubelets before 1.29 drop the CDI names that a device plugin answers. */}}
{{- define "vgpu.manner" -}}
{{- if and (eq .Values.devicePlugin.manner "auto") (semverCompare "<1.29.0" (include "vgpu.kubeVersion" .)) -}}mounts
{{- else -}}{{- .Values.devicePlugin.manner -}}
{{- end -}}
{{- end -}}

{{/* "true" where the agents report memory and compute in the nodes' capacity; with auto before Kubernetes 1.31, whose
kubelets refuse a pod with an init container that asks for a resource which its node does not have. */}}
{{- define "vgpu.reportCapacity" -}}
{{- $asked := toString .Values.devicePlugin.reportCapacity -}}
{{- if eq $asked "auto" -}}{{- semverCompare "<1.31.0" (include "vgpu.kubeVersion" .) -}}{{- else -}}{{- $asked -}}{{- end -}}
{{- end -}}

{{- define "vgpu.webhookByAnnotation" -}}
{{- $asked := .Values.webhook.devicesByAnnotation -}}
{{- if eq (toString $asked) "auto" -}}{{- eq (include "vgpu.manner" .) "mounts" -}}{{- else -}}{{- $asked -}}{{- end -}}
{{- end -}}

{{/* "true" where the API server keeps each agent to its own node: from Kubernetes 1.30 on, which puts the node into its token. */}}
{{- define "vgpu.confined" -}}
{{- $asked := toString .Values.devicePlugin.confineToNode -}}
{{- if or (eq $asked "true") (and (eq $asked "auto") (semverCompare ">=1.30.0" (include "vgpu.kubeVersion" .))) -}}true{{- end -}}
{{- end -}}

{{/* Whose objects the webhook lets write what is ours. */}}
{{- define "vgpu.ownAccounts" -}}
{{- $name := include "vgpu.fullname" . -}}
{{- $own := list (printf "%s-scheduler" $name) (printf "%s-monitor" $name) (printf "%s-webhook" $name) -}}
{{- join "," (concat $own (default (list) .Values.webhook.ownServiceAccounts)) -}}
{{- end -}}

{{/* The runtime class that the webhook gives pods with a GPU: where CDI brings the devices none is needed. */}}
{{- define "vgpu.podRuntimeClass" -}}
{{- $asked := .Values.devicePlugin.podRuntimeClassName -}}
{{- if ne $asked "auto" -}}{{- $asked -}}
{{- else if ne (include "vgpu.manner" .) "cdi" -}}{{- .Values.devicePlugin.runtimeClassName -}}
{{- end -}}
{{- end -}}

{{/* Namespaces that webhook and attestation leave alone: one list for both. */}}
{{- define "vgpu.exemptNamespaces" -}}
{{- prepend .Values.exemptNamespaces (include "vgpu.namespace" .) | uniq | join "," -}}
{{- end -}}

{{/* The runtime classes of NVIDIA's runtime. */}}
{{- define "vgpu.gpuRuntimeClasses" -}}
{{- append .Values.webhook.gpuRuntimeClasses .Values.devicePlugin.runtimeClassName | compact | uniq | join "," -}}
{{- end -}}

{{/* Where no runtime class is named, NVIDIA's runtime is the nodes' default, and starts every container. */}}
{{- define "vgpu.hideDevices" -}}
{{- if ne .Values.webhook.hideDevices "auto" -}}{{- .Values.webhook.hideDevices -}}
{{- else -}}{{- empty .Values.devicePlugin.runtimeClassName | ternary "everywhere" "runtime-classes" -}}
{{- end -}}
{{- end -}}

{{/* What cannot work together is said before anything is installed. */}}
{{- define "vgpu.checks" -}}
{{- if and (not .Values.scheduler.kubeScheduler.enabled) (gt (include "vgpu.schedulerReplicas" . | int) 1) -}}
{{- fail "scheduler.replicas above 1 needs scheduler.kubeScheduler.enabled: the replica that answers is chosen by the Lease of the kube-scheduler beside it" -}}
{{- end -}}
{{- if and (gt (include "vgpu.schedulerReplicas" . | int) 1) (not .Values.scheduler.leaderElect) -}}
{{- fail "scheduler.replicas above 1 needs scheduler.leaderElect: without it each replica gives away the same GPUs" -}}
{{- end -}}
{{- range $at, $image := dict "scheduler.extender.image" .Values.scheduler.extender.image "devicePlugin.image" .Values.devicePlugin.image -}}
{{- if contains "projecthami" (printf "%s/%s" $image.registry $image.repository) -}}
{{- fail (printf "%s is HAMi's image: of a HAMi installation's values leave images and tags out" $at) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.devicePlugin.nodeConfiguration.config .Values.devicePlugin.nodeConfiguration.externalConfigName -}}
{{- fail "devicePlugin.nodeConfiguration: give config or externalConfigName, not both" -}}
{{- end -}}
{{- if and .Values.deviceConfig.content .Values.deviceConfig.overrides -}}
{{- fail "deviceConfig: give content (a whole file) or overrides (parts of the standard one), not both" -}}
{{- end -}}
{{- if and .Values.scheduler.gpuPage.enabled (not .Values.scheduler.gpuPage.tokenSecretName) -}}
{{- fail "scheduler.gpuPage.enabled needs scheduler.gpuPage.tokenSecretName, a Secret with the token that readers are asked for: the page shows what every namespace holds" -}}
{{- end -}}
{{- if and .Values.assigner.enabled (not .Values.assigner.tlsSecretName) -}}
{{- fail "assigner.enabled needs assigner.tlsSecretName, a Secret with tls.crt and tls.key: the API server asks over HTTPS" -}}
{{- end -}}
{{- if and .Values.assigner.enabled (not .Values.assigner.caBundle) (not .Values.assigner.webhookAnnotations) -}}
{{- fail "assigner.enabled needs assigner.caBundle (the CA's PEM in base64), or assigner.webhookAnnotations that have it put in: without it the API server trusts no answer" -}}
{{- end -}}
{{- if and .Values.assigner.enabled (not .Values.scheduler.enabled) -}}
{{- fail "assigner.enabled needs scheduler.enabled: what the assigner reserves has to be counted by the scheduler" -}}
{{- end -}}
{{- if and .Values.prometheus.tokenSecretName (eq .Values.scheduler.metricsAccess "open") -}}
{{- fail "prometheus.tokenSecretName contradicts scheduler.metricsAccess: open, which asks for no token. Set one of them" -}}
{{- end -}}
{{- if and .Values.prometheus.tokenSecretName (eq (toString .Values.prometheus.enabled) "false") -}}
{{- fail "prometheus.tokenSecretName contradicts prometheus.enabled: false, which makes no ServiceMonitor that could use the token. Set one of them" -}}
{{- end -}}
{{- range .Values.scheduler.extender.extraArgs -}}
{{- if regexMatch "^--metrics-access(=|$)" . -}}
{{- fail (printf "scheduler.extender.extraArgs: %s contradicts scheduler.metricsAccess, which sets this flag. Set the value instead" .) -}}
{{- end -}}
{{- end -}}
{{- range .Values.devicePlugin.monitor.extraArgs -}}
{{- if regexMatch "^--(kubernetes|kubeconfig|plugin-socket)(=|$)" . -}}
{{- fail (printf "devicePlugin.monitor.extraArgs: %s contradicts the chart: the exporter has no token, and calls the API server through the plugin. Leave it out" .) -}}
{{- end -}}
{{- end -}}
{{- if and (eq (toString .Values.devicePlugin.confineToNode) "true") (semverCompare "<1.30.0" (include "vgpu.kubeVersion" .)) -}}
{{- fail (printf "devicePlugin.confineToNode: true needs Kubernetes 1.30 or newer, which has ValidatingAdmissionPolicy and names the node in a pod's token; this cluster has %s. Use auto" (include "vgpu.kubeVersion" .)) -}}
{{- end -}}
{{- if and .Values.devicePlugin.createRuntimeClass (not .Values.devicePlugin.runtimeClassName) -}}
{{- fail "devicePlugin.createRuntimeClass needs devicePlugin.runtimeClassName, such as nvidia" -}}
{{- end -}}
{{- if and .Values.devicePlugin.secondFence.enabled (not .Values.devicePlugin.enabled) -}}
{{- fail "devicePlugin.secondFence.enabled contradicts devicePlugin.enabled: false, which installs no agent that could set the driver's limits. Set one of them" -}}
{{- end -}}
{{- if and .Values.devicePlugin.secondFence.enabled (not .Values.devicePlugin.hostPID) -}}
{{- fail "devicePlugin.secondFence.enabled contradicts devicePlugin.hostPID: false: a container's control group is found by its processes. Set one of them" -}}
{{- end -}}
{{- range .Values.devicePlugin.monitor.extraArgs -}}
{{- if and $.Values.devicePlugin.secondFence.enabled (regexMatch "^--no-fence(=|$)" .) -}}
{{- fail (printf "devicePlugin.monitor.extraArgs: %s contradicts devicePlugin.secondFence.enabled, which sets this flag. Leave it out" .) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.dra.enabled (semverCompare "<1.34.0" (include "vgpu.kubeVersion" .)) -}}
{{- fail (printf "dra.enabled needs Kubernetes 1.34 or newer, which lets claims share a device (feature gate DRAConsumableCapacity); this cluster has %s" (include "vgpu.kubeVersion" .)) -}}
{{- end -}}
{{- if and .Values.dra.enabled .Values.dra.nodeSelector (hasKey (default dict .Values.devicePlugin.affinity) "nodeAffinity") -}}
{{- fail "devicePlugin.affinity.nodeAffinity contradicts dra.enabled, which keeps the device plugin from the nodes of dra.nodeSelector by an affinity of its own. Use devicePlugin.nvidiaNodeSelector, or set dra.nodeSelector to null (all nodes give by claims)" -}}
{{- end -}}
{{- if .Values.dra.replaceResources -}}
{{- range list
  (list "dra.enabled" true "it installs the driver that gives GPUs by claims")
  (list "webhook.enabled" true "the webhook is what replaces the resources")
  (list "webhook.nodeAgent" "vgpu" "no other agent gives GPUs by claims")
  (list "scheduler.enabled" true "the scheduler makes the templates of the claims")
-}}
{{- include "vgpu.needs" (dict "root" $ "at" (index . 0) "needed" (index . 1) "by" "dra.replaceResources: true" "why" (index . 2)) -}}
{{- end -}}
{{- if eq (include "vgpu.webhookByAnnotation" .) "true" -}}
{{- fail "dra.replaceResources: true contradicts webhook.devicesByAnnotation, or devicePlugin.manner: mounts, which are for runtimes without CDI: claims are given by CDI alone. Leave them at auto" -}}
{{- end -}}
{{- if .Values.dra.extendedResourceName -}}
{{- $plugin := default "nvidia.com/gpu" .Values.resourceName -}}
{{- if eq .Values.dra.extendedResourceName $plugin -}}
{{- fail (printf "dra.extendedResourceName: %s contradicts dra.replaceResources: true, which replaces this resource by claims. Set one of them" $plugin) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- include "vgpu.tenancyChecks" . -}}
{{- if and (eq (toString .Values.devicePlugin.monitor.service.type) "NodePort") (not .Values.devicePlugin.monitor.enabled) -}}
{{- fail "devicePlugin.monitor.service.type: NodePort needs devicePlugin.monitor.enabled" -}}
{{- end -}}
{{- end -}}
