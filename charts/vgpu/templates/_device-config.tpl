{{/*
The device configuration: what scheduler, webhook and agent read. The standard file, with what the values say instead.
*/}}
{{- define "vgpu.deviceConfig" -}}
{{- if .Values.deviceConfig.content -}}
{{- .Values.deviceConfig.content -}}
{{- else -}}
{{- $config := .Files.Get "files/device-config.yaml" | fromYaml -}}
{{- $plugin := .Values.devicePlugin -}}
{{- $nvidia := dict
  "deviceSplitCount" $plugin.deviceSplitCount
  "deviceMemoryScaling" $plugin.deviceMemoryScaling
  "deviceCoreScaling" $plugin.deviceCoreScaling
  "preConfiguredDeviceMemory" $plugin.preConfiguredDeviceMemory
  "enableNumaTopology" $plugin.enableNumaTopology
  "runtimeClassName" (include "vgpu.podRuntimeClass" .)
  "overwriteEnv" (eq (toString .Values.scheduler.overwriteEnv) "true")
-}}
{{- if eq (toString $plugin.disablecorelimit) "true" -}}{{- $_ := set $nvidia "disableCoreLimit" true -}}{{- end -}}
{{- range $key, $value := dict
  "resourceCountName" .Values.resourceName
  "resourceMemoryName" .Values.resourceMem
  "resourceMemoryPercentageName" .Values.resourceMemPercentage
  "resourceCoreName" .Values.resourceCores
  "resourcePriorityName" .Values.resourcePriority -}}
{{- if $value -}}{{- $_ := set $nvidia $key $value -}}{{- end -}}
{{- end -}}
{{- $config = mergeOverwrite $config (dict "nvidia" $nvidia) (deepCopy (default (dict) .Values.deviceConfig.overrides)) -}}
{{- if and .Values.hcs.enabled (not (hasKey $config "hcs")) -}}
{{- $hcs := deepCopy (default (dict) .Values.hcs.config) -}}
{{- /* The second profile of the kube-scheduler that this chart runs; before 1.20 none can ignore a group of resources. */ -}}
{{- if and .Values.scheduler.enabled .Values.scheduler.kubeScheduler.enabled (not (hasKey $hcs "anyVendorScheduler")) (semverCompare ">=1.20.0-0" (include "vgpu.kubeSchedulerVersion" .)) -}}
{{- $_ := set $hcs "anyVendorScheduler" (printf "%s-any-vendor" .Values.schedulerName) -}}
{{- end -}}
{{- $_ := set $config "hcs" $hcs -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}
{{- end -}}

{{/* The version of the kube-scheduler that this chart runs. */}}
{{- define "vgpu.kubeSchedulerVersion" -}}
{{- $kube := include "vgpu.kubeVersion" . -}}
{{- with regexFind "^v?[0-9]+\\.[0-9]+\\.[0-9]+" (toString .Values.scheduler.kubeScheduler.image.tag) -}}
{{- $kube = trimPrefix "v" . -}}
{{- end -}}
{{- $kube -}}
{{- end -}}

{{/*
The profile of pods that take devices of several vendors: that of the others, but for the counted resource, which it does
not count. (ignoredByScheduler would hold for all profiles.)
*/}}
{{- define "vgpu.anyVendorProfile" -}}
{{- $config := include "vgpu.deviceConfig" . | fromYaml -}}
{{- $counted := get (default (dict) (get $config "nvidia")) "resourceCountName" -}}
{{- $profile := deepCopy (default (dict) .Values.scheduler.kubeScheduler.profile) -}}
{{- $others := list -}}
{{- $args := dict -}}
{{- range (default (list) (get $profile "pluginConfig")) -}}
{{- if eq .name "NodeResourcesFit" -}}{{- $args = deepCopy (default (dict) .args) -}}{{- else -}}{{- $others = append $others . -}}{{- end -}}
{{- end -}}
{{- $groups := append (default (list) (get $args "ignoredResourceGroups")) (splitList "/" $counted | first) -}}
{{- $_ := set $args "ignoredResourceGroups" (uniq $groups) -}}
{{- $_ := set $profile "pluginConfig" (append $others (dict "name" "NodeResourcesFit" "args" $args)) -}}
{{- $_ := set $profile "schedulerName" (get (default (dict) (get $config "hcs")) "anyVendorScheduler") -}}
{{- toYaml (list $profile) -}}
{{- end -}}

{{/* The names of one vendor's resources, as a JSON list: every key that begins with "resource" holds one. */}}
{{- define "vgpu.resourcesOf" -}}
{{- $names := list -}}
{{- range $key, $value := . -}}
{{- if and (hasPrefix "resource" $key) (kindIs "string" $value) $value -}}{{- $names = append $names $value -}}{{- end -}}
{{- end -}}
{{- toJson $names -}}
{{- end -}}

{{/*
managedResources of the extender: every name that a pod may ask by. Ascend and Iluvatar only where they are looked at:
kube-scheduler does not count what is ignored, and the extender would not either.
*/}}
{{- define "vgpu.managedResources" -}}
{{- $config := include "vgpu.deviceConfig" . | fromYaml -}}
{{- if hasKey $config "Error" -}}
{{- fail (printf "deviceConfig.content is no YAML: %s" (get $config "Error")) -}}
{{- end -}}
{{- $counted := get (default (dict) (get $config "nvidia")) "resourceCountName" -}}
{{- $names := list -}}
{{- range $vendor, $section := $config -}}
{{- if kindIs "map" $section -}}
{{- if eq $vendor "vnpus" -}}
{{- if $.Values.devices.ascend.enabled -}}
{{- range (default (list) (get $section "configs")) -}}{{- $names = concat $names (include "vgpu.resourcesOf" . | fromJsonArray) -}}{{- end -}}
{{- end -}}
{{- else -}}
{{- $names = concat $names (include "vgpu.resourcesOf" $section | fromJsonArray) -}}
{{- end -}}
{{- else if and (eq $vendor "iluvatars") (kindIs "slice" $section) $.Values.devices.iluvatar.enabled -}}
{{- range $section -}}{{- $names = concat $names (include "vgpu.resourcesOf" . | fromJsonArray) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if hasKey $config "hcs" -}}
{{- /* A pod that takes any vendor's devices names the counts of all; a node has those of one. Without a profile of its own for such pods, none is counted. */ -}}
{{- if not (get (default (dict) (get $config "hcs")) "anyVendorScheduler") -}}{{- $counted = "" -}}{{- end -}}
{{- $names = concat $names (list "ai.compute/vram" "ai.compute/tflops-fp16" "ai.compute/tflops-fp32" "ai.compute/devices" "huawei.com/ascend" "huawei.com/npu" "hygon.com/dcu" "cambricon.com/mlu") -}}
{{- end -}}
{{- range (default (list) .Values.scheduler.extraManagedResources) -}}{{- $names = append $names . -}}{{- end -}}
{{- range $name := uniq $names | sortAlpha }}
- {name: {{ $name | quote }}, ignoredByScheduler: {{ ne $name $counted }}}
{{- end }}
{{- end -}}
