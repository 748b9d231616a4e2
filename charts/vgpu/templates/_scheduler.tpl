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
