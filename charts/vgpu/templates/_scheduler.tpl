{{- define "vgpu.kubeSchedulerSum" -}}
{{- if .Values.scheduler.kubeScheduler.enabled -}}
{{- list .Values.schedulerName .Values.scheduler.leaderElect .Values.scheduler.kubeScheduler (include "vgpu.managedResources" .) .Values.dra.enabled | toJson | sha256sum -}}
{{- else -}}none{{- end -}}
{{- end -}}

{{/* "gpu=on,zone=a": given as such, or as a map. */}}
{{- define "vgpu.nodeLabelSelector" -}}
{{- $given := .Values.scheduler.nodeLabelSelector -}}
{{- if kindIs "map" $given -}}
{{- $pairs := list -}}
{{- range $key, $value := $given -}}{{- $pairs = append $pairs (printf "%s=%s" $key (toString $value)) -}}{{- end -}}
{{- join "," $pairs -}}
{{- else -}}{{- $given -}}{{- end -}}
{{- end -}}

{{- define "vgpu.schedulerPort" -}}
{{- regexFind "[0-9]+$" .Values.scheduler.metricsBindAddress -}}
{{- end -}}

{{/* Node monitors that the GPU page asks: those that are given, or this release's, by the headless Service of the agents. */}}
{{- define "vgpu.gpuPageMonitors" -}}
{{- $agent := .Values.devicePlugin -}}
{{- if .Values.scheduler.gpuPage.monitors -}}
{{- join "," .Values.scheduler.gpuPage.monitors -}}
{{- else if and $agent.enabled $agent.monitor.enabled -}}
{{- printf "%s-monitor.%s.svc:%v" (include "vgpu.fullname" .) (include "vgpu.namespace" .) $agent.monitor.port -}}
{{- end -}}
{{- end -}}

{{/* How many pods: one of several works at a time, which the Lease of the kube-scheduler in the same pod decides. */}}
{{- define "vgpu.schedulerReplicas" -}}
{{- $with := .Values.scheduler -}}
{{- if ne (toString $with.replicas) "" -}}{{- $with.replicas -}}
{{- else if and $with.kubeScheduler.enabled $with.leaderElect -}}2
{{- else -}}1
{{- end -}}
{{- end -}}

{{/* "true" where the kubelet can start vgpu-scheduler before kube-scheduler: Kubernetes 1.29 has sidecar containers. */}}
{{- define "vgpu.extenderFirst" -}}
{{- and .Values.scheduler.kubeScheduler.enabled (semverCompare ">=1.29.0" (include "vgpu.kubeVersion" .)) -}}
{{- end -}}

{{/* The container vgpu-scheduler: (dict "root" $ "name" "the Deployment" "sidecar" true) */}}
{{- define "vgpu.extender" -}}
{{- $name := .name -}}
{{- $sidecar := .sidecar -}}
{{- with .root -}}
{{- $ := . -}}
{{- with .Values.scheduler -}}
- name: vgpu-scheduler
  image: {{ include "vgpu.image" (dict "root" $ "image" .extender.image "tag" (include "vgpu.ourTag" $)) }}
  imagePullPolicy: {{ .extender.image.pullPolicy }}
  {{- if $sidecar }}
  restartPolicy: Always
  {{- end }}
  command: [vgpu-scheduler]
  args:
  {{- if .kubeScheduler.enabled }}
  # The verbs give GPUs away without authentication: loopback only, for the kube-scheduler beside it.
  - --http_bind=127.0.0.1:8080
  - --leader-elect={{ .leaderElect }}
  - --leader-elect-resource-name={{ $.Values.schedulerName }}
  - --leader-elect-resource-namespace={{ include "vgpu.namespace" $ }}
  - --kube-scheduler-health=https://127.0.0.1:10259/healthz
  {{- else }}
  # Another scheduler calls the extender, through the Service {{ $name }}-extender.
  - --http_bind={{ $.Values.listenAddress }}:8080
  - --leader-elect=false
  {{- with .extender.tlsSecretName }}
  - --cert_file=/etc/vgpu-tls/tls.crt
  - --key_file=/etc/vgpu-tls/tls.key
  {{- end }}
  {{- end }}
  - --metrics-bind-address={{ hasPrefix ":" .metricsBindAddress | ternary (printf "%s%s" $.Values.listenAddress .metricsBindAddress) .metricsBindAddress }}
  - --metrics-access={{ .metricsAccess }}
  - --scheduler-name={{ $.Values.schedulerName }}
  - --node-scheduler-policy={{ .defaultSchedulerPolicy.nodeSchedulerPolicy }}
  - --gpu-scheduler-policy={{ .defaultSchedulerPolicy.gpuSchedulerPolicy }}
  {{- with include "vgpu.nodeLabelSelector" $ }}
  - --node-label-selector={{ . }}
  {{- end }}
  - --device-config-file=/etc/vgpu/device-config.yaml
  - --enable-ascend={{ $.Values.devices.ascend.enabled }}
  - --enable-iluvatar={{ $.Values.devices.iluvatar.enabled }}
  - --force-overwrite-default-scheduler={{ .forceOverwriteDefaultScheduler }}
  {{- if $.Values.hcs.enabled }}
  - --hcs
  {{- end }}
  {{- if $.Values.assigner.enabled }}
  # GPUs that the assigner has reserved are not given.
  - --claims-namespace={{ $.Values.assigner.claimsNamespace }}
  {{- end }}
  - --resource-claims={{ or .resourceClaims $.Values.dra.enabled }}
  {{- if $.Values.dra.replaceResources }}
  - --claim-templates
  {{- end }}
  {{- if .gpuPage.enabled }}
  # The page of the cluster's GPUs, for readers with its token.
  - --gpu-page={{ $.Values.listenAddress }}:{{ .gpuPage.port }}
  - --gpu-page-interval={{ .gpuPage.interval }}
  {{- with include "vgpu.gpuPageMonitors" $ }}
  - --gpu-page-monitors={{ . }}
  {{- end }}
  {{- end }}
  - --reservation-timeout={{ .reservationTimeout }}
  - --metrics-detail={{ $.Values.metricsDetail }}
  - --legacy-metrics={{ $.Values.legacyMetrics }}
  - --team-label={{ $.Values.teamLabel }}
  {{- if .writeAtFilter }}
  - --write-at-filter
  {{- end }}
  {{- include "vgpu.commonArgs" (dict "root" $ "values" .) | nindent 2 }}
  {{- range .extender.extraArgs }}
  - {{ . | quote }}
  {{- end }}
  env:
  # The namespace of its own objects.
  - {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
  {{- if .gpuPage.enabled }}
  - {name: VGPU_GPU_PAGE_TOKEN, valueFrom: {secretKeyRef: {name: {{ .gpuPage.tokenSecretName }}, key: {{ .gpuPage.tokenSecretKey }}}}}
  {{- end }}
  {{- with .extender.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  ports:
  - {name: metrics, containerPort: {{ include "vgpu.schedulerPort" $ }}}
  {{- if .gpuPage.enabled }}
  - {name: gpu-page, containerPort: {{ .gpuPage.port }}}
  {{- end }}
  {{- if not .kubeScheduler.enabled }}
  - {name: extender, containerPort: 8080}
  {{- end }}
  {{- if $sidecar }}
  startupProbe:
    httpGet: {path: /readyz, port: metrics}
    periodSeconds: 1
    timeoutSeconds: 5
    failureThreshold: 300
  {{- end }}
  livenessProbe:
    httpGet: {path: /healthz, port: metrics}
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 6
  readinessProbe:
    httpGet: {path: /readyz, port: metrics}
    periodSeconds: 5
    timeoutSeconds: 5
  securityContext:
    {{- include "vgpu.restrictedContainer" $ | nindent 4 }}
  resources:
    {{- toYaml .extender.resources | nindent 4 }}
  volumeMounts:
  - {name: device-config, mountPath: /etc/vgpu, readOnly: true}
  {{- if and (not .kubeScheduler.enabled) .extender.tlsSecretName }}
  - {name: tls, mountPath: /etc/vgpu-tls, readOnly: true}
  {{- end }}
{{- end -}}
{{- end -}}
{{- end -}}
