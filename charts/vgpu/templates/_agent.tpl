{{/* Of both of the agent's containers. */}}
{{- define "vgpu.agentEnv" -}}
- {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
- {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
# To NVIDIA's runtime: show all GPUs and the management library (NVML), and no CUDA.
- {name: NVIDIA_VISIBLE_DEVICES, value: all}
- {name: NVIDIA_DRIVER_CAPABILITIES, value: utility}
{{- end -}}

{{/* What holds on single nodes, as JSON: given as text (JSON or YAML, HAMi's form) or as values. */}}
{{- define "vgpu.nodeConfig" -}}
{{- $given := .Values.devicePlugin.nodeConfiguration.config -}}
{{- if kindIs "string" $given -}}
{{- if $given -}}{{- $given -}}{{- else -}}{"nodeconfig":[]}{{- end -}}
{{- else -}}{{- toPrettyJson (default (dict "nodeconfig" (list)) $given) -}}
{{- end -}}
{{- end -}}
