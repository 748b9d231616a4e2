{{- define "vgpu.kubeSchedulerSum" -}}
{{- if .Values.scheduler.kubeScheduler.enabled -}}
{{- list .Values.schedulerName .Values.scheduler.leaderElect .Values.scheduler.kubeScheduler (include "vgpu.managedResources" .) | toJson | sha256sum -}}
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
