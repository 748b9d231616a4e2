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


{{/* A policy for what an agent writes, up to its variables: (dict "root" $ "what" "nodes" "group" "" "resources" (list "nodes") "operations" (list "DELETE")) */}}
{{- define "vgpu.agentPolicy" }}
{{- $name := printf "%s-monitor" (include "vgpu.fullname" .root) }}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  {{- include "vgpu.clusterMetadata" (dict "root" .root "component" "agent" "name" (printf "%s-%s" $name .what)) | nindent 2 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups: [{{ default "" .group | quote }}]
      apiVersions: ["*"]
      operations: {{ toJson (default (list "CREATE" "UPDATE" "DELETE") .operations) }}
      resources: {{ toJson .resources }}
  matchConditions:
  - name: by-an-agent
    expression: request.userInfo.username == 'system:serviceaccount:{{ include "vgpu.namespace" .root }}:{{ $name }}'
{{- end -}}

{{- define "vgpu.agentVariables" }}
  variables:
  # The node of the pod for which the kubelet asked the token.
  - name: node
    expression: request.userInfo.?extra['authentication.kubernetes.io/node-name'][?0].orValue('')
{{- end -}}

{{- define "vgpu.agentNode" }}
  - expression: variables.node != ''
    reason: Forbidden
    message: this token of the agent names no node; it has to be the one that the kubelet gives the agent's pod
{{- end -}}

{{/* The annotations before and after, and the keys of those that are written. */}}
{{- define "vgpu.agentAnnotations" }}
  - name: changes
    expression: object != null && oldObject != null
  - name: before
    expression: 'variables.changes ? oldObject.metadata.?annotations.orValue({}) : {}'
  - name: after
    expression: 'variables.changes ? object.metadata.?annotations.orValue({}) : {}'
  - name: written
    expression: >-
      variables.after.map(k, k).filter(k, !(k in variables.before) || variables.before[k] != variables.after[k]) +
      variables.before.map(k, k).filter(k, !(k in variables.after))
{{- end -}}

{{/* Whether a Node's status stays as it is, but for the capacity of the resources that the agent may write there
(devicePlugin.reportCapacity) or take out (without it). */}}
{{- define "vgpu.agentCapacity" }}
{{- $nvidia := default (dict) (get (include "vgpu.deviceConfig" . | fromYaml) "nvidia") }}
{{- $names := list }}
{{- range list "resourceMemoryName" "resourceMemoryPercentageName" "resourceCoreName" "resourcePriorityName" }}
{{- with get $nvidia . }}{{ $names = append $names . }}{{ end }}
{{- end }}
  - name: removable
    expression: '{{ toJson $names }}'
  - name: writable
    expression: '{{ ternary (toJson $names) "[]" (eq (include "vgpu.reportCapacity" .) "true") }}'
  - name: sizes
    expression: >-
      variables.changes ? ['capacity', 'allocatable'].map(k, [oldObject.?status[?k].orValue({}),
      object.?status[?k].orValue({})]) : []
  - name: statusStays
    expression: >-
      variables.changes &&
      object.?status.orValue({}).all(k, k in ['capacity', 'allocatable'] ||
      (k in oldObject.?status.orValue({}) && object.status[k] == oldObject.status[k])) &&
      oldObject.?status.orValue({}).all(k, k in ['capacity', 'allocatable'] || k in object.?status.orValue({})) &&
      variables.sizes.all(size, size[0].all(k, k in size[1] || k in variables.removable) &&
      size[1].all(k, k in variables.writable || (k in size[0] && size[1][k] == size[0][k])))
{{- end -}}

{{/* Spec and status stay; the argument is the expression for the status. */}}
{{- define "vgpu.specStays" }}
  - expression: variables.changes && object.spec == oldObject.spec && {{ . }}
    reason: Forbidden
    message: an agent writes annotations, and neither spec nor status{{ if ne . "object.status == oldObject.status" }}, but for memory and compute in the capacity{{ end }}
{{- end -}}

{{- define "vgpu.labelsStay" }}
  - expression: >-
      variables.changes && object.metadata.?labels.orValue({}) == oldObject.metadata.?labels.orValue({}) &&
      object.metadata.?finalizers.orValue([]) == oldObject.metadata.?finalizers.orValue([]) &&
      object.metadata.?ownerReferences.orValue([]) == oldObject.metadata.?ownerReferences.orValue([])
    reason: Forbidden
    message: an agent writes annotations, and neither labels nor finalizers nor owners
{{- end -}}

{{/* The agents that there are: "agent" gives GPUs by the device plugin, "dra" by claims. */}}
{{- define "vgpu.agents" -}}
{{- if not .Values.dra.enabled -}}agent
{{- else if .Values.dra.nodeSelector -}}agent,dra
{{- else -}}dra
{{- end -}}
{{- end -}}
