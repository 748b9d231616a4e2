{{/* Values by which a pod could get a GPU that it did not ask for, and values that contradict each other there. */}}

{{/* One value that another one needs: (dict "root" $ "at" "webhook.enabled" "needed" true "by" "multiTenant" "why" "…") */}}
{{- define "vgpu.needs" -}}
{{- $at := .root.Values -}}
{{- range splitList "." .at -}}{{- $at = get $at . -}}{{- end -}}
{{- if ne (toString $at) (toString .needed) -}}
{{- fail (printf "%s: %s contradicts %s, which needs %s: %s" .at (toString $at | quote) .by (toString .needed) .why) -}}
{{- end -}}
{{- end -}}

{{/* Whether the agent deletes pods that a disruption budget protects from eviction. */}}
{{- define "vgpu.agentDeletes" -}}
{{- $monitor := .Values.devicePlugin.monitor -}}
{{- and $monitor.enabled (eq $monitor.attest "evict") (not $monitor.evictDryRun) -}}
{{- end -}}

{{- define "vgpu.tenancyChecks" -}}
{{- if hasKey .Values.webhook "exemptNamespaces" -}}
{{- fail "webhook.exemptNamespaces: this is exemptNamespaces now, one list for webhook and attestation; move its names there" -}}
{{- end -}}
{{- if hasKey .Values.devicePlugin.monitor "attestExemptNamespaces" -}}
{{- fail "devicePlugin.monitor.attestExemptNamespaces: this is exemptNamespaces now, one list for webhook and attestation; move its names there" -}}
{{- end -}}
{{- if and .Values.webhook.ignoreLabelForAll (not .Values.webhook.ignoreNamespaceLabel) -}}
{{- fail "webhook.ignoreLabelForAll: true contradicts webhook.ignoreNamespaceLabel: false: every pod could exempt itself by the label that its namespace may not have" -}}
{{- end -}}
{{- $plugin := .Values.devicePlugin -}}
{{- if and (eq $plugin.monitor.attest "evict") $plugin.enabled -}}
{{- $by := "devicePlugin.monitor.attest: evict" -}}
{{- include "vgpu.needs" (dict "root" $ "at" "devicePlugin.monitor.enabled" "needed" true "by" $by "why" "the exporter is what evicts") -}}
{{- include "vgpu.needs" (dict "root" $ "at" "devicePlugin.hostPID" "needed" true "by" $by "why" "without the node's processes none is found") -}}
{{- end -}}
{{- if .Values.multiTenant -}}
{{- if semverCompare "<1.28.0-0" (include "vgpu.kubeVersion" .) -}}
{{- fail (printf "multiTenant: true needs Kubernetes 1.28 or newer, and this is %s: an older API server admits pods unchecked while no webhook answers" (include "vgpu.kubeVersion" .)) -}}
{{- end -}}
{{- range list
  (list "webhook.enabled" true "without it pods choose their GPUs themselves")
  (list "webhook.writeConfiguration" true "it decides which pods the webhook sees")
  (list "webhook.nodeAgent" "vgpu" "no other agent checks what a container is given")
  (list "webhook.ignoreNamespaceLabel" false "a tenant that may label its namespace would switch the webhook off there")
  (list "webhook.ignoreLabelForAll" false "a label in a pod would switch the webhook off for it")
  (list "webhook.hideDevices" "everywhere" "an image could name GPUs on a node whose default runtime is NVIDIA's")
  (list "webhook.allowHostPID" false "a pod could end other tenants' programs on its GPU")
  (list "devicePlugin.enabled" true "the agent keeps the limits")
  (list "devicePlugin.monitor.enabled" true "the exporter finds processes that got past the webhook")
  (list "devicePlugin.hostPID" true "without the node's processes none is found")
  (list "devicePlugin.monitor.attest" "evict" "a process that got past the webhook would keep its GPU")
  (list "devicePlugin.monitor.evictDryRun" false "a dry run evicts no pod")
  (list "devicePlugin.monitor.appArmorProfile" "Unconfined" "AppArmor's standard profile hides other processes from the exporter")
  (list "scheduler.metricsAccess" "authorized" "the scheduler's metrics and explanations name the pods of all namespaces")
  (list "networkPolicies.enabled" true "the agents' metrics name pods and ask for no token, so the network has to keep tenants out")
-}}
{{- include "vgpu.needs" (dict "root" $ "at" (index . 0) "needed" (index . 1) "by" "multiTenant: true" "why" (index . 2)) -}}
{{- end -}}
{{- if not .Values.networkPolicies.metricsFrom -}}
{{- fail "networkPolicies.metricsFrom: [] contradicts multiTenant: true, which needs the pods that may fetch metrics: the agents' metrics name pods and ask for no token" -}}
{{- end -}}
{{- if eq (toString $plugin.confineToNode) "false" -}}
{{- fail "devicePlugin.confineToNode: \"false\" contradicts multiTenant: true, which needs true or auto: a stolen token of one agent would be good for the pods of all nodes" -}}
{{- end -}}
{{- if and (not (include "vgpu.confined" .)) (not $plugin.acceptUnconfined) -}}
{{- fail (printf "multiTenant: true needs Kubernetes 1.30 or newer, and this is %s: an older API server cannot keep an agent to its own node, so that its stolen token is good for the pods of all nodes; devicePlugin.acceptUnconfined: true accepts that" (include "vgpu.kubeVersion" .)) -}}
{{- end -}}
{{- /* A list that is given twice grows, past the checks above. */ -}}
{{- range $at, $arguments := dict "webhook.extraArgs" .Values.webhook.extraArgs "devicePlugin.monitor.extraArgs" $plugin.monitor.extraArgs -}}
{{- range $arguments -}}
{{- if regexMatch "^--(exempt-namespaces|own-service-accounts|ignore-|gpu-runtime-classes|hide-devices|node-agent|allow-host-pid|write-configuration|attest)" . -}}
{{- fail (printf "%s: %s contradicts multiTenant: true: set the value of this flag (values.yaml), so that it is checked" $at (quote .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
