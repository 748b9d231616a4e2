{{/* The given values of HAMi's chart that this chart does not use: one a line. */}}
{{- define "vgpu.ignored" -}}
{{- $known := dict
  "global" (list "gpuHookPath")
  "scheduler" (list "livenessProbe" "nodeLockExpire" "certManager" "patch" "admissionWebhook" "customWebhook" "mutatingWebhookConfiguration")
  "scheduler.kubeScheduler" (list "extraNewArgs")
  "scheduler.service" (list "type" "httpPort" "schedulerPort" "monitorPort" "monitorTargetPort" "httpTargetPort" "labels")
  "devicePlugin" (list "passDeviceSpecsEnabled" "deviceListStrategy" "service" "pluginPath" "libPath" "nvidiaDriverRoot" "gpuOperatorToolkitReady" "vgpuMonitor")
  "devicePlugin.monitor" (list "ctrPath" "resyncInterval" "image" "extraEnvs")
-}}
{{- range $where, $keys := $known -}}
{{- $at := $.Values -}}
{{- range splitList "." $where -}}{{- $at = default (dict) (get $at .) -}}{{- end -}}
{{- range $key := $keys -}}
{{- if hasKey $at $key }}
{{ $where }}.{{ $key }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $key := list "mockDevicePlugin" "dcuResourceName" -}}
{{- if hasKey $.Values $key }}
{{ $key }}
{{- end -}}
{{- end -}}
{{- end -}}
